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

// holdStories has the plans of the documents about holds, kinds, objects and settings.
var holdStories = map[string]plan{
	"docs/tasks/hold-rollouts.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce") // its checks hold rollouts
			s.fresh()
		},
		end: func(s *story) {
			s.startManager(false)
			s.set("holding", `{"enable":false,"content":"first"}`)
			s.forget()
		},
		steps: []step{
			{
				command: `kubectl -n altershieldoperator-system patch oci holding --type=merge -p '{"spec":{"enable":true,"content":"every"}}'`,
				after:   func(s *story) { s.inForce("holding") },
			},
			{
				command: "kubectl altershield resume deployment/sleep",
				before:  (*story).applyHeld,
				after: func(s *story) {
					s.notHeld("", "600")
					s.rolledOut()
				},
			},
			{
				command: "kubectl altershield resume statefulset/NAME",
				fill:    ofStatefulSet,
				before:  (*story).holdStatefulSet,
				after: func(s *story) {
					s.partition("0")
					s.do("kubectl delete statefulset db --cascade=foreground")
				},
			},
			{
				command: "kubectl annotate --overwrite deployment sleep altershield.defense.antgroup.com/holding=disabled",
				before:  (*story).hold,
				after: func(s *story) {
					s.notHeld("", "600")
					s.rolledOut()
				},
			},
			{
				command: `kubectl get deployments,statefulsets,daemonsets -A -o go-template='{{range .items}}{{with .metadata.annotations}}` +
					`{{with index . "altershield.defense.antgroup.com/held"}}{{.}}{{end}}{{end}} ` +
					`{{.metadata.namespace}} {{.metadata.name}}{{"\n"}}{{end}}' | grep ^{`,
				before: func(s *story) {
					s.hold()
					s.stopManager()
					s.removeWebhooks()
				},
			},
			{
				command: `kubectl -n default patch deployment sleep --type=merge -p ` +
					`'{"metadata":{"annotations":{"altershield.defense.antgroup.com/held":null}},` +
					`"spec":{"minReadySeconds":0,"progressDeadlineSeconds":600}}'`,
				after: func(s *story) {
					s.notHeld("", "600")
					s.rolledOut()
				},
			},
			{
				command: `kubectl -n default patch statefulset NAME --type=merge -p ` +
					`'{"metadata":{"annotations":{"altershield.defense.antgroup.com/held":null}},` +
					`"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}'`,
				fill: ofStatefulSet,
				before: func(s *story) { // the webhooks are gone, so the test writes the fields of a hold
					s.applyStatefulSet()
					s.do(`kubectl annotate statefulset db ` +
						`'altershield.defense.antgroup.com/held={"release":2,"until":"EveryBatch","partition":0,"set":{"partition":4}}'`)
					s.do(`kubectl patch statefulset db --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":4}}}}'`)
				},
				after: func(s *story) {
					s.partition("0")
					s.do("kubectl delete statefulset db --cascade=foreground")
				},
			},
			{
				command: `kubectl -n default patch daemonset NAME --type=merge -p ` +
					`'{"metadata":{"annotations":{"altershield.defense.antgroup.com/held":null}},` +
					`"spec":{"updateStrategy":{"type":"RollingUpdate"}}}'`,
				fill: ofStatefulSet,
				before: func(s *story) {
					s.do(`kubectl apply -f - <<'END'
{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"db","annotations":{"altershield.defense.antgroup.com/held":"{}"}},
"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":{"maxUnavailable":1}},"selector":{"matchLabels":{"app":"agent"}},
"template":{"metadata":{"labels":{"app":"agent"}},"spec":{"nodeSelector":{"none":"such"},"containers":[{"name":"db","image":"busybox"}]}}}}
END`)
				},
				after: func(s *story) {
					s.wait("RollingUpdate", `kubectl get daemonset db -o jsonpath='{.spec.updateStrategy.type}`+
						`{.metadata.annotations.altershield\.defense\.antgroup\.com/held}'`)
					s.do("kubectl delete daemonset db")
				},
			},
		},
	},
	"docs/concepts/hold.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce") // its checks hold rollouts
			s.set("holding", `{"enable":true,"content":"every,atMost=20m"}`)
			s.hold()
		},
		end: func(s *story) {
			s.startManager(false)
			s.set("holding", `{"enable":false,"content":"first"}`)
			s.forget()
		},
	},
	"docs/reference/settings.md": {
		begin: func(s *story) {
			s.standAlone()
			s.fresh()
		},
		end: (*story).forget,
		steps: []step{
			{
				command: "kubectl -n altershieldoperator-system patch oci timeouts --type=merge -p " +
					`'{"spec":{"content":"wait=30s,pre=60s,post=300s"}}'`,
				after: func(s *story) { s.set("timeouts", `{"content":"wait=60s,pre=120s,post=120s,settle=10s"}`) },
			},
		},
	},
	"docs/reference/objects.md": {
		begin: (*story).standAlone,
	},
	"docs/concepts/kinds.md": nativeStory(
		native{
			kind:   "StatefulSet",
			spec:   `"serviceName":"db","replicas":0`,
			halted: `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2147483647}}}}`,
			keeping: []string{
				`kubectl patch statefulset/NAME --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1000000}}}}'`,
			},
		},
		native{
			kind:   "DaemonSet",
			spec:   `"minReadySeconds":0`,
			halted: `{"spec":{"updateStrategy":{"type":"OnDelete"}}}`,
			left:   `{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`,
			keeping: []string{
				"kubectl wait daemonset/NAME --for=jsonpath='{.spec.updateStrategy.type}'=RollingUpdate --timeout=10m",
				`kubectl patch daemonset/NAME --type=merge -p '{"spec":{"updateStrategy":{"type":"OnDelete"}}}'`,
			},
		},
	),
}
