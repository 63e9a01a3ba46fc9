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

package plugin

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// telling is how a condition of a release is told: who is needed, the word for it in a
// list, a sentence, and what may be done.
type telling struct {
	needs Needs
	what  string
	says  string
	do    func(*finder) []Advice
}

// repeats says that a message says no more.
func (t telling) repeats(message string) bool {
	return strings.Contains(strings.ToLower(t.says), strings.ToLower(message))
}

// said is a condition without its message.
type said struct {
	kind, status, reason string
}

// tellCondition is a condition in one sentence, with what the operator says.
func tellCondition(c *metav1.Condition) string {
	t := tellingOf(c)
	if t.repeats(c.Message) {
		return t.says
	}
	return t.says + " (" + c.Message + ")"
}

// tellingOf is how a condition is told. One that this build does not know speaks for
// itself.
func tellingOf(c *metav1.Condition) telling {
	if t, ok := tellings[said{c.Type, string(c.Status), c.Reason}]; ok {
		return t
	}
	return telling{NeedsNothing, c.Reason, fmt.Sprintf("%s is %s: %s.", c.Type, c.Status, c.Reason), nil}
}

const (
	isTrue    = string(metav1.ConditionTrue)
	isFalse   = string(metav1.ConditionFalse)
	isUnknown = string(metav1.ConditionUnknown)
)

// What may be done, for more than one condition.
var (
	doWatch = func(f *finder) []Advice { return []Advice{f.watch()} }
	doCheck = func(f *finder) []Advice { return []Advice{f.check()} }
	// doFailed is right when the version fails.
	doFailed = func(f *finder) []Advice { return f.waysOut() }
	// doMend is right when pods do not come up.
	doMend = func(f *finder) []Advice {
		do := []Advice{f.lookAtPods(), f.releaseAnother(f.sight)}
		return append(do, f.rollbackIfAny()...)
	}
	doSlow = func(f *finder) []Advice { return append(doMend(f), f.moreTime()) }
	// doStuck is right when the cluster does not make the pods.
	doStuck = func(f *finder) []Advice {
		do := []Advice{f.describe(), f.lookAtPods()}
		return append(do, f.rollbackIfAny()...)
	}
	doResume    = func(f *finder) []Advice { return []Advice{f.resume(&f.workload.Words)} }
	doGoOn      = func(f *finder) []Advice { return []Advice{f.goOn(&f.workload.Words)} }
	doDeletePod = func(f *finder) []Advice { return []Advice{f.deletePod(), f.goOn(&f.workload.Words)} }
	doBrake     = func(f *finder) []Advice { return append([]Advice{f.elsewhere()}, doMend(f)...) }
	doDescribe  = func(f *finder) []Advice { return []Advice{f.describe()} }
	doOverrides = func(f *finder) []Advice { return []Advice{f.overrides()} }
	// doDeleteStuck is right when a pod is stuck that the operator may not evict.
	doDeleteStuck = func(f *finder) []Advice { return append(f.deleteStuck(), f.lookAtPods()) }
	doHeld        = func(f *finder) []Advice { return []Advice{f.watch(), f.endHold()} }
	// doResumeHalted is right where the operator halted the rollout, and not a user. What
	// was resumed since is about to be told so.
	doResumeHalted = func(f *finder) []Advice {
		if do := f.resumeHalted(); do != nil {
			return do
		}
		return doWatch(f)
	}
	// doMadeAgain is right when it brings nothing to have such a pod go.
	doMadeAgain = func(f *finder) []Advice { return append(f.madeAgain(), f.lookAtPods()) }
)

// tellings are how the conditions of a release are told, as docs/states.md lists them.
var tellings = map[said]telling{}

// add puts tellings of one kind of condition among the others.
func add(kind string, of map[[2]string]telling) {
	for at, t := range of {
		tellings[said{kind, at[0], at[1]}] = t
	}
}

