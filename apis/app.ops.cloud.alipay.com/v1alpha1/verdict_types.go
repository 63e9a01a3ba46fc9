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

// CheckStage is one of the two checks of an order entry of AlterShield Server.
// +kubebuilder:validation:Enum=PRE;POST
type CheckStage string

const (
	// StagePre is the check before the change of the entry counts.
	StagePre CheckStage = "PRE"
	// StagePost is the check after the change of the entry.
	StagePost CheckStage = "POST"
)

// CheckVerdict is the verdict of AlterShield Server on one check of one order
// entry.
type CheckVerdict struct {
	// ID of the order entry on the server.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	NodeID string `json:"nodeId,omitempty"`
	// Verdict that counts: none and pass are passes, inconc and fail are failures.
	// A user may correct it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Verdict string `json:"verdict,omitempty"`
	// Verdict as the server delivered it; empty if the operator recorded that none
	// came in time.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Delivered string `json:"delivered,omitempty"`
	// Message and link of the server, else names and messages of the rules that
	// failed.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
	// Whether this is a failure of the PRE check that the server delivered as the
	// POST verdict, after it had let the PRE check pass at its own timeout.
	// +optional
	LatePre bool `json:"latePre,omitempty"`
	// Receipt of the verdict, as 2006-01-02 15:04:05 in the time zone of the
	// operator.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Time string `json:"time,omitempty"`
	// time in Unix seconds.
	// +optional
	TimeUnix int64 `json:"timeUnix,omitempty"`
}

// UnclaimedVerdict is a verdict on an order entry that is not known yet: its
// callback came before the answer to the submission.
type UnclaimedVerdict struct {
	CheckVerdict `json:",inline"`
	// Check that the verdict is on.
	Stage CheckStage `json:"stage"`
	// Whether the entry belongs to the order itself and not to a batch.
	// +optional
	OfOrder bool `json:"ofOrder,omitempty"`
	// Whether no pending start of a batch made the entry. The verdict then fails
	// the release.
	// +optional
	Orphaned bool `json:"orphaned,omitempty"`
}
