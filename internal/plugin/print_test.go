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
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

const operatorNamespace = "altershieldoperator-system"

func batch(number int, pods ...string) *v1alpha1.ChangePod {
	b := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("sleep--x--%s--x--%d", versionTwo, number)},
		Status:     v1alpha1.ChangePodStatus{Status: v1alpha1.ChangePodExecuteDone, Message: v1alpha1.ChangePodMessagePostFinish},
	}
	for _, pod := range pods {
		b.Spec.PodInfos = append(b.Spec.PodInfos, v1alpha1.PodInfo{Pod: pod, UID: "uid-" + pod})
	}
	return b
}

func ready(name string, since time.Time) defense.Pod {
	return defense.Pod{Name: name, UID: types.UID("uid-" + name), Node: "node-1", Ready: true, ReadySince: since, StartedAt: since}
}

// inBatches is a release that failed, with batches, a check, and pods of all kinds.
func inBatches(s *sight) {
	blockedBySecond(s)
	s.workload.Paused = true
	s.workload.Annotations[v1alpha1.HaltedAnnotation] = versionTwo
	s.counts = PodCounts{Desired: 12, Updated: 11, Ready: 10}
	failed := batch(1, "a")
	failed.Status.PodResults = []v1alpha1.PodResult{{PodInfo: failed.Spec.PodInfos[0], Verdict: "fail", Message: "find error"}}
	failed.Status.Checks = []v1alpha1.CheckStatus{{Name: "shop/web/errors", Phase: v1alpha1.CheckFailed, Reason: "RuleFailed", Message: "5% of requests failed"}}
	going := batch(2, "b")
	going.Status.Status, going.Status.Message = v1alpha1.ChangePodPreSubmitted, ""
	going.Status.Checks = []v1alpha1.CheckStatus{{Name: "shop/web/errors", Phase: v1alpha1.CheckRunning, Deadline: &metav1.Time{Time: testNow.Add(3 * time.Minute)}}}
	passed := batch(3, "c", "d", "e", "f", "g", "h")
	passed.Status.Checks = []v1alpha1.CheckStatus{{Name: "shop/web/stays-up", Phase: v1alpha1.CheckWatching, Deadline: &metav1.Time{Time: testNow.Add(time.Minute)}}}
	s.batches["uid-two"] = []*v1alpha1.ChangePod{failed, going, passed}
	s.changes[0].Status.DefenseCheckFailPods[0].PodInfo = failed.Spec.PodInfos[0]
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		s.pods = append(s.pods, ready(name, minutesAgo(9)))
	}
	s.pods = append(s.pods, ready("i", testNow.Add(-4*time.Second)),
		defense.Pod{Name: "k", UID: "uid-k", Stuck: &defense.Stuck{Container: "main", Reason: "ErrImagePull", Message: "no such image"}})
	s.pods[len(s.pods)-2].Unprobed = true
}

