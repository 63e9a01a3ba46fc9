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

// FreezeAction is the effect of a freeze on a release.
// +kubebuilder:validation:Enum=Deny;Warn
type FreezeAction string

const (
	// FreezeDenies means that releases are denied.
	FreezeDenies FreezeAction = "Deny"
	// FreezeWarns means that releases pass with a warning.
	FreezeWarns FreezeAction = "Warn"
)

// PolicyFreeze is a recurring time, by schedule and duration, or one time, by
// from and until, in which releases are denied. Rollbacks, overrides, versions
// that succeeded before, and new workloads pass.
//
// +kubebuilder:validation:XValidation:rule="has(self.schedule) != has(self.from)",message="give schedule with duration, or from with until"
// +kubebuilder:validation:XValidation:rule="has(self.schedule) == has(self.duration)",message="schedule and duration belong together",fieldPath=".duration"
// +kubebuilder:validation:XValidation:rule="has(self.from) == has(self.until)",message="from and until belong together",fieldPath=".until"
// +kubebuilder:validation:XValidation:rule="!has(self.duration) || duration(self.duration) >= duration('1m') && duration(self.duration) <= duration('744h')",message="duration is a duration from 1m to 744h, as in 64h",fieldPath=".duration"
// +kubebuilder:validation:XValidation:rule="!has(self.from) || !has(self.until) || timestamp(self.until) > timestamp(self.from) && timestamp(self.until) - timestamp(self.from) <= duration('8784h')",message="until is later than from, by at most 366 days",fieldPath=".until"
type PolicyFreeze struct {
	// Name of the freeze in its policy.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// Starts of the freeze as five cron fields: minute, hour, day of the month,
	// month, day of the week.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[0-9A-Za-z*/,-]+( +[0-9A-Za-z*/,-]+){4}$`
	Schedule string `json:"schedule,omitempty"`
	// Elapsed time from each start, 1m to 744h.
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
	// Time zone of schedule in the IANA database. A start that a change of the clock
	// skips is at that change; a repeated one is the first.
	// +optional
	// +kubebuilder:default=UTC
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+/-]*$`
	TimeZone string `json:"timeZone,omitempty"`
	// Start of the freeze.
	// +optional
	From *metav1.Time `json:"from,omitempty"`
	// End of the freeze; the freeze does not include it.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// Deny or Warn. Deny counts where both apply. A policy in mode Observe warns.
	// +optional
	// +kubebuilder:default=Deny
	Action FreezeAction `json:"action,omitempty"`
}

// FreezeWindow is a time in which a freeze is in force.
type FreezeWindow struct {
	// Name of the freeze that ends last in the window.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Deny or Warn.
	Action FreezeAction `json:"action"`
	// Start of the window.
	Start metav1.Time `json:"start"`
	// End of the window; the window does not include it.
	End metav1.Time `json:"end"`
}
