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

// More than 500 lines: a kind has one file, and most lines are comments of fields.

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChangeWorkloadStatusType is the state of a release.
// +kubebuilder:validation:Enum="";Running;TimeOutPreThreshold;Success;Suspend;Failed;Rollback;Canceled
type ChangeWorkloadStatusType string

const (
	// ChangeWorkloadInit means that the release is new, or that the server has not
	// accepted its order yet.
	ChangeWorkloadInit ChangeWorkloadStatusType = ""
	// ChangeWorkloadRunning means that pods are verified as they finish.
	ChangeWorkloadRunning ChangeWorkloadStatusType = "Running"
	// ChangeWorkloadTimeOutPreThreshold means that too few pods finished within
	// the wait threshold.
	ChangeWorkloadTimeOutPreThreshold ChangeWorkloadStatusType = "TimeOutPreThreshold"
	// ChangeWorkloadSuccess means that the rollout is complete, and that every pod
	// and the order passed.
	ChangeWorkloadSuccess ChangeWorkloadStatusType = "Success"
	// ChangeWorkloadSuspend means that a pod, the order or a check of the release
	// failed.
	ChangeWorkloadSuspend ChangeWorkloadStatusType = "Suspend"
	// ChangeWorkloadFailed means that the server refused the order.
	ChangeWorkloadFailed ChangeWorkloadStatusType = "Failed"
	// ChangeWorkloadRollback means that the workload was set back to another
	// version.
	ChangeWorkloadRollback ChangeWorkloadStatusType = "Rollback"
	// ChangeWorkloadCanceled means that a newer release replaced this release
	// before it ended, or that the workload is no longer defended.
	ChangeWorkloadCanceled ChangeWorkloadStatusType = "Canceled"
)

// OrderStage is the progress of the order of a release on AlterShield Server.
// +kubebuilder:validation:Enum="";Submitting;Denied;Refused;PreWait;PreSubmitted;PostWait;PostSubmitted;PostFinish;Ended
type OrderStage string

const (
	// OrderNone means that no server is configured.
	OrderNone OrderStage = ""
	// OrderSubmitting means that the server has not accepted the order yet.
	OrderSubmitting OrderStage = "Submitting"
	// OrderDenied means that the server does not know the platform or its token.
	OrderDenied OrderStage = "Denied"
	// OrderRefused means that the server refused the order.
	OrderRefused OrderStage = "Refused"
	// OrderPreWait means that the server accepted the order, and must be notified
	// of its start.
	OrderPreWait OrderStage = "PreWait"
	// OrderPreSubmitted means that the PRE check of the order runs on the server.
	OrderPreSubmitted OrderStage = "PreSubmitted"
	// OrderPostWait means that the PRE check is over. The order waits until the
	// last pod has passed.
	OrderPostWait OrderStage = "PostWait"
	// OrderPostSubmitted means that the POST check of the order runs on the
	// server.
	OrderPostSubmitted OrderStage = "PostSubmitted"
	// OrderPostFinish means that the POST check is over.
	OrderPostFinish OrderStage = "PostFinish"
	// OrderEnded means that the server was notified how the order ended, or was
	// unreachable for too long.
	OrderEnded OrderStage = "Ended"
)

// FinishState is the end of an order.
// +kubebuilder:validation:Enum="";SUCCESS;ROLLBACK;CANCEL
type FinishState string

const (
	// FinishSuccess means that the release succeeded.
	FinishSuccess FinishState = "SUCCESS"
	// FinishRollback means that the release was rolled back.
	FinishRollback FinishState = "ROLLBACK"
	// FinishCancel means that the release was replaced, or that its workload was
	// deleted or is not defended.
	FinishCancel FinishState = "CANCEL"
)

// PodInfo names a pod as it is reported to the server.
type PodInfo struct {
	// Application of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	App string `json:"app,omitempty"`
	// Host name of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	HostName string `json:"hostName,omitempty"`
	// Namespace of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	WorkSpace string `json:"workSpace,omitempty"`
	// Name of the pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// Address of the pod at the creation of its batch.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	IP string `json:"ip,omitempty"`
	// Namespace of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// UID of the pod. A later pod of the same name is another pod.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
}

