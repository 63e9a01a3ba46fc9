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
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// policiesStories are those of the documents about policies and verification.
var policiesStories = map[string]told{
	"docs/concepts/verification.md": {
		begin: func(s *story) {
			s.standAlone()
			s.fresh()
		},
		end: (*story).forget,
		steps: []step{
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
				// What goes on is canceled, too.
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
				},
				after: func(s *story) { s.policy(system, "default", "Enforce") },
			},
			{
				command: "kubectl set image deployment/sleep sleep=busybox:1.35",
				before: func(s *story) {
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
				before: func(s *story) {
					s.do("kubectl annotate deployment sleep altershield.defense.antgroup.com/silence-") // its own, of the chapter before
					s.outage(simulator.Hang)
				},
			},
			{
				command: "kubectl set image deployment/sleep sleep=busybox:1.37",
				after: func(s *story) {
					s.set("admission", `{"enable":false}`)
					s.set("silence", `{"enable":false}`)
					s.startManager(false)
				},
			},
			{
				command: "kubectl -n altershieldoperator-system patch oci silence --type=merge -p " + `'{"spec":{"enable":true}}'`,
				after:   func(s *story) { s.inForce("silence") },
			},
		},
	},
	"docs/tasks/write-policies.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce") // it counts for releases that begin later
			s.fresh()
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicies --all")
			s.do("kubectl delete deployment web --ignore-not-found --cascade=foreground")
			s.forget()
		},
		steps: []step{
			{
				command: "kubectl get changepods -o wide",
				before: func(s *story) {
					s.do("kubectl delete defensepolicy answers")
					s.do("kubectl delete deployment web --ignore-not-found --cascade=foreground")
					s.fresh()
					s.check(first, staysUp, "Watching", "")
					s.do("kubectl label pod %s %s=%s", s.podOf(first+"--x--1"), controlplane.BehaviorLabel, controlplane.BehaviorCrashLoop)
					s.state(first, "Suspend")
				},
				after: func(s *story) { s.wait("1", "kubectl get changepods -o wide | grep -c %s", staysUp) },
			},
		},
	},
	"docs/reference/checks.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce") // it counts for releases that begin later
			s.fresh()
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicies --all")
			s.do("kubectl delete deployment web --ignore-not-found --cascade=foreground")
			s.forget()
		},
		steps: []step{
			{
				command: "kubectl apply -f config/samples/policies/pod-health.yaml",
				after: func(s *story) {
					s.policy("default", "critical", "Enforce")
					s.do("kubectl label deployment sleep leader-elected- tier=critical")
					s.do("kubectl set image deployment/sleep sleep=busybox:1.30")
					s.check(current(s), "default/critical/soak", "Running", "")
					pod := s.podOf(current(s) + "--x--1")
					s.do("kubectl annotate pod %s %s=true", pod, controlplane.UnreadyAnnotation)
					s.check(current(s), "default/critical/soak", "Failed", "ReadinessLost")
					s.state(current(s), "Suspend")
					s.wait("true", "kubectl get cwl %s -o json | grep -q 'see the dashboard of the service' && echo true", current(s))
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/observe.yaml",
				after: func(s *story) {
					s.policy("default", "trial", "Observe")
					// The policy of the operator would fail what crashes again and again.
					s.do(`kubectl -n %s patch defensepolicy default --type merge -p '{"spec":{"mode":"Disabled"}}'`, system)
					s.fresh()
					s.check(first, "default/trial/one-restart", "Watching", "")
					s.do("kubectl label pod %s %s=%s", s.podOf(first+"--x--1"), controlplane.BehaviorLabel, controlplane.BehaviorLiveness)
					s.check(first, "default/trial/one-restart", "Failed", "Restarted")
				},
			},
			{
				command: "kubectl get events --field-selector reason=DryRun",
				after: func(s *story) {
					s.wait("true", "kubectl get events --field-selector reason=DryRun | grep -q default/trial/one-restart && echo true")
					s.wait("", "kubectl get deployment sleep -o jsonpath='{.metadata.labels.altershield\\.defense\\.antgroup\\.com/suspend}'")
					s.do("kubectl -n %s replace -f config/samples/policies/stays-up.yaml", system)
					s.do("kubectl delete defensepolicy trial critical")
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/cel.yaml",
				after: func(s *story) {
					s.policy("default", "rules", "Enforce")
					s.do("kubectl set image deployment/sleep sleep=busybox:1.31")
					s.check(current(s), "default/rules/containers", "Failed", "RuleFailed")
					s.state(current(s), "Suspend")
					s.wait("true", "kubectl get cwl %s -o json | grep -q 'a container has no limit of memory; see the handbook of the platform' && echo true", current(s))
					s.do("kubectl delete defensepolicy rules")
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/release.yaml",
				after: func(s *story) {
					s.policy("default", "one-change", "Enforce")
					s.fresh()
					s.state(first, "Success")
					const phases = "kubectl get cwl %s -o jsonpath='{.status.checks[*].phase}'"
					s.wait("Passed Watching", phases, first)
					s.do("kubectl scale deployment sleep --replicas=1")
					s.do("kubectl set image deployment/sleep sleep=busybox:1.30")
					s.wait("Passed Failed", phases, current(s))
					s.state(current(s), "Suspend")
					s.do("kubectl delete defensepolicy one-change")
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/admission.yaml",
				before:  (*story).fresh,
				after:   func(s *story) { s.policy("default", "admission", "Enforce") },
			},
			{
				command: "kubectl set image deployment/sleep sleep=busybox:1.32",
				after:   func(s *story) { s.do("kubectl delete defensepolicy admission") },
			},
			{command: "kubectl apply -f config/samples/policies/probe.yaml", after: (*story).probed},
			{
				command: "kubectl apply -f config/samples/policies/altershield.yaml",
				after: func(s *story) {
					s.policy("default", "server-has-to-speak", "Enforce")
					s.do("kubectl delete defensepolicy server-has-to-speak")
				},
			},
		},
	},
}
