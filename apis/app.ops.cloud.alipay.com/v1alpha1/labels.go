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

// FieldManager is the field manager of every write of the operator. By this and
// by the identity that the operator runs under, admission distinguishes the
// operator's own requests from all others.
const FieldManager = "altershield-operator"

// CallbackFieldManager is the field manager of the verdicts that AlterShield
// Server delivered. They are written by whichever replica got them.
const CallbackFieldManager = "altershield-operator-callback"

// Enrolment of namespaces and workloads.
const (
	// EnrolledLabel on a namespace, with EnrolledValue, has its workloads
	// defended. Nothing in other namespaces is ever written to.
	EnrolledLabel = "admission-webhook-altershield"
	// EnrolledValue is the value of EnrolledLabel that enrols a namespace.
	EnrolledValue = "enabled"
	// DefenseLabel on a workload, with DefenseDisabled, takes that workload
	// out of the defense.
	DefenseLabel = "altershield.defense.antgroup.com/defense"
	// DefenseDisabled is the value of DefenseLabel that opts a workload out.
	DefenseDisabled = "disabled"
	// DefenseEnforced is the value of DefenseLabel that defends a workload in full
	// although another object owns it. Without it such a workload is in observe mode:
	// its owner would undo what the operator does.
	DefenseEnforced = "enforced"
)

// TooLargeMark is an annotation of objects in the cache of the operator that are too large.
// No object of the API server has it.
const TooLargeMark = "altershield.defense.antgroup.com/too-large"

// Annotations of namespaces.
const (
	// TenantAnnotation is the tenant code of the namespace at AlterShield Server,
	// instead of that of the flag --altershield-tenant.
	TenantAnnotation = "altershield.defense.antgroup.com/tenant"
	// PhaseAnnotation is the phase that releases of the namespace are in, instead
	// of that of the flag --altershield-phase.
	PhaseAnnotation = "altershield.defense.antgroup.com/phase"
)

// Labels.
const (
	// VersionLabel holds the version of the pod template: on the workload, its
	// pod template, its pods, its ChangeWorkload and its ChangePods.
	VersionLabel = "admission-webhook-altershield.antgroup.com/version"
	// WorkloadKindLabel on ChangeWorkloads, ChangePods and what is remembered of a
	// workload holds its kind. Without it, it is a Deployment.
	WorkloadKindLabel = "altershield.defense.antgroup.com/workload-kind"
	// WorkloadNameLabel beside WorkloadKindLabel holds the name of the workload,
	// shortened with a hash where it is over 63 characters.
	WorkloadNameLabel = "altershield.defense.antgroup.com/workload-name"
	// DeploymentNameLabel is WorkloadNameLabel of Deployments alone, by which those of
	// before are found, too.
	DeploymentNameLabel = "app.kubernetes.io/deployment-name"
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
	// with every change of the pod template. It distinguishes a version that is
	// released again from one that was never left.
	ReleaseAnnotation = "altershield.defense.antgroup.com/release"
	// ReleasedByAnnotation names the user of the workload's current release, as
	// admission saw it; "unknown" when it did not. It is sent to the server.
	ReleasedByAnnotation = "altershield.defense.antgroup.com/released-by"
	// SuspendedByAnnotation names the release whose failed verification set
	// SuspendLabel: its version, its number and the UID of its record, separated by
	// single spaces. A corrected verdict lifts the block of its own release only,
	// and so does a success of the same record.
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
	// AdmittedAnnotation lists templates of the workload that were stored otherwise
	// than admission saw them, as pairs version=version separated by commas, the last
	// ten: the version that admission saw, and the one that is stored. The API server
	// drops fields whose feature is off, and other webhooks change templates, too. A
	// request that leads to what is stored already is no release. Block and quarantine
	// do not read it: they look at what would be stored.
	AdmittedAnnotation = "altershield.defense.antgroup.com/admitted"
	// HaltedAnnotation holds the version because of which the operator paused
	// the workload.
	HaltedAnnotation = "altershield.defense.antgroup.com/halted"
	// HaltedFromAnnotation holds what the operator changed to pause the workload, as it
	// was: the partition of a StatefulSet. Without it, that is what the API server sets.
	// It goes with HaltedAnnotation.
	HaltedFromAnnotation = "altershield.defense.antgroup.com/halted-from"
	// HeldAnnotation records, as JSON, the fields that a hold changed: their values before,
	// which are given back, and their present values. It exists while the rollout waits for
	// its verdicts.
	HeldAnnotation = "altershield.defense.antgroup.com/held"
	// HoldEndedAnnotation records why the hold of the current release ended: number of the
	// release, reason of the condition Held and, if a user ended it, that user, separated by
	// single spaces.
	HoldEndedAnnotation = "altershield.defense.antgroup.com/hold-ended"
	// HistoryOfLabel on a ControllerRevision holds the UID of the workload of the version.
	// Revisions of earlier builds lack the label: the workload is their controller.
	HistoryOfLabel = "altershield.defense.antgroup.com/history-of"
	// ProvenLabel on a ControllerRevision states whether the version has run well for long
	// enough since its success ("true" or "false"). A version without the label has.
	ProvenLabel = "altershield.defense.antgroup.com/proven"
	// Proven is the value of ProvenLabel for a version that has.
	Proven = "true"
	// Unproven is the value of ProvenLabel for a version that has not.
	Unproven = "false"
	// LimitAnnotation records the rollbacks without a request, as JSON, on one ConfigMap of
	// the operator's namespace.
	LimitAnnotation = "altershield.defense.antgroup.com/rollbacks"
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
	// which a workload overrides it: blocking, branch, rollback, selfhealing,
	// halting, silence, timeouts, observe, holding.
	SettingAnnotationPrefix = "altershield.defense.antgroup.com/"
	// SettingsAlteredAnnotation names the settings that the release the workload
	// is at altered together with the template, after its number: kubectl rollout
	// undo brings old annotations back. Admission writes it.
	SettingsAlteredAnnotation = "altershield.defense.antgroup.com/settings-altered"
	// RollbackToAnnotation is set by a user to ask for a rollback: a version,
	// or "last-success". It is consumed.
	RollbackToAnnotation = "altershield.defense.antgroup.com/rollback-to"
	// UnquarantineAnnotation is set by a user to end the quarantine of a version, or
	// of "all". It is consumed.
	UnquarantineAnnotation = "altershield.defense.antgroup.com/unquarantine"
	// UnquarantinedAnnotation records, as JSON, the last use of it until its event
	// has been written: what was asked for, what it ended, and the user. Admission
	// writes it.
	UnquarantinedAnnotation = "altershield.defense.antgroup.com/unquarantined"
	// OptedOutAnnotation records the last time that a user opted the workload out of
	// the defense while its releases were blocked or versions of it were in
	// quarantine: number of the release the workload was at, Unix time (seconds),
	// "Blocked" or "Quarantined", and user, separated by single spaces. Admission
	// writes it.
	OptedOutAnnotation = "altershield.defense.antgroup.com/opted-out"
	// RollbackRequestedAnnotation holds the time, in Unix milliseconds, of the
	// last rollback that was requested over HTTP, so that none is repeated.
	RollbackRequestedAnnotation = "altershield.defense.antgroup.com/rollback-requested"
)
