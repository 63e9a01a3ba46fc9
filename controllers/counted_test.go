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
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	controllermetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestCountWorkloads: each enrolled namespace has a count, even if it is 0. A label that blocks nothing does not count. A hold counts
// until its fields are restored.
func TestCountWorkloads(t *testing.T) {
	going := wrappers.MakeNamespace("going").Enrolled().Obj()
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"test/going"}
	view := func(failing bool) cluster.View {
		api := fake.NewClientBuilder().WithScheme(NewScheme()).WithObjects(
			going, wrappers.MakeNamespace("shop").Enrolled().Obj(), wrappers.MakeNamespace("quiet").Enrolled().Obj(),
			wrappers.MakeNamespace("outside").Obj(), wrappers.MakeNamespace("other").Label(v1alpha1.EnrolledLabel, "disabled").Obj(),
			wrappers.MakeNamespace("kube-system").Enrolled().Obj(), wrappers.MakeNamespace("operator").Enrolled().Obj(),
			wrappers.MakeDeployment("shop", "cart").Suspended().Obj(),
			wrappers.MakeDeployment("shop", "pay").Label(v1alpha1.SuspendLabel, "").Obj(),
			wrappers.MakeDeployment("shop", "left").Suspended().Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).Obj(),
			wrappers.MakeDeployment("shop", "free").Obj(),
			wrappers.MakeDeployment("shop", "held").Annotation(v1alpha1.HeldAnnotation, "{}").Obj(),
			wrappers.MakeDeployment("shop", "let-go").Annotation(v1alpha1.HoldEndedAnnotation, "1 Verified").Obj(),
			wrappers.MakeDeployment("shop", "left-held").Annotation(v1alpha1.HeldAnnotation, "{}").
				Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).Obj(),
			wrappers.MakeDeployment("outside", "held").Annotation(v1alpha1.HeldAnnotation, "{}").Obj(),
			wrappers.MakeDeployment("outside", "web").Suspended().Obj(),
			wrappers.MakeDeployment("operator", "web").Suspended().Obj(),
			wrappers.MakeDeployment("going", "web").Suspended().Obj(),
			ofKind("shop", "log", v1alpha1.SuspendLabel), ofKind("quiet", "log", "other"), ofKind("outside", "log", v1alpha1.SuspendLabel),
		).WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, namespaces := list.(*metav1.PartialObjectMetadataList); failing && !namespaces {
					return errors.New("the cache is not there")
				}
				return c.List(ctx, list, opts...)
			},
		}).Build()
		return cluster.View{
			Cached: api, Live: api, Kinds: workload.NewRegistry(workload.Deployment{}, workload.DaemonSet{}), Operator: "operator",
		}
	}
	for name, count := range map[string]func(context.Context, cluster.View) (map[metrics.Of]int, error){
		"blocked": blockedWorkloads, "held": heldWorkloads,
	} {
		got, err := count(t.Context(), view(false))
		if err != nil {
			t.Fatal(err)
		}
		want := map[metrics.Of]int{
			{Kind: "Deployment", Namespace: "shop"}: 2, {Kind: "Deployment", Namespace: "quiet"}: 0,
			{Kind: "DaemonSet", Namespace: "shop"}: 1, {Kind: "DaemonSet", Namespace: "quiet"}: 0,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		if got, err := count(t.Context(), view(true)); err == nil || got != nil {
			t.Errorf("%s: counted %v, %v although the lists failed", name, got, err)
		}
	}
}

// ofKind returns a DaemonSet that is blocked and held if label is the suspend label.
func ofKind(namespace, name, label string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{label: "1"},
		Annotations: map[string]string{map[bool]string{true: v1alpha1.HeldAnnotation, false: "other"}[label == v1alpha1.SuspendLabel]: "{}"},
	}}
}

