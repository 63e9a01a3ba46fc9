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
	"slices"
	"strings"
	"testing"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	tutorial  = "docs/getting-started/first-block.md"
	manifests = "https://github.com/traas-stack/altershield-operator/releases/latest/download/quick-start.yaml"
)

// startStories has the plans of the documents about getting started.
var startStories = map[string]plan{
	"docs/getting-started/install.md": {
		steps: []step{
			{command: "kubectl apply -f dist/quick-start.yaml", fill: released},
			{
				command: "kubectl -n altershieldoperator-system rollout status deployment/altershieldoperator-controller-manager",
				after:   func(s *story) { s.startManager(false) },
			},
			{command: "kubectl altershield check", skip: "the manager's pods are only simulated here; test/plugin/check runs it"},
		},
	},
	"README.md": {
		end: (*story).forget,
		steps: []step{
			{command: "kubectl set image deployment/sleep sleep=busybox:1.36", skip: tutorial + " runs it"},
			{command: "kubectl altershield override deployment/sleep --next", skip: tutorial + " runs it"},
			{
				command: "kubectl apply -f " + manifests, fill: released, before: (*story).removeWebhooks,
				// Webhooks are called on this machine.
				after: func(s *story) { s.startManager(false) },
			},
			{command: "kubectl altershield check", skip: "the manager's pods are only simulated here; test/plugin/check runs it"},
			{command: "kubectl altershield enroll shop --mode=observe", skip: "test/plugin runs it"},
		},
	},
	tutorial: {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce")
			s.forget()
			s.do("kubectl label namespace default admission-webhook-altershield-")
			// A complete rollout may be in progress again for a moment, because its pods are down.
			s.set("halting", `{"enable":false}`)
		},
		end: func(s *story) {
			s.set("halting", `{"enable":true}`)
			s.forget()
		},
		steps: []step{
			{
				command: "kubectl patch deployment sleep -p " +
					`'{"spec":{"template":{"spec":{"containers":[{"name":"sleep","command":["sh","-c","sleep 30; exit 1"]}]}}}}'`,
				after: (*story).crashAll,
			},
			{command: "kubectl altershield wait deployment/sleep --for=proven", code: 2},
			{command: "kubectl altershield wait deployment/sleep"},
			{command: "kubectl altershield wait deployment/sleep", after: (*story).rolledOut},
		},
	},
	"docs/tasks/enroll.md": {
		begin: (*story).standAlone,
		end:   func(s *story) { s.do("kubectl delete namespace shop --wait=false") },
		steps: []step{
			{
				command: "kubectl altershield enroll shop --mode=observe",
				before:  func(s *story) { s.do("kubectl create namespace shop") },
			},
			{
				command: "kubectl -n shop annotate deployment cart altershield.defense.antgroup.com/observe=disabled",
				before:  func(s *story) { s.do("kubectl -n shop create deployment cart --image=busybox") },
			},
		},
	},
}

// crashAll lets all pods of the current release crash repeatedly after its success, and waits until the release is suspended.
func (s *story) crashAll() {
	s.t.Helper()
	s.rolledOut()
	release := current(s)
	s.state(release, "Success")
	s.do("kubectl label pods -l app=sleep %s=%s", controlplane.BehaviorLabel, controlplane.BehaviorCrashLoop)
	s.state(release, "Suspend")
}

// TestExample checks that the tutorial, whose commands are run, has the commands and outputs of the example in README.md.
func TestExample(t *testing.T) {
	whole, found := read(t, tutorial).commands(), 0
	for _, c := range read(t, "README.md").commands() {
		if !c.shown {
			continue
		}
		found++
		if !slices.ContainsFunc(whole, func(of command) bool {
			return normal(of.text) == normal(c.text) && matches(strings.Join(c.output, "\n"), strings.Join(of.output, "\n"))
		}) {
			t.Errorf("%s: %s does not show this output of %q", c, tutorial, c.text)
		}
	}
	if found == 0 {
		t.Error("README.md has no example")
	}
}
