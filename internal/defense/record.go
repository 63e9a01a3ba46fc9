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

// ReleaseInput is what a decision about a release is made from.
type ReleaseInput struct {
	Now time.Time
	// Settings in force for the workload.
	Settings settings.Settings
	// ObservedBy says what makes the workload in observe mode; empty while nothing
	// does. Lowered are the settings by whose annotations the workload is
	// defended less than it would be.
	ObservedBy string
	Lowered    []string
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
	// Workload is the workload that owns it; nil when it is gone.
	Workload *workload.Workload
	// Enrolled says that the namespace is enrolled.
	Enrolled bool
	// Pods are the pods of the workload's current revision.
	Pods []workload.Pod
	// Batches are all ChangePods of this object, of whatever attempt. LiveBatches
	// says that they were read from the API server, not from a cache that may be
	// behind that of the release.
	Batches     []v1alpha1.ChangePod
	LiveBatches bool
	// Others are the other ChangeWorkloads of the workload.
	Others []v1alpha1.ChangeWorkload
	// History are the successful versions of the workload that are remembered.
	History []workload.Revision
	// Limit counts rollbacks for the rollback limit.
	Limit rollback.Limit
	// Causes are what the events of pods say, of those that were asked for.
	Causes map[types.UID]string
	// Unreachable are nodes that do not answer, of those that were asked for; nil when none was.
	Unreachable map[string]bool
	// Sure are batches that were read from the API server, with their pods, and Gone
	// those of these pods that do not exist any more.
	Sure, Gone map[types.UID]bool
	// Live says that the workload's labels and annotations were read from the
	// API server, not from a cache that may be behind.
	Live bool
	// PutOffSince is since when this process has put off writing the status; zero when
	// it has not.
	PutOffSince time.Time
	// Begin are the checks of policies that begin at stages of the release as a whole.
	Begin []record.BeginCheck
	// HoldSteps are the times of a hold, and Since is since when this process decides.
	HoldSteps hold.Times
	Since     time.Time
	// Cluster identifies the cluster to AlterShield Server; empty when none is
	// configured.
	Cluster types.UID
	// Tenant and Phase are what the namespace says of its orders; empty where it
	// does not.
	Tenant, Phase string
}

// WorkloadAction is what a release does to the block of its workload.
type WorkloadAction int

const (
	// LeaveWorkload means nothing.
	LeaveWorkload WorkloadAction = iota
	// BlockWorkload means block its releases, because of this version.
	BlockWorkload
	// LiftBlock means remove the block.
	LiftBlock
	// ResumeWorkload means only resume the rollout, with ReleasePlan.Resume.
	ResumeWorkload
	// PaceWorkload means only change the pace of the rollout, with ReleasePlan.Hold, and
	// pause it, with ReleasePlan.Halt.
	PaceWorkload
)

// Batch is a batch to be made.
type Batch struct {
	Number, Attempt int32
	Release         int64
	Pods            []v1alpha1.PodInfo
	// Total is how many batches the release is expected to have by now.
	Total int32
	// Last: every pod the workload is to have is in a batch now.
	Last bool
}

// ReleasePlan is what to do about a release. It is carried out in the order of
// its fields; each step may be the last one before a crash, and the next
// decision goes on from there.
type ReleasePlan struct {
	// NeedsLive: the rest was decided from a block that is there or not, or from a
	// workload that has gone on, once for this turn of the release; a view of it
	// that is behind must not decide. Read the workload from the API server and decide again.
	NeedsLive bool
	// NeedsBatches: a batch is to be made while not every batch that the status
	// mentions was seen, so that the pods of one that was not would be put into
	// another; or a failure or a block is to end, and the batch that failed may not
	// have been seen. Read the batches from the API server and decide again.
	NeedsBatches bool
	// NeedsCause is a pod whose events say what it waits for: read them and decide
	// again.
	NeedsCause *workload.Pod
	// NeedsNodes: the release is about to be rolled back because of pods on these nodes;
	// find out which of them are silent, and decide again.
	NeedsNodes []string
	// NeedsSure are batches to be removed, as far as the caches tell: read them and
	// their pods from the API server and decide again.
	NeedsSure []*v1alpha1.ChangePod
	// Spec is set when thresholds are to follow the settings.
	Spec *v1alpha1.ChangeWorkloadSpec
	// Batches to make. Their names are taken once made, so of two makers with
	// stale views only one succeeds.
	Batches []Batch
	// RollbackTo is a version that a rollback is asked for to, by the annotation.
	RollbackTo string
	// Action on the workload; in the same write Halt pauses its rollout, and
	// Resume takes the operator's own pause back.
	Action       WorkloadAction
	Halt, Resume bool
	// Hold is what becomes of the pace of the rollout in the same write; nil for nothing.
	Hold *HoldChange
	// ActionEvents are the events of Action, emitted when it is done.
	ActionEvents []record.Event
	// Status is set when it is to be written. PutOff says that it is to be written
	// later.
	Status *v1alpha1.ChangeWorkloadStatus
	PutOff bool
	// Remember the template of this version as the newest that succeeded, Prove
	// that it ran well, and Forget others.
	Remember bool
	Prove    *workload.Revision
	Forget   []workload.Revision
	// RemoveBatches are batches of this release that count no more by themselves.
	RemoveBatches []v1alpha1.ChangePod
	// Remove are older releases this one has made obsolete.
	Remove []v1alpha1.ChangeWorkload
	// Events say what was done.
	Events []record.Event
	// RequeueAfter says when to look again, if nothing happens before.
	RequeueAfter time.Duration
}

