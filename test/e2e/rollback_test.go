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
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// afterAWhile shortens the threshold of rollbacks for one workload.
func afterAWhile(d *appsv1.Deployment) {
	override("rollback", "5s")(d)
}

// withoutHurry gives the next release enough time on a busy machine.
func (w *world) withoutHurry(ctx context.Context, ns, name string) {
	GinkgoHelper()
	w.kubectl(ctx, "-n", ns, "annotate", "deployment", name, "--overwrite", v1alpha1.SettingAnnotationPrefix+"rollback=10m")
}

// setImage releases another image.
func (w *world) setImage(ctx context.Context, ns, name, image string) error {
	return w.patchContainers(ctx, ns, name, fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":%q}]}}}}`, image))
}

// patchContainers patches containers by name, and keeps the others.
func (w *world) patchContainers(ctx context.Context, ns, name, patch string) error {
	d := wrappers.MakeDeployment(ns, name).Obj()
	return w.api.Patch(ctx, d, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
}

// rolledBackTo waits until a Deployment is back at a version, and verified.
func (w *world) rolledBackTo(ctx context.Context, ns, name, version string) *appsv1.Deployment {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(w.getDeployment(ctx, g, ns, name).Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, version))
	}).WithContext(ctx).Should(Succeed())
	w.verified(ctx, ns, name)
	return w.getDeployment(ctx, Default, ns, name)
}

var _ = Describe("a rollback", func() {
	w := inSharedWorld()

	It("is made on request, from the history, when its ReplicaSet is long gone", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(func(d *appsv1.Deployment) {
			none := int32(0)
			d.Spec.RevisionHistoryLimit = &none
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}))
		first := w.verified(ctx, ns, "web").Spec.Reversion
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		second := w.verified(ctx, ns, "web").Spec.Reversion
		Eventually(func(g Gomega) { g.Expect(w.revisionsOf(ctx, g, ns, "web")).To(HaveLen(2)) }).WithContext(ctx).Should(Succeed())
		request := func(to string) {
			GinkgoHelper()
			w.kubectl(ctx, "-n", ns, "annotate", "deployment", "web", v1alpha1.RollbackToAnnotation+"="+to)
			Eventually(func(g Gomega) {
				g.Expect(w.getDeployment(ctx, g, ns, "web").Annotations).NotTo(HaveKey(v1alpha1.RollbackToAnnotation))
			}).WithContext(ctx).Should(Succeed())
		}
		refused := func(why string) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				events := w.kubectl(ctx, "-n", ns, "get", "events", "--field-selector", "reason="+v1alpha1.ReasonRollbackRefused)
				g.Expect(events).To(ContainSubstring(why))
			}).WithContext(ctx).Should(Succeed())
		}
		By("refusing impossible requests")
		request(second)
		refused("version " + second + " is the current one")
		request("nonsense")
		refused("the history has no successful version nonsense")
		Expect(w.getDeployment(ctx, Default, ns, "web").Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "2"))
		By("rolling back to the newest version")
		request("last-success")
		d := w.rolledBackTo(ctx, ns, "web", first)
		Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, second))
		Expect(d.Spec.Template.Labels).To(HaveKeyWithValue("test", "123"))
		By("refusing the version that was rolled back")
		request(second)
		refused("version " + second + " was rolled back at ")
		By("overriding the quarantine, which ends it")
		Expect(w.patchDeployment(ctx, ns, "web", repair("second"))).To(Succeed())
		Expect(w.verified(ctx, ns, "web").Spec.Reversion).To(Equal(second))
		d = w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
		Expect(d.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		w.restful(ctx, ns)
	})
})

// failFirst fails the first pod of a release that is verified.
func (w *world) failFirst(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = w.currentChange(ctx, g, ns, name)
		g.Expect(change.Status.PassCount).NotTo(BeZero())
	}).WithContext(ctx).Should(Succeed())
	w.setVerdict(ctx, change, "unpass")
	return change
}

// quarantined is an entry of the annotation with the reasons of quarantines.
type quarantined struct {
	Time                                time.Time
	Pod, Container                      string
	Cause, Reason, Message, To, Version string
	Release                             int64
}

// quarantineOf returns the versions of a workload that are in quarantine.
func (w *world) quarantineOf(ctx context.Context, g Gomega, ns, name string) map[string]quarantined {
	GinkgoHelper()
	annotations := w.getDeployment(ctx, g, ns, name).Annotations
	found := map[string]quarantined{}
	if reasons := annotations[v1alpha1.QuarantineReasonAnnotation]; reasons != "" {
		g.Expect(json.Unmarshal([]byte(reasons), &found)).To(Succeed())
	}
	var versions []string
	for version := range found {
		versions = append(versions, version)
	}
	if listed := annotations[v1alpha1.QuarantinedAnnotation]; listed != "" {
		g.Expect(strings.Split(listed, ",")).To(ConsistOf(versions))
	}
	return found
}

// isRollback reports whether a request restores the template of a Deployment.
func isRollback(r *http.Request, ns string) bool {
	if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/namespaces/"+ns+"/deployments/") {
		return false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Contains(body, []byte("/spec/template"))
}
