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

package world

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Times of the parts of a cluster.
const (
	// seenAfter is how long a kubelet takes to read a pod.
	seenAfter = time.Second
	// pullFails is how long a failing pull takes, shown how long its failure is reported before its
	// back-off.
	pullFails = 15 * time.Second
	shown     = time.Second
	// firstBackOff is doubled each time, up to maxBackOff, and forgotten after a container has run
	// for backOffForgotten.
	firstBackOff     = 10 * time.Second
	maxBackOff       = 5 * time.Minute
	backOffForgotten = 10 * time.Minute
	// notReadyAfter is how long a node is unreachable before its pods are not ready, evictedAfter
	// before they are removed.
	notReadyAfter = 40 * time.Second
	evictedAfter  = notReadyAfter + 5*time.Minute
)

const (
	waiting doing = iota
	pulling
	failed
	backingOff
	running
	crashed
	crashLooping
	done
)

func newKubelets(o Options) *kubelets {
	k := &kubelets{images: o.Images, room: o.NodeRoom, lives: map[types.UID]*life{}, made: map[string]int{}}
	for range o.Nodes {
		k.add()
	}
	return k
}

func (k *kubelets) add() {
	k.nodes = append(k.nodes, &node{name: fmt.Sprintf("node-%d", len(k.nodes)+1), has: map[string]bool{}})
}

// run does everything due for a pod, and writes its status.
func (k *kubelets) run(c *cluster, pod *corev1.Pod) {
	now := time.Now()
	l, ok := k.lives[pod.UID]
	if !ok {
		l = k.begin(pod)
		k.lives[pod.UID] = l
	}
	if l.node == nil {
		k.schedule(l, now)
	}
	if n := l.node; n != nil && !n.down.IsZero() {
		gone := n.down.Add(evictedAfter)
		if !now.Before(gone) {
			must(c.api.client.Delete(c.ctx(), pod.DeepCopy()))
			return
		}
		l.lost = !now.Before(n.down.Add(notReadyAfter))
		c.at(gone)
		if !l.lost {
			c.at(n.down.Add(notReadyAfter))
		}
	} else if n != nil {
		k.live(c, l, now)
	}
	next := pod.DeepCopy()
	if l.node != nil && pod.Spec.NodeName == "" {
		next.Spec.NodeName = l.node.name
		must(c.api.client.Update(c.ctx(), next))
	}
	next.Status = l.status(&pod.Status, now)
	if !equality.Semantic.DeepEqual(pod.Status, next.Status) {
		must(c.api.client.Status().Update(c.ctx(), next))
	}
}

func (k *kubelets) begin(pod *corev1.Pod) *life {
	l := &life{}
	of := func(c *corev1.Container, init bool) *container {
		return &container{name: c.Name, image: c.Image, is: k.images[c.Image], init: init}
	}
	l.main = of(&pod.Spec.Containers[0], false)
	if len(pod.Spec.InitContainers) > 0 {
		l.init = of(&pod.Spec.InitContainers[0], true)
	}
	k.made[l.main.image]++
	if k.made[l.main.image] == 1 {
		l.main.is.Ready = max(l.main.is.Ready, l.main.is.Straggler)
	}
	return l
}

// schedule puts a pod on the reachable node with the fewest pods.
func (k *kubelets) schedule(l *life, now time.Time) {
	pods := map[*node]int{}
	for _, other := range k.lives {
		pods[other.node]++
	}
	fits := slices.DeleteFunc(slices.Clone(k.nodes), func(n *node) bool {
		return !n.down.IsZero() && !now.Before(n.down.Add(notReadyAfter)) || k.room > 0 && pods[n] >= k.room
	})
	if len(fits) > 0 {
		l.node, l.scheduled = slices.MinFunc(fits, func(a, b *node) int { return cmp.Compare(pods[a], pods[b]) }), now
	}
}

// live does everything due for a pod on a running node.
func (k *kubelets) live(c *cluster, l *life, now time.Time) {
	l.lost = false
	if l.seen.IsZero() {
		if see := l.scheduled.Add(seenAfter); now.Before(see) {
			c.at(see)
			return
		}
		l.seen = now
	}
	for _, one := range []*container{l.init, l.main} {
		if one == nil {
			continue
		}
		for k.advance(l.node, one, now) {
		}
		if at := one.due(); !at.IsZero() {
			c.at(at)
		}
		if one.doing != done {
			return
		}
	}
}

