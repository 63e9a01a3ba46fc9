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
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// labelled is a patch of the template of a kind with one template.
func labelled(value string) string {
	return `{"spec":{"template":{"metadata":{"labels":{"test":"` + value + `"}}}}}`
}

// noBadPods returns a policy that fails pods with the label test=bad.
func (d *declaredKind) noBadPods() *v1alpha1.DefensePolicy {
	return healthPolicy(d.namespace, "labels", func(c *v1alpha1.PolicyCheck) {
		c.Name, c.PodHealth = "test", nil
		c.Cel = &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{
			Expression: "pod.metadata.labels[?'test'].orValue('') != 'bad'", Message: "the pod is bad",
		}}}
	})
}

// number returns a number of the status.
func (d *declaredKind) number(ctx context.Context, g Gomega, field string) int64 {
	GinkgoHelper()
	n, _, err := unstructured.NestedInt64(d.get(ctx, g).Object, "status", field)
	g.Expect(err).NotTo(HaveOccurred())
	return n
}

// declare applies the sample and, once its pods are ready, the preset, as a user does. Nothing is written to the object.
func (d *declaredKind) declare(ctx context.Context, ready string, replicas int64) {
	GinkgoHelper()
	d.namespace = d.newNamespace(ctx, true)
	dir, file := filepath.Split(d.preset)
	Eventually(func() error { // the webhooks of the product may begin later than its controllers
		if out, err := d.tryKubectl(ctx, "-n", d.namespace, "apply", "-f", filepath.Join(dir, "samples", file)); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}).WithContext(ctx).Should(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(d.number(ctx, g, ready)).To(Equal(replicas))
	}).WithContext(ctx).Should(Succeed())
	before := d.get(ctx, Default)
	d.kubectl(ctx, "apply", "-f", d.preset)
	Expect(d.ready(ctx).Status.Objects).To(Equal(int32(1)))
	d.rest(ctx)
	for _, c := range d.changesIn(ctx, Default, d.namespace) { // StatefulSets of the object have records, too
		Expect(c.Spec.WorkloadRef.Kind).NotTo(Equal(d.gvk[2]), "%s", c.Name)
	}
	Expect(d.get(ctx, Default).GetResourceVersion()).To(Equal(before.GetResourceVersion()))
}

// halted waits until the current release failed during its rollout: new releases are blocked, and a field has the value of the halt.
func (d *declaredKind) halted(ctx context.Context, value any, field ...string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	change := d.blocked(ctx)
	Eventually(func(g Gomega) {
		o := d.get(ctx, g)
		g.Expect(o.GetAnnotations()).To(HaveKeyWithValue(v1alpha1.HaltedAnnotation, change.Labels[v1alpha1.VersionLabel]))
		stopped, _, err := unstructured.NestedFieldNoCopy(o.Object, field...)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(stopped).To(Equal(value))
	}).WithContext(ctx).Should(Succeed())
	return change
}

