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

package server

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// entryStage is the progress of an entry.
type entryStage int

const (
	// entryIdle: nothing is to be done about it.
	entryIdle entryStage = iota
	// entryToStart: its start is to be notified.
	entryToStart
	// entryPre: its PRE check runs.
	entryPre
	// entryToFinish: its PRE check is over, and its end is to be notified.
	entryToFinish
	// entryPost: its POST check runs.
	entryPost
)

// check is the PRE or the POST check of an entry.
type check struct {
	// since is the time of its submission or, before that, of the first try; zero
	// if it was not tried.
	since time.Time
	limit time.Duration
	// verdict that the server delivered; nil for none.
	verdict *v1alpha1.CheckVerdict
}

func (c *check) deadline(now time.Time) time.Time {
	if c.since.IsZero() {
		return now.Add(c.limit)
	}
	return c.since.Add(c.limit)
}

// overdue reports whether the time of a check is over, since its submission or the first try of it.
func (c *check) overdue(now time.Time) bool {
	return !c.since.IsZero() && !now.Before(c.deadline(now))
}

// polled returns the message of a check that passed when it was polled.
func (c *check) polled() string {
	if c.verdict != nil {
		return "the check passed, and a poll confirmed it"
	}
	return "the check passed, as the server said when asked"
}

// deliveredAsPass reports whether the server delivered a pass that no user changed.
func deliveredAsPass(v *v1alpha1.CheckVerdict) bool {
	return v != nil && v.Delivered != "" && !record.VerdictFails(v.Delivered) && !record.VerdictFails(v.Verdict)
}

// nothingToCheck explains a check that the server skips.
const nothingToCheck = "AlterShield Server skips the check"

// entry is an entry of AlterShield Server with two checks, each with a start, a deadline and a verdict:
// the PRE check begins with the start of the entry, the POST check with its end. Batches and orders have
// an entry each. The methods return the next turn, which the batch or the order writes into its status.
type entry struct {
	stage entryStage
	// id is the server's id of the entry; empty while it has none. seed spreads
	// polls of several entries.
	id, seed  string
	pre, post check
	// skipped: the server said at the start that there is nothing to check.
	skipped bool
	// confirm: a delivered pass counts only if a poll confirms it. The server also delivers a pass if
	// its check ran into the server's own timeout, and only a poll distinguishes them.
	confirm bool
	// again: it is the second entry, because the server lost the first one.
	again bool
	// postponed: its end must not be notified yet.
	postponed bool
	// early: entryPost is written before the end is notified, so that one write has both the
	// passed PRE check and the running POST check. Only the memory of the process knows whether
	// the end was notified; another process notifies it again, which the server refuses as
	// a duplicate.
	early bool
	// unconfirmed: the server may have received an earlier try of the end.
	unconfirmed bool
	// doubted: the server refused the end for so long that it must have received it before.
	doubted bool
	// refusal is the reason why the server does not take the start or the end; empty for none.
	refusal string
}

// newEntry reads an entry from the conditions of its start and its end, which may be the same condition.
func newEntry(id string, conditions []metav1.Condition, start, end string, skipped bool, set *settings.Settings, now time.Time) *entry {
	fails, _ := set.ServerSilence()
	is := func(kind, reason string) *metav1.Condition {
		if c := meta.FindStatusCondition(conditions, kind); c != nil && c.Reason == reason {
			return c
		}
		return nil
	}
	refused := is(end, v1alpha1.ReasonNotYetAccepted)
	return &entry{
		id: id, seed: id, skipped: skipped, confirm: fails && !skipped,
		again:       StartedAgain(conditions, start),
		unconfirmed: is(end, v1alpha1.ReasonUnconfirmed) != nil,
		// The server refuses an end with the same code if it received the end before, or if the PRE
		// check has not ended there. The time distinguishes them.
		doubted: refused != nil && now.Sub(refused.LastTransitionTime.Time) >= finishDoubt,
	}
}

// turn is a change of an entry.
type turn struct {
	to              turnKind
	reason, message string
	// answered: it comes from an answer or verdict of the server. Otherwise the check has no verdict.
	answered bool
}

// turnKind is the kind of a turn.
type turnKind int

const (
	// turnNone: it stays where it is.
	turnNone turnKind = iota
	// turnStarted: its PRE check runs.
	turnStarted
	// turnNotStarted: its start is tried again, for a reason.
	turnNotStarted
	// turnPreOver: its PRE check is over.
	turnPreOver
	// turnFinished: the server has its end, and its POST check runs.
	turnFinished
	// turnNotFinished: its end is tried again, for a reason.
	turnNotFinished
	// turnPostOver: its POST check is over.
	turnPostOver
)

