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

package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/traas-stack/altershield-operator/hack/processes"
	"github.com/traas-stack/altershield-operator/internal/pki"
)

// The components of a control plane.
const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kwok              = "kwok"
)

// validity is the lifetime of certificates: longer than any control plane here.
const validity = 365 * 24 * time.Hour

// apiServerHosts returns the names and addresses of the API server, on the loopback
// interface and inside the cluster.
func apiServerHosts() []string {
	return []string{
		"127.0.0.1", "::1", serviceNetwork.first.String(),
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
}

// serviceNetwork is the range of the cluster IPs of Services. The API server
// takes the first one for itself.
var serviceNetwork = struct {
	cidr  string
	first net.IP
}{"10.96.0.0/16", net.IPv4(10, 96, 0, 1)}

// podNetwork is the range of pod IPs. It has room for more pods than the default
// nodes.
const podNetwork = "10.128.0.0/16"

const serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"

// managedNodeKey and managedNodeValue are the label of the nodes that kwok manages.
const (
	managedNodeKey   = "kwok.x-k8s.io/node"
	managedNodeValue = "fake"
)

// component is a program of the control plane.
type component struct {
	name string
	args []string
	// ready returns nil when the component serves. Components without clients
	// have none: their work shows in the objects.
	ready func(context.Context) error
}

// auditPolicy records every request with its user, and the body of every write,
// unless it may have a secret.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources:
  - group: ""
    resources: [secrets, configmaps, serviceaccounts/token]
  - group: authentication.k8s.io
    resources: [tokenreviews]
- level: Request
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
`

// schedulerConfig is a format string for the path of the kubeconfig.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: %q
  qps: 1000
  burst: 2000
`

// prepare writes the files of the components and computes their arguments.
func (c *ControlPlane) prepare(o Options) error {
	if err := c.writeFiles(o); err != nil {
		return err
	}
	for _, user := range []struct{ file, name, group string }{
		{"controller-manager.kubeconfig", "system:kube-controller-manager", ""},
		{"scheduler.kubeconfig", "system:kube-scheduler", ""},
		// A kubelet's rights end at its own node; kwok is all of them.
		{"kwok.kubeconfig", "kwok", "system:masters"},
	} {
		var groups []string
		if user.group != "" {
			groups = []string{user.group}
		}
		if err := c.kubeconfigForUser(user.name, groups, c.path(user.file)); err != nil {
			return err
		}
	}
	if err := c.writeKubeconfig(c.Kubeconfig(), "admin", "default", &clientcmdapi.AuthInfo{
		ClientCertificateData: c.admin.CertPEM,
		ClientKeyData:         c.admin.KeyPEM,
	}); err != nil {
		return err
	}

	c.components = []component{
		c.etcd(),
		{name: apiServer, ready: c.apiServerReady, args: c.apiServerArgs(o)},
		{name: controllerManager, args: c.controllerManagerArgs()},
		{name: scheduler, args: []string{"--config=" + c.path("scheduler.yaml"), "--secure-port=0"}},
		{
			name: kwok,
			args: []string{
				"--kubeconfig=" + c.path("kwok.kubeconfig"),
				"--config=" + c.path("kwok.yaml"),
				"--manage-nodes-with-annotation-selector=" + managedNodeKey + "=" + managedNodeValue,
				"--cidr=" + podNetwork,
				"--node-lease-duration-seconds=0",
				"--node-ip=127.0.0.1",
				"--node-port=0",
			},
		},
	}
	return nil
}

// writeFiles writes the configuration of the components.
func (c *ControlPlane) writeFiles(o Options) error {
	server, err := c.ca.IssueServer("kube-apiserver", apiServerHosts(), time.Now(), validity)
	if err != nil {
		return err
	}
	// A CA is more than needed: ServiceAccount tokens need a key pair in PEM, without
	// a certificate.
	tokens, err := pki.NewCA("service-accounts", time.Now(), validity)
	if err != nil {
		return err
	}
	tokensPublic, err := tokens.PublicPEM()
	if err != nil {
		return err
	}
	stages, err := kwokConfig()
	if err != nil {
		return err
	}
	policy := o.AuditPolicy
	if policy == "" {
		policy = auditPolicy
	}
	for name, data := range map[string][]byte{
		"pki/ca.crt":        c.ca.CertPEM,
		"pki/ca.key":        c.ca.KeyPEM,
		"pki/apiserver.crt": server.CertPEM,
		"pki/apiserver.key": server.KeyPEM,
		"pki/sa.pub":        tokensPublic,
		"pki/sa.key":        tokens.KeyPEM,
		"kwok.yaml":         stages,
		"scheduler.yaml":    fmt.Appendf(nil, schedulerConfig, c.path("scheduler.kubeconfig")),
		"audit-policy.yaml": []byte(policy),
	} {
		if err := os.WriteFile(c.path(name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *ControlPlane) etcdURL() string { return "http://" + processes.Loopback(c.ports.etcd) }

func (c *ControlPlane) etcd() component {
	peerURL := "http://" + processes.Loopback(c.ports.etcdPeer)
	return component{
		name:  etcd,
		ready: func(ctx context.Context) error { return httpOK(ctx, c.etcdURL()+"/readyz") },
		args: []string{
			"--name=local",
			"--data-dir=" + c.path("etcd"),
			// A crash of this machine may take the cluster with it.
			"--unsafe-no-fsync=true",
			"--listen-client-urls=" + c.etcdURL(),
			"--advertise-client-urls=" + c.etcdURL(),
			"--listen-peer-urls=" + peerURL,
			"--initial-advertise-peer-urls=" + peerURL,
			"--initial-cluster=local=" + peerURL,
			"--quota-backend-bytes=" + strconv.Itoa(8<<30),
			"--log-level=warn",
		},
	}
}

func (c *ControlPlane) controllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + c.path("controller-manager.kubeconfig"),
		"--leader-elect=false",
		"--secure-port=0",
		"--root-ca-file=" + c.path("pki/ca.crt"),
		"--service-account-private-key-file=" + c.path("pki/sa.key"),
		"--cluster-signing-cert-file=" + c.path("pki/ca.crt"),
		"--cluster-signing-key-file=" + c.path("pki/ca.key"),
		"--use-service-account-credentials=true",
		"--flex-volume-plugin-dir=" + c.path("flexvolume"),
		"--concurrent-deployment-syncs=20",
		"--concurrent-replicaset-syncs=20",
		// Tests wait for autoscalers.
		"--horizontal-pod-autoscaler-sync-period=1s",
		"--kube-api-qps=1000",
		"--kube-api-burst=2000",
	}
}

func (c *ControlPlane) apiServerArgs(o Options) []string {
	args := []string{
		"--etcd-servers=" + c.etcdURL(),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.ports.apiServer),
		"--tls-cert-file=" + c.path("pki/apiserver.crt"),
		"--tls-private-key-file=" + c.path("pki/apiserver.key"),
		"--cert-dir=" + c.path("pki"),
		"--client-ca-file=" + c.path("pki/ca.crt"),
		"--authorization-mode=RBAC",
		"--anonymous-auth=false",
		"--allow-privileged=true",
		"--service-cluster-ip-range=" + serviceNetwork.cidr,
		"--service-account-issuer=" + serviceAccountIssuer,
		"--service-account-key-file=" + c.path("pki/sa.pub"),
		"--service-account-signing-key-file=" + c.path("pki/sa.key"),
		// Endpoints at a loopback address are invalid, and the endpoints of the API
		// server are not needed here.
		"--endpoint-reconciler-type=none",
		"--max-requests-inflight=1000",
		"--max-mutating-requests-inflight=500",
		// On by default since 1.37.
		"--feature-gates=HPAScaleToZero=true",
	}
	if o.Audit || o.AuditPolicy != "" {
		args = append(args,
			"--audit-policy-file="+c.path("audit-policy.yaml"),
			"--audit-log-path="+c.AuditLog(),
			"--audit-log-maxsize=0", // one file, never rotated
		)
	}
	return append(args, o.APIServerFlags...)
}

// path returns the path of a file in the state directory.
func (c *ControlPlane) path(name string) string {
	return filepath.Join(c.dir, filepath.FromSlash(name))
}

// apiServerReady asks the API server whether it is ready to serve everything.
func (c *ControlPlane) apiServerReady(ctx context.Context) error {
	return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func httpOK(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
