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
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Requests lists the keys of the wanted objects, for the functions that map an
// event to the objects it concerns. Objects are read from the cache; an error is
// logged.
func Requests[T client.Object](
	ctx context.Context, v View, list client.ObjectList, wanted func(T) bool, opts ...client.ListOption,
) []reconcile.Request {
	own := func(o T) (reconcile.Request, bool) {
		return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}, wanted(o)
	}
	return RequestsBy(ctx, v, list, own, opts...)
}

// RequestsBy is Requests for objects that stand for others, and for controllers
// with requests of their own: request makes the request, if it is wanted.
func RequestsBy[T client.Object, R any](
	ctx context.Context, v View, list client.ObjectList, request func(T) (R, bool), opts ...client.ListOption,
) []R {
	opts = append(slices.Clone(opts), client.UnsafeDisableDeepCopy)
	var requests []R
	err := v.Cached.List(ctx, list, opts...)
	if err == nil {
		err = meta.EachListItem(list, func(item runtime.Object) error {
			o, ok := item.(T)
			if !ok {
				return fmt.Errorf("unexpected %T", item)
			}
			if r, wanted := request(o); wanted {
				requests = append(requests, r)
			}
			return nil
		})
	}
	if err != nil {
		log.FromContext(ctx).Error(err, "list the objects that an event concerns", "list", fmt.Sprintf("%T", list))
	}
	return requests
}

// Any reports whether an object is wanted: each one is.
func Any(client.Object) bool { return true }

// Workloads lists the keys of the wanted workloads of all kinds.
func (v View) Workloads(ctx context.Context, wanted func(client.Object) bool, opts ...client.ListOption) []workload.Key {
	var keys []workload.Key
	for _, kind := range v.Kinds.Kinds() {
		gk := kind.GroupVersionKind().GroupKind()
		keys = append(keys, RequestsBy(ctx, v, kind.ObjectList(), func(o client.Object) (workload.Key, bool) {
			return workload.Key{GroupKind: gk, NamespacedName: client.ObjectKeyFromObject(o)}, wanted(o)
		}, opts...)...)
	}
	return keys
}

// WorkloadsOf maps a namespace that was enrolled or left the defense to its workloads.
func (v View) WorkloadsOf(ctx context.Context, ns client.Object) []workload.Key {
	return v.Workloads(ctx, Any, client.InNamespace(ns.GetName()))
}

// Itself maps a workload of a kind to its key.
func Itself(kind workload.Kind) handler.TypedMapFunc[client.Object, workload.Key] {
	gk := kind.GroupVersionKind().GroupKind()
	return func(_ context.Context, o client.Object) []workload.Key {
		return []workload.Key{{GroupKind: gk, NamespacedName: client.ObjectKeyFromObject(o)}}
	}
}

// OwnerBy maps an object between a workload and its pods to the workload.
func OwnerBy(s workload.Secondary) handler.TypedMapFunc[client.Object, workload.Key] {
	return func(_ context.Context, o client.Object) []workload.Key {
		owner, ok := s.OwnerOf(o)
		if !ok {
			return nil
		}
		return []workload.Key{owner.Key}
	}
}

// LogWorkload adds the workload that a controller reconciles to its log lines.
func LogWorkload(mgr Manager, controller string) func(*workload.Key) logr.Logger {
	l := mgr.GetLogger().WithValues("controller", controller)
	return func(key *workload.Key) logr.Logger {
		if key == nil {
			return l
		}
		return l.WithValues(key.Kind, klog.KRef(key.Namespace, key.Name), "namespace", key.Namespace, "name", key.Name)
	}
}

// WorkloadOf maps a record of a workload to the workload.
func (v View) WorkloadOf(_ context.Context, record client.Object) []workload.Key {
	owner, ok := v.Kinds.OwnerOf(record)
	if !ok {
		return nil
	}
	return []workload.Key{owner.Key}
}

// WhereInForce selects the objects that a setting is in force for: all for a setting in
// the operator's namespace, otherwise the objects of its namespace.
func (v View) WhereInForce(setting client.Object) []client.ListOption {
	if setting.GetNamespace() == v.Operator {
		return nil
	}
	return []client.ListOption{client.InNamespace(setting.GetNamespace())}
}

// WorkloadOfPod finds the workload of a pod, for an event of the pod.
func (v View) WorkloadOfPod(ctx context.Context, pod client.Object) (owner workload.Owner, ok bool) {
	owner, ok, err := v.Kinds.OwnerOfPod(ctx, v.Cached, pod)
	if err != nil {
		log.FromContext(ctx).Error(err, "find the workload of a pod", "pod", client.ObjectKeyFromObject(pod))
		return owner, false
	}
	return owner, ok
}
