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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// manifest writes an object to a file, and returns its path.
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

	It("records a release for a change of the template, and for nothing else", func(ctx SpecContext) {
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
				patch := `{"spec":{"template":{"metadata":{"labels":{"` + v1alpha1.VersionLabel + `":null}}}}}`
				Expect(w.patchDeployment(ctx, ns, "web", patch)).To(Succeed())
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

})