func (t turn) passed() bool {
	return t.reason == v1alpha1.ReasonPassed || t.reason == v1alpha1.ReasonSkipped
}

// next returns the turn of an entry now; or the call to make; or the wait.
func (n *entry) next(now time.Time, calls Calls) (t turn, call Call, wait time.Duration) {
	switch n.stage {
	case entryIdle:
	case entryToStart:
		if n.pre.overdue(now) && calls.triedSince(CallStart, n.pre.deadline(now)) {
			return notSubmitted(turnPreOver, v1alpha1.StagePre, n.pre.limit), CallNone, 0
		}
		call, wait = calls.next(CallStart, now, n.pre.deadline(now))
	case entryPre:
		return n.await(now, calls, v1alpha1.StagePre)
	case entryToFinish:
		switch {
		case n.post.verdict != nil:
			// The server received the end, but the answer was not stored.
			return turn{to: turnFinished}, CallNone, 0
		case n.postponed:
			return turn{}, CallNone, 0
		case n.id == "" && n.skipped:
			return turn{to: turnPostOver, reason: v1alpha1.ReasonSkipped, message: nothingToCheck, answered: true}, CallNone, 0
		case n.id == "":
			// Its start was refused, and that was reported: there is nothing to end.
			return turn{
				to: turnPostOver, reason: v1alpha1.ReasonNotSubmitted, message: "the server has no order entry for it", answered: true,
			}, CallNone, 0
		}
		return n.finish(now, calls)
	case entryPost:
		if n.post.verdict == nil && n.early && !calls.Ended {
			return n.finish(now, calls)
		}
		return n.await(now, calls, v1alpha1.StagePost)
	}
	return turn{}, call, wait
}

// notSubmitted returns the turn of a check that could not be submitted in time.
func notSubmitted(to turnKind, stage v1alpha1.CheckStage, limit time.Duration) turn {
	return turn{
		to: to, reason: v1alpha1.ReasonNotSubmitted, message: fmt.Sprintf("the %s check could not be submitted within %s", stage, limit),
	}
}

// isLast reports whether a call is made when its time is over.
func (n *entry) isLast(call Call, now time.Time) bool {
	switch call {
	case CallStart, CallPollPre:
		return n.pre.overdue(now)
	case CallFinish, CallPollPost:
		return n.post.overdue(now)
	default:
		return false
	}
}

// finish notifies the end of an entry.
func (n *entry) finish(now time.Time, calls Calls) (t turn, call Call, wait time.Duration) {
	if n.post.overdue(now) && calls.triedSince(CallFinish, n.post.deadline(now)) {
		return notSubmitted(turnPostOver, v1alpha1.StagePost, n.post.limit), CallNone, 0
	}
	call, wait = calls.next(CallFinish, now, n.post.deadline(now))
	return turn{}, call, wait
}

// mayBeFinished reports whether a refused end means that the server received it before. The server
// also refuses an end until its PRE check has ended; the time distinguishes them.
func (n *entry) mayBeFinished(now time.Time) bool {
	return n.unconfirmed || n.doubted || n.stage == entryPost && now.Sub(n.post.since) >= finishDoubt
}

// await waits for the verdict on a running check, polls for it after half of its time, and gives up when
// the time is over. It polls at once to confirm a pass.
func (n *entry) await(now time.Time, calls Calls, stage v1alpha1.CheckStage) (turn, Call, time.Duration) {
	c, over, poll := &n.pre, turnPreOver, CallPollPre
	if stage == v1alpha1.StagePost {
		c, over, poll = &n.post, turnPostOver, CallPollPost
	}
	v := c.verdict
	unconfirmed := n.confirm && deliveredAsPass(v)
	if v != nil && !unconfirmed {
		t := turn{to: over, reason: v1alpha1.ReasonPassed, message: v.Message, answered: true}
		if record.VerdictFails(v.Verdict) {
			t.reason = v1alpha1.ReasonCheckFailed
		}
		return t, CallNone, 0
	}
	lost := n.isLost(calls)
	if lost && !n.mayStartAgain(now) {
		return turn{}, CallNone, n.secondStart().Sub(now) // a new process polls at once
	}
	if lost && !calls.triedSince(CallStart, c.deadline(now)) {
		call, wait := calls.next(CallStart, now, c.deadline(now))
		return turn{}, call, wait
	}
	call, wait, timedOut := calls.await(poll, now, c.since, c.limit, n.seed, unconfirmed)
	if timedOut || lost { // another poll would find the entry lost, and start it again
		reason, message := timeoutOf(calls, stage, c.limit, unconfirmed)
		return turn{to: over, reason: reason, message: message}, CallNone, 0
	}
	return turn{}, call, wait
}

