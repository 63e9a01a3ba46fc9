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
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ReleaseInput is the input of a decision about a release.
type ReleaseInput struct {
	Now time.Time
	// Settings are the settings in force for the workload.
	Settings settings.Settings
	// ObservedBy is the reason for which the workload is in observe mode; empty in enforce mode. Lowered are the
	// settings whose annotations on the workload lower its defense.
	ObservedBy string
	Lowered    []string
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
	// Workload is the workload of the release; nil when it is gone.
	Workload *workload.Workload
	// Enrolled reports whether the namespace is enrolled.
	Enrolled bool
	// Pods are the pods of the workload's current revision.
	Pods []workload.Pod
	// Batches are all ChangePods of Change, of all attempts. LiveBatches reports whether they were read from the API
	// server; a cache may be older than the cache of releases.
	Batches     []v1alpha1.ChangePod
	LiveBatches bool
	// Others are the other ChangeWorkloads of the workload.
	Others []v1alpha1.ChangeWorkload
	// History are the successful versions of the workload that are remembered.
	History []workload.Revision
	// Limit counts rollbacks for the rollback limit.
	Limit rollback.Limit
	// Causes are the causes that the events of pods name, by the UID of the pod; only requested pods have an entry.
	Causes map[types.UID]string
	// Unreachable are the unreachable nodes among the requested nodes; nil when none was requested.
	Unreachable map[string]bool
	// Sure are batches that were read from the API server together with their pods, and Gone are those of their pods
	// that do not exist.
	Sure, Gone map[types.UID]bool
	// Live reports whether the labels and annotations of the workload were read from the API server, not from a cache.
	Live bool
	// PutOffSince is when this process began to put off the status write; zero when it has not.
	PutOffSince time.Time
	// Begin are the checks of policies that begin at stages of the release as a whole.
	Begin []record.BeginCheck
	// Baseline are the pods of the previous version to keep; nil for none.
	Baseline *v1alpha1.ReleaseBaseline
	// FrozenBy is the freeze that denies releases now, as namespace/policy/freeze; empty for none. FrozenUntil is its end.
	// They are set only when the release begins.
	FrozenBy    string
	FrozenUntil time.Time
	// Places are all pods of a workload that is held by evictions; nil for another. LivePlaces: they, and the Pods, were
	// read from the API server, and Down are the nodes of new pods that were not Ready then. EvictAfter is when the next
	// eviction may be tried; zero for now.
	Places     []workload.Place
	LivePlaces bool
	Down       map[string]bool
	EvictAfter time.Time
	// HoldSteps are the times of a hold, and Since is when this process began to decide.
	HoldSteps hold.Times
	Since     time.Time
	// Cluster identifies the cluster to AlterShield Server; empty when no server is configured.
	Cluster types.UID
	// Tenant and Phase are the namespace's values for orders; empty where not set.
	Tenant, Phase string
}

// WorkloadAction is the write to the workload that a release needs.
type WorkloadAction int

const (
	// LeaveWorkload writes nothing.
	LeaveWorkload WorkloadAction = iota
	// BlockWorkload blocks the releases of the workload because of this version.
	BlockWorkload
	// LiftBlock removes the block.
	LiftBlock
	// ResumeWorkload only resumes the rollout, with ReleasePlan.Resume.
	ResumeWorkload
	// PaceWorkload only changes the pace of the rollout, with ReleasePlan.Hold, and pauses it, with ReleasePlan.Halt.
	PaceWorkload
)

// Batch is a batch to create.
type Batch struct {
	Number, Attempt int32
	Release         int64
	Pods            []v1alpha1.PodInfo
	// Total is the expected number of batches of the release.
	Total int32
	// Last reports whether every wanted pod of the workload is in a batch now.
	Last bool
}

