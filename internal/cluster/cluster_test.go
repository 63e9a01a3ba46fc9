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

package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	oldVersion = "11111111111111111111111111111111"
	newVersion = "22222222222222222222222222222222"
)

var testNow = time.Unix(1_700_000_000, 0)

// clusterOf is a cluster with these objects and an operator in the namespace operator.
func clusterOf(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *Cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs)
	for _, object := range []client.Object{&corev1.Pod{}, &appsv1.ReplicaSet{}, &v1alpha1.ChangeWorkload{}} {
		builder = builder.WithIndex(object, workload.IndexByOwner, workload.OwnerUID)
	}
	builder = builder.WithIndex(&appsv1.ControllerRevision{}, workload.IndexByOwner, workload.HistoryOf)
	c := builder.WithStatusSubresource(&v1alpha1.ChangeWorkload{}, &v1alpha1.DefensePolicy{}).Build()
	clock := clocktesting.NewFakePassiveClock(testNow)
	return &Cluster{
		View:   View{Cached: c, Live: c, Kinds: workload.NewRegistry(workload.Deployment{}), Operator: "operator"},
		Client: c, Recorder: events.NewFakeRecorder(10), Clock: clock, denials: newDenials(clock), refusals: newRefusals(clock),
	}
}

func viewOf(t *testing.T, objects ...client.Object) View {
	t.Helper()
	return clusterOf(t, interceptor.Funcs{}, objects...).View
}

// web is a Deployment at its second release.
func web() *wrappers.DeploymentWrapper {
	return wrappers.MakeDeployment("prod", "web").UID("web").Recorded(newVersion, 2)
}

func keyOf(d *appsv1.Deployment) workload.Key {
	return workload.Key{GroupKind: appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind(), NamespacedName: client.ObjectKeyFromObject(d)}
}

func webWorkload() *workload.Workload {
	d := web().Obj()
	return &workload.Workload{
		GVK: workload.Deployment{}.GroupVersionKind(), Namespace: d.Namespace, Name: d.Name, UID: d.UID,
		Labels: d.Labels, Annotations: d.Annotations,
	}
}

func TestRequests(t *testing.T) {
	change := func(namespace, name string) client.Object {
		return wrappers.MakeChangeWorkload(namespace, name).Of(web().Obj()).Obj()
	}
	v := viewOf(t, change("prod", "a"), change("prod", "b"), change("test", "a"))
	wanted := func(c *v1alpha1.ChangeWorkload) bool { return c.Name == "a" }
	names := func(opts ...client.ListOption) (names []string) {
		for _, r := range Requests(t.Context(), v, &v1alpha1.ChangeWorkloadList{}, wanted, opts...) {
			names = append(names, r.String())
		}
		return names
	}
	setting := func(namespace string) client.Object {
		return wrappers.MakeOpsConfigInfo(namespace, settings.NameBranch, v1alpha1.TypeBranch).Obj()
	}
	for name, test := range map[string]struct {
		got  []string
		want int
	}{
		"everywhere":                     {names(), 2},
		"in a namespace":                 {names(client.InNamespace("prod")), 1},
		"of a workload":                  {names(OwnedBy("test", "web")...), 1},
		"of another workload":            {names(OwnedBy("test", "other")...), 0},
		"the operator's setting":         {names(v.WhereInForce(setting("operator"))...), 2},
		"the setting of a namespace":     {names(v.WhereInForce(setting("test"))...), 1},
		"a setting of another namespace": {names(v.WhereInForce(setting("other"))...), 0},
	} {
		if len(test.got) != test.want {
			t.Errorf("%s: %v, want %d", name, test.got, test.want)
		}
	}
	if got := Requests(t.Context(), v, &v1alpha1.ChangeWorkloadList{}, func(*corev1.Pod) bool { return true }); got != nil {
		t.Errorf("other objects are taken for pods: %v", got)
	}
	w := viewOf(t, web().Obj(), wrappers.MakeDeployment("test", "web").Obj())
	if got := w.WorkloadsOf(t.Context(), wrappers.MakeNamespace("prod").Obj()); len(got) != 1 || got[0] != keyOf(web().Obj()) {
		t.Errorf("the workloads of a namespace: %v", got)
	}
}

