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

package workload

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// RestartSettle is how long a container that was restarted has to have been up
// before its pod counts as well: a crash loop is Ready for a moment at each
// start.
const RestartSettle = time.Minute

// ClockTolerance is how far the clocks of a cluster may be apart before that
// counts.
const ClockTolerance = 5 * time.Second

// believable is a time that a kubelet said of a pod, where it lies between the
// creation of the pod and now; else the creation, which the API server said.
func believable(t, created, now time.Time) time.Time {
	switch {
	case t.Before(created) || t.After(now.Add(ClockTolerance)):
		return created
	case t.After(now):
		return now
	default:
		return t
	}
}

// Ended is how a container ended.
type Ended struct {
	Container, Message string
	// Finished is a time of its kubelet.
	Finished time.Time
	// Restarts of the container.
	Restarts int32
}

// Pod is what was observed of a pod.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	HostName, IP    string
	// Node is where the pod runs; empty while it is nowhere.
	Node       string
	Ready      bool
	ReadySince time.Time
	// Created is when the API server made it: no time of its kubelet's counts
	// that is earlier than that, or later than now.
	Created time.Time
	// Unprobed: a container has no readiness probe, so that Ready says of it only
	// that its process was started. StartedAt is when its containers were last
	// started; zero where that is not known to be later than ReadySince.
	Unprobed  bool
	StartedAt time.Time
	// RestartedAt is when a container that runs now was last started again after
	// an end of its own; zero when none was.
	RestartedAt time.Time
	Terminating bool
	// Ended: the pod will never run again (evicted, for one) and its owner
	// replaces it.
	Ended  bool
	Labels map[string]string
	// Index is its place among the pods of a workload that numbers them, from 0; 0 of any
	// other.
	Index int32
	// Stuck says why the pod is not ready; nil when it is, or is not to be any
	// more.
	Stuck *Stuck
	// UnreadySince is since when it is not Ready; zero while it is.
	UnreadySince time.Time
	// Restarts are how often its containers were started again; of init containers
	// only sidecars count. A container with restart rules counts for one at most, if its
	// last end is a failure by them: of earlier ends nothing is known. EndedAt is when
	// a container last ended by itself, and no rule allowed that.
	Restarts int32
	EndedAt  time.Time
	// NodeRestarted: containers of it ended last with their node.
	NodeRestarted bool
	// CrashLoop is the container that its kubelet holds back because it ends again
	// and again, and no rule allows that; nil when there is none. OutOfMemory is the one that was last killed
	// for its memory.
	CrashLoop, OutOfMemory *Ended
	// Disrupted: it was evicted, or is about to be. Lost: its node does not answer.
	Disrupted, Lost bool
}

// Live says whether the pod counts among the pods its workload runs.
func (p *Pod) Live() bool { return !p.Terminating && !p.Ended }

// Excused says that what is wrong with a pod is nobody's failure: it goes, or its node does.
func (p *Pod) Excused() bool { return !p.Live() || p.Disrupted || p.Lost }

// Finish is how long a pod has to have been well before its release is finished.
type Finish struct {
	// MinReady is how long it has to have been Ready.
	MinReady time.Duration
	// Settle is how long its containers have to have been up where one has no
	// readiness probe.
	Settle time.Duration
}

// Finished says whether the release of a pod is finished: it is not terminating
// and has been well for long enough. When only time is missing it also says how
// much.
func (p *Pod) Finished(f Finish, now time.Time) (finished bool, wait time.Duration) {
	if !p.Ready || !p.Live() {
		return false, 0
	}
	if left := p.FinishedAt(f, now).Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}

// FinishedAt is when a pod that is Ready, and stays so, is finished.
func (p *Pod) FinishedAt(f Finish, now time.Time) time.Time {
	at := p.Bounded(p.ReadySince, now).Add(f.MinReady)
	if p.Unprobed && f.Settle > 0 {
		started := p.StartedAt
		if started.IsZero() {
			started = p.ReadySince
		}
		at = times.Latest(at, p.Bounded(started, now).Add(f.Settle))
	}
	if !p.RestartedAt.IsZero() {
		at = times.Latest(at, p.Bounded(p.RestartedAt, now).Add(RestartSettle))
	}
	return at
}

// Steady says that a pod is Ready and was not restarted just now.
func (p *Pod) Steady(now time.Time) bool {
	return p.Ready && p.Live() && (p.RestartedAt.IsZero() || now.Sub(p.Bounded(p.RestartedAt, now)) >= RestartSettle)
}

// Bounded is a time that a kubelet said, where it can be true.
func (p *Pod) Bounded(t, now time.Time) time.Time { return believable(t, p.Created, now) }

// Info names the pod as it is reported.
func (p *Pod) Info(app string) v1alpha1.PodInfo {
	return v1alpha1.PodInfo{
		App:       app,
		HostName:  p.HostName,
		WorkSpace: p.Namespace,
		Pod:       p.Name,
		IP:        p.IP,
		Namespace: p.Namespace,
		UID:       string(p.UID),
	}
}

