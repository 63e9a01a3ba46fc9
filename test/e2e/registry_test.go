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
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	// registryGone on a namespace: what its nodes do not have cannot be pulled.
	registryGone = "registry-gone"
	// onNodes is the image that every node has, released what comes after it, and
	// unpullable one that the fake kubelet cannot pull.
	onNodes, released, unpullable = "busybox:1", "busybox:2", "busybo:2"
	// haste is how much shorter the back-offs are than a kubelet's, which are ten
	// seconds, doubled up to five minutes.
	haste = 20
)

// registryPolicy lets new pods ask for an image that cannot be pulled, while the
// registry is gone: ErrImagePull, then ImagePullBackOff.
func (w *world) registryPolicy(ctx context.Context) {
	GinkgoHelper()
	const name = "registry.example.com"
	Expect(w.api.Create(ctx, &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{registryGone: "true"}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}}},
			},
			MatchConditions:    []admissionregistrationv1.MatchCondition{{Name: "to-be-pulled", Expression: fmt.Sprintf("object.spec.containers[0].image != %q", onNodes)}},
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: fmt.Sprintf(`[JSONPatch{op: "replace", path: "/spec/containers/0/image", value: %q}]`, unpullable)},
			}},
		},
	})).To(Succeed())
	Expect(w.api.Create(ctx, &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	})).To(Succeed())
}

// registry is where the images of a namespace come from.
type registry struct {
	w  *world
	ns string
	// back is since when it is there again.
	back time.Time
}

// set says whether images can be pulled, and waits until it is so.
func (r *registry) set(ctx context.Context, there bool) {
	GinkgoHelper()
	change := registryGone + "=true"
	if there {
		change = registryGone + "-"
	}
	r.w.kubectl(ctx, "label", "namespace", r.ns, change)
	Eventually(func(g Gomega) {
		pod := wrappers.MakePod(r.ns, "asks").With(func(p *corev1.Pod) { p.Spec.Containers[0].Image = released }).Obj()
		g.Expect(r.w.api.Create(ctx, pod, client.DryRunAll)).To(Succeed())
		g.Expect(pod.Spec.Containers[0].Image == unpullable).NotTo(Equal(there))
	}).WithContext(ctx).Should(Succeed())
	r.back = time.Now()
}

// pull is what the kubelets do once the registry is back: the pull of each pod is
// tried again when its back-off ends.
func (r *registry) pull(ctx context.Context, g Gomega) {
	GinkgoHelper()
	var pods corev1.PodList
	g.Expect(r.w.api.List(ctx, &pods, client.InNamespace(r.ns))).To(Succeed())
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.Containers[0].Image != unpullable || p.DeletionTimestamp != nil || time.Now().Before(r.nextPull(p)) {
			continue
		}
		patch := fmt.Sprintf(`{"spec":{"containers":[{"name":%q,"image":%q}]}}`, p.Spec.Containers[0].Name, released)
		g.Expect(client.IgnoreNotFound(r.w.api.Patch(ctx, p, client.RawPatch(types.StrategicMergePatchType, []byte(patch))))).To(Succeed())
	}
}

// nextPull is the first try since the registry is back.
func (r *registry) nextPull(p *corev1.Pod) time.Time {
	at, wait := p.CreationTimestamp.Time, 10*time.Second/haste
	for at.Before(r.back) {
		at, wait = at.Add(wait), min(2*wait, 5*time.Minute/haste)
	}
	return at
}

// fleetManifest is a file with Deployments of an image, as somebody has them in
// Git.
func fleetManifest(ns string, names []string, image string) string {
	GinkgoHelper()
	list := map[string]any{"apiVersion": "v1", "kind": "List"}
	var items []any
	for _, name := range names {
		d := sleeper(ns, name).Replicas(2).Image(image).Obj()
		d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
		items = append(items, d)
	}
	list["items"] = items
	return manifest(list)
}

