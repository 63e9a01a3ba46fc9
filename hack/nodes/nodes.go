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
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	// count is the number of nodes.
	count = 3
	// bootTimeout bounds the time until nodes are ready.
	bootTimeout  = 5 * time.Minute
	pollInterval = 200 * time.Millisecond
	idFile       = "id"
)

// Options are the options of a cluster.
type Options struct {
	// Root is the root of the repository. Its bin/k8s and bin/nodes have the binaries.
	Root string
	// Dir is the directory of the cluster's state and logs. Files and cgroups of an
	// earlier cluster are removed.
	Dir string
	// AuditPolicy is an audit.k8s.io/v1 Policy; empty means no audit log.
	AuditPolicy string
	// Images are the images on every node.
	Images []Image
	// Out gets the progress of the start.
	Out io.Writer
}

// Cluster runs until Stop, or until this process ends.
type Cluster struct {
	Options
	id     string
	lock   *os.File
	config *rest.Config
	client kubernetes.Interface

	mu    sync.Mutex
	boots int
	// up are the first processes of the nodes that run.
	up map[string]*exec.Cmd
}

// Start starts a new, empty cluster, and returns when its nodes are ready.
func Start(ctx context.Context, o Options) (_ *Cluster, err error) {
	c := &Cluster{Options: o, up: map[string]*exec.Cmd{}}
	if c.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return nil, err
	}
	if c.lock, err = os.OpenFile(c.Dir+".lock", os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(c.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another cluster runs in %s: %w", c.Dir, err), c.lock.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	if err := c.removeLeftovers(); err != nil {
		return nil, err
	}
	c.id = "altershield-" + strconv.Itoa(os.Getpid())
	if err := c.prepare(); err != nil {
		return nil, err
	}
	return c, c.Boot(ctx, Nodes()...)
}

// Nodes returns the names of the nodes. The control plane is beside the first one.
func Nodes() []string {
	var names []string
	for n := range count {
		names = append(names, "node-"+strconv.Itoa(n+1))
	}
	return names
}

// removeLeftovers removes the files and cgroups of an earlier cluster that was killed.
func (c *Cluster) removeLeftovers() error {
	id, err := os.ReadFile(filepath.Join(c.Dir, idFile))
	if err == nil && strings.HasPrefix(string(id), "altershield-") {
		err = removeCgroups(string(id))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(c.Dir)
}

// Boot starts nodes, all at once, and waits until they are ready.
func (c *Cluster) Boot(ctx context.Context, names ...string) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	booted := metav1.Now()
	for _, name := range names {
		if err := c.boot(ctx, name); err != nil {
			return fmt.Errorf("boot %s: %w", name, err)
		}
	}
	var last error
	for {
		if last = c.ready(ctx, names, booted.Add(-time.Second)); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("nodes %s are not ready, see %s: %w", strings.Join(names, ", "), c.Dir, last)
		case <-time.After(pollInterval):
		}
	}
}

