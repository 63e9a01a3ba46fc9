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
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// slowly lets a rollout replace one pod after the other.
func slowly(d *appsv1.Deployment) {
	one, zero := intstr.FromInt32(1), intstr.FromInt32(0)
	d.Spec.MinReadySeconds = 1
	d.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &zero},
	}
}

// inFlight begins a Deployment whose rollouts go as far as the porter of its namespace lets them.
func inFlight(ns, name string) *wrappers.DeploymentWrapper {
	return sleeper(ns, name).With(slowly, gated)
}

// failInFlight creates a Deployment of inFlight, releases it again and fails the first batch in the middle of the rollout. It returns the
// failed release.
func (w *world) failInFlight(ctx context.Context, d *wrappers.DeploymentWrapper) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	ns, name := d.Obj().Namespace, d.Obj().Name
	p := w.startPorter(ns)
	w.create(ctx, d)
	w.eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuccess)
	p.let(1)
	Expect(w.patchTemplate(ctx, ns, name, "bad")).To(Succeed())
	Eventually(func(g Gomega) {
		change := w.currentChange(ctx, g, ns, name)
		batches := w.batchesOf(ctx, g, change)
		g.Expect(batches).NotTo(BeEmpty())
		g.Expect(batches[0].Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone))
	}).WithContext(ctx).Should(Succeed())
	w.setVerdict(ctx, w.currentChange(ctx, Default, ns, name), "unpass")
	failed := w.eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuspend)
	p.letAll()
	return failed
}

// porter opens the readiness gates of a namespace's pods, as the controller of a load balancer does. A rollout waits if it lets no more
// pods through.
type porter struct {
	mu sync.Mutex
	// more is the number of pods that it still lets through; -1 is all pods.
	more int
}

// startPorter starts a porter that lets all pods through, until the end of the spec.
func (w *world) startPorter(ns string) *porter {
	p := &porter{more: -1}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ticker := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				p.open(ctx, w, ns)
			}
		}
	}()
	DeferCleanup(func() { stop(); <-stopped })
	return p
}

// open opens the gates of the waiting pods. If it fails, the next call tries again.
func (p *porter) open(ctx context.Context, w *world, ns string) {
	var list corev1.PodList
	if w.api.List(ctx, &list, client.InNamespace(ns)) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range list.Items {
		pod := &list.Items[i]
		if p.more == 0 || pod.DeletionTimestamp != nil || readyCondition(pod).Reason != "ReadinessGatesNotReady" || gateOpen(pod) {
			continue
		}
		if w.setGate(ctx, pod, corev1.ConditionTrue) == nil && p.more > 0 {
			p.more--
		}
	}
}

func gateOpen(pod *corev1.Pod) bool {
	return conditionIsTrue(pod, gate)
}

// let lets n more pods through.
func (p *porter) let(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.more = n
}

func (p *porter) letAll() { p.let(-1) }

// revisionsOf returns the versions in a Deployment's history, oldest first.
func (w *world) revisionsOf(ctx context.Context, g Gomega, ns, name string) []appsv1.ControllerRevision {
	GinkgoHelper()
	var list appsv1.ControllerRevisionList
	g.Expect(w.api.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{v1alpha1.DeploymentNameLabel: name})).To(Succeed())
	return list.Items
}

// repair returns the patch of an override release.
func repair(value string) string {
	return fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`,
		v1alpha1.IgnoredSuspendLabel, value)
}

// verified waits until the current release of a Deployment is a correct Success: each pod is in one batch of this attempt, and no batch is
// open.
func (w *world) verified(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		d := w.getDeployment(ctx, g, ns, name)
		change = w.currentChange(ctx, g, ns, name)
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(change.Status.FailCount + change.Status.CheckingCount + change.Status.PreparingCount).To(BeZero())
		g.Expect(change.Status.ObservedRelease).To(Equal(change.Spec.Release))
		inBatches := map[string]int{}
		for _, b := range w.batchesOf(ctx, g, change) {
			g.Expect(b.Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone), b.Name)
			g.Expect(len(b.Spec.PodInfos)).To(BeNumerically("<=", 200))
			for _, p := range b.Spec.PodInfos {
				if b.Spec.Attempt == change.Status.Attempt {
					inBatches[p.UID]++
				}
			}
		}
		uids := w.podUIDs(ctx, g, ns, name)
		g.Expect(uids).To(HaveLen(int(*d.Spec.Replicas)))
		for _, uid := range uids {
			g.Expect(inBatches).To(HaveKeyWithValue(string(uid), 1))
		}
	}).WithContext(ctx).Should(Succeed())
	return change
}

// restful waits until the operator writes nothing in a namespace. Late writes may end; repeated writes fail the spec, however rare they
// are.
func (w *world) restful(ctx context.Context, ns string) {
	GinkgoHelper()
	resting(ctx, func() int { return w.managerWrites(ns) }, 4*time.Second)
}

var _ = Describe("the life of a release", func() {
	w := inSharedWorld()

	strategy := func(kind appsv1.DeploymentStrategyType, surge, unavailable string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: kind}
			if kind == appsv1.RollingUpdateDeploymentStrategyType {
				s, u := intstr.Parse(surge), intstr.Parse(unavailable)
				d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
			}
		}
	}
	rolling := appsv1.RollingUpdateDeploymentStrategyType

	DescribeTable("is right with any strategy", func(ctx SpecContext, replicas int, change func(*appsv1.Deployment)) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(int32(replicas)).With(change))
		w.verified(ctx, ns, "web")
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		second := w.verified(ctx, ns, "web")
		Expect(w.changesIn(ctx, Default, ns)).To(HaveKey(second.Name))
		w.restful(ctx, ns)
	},
		Entry("Recreate", 3, strategy(appsv1.RecreateDeploymentStrategyType, "", "")),
		Entry("surge of everything", 4, strategy(rolling, "100%", "0")),
	)
})
