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

// Condition types of ChangeWorkload.
const (
	// ConditionProgressing says whether the rollout that is being verified goes
	// on. False while it cannot: the workload is paused, or its rollout
	// exceeded its progress deadline.
	ConditionProgressing = "Progressing"
	// ConditionBlocked is True while the releases of the workload are blocked
	// because of this release, and False when one of its pods or its order
	// failed and they are not, or no longer.
	ConditionBlocked = "Blocked"
	// ConditionRolledBack is True when this release was rolled back, Unknown
	// while it is about to be, and False when a rollback is due and not made;
	// the reason says why.
	ConditionRolledBack = "RolledBack"
	// ConditionVerified is True when every pod of the release passed, False
	// when one failed, Unknown while verification goes on or nothing has been
	// verified.
	ConditionVerified = "Verified"
	// ConditionPodsUnavailable is True while pods of the release fail, or have
	// been unavailable for longer than the threshold of a rollback, and False
	// when they are well again. A release whose pods never failed does not have
	// it.
	ConditionPodsUnavailable = "PodsUnavailable"
	// ConditionRepairBlocked is True while a pod that is stuck at a version that
	// was left stays, as the reason says why, and the message how to get on; and
	// False when that is over. A release that nothing ever was in the way of does
	// not have it. It is the reason of an event, too.
	ConditionRepairBlocked = "RepairBlocked"
	// ConditionProven is True once the release has run well for the threshold
	// of a rollback since its Success, Unknown until then, and False when too
	// many of its pods failed in that time: no rollback goes to its version
	// then.
	ConditionProven = "Proven"
)

// Reasons of ConditionRepairBlocked, beside Recovered.
const (
	// ReasonDisruptionBudget means that a PodDisruptionBudget refuses to have the
	// pod evicted.
	ReasonDisruptionBudget = "DisruptionBudget"
	// ReasonEvictionRefused means that a policy, a missing right or more than one
	// PodDisruptionBudget does.
	ReasonEvictionRefused = "EvictionRefused"
	// ReasonRepairDisabled means that the setting repair is off.
	ReasonRepairDisabled = "RepairDisabled"
	// ReasonMadeAgain means that to evict the pod brings nothing: its controller makes
	// it again of a version that was left, or did so already.
	ReasonMadeAgain = "MadeAgain"
	// ReasonVersionUnknown means that nothing is known of the version of the pod.
	ReasonVersionUnknown = "VersionUnknown"
)

// EventStuckPodEvicted means that the operator evicted a pod that was stuck at a version
// that was left.
const EventStuckPodEvicted = "StuckPodEvicted"

// Reasons of ConditionPodsUnavailable and ConditionProven.
const (
	// ReasonPodsFail means that pods crash, or cannot be started.
	ReasonPodsFail = "PodsFail"
	// ReasonPodsSlow means that pods have not been available for some time, and
	// nothing says that they fail.
	ReasonPodsSlow = "PodsSlow"
	// ReasonPodsNotMade means that pods are asked for, after the release succeeded, and
	// something refuses them: a quota, Pod Security, an admission webhook.
	ReasonPodsNotMade = "PodsNotMade"
	// ReasonPodsAvailable means that the pods are well again.
	ReasonPodsAvailable = "PodsAvailable"
	// ReasonProving means that the version has not run for long enough yet.
	ReasonProving = "Proving"
	// ReasonRanWell means that the version has run well for long enough.
	ReasonRanWell = "RanWell"
)

// ConditionOverridesAccepted is False while an annotation by which the workload
// overrides a setting cannot be used, as its message says: what is in force in
// general applies. It is there only once one could not.
const (
	ConditionOverridesAccepted = "OverridesAccepted"
	// ReasonInvalidOverride means that an annotation cannot be used.
	ReasonInvalidOverride = "InvalidOverride"
)

