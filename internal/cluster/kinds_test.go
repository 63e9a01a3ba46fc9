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
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestAnotherKind: a Fleet beside a Deployment of its name is read, remembered,
// halted, resumed and restored by its own kind, or as a ChangeKind declares.
func TestAnotherKind(t *testing.T) {
	fleets, problem := declared.Accept(workloadtest.ChangeKind(), declared.Served{Kind: "Fleet", Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	for name, kind := range map[string]workload.Kind{"Go": workloadtest.Fleet{}, "declared": declared.NewWorkloads(fleets)} {
		t.Run(name, func(t *testing.T) { anotherKind(t, kind) })
	}
}

func anotherKind(t *testing.T, kind workload.Kind) {
	t.Helper()
	crew := func(image string) map[string]any {
		return map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "web", "image": image}}}}
	}
	fleet := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"crew": crew("busybox:1")}}}
	fleet.SetGroupVersionKind(kind.GroupVersionKind())
	fleet.SetNamespace("prod")
	fleet.SetName("web")
	fleet.SetUID("fleet")
	c := clusterOf(t, interceptor.Funcs{}, web().Obj(), fleet)
	key := workload.Key{GroupKind: kind.GroupVersionKind().GroupKind(), NamespacedName: types.NamespacedName{Namespace: "prod", Name: "web"}}
	if w, err := c.Workload(t.Context(), key); err != nil || w != nil {
		t.Fatalf("read, and not registered: %+v, %v", w, err)
	}
	c.Kinds = workload.NewRegistry(workload.Deployment{}, kind)

	keys := c.WorkloadsOf(t.Context(), wrappers.MakeNamespace("prod").Obj())
	slices.SortFunc(keys, func(a, b workload.Key) int { return strings.Compare(a.String(), b.String()) })
	if diff := cmp.Diff([]workload.Key{keyOf(web().Obj()), key}, keys); diff != "" {
		t.Errorf("the workloads of the namespace: -want +got:\n%s", diff)
	}
	w, err := c.Workload(t.Context(), key)
	if err != nil || w == nil || w.UID != "fleet" || w.Kind() != "fleet" {
		t.Fatalf("%+v, %v", w, err)
	}
	change := wrappers.MakeChangeWorkload("prod", record.ReleaseName(w, w.Version)).Version(w.Version).Release(1).Obj()
	change.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(fleet, kind.GroupVersionKind())}
	if owner, err := c.OwnerOf(t.Context(), change); err != nil || owner == nil || owner.UID != "fleet" {
		t.Errorf("the owner of the release: %+v, %v", owner, err)
	}
	if err := c.Remember(t.Context(), change, w); err != nil {
		t.Fatal(err)
	}
	history, err := c.History(t.Context(), "prod", w.UID)
	if err != nil || len(history) != 1 || history[0].Version != w.Version {
		t.Fatalf("history %+v, %v", history, err)
	}
	var remembered appsv1.ControllerRevision
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(change), &remembered); err != nil {
		t.Fatal(err)
	}
	if metav1.GetControllerOf(&remembered) != nil || remembered.Labels[v1alpha1.WorkloadKindLabel] != "Fleet" ||
		remembered.Labels[v1alpha1.DeploymentNameLabel] != "" {
		t.Errorf("remembered as %+v", remembered.ObjectMeta)
	}

	patch := func(change func(*Patch)) *unstructured.Unstructured {
		t.Helper()
		w, err := c.Workload(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if w, err = c.Whole(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		p := PatchRevision(w)
		change(p)
		if err := c.PatchWorkload(t.Context(), p, ActBlock); err != nil {
			t.Fatal(err)
		}
		stored, err := c.Stored(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		return stored
	}
	if stopping, _ := kind.Stopping(patch(func(p *Patch) { p.Halt(kind, w.Version) })); !stopping.Paused {
		t.Error("not halted")
	}
	if stopping, _ := kind.Stopping(patch(func(p *Patch) { p.Resume(kind) })); stopping.Paused {
		t.Error("not resumed")
	}
	halted := patch(func(p *Patch) {
		p.SetAnnotation("example.com/next", "1")
		if err := unstructured.SetNestedMap(fleet.Object, crew("busybox:2"), "spec", "crew"); err != nil {
			t.Fatal(err)
		}
		next, err := kind.Content(fleet)
		if err == nil {
			err = p.Restore(kind, next)
		}
		if err != nil {
			t.Fatal(err)
		}
		p.Halt(kind, w.Version)
	})
	if stopping, _ := kind.Stopping(halted); !stopping.Paused || stopping.Stays != "" {
		t.Fatalf("%+v", stopping)
	}
	if at, err := c.Workload(t.Context(), key); err != nil {
		t.Fatal(err)
	} else if at.Rollbacks != "" {
		template, version, err := c.OldTemplate(t.Context(), at)
		_, previous, noImages := c.Images(t.Context(), at)
		if err != nil || noImages != nil || version != w.Version || !cmp.Equal(template, crew("busybox:1")) ||
			!slices.Equal(previous, []string{"busybox:1"}) {
			t.Errorf("before it %s: %v, %v, %v, %v", version, template, previous, err, noImages)
		}
		if version, err := c.OldVersion(t.Context(), at); err != nil || version != w.Version {
			t.Errorf("the version before it is %s, %v", version, err)
		}
		if old, err := c.OldPods(t.Context(), at); err != nil || len(old) > 0 {
			t.Errorf("old pods: %v, %v", old, err)
		}
	}
	data, version, err := c.RememberedContent(t.Context(), kind, w, &history[0])
	if err != nil || version != w.Version {
		t.Fatal(version, err)
	}
	restored := patch(func(p *Patch) {
		if err := p.Restore(kind, data); err != nil {
			t.Fatal(err)
		}
		p.Resume(kind)
	})
	if template, _ := workload.Template(kind, restored); !cmp.Equal(template, crew("busybox:1")) {
		t.Errorf("restored %v", template)
	}
	if stopping, _ := kind.Stopping(restored); stopping.Paused || restored.GetAnnotations()[v1alpha1.HaltedFromAnnotation] != "" {
		t.Errorf("not resumed: %+v", restored.Object)
	}
}
