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

// OpsConfigType is the type of a setting.
// +kubebuilder:validation:Enum=isBlockingUp;isBranch;isRollback;isSelfHealing;isHalting;isSilenceFail;isTimeout;isHistory;isAdmissionCheck;isObserve;isQuarantine;isLimit;isHolding;isEviction;isBrake;isRepair
type OpsConfigType string

const (
	// TypeBlocking (blocking) blocks a workload whose release failed.
	TypeBlocking OpsConfigType = "isBlockingUp"
	// TypeBranch (branch) has pods verified in batches.
	TypeBranch OpsConfigType = "isBranch"
	// TypeRollback (rollback) rolls back releases whose pods do not come up.
	TypeRollback OpsConfigType = "isRollback"
	// TypeSelfHealing (selfhealing) rolls back suspended releases.
	TypeSelfHealing OpsConfigType = "isSelfHealing"
	// TypeHalting (halting) pauses a rollout that fails.
	TypeHalting OpsConfigType = "isHalting"
	// TypeSilence (silence) makes a missing verdict a failure.
	TypeSilence OpsConfigType = "isSilenceFail"
	// TypeTimeouts (timeouts) sets thresholds.
	TypeTimeouts OpsConfigType = "isTimeout"
	// TypeHistory (history) keeps successful versions.
	TypeHistory OpsConfigType = "isHistory"
	// TypeAdmission (admission) asks the server at admission.
	TypeAdmission OpsConfigType = "isAdmissionCheck"
	// TypeObserve (observe) only records, verifies and reports releases.
	TypeObserve OpsConfigType = "isObserve"
	// TypeQuarantine (quarantine) denies a version that never started.
	TypeQuarantine OpsConfigType = "isQuarantine"
	// TypeLimit (limit) limits rollbacks without a request.
	TypeLimit OpsConfigType = "isLimit"
	// TypeHolding (holding) makes a rollout wait for its verdicts.
	TypeHolding OpsConfigType = "isHolding"
	// TypeEviction (eviction) evicts stuck pods of StatefulSets after a rollback
	// or a fix.
	TypeEviction OpsConfigType = "isEviction"
	// FormerTypeLimit (brake) is TypeLimit of earlier builds.
	FormerTypeLimit OpsConfigType = "isBrake"
	// FormerTypeEviction (repair) is TypeEviction of earlier builds.
	FormerTypeEviction OpsConfigType = "isRepair"
)