// ConditionWritesAccepted is False while a write of the operator for the
// release is denied by another policy, a quota or a missing right. The operator
// tries again with back-off. The condition is there only after a write was
// denied.
const (
	ConditionWritesAccepted = "WritesAccepted"
	// ReasonBlockDenied means that the workload could not be blocked. It is a
	// reason of ConditionBlocked, too.
	ReasonBlockDenied = "BlockDenied"
	// ReasonLiftDenied means that the block could not be lifted; the release does
	// not end before it is.
	ReasonLiftDenied = "LiftDenied"
	// ReasonResumeDenied means that the operator could not end its own pause.
	ReasonResumeDenied = "ResumeDenied"
	// ReasonPaceDenied means that the operator could not hold the rollout, let it go on,
	// or give back what the hold had changed.
	ReasonPaceDenied = "PaceDenied"
	// ReasonBatchDenied means that a batch could not be created.
	ReasonBatchDenied = "BatchDenied"
	// ReasonRollbackDenied means that the workload could not be rolled back.
	ReasonRollbackDenied = "RollbackDenied"
	// ReasonRequestDenied means that a request for a rollback could not be noted on
	// the workload.
	ReasonRequestDenied = "RequestDenied"
	// ReasonRecordDenied means that the record of the release could not be
	// created, or the workload not be labelled for it.
	ReasonRecordDenied = "RecordDenied"
)

// ConditionDefended is False while the workload is defended less than the
// operator's settings ask for, or only observed, as its reason says. It is there
// only once that was so.
const (
	ConditionDefended = "Defended"
	// ReasonObserving means that the workload is only observed: its releases are
	// recorded, verified and reported, and nothing is done about them. It is a
	// reason of ConditionBlocked and ConditionRolledBack, too, for what would
	// have been done.
	ReasonObserving = "Observing"
	// ReasonLowered means that annotations of the workload turn parts of its
	// defense off.
	ReasonLowered = "Lowered"
	// ReasonInFull means that nothing lowers the defense any more.
	ReasonInFull = "InFull"
)

// Reasons of events about what would have been done, were the workload not only
// observed.
const (
	// EventWouldSuspend: the workload would have been blocked.
	EventWouldSuspend = "WouldSuspend"
	// EventWouldHalt: its rollout would have been paused.
	EventWouldHalt = "WouldHalt"
	// EventWouldRollBack: it would have been rolled back, and the version put
	// into quarantine.
	EventWouldRollBack = "WouldRollBack"
	// EventWouldDeny: a release would have been denied.
	EventWouldDeny = "WouldDeny"
	// EventRevisionNotFound: the controller of a StatefulSet or a DaemonSet did not find the
	// revision of a template again, so that it replaces pods that have it already.
	EventRevisionNotFound = "RevisionNotFound"
	// EventWentBack: a user left a version that failed for one that is good.
	EventWentBack = "WentBack"
)

// Reasons of events on more than one kind of object.
const (
	// EventForeignID means that the status of a record named an order or a node
	// of another record. Also the reason of conditions.
	EventForeignID = "ForeignID"
	// EventOptedOut means that a user opted a workload out of the defense while
	// releases of it were blocked, or versions of it were in quarantine.
	EventOptedOut = "OptedOut"
	// EventDeletedWhileBlocked means that somebody deleted such a workload, and
	// EventCreatedAgain that one of its name was created after that.
	EventDeletedWhileBlocked = "DeletedWhileBlocked"
	EventCreatedAgain        = "CreatedAgain"
	// EventTooLarge means that a workload left the defense because its labels and the
	// operator's annotations take more memory than the operator keeps of a workload.
	EventTooLarge = "TooLarge"
	// EventUnknownMetadata means that a workload has a label or an annotation of the operator's
	// prefixes, or a value of one, that the operator does not know.
	EventUnknownMetadata = "UnknownMetadata"
	// EventVerdictCorrected means that failing verdicts were changed to ones that
	// pass.
	EventVerdictCorrected = "VerdictCorrected"
	// EventDefenseLowered means that a setting of a namespace or of a workload
	// lowers the defense, or that everything is only observed.
	EventDefenseLowered = "DefenseLowered"
	// EventDefenseRestored means that it no longer does.
	EventDefenseRestored = "DefenseRestored"
)

