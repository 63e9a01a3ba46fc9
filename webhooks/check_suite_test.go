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
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"gomodules.xyz/jsonpatch/v2"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// The API server calls the late webhook after the operator's, and then the operator's again.
const (
	lateWebhookPath = "/late"
	// lateLabel selects the change of the late webhook: annotation, template, or restless,
	// which changes the template differently at each write of a user.
	lateLabel = "late"
)

func lateWebhook(_ context.Context, req admission.Request) admission.Response {
	var d appsv1.Deployment
	if err := json.Unmarshal(req.Object.Raw, &d); err != nil {
		return admission.Errored(500, err)
	}
	const label = "/spec/template/metadata/labels/late"
	switch what := d.Labels[lateLabel]; {
	case what == "template":
		return admission.Patched("", jsonpatch.NewOperation("add", label, "yes"))
	case what == "restless" && req.UserInfo.Username != operator:
		return admission.Patched("", jsonpatch.NewOperation("add", label, string(req.UID)))
	}
	return admission.Patched("", jsonpatch.NewOperation("add", "/metadata/annotations/late", "yes"))
}

// installLateWebhook installs the late webhook for Deployments with lateLabel.
func installLateWebhook(ctx context.Context) {
	GinkgoHelper()
	local := testEnv.WebhookInstallOptions
	url := "https://" + net.JoinHostPort(local.LocalServingHost, strconv.Itoa(local.LocalServingPort)) + lateWebhookPath
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		// The API server calls webhooks in the order of these names.
		ObjectMeta: metav1.ObjectMeta{Name: "z-late"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:         "late.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: local.LocalServingCAData},
			ObjectSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: lateLabel, Operator: metav1.LabelSelectorOpExists}},
			},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}},
			}},
		}},
	}
	Expect(jane.Create(ctx, config)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(jane.Delete(ctx, config)).To(Succeed()) })
	Eventually(func(g Gomega) {
		d := sleep("late-probe")
		d.Labels[lateLabel] = "annotation"
		g.Expect(jane.Create(ctx, d, client.DryRunAll)).To(Succeed())
		g.Expect(d.Annotations).To(HaveKey("late"))
	}, time.Minute).Should(Succeed())
}

