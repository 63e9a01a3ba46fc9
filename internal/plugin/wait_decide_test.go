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

package plugin

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	versionA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	versionB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	versionC = "cccccccccccccccccccccccccccccccc"
)

// atRelease returns a workload at a release, as admission records it.
func atRelease(version string, release int64) *workload.Workload {
	return &workload.Workload{
		Name: "sleep", UID: "w", Version: version, Labels: map[string]string{v1alpha1.VersionLabel: version},
		Annotations: map[string]string{v1alpha1.ReleaseAnnotation: fmt.Sprint(release)},
	}
}

// rolledBackFrom returns a workload that was set back.
func rolledBackFrom(version string, release int64, to string) *workload.Workload {
	w := atRelease(to, release+1)
	rollback.Quarantine{}.With(version, rollback.QuarantineReason{
		Cause: v1alpha1.ReasonNeverStarted, Pod: "p", Reason: "ErrImagePull", Release: release, To: to,
	}).Annotate(w.Annotations)
	return w
}

// setBack returns a workload that was set back from version B, for a reason.
func setBack(reason rollback.QuarantineReason) *workload.Workload {
	w := atRelease(reason.To, reason.Release+1)
	rollback.Quarantine{}.With(versionB, reason).Annotate(w.Annotations)
	return w
}

// recordOf returns the record of a release in a state.
func recordOf(
	version string, release int64, state v1alpha1.ChangeWorkloadStatusType, conditions ...metav1.Condition,
) v1alpha1.ChangeWorkload {
	c := v1alpha1.ChangeWorkload{Spec: v1alpha1.ChangeWorkloadSpec{Reversion: version, Release: release}}
	c.Status = v1alpha1.ChangeWorkloadStatus{Status: state, Attempt: 1, ObservedRelease: release, Conditions: conditions}
	return c
}

// notBegun gives the record of an earlier release the number of a release that has not begun.
func notBegun(c v1alpha1.ChangeWorkload, release int64) v1alpha1.ChangeWorkload {
	c.Spec.Release = release
	return c
}

// withPrevious gives a record its previous releases.
func withPrevious(c v1alpha1.ChangeWorkload, previous ...v1alpha1.PreviousRelease) v1alpha1.ChangeWorkload {
	c.Status.PreviousReleases = previous
	return c
}

func previousRelease(version string, release int64, state v1alpha1.ChangeWorkloadStatusType) v1alpha1.PreviousRelease {
	return v1alpha1.PreviousRelease{Version: version, Release: release, Status: state}
}

