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
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// This file reads the revisions of StatefulSets, DaemonSets and declared kinds, which their controllers
// keep in ControllerRevisions. The ControllerRevisions of the operator's history do not count.

// IndexByRevised indexes ControllerRevisions by the UID of the workload whose controller created
// them.
const IndexByRevised = "revised-uid"

// RevisedBy returns the keys of an object in IndexByRevised.
func RevisedBy(o client.Object) []string {
	if ref := revised(o); ref != nil {
		return []string{string(ref.UID)}
	}
	return nil
}

// revised returns the object whose controller created a ControllerRevision; nil for the operator's
// history. Its kind may be declared later, when the revision is in the cache already.
func revised(o metav1.Object) *metav1.OwnerReference {
	if Remembers(o) != "" {
		return nil
	}
	return metav1.GetControllerOf(o)
}

// isNative reports whether the object has a kind whose revisions are read without expressions.
func isNative(ref *metav1.OwnerReference) bool {
	gk := KeyOf("", ref).GroupKind
	return gk == statefulSetKind.GroupKind() || gk == daemonSetKind.GroupKind()
}

// revisions returns the Secondary of ControllerRevisions of workloads of a kind.
func revisions(of schema.GroupKind) Secondary {
	return Secondary{Object: &appsv1.ControllerRevision{}, OwnerOf: func(o metav1.Object) (Owner, bool) {
		ref := revised(o)
		if ref == nil {
			return Owner{}, false
		}
		owner := Owner{Key: KeyOf(o.GetNamespace(), ref), UID: ref.UID}
		return owner, owner.Key.GroupKind == of
	}}
}

// trimmedContent is the data of a ControllerRevision in the cache. No workload has a field of this
// name.
type trimmedContent struct {
	Trimmed *content `json:"altershield,omitempty"`
}

// content is the known content of the pod template of a revision.
type content struct {
	Version string   `json:"version"`
	Images  []string `json:"images,omitempty"`
}

// TrimRevision drops the template from a ControllerRevision on its way into the cache: it is read
// from the API server when needed. Version and images stay for revisions of StatefulSets and
// DaemonSets, and the hash of the declaration in the history of declared kinds.
func TrimRevision(obj any) (any, error) {
	r, ok := obj.(*appsv1.ControllerRevision)
	if !ok {
		return obj, nil
	}
	data := []byte(nil)
	of := r.Labels[v1alpha1.HistoryOfLabel]
	labels := []string{v1alpha1.VersionLabel, v1alpha1.HistoryOfLabel, v1alpha1.ProvenLabel}
	ref := revised(r)
	if ref != nil && isNative(ref) {
		var err error
		// A revision that cannot be read does not hide the others.
		if data, err = json.Marshal(trimmedContent{Trimmed: contentOf(r)}); err != nil {
			return nil, fmt.Errorf("trim controllerrevision %s/%s: %w", r.Namespace, r.Name, err)
		}
		labels = []string{appsv1.ControllerRevisionHashLabelKey}
	} else if ref != nil {
		labels = slices.Collect(maps.Keys(r.Labels)) // for expressions
	} else if hash := contentHashOf(r.Data.Raw); hash != "" {
		data = fmt.Appendf(nil, `{"contentHash":%q}`, short(hash, maxName))
	}
	var owners []metav1.OwnerReference
	for i := range r.OwnerReferences {
		if ref := r.OwnerReferences[i]; len(owners) < maxOwners && (ptr.Deref(ref.Controller, false) || of != "" && string(ref.UID) == of) {
			owners = append(owners, shortReference(ref))
		}
	}
	trimMeta(r)
	r.OwnerReferences, r.Labels = owners, only(r.Labels, labels)
	r.Data.Raw, r.Data.Object = data, nil
	return obj, nil
}

// contentOf reads the known content of a revision's template, trimmed or as the API server sent it;
// nil if it cannot be read.
func contentOf(r *appsv1.ControllerRevision) *content {
	var trimmed trimmedContent
	if json.Unmarshal(r.Data.Raw, &trimmed) == nil && trimmed.Trimmed != nil {
		// Users who may create revisions may write this, too.
		return &content{Version: short(trimmed.Trimmed.Version, maxName), Images: shortImages(trimmed.Trimmed.Images)}
	}
	template, version, err := TemplateOf(r)
	if err != nil {
		return nil
	}
	return &content{Version: version, Images: Images(template)}
}

// revision is a revision of a workload, created by its controller.
type revision struct {
	*appsv1.ControllerRevision
	// mark is the value of the label controller-revision-hash of its pods.
	mark string
	// version and images are empty if its template cannot be read.
	version string
	images  []string
}

