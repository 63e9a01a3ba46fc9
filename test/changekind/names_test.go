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

package changekind

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// setsOf returns the kind of the StatefulSets of another group, and its ChangeKind. Their objects have no pods.
func setsOf() (definition *unstructured.Unstructured, declaration *v1alpha1.ChangeKind) {
	definition = crd("v1")
	definition.SetName("statefulsets.example.com")
	names := map[string]any{"plural": "statefulsets", "singular": "statefulset", "kind": "StatefulSet", "listKind": "StatefulSetList"}
	definition.Object["spec"].(map[string]any)["names"] = names //nolint:errcheck,forcetypeassert // see crd
	declaration = &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: definition.GetName()}}
	declaration.Spec = v1alpha1.ChangeKindSpec{
		Version: "v1", Content: []v1alpha1.ChangeKindContent{{Path: "spec.template", PodTemplate: true}},
		Rollout: v1alpha1.ChangeKindRollout{Complete: "true", Settle: &metav1.Duration{}},
	}
	return definition, declaration
}

// TestTwoKindsOfOneName: a Deployment, a StatefulSet and a declared StatefulSet, which have one name and one template, are released at
// one time. Each has its own record, which no other waits for, and the kinds have their own series.
func TestTwoKindsOfOneName(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	ctrl.SetLogger(logr.Discard())
	w := newWorld(t)
	definition, declaration := setsOf()
	w.must(w.admin.Create(t.Context(), definition))
	w.grantTo("statefulsets")
	w.must(w.admin.Create(t.Context(), declaration))

	deployment := wrappers.MakeDeployment(shop, "web").Obj()
	deployment.UID, deployment.ResourceVersion, deployment.Status = "", "", appsv1.DeploymentStatus{}
	deployment.Spec.Replicas = ptr.To[int32](0)
	w.must(w.admin.Create(t.Context(), deployment))
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web"}, Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](0), Selector: deployment.Spec.Selector, Template: deployment.Spec.Template,
	}}
	w.must(w.admin.Create(t.Context(), set))
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&deployment.Spec.Template)
	w.must(err)
	declared := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": template}}}
	declared.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "StatefulSet"})
	declared.SetNamespace(shop)
	declared.SetName("web")
	w.until("create the declared StatefulSet", func() (bool, any) {
		err := w.admin.Create(t.Context(), declared.DeepCopy())
		return err == nil, err
	})

	version := workload.Version(template)
	for _, gvk := range []schema.GroupVersionKind{
		appsv1.SchemeGroupVersion.WithKind("Deployment"), appsv1.SchemeGroupVersion.WithKind("StatefulSet"), declared.GroupVersionKind(),
	} {
		w.release(gvk, version)
	}
	w.until("three releases", func() (bool, any) {
		var list v1alpha1.ChangeWorkloadList
		w.must(w.admin.List(t.Context(), &list, client.InNamespace(shop)))
		got := map[string]string{}
		for i := range list.Items {
			c := &list.Items[i]
			got[strings.TrimSuffix(c.Name, version)] = fmt.Sprint(c.Spec.WorkloadRef.APIVersion, " ", c.Status.Status)
		}
		is := got["web--x--"] == "apps/v1 Running" && got["web--x--statefulset-"] == "apps/v1 Running" &&
			got["web--x--statefulset-a379a-"] == "example.com/v1 Success"
		return is && len(got) == 3, got
	})
	w.until("each kind has its series", func() (bool, any) {
		got := released(t)
		return slices.Equal(got, []string{"Deployment", "StatefulSet", "StatefulSet.example.com"}), got
	})
	w.must(w.admin.Delete(t.Context(), declaration))
	w.until("the series of the declared kind are gone", func() (bool, any) {
		got := released(t)
		return slices.Equal(got, []string{"Deployment", "StatefulSet"}), got
	})
}

// release labels a workload as admission does.
func (w *world) release(gvk schema.GroupVersionKind, version string) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(gvk)
	o.SetNamespace(shop)
	o.SetName("web")
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q},"annotations":{%q:"1"}}}`, v1alpha1.VersionLabel, version, v1alpha1.ReleaseAnnotation)
	w.must(w.admin.Patch(w.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// released returns the kinds with a release in this process.
func released(t *testing.T) (kinds []string) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "altershield_releases_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if kind := m.GetLabel()[0].GetValue(); kind != "Gadget.example.com" && !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		}
	}
	slices.Sort(kinds)
	return kinds
}
