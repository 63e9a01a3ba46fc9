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
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// on returns a setting that is on.
func on(name, content string) map[string]v1alpha1.OpsConfigValue {
	return map[string]v1alpha1.OpsConfigValue{name: {Enable: true, Content: content}}
}

// soon returns short timeouts.
func soon() map[string]v1alpha1.OpsConfigValue {
	return on(settings.NameTimeouts, "wait=10s,pre=20s,post=20s")
}

// stories are stories of Deployments without AlterShield Server.
var stories = []world.Story{
	{Name: "release", Run: func(w *world.World) {
		create(w, web(3))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "release without a probe", Moving: true, Run: func(w *world.World) {
		create(w, wrappers.MakeDeployment(world.Namespace, "web").Replicas(2).Image("good").Obj())
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "settings of a new cluster", Options: world.Options{Bare: true}, Run: func(w *world.World) {
		w.Until("the default policy exists", func() bool { return len(w.Policies()) == 1 })
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "fail, block, repair", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		block(w)
		override(w, "repair")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Until("the block is lifted", func() bool { return !labelled(w, v1alpha1.SuspendLabel) })
	}},
	{Name: "fail, block, refuse, correct", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		block(w)
		if err := w.Patch("web", templatePatch("refused")); err == nil {
			w.Failf("a blocked workload was released")
		}
		verdict(w, "pass")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Until("the block is lifted", func() bool { return !labelled(w, v1alpha1.SuspendLabel) })
	}},
	{Name: "fail while blocking is off", Options: world.Options{
		Settings: map[string]v1alpha1.OpsConfigValue{settings.NameBlocking: {}},
	}, Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		verdict(w, "unpass")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "batches", Options: world.Options{Settings: on(settings.NameBranch, "2")}, Run: func(w *world.World) {
		create(w, web(5))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "halt, and correct", Moving: true, Run: func(w *world.World) {
		failInFlight(w, slow(3))
		w.Until("it is halted and reports it", func() bool {
			d := w.Deployment("web")
			return d.Spec.Paused && labelled(w, v1alpha1.SuspendLabel) && d.Annotations[v1alpha1.HaltedAnnotation] == version(w) &&
				conditionOf(w.Change("web"), v1alpha1.ConditionProgressing) == v1alpha1.ReasonRolloutHalted
		})
		verdict(w, "pass")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Until("it is resumed", func() bool {
			d := w.Deployment("web")
			return !d.Spec.Paused && d.Annotations[v1alpha1.HaltedAnnotation] == "" && !labelled(w, v1alpha1.SuspendLabel)
		})
	}},
	{Name: "halt, and release again", Moving: true, Run: func(w *world.World) {
		failInFlight(w, slow(3))
		override(w, "repair")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "halt, and go back", Moving: true, Run: func(w *world.World) {
		// With minReadySeconds 30, no second pod comes up while a process is down.
		d := slow(3)
		d.Spec.MinReadySeconds = 30
		failInFlight(w, d)
		w.Until("it is halted", func() bool { return w.Deployment("web").Spec.Paused })
		release(w, "first")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Until("it is neither blocked nor halted", func() bool {
			return !labelled(w, v1alpha1.SuspendLabel) && !w.Deployment("web").Spec.Paused
		})
		w.Until("the failed version is in quarantine, and its release is rolled back", func() bool {
			said := func(c *v1alpha1.ChangeWorkload) bool {
				return c.Status.Status == v1alpha1.ChangeWorkloadRollback &&
					conditionOf(c, v1alpha1.ConditionRolledBack) == v1alpha1.ReasonVerificationFailed
			}
			return quarantined(w) == 1 && slices.ContainsFunc(slices.Collect(maps.Values(w.Changes("web"))), said)
		})
	}},
	{Name: "second release during the first", Moving: true, Run: func(w *world.World) {
		create(w, slow(3))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		w.Until("a batch is done", func() bool { return batchDone(w, w.Change("web")) })
		release(w, "third")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "there and back again", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "first")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if n := w.Change("web").Status.ObservedRelease; n != 3 {
			w.Failf("the observed release is %d", n)
		}
	}},
	{Name: "apply a field that is not stored, again and again", Run: applyStripped},
	{Name: "release a field that is not stored, roll it back, and apply again", Run: rollBackStripped},
	{Name: "halt, and go back to a manifest with a field that is not stored", Moving: true, Run: goBackToStripped},
	{Name: "scale", Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		patch(w, `{"spec":{"replicas":3}}`)
		w.Until("all pods passed", func() bool { return w.Change("web").Status.PassCount == 3 })
		patch(w, `{"spec":{"replicas":1}}`)
	}},
	{Name: "opt out of a block, and in", Moving: true, Run: func(w *world.World) {
		failInFlight(w, slow(3))
		patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"`+v1alpha1.DefenseDisabled+`"}}}`)
		w.Until("the block is removed", func() bool { return !labelled(w, v1alpha1.SuspendLabel) && !w.Deployment("web").Spec.Paused })
		w.Rest()
		patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":null}}}`)
		until(w, v1alpha1.ChangeWorkloadSuspend)
	}},
	{Name: "pods are replaced", Run: replaced},
	{Name: "count to the end while opted out", Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"`+v1alpha1.DefenseDisabled+`"},`+
			`"annotations":{"`+v1alpha1.ReleaseAnnotation+`":"9223372036854775807"}}}`)
		w.Rest()
		patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":null}}}`)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		block(w)
	}},
	{Name: "un-enrol", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		block(w)
		w.Enrol(false)
		w.Until("the block is removed", func() bool { return !labelled(w, v1alpha1.SuspendLabel) })
	}},
	{Name: "enrol again, with a request from before", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(10 * time.Minute)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		now := version(w)
		w.Enrol(false)
		w.For(time.Minute)
		patch(w, asked("last-success"))
		w.For(48 * time.Hour)
		w.Enrol(true)
		dropped(w)
		w.For(10 * time.Minute)
		if version(w) != now || rollbacks(w) > 0 {
			w.Failf("it was rolled back")
		}
		patch(w, asked("last-success"))
		w.Until("a later request counts", func() bool { return version(w) != now })
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "opt in, with a request from before", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(10 * time.Minute)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		now := version(w)
		patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
		patch(w, asked("last-success"))
		w.For(time.Hour)
		patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":null}}}`)
		dropped(w)
		w.For(10 * time.Minute)
		if version(w) != now || rollbacks(w) > 0 {
			w.Failf("it was rolled back")
		}
	}},
	{Name: "install again", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		good := version(w)
		w.For(10 * time.Minute)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		block(w)
		w.Stop()
		must(w, w.Delete(w.Change("web")))
		w.Uninstall()
		w.For(time.Hour)
		w.Start()
		w.Until("the version is a baseline", func() bool { return !labelled(w, v1alpha1.VersionLabel) })
		w.For(time.Hour)
		if c := w.Change("web"); c != nil || labelled(w, v1alpha1.DefenseStatusLabel) {
			w.Failf("the baseline is a release: %+v", c)
		}
		backToFirst(w)
		if now := version(w); now != good {
			w.Failf("its version is %s", now)
		}
	}},
	{Name: "enrol what runs", Options: world.Options{Unenrolled: true}, Run: func(w *world.World) {
		create(w, web(2))
		w.Rest()
		w.Enrol(true)
		w.Rest()
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "delete in mid-release, and create again", Moving: true, Run: func(w *world.World) {
		create(w, slow(3))
		w.Until("it is recorded", func() bool { return w.Change("web") != nil })
		must(w, w.Delete(w.Deployment("web")))
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "release while the operator is down", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Rest()
		w.Stop()
		release(w, "second")
		w.For(quietTime)
		w.Start()
		w.Until("it is recorded", func() bool { return w.Deployment("web").Annotations[v1alpha1.ReleaseAnnotation] == "2" })
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "release again at once", Run: func(w *world.World) {
		create(w, web(2))
		seen(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		backToFirst(w)
	}},
	{Name: "enrol what runs, and release twice at once", Options: world.Options{Unenrolled: true}, Run: func(w *world.World) {
		create(w, web(2))
		w.Rest()
		w.Enrol(true)
		release(w, "second")
		release(w, "third")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		backToFirst(w)
	}},
	{Name: "roll a stuck release back", Run: func(w *world.World) {
		releaseStuck(w)
		if err := w.Patch("web", imagePatch("bad")); err == nil {
			w.Failf("a rolled-back version was released")
		}
		d := w.Deployment("web")
		said := d.Annotations[v1alpha1.QuarantineReasonAnnotation] + d.Annotations[v1alpha1.ChangeCauseAnnotation]
		if *d.Spec.Replicas != 2 || strings.Count(said, "ImagePull") < 2 {
			w.Failf("it has %d replicas, and its annotations say %s", *d.Spec.Replicas, said)
		}
	}},
	{Name: "only observe a release that never starts", Run: func(w *world.World) {
		d := slow(2)
		d.Annotations = map[string]string{
			v1alpha1.SettingAnnotationPrefix + settings.NameRollback: "10s",
			v1alpha1.SettingAnnotationPrefix + settings.NameObserve:  settings.Enabled,
		}
		create(w, d)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		patch(w, imagePatch(world.BadImage))
		bad := version(w)
		w.Until("the dry run is reported", func() bool {
			c := w.Change("web")
			return c != nil && c.Spec.Release == 2 && conditionOf(c, v1alpha1.ConditionRolledBack) == v1alpha1.ReasonObserving
		})
		w.For(10 * time.Minute)
		if version(w) != bad || quarantined(w) > 0 || rollbacks(w) > 0 {
			w.Failf("it was rolled back, and %d versions are in quarantine", quarantined(w))
		}
	}},
	{Name: "override a quarantine", Run: func(w *world.World) {
		releaseStuck(w)
		patch(w, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},`+
			`"spec":{"template":{"spec":{"containers":[{"name":"main","image":"bad"}]}}}}`)
		w.Until("the rollback is refused", func() bool {
			c := w.Change("web")
			return c != nil && conditionOf(c, v1alpha1.ConditionRolledBack) == v1alpha1.ReasonRollbackRefused
		})
		patch(w, imagePatch("good:2"))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "roll back on request", Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		first := version(w)
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		request(w, "nonsense")
		request(w, "last-success")
		w.Until("it is rolled back", func() bool { return version(w) == first })
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "roll a failure back on request, and release a fix", Options: withPolicies(podHealth("policy")), Run: fixAfterRequest},
	{Name: "roll back on request, and block by hand", Options: withPolicies(podHealth("policy")), Run: blockStays},
	{Name: "halt, fail the override, and correct it", Moving: true, Run: correctedOverride},
	{Name: "halt, fail the override, and resume it", Moving: true, Run: resumedOverride},
	{Name: "heal in flight", Moving: true, Options: world.Options{Settings: on(settings.NameSelfHealing, "")}, Run: func(w *world.World) {
		// With minReadySeconds 30, no second pod comes up while a process is down.
		d := slow(3)
		d.Spec.MinReadySeconds = 30
		create(w, d)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		first := version(w)
		release(w, "second")
		w.Until("a batch is done", func() bool { return batchDone(w, w.Change("web")) })
		verdict(w, "unpass")
		w.Until("it is rolled back", func() bool { return version(w) == first })
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Until("the block is lifted", func() bool { return !labelled(w, v1alpha1.SuspendLabel) && !w.Deployment("web").Spec.Paused })
	}},
	{Name: "recreate, with nothing to go back to", Run: func(w *world.World) {
		create(w, wrappers.MakeDeployment(world.Namespace, "web").Replicas(2).Image("bad").With(func(d *appsv1.Deployment) {
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}).Obj())
		w.Until("the rollback is refused", func() bool {
			c := w.Change("web")
			return c != nil && conditionOf(c, v1alpha1.ConditionRolledBack) == v1alpha1.ReasonRollbackRefused
		})
		patch(w, imagePatch("good"))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
}

// recordStories are stories of users who delete the operator's records.
var recordStories = []world.Story{
	{Name: "delete the records of a block", Moving: true, Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		block(w)
		stays := func(when string) {
			w.Rest()
			if err := w.Patch("web", templatePatch("refused")); err == nil || !labelled(w, v1alpha1.SuspendLabel) {
				w.Failf("%s a blocked workload was released, or its block is gone: %v", when, err)
			}
		}
		for _, b := range w.Batches(w.Change("web")) {
			must(w, w.Delete(b))
		}
		stays("without its batches")
		c := w.Change("web")
		must(w, w.Delete(c))
		w.Until("the release is recorded again", func() bool {
			again := w.Change("web")
			return again != nil && again.UID != c.UID && again.Spec.Release == c.Spec.Release
		})
		stays("without its record")
		// The release is not judged again, so the block stays.
		w.For(time.Hour)
		stays("an hour later")
		override(w, "repair")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.Until("the block is lifted", func() bool { return !labelled(w, v1alpha1.SuspendLabel) })
	}},
}

// serverStories are stories with AlterShield Server.
var serverStories = []world.Story{
	{Name: "passes", Options: withServer(nil), Run: func(w *world.World) {
		create(w, web(2))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		ended(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "fails the PRE check of a batch", Options: withServer(nil), Run: failing(altershield.CheckBatch, altershield.StagePre)},
	{Name: "fails the POST check of a batch", Options: withServer(nil), Run: failing(altershield.CheckBatch, altershield.StagePost)},
	{Name: "fails the PRE check of an order", Options: withServer(nil), Run: failing(altershield.CheckOrder, altershield.StagePre)},
	{Name: "fails the POST check of an order", Options: withServer(nil), Run: failing(altershield.CheckOrder, altershield.StagePost)},
	{Name: "is silent", Options: withServer(soon()), Run: func(w *world.World) {
		w.Server().Script(simulator.Script{Never: true, Match: simulator.Match{Stage: altershield.StagePost}})
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "is silent, which fails", Options: withServer(merged(soon(), on(settings.NameSilence, ""))), Run: func(w *world.World) {
		create(w, web(1))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		w.Server().Script(simulator.Script{Never: true, Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost}})
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
	}},
	{Name: "is down, and comes back", Options: withServer(soon()), Run: func(w *world.World) {
		must(w, w.Server().SetOutage(simulator.Refuse))
		create(w, web(1))
		w.For(quietTime)
		must(w, w.Server().SetOutage(simulator.NoOutage))
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "is late with the PRE check of a batch, and fails its POST check", Options: withServer(soon()), Run: func(w *world.World) {
		create(w, web(1))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		w.Server().Script(simulator.Script{Drop: true, Delay: 30 * time.Second,
			Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePre}})
		w.Server().Script(simulator.Script{Verdict: altershield.VerdictFail, CallbackDelay: 5 * time.Second,
			Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost}})
		release(w, "bad")
		heard(w)
	}},
	{Name: "is back after the success, and fails the POST check of the order", Options: withServer(soon()), Run: func(w *world.World) {
		create(w, web(1))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		w.Server().Script(simulator.Script{Verdict: altershield.VerdictFail, CallbackDelay: 5 * time.Second,
			Match: simulator.Match{CheckType: altershield.CheckOrder, Stage: altershield.StagePost}})
		must(w, w.Server().SetOutage(simulator.Refuse))
		release(w, "bad")
		w.Until("it passed unverified", func() bool {
			c := w.Change("web")
			return c != nil && c.Spec.Release == 2 && conditionOf(c, v1alpha1.ConditionVerified) == v1alpha1.ReasonPassedUnverified
		})
		must(w, w.Server().SetOutage(simulator.NoOutage))
		heard(w)
	}},
	{Name: "pods are replaced, and checked", Options: withServer(nil), Run: replaced},
	{Name: "learns of a rollback", Options: withServer(nil), Run: func(w *world.World) {
		releaseStuck(w)
		ended(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "learns of a release that replaces another", Moving: true, Options: withServer(nil), Run: func(w *world.World) {
		create(w, slow(3))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		release(w, "second")
		w.Until("a batch is done", func() bool { return batchDone(w, w.Change("web")) })
		release(w, "third")
		ended(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "passes a held rollout after its policy does", Options: heldByServer(nil), Run: func(w *world.World) {
		create(w, web(3))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		w.Server().Script(simulator.Script{
			Delay: time.Minute, Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
		})
		release(w, "second")
		waveJudged(w)
		w.For(15 * time.Second) // after the policy has passed them
		isHeld(w, 3)
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
		endedBy(w, v1alpha1.ReasonHoldVerified)
	}},
	{Name: "fails a held rollout after its policy passed it", Options: heldByServer(nil), Run: func(w *world.World) {
		create(w, web(3))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		w.Server().Script(simulator.Script{Verdict: altershield.VerdictFail, Delay: 45 * time.Second,
			Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost}})
		release(w, "bad")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		givenBack(w, 0, 600)
		endedBy(w, v1alpha1.ReasonVerificationFailed)
		if _, old := podsOf(w); !w.Deployment("web").Spec.Paused || len(old) < 3 {
			w.Failf("paused is %t with %d old pods", w.Deployment("web").Spec.Paused, len(old))
		}
	}},
	{Name: "is silent while a rollout is held", Options: heldByServer(soon()), Run: func(w *world.World) {
		create(w, web(3))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		w.Server().Script(simulator.Script{Never: true, Match: simulator.Match{CheckType: altershield.CheckBatch, Stage: altershield.StagePost}})
		release(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuccess)
		givenBack(w, 0, 600)
		endedBy(w, v1alpha1.ReasonHoldVerified)
	}},
}

// heldByServer returns settings that hold rollouts, with a server whose verdicts come after the policy's.
func heldByServer(more map[string]v1alpha1.OpsConfigValue) world.Options {
	o := held("every", 5*time.Second, more)
	o.Server = true
	return o
}

func withServer(settings map[string]v1alpha1.OpsConfigValue) world.Options {
	return world.Options{Server: true, Settings: settings}
}

func merged(a, b map[string]v1alpha1.OpsConfigValue) map[string]v1alpha1.OpsConfigValue {
	for k, v := range b {
		a[k] = v
	}
	return a
}

// failing plays a release that the server passes, and then a release with a check that the server fails.
func failing(of altershield.CheckType, stage altershield.Stage) func(w *world.World) {
	return func(w *world.World) {
		create(w, web(1))
		ended(w, v1alpha1.ChangeWorkloadSuccess)
		// The delay lets a process that died of the call come back first.
		w.Server().Script(simulator.Script{
			Verdict: altershield.VerdictFail, CallbackDelay: 5 * time.Second, Match: simulator.Match{CheckType: of, Stage: stage},
		})
		release(w, "bad")
		heard(w)
	}
}

// heard waits until the second release is blocked, or until it succeeded because the failing verdict was lost.
func heard(w *world.World) {
	w.Until("it is blocked, or succeeded because the verdict was lost", func() bool {
		c := w.Change("web")
		return c != nil && c.Spec.Release == 2 && (labelled(w, v1alpha1.SuspendLabel) && c.Status.Status == v1alpha1.ChangeWorkloadSuspend ||
			w.Undelivered() && c.Status.Status == v1alpha1.ChangeWorkloadSuccess)
	})
}

func web(replicas int32) *appsv1.Deployment { return probed(replicas).Obj() }

// probed returns a Deployment with a readiness probe, so its pods need no time to settle.
func probed(replicas int32) *wrappers.DeploymentWrapper {
	return wrappers.MakeDeployment(world.Namespace, "web").Replicas(replicas).Image("good").
		Container(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} })
}

// replaced plays a release whose pods are replaced after its success: the number of batches kept stays the same.
func replaced(w *world.World) {
	create(w, web(2))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	for i := range 4 {
		must(w, w.Delete(w.Pods()[0]))
		passed := int32(3 + i)
		w.Until(fmt.Sprintf("%d pods passed, with one batch for each pod", passed), func() bool {
			c := w.Change("web")
			return c.Status.PassCount == passed && c.Status.Batches == passed && len(w.Batches(c)) == 2
		})
	}
	if c := w.Change("web"); c.Status.Status != v1alpha1.ChangeWorkloadSuccess {
		w.Failf("the release is %s", c.Status.Status)
	}
}

// strippedField is a field of the template that the API server does not store.
const strippedField = `{"spec":{"template":{"spec":{"schedulingGroup":{"podGroupName":"group"}}}}}`

// stripped sets that field.
func stripped(d *appsv1.Deployment) *appsv1.Deployment {
	group := "group"
	d.Spec.Template.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	return d
}

// unchanged applies a manifest that changes nothing stored: it causes neither a release nor a write.
func unchanged(w *world.World, manifest string) {
	w.Rest()
	before := w.Deployment("web").DeepCopy()
	for range 3 {
		patch(w, manifest)
		w.For(quietTime)
	}
	after := w.Deployment("web")
	if n, was := after.Annotations[v1alpha1.ReleaseAnnotation], before.Annotations[v1alpha1.ReleaseAnnotation]; n != was {
		w.Failf("applying an unchanged manifest made release %s of %s", n, was)
	}
	if after.ResourceVersion != before.ResourceVersion {
		w.Failf("applying an unchanged manifest changed something:\n%s", cmp.Diff(before, after))
	}
}

// applyStripped applies a manifest with a field that is not stored, several times.
func applyStripped(w *world.World) {
	create(w, stripped(web(2)))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	if c := w.Change("web"); c.Spec.Release != 1 || c.Status.Attempt != 1 ||
		w.Deployment("web").Annotations[v1alpha1.ReleasedByAnnotation] == "unknown" {
		w.Failf("the first release is number %d, attempt %d, by %s", c.Spec.Release, c.Status.Attempt,
			w.Deployment("web").Annotations[v1alpha1.ReleasedByAnnotation])
	}
	unchanged(w, strippedField)
	block(w)
	unchanged(w, strippedField)
	if c := w.Change("web"); c.Status.Status != v1alpha1.ChangeWorkloadSuspend || c.Status.FailCount != 1 ||
		!labelled(w, v1alpha1.SuspendLabel) {
		w.Failf("applying an unchanged manifest made the failed release %s, with %d failures", c.Status.Status, c.Status.FailCount)
	}
	if err := w.Patch("web", templatePatch("refused")); err == nil {
		w.Failf("a blocked workload was released")
	}
	override(w, "repair")
	until(w, v1alpha1.ChangeWorkloadSuccess)
	// It is not known yet what the API server stores of this manifest: the first apply is a release.
	patch(w, strippedField)
	until(w, v1alpha1.ChangeWorkloadSuccess)
	unchanged(w, strippedField)
	if n := w.Deployment("web").Annotations[v1alpha1.ReleaseAnnotation]; n != "3" {
		w.Failf("release is %s", n)
	}
}

// goBackToStripped applies the manifest of the last good version, with a field that is not stored, while the next version is blocked and
// halted.
func goBackToStripped(w *world.World) {
	d := slow(3)
	// With minReadySeconds 30, no second pod comes up while a process is down.
	d.Spec.MinReadySeconds = 30
	failInFlight(w, stripped(d))
	w.Until("it is halted", func() bool { return w.Deployment("web").Spec.Paused })
	patch(w, `{"spec":{"template":{"metadata":{"labels":{"test":null}},"spec":{"schedulingGroup":{"podGroupName":"group"}}}}}`)
	until(w, v1alpha1.ChangeWorkloadSuccess)
	w.Until("it is neither blocked nor halted", func() bool {
		return !labelled(w, v1alpha1.SuspendLabel) && !w.Deployment("web").Spec.Paused
	})
	if quarantined(w) != 1 {
		w.Failf("%d versions are in quarantine", quarantined(w))
	}
	unchanged(w, strippedField)
}

// rollBackStripped rolls a release back. The manifests of both versions have a field that is not stored.
func rollBackStripped(w *world.World) {
	d := stripped(slow(2))
	d.Annotations = map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameRollback: "10s"}
	create(w, d)
	until(w, v1alpha1.ChangeWorkloadSuccess)
	good := version(w)
	apply := func(image string) error {
		return w.Patch("web", fmt.Sprintf(`{"spec":{"template":{"spec":{"schedulingGroup":{"podGroupName":"group"},`+
			`"containers":[{"name":"main","image":%q}]}}}}`, image))
	}
	must(w, apply(world.BadImage))
	w.Until("it is rolled back", func() bool { return version(w) == good && quarantined(w) == 1 })
	until(w, v1alpha1.ChangeWorkloadSuccess)
	if err := apply(world.BadImage); err == nil {
		w.Failf("a rolled-back version was released")
	}
	unchanged(w, strippedField)
}

// slow returns a Deployment that replaces one pod after the other.
func slow(replicas int32) *appsv1.Deployment {
	return probed(replicas).OneByOne().MinReadySeconds(1).Obj()
}

func must(w *world.World, err error) {
	if err != nil {
		w.Failf("%v", err)
	}
}

func create(w *world.World, d *appsv1.Deployment) { must(w, w.Create(d)) }

func patch(w *world.World, patch string) { must(w, w.Patch("web", patch)) }

func templatePatch(value string) string {
	return fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`, value)
}

func imagePatch(image string) string {
	return fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image)
}

// release releases another template; "first" is the template that the workload was created with.
func release(w *world.World, value string) {
	if value == "first" {
		patch(w, `{"spec":{"template":{"metadata":{"labels":{"test":null}}}}}`)
		return
	}
	patch(w, templatePatch(value))
}

// override releases a template past the block.
func override(w *world.World, value string) {
	patch(w, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`,
		v1alpha1.IgnoredSuspendLabel, value))
}

// asked returns a patch that requests a rollback, with the current time in the managed fields.
func asked(version string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q},"managedFields":[{"manager":"kubectl-annotate",
		"operation":"Update","apiVersion":"apps/v1","time":%q,
		"fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{"f:%s":{}}}}}]}}`,
		v1alpha1.RollbackToAnnotation, version, time.Now().UTC().Format(time.RFC3339), v1alpha1.RollbackToAnnotation)
}

// dropped waits until a request older than the defense is dropped. Only TestTrace checks its event, which is lost if the process dies
// after the write.
func dropped(w *world.World) {
	w.Until("the request is dropped", func() bool {
		return w.Deployment("web").Annotations[v1alpha1.RollbackToAnnotation] == ""
	})
}

func request(w *world.World, version string) {
	patch(w, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.RollbackToAnnotation, version))
	w.Until("the request is taken", func() bool {
		return w.Deployment("web").Annotations[v1alpha1.RollbackToAnnotation] == ""
	})
}

