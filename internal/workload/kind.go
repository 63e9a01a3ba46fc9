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
	"encoding/json"
	"errors"
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

// Kind reads and changes one kind of workload.
type Kind interface {
	Control

	// GroupVersionKind returns the kind of the workload.
	GroupVersionKind() schema.GroupVersionKind
	// Resource returns the plural in lower case, as requests name the kind.
	Resource() string
	// ContentPaths returns the paths of the parts of a workload whose change is a release.
	ContentPaths() []Path
	// TemplatePath returns the path of the pod template in a workload; ok is false if the kind has none,
	// or several.
	TemplatePath() (path Path, ok bool)
	// VersionOf returns the version of a workload, as the API server sent it.
	VersionOf(stored *unstructured.Unstructured) (string, error)
	// Content returns the content of a workload, as the API server sent it, for the operator's history:
	// the data of a ControllerRevision.
	Content(stored *unstructured.Unstructured) ([]byte, error)
	// ReadContent returns the pod template in the data of a ControllerRevision, and the version of the
	// data. The template is nil if the kind has none.
	ReadContent(data []byte) (template map[string]any, version string, err error)
	// Stamps reports whether admission labels the templates of this kind with their version. A kind is
	// not stamped if its controller looks for an earlier revision of the template: it finds the
	// revision even if the template did not pass admission.
	Stamps() bool
	// Object returns an empty workload of the type in the cache.
	Object() client.Object
	// ObjectList returns an empty list of workloads of the type in the cache.
	ObjectList() client.ObjectList
	// Secondary returns the kinds of objects between a workload and its pods.
	Secondary() []Secondary
	// Transforms trim workloads and secondary objects before they enter the cache.
	Transforms() map[client.Object]cache.TransformFunc
	// Get reads a workload; nil if it does not exist.
	Get(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error)
	// Summary reads a workload without its OldRevisions if they require a list of all its pods. It is
	// for code that reads a workload for each pod or each batch.
	Summary(ctx context.Context, r client.Reader, key types.NamespacedName) (*Workload, error)
	// Pods reads the pods of the workload's current template.
	Pods(ctx context.Context, r client.Reader, w *Workload) ([]Pod, error)
	// PodNames returns patterns of the names of all pods that the workload has or had, except of revisions that are gone.
	PodNames(ctx context.Context, r client.Reader, w *Workload) ([]string, error)
	// PodLabels returns the labels of pods that the kind reads; the cache keeps them.
	PodLabels() []string
	// IsCurrent reports whether a pod has the workload's current template.
	IsCurrent(w *Workload, pod metav1.Object) bool
	// Stopping reads, from a workload as the API server sent it, the fields that keep pods from being
	// replaced.
	Stopping(stored *unstructured.Unstructured) (Stopping, error)
	// Pace reads, from a workload as the API server sent it, the fields that a hold changes; nil if
	// rollouts of this kind cannot be held.
	Pace(stored *unstructured.Unstructured) (*Pacing, error)
	// PacePaths returns the paths of the fields that a hold changes.
	PacePaths() []Path
	// RevisionTemplate reads the pod template of an earlier revision, as the workload had it, and its
	// version; nil if the revision no longer exists.
	RevisionTemplate(
		ctx context.Context, live client.Reader, namespace string, old *OldRevision,
	) (template map[string]any, version string, err error)
	// Revisions reads the earlier revisions of the workload, with or without pods, the newest first.
	Revisions(ctx context.Context, r client.Reader, w *Workload) ([]OldRevision, error)
	// Images returns the container images of the workload's current template and of the previous
	// template.
	Images(ctx context.Context, r client.Reader, w *Workload) (current, previous []string, err error)
	// OwnerOfPod returns the workload that owns a pod; ok is false if it is not of this kind.
	OwnerOfPod(ctx context.Context, r client.Reader, pod metav1.Object) (owner Owner, ok bool, err error)
}

// Control changes workloads of one kind. Its methods return operations of a JSON patch, with tests
// that let the patch apply only to the state that was read. The complete patch also tests the
// release of the workload.
type Control interface {
	// Halt stops the rollout of a running workload. The patch does not apply if a user stopped the
	// rollout meanwhile.
	Halt(w *Workload) []Op
	// HaltedFrom returns the value of v1alpha1.HaltedFromAnnotation, the user's value of the field
	// that Halt changes; empty for the default of the API server.
	HaltedFrom(w *Workload) string
	// HaltPaths returns the fields that both Halt and Resume set; the operator is their field manager
	// after that.
	HaltPaths() []Path
	// Resume takes back Halt; it changes nothing if a user resumed the rollout. It reads the fields
	// that stop the workload, and v1alpha1.HaltedFromAnnotation.
	Resume(w *Workload) []Op
	// Words returns the words and commands of messages about a halt. It reads the name of the
	// workload, the fields that stop it, and v1alpha1.HaltedFromAnnotation.
	Words(w *Workload) Words
	// Restore replaces the content by the data of a ControllerRevision. After that, w.Object has the new
	// content, so that Resume can follow in the same patch.
	Restore(w *Workload, data []byte) ([]Op, error)
	// SetPace changes the fields that a hold changes, from the values that were read.
	SetPace(from Pacing, to Pace) []Op
}

// Evicter is a Kind whose controller may wait forever for a pod of an abandoned version.
type Evicter interface {
	// Places reads a workload and all its pods by their places; nil if the workload does not exist.
	// Workload and pods are read from live, unless live is nil.
	Places(ctx context.Context, cached, live client.Reader, key types.NamespacedName) (*Workload, *Places, error)
}

// NodePods is a Kind whose held rollouts the operator carries out: it evicts the pods of a wave.
type NodePods interface {
	// NodePods reads all pods of a workload. If live is not nil, it reads them and the status of w from there.
	NodePods(ctx context.Context, cached, live client.Reader, w *Workload) ([]Place, error)
}

// Template reads the pod template of a workload, as the API server sent it; nil if the kind has none.
func Template(k Kind, stored *unstructured.Unstructured) (map[string]any, error) {
	path, ok := k.TemplatePath()
	if !ok {
		return nil, nil
	}
	return templateAt(stored, path)
}

func templateAt(stored *unstructured.Unstructured, path Path) (map[string]any, error) {
	template, ok, err := unstructured.NestedMap(stored.Object, path...)
	if err == nil && !ok {
		err = errors.New("it is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s has no %s: %w", strings.ToLower(stored.GetKind()), stored.GetNamespace(), stored.GetName(), path, err)
	}
	return template, nil
}

// Op is one operation of a JSON patch.
type Op struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// MarshalJSON implements [json.Marshaler]. A test of a missing member has the value null: RFC 6902 requires a value, and the API
// server of Kubernetes 1.33 panics without it.
func (o Op) MarshalJSON() ([]byte, error) {
	type plain Op
	if o.Op != "test" || o.Value != nil {
		return json.Marshal(plain(o))
	}
	return json.Marshal(map[string]any{"op": o.Op, "path": o.Path, "value": nil})
}

// Secondary is a kind of object between a workload and its pods, such as a
// Deployment's ReplicaSet.
type Secondary struct {
	// Object is an empty object of the type in the cache.
	Object client.Object
	// OwnerOf returns the workload that owns an object of this kind.
	OwnerOf func(metav1.Object) (owner Owner, ok bool)
}

// Owner is the workload that owns an object.
type Owner struct {
	Key Key
	UID types.UID
}

var daemonSetKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

var statefulSetKind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")
