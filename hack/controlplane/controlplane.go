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

	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/hack/processes"
	"github.com/traas-stack/altershield-operator/internal/pki"
)

const (
	defaultNodes = 3
	// stopGrace is the time between SIGTERM and SIGKILL.
	stopGrace = 10 * time.Second
	// startTimeout bounds each step of the start; each takes a few seconds at most
	// on an idle machine.
	startTimeout = 3 * time.Minute
	pollInterval = 50 * time.Millisecond
	// requestTimeout bounds a single check whether a component is ready.
	requestTimeout = 5 * time.Second
	// heartbeat is the interval of progress lines during a long wait.
	heartbeat = 10 * time.Second
	// portAttempts is the number of starts if another process takes a free port before
	// a component listens on it.
	portAttempts = 3
)

var errPortTaken = errors.New("address already in use")

// Root is binaries.Root.
func Root(dir string) (string, error) { return binaries.Root(dir) }

// BinDir is binaries.Dir.
func BinDir(root string) string { return binaries.Dir(root) }

// Build is binaries.Build.
func Build(ctx context.Context, root string, out io.Writer) (string, error) {
	return binaries.Build(ctx, root, out)
}

// Options are the options of a control plane. BinDir is required.
type Options struct {
	// BinDir is the directory of the binaries; see Build.
	BinDir string
	// Dir is the directory of the state, the kubeconfigs and the logs. Files of an
	// earlier control plane are removed from it. Empty means a temporary directory
	// that Stop removes.
	Dir string
	// Out gets a few lines about the progress of the start. Nil means none.
	Out io.Writer
	// Nodes is the number of nodes; 0 means 3, a negative number none. Each
	// has room for 10,000 pods.
	Nodes int
	// Audit makes the API server record every request in AuditLog, with its user, and
	// the body of writes.
	Audit bool
	// AuditPolicy, an audit.k8s.io/v1 Policy in YAML, replaces the policy of
	// Audit and implies it.
	AuditPolicy string
	// APIServerFlags are added after our own flags and override them.
	APIServerFlags []string
}

// ControlPlane is a control plane that runs until Stop, or until this process
// ends. Its methods may be called concurrently.
type ControlPlane struct {
	binDir  string
	dir     string
	ownsDir bool
	lock    *os.File
	out     io.Writer

	ports      struct{ etcd, etcdPeer, apiServer int }
	ca, admin  *pki.KeyPair
	config     *rest.Config
	client     kubernetes.Interface
	components []component
	supervisor *processes.Supervisor

	stopOnce sync.Once
	stopErr  error
}

