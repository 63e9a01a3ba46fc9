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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	versionOne = "11111111111111111111111111111111"
	versionTwo = "22222222222222222222222222222222"
)

var (
	testNow     = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	testAdvisor = advisor{flags: " -n shop"}
)

func minutesAgo(n int) time.Time { return testNow.Add(-time.Duration(n) * time.Minute) }

// newSnapshot returns a workload at its second release. Both releases succeeded.
func newSnapshot(with func(*snapshot)) *snapshot {
	controller := true
	owner := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "sleep", UID: "uid-sleep", Controller: &controller}}
	inForce := settings.InForce{Settings: settings.Default()}
	s := &snapshot{
		target: target{kind: workload.Deployment{}, key: types.NamespacedName{Namespace: "shop", Name: "sleep"}},
		now:    testNow, whole: true, settings: &inForce, operator: operatorNamespace, container: "main",
		namespace: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: "shop", Labels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue},
		}},
		counts: PodCounts{Desired: 3, Updated: 3, Ready: 3, Available: 3},
		workload: &workload.Workload{
			GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Namespace: "shop", Name: "sleep", UID: "uid-sleep",
			Version: versionTwo, Images: []string{"busybox:2"},
			Labels:      map[string]string{v1alpha1.VersionLabel: versionTwo},
			Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "2", v1alpha1.ReleasedByAnnotation: "ann"},
		},
		changes: []v1alpha1.ChangeWorkload{{
			ObjectMeta: metav1.ObjectMeta{Name: "sleep--x--" + versionTwo, Namespace: "shop", UID: "uid-two", OwnerReferences: owner},
			Spec:       v1alpha1.ChangeWorkloadSpec{Reversion: versionTwo, Release: 2},
			Status: v1alpha1.ChangeWorkloadStatus{
				Status: v1alpha1.ChangeWorkloadSuccess, Attempt: 1, ObservedRelease: 2, PassCount: 3,
				StartTimeUnix: minutesAgo(9).Unix(), UpdateTimeUnix: minutesAgo(8).Unix(),
				ReleaseEvidence: v1alpha1.ReleaseEvidence{Images: []string{"busybox:2"}, ReleasedBy: "ann"},
				PreviousReleases: []v1alpha1.PreviousRelease{{
					Release: 1, Version: versionOne, Status: v1alpha1.ChangeWorkloadSuccess,
					StartTimeUnix: minutesAgo(60).Unix(), UpdateTimeUnix: minutesAgo(59).Unix(),
					ReleaseEvidence: v1alpha1.ReleaseEvidence{Images: []string{"busybox:1"}, ReleasedBy: "bob"},
				}},
			},
		}},
		history: []remembered{
			{
				Revision: workload.Revision{Name: "b", Version: versionTwo, Release: 2, Unproven: true},
				images:   []string{"busybox:2"}, since: minutesAgo(8),
			},
			{Revision: workload.Revision{Name: "a", Version: versionOne, Release: 1}, images: []string{"busybox:1"}, since: minutesAgo(59)},
		},
		batches: map[types.UID][]*v1alpha1.ChangePod{},
	}
	s.workload.Words = workload.Deployment{}.Words(s.workload)
	if with != nil {
		with(s)
	}
	return s
}

// failing fails the second release two minutes ago.
func failing(s *snapshot) {
	st := &s.changes[0].Status
	st.Status, st.UpdateTimeUnix = v1alpha1.ChangeWorkloadSuspend, minutesAgo(2).Unix()
	st.PassCount, st.FailCount = 2, 1
	st.DefenseCheckFailPods = []v1alpha1.PodResult{
		{PodInfo: v1alpha1.PodInfo{Pod: "sleep-a", UID: "uid-a"}, Verdict: "fail", Message: "find error"},
	}
	s.say(v1alpha1.ConditionVerified, metav1.ConditionFalse, v1alpha1.ReasonPodFailed, "pod sleep-a: fail: find error")
}