// revisionsOf returns the revisions of a workload, the newest first. mark returns the label of the
// pods of a revision.
func revisionsOf(ctx context.Context, r client.Reader, w *Workload, mark func(*appsv1.ControllerRevision) string) ([]revision, error) {
	var list appsv1.ControllerRevisionList
	if err := r.List(ctx, &list, client.InNamespace(w.Namespace), client.MatchingFields{IndexByRevised: string(w.UID)},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list controllerrevisions of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	all := make([]revision, 0, len(list.Items))
	for i := range list.Items {
		one := &list.Items[i]
		if one.DeletionTimestamp != nil {
			continue
		}
		rev := revision{ControllerRevision: one, mark: mark(one)}
		if c := contentOf(one); c != nil {
			rev.version, rev.images = c.Version, c.Images
		}
		all = append(all, rev)
	}
	slices.SortFunc(all, func(a, b revision) int {
		return cmp.Or(cmp.Compare(b.Revision, a.Revision), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// NewestRevision returns the newest ControllerRevision that the controller of a workload created; nil
// for none.
func NewestRevision(ctx context.Context, r client.Reader, w *Workload) (*appsv1.ControllerRevision, error) {
	all, err := revisionsOf(ctx, r, w, markOfStatefulSet)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0].ControllerRevision, nil
}

// readRevision sets the current revision of a workload; nil if it is not known.
func readRevision(w *Workload, current *revision) {
	if current != nil {
		w.Revision, w.RevisionNumber, w.RevisionCreated = current.mark, current.ControllerRevision.Revision, current.CreationTimestamp.Time
	}
}

// readOld sets the earlier revisions that have pods, by the labels of the pods.
func readOld(w *Workload, pods []corev1.Pod, all []revision) {
	byMark := map[string]*OldRevision{}
	for i := range pods {
		pod := &pods[i]
		mark := pod.Labels[appsv1.ControllerRevisionHashLabelKey]
		if pod.DeletionTimestamp != nil || mark == w.Revision || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			continue
		}
		old := byMark[mark]
		if old == nil {
			old = oldOf(all, mark)
			byMark[mark] = old
		}
		old.Replicas++
		switch {
		case isReady(pod):
			old.Ready++
		case isLost(pod):
			old.Lost++
		}
	}
	for _, old := range byMark {
		w.OldRevisions = append(w.OldRevisions, *old)
	}
	slices.SortFunc(w.OldRevisions, func(a, b OldRevision) int {
		return cmp.Or(cmp.Compare(b.Number, a.Number), cmp.Compare(a.Name, b.Name))
	})
}

// lacks sets how many pods of a workload are missing.
func lacks(w *Workload, count int32) {
	if count > 0 {
		w.Lacking = &Lacking{Count: count, Since: w.RevisionCreated}
	}
}

// readPods reads the pods of a workload, if they are needed. If the workload may have pods of
// several revisions (mixed), it sets the earlier revisions; if pods are missing, it sets since when
// none was created. It returns the pods.
func readPods(ctx context.Context, r client.Reader, w *Workload, all []revision, mixed bool) ([]corev1.Pod, error) {
	if !mixed && w.Lacking == nil {
		return nil, nil
	}
	pods, err := podsOwned(ctx, r, w)
	if err != nil {
		return nil, err
	}
	if mixed {
		readOld(w, pods, all)
	}
	for i := range pods {
		if made := pods[i].CreationTimestamp.Time; w.Lacking != nil && made.After(w.Lacking.Since) {
			w.Lacking.Since = made
		}
	}
	return pods, nil
}

// oldOf returns the revision of pods with this mark. Its version is not known if it no longer
// exists or is not cached.
func oldOf(all []revision, mark string) *OldRevision {
	for i := range all {
		if all[i].mark == mark {
			old := all[i].old()
			return &old
		}
	}
	return &OldRevision{Name: mark, Revision: mark, Number: -1}
}

func (r *revision) old() OldRevision {
	return OldRevision{
		Name: r.Name, UID: r.UID, Version: r.version, Revision: r.mark, Number: r.ControllerRevision.Revision, Created: r.CreationTimestamp.Time,
	}
}

func isReady(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func isLost(pod *corev1.Pod) bool {
	p := ReadPod(pod)
	return p.Lost
}

// podsOwned returns the pods, of all revisions, of a workload that owns its pods itself. They are
// read-only.
func podsOwned(ctx context.Context, r client.Reader, w *Workload) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.List(ctx, &list, client.InNamespace(w.Namespace), client.MatchingFields{IndexByOwner: string(w.UID)},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list pods of %s %s/%s: %w", w.Kind(), w.Namespace, w.Name, err)
	}
	return list.Items, nil
}

// podsOfRevision returns the pods of the current revision.
func podsOfRevision(ctx context.Context, r client.Reader, w *Workload) ([]Pod, error) {
	if w.Revision == "" {
		return nil, nil
	}
	all, err := podsOwned(ctx, r, w)
	if err != nil {
		return nil, err
	}
	var pods []Pod
	for i := range all {
		if isOfRevision(w, &all[i]) {
			pods = append(pods, ReadPod(&all[i]))
		}
	}
	return pods, nil
}

// revisioned has the methods that StatefulSets and DaemonSets share. They own their pods
// themselves.
type revisioned struct{ templated }

// Stamps implements Kind.
func (revisioned) Stamps() bool { return false }

// IsCurrent implements Kind.
func (revisioned) IsCurrent(w *Workload, pod metav1.Object) bool { return isOfRevision(w, pod) }

func isOfRevision(w *Workload, pod metav1.Object) bool {
	ref := metav1.GetControllerOf(pod)
	return ref != nil && ref.UID == w.UID && w.Revision != "" && pod.GetLabels()[appsv1.ControllerRevisionHashLabelKey] == w.Revision
}

// ownerOfPod returns the workload of a kind that owns a pod directly.
func ownerOfPod(kind schema.GroupVersionKind, pod metav1.Object) (Owner, bool) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != kind.Kind || ref.APIVersion != kind.GroupVersion().String() {
		return Owner{}, false
	}
	return Owner{Key: KeyOf(pod.GetNamespace(), ref), UID: ref.UID}, true
}

// RevisionTemplate implements Kind.
func (revisioned) RevisionTemplate(
	ctx context.Context, live client.Reader, namespace string, old *OldRevision,
) (template map[string]any, version string, err error) {
	var r appsv1.ControllerRevision
	if err := live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: old.Name}, &r); err != nil {
		return nil, "", client.IgnoreNotFound(err)
	}
	if r.UID != old.UID {
		return nil, "", nil
	}
	return TemplateOf(&r)
}

