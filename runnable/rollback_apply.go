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

package runnable

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// loadLive reads a pod and its node from the API server: neither an outdated cache nor an unreachable
// node may cause a rollback.
func (s *RollbackScanner) loadLive(ctx context.Context, in rollback.Input, pod string) (rollback.Input, error) {
	var live corev1.Pod
	err := s.Live.Get(ctx, types.NamespacedName{Namespace: in.Workload.Namespace, Name: pod}, &live)
	if client.IgnoreNotFound(err) != nil {
		return in, fmt.Errorf("get pod %s: %w", pod, err)
	}
	pods, node := make([]workload.Pod, 0, len(in.Pods)), ""
	for i := range in.Pods {
		switch {
		case in.Pods[i].Name != pod:
			pods = append(pods, in.Pods[i])
		case err == nil && live.UID == in.Pods[i].UID:
			pods = append(pods, workload.ReadPod(&live))
			node = live.Spec.NodeName
		}
	}
	in.Pods = pods
	if node == "" {
		return in, nil
	}
	unreachable, err := s.UnreachableNodes(ctx, []string{node})
	in.Pods = rollback.OnUnreachableNodes(in.Pods, unreachable)
	return in, err
}

// apply carries a plan out. If the workload has changed since the decision, apply fails with an error
// that [cluster.Settle] knows.
func (s *RollbackScanner) apply(ctx context.Context, in rollback.Input, plan rollback.Plan) error {
	change, err := cluster.CurrentRelease(in.Workload, in.Changes), s.carryOut(ctx, in.Workload, plan)
	if refused := (*cluster.RefusedError)(nil); change != nil && errors.As(err, &refused) {
		return s.noteRefused(ctx, in.Workload, change, refused.Why)
	}
	if err == nil && change != nil && plan.Rollback == nil {
		return s.NoteAccepted(ctx, change, cluster.ActRollBack)
	}
	return s.ReportDenied(ctx, in.Workload, change, err)
}

func (s *RollbackScanner) carryOut(ctx context.Context, w *workload.Workload, plan rollback.Plan) error {
	switch {
	case plan.Rollback != nil:
		if err := s.explain(ctx, w, plan.Rollback); err != nil {
			return err
		}
		err := s.rollBack(ctx, w, plan.Rollback)
		if refused := (*cluster.RefusedError)(nil); errors.As(err, &refused) && w.Annotations[v1alpha1.RollbackToAnnotation] != "" {
			return s.refuse(ctx, w, refused.Why)
		}
		return err
	case plan.Refusal != "":
		return s.refuse(ctx, w, plan.Refusal)
	default:
		return nil
	}
}

// explain adds the cause from the events of a pod, if the status of the pod does not have it.
func (s *RollbackScanner) explain(ctx context.Context, w *workload.Workload, rb *rollback.Rollback) error {
	if rb.NeedsCause == nil {
		return nil
	}
	cause, err := s.CauseOf(ctx, w.Namespace, rb.NeedsCause.UID)
	rb.Why.Message = cause
	return err
}

// noteRefused reports, once, why a rollback that no user requested cannot be made. It is tried again when the workload or its
// release changes.
func (s *RollbackScanner) noteRefused(ctx context.Context, w *workload.Workload, change *v1alpha1.ChangeWorkload, why string) error {
	updated, now := change.DeepCopy(), s.Clock.Now()
	if !rollback.NoteRefused(&updated.Status, change.Generation, now, why) {
		return nil
	}
	if err := s.UpdateStatus(ctx, updated); err != nil {
		return err
	}
	s.Event(w, change, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventRollbackRefused, Message: why}, "Rollback")
	return nil
}

// refuse removes a request that is not carried out, and reports why.
func (s *RollbackScanner) refuse(ctx context.Context, w *workload.Workload, why string) error {
	request := w.Annotations[v1alpha1.RollbackToAnnotation]
	p := cluster.PatchRevision(w)
	p.DropAnnotation(v1alpha1.RollbackToAnnotation)
	if err := s.PatchWorkload(ctx, p, cluster.ActRollBack); err != nil {
		return err
	}
	log.FromContext(ctx).Info("refused to roll a workload back", "to", request, "cause", why)
	message := fmt.Sprintf("the rollback to %s that the annotation %s asked for is refused: %s",
		wording.Brief(request), v1alpha1.RollbackToAnnotation, why)
	s.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventRollbackRefused, Message: message}, "Rollback")
	return nil
}

