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
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestBatchOfAnotherRelease: a batch of a release that is over ends, even if its attempt has the current number.
func TestBatchOfAnotherRelease(t *testing.T) {
	change, batch := records()
	in := server.BatchInput{Now: testNow, Settings: settings.Default(), Change: change, Batch: batch, Server: true}
	if plan := server.DecideBatch(in); plan.Call != server.CallFinish {
		t.Errorf("the batch of the release calls %v, want %v", plan.Call, server.CallFinish)
	}
	batch.Spec.Release--
	plan := server.DecideBatch(in)
	if plan.Status == nil || plan.Status.Status != v1alpha1.ChangePodExecuteDone || plan.Call != server.CallNone {
		t.Fatalf("the batch of the release before: %+v", plan)
	}
	if c := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionChecked); c == nil || c.Reason != v1alpha1.ReasonReleaseEnded {
		t.Errorf("condition %+v", c)
	}
}

// TestClaimHidesNoFailure: a pass that waited for its entry does not replace a failure.
func TestClaimHidesNoFailure(t *testing.T) {
	change, batch := records()
	of := func(verdict string) v1alpha1.CheckVerdict {
		return v1alpha1.CheckVerdict{NodeID: "node", Verdict: verdict, Delivered: verdict}
	}
	failed := of(record.VerdictFail)
	batch.Status.PostVerdict = &failed
	change.Status.UnclaimedVerdicts = []v1alpha1.UnclaimedVerdict{{CheckVerdict: of(record.VerdictPass), Stage: v1alpha1.StagePost}}
	plan := server.DecideBatch(server.BatchInput{Now: testNow, Settings: settings.Default(), Change: change, Batch: batch, Server: true})
	if plan.Status == nil || plan.Status.PostVerdict.Verdict != record.VerdictFail {
		t.Errorf("the failure is hidden: %+v", plan.Status)
	}
}

func TestDecideBatchStandAlone(t *testing.T) {
	decide := func(batch *v1alpha1.ChangePod) *v1alpha1.ChangePodStatus {
		return server.DecideBatch(server.BatchInput{Now: testNow, Batch: batch,
			Change: wrappers.MakeChangeWorkload("default", "release").Attempt(1).Obj()}).Status
	}
	batch := wrappers.MakeChangePod("default", "batch").Pods("a", "b").Obj()
	next := decide(batch)
	if next == nil || next.Status != v1alpha1.ChangePodExecuteDone || next.Message != "Skipped" || len(next.PodResults) != 2 {
		t.Fatalf("changed to %+v, want ExecuteDone, Skipped, two results", next)
	}
	for _, r := range next.PodResults {
		if record.VerdictFails(r.Verdict) {
			t.Errorf("pod %s fails by verdict %q although no check was made", r.Pod, r.Verdict)
		}
	}
	written := batch.DeepCopy()
	written.Status.PodResults = []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: "b"}, Verdict: "fail", Message: "find error"}}
	if kept := decide(written); kept == nil || len(kept.PodResults) != 2 || kept.PodResults[0].Pod != "b" ||
		kept.PodResults[0].Verdict != "fail" {
		t.Errorf("a verdict written before the batch was done is lost: %+v", kept)
	}
	batch.Status = *next
	batch.Status.PodResults[0].Verdict = "fail"
	if after := decide(batch); after != nil {
		t.Errorf("a batch that is done was changed: %+v", after)
	}
}
