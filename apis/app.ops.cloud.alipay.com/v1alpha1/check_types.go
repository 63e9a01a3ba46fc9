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
	// Name of the check: the name of the verifier, altershield for AlterShield
	// Server.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Phase is how far the check has come.
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
	// FailedPods are the names of the pods that it failed, at most 20; empty
	// where it failed all of them.
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=atomic
	FailedPods []string `json:"failedPods,omitempty"`
}
