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

// Patch is a JSON patch of a workload's labels and annotations, of what halts it,
// and of its template when it is rolled back. It starts with tests of the
// facts it was decided on, so that it applies to that workload, that release and
// nothing else, while changes of anything it does not touch (replicas, status, a
// user's annotations) do not get in its way.
type Patch struct {
	workload *workload.Workload
	ops      []workload.Op
	// pace is what admission is to make of the write; nil where it has nothing to do.
	pace *paced
	// disowns are fields that are not to be the operator's after the write.
	disowns []workload.Path
}

// paced is a pace that a write leads to where admission sees it, by what it says of a
// hold.
type paced struct {
	by   workload.Kind
	to   workload.Pace
	says *workload.Hold
}

// PatchRelease patches the workload while it is at the release it was observed
// at.
func PatchRelease(w *workload.Workload) *Patch {
	p := &Patch{workload: w}
	p.add("test", "/metadata/uid", string(w.UID))
	p.testPresent(w.Labels, v1alpha1.VersionLabel, labelPath(v1alpha1.VersionLabel))
	p.testPresent(w.Annotations, v1alpha1.ReleaseAnnotation, annotationPath(v1alpha1.ReleaseAnnotation))
	return p
}

// PatchRevision patches the workload while it is exactly as it was observed.
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

func (p *Patch) testPresent(observed map[string]string, key, path string) {
	if v, ok := observed[key]; ok {
		p.add("test", path, v)
	}
}

// SetLabel sets a label, whatever it was.
func (p *Patch) SetLabel(key, value string) { p.add("add", labelPath(key), value) }

// SetAnnotation sets an annotation, whatever it was.
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

// DropLabel removes a label that was observed, and is as it was observed.
func (p *Patch) DropLabel(key string) {
	if v, ok := p.workload.Labels[key]; ok {
		p.add("test", labelPath(key), v)
		p.add("remove", labelPath(key), nil)
	}
}

// DropAnnotation removes an annotation that was observed, and is as it was
// observed.
func (p *Patch) DropAnnotation(key string) {
	if v, ok := p.workload.Annotations[key]; ok {
		p.add("test", annotationPath(key), v)
		p.add("remove", annotationPath(key), nil)
	}
}

// Restore sets the pod template back, as it is done with workloads of this kind.
func (p *Patch) Restore(by workload.Control, template map[string]any) {
	p.ops = append(p.ops, by.Restore(template)...)
}