func TestRequestRollback(t *testing.T) {
	enrolled := wrappers.MakeNamespace("prod").Enrolled().Obj()
	history := wrappers.MakeControllerRevision("prod", "web--1").Of(web().Obj()).Label(v1alpha1.VersionLabel, oldVersion).Revision(1).Obj()
	defended := []client.Object{enrolled, web().Obj(), history}
	answering := func(err error) interceptor.Funcs {
		return interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return err
		}}
	}
	for name, test := range map[string]struct {
		objects []client.Object
		funcs   interceptor.Funcs
		is      error
		refused string
	}{
		"taken":        {objects: defended},
		"no workload":  {objects: []client.Object{enrolled}, is: ErrNoWorkload},
		"not defended": {objects: []client.Object{wrappers.MakeNamespace("prod").Obj(), web().Obj(), history}, is: ErrNoWorkload},
		"opted out": {
			objects: []client.Object{enrolled, web().Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).Obj()},
			is:      ErrNoWorkload,
		},
		"not newer than one taken": {
			objects: []client.Object{enrolled, web().Annotation(v1alpha1.RollbackRequestedAnnotation, "1700000000000").Obj(), history},
			is:      ErrRepeated,
		},
		"no version to roll back to": {objects: []client.Object{enrolled, web().Obj()}, refused: "-"},
		"denied by a policy":         {objects: defended, funcs: answering(answer(t, "webhook 409")), refused: "-"},
		"the workload changed concurrently": {
			objects: defended, funcs: answering(answer(t, "failed test")), refused: "the workload changed concurrently; try again",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, test.funcs, test.objects...)
			to, err := c.RequestRollback(t.Context(), keyOf(web().Obj()), "", testNow)
			refused := (*RefusedError)(nil)
			switch {
			case test.is != nil:
				if !errors.Is(err, test.is) {
					t.Fatalf("%v, want %v", err, test.is)
				}
			case test.refused != "":
				if !errors.As(err, &refused) || test.refused != "-" && refused.Why != test.refused {
					t.Fatalf("%v, want refused: %s", err, test.refused)
				}
			case err != nil || to != oldVersion:
				t.Fatalf("to %q, %v", to, err)
			default:
				var d appsv1.Deployment
				err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(web().Obj()), &d)
				if err != nil || d.Annotations[v1alpha1.RollbackToAnnotation] != oldVersion {
					t.Errorf("annotations %v, %v", d.Annotations, err)
				}
				if _, err := c.RequestRollback(t.Context(), keyOf(web().Obj()), "", testNow); !errors.Is(err, ErrRepeated) {
					t.Errorf("the same again: %v, want %v", err, ErrRepeated)
				}
			}
		})
	}
}

// TestRequestRate: each namespace may have 60 requested rollbacks a minute over HTTP, and as many by
// annotation.
func TestRequestRate(t *testing.T) {
	at := testNow
	r := &requestRate{}
	for i := range 90 {
		want := time.Duration(0)
		if i >= 60 {
			want = time.Minute - time.Duration(i)*time.Second/2
		}
		if wait := r.take("prod", at); wait != want {
			t.Errorf("request %d waits for %s, want %s", i, wait, want)
		}
		at = at.Add(time.Second / 2)
	}
	if wait := r.take("shop", at); wait != 0 {
		t.Errorf("another namespace waits for %s", wait)
	}
	if wait := r.take("prod", testNow.Add(time.Minute)); wait != 0 {
		t.Errorf("waits for %s after a minute", wait)
	}
	if r.take("shop", at.Add(time.Hour)); len(r.taken) != 1 {
		t.Errorf("%d namespaces are remembered, want 1", len(r.taken))
	}

	c := clusterOf(t, interceptor.Funcs{}, wrappers.MakeNamespace("prod").Enrolled().Obj(), web().Obj(),
		wrappers.MakeControllerRevision("prod", "web--1").Of(web().Obj()).Label(v1alpha1.VersionLabel, oldVersion).Revision(1).Obj())
	for range 60 {
		c.requests.take("prod", testNow)
	}
	tooMany := (*TooManyError)(nil)
	if _, err := c.RequestRollback(t.Context(), keyOf(web().Obj()), "", testNow); !errors.As(err, &tooMany) || tooMany.After != time.Minute {
		t.Errorf("%v, want too many", err)
	}
	if wait := c.UntilRequested("prod"); wait != 0 {
		t.Errorf("an annotation waits for %s because of requests over HTTP", wait)
	}
}

