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

package verify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// probed is a batch of pods that a policy probes, at a server of the test.
type probed struct {
	*testing.T
	clock  *clocktesting.FakePassiveClock
	began  time.Time
	cached client.Client
	live   client.Client
	probe  *Probe
	s      Subject
	// events of all that was written, and how often that was.
	events []defense.Event
	writes int
}

func newProbed(t *testing.T, port int32, pods ...string) *probed {
	t.Helper()
	p := &probed{T: t, began: serverNow, clock: clocktesting.NewFakePassiveClock(serverNow)}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	p.cached, p.live = fake.NewClientBuilder().WithScheme(scheme).Build(), fake.NewClientBuilder().WithScheme(scheme).Build()
	p.s.Release, p.s.Batch = testRelease()
	p.s.Batch.UID, p.s.Batch.Spec.PodInfos, p.s.Batch.Status.Status = "batch", nil, v1alpha1.ChangePodExecuteDone
	p.s.Release.Status.Status = v1alpha1.ChangeWorkloadRunning
	p.s.Batch.Spec.Attempt, p.s.Batch.Spec.Release = p.s.Release.Status.Attempt, p.s.Release.Status.ObservedRelease
	for _, name := range pods {
		p.s.Batch.Spec.PodInfos = append(p.s.Batch.Spec.PodInfos, v1alpha1.PodInfo{Pod: name, UID: name})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
		pod.Status.PodIP, pod.Status.Conditions = "127.0.0.1", []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if err := p.cached.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		full := pod.DeepCopy()
		full.ResourceVersion, full.Spec.Containers = "", []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: port}}}}
		if err := p.live.Create(t.Context(), full); err != nil {
			t.Fatal(err)
		}
	}
	of := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "policy", Generation: 1}}
	of.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "answers", OnError: v1alpha1.SilenceFails, Timeout: &metav1.Duration{Duration: time.Minute}, Probe: &v1alpha1.ProbeCheck{
		HTTP: &v1alpha1.HTTPProbe{Port: port, Path: "/"}, Successes: 3, Failures: 3,
	}}}
	p.s.Policies = []v1alpha1.DefensePolicy{of}
	p.s.Selected = policy.Workload{Namespace: of.Namespace}
	stamp := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: p.began.Add(after)} }
	p.s.Batch.Status.Checks = []v1alpha1.CheckStatus{{
		Name: "ns/policy/answers", Type: policy.TypeProbe, Mode: v1alpha1.ModeEnforce, Generation: 1, Phase: v1alpha1.CheckRunning,
		StartTime: stamp(0), DueTime: stamp(40 * time.Second), Deadline: stamp(15 * time.Minute),
	}}
	p.restart()
	return p
}

// restart lets another process go on.
func (p *probed) restart() {
	c := &cluster.Cluster{View: cluster.View{Cached: p.cached, Live: p.live, Operator: "operator"}, Clock: p.clock}
	p.probe = NewProbe(c, anywhere)
}

func (p *probed) check() *v1alpha1.CheckStatus { return &p.s.Batch.Status.Checks[0] }

// next makes one step, and writes what comes of it.
func (p *probed) next() Step {
	p.Helper()
	step, err := p.probe.Next(p.Context(), p.s)
	if err != nil {
		p.Fatal(err)
	}
	if step.Write != nil {
		if d := step.Write(p.s); !d.Void {
			p.s.Batch.Status, p.events, p.writes = *d.Batch, append(p.events, d.Events...), p.writes+1
		}
	}
	return step
}

// run makes a step each time one is asked for, and waits for the calls it makes. It
// ends with the check, or after so long.
func (p *probed) run(during time.Duration) {
	p.Helper()
	until := p.clock.Now().Add(during)
	for {
		step := p.next()
		p.probe.running.Wait()
		switch {
		case step.Write != nil:
			continue
		case step.After == 0:
			return
		case p.clock.Now().Add(step.After).After(until):
			p.clock.SetTime(until)
			return
		}
		p.clock.SetTime(p.clock.Now().Add(step.After))
	}
}

