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

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// changeKind returns a ChangeKind of objects without pods, which the operator accepted.
func changeKind(name string, change func(c *v1alpha1.ChangeKind)) *v1alpha1.ChangeKind {
	c := &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec = v1alpha1.ChangeKindSpec{
		Version: "v1", Enrolment: v1alpha1.EnrolledByNamespace, VersionLabel: v1alpha1.VersionLabelOnObject, Rollback: v1alpha1.RollbackOnRequest,
	}
	c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue}}
	if change != nil {
		change(c)
	}
	return c
}

// object returns an object of a declared kind.
func object(group, kind, name string, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"weight": int64(20)}}}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind})
	o.SetNamespace("shop")
	o.SetName(name)
	o.SetLabels(labels)
	return o
}

// declaredAPI returns an API server with declared kinds of all sorts, and a connection to it.
func declaredAPI(t *testing.T, funcs interceptor.Funcs) (*connection, client.WithWatch, *bytes.Buffer) {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []string{"Route", "StatefulSet", "Gate"} {
		mapper.Add(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: kind}, meta.RESTScopeNamespace)
	}
	mapper.Add(schema.GroupVersionKind{Group: "other.org", Version: "v1", Kind: "Gate"}, meta.RESTScopeNamespace)
	// The fake client adds declared kinds to its scheme.
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	all := meta.MultiRESTMapper{testrestmapper.TestOnlyStaticRESTMapper(scheme), mapper}
	enabled := map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseEnabled}
	api := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(all).WithInterceptorFuncs(funcs).WithObjects(
		changeKind("routes.example.com", nil), changeKind("statefulsets.example.com", nil),
		changeKind("gates.example.com", nil), changeKind("gates.other.org", nil),
		changeKind("configmaps", func(c *v1alpha1.ChangeKind) {
			c.Spec.Enrolment, c.Spec.Content = v1alpha1.EnrolledByLabel, []v1alpha1.ChangeKindContent{{Path: "data"}}
		}),
		changeKind("gone.example.com", nil), changeKind("new.example.com", func(c *v1alpha1.ChangeKind) { c.Status.Conditions = nil }),
		changeKind("bad.example.com", func(c *v1alpha1.ChangeKind) {
			said := &c.Status.Conditions[0]
			said.Status, said.Reason, said.Message = metav1.ConditionFalse, "Invalid", "no field"
		}),
		object("example.com", "Route", "pay", nil), object("example.com", "StatefulSet", "db", nil), &appsv1.StatefulSet{ObjectMeta: meant("db")},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pay"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "flags", Labels: enabled}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}}},
	).Build()
	streams, _, _, errs := genericiooptions.NewTestIOStreams()
	return &connection{Options: Options{IOStreams: streams, Now: time.Now}, flags: genericclioptions.NewConfigFlags(true)}, api, errs
}

// TestFindsDeclaredKinds: workloads of declared kinds are named as kubectl names them. A native kind precedes a declared one of its name.
func TestFindsDeclaredKinds(t *testing.T) {
	const notShown = "bad.example.com are not shown: Invalid: no field\n" +
		"gone.example.com are not shown: no matches for example.com/v1, Resource=gone\n" +
		"new.example.com are not shown: the operator has not accepted the ChangeKind yet\n"
	for args, want := range map[string]string{
		"route/pay":                   "route/pay",
		"routes.example.com pay":      "route/pay",
		"route.v1.example.com/pay":    "route/pay",
		"pay":                         "route/pay", // the ConfigMap is not enrolled by its label
		"flags":                       "configmap/flags",
		"statefulset/db":              "statefulset/db",
		"statefulset.example.com/db":  "statefulset.example.com/db",
		"statefulsets.example.com/db": "statefulset.example.com/db",
		"db": "db is the name of 2 workloads of the namespace shop\n" +
			"  name the kind, too: statefulset/db or statefulset.example.com/db",
		"gate/x":            "2 kinds are named gate\n  name the group, too: gates.example.com/x or gates.other.org/x",
		"gates.other.org/x": "gate/x",
		"cloneset/x": `"cloneset" is no kind of workload that is defended` + "\n  defended kinds: deployment, statefulset, daemonset, " +
			"configmap, gate, gate, route, statefulset.example.com",
	} {
		c, api, errs := declaredAPI(t, interceptor.Funcs{})
		found, err := c.find(t.Context(), api, "shop", strings.Fields(args)...)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = found.String()
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant:\n%s", args, got, want)
		}
		if native := args == "statefulset/db"; native != (errs.String() == "") || !native && errs.String() != notShown {
			t.Errorf("%s: printed %s", args, errs)
		}
	}
}

