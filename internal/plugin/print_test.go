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
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const operatorNamespace = "altershieldoperator-system"

func batch(number int, pods ...string) *v1alpha1.ChangePod {
	b := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            fmt.Sprintf("sleep--x--%s--x--%d", versionTwo, number),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ChangeWorkload", UID: "uid-two", Controller: ptr.To(true)}},
		},
		Status: v1alpha1.ChangePodStatus{Status: v1alpha1.ChangePodExecuteDone, Message: v1alpha1.ChangePodMessagePostFinish},
	}
	for _, pod := range pods {
		b.Spec.PodInfos = append(b.Spec.PodInfos, v1alpha1.PodInfo{Pod: pod, UID: "uid-" + pod})
	}
	return b
}

func ready(name string, since time.Time) workload.Pod {
	return workload.Pod{Name: name, UID: types.UID("uid-" + name), Node: "node-1", Ready: true, ReadySince: since, StartedAt: since}
}

// inBatches fails the release, with batches, a check, and pods of all kinds.
func inBatches(s *snapshot) {
	blockedBySecond(s)
	s.workload.Paused = true
	s.workload.Annotations[v1alpha1.HaltedAnnotation] = versionTwo
	s.counts = PodCounts{Desired: 12, Updated: 11, Ready: 10}
	failed := batch(1, "a")
	failed.Status.PodResults = []v1alpha1.PodResult{{PodInfo: failed.Spec.PodInfos[0], Verdict: "fail", Message: "find error"}}
	failed.Status.Checks = []v1alpha1.CheckStatus{
		{Name: "shop/web/errors", Phase: v1alpha1.CheckFailed, Reason: "RuleFailed", Message: "5% of requests failed"},
	}
	going := batch(2, "b")
	going.Status.Status, going.Status.Message = v1alpha1.ChangePodPreSubmitted, ""
	going.Status.Checks = []v1alpha1.CheckStatus{
		{Name: "shop/web/errors", Phase: v1alpha1.CheckRunning, Deadline: &metav1.Time{Time: testNow.Add(3 * time.Minute)}},
	}
	passed := batch(3, "c", "d", "e", "f", "g", "h")
	passed.Status.Checks = []v1alpha1.CheckStatus{
		{Name: "shop/web/stays-up", Phase: v1alpha1.CheckWatching, Deadline: &metav1.Time{Time: testNow.Add(time.Minute)}},
	}
	s.batches["uid-two"] = []*v1alpha1.ChangePod{failed, going, passed}
	s.changes[0].Status.DefenseCheckFailPods[0].PodInfo = failed.Spec.PodInfos[0]
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		s.pods = append(s.pods, ready(name, minutesAgo(9)))
	}
	s.pods = append(s.pods, ready("i", testNow.Add(-4*time.Second)),
		workload.Pod{Name: "k", UID: "uid-k", Stuck: &workload.Stuck{Container: "main", Reason: "ErrImagePull", Message: "no such image"}})
	s.pods[len(s.pods)-2].Unprobed = true
}

// TestPrintQuery: -o wide prints what a check asked, the series of the result, and the id of a call.
func TestPrintQuery(t *testing.T) {
	s := newSnapshot(inBatches)
	s.batches["uid-two"][0].Status.Checks[0].Query = "sum(\n  rate(errors{pod=~\"a\"}[2m]))"
	s.batches["uid-two"][0].Status.Checks[0].CallID = "uid-two/ns/p/c/1-1"
	s.batches["uid-two"][0].Status.Checks[0].Value, s.batches["uid-two"][0].Status.Checks[0].Samples = "0.5", []string{`{pod="a"} 0.5`}
	for wide, want := range map[bool]int{true: 1, false: 0} {
		var out strings.Builder
		style{wide: wide}.status(&out, statusOf(s, testAdvisor), testNow)
		for _, text := range []string{`sum( rate(errors{pod=~"a"}[2m]))`, `{pod="a"} 0.5`, "uid-two/ns/p/c/1-1"} {
			if n := strings.Count(out.String(), text); n != want {
				t.Errorf("%d times %s, want %d, in\n%s", n, text, want, out.String())
			}
		}
	}
}

