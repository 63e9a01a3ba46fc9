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
	// TypeBlocking (object `blocking`): block a workload that failed
	// verification. No content.
	TypeBlocking OpsConfigType = "isBlockingUp"
	// TypeBranch (object `branch`): batches of content pods; disabled: 1.
	TypeBranch OpsConfigType = "isBranch"
	// TypeRollback (object `rollback`): roll back releases whose pods do not
	// come up. Content is a duration, or thresholds, as in
	// after=2m,slow=10m,tolerate=10%,proven=5m.
	TypeRollback OpsConfigType = "isRollback"
	// TypeSelfHealing (object `selfhealing`): roll back on Suspend.
	TypeSelfHealing OpsConfigType = "isSelfHealing"
	// TypeHalting (object `halting`): pause a rollout that fails.
	TypeHalting OpsConfigType = "isHalting"
	// TypeSilence (object `silence`): no verdict in time is a failure.
	TypeSilence OpsConfigType = "isSilenceFail"
	// TypeTimeouts (object `timeouts`): thresholds, as in
	// wait=60s,pre=120s,post=120s,settle=10s.
	TypeTimeouts OpsConfigType = "isTimeout"
	// TypeHistory (object `history`): number of successful versions kept.
	TypeHistory OpsConfigType = "isHistory"
	// TypeAdmission (object `admission`): ask the server at admission, for at
	// most content, a duration below 3s.
	TypeAdmission OpsConfigType = "isAdmissionCheck"
	// TypeObserve (object `observe`): record, verify and report releases, and
	// do nothing about them. No content.
	TypeObserve OpsConfigType = "isObserve"
	// TypeQuarantine (object `quarantine`): a version that never started is
	// denied for content, a duration.
	TypeQuarantine OpsConfigType = "isQuarantine"
	// TypeLimit (object `limit`): the most rollbacks that no user requested in a
	// time, as in 5/10m.
	TypeLimit OpsConfigType = "isLimit"
	// TypeHolding (object `holding`): a rollout waits for its verdicts. Content is
	// first or every, with the longest time if need be, as in first,atMost=30m.
	TypeHolding OpsConfigType = "isHolding"
	// TypeEviction (object `eviction`): after a rollback or a fix, evict stuck pods of
	// StatefulSets. No content.
	TypeEviction OpsConfigType = "isEviction"
	// FormerTypeLimit (object `brake`) is TypeLimit of earlier builds.
	FormerTypeLimit OpsConfigType = "isBrake"
	// FormerTypeEviction (object `repair`) is TypeEviction of earlier builds.
	FormerTypeEviction OpsConfigType = "isRepair"
)