// replaceField replaces a field that the API server always sets, if it still has the value that was
// read.
func replaceField(path Path, from, to any) []Op {
	return []Op{{Op: "test", Path: path.Pointer(), Value: from}, {Op: "replace", Path: path.Pointer(), Value: to}}
}

// nativeRevisions returns the earlier revisions of a workload.
func nativeRevisions(
	ctx context.Context, r client.Reader, kind Kind, w *Workload, mark func(*appsv1.ControllerRevision) string,
) ([]OldRevision, error) {
	earlier, _, err := readEarlier(ctx, r, kind, w, mark)
	var others []OldRevision
	for i := range earlier {
		others = append(others, earlier[i].old())
	}
	return others, err
}

// nativeImages returns the images of a workload's template, and of the previous template.
func nativeImages(
	ctx context.Context, r client.Reader, kind Kind, w *Workload, mark func(*appsv1.ControllerRevision) string,
) (current, previous []string, err error) {
	earlier, obj, err := readEarlier(ctx, r, kind, w, mark)
	if err != nil || obj == nil {
		return nil, nil, err
	}
	if len(earlier) > 0 {
		previous = earlier[0].images
	}
	return imagesOf(obj), previous, nil
}

// readEarlier returns the earlier revisions of a workload, the newest first, and the workload
// itself; nothing if the workload no longer exists. A revision that is older than the workload was
// orphaned by another workload.
func readEarlier(
	ctx context.Context, r client.Reader, kind Kind, w *Workload, mark func(*appsv1.ControllerRevision) string,
) ([]revision, *unstructured.Unstructured, error) {
	obj, err := getAgain(ctx, r, kind, w)
	if err != nil || obj == nil {
		return nil, nil, err
	}
	version, _, err := versionAndHash(obj, Version)
	if err != nil {
		return nil, nil, err
	}
	all, err := revisionsOf(ctx, r, w, mark)
	created := obj.GetCreationTimestamp()
	return slices.DeleteFunc(all, func(r revision) bool {
		return r.mark == w.Revision || r.version == version || r.version == "" || r.CreationTimestamp.Before(&created)
	}), obj, err
}

// indexOf returns the place of a pod in a StatefulSet, by its name; -1 if it has none. Kubernetes
// compares the place, not the ordinal, with the partition.
func indexOf(pod string, w *Workload) int32 {
	ordinal, ok := strings.CutPrefix(pod, w.Name+"-")
	n, err := strconv.ParseInt(ordinal, 10, 32)
	if !ok || err != nil || n < int64(w.FirstOrdinal) {
		return -1
	}
	return int32(n) - w.FirstOrdinal
}