// ReleasePlan is carried out in the order of its fields. Each step may be the last one before a crash; the next
// decision continues from there.
type ReleasePlan struct {
	// NeedsLive: the plan depends on the block label or the current release. Re-read the workload from the API server
	// and decide again.
	NeedsLive bool
	// NeedsBatches: the plan creates a batch while some batches of the status are unseen, so their pods could get into
	// a second batch; or it ends a failure or a block while the failed batch may be unseen. Read the batches from the
	// API server and decide again.
	NeedsBatches bool
	// NeedsCause is a pod whose events name its cause: read them and decide again.
	NeedsCause *workload.Pod
	// NeedsNodes: the plan rolls back because of pods on these nodes. Find out which nodes are unreachable and decide
	// again.
	NeedsNodes []string
	// NeedsSure are batches that the caches allow to remove: read them and their pods from the API server and decide
	// again.
	NeedsSure []*v1alpha1.ChangePod
	// NeedsPlaces: a wave of evictions is due. Read the pods of the workload and their nodes from the API server and
	// decide again.
	NeedsPlaces bool
	// Spec is set when the thresholds have to follow the settings.
	Spec *v1alpha1.ChangeWorkloadSpec
	// Batches are the batches to create. Their names are taken once created, so of two replicas with stale views only
	// one succeeds.
	Batches []Batch
	// RollbackTo is the version of a rollback request to write, as an annotation.
	RollbackTo string
	// Action is the write to the workload; in the same write Halt pauses its rollout, and Resume undoes the operator's
	// own pause.
	Action       WorkloadAction
	Halt, Resume bool
	// Hold is the change of the pace of the rollout in the same write; nil for none.
	Hold *HoldChange
	// Evict are the pods to evict after Action.
	Evict []workload.Place
	// ActionEvents are the events of Action, emitted when it is done.
	ActionEvents []record.Event
	// Status is the status to write; nil for none. PutOff reports whether a status write is put off.
	Status *v1alpha1.ChangeWorkloadStatus
	PutOff bool
	// Remember adds the template of this version to the history as the newest, Prove marks a template as proven, and
	// Forget removes templates.
	Remember bool
	Prove    *workload.Revision
	Forget   []workload.Revision
	// RemoveBatches are folded batches of this release.
	RemoveBatches []v1alpha1.ChangePod
	// Remove are older releases that this release made obsolete.
	Remove []v1alpha1.ChangeWorkload
	// Events are emitted at the end.
	Events []record.Event
	// RequeueAfter is when to decide again, if nothing happens before.
	RequeueAfter time.Duration
}

// release is a decision in progress. Its methods are shared by all matters: in this file they write the decision, in
// release_pods.go they read the pods, and in decide.go they are the steps of a decision in their order. The matters
// (release_*.go, fold.go and others) are functions; of the status alone where they need no more.
type release struct {
	ReleaseInput
	status *v1alpha1.ChangeWorkloadStatus
	plan   ReleasePlan

	preparing []workload.Pod
	checking  []v1alpha1.PodResult
	passed    []v1alpha1.PodResult
	failed    []v1alpha1.PodResult
	// folded are the numbers of the batches whose counts the status keeps.
	folded record.Numbers
	// batched are the pods in a batch of this attempt.
	batched map[types.UID]bool
	// removeIn is how long until obsolete releases are removed although their orders are open; 0 when none waits.
	removeIn time.Duration
	// proveIn is how long until the release is proven; 0 when it does not wait.
	proveIn time.Duration
	// unsettled reports whether a pod that may have passed does not run, or has just restarted; settleIn is how long
	// this delays Success, where known.
	unsettled bool
	settleIn  time.Duration
	// stuckOn is the node of all stuck pods, where they are tolerated.
	stuckOn string
}

const (
	// maxListed bounds the lists in the status of a release; the counts are complete.
	maxListed = 100
	// maxPreparing bounds the list of preparing pods, which remembers finished pods. They are fewer than a batch holds,
	// unless the PRE check of the order delays all batches.
	maxPreparing = 400
)

// HoldChange is a change of a hold.
type HoldChange struct {
	// Set is the new pace; nil to restore the workload's own pace, for the reason End.
	Set *workload.Hold
	End workload.HoldEnd
}

// String describes the change in a word.
func (h *HoldChange) String() string {
	switch {
	case h == nil:
		return "unchanged"
	case h.Set == nil:
		return "given back"
	case h.Set.ByEviction:
		return "by evictions"
	case h.Set.ByPartition:
		return fmt.Sprintf("partition %d", h.Set.Set.Partition)
	default:
		return h.Set.Set.MinReady().String()
	}
}

func (d *release) enter(state v1alpha1.ChangeWorkloadStatusType, eventType, reason, message string) {
	d.status.Status = state
	d.status.UpdateTime, d.status.UpdateTimeUnix = times.Format(d.Now), d.Now.Unix()
	if state == v1alpha1.ChangeWorkloadSuspend || state == v1alpha1.ChangeWorkloadRollback {
		d.status.FailedTimeUnix = cmp.Or(d.status.FailedTimeUnix, d.Now.Unix())
	}
	if reason != "" {
		d.event(eventType, reason, message)
	}
}

