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
	"maps"
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

// Workload is the state of a workload of any kind, as it was read.
type Workload struct {
	// GVK is the kind of the workload.
	GVK             schema.GroupVersionKind
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Labels          map[string]string
	Annotations     map[string]string
	Deleting        bool
	// Owner is the controller of the workload, as kind and name; empty for none.
	Owner string
	// Content is nil for a kind that no ChangeKind declares.
	Content *Content
	// Object is the object, as it was read: trimmed, if it is of the cache. Native kinds set it only if it
	// was read from the API server. Newest is the metadata of the newest ControllerRevision that it owns,
	// if an expression of its ChangeKind reads it.
	Object, Newest map[string]any
	// Rollbacks are the rollbacks of a declared kind, whose earlier contents only the history has; empty
	// for other kinds.
	Rollbacks v1alpha1.ChangeKindRollback
	// Problem is the first expression of a ChangeKind that cannot be evaluated for the workload; empty
	// for none. Such an expression counts as false.
	Problem string

	// Images are the container images of the pod template.
	Images []string
	// Version is computed from the current pod template. A different version label means that the
	// release bypassed admission.
	Version string
	// Stamp is the version label of the pod template, set by admission at the release; empty without
	// the label. Unstamped: templates of this kind never have it.
	Stamp     string
	Unstamped bool
	// Replicas is the desired number of pods.
	Replicas int32
	// WithoutPods: objects of this kind have no pods. Their releases have no batches, and end by their rollouts.
	WithoutPods bool
	// Settle is how long the rollout of an object without pods has to stay complete.
	Settle time.Duration
	// MinReady is the user's minReadySeconds: how long a pod has to be Ready to be available.
	MinReady time.Duration
	// Stopping is what keeps pods from being replaced, and Words are the words for it in messages.
	Stopping
	Words Words
	// Rolling: old pods run until new pods run. ProgressDeadline is how long the rollout may make no
	// progress; 0 for no limit.
	Rolling          bool
	ProgressDeadline time.Duration
	// Pace has the current values of the fields that a hold changes; MinReady, ProgressDeadline and
	// Partition are the user's values. Pace is zero for a kind that cannot be held, and Hold is nil
	// while the rollout is not held.
	Pace Pace
	Hold *Hold
	// FirstOrdinal is the ordinal of the first pod, if pods are numbered.
	FirstOrdinal int32
	// InFlight is how many pods the strategy replaces at a time.
	InFlight int32
	// AvailableSince is the time since which the workload has been available; zero while it is not
	// available. ByPods: workloads of this kind do not report it, so it is computed from their pods,
	// of which MayLack may be unavailable.
	AvailableSince time.Time
	ByPods         bool
	MayLack        int32
	// PerNode: the workload has a pod for each node, healthy or not. By its status, Scheduled of its nodes have a pod, and
	// Misscheduled other nodes.
	PerNode                 bool
	Scheduled, Misscheduled int32
	// Stateful: a version that ran may have changed data that an earlier version cannot read.
	Stateful bool
	// NotMade are pods of the current revision whose creation is refused; nil for none.
	NotMade *NotMade
	// Lacking are missing pods of kinds whose workloads do not report why; nil for none.
	Lacking *Lacking
	// HandBack: the operator has to give up fields. Either a rollback made it the manager of fields of
	// the pod template, and another manager applies the workload server-side; or it is still the
	// manager of the fields by which it halted the workload, and the workload is no longer halted.
	HandBack bool
	// Rollout is the progress of the rollout of the pod template.
	Rollout Rollout
	// RevisionCreated is when the current revision (a Deployment's ReplicaSet) was created; zero if it
	// does not exist yet.
	RevisionCreated time.Time
	// Written is when an object of a declared kind was written last, except its subresources: its content is not younger.
	// Zero for other kinds, or if it is not known.
	Written time.Time
	// Revision identifies the current revision among the revisions of the workload, as its kind does;
	// empty if it does not exist or is not known.
	Revision string
	// RevisionNumber is the OldRevision.Number of the current revision; not positive if it is not
	// known.
	RevisionNumber int64
	// RevisionReplicas is the number of pods that the current revision should have now.
	RevisionReplicas int32
	// OldRevisions are the other revisions that have pods.
	OldRevisions []OldRevision
}

// Stopping has the fields of a workload that keep its pods from being replaced.
type Stopping struct {
	// Paused: the workload does not roll out changes. It has the value by which the operator halts it;
	// a user may have set the same value.
	Paused bool
	// OnDelete: a user wants pods to be replaced only when they are deleted. Partition is how many
	// pods, the first ones, the user wants to keep at the previous template, without a hold.
	OnDelete  bool
	Partition int32
	// Unknown: the operator does not know the update strategy, and writes no field of it, as the API
	// server might refuse it.
	Unknown bool
	// Bare: the strategy has no object for a partition, which is 0.
	Bare bool
	// Stays is why the operator cannot undo its halt, and what to do; empty if it can.
	Stays string
}