func (p *probed) want(phase v1alpha1.CheckPhase, reason, failed string) {
	p.Helper()
	c := p.check()
	if c.Phase != phase || c.Reason != reason || strings.Join(c.FailedPods, " ") != failed {
		p.Fatalf("after %s it is %s %q of %v: %s", p.clock.Now().Sub(p.began), c.Phase, c.Reason, c.FailedPods, c.Message)
	}
}

// TestProbePasses: each pod answers well three times, ten seconds apart.
func TestProbePasses(t *testing.T) {
	calls := atomic.Int32{}
	server, _ := serve(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	p := newProbed(t, portOn(t, server), "a", "b")
	p.run(time.Hour)
	p.want(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "")
	if took := p.clock.Now().Sub(p.began); took < 20*time.Second || took > 25*time.Second || calls.Load() != 6 {
		t.Errorf("it took %s and %d calls", took, calls.Load())
	}
	p.probe.Forget(p.s.Key())
	if len(p.probe.batches) != 0 || len(p.probe.slots.of) != 0 {
		t.Errorf("it remembers %v and %v", p.probe.batches, p.probe.slots.of)
	}
}

// TestProbeFails: a pod that answers badly fails, with an event, and what it said is
// not told.
func TestProbeFails(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusServiceUnavailable) })
	p := newProbed(t, portOn(t, server), "a")
	p.run(time.Hour)
	p.want(v1alpha1.CheckFailed, "HTTP503", "a")
	if len(p.events) != 1 || p.events[0].Reason != v1alpha1.EventCheckFailed {
		t.Errorf("the events are %+v", p.events)
	}
	if told := fmt.Sprint(p.s.Batch.Status, p.events); strings.Contains(told, secret) || !strings.Contains(told, "answered 503, and not 200-399, 3 times in a row") {
		t.Errorf("it tells %s", told)
	}
}

// TestProbeInBackground: a pass is not written, nor is it measured again; a failure is.
func TestProbeInBackground(t *testing.T) {
	calls, code := atomic.Int32{}, atomic.Int32{}
	code.Store(http.StatusOK)
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { calls.Add(1); w.WriteHeader(int(code.Load())) })
	p := newProbed(t, portOn(t, server), "a")
	p.check().Phase, p.check().Background = v1alpha1.CheckWatching, true
	p.run(10 * time.Minute)
	code.Store(http.StatusInternalServerError)
	p.run(time.Hour)
	p.want(v1alpha1.CheckWatching, "", "")
	if p.writes != 0 || calls.Load() != 3 {
		t.Errorf("%d writes, %d calls", p.writes, calls.Load())
	}
	p = newProbed(t, portOn(t, server), "a")
	p.check().Phase, p.check().Background = v1alpha1.CheckWatching, true
	p.run(time.Hour)
	p.want(v1alpha1.CheckFailed, "HTTP500", "a")
}

// TestProbeIsRefused: what may not be called is not, and cannot be measured.
func TestProbeIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*probed, *corev1.Pod)
		told   string
	}{
		"a port that is not declared": {func(_ *probed, pod *corev1.Pod) { pod.Spec.Containers[0].Ports = nil }, "none of its containers declares port"},
		"the network of the node":     {func(_ *probed, pod *corev1.Pod) { pod.Spec.HostNetwork = true }, "in the network of its node"},
		"this machine":                {func(p *probed, _ *corev1.Pod) { p.probe.caller.guard = NewGuard("") }, "its IP is not one that is called"},
	} {
		t.Run(name, func(t *testing.T) {
			server, seen := serve(t, func(http.ResponseWriter, *http.Request) {})
			p := newProbed(t, portOn(t, server), "a")
			var pod corev1.Pod
			key := types.NamespacedName{Namespace: "ns", Name: "a"}
			if err := p.live.Get(t.Context(), key, &pod); err != nil {
				t.Fatal(err)
			}
			test.change(p, &pod)
			if err := p.live.Update(t.Context(), &pod); err != nil {
				t.Fatal(err)
			}
			p.run(14 * time.Minute)
			p.want(v1alpha1.CheckRunning, "", "")
			p.run(time.Hour)
			p.want(v1alpha1.CheckError, v1alpha1.ReasonNotMeasured, "")
			if c := p.check(); c.OnSilence != v1alpha1.SilenceFails || !strings.Contains(c.Message, test.told) || seen.Load() != 0 {
				t.Errorf("it made %d connections, and is %+v", seen.Load(), c)
			}
		})
	}
}

