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
	"os"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// declaredKind is a kind of object that a preset of config/kinds declares, and a namespace with an object of it.
type declaredKind struct {
	*world
	// preset is the path of the ChangeKind and its ClusterRole, and kind its name.
	preset, kind    string
	gvk             [3]string
	namespace, name string
}

// installDefinition installs a CustomResourceDefinition of a module of hack/kinds/go.mod.
func (w *world) installDefinition(ctx context.Context, module, path, name string) {
	GinkgoHelper()
	text, err := controlplane.Definition(ctx, root, module, path, name)
	Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(GinkgoT().TempDir(), "crd.yaml")
	Expect(os.WriteFile(file, text, 0o600)).To(Succeed())
	w.kubectl(ctx, "apply", "--server-side", "-f", file)
	Eventually(func() string { return w.kubectl(ctx, "get", "crd", name, "-o", "jsonpath={.status.conditions}") }).
		WithTimeout(time.Minute).WithPolling(100 * time.Millisecond).Should(ContainSubstring(`"status":"True","type":"Established"`))
}

func (d *declaredKind) get(ctx context.Context, g Gomega) *unstructured.Unstructured {
	GinkgoHelper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": d.gvk[0] + "/" + d.gvk[1], "kind": d.gvk[2]}}
	g.Expect(d.api.Get(ctx, client.ObjectKey{Namespace: d.namespace, Name: d.name}, o)).To(Succeed())
	return o
}

// patch changes the object by a merge patch.
func (d *declaredKind) patch(ctx context.Context, patch string) error {
	GinkgoHelper()
	o := d.get(ctx, Default)
	return d.api.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// ready waits until the present generation of the ChangeKind is in use.
func (d *declaredKind) ready(ctx context.Context) *v1alpha1.ChangeKind {
	GinkgoHelper()
	c := &v1alpha1.ChangeKind{}
	Eventually(func(g Gomega) {
		g.Expect(d.api.Get(ctx, client.ObjectKey{Name: d.kind}, c)).To(Succeed())
		g.Expect(c.Status.ObservedGeneration).To(Equal(c.Generation))
		g.Expect(meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady)).To(BeTrue(), "%+v", c.Status.Conditions)
	}).WithContext(ctx).Should(Succeed())
	return c
}

// change waits until the current release is in a state.
func (d *declaredKind) change(ctx context.Context, state v1alpha1.ChangeWorkloadStatusType) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		version := d.get(ctx, g).GetLabels()[v1alpha1.VersionLabel]
		g.Expect(version).NotTo(BeEmpty())
		change = nil
		for _, c := range d.changesIn(ctx, g, d.namespace) {
			if c.Labels[v1alpha1.VersionLabel] == version && c.Spec.WorkloadRef.Kind == d.gvk[2] {
				change = c
			}
		}
		g.Expect(change).NotTo(BeNil())
		g.Expect(change.Status.Status).To(Equal(state), "%+v", change.Status.Conditions)
	}).WithContext(ctx).Should(Succeed())
	return change
}

// blocked waits until the current release failed, and new releases are blocked.
func (d *declaredKind) blocked(ctx context.Context) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	change := d.change(ctx, v1alpha1.ChangeWorkloadSuspend)
	Eventually(func(g Gomega) {
		g.Expect(d.get(ctx, g).GetLabels()).To(HaveKey(v1alpha1.SuspendLabel))
	}).WithContext(ctx).Should(Succeed())
	return change
}

// entries returns the number of webhooks of declared kinds.
func (d *declaredKind) entries(ctx context.Context, g Gomega) int {
	GinkgoHelper()
	var mutating admissionv1.MutatingWebhookConfiguration
	g.Expect(d.api.Get(ctx, client.ObjectKey{Name: "altershieldoperator-declared-mutating"}, &mutating)).To(Succeed())
	var validating admissionv1.ValidatingWebhookConfiguration
	g.Expect(d.api.Get(ctx, client.ObjectKey{Name: "altershieldoperator-declared-validating"}, &validating)).To(Succeed())
	return len(mutating.Webhooks) + len(validating.Webhooks)
}

