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

// prober runs the checks of type probe: it calls the pods of a batch. The calls run beside the
// reconciles, which only read the results. The results are in the memory of this process: another
// process begins again.
type prober struct {
	view   cluster.View
	clock  clock.PassiveClock
	caller *caller
	slots  *slots.Slots
	// running has the calls that run, or wait for a slot.
	running sync.WaitGroup

	mu sync.Mutex
	// stopped: no more calls begin.
	stopped bool
	// batches has the probes of each batch and of each release, by the name of the check.
	batches map[types.NamespacedName]map[string]*probing
}

const (
	// maxCalls of probes run at a time, maxCallsOfNamespace for one namespace.
	maxCalls            = 8
	maxCallsOfNamespace = 2
)

// probing is a running check.
type probing struct {
	// subject, started and generation identify the check: after a change it begins again.
	subject    types.UID
	started    *metav1.Time
	generation int64
	began      time.Time
	streaks    map[types.UID]probeStreak
	results    map[types.UID]probeResult
	// busy has the pods that are being called, with the functions that cancel the calls.
	busy map[types.UID]context.CancelFunc
	// found has the places of pods that may be called.
	found map[types.UID]place
}

func newProber(c *cluster.Cluster, guard Guard) *prober {
	return &prober{
		view: c.View, clock: c.Clock, caller: &caller{guard: guard}, slots: slots.New(maxCalls, maxCallsOfNamespace),
		batches: map[types.NamespacedName]map[string]*probing{},
	}
}

// keep forgets all probes of a batch except the named ones.
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

// podsOf reads the pods of a check. A check of a release as a whole calls a Service only, so a few
// pods are enough.
func (p *prober) podsOf(ctx context.Context, s *Subject) ([]workload.Pod, error) {
	pods, err := podsOf(ctx, p.view, s)
	if s.Batch != nil || err != nil {
		return pods, err
	}
	pods = slices.DeleteFunc(pods, func(pod workload.Pod) bool { return isGone(&pod) })
	return pods[:min(len(pods), podsOfRelease)], nil
}

// podsOfRelease is the number of pods of a release that are read.
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

// take returns the known results of a check. It begins again if the check changed.
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

// confirm reads failed pods from the API server: the cache may not know yet that a pod is being deleted.
func (p *prober) confirm(
	ctx context.Context, pods []workload.Pod, failed []types.UID, done map[types.UID]bool,
) ([]workload.Pod, error) {
	confirmed := make([]workload.Pod, 0, len(pods))
	for i := range pods {
		if !slices.Contains(failed, pods[i].UID) {
			confirmed = append(confirmed, pods[i])
			continue
		}
		done[pods[i].UID] = true
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
		// A pod that fails is called again before others: it decides.
		c := call{of: known, release: release, check: of, pod: pod, urgent: plan.Streaks[pod.UID].Bad > 0}
		// The call outlives the reconcile.
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

// callOne calls a pod once a slot is free, and keeps the result.
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

// measure calls a pod, if that is allowed.
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

// where returns the IP and the port of a pod, or of a backend of the Service, or why it may not be called.
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

// findService returns a random backend of a Service. It reads the Service and its pods from the API
// server for each call, since they may change. It uses no EndpointSlices: they may have any address.
func (p *prober) findService(ctx context.Context, c call) (at netip.AddrPort, refused probeResult) {
	ctx, cancel := context.WithTimeout(ctx, c.check.Timeout)
	defer cancel()
	var service corev1.Service
	err := p.view.Live.Get(ctx, types.NamespacedName{Namespace: c.pod.Namespace, Name: c.pod.Name}, &service)
	switch {
	case apierrors.IsNotFound(err):
		return at, probeResult{Reason: "NotFound",
			Message: "there is no such Service in namespace " + c.pod.Namespace + ": create it, or correct probe.service"}
	case apierrors.IsForbidden(err):
		return at, probeResult{Reason: "Forbidden", Message: "the operator may not get Services: give it that right, see config/rbac/role.yaml"}
	case err != nil:
		return at, probeResult{Reason: "NotRead", Message: "it could not be read from the API server"}
	}
	port, refused := portOfService(&service, portOf(c.check.Probe))
	if refused.Reason != "" {
		return at, refused
	}
	var pods corev1.PodList
	err = p.view.Live.List(ctx, &pods,
		client.InNamespace(service.Namespace), client.MatchingLabels(service.Spec.Selector), client.Limit(maxBackends))
	if err != nil {
		return at, probeResult{Reason: "NotRead", Message: "its pods could not be read from the API server"}
	}
	all, refused := backends(&service, port, pods.Items)
	if len(all) == 0 {
		return at, refused
	}
	return all[rand.IntN(len(all))], refused //nolint:gosec // chance, no secret
}

// find returns the place of a pod. It reads the pod from the API server, because the cache does not
// have its ports, once per address. The read has its own timeout, apart from the call's.
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
		return at, probeResult{Reason: "NotRead", Message: "its ports could not be read from the API server"}
	case live == nil:
		return at, probeResult{Reason: "NotFound", Message: "it no longer exists"}
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
