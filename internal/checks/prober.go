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
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// +kubebuilder:rbac:groups="",resources=services,verbs=get

// prober makes the checks of type probe: it calls the pods of a batch. The calls are made
// beside the reconciles, which only look at what they came to. That is in the memory of this
// process: another one begins anew.
type prober struct {
	view   cluster.View
	clock  clock.PassiveClock
	caller *caller
	slots  *slots.Slots
	// running are the calls that are under way, or wait for a slot.
	running sync.WaitGroup

	mu sync.Mutex
	// stopped: no call begins any more.
	stopped bool
	// batches have the probes of each, and releases theirs, by the names of their checks.
	batches map[types.NamespacedName]map[string]*probing
}

const (
	// maxCalls of probes are at work at a time, maxCallsOfNamespace of one namespace.
	maxCalls            = 8
	maxCallsOfNamespace = 2
)

// probing is a check under way.
type probing struct {
	// subject, start and generation it is of: another one begins anew.
	subject    types.UID
	started    *metav1.Time
	generation int64
	began      time.Time
	streaks    map[types.UID]probeStreak
	results    map[types.UID]probeResult
	// busy are the pods that are being called, with what ends that.
	busy map[types.UID]context.CancelFunc
	// found is where to call a pod, of those that may be called.
	found map[types.UID]place
}

func newProber(c *cluster.Cluster, guard Guard) *prober {
	return &prober{
		view: c.View, clock: c.Clock, caller: &caller{guard: guard}, slots: slots.New(maxCalls, maxCallsOfNamespace),
		batches: map[types.NamespacedName]map[string]*probing{},
	}
}

// keep forgets the probes of a batch but for those of these names.
func (p *prober) keep(key types.NamespacedName, names map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, of := range p.batches[key] {
		if !names[name] {
			of.cancel()
			delete(p.batches[key], name)
		}
	}
	if len(p.batches[key]) == 0 {
		delete(p.batches, key)
	}
}

func (of *probing) cancel() {
	for _, cancel := range of.busy {
		cancel()
	}
}

// podsOf are the pods that a check is about. Of a release as a whole, of which only a
// Service is called, some are enough to tell that there are any.
func (p *prober) podsOf(ctx context.Context, s *Subject) ([]workload.Pod, error) {
	if s.Batch != nil {
		return observed(ctx, p.view, s.Batch)
	}
	pods, err := p.view.Pods(ctx, s.Workload)
	if err != nil {
		return nil, err
	}
	pods = slices.DeleteFunc(pods, func(pod workload.Pod) bool { return isGone(&pod) })
	return pods[:min(len(pods), podsOfRelease)], nil
}

// podsOfRelease is how many pods of a release are looked at.
const podsOfRelease = 5

// next makes one step of a check.
func (p *prober) next(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, after time.Duration, err error) {
	pods, err := p.podsOf(ctx, s)
	if err != nil {
		return next, 0, err
	}
	known, in := p.take(s, of, c)
	in.Pods, in.Status = pods, followed(c, of, s)
	plan := decideProbe(in)
	known.streaks = plan.Streaks
	in.Confirmed = map[types.UID]bool{}
	for len(plan.Confirm) > 0 {
		if in.Pods, err = p.confirm(ctx, in.Pods, plan.Confirm, in.Confirmed); err != nil {
			return next, 0, err
		}
		in.Streaks, in.Results = plan.Streaks, nil
		plan = decideProbe(in)
	}
	if equality.Semantic.DeepEqual(plan.Status, *c) {
		targets := in.Pods
		if name := of.Probe.Service; name != "" {
			targets = []workload.Pod{{Namespace: s.Release.Namespace, Name: name, UID: serviceUID}}
		}
		p.call(ctx, known, s.Release.Name, of, targets, plan)
	}
	return plan.Status, plan.After, nil
}

// take is what is known of a check by now. It begins anew where the check is another
// one.
func (p *prober) take(s *Subject, of *policy.Check, c *v1alpha1.CheckStatus) (*probing, probeInput) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, now := s.Key(), p.clock.Now()
	known := p.batches[key][of.Name]
	if known == nil || known.subject != s.uid() || !known.started.Equal(c.StartTime) || known.generation != of.Generation {
		if known != nil {
			known.cancel()
		}
		known = &probing{
			subject: s.uid(), started: c.StartTime, generation: of.Generation, began: now, streaks: map[types.UID]probeStreak{},
			results: map[types.UID]probeResult{}, busy: map[types.UID]context.CancelFunc{}, found: map[types.UID]place{},
		}
		if p.batches[key] == nil {
			p.batches[key] = map[string]*probing{}
		}
		p.batches[key][of.Name] = known
	}
	in := probeInput{
		Now: now, Check: of, Began: known.began,
		Streaks: known.streaks, Results: known.results, Busy: map[types.UID]bool{},
	}
	for uid := range known.busy {
		in.Busy[uid] = true
	}
	known.results = map[types.UID]probeResult{}
	return known, in
}

// confirm looks at pods at the API server: the cache may not know yet that one goes.
func (p *prober) confirm(ctx context.Context, pods []workload.Pod, failed []types.UID, looked map[types.UID]bool) ([]workload.Pod, error) {
	confirmed := make([]workload.Pod, 0, len(pods))
	for i := range pods {
		if !slices.Contains(failed, pods[i].UID) {
			confirmed = append(confirmed, pods[i])
			continue
		}
		looked[pods[i].UID] = true
		pod, err := p.live(ctx, &pods[i])
		if err != nil {
			return nil, err
		}
		if pod != nil {
			confirmed = append(confirmed, workload.ReadPod(pod))
		}
	}
	return confirmed, nil
}

