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
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// maxCached bounds the memory of one object in the cache, in bytes.
const maxCached = 32 << 10

// content is an object as JSON has it.
type content = map[string]any

func controlledBy(name string) content {
	return content{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": name, "controller": true}
}

// hostileMeta returns metadata of up to 1 MB. The API server accepts most of them.
func hostileMeta() map[string]content {
	huge, text := strings.Repeat("x", 1_000_000), strings.Repeat("x", 1000)
	labels, fitting, own, finalizers, owners, managed := content{}, content{}, content{}, []any{}, []any{}, []any{}
	for i := range 20_000 {
		labels[fmt.Sprintf("label-%d", i)] = "value"
	}
	for i := range 350 {
		fitting[fmt.Sprintf("label-%d", i)] = "v"
	}
	for i := range 250 {
		own[fmt.Sprintf("altershield.defense.antgroup.com/own-%d", i)] = text
		finalizers = append(finalizers, fmt.Sprintf("example.com/%d-%s", i, text))
		owners = append(owners, content{"apiVersion": "v1", "kind": "ConfigMap", "name": text, "uid": fmt.Sprint(i)})
		managed = append(managed, content{"manager": "m", "operation": "Apply", "time": "2026-03-04T05:06:07Z", "fieldsType": "FieldsV1",
			"fieldsV1": content{"f:metadata": content{"f:labels": content{"f:admission-webhook-altershield": content{}, "f:" + text: content{}}}}})
	}
	return map[string]content{
		"labels":           {"labels": labels},
		"fitting labels":   {"labels": fitting},
		"annotations":      {"annotations": content{"example.com/big": huge}},
		"many annotations": {"annotations": labels},
		"own annotations":  {"annotations": own},
		"own annotation":   {"annotations": content{v1alpha1.TenantAnnotation: huge[:200_000], v1alpha1.HeldAnnotation: huge[:200_000]}},
		"finalizers":       {"finalizers": finalizers},
		"owners":           {"ownerReferences": owners},
		"controller":       {"ownerReferences": []any{controlledBy(huge)}},
		"managed fields":   {"managedFields": managed},
	}
}

// hostileTemplates returns pod templates of about 1 MB.
func hostileTemplates() map[string]content {
	huge := strings.Repeat("x", 1_000_000)
	var many, env []any
	for i := range 5000 {
		many = append(many, content{"name": fmt.Sprintf("c%d", i), "image": fmt.Sprintf("%d-%s", i, huge[:200])})
		env = append(env, content{"name": fmt.Sprintf("E%d", i), "value": huge[:150]})
	}
	return map[string]content{
		"one image": {"spec": content{"containers": []any{content{"name": "a", "image": huge}}}},
		"long images": {"spec": content{"containers": []any{
			content{"name": "a", "image": huge[:400_000]}, content{"name": "b", "image": huge[1:400_000]},
		}}},
		"many images":    {"spec": content{"containers": many}},
		"environment":    {"spec": content{"containers": []any{content{"name": "a", "image": "a", "env": env}}}},
		"template's own": {"metadata": content{"annotations": content{"big": huge[:250_000]}}, "spec": content{"containers": []any{}}},
	}
}

// hostilePolicies returns policy specs of about 1 MB that the API server accepts.
func hostilePolicies() map[string]content {
	var values, expressions []any
	for i := range 100_000 {
		values = append(values, fmt.Sprintf("v%d", i))
	}
	labels := content{}
	for i := range 20_000 {
		labels[fmt.Sprintf("label-%d", i)] = "value"
		expressions = append(expressions, content{"key": fmt.Sprintf("label-%d", i), "operator": "Exists"})
	}
	return map[string]content{
		"values":      {"workloadSelector": content{"matchExpressions": []any{content{"key": "a", "operator": "In", "values": values}}}},
		"expressions": {"workloadSelector": content{"matchExpressions": expressions}},
		"labels":      {"namespaceSelector": content{"matchLabels": labels}},
	}
}

// cachedKinds returns an empty object of each kind in the cache.
func cachedKinds(kinds *workload.Registry) []client.Object {
	all := []client.Object{
		&corev1.Pod{}, cluster.NamespaceObject(), &appsv1.ControllerRevision{},
		&v1alpha1.ChangeWorkload{}, &v1alpha1.ChangePod{}, &v1alpha1.OpsConfigInfo{}, &v1alpha1.DefensePolicy{},
	}
	for _, kind := range kinds.Kinds() {
		for object := range kind.Transforms() {
			all = append(all, object)
		}
	}
	return all
}

// TestMemoryOfCache: no object of any kind is large in the cache, whatever its content.
func TestMemoryOfCache(t *testing.T) {
	kinds := workload.Defended()
	options := CacheOptions(kinds, operatorNamespace)
	for _, object := range cachedKinds(kinds) {
		gvk, err := apiutil.GVKForObject(object, NewScheme())
		if err != nil {
			t.Fatal(err)
		}
		transform := options.DefaultTransform
		for of, by := range options.ByObject {
			if is, err := apiutil.GVKForObject(of, NewScheme()); err == nil && is == gvk {
				transform = by.Transform
			}
		}
		check := func(name string, with content) {
			t.Run(gvk.Kind+" "+name, func(t *testing.T) {
				if each := memoryInCache(t, object, with, transform); each > maxCached {
					t.Errorf("takes %d bytes in the cache, want at most %d", each, maxCached)
				}
			})
		}
		plain := content{"spec": content{"containers": []any{}}}
		contentOf := func(meta, template, spec content) content {
			all := content{
				"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind, "metadata": content{"name": "web", "namespace": "default"}, "spec": spec,
			}
			for key, value := range meta {
				all["metadata"].(content)[key] = value //nolint:errcheck // set above
			}
			switch {
			case template == nil:
			case gvk.Kind == "Pod":
				all["spec"] = template["spec"]
			case gvk.Kind == "ControllerRevision":
				all["data"] = content{"spec": content{"template": template}}
			default:
				all["spec"] = content{"template": template}
			}
			return all
		}
		_, isUnstructured := object.(*unstructured.Unstructured)
		hasTemplate := isUnstructured || gvk.Group == "apps" || gvk.Kind == "Pod"
		for name, meta := range hostileMeta() {
			template := plain
			if !hasTemplate {
				template = nil
			}
			check(name, contentOf(meta, template, content{}))
		}
		if hasTemplate {
			owned := content{"ownerReferences": []any{controlledBy("db")}}
			for name, template := range hostileTemplates() {
				check(name, contentOf(owned, template, nil))
			}
		}
		if gvk.Kind == "DefensePolicy" {
			for name, spec := range hostilePolicies() {
				check("spec "+name, contentOf(nil, nil, spec))
			}
		}
	}
}

// memoryInCache returns the heap of an object after its transform, in bytes.
func memoryInCache(t *testing.T, like client.Object, with content, transform toolscache.TransformFunc) uint64 {
	t.Helper()
	text, err := json.Marshal(with)
	if err != nil {
		t.Fatal(err)
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	const many = 4
	kept := make([]any, many)
	fill := func() {
		for i := range kept {
			object := like.DeepCopyObject()
			if _, is := object.(*metav1.PartialObjectMetadata); is {
				object = &metav1.PartialObjectMetadata{}
			}
			if err := json.Unmarshal(text, object); err != nil {
				t.Fatal(err)
			}
			if kept[i], err = transform(object); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill() // allocates what is allocated once
	clear(kept)
	before := heap()
	fill()
	after := heap()
	runtime.KeepAlive(kept)
	return (max(after, before) - before) / many
}