// A registry is gone while twenty releases are under way. Of the times of a real
// cluster these are shorter: what fails is rolled back after 6 s, not two minutes,
// the back-offs of kubelets are a twentieth, and a quarantine lasts 20 s, not an
// hour. The outage lasts until each release was rolled back or told to wait. The
// brake is the default one, as is all else. controllers/outage_test.go tells the
// same in full length.
var _ = Describe("an outage of the registry", Ordered, func() {
	w := inOwnWorld()

	It("rolls three of twenty releases back, and Git brings them in again", func(ctx SpecContext) {
		w.registryPolicy(ctx)
		w.setConfig(ctx, "rollback", true, "6s")
		w.setConfig(ctx, "quarantine", true, "20s")
		w.setConfig(ctx, "brake", true, "5/10m")
		ns := w.newNamespace(ctx, true)
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("web-%02d", i))
		}
		w.kubectl(ctx, "apply", "-f", fleetManifest(ns, names, onNodes))
		for _, name := range names {
			w.verified(ctx, ns, name)
		}
		registry := &registry{w: w, ns: ns}
		registry.set(ctx, false)
		git := fleetManifest(ns, names, released)
		w.kubectl(ctx, "apply", "-f", git)
		// applyAgain is all that anybody does from here on: what is in quarantine is
		// refused, and nothing else is.
		refused := 0
		applyAgain := func(g Gomega) {
			GinkgoHelper()
			out, _ := w.tryKubectl(ctx, "apply", "-f", git) // some are denied
			denials := strings.Count(out, "is in quarantine until")
			refused += denials
			g.Expect(strings.Count(out, "Error from server")).To(Equal(denials), out)
			g.Expect(regexp.MustCompile(`(?m)^deployment.apps/web-[0-9]+ (configured|unchanged)$`).FindAllString(out, -1)).To(HaveLen(len(names)-denials), out)
		}

		By("waiting until each is rolled back or told to wait")
		var rolledBack, held []string
		Eventually(func(g Gomega) {
			applyAgain(g)
			rolledBack, held = nil, nil
			for _, name := range names {
				if len(w.quarantineOf(ctx, g, ns, name)) > 0 {
					rolledBack = append(rolledBack, name)
				} else if c := conditionOf(w.currentChange(ctx, g, ns, name).Status.Conditions, v1alpha1.ConditionRolledBack); c.Reason == v1alpha1.ReasonBrake {
					held = append(held, name)
				}
			}
			g.Expect(len(rolledBack) + len(held)).To(Equal(20))
		}).WithContext(ctx).WithPolling(3 * time.Second).Should(Succeed())
		Expect(rolledBack).To(HaveLen(3), "half of five, rounded up: all are of one namespace")
		Expect(refused).NotTo(BeZero())
		Eventually(func(g Gomega) {
			for _, name := range held {
				g.Expect(w.eventsOf(ctx, g, ns, name)).To(ContainElement(v1alpha1.ReasonBrake))
			}
		}).WithContext(ctx).Should(Succeed())

		By("letting the registry come back")
		registry.set(ctx, true)
		Eventually(func(g Gomega) {
			registry.pull(ctx, g)
			applyAgain(g)
			for _, name := range names {
				g.Expect(w.getDeployment(ctx, g, ns, name).Spec.Template.Spec.Containers[0].Image).To(Equal(released))
				g.Expect(w.currentChange(ctx, g, ns, name).Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
			}
		}).WithContext(ctx).WithTimeout(2 * patience).WithPolling(3 * time.Second).Should(Succeed())
		for _, name := range names {
			w.verified(ctx, ns, name)
			tried := 0
			if slices.Contains(rolledBack, name) {
				tried = 1
			}
			Expect(w.quarantineOf(ctx, Default, ns, name)).To(HaveLen(tried), name)
			change := w.currentChange(ctx, Default, ns, name)
			Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionRolledBack).Reason).NotTo(Equal(v1alpha1.ReasonBrake), name)
		}
	}, SpecTimeout(15*time.Minute))
})