var _ = Describe("The admission check", Ordered, func() {
	on := func(answer func(context.Context, Question) (Answer, error), change ...func(*settings.Settings) error) {
		asking.become(answer, func(s *settings.Settings) error {
			for _, edit := range change {
				if err := edit(s); err != nil {
					return err
				}
			}
			return nil
		})
		DeferCleanup(func() { asking.become(nil, unasked) })
	}
	pass := answers(Answer{Passes: true}, nil)
	versions := func() []string {
		var versions []string
		for _, q := range asking.asked() {
			versions = append(versions, q.Version)
		}
		return versions
	}
	BeforeEach(func() { warnings.texts = nil })

	It("asks about releases, and only about them", func(ctx SpecContext) {
		on(pass)
		d := create(ctx, "checked")
		patched(ctx, d, "{"+repair+"}")
		scale(ctx, d, 3)
		patched(ctx, d, "{"+meta("annotations", "a", "b")+"}")
		patchedDryRun(ctx, d, "{"+another+"}")
		Expect(versions()).To(Equal([]string{sleepVersion, repairVersion}))
		Expect(warnings.texts).To(BeEmpty())
	})

	It("denies with the server's message", func(ctx SpecContext) {
		d := create(ctx, "frozen")
		on(answers(Answer{Explanation: "change freeze; http://altershield.example/why"}, nil))
		Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(MatchError(Equal(
			`admission webhook "mdeployment.kb.io" denied the request: deployment frozen: version ` + repairVersion +
				` may not be released: change freeze; http://altershield.example/why`)))
		Expect(jane.Create(ctx, sleep("frozen-too"))).To(MatchError(ContainSubstring("change freeze")))
		Expect(reload(ctx, d).ResourceVersion).To(Equal(d.ResourceVersion))
		scale(ctx, d, 3)
	})

	It("lets pass with a warning when there is no answer", func(ctx SpecContext) {
		d := create(ctx, "unanswered")
		on(patience)
		Expect(patched(ctx, d, "{"+repair+"}")).To(SatisfyAll(haveVersion(repairVersion), haveRelease("2")))
		Expect(warnings.texts).To(ConsistOf("AlterShield Server gave no answer in 2s; released without its check"))
	})

	It("denies after the longest limit without an answer if the setting silence is on", func(ctx SpecContext) {
		d := create(ctx, "silenced")
		on(patience, func(s *settings.Settings) error {
			s.AdmissionTimeout, s.SilenceFails = settings.MaxAdmissionTimeout, true
			return nil
		})
		Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(MatchError(ContainSubstring(
			`may not be released: AlterShield Server gave no answer in 2.9s, and the OpsConfigInfo "silence" makes that a failure`)))
	})

	It("does not ask about a blocked workload", func(ctx SpecContext) {
		d := blocked(ctx, "checked-blocked")
		on(answers(Answer{Explanation: "frozen"}, nil))
		Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(beDenied(d.Name))
		patched(ctx, d, `{`+meta("labels", v1alpha1.IgnoredSuspendLabel, "true")+`,`+repair+`}`)
		Expect(asking.asked()).To(BeEmpty())
	})

	It("does not ask about the operator's own release", func(ctx SpecContext) {
		d := create(ctx, "checked-own")
		on(answers(Answer{Explanation: "frozen"}, nil))
		Expect(asOperator.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(Succeed())
		Expect(sameUser.Patch(ctx, d.DeepCopy(), mergePatch("{"+another+"}"))).To(MatchError(ContainSubstring("frozen")))
	})

	Describe("with a webhook after it", Ordered, func() {
		BeforeAll(func(ctx SpecContext) { installLateWebhook(ctx) })

		It("asks once although it is called twice", func(ctx SpecContext) {
			on(pass)
			d := sleep("late-annotation")
			d.Labels[lateLabel] = "annotation"
			Expect(jane.Create(ctx, d)).To(Succeed())
			Expect(asking.called()).To(BeNumerically(">=", 2), "calls of the webhook")
			Expect(versions()).To(Equal([]string{sleepVersion}))
		})

		It("asks again about the version that is released after the late webhook", func(ctx SpecContext) {
			on(pass)
			d := sleep("late-template")
			d.Labels[lateLabel] = "template"
			Expect(jane.Create(ctx, d)).To(Succeed())
			Expect(versions()).To(Equal([]string{sleepVersion, d.Labels[v1alpha1.VersionLabel]}))
			Expect(d).NotTo(haveVersion(sleepVersion))
			calls := map[string]bool{}
			for _, q := range asking.asked() {
				calls[string(q.RequestUID)] = true
			}
			Expect(calls).To(HaveLen(2), "each call has a UID of its own")
		})
	})

	// During a rollout the status is written often. Each write makes the API server call the
	// webhooks again.
	It("asks once although the status is written meanwhile", func(ctx SpecContext) {
		n := 0
		for name, answer := range map[string]func() (Answer, error){
			"busy":   func() (Answer, error) { return Answer{Passes: true}, nil },
			"silent": func() (Answer, error) { return Answer{}, &altershield.Error{Err: context.DeadlineExceeded} },
		} {
			// Each case has its own Deployment: the API server tries a second release first on the
			// cached object, which may be older than the first release, and so asks another question.
			d := create(ctx, name)
			on(func(ctx context.Context, _ Question) (Answer, error) {
				n++
				if err := jane.Status().Patch(ctx, d.DeepCopy(), mergePatch(fmt.Sprintf(`{"status":{"replicas":%d}}`, n))); err != nil {
					return Answer{}, err
				}
				return answer()
			})
			patched(ctx, d, `{`+template(fmt.Sprintf(`"test":%q`, name))+`}`)
			Expect(asking.called()).To(BeNumerically(">=", 2), "calls of the webhook")
			Expect(asking.asked()).To(HaveLen(1))
		}
	})
})
