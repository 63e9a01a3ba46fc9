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
	"hash/fnv"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// Call is a call to AlterShield Server.
type Call string

// Calls to AlterShield Server.
const (
	// CallNone means none.
	CallNone Call = ""
	// CallSubmit submits an order.
	CallSubmit Call = "Submit"
	// CallStart starts an entry, a batch's or the order's own, and its PRE check.
	CallStart Call = "Start"
	// CallFinish ends an entry and starts its POST check.
	CallFinish Call = "Finish"
	// CallPollPre and CallPollPost ask whether a check has passed.
	CallPollPre  Call = "PollPre"
	CallPollPost Call = "PollPost"
	// CallEnd ends an order.
	CallEnd Call = "End"
)

// AnswerKind is the kind of the answer to a call.
type AnswerKind string

// Answers to calls.
const (
	// AnswerDone means that the server did the call; for a poll, that the check has passed.
	AnswerDone AnswerKind = "Done"
	// AnswerDuplicate means that the server did the call before.
	AnswerDuplicate AnswerKind = "Duplicate"
	// AnswerNotPassed answers a poll: the check has not passed, or not yet.
	AnswerNotPassed AnswerKind = "NotPassed"
	// AnswerRetry means that the next try may succeed.
	AnswerRetry AnswerKind = "Retry"
	// AnswerThrottled means that nothing was sent, because of our own limits.
	AnswerThrottled AnswerKind = "Throttled"
	// AnswerDenied means that the server does not know the platform or its token: a
	// user has to correct that.
	AnswerDenied AnswerKind = "Denied"
	// AnswerIllegal means that the server did not find the order or the entry, or
	// found the call wrong.
	AnswerIllegal AnswerKind = "Illegal"
	// AnswerUnsupported means that the server does not do the call in the current
	// state of the entry.
	AnswerUnsupported AnswerKind = "Unsupported"
	// AnswerNoCheck means that there is nothing to check.
	AnswerNoCheck AnswerKind = "NoCheck"
	// AnswerUnprocessable means that the server failed to process the request, and
	// will fail every time.
	AnswerUnprocessable AnswerKind = "Unprocessable"
	// AnswerRefused means that the server refused the call for good.
	AnswerRefused AnswerKind = "Refused"
)

// Answer is the server's answer to a call.
type Answer struct {
	Kind AnswerKind
	// NodeID, SkipCheck and URL of the entry that was started.
	NodeID, URL string
	SkipCheck   bool
	// Unconfirmed: the server may have done the call, though it failed.
	Unconfirmed bool
	// Unsent: nothing was sent, because the server failed before. It does not count as a try.
	Unsent bool
	// Message explains a refusal, in one line.
	Message string
	// After is the least time until the next try; 0 if the server did not give it.
	After time.Duration
}

const (
	// humanRetry is the wait between tries that need a user.
	humanRetry = time.Minute
	// maxBackoff bounds the wait between tries.
	maxBackoff = 30 * time.Second
	// maxSpread bounds the random delay of calls that were not sent, which spreads them.
	maxSpread = 2 * time.Second
	// finishRetry is the wait between tries to end an entry whose PRE check the server
	// may not have ended yet.
	finishRetry = time.Second
	// finishDoubt is how long a refused end may mean that the PRE check has not ended
	// on the server; later it means that the server has the end already.
	finishDoubt = 3 * time.Second
)

// Calls is the knowledge of a process about its calls for one entry. It is in memory
// only: every call may be repeated after a restart.
type Calls struct {
	// Started is the start of the process.
	Started time.Time
	// Call is the last call; the following fields are about it.
	Call Call
	// NotBefore is the earliest time of the next try. Asked is the time of the last try,
	// including calls that were not sent.
	NotBefore, Asked time.Time
	// Tried is the time of the last answer of the server, Last its kind.
	Tried time.Time
	Last  AnswerKind
	// Failures in a row.
	Failures int
	// Ended: the server has the end of the entry.
	Ended bool
}

// After returns the knowledge after a call. random is a number from 0 to 1 that spreads the
// next tries of calls that failed together.
func (c Calls) After(call Call, a Answer, now time.Time, random float64) Calls {
	if c.Call != call {
		c = Calls{Started: c.Started, Ended: c.Ended, Call: call}
	}
	if call == CallStart {
		c.Ended = false // it is a new entry
	}
	c.Asked = now
	if a.Kind == AnswerThrottled || a.Unsent {
		wait := max(a.After, 10*time.Millisecond)
		c.NotBefore = now.Add(wait + time.Duration(random*float64(min(wait, maxSpread))))
		return c
	}
	c.Tried, c.Last, c.NotBefore = now, a.Kind, time.Time{}
	if call == CallPollPre || call == CallPollPost {
		return c
	}
	c.Failures++
	backoff := func(wait time.Duration) time.Duration {
		return max(a.After, time.Duration(float64(min(wait, maxBackoff))*(0.5+random/2)))
	}
	switch a.Kind {
	case AnswerRetry:
		c.NotBefore = now.Add(backoff(time.Second << min(c.Failures-1, 10)))
	case AnswerDenied, AnswerIllegal, AnswerUnprocessable:
		c.NotBefore = now.Add(humanRetry)
	case AnswerUnsupported:
		// The first tries are frequent, since the server may end the PRE check at any moment.
		c.NotBefore = now.Add(max(finishRetry, backoff(time.Second<<max(min(c.Failures-4, 10), 0))))
	default:
		c.Failures = 0
	}
	return c
}