// live reads a pod from the API server; nil when it is gone.
func (p *prober) live(ctx context.Context, of *workload.Pod) (*corev1.Pod, error) {
	var pod corev1.Pod
	err := p.view.Live.Get(ctx, types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err), err == nil && pod.UID != of.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get pod %s/%s: %w", of.Namespace, of.Name, err)
	default:
		return &pod, nil
	}
}

// call begins calls of pods.
func (p *prober) call(ctx context.Context, known *probing, release string, of *policy.Check, pods []workload.Pod, plan probePlan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	for i := range pods {
		pod := &pods[i]
		if !slices.Contains(plan.Call, pod.UID) || known.busy[pod.UID] != nil {
			continue
		}
		// One that fails is called again before others are: it decides.
		c := call{of: known, release: release, check: of, pod: pod, urgent: plan.Streaks[pod.UID].Bad > 0}
		// It goes on when the reconcile has ended.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		known.busy[pod.UID] = cancel
		p.running.Go(func() {
			defer cancel()
			p.callOne(ctx, c)
		})
	}
}

// call is one call of a pod.
type call struct {
	of      *probing
	release string
	check   *policy.Check
	pod     *workload.Pod
	urgent  bool
}

// callOne calls a pod once it is its turn, and keeps what came of it.
func (p *prober) callOne(ctx context.Context, c call) {
	var result probeResult
	if done, err := p.slots.Acquire(ctx, slots.Work{Namespace: c.pod.Namespace, Release: c.release, Urgent: c.urgent}); err == nil {
		result = p.measure(ctx, c)
		done()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(c.of.busy, c.pod.UID)
	if ctx.Err() == nil {
		c.of.results[c.pod.UID] = result
	}
}

// measure calls a pod, where that may be done.
func (p *prober) measure(ctx context.Context, c call) probeResult {
	ip, probe, refused := p.where(ctx, c)
	began := p.clock.Now()
	result := refused
	if refused.Reason == "" {
		ctx, cancel := context.WithTimeout(ctx, c.check.Timeout)
		defer cancel()
		result = p.caller.call(ctx, ip, probe)
	}
	result.Began, result.Ended = began, p.clock.Now()
	return result
}

// where says at which IP to call a pod, or a backend of the Service, and with which port, or why not.
func (p *prober) where(ctx context.Context, c call) (ip string, probe *v1alpha1.ProbeCheck, refused probeResult) {
	if c.check.Probe.Service != "" {
		at, refused := p.findService(ctx, c)
		return at.Addr().String(), onPort(c.check.Probe, int32(at.Port())), refused
	}
	at, refused := p.find(ctx, c)
	if refused.Reason == "" {
		refused = at.refuses(portOf(c.check.Probe))
	}
	return at.ip, c.check.Probe, refused
}

// maxBackends bounds the pods that are read to find a backend of a Service.
const maxBackends = 100

// findService reads a Service and its pods from the API server, for each call: it may have become
// another one. It returns one backend, by chance, as the proxies of the nodes do. It goes by no
// EndpointSlice, which may lead anywhere.
func (p *prober) findService(ctx context.Context, c call) (at netip.AddrPort, refused probeResult) {
	ctx, cancel := context.WithTimeout(ctx, c.check.Timeout)
	defer cancel()
	var service corev1.Service
	err := p.view.Live.Get(ctx, types.NamespacedName{Namespace: c.pod.Namespace, Name: c.pod.Name}, &service)
	switch {
	case apierrors.IsNotFound(err):
		return at, probeResult{Reason: "NotFound", Message: "there is no such Service in namespace " + c.pod.Namespace + ": create it, or correct probe.service"}
	case apierrors.IsForbidden(err):
		return at, probeResult{Reason: "Forbidden", Message: "the operator may not get Services: give it that right, see config/rbac/role.yaml"}
	case err != nil:
		return at, probeResult{Reason: "NotFound", Message: "the API server did not say where it is"}
	}
	port, refused := portOfService(&service, portOf(c.check.Probe))
	if refused.Reason != "" {
		return at, refused
	}
	var pods corev1.PodList
	if err := p.view.Live.List(ctx, &pods, client.InNamespace(service.Namespace), client.MatchingLabels(service.Spec.Selector), client.Limit(maxBackends)); err != nil {
		return at, probeResult{Reason: "NotFound", Message: "the API server did not say which pods it selects"}
	}
	all, refused := backends(&service, port, pods.Items)
	if len(all) == 0 {
		return at, refused
	}
	return all[rand.IntN(len(all))], refused //nolint:gosec // chance, no secret
}

// find finds out where to call a pod, at the API server: the cache does not have its
// ports. That is done once while its address stays. It has a timeout of its own: how
// long the API server takes says nothing of the pod.
func (p *prober) find(ctx context.Context, c call) (at place, refused probeResult) {
	p.mu.Lock()
	at, ok := c.of.found[c.pod.UID]
	p.mu.Unlock()
	if ok && at.ip == c.pod.IP {
		return at, refused
	}
	ctx, cancel := context.WithTimeout(ctx, c.check.Timeout)
	defer cancel()
	live, err := p.live(ctx, c.pod)
	switch {
	case err != nil:
		return at, probeResult{Reason: "NotFound", Message: "the API server did not say which ports it declares"}
	case live == nil:
		return at, probeResult{Reason: "NotFound", Message: "it is not there any more"}
	}
	at = placeOf(live)
	p.mu.Lock()
	defer p.mu.Unlock()
	c.of.found[c.pod.UID] = at
	return at, refused
}

// stop ends all calls.
func (p *prober) stop() {
	p.mu.Lock()
	p.stopped = true
	for _, checks := range p.batches {
		for _, of := range checks {
			of.cancel()
		}
	}
	p.mu.Unlock()
	p.running.Wait()
}