func conditionOf(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

var (
	podFailed  = conditionOf(v1alpha1.ConditionVerified, metav1.ConditionFalse, v1alpha1.ReasonPodFailed, "pod p: fail: find error")
	healingDue = conditionOf(v1alpha1.ConditionRolledBack, metav1.ConditionUnknown, v1alpha1.ReasonVerificationFailed,
		"about to be rolled back")
	wasRolledBack = conditionOf(v1alpha1.ConditionRolledBack, metav1.ConditionTrue, v1alpha1.ReasonNeverStarted, "set back to version a")
	leftDefense   = conditionOf(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonNotDefended, "")
	deletedAs     = conditionOf(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonWorkloadDeleted, "")
	refusedAs     = conditionOf(v1alpha1.ConditionServer, metav1.ConditionFalse, v1alpha1.ReasonRefused, "unknown scene")
)

func TestDecideWait(t *testing.T) {
	view := func(w *workload.Workload, changes ...v1alpha1.ChangeWorkload) releaseView {
		return releaseView{Workload: w, Changes: changes}
	}
	unrecordedB := atRelease(versionA, 1)
	unrecordedB.Version = versionB
	deleting := atRelease(versionB, 2)
	deleting.Deleting = true
	baseline := &workload.Workload{Name: "sleep", Version: versionA}
	passed := recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuccess)
	passed.Status.PassCount = 5
	unverified := *passed.DeepCopy()
	unverified.Status.UnverifiedCount = 3
	b2 := awaited{Version: versionB, Release: 2, From: 2}
	proven := b2
	proven.Proven = true
	provenIs := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return conditionOf(v1alpha1.ConditionProven, status, reason, message)
	}
	succeeded := func(w *workload.Workload, conditions ...metav1.Condition) releaseView {
		c := *passed.DeepCopy()
		c.Status.Conditions = conditions
		return view(w, c)
	}
	for name, tt := range map[string]struct {
		awaited awaited
		view    releaseView
		want    ending
		// wantMeanwhile is the ending if it does not end in time.
		wantMeanwhile ending
		wantMessage   string
		// wantRelease is the number that is known afterwards.
		wantRelease int64
	}{
		"success": {
			b2, view(atRelease(versionB, 2), passed),
			endedSuccess, "", "release 2 (version " + versionB + ") succeeded: 5 pods passed", 2,
		},
		"success without verdicts": {
			b2, view(atRelease(versionB, 2), unverified),
			endedSuccess, "", "succeeded: 5 pods passed, 3 of them without a verdict of AlterShield Server", 2,
		},
		"success without pods": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuccess)),
			endedSuccess, "", "with no pod to verify", 2,
		},
		"success, and replaced since": {
			b2, view(atRelease(versionC, 3), passed, recordOf(versionC, 3, v1alpha1.ChangeWorkloadRunning)),
			endedSuccess, "", "succeeded", 2,
		},
		"success, to be proven": {
			proven, succeeded(atRelease(versionB, 2), provenIs(metav1.ConditionUnknown, v1alpha1.ReasonChecking, "it has to run well for 5m0s")),
			goesOn, "", "succeeded: 5 pods passed; it has to run well for 5m0s", 2,
		},
		"success, without the condition": {proven, succeeded(atRelease(versionB, 2)), goesOn, "", "setting history", 2},
		"proven": {
			proven, succeeded(atRelease(versionB, 2), provenIs(metav1.ConditionTrue, v1alpha1.ReasonRanWell, "it has run well for 5m0s")),
			endedSuccess, "", "is proven: it has run well for 5m0s", 2,
		},
		"not proven": {
			proven, succeeded(atRelease(versionB, 2), provenIs(metav1.ConditionFalse, v1alpha1.ReasonPodsFailing, "2 of 2 pods failed")),
			endedNotProven, "", "is not proven: 2 of 2 pods failed", 2,
		},
		"replaced before it is proven":    {proven, succeeded(atRelease(versionC, 3)), endedCanceled, "", "replaced before it was proven", 2},
		"rolled back before it is proven": {proven, succeeded(rolledBackFrom(versionB, 2, versionA)), endedRollback, "", "was rolled back", 2},
		"replaced since, to be proven": {
			proven, releaseView{Workload: atRelease(versionC, 3), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionC, 3, v1alpha1.ChangeWorkloadRunning), previousRelease(versionB, 2, v1alpha1.ChangeWorkloadSuccess))}},
			endedCanceled, "", "no record says whether it was proven", 2,
		},
		"running": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning)),
			goesOn, "", "Running: verification goes on", 2,
		},
		"its order is not accepted": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadInit)),
			goesOn, "", "Init: the release begins", 2,
		},
		"no pod in time": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadTimeOutPreThreshold)),
			goesOn, "", "TimeOutPreThreshold", 2,
		},
		"failed": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend, podFailed)),
			endedSuspend, "", "failed its verification: pod p: fail: find error", 2,
		},
		"failed, and about to be rolled back": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend, podFailed, healingDue)),
			goesOn, endedSuspend, "about to be rolled back", 2,
		},
		"failed, was to be rolled back, and overridden first": {
			b2, view(atRelease(versionC, 3), recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend, podFailed, healingDue)),
			endedSuspend, "", "failed its verification", 2,
		},
		"rolled back": {
			b2, view(rolledBackFrom(versionB, 2, versionA), recordOf(versionB, 2, v1alpha1.ChangeWorkloadRollback, wasRolledBack)),
			endedRollback, "", "was rolled back: set back to version a", 2,
		},
		"rolled back, which its record does not say yet": {
			b2, view(rolledBackFrom(versionB, 2, versionA), recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning)),
			endedRollback, "", "NeverStarted: pod p: ErrImagePull; the workload was set back to version " + versionA, 2,
		},
		"rolled back, and its record says that it had succeeded": {
			b2, view(rolledBackFrom(versionB, 2, versionA), passed),
			endedRollback, "", "NeverStarted: pod p: ErrImagePull; the workload was set back to version " + versionA, 2,
		},
		"an earlier release of the version was rolled back": {
			awaited{Version: versionB, Release: 5, From: 5},
			releaseView{
				Workload: func() *workload.Workload {
					w := rolledBackFrom(versionB, 2, versionA)
					w.Version, w.Labels[v1alpha1.VersionLabel], w.Annotations[v1alpha1.ReleaseAnnotation] = versionB, versionB, "5"
					return w
				}(),
				Changes: []v1alpha1.ChangeWorkload{notBegun(recordOf(versionB, 2, v1alpha1.ChangeWorkloadRollback, wasRolledBack), 5)},
			},
			goesOn, "", "the operator has not begun this attempt yet", 5,
		},
		"canceled": {
			b2, view(atRelease(versionC, 3), recordOf(versionB, 2, v1alpha1.ChangeWorkloadCanceled)),
			endedCanceled, "", "a newer release replaced release 2", 2,
		},
		"canceled, because it opted out": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadCanceled, leftDefense)),
			endedNotDefended, "", "no longer defended", 2,
		},
		"canceled, because it was deleted": {
			b2, releaseView{Changes: []v1alpha1.ChangeWorkload{recordOf(versionB, 2, v1alpha1.ChangeWorkloadCanceled, deletedAs)}},
			endedCanceled, "", "was deleted", 2,
		},
		"refused by the server": {
			b2, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadFailed, refusedAs)),
			endedFailed, "", "AlterShield Server refused release 2 (version " + versionB + "): unknown scene", 2,
		},
		"opts out, and the operator is down": {
			b2,
			releaseView{
				Workload: atRelease(versionB, 2), NotDefended: "opted out",
				Changes: []v1alpha1.ChangeWorkload{recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning)},
			},
			endedNotDefended, "", "is no longer verified: opted out", 2,
		},
		"deleted, and its records with it": {b2, releaseView{}, endedCanceled, "", "was deleted before", 2},
		"being deleted": {
			b2, view(deleting, recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning)),
			endedCanceled, "", "was deleted before", 2,
		},
		"not recorded yet": {
			b2, view(atRelease(versionB, 2), recordOf(versionA, 1, v1alpha1.ChangeWorkloadSuccess)),
			goesOn, "", "the operator has not recorded the release yet", 2,
		},
		"not recorded yet, and without admission": {
			awaited{Version: versionB, From: 1}, view(unrecordedB, recordOf(versionA, 1, v1alpha1.ChangeWorkloadSuccess)),
			goesOn, "", "the operator has not recorded the release yet", 0,
		},
		"recorded without admission": {
			awaited{Version: versionB, From: 1},
			view(atRelease(versionB, 2),
				recordOf(versionA, 1, v1alpha1.ChangeWorkloadSuccess), recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning)),
			goesOn, "", "Running", 2,
		},
		"without admission, of a version whose earlier attempt failed": {
			awaited{Version: versionB, From: 3},
			view(unrecordedB, recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend, podFailed)),
			goesOn, "", "the operator has not recorded the release yet", 0,
		},
		"its record has an earlier attempt": {
			awaited{Version: versionA, Release: 3, From: 3},
			view(atRelease(versionA, 3), notBegun(recordOf(versionA, 1, v1alpha1.ChangeWorkloadSuspend, podFailed), 3)),
			goesOn, "", "the operator has not begun this attempt yet", 3,
		},
		"its record was removed after it succeeded": {
			b2, releaseView{Workload: atRelease(versionC, 3), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionC, 3, v1alpha1.ChangeWorkloadSuccess), previousRelease(versionB, 2, v1alpha1.ChangeWorkloadSuccess)),
			}},
			endedSuccess, "", "succeeded; a newer release has followed", 2,
		},
		"its record was removed after it failed": {
			b2, releaseView{Workload: atRelease(versionC, 3), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionC, 3, v1alpha1.ChangeWorkloadSuccess), v1alpha1.PreviousRelease{
					Version: versionB, Release: 2, Status: v1alpha1.ChangeWorkloadSuspend,
					FailedPod: &v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: "p"}, Verdict: "fail", Message: "find error"},
				}),
			}},
			endedSuspend, "", "failed its verification: pod p: fail: find error", 2,
		},
		"its record was removed after it was refused": {
			b2, releaseView{Workload: atRelease(versionC, 3), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionC, 3, v1alpha1.ChangeWorkloadSuccess), previousRelease(versionB, 2, v1alpha1.ChangeWorkloadFailed)),
			}},
			endedFailed, "", "refused", 2,
		},
		"its record was removed after it was rolled back": {
			b2, releaseView{Workload: atRelease(versionC, 4), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionC, 4, v1alpha1.ChangeWorkloadSuccess),
					previousRelease(versionA, 3, v1alpha1.ChangeWorkloadSuccess), previousRelease(versionB, 2, v1alpha1.ChangeWorkloadRollback)),
			}},
			endedRollback, "", "was rolled back", 2,
		},
		"its record was removed before it ended": {
			b2, releaseView{Workload: atRelease(versionC, 3), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionC, 3, v1alpha1.ChangeWorkloadSuccess), previousRelease(versionB, 2, v1alpha1.ChangeWorkloadCanceled)),
			}},
			endedCanceled, "", "a newer release replaced", 2,
		},
		"kept before its record said that it was rolled back": {
			b2, releaseView{Workload: rolledBackFrom(versionB, 2, versionA), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionA, 3, v1alpha1.ChangeWorkloadRunning), previousRelease(versionB, 2, v1alpha1.ChangeWorkloadRunning)),
			}},
			endedRollback, "", "NeverStarted", 2,
		},
		"its version was released again": {
			awaited{Version: versionA, Release: 1, From: 1}, releaseView{Workload: atRelease(versionA, 3), Changes: []v1alpha1.ChangeWorkload{
				withPrevious(recordOf(versionA, 3, v1alpha1.ChangeWorkloadRunning),
					previousRelease(versionB, 2, v1alpha1.ChangeWorkloadSuspend), previousRelease(versionA, 1, v1alpha1.ChangeWorkloadCanceled)),
			}},
			endedCanceled, "", "a newer release replaced release 1", 1,
		},
		"an older build kept nothing of it": {
			b2, view(atRelease(versionC, 3), recordOf(versionC, 3, v1alpha1.ChangeWorkloadSuccess)),
			endedCanceled, "", "no record says how it ended", 2,
		},
		"being replaced": {
			b2, view(atRelease(versionC, 3), recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning)),
			goesOn, endedCanceled, "is being replaced by release 3", 2,
		},
		"replaced before it was recorded": {
			b2, releaseView{Workload: atRelease(versionC, 3)}, goesOn, endedCanceled, "is being replaced by release 3", 2,
		},
		"a baseline": {
			awaited{Version: versionA}, releaseView{Workload: baseline}, endedNothing, "", "nothing to wait for", 0,
		},
		"a baseline that may have been released past admission": {
			awaited{Version: versionA}, releaseView{Workload: baseline, Slipped: true}, goesOn, endedNotDefended, "which admission did not see", 0,
		},
		"a baseline, as far as the user may know": {
			awaited{Version: versionA}, releaseView{Workload: baseline, Unknown: "you have no right to get the namespace shop"},
			goesOn, endedUnknown, "whether a release exists: you have no right", 0,
		},
		"not defended": {
			awaited{Version: versionA}, releaseView{Workload: baseline, NotDefended: "the namespace shop is not enrolled"},
			endedNotDefended, "", "is not verified: the namespace shop", 0,
		},
		"a number that is yet to come": {
			awaited{Release: 3}, view(atRelease(versionB, 2), recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuccess)),
			goesOn, "", "release 3 has not begun: the workload is at release 2", 3,
		},
		"a number alone": {
			awaited{Release: 2}, view(atRelease(versionB, 2), passed), endedSuccess, "", "release 2 (version " + versionB + ") succeeded", 2,
		},
		"a number of the past": {
			awaited{Release: 1}, view(atRelease(versionB, 2), withPrevious(passed, previousRelease(versionA, 1, v1alpha1.ChangeWorkloadSuspend))),
			endedSuspend, "", "release 1 (version " + versionA + ") failed", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, known := decideWait(tt.awaited, tt.view)
			if got.Ending != tt.want || got.Meanwhile != tt.wantMeanwhile {
				t.Errorf("ended as %q, meanwhile %q (%s); want %q, meanwhile %q",
					got.Ending, got.Meanwhile, got.Message, tt.want, tt.wantMeanwhile)
			}
			if !strings.Contains(got.Message, tt.wantMessage) {
				t.Errorf("message %q, want one with %q", got.Message, tt.wantMessage)
			}
			if known.Release != tt.wantRelease {
				t.Errorf("release %d, want %d", known.Release, tt.wantRelease)
			}
		})
	}
}

