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

// startStories are those of the documents about getting started.
var startStories = map[string]told{
	"docs/getting-started/install.md": {
		steps: []step{
			{command: "kubectl apply -f " + quick, fill: released},
			{
				command: "kubectl -n altershieldoperator-system rollout status deployment/altershieldoperator-controller-manager",
				after:   func(s *story) { s.startManager(false) },
			},
			{
				command: "kubectl -n altershieldoperator-system delete secret/altershieldoperator-webhook-server-cert lease/altershield-operator " +
					"configmap/altershieldoperator-rollbacks --ignore-not-found",
				skip: "the operator runs; test/chart runs it after an uninstall",
			},
		},
	},
	"README.md": {
		end: (*story).forget,
		steps: []step{
			{
				command: "kubectl apply -f " + quick, fill: released, before: (*story).removeWebhooks,
				// It is this machine that webhooks are called on.
				after: func(s *story) { s.startManager(false) },
			},
			{command: "kubectl altershield check", skip: "the manager's pods are only played here; test/plugin/check runs it"},
			{command: "kubectl altershield enroll shop --mode=observe", skip: "test/plugin runs it"},
		},
	},
	"docs/getting-started/first-block.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce")
			s.forget()
			s.do("kubectl label namespace default admission-webhook-altershield-")
			// Whether a rollout that was complete is under way again, because a pod of it is
			// down, is a matter of moments.
			s.set("halting", `{"enable":false}`)
		},
		end: func(s *story) {
			s.set("halting", `{"enable":true}`)
			s.forget()
		},
		steps: []step{
			{command: "kubectl set image deployment/sleep sleep=busybox:1.36", after: (*story).crash},
			{command: "kubectl altershield wait deployment/sleep"},
			{command: "kubectl altershield wait deployment/sleep", code: 2},
			{command: "kubectl altershield wait deployment/sleep", after: func(s *story) { s.rolledOut() }},
		},
	},
	"docs/tasks/enroll.md": {
		begin: (*story).standAlone,
		end:   (*story).forget,
		steps: []step{
			{
				command: "kubectl label namespace shop admission-webhook-altershield=enabled",
				before:  func(s *story) { s.do("kubectl create namespace shop") },
			},
			{
				command: "kubectl -n shop label deployment cart altershield.defense.antgroup.com/defense=disabled",
				before:  func(s *story) { s.do("kubectl -n shop create deployment cart --image=busybox") },
			},
		},
	},
}