// OldRevision is an earlier pod template of a workload.
type OldRevision struct {
	Name    string
	UID     types.UID
	Version string
	// Revision is the Workload.Revision of a workload at this revision.
	Revision string
	// Number is larger for a revision that was used later.
	Number int64
	// Created is when the revision was first created.
	Created time.Time
	// Replicas is the desired number of its pods, and Ready how many are Ready. Availability is no
	// measure of its health: it depends on minReadySeconds, which a release may raise.
	Replicas, Ready int32
	// Lost is how many of its pods are not Ready because their nodes are unreachable.
	Lost int32
	// Stamped: its template has a version label, so it was released while the workload was defended.
	// Only Kind.Revisions sets this.
	Stamped bool
}

// NotMade are pods whose creation is refused: by a quota, Pod Security or an admission webhook.
type NotMade struct {
	Count   int32
	Since   time.Time
	Message string
}

// Describe returns how many pods are refused, and why.
func (n *NotMade) Describe(w *Workload) string {
	return fmt.Sprintf("%d of %d pods cannot be created: %s", n.Count, w.Replicas, wording.Brief(n.Message))
}

// Stuck returns the cause that keeps a refused pod from being Ready.
func (n *NotMade) Stuck() *Stuck {
	return &Stuck{Reason: reasonNotMade, Message: wording.Brief(n.Message), Slow: true}
}

// Rollout is the progress of the rollout of the current pod template.
type Rollout struct {
	// Complete: the status, of the current generation, reports that all pods have the current template
	// and are available, and that no other pod exists.
	Complete bool
	// Stale: the rollout is not known, because the status is of an earlier generation (each change of
	// an annotation raises it) or of an unknown revision.
	Stale bool
	// Stuck: the rollout exceeded its progress deadline; Message is the reason.
	Stuck   bool
	Message string
	// Partitioned: all pods above the user's partition have the current template, and all pods are
	// available.
	Partitioned bool
	// Progress describes the rollout; empty if there is nothing to add.
	Progress string
}

// SetPace sets Pace and Hold, and the user's values of the fields that a hold changes.
func (w *Workload) SetPace(pace Pace) {
	w.Pace, w.Hold = pace, pace.HoldOf(w.Annotations)
	users := pace.Users(w.Annotations)
	if pace.InSteps() {
		return // MinReady and ProgressDeadline are not changed
	}
	w.MinReady, w.ProgressDeadline = users.MinReady(), 0
	// The largest value means no deadline.
	if users.ProgressDeadlineSeconds < math.MaxInt32 {
		w.ProgressDeadline = time.Duration(users.ProgressDeadlineSeconds) * time.Second
	}
}

// SinceAvailable returns the time since which the workload has been available, by its status or by
// these pods of its current revision; zero while it is not available.
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

// Alike returns how many pods have the current template although they are of another revision,
// which the controller did not find again; 0 while the current revision is not known.
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

// Kind returns the kind in lower case, as messages write it.
func (w *Workload) Kind() string { return strings.ToLower(w.GVK.Kind) }

// RecordedVersion returns the version in the workload's label; empty for a baseline, which has had
// no release since it was enrolled.
func (w *Workload) RecordedVersion() string { return w.Labels[v1alpha1.VersionLabel] }

// Release returns the number of the workload's current release; 0 for none.
func (w *Workload) Release() int64 {
	return ParseRelease(w.Annotations[v1alpha1.ReleaseAnnotation])
}

// ReleasedBy returns the user of the workload's current release, or UnknownUser.
func (w *Workload) ReleasedBy() string {
	return cmp.Or(w.Annotations[v1alpha1.ReleasedByAnnotation], UnknownUser)
}

// BlockedBy returns the value of SuspendedByAnnotation for a block because of the workload's
// current release, which has that record.
func (w *Workload) BlockedBy(record types.UID) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d %s", w.RecordedVersion(), w.Release(), record))
}

// HaltedBy reports whether the operator halted the workload because that version failed.
func (w *Workload) HaltedBy(version string) bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == version && version != ""
}

// PausedByUser reports whether a user paused the workload.
func (w *Workload) PausedByUser() bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == ""
}

// WaitsForUser reports whether no pod is replaced until a user acts.
func (w *Workload) WaitsForUser() bool {
	return w.Paused || w.OnDelete || w.Rollout.Partitioned
}

// Blocked reports whether the workload has a block, by the operator or a user.
func (w *Workload) Blocked() bool {
	_, ok := w.Labels[v1alpha1.SuspendLabel]
	return ok
}

// Marks are the changes of the operator to a workload that it takes back when the workload leaves the defense. Users can write
// labels and annotations, so only what the operator can take back counts.
type Marks struct{ Blocked, Halted, Held bool }

// MarksOf reads the marks of a workload.
func MarksOf(labels, annotations map[string]string) Marks {
	_, blocked := labels[v1alpha1.SuspendLabel]
	return Marks{
		Blocked: blocked && annotations[v1alpha1.SuspendedByAnnotation] != "",
		Halted:  annotations[v1alpha1.HaltedAnnotation] != "",
		Held:    ParseHold(annotations[v1alpha1.HeldAnnotation]) != nil,
	}
}

