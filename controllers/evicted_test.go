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
	"errors"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/metrics"
)

// TestOutcomeOf: the error of an eviction decides whether it is reported, retried, or decided again.
func TestOutcomeOf(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	budget.ErrStatus.Details.Causes = append(budget.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget db needs 3 healthy pods and has 2 currently",
	})
	two := apierrors.FromObject(&metav1.Status{
		Status: metav1.StatusFailure, Code: 500,
		Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
	})
	for name, test := range map[string]struct {
		err                  error
		outcome, reason, why string
	}{
		"evicted": {nil, metrics.EvictionDone, "", ""},
		"a budget": {
			budget, metrics.EvictionBlocked, v1alpha1.ReasonDisruptionBudget,
			"a PodDisruptionBudget refuses to have it evicted: The disruption budget db needs 3 healthy pods and has 2 currently",
		},
		"two budgets": {two, metrics.EvictionDenied, v1alpha1.ReasonNotEvicted, "the API server refuses to have it evicted: " + two.Error()},
		"a missing permission": {
			apierrors.NewForbidden(pods, "db-2", errors.New("no")), metrics.EvictionDenied, v1alpha1.ReasonNotEvicted,
			`the API server refuses to have it evicted: pods "db-2" is forbidden: no`,
		},
		"changed": {apierrors.NewConflict(pods, "db-2", errors.New("x")), metrics.EvictionOutdated, "", ""},
		"a policy": {
			&apierrors.StatusError{
				ErrStatus: metav1.Status{Code: 409, Reason: metav1.StatusReasonConflict, Message: `admission webhook "x" denied the request: no`},
			},
			metrics.EvictionDenied, v1alpha1.ReasonNotEvicted,
			`the API server refuses to have it evicted: admission webhook "x" denied the request: no`,
		},
		"gone":            {apierrors.NewNotFound(pods, "db-2"), metrics.EvictionOutdated, "", ""},
		"a busy server":   {apierrors.NewTooManyRequests("try again", 1), "", "", ""},
		"a broken server": {apierrors.NewInternalError(errors.New("etcdserver: leader changed")), "", "", ""},
		"without answer":  {context.DeadlineExceeded, "", "", ""},
	} {
		outcome, reason, why := outcomeOf(test.err)
		if outcome != test.outcome || reason != test.reason || why != test.why {
			t.Errorf("%s: got %q, %q, %q, want %q, %q, %q", name, outcome, reason, why, test.outcome, test.reason, test.why)
		}
	}
}
