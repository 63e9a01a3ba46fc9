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
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// heldWorkloads maps a setting to the workloads it is in force for that the
// operator holds, or whose pods may have to be evicted.
func (r *WorkloadReconciler) heldWorkloads(ctx context.Context, setting client.Object) []workload.Key {
	return r.Workloads(ctx, func(w client.Object) bool {
		_, suspended := w.GetLabels()[v1alpha1.SuspendLabel]
		return suspended || w.GetAnnotations()[v1alpha1.HaltedAnnotation] != "" || w.GetAnnotations()[v1alpha1.HeldAnnotation] != "" || mayNeedEviction(w)
	}, r.WhereInForce(setting)...)
}

// recordedWorkloads maps the setting blocking to the workloads that have a record.
func (r *WorkloadReconciler) recordedWorkloads(ctx context.Context, setting client.Object) []workload.Key {
	return r.Workloads(ctx, func(w client.Object) bool { return w.GetLabels()[v1alpha1.VersionLabel] != "" }, r.WhereInForce(setting)...)
}

// installed lets the operator's setting blocking through when it says since when this
// installation runs.
func (r *WorkloadReconciler) installed() predicate.Predicate {
	since := func(setting *v1alpha1.OpsConfigInfo) time.Time {
		if setting.Namespace != r.Operator || setting.Name != settings.NameBlocking {
			return time.Time{}
		}
		return defense.InstalledSince(setting)
	}
	return created(updates(func(before, after *v1alpha1.OpsConfigInfo) bool { return !since(after).Equal(since(before)) }), func(o client.Object) bool {
		setting, ok := o.(*v1alpha1.OpsConfigInfo)
		return ok && !since(setting).IsZero()
	})
}

// workloadsOf are the workloads of a namespace whose labels changed. A label by which somebody
// meant to enrol it is logged and counted.
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

// tellDeleted tells of a workload that is gone while its releases were denied, and
// of the next one of its name.
func (r *WorkloadReconciler) tellDeleted(ctx context.Context, key workload.Key, now *workload.Workload) error {
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
		r.blocked.Delete(key)
	}
	if plan.Deleted != nil {
		r.deleted.Add(key, in.Denied, deletedFor)
		metrics.LeftWhileBlocked(in.Denied.Workload.GVK.Kind, metrics.LeftByDeletion)
		log.FromContext(ctx).Info("somebody deleted a workload while releases of it were denied", "workload", key, "while", in.Denied.By.String())
		r.Event(&in.Denied.Workload, nil, *plan.Deleted, "Delete")
	}
	if plan.ForgetDeleted {
		r.deleted.Remove(key)
	}
	if plan.CreatedAgain != nil {
		log.FromContext(ctx).Info("somebody created a workload again that was deleted while releases of it were denied", "workload", key, "user", now.ReleasedBy())
		r.Event(now, nil, *plan.CreatedAgain, "Create")
	}
	return nil
}
