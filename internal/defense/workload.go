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
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// Workload is what was observed of a workload, whatever its kind.
type Workload struct {
	// GVK is the kind of the workload.
	GVK             schema.GroupVersionKind
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Labels          map[string]string
	Annotations     map[string]string
	Deleting        bool
	// Owner is the controller of the workload, as kind and name; empty where it has none.
	Owner string

	// Images are the container images of the pod template.
	Images []string
	// Version is computed from the pod template as it is now. What the version
	// label says may differ: that is a release that slipped past admission.
	Version string
	// Stamp is the version label of the pod template: the version that admission saw
	// when it was released. Empty where it is not stamped. Unstamped says that no
	// template of this kind is.
	Stamp     string
	Unstamped bool
	// Replicas is the number of pods the workload asks for.
	Replicas int32
	// MinReady is how long a pod has to be Ready to be available, as the user wants it.
	MinReady time.Duration
	// Stopping says what keeps its pods from being replaced, and Words how people speak
	// of that.
	Stopping
	Words Words
	// Rolling says that old pods run until new ones do, and ProgressDeadline how
	// long the rollout may stand still; 0 is for ever.
	Rolling          bool
	ProgressDeadline time.Duration
	// Pace is what the workload has of what a hold changes, MinReady and
	// ProgressDeadline, or Partition, what the user wants of it. Hold is nil while it is not held, and
	// of a kind that cannot be Pace is zero.
	Pace Pace
	Hold *Hold
	// FirstOrdinal is the number in the name of its first pod, where they are numbered.
	FirstOrdinal int32
	// InFlight is how many pods the strategy lets be replaced at a time.
	InFlight int32
	// AvailableSince is since when the workload has been available without a break;
	// zero while it is not. Workloads of some kinds do not say that: ByPods says that
	// their pods tell, of which MayLack may be unavailable.
	AvailableSince time.Time
	ByPods         bool
	MayLack        int32
	// PerNode: there is a pod for each node, whether that is well or not.
	PerNode bool
	// Stateful: a version that ran may have changed data that an earlier one cannot read.
	Stateful bool
	// NotMade are pods of the current revision that are asked for and refused; nil
	// when none is.
	NotMade *NotMade
	// Lacking are pods that are asked for and not there, of kinds whose workloads do not
	// say why; nil when none is.
	Lacking *Lacking
	// HandBack says that fields of the pod template are the operator's since a
	// rollback, and somebody applies the workload server-side; or that those are which it
	// halted the workload by, which is not halted any more.
	HandBack bool
	// Rollout is how far the rollout of the pod template has come.
	Rollout Rollout
	// RevisionCreated is when the current revision (a Deployment's ReplicaSet)
	// was created; zero while there is none.
	RevisionCreated time.Time
	// Revision identifies it among those of the workload, as its kind does; empty
	// while there is none, or while it is not known.
	Revision string
	// RevisionNumber is its number, as OldRevision has one; not positive while that is
	// not known.
	RevisionNumber int64
	// RevisionReplicas are the pods that are asked of it by now.
	RevisionReplicas int32
	// OldRevisions are the others that pods are asked of.
	OldRevisions []OldRevision
}

// Stopping says what in a workload keeps its pods from being replaced.
type Stopping struct {
	// Paused says that the workload does not roll out changes: it has what the operator
	// halts it by, which a user may have set.
	Paused bool
	// OnDelete says that a user wants pods to be replaced only when they are deleted.
	// Partition is how many of its pods, the first ones, a user wants to stay at the
	// template before: not what a hold made of that.
	OnDelete  bool
	Partition int32
	// Unknown says that the operator does not know its update strategy: no field of that
	// is written, as the API server might refuse the workload with it.
	Unknown bool
	// Bare says that its strategy has no place yet for a partition, which is 0.
	Bare bool
}

// OldRevision is an earlier pod template of a workload that still has pods.
type OldRevision struct {
	Name    string
	UID     types.UID
	Version string
	// Revision is the Workload.Revision of a workload that is at it.
	Revision string
	// Number is larger for a revision that was in use later.
	Number int64
	// Created is when it was made first.
	Created time.Time
	// Replicas are asked of it, and Ready are. Its health is that: how many are
	// available depends on a minReadySeconds that may be raised meanwhile.
	Replicas, Ready int32
	// Lost are those of them that are not Ready because their nodes do not answer.
	Lost int32
	// Stamped: its template carries a version label, so that it was released under
	// defense. It is known only of what Kind.Revisions observes.
	Stamped bool
}

// NotMade are pods that are not made, because something refuses them: a quota, Pod
// Security, an admission webhook.
type NotMade struct {
	Count   int32
	Since   time.Time
	Message string
}