// advance does the next step of a container; it returns false if none is due.
func (k *kubelets) advance(n *node, c *container, now time.Time) bool {
	if at := c.due(); at.IsZero() && c.doing != waiting || now.Before(at) {
		return false
	}
	switch c.doing {
	case waiting, backingOff:
		if c.is.Pull == 0 && !c.is.Missing || n.has[c.image] {
			c.start(now)
			break
		}
		c.doing, c.next = pulling, now.Add(c.is.Pull)
		if k.registryGone || n.cutOff || c.is.Missing {
			c.next = now.Add(pullFails)
		}
	case pulling:
		if !k.registryGone && !n.cutOff && !c.is.Missing {
			n.has[c.image] = true
			c.start(now)
			break
		}
		c.tries++
		c.doing, c.next, c.until = failed, now.Add(shown), now.Add(backOff(c.tries))
	case failed:
		c.doing, c.next = backingOff, c.until
	case running:
		return c.stop(now)
	case crashed, crashLooping:
		if again := c.ended.Add(backOff(c.backOffs)); now.Before(again) {
			c.doing, c.next = crashLooping, again
			break
		}
		c.restarts++
		c.backOffs++
		c.start(now)
	case done:
		return false
	}
	return true
}

// backOff returns how long a kubelet waits after a number of tries.
func backOff(tries int) time.Duration {
	if tries == 0 {
		return 0
	}
	wait := firstBackOff
	for range tries - 1 {
		wait = min(2*wait, maxBackOff)
	}
	return wait
}

// due returns when a container takes its next step; zero for never.
func (c *container) due() time.Time {
	switch {
	case c.doing == done:
		return time.Time{}
	case c.doing != running:
		return c.next
	}
	ready := c.started.Add(c.is.Ready)
	switch {
	case time.Now().Before(ready) && (c.is.Ends == 0 || c.is.Ready < c.is.Ends):
		return ready
	case c.is.Ends > 0:
		return c.started.Add(c.is.Ends)
	default:
		return time.Time{}
	}
}

func (c *container) start(now time.Time) { c.doing, c.started = running, now }

// stop ends a run whose time is over; it returns false if it is not.
func (c *container) stop(now time.Time) bool {
	if c.is.Ends == 0 || now.Before(c.started.Add(c.is.Ends)) {
		return false
	}
	c.ended = now
	if c.init {
		c.doing = done
		return true
	}
	if c.ended.Sub(c.started) >= backOffForgotten {
		c.backOffs = 0
	}
	c.doing, c.next = crashed, now.Add(shown)
	c.last = &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", StartedAt: stamp(c.started), FinishedAt: stamp(now)}
	return true
}

// reboot restarts a container whose node was stopped.
func (c *container) reboot(now time.Time) {
	switch c.doing {
	case running:
		c.last = &corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Unknown", StartedAt: stamp(c.started), FinishedAt: stamp(now)}
		c.restarts++
		c.start(now)
	case pulling:
		c.doing = waiting
	default:
	}
}

func (c *container) ready(now time.Time) bool {
	return c.doing == done || c.doing == running && !now.Before(c.started.Add(c.is.Ready))
}

// status returns the status of a container, as a kubelet reports it.
func (c *container) status(now time.Time, initialized bool) corev1.ContainerStatus {
	s := corev1.ContainerStatus{Name: c.name, Image: c.image, RestartCount: c.restarts, Ready: c.ready(now)}
	wait := func(reason, message string) {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: message}
	}
	switch c.doing {
	case running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: stamp(c.started)}
	case done:
		s.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: stamp(c.started), FinishedAt: stamp(c.ended)}
	case crashed:
		s.State.Terminated = c.last
	case crashLooping:
		wait("CrashLoopBackOff", fmt.Sprintf("back-off %s restarting failed container=%s", backOff(c.backOffs), c.name))
	case failed:
		wait("ErrImagePull", fmt.Sprintf("failed to pull image %q: no such host", c.image))
	case waiting, pulling, backingOff:
		switch {
		case c.tries > 0:
			wait("ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q", c.image))
		case initialized:
			wait("ContainerCreating", "")
		default:
			wait("PodInitializing", "")
		}
	}
	if c.doing != crashed {
		s.LastTerminationState.Terminated = c.last
	}
	started := c.doing == running
	s.Started = &started
	return s
}

