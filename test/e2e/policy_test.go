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
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/checks"
	defaults "github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
)

const staysUp = controlplane.ManagerNamespace + "/default/stays-up"

// healthPolicy returns a policy of a namespace with one check of the health of pods.
func healthPolicy(ns, name string, with func(*v1alpha1.PolicyCheck)) *v1alpha1.DefensePolicy {
	p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	p.Spec.Checks = []v1alpha1.PolicyCheck{{
		Name: "health", PodHealth: &v1alpha1.PodHealthCheck{Duration: &metav1.Duration{Duration: 3 * time.Second}},
	}}
	with(&p.Spec.Checks[0])
	return p
}

// atAdmission returns a policy of a namespace that refuses releases by a rule.
func atAdmission(ns, name, rule string) *v1alpha1.DefensePolicy {
	p := healthPolicy(ns, name, func(c *v1alpha1.PolicyCheck) {
		c.PodHealth, c.Stage = nil, v1alpha1.StageAdmission
		c.Cel = &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: rule, Message: "this is not for " + ns}}}
	})
	p.Spec.Suggestion = "ask the platform"
	return p
}

// newDefensePolicy creates a policy, and waits until its condition Accepted has a reason.
func (w *world) newDefensePolicy(ctx context.Context, p *v1alpha1.DefensePolicy, reason string) {
	GinkgoHelper()
	Expect(w.api.Create(ctx, p)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(w.api.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
		c := conditionOf(p.Status.Conditions, v1alpha1.ConditionAccepted)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Reason).To(Equal(reason), c.Message)
	}).WithContext(ctx).Should(Succeed())
}

// withoutDefaultPolicy turns the default policy off until the end of a spec that lets pods crash for another reason. In the shared world
// the spec has to be Serial: all specs share the policy.
func (w *world) withoutDefaultPolicy(ctx context.Context) {
	GinkgoHelper()
	set := func(ctx context.Context, mode v1alpha1.PolicyMode) {
		w.kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", "dpol", defaults.DefaultName, "--type", "merge",
			"-p", `{"spec":{"mode":"`+string(mode)+`"}}`)
	}
	set(ctx, v1alpha1.ModeDisabled)
	DeferCleanup(set, v1alpha1.ModeEnforce)
}

// checksOf returns the checks with a name of the batches of the current release.
func (w *world) checksOf(ctx context.Context, g Gomega, ns, name, check string) (checks []v1alpha1.CheckStatus) {
	GinkgoHelper()
	for _, b := range w.batchesOf(ctx, g, w.currentChange(ctx, g, ns, name)) {
		if c := record.FindCheck(b.Status.Checks, check); c != nil {
			checks = append(checks, *c)
		}
	}
	return checks
}

// podServer serves HTTP at an address of this machine that could be the IP of a pod, so that the manager may call it. It counts the
// requests.
func podServer(ctx context.Context, code int) (ip string, port int32, requests *atomic.Int32) {
	GinkgoHelper()
	addresses, err := net.InterfaceAddrs()
	Expect(err).NotTo(HaveOccurred())
	for _, a := range addresses {
		of, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		network := "tcp6"
		if of.IP.To4() != nil {
			network = "tcp4"
		}
		if checks.NewGuard("")(ctx, network, net.JoinHostPort(of.IP.String(), "80"), nil) != nil {
			continue
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(of.IP.String(), "0"))
		if err != nil {
			continue
		}
		requests = &atomic.Int32{}
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/healthz" {
				requests.Add(1)
			}
			w.WriteHeader(code)
		})}
		go func() { _ = server.Serve(listener) }()
		DeferCleanup(server.Close)
		return of.IP.String(), int32(listener.Addr().(*net.TCPAddr).Port), requests //nolint:errcheck,forcetypeassert // of a TCP listener
	}
	Skip("this machine has no address that could be the IP of a pod")
	return "", 0, nil
}

// probed creates a Deployment of one pod that has this IP, and a container with this port. It returns the name of the pod.
func (w *world) probed(ctx context.Context, ns, ip string, port int32) (name string) {
	GinkgoHelper()
	// Pods of this behavior have no IP until their label is removed.
	d := sleeper(ns, "web").Replicas(1).TemplateLabel(controlplane.BehaviorLabel, controlplane.BehaviorVolume)
	w.create(ctx, d.Container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: port}} }))
	Eventually(func(g Gomega) {
		pods := w.podsOf(ctx, g, ns, "web")
		g.Expect(pods).To(HaveLen(1))
		for _, pod := range pods {
			g.Expect(pod.Spec.NodeName).NotTo(BeEmpty())
			name = pod.Name
			w.kubectl(ctx, "-n", ns, "patch", "pod", name, "--subresource=status", "--type=merge",
				"-p", `{"status":{"podIP":"`+ip+`","podIPs":[{"ip":"`+ip+`"}]}}`)
			w.kubectl(ctx, "-n", ns, "label", "pod", name, controlplane.BehaviorLabel+"-")
		}
	}).WithContext(ctx).Should(Succeed())
	return name
}

