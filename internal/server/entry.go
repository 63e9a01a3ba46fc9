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

// entryStage is how far an entry has come on AlterShield Server.
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
	// since is when it was submitted or, before that, first tried to be; zero
	// when it was not tried.
	since time.Time
	limit time.Duration
	// verdict is what the server delivered; nil for nothing.
	verdict *v1alpha1.CheckVerdict
}

func (c *check) deadline(now time.Time) time.Time {
	if c.since.IsZero() {
		return now.Add(c.limit)
	}
	return c.since.Add(c.limit)
}

// overdue says that a check was tried to be submitted until its time was over.
func (c *check) overdue(now time.Time) bool {
	return !c.since.IsZero() && !now.Before(c.deadline(now))
}

// polled says of a check that it passed when it was polled.
func (c *check) polled() string {
	if c.verdict != nil {
		return "the check passed, and a poll confirmed it"
	}
	return "the check passed, as the server said when asked"
}

// deliveredAsPass says that the server delivered a pass, and that nobody changed it.
func deliveredAsPass(v *v1alpha1.CheckVerdict) bool {
	return v != nil && v.Delivered != "" && !record.VerdictFails(v.Delivered) && !record.VerdictFails(v.Verdict)
}

// nothingToCheck explains a check that the server skips.
const nothingToCheck = "AlterShield Server skips the check"

// entry is a check with a beginning, a deadline and a verdict, twice: its PRE
// check begins with its start, and its POST check with its end. Batches are
// entries, and so are orders. The machine says what comes next; whose entry it is
// writes it down in words of its own.
type entry struct {
	stage entryStage
	// id is the server's id of the entry; empty while it has none. seed spreads
	// the polls of many.
	id, seed  string
	pre, post check
	// skipped: the server said at the start that there is nothing to check.
	skipped bool
	// confirm: a pass that was delivered counts when a poll says so, too. The server
	// delivers a pass also when its check ran into its own timeout, and only a poll
	// tells the one from the other.
	confirm bool
	// again: it is the second entry, because the server lost the first one.
	again bool
	// held: its end must not be notified yet.
	held bool
	// early: entryPost is written before the end is notified, so that one write
	// says both that the PRE check passed and that the POST check runs. Whether
	// the end was notified is in the memory of the process; another one notifies
	// it again, which the server refuses as done before.
	early bool
	// unconfirmed: an earlier try of the end may have been received.
	unconfirmed bool
	// doubted: the end was refused for so long that it was received before.
	doubted bool
	// refusal is why the server does not take the start or the end; empty where nothing is known of that.
	refusal string
}

// newEntry reads what the conditions say of an entry: one of its start, and one of its end, or one of both.
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
		// The server refuses so an end that it received before, and one that comes before the PRE
		// check has ended there; where that has, the time distinguishes them.
		doubted: refused != nil && now.Sub(refused.LastTransitionTime.Time) >= finishDoubt,
	}
}

// turn is what becomes of an entry.
type turn struct {
	to              turnKind
	reason, message string
	// answered: the server said so. Otherwise the check has no verdict.
	answered bool
}

// turnKind is a way in which an entry goes on.
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