// blockedBySecond fails the second release and blocks the workload.
func blockedBySecond(s *snapshot) {
	failing(s)
	s.say(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonPodFailed, "pod sleep-a: fail: find error")
	s.workload.Labels[v1alpha1.SuspendLabel] = fmt.Sprint(minutesAgo(2).Unix())
	s.workload.Annotations[v1alpha1.SuspendedByAnnotation] = versionTwo + " 2 uid-two"
}

// leftByRollback rolls the second release back to the first version.
func leftByRollback(s *snapshot) {
	change := s.changes[0].DeepCopy()
	change.Status.Status = v1alpha1.ChangeWorkloadRollback
	restored := change.DeepCopy()
	restored.Name, restored.UID, restored.Spec.Reversion, restored.Spec.Release = "sleep--x--"+versionOne, "uid-one", versionOne, 3
	restored.Status.Status, restored.Status.ObservedRelease = v1alpha1.ChangeWorkloadSuccess, 3
	restored.Status.Attempt, restored.Status.PreviousReleases = 2, nil
	restored.Status.ReleasedBy = "system:serviceaccount:altershieldoperator-system:altershieldoperator-controller-manager"
	s.changes = []v1alpha1.ChangeWorkload{*restored, *change}
	s.workload.Version = versionOne
	s.workload.Labels[v1alpha1.VersionLabel] = versionOne
	s.workload.Annotations[v1alpha1.ReleaseAnnotation] = "3"
	rollback.ParseQuarantine(nil, testNow).With(versionTwo, rollback.QuarantineReason{
		Time: minutesAgo(5).Format(time.RFC3339), Until: testNow.Add(55 * time.Minute).Format(time.RFC3339), Cause: v1alpha1.ReasonNeverStarted,
		Pod: "sleep-a", Reason: "ErrImagePull", Release: 2, To: versionOne, Times: 1,
	}).Annotate(s.workload.Annotations)
}

// leftBecause changes why the second release was rolled back, and by whom.
func (s *snapshot) leftBecause(cause, by string) {
	q := rollback.ParseQuarantine(s.workload.Annotations, testNow)
	reason, _ := q.Reason(versionTwo)
	reason.Cause, reason.By = cause, by
	q.With(versionTwo, reason).Annotate(s.workload.Annotations)
}

// unrecorded removes all releases, and gives the workload a revision of this time. Its namespace was enrolled an hour ago.
func (s *snapshot) unrecorded(revision time.Time) {
	s.workload.Labels, s.workload.Annotations, s.changes = nil, nil, nil
	s.history = nil
	s.defendedSince, s.workload.RevisionCreated, s.written = minutesAgo(60), revision, minutesAgo(5)
}

// ownedBy gives the workload an owner.
func (s *snapshot) ownedBy(owner string) {
	s.workload.Owner = owner
	s.settings.ObserveOwned(s.workload.ObservingOwner())
}

func (s *snapshot) say(kind string, status metav1.ConditionStatus, reason, message string) {
	s.changes[0].Status.Conditions = append(s.changes[0].Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(minutesAgo(2)),
	})
}

