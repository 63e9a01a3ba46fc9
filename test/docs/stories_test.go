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
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/hack/simulator/journal"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

const (
	first     = walkthrough.FirstRelease
	system    = "altershieldoperator-system"
	staysUp   = system + "/default/stays-up"
	quick     = "https://raw.githubusercontent.com/traas-stack/altershield-operator/main/quick-start.yaml"
	secret    = "the token of the stories"
	admission = "stories.admission"
	needsPods = "the manager's pods are only played here: nothing listens, and they have no logs"
)

// download is where releases are; the story is told with the file that is here.
var download = regexp.MustCompile(`https://raw\.githubusercontent\.com/\S+/quick-start\.yaml`)

type told struct {
	begin, end func(s *story)
	steps      []step
}

// stories have a step for each command that cannot just be run.
var stories = map[string]told{
	"docs/operations.md": {
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
			{command: "kubectl get deployments,statefulsets,daemonsets -A -o yaml | grep altershield.defense.antgroup.com/held:", code: 1}, // none
			{
				command: "kubectl apply -k config/certmanager",
				before: func(s *story) {
					if err := s.cluster.InstallAddOnKinds(context.Background(), s.root); err != nil {
						s.t.Fatal(err)
					}
					s.removeWebhooks()
				},
				after: func(s *story) { s.startManager(false) },
			},
			{
				command: "kubectl create secret generic altershield-token -n altershieldoperator-system --from-file=token",
				before:  func(s *story) { s.write("token", secret) },
			},
			{
				command: "kubectl apply -k config/samples/server", before: (*story).removeWebhooks,
				after: func(s *story) { s.startManager(false) },
			},
			{
				command: "kubectl -n altershieldoperator-system expose service altershieldoperator-callback-service --name=altershield-callbacks " +
					`--target-port=callbacks --type=LoadBalancer --overrides='{"spec":{"loadBalancerSourceRanges":["192.0.2.10/32"]}}'`,
				after: func(s *story) {
					s.wait("192.0.2.10/32 callbacks", "kubectl -n %s get service altershield-callbacks -o 'jsonpath={.spec.loadBalancerSourceRanges[0]} {.spec.ports[0].targetPort}'", system)
				},
			},
			{command: "curl -s -X POST http://<address>/openapi/altershield/liveTest", fill: callbacks},
			{
				// The manager that runs is given its certificate.
				command: "kubectl -n altershieldoperator-system delete secret altershieldoperator-webhook-server-cert",
				before: func(s *story) {
					s.do("kubectl -n %s create secret generic altershieldoperator-webhook-server-cert", system)
				},
			},
			{command: "kubectl -n altershieldoperator-system port-forward service/altershieldoperator-metrics-service 8443 &", skip: needsPods},
			{
				command: `curl -sk -H "Authorization: Bearer $TOKEN" https://127.0.0.1:8443/metrics | grep ^altershield_`,
				fill: func(s *story, command string) string {
					return strings.Replace(command, "127.0.0.1:8443", s.metrics, 1)
				},
			},
			{command: "k get --raw /api/v1/namespaces/altershieldoperator-system/pods/POD:8081/proxy/readyz?verbose", skip: needsPods},
			{command: `k logs -l control-plane=controller-manager --tail=-1 | grep '"level":"error"'`, skip: needsPods},
			{command: "k logs -l control-plane=controller-manager --tail=-1 | grep 'did not do as it was asked'", skip: needsPods},
			{command: "k describe pods -l control-plane=controller-manager | grep -E '^Name:|ServerHealthChanged'", skip: needsPods},
			{command: "kubectl apply -f quick-start.yaml", before: (*story).removeWebhooks, after: func(s *story) { s.startManager(false) }},
			{command: "kubectl get deployments,statefulsets,daemonsets -A -l altershield.defense.antgroup.com/suspend", before: (*story).block},
			{
				command: "kubectl get deployments,statefulsets,daemonsets -A -l altershield.defense.antgroup.com/suspend",
				after: func(s *story) {
					s.wait("No resources found", "kubectl get deployments,statefulsets,daemonsets -A -l altershield.defense.antgroup.com/suspend")
				},
			},
			{command: "kubectl describe deployment NAME", fill: named},
			{command: "kubectl get cwl -A", before: (*story).breakImage},
			{command: "kubectl get changepods -A | grep -E 'PreFailed|PreTimeout|PostFailed|PostTimeout'", code: 1},
			{
				command: "kubectl patch validatingwebhookconfiguration altershieldoperator-validating-webhook-configuration --type=json -p " +
					`'[{"op":"replace","path":"/webhooks/1/failurePolicy","value":"Ignore"},{"op":"replace","path":"/webhooks/4/failurePolicy","value":"Ignore"},{"op":"replace","path":"/webhooks/7/failurePolicy","value":"Ignore"}]'`,
				after: func(s *story) {
					s.wait("Ignore Ignore Ignore Ignore Ignore Ignore Ignore Ignore Ignore", "kubectl get validatingwebhookconfiguration altershieldoperator-validating-webhook-configuration -o jsonpath='{.webhooks[*].failurePolicy}'")
				},
			},
			{command: "kubectl apply -f quick-start.yaml", before: (*story).removeWebhooks},
			{
				command: "kubectl apply -f https://raw.githubusercontent.com/traas-stack/altershield-operator/<version>/quick-start.yaml",
				fill:    released,
				before:  (*story).removeWebhooks,
			},
			{
				command: "kubectl delete mutatingwebhookconfiguration altershieldoperator-mutating-webhook-configuration",
				before:  (*story).stopManager,
			},
			{
				command: "kubectl get opsconfiginfo -n altershieldoperator-system -o yaml",
				before: func(s *story) {
					s.startManager(false)
					s.wait("2m", "kubectl -n %s get oci rollback -o jsonpath={.spec.content}", system)
				},
			},
			{command: "kubectl get deployment NAME -o yaml", fill: named},
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
	"docs/first-block.md": {
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
	"docs/user-guide.md": {
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
			{command: "kubectl get changeworkloads,changepods", before: (*story).fresh},
			{
				command: walkthrough.Verdict.Typed(walkthrough.FailedPod, "sleep-76899dd8f8-gcr9j"),
				fill: func(s *story, command string) string {
					return podName.ReplaceAllString(command, s.podOf(first+"--x--1"))
				},
				after: func(s *story) { s.state(first, "Suspend") },
			},
			{
				command: "kubectl patch changepod --subresource=status " + first + `--x--1 --type merge -p '{"status":{"podResults":[]}}'`,
				after: func(s *story) {
					s.state(first, "Success")
					s.wait("", "kubectl get deployment sleep -o jsonpath='{.metadata.labels.altershield\\.defense\\.antgroup\\.com/suspend}'")
				},
			},
			{
				command: `kubectl patch cwl NAME --subresource=status --type=merge -p '{"status":{"orderPreVerdict":{"verdict":"pass"}}}'`,
				fill:    func(_ *story, command string) string { return strings.Replace(command, "NAME", first, 1) },
			},
			{
				command: "kubectl -n altershieldoperator-system patch oci timeouts --type=merge -p " + `'{"spec":{"content":"wait=30s,pre=60s,post=300s"}}'`,
				after:   func(s *story) { s.set("timeouts", `{"content":"wait=60s,pre=120s,post=120s,settle=10s"}`) },
			},
			{
				command: "kubectl -n altershieldoperator-system patch oci silence --type=merge -p " + `'{"spec":{"enable":true}}'`,
				after:   func(s *story) { s.set("silence", `{"enable":false}`) },
			},
			{
				command: "kubectl -n altershieldoperator-system patch oci silence --type=merge -p " + `'{"spec":{"enable":true}}'`,
				after:   func(s *story) { s.inForce("silence") },
			},
			{
				command: "kubectl rollout resume deployment/NAME",
				fill:    named,
				before:  func(s *story) { s.do("kubectl rollout pause deployment/sleep") },
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
				command: "kubectl set image deployment/sleep sleep=busybo",
				before:  (*story).fresh,
				after:   (*story).hang,
			},
			{command: "kubectl set image deployment/sleep sleep=busybo"},
			{
				command: "kubectl annotate deployment sleep altershield.defense.antgroup.com/rollback-to=last-success",
				before: func(s *story) {
					s.fresh()
					s.release("busybox:1.34")
				},
				after: func(s *story) { s.restored() },
			},
			{
				command: "kubectl annotate deployment sleep altershield.defense.antgroup.com/rollback-to=c6c45d23c098bdf181853a85b60b5d74",
				before:  func(s *story) { s.release("busybox:1.33") },
				after:   func(s *story) { s.restored() },
			},
		},
	},
	"docs/policies.md": {
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
	"docs/plugin.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce")
			s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
			s.fresh()
			s.release("busybox:1.35")
			name := current(s)
			s.do(`kubectl patch changepod %s--x--1 --subresource=status --type=merge -p '{"status":{"podResults":[{"pod":"%s","verdict":"unpass","message":"find error"}],"message":"PostFinish"}}'`,
				name, s.podOf(name+"--x--1"))
			s.state(name, "Suspend")
		},
		end: (*story).forget,
	},
	"docs/kinds.md": {
		begin: func(s *story) {
			s.do(`kubectl apply -f - <<'END'
{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"kinds"},"spec":{"serviceName":"kinds","replicas":0,"selector":{"matchLabels":{"app":"kinds"}},
"template":{"metadata":{"labels":{"app":"kinds"}},"spec":{"containers":[{"name":"kinds","image":"busybox"}]}}}}
END`)
		},
		end: func(s *story) { s.do("kubectl delete statefulset kinds --cascade=foreground") },
	},
	"docs/statefulset.md": nativeStory("StatefulSet", `"serviceName":"db","replicas":0`,
		`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2147483647}}}}`,
		`kubectl patch statefulset/NAME --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1000000}}}}'`),
	"docs/daemonset.md": nativeStory("DaemonSet", `"minReadySeconds":0`, `{"spec":{"updateStrategy":{"type":"OnDelete"}}}`,
		"kubectl wait daemonset/NAME --for=jsonpath='{.spec.updateStrategy.type}'=RollingUpdate --timeout=10m",
		`kubectl patch daemonset/NAME --type=merge -p '{"spec":{"updateStrategy":{"type":"OnDelete"}}}'`),
	"docs/holding.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce") // what is waited for
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
				command: `kubectl get deployments,statefulsets -A -o go-template='{{range .items}}{{with .metadata.annotations}}{{with index . "altershield.defense.antgroup.com/held"}}{{.}}{{end}}{{end}} {{.metadata.namespace}} {{.metadata.name}}{{"\n"}}{{end}}' | grep ^{`,
				before: func(s *story) {
					s.hold()
					s.stopManager()
					s.removeWebhooks()
				},
			},
			{
				command: `kubectl -n default patch deployment sleep --type=merge -p '{"metadata":{"annotations":{"altershield.defense.antgroup.com/held":null}},"spec":{"minReadySeconds":0,"progressDeadlineSeconds":600}}'`,
				after: func(s *story) {
					s.notHeld("", "600")
					s.rolledOut()
				},
			},
			{
				command: `kubectl -n default patch statefulset NAME --type=merge -p '{"metadata":{"annotations":{"altershield.defense.antgroup.com/held":null}},"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}'`,
				fill:    ofStatefulSet,
				before: func(s *story) { // the webhooks are gone, so this is what is left of a hold
					s.applyStatefulSet()
					s.do(`kubectl annotate statefulset db 'altershield.defense.antgroup.com/held={"release":2,"until":"EveryBatch","partition":0,"set":{"partition":4}}'`)
					s.do(`kubectl patch statefulset db --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":4}}}}'`)
				},
				after: func(s *story) {
					s.partition("0")
					s.do("kubectl delete statefulset db --cascade=foreground")
				},
			},
		},
	},
	"docs/objects.md": {
		begin: func(s *story) {
			if s.manager == nil || !s.manager.Running() {
				s.startManager(false)
			}
			s.do("kubectl label namespace default admission-webhook-altershield=enabled --overwrite")
			s.fresh()
		},
		end: func(s *story) {
			// The operator does not put back what is taken from a workload that left.
			for _, keys := range []string{"labels", "annotations"} {
				if left := s.do("kubectl get deployment sleep -o jsonpath={.metadata.%s}", keys); strings.Contains(left, "altershield") {
					s.t.Errorf("docs/objects.md: left of the operator are %s", left)
				}
			}
			s.forget()
			s.do("kubectl label namespace default admission-webhook-altershield=enabled")
		},
		steps: []step{
			{
				command: "kubectl label deployment NAME admission-webhook-altershield.antgroup.com/version- altershield.defense.antgroup.com/defense-status-",
				fill:    named,
			},
			{
				command: `kubectl get deployment NAME -o go-template='{{range $key, $_ := .metadata.annotations}}{{$key}}{{"\n"}}{{end}}' ` +
					`| grep ^altershield.defense.antgroup.com/ | sed 's/$/-/' | xargs -r kubectl annotate deployment NAME`,
				fill: func(_ *story, command string) string { return strings.ReplaceAll(command, "NAME", "sleep") },
			},
		},
	},
	"docs/states.md":    anyManager,
	"docs/reference.md": anyManager,
	"docs/connect-altershield-server.md": {
		begin: func(s *story) {
			s.startManager(true)
			s.env = append(s.env, "SERVER_URL="+s.server.URL())
		},
		steps: []step{
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
			{command: "curl -s -X POST http://<operator>/openapi/altershield/liveTest", fill: callbacks},
			{
				command: `kubectl -n altershieldoperator-system get pods -l control-plane=controller-manager -o custom-columns='POD:.metadata.name,HEALTHY:.status.conditions[?(@.type=="app.ops.cloud.alipay.com/ServerHealthy")].status,MESSAGE:.status.conditions[?(@.type=="app.ops.cloud.alipay.com/ServerHealthy")].message'`,
				skip:    needsPods,
			},
			{command: "kubectl get cwl -o wide", before: (*story).fresh},
			{
				command: `ts=$(date +%s%3N); curl -s "http://<operator>/openapi/altershield/suspend/deployment?namespace=default" -H "X-AlterShield-Platform: kubernetes" -H "X-AlterShield-Timestamp: $ts" -H "X-AlterShield-Sign: $(sign "$(head -1 token)" $ts '{"namespace":"default"}')"`,
				fill:    callbacks,
			},
		},
		end: (*story).heard,
	},
}

