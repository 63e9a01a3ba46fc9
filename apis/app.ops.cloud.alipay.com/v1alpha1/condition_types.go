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

// Condition types of ChangeWorkload. The Catalog explains each with its reasons.
const (
	// ConditionProgressing reports whether the rollout of the release advances.
	ConditionProgressing = "Progressing"
	// ConditionVerified reports whether the pods and the order of the release passed.
	ConditionVerified = "Verified"
	// ConditionHeld reports whether the rollout waits for verdicts. Absent without a hold.
	ConditionHeld = "Held"
	// ConditionBlocked reports whether releases of the workload are blocked because of this release.
	ConditionBlocked = "Blocked"
	// ConditionRolledBack reports whether the release was rolled back, or why it is not.
	ConditionRolledBack = "RolledBack"
	// ConditionPodsUnavailable reports whether pods of the release fail or are slow. Absent until one was.
	ConditionPodsUnavailable = "PodsUnavailable"
	// ConditionEvictionBlocked reports whether a stuck pod of another version cannot be evicted. Absent until one could not.
	ConditionEvictionBlocked = "EvictionBlocked"
	// ConditionProven reports whether the release has run well long enough since its Success.
	ConditionProven = "Proven"
	// ConditionServer reports whether AlterShield Server answered all that the release asked. Absent without a server.
	// Unknown while a check runs or a call is retried; False where the release waits long, or ends without a verdict.
	ConditionServer = "Server"
	// ConditionDefended reports whether the workload is fully defended. Absent until it was not.
	ConditionDefended = "Defended"
)

// Types of the entries of status.orderSteps of a ChangeWorkload. ConditionServer reports the worst entry.
const (
	// StepAccepted reports whether the server accepted the order.
	StepAccepted = "Accepted"
	// StepPreChecked reports whether the PRE check of the order passed.
	StepPreChecked = "PreChecked"
	// StepPostChecked reports whether the POST check of the order passed.
	StepPostChecked = "PostChecked"
	// StepEnded reports whether the server was notified how the order ended.
	StepEnded = "Ended"
)

// Condition types of ChangePod.
const (
	// ConditionChecked reports whether the batch ended with a verdict on each pod.
	ConditionChecked = "Checked"
	// ConditionSubmitted is False while the server does not take a check of the batch.
	ConditionSubmitted = "Submitted"
)

// Condition types of OpsConfigInfo, DefensePolicy and DefenseEndpoint.
const (
	// ConditionAccepted reports whether spec is in force. Otherwise status.inForce is.
	ConditionAccepted = "Accepted"
	// ConditionSetAside is True while a replica of the operator evaluates no rule of the policy.
	ConditionSetAside = "SetAside"
	// ConditionQueriesWork reports what the queries of the policy found when they were tried once.
	ConditionQueriesWork = "QueriesWork"
	// ConditionNotifies reports whether the endpoints of notify can get alerts.
	ConditionNotifies = "Notifies"
	// ConditionReachable reports whether the endpoint answers.
	ConditionReachable = "Reachable"
	// ConditionWebhooksConfigured of the operator's own `blocking` is False while a webhook configuration is missing.
	ConditionWebhooksConfigured = "WebhooksConfigured"
	// ConditionInstalled of the operator's own `blocking` has the start of this installation as its transition time.
	ConditionInstalled = "Installed"
	// DefendsConditionPrefix and a kind make a condition of the operator's own `blocking`. Its transition time is the time
	// since when the operator defends workloads of the kind.
	DefendsConditionPrefix      = "Defends"
	ConditionDefendsStatefulSet = "DefendsStatefulSet"
	ConditionDefendsDaemonSet   = "DefendsDaemonSet"
)

// Condition types of ChangeKind, beside ConditionAccepted.
const (
	// ConditionServed reports whether the API server serves the kind in this version.
	ConditionServed = "Served"
	// ConditionAuthorized reports whether the operator has the permissions for the kind.
	ConditionAuthorized = "Authorized"
	// ConditionIntercepted reports whether webhooks see changes of the objects.
	ConditionIntercepted = "Intercepted"
	// ConditionReady reports whether the objects of the kind are defended.
	ConditionReady = "Ready"
)

