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

package defense

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// restartSettle is how long a container that was restarted has to have been up
// before its pod counts as well: a crash loop is Ready for a moment at each
// start.
const restartSettle = time.Minute

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

// live says whether the pod counts among the pods its workload runs.
func (p *Pod) live() bool { return !p.Terminating && !p.Ended }

// Excused says that what is wrong with a pod is nobody's failure: it goes, or its node does.
func (p *Pod) Excused() bool { return !p.live() || p.Disrupted || p.Lost }

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
	if !p.Ready || !p.live() {
		return false, 0
	}
	if left := p.finishedAt(f, now).Sub(now); left > 0 {
		return false, left
	}
	return true, 0
}

// finishedAt is when a pod that is Ready, and stays so, is finished.
func (p *Pod) finishedAt(f Finish, now time.Time) time.Time {
	at := p.Bounded(p.ReadySince, now).Add(f.MinReady)
	if p.Unprobed && f.Settle > 0 {
		started := p.StartedAt
		if started.IsZero() {
			started = p.ReadySince
		}
		at = latest(at, p.Bounded(started, now).Add(f.Settle))
	}
	if !p.RestartedAt.IsZero() {
		at = latest(at, p.Bounded(p.RestartedAt, now).Add(restartSettle))
	}
	return at
}

// steady says that a pod is Ready and was not restarted just now.
func (p *Pod) steady(now time.Time) bool {
	return p.Ready && p.live() && (p.RestartedAt.IsZero() || now.Sub(p.Bounded(p.RestartedAt, now)) >= restartSettle)
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