// Reasons of ConditionProgressing.
const (
	// ReasonRollingOut means pods are still being replaced.
	ReasonRollingOut = "RollingOut"
	// ReasonRolloutComplete means every pod runs this version and is available.
	ReasonRolloutComplete = "RolloutComplete"
	// ReasonRolloutPaused means the workload is paused; verification goes on for
	// the pods that are there, the release stays open.
	ReasonRolloutPaused = "RolloutPaused"
	// ReasonPartitioned means that a user's partition keeps pods at the template before;
	// the others run this version, and the release stays Running.
	ReasonPartitioned = "Partitioned"
	// ReasonOnDelete means that pods are replaced only when a user deletes them
	// (updateStrategy OnDelete); the release stays Running until all are.
	ReasonOnDelete = "OnDelete"
	// ReasonRolloutHalted means the operator paused the workload because this
	// version failed.
	ReasonRolloutHalted = "RolloutHalted"
	// ReasonRolloutStuck means the rollout exceeded its progress deadline.
	ReasonRolloutStuck = "RolloutStuck"
	// ReasonReplaced means a newer release replaced this one.
	ReasonReplaced = "Replaced"
	// ReasonWorkloadDeleted means the workload is gone or going.
	ReasonWorkloadDeleted = "WorkloadDeleted"
	// ReasonUnmanaged means the workload left the defense, by its opt-out label or
	// with its namespace.
	ReasonUnmanaged = "Unmanaged"
)

// Reasons of ConditionVerified and ConditionBlocked.
const (
	// ReasonChecking means verification of pods goes on.
	ReasonChecking = "Checking"
	// ReasonNothingVerified means the release is complete without a single pod
	// (zero replicas): it lifts no block.
	ReasonNothingVerified = "NothingVerified"
	// ReasonAllPassed means every pod of the release passed.
	ReasonAllPassed = "AllPassed"
	// ReasonPassedUnverified means every pod of the release passed, some of them without
	// a verdict of AlterShield Server. It is a reason of ConditionWaitsForServer, too.
	ReasonPassedUnverified = "PassedUnverified"
	// ReasonPodFailed means at least one pod failed its verification.
	ReasonPodFailed = "PodFailed"
	// ReasonBlockingDisabled means a pod failed while blocking was turned off by
	// the OpsConfigInfo `blocking`.
	ReasonBlockingDisabled = "BlockingDisabled"
	// ReasonBlockedAlready means that the workload was blocked already because of
	// an earlier release; that block stands.
	ReasonBlockedAlready = "BlockedAlready"
	// ReasonLifted means that the block was lifted by hand.
	ReasonLifted = "Lifted"
	// ReasonCorrected means the failing verdict was corrected; this version's
	// block is lifted.
	ReasonCorrected = "Corrected"
)

// Reasons of ConditionRolledBack.
const (
	// ReasonNeverStarted means that a pod of the release did not come up.
	ReasonNeverStarted = "NeverStarted"
	// ReasonVerificationFailed means that the release is suspended and
	// self-healing is on.
	ReasonVerificationFailed = "VerificationFailed"
	// ReasonRollbackRequested means that a user asked for it.
	ReasonRollbackRequested = "Requested"
	// ReasonRollbackRefused means that the release is not rolled back although it
	// failed, because there is nothing to go back to, or a user is at it.
	ReasonRollbackRefused = "RollbackRefused"
	// ReasonStillWaiting means that a pod is slow: it is rolled back when it is for
	// too long.
	ReasonStillWaiting = "StillWaiting"
	// ReasonTolerated means that pods hang, and so few, or all on one node, that the
	// release is not rolled back because of them.
	ReasonTolerated = "Tolerated"
	// ReasonBrake means that a rollback is due, but too many releases were
	// rolled back recently. The operator tries again when there is room.
	ReasonBrake = "Brake"
	// ReasonRequestRefused means that somebody wrote the state Rollback by
	// hand, and this was refused; the message says why.
	ReasonRequestRefused = "RequestRefused"
	// ReasonRecovered means that what failed does not any more.
	ReasonRecovered = "Recovered"
)

