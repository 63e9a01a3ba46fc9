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

// Package check runs kubectl altershield check on a real control plane. The operator is installed as in production: by
// quick-start.yaml, with webhooks that are called through their service, under certificates of the manager. Only the kubelets are
// simulated: the manager runs beside the cluster, and its pods have the address of this machine.
package check

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/plugin"
	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
)

const (
	namespace  = controlplane.ManagerNamespace
	deployment = "altershieldoperator-controller-manager"
	// released is the version of the image in quick-start.yaml.
	released = "v0.1.0"
	// patience is how long to wait for a state.
	patience = 3 * time.Minute
)

type world struct {
	*controlplane.ControlPlane
	t    *testing.T
	root string
	api  client.Client

	kubeconfig, health string
	port               int
	manager            *exec.Cmd
	log                *os.File
}

func start(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	ctrl.SetLogger(zap.New(zap.WriteTo(t.Output())))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	root, err := controlplane.Root(".")
	must(t, err)
	binDir, err := controlplane.Build(ctx, root, t.Output())
	must(t, err)
	if out, err := exec.CommandContext(ctx, "make", "-s", "-C", root, "build").CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	c, err := controlplane.Start(ctx, controlplane.Options{
		BinDir: binDir, Out: t.Output(),
		// No proxy leads from the address of a service to its pods.
		APIServerFlags: []string{"--enable-aggregator-routing=true"},
	})
	must(t, err)
	w := &world{ControlPlane: c, t: t, root: root}
	t.Cleanup(func() {
		w.kill()
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	w.api, err = client.New(c.RESTConfig(), client.Options{Scheme: plugin.Scheme()})
	must(t, err)
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// install installs the operator, and gives its pods the address of the manager.
func (w *world) install() {
	w.t.Helper()
	address := ownAddress(w.t)
	w.port = freePort(w.t, address)
	w.health = fmt.Sprintf("127.0.0.1:%d", freePort(w.t, "127.0.0.1"))
	w.kubectl("apply", "-f", filepath.Join(w.root, "quick-start.yaml"))
	host, err := os.Hostname()
	must(w.t, err)
	w.kubectl("-n", namespace, "patch", "deployment", deployment, "-p", fmt.Sprintf(`{"spec":{"template":{
		"metadata":{"annotations":{%q:%q}},
		"spec":{"hostname":%q,"containers":[{"name":"manager","ports":[
		{"containerPort":9443,"$patch":"delete"},{"name":"webhooks","containerPort":%d,"protocol":"TCP"}]}]}}}}`,
		controlplane.PodIPAnnotation, address, host, w.port))
	w.kubectl("-n", namespace, "rollout", "status", "deployment/"+deployment, "--timeout=120s")
	w.kubeconfig = filepath.Join(w.Dir(), "manager-check.kubeconfig")
	must(w.t, w.KubeconfigFor(w.t.Context(), namespace, deployment, w.kubeconfig))
	w.log, err = os.Create(filepath.Join(w.t.TempDir(), "manager.log"))
	must(w.t, err)
}

// ownAddress returns an address of this machine that endpoints may have.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	must(t, err)
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	t.Skip("this machine has no IPv4 address but its loopback, which endpoints may not have")
	return ""
}

func freePort(t *testing.T, address string) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	must(t, err)
	defer l.Close()
	made, err := netip.ParseAddrPort(l.Addr().String())
	must(t, err)
	return int(made.Port())
}

// run starts the manager, and waits until it is ready.
func (w *world) run() {
	w.t.Helper()
	w.manager = exec.Command(filepath.Join(w.root, "bin", "manager"), "--kubeconfig="+w.kubeconfig, "--leader-elect=true",
		"--namespace="+namespace,
		"--health-probe-bind-address="+w.health, "--callback-bind-address=0", fmt.Sprintf("--webhook-port=%d", w.port))
	w.manager.Stdout, w.manager.Stderr = w.log, w.log
	must(w.t, w.manager.Start())
	w.eventually("the manager is ready", func() string {
		response, err := http.Get("http://" + w.health + "/readyz")
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return response.Status
		}
		return ""
	})
}

// kill ends the manager as a crash does: the lease stays.
func (w *world) kill() {
	if w.manager != nil && w.manager.ProcessState == nil {
		_ = w.manager.Process.Kill()
		_ = w.manager.Wait()
	}
}

func (w *world) kubectl(args ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), patience)
	defer cancel()
	out, err := w.KubectlCmd(ctx, args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eventually waits until wrong returns nothing.
func (w *world) eventually(what string, wrong func() string) {
	w.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		problem := wrong()
		if problem == "" {
			return
		}
		select {
		case <-deadline.C:
			log, _ := os.ReadFile(w.log.Name())
			w.t.Fatalf("not within %s: %s: %s\nthe manager's log ends with:\n%s", patience, what, problem, log[max(0, len(log)-3000):])
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// printed is the output of the command.
type printed struct {
	out, errs string
	code      int
	requests  int64
}

func (w *world) check(args ...string) printed {
	w.t.Helper()
	var out, errs bytes.Buffer
	var requests atomic.Int64
	o := plugin.Options{
		IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errs}, Version: released,
		Wrap: func(config *rest.Config) {
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTrip(func(r *http.Request) (*http.Response, error) { requests.Add(1); return next.RoundTrip(r) })
			})
		},
	}
	code := plugin.Run(w.t.Context(), o, append([]string{"check", "--kubeconfig=" + w.Kubeconfig()}, args...))
	return printed{out.String(), errs.String(), code, requests.Load()}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (t roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// report returns the command's output for a program.
func (w *world) report(args ...string) (installation.Report, int) {
	w.t.Helper()
	got := w.check(append(args, "-o", "json")...)
	var r installation.Report
	if err := json.Unmarshal([]byte(got.out), &r); err != nil {
		w.t.Fatalf("%v: %s%s", err, got.out, got.errs)
	}
	return r, got.code
}

func find(r *installation.Report, id string) installation.Check {
	for _, g := range r.Groups {
		for _, c := range g.Checks {
			if c.ID == id {
				return c
			}
		}
	}
	return installation.Check{}
}