// TestWithoutDeclaredKinds: a user who may not list ChangeKinds sees native kinds and one line, and a cluster without the kind is fine.
func TestWithoutDeclaredKinds(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "changekinds"}
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"forbidden":        {apierrors.NewForbidden(resource, "", nil), "declared kinds are not known: "},
		"no kind":          {&meta.NoKindMatchError{GroupKind: v1alpha1.GroupVersion.WithKind("ChangeKind").GroupKind()}, ""},
		"no resource":      {apierrors.NewNotFound(resource, ""), ""},
		"no answer at all": {apierrors.NewInternalError(context.Canceled), "an error"},
	} {
		c, api, errs := declaredAPI(t, interceptor.Funcs{
			List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, is := list.(*v1alpha1.ChangeKindList); is {
					return tt.err
				}
				return api.List(ctx, list, opts...)
			},
		})
		v, err := c.census(t.Context(), api, "operator", "shop")
		if tt.want == "an error" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		if err != nil || len(v.snapshots) != 1 {
			t.Errorf("%s: %v, %+v", name, err, v)
		}
		if _, err := c.kinds(t.Context(), api); err != nil { // the line is printed once
			t.Error(err)
		}
		if got := errs.String(); strings.Count(got, "\n") > 1 || !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: printed %q", name, got)
		}
	}
}

// brokenRoutes fails each read of Routes, as a conversion webhook that is down does.
func brokenRoutes(of schema.GroupVersionKind) error {
	if strings.HasPrefix(of.Kind, "Route") {
		return apierrors.NewInternalError(errors.New("conversion webhook"))
	}
	return nil
}

var broken = interceptor.Funcs{
	List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if err := brokenRoutes(list.GetObjectKind().GroupVersionKind()); err != nil {
			return err
		}
		return api.List(ctx, list, opts...)
	},
	Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if err := brokenRoutes(o.GetObjectKind().GroupVersionKind()); err != nil {
			return err
		}
		return api.Get(ctx, key, o, opts...)
	},
}

