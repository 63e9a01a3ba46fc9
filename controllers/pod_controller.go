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
	"encoding/json"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// podWorkers is low: the label only informs, and each write to a pod triggers all watches of pods,
// while the pods of a large release wait to be verified.
const podWorkers = 2

// PodReconciler labels pods whose release is finished. The label informs people
// and their tools; no decision is made from it, because anybody can set it.
type PodReconciler struct {
	*cluster.Cluster
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;patch

// SetupWithManager adds the controller to the manager.
func (r *PodReconciler) SetupWithManager(mgr ctrl.Manager) error {
	b := ctrl.NewControllerManagedBy(mgr).
		Named("pod").
		For(&corev1.Pod{}, builder.WithPredicates(mayBeFinished()))
	return watchKinds(b, r.Cluster, r.watchKind).
		// The namespace is enrolled.
		Watches(cluster.NamespaceObject(), to(r.podsOfNamespace), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: podWorkers, ReconciliationTimeout: reconcileTimeout}).
		Complete(cluster.Quiet(r))
}

// watchKind returns the watches of a kind.
func (r *PodReconciler) watchKind(kind workload.Kind) []hub.Watch[reconcile.Request] {
	// The release was recorded after its pods became Ready, or an annotation with a setting changed.
	watches := watchObjects(to(r.podsOfWorkload(kind)), predicate.Or[client.Object](
		predicate.LabelChangedPredicate{}, predicate.AnnotationChangedPredicate{}))(kind)
	for _, s := range kind.Secondary() {
		// The ReplicaSet or revision of the pods reaches the cache after the pods.
		watches = append(watches, hub.Watch[reconcile.Request]{
			Object: s.Object, Handler: to(r.podsOfSecondary(kind, s)), Predicates: []predicate.Predicate{acquired()},
		})
	}
	return watches
}

// Reconcile labels a pod once its release is finished.
func (r *PodReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var object corev1.Pod
	if err := r.Client.Get(ctx, req.NamespacedName, &object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	pod := workload.ReadPod(&object)
	w, err := r.loadRelease(ctx, &object)
	if err != nil || w == nil {
		return ctrl.Result{}, err
	}
	set, err := r.InForceOf(ctx, w, nil)
	if err != nil {
		return ctrl.Result{}, err
	}
	finished, wait := pod.Finished(workload.FinishOf(w, set.Settings), r.Clock.Now())
	if !finished {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	err = r.Try(w, cluster.ActLabel, func() error { return r.label(ctx, w, &pod) })
	return cluster.Settle(ctx, ctrl.Result{}, r.ReportDenied(ctx, w, nil, err))
}

// loadRelease returns the workload whose current release has the pod; nil if the pod belongs to no
// defended workload, or to an earlier template.
func (r *PodReconciler) loadRelease(ctx context.Context, pod *corev1.Pod) (*workload.Workload, error) {
	ns, err := r.Namespace(ctx, pod.Namespace)
	if err != nil || !ns.Enrolled {
		return nil, err
	}
	owner, ok, err := r.Kinds.OwnerOfPod(ctx, r.Cached, pod)
	if err != nil || !ok {
		return nil, err
	}
	w, err := r.Summary(ctx, owner.Key)
	if err != nil || w == nil || w.UID != owner.UID {
		return nil, err
	}
	kind, err := r.KindOf(w)
	if err != nil || !kind.IsCurrent(w, pod) || w.RecordedVersion() == "" || workload.OptedOut(w.Labels) {
		return nil, err
	}
	return w, nil
}

func (r *PodReconciler) label(ctx context.Context, w *workload.Workload, pod *workload.Pod) error {
	if pod.Labels[v1alpha1.OperateFinishedLabel] != "" {
		return nil
	}
	labels := map[string]string{v1alpha1.OperateFinishedLabel: strconv.FormatInt(r.Clock.Now().Unix(), 10)}
	if w.Unstamped {
		labels[v1alpha1.VersionLabel] = w.Version // other pods have the label from their template
	}
	// With the UID, the patch fails for a later pod of the same name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "labels": labels}})
	if err != nil {
		return fmt.Errorf("encode the labels of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	if err := r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("label pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// podsOfWorkload maps a workload to the unlabelled pods of its release: they may have become Ready
// before their release was recorded, or before the cache showed it.
func (r *PodReconciler) podsOfWorkload(kind workload.Kind) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.podsOf(ctx, kind, client.ObjectKeyFromObject(o))
	}
}

// podsOfSecondary maps an object between a workload and its pods to the same pods.
func (r *PodReconciler) podsOfSecondary(kind workload.Kind, s workload.Secondary) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		owner, ok := s.OwnerOf(o)
		if !ok {
			return nil
		}
		return r.podsOf(ctx, kind, owner.Key.NamespacedName)
	}
}

func (r *PodReconciler) podsOf(ctx context.Context, kind workload.Kind, key types.NamespacedName) []reconcile.Request {
	w, err := kind.Summary(ctx, r.Cached, key)
	if err != nil {
		log.FromContext(ctx).Error(err, "find the pods of a workload", "workload", key)
	}
	if err != nil || w == nil || w.RecordedVersion() == "" {
		return nil
	}
	pods, err := kind.Pods(ctx, r.Cached, w)
	if err != nil {
		log.FromContext(ctx).Error(err, "find the pods of a workload", "workload", key)
	}
	var requests []reconcile.Request
	for i := range pods {
		if isUnlabelled(&pods[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: pods[i].Namespace, Name: pods[i].Name}})
		}
	}
	return requests
}

func (r *PodReconciler) podsOfNamespace(ctx context.Context, ns client.Object) []reconcile.Request {
	return cluster.Requests(ctx, r.View, &corev1.PodList{}, unlabelled, client.InNamespace(ns.GetName()))
}