// TestMistypedNamespaces: a namespace label without effect is logged once, and counted while it exists.
func TestMistypedNamespaces(t *testing.T) {
	api := fake.NewClientBuilder().WithScheme(NewScheme()).Build()
	r := &WorkloadReconciler{Cluster: &cluster.Cluster{
		View: cluster.View{Cached: api, Live: api, Kinds: workload.NewRegistry(workload.Deployment{}), Operator: "operator"},
	}}
	logged := 0
	ctx := log.IntoContext(t.Context(), funcr.New(func(string, string) { logged++ }, funcr.Options{}))
	counted := func() (n float64) {
		families, err := controllermetrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "altershield_mistyped_namespaces" {
				n = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return n
	}
	before := counted()
	labelled := func(name, value string) client.Object {
		return wrappers.MakeNamespace(name).Label(v1alpha1.EnrolledLabel, value).Obj()
	}
	going := wrappers.MakeNamespace("shop").Label(v1alpha1.EnrolledLabel, "enable").Obj()
	going.DeletionTimestamp = &metav1.Time{Time: metav1.Now().Time}
	for _, step := range []struct {
		name        string
		ns          client.Object
		count, logs int
	}{
		{"enrolled", labelled("shop", "enabled"), 0, 0},
		{"mistyped", labelled("shop", "enable"), 1, 1},
		{"unchanged", labelled("shop", "enable"), 1, 1},
		{"another value", labelled("shop", "true"), 1, 2},
		{"another namespace", labelled("bank", "true"), 2, 3},
		{"the operator's own", labelled("operator", "true"), 2, 3},
		{"corrected", labelled("bank", "enabled"), 1, 3},
		{"deleted", going, 0, 3},
	} {
		r.workloadsOf(ctx, step.ns)
		if got := counted() - before; got != float64(step.count) || logged != step.logs {
			t.Errorf("%s: counted %v, logged %d times; want %d, %d", step.name, got, logged, step.count, step.logs)
		}
	}
}

// TestBlockSeconds: each end of a block is measured once, whatever ends it.
func TestBlockSeconds(t *testing.T) {
	now := time.Unix(1_700_000_600, 0)
	r := &WorkloadReconciler{Cluster: &cluster.Cluster{Clock: clocktesting.NewFakeClock(now)}}
	measured := func() (count uint64, seconds float64) {
		families, err := controllermetrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "altershield_block_duration_seconds" {
				for _, m := range f.GetMetric() {
					count += m.GetHistogram().GetSampleCount()
					seconds += m.GetHistogram().GetSampleSum()
				}
			}
		}
		return count, seconds
	}
	key := workload.Key{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "web"}}
	enrolled, left := cluster.Namespace{Enrolled: true}, cluster.Namespace{}
	of := func(labels map[string]string) *workload.Workload {
		return &workload.Workload{GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Namespace: "shop", Name: "web", UID: "1", Labels: labels}
	}
	free := of(nil)
	blocked := func(since string) *workload.Workload { return of(map[string]string{v1alpha1.SuspendLabel: since}) }
	baseCount, baseSeconds := measured()
	for _, step := range []struct {
		name    string
		ns      cluster.Namespace
		w       *workload.Workload
		count   uint64
		seconds float64
	}{
		{"first seen free", enrolled, free, 0, 0},
		{"blocked", enrolled, blocked("1700000000"), 0, 0},
		{"still blocked", enrolled, blocked("1700000000"), 0, 0},
		{"lifted", enrolled, free, 1, 600},
		{"still free", enrolled, free, 1, 600},
		{"blocked by a user", enrolled, blocked("yes"), 1, 600},
		{"lifted by the user", enrolled, free, 1, 600},
		{"blocked again", enrolled, blocked("1700000500"), 1, 600},
		{"a later block in its place", enrolled, blocked("1700000590"), 2, 700},
		{"left the defense", left, blocked("1700000590"), 3, 710},
		{"in the future", enrolled, blocked("1700009999"), 3, 710},
		{"lifted early", enrolled, free, 4, 710},
		{"blocked, to be deleted", enrolled, blocked("1700000300"), 4, 710},
	} {
		r.rememberDenied(step.ns, key, step.w)
		if count, seconds := measured(); count-baseCount != step.count || seconds-baseSeconds != step.seconds {
			t.Errorf("%s: %d blocks, %v s; want %d, %v", step.name, count-baseCount, seconds-baseSeconds, step.count, step.seconds)
		}
	}
	r.keepDenied(key, nil)
	r.keepDenied(key, nil)
	if count, seconds := measured(); count-baseCount != 5 || seconds-baseSeconds != 1010 {
		t.Errorf("deleted: %d blocks, %v s", count-baseCount, seconds-baseSeconds)
	}
}

// TestChecksOfPolicies: the checks of the spec and the checks of the spec in force may have series.
func TestChecksOfPolicies(t *testing.T) {
	checks := func(names ...string) (spec v1alpha1.DefensePolicySpec) {
		for _, name := range names {
			spec.Checks = append(spec.Checks, v1alpha1.PolicyCheck{Name: name})
		}
		return spec
	}
	inForce := checks("b", "c")
	api := fake.NewClientBuilder().WithScheme(NewScheme()).WithObjects(
		&v1alpha1.DefensePolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "gate"}, Spec: checks("a", "b"),
			Status: v1alpha1.DefensePolicyStatus{InForce: &inForce},
		},
		&v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "default"}},
	).Build()
	got, err := checksOfPolicies(t.Context(), cluster.View{Cached: api})
	if diff := cmp.Diff(map[string][]string{"shop/gate": {"a", "b", "b", "c"}, "operator/default": {}}, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}

// TestCountChangeKinds: without a condition, or with one of an earlier declaration, a ChangeKind is not known to be ready.
func TestCountChangeKinds(t *testing.T) {
	ready := func(name string, generation, observed int64) *v1alpha1.ChangeKind {
		return &v1alpha1.ChangeKind{
			ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation},
			Status: v1alpha1.ChangeKindStatus{Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: observed},
			}},
		}
	}
	api := fake.NewClientBuilder().WithScheme(NewScheme()).WithObjects(
		ready("a.example.com", 2, 2), ready("b.example.com", 2, 1),
		&v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: "c.example.com", Generation: 1}},
	).Build()
	got, err := countChangeKinds(t.Context(), cluster.View{Cached: api})
	if err != nil {
		t.Fatal(err)
	}
	for status, want := range map[string]int{"True": 1, "False": 0, "Unknown": 2} {
		if n := got[metrics.Condition{Type: v1alpha1.ConditionReady, Status: status}]; n != want {
			t.Errorf("%s: %d, want %d", status, n, want)
		}
	}
}