// OpsConfigInfoSpec is one setting. A disabled setting may have any content.
//
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isBranch' || (has(self.content) && self.content.matches('^[1-9][0-9]{0,2}$') && int(self.content) <= 200)",message="content of type isBranch is the number of pods per batch: a whole number from 1 to 200, as in \"10\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isHistory' || (has(self.content) && self.content.matches('^[1-9][0-9]{0,2}$') && int(self.content) <= 100)",message="content of type isHistory is the number of versions kept: a whole number from 1 to 100, as in \"10\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isRollback' || (has(self.content) && self.content.matches('^(([1-9][0-9]{0,5}(s|m|h)){1,3}|((after|slow|proven)=([1-9][0-9]{0,5}(s|m|h)){1,3}|proven=0s?|tolerate=(0|(100|[1-9]?[0-9])%))(,((after|slow|proven)=([1-9][0-9]{0,5}(s|m|h)){1,3}|proven=0s?|tolerate=(0|(100|[1-9]?[0-9])%))){0,3})$') && !self.content.matches('(after=.*after=|slow=.*slow=|tolerate=.*tolerate=|proven=.*proven=)') && (!self.content.contains('proven=') || duration(self.content.split('proven=')[1].split(',')[0]) <= duration('1h')))",message="content of type isRollback is a duration of at least 1s in s, m or h, as in \"2m\", or names thresholds, each once and proven from 0 to 1h, as in \"after=2m,slow=10m,tolerate=10%,proven=5m\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isAdmissionCheck' || (has(self.content) && self.content.matches('^[0-9]{1,9}(ms|s)$') && duration(self.content) >= duration('100ms') && duration(self.content) <= duration('2900ms'))",message="content of type isAdmissionCheck is a duration from 100ms to 2900ms, as in \"2s\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isTimeout' || (has(self.content) && self.content.matches('^((wait|pre|post|settle)=([1-9][0-9]{0,5}(s|m|h)){1,3}|settle=0s?)(,((wait|pre|post|settle)=([1-9][0-9]{0,5}(s|m|h)){1,3}|settle=0s?)){0,3}$') && !self.content.matches('(wait=.*wait=|pre=.*pre=|post=.*post=|settle=.*settle=)'))",message="content of type isTimeout names thresholds of at least 1s, settle also 0, each once, as in \"wait=60s,pre=120s,post=120s,settle=10s\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isQuarantine' || (has(self.content) && self.content.matches('^([1-9][0-9]{0,5}(s|m|h)){1,3}$') && duration(self.content) <= duration('24h'))",message="content of type isQuarantine is a duration from 1s to 24h in s, m or h, as in \"1h\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || !(self.type in ['isLimit', 'isBrake']) || (has(self.content) && self.content.matches('^([1-9][0-9]{0,2}|1000)/([1-9][0-9]{0,5}(s|m|h)){1,3}$') && duration(self.content.split('/')[1]) <= duration('24h'))",message="content of type isLimit is a number of rollbacks from 1 to 1000 and the time in which they are counted, from 1s to 24h, as in \"5/10m\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isHolding' || (has(self.content) && self.content.matches('^(first|every)(,daemonsets)?(,atMost=([1-9][0-9]{0,5}(s|m|h)){1,3})?$') && (!self.content.contains('=') || duration(self.content.split('=')[1]) >= duration('1m') && duration(self.content.split('=')[1]) <= duration('2h')))",message="content of type isHolding is first or every, optionally daemonsets, optionally the longest wait for a pod, from 1m to 2h, as in \"first,daemonsets,atMost=30m\"",fieldPath=".content"
type OpsConfigInfoSpec struct {
	// Type of the setting. The name of the object decides which type it must be:
	// isBlockingUp for blocking, isBranch for branch, isRollback for rollback,
	// isSelfHealing for selfhealing, isHalting for halting, isSilenceFail for
	// silence, isTimeout for timeouts, isHistory for history, isAdmissionCheck for
	// admission, isObserve for observe, isQuarantine for quarantine, isLimit for
	// limit, isHolding for holding, isEviction for eviction. isBrake and isRepair
	// are isLimit and isEviction of earlier builds.
	Type OpsConfigType `json:"type"`
	// Whether the setting is on.
	Enable bool `json:"enable"`
	// Value of the setting, by type. Thresholds that are not named have their
	// defaults.
	// isBranch: number of pods per batch, 1 to 200.
	// isRollback: duration for which pods may fail, as 2m; or thresholds, as
	// after=2m,slow=10m,tolerate=10%,proven=5m.
	// isTimeout: thresholds, as wait=60s,pre=120s,post=120s,settle=10s; settle=0
	// turns it off.
	// isHistory: number of versions, 1 to 100.
	// isAdmissionCheck: longest wait for the answer, 100ms to 2900ms, as 2s.
	// isQuarantine: first duration, 1s to 24h, as 1h.
	// isLimit: number of rollbacks, 1 to 1000, and their time, 1s to 24h, as
	// 5/10m.
	// isHolding: first or every, daemonsets to hold DaemonSets, too, and the
	// longest wait, 1m to 2h, as first,daemonsets,atMost=30m.
	// Other types have no content.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Content string `json:"content,omitempty"`
	// Whether namespaces and workloads cannot have their own value. It counts in
	// the operator's namespace only.
	// +optional
	Locked bool `json:"locked,omitempty"`
	// Free text.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Remark string `json:"remark,omitempty"`
}

// OpsConfigValue is a valid value of a setting.
type OpsConfigValue struct {
	// Whether the setting is on.
	Enable bool `json:"enable"`
	// Value of the setting.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Content string `json:"content,omitempty"`
}

// OpsConfigInfoStatus reports whether the setting is in force.
type OpsConfigInfoStatus struct {
	// Last valid value. It stays in force while spec is invalid.
	// +optional
	InForce *OpsConfigValue `json:"inForce,omitempty"`
	// metadata.generation that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Accepted reports whether spec is in force, else why not.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// OpsConfigInfo is one setting of the operator, named by the object. It takes
// effect without a restart. An object in the operator's namespace counts
// everywhere. An object in an enrolled namespace counts there, unless the
// operator's object is locked. The settings admission and limit are of the
// whole cluster only. In other namespaces objects are ignored and have no
// status.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=opsconfiginfoes,singular=opsconfiginfo,scope=Namespaced,shortName=oci,categories=altershield
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.spec.type`,description="Type of the setting"
// +kubebuilder:printcolumn:name="ENABLED",type=boolean,JSONPath=`.spec.enable`,description="Whether spec turns the setting on"
// +kubebuilder:printcolumn:name="CONTENT",type=string,JSONPath=`.spec.content`,description="Value of the setting"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether spec is in force"
type OpsConfigInfo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Value of the setting.
	Spec OpsConfigInfoSpec `json:"spec"`
	// Whether the setting is in force.
	Status OpsConfigInfoStatus `json:"status,omitempty"`
}

// OpsConfigInfoList is a list of OpsConfigInfoes.
//
// +kubebuilder:object:root=true
type OpsConfigInfoList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OpsConfigInfo `json:"items"`
}
