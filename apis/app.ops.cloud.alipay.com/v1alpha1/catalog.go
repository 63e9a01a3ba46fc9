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

// More than 500 lines: one row for each condition and event.

package v1alpha1

import (
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Entry explains one condition with its status and reason, or one event: in the plugin, and in docs/reference/states.md, whose
// tables are generated from the Catalog.
type Entry struct {
	// Kind that has the condition; empty for an event.
	Kind string
	// Condition type; empty for an event.
	Condition string
	// Status of the condition.
	Status metav1.ConditionStatus
	// Reason of the condition or of the event.
	Reason string
	// Word stands for the entry in a list; empty if the plugin does not list the kind.
	Word string
	// Sentence explains the entry.
	Sentence string
	// Needs is the attention that the entry needs.
	Needs Needs
	// Actor that has to act; empty unless Needs is NeedsAction.
	Who Actor
	// Next is the next step; may be empty.
	Next NextStep
}

// Needs is the attention that a condition or an event needs.
type Needs int

const (
	// NeedsNothing means that all is well.
	NeedsNothing Needs = iota
	// NeedsNotice means that a person should know it, and that no action is required.
	NeedsNotice
	// NeedsTime means that the operator, Kubernetes or the server continues without help.
	NeedsTime
	// NeedsAction means that a person has to act.
	NeedsAction
)

// Actor is a group of people that has to act.
type Actor string

const (
	// ActorOwner releases the workload.
	ActorOwner Actor = "owner of the workload"
	// ActorAdmin administers the cluster and the operator.
	ActorAdmin Actor = "cluster administrator"
	// ActorServerAdmin administers AlterShield Server.
	ActorServerAdmin Actor = "administrator of AlterShield Server"
)

// NextStep is an advice as a sentence. The plugin adds commands.
type NextStep string

// Next steps.
const (
	StepWatch       NextStep = "Watch the release: `kubectl altershield status NAME -w`." //nolint:gosec // a sentence, no credentials
	StepFix         NextStep = "Release a fixed version (override a block), undo the release, or correct the verdict."
	StepRelease     NextStep = "Release another version."
	StepPods        NextStep = "Look at the pods, then release another version or roll back."
	StepSlow        NextStep = "Look at the pods. If they are slow and not broken, give them more time with the annotation `rollback`."
	StepCluster     NextStep = "Look at the events of the workload: a quota, Pod Security or the nodes keep pods from starting."
	StepResume      NextStep = "Resume the rollout."
	StepPartition   NextStep = "Lower the partition when the updated pods run well."
	StepDeletePods  NextStep = "Delete the pods one by one."
	StepHalted      NextStep = "Override the block with a fixed version, undo the release, correct the verdict, or resume the rollout."
	StepServer      NextStep = "Run `kubectl altershield check`, and read docs/tasks/connect-altershield-server.md."
	StepLimit       NextStep = "Look for a common cause: a registry or a node that fails is not the fault of a version."
	StepEvents      NextStep = "Look at the events of the workload."
	StepDenied      NextStep = "Allow the write: the message names the policy, the quota or the missing right."
	StepSettings    NextStep = "Correct the annotation or the OpsConfigInfo that the message names."
	StepEnforce     NextStep = "Turn observe mode off when the reported actions are right."
	StepDeletePod   NextStep = "Delete the pod with the command of the message, or allow its eviction."
	StepRecreated   NextStep = "Change what makes the StatefulSet recreate the pod, as the message says, then delete the pod."
	StepHold        NextStep = "Wait, or end the hold: `kubectl altershield resume NAME`."
	StepPolicy      NextStep = "Look at the check in the status, and at the policy."
	StepQuery       NextStep = "Try the query of the message in Prometheus, then correct it, or the labels of the endpoint."
	StepEndpoint    NextStep = "Correct the DefenseEndpoint, its Secrets or the service: `kubectl get defenseendpoints -A -o wide`."
	StepOperator    NextStep = "Run `kubectl altershield check`."
	StepExpression  NextStep = "Correct the expression of the ChangeKind that the message names."
	StepReview      NextStep = "Ask the user whether this was intended."
	StepKind        NextStep = "Correct the ChangeKind, its CustomResourceDefinition, or the permissions of the operator."
	StepReleaseOnce NextStep = "Take the operator's labels out of manifests in Git."
)

// condition returns an entry about a condition of ChangeWorkload.
func condition(kind string, status metav1.ConditionStatus, reason, word, sentence string, needs Needs, who Actor, next NextStep) Entry {
	return Entry{"ChangeWorkload", kind, status, reason, word, sentence, needs, who, next}
}

// of returns an entry about a condition of another kind.
func of(object, kind string, status metav1.ConditionStatus, reason, sentence string, needs Needs, who Actor, next NextStep) Entry {
	return Entry{object, kind, status, reason, "", sentence, needs, who, next}
}

// event returns an entry about an event.
func event(reason, sentence string, needs Needs, who Actor, next NextStep) Entry {
	return Entry{Reason: reason, Sentence: sentence, Needs: needs, Who: who, Next: next}
}

const (
	isTrue    = metav1.ConditionTrue
	isFalse   = metav1.ConditionFalse
	isUnknown = metav1.ConditionUnknown
)

// Catalog returns every condition and event of the operator.
func Catalog() []Entry {
	var all []Entry
	for _, part := range [][]Entry{
		rolloutEntries(), failureEntries(), podEntries(), serverEntries(), otherEntries(), kindEntries(), eventEntries(),
	} {
		all = append(all, part...)
	}
	return all
}

type entryKey struct {
	kind, condition string
	status          metav1.ConditionStatus
	reason          string
}

var byKey = sync.OnceValue(func() map[entryKey]Entry {
	all := map[entryKey]Entry{}
	for _, e := range Catalog() {
		all[entryKey{e.Kind, e.Condition, e.Status, e.Reason}] = e
	}
	return all
})

// Explain returns the entry of a condition of a kind, and whether the Catalog has it.
func Explain(kind string, c *metav1.Condition) (Entry, bool) {
	e, ok := byKey()[entryKey{kind, c.Type, c.Status, c.Reason}]
	return e, ok
}

// ExplainEvent returns the entry of an event, and whether the Catalog has it.
func ExplainEvent(reason string) (Entry, bool) {
	e, ok := byKey()[entryKey{reason: reason}]
	return e, ok
}

// SetCondition sets a condition of an object of a kind, as meta.SetStatusCondition does. The message of c is a detail; the
// Catalog adds the sentence.
func SetCondition(kind string, list *[]metav1.Condition, c metav1.Condition) (changed bool) {
	e, _ := Explain(kind, &c)
	c.Message = e.Message(c.Message)
	return meta.SetStatusCondition(list, c)
}

// Detail returns the detail of a condition of a kind.
func Detail(kind string, c *metav1.Condition) string {
	e, _ := Explain(kind, c)
	return e.Detail(c.Message)
}

// maxEventMessage is the limit of the API for the note of an event, in bytes.
const maxEventMessage = 1024

// EventMessage returns the message of an event: its sentences, the detail, and the next step if a person has to act and the
// detail names no command.
func EventMessage(reason, detail string) string {
	e, _ := ExplainEvent(reason)
	next := ""
	if e.Needs == NeedsAction && e.Next != "" {
		next = ". " + plain(string(e.Next))
	}
	if most := maxEventMessage - len(e.Message("")) - len(": ") - len(next); len(detail) > most {
		detail = strings.ToValidUTF8(detail[:most-len("...")], "") + "..."
	}
	if strings.Contains(detail, "kubectl ") {
		next = ""
	}
	message := e.Message(detail)
	if next != "" {
		message = strings.TrimSuffix(message, ".") + next
	}
	return message
}

// Message returns the message of a condition or an event: the sentences of the entry, with the detail at the end of the
// first one. The detail of a condition is read back by Detail.
func (e Entry) Message(detail string) string {
	begin, end := e.around()
	switch {
	case e.Sentence == "":
		return detail
	case detail == "":
		return plain(e.Sentence)
	default:
		return begin + detail + end
	}
}

// Detail returns the detail of a message. A message of an earlier build is all detail.
func (e Entry) Detail(message string) string {
	if e.Sentence == "" {
		return message
	}
	if message == plain(e.Sentence) {
		return ""
	}
	begin, end := e.around()
	if detail, ok := strings.CutPrefix(message, begin); ok {
		return strings.TrimSuffix(detail, end)
	}
	return message
}

// around returns the parts of the sentences before and behind a detail.
func (e Entry) around() (begin, end string) {
	first, rest, more := strings.Cut(plain(e.Sentence), ". ")
	if !more {
		return strings.TrimSuffix(first, ".") + ": ", ""
	}
	return first + ": ", ". " + rest
}

// plain returns a sentence without the marks of Markdown.
func plain(sentence string) string { return strings.ReplaceAll(sentence, "`", "") }

func rolloutEntries() []Entry {
	return []Entry{
		condition(ConditionProgressing, isTrue, ReasonRollingOut, "rolling out", "The rollout is in progress.", NeedsNotice, "", StepWatch),
		condition(ConditionProgressing, isTrue, ReasonRolloutComplete, "rolled out",
			"The rollout of this version is complete.", NeedsNothing, "", ""),
		condition(ConditionProgressing, isFalse, ReasonRolloutHalted, "halted",
			"The operator halted the rollout because this version failed.", NeedsAction, ActorOwner, StepHalted),
		condition(ConditionProgressing, isFalse, ReasonRolloutPaused, "paused",
			"A user paused the rollout, and the release stays Running until it is resumed.", NeedsAction, ActorOwner, StepResume),
		condition(ConditionProgressing, isFalse, ReasonPartitioned, "partitioned",
			"A user's partition keeps pods at the previous version. The release stays Running until the partition is lowered.",
			NeedsAction, ActorOwner, StepPartition),
		condition(ConditionProgressing, isFalse, ReasonOnDelete, "replaced on delete",
			"The update strategy is OnDelete, so a pod is replaced only after a user deletes it.", NeedsAction, ActorOwner, StepDeletePods),
		condition(ConditionProgressing, isFalse, ReasonRolloutStuck, "stuck",
			"The rollout makes no progress.", NeedsAction, ActorOwner, StepCluster),
		condition(ConditionProgressing, isUnknown, ReasonExpressionFailed, "progress unknown",
			"An expression of the ChangeKind cannot be evaluated for this workload.", NeedsAction, ActorAdmin, StepExpression),
		condition(ConditionProgressing, isFalse, ReasonReleaseEnded, "replaced",
			"A newer release or a rollback replaced this release.", NeedsNotice, "", ""),
		condition(ConditionProgressing, isFalse, ReasonWorkloadDeleted, "deleted", "The workload was deleted.", NeedsNotice, "", ""),
		condition(ConditionProgressing, isFalse, ReasonNotDefended, "not defended",
			"The workload opted out, or its namespace is no longer enrolled.", NeedsNotice, "", ""),

		condition(ConditionVerified, isUnknown, ReasonChecking, "being verified",
			"Checks of the release or of its pods are running.", NeedsNotice, "", StepWatch),
		condition(ConditionVerified, isTrue, ReasonAllPassed, "verified", "Every pod passed.", NeedsNothing, "", ""),
		condition(ConditionVerified, isTrue, ReasonPassedUnverified, "not verified",
			"Every pod passed, some without a verdict of AlterShield Server.", NeedsNotice, "", StepServer),
		condition(ConditionVerified, isFalse, ReasonPodFailed, "failed",
			"A pod failed its verification.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionVerified, isFalse, ReasonOrderCheckFailed, "failed",
			"AlterShield Server failed the order as a whole.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionVerified, isFalse, ReasonCheckFailed, "failed",
			"A check of a policy failed the release as a whole.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionVerified, isTrue, ReasonRolloutComplete, "verified",
			"The rollout of the object is complete, and all checks passed.", NeedsNothing, "", ""),
		condition(ConditionVerified, isFalse, ReasonRolloutStuck, "failed",
			"The rollout of the object is stuck, or was not complete in time.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionVerified, isUnknown, ReasonNothingVerified, "nothing verified",
			"The release has no pod. It lifts no block until a pod has passed.", NeedsNotice, "", ""),
		condition(ConditionVerified, isUnknown, ReasonRefused, "not verified",
			"AlterShield Server refused the order, so the release is not verified.", NeedsNotice, "", ""),
		condition(ConditionVerified, isUnknown, ReasonReleaseEnded, "not verified",
			"The release ended before its verification.", NeedsNotice, "", ""),

		condition(ConditionHeld, isTrue, ReasonWaitingForVerdicts, "held",
			"The rollout waits for the verdicts on its pods.", NeedsTime, "", StepHold),
		condition(ConditionHeld, isFalse, ReasonHoldVerified, "hold ended",
			"The pods of the hold passed. The rollout continues.", NeedsNothing, "", ""),
		condition(ConditionHeld, isFalse, ReasonHoldRanOut, "hold ended without verdicts",
			"Pods had no verdict when the longest wait was over. The rollout continues without them.", NeedsNotice, "", ""),
		condition(ConditionHeld, isFalse, ReasonVerificationFailed, "hold ended",
			"The release failed. The hold gave back what it had changed.", NeedsNotice, "", ""),
		condition(ConditionHeld, isFalse, ReasonHoldEdited, "hold ended by a user",
			"A user set a field that the hold had changed.", NeedsNotice, "", ""),
		condition(ConditionHeld, isFalse, ReasonHoldStuck, "hold ended, pods are stuck",
			"Pods that are not Ready, or a version that its controller does not record, stop the rollout. "+
				"The rollout continues without verdicts.",
			NeedsNotice, "", ""),
		condition(ConditionHeld, isFalse, ReasonReleaseEnded, "hold ended",
			"The release ended, the workload was scaled to 0, or no setting asks for a hold.", NeedsNothing, "", ""),
		condition(ConditionHeld, isFalse, ReasonNotHeld, "not held",
			"A setting asks for a hold, and this rollout is not held.", NeedsNotice, "", ""),
	}
}

func failureEntries() []Entry {
	return []Entry{
		condition(ConditionBlocked, isTrue, ReasonPodFailed, "blocked",
			"The workload is blocked because a pod of this release failed.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isTrue, ReasonOrderCheckFailed, "blocked",
			"The workload is blocked because AlterShield Server failed this release.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isTrue, ReasonCheckFailed, "blocked",
			"The workload is blocked because a check of a policy failed this release.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isTrue, ReasonRolloutStuck, "blocked",
			"The workload is blocked because the rollout of this release is stuck, or was not complete in time.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isFalse, ReasonBlockedAlready, "failed, blocked already",
			"This release failed, too. The block of an earlier release remains.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isFalse, ReasonBlockingDisabled, "failed, not blocked",
			"This release failed while the setting `blocking` was off.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isFalse, ReasonWriteDenied, "failed, not blocked",
			"This release failed, and the write of the block is denied.", NeedsAction, ActorAdmin, StepDenied),
		condition(ConditionBlocked, isFalse, ReasonLifted, "failed, block lifted",
			"A user lifted the block. The release is still suspended.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isFalse, ReasonRecovered, "corrected",
			"Nothing of this release fails now.", NeedsNothing, "", ""),
		condition(ConditionBlocked, isFalse, ReasonObserving, "failed, observe mode",
			"This release failed in observe mode. In enforce mode the workload would be blocked.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionBlocked, isFalse, ReasonReleaseEnded, "ended",
			"The release ended before the workload could be blocked.", NeedsNothing, "", ""),

		condition(ConditionRolledBack, isTrue, ReasonNeverStarted, "rolled back",
			"The release was rolled back because its pods did not come up.", NeedsNotice, "", ""),
		condition(ConditionRolledBack, isTrue, ReasonVerificationFailed, "rolled back",
			"The release was rolled back because it failed its verification, or a user undid it.", NeedsNotice, "", ""),
		condition(ConditionRolledBack, isTrue, ReasonRollbackRequested, "rolled back",
			"The release was rolled back because a user asked for it.", NeedsNotice, "", ""),
		condition(ConditionRolledBack, isUnknown, ReasonVerificationFailed, "about to be rolled back",
			"The release failed its verification and is about to be rolled back.", NeedsTime, "", StepWatch),
		condition(ConditionRolledBack, isFalse, ReasonStillWaiting, "pods are slow",
			"A pod is slow to start.", NeedsTime, "", StepSlow),
		condition(ConditionRolledBack, isFalse, ReasonTolerated, "pods are stuck",
			"Few pods are stuck, or all on one node, so the release is not rolled back.", NeedsAction, ActorOwner, StepPods),
		condition(ConditionRolledBack, isFalse, ReasonObserving, "fails, observe mode",
			"In enforce mode the release would have been rolled back.", NeedsAction, ActorOwner, StepPods),
		condition(ConditionRolledBack, isFalse, ReasonRollbackRefused, "fails, not rolled back",
			"A rollback is due and not possible.", NeedsAction, ActorOwner, StepPods),
		condition(ConditionRolledBack, isFalse, ReasonRollbackLimit, "rollback waits",
			"A rollback is due and waits, because the rollback limit is reached.", NeedsTime, "", StepLimit),
		condition(ConditionRolledBack, isFalse, ReasonRequestRefused, "rollback refused",
			"A user wrote the state Rollback, and the rollback is refused.", NeedsAction, ActorOwner, StepEvents),
		condition(ConditionRolledBack, isFalse, ReasonRecovered, "recovered", "The pods that failed run well again.", NeedsNothing, "", ""),
	}
}

func podEntries() []Entry {
	return []Entry{
		condition(ConditionPodsUnavailable, isTrue, ReasonPodsFailing, "pods fail",
			"Pods of the release fail.", NeedsAction, ActorOwner, StepPods),
		condition(ConditionPodsUnavailable, isTrue, ReasonPodsSlow, "pods unavailable",
			"The release succeeded, and pods are not available for long or cannot be created.", NeedsAction, ActorOwner, StepCluster),
		condition(ConditionPodsUnavailable, isFalse, ReasonRecovered, "pods run well", "No pod fails.", NeedsNothing, "", ""),
		condition(ConditionPodsUnavailable, isFalse, ReasonReleaseEnded, "ended", "The release ended.", NeedsNothing, "", ""),

		condition(ConditionEvictionBlocked, isTrue, ReasonDisruptionBudget, "pod stuck",
			"A PodDisruptionBudget refuses the eviction of a pod that blocks the rollout.",
			NeedsAction, ActorOwner, StepDeletePod),
		condition(ConditionEvictionBlocked, isTrue, ReasonNotEvicted, "pod stuck",
			"A pod of another version blocks the rollout, and the operator does not evict it.", NeedsAction, ActorOwner, StepDeletePod),
		condition(ConditionEvictionBlocked, isTrue, ReasonRecreated, "pod stuck",
			"A pod of the rolled-back version blocks the rollout. If it is deleted, the StatefulSet recreates it from that version.",
			NeedsAction, ActorOwner, StepRecreated),
		condition(ConditionEvictionBlocked, isFalse, ReasonRecovered, "not stuck",
			"No pod is stuck, or the operator may evict it.", NeedsNothing, "", ""),
		condition(ConditionEvictionBlocked, isFalse, ReasonReleaseEnded, "ended", "The release ended.", NeedsNothing, "", ""),

		condition(ConditionProven, isUnknown, ReasonChecking, "not proven yet",
			"The release succeeded and has not run well for `proven` yet.", NeedsNothing, "", ""),
		condition(ConditionProven, isTrue, ReasonRanWell, "proven",
			"The version ran well for `proven`. Rollbacks prefer it.", NeedsNothing, "", ""),
		condition(ConditionProven, isFalse, ReasonPodsFailing, "not proven",
			"Too many pods failed or restarted soon after Success. No rollback targets this version.", NeedsAction, ActorOwner, StepPods),
	}
}

// serverEntries returns entries about AlterShield Server, and about the defense of the workload.
func serverEntries() []Entry {
	return []Entry{
		condition(ConditionServer, isTrue, ReasonAnswered, "server answered",
			"AlterShield Server answered all requests of the release so far.", NeedsNothing, "", ""),
		condition(ConditionServer, isUnknown, ReasonChecking, "being checked",
			"AlterShield Server checks the order, or is asked again to take a request.", NeedsNotice, "", StepWatch),
		condition(ConditionServer, isUnknown, ReasonUnreachable, "server unreachable",
			"AlterShield Server does not answer. The operator retries.", NeedsTime, "", StepServer),
		condition(ConditionServer, isUnknown, ReasonPermissionDenied, "server denies",
			"AlterShield Server does not know the platform or its token. The operator retries each minute.",
			NeedsAction, ActorServerAdmin, StepServer),
		condition(ConditionServer, isFalse, ReasonPermissionDenied, "server denies",
			"The release waits because AlterShield Server does not know the platform or its token.", NeedsAction, ActorServerAdmin, StepServer),
		condition(ConditionServer, isUnknown, ReasonRefused, "server refuses",
			"AlterShield Server cannot process the request. The scene is not registered, or its database refuses a value.",
			NeedsAction, ActorServerAdmin, StepServer),
		condition(ConditionServer, isFalse, ReasonRefused, "order refused",
			"AlterShield Server refused the order or a check of it.", NeedsAction, ActorServerAdmin, StepServer),
		condition(ConditionServer, isFalse, ReasonNotSubmitted, "waits for the server",
			"AlterShield Server has not taken the order or a check for long. The operator retries.", NeedsTime, "", StepServer),
		condition(ConditionServer, isFalse, ReasonNoVerdict, "no verdict",
			"AlterShield Server has given no verdict for long, or gave none in time.", NeedsNotice, "", StepServer),
		condition(ConditionServer, isFalse, ReasonCheckFailed, "failed",
			"AlterShield Server failed a check of the order.", NeedsAction, ActorOwner, StepFix),
		condition(ConditionServer, isUnknown, ReasonReleaseEnded, "ended",
			"The release does not wait for AlterShield Server.", NeedsNothing, "", ""),

		condition(ConditionDefended, isFalse, ReasonWriteDenied, "write denied",
			"A policy, a quota, a missing right or a size limit denies a write of the operator. The operator retries, except above a size limit.",
			NeedsAction, ActorAdmin, StepDenied),
		condition(ConditionDefended, isFalse, ReasonObserving, "observe mode",
			"The operator only reports. Nothing is blocked, halted, held, rolled back or quarantined.", NeedsNotice, "", StepEnforce),
		condition(ConditionDefended, isFalse, ReasonLowered, "defense lowered",
			"Annotations of the workload turn parts of its defense off.", NeedsNotice, "", StepSettings),
		condition(ConditionDefended, isFalse, ReasonFreezeBypassed, "freeze bypassed",
			"The release bypassed admission in a freeze.", NeedsNotice, "", StepOperator),
		condition(ConditionDefended, isTrue, ReasonRecovered, "defended", "The workload is fully defended again.", NeedsNothing, "", ""),
	}
}

// otherEntries returns entries about conditions of the other kinds.
func otherEntries() []Entry {
	const batch, setting, policy, endpoint, pod = "ChangePod", "OpsConfigInfo", "DefensePolicy", "DefenseEndpoint", "Pod"
	return []Entry{
		of(batch, ConditionChecked, isTrue, ReasonPassed, "The check passed.", NeedsNothing, "", ""),
		of(batch, ConditionChecked, isTrue, ReasonCheckFailed, "A check failed pods of the batch.", NeedsAction, ActorOwner, StepFix),
		of(batch, ConditionChecked, isUnknown, ReasonSkipped, "The server has nothing to check. Other checks are running.", NeedsNothing, "", ""),
		of(batch, ConditionChecked, isFalse, ReasonSkipped, "There was nothing to check.", NeedsNothing, "", ""),
		of(batch, ConditionChecked, isFalse, ReasonNoServer,
			"No server is configured, or none was when the release began.", NeedsNothing, "", ""),
		of(batch, ConditionChecked, isFalse, ReasonReleaseEnded, "The release ended before the batch was checked.", NeedsNothing, "", ""),
		of(batch, ConditionChecked, isFalse, ReasonOrderNotAccepted, "The server has not accepted the order.", NeedsNotice, "", StepServer),
		of(batch, ConditionChecked, isFalse, ReasonNoVerdict,
			"The server gave no verdict in time.", NeedsNotice, "", StepServer),
		of(batch, ConditionChecked, isFalse, ReasonNotSubmitted, "The server did not take the check in time.", NeedsNotice, "", StepServer),
		of(batch, ConditionChecked, isFalse, ReasonRefused,
			"The server refused the check.", NeedsAction, ActorServerAdmin, StepServer),
		of(batch, ConditionSubmitted, isFalse, ReasonUnreachable,
			"The server does not answer. The operator retries.", NeedsTime, "", StepServer),
		of(batch, ConditionSubmitted, isFalse, ReasonPermissionDenied,
			"The server does not know the platform or its token.", NeedsAction, ActorServerAdmin, StepServer),
		of(batch, ConditionSubmitted, isFalse, ReasonNotConfigured,
			"The server does not know the scene or its step.", NeedsAction, ActorServerAdmin, StepServer),
		of(batch, ConditionSubmitted, isFalse, ReasonOrderNotAccepted, "The server has not accepted the order.", NeedsTime, "", StepServer),
		of(batch, ConditionSubmitted, isFalse, ReasonNotYetAccepted,
			"The server takes the end of the check only after its PRE check ended there. The operator retries.", NeedsTime, "", ""),
		of(batch, ConditionSubmitted, isFalse, ReasonUnconfirmed,
			"The server may have received the request. The operator retries.", NeedsTime, "", ""),
		of(batch, ConditionSubmitted, isFalse, EventForeignID,
			"The status named an order entry of another record. The check begins again.", NeedsTime, "", ""),
		of(batch, ConditionSubmitted, isTrue, ReasonStartedAgain,
			"The server lost the order entry. The PRE check continues at a second one.", NeedsNotice, "", ""),
		of(batch, ConditionSubmitted, isTrue, ReasonAccepted, "The server took the request.", NeedsNothing, "", ""),

		of(setting, ConditionAccepted, isTrue, ReasonInForce, "The value of spec is in force.", NeedsNothing, "", ""),
		of(setting, ConditionAccepted, isFalse, ReasonInvalidContent,
			"The content cannot be used.", NeedsAction, ActorAdmin, StepSettings),
		of(setting, ConditionAccepted, isFalse, ReasonTypeMismatch,
			"The name belongs to a setting of another type.", NeedsAction, ActorAdmin, StepSettings),
		of(setting, ConditionAccepted, isFalse, ReasonLocked,
			"The operator's object of this name is locked, so the namespace's object is ignored.", NeedsAction, ActorAdmin, StepSettings),
		of(setting, ConditionAccepted, isFalse, ReasonOfCluster,
			"The setting exists for the whole cluster only, so the namespace's object is ignored.", NeedsAction, ActorAdmin, StepSettings),
		of(setting, ConditionAccepted, isFalse, ReasonUnknownName,
			"No setting has this name. The object is ignored.", NeedsAction, ActorAdmin, StepSettings),
		of(setting, ConditionWebhooksConfigured, isFalse, ReasonConfigurationMissing,
			"A webhook configuration was deleted, so no block is effective.", NeedsAction, ActorAdmin, StepOperator),
		of(setting, ConditionWebhooksConfigured, isTrue, ReasonConfigured, "The webhook configurations exist again.", NeedsNothing, "", ""),
		of(setting, ConditionInstalled, isTrue, ReasonKnown,
			"This installation runs since lastTransitionTime. Workloads not released since then are baselines.", NeedsNothing, "", ""),
		of(setting, ConditionInstalled, isFalse, ReasonLeft,
			"The command `manager leave` ran. The next start begins an installation.", NeedsNothing, "", ""),
		of(setting, ConditionDefendsStatefulSet, isTrue, ReasonKnown,
			"StatefulSets are defended since lastTransitionTime. Older ones are baselines until their template changes.", NeedsNothing, "", ""),
		of(setting, ConditionDefendsDaemonSet, isTrue, ReasonKnown,
			"DaemonSets are defended since lastTransitionTime. Older ones are baselines until their template changes.", NeedsNothing, "", ""),

		of(policy, ConditionAccepted, isTrue, ReasonInForce,
			"The policy is accepted.", NeedsNothing, "", ""),
		of(policy, ConditionAccepted, isFalse, ReasonInvalidPolicy,
			"The policy cannot be used.",
			NeedsAction, ActorOwner, StepPolicy),
		of(policy, ConditionAccepted, isFalse, ReasonTooLarge,
			"The policy takes more than 64 KiB of memory.", NeedsAction, ActorOwner, StepPolicy),
		of(policy, ConditionAccepted, isFalse, ReasonTooMany,
			"More than 8 policies or 32 checks select a workload.", NeedsAction, ActorOwner, StepPolicy),
		of(policy, ConditionSetAside, isTrue, ReasonRulesDoNotEnd,
			"Three evaluations of its rules did not end in time. No rule of it is evaluated for ten minutes.",
			NeedsAction, ActorOwner, StepPolicy),
		of(policy, ConditionQueriesWork, isTrue, ReasonSeriesFound,
			"The queries of the policy found series when they were tried once.", NeedsNothing, "", ""),
		of(policy, ConditionQueriesWork, isFalse, ReasonUnknownMetric,
			"Prometheus has no series of a metric of the query.", NeedsAction, ActorOwner, StepQuery),
		of(policy, ConditionQueriesWork, isFalse, ReasonWrongLabel,
			"The metric has series, but none with a label of the query.", NeedsAction, ActorOwner, StepQuery),
		of(policy, ConditionQueriesWork, isFalse, ReasonNoSeries,
			"The result of a query has no series.", NeedsAction, ActorOwner, StepQuery),
		of(policy, ConditionQueriesWork, isFalse, ReasonQueryFailed,
			"A query or its failWhen cannot be evaluated.", NeedsAction, ActorOwner, StepQuery),
		of(policy, ConditionQueriesWork, isUnknown, ReasonNoEndpoint,
			"The endpoint of a query does not exist, or the policy may not use it.", NeedsAction, ActorAdmin, StepEndpoint),
		of(policy, ConditionQueriesWork, isUnknown, ReasonUnavailable,
			"The endpoint of a query does not answer. The query is tried again.", NeedsAction, ActorAdmin, StepEndpoint),
		of(policy, ConditionNotifies, isTrue, ReasonConfigured, "The endpoints of `notify` answer.", NeedsNothing, "", ""),
		of(policy, ConditionNotifies, isFalse, ReasonNoEndpoint,
			"An endpoint of `notify` does not exist, is no Alertmanager, or the policy may not use it.", NeedsAction, ActorAdmin, StepEndpoint),
		of(policy, ConditionNotifies, isFalse, ReasonUnavailable,
			"An endpoint of `notify` gets no alerts. Its conditions name the cause.", NeedsAction, ActorAdmin, StepEndpoint),

		of(endpoint, ConditionAccepted, isTrue, ReasonInForce, "The endpoint is accepted.", NeedsNothing, "", ""),
		of(endpoint, ConditionAccepted, isFalse, ReasonInvalidPolicy, "The spec cannot be used.", NeedsAction, ActorAdmin, StepEndpoint),
		of(endpoint, ConditionAccepted, isFalse, ReasonCredentials,
			"A Secret of the endpoint cannot be used.", NeedsAction, ActorAdmin, StepEndpoint),
		of(endpoint, ConditionReachable, isTrue, ReasonAnswers, "The endpoint answers the operator.", NeedsNothing, "", ""),
		of(endpoint, ConditionReachable, isFalse, ReasonUnavailable,
			"The endpoint gives no valid answer. The operator tries again each minute.", NeedsAction, ActorAdmin, StepEndpoint),
		of(endpoint, ConditionReachable, isFalse, ReasonQueryFailed,
			"The endpoint refuses the query vector(1), or an empty list of alerts.", NeedsAction, ActorAdmin, StepEndpoint),
		of(endpoint, ConditionReachable, isUnknown, ReasonNotConfigured,
			"The endpoint is not called until it is accepted.", NeedsNotice, "", StepEndpoint),

		of(pod, ConditionServerHealthy, isTrue, ReasonAnswers,
			"AlterShield Server answers the heartbeats of this replica.", NeedsNothing, "", ""),
		of(pod, ConditionServerHealthy, isFalse, ReasonUnreachable,
			"AlterShield Server did not answer two heartbeats in a row.", NeedsAction, ActorServerAdmin, StepServer),
		of(pod, ConditionServerHealthy, isFalse, ReasonAnswersWithErrors,
			"AlterShield Server answers with errors of its own.", NeedsAction, ActorServerAdmin, StepServer),
		of(pod, ConditionServerHealthy, isFalse, ReasonPermissionDenied,
			"AlterShield Server does not know the platform or its token, or the token cannot be read.",
			NeedsAction, ActorServerAdmin, StepServer),
	}
}

// kindEntries returns entries about conditions of ChangeKinds.
func kindEntries() []Entry {
	const kind = "ChangeKind"
	return []Entry{
		of(kind, ConditionAccepted, isTrue, ReasonInForce, "The declaration is accepted.", NeedsNothing, "", ""),
		of(kind, ConditionAccepted, isFalse, ReasonInvalidPolicy, "The declaration cannot be used.", NeedsAction, ActorAdmin, StepKind),
		of(kind, ConditionAccepted, isFalse, ReasonHaltedObjects,
			"Objects are halted or held by a field that the declaration no longer names. Resume them, or name the field again.",
			NeedsAction, ActorAdmin, StepKind),
		of(kind, ConditionAccepted, isUnknown, ReasonNotServed,
			"The declaration is judged once the API server serves the kind.", NeedsNotice, "", StepKind),
		of(kind, ConditionServed, isTrue, ReasonServed, "The API server serves the kind in this version.", NeedsNothing, "", ""),
		of(kind, ConditionServed, isFalse, ReasonNotServed,
			"The API server does not serve the kind in this version, so no block of its objects is effective.", NeedsAction, ActorAdmin, StepKind),
		of(kind, ConditionAuthorized, isTrue, ReasonAuthorized, "The operator has the permissions.", NeedsNothing, "", ""),
		of(kind, ConditionAuthorized, isFalse, ReasonPermissionDenied,
			"The operator lacks permissions. Grant them by a ClusterRole with the label that the operator aggregates.",
			NeedsAction, ActorAdmin, StepKind),
		of(kind, ConditionIntercepted, isTrue, ReasonConfigured, "Webhooks see changes of the objects.", NeedsNothing, "", ""),
		of(kind, ConditionIntercepted, isFalse, ReasonObserving,
			"spec.admission is Observe. The operator finds changes, and blocks none.", NeedsNotice, "", ""),
		of(kind, ConditionIntercepted, isFalse, ReasonNotDefended,
			"The objects are not defended, so no webhook sees their changes.", NeedsNotice, "", StepKind),
		of(kind, ConditionIntercepted, isFalse, ReasonWriteDenied,
			"The webhook configurations cannot be written. The operator retries.", NeedsAction, ActorAdmin, StepDenied),
		of(kind, ConditionReady, isTrue, ReasonDefended, "The objects are defended.", NeedsNothing, "", ""),
		of(kind, ConditionReady, isFalse, ReasonNotDefended,
			"The objects are not defended, or not by this declaration.", NeedsAction, ActorAdmin, StepKind),
		of(kind, ConditionReady, isFalse, ReasonFilling, "The operator reads the objects for the first time.", NeedsTime, "", ""),
		of(kind, ConditionReady, isFalse, ReasonRebaselining,
			"The declaration of the content changed. The present content of the objects becomes a baseline.", NeedsTime, "", ""),
		of(kind, ConditionReady, isFalse, ReasonLeaving,
			"The ChangeKind is being deleted. The operator takes back its blocks, halts and holds first.", NeedsTime, "", ""),
	}
}

func eventEntries() []Entry {
	return []Entry{
		event(EventReleaseStarted, "Verification of the release started.", NeedsNothing, "", ""),
		event(EventReleaseSucceeded, "The release succeeded.", NeedsNothing, "", ""),
		event(EventReleaseSuspended, "The release failed its verification.", NeedsAction, ActorOwner, StepFix),
		event(EventReleaseCanceled,
			"The release ended early.", NeedsNothing, "", ""),
		event(EventReleaseUnverified,
			"AlterShield Server does not verify the release.",
			NeedsAction, ActorServerAdmin, StepServer),
		event(EventAdmissionBypassed,
			"A release bypassed admission. The operator recorded it.",
			NeedsNotice, "", StepOperator),
		event(EventWaitingForServer,
			"The release waits for AlterShield Server.", NeedsTime, "", StepServer),
		event(EventForeignID,
			"A status named an order or an order entry of another record. The operator begins that check again.",
			NeedsNotice, "", StepReview),
		event(EventVerdictCorrected, "A user corrected verdicts.", NeedsNotice, "", StepReview),
		event(EventCheckFailed, "A check of a policy failed.", NeedsAction, ActorOwner, StepPolicy),
		event(EventCheckError,
			"A check ended without a result.", NeedsNotice, "", StepPolicy),
		event(EventMoreRestarts,
			"New pods restart more often than old pods. No pod fails because of it.", NeedsNotice, "", StepPods),
		event(EventBlockLifted, "The operator lifted the block.", NeedsNothing, "", ""),
		event(EventBlockOverridden, "A user overrode the block, the quarantine, the halt or the hold.", NeedsNotice, "", StepReleaseOnce),
		event(EventRolloutHalted, "The operator halted the rollout because this version failed.", NeedsAction, ActorOwner, StepHalted),
		event(EventRolloutResumed, "The halt ended.", NeedsNothing, "", ""),
		event(EventHoldStarted, "The rollout waits for the verdicts on its pods.", NeedsTime, "", StepHold),
		event(EventHoldEnded, "The hold, or a wave of it, ended.", NeedsNothing, "", ""),
		event(EventFreezeBroken, "A release passed a freeze, with a reason or as a version that succeeded before.", NeedsNotice, "", StepReview),
		event(EventReleaseUndone, "A user released a known good version while this one was failed.", NeedsNotice, "", ""),
		event(EventRolledBack,
			"The operator rolled the release back. Its version is quarantined.", NeedsNotice, "", StepRelease),
		event(EventRollbackRequested, "A user wrote the state Rollback.", NeedsNotice, "", StepReview),
		event(EventRollbackRefused,
			"A rollback is refused or waits.", NeedsAction, ActorOwner, StepPods),
		event(EventQuarantineEnded, "A user ended the quarantine of a version.", NeedsNotice, "", ""),
		event(EventPodsUnavailable,
			"Pods are not available.", NeedsAction, ActorOwner, StepPods),
		event(EventPodEvicted, "The operator evicted a stuck pod of the rolled-back version.", NeedsNotice, "", ""),
		event(EventEvictionBlocked,
			"The operator does not evict a stuck pod.", NeedsAction, ActorOwner, StepDeletePod),
		event(EventRevisionNotFound,
			"Pods are replaced that have the template already.",
			NeedsNotice, "", ""),
		event(EventDryRun,
			"Observe mode only reports.", NeedsNotice, "", StepEnforce),
		event(EventOptedOut,
			"The workload left the defense, or is in observe mode, while the defense had an effect.", NeedsNotice, "", StepReview),
		event(EventDeletedWhileBlocked,
			"A blocked or quarantined workload was deleted or created again.", NeedsNotice, "", StepReview),
		event(EventDefenseChanged,
			"The defense changed.", NeedsNotice, "", StepSettings),
		event(EventSettingsAltered, "The release also changed settings of the workload.", NeedsNotice, "", StepReview),
		event(EventUnknownMetadata,
			"A label or an annotation cannot be used.",
			NeedsAction, ActorOwner, StepSettings),
		event(EventWriteDenied,
			"A policy, a quota, a missing right or a size limit denies a write of the operator. The operator retries, except above a size limit.",
			NeedsAction, ActorAdmin, StepDenied),
		event(EventWebhookConfigurationMissing,
			"A webhook configuration was deleted, so no block is effective.", NeedsAction, ActorAdmin, StepOperator),
		event(EventServerHealthChanged,
			"The health of AlterShield Server changed.", NeedsNotice, "", StepServer),
	}
}