// shownText is a block of neither commands nor their outputs.
type shownText struct {
	document string
	// begins is how its first line does.
	begins string
	// prints names what prints it, for shows; empty for what is no output.
	prints string
}

func (x shownText) is(path string, b block) bool {
	return path == x.document && b.language == "" && strings.HasPrefix(masked(b.lines[0]), x.begins)
}

var texts = []shownText{
	{"docs/operations.md", "# kustomization.yaml", ""},
	{"docs/plugin-check.md", "webhooks", ""},
	{"docs/user-guide.md", "PUT /openapi/altershield/", ""},
	{"docs/connect-altershield-server.md", "volumes:", ""},
	{"docs/connect-altershield-server.md", "sign = ", ""},
	{"docs/connect-altershield-server.md", "altershield-operator: --altershield-token-file", "token"},
	{"docs/connect-altershield-server.md", `{"cluster":`, "parameters"},
	{"docs/connect-altershield-server.md", `{"batch":`, "results"},
	{"docs/connect-altershield-server.md", "TIME default/sleep c6c45d23 request order submitted", "journal"},
	{"docs/connect-altershield-server.md", "The release failed its verification: version c6a7c50d1c46819baae80eb37d084099: ", "failure"},
	{"README.md", "TIME default/sleep c6a7c50d callback batch", "failure"},
	{translated, "TIME default/sleep c6a7c50d callback batch", "failure"},
}