func init() {
	add(v1alpha1.ConditionProgressing, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonRollingOut}:       {NeedsNothing, "rolling out", "Pods are being replaced.", doWatch},
		{isTrue, v1alpha1.ReasonRolloutComplete}:  {NeedsNoWord, "rolled out", "Every pod runs this version and is available.", nil},
		{isFalse, v1alpha1.ReasonRolloutHalted}:   {NeedsSomebody, "halted", "The operator halted the rollout, because this version failed.", doResumeHalted},
		{isFalse, v1alpha1.ReasonRolloutPaused}:   {NeedsSomebody, "paused", "Somebody halted the rollout: the release goes on when it is resumed.", doResume},
		{isFalse, v1alpha1.ReasonPartitioned}:     {NeedsSomebody, "partitioned", "A partition that a user set keeps pods at the version before: the release goes on when it is lowered.", doGoOn},
		{isFalse, v1alpha1.ReasonOnDelete}:        {NeedsSomebody, "replaced on delete", "Pods are replaced only when somebody deletes them: the release goes on with each that is.", doDeletePod},
		{isFalse, v1alpha1.ReasonRolloutStuck}:    {NeedsSomebody, "stuck", "The rollout does not move.", doStuck},
		{isFalse, v1alpha1.ReasonReplaced}:        {NeedsNothing, "replaced", "A newer release replaced this one.", nil},
		{isFalse, v1alpha1.ReasonWorkloadDeleted}: {NeedsNothing, "deleted", "The workload is deleted.", nil},
		{isFalse, v1alpha1.ReasonUnmanaged}:       {NeedsNothing, "left the defense", "The workload left the defense before the release ended.", nil},
	})
	add(v1alpha1.ConditionVerified, map[[2]string]telling{
		{isUnknown, v1alpha1.ReasonChecking}:        {NeedsNothing, "being verified", "The verification goes on.", doWatch},
		{isTrue, v1alpha1.ReasonAllPassed}:          {NeedsNoWord, "verified", "Every pod passed.", nil},
		{isTrue, v1alpha1.ReasonPassedUnverified}:   {NeedsNothing, "not verified", "Pods passed without a verdict of AlterShield Server.", doCheck},
		{isFalse, v1alpha1.ReasonPodFailed}:         {NeedsSomebody, "failed", "A pod failed its verification.", doFailed},
		{isFalse, v1alpha1.ReasonOrderCheckFailed}:  {NeedsSomebody, "failed", "AlterShield Server failed the order as a whole.", doFailed},
		{isFalse, v1alpha1.ReasonCheckFailed}:       {NeedsSomebody, "failed", "A check of a policy failed the release as a whole.", doFailed},
		{isUnknown, v1alpha1.ReasonNothingVerified}: {NeedsNothing, "nothing verified", "The release had no pod: nothing was verified, and it lifts no block until a pod has passed.", nil},
		{isUnknown, v1alpha1.ReasonRefused}:         {NeedsNothing, "not verified", "The release is not verified, because AlterShield Server refused its order.", nil},
		{isUnknown, v1alpha1.ReasonReleaseEnded}:    {NeedsNothing, "not verified", "The release ended before its verification did.", nil},
	})
	add(v1alpha1.ConditionHeld, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonWaitingForVerdicts}: {NeedsTime, "held", "The rollout waits for the verdicts on its pods, and then goes on by itself.", doHeld},
		{isFalse, v1alpha1.ReasonHoldVerified}:      {NeedsNoWord, "went on", "The rollout waited for its verdicts, which passed.", nil},
		{isFalse, v1alpha1.ReasonHoldRanOut}:        {NeedsNothing, "went on without verdicts", "The rollout waited as long as it may, and went on without verdicts.", nil},
		{isFalse, v1alpha1.ReasonHoldFailed}:        {NeedsNothing, "hold ended", "The rollout does not wait any more, because the release failed.", nil},
		{isFalse, v1alpha1.ReasonHoldStuck}: {NeedsNothing, "hold ended, pods are stuck",
			"A pod of an earlier version is not Ready, so the rollout does not wait for verdicts any longer.", nil},
		{isFalse, v1alpha1.ReasonHoldEdited}: {NeedsNothing, "hold ended by hand", "The rollout does not wait any more, because somebody set a field by which it did.", nil},
		{isFalse, v1alpha1.ReasonHoldEnded}:  {NeedsNoWord, "hold ended", "There is nothing that the rollout waits for any more.", nil},
		{isFalse, v1alpha1.ReasonNotHeld}:    {NeedsNothing, "not held", "The rollout does not wait for its verdicts, although something asks for that.", nil},
	})
	add(v1alpha1.ConditionBlocked, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonPodFailed}:         {NeedsSomebody, "blocked", "The workload is blocked, because a pod of this release failed.", doFailed},
		{isTrue, v1alpha1.ReasonOrderCheckFailed}:  {NeedsSomebody, "blocked", "The workload is blocked, because AlterShield Server failed this release.", doFailed},
		{isTrue, v1alpha1.ReasonCheckFailed}:       {NeedsSomebody, "blocked", "The workload is blocked, because a check failed this release.", doFailed},
		{isFalse, v1alpha1.ReasonBlockedAlready}:   {NeedsSomebody, "failed, blocked already", "It failed, too; the block because of an earlier release stands.", doFailed},
		{isFalse, v1alpha1.ReasonBlockingDisabled}: {NeedsSomebody, "failed, not blocked", "It is not blocked, because the setting blocking was off when it failed.", doFailed},
		{isFalse, v1alpha1.ReasonBlockDenied}:      {NeedsSomebody, "failed, not blocked", "It is not blocked, because something denies the operator's write.", doDescribe},
		{isFalse, v1alpha1.ReasonLifted}:           {NeedsSomebody, "failed, block lifted", "Somebody lifted the block by hand.", doFailed},
		{isFalse, v1alpha1.ReasonCorrected}:        {NeedsNoWord, "corrected", "The failing verdict was corrected.", nil},
		{isFalse, v1alpha1.ReasonObserving}:        {NeedsSomebody, "failed, only observed", "It is not blocked, because the workload is only observed.", doFailed},
	})
	addRolledBack()
	addPods()
	addOrder()
	addDefense()
}