// givenBack deletes the declaration of an object that is blocked and halted. Its strategy is the one from before.
func (d *declaredKind) givenBack(ctx context.Context, before *unstructured.Unstructured) {
	GinkgoHelper()
	d.kubectl(ctx, "delete", "changekind", d.kind)
	o := d.get(ctx, Default)
	Expect(o.GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
	Expect(o.GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
	Expect(o.GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedFromAnnotation))
	for _, field := range []string{"updateStrategy", "rolloutStrategy"} {
		was, _, _ := unstructured.NestedMap(before.Object, "spec", field)
		is, _, _ := unstructured.NestedMap(o.Object, "spec", field)
		Expect(is).To(Equal(was))
	}
	Eventually(d.entries).WithContext(ctx).WithArguments(Default).Should(BeZero())
}

// uids returns the names and the UIDs of the pods.
func (d *declaredKind) uids(ctx context.Context) map[string]types.UID {
	GinkgoHelper()
	pods, err := d.pods(ctx)
	Expect(err).NotTo(HaveOccurred())
	uids := map[string]types.UID{}
	for i := range pods {
		uids[pods[i].Name] = pods[i].UID
	}
	return uids
}

var _ = Describe("workloads of OpenKruise", Ordered, SpecPriority(longest), func() {
	w := inOwnWorld()
	BeforeAll(func(ctx SpecContext) { w.run(ctx, kruise) }, NodeTimeout(30*time.Minute))
	d := &declaredKind{
		world: w, kind: "clonesets.apps.kruise.io", gvk: [3]string{"apps.kruise.io", "v1alpha1", "CloneSet"}, name: "sleep",
	}

	It("a CloneSet is released in batches, halted, blocked, released over the block, and rolled back", func(ctx SpecContext) {
		d.preset = filepath.Join(root, "config", "kinds", "kruise", "cloneset.yaml")
		d.declare(ctx, "updatedReadyReplicas", 3)
		w.newDefensePolicy(ctx, d.noBadPods(), v1alpha1.ReasonInForce)
		for _, setting := range []string{"timeouts=wait=5s,settle=2s", "branch=2"} {
			w.kubectl(ctx, "-n", d.namespace, "annotate", "cloneset", d.name, v1alpha1.SettingAnnotationPrefix+setting)
		}
		Expect(d.patch(ctx, `{"spec":{"minReadySeconds":2}}`)).To(Succeed())

		By("releasing another label: the pods get it in place")
		before := d.uids(ctx)
		Expect(d.patch(ctx, labelled("first"))).To(Succeed())
		first := d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		Expect(first.Status.PassCount).To(Equal(int32(3)))
		Expect(len(w.batchesOf(ctx, Default, first))).To(BeNumerically(">=", 2))
		Expect(d.uids(ctx)).To(Equal(before), "no pod was recreated")

		By("releasing another image: the containers restart in place")
		w.kubectl(ctx, "-n", d.namespace, "patch", "cloneset", d.name, "--type=json",
			"-p", `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"busybox:1.38"}]`)
		Expect(d.change(ctx, v1alpha1.ChangeWorkloadSuccess).Status.PassCount).To(Equal(int32(3)))
		Expect(d.uids(ctx)).To(Equal(before), "no pod was recreated")

		By("scaling: that is no release")
		Expect(d.patch(ctx, `{"spec":{"replicas":5}}`)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(d.number(ctx, g, "updatedAvailableReplicas")).To(Equal(int64(5)))
		}).WithContext(ctx).Should(Succeed())
		d.rest(ctx)
		Expect(d.get(ctx, Default).GetAnnotations()).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "2"))
		Expect(d.change(ctx, v1alpha1.ChangeWorkloadSuccess).Status.PassCount).To(Equal(int32(5)), "pods that come later are verified")

		By("releasing bad pods: the rollout is halted before all pods are bad")
		w.kubectl(ctx, "-n", d.namespace, "annotate", "--overwrite", "cloneset", d.name, v1alpha1.SettingAnnotationPrefix+"branch=1")
		Expect(d.patch(ctx, `{"spec":{"minReadySeconds":15}}`)).To(Succeed()) // the time in which the rollout is to be halted
		Expect(d.patch(ctx, labelled("bad"))).To(Succeed())
		bad := d.halted(ctx, true, "spec", "updateStrategy", "paused")
		Expect(bad.Status.FailCount).NotTo(BeZero())
		Eventually(func(g Gomega) {
			o := d.get(ctx, g)
			observed, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration")
			g.Expect(observed).To(Equal(o.GetGeneration()))
			g.Expect(d.number(ctx, g, "readyReplicas")).To(Equal(int64(5)))
		}).WithContext(ctx).Should(Succeed())
		d.rest(ctx)
		Expect(d.number(ctx, Default, "updatedReplicas")).To(BeNumerically("<", 5), "old pods are left")

		By("changing the template: denied; scaling is not")
		Expect(d.patch(ctx, labelled("second"))).To(MatchError(And(
			ContainSubstring(`admission webhook "vcloneset.apps.kruise.io.kb.io" denied the request: cloneset sleep is suspended`),
			ContainSubstring("the pod is bad"),
		)))
		Expect(d.patch(ctx, `{"spec":{"replicas":4,"minReadySeconds":2}}`)).To(Succeed())

		By("releasing a good template over it: the rollout continues")
		Expect(d.patch(ctx, repair("second"))).To(Succeed())
		Expect(d.change(ctx, v1alpha1.ChangeWorkloadSuccess).Status.PassCount).To(Equal(int32(4)))
		o := d.get(ctx, Default)
		Expect(o.GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(o.GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
		paused, _, _ := unstructured.NestedBool(o.Object, "spec", "updateStrategy", "paused")
		Expect(paused).To(BeFalse())

		By("failing a release after its success, and rolling back on request")
		good := o.GetLabels()[v1alpha1.VersionLabel]
		Expect(d.patch(ctx, labelled("third"))).To(Succeed())
		w.setVerdict(ctx, d.change(ctx, v1alpha1.ChangeWorkloadSuccess), "unpass")
		d.blocked(ctx)
		w.kubectl(ctx, "-n", d.namespace, "annotate", "cloneset", d.name, v1alpha1.RollbackToAnnotation+"=last-success")
		Eventually(func(g Gomega) {
			back := d.get(ctx, g)
			g.Expect(back.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, good))
			g.Expect(back.GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(back.Object["spec"]).To(Equal(o.Object["spec"]))
		}).WithContext(ctx).Should(Succeed())
		d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		d.rest(ctx)
	}, SpecTimeout(15*time.Minute))

	It("a CloneSet gets everything back when its declaration is deleted", func(ctx SpecContext) {
		w.kubectl(ctx, "-n", d.namespace, "label", "cloneset", d.name, v1alpha1.IgnoredSuspendLabel+"-")
		Expect(d.patch(ctx, `{"spec":{"minReadySeconds":15}}`)).To(Succeed())
		before := d.get(ctx, Default)
		Expect(d.patch(ctx, labelled("bad"))).To(Succeed())
		d.halted(ctx, true, "spec", "updateStrategy", "paused")
		d.givenBack(ctx, before)
		Eventually(func(g Gomega) {
			g.Expect(d.number(ctx, g, "updatedAvailableReplicas")).To(Equal(int64(4)), "OpenKruise continues the rollout")
		}).WithContext(ctx).Should(Succeed())
		Expect(d.patch(ctx, labelled("fourth"))).To(Succeed())
		d.rest(ctx)
	}, SpecTimeout(10*time.Minute))

	for _, of := range []struct {
		gvk [3]string
		// available is the field of the status with the number of available pods.
		available string
		// pace is a patch of the time between two pods, in seconds.
		pace string
	}{
		{[3]string{"apps.kruise.io", "v1beta1", "StatefulSet"}, "availableReplicas",
			`{"spec":{"updateStrategy":{"rollingUpdate":{"minReadySeconds":%d}}}}`},
		{[3]string{"apps.kruise.io", "v1alpha1", "DaemonSet"}, "numberAvailable", `{"spec":{"minReadySeconds":%d}}`},
	} {
		kind := strings.ToLower(of.gvk[2])
		It("an advanced "+of.gvk[2]+" is released, halted and blocked, and gets everything back", func(ctx SpecContext) {
			d := &declaredKind{
				world: w, kind: kind + "s.apps.kruise.io", gvk: of.gvk, name: "sleep",
				preset: filepath.Join(root, "config", "kinds", "kruise", kind+".yaml"),
			}
			d.declare(ctx, of.available, 3)
			w.newDefensePolicy(ctx, d.noBadPods(), v1alpha1.ReasonInForce)
			w.kubectl(ctx, "-n", d.namespace, "annotate", d.kind, d.name, v1alpha1.SettingAnnotationPrefix+"timeouts=wait=5s,settle=2s")
			Expect(d.patch(ctx, fmt.Sprintf(of.pace, 2))).To(Succeed())
			Expect(d.patch(ctx, labelled("first"))).To(Succeed())
			Expect(d.change(ctx, v1alpha1.ChangeWorkloadSuccess).Status.PassCount).To(Equal(int32(3)))

			Expect(d.patch(ctx, fmt.Sprintf(of.pace, 15))).To(Succeed())
			before := d.get(ctx, Default)
			Eventually(func(g Gomega) { // a DaemonSet replaces pods that are not available all at once
				g.Expect(d.number(ctx, g, "observedGeneration")).To(Equal(before.GetGeneration()))
				g.Expect(d.number(ctx, g, of.available)).To(Equal(int64(3)))
			}).WithContext(ctx).Should(Succeed())
			Expect(d.patch(ctx, labelled("bad"))).To(Succeed())
			d.halted(ctx, true, "spec", "updateStrategy", "rollingUpdate", "paused")
			Expect(d.patch(ctx, labelled("second"))).To(MatchError(And(
				ContainSubstring(fmt.Sprintf(`"v%s.apps.kruise.io.kb.io" denied the request: %s sleep is suspended`, kind, kind)),
				ContainSubstring("the pod is bad"),
			)))
			d.givenBack(ctx, before)
		}, SpecTimeout(10*time.Minute))
	}
})
