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

// FieldManager is the field manager of every write of the operator. By it and by the operator's user, admission recognizes the
// operator's own requests.
const FieldManager = "altershield-operator"

// CallbackFieldManager is the field manager of verdicts that AlterShield Server delivered. The replica that receives a verdict
// writes it.
const CallbackFieldManager = "altershield-operator-callback"

// Enrolment of namespaces and workloads.
const (
	// EnrolledLabel on a namespace, with EnrolledValue, enrols it: its workloads are defended. The operator never writes
	// in other namespaces.
	EnrolledLabel = "admission-webhook-altershield"
	// EnrolledValue is the value of EnrolledLabel that enrols a namespace.
	EnrolledValue = "enabled"
	// DefenseLabel on a workload, with DefenseDisabled, opts the workload out.
	DefenseLabel = "altershield.defense.antgroup.com/defense"
	// DefenseDisabled is the value of DefenseLabel that opts a workload out.
	DefenseDisabled = "disabled"
	// DefenseEnabled is the value of DefenseLabel that enrols an object of a kind that is enrolled by label.
	DefenseEnabled = "enabled"
	// DefenseEnforced is the value of DefenseLabel that defends a workload in enforce mode although another object owns
	// it. Without it such a workload is in observe mode, because its owner would undo the writes of the operator.
	DefenseEnforced = "enforced"
)

// CheckDeadlineMark on a Job of a check has the deadline of the check, if the Job ends with it. The operator writes it.
const CheckDeadlineMark = "altershield.defense.antgroup.com/check-deadline"

// CheckTemplateMark is a label of CronJobs whose jobs checks may run, with the value "true". A user sets it: CronJobs are
// suspended for other reasons, too.
const CheckTemplateMark = "altershield.defense.antgroup.com/check-template"

// TooLargeMark is an annotation of large objects in the cache of the operator. No stored object has it.
const TooLargeMark = "altershield.defense.antgroup.com/too-large"

// Annotations of namespaces.
const (
	// TenantAnnotation holds the tenant code of the namespace at AlterShield Server. It overrides --altershield-tenant.
	TenantAnnotation = "altershield.defense.antgroup.com/tenant"
	// PhaseAnnotation holds the phase of releases of the namespace. It overrides --altershield-phase.
	PhaseAnnotation = "altershield.defense.antgroup.com/phase"
)

// Labels.
const (
	// VersionLabel holds the version of the pod template: on the workload, its
	// pod template, its pods, its ChangeWorkload and its ChangePods.
	VersionLabel = "admission-webhook-altershield.antgroup.com/version"
	// WorkloadKindLabel on ChangeWorkloads, ChangePods and ControllerRevisions holds the kind of the workload. Without the
	// label the workload is a Deployment.
	WorkloadKindLabel = "altershield.defense.antgroup.com/workload-kind"
	// WorkloadNameLabel beside WorkloadKindLabel holds the name of the workload. A name of more than 63 characters is
	// shortened and has a hash.
	WorkloadNameLabel = "altershield.defense.antgroup.com/workload-name"
	// DeploymentNameLabel is the WorkloadNameLabel of Deployments. Objects of earlier builds have it, too.
	DeploymentNameLabel = "app.kubernetes.io/deployment-name"
	// DefenseStatusLabel on a workload, with DefenseStatusProcessed, means that the current version has a ChangeWorkload.
	DefenseStatusLabel = "altershield.defense.antgroup.com/defense-status"
	// DefenseStatusProcessed is the only value of DefenseStatusLabel.
	DefenseStatusProcessed = "processed"
	// OperateFinishedLabel on a pod holds the Unix time (seconds) at which the release of the pod finished. The operator
	// does not decide by it.
	OperateFinishedLabel = "altershield.defense.antgroup.com/operate-finished"
	// SuspendLabel on a workload holds the Unix time (seconds) since when its releases are blocked.
	SuspendLabel = "altershield.defense.antgroup.com/suspend"
	// IgnoredSuspendLabel on a workload, with IgnoredSuspendValue, is set by a
	// user to let one release pass the block.
	IgnoredSuspendLabel = "altershield.defense.antgroup.com/ignored-suspend"
	// IgnoredSuspendValue is the value of IgnoredSuspendLabel that overrides.
	IgnoredSuspendValue = "true"
)

