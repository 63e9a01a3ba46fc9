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
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// RollbackInput is what a decision to roll a workload back is made from.
type RollbackInput struct {
	Now time.Time
	// Settings in force for the workload.
	Settings settings.Settings
	Workload *Workload
	// Enrolled says that the namespace is under defense.
	Enrolled bool
	// Changes are the ChangeWorkloads of the workload.
	Changes []v1alpha1.ChangeWorkload
	// Pods are the pods of the workload's current revision.
	Pods []Pod
	// History are the successful versions of the workload that are remembered.
	History []Revision
}

// lookAgain is when to look again at what is due and cannot be done.
const lookAgain = 30 * time.Second

// LastSuccess is the value of RollbackToAnnotation that asks for the newest
// version that succeeded.
const LastSuccess = "last-success"

// Rollback sets a workload back to an earlier version.
type Rollback struct {
	// From and To are versions.
	From, To string
	// The template is that of Old, else what History remembers; one is set.
	Old     *OldRevision
	History *Revision
	// Pod is the one that did not come up; empty for other causes.
	Pod string
	// Why is what the workload's quarantine says of From.
	Why QuarantineReason
}

// changeCausePrefix begins what ChangeCause says.
const changeCausePrefix = "AlterShield rolled back "

// ChangeCause explains the revision that the rollback makes.
func (r *Rollback) ChangeCause() string {
	return fmt.Sprintf(changeCausePrefix+"version %s to %s: %s", r.From, r.To, r.Why)
}

// RollbackPlan is what to do about a rollback.
type RollbackPlan struct {
	// Rollback is set when the workload is to be rolled back.
	Rollback *Rollback
	// Refusal is why a request is not carried out. The request is consumed.
	Refusal string
	// RequeueAfter says when to look again, if nothing happens before.
	RequeueAfter time.Duration
}

// DecideRollback says whether a workload is rolled back, and to what.
//
// It never loops. Whatever is rolled back from is in quarantine from then on;
// without a request this leaves neither a version in quarantine or released out
// of it by an override, nor a release that a rollback made. So each rollback of
// its own needs a release of somebody else's before it.
func DecideRollback(in RollbackInput) RollbackPlan {
	w := in.Workload
	// A release that admission did not record is, before anything else.
	if w.Deleting || !in.Enrolled || OptedOut(w.Labels) || w.RecordedVersion() != "" && w.RecordedVersion() != w.Version {
		return RollbackPlan{}
	}
	if request, ok := w.Annotations[v1alpha1.RollbackToAnnotation]; ok {
		return in.requested(strings.TrimSpace(request))
	}
	change := in.current()
	if change == nil {
		return RollbackPlan{}
	}
	if r := in.selfHealing(change); r != nil {
		return RollbackPlan{Rollback: r}
	}
	return in.neverStarted(change)
}

// RequestRollback says what a request for a version, or LastSuccess, comes to:
// the version it goes to, or why it is refused.
func RequestRollback(in RollbackInput, version string) (to, refusal string) {
	plan := in.requested(version)
	if plan.Rollback == nil {
		return "", plan.Refusal
	}
	return plan.Rollback.To, ""
}

// current is the record of the release the workload is at, once that is an
// attempt of its own.
func (in *RollbackInput) current() *v1alpha1.ChangeWorkload {
	for i := range in.Changes {
		c := &in.Changes[i]
		if c.DeletionTimestamp == nil && c.Spec.Reversion == in.Workload.Version && c.Spec.Release == in.Workload.Release() &&
			c.Status.ObservedRelease == c.Spec.Release {
			return c
		}
	}
	return nil
}