// Any reports whether there is a mark.
func (m Marks) Any() bool { return m != Marks{} }

// Marks returns the marks of the workload.
func (w *Workload) Marks() Marks { return MarksOf(w.Labels, w.Annotations) }

// MaxReleasesUnseen is how many releases of a workload may go unrecorded while the operator is
// down. A user set a number that is further ahead of the records, while the workload was not
// defended.
const MaxReleasesUnseen = 1_000_000

// AppName returns the application that a workload belongs to.
func (w *Workload) AppName() string {
	for _, key := range []string{"app.kubernetes.io/name", "app"} {
		if v := w.Labels[key]; v != "" {
			return v
		}
	}
	return w.Name
}

// SystemNamespaces returns the namespaces that are never defended, even with the label.
func SystemNamespaces() []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}
}

// NamespaceEnrolled reports whether a namespace with this name and these labels is defended.
func NamespaceEnrolled(name string, labels map[string]string) bool {
	return labels[v1alpha1.EnrolledLabel] == v1alpha1.EnrolledValue && !slices.Contains(SystemNamespaces(), name)
}

// OwnerOf returns the controller of a workload, as kind and name; empty for none.
func OwnerOf(o metav1.Object) string {
	ref := metav1.GetControllerOf(o)
	if ref == nil {
		return ""
	}
	return strings.ToLower(ref.Kind) + " " + ref.Name
}

// ObservingOwner returns the owner because of which the workload is in observe mode: it would undo
// the operator's changes. Empty for none.
func (w *Workload) ObservingOwner() string { return ObservingOwner(w.Owner, w.Labels) }

// ObservingOwner returns the owner because of which a workload is in observe mode; empty for none.
func ObservingOwner(owner string, labels map[string]string) string {
	if labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseEnforced {
		return ""
	}
	return owner
}

// WithOptOut returns the workload as one that opted out.
func (w *Workload) WithOptOut() *Workload {
	out := *w
	out.Labels = maps.Clone(w.Labels)
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	out.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
	return &out
}

// OptedOut reports whether a workload with these labels has opted out.
func OptedOut(labels map[string]string) bool {
	return labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseDisabled
}

// DescribeStop returns that the rollout is paused or halted, and the command that resumes it if
// that is not `kubectl rollout resume`.
func (w *Workload) DescribeStop(command string) string {
	stop := fmt.Sprintf("the %s is %s%s", w.Kind(), w.Words.Halted(), w.Words.Means())
	if w.Words.HaltedBy == "" || command == "" {
		return stop
	}
	return stop + "; resume it with " + wording.Kubectl(command, w.Namespace)
}

// Lacking are missing pods of a workload. They may be created in the next moment, or be refused.
type Lacking struct {
	Count int32
	// Since is when the newest pod of the workload, or its revision, was created: earlier refusals are
	// over.
	Since time.Time
	// Seen is the time since which this process has known that pods are missing; zero if it does not
	// record that. An earlier refusal may have been resolved meanwhile.
	Seen time.Time
}

// FinishOf returns how long the pods of a workload have to be healthy.
func FinishOf(w *Workload, s settings.Settings) Finish {
	return Finish{MinReady: w.MinReady, Settle: s.Settle}
}

// Refusal is a report of the controller of a workload that it cannot create a pod.
type Refusal struct {
	First, Last time.Time
	Message     string
}

// lackingSettle is how long pods are missing before the operator asks why: a pod that is being
// replaced is missing for a moment.
const lackingSettle = 10 * time.Second

// AskAfter returns how long to wait before asking why pods are missing.
func (l *Lacking) AskAfter(now time.Time) time.Duration {
	return max(l.Since.Add(lackingSettle).Sub(now), 0)
}

// longestBackOff is the longest time that the controllers of Kubernetes wait before they retry.
const longestBackOff = 17 * time.Minute

// RefusedBy returns the refusal of missing pods; nil if no refusal counts. A refusal before the
// creation of the newest pod is over, and so is a refusal that was not repeated within
// longestBackOff.
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
	// Release is the number of the version's last successful release.
	Release int64
	// Unproven: the version succeeded, and has not run well for long enough since.
	Unproven bool
	// ContentHash is the Content.Hash of the declaration by which the content was written; empty for a kind that is not
	// declared.
	ContentHash string
}

// Places are the pods of a workload, of all revisions.
type Places struct {
	// Ordered: a pod is created or replaced only while the pods before it are available.
	Ordered bool
	Pods    []Place
	// Kept is the version from which the controller recreates pods that it does not update yet; empty
	// if it is not known.
	Kept string
}

// Place is a pod of a workload with numbered pods.
type Place struct {
	Pod
	ResourceVersion string
	// Version is the version of its template; empty if it is not known. Current: it is of the
	// workload's current revision.
	Version string
	Current bool
}