func TestPrintStatus(t *testing.T) {
	tests := map[string]struct {
		with  func(*sight)
		style style
		wide  bool
		want  string
	}{
		"a success": {
			with: func(s *sight) { s.pods = []defense.Pod{ready("a", minutesAgo(9))} },
			want: `✔ deployment/sleep in shop: Success
  pods        3 desired, 3 updated, 3 ready
  runs        busybox:2 (version 222222222222)
  release     2, by ann, 9m ago
└─ ✔ release 2, Success 8m ago, version 222222222222, busybox:2, by ann
   └─ ◷ pod a: Ready for 9m, not finished
`,
		},
		"blocked": {
			with: inBatches,
			want: `✖ deployment/sleep in shop: blocked, halted
  pods        12 desired, 11 updated, 10 ready
  runs        busybox:2 (version 222222222222)
  release     2, by ann, 9m ago
  blocked     for 2m, because release 2 failed: pod sleep-a: fail: find error
  halted      the operator paused the rollout, because version 222222222222 failed
└─ ✖ release 2, Suspend 2m ago, version 222222222222, busybox:2, by ann
   ├─ ✖ Verified PodFailed: pod sleep-a: fail: find error
   ├─ ✖ batch 1: 1 of 1 pod failed (PostFinish)
   │  └─ ✖ check shop/web/errors: Failed RuleFailed: 5% of requests failed
   ├─ ◷ batch 2: PreSubmitted of 1 pod
   │  └─ ◷ check shop/web/errors: Running, at most 3m more
   ├─ ✔ 1 batch passed, with 6 pods
   │  └─ ◷ check shop/web/stays-up still looks at 1 batch
   ├─ ✖ pod a: Ready for 9m, failed: fail: find error
   ├─ ✖ pod k: not Ready: container main: ErrImagePull: no such image, not finished
   ├─ ◷ pod i: Ready for 4s, not finished (is in 6s)
   ├─ ◷ pod b: Ready for 9m, being verified
   ├─ ✔ pod c: Ready for 9m, passed
   ├─ ✔ pod d: Ready for 9m, passed
   └─ ✔ … and 4 more pods, all passed
`,
		},
		"rolled back, in ASCII": {
			with: leftByRollback, style: style{ascii: true},
			want: `x deployment/sleep in shop: rolled back
  pods        3 desired, 3 updated, 3 ready
  runs        busybox:2 (version 111111111111)
  release     3, by ann, 9m ago
  quarantine  222222222222 for 55m: NeverStarted: pod sleep-a: ErrImagePull
|- + release 3, Success 8m ago, attempt 2, version 111111111111, busybox:2, by the operator
` + "`- x release 2, Rollback 8m ago, version 222222222222, busybox:2, by ann\n",
		},
		"with colours": {
			with: func(s *sight) { s.enrolled = false; s.changes = nil }, style: style{color: true},
			want: "· \x1b[1mdeployment/sleep\x1b[0m in shop: not defended\n" +
				"  defense     the namespace shop is not enrolled\n  pods        3 desired, 3 updated, 3 ready\n" +
				"  runs        busybox:2 (version 222222222222)\n  release     2, by ann\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.style.operator = operatorNamespace
			var got bytes.Buffer
			(&statusPrinter{style: tt.style, now: testNow, wide: tt.wide}).print(&got, statusOf(newSight(tt.with), testNow))
			if diff := cmp.Diff(tt.want, got.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrintExplanation(t *testing.T) {
	tests := map[string]struct {
		with func(*sight)
		want string
	}{
		"nothing": {
			with: func(s *sight) {
				s.say(v1alpha1.ConditionVerified, metav1.ConditionTrue, v1alpha1.ReasonAllPassed, "every pod of the release passed")
				s.say(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonRolloutComplete, "every pod runs this version and is available")
			},
			want: `deployment/sleep in shop: Success

✔ Every pod passed.
  every pod of the release passed
  Since 2026-11-23 11:58:00Z (2m ago).
`,
		},
		"unverified": {
			with: func(s *sight) {
				s.say(v1alpha1.ConditionVerified, metav1.ConditionTrue, v1alpha1.ReasonPassedUnverified, "3 of 5 pods passed without a verdict of AlterShield Server")
			},
			want: `deployment/sleep in shop: Success

· Every pod passed, some without a verdict of AlterShield Server.
  3 of 5 pods passed without a verdict of AlterShield Server
  Since 2026-11-23 11:58:00Z (2m ago).
  What you may do:
    kubectl altershield check
      Looks at the operator itself: whether it runs, and its webhooks are called.
`,
		},
		"blocked": {
			with: blockedBySecond,
			want: `deployment/sleep in shop: blocked

✖ Releases are blocked, because release 2 (version 222222222222) failed its verification: each change of the pod template is denied, except an override release and an undo.
  pod sleep-a: fail: find error
  Since 2026-11-23 11:58:00Z (2m ago). Released by ann.
  What you may do:
    kubectl altershield override deployment/sleep --image main=IMAGE -n shop
      Releases a fix past the block, which its success lifts; right when a fixed image is there (or --next, where Git or Helm releases it).
    kubectl altershield rollback deployment/sleep -n shop
      Sets the workload back to version 111111111111 (busybox:1), the newest that succeeded, and puts this one into quarantine; right when users suffer and no fix is at hand.
    kubectl altershield verdict pass deployment/sleep --pod sleep-a -n shop
      Says that the verdict was wrong, so that the release goes on, and the block is lifted; right when you have looked, and nothing is wrong.
`,
		},
		"rolled back": {
			with: func(s *sight) {
				leftByRollback(s)
				s.missing = []string{"its pods are not told: you must not read them"}
			},
			want: `deployment/sleep in shop: rolled back

✖ Release 2 (version 222222222222) failed, and the operator went back to version 111111111111. A fix is to be released: the version that was left is denied.
  NeverStarted: pod sleep-a: ErrImagePull; in quarantine for 55m more
  Since 2026-11-23 11:55:00Z (5m ago). Released by ann.
  What you may do:
    kubectl set image deployment/sleep main=IMAGE -n shop
      Releases another version; right when a fix is there.
    kubectl annotate deployment/sleep altershield.defense.antgroup.com/unquarantine=22222222222222222222222222222222 -n shop
      Lets that version be released again; right when another cause made it fail, and is over.

· its pods are not told: you must not read them
`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSight(tt.with)
			findings := Findings(s, testAdvisor, testNow)
			_, summary := summaryOf(s, findings)
			e := &Explanation{Kind: "Deployment", Namespace: "shop", Name: "sleep", Findings: findings, Missing: s.missing}
			var got bytes.Buffer
			(&explainPrinter{style: style{operator: operatorNamespace}, now: testNow}).print(&got, e, summary)
			if diff := cmp.Diff(tt.want, got.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

// What cannot be mended by an edit is not to be edited.
func TestPrintNotAccepted(t *testing.T) {
	for reason, want := range map[string]string{
		v1alpha1.ReasonInvalidContent: "kubectl edit opsconfiginfo/x", v1alpha1.ReasonTypeMismatch: "kubectl edit opsconfiginfo/x",
		v1alpha1.ReasonUnknownName: "kubectl delete opsconfiginfo/x", v1alpha1.ReasonOfCluster: "kubectl delete opsconfiginfo/x",
		v1alpha1.ReasonLocked: "kubectl delete opsconfiginfo/x",
	} {
		c, out := testConnection(t)
		(&asked{c: c}).printNotAccepted(&explainPrinter{now: testNow}, []Item{{Kind: "OpsConfigInfo", Namespace: "shop", Name: "x", What: "not accepted", Why: reason + ": because"}})
		if !strings.Contains(out.String(), "    "+want+"\n") {
			t.Errorf("%s: %s", reason, out)
		}
	}
}

func TestPrintHistory(t *testing.T) {
	var got bytes.Buffer
	s := newSight(leftByRollback)
	s.changes[1].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRolledBack, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNeverStarted, Message: "NeverStarted: pod sleep-a"}}
	p := &historyPrinter{style: style{operator: operatorNamespace}, now: testNow, rollback: "kubectl altershield rollback deployment/sleep -n shop"}
	p.print(&got, historyOf(s, testNow))
	want := `deployment/sleep in shop

  RELEASE   STATE      STARTED   BY             IMAGES      VERSION                            WHY
✔ 3 (now)   Success    9m ago    the operator   busybox:2   11111111111111111111111111111111
✖ 2         Rollback   9m ago    ann            busybox:2   22222222222222222222222222222222   NeverStarted: pod sleep-a
✔ 1         Success    60m ago   bob            busybox:1   11111111111111111111111111111111

It can be rolled back to:
  VERSION                            RELEASE   IMAGES      REMEMBERED   STATE
✖ 22222222222222222222222222222222   2         busybox:2   8m ago       not proven yet, in quarantine
· 11111111111111111111111111111111   1         busybox:1   59m ago      proven, runs now
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}

func TestPrintOverview(t *testing.T) {
	c := &census{policies: []v1alpha1.DefensePolicy{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Status: v1alpha1.DefensePolicyStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalidPolicy, Message: "spec.checks[0]: no such field", LastTransitionTime: metav1.NewTime(minutesAgo(30)),
		}}},
	}}}
	named := func(name string, with func(*sight)) *sight {
		s := newSight(with)
		s.workload.Name = name
		return s
	}
	c.sights = []*sight{
		named("fine", nil), named("blocked", blockedBySecond), named("left", leftByRollback),
		named("held", func(s *sight) {
			s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning
			s.say(v1alpha1.ConditionHeld, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts, "waiting for 3 verdicts")
		}),
		named("going", func(s *sight) { s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning }),
		named("new", func(s *sight) { s.workload.Labels, s.workload.Annotations, s.changes = nil, nil, nil }),
		named("out", func(s *sight) { s.workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled }),
		named("seen", func(s *sight) { s.settings.Observe = true }),
	}
	tests := map[string]struct {
		namespace string
		all       bool
		want      string
	}{
		"of a namespace": {
			namespace: "shop",
			want: `  NAME                 WHAT           SINCE   BY    WHY
✖ defensepolicy/web    not accepted   30m           Invalid: spec.checks[0]: no such field
✖ deployment/blocked   blocked        2m      ann   pod sleep-a: fail: find error
✖ deployment/left      rolled back    5m      ann   NeverStarted: pod sleep-a: ErrImagePull; in quarantine for 55m more
⏸ deployment/held      held           2m      ann   waiting for 3 verdicts

8 workloads in shop: 2 need attention, 1 waits, 1 is under way, 2 are fine, 1 has no release yet, 1 is not defended; 1 is in observe mode; 1 has versions in quarantine.
What to do: EXPLAIN
`,
		},
		"all of all": {
			all: true,
			want: `  NAMESPACE   NAME                 WHAT           SINCE   BY    RELEASE   STATE     READY   UPDATED   WHY
✖ shop        defensepolicy/web    not accepted   30m                                                 Invalid: spec.checks[0]: no such field
✖ shop        deployment/blocked   blocked        2m      ann   2         Suspend   3/3     3         pod sleep-a: fail: find error
✖ shop        deployment/left      rolled back    5m      ann   3         Success   3/3     3         NeverStarted: pod sleep-a: ErrImagePull; in quarantine for 55m more
⏸ shop        deployment/held      held           2m      ann   2         Running   3/3     3         waiting for 3 verdicts
✔ shop        deployment/fine      Success        8m      ann   2         Success   3/3     3
◷ shop        deployment/going     Running        8m      ann   2         Running   3/3     3
· shop        deployment/new       baseline                                         3/3     3
· shop        deployment/out       opted out      8m      ann   2         Success   3/3     3
✔ shop        deployment/seen      Success        8m      ann   2         Success   3/3     3

8 workloads in all namespaces: 2 need attention, 1 waits, 1 is under way, 2 are fine, 1 has no release yet, 1 is not defended; 1 is in observe mode; 1 has versions in quarantine.
What to do: EXPLAIN
`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			p := &overviewPrinter{style: style{operator: operatorNamespace}, now: testNow, all: tt.all, explain: "EXPLAIN"}
			p.print(&got, overviewOf(c, tt.namespace, tt.all, testNow))
			if diff := cmp.Diff(tt.want, got.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStyleOf(t *testing.T) {
	tests := map[string]struct {
		env       map[string]string
		wantASCII bool
	}{
		"nothing is said":         {},
		"UTF-8":                   {env: map[string]string{"LANG": "en_US.UTF-8"}},
		"as some write it":        {env: map[string]string{"LC_CTYPE": "C.utf8", "LANG": "C"}},
		"plain":                   {env: map[string]string{"LANG": "C"}, wantASCII: true},
		"the first counts":        {env: map[string]string{"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, wantASCII: true},
		"another coding of signs": {env: map[string]string{"LANG": "de_DE.ISO-8859-1"}, wantASCII: true},
	}
	for name, tt := range tests {
		got := styleOf(io.Discard, func(name string) string { return tt.env[name] })
		if got.ascii != tt.wantASCII || got.color {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What is drawn again is told only where more than ages differ.
func TestDraw(t *testing.T) {
	now := testNow
	var out bytes.Buffer
	s := &screen{w: &out, now: func() time.Time { return now }, began: testNow, between: "\n"}
	show := func(what string) func(io.Writer, time.Time) error {
		return func(w io.Writer, at time.Time) error {
			_, err := fmt.Fprintf(w, "%s since %s\n", what, at.Sub(minutesAgo(1)))
			return err
		}
	}
	gone := func(io.Writer, time.Time) error { return remedy(io.EOF, "look elsewhere") }
	if err := s.draw(gone); err == nil {
		t.Error("what is not there at first is no error")
	}
	for _, what := range []string{"one", "one", "two"} {
		if err := s.draw(show(what)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	if err := s.draw(gone); err != nil {
		t.Fatal(err)
	}
	var terminal bytes.Buffer
	onTerminal := &screen{w: &terminal, terminal: true, now: func() time.Time { return now }, began: testNow}
	if err := onTerminal.draw(show("one")); err != nil || terminal.String() != "\x1b[H\x1b[2Jone since 1m3s\n" {
		t.Errorf("%v: drew %q on a terminal, whose scrollback is to stay", err, terminal.String())
	}
	if want := "one since 1m0s\n\ntwo since 1m2s\n\nEOF\n  look elsewhere\n"; out.String() != want {
		t.Errorf("drew %q, not %q", out.String(), want)
	}
}
