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

package workload_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func TestRegistry(t *testing.T) {
	fleets := workloadtest.Fleet{}.GroupVersionKind()
	registry := workload.NewRegistry(workload.Deployment{}, workloadtest.Fleet{})
	for gk, want := range map[schema.GroupKind]bool{
		{Group: "apps", Kind: "Deployment"}:        true,
		fleets.GroupKind():                         true,
		{Group: "example.com", Kind: "Deployment"}: false,
		{Group: "apps", Kind: "Fleet"}:             false,
	} {
		if kind, ok := registry.Of(gk); ok != want || ok && kind.GroupVersionKind().GroupKind() != gk {
			t.Errorf("%s: %v, %t, want %t", gk, kind, ok, want)
		}
	}
	if n := len(registry.Kinds()); n != 2 {
		t.Errorf("%d kinds, want 2", n)
	}
	defer func() {
		if recover() == nil {
			t.Error("a kind can be registered twice")
		}
	}()
	workload.NewRegistry(workload.Deployment{}, workload.Deployment{})
}

// pool is a declared kind of workload.
type pool struct {
	workloadtest.Fleet
	kind, label string
}

func (p *pool) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: p.kind}
}

func (p *pool) PodLabels() []string { return []string{p.label} }

// TestDeclare: declared kinds come and go in one write, and subscribers follow. A declaration never replaces a fixed kind.
func TestDeclare(t *testing.T) {
	registry := workload.NewRegistry(workload.Deployment{}, workloadtest.Fleet{})
	var calls []string
	names := func(kinds []workload.Kind) (all []string) {
		for _, k := range kinds {
			all = append(all, k.GroupVersionKind().Kind)
		}
		return all
	}
	registry.Subscribe(func(added, removed []workload.Kind) {
		calls = append(calls, fmt.Sprint(names(added), names(removed), len(registry.Kinds())))
	})
	before := registry.Kinds()
	one, two := &pool{kind: "One", label: "one"}, &pool{kind: "Two", label: "two"}
	again := &pool{kind: "One", label: "again"}
	registry.Declare(one)
	registry.Declare(one) // nothing changes
	registry.Declare(two, again, &pool{kind: "Fleet"}, &pool{kind: "Two"})
	if k, ok := registry.Of(again.GroupVersionKind().GroupKind()); !ok || k != again {
		t.Errorf("the kind One is %v, %t", k, ok)
	}
	if k, _ := registry.Of(workloadtest.Fleet{}.GroupVersionKind().GroupKind()); k != (workloadtest.Fleet{}) {
		t.Errorf("a declaration replaced a fixed kind: %v", k)
	}
	if got := names(registry.Declared()); !slices.Equal(got, []string{"Two", "One"}) || len(before) != 2 {
		t.Errorf("the declared kinds are %s, and %d before", got, len(before))
	}
	registry.Declare()
	want := []string{"[Deployment Fleet] [] 2", "[One] [] 3", "[Two One] [One] 4", "[] [Two One] 2"}
	if !slices.Equal(calls, want) {
		t.Errorf("subscribers got %q, want %q", calls, want)
	}
	if _, ok := registry.Of(two.GroupVersionKind().GroupKind()); ok {
		t.Error("a removed kind is still defended")
	}
}

// TestTrimLabels: pods keep all labels, since a later declaration may select them by any, unless the labels are large.
func TestTrimLabels(t *testing.T) {
	registry := workload.NewRegistry(workload.Deployment{})
	registry.Declare(&pool{kind: "One", label: "one"})
	pod := wrappers.MakePod("prod", "web").Label("one", "1").Label("other", "2")
	for size, want := range map[string]int{"small": 3, strings.Repeat("x", 63): 1} {
		of := pod.Obj().DeepCopy()
		for i := 0; len(size) > 60 && i < 100; i++ {
			of.Labels[fmt.Sprint("l", i)] = size
		}
		trimmed, err := registry.TrimPod(of)
		kept, ok := trimmed.(*corev1.Pod)
		if err != nil || !ok || len(kept.Labels) != want || kept.Labels["one"] != "1" {
			t.Errorf("%v, %v, want %d labels", trimmed, err, want)
		}
	}
}

// TestOwners: the owner of a pod or a record is found by owner references, not by the name alone.
func TestOwners(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	d := wrappers.MakeDeployment("prod", "web").UID("d").Obj()
	rs := wrappers.MakeReplicaSet("prod", "web-1").UID("rs").Of(d).Obj()
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(rs).Build()
	fleets := workloadtest.Fleet{}.GroupVersionKind()
	owned := func(apiVersion, kind, name, uid string) metav1.Object {
		yes := true
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "pod", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(uid), Controller: &yes},
		}}}
	}
	both := workload.NewRegistry(workload.Deployment{}, workloadtest.Fleet{})
	for name, test := range map[string]struct {
		registry *workload.Registry
		pod      metav1.Object
		want     string // its owner's kind and UID
	}{
		"of a Deployment":         {both, owned("apps/v1", "ReplicaSet", "web-1", "rs"), "Deployment.apps prod/web d"},
		"of a Fleet":              {both, owned("example.com/v1", "Fleet", "web", "f"), "Fleet.example.com prod/web f"},
		"of an unregistered kind": {workload.NewRegistry(workload.Deployment{}), owned("example.com/v1", "Fleet", "web", "f"), ""},
		"of a bare ReplicaSet":    {both, owned("apps/v1", "ReplicaSet", "other", "o"), ""},
		"without an owner":        {both, &corev1.Pod{}, ""},
	} {
		owner, ok, err := test.registry.OwnerOfPod(t.Context(), reader, test.pod)
		got := ""
		if ok {
			got = owner.Key.String() + " " + string(owner.UID)
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, test.want)
		}
	}
	record := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", OwnerReferences: []metav1.OwnerReference{
		*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "web", UID: "f"}, fleets)}}}
	if owner, ok := both.OwnerOf(record); !ok || owner.Key.GroupKind != fleets.GroupKind() || owner.UID != "f" {
		t.Errorf("the owner of a record: %+v, %t", owner, ok)
	}
}