// TestRequestRollbackHidesNoDenial: the controllers report denied writes even after a
// user's request was denied.
func TestRequestRollbackHidesNoDenial(t *testing.T) {
	denied := answer(t, "webhook 403")
	deny := func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
		return denied
	}
	c := clusterOf(t, interceptor.Funcs{Patch: deny},
		wrappers.MakeNamespace("prod").Enrolled().Obj(), web().Obj(),
		wrappers.MakeControllerRevision("prod", "web--1").Of(web().Obj()).Label(v1alpha1.VersionLabel, oldVersion).Revision(1).Obj())
	if _, err := c.RequestRollback(t.Context(), keyOf(web().Obj()), "", testNow); err == nil {
		t.Fatal("not denied")
	}
	w, e := webWorkload(), (*DeniedError)(nil)
	if err := c.PatchWorkload(t.Context(), PatchRelease(w), ActRequest); !errors.As(err, &e) || !e.first {
		t.Errorf("%v, want a first denial", err)
	}
}

func TestReportDenied(t *testing.T) {
	change := wrappers.MakeChangeWorkload("prod", "change").Of(web().Obj()).Version(newVersion).Release(2).Obj()
	c := clusterOf(t, interceptor.Funcs{}, change.DeepCopy())
	recorder, ok := c.Recorder.(*events.FakeRecorder)
	if !ok {
		t.Fatal("no fake recorder")
	}
	denied := answer(t, "webhook 403")
	stored := func() *v1alpha1.ChangeWorkload {
		var stored v1alpha1.ChangeWorkload
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(change), &stored); err != nil {
			t.Fatal(err)
		}
		return &stored
	}
	for range 3 {
		err := c.Try(webWorkload(), ActRecord, func() error { return denied })
		if err = c.ReportDenied(t.Context(), webWorkload(), stored(), err); !errors.Is(err, denied) {
			t.Fatalf("%v, want %v", err, denied)
		}
	}
	if reported := len(recorder.Events); reported != 1 {
		t.Errorf("reported %d times, want once", reported)
	}
	if condition := meta.FindStatusCondition(stored().Status.Conditions, v1alpha1.ConditionDefended); condition == nil ||
		condition.Status != metav1.ConditionFalse || condition.Reason != v1alpha1.ReasonWriteDenied {
		t.Errorf("condition %+v", condition)
	}
	if err := c.NoteAccepted(t.Context(), stored(), ActBlock); err != nil || stored().Status.DeniedWrite == nil {
		t.Errorf("another act accepts it, %v", err)
	}
	if err := c.NoteAccepted(t.Context(), stored(), ActRecord); err != nil || stored().Status.DeniedWrite != nil {
		t.Errorf("it is not accepted again, %v", err)
	}
	for _, other := range []error{errors.New("down"), nil} {
		if got := c.ReportDenied(t.Context(), webWorkload(), stored(), other); !errors.Is(got, other) {
			t.Errorf("%v is changed to %v", other, got)
		}
	}
}