func TestPrintStatus(t *testing.T) {
	tests := map[string]struct {
		with  func(*snapshot)
		style style
		want  string
	}{
		"a success": {
			with: func(s *snapshot) {
				s.pods, s.revision = []workload.Pod{ready("a", minutesAgo(9))}, "sleep-6b7f"
				s.say(v1alpha1.ConditionVerified, metav1.ConditionTrue, v1alpha1.ReasonAllPassed, "every pod of the release passed")
			},
			want: `✔ deployment/sleep in shop: Success

Pods:     3 desired, 3 updated, 3 ready
Version:  222222222222, release 2 by ann
Images:   busybox:2

NAME              STATE         AGE  INFO
release 2       ✔ Success       8m   222222222222, by ann, busybox:2
└── sleep-6b7f  · 1/1 ready
    └── a       ◷ not finished
`,
		},
		"blocked": {
			with: inBatches,
			want: `✖ deployment/sleep in shop: blocked, halted

Pods:     12 desired, 11 updated, 10 ready
Version:  222222222222, release 2 by ann
Images:   busybox:2

NAME                         STATE           AGE  INFO
release 2                  ✖ Suspend         2m   222222222222, by ann, busybox…
├── batch 1                ✖ failed               1 of 1 pod failed (PostFinish)
│   └── shop/web/errors    ✖ Failed               RuleFailed
├── batch 2                ◷ PreSubmitted         1 pod
│   └── shop/web/errors    ◷ Running              at most 3m more
├── 1 batch                ✔ passed               6 pods
│   └── shop/web/stays-up  ◷ Watching             1 batch
└── pods                   · 9/10 ready
    ├── a                  ✖ failed               batch 1
    ├── k                  ✖ not finished         ErrImagePull
    ├── i                  ◷ not finished         finished in 6s
    ├── b                  ◷ being verified       batch 2
    ├── c                  ✔ passed               batch 3
    ├── d                  ✔ passed               batch 3
    └── 4 more             ·                      -o wide prints them

✖ Releases are blocked, because release 2 (version 222222222222) failed its
verification: each change of the pod template is denied, except an override
release and an undo.
  pod sleep-a: fail: find error
  The operator paused the rollout, so that no more pods are replaced by this
  version.
  Since 2026-11-23 11:58:00Z (2m ago). Released by ann.
  Next steps:
    kubectl altershield override deployment/sleep --image main=IMAGE -n shop
      Releases a fix past the block, which its success lifts; use when a fixed
      image is available (--next if Git or Helm releases it).
    kubectl altershield rollback deployment/sleep -n shop
      Sets the workload back to version 111111111111 (busybox:1), the newest
      that succeeded, and puts this one into quarantine; use when users suffer
      and no fix is available.
    kubectl altershield verdict pass deployment/sleep --pod a -n shop
      Corrects the verdict: the release continues, and the block is lifted; use
      when the verdict was wrong.
    kubectl edit defensepolicy/web -n shop
      Opens the policy that failed the pods: it can fail the next batch, too;
      use when the policy is wrong.
    kubectl rollout resume deployment/sleep -n shop
      Resumes the rollout of the version that failed, and leaves the block; use
      when the rest of the rollout does no harm.
`,
		},
		"rolled back, in ASCII": {
			with: func(s *snapshot) {
				leftByRollback(s)
				s.missing = []string{"its pods are not known: you may not read them"}
			}, style: style{ascii: true},
			want: `x deployment/sleep in shop: rolled back

Pods:     3 desired, 3 updated, 3 ready
Version:  111111111111, release 3 by ann
Images:   busybox:2

NAME         STATE     AGE  INFO
release 3  + Success   8m   111111111111, by the operator, attempt 2, busybox:2
release 2  x Rollback  8m   222222222222, by ann, busybox:2

x Release 2 (version 222222222222) failed, and the operator set the workload
back to version 111111111111. Release a fix: version 222222222222 is denied.
  NeverStarted: pod sleep-a: ErrImagePull; in quarantine for 55m more
  Since 2026-11-23 11:55:00Z (5m ago). Released by ann.
  Next steps:
    kubectl set image deployment/sleep main=IMAGE -n shop
      Releases another version; use when a fix is available.
    kubectl annotate deployment/sleep altershield.defense.antgroup.com/unquarantine=22222222222222222222222222222222 -n shop
      Lets that version be released again; use when another cause made it fail,
      and is over.

- its pods are not known: you may not read them
`,
		},
		"at an earlier version again, before the operator records it": {
			with: func(s *snapshot) {
				earlier := s.changes[0].DeepCopy()
				earlier.Name, earlier.UID, earlier.Spec.Reversion, earlier.Spec.Release = "sleep--x--"+versionOne, "uid-one", versionOne, 1
				earlier.Status.ObservedRelease, earlier.Status.PreviousReleases = 1, nil
				s.changes = append(s.changes, *earlier)
				s.workload.Version, s.workload.Labels[v1alpha1.VersionLabel] = versionOne, versionOne
				s.pods = []workload.Pod{ready("a", minutesAgo(9))}
			},
			want: `✔ deployment/sleep in shop: Success

Pods:     3 desired, 3 updated, 3 ready
Version:  111111111111, release 2 by ann
Images:   busybox:2

NAME         STATE         AGE  INFO
release 2  ✔ Success       8m   222222222222, by ann, busybox:2
release 1  ✔ Success       8m   111111111111, by ann, busybox:2
└── pods   · 1/1 ready
    └── a  ◷ not finished
`,
		},
		"with colours": {
			with: func(s *snapshot) { s.namespace.Labels = nil }, style: style{color: true},
			want: "\x1b[39m·\x1b[0m \x1b[1mdeployment/sleep\x1b[0m in shop: not defended\n" +
				"\n" +
				"Defense:  the namespace shop is not enrolled\n" +
				"Pods:     3 desired, 3 updated, 3 ready\n" +
				"Version:  222222222222, release 2 by ann\n" +
				"Images:   busybox:2\n" +
				"\n" +
				"NAME       \x1b[39m \x1b[0m STATE    AGE  INFO\n" +
				"release 2  \x1b[32m✔\x1b[0m Success  8m   222222222222, by ann, busybox:2\n" +
				"\n" +
				"\x1b[39m·\x1b[0m The namespace shop is not enrolled: releases of this workload are not\n" +
				"verified, and nothing stops them.\n" +
				"  Next steps:\n" +
				"    \x1b[1mkubectl altershield enroll shop --mode=observe\x1b[0m\n" +
				"      Enrols the namespace in observe mode; use it to see first what would be\n" +
				"      blocked or rolled back.\n" +
				"    \x1b[1mkubectl altershield enroll shop\x1b[0m\n" +
				"      Enrols the namespace in enforce mode; use when its workloads have\n" +
				"      readiness probes.\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.style.operator, tt.style.columns = operatorNamespace, 80
			var got bytes.Buffer
			tt.style.status(&got, statusOf(newSnapshot(tt.with), testAdvisor), testNow)
			if diff := cmp.Diff(tt.want, got.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrintHistory(t *testing.T) {
	var got bytes.Buffer
	s := newSnapshot(leftByRollback)
	s.changes[1].Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionRolledBack, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNeverStarted,
		Message: "NeverStarted: pod sleep-a",
	}}
	back := "kubectl altershield rollback deployment/sleep -n shop"
	(style{operator: operatorNamespace, columns: 80}).history(&got, historyOf(s), back, testNow)
	want := `deployment/sleep in shop

  RELEASE  STATE     STARTED  BY            IMAGES     VERSION       WHY
✔ 3 (now)  Success   9m ago   the operator  busybox:2  111111111111
✖ 2        Rollback  9m ago   ann           busybox:2  222222222222  NeverStarted: pod sleep…
✔ 1        Success   60m ago  bob           busybox:1  111111111111

It can be rolled back to:
  VERSION       RELEASE  IMAGES     REMEMBERED  STATE
✖ 222222222222  2        busybox:2  8m ago      not proven yet, in quarantine
· 111111111111  1        busybox:1  59m ago     proven, runs now
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}

func TestPrintOverview(t *testing.T) {
	c := &census{policies: []v1alpha1.DefensePolicy{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Status: v1alpha1.DefensePolicyStatus{Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalidPolicy,
			Message: "spec.checks[0]: no such field", LastTransitionTime: metav1.NewTime(minutesAgo(30)),
		}}},
	}}}
	named := func(name string, with func(*snapshot)) *snapshot {
		s := newSnapshot(with)
		s.workload.Name = name
		return s
	}
	c.snapshots = []*snapshot{
		named("fine", nil), named("blocked", blockedBySecond), named("left", leftByRollback),
		named("held", func(s *snapshot) {
			s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning
			s.say(v1alpha1.ConditionHeld, metav1.ConditionTrue, v1alpha1.ReasonWaitingForVerdicts, "waiting for 3 verdicts")
		}),
		named("going", func(s *snapshot) { s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning }),
		named("new", func(s *snapshot) { s.workload.Labels, s.workload.Annotations, s.changes = nil, nil, nil }),
		named("out", func(s *snapshot) { s.workload.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled }),
		named("seen", func(s *snapshot) { s.settings.Observe = true }),
	}
	tests := map[string]struct {
		namespace string
		all       bool
		want      string
	}{
		"of a namespace": {
			namespace: "shop",
			want: `  NAME                WHAT          SINCE  BY   WHY
✖ defensepolicy/web   not accepted  30m         Invalid: spec.checks[0]: no suc…
✖ deployment/blocked  blocked       2m     ann  pod sleep-a: fail: find error
✖ deployment/left     rolled back   5m     ann  NeverStarted: pod sleep-a: ErrI…
⏸ deployment/held     held          2m     ann  waiting for 3 verdicts

8 workloads in shop: 2 need attention, 1 waits, 1 is under way, 2 are fine, 1
has no release yet, 1 is not defended; 1 is in observe mode; 1 has versions in
quarantine.
Next steps: kubectl altershield status NAME
`,
		},
		"all of all": {
			all: true,
			want: `  NAMESPACE  NAME                WHAT          SINCE  BY   READY  WHY
✖ shop       defensepolicy/web   not accepted  30m                Invalid: spec.checks[0]…
✖ shop       deployment/blocked  blocked       2m     ann  3/3    pod sleep-a: fail: find…
✖ shop       deployment/left     rolled back   5m     ann  3/3    NeverStarted: pod sleep…
⏸ shop       deployment/held     held          2m     ann  3/3    waiting for 3 verdicts
✔ shop       deployment/fine     Success       8m     ann  3/3
◷ shop       deployment/going    Running       8m     ann  3/3
· shop       deployment/new      baseline                  3/3
· shop       deployment/out      opted out     8m     ann  3/3
✔ shop       deployment/seen     Success       8m     ann  3/3

8 workloads in all namespaces: 2 need attention, 1 waits, 1 is under way, 2 are
fine, 1 has no release yet, 1 is not defended; 1 is in observe mode; 1 has
versions in quarantine.
Next steps: kubectl altershield status NAME -n NAMESPACE
`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			connection, got := testConnection(t)
			a := &reading{connection: connection, style: style{operator: operatorNamespace, columns: 80}}
			a.overview(got, overviewOf(c, tt.namespace, tt.all, testNow), tt.namespace, tt.all, testNow)
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

// TestPrintObject: each printed object is one document, with plain numbers.
func TestPrintObject(t *testing.T) {
	status := &Status{Metadata: Metadata{Name: "sleep"}, Release: 1764100000}
	for format, want := range map[string]string{
		"yaml":                "apiVersion: app.ops.cloud.alipay.com/v1alpha1\ndefense: \"\"\n",
		"jsonpath={.release}": "1764100000\n",
		"name":                "status.app.ops.cloud.alipay.com/sleep\n",
	} {
		flags := genericclioptions.NewPrintFlags("")
		flags.OutputFormat = &format
		p, err := flags.ToPrinter()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			var got bytes.Buffer
			if err := printObject(&got, p, status); err != nil || !strings.HasPrefix(got.String(), want) {
				t.Errorf("%s: %v, %q, want %q", format, err, got.String(), want)
			}
		}
	}
}

// TestDraw: a text is printed again only if more than its ages differ.
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
	for _, what := range []string{"one", "one", "two"} {
		if err := s.draw(show(what)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	var terminal bytes.Buffer
	onTerminal := &screen{w: &terminal, terminal: true, now: func() time.Time { return now }, began: testNow}
	if err := onTerminal.draw(show("one")); err != nil || terminal.String() != "\x1b[H\x1b[2Jone since 1m3s\n" {
		t.Errorf("%v: drew %q on a terminal, whose scrollback is to stay", err, terminal.String())
	}
	if want := "one since 1m0s\n\ntwo since 1m2s\n"; out.String() != want {
		t.Errorf("drew %q, not %q", out.String(), want)
	}
}
