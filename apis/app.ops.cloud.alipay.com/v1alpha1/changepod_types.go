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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChangePodStatusType is the state of a batch.
// +kubebuilder:validation:Enum="";PreWait;PreSubmitted;PreFailed;PreTimeout;PostWait;PostSubmitted;PostFailed;PostTimeout;PostFinish;ExecuteDone
type ChangePodStatusType string

const (
	// ChangePodInit means created; the operator will submit the batch.
	ChangePodInit ChangePodStatusType = ""
	// ChangePodPreWait means the batch waits to be submitted for its PRE check.
	ChangePodPreWait ChangePodStatusType = "PreWait"
	// ChangePodPreSubmitted means the PRE check runs on the server.
	ChangePodPreSubmitted ChangePodStatusType = "PreSubmitted"
	// ChangePodPreFailed means the PRE check could not be submitted.
	ChangePodPreFailed ChangePodStatusType = "PreFailed"
	// ChangePodPreTimeout means no PRE verdict came in time.
	ChangePodPreTimeout ChangePodStatusType = "PreTimeout"
	// ChangePodPostWait means the batch waits to be submitted for its POST check.
	ChangePodPostWait ChangePodStatusType = "PostWait"
	// ChangePodPostSubmitted means the PRE check passed, and the POST check runs
	// on the server, or is being submitted.
	ChangePodPostSubmitted ChangePodStatusType = "PostSubmitted"
	// ChangePodPostFailed means the POST check could not be submitted.
	ChangePodPostFailed ChangePodStatusType = "PostFailed"
	// ChangePodPostTimeout means no POST verdict came in time.
	ChangePodPostTimeout ChangePodStatusType = "PostTimeout"
	// ChangePodPostFinish means the verdict has arrived.
	ChangePodPostFinish ChangePodStatusType = "PostFinish"
	// ChangePodExecuteDone means the batch is done; status.message says how.
	ChangePodExecuteDone ChangePodStatusType = "ExecuteDone"
)

// Messages of a batch that is done, in addition to the names of the states it
// may end from (PostFinish, PreFailed, PreTimeout, PostFailed, PostTimeout).
const (
	// ChangePodMessagePostFinish means a verdict arrived.
	ChangePodMessagePostFinish = "PostFinish"
	// ChangePodMessageSkipped means there was nothing to check, or no server is
	// configured.
	ChangePodMessageSkipped = "Skipped"
)

// ChangePodSpec is one batch of pods of one attempt. The operator writes it
// once.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a batch cannot change: its verdicts are about these pods"
type ChangePodSpec struct {
	// ChangeWorkloadID is the name of the ChangeWorkload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ChangeWorkloadID string `json:"changeWorkloadId"`
	// WorkloadRef names the workload the pods are of. Without it, as on objects of
	// earlier builds, it is that of the ChangeWorkload.
	// +optional
	WorkloadRef *WorkloadReference `json:"workloadRef,omitempty"`
	// PodInfos are the pods of the batch. A pod is in exactly one batch of an
	// attempt.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	PodInfos []PodInfo `json:"podInfos"`
	// CreateTime is when the batch was made, as 2006-01-02 15:04:05 in the
	// time zone of the operator.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	CreateTime string `json:"createTime,omitempty"`
	// CreateTimeUnix is CreateTime as Unix time in seconds.
	// +optional
	CreateTimeUnix int64 `json:"createTimeUnix,omitempty"`
	// Attempt is the attempt of the release this batch counts for.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Attempt int32 `json:"attempt,omitempty"`
	// Release is the number of the workload's release that attempt is of.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Release int64 `json:"release,omitempty"`
	// TotalBatches is how many batches the release was expected to have when
	// this one was made. The server is notified of it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TotalBatches int32 `json:"totalBatches,omitempty"`
	// Last: with this batch every pod the workload was to have was in one.
	// +optional
	Last bool `json:"last,omitempty"`
}