// heard checks what the server hears and says, and what a manager says that is
// given a token it cannot use.
func (s *story) heard() {
	s.t.Helper()
	s.write("short", "0123456789")
	said, err := s.shell("bin/manager --altershield-token-file=short")
	if err == nil {
		s.t.Errorf("the manager starts with a token of 10 bytes")
	}
	s.shows("token", strings.ReplaceAll(said, "short", "/etc/altershield/token"))

	order := s.do("kubectl get cwl %s -o jsonpath={.status.orderId}", first)
	if err := s.server.WaitFor(s.t.Context(), func(j simulator.Journal) bool { return len(j.Ends(order)) > 0 }); err != nil {
		s.t.Fatal(err)
	}
	var lines, parameters, results strings.Builder
	narrator := journal.NewNarrator()
	for _, e := range s.server.Journal().Of(order) {
		fmt.Fprintln(&lines, narrator.Line(e))
		switch request := e.Request.(type) {
		case *altershield.SubmitOrderRequest:
			fmt.Fprintln(&parameters, request.ChangeParamJSON)
		case *altershield.FinishNodeRequest:
			fmt.Fprintln(&results, request.ChangeResultJSON)
		}
	}
	s.shows("journal", lines.String())
	s.shows("parameters", parameters.String())
	s.shows("results", results.String())

	s.server.Script(simulator.Script{
		Match:   simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
		Verdict: altershield.VerdictFail, Times: 1,
		Rules: []altershield.Rule{{Name: "error rate", Msg: "5xx above 1 %", Verdict: altershield.VerdictFail}},
	})
	s.do("kubectl set image deployment/sleep sleep=busybox:1.32")
	s.wait("1", "kubectl get cwl | grep -c Suspend")
	s.poll(func() bool {
		said, _ = s.shell("kubectl get events --field-selector involvedObject.uid=$(kubectl get deployment sleep -o jsonpath={.metadata.uid}),reason=ReleaseSuspended -o 'jsonpath={.items[*].message}'")
		return said != ""
	})
	said += "\n"
	for _, e := range s.server.Journal() {
		said += narrator.Line(e).String() + "\n"
	}
	s.shows("failure", said)
}

