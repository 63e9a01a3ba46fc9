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
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// manifest writes an object to a file, as a user has it in Git.
func manifest(object any) string {
	GinkgoHelper()
	data, err := yaml.Marshal(object)
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(GinkgoT().TempDir(), "manifest.yaml")
	Expect(os.WriteFile(path, data, 0o600)).To(Succeed())
	return path
}

func gitManifest(namespace, name string, replicas int32, change ...func(*appsv1.Deployment)) string {
	d := makeDeployment(namespace, name, replicas, change...)
	d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	return manifest(d)
}

var _ = Describe("admission", func() {
	It("makes a release of a change of the template, and of nothing else", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		file := gitManifest(ns, "web", 2)
		kubectl(ctx, "apply", "-f", file)
		change := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		before := getDeployment(ctx, Default, ns, "web")
		pods := podUIDs(ctx, Default, ns, "web")

		for what, do := range map[string]func(){
			"apply again":              func() { kubectl(ctx, "apply", "-f", file) },
			"replace without our keys": func() { kubectl(ctx, "replace", "-f", file) },
			"server-side apply":        func() { kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", file) },
			"server-side apply, again": func() { kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", file) },
			"annotate":                 func() { kubectl(ctx, "-n", ns, "annotate", "deployment", "web", "--overwrite", "note=x") },
			"drop our labels by hand": func() {
				kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.VersionLabel+"-", v1alpha1.DefenseStatusLabel+"-")
			},
			"alter our labels by hand": func() {
				kubectl(ctx, "-n", ns, "label", "deployment", "web", "--overwrite", v1alpha1.VersionLabel+"=x")
			},
			"dry-run of another": func() {
				kubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2", "--dry-run=server")
			},
			"pause and resume": func() {
				kubectl(ctx, "-n", ns, "rollout", "pause", "deployment/web")
				kubectl(ctx, "-n", ns, "rollout", "resume", "deployment/web")
			},
			"drop the template's label": func() {
				Expect(patchDeployment(ctx, ns, "web", `{"spec":{"template":{"metadata":{"labels":{"`+v1alpha1.VersionLabel+`":null}}}}}`)).To(Succeed())
			},
		} {
			By(what)
			do()
			d := getDeployment(ctx, Default, ns, "web")
			Expect(d.Spec.Template).To(Equal(before.Spec.Template), what)
			for _, key := range []string{v1alpha1.VersionLabel, v1alpha1.DefenseStatusLabel} {
				Expect(d.Labels).To(HaveKeyWithValue(key, before.Labels[key]), what)
			}
			Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "1"), what)
		}
		Consistently(func(g Gomega) {
			g.Expect(changesIn(ctx, g, ns)).To(HaveLen(1))
			g.Expect(podUIDs(ctx, g, ns, "web")).To(ConsistOf(pods))
			g.Expect(changesIn(ctx, g, ns)[change.Name].Status.Attempt).To(Equal(int32(1)))
		}).WithContext(ctx).Should(Succeed())

		By("restart")
		kubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web")
		Eventually(func(g Gomega) {
			g.Expect(changesIn(ctx, g, ns)).To(And(HaveLen(1), Not(HaveKey(change.Name))))
		}).WithContext(ctx).Should(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)

		By("undo")
		kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		Expect(eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).Name).To(Equal(change.Name))
	}, SpecTimeout(3*time.Minute))

	It("drops what a cloned manifest brings along", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "original", 1)
		block(ctx, ns, "original")
		d := getDeployment(ctx, Default, ns, "original")
		clone := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "clone", Labels: d.Labels, Annotations: d.Annotations}, Spec: d.Spec}
		Expect(api.Create(ctx, clone)).To(Succeed())
		Expect(clone.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(clone.Labels).NotTo(HaveKey(v1alpha1.DefenseStatusLabel))
		Expect(clone.Annotations).NotTo(HaveKey(v1alpha1.SuspendedByAnnotation))
		Expect(clone.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, d.Labels[v1alpha1.VersionLabel]))
	}, SpecTimeout(time.Minute))

	It("lets everything but a release pass a block", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		file := gitManifest(ns, "web", 2)
		next := gitManifest(ns, "web", 2, func(d *appsv1.Deployment) { d.Spec.Template.Labels["test"] = "next" })
		kubectl(ctx, "apply", "-f", file)
		block(ctx, ns, "web")

		By("passing")
		kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=3")
		Expect(patchDeployment(ctx, ns, "web", `{"spec":{"replicas":4}}`)).To(Succeed())
		rolledOut(ctx, ns, "web") // the deployment controller's own updates
		kubectl(ctx, "-n", ns, "annotate", "deployment", "web", "note=x")
		kubectl(ctx, "-n", ns, "label", "deployment", "web", "team=x")
		kubectl(ctx, "apply", "-f", file)
		hpa := &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
				MinReplicas:    new(int32(5)), MaxReplicas: 5,
			},
		}
		Expect(api.Create(ctx, hpa)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(*getDeployment(ctx, g, ns, "web").Spec.Replicas).To(Equal(int32(5)))
		}).WithContext(ctx).Should(Succeed())

		By("denying")
		for _, args := range [][]string{
			{"apply", "-f", next},
			{"apply", "--server-side", "--force-conflicts", "-f", next},
			{"replace", "-f", next},
			{"-n", ns, "rollout", "restart", "deployment/web"},
			{"-n", ns, "set", "image", "deployment/web", "sleep=busybox:2"},
			{"-n", ns, "set", "image", "deployment/web", "sleep=busybox:2", "--dry-run=server"},
			{"-n", ns, "label", "deployment", "web", v1alpha1.SuspendLabel + "-"},
			{"-n", ns, "label", "deployment", "web", "--overwrite", v1alpha1.SuspendLabel + "=1"},
			{"replace", "-f", file}, // drops suspend
		} {
			Expect(denied("web")(tryKubectl(ctx, args...))).To(BeTrue(), "%v", args)
		}

		By("deleting")
		kubectl(ctx, "-n", ns, "delete", "deployment", "web", "--cascade=foreground")
	}, SpecTimeout(2*time.Minute))

	It("lets a repair pass once, and tells who did it", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		override := func(d *appsv1.Deployment) { d.Labels[v1alpha1.IgnoredSuspendLabel] = v1alpha1.IgnoredSuspendValue }
		kubectl(ctx, "apply", "-f", gitManifest(ns, "web", 2))
		block(ctx, ns, "web")
		// A repair that never becomes ready keeps the block up.
		kubectl(ctx, "apply", "-f", gitManifest(ns, "web", 2, override, behave("never-ready", nil)))
		Expect(getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		Eventually(func(g Gomega) {
			d := getDeployment(ctx, g, ns, "web")
			g.Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.OverrideAnnotation, HavePrefix(d.Labels[v1alpha1.VersionLabel]+" ")))
			g.Expect(eventsOf(ctx, g, ns, "web")).To(ContainElement("BlockOverridden"))
		}).WithContext(ctx).Should(Succeed())

		By("not passing a second time")
		Expect(denied("web")(tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web"))).To(BeTrue())

		By("leaving the label alone when Git brings it back without a release")
		kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true")
		Consistently(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.IgnoredSuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		kubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web")
		Eventually(func(g Gomega) {
			n := 0
			for _, e := range eventsOf(ctx, g, ns, "web") {
				if e == "BlockOverridden" {
					n++
				}
			}
			g.Expect(n).To(Equal(2))
		}).WithContext(ctx).Should(Succeed())
	}, SpecTimeout(2*time.Minute))

	It("does not take a label that was there before the block for an override", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 1)
		kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true")
		block(ctx, ns, "web")
		Expect(getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKey(v1alpha1.OverrideStaleAnnotation))
		Expect(denied("web")(tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web"))).To(BeTrue())
		kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"-")
		Expect(getDeployment(ctx, Default, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.OverrideStaleAnnotation))
		kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true")
		kubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web")
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	}, SpecTimeout(time.Minute))

	It("stands in nobody's way while the manager is down, and the block holds", func(ctx SpecContext) {
		ns, before := newNamespace(ctx, true), newNamespace(ctx, false)
		createDeployment(ctx, ns, "free", 2)
		createDeployment(ctx, ns, "blocked", 2)
		createDeployment(ctx, ns, "repaired", 2)
		createDeployment(ctx, before, "baseline", 2)
		rolledOut(ctx, before, "baseline")
		enrolNamespace(ctx, before)
		free := eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
		block(ctx, ns, "blocked")
		block(ctx, ns, "repaired")

		withoutManager(ctx, func() {
			By("changing what is free")
			Expect(patchTemplate(ctx, ns, "free", "new")).To(Succeed())
			createDeployment(ctx, ns, "new", 2)
			Expect(patchTemplate(ctx, before, "baseline", "new")).To(Succeed())
			for _, d := range [][2]string{{ns, "free"}, {ns, "new"}, {before, "baseline"}} {
				rolledOut(ctx, d[0], d[1])
			}
			By("scaling what is blocked")
			kubectl(ctx, "-n", ns, "scale", "deployment", "blocked", "--replicas=3")
			kubectl(ctx, "-n", ns, "annotate", "deployment", "blocked", "note=x")
			rolledOut(ctx, ns, "blocked")
			By("releasing what is blocked")
			_, err := tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/blocked")
			Expect(err).To(HaveOccurred())
			By("repairing what is blocked")
			Expect(patchDeployment(ctx, ns, "repaired", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"repair"}}}}}`)).To(Succeed())
			rolledOut(ctx, ns, "repaired")
		})

		By("recording and verifying what slipped through, without another restart")
		for _, d := range [][2]string{{ns, "free"}, {ns, "new"}, {ns, "repaired"}, {before, "baseline"}} {
			pods := podUIDs(ctx, Default, d[0], d[1])
			change := eventuallyState(ctx, d[0], d[1], v1alpha1.ChangeWorkloadSuccess)
			Expect(change.Status.PassCount).To(Equal(int32(2)), d[1])
			Expect(podUIDs(ctx, Default, d[0], d[1])).To(ConsistOf(pods), d[1])
			Eventually(func() string {
				out, _ := tryKubectl(ctx, "-n", d[0], "get", "pods", "-l", v1alpha1.OperateFinishedLabel+",app="+d[1], "-o", "name")
				return out
			}).WithContext(ctx).Should(HaveLines(2), d[1])
		}
		Expect(changesIn(ctx, Default, ns)).NotTo(HaveKey(free.Name))
		repaired := getDeployment(ctx, Default, ns, "repaired")
		Expect(repaired.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(repaired.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		Eventually(func(g Gomega) {
			g.Expect(eventsOf(ctx, g, ns, "repaired")).To(ContainElements("ReleaseRecorded", "BlockOverridden"))
			g.Expect(changesIn(ctx, g, ns)).To(HaveLen(4))
		}).WithContext(ctx).Should(Succeed())
		Expect(getDeployment(ctx, Default, ns, "blocked").Labels).To(HaveKey(v1alpha1.SuspendLabel))
	}, SpecTimeout(3*time.Minute))
})
