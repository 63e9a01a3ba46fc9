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

package rollback

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Input is the input of Decide.
type Input struct {
	Now time.Time
	// Settings are the settings of the workload.
	Settings settings.Settings
	Workload *workload.Workload
	// Enrolled: the namespace is enrolled.
	Enrolled bool
	// Changes are the ChangeWorkloads of the workload.
	Changes []v1alpha1.ChangeWorkload
	// Pods are the pods of the workload's current revision.
	Pods []workload.Pod
	// History are the successful versions of the workload that are remembered.
	History []workload.Revision
	// Limit counts rollbacks for the rollback limit.
	Limit Limit
}

// LastSuccess is the value of RollbackToAnnotation that requests the newest successful version.
const LastSuccess = "last-success"

// BeforeOptIn is the prefix of the value of RollbackToAnnotation if the workload opted in together
// with it. The request is refused, with an event.
const BeforeOptIn = "before opting in: "

// Rollback sets a workload back to an earlier version.
type Rollback struct {
	// From and To are versions.
	From, To string
	// Old or History has the template; exactly one is set.
	Old     *workload.OldRevision
	History *workload.Revision
	// Pod is the pod that did not come up; empty for other causes. NeedsCause is set if only the
	// events of the pod have the cause.
	Pod        string
	NeedsCause *workload.Pod
	// Why is the reason of the quarantine of From.
	Why QuarantineReason
}

// ChangeCausePrefix is the prefix of ChangeCause.
const ChangeCausePrefix = "AlterShield rolled back "

// ChangeCause returns the change cause of the revision that the rollback creates.
func (r *Rollback) ChangeCause() string {
	return fmt.Sprintf(ChangeCausePrefix+"version %s to %s: %s", r.From, r.To, wording.Printable(r.Why.String()))
}

// Plan is the result of Decide.
type Plan struct {
	// Rollback is set when the workload is to be rolled back.
	Rollback *Rollback
	// Refusal is why a request is refused. The request is consumed.
	Refusal string
	// RequeueAfter is when to decide again, if nothing happens before.
	RequeueAfter time.Duration
}

// Asked reports whether a user requested the rollback. The rollback limit counts only other
// rollbacks.
func (r *Rollback) Asked() bool { return r.Why.Cause == v1alpha1.ReasonRollbackRequested }

// Decide decides whether a workload is rolled back, and to which version.
//
// It never loops: a version that is rolled back is in quarantine from then on. Without a request,
// Decide does not roll back a version in quarantine, a version that was released by an override, or
// a release that a rollback made. So a user has to release before each such rollback: another
// version at any time, the same version only after its quarantine, which takes twice as long each
// time.
func Decide(in Input) Plan {
	w := in.Workload
	// A release that admission missed is recorded first.
	if w.Deleting || !in.Enrolled || workload.OptedOut(w.Labels) || w.RecordedVersion() != "" && w.RecordedVersion() != w.Version {
		return Plan{}
	}
	if request, ok := w.Annotations[v1alpha1.RollbackToAnnotation]; ok {
		if w.RecordedVersion() != "" && len(in.Changes) == 0 {
			return Plan{RequeueAfter: LookAgain} // the owner of the record is decided first
		}
		return in.requested(strings.TrimSpace(request))
	}
	change := in.current()
	if change == nil {
		return Plan{}
	}
	if plan, due := in.selfHealing(change); due {
		return plan
	}
	return in.neverStarted(change)
}

// Request returns the version to which a request for a version, or LastSuccess, leads, or why it is
// refused.
func Request(in Input, version string) (to, refusal string) {
	plan := in.requested(version)
	if plan.Rollback == nil {
		return "", plan.Refusal
	}
	return plan.Rollback.To, ""
}

// NeedsPods reports whether the decision depends on pods: during the rollout of a release, and for
// some time after its Success.
func (in *Input) NeedsPods() bool {
	change := in.current()
	if change == nil || !in.Settings.Rollback {
		return false
	}
	s := start{*in, &change.Status}
	succeeded, proven := record.SucceededAt(s.status), in.Settings.RollbackProven
	young := in.Now.Sub(succeeded) < proven+3*in.Settings.RollbackAfter+in.Settings.RollbackSlow
	return succeeded.IsZero() || proven > 0 && (young || !s.failingSince().IsZero())
}

