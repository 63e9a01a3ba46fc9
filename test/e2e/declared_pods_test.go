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
	"hash/fnv"
	"maps"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// control plays the controller of CloneSets for the object, until the end of the spec: it replaces one pod at a time, and writes the
// status as OpenKruise does.
func (d *declaredKind) control() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(done)
		for tick := time.NewTicker(200 * time.Millisecond); ctx.Err() == nil; {
			if err := d.step(ctx); err != nil && ctx.Err() == nil {
				GinkgoWriter.Println("the controller of CloneSets tries again:", err)
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	DeferCleanup(func() { cancel(); <-done })
}

func (d *declaredKind) pods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := d.api.List(ctx, &list, client.InNamespace(d.namespace))
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), err
}

func (d *declaredKind) step(ctx context.Context) error {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": d.gvk[0] + "/" + d.gvk[1], "kind": d.gvk[2]}}
	if err := d.api.Get(ctx, client.ObjectKey{Namespace: d.namespace, Name: d.name}, o); err != nil {
		return err
	}
	pods, err := d.pods(ctx)
	if err != nil {
		return err
	}
	template, _, _ := unstructured.NestedMap(o.Object, "spec", "template")
	text, err := utiljson.Marshal(template)
	if err != nil {
		return err
	}
	hash := fnv.New32a()
	_, _ = hash.Write(text)
	revision := fmt.Sprintf("%s-%x", d.name, hash.Sum32())
	replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	paused, _, _ := unstructured.NestedBool(o.Object, "spec", "updateStrategy", "paused")
	var ready, updated, updatedReady int64
	var old []corev1.Pod
	for i := range pods {
		p := &pods[i]
		isReady, current := conditionIsTrue(p, corev1.PodReady), p.Labels[appsv1.ControllerRevisionHashLabelKey] == revision
		if isReady {
			ready++
		}
		if current {
			updated++
		}
		if current && isReady {
			updatedReady++
		}
		if !current {
			old = append(old, *p)
		}
	}
	// Pods that are not ready go first, as with maxUnavailable of OpenKruise.
	slices.SortFunc(old, func(a, b corev1.Pod) int {
		ranks := map[bool]int{true: 1}
		return ranks[conditionIsTrue(&a, corev1.PodReady)] - ranks[conditionIsTrue(&b, corev1.PodReady)]
	})
	status := map[string]any{
		"observedGeneration": o.GetGeneration(), "updateRevision": revision, "replicas": int64(len(pods)),
		"readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": updated,
		"updatedReadyReplicas": updatedReady, "updatedAvailableReplicas": updatedReady,
	}
	if written, _, _ := unstructured.NestedMap(o.Object, "status"); !maps.Equal(written, status) {
		o.Object["status"] = status
		return d.api.Status().Update(ctx, o)
	}
	switch {
	case int64(len(pods)) < replicas:
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
			return err
		}
		pod.Namespace, pod.GenerateName = d.namespace, d.name+"-"
		pod.Labels = maps.Clone(pod.Labels)
		pod.Labels[appsv1.ControllerRevisionHashLabelKey] = revision
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(o, o.GroupVersionKind())}
		return d.api.Create(ctx, pod)
	case len(old) > 0 && !paused && (ready == replicas || !conditionIsTrue(&old[0], corev1.PodReady)):
		return client.IgnoreNotFound(d.api.Delete(ctx, &old[0], client.GracePeriodSeconds(0)))
	}
	return nil
}

var _ = Describe("a declared kind with pods", Ordered, func() {
	w := inOwnWorld()

	It("verifies pods, rolls back those that crash, and rolls back on request", func(ctx SpecContext) {
		d := &declaredKind{
			world: w, kind: "clonesets.apps.kruise.io", gvk: [3]string{"apps.kruise.io", "v1alpha1", "CloneSet"}, name: "sleep",
			preset: filepath.Join(root, "config", "kinds", "kruise", "cloneset.yaml"),
		}
		w.installDefinition(ctx, "github.com/openkruise/kruise", "config/crd/bases/apps.kruise.io_clonesets.yaml", d.kind)
		d.namespace = w.newNamespace(ctx, true)
		w.kubectl(ctx, "-n", d.namespace, "apply", "-f", filepath.Join(root, "config", "kinds", "kruise", "samples", "cloneset.yaml"))
		w.kubectl(ctx, "-n", d.namespace, "annotate", "cloneset", d.name, v1alpha1.SettingAnnotationPrefix+"rollback=5s")
		d.control()
		w.kubectl(ctx, "apply", "-f", d.preset)
		Expect(d.ready(ctx).Status.Objects).To(Equal(int32(1)))
		Eventually(func(g Gomega) {
			ready, _, _ := unstructured.NestedInt64(d.get(ctx, g).Object, "status", "updatedReadyReplicas")
			g.Expect(ready).To(Equal(int64(3)))
		}).WithContext(ctx).Should(Succeed())

		By("releasing another template")
		Expect(d.patch(ctx, `{"spec":{"template":{"metadata":{"labels":{"test":"second"}}}}}`)).To(Succeed())
		good := d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		Expect(good.Status.PassCount).To(Equal(int32(3)))
		By("scaling: that is no release")
		Expect(d.patch(ctx, `{"spec":{"replicas":4}}`)).To(Succeed())
		d.rest(ctx)
		Expect(d.get(ctx, Default).GetAnnotations()).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "1"))
		before := d.get(ctx, Default)

		restored := func() {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				o := d.get(ctx, g)
				g.Expect(o.GetLabels()[v1alpha1.VersionLabel]).To(Equal(good.Labels[v1alpha1.VersionLabel]))
				g.Expect(o.GetAnnotations()).To(HaveKey(v1alpha1.QuarantinedAnnotation))
				g.Expect(o.GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
				g.Expect(o.Object["spec"]).To(Equal(before.Object["spec"]))
				ready, _, _ := unstructured.NestedInt64(o.Object, "status", "updatedReadyReplicas")
				g.Expect(ready).To(Equal(int64(4)))
			}).WithContext(ctx).Should(Succeed())
			d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		}

		By("releasing pods that crash: the release is rolled back, and the pods that stayed Ready count for the restored version")
		Expect(d.patch(ctx, `{"spec":{"template":{"metadata":{"labels":{"`+
			controlplane.BehaviorLabel+`":"`+controlplane.BehaviorCrashLoop+`"}}}}}`)).
			To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(w.kubectl(ctx, "-n", d.namespace, "get", "events")).
				To(MatchRegexp(`RolledBack +cloneset/sleep +.*NeverStarted: pod sleep-\w+: container sleep`))
		}).WithContext(ctx).Should(Succeed())
		restored()
		By("rolling back on request")
		Expect(d.patch(ctx, `{"spec":{"template":{"metadata":{"labels":{"test":"third"}}}}}`)).To(Succeed())
		d.change(ctx, v1alpha1.ChangeWorkloadSuccess)
		w.kubectl(ctx, "-n", d.namespace, "annotate", "cloneset", d.name, v1alpha1.RollbackToAnnotation+"="+good.Labels[v1alpha1.VersionLabel])
		restored()
		AddReportEntry("objects", w.kubectl(ctx, "get", "changekinds,changeworkloads,changepods", "-A", "-o", "wide"))
		AddReportEntry("events", w.kubectl(ctx, "-n", d.namespace, "get", "events"))
		d.rest(ctx)

		w.kubectl(ctx, "delete", "changekind", d.kind)
		d.rest(ctx)
	})
})
