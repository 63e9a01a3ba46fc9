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
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// newKinds has workloads of all kinds in enrolled namespaces, for an upgrade from a version that defends only Deployments to a version that
// defends the other kinds as well.
type newKinds struct {
	*world
	ns string
	// set and daemon are at rest; rolling is a StatefulSet that waits in the middle of its rollout.
	set, daemon, rolling native
	// pods has the restarts of each pod; templates are by workload.
	pods      map[types.UID]int32
	templates map[string]any
}

// before creates the workloads.
func (k *newKinds) before(ctx context.Context) {
	GinkgoHelper()
	k.ns = k.newNamespace(ctx, true)
	k.set, k.daemon = native{k.world, "statefulset", k.ns}, native{k.world, "daemonset", k.ns}
	k.rolling = native{k.world, "statefulset", k.newNamespace(ctx, true)}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.ns, Name: "owner"}}
	Expect(k.api.Create(ctx, owner)).To(Succeed())
	ref := metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	k.create(ctx, sleeper(k.ns, "resting").Replicas(2))
	k.create(ctx, sleeper(k.ns, "blocked").Replicas(2))
	owned := sleeper(k.ns, "owned").Replicas(2)
	owned.Obj().OwnerReferences = []metav1.OwnerReference{*ref}
	k.create(ctx, owned)
	for _, n := range []native{k.set, k.daemon} {
		Expect(k.api.Create(ctx, n.manifest(nil))).To(Succeed())
	}
	Expect(k.api.Create(ctx, k.rolling.manifest(parallel))).To(Succeed())
	k.eventuallyState(ctx, k.ns, "resting", v1alpha1.ChangeWorkloadSuccess)
	for _, name := range []string{"blocked", "owned"} {
		k.block(ctx, k.ns, name)
	}
	for _, n := range []native{k.set, k.daemon, k.rolling} {
		n.running(ctx)
	}
	// A partition keeps its other pods. Kubernetes 1.37 replaces all pods that are not available yet at once.
	Expect(k.rolling.patch(ctx,
		`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}},"template":{"metadata":{"labels":{"test":"rolling"}}}}}`)).To(Succeed())
	Eventually(func(g Gomega) { g.Expect(k.newPods(ctx, g)).To(Equal(1)) }).WithContext(ctx).Should(Succeed())
	k.rolling.running(ctx)
	k.pods, k.templates = k.seen(ctx, Default)
	Expect(k.pods).To(HaveLen(3*2 + 3*3))
}

// newPods counts the new pods of the StatefulSet in the middle of its rollout.
func (k *newKinds) newPods(ctx context.Context, g Gomega) (found int) {
	GinkgoHelper()
	for _, pod := range k.rolling.pods(ctx, g) {
		if pod.Labels["test"] == "rolling" {
			found++
		}
	}
	return found
}

func (k *newKinds) seen(ctx context.Context, g Gomega) (pods map[types.UID]int32, templates map[string]any) {
	GinkgoHelper()
	pods, templates = map[types.UID]int32{}, map[string]any{}
	for _, ns := range []string{k.ns, k.rolling.namespace} {
		var list corev1.PodList
		g.Expect(k.api.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
		for i := range list.Items {
			for _, c := range list.Items[i].Status.ContainerStatuses {
				pods[list.Items[i].UID] += c.RestartCount
			}
		}
		for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
			workloads := &unstructured.UnstructuredList{}
			workloads.SetAPIVersion("apps/v1")
			workloads.SetKind(kind + "List")
			g.Expect(k.api.List(ctx, workloads, client.InNamespace(ns))).To(Succeed())
			for _, o := range workloads.Items {
				spec, _, err := unstructured.NestedMap(o.Object, "spec")
				g.Expect(err).NotTo(HaveOccurred())
				templates[strings.Join([]string{ns, kind, o.GetName()}, "/")] = spec["template"]
			}
		}
	}
	return pods, templates
}