// OpsConfigInfoSpec is one setting. Disabled settings may have any content.
//
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isBranch' || (has(self.content) && self.content.matches('^[1-9][0-9]{0,2}$') && int(self.content) <= 200)",message="content of type isBranch is the number of pods per batch: a whole number from 1 to 200, as in \"10\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isHistory' || (has(self.content) && self.content.matches('^[1-9][0-9]{0,2}$') && int(self.content) <= 100)",message="content of type isHistory is the number of versions kept: a whole number from 1 to 100, as in \"10\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isRollback' || (has(self.content) && self.content.matches('^(([1-9][0-9]{0,5}(s|m|h)){1,3}|((after|slow|proven)=([1-9][0-9]{0,5}(s|m|h)){1,3}|proven=0s?|tolerate=(0|(100|[1-9]?[0-9])%))(,((after|slow|proven)=([1-9][0-9]{0,5}(s|m|h)){1,3}|proven=0s?|tolerate=(0|(100|[1-9]?[0-9])%))){0,3})$') && !self.content.matches('(after=.*after=|slow=.*slow=|tolerate=.*tolerate=|proven=.*proven=)') && (!self.content.contains('proven=') || duration(self.content.split('proven=')[1].split(',')[0]) <= duration('1h')))",message="content of type isRollback is a duration of at least 1s in s, m or h, as in \"2m\", or names thresholds, each once and proven from 0 to 1h, as in \"after=2m,slow=10m,tolerate=10%,proven=5m\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isAdmissionCheck' || (has(self.content) && self.content.matches('^[0-9]{1,9}(ms|s)$') && duration(self.content) > duration('0s') && duration(self.content) < duration('3s'))",message="content of type isAdmissionCheck is a duration above zero and below 3s, as in \"2s\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isTimeout' || (has(self.content) && self.content.matches('^((wait|pre|post|settle)=([1-9][0-9]{0,5}(s|m|h)){1,3}|settle=0s?)(,((wait|pre|post|settle)=([1-9][0-9]{0,5}(s|m|h)){1,3}|settle=0s?)){0,3}$') && !self.content.matches('(wait=.*wait=|pre=.*pre=|post=.*post=|settle=.*settle=)'))",message="content of type isTimeout names thresholds of at least 1s, settle also 0, each once, as in \"wait=60s,pre=120s,post=120s,settle=10s\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isQuarantine' || (has(self.content) && self.content.matches('^([1-9][0-9]{0,5}(s|m|h)){1,3}$') && duration(self.content) <= duration('24h'))",message="content of type isQuarantine is a duration from 1s to 24h in s, m or h, as in \"1h\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || !(self.type in ['isLimit', 'isBrake']) || (has(self.content) && self.content.matches('^([1-9][0-9]{0,2}|1000)/([1-9][0-9]{0,5}(s|m|h)){1,3}$') && duration(self.content.split('/')[1]) <= duration('24h'))",message="content of type isLimit is a number of rollbacks from 1 to 1000 and the time they are counted for, from 1s to 24h, as in \"5/10m\"",fieldPath=".content"
// +kubebuilder:validation:XValidation:rule="!self.enable || self.type != 'isHolding' || (has(self.content) && self.content.matches('^(first|every)(,atMost=([1-9][0-9]{0,5}(s|m|h)){1,3})?$') && (!self.content.contains('=') || duration(self.content.split('=')[1]) >= duration('1m') && duration(self.content.split('=')[1]) <= duration('2h')))",message="content of type isHolding is first or every, and the longest time for which pods are waited for, from 1m to 2h, if need be, as in \"first,atMost=30m\"",fieldPath=".content"
type OpsConfigInfoSpec struct {
	// Type of the setting. It must be the one that belongs to the name of the
	// object: the name decides which setting this is. isBlockingUp (blocking):
	// a workload that failed verification is blocked. isBranch (branch): pods
	// are verified in batches; off: one by one. isRollback (rollback): releases
	// whose pods do not come up are rolled back. isSelfHealing (selfhealing):
	// releases that fail are rolled back. isHalting (halting): a rollout that
	// fails is paused. isSilenceFail (silence): no verdict in time counts as a
	// failure. isTimeout (timeouts): how long to wait; off: the defaults.
	// isHistory (history): successful versions are kept for rollbacks.
	// isAdmissionCheck (admission): the server is asked whether a version may
	// be released. isObserve (observe): releases are recorded, verified and
	// reported only. isQuarantine (quarantine): a version that never started is
	// denied for a time; off: until somebody overrides it. isLimit (limit): the
	// most rollbacks that no user requested in a time; off: no limit. isHolding
	// (holding): a rollout waits for its verdicts. isEviction (eviction): after a
	// rollback or a fix, stuck pods of StatefulSets are evicted. isBrake (brake) and isRepair
	// (repair) are isLimit and isEviction of earlier builds.
	Type OpsConfigType `json:"type"`
	// Enable turns the setting on.
	Enable bool `json:"enable"`
	// Content is the value of the setting. What it may be depends on Type.
	// isBranch: the number of pods per batch, 1 to 200, as in 10.
	// isRollback: how long pods may fail, as in 2m; or thresholds, as in
	// after=2m,slow=10m,tolerate=10%,proven=5m; what is not named has its default.
	// isTimeout: thresholds, as in wait=60s,pre=120s,post=120s,settle=10s;
	// what is not named has its default, settle=0 turns it off.
	// isHistory: how many versions are kept, 1 to 100, as in 10.
	// isAdmissionCheck: how long the answer is waited for, 100ms to 2900ms,
	// as in 2s.
	// isQuarantine: how long, the first time, up to 24h, as in 1h.
	// isLimit: how many in which time, up to 1000 and 24h, as in 5/10m.
	// isHolding: first or every, which batches are waited for; and for how
	// long at most, 1m to 2h, as in first,atMost=30m; 30m unless given.
	// The other types have none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Content string `json:"content,omitempty"`
	// Locked, in the operator's namespace, keeps namespaces and workloads from
	// having a value of their own for this setting. Elsewhere it is of no
	// effect.
	// +optional
	Locked bool `json:"locked,omitempty"`
	// Remark is free text for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Remark string `json:"remark,omitempty"`
}

// OpsConfigValue is a valid value of a setting.
type OpsConfigValue struct {
	// Enable says whether the setting is on.
	Enable bool `json:"enable"`
	// Content is the value of the setting.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Content string `json:"content,omitempty"`
}

// OpsConfigInfoStatus says whether the setting is in force.
type OpsConfigInfoStatus struct {
	// InForce is the last valid value. It is in force, also while spec is
	// invalid.
	// +optional
	InForce *OpsConfigValue `json:"inForce,omitempty"`
	// ObservedGeneration is the metadata.generation this status was computed
	// from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Accepted says whether spec is in force and, if not, why.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// OpsConfigInfo is one setting of the operator. It takes effect without a
// restart. Its name says which: blocking, branch, rollback, selfhealing,
// halting, silence, timeouts, history, admission, observe, quarantine, limit,
// holding, eviction.
// Objects of the operator's own namespace are in force everywhere. One in an
// enrolled namespace is in force there, unless the operator's is locked;
// admission and limit are of the whole cluster only. In other namespaces they
// are ignored and have no status.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=opsconfiginfoes,singular=opsconfiginfo,scope=Namespaced,shortName=oci,categories=altershield
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.spec.type`,description="Type of the setting"
// +kubebuilder:printcolumn:name="ENABLED",type=boolean,JSONPath=`.spec.enable`,description="Whether the setting is to be on; it is in force while ACCEPTED is True"
// +kubebuilder:printcolumn:name="CONTENT",type=string,JSONPath=`.spec.content`,description="Value of the setting"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="ACCEPTED",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`,description="Whether spec is in force"
type OpsConfigInfo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the setting.
	Spec OpsConfigInfoSpec `json:"spec"`
	// Status says whether the setting is in force.
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