// status returns the status of a pod, as the scheduler and the kubelet report it.
func (l *life) status(before *corev1.PodStatus, now time.Time) corev1.PodStatus {
	s := corev1.PodStatus{Phase: corev1.PodPending}
	is := func(kind corev1.PodConditionType, holds bool, unless, message string) {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue}
		if !holds {
			c.Status, c.Reason, c.Message = corev1.ConditionFalse, unless, message
		}
		s.Conditions = append(s.Conditions, c)
	}
	switch {
	case l.lost: // the node controller changes the last status of the kubelet
		s = *before.DeepCopy()
		s.Conditions = slices.DeleteFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		is(corev1.PodReady, false, "NodeNotReady", "")
	case l.node == nil:
		is(corev1.PodScheduled, false, corev1.PodReasonUnschedulable, "no node has room: too many pods")
	case l.seen.IsZero():
		is(corev1.PodScheduled, true, "", "")
	default:
		s.StartTime = new(stamp(l.seen))
		if l.init != nil {
			s.InitContainerStatuses = []corev1.ContainerStatus{l.init.status(now, true)}
		}
		s.ContainerStatuses = []corev1.ContainerStatus{l.main.status(now, l.init == nil)}
		if !l.main.started.IsZero() {
			s.Phase, s.PodIP = corev1.PodRunning, "10.0.0.1"
		}
		is(corev1.PodScheduled, true, "", "")
		is(corev1.PodInitialized, l.init == nil || l.init.doing == done, "ContainersNotInitialized", "")
		is(corev1.PodReady, l.main.ready(now), "ContainersNotReady", "")
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		c.LastTransitionTime = stamp(now)
		for _, old := range before.Conditions {
			if old.Type == c.Type && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	return s
}

// forget drops the state of removed pods.
func (k *kubelets) forget(pods []*corev1.Pod) {
	there := map[types.UID]bool{}
	for _, pod := range pods {
		there[pod.UID] = true
	}
	for uid := range k.lives {
		if !there[uid] {
			delete(k.lives, uid)
		}
	}
}

// change changes the nodes; the cluster acts on it at once.
func (w *World) change(what string, change func(k *kubelets)) {
	w.note("cluster: %s", what)
	change(w.cluster.kubelets)
	w.cluster.at(time.Now())
}

// SetRegistry sets whether images can be pulled.
func (w *World) SetRegistry(there bool) {
	w.change(fmt.Sprintf("the registry is there: %t", there), func(k *kubelets) { k.registryGone = !there })
}

// SetImage changes an image for the pods that are created from now on.
func (w *World) SetImage(name string, is Image) {
	w.change("image "+name+" changes", func(k *kubelets) {
		k.images = maps.Clone(k.images)
		k.images[name] = is
	})
}

// AddNode adds a node.
func (w *World) AddNode() { w.change("a node comes", (*kubelets).add) }

// CutOff sets whether a node is cut off from the registry.
func (w *World) CutOff(number int, cutOff bool) {
	w.change(fmt.Sprintf("node %d is cut off: %t", number, cutOff), func(k *kubelets) { k.nodes[number-1].cutOff = cutOff })
}

// KillNode stops a node like a power failure.
func (w *World) KillNode(number int) {
	w.change(fmt.Sprintf("node %d dies", number), func(k *kubelets) { k.nodes[number-1].down = time.Now() })
}

// BootNode starts a node that was stopped.
func (w *World) BootNode(number int) {
	w.change(fmt.Sprintf("node %d comes back", number), func(k *kubelets) {
		n := k.nodes[number-1]
		n.down = time.Time{}
		for _, l := range k.lives {
			for _, c := range []*container{l.init, l.main} {
				if l.node == n && c != nil {
					c.reboot(time.Now())
				}
			}
		}
	})
}

// SetQuota bounds the number of pods, or removes the bound.
func (w *World) SetQuota(bounded bool, pods int) {
	w.note("cluster: quota %t of %d pods", bounded, pods)
	w.cluster.bounded, w.cluster.quota = bounded, pods
	w.cluster.at(time.Now())
}
