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

// Package bench measures the operator on a real control plane, or in process (make bench). It reports figures, and judges none.
package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	deployments = 50
	podsEach    = 10
	patience    = 10 * time.Minute
)

// bed is a control plane with a manager, for benchmarks.
type bed struct {
	cluster *controlplane.ControlPlane
	manager *controlplane.Manager
	api     client.WithWatch
	// server is nil in stand-alone mode.
	server *simulator.Simulator
}

// newBed starts a control plane and the manager; withServer connects the manager to a simulator of AlterShield Server that
// answers at once.
func newBed(b *testing.B, withServer bool, args ...string) *bed {
	b.Helper()
	ctrl.SetLogger(logr.Discard())
	ctx := b.Context()
	root, err := controlplane.Root(".")
	must(b, err)
	out, err := exec.CommandContext(ctx, "make", "-s", "-C", root, "build").CombinedOutput()
	if err != nil {
		b.Fatalf("make build: %v\n%s", err, out)
	}
	binDir, err := controlplane.Build(ctx, root, os.Stderr)
	must(b, err)
	cluster, err := controlplane.Start(ctx, controlplane.Options{BinDir: binDir, Audit: true})
	must(b, err)
	b.Cleanup(func() { must(b, cluster.Stop()) })
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	t := &bed{cluster: cluster}
	t.api, err = client.NewWithWatch(cluster.RESTConfig(), client.Options{Scheme: scheme})
	must(b, err)
	if withServer {
		const token = "a-token-of-the-benchmarks"
		file := filepath.Join(b.TempDir(), "token")
		must(b, os.WriteFile(file, []byte(token), 0o600))
		t.server = simulator.New(simulator.Options{Token: token})
		must(b, t.server.Start("127.0.0.1:0"))
		b.Cleanup(t.server.Shutdown)
		args = append(args, "--altershield-url="+t.server.URL(), "--altershield-token-file="+file)
	}
	t.manager, err = cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root, Args: args})
	must(b, err)
	must(b, t.manager.Start(ctx))
	// A Deployment that is older than the installation is a baseline.
	must(b, wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var blocking v1alpha1.OpsConfigInfo
		err := t.api.Get(ctx, client.ObjectKey{Namespace: controlplane.ManagerNamespace, Name: settings.NameBlocking}, &blocking)
		return meta.IsStatusConditionTrue(blocking.Status.Conditions, v1alpha1.ConditionInstalled), client.IgnoreNotFound(err)
	}))
	if withServer {
		t.server.SetCallbackURLs(t.manager.CallbackAddress() + altershield.CallbackPath)
	}
	return t
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// replica prepares a second manager.
func (t *bed) replica(b *testing.B, name string, args ...string) *controlplane.Manager {
	b.Helper()
	root, err := controlplane.Root(".")
	must(b, err)
	m, err := t.cluster.InstallManager(b.Context(), controlplane.ManagerOptions{Root: root, Name: name, Args: args})
	must(b, err)
	return m
}

// release creates Deployments and waits until they are all rolled out and, when
// defended, verified.
func (t *bed) release(ctx context.Context, b *testing.B, namespace string, defended bool, count int, pods int32) {
	b.Helper()
	for i := range count {
		t.create(b, namespace, i, pods)
	}
	if defended {
		t.awaitSuccess(b, namespace, count)
		return
	}
	must(b, wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return t.available(ctx, namespace, count, pods)
	}))
}

// awaitSuccess waits until so many releases of a namespace have succeeded.
func (t *bed) awaitSuccess(b *testing.B, namespace string, count int) {
	b.Helper()
	must(b, wait.PollUntilContextTimeout(b.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return t.succeeded(ctx, namespace, count)
	}))
}

func (t *bed) create(b *testing.B, namespace string, i int, replicas int32) {
	b.Helper()
	must(b, t.api.Create(b.Context(), wrappers.MakeDeployment(namespace, fmt.Sprintf("d%02d", i)).Replicas(replicas).Obj()))
}

// batches sets the size of batches; empty means one by one.
func (t *bed) batches(b *testing.B, size string) {
	b.Helper()
	if size != "" {
		t.set(b, settings.NameBranch, v1alpha1.TypeBranch, size)
	}
}

