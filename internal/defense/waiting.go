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
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// maxQuietWait bounds how long a release waits for the server before it says so. It
// is half of the time it may take, where that is less.
const maxQuietWait = 5 * time.Minute

// awaited is something that a release waits for the server to do.
type awaited struct {
	// reason of the condition, and what is awaited, in words.
	reason, what string
	since        time.Time
	// limit is how long it may take; 0 for as long as it takes.
	limit time.Duration
	// failing: it is tried again and again.
	failing bool
}

// quiet is how long nothing is said of it.
func (a *awaited) quiet(pre time.Duration) time.Duration {
	limit := a.limit
	if limit == 0 {
		limit = pre
	}
	return min(limit/2, maxQuietWait)
}

// serverSays is what ConditionServer reports of the steps of the order and of pods that passed without a
// verdict: the worst of them. No type means that there is nothing to report.
func serverSays(s *v1alpha1.ChangeWorkloadStatus) (c metav1.Condition) {
	rank := -1
	worse := func(r int, status metav1.ConditionStatus, reason, message string) {
		if r > rank {
			rank, c = r, metav1.Condition{Type: v1alpha1.ConditionServer, Status: status, Reason: reason, Message: message}
		}
	}
	for i := range s.OrderSteps {
		step := &s.OrderSteps[i]
		switch reason := step.Reason; {
		case step.Status == metav1.ConditionTrue, reason == v1alpha1.ReasonReleaseEnded, step.Type == v1alpha1.StepEnded:
			// The release does not depend on how its order ends.
			worse(0, metav1.ConditionTrue, v1alpha1.ReasonAnswered, "")
		case reason == v1alpha1.ReasonCheckFailed:
			worse(6, metav1.ConditionFalse, reason, step.Message)
		case reason == v1alpha1.ReasonRefused:
			worse(5, metav1.ConditionFalse, reason, step.Message)
		case reason == v1alpha1.ReasonNoVerdict, reason == v1alpha1.ReasonNotSubmitted:
			worse(3, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict, step.Message)
		case s.OrderEnd != "": // the release no longer waits for it
		case reason == v1alpha1.ReasonPermissionDenied:
			worse(4, metav1.ConditionUnknown, reason, step.Message)
		case reason == v1alpha1.ReasonNotConfigured, reason == v1alpha1.ReasonUnprocessable:
			worse(4, metav1.ConditionUnknown, v1alpha1.ReasonRefused, step.Message)
		case reason == v1alpha1.ReasonUnreachable:
			worse(2, metav1.ConditionUnknown, reason, step.Message)
		default:
			worse(1, metav1.ConditionUnknown, v1alpha1.ReasonChecking, step.Message)
		}
	}
	if s.UnverifiedCount > 0 {
		worse(3, metav1.ConditionFalse, v1alpha1.ReasonNoVerdict, "unverifiedCount is the number of pods")
	}
	return c
}

// setServer sets ConditionServer, once there is something to report, and ends the report of a long wait.
func (c conditions) setServer(s *v1alpha1.ChangeWorkloadStatus) {
	waited, says := waitsForServer(s), serverSays(s)
	switch {
	case says.Type == "" && waited:
		c.set(v1alpha1.ConditionServer, metav1.ConditionUnknown, v1alpha1.ReasonReleaseEnded, "")
	case says.Type == "":
	case waited:
		c.set(says.Type, says.Status, says.Reason, "%s", says.Message)
	default:
		c.setReason(says.Type, says.Status, says.Reason, says.Message)
	}
}

// waitsForServer reports whether the status says that the release waits long for AlterShield Server.
func waitsForServer(s *v1alpha1.ChangeWorkloadStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionServer)
	return c != nil && c.Status == metav1.ConditionFalse && strings.HasPrefix(Detail(c), longWait)
}

// longWait begins the message of ConditionServer of a release that waits long.
const longWait = "waits long: "

// explainServer sets ConditionServer: False where the release waits long for the server,
// else by serverSays. The first late verdict of a release emits one event, and so does each
// request that the server does not take. It returns when to look again.
func (d *release) explainServer() (wait time.Duration) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionServer)
	waited := waitsForServer(d.status)
	now := d.Now
	if waited {
		// What one replica has said another one, whose clock is a little behind, does
		// not take back.
		now = now.Add(ClockTolerance)
	}
	var longest *awaited
	for _, a := range d.awaits() {
		if a.since.IsZero() {
			continue // somebody else's writing
		}
		if left := a.since.Add(a.quiet(d.Settings.PreTimeout)).Sub(now); left > 0 {
			wait = shortest(wait, left)
			continue
		}
		if longest == nil || a.failing && !longest.failing || a.failing == longest.failing && a.since.Before(longest.since) {
			longest = &a
		}
	}
	switch {
	case longest != nil:
		message := longWait + longest.what
		if longest.limit > 0 {
			message += d.consequence(longest)
		}
		isNew, eventType := !waited || said.Reason != longest.reason, corev1.EventTypeWarning
		if !longest.failing {
			isNew, eventType = !d.status.ServerWaitReported, corev1.EventTypeNormal
		}
		if isNew {
			d.event(eventType, v1alpha1.EventWaitingForServer, message)
		}
		d.status.ServerWaitReported = true
		d.condition(v1alpha1.ConditionServer, metav1.ConditionFalse, longest.reason, "%s", message)
	default:
		d.status.UnverifiedCount = d.unverifiedCount()
		conditions{kindRelease, &d.status.Conditions, d.Change.Generation, d.Now}.setServer(d.status)
	}
	return wait
}

