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
	// ChangePodInit means that the batch is new.
	ChangePodInit ChangePodStatusType = ""
	// ChangePodPreWait means that the server has not accepted the start of the PRE
	// check yet.
	ChangePodPreWait ChangePodStatusType = "PreWait"
	// ChangePodPreSubmitted means that the PRE check runs on the server.
	ChangePodPreSubmitted ChangePodStatusType = "PreSubmitted"
	// ChangePodPreFailed means that the server did not accept the PRE check.
	ChangePodPreFailed ChangePodStatusType = "PreFailed"
	// ChangePodPreTimeout means that no PRE verdict came in time.
	ChangePodPreTimeout ChangePodStatusType = "PreTimeout"
	// ChangePodPostWait means that the server has not accepted the POST check yet.
	ChangePodPostWait ChangePodStatusType = "PostWait"
	// ChangePodPostSubmitted means that the POST check runs on the server, or is
	// being submitted.
	ChangePodPostSubmitted ChangePodStatusType = "PostSubmitted"
	// ChangePodPostFailed means that the server did not accept the POST check.
	ChangePodPostFailed ChangePodStatusType = "PostFailed"
	// ChangePodPostTimeout means that no POST verdict came in time.
	ChangePodPostTimeout ChangePodStatusType = "PostTimeout"
	// ChangePodPostFinish means that a verdict arrived.
	ChangePodPostFinish ChangePodStatusType = "PostFinish"
	// ChangePodExecuteDone means that the batch is done. The message says how it
	// ended.
	ChangePodExecuteDone ChangePodStatusType = "ExecuteDone"
)

// Messages of a batch that is done, in addition to the names of the states it
// may end from (PostFinish, PreFailed, PreTimeout, PostFailed, PostTimeout).
const (
	// ChangePodMessagePostFinish means that a verdict arrived.
	ChangePodMessagePostFinish = "PostFinish"
	// ChangePodMessageSkipped means that there was nothing to check, or that no
	// server is configured.
	ChangePodMessageSkipped = "Skipped"
)

// ChangePodSpec is one batch of pods of one attempt. The operator writes it
// once, and it never changes.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a batch cannot change: its verdicts are about these pods"
type ChangePodSpec struct {
	// Name of the ChangeWorkload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ChangeWorkloadID string `json:"changeWorkloadId"`
	// Workload of the pods; if absent, the workload of the ChangeWorkload.
	// +optional
	WorkloadRef *WorkloadReference `json:"workloadRef,omitempty"`
	// Pods of the batch. A pod is in only one batch of an attempt.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	PodInfos []PodInfo `json:"podInfos"`
	// Creation of the batch, as 2006-01-02 15:04:05 in the time zone of the
	// operator.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	CreateTime string `json:"createTime,omitempty"`
	// createTime in Unix seconds.
	// +optional
	CreateTimeUnix int64 `json:"createTimeUnix,omitempty"`
	// Number of the attempt of the ChangeWorkload.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Attempt int32 `json:"attempt,omitempty"`
	// Number of the workload's release.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Release int64 `json:"release,omitempty"`
	// Number of batches that the release was expected to have. The server is
	// notified of it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TotalBatches int32 `json:"totalBatches,omitempty"`
	// Whether each desired pod of the workload was in this batch or an earlier
	// one.
	// +optional
	Last bool `json:"last,omitempty"`
}

// ChangePodStatus is the state of the batch, with the verdicts on its pods.
type ChangePodStatus struct {
	// State of the batch; empty means Init.
	// +optional
	Status ChangePodStatusType `json:"status,omitempty"`
	// End of the batch: PostFinish, Skipped, PreFailed, PreTimeout, PostFailed or
	// PostTimeout.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Verdicts on pods of the batch. Any client may write them once the batch is
	// done, and the ChangeWorkload follows. A pod without a result passes. Of
	// several results for a pod, a failing one counts. Results for other pods do
	// not count.
	// +optional
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	PodResults []PodResult `json:"podResults,omitempty"`
	// ID of the order entry on the server.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ChangePodID string `json:"changePodId,omitempty"`
	// Address of the batch on the server.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url,omitempty"`
	// Submission of the PRE check, as 2006-01-02 15:04:05; in PreWait the first
	// attempt to submit it.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	PreSubmitTime string `json:"preSubmitTime,omitempty"`
	// preSubmitTime in Unix seconds.
	// +optional
	PreSubmitTimeUnix int64 `json:"preSubmitTimeUnix,omitempty"`
	// Submission of the POST check, as 2006-01-02 15:04:05; in PostWait the first
	// attempt to submit it.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	PostSubmitTime string `json:"postSubmitTime,omitempty"`
	// postSubmitTime in Unix seconds.
	// +optional
	PostSubmitTimeUnix int64 `json:"postSubmitTimeUnix,omitempty"`
	// Longest wait for the PRE verdict, in seconds.
	// +optional
	PreTimeoutThreshold int64 `json:"preTimeoutThreshold,omitempty"`
	// Longest wait for the POST verdict, in seconds.
	// +optional
	PostTimeOutThreshold int64 `json:"postTimeOutThreshold,omitempty"`
	// ID that the operator gave to the order of the batch.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	OrderID string `json:"orderId,omitempty"`
	// Verdict of the server on the PRE check.
	// +optional
	PreVerdict *CheckVerdict `json:"preVerdict,omitempty"`
	// Verdict of the server on the POST check.
	// +optional
	PostVerdict *CheckVerdict `json:"postVerdict,omitempty"`
	// Unix seconds since when the server must be notified that the batch ended
	// without success, or without a turn of its POST check. Absent if there is
	// nothing to notify it of.
	// +optional
	EndDueTimeUnix int64 `json:"endDueTimeUnix,omitempty"`
	// Last change of this status by the operator, as 2006-01-02 15:04:05.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	UpdateTime string `json:"updateTime,omitempty"`
	// updateTime in Unix seconds.
	// +optional
	UpdateTimeUnix int64 `json:"updateTimeUnix,omitempty"`
	// Checks of the batch, one for each verifier. The batch is done when all of
	// them are done.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Checks []CheckStatus `json:"checks,omitempty"`
	// Checked reports how the batch was checked, and Submitted why it is not
	// submitted yet.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ChangePod is one batch of pods of a release, with the verdicts on them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=changepods,singular=changepod,scope=Namespaced,shortName=cpd,categories=altershield
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.status`,description="State of the batch; empty is Init"
// +kubebuilder:printcolumn:name="MESSAGE",type=string,JSONPath=`.status.message`,description="How the batch ended"
// +kubebuilder:printcolumn:name="CREATETIME",type=string,JSONPath=`.spec.createTime`,description="Creation of the batch"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="KIND",type=string,priority=1,JSONPath=`.spec.workloadRef.kind`,description="Kind of the workload; empty is Deployment"
// +kubebuilder:printcolumn:name="WORKLOAD",type=string,priority=1,JSONPath=`.spec.workloadRef.name`,description="Name of the workload"
// +kubebuilder:printcolumn:name="ATTEMPT",type=integer,priority=1,JSONPath=`.spec.attempt`,description="Attempt of the release that has this batch"
// +kubebuilder:printcolumn:name="CHECKED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Checked")].reason`,description="Result of the checks by AlterShield Server"
// +kubebuilder:printcolumn:name="FAILED",type=string,priority=1,JSONPath=`.status.checks[?(@.phase=="Failed")].name`,description="Checks that failed"
type ChangePod struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Pods of the batch.
	Spec ChangePodSpec `json:"spec,omitempty"`
	// State of the batch, with the verdicts.
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