// PodResult is a pod with its verdict.
type PodResult struct {
	PodInfo `json:",inline"`
	// Verdict on the pod, in lower case. The words pass and none (no rule was
	// triggered) and the empty string pass. Every other verdict fails.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Verdict string `json:"verdict,omitempty"`
	// Explanation of the verdict.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	Message string `json:"message,omitempty"`
}

// WorkloadReference names a workload.
type WorkloadReference struct {
	// API version of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// Kind of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Name of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID of the workload. A later workload of the same name is another workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// ChangeWorkloadSpec names the version that is released, and how it is
// verified. The operator writes it, and keeps it in line with the settings.
//
// +kubebuilder:validation:XValidation:rule="self.reversion == oldSelf.reversion && self.changeWorkloadId == oldSelf.changeWorkloadId",message="changeWorkloadId and reversion cannot change: another version is another ChangeWorkload"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.workloadRef) || has(self.workloadRef) && self.workloadRef == oldSelf.workloadRef",message="workloadRef cannot change once it is set: another workload has another ChangeWorkload"
type ChangeWorkloadSpec struct {
	// Name of this object. It cannot change.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ChangeWorkloadID string `json:"changeWorkloadId"`
	// Application: the workload's label app.kubernetes.io/name, else its label
	// app, else its name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	AppName string `json:"appName,omitempty"`
	// Name of the workload.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceName string `json:"serviceName,omitempty"`
	// Workload that is released; if absent, the Deployment that controls this
	// object. It cannot change once it is set.
	// +optional
	WorkloadRef *WorkloadReference `json:"workloadRef,omitempty"`
	// Version of the released pod template: the MD5 of its canonical JSON, in
	// lower-case hexadecimal. It cannot change.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{32}$`
	Reversion string `json:"reversion"`
	// Number of pods per batch.
	// +kubebuilder:validation:Minimum=1
	CountThreshold int32 `json:"countThreshold"`
	// Longest wait for a full batch, in seconds. Then the batch has the pods that
	// are finished.
	// +kubebuilder:validation:Minimum=1
	WaitTimeThreshold int64 `json:"waitTimeThreshold"`
	// First record of the release, as 2006-01-02 15:04:05 in the time zone of the
	// operator.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	CreateTime string `json:"createTime,omitempty"`
	// createTime in Unix seconds.
	// +optional
	CreateTimeUnix int64 `json:"createTimeUnix,omitempty"`
	// Number of the workload's last release of this version. A number above
	// status.observedRelease asks for a new attempt.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Release int64 `json:"release,omitempty"`
	// Policies that selected the workload when the release was recorded, as
	// namespace/name@generation.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=400
	Policies []string `json:"policies,omitempty"`
}

// OrderStatus is the order of an attempt on AlterShield Server.
type OrderStatus struct {
	// ID that the operator gave to the order (bizExecOrderId).
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderID string `json:"orderId,omitempty"`
	// Tenant code that the namespace named when the attempt began; empty means the
	// tenant of the operator's flag.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderTenant string `json:"orderTenant,omitempty"`
	// Phase that the namespace named when the attempt began; empty means the phase
	// of the operator's flag.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderPhase string `json:"orderPhase,omitempty"`
	// Address of the order on the server.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	OrderURL string `json:"orderUrl,omitempty"`
	// ID of the order's own entry on the server.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	OrderNodeID string `json:"orderNodeId,omitempty"`
	// Progress of the order; empty without a server.
	// +optional
	OrderStage OrderStage `json:"orderStage,omitempty"`
	// Acceptance of the order by the server, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OrderSubmitTime string `json:"orderSubmitTime,omitempty"`
	// orderSubmitTime in Unix seconds.
	// +optional
	OrderSubmitTimeUnix int64 `json:"orderSubmitTimeUnix,omitempty"`
	// Submission of the order's PRE check, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OrderPreSubmitTime string `json:"orderPreSubmitTime,omitempty"`
	// orderPreSubmitTime in Unix seconds.
	// +optional
	OrderPreSubmitTimeUnix int64 `json:"orderPreSubmitTimeUnix,omitempty"`
	// Unix seconds at which the last pod passed and the order's POST check became
	// due.
	// +optional
	OrderPostDueTimeUnix int64 `json:"orderPostDueTimeUnix,omitempty"`
	// Submission of the order's POST check, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OrderPostSubmitTime string `json:"orderPostSubmitTime,omitempty"`
	// orderPostSubmitTime in Unix seconds.
	// +optional
	OrderPostSubmitTimeUnix int64 `json:"orderPostSubmitTimeUnix,omitempty"`
	// Verdict on the order's PRE check. A failing verdict suspends the release,
	// and its correction lets the release continue.
	// +optional
	OrderPreVerdict *CheckVerdict `json:"orderPreVerdict,omitempty"`
	// Verdict on the order's POST check. A failing verdict suspends the release,
	// and its correction lets the release continue.
	// +optional
	OrderPostVerdict *CheckVerdict `json:"orderPostVerdict,omitempty"`
	// Whether a verdict on the order itself failed when the operator last wrote
	// this status.
	// +optional
	OrderFailed bool `json:"orderFailed,omitempty"`
	// Whether a check of the whole release failed when the operator last wrote
	// this status.
	// +optional
	CheckFailed bool `json:"checkFailed,omitempty"`
	// End of the order on the server; empty while the order continues.
	// +optional
	OrderEnd FinishState `json:"orderEnd,omitempty"`
	// Unix seconds since when the server must be notified of orderEnd.
	// +optional
	OrderEndDueTimeUnix int64 `json:"orderEndDueTimeUnix,omitempty"`
	// Whether the attempt reported a long wait for AlterShield Server.
	// +optional
	ServerWaitReported bool `json:"serverWaitReported,omitempty"`
	// Results of the calls about the order: Accepted, PreChecked, PostChecked and
	// Ended. The condition Server reports the worst.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	OrderSteps []metav1.Condition `json:"orderSteps,omitempty"`
}

// ReleaseEvidence is the evidence about a release.
type ReleaseEvidence struct {
	// Container images of the pod template, init containers first.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	Images []string `json:"images,omitempty"`
	// User who released the version, as admission saw the request; empty if the
	// release bypassed admission.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ReleasedBy string `json:"releasedBy,omitempty"`
	// User whose request passed a block or a quarantine.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	OverriddenBy string `json:"overriddenBy,omitempty"`
	// Last opt-out of the workload at this release while the defense had an
	// effect.
	// +optional
	OptedOut *OptOut `json:"optedOut,omitempty"`
	// Last five failing verdicts that were corrected.
	// +optional
	// +kubebuilder:validation:MaxItems=5
	// +listType=atomic
	Corrections []Correction `json:"corrections,omitempty"`
	// First failure or rollback, in Unix seconds. It stays when the failure is
	// corrected.
	// +optional
	FailedTimeUnix int64 `json:"failedTimeUnix,omitempty"`
	// Freeze that the release bypassed, as namespace/policy/freeze.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	BypassedFreeze string `json:"bypassedFreeze,omitempty"`
	// Freeze that the release passed with a reason, or as a version that succeeded
	// before, as namespace/policy/freeze.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	BrokenFreeze string `json:"brokenFreeze,omitempty"`
	// Acts that observe mode prevented: Suspend, Halt, Hold, Rollback and Deny.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=16
	// +listType=atomic
	DryRuns []string `json:"dryRuns,omitempty"`
}

// OptOut is one time that a user opted a workload out of the defense, or gave
// it an owner that puts it into observe mode.
type OptOut struct {
	// User of the request, as admission saw it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	User string `json:"user,omitempty"`
	// State of the workload at that time.
	// +kubebuilder:validation:Enum=Blocked;Halted;Held;Quarantined
	While OptOutWhile `json:"while"`
	// New owner of the workload, as kind/name; empty if a user opted the workload
	// out.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Owner string `json:"owner,omitempty"`
	// Time in Unix seconds.
	TimeUnix int64 `json:"timeUnix"`
}

// OptOutWhile is the state of a workload that a user opted out.
type OptOutWhile string

const (
	// WhileBlocked means that releases of the workload were blocked.
	WhileBlocked OptOutWhile = "Blocked"
	// WhileHalted means that the operator had halted the rollout.
	WhileHalted OptOutWhile = "Halted"
	// WhileHeld means that the rollout was held.
	WhileHeld OptOutWhile = "Held"
	// WhileQuarantined means that versions of the workload were in quarantine.
	WhileQuarantined OptOutWhile = "Quarantined"
)

// Correction is a failing verdict that was changed to a passing verdict.
type Correction struct {
	// Pod of the verdict; empty for a check of the order.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`
	// Last field manager in managedFields that wrote the status: a trace, not
	// proof. Empty if it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	FieldManager string `json:"fieldManager,omitempty"`
	// Time at which the operator found that the release no longer fails, in Unix
	// seconds.
	TimeUnix int64 `json:"timeUnix"`
}

// PreviousRelease is an earlier release of the workload. Its ChangeWorkload
// may be deleted.
type PreviousRelease struct {
	// Number of the release.
	Release int64 `json:"release"`
	// Version of the pod template.
	// +kubebuilder:validation:MaxLength=32
	Version string `json:"version"`
	// Last state of the release.
	// +optional
	Status ChangeWorkloadStatusType `json:"status,omitempty"`
	// Start of the release, in Unix seconds.
	// +optional
	StartTimeUnix int64 `json:"startTimeUnix,omitempty"`
	// Change to that state, in Unix seconds.
	// +optional
	UpdateTimeUnix int64 `json:"updateTimeUnix,omitempty"`
	// First pod that failed.
	// +optional
	FailedPod *PodResult `json:"failedPod,omitempty"`
	// Cause of the failure or of the rollback.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`

	ReleaseEvidence `json:",inline"`
}

// FoldedBatches is the record of batches of an attempt that were removed
// because none of their pods exists.
type FoldedBatches struct {
	// Numbers of the removed batches, as 1-57,59, with removed batches of earlier
	// attempts. At most 200 ranges: the lowest make room.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Numbers string `json:"numbers,omitempty"`
	// Lowest number from which the list is complete. Below it, each batch that
	// does not exist was removed. Absent if the list is complete.
	// +optional
	NumbersFrom int32 `json:"numbersFrom,omitempty"`
	// Number of their pods that passed; part of status.passCount.
	// +optional
	PassCount int32 `json:"passCount,omitempty"`
	// Number of their pods that passed without a verdict of AlterShield Server;
	// part of status.unverifiedCount.
	// +optional
	UnverifiedCount int32 `json:"unverifiedCount,omitempty"`
	// Number of their pods that failed; part of status.failCount. They count as
	// passed once each existing failed batch is corrected.
	// +optional
	FailCount int32 `json:"failCount,omitempty"`
	// Batches that may still exist.
	// +optional
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	Removing []FoldedBatch `json:"removing,omitempty"`
	// Last 200 of their order entries. Verdicts on them are only recorded.
	// +optional
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	Nodes []FoldedEntry `json:"nodes,omitempty"`
}

// FoldedBatch is a batch that is being removed, and whose counts are kept
// already.
type FoldedBatch struct {
	// Number of the batch.
	Number int32 `json:"number"`
	// UID of its ChangePod.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
	// Number of its pods in unverifiedCount of the folded batches.
	// +optional
	UnverifiedCount int32 `json:"unverifiedCount,omitempty"`
	// Whether pods of the batch failed.
	// +optional
	Failed bool `json:"failed,omitempty"`
}

// FoldedEntry is the order entry of a removed batch.
type FoldedEntry struct {
	// ID of the order entry on the server.
	// +kubebuilder:validation:MaxLength=256
	ID string `json:"id"`
	// Later verdict that did not pass. It changes nothing.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Verdict string `json:"verdict,omitempty"`
}

// ChangeWorkloadStatus is the state of the release. A list of pods has at most
// 100 entries (defensePreparingPods 400), failures first. The counts are
// complete.
type ChangeWorkloadStatus struct {
	// State of the release; empty means Init.
	// +optional
	Status ChangeWorkloadStatusType `json:"status,omitempty"`
	// Last decision that the operator wrote, in Unix seconds. No replica decides
	// by an earlier time.
	// +optional
	DecidedTimeUnix int64 `json:"decidedTimeUnix,omitempty"`
	// Last change of the state, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	UpdateTime string `json:"updateTime,omitempty"`
	// updateTime in Unix seconds.
	// +optional
	UpdateTimeUnix int64 `json:"updateTimeUnix,omitempty"`
	// First success of the attempt, in Unix seconds. It stays when the release is
	// suspended.
	// +optional
	SuccessTimeUnix int64 `json:"successTimeUnix,omitempty"`
	// Time since which the rollout of an object without pods has been complete, in
	// Unix seconds; absent while it is not.
	// +optional
	CompleteTimeUnix int64 `json:"completeTimeUnix,omitempty"`
	// Time since which the rollout of an object without pods has been stuck, or has
	// exceeded its deadline, in Unix seconds; absent while it does neither.
	// +optional
	StuckTimeUnix int64 `json:"stuckTimeUnix,omitempty"`
	// Start of the attempt, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	StartTime string `json:"startTime,omitempty"`
	// startTime in Unix seconds.
	// +optional
	StartTimeUnix int64 `json:"startTimeUnix,omitempty"`
	// Start of the attempt or, later, creation of its last batch, as 2006-01-02
	// 15:04:05. The wait threshold counts from it.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	EntryTime string `json:"entryTime,omitempty"`
	// entryTime in Unix seconds.
	// +optional
	EntryTimeUnix int64 `json:"entryTimeUnix,omitempty"`
	// Finished pods that are in no batch yet.
	// +optional
	// +listType=atomic
	DefensePreparingPods []PodResult `json:"defensePreparingPods,omitempty"`
	// Pods in batches that are not done.
	// +optional
	// +listType=atomic
	DefenseCheckingPods []PodResult `json:"defenseCheckingPods,omitempty"`
	// Pods that passed.
	// +optional
	// +listType=atomic
	DefenseCheckPassPods []PodResult `json:"defenseCheckPassPods,omitempty"`
	// Pods that failed, with verdict and message.
	// +optional
	// +listType=atomic
	DefenseCheckFailPods []PodResult `json:"defenseCheckFailPods,omitempty"`
	// Number of finished pods that are in no batch yet.
	// +optional
	PreparingCount int32 `json:"preparingCount,omitempty"`
	// Number of pods in batches that are not done.
	// +optional
	CheckingCount int32 `json:"checkingCount,omitempty"`
	// Number of pods that passed.
	// +optional
	PassCount int32 `json:"passCount,omitempty"`
	// Number of pods that passed because AlterShield Server gave no verdict in
	// time.
	// +optional
	UnverifiedCount int32 `json:"unverifiedCount,omitempty"`
	// Number of pods that failed.
	// +optional
	FailCount int32 `json:"failCount,omitempty"`
	// Number of the last batch of this object. Numbers continue from attempt to
	// attempt.
	// +optional
	Batches int32 `json:"batches,omitempty"`
	// Record of removed batches; absent if none was removed.
	// +optional
	Folded *FoldedBatches `json:"folded,omitempty"`
	// Number of times that this version was released. Results of earlier attempts
	// do not count.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// spec.release of the current attempt.
	// +optional
	ObservedRelease int64 `json:"observedRelease,omitempty"`
	// Value of the workload's label suspend at the start of the attempt; absent if
	// the workload was not blocked. Success lifts that block, and no block that a
	// user sets later.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	BlockAtStart *string `json:"blockAtStart,omitempty"`
	// Evidence of the attempt.
	ReleaseEvidence `json:",inline"`
	// Last ten earlier releases of the workload, the newest first.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	PreviousReleases []PreviousRelease `json:"previousReleases,omitempty"`
	// Order on AlterShield Server.
	OrderStatus `json:",inline"`
	// Verdicts on entries of this order that are not known yet. Passing verdicts
	// make room for others. A failing verdict suspends the release if its entry
	// never becomes known.
	// +optional
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	UnclaimedVerdicts []UnclaimedVerdict `json:"unclaimedVerdicts,omitempty"`
	// Checks of the release as a whole, one for each verifier. Checks of pods are
	// on the ChangePods.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Checks []CheckStatus `json:"checks,omitempty"`
	// Pods of the previous version at the start of the attempt, or of an earlier
	// release that replaced them and did not succeed; absent if no check compares
	// with the time before it.
	// +optional
	Baseline *ReleaseBaseline `json:"baseline,omitempty"`
	// Fields that a hold changed. The operator gives them back from here if the
	// annotation of the hold is lost.
	// +optional
	Hold *HoldRecord `json:"hold,omitempty"`
	// metadata.generation that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Write of the operator that is denied; absent if none is denied.
	// +optional
	DeniedWrite *DeniedWrite `json:"deniedWrite,omitempty"`
	// Progressing, Verified, Held, Blocked, RolledBack, PodsUnavailable,
	// EvictionBlocked, Proven, Server and Defended.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DeniedWrite is a write of the operator that a policy, a quota, a missing right or a size limit denies.
type DeniedWrite struct {
	// Block, Lift, Resume, Pace, Batch, Rollback, Request, Record or Remember.
	// +kubebuilder:validation:MaxLength=32
	Write string `json:"write"`
	// Message of the denial.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// HoldRecord is the set of workload fields that a hold changed.
type HoldRecord struct {
	// Value of the user, in seconds.
	MinReadySeconds int32 `json:"minReadySeconds"`
	// Value of the user, in seconds.
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds"`
	// Value of the hold, in seconds. The operator recognizes the hold by it.
	SetProgressDeadlineSeconds int32 `json:"setProgressDeadlineSeconds"`
	// Value of the user on a StatefulSet. The fields above are 0 there.
	// +optional
	Partition *int32 `json:"partition,omitempty"`
	// Value of the hold on a StatefulSet.
	// +optional
	SetPartition *int32 `json:"setPartition,omitempty"`
}

// ChangeWorkload is the record of one release: one version of the pod template
// of one workload, with its verification.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=changeworkloads,singular=changeworkload,scope=Namespaced,shortName=cwl,categories=altershield
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.status`,description="State of the release; empty is Init"
// +kubebuilder:printcolumn:name="CREATETIME",type=string,JSONPath=`.spec.createTime`,description="When the release was first recorded"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="KIND",type=string,priority=1,JSONPath=`.spec.workloadRef.kind`,description="Kind of the workload; empty is Deployment"
// +kubebuilder:printcolumn:name="WORKLOAD",type=string,priority=1,JSONPath=`.spec.workloadRef.name`,description="Name of the workload"
// +kubebuilder:printcolumn:name="PASSED",type=integer,priority=1,JSONPath=`.status.passCount`,description="Pods that passed"
// +kubebuilder:printcolumn:name="FAILED",type=integer,priority=1,JSONPath=`.status.failCount`,description="Pods that failed"
// +kubebuilder:printcolumn:name="CHECKING",type=integer,priority=1,JSONPath=`.status.checkingCount`,description="Pods being verified"
// +kubebuilder:printcolumn:name="ATTEMPT",type=integer,priority=1,JSONPath=`.status.attempt`,description="Number of times that this version was released"
// +kubebuilder:printcolumn:name="ORDERSTAGE",type=string,priority=1,JSONPath=`.status.orderStage`,description="Progress of the order on AlterShield Server"
// +kubebuilder:printcolumn:name="PROGRESSING",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Progressing")].reason`,description="Progress of the rollout, or why it does not advance"
// +kubebuilder:printcolumn:name="VERIFIED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Verified")].reason`,description="Result of the verification"
// +kubebuilder:printcolumn:name="HELD",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Held")].reason`,description="Whether the rollout waits for verdicts, or why it continued"
type ChangeWorkload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Version that is released, and how it is verified.
	Spec ChangeWorkloadSpec `json:"spec,omitempty"`
	// State of the release.
	Status ChangeWorkloadStatus `json:"status,omitempty"`
}

// ChangeWorkloadList is a list of ChangeWorkloads.
//
// +kubebuilder:object:root=true
type ChangeWorkloadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ChangeWorkload `json:"items"`
}
