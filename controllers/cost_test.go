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

package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	source "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// cached is the manager's cache, with its indexes and transforms, of objects that are on no API server.
type cached struct {
	cache.Cache
	scheme  *apiruntime.Scheme
	sources map[schema.GroupVersionKind]*source.FakeControllerSource
	// writes is the number of status writes, writing the CPU time that they took.
	writes  int
	writing time.Duration
}

// managing is a manager with that cache.
type managing struct {
	ctrl.Manager
	*cached
}

func (m managing) GetFieldIndexer() client.FieldIndexer { return m.Cache }
func (m managing) GetCache() cache.Cache                { return m.Cache }
func (m managing) GetScheme() *apiruntime.Scheme        { return m.scheme }
func (m managing) Start(ctx context.Context) error      { return m.Cache.Start(ctx) }

// newCached returns a filled cache of the objects.
func newCached(tb testing.TB, objects ...client.Object) *cached {
	tb.Helper()
	logf.SetLogger(logr.Discard())
	c := &cached{scheme: NewScheme(), sources: map[schema.GroupVersionKind]*source.FakeControllerSource{}}
	mapper := meta.NewDefaultRESTMapper(nil)
	for gvk := range c.scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		if gvk.Kind == "Namespace" {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(gvk, scope)
	}
	mapper.Add(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), meta.RESTScopeRoot)
	kinds := workload.Defended()
	options := CacheOptions(kinds, operatorNamespace)
	options.Scheme, options.Mapper, options.HTTPClient = c.scheme, mapper, &http.Client{}
	options.NewInformer = func(_ toolscache.ListerWatcher, o apiruntime.Object, every time.Duration,
		by toolscache.Indexers) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(c.source(o), o, every, by)
	}
	var err error
	if c.Cache, err = cache.New(&rest.Config{}, options); err != nil {
		tb.Fatal(err)
	}
	for _, o := range objects {
		c.source(o).Add(o)
	}
	if err := fillCaches(tb.Context(), managing{cached: c}, kinds); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		utilruntime.Must(c.Start(ctx))
	}()
	tb.Cleanup(func() { cancel(); <-stopped })
	if !c.WaitForCacheSync(ctx) {
		tb.Fatal("the cache does not sync")
	}
	return c
}

// source returns the source of the objects of a kind.
func (c *cached) source(o apiruntime.Object) *source.FakeControllerSource {
	gvk, err := apiutil.GVKForObject(o, c.scheme)
	utilruntime.Must(err)
	if c.sources[gvk] == nil {
		c.sources[gvk] = source.NewFakeControllerSource()
	}
	return c.sources[gvk]
}

// change changes objects and waits until the cache has the last one.
func (c *cached) change(tb testing.TB, objects ...client.Object) {
	tb.Helper()
	for _, o := range objects {
		c.source(o).Modify(o)
	}
	last := objects[len(objects)-1]
	err := wait.PollUntilContextTimeout(tb.Context(), time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		now, ok := last.DeepCopyObject().(client.Object)
		err := c.Get(ctx, client.ObjectKeyFromObject(last), now)
		return ok && now.GetResourceVersion() == last.GetResourceVersion(), client.IgnoreNotFound(err)
	})
	if err != nil {
		tb.Fatalf("the cache does not show %s: %v", last.GetName(), err)
	}
}

// cluster returns a cluster that reads from the cache and writes to its sources.
func (c *cached) cluster(tb testing.TB, now time.Time) (*cluster.Cluster, *clocktesting.FakeClock) {
	clock := clocktesting.NewFakeClock(now)
	view := cluster.View{Cached: c.Cache, Live: c.Cache, Kinds: workload.Defended(), Operator: operatorNamespace}
	return &cluster.Cluster{
		View: view, Client: &cachedClient{Cache: c.Cache, of: c, tb: tb}, Clock: clock, Recorder: &events.FakeRecorder{},
	}, clock
}

