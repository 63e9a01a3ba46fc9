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

package runnable

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// asked is a server with a given answer, and the times of its requests.
type asked struct {
	mu    sync.Mutex
	err   error
	times []time.Time
	clock *clocktesting.FakeClock
}

func (a *asked) ask(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times = append(a.times, a.clock.Now())
	return a.err
}

func (a *asked) answer(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *asked) seen() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]time.Time(nil), a.times...)
}

var errDown = &altershield.Error{Action: altershield.ActionHeartbeat, Class: altershield.ClassRetry, Err: errors.New("connection refused")}

// gauge returns the value of a metric without labels; nil if it has none.
func gauge(g Gomega, name string) *float64 {
	registry, ok := ctrlmetrics.Registry.(prometheus.Gatherer)
	g.Expect(ok).To(BeTrue())
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, f := range families {
		if f.GetName() == name && f.GetType() == dto.MetricType_GAUGE {
			value := f.GetMetric()[0].GetGauge().GetValue()
			return &value
		}
	}
	return nil
}

// TestHeartbeat asks at once, and then each half minute or a little later, and reads the metrics.
func TestHeartbeat(t *testing.T) {
	g := NewWithT(t)
	const up, last = "altershield_server_up", "altershield_server_last_answer_timestamp_seconds"
	began := time.Unix(1_800_000_000, 0)
	clock := clocktesting.NewFakeClock(began)
	server := &asked{clock: clock}
	spread := 0.0
	h := &Heartbeat{Ask: server.ask, Clock: clock, Log: logr.Discard(), Spread: func() float64 { spread += 0.5; return spread - 0.5 }}
	g.Expect(h.NeedLeaderElection()).To(BeFalse())
	g.Expect(gauge(g, up)).To(BeNil(), "a metric before the first heartbeat")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Start(ctx) }()
	step := func(after time.Duration, asked int) {
		t.Helper()
		g.Eventually(clock.HasWaiters).WithTimeout(time.Minute).Should(BeTrue())
		clock.Step(after)
		g.Eventually(server.seen).WithTimeout(time.Minute).Should(HaveLen(asked))
		g.Eventually(clock.HasWaiters).WithTimeout(time.Minute).Should(BeTrue())
	}
	step(0, 1)
	g.Expect(gauge(g, up)).To(HaveValue(Equal(1.0)))
	g.Expect(gauge(g, last)).To(HaveValue(Equal(float64(began.Unix()))))
	step(30*time.Second-time.Nanosecond, 1)
	server.answer(errDown)
	step(time.Nanosecond, 2)
	g.Expect(gauge(g, up)).To(HaveValue(Equal(0.0)))
	g.Expect(gauge(g, last)).To(HaveValue(Equal(float64(began.Unix()))), "the time of a failed heartbeat")
	step(30*time.Second, 2) // the second wait is 3 s longer
	server.answer(nil)
	step(3*time.Second, 3)
	g.Expect(gauge(g, up)).To(HaveValue(Equal(1.0)))
	g.Expect(gauge(g, last)).To(HaveValue(Equal(float64(began.Add(63 * time.Second).Unix()))))

	server.answer(errDown)
	cancel()
	g.Eventually(done).WithTimeout(time.Minute).Should(Receive(Succeed()))
	g.Expect(gauge(g, up)).To(HaveValue(Equal(1.0)))
}

