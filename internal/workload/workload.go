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
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
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

// Describe says how many pods are refused, and why.
func (n *NotMade) Describe(w *Workload) string {
	return fmt.Sprintf("%d of %d pods cannot be created: %s", n.Count, w.Replicas, wording.Brief(n.Message))
}

// Stuck is what keeps a pod that is refused from being Ready.
func (n *NotMade) Stuck() *Stuck {
	return &Stuck{Reason: reasonNotMade, Message: wording.Brief(n.Message), Slow: true}
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
	w.MinReady, w.ProgressDeadline = users.MinReady(), 0
	// The largest value means none.
	if users.ProgressDeadlineSeconds < math.MaxInt32 {
		w.ProgressDeadline = time.Duration(users.ProgressDeadlineSeconds) * time.Second
	}
}

// SinceAvailable is since when the workload has been available without a break, by
// what it says or by these pods of its current revision; zero while it is not.
func (w *Workload) SinceAvailable(pods []Pod, now time.Time) time.Time {
	if !w.ByPods {
		return w.AvailableSince
	}
	var since []time.Time
	lost := int32(0)
	for i := range pods {
		p := &pods[i]
		switch {
		case p.Live() && p.Lost:
			lost++
		case p.Live() && p.Ready:
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

// Alike is how many pods have the current template already and are of another revision
// all the same, which its controller did not find again. Nothing is known of that while
// the current one is not.
func (w *Workload) Alike() (pods int32) {
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

// HaltedBy says that the operator paused the workload because that version
// failed.
func (w *Workload) HaltedBy(version string) bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == version && version != ""
}

// PausedByUser says that a pause is not the operator's.
func (w *Workload) PausedByUser() bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == ""
}

// WaitsForUser says that no pod of the workload is replaced before a user does
// something.
func (w *Workload) WaitsForUser() bool {
	return w.Paused || w.OnDelete || w.Rollout.Partitioned
}

// Blocked says that the workload has a block, whoever set it.
func (w *Workload) Blocked() bool {
	_, ok := w.Labels[v1alpha1.SuspendLabel]
	return ok
}

// MaxReleasesUnseen is how many releases of a workload may go unrecorded: those
// while the operator was down. A number that is further ahead of the records was
// not counted, but set by somebody while the workload was out of the defense.
const MaxReleasesUnseen = 1_000_000

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
func (w *Workload) ObservingOwner() string { return ObservingOwner(w.Owner, w.Labels) }

// ObservingOwner returns the owner because of which a workload is in observe mode; empty for none.
func ObservingOwner(owner string, labels map[string]string) string {
	if labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseEnforced {
		return ""
	}
	return owner
}

// OptedOut says whether a workload with these labels is out of the defense.
func OptedOut(labels map[string]string) bool {
	return labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseDisabled
}

// DescribeStop says that the rollout is paused or halted, and by which command it is resumed, where that is not
// `kubectl rollout resume`.
func (w *Workload) DescribeStop(command string) string {
	stop := fmt.Sprintf("the %s is %s%s", w.Kind(), w.Words.Halted(), w.Words.Means())
	if w.Words.HaltedBy == "" || command == "" {
		return stop
	}
	return stop + "; resume it with " + wording.Kubectl(command, w.Namespace)
}

// Lacking are pods of a workload that are asked for and not there. They may be made in
// the next moment, or be refused.
type Lacking struct {
	Count int32
	// Since is when the newest pod of the workload was made, or its revision: nothing was
	// refused for good before.
	Since time.Time
	// Seen is since when this process sees that pods are lacking; zero where it does not
	// say. What was refused before may have been mended meanwhile.
	Seen time.Time
}

// FinishOf is how long the pods of a workload have to have been well.
func FinishOf(w *Workload, s settings.Settings) Finish {
	return Finish{MinReady: w.MinReady, Settle: s.Settle}
}

// Refusal is what the controller of a workload says of a pod that it cannot make, at first
// and at last.
type Refusal struct {
	First, Last time.Time
	Message     string
}

// lackingSettle is how long pods are not there before somebody is asked why: a pod that is
// replaced is not there for a moment.
const lackingSettle = 10 * time.Second

// AskAfter is how long until it is worth while to ask why they are not there; 0 when it
// is.
func (l *Lacking) AskAfter(now time.Time) time.Duration {
	return max(l.Since.Add(lackingSettle).Sub(now), 0)
}

// longestBackOff is for how long the controllers of Kubernetes do not try again at most.
const longestBackOff = 17 * time.Minute

// RefusedBy is what these refusals say of pods that are not there. One that is older
// than the newest pod is over: a pod was made since. So is one that was not said again
// for so long that it would have been. nil when none counts.
func (l *Lacking) RefusedBy(refusals []Refusal, now time.Time) *NotMade {
	var last *Refusal
	var since time.Time
	for i := range refusals {
		r := &refusals[i]
		if r.Last.Before(l.Since) || now.Sub(r.Last) > longestBackOff {
			continue
		}
		if since.IsZero() || r.First.Before(since) {
			since = r.First
		}
		if last == nil || r.Last.After(last.Last) {
			last = r
		}
	}
	if last == nil {
		return nil
	}
	return &NotMade{Count: l.Count, Since: times.Latest(times.Latest(since, l.Since), l.Seen), Message: last.Message}
}

// Revision is a successful version of a workload whose template is remembered.
type Revision struct {
	Name    string
	UID     types.UID
	Version string
	// Release is the number of the release that last succeeded with it.
	Release int64
	// Unproven: it succeeded, and has not run well for long enough since.
	Unproven bool
}

// Places are all pods of a workload, of whatever revision.
type Places struct {
	// Ordered says that a pod is made or replaced only while those before it are
	// available.
	Ordered bool
	Pods    []Place
	// Kept is the version of which the controller makes the pods that it does not update
	// yet; empty where that is not known.
	Kept string
}

// Place is a pod of a workload that gives each of its pods a place.
type Place struct {
	Pod
	ResourceVersion string
	// Version of its template; empty where that is not known. Current says that it is of
	// the workload's current revision.
	Version string
	Current bool
}
