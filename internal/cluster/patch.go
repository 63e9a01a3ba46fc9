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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Patch is a JSON patch of a workload's labels and annotations, of the fields that halt
// it, and of its template when it is rolled back. It starts with tests, so that it
// applies to one workload at one release only. Other changes (replicas, status, a
// user's annotations) do not make it fail.
type Patch struct {
	workload *workload.Workload
	ops      []workload.Op
	// pace is the pace that admission sets with the write; nil without one.
	pace *paced
	// disowns are the fields that the operator does not own after the write.
	disowns []workload.Path
}

// paced is a pace that admission sets because a write changes the hold of a workload.
type paced struct {
	by   workload.Kind
	to   workload.Pace
	says *workload.Hold
}

// PatchRelease patches the workload while it is at the release that was read.
func PatchRelease(w *workload.Workload) *Patch {
	p := &Patch{workload: w}
	p.add("test", "/metadata/uid", string(w.UID))
	p.testPresent(w.Labels, v1alpha1.VersionLabel, labelPath(v1alpha1.VersionLabel))
	p.testPresent(w.Annotations, v1alpha1.ReleaseAnnotation, annotationPath(v1alpha1.ReleaseAnnotation))
	return p
}

// PatchRevision patches the workload while it is exactly as it was read.
func PatchRevision(w *workload.Workload) *Patch {
	p := &Patch{workload: w}
	p.add("test", "/metadata/uid", string(w.UID))
	p.add("test", "/metadata/resourceVersion", w.ResourceVersion)
	if w.Labels == nil {
		p.add("add", "/metadata/labels", map[string]string{})
	}
	if w.Annotations == nil {
		p.add("add", "/metadata/annotations", map[string]string{})
	}
	return p
}

func (p *Patch) add(op, path string, value any) {
	p.ops = append(p.ops, workload.Op{Op: op, Path: path, Value: value})
}

func (p *Patch) testPresent(read map[string]string, key, path string) {
	if v, ok := read[key]; ok {
		p.add("test", path, v)
	}
}

// SetLabel sets a label to a value, without a test.
func (p *Patch) SetLabel(key, value string) { p.add("add", labelPath(key), value) }

// SetAnnotation sets an annotation to a value, without a test.
func (p *Patch) SetAnnotation(key, value string) { p.add("add", annotationPath(key), value) }

// SetQuarantine writes the quarantine of the workload.
func (p *Patch) SetQuarantine(q rollback.Quarantine) {
	annotations := map[string]string{}
	q.Annotate(annotations)
	for _, key := range []string{v1alpha1.QuarantinedAnnotation, v1alpha1.QuarantineReasonAnnotation} {
		if value, ok := annotations[key]; ok {
			p.SetAnnotation(key, value)
		} else {
			p.DropAnnotation(key)
		}
	}
}

// DropLabel removes a label that was read and has not changed since.
func (p *Patch) DropLabel(key string) {
	if v, ok := p.workload.Labels[key]; ok {
		p.add("test", labelPath(key), v)
		p.add("remove", labelPath(key), nil)
	}
}

// DropAnnotation removes an annotation that was read and has not changed since.
func (p *Patch) DropAnnotation(key string) {
	if v, ok := p.workload.Annotations[key]; ok {
		p.add("test", annotationPath(key), v)
		p.add("remove", annotationPath(key), nil)
	}
}

// Restore replaces the content by the data of a revision of the history. Resume may follow.
func (p *Patch) Restore(by workload.Control, data []byte) error {
	ops, err := by.Restore(p.workload, data)
	if err != nil {
		return &RefusedError{Why: err.Error()}
	}
	p.ops = append(p.ops, ops...)
	return nil
}

