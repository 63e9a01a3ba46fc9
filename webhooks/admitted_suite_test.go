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

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// strippedField is a field that an API server drops between mutating and validating webhooks,
// because its feature gate is off.
const strippedField = `"spec":{"template":{"spec":{"schedulingGroup":{"podGroupName":"group"}}}}`

// stripped returns a manifest with strippedField.
func stripped(name string) *appsv1.Deployment {
	d := sleep(name)
	d.Spec.Template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("group")}
	return d
}

// storedVersion returns the version of the stored template.
func storedVersion(d *appsv1.Deployment) string {
	GinkgoHelper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&d.Spec.Template)
	Expect(err).NotTo(HaveOccurred())
	return workload.Version(content)
}

// recorded records the version of the stored template, as the operator does after a release.
func recorded(ctx context.Context, d *appsv1.Deployment) *appsv1.Deployment {
	GinkgoHelper()
	w := &workload.Workload{
		ResourceVersion: d.ResourceVersion, Labels: d.Labels, Annotations: d.Annotations,
		Version: storedVersion(d), Stamp: d.Spec.Template.Labels[v1alpha1.VersionLabel],
	}
	r := defense.DecideWorkload(defense.WorkloadInput{Workload: w, Enrolled: true}).Record
	Expect(r).To(HaveField("Slipped", BeFalse()))
	Expect(asOperator.Patch(ctx, d, mergePatch(fmt.Sprintf(`{"metadata":{"labels":{%q:%q},"annotations":{%q:%q}}}`,
		v1alpha1.VersionLabel, r.Version, v1alpha1.AdmittedAnnotation, r.Admitted)))).To(Succeed())
	return d
}

// haveContent matches an object that is as before, except for its managed fields and resource
// version: the API server stores a write of a field that it drops, and sorts the managers by
// the second of their last write.
func haveContent(before *appsv1.Deployment) gomegatypes.GomegaMatcher {
	content := func(d *appsv1.Deployment) *appsv1.Deployment {
		d = d.DeepCopy()
		d.ManagedFields, d.ResourceVersion = nil, ""
		return d
	}
	return WithTransform(content, Equal(content(before)))
}