// current returns the record of the current release of the workload, if it is recorded as an
// attempt of its own.
func (in *Input) current() *v1alpha1.ChangeWorkload {
	for i := range in.Changes {
		c := &in.Changes[i]
		if c.DeletionTimestamp == nil && c.Spec.Reversion == in.Workload.Version && c.Spec.Release == in.Workload.Release() &&
			c.Status.ObservedRelease == c.Spec.Release {
			return c
		}
	}
	return nil
}

func (in *Input) requested(version string) Plan {
	w := in.Workload
	q, history := ParseQuarantine(w.Annotations, in.Now), w.Content.Restorable(in.History)
	target := (*workload.Revision)(nil)
	switch {
	case strings.HasPrefix(version, BeforeOptIn):
		return Plan{Refusal: LaidBefore}
	case w.Rollbacks == v1alpha1.RollbackNever:
		return Plan{Refusal: "spec.rollback of the ChangeKind is Never"}
	case w.ObservingOwner() != "":
		return Plan{Refusal: "the workload is in observe mode, because the " + w.ObservingOwner() + " owns it"}
	case in.Settings.Observe:
		return Plan{Refusal: "the workload is in observe mode (setting observe)"}
	case version == w.Version:
		return Plan{Refusal: fmt.Sprintf("version %s is the current one", version)}
	case (version == "" || version == LastSuccess) && in.restoring():
		// A repeated request does not go back one more version.
		return Plan{Refusal: fmt.Sprintf("version %s is being restored already", w.Version)}
	case version == "" || version == LastSuccess:
		if target = NewestRevision(history, w.Version, q); target == nil {
			return Plan{Refusal: "the history has no version except the current one and those that were rolled back"}
		}
	case q.Holds(version):
		return Plan{Refusal: DescribeQuarantine(version, q)}
	default:
		i := slices.IndexFunc(history, func(r workload.Revision) bool { return r.Version == version })
		if i < 0 {
			return Plan{Refusal: fmt.Sprintf("the history has no successful version %s", wording.Cut(version))}
		}
		target = &history[i]
	}
	r := in.rollback(v1alpha1.ReasonRollbackRequested, target.Version)
	r.History = target
	return Plan{Rollback: r}
}

// restoring reports whether the workload was rolled back to its current version, which is not
// verified yet.
func (in *Input) restoring() bool {
	change := in.current()
	restored := ParseQuarantine(in.Workload.Annotations, in.Now).Restored(in.Workload.Version, in.Workload.Release())
	return restored && (change == nil || record.IsOpen(change.Status.Status))
}

func (in *Input) rollback(cause, to string) *Rollback {
	w := in.Workload
	return &Rollback{From: w.Version, To: to, Why: QuarantineReason{
		Time: in.Now.UTC().Format(time.RFC3339), Cause: cause, Release: w.Release(), To: to,
	}}
}

// selfHealing rolls back a release that was suspended while self-healing was on: turning it on
// later rolls back nothing. due is false if there is nothing to heal.
func (in *Input) selfHealing(change *v1alpha1.ChangeWorkload) (plan Plan, due bool) {
	if !in.Settings.SelfHealing || change.Status.Status != v1alpha1.ChangeWorkloadSuspend || !HealingIsDue(&change.Status) {
		return Plan{}, false
	}
	target, refusal := SelfHealingTarget(in.Workload, in.History, in.Changes, in.Now)
	if refusal != "" {
		return Plan{}, false
	}
	if why, left := Limited(&change.Status, in.Workload, in.Limit, in.Settings, in.Now); why != "" {
		return Plan{RequeueAfter: left}, true
	}
	r := in.rollback(v1alpha1.ReasonVerificationFailed, target.Version)
	r.History = target
	r.Why.Explain(change)
	return in.planned(r), true
}

// HealingHeld is the prefix of the message of the condition RolledBack for a failed release that
// the rollback limit, or a refusal, keeps from being healed for now. A release that the limit keeps from being rolled back
// only because its pods do not come up is not healed when self-healing is turned on later.
const HealingHeld = "the release failed; not rolled back: "

