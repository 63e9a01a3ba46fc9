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
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// heldSet is a StatefulSet of five pods whose rollouts are held.
type heldSet struct{ native }

// holdingSet creates a heldSet in a namespace of its own, with a policy that holds it.
func (w *world) holdingSet(ctx context.Context, until v1alpha1.HoldUntil, with func(spec, annotations map[string]any)) heldSet {
	GinkgoHelper()
	s := heldSet{native{w, "statefulset", w.newNamespace(ctx, true)}}
	annotations := map[string]any{}
	o := s.manifest(func(spec map[string]any) {
		spec["replicas"] = int64(5)
		if with != nil {
			with(spec, annotations)
		}
	})
	Expect(unstructured.SetNestedMap(o.Object, annotations, "metadata", "annotations")).To(Succeed())
	// After a server-side apply, no manager owns the defaulted fields.
	Expect(w.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("creator"))).To(Succeed())
	s.change(ctx, v1alpha1.ChangeWorkloadSuccess)
	w.newDefensePolicy(ctx, holdPolicy(s.namespace, until, someday), v1alpha1.ReasonInForce)
	return s
}

func (s heldSet) partition(ctx context.Context, g Gomega) int64 {
	GinkgoHelper()
	p, _, err := unstructured.NestedInt64(s.get(ctx, g).Object, "spec", "updateStrategy", "rollingUpdate", "partition")
	g.Expect(err).NotTo(HaveOccurred())
	return p
}

// of returns the names of the pods with a value of the label test.
func (s heldSet) of(ctx context.Context, g Gomega, value string) (names []string) {
	GinkgoHelper()
	for _, p := range s.pods(ctx, g) {
		if p.Labels["test"] == value {
			names = append(names, p.Name)
		}
	}
	return names
}

// waits waits until the rollout is held at a partition, only these pods have a version, and their checks are running.
func (s heldSet) waits(ctx context.Context, value string, partition int64, pods ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(s.partition(ctx, g)).To(Equal(partition))
		g.Expect(s.of(ctx, g, value)).To(ConsistOf(pods))
		c := s.current(ctx, g)
		checked := 0
		for _, b := range s.batchesOf(ctx, g, c) {
			if len(b.Status.Checks) > 0 {
				checked += len(b.Spec.PodInfos)
			}
		}
		g.Expect(checked).To(BeNumerically(">=", len(pods)))
		g.Expect(conditionOf(c.Status.Conditions, v1alpha1.ConditionHeld)).To(
			And(HaveField("Status", metav1.ConditionTrue), HaveField("Reason", v1alpha1.ReasonWaitingForVerdicts)))
		g.Expect(conditionOf(c.Status.Conditions, v1alpha1.ConditionProgressing).Reason).To(Equal(v1alpha1.ReasonRollingOut))
	}).WithContext(ctx).Should(Succeed())
	Expect(s.get(ctx, Default).GetAnnotations()).To(HaveKey(v1alpha1.HeldAnnotation))
}

func (s heldSet) current(ctx context.Context, g Gomega) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	c := s.changesIn(ctx, g, s.namespace)["sleep--x--"+s.kind+"-"+s.get(ctx, g).GetLabels()[v1alpha1.VersionLabel]]
	g.Expect(c).NotTo(BeNil())
	return c
}

// pass passes the running checks.
func (s heldSet) pass(ctx context.Context) {
	GinkgoHelper()
	s.passBatches(ctx, s.batchesOf(ctx, Default, s.current(ctx, Default)))
}

func (s heldSet) passToTheEnd(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		s.pass(ctx)
		g.Expect(s.current(ctx, g).Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
	}).WithContext(ctx).WithPolling(time.Second).Should(Succeed())
	s.change(ctx, v1alpha1.ChangeWorkloadSuccess)
}

// given waits until the hold has ended, for a reason unless it is empty, and checks the partition that is given back.
func (s heldSet) given(ctx context.Context, partition int64, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(s.get(ctx, g).GetAnnotations()).NotTo(HaveKey(v1alpha1.HeldAnnotation))
		if reason != "" {
			g.Expect(conditionOf(s.current(ctx, g).Status.Conditions, v1alpha1.ConditionHeld)).To(
				And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
		}
	}).WithContext(ctx).Should(Succeed())
	Expect(s.partition(ctx, Default)).To(Equal(partition))
}

// applies applies a partition server-side, and forces nothing.
func (s heldSet) applies(ctx context.Context, partition int64) error {
	strategy := map[string]any{"rollingUpdate": map[string]any{"partition": partition}}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"updateStrategy": strategy}}}
	o.SetGroupVersionKind(s.manifest(nil).GroupVersionKind())
	o.SetNamespace(s.namespace)
	o.SetName("sleep")
	return s.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("git"))
}