func (in *RollbackInput) requested(version string) RollbackPlan {
	w := in.Workload
	q := ParseQuarantine(w.Annotations)
	target := (*Revision)(nil)
	switch {
	case version == w.Version:
		return RollbackPlan{Refusal: fmt.Sprintf("version %s is the current one", version)}
	case (version == "" || version == LastSuccess) && in.restoring():
		// A request that is repeated does not go back another version.
		return RollbackPlan{Refusal: fmt.Sprintf("version %s is being restored already", w.Version)}
	case version == "" || version == LastSuccess:
		if target = newestSuccess(in.History, w.Version, q); target == nil {
			return RollbackPlan{Refusal: "no successful version is remembered but the current one and those that were rolled back"}
		}
	case q.Holds(version):
		return RollbackPlan{Refusal: describeQuarantine(version, q)}
	default:
		i := slices.IndexFunc(in.History, func(r Revision) bool { return r.Version == version })
		if i < 0 {
			return RollbackPlan{Refusal: fmt.Sprintf("no successful version %s is remembered", cut(version))}
		}
		target = &in.History[i]
	}
	r := in.rollback(v1alpha1.ReasonRollbackRequested, target.Version)
	r.History = target
	return RollbackPlan{Rollback: r}
}

// restoring says that the workload was rolled back to its current version, which
// is not verified yet.
func (in *RollbackInput) restoring() bool {
	change := in.current()
	return ParseQuarantine(in.Workload.Annotations).restored(in.Workload) && (change == nil || IsOpen(change.Status.Status))
}

func (in *RollbackInput) rollback(cause, to string) *Rollback {
	w := in.Workload
	return &Rollback{From: w.Version, To: to, Why: QuarantineReason{
		Time: in.Now.UTC().Format(time.RFC3339), Cause: cause, Release: w.Release(), To: to,
	}}
}

// selfHealing rolls a release back that was suspended while self-healing was
// on: turning it on later rolls nothing back.
func (in *RollbackInput) selfHealing(change *v1alpha1.ChangeWorkload) *Rollback {
	due := meta.FindStatusCondition(change.Status.Conditions, v1alpha1.ConditionRolledBack)
	if !in.Settings.SelfHealing || change.Status.Status != v1alpha1.ChangeWorkloadSuspend ||
		due == nil || due.Status != metav1.ConditionUnknown {
		return nil
	}
	target, refusal := selfHealingTarget(in.Workload, in.History)
	if refusal != "" {
		return nil
	}
	r := in.rollback(v1alpha1.ReasonVerificationFailed, target.Version)
	r.History = target
	if failed := change.Status.DefenseCheckFailPods; len(failed) > 0 {
		r.Why.Pod, r.Why.Reason, r.Why.Message = failed[0].Pod, failed[0].Verdict, Brief(failed[0].Message)
	} else {
		r.Why.Message = Brief(conditionMessage(&change.Status, v1alpha1.ConditionVerified))
	}
	return r
}

// selfHealingTarget is where a release that failed its verification is rolled
// back to, or why it is not.
func selfHealingTarget(w *Workload, history []Revision) (target *Revision, refusal string) {
	q := ParseQuarantine(w.Annotations)
	if refusal = notByItself(w, q); refusal != "" {
		return nil, refusal
	}
	if target = newestSuccess(history, w.Version, q); target == nil {
		return nil, "no other successful version is remembered"
	}
	return target, ""
}

// notByItself is why the release a workload is at is never rolled back without a
// request, if it is not. These keep rollbacks from going on for ever.
func notByItself(w *Workload, q Quarantine) string {
	switch {
	case q.Holds(w.Version):
		return describeQuarantine(w.Version, q) + "; it is not rolled back again"
	case q.overridden(w.Version):
		return describeQuarantine(w.Version, q) + ", and released again by an override; it is not rolled back again"
	case q.restored(w):
		return fmt.Sprintf("version %s was itself restored by a rollback", w.Version)
	case w.pausedByUser():
		return "the " + w.Kind + " is paused by a user"
	default:
		return ""
	}
}

