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
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/observer"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// ownSetting creates a setting in a namespace.
func (w *world) ownSetting(
	ctx context.Context, ns, name string, kind v1alpha1.OpsConfigType, enable bool, content string,
) *v1alpha1.OpsConfigInfo {
	GinkgoHelper()
	o := &v1alpha1.OpsConfigInfo{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       v1alpha1.OpsConfigInfoSpec{Type: kind, Enable: enable, Content: content},
	}
	Expect(w.api.Create(ctx, o)).To(Succeed())
	return o
}

// accepted waits until the condition Accepted of a namespace's setting has a reason.
func (w *world) accepted(ctx context.Context, o *v1alpha1.OpsConfigInfo, reason string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(w.api.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		c := conditionOf(o.Status.Conditions, v1alpha1.ConditionAccepted)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Reason).To(Equal(reason), c.Message)
		g.Expect(o.Status.ObservedGeneration).To(Equal(o.Generation))
	}).WithContext(ctx).Should(Succeed())
}

// states has all states of the Deployments of a namespace.
type states struct {
	mu   sync.Mutex
	seen []appsv1.Deployment
}

// follow watches the Deployments of a namespace, until the end of the spec.
func (w *world) follow(ctx context.Context, ns string) *states {
	GinkgoHelper()
	config, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	set, err := kubernetes.NewForConfig(config)
	Expect(err).NotTo(HaveOccurred())
	watching, err := set.AppsV1().Deployments(ns).Watch(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	s, done := &states{}, make(chan struct{})
	go func() {
		defer close(done)
		for e := range watching.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok {
				s.mu.Lock()
				s.seen = append(s.seen, *d)
				s.mu.Unlock()
			}
		}
	}()
	DeferCleanup(func() { watching.Stop(); <-done })
	return s
}

// upTo waits until a state of a Deployment was seen, and returns all states up to it.
func (s *states) upTo(ctx context.Context, d *appsv1.Deployment) []appsv1.Deployment {
	GinkgoHelper()
	var seen []appsv1.Deployment
	Eventually(func(g Gomega) {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.IndexFunc(s.seen, func(o appsv1.Deployment) bool { return o.ResourceVersion == d.ResourceVersion })
		g.Expect(i).To(BeNumerically(">=", 0), "the watch is behind")
		seen = slices.Clone(s.seen[:i+1])
	}).WithContext(ctx).Should(Succeed())
	return seen
}

// recorded lists the fields of a Deployment that the operator may write in observe mode.
var recorded = []string{"f:metadata", "f:labels", "f:annotations"}

// expectOnlyRecords checks that the operator wrote only records to a Deployment.
func expectOnlyRecords(d *appsv1.Deployment) {
	GinkgoHelper()
	for _, key := range []string{v1alpha1.SuspendLabel} {
		Expect(d.Labels).NotTo(HaveKey(key))
	}
	for _, key := range []string{
		v1alpha1.HaltedAnnotation, v1alpha1.SuspendedByAnnotation, v1alpha1.QuarantinedAnnotation, v1alpha1.QuarantineReasonAnnotation,
		v1alpha1.ChangeCauseAnnotation,
	} {
		Expect(d.Annotations).NotTo(HaveKey(key))
	}
	Expect(d.Spec.Paused).To(BeFalse())
	for _, entry := range d.ManagedFields {
		if entry.Manager != v1alpha1.FieldManager {
			continue
		}
		var owned map[string]map[string]any
		Expect(json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned)).To(Succeed())
		for top, fields := range owned {
			Expect(recorded).To(ContainElement(top))
			for field := range fields {
				Expect(recorded).To(ContainElement(field))
			}
		}
	}
}

// expectOnlyRecorded checks the operator's writes in a namespace by the audit log: writes to workloads and pods touch only the labels and
// annotations that record a release.
func (w *world) expectOnlyRecorded(ns string) {
	GinkgoHelper()
	records := map[string][]string{
		"deployments": {
			"/metadata/labels/" + v1alpha1.DefenseStatusLabel,
			"/metadata/annotations/" + v1alpha1.RollbackToAnnotation, // a request is consumed
		},
		"pods": {"/metadata/labels/" + v1alpha1.OperateFinishedLabel},
	}
	seen := map[string]int{}
	// Pods are labelled later.
	Eventually(func() bool {
		return slices.ContainsFunc(w.writesIn(ns), func(r observer.Request) bool { return r.Resource == "pods" })
	}).WithTimeout(time.Minute).Should(BeTrue())
	for _, r := range w.writesIn(ns) {
		seen[r.Resource]++
		switch r.Resource {
		case "deployments", "pods":
			Expect(r.Verb+r.Subresource).To(Equal("patch"), r.String())
			Expect(r.Paths).NotTo(BeEmpty(), r.String())
			for _, path := range r.Paths {
				Expect(records[r.Resource]).To(ContainElement(strings.ReplaceAll(path, "~1", "/")), r.String())
			}
		default: // its own kinds, the history, and events
			Expect(r.Resource).To(BeElementOf("changeworkloads", "changepods", "controllerrevisions", "events", "opsconfiginfoes"), r.String())
		}
	}
	Expect(seen).To(And(HaveKey("deployments"), HaveKey("pods"), HaveKey("changeworkloads"), HaveKey("changepods")), "it did record")
}

