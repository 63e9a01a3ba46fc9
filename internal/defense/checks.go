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

package defense

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// ServerCheck is the name of the check by AlterShield Server.
const ServerCheck = "altershield"

// CheckIsOver says that a check has said what it had to say.
func CheckIsOver(c *v1alpha1.CheckStatus) bool {
	switch c.Phase {
	case "", v1alpha1.CheckPending, v1alpha1.CheckRunning:
		return false
	default:
		return true
	}
}

// FindCheck finds a check by its name; nil when there is none.
func FindCheck(checks []v1alpha1.CheckStatus, name string) *v1alpha1.CheckStatus {
	i := slices.IndexFunc(checks, func(c v1alpha1.CheckStatus) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &checks[i]
}

// SetCheck puts a check among the others. The time at which it ended is that of
// its first end.
func SetCheck(checks *[]v1alpha1.CheckStatus, c v1alpha1.CheckStatus, now time.Time) {
	if len(c.Message) > maxCheckMessage {
		c.Message = cutAtRune(c.Message, maxCheckMessage-len("...")) + "..."
	}
	c.FailedPods = c.FailedPods[:min(len(c.FailedPods), MaxFailedPods)]
	known := FindCheck(*checks, c.Name)
	if CheckIsOver(&c) && c.Phase != v1alpha1.CheckWatching && c.CompletionTime == nil {
		c.CompletionTime = timeOf(now)
		if known != nil && known.Phase == c.Phase && known.CompletionTime != nil {
			c.CompletionTime = known.CompletionTime
		}
	}
	if known != nil {
		*known = c
		return
	}
	*checks = append(*checks, c)
}

// maxCheckMessage is the limit of the API for the message of a check, in bytes.
const maxCheckMessage = 1024

// MaxFailedPods is the limit of the API for the pods that a check names.
const MaxFailedPods = 20

// timeOf is a time as the API keeps it.
func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	kept := metav1.NewTime(t.Truncate(time.Second))
	return &kept
}

func timeOrZero(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// checksOver says that all checks of these names are over.
func checksOver(checks []v1alpha1.CheckStatus, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		c := FindCheck(checks, name)
		return c == nil || !CheckIsOver(c)
	})
}

// failedCheck is the first check beside the server's that failed, and is not only
// observed; nil for none.
func failedCheck(checks []v1alpha1.CheckStatus) *v1alpha1.CheckStatus {
	for i := range checks {
		if c := &checks[i]; c.Name != ServerCheck && c.Phase == v1alpha1.CheckFailed && c.Mode != v1alpha1.ModeObserve {
			return c
		}
	}
	return nil
}

// silentCheck is the first of these names that ended without a verdict where that
// fails; nil for none.
func silentCheck(checks []v1alpha1.CheckStatus, names []string, silenceFails bool) *v1alpha1.CheckStatus {
	for _, name := range names {
		c := FindCheck(checks, name)
		if c == nil || c.Mode == v1alpha1.ModeObserve || c.OnSilence == v1alpha1.SilencePasses || c.OnSilence != v1alpha1.SilenceFails && !silenceFails {
			continue
		}
		if hasNoVerdict(c) {
			return c
		}
	}
	return nil
}

// namesOf are the names of checks beside the server's.
func namesOf(checks []v1alpha1.CheckStatus) (names []string) {
	for i := range checks {
		if name := checks[i].Name; name != ServerCheck {
			names = append(names, name)
		}
	}
	return names
}

// describeCheck is a check in one line, as the message of a verdict.
func describeCheck(c *v1alpha1.CheckStatus) string {
	return c.Name + ": " + cmp.Or(c.Message, c.Reason, string(c.Phase))
}

// BeginCheck is a check to begin with a batch.
type BeginCheck struct {
	// Status has its name, type and mode, and how pods are.
	Status v1alpha1.CheckStatus
	// Due is when it has seen all it is to see, and Deadline when it gives up, from
	// when it is written down.
	Due, Deadline time.Duration
}