// triedSince reports whether a call was tried at its deadline or later. Every call has that last try.
func (c Calls) triedSince(call Call, deadline time.Time) bool {
	return c.Call == call && !c.Tried.IsZero() && !c.Tried.Before(deadline)
}

// notBefore returns the earliest time of the next try. The last try is at the deadline, if there
// is a deadline, even during a longer wait.
func (c Calls) notBefore(deadline time.Time) time.Time {
	if !deadline.IsZero() && c.Asked.Before(deadline) && c.NotBefore.After(deadline) {
		return deadline
	}
	return c.NotBefore
}

// next returns the call if it is due, or CallNone and the wait until then.
func (c Calls) next(call Call, now, deadline time.Time) (Call, time.Duration) {
	wait := c.notBefore(deadline).Sub(now)
	if c.Call != call || wait <= 0 {
		return call, 0
	}
	return CallNone, wait
}

// await returns the poll for the verdict of a check if it is due, or CallNone and the wait until then.
// submitted is the start of the check, limit its time. Polls are made after half of the time, or from
// the start with atOnce; once more when the time is over; and when a process finds a check that was
// submitted before the process began. timedOut reports that the last poll was made.
func (c Calls) await(
	poll Call, now, submitted time.Time, limit time.Duration, seed string, atOnce bool,
) (call Call, wait time.Duration, timedOut bool) {
	if c.Call != poll {
		c = Calls{Started: c.Started}
	}
	deadline := submitted.Add(limit)
	over := !now.Before(deadline)
	if over && !c.Tried.Before(deadline) {
		return CallNone, 0, true
	}
	interval := max(limit/8, time.Second)
	spread := time.Duration(float64(interval) * fraction(seed))
	due := submitted.Add(limit/2 + spread/2)
	if atOnce || submitted.Before(c.Started.Truncate(time.Second)) && c.Tried.IsZero() {
		due = now
	}
	if !c.Tried.IsZero() {
		if next := c.Tried.Add(interval*3/4 + spread/2); next.After(due) {
			due = next
		}
	}
	if over || due.After(deadline) {
		due = deadline
	}
	if next := c.notBefore(deadline); next.After(due) {
		due = next
	}
	if !now.Before(due) {
		return poll, 0, false
	}
	return CallNone, due.Sub(now), false
}

// fraction returns a number from 0 to 1 that depends on the seed.
func fraction(seed string) float64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(seed)) // never fails
	return float64(h.Sum32()) / (1 << 32)
}

// silence returns the verdict if a missing verdict counts as a failure.
func silence(now time.Time, why string) *v1alpha1.CheckVerdict {
	return &v1alpha1.CheckVerdict{
		Verdict: record.VerdictInconclusive, Message: why + "; the setting silence counts this as a failure",
		Time: times.Format(now), TimeUnix: now.Unix(),
	}
}

// timeoutOf returns the reason and the message of a check without a verdict in time, or with a pass
// that no poll confirmed.
func timeoutOf(c Calls, stage v1alpha1.CheckStage, limit time.Duration, unconfirmed bool) (reason, message string) {
	polled := c.Last == AnswerNotPassed
	switch {
	case polled && unconfirmed:
		return v1alpha1.ReasonNoVerdict, fmt.Sprintf("the server let the %s check pass without a verdict, "+
			"because it ran into the server's own timeout: polled for %s, the server said that it has not passed", stage, limit)
	case unconfirmed:
		return v1alpha1.ReasonNoVerdict, fmt.Sprintf("the server let the %s check pass, and could not be asked within %s "+
			"whether it passed or ran into the server's own timeout", stage, limit)
	case polled:
		return v1alpha1.ReasonNoVerdict, fmt.Sprintf("no %s verdict came within %s; "+
			"the server was polled and said that the check has not passed: it still goes on, timed out, or failed", stage, limit)
	default:
		return v1alpha1.ReasonNoVerdict, fmt.Sprintf("no %s verdict came within %s", stage, limit)
	}
}

// VerdictOf returns the verdict on a check of a batch; nil for none.
func VerdictOf(s *v1alpha1.ChangePodStatus, stage v1alpha1.CheckStage) *v1alpha1.CheckVerdict {
	if stage == v1alpha1.StagePre {
		return s.PreVerdict
	}
	return s.PostVerdict
}
