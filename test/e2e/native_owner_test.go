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
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// keeper applies the whole spec of a workload each second, server-side and by force, as an operator does with its objects, and as GitOps
// tools do.
type keeper struct {
	n     native
	owner *corev1.ConfigMap

	mu       sync.Mutex
	manifest *unstructured.Unstructured
	applied  int
	refused  []error
}

// keep starts a keeper of a workload, until the end of the spec. owner is the controller of the workload, or nil.
func (n native) keep(owner *corev1.ConfigMap, manifest *unstructured.Unstructured) *keeper {
	k := &keeper{n: n, owner: owner}
	k.set(manifest)
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ticker := time.NewTicker(time.Second); ; {
			k.apply(ctx)
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
			}
		}
	}()
	DeferCleanup(func() { stop(); <-stopped })
	return k
}

// set sets the manifest to apply from now on.
func (k *keeper) set(manifest *unstructured.Unstructured) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.owner != nil {
		Expect(unstructured.SetNestedSlice(manifest.Object, []any{map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "name": k.owner.Name, "uid": string(k.owner.UID), "controller": true,
		}}, "metadata", "ownerReferences")).To(Succeed())
	}
	k.manifest = manifest
}

func (k *keeper) apply(ctx context.Context) {
	k.mu.Lock()
	manifest := k.manifest.DeepCopy()
	k.mu.Unlock()
	err := k.n.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest), client.FieldOwner("keeper"), client.ForceOwnership)
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.applied++
	if err != nil {
		k.refused = append(k.refused, err)
	}
}

// goesOn waits until the manifest was applied several more times, and returns the errors.
func (k *keeper) goesOn(ctx context.Context) []error {
	GinkgoHelper()
	state := func() (int, []error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.applied, k.refused
	}
	applied, refused := state()
	Eventually(func() int { now, _ := state(); return now }).WithContext(ctx).Should(BeNumerically(">", applied+3))
	_, all := state()
	return all[len(refused):]
}

// still checks that nothing is written to the workload while its manifest is applied, and returns the errors.
func (k *keeper) still(ctx context.Context) []error {
	GinkgoHelper()
	k.n.restful(ctx, k.n.namespace)
	before := k.n.get(ctx, Default)
	refused := k.goesOn(ctx)
	after := k.n.get(ctx, Default)
	Expect(after.GetGeneration()).To(Equal(before.GetGeneration()))
	Expect(after.GetResourceVersion()).To(Equal(before.GetResourceVersion()))
	return refused
}

var _ = Describe("beside a tool that applies the whole spec of other kinds each second", func() {
	w := inSharedWorld()

	// complete returns a manifest that sets the defaulted fields, too.
	complete := func(n native, value, image string) *unstructured.Unstructured {
		o := n.manifest(func(spec map[string]any) {
			spec["updateStrategy"] = map[string]any{
				"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": int64(1), "maxSurge": int64(0)},
			}
			if n.kind == "statefulset" {
				parallel(spec)
				spec["updateStrategy"] = map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"partition": int64(0)}}
			}
			waitsAtGate(spec)
			metadata := spec["template"].(map[string]any)["metadata"].(map[string]any) //nolint:errcheck,forcetypeassert // as manifest makes it
			metadata["labels"].(map[string]any)["test"] = value                        //nolint:errcheck,forcetypeassert // as manifest makes it
			pod := spec["template"].(map[string]any)["spec"].(map[string]any)          //nolint:errcheck,forcetypeassert // as manifest makes it
			pod["containers"].([]any)[0].(map[string]any)["image"] = image             //nolint:errcheck,forcetypeassert // as manifest makes it
		})
		o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + "rollback": "5s"})
		return o
	}

	for _, kind := range []string{"statefulset", "daemonset"} {
		It("which does not own a "+kind+": there is no tug of war, whatever becomes of its releases", func(ctx SpecContext) {
			n := native{w, kind, w.newNamespace(ctx, true)}
			p := w.startPorter(n.namespace)
			k := n.keep(nil, complete(n, "first", "busybox"))
			first := n.verified(ctx, 3)
			Expect(k.still(ctx)).To(BeEmpty())
			By("releasing a version that never starts")
			k.set(complete(n, "bad", "busybo"))
			Eventually(func(g Gomega) {
				g.Expect(n.get(ctx, g).GetAnnotations()).To(HaveKey(v1alpha1.QuarantinedAnnotation))
			}).WithContext(ctx).Should(Succeed())
			Expect(n.verified(ctx, 3).Spec.Reversion).To(Equal(first.Spec.Reversion))
			Expect(k.still(ctx)).To(And(Not(BeEmpty()), HaveEach(MatchError(ContainSubstring("was rolled back at ")))))
			n.blockedInFlight(ctx, k, p, complete)
		})

		It("which forces nothing upon a "+kind+": it conflicts with a halt, and with nothing after it", func(ctx SpecContext) {
			n := native{w, kind, w.newNamespace(ctx, true)}
			p := w.startPorter(n.namespace)
			apply := func(manifest *unstructured.Unstructured, force ...client.ApplyOption) error {
				force = append(force, client.FieldOwner(applierName))
				return w.api.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest.DeepCopy()), force...)
			}
			fails := func(value string) {
				GinkgoHelper()
				p.let(1)
				Expect(apply(complete(n, value, "busybox"))).To(Succeed())
				w.setVerdict(ctx, n.passed(ctx, 1), "unpass")
				Eventually(func(g Gomega) {
					g.Expect(n.get(ctx, g).GetAnnotations()).To(HaveKey(v1alpha1.HaltedAnnotation))
				}).WithContext(ctx).Should(Succeed())
				err := apply(complete(n, value, "busybox"))
				Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
				Expect(err).To(MatchError(And(
					ContainSubstring(`conflict with "`+v1alpha1.FieldManager+`"`), ContainSubstring(".spec.updateStrategy."))))
				Expect(n.get(ctx, Default).GetAnnotations()).To(HaveKey(v1alpha1.HaltedAnnotation))
				p.letAll()
			}
			free := func(value string) {
				GinkgoHelper()
				Eventually(func() error { return apply(complete(n, value, "busybox")) }).WithContext(ctx).Should(Succeed())
				w.restful(ctx, n.namespace)
				before := n.get(ctx, Default).GetResourceVersion()
				Expect(apply(complete(n, value, "busybox"))).To(Succeed())
				Expect(n.get(ctx, Default).GetResourceVersion()).To(Equal(before))
			}
			Expect(apply(complete(n, "first", "busybox"))).To(Succeed())
			n.verified(ctx, 3)
			fails("second")
			w.setVerdict(ctx, n.current(ctx, Default), "pass")
			n.verified(ctx, 3)
			free("second")
			By("overriding a halt by force")
			fails("third")
			repair := complete(n, "repair", "busybox")
			repair.SetLabels(map[string]string{v1alpha1.IgnoredSuspendLabel: v1alpha1.IgnoredSuspendValue})
			Expect(apply(repair, client.ForceOwnership)).To(Succeed())
			Expect(n.get(ctx, Default).GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
			Eventually(func(g Gomega) { g.Expect(n.labelled(ctx, g, "repair")).To(HaveLen(3)) }).WithContext(ctx).Should(Succeed())
			n.verified(ctx, 3)
			free("repair")
		})
	}
})

