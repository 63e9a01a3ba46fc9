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

// Package plugin runs the commands of the kubectl plugin on a real control plane with the operator, as users type and read them.
//
// One control plane and one operator serve all tests. Each test has a namespace of its own. The operator verifies a pod a second after
// it is Ready.
package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/plugin"
)

// patience bounds the wait for any one condition. On a quiet machine it takes seconds.
const patience = 2 * time.Minute

// stage is shared by all tests.
var stage struct {
	root    string
	cluster *controlplane.ControlPlane
	manager *controlplane.Manager
	api     client.Client
}

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runAll runs the tests, with a control plane unless no test needs it.
func runAll(m *testing.M) (code int, err error) {
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-test.short") || strings.HasPrefix(arg, "-test.list") {
			return m.Run(), nil
		}
	}
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	if stage.root, err = controlplane.Root("."); err != nil {
		return 1, err
	}
	build := exec.CommandContext(ctx, "make", "-s", "-C", stage.root, "build")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("make build: %w\n%s", err, out)
	}
	binDir, err := controlplane.Build(ctx, stage.root, os.Stderr)
	if err != nil {
		return 1, err
	}
	if stage.cluster, err = controlplane.Start(ctx, controlplane.Options{BinDir: binDir, Out: os.Stderr}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, stage.cluster.Stop()) }()
	if stage.manager, err = stage.cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: stage.root}); err != nil {
		return 1, err
	}
	if err := stage.manager.Start(ctx); err != nil {
		return 1, err
	}
	if stage.api, err = client.New(stage.cluster.RESTConfig(), client.Options{Scheme: plugin.Scheme()}); err != nil {
		return 1, err
	}
	// The commands find the cluster, and print Unicode.
	for name, value := range map[string]string{"KUBECONFIG": stage.cluster.Kubeconfig(), "LC_ALL": "C.UTF-8"} {
		if err := os.Setenv(name, value); err != nil {
			return 1, err
		}
	}
	if err := quicken(ctx); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// quicken lets pods settle for a second only, once the operator has its settings.
func quicken(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		_, err := kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", "oci", "timeouts", "--type=merge",
			"-p", `{"spec":{"content":"settle=1s"}}`)
		return err == nil, nil // the setting may not exist yet
	})
}

func kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := stage.cluster.KubectlCmd(ctx, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// place is the namespace of a test, and the user who types there.
type place struct {
	*testing.T
	namespace string
	// requests counts the requests of the commands.
	requests atomic.Int64
}

// begin gives a test a namespace of its own, enrolled or not, and runs it in parallel to others.
func begin(t *testing.T, enrolled bool) *place {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	t.Parallel()
	p := &place{T: t, namespace: "test-" + rand.String(5)}
	p.kubectl("create", "namespace", p.namespace)
	if enrolled {
		p.enroll()
	}
	return p
}

func (p *place) enroll() {
	p.Helper()
	p.kubectl("label", "namespace", p.namespace, v1alpha1.EnrolledLabel+"="+v1alpha1.EnrolledValue)
}

// kubectl runs kubectl in the namespace of the test.
func (p *place) kubectl(args ...string) string {
	p.Helper()
	out, err := kubectl(p.Context(), append([]string{"-n", p.namespace}, args...)...)
	if err != nil {
		p.Fatal(err)
	}
	return out
}

// run runs a command of the plugin in the namespace of the test.
func (p *place) run(args ...string) (out, errOut string, code int) {
	p.Helper()
	return p.runWith(p.Context(), nil, append(args, "-n", p.namespace)...)
}

// runWith runs a command of the plugin with a connection that wrap changes.
func (p *place) runWith(ctx context.Context, wrap func(*rest.Config), args ...string) (out, errOut string, code int) {
	p.Helper()
	var stdout, stderr safeBuffer
	code = p.runTo(ctx, wrap, &stdout, &stderr, args...)
	return stdout.String(), stderr.String(), code
}

func (p *place) runTo(ctx context.Context, wrap func(*rest.Config), stdout, stderr *safeBuffer, args ...string) int {
	return plugin.Run(ctx, plugin.Options{
		IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: stdout, ErrOut: stderr},
		Version:   "v0.0.0-test", Commit: "unknown",
		Wrap: func(c *rest.Config) {
			c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return counted{rt, &p.requests} })
			if wrap != nil {
				wrap(c)
			}
		},
	}, args)
}

// counted counts requests.
type counted struct {
	http.RoundTripper
	n *atomic.Int64
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.RoundTripper.RoundTrip(r)
}

