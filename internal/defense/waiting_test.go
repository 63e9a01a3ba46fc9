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
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// TestWaitsForServer: a release that waits long for the server reports it once, in time, and the end of the wait.
func TestWaitsForServer(t *testing.T) {
	const from, until = "2026-03-04T05:06:07Z", "2026-03-04T05:08:07Z"
	for name, test := range map[string]struct {
		verdict map[string]string
		answer  map[string]server.AnswerKind
		silence bool
		stage   v1alpha1.OrderStage // while it waits
		reason  string              // none if nothing is reported
		says    string
		normal  bool
	}{
		"nothing is late": {},
		"the order is not accepted": {answer: map[string]server.AnswerKind{"Submit order": server.AnswerRetry},
			reason: v1alpha1.ReasonNotSubmitted, stage: v1alpha1.OrderSubmitting,
			says: "AlterShield Server has not accepted the order since " + from + ": connection refused; it has until " + until +
				", and without a verdict it continues unverified"},
		"the order is not accepted, and silence fails": {answer: map[string]server.AnswerKind{"Submit order": server.AnswerRetry}, silence: true,
			reason: v1alpha1.ReasonNotSubmitted, stage: v1alpha1.OrderSubmitting,
			says: "it has until " + until + ", and without a verdict it fails, as the setting silence says"},
		"permission denied": {answer: map[string]server.AnswerKind{"Submit order": server.AnswerDenied}, reason: v1alpha1.ReasonPermissionDenied,
			stage: v1alpha1.OrderDenied,
			says: "has not accepted the order since " + from + ": connection refused; until platform and token are corrected nothing of the " +
				"release is verified, however long that takes"},
		"permission denied at the start of the order": {answer: map[string]server.AnswerKind{"Start order": server.AnswerDenied},
			reason: v1alpha1.ReasonNotSubmitted, stage: v1alpha1.OrderPreWait,
			says: "the PRE check of the order could not be submitted since " + from + ": connection refused; it has until " + until},
		"no PRE verdict on the order": {verdict: map[string]string{"PRE order": ""}, reason: v1alpha1.ReasonNoVerdict,
			stage: v1alpha1.OrderPreSubmitted, normal: true,
			says: "AlterShield Server has given no verdict on the PRE check of the order since " + from + "; it has until " + until},
		"no POST verdict on the order": {verdict: map[string]string{"POST order": ""}, reason: v1alpha1.ReasonNoVerdict,
			stage: v1alpha1.OrderPostSubmitted, normal: true,
			says: "no verdict on the POST check of the order since " + from},
		"the end of the order is not taken": {answer: map[string]server.AnswerKind{"Finish order": server.AnswerRetry},
			reason: v1alpha1.ReasonNotSubmitted, stage: v1alpha1.OrderPostWait,
			says: "the POST check of the order could not be submitted since " + from},
		"a batch is not taken": {answer: map[string]server.AnswerKind{"Start 2": server.AnswerDenied}, reason: v1alpha1.ReasonNotSubmitted,
			stage: v1alpha1.OrderPostWait,
			says:  "the PRE check of batch 2 could not be submitted since " + from},
		"no verdicts on two batches": {verdict: map[string]string{"PRE 1": "", "POST 2": ""}, reason: v1alpha1.ReasonNoVerdict,
			stage: v1alpha1.OrderPostWait, normal: true,
			says: "no verdict on the PRE check of batch 1 since " + from},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(2)
			d.in.Settings.SilenceFails = test.silence
			recovered := false
			d.server.verdict = byCheck(test.verdict)
			d.server.answer = func(call string) *server.Answer {
				if kind, ok := test.answer[call]; ok && !recovered {
					return &server.Answer{Kind: kind, Message: "connection refused"}
				}
				return nil
			}
			d.Pods(2).Complete()
			said := func() *metav1.Condition {
				return meta.FindStatusCondition(d.in.Change.Status.Conditions, v1alpha1.ConditionServer)
			}
			d.Run(t, 59*time.Second)
			if c := said(); c == nil || server.WaitsForServer(&d.in.Change.Status) {
				t.Fatalf("too early: %+v", c)
			}
			early := len(d.Events(v1alpha1.EventWaitingForServer)) // of a server that denies
			d.Run(t, 2*time.Second)
			messages := fmt.Sprint(d.Events(v1alpha1.EventWaitingForServer))
			if test.reason == "" {
				if c := said(); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonAnswered || messages != "[]" {
					t.Fatalf("for nothing: %+v, %s", c, messages)
				}
				return
			}
			c := said()
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != test.reason || !strings.Contains(c.Message, test.says) ||
				d.in.Change.Status.OrderStage != test.stage {
				t.Fatalf("order %s, %+v, want %s: %s: %s", d.in.Change.Status.OrderStage, c, test.stage, test.reason, test.says)
			}
			for _, e := range d.emitted {
				if e.Reason == v1alpha1.EventWaitingForServer && (e.Type == "Normal") != test.normal {
					t.Errorf("event of type %s", e.Type)
				}
			}
			if !strings.Contains(messages, test.says) {
				t.Errorf("events %s", messages)
			}
			d.Run(t, 20*time.Second)
			if n := len(d.Events(v1alpha1.EventWaitingForServer)); n != 1+early {
				t.Errorf("%d events, want 1", n)
			}
			// The server answers again.
			recovered, d.server.polls = true, true
			d.Run(t, 10*time.Minute)
			if c := said(); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonAnswered ||
				d.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuccess {
				t.Errorf("%s: %+v", d.in.Change.Status.Status, c)
			}
			if n := len(d.Events(v1alpha1.EventWaitingForServer)); n > 2+early {
				t.Errorf("%d events", n)
			}
		})
	}
}

