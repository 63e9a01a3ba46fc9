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

// FieldManager is the field manager of every write of the operator. Together
// with the identity the operator runs under it is how admission tells the
// operator's own requests from everybody else's.
const FieldManager = "altershield-operator"

// CallbackFieldManager is the field manager of the verdicts that AlterShield
// Server delivered. They are written by whichever replica got them.
const CallbackFieldManager = "altershield-operator-callback"

// Enrolment of namespaces and workloads.
const (
	// EnrolledLabel on a namespace, with EnrolledValue, puts its workloads
	// under defense. Nothing in other namespaces is ever written to.
	EnrolledLabel = "admission-webhook-altershield"
	// EnrolledValue is the value of EnrolledLabel that enrols a namespace.
	EnrolledValue = "enabled"
	// DefenseLabel on a workload, with DefenseDisabled, takes that workload
	// out of the defense.
	DefenseLabel = "altershield.defense.antgroup.com/defense"
	// DefenseDisabled is the value of DefenseLabel that opts a workload out.
	DefenseDisabled = "disabled"
)

// Labels.
const (
	// VersionLabel holds the version of the pod template: on the workload, its
	// pod template, its pods, its ChangeWorkload and its ChangePods.
	VersionLabel = "admission-webhook-altershield.antgroup.com/version"
	// WorkloadNameLabel on ChangeWorkloads and ChangePods holds the name of
	// the workload, shortened with a hash where it is over 63 characters.
	WorkloadNameLabel = "app.kubernetes.io/deployment-name"
	// DefenseStatusLabel on a workload, with DefenseStatusProcessed, says that
	// the current version has its ChangeWorkload.
	DefenseStatusLabel = "altershield.defense.antgroup.com/defense-status"
	// DefenseStatusProcessed is the one value of DefenseStatusLabel.
	DefenseStatusProcessed = "processed"
	// OperateFinishedLabel on a pod holds the Unix time (seconds) at which the
	// release of this pod was finished. It informs; it is never proof.
	OperateFinishedLabel = "altershield.defense.antgroup.com/operate-finished"
	// SuspendLabel on a workload holds the Unix time (seconds) since which its
	// releases are blocked.
	SuspendLabel = "altershield.defense.antgroup.com/suspend"
	// IgnoredSuspendLabel on a workload, with IgnoredSuspendValue, is set by a
	// user to let one release pass the block.
	IgnoredSuspendLabel = "altershield.defense.antgroup.com/ignored-suspend"
	// IgnoredSuspendValue is the value of IgnoredSuspendLabel that overrides.
	IgnoredSuspendValue = "true"
)

// Annotations, all on workloads.
const (
	// ReleaseAnnotation counts the releases of a workload; admission raises it
	// with every change of the pod template. It tells a version that is
	// released again from one that was never left.
	ReleaseAnnotation = "altershield.defense.antgroup.com/release"
	// ReleasedByAnnotation names the user of the workload's current release, as
	// admission saw it; "unknown" when it did not. The server is told.
	ReleasedByAnnotation = "altershield.defense.antgroup.com/released-by"
	// SuspendedByAnnotation names the release whose failed verification set
	// SuspendLabel: its version and its number, separated by a space. A
	// corrected verdict lifts the block of its own release only.
	SuspendedByAnnotation = "altershield.defense.antgroup.com/suspended-by"
	// OverrideAnnotation records the last override: version released, resource
	// version of the workload it was decided on, and user, separated by single
	// spaces. Admission writes it.
	OverrideAnnotation = "altershield.defense.antgroup.com/override"
	// OverrideReportedAnnotation holds the resource version out of
	// OverrideAnnotation whose event has been written.
	OverrideReportedAnnotation = "altershield.defense.antgroup.com/override-reported"
	// OverrideStaleAnnotation says that IgnoredSuspendLabel was there before
	// the block was set, and so does not override it. It goes with the label.
	OverrideStaleAnnotation = "altershield.defense.antgroup.com/override-stale"
	// HaltedAnnotation holds the version because of which the operator paused
	// the workload.
	HaltedAnnotation = "altershield.defense.antgroup.com/halted"
	// QuarantinedAnnotation lists versions that were rolled back, comma
	// separated, the last ten.
	QuarantinedAnnotation = "altershield.defense.antgroup.com/quarantined"
	// QuarantineReasonAnnotation explains QuarantinedAnnotation: JSON from
	// version to time, cause, pod, container, reason, message, number of the
	// release and the version it was rolled back to. Versions that an override
	// released again stay in it, with who did that.
	QuarantineReasonAnnotation = "altershield.defense.antgroup.com/quarantine-reason"
	// ChangeCauseAnnotation explains a revision to kubectl rollout history. The
	// operator sets it with a rollback, and takes it off with the next release.
	ChangeCauseAnnotation = "kubernetes.io/change-cause"
	// SettingAnnotationPrefix, with the name of a setting, is the annotation by
	// which a workload overrides it: branch, rollback, silence, timeouts.
	SettingAnnotationPrefix = "altershield.defense.antgroup.com/"
	// RollbackToAnnotation is set by a user to ask for a rollback: a version,
	// or "last-success". It is consumed.
	RollbackToAnnotation = "altershield.defense.antgroup.com/rollback-to"
	// RollbackRequestedAnnotation holds the time, in Unix milliseconds, of the
	// last rollback that was requested over HTTP, so that none is repeated.
	RollbackRequestedAnnotation = "altershield.defense.antgroup.com/rollback-requested"
)
