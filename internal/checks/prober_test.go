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

package checks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// probed is a batch of pods that a policy probes, at a test server.
type probed struct {
	*testing.T
	clock  *clocktesting.FakePassiveClock
	began  time.Time
	cached client.Client
	live   client.WithWatch
	checks *Checks
	s      Subject
	// events of all writes, and the number of writes.
	events []record.Event
	writes int
}

func newProbed(t *testing.T, port int32, pods ...string) *probed {
	t.Helper()
	p := &probed{T: t, began: testNow, clock: clocktesting.NewFakePassiveClock(testNow)}
	scheme := kuberuntime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	p.cached, p.live = fake.NewClientBuilder().WithScheme(scheme).Build(), fake.NewClientBuilder().WithScheme(scheme).Build()
	p.s.Release, p.s.Batch = testRelease()
	for _, name := range pods {
		p.s.Batch.Spec.PodInfos = append(p.s.Batch.Spec.PodInfos, v1alpha1.PodInfo{Pod: name, UID: name})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
		pod.Status.PodIP, pod.Status.Conditions = "127.0.0.1", []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if err := p.cached.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		full := pod.DeepCopy()
		full.Labels = map[string]string{"app": "web"}
		full.ResourceVersion, full.Spec.Containers = "", []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: port}}}}
		if err := p.live.Create(t.Context(), full); err != nil {
			t.Fatal(err)
		}
	}
	of := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "policy", Generation: 1}}
	of.Spec.Checks = []v1alpha1.PolicyCheck{{
		Name: "answers", OnError: v1alpha1.SilenceFails, Timeout: &metav1.Duration{Duration: time.Minute},
		Probe: &v1alpha1.ProbeCheck{HTTP: &v1alpha1.HTTPProbe{Port: port, Path: "/"}, Successes: 3, Failures: 3},
	}}
	p.s.Policies = []v1alpha1.DefensePolicy{of}
	p.s.Selected = policy.Workload{Namespace: of.Namespace}
	stamp := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: p.began.Add(after)} }
	p.s.Batch.Status.Checks = []v1alpha1.CheckStatus{{
		Name: "ns/policy/answers", Type: v1alpha1.CheckTypeProbe, Mode: v1alpha1.ModeEnforce, Generation: 1, Phase: v1alpha1.CheckRunning,
		StartTime: stamp(0), DueTime: stamp(90 * time.Second), Deadline: stamp(15 * time.Minute),
	}}
	p.restart()
	return p
}

// restart starts another process.
func (p *probed) restart() {
	c := &cluster.Cluster{View: cluster.View{Cached: p.cached, Live: p.live, Operator: "operator"}, Clock: p.clock}
	p.checks = New(c, anywhere, nil)
}

func (p *probed) check() *v1alpha1.CheckStatus { return &p.s.Batch.Status.Checks[0] }

// next makes one step, and writes the result.
func (p *probed) next() Step {
	p.Helper()
	step, err := p.checks.Next(p.Context(), p.s)
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

// run makes all steps that are due, and waits for their calls. It ends with the check, or
// after the given time.
func (p *probed) run(during time.Duration) {
	p.Helper()
	until := p.clock.Now().Add(during)
	for {
		step := p.next()
		p.checks.probe.running.Wait()
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
	p.checks.Forget(p.s.Key())
	if len(p.checks.probe.batches) != 0 || p.checks.probe.slots.InUse() {
		t.Errorf("it remembers %v, or keeps a slot", p.checks.probe.batches)
	}
}

// TestProbeFails: a pod with bad responses fails, with an event, and its text is not
// in the status.
func TestProbeFails(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusServiceUnavailable) })
	p := newProbed(t, portOn(t, server), "a")
	p.run(time.Hour)
	p.want(v1alpha1.CheckFailed, "HTTP503", "a")
	if len(p.events) != 1 || p.events[0].Reason != v1alpha1.EventCheckFailed {
		t.Errorf("the events are %+v", p.events)
	}
	written := fmt.Sprint(p.s.Batch.Status, p.events)
	if strings.Contains(written, secret) || !strings.Contains(written, "answered 503, and not 200-399, 3 times in a row") {
		t.Errorf("it writes %s", written)
	}
}

// TestProbeInBackground: a pass is neither written nor measured again; a failure is written.
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

// TestProbeIsRefused: a pod that may not be called is not called, and not measured.
func TestProbeIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*probed, *corev1.Pod)
		message string
	}{
		"a port that is not declared": {
			func(_ *probed, pod *corev1.Pod) { pod.Spec.Containers[0].Ports = nil }, "none of its containers declares port",
		},
		"the network of the node": {func(_ *probed, pod *corev1.Pod) { pod.Spec.HostNetwork = true }, "in the network of its node"},
		"this machine": {
			func(p *probed, _ *corev1.Pod) { p.checks.probe.caller.guard = NewGuard("") }, "probes may not call its IP",
		},
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
			if c := p.check(); c.OnSilence != v1alpha1.SilenceFails || !strings.Contains(c.Message, test.message) || seen.Load() != 0 {
				t.Errorf("it made %d connections, and is %+v", seen.Load(), c)
			}
		})
	}
}

// TestProbeOfDeletedPod: a deleted pod does not fail, even if the cache still has it.
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

