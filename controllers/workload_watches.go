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
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// heldWorkloads maps a setting to the workloads for which it is in force, if they are blocked,
// halted or held, or their pods may have to be evicted.
func (r *WorkloadReconciler) heldWorkloads(ctx context.Context, setting client.Object) []workload.Key {
	return r.Workloads(ctx, func(w client.Object) bool {
		_, suspended := w.GetLabels()[v1alpha1.SuspendLabel]
		annotations := w.GetAnnotations()
		return suspended || annotations[v1alpha1.HaltedAnnotation] != "" || annotations[v1alpha1.HeldAnnotation] != "" || mayNeedEviction(w)
	}, r.WhereInForce(setting)...)
}

// recordedWorkloads maps the setting blocking to the workloads that have a record.
func (r *WorkloadReconciler) recordedWorkloads(ctx context.Context, setting client.Object) []workload.Key {
	return r.Workloads(ctx, func(w client.Object) bool { return w.GetLabels()[v1alpha1.VersionLabel] != "" }, r.WhereInForce(setting)...)
}

// installed lets the operator's setting blocking through when the noted start of this installation
// changes.
func (r *WorkloadReconciler) installed() predicate.Predicate {
	since := func(setting *v1alpha1.OpsConfigInfo) time.Time {
		if setting.Namespace != r.Operator || setting.Name != settings.NameBlocking {
			return time.Time{}
		}
		return defense.InstalledSince(setting)
	}
	changed := func(before, after *v1alpha1.OpsConfigInfo) bool { return !since(after).Equal(since(before)) }
	return created(updates(changed), func(o client.Object) bool {
		setting, ok := o.(*v1alpha1.OpsConfigInfo)
		return ok && !since(setting).IsZero()
	})
}

// workloadsOf maps a namespace whose labels changed to its workloads. A mistyped label of its
// enrolment is logged and counted.
func (r *WorkloadReconciler) workloadsOf(ctx context.Context, ns client.Object) []workload.Key {
	mistyped := ""
	if ns.GetDeletionTimestamp() == nil && ns.GetName() != r.Operator {
		mistyped = admission.MistypedEnrolment(ns.GetLabels())
	}
	before, was := r.mistyped.Load(ns.GetName())
	switch {
	case mistyped != "" && before != mistyped:
		log.FromContext(ctx).Info("a label of a namespace has no effect", "namespace", ns.GetName(), "label", mistyped)
		if !was {
			metrics.MistypedNamespaces(1)
		}
		r.mistyped.Store(ns.GetName(), mistyped)
	case mistyped == "" && was:
		metrics.MistypedNamespaces(-1)
		r.mistyped.Delete(ns.GetName())
	}
	return r.WorkloadsOf(ctx, ns)
}

// reportDeleted reports that a workload was deleted while its releases were denied, and that a
// workload of this name was created again.
func (r *WorkloadReconciler) reportDeleted(ctx context.Context, key workload.Key, now *workload.Workload) error {
	in := defense.DeletionInput{Now: now}
	if last, ok := r.blocked.Load(key); ok {
		in.Denied = last.(*defense.DeniedWorkload) //nolint:errcheck // the map holds nothing else
		ns, err := r.Namespace(ctx, key.Namespace)
		if err != nil {
			return err
		}
		in.NamespaceEnding = ns.Ending()
	}
	if last, ok := r.deleted.Get(key); ok {
		in.Deleted = last.(*defense.DeniedWorkload) //nolint:errcheck // the cache holds nothing else
	}
	plan := defense.DecideDeletion(in)
	if plan.ForgetDenied {
		r.keepDenied(key, nil)
	}
	if plan.Deleted != nil {
		r.deleted.Add(key, in.Denied, deletedFor)
		metrics.LeftWhileBlocked(workload.LabelOf(in.Denied.Workload.GVK.GroupKind()), metrics.LeftByDeletion)
		log.FromContext(ctx).Info("a user deleted a workload while its releases were denied",
			"workload", key, "while", in.Denied.By.String())
		r.Event(&in.Denied.Workload, nil, *plan.Deleted, "Delete")
	}
	if plan.ForgetDeleted {
		r.deleted.Remove(key)
	}
	if plan.CreatedAgain != nil {
		log.FromContext(ctx).Info("a user created a workload again, which was deleted while its releases were denied",
			"workload", key, "user", now.ReleasedBy())
		r.Event(now, nil, *plan.CreatedAgain, "Create")
	}
	return nil
}

