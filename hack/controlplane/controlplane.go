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
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

const (
	defaultNodes = 3
	// startTimeout bounds each step of starting; every one takes a few
	// seconds at most on an idle machine.
	startTimeout = 90 * time.Second
	pollInterval = 50 * time.Millisecond
	// requestTimeout bounds a single look at whether something is ready.
	requestTimeout = 5 * time.Second
	// outageGrace is what a component gets between SIGTERM and SIGKILL when
	// only it is stopped.
	outageGrace = 2 * time.Second
	// portAttempts is how often other ports are tried after somebody took one
	// between our finding it free and a component's listening on it.
	portAttempts = 3
)

var errPortTaken = errors.New("address already in use")

// Options say what control plane to start. BinDir is required.
type Options struct {
	// BinDir has the binaries; see Build.
	BinDir string
	// Dir is where the control plane keeps its state, its kubeconfigs and its
	// logs. What an earlier control plane left in it, processes included, goes
	// away. Empty means a temporary directory that Stop removes.
	Dir string
	// Out gets a few lines about the progress of starting. Nil means none.
	Out io.Writer
	// Nodes is the number of nodes; 0 means 3, a negative number none. Each
	// has room for 10,000 pods.
	Nodes int
	// Audit makes the API server record every request in AuditLog: who asked
	// for what, and of writes the body, too.
	Audit bool
	// AuditPolicy, an audit.k8s.io/v1 Policy in YAML, replaces the policy of
	// Audit and implies it.
	AuditPolicy string
	// EtcdPort and APIServerPort are ports on 127.0.0.1; 0 means a free one.
	EtcdPort, APIServerPort int
	// PodsIn is a namespace whose pods kwok leaves alone: a kubelet of package
	// hack/kubelet runs them. The API server then reaches Services through
	// ServiceSocket.
	PodsIn string
	// APIServerFlags come after our own and override them.
	APIServerFlags []string
}

// ControlPlane is a control plane that runs until Stop, or until this process
// ends. Its methods may be called concurrently.
type ControlPlane struct {
	binDir  string
	dir     string
	ownsDir bool
	lock    *os.File
	out     *reporter

	ports      struct{ etcd, etcdPeer, apiServer int }
	ca, admin  *pki.KeyPair
	config     *rest.Config
	client     kubernetes.Interface
	components map[string]component
	supervisor *supervisor

	// managers are the names of the managers installed; they end first.
	managers []string

	// life ends when Stop begins: whoever starts a component then gives up.
	life context.Context
	end  context.CancelFunc
	// mu is held while components are started or stopped, and guards what
	// follows.
	mu         sync.Mutex
	kwokStarts int

	stopOnce sync.Once
	stopErr  error
}

// Start starts a new, empty control plane and returns when it works: the API
// server ready, the nodes ready, the controllers at work. ctx bounds the start
// only. An error contains the end of the failed component's log; nothing is
// left running then.
func Start(ctx context.Context, o Options) (*ControlPlane, error) {
	for attempt := 1; ; attempt++ {
		c, err := start(ctx, o)
		if err == nil {
			return c, nil
		}
		if attempt == portAttempts || !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return nil, fmt.Errorf("start control plane: %w", err)
		}
	}
}

