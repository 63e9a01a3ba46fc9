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
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// podWorkers are few on purpose: a label informs, and every write to a pod wakes
// all who watch pods, while the pods of a large release wait to be verified.
const podWorkers = 2

// PodReconciler labels pods whose release is finished. The label informs people
// and their tools; no decision is made from it, because anybody can set it.
type PodReconciler struct {
	base
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch

// SetupWithManager adds the controller to the manager.
func (r *PodReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("pod").
		For(&corev1.Pod{}, builder.WithPredicates(mayBeFinished())).
		Watches(r.kind.Object(), handler.EnqueueRequestsFromMapFunc(r.podsOfWorkload), builder.WithPredicates(predicate.Or[client.Object](predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(r.kind.Revision(), handler.EnqueueRequestsFromMapFunc(r.podsOfRevision), builder.WithPredicates(acquired())).
		Watches(namespaceMetadata(), handler.EnqueueRequestsFromMapFunc(r.podsOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: podWorkers, ReconciliationTimeout: reconcileTimeout}).
		Complete(quiet(r))
}

// Reconcile labels a pod once its release is finished.
func (r *PodReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var object corev1.Pod
	if err := r.client.Get(ctx, req.NamespacedName, &object, client.DisableReadYourWritesConsistency); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	pod := defense.ObservePod(&object)
	w, err := r.observeRelease(ctx, &object)
	if err != nil || w == nil {
		return ctrl.Result{}, err
	}
	finished, wait := pod.Finished(w.MinReady, r.clock.Now())
	if !finished {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	return settle(ctx, ctrl.Result{}, r.label(ctx, &pod))
}

// observeRelease finds the workload whose release the pod is part of; nil when
// there is none: the pod belongs to no defended workload, or to an earlier
// template of it.
func (r *PodReconciler) observeRelease(ctx context.Context, pod *corev1.Pod) (*defense.Workload, error) {
	ns, err := r.observeNamespace(ctx, pod.Namespace)
	if err != nil || !r.enrolled(ns) {
		return nil, err
	}
	owner, ok, err := r.kind.OwnerOfPod(ctx, r.client, pod)
	if err != nil || !ok {
		return nil, err
	}
	w, err := r.kind.Get(ctx, r.client, owner.Key)
	if err != nil || w == nil {
		return nil, err
	}
	if w.UID != owner.UID || w.RevisionUID != metav1.GetControllerOf(pod).UID ||
		w.RecordedVersion() == "" || defense.OptedOut(w.Labels) {
		return nil, nil
	}
	return w, nil
}

// podsOfWorkload maps a workload to the pods of its release that may be
// finished: pods that became ready before their release was recorded, or before
// the cache showed it, wait for this.
func (r *PodReconciler) podsOfWorkload(ctx context.Context, o client.Object) []reconcile.Request {
	w, err := r.kind.Get(ctx, r.client, client.ObjectKeyFromObject(o))
	if err != nil {
		log.FromContext(ctx).Error(err, "find the pods of a workload", "workload", client.ObjectKeyFromObject(o))
	}
	if err != nil || w == nil || w.RecordedVersion() == "" || w.RevisionUID == "" {
		return nil
	}
	return r.podsMatching(ctx, client.InNamespace(w.Namespace), client.MatchingFields{workload.IndexByOwner: string(w.RevisionUID)})
}

func (r *PodReconciler) podsOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return r.podsMatching(ctx, client.InNamespace(ns.GetName()))
}

func (r *PodReconciler) podsOfRevision(ctx context.Context, o client.Object) []reconcile.Request {
	return r.podsMatching(ctx, client.InNamespace(o.GetNamespace()), client.MatchingFields{workload.IndexByOwner: string(o.GetUID())})
}

func (r *PodReconciler) podsMatching(ctx context.Context, opts ...client.ListOption) []reconcile.Request {
	var list corev1.PodList
	opts = append(opts, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err := r.client.List(ctx, &list, opts...); err != nil {
		log.FromContext(ctx).Error(err, "list pods")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if unlabelled(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

func (r *PodReconciler) label(ctx context.Context, pod *defense.Pod) error {
	if pod.Labels[v1alpha1.OperateFinishedLabel] != "" {
		return nil
	}
	// The UID makes the patch one of this pod, and of no later one of its name.
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{%q:%q}}}`, pod.UID,
		v1alpha1.OperateFinishedLabel, strconv.FormatInt(r.clock.Now().Unix(), 10))
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := r.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(patch)), client.DisableReadYourWritesConsistency); err != nil {
		return fmt.Errorf("label pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func unlabelled(o client.Object) bool {
	object, ok := o.(*corev1.Pod)
	if !ok || metav1.GetControllerOf(object) == nil {
		return false
	}
	pod := defense.ObservePod(object)
	return pod.Ready && !pod.Terminating && pod.Labels[v1alpha1.OperateFinishedLabel] == ""
}

// mayBeFinished lets through pods that are ready and have no label yet.
func mayBeFinished() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(e event.CreateEvent) bool { return unlabelled(e.Object) },
		UpdateFunc:  func(e event.UpdateEvent) bool { return unlabelled(e.ObjectNew) },
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