// TestGoesOnWithoutADeclaredKind: where objects of one declared kind cannot be read, a namespace gets its mode, and others are found.
func TestGoesOnWithoutADeclaredKind(t *testing.T) {
	for _, mode := range []string{modeObserve, modeOff} {
		c, api, errs := declaredAPI(t, broken)
		for _, o := range settingsIn("ops", nil) {
			if err := api.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		change := &changer{connection: c, dryRun: dryRunNone}
		if err := change.enrollShop(t.Context(), api, enrollFlags{mode: mode, operator: "ops", wait: true}); err != nil {
			t.Fatal(mode, err)
		}
		if got := strings.Count(errs.String(), "routes.example.com are not known: "); got != 1 {
			t.Errorf("%s: %d times in %s", mode, got, errs)
		}
	}
	c, api, _ := declaredAPI(t, broken)
	if err := (&changer{connection: c}).describeNamespace(t.Context(), api, "shop"); err != nil {
		t.Error(err)
	}
	if found, err := c.find(t.Context(), api, "shop", "flags"); err != nil || found.String() != "configmap/flags" {
		t.Error(found, err)
	}
	if _, err := c.find(t.Context(), api, "shop", "none"); err == nil || !strings.Contains(err.Error(), "conversion webhook") {
		t.Error(err)
	}
}

// TestCensusOfDeclaredKinds: all defended objects are listed, each with its own kind.
func TestCensusOfDeclaredKinds(t *testing.T) {
	c, api, _ := declaredAPI(t, interceptor.Funcs{})
	v, err := c.census(t.Context(), api, "operator", "shop")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	o := overviewOf(v, "shop", true, time.Now())
	for i := range o.Items {
		got = append(got, argument(&o.Items[i].TypeMeta)+"/"+o.Items[i].Metadata.Name)
		if pods := o.Items[i].Pods != nil; pods != (o.Items[i].APIVersion == "apps/v1") {
			t.Errorf("%+v", o.Items[i])
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"configmap/flags", "route/pay", "statefulset.example.com/db", "statefulset/db"}, got); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	if o.Counts.Baselines != 4 {
		t.Errorf("%+v", o.Counts)
	}
}

// TestResumesDeclared: a halted object gets the value back that it had before the halt.
func TestResumesDeclared(t *testing.T) {
	c, api, _ := declaredAPI(t, interceptor.Funcs{})
	var of v1alpha1.ChangeKind
	if err := api.Get(t.Context(), client.ObjectKey{Name: "routes.example.com"}, &of); err != nil {
		t.Fatal(err)
	}
	of.Spec.Content = []v1alpha1.ChangeKindContent{{Path: "spec.weight"}}
	of.Spec.Rollout.Halt = []v1alpha1.ChangeKindHalt{{Path: "spec.paused"}}
	of.Spec.Rollout.Halt[0].Value.Raw = []byte("true")
	kind, problem := declaredKind(t.Context(), api, &of)
	if problem != "" {
		t.Fatal(problem)
	}
	stored := object("example.com", "Route", "pay", nil)
	stored.SetAnnotations(map[string]string{
		v1alpha1.HaltedAnnotation: versionTwo, v1alpha1.HaltedFromAnnotation: `[{"path":"spec.paused","value":true,"was":false}]`,
	})
	stored.Object["spec"].(map[string]any)["paused"] = true //nolint:errcheck,forcetypeassert // see object
	s := &snapshot{target: target{kind: kind, key: client.ObjectKeyFromObject(stored)}, now: time.Now()}
	if err := s.take(stored); err != nil {
		t.Fatal(err)
	}
	r, err := c.toResume(s)
	if err != nil {
		t.Fatal(err)
	}
	back := func(op workload.Op) bool { return op.Op != "test" && op.Path == "/spec/paused" && op.Value == false }
	if !slices.ContainsFunc(r.ops, back) || s.workload.Rollbacks != v1alpha1.RollbackOnRequest || !s.workload.WithoutPods {
		t.Errorf("%+v, %+v", r, s.workload)
	}
	// It has no image.
	s.workload.Labels = map[string]string{v1alpha1.SuspendLabel: "1"}
	s.workload.Annotations[v1alpha1.SuspendedByAnnotation] = versionTwo + " 2"
	var steps string
	for _, f := range findingsOf(s, c.advisor("shop")) {
		steps += fmt.Sprint(f.Do)
	}
	if strings.Contains(steps, "image") || !strings.Contains(steps, "override route/pay --next") {
		t.Error(steps)
	}
	// The declaration no longer names the field of the halt.
	stored.SetAnnotations(map[string]string{
		v1alpha1.HaltedAnnotation: versionTwo, v1alpha1.HaltedFromAnnotation: `[{"path":"spec.stopped","value":true}]`,
	})
	stored.Object["spec"] = map[string]any{"stopped": true}
	if err := s.take(stored); err != nil {
		t.Fatal(err)
	}
	if _, err := c.toResume(s); err == nil || !strings.Contains(err.Error(), "set the value by hand") {
		t.Error(err)
	}
}

// TestLoadsDeclaredPods: the expression of the declaration selects the pods of the current version.
func TestLoadsDeclaredPods(t *testing.T) {
	accepted, problem := declared.Accept(workloadtest.ChangeKind(), declared.Served{Kind: "Fleet", Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	kind := declared.NewWorkloads(accepted)
	c, api, _ := declaredAPI(t, interceptor.Funcs{})
	c.registry = workload.Defended()
	c.registry.Declare(kind)
	fleet := object("example.com", "Fleet", "web", nil)
	fleet.SetUID("fleet")
	fleet.Object["spec"] = map[string]any{"ships": int64(2), "crew": map[string]any{"spec": map[string]any{"containers": []any{
		map[string]any{"name": "main", "image": "main:2"},
	}}}}
	fleet.Object["status"] = map[string]any{"revision": "two"}
	objects := []client.Object{fleet}
	for _, revision := range []string{"one", "two"} {
		pod := &corev1.Pod{ObjectMeta: meant("web-" + revision)}
		pod.UID, pod.Labels = types.UID(pod.Name), map[string]string{workloadtest.CrewLabel: revision}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(fleet, kind.GroupVersionKind())}
		objects = append(objects, pod)
	}
	for _, o := range objects {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	s, err := c.load(t.Context(), api, operatorNamespace, target{kind: kind, key: client.ObjectKeyFromObject(fleet)})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.pods) != 1 || s.pods[0].Name != "web-two" || s.container != "main" ||
		s.workload.Replicas != 2 || s.workload.Images[0] != "main:2" {
		t.Errorf("%+v, %+v", s.pods, s.workload)
	}
}
