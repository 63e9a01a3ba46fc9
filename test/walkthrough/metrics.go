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
package walkthrough

import (
	"context"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// Metrics are a Prometheus that measures the pods of a story, and an Alertmanager.
type Metrics struct {
	// Prometheus is the URL of Prometheus.
	Prometheus string
	// Endpoints is the path of the manifest that describes both to the operator.
	Endpoints string
	// Alert adds the alerting rule [ErrorAlert] to Prometheus.
	Alert func(ctx context.Context) error
	// Show waits until Alertmanager has an alert with this name about the workload, and prints it.
	Show func(ctx context.Context, alert string) error
}

const (
	// Pay is the namespace where Prometheus verifies the releases of a Deployment: see hack/demo/pay.yaml.
	Pay = "pay"
	// FailsLabel is the label of pods that answer every tenth request with 500.
	FailsLabel = "every-tenth-request"
	// ErrorAlert is the alert of a pod that answers more than 5 % of its requests with 500.
	ErrorAlert = "HighErrorShare"

	fewErrors, noAlerts, noWorse = Pay + "/few-errors/errors", Pay + "/no-alerts/alerts", Pay + "/no-worse/compare"
)

// Measured is the story of a Deployment that Prometheus verifies. Without metrics it is left out.
func Measured(m *Metrics) Story {
	bad, good := `"labels":{"`+FailsLabel+`":"fails"}`, `"labels":{"`+FailsLabel+`":null}`
	accepted := func(policy string) Act {
		return kubectl("wait --for=condition=Accepted defensepolicy/" + policy + " --timeout=1m")
	}
	show := func(alert string) Act {
		return Act{Do: func(ctx context.Context) error { return m.Show(ctx, alert) }}
	}
	if m == nil {
		return Story{web, Pay, []Step{{"With Prometheus: every tenth request fails, and all probes are green", []Act{{
			Note: "The operator calls neither loopback nor link-local addresses, and this machine has no other address at which\n" +
				"Prometheus could listen. So this chapter is left out; docs/tasks/verify-with-prometheus.md describes it."}}}}}
	}
	return Story{web, Pay, []Step{
		{"With Prometheus: every tenth request fails, and all probes are green", []Act{
			{Note: "A real Prometheus scrapes a small server for each pod. The administrators tell the operator where it is:"},
			kubectl("-n " + controlplane.ManagerNamespace + " apply -f " + m.Endpoints),
			kubectl("-n " + controlplane.ManagerNamespace + " wait --for=condition=Reachable defenseendpoints --all --timeout=1m"),
			kubectl("apply -f hack/demo/pay.yaml"),
			see("the release to succeed", (*scene).succeeded),
			kubectl("apply -f hack/demo/pay-errors.yaml"),
			accepted("few-errors"),
			{Note: "The pods of the next version are Ready, and answer every tenth request with 500. The rollout is held at its first pod:"},
			kubectl("annotate deployment web " + holding + "=first"),
			patchWeb(bad, `"image":"web:2"`),
			see("the first pod to be created, and the rollout to be held", (*scene).held),
			listHeld,
			see("the release to be suspended and the Deployment blocked", failed(fewErrors, "value > 0.05")).within(2 * patience),
			see("the rollout to be halted", (*scene).stopped),
			see("the old pods to be there", kept(3)),
			see("the event", reports(v1alpha1.EventReleaseSuspended)),
			eventsOf("web", v1alpha1.EventReleaseSuspended).prints(fewErrors, "value > 0.05"),
			{Note: "The check has what Prometheus answered:"},
			kubectl("get changepods -o", `jsonpath={range .items[*].status.checks[?(@.type=="prometheus")]}{.phase}: {.value}{"\n"}{end}`).
				prints("Failed: 0."),
			{Note: "The policy notifies Alertmanager, which routes it as every other alert:"},
			show("AlterShieldFailed"),
			{Note: "The fixed version is verified in the same way:"},
			kubectl("annotate deployment web " + holding + "-"),
			override("web"),
			patchWeb(good, `"image":"web:3"`),
			see("the release to succeed and the block to be lifted", (*scene).succeeded).within(2 * patience),
			list.prints("Success"),
		}},
		{"With Prometheus: an alert of your own fails a release, which is rolled back", []Act{
			{Note: "Prometheus has an alerting rule for pods with more than 5 % of errors. A policy takes its alerts for verdicts:"},
			{Do: m.Alert},
			kubectl("delete defensepolicy few-errors"),
			kubectl("apply -f hack/demo/pay-alerts.yaml"),
			accepted("no-alerts"),
			kubectl("annotate deployment web " + selfHealing + "=enabled " + holding + "=first"),
			patchWeb(bad, `"image":"web:4"`),
			see("the first pod to be created, and the rollout to be held", (*scene).held),
			see("the Deployment to be rolled back, and verified", (*scene).restored).within(2 * patience),
			see("the old pods to be there", kept(3)),
			see("the event", reports(v1alpha1.EventRolledBack)),
			list.prints("Rollback", "Success"),
			eventsOf("web", v1alpha1.EventRolledBack).prints(noAlerts, "alert "+ErrorAlert+" fires"),
			show("AlterShieldRolledBack"),
		}},
		{"With Prometheus: more requests of new pods fail than of old ones, without a threshold", []Act{
			{Note: "This policy has no number of errors. It compares the new pods with the old ones:"},
			kubectl("delete defensepolicy no-alerts"),
			kubectl("apply -f hack/demo/pay-compare.yaml"),
			accepted("no-worse"),
			patchWeb(bad, `"image":"web:5"`),
			see("the first pod to be created, and the rollout to be held", (*scene).held),
			see("the Deployment to be rolled back, and verified", (*scene).restored).within(2 * patience),
			see("the old pods to be there", kept(3)),
			eventsOf("web", v1alpha1.EventRolledBack).prints(noWorse),
			{Note: "The check explains itself:"},
			kubectl("get changepods -o", `jsonpath={range .items[*].status.checks[?(@.reason=="WorseThanOldPods")]}{.message}{"\n"}{end}`).
				prints("errors: 10 % of", "of 1 new pod against", "of 3 old ones"),
			{Note: "Prometheus has the history. This is what the policy decides about each release of this chapter:"},
			kubectl("altershield simulate no-worse --since 1h --prometheus "+m.Prometheus).
				prints("errors: 10 % of", "0 false, 0 missed"),
		}},
	}}
}