// consequence says what becomes of a release when the time for something is over.
func (d *release) consequence(a *awaited) string {
	consequence := "without a verdict it continues unverified"
	if fails, by := d.Settings.ServerSilence(); fails {
		consequence = "without a verdict it fails, as " + by + " says"
	}
	return fmt.Sprintf("; it has until %s, and %s", stamp(a.since.Add(a.limit)), consequence)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// awaits lists what the release waits for.
func (d *release) awaits() (list []awaited) {
	s := d.status
	if d.Cluster == "" || !IsVerified(s.Status) || s.OrderEnd != "" && s.Status != v1alpha1.ChangeWorkloadSuccess {
		return nil
	}
	pre, post := d.Settings.PreTimeout, d.Settings.PostTimeout
	unsubmitted := func(kind string, stage v1alpha1.CheckStage, since int64, limit time.Duration) {
		if c := meta.FindStatusCondition(s.OrderSteps, kind); c != nil && c.Status == metav1.ConditionFalse {
			list = append(list, awaited{reason: v1alpha1.ReasonNotSubmitted, since: unixOrZero(since), limit: limit, failing: true,
				what: fmt.Sprintf("the %s check of the order could not be submitted since %s: %s", stage, stamp(time.Unix(since, 0)), Cut(c.Message))})
		}
	}
	verdict := func(of string, stage v1alpha1.CheckStage, since int64, limit time.Duration) {
		list = append(list, awaited{reason: v1alpha1.ReasonNoVerdict, since: unixOrZero(since), limit: limit,
			what: fmt.Sprintf("AlterShield Server has given no verdict on the %s check of %s since %s", stage, of, stamp(time.Unix(since, 0)))})
	}
	if s.OrderEnd == "" {
		switch s.OrderStage {
		case v1alpha1.OrderSubmitting, v1alpha1.OrderDenied:
			if s.Status == v1alpha1.ChangeWorkloadSuccess && s.CheckingCount == 0 {
				break // it is submitted when pods come
			}
			list = append(list, d.awaitsOrder())
		case v1alpha1.OrderPreWait:
			unsubmitted(v1alpha1.StepPreChecked, v1alpha1.StagePre, s.OrderSubmitTimeUnix, pre)
		case v1alpha1.OrderPreSubmitted:
			verdict("the order", v1alpha1.StagePre, s.OrderPreSubmitTimeUnix, pre)
		case v1alpha1.OrderPostWait:
			if s.OrderPostDueTimeUnix != 0 {
				unsubmitted(v1alpha1.StepPostChecked, v1alpha1.StagePost, s.OrderPostDueTimeUnix, post)
			}
		case v1alpha1.OrderPostSubmitted:
			verdict("the order", v1alpha1.StagePost, s.OrderPostSubmitTimeUnix, post)
		default:
		}
	}
	for i := range d.Batches {
		b := &d.Batches[i]
		if !d.ofAttempt(b) {
			continue
		}
		if c := FindCheck(b.Status.Checks, ServerCheck); c != nil && CheckIsOver(c) {
			continue // it waits for another check
		}
		name := fmt.Sprintf("batch %d", BatchNumber(b))
		switch bs := &b.Status; bs.Status {
		case v1alpha1.ChangePodPreWait, v1alpha1.ChangePodPostWait:
			if a := awaitsBatch(b, name, pre, post); a != nil {
				list = append(list, *a)
			}
		case v1alpha1.ChangePodPreSubmitted:
			verdict(name, v1alpha1.StagePre, bs.PreSubmitTimeUnix, pre)
		case v1alpha1.ChangePodPostSubmitted:
			verdict(name, v1alpha1.StagePost, bs.PostSubmitTimeUnix, post)
		default:
		}
	}
	return list
}

// awaitsOrder is an order that the server has not accepted.
func (d *release) awaitsOrder() awaited {
	s := d.status
	since := time.Unix(s.StartTimeUnix, 0)
	a := awaited{reason: v1alpha1.ReasonNotSubmitted, since: since, failing: true,
		what: fmt.Sprintf("AlterShield Server has not accepted the order since %s", stamp(since))}
	if why := stepMessage(s, v1alpha1.StepAccepted); why != "" {
		a.what += ": " + Cut(why)
	}
	switch {
	case s.OrderStage == v1alpha1.OrderDenied:
		a.reason = v1alpha1.ReasonPermissionDenied
		a.what += "; until platform and token are corrected nothing of the release is verified, however long that takes"
	case s.Status == v1alpha1.ChangeWorkloadInit:
		a.limit = d.Settings.PreTimeout
	default:
		a.what += "; the release continues without its checks until it does"
	}
	return a
}

// awaitsBatch is a batch whose start or end the server does not take; nil where it is
// not told why.
func awaitsBatch(b *v1alpha1.ChangePod, name string, pre, post time.Duration) *awaited {
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionSubmitted)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason == v1alpha1.ReasonOrderNotAccepted {
		return nil
	}
	a := &awaited{reason: v1alpha1.ReasonNotSubmitted, failing: true, since: unixOrZero(b.Status.PreSubmitTimeUnix), limit: pre}
	stage := v1alpha1.StagePre
	if b.Status.Status == v1alpha1.ChangePodPostWait {
		stage, a.since, a.limit = v1alpha1.StagePost, unixOrZero(b.Status.PostSubmitTimeUnix), post
	}
	a.what = fmt.Sprintf("the %s check of %s could not be submitted since %s: %s", stage, name, stamp(a.since), Cut(v1alpha1.Detail(kindBatch, c)))
	return a
}