func (n *NotMade) stuck() *Stuck {
	return &Stuck{Reason: reasonNotMade, Message: Brief(n.Message), Slow: true}
}

// Rollout is how far the rollout of the current pod template has come.
type Rollout struct {
	// Complete: all pods are of the current template and available, no old
	// pod is left, and this was said of the current generation.
	Complete bool
	// Stale: the workload's controller has yet to see the current
	// generation, which each change of an annotation raises, so that nothing is
	// known of the rollout.
	Stale bool
	// Stuck: the rollout exceeded its progress deadline, as Message says.
	Stuck   bool
	Message string
	// Partitioned: all pods but those that a user's partition keeps are of the current
	// template and available.
	Partitioned bool
	// Progress is how far it has come, in words; empty for nothing to add.
	Progress string
}

// SetPace takes what a hold changes, with what the annotations say of a hold: of the
// user's values, which the operator goes by, and of those in force.
func (w *Workload) SetPace(pace Pace) {
	w.Pace, w.Hold = pace, pace.HoldOf(w.Annotations)
	users := pace.Users(w.Annotations)
	if pace.ByPartition {
		return // MinReady and ProgressDeadline are not changed, and Partition is the user's
	}
	w.MinReady, w.ProgressDeadline = users.minReady(), 0
	// The largest value means none.
	if users.ProgressDeadlineSeconds < math.MaxInt32 {
		w.ProgressDeadline = time.Duration(users.ProgressDeadlineSeconds) * time.Second
	}
}

// availableSince is since when the workload has been available without a break, by
// what it says or by these pods of its current revision; zero while it is not.
func (w *Workload) availableSince(pods []Pod, now time.Time) time.Time {
	if !w.ByPods {
		return w.AvailableSince
	}
	var since []time.Time
	lost := int32(0)
	for i := range pods {
		p := &pods[i]
		switch {
		case p.live() && p.Lost:
			lost++
		case p.live() && p.Ready:
			if at := p.Bounded(p.ReadySince, now).Add(w.MinReady); !at.After(now) {
				since = append(since, at)
			}
		}
	}
	needed := int(max(w.Replicas-max(w.MayLack, lost), min(w.Replicas, 1)))
	if needed == 0 || len(since) < needed {
		return time.Time{}
	}
	slices.SortFunc(since, time.Time.Compare)
	return since[needed-1]
}

// alike is how many pods have the current template already and are of another revision
// all the same, which its controller did not find again. Nothing is known of that while
// the current one is not.
func (w *Workload) alike() (pods int32) {
	if w.Revision == "" || w.Rollout.Stale {
		return 0
	}
	for i := range w.OldRevisions {
		if w.OldRevisions[i].Version == w.Version {
			pods += w.OldRevisions[i].Replicas
		}
	}
	return pods
}

// Kind is the kind of the workload in lower case, as in messages.
func (w *Workload) Kind() string { return strings.ToLower(w.GVK.Kind) }

// RecordedVersion is the version the workload's label names; empty for a
// baseline, a workload that has not released since it was enrolled.
func (w *Workload) RecordedVersion() string { return w.Labels[v1alpha1.VersionLabel] }

// Release is the number of the workload's current release, 0 when there is
// none.
func (w *Workload) Release() int64 {
	return ParseRelease(w.Annotations[v1alpha1.ReleaseAnnotation])
}

// ReleasedBy is the user of the workload's current release, as far as admission
// knows.
func (w *Workload) ReleasedBy() string {
	return cmp.Or(w.Annotations[v1alpha1.ReleasedByAnnotation], UnknownUser)
}

// BlockedBy is the value of SuspendedByAnnotation for a block because of the
// workload's current release, which has that record.
func (w *Workload) BlockedBy(record types.UID) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d %s", w.RecordedVersion(), w.Release(), record))
}

// haltedBy says that the operator paused the workload because that version
// failed.
func (w *Workload) haltedBy(version string) bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == version && version != ""
}

// pausedByUser says that a pause is not the operator's.
func (w *Workload) pausedByUser() bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == ""
}

// waitsForUser says that no pod of the workload is replaced before a user does
// something.
func (w *Workload) waitsForUser() bool {
	return w.Paused || w.OnDelete || w.Rollout.Partitioned
}

func (w *Workload) blocked() bool {
	_, ok := w.Labels[v1alpha1.SuspendLabel]
	return ok
}

// MaxRelease bounds the number of a release: every reader of JSON knows it exactly,
// and no workload comes near it by being released.
const MaxRelease int64 = 1<<53 - 1

// maxReleasesUnseen is how many releases of a workload may go unrecorded: those
// while the operator was down. A number that is further ahead of the records was
// not counted, but set by somebody while the workload was out of the defense.
const maxReleasesUnseen = 1_000_000