// ConditionServerHealthy of the operator's own pods reports whether AlterShield Server answers their heartbeats.
const ConditionServerHealthy = "app.ops.cloud.alipay.com/ServerHealthy"

// Reasons of the conditions of ChangeWorkload. The Catalog explains each.
const (
	ReasonRollingOut         = "RollingOut"
	ReasonRolloutComplete    = "RolloutComplete"
	ReasonRolloutPaused      = "RolloutPaused"
	ReasonPartitioned        = "Partitioned"
	ReasonOnDelete           = "OnDelete"
	ReasonRolloutHalted      = "RolloutHalted"
	ReasonRolloutStuck       = "RolloutStuck"
	ReasonExpressionFailed   = "ExpressionFailed"
	ReasonReleaseEnded       = "ReleaseEnded"
	ReasonWorkloadDeleted    = "WorkloadDeleted"
	ReasonNotDefended        = "NotDefended"
	ReasonChecking           = "Checking"
	ReasonAllPassed          = "AllPassed"
	ReasonPassedUnverified   = "PassedUnverified"
	ReasonPodFailed          = "PodFailed"
	ReasonOrderCheckFailed   = "OrderCheckFailed"
	ReasonCheckFailed        = "CheckFailed"
	ReasonNothingVerified    = "NothingVerified"
	ReasonRefused            = "Refused"
	ReasonWaitingForVerdicts = "WaitingForVerdicts"
	ReasonHoldVerified       = "Verified"
	ReasonHoldRanOut         = "RanOut"
	ReasonHoldEdited         = "EditedByUser"
	ReasonHoldStuck          = "PodsStuck"
	ReasonNotHeld            = "NotHeld"
	ReasonBlockedAlready     = "BlockedAlready"
	ReasonBlockingDisabled   = "BlockingDisabled"
	ReasonLifted             = "Lifted"
	ReasonWriteDenied        = "WriteDenied"
	ReasonObserving          = "Observing"
	ReasonRecovered          = "Recovered"
	ReasonNeverStarted       = "NeverStarted"
	ReasonVerificationFailed = "VerificationFailed"
	ReasonRollbackRequested  = "Requested"
	ReasonStillWaiting       = "StillWaiting"
	ReasonTolerated          = "Tolerated"
	ReasonRollbackRefused    = "RollbackRefused"
	ReasonRequestRefused     = "RequestRefused"
	ReasonRollbackLimit      = "RollbackLimit"
	ReasonPodsFailing        = "PodsFailing"
	ReasonPodsSlow           = "PodsSlow"
	ReasonDisruptionBudget   = "DisruptionBudget"
	ReasonNotEvicted         = "NotEvicted"
	ReasonRecreated          = "Recreated"
	ReasonRanWell            = "RanWell"
	ReasonAnswered           = "Answered"
	ReasonNoVerdict          = "NoVerdict"
	ReasonNotSubmitted       = "NotSubmitted"
	ReasonUnreachable        = "Unreachable"
	ReasonPermissionDenied   = "PermissionDenied"
	ReasonLowered            = "Lowered"
	ReasonFreezeBypassed     = "FreezeBypassed"
)

// Reasons of ChangePod and of the steps of an order, beside reasons above.
const (
	ReasonAccepted         = "Accepted"
	ReasonPassed           = "Passed"
	ReasonSkipped          = "Skipped"
	ReasonNoServer         = "NoServer"
	ReasonOrderNotAccepted = "OrderNotAccepted"
	ReasonNotConfigured    = "NotConfigured"
	ReasonUnprocessable    = "Unprocessable"
	ReasonStartedAgain     = "StartedAgain"
	ReasonNotYetAccepted   = "NotYetAccepted"
	ReasonUnconfirmed      = "Unconfirmed"
)