// rememberDenied remembers a workload while its releases are denied.
func (r *WorkloadReconciler) rememberDenied(ns cluster.Namespace, key workload.Key, w *workload.Workload) {
	by := defense.DeniedBy(w.Labels, w.Annotations, r.Clock.Now())
	if !ns.Enrolled || workload.OptedOut(w.Labels) || !by.Any() {
		r.keepDenied(key, nil)
		return
	}
	of := workload.Workload{GVK: w.GVK, Namespace: w.Namespace, Name: w.Name, UID: w.UID}
	r.keepDenied(key, &defense.DeniedWorkload{Workload: of, By: by})
}

// keepDenied remembers now in place of what was remembered of a workload; nil for nothing. It measures
// a block that ended between the two.
func (r *WorkloadReconciler) keepDenied(key workload.Key, now *defense.DeniedWorkload) {
	if last, ok := r.blocked.Load(key); ok {
		was := last.(*defense.DeniedWorkload) //nolint:errcheck // the map holds nothing else
		since := was.By.BlockedSince
		if !since.IsZero() && (now == nil || !now.By.BlockedSince.Equal(since)) {
			metrics.BlockEnded(workload.LabelOf(was.Workload.GVK.GroupKind()), r.Clock.Since(since))
		}
	}
	if now == nil {
		r.blocked.Delete(key)
		return
	}
	r.blocked.Store(key, now)
}

// reportTooLarge sends one event when a workload leaves the defense because the cache has
// no room for its labels and annotations.
func (r *WorkloadReconciler) reportTooLarge(ns cluster.Namespace, key workload.Key, w *workload.Workload) {
	if !ns.Enrolled || w.Annotations[v1alpha1.TooLargeMark] == "" {
		r.tooLarge.Delete(key)
		return
	}
	if _, reported := r.tooLarge.LoadOrStore(key, true); !reported {
		r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventDefenseChanged, Message: fmt.Sprintf(
			"the %s is not defended: its labels and its annotations %s* take more than 16 KiB of memory; remove some of them",
			w.Kind(), v1alpha1.SettingAnnotationPrefix)}, "Watch")
	}
}

// reportUnknown sends one event for each label, annotation and value of a workload with a prefix of
// the operator that the operator does not know or cannot use, and for each annotation of its
// namespace that AlterShield Server cannot take. A new leader sends the events again.
func (r *WorkloadReconciler) reportUnknown(ctx context.Context, ns cluster.Namespace, key workload.Key, w *workload.Workload) {
	var unknown []string
	if ns.Enrolled && !workload.OptedOut(w.Labels) {
		unknown = admission.UnknownWords(w.Labels, w.Annotations)
		if inForce, err := r.InForceOf(ctx, w, nil); err == nil { // else the next reconcile reports them
			unknown = append(unknown, inForce.Problems...)
		}
		if ns.Meta != nil && r.server {
			_, _, problems := verify.OrderOf(ns.Meta)
			unknown = append(unknown, problems...)
		}
	}
	reported, _ := r.unknown.Load(key)
	before, _ := reported.([]string)
	for _, message := range unknown {
		if !slices.Contains(before, message) {
			r.Event(w, nil, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventUnknownMetadata, Message: message}, "Watch")
		}
	}
	if len(unknown) == 0 {
		r.unknown.Delete(key)
	} else {
		r.unknown.Store(key, unknown)
	}
}