// Condition types of the order of a ChangeWorkload.
const (
	// ConditionOrderAccepted is True when AlterShield Server accepted the order
	// of the release, False while it has not, as its reason says.
	ConditionOrderAccepted = "OrderAccepted"
	// ConditionOrderPreChecked is True when the order's PRE check passed, False
	// when it failed or ended without a verdict, Unknown while it runs.
	ConditionOrderPreChecked = "OrderPreChecked"
	// ConditionOrderPostChecked says the same of the order's POST check.
	ConditionOrderPostChecked = "OrderPostChecked"
	// ConditionOrderEnded is True when the server was notified how the order
	// ended, and False while that fails. It stays False when it failed for too
	// long.
	ConditionOrderEnded = "OrderEnded"
)

// ConditionWaitsForServer is True while the release has waited long for AlterShield
// Server, and False once it has not any more. It is there only after such a wait. It is
// the reason of an event, too.
const (
	ConditionWaitsForServer = "WaitsForServer"
	// ReasonCheckNotSubmitted means that a check could not be submitted for long.
	ReasonCheckNotSubmitted = "CheckNotSubmitted"
	// ReasonVerdictOutstanding means that a check has had no verdict for long.
	ReasonVerdictOutstanding = "VerdictOutstanding"
	// ReasonAnswered means that nothing is outstanding for long any more.
	ReasonAnswered = "Answered"
)

// Reasons of calls to AlterShield Server, of the conditions OrderAccepted,
// OrderPreChecked, OrderPostChecked, OrderEnded and Submitted.
const (
	// ReasonAccepted means the server took what was submitted.
	ReasonAccepted = "Accepted"
	// ReasonStartedAgain means the PRE check goes on at a second node, because the
	// server no longer knew the first one.
	ReasonStartedAgain = "StartedAgain"
	// ReasonUnreachable means the server did not answer, or not as itself; it is
	// tried again.
	ReasonUnreachable = "Unreachable"
	// ReasonPermissionDenied means the server does not know the platform or its
	// token: repair --altershield-platform, the token file or the registration.
	// The operator tries each minute.
	ReasonPermissionDenied = "PermissionDenied"
	// ReasonNotConfigured means the server does not know the scene or the step:
	// repair the registration of the scene. The operator tries each minute.
	ReasonNotConfigured = "NotConfigured"
	// ReasonRefused means the server refused; the message says why.
	ReasonRefused = "Refused"
	// ReasonUnprocessable means the server failed at what was submitted and will
	// again, whose message says why: its database cannot hold a value. The operator
	// tries each minute until the time for it is over, and not after that.
	ReasonUnprocessable = "Unprocessable"
	// ReasonNotYetAccepted means the server did not take the end of a node,
	// which it does not while the node's PRE check runs; it is tried again.
	ReasonNotYetAccepted = "NotYetAccepted"
	// ReasonUnconfirmed means it is not known whether the server took what was
	// submitted; it is tried again.
	ReasonUnconfirmed = "Unconfirmed"
	// ReasonOrderNotAccepted means the order of the release is not accepted, so
	// that its batches cannot be checked.
	ReasonOrderNotAccepted = "OrderNotAccepted"
)

// The condition of the operator's own pods about AlterShield Server, and its
// reasons beside Unreachable and PermissionDenied. A pod without it has no server,
// or does not know yet.
const (
	// ConditionServerHealthy is True when AlterShield Server answers the heartbeats
	// of this replica, and False when it has not twice in a row.
	ConditionServerHealthy = "app.ops.cloud.alipay.com/ServerHealthy"
	// ReasonAnswers means the server answers.
	ReasonAnswers = "Answers"
	// ReasonAnswersWithErrors means the server is there and answers with errors of
	// its own.
	ReasonAnswersWithErrors = "AnswersWithErrors"
	// EventServerUnhealthy and EventServerHealthy are the events, on such a pod, of
	// a change of it.
	EventServerUnhealthy = "ServerUnhealthy"
	EventServerHealthy   = "ServerHealthy"
)

