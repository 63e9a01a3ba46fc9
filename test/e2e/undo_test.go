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
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// policy is a third-party admission policy: it denies the operator's writes to the Deployments of a namespace.
type policy struct {
	mu     sync.Mutex
	denies func(*admissionv1.AdmissionRequest) *metav1.Status
	// denied is the number of denied requests.
	denied int
}

func (p *policy) ServeHTTP(response http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &review) != nil || review.Request == nil {
		http.Error(response, "no review", http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	status := p.denies(review.Request)
	if status != nil {
		p.denied++
	}
	p.mu.Unlock()
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: status == nil, Result: status}
	review.Request = nil
	_ = json.NewEncoder(response).Encode(review)
}

func (p *policy) set(denies func(*admissionv1.AdmissionRequest) *metav1.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.denies = denies
}

func (p *policy) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.denied
}

func letsPass(*admissionv1.AdmissionRequest) *metav1.Status { return nil }

// withCode denies the operator's own writes.
func withCode(code int32, reason metav1.StatusReason) func(*admissionv1.AdmissionRequest) *metav1.Status {
	return func(r *admissionv1.AdmissionRequest) *metav1.Status {
		if r.UserInfo.Username != managerUser {
			return nil
		}
		message := "request " + string(r.UID) + " is against the rules"
		return &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
	}
}

// newPolicy installs a policy for the Deployments of a namespace, until the end of a spec.
func (w *world) newPolicy(ctx context.Context, ns string) *policy {
	GinkgoHelper()
	p := &policy{denies: letsPass}
	server := httptest.NewTLSServer(p)
	DeferCleanup(server.Close)
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "policy-" + ns},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "policy.example.com",
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           ptr.To(admissionregistrationv1.Ignore),
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": ns}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(server.URL + "/"),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}},
		}},
	}
	Expect(w.api.Create(ctx, configuration)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { Expect(w.api.Delete(ctx, configuration)).To(Succeed()) })
	return p
}

var _ = Describe("a third-party policy", func() {
	w := inSharedWorld()

	DescribeTable("that denies the block is reported, and the block is retried more and more rarely", func(
		ctx SpecContext, code int32, reason metav1.StatusReason,
	) {
		ns := w.newNamespace(ctx, true)
		p := w.newPolicy(ctx, ns)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		change := w.verified(ctx, ns, "web")
		p.set(withCode(code, reason))
		w.setVerdict(ctx, change, "unpass")
		Eventually(func(g Gomega) {
			change = w.currentChange(ctx, g, ns, "web")
			g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend), "the verdict counts")
			blocked := conditionOf(change.Status.Conditions, v1alpha1.ConditionBlocked)
			g.Expect([]string{string(blocked.Status), blocked.Reason}).To(Equal([]string{"False", v1alpha1.ReasonWriteDenied}))
			denied := conditionOf(change.Status.Conditions, v1alpha1.ConditionDefended)
			g.Expect([]string{string(denied.Status), denied.Reason}).To(Equal([]string{"False", v1alpha1.ReasonWriteDenied}))
			g.Expect(denied.Message).To(And(
				ContainSubstring(`admission webhook "policy.example.com" denied the request`), ContainSubstring("is against the rules")))
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement(v1alpha1.ReasonWriteDenied))
		}).WithContext(ctx).Should(Succeed())
		By("trying again after 1, 1, 2, 4, 8 seconds")
		first, since := p.count(), time.Now()
		Eventually(p.count).WithContext(ctx).Should(BeNumerically(">", first+1))
		Consistently(func() float64 {
			return float64(p.count()-first) - time.Since(since).Seconds()
		}).WithContext(ctx).WithTimeout(4*time.Second).Should(BeNumerically("<", 2), "more than a try each second")
		By("letting it pass")
		p.set(letsPass)
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
			change = w.currentChange(ctx, g, ns, "web")
			g.Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionBlocked).Status).To(Equal(metav1.ConditionTrue))
			g.Expect(change.Status.DeniedWrite).To(BeNil())
		}).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
	},
		Entry("as an object that is gone", int32(404), metav1.StatusReasonNotFound),
	)
})

// wentBack waits until a Deployment is back at a version by an undo of another version, and is not blocked.
func (w *world) wentBack(ctx context.Context, ns, name, from, to string) {
	GinkgoHelper()
	d := w.getDeployment(ctx, Default, ns, name)
	Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, to))
	Expect(d.Spec.Paused).To(BeFalse())
	Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
	w.verified(ctx, ns, name)
	Eventually(func(g Gomega) {
		g.Expect(w.getDeployment(ctx, g, ns, name).Labels).NotTo(HaveKey(v1alpha1.SuspendLabel), "the block goes with the success")
		g.Expect(w.eventsOf(ctx, g, ns, name)).To(ContainElement(v1alpha1.EventReleaseUndone))
	}).WithContext(ctx).Should(Succeed())
	why := w.quarantineOf(ctx, Default, ns, name)[from]
	Expect([]string{why.Cause, why.Reason}).To(Equal([]string{v1alpha1.ReasonVerificationFailed, "unpass"}))
}

