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

// explainWaiting says of a release that it waits long for the server, and of one that
// did that it does not any more. There is one event for what may be late in any
// release, a verdict, and one each time that the server does not take what it is sent.
// It returns how long until there is something to say.
func (d *release) explainWaiting() (wait time.Duration) {
	said := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionWaitsForServer)
	waited := said != nil && said.Status == metav1.ConditionTrue
	now := d.Now
	if waited {
		// What one replica has said another one, whose clock is a little behind, does
		// not take back.
		now = now.Add(clockTolerance)
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
		message := longest.what
		if longest.limit > 0 {
			message += d.consequence(longest)
		}
		isNew, eventType := !waited || said.Reason != longest.reason, corev1.EventTypeWarning
		if !longest.failing {
			isNew, eventType = said == nil, corev1.EventTypeNormal
		}
		if isNew {
			d.event(eventType, v1alpha1.ConditionWaitsForServer, message)
		}
		d.condition(v1alpha1.ConditionWaitsForServer, metav1.ConditionTrue, longest.reason, "%s", message)
	case waited && d.unverifiedCount() > 0:
		d.condition(v1alpha1.ConditionWaitsForServer, metav1.ConditionFalse, v1alpha1.ReasonPassedUnverified,
			"nothing is outstanding for long; AlterShield Server gave no verdict on %d pods in time", d.unverifiedCount())
	case waited:
		d.condition(v1alpha1.ConditionWaitsForServer, metav1.ConditionFalse, v1alpha1.ReasonAnswered, "nothing is outstanding for long any more")
	}
	return wait
}

// consequence says what becomes of a release when the time for something is over.
func (d *release) consequence(a *awaited) string {
	consequence := "without a verdict it goes on unverified"
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
		if c := meta.FindStatusCondition(s.Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			list = append(list, awaited{reason: v1alpha1.ReasonCheckNotSubmitted, since: unixOrZero(since), limit: limit, failing: true,
				what: fmt.Sprintf("the %s check of the order could not be submitted since %s: %s", stage, stamp(time.Unix(since, 0)), cut(c.Message))})
		}
	}
	verdict := func(of string, stage v1alpha1.CheckStage, since int64, limit time.Duration) {
		list = append(list, awaited{reason: v1alpha1.ReasonVerdictOutstanding, since: unixOrZero(since), limit: limit,
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
			unsubmitted(v1alpha1.ConditionOrderPreChecked, v1alpha1.StagePre, s.OrderSubmitTimeUnix, pre)
		case v1alpha1.OrderPreSubmitted:
			verdict("the order", v1alpha1.StagePre, s.OrderPreSubmitTimeUnix, pre)
		case v1alpha1.OrderPostWait:
			if s.OrderPostDueTimeUnix != 0 {
				unsubmitted(v1alpha1.ConditionOrderPostChecked, v1alpha1.StagePost, s.OrderPostDueTimeUnix, post)
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
	a := awaited{reason: v1alpha1.ReasonOrderNotAccepted, since: since, failing: true,
		what: fmt.Sprintf("AlterShield Server has not accepted the order since %s", stamp(since))}
	if why := conditionMessage(s, v1alpha1.ConditionOrderAccepted); why != "" {
		a.what += ": " + cut(why)
	}
	switch {
	case s.OrderStage == v1alpha1.OrderDenied:
		a.reason = v1alpha1.ReasonPermissionDenied
		a.what += "; until platform and token are repaired nothing of the release is verified, however long that takes"
	case s.Status == v1alpha1.ChangeWorkloadInit:
		a.limit = d.Settings.PreTimeout
	default:
		a.what += "; the release goes on without its checks until it does"
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
	a := &awaited{reason: v1alpha1.ReasonCheckNotSubmitted, failing: true, since: unixOrZero(b.Status.PreSubmitTimeUnix), limit: pre}
	stage := v1alpha1.StagePre
	if b.Status.Status == v1alpha1.ChangePodPostWait {
		stage, a.since, a.limit = v1alpha1.StagePost, unixOrZero(b.Status.PostSubmitTimeUnix), post
	}
	a.what = fmt.Sprintf("the %s check of %s could not be submitted since %s: %s", stage, name, stamp(a.since), cut(c.Message))
	return a
}
