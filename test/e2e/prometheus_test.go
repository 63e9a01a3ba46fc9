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

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// Labels of pods that answer every tenth request with 500, and of those that take twice as long.
const (
	badLabel  = "bad"
	slowLabel = "slow"
)

// measure starts a Prometheus that measures the pods of a namespace, and describes it to the operator as the endpoint prometheus.
func (w *world) measure(ctx context.Context, ns string) *monitoring.Prometheus {
	GinkgoHelper()
	// The operator does not call loopback addresses.
	addresses, err := controlplane.PodAddresses(ctx)
	if err != nil || len(addresses) == 0 {
		Skip("this machine has no other address than loopback")
	}
	programs, err := monitoring.Programs(ctx, root, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(targets.Close)
	core, err := kubernetes.NewForConfig(w.cluster.RESTConfig())
	Expect(err).NotTo(HaveOccurred())
	follow, stop := context.WithCancel(context.WithoutCancel(ctx))
	DeferCleanup(stop)
	Expect(targets.Follow(follow, core, ns, func(p *corev1.Pod) (monitoring.Traffic, monitoring.TargetOptions, bool) {
		traffic := monitoring.Traffic{Rate: 50, Latency: 10 * time.Millisecond}
		switch p.Labels["test"] {
		case badLabel:
			traffic.Errors = 0.1
		case slowLabel:
			traffic.Latency *= 2
		}
		return traffic, monitoring.TargetOptions{}, true
	})).To(Succeed())
	p, err := monitoring.StartPrometheus(ctx, monitoring.PrometheusOptions{Programs: programs, Host: addresses[0].String(), Targets: targets})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(p.Close)
	endpoint := &v1alpha1.DefenseEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.ManagerNamespace, Name: "prometheus"},
		Spec: v1alpha1.DefenseEndpointSpec{
			Type: v1alpha1.EndpointPrometheus, URL: p.URL(),
			Prometheus: &v1alpha1.EndpointPrometheusOptions{ScrapeInterval: &metav1.Duration{Duration: 5 * time.Second}},
		},
	}
	Expect(w.api.Create(ctx, endpoint)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(w.api.Get(ctx, client.ObjectKeyFromObject(endpoint), endpoint)).To(Succeed())
		reachable := conditionOf(endpoint.Status.Conditions, v1alpha1.ConditionReachable)
		g.Expect(reachable).To(HaveField("Status", metav1.ConditionTrue), "%v", reachable)
	}).WithContext(ctx).Should(Succeed())
	return p
}

// fewErrors returns a policy that holds rollouts until the new pods have few errors.
func fewErrors(ns string) *v1alpha1.DefensePolicy {
	p := healthPolicy(ns, "few-errors", func(c *v1alpha1.PolicyCheck) {
		c.PodHealth, c.Name, c.Deadline = nil, "errors", &metav1.Duration{Duration: 10 * time.Minute}
		c.Prometheus = &v1alpha1.PrometheusCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "prometheus"},
			Query: `sum(rate(http_server_request_duration_seconds_count{pod=~"$pods",http_response_status_code=~"5.."}[$range]))` +
				` / sum(rate(http_server_request_duration_seconds_count{pod=~"$pods"}[$range])) or ` +
				`0 * sum(rate(http_server_request_duration_seconds_count{pod=~"$pods"}[$range]))`,
			FailWhen: "value > 0.05", Interval: &metav1.Duration{Duration: 10 * time.Second}, Count: 2, Failures: 2,
		}
	})
	p.Spec.Hold = &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch, MaxDuration: &metav1.Duration{Duration: time.Hour}}
	return p
}

// noWorse returns a policy that holds rollouts until the first new pods are no worse than old ones.
func noWorse(ns string) *v1alpha1.DefensePolicy {
	const requests = "sum by (pod) (http_server_request_duration_seconds_count{pod=~\"$pods\"%s})"
	const seconds = "sum by (pod) (rate(http_server_request_duration_seconds_%s{pod=~\"$pods\"}[$range]))"
	p := healthPolicy(ns, "no-worse", func(c *v1alpha1.PolicyCheck) {
		c.PodHealth, c.Name, c.Deadline = nil, "compare", &metav1.Duration{Duration: 10 * time.Minute}
		c.Compare = &v1alpha1.CompareCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "prometheus"},
			Window:      &metav1.Duration{Duration: time.Minute}, Slice: &metav1.Duration{Duration: 10 * time.Second},
			WarmUp: &metav1.Duration{Duration: 20 * time.Second}, MaxWindow: &metav1.Duration{Duration: 2 * time.Minute},
			Metrics: []v1alpha1.CompareMetric{
				{
					Name:        "errors",
					Numerator:   fmt.Sprintf(requests, `,http_response_status_code=~"5.."`),
					Denominator: fmt.Sprintf(requests, ""),
				},
				{
					Name: "latency", Query: fmt.Sprintf(seconds, "sum") + " / " + fmt.Sprintf(seconds, "count"),
					MinChange: ptr.To(resource.MustParse("2m")),
				},
			},
		}
	})
	p.Spec.Hold = &v1alpha1.PolicyHold{Until: v1alpha1.HoldFirstBatch, MaxDuration: &metav1.Duration{Duration: time.Hour}}
	return p
}

