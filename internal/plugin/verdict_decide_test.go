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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// doneBatch returns a batch of release 2 of version B that is done.
func doneBatch(n string, results []v1alpha1.PodResult, pods ...string) v1alpha1.ChangePod {
	b := v1alpha1.ChangePod{Spec: v1alpha1.ChangePodSpec{Attempt: 1, Release: 2}}
	b.Name = "sleep--x--" + versionB + "--x--" + n
	for _, pod := range pods {
		b.Spec.PodInfos = append(b.Spec.PodInfos, v1alpha1.PodInfo{Pod: pod, UID: "uid-" + pod})
	}
	b.Status = v1alpha1.ChangePodStatus{Status: v1alpha1.ChangePodExecuteDone, Message: v1alpha1.ChangePodMessageSkipped, PodResults: results}
	return b
}

func resultOf(pod, verdict string) v1alpha1.PodResult {
	return v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: pod, UID: "uid-" + pod}, Verdict: verdict}
}

// verdictsOf returns the results of the changed batches, as batch/pod=verdict.
func verdictsOf(done *corrected) (verdicts []string) {
	for _, b := range done.Batches {
		for _, r := range b.Status.PodResults {
			verdicts = append(verdicts, b.Name[len(b.Name)-1:]+"/"+r.Pod+"="+r.Verdict)
		}
	}
	return verdicts
}

