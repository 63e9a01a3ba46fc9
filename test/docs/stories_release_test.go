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

package docs

import (
	"strings"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// releaseStories has the plans of the documents about releases, blocks and rollbacks.
var releaseStories = map[string]plan{
	"docs/concepts/release.md": {
		begin: (*story).standAlone,
		end:   (*story).forget,
		steps: []step{
			{command: "kubectl get changeworkloads,changepods", before: (*story).fresh},
		},
	},
	"docs/tasks/handle-a-failed-release.md": {
		begin: func(s *story) {
			s.standAlone()
			s.fresh()
			s.release("busybox:1.35")
			s.fail()
		},
		end:   (*story).forget,
		steps: remedies,
	},
	"docs/concepts/block.md": {
		begin: func(s *story) {
			s.standAlone()
			s.block()
		},
		end: (*story).forget,
	},
	"docs/concepts/rollback.md": {
		begin: (*story).standAlone,
		end:   (*story).forget,
		steps: []step{
			{
				command: "kubectl set image deployment/sleep sleep=busybo",
				before:  (*story).fresh,
				after:   (*story).pullFails,
			},
			{command: "kubectl set image deployment/sleep sleep=busybo"},
		},
	},
	"docs/concepts/verification.md": {
		begin: func(s *story) {
			s.standAlone()
			s.fresh()
		},
		end:   (*story).forget,
		steps: verdicts,
	},
}

// remedies are the steps after a failed release: rollbacks, override releases, corrected verdicts, and the end of a quarantine.
var remedies = []step{
	{command: "kubectl altershield status deployment/NAME", fill: named},
	{command: "kubectl describe deployment/NAME", fill: named},
	{command: "kubectl logs POD --previous", skip: "pods are only simulated here: they have no logs"},
	{command: "kubectl altershield rollback deployment/NAME", fill: tried("--dry-run=server")},
	{
		command: "kubectl annotate deployment/NAME altershield.defense.antgroup.com/rollback-to=last-success",
		fill:    tried("--dry-run=server"),
	},
	{
		command: "kubectl rollout undo deployment/NAME",
		fill:    named,
		after:   (*story).restored,
	},
	{
		command: "kubectl altershield override deployment/NAME --image CONTAINER=IMAGE",
		before:  (*story).fail,
		fill:    tried("--dry-run=server"),
	},
	{command: "kubectl label deployment/NAME altershield.defense.antgroup.com/ignored-suspend=true --overwrite", fill: named},
	{
		command: "kubectl set image deployment/NAME CONTAINER=IMAGE",
		fill:    tried(""),
		after: func(s *story) {
			s.rolledOut()
			s.state(current(s), "Success")
			s.unblocked()
		},
	},
	{
		command: `kubectl altershield verdict pass deployment/NAME -m "false alarm"`,
		before:  (*story).fail,
		fill:    named,
		after:   (*story).unblocked,
	},
	{
		command: `kubectl patch changepod BATCH --subresource=status --type=merge -p '{"status":{"podResults":[]}}'`,
		before:  (*story).fail,
		fill: func(s *story, command string) string {
			return strings.Replace(command, "BATCH", s.lastBatch(), 1)
		},
		after: (*story).unblocked,
	},
	{
		command: `kubectl patch changeworkload RELEASE --subresource=status --type=merge -p '{"status":{"orderPreVerdict":{"verdict":"pass"}}}'`,
		fill:    func(s *story, command string) string { return strings.Replace(command, "RELEASE", current(s), 1) },
	},
	{
		command: "kubectl label deployment/NAME altershield.defense.antgroup.com/suspend- altershield.defense.antgroup.com/ignored-suspend=true",
		before:  (*story).fail,
		fill:    named,
		after:   (*story).unblocked,
	},
	{command: "kubectl altershield resume deployment/NAME", skip: "the rollout is complete, so nothing halts it; test/plugin runs it"},
	{
		command: "kubectl rollout resume deployment/NAME",
		before:  func(s *story) { s.do("kubectl rollout pause deployment/sleep") },
		fill:    named,
	},
	{
		command: "kubectl annotate deployment/NAME altershield.defense.antgroup.com/unquarantine=VERSION",
		fill: func(s *story, command string) string {
			const in = `kubectl get deployment sleep -o jsonpath='{.metadata.annotations.altershield\.defense\.antgroup\.com/quarantined}'`
			return strings.Replace(named(s, command), "VERSION", s.do(in), 1)
		},
		after: func(s *story) {
			s.wait("true", "kubectl get events --field-selector reason=QuarantineEnded | grep -q deployment/sleep && echo true")
		},
	},
}

// verdicts are the steps about failed pods, the default policy and the admission check.
var verdicts = []step{
	{
		command: walkthrough.Verdict.Typed(walkthrough.FailedPod, "sleep-76899dd8f8-gcr9j"),
		fill: func(s *story, command string) string {
			return podName.ReplaceAllString(command, s.podOf(first+"--x--1"))
		},
		after: func(s *story) { s.state(first, "Suspend") },
	},
	{
		command: "kubectl -n altershieldoperator-system patch defensepolicy default --type merge -p " +
			`'{"spec":{"workloadSelector":{"matchExpressions":[{"key":"leader-elected","operator":"DoesNotExist"}]}}}'`,
		before: func(s *story) {
			s.check(first, staysUp, "Watching", "")
			s.do("kubectl label deployment sleep leader-elected=true")
		},
		// A running check is canceled, too.
		after: func(s *story) { s.check(first, staysUp, "Canceled", "PolicyRemoved") },
	},
	{
		command: `kubectl -n altershieldoperator-system patch defensepolicy default --type merge -p '{"spec":{"mode":"Enforce"}}'`,
		before: func(s *story) {
			s.do(`kubectl -n %s patch defensepolicy default --type merge -p '{"spec":{"mode":"Observe"}}'`, system)
		},
		after: func(s *story) { s.policy(system, "default", "Enforce") },
	},
	{
		command: "kubectl replace -f config/samples/policies/stays-up.yaml",
		before: func(s *story) {
			s.do(`kubectl -n %s patch defensepolicy default --type merge -p '{"spec":{"mode":"Disabled"}}'`, system)
			// The command conflicts with a write of the status between its read and its write.
			s.policy(system, "default", "Disabled")
		},
		after: func(s *story) { s.policy(system, "default", "Enforce") },
	},
	{
		command: "kubectl set image deployment/sleep sleep=busybox:1.35",
		before: func(s *story) {
			s.do(`kubectl patch changepod --subresource=status %s--x--1 --type merge -p '{"status":{"podResults":[]}}'`, first)
			s.state(first, "Success")
			s.unblocked()
			s.startManager(true)
			s.server.Script(simulator.Script{
				Match:   simulator.Match{Workload: "sleep"},
				Verdict: altershield.VerdictFail, Times: 1,
				URL:   "http://altershield.example/node/1",
				Rules: []altershield.Rule{{Name: "freeze", Msg: "change freeze until Monday", Verdict: altershield.VerdictFail}},
			})
			s.set("admission", `{"enable":true}`)
		},
	},
	{
		command: "kubectl set image deployment/sleep sleep=busybox:1.36",
		before:  func(s *story) { s.outage(simulator.Hang) },
		after: func(s *story) {
			s.set("admission", `{"enable":false}`)
			s.startManager(false)
		},
	},
}

// tried replaces the placeholders of a command, and adds a flag, for example --dry-run=server.
func tried(flag string) func(*story, string) string {
	return func(_ *story, command string) string {
		filled := strings.NewReplacer("NAME", "sleep", "CONTAINER", "sleep", "IMAGE", "busybox:1.36").Replace(command)
		return strings.TrimSpace(filled + " " + flag)
	}
}

// failPod fails a pod of a batch with kubectl.
func (s *story) failPod(batch string) {
	s.t.Helper()
	s.do(`kubectl patch changepod %s --subresource=status --type=merge -p '{"status":{"podResults":[`+
		`{"pod":"%s","verdict":"unpass","message":"find error"}],"message":"PostFinish"}}'`, batch, s.podOf(batch))
}

// fail fails a pod of the current release, and waits until the workload is blocked.
func (s *story) fail() {
	s.t.Helper()
	s.failPod(s.lastBatch())
	s.state(current(s), "Suspend")
	s.wait("true", `kubectl get deployment sleep -o jsonpath='{.metadata.labels}' | grep -q antgroup.com/suspend && echo true`)
}

// lastBatch returns the newest batch of the current release. A new attempt continues the numbers.
func (s *story) lastBatch() string {
	s.t.Helper()
	return s.do(`kubectl get changepods -o jsonpath='{range .items[*]}{.metadata.name}{"\n"}{end}' | grep ^%s | sort -V | tail -1`, current(s))
}

// unblocked waits until the workload is not blocked.
func (s *story) unblocked() {
	s.t.Helper()
	s.wait("", "kubectl get deployment sleep -o jsonpath='{.metadata.labels.altershield\\.defense\\.antgroup\\.com/suspend}'")
}
