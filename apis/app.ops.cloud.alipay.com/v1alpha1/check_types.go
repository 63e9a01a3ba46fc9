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

// CheckPhase is how far a check has come.
// +kubebuilder:validation:Enum=Pending;Running;Watching;Passed;Failed;Error;NoData;Inconclusive;Skipped;Canceled
type CheckPhase string

const (
	// CheckPending means the check has not begun.
	CheckPending CheckPhase = "Pending"
	// CheckRunning means the check is under way.
	CheckRunning CheckPhase = "Running"
	// CheckWatching means the check has said all that the release waits for, and
	// goes on looking.
	CheckWatching CheckPhase = "Watching"
	// CheckPassed means measured, and good.
	CheckPassed CheckPhase = "Passed"
	// CheckFailed means measured, and bad: the batch or the release fails.
	CheckFailed CheckPhase = "Failed"
	// CheckError means that it could not be measured until the deadline.
	CheckError CheckPhase = "Error"
	// CheckNoData means that it was asked for, and nothing was there.
	CheckNoData CheckPhase = "NoData"
	// CheckInconclusive means that the data shows neither success nor failure.
	CheckInconclusive CheckPhase = "Inconclusive"
	// CheckSkipped means that there was nothing to check.
	CheckSkipped CheckPhase = "Skipped"
	// CheckCanceled means that the check was given up, because the release ended
	// or another check failed first.
	CheckCanceled CheckPhase = "Canceled"
)

// CheckStatus is the state of one check of a batch or of a release.
type CheckStatus struct {
	// Name of the check: namespace/policy/check for one of a DefensePolicy,
	// altershield for AlterShield Server.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Type of the check of a policy.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Type string `json:"type,omitempty"`
	// Stage of the release at which the check of a policy began; absent for
	// BatchPost.
	// +optional
	Stage PolicyStage `json:"stage,omitempty"`
	// Mode of the check when it was last looked at; absent for the server's.
	// +optional
	Mode PolicyMode `json:"mode,omitempty"`
	// Generation of the policy that the check last went by.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Background: nothing waits for the check.
	// +optional
	Background bool `json:"background,omitempty"`
	// Phase is how far the check has come. Watching, past DueTime, means that it
	// passed: that is not written.
	// +optional
	Phase CheckPhase `json:"phase,omitempty"`
	// StartTime is when the check began; it is written before it is made.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// DueTime is when it looks again.
	// +optional
	DueTime *metav1.Time `json:"dueTime,omitempty"`
	// Deadline is when it gives up.
	// +optional
	Deadline *metav1.Time `json:"deadline,omitempty"`
	// CompletionTime is when it ended.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// Reason is the phase in one word, more precisely.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason,omitempty"`
	// Message explains the phase.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Value is what was measured, of the first pod that failed.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Value string `json:"value,omitempty"`
	// OnSilence is what a phase without a verdict means for the pods, Pass or
	// Fail; absent for what the setting silence says.
	// +optional
	OnSilence OnSilence `json:"onSilence,omitempty"`
	// PodsAtStart are how pods were when the check began, where it counts from
	// there. A pod that is not named was Ready, and had not been restarted.
	// +optional
	// +kubebuilder:validation:MaxItems=200
	// +listType=atomic
	PodsAtStart []PodAtStart `json:"podsAtStart,omitempty"`
	// FailedCount is how many pods it failed, of which FailedPods names the first.
	// +optional
	FailedCount int32 `json:"failedCount,omitempty"`
	// FailedPods are the names of the pods that it failed, at most 20; empty
	// where it failed all of them. Of a check that goes on they are those that
	// fail, and are tolerated.
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	FailedPods []string `json:"failedPods,omitempty"`
}

// PodAtStart is how a pod was when a check of it began.
type PodAtStart struct {
	// Pod is its name.
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod"`
	// RestartsAtStart is how often its containers had been restarted by then, and
	// with their node since.
	// +optional
	RestartsAtStart int32 `json:"restartsAtStart,omitempty"`
	// ReadinessLosses is how often it ceased to be Ready since.
	// +optional
	ReadinessLosses int32 `json:"readinessLosses,omitempty"`
	// LostTime is when it last did.
	// +optional
	LostTime *metav1.Time `json:"lostTime,omitempty"`
}