// Start starts a new, empty control plane and returns when the API server, the
// nodes and the controllers are ready. ctx bounds the start only. An error has the
// end of the failed component's log; no process runs after it.
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
	c, err := newControlPlane(o)
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
	for _, comp := range c.components {
		if err := c.startComponent(ctx, comp); err != nil {
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
	workers := []string{controllerManager, scheduler, kwok}
	if err := c.wait(ctx, "nodes", workers, c.nodesReady); err != nil {
		return nil, err
	}
	if err := c.wait(ctx, "controllers", workers, c.controllersReady); err != nil {
		return nil, err
	}
	fmt.Fprintf(c.out, "control plane ready in %s: %s\n", elapsed(began), c.Endpoint())
	return c, nil
}

// newControlPlane locks a state directory, and prepares ports and certificates.
func newControlPlane(o Options) (_ *ControlPlane, err error) {
	if o.BinDir == "" {
		return nil, errors.New("no BinDir")
	}
	c := &ControlPlane{out: o.Out, ownsDir: o.Dir == ""}
	if c.out == nil {
		c.out = io.Discard
	}
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
	if err := c.takeDir(); err != nil {
		return nil, err
	}
	ports, err := processes.FreePorts(3)
	if err != nil {
		return nil, err
	}
	c.ports.etcd, c.ports.etcdPeer, c.ports.apiServer = ports[0], ports[1], ports[2]
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
	c.supervisor = processes.New(c.dir)
	return c, nil
}

// takeDir locks the directory, and empties it.
func (c *ControlPlane) takeDir() (err error) {
	if err := os.MkdirAll(c.dir, 0o750); err != nil {
		return err
	}
	if c.lock, err = binaries.Lock(c.dir); err != nil {
		if errors.Is(err, binaries.ErrLocked) {
			return fmt.Errorf("another control plane runs in %s", c.dir)
		}
		return err
	}
	for _, old := range []string{"etcd", "pki", "logs", "audit.log"} {
		if err := os.RemoveAll(c.path(old)); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pki", "logs"} {
		if err := os.Mkdir(c.path(dir), 0o750); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all components, waits for them, and removes Dir if Start created it.
// It may be called repeatedly.
func (c *ControlPlane) Stop() error {
	c.stopOnce.Do(func() {
		err := c.supervisor.StopAll(stopGrace, []string{kwok, scheduler, controllerManager}, []string{apiServer}, []string{etcd})
		c.stopErr = errors.Join(err, c.release())
	})
	return c.stopErr
}

// release unlocks the state directory, and removes it if it is temporary.
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

// RestartControllers kills kube-controller-manager, as a crash does, calls a function
// without it, and starts it again.
func (c *ControlPlane) RestartControllers(ctx context.Context, without func()) error {
	if err := c.supervisor.Stop(controllerManager, 0); err != nil {
		return err
	}
	without()
	for _, comp := range c.components {
		if comp.name == controllerManager {
			return c.startComponent(ctx, comp)
		}
	}
	return nil
}

// startComponent starts a component and waits until it serves.
func (c *ControlPlane) startComponent(ctx context.Context, comp component) error {
	if _, err := c.supervisor.Start(comp.name, filepath.Join(c.binDir, comp.name), comp.args); err != nil {
		return err
	}
	if comp.ready == nil {
		return nil
	}
	return c.wait(ctx, comp.name, []string{comp.name}, comp.ready)
}

// wait polls until ready returns nil. It gives up when one of the given components has
// ended, with the end of the log.
func (c *ControlPlane) wait(ctx context.Context, what string, on []string, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	began := time.Now()
	said := began
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			return ready(ctx)
		}()
		if err == nil {
			fmt.Fprintf(c.out, "%s ready after %s\n", what, elapsed(began))
			return nil
		}
		for _, name := range on {
			if p := c.supervisor.Get(name); p == nil || p.Exited() {
				return c.failure(name, "ended early", nil)
			}
		}
		if time.Since(said) > heartbeat {
			said = time.Now()
			fmt.Fprintf(c.out, "waiting for %s: %s (%v)\n", what, elapsed(began), err)
		}
		if stopped := pause(ctx, pollInterval); stopped != nil {
			err = fmt.Errorf("%s not ready after %s: %w: %w", what, elapsed(began), stopped, err)
			for _, name := range on {
				err = c.failure(name, "may be the cause", err)
			}
			return err
		}
	}
}

// failure adds the end of a component's log to an error.
func (c *ControlPlane) failure(name, what string, err error) error {
	log := c.supervisor.LogTail(name)
	if strings.Contains(log, errPortTaken.Error()) {
		err = errors.Join(err, errPortTaken)
	}
	said := fmt.Errorf("%s %s; its log ends with:\n%s", name, what, log)
	if err == nil {
		return said
	}
	return fmt.Errorf("%w\n%w", err, said)
}

// createNodes creates the nodes, with enough room that no pod waits for scheduling.
// kwok makes them ready.
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
		// Admission taints a new node; kube-controller-manager removes the
		// taint some time after the node became ready.
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("node %s is tainted: %s", node.Name, node.Spec.Taints[0].Key)
		}
	}
	return nil
}

// controllersReady returns nil when pods can be created in namespace default:
// they need its ServiceAccount.
func (c *ControlPlane) controllersReady(ctx context.Context) error {
	_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// elapsed returns the rounded time since a moment.
func elapsed(since time.Time) time.Duration { return time.Since(since).Round(100 * time.Millisecond) }

// Dir returns the state directory. Logs are in its logs/<component>.log.
func (c *ControlPlane) Dir() string { return c.dir }

// Endpoint returns the URL of the API server.
func (c *ControlPlane) Endpoint() string { return "https://" + processes.Loopback(c.ports.apiServer) }

// CAData returns the certificate, in PEM, of the authority that signed the
// certificates of the API server and its clients.
func (c *ControlPlane) CAData() []byte { return slices.Clone(c.ca.CertPEM) }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return c.path("kubeconfig") }

// RESTConfig returns a copy of the administrator's configuration, without a limit
// on the rate of requests.
func (c *ControlPlane) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// AuditLog returns the path of the audit log, with one JSON object a line; see
// Options.Audit.
func (c *ControlPlane) AuditLog() string { return c.path("audit.log") }

// LogPath returns the path of a component's log.
func (c *ControlPlane) LogPath(name string) string { return c.supervisor.LogPath(name) }

// Kubectl returns the path of kubectl, at the version of the API server.
func (c *ControlPlane) Kubectl() string { return filepath.Join(c.binDir, "kubectl") }

// KubectlCmd returns a kubectl command of the administrator.
func (c *ControlPlane) KubectlCmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Kubectl(), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "KUBECACHEDIR="+c.path("kubectl-cache"))
	return cmd
}

// ApplyFiles applies manifests by server-side apply, one path after the other: files,
// directories or kustomizations.
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

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