// safeBuffer is written by a running command, and read by a test.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// output runs a command that succeeds, and returns its output.
func (p *place) output(args ...string) string {
	p.Helper()
	out, errOut, code := p.run(args...)
	if code != 0 || errOut != "" {
		p.Fatalf("kubectl altershield %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errOut)
	}
	return out
}

// says waits until a command prints all texts.
func (p *place) says(args []string, texts ...string) string {
	p.Helper()
	var out, errOut string
	p.until("kubectl altershield "+strings.Join(args, " ")+" says "+strings.Join(texts, ", "), func() error {
		var code int
		out, errOut, code = p.run(args...)
		if code != 0 {
			return fmt.Errorf("exit code %d\n%s%s", code, out, errOut)
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("it does not say %q, but\n%s", text, out)
			}
		}
		return nil
	})
	return out
}

// until waits until is returns no error.
func (p *place) until(what string, is func() error) {
	p.Helper()
	var last error
	err := wait.PollUntilContextTimeout(p.Context(), 200*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = is()
		return last == nil, nil
	})
	if err != nil {
		p.Fatalf("%s: %v", what, last)
	}
}

// deploy creates a Deployment of some pods, one container named main.
func (p *place) deploy(name string, replicas int, image string) {
	p.Helper()
	manifest := fmt.Sprintf(deployment, name, replicas, image)
	path := filepath.Join(p.TempDir(), name+".yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		p.Fatal(err)
	}
	p.kubectl("apply", "-f", path)
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: "%[3]s"}]
`

// release changes the image of a Deployment.
func (p *place) release(name, image string) {
	p.Helper()
	p.kubectl("set", "image", "deployment/"+name, "main="+image)
}

// current returns the record of the current release of a Deployment; nil for none.
func (p *place) current(name string) *v1alpha1.ChangeWorkload {
	p.Helper()
	var d appsv1.Deployment
	if err := stage.api.Get(p.Context(), types.NamespacedName{Namespace: p.namespace, Name: name}, &d); err != nil {
		p.Fatal(err)
	}
	var list v1alpha1.ChangeWorkloadList
	named := client.MatchingLabels{v1alpha1.WorkloadNameLabel: name}
	if err := stage.api.List(p.Context(), &list, client.InNamespace(p.namespace), named); err != nil {
		p.Fatal(err)
	}
	for i := range list.Items {
		if c := &list.Items[i]; c.Spec.Reversion == d.Labels[v1alpha1.VersionLabel] {
			return c
		}
	}
	return nil
}

// reaches waits until the current release of a Deployment has a state.
func (p *place) reaches(name string, state v1alpha1.ChangeWorkloadStatusType) (c *v1alpha1.ChangeWorkload) {
	p.Helper()
	p.until(fmt.Sprintf("the release of %s is %s", name, state), func() error {
		if c = p.current(name); c == nil {
			return errors.New("it has no record")
		}
		if c.Status.Status != state || c.Status.ObservedRelease != c.Spec.Release {
			return fmt.Errorf("it is %q: %v", c.Status.Status, c.Status.Conditions)
		}
		return nil
	})
	return c
}

// fail fails the first pod of the first batch that is done, and returns the pod.
func (p *place) fail(name, message string) (pod string) {
	p.Helper()
	c := p.current(name)
	p.until("a batch of "+name+" is done", func() error {
		var list v1alpha1.ChangePodList
		if err := stage.api.List(p.Context(), &list, client.InNamespace(p.namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			b := &list.Items[i]
			if b.Spec.ChangeWorkloadID != c.Name || b.Status.Status != v1alpha1.ChangePodExecuteDone {
				continue
			}
			b.Status.PodResults = []v1alpha1.PodResult{{PodInfo: b.Spec.PodInfos[0], Verdict: "fail", Message: message}}
			pod = b.Spec.PodInfos[0].Pod
			return stage.api.Status().Update(p.Context(), b)
		}
		return errors.New("none is")
	})
	return pod
}

// blocked deploys a Deployment whose second release fails, and waits for the block. A rollback to the first release is possible.
func (p *place) blocked(name string) (pod string) {
	p.Helper()
	p.deploy(name, 3, "busybox:1")
	p.reaches(name, v1alpha1.ChangeWorkloadSuccess)
	p.release(name, "busybox:2")
	p.reaches(name, v1alpha1.ChangeWorkloadSuccess)
	pod = p.fail(name, "find error")
	p.reaches(name, v1alpha1.ChangeWorkloadSuspend)
	return pod
}