func start(ctx context.Context, o Options) (_ *ControlPlane, err error) {
	began := time.Now()
	c, err := newControlPlane(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := c.prepare(o); err != nil {
		return nil, err
	}
	for _, name := range []string{Etcd, APIServer, ControllerManager, Scheduler, Kwok} {
		if err := c.startComponent(ctx, name); err != nil {
			return nil, err
		}
	}
	nodes := o.Nodes
	if nodes == 0 {
		nodes = defaultNodes
	}
	if err := c.createNodes(ctx, max(nodes, 0)); err != nil {
		return nil, err
	}
	workers := []string{ControllerManager, Scheduler, Kwok}
	if err := c.wait(ctx, "nodes", workers, c.nodesReady); err != nil {
		return nil, err
	}
	if err := c.wait(ctx, "controllers", workers, c.controllersReady); err != nil {
		return nil, err
	}
	c.out.line("control plane ready in %s: %s", elapsed(began), c.Endpoint())
	return c, nil
}

// newControlPlane takes possession of a state directory.
func newControlPlane(ctx context.Context, o Options) (_ *ControlPlane, err error) {
	if o.BinDir == "" {
		return nil, errors.New("no BinDir")
	}
	c := &ControlPlane{out: newReporter(o.Out), ownsDir: o.Dir == ""}
	if c.binDir, err = filepath.Abs(o.BinDir); err != nil {
		return nil, err
	}
	if c.ownsDir {
		c.dir, err = os.MkdirTemp("", "altershield-controlplane-")
	} else {
		c.dir, err = filepath.Abs(o.Dir)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release())
		}
	}()
	if err := os.MkdirAll(c.dir, 0o750); err != nil {
		return nil, err
	}
	if c.lock, err = tryLockDir(c.dir); err != nil {
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("another control plane runs in %s", c.dir)
		}
		return nil, err
	}
	if err := StopPids(ctx, c.dir); err != nil {
		return nil, err
	}
	for _, old := range []string{"etcd", "pki", "logs", "audit.log"} {
		if err := os.RemoveAll(c.path(old)); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{"pki", "logs"} {
		if err := os.Mkdir(c.path(dir), 0o750); err != nil {
			return nil, err
		}
	}

	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	c.ports.etcd, c.ports.etcdPeer, c.ports.apiServer = ports[0], ports[1], ports[2]
	if o.EtcdPort != 0 {
		c.ports.etcd = o.EtcdPort
	}
	if o.APIServerPort != 0 {
		c.ports.apiServer = o.APIServerPort
	}
	if c.ca, err = pki.NewCA("altershield-local-ca", time.Now(), validity); err != nil {
		return nil, err
	}
	if c.admin, err = c.ca.IssueClient("admin", []string{"system:masters"}, time.Now(), validity); err != nil {
		return nil, err
	}
	c.config = &rest.Config{
		Host: c.Endpoint(),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.ca.CertPEM,
			CertData: c.admin.CertPEM,
			KeyData:  c.admin.KeyPEM,
		},
		QPS: -1,
	}
	own := rest.CopyConfig(c.config)
	own.UserAgent = "altershield-controlplane"
	if c.client, err = kubernetes.NewForConfig(own); err != nil {
		return nil, err
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.supervisor = newSupervisor(c.dir)
	return c, nil
}

// Stop ends all components, waits for them, and removes Dir if Start made it.
// It may be called any number of times, from anywhere, also while a component
// is being started.
func (c *ControlPlane) Stop() error {
	c.stopOnce.Do(func() {
		c.end()
		c.mu.Lock()
		defer c.mu.Unlock()
		err := c.supervisor.stopAll(stopGrace, c.managers,
			[]string{Kwok, Scheduler, ControllerManager}, []string{APIServer}, []string{Etcd})
		if err == nil {
			err = os.Remove(c.path(pidsFile))
			if errors.Is(err, os.ErrNotExist) {
				err = nil // nothing was ever started
			}
		}
		c.stopErr = errors.Join(err, c.release())
	})
	return c.stopErr
}

