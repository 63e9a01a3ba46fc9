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
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestQuietWhenKindLeft: a workload whose kind is no longer declared is decided on again, and is no error.
func TestQuietWhenKindLeft(t *testing.T) {
	r := Quiet(reconcile.TypedFunc[string](func(context.Context, string) (reconcile.Result, error) {
		return reconcile.Result{}, fmt.Errorf("gadget shop/web: %w", errNotDefended)
	}))
	if result, err := r.Reconcile(t.Context(), ""); err != nil || result.RequeueAfter != ConflictRetry {
		t.Errorf("got %+v, %v", result, err)
	}
}