// Annotations, all on workloads.
const (
	// ReleaseAnnotation counts the releases of a workload. Admission increments it with every change of the pod template,
	// so that a second release of a version is distinguished from the first.
	ReleaseAnnotation = "altershield.defense.antgroup.com/release"
	// ReleasedByAnnotation names the user of the workload's current release, as admission saw the request; "unknown" if
	// the release bypassed admission. It is sent to the server.
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
	// OverrideReportedAnnotation holds the resource version in OverrideAnnotation once the event is written.
	OverrideReportedAnnotation = "altershield.defense.antgroup.com/override-reported"
	// OverrideStaleAnnotation means that IgnoredSuspendLabel is older than the block, and so does not override it. It is
	// removed with the label.
	OverrideStaleAnnotation = "altershield.defense.antgroup.com/override-stale"
	// AdmittedAnnotation lists the last ten templates of the workload that were changed between admission and storage, as
	// pairs version=version separated by commas: the version at admission and the stored version. The API server drops
	// fields of disabled features, and other webhooks change templates, too. A request that leads to the stored template
	// is no release. Block and quarantine do not read the annotation: they judge the template to be stored.
	AdmittedAnnotation = "altershield.defense.antgroup.com/admitted"
	// ContentAnnotation is on objects of declared kinds: a hash of the declaration of their content, and metadata.generation,
	// when the content last had the recorded version. If the version differs without a newer generation, no one wrote the
	// content: its declaration changed, or the default of a field in a CustomResourceDefinition.
	ContentAnnotation = "altershield.defense.antgroup.com/content"
	// HaltedAnnotation holds the version whose rollout the operator halted.
	HaltedAnnotation = "altershield.defense.antgroup.com/halted"
	// HaltedFromAnnotation holds the partition of a StatefulSet from before the halt; without the annotation, the
	// partition was the default of the API server. For a declared kind, it lists the fields that halt as JSON, with their
	// values of the halt and from before. It is removed with HaltedAnnotation.
	HaltedFromAnnotation = "altershield.defense.antgroup.com/halted-from"
	// HeldAnnotation records, as JSON, the fields that a hold changed: their former values, which the operator gives back,
	// and their present values. It exists while the rollout waits for its verdicts.
	HeldAnnotation = "altershield.defense.antgroup.com/held"
	// HoldEndedAnnotation records why the hold of the current release ended: number of the
	// release, reason of the condition Held and, if a user ended it, that user, separated by
	// single spaces.
	HoldEndedAnnotation = "altershield.defense.antgroup.com/hold-ended"
	// HistoryOfLabel on a ControllerRevision holds the UID of the workload of the version.
	// Revisions of earlier builds lack the label: the workload is their controller.
	HistoryOfLabel = "altershield.defense.antgroup.com/history-of"
	// ProvenLabel on a ControllerRevision holds whether the version is proven. A version without the label is proven.
	ProvenLabel = "altershield.defense.antgroup.com/proven"
	// Proven is the value of ProvenLabel for a proven version.
	Proven = "true"
	// Unproven is the value of ProvenLabel for a version that is not proven.
	Unproven = "false"
	// LimitAnnotation records the rollbacks without a request, as JSON, on one ConfigMap of
	// the operator's namespace.
	LimitAnnotation = "altershield.defense.antgroup.com/rollbacks"
	// QuarantinedAnnotation lists the last ten quarantined versions, separated by commas.
	QuarantinedAnnotation = "altershield.defense.antgroup.com/quarantined"
	// QuarantineReasonAnnotation explains QuarantinedAnnotation: JSON from version to time, cause, pod, container, reason,
	// message, number of the release and target version of the rollback. A version that an override released again stays in
	// it, with the user.
	QuarantineReasonAnnotation = "altershield.defense.antgroup.com/quarantine-reason"
	// ChangeCauseAnnotation explains a revision in kubectl rollout history. The operator sets it with a rollback, and
	// removes it with the next release.
	ChangeCauseAnnotation = "kubernetes.io/change-cause"
	// SettingAnnotationPrefix, with the name of a setting, is the annotation by
	// which a workload overrides it: blocking, branch, rollback, selfhealing,
	// halting, silence, timeouts, observe, holding.
	SettingAnnotationPrefix = "altershield.defense.antgroup.com/"
	// SettingsAlteredAnnotation holds the number of the current release, and the settings that it altered together with the
	// template: kubectl rollout undo restores old annotations, too. Admission writes it.
	SettingsAlteredAnnotation = "altershield.defense.antgroup.com/settings-altered"
	// RollbackToAnnotation is set by a user to request a rollback to a version or to "last-success". The operator removes
	// it.
	RollbackToAnnotation = "altershield.defense.antgroup.com/rollback-to"
	// UnquarantineAnnotation is set by a user to end the quarantine of a version or of "all". Admission removes it.
	UnquarantineAnnotation = "altershield.defense.antgroup.com/unquarantine"
	// UnquarantinedAnnotation records, as JSON, the last use of UnquarantineAnnotation until its event is written: the
	// requested version, the versions whose quarantine ended, and the user. Admission writes it.
	UnquarantinedAnnotation = "altershield.defense.antgroup.com/unquarantined"
	// BreakFreezeAnnotation on a workload, set by a user, has the reason for which this one release passes a freeze. It
	// counts in the request that changes the template, which removes it. The same reason does not count again.
	BreakFreezeAnnotation = "altershield.defense.antgroup.com/break-freeze"
	// FreezeBrokenAnnotation records the last use of BreakFreezeAnnotation as JSON, written by admission.
	FreezeBrokenAnnotation = "altershield.defense.antgroup.com/freeze-broken"
	// OptedOutAnnotation records the last time that a user opted the workload out of the defense while its releases were
	// blocked or versions of it were in quarantine: number of the current release, Unix time (seconds), "Blocked" or
	// "Quarantined", and user, separated by single spaces. Admission writes it.
	OptedOutAnnotation = "altershield.defense.antgroup.com/opted-out"
	// RollbackRequestedAnnotation holds the time of the last rollback request over HTTP, in Unix milliseconds, so that no
	// request is repeated.
	RollbackRequestedAnnotation = "altershield.defense.antgroup.com/rollback-requested"
	// ChangeURLAnnotation, set by a user, links to the change that the releases of the workload are part of. The order at
	// AlterShield Server has the link.
	ChangeURLAnnotation = "altershield.defense.antgroup.com/change-url"
	// ChangeOrderAnnotation, set by a user, names the parent order of the releases of the workload, for AlterShield
	// Server: an id, or a JSON object with orderId, orderTitle and orderUrl.
	ChangeOrderAnnotation = "altershield.defense.antgroup.com/change-order"
)