func TestCorrect(t *testing.T) {
	suspended := recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend)
	suspended.Status.DefensePreparingPods = []v1alpha1.PodResult{resultOf("waits", "")}
	batches := func() []v1alpha1.ChangePod {
		earlier := doneBatch("1", []v1alpha1.PodResult{resultOf("old", "fail")}, "old")
		earlier.Spec.Attempt = 0
		checking := doneBatch("5", nil, "e")
		checking.Status.Status = v1alpha1.ChangePodPostSubmitted
		return []v1alpha1.ChangePod{
			earlier,
			doneBatch("3", []v1alpha1.PodResult{
				resultOf("b", "fail"), resultOf("b", "pass"), resultOf("c", "inconc"), resultOf("d", "pass"),
			}, "b", "c", "d"),
			doneBatch("2", []v1alpha1.PodResult{resultOf("a", "unpass")}, "a"),
			checking,
		}
	}
	order := suspended.DeepCopy()
	order.Status.OrderPreVerdict = &v1alpha1.CheckVerdict{Verdict: "pass", Delivered: "pass"}
	order.Status.OrderPostVerdict = &v1alpha1.CheckVerdict{Verdict: "fail", Delivered: "fail", Message: "freeze"}
	order.Status.Checks = []v1alpha1.CheckStatus{
		{Name: "shop/smoke/ping", Type: "HTTP", Stage: v1alpha1.StageReleasePost, Phase: v1alpha1.CheckFailed},
		{Name: "shop/seen/ping", Type: "HTTP", Stage: v1alpha1.StageReleasePost, Phase: v1alpha1.CheckFailed, Mode: v1alpha1.ModeObserve},
	}
	ended := recordOf(versionB, 2, v1alpha1.ChangeWorkloadRollback)
	for name, tt := range map[string]struct {
		correction correction
		change     *v1alpha1.ChangeWorkload
		// wantVerdicts are the results of the batches afterwards.
		wantVerdicts []string
		wantLines    []string
		wantLeft     []string
		wantErr      string
	}{
		"pass all": {
			correction{Pass: true}, &suspended,
			[]string{"2/a=pass", "3/d=pass", "3/b=pass", "3/c=pass"},
			[]string{"batch 2: pod a: pass", "batch 3: pod b: pass", "batch 3: pod c: pass"}, nil, "",
		},
		"pass a pod": {
			correction{Pass: true, Pods: []string{"c"}}, &suspended,
			[]string{"3/b=fail", "3/b=pass", "3/d=pass", "3/c=pass"}, []string{"batch 3: pod c: pass"}, []string{"pod b", "pod a"}, "",
		},
		"pass a batch": {
			correction{Pass: true, Batches: []int{3}}, &suspended,
			[]string{"3/d=pass", "3/b=pass", "3/c=pass"}, []string{"batch 3: pod b: pass", "batch 3: pod c: pass"}, []string{"pod a"}, "",
		},
		"pass what passes": {correction{Pass: true, Pods: []string{"d"}}, &suspended, nil, nil, []string{"pod b", "pod c", "pod a"}, ""},
		"pass the order and the checks, too": {
			correction{Pass: true, All: true}, order,
			[]string{"2/a=pass", "3/d=pass", "3/b=pass", "3/c=pass"},
			[]string{
				"batch 2: pod a: pass", "batch 3: pod b: pass", "batch 3: pod c: pass",
				"the POST check of the order: pass in place of fail", "the check shop/smoke/ping: Passed in place of Failed",
			}, nil, "",
		},
		"pass the order alone": {
			correction{Pass: true, Order: true}, order, nil,
			[]string{"the POST check of the order: pass in place of fail"}, []string{"pod b", "pod c", "pod a", "the check shop/smoke/ping"}, "",
		},
		"pass the checks alone": {
			correction{Pass: true, Checks: true}, order, nil,
			[]string{"the check shop/smoke/ping: Passed in place of Failed"}, []string{"pod b", "pod c", "pod a", "the POST check of the order"}, "",
		},
		"fail a pod": {
			correction{Pods: []string{"d"}}, &suspended,
			[]string{"3/b=fail", "3/b=pass", "3/c=inconc", "3/d=fail"}, []string{"batch 3: pod d: fail"},
			[]string{"pod b", "pod c", "pod d", "pod a"}, "",
		},
		"fail what fails": {correction{Batches: []int{2}}, &suspended, nil, nil, []string{"pod b", "pod c", "pod a"}, ""},
		"a pod of an earlier attempt": {
			correction{Pass: true, Pods: []string{"old"}}, &suspended, nil, nil, nil, "pod old is in no batch of release 2",
		},
		"a pod in no batch yet":    {correction{Pods: []string{"waits"}}, &suspended, nil, nil, nil, "pod waits is in no batch yet"},
		"a missing batch":          {correction{Batches: []int{1}}, &suspended, nil, nil, nil, "release 2 has no batch 1\n  it has 2, 3, 5"},
		"a batch that is not done": {correction{Batches: []int{5}}, &suspended, nil, nil, nil, "batch 5 is not done"},
		"a release that is not verified now": {
			correction{Pass: true}, &ended, nil, nil, nil, "release 2 is not verified: it is Rollback",
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := tt.change.DeepCopy()
			done, err := tt.correction.correct(tt.change, batches(), time.Unix(1, 0))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.wantVerdicts, verdictsOf(done)); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.wantLines, done.Lines); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.wantLeft, done.Left); diff != "" {
				t.Errorf("still failing (-want +got):\n%s", diff)
			}
			for _, b := range done.Batches {
				if b.Status.Message != v1alpha1.ChangePodMessagePostFinish {
					t.Errorf("%s: message %q", b.Name, b.Status.Message)
				}
			}
			if diff := cmp.Diff(before, tt.change); diff != "" {
				t.Errorf("the release that was read is changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestLasting: a corrected verdict lasts for its batch alone, if a rule fails.
func TestLasting(t *testing.T) {
	check := func(name string, phase v1alpha1.CheckPhase, mode v1alpha1.PolicyMode) *v1alpha1.ChangePod {
		return &v1alpha1.ChangePod{Status: v1alpha1.ChangePodStatus{Checks: []v1alpha1.CheckStatus{{Name: name, Phase: phase, Mode: mode}}}}
	}
	c, out := testConnection(t)
	sleep := target{kind: workload.Deployment{}, key: types.NamespacedName{Namespace: "shop", Name: "sleep"}}
	(&changer{connection: c}).reportPolicies(sleep, failingPolicies([]*v1alpha1.ChangePod{
		check("ops/default/up", v1alpha1.CheckFailed, v1alpha1.ModeEnforce),
		check("ops/default/ping", v1alpha1.CheckFailed, v1alpha1.ModeEnforce),
		check("ops/tries/up", v1alpha1.CheckFailed, v1alpha1.ModeObserve), check("ops/well/up", v1alpha1.CheckPassed, v1alpha1.ModeEnforce),
		check("altershield", v1alpha1.CheckFailed, ""),
	}))
	want := "the policy default in ops fails the next batch, too, if it finds the same; " +
		"if the policy is wrong, correct it: kubectl edit defensepolicy/default -n ops\n" +
		"or put this workload into observe mode: kubectl altershield enroll deployment/sleep --mode=observe\n"
	if out.String() != want {
		t.Errorf("it prints\n%s\nwant\n%s", out, want)
	}
}

func TestWhatFollows(t *testing.T) {
	suspended, running := recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend), recordOf(versionB, 2, v1alpha1.ChangeWorkloadRunning)
	blocked := recordOf(versionB, 2, v1alpha1.ChangeWorkloadSuspend,
		conditionOf(v1alpha1.ConditionBlocked, metav1.ConditionTrue, v1alpha1.ReasonPodFailed, ""))
	for name, tt := range map[string]struct {
		pass     bool
		left     []string
		change   v1alpha1.ChangeWorkload
		blocking bool
		want     string
	}{
		"fails, and is blocked":  {false, nil, running, true, "release 2 becomes Suspend, and releases are blocked"},
		"fails, and is observed": {false, nil, running, false, "releases are not blocked"},
		"has failed already":     {false, nil, suspended, true, "release 2 has failed already"},
		"something still fails":  {true, []string{"pod a"}, suspended, true, "release 2 stays Suspend: pod a still fails"},
		"its block is lifted":    {true, nil, blocked, true, "goes on as Running, or is a Success, and its block is lifted"},
		"another block stays":    {true, nil, suspended, true, "a block of another release, or of a user, stays"},
		"had not become Suspend": {true, nil, running, true, "release 2 goes on"},
	} {
		if got := whatFollows(&correction{Pass: tt.pass}, &corrected{Left: tt.left}, &tt.change, tt.blocking); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestVerdictFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		flags   verdictFlags
		verdict string
		wantErr string
	}{
		"pass":               {verdictFlags{}, "pass", ""},
		"no verdict":         {verdictFlags{}, "deployment/sleep", "is no verdict"},
		"fail nothing":       {verdictFlags{}, "fail", "fail needs the pods"},
		"fail the order":     {verdictFlags{correction: correction{Order: true}}, "fail", "fail is about pods"},
		"fail a pod":         {verdictFlags{correction: correction{Pods: []string{"a"}}}, "fail", ""},
		"all, and something": {verdictFlags{correction: correction{All: true, Pods: []string{"a"}}}, "pass", "--all is everything"},
	} {
		err := tt.flags.take(tt.verdict)
		if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: %v, want %q", name, err, tt.wantErr)
		}
		if err == nil && tt.flags.Message == "" {
			t.Errorf("%s: no message", name)
		}
	}
}
