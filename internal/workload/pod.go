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
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// RestartSettle is how long a restarted container has to be up before its pod counts as healthy: in
// a crash loop, a pod is Ready for a moment after each start.
const RestartSettle = time.Minute

// ClockTolerance is the largest difference between the clocks of a cluster that is ignored.
const ClockTolerance = 5 * time.Second

// believable returns a time that a kubelet reported of a pod, if it is between the creation of the
// pod and now; otherwise the creation time, which is the API server's.
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

// Ended is the end of a container.
type Ended struct {
	Container, Message string
	// Finished is when it ended, by the clock of its kubelet.
	Finished time.Time
	// Restarts is how often the container was restarted.
	Restarts int32
}

// Pod is the state of a pod, as it was read.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	HostName, IP    string
	// Node is the node of the pod; empty while it has none.
	Node       string
	Ready      bool
	ReadySince time.Time
	// MayChange: it is Ready since before the release, and its controller may be about to give it new content in place.
	MayChange bool
	// Created is when the API server created it: times of its kubelet before that, or later than now,
	// do not count.
	Created time.Time
	// Unprobed: a container has no readiness probe, so Ready means only that its process was started.
	// StartedAt is when its containers were last started; zero if that is not known to be later than
	// ReadySince.
	Unprobed  bool
	StartedAt time.Time
	// RestartedAt is when a running container was last restarted after its own failure; zero for
	// never.
	RestartedAt time.Time
	Terminating bool
	// Deleted is when its deletion is due; zero unless it is terminating.
	Deleted time.Time
	// Ended: the pod never runs again (it was evicted, for example), and its owner replaces it.
	Ended  bool
	Labels map[string]string
	// Index is the place of the pod, from 0, in a workload with numbered pods; 0 in other workloads.
	Index int32
	// Stuck is why the pod is not Ready; nil if it is Ready, terminating or ended.
	Stuck *Stuck
	// UnreadySince is since when it is not Ready; zero while it is Ready.
	UnreadySince time.Time
	// Restarts is how often its containers were restarted; of init containers only sidecars count. A
	// container with restart rules counts at most once, if its last end is a failure by these rules:
	// earlier ends are not known. EndedAt is when a container last ended by itself against the rules.
	Restarts int32
	EndedAt  time.Time
	// NodeRestarted: the last end of a container was the end of its node.
	NodeRestarted bool
	// CrashLoop is the container that its kubelet delays because of a crash loop against the rules;
	// nil for none. OutOfMemory is the container that was last killed for its memory.
	CrashLoop, OutOfMemory *Ended
	// Disrupted: the pod was evicted, or is about to be. Lost: its node is unreachable.
	Disrupted, Lost bool
}

// Live reports whether the pod counts as a running pod of its workload.
func (p *Pod) Live() bool { return !p.Terminating && !p.Ended }

// Seat returns the node of the pod. A pod that has none yet shares it with no other.
func (p *Pod) Seat() string { return cmp.Or(p.Node, "of "+p.Name) }

// Excused reports whether a failure of the pod does not count: it is going away, or its node is.
func (p *Pod) Excused() bool { return !p.Live() || p.Disrupted || p.Lost }

// Finish is how long a pod has to be healthy before its release is finished.
type Finish struct {
	// MinReady is how long it has to be Ready.
	MinReady time.Duration
	// Settle is how long its containers have to be up if one has no readiness probe.
	Settle time.Duration
}

// Finished reports whether the release of a pod is finished: the pod is not terminating and has
// been healthy for long enough. If only time is missing, it also returns how much.
func (p *Pod) Finished(f Finish, now time.Time) (finished bool, wait time.Duration) {
	if !p.Ready || !p.Live() || p.MayChange {
		return false, 0
	}
	if left := p.FinishedAt(f, now).Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}

// FinishedAt returns when a pod that is Ready, and stays so, is finished.
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

// Steady reports whether a pod is Ready and was not restarted recently.
func (p *Pod) Steady(now time.Time) bool {
	return p.Ready && p.Live() && (p.RestartedAt.IsZero() || now.Sub(p.Bounded(p.RestartedAt, now)) >= RestartSettle)
}

// Bounded returns a time that the kubelet of the pod reported, if it is believable.
func (p *Pod) Bounded(t, now time.Time) time.Time { return believable(t, p.Created, now) }

// Info returns the pod as the API reports it.
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

// ReadPod reads the state of a pod.
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
	if pod.DeletionTimestamp != nil {
		p.Deleted = pod.DeletionTimestamp.Time
	}
	p.StartedAt, p.RestartedAt = lastStarts(pod)
	if pod.Spec.Hostname != "" {
		p.HostName = pod.Spec.Hostname
	}
	if c := podCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		p.Ready, p.ReadySince = true, c.LastTransitionTime.Time
	} else if c != nil {
		p.UnreadySince = c.LastTransitionTime.Time
		// Only the node controller reports this, for a pod on an unreachable node.
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

// hasUnprobed reports whether a container has no readiness probe. Sidecars count; other init
// containers end before the pod is Ready.
func hasUnprobed(pod *corev1.Pod) bool {
	unprobed := func(c corev1.Container) bool { return c.ReadinessProbe == nil }
	return slices.ContainsFunc(pod.Spec.Containers, unprobed) ||
		slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return isSidecar(&c) && unprobed(c) })
}

// lastStarts returns when running containers were last started, and last restarted after their own
// failure. Init containers that run while the pod is Ready are sidecars. The end of a node does not
// count as the end of a container.
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

// readContainers records the restarts and ends of all containers of a pod.
func (p *Pod) readContainers(pod *corev1.Pod) {
	for i := range pod.Status.InitContainerStatuses {
		// A completed init container is not part of a running pod.
		if s := &pod.Status.InitContainerStatuses[i]; s.State.Terminated == nil {
			p.readEnds(s, restartRules(pod.Spec.InitContainers, s.Name))
		}
	}
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		p.readEnds(s, restartRules(pod.Spec.Containers, s.Name))
	}
}

// readEnds records the restarts and ends of one container.
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

const reasonOutOfMemory = "OOMKilled"

// allowsEnd reports whether the restart rules of a container allow its end: all actions that exist
// restart it.
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