type cachedClient struct {
	client.Client
	cache.Cache
	of *cached
	tb testing.TB
}

func (c *cachedClient) Get(ctx context.Context, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.Cache.Get(ctx, k, o, opts...)
}

func (c *cachedClient) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	return c.Cache.List(ctx, l, opts...)
}

func (c *cachedClient) Status() client.SubResourceWriter { return &cachedStatus{of: c} }

type cachedStatus struct {
	client.SubResourceWriter
	of *cachedClient
}

func (s *cachedStatus) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	began := used()
	s.of.of.change(s.of.tb, o)
	s.of.of.writes, s.of.of.writing = s.of.of.writes+1, s.of.of.writing+used()-began
	return nil
}

const operatorNamespace = "operator"

// release is a release of a Deployment that has just succeeded. The default policy still watches its batches.
type release struct {
	began   time.Time
	pods    []*corev1.Pod
	objects []client.Object
}

// uidOf returns a UID that looks like one from an API server.
func uidOf(name string) types.UID {
	sum := sha256.Sum256([]byte(name))
	return types.UID(hex.EncodeToString(sum[:16]))
}

func released(name string, count, each int) *release {
	r := &release{began: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	web := wrappers.MakeDeployment("ns", name).Replicas(int32(count)).UID(types.UID(name)).Created(r.began).Obj()
	raw := func(o client.Object) map[string]any {
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(o)
		utilruntime.Must(err)
		return content
	}
	template, ok, err := unstructured.NestedMap(raw(web), "spec", "template")
	if !ok || err != nil {
		panic(err)
	}
	version := workload.Version(template)
	web.Labels[v1alpha1.VersionLabel] = version
	rs := wrappers.MakeReplicaSet("ns", name+"-1").UID(types.UID(name + "-rs")).Of(web).Replicas(int32(count)).Created(r.began).Obj()
	for kind, o := range map[string]client.Object{"Deployment": web, "ReplicaSet": rs} {
		u := &unstructured.Unstructured{Object: raw(o)}
		u.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kind))
		r.objects = append(r.objects, u)
	}
	change := wrappers.MakeChangeWorkload("ns", name+"--x--1").UID(types.UID(name + "-release")).Of(web).Version(version).Attempt(1).
		State(v1alpha1.ChangeWorkloadSuccess).Obj()
	r.objects = append(r.objects, change)
	for i := range count {
		n := fmt.Sprintf("%s-1-%05d", name, i)
		pod := wrappers.MakePod("ns", n).UID(uidOf(n)).Of(rs).Created(r.began).Ready(r.began).Obj()
		r.pods, r.objects = append(r.pods, pod), append(r.objects, pod)
		if i%each != 0 {
			continue
		}
		w := wrappers.MakeChangePod("ns", fmt.Sprintf("%s--x--1-%d", name, i)).UID(types.UID(n + "-batch")).Of(change).Done()
		for j := i; j < min(i+each, count); j++ {
			pod := fmt.Sprintf("%s-1-%05d", name, j)
			w.Pods(pod)
			w.Obj().Spec.PodInfos[j-i].UID = string(uidOf(pod))
		}
		at := func(after time.Duration) *metav1.Time { t := metav1.NewTime(r.began.Add(after)); return &t }
		batch := w.Obj()
		batch.Status.Checks = []v1alpha1.CheckStatus{{
			Name: operatorNamespace + "/default/stays-up",
			Type: v1alpha1.CheckTypePodHealth, Mode: v1alpha1.ModeEnforce, Generation: 1, Background: true,
			Phase: v1alpha1.CheckWatching, StartTime: at(0), DueTime: at(5 * time.Minute), Deadline: at(15 * time.Minute),
		}}
		r.objects = append(r.objects, batch)
	}
	return r
}

// around returns the objects beside releases: the namespace, the default policy and the given policies.
func around(began time.Time, policies ...client.Object) []client.Object {
	ns := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}},
	}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	byDefault := policy.Default(operatorNamespace)
	byDefault.UID, byDefault.Generation, byDefault.CreationTimestamp = "default", 1, metav1.NewTime(began.Add(-time.Hour))
	return append([]client.Object{ns, byDefault}, policies...)
}

