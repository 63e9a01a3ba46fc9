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

package verify

import (
	"errors"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// unhealthyAfter is the number of failed heartbeats in a row before the server is reported as
// unhealthy: a server that restarts misses one.
const unhealthyAfter = 2

// Health is the result of the heartbeats of AlterShield Server.
type Health struct {
	// Reason and Message of ConditionServerHealthy; empty while nothing is known.
	Reason, Message string

	failures int
}

// Healthy reports whether the server answers heartbeats.
func (h Health) Healthy() bool { return h.Reason == v1alpha1.ReasonAnswers }

// After returns the health after another heartbeat.
func (h Health) After(err error) Health {
	if err == nil {
		return Health{Reason: v1alpha1.ReasonAnswers, Message: "AlterShield Server answers"}
	}
	h.failures++
	if h.failures >= unhealthyAfter {
		h.Reason, h.Message = unhealthy(err), err.Error()
	}
	return h
}

// unhealthy returns the reason of a failed heartbeat.
func unhealthy(err error) string {
	var e *altershield.Error
	switch {
	case altershield.ClassOf(err) == altershield.ClassHuman:
		return v1alpha1.ReasonPermissionDenied
	case errors.As(err, &e) && e.Code != "":
		return v1alpha1.ReasonAnswersWithErrors
	default:
		return v1alpha1.ReasonUnreachable
	}
}