// ChangePodStatus is the state of the batch and the verdicts on its pods.
type ChangePodStatus struct {
	// Status is the state of the batch. Empty is Init: just created.
	// PreWait: its PRE check is to be submitted.
	// PreSubmitted: its PRE check runs.
	// PostWait: its PRE check is over; its POST check could not be submitted
	// yet.
	// PostSubmitted: its PRE check passed; its POST check runs, or is being
	// submitted.
	// ExecuteDone: it is done; Message says how. The other values are not
	// stored: the batch becomes ExecuteDone with that message at once.
	// +optional
	Status ChangePodStatusType `json:"status,omitempty"`
	// Message keeps how the batch ended.
	// PostFinish: a verdict arrived, whatever it says; see PodResults.
	// Skipped: there was nothing to check, no server, or the release ended
	// first.
	// PreFailed, PostFailed: the check could not be submitted, or was refused.
	// PreTimeout, PostTimeout: no verdict came in time.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// PodResults are the verdicts on the pods of the batch. Any client may
	// write them once the batch is done; the ChangeWorkload follows. Results
	// of pods that are not in the batch do not count; a pod without a result
	// passes.
	// +optional
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	PodResults []PodResult `json:"podResults,omitempty"`
	// ChangePodID is the server's id of the order entry of the batch.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ChangePodID string `json:"changePodId,omitempty"`
	// URL shows the batch on the server.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`
	// PreSubmitTime is when the PRE check was submitted or, in PreWait, first
	// tried to be, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	PreSubmitTime string `json:"preSubmitTime,omitempty"`
	// PreSubmitTimeUnix is PreSubmitTime as Unix time in seconds.
	// +optional
	PreSubmitTimeUnix int64 `json:"preSubmitTimeUnix,omitempty"`
	// PostSubmitTime is when the POST check was submitted or, in PostWait,
	// first tried to be, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	PostSubmitTime string `json:"postSubmitTime,omitempty"`
	// PostSubmitTimeUnix is PostSubmitTime as Unix time in seconds.
	// +optional
	PostSubmitTimeUnix int64 `json:"postSubmitTimeUnix,omitempty"`
	// PreTimeoutThreshold is how long a PRE verdict is waited for, in seconds.
	// +optional
	PreTimeoutThreshold int64 `json:"preTimeoutThreshold,omitempty"`
	// PostTimeOutThreshold is how long a POST verdict is waited for, in
	// seconds.
	// +optional
	PostTimeOutThreshold int64 `json:"postTimeOutThreshold,omitempty"`
	// OrderID is our id of the order the batch was started under.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderID string `json:"orderId,omitempty"`
	// PreVerdict is the verdict on the PRE check that the server delivered.
	// +optional
	PreVerdict *CheckVerdict `json:"preVerdict,omitempty"`
	// PostVerdict is the verdict on the POST check that the server delivered.
	// +optional
	PostVerdict *CheckVerdict `json:"postVerdict,omitempty"`
	// EndDueTimeUnix is the time since when the server has to be notified of the
	// end of a batch that is done, as Unix time in seconds: it ended without success,
	// or its POST check had no turn. Empty when there is nothing to notify it of.
	// +optional
	EndDueTimeUnix int64 `json:"endDueTimeUnix,omitempty"`
	// UpdateTime is when the operator last changed this status, as
	// 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	UpdateTime string `json:"updateTime,omitempty"`
	// UpdateTimeUnix is UpdateTime as Unix time in seconds.
	// +optional
	UpdateTimeUnix int64 `json:"updateTimeUnix,omitempty"`
	// Checks are the checks of the batch, one for each verifier; the batch is done
	// when all of them are.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Checks []CheckStatus `json:"checks,omitempty"`
	// Conditions: Checked says how the batch was checked, Submitted why it is
	// not submitted yet.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ChangePod is one batch of pods of a release, and the verdicts on them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=changepods,singular=changepod,scope=Namespaced,shortName=cpd,categories=altershield
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.status`,description="State of the batch; empty is Init"
// +kubebuilder:printcolumn:name="MESSAGE",type=string,JSONPath=`.status.message`,description="How the batch ended"
// +kubebuilder:printcolumn:name="CREATETIME",type=string,JSONPath=`.spec.createTime`,description="When the batch was made"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="KIND",type=string,priority=1,JSONPath=`.spec.workloadRef.kind`,description="Kind of the workload; empty is Deployment"
// +kubebuilder:printcolumn:name="WORKLOAD",type=string,priority=1,JSONPath=`.spec.workloadRef.name`,description="Name of the workload"
// +kubebuilder:printcolumn:name="ATTEMPT",type=integer,priority=1,JSONPath=`.spec.attempt`,description="Attempt of the release this batch counts for"
// +kubebuilder:printcolumn:name="CHECKED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Checked")].reason`,description="How the batch was checked by AlterShield Server"
// +kubebuilder:printcolumn:name="FAILED",type=string,priority=1,JSONPath=`.status.checks[?(@.phase=="Failed")].name`,description="Checks that failed"
type ChangePod struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the batch.
	Spec ChangePodSpec `json:"spec,omitempty"`
	// Status is the state of the batch and the verdicts on its pods.
	Status ChangePodStatus `json:"status,omitempty"`
}

// ChangePodList is a list of ChangePods.
//
// +kubebuilder:object:root=true
type ChangePodList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ChangePod `json:"items"`
}