// crashes returns the pods in CrashLoopBackOff. Their containers ended at now.
func crashes(pods []*corev1.Pod, now time.Time) (crashed []client.Object) {
	for _, pod := range pods {
		pod = pod.DeepCopy()
		pod.Status.Conditions[0].Status, pod.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(now)
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", RestartCount: 2, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, Reason: "Error", StartedAt: metav1.NewTime(now.Add(-time.Second)), FinishedAt: metav1.NewTime(now),
			}},
		}}
		crashed = append(crashed, pod)
	}
	return crashed
}

// settle reconciles the requests, and the requests that they lead to within a moment, until none is left. It returns the number of
// reconciles.
func settle(tb testing.TB, r *ChangePodReconciler, clock *clocktesting.FakeClock, requests []ctrl.Request) (looks int) {
	tb.Helper()
	for len(requests) > 0 {
		var later []ctrl.Request
		for _, request := range requests {
			result, err := r.Reconcile(tb.Context(), request)
			if err != nil {
				tb.Fatal(err)
			}
			looks++
			if result.RequeueAfter > 0 && result.RequeueAfter <= 10*time.Second {
				later = append(later, request)
			}
		}
		requests = later
		clock.Step(time.Second)
	}
	return looks
}

func newHealthReconciler(c *cluster.Cluster) *ChangePodReconciler {
	return newChangePodReconciler(c, 1, checks.New(c, nil, nil))
}

// used returns the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	utilruntime.Must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkFailingAtOnce measures the time to find and to reconcile the batches of a release whose pods all crash at once.
func BenchmarkFailingAtOnce(b *testing.B) {
	for _, mode := range []struct{ pods, each int }{{500, 10}, {5000, 10}, {5000, 1}} {
		b.Run(fmt.Sprintf("%d pods in batches of %d", mode.pods, mode.each), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				of := released("web", mode.pods, mode.each)
				world := newCached(b, append(of.objects, around(of.began)...)...)
				c, clock := world.cluster(b, of.began.Add(time.Minute))
				r := newHealthReconciler(c)
				world.change(b, crashes(of.pods, clock.Now())...)
				b.StartTimer()
				began := used()
				var requests []ctrl.Request
				seen := map[ctrl.Request]bool{}
				for _, pod := range of.pods {
					for _, request := range r.batchesOfPod(b.Context(), pod) {
						if !seen[request] {
							seen[request] = true
							requests = append(requests, request)
						}
					}
				}
				mapped := used() - began
				looks := settle(b, r, clock, requests)
				b.ReportMetric(float64(mapped.Microseconds())/float64(mode.pods), "cpu-us/event")
				b.ReportMetric(float64((used()-began-mapped-world.writing).Microseconds())/float64(looks), "cpu-us/look")
				b.ReportMetric(float64(looks)/float64(len(requests)), "looks/batch")
				b.ReportMetric(float64(world.writes)/float64(len(requests)), "writes/batch")
			}
		})
	}
}

// BenchmarkPodEventAtRest measures an event of a pod while nothing is released: the checks of 500 workloads are over.
func BenchmarkPodEventAtRest(b *testing.B) {
	var objects []client.Object
	var pods []*corev1.Pod
	var began time.Time
	for i := range 500 {
		of := released(fmt.Sprintf("web%03d", i), 10, 1)
		objects, pods, began = append(objects, of.objects...), append(pods, of.pods...), of.began
	}
	world := newCached(b, append(objects, around(began)...)...)
	c, _ := world.cluster(b, began.Add(time.Hour))
	r := newHealthReconciler(c)
	for i := 0; b.Loop(); i++ {
		if requests := r.batchesOfPod(b.Context(), pods[i%len(pods)]); len(requests) > 0 {
			b.Fatalf("it wakes %v", requests)
		}
	}
}