var _ = Describe("A template that differs from the one in admission when stored", Ordered, func() {
	// made creates a Deployment with strippedField, and records it.
	made := func(ctx context.Context, name string) *appsv1.Deployment {
		GinkgoHelper()
		d := stripped(name)
		Expect(jane.Create(ctx, d)).To(Succeed())
		Expect(d.Spec.Template.Spec.SchedulingGroup).To(BeNil(), "the feature is off")
		Expect(storedVersion(d)).To(Equal(sleepVersion))
		return recorded(ctx, d)
	}
	expectUnchanged := func(ctx context.Context, d *appsv1.Deployment) {
		GinkgoHelper()
		before := reload(ctx, d)
		Expect(patched(ctx, d, "{"+strippedField+"}")).To(haveContent(before), "patched")
		manifest := stripped(d.Name)
		manifest.Labels, manifest.Annotations = before.Labels, nil
		Expect(jane.Update(ctx, manifest)).To(Succeed())
		Expect(manifest).To(haveContent(before), "replaced")
	}

	It("is no release when it is applied again", func(ctx SpecContext) {
		d := made(ctx, "stripped")
		expectUnchanged(ctx, d)
		got := patched(ctx, d, `{`+meta("labels", "a", "b")+`,`+strippedField+`}`)
		Expect(got).To(haveRelease("1"))
		Expect(got.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, sleepVersion))
		Expect(got.Spec.Template).To(Equal(d.Spec.Template))
		Expect(patched(ctx, d, "{"+repair+"}")).To(SatisfyAll(haveVersion(repairVersion), haveRelease("2")))
	})

	It("neither removes a block nor passes it", func(ctx SpecContext) {
		d := made(ctx, "stripped-blocked")
		block(ctx, d)
		expectUnchanged(ctx, d)
		release := `{"spec":{"template":{"metadata":{"labels":{"test":"1234"}},"spec":{"schedulingGroup":{"podGroupName":"group"}}}}}`
		Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(release))).To(beDenied(d.Name))
	})

	It("does not pass by a forged annotation", func(ctx SpecContext) {
		d := blocked(ctx, "forged-admitted")
		forged := meta("annotations", v1alpha1.AdmittedAnnotation, repairVersion+"="+sleepVersion)
		Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch(`{`+forged+`,`+repair+`}`))).To(beDenied(d.Name))
		Expect(patched(ctx, d, `{`+forged+`}`).Annotations).NotTo(HaveKey(v1alpha1.AdmittedAnnotation))

		By("through the status subresource, without admission")
		Expect(jane.Status().Patch(ctx, d.DeepCopy(), mergePatch(`{`+forged+`}`))).To(Succeed())
		Expect(reload(ctx, d).Annotations).To(HaveKeyWithValue(v1alpha1.AdmittedAnnotation, repairVersion+"="+sleepVersion))
		Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).To(beDenied(d.Name))

		By("for a version in quarantine")
		Expect(asOperator.Patch(ctx, d, mergePatch(fmt.Sprintf(`{"metadata":{"labels":{%q:null},"annotations":{%q:%q}}}`,
			v1alpha1.SuspendLabel, v1alpha1.QuarantinedAnnotation, repairVersion)))).To(Succeed())
		Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+repair+"}"))).
			To(MatchError(ContainSubstring("version " + repairVersion + " was rolled back")))
	})

	Describe("because of a webhook after it", Ordered, func() {
		BeforeAll(func(ctx SpecContext) { installLateWebhook(ctx) })

		late := func(ctx context.Context, name, what string) *appsv1.Deployment {
			GinkgoHelper()
			d := stripped(name)
			d.Labels[lateLabel] = what
			Expect(jane.Create(ctx, d)).To(Succeed())
			return recorded(ctx, d)
		}
		apply := func(ctx context.Context, d *appsv1.Deployment, more string) *appsv1.Deployment {
			GinkgoHelper()
			return patched(ctx, d, `{`+more+
				`"spec":{"template":{"metadata":{"labels":{"late":null}},"spec":{"schedulingGroup":{"podGroupName":"group"}}}}}`)
		}

		It("is no release when it is applied again, in either call", func(ctx SpecContext) {
			d := late(ctx, "late-again", "template")
			Expect(d.Spec.Template.Labels).To(HaveKey("late"))
			// The API server first calls admission with the object in its cache, which is this one now.
			Expect(apply(ctx, d, "")).To(haveContent(d))
			asking.become(answers(Answer{Explanation: "frozen"}, nil), func(s *settings.Settings) error { return nil })
			DeferCleanup(func() { asking.become(nil, unasked) })
			Expect(apply(ctx, d, "")).To(haveContent(d))
			got := apply(ctx, d, meta("annotations", v1alpha1.RollbackToAnnotation, "last-success")+",")
			Expect(got).To(haveRelease("1"))
			Expect(got.Annotations).To(HaveKey(v1alpha1.RollbackToAnnotation), "it is about this release")
			Expect(asking.asked()).To(BeEmpty())
		})

		It("is a release each time that the other webhook changes it", func(ctx SpecContext) {
			d := late(ctx, "late-restless", "restless")
			for n := 2; n < 6; n++ {
				got := apply(ctx, d, "")
				Expect(got).To(haveRelease(fmt.Sprint(n)))
				Expect(got.Annotations).To(HaveKeyWithValue(v1alpha1.ReleasedByAnnotation, "jane"))
				d = recorded(ctx, got)
			}
			block(ctx, d)
			Expect(jane.Patch(ctx, d.DeepCopy(), mergePatch("{"+strippedField+"}"))).To(beDenied(d.Name))
		})
	})
})