// ParseRelease reads the value of ReleaseAnnotation: 0 when it is no positive
// number, and MaxRelease when it is a larger one.
func ParseRelease(value string) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if errors.Is(err, strconv.ErrRange) && n > 0 {
		return MaxRelease
	}
	if err != nil || n < 0 {
		return 0
	}
	return min(n, MaxRelease)
}

// NextRelease is the number of the release after this one; it stays at MaxRelease.
func NextRelease(n int64) int64 { return min(n, MaxRelease-1) + 1 }

// AppName is the application a workload belongs to.
func (w *Workload) AppName() string {
	for _, key := range []string{"app.kubernetes.io/name", "app"} {
		if v := w.Labels[key]; v != "" {
			return v
		}
	}
	return w.Name
}

// SystemNamespaces are those of the cluster itself, which are never under
// defense, even if they are labelled.
func SystemNamespaces() []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}
}

// NamespaceEnrolled says whether a namespace of this name, with these labels, is
// defended.
func NamespaceEnrolled(name string, labels map[string]string) bool {
	return labels[v1alpha1.EnrolledLabel] == v1alpha1.EnrolledValue && !slices.Contains(SystemNamespaces(), name)
}

// OwnerOf is the controller of a workload, as kind and name; empty where it has none.
func OwnerOf(o metav1.Object) string {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return ""
	}
	return strings.ToLower(ref.Kind) + " " + ref.Name
}

// ObservingOwner is the owner because of which a workload is in observe mode; empty where
// it is not: what the operator did to it, the owner would undo, or fight.
func (w *Workload) ObservingOwner() string { return observingOwner(w.Owner, w.Labels) }

func observingOwner(owner string, labels map[string]string) string {
	if labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseEnforced {
		return ""
	}
	return owner
}

// OptedOut says whether a workload with these labels is out of the defense.
func OptedOut(labels map[string]string) bool {
	return labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseDisabled
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

// Ended is how a container ended.
type Ended struct {
	Container, Message string
	// Finished is a time of its kubelet.
	Finished time.Time
	// Restarts of the container.
	Restarts int32
}

// live says whether the pod counts among the pods its workload runs.
func (p *Pod) live() bool { return !p.Terminating && !p.Ended }

// Excused says that what is wrong with a pod is nobody's failure: it goes, or its node does.
func (p *Pod) Excused() bool { return !p.live() || p.Disrupted || p.Lost }

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

// Finish is how long a pod has to have been well before its release is finished.
type Finish struct {
	// MinReady is how long it has to have been Ready.
	MinReady time.Duration
	// Settle is how long its containers have to have been up where one has no
	// readiness probe.
	Settle time.Duration
}

// FinishOf is how long the pods of a workload have to have been well.
func FinishOf(w *Workload, s settings.Settings) Finish {
	return Finish{MinReady: w.MinReady, Settle: s.Settle}
}

// restartSettle is how long a container that was restarted has to have been up
// before its pod counts as well: a crash loop is Ready for a moment at each
// start.
const restartSettle = time.Minute

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

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// hasUnprobed says that a container has no readiness probe. Sidecars count, other
// init containers have ended before the pod is Ready.
func hasUnprobed(pod *corev1.Pod) bool {
	unprobed := func(c corev1.Container) bool { return c.ReadinessProbe == nil }
	return slices.ContainsFunc(pod.Spec.Containers, unprobed) ||
		slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return isSidecar(&c) && unprobed(c) })
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
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
			started = latest(started, s.State.Running.StartedAt.Time)
			if s.RestartCount > 0 && !endedWithNode(s.LastTerminationState.Terminated) {
				restarted = latest(restarted, s.State.Running.StartedAt.Time)
			}
		}
	}
	return started, restarted
}

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

// VerdictFails says whether a verdict fails its pod: "pass", "none" (no rule
// was triggered) and the empty string do not, everything else does.
func VerdictFails(verdict string) bool {
	switch verdict {
	case VerdictPass, VerdictNone, "":
		return false
	default:
		return true
	}
}

// Verdicts, as the server words them.
const (
	// VerdictPass means rules were triggered and passed.
	VerdictPass = "pass"
	// VerdictNone means no rule was triggered, or nobody was asked.
	VerdictNone = "none"
	// VerdictFail means a check failed.
	VerdictFail = "fail"
	// VerdictInconclusive does not pass: the server could not decide, or did
	// not in time.
	VerdictInconclusive = "inconc"
)

// timeLayout is how times for people are written; the Unix time beside each is
// exact.
const timeLayout = "2006-01-02 15:04:05"

// FormatTime writes a time as the kinds show it to people.
func FormatTime(t time.Time) string { return t.Format(timeLayout) }