var _ = Describe("compared by a real Prometheus", Ordered, SpecPriority(longest), func() {
	w := inHoldWorld(shortHold...)

	It("releases that are slower or fail more than the old pods are stopped at their first pods, and a good one succeeds",
		func(ctx SpecContext) {
			ns := w.newNamespace(ctx, true)
			w.measure(ctx, ns)
			w.createAdmitted(ctx, sleeper(ns, "web").Replicas(5).With(func(d *appsv1.Deployment) {
				d.Spec.Template.Labels["test"] = "good"
			}))
			w.verified(ctx, ns, "web")
			w.newDefensePolicy(ctx, noWorse(ns), v1alpha1.ReasonInForce)
			ends := func(state v1alpha1.ChangeWorkloadStatusType) {
				GinkgoHelper()
				Eventually(func(g Gomega) {
					g.Expect(w.currentChange(ctx, g, ns, "web").Status.Status).To(Equal(state))
				}).WithContext(ctx).WithTimeout(2 * patience).Should(Succeed())
			}
			fails := func(message string) {
				GinkgoHelper()
				ends(v1alpha1.ChangeWorkloadSuspend)
				Expect(w.getDeployment(ctx, Default, ns, "web").Status.UpdatedReplicas).To(BeNumerically("<", 5), "old pods are left")
				Expect(w.checksOf(ctx, Default, ns, "web", ns+"/no-worse/compare")).To(ContainElement(And(
					HaveField("Phase", v1alpha1.CheckFailed), HaveField("Reason", v1alpha1.ReasonWorse),
					HaveField("Message", ContainSubstring(message)),
				)))
			}

			By("releasing what is twice as slow")
			w.releaseHeld(ctx, ns, slowLabel)
			fails("latency: 0.02 in ")

			By("undoing it, and releasing what fails more")
			Expect(w.patchTemplate(ctx, ns, "web", "good")).To(Succeed())
			ends(v1alpha1.ChangeWorkloadSuccess)
			w.verified(ctx, ns, "web")
			w.releaseHeld(ctx, ns, badLabel)
			fails("errors: 10 % of ")

			By("releasing a good one over it")
			Expect(w.patchDeployment(ctx, ns, "web", repair("good-again"))).To(Succeed())
			ends(v1alpha1.ChangeWorkloadSuccess)
			w.verified(ctx, ns, "web")
			Expect(w.checksOf(ctx, Default, ns, "web", ns+"/no-worse/compare")).To(ContainElement(HaveField("Phase", v1alpha1.CheckPassed)))
		}, SpecTimeout(20*time.Minute))
})

var _ = Describe("verified by a real Prometheus", Ordered, SpecPriority(longest), func() {
	w := inHoldWorld(shortHold...)

	It("a release that answers every tenth request with 500 is stopped at its first pods, and a good one succeeds", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.measure(ctx, ns)
		w.createAdmitted(ctx, sleeper(ns, "web").Replicas(8).With(func(d *appsv1.Deployment) {
			d.Spec.Template.Labels["test"] = "good"
		}))
		w.verified(ctx, ns, "web")
		w.newDefensePolicy(ctx, fewErrors(ns), v1alpha1.ReasonInForce)

		By("releasing what answers with errors while its probes are green")
		released := time.Now()
		w.releaseHeld(ctx, ns, badLabel)
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		AddReportEntry("from the release to its failure", time.Since(released).Round(time.Second).String())
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel))
		Expect(d.Status.UpdatedReplicas).To(BeNumerically("<", 8), "old pods are left")
		Expect(d.Status.AvailableReplicas).To(BeNumerically(">=", 6))
		checks := w.checksOf(ctx, Default, ns, "web", ns+"/few-errors/errors")
		Expect(checks).To(ContainElement(And(
			HaveField("Phase", v1alpha1.CheckFailed), HaveField("Message", ContainSubstring("value > 0.05")),
		)))
		Expect(w.patchTemplate(ctx, ns, "web", "next")).To(MatchError(ContainSubstring("deployment web is suspended")))

		By("releasing a good one over it")
		Expect(w.patchDeployment(ctx, ns, "web", repair("good"))).To(Succeed())
		w.verified(ctx, ns, "web")
	}, SpecTimeout(12*time.Minute))
})
