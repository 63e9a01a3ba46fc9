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

// The kind ChangeWorkload with all its parts, in one file as each kind is: more than 500 lines, of which most are comments of fields.

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChangeWorkloadStatusType is the state of a release.
// +kubebuilder:validation:Enum="";Running;TimeOutPreThreshold;Success;Suspend;Failed;Rollback;Canceled
type ChangeWorkloadStatusType string

const (
	// ChangeWorkloadInit means created; the operator will open the release with
	// the server, or start right away when no server is configured.
	ChangeWorkloadInit ChangeWorkloadStatusType = ""
	// ChangeWorkloadRunning means finished pods are gathered into batches and
	// verified; the operator creates a ChangePod each time enough wait.
	ChangeWorkloadRunning ChangeWorkloadStatusType = "Running"
	// ChangeWorkloadTimeOutPreThreshold means too few pods finished within the
	// wait threshold; the next one that finishes starts a batch at once.
	ChangeWorkloadTimeOutPreThreshold ChangeWorkloadStatusType = "TimeOutPreThreshold"
	// ChangeWorkloadSuccess means rollout complete and every pod passed. Pods that
	// appear later are still verified.
	ChangeWorkloadSuccess ChangeWorkloadStatusType = "Success"
	// ChangeWorkloadSuspend means a pod or the order failed. The workload is
	// blocked while blocking is enabled; other pods are still verified.
	ChangeWorkloadSuspend ChangeWorkloadStatusType = "Suspend"
	// ChangeWorkloadFailed means the server refused the release. This version is
	// not verified.
	ChangeWorkloadFailed ChangeWorkloadStatusType = "Failed"
	// ChangeWorkloadRollback means the workload is set back to another version.
	ChangeWorkloadRollback ChangeWorkloadStatusType = "Rollback"
	// ChangeWorkloadCanceled means a newer release replaced this one before it
	// ended, or the workload left the defense. No more batches.
	ChangeWorkloadCanceled ChangeWorkloadStatusType = "Canceled"
)

// OrderStage is how far the order of a release has come on AlterShield Server.
// +kubebuilder:validation:Enum="";Submitting;Denied;Refused;PreWait;PreSubmitted;PostWait;PostSubmitted;PostFinish;Ended
type OrderStage string

const (
	// OrderNone means that there is no order, because no server is configured.
	OrderNone OrderStage = ""
	// OrderSubmitting means that the server has not accepted the order yet.
	OrderSubmitting OrderStage = "Submitting"
	// OrderDenied means that the server does not know the platform or its
	// token; a user has to correct that; submission is tried each minute.
	OrderDenied OrderStage = "Denied"
	// OrderRefused means that the server refused the order.
	OrderRefused OrderStage = "Refused"
	// OrderPreWait means that the order is accepted, and the server must be
	// notified of its start.
	OrderPreWait OrderStage = "PreWait"
	// OrderPreSubmitted means that the order's PRE check runs on the server.
	OrderPreSubmitted OrderStage = "PreSubmitted"
	// OrderPostWait means that the PRE check is over; the order waits for the
	// last pod to pass.
	OrderPostWait OrderStage = "PostWait"
	// OrderPostSubmitted means that the order's POST check runs on the server.
	OrderPostSubmitted OrderStage = "PostSubmitted"
	// OrderPostFinish means that the POST check is over.
	OrderPostFinish OrderStage = "PostFinish"
	// OrderEnded means that the server was notified how the order ended, or
	// could not be reached for too long.
	OrderEnded OrderStage = "Ended"
)

// FinishState is how an order ended.
// +kubebuilder:validation:Enum="";SUCCESS;ROLLBACK;CANCEL
type FinishState string

const (
	// FinishSuccess ends the order of a release that succeeded.
	FinishSuccess FinishState = "SUCCESS"
	// FinishRollback ends the order of a release that was rolled back.
	FinishRollback FinishState = "ROLLBACK"
	// FinishCancel ends the order of a release that was replaced, or whose
	// workload is gone or left the defense.
	FinishCancel FinishState = "CANCEL"
)

// PodInfo names a pod as it is reported to the server.
type PodInfo struct {
	// App is the application the pod belongs to.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	App string `json:"app,omitempty"`
	// HostName is the host name of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	HostName string `json:"hostName,omitempty"`
	// WorkSpace is the workspace of the pod: its namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	WorkSpace string `json:"workSpace,omitempty"`
	// Pod is the name of the pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// IP is the address of the pod when it was put into its batch.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	IP string `json:"ip,omitempty"`
	// Namespace is the namespace of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// UID is the UID of the pod: a pod of the same name created later is
	// another pod.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
}

