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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// OpsConfigInfoReconciler writes to each setting whether it is in force, and keeps its last valid
// value, which stays in force while the setting is invalid. It reports settings of namespaces that
// lower the defense (event DefenseChanged).
type OpsConfigInfoReconciler struct {
	*cluster.Cluster
	// started is when this process started: a process that is older than the last
	// `manager leave` begins no installation.
	started time.Time
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=opsconfiginfoes,verbs=list;watch
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,namespace=altershieldoperator-system,resources=opsconfiginfoes,verbs=create
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=opsconfiginfoes/status,verbs=update

// SetupWithManager adds the controller to the manager.
func (r *OpsConfigInfoReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("opsconfiginfo").
		For(&v1alpha1.OpsConfigInfo{}).
		// A locked setting of the operator replaces the settings of namespaces.
		Watches(&v1alpha1.OpsConfigInfo{}, to(r.settingsBelow)).
		// The settings of a namespace count once it is enrolled.
		Watches(cluster.NamespaceObject(), to(r.settingsOf), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// Reconcile judges one setting.
func (r *OpsConfigInfoReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var object v1alpha1.OpsConfigInfo
	if err := r.Client.Get(ctx, req.NamespacedName, &object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	operator, err := r.Settings(ctx, r.Operator)
	if err != nil {
		return ctrl.Result{}, err
	}
	assessment, ours, err := r.assess(ctx, &object, operator)
	if err != nil || !ours {
		return ctrl.Result{}, err
	}
	updated := object.DeepCopy()
	updated.Status.InForce = assessment.InForce
	updated.Status.ObservedGeneration = object.Generation
	v1alpha1.SetCondition("OpsConfigInfo", &updated.Status.Conditions, metav1.Condition{
		Type:               v1alpha1.ConditionAccepted,
		Status:             conditionStatus(assessment.Accepted),
		Reason:             assessment.Reason,
		Message:            assessment.Message,
		ObservedGeneration: object.Generation,
		LastTransitionTime: metav1.NewTime(r.Clock.Now()),
	})
	r.noteKinds(updated)
	r.noteInstalled(updated, operator)
	if equality.Semantic.DeepEqual(updated.Status, object.Status) {
		return ctrl.Result{}, nil
	}
	if err := r.Client.Status().Update(ctx, updated); err != nil {
		return cluster.Settle(ctx, ctrl.Result{}, fmt.Errorf("update status of opsconfiginfo %s/%s: %w", object.Namespace, object.Name, err))
	}
	log.FromContext(ctx).Info("setting changed", "enable", object.Spec.Enable, "content", object.Spec.Content,
		"accepted", assessment.Accepted, "message", assessment.Message)
	above := settings.FromObjects(operator)
	r.report(&object, updated, &above)
	return ctrl.Result{}, nil
}

// noteKinds notes since when workloads of each kind that needs no declaration are defended. Workloads that are older are
// baselines: no release of them was missed.
func (r *OpsConfigInfoReconciler) noteKinds(setting *v1alpha1.OpsConfigInfo) {
	if setting.Namespace != r.Operator || setting.Name != settings.NameBlocking {
		return
	}
	for _, kind := range r.Kinds.Fixed() {
		name := defense.ConditionOfKind(kind.GroupVersionKind())
		if name == "" || meta.FindStatusCondition(setting.Status.Conditions, name) != nil {
			continue
		}
		v1alpha1.SetCondition("OpsConfigInfo", &setting.Status.Conditions, metav1.Condition{
			Type: name, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonKnown, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
		})
	}
}

// noteInstalled notes since when this installation runs: since the start of this process, if it is the first of the
// installation, or the first after `manager leave`. If the setting was deleted meanwhile, or an older build did not
// note it, the earliest time at which another setting was judged counts. The settings may be created later than the
// first releases are recorded.
func (r *OpsConfigInfoReconciler) noteInstalled(setting *v1alpha1.OpsConfigInfo, operator []v1alpha1.OpsConfigInfo) {
	if setting.Namespace != r.Operator || setting.Name != settings.NameBlocking {
		return
	}
	since := r.started
	switch said := meta.FindStatusCondition(setting.Status.Conditions, v1alpha1.ConditionInstalled); {
	case said == nil:
		if before := defense.InstalledBefore(operator); !before.IsZero() && before.Before(since) {
			since = before
		}
	case said.Status == metav1.ConditionTrue || !r.started.After(said.LastTransitionTime.Time):
		return
	}
	v1alpha1.SetCondition("OpsConfigInfo", &setting.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionInstalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonKnown, LastTransitionTime: metav1.NewTime(since),
	})
}

// assess judges a setting. ours is false for a namespace that is neither the operator's nor
// enrolled.
func (r *OpsConfigInfoReconciler) assess(
	ctx context.Context, object *v1alpha1.OpsConfigInfo, operator []v1alpha1.OpsConfigInfo,
) (a settings.Assessment, ours bool, err error) {
	if replaced := settings.Replaced(object, operator); replaced != nil {
		return *replaced, true, nil
	}
	if object.Namespace == r.Operator {
		return settings.Assess(object), true, nil
	}
	ns, err := r.Namespace(ctx, object.Namespace)
	if err != nil || !ns.Enrolled {
		return a, false, err
	}
	return settings.AssessOwn(object, operator), true, nil
}

// report emits an event when a setting begins or ceases to lower the defense of a namespace. Of the
// operator's own settings, only observe mode is reported, which applies to all workloads.
func (r *OpsConfigInfoReconciler) report(before, after *v1alpha1.OpsConfigInfo, above *settings.Settings) {
	level, where := metrics.LevelNamespace, "the workloads of this namespace, unless they have values of their own"
	if after.Namespace == r.Operator {
		if after.Name != settings.NameObserve {
			return
		}
		level, where = metrics.LevelOperator, "all workloads, unless their namespaces or they have values of their own"
	}
	report := func(eventType, detail string) {
		message := v1alpha1.EventMessage(v1alpha1.EventDefenseChanged, detail)
		r.Recorder.Eventf(after, nil, eventType, v1alpha1.EventDefenseChanged, "Configure", "%s", message)
	}
	did, does := settings.Lowers(before.Name, before.Status.InForce, above), settings.Lowers(after.Name, after.Status.InForce, above)
	switch {
	case does && !did:
		metrics.DefenseLowered(after.Name, level)
		report(corev1.EventTypeWarning, fmt.Sprintf("the setting %s, enable=%t, lowers the defense of %s", after.Name, after.Spec.Enable, where))
	case did && !does:
		report(corev1.EventTypeNormal, fmt.Sprintf("the setting %s no longer lowers the defense of %s", after.Name, where))
	}
}

// settingsBelow maps a setting of the operator to the settings of namespaces with the same name.
func (r *OpsConfigInfoReconciler) settingsBelow(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetNamespace() != r.Operator {
		return nil
	}
	return cluster.Requests(ctx, r.View, &v1alpha1.OpsConfigInfoList{}, func(s *v1alpha1.OpsConfigInfo) bool {
		return s.Name == o.GetName() && s.Namespace != r.Operator
	})
}

// settingsOf maps a namespace to its settings.
func (r *OpsConfigInfoReconciler) settingsOf(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &v1alpha1.OpsConfigInfoList{}, cluster.Any, client.InNamespace(ns.GetName()))
}