// TestProbeBeginsAgain: another process, or another generation of the policy, begins to
// count at 0.
func TestProbeBeginsAgain(t *testing.T) {
	for name, change := range map[string]func(*probed){
		"another process":    (*probed).restart,
		"another generation": func(p *probed) { p.s.Policies[0].Generation++ },
	} {
		t.Run(name, func(t *testing.T) {
			server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
			p := newProbed(t, portOn(t, server), "a")
			p.run(15 * time.Second) // two failures
			change(p)
			p.run(15 * time.Second) // two more
			p.want(v1alpha1.CheckRunning, "", "")
			p.run(time.Hour)
			p.want(v1alpha1.CheckFailed, "HTTP500", "a")
		})
	}
}

// TestProbeOfRemovedPolicy: nothing waits for a check that was removed.
func TestProbeOfRemovedPolicy(t *testing.T) {
	server, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	p := newProbed(t, portOn(t, server), "a")
	p.run(5 * time.Second)
	p.s.Policies = nil
	p.run(time.Hour)
	p.want(v1alpha1.CheckCanceled, v1alpha1.ReasonPolicyRemoved, "")
}

// TestProbeDoesNotBlock: a step returns while pods do not answer; at most two pods of a
// namespace are called at a time, and all calls end when the batch is forgotten.
func TestProbeDoesNotBlock(t *testing.T) {
	arrived := make(chan struct{}, 100)
	server, seen := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	p := newProbed(t, portOn(t, server), "a", "b", "c", "d", "e")
	if step := p.next(); step.After == 0 || step.After > time.Second {
		t.Fatalf("the next step is after %s", step.After)
	}
	<-arrived
	<-arrived
	if step := p.next(); step.After == 0 || step.After > time.Second {
		t.Fatalf("the next step is after %s", step.After)
	}
	p.checks.Forget(p.s.Key())
	p.checks.probe.running.Wait()
	if n := seen.Load(); n != maxCallsOfNamespace {
		t.Errorf("%d were called", n)
	}
}

// TestProbeFollowsPolicy: a changed policy counts for an open check.
func TestProbeFollowsPolicy(t *testing.T) {
	server, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	p := newProbed(t, portOn(t, server)+1, "a") // not declared
	p.s.Policies[0].Spec.Checks[0].Probe.HTTP.Port--
	p.run(time.Minute)
	p.want(v1alpha1.CheckRunning, "", "")
	p.s.Policies[0].Generation, p.s.Policies[0].Spec.Checks[0].Deadline = 2, &metav1.Duration{Duration: 5 * time.Minute}
	p.run(3 * time.Minute)
	p.want(v1alpha1.CheckRunning, "", "")
	p.run(time.Hour)
	p.want(v1alpha1.CheckError, v1alpha1.ReasonNotMeasured, "")
	if c := p.check(); c.CompletionTime.Sub(p.began) > 6*time.Minute || c.Generation != 2 {
		t.Errorf("it ended after %s, of generation %d", c.CompletionTime.Sub(p.began), c.Generation)
	}
	p = newProbed(t, portOn(t, server), "a")
	p.s.Batch.Status.Status = v1alpha1.ChangePodPostSubmitted
	p.s.Policies[0].Spec.Checks[0].Wait = ptr.To(false)
	p.run(time.Second)
	if c := p.check(); c.Phase != v1alpha1.CheckWatching || !c.Background {
		t.Errorf("it is %s, in the background %t", c.Phase, c.Background)
	}
}

// TestProbeTimeoutIsOfCall: the timeout of a pod does not include the time of the API server.
func TestProbeTimeoutIsOfCall(t *testing.T) {
	server, _ := serve(t, func(http.ResponseWriter, *http.Request) {})
	p := newProbed(t, portOn(t, server), "a")
	var found, until atomic.Pointer[time.Time]
	get := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		err := c.Get(ctx, key, o, opts...)
		found.Store(ptr.To(time.Now()))
		return err
	}
	p.live = interceptor.NewClient(p.live, interceptor.Funcs{Get: get})
	p.restart()
	p.checks.probe.caller.guard = func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		deadline, _ := ctx.Deadline()
		until.Store(&deadline)
		return nil
	}
	p.run(time.Second)
	if found.Load() == nil || until.Load() == nil {
		t.Fatal("it was not called")
	}
	if left := until.Load().Sub(*found.Load()); left < time.Minute {
		t.Errorf("it has %s", left)
	}
}

// TestProbeStops: when the manager ends, its calls end, and no more calls begin.
func TestProbeStops(t *testing.T) {
	arrived := make(chan struct{}, 100)
	server, seen := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	p := newProbed(t, portOn(t, server), "a", "b", "c")
	p.next()
	<-arrived
	<-arrived
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.checks.Start(ctx); err != nil {
		t.Fatal(err)
	}
	p.next()
	p.checks.probe.mu.Lock()
	busy := len(p.checks.probe.batches[p.s.Key()][p.check().Name].busy)
	p.checks.probe.mu.Unlock()
	if n := seen.Load(); n != maxCallsOfNamespace || busy != 0 {
		t.Errorf("%d were called, and %d are being called", n, busy)
	}
}

// TestCacheBehind: a check goes on if only the cache lacks its policy.
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
