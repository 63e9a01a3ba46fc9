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
	// StagePre is the check before an entry's change counts.
	StagePre CheckStage = "PRE"
	// StagePost is the check after it.
	StagePost CheckStage = "POST"
)

// CheckVerdict is the verdict on one check of one order entry, as AlterShield Server
// delivered it.
type CheckVerdict struct {
	// NodeID is the server's id of the order entry.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	NodeID string `json:"nodeId,omitempty"`
	// Verdict that counts: none and pass are passes, inconc and fail are not.
	// It is the server's, until somebody corrects it.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Verdict string `json:"verdict,omitempty"`
	// Delivered is the verdict as the server delivered it; empty where the
	// operator says that none came in time.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Delivered string `json:"delivered,omitempty"`
	// Message is what the server says of it: its message and link, else the
	// names and messages of the rules that failed.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Message string `json:"message,omitempty"`
	// LatePre: it is the failure of the PRE check, which the server had let pass at
	// its own timeout, and delivered as that of the POST check.
	// +optional
	LatePre bool `json:"latePre,omitempty"`
	// Time is when it was received, as 2006-01-02 15:04:05 in the time zone of
	// the operator.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Time string `json:"time,omitempty"`
	// TimeUnix is Time as Unix time in seconds.
	// +optional
	TimeUnix int64 `json:"timeUnix,omitempty"`
}

// UnclaimedVerdict is a verdict on an order entry that is not known yet: its callback
// was faster than the answer to the submission that caused it.
type UnclaimedVerdict struct {
	CheckVerdict `json:",inline"`
	// Stage is the check the verdict is on.
	Stage CheckStage `json:"stage"`
	// OfOrder: the entry is one of the order itself, not of a batch.
	// +optional
	OfOrder bool `json:"ofOrder,omitempty"`
	// Orphaned: no start was under way that made the entry, so it is no batch's. The verdict
	// fails the release.
	// +optional
	Orphaned bool `json:"orphaned,omitempty"`
}
