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

package observer

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// fails reports whether a verdict is not empty and does not pass.
func fails(verdict string) bool { return verdict != "" && verdict != "pass" && verdict != "none" }

// terminal reports whether a release stays in a state unless something happens.
func terminal(s v1alpha1.ChangeWorkloadStatusType) bool {
	switch s {
	case v1alpha1.ChangeWorkloadSuccess, v1alpha1.ChangeWorkloadSuspend, v1alpha1.ChangeWorkloadFailed, v1alpha1.ChangeWorkloadRollback,
		v1alpha1.ChangeWorkloadCanceled:
		return true
	default:
		return false
	}
}

// asksByHand reports whether a user set the state Rollback to request a rollback: a rollback of the
// operator has the condition RolledBack.
func asksByHand(s *v1alpha1.ChangeWorkloadStatus) bool {
	return s.Status == v1alpha1.ChangeWorkloadRollback && !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionRolledBack)
}

// checkRelease judges two consecutive versions of a ChangeWorkload alone. Users may write anything.
func checkRelease(before, after *v1alpha1.ChangeWorkload, by Writer) []finding {
	if by != Operator {
		return nil
	}
	b, a := &before.Status, &after.Status
	var findings []finding
	add := func(violated bool, i Invariant, format string, args ...any) {
		if violated {
			findings = append(findings, found(i, format, args...))
		}
	}
	add(after.Spec.Release < before.Spec.Release, VerdictOnce, "the release went back from %d to %d", before.Spec.Release, after.Spec.Release)
	add(a.Batches < b.Batches, VerdictOnce, "the number of the last batch went back from %d to %d", b.Batches, a.Batches)
	if a.Attempt != b.Attempt {
		add(a.Attempt != b.Attempt+1, VerdictOnce, "attempt %d follows attempt %d", a.Attempt, b.Attempt)
		add(b.Attempt > 0 && a.ObservedRelease <= b.ObservedRelease, VerdictOnce, "attempt %d is of release %d, attempt %d was of %d",
			a.Attempt, a.ObservedRelease, b.Attempt, b.ObservedRelease)
	} else {
		add(b.Attempt > 0 && a.ObservedRelease != b.ObservedRelease, VerdictOnce, "attempt %d was of release %d and is of %d",
			a.Attempt, b.ObservedRelease, a.ObservedRelease)
		add(!follows(b.Status, a.Status) && !asksByHand(b), TerminalStays, "%q follows %q, which is terminal, within attempt %d",
			a.Status, b.Status, a.Attempt)
		findings = append(findings, checkVerdict("order's PRE", b.OrderPreVerdict, a.OrderPreVerdict)...)
		findings = append(findings, checkVerdict("order's POST", b.OrderPostVerdict, a.OrderPostVerdict)...)
	}
	// A release whose requested rollback is impossible becomes Success again. Its later pods are
	// verified, too.
	again := asksByHand(b) && b.SuccessTimeUnix > 0 && a.Attempt == b.Attempt
	if a.Status == v1alpha1.ChangeWorkloadSuccess && b.Status != a.Status && !again {
		add(a.FailCount+a.CheckingCount+a.PreparingCount > 0, EachPodOnce, "success with %d failed, %d unverified and %d waiting pods",
			a.FailCount, a.CheckingCount, a.PreparingCount)
		for i := range a.Checks {
			c := &a.Checks[i]
			add(c.Type != "" && !c.Background && c.CompletionTime == nil, EachPodOnce, "success while the check %s goes on", c.Name)
		}
	}
	return findings
}

// follows reports whether a state may follow another within an attempt.
func follows(before, after v1alpha1.ChangeWorkloadStatusType) bool {
	var next []v1alpha1.ChangeWorkloadStatusType
	switch before {
	case after:
		return true
	case v1alpha1.ChangeWorkloadSuccess:
		next = []v1alpha1.ChangeWorkloadStatusType{v1alpha1.ChangeWorkloadSuspend, v1alpha1.ChangeWorkloadRollback}
	case v1alpha1.ChangeWorkloadSuspend:
		next = []v1alpha1.ChangeWorkloadStatusType{
			v1alpha1.ChangeWorkloadRunning, v1alpha1.ChangeWorkloadSuccess, v1alpha1.ChangeWorkloadRollback,
		}
	case v1alpha1.ChangeWorkloadFailed:
		next = []v1alpha1.ChangeWorkloadStatusType{v1alpha1.ChangeWorkloadRollback}
	case v1alpha1.ChangeWorkloadRollback, v1alpha1.ChangeWorkloadCanceled:
	default:
		return true
	}
	return slices.Contains(next, after)
}

// checkVerdict judges two consecutive versions of a stored verdict within an attempt: the first
// verdict stays, except that a failure may replace a pass.
func checkVerdict(which string, before, after *v1alpha1.CheckVerdict) []finding {
	switch {
	case before == nil || after != nil && *before == *after:
		return nil
	case after == nil:
		return []finding{found(VerdictOnce, "the verdict %q on the %s check is gone", before.Verdict, which)}
	case !fails(before.Delivered) && fails(after.Delivered):
		return nil
	default:
		return []finding{found(VerdictOnce, "the verdict on the %s check changed from %q (delivered %q, node %s) to %q (delivered %q, node %s)",
			which, before.Verdict, before.Delivered, before.NodeID, after.Verdict, after.Delivered, after.NodeID)}
	}
}