// TestWaitEndsWithoutAVerdict: a wait that ends by its deadline is not reported as a wait.
func TestWaitEndsWithoutAVerdict(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = byCheck(map[string]string{"POST 1": ""})
	d.Pods(1).Complete()
	d.Run(t, 61*time.Second)
	if !server.WaitsForServer(&d.in.Change.Status) {
		t.Fatalf("%+v", d.in.Change.Status.Conditions)
	}
	d.Run(t, 10*time.Minute)
	c := meta.FindStatusCondition(d.in.Change.Status.Conditions, v1alpha1.ConditionServer)
	if d.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuccess || server.WaitsForServer(&d.in.Change.Status) ||
		c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonNoVerdict {
		t.Errorf("%s, %+v", d.in.Change.Status.Status, c)
	}
}

// TestWaitForAnotherCheck: a batch that waits only for another check does not wait for the server.
func TestWaitForAnotherCheck(t *testing.T) {
	for phase, waits := range map[v1alpha1.CheckPhase]bool{v1alpha1.CheckRunning: true, v1alpha1.CheckPassed: false,
		v1alpha1.CheckNoData: false} {
		d := newDefended(1)
		d.server.verdict = byCheck(map[string]string{"POST 1": ""})
		d.Pods(1).Complete()
		d.Run(t, 0)
		b := &d.in.Batches[0].Status
		if b.Status != v1alpha1.ChangePodPostSubmitted {
			t.Fatalf("batch %s", b.Status)
		}
		b.Checks = []v1alpha1.CheckStatus{{Name: record.ServerCheck, Phase: phase}, {Name: "probe", Phase: v1alpha1.CheckRunning}}
		d.Later(50 * time.Minute)
		if plan := d.Step(); plan.Status != nil {
			d.in.Change.Status = *plan.Status
		}
		if got := server.WaitsForServer(&d.in.Change.Status); got != waits {
			t.Errorf("%s: waits for the server: %t, want %t", phase, got, waits)
		}
	}
}

// TestWaitEndsWithTheRelease: a replaced release waits for nothing.
func TestWaitEndsWithTheRelease(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = byCheck(map[string]string{"PRE order": ""})
	d.Pods(1).Complete()
	d.Run(t, time.Minute)
	d.Run(t, 0)
	if !server.WaitsForServer(&d.in.Change.Status) {
		t.Fatalf("%+v", d.in.Change.Status.Conditions)
	}
	d.Release(2, versionB)
	d.Run(t, 0)
	if server.WaitsForServer(&d.in.Change.Status) {
		t.Errorf("%+v", d.in.Change.Status.Conditions)
	}
}
