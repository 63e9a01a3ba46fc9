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

package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// inTheMiddle calls happen while the second of three pods of a second version comes up, and waits until the release is verified.
func inTheMiddle(happen func(w *world.World)) func(w *world.World) {
	return func(w *world.World) {
		create(w, slow(3))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		w.Until("a batch is done", func() bool { return batchDone(w, w.Change("web")) })
		happen(w)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if s := w.Change("web").Status; s.PassCount != 3 || s.FailCount+s.CheckingCount+s.PreparingCount > 0 {
			w.Failf("%d pods passed, %d failed, %d are checked and %d wait", s.PassCount, s.FailCount, s.CheckingCount, s.PreparingCount)
		}
	}
}

// lifeStories are played once each, without a fault: swept stories make the same writes.
var lifeStories = []world.Story{
	{Name: "paused and resumed by its user", Run: inTheMiddle(func(w *world.World) {
		patch(w, `{"spec":{"paused":true}}`)
		w.Until("the release reports it", func() bool {
			return conditionOf(w.Change("web"), v1alpha1.ConditionProgressing) == v1alpha1.ReasonRolloutPaused
		})
		patch(w, `{"spec":{"paused":null}}`)
	})},
	{Name: "released three times at once", Run: inTheMiddle(func(w *world.World) {
		for _, value := range []string{"third", "fourth", "fifth"} {
			release(w, value)
		}
	})},
	{Name: "released back and forth", Run: inTheMiddle(func(w *world.World) {
		release(w, "first")
		release(w, "second")
	})},
	{Name: "enrolled while it runs, and does not start", Options: world.Options{Unenrolled: true}, Run: func(w *world.World) {
		d := slow(2)
		d.Annotations = map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameRollback: "10s"}
		create(w, d)
		w.Rest()
		before := podUIDs(w)
		w.Enrol(true)
		w.Rest()
		patch(w, imagePatch(world.BadImage))
		w.Until("it is rolled back", func() bool { return quarantined(w) == 1 })
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if diff := cmp.Diff(before, podUIDs(w)); diff != "" {
			w.Failf("the pods changed, -before +after:\n%s", diff)
		}
		if version := w.Deployment("web").Spec.Template.Labels[v1alpha1.VersionLabel]; version != "" {
			w.Failf("its pods have the version %s, want none", version)
		}
	}},
	{Name: "settings change while it runs", Options: world.Options{
		Nodes: 3, Images: map[string]world.Image{"late": {Ready: 30 * time.Second}},
	}, Run: func(w *world.World) {
		w.Set(settings.NameBranch, true, "3")
		w.Set(settings.NameTimeouts, true, "wait=90s,pre=120s,post=120s")
		create(w, web(7))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		c, full := w.Change("web"), 0
		for _, b := range w.Batches(c) {
			if len(b.Spec.PodInfos) == 3 {
				full++
			}
		}
		if c.Spec.CountThreshold != 3 || c.Spec.WaitTimeThreshold != 90 || full == 0 || c.Status.PassCount != 7 {
			w.Failf("%d batches of 3 pods, %d pods passed, thresholds %d and %d", full, c.Status.PassCount, c.Spec.CountThreshold,
				c.Spec.WaitTimeThreshold)
		}
		w.Set(settings.NameTimeouts, true, "wait=2s,pre=120s,post=120s")
		patch(w, imagePatch("late"))
		seen(w, v1alpha1.ChangeWorkloadTimeOutPreThreshold)
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "versions that succeeded are kept", Options: world.Options{Settings: on(settings.NameHistory, "2")}, Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		for _, value := range []string{"second", "third"} {
			release(w, value)
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}
		keeps(w, "second", "third")
		verdict(w, "unpass")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		keeps(w, "second")
		verdict(w, "pass")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		keeps(w, "second", "third")
		must(w, w.Delete(w.Deployment("web")))
		keeps(w)
	}},
	{Name: "AlterShield Server answers nothing", Options: withServer(soon()), Run: func(w *world.World) {
		must(w, w.Server().SetOutage(simulator.Hang))
		began := time.Now()
		create(w, web(3))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		c := w.Change("web")
		if said := conditionIn(c.Status.OrderSteps, v1alpha1.StepAccepted); c.Status.OrderStage != v1alpha1.OrderSubmitting ||
			said != v1alpha1.ReasonUnreachable {
			w.Failf("the order is %s, and accepted is %q", c.Status.OrderStage, said)
		}
		for _, b := range w.Batches(c) {
			if b.Status.Message != string(v1alpha1.ChangePodPreFailed) {
				w.Failf("the message of batch %s is %q", b.Name, b.Status.Message)
			}
		}
		if eventsOf(w, v1alpha1.EventReleaseUnverified) == 0 || eventsOf(w, v1alpha1.EventCheckError) == 0 {
			w.Failf("no event reports the missing verdicts")
		}
		if calls, most := len(w.Server().Journal()), 40+2*int(time.Since(began).Seconds()); calls > most {
			w.Failf("%d calls, at most %d", calls, most)
		}
	}},
	{Name: "AlterShield Server knows a workload that is deleted", Options: withServer(nil), Run: func(w *world.World) {
		w.Server().Script(simulator.Script{Never: true, Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost}})
		create(w, web(1))
		w.Until("its pod is checked", func() bool {
			c := w.Change("web")
			return c != nil && len(w.Batches(c)) == 1 && w.Batches(c)[0].Status.Status == v1alpha1.ChangePodPostSubmitted
		})
		order := w.Change("web").Status.OrderID
		must(w, w.Delete(w.Deployment("web")))
		w.Rest()
		if ends := w.Server().Journal().Ends(order); len(ends) != 1 || !strings.Contains(string(ends[0].Body), string(altershield.FinishCancel)) {
			w.Failf("the order was ended %d times: %v", len(ends), ends)
		}
	}},
	{Name: "AlterShield Server knows each batch of two", Options: withServer(on(settings.NameBranch, "2")), Run: func(w *world.World) {
		create(w, web(5))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		journal, order := w.Server().Journal(), w.Change("web").Status.OrderID
		var starts []string
		for _, e := range journal.BatchStarts(order) {
			var r altershield.StartBatchRequest
			must(w, e.Decode(&r))
			starts = append(starts,
				fmt.Sprintf("%d of %d, %s, %d pods", r.BatchNo, r.TotalBatchNum, r.IsLastBatchTag, len(r.EffectiveTargetLocations)))
		}
		slices.Sort(starts)
		if diff := cmp.Diff([]string{"0 of 3, not_last, 2 pods", "1 of 3, not_last, 2 pods", "2 of 3, last, 1 pods"}, starts); diff != "" {
			w.Failf("batches, -want +got:\n%s", diff)
		}
		requests := []int{
			len(journal.Requests(altershield.ActionSubmitOrder)), len(journal.OrderStarts(order)), len(journal.Finishes(order)),
			len(journal.Ends(order)),
		}
		if diff := cmp.Diff([]int{1, 1, 4, 1}, requests); diff != "" {
			w.Failf("orders, starts, finishes and ends, -want +got:\n%s", diff)
		}
	}},
}

// keeps waits until the history has exactly the templates with these labels.
func keeps(w *world.World, want ...string) {
	w.Until(fmt.Sprintf("the history has %q", want), func() bool {
		var kept []string
		for _, r := range world.List[*appsv1.ControllerRevision](w, "ControllerRevision") {
			_, ofPods := r.Labels["test"]
			for _, value := range []string{"second", "third"} {
				if strings.Contains(string(r.Data.Raw), fmt.Sprintf("\"test\":%q", value)) && !ofPods && len(r.OwnerReferences) == 1 {
					kept = append(kept, value)
				}
			}
		}
		slices.Sort(kept)
		return slices.Equal(kept, want)
	})
}

func podUIDs(w *world.World) (uids []types.UID) {
	for _, p := range w.Pods() {
		uids = append(uids, p.UID)
	}
	return uids
}

func TestLife(t *testing.T) {
	for _, s := range lifeStories {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Options.Verbose = *verbose
			world.Reference(t, s)
		})
	}
}