// release is a decision in the making. Its methods are what every matter uses of it: here to write what is decided, in
// release_pods.go to ask what became of its pods, and in decide.go the steps of a decision in their order. The matters
// (release_*.go, fold.go and others) are functions, of the status alone where they need no more.
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
	// removeIn is how long until obsolete releases go although their orders
	// have not ended; 0 when none waits for that.
	removeIn time.Duration
	// proveIn is how long until the release is proven; 0 when it waits for nothing.
	proveIn time.Duration
	// unsettled: a pod that may have passed does not run, or was restarted just now;
	// settleIn is how long that keeps the release from Success, where it is known.
	unsettled bool
	settleIn  time.Duration
	// stuckOn is the node on which all stuck pods are, where that is tolerated.
	stuckOn string
}

const (
	// maxListed bounds the lists in the status of a release; counts are
	// complete.
	maxListed = 100
	// maxPreparing bounds the list of preparing pods, the memory of who was
	// finished. There are fewer of them than a batch holds, unless the order's
	// PRE check holds all batches up.
	maxPreparing = 400
)

// HoldChange is what is written of a hold.
type HoldChange struct {
	// Set is the pace from now on; nil to give it back, and End says why.
	Set *workload.Hold
	End workload.HoldEnd
}

// String is what it does, in one word.
func (h *HoldChange) String() string {
	switch {
	case h == nil:
		return "unchanged"
	case h.Set == nil:
		return "given back"
	case h.Set.ByPartition:
		return fmt.Sprintf("partition %d", h.Set.Set.Partition)
	default:
		return h.Set.Set.MinReady().String()
	}
}

func (d *release) enter(state v1alpha1.ChangeWorkloadStatusType, eventType, reason, message string) {
	d.status.Status = state
	d.status.UpdateTime, d.status.UpdateTimeUnix = times.Format(d.Now), d.Now.Unix()
	if reason != "" {
		d.event(eventType, reason, message)
	}
}

// warn adds an event of type Warning. The act tells it from others of its reason: client-go makes a series of them otherwise.
func (d *release) warn(act, reason, message string) {
	d.event(corev1.EventTypeWarning, reason, message)
	d.plan.Events[len(d.plan.Events)-1].Act = act
}

func (d *release) event(eventType, reason, message string) {
	d.plan.Events = append(d.plan.Events, record.Event{Type: eventType, Reason: reason,
		Message: d.ofVersion(message)})
}

// ofVersion says a detail of the version of the release.
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

// ofAttempt says that a batch counts for the attempt the release is at. The number
// of the release tells an attempt from one of the same number whose status was never
// written.
func (d *release) ofAttempt(b *v1alpha1.ChangePod) bool {
	return b.Spec.Attempt == d.status.Attempt && b.Spec.Release == d.status.ObservedRelease
}

// holding says that the rollout of this release is held.
func (d *release) holding() bool {
	return d.Workload.Hold != nil && d.Workload.Hold.Release == d.Change.Spec.Release
}

// needAll asks for the block and the batches as the API server has them. What ends a
// failure or a block is decided from nothing less: the release, and the block that
// another process set, may be seen before the batch that failed is.
func (d *release) needAll() {
	d.plan.NeedsLive = !d.Live
	d.plan.NeedsBatches = d.plan.NeedsBatches || !d.LiveBatches
}

// decided returns a status with the time of the decision, or nil if it is what it was.
func decided(status, was *v1alpha1.ChangeWorkloadStatus, now time.Time) *v1alpha1.ChangeWorkloadStatus {
	status.DecidedTimeUnix = was.DecidedTimeUnix
	if equality.Semantic.DeepEqual(status, was) {
		return nil
	}
	status.DecidedTimeUnix = notBefore(now, was.DecidedTimeUnix).Unix()
	return status
}

// withMessageOf are conditions in which one of a type has the message that it had, where
// it was the same else: that tells how many verdicts are waited for.
func withMessageOf(kind string, conditions, was []metav1.Condition) []metav1.Condition {
	now, before := meta.FindStatusCondition(conditions, kind), meta.FindStatusCondition(was, kind)
	if now == nil || before == nil || now.Status != before.Status || now.Reason != before.Reason {
		return conditions
	}
	conditions = slices.Clone(conditions)
	meta.FindStatusCondition(conditions, kind).Message = before.Message
	return conditions
}

// staysAt reports whether the condition Progressing of this release has the reason, and no
// more pods than old run another version. A pod that crashes changes neither.
func (d *release) staysAt(reason string, old int32) bool {
	for i := range d.Workload.OldRevisions {
		old -= d.Workload.OldRevisions[i].Replicas
	}
	return old >= 0 && d.wasProgressing(reason)
}

// notBefore returns the later of now and the time of the decision before. Two replicas may
// decide at once, and the clock of one is a little behind: without this, it takes back what
// the other wrote when a time was over, the other writes it again, and so on until both agree.
func notBefore(now time.Time, decided int64) time.Time {
	if at := time.Unix(decided, 0); at.After(now) && at.Sub(now) <= mostAhead {
		return at
	}
	return now
}

// mostAhead is how far the clocks of two replicas are apart at most: each follows the API
// server's within two seconds.
const mostAhead = 5 * time.Second

// wasProgressing reports whether the condition Progressing of this release has the reason.
func (d *release) wasProgressing(reason string) bool {
	c := meta.FindStatusCondition(d.Change.Status.Conditions, v1alpha1.ConditionProgressing)
	return c != nil && c.Reason == reason && d.Change.Status.ObservedRelease == d.Change.Spec.Release
}
