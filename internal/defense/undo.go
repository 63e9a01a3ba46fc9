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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// NeedsPast says that the answer to a request depends on the Past: it releases
// something while the workload is blocked, or halted, or touches the block.
func (r *AdmissionRequest) NeedsPast() bool {
	return r.Operation == AdmissionUpdate && !r.Own && !OptedOut(r.New.Labels) &&
		(r.released() && r.Old.haltedBy() != "" || r.Old.suspended() && r.touches())
}

// undo says that a request leaves a version that failed its verification for
// one that succeeded before, while the operator blocks or halts the workload
// because of it. It also says why that version was left. Only mutation asks this,
// which sees the template before it is what would be stored.
func (r *AdmissionRequest) undo() (left QuarantineReason, ok bool) {
	return r.undoTo(r.leadsTo())
}

func (r *AdmissionRequest) undoTo(version string) (left QuarantineReason, ok bool) {
	if !r.NeedsPast() || r.Past == nil || version == r.Old.Version || r.overrides() || r.suspendTouched() || r.blockedByUser() ||
		ParseQuarantine(r.Old.Annotations, r.Now).Holds(version) || !remembered(r.Past.History, version) {
		return QuarantineReason{}, false
	}
	failed := r.failedRecord()
	if failed == nil {
		return QuarantineReason{}, false
	}
	left = QuarantineReason{
		Time: r.Now.UTC().Format(time.RFC3339), Cause: v1alpha1.ReasonVerificationFailed,
		Release: failed.Spec.Release, To: version, By: cutAtRune(cmp.Or(r.User, UnknownUser), maxUser),
	}
	left.explain(failed)
	return left, true
}

// GoesBack says that a request is an undo, for mutation.
func (r *AdmissionRequest) GoesBack() bool {
	_, ok := r.undo()
	return ok
}

// wentBack says that a request is an undo, and that mutation made it one: the
// version that is left is in quarantine with it. Only validation asks this: it
// looks at what would be stored.
func (r *AdmissionRequest) wentBack() bool {
	if _, ok := r.undoTo(r.New.Version); !ok {
		return false
	}
	why, held := ParseQuarantine(r.New.Annotations, r.Now).Reason(r.Old.Version)
	return held && why.To == r.New.Version && why.Release == ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation])
}

// failedRecord is the record of the release that the request leaves, if that
// failed its verification.
func (r *AdmissionRequest) failedRecord() *v1alpha1.ChangeWorkload {
	if r.Past == nil {
		return nil
	}
	release := ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation])
	i := slices.IndexFunc(r.Past.Changes, func(c v1alpha1.ChangeWorkload) bool {
		return c.DeletionTimestamp == nil && c.Spec.Reversion == r.Old.Version && c.Spec.Release == release && c.Status.ObservedRelease == release
	})
	if i < 0 || r.Past.Changes[i].Status.Status != v1alpha1.ChangeWorkloadSuspend {
		return nil
	}
	return &r.Past.Changes[i]
}

// blockedByUser says that the block is not the operator's.
func (r *AdmissionRequest) blockedByUser() bool {
	return r.Old.suspended() && r.Old.Annotations[v1alpha1.SuspendedByAnnotation] == ""
}

// explain says what of a release failed.
func (r *QuarantineReason) explain(failed *v1alpha1.ChangeWorkload) {
	if pods := failed.Status.DefenseCheckFailPods; len(pods) > 0 {
		r.Pod, r.Reason, r.Message = pods[0].Pod, pods[0].Verdict, Brief(pods[0].Message)
	} else {
		r.Message = Brief(conditionMessage(&failed.Status, v1alpha1.ConditionVerified))
	}
}

// restores reports whether the operator lifts the block by itself once the version that
// the workload was set back to runs.
func (r *AdmissionRequest) restores() bool {
	release := r.Old.Annotations[v1alpha1.ReleaseAnnotation]
	version, number, _ := ParseBlockedBy(r.Old.Annotations)
	return version != "" && (version != r.Old.Version || number != release) &&
		ParseQuarantine(r.Old.Annotations, r.Now).restored(r.Old.Version, ParseRelease(release))
}

// AllVersions is the value of UnquarantineAnnotation that ends the quarantine of
// all versions.
const AllVersions = "all"

// String is the value of UnquarantinedAnnotation.
func (u Unquarantined) String() string {
	data, err := json.Marshal(u)
	if err != nil {
		return "" // strings only
	}
	return string(data)
}

// Describe says in one line what was done.
func (u Unquarantined) Describe() string {
	if len(u.Ended) == 0 {
		return fmt.Sprintf("%s asked to end the quarantine of %q, which is not in quarantine", u.User, u.Asked)
	}
	return fmt.Sprintf("%s ended the quarantine of %s", u.User, strings.Join(u.Ended, ", "))
}

// Unquarantine ends the quarantine of a version, or of all of them, as an override
// by that user would.
func (q Quarantine) Unquarantine(asked, user string) (Quarantine, Unquarantined) {
	asked = strings.TrimSpace(asked)
	done := Unquarantined{Asked: cut(asked), User: user}
	for _, version := range q.versions {
		if asked == version || asked == AllVersions {
			done.Ended = append(done.Ended, version)
		}
	}
	for _, version := range done.Ended {
		q = q.Override(version, user)
	}
	return q, done
}

// unquarantine carries UnquarantineAnnotation out, and uses it up. One that comes
// with another template is about the workload as it was.
func (r *AdmissionRequest) unquarantine(want *AdmissionObject) {
	asked, ok := r.New.Annotations[v1alpha1.UnquarantineAnnotation]
	if !ok {
		// An earlier call for this request may have used it up.
		u, done := ParseUnquarantined(r.New.Annotations[v1alpha1.UnquarantinedAnnotation])
		if !done || u.ResourceVersion == "" || u.ResourceVersion != r.Old.ResourceVersion {
			return
		}
		asked = u.Asked
	}
	delete(want.Annotations, v1alpha1.UnquarantineAnnotation)
	if r.Releases() || OptedOut(r.Old.Labels) {
		return
	}
	user := cutAtRune(cmp.Or(r.User, UnknownUser), maxUser)
	if cut(strings.TrimSpace(r.Old.Annotations[v1alpha1.UnquarantineAnnotation])) == cut(strings.TrimSpace(asked)) {
		user = UnknownUser // it came while admission was down
	}
	q, done := ParseQuarantine(want.Annotations, r.Now).Unquarantine(asked, user)
	done.ResourceVersion = r.Old.ResourceVersion
	q.Annotate(want.Annotations)
	want.Annotations[v1alpha1.UnquarantinedAnnotation] = done.String()
}
