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
	"fmt"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// policiesStories has the plans of the documents about policies and verification.
var policiesStories = map[string]plan{
	"docs/tasks/write-policies.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce") // the policy exists
			s.fresh()                              // enrols the namespace
			// The default policy would fail the pods, too.
			s.do(`kubectl -n %s patch defensepolicy default --type merge -p '{"spec":{"mode":"Disabled"}}'`, system)
			s.policy(system, "default", "Disabled")
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicies --all")
			s.do("kubectl -n %s replace -f config/samples/policies/stays-up.yaml", system)
			s.policy(system, "default", "Enforce")
			s.forget()
		},
		steps: []step{
			{
				command: "kubectl apply -f config/samples/policies/observe.yaml",
				after: func(s *story) {
					s.policy("default", "trial", "Observe")
					s.fresh() // a policy is in force for later releases
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
					s.fresh() // so that no pod of the previous version fails in the same way
				},
			},
			{
				command: `kubectl patch defensepolicy trial --type merge -p '{"spec":{"mode":"Enforce"}}'`,
				after: func(s *story) {
					s.policy("default", "trial", "Enforce")
					s.do("kubectl set image deployment/sleep sleep=busybox:1.35")
					s.check(current(s), "default/trial/one-restart", "Running", "")
					s.do("kubectl label pod %s %s=%s", s.podOf(current(s)+"--x--1"), controlplane.BehaviorLabel, controlplane.BehaviorLiveness)
					s.state(current(s), "Suspend")
				},
			},
			{
				command: "kubectl get changepods -o wide",
				after:   func(s *story) { s.wait("1", "kubectl get changepods -o wide | grep -c default/trial/one-restart") },
			},
		},
	},
	"docs/tasks/verify-with-prometheus.md": {
		begin: func(s *story) {
			s.standAlone()
			s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
			s.do("kubectl create deployment web --image=busybox")
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicy few-errors no-worse")
			s.do("kubectl -n %s delete defenseendpoint prometheus", system)
			s.do("kubectl -n %s delete secret prometheus-login", system)
			s.do("kubectl delete deployment web --cascade=foreground")
			s.do("kubectl delete cwl,cpd --all")
		},
		steps: []step{
			{
				command: "kubectl apply -f config/samples/endpoints/prometheus.yaml",
				after: func(s *story) {
					// No Prometheus has this name here.
					s.wait("True False", "kubectl -n %s get defenseendpoint prometheus -o jsonpath='"+
						`{.status.conditions[?(@.type=="Accepted")].status} {.status.conditions[?(@.type=="Reachable")].status}'`, system)
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/prometheus.yaml",
				after: func(s *story) {
					s.policy("default", "few-errors", "Observe")
					s.wait("EndpointUnavailable", "kubectl get defensepolicy few-errors -o jsonpath='"+
						`{.status.conditions[?(@.type=="QueriesWork")].reason}'`)
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/compare.yaml",
				after:   func(s *story) { s.policy("default", "no-worse", "Enforce") },
			},
		},
	},
	"docs/tasks/verify-with-your-own-service.md": {
		begin: func(s *story) {
			s.standAlone()
			s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
			s.do("kubectl create deployment web --image=busybox")
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicy own-service smoke-test")
			s.do("kubectl delete cronjob smoke")
			s.do("kubectl delete rolebinding altershield-jobs")
			s.do("kubectl -n %s delete defenseendpoint gate", system)
			s.do("kubectl -n %s delete secret gate-key", system)
			s.do("kubectl delete deployment web --cascade=foreground")
			s.do("kubectl delete cwl,cpd --all")
		},
		steps: []step{
			{
				command: "kubectl apply -f config/samples/endpoints/service.yaml",
				after: func(s *story) {
					// No service has this name here.
					s.wait("True False", "kubectl -n %s get defenseendpoint gate -o jsonpath='"+
						`{.status.conditions[?(@.type=="Accepted")].status} {.status.conditions[?(@.type=="Reachable")].status}'`, system)
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/service.yaml",
				after:   func(s *story) { s.policy("default", "own-service", "Observe") },
			},
			{
				command: "kubectl apply -f config/samples/policies/job.yaml",
				after: func(s *story) {
					s.policy("default", "smoke-test", "Observe")
					s.wait("yes", "kubectl auth can-i create jobs --as=system:serviceaccount:%s:altershieldoperator-controller-manager", system)
				},
			},
		},
	},
	"docs/tasks/use-your-alerts.md": {
		begin: func(s *story) {
			s.standAlone()
			s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
			s.do("kubectl create deployment web --image=busybox")
			s.do("kubectl apply -f config/samples/endpoints/prometheus.yaml")
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicy no-alerts")
			s.do("kubectl -n %s delete defenseendpoint prometheus", system)
			s.do("kubectl delete deployment web --cascade=foreground")
			s.do("kubectl delete cwl,cpd --all")
		},
		steps: []step{{
			command: "kubectl apply -f config/samples/policies/alerts.yaml",
			after: func(s *story) {
				s.policy("default", "no-alerts", "Observe")
				// No Prometheus has this name here.
				s.wait("EndpointUnavailable", "kubectl get defensepolicy no-alerts -o jsonpath='"+
					`{.status.conditions[?(@.type=="QueriesWork")].reason}'`)
			},
		}},
	},
	"docs/reference/checks.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce") // it is in force for later releases
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
					s.do("kubectl label deployment sleep tier=critical")
					s.do("kubectl set image deployment/sleep sleep=busybox:1.30")
					s.check(current(s), "default/critical/soak", "Running", "")
					pod := s.podOf(current(s) + "--x--1")
					s.do("kubectl annotate pod %s %s=true", pod, controlplane.UnreadyAnnotation)
					s.check(current(s), "default/critical/soak", "Failed", "ReadinessLost")
					s.state(current(s), "Suspend")
					s.wait("true", "kubectl get cwl %s -o json | grep -q 'see the dashboard of the service' && echo true", current(s))
					s.do("kubectl delete defensepolicy critical")
					s.fresh()
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/cel.yaml",
				after: func(s *story) {
					s.policy("default", "rules", "Enforce")
					s.do("kubectl set image deployment/sleep sleep=busybox:1.31")
					s.check(current(s), "default/rules/containers", "Failed", "RuleFailed")
					s.state(current(s), "Suspend")
					s.wait("true", "kubectl get cwl %s -o json | "+
						"grep -q 'a container has no memory limit; see the handbook of the platform' && echo true", current(s))
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
	"docs/tasks/get-notified.md": {
		begin: func(s *story) {
			s.standAlone()
			s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicy page-team")
			s.do("kubectl -n %s delete defenseendpoint alertmanager", system)
		},
		steps: []step{
			{
				command: "kubectl apply -f config/samples/endpoints/alertmanager.yaml",
				after: func(s *story) {
					// No Alertmanager has this name here.
					s.wait("True False", "kubectl -n %s get defenseendpoint alertmanager -o jsonpath='"+
						`{.status.conditions[?(@.type=="Accepted")].status} {.status.conditions[?(@.type=="Reachable")].status}'`, system)
				},
			},
			{
				command: "kubectl apply -f config/samples/policies/notify.yaml",
				after: func(s *story) {
					s.policy("default", "page-team", "Enforce")
					s.wait("EndpointUnavailable", "kubectl get defensepolicy page-team -o jsonpath='"+
						`{.status.conditions[?(@.type=="Notifies")].reason}'`)
				},
			},
		},
	},
	"docs/tasks/declare-kind.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce")
			s.fresh() // enrols the namespace
			s.forget()
			s.define("istio.io/api", "kubernetes/customresourcedefinitions.gen.yaml", walkthrough.Routes)
			s.define("github.com/openkruise/kruise", "config/crd/bases/apps.kruise.io_clonesets.yaml", "clonesets.apps.kruise.io")
			s.do("kubectl create namespace mesh && kubectl label namespace mesh admission-webhook-altershield=enabled")
			s.do("kubectl -n mesh apply -f config/kinds/istio/samples/virtualservice.yaml")
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicy routes")
			s.do("kubectl delete changekinds --all")
			s.do("kubectl delete clusterroles -l altershield.defense.antgroup.com/aggregate-to-manager=true")
			s.do("kubectl delete namespace mesh")
			s.do("kubectl delete -f config/samples/kinds/definition.yaml")
			s.do("kubectl delete crd clonesets.apps.kruise.io %s", walkthrough.Routes)
			s.forget()
		},
		steps: []step{
			{
				command: "kubectl apply -f config/kinds/istio/virtualservice.yaml",
				after: func(s *story) {
					s.do("kubectl wait --for=condition=Ready changekind/%s --timeout=1m", walkthrough.Routes)
				},
			},
			{
				command: "kubectl apply -f config/kinds/kruise/cloneset.yaml",
				after: func(s *story) {
					s.do("kubectl wait --for=condition=Ready changekind/clonesets.apps.kruise.io --timeout=1m")
				},
			},
			{
				command: "kubectl apply -f config/kinds/kruise/samples/cloneset.yaml", // its controller does not run here; test/e2e runs it
				after: func(s *story) {
					s.wait("sleep--x--cloneset-e9b9a-9b65d601a5ce3ae433146e67fd6d02a4", "kubectl get changeworkloads "+
						"-l altershield.defense.antgroup.com/workload-kind=CloneSet -o jsonpath='{.items[*].metadata.name}'")
				},
			},
			{command: "kubectl apply -f config/samples/kinds/policy.yaml", after: func(s *story) { s.policy("default", "routes", "Enforce") }},
			{
				command: `kubectl patch route pay --type=merge -p '{"spec":{"weight":90}}'`, // after the change before it has succeeded
				before:  func(s *story) { s.wait("Success", "kubectl get changeworkloads -o jsonpath={.items[0].status.status}") },
			},
			{
				command: `kubectl patch route pay --type=merge -p '{"spec":{"weight":95}}'`, code: 1,
				before: func(s *story) {
					s.wait("true", `kubectl get route pay -o jsonpath='{.metadata.labels.altershield\.defense\.antgroup\.com/suspend}' | `+
						`grep -q 1 && echo true`)
				},
			},
			{
				command: "kubectl altershield rollback route/pay",
				after:   func(s *story) { s.wait("20", "kubectl get route pay -o jsonpath={.spec.weight}") },
			},
		},
	},
	"docs/tasks/freeze-releases.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce")
			s.fresh()
		},
		end: func(s *story) {
			s.do("kubectl delete defensepolicies --all")
			s.forget()
		},
		steps: []step{
			{
				command: "kubectl apply -f config/samples/policies/freeze.yaml",
				after:   func(s *story) { s.policy("default", "calendar", "Enforce") },
			},
			{
				command: "kubectl get defensepolicy calendar -o jsonpath='{.status.freezeWindows}'",
				after: func(s *story) { // whatever the day is, the rest is in a freeze
					if n := s.do("kubectl get defensepolicy calendar -o go-template='{{len .status.freezeWindows}}'"); n != "4" {
						s.t.Errorf("%s: %s windows, not two for each action", s.path, n)
					}
					s.do("kubectl delete defensepolicy calendar")
					s.freeze()
				},
			},
			{
				command: `kubectl patch deployment sleep -p '{"metadata":{"annotations":{"altershield.defense.antgroup.com/break-freeze":` +
					`"incident 7"}},"spec":{"template":{"metadata":{"labels":{"test":"fix"}}}}}'`,
				before: func(s *story) {
					printed, err := s.shell("kubectl set image deployment/sleep sleep=busybox:1.31")
					if err == nil || !strings.Contains(printed, "deployment sleep is frozen until ") {
						s.t.Errorf("%s: a release in a freeze prints %q", s.path, printed)
					}
					if printed := s.do("kubectl rollout restart deployment/sleep"); !strings.Contains(printed, "and restarts its pods") {
						s.t.Errorf("%s: a restart in a freeze prints %q", s.path, printed)
					}
				},
				after: func(s *story) {
					s.wait("", `kubectl get deployment sleep -o jsonpath='{.metadata.annotations.altershield\.defense\.antgroup\.com/break-freeze}'`)
					s.wait("true", "kubectl get events --field-selector reason=FreezeBroken | grep -q 'gave the reason: incident 7' && echo true")
				},
			},
			{
				command: "kubectl altershield check --frozen", code: 3,
				after: func(s *story) { // the account of the hooks may ask, too
					s.do("kubectl apply -f config/samples/freeze-hooks/rights.yaml")
					s.do("kubectl apply --dry-run=server -f config/samples/freeze-hooks/")
					const ask = "kubectl altershield check --frozen -n default --operator-namespace=altershieldoperator-system " +
						"--as=system:serviceaccount:default:check-frozen"
					s.wait("3", ask+" > asked; echo $?")
					if printed := s.do("cat asked"); !strings.HasPrefix(printed, "deployment/sleep is frozen until ") {
						s.t.Errorf("%s: the hooks print %q", s.path, printed)
					}
					s.do("kubectl delete defensepolicy now")
					s.wait("No workload in default is frozen.", ask)
					s.do("kubectl delete -f config/samples/freeze-hooks/rights.yaml")
				},
			},
		},
	},
}

// freeze freezes all releases of the namespace since an hour ago.
func (s *story) freeze() {
	s.t.Helper()
	s.write("freeze.yaml", fmt.Sprintf(`apiVersion: app.ops.cloud.alipay.com/v1alpha1
kind: DefensePolicy
metadata: {name: now, namespace: default}
spec:
  freezes: [{name: now, from: %q, until: %q}]`,
		time.Now().Add(-time.Hour).UTC().Format(time.RFC3339), time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	s.do("kubectl apply -f freeze.yaml")
	s.policy("default", "now", "Enforce")
}

// define installs a CustomResourceDefinition of a module of hack/kinds/go.mod.
func (s *story) define(module, path, name string) {
	s.t.Helper()
	text, err := controlplane.Definition(s.t.Context(), s.root, module, path, name)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(name+".yaml", string(text))
	s.do("kubectl apply --server-side -f %s.yaml", name)
	// kubectl wait fails on a definition without conditions.
	s.wait("True", `kubectl get crd %s -o jsonpath='{.status.conditions[?(@.type=="Established")].status}'`, name)
}
