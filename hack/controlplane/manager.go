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
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/hack/processes"
	"github.com/traas-stack/altershield-operator/internal/pki"
)

const (
	// ManagerNamespace and managerAccount are the namespace and the ServiceAccount of
	// the manager in production.
	ManagerNamespace = "altershieldoperator-system"
	managerAccount   = "altershieldoperator-controller-manager"
	managerGrace     = 10 * time.Second
)

// Manager is the operator's manager, which runs beside a control plane as in
// production: with the identity and the rights of its manifests, and with webhooks
// that the API server calls over TLS. Only the address of the webhooks differs: a URL
// instead of a Service.
type Manager struct {
	c         *ControlPlane
	name      string
	binary    string
	args      []string
	health    string
	callbacks string
	webhooks  string
	ca        []byte
}

// ManagerOptions are the options of a manager.
type ManagerOptions struct {
	// Root is the root of the repository, for its manifests; the binary is bin/manager.
	Root string
	// Name is unique among several managers; empty is "manager".
	Name string
	// Args are further flags.
	Args []string
	// Endpoint is the URL of a proxy before the API server; empty is the API server
	// itself. EndpointCA is the CA of its certificate, in PEM.
	Endpoint   string
	EndpointCA []byte
}

// InstallManager installs kinds, namespace, identity and webhooks, and prepares
// a manager without starting it.
func (c *ControlPlane) InstallManager(ctx context.Context, o ManagerOptions) (*Manager, error) {
	if o.Name == "" {
		o.Name = "manager"
	}
	if err := c.ApplyFiles(ctx, filepath.Join(o.Root, "config", "dev")); err != nil {
		return nil, err
	}
	// Until then the API server answers watches of the new kinds with "storage
	// is (re)initializing", which delays a manager.
	crds := "--filename=" + filepath.Join(o.Root, "config", "crd", "bases")
	wait := c.KubectlCmd(ctx, "wait", "--for=condition=Established", "--timeout=30s", crds)
	if out, err := wait.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("wait for the kinds: %w\n%s", err, out)
	}
	kubeconfig := c.path(o.Name + ".kubeconfig")
	if err := c.KubeconfigFor(ctx, ManagerNamespace, managerAccount, kubeconfig); err != nil {
		return nil, err
	}
	if o.Endpoint != "" {
		if err := redirect(kubeconfig, o.Endpoint, o.EndpointCA); err != nil {
			return nil, err
		}
	}
	ports, err := processes.FreePorts(3)
	if err != nil {
		return nil, err
	}
	certs := c.path(o.Name + "-certs")
	ca, err := WriteServingCerts(certs, "127.0.0.1")
	if err != nil {
		return nil, err
	}
	manifests, err := WebhookManifests(filepath.Join(o.Root, "config", "webhook", "manifests.yaml"), processes.Loopback(ports[0]), ca)
	if err != nil {
		return nil, err
	}
	path := c.path(o.Name + "-webhooks.yaml")
	if err := os.WriteFile(path, manifests, 0o600); err != nil {
		return nil, err
	}
	if err := c.ApplyFiles(ctx, path); err != nil {
		return nil, err
	}
	health, callbacks := processes.Loopback(ports[1]), processes.Loopback(ports[2])
	return &Manager{
		c: c, name: o.Name, binary: filepath.Join(o.Root, "bin", "manager"), health: "http://" + health + "/readyz",
		callbacks: "http://" + callbacks, webhooks: processes.Loopback(ports[0]), ca: ca,
		args: append([]string{
			"--kubeconfig=" + kubeconfig,
			"--leader-elect=false",
			"--namespace=" + ManagerNamespace,
			"--health-probe-bind-address=" + health,
			"--callback-bind-address=" + callbacks,
			"--webhook-port=" + strconv.Itoa(ports[0]),
			"--webhook-cert-path=" + certs,
		}, o.Args...),
	}, nil
}

// CallbackAddress returns the URL of the manager's callback address, without a path.
func (m *Manager) CallbackAddress() string { return m.callbacks }

// WebhookAddress returns the address of the manager's webhooks, as host:port.
func (m *Manager) WebhookAddress() string { return m.webhooks }

// WebhookCA returns the CA of the webhooks' certificate, in PEM.
func (m *Manager) WebhookCA() []byte { return m.ca }

// redirect changes the endpoint of a kubeconfig.
func redirect(path, endpoint string, ca []byte) error {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.CertificateAuthorityData = endpoint, ca
	}
	return clientcmd.WriteToFile(*config, path)
}

// Start starts the manager and returns when it is ready, its webhooks included.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.c.supervisor.Stop(m.name, managerGrace); err != nil {
		return err
	}
	p, err := m.c.supervisor.Start(m.name, m.binary, m.args)
	if err != nil {
		return err
	}
	for {
		if p.Exited() {
			return fmt.Errorf("%s ended: %w\n%s", m.name, p.Err(), m.c.supervisor.LogTail(m.name))
		}
		if err = httpOK(ctx, m.health); err == nil {
			return nil
		}
		if waitErr := pause(ctx, 100*time.Millisecond); waitErr != nil {
			return errors.Join(fmt.Errorf("%s is not ready: %w\n%s", m.name, err, m.c.supervisor.LogTail(m.name)), waitErr)
		}
	}
}

// Stop ends the manager as a kubelet would: with SIGTERM and a grace period.
func (m *Manager) Stop() error { return m.c.supervisor.Stop(m.name, managerGrace) }

// Kill ends the manager at once, as a crash does.
func (m *Manager) Kill() error { return m.c.supervisor.Stop(m.name, 0) }

// Running reports whether the manager runs.
func (m *Manager) Running() bool {
	p := m.c.supervisor.Get(m.name)
	return p != nil && !p.Exited()
}

// PID returns the process id of the manager; 0 when it does not run.
func (m *Manager) PID() int {
	if p := m.c.supervisor.Get(m.name); p != nil && !p.Exited() {
		return p.PID()
	}
	return 0
}

// LogPath returns the path of the log of all runs of the manager.
func (m *Manager) LogPath() string { return m.c.supervisor.LogPath(m.name) }

// WriteServingCerts makes a certificate for hosts, with a CA of its own whose key is
// discarded. It writes tls.crt, tls.key and ca.crt to dir and returns the CA.
func WriteServingCerts(dir string, hosts ...string) ([]byte, error) {
	now := time.Now()
	ca, err := pki.NewCA("altershield-local-webhook-ca", now, validity)
	if err != nil {
		return nil, err
	}
	server, err := ca.IssueServer("altershield-operator", hosts, now, validity)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{"tls.crt": server.CertPEM, "tls.key": server.KeyPEM, "ca.crt": ca.CertPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	return ca.CertPEM, nil
}

// WebhookManifests returns the webhook configurations of a file, for a manager
// that the API server reaches at host:port instead of through a Service.
func WebhookManifests(path, address string, ca []byte) ([]byte, error) {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, fmt.Errorf("address of the webhooks: %w", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		// Mutating webhooks have all fields of validating webhooks.
		var c admissionregistrationv1.MutatingWebhookConfiguration
		if err := yaml.UnmarshalStrict(document, &c); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		c.Name = "altershieldoperator-" + c.Name
		for i := range c.Webhooks {
			webhook := &c.Webhooks[i]
			if webhook.ClientConfig.Service == nil || webhook.ClientConfig.Service.Path == nil {
				return nil, fmt.Errorf("%s: a webhook without a service path", path)
			}
			url := "https://" + address + *webhook.ClientConfig.Service.Path
			webhook.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: ca}
		}
		text, err := yaml.Marshal(&c)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	return out.Bytes(), nil
}