// PatchFields gives fields of the workload to other managers: it changes and removes
// the entries that differ, while those are as they were read anew. What others write
// meanwhile (the status, all along a rollout) does not get in its way. The order of
// entries stays.
func PatchFields(w *workload.Workload, read, changed []metav1.ManagedFieldsEntry) *Patch {
	p := &Patch{workload: w}
	p.add("test", "/metadata/uid", string(w.UID))
	var removed []workload.Op
	for i, j := 0, 0; i < len(read); i++ {
		path := fmt.Sprintf("/metadata/managedFields/%d", i)
		there := j < len(changed) && isSameEntry(&read[i], &changed[j])
		switch {
		case !there:
			// Removed last to first, so that none moves before its turn.
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

// isSameEntry says that two entries are of the same manager, whatever fields it has.
func isSameEntry(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource
}

// Halt stops the rollout of a workload that runs, because of this version: where a
// user stopped it meanwhile, that is the user's.
func (p *Patch) Halt(by workload.Control, version string) {
	p.ops = append(p.ops, by.Halt(p.workload)...)
	p.SetAnnotation(v1alpha1.HaltedAnnotation, version)
	if from := by.HaltedFrom(p.workload); from != "" {
		p.SetAnnotation(v1alpha1.HaltedFromAnnotation, from)
	} else {
		p.DropAnnotation(v1alpha1.HaltedFromAnnotation)
	}
}

// Resume takes the operator's own halt back, with what says whose it is. Where
// somebody resumed already, only that goes.
func (p *Patch) Resume(by workload.Control) {
	if p.workload.Annotations[v1alpha1.HaltedAnnotation] == "" {
		return
	}
	p.ops = append(p.ops, by.Resume(p.workload)...)
	p.disowns = by.HaltPaths()
	p.DropHalted()
}

// DropHalted takes away what says that the pause is the operator's.
func (p *Patch) DropHalted() {
	p.DropAnnotation(v1alpha1.HaltedAnnotation)
	p.DropAnnotation(v1alpha1.HaltedFromAnnotation)
}

// Hold says what the pace of a rollout is to be. Admission sets it, in the same request:
// what the operator itself would write of these fields no other manager could apply
// server-side any more.
func (p *Patch) Hold(by workload.Kind, h *workload.Hold) {
	if was, ok := p.workload.Annotations[v1alpha1.HeldAnnotation]; ok {
		p.add("test", annotationPath(v1alpha1.HeldAnnotation), was)
	} else {
		p.add("test", annotationPath(v1alpha1.HeldAnnotation), nil) // admission may have held it since
	}
	p.SetAnnotation(v1alpha1.HeldAnnotation, h.String())
	p.pace = &paced{by: by, to: h.Set, says: h}
	if h.Over {
		p.pace.to = h.Fitting(h.Kept(p.workload.Pace))
	}
}

// GiveBack gives back what a hold changed of the workload, and nobody else changed since.
// Admission does it as it sets a pace.
func (p *Patch) GiveBack(by workload.Kind) {
	if h := p.workload.Hold; h != nil {
		p.Hold(by, h.Ending())
		return
	}
	p.DropAnnotation(v1alpha1.HeldAnnotation)
}

// GiveBackUnseen does so in the same write, of a workload that left the defense: no admission
// sees that. A halt has the same fields, so what is held and halted takes two writes.
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

// PatchWorkload writes a patch, unless the same was denied just now. One that is
// denied is a [DeniedError].
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
		// Else whoever applies them server-side conflicts with the operator, which says so.
		if err := c.disown(ctx, p.workload, p.disowns); err != nil {
			log.FromContext(ctx).Info("the fields that a workload was halted by stay the operator's", "workload", p.workload.Name, "cause", err.Error())
		}
	}
	if p.pace == nil {
		return nil
	}
	return c.writePace(ctx, p, obj)
}

// writePace sets the pace of a workload where admission did not: it was skipped, or the
// workload has left the defense. The fields are nobody's after that, as they are where
// admission did.
func (c *Cluster) writePace(ctx context.Context, p *Patch, written *unstructured.Unstructured) error {
	said := annotationPath(v1alpha1.HeldAnnotation)
	is, err := p.pace.by.Pace(written)
	if err != nil || is == nil || written.GetAnnotations()[v1alpha1.HeldAnnotation] != p.pace.says.String() || !p.pace.says.Over && is.Pace == p.pace.to {
		return err
	}
	if !p.pace.says.Over && !p.pace.says.Own(is.Pace) {
		return nil // somebody set it past admission: that ends the hold, with the next decision
	}
	again := &Patch{workload: p.workload}
	again.add("test", "/metadata/uid", string(p.workload.UID))
	again.add("test", said, p.pace.says.String())
	to := p.pace.to
	if h := p.pace.says; h.Over {
		to = h.Fitting(h.Kept(is.Pace)) // this write may have changed it itself
	}
	again.ops = append(again.ops, p.pace.by.SetPace(*is, to)...)
	if p.pace.says.Over {
		again.add("remove", said, nil)
	}
	log.FromContext(ctx).Info("set the pace of a rollout, which admission did not see to", "workload", p.workload.Name, "is", is.Pace, "to", to)
	if err := c.write(ctx, again); err != nil {
		return err
	}
	return c.disown(ctx, p.workload, p.pace.by.PacePaths())
}

// maxDisown is how often it is tried to give fields up. The workload's own controller
// writes its status just then, which the entries of field managers tell of, too.
const maxDisown = 5

// disown takes the operator's name off the fields that a hold or a halt changes: whoever
// applies them server-side would conflict with it for ever.
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

// isFailedTest says that a JSON patch did not apply, because a test in it failed
// or what it removes is gone. The API server answers 422 then with this message,
// and without the causes a validation error has.
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
