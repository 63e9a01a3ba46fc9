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

package workload

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Kind is one kind of workload: how it is observed, and how it is changed.
type Kind interface {
	Control

	// GroupVersionKind of the workload.
	GroupVersionKind() schema.GroupVersionKind
	// Resource is what requests call workloads of this kind: the plural in lower case.
	Resource() string
	// TemplatePath is where in a workload its pod template is.
	TemplatePath() Path
	// Stamps says that the templates of this kind are labelled with their version. Where
	// they are not, a controller that looks for an earlier revision of a template finds
	// it, whether the template went through admission or not.
	Stamps() bool
	// Object returns an empty workload, as it is kept in the cache.
	Object() client.Object
	// ObjectList returns an empty list of workloads.
	ObjectList() client.ObjectList
	// Secondary are the objects by which the pods of a workload are found.
	Secondary() []Secondary
	// Transforms trim workloads and secondary objects before they enter the cache.
	Transforms() map[client.Object]cache.TransformFunc
	// Get observes a workload; nil when there is none of that name.
	Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error)
	// Summary reads it, but for its OldRevisions where those take a look at all of its
	// pods. It is for what looks again for each pod, or for each batch.
	Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error)
	// Pods observes the pods of the workload's current template.
	Pods(ctx context.Context, r client.Reader, w *Workload) ([]Pod, error)
	// PodLabels are the labels of pods that it reads; they stay in the cache.
	PodLabels() []string
	// IsCurrent says that a pod of the workload is of its current template.
	IsCurrent(w *Workload, pod metav1.Object) bool
	// Stopping reads off a workload, as the API server sent it, what keeps its pods from
	// being replaced.
	Stopping(stored *unstructured.Unstructured) (Stopping, error)
	// Pace reads off such a workload what a hold changes, and whether its rollout can
	// be held; nil where workloads of this kind cannot.
	Pace(stored *unstructured.Unstructured) (*Pacing, error)
	// PacePaths are where in a workload that is.
	PacePaths() []Path
	// RevisionTemplate reads the pod template of an earlier revision, as the
	// workload had it, with its version; nil when the revision is gone.
	RevisionTemplate(ctx context.Context, live client.Reader, namespace string, old *OldRevision) (template map[string]any, version string, err error)
	// Revisions observes the earlier revisions of the workload that are still there,
	// whether they have pods or not, the newest first.
	Revisions(ctx context.Context, r client.Reader, w *Workload) ([]OldRevision, error)
	// Images lists the container images of the workload's current template, and
	// of the one before it.
	Images(ctx context.Context, r client.Reader, w *Workload) (current, previous []string, err error)
	// OwnerOfPod finds the workload that owns a pod; ok is false when the pod
	// belongs to no workload of this kind.
	OwnerOfPod(ctx context.Context, r client.Reader, pod metav1.Object) (owner Owner, ok bool, err error)
}

// Control changes workloads of one kind: operations of a JSON patch, with tests
// that let it apply only to what was observed. Whose release it is, the patch they
// become part of tests.
type Control interface {
	// Halt stops the rollout of a workload that runs: where a user stopped it
	// meanwhile, it does not apply.
	Halt(w *Workload) []Op
	// HaltedFrom is what v1alpha1.HaltedFromAnnotation keeps of what Halt changes; empty
	// for what the API server sets by default.
	HaltedFrom(w *Workload) string
	// HaltPaths are the fields that Halt and Resume both set, so that they are the
	// operator's by now.
	HaltPaths() []Path
	// Resume lets go on what Halt stopped. Where a user let it go on already, there
	// is nothing to change. Of the workload it reads what stops it and
	// v1alpha1.HaltedFromAnnotation.
	Resume(w *Workload) []Op
	// Words are how people speak of that, and what they do in place of it. Of the
	// workload they read its name, what stops it and v1alpha1.HaltedFromAnnotation.
	Words(w *Workload) Words
	// Restore sets the pod template back.
	Restore(template map[string]any) []Op
	// SetPace changes what a hold changes, from what was observed.
	SetPace(from Pacing, to Pace) []Op
}

// Evicter is a Kind whose controller may wait for ever for a pod of a version that was
// left.
type Evicter interface {
	// Places observes a workload and all its pods by their places; nil when there is none
	// of that name. Workload and pods are read from live, unless that is nil.
	Places(ctx context.Context, cached, live client.Reader, key types.NamespacedName) (*Workload, *Places, error)
}

// Template reads the pod template off a workload of a kind, as the API server sent it.
func Template(k Kind, stored *unstructured.Unstructured) (map[string]any, error) {
	path := k.TemplatePath()
	template, ok, err := unstructured.NestedMap(stored.Object, path...)
	if err != nil || !ok {
		return nil, fmt.Errorf("%s %s/%s has no %s: %w",
			strings.ToLower(k.GroupVersionKind().Kind), stored.GetNamespace(), stored.GetName(), path, err)
	}
	return template, nil
}

// Op is one operation of a JSON patch.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Secondary is a kind of object between a workload and its pods, such as a
// Deployment's ReplicaSet.
type Secondary struct {
	// Object is an empty one, as it is kept in the cache.
	Object client.Object
	// OwnerOf finds the workload that owns one.
	OwnerOf func(metav1.Object) (owner Owner, ok bool)
}

// Owner is the workload that owns an object.
type Owner struct {
	Key Key
	UID types.UID
}

var daemonSetKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

var statefulSetKind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// templated is what all kinds of apps/v1 have in common: their pod template is at spec.template.
type templated struct{}

// TemplatePath implements Kind.
func (templated) TemplatePath() Path { return templatePath }

// Restore implements Control.
func (templated) Restore(template map[string]any) []Op {
	return []Op{{Op: "replace", Path: templatePath.Pointer(), Value: template}}
}
