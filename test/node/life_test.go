//go:build linux

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

package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/nodes"
)

// life has the specs in which the operator, or a node it runs on, fails while releases are in progress.
func life() {
	var flight *inFlight

	BeforeAll(func(ctx SpecContext) {
		observe(time.Now())
		DeferCleanup(func() { watcher.Stop() })
		ready(ctx)
		flight = takeOff(ctx)
	}, NodeTimeout(5*time.Minute))

	const powerCycle = "goes on after a power cycle of the whole cluster"
	JustAfterEach(func(ctx SpecContext) {
		expectInvariants(ctx)
		if !CurrentSpecReport().Failed() {
			expectFinished(ctx, flight.ns)
		}
	}, NodeTimeout(4*time.Minute))
	judgeGaps(map[string][]string{powerCycle: {anyGap}}) // an API server that starts has no earlier version for a watch

	It("goes on when the leader's pod is deleted", func(ctx SpecContext) {
		flight.release(ctx, "deleted")
		old := leader(ctx)
		kubectl(ctx, "-n", operatorNamespace, "delete", "pod", old, "--wait=false")
		took := anotherLeads(ctx, old)
		flight.lands(ctx)
		AddReportEntry("from the deletion to the next leader", took.String())
		ready(ctx)
	}, SpecTimeout(5*time.Minute))

	It("goes on when the leader is killed", func(ctx SpecContext) {
		flight.release(ctx, "killed")
		old := leader(ctx)
		task(ctx, old, "kill", "-s", "SIGKILL")
		// The same pod may lead again, with a new process that waits as long.
		flight.lands(ctx)
		ready(ctx)
		Expect(pod(ctx, operatorNamespace, old).Status.ContainerStatuses[0].RestartCount).To(BeNumerically(">", 0))
	}, SpecTimeout(5*time.Minute))

	It("goes on with the image of a release, asked for by its digest, that was imported from an archive", func(ctx SpecContext) {
		flight.release(ctx, "by-digest")
		kubectl(ctx, "-n", operatorNamespace, "set", "image", operator, "manager="+releasedImage)
		installed(ctx)
		flight.lands(ctx)
		ready(ctx)
		Expect(pod(ctx, operatorNamespace, leader(ctx)).Spec.Containers[0].Image).To(Equal(releasedImage))
	}, SpecTimeout(8*time.Minute))

	It("goes on when a node is drained", func(ctx SpecContext) {
		flight.release(ctx, "drained")
		node := pod(ctx, operatorNamespace, leader(ctx)).Spec.NodeName
		kubectl(ctx, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
		flight.lands(ctx)
		kubectl(ctx, "uncordon", node)
		ready(ctx)
	}, SpecTimeout(8*time.Minute))

	It("goes on when the leader's node dies, and when the node comes back", func(ctx SpecContext) {
		// The death of the first node is the death of the cluster: the control plane is there.
		kubectl(ctx, "cordon", "node-1")
		if old := leader(ctx); pod(ctx, operatorNamespace, old).Spec.NodeName == "node-1" {
			kubectl(ctx, "-n", operatorNamespace, "delete", "pod", old)
			anotherLeads(ctx, old)
		}
		kubectl(ctx, "uncordon", "node-1")
		flight.release(ctx, "node-died")
		old := leader(ctx)
		node := pod(ctx, operatorNamespace, old).Spec.NodeName
		Expect(cluster.Kill(node)).To(Succeed())
		took := anotherLeads(ctx, old)
		AddReportEntry("from the death of the leader's node to the next leader", took.String())
		flight.lands(ctx)
		Expect(cluster.Boot(ctx, node)).To(Succeed())
		noneLeft(ctx)
		ready(ctx)
		flight.lands(ctx)
	}, SpecTimeout(10*time.Minute))

	It("does not roll back a release just after a node died, and the node comes back", func(ctx SpecContext) {
		ns := newNamespace(ctx, "dead-node")
		create(ctx, plain(ns, "patient", 3).MinReadySeconds(5).With(patient))
		eventuallyState(ctx, ns, "patient", v1alpha1.ChangeWorkloadSuccess)
		node := withoutLeader(ctx)
		others := slices.DeleteFunc(nodes.Nodes(), func(name string) bool { return name == node })
		// The first new pod goes to the dead node, which is not known to be unreachable yet.
		kubectl(ctx, append([]string{"cordon"}, others...)...)
		Expect(cluster.Kill(node)).To(Succeed())
		Expect(patchTemplate(ctx, ns, "patient", "node-died-before")).To(Succeed())
		waits := func(g Gomega) {
			var pods corev1.PodList
			g.Expect(api.List(ctx, &pods, client.InNamespace(ns))).To(Succeed())
			g.Expect(slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
				return p.Spec.NodeName == node && p.Status.StartTime == nil && p.DeletionTimestamp == nil
			})).To(BeTrue(), "no pod waits for a dead node")
		}
		Eventually(waits).WithContext(ctx).Should(Succeed())
		kubectl(ctx, append([]string{"uncordon"}, others...)...)
		// A failing release would be rolled back at this moment.
		Eventually(func(g Gomega) {
			c := meta.FindStatusCondition(current(ctx, g, ns, "patient").Status.Conditions, v1alpha1.ConditionRolledBack)
			g.Expect(c).NotTo(BeNil())
			g.Expect(c.Reason).To(Equal(v1alpha1.ReasonStillWaiting))
			g.Expect(c.Message).To(ContainSubstring("node " + node))
		}).WithContext(ctx).WithTimeout(4 * time.Minute).Should(Succeed())
		waits(Default)
		Expect(cluster.Boot(ctx, node)).To(Succeed())
		change := eventuallyState(ctx, ns, "patient", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Spec.Release).To(BeEquivalentTo(2))
		Expect(getDeployment(ctx, Default, ns, "patient").Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation), "it was rolled back")
		noneLeft(ctx)
		ready(ctx)
		flight.lands(ctx)
		expectFinished(ctx, ns)
	}, SpecTimeout(12*time.Minute))

	It(powerCycle, func(ctx SpecContext) {
		flight.release(ctx, "power-cycle")
		Expect(cluster.Kill(nodes.Nodes()...)).To(Succeed())
		Expect(cluster.Boot(ctx, nodes.Nodes()...)).To(Succeed())
		ready(ctx)
		flight.lands(ctx)
	}, SpecTimeout(10*time.Minute))
}