// PatchFields gives fields of the workload to other managers: it changes and removes
// the entries that differ, if they are still as they were read. Other writes (the status,
// all along a rollout) do not make it fail. The order of entries stays.
func PatchFields(w *workload.Workload, read, changed []metav1.ManagedFieldsEntry) *Patch {
	p := &Patch{workload: w}
	p.add("test", "/metadata/uid", string(w.UID))
	var removed []workload.Op
	for i, j := 0, 0; i < len(read); i++ {
		path := fmt.Sprintf("/metadata/managedFields/%d", i)
		there := j < len(changed) && isSameEntry(&read[i], &changed[j])
		switch {
		case !there:
			// Entries are removed last to first, so that indexes stay valid.
			removed = append([]workload.Op{{Op: "test", Path: path, Value: read[i]}, {Op: "remove", Path: path}}, removed...)
		case !equality.Semantic.DeepEqual(read[i], changed[j]):
			p.add("test", path, read[i])
			p.add("replace", path, changed[j])
		}
		if there {
			j++
		}
	}
	p.ops = append(p.ops, removed...)
	return p
}

// isSameEntry reports whether two entries have the same manager; their fields may differ.
func isSameEntry(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource
}

// Halt stops a rollout because of this version. If a user stopped it meanwhile, the pause
// is the user's.
func (p *Patch) Halt(by workload.Control, version string) {
	p.ops = append(p.ops, by.Halt(p.workload)...)
	p.SetAnnotation(v1alpha1.HaltedAnnotation, version)
	if from := by.HaltedFrom(p.workload); from != "" {
		p.SetAnnotation(v1alpha1.HaltedFromAnnotation, from)
	} else {
		p.DropAnnotation(v1alpha1.HaltedFromAnnotation)
	}
}

// Resume undoes the operator's own halt, and removes its annotations. If a user resumed
// the workload already, it removes the annotations only. They stay if the halt cannot be undone.
func (p *Patch) Resume(by workload.Control) {
	if p.workload.Annotations[v1alpha1.HaltedAnnotation] == "" || p.workload.Stays != "" {
		return
	}
	p.ops = append(p.ops, by.Resume(p.workload)...)
	p.disowns = by.HaltPaths()
	p.DropHalted()
}

// DropHalted removes the annotations of the operator's halt.
func (p *Patch) DropHalted() {
	p.DropAnnotation(v1alpha1.HaltedAnnotation)
	p.DropAnnotation(v1alpha1.HaltedFromAnnotation)
}

// Hold requests a pace of the rollout. Admission sets it in the same request: if the operator
// itself wrote these fields, server-side apply by other managers would conflict.
func (p *Patch) Hold(by workload.Kind, h *workload.Hold) {
	if was, ok := p.workload.Annotations[v1alpha1.HeldAnnotation]; ok {
		p.add("test", annotationPath(v1alpha1.HeldAnnotation), was)
	} else {
		p.add("test", annotationPath(v1alpha1.HeldAnnotation), nil) // admission may have held it since
	}
	if h.Set.OnDelete && !h.Over && p.workload.Pace == h.Set {
		p.ops = append(p.ops, by.Halt(p.workload)...) // pods are evicted next, so it must not have changed
	}
	p.SetAnnotation(v1alpha1.HeldAnnotation, h.String())
	p.pace = &paced{by: by, to: h.Set, says: h}
	if h.Over {
		p.pace.to = h.Fitting(h.Kept(p.workload.Pace))
	}
}

// GiveBack restores the fields that a hold changed and no other manager changed since.
// Admission does it, as it sets a pace.
func (p *Patch) GiveBack(by workload.Kind) {
	if h := p.workload.Hold; h != nil {
		p.Hold(by, h.Ending())
		return
	}
	p.DropAnnotation(v1alpha1.HeldAnnotation)
}

// GiveBackUnseen restores them in the same write, for a workload that left the defense:
// admission does not see it. A halt has the same fields, so a workload that is held and
// halted takes two writes.
func (p *Patch) GiveBackUnseen(by workload.Kind) {
	w, h := p.workload, p.workload.Hold
	if h == nil || w.Annotations[v1alpha1.HaltedAnnotation] != "" {
		p.GiveBack(by)
		return
	}
	p.ops = append(p.ops, by.SetPace(workload.Pacing{Pace: w.Pace, Bare: w.Bare}, h.Fitting(h.Kept(w.Pace)))...)
	p.DropAnnotation(v1alpha1.HeldAnnotation)
	p.disowns = append(p.disowns, by.PacePaths()...)
}