// Reasons of verdicts, of the conditions Checked, OrderPreChecked,
// OrderPostChecked and Verified.
const (
	// ReasonPassed means the check passed.
	ReasonPassed = "Passed"
	// ReasonCheckFailed means a failing verdict arrived.
	ReasonCheckFailed = "CheckFailed"
	// ReasonSkipped means the server said that there is nothing to check.
	ReasonSkipped = "Skipped"
	// ReasonTimeout means no verdict came in time, and the check could not be
	// asked for.
	ReasonTimeout = "Timeout"
	// ReasonPolledNotPassed means no verdict came in time, and asked for, the
	// server said that the check has not passed: it runs, timed out, or failed.
	ReasonPolledNotPassed = "PolledNotPassed"
	// ReasonSubmitFailed means the check could not be submitted.
	ReasonSubmitFailed = "SubmitFailed"
	// ReasonOrderCheckFailed means the PRE or POST check of the order failed, or
	// one of a node of it that no batch is known by.
	ReasonOrderCheckFailed = "OrderCheckFailed"
)

// Condition types and reasons of ChangePod.
const (
	// ConditionChecked is True when the batch ended with an answer for each
	// of its pods, False when it ended without, as its reason says.
	ConditionChecked = "Checked"
	// ConditionSubmitted is False while a check of the batch cannot be
	// submitted to the server, as its reason says, and True after that was
	// overcome.
	ConditionSubmitted = "Submitted"
	// ReasonNoServer means that no server was configured when the release
	// began, or is configured now; the batch passes unverified.
	ReasonNoServer = "NoServer"
	// ReasonReleaseEnded means the release ended before its verification, or
	// that of the batch before its checks did.
	ReasonReleaseEnded = "ReleaseEnded"
)

// Reasons of checks of policies.
const (
	// ReasonSameOnOldPods means that pods of the version before do the same.
	ReasonSameOnOldPods = "SameOnOldPods"
	// ReasonPolicyRemoved means that the policy is gone, or no longer has the
	// check, so that it was given up.
	ReasonPolicyRemoved = "PolicyRemoved"
	// ReasonNoPods means that no pod of the batch is there to be measured.
	ReasonNoPods = "NoPods"
	// ReasonProbing means that a check in the background takes longer than planned.
	ReasonProbing = "Probing"
	// ReasonUnsteady means that pods answered neither well nor badly often enough in
	// a row until the deadline.
	ReasonUnsteady = "Unsteady"
	// ReasonNotMeasured means that pods could not be measured until the deadline.
	ReasonNotMeasured = "NotMeasured"
	// ReasonRuleFailed means that a rule of a check is false.
	ReasonRuleFailed = "RuleFailed"
	// ReasonCannotEvaluate means that rules could not be evaluated.
	ReasonCannotEvaluate = "CannotEvaluate"
)

// Reasons of events about checks of policies.
const (
	// EventCheckFailed: a check failed pods of a batch.
	EventCheckFailed = "CheckFailed"
	// EventWouldFail: it would have, were it not only observed.
	EventWouldFail = "WouldFail"
	// EventPodsFailing: pods fail, and are tolerated.
	EventPodsFailing = "PodsFailing"
	// EventCheckInconclusive: pods of the version before do the same.
	EventCheckInconclusive = "CheckInconclusive"
	// EventCheckError: a check could not be measured until its deadline.
	EventCheckError = "CheckError"
)

// Reasons of ConditionAccepted of a DefensePolicy.
const (
	// ReasonInvalidPolicy means spec cannot be used; the message names the place
	// and the remedy.
	ReasonInvalidPolicy = "Invalid"
	// ReasonTooMany means that there are more policies, or checks, for a workload
	// than count.
	ReasonTooMany = "TooMany"
	// ReasonTooLarge means that the spec takes more memory than the operator keeps of a
	// policy. The last accepted spec counts.
	ReasonTooLarge = "TooLarge"
)

// Condition of a DefensePolicy whose rules are not evaluated for a while.
const (
	// ConditionSetAside is True while a process of the operator evaluates no rule of the
	// policy. Otherwise it is absent.
	ConditionSetAside = "SetAside"
	// ReasonRulesDoNotEnd means that several evaluations of its rules ignored the end of
	// their time.
	ReasonRulesDoNotEnd = "RulesDoNotEnd"
)