// heap returns the size of the heap in bytes.
func heap() float64 {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkCachedPods measures the heap of each pod in the cache, with the index that finds its batch.
func BenchmarkCachedPods(b *testing.B) {
	for name, crash := range map[string]bool{"well": false, "crashing": true} {
		b.Run(name, func(b *testing.B) {
			const pods = 5000
			for b.Loop() {
				of := released("web", pods, 1)
				if crash {
					for i, crashed := range crashes(of.pods, of.began) {
						of.pods[i].Status = crashed.(*corev1.Pod).Status //nolint:errcheck // always a pod
					}
				}
				before := heap()
				world := newCached(b, append(of.objects, around(of.began)...)...)
				for _, s := range world.sources {
					s.Items = nil
				}
				b.ReportMetric((heap()-before)/pods, "B/pod")
				runtime.KeepAlive(of)
			}
		})
	}
}

// thousand returns 1000 policies of the workloads' namespace, with one check each, created one after the other.
func thousand(began time.Time, selector *metav1.LabelSelector) (policies []client.Object) {
	for i := range 1000 {
		p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("p%04d", i), UID: types.UID(fmt.Sprint("p", i)), Generation: 1,
			CreationTimestamp: metav1.NewTime(began.Add(time.Duration(i-2000) * time.Second)),
		}}
		p.Spec.WorkloadSelector = selector
		p.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "health", PodHealth: &v1alpha1.PodHealthCheck{}}}
		policies = append(policies, p)
	}
	return policies
}

// BenchmarkCachedPolicies measures the heap of each policy in the cache, after its reconcile.
func BenchmarkCachedPolicies(b *testing.B) {
	of := released("web", 1, 1)
	objects := slices.Concat(of.objects, around(of.began, thousand(of.began, another)...))
	for b.Loop() {
		before := heap()
		world := newCached(b, objects...)
		c, _ := world.cluster(b, of.began)
		if _, err := (&DefensePolicyReconciler{Cluster: c}).
			Reconcile(b.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "ns"}}); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric((heap()-before)/1000, "B/policy")
		runtime.KeepAlive(world)
	}
}

// another selects none of the workloads, at the cost of expressions.
var another = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
	{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"one", "two", "three"}},
	{Key: "team", Operator: metav1.LabelSelectorOpIn, Values: []string{"one", "two", "three"}},
}}

// BenchmarkThousandPolicies measures the reconcile of 1000 policies in a namespace with 100 workloads, and the search for the
// policies of a batch that is not done.
func BenchmarkThousandPolicies(b *testing.B) {
	for name, selector := range map[string]*metav1.LabelSelector{
		"of all": nil, "of some": {MatchLabels: map[string]string{"app": "another"}}, "of expressions": another,
	} {
		of := released("web", 1, 1)
		objects := of.objects
		for i := range 99 {
			objects = append(objects, released(fmt.Sprintf("web%02d", i), 1, 1).objects...)
		}
		world := newCached(b, append(objects, around(of.began, thousand(of.began, selector)...)...)...)
		c, _ := world.cluster(b, of.began.Add(time.Minute))
		judges := &DefensePolicyReconciler{Cluster: c}
		request := ctrl.Request{NamespacedName: types.NamespacedName{Name: "ns"}}
		if _, err := judges.Reconcile(b.Context(), request); err != nil {
			b.Fatal(err)
		}
		b.Run("judged, "+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := judges.Reconcile(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("batch, "+name, func(b *testing.B) {
			batch := v1alpha1.ChangePod{}
			if err := world.Get(b.Context(), types.NamespacedName{Namespace: "ns", Name: "web--x--1-0"}, &batch); err != nil {
				b.Fatal(err)
			}
			batch.Status.Status = v1alpha1.ChangePodPreSubmitted
			r := newHealthReconciler(c)
			for b.Loop() {
				if _, err := r.load(b.Context(), &batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