// current is the release of the sample that goes on.
func current(s *story) string {
	return "sleep--x--" + s.do("kubectl get deployment sleep -o jsonpath='{.metadata.labels.admission-webhook-altershield\\.antgroup\\.com/version}'")
}

// policy waits until a policy is in force as it is.
func (s *story) policy(namespace, name, mode string) {
	s.t.Helper()
	s.wait("true "+mode, `kubectl -n %s get defensepolicy %s -o go-template='{{$generation := .metadata.generation}}`+
		`{{range .status.conditions}}{{if eq .type "Accepted"}}{{and (eq .status "True") (eq .observedGeneration $generation)}}{{end}}{{end}} {{.spec.mode}}'`, namespace, name)
}

// check waits until a check of the first batch of a release is in a phase, for a reason.
func (s *story) check(release, name, phase, reason string) {
	s.t.Helper()
	s.wait(strings.TrimSpace(phase+" "+reason), `kubectl get changepod %s--x--1 -o jsonpath='{range .status.checks[?(@.name=="%s")]}{.phase} {.reason}{end}'`, release, name)
}

// probed lets pods that the sample selects answer 404, and waits until that is
// told.
func (s *story) probed() {
	s.t.Helper()
	s.policy("default", "answers", "Observe")
	addresses, err := controlplane.PodAddresses(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	// A server that answers nothing well takes the port of the sample.
	at := slices.IndexFunc(addresses, func(ip netip.Addr) bool {
		l, err := (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", netip.AddrPortFrom(ip, 8080).String())
		if err != nil {
			return false
		}
		server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: patience}
		go func() { _ = server.Serve(l) }()
		s.t.Cleanup(func() { _ = server.Close() })
		return true
	})
	if at < 0 {
		s.t.Logf("%s: what the probe does is not looked at: of the addresses of this machine that the operator calls (%v), port 8080 of none is free", s.path, addresses)
		return
	}
	s.do("kubectl create deployment web --image=busybox --port=8080")
	s.do(`kubectl patch deployment web -p '{"spec":{"template":{"metadata":{"annotations":{"%s":"%s"}}}}}'`, controlplane.PodIPAnnotation, addresses[at])
	const check = "default/answers/healthz"
	for range 4 { // three calls, ten seconds apart
		if s.poll(func() bool {
			said, _ := s.shell("kubectl get events --field-selector reason=DryRun,involvedObject.name=web")
			return strings.Contains(said, check) && strings.Contains(said, "GET /healthz on port 8080 was answered 404, and not 200-399, 3 times in a row")
		}) {
			s.wait("", "kubectl get deployment web -o jsonpath='{.metadata.labels.altershield\\.defense\\.antgroup\\.com/suspend}'")
			return
		}
	}
	s.t.Fatalf("%s: no event tells that %s would fail the pods", s.path, check)
}

// anyManager is for what is there with a server and without.
var anyManager = told{begin: func(s *story) {
	if s.manager == nil {
		s.startManager(false)
	}
}}

func released(_ *story, command string) string {
	return download.ReplaceAllString(command, "quick-start.yaml")
}

// nativeStory is the story of a page about a kind: of a workload without pods, which is
// halted by a patch.
func nativeStory(kind, spec, halted string, keeps ...string) told {
	lower := strings.ToLower(kind)
	name := func(_ *story, command string) string { return strings.Replace(command, "NAME", "db", 1) }
	resumed := func(s *story) { // as resuming it, or leaving, does
		if kind == "DaemonSet" {
			s.do(`kubectl patch daemonset/db --type=merge -p '{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}'`)
		}
	}
	t := told{
		begin: func(s *story) {
			s.standAlone()
			s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
			s.do(`kubectl apply -f - <<'END'
{"apiVersion":"apps/v1","kind":%q,"metadata":{"name":"db"},"spec":{%s,"selector":{"matchLabels":{"app":"db"}},
"template":{"metadata":{"labels":{"app":"db"}},"spec":{"nodeSelector":{"none":"such"},"containers":[{"name":"db","image":"busybox"}]}}}}
END`, kind, spec)
		},
		end: func(s *story) {
			s.do("kubectl delete %s db --cascade=foreground", lower)
			s.do("kubectl delete cwl,cpd --all")
		},
		steps: []step{
			{
				command: "kubectl rollout undo " + lower + "/NAME", fill: name,
				before: func(s *story) {
					s.wait("1", "kubectl get controllerrevisions -l app=db --no-headers | wc -l")
					s.do("kubectl set image %s/db db=busybox:2", lower)
					s.wait("2", "kubectl get controllerrevisions -l app=db --no-headers | wc -l")
					s.do("kubectl patch %s/db --type=merge -p '%s'", lower, halted)
				},
			},
			{command: "kubectl altershield resume " + lower + "/NAME", skip: "it has no pods, so nothing halts it: the stories of the kinds do it"},
			{command: "kubectl altershield wait " + lower + "/NAME", fill: name, before: resumed},
		},
	}
	for _, command := range keeps {
		st := step{command: command, fill: name}
		if strings.HasPrefix(command, "kubectl wait ") {
			st.before = resumed
		}
		t.steps = append(t.steps, st)
	}
	return t
}

func named(_ *story, command string) string { return strings.Replace(command, "NAME", "sleep", 1) }

func callbacks(s *story, command string) string {
	address := strings.TrimPrefix(s.manager.CallbackAddress(), "http://")
	return strings.NewReplacer("<operator>", address, "<address>", address).Replace(command)
}

// standAlone starts a manager without a server, unless one runs.
func (s *story) standAlone() {
	if s.manager == nil || !s.manager.Running() || s.server != nil {
		s.startManager(false)
	}
}

// startManager starts a manager, with a server or without; the one that runs
// ends.
func (s *story) startManager(connected bool) {
	s.t.Helper()
	s.stopManager()
	s.metrics = "127.0.0.1:" + s.freePort()
	args := []string{"--leader-elect=true", "--metrics-bind-address=" + s.metrics}
	if connected {
		s.write("manager-token", secret)
		s.server = simulator.New(simulator.Options{Token: secret, AdmissionScene: admission})
		if err := s.server.Start("127.0.0.1:0"); err != nil {
			s.t.Fatal(err)
		}
		args = append(args, "--altershield-url="+s.server.URL(), "--altershield-token-file="+filepath.Join(s.dir, "manager-token"),
			"--altershield-admission-scene="+admission)
	}
	s.removeWebhooks()
	var err error
	if s.manager, err = s.cluster.InstallManager(context.Background(), controlplane.ManagerOptions{Root: s.root, Args: args}); err != nil {
		s.t.Fatal(err)
	}
	if connected {
		s.server.SetCallbackURLs(s.manager.CallbackAddress() + altershield.CallbackPath)
	}
	if err := s.manager.Start(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *story) stopManager() {
	if s.manager != nil {
		if err := s.manager.Stop(); err != nil {
			s.t.Fatal(err)
		}
	}
	if s.server != nil {
		s.server.Shutdown()
		s.server = nil
	}
}

// removeWebhooks lets others take their place: those of the manifests lead to a
// Service, those of the test to this machine.
func (s *story) removeWebhooks() {
	for _, kind := range []string{"mutating", "validating"} {
		s.do("kubectl delete %[1]swebhookconfiguration altershieldoperator-%[1]s-webhook-configuration --ignore-not-found", kind)
	}
}

func (s *story) freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (s *story) write(name, content string) {
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// state waits until a release is in a state.
func (s *story) state(release, state string) {
	s.t.Helper()
	s.wait(state, "kubectl get cwl %s -o jsonpath={.status.status}", release)
}

func (s *story) podOf(batch string) string {
	return s.do("kubectl get changepod %s -o 'jsonpath={.spec.podInfos[0].pod}'", batch)
}

// forget removes the Deployment, and what is known of it.
func (s *story) forget() {
	s.do("kubectl delete deployment sleep --ignore-not-found --cascade=foreground")
	// The garbage collector finds out late that there are new kinds.
	s.do("kubectl delete cwl,cpd,controllerrevisions --all")
}

// play plays steps of the walkthrough.
func (s *story) play(steps ...walkthrough.Step) {
	s.t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		s.t.Fatal(err)
	}
	c, err := client.New(s.cluster.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	player := &walkthrough.Player{Client: c, Namespace: "default", Kubectl: func(ctx context.Context, args ...string) (string, error) {
		cmd := s.cluster.KubectlCmd(ctx, args...)
		cmd.Dir = s.root
		out, err := cmd.CombinedOutput()
		return string(out), err
	}}
	if err := player.Play(s.t.Context(), steps...); err != nil {
		s.t.Fatal(err)
	}
}

// fresh releases the sample for the first time, and waits until it has succeeded.
func (s *story) fresh() {
	s.t.Helper()
	s.forget()
	s.play(walkthrough.Release)
	s.rolledOut()
}

// rolledOut waits until nothing of an older version is left.
func (s *story) rolledOut() {
	s.do("kubectl rollout status deployment/sleep --timeout=60s")
	s.wait("5", "kubectl get pods -l app=sleep -o name | wc -l")
}

// release releases an image, and waits until it has succeeded.
func (s *story) release(image string) {
	s.t.Helper()
	s.do("kubectl set image deployment/sleep sleep=%s", image)
	s.rolledOut()
	s.state("$(kubectl get deployment sleep -o jsonpath='sleep--x--{.metadata.labels.admission-webhook-altershield\\.antgroup\\.com/version}')", "Success")
}

// restored waits until the first release is restored.
func (s *story) restored() {
	s.t.Helper()
	s.wait(strings.TrimPrefix(first, "sleep--x--"), "kubectl get deployment sleep -o jsonpath='{.metadata.labels.admission-webhook-altershield\\.antgroup\\.com/version}'")
	s.rolledOut()
	s.state(first, "Success")
}

// block fails the sample.
func (s *story) block() {
	s.t.Helper()
	s.fresh()
	s.play(walkthrough.Fail)
}

// hold releases the sample for the second time, and waits until that is held.
func (s *story) hold() {
	s.t.Helper()
	s.fresh()
	s.do("kubectl set image deployment/sleep sleep=busybox:1.35")
	s.wait("600 7 3", "kubectl get deployment sleep -o jsonpath='{.spec.minReadySeconds} {.status.readyReplicas} {.status.updatedReplicas}'")
}

// applyStatefulSet makes a StatefulSet of five pods, which no node takes.
func (s *story) applyStatefulSet() {
	s.t.Helper()
	s.do(`kubectl apply -f - <<'END'
{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"db"},"spec":{"serviceName":"db","replicas":5,"podManagementPolicy":"Parallel","selector":{"matchLabels":{"app":"db"}},
"template":{"metadata":{"labels":{"app":"db"}},"spec":{"nodeSelector":{"none":"such"},"containers":[{"name":"db","image":"busybox"}]}}}}
END`)
}

// holdStatefulSet releases a StatefulSet for the second time, which admission holds: its
// own partition, put back, changes nothing.
func (s *story) holdStatefulSet() {
	s.t.Helper()
	s.applyStatefulSet()
	s.do("kubectl set image statefulset/db db=busybox:2")
	s.do(`kubectl patch statefulset/db --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}'`)
	if got := s.do("kubectl get statefulset db -o jsonpath={.spec.updateStrategy.rollingUpdate.partition}"); got != "4" {
		s.t.Errorf("docs/holding.md: a StatefulSet of 5 pods that is held has the partition %q", got)
	}
}

// partition waits until the StatefulSet has this one, and nothing says that it is held.
func (s *story) partition(is string) {
	s.t.Helper()
	s.wait(is, `kubectl get statefulset db -o jsonpath='{.spec.updateStrategy.rollingUpdate.partition} {.metadata.annotations.altershield\.defense\.antgroup\.com/held}'`)
}

func ofStatefulSet(_ *story, command string) string { return strings.Replace(command, "NAME", "db", 1) }

// applyHeld applies the fields that a hold changed, server-side, as tools do with what is
// in Git: nothing conflicts with the operator, nothing differs, and the hold goes on. Who
// created the sample owns one of the fields until the first apply forces it.
func (s *story) applyHeld() {
	s.t.Helper()
	const own = `sed 's/^  replicas: 5/&\n  minReadySeconds: 0\n  progressDeadlineSeconds: 600/; s/image: busybox/&:1.35/' config/samples/sleep.yaml`
	const paced = "-o jsonpath='{.spec.minReadySeconds} {.spec.progressDeadlineSeconds}'"
	for _, how := range []string{"--server-side --force-conflicts", "--server-side", "--server-side --dry-run=server"} {
		if got := s.do("%s | kubectl apply %s --field-manager=git -f - %s", own, how, paced); !strings.HasSuffix(got, "600 1800") {
			s.t.Errorf("docs/holding.md: apply %s of a workload that is held leads to %q", how, got)
		}
	}
	if s.do(`kubectl get deployment sleep -o jsonpath='{.metadata.annotations.altershield\.defense\.antgroup\.com/held}'`) == "" {
		s.t.Error("docs/holding.md: the hold ended")
	}
}

// notHeld waits until the sample has these values, and nothing says that it is held.
func (s *story) notHeld(minReady, deadline string) {
	s.t.Helper()
	s.wait(strings.TrimSpace(minReady+" "+deadline), `kubectl get deployment sleep -o jsonpath='{.spec.minReadySeconds} {.spec.progressDeadlineSeconds} {.metadata.annotations.altershield\.defense\.antgroup\.com/held}'`)
}

// crash lets a pod of the second release crash again and again once that has succeeded,
// and waits until it is suspended.
func (s *story) crash() {
	s.t.Helper()
	s.rolledOut()
	release := current(s)
	s.state(release, "Success")
	s.do("kubectl label pod %s %s=%s", s.podOf(release+"--x--1"), controlplane.BehaviorLabel, controlplane.BehaviorLiveness)
	for range 4 { // the first restarts are forgiven
		if s.poll(func() bool {
			state, _ := s.shell("kubectl get cwl " + release + " -o jsonpath={.status.status}")
			return state == "Suspend"
		}) {
			return
		}
	}
	s.t.Fatalf("%s: %s is not suspended", s.path, release)
}

// breakImage releases an image that cannot be pulled, and waits until that is
// rolled back.
func (s *story) breakImage() {
	s.t.Helper()
	s.fresh()
	s.play(walkthrough.Sooner(walkthrough.NeverStarts))
}

// hang waits until images cannot be pulled, and shortens the time they have.
func (s *story) hang() {
	s.t.Helper()
	s.wait("3", "kubectl get pods | grep -c -E 'ErrImagePull|ImagePullBackOff'")
	s.do("kubectl annotate deployment sleep altershield.defense.antgroup.com/rollback=1s")
}

// set writes a setting, and waits until it is in force.
func (s *story) set(name, spec string) {
	s.t.Helper()
	s.do(`kubectl -n %s patch oci %s --type=merge -p '{"spec":%s}'`, system, name, spec)
	s.inForce(name)
}

func (s *story) inForce(name string) {
	s.t.Helper()
	generation := s.do("kubectl -n %s get oci %s -o jsonpath={.metadata.generation}", system, name)
	s.wait(generation, "kubectl -n %s get oci %s -o jsonpath={.status.observedGeneration}", system, name)
}

func (s *story) outage(o simulator.Outage) {
	if err := s.server.SetOutage(o); err != nil {
		s.t.Fatal(err)
	}
}