// boot starts the first process of a node and connects the node to the first one.
func (c *Cluster) boot(ctx context.Context, name string) error {
	number := strings.TrimPrefix(name, "node-")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up[name] != nil {
		return errors.New("it is up")
	}
	if err := makeCgroup(c.id, name); err != nil {
		return err
	}
	if err := os.MkdirAll(c.path(name), 0o750); err != nil {
		return err
	}
	log, err := os.OpenFile(c.path(name+"/boot.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	script := filepath.Join(c.Root, "hack", "nodes", "node.sh")
	init := exec.CommandContext(context.WithoutCancel(ctx), script, c.Dir, number, strconv.Itoa(count), "/"+c.id+"/"+name)
	// Our environment is left out: a node must not reach the internet through a proxy.
	init.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	init.Stdout, init.Stderr = log, log
	init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true,
	}
	if err := init.Start(); err != nil {
		return err
	}
	c.up[name] = init
	c.boots++
	if number == "1" {
		return nil
	}
	return c.connect(ctx, init.Process.Pid, fmt.Sprintf("to-%s-%d", number, c.boots))
}

// connect connects a node to the bridge of the first one.
func (c *Cluster) connect(ctx context.Context, node int, cable string) error {
	first := c.up["node-1"]
	if first == nil {
		return errors.New("node-1 is not up")
	}
	pid := strconv.Itoa(first.Process.Pid)
	wiring := fmt.Sprintf(`until nsenter -t %[1]s -n ip link show uplink; do sleep 0.1; done >/dev/null 2>&1
		ip link add %[2]s netns %[1]s type veth peer name eth0 netns %[3]d
		nsenter -t %[1]s -n ip link set %[2]s master uplink up`, pid, cable, node)
	if out, err := exec.CommandContext(ctx, "bash", "-ec", wiring).CombinedOutput(); err != nil {
		return fmt.Errorf("connect it: %w: %s", err, out)
	}
	return nil
}

// ready returns nil when each node has reported Ready since it was booted.
func (c *Cluster) ready(ctx context.Context, names []string, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	found := 0
	for _, node := range list.Items {
		if !slices.Contains(names, node.Name) {
			continue
		}
		found++
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady &&
				(condition.Status != corev1.ConditionTrue || condition.LastHeartbeatTime.Time.Before(since)) {
				return fmt.Errorf("%s is not ready: %s", node.Name, condition.Message)
			}
		}
	}
	if found < len(names) {
		return fmt.Errorf("%d nodes have registered", found)
	}
	// Pods need this account, which a controller creates.
	_, err = c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// Kill ends nodes as a loss of power does: all of their processes at once. The
// control plane ends with the first one.
func (c *Cluster) Kill(names ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, name := range names {
		init := c.up[name]
		if init == nil {
			errs = append(errs, fmt.Errorf("%s is not up", name))
			continue
		}
		delete(c.up, name)
		errs = append(errs, init.Process.Kill())
		_ = init.Wait() // it was killed
		errs = append(errs, removeCgroups(c.id+"/"+name))
	}
	return errors.Join(errs...)
}

// Stop ends all nodes. State and logs stay in Dir until the next start.
func (c *Cluster) Stop() error {
	c.mu.Lock()
	up := make([]string, 0, len(c.up))
	for name := range c.up {
		up = append(up, name)
	}
	c.mu.Unlock()
	err := c.Kill(up...)
	if c.id != "" {
		err = errors.Join(err, removeCgroups(c.id))
	}
	return errors.Join(err, c.lock.Close())
}

// RESTConfig returns an administrator's configuration. Its connections go into the
// network of the first node.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// AuditLog returns the path of the API server's audit log.
func (c *Cluster) AuditLog() string { return c.path("node-1/log/audit.log") }

// Logs returns the log files of the pods in a namespace.
func (c *Cluster) Logs(namespace string) []string {
	var files []string
	for _, name := range Nodes() {
		found, _ := filepath.Glob(c.path(name + "/log/pods/" + namespace + "_*/*/*.log")) // the pattern is well formed
		files = append(files, found...)
	}
	return files
}

// Kubectl returns a kubectl command of an administrator in the network of the first node.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	kubectl := []string{filepath.Join(c.Root, "bin", "k8s", "kubectl"), "--kubeconfig=" + c.path("admin.kubeconfig")}
	return c.inNetwork(ctx, append(kubectl, args...)...)
}

// inNetwork returns a command of the host in the network of the first node.
func (c *Cluster) inNetwork(ctx context.Context, command ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(c.pid("node-1")), "--net", "--"}, command...)...)
}

// On returns a command on a node, in all of its namespaces.
func (c *Cluster) On(ctx context.Context, node string, command ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(c.pid(node)), "--all", "--"}, command...)...)
}

// pid returns the process id of the first process of a node; if the node is down, the
// id of no process.
func (c *Cluster) pid(node string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if init := c.up[node]; init != nil {
		return init.Process.Pid
	}
	return 1 << 30
}

// InNetwork calls do on a thread in the network of the first node: its new sockets
// stay in that network.
func (c *Cluster) InNetwork(do func() error) error {
	runtime.LockOSThread()
	back, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer back.Close()
	there, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", c.pid("node-1")))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	err = do()
	if e := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); e != nil {
		// This thread must not continue in another network, and must not end: nodes end
		// with the thread that started them.
		panic(fmt.Sprintf("leave the network of the first node: %v", e))
	}
	runtime.UnlockOSThread()
	return err
}

// Dial connects to an address in the cluster.
func (c *Cluster) Dial(ctx context.Context, network, address string) (connection net.Conn, err error) {
	err = c.InNetwork(func() error {
		connection, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return connection, err
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, filepath.FromSlash(name)) }