// ReadPod reads what the decisions need off a pod.
func ReadPod(pod *corev1.Pod) Pod {
	p := Pod{
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		UID:         pod.UID,
		HostName:    pod.Name,
		IP:          pod.Status.PodIP,
		Node:        pod.Spec.NodeName,
		Created:     pod.CreationTimestamp.Time,
		Unprobed:    hasUnprobed(pod),
		Terminating: pod.DeletionTimestamp != nil,
		Ended:       pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded,
		Labels:      pod.Labels,
		Stuck:       ReadStuck(pod),
	}
	p.StartedAt, p.RestartedAt = lastStarts(pod)
	if pod.Spec.Hostname != "" {
		p.HostName = pod.Spec.Hostname
	}
	if c := podCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		p.Ready, p.ReadySince = true, c.LastTransitionTime.Time
	} else if c != nil {
		p.UnreadySince = c.LastTransitionTime.Time
		// The node controller says only that of a pod on a node that is lost.
		ready := podCondition(pod, corev1.ContainersReady)
		p.Lost = p.Stuck != nil && ready != nil && ready.Status == corev1.ConditionTrue && c.Reason != readinessGatesNotReady
	}
	if c := podCondition(pod, corev1.DisruptionTarget); c != nil {
		p.Disrupted = c.Status == corev1.ConditionTrue
	}
	p.readContainers(pod)
	return p
}

// readinessGatesNotReady is the kubelet's reason for a pod whose containers are ready.
const readinessGatesNotReady = "ReadinessGatesNotReady"

// hasUnprobed says that a container has no readiness probe. Sidecars count, other
// init containers have ended before the pod is Ready.
func hasUnprobed(pod *corev1.Pod) bool {
	unprobed := func(c corev1.Container) bool { return c.ReadinessProbe == nil }
	return slices.ContainsFunc(pod.Spec.Containers, unprobed) ||
		slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return isSidecar(&c) && unprobed(c) })
}

// lastStarts is when the containers that run were last started, and when one of
// them was last started again. Init containers that still run while the pod is
// Ready are sidecars. The end of a node does not count as the end of a
// container.
func lastStarts(pod *corev1.Pod) (started, restarted time.Time) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			if s.State.Running == nil {
				continue
			}
			started = times.Latest(started, s.State.Running.StartedAt.Time)
			if s.RestartCount > 0 && !endedWithNode(s.LastTerminationState.Terminated) {
				restarted = times.Latest(restarted, s.State.Running.StartedAt.Time)
			}
		}
	}
	return started, restarted
}

// readContainers takes how often the containers of a pod were restarted, and how they
// ended by themselves.
func (p *Pod) readContainers(pod *corev1.Pod) {
	for i := range pod.Status.InitContainerStatuses {
		// One that has done its work is none of a pod that runs.
		if s := &pod.Status.InitContainerStatuses[i]; s.State.Terminated == nil {
			p.readEnds(s, restartRules(pod.Spec.InitContainers, s.Name))
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		p.readEnds(s, restartRules(pod.Spec.Containers, s.Name))
	}
}

// readEnds takes how often one container was restarted, and how it ended by itself.
func (p *Pod) readEnds(s *corev1.ContainerStatus, rules []corev1.ContainerRestartRule) {
	last := s.LastTerminationState.Terminated
	switch {
	case len(rules) == 0:
		p.Restarts += s.RestartCount
	case s.RestartCount > 0 && !allowsEnd(rules, last):
		p.Restarts++
	}
	for _, t := range []*corev1.ContainerStateTerminated{last, s.State.Terminated} {
		if t == nil {
			continue
		}
		if endedWithNode(t) {
			p.NodeRestarted = true
			continue
		}
		if !allowsEnd(rules, t) {
			p.EndedAt = times.Latest(p.EndedAt, t.FinishedAt.Time)
		}
		if t.Reason == reasonOutOfMemory && (p.OutOfMemory == nil || t.FinishedAt.After(p.OutOfMemory.Finished)) {
			p.OutOfMemory = endedOf(s, t)
		}
	}
	if w := s.State.Waiting; w != nil && w.Reason == reasonCrashLoop && p.CrashLoop == nil && !endedWithNode(last) && !allowsEnd(rules, last) {
		p.CrashLoop = endedOf(s, last)
	}
}

func restartRules(containers []corev1.Container, name string) []corev1.ContainerRestartRule {
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return containers[i].RestartPolicyRules
}

// How the containers of a pod ended.

const reasonOutOfMemory = "OOMKilled"

// allowsEnd reports whether the restart rules of a container allow its end: each action
// that there is starts it again.
func allowsEnd(rules []corev1.ContainerRestartRule, t *corev1.ContainerStateTerminated) bool {
	return t != nil && slices.ContainsFunc(rules, func(r corev1.ContainerRestartRule) bool {
		if r.ExitCodes == nil {
			return false
		}
		in := r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn
		return slices.Contains(r.ExitCodes.Values, t.ExitCode) == in
	})
}

func endedOf(s *corev1.ContainerStatus, t *corev1.ContainerStateTerminated) *Ended {
	e := &Ended{Container: s.Name, Message: wording.Brief(exit(t)), Restarts: s.RestartCount}
	if t != nil {
		e.Finished = t.FinishedAt.Time
	}
	return e
}