// warn adds an event of type Warning. The act distinguishes it from other events of its reason, of which client-go
// otherwise makes a series.
func (d *release) warn(act, reason, message string) {
	d.event(corev1.EventTypeWarning, reason, message)
	d.plan.Events[len(d.plan.Events)-1].Act = act
}

func (d *release) event(eventType, reason, message string) {
	d.plan.Events = append(d.plan.Events, record.Event{Type: eventType, Reason: reason,
		Message: d.ofVersion(message)})
}

// ofVersion puts the version of the release before a detail.
func (d *release) ofVersion(detail string) string {
	return strings.Join(wording.NonEmpty("version "+d.Change.Spec.Reversion, detail), ": ")
}

// actionEvent adds an event of the action on the workload.
func (d *release) actionEvent(eventType, reason, message string) {
	d.plan.ActionEvents = append(d.plan.ActionEvents, record.Event{Type: eventType, Reason: reason,
		Message: d.ofVersion(message)})
}

func (d *release) condition(kind string, status metav1.ConditionStatus, reason, format string, args ...any) {
	record.ConditionsOfRelease(d.status, d.Change.Generation, d.Now).Set(kind, status, reason, format, args...)
}

// ofAttempt reports whether a batch counts for the current attempt. Attempts whose status was never written may share a
// number; the number of the release distinguishes them.
func (d *release) ofAttempt(b *v1alpha1.ChangePod) bool {
	return b.Spec.Attempt == d.status.Attempt && b.Spec.Release == d.status.ObservedRelease
}

// holding reports whether the rollout of this release is held.
func (d *release) holding() bool {
	return d.Workload.Hold != nil && d.Workload.Hold.Release == d.Change.Spec.Release
}

// needAll requests the block and the batches from the API server, before a failure or a block ends: a cache may show
// the release, and the block of another process, before it shows the failed batch.
func (d *release) needAll() {
	d.plan.NeedsLive = !d.Live
	d.plan.NeedsBatches = d.plan.NeedsBatches || !d.LiveBatches
}

// decided returns the status with the time of the decision; nil if nothing changed.
func decided(status, was *v1alpha1.ChangeWorkloadStatus, now time.Time) *v1alpha1.ChangeWorkloadStatus {
	status.DecidedTimeUnix = was.DecidedTimeUnix
	if equality.Semantic.DeepEqual(status, was) {
		return nil
	}
	status.DecidedTimeUnix = notBefore(now, was.DecidedTimeUnix).Unix()
	return status
}

// withMessageOf returns conditions in which one type keeps its former message, if its status and reason are unchanged:
// the message only counts awaited verdicts.
func withMessageOf(kind string, conditions, was []metav1.Condition) []metav1.Condition {
	now, before := meta.FindStatusCondition(conditions, kind), meta.FindStatusCondition(was, kind)
	if now == nil || before == nil || now.Status != before.Status || now.Reason != before.Reason {
		return conditions
	}
	conditions = slices.Clone(conditions)
	meta.FindStatusCondition(conditions, kind).Message = before.Message
	return conditions
}

// staysAt reports whether the condition Progressing of this release has the reason, and at most old pods run another
// version. A pod that crashes changes neither.
func (d *release) staysAt(reason string, old int32) bool {
	for i := range d.Workload.OldRevisions {
		old -= d.Workload.OldRevisions[i].Replicas
	}
	return old >= 0 && d.wasProgressing(reason)
}

// notBefore returns the later of now and the time of the last decision. If two replicas decide at once and one clock is
// behind, its replica would otherwise revert what the other replica wrote when a time was over, until both clocks
// agree.
func notBefore(now time.Time, decided int64) time.Time {
	if at := time.Unix(decided, 0); at.After(now) && at.Sub(now) <= mostAhead {
		return at
	}
	return now
}

// mostAhead bounds the difference between the clocks of two replicas: each follows the API server's within two seconds.
const mostAhead = 5 * time.Second

// wasProgressing reports whether the condition Progressing of this release has the reason.
func (d *release) wasProgressing(reason string) bool {
	c := meta.FindStatusCondition(d.Change.Status.Conditions, v1alpha1.ConditionProgressing)
	return c != nil && c.Reason == reason && d.Change.Status.ObservedRelease == d.Change.Spec.Release
}
