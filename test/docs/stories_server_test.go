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

import "strings"

// connectedStory starts a manager with a server.
func connectedStory(s *story) {
	s.startManager(true)
	s.env = append(s.env, "SERVER_URL="+s.server.URL())
}

// signing provides the token, and the function that signs, to the commands of a document.
func (s *story) signing() {
	s.t.Helper()
	s.write("token", secret)
	for _, c := range read(s.t, "docs/tasks/connect-altershield-server.md").commands() {
		if strings.HasPrefix(c.text, "sign()") {
			s.preamble = append(s.preamble, c.text)
			return
		}
	}
	s.t.Fatal("docs/tasks/connect-altershield-server.md has no function sign")
}

// serverStories has the plans of the documents about AlterShield Server.
var serverStories = map[string]plan{
	"docs/tasks/connect-altershield-server.md": {
		begin: connectedStory,
		end: func(s *story) {
			s.serverTexts()
			s.forget()
		},
		steps: []step{
			{
				command: "kubectl annotate namespace shop " +
					"altershield.defense.antgroup.com/tenant=team-a altershield.defense.antgroup.com/phase=pre_phase",
				before: func(s *story) { s.do("kubectl get namespace shop || kubectl create namespace shop") },
			},
			{
				command: "head -c 32 /dev/urandom | base64 > token",
				after:   func(s *story) { s.write("token", secret) },
			},
			{
				command: "kubectl create secret generic altershield-token -n altershieldoperator-system --from-file=token",
				before: func(s *story) {
					s.do("kubectl delete secret altershield-token -n %s --ignore-not-found", system)
				},
			},
			{
				command: "kubectl apply -k config/samples/server", before: (*story).removeWebhooks,
				after: connectedStory,
			},
			{
				command: "kubectl -n altershieldoperator-system expose service altershieldoperator-callback-service --name=altershield-callbacks " +
					`--target-port=callbacks --type=LoadBalancer --overrides='{"spec":{"loadBalancerSourceRanges":["192.0.2.10/32"]}}'`,
				after: func(s *story) {
					s.wait("192.0.2.10/32 callbacks", "kubectl -n %s get service altershield-callbacks "+
						"-o 'jsonpath={.spec.loadBalancerSourceRanges[0]} {.spec.ports[0].targetPort}'", system)
				},
			},
			{command: "curl -s -X POST http://<operator>/openapi/altershield/liveTest", fill: callbacks},
			{
				command: `kubectl -n altershieldoperator-system get pods -l control-plane=controller-manager -o custom-columns='` +
					`POD:.metadata.name,` +
					`HEALTHY:.status.conditions[?(@.type=="app.ops.cloud.alipay.com/ServerHealthy")].status,` +
					`MESSAGE:.status.conditions[?(@.type=="app.ops.cloud.alipay.com/ServerHealthy")].message'`,
				skip: needsPods,
			},
			{command: "kubectl get cwl -o wide", before: (*story).fresh},
		},
	},
	"docs/reference/altershield-server.md": {
		begin: func(s *story) {
			connectedStory(s)
			s.forget() // an earlier document may have left it suspended
			s.signing()
		},
		steps: []step{
			{
				command: `ts=$(date +%s%3N); curl -s "http://<operator>/openapi/altershield/suspend/deployment?namespace=default" ` +
					`-H "X-AlterShield-Platform: kubernetes" -H "X-AlterShield-Timestamp: $ts" ` +
					`-H "X-AlterShield-Sign: $(sign "$(head -1 token)" $ts '{"namespace":"default"}')"`,
				fill: callbacks,
			},
		},
	},
}