// neverStarted rolls a release back when a pod of it does not come up.
func (in *RollbackInput) neverStarted(change *v1alpha1.ChangeWorkload) RollbackPlan {
	if !canHang(in.Workload, change.Status.Status, in.Settings) {
		return RollbackPlan{}
	}
	pod, wait := overdue(in.Now, in.Workload, &change.Status, in.Pods, in.Settings.RollbackAfter)
	if pod == nil {
		return RollbackPlan{RequeueAfter: wait}
	}
	old, refusal := runningTarget(in.Workload, in.Changes)
	if refusal != "" {
		// What it depends on is seen through more than one watch.
		return RollbackPlan{RequeueAfter: lookAgain}
	}
	r := in.rollback(v1alpha1.ReasonNeverStarted, old.Version)
	r.Old, r.Pod = old, pod.Name
	r.Why.Pod, r.Why.Container, r.Why.Reason, r.Why.Message = pod.Name, pod.Hang.Container, pod.Hang.Reason, pod.Hang.Message
	return RollbackPlan{Rollback: r}
}

// canHang says that a release is being rolled out, and rolled back when its pods
// do not come up. Whether they are verified does not matter.
func canHang(w *Workload, state v1alpha1.ChangeWorkloadStatusType, s settings.Settings) bool {
	return s.Rollback && !w.Rollout.Complete &&
		(IsOpen(state) || state == v1alpha1.ChangeWorkloadSuspend || state == v1alpha1.ChangeWorkloadFailed)
}

// overdue is the pod that has hung for longest beyond what it may, in this
// attempt of the release, else how long until one does; 0 when none hangs.
func overdue(now time.Time, w *Workload, release *v1alpha1.ChangeWorkloadStatus, pods []Pod, after time.Duration) (pod *Pod, wait time.Duration) {
	began := time.Unix(release.StartTimeUnix, 0)
	var first time.Time
	for i := range pods {
		h := pods[i].Hang
		if h == nil {
			continue
		}
		limit := after
		if h.slow(now, after) {
			if w.ProgressDeadline == 0 {
				continue
			}
			limit = max(after, w.ProgressDeadline)
		}
		// A pod that was there before is given its time, too.
		since := h.since(now, limit)
		if since.Before(began) {
			since = began
		}
		due := since.Add(limit)
		switch left := due.Sub(now); {
		case left > 0 && (wait == 0 || left < wait):
			wait = left
		case left <= 0 && (pod == nil || due.Before(first)):
			pod, first = &pods[i], due
		}
	}
	return pod, wait
}

// runningTarget is the older version a release is rolled back to when it does
// not come up: the newest one that still runs healthily and is not itself known
// to be bad. Else it says why there is none.
func runningTarget(w *Workload, changes []v1alpha1.ChangeWorkload) (target *OldRevision, refusal string) {
	q := ParseQuarantine(w.Annotations)
	if refusal = notByItself(w, q); refusal != "" {
		return nil, refusal
	}
	if !w.Rolling {
		return nil, "the strategy is not RollingUpdate: no pods of an older version run"
	}
	olds := slices.Clone(w.OldRevisions)
	slices.SortFunc(olds, func(a, b OldRevision) int { return cmp.Compare(b.Number, a.Number) })
	refusal = "no pods of an older version run"
	for i := range olds {
		switch old := &olds[i]; {
		case old.Version == w.Version:
		case q.Holds(old.Version) || knownBad(old.Version, changes):
			refusal = fmt.Sprintf("version %s, whose pods still run, failed itself", old.Version)
		case old.Available < old.Replicas:
			refusal = fmt.Sprintf("version %s, whose pods still run, is not healthy: %d of %d pods are available", old.Version, old.Available, old.Replicas)
		default:
			return old, ""
		}
	}
	return nil, refusal
}

func knownBad(version string, changes []v1alpha1.ChangeWorkload) bool {
	return slices.ContainsFunc(changes, func(c v1alpha1.ChangeWorkload) bool {
		return c.Spec.Reversion == version && (c.Status.Status == v1alpha1.ChangeWorkloadSuspend || c.Status.Status == v1alpha1.ChangeWorkloadRollback)
	})
}