// PodResult is a pod with what its verification said.
type PodResult struct {
	PodInfo `json:",inline"`
	// Verdict on the pod. "pass", "none" (no rule was triggered) and the empty
	// string pass, in lower case; every other verdict fails.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Verdict string `json:"verdict,omitempty"`
	// Message explains the verdict.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	Message string `json:"message,omitempty"`
}

// WorkloadReference names a workload.
type WorkloadReference struct {
	// APIVersion of the workload.
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
	// UID of the workload: one of the same name created later is another.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// ChangeWorkloadSpec says which version of which workload is released, and how
// it is verified. The operator writes it; it follows the settings live.
//
// +kubebuilder:validation:XValidation:rule="self.reversion == oldSelf.reversion && self.changeWorkloadId == oldSelf.changeWorkloadId",message="changeWorkloadId and reversion cannot change: another version is another ChangeWorkload"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.workloadRef) || has(self.workloadRef) && self.workloadRef == oldSelf.workloadRef",message="workloadRef cannot change once it is set: another workload has another ChangeWorkload"
type ChangeWorkloadSpec struct {
	// ChangeWorkloadID is the name of this object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ChangeWorkloadID string `json:"changeWorkloadId"`
	// AppName is the application: the workload's label app.kubernetes.io/name,
	// else its label app, else its name.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	AppName string `json:"appName,omitempty"`
	// ServiceName is the name of the workload.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceName string `json:"serviceName,omitempty"`
	// WorkloadRef names the workload that is released. Without it, as on objects of
	// earlier builds, it is the Deployment that is the controller of this object. Once
	// set it cannot change.
	// +optional
	WorkloadRef *WorkloadReference `json:"workloadRef,omitempty"`
	// Reversion is the version of the pod template that is released: the
	// lower-case hexadecimal MD5 of its canonical JSON.
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{32}$`
	Reversion string `json:"reversion"`
	// CountThreshold is the number of pods per batch.
	// +kubebuilder:validation:Minimum=1
	CountThreshold int32 `json:"countThreshold"`
	// WaitTimeThreshold is how long, in seconds, a batch waits to be full
	// before it is verified with the pods that are there.
	// +kubebuilder:validation:Minimum=1
	WaitTimeThreshold int64 `json:"waitTimeThreshold"`
	// CreateTime is when the release was first recorded, as
	// 2006-01-02 15:04:05 in the time zone of the operator.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	CreateTime string `json:"createTime,omitempty"`
	// CreateTimeUnix is CreateTime as Unix time in seconds.
	// +optional
	CreateTimeUnix int64 `json:"createTimeUnix,omitempty"`
	// Release is the number of the workload's release that last released this
	// version. A larger number than status.observedRelease asks for a new
	// attempt.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Release int64 `json:"release,omitempty"`
	// Policies are those that selected the workload when the release was
	// recorded, as namespace/name@generation.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=400
	Policies []string `json:"policies,omitempty"`
}

// OrderStatus is what is known of the order of an attempt on AlterShield Server.
type OrderStatus struct {
	// OrderID is our id of the attempt's order on the server (bizExecOrderId).
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderID string `json:"orderId,omitempty"`
	// OrderTenant is the tenant code that the namespace named for the order when
	// the attempt began; empty is that of the operator's flag.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderTenant string `json:"orderTenant,omitempty"`
	// OrderPhase is the phase that it named likewise.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderPhase string `json:"orderPhase,omitempty"`
	// OrderURL shows the order on the server.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	OrderURL string `json:"orderUrl,omitempty"`
	// OrderNodeID is the server's id of the order entry of the order.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	OrderNodeID string `json:"orderNodeId,omitempty"`
	// OrderStage is how far the order has come; empty without a server.
	// Submitting: the server has not accepted it.
	// Denied: the server does not know the platform or its token; tried each
	// minute.
	// Refused: the server refused it; the release is Failed.
	// PreWait: accepted; its PRE check is to be submitted.
	// PreSubmitted: its PRE check runs; no batch is made.
	// PostWait: its PRE check is over; batches are made.
	// PostSubmitted: its POST check runs.
	// PostFinish: its POST check is over.
	// Ended: the server was notified how it ended, or could not be reached.
	// +optional
	OrderStage OrderStage `json:"orderStage,omitempty"`
	// OrderSubmitTime is when the server accepted the order, as
	// 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OrderSubmitTime string `json:"orderSubmitTime,omitempty"`
	// OrderSubmitTimeUnix is OrderSubmitTime as Unix time in seconds.
	// +optional
	OrderSubmitTimeUnix int64 `json:"orderSubmitTimeUnix,omitempty"`
	// OrderPreSubmitTime is when the order's PRE check was submitted, as
	// 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OrderPreSubmitTime string `json:"orderPreSubmitTime,omitempty"`
	// OrderPreSubmitTimeUnix is OrderPreSubmitTime as Unix time in seconds.
	// +optional
	OrderPreSubmitTimeUnix int64 `json:"orderPreSubmitTimeUnix,omitempty"`
	// OrderPostDueTimeUnix is when the last pod passed and the order's POST
	// check became due, as Unix time in seconds.
	// +optional
	OrderPostDueTimeUnix int64 `json:"orderPostDueTimeUnix,omitempty"`
	// OrderPostSubmitTime is when the order's POST check was submitted, as
	// 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	OrderPostSubmitTime string `json:"orderPostSubmitTime,omitempty"`
	// OrderPostSubmitTimeUnix is OrderPostSubmitTime as Unix time in seconds.
	// +optional
	OrderPostSubmitTimeUnix int64 `json:"orderPostSubmitTimeUnix,omitempty"`
	// OrderPreVerdict is the verdict on the order's PRE check. A failing
	// verdict suspends the release. Correct it to let the release go on.
	// +optional
	OrderPreVerdict *CheckVerdict `json:"orderPreVerdict,omitempty"`
	// OrderPostVerdict is the verdict on the order's POST check. A failing
	// verdict suspends the release. Correct it to let the release go on.
	// +optional
	OrderPostVerdict *CheckVerdict `json:"orderPostVerdict,omitempty"`
	// OrderFailed says that the verdict on a check of the order itself was a failing
	// one when the operator wrote this status, so that a correction is noticed. Objects
	// of older versions do not have it: of them a correction is noticed when nothing
	// else failed.
	// +optional
	OrderFailed bool `json:"orderFailed,omitempty"`
	// CheckFailed says that a check of the release as a whole had failed, so that its
	// correction is told.
	// +optional
	CheckFailed bool `json:"checkFailed,omitempty"`
	// OrderEnd is how the order is to end on the server; empty while it goes
	// on.
	// +optional
	OrderEnd FinishState `json:"orderEnd,omitempty"`
	// OrderEndDueTimeUnix is the time since when the server has to be notified
	// of OrderEnd, as Unix time in seconds.
	// +optional
	OrderEndDueTimeUnix int64 `json:"orderEndDueTimeUnix,omitempty"`
	// ServerWaitReported records that the attempt reported a long wait for AlterShield Server.
	// +optional
	ServerWaitReported bool `json:"serverWaitReported,omitempty"`
	// OrderSteps are the results of the calls about the order: Accepted, PreChecked, PostChecked and Ended.
	// The condition Server reports the worst of them.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=type
	OrderSteps []metav1.Condition `json:"orderSteps,omitempty"`
}

// ReleaseEvidence is what is kept of a release beside its state.
type ReleaseEvidence struct {
	// Images are the container images of its pod template, those of init containers
	// first, at most ten.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=512
	// +listType=atomic
	Images []string `json:"images,omitempty"`
	// ReleasedBy is the user who released it, as admission saw it. Empty when the
	// release got past admission.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ReleasedBy string `json:"releasedBy,omitempty"`
	// OverriddenBy is the user by whose request it passed a block or a quarantine.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	OverriddenBy string `json:"overriddenBy,omitempty"`
	// OptedOut is the last time that a user opted the workload out of the defense, at
	// this release, while the workload was blocked or versions of it were in quarantine.
	// +optional
	OptedOut *OptOut `json:"optedOut,omitempty"`
	// Corrections are the last five failing verdicts that were corrected.
	// +optional
	// +kubebuilder:validation:MaxItems=5
	// +listType=atomic
	Corrections []Correction `json:"corrections,omitempty"`
}

// OptOut is one time that a user opted a workload out of the defense, or gave it an owner
// because of which it is in observe mode.
type OptOut struct {
	// User who did, as admission saw it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	User string `json:"user,omitempty"`
	// While says what the workload was: Blocked, Halted, Held or Quarantined.
	// +kubebuilder:validation:Enum=Blocked;Halted;Held;Quarantined
	While OptOutWhile `json:"while"`
	// Owner that the workload got, as kind/name; empty where a user opted it out.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Owner string `json:"owner,omitempty"`
	// TimeUnix is when, as Unix time in seconds.
	TimeUnix int64 `json:"timeUnix"`
}

// OptOutWhile is what a workload was when a user opted it out.
type OptOutWhile string

const (
	// WhileBlocked means that its releases were blocked.
	WhileBlocked OptOutWhile = "Blocked"
	// WhileHalted means that its rollout was halted by the operator.
	WhileHalted OptOutWhile = "Halted"
	// WhileHeld means that its rollout was held.
	WhileHeld OptOutWhile = "Held"
	// WhileQuarantined means that versions of it were in quarantine.
	WhileQuarantined OptOutWhile = "Quarantined"
)

// Correction is a failing verdict that was changed to one that passes.
type Correction struct {
	// Pod whose verdict was changed; empty for a check of the order.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`
	// FieldManager is the field manager that wrote the status last before, as
	// managedFields has it: who may be behind it, not proof of who was. Empty when
	// it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	FieldManager string `json:"fieldManager,omitempty"`
	// TimeUnix is when the release was found to fail no more, as Unix time in seconds.
	TimeUnix int64 `json:"timeUnix"`
}

// PreviousRelease is what is kept of an earlier release of the workload, whose
// ChangeWorkload may be gone.
type PreviousRelease struct {
	// Release is its number.
	Release int64 `json:"release"`
	// Version is the version of its pod template.
	// +kubebuilder:validation:MaxLength=32
	Version string `json:"version"`
	// Status is how it ended, or the state it was in last.
	// +optional
	Status ChangeWorkloadStatusType `json:"status,omitempty"`
	// StartTimeUnix is when it began, as Unix time in seconds.
	// +optional
	StartTimeUnix int64 `json:"startTimeUnix,omitempty"`
	// UpdateTimeUnix is when it came to Status, as Unix time in seconds.
	// +optional
	UpdateTimeUnix int64 `json:"updateTimeUnix,omitempty"`
	// FailedPod is the first of its pods that failed.
	// +optional
	FailedPod *PodResult `json:"failedPod,omitempty"`
	// Message says why it failed or was rolled back.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`

	ReleaseEvidence `json:",inline"`
}

// FoldedBatches is the record of the batches of an attempt that were removed, because none
// of their pods exists.
type FoldedBatches struct {
	// Numbers are their numbers, as in 1-57,59, and the numbers of removed batches of
	// earlier attempts. At most 200 ranges: the lowest make room for higher ones.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Numbers string `json:"numbers,omitempty"`
	// NumbersFrom is the lowest number that Numbers is complete from. Of lower numbers,
	// each batch that does not exist was removed. Absent where Numbers lists all.
	// +optional
	NumbersFrom int32 `json:"numbersFrom,omitempty"`
	// PassCount is how many pods passed in them; status.passCount contains it.
	// +optional
	PassCount int32 `json:"passCount,omitempty"`
	// UnverifiedCount is how many of them passed without a verdict of AlterShield
	// Server; status.unverifiedCount contains it.
	// +optional
	UnverifiedCount int32 `json:"unverifiedCount,omitempty"`
	// FailCount is the number of their pods that failed; status.failCount contains it. They
	// count as passed once every failed batch that still exists was corrected.
	// +optional
	FailCount int32 `json:"failCount,omitempty"`
	// Removing are those that may still be there.
	// +optional
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	Removing []FoldedBatch `json:"removing,omitempty"`
	// Nodes are the last 200 of their order entries. Verdicts on them are
	// recorded only.
	// +optional
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	Nodes []FoldedEntry `json:"nodes,omitempty"`
}

// FoldedBatch is a batch whose counts are kept already, and that is removed.
type FoldedBatch struct {
	// Number is the number of the batch.
	Number int32 `json:"number"`
	// UID is the UID of its ChangePod.
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
	// UnverifiedCount is the number of its pods in unverifiedCount of the folded batches;
	// absent for none.
	// +optional
	UnverifiedCount int32 `json:"unverifiedCount,omitempty"`
	// Failed says that pods of it failed.
	// +optional
	Failed bool `json:"failed,omitempty"`
}

// FoldedEntry is the order entry of a batch that was removed.
type FoldedEntry struct {
	// ID is the server's id of the order entry.
	// +kubebuilder:validation:MaxLength=256
	ID string `json:"id"`
	// Verdict is one that came later and did not pass; nothing depends on it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Verdict string `json:"verdict,omitempty"`
}

// ChangeWorkloadStatus is what is known of the release. Lists are bounded to
// 100 pods each, failures are kept first; the counts are always complete.
type ChangeWorkloadStatus struct {
	// Status is the state of the release. Empty is Init: just created, or its
	// order is not accepted yet.
	// Running: pods are verified as they finish.
	// TimeOutPreThreshold: no pod finished in time; the next one is verified at
	// once.
	// Success: the rollout is complete, and every pod and the order passed.
	// Suspend: a pod or the order failed; the workload is blocked, unless the
	// setting blocking is off.
	// Failed: the server refused the order; the version is not verified.
	// Rollback: the workload was set back to another version.
	// Canceled: a newer release replaced it before it ended, or the workload
	// was deleted or left the defense.
	// +optional
	Status ChangeWorkloadStatusType `json:"status,omitempty"`
	// DecidedTimeUnix is when the operator last decided on the release and wrote it down, as
	// Unix time in seconds. No replica decides by an earlier time.
	// +optional
	DecidedTimeUnix int64 `json:"decidedTimeUnix,omitempty"`
	// UpdateTime is when Status last changed, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	UpdateTime string `json:"updateTime,omitempty"`
	// UpdateTimeUnix is UpdateTime as Unix time in seconds.
	// +optional
	UpdateTimeUnix int64 `json:"updateTimeUnix,omitempty"`
	// SuccessTimeUnix is when the attempt first succeeded, as Unix time in seconds, also
	// once it is suspended. Absent where it never did; in a record of an older build, which
	// is a success, UpdateTimeUnix says it.
	// +optional
	SuccessTimeUnix int64 `json:"successTimeUnix,omitempty"`
	// StartTime is when the attempt started, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	StartTime string `json:"startTime,omitempty"`
	// StartTimeUnix is StartTime as Unix time in seconds.
	// +optional
	StartTimeUnix int64 `json:"startTimeUnix,omitempty"`
	// EntryTime is when the attempt started or, later, when its last batch
	// was made, as 2006-01-02 15:04:05. The wait threshold counts from it.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	EntryTime string `json:"entryTime,omitempty"`
	// EntryTimeUnix is EntryTime as Unix time in seconds.
	// +optional
	EntryTimeUnix int64 `json:"entryTimeUnix,omitempty"`
	// DefensePreparingPods are finished pods that are in no batch yet.
	// +optional
	// +listType=atomic
	DefensePreparingPods []PodResult `json:"defensePreparingPods,omitempty"`
	// DefenseCheckingPods are pods whose batch is being verified.
	// +optional
	// +listType=atomic
	DefenseCheckingPods []PodResult `json:"defenseCheckingPods,omitempty"`
	// DefenseCheckPassPods are pods that passed.
	// +optional
	// +listType=atomic
	DefenseCheckPassPods []PodResult `json:"defenseCheckPassPods,omitempty"`
	// DefenseCheckFailPods are pods that failed, with verdict and message.
	// +optional
	// +listType=atomic
	DefenseCheckFailPods []PodResult `json:"defenseCheckFailPods,omitempty"`
	// PreparingCount is the number of finished pods in no batch.
	// +optional
	PreparingCount int32 `json:"preparingCount,omitempty"`
	// CheckingCount is the number of pods in batches not yet done.
	// +optional
	CheckingCount int32 `json:"checkingCount,omitempty"`
	// PassCount is the number of pods that passed.
	// +optional
	PassCount int32 `json:"passCount,omitempty"`
	// UnverifiedCount is how many of the pods that passed did so without a verdict of
	// AlterShield Server, because it did not answer in time.
	// +optional
	UnverifiedCount int32 `json:"unverifiedCount,omitempty"`
	// FailCount is the number of pods that failed.
	// +optional
	FailCount int32 `json:"failCount,omitempty"`
	// Batches is the number of the last batch made for this object; numbers
	// go on from attempt to attempt.
	// +optional
	Batches int32 `json:"batches,omitempty"`
	// Folded is what is kept of batches that were removed. Without it none was.
	// +optional
	Folded *FoldedBatches `json:"folded,omitempty"`
	// Attempt counts the releases of this version, from 1. Results of earlier
	// attempts do not count.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`
	// ObservedRelease is the spec.release of the current attempt.
	// +optional
	ObservedRelease int64 `json:"observedRelease,omitempty"`
	// BlockAtStart is the value of the label suspend of the workload when the
	// attempt began; not set where the workload was not blocked. Success lifts that
	// block, and none that a user set later.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	BlockAtStart *string `json:"blockAtStart,omitempty"`
	// What is kept of the attempt. Not set on releases that an earlier build began.
	ReleaseEvidence `json:",inline"`
	// PreviousReleases are the last ten releases of the workload before this one, the
	// newest first.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +listType=atomic
	PreviousReleases []PreviousRelease `json:"previousReleases,omitempty"`
	// What is known of the order on AlterShield Server.
	OrderStatus `json:",inline"`
	// UnclaimedVerdicts are verdicts on entries of this order that are not known,
	// or not yet, at most 50; those that pass make room for others. One that
	// fails suspends the release when its entry never becomes known.
	// +optional
	// +kubebuilder:validation:MaxItems=50
	// +listType=atomic
	UnclaimedVerdicts []UnclaimedVerdict `json:"unclaimedVerdicts,omitempty"`
	// Checks are the checks of the release as a whole, one for each verifier.
	// Those of its pods are on its ChangePods.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Checks []CheckStatus `json:"checks,omitempty"`
	// Hold is what a hold of the rollout changed of the workload, as it was last known
	// to go on. It is given back from here where the annotation of it is lost.
	// +optional
	Hold *HoldRecord `json:"hold,omitempty"`
	// ObservedGeneration is the metadata.generation this status was computed
	// from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// DeniedWrite is the write of the operator for the release that is denied. Absent while none is.
	// +optional
	DeniedWrite *DeniedWrite `json:"deniedWrite,omitempty"`
	// Conditions explain the state: Progressing, Verified, Held, Blocked, RolledBack, PodsUnavailable,
	// EvictionBlocked, Proven, Server and Defended.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DeniedWrite is a write of the operator that a policy, a quota or a missing right denies.
type DeniedWrite struct {
	// Write that is denied: Block, Lift, Resume, Pace, Batch, Rollback, Request or Record.
	// +kubebuilder:validation:MaxLength=32
	Write string `json:"write"`
	// Message of the denial.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// HoldRecord is what a hold changed of a workload.
type HoldRecord struct {
	// MinReadySeconds of the user.
	MinReadySeconds int32 `json:"minReadySeconds"`
	// ProgressDeadlineSeconds of the user.
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds"`
	// SetProgressDeadlineSeconds is what the hold made of it, by which it is known
	// again.
	SetProgressDeadlineSeconds int32 `json:"setProgressDeadlineSeconds"`
	// Partition of the user, of a StatefulSet, whose other values are 0 here.
	// +optional
	Partition *int32 `json:"partition,omitempty"`
	// SetPartition is what the hold made of it.
	// +optional
	SetPartition *int32 `json:"setPartition,omitempty"`
}

// ChangeWorkload is the record of one release: one version of the pod template
// of one workload, and what the verification of its pods said.
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
// +kubebuilder:printcolumn:name="ATTEMPT",type=integer,priority=1,JSONPath=`.status.attempt`,description="How often this version has been released"
// +kubebuilder:printcolumn:name="ORDERSTAGE",type=string,priority=1,JSONPath=`.status.orderStage`,description="How far the order has come on AlterShield Server"
// +kubebuilder:printcolumn:name="PROGRESSING",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Progressing")].reason`,description="How far the rollout has come, or what holds it up"
// +kubebuilder:printcolumn:name="VERIFIED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Verified")].reason`,description="What the verification says"
// +kubebuilder:printcolumn:name="HELD",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Held")].reason`,description="Whether the rollout waits for verdicts, or why it went on"
type ChangeWorkload struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec says what is released and how it is verified.
	Spec ChangeWorkloadSpec `json:"spec,omitempty"`
	// Status is what is known of the release.
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
