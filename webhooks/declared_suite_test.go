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

package webhooks

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
)

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
          spec:
            type: object
            properties:
              replicas: {type: integer}
              part:
                type: object
                properties: {text: {type: string}, weight: {type: integer}, color: {type: string%s}}
              template: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// widgets returns the declaration of the kind in a generation. Its objects may lack both parts.
func widgets(generation int64) *declared.Kind {
	c := &v1alpha1.ChangeKind{}
	c.Name, c.Generation = "widgets.example.com", generation
	err := yaml.UnmarshalStrict([]byte(`
version: v1
enrolment: Label
content: [{path: spec.part, ignore: [weight]}, {path: spec.template, podTemplate: true}]
`), &c.Spec)
	k, problem := declared.Accept(c, declared.Served{Kind: "Widget", Namespaced: true})
	if err != nil || problem != "" {
		panic(fmt.Sprint(err, problem))
	}
	return k
}

var _ = Describe("declared kinds", Ordered, func() {
	crd := func(defaulted string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal(fmt.Appendf(nil, widgetCRD, defaulted), &u.Object)).To(Succeed())
		return u
	}
	// configure has the API server call the webhooks of a generation.
	configure := func(ctx context.Context, generation int64) {
		o := testEnv.WebhookInstallOptions
		served := func(config *admissionregistrationv1.WebhookClientConfig) {
			host := net.JoinHostPort(o.LocalServingHost, strconv.Itoa(o.LocalServingPort))
			url := "https://" + host + *config.Service.Path
			*config = admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: o.LocalServingCAData}
		}
		m := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "declared-mutating"}}
		v := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "declared-validating"}}
		m.Webhooks, v.Webhooks = widgets(generation).Webhooks()
		for i := range m.Webhooks {
			served(&m.Webhooks[i].ClientConfig)
		}
		for i := range v.Webhooks {
			served(&v.Webhooks[i].ClientConfig)
		}
		for _, c := range []client.Object{m, v} {
			live, isObject := c.DeepCopyObject().(client.Object)
			Expect(isObject).To(BeTrue())
			err := jane.Get(ctx, client.ObjectKeyFromObject(c), live)
			if apierrors.IsNotFound(err) {
				Expect(jane.Create(ctx, c)).To(Succeed())
				continue
			}
			Expect(err).NotTo(HaveOccurred())
			c.SetResourceVersion(live.GetResourceVersion())
			Expect(jane.Update(ctx, c)).To(Succeed())
		}
	}
	widget := func(name, spec string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		const form = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: %s, namespace: %s, labels: {%s: enabled}}, spec: %s}"
		text := fmt.Appendf(nil, form, name, enrolled, v1alpha1.DefenseLabel, spec)
		Expect(yaml.Unmarshal(text, &u.Object)).To(Succeed())
		return u
	}
	created := func(ctx context.Context, name, spec string) *unstructured.Unstructured {
		GinkgoHelper()
		u := widget(name, spec)
		Expect(jane.Create(ctx, u)).To(Succeed())
		return u
	}
	change := func(ctx context.Context, u *unstructured.Unstructured, data string) (*unstructured.Unstructured, error) {
		changed := u.DeepCopy()
		return changed, jane.Patch(ctx, changed, mergePatch(data))
	}
	changed := func(ctx context.Context, u *unstructured.Unstructured, data string) *unstructured.Unstructured {
		GinkgoHelper()
		got, err := change(ctx, u, data)
		Expect(err).NotTo(HaveOccurred())
		return got
	}
	blocks := func(ctx context.Context, u *unstructured.Unstructured) {
		GinkgoHelper()
		Expect(asOperator.Patch(ctx, u, mergePatch(fmt.Sprintf(`{"metadata":{"labels":{%q:"1700000000"},"annotations":{%q:%q}}}`,
			v1alpha1.SuspendLabel, v1alpha1.SuspendedByAnnotation, u.GetLabels()[v1alpha1.VersionLabel])))).To(Succeed())
		Eventually(func(g Gomega) {
			shown := u.DeepCopy()
			fromCache := &client.GetOptions{Raw: &metav1.GetOptions{ResourceVersion: "0"}}
			g.Expect(jane.Get(ctx, client.ObjectKeyFromObject(u), shown, fromCache)).To(Succeed())
			g.Expect(shown.GetLabels()).To(HaveKey(v1alpha1.SuspendLabel))
		}, 10*time.Second).Should(Succeed())
	}
	version := func(u *unstructured.Unstructured) string { return u.GetLabels()[v1alpha1.VersionLabel] }
	release := func(u *unstructured.Unstructured) string { return u.GetAnnotations()[v1alpha1.ReleaseAnnotation] }
	denied := func(name string) OmegaMatcher {
		return MatchError(ContainSubstring("widget " + name + " is suspended"))
	}

	BeforeAll(func(ctx SpecContext) {
		Expect(jane.Create(ctx, crd(""))).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(jane.Delete(ctx, crd(""))).To(Succeed()) })
		configure(ctx, 1)
		DeferCleanup(func(ctx SpecContext) {
			meta := metav1.ObjectMeta{Name: "declared-mutating"}
			Expect(jane.Delete(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta})).To(Succeed())
			meta.Name = "declared-validating"
			Expect(jane.Delete(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta})).To(Succeed())
		})
		Eventually(func(g Gomega) {
			u := widget("probe", "{}")
			g.Expect(jane.Create(ctx, u, client.DryRunAll)).To(Succeed())
			g.Expect(version(u)).NotTo(BeEmpty())
		}, time.Minute).Should(Succeed())
		probe := created(ctx, "probe", "{part: {text: a}}")
		blocks(ctx, probe)
		Eventually(func() error {
			_, err := change(ctx, probe, `{"spec":{"part":{"text":"b"}}}`)
			return err
		}, time.Minute).Should(denied("probe"))
	})

	It("have their version on the object only", func(ctx SpecContext) {
		u := created(ctx, "labelled", "{part: {text: a}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}")
		Expect(version(u)).To(Equal(widgets(1).VersionOf(u.Object)))
		Expect(release(u)).To(Equal("1"))
		labels, _, err := unstructured.NestedStringMap(u.Object, "spec", "template", "metadata", "labels")
		Expect(err).NotTo(HaveOccurred())
		Expect(labels).To(Equal(map[string]string{"a": "b"}))

		next := changed(ctx, u, `{"spec":{"template":{"spec":{"containers":[{"name":"a","image":"c"}]}}}}`)
		Expect(version(next)).To(Equal(widgets(1).VersionOf(next.Object)))
		Expect(release(next)).To(Equal("2"))
		Expect(next.GetAnnotations()).To(HaveKeyWithValue(v1alpha1.ReleasedByAnnotation, "jane"))
	})

	It("record the generation that has the version", func(ctx SpecContext) {
		u := created(ctx, "generation", "{part: {text: a}}")
		recorded := func(u *unstructured.Unstructured) {
			GinkgoHelper()
			want := fmt.Sprintf("%s %d", widgets(1).ContentHash(), u.GetGeneration())
			Expect(u.GetAnnotations()).To(HaveKeyWithValue(v1alpha1.ContentAnnotation, want))
		}
		recorded(u)
		for _, data := range []string{
			`{"spec":{"part":{"text":"b"}}}`, `{"spec":{"replicas":3}}`, `{"metadata":{"annotations":{"a":"b"}}}`, `{"spec":{"part":{"weight":1}}}`,
			`{"status":{"a":"b"}}`, `{"metadata":{"annotations":{"` + v1alpha1.ContentAnnotation + `":"x 99"}}}`,
		} {
			u = changed(ctx, u, data)
			recorded(u)
		}
		Expect(u.GetGeneration()).To(BeEquivalentTo(4))
	})

	It("without a part have a version, too", func(ctx SpecContext) {
		u := created(ctx, "absent", "{replicas: 1}")
		Expect(version(u)).NotTo(BeEmpty())
		blocks(ctx, u)
		Expect(release(changed(ctx, u, `{"spec":{"replicas":2}}`))).To(Equal("1"))
		_, err := change(ctx, u, `{"spec":{"part":{"text":"a"}}}`)
		Expect(err).To(denied("absent"))
		_, err = change(ctx, u, `{"spec":null}`)
		Expect(err).NotTo(HaveOccurred(), "both parts are missing before and after")
	})

	It("that are blocked refuse a release, and take one that is repaired", func(ctx SpecContext) {
		u := created(ctx, "blocked", "{part: {text: a}}")
		blocks(ctx, u)
		_, err := change(ctx, u, `{"spec":{"part":{"text":"b"}}}`)
		Expect(err).To(denied("blocked"))
		Expect(err).To(MatchError(ContainSubstring("kubectl label widget blocked")))
		_, err = change(ctx, u, `{"spec":{"part":null}}`)
		Expect(err).To(denied("blocked"))
		_, err = change(ctx, u, `{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":null}}}`)
		Expect(err).To(denied("blocked"))
		next := changed(ctx, u, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`,"spec":{"part":{"text":"b"}}}`)
		Expect(release(next)).To(Equal("2"))
		Expect(next.GetLabels()).To(HaveKey(v1alpha1.SuspendLabel))
		_, err = change(ctx, next, `{"spec":{"part":{"text":"c"}}}`)
		Expect(err).To(denied("blocked"))
	})

	It("that are blocked take changes of ignored parts", func(ctx SpecContext) {
		u := created(ctx, "ignored", "{part: {text: a, weight: 1}}")
		blocks(ctx, u)
		next := changed(ctx, u, `{"spec":{"part":{"weight":2}}}`)
		Expect(release(next)).To(Equal("1"))
		Expect(version(next)).To(Equal(version(u)))
		_, err := change(ctx, next, `{"spec":{"part":{"weight":3,"text":"b"}}}`)
		Expect(err).To(denied("ignored"))
	})

	It("that are blocked do not evade by a removed label", func(ctx SpecContext) {
		u := created(ctx, "unlabelled", "{part: {text: a}}")
		blocks(ctx, u)
		unlabel := `"metadata":{"labels":{"` + v1alpha1.DefenseLabel + `":null}}`
		_, err := change(ctx, u, `{`+unlabel+`,"spec":{"part":{"text":"b"}}}`)
		Expect(err).To(denied("unlabelled"))
		_, err = change(ctx, u, `{"metadata":{"labels":null},"spec":{"part":{"text":"b"}}}`)
		Expect(err).To(denied("unlabelled"))
		u = changed(ctx, u, "{"+unlabel+"}")
		Expect(version(changed(ctx, u, `{"spec":{"part":{"text":"b"}}}`))).To(Equal(version(u)), "it left the defense before")
	})

	It("without the label are left alone", func(ctx SpecContext) {
		u := widget("free", "{part: {text: a}}")
		u.SetLabels(nil)
		Expect(jane.Create(ctx, u)).To(Succeed())
		Expect(version(u)).To(BeEmpty())
	})

	It("are not released by a new default of their definition", func(ctx SpecContext) {
		u, blocked := created(ctx, "default", "{part: {text: a}}"), created(ctx, "default-blocked", "{part: {text: a}}")
		blocks(ctx, blocked)
		old := crd("")
		Expect(jane.Get(ctx, client.ObjectKeyFromObject(old), old)).To(Succeed())
		next := crd(", default: red")
		next.SetResourceVersion(old.GetResourceVersion())
		Expect(jane.Update(ctx, next)).To(Succeed())
		read := u.DeepCopy()
		Eventually(func(g Gomega) {
			g.Expect(jane.Get(ctx, client.ObjectKeyFromObject(u), read)).To(Succeed())
			color, _, _ := unstructured.NestedString(read.Object, "spec", "part", "color")
			g.Expect(color).To(Equal("red"))
		}, time.Minute).Should(Succeed())
		Expect(read.GetGeneration()).To(Equal(u.GetGeneration()), "no one wrote it")
		Expect(widgets(1).VersionOf(read.Object)).NotTo(Equal(version(u)))

		for _, u := range []*unstructured.Unstructured{u, blocked} {
			got := changed(ctx, u, `{"metadata":{"annotations":{"a":"b"}},"spec":{"replicas":2}}`)
			Expect(release(got)).To(Equal("1"))
			Expect(version(got)).To(Equal(version(u)))
			Expect(got.GetAnnotations()[v1alpha1.ContentAnnotation]).To(Equal(u.GetAnnotations()[v1alpha1.ContentAnnotation]),
				"the recorded generation has the recorded version")
		}
		Expect(release(changed(ctx, u, `{"spec":{"part":{"text":"b"}}}`))).To(Equal("2"))
		_, err := change(ctx, blocked, `{"spec":{"part":{"text":"b"}}}`)
		Expect(err).To(denied("default-blocked"))
	})

	It("in a generation that the replica does not have pass, unless they are blocked", func(ctx SpecContext) {
		u, blocked := created(ctx, "lagging", "{part: {text: a}}"), created(ctx, "lagging-blocked", "{part: {text: a}}")
		blocks(ctx, blocked)
		configure(ctx, 9)
		Eventually(func(g Gomega) {
			probe := widget("lagging-new", "{part: {text: a}}")
			g.Expect(jane.Create(ctx, probe, client.DryRunAll)).To(Succeed())
			g.Expect(version(probe)).To(BeEmpty())
			_, err := change(ctx, blocked, `{"spec":{"part":{"text":"b"}}}`)
			g.Expect(err).To(MatchError(ContainSubstring("does not have generation 9 of the ChangeKind widgets.example.com yet; retry")))
		}, time.Minute).Should(Succeed())
		next := changed(ctx, u, `{"spec":{"part":{"text":"b"}}}`)
		Expect(version(next)).To(Equal(version(u)), "the controller finds the release")
		Expect(release(changed(ctx, blocked, `{"spec":{"replicas":2}}`))).To(Equal("1"))

		configure(ctx, 1)
		Eventually(func() error {
			_, err := change(ctx, blocked, `{"spec":{"part":{"text":"b"}}}`)
			return err
		}, time.Minute).Should(denied("lagging-blocked"))
	})
})
