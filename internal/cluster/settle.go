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
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// ConflictRetry is the time until the next decision after a write that found the
	// object changed: the cache has the change by then.
	ConflictRetry = 100 * time.Millisecond
	// ExistsRetry is the time until the next try after a create that found the name
	// taken: by the object of a deleted owner, until garbage collection removes it, or
	// by our own object that is not in the cache yet.
	ExistsRetry = time.Second
)

// Outdated reports whether a write was refused because the object it was decided on
// has changed. This is no error: the write is decided again.
func Outdated(err error) bool {
	if _, denied := denial(err); denied {
		return false
	}
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || isFailedTest(err)
}

// Settle turns the error of applying a decision into a result.
func Settle(ctx context.Context, result reconcile.Result, err error) (reconcile.Result, error) {
	denied := (*DeniedError)(nil)
	_, refused := denial(err)
	switch {
	case err == nil:
		return result, nil
	case errors.As(err, &denied):
		return reconcile.Result{RequeueAfter: denied.again}, nil
	case refused:
		return reconcile.Result{}, err
	case apierrors.IsAlreadyExists(err):
		log.FromContext(ctx).V(1).Info("an object is still in the way, trying again", "cause", err.Error())
		return reconcile.Result{RequeueAfter: ExistsRetry}, nil
	case Outdated(err):
		log.FromContext(ctx).V(1).Info("decided on an outdated view, deciding again", "cause", err.Error())
		return reconcile.Result{RequeueAfter: ConflictRetry}, nil
	default:
		return reconcile.Result{}, err
	}
}

// Quiet keeps three kinds of errors out of the log: of reconciles that the end of the
// manager cut short, of writes into a terminating namespace, and of workloads whose kind is no longer declared.
func Quiet[R comparable](r reconcile.TypedReconciler[R]) reconcile.TypedReconciler[R] {
	return reconcile.TypedFunc[R](func(ctx context.Context, req R) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, req)
		if errors.Is(err, errNotDefended) {
			log.FromContext(ctx).V(1).Info("the kind of the workload left, deciding again", "cause", err.Error())
			return reconcile.Result{RequeueAfter: ConflictRetry}, nil
		}
		if err != nil && (errors.Is(ctx.Err(), context.Canceled) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)) {
			log.FromContext(ctx).V(1).Info("gave up", "cause", err.Error())
			return reconcile.Result{}, nil
		}
		return result, err
	})
}
