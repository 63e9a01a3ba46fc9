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
	"path/filepath"
	"strconv"
	"time"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

// The components of a control plane, as StopComponent and its like know them.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kwok              = "kwok"
)

// validity of certificates: longer than any control plane here lives.
const validity = 365 * 24 * time.Hour

// apiServerHosts are the names and addresses of the API server, on the loopback
// interface and inside the cluster.
func apiServerHosts() []string {
	return []string{
		"127.0.0.1", "::1", serviceNetwork.first.String(),
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
}

// serviceNetwork is where the cluster IPs of Services come from. The API server
// takes the first one for itself.
var serviceNetwork = struct {
	cidr  string
	first net.IP
}{"10.96.0.0/16", net.IPv4(10, 96, 0, 1)}

// podNetwork returns where the IPs of pods come from that kwok starts after it
// was itself started for the nth time, counted from 0. A new kwok doesn't know
// which IPs its predecessor gave to pods that need nothing from it; networks of
// their own keep the two from giving out the same one. Each has room for more
// pods than fit on the default nodes.
func podNetwork(n int) string {
	return fmt.Sprintf("10.%d.0.0/16", 128+n%128)
}

const serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"

// managedNode marks the nodes kwok looks after.
const (
	managedNodeKey   = "kwok.x-k8s.io/node"
	managedNodeValue = "fake"
)

// component is how one program is run and how to know that it works.
type component struct {
	args []string
	// more returns what is different at each start.
	more func() []string
	// ready returns nil once the component serves. Those which serve nobody
	// have none: their work shows in the objects.
	ready func(context.Context) error
}

// auditPolicy records who asked for what, and of every write what was sent,
// except where that may be a secret.
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

// egressConfig is a format string for the path of a socket.
const egressConfig = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %q
`

// prepare writes what the components read and works out how they are run.
func (c *ControlPlane) prepare(o Options) error {
	server, err := c.ca.IssueServer("kube-apiserver", apiServerHosts(), time.Now(), validity)
	if err != nil {
		return err
	}
	// The key that signs ServiceAccount tokens needs no certificate, but a
	// pair of keys in PEM it is.
	tokens, err := pki.NewCA("service-accounts", time.Now(), validity)
	if err != nil {
		return err
	}
	tokensPublic, err := tokens.PublicPEM()
	if err != nil {
		return err
	}
	kwok, err := kwokConfig(o.PodsIn)
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
		"kwok.yaml":         kwok,
		"scheduler.yaml":    fmt.Appendf(nil, schedulerConfig, c.path("scheduler.kubeconfig")),
		"audit-policy.yaml": []byte(policy),
		"egress.yaml":       fmt.Appendf(nil, egressConfig, c.ServiceSocket()),
	} {
		if err := writeFile(c.path(name), data); err != nil {
			return err
		}
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
		if err := c.KubeconfigForUser(user.name, groups, c.path(user.file)); err != nil {
			return err
		}
	}
	if err := c.writeKubeconfig(c.Kubeconfig(), "admin", "default", &clientcmdapi.AuthInfo{
		ClientCertificateData: c.admin.CertPEM,
		ClientKeyData:         c.admin.KeyPEM,
	}); err != nil {
		return err
	}

	etcdURL := "http://" + loopback(c.ports.etcd)
	peerURL := "http://" + loopback(c.ports.etcdPeer)
	apiServer := []string{
		"--etcd-servers=" + etcdURL,
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
		// Endpoints at a loopback address are invalid, and nobody needs those
		// of the API server here.
		"--endpoint-reconciler-type=none",
		"--max-requests-inflight=1000",
		"--max-mutating-requests-inflight=500",
	}
	if o.Audit || o.AuditPolicy != "" {
		apiServer = append(apiServer,
			"--audit-policy-file="+c.path("audit-policy.yaml"),
			"--audit-log-path="+c.AuditLog(),
			"--audit-log-maxsize=0", // one file, never rotated
		)
	}
	if o.PodsIn != "" {
		apiServer = append(apiServer, "--egress-selector-config-file="+c.path("egress.yaml"))
	}
	c.components = map[string]component{
		Etcd: {
			ready: func(ctx context.Context) error { return httpOK(ctx, etcdURL+"/readyz") },
			args: []string{
				"--name=local",
				"--data-dir=" + c.path("etcd"),
				// A crash of this machine may take the cluster with it.
				"--unsafe-no-fsync=true",
				"--listen-client-urls=" + etcdURL,
				"--advertise-client-urls=" + etcdURL,
				"--listen-peer-urls=" + peerURL,
				"--initial-advertise-peer-urls=" + peerURL,
				"--initial-cluster=local=" + peerURL,
				"--quota-backend-bytes=" + strconv.Itoa(8<<30),
				"--log-level=warn",
			},
		},
		APIServer: {
			ready: c.apiServerReady,
			args:  append(apiServer, o.APIServerFlags...),
		},
		ControllerManager: {
			args: []string{
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
				"--kube-api-qps=1000",
				"--kube-api-burst=2000",
			},
		},
		Scheduler: {
			args: []string{
				"--config=" + c.path("scheduler.yaml"),
				"--secure-port=0",
			},
		},
		Kwok: {
			more: func() []string {
				network := podNetwork(c.kwokStarts)
				c.kwokStarts++
				return []string{"--cidr=" + network}
			},
			args: []string{
				"--kubeconfig=" + c.path("kwok.kubeconfig"),
				"--config=" + c.path("kwok.yaml"),
				"--manage-nodes-with-annotation-selector=" + managedNodeKey + "=" + managedNodeValue,
				"--node-lease-duration-seconds=0",
				"--node-ip=127.0.0.1",
				"--node-port=0",
			},
		},
	}
	return nil
}

// path names a file in the state directory.
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

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