func addRolledBack() {
	add(v1alpha1.ConditionRolledBack, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonNeverStarted}:          {NeedsNothing, "rolled back", "It was rolled back, because its pods did not come up.", nil},
		{isTrue, v1alpha1.ReasonVerificationFailed}:    {NeedsNothing, "rolled back", "It was rolled back, because its verification failed.", nil},
		{isTrue, v1alpha1.ReasonRollbackRequested}:     {NeedsNothing, "rolled back", "It was rolled back, because somebody asked for it.", nil},
		{isUnknown, v1alpha1.ReasonVerificationFailed}: {NeedsTime, "about to be rolled back", "It failed its verification, and is about to be rolled back.", doWatch},
		{isFalse, v1alpha1.ReasonStillWaiting}:         {NeedsTime, "pods are slow", "A pod is slow to come up. The release is rolled back if that takes too long.", doSlow},
		{isFalse, v1alpha1.ReasonTolerated}:            {NeedsSomebody, "pods hang", "Pods do not come up, but so few, or on one node only, that the release is not rolled back because of them.", doMend},
		{isFalse, v1alpha1.ReasonObserving}:            {NeedsSomebody, "fails, only observed", "It would have been rolled back. It is not, because the workload is only observed.", doMend},
		{isFalse, v1alpha1.ReasonRollbackRefused}:      {NeedsSomebody, "fails, not rolled back", "It fails, and is not rolled back, because that could make things worse: somebody has to decide.", doMend},
		{isFalse, v1alpha1.ReasonBrake}:                {NeedsTime, "rollback waits", "A rollback is due, and waits, because too many releases were rolled back recently. The cause may be none of the version.", doBrake},
		{isFalse, v1alpha1.ReasonRequestRefused}:       {NeedsSomebody, "rollback refused", "Somebody asked for a rollback, which was refused.", doDescribe},
		{isFalse, v1alpha1.ReasonRecovered}:            {NeedsNoWord, "recovered", "What failed is well again.", nil},
	})
}

