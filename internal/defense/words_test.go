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
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestWords: the messages about a halt are true for each kind, and name the right command.
func TestWords(t *testing.T) {
	pause := workload.Words{Resume: "rollout resume deployment/sleep", GoOn: "rollout resume deployment/sleep"}
	other := workload.Words{HaltedBy: "sails 7", Resume: "patch fleet/sleep -p 3", GoOn: "patch fleet/sleep -p 0"}
	fail := func(w *world) { w.Verdict("sleep-0", "fail") }
	for name, test := range map[string]struct {
		words workload.Words
		world *world
		then  func(*world)
		// says is the message of the condition Progressing, event the first event of this reason.
		says, reason, event string
	}{
		"a Deployment is paused": {
			pause, newWorld(3).Pods(1), fail,
			"the deployment is paused",
			"RolloutHalted", "the rollout is paused",
		},
		"another kind is halted": {
			other, newWorld(3).Pods(1), fail,
			"the fleet is halted (sails 7); resume it with kubectl patch fleet/sleep -p 3 -n default",
			"RolloutHalted", "the rollout is halted (sails 7)",
		},
		"a Deployment that a user paused": {
			pause, newWorld(3).Paused().Pods(1), nil, "the deployment is paused", "", "",
		},
		"another kind that a user halted": {
			other, newWorld(3).Paused().Pods(1), nil,
			"the fleet is halted (sails 7); resume it with kubectl patch fleet/sleep -p 0 -n default", "", "",
		},
		"a Deployment, in observe mode": {
			pause, newWorld(3).Pods(1).observed(), fail, "", v1alpha1.EventDryRun, "the rollout would have been paused",
		},
		"another kind, in observe mode": {
			other, newWorld(3).Pods(1).observed(), fail, "", v1alpha1.EventDryRun, "the rollout would have been halted (sails 7)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.world
			w.in.Workload.Words = test.words
			if test.words.HaltedBy != "" {
				w.in.Workload.GVK = schema.GroupVersionKind{Version: "v1", Kind: "Fleet"}
			}
			w.Settle(t)
			event := ""
			if test.then != nil {
				test.then(w)
				for range 5 {
					plan := w.Step()
					for _, e := range slices.Concat(plan.Events, plan.ActionEvents) {
						if e.Reason == test.reason && (event == "" || strings.HasSuffix(strings.Split(e.Message, "; observe mode")[0], test.event)) {
							event = e.Message
						}
					}
				}
			}
			c := meta.FindStatusCondition(w.in.Change.Status.Conditions, v1alpha1.ConditionProgressing)
			if c == nil || record.Detail(c) != test.says {
				t.Errorf("says %+v\nwant %s", c, test.says)
			}
			if !strings.HasSuffix(strings.Split(event, "; observe mode")[0], test.event) || (event == "") != (test.event == "") {
				t.Errorf("event %q, want %q", event, test.event)
			}
		})
	}
}
