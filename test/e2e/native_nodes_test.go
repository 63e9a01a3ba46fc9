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
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// onePerNode puts one pod on each node of a pool. The pods stay there while their node is unreachable, and end only when their kubelet ends
// them.
func onePerNode(pool string) func(spec map[string]any) {
	return func(spec map[string]any) {
		waitsAtGate(spec)
		pod := spec["template"].(map[string]any)["spec"].(map[string]any) //nolint:errcheck,forcetypeassert // as manifest makes it
		pod["terminationGracePeriodSeconds"] = int64(600)
		pod["nodeSelector"] = map[string]any{"e2e/pool": pool}
		pod["tolerations"] = []any{
			map[string]any{"key": "e2e/pool", "operator": "Exists"},
			map[string]any{"key": corev1.TaintNodeNotReady, "operator": "Exists", "effect": "NoExecute"},
			map[string]any{"key": corev1.TaintNodeUnreachable, "operator": "Exists", "effect": "NoExecute"},
		}
		pod["topologySpreadConstraints"] = []any{map[string]any{
			"maxSkew": int64(1), "topologyKey": corev1.LabelHostname, "whenUnsatisfiable": "DoNotSchedule",
			"labelSelector": map[string]any{"matchLabels": map[string]any{"app": "sleep"}},
			// An old pod and a new pod may be on one node at once.
			"matchLabelKeys": []any{"test"},
		}}
	}
}

// dies makes a node unreachable, as the node controller does: the node is Unknown and its pods are not Ready, while their containers keep
// their last state. kwok also plays pods of nodes that it no longer manages. So the pods get a behavior for
// which kwok does nothing.
func (w *world) dies(ctx context.Context, ns, node string) {
	GinkgoHelper()
	w.kubectl(ctx, "annotate", "node", node, "kwok.x-k8s.io/node-")
	now := time.Now().UTC().Format(time.RFC3339)
	w.kubectl(ctx, "patch", "node", node, "--subresource=status", "-p", fmt.Sprintf(
		`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown",`+
			`"message":"Kubelet stopped posting node status.","lastTransitionTime":%q}]}}`, now))
	for _, pod := range w.podsOn(ctx, Default, ns, node) {
		w.kubectl(ctx, "-n", ns, "label", "pod", pod.Name, controlplane.BehaviorLabel+"="+controlplane.BehaviorVolume)
		w.kubectl(ctx, "-n", ns, "annotate", "pod", pod.Name, controlplane.TerminateAfterAnnotation+"=10m")
		Eventually(func() error {
			return w.patchPodStatus(ctx, &pod,
				fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"False","lastTransitionTime":%q}]}}`, now))
		}).WithContext(ctx).Should(Succeed())
	}
}

// answers lets kwok play a node and its pods again.
func (w *world) answers(ctx context.Context, ns, node string) {
	GinkgoHelper()
	w.kubectl(ctx, "annotate", "node", node, "kwok.x-k8s.io/node=fake")
	for _, pod := range w.podsOn(ctx, Default, ns, node) {
		w.kubectl(ctx, "-n", ns, "annotate", "pod", pod.Name, controlplane.TerminateAfterAnnotation+"-")
		w.kubectl(ctx, "-n", ns, "label", "pod", pod.Name, controlplane.BehaviorLabel+"-")
	}
}

func (w *world) podsOn(ctx context.Context, g Gomega, ns, node string) (on []corev1.Pod) {
	GinkgoHelper()
	var list corev1.PodList
	g.Expect(w.api.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Spec.NodeName == node {
			on = append(on, list.Items[i])
		}
	}
	return on
}

var _ = Describe("nodes", func() {
	w := inSharedWorld()

	for _, kind := range []string{"statefulset", "daemonset"} {
		It("that die in the middle of a release of a "+kind+", and come back, are no reason to roll it back", func(ctx SpecContext) {
			ns := w.newNamespace(ctx, true)
			n, p := native{w, kind, ns}, w.startPorter(ns)
			add := func(name string) {
				GinkgoHelper()
				w.addNode(ctx, ns, name)
				w.kubectl(ctx, "label", "node", name, corev1.LabelHostname+"="+name)
			}
			for _, name := range []string{ns + "-a", ns + "-b", ns + "-c"} {
				add(name)
			}
			o := n.manifest(onePerNode(ns))
			o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + "rollback": "5s"})
			Expect(w.api.Create(ctx, o)).To(Succeed())
			n.verified(ctx, 3)

			By("losing the node of the first new pod, which was verified")
			p.let(1)
			Expect(n.release(ctx, "second")).To(Succeed())
			second := n.passed(ctx, 1)
			var node string
			for _, pod := range n.labelled(ctx, Default, "second") {
				if conditionIsTrue(&pod, corev1.PodReady) {
					node = pod.Spec.NodeName
				}
			}
			Expect(node).NotTo(BeEmpty())
			w.dies(ctx, ns, node)
			n.progress(ctx, v1alpha1.ChangeWorkloadRunning, v1alpha1.ReasonRollingOut, " of 3 ")
			Eventually(func(g Gomega) {
				// The first event may be about the next pod, which waits at its gate.
				g.Expect(n.events(ctx, g)).To(ContainElement(
					MatchRegexp("^" + v1alpha1.EventPodsUnavailable + ": .*(its node does not answer|readiness gate)")))
			}).WithContext(ctx).Should(Succeed())
			Consistently(func(g Gomega) {
				g.Expect(n.current(ctx, g).Spec.Reversion).To(Equal(second.Spec.Reversion))
				g.Expect(n.current(ctx, g).Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning))
				g.Expect(n.get(ctx, g).GetAnnotations()).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
			}).WithContext(ctx).WithTimeout(4 * time.Second).Should(Succeed())
			p.letAll()
			By("getting the node back")
			w.answers(ctx, ns, node)
			Expect(n.verified(ctx, 3).UID).To(Equal(second.UID))

			By("losing the node for good, and releasing meanwhile")
			w.dies(ctx, ns, node)
			Expect(n.release(ctx, "third")).To(Succeed())
			third := n.progress(ctx, v1alpha1.ChangeWorkloadRunning, v1alpha1.ReasonRollingOut, " of 3 ")
			w.kubectl(ctx, "delete", "node", node)
			for _, pod := range w.podsOn(ctx, Default, ns, node) {
				w.kubectl(ctx, "-n", ns, "delete", "pod", pod.Name, "--force", "--grace-period=0")
			}
			if kind == "daemonset" {
				n.verified(ctx, 2)
				By("getting another node of its name")
			}
			add(node)
			Expect(n.verified(ctx, 3).UID).To(Equal(third.UID))
			Expect(n.get(ctx, Default).GetAnnotations()).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
			Expect(n.get(ctx, Default).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
			w.restful(ctx, ns)
		})
	}
})