func addPods() {
	add(v1alpha1.ConditionPodsUnavailable, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonPodsFail}:       {NeedsSomebody, "pods fail", "Pods of the release fail.", doMend},
		{isTrue, v1alpha1.ReasonPodsSlow}:       {NeedsSomebody, "pods unavailable", "Pods of the release have not been available for some time.", doMend},
		{isTrue, v1alpha1.ReasonPodsNotMade}:    {NeedsSomebody, "pods not made", "Pods are asked for, and something refuses them.", doStuck},
		{isFalse, v1alpha1.ReasonPodsAvailable}: {NeedsNoWord, "pods are well", "The pods are well again.", nil},
		{isFalse, v1alpha1.ReasonReleaseEnded}:  {NeedsNoWord, "ended", "The release ended.", nil},
	})
	add(v1alpha1.ConditionProven, map[[2]string]telling{
		{isUnknown, v1alpha1.ReasonProving}: {NeedsNoWord, "proving", "The version has to run well a little longer before a rollback prefers it.", nil},
		{isTrue, v1alpha1.ReasonRanWell}:    {NeedsNoWord, "proven", "The version has run well for long enough.", nil},
		{isFalse, v1alpha1.ReasonPodsFail}:  {NeedsSomebody, "not proven", "Too many pods failed or restarted soon after the success: no rollback goes to this version.", doMend},
	})
}