// begins says that checks may begin with the batch: with its first write, so that
// which there are does not change. A batch that is done, or whose release has ended,
// gets none any more.
func (b *batch) begins() bool {
	return b.Batch.Status.Status != v1alpha1.ChangePodExecuteDone && b.Change != nil && IsCurrentBatch(b.Change, b.Batch) &&
		!slices.ContainsFunc(b.Batch.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Name != ServerCheck })
}

// begin writes the checks down that begin with the batch.
func (b *batch) begin() {
	waits := slices.ContainsFunc(b.Begin, func(c BeginCheck) bool { return c.Status.Stage == v1alpha1.StageBatchPre && !c.Status.Background })
	for i := range b.Begin {
		c := b.Begin[i].begun(b.Now)
		if waits && c.Stage != v1alpha1.StageBatchPre {
			c.Phase, c.StartTime, c.DueTime, c.Deadline = v1alpha1.CheckPending, nil, nil, nil
		}
		SetCheck(&b.status.Checks, c, b.Now)
	}
}

// isPending says that a check of a policy waits for those of the stage before.
func isPending(c *v1alpha1.CheckStatus) bool { return c.Type != "" && c.Phase == v1alpha1.CheckPending }

// beginPending begins the checks that waited for those at BatchPre, once these are over:
// as their policies want them by then. Where one failed, the batch is over, too.
func (b *batch) beginPending() {
	before := func(c v1alpha1.CheckStatus) bool {
		return c.Stage == v1alpha1.StageBatchPre && !c.Background && !CheckIsOver(&c)
	}
	if b.status.Status == v1alpha1.ChangePodExecuteDone || failedCheck(b.status.Checks) != nil || slices.ContainsFunc(b.status.Checks, before) {
		return
	}
	for i := range b.status.Checks {
		c := &b.status.Checks[i]
		if !isPending(c) {
			continue
		}
		at := slices.IndexFunc(b.mayBegin, func(m BeginCheck) bool { return m.Status.Name == c.Name && m.Status.Stage == c.Stage })
		if at >= 0 {
			SetCheck(&b.status.Checks, b.mayBegin[at].begun(b.Now), b.Now)
			continue
		}
		canceled := *c
		canceled.Phase, canceled.Reason, canceled.Message = v1alpha1.CheckCanceled, v1alpha1.ReasonPolicyRemoved, "the policy has no such check now"
		SetCheck(&b.status.Checks, canceled, b.Now)
	}
}

// begun is a check that begins now.
func (b *BeginCheck) begun(now time.Time) v1alpha1.CheckStatus {
	c := b.Status
	c.Phase = v1alpha1.CheckRunning
	if c.Background {
		c.Phase = v1alpha1.CheckWatching
	}
	c.StartTime = timeOf(now)
	c.DueTime, c.Deadline = timeOf(c.StartTime.Add(b.Due)), timeOf(c.StartTime.Add(b.Deadline))
	return c
}

// CheckGoesOn says that a check of a policy may still come to something. One in the
// background has its deadline: it was written down as watching, and stays so.
func CheckGoesOn(c *v1alpha1.CheckStatus, now time.Time) bool {
	return CheckMayGoOn(c) && (c.Phase != v1alpha1.CheckWatching || now.Before(timeOrZero(c.Deadline)))
}

// CheckMayGoOn says so whatever the time is.
func CheckMayGoOn(c *v1alpha1.CheckStatus) bool {
	return c.Type != "" && c.Phase != v1alpha1.CheckPending && (!CheckIsOver(c) || c.Phase == v1alpha1.CheckWatching)
}

