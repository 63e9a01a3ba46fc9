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
	"context"
	"strings"
)

// alertsStories has the plans of the documents about monitoring, alerts, upgrade and uninstall.
var alertsStories = map[string]plan{
	"docs/tasks/monitor.md": {
		begin: func(s *story) {
			s.standAlone()
			if err := s.cluster.InstallAddOnKinds(context.Background(), s.root); err != nil {
				s.t.Fatal(err)
			}
		},
		steps: []step{
			{command: "kubectl -n altershieldoperator-system port-forward service/altershieldoperator-metrics-service 8443 &", skip: needsPods},
			{
				command: `curl -sk -H "Authorization: Bearer $TOKEN" https://127.0.0.1:8443/metrics | grep ^altershield_`,
				fill: func(s *story, command string) string {
					return strings.Replace(command, "127.0.0.1:8443", s.metrics, 1)
				},
			},
		},
	},
	"docs/tasks/respond-to-an-alert.md": {
		begin: (*story).standAlone,
		end:   (*story).forget,
		steps: []step{
			{command: "kubectl get --raw '/api/v1/namespaces/altershieldoperator-system/pods/POD:8081/proxy/readyz?verbose'", skip: needsPods},
			{
				command: `kubectl -n altershieldoperator-system logs -l control-plane=controller-manager --tail=-1 | grep '"level":"error"'`,
				skip:    needsPods,
			},
			{
				command: `kubectl -n altershieldoperator-system logs -l control-plane=controller-manager --tail=-1 | grep '"logger":"webhooks"'`,
				skip:    needsPods,
			},
			{
				command: "kubectl -n altershieldoperator-system logs -l control-plane=controller-manager --tail=-1 | grep 'did not do as it was asked'",
				skip:    needsPods,
			},
			{
				command: "kubectl -n altershieldoperator-system describe pods -l control-plane=controller-manager " +
					"| grep -E '^Name:|ServerHealthChanged'",
				skip: needsPods,
			},
			{
				command: "kubectl -n altershieldoperator-system describe certificate altershieldoperator-webhook-serving-cert",
				skip:    "it needs cert-manager",
			},
			{command: "kubectl apply -f quick-start.yaml", before: (*story).removeWebhooks, after: func(s *story) { s.startManager(false) }},
			{
				command: "kubectl get events -A --field-selector reason=ReleaseSuspended",
				before: func(s *story) {
					s.do("kubectl delete events -A --all") // events of other documents
					s.block()
				},
			},
			{command: "kubectl get changepods -A | grep -E 'PreFailed|PreTimeout|PostFailed|PostTimeout'", code: 1},
			{
				command: "kubectl patch validatingwebhookconfiguration altershieldoperator-validating-webhook-configuration --type=json -p " +
					`'[{"op":"replace","path":"/webhooks/1/failurePolicy","value":"Ignore"},` +
					`{"op":"replace","path":"/webhooks/4/failurePolicy","value":"Ignore"},` +
					`{"op":"replace","path":"/webhooks/7/failurePolicy","value":"Ignore"}]'`,
				after: func(s *story) {
					s.wait(strings.TrimSpace(strings.Repeat("Ignore ", 9)), "kubectl get validatingwebhookconfiguration "+
						"altershieldoperator-validating-webhook-configuration -o jsonpath='{.webhooks[*].failurePolicy}'")
				},
			},
			{command: "kubectl apply -f quick-start.yaml", before: (*story).removeWebhooks},
		},
	},
	"docs/tasks/upgrade.md": {
		begin: (*story).standAlone,
		steps: []step{
			{command: "kubectl apply -f quick-start.yaml", before: (*story).removeWebhooks},
			{
				command: "kubectl -n altershieldoperator-system rollout status deployment/altershieldoperator-controller-manager",
				after:   func(s *story) { s.startManager(false) },
			},
			{command: "kubectl altershield check", skip: "the manager's pods are only simulated here; test/plugin/check runs it"},
		},
	},
	"docs/tasks/uninstall.md": {
		begin: func(s *story) {
			s.standAlone()
			s.fresh()
		},
		steps: []step{
			{
				command: "kubectl get deployments,statefulsets,daemonsets -A -l altershield.defense.antgroup.com/suspend",
				after: func(s *story) {
					s.wait("No resources found", "kubectl get deployments,statefulsets,daemonsets -A -l altershield.defense.antgroup.com/suspend")
				},
			},
			{command: "kubectl get deployments,statefulsets,daemonsets -A -o yaml | grep altershield.defense.antgroup.com/held:", code: 1}, // none
			{
				command: "kubectl -n altershieldoperator-system annotate deployment altershieldoperator-controller-manager " +
					"altershield.defense.antgroup.com/force-uninstall=true",
				skip: "the operator was deleted above; internal/errand tests it",
			},
			{
				command: "kubectl delete mutatingwebhookconfiguration altershieldoperator-mutating-webhook-configuration " +
					"altershieldoperator-declared-mutating",
				before: (*story).stopManager,
			},
			{
				command: "kubectl label deployment NAME admission-webhook-altershield.antgroup.com/version- " +
					"altershield.defense.antgroup.com/defense-status-",
				fill: named,
			},
			{
				command: `kubectl get deployment NAME -o go-template='{{range $key, $_ := .metadata.annotations}}{{$key}}{{"\n"}}{{end}}' ` +
					`| grep ^altershield.defense.antgroup.com/ | sed 's/$/-/' | xargs -r kubectl annotate deployment NAME`,
				fill: func(_ *story, command string) string { return strings.ReplaceAll(command, "NAME", "sleep") },
			},
		},
	},
}