// Reasons of checks of policies, in status.checks.
const (
	// ReasonSameOnOldPods means that pods of the previous version have the same symptom.
	ReasonSameOnOldPods = "SameOnOldPods"
	// ReasonPolicyRemoved means that the policy or its check was deleted.
	ReasonPolicyRemoved = "PolicyRemoved"
	// ReasonNoPods means that no pod of the batch exists.
	ReasonNoPods = "NoPods"
	// ReasonProbing means that a background check takes longer than planned.
	ReasonProbing = "Probing"
	// ReasonUnsteady means that the probe neither succeeded nor failed often enough in a row by the deadline.
	ReasonUnsteady = "Unsteady"
	// ReasonNotMeasured means that no pod could be measured by the deadline, or that a service did not finish.
	ReasonNotMeasured = "NotMeasured"
	// ReasonRuleFailed means that a rule is false.
	ReasonRuleFailed = "RuleFailed"
	// ReasonCannotEvaluate means that a rule could not be evaluated.
	ReasonCannotEvaluate = "CannotEvaluate"
	// ReasonThreshold means that failWhen was true several times in a row.
	ReasonThreshold = "ThresholdCrossed"
	// ReasonMeasuring means that the query is evaluated, and that some evaluations are left.
	ReasonMeasuring = "Measuring"
	// ReasonNoSeries means that the result of the query has no series.
	ReasonNoSeries = "NoSeries"
	// ReasonNotFinite means that no value of the result is a finite number.
	ReasonNotFinite = "NotFinite"
	// ReasonManySeries means that the result has more series than failWhen or the operator can read.
	ReasonManySeries = "ManySeries"
	// ReasonQueryFailed means that the query cannot be evaluated.
	ReasonQueryFailed = "QueryFailed"
	// ReasonUnavailable means that the endpoint gave no valid answer.
	ReasonUnavailable = "EndpointUnavailable"
	// ReasonNoEndpoint means that there is no such endpoint, or that the policy may not use it.
	ReasonNoEndpoint = "NoEndpoint"
	// ReasonServiceVerdict means that the service gave its verdict.
	ReasonServiceVerdict = "ServiceVerdict"
	// ReasonServiceRunning means that the service is not finished.
	ReasonServiceRunning = "ServiceRunning"
	// ReasonInvalidAnswer means that the answer of the service cannot be read.
	ReasonInvalidAnswer = "InvalidAnswer"
	// ReasonRequestNotAccepted means that the service refused the request, which is not repeated.
	ReasonRequestNotAccepted = "RequestNotAccepted"
	// ReasonJobFailed means that the Job failed.
	ReasonJobFailed = "JobFailed"
	// ReasonJobRunning means that the Job, or the Job of another check before it, is not finished.
	ReasonJobRunning = "JobRunning"
	// ReasonJobNotCreated means that the Job cannot be created.
	ReasonJobNotCreated = "JobNotCreated"
	// ReasonSmallBatch means that the batch has too few pods for a Job.
	ReasonSmallBatch = "SmallBatch"
	// ReasonAlertFiring means that an alert fires that began after the release.
	ReasonAlertFiring = "AlertFiring"
	// ReasonAlertBefore means that an alert fires that began before the release, or the hour before it had.
	ReasonAlertBefore = "AlertBeforeRelease"
	// ReasonWorse means that a metric of new pods is worse than that of old pods.
	ReasonWorse = "WorseThanOldPods"
	// ReasonFewData means that there are too few data to compare pods.
	ReasonFewData = "TooFewData"
	// ReasonNoOldPods means that no pod of the previous version is left to compare
	// with, or that the version succeeded before.
	ReasonNoOldPods = "NoOldPods"
	// ReasonNotDue means that pods are not compared after this batch.
	ReasonNotDue = "NotDue"
	// ReasonCorrected means that a user corrected the verdict.
	ReasonCorrected = "Corrected"
)

