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
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/defense"
	defaults "github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/verify"
)

const staysUp = controlplane.ManagerNamespace + "/default/stays-up"

// healthPolicy is a policy of a namespace with one check of the health of pods.
func healthPolicy(ns, name string, with func(*v1alpha1.PolicyCheck)) *v1alpha1.DefensePolicy {
	p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	p.Spec.Checks = []v1alpha1.PolicyCheck{{
		Name: "health", PodHealth: &v1alpha1.PodHealthCheck{Duration: &metav1.Duration{Duration: 3 * time.Second}},
	}}
	with(&p.Spec.Checks[0])
	return p
}

// atAdmission is a policy of a namespace that refuses by a rule.
func atAdmission(ns, name, rule string) *v1alpha1.DefensePolicy {
	p := healthPolicy(ns, name, func(c *v1alpha1.PolicyCheck) {
		c.PodHealth, c.Stage = nil, v1alpha1.StageAdmission
		c.Cel = &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: rule, Message: "this is not for " + ns}}}
	})
	p.Spec.Suggestion = "ask the platform"
	return p
}

// newDefensePolicy makes a policy, and waits until it is accepted, or not.
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

// withoutDefaultPolicy turns the default policy off for the time of a spec that lets
// pods crash for another reason. In the shared world the spec has to be Serial: the
// policy is that of all others, too.
func (w *world) withoutDefaultPolicy(ctx context.Context) {
	GinkgoHelper()
	set := func(ctx context.Context, mode v1alpha1.PolicyMode) {
		w.kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", "dpol", defaults.DefaultName, "--type", "merge", "-p", `{"spec":{"mode":"`+string(mode)+`"}}`)
	}
	set(ctx, v1alpha1.ModeDisabled)
	DeferCleanup(set, v1alpha1.ModeEnforce)
}

// behaves lets the first pod of a Deployment behave in a way from now on, and returns
// its name.
func (w *world) behaves(ctx context.Context, ns, name, behavior string) string {
	GinkgoHelper()
	for _, pod := range w.podsOf(ctx, Default, ns, name) {
		w.kubectl(ctx, "-n", ns, "label", "pod", pod.Name, controlplane.BehaviorLabel+"="+behavior)
		return pod.Name
	}
	Fail("there is no pod")
	return ""
}

// checksOf are the checks of the batches of the current release that have this name.
func (w *world) checksOf(ctx context.Context, g Gomega, ns, name, check string) (checks []v1alpha1.CheckStatus) {
	GinkgoHelper()
	for _, b := range w.batchesOf(ctx, g, w.currentChange(ctx, g, ns, name)) {
		if c := defense.FindCheck(b.Status.Checks, check); c != nil {
			checks = append(checks, *c)
		}
	}
	return checks
}

// podServer serves HTTP at an address of this machine that may be that of a pod, so that
// the manager may call it. It counts the requests.
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
		if verify.NewGuard("")(ctx, network, net.JoinHostPort(of.IP.String(), "80"), nil) != nil {
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
	Skip("this machine has no address that may be that of a pod")
	return "", 0, nil
}

// probed makes a Deployment of a pod that has this IP, and a container with this port,
// and returns the name of the pod.
func (w *world) probed(ctx context.Context, ns, ip string, port int32) (name string) {
	GinkgoHelper()
	// Such pods have no IP until they are told to go on.
	w.create(ctx, sleeper(ns, "web").Replicas(1).TemplateLabel(controlplane.BehaviorLabel, controlplane.BehaviorVolume).Container(func(c *corev1.Container) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: port}}
	}))
	Eventually(func(g Gomega) {
		pods := w.podsOf(ctx, g, ns, "web")
		g.Expect(pods).To(HaveLen(1))
		for _, pod := range pods {
			g.Expect(pod.Spec.NodeName).NotTo(BeEmpty())
			name = pod.Name
			w.kubectl(ctx, "-n", ns, "patch", "pod", name, "--subresource=status", "--type=merge", "-p", `{"status":{"podIP":"`+ip+`","podIPs":[{"ip":"`+ip+`"}]}}`)
			w.kubectl(ctx, "-n", ns, "label", "pod", name, controlplane.BehaviorLabel+"-")
		}
	}).WithContext(ctx).Should(Succeed())
	return name
}

// probePolicy is a policy of a namespace that calls what is on a port.
func probePolicy(ns string, probe v1alpha1.ProbeCheck) *v1alpha1.DefensePolicy {
	return healthPolicy(ns, "answers", func(c *v1alpha1.PolicyCheck) {
		probe.Interval, probe.Successes, probe.Failures = &metav1.Duration{Duration: time.Second}, 3, 3
		c.Name, c.PodHealth, c.Probe, c.OnError = "healthz", nil, &probe, v1alpha1.SilenceFails
	})
}