// backToFirst requests a rollback to the last success, which is the template that the workload was created with.
func backToFirst(w *world.World) {
	request(w, "last-success")
	w.Until("it is rolled back", func() bool { return w.Deployment("web").Spec.Template.Labels["test"] == "" })
	until(w, v1alpha1.ChangeWorkloadSuccess)
}

func labelled(w *world.World, label string) bool {
	_, ok := w.Deployment("web").Labels[label]
	return ok
}

func version(w *world.World) string { return w.Deployment("web").Labels[v1alpha1.VersionLabel] }

// seen waits until the current release is in a state.
func seen(w *world.World, state v1alpha1.ChangeWorkloadStatusType) {
	w.Until("the release is "+string(state), func() bool {
		c, d := w.Change("web"), w.Deployment("web")
		return c != nil && c.Status.Status == state && fmt.Sprint(c.Status.ObservedRelease) == d.Annotations[v1alpha1.ReleaseAnnotation]
	})
}

// until waits until the current release is in a state, and a while longer.
func until(w *world.World, state v1alpha1.ChangeWorkloadStatusType) {
	seen(w, state)
	// A user takes a while to act on a state. The writes that follow the state, as of the history, are done by then.
	w.For(10 * time.Second)
}

// ended waits until the current release is in a state and its order has ended.
func ended(w *world.World, state v1alpha1.ChangeWorkloadStatusType) {
	until(w, state)
	w.Until("its order is ended", func() bool { return w.Change("web").Status.OrderStage == v1alpha1.OrderEnded })
}