func TestTakeLimit(t *testing.T) {
	at := func(uid types.UID, release int64) *workload.Workload {
		w := webWorkload()
		w.UID, w.Annotations = uid, web().Recorded(newVersion, release).Obj().Annotations
		return w
	}
	limit := wrappers.MakeOpsConfigInfo("operator", settings.NameLimit, v1alpha1.TypeLimit).On("2/1h").Obj()
	c := clusterOf(t, interceptor.Funcs{}, limit)
	for _, release := range []int64{1, 1, 2, 2} { // all of one workload
		if err := c.TakeLimit(t.Context(), at("web", release)); err != nil {
			t.Fatalf("release %d: %v", release, err)
		}
	}
	if err := c.TakeLimit(t.Context(), at("other", 1)); !Outdated(err) {
		t.Errorf("without room in the namespace: %v, want to decide again", err)
	}
	counted, err := c.RollbackLimit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	three := settings.Settings{Limit: true, LimitCount: 3, LimitWindow: time.Hour}
	if _, changed, ok := counted.Take(three, testNow, at("web", 2)); changed || !ok {
		t.Error("the second release is not counted")
	}
}

func TestRemember(t *testing.T) {
	d := web().Obj()
	version := versionOf(t, d)
	change := wrappers.MakeChangeWorkload("prod", "web--v").Of(d).Version(version).Release(3).Obj()
	w := webWorkload()
	mine := func(number int64) client.Object {
		return wrappers.MakeControllerRevision("prod", "web--v").Of(d).Label(v1alpha1.VersionLabel, version).Revision(number).Obj()
	}
	before := func(d *appsv1.Deployment, number int64) client.Object {
		return wrappers.MakeControllerRevision("prod", "web--v").OfEarlierBuild(d).Label(v1alpha1.VersionLabel, version).Revision(number).Obj()
	}
	left := wrappers.MakeControllerRevision("prod", "web--v").Of(web().UID("before").Obj()).Revision(9).Obj()
	for name, test := range map[string]struct {
		there client.Object
		want  int64
	}{
		"new":                                          {nil, 3},
		"succeeds again":                               {mine(1), 3},
		"a newer view was here":                        {mine(5), 5},
		"left by another workload":                     {left, 3},
		"succeeds again after an upgrade":              {before(d, 1), 3},
		"a newer view was here before the upgrade":     {before(d, 5), 5},
		"left by another workload, before the upgrade": {before(web().UID("before").Obj(), 9), 3},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{d}
			if test.there != nil {
				objects = append(objects, test.there)
			}
			c := clusterOf(t, interceptor.Funcs{}, objects...)
			if err := c.Remember(t.Context(), change, w); err != nil {
				t.Fatal(err)
			}
			history, err := c.History(t.Context(), "prod", w.UID)
			if err != nil || len(history) != 1 || history[0].Release != test.want || history[0].Version != version {
				t.Fatalf("history %+v, %v", history, err)
			}
			if err := errors.Join(c.Prove(t.Context(), "prod", &history[0]), c.Forget(t.Context(), "prod", &history[0])); err != nil {
				t.Fatal(err)
			}
			if history, err = c.History(t.Context(), "prod", w.UID); err != nil || len(history) != 0 {
				t.Errorf("not forgotten: %+v, %v", history, err)
			}
		})
	}
}

// versionOf computes the version of a Deployment's template.
func versionOf(t *testing.T, d *appsv1.Deployment) string {
	t.Helper()
	c := clusterOf(t, interceptor.Funcs{}, d)
	w, err := c.Workload(t.Context(), keyOf(d))
	if err != nil || w == nil {
		t.Fatalf("%v, %v", w, err)
	}
	return w.Version
}

func TestRemoveOrphan(t *testing.T) {
	owned := wrappers.MakeChangeWorkload("prod", "change").Of(web().Obj()).Obj()
	for name, test := range map[string]struct {
		there   client.Object
		removed bool
	}{
		"without an owner": {wrappers.MakeChangeWorkload("prod", "change").Obj(), true},
		"owned":            {owned, false},
		"gone already":     {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []client.Object
			if test.there != nil {
				objects = append(objects, test.there)
			}
			c := clusterOf(t, interceptor.Funcs{}, objects...)
			if err := c.RemoveOrphan(t.Context(), owned.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(owned), &v1alpha1.ChangeWorkload{})
			if removed := client.IgnoreNotFound(err) == nil && err != nil; removed != test.removed {
				t.Errorf("removed %t, want %t (%v)", removed, test.removed, err)
			}
		})
	}
}