// check returns a function that checks the workloads while any versions run: nothing restarts, no template is written, no release is
// invented, and blocks stay. A dry run checks that other releases pass.
func (k *newKinds) check(ctx context.Context) func(step string) {
	return func(step string) {
		GinkgoHelper()
		By(step)
		pods, templates := k.seen(ctx, Default)
		Expect(pods).To(Equal(k.pods), "pods without a release")
		Expect(templates).To(Equal(k.templates))
		k.noneOfOthers(ctx)
		for _, name := range []string{"blocked", "owned"} {
			d := k.getDeployment(ctx, Default, k.ns, name)
			Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel), name)
			Expect(d.Spec.Paused).To(BeFalse())
		}
		u := &onUpgrade{world: k.world, ns: k.ns}
		u.denied(ctx, "blocked", `{"spec":{"template":{"metadata":{"labels":{"test":"denied"}}}}}`, "is suspended")
		for _, n := range []native{k.set, k.daemon, k.rolling} {
			patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"labels":{"test":"tried"}}}}}`))
			Expect(k.api.Patch(ctx, n.manifest(nil), patch, client.DryRunAll)).To(Succeed())
		}
	}
}

// noneOfOthers checks that only releases of Deployments are recorded.
func (k *newKinds) noneOfOthers(ctx context.Context) {
	GinkgoHelper()
	Expect(k.changesIn(ctx, Default, k.rolling.namespace)).To(BeEmpty())
	changes := k.changesIn(ctx, Default, k.ns)
	Expect(changes).To(HaveLen(3))
	for name, change := range changes {
		Expect(change.OwnerReferences[0].Kind).To(Equal("Deployment"), name)
		Expect(change.Status.Attempt).To(Equal(int32(1)), name)
	}
}

// released checks the version that defends all kinds: the next template of each workload is a release, and blocks are lifted as the
// changelog describes.
func (k *newKinds) released(ctx context.Context) {
	GinkgoHelper()
	By("being baselines")
	Eventually(func(g Gomega) {
		var blocking v1alpha1.OpsConfigInfo
		key := types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: settings.NameBlocking}
		g.Expect(k.api.Get(ctx, key, &blocking)).To(Succeed())
		for _, name := range []string{v1alpha1.ConditionDefendsStatefulSet, v1alpha1.ConditionDefendsDaemonSet} {
			g.Expect(meta.IsStatusConditionTrue(blocking.Status.Conditions, name)).To(BeTrue(), name)
		}
	}).WithContext(ctx).Should(Succeed())
	// When the operator reads each of them again, it records nothing.
	k.kubectl(ctx, "-n", k.ns, "annotate", "statefulset/sleep", "daemonset/sleep", "read=again")
	k.kubectl(ctx, "-n", k.rolling.namespace, "annotate", "statefulset/sleep", "read=again")
	Consistently(func(g Gomega) {
		g.Expect(k.changesIn(ctx, g, k.rolling.namespace)).To(BeEmpty())
		g.Expect(k.changesIn(ctx, g, k.ns)).To(HaveLen(3))
	}).WithContext(ctx).Should(Succeed())
	k.check(ctx)("known, and left as they are")
	By("finishing the rollout")
	Expect(k.rolling.patch(ctx, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)).To(Succeed())
	Eventually(func(g Gomega) { g.Expect(k.newPods(ctx, g)).To(Equal(3)) }).WithContext(ctx).Should(Succeed())
	k.rolling.running(ctx)
	k.noneOfOthers(ctx)

	By("releasing")
	for _, n := range []native{k.set, k.daemon, k.rolling} {
		Expect(n.release(ctx, "next")).To(Succeed())
	}
	Expect(k.patchTemplate(ctx, k.ns, "resting", "next")).To(Succeed())
	for _, n := range []native{k.set, k.daemon, k.rolling} {
		Expect(n.change(ctx, v1alpha1.ChangeWorkloadSuccess).Spec.Release).To(BeEquivalentTo(1), n.kind)
	}
	Expect(k.eventuallyState(ctx, k.ns, "resting", v1alpha1.ChangeWorkloadSuccess).Spec.Release).To(BeEquivalentTo(2))

	By("lifting blocks")
	Expect(k.patchDeployment(ctx, k.ns, "blocked", repair("good"))).To(Succeed())
	k.eventuallyState(ctx, k.ns, "blocked", v1alpha1.ChangeWorkloadSuccess)
	Expect(k.patchTemplate(ctx, k.ns, "owned", "next")).To(Succeed(), "a block of an owned workload denies nothing")
	k.eventuallyState(ctx, k.ns, "owned", v1alpha1.ChangeWorkloadSuccess)
	for _, name := range []string{"blocked", "owned"} {
		Eventually(func(g Gomega) {
			g.Expect(k.getDeployment(ctx, g, k.ns, name).Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed(), name)
	}
}

// left checks that a version that defends only Deployments changes nothing.
func (k *newKinds) left(ctx context.Context) {
	GinkgoHelper()
	var uids []types.UID
	for uid := range k.pods {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	pods, _ := k.seen(ctx, Default)
	for _, uid := range uids {
		Expect(pods).To(HaveKeyWithValue(uid, k.pods[uid]), fmt.Sprint("pod ", uid))
	}
	before := k.changesIn(ctx, Default, k.set.namespace)
	for _, n := range []native{k.set, k.daemon} {
		Expect(n.release(ctx, "unknown")).To(Succeed(), "a kind that this version does not defend")
		Eventually(func(g Gomega) {
			for _, pod := range n.pods(ctx, g) {
				g.Expect(pod.Labels).To(HaveKeyWithValue("test", "unknown"))
			}
		}).WithContext(ctx).Should(Succeed())
		n.running(ctx)
	}
	Expect(k.changesIn(ctx, Default, k.set.namespace)).To(HaveLen(len(before)))
}
