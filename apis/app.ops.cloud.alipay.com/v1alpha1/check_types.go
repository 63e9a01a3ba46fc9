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

// CheckPhase is the progress of a check.
// +kubebuilder:validation:Enum=Pending;Running;Watching;Passed;Failed;Error;NoData;Inconclusive;Skipped;Canceled
type CheckPhase string

const (
	// CheckPending means that the check has not begun.
	CheckPending CheckPhase = "Pending"
	// CheckRunning means that the check has begun.
	CheckRunning CheckPhase = "Running"
	// CheckWatching means that the release no longer waits for the check, and that
	// the check continues.
	CheckWatching CheckPhase = "Watching"
	// CheckPassed means that the check passed.
	CheckPassed CheckPhase = "Passed"
	// CheckFailed means that the check failed. The batch or the release fails.
	CheckFailed CheckPhase = "Failed"
	// CheckError means that nothing could be measured by the deadline.
	CheckError CheckPhase = "Error"
	// CheckNoData means that there was no data.
	CheckNoData CheckPhase = "NoData"
	// CheckInconclusive means that the data shows neither success nor failure.
	CheckInconclusive CheckPhase = "Inconclusive"
	// CheckSkipped means that there was nothing to check.
	CheckSkipped CheckPhase = "Skipped"
	// CheckCanceled means that the check was abandoned, because the release ended
	// or another check failed first.
	CheckCanceled CheckPhase = "Canceled"
)

// CheckStatus is the state of one check of a batch or of a release.
type CheckStatus struct {
	// Policy check as namespace/policy/check, or altershield for AlterShield
	// Server.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Type of a policy check.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Type string `json:"type,omitempty"`
	// Stage at which a policy check began; absent for BatchPost.
	// +optional
	Stage PolicyStage `json:"stage,omitempty"`
	// Mode at the last evaluation; absent for AlterShield Server.
	// +optional
	Mode PolicyMode `json:"mode,omitempty"`
	// Generation of the policy at the last evaluation.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Whether nothing waits for the check.
	// +optional
	Background bool `json:"background,omitempty"`
	// Progress of the check. Watching after dueTime means that the check passed: a
	// pass in the background is not written.
	// +optional
	Phase CheckPhase `json:"phase,omitempty"`
	// Start of the check, written before its first measurement.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// Time of the next evaluation.
	// +optional
	DueTime *metav1.Time `json:"dueTime,omitempty"`
	// Time at which the check gives up.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
	// End of the check.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Reason of the phase, as one word.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason,omitempty"`
	// Explanation of the phase.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Value measured on the first pod that failed, or the last value of a query.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Value string `json:"value,omitempty"`
	// Query as it was last evaluated, with the values of its variables; its first
	// 2048 bytes.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Query string `json:"query,omitempty"`
	// Series of the last result of the query, at most 10, the largest values
	// first: labels and value. Of a check of type alerts, alerts that fire: labels
	// and start.
	// +optional
	// +kubebuilder:validation:MaxItems=10
	// +kubebuilder:validation:items:MaxLength=160
	// +listType=atomic
	Samples []string `json:"samples,omitempty"`
	// ID of the call of a service, written before the call. A repeated call has the
	// same ID.
	// +optional
	// +kubebuilder:validation:MaxLength=320
	CallID string `json:"callId,omitempty"`
	// Job of the check, in the namespace of the workload. Its name is written
	// before it is created.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	JobName string `json:"jobName,omitempty"`
	// Number of evaluations of the query that were answered.
	// +optional
	Measured int32 `json:"measured,omitempty"`
	// Number of answers with data.
	// +optional
	WithData int32 `json:"withData,omitempty"`
	// Number of bad answers in a row.
	// +optional
	ConsecutiveFailures int32 `json:"consecutiveFailures,omitempty"`
	// Effect of a phase without a verdict, Pass or Fail; if absent, the setting
	// silence decides.
	// +optional
	OnSilence OnSilence `json:"onSilence,omitempty"`
	// Pods at the start of a check that counts from there. A pod that is not
	// listed was Ready and had no restarts.
	// +optional
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	PodsAtStart []PodAtStart `json:"podsAtStart,omitempty"`
	// Pods of the previous version that a check of type compare compares with.
	// +optional
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	OldPods []string `json:"oldPods,omitempty"`
	// Number of pods that failed the check.
	// +optional
	FailedCount int32 `json:"failedCount,omitempty"`
	// First 20 pods that failed the check; empty if all pods failed it. While the
	// check runs: pods that fail and are tolerated.
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	FailedPods []string `json:"failedPods,omitempty"`
}

// PodAtStart is the state of a pod at the start of its check.
type PodAtStart struct {
	// Name of the pod.
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// Number of restarts of its containers by then, and with their node since.
	// +optional
	RestartsAtStart int32 `json:"restartsAtStart,omitempty"`
	// Number of times since then that the pod ceased to be Ready.
	// +optional
	ReadinessLosses int32 `json:"readinessLosses,omitempty"`
	// Last time that the pod ceased to be Ready.
	// +optional
	LostTime *metav1.Time `json:"lostTime,omitempty"`
}

// ReleaseBaseline is the list of pods of the previous version at the start of a
// release. Checks of type compare compare values with their time before it.
type ReleaseBaseline struct {
	// Version of the pods: the newest version that succeeded before the release.
	// +kubebuilder:validation:MaxLength=32
	Version string `json:"version"`
	// End of the time before the release, in Unix seconds.
	EndTimeUnix int64 `json:"endTimeUnix"`
	// Pods that were Ready. Of more than 100, the hash of their names decides.
	// +kubebuilder:validation:MaxItems=100
	// +listType=atomic
	Pods []BaselinePod `json:"pods"`
}

// BaselinePod is a pod of the previous version.
type BaselinePod struct {
	// Name of the pod.
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// Time since which the pod was Ready, in Unix seconds. An earlier pod may have
	// had its name.
	ReadyTimeUnix int64 `json:"readyTimeUnix"`
}