// release gives the state directory up.
func (c *ControlPlane) release() error {
	var errs []error
	if c.ownsDir {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	if c.lock != nil {
		errs = append(errs, c.lock.Close())
	}
	return errors.Join(errs...)
}

// StopComponent ends one component, as in an outage of it. It is killed if it
// lingers: the API server and etcd would let their clients' watches keep them
// up for ten seconds and more.
func (c *ControlPlane) StopComponent(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stopComponent(ctx, name)
}

// StartComponent starts a component that was stopped, at its old address and
// with its old state, and waits until it serves.
func (c *ControlPlane) StartComponent(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.restarted(ctx, name)
}

// RestartComponent is StopComponent and StartComponent.
func (c *ControlPlane) RestartComponent(ctx context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.stopComponent(ctx, name); err != nil {
		return err
	}
	return c.restarted(ctx, name)
}

// stopComponent has mu held.
func (c *ControlPlane) stopComponent(ctx context.Context, name string) error {
	if _, ok := c.components[name]; !ok {
		return fmt.Errorf("unknown component %q", name)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.supervisor.stop(name, outageGrace)
}

// restarted starts a component again and makes up for what kwok missed: it
// drops what it was about to do to a pod when the API server answers with an
// error other than a few it knows, and comes back to the pod only when that
// changes. A new kwok looks at every pod. mu is held.
func (c *ControlPlane) restarted(ctx context.Context, name string) error {
	if err := c.startComponent(ctx, name); err != nil {
		return err
	}
	if name != Etcd && name != APIServer || c.supervisor.get(Kwok) == nil {
		return nil
	}
	if err := c.wait(ctx, APIServer, nil, c.apiServerReady); err != nil {
		return err
	}
	if err := c.supervisor.stop(Kwok, stopGrace); err != nil {
		return err
	}
	return c.startComponent(ctx, Kwok)
}

// startComponent starts a component and waits until it serves. mu is held,
// unless by start, which nobody competes with.
func (c *ControlPlane) startComponent(ctx context.Context, name string) error {
	comp, ok := c.components[name]
	if !ok {
		return fmt.Errorf("unknown component %q", name)
	}
	if c.life.Err() != nil {
		return errors.New("the control plane was stopped")
	}
	if p := c.supervisor.get(name); p != nil && !p.exited() {
		return nil
	}
	// One that crashed is still recorded; stopping it is a formality.
	if err := c.supervisor.stop(name, stopGrace); err != nil {
		return err
	}
	args := comp.args
	if comp.more != nil {
		args = slices.Concat(args, comp.more())
	}
	if _, err := c.supervisor.start(name, filepath.Join(c.binDir, name), args); err != nil {
		return err
	}
	if comp.ready == nil {
		return nil
	}
	return c.wait(ctx, name, []string{name}, comp.ready)
}

// wait polls until ready returns nil. It gives up when one of the components it
// depends on has ended, and tells from their logs why.
func (c *ControlPlane) wait(ctx context.Context, what string, on []string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)() //nolint:contextcheck // a second context, not a lost one

	began := time.Now()
	said := began
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			return ready(ctx)
		}()
		if err == nil {
			c.out.line("%s ready after %s", what, elapsed(began))
			return nil
		}
		for _, name := range on {
			if p := c.supervisor.get(name); p == nil || p.exited() {
				return c.failure(name, "ended early", nil)
			}
		}
		if time.Since(said) > heartbeat {
			said = time.Now()
			c.out.line("waiting for %s: %s (%v)", what, elapsed(began), err)
		}
		if stopped := pause(ctx, pollInterval); stopped != nil {
			err = fmt.Errorf("%s not ready after %s: %w: %w", what, elapsed(began), stopped, err)
			for _, name := range on {
				err = c.failure(name, "may tell why", err)
			}
			return err
		}
	}
}

// failure is err with the end of a component's log.
func (c *ControlPlane) failure(name, what string, err error) error {
	log := c.supervisor.logTail(name)
	if strings.Contains(log, errPortTaken.Error()) {
		err = errors.Join(err, errPortTaken)
	}
	said := fmt.Errorf("%s %s; its log ends with:\n%s", name, what, log)
	if err == nil {
		return said
	}
	return fmt.Errorf("%w\n%w", err, said)
}