// next says what becomes of an entry by what is known now; where nothing does,
// which call to make, or how long to wait.
func (n *entry) next(now time.Time, calls Calls) (t turn, call Call, wait time.Duration) {
	switch n.stage {
	case entryIdle:
	case entryToStart:
		if n.pre.overdue(now) && calls.triedSince(CallStart, n.pre.deadline(now)) {
			return turn{to: turnPreOver, reason: v1alpha1.ReasonNotSubmitted, message: "the PRE check could not be submitted within " + n.pre.limit.String()}, CallNone, 0
		}
		call, wait = calls.next(CallStart, now, n.pre.deadline(now))
	case entryPre:
		return n.await(now, calls, v1alpha1.StagePre)
	case entryToFinish:
		switch {
		case n.post.verdict != nil:
			// The end was received, and the process died before it could store
			// the answer.
			return turn{to: turnFinished}, CallNone, 0
		case n.held:
			return turn{}, CallNone, 0
		case n.id == "" && n.skipped:
			return turn{to: turnPostOver, reason: v1alpha1.ReasonSkipped, message: nothingToCheck, answered: true}, CallNone, 0
		case n.id == "":
			// Its start was refused: there is nothing to end, as was told then.
			return turn{to: turnPostOver, reason: v1alpha1.ReasonNotSubmitted, message: "the server has no order entry of it", answered: true}, CallNone, 0
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

// isLast reports whether a call is made when the time for it is over.
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
		return turn{to: turnPostOver, reason: v1alpha1.ReasonNotSubmitted, message: "the POST check could not be submitted within " + n.post.limit.String()}, CallNone, 0
	}
	call, wait = calls.next(CallFinish, now, n.post.deadline(now))
	return turn{}, call, wait
}

// mayBeFinished says that a refused end means that it was received before. The
// server refuses so, too, for as long as it has not ended the PRE check itself;
// the time distinguishes them.
func (n *entry) mayBeFinished(now time.Time) bool {
	return n.unconfirmed || n.doubted || n.stage == entryPost && now.Sub(n.post.since) >= finishDoubt
}

// await waits for the verdict on a check that runs, asks for it from half of its
// time on, and gives up when the time is over. A pass that is to be confirmed is
// asked for from when it comes.
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
		return turn{}, CallNone, n.secondStart().Sub(now) // who is new here polls at once
	}
	if lost && !calls.triedSince(CallStart, c.deadline(now)) {
		call, wait := calls.next(CallStart, now, c.deadline(now))
		return turn{}, call, wait
	}
	call, wait, timedOut := calls.await(poll, now, c.since, c.limit, n.seed, unconfirmed)
	if timedOut || lost { // a poll after the last start would only find the entry lost, and start it again
		reason, message := timeoutOf(calls, stage, c.limit, unconfirmed)
		return turn{to: over, reason: reason, message: message}, CallNone, 0
	}
	return turn{}, call, wait
}

// mayStartAgain reports whether an answer to a start may be to a second one, which is made from half
// of the time for the PRE check on. An earlier one is of another replica that started the entry, too.
func (n *entry) mayStartAgain(now time.Time) bool {
	return !n.again && !now.Before(n.secondStart())
}

func (n *entry) secondStart() time.Time { return n.pre.since.Add(n.pre.limit / 2) }

// isLost reports whether the server did not know an entry whose PRE check was to go on,
// and no other one was started for it. A server loses one now and then, and polls tell.
func (n *entry) isLost(calls Calls) bool {
	switch {
	case n.stage != entryPre || n.again:
		return false
	case calls.Call == CallStart:
		// The second start was tried; what the first one had as its answer is known.
		return calls.Last != AnswerDone && calls.Last != AnswerDuplicate
	default:
		return calls.Call == CallPollPre && calls.Last == AnswerUnsupported
	}
}

// said is what an answer of the server makes of an entry.
func (n *entry) said(call Call, a Answer, now time.Time) turn {
	switch {
	case call == CallStart && n.stage == entryToStart:
		return afterStart(a)
	case call == CallStart && n.stage == entryPre && n.mayStartAgain(now):
		if t := afterStart(a); t.to != turnNotStarted {
			return t
		}
		return turn{}
	case call == CallStart && a.Kind == AnswerDone && (n.stage == entryToFinish || n.stage == entryPost && n.early) && n.mayStartAgain(now):
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
			// Remembered until it is settled.
			reason = v1alpha1.ReasonUnconfirmed
		}
		return turn{to: turnNotFinished, reason: reason, message: a.Message}
	case AnswerIllegal, AnswerRefused, AnswerUnprocessable:
		return turn{to: turnPostOver, reason: v1alpha1.ReasonRefused, message: a.Message}
	default:
		return turn{}
	}
}

// StartedAgain says that the entry is the second one.
func StartedAgain(conditions []metav1.Condition, kind string) bool {
	c := meta.FindStatusCondition(conditions, kind)
	return c != nil && c.Reason == v1alpha1.ReasonStartedAgain
}

// lostEntry explains a second entry.
func lostEntry(first, second string) string {
	return fmt.Sprintf("the server no longer knows order entry %s; the check continues at order entry %s, in the time that is left",
		wording.Cut(first), wording.Cut(second))
}
