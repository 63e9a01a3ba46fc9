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

// Package workloadtest has invented kinds of workloads, for tests that code for workloads works
// for all kinds.
package workloadtest

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Fleet is a kind of workload that owns its pods. Its template is at spec.crew, and spec.anchored
// halts it.
type Fleet struct{}

var _ workload.Kind = Fleet{}

const anchored = "/spec/anchored"

// GroupVersionKind implements workload.Kind.
func (Fleet) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Fleet"}
}

// Resource implements workload.Kind.
func (Fleet) Resource() string { return "fleets" }

var crewPath = workload.Path{"spec", "crew"}

// ContentPaths implements workload.Kind.
func (Fleet) ContentPaths() []workload.Path { return []workload.Path{crewPath} }

// TemplatePath implements workload.Kind.
func (Fleet) TemplatePath() (workload.Path, bool) { return crewPath, true }

// VersionOf implements workload.Kind.
func (f Fleet) VersionOf(stored *unstructured.Unstructured) (string, error) {
	crew, err := workload.Template(f, stored)
	return workload.Version(crew), err
}

// Content implements workload.Kind.
func (f Fleet) Content(stored *unstructured.Unstructured) ([]byte, error) {
	crew, err := workload.Template(f, stored)
	if err != nil {
		return nil, err
	}
	return workload.DataOf(crew)
}

// ReadContent implements workload.Kind.
func (Fleet) ReadContent(data []byte) (template map[string]any, version string, err error) {
	return workload.ReadTemplate(data)
}

// Stamps implements workload.Kind.
func (Fleet) Stamps() bool { return false }

// Object implements workload.Kind.
func (f Fleet) Object() client.Object {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(f.GroupVersionKind())
	return o
}

// ObjectList implements workload.Kind.
func (f Fleet) ObjectList() client.ObjectList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(f.GroupVersionKind().GroupVersion().WithKind("FleetList"))
	return list
}

// Secondary implements workload.Kind.
func (Fleet) Secondary() []workload.Secondary { return nil }

// Transforms implements workload.Kind.
func (Fleet) Transforms() map[client.Object]cache.TransformFunc { return nil }

// Summary implements workload.Kind.
func (f Fleet) Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	return f.Get(ctx, r, key)
}

// Get implements workload.Kind.
func (f Fleet) Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(f.GroupVersionKind())
	if err := r.Get(ctx, key, o); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	template, err := workload.Template(f, o)
	if err != nil {
		return nil, err
	}
	var fleet FleetObject
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &fleet); err != nil {
		return nil, err
	}
	w := &workload.Workload{
		GVK: f.GroupVersionKind(), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		Labels: o.GetLabels(), Annotations: o.GetAnnotations(), Deleting: o.GetDeletionTimestamp() != nil,
		Version: workload.Version(template), Unstamped: true, Replicas: fleet.Spec.Ships,
		Stopping: workload.Stopping{Paused: fleet.Spec.Anchored},
	}
	if s := &fleet.Status; s.ObservedGeneration < fleet.Generation {
		w.Rollout.Stale = true
	} else {
		w.Revision = s.Revision
		w.Rollout.Complete = s.Manned == w.Replicas && s.Ready == w.Replicas && s.Total == w.Replicas
	}
	return w, nil
}

// Pods implements workload.Kind.
func (f Fleet) Pods(ctx context.Context, r client.Reader, w *workload.Workload) ([]workload.Pod, error) {
	var list corev1.PodList
	if err := r.List(ctx, &list, client.InNamespace(w.Namespace), client.MatchingFields{workload.IndexByOwner: string(w.UID)}); err != nil {
		return nil, err
	}
	var pods []workload.Pod
	for i := range list.Items {
		if f.IsCurrent(w, &list.Items[i]) {
			pods = append(pods, workload.ReadPod(&list.Items[i]))
		}
	}
	return pods, nil
}

// PodNames implements workload.Kind.
func (Fleet) PodNames(_ context.Context, _ client.Reader, w *workload.Workload) ([]string, error) {
	return []string{w.Name + "-[0-9]+"}, nil
}

// PodLabels implements workload.Kind.
func (Fleet) PodLabels() []string { return []string{CrewLabel} }

// IsCurrent implements workload.Kind.
func (Fleet) IsCurrent(w *workload.Workload, pod metav1.Object) bool {
	return metav1.GetControllerOf(pod) != nil && metav1.GetControllerOf(pod).UID == w.UID &&
		w.Revision != "" && pod.GetLabels()[CrewLabel] == w.Revision
}

// Stopping implements workload.Kind.
func (Fleet) Stopping(stored *unstructured.Unstructured) (workload.Stopping, error) {
	anchored, _, err := unstructured.NestedBool(stored.Object, "spec", "anchored")
	return workload.Stopping{Paused: anchored}, err
}

// Pace implements workload.Kind: rollouts of Fleets cannot be held.
func (Fleet) Pace(*unstructured.Unstructured) (*workload.Pacing, error) { return nil, nil }

// PacePaths implements workload.Kind.
func (Fleet) PacePaths() []workload.Path { return nil }

// RevisionTemplate implements workload.Kind.
func (Fleet) RevisionTemplate(context.Context, client.Reader, string, *workload.OldRevision) (map[string]any, string, error) {
	return nil, "", nil
}

// Revisions implements workload.Kind.
func (Fleet) Revisions(context.Context, client.Reader, *workload.Workload) ([]workload.OldRevision, error) {
	return nil, nil
}

// Images implements workload.Kind.
func (Fleet) Images(context.Context, client.Reader, *workload.Workload) (current, previous []string, err error) {
	return nil, nil, nil
}

// OwnerOfPod implements workload.Kind.
func (f Fleet) OwnerOfPod(_ context.Context, _ client.Reader, pod metav1.Object) (workload.Owner, bool, error) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return workload.Owner{}, false, nil
	}
	owner := workload.Owner{Key: workload.KeyOf(pod.GetNamespace(), ref), UID: ref.UID}
	return owner, owner.Key.GroupKind == f.GroupVersionKind().GroupKind(), nil
}

// Halt implements workload.Control.
func (Fleet) Halt(*workload.Workload) []workload.Op {
	return []workload.Op{{Op: "test", Path: anchored}, {Op: "add", Path: anchored, Value: true}}
}

// HaltedFrom implements workload.Control.
func (Fleet) HaltedFrom(*workload.Workload) string { return "" }

// HaltPaths implements workload.Control.
func (Fleet) HaltPaths() []workload.Path { return nil }

// Resume implements workload.Control.
func (Fleet) Resume(w *workload.Workload) []workload.Op {
	if !w.Paused {
		return []workload.Op{{Op: "test", Path: anchored}}
	}
	return []workload.Op{{Op: "test", Path: anchored, Value: true}, {Op: "remove", Path: anchored}}
}

// Words implements workload.Control.
func (Fleet) Words(*workload.Workload) workload.Words {
	return workload.Words{HaltedBy: "anchored true"}
}

// Restore implements workload.Control.
func (Fleet) Restore(_ *workload.Workload, data []byte) ([]workload.Op, error) {
	crew, _, err := workload.ReadTemplate(data)
	return []workload.Op{{Op: "replace", Path: crewPath.Pointer(), Value: crew}}, err
}

// SetPace implements workload.Control.
func (Fleet) SetPace(workload.Pacing, workload.Pace) []workload.Op { return nil }