var _ = Describe("policies", func() {
	w := inSharedWorld()

	It("are there from the beginning: one, which enforces and is accepted", func(ctx SpecContext) {
		var p v1alpha1.DefensePolicy
		Eventually(func(g Gomega) {
			g.Expect(w.api.Get(ctx, types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: defaults.DefaultName}, &p)).To(Succeed())
			g.Expect(conditionOf(p.Status.Conditions, v1alpha1.ConditionAccepted)).To(HaveField("Reason", v1alpha1.ReasonInForce))
		}).WithContext(ctx).Should(Succeed())
		Expect(p.Spec.Mode).To(Equal(v1alpha1.ModeEnforce))
		Expect(w.kubectl(ctx, "-n", controlplane.ManagerNamespace, "get", "dpol", "default")).To(MatchRegexp(`default\s+Enforce\s+True`))
	})

	It("suspend a release that is verified, and crashes then", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		w.verified(ctx, ns, "web")
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		change := w.verified(ctx, ns, "web")
		for _, b := range w.batchesOf(ctx, Default, change) {
			Expect(b.Status.Message).To(BeEquivalentTo(v1alpha1.ChangePodMessageSkipped), "nothing is waited for")
		}
		Expect(w.checksOf(ctx, Default, ns, "web", staysUp)).To(HaveEach(HaveField("Phase", v1alpha1.CheckWatching)))

		pod := w.behaves(ctx, ns, "web", "crash-loop")
		change = w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(change.Status.DefenseCheckFailPods).To(ConsistOf(And(
			HaveField("Pod", pod), HaveField("Message", HavePrefix(staysUp+": pod "+pod+": container sleep crashes again and again")))))
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		Expect(w.patchTemplate(ctx, ns, "web", "third")).To(MatchError(ContainSubstring("deployment web is suspended")))
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElements(v1alpha1.EventCheckFailed, "ReleaseSuspended"))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.kubectl(ctx, "-n", ns, "get", "changepods", "-o", "wide")).To(ContainSubstring(staysUp))
	})

	It("hold a release up for a check that is waited for, and pass its pods", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.newDefensePolicy(ctx, healthPolicy(ns, "soak", func(*v1alpha1.PolicyCheck) {}), v1alpha1.ReasonInForce)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		change := w.verified(ctx, ns, "web")
		for _, b := range w.batchesOf(ctx, Default, change) {
			Expect(b.Status.Message).To(BeEquivalentTo(v1alpha1.ChangePodMessagePostFinish))
			Expect(b.Status.PodResults).To(HaveEach(HaveField("Verdict", "pass")))
		}
		checks := w.checksOf(ctx, Default, ns, "web", ns+"/soak/health")
		Expect(checks).To(And(HaveLen(2), HaveEach(HaveField("Phase", v1alpha1.CheckPassed))))
		for _, c := range checks {
			Expect(c.CompletionTime.Sub(c.StartTime.Time)).To(BeNumerically(">=", 3*time.Second))
		}
	})

	It("only tell while they observe", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		p := healthPolicy(ns, "trial", func(c *v1alpha1.PolicyCheck) {
			c.PodHealth.MaxReadinessLosses, c.PodHealth.Duration = ptr.To[int32](0), &metav1.Duration{Duration: 5 * time.Minute}
		})
		p.Spec.Mode = v1alpha1.ModeObserve
		w.newDefensePolicy(ctx, p, v1alpha1.ReasonInForce)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		w.verified(ctx, ns, "web")
		w.behaves(ctx, ns, "web", "never-ready")
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement(v1alpha1.EventWouldFail))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.currentChange(ctx, Default, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
	})

	It("fail pods by rules, and are refused with the place of an expression that is wrong", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		byRule := func(name, rule string) *v1alpha1.DefensePolicy {
			return healthPolicy(ns, name, func(c *v1alpha1.PolicyCheck) {
				c.PodHealth, c.Cel = nil, &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: rule, Message: "it is the second version"}}}
			})
		}
		wrong := byRule("wrong", "has(")
		w.newDefensePolicy(ctx, wrong, v1alpha1.ReasonInvalidPolicy)
		Expect(conditionOf(wrong.Status.Conditions, v1alpha1.ConditionAccepted).Message).To(HavePrefix("spec.checks[0].cel.rules[0].expression: "))
		w.newDefensePolicy(ctx, byRule("first-only",
			"pod.metadata.ownerReferences[0].kind == 'ReplicaSet' && release.workload == workload.metadata.name && (oldTemplate == null || oldTemplate == newTemplate)"),
			v1alpha1.ReasonInForce)
		w.create(ctx, sleeper(ns, "web"))
		w.verified(ctx, ns, "web")
		Expect(w.checksOf(ctx, Default, ns, "web", ns+"/first-only/health")).To(ConsistOf(HaveField("Phase", v1alpha1.CheckPassed)))
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(change.Status.DefenseCheckFailPods).To(ConsistOf(HaveField("Message", HaveSuffix(": it is the second version"))))
	})

	DescribeTable("check a release as a whole", func(ctx SpecContext, stage v1alpha1.PolicyStage) {
		ns := w.newNamespace(ctx, true)
		w.newDefensePolicy(ctx, healthPolicy(ns, "policy", func(c *v1alpha1.PolicyCheck) {
			c.Name, c.Stage, c.PodHealth = "first-only", stage, nil
			c.Cel = &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{
				Expression: "release.workload == workload.metadata.name && (oldTemplate == null || oldTemplate == newTemplate)", Message: "it is the second version",
			}}}
		}), v1alpha1.ReasonInForce)
		check := ns + "/policy/first-only"
		w.create(ctx, sleeper(ns, "web"))
		w.verified(ctx, ns, "web")
		Expect(w.currentChange(ctx, Default, ns, "web").Status.Checks).To(ConsistOf(
			And(HaveField("Name", check), HaveField("Stage", stage), HaveField("Phase", v1alpha1.CheckPassed), HaveField("CompletionTime", Not(BeNil()))),
		))
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionVerified)).To(And(
			HaveField("Status", metav1.ConditionFalse), HaveField("Reason", v1alpha1.ReasonCheckFailed),
			HaveField("Message", HavePrefix("the check "+check+": it is the second version")), // and that other pods are verified still
		))
		Eventually(func(g Gomega) {
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement(v1alpha1.EventCheckFailed))
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "third")).To(MatchError(ContainSubstring("is suspended")))

		By("correcting its verdict")
		checks := change.Status.Checks
		for i := range checks {
			checks[i].Phase = v1alpha1.CheckPassed
		}
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"checks": checks}})
		Expect(err).NotTo(HaveOccurred())
		Expect(w.api.Status().Patch(ctx, change, client.RawPatch(types.MergePatchType, patch))).To(Succeed())
		w.verified(ctx, ns, "web")
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
	},
		Entry("when it begins", v1alpha1.StageReleasePre),
		Entry("when its pods have passed", v1alpha1.StageReleasePost),
	)

	It("refuse a release at once, and nothing that is none, or goes back", func(ctx SpecContext) {
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
			return `admission webhook "pdeployment.kb.io" denied the request: deployment ` + name + " is refused by the check " + ns + "/first-only/health: this is not for " + ns + "; ask the platform"
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
		By("scaling and labelling what would not be released again")
		w.kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=3")
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", "team=x")
		w.rolledOut(ctx, ns, "web")
		By("refusing everything, and going back")
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

	// Serial: it stops the manager, which is that of all specs of the shared world.
	It("that were not asked suspend the release when it begins", Serial, func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		w.create(ctx, sleeper(ns, "who").Replicas(2))
		w.verified(ctx, ns, "web")
		w.verified(ctx, ns, "who")
		w.newDefensePolicy(ctx, atAdmission(ns, "first-only",
			"request.operation == 'UPDATE' && request.name == object.metadata.name && namespaceObject.metadata.name == object.metadata.namespace && "+
				"oldObject.spec.template.metadata.labels.test == '123' && object.spec.template.metadata.labels.test == 'second'"), v1alpha1.ReasonInForce)
		w.newDefensePolicy(ctx, atAdmission(ns, "who", "object.metadata.name == 'web' || request.userInfo.username != 'nobody'"), v1alpha1.ReasonInForce)
		w.withoutManager(ctx, func() {
			Expect(w.patchTemplate(ctx, ns, "web", "third")).To(Succeed())
			Expect(w.patchTemplate(ctx, ns, "who", "second")).To(Succeed())
		})
		By("suspending what would have been refused")
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(*defense.FindCheck(change.Status.Checks, ns+"/first-only/health")).To(And(
			HaveField("Stage", v1alpha1.StageReleasePre), HaveField("Phase", v1alpha1.CheckFailed), HaveField("Message", "this is not for "+ns+"; ask the platform")))
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		By("letting pass what cannot be known any more, and what is good")
		change = w.verified(ctx, ns, "who")
		Expect(*defense.FindCheck(change.Status.Checks, ns+"/first-only/health")).To(HaveField("Phase", v1alpha1.CheckPassed))
		Expect(*defense.FindCheck(change.Status.Checks, ns+"/who/health")).To(And(
			HaveField("Phase", v1alpha1.CheckError), HaveField("Message", ContainSubstring("its user is not known"))))
		By("not what admission saw")
		Expect(w.patchTemplate(ctx, ns, "who", "second-again")).To(MatchError(ContainSubstring("is refused by the check " + ns + "/first-only/health")))
		w.restful(ctx, ns)
	})

	It("of a namespace take nothing away from those of the operator, and are refused where they reach out", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		off := healthPolicy(ns, "default", func(c *v1alpha1.PolicyCheck) { c.Name = "stays-up" })
		off.Spec.Mode = v1alpha1.ModeDisabled
		w.newDefensePolicy(ctx, off, v1alpha1.ReasonInForce)
		reaching := healthPolicy(ns, "reaching", func(*v1alpha1.PolicyCheck) {})
		reaching.Spec.NamespaceSelector = &metav1.LabelSelector{}
		w.newDefensePolicy(ctx, reaching, v1alpha1.ReasonInvalidPolicy)
		w.create(ctx, sleeper(ns, "web"))
		w.verified(ctx, ns, "web")
		Expect(w.checksOf(ctx, Default, ns, "web", staysUp)).To(HaveLen(1))
		Expect(w.checksOf(ctx, Default, ns, "web", ns+"/reaching/health")).To(BeEmpty())
	})

	It("call pods, and suspend a release whose pods answer badly", func(ctx SpecContext) {
		ip, port, requests := podServer(ctx, http.StatusServiceUnavailable)
		ns := w.newNamespace(ctx, true)
		w.newDefensePolicy(ctx, probePolicy(ns, v1alpha1.ProbeCheck{HTTP: &v1alpha1.HTTPProbe{Port: port, Path: "/healthz"}}), v1alpha1.ReasonInForce)
		pod := w.probed(ctx, ns, ip, port)
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(w.checksOf(ctx, Default, ns, "web", ns+"/answers/healthz")).To(ConsistOf(And(
			HaveField("Phase", v1alpha1.CheckFailed), HaveField("Reason", "HTTP503"), HaveField("FailedPods", ConsistOf(pod)))))
		told := fmt.Sprintf("pod %s: GET /healthz on port %d was answered 503, and not 200-399, 3 times in a row", pod, port)
		Expect(change.Status.DefenseCheckFailPods).To(ConsistOf(And(HaveField("Pod", pod), HaveField("Message", ns+"/answers/healthz: "+told))))
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
		Eventually(func(g Gomega) {
			g.Expect(w.kubectl(ctx, "-n", ns, "get", "events", "--field-selector", "reason="+v1alpha1.EventCheckFailed, "-o", "jsonpath={.items[*].message}")).To(ContainSubstring(told))
		}).WithContext(ctx).Should(Succeed())
		Expect(requests.Load()).To(BeEquivalentTo(3))
	})

	It("call pods, and pass those that answer well, as soon as they did", func(ctx SpecContext) {
		ip, port, requests := podServer(ctx, http.StatusOK)
		ns := w.newNamespace(ctx, true)
		w.newDefensePolicy(ctx, probePolicy(ns, v1alpha1.ProbeCheck{HTTP: &v1alpha1.HTTPProbe{Port: port, Path: "/healthz"}}), v1alpha1.ReasonInForce)
		w.probed(ctx, ns, ip, port)
		w.verified(ctx, ns, "web")
		checks := w.checksOf(ctx, Default, ns, "web", ns+"/answers/healthz")
		Expect(checks).To(ConsistOf(HaveField("Phase", v1alpha1.CheckPassed)))
		// Three calls a second apart, and the timeout of one.
		Expect(checks[0].CompletionTime.Time).To(BeTemporally("<=", checks[0].DueTime.Time))
		Expect(requests.Load()).To(BeEquivalentTo(3))
	})

	It("do not call a Service that may lead elsewhere, and say what to do", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		Expect(w.api.Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}, Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
		}})).To(Succeed())
		p := probePolicy(ns, v1alpha1.ProbeCheck{Target: v1alpha1.ProbeService, Service: "web", HTTP: &v1alpha1.HTTPProbe{Port: 80}})
		p.Spec.Checks[0].Timeout, p.Spec.Checks[0].Deadline = &metav1.Duration{Duration: time.Second}, &metav1.Duration{Duration: 5 * time.Second}
		w.newDefensePolicy(ctx, p, v1alpha1.ReasonInForce)
		w.create(ctx, sleeper(ns, "web").Replicas(1))
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(w.checksOf(ctx, Default, ns, "web", ns+"/answers/healthz")).To(ConsistOf(And(
			HaveField("Phase", v1alpha1.CheckError), HaveField("Reason", v1alpha1.ReasonNotMeasured),
			HaveField("Message", ContainSubstring("Service web has not passed: it has no clusterIP: name a Service that is not headless, or probe with target Pods")))))
	})
})
