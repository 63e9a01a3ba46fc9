//go:build linux

/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

const (
	firstAddress = "172.30.0.1"
	endpoint     = "https://" + firstAddress + ":6443"
	validity     = 365 * 24 * time.Hour
	issuer       = "https://kubernetes.default.svc.cluster.local"
)

// components is a format string for the state directory and the flags of the
// audit log: a line for each component of the control plane.
const components = `etcd %[1]s/k8s/etcd --data-dir=%[1]s/etcd --unsafe-no-fsync --log-level=warn
kube-apiserver %[1]s/k8s/kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=` + firstAddress +
	` --authorization-mode=Node,RBAC` +
	` --client-ca-file=%[1]s/pki/ca.crt --tls-cert-file=%[1]s/pki/apiserver.crt --tls-private-key-file=%[1]s/pki/apiserver.key` +
	` --kubelet-client-certificate=%[1]s/pki/admin.crt --kubelet-client-key=%[1]s/pki/admin.key --kubelet-preferred-address-types=InternalIP` +
	` --service-cluster-ip-range=10.96.0.0/16 --service-account-issuer=` + issuer +
	` --service-account-key-file=%[1]s/pki/tokens.pub --service-account-signing-key-file=%[1]s/pki/tokens.key` +
	` --enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement` +
	` --default-not-ready-toleration-seconds=10 --default-unreachable-toleration-seconds=10 %[2]s
kube-controller-manager %[1]s/k8s/kube-controller-manager --kubeconfig=%[1]s/controller-manager.kubeconfig --leader-elect=false` +
	` --root-ca-file=%[1]s/pki/ca.crt --service-account-private-key-file=%[1]s/pki/tokens.key --use-service-account-credentials` +
	` --node-monitor-period=2s --node-monitor-grace-period=20s
kube-scheduler %[1]s/k8s/kube-scheduler --kubeconfig=%[1]s/scheduler.kubeconfig --leader-elect=false
`

// prepare writes the files that the nodes read.
func (c *Cluster) prepare() error {
	for _, dir := range []string{"pki", "images"} {
		if err := os.MkdirAll(c.path(dir), 0o750); err != nil {
			return err
		}
	}
	for link, dir := range map[string]string{"k8s": "bin/k8s", "bin": "bin/nodes"} {
		if err := os.Symlink(filepath.Join(c.Root, filepath.FromSlash(dir)), c.path(link)); err != nil {
			return err
		}
	}
	for i, image := range c.Images {
		if err := writeArchive(c.path(fmt.Sprintf("images/%d.tar", i)), image); err != nil {
			return err
		}
	}
	audit := ""
	if c.AuditPolicy != "" {
		audit = "--audit-log-maxsize=0 --audit-policy-file=" + c.path("audit-policy.yaml") + " --audit-log-path=" + c.AuditLog()
	}
	for name, data := range map[string]string{
		idFile: c.id, "components": fmt.Sprintf(components, c.Dir, audit), "audit-policy.yaml": c.AuditPolicy,
	} {
		if err := os.WriteFile(c.path(name), []byte(data), 0o600); err != nil {
			return err
		}
	}
	return c.prepareUsers()
}

// prepareUsers makes certificates and kubeconfigs.
func (c *Cluster) prepareUsers() error {
	now := time.Now()
	ca, err := pki.NewCA("altershield-nodes-ca", now, validity)
	if err != nil {
		return err
	}
	hosts := []string{"127.0.0.1", firstAddress, "10.96.0.1", "localhost", "kubernetes", "kubernetes.default.svc"}
	server, err := ca.IssueServer("kube-apiserver", hosts, now, validity)
	if err != nil {
		return err
	}
	// A CA is more than needed: tokens need a key pair in PEM, without a certificate.
	tokens, err := pki.NewCA("service-accounts", now, validity)
	if err != nil {
		return err
	}
	public, err := tokens.PublicPEM()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"pki/ca.crt": ca.CertPEM, "pki/apiserver.crt": server.CertPEM, "pki/apiserver.key": server.KeyPEM,
		"pki/tokens.pub": public, "pki/tokens.key": tokens.KeyPEM,
	}
	users := map[string][]string{
		"admin": {"system:masters"}, "controller-manager": nil, "scheduler": nil, "kube-proxy": nil,
	}
	for _, name := range Nodes() {
		users[name] = []string{"system:nodes"}
	}
	for name, groups := range users {
		user := name
		switch {
		case strings.HasPrefix(name, "node-"):
			user = "system:node:" + name
		case name == "controller-manager" || name == "scheduler":
			user = "system:kube-" + name
		case name == "kube-proxy":
			user = "system:kube-proxy"
		}
		pair, err := ca.IssueClient(user, groups, now, validity)
		if err != nil {
			return err
		}
		if name == "admin" {
			files["pki/admin.crt"], files["pki/admin.key"] = pair.CertPEM, pair.KeyPEM
			c.config = &rest.Config{
				Host: endpoint, QPS: -1, Dial: c.Dial,
				TLSClientConfig: rest.TLSClientConfig{CAData: ca.CertPEM, CertData: pair.CertPEM, KeyData: pair.KeyPEM},
			}
		}
		kubeconfig := clientcmdapi.NewConfig()
		kubeconfig.Clusters["nodes"] = &clientcmdapi.Cluster{Server: endpoint, CertificateAuthorityData: ca.CertPEM}
		kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM}
		kubeconfig.Contexts["nodes"] = &clientcmdapi.Context{Cluster: "nodes", AuthInfo: name}
		kubeconfig.CurrentContext = "nodes"
		if err := clientcmd.WriteToFile(*kubeconfig, c.path(name+".kubeconfig")); err != nil {
			return err
		}
	}
	for name, data := range files {
		if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
			return err
		}
	}
	c.client, err = kubernetes.NewForConfig(c.config)
	return err
}