// mayStartAgain reports whether a start may be a second one, which is made after half of the time for
// the PRE check. An earlier start is of another replica that started the entry, too.
func (n *entry) mayStartAgain(now time.Time) bool {
	return !n.again && !now.Before(n.secondStart())
}

func (n *entry) secondStart() time.Time { return n.pre.since.Add(n.pre.limit / 2) }

// isLost reports whether the server does not know an entry whose PRE check should run, and no second
// entry was started. A server loses an entry now and then, and polls find out.
func (n *entry) isLost(calls Calls) bool {
	switch {
	case n.stage != entryPre || n.again:
		return false
	case calls.Call == CallStart:
		// The second start was tried; the first one was answered.
		return calls.Last != AnswerDone && calls.Last != AnswerDuplicate
	default:
		return calls.Call == CallPollPre && calls.Last == AnswerUnsupported
	}
}

// said returns the turn of an entry after an answer of the server.
func (n *entry) said(call Call, a Answer, now time.Time) turn {
	switch {
	case call == CallStart && n.stage == entryToStart:
		return afterStart(a)
	case call == CallStart && n.stage == entryPre && n.mayStartAgain(now):
		if t := afterStart(a); t.to != turnNotStarted {
			return t
		}
		return turn{}
	case call == CallStart && a.Kind == AnswerDone && n.mayStartAgain(now) &&
		(n.stage == entryToFinish || n.stage == entryPost && n.early):
		return turn{to: turnStarted, answered: true} // the verdict on the first entry came before this answer
	case call == CallFinish && (n.stage == entryToFinish || n.stage == entryPost && n.early):
		return n.afterFinish(a, now)
	case call == CallPollPre && n.stage == entryPre && a.Kind == AnswerDone:
		return turn{to: turnPreOver, reason: v1alpha1.ReasonPassed, message: n.pre.polled(), answered: true}
	case call == CallPollPost && n.stage == entryPost && a.Kind == AnswerDone:
		return turn{to: turnPostOver, reason: v1alpha1.ReasonPassed, message: n.post.polled(), answered: true}
	default:
		return turn{}
	}
}

func afterStart(a Answer) turn {
	switch a.Kind {
	case AnswerDone, AnswerDuplicate:
		return turn{to: turnStarted, answered: true}
	case AnswerNoCheck:
		return turn{to: turnPreOver, reason: v1alpha1.ReasonSkipped, message: a.Message, answered: true}
	case AnswerDenied:
		return turn{to: turnNotStarted, reason: v1alpha1.ReasonPermissionDenied, message: a.Message}
	case AnswerIllegal:
		return turn{to: turnNotStarted, reason: v1alpha1.ReasonNotConfigured, message: a.Message}
	case AnswerRetry:
		return turn{to: turnNotStarted, reason: v1alpha1.ReasonUnreachable, message: a.Message}
	case AnswerUnsupported, AnswerRefused, AnswerUnprocessable:
		return turn{to: turnPreOver, reason: v1alpha1.ReasonRefused, message: a.Message}
	default:
		return turn{}
	}
}

func (n *entry) afterFinish(a Answer, now time.Time) turn {
	switch a.Kind {
	case AnswerDone, AnswerDuplicate:
		return turn{to: turnFinished, answered: true}
	case AnswerUnsupported:
		if n.mayBeFinished(now) {
			return turn{to: turnFinished}
		}
		return turn{to: turnNotFinished, reason: v1alpha1.ReasonNotYetAccepted, message: a.Message}
	case AnswerNoCheck:
		return turn{to: turnPostOver, reason: v1alpha1.ReasonSkipped, message: a.Message, answered: true}
	case AnswerDenied:
		return turn{to: turnNotFinished, reason: v1alpha1.ReasonPermissionDenied, message: a.Message}
	case AnswerRetry:
		reason := v1alpha1.ReasonUnreachable
		if a.Unconfirmed || n.unconfirmed {
			// The reason stays until an answer is clear.
			reason = v1alpha1.ReasonUnconfirmed
		}
		return turn{to: turnNotFinished, reason: reason, message: a.Message}
	case AnswerIllegal, AnswerRefused, AnswerUnprocessable:
		return turn{to: turnPostOver, reason: v1alpha1.ReasonRefused, message: a.Message}
	default:
		return turn{}
	}
}

// StartedAgain reports whether the entry is the second one.
func StartedAgain(conditions []metav1.Condition, kind string) bool {
	c := meta.FindStatusCondition(conditions, kind)
	return c != nil && c.Reason == v1alpha1.ReasonStartedAgain
}

// lostEntry returns the message about a second entry.
func lostEntry(first, second string) string {
	return fmt.Sprintf("the server no longer knows order entry %s; the check continues at order entry %s, in the time that is left",
		wording.Cut(first), wording.Cut(second))
}
