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
	"errors"
	"fmt"
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// newNamespace creates a namespace for a spec.
func (w *world) newNamespace(ctx context.Context, enrol bool) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	Expect(w.api.Create(ctx, ns)).To(Succeed())
	w.mu.Lock()
	w.namespaces = append(w.namespaces, ns.Name)
	w.mu.Unlock()
	if enrol {
		w.enrolNamespace(ctx, ns.Name)
	}
	return ns.Name
}

func (w *world) enrolNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	w.kubectl(ctx, "label", "namespace", name, v1alpha1.EnrolledLabel+"="+v1alpha1.EnrolledValue)
}

// sleeper begins a Deployment like the sample of the walkthrough.
func sleeper(namespace, name string) *wrappers.DeploymentWrapper {
	return wrappers.MakeDeployment(namespace, name).App(labelValue(name)).TemplateLabel("test", "123").
		Container(func(c *corev1.Container) { c.Name, c.ReadinessProbe = "sleep", readinessProbe() })
}

// readinessProbe returns a probe that passes when kwok reports it: a pod without a probe would have to settle.
func readinessProbe() *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/true"}}}}
}

func labelValue(name string) string { return record.WorkloadNameLabelValue(name) }

func (w *world) create(ctx context.Context, d *wrappers.DeploymentWrapper) *appsv1.Deployment {
	GinkgoHelper()
	Expect(w.api.Create(ctx, d.Obj())).To(Succeed())
	return d.Obj()
}

// createAdmitted creates a Deployment that the mutating webhook has seen. On a busy machine the webhook may answer too late, and the API
// server goes on without it.
func (w *world) createAdmitted(ctx context.Context, d *wrappers.DeploymentWrapper) {
	GinkgoHelper()
	for {
		made := d.Obj().DeepCopy()
		Expect(w.api.Create(ctx, made)).To(Succeed())
		if _, admitted := made.Spec.Template.Labels[v1alpha1.VersionLabel]; admitted {
			return
		}
		w.kubectl(ctx, "-n", made.Namespace, "delete", "deployment", made.Name, "--cascade=foreground")
	}
}

func (w *world) getDeployment(ctx context.Context, g Gomega, namespace, name string) *appsv1.Deployment {
	GinkgoHelper()
	d := &appsv1.Deployment{}
	g.Expect(w.api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, d)).To(Succeed())
	return d
}

