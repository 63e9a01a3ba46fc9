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
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	metricsGroup   = "external.metrics.k8s.io"
	metricsVersion = "v1beta1"
	workMetric     = "work"
)

// meter is a metrics adapter: it serves the work of each namespace to autoscalers, by the aggregated API external.metrics.k8s.io.
type meter struct {
	world *world
	mu    sync.Mutex
	work  map[string]int
}

// newMeter starts a meter and registers its API, until the end of the container.
func (w *world) newMeter(ctx context.Context) *meter {
	GinkgoHelper()
	const service = "meter"
	m := &meter{world: w, work: map[string]int{}}
	server := httptest.NewUnstartedServer(m)
	certs := GinkgoT().TempDir()
	ca, err := controlplane.WriteServingCerts(certs, service+"."+metav1.NamespaceDefault+".svc")
	Expect(err).NotTo(HaveOccurred())
	pair, err := tls.LoadX509KeyPair(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key"))
	Expect(err).NotTo(HaveOccurred())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	DeferCleanup(server.Close)
	_, text, err := net.SplitHostPort(server.Listener.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	port, err := strconv.ParseInt(text, 10, 32)
	Expect(err).NotTo(HaveOccurred())
	// A Service reaches a loopback address only by a name.
	Expect(w.api.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})).To(Succeed())
	api := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": metricsVersion + "." + metricsGroup},
		"spec": map[string]any{
			"group": metricsGroup, "version": metricsVersion, "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"service": map[string]any{"namespace": metav1.NamespaceDefault, "name": service, "port": port},
		},
	}}
	Expect(unstructured.SetNestedField(api.Object, encoded(ca), "spec", "caBundle")).To(Succeed())
	Expect(w.api.Create(ctx, api)).To(Succeed())
	w.kubectl(ctx, "wait", "--for=condition=Available", "--timeout=2m", "apiservice/"+api.GetName())
	return m
}

// encoded returns bytes as encoded in JSON.
func encoded(data []byte) string {
	GinkgoHelper()
	text, err := json.Marshal(data)
	Expect(err).NotTo(HaveOccurred())
	return strings.Trim(string(text), `"`)
}

// ServeHTTP answers autoscalers, and the availability check of the API server.
func (m *meter) ServeHTTP(response http.ResponseWriter, r *http.Request) {
	const root = "/apis/" + metricsGroup + "/" + metricsVersion
	var answer any
	switch ns, metric, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, root+"/namespaces/"), "/"); {
	case r.URL.Path == root:
		answer = metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: metricsGroup + "/" + metricsVersion,
			APIResources: []metav1.APIResource{{Name: workMetric, Namespaced: true, Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get"}}},
		}
	case ok && metric == workMetric:
		m.mu.Lock()
		answer = map[string]any{
			"apiVersion": metricsGroup + "/" + metricsVersion, "kind": "ExternalMetricValueList", "metadata": map[string]any{},
			"items": []map[string]any{{
				"metricName": metric, "metricLabels": nil, "timestamp": time.Now().UTC().Format(time.RFC3339), "value": strconv.Itoa(m.work[ns]),
			}},
		}
		m.mu.Unlock()
	default:
		http.NotFound(response, r)
		return
	}
	response.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(response).Encode(answer)
}

// set sets the work of a namespace. Each unit is for one pod.
func (m *meter) set(ns string, units int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.work[ns] = units
}

// scale changes the work, and waits until the autoscaler has scaled web.
func (m *meter) scale(ctx context.Context, ns string, units int32) {
	GinkgoHelper()
	m.set(ns, int(units))
	Eventually(func(g Gomega) {
		g.Expect(m.world.getDeployment(ctx, g, ns, "web").Spec.Replicas).To(HaveValue(Equal(units)))
	}).WithContext(ctx).Should(Succeed())
}

// autoscale scales the Deployment web by the work of its namespace, down to no pods.
func (w *world) autoscale(ctx context.Context, ns string) {
	GinkgoHelper()
	atOnce := &autoscalingv2.HPAScalingRules{
		StabilizationWindowSeconds: ptr.To[int32](0),
		Policies:                   []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 100, PeriodSeconds: 1}},
	}
	Expect(w.api.Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MinReplicas:    ptr.To[int32](0), MaxReplicas: 8,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: workMetric},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: ptr.To(resource.MustParse("1"))},
			}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: atOnce, ScaleDown: atOnce},
		},
	})).To(Succeed())
}

// expectScaledFreely checks that no scaling was refused, except by a conflict with another write, and that the operator scaled nothing.
func (w *world) expectScaledFreely(ctx context.Context, ns string, resource ...string) {
	GinkgoHelper()
	if len(resource) == 0 {
		resource = []string{"deployments"}
	}
	var events corev1.EventList
	Expect(w.api.List(ctx, &events, client.InNamespace(ns))).To(Succeed())
	reasons := map[string]int{}
	for _, e := range events.Items {
		if e.InvolvedObject.Kind == "HorizontalPodAutoscaler" && !strings.Contains(e.Message, "the object has been modified") {
			reasons[e.Reason]++
		}
	}
	Expect(reasons).To(HaveKey("SuccessfulRescale"))
	Expect(reasons).NotTo(Or(HaveKey("FailedRescale"), HaveKey("FailedUpdateScale")))
	written := 0
	for _, r := range w.writesIn(ns, resource...) {
		Expect(r.Verb).To(Equal("patch"), r.String())
		Expect(r.Subresource).To(BeEmpty(), r.String())
		Expect(r.Paths).NotTo(ContainElement(Or(Equal("/spec"), HavePrefix("/spec/replicas"))), r.String())
		written += len(r.Paths)
	}
	Expect(written).To(BeNumerically(">", 0), "it did record")
}

