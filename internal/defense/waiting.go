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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// maxQuietWait bounds how long a release waits for the server before it reports the wait: at most half of its limit.
const maxQuietWait = 5 * time.Minute

// explainServer sets ConditionServer: False if the release waits long for the server, else by [server.SetCondition].
// The first late verdict of a release emits one event, and so does each request that the server rejects. It returns
// when to decide again.
func explainServer(d *release) (wait time.Duration) {
	said, waited, now := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionServer), server.WaitsForServer(d.status), d.Now
	if waited {
		// If one replica has reported the wait, another replica whose clock is a little behind does not revert it.
		now = now.Add(workload.ClockTolerance)
	}
	var longest *server.Awaited
	for _, a := range awaits(d) {
		quiet := min(cmp.Or(a.Limit, d.Settings.PreTimeout)/2, maxQuietWait)
		switch left := a.Since.Add(quiet).Sub(now); {
		case a.Since.IsZero(): // written by a user
		case left > 0:
			wait = times.Shortest(wait, left)
		case longest == nil || a.Failing && !longest.Failing || a.Failing == longest.Failing && a.Since.Before(longest.Since):
			longest = &a
		}
	}
	if longest == nil {
		d.status.UnverifiedCount = d.unverifiedCount()
		server.SetCondition(d.status, d.Change.Generation, d.Now)
		return wait
	}
	message := server.LongWait + longest.What
	if longest.Limit > 0 {
		consequence := "it continues unverified"
		if fails, by := d.Settings.ServerSilence(); fails {
			consequence = "it fails, as " + by + " says"
		}
		message += fmt.Sprintf("; it has until %s, and without a verdict %s", times.UTC(longest.Since.Add(longest.Limit)), consequence)
	}
	switch {
	case longest.Failing && (!waited || said.Reason != longest.Reason):
		d.event(corev1.EventTypeWarning, v1alpha1.EventWaitingForServer, message)
	case !longest.Failing && !d.status.ServerWaitReported:
		d.event(corev1.EventTypeNormal, v1alpha1.EventWaitingForServer, message)
	}
	d.status.ServerWaitReported = true
	d.condition(v1alpha1.ConditionServer, metav1.ConditionFalse, longest.Reason, "%s", message)
	return wait
}

// awaits lists what the release waits for.
func awaits(d *release) (list []server.Awaited) {
	s := d.status
	if d.Cluster == "" || !record.IsVerified(s.Status) || s.OrderEnd != "" && s.Status != v1alpha1.ChangeWorkloadSuccess {
		return nil
	}
	note := func(a *server.Awaited) {
		if a != nil {
			list = append(list, *a)
		}
	}
	switch {
	case s.OrderEnd != "":
	case s.OrderStage == v1alpha1.OrderSubmitting, s.OrderStage == v1alpha1.OrderDenied:
		if s.Status != v1alpha1.ChangeWorkloadSuccess || s.CheckingCount != 0 { // otherwise it is submitted with the next pods
			note(server.AwaitedSubmission(s, &d.Settings))
		}
	default:
		note(server.AwaitedOfOrder(s, &d.Settings, d.Now))
	}
	for i := range d.Batches {
		b := &d.Batches[i]
		c := record.FindCheck(b.Status.Checks, record.ServerCheck)
		if d.ofAttempt(b) && (c == nil || !record.CheckIsOver(c)) { // otherwise it waits for another check
			note(server.AwaitedOfBatch(b, &d.Settings, d.Now))
		}
	}
	return list
}