// set creates or changes a setting of the cluster.
func (t *bed) set(b *testing.B, name string, of v1alpha1.OpsConfigType, content string) {
	b.Helper()
	o := &v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.ManagerNamespace, Name: name}}
	// The operator creates settings, and writes conditions.
	raced := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	must(b, retry.OnError(retry.DefaultBackoff, raced, func() error {
		_, err := controllerutil.CreateOrUpdate(b.Context(), t.api, o, func() error {
			o.Spec.Type, o.Spec.Enable, o.Spec.Content = of, true, content
			return nil
		})
		return err
	}))
}

func (t *bed) namespace(b *testing.B, enrolled bool) string {
	b.Helper()
	ns := wrappers.MakeNamespace("").GenerateName("bench-")
	if enrolled {
		ns.Enrolled()
	}
	must(b, t.api.Create(b.Context(), ns.Obj()))
	return ns.Obj().Name
}

func (t *bed) succeeded(ctx context.Context, namespace string, count int) (bool, error) {
	var list v1alpha1.ChangeWorkloadList
	err := t.api.List(ctx, &list, client.InNamespace(namespace))
	done := 0
	for i := range list.Items {
		if list.Items[i].Status.Status == v1alpha1.ChangeWorkloadSuccess {
			done++
		}
	}
	return done == count, err
}

func (t *bed) available(ctx context.Context, namespace string, count int, pods int32) (bool, error) {
	var list appsv1.DeploymentList
	err := t.api.List(ctx, &list, client.InNamespace(namespace))
	done := 0
	for i := range list.Items {
		if list.Items[i].Status.AvailableReplicas == pods {
			done++
		}
	}
	return done == count, err
}

// writes counts the manager's writes so far by verb and resource, without leases.
func (t *bed) writes(b *testing.B) map[string]int {
	b.Helper()
	return t.writesIn(b, "")
}

// writesIn counts the writes in a namespace; empty means all.
func (t *bed) writesIn(b *testing.B, namespace string) map[string]int {
	b.Helper()
	f, err := os.Open(t.cluster.AuditLog())
	must(b, err)
	defer f.Close()
	counts := map[string]int{}
	for s := newScanner(f); s.Scan(); {
		var e struct {
			Stage, Verb    string
			User           struct{ Username string }
			ObjectRef      struct{ Namespace, Resource, Subresource string }
			ResponseStatus struct{ Code int }
		}
		if json.Unmarshal(s.Bytes(), &e) != nil || e.Stage != "ResponseComplete" ||
			!strings.HasPrefix(e.User.Username, "system:serviceaccount:"+controlplane.ManagerNamespace+":") || e.ObjectRef.Resource == "leases" ||
			namespace != "" && e.ObjectRef.Namespace != namespace {
			continue
		}
		switch e.Verb {
		case "create", "update", "patch", "delete":
			what := strings.TrimSuffix(e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
			if e.ResponseStatus.Code >= 400 {
				what += " " + strconv.Itoa(e.ResponseStatus.Code)
			}
			counts[what]++
		}
	}
	return counts
}

// reportWrites reports the writes since before, and logs them by verb and resource.
func (t *bed) reportWrites(b *testing.B, before map[string]int, pods int) {
	b.Helper()
	total := 0
	for what, n := range t.writes(b) {
		if n -= before[what]; n > 0 {
			total += n
			b.Logf("%6.2f %s", float64(n)/float64(pods), what)
		}
	}
	b.ReportMetric(float64(total)/float64(pods), "writes/pod")
}

func newScanner(f *os.File) *bufio.Scanner {
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	return s
}

// process reads the resident memory and the CPU time of the manager.
func (t *bed) process(b *testing.B) (rssMB, cpuSeconds float64) {
	b.Helper()
	rssMB, cpuSeconds, err := processOf(t.manager.PID())
	must(b, err)
	return rssMB, cpuSeconds
}

// processOf reads the resident memory and the CPU time of a process.
func processOf(pid int) (rssMB, cpuSeconds float64, err error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, err
	}
	// The name in parentheses may contain anything. Counted from 1, utime and stime are the fields 14 and 15, rss is 24.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	number := func(field int) float64 {
		n, parseErr := strconv.ParseFloat(fields[field-3], 64)
		err = errors.Join(err, parseErr)
		return n
	}
	const ticksPerSecond = 100
	rss, cpu := number(24), number(14)+number(15)
	return rss * float64(os.Getpagesize()) / (1 << 20), cpu / ticksPerSecond, err
}