// rest waits until the operator stores nothing.
func (d *declaredKind) rest(ctx context.Context) {
	GinkgoHelper()
	resting(ctx, func() int {
		writes, err := d.observer.Writes()
		Expect(err).NotTo(HaveOccurred())
		return len(slices.DeleteFunc(writes, func(r observer.Request) bool {
			return r.Resource == "leases" || r.Resource == "selfsubjectaccessreviews" // which are not stored
		}))
	}, 6*time.Second)
}

func routes(subset string) string {
	return `{"spec":{"http":[{"route":[{"destination":{"host":"pay","subset":"` + subset + `"}}]}]}}`
}

var _ = Describe("a declared kind without pods", Ordered, func() {
	w := inOwnWorld()
	d := &declaredKind{
		world: w, kind: "virtualservices.networking.istio.io", gvk: [3]string{"networking.istio.io", "v1", "VirtualService"}, name: "pay",
	}

	It("records and verifies changes, and blocks the change after a bad one", func(ctx SpecContext) {
		d.preset = filepath.Join(root, "config", "kinds", "istio", "virtualservice.yaml")
		w.installDefinition(ctx, "istio.io/api", "kubernetes/customresourcedefinitions.gen.yaml", d.kind)
		d.namespace = w.newNamespace(ctx, true)
		w.kubectl(ctx, "-n", d.namespace, "apply", "-f", filepath.Join(root, "config", "kinds", "istio", "samples", "virtualservice.yaml"))
		w.kubectl(ctx, "apply", "-f", d.preset)
		Expect(d.ready(ctx).Status.Objects).To(Equal(int32(1)))

		By("declaring ignored fields, and a shorter settle: objects that exist stay baselines")
		w.kubectl(ctx, "patch", "changekind", d.kind, "--type=merge",
			"-p", `{"spec":{"content":[{"path":"spec","ignore":["exportTo"]}],"rollout":{"settle":"2s"}}}`)
		d.ready(ctx)
		w.newDefensePolicy(ctx, d.policy(), v1alpha1.ReasonInForce)
		d.rest(ctx)
		Expect(w.changesIn(ctx, Default, d.namespace)).To(BeEmpty())
		Expect(d.get(ctx, Default).GetLabels()).NotTo(HaveKey(v1alpha1.VersionLabel))

		By("changing the object")
		Expect(d.patch(ctx, routes("v1"))).To(Succeed())
		first := d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		Expect(first.Status.Checks).To(HaveLen(2))
		for _, c := range first.Status.Checks {
			Expect(c.Phase).To(Equal(v1alpha1.CheckPassed), c.Name)
		}
		Expect(w.kubectl(ctx, "-n", d.namespace, "get", "changeworkloads", "-o", "wide")).
			To(MatchRegexp(`\npay--x--virtualservice-[0-9a-f]{5}-[0-9a-f]{32} +Success .* VirtualService +pay `))

		By("changing what is no content: that is no release")
		Expect(d.patch(ctx, `{"metadata":{"labels":{"team":"pay"}},"spec":{"exportTo":["."]}}`)).To(Succeed())
		Expect(d.get(ctx, Default).GetAnnotations()).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "1"))

		By("changing it badly: the next change is denied, other edits are not")
		Expect(d.patch(ctx, routes("v0"))).To(Succeed())
		bad := d.blocked(ctx)
		Expect(d.patch(ctx, routes("v2"))).To(MatchError(And(
			ContainSubstring(`admission webhook "vvirtualservice.networking.istio.io.kb.io" denied the request: virtualservice pay is suspended`),
			ContainSubstring("subset v0 does not exist"),
			ContainSubstring("kubectl label virtualservice pay "+v1alpha1.IgnoredSuspendLabel+"=true"),
		)))
		Expect(d.patch(ctx, `{"metadata":{"labels":{"team":"pay2"}},"spec":{"exportTo":["*"]}}`)).To(Succeed())
		d.rest(ctx)
		Expect(d.get(ctx, Default).GetLabels()[v1alpha1.VersionLabel]).To(Equal(bad.Labels[v1alpha1.VersionLabel]))

		By("undoing it: the content before is restored, ignored fields are not")
		w.kubectl(ctx, "-n", d.namespace, "annotate", "virtualservice", "pay", v1alpha1.RollbackToAnnotation+"=last-success")
		Eventually(func(g Gomega) {
			o := d.get(ctx, g)
			g.Expect(o.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, first.Labels[v1alpha1.VersionLabel]))
			g.Expect(o.GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
			spec, _, err := unstructured.NestedMap(o.Object, "spec")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(spec).To(HaveKeyWithValue("exportTo", []any{"*"}))
		}).WithContext(ctx).Should(Succeed())
		d.change(ctx, v1alpha1.ChangeWorkloadSuccess)

		By("overriding the block of another bad change with a good one")
		Expect(d.patch(ctx, `{"spec":{"hosts":["pay","v0.pay"],"http":[{"route":[{"destination":{"host":"pay","subset":"v0"}}]}]}}`)).
			To(Succeed())
		d.blocked(ctx)
		w.kubectl(ctx, "-n", d.namespace, "label", "virtualservice", "pay", v1alpha1.IgnoredSuspendLabel+"=true")
		Expect(d.patch(ctx, routes("v3"))).To(Succeed())
		d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		Expect(d.get(ctx, Default).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
	})

	It("blocks while no manager runs", func(ctx SpecContext) {
		w.kubectl(ctx, "-n", d.namespace, "label", "virtualservice", "pay", v1alpha1.IgnoredSuspendLabel+"-")
		Expect(d.patch(ctx, routes("v0"))).To(Succeed())
		d.blocked(ctx)
		w.withoutManager(ctx, func() {
			Expect(d.patch(ctx, routes("v2"))).To(MatchError(ContainSubstring("vvirtualservice.networking.istio.io.kb.io")))
			Expect(d.patch(ctx, `{"metadata":{"labels":{"team":"pay3"}}}`)).To(Succeed())
		})
		d.ready(ctx)
		Expect(d.patch(ctx, routes("v2"))).To(MatchError(ContainSubstring("virtualservice pay is suspended")))
	})

	It("gives everything back when its declaration is deleted", func(ctx SpecContext) {
		Expect(d.entries(ctx, Default)).NotTo(BeZero())
		Expect(w.kubectl(ctx, "-n", "default", "get", "events")).
			NotTo(ContainSubstring(v1alpha1.EventDefenseChanged), "an edit and a restart end no defense")
		w.kubectl(ctx, "delete", "changekind", d.kind)
		Expect(d.get(ctx, Default).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
		Expect(w.kubectl(ctx, "-n", d.namespace, "get", "events")).NotTo(ContainSubstring(v1alpha1.EventOptedOut), "no user opted the object out")
		Eventually(d.entries).WithContext(ctx).WithArguments(Default).Should(BeZero())
		before := w.changesIn(ctx, Default, d.namespace)
		Expect(d.patch(ctx, routes("v2"))).To(Succeed())
		d.rest(ctx)
		Expect(w.changesIn(ctx, Default, d.namespace)).To(HaveLen(len(before)))
	})
})

// policy returns a policy with checks before and after the rollout of a route.
func (d *declaredKind) policy() *v1alpha1.DefensePolicy {
	p := healthPolicy(d.namespace, "routes", func(c *v1alpha1.PolicyCheck) {
		c.Name, c.PodHealth, c.Stage = "hosts", nil, v1alpha1.StageReleasePre
		c.Cel = &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: "size(workload.spec.hosts) > 0", Message: "no host"}}}
	})
	after := p.Spec.Checks[0].DeepCopy()
	after.Name, after.Stage = "subsets", v1alpha1.StageReleasePost
	after.Cel.Rules[0] = v1alpha1.CelRule{
		Expression: "workload.spec.http.all(h, h.route.all(r, r.destination.?subset.orValue('') != 'v0'))", Message: "subset v0 does not exist",
	}
	p.Spec.Checks = append(p.Spec.Checks, *after)
	return p
}
