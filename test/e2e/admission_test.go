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

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
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

func gitManifest(d *wrappers.DeploymentWrapper) string {
	d.Obj().TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	return manifest(d.Obj())
}

var _ = Describe("admission", func() {
	w := inSharedWorld()

	It("makes a release of a change of the template, and of nothing else", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		file := gitManifest(sleeper(ns, "web").Replicas(2))
		w.kubectl(ctx, "apply", "-f", file)
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		before := w.getDeployment(ctx, Default, ns, "web")
		pods := w.podUIDs(ctx, Default, ns, "web")

		for what, do := range map[string]func(){
			"apply again":              func() { w.kubectl(ctx, "apply", "-f", file) },
			"replace without our keys": func() { w.kubectl(ctx, "replace", "-f", file) },
			"server-side apply":        func() { w.kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", file) },
			"server-side apply, again": func() { w.kubectl(ctx, "apply", "--server-side", "--force-conflicts", "-f", file) },
			"annotate":                 func() { w.kubectl(ctx, "-n", ns, "annotate", "deployment", "web", "--overwrite", "note=x") },
			"drop our labels by hand": func() {
				w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.VersionLabel+"-", v1alpha1.DefenseStatusLabel+"-")
			},
			"alter our labels by hand": func() {
				w.kubectl(ctx, "-n", ns, "label", "deployment", "web", "--overwrite", v1alpha1.VersionLabel+"=x")
			},
			"dry-run of another": func() {
				w.kubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2", "--dry-run=server")
			},
			"pause and resume": func() {
				w.kubectl(ctx, "-n", ns, "rollout", "pause", "deployment/web")
				w.kubectl(ctx, "-n", ns, "rollout", "resume", "deployment/web")
			},
			"drop the template's label": func() {
				Expect(w.patchDeployment(ctx, ns, "web", `{"spec":{"template":{"metadata":{"labels":{"`+v1alpha1.VersionLabel+`":null}}}}}`)).To(Succeed())
			},
		} {
			By(what)
			do()
			d := w.getDeployment(ctx, Default, ns, "web")
			Expect(d.Spec.Template).To(Equal(before.Spec.Template), what)
			for _, key := range []string{v1alpha1.VersionLabel, v1alpha1.DefenseStatusLabel} {
				Expect(d.Labels).To(HaveKeyWithValue(key, before.Labels[key]), what)
			}
			Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "1"), what)
		}
		Consistently(func(g Gomega) {
			g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(1))
			g.Expect(w.podUIDs(ctx, g, ns, "web")).To(ConsistOf(pods))
			g.Expect(w.changesIn(ctx, g, ns)[change.Name].Status.Attempt).To(Equal(int32(1)))
		}).WithContext(ctx).Should(Succeed())

		By("restart")
		w.kubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web")
		Eventually(func(g Gomega) {
			g.Expect(w.changesIn(ctx, g, ns)).To(And(HaveLen(1), Not(HaveKey(change.Name))))
		}).WithContext(ctx).Should(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)

		By("undo")
		w.kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		Expect(w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).Name).To(Equal(change.Name))
	})

	It("makes no release of a manifest that leads to what is stored, though the API server drops a field", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		// The feature of this field is off.
		grouped := func(test string) string {
			return gitManifest(sleeper(ns, "web").Replicas(2).TemplateLabel("test", test).With(func(d *appsv1.Deployment) {
				d.Spec.Template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("group")}
			}))
		}
		file, next := grouped("first"), grouped("next")
		applied := func() {
			GinkgoHelper()
			before := w.currentChange(ctx, Default, ns, "web")
			stored := w.getDeployment(ctx, Default, ns, "web")
			pods := w.podUIDs(ctx, Default, ns, "web")
			for _, args := range [][]string{
				{"apply", "-f", file}, {"apply", "--server-side", "--force-conflicts", "-f", file}, {"apply", "-f", file},
			} {
				w.kubectl(ctx, args...)
				d := w.getDeployment(ctx, Default, ns, "web")
				Expect(d.Spec.Template).To(Equal(stored.Spec.Template), "%v", args)
				Expect(d.Labels).To(Equal(stored.Labels), "%v", args)
				Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, stored.Annotations[v1alpha1.ReleaseAnnotation]), "%v", args)
			}
			Consistently(func(g Gomega) {
				change := w.currentChange(ctx, g, ns, "web")
				g.Expect([]any{change.Spec.Release, change.Status.Attempt, change.Status.Status}).
					To(Equal([]any{before.Spec.Release, before.Status.Attempt, before.Status.Status}))
				g.Expect(w.podUIDs(ctx, g, ns, "web")).To(ConsistOf(pods))
			}).WithContext(ctx).Should(Succeed())
		}

		w.kubectl(ctx, "apply", "-f", file)
		first := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.getDeployment(ctx, Default, ns, "web").Spec.Template.Spec.SchedulingGroup).To(BeNil(), "the feature is off")
		Expect([]any{first.Spec.Release, first.Status.Attempt}).To(Equal([]any{int64(1), int32(1)}))
		Expect(w.eventsOf(ctx, Default, ns, "web")).NotTo(ContainElement("ReleaseRecorded"))
		applied()

		By("releasing another one, and undoing it")
		w.kubectl(ctx, "apply", "-f", next)
		Eventually(func(g Gomega) {
			g.Expect(w.currentChange(ctx, g, ns, "web").Name).NotTo(Equal(first.Name))
		}).WithContext(ctx).Should(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		w.kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		Expect(w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).Name).To(Equal(first.Name))
		applied()

		By("blocked")
		w.block(ctx, ns, "web")
		applied()
		Expect(denied("web")(w.tryKubectl(ctx, "apply", "-f", grouped("bad")))).To(BeTrue())

		By("going back to the other one")
		w.kubectl(ctx, "apply", "-f", next)
		Expect(w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess).Name).NotTo(Equal(first.Name))
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement("WentBack"))
		}).WithContext(ctx).Should(Succeed())
	})

	It("drops what a cloned manifest brings along", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "original"))
		w.block(ctx, ns, "original")
		d := w.getDeployment(ctx, Default, ns, "original")
		clone := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "clone", Labels: d.Labels, Annotations: d.Annotations}, Spec: d.Spec}
		Expect(w.api.Create(ctx, clone)).To(Succeed())
		Expect(clone.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(clone.Labels).NotTo(HaveKey(v1alpha1.DefenseStatusLabel))
		Expect(clone.Annotations).NotTo(HaveKey(v1alpha1.SuspendedByAnnotation))
		Expect(clone.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, d.Labels[v1alpha1.VersionLabel]))
	})

	It("lets everything but a release pass a block", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		file := gitManifest(sleeper(ns, "web").Replicas(2))
		next := gitManifest(sleeper(ns, "web").Replicas(2).TemplateLabel("test", "next"))
		w.kubectl(ctx, "apply", "-f", file)
		w.block(ctx, ns, "web")

		By("passing")
		w.kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=3")
		Expect(w.patchDeployment(ctx, ns, "web", `{"spec":{"replicas":4}}`)).To(Succeed())
		w.rolledOut(ctx, ns, "web") // the deployment controller's own updates
		w.kubectl(ctx, "-n", ns, "annotate", "deployment", "web", "note=x")
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", "team=x")
		w.kubectl(ctx, "apply", "-f", file)
		hpa := &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
				MinReplicas:    new(int32(5)), MaxReplicas: 5,
			},
		}
		Expect(w.api.Create(ctx, hpa)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(*w.getDeployment(ctx, g, ns, "web").Spec.Replicas).To(Equal(int32(5)))
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
			Expect(denied("web")(w.tryKubectl(ctx, args...))).To(BeTrue(), "%v", args)
		}

		By("deleting")
		w.kubectl(ctx, "-n", ns, "delete", "deployment", "web", "--cascade=foreground")
	})

	It("lets a repair pass once, and tells who did it", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.kubectl(ctx, "apply", "-f", gitManifest(sleeper(ns, "web").Replicas(2)))
		w.block(ctx, ns, "web")
		// A repair that never becomes ready keeps the block up.
		w.kubectl(ctx, "apply", "-f", gitManifest(sleeper(ns, "web").Replicas(2).Label(v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue).With(behave("never-ready", nil))))
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		Eventually(func(g Gomega) {
			d := w.getDeployment(ctx, g, ns, "web")
			g.Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.OverrideAnnotation, HavePrefix(d.Labels[v1alpha1.VersionLabel]+" ")))
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement("BlockOverridden"))
		}).WithContext(ctx).Should(Succeed())

		By("not passing a second time")
		Expect(denied("web")(w.tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web"))).To(BeTrue())

		By("leaving the label alone when Git brings it back without a release")
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true")
		Consistently(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.IgnoredSuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		w.kubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web")
		Eventually(func(g Gomega) {
			n := 0
			for _, e := range w.eventsOf(ctx, g, ns, "web") {
				if e == "BlockOverridden" {
					n++
				}
			}
			g.Expect(n).To(Equal(2))
		}).WithContext(ctx).Should(Succeed())
	})

	It("does not take a label that was there before the block for an override", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web"))
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true")
		w.block(ctx, ns, "web")
		Expect(w.getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKey(v1alpha1.OverrideStaleAnnotation))
		Expect(denied("web")(w.tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web"))).To(BeTrue())
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"-")
		Expect(w.getDeployment(ctx, Default, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.OverrideStaleAnnotation))
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true")
		w.kubectl(ctx, "-n", ns, "rollout", "restart", "deployment/web")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	})

})