// inFlight has three Deployments: in the middle of a release, at rest, and blocked.
type inFlight struct{ ns string }

// takeOff creates the Deployments.
func takeOff(ctx context.Context) *inFlight {
	GinkgoHelper()
	f := &inFlight{ns: newNamespace(ctx, "flight")}
	for _, name := range []string{"released", "resting", "blocked"} {
		create(ctx, plain(f.ns, name, 3).MinReadySeconds(5))
	}
	for _, name := range []string{"released", "resting", "blocked"} {
		eventuallyState(ctx, f.ns, name, v1alpha1.ChangeWorkloadSuccess)
	}
	kubectl(ctx, "-n", f.ns, "label", "deployment", "blocked", v1alpha1.SuspendLabel+"=1700000000")
	return f
}

// release begins a release, and returns when it is in progress.
func (f *inFlight) release(ctx context.Context, value string) {
	GinkgoHelper()
	before := getDeployment(ctx, Default, f.ns, "released").Labels[v1alpha1.VersionLabel]
	Expect(patchTemplate(ctx, f.ns, "released", value)).To(Succeed())
	Eventually(func(g Gomega) {
		d := getDeployment(ctx, g, f.ns, "released")
		g.Expect(d.Labels[v1alpha1.VersionLabel]).NotTo(Equal(before))
		g.Expect(d.Status.UpdatedReplicas).To(BeNumerically(">", 0))
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
	}).WithContext(ctx).Should(Succeed())
}