// PatchWorkload writes a patch, unless the same was denied just now. A denial is a
// [DeniedError].
func (c *Cluster) PatchWorkload(ctx context.Context, p *Patch, a Act) error {
	return c.Try(p.workload, a, func() error { return c.write(ctx, p) })
}

func (c *Cluster) write(ctx context.Context, p *Patch) error {
	body, err := json.Marshal(p.ops)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(p.workload.GVK)
	obj.SetNamespace(p.workload.Namespace)
	obj.SetName(p.workload.Name)
	if err := c.Client.Patch(ctx, obj, client.RawPatch(types.JSONPatchType, body)); err != nil {
		return fmt.Errorf("patch %s %s/%s: %w", p.workload.Kind(), p.workload.Namespace, p.workload.Name, err)
	}
	if len(p.disowns) > 0 {
		// Otherwise server-side apply of these fields conflicts with the operator.
		if err := c.disown(ctx, p.workload, p.disowns); err != nil {
			log.FromContext(ctx).Info("the operator still owns the fields that halted a workload",
				"workload", p.workload.Name, "cause", err.Error())
		}
	}
	if p.pace == nil {
		return nil
	}
	return c.writePace(ctx, p, obj)
}

// writePace sets the pace of a workload if admission did not: it was skipped, or the
// workload has left the defense. The operator does not own the fields afterwards, as if
// admission had set them.
func (c *Cluster) writePace(ctx context.Context, p *Patch, written *unstructured.Unstructured) error {
	said := annotationPath(v1alpha1.HeldAnnotation)
	is, err := p.pace.by.Pace(written)
	if err != nil || is == nil || written.GetAnnotations()[v1alpha1.HeldAnnotation] != p.pace.says.String() ||
		!p.pace.says.Over && is.Pace == p.pace.to {
		return err
	}
	if !p.pace.says.Over && !p.pace.says.Own(is.Pace) {
		return nil // a user set it past admission: the next decision ends the hold
	}
	again := &Patch{workload: p.workload}
	again.add("test", "/metadata/uid", string(p.workload.UID))
	again.add("test", said, p.pace.says.String())
	to := p.pace.to
	if h := p.pace.says; h.Over {
		to = h.Fitting(h.Kept(is.Pace)) // the first write may have changed the pace
	}
	again.ops = append(again.ops, p.pace.by.SetPace(*is, to)...)
	if p.pace.says.Over {
		again.add("remove", said, nil)
	}
	log.FromContext(ctx).Info("setting the pace of a rollout, because admission did not",
		"workload", p.workload.Name, "is", is.Pace, "to", to)
	if err := c.write(ctx, again); err != nil {
		return err
	}
	return c.disown(ctx, p.workload, p.pace.by.PacePaths())
}

// maxDisown is the number of tries to give fields up. The workload's own controller
// writes its status at the same time, which changes the entries of field managers, too.
const maxDisown = 5

// disown takes the operator's name off the fields that a hold or a halt changes: otherwise
// server-side apply of them would always conflict.
func (c *Cluster) disown(ctx context.Context, w *workload.Workload, fields []workload.Path) (err error) {
	for range maxDisown {
		if err = c.tryDisown(ctx, w, fields); err == nil || !isFailedTest(err) {
			return err
		}
	}
	return err
}

func (c *Cluster) tryDisown(ctx context.Context, w *workload.Workload, fields []workload.Path) error {
	stored, err := c.Stored(ctx, w)
	if err != nil || stored == nil {
		return err
	}
	entries, due, err := workload.GiveUp(stored.GetManagedFields(), fields...)
	if err != nil || !due {
		return err
	}
	return c.write(ctx, PatchFields(w, stored.GetManagedFields(), entries))
}

// isFailedTest reports whether a JSON patch did not apply, because a test in it failed
// or a field to remove is gone. The API server answers 422 with this message, and
// without the causes of a validation error.
func isFailedTest(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	return s.Code == http.StatusUnprocessableEntity && (s.Details == nil || len(s.Details.Causes) == 0) &&
		strings.HasPrefix(s.Message, "the server rejected our request due to an error in our request")
}

func labelPath(key string) string { return workload.Path{"metadata", "labels", key}.Pointer() }

func annotationPath(key string) string {
	return workload.Path{"metadata", "annotations", key}.Pointer()
}