// Reasons of the conditions of OpsConfigInfo, DefensePolicy, DefenseEndpoint and the operator's own pods.
const (
	ReasonCredentials          = "CredentialsUnusable"
	ReasonSeriesFound          = "SeriesFound"
	ReasonUnknownMetric        = "UnknownMetric"
	ReasonWrongLabel           = "WrongLabel"
	ReasonInForce              = "InForce"
	ReasonInvalidContent       = "InvalidContent"
	ReasonTypeMismatch         = "TypeMismatch"
	ReasonLocked               = "Locked"
	ReasonOfCluster            = "OfCluster"
	ReasonUnknownName          = "UnknownName"
	ReasonConfigured           = "Configured"
	ReasonConfigurationMissing = "ConfigurationMissing"
	ReasonKnown                = "Known"
	ReasonLeft                 = "Left"
	ReasonInvalidPolicy        = "Invalid"
	ReasonTooMany              = "TooMany"
	ReasonTooLarge             = "TooLarge"
	ReasonRulesDoNotEnd        = "RulesDoNotEnd"
	ReasonAnswers              = "Answers"
	ReasonAnswersWithErrors    = "AnswersWithErrors"
)

// Reasons of the conditions of ChangeKind, beside reasons above.
const (
	ReasonServed        = "Served"
	ReasonNotServed     = "NotServed"
	ReasonHaltedObjects = "HaltedObjects"
	ReasonAuthorized    = "Authorized"
	ReasonDefended      = "Defended"
	ReasonFilling       = "CacheNotFilled"
	ReasonRebaselining  = "Rebaselining"
	ReasonLeaving       = "Leaving"
)

// Acts of EventDryRun, which the operator would do in enforce mode.
const (
	DryRunSuspend  = "Suspend"
	DryRunHalt     = "Halt"
	DryRunHold     = "Hold"
	DryRunRollback = "Rollback"
	DryRunDeny     = "Deny"
)

// Reasons of events. The Catalog explains each.
const (
	EventReleaseStarted              = "ReleaseStarted"
	EventReleaseSucceeded            = "ReleaseSucceeded"
	EventReleaseSuspended            = "ReleaseSuspended"
	EventReleaseCanceled             = "ReleaseCanceled"
	EventReleaseUnverified           = "ReleaseUnverified"
	EventAdmissionBypassed           = "AdmissionBypassed"
	EventWaitingForServer            = "WaitingForServer"
	EventForeignID                   = "ForeignID"
	EventVerdictCorrected            = "VerdictCorrected"
	EventCheckFailed                 = "CheckFailed"
	EventCheckError                  = "CheckError"
	EventMoreRestarts                = "MoreRestartsThanOldPods"
	EventBlockLifted                 = "BlockLifted"
	EventBlockOverridden             = "BlockOverridden"
	EventRolloutHalted               = "RolloutHalted"
	EventRolloutResumed              = "RolloutResumed"
	EventHoldStarted                 = "HoldStarted"
	EventHoldEnded                   = "HoldEnded"
	EventReleaseUndone               = "ReleaseUndone"
	EventFreezeBroken                = "FreezeBroken"
	EventRolledBack                  = "RolledBack"
	EventRollbackRequested           = "RollbackRequested"
	EventRollbackRefused             = "RollbackRefused"
	EventQuarantineEnded             = "QuarantineEnded"
	EventPodsUnavailable             = "PodsUnavailable"
	EventPodEvicted                  = "PodEvicted"
	EventEvictionBlocked             = "EvictionBlocked"
	EventRevisionNotFound            = "RevisionNotFound"
	EventDryRun                      = "DryRun"
	EventOptedOut                    = "OptedOut"
	EventDeletedWhileBlocked         = "DeletedWhileBlocked"
	EventDefenseChanged              = "DefenseChanged"
	EventSettingsAltered             = "SettingsAltered"
	EventUnknownMetadata             = "UnknownMetadata"
	EventWriteDenied                 = "WriteDenied"
	EventWebhookConfigurationMissing = "WebhookConfigurationMissing"
	EventServerHealthChanged         = "ServerHealthChanged"
)