func startedAgain(s *v1alpha1.ChangePodStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionSubmitted)
	return c != nil && c.Reason == v1alpha1.ReasonStartedAgain
}

// checkBatch judges two consecutive versions of a ChangePod. applied are the failures that are in
// the results of the earlier version.
func checkBatch(before, after *v1alpha1.ChangePod, by Writer, applied []string) []finding {
	if by != Operator {
		return nil
	}
	b, a := &before.Status, &after.Status
	findings := append(checkVerdict("PRE", b.PreVerdict, a.PreVerdict), checkVerdict("POST", b.PostVerdict, a.PostVerdict)...)
	for _, v := range []struct{ before, after *v1alpha1.CheckVerdict }{{b.PreVerdict, a.PreVerdict}, {b.PostVerdict, a.PostVerdict}} {
		if v.after != nil && (v.before == nil || *v.before != *v.after) && v.after.NodeID != a.ChangePodID {
			findings = append(findings, found(VerdictOnce, "a verdict on node %s was stored on the batch that is node %q",
				v.after.NodeID, a.ChangePodID))
		}
	}
	// The server may lose the order entry of a PRE check: the check is then started again, once.
	again := b.Status == v1alpha1.ChangePodPreSubmitted && b.PreVerdict == nil && !startedAgain(b) && startedAgain(a)
	if b.ChangePodID != "" && b.ChangePodID != a.ChangePodID && !again {
		findings = append(findings, found(VerdictOnce, "the batch was node %s and is node %q", b.ChangePodID, a.ChangePodID))
	}
	if b.Status != v1alpha1.ChangePodExecuteDone {
		return findings
	}
	if a.Status != b.Status {
		findings = append(findings, found(TerminalStays, "%q follows %q, which is terminal", a.Status, b.Status))
	}
	if !equality.Semantic.DeepEqual(b.PodResults, a.PodResults) {
		switch {
		case len(applied) > 0 && !failsFurther(b, a, applied):
			findings = append(findings, found(VerdictOnce, "a failing verdict was applied to the pods a second time"))
		case len(failures(a)) == 0:
			findings = append(findings, found(VerdictOnce, "the results of a batch that was done changed without a failing verdict"))
		}
	}
	return findings
}

// isSilent reports whether a check ended without a verdict. This may fail its pods, also in the
// background: the policy or the setting silence decides.
func isSilent(phase v1alpha1.CheckPhase) bool {
	return phase == v1alpha1.CheckError || phase == v1alpha1.CheckNoData || phase == v1alpha1.CheckInconclusive
}

// failures returns the failures of a batch: the failing verdicts of the server that no user
// corrected, and the failed checks of policies in enforce mode.
func failures(s *v1alpha1.ChangePodStatus) (failing []string) {
	for _, c := range s.Checks {
		if c.Mode == v1alpha1.ModeEnforce && (c.Phase == v1alpha1.CheckFailed ||
			c.Background && isSilent(c.Phase) && c.OnSilence != v1alpha1.SilencePasses) {
			failing = append(failing, c.Name)
		}
	}
	if s.PreVerdict != nil && fails(s.PreVerdict.Verdict) {
		failing = append(failing, "PRE")
	}
	if s.PostVerdict != nil && fails(s.PostVerdict.Verdict) {
		failing = append(failing, "POST")
	}
	return failing
}

// failsFurther reports whether a batch has a failure besides the applied failures, and the results
// of pods that had failed stayed.
func failsFurther(before, after *v1alpha1.ChangePodStatus, applied []string) bool {
	return slices.ContainsFunc(failures(after), func(f string) bool { return !slices.Contains(applied, f) }) &&
		!slices.ContainsFunc(before.PodResults, func(r v1alpha1.PodResult) bool {
			return fails(r.Verdict) && !slices.Contains(after.PodResults, r)
		})
}

// failed reports whether a pod of a batch has a failing result.
func failed(b *v1alpha1.ChangePod) bool {
	for i := range b.Status.PodResults {
		r := &b.Status.PodResults[i]
		if fails(r.Verdict) && slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool {
			return p.Pod == r.Pod && (r.UID == "" || r.UID == p.UID)
		}) {
			return true
		}
	}
	return false
}

// orderFailed reports whether a release has a failing verdict of its own.
func orderFailed(s *v1alpha1.ChangeWorkloadStatus) bool {
	return s.OrderPreVerdict != nil && fails(s.OrderPreVerdict.Verdict) || s.OrderPostVerdict != nil && fails(s.OrderPostVerdict.Verdict) ||
		slices.ContainsFunc(s.UnclaimedVerdicts, func(u v1alpha1.UnclaimedVerdict) bool { return fails(u.Verdict) })
}

// checkFailed reports whether a check of a policy fails a release as a whole.
func checkFailed(s *v1alpha1.ChangeWorkloadStatus) bool {
	return slices.ContainsFunc(s.Checks, func(c v1alpha1.CheckStatus) bool {
		unmeasured := c.Phase == v1alpha1.CheckError || c.Phase == v1alpha1.CheckNoData || c.Phase == v1alpha1.CheckInconclusive
		return c.Type != "" && c.Mode != v1alpha1.ModeObserve &&
			(c.Phase == v1alpha1.CheckFailed || unmeasured && c.OnSilence == v1alpha1.SilenceFails)
	})
}

// numberOf returns the number at the end of a name; 0 if there is none.
func numberOf(name string) int32 {
	n, err := strconv.ParseInt(name[strings.LastIndex(name, "-")+1:], 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}