// patchTemplate changes a label of the pod template.
func (w *world) patchTemplate(ctx context.Context, namespace, name, value string) error {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`, value)
	return w.api.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(patch)))
}

func (w *world) patchDeployment(ctx context.Context, namespace, name, patch string) error {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return w.api.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// changesIn returns the releases of a namespace, by name.
func (w *world) changesIn(ctx context.Context, g Gomega, namespace string) map[string]*v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var list v1alpha1.ChangeWorkloadList
	g.Expect(w.api.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	changes := map[string]*v1alpha1.ChangeWorkload{}
	for i := range list.Items {
		changes[list.Items[i].Name] = &list.Items[i]
	}
	return changes
}

// batchesOf returns the batches of a release.
func (w *world) batchesOf(ctx context.Context, g Gomega, change *v1alpha1.ChangeWorkload) []v1alpha1.ChangePod {
	GinkgoHelper()
	var list v1alpha1.ChangePodList
	g.Expect(w.api.List(ctx, &list, client.InNamespace(change.Namespace))).To(Succeed())
	var batches []v1alpha1.ChangePod
	for _, b := range list.Items {
		if b.Spec.ChangeWorkloadID == change.Name {
			batches = append(batches, b)
		}
	}
	return batches
}

// currentChange returns the release of a Deployment's recorded version.
func (w *world) currentChange(ctx context.Context, g Gomega, namespace, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	version := w.getDeployment(ctx, g, namespace, name).Labels[v1alpha1.VersionLabel]
	g.Expect(version).NotTo(BeEmpty(), "no version on deployment %s", name)
	change := w.changesIn(ctx, g, namespace)[record.ChangeWorkloadName(name, version)]
	g.Expect(change).NotTo(BeNil(), "no changeworkload of %s version %s", name, version)
	return change
}

// eventuallyState waits until the current release of a Deployment is in a state, and returns it.
func (w *world) eventuallyState(
	ctx context.Context, namespace, name string, state v1alpha1.ChangeWorkloadStatusType,
) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = w.currentChange(ctx, g, namespace, name)
		g.Expect(change.Status.Status).To(Equal(state))
		labels := w.getDeployment(ctx, g, namespace, name).Labels
		g.Expect(labels).To(HaveKeyWithValue(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed))
	}).WithContext(ctx).Should(Succeed())
	return change
}

// setVerdict writes a verdict on the first pod of the first batch of a release,
// as a user does.
func (w *world) setVerdict(ctx context.Context, change *v1alpha1.ChangeWorkload, verdict string) v1alpha1.PodInfo {
	GinkgoHelper()
	batches := w.batchesOf(ctx, Default, change)
	Expect(batches).NotTo(BeEmpty())
	b := &batches[0]
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"message":    "PostFinish",
		"podResults": []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: b.Spec.PodInfos[0].Pod}, Verdict: verdict, Message: "find error"}},
	}})
	Expect(err).NotTo(HaveOccurred())
	w.kubectl(ctx, "-n", b.Namespace, "patch", "changepod", "--subresource=status", b.Name, "--type", "merge", "-p", string(patch))
	return b.Spec.PodInfos[0]
}

// block releases a Deployment, fails one of its pods and waits for the block.
func (w *world) block(ctx context.Context, namespace, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	w.setVerdict(ctx, w.eventuallyState(ctx, namespace, name, v1alpha1.ChangeWorkloadSuccess), "unpass")
	change := w.eventuallyState(ctx, namespace, name, v1alpha1.ChangeWorkloadSuspend)
	Expect(w.getDeployment(ctx, Default, namespace, name).Labels).To(HaveKey(v1alpha1.SuspendLabel))
	return change
}

// eventsOf returns the reasons of the operator's events on a Deployment.
func (w *world) eventsOf(ctx context.Context, g Gomega, namespace, name string) []string {
	GinkgoHelper()
	var list corev1.EventList
	g.Expect(w.api.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	var reasons []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Deployment" && e.InvolvedObject.Name == name && e.ReportingController == "altershield-operator" {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// podUIDs returns the UIDs of the pods of a Deployment that are not terminating.
func (w *world) podUIDs(ctx context.Context, g Gomega, namespace, name string) []types.UID {
	GinkgoHelper()
	var list corev1.PodList
	g.Expect(w.api.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{"app": labelValue(name)})).To(Succeed())
	var uids []types.UID
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			uids = append(uids, p.UID)
		}
	}
	return uids
}

// rolledOut waits until a Deployment has finished its rollout.
func (w *world) rolledOut(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		d := w.getDeployment(ctx, g, namespace, name)
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect([]int32{d.Status.UpdatedReplicas, d.Status.AvailableReplicas, d.Status.Replicas}).To(HaveEach(*d.Spec.Replicas))
	}).WithContext(ctx).Should(Succeed())
}

// HaveLines matches output of n lines.
func HaveLines(n int) OmegaMatcher {
	return WithTransform(func(out string) int { return strings.Count(out, "\n") }, Equal(n))
}

// denied returns a function that reports whether kubectl failed because the block denied the request.
func denied(name string) func(string, error) bool {
	return func(out string, err error) bool {
		var exit *exec.ExitError
		return errors.As(err, &exit) && strings.Contains(out,
			fmt.Sprintf(`admission webhook "vdeployment.kb.io" denied the request: deployment %s is suspended`, name))
	}
}