func TestFindings(t *testing.T) {
	const (
		override = "kubectl altershield override deployment/sleep --image main=IMAGE -n shop"
		back     = "kubectl altershield rollback deployment/sleep -n shop"
		pass     = "kubectl altershield verdict pass deployment/sleep --pod sleep-a -n shop"
		resume   = "kubectl rollout resume deployment/sleep -n shop"
		free     = "kubectl annotate deployment/sleep " + v1alpha1.UnquarantineAnnotation + "=" + versionTwo + " -n shop"
		set      = "kubectl set image deployment/sleep main=IMAGE -n shop"
		check    = "kubectl altershield check"
		watch    = "kubectl altershield status deployment/sleep -w -n shop"
		pods     = "kubectl altershield status deployment/sleep -o wide -n shop"
		wait     = "kubectl altershield wait deployment/sleep -n shop"
		// enforce defends a workload that another object owns.
		enforce = "kubectl altershield enroll deployment/sleep --mode=enforce -n shop"
	)
	type want struct {
		Code  string
		Needs Needs
		What  string
		By    string
		Do    []string
	}
	tests := map[string]struct {
		with func(*snapshot)
		want []want
	}{
		"nothing": {want: nil},
		"blocked": {
			with: blockedBySecond,
			want: []want{{"Blocked", NeedsAttention, "blocked", "ann", []string{override, back, pass}}},
		},
		"blocked, and its pods fail": { // the block is reported once, and an ordinary release would be denied
			with: func(s *snapshot) {
				blockedBySecond(s)
				s.say(v1alpha1.ConditionPodsUnavailable, metav1.ConditionTrue, v1alpha1.ReasonPodsFailing, "1 of 3 pods")
			},
			want: []want{
				{"Blocked", NeedsAttention, "blocked", "ann", []string{override, back, pass}},
				{"PodsUnavailablePodsFailing", NeedsAttention, "pods fail", "ann", []string{pods}},
			},
		},
		"blocked and halted": {
			with: func(s *snapshot) {
				blockedBySecond(s)
				s.workload.Paused = true
				s.workload.Annotations[v1alpha1.HaltedAnnotation] = versionTwo
				s.say(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutHalted, "the operator paused it")
			},
			want: []want{{"Blocked", NeedsAttention, "blocked, halted", "ann", []string{override, back, pass, resume}}},
		},
		"blocked, without a good version": {
			with: func(s *snapshot) { blockedBySecond(s); s.history = s.history[:1] },
			want: []want{{"Blocked", NeedsAttention, "blocked", "ann", []string{override, pass}}},
		},
		"blocked, many pods failed": {
			with: func(s *snapshot) {
				blockedBySecond(s)
				st := &s.changes[0].Status
				for i := range 4 {
					st.DefenseCheckFailPods = append(st.DefenseCheckFailPods,
						v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: fmt.Sprint("sleep-", i)}})
				}
			},
			want: []want{{
				"Blocked", NeedsAttention, "blocked", "ann",
				[]string{override, back, "kubectl altershield verdict pass deployment/sleep -n shop"},
			}},
		},
		"blocked because of the order": {
			with: func(s *snapshot) {
				blockedBySecond(s)
				s.changes[0].Status.Conditions[0].Reason = v1alpha1.ReasonOrderCheckFailed
			},
			want: []want{{
				"Blocked", NeedsAttention, "blocked", "ann",
				[]string{override, back, "kubectl altershield verdict pass deployment/sleep --order -n shop"},
			}},
		},
		"blocked, by an earlier build": {
			with: func(s *snapshot) {
				blockedBySecond(s)
				s.workload.Annotations[v1alpha1.SuspendedByAnnotation] = versionTwo + " 2"
			},
			want: []want{{"Blocked", NeedsAttention, "blocked", "ann", []string{override, back, pass}}},
		},
		"an override release is under way": {
			with: func(s *snapshot) {
				blockedBySecond(s)
				s.workload.Annotations[v1alpha1.SuspendedByAnnotation] = versionOne + " 1 uid-one"
				s.changes[0].Status = v1alpha1.ChangeWorkloadStatus{
					Status: v1alpha1.ChangeWorkloadRunning, ObservedRelease: 2, PreviousReleases: s.changes[0].Status.PreviousReleases,
				}
			},
			want: []want{{"Blocked", NeedsTime, "blocked", "bob", []string{watch, wait}}},
		},
		"blocked by hand": {
			with: func(s *snapshot) { s.workload.Labels[v1alpha1.SuspendLabel] = "yes" },
			want: []want{{"BlockedByUser", NeedsAttention, "blocked by hand", "", []string{
				override, "kubectl label deployment/sleep " + v1alpha1.SuspendLabel + "- " + v1alpha1.IgnoredSuspendLabel + "=true -n shop",
			}}},
		},
		"blocked, with a stale override": {
			with: func(s *snapshot) {
				blockedBySecond(s)
				s.workload.Annotations[v1alpha1.OverrideStaleAnnotation] = "true"
			},
			want: []want{
				{"Blocked", NeedsAttention, "blocked", "ann", []string{override, back, pass}},
				{"StaleOverride", NeedsAttention, "stale override", "", []string{
					"kubectl label deployment/sleep " + v1alpha1.IgnoredSuspendLabel + "- -n shop",
				}},
			},
		},
		"failed, and not blocked": {
			with: func(s *snapshot) {
				failing(s)
				s.say(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonBlockingDisabled, "blocking is off")
			},
			want: []want{{"Failed", NeedsAttention, "failed, not blocked", "ann", []string{set, back, pass}}},
		},
		"failed, while it is in observe mode": {
			with: func(s *snapshot) {
				failing(s)
				s.settings.Observe = true
			},
			want: []want{
				{"Failed", NeedsAttention, "failed, not blocked", "ann", []string{set, pass}},
				{"Observed", NeedsNothing, "observed", "", []string{enforce}},
			},
		},
		"rolled back": {
			with: leftByRollback,
			want: []want{{"RolledBack", NeedsAttention, "rolled back", "ann", []string{set, free}}},
		},
		"rolled back on request": {
			with: func(s *snapshot) { leftByRollback(s); s.leftBecause(v1alpha1.ReasonRollbackRequested, "") },
			want: []want{{"RolledBack", NeedsNothing, "rolled back", "ann", []string{set, free}}},
		},
		"a user undid the release, which is being verified": {
			with: func(s *snapshot) {
				leftByRollback(s)
				s.leftBecause(v1alpha1.ReasonVerificationFailed, "bob")
				s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning
				s.workload.Labels[v1alpha1.SuspendLabel] = fmt.Sprint(minutesAgo(9).Unix())
				s.workload.Annotations[v1alpha1.SuspendedByAnnotation] = versionTwo + " 2 uid-two"
			},
			want: []want{
				{"Blocked", NeedsTime, "blocked", "ann", []string{watch, wait}},
				{"WentBack", NeedsNothing, "undone", "ann", []string{free}},
			},
		},
		"a fix came after a rollback": {
			with: func(s *snapshot) {
				leftByRollback(s)
				s.workload.Annotations[v1alpha1.ReleaseAnnotation] = "4"
			},
			want: []want{{"Quarantined", NeedsNothing, "1 version in quarantine", "", []string{free}}},
		},
		"runs a version in quarantine": {
			with: func(s *snapshot) {
				annotations := maps.Clone(s.workload.Annotations)
				leftByRollback(s)
				q := s.workload.Annotations
				*s = *newSnapshot(nil)
				maps.Copy(s.workload.Annotations, q)
				s.workload.Annotations[v1alpha1.ReleaseAnnotation] = annotations[v1alpha1.ReleaseAnnotation]
			},
			want: []want{{"QuarantineBypassed", NeedsAttention, "runs a version in quarantine", "", []string{check, free}}},
		},
		"not enrolled": {
			with: func(s *snapshot) { s.namespace.Labels = nil },
			want: []want{{"NotEnrolled", NeedsNothing, "not defended", "", []string{
				"kubectl altershield enroll shop --mode=observe", "kubectl altershield enroll shop",
			}}},
		},
		"not enrolled, by a label with a typo": {
			with: func(s *snapshot) { s.namespace.Labels = map[string]string{"admission-webhook-altershield": "true"} },
			want: []want{{"NotEnrolled", NeedsAttention, "not defended", "", []string{
				"kubectl altershield enroll shop --mode=observe", "kubectl altershield enroll shop",
			}}},
		},
		"opted out, while blocked": {
			with: func(s *snapshot) {
				blockedBySecond(s)
				s.workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
			},
			want: []want{{"OptedOut", NeedsNothing, "opted out", "", []string{"kubectl altershield enroll deployment/sleep -n shop"}}},
		},
		"observed": {
			with: func(s *snapshot) {
				s.settings.Observe, s.settings.ObservedBy = true, "the OpsConfigInfo observe of the namespace"
				s.say(v1alpha1.ConditionDefended, metav1.ConditionFalse, v1alpha1.ReasonObserving, "")
			},
			want: []want{{"Observed", NeedsNothing, "observed", "", []string{enforce}}},
		},
		"observed, because another object owns it": {
			with: func(s *snapshot) { failing(s); s.ownedBy("prometheus k8s") },
			want: []want{
				{"Failed", NeedsAttention, "failed, not blocked", "ann", []string{set, pass}},
				{"Observed", NeedsNothing, "observed", "", []string{enforce}},
			},
		},
		"observed, because of its owner and a setting": {
			with: func(s *snapshot) {
				s.settings.Observe, s.settings.ObservedBy = true, "the OpsConfigInfo observe of the namespace"
				s.ownedBy("prometheus k8s")
			},
			want: []want{{"Observed", NeedsNothing, "observed", "", []string{enforce}}},
		},
		"owned, where the settings are not known": {
			with: func(s *snapshot) { failing(s); s.ownedBy("prometheus k8s"); s.settings = nil },
			want: []want{
				{"Failed", NeedsAttention, "failed, not blocked", "ann", []string{set, pass}},
				{"Observed", NeedsNothing, "observed", "", []string{enforce}},
			},
		},
		"owned, in enforce mode": {
			with: func(s *snapshot) {
				failing(s)
				s.workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseEnforced
				s.ownedBy("prometheus k8s")
			},
			want: []want{{"Failed", NeedsAttention, "failed, not blocked", "ann", []string{set, back, pass}}},
		},
		"baseline": {
			with: func(s *snapshot) { s.workload.Labels, s.workload.Annotations, s.changes = nil, nil, nil },
			want: []want{{"Baseline", NeedsNothing, "baseline", "", nil}},
		},
		"a baseline that is older than the enrolment of its namespace": {
			with: func(s *snapshot) { s.unrecorded(minutesAgo(90)) },
			want: []want{{"Baseline", NeedsNothing, "baseline", "", nil}},
		},
		"a baseline of the second in which its namespace was enrolled": {
			with: func(s *snapshot) { s.unrecorded(s.defendedSince) },
			want: []want{{"Baseline", NeedsNothing, "baseline", "", nil}},
		},
		"a baseline that has no revision, because it is paused": {
			with: func(s *snapshot) { s.unrecorded(time.Time{}) },
			want: []want{{"Baseline", NeedsNothing, "baseline", "", nil}},
		},
		"a baseline that the operator remembers, opted in after its namespace was enrolled": {
			with: func(s *snapshot) {
				s.unrecorded(minutesAgo(5))
				s.history = []remembered{{Revision: workload.Revision{Version: versionTwo, Release: rollback.BaselineRelease}}}
			},
			want: []want{{"Baseline", NeedsNothing, "baseline", "", nil}},
		},
		"admission missed the first release": {
			with: func(s *snapshot) { s.unrecorded(minutesAgo(5)) },
			want: []want{{"NotRecorded", NeedsAttention, "not recorded", "", []string{check, watch}}},
		},
		"admission missed the first release a moment ago": {
			with: func(s *snapshot) { s.unrecorded(testNow.Add(-time.Second)); s.written = testNow.Add(-time.Second) },
			want: []want{{"NotRecorded", NeedsTime, "about to be recorded", "", []string{check, watch}}},
		},
		"admission missed the creation, and there is no revision yet": {
			with: func(s *snapshot) { s.unrecorded(time.Time{}); s.written = testNow.Add(-time.Second) },
			want: []want{{"NotRecorded", NeedsTime, "about to be recorded", "", []string{check, watch}}},
		},
		"one of many workloads, whose revision is not known": {
			with: func(s *snapshot) { s.unrecorded(time.Time{}); s.whole, s.written = false, testNow },
			want: []want{{"Baseline", NeedsNothing, "baseline", "", nil}},
		},
		"admission missed a release": {
			with: func(s *snapshot) { s.workload.Version = versionOne },
			want: []want{{"NotRecorded", NeedsAttention, "not recorded", "", []string{check, watch}}},
		},
		"the record is not there yet": {
			with: func(s *snapshot) { s.changes, s.written = nil, testNow.Add(-time.Second) },
			want: []want{{"NotRecorded", NeedsTime, "about to be recorded", "", []string{check, watch}}},
		},
		"the record is not there": {
			with: func(s *snapshot) { s.changes = nil },
			want: []want{{"NotRecorded", NeedsAttention, "not recorded", "", []string{check, watch}}},
		},
		"pods fail, and it will be rolled back": {
			with: func(s *snapshot) {
				s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning
				s.say(v1alpha1.ConditionPodsUnavailable, metav1.ConditionTrue, v1alpha1.ReasonPodsFailing, "3 of 3 pods")
			},
			want: []want{{"PodsUnavailablePodsFailing", NeedsTime, "pods fail", "ann", []string{pods, set, back}}},
		},
		"pods fail, and it is in observe mode": {
			with: func(s *snapshot) {
				s.settings.Observe, s.settings.ObservedBy = true, "the OpsConfigInfo observe of the namespace"
				s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning
				s.say(v1alpha1.ConditionPodsUnavailable, metav1.ConditionTrue, v1alpha1.ReasonPodsFailing, "3 of 3 pods")
			},
			want: []want{
				{"PodsUnavailablePodsFailing", NeedsAttention, "pods fail", "ann", []string{pods, set}},
				{"Observed", NeedsNothing, "observed", "", []string{enforce}},
			},
		},
		"pods fail after the success": {
			with: func(s *snapshot) {
				s.say(v1alpha1.ConditionPodsUnavailable, metav1.ConditionTrue, v1alpha1.ReasonPodsFailing, "3 of 3 pods")
			},
			want: []want{{"PodsUnavailablePodsFailing", NeedsAttention, "pods fail", "ann", []string{pods, set, back}}},
		},
		"without the server": {
			with: func(s *snapshot) { s.changes[0].Status.OrderStage = v1alpha1.OrderSubmitting },
			want: []want{{"WithoutServer", NeedsTime, "without the server", "", []string{check}}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got []want
			for _, f := range findingsOf(newSnapshot(tt.with), testAdvisor) {
				w := want{Code: f.Code, Needs: f.Needs, What: f.What, By: f.ReleasedBy}
				for _, d := range f.Do {
					w.Do = append(w.Do, d.Command)
				}
				got = append(got, w)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDefendsInSpiteOfTheOwner: the advice for a workload that another object owns names the owner.
func TestDefendsInSpiteOfTheOwner(t *testing.T) {
	const does = "defends it although the prometheus k8s owns it; use when the owner does not undo what the operator does"
	s := newSnapshot(func(s *snapshot) { s.ownedBy("prometheus k8s") })
	want := []Advice{{"kubectl altershield enroll deployment/sleep --mode=enforce -n shop", does}}
	if diff := cmp.Diff(want, []Advice{(&finder{snapshot: s, advisor: testAdvisor}).enforce()}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if level, says := s.defense(); level != DefenseObserved || says != "in observe mode, because the prometheus k8s owns it" {
		t.Errorf("%s, %q", level, says)
	}
}
