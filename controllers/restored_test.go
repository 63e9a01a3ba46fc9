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
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/test/world"
)

// downAfterSuccess plays a release whose pods all crash some time after its success. It is rolled back in time, even if a check suspends
// it first. Afterwards a fix needs no override.
func downAfterSuccess(after time.Duration) func(*world.World) {
	return func(w *world.World) {
		good, bad := crashAfter(w, after)
		began := time.Now()
		w.Until("it is rolled back", func() bool { return version(w) == good })
		if took := time.Since(began); took > failed {
			w.Failf("it was rolled back after %s", took)
		}
		w.Until("the block is lifted", func() bool { return !labelled(w, v1alpha1.SuspendLabel) })
		why, ok := rollback.ParseQuarantine(w.Deployment("web").Annotations, time.Now()).Reason(bad)
		if !ok || why.Until != "" {
			w.Failf("the version is in quarantine: %t, until %q", ok, why.Until)
		}
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "fix")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}
}

// downTooLate plays the same, but the pods begin to fail after the time in which a failure counts.
func downTooLate(w *world.World) {
	_, bad := crashAfter(w, 6*time.Minute)
	w.For(10 * time.Minute)
	if now := version(w); now != bad {
		w.Failf("it was rolled back to version %s", now)
	}
}

// crashAfter releases two versions that succeed, and puts all pods into CrashLoopBackOff some time later.
func crashAfter(w *world.World, after time.Duration) (good, bad string) {
	create(w, web(2))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	good = version(w)
	release(w, "second")
	until(w, v1alpha1.ChangeWorkloadSuccess)
	bad = version(w)
	w.For(after)
	for _, pod := range w.Pods() {
		crash(w, pod)
	}
	return good, bad
}

// fixAfterRequest rolls a blocked release back on request. A fix passes as soon as the rollout of the restored version is complete, before
// its verdicts.
func fixAfterRequest(w *world.World) {
	create(w, web(2))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	release(w, "second")
	until(w, v1alpha1.ChangeWorkloadSuccess)
	block(w)
	request(w, rollback.LastSuccess)
	w.Until("it is rolled back, and the block is lifted", func() bool {
		return w.Deployment("web").Spec.Template.Labels["test"] == "" && !labelled(w, v1alpha1.SuspendLabel)
	})
	if c := w.Change("web"); c.Status.Status != v1alpha1.ChangeWorkloadRunning {
		w.Failf("the block was lifted while the release was %s", c.Status.Status)
	}
	release(w, "fix")
	until(w, v1alpha1.ChangeWorkloadSuccess)
}

// blockStays rolls a release back on request while a user blocks the workload: the user's block stays.
func blockStays(w *world.World) {
	create(w, web(2))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	release(w, "second")
	until(w, v1alpha1.ChangeWorkloadSuccess)
	request(w, rollback.LastSuccess)
	seen(w, v1alpha1.ChangeWorkloadRunning)
	patch(w, `{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":"1"}}}`)
	until(w, v1alpha1.ChangeWorkloadSuccess)
	if !labelled(w, v1alpha1.SuspendLabel) {
		w.Failf("the user's block was lifted")
	}
}

// overrideFails plays an override release that fails while its pods are replaced. It is halted, although the block comes from an earlier
// release.
func overrideFails(w *world.World) {
	// With minReadySeconds 30, no second pod comes up while a process is down.
	d := slow(3)
	d.Spec.MinReadySeconds = 30
	failInFlight(w, d)
	w.Until("it is halted", func() bool { return w.Deployment("web").Spec.Paused })
	override(w, "repair")
	w.Until("a batch of the override release is done", func() bool {
		c := w.Change("web")
		return c != nil && c.Spec.Reversion == version(w) && c.Spec.Release == 3 && batchDone(w, c)
	})
	verdict(w, "unpass")
	until(w, v1alpha1.ChangeWorkloadSuspend)
	w.Until("the override release is halted", func() bool {
		return w.Deployment("web").Spec.Paused && w.Deployment("web").Annotations[v1alpha1.HaltedAnnotation] == version(w)
	})
	if by := w.Deployment("web").Annotations[v1alpha1.SuspendedByAnnotation]; !strings.Contains(by, " 2 ") {
		w.Failf("it is blocked by %q", by)
	}
}

// correctedOverride corrects the verdict of a failed override release. Its rollout resumes, and its success lifts the block.
func correctedOverride(w *world.World) {
	overrideFails(w)
	verdict(w, "pass")
	until(w, v1alpha1.ChangeWorkloadSuccess)
	w.Until("it is neither blocked nor halted", func() bool {
		return !labelled(w, v1alpha1.SuspendLabel) && !w.Deployment("web").Spec.Paused
	})
}

// resumedOverride resumes a failed override release by hand: later failures do not halt it again.
func resumedOverride(w *world.World) {
	overrideFails(w)
	patch(w, `{"spec":{"paused":false}}`)
	w.Until("every batch is done", func() bool {
		batches := w.Batches(w.Change("web"))
		return len(batches) == 3 && batches[1].Status.Status == v1alpha1.ChangePodExecuteDone
	})
	batch := w.Batches(w.Change("web"))[1]
	must(w, w.PatchStatus(batch, map[string]any{
		"podResults": []v1alpha1.PodResult{{
			PodInfo: v1alpha1.PodInfo{Pod: batch.Spec.PodInfos[0].Pod}, Verdict: "unpass", Message: "find error",
		}},
	}))
	w.Until("both failures are counted", func() bool { return w.Change("web").Status.FailCount == 2 })
	w.For(quietTime)
	if w.Deployment("web").Spec.Paused {
		w.Failf("it was halted again")
	}
}

// goesDown plays a release whose pods all crash two minutes after its success. A StatefulSet is then rolled back only if its own setting
// allows it.
func (n native) goesDown(w *world.World) {
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	first := n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	n.patch(w, templatePatch("second"))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	second := n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	w.For(2 * time.Minute)
	for _, pod := range n.podsOf(w) {
		crash(w, pod)
	}
	if n.name == "statefulset" {
		w.Until("the rollback is refused", func() bool {
			return conditionOf(n.change(w), v1alpha1.ConditionRolledBack) == v1alpha1.ReasonRollbackRefused
		})
		if now := n.stored(w).GetLabels()[v1alpha1.VersionLabel]; now != second {
			w.Failf("it was rolled back to version %s", now)
		}
		n.patch(w, `{"metadata":{"annotations":{"`+v1alpha1.SettingAnnotationPrefix+`rollback":"proven=5m"}}}`)
	}
	w.Until("it is rolled back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
}