// Condition types and reasons of OpsConfigInfo.
const (
	// ConditionAccepted is True when the object's spec is in force. While it
	// is False, the last valid value (status.inForce) stays in force.
	ConditionAccepted = "Accepted"
	// ConditionWebhooksConfigured of the operator's own `blocking` is False while a
	// webhook configuration of the operator stays missing: no block holds then. It is
	// absent where none ever did.
	ConditionWebhooksConfigured = "WebhooksConfigured"
	// ReasonConfigured and ReasonConfigurationMissing are its reasons, and
	// EventWebhookConfigurationMissing the event of the latter.
	ReasonConfigured                 = "Configured"
	ReasonConfigurationMissing       = "ConfigurationMissing"
	EventWebhookConfigurationMissing = "WebhookConfigurationMissing"
	// DefendsConditionPrefix, with the kind of a workload, is a condition of the
	// operator's own `blocking`: its lastTransitionTime is since when the operator
	// defends workloads of this kind. It is there for kinds that not all versions of the
	// operator defend: ConditionDefendsStatefulSet and ConditionDefendsDaemonSet.
	// ReasonKnown is its reason.
	DefendsConditionPrefix      = "Defends"
	ConditionDefendsStatefulSet = "DefendsStatefulSet"
	ConditionDefendsDaemonSet   = "DefendsDaemonSet"
	ReasonKnown                 = "Known"
	// ConditionInstalled is a condition of the operator's own `blocking`: its
	// lastTransitionTime is when this installation ran for the first time. It is False
	// with ReasonLeft from `manager leave` on, until the next start.
	ConditionInstalled = "Installed"
	ReasonLeft         = "Left"
	// ReasonInForce means spec is valid and in force.
	ReasonInForce = "InForce"
	// ReasonInvalidContent means spec.content cannot be used; the message names
	// the remedy.
	ReasonInvalidContent = "InvalidContent"
	// ReasonTypeMismatch means the name belongs to a setting of another type.
	ReasonTypeMismatch = "TypeMismatch"
	// ReasonLocked means that the operator's object of this name is locked, so
	// that a namespace's own is ignored.
	ReasonLocked = "Locked"
	// ReasonOfCluster means that the setting is of the whole cluster, so that a
	// namespace's own is ignored.
	ReasonOfCluster = "OfCluster"
	// ReasonUnknownName means no setting has this name; the object is ignored.
	ReasonUnknownName = "UnknownName"
)

// ConditionHeld of a ChangeWorkload is True while the rollout of the release waits for
// verdicts, and False when it did, or should have, and goes on: its reason says why. It
// is absent where nothing is to be waited for.
const ConditionHeld = "Held"

// Reasons of ConditionHeld.
const (
	// ReasonWaitingForVerdicts means that pods that were made are not verified yet.
	ReasonWaitingForVerdicts = "WaitingForVerdicts"
	// ReasonHoldVerified means that everything that was waited for passed.
	ReasonHoldVerified = "Verified"
	// ReasonHoldRanOut means that pods had no verdict when they had been waited for as
	// long as is allowed, and that the rollout went on without.
	ReasonHoldRanOut = "RanOut"
	// ReasonHoldFailed means that the release failed.
	ReasonHoldFailed = "Failed"
	// ReasonHoldEdited means that somebody set a field that the hold had changed.
	ReasonHoldEdited = "EditedByUser"
	// ReasonHoldStuck means that a pod of an earlier version is not Ready, so that the
	// StatefulSet makes no pod of the wave.
	ReasonHoldStuck = "PodsStuck"
	// ReasonHoldEnded means that the release ended, or that nothing asks for a hold any
	// more.
	ReasonHoldEnded = "Ended"
	// ReasonNotHeld means that the rollout of this release does not wait, as its message
	// says why.
	ReasonNotHeld = "NotHeld"
)

// Events of a hold.
const (
	// EventHoldStarted: the rollout waits for its verdicts.
	EventHoldStarted = "HoldStarted"
	// EventHoldEnded: it does not any more.
	EventHoldEnded = "HoldEnded"
	// EventHoldRanOut: pods had no verdict after the longest time that is waited.
	EventHoldRanOut = "HoldRanOut"
	// EventWouldHold: the rollout would have waited, were the workload not only
	// observed.
	EventWouldHold = "WouldHold"
)
