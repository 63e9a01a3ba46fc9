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
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// gatherPods is how long a release waits for further changes of its pods and its workload, so
	// that one decision is about all of them.
	gatherPods = 100 * time.Millisecond
	// gatherBatches is how long a release waits for further changes of its batches.
	gatherBatches = 250 * time.Millisecond
)

// Handlers and predicates of the watches. The comment of each watch, at its controller, describes
// the transition that it serves.

// to enqueues the requests of an object.
func to[R comparable](requests handler.TypedMapFunc[client.Object, R]) handler.TypedEventHandler[client.Object, R] {
	return handler.TypedEnqueueRequestsFromMapFunc(requests)
}

// gathered enqueues requests after a delay, so that equal requests become one. wait returns the
// delay for an object; zero for none.
func gathered(wait func(client.Object) time.Duration, requests handler.MapFunc) handler.EventHandler {
	enqueue := func(ctx context.Context, o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		for _, request := range requests(ctx, o) {
			if d := wait(o); d > 0 {
				q.AddAfter(request, d)
			} else {
				q.Add(request)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.ObjectNew, q)
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
		GenericFunc: func(ctx context.Context, e event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(ctx, e.Object, q)
		},
	}
}

// updates lets only updates through, of objects of one type for which changed returns true.
func updates[T client.Object](changed func(before, after T) bool) predicate.Funcs {
	never := func(client.Object) bool { return false }
	f := predicate.NewPredicateFuncs(never)
	f.UpdateFunc = func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(T)
		after, ok2 := e.ObjectNew.(T)
		return ok1 && ok2 && changed(before, after)
	}
	return f
}

// created lets new objects through as well, if passes returns true.
func created(f predicate.Funcs, passes func(client.Object) bool) predicate.Funcs {
	f.CreateFunc = func(e event.CreateEvent) bool { return passes(e.Object) }
	return f
}

// watchKinds adds the watches of each kind of workload to a controller: of kinds that stay, and of declared kinds while they
// are declared.
func watchKinds[R comparable](
	b *builder.TypedBuilder[R], c *cluster.Cluster, of func(workload.Kind) []hub.Watch[R],
) *builder.TypedBuilder[R] {
	for _, kind := range c.Kinds.Fixed() {
		for _, w := range of(kind) {
			b = b.Watches(w.Object, w.Handler, builder.WithPredicates(w.Predicates...))
		}
	}
	return b.WatchesRawSource(hub.Source(c.Hub, of))
}

// watchObjects returns the watch of the workloads of a kind.
func watchObjects(
	requests handler.EventHandler, predicates ...predicate.Predicate,
) func(workload.Kind) []hub.Watch[reconcile.Request] {
	return func(kind workload.Kind) []hub.Watch[reconcile.Request] {
		return []hub.Watch[reconcile.Request]{{Object: kind.Object(), Handler: requests, Predicates: predicates}}
	}
}

func always(client.Object) bool { return true }

// acquired lets through objects that are new or have a new controller, and revisions that
// are in use again: these have a new number.
func acquired() predicate.Predicate {
	return created(updates(func(before, after client.Object) bool {
		was, is := metav1.GetControllerOf(before), metav1.GetControllerOf(after)
		return is != nil && (was == nil || was.UID != is.UID || renumbered(before, after))
	}), always)
}

func renumbered(before, after client.Object) bool {
	was, ok1 := before.(*appsv1.ControllerRevision)
	is, ok2 := after.(*appsv1.ControllerRevision)
	return ok1 && ok2 && was.Revision != is.Revision
}

// recordChanged lets through changes on which the record of a workload may depend: of its spec,
// labels, annotations and owner, and its deletion. A change of its status does not pass.
func recordChanged() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
				// Objects of some kinds, as ConfigMaps, have no generation.
				e.ObjectNew.GetGeneration() == 0 && e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() ||
				e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
				workload.OwnerOf(e.ObjectOld) != workload.OwnerOf(e.ObjectNew) ||
				!reflect.DeepEqual(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels()) ||
				!reflect.DeepEqual(e.ObjectOld.GetAnnotations(), e.ObjectNew.GetAnnotations())
		},
	}
}

func unlabelled(o client.Object) bool {
	object, ok := o.(*corev1.Pod)
	if !ok || metav1.GetControllerOf(object) == nil {
		return false
	}
	pod := workload.ReadPod(object)
	return isUnlabelled(&pod)
}

func isUnlabelled(pod *workload.Pod) bool {
	return pod.Ready && !pod.Terminating && pod.Labels[v1alpha1.OperateFinishedLabel] == ""
}