// addOrder is about AlterShield Server.
func addOrder() {
	add(v1alpha1.ConditionOrderAccepted, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonAccepted}:          {NeedsNoWord, "order accepted", "AlterShield Server accepted the order.", nil},
		{isFalse, v1alpha1.ReasonUnreachable}:      {NeedsTime, "server unreachable", "AlterShield Server does not answer: the operator tries again.", doCheck},
		{isFalse, v1alpha1.ReasonPermissionDenied}: {NeedsSomebody, "server denies", "AlterShield Server does not know the platform or its token: the release waits until somebody repairs that.", doCheck},
		{isFalse, v1alpha1.ReasonNotConfigured}:    {NeedsSomebody, "server not configured", "AlterShield Server does not know the scene: it has to be registered there.", doCheck},
		{isFalse, v1alpha1.EventForeignID}:         {NeedsTime, "order unknown", "The record named an order of another record: it is not believed, and the operator begins again.", doDescribe},
		{isFalse, v1alpha1.ReasonUnprocessable}:    {NeedsSomebody, "server fails at it", "AlterShield Server fails at the order, and always will.", doCheck},
		{isFalse, v1alpha1.ReasonRefused}:          {NeedsSomebody, "order refused", "AlterShield Server refused the order: this version is not verified, and lifts no block.", func(f *finder) []Advice { return []Advice{f.releaseAnother(f.sight)} }},
	})
	for kind, which := range map[string]string{v1alpha1.ConditionOrderPreChecked: "PRE", v1alpha1.ConditionOrderPostChecked: "POST"} {
		check := "The " + which + " check of the order "
		add(kind, map[[2]string]telling{
			{isUnknown, v1alpha1.ReasonChecking}:       {NeedsNothing, "being checked", check + "goes on.", doWatch},
			{isUnknown, v1alpha1.ReasonStartedAgain}:   {NeedsNothing, "being checked", check + "goes on at a second node, because the server lost the first one.", doWatch},
			{isTrue, v1alpha1.ReasonPassed}:            {NeedsNoWord, "passed", check + "passed.", nil},
			{isTrue, v1alpha1.ReasonSkipped}:           {NeedsNoWord, "nothing to check", check + "had nothing to check.", nil},
			{isFalse, v1alpha1.ReasonCheckFailed}:      {NeedsSomebody, "failed", check + "failed.", doFailed},
			{isFalse, v1alpha1.ReasonTimeout}:          {NeedsNothing, "no verdict", check + "had no verdict in time, and the server did not answer.", doCheck},
			{isFalse, v1alpha1.ReasonPolledNotPassed}:  {NeedsNothing, "no verdict", check + "had no verdict in time; the server says that it has not passed.", nil},
			{isUnknown, v1alpha1.ReasonReleaseEnded}:   {NeedsNothing, "ended", check + "does not count: the release ended without success.", nil},
			{isFalse, v1alpha1.ReasonSubmitFailed}:     {NeedsNothing, "not submitted", check + "could not be submitted in time, or was refused.", doCheck},
			{isFalse, v1alpha1.ReasonNotConfigured}:    {NeedsSomebody, "server not configured", check + "is not known to the server: the scene has to be registered there.", doCheck},
			{isFalse, v1alpha1.ReasonUnreachable}:      {NeedsTime, "server unreachable", check + "cannot be submitted: the server does not answer.", doCheck},
			{isFalse, v1alpha1.ReasonPermissionDenied}: {NeedsSomebody, "server denies", check + "cannot be submitted: the server does not know the platform or its token.", doCheck},
			{isFalse, v1alpha1.ReasonNotYetAccepted}:   {NeedsTime, "waits for the server", check + "is not taken yet: the PRE check goes on there.", nil},
			{isFalse, v1alpha1.ReasonUnconfirmed}:      {NeedsTime, "waits for the server", check + "may have arrived or not: the operator tries again.", nil},
		})
	}
	add(v1alpha1.ConditionWaitsForServer, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonOrderNotAccepted}:   {NeedsTime, "waits for the server", "The release has waited long for AlterShield Server to accept its order.", doCheck},
		{isTrue, v1alpha1.ReasonPermissionDenied}:   {NeedsSomebody, "server denies", "The release waits until somebody repairs the platform's token.", doCheck},
		{isTrue, v1alpha1.ReasonCheckNotSubmitted}:  {NeedsTime, "waits for the server", "A check could not be submitted to AlterShield Server for long.", doCheck},
		{isTrue, v1alpha1.ReasonVerdictOutstanding}: {NeedsTime, "waits for the server", "A check has had no verdict of AlterShield Server for long.", doWatch},
		{isFalse, v1alpha1.ReasonAnswered}:          {NeedsNoWord, "answered", "AlterShield Server answered.", nil},
		{isFalse, v1alpha1.ReasonPassedUnverified}:  {NeedsNoWord, "no verdict", "AlterShield Server gave no verdict in time.", nil},
		{isFalse, v1alpha1.ReasonReleaseEnded}:      {NeedsNoWord, "ended", "The release ended before AlterShield Server answered.", nil},
	})
	add(v1alpha1.ConditionOrderEnded, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonAccepted}:          {NeedsNoWord, "order ended", "AlterShield Server knows how the order ended.", nil},
		{isFalse, v1alpha1.ReasonUnreachable}:      {NeedsNothing, "server not told", "AlterShield Server could not be told how the order ended. The release does not depend on it.", nil},
		{isFalse, v1alpha1.ReasonPermissionDenied}: {NeedsNothing, "server not told", "AlterShield Server does not let itself be told how the order ended. The release does not depend on it.", doCheck},
		{isFalse, v1alpha1.ReasonRefused}:          {NeedsNothing, "server not told", "AlterShield Server refused to be told how the order ended. The release does not depend on it.", nil},
		{isFalse, v1alpha1.ReasonTimeout}:          {NeedsNothing, "server not told", "AlterShield Server could not be told in time how the order ended. The release does not depend on it.", nil},
	})
}

