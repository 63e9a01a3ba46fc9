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
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
)

// TestEndpointConditions: each failure has its condition, and the catalog an entry for it.
func TestEndpointConditions(t *testing.T) {
	failed := func(reason string) error { return &endpoint.Error{Reason: reason, Message: "why"} }
	for name, test := range map[string]struct {
		err                 error
		accepted, reachable metav1.ConditionStatus
	}{
		"it answers":           {nil, metav1.ConditionTrue, metav1.ConditionTrue},
		"it is down":           {failed(v1alpha1.ReasonUnavailable), metav1.ConditionTrue, metav1.ConditionFalse},
		"it refuses the query": {failed(v1alpha1.ReasonQueryFailed), metav1.ConditionTrue, metav1.ConditionFalse},
		"a wrong Secret":       {failed(v1alpha1.ReasonCredentials), metav1.ConditionFalse, metav1.ConditionUnknown},
		"a wrong header":       {failed(v1alpha1.ReasonInvalidPolicy), metav1.ConditionFalse, metav1.ConditionUnknown},
		"another error":        {errors.New("token s3cret"), metav1.ConditionTrue, metav1.ConditionFalse},
	} {
		accepted, reachable := endpointConditions(test.err)
		if accepted.Status != test.accepted || reachable.Status != test.reachable {
			t.Errorf("%s: %s and %s", name, accepted.Status, reachable.Status)
		}
		for _, c := range []metav1.Condition{accepted, reachable} {
			if _, ok := v1alpha1.Explain("DefenseEndpoint", &c); !ok || c.Message == "token s3cret" {
				t.Errorf("%s: no entry for %+v", name, c)
			}
		}
	}
}
