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

package admission

import (
	"fmt"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Freeze is a freeze that is in force at the time of a request.
type Freeze struct {
	// Name is namespace/policy/freeze.
	Name string
	// Until is its end.
	Until time.Time
	// Denies reports whether the freeze denies releases. Observed reports whether only the mode of its policy prevents that.
	Denies, Observed bool
	// RestartOnly reports whether the request only restarts the pods, as kubectl rollout restart does.
	RestartOnly bool
}

// MayBeFrozen reports whether a freeze counts for a request: it is the release of a user, and no override. A user who
// opts the workload out in the same request does not evade the freeze. Only validation calls it.
func (r *Request) MayBeFrozen() bool {
	return r.Operation == Update && !r.Own && r.released() && !r.overrides() &&
		(!workload.OptedOut(r.Old.Labels) || !workload.OptedOut(r.New.Labels))
}

// ValidateFreeze denies a release in a freeze, or warns about it. A version that succeeded before passes, and so does a
// release with a reason.
func ValidateFreeze(r Request, f Freeze) Verdict {
	returns := r.Past != nil && rollback.Remembered(r.Past.History, r.New.Version)
	if !r.MayBeFrozen() || returns || r.breaksFreeze() != "" {
		return Verdict{Allowed: true}
	}
	frozen := fmt.Sprintf("%s %s is frozen until %s by %s", r.Kind, r.Name, f.Until.UTC().Format(time.RFC3339), f.Name)
	if f.RestartOnly {
		return Verdict{Allowed: true, Warning: frozen + ", and restarts its pods"}
	}
	if !f.Denies && !f.Observed {
		return Verdict{Allowed: true, Warning: frozen + ", and is released nevertheless"}
	}
	again := ""
	if strings.TrimSpace(r.New.Annotations[v1alpha1.BreakFreezeAnnotation]) != "" {
		again = "; the given reason was there before: give another one"
	}
	return Verdict{Message: frozen + fmt.Sprintf(": new releases are denied; apply it again after that time, or give a reason in the same "+
		"request by the annotation %s%s; objects that were applied before it stay applied", v1alpha1.BreakFreezeAnnotation, again)}
}

// breaksFreeze returns the reason for which a request passes freezes; empty for none. A reason that was there before, or
// that was used before, does not count: a manifest in Git may keep it.
func (r *Request) breaksFreeze() string {
	used := record.ParseFreezeBreak(r.New.Annotations[v1alpha1.FreezeBrokenAnnotation])
	if used.ResourceVersion != "" && used.ResourceVersion == r.Old.ResourceVersion {
		return used.Reason // mutation used it up earlier in this request
	}
	reason := reasonIn(r.New.Annotations)
	if reason == reasonIn(r.Old.Annotations) || reason == record.ParseFreezeBreak(r.Old.Annotations[v1alpha1.FreezeBrokenAnnotation]).Reason {
		return ""
	}
	return reason
}

func reasonIn(annotations map[string]string) string {
	return wording.CutAtRune(strings.TrimSpace(annotations[v1alpha1.BreakFreezeAnnotation]), record.MaxText)
}

// useFreezeBreak records the reason of a release, and uses it up.
func useFreezeBreak(r *Request, want *Object) {
	if reason := r.breaksFreeze(); reason != "" {
		want.Annotations[v1alpha1.FreezeBrokenAnnotation] = record.FreezeBreak{
			Release:         workload.ParseRelease(want.Annotations[v1alpha1.ReleaseAnnotation]),
			ResourceVersion: r.Old.ResourceVersion, User: r.releaser(), Reason: reason,
		}.String()
	}
	delete(want.Annotations, v1alpha1.BreakFreezeAnnotation)
}
