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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// reportState logs and counts a change of the state of a release, and of its checks, after it was written.
func reportState(ctx context.Context, before, after *v1alpha1.ChangeWorkload) {
	reportChecks(before.Status.Checks, after.Status.Checks)
	reportHold(kindOf(after), &before.Status, &after.Status)
	if before.Status.Status != after.Status.Status {
		metrics.ReleaseEntered(kindOf(after), stateName(after.Status.Status))
		log.FromContext(ctx).Info("release changed state",
			"from", stateName(before.Status.Status), "to", stateName(after.Status.Status), "attempt", after.Status.Attempt)
	}
}

// reportChecks counts the checks of policies that entered a phase.
func reportChecks(before, after []v1alpha1.CheckStatus) {
	for i := range after {
		c := &after[i]
		if was := record.FindCheck(before, c.Name); c.Type != "" && (was == nil || was.Phase != c.Phase) {
			metrics.Check(c)
		}
	}
}

func conditionStatus(ok bool) metav1.ConditionStatus {
	if ok {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

const (
	// reconcileTimeout bounds one reconcile, waiting for the cache included.
	reconcileTimeout = time.Minute
	// workers per controller: writes to the API server dominate.
	workers = 8
)

// newChangeWorkload is the record of the release a workload is at.
func newChangeWorkload(w *workload.Workload, set settings.Settings, now time.Time) *v1alpha1.ChangeWorkload {
	name := record.ReleaseName(w, w.RecordedVersion())
	apiVersion, kindName := w.GVK.ToAPIVersionAndKind()
	return &v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       w.Namespace,
			Name:            name,
			Labels:          cluster.OwnLabels(w, w.RecordedVersion()),
			OwnerReferences: []metav1.OwnerReference{cluster.OwnerReference(apiVersion, kindName, w.Name, w.UID)},
		},
		Spec: v1alpha1.ChangeWorkloadSpec{
			ChangeWorkloadID:  name,
			AppName:           w.AppName(),
			ServiceName:       w.Name,
			WorkloadRef:       cluster.Reference(w),
			Reversion:         w.RecordedVersion(),
			CountThreshold:    set.BatchSize,
			WaitTimeThreshold: int64(set.Wait / time.Second),
			CreateTime:        times.Format(now),
			CreateTimeUnix:    now.Unix(),
			Release:           w.Release(),
		},
	}
}

// rememberDenied remembers a workload while its releases are denied.
func (r *WorkloadReconciler) rememberDenied(ns cluster.Namespace, key workload.Key, w *workload.Workload) {
	by := defense.DeniedBy(w.Labels, w.Annotations, r.Clock.Now())
	if !ns.Enrolled || workload.OptedOut(w.Labels) || !by.Any() {
		r.blocked.Delete(key)
		return
	}
	of := workload.Workload{GVK: w.GVK, Namespace: w.Namespace, Name: w.Name, UID: w.UID}
	r.blocked.Store(key, &defense.DeniedWorkload{Workload: of, By: by})
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

// reportUnknown sends one event for each label, annotation and value of a workload that has a
// prefix of the operator and that the operator does not know or cannot use, and for each annotation
// of its namespace that AlterShield Server cannot take. A manager that takes over sends them again.
func (r *WorkloadReconciler) reportUnknown(ctx context.Context, ns cluster.Namespace, key workload.Key, w *workload.Workload) {
	var unknown []string
	if ns.Enrolled && !workload.OptedOut(w.Labels) {
		unknown = admission.UnknownWords(w.Labels, w.Annotations)
		if inForce, err := r.InForceOf(ctx, w, nil); err == nil { // else the next look reports them
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