// createNodes creates the nodes, with room enough that scheduling is never
// what a test waits for. What makes them ready is kwok's business.
func (c *ControlPlane) createNodes(ctx context.Context, n int) error {
	for i := range n {
		name := fmt.Sprintf("node-%d", i+1)
		room := corev1.ResourceList{
			corev1.ResourceCPU:              resource.MustParse("1000"),
			corev1.ResourceMemory:           resource.MustParse("1Ti"),
			corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
			corev1.ResourcePods:             resource.MustParse("10000"),
		}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:        name,
				Annotations: map[string]string{managedNodeKey: managedNodeValue},
				Labels: map[string]string{
					managedNodeKey:         managedNodeValue,
					corev1.LabelHostname:   name,
					corev1.LabelOSStable:   "linux",
					corev1.LabelArchStable: "amd64",
				},
			},
			Status: corev1.NodeStatus{
				Capacity:    room,
				Allocatable: room,
				Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.64.%d.%d", (i+1)/256, (i+1)%256)},
					{Type: corev1.NodeHostName, Address: name},
				},
			},
		}
		if _, err := c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create node %s: %w", name, err)
		}
	}
	return nil
}

// nodesReady returns nil when pods can be scheduled to every node.
func (c *ControlPlane) nodesReady(ctx context.Context) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		ready := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
			return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		})
		if !ready {
			return fmt.Errorf("node %s is not ready", node.Name)
		}
		// Admission taints a new node; kube-controller-manager takes the
		// taint away some time after the node became ready.
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("node %s is tainted: %s", node.Name, node.Spec.Taints[0].Key)
		}
	}
	return nil
}

// controllersReady returns nil when pods can be created in namespace default,
// for which its ServiceAccount has to be there.
func (c *ControlPlane) controllersReady(ctx context.Context) error {
	_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// Dir is the state directory. Logs are in its logs/<component>.log.
func (c *ControlPlane) Dir() string { return c.dir }

// Endpoint is the URL of the API server.
func (c *ControlPlane) Endpoint() string { return "https://" + loopback(c.ports.apiServer) }

// CAData is the certificate, in PEM, of the authority that signed the API
// server's certificate and those of its clients.
func (c *ControlPlane) CAData() []byte { return slices.Clone(c.ca.CertPEM) }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return c.path("kubeconfig") }

// RESTConfig returns the administrator's configuration, without any limit on
// the rate of requests. It's the caller's to change.
func (c *ControlPlane) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// AuditLog is the path of the audit log, one JSON object a line, if there is
// one; see Options.Audit.
func (c *ControlPlane) AuditLog() string { return c.path("audit.log") }

// ServiceSocket is where the API server asks to be connected with Services, by the
// CONNECT method of HTTP, if there are Options.PodsIn.
func (c *ControlPlane) ServiceSocket() string { return c.path("services.sock") }

// ServiceNetwork is where the cluster IPs of Services come from.
func ServiceNetwork() string { return serviceNetwork.cidr }

// LogPath is the path of a component's log.
func (c *ControlPlane) LogPath(name string) string { return c.supervisor.logPath(name) }

// Kubectl is the path of the kubectl that belongs to the API server.
func (c *ControlPlane) Kubectl() string { return filepath.Join(c.binDir, "kubectl") }

// KubectlCmd returns a kubectl command run as the administrator.
func (c *ControlPlane) KubectlCmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Kubectl(), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "KUBECACHEDIR="+c.path("kubectl-cache"))
	return cmd
}

// ApplyFiles applies manifests, files or directories of them or kustomizations,
// one after the other by server-side apply.
func (c *ControlPlane) ApplyFiles(ctx context.Context, paths ...string) error {
	for _, path := range paths {
		flag := "--filename=" + path
		for _, name := range []string{"kustomization.yaml", "kustomization.yml", "Kustomization"} {
			if _, err := os.Stat(filepath.Join(path, name)); err == nil {
				flag = "--kustomize=" + path
			}
		}
		out, err := c.KubectlCmd(ctx, "apply", "--server-side", "--force-conflicts", flag).CombinedOutput()
		if err != nil {
			return fmt.Errorf("apply %s: %w\n%s", path, err, out)
		}
	}
	return nil
}
