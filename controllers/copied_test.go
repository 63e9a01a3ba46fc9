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

package controllers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/world"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestCopiedIDs: a user who may write the records of one workload copies ids from another workload's records into their status.
// The copies steal no verdict, finish and cancel nothing, and are reported.
func TestCopiedIDs(t *testing.T) {
	finishes := map[string]any{"status": "PostWait", "postSubmitTimeUnix": 0}
	for name, test := range map[string]struct {
		// release and batch are the fields written beside the ids; nil writes nothing, not even the ids.
		release, batch map[string]any
		// removed: the release with the copy is deleted afterwards.
		removed bool
		// restarted: the process that started the order entry has died.
		restarted bool
		// reported is a part of the message that reports the copy.
		reported string
	}{
		"to steal its verdicts":            {release: map[string]any{}, batch: map[string]any{}, reported: "which does not belong to this"},
		"of a batch, to steal its verdict": {batch: map[string]any{}, reported: "which does not belong to this batch"},
		"to finish its order": {
			release: map[string]any{"orderStage": "PostWait", "orderPostDueTimeUnix": 1}, reported: "which does not belong to this release",
		},
		"to finish its batch":              {batch: finishes, reported: "which does not belong to this batch"},
		"of its order entry, to finish it": {batch: with(finishes, "orderId", ""), reported: "in the status of another record"},
		"of its order entry, to finish it after a restart": {
			batch: with(finishes, "orderId", ""), restarted: true, reported: "in the status of another record",
		},
		"to cancel its order": {
			release: map[string]any{"orderEnd": "CANCEL", "orderEndDueTimeUnix": 9e9}, reported: "which does not belong to this release",
		},
		"to cancel its order, and is removed": {release: map[string]any{}, removed: true},
		"of its order entry, to end it without success": {
			release: map[string]any{"orderId": "", "orderStage": "PostWait", "orderEnd": "CANCEL", "orderEndDueTimeUnix": 9e9}},
		"of its order entry, to end it without success after a restart": {
			release: map[string]any{"orderId": "", "orderStage": "PostWait", "orderEnd": "CANCEL", "orderEndDueTimeUnix": 9e9}, restarted: true},
		"of its order entry, to end it, and is removed": {release: map[string]any{"orderId": "", "orderStage": "PostWait"}, removed: true},
		"to end its batch without success": {
			batch: map[string]any{"status": "ExecuteDone", "endDueTimeUnix": 9e9}},
		"of its batch's order entry, to end it without success": {
			batch: map[string]any{"orderId": "", "status": "ExecuteDone", "endDueTimeUnix": 9e9}, restarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story := world.Story{Name: name, Run: func(w *world.World) {
				w.Server().Script(simulator.Script{Never: true})
				w.Server().Script(simulator.Script{Match: simulator.Match{CheckType: altershield.CheckOrder, Stage: altershield.StagePre}})
				fails := simulator.Match{Workload: "web", CheckType: altershield.CheckBatch}
				w.Server().Script(simulator.Script{Match: fails, Verdict: altershield.VerdictFail, Delay: 30 * time.Second})
				create(w, web(1))
				create(w, wrappers.MakeDeployment(world.Namespace, "copy").Replicas(1).Image("good").
					Container(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }).Obj())
				w.Until("both are checked", func() bool { return checked(w, "web") != nil && checked(w, "copy") != nil })
				if test.restarted {
					w.Stop()
					w.Start()
					w.For(5 * time.Second)
				}
				victim, node := w.Change("web"), checked(w, "web").Status.ChangePodID
				copied := w.Change("copy")
				if test.batch != nil {
					ids := map[string]any{"changePodId": node, "orderId": victim.Status.OrderID}
					must(w, w.PatchStatus(checked(w, "copy"), merge(ids, test.batch, copied.Status.OrderID)))
				}
				if test.release != nil {
					ids := map[string]any{"orderId": victim.Status.OrderID, "orderNodeId": victim.Status.OrderNodeID}
					must(w, w.PatchStatus(copied, merge(ids, test.release, copied.Status.OrderID)))
				}
				if test.removed {
					must(w, w.Delete(copied))
				}
				w.For(10 * time.Second)
				until(w, v1alpha1.ChangeWorkloadSuspend)
				theirs := w.Server().Journal().Filter(func(e simulator.Entry) bool {
					if finish, ok := e.Request.(*altershield.FinishNodeRequest); ok && strings.HasPrefix(finish.Msg, "the PRE check failed") {
						return false // sent for the victim itself
					}
					return e.Action == altershield.ActionEndOrder && e.Order == victim.Status.OrderID ||
						e.Action == altershield.ActionFinishNode && (e.Node == node || e.Node == victim.Status.OrderNodeID)
				})
				if len(theirs) > 0 {
					w.Failf("the victim's order was changed:\n%s", theirs)
				}
				if c := w.Change("copy"); c != nil && c.Status.Status == v1alpha1.ChangeWorkloadSuspend {
					w.Failf("the verdict was stolen")
				}
				reported := test.reported == "" || slices.ContainsFunc(w.Events(), func(e world.Event) bool {
					return e.Name == "copy" && e.Reason == v1alpha1.EventForeignID && strings.Contains(e.Message, test.reported)
				})
				for _, b := range world.List[*v1alpha1.ChangePod](w, "ChangePod") {
					for _, c := range b.Status.Conditions {
						reported = reported || strings.HasPrefix(b.Name, "copy--x--") && strings.Contains(c.Message, test.reported)
					}
				}
				if !reported {
					w.Failf("the copy is not reported: %v", w.Events())
				}
			}}
			e := world.Play(t, story, world.Options{Server: true, Verbose: *verbose})
			if e.Problem != "" {
				t.Errorf("%s\n%s", e.Problem, e.Log)
			}
		})
	}
}

// checked returns the batch of a workload whose PRE check runs, or nil.
func checked(w *world.World, name string) *v1alpha1.ChangePod {
	c := w.Change(name)
	if c == nil {
		return nil
	}
	for _, b := range w.Batches(c) {
		if b.Status.Status == v1alpha1.ChangePodPreSubmitted {
			return b
		}
	}
	return nil
}

func with(m map[string]any, key string, value any) map[string]any {
	return merge(m, map[string]any{key: value}, "")
}

// merge merges two maps. An empty orderId becomes own, the order of the copy.
func merge(m, more map[string]any, own string) map[string]any {
	all := map[string]any{}
	for _, part := range []map[string]any{m, more} {
		for k, v := range part {
			all[k] = v
		}
	}
	if own != "" && all["orderId"] == "" {
		all["orderId"] = own
	}
	return all
}