// NoteCheck puts what a check of a policy came to into the status of a batch. One that
// fails when the batch is done fails its pods as a late verdict does.
func NoteCheck(in BatchInput, c v1alpha1.CheckStatus) BatchPlan {
	b := newBatch(in)
	known := FindCheck(b.status.Checks, c.Name)
	if known == nil || CheckIsOver(known) && known.Phase != v1alpha1.CheckWatching || !IsCurrentBatch(b.Change, b.Batch) {
		return BatchPlan{}
	}
	before := *known
	SetCheck(&b.status.Checks, c, b.Now)
	now := FindCheck(b.status.Checks, c.Name)
	if !equality.Semantic.DeepEqual(before, *now) {
		b.tell(&before, now)
	}
	switch {
	case b.status.Status != v1alpha1.ChangePodExecuteDone:
		if b.serverOver() {
			b.conclude()
		}
	case now.Phase == v1alpha1.CheckFailed && now.Mode != v1alpha1.ModeObserve:
		// Only now: what another check failed, somebody may have corrected since.
		b.failedBy(now)
	case now.Phase != before.Phase && silentCheck(b.status.Checks, []string{c.Name}, b.Settings.SilenceFails) != nil:
		b.failedBy(now)
	}
	return b.finish()
}

// tell emits what happened to a check, once.
func (b *batch) tell(before, now *v1alpha1.CheckStatus) {
	if reason := eventOf(before, now); reason != "" {
		b.plan.Events = append(b.plan.Events, Event{Type: corev1.EventTypeWarning, Reason: reason,
			Message: fmt.Sprintf("batch %d of version %s: check %s", BatchNumber(b.Batch), b.Change.Spec.Reversion, describeCheck(now))})
	}
}

// eventOf is the event that tells what happened to a check; empty for none.
func eventOf(before, now *v1alpha1.CheckStatus) string {
	switch {
	case now.Phase == before.Phase && now.Reason == before.Reason && slices.Equal(now.FailedPods, before.FailedPods):
		return ""
	case now.Phase == v1alpha1.CheckFailed && now.Mode == v1alpha1.ModeObserve:
		return v1alpha1.EventDryRun
	case now.Phase == v1alpha1.CheckFailed:
		return v1alpha1.EventCheckFailed
	case now.Phase == v1alpha1.CheckError:
		return v1alpha1.EventCheckError
	case now.Reason == v1alpha1.ReasonTolerated:
		return v1alpha1.EventPodsUnavailable
	case now.Reason == v1alpha1.ReasonSameOnOldPods && before.Reason != now.Reason:
		return v1alpha1.EventCheckError
	default:
		return ""
	}
}

// failedBy fails the pods that a check failed.
func (b *batch) failedBy(c *v1alpha1.CheckStatus) {
	b.failPods(c)
	b.status.Message = v1alpha1.ChangePodMessagePostFinish
	b.condition(v1alpha1.ConditionChecked, metav1.ConditionTrue, v1alpha1.ReasonCheckFailed, "the check "+cut(describeCheck(c)))
}

// passedBy passes the pods that nobody gave a verdict on, where a check that was
// waited for measured them. Where the server was to give one, that it did not stays told.
func (b *batch) passedBy() {
	s := b.status
	if serverSilent(s) || !slices.ContainsFunc(b.others, func(name string) bool {
		c := FindCheck(s.Checks, name)
		return c != nil && c.Phase == v1alpha1.CheckPassed
	}) {
		return
	}
	for i := range s.PodResults {
		if r := &s.PodResults[i]; r.Verdict == VerdictNone {
			r.Verdict, r.Message = VerdictPass, ""
		}
	}
	if s.Message == v1alpha1.ChangePodMessageSkipped {
		s.Message = v1alpha1.ChangePodMessagePostFinish
		b.condition(v1alpha1.ConditionChecked, metav1.ConditionTrue, v1alpha1.ReasonPassed, "")
	}
}

// IsCurrentBatch says that a batch is of the attempt its release is at, and that the
// release is verified.
func IsCurrentBatch(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod) bool {
	return isOfAttempt(change, batch) && IsVerified(change.Status.Status)
}

// CountingBatches are the batches of the attempt a release is at that count by
// themselves.
func CountingBatches(change *v1alpha1.ChangeWorkload, batches []v1alpha1.ChangePod) (counting []*v1alpha1.ChangePod) {
	f, folded := change.Status.Folded, numbers(nil)
	if f != nil {
		folded = parseNumbers(f.Numbers)
	}
	for i := range batches {
		if b := &batches[i]; isOfAttempt(change, b) && !isFolded(f, folded, b) {
			counting = append(counting, b)
		}
	}
	return counting
}