// lands waits until the release has succeeded, and checks that nothing else
// changed: nothing was rolled back, and the block is still there.
func (f *inFlight) lands(ctx context.Context) {
	GinkgoHelper()
	for _, name := range []string{"released", "resting", "blocked"} {
		Eventually(func(g Gomega) {
			d := getDeployment(ctx, g, f.ns, name)
			g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation), "it was rolled back")
			g.Expect(d.Status.AvailableReplicas).To(Equal(*d.Spec.Replicas))
			g.Expect(d.Status.UpdatedReplicas).To(Equal(*d.Spec.Replicas))
			g.Expect(current(ctx, g, f.ns, name).Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).WithTimeout(4*time.Minute).Should(Succeed(), name)
	}
	Eventually(func() string {
		out, _ := tryKubectl(ctx, "-n", f.ns, "rollout", "restart", "deployment/blocked") // it must be denied
		return out
	}).WithContext(ctx).Should(ContainSubstring("deployment blocked is suspended"))
}

func pod(ctx context.Context, ns, name string) *corev1.Pod {
	GinkgoHelper()
	var p corev1.Pod
	Expect(api.Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, &p)).To(Succeed())
	return &p
}

// operatorPods returns the pods of the operator that are not terminating.
func operatorPods(ctx context.Context, g Gomega) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	labels := client.MatchingLabels{"control-plane": "controller-manager"}
	g.Expect(api.List(ctx, &list, client.InNamespace(operatorNamespace), labels)).To(Succeed())
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// ready waits until both replicas of the operator are ready, and one of them leads.
func ready(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var d appsv1.Deployment
		_, name, _ := strings.Cut(operator, "/")
		g.Expect(api.Get(ctx, types.NamespacedName{Namespace: operatorNamespace, Name: name}, &d)).To(Succeed())
		g.Expect(d.Status.ReadyReplicas).To(Equal(*d.Spec.Replicas))
		pods := operatorPods(ctx, g)
		g.Expect(pods).To(HaveLen(int(*d.Spec.Replicas)))
		lease := theLease(ctx, g)
		g.Expect(slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == holder(lease) })).To(BeTrue())
		g.Expect(time.Since(lease.Spec.RenewTime.Time)).To(BeNumerically("<", 10*time.Second))
	}).WithContext(ctx).WithTimeout(5 * time.Minute).Should(Succeed())
}

func theLease(ctx context.Context, g Gomega) *coordinationv1.Lease {
	GinkgoHelper()
	var lease coordinationv1.Lease
	g.Expect(api.Get(ctx, types.NamespacedName{Namespace: operatorNamespace, Name: "altershield-operator"}, &lease)).To(Succeed())
	return &lease
}

func holder(lease *coordinationv1.Lease) string {
	name, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return name
}

// leader returns the name of the leading pod.
func leader(ctx context.Context) string {
	GinkgoHelper()
	return holder(theLease(ctx, Default))
}

// patient lets pods stay on an unreachable node for as long as they do in most clusters. In this cluster the default is shorter.
func patient(d *appsv1.Deployment) {
	for _, taint := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		d.Spec.Template.Spec.Tolerations = append(d.Spec.Template.Spec.Tolerations, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300),
		})
	}
}

// withoutLeader returns a node that may die without the leader or the control plane.
func withoutLeader(ctx context.Context) string {
	GinkgoHelper()
	of := pod(ctx, operatorNamespace, leader(ctx)).Spec.NodeName
	for _, name := range nodes.Nodes()[1:] {
		if name != of {
			return name
		}
	}
	Fail("there is no such node")
	return ""
}

// anotherLeads waits until another pod leads, and returns how long it took.
func anotherLeads(ctx context.Context, old string) time.Duration {
	GinkgoHelper()
	began := time.Now()
	Eventually(func(g Gomega) { g.Expect(holder(theLease(ctx, g))).NotTo(BeElementOf(old, "")) }).WithContext(ctx).Should(Succeed())
	return time.Since(began).Round(100 * time.Millisecond)
}

// noneLeft waits until no pod is terminating.
func noneLeft(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var list corev1.PodList
		g.Expect(api.List(ctx, &list)).To(Succeed())
		var leaving []string
		for _, p := range list.Items {
			if p.DeletionTimestamp != nil {
				leaving = append(leaving, fmt.Sprintf("%s/%s", p.Namespace, p.Name))
			}
		}
		g.Expect(leaving).To(BeEmpty())
	}).WithContext(ctx).Should(Succeed())
}