// TestProbeOfDeletedPod: a pod that the cache still shows is not failed once it is
// deleted.
func TestProbeOfDeletedPod(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	p := newProbed(t, portOn(t, server), "a")
	p.run(19 * time.Second)
	if err := p.live.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	p.run(time.Hour)
	p.want(v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "")
}

// TestProbeBeginsAnew: another process, or another generation of the policy, does not
// count on.
func TestProbeBeginsAnew(t *testing.T) {
	for name, anew := range map[string]func(*probed){
		"another process":    (*probed).restart,
		"another generation": func(p *probed) { p.s.Policies[0].Generation++ },
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
			p := newProbed(t, portOn(t, server), "a")
			p.run(15 * time.Second) // two failures
			anew(p)
			p.run(15 * time.Second) // two more
			p.want(v1alpha1.CheckRunning, "", "")
			p.run(time.Hour)
			p.want(v1alpha1.CheckFailed, "HTTP500", "a")
		})
	}
}

// TestProbeOfRemovedPolicy: nothing waits for a check that is not there any more.
func TestProbeOfRemovedPolicy(t *testing.T) {
	server, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	p := newProbed(t, portOn(t, server), "a")
	p.run(5 * time.Second)
	p.s.Policies = nil
	p.run(time.Hour)
	p.want(v1alpha1.CheckCanceled, v1alpha1.ReasonPolicyRemoved, "")
}

// TestProbeDoesNotBlock: a step returns while pods do not answer; no more than two of a
// namespace are called at a time, and when the batch is forgotten all calls end.
func TestProbeDoesNotBlock(t *testing.T) {
	arrived := make(chan struct{}, 100)
	server, seen := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	p := newProbed(t, portOn(t, server), "a", "b", "c", "d", "e")
	if step := p.next(); step.After == 0 || step.After > time.Second {
		t.Fatalf("it looks again after %s", step.After)
	}
	<-arrived
	<-arrived
	if step := p.next(); step.After == 0 || step.After > time.Second {
		t.Fatalf("it looks again after %s", step.After)
	}
	p.probe.Forget(p.s.Key())
	p.probe.running.Wait()
	if n := seen.Load(); n != maxCallsOfNamespace {
		t.Errorf("%d were called", n)
	}
}

// TestSlots: as many calls as may be are at work at a time.
func TestSlots(t *testing.T) {
	s := newSlots()
	var held []func()
	for i := range maxCalls / maxCallsOfNamespace {
		for range maxCallsOfNamespace {
			release, err := s.acquire(t.Context(), fmt.Sprint("ns", i))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, release)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ns := range []string{"ns0", "other"} {
		if _, err := s.acquire(gone, ns); err == nil {
			t.Errorf("one more of %s", ns)
		}
	}
	held[0]()
	if _, err := s.acquire(gone, "ns1"); err == nil {
		t.Error("one more of ns1")
	}
	release, err := s.acquire(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range append(held[1:], release) {
		release()
	}
	if len(s.of) != 0 {
		t.Errorf("it remembers %v", s.of)
	}
}

// TestCacheBehind: a policy that the cache does not show ends no check of it.
func TestCacheBehind(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	p := newProbed(t, portOn(t, server), "a")
	known := p.s.Policies[0].DeepCopy()
	if err := p.live.Create(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	p.s.Policies = nil
	p.run(time.Hour)
	p.want(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "")
}