// verdict writes the verdict of the first pod of the current release.
func verdict(w *world.World, verdict string) { judge(w, w.Change("web"), verdict) }

// judge writes the verdict of the first pod of a release.
func judge(w *world.World, c *v1alpha1.ChangeWorkload, verdict string) {
	w.Until("a batch is done", func() bool {
		batches := w.Batches(c)
		return len(batches) > 0 && batches[0].Status.Status == v1alpha1.ChangePodExecuteDone
	})
	batch := w.Batches(c)[0]
	must(w, w.PatchStatus(batch, map[string]any{
		"message":    v1alpha1.ChangePodMessagePostFinish,
		"podResults": []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: batch.Spec.PodInfos[0].Pod}, Verdict: verdict, Message: "find error"}},
	}))
}

func block(w *world.World) {
	verdict(w, "unpass")
	until(w, v1alpha1.ChangeWorkloadSuspend)
	w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
}

// batchDone reports whether the first batch of a release is done. The status of the release may follow later.
func batchDone(w *world.World, c *v1alpha1.ChangeWorkload) bool {
	if c == nil {
		return false
	}
	batches := w.Batches(c)
	return len(batches) > 0 && batches[0].Status.Status == v1alpha1.ChangePodExecuteDone
}

// failInFlight fails a release while its pods are replaced.
func failInFlight(w *world.World, d *appsv1.Deployment) {
	create(w, d)
	until(w, v1alpha1.ChangeWorkloadSuccess)
	release(w, "second")
	w.Until("a batch is done", func() bool { return batchDone(w, w.Change("web")) })
	block(w)
}

// releaseStuck plays a release whose pods do not come up, and which is rolled back.
func releaseStuck(w *world.World) {
	d := slow(2)
	d.Annotations = map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameRollback: "10s"}
	create(w, d)
	until(w, v1alpha1.ChangeWorkloadSuccess)
	good := version(w)
	patch(w, imagePatch(world.BadImage))
	w.Until("it is rolled back", func() bool { return version(w) == good && quarantined(w) == 1 })
	until(w, v1alpha1.ChangeWorkloadSuccess)
}

func quarantined(w *world.World) int {
	var reasons map[string]json.RawMessage
	if json.Unmarshal([]byte(w.Deployment("web").Annotations[v1alpha1.QuarantineReasonAnnotation]), &reasons) != nil {
		return 0
	}
	return len(strings.Split(w.Deployment("web").Annotations[v1alpha1.QuarantinedAnnotation], ","))
}

// conditionOf returns the reason of a condition of a release, or "".
func conditionOf(c *v1alpha1.ChangeWorkload, kind string) string {
	return conditionIn(c.Status.Conditions, kind)
}

func conditionIn(conditions []metav1.Condition, kind string) string {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return c.Reason
	}
	return ""
}
