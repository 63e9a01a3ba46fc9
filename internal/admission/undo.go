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

// NeedsPast reports whether the answer to a request depends on Past: the request is a release while the workload is
// blocked or halted, or it touches the block.
func (r *Request) NeedsPast() bool {
	return r.Operation == Update && !r.Own && !workload.OptedOut(r.New.Labels) &&
		(r.released() && r.Old.haltedBy() != "" || r.Old.suspended() && r.touches())
}

// undo reports whether a request replaces a version that failed its verification, and blocks or halts the workload, by
// a version that succeeded before; left explains the failure. Only mutation calls it, with the template before it is
// stored.
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

// GoesBack reports whether a request is an undo, for mutation.
func (r *Request) GoesBack() bool {
	_, ok := r.undo()
	return ok
}

// wentBack reports whether a request is an undo that mutation recognized: it quarantined the replaced version. Only
// validation calls it, with the template as stored.
func (r *Request) wentBack() bool {
	if _, ok := r.undoTo(r.New.Version); !ok {
		return false
	}
	why, ok := rollback.ParseQuarantine(r.New.Annotations, r.Now).Reason(r.Old.Version)
	return ok && why.To == r.New.Version && why.Release == workload.ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation])
}

// failedRecord returns the record of the release that the request replaces, if it failed its verification.
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

// blockedByUser reports whether a user, not the operator, set the block.
func (r *Request) blockedByUser() bool {
	return r.Old.suspended() && r.Old.Annotations[v1alpha1.SuspendedByAnnotation] == ""
}

// restores reports whether the operator lifts the block by itself when the restored version of the workload runs.
func (r *Request) restores() bool {
	release := r.Old.Annotations[v1alpha1.ReleaseAnnotation]
	version, number, _ := record.ParseBlockedBy(r.Old.Annotations)
	return version != "" && (version != r.Old.Version || number != release) &&
		rollback.ParseQuarantine(r.Old.Annotations, r.Now).Restored(r.Old.Version, workload.ParseRelease(release))
}

// unquarantine carries out UnquarantineAnnotation and removes it. A request with another template was made for the old
// one.
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
		user = workload.UnknownUser // it was set while admission was down
	}
	q, done := rollback.ParseQuarantine(want.Annotations, r.Now).Unquarantine(asked, user)
	done.ResourceVersion = r.Old.ResourceVersion
	q.Annotate(want.Annotations)
	want.Annotations[v1alpha1.UnquarantinedAnnotation] = done.String()
}