// BenchmarkRelease releases 50 Deployments of 10 pods at once: not defended, then defended on the same control plane, with and
// without a server. It reports the time, also as a multiple of the time without defense, writes and CPU. Pods are verified as soon
// as they are Ready (settle=0).
func BenchmarkRelease(b *testing.B) {
	for _, server := range []bool{false, true} {
		name := "stand-alone"
		if server {
			name = "with server"
		}
		b.Run(name, func(b *testing.B) {
			t := newBed(b, server)
			t.set(b, settings.NameTimeouts, v1alpha1.TypeTimeouts, "settle=0")
			var undefended float64
			b.Run("not defended", func(b *testing.B) {
				t.measureRelease(b, false) // the first release fills the caches of the control plane
				for b.Loop() {
					undefended = t.measureRelease(b, false)
				}
			})
			for _, size := range []string{"1", "10"} {
				b.Run("batches of "+size, func(b *testing.B) {
					t.set(b, settings.NameBranch, v1alpha1.TypeBranch, size)
					if undefended == 0 { // the pattern of -bench left it out
						undefended = t.measureRelease(b, false)
					}
					for b.Loop() {
						b.ReportMetric(t.measureRelease(b, true)/undefended, "x-undefended")
					}
				})
			}
		})
	}
}

// measureRelease reports the figures of a release in a new namespace, and returns its time in seconds.
func (t *bed) measureRelease(b *testing.B, defended bool) float64 {
	b.Helper()
	const pods = deployments * podsEach
	ns := t.namespace(b, defended)
	before := t.writes(b)
	_, cpuBefore := t.process(b)
	began := time.Now()
	t.release(b.Context(), b, ns, defended, deployments, podsEach)
	took := time.Since(began).Seconds()
	rss, cpu := t.process(b)
	b.ReportMetric(took, "s/release")
	t.reportWrites(b, before, pods)
	b.ReportMetric((cpu-cpuBefore)/pods*1000, "cpu-s/1000pods")
	b.ReportMetric(rss, "MB-rss")
	return took
}

// BenchmarkScale releases one Deployment of 5,000 pods, and 500 Deployments of 10. It also reports the size of the largest
// object of the operator.
func BenchmarkScale(b *testing.B) {
	for _, mode := range []struct {
		name  string
		count int
		pods  int32
		batch string
	}{
		{"5000 pods, batches of 50", 1, 5000, "50"},
		{"5000 pods, batches of 1", 1, 5000, ""},
		{"500 Deployments of 10 pods", 500, 10, ""},
	} {
		b.Run(mode.name, func(b *testing.B) {
			t := newBed(b, false)
			t.batches(b, mode.batch)
			for b.Loop() {
				ns := t.namespace(b, true)
				before := t.writes(b)
				_, cpuBefore := t.process(b)
				began := time.Now()
				t.release(b.Context(), b, ns, true, mode.count, mode.pods)
				b.ReportMetric(time.Since(began).Seconds(), "s/release")
				rss, cpu := t.process(b)
				pods := mode.count * int(mode.pods)
				t.reportWrites(b, before, pods)
				b.ReportMetric((cpu-cpuBefore)/float64(pods)*1000, "cpu-s/1000pods")
				b.ReportMetric(rss, "MB-rss")
				b.ReportMetric(float64(t.largest(b, ns))/1024, "KiB-largest")
			}
		})
	}
}

// largest returns the size of the largest object of the operator, in bytes.
func (t *bed) largest(b *testing.B, namespace string) (size int) {
	b.Helper()
	var changes v1alpha1.ChangeWorkloadList
	must(b, t.api.List(b.Context(), &changes, client.InNamespace(namespace)))
	for i := range changes.Items {
		data, err := json.Marshal(&changes.Items[i])
		must(b, err)
		size = max(size, len(data))
	}
	var batches v1alpha1.ChangePodList
	must(b, t.api.List(b.Context(), &batches, client.InNamespace(namespace)))
	for i := range batches.Items {
		data, err := json.Marshal(&batches.Items[i])
		must(b, err)
		size = max(size, len(data))
	}
	return size
}
