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
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// NeedsPast says that the answer to a request depends on the Past: it releases
// something while the workload is blocked, or halted, or touches the block.
func (r *Request) NeedsPast() bool {
	return r.Operation == Update && !r.Own && !workload.OptedOut(r.New.Labels) &&
		(r.released() && r.Old.haltedBy() != "" || r.Old.suspended() && r.touches())
}

// undo says that a request leaves a version that failed its verification for
// one that succeeded before, while the operator blocks or halts the workload
// because of it. It also says why that version was left. Only mutation asks this,
// which sees the template before it is what would be stored.
func (r *Request) undo() (left rollback.QuarantineReason, ok bool) {
	return r.undoTo(r.leadsTo())
}

func (r *Request) undoTo(version string) (left rollback.QuarantineReason, ok bool) {
	if !r.NeedsPast() || r.Past == nil || version == r.Old.Version || r.overrides() || r.suspendTouched() || r.blockedByUser() ||
		rollback.ParseQuarantine(r.Old.Annotations, r.Now).Holds(version) || !rollback.Remembered(r.Past.History, version) {
		return rollback.QuarantineReason{}, false
	}
	failed := r.failedRecord()
	if failed == nil {
		return rollback.QuarantineReason{}, false
	}
	left = rollback.QuarantineReason{
		Time: r.Now.UTC().Format(time.RFC3339), Cause: v1alpha1.ReasonVerificationFailed,
		Release: failed.Spec.Release, To: version, By: wording.CutAtRune(cmp.Or(r.User, workload.UnknownUser), workload.MaxUser),
	}
	left.Explain(failed)
	return left, true
}

// GoesBack says that a request is an undo, for mutation.
func (r *Request) GoesBack() bool {
	_, ok := r.undo()
	return ok
}

// wentBack says that a request is an undo, and that mutation made it one: the
// version that is left is in quarantine with it. Only validation asks this: it
// looks at what would be stored.
func (r *Request) wentBack() bool {
	if _, ok := r.undoTo(r.New.Version); !ok {
		return false
	}
	why, held := rollback.ParseQuarantine(r.New.Annotations, r.Now).Reason(r.Old.Version)
	return held && why.To == r.New.Version && why.Release == workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation])
}

// failedRecord is the record of the release that the request leaves, if that
// failed its verification.
func (r *Request) failedRecord() *v1alpha1.ChangeWorkload {
	if r.Past == nil {
		return nil
	}
	release := workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation])
	i := slices.IndexFunc(r.Past.Changes, func(c v1alpha1.ChangeWorkload) bool {
		return c.DeletionTimestamp == nil && c.Spec.Reversion == r.Old.Version && c.Spec.Release == release && c.Status.ObservedRelease == release
	})
	if i < 0 || r.Past.Changes[i].Status.Status != v1alpha1.ChangeWorkloadSuspend {
		return nil
	}
	return &r.Past.Changes[i]
}

// blockedByUser says that the block is not the operator's.
func (r *Request) blockedByUser() bool {
	return r.Old.suspended() && r.Old.Annotations[v1alpha1.SuspendedByAnnotation] == ""
}

// restores reports whether the operator lifts the block by itself once the version that
// the workload was set back to runs.
func (r *Request) restores() bool {
	release := r.Old.Annotations[v1alpha1.ReleaseAnnotation]
	version, number, _ := record.ParseBlockedBy(r.Old.Annotations)
	return version != "" && (version != r.Old.Version || number != release) &&
		rollback.ParseQuarantine(r.Old.Annotations, r.Now).Restored(r.Old.Version, workload.ParseRelease(release))
}

// unquarantine carries UnquarantineAnnotation out, and uses it up. One that comes
// with another template is about the workload as it was.
func unquarantine(r *Request, want *Object) {
	asked, ok := r.New.Annotations[v1alpha1.UnquarantineAnnotation]
	if !ok {
		// An earlier call for this request may have used it up.
		u, done := rollback.ParseUnquarantined(r.New.Annotations[v1alpha1.UnquarantinedAnnotation])
		if !done || u.ResourceVersion == "" || u.ResourceVersion != r.Old.ResourceVersion {
			return
		}
		asked = u.Asked
	}
	delete(want.Annotations, v1alpha1.UnquarantineAnnotation)
	if r.Releases() || workload.OptedOut(r.Old.Labels) {
		return
	}
	user := wording.CutAtRune(cmp.Or(r.User, workload.UnknownUser), workload.MaxUser)
	if wording.Cut(strings.TrimSpace(r.Old.Annotations[v1alpha1.UnquarantineAnnotation])) == wording.Cut(strings.TrimSpace(asked)) {
		user = workload.UnknownUser // it came while admission was down
	}
	q, done := rollback.ParseQuarantine(want.Annotations, r.Now).Unquarantine(asked, user)
	done.ResourceVersion = r.Old.ResourceVersion
	q.Annotate(want.Annotations)
	want.Annotations[v1alpha1.UnquarantinedAnnotation] = done.String()
}