// rollBack sets the template of a workload back, in one write. It fails if the workload has changed
// since the decision: any change of a user comes first.
func (s *RollbackScanner) rollBack(ctx context.Context, w *workload.Workload, rb *rollback.Rollback) error {
	kind, err := s.KindOf(w)
	if err != nil {
		return err
	}
	data, err := s.contentOf(ctx, kind, w, rb)
	if err != nil {
		return err
	}
	if w, err = s.Whole(ctx, w); err != nil {
		return err
	}
	applied, err := lastApplied(kind, w, data)
	if err != nil {
		return err
	}
	p := cluster.PatchRevision(w)
	if err := p.Restore(kind, data); err != nil {
		return err
	}
	if !rb.Asked() {
		if err := s.TakeLimit(ctx, w); err != nil {
			return err
		}
	}
	p.Resume(kind)
	p.GiveBack(kind)
	if applied != "" {
		p.SetAnnotation(corev1.LastAppliedConfigAnnotation, applied)
	}
	p.SetAnnotation(v1alpha1.ChangeCauseAnnotation, rb.ChangeCause())
	p.SetQuarantine(rollback.ParseQuarantine(w.Annotations, s.Clock.Now()).With(rb.From, rb.Why))
	p.DropAnnotation(v1alpha1.RollbackToAnnotation)
	// Admission does the same; this is for when admission is down.
	p.SetLabel(v1alpha1.VersionLabel, rb.To)
	p.SetAnnotation(v1alpha1.ReleaseAnnotation, strconv.FormatInt(workload.NextRelease(w.Release()), 10))
	p.SetAnnotation(v1alpha1.ReleasedByAnnotation, v1alpha1.FieldManager)
	p.DropLabel(v1alpha1.DefenseStatusLabel)
	if w.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue {
		p.SetAnnotation(v1alpha1.OverrideStaleAnnotation, "true")
	}
	if err := s.PatchWorkload(ctx, p, cluster.ActRollBack); err != nil {
		return err
	}
	metrics.RolledBack(workload.LabelOf(w.GVK.GroupKind()), rb.Why.Cause)
	log.FromContext(ctx).Info("rolled a workload back", "from", rb.From, "to", rb.To, "cause", rb.Why.String())
	return nil
}

// lastApplied returns the new last-applied configuration of kubectl apply; empty if the workload has
// none, or its kind no pod template. The workload is as the API server has it.
func lastApplied(kind workload.Kind, w *workload.Workload, data []byte) (string, error) {
	stored := &unstructured.Unstructured{Object: w.Object}
	abandoned, err := workload.Template(kind, stored)
	if err != nil || abandoned == nil {
		return "", err
	}
	path, _ := kind.TemplatePath()
	restored, _, err := kind.ReadContent(data)
	if err != nil {
		return "", err
	}
	applied, _ := workload.LastApplied(stored.GetAnnotations(), path, restored, abandoned)
	return applied, nil
}

// contentOf reads the content that a rollback restores.
func (s *RollbackScanner) contentOf(
	ctx context.Context, kind workload.Kind, w *workload.Workload, rb *rollback.Rollback,
) (data []byte, err error) {
	var version string
	if rb.Old != nil {
		data, version, err = s.RevisionContent(ctx, kind, w, rb.Old)
	} else {
		data, version, err = s.RememberedContent(ctx, kind, w, rb.History)
	}
	switch {
	case err != nil:
		return nil, err
	case data == nil:
		return nil, apierrors.NewNotFound(appsv1.Resource("controllerrevisions"), rb.To)
	case version != rb.To:
		return nil, &cluster.RefusedError{Why: fmt.Sprintf("the template in the history for version %s has version %s", rb.To, version)}
	default:
		return data, nil
	}
}