var _ = Describe("the heartbeat", func() {
	It("reports on the replica's own pod that the server is down, with the rights of the operator", func(ctx SpecContext) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: "manager-0"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: "manager"}}},
		}
		Expect(admin.Create(ctx, pod)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(admin.Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed()) })
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
		pod.Status.Conditions = []corev1.PodCondition{ready}
		Expect(admin.Status().Update(ctx, pod)).To(Succeed())

		writer, err := client.New(operatorConfig, client.Options{})
		Expect(err).NotTo(HaveOccurred())
		clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
		server := &asked{clock: clock}
		recorder := events.NewFakeRecorder(10)
		container := func() *Heartbeat {
			return &Heartbeat{
				Ask: server.ask, Pod: types.NamespacedName{Namespace: ours, Name: "manager-0"}, Live: writer, Client: writer,
				Recorder: recorder, Clock: clock, Log: GinkgoLogr,
			}
		}
		condition := func() *corev1.PodCondition {
			GinkgoHelper()
			var now corev1.Pod
			Expect(admin.Get(ctx, client.ObjectKeyFromObject(pod), &now)).To(Succeed())
			Expect(now.Status.Conditions).To(ContainElement(HaveField("Type", corev1.PodReady)), "the kubelet's own")
			for _, c := range now.Status.Conditions {
				if c.Type == v1alpha1.ConditionServerHealthy {
					return &c
				}
			}
			return nil
		}
		said := func() string {
			select {
			case e := <-recorder.Events:
				return e
			default:
				return ""
			}
		}
		is := func(status corev1.ConditionStatus, reason string, since time.Time) OmegaMatcher {
			return And(HaveField("Status", status), HaveField("Reason", reason), HaveField("LastTransitionTime.Time", BeTemporally("==", since)))
		}

		h := container()
		h.beat(ctx)
		began := clock.Now()
		Expect(condition()).To(is(corev1.ConditionTrue, v1alpha1.ReasonAnswers, began))
		Expect(said()).To(BeEmpty(), "an event although the server is healthy")

		By("missing one answer")
		server.answer(errDown)
		clock.Step(time.Minute)
		h.beat(ctx)
		Expect(condition()).To(is(corev1.ConditionTrue, v1alpha1.ReasonAnswers, began))

		By("missing another")
		clock.Step(time.Minute)
		down := clock.Now()
		h.beat(ctx)
		Expect(condition()).To(is(corev1.ConditionFalse, v1alpha1.ReasonUnreachable, down))
		Expect(condition()).To(HaveField("Message", And(
			HavePrefix("AlterShield Server did not answer two heartbeats in a row: "), ContainSubstring("connection refused"),
		)))
		Expect(said()).To(And(HavePrefix("Warning "+v1alpha1.EventServerHealthChanged), ContainSubstring("connection refused")))

		By("writing nothing without a change, also in another container of the pod")
		var before corev1.Pod
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(pod), &before)).To(Succeed())
		h = container()
		for range 3 {
			clock.Step(time.Minute)
			h.beat(ctx)
		}
		var after corev1.Pod
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(pod), &after)).To(Succeed())
		Expect(after.ResourceVersion).To(Equal(before.ResourceVersion))
		Expect(said()).To(BeEmpty())

		By("failing for another reason")
		server.answer(&altershield.Error{
			Action: altershield.ActionHeartbeat, Class: altershield.ClassHuman,
			Code: altershield.CodePermissionDenied, Msg: altershield.MsgPermissionDenied,
		})
		clock.Step(time.Minute)
		h.beat(ctx)
		Expect(condition()).To(is(corev1.ConditionFalse, v1alpha1.ReasonPermissionDenied, down))
		Expect(said()).To(HavePrefix("Warning " + v1alpha1.EventServerHealthChanged))

		By("recovering, while the API server refuses the write")
		server.answer(nil)
		clock.Step(time.Minute)
		h.Client = refusing{h.Client}
		h.beat(ctx)
		Expect(said()).To(BeEmpty())
		h.Client = writer
		clock.Step(time.Minute)
		h.beat(ctx)
		Expect(condition()).To(is(corev1.ConditionTrue, v1alpha1.ReasonAnswers, clock.Now()))
		Expect(said()).To(HavePrefix("Normal " + v1alpha1.EventServerHealthChanged))
	})
})

// refusing is a client that writes no status.
type refusing struct{ client.Client }

func (r refusing) Status() client.SubResourceWriter { return refusingStatus{r.Client.Status()} }

type refusingStatus struct{ client.SubResourceWriter }

func (refusingStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return fmt.Errorf("not now")
}