var _ = Describe("beside a HorizontalPodAutoscaler", Ordered, SpecPriority(longest), func() {
	w := inOwnWorld()
	var m *meter
	BeforeAll(func(ctx SpecContext) { m = w.newMeter(ctx) }, NodeTimeout(patience))

	It("a release succeeds, however it is scaled in the middle", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		p := w.startPorter(ns)
		m.set(ns, 3)
		w.autoscale(ctx, ns)
		w.create(ctx, inFlight(ns, "web").Replicas(1))
		m.scale(ctx, ns, 3)
		w.verified(ctx, ns, "web")
		By("releasing: one pod gets through")
		p.let(1)
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		w.eventuallyBatches(ctx, ns, "web", 1)
		m.scale(ctx, ns, 6)
		By("two more pods get through, one of them may be an added old pod")
		p.let(2)
		w.eventuallyBatches(ctx, ns, "web", 2)
		m.scale(ctx, ns, 4)
		m.scale(ctx, ns, 5)
		change := w.currentChange(ctx, Default, ns, "web")
		Expect(change.Status.Status).NotTo(Equal(v1alpha1.ChangeWorkloadSuccess), "all of that was in the middle of it")
		p.letAll()
		change = w.verified(ctx, ns, "web")
		Expect(change.Status.Attempt).To(Equal(int32(1)))
		Expect(change.Status.PassCount).To(BeNumerically(">=", 5))
		Eventually(func(g Gomega) { g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(1)) }).WithContext(ctx).Should(Succeed())
		By("scaling after the success: new pods are verified, too")
		m.scale(ctx, ns, 7)
		Expect(w.verified(ctx, ns, "web").UID).To(Equal(change.UID))
		w.restful(ctx, ns)
		w.expectScaledFreely(ctx, ns)
	})

	It("a release that is scaled to zero in the middle succeeds when its pods come back", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		p := w.startPorter(ns)
		m.set(ns, 3)
		w.autoscale(ctx, ns)
		w.create(ctx, inFlight(ns, "web").Replicas(3))
		w.verified(ctx, ns, "web")
		p.let(1)
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		w.eventuallyBatches(ctx, ns, "web", 1)
		m.scale(ctx, ns, 0)
		Eventually(func(g Gomega) { g.Expect(w.podsOf(ctx, g, ns, "web")).To(BeEmpty()) }).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
		change := w.currentChange(ctx, Default, ns, "web")
		Expect(change.Status.FailCount).To(BeZero(), "pods that go do not fail")
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		p.letAll()
		m.scale(ctx, ns, 3)
		Expect(w.verified(ctx, ns, "web").UID).To(Equal(change.UID))
		By("releasing while there are no pods")
		m.scale(ctx, ns, 0)
		Expect(w.patchTemplate(ctx, ns, "web", "third")).To(Succeed())
		w.verified(ctx, ns, "web")
		m.scale(ctx, ns, 2)
		Eventually(func(g Gomega) {
			change := w.currentChange(ctx, g, ns, "web")
			g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
			g.Expect(change.Status.PassCount).To(Equal(int32(2)), "pods that come after the release are verified, too")
		}).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
		w.expectScaledFreely(ctx, ns)
	})

	It("a release that failed stays blocked and halted until an override release", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		m.set(ns, 3)
		w.autoscale(ctx, ns)
		w.failInFlight(ctx, inFlight(ns, "web").Replicas(3))
		settled := func(wanted int32) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				d := w.getDeployment(ctx, g, ns, "web")
				g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
				g.Expect(d.Status.Replicas).To(BeElementOf(wanted, wanted+1), "a halted rollout has one more pod than it wants, unless all are new")
				g.Expect(d.Status.AvailableReplicas).To(Equal(d.Status.Replicas))
				change := w.currentChange(ctx, g, ns, "web")
				g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend))
				g.Expect(change.Status.FailCount).To(Equal(int32(1)))
				g.Expect(change.Status.CheckingCount+change.Status.PreparingCount).To(BeZero(), "the other pods are verified, too")
				g.Expect(d.Labels).To(HaveKey(v1alpha1.SuspendLabel))
				g.Expect(d.Spec.Paused).To(BeTrue())
				g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.HaltedAnnotation, change.Spec.Reversion))
			}).WithContext(ctx).Should(Succeed())
			Expect(w.patchTemplate(ctx, ns, "web", "next")).To(MatchError(ContainSubstring("deployment web is suspended")))
		}
		settled(3)
		By("scaling up and down while it is blocked")
		m.scale(ctx, ns, 7)
		settled(7)
		m.scale(ctx, ns, 2)
		settled(2)
		w.restful(ctx, ns)
		By("releasing an override, and scaling at the same time")
		Expect(w.patchDeployment(ctx, ns, "web", repair("good"))).To(Succeed())
		m.scale(ctx, ns, 5)
		change := w.verified(ctx, ns, "web")
		Expect(change.Status.FailCount).To(BeZero())
		Eventually(func(g Gomega) {
			d := w.getDeployment(ctx, g, ns, "web")
			g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(d.Annotations).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
			g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(1))
		}).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
		w.expectScaledFreely(ctx, ns)
	})
})