// HealingIsDue reports whether a release failed while self-healing was on.
func HealingIsDue(status *v1alpha1.ChangeWorkloadStatus) bool {
	due := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionRolledBack)
	return due != nil && (due.Status == metav1.ConditionUnknown ||
		(due.Reason == v1alpha1.ReasonRollbackLimit || due.Reason == v1alpha1.ReasonRollbackRefused) &&
			strings.HasPrefix(record.Detail(due), HealingHeld))
}

// planned returns the plan for a rollback that no user requested. In observe mode, the record of
// the release reports the rollback.
func (in *Input) planned(r *Rollback) Plan {
	if in.Settings.Observe {
		return Plan{}
	}
	return Plan{Rollback: r}
}

// SelfHealingTarget returns the version to which a release that failed its verification is rolled
// back, or why it is not.
func SelfHealingTarget(
	w *workload.Workload, history []workload.Revision, changes []v1alpha1.ChangeWorkload, now time.Time,
) (target *workload.Revision, refusal string) {
	q := ParseQuarantine(w.Annotations, now)
	if refusal = notByItself(w, q); refusal != "" {
		return nil, refusal
	}
	if target = provenSuccess(w.Content.Restorable(history), w.Version, q, changes); target == nil {
		return nil, "the history has no other successful version"
	}
	return target, ""
}

// neverStarted rolls back a release whose pods do not come up.
func (in *Input) neverStarted(change *v1alpha1.ChangeWorkload) Plan {
	s := start{*in, &change.Status}
	still := s.judge()
	if still.old == nil && still.revision == nil || still.Refusal != "" {
		return Plan{RequeueAfter: still.Wait}
	}
	cause := v1alpha1.ReasonNeverStarted
	if change.Status.Status == v1alpha1.ChangeWorkloadSuspend {
		// The release failed, even if it comes up.
		cause = v1alpha1.ReasonVerificationFailed
	}
	r := in.rollback(cause, "")
	if still.old != nil {
		r.Old, r.To = still.old, still.old.Version
	} else {
		r.History, r.To = still.revision, still.revision.Version
	}
	r.Why.To = r.To
	first := still.First
	r.Why.Container, r.Why.Reason, r.Why.Message = first.Cause.Container, first.Cause.Reason, first.Cause.Message
	if first.Pod != nil {
		r.Pod, r.Why.Pod = first.Pod.Name, first.Pod.Name
		if first.Cause.NeedsEvents() {
			r.NeedsCause = first.Pod
		}
	}
	if cause == v1alpha1.ReasonNeverStarted && !s.everFinished() {
		in.setTerm(r)
	}
	return in.planned(r)
}

// NoteRefused records in the status of a release that a rollback of it, which no user requested, cannot be made, and reports
// whether the status changed.
func NoteRefused(s *v1alpha1.ChangeWorkloadStatus, generation int64, now time.Time, why string) bool {
	held := "not rolled back: "
	if HealingIsDue(s) {
		held = HealingHeld
	}
	why = held + wording.Brief(why)
	said := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRolledBack)
	if said != nil && said.Reason == v1alpha1.ReasonRollbackRefused && record.Detail(said) == why {
		return false
	}
	record.ConditionsOfRelease(s, generation, now).
		Set(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRollbackRefused, "%s", why)
	return true
}

// maxQuarantine is the longest quarantine of a version that never started.
const maxQuarantine = 24 * time.Hour

// setTerm sets the end of the quarantine of a version of which no pod finished: its cause may be
// resolved by then. The quarantine takes twice as long each time the version fails again.
func (in *Input) setTerm(r *Rollback) {
	r.Why.Times = ParseQuarantine(in.Workload.Annotations, in.Now).times(r.From) + 1
	if !in.Settings.Quarantine {
		return
	}
	term := min(in.Settings.QuarantineFor, maxQuarantine)
	for range r.Why.Times - 1 {
		term = min(2*term, maxQuarantine)
	}
	r.Why.Until = in.Now.Add(term).UTC().Format(time.RFC3339)
}

// LaidBefore is why a request is refused that was on the workload when its defense began.
const LaidBefore = "it was on the workload when its defense began; to repeat it, set it again with kubectl annotate"