// blockedInFlight plays a release that fails in the middle of its rollout while its manifest is applied by force. Applying the strategy
// from before the halt does not resume the rollout, and the block stays.
func (n native) blockedInFlight(
	ctx context.Context, k *keeper, p *porter, complete func(n native, value, image string) *unstructured.Unstructured,
) {
	GinkgoHelper()
	By("failing in the middle of a rollout")
	p.let(1)
	k.set(complete(n, "flight", "busybox"))
	Eventually(func(g Gomega) { g.Expect(n.labelled(ctx, g, "flight")).NotTo(BeEmpty()) }).WithContext(ctx).Should(Succeed())
	n.setVerdict(ctx, n.passed(ctx, 1), "unpass")
	n.change(ctx, v1alpha1.ChangeWorkloadSuspend)
	Eventually(func(g Gomega) {
		g.Expect(n.get(ctx, g).GetLabels()).To(HaveKey(v1alpha1.SuspendLabel))
		g.Expect(n.events(ctx, g)).To(ContainElement(HavePrefix("RolloutHalted: ")))
	}).WithContext(ctx).Should(Succeed())
	p.letAll()
	Consistently(func(g Gomega) {
		g.Expect(n.get(ctx, g).GetAnnotations()).To(HaveKey(v1alpha1.HaltedAnnotation), "the applier did not resume it")
		g.Expect(len(n.labelled(ctx, g, "flight"))).To(BeNumerically("<", 3))
	}, 15*time.Second).WithContext(ctx).Should(Succeed())
	Expect(k.still(ctx)).To(BeEmpty(), "it applies what is there")
	By("applying another version, which the block denies")
	k.set(complete(n, "next", "busybox"))
	Expect(k.still(ctx)).To(And(Not(BeEmpty()), HaveEach(MatchError(ContainSubstring(fmt.Sprintf("%s sleep is suspended", n.kind))))))
	By("releasing an override")
	repair := complete(n, "repair", "busybox")
	repair.SetLabels(map[string]string{v1alpha1.IgnoredSuspendLabel: v1alpha1.IgnoredSuspendValue})
	k.set(repair)
	Eventually(func(g Gomega) { g.Expect(n.labelled(ctx, g, "repair")).To(HaveLen(3)) }).WithContext(ctx).Should(Succeed())
	n.verified(ctx, 3)
	Eventually(func(g Gomega) { g.Expect(n.get(ctx, g).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel)) }).WithContext(ctx).Should(Succeed())
	Expect(k.still(ctx)).To(BeEmpty())
}
