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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
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
	said, waited, now := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionServer), waitsForServer(d.status), d.Now
	if waited {
		// What one replica has said another one, whose clock is a little behind, does
		// not take back.
		now = now.Add(workload.ClockTolerance)
	}
	var longest *awaited
	for _, a := range d.awaits() {
		quiet := min(cmp.Or(a.limit, d.Settings.PreTimeout)/2, maxQuietWait)
		switch left := a.since.Add(quiet).Sub(now); {
		case a.since.IsZero(): // somebody else's writing
		case left > 0:
			wait = times.Shortest(wait, left)
		case longest == nil || a.failing && !longest.failing || a.failing == longest.failing && a.since.Before(longest.since):
			longest = &a
		}
	}
	if longest == nil {
		d.status.UnverifiedCount = d.unverifiedCount()
		conditions{kindRelease, &d.status.Conditions, d.Change.Generation, d.Now}.setServer(d.status)
		return wait
	}
	message := longWait + longest.what
	if longest.limit > 0 {
		consequence := "it continues unverified"
		if fails, by := d.Settings.ServerSilence(); fails {
			consequence = "it fails, as " + by + " says"
		}
		message += fmt.Sprintf("; it has until %s, and without a verdict %s", stamp(longest.since.Add(longest.limit)), consequence)
	}
	switch {
	case longest.failing && (!waited || said.Reason != longest.reason):
		d.event(corev1.EventTypeWarning, v1alpha1.EventWaitingForServer, message)
	case !longest.failing && !d.status.ServerWaitReported:
		d.event(corev1.EventTypeNormal, v1alpha1.EventWaitingForServer, message)
	}
	d.status.ServerWaitReported = true
	d.condition(v1alpha1.ConditionServer, metav1.ConditionFalse, longest.reason, "%s", message)
	return wait
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// awaits lists what the release waits for.
func (d *release) awaits() (list []awaited) {
	s := d.status
	if d.Cluster == "" || !IsVerified(s.Status) || s.OrderEnd != "" && s.Status != v1alpha1.ChangeWorkloadSuccess {
		return nil
	}
	note := func(a *awaited) {
		if a != nil {
			list = append(list, *a)
		}
	}
	switch {
	case s.OrderEnd != "":
	case s.OrderStage == v1alpha1.OrderSubmitting, s.OrderStage == v1alpha1.OrderDenied:
		if s.Status != v1alpha1.ChangeWorkloadSuccess || s.CheckingCount != 0 { // else it is submitted when pods come
			note(d.awaitsOrder())
		}
	default:
		note(orderEntry(s, &d.Settings, d.Now).awaited("the order"))
	}
	for i := range d.Batches {
		b := &d.Batches[i]
		c := FindCheck(b.Status.Checks, ServerCheck)
		if d.ofAttempt(b) && (c == nil || !CheckIsOver(c)) { // else it waits for another check
			note(batchEntry(&b.Status, &d.Settings, d.Now).awaited(fmt.Sprintf("batch %d", BatchNumber(b))))
		}
	}
	return list
}

// awaited is what an entry waits for; nil for nothing, or where it is not known why the server does not take
// its start or its end.
func (n *entry) awaited(of string) *awaited {
	c, stage := &n.pre, v1alpha1.StagePre
	if n.stage == entryToFinish || n.stage == entryPost {
		c, stage = &n.post, v1alpha1.StagePost
	}
	a := &awaited{reason: v1alpha1.ReasonNoVerdict, since: c.since, limit: c.limit}
	switch {
	case n.stage == entryPre, n.stage == entryPost:
		a.what = fmt.Sprintf("AlterShield Server has given no verdict on the %s check of %s since %s", stage, of, stamp(a.since))
	case n.stage == entryIdle, n.held, n.refusal == "":
		return nil
	default:
		a.reason, a.failing = v1alpha1.ReasonNotSubmitted, true
		a.what = fmt.Sprintf("the %s check of %s could not be submitted since %s: %s", stage, of, stamp(a.since), wording.Cut(n.refusal))
	}
	return a
}

// awaitsOrder is an order that the server has not accepted.
func (d *release) awaitsOrder() *awaited {
	s := d.status
	since := time.Unix(s.StartTimeUnix, 0)
	a := &awaited{reason: v1alpha1.ReasonNotSubmitted, since: since, failing: true,
		what: fmt.Sprintf("AlterShield Server has not accepted the order since %s", stamp(since))}
	if why := stepMessage(s, v1alpha1.StepAccepted); why != "" {
		a.what += ": " + wording.Cut(why)
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