// mayBeFinished lets through pods that are ready and have no label yet.
func mayBeFinished() predicate.Predicate {
	return created(updates(func(_, after client.Object) bool { return unlabelled(after) }), unlabelled)
}

// batchUrgency returns the delay for a batch: none if it failed, or if it is the last one and ended.
func batchUrgency(o client.Object) time.Duration {
	batch, ok := o.(*v1alpha1.ChangePod)
	if ok && (record.BatchFails(batch) || batch.Spec.Last && batch.Status.Status == v1alpha1.ChangePodExecuteDone) {
		return 0
	}
	return gatherBatches
}

func podUrgency(client.Object) time.Duration { return gatherPods }

// urgent reports whether a release is not under way, or a check of its order fails: then it is
// reconciled at once. Other changes, such as the stages of its order, are gathered.
func urgent(o client.Object) bool {
	change, ok := o.(*v1alpha1.ChangeWorkload)
	return ok && !record.IsUnderWay(change)
}

// itself maps an object to its own request.
func itself(_ context.Context, o client.Object) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
}

// podChanged lets through changes of pods that move a release: pods that come and go, become Ready
// or cease to be, restart, or fail.
func podChanged() predicate.Predicate {
	controlled := func(o client.Object) bool { return metav1.GetControllerOf(o) != nil }
	f := created(updates(func(before, after *corev1.Pod) bool {
		if !controlled(after) {
			return false
		}
		o, n := workload.ReadPod(before), workload.ReadPod(after)
		return o.Ready != n.Ready || o.Terminating != n.Terminating || o.Ended != n.Ended || o.UID != n.UID ||
			!o.RestartedAt.Equal(n.RestartedAt) || o.Stuck.Fails() != n.Stuck.Fails()
	}), controlled)
	f.DeleteFunc = func(event.DeleteEvent) bool { return true }
	return f
}

// podFails lets through pods that begin to fail, or cease to be Ready.
func podFails() predicate.Predicate {
	return updates(func(before, after *corev1.Pod) bool {
		o, n := workload.ReadPod(before), workload.ReadPod(after)
		if metav1.GetControllerOf(after) == nil || n.Terminating || n.Ended {
			return false
		}
		return o.Ready && !n.Ready || n.Restarts != o.Restarts ||
			(o.CrashLoop == nil) != (n.CrashLoop == nil) ||
			n.OutOfMemory != nil && (o.OutOfMemory == nil || !o.OutOfMemory.Finished.Equal(n.OutOfMemory.Finished))
	})
}

// releaseEnded lets through releases that were rolled back or canceled, which the current release
// reports, and releases whose order ended, which may be removed then.
func releaseEnded() predicate.Predicate {
	return updates(func(was, is *v1alpha1.ChangeWorkload) bool {
		over := is.Status.Status == v1alpha1.ChangeWorkloadRollback || is.Status.Status == v1alpha1.ChangeWorkloadCanceled
		return over && was.Status.Status != is.Status.Status || record.OrderIsOpen(&was.Status) && !record.OrderIsOpen(&is.Status)
	})
}

// deletedOnly lets only deletions through.
func deletedOnly() predicate.Predicate {
	f := predicate.NewPredicateFuncs(func(client.Object) bool { return false })
	f.DeleteFunc = func(event.DeleteEvent) bool { return true }
	return f
}

// turned lets through changes of a release that concern its batches: of the stage of its order, its
// state, its attempt, and the verdicts that wait for a batch. New releases pass, too: the cache may
// have shown the batch first.
func turned() predicate.Predicate {
	return created(updates(func(before, after *v1alpha1.ChangeWorkload) bool {
		o, n := &before.Status, &after.Status
		return o.OrderStage != n.OrderStage || o.Status != n.Status || o.Attempt != n.Attempt ||
			len(n.UnclaimedVerdicts) > 0 && !slices.Equal(o.UnclaimedVerdicts, n.UnclaimedVerdicts)
	}), always)
}

// defenseChanged lets through workloads that opted out, or in again, or changed
// settings of their own.
func defenseChanged() predicate.Predicate {
	return updates(func(before, after client.Object) bool {
		return workload.OptedOut(before.GetLabels()) != workload.OptedOut(after.GetLabels()) ||
			settings.AnnotationsDiffer(before.GetAnnotations(), after.GetAnnotations())
	})
}

// namesServer reports whether a policy defines what silence of the server means.
func namesServer(o client.Object) bool {
	p, ok := o.(*v1alpha1.DefensePolicy)
	return ok && policy.NamesServer(p)
}