var _ = Describe("an undo", func() {
	w := inSharedWorld()

	It("passes the block of a rollout that is halted, which kubectl rollout undo cannot", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		bad := w.failInFlight(ctx, inFlight(ns, "web").Replicas(4)).Spec.Reversion
		history := w.revisionsOf(ctx, Default, ns, "web")
		Expect(history).To(HaveLen(1))
		good := history[0].Labels[v1alpha1.VersionLabel]
		Expect(w.getDeployment(ctx, Default, ns, "web").Spec.Paused).To(BeTrue())
		By("denying a version that is neither good nor an override, with the next steps")
		out, err := w.tryKubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:3")
		Expect(denied("web")(out, err)).To(BeTrue(), out)
		Expect(out).To(And(ContainSubstring("To undo the release: apply version "+good+" again"),
			ContainSubstring("rollback-to=last-success"), Not(ContainSubstring("rollout undo"))))
		out, err = w.tryKubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		Expect(err).To(HaveOccurred())
		Expect(out).To(ContainSubstring("paused"))
		By("reverting in Git")
		Expect(w.patchTemplate(ctx, ns, "web", "123")).To(Succeed())
		w.wentBack(ctx, ns, "web", bad, good)
		By("applying the bad version again")
		Expect(w.patchTemplate(ctx, ns, "web", "bad")).To(MatchError(ContainSubstring("was rolled back at ")))
		w.restful(ctx, ns)
	})

	It("is kubectl rollout undo of a failed release whose rollout is complete, and does not pass a user's block", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		good := w.verified(ctx, ns, "web").Spec.Reversion
		Expect(w.patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
		bad := w.verified(ctx, ns, "web").Spec.Reversion
		By("keeping a user's own block")
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.SuspendLabel+"=1")
		out, err := w.tryKubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		Expect(denied("web")(out, err)).To(BeTrue(), out)
		w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.IgnoredSuspendLabel+"=true", v1alpha1.SuspendLabel+"-")
		By("passing the operator's block")
		w.setVerdict(ctx, w.currentChange(ctx, Default, ns, "web"), "unpass")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		w.kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		w.wentBack(ctx, ns, "web", bad, good)
		By("releasing a known good version normally")
		Expect(w.patchTemplate(ctx, ns, "web", "next")).To(Succeed())
		w.verified(ctx, ns, "web")
		w.kubectl(ctx, "-n", ns, "rollout", "undo", "deployment/web")
		w.verified(ctx, ns, "web")
		Expect(w.getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad), "nothing else")
		w.restful(ctx, ns)
	})
})

var _ = Describe("a manifest applied after a rollback", func() {
	w := inSharedWorld()

	// apply applies a Deployment by kubectl, with further flags.
	apply := func(ctx context.Context, ns string, how []string, change func(*appsv1.Deployment)) (string, error) {
		GinkgoHelper()
		d := sleeper(ns, "web").Replicas(2).With(slowly).With(afterAWhile).With(change).Obj()
		d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
		manifest, err := json.Marshal(d)
		Expect(err).NotTo(HaveOccurred())
		file := filepath.Join(GinkgoT().TempDir(), "web.json")
		Expect(os.WriteFile(file, manifest, 0o600)).To(Succeed())
		return w.tryKubectl(ctx, append([]string{"apply", "-f", file}, how...)...)
	}
	bad := func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybo" }

	DescribeTable("is released as it is, without a conflict", func(ctx SpecContext, how ...string) {
		ns := w.newNamespace(ctx, true)
		out, err := apply(ctx, ns, how, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OLD", Value: "1"}}
			d.Spec.Template.Spec.Containers = append(d.Spec.Template.Spec.Containers, corev1.Container{Name: "old", Image: "busybox"})
		})
		Expect(err).NotTo(HaveOccurred(), out)
		w.verified(ctx, ns, "web")
		By("adding a variable by another tool, which is a release")
		w.kubectl(ctx, "-n", ns, "set", "env", "deployment/web", "-c", "sleep", "KEEP=1")
		good := w.verified(ctx, ns, "web")
		By("applying a version that does not come up")
		out, err = apply(ctx, ns, how, func(d *appsv1.Deployment) {
			bad(d)
			d.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NEW", Value: "1"}}
		})
		Expect(err).NotTo(HaveOccurred(), out)
		w.rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		By("applying the fix")
		w.withoutHurry(ctx, ns, "web")
		fix := func(d *appsv1.Deployment) {
			d.Annotations[v1alpha1.SettingAnnotationPrefix+"rollback"] = "10m"
			d.Spec.Template.Spec.Containers[0].Image = "busybox:fix"
			d.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NEW", Value: "1"}}
		}
		// A second write gives the fields back.
		Eventually(func() error {
			out, err := apply(ctx, ns, how, fix)
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		}).WithContext(ctx).Should(Succeed())
		w.verified(ctx, ns, "web")
		containers := w.getDeployment(ctx, Default, ns, "web").Spec.Template.Spec.Containers
		Expect(containers).To(HaveLen(1))
		Expect(containers[0].Image).To(Equal("busybox:fix"))
		Expect(containers[0].Env).To(ConsistOf(corev1.EnvVar{Name: "NEW", Value: "1"}, corev1.EnvVar{Name: "KEEP", Value: "1"}))
		w.restful(ctx, ns)
	},
		Entry("by kubectl apply"),
	)
})