// addDefense is about what the operator may do.
func addDefense() {
	add(v1alpha1.ConditionDefended, map[[2]string]telling{
		{isFalse, v1alpha1.ReasonObserving}: {NeedsNothing, "observed", "The workload is only observed.", func(f *finder) []Advice { return f.defendFully(f.sight) }},
		{isFalse, v1alpha1.ReasonLowered}:   {NeedsNothing, "defense lowered", "Annotations of the workload turn a part of its defense off.", doOverrides},
		{isTrue, v1alpha1.ReasonInFull}:     {NeedsNoWord, "defended", "The workload is fully defended again.", nil},
	})
	add(v1alpha1.ConditionOverridesAccepted, map[[2]string]telling{
		{isFalse, v1alpha1.ReasonInvalidOverride}: {NeedsSomebody, "setting not accepted", "An annotation by which the workload has a setting of its own cannot be used.", doOverrides},
		{isTrue, v1alpha1.ReasonAccepted}:         {NeedsNoWord, "settings accepted", "The settings of the workload's own can be used.", nil},
	})
	add(v1alpha1.ConditionRepairBlocked, map[[2]string]telling{
		{isTrue, v1alpha1.ReasonDisruptionBudget}: {NeedsSomebody, "pod stuck", "A pod of a version that was left keeps the rollout back, and a PodDisruptionBudget keeps the pod.", doDeleteStuck},
		{isTrue, v1alpha1.ReasonEvictionRefused}:  {NeedsSomebody, "pod stuck", "A pod of a version that was left keeps the rollout back, and the operator may not evict it.", doDeleteStuck},
		{isTrue, v1alpha1.ReasonRepairDisabled}:   {NeedsSomebody, "pod stuck", "A pod of a version that was left keeps the rollout back, and the setting repair is off.", doDeleteStuck},
		{isTrue, v1alpha1.ReasonMadeAgain}:        {NeedsSomebody, "pod stuck", "A pod of a version that was left keeps the rollout back, and the StatefulSet makes it of such a version again when it goes.", doMadeAgain},
		{isTrue, v1alpha1.ReasonVersionUnknown}:   {NeedsSomebody, "pod stuck", "A pod of another version keeps the rollout back, and the operator does not know whether that version is bad.", doDeleteStuck},
		{isFalse, v1alpha1.ReasonRecovered}:       {NeedsNoWord, "not stuck", "Nothing is in the way of a pod that is stuck any more.", nil},
		{isFalse, v1alpha1.ReasonReleaseEnded}:    {NeedsNoWord, "ended", "The release ended while a pod was stuck.", nil},
	})
	denied := func(what string) telling {
		return telling{NeedsSomebody, "write denied", "Something denies the operator a write: " + what + " The operator tries again.", doDescribe}
	}
	add(v1alpha1.ConditionWritesAccepted, map[[2]string]telling{
		{isFalse, v1alpha1.ReasonBlockDenied}:    denied("the workload could not be blocked."),
		{isFalse, v1alpha1.ReasonLiftDenied}:     denied("the block could not be lifted."),
		{isFalse, v1alpha1.ReasonResumeDenied}:   denied("the rollout could not be resumed."),
		{isFalse, v1alpha1.ReasonPaceDenied}:     denied("the rollout could not be held, or let go on."),
		{isFalse, v1alpha1.ReasonBatchDenied}:    denied("a batch could not be made."),
		{isFalse, v1alpha1.ReasonRollbackDenied}: denied("the workload could not be rolled back."),
		{isFalse, v1alpha1.ReasonRequestDenied}:  denied("a request for a rollback could not be noted."),
		{isFalse, v1alpha1.ReasonRecordDenied}:   denied("the release could not be recorded."),
		{isTrue, v1alpha1.ReasonAccepted}:        {NeedsNoWord, "writes accepted", "The operator's writes are accepted again.", nil},
	})
}
