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

package defense

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// HoldEnd is the value of HoldEndedAnnotation: why the hold of which release ended.
type HoldEnd struct {
	Release int64
	// Reason is one of ConditionHeld, User who ended it, where somebody did.
	Reason, User string
}

// String is the value of HoldEndedAnnotation.
func (e HoldEnd) String() string {
	return strings.TrimSpace(strconv.FormatInt(e.Release, 10) + " " + e.Reason + " " + e.User)
}

// ParseHoldEnd reads the value of HoldEndedAnnotation.
func ParseHoldEnd(value string) (HoldEnd, bool) {
	parts := append(strings.SplitN(value, " ", 3), "")
	if len(parts) < 3 {
		return HoldEnd{}, false
	}
	e := HoldEnd{Release: ParseRelease(parts[0]), Reason: parts[1], User: parts[2]}
	switch e.Reason { // of earlier builds
	case "Failed":
		e.Reason = v1alpha1.ReasonVerificationFailed
	case "Ended":
		e.Reason = v1alpha1.ReasonReleaseEnded
	}
	return e, e.Release > 0 && e.describe() != ""
}

// describe says why a hold ended; empty where that is not known.
func (e HoldEnd) describe() string {
	switch e.Reason {
	case v1alpha1.ReasonHoldVerified:
		return "the pods are verified"
	case v1alpha1.ReasonHoldRanOut:
		return "pods had no verdict in time, and silence does not fail"
	case v1alpha1.ReasonVerificationFailed:
		return "the release failed"
	case v1alpha1.ReasonHoldEdited:
		return cmp.Or(e.User, UnknownUser) + " set a field that the hold had changed"
	case v1alpha1.ReasonHoldStuck:
		return "a pod of an earlier version is not Ready"
	case v1alpha1.ReasonReleaseEnded:
		return "nothing of the release is left to wait for"
	default:
		return ""
	}
}