// probePolicy returns a policy of a namespace that probes pods.
func probePolicy(ns string, probe v1alpha1.ProbeCheck) *v1alpha1.DefensePolicy {
	return healthPolicy(ns, "answers", func(c *v1alpha1.PolicyCheck) {
		probe.Interval, probe.Successes, probe.Failures = &metav1.Duration{Duration: time.Second}, 3, 3
		c.Name, c.PodHealth, c.Probe, c.OnError = "healthz", nil, &probe, v1alpha1.SilenceFails
	})
}

var _ = Describe("policies", func() {
	w := inSharedWorld()

	It("refuse a release at once, but no other change, no undo and no rollback", func(ctx SpecContext) {
		ns, other := w.newNamespace(ctx, true), w.newNamespace(ctx, true)
		for _, name := range []string{"web", "api"} {
			w.create(ctx, sleeper(ns, name).Replicas(2))
		}
		good, bad := map[string]string{}, map[string]string{}
		for _, name := range []string{"web", "api"} {
			good[name] = w.verified(ctx, ns, name).Spec.Reversion
			Expect(w.patchTemplate(ctx, ns, name, "second")).To(Succeed())
			bad[name] = w.verified(ctx, ns, name).Spec.Reversion
		}
		p := atAdmission(ns, "first-only", "object.spec.template.metadata.labels.test == '123'")
		w.newDefensePolicy(ctx, p, v1alpha1.ReasonInForce)
		w.newDefensePolicy(ctx, atAdmission(other, "nothing", "false"), v1alpha1.ReasonInForce)
		By("refusing")
		refused := func(name string) string {
			return `admission webhook "pdeployment.kb.io" denied the request: deployment ` + name + " is refused by the check " +
				ns + "/first-only/health: this is not for " + ns + "; ask the platform"
		}
		patch := `{"spec":{"template":{"metadata":{"labels":{"test":"third"}}}}}`
		Eventually(func(g Gomega) {
			out, err := w.tryKubectl(ctx, "-n", ns, "patch", "deployment", "web", "--dry-run=server", "-p", patch)
			g.Expect(err).To(HaveOccurred(), out)
			g.Expect(out).To(ContainSubstring(refused("web")))
		}).WithContext(ctx).Should(Succeed())
		out, err := w.tryKubectl(ctx, "-n", ns, "patch", "deployment", "web", "-p", patch)
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring(refused("web")))
		Expect(w.api.Create(ctx, sleeper(ns, "new").TemplateLabel("test", "third").Obj())).To(MatchError(ContainSubstring(refused("new"))))
		By("scaling and labelling a version that would be refused")
		w.kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=3")
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", "team=x")
		w.rolledOut(ctx, ns, "web")
		By("refusing everything, and undoing")
		p.Spec.Checks[0].Cel.Rules[0].Expression = "false"
		Expect(w.api.Update(ctx, p)).To(Succeed())
		patch = `{"spec":{"template":{"metadata":{"labels":{"test":"123"}}}}}`
		Eventually(func(g Gomega) {
			out, err := w.tryKubectl(ctx, "-n", ns, "patch", "deployment", "web", "--dry-run=server", "-p", patch)
			g.Expect(err).To(HaveOccurred(), out)
			g.Expect(out).To(ContainSubstring(refused("web")))
		}).WithContext(ctx).Should(Succeed())
		w.block(ctx, ns, "web")
		Expect(w.patchTemplate(ctx, ns, "web", "123")).To(Succeed())
		w.wentBack(ctx, ns, "web", bad["web"], good["web"])
		w.kubectl(ctx, "-n", ns, "annotate", "deployment", "api", v1alpha1.RollbackToAnnotation+"=last-success")
		w.rolledBackTo(ctx, ns, "api", good["api"])
		w.restful(ctx, ns)
	})

	It("run a Job once a team lets the operator, and suspend a release whose Job fails", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		w.verified(ctx, ns, "web")
		cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "smoke", Labels: map[string]string{
			v1alpha1.CheckTemplateMark: "true",
		}}}
		cron.Spec.Schedule, cron.Spec.Suspend = "0 0 1 1 *", ptr.To(true)
		cron.Spec.JobTemplate.Spec.BackoffLimit = ptr.To[int32](0)
		cron.Spec.JobTemplate.Spec.Template.Spec = corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "smoke", Image: "busybox"}},
		}
		Expect(w.api.Create(ctx, cron)).To(Succeed())
		p := healthPolicy(ns, "smoke-test", func(c *v1alpha1.PolicyCheck) {
			c.PodHealth, c.Name, c.Stage, c.Job = nil, "smoke", v1alpha1.StageReleasePost, &v1alpha1.JobCheck{CronJob: "smoke"}
			c.Deadline = &metav1.Duration{Duration: 10 * time.Second}
		})
		w.newDefensePolicy(ctx, p, v1alpha1.ReasonInForce)
		check := func(g Gomega) *v1alpha1.CheckStatus {
			c := record.FindCheck(w.currentChange(ctx, g, ns, "web").Status.Checks, ns+"/smoke-test/smoke")
			g.Expect(c).NotTo(BeNil())
			return c
		}
		By("releasing without the right to create Jobs")
		Expect(w.patchTemplate(ctx, ns, "web", "unchecked")).To(Succeed())
		w.verified(ctx, ns, "web")
		c := check(Default)
		Expect(*c).To(And(HaveField("Phase", v1alpha1.CheckError), HaveField("Reason", v1alpha1.ReasonJobNotCreated)))
		_, command, found := strings.Cut(c.Message, ": kubectl ")
		Expect(found).To(BeTrue(), c.Message)
		w.kubectl(ctx, strings.Fields(command)...)
		p.Spec.Checks[0].Deadline = &metav1.Duration{Duration: 10 * time.Minute}
		Expect(w.api.Update(ctx, p)).To(Succeed())
		for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
			By("releasing, and ending the pod of the Job as " + string(phase))
			Expect(w.patchTemplate(ctx, ns, "web", strings.ToLower(string(phase)))).To(Succeed())
			Eventually(func(g Gomega) {
				var pods corev1.PodList
				c := check(g)
				g.Expect(c.JobName).NotTo(BeEmpty())
				g.Expect(w.api.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels{batchv1.JobNameLabel: c.JobName})).To(Succeed())
				g.Expect(pods.Items).To(HaveLen(1))
				g.Expect(pods.Items[0].Spec.Containers[0].Env).To(ContainElement(And(
					HaveField("Name", "ALTERSHIELD_PODS"), HaveField("Value", MatchRegexp(`^[0-9a-f.:]+,[0-9a-f.:]+$`)))))
				g.Expect(pods.Items[0].Status.Phase).To(Equal(corev1.PodRunning))
				g.Expect(w.patchPodStatus(ctx, &pods.Items[0], fmt.Sprintf(`{"status":{"phase":%q}}`, phase))).To(Succeed())
			}).WithContext(ctx).Should(Succeed())
			if phase == corev1.PodSucceeded {
				w.verified(ctx, ns, "web")
				Expect(check(Default).Phase).To(Equal(v1alpha1.CheckPassed))
			}
		}
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(*check(Default)).To(And(HaveField("Phase", v1alpha1.CheckFailed), HaveField("Message", ContainSubstring("BackoffLimitExceeded"))))
		Expect(w.patchTemplate(ctx, ns, "web", "denied")).To(MatchError(ContainSubstring("deployment web is suspended")))
	})

	It("call pods, and suspend a release whose pods answer badly", func(ctx SpecContext) {
		ip, port, requests := podServer(ctx, http.StatusServiceUnavailable)
		ns := w.newNamespace(ctx, true)
		probe := v1alpha1.ProbeCheck{HTTP: &v1alpha1.HTTPProbe{Port: port, Path: "/healthz"}}
		w.newDefensePolicy(ctx, probePolicy(ns, probe), v1alpha1.ReasonInForce)
		pod := w.probed(ctx, ns, ip, port)
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(w.checksOf(ctx, Default, ns, "web", ns+"/answers/healthz")).To(ConsistOf(And(
			HaveField("Phase", v1alpha1.CheckFailed), HaveField("Reason", "HTTP503"), HaveField("FailedPods", ConsistOf(pod)))))
		message := fmt.Sprintf("pod %s: GET /healthz on port %d was answered 503, and not 200-399, 3 times in a row", pod, port)
		Expect(change.Status.DefenseCheckFailPods).To(ConsistOf(And(
			HaveField("Pod", pod), HaveField("Message", ns+"/answers/healthz: "+message))))
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		Eventually(func(g Gomega) {
			events := w.kubectl(ctx, "-n", ns, "get", "events", "--field-selector", "reason="+v1alpha1.EventCheckFailed,
				"-o", "jsonpath={.items[*].message}")
			g.Expect(events).To(ContainSubstring(message))
		}).WithContext(ctx).Should(Succeed())
		Expect(requests.Load()).To(BeEquivalentTo(3))
	})
})