func TestDefaultAwaited(t *testing.T) {
	reason := rollback.QuarantineReason{Cause: v1alpha1.ReasonVerificationFailed, Release: 2, To: versionA}
	with := func(change func(r *rollback.QuarantineReason)) *workload.Workload {
		r := reason
		change(&r)
		return setBack(r)
	}
	later, released, again := setBack(reason), setBack(reason), setBack(reason)
	later.Annotations[v1alpha1.ReleaseAnnotation] = "4"
	released.Version, released.Labels[v1alpha1.VersionLabel] = versionC, versionC
	again.Version = versionC // admission missed it
	failed, restored := awaited{Version: versionB, Release: 2, From: 2}, awaited{Version: versionA, Release: 3, From: 3}
	requested := with(func(r *rollback.QuarantineReason) { r.Cause = v1alpha1.ReasonRollbackRequested })
	for name, tt := range map[string]struct {
		workload *workload.Workload
		want     awaited
	}{
		"a release":                               {atRelease(versionB, 2), awaited{Version: versionB, Release: 2, From: 2}},
		"it never started":                        {rolledBackFrom(versionB, 2, versionA), failed},
		"it failed its verification":              {setBack(reason), failed},
		"its quarantine is over":                  {with(func(r *rollback.QuarantineReason) { r.Until = "2020-01-01T00:00:00Z" }), failed},
		"a user requested it":                     {requested, restored},
		"a user undid the release":                {with(func(r *rollback.QuarantineReason) { r.By = "dev" }), restored},
		"another cause":                           {with(func(r *rollback.QuarantineReason) { r.Cause = "x" }), restored},
		"released again since":                    {later, awaited{Version: versionA, Release: 4, From: 4}},
		"another release of the number":           {released, awaited{Version: versionC, Release: 3, From: 3}},
		"another release, which admission missed": {again, awaited{Version: versionC, From: 3}},
	} {
		if got := defaultAwaited(tt.workload); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestWaitAtAnyMoment plays sequences of writes to a cluster. It waits for one release, from each moment at which the workload is at
// the release, or was set back from it. The releases that are read may be older than the workload. The ending is the same for all
// reads, and exists after the last write.
func TestWaitAtAnyMoment(t *testing.T) {
	type state struct {
		workload *workload.Workload
		changes  []v1alpha1.ChangeWorkload
	}
	changes := func(c ...v1alpha1.ChangeWorkload) []v1alpha1.ChangeWorkload { return c }
	a1 := recordOf(versionA, 1, v1alpha1.ChangeWorkloadSuccess)
	b := func(state v1alpha1.ChangeWorkloadStatusType, conditions ...metav1.Condition) v1alpha1.ChangeWorkload {
		return withPrevious(recordOf(versionB, 2, state, conditions...), previousRelease(versionA, 1, v1alpha1.ChangeWorkloadSuccess))
	}
	c := func(state, previous v1alpha1.ChangeWorkloadStatusType) v1alpha1.ChangeWorkload {
		return withPrevious(recordOf(versionC, 3, state), previousRelease(versionB, 2, previous))
	}
	restored := func(state v1alpha1.ChangeWorkloadStatusType, previous v1alpha1.ChangeWorkloadStatusType) v1alpha1.ChangeWorkload {
		return withPrevious(recordOf(versionA, 3, state), previousRelease(versionB, 2, previous))
	}
	const (
		running, success, suspend = v1alpha1.ChangeWorkloadRunning, v1alpha1.ChangeWorkloadSuccess, v1alpha1.ChangeWorkloadSuspend
		rolledBack, cancel        = v1alpha1.ChangeWorkloadRollback, v1alpha1.ChangeWorkloadCanceled
	)
	atB, atC, back := atRelease(versionB, 2), atRelease(versionC, 3), rolledBackFrom(versionB, 2, versionA)
	after := atRelease(versionC, 4)
	maps.Copy(after.Annotations, map[string]string{
		v1alpha1.QuarantinedAnnotation:      back.Annotations[v1alpha1.QuarantinedAnnotation],
		v1alpha1.QuarantineReasonAnnotation: back.Annotations[v1alpha1.QuarantineReasonAnnotation],
	})
	asked := setBack(rollback.QuarantineReason{Cause: v1alpha1.ReasonRollbackRequested, Release: 2, To: versionA})
	reverted := setBack(rollback.QuarantineReason{Cause: v1alpha1.ReasonVerificationFailed, Release: 2, To: versionA, By: "dev"})
	unseen := atRelease(versionA, 1)
	unseen.Version = versionB
	begin := []state{{atB, changes(a1)}, {atB, changes(a1, recordOf(versionB, 2, ""))}, {atB, changes(a1, b(running))}}
	for name, tt := range map[string]struct {
		states []state
		want   ending
		// wantLate is the ending of a wait without a named release that begins at the restored version; empty if none was restored.
		wantLate ending
	}{
		"success, and the next one": {append(begin[:3:3],
			state{atB, changes(a1, b(success))}, state{atB, changes(b(success))},
			state{atC, changes(b(success))}, state{atC, changes(b(success), c(running, success))},
			state{atC, changes(b(success), c(success, success))},
			state{atC, changes(c(success, success))}), endedSuccess, ""},
		"rolled back, restored, fixed": {append(begin[:3:3],
			state{back, changes(a1, b(running))},
			// Either record may be written first.
			state{back, changes(notBegun(a1, 3), b(running))}, state{back, changes(restored(running, running), b(running))},
			state{back, changes(restored(running, running), b(rolledBack, wasRolledBack))},
			state{back, changes(restored(success, rolledBack), b(rolledBack, wasRolledBack))},
			state{after, changes(restored(success, rolledBack), b(rolledBack, wasRolledBack))},
			state{after, changes(withPrevious(recordOf(versionC, 4, success),
				previousRelease(versionA, 3, success), previousRelease(versionB, 2, rolledBack)))}), endedRollback, endedRollback},
		"rolled back on request": {append(begin[:3:3],
			state{asked, changes(a1, b(running))}, state{asked, changes(restored(running, running), b(rolledBack, wasRolledBack))},
			state{asked, changes(restored(success, rolledBack), b(rolledBack, wasRolledBack))}), endedRollback, endedSuccess},
		"a user undid the release": {append(begin[:3:3],
			state{atB, changes(a1, b(suspend, podFailed))}, state{reverted, changes(a1, b(suspend, podFailed))},
			state{reverted, changes(restored(running, suspend), b(rolledBack, wasRolledBack))},
			state{reverted, changes(restored(success, rolledBack), b(rolledBack, wasRolledBack))}), "", endedSuccess},
		"healed after it had succeeded, which its record still says": {append(begin[:3:3],
			state{back, changes(a1, b(success))}, state{back, changes(restored(running, success), b(rolledBack, wasRolledBack))},
			state{back, changes(restored(success, success))},
			state{back, changes(restored(success, rolledBack), b(rolledBack, wasRolledBack))}), endedRollback, endedRollback},
		"replaced before it ended": {append(begin[:3:3],
			state{atC, changes(a1, b(running))}, state{atC, changes(a1, b(cancel))}, state{atC, changes(a1, b(cancel), c(running, cancel))},
			state{atC, changes(c(success, cancel))}), endedCanceled, ""},
		"replaced before it was recorded": {[]state{
			{atB, changes(a1)}, {atC, changes(a1)}, {atC, changes(a1, recordOf(versionC, 3, running))},
			{atC, changes(recordOf(versionC, 3, success))},
		}, endedCanceled, ""},
		"failed, and overridden": {append(begin[:3:3],
			state{atB, changes(a1, b(suspend, podFailed))}, state{atC, changes(a1, b(suspend, podFailed))},
			state{atC, changes(a1, b(suspend, podFailed), c(running, suspend))},
			state{atC, changes(c(success, suspend))}), endedSuspend, ""},
		"failed, and healed": {append(begin[:3:3],
			state{atB, changes(a1, b(suspend, podFailed, healingDue))}, state{back, changes(a1, b(rolledBack, wasRolledBack))},
			state{back, changes(restored(running, rolledBack), b(rolledBack, wasRolledBack))},
			state{back, changes(restored(success, rolledBack), b(rolledBack, wasRolledBack))}), endedRollback, endedRollback},
		"released past admission": {[]state{
			{unseen, changes(a1)}, {atB, changes(a1)}, {atB, changes(a1, recordOf(versionB, 2, ""))},
			{atB, changes(a1, b(success))}, {atB, changes(b(success))},
		}, endedSuccess, ""},
		"deleted": {append(begin[:3:3], state{nil, changes(a1, b(cancel, deletedAs))}, state{nil, nil}), endedCanceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			last := len(tt.states) - 1
			reads := 0
			for start, begun := range tt.states {
				want, w := tt.want, begun.workload
				switch {
				case w != nil && w.Version == versionA && w.Release() == 3:
					want = tt.wantLate
				case w == nil || w.Version != versionB:
					continue
				}
				if want == "" {
					continue
				}
				a := defaultAwaited(w)
				for older := start; older <= last; older++ {
					for newer := older; newer <= last; newer++ {
						reads++
						v := releaseView{Workload: tt.states[newer].workload, Changes: tt.states[older].changes}
						got, _ := decideWait(a, v)
						if got.Ending != goesOn && got.Ending != want || older == last && got.Ending != want {
							t.Errorf("waiting since %d, with releases of %d and the workload of %d: %q (%s), want %q",
								start, older, newer, got.Ending, got.Message, want)
						}
					}
				}
			}
			if reads == 0 {
				t.Error("the workload is never at the release")
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	got := map[ending]int{}
	for _, e := range []ending{
		endedSuccess, endedNothing, endedSuspend, endedRollback, endedCanceled, endedFailed, endedNotDefended, endedUnknown, endedTimeout,
	} {
		got[e] = e.code()
	}
	want := map[ending]int{
		"Success": 0, "NoRelease": 0, "Suspend": 2, "Rollback": 3, "Canceled": 4, "Failed": 5, "NotDefended": 6,
		"Unknown": 1, "Timeout": 124,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("these are documented, pipelines depend on them (-want +got):\n%s", diff)
	}
}

func TestLastOfVersion(t *testing.T) {
	w := atRelease(versionA, 3)
	changes := []v1alpha1.ChangeWorkload{withPrevious(recordOf(versionA, 3, v1alpha1.ChangeWorkloadRunning),
		previousRelease(versionB, 2, v1alpha1.ChangeWorkloadSuspend), previousRelease(versionA, 1, v1alpha1.ChangeWorkloadSuccess))}
	for begin, want := range map[string]awaited{
		versionB:     {Version: versionB, Release: 2},
		"bbbbbb":     {Version: versionB, Release: 2},
		versionA[:9]: {Version: versionA, Release: 3, From: 3},
	} {
		got, err := lastOfVersion(begin, w, changes)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", begin, got, err, want)
		}
	}
	for _, begin := range []string{"bbb", versionC, ""} {
		if got, err := lastOfVersion(begin, w, changes); err == nil {
			t.Errorf("%q: %+v, want an error", begin, got)
		}
	}
}

func TestProgress(t *testing.T) {
	change := recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning,
		conditionOf(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutStuck, "2 of 5 pods cannot be created"),
		conditionOf(v1alpha1.ConditionHeld, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts, "1 pod waits"),
		conditionOf(v1alpha1.ConditionRolledBack, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "well again"),
		conditionOf(v1alpha1.ConditionServer, metav1.ConditionTrue, v1alpha1.ReasonAnswered, "it answers"))
	change.Status.Batches, change.Status.PassCount, change.Status.CheckingCount = 3, 2, 1
	v := releaseView{Workload: atRelease(versionB, 2), Changes: []v1alpha1.ChangeWorkload{change}}
	a := awaited{Version: versionB, Release: 2}
	verdict, _ := decideWait(a, v)
	want := []progressLine{
		{"state", "Running: verification goes on"},
		{"pods", "batch 3: 2 pods passed, 1 being verified"},
		{v1alpha1.ConditionProgressing, "RolloutStuck: 2 of 5 pods cannot be created"},
		{v1alpha1.ConditionHeld, "WaitingForVerdicts: 1 pod waits"},
	}
	if diff := cmp.Diff(want, progressOf(a, v, verdict)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