var _ = Describe("observe mode", func() {
	w := inSharedWorld()

	It("records and reports the whole walkthrough, and writes nothing else to the workload", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		observing := w.ownSetting(ctx, ns, "observe", v1alpha1.TypeObserve, true, "")
		w.ownSetting(ctx, ns, "timeouts", v1alpha1.TypeTimeouts, true, "wait=2s,settle=0")
		w.ownSetting(ctx, ns, "rollback", v1alpha1.TypeRollback, true, "after=5s")
		followed := w.follow(ctx, ns)
		w.enrolNamespace(ctx, ns)
		w.accepted(ctx, observing, v1alpha1.ReasonInForce)
		Expect(w.player(ns).Play(ctx, walkthrough.Observed()...)).To(Succeed())

		By("refusing a request to roll back")
		w.kubectl(ctx, "-n", ns, "annotate", "deployment", "sleep", v1alpha1.RollbackToAnnotation+"=last-success")
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "sleep").Annotations).NotTo(HaveKey(v1alpha1.RollbackToAnnotation), "it is consumed")
			g.Expect(w.eventsOf(ctx, g, ns, "sleep")).To(ContainElement("RollbackRefused"))
		}).WithContext(ctx).Should(Succeed())
		last := w.eventuallyState(ctx, ns, "sleep", v1alpha1.ChangeWorkloadSuccess)
		Expect(conditionOf(last.Status.Conditions, v1alpha1.ConditionDefended).Reason).To(Equal(v1alpha1.ReasonObserving))
		w.restful(ctx, ns)

		By("checking that the workload had only released versions")
		images := []string{}
		for _, d := range followed.upTo(ctx, w.getDeployment(ctx, Default, ns, "sleep")) {
			expectOnlyRecords(&d)
			Expect(d.Spec.Replicas).To(HaveValue(Equal(int32(5))))
			Expect(d.Spec.Template.Annotations).To(BeEmpty())
			Expect(slices.Collect(maps.Keys(d.Spec.Template.Labels))).To(ConsistOf("app", "test", v1alpha1.VersionLabel))
			if image := d.Spec.Template.Spec.Containers[0].Image; len(images) == 0 || images[len(images)-1] != image {
				images = append(images, image)
			}
		}
		Expect(images).To(Equal([]string{"busybox", "busybo", "busybox", "busybo", "busybox"}), "as they were released")
		w.expectOnlyRecorded(ns)
	})
})

var _ = Describe("settings of a namespace", func() {
	w := inSharedWorld()

	It("are in force only there, once the namespace is enrolled", func(ctx SpecContext) {
		ns, other := w.newNamespace(ctx, false), w.newNamespace(ctx, true)
		branch := w.ownSetting(ctx, ns, "branch", v1alpha1.TypeBranch, true, "3")
		blocking := w.ownSetting(ctx, ns, "blocking", v1alpha1.TypeBlocking, false, "")
		limit := w.ownSetting(ctx, ns, "limit", v1alpha1.TypeLimit, false, "")
		w.ownSetting(ctx, ns, "timeouts", v1alpha1.TypeTimeouts, true, "settle=0")
		for _, n := range []string{ns, other} {
			w.create(ctx, sleeper(n, "web").Replicas(3))
		}
		w.eventuallyState(ctx, other, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.api.Get(ctx, client.ObjectKeyFromObject(branch), branch)).To(Succeed())
		Expect(branch.Status).To(Equal(v1alpha1.OpsConfigInfoStatus{}), "no status where nothing is defended")

		w.enrolNamespace(ctx, ns)
		w.accepted(ctx, branch, v1alpha1.ReasonInForce)
		w.accepted(ctx, blocking, v1alpha1.ReasonInForce)
		w.accepted(ctx, limit, v1alpha1.ReasonOfCluster)
		Eventually(func(g Gomega) {
			var list corev1.EventList
			g.Expect(w.api.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
			g.Expect(list.Items).To(ContainElement(And(HaveField("Reason", "DefenseChanged"), HaveField("InvolvedObject.Name", "blocking"))))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "v2")).To(Succeed())
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.batchesOf(ctx, Default, change)).To(HaveLen(1), "of three")
		Expect(w.currentChange(ctx, Default, other, "web").Spec.CountThreshold).To(Equal(int32(1)))
		w.setVerdict(ctx, change, "unpass")
		change = w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionBlocked).Reason).To(Equal(v1alpha1.ReasonBlockingDisabled))
		Expect(w.patchTemplate(ctx, ns, "web", "v3")).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)

		By("reporting the settings that a release changes")
		w.kubectl(ctx, "-n", ns, "patch", "deployment", "web", "-p",
			`{"metadata":{"annotations":{"`+v1alpha1.SettingAnnotationPrefix+`branch":"2"}},`+
				`"spec":{"template":{"metadata":{"labels":{"test":"v4"}}}}}`)
		Eventually(func(g Gomega) {
			var list corev1.EventList
			g.Expect(w.api.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
			i := slices.IndexFunc(list.Items, func(e corev1.Event) bool { return e.Reason == "SettingsAltered" })
			g.Expect(i).To(BeNumerically(">=", 0))
			g.Expect(strings.Contains(list.Items[i].Message, `branch from none to "2"`)).To(BeTrue(), list.Items[i].Message)
			g.Expect(w.api.Get(ctx, types.NamespacedName{Namespace: ns, Name: "branch"}, branch)).To(Succeed())
		}).WithContext(ctx).Should(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	})
})
