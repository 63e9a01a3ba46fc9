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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// podHealth returns a policy of the workload's namespace with one check of pod health.
func podHealth(name string, with ...func(*v1alpha1.DefensePolicy)) v1alpha1.DefensePolicy {
	p := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: name}}
	p.Spec.Checks = []v1alpha1.PolicyCheck{{
		Name: "health", PodHealth: &v1alpha1.PodHealthCheck{Duration: &metav1.Duration{Duration: 30 * time.Second}},
	}}
	for _, f := range with {
		f(&p)
	}
	return p
}

// byRule returns a policy of the workload's namespace with one check by a rule.
func byRule(rule string, with ...func(*v1alpha1.DefensePolicy)) v1alpha1.DefensePolicy {
	p := podHealth("policy")
	p.Spec.Checks = []v1alpha1.PolicyCheck{
		{Name: "rule", Cel: &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: rule, Message: "it breaks a rule"}}}},
	}
	for _, f := range with {
		f(&p)
	}
	return p
}

// atAdmission returns a policy that denies releases by a rule.
func atAdmission(rule string) v1alpha1.DefensePolicy {
	return byRule(rule, func(p *v1alpha1.DefensePolicy) { p.Spec.Checks[0].Stage = v1alpha1.StageAdmission })
}

// whileDown releases another template and lets it roll out while the operator is down.
func whileDown(w *world.World, value string) {
	w.Stop()
	release(w, value)
	w.For(time.Minute)
	w.Start()
}

// inBackground puts the check into the background, after a delay of a minute.
func inBackground(p *v1alpha1.DefensePolicy) {
	p.Spec.Checks[0].Wait, p.Spec.Checks[0].Delay = ptr.To(false), &metav1.Duration{Duration: time.Minute}
}

// forMinutes makes a check of type podHealth last five minutes.
func forMinutes(p *v1alpha1.DefensePolicy) {
	p.Spec.Checks[0].PodHealth.Duration.Duration = 5 * time.Minute
}

// delayed delays the check until the rollout is over, because a release that fails earlier is halted.
func delayed(p *v1alpha1.DefensePolicy) {
	p.Spec.Checks[0].Delay = &metav1.Duration{Duration: 10 * time.Second}
}

// onError sets the result of a check whose tries fail for two minutes.
func onError(what v1alpha1.OnSilence) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Spec.OnError, p.Spec.Checks[0].Deadline = what, &metav1.Duration{Duration: 2 * time.Minute}
	}
}

// noDefault returns the default policy, disabled.
func noDefault() v1alpha1.DefensePolicy {
	off := podHealth("default")
	off.Namespace, off.Spec.Mode = world.OperatorNamespace, v1alpha1.ModeDisabled
	return off
}

func withPolicies(policies ...v1alpha1.DefensePolicy) world.Options {
	return world.Options{Policies: policies}
}

// crash puts the container of a pod into CrashLoopBackOff.
func crash(w *world.World, pod *corev1.Pod) {
	was := stamp(-20 * time.Second)
	setPod(w, pod, corev1.ConditionFalse, corev1.ContainerStatus{
		Name: "main", RestartCount: 2, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Reason: "Error", StartedAt: was, FinishedAt: stamp(0),
		}},
	})
}

// crashed lets the container of a pod end and run again at once.
func crashed(w *world.World, pod *corev1.Pod, times int32) {
	setPod(w, pod, corev1.ConditionTrue, corev1.ContainerStatus{
		Name: "main", RestartCount: times, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: stamp(0)}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Reason: "Error", StartedAt: stamp(-time.Minute), FinishedAt: stamp(0),
		}},
	})
}

// outOfMemory lets the container of a pod be OOMKilled and run again.
func outOfMemory(w *world.World, pod *corev1.Pod) {
	setPod(w, pod, corev1.ConditionTrue, corev1.ContainerStatus{
		Name: "main", RestartCount: 1, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: stamp(0)}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "OOMKilled", StartedAt: stamp(-time.Minute), FinishedAt: stamp(0),
		}},
	})
}

// unready sets the condition Ready of a pod.
func unready(w *world.World, pod *corev1.Pod, ready corev1.ConditionStatus) {
	setPod(w, pod, ready, corev1.ContainerStatus{
		Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: stamp(-time.Hour)}},
	})
}

func stamp(after time.Duration) metav1.Time {
	return metav1.NewTime(time.Now().Add(after)).Rfc3339Copy()
}

func setPod(w *world.World, pod *corev1.Pod, ready corev1.ConditionStatus, container corev1.ContainerStatus) {
	status := pod.Status.DeepCopy()
	status.ContainerStatuses = []corev1.ContainerStatus{container}
	for i := range status.Conditions {
		if c := &status.Conditions[i]; c.Type == corev1.PodReady && c.Status != ready {
			c.Status, c.LastTransitionTime = ready, stamp(0)
		}
	}
	w.SetPod(pod, status)
}

// checkOf returns the check with a name, from the first batch that has it.
func checkOf(w *world.World, name string) *v1alpha1.CheckStatus {
	change := w.Change("web")
	if change == nil {
		return nil
	}
	for _, b := range w.Batches(change) {
		for i := range b.Status.Checks {
			if b.Status.Checks[i].Name == name {
				return &b.Status.Checks[i]
			}
		}
	}
	return nil
}

const (
	staysUp = world.OperatorNamespace + "/default/stays-up"
	health  = world.Namespace + "/policy/health"
	rule    = world.Namespace + "/policy/rule"
)

// second releases two versions that succeed, and returns a pod of the second.
func second(w *world.World, replicas int32) *corev1.Pod {
	create(w, web(replicas))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	release(w, "second")
	until(w, v1alpha1.ChangeWorkloadSuccess)
	return w.Pods()[0]
}

// suspendedBy waits until a check fails the release.
func suspendedBy(w *world.World, check, reason string) {
	until(w, v1alpha1.ChangeWorkloadSuspend)
	w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
	failed := w.Change("web").Status.DefenseCheckFailPods
	if len(failed) != 1 || !strings.HasPrefix(failed[0].Message, check+": pod "+failed[0].Pod+": ") {
		w.Failf("the failed pods are %+v", failed)
	}
	if !slices.ContainsFunc(w.Batches(w.Change("web")), func(b *v1alpha1.ChangePod) bool {
		return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool {
			return c.Name == check && c.Phase == v1alpha1.CheckFailed && c.Reason == reason && slices.Equal(c.FailedPods, []string{failed[0].Pod})
		})
	}) {
		w.Failf("no batch has the failed check")
	}
}

// policyStories are stories of checks by policies.
var policyStories = []world.Story{
	{Name: "crash after it succeeded", Run: func(w *world.World) {
		crash(w, second(w, 2))
		suspendedBy(w, staysUp, "CrashLoopBackOff")
		if w.Change("web").Status.PassCount != 1 {
			w.Failf("%d pods passed", w.Change("web").Status.PassCount)
		}
	}},
	{Name: "crashes without a CrashLoopBackOff", Run: func(w *world.World) {
		pod := second(w, 2)
		crashed(w, pod, 1)
		w.For(time.Minute)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		crashed(w, pod, 2)
		suspendedBy(w, staysUp, "Restarted")
	}},
	{Name: "out of memory after it succeeded", Run: func(w *world.World) {
		outOfMemory(w, second(w, 2))
		suspendedBy(w, staysUp, "OOMKilled")
	}},
	{Name: "readiness lost for good", Run: func(w *world.World) {
		unready(w, second(w, 2), corev1.ConditionFalse)
		w.For(5 * time.Minute)
		suspendedBy(w, staysUp, "NotReady")
	}},
	{Name: "a flap", Run: func(w *world.World) {
		pod := second(w, 2)
		unready(w, pod, corev1.ConditionFalse)
		w.For(20 * time.Second)
		unready(w, pod, corev1.ConditionTrue)
		w.For(6 * time.Minute)
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "one of ten is tolerated", Run: func(w *world.World) {
		outOfMemory(w, second(w, 10))
		w.Until("the check reports it", func() bool {
			return slices.ContainsFunc(w.Batches(w.Change("web")), func(b *v1alpha1.ChangePod) bool {
				return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Reason == v1alpha1.ReasonTolerated })
			})
		})
		w.For(6 * time.Minute)
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "crash after it succeeded, and heal", Options: world.Options{Settings: on(settings.NameSelfHealing, "")},
		Run: func(w *world.World) {
			crash(w, second(w, 2))
			w.Until("it is rolled back", func() bool { return quarantined(w) == 1 })
			until(w, v1alpha1.ChangeWorkloadSuccess)
		}},
	{Name: "all crash soon after it succeeded, and it goes back", Run: downAfterSuccess(time.Minute)},
	{Name: "all crash four minutes after it succeeded, and it goes back", Run: downAfterSuccess(4 * time.Minute)},
	{Name: "all crash four minutes after it succeeded, unchecked", Options: withPolicies(noDefault()), Run: downAfterSuccess(4 * time.Minute)},
	{Name: "all crash six minutes after it succeeded, unchecked", Options: withPolicies(noDefault()), Run: downTooLate},
	{Name: "restarts that old pods do not have",
		Options: world.Options{
			Settings: on(settings.NameHolding, "first"), Policies: []v1alpha1.DefensePolicy{podHealth("policy", inBackground, forMinutes)},
		}, Run: restartWhileHeld(false, false)},
	{Name: "restarts that old pods have, too", Options: world.Options{Settings: on(settings.NameHolding, "first")},
		Run: restartWhileHeld(true, false)},
	{Name: "restarts on one node", Options: world.Options{Settings: on(settings.NameHolding, "first")}, Run: restartWhileHeld(false, true)},
	{Name: "wait for a check", Options: withPolicies(podHealth("policy")), Run: func(w *world.World) {
		create(w, web(2))
		began := time.Now()
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if took := time.Since(began); took < 30*time.Second {
			w.Failf("it succeeded after %s", took)
		}
		if c := checkOf(w, health); c == nil || c.Phase != v1alpha1.CheckPassed {
			w.Failf("the check is %+v", c)
		}
		for _, b := range w.Batches(w.Change("web")) {
			if b.Status.Message != v1alpha1.ChangePodMessagePostFinish || b.Status.PodResults[0].Verdict != "pass" {
				w.Failf("a batch is %s, %+v", b.Status.Message, b.Status.PodResults)
			}
		}
	}},
	{Name: "fail a check that is waited for", Options: withPolicies(podHealth("policy"), noDefault()), Run: func(w *world.World) {
		w.SetQuota(true, 1) // so the rollout is not complete
		create(w, web(2))
		w.Until("the check runs", func() bool { c := checkOf(w, health); return c != nil && c.Phase == v1alpha1.CheckRunning })
		w.For(20 * time.Second)
		crash(w, w.Pods()[0])
		suspendedBy(w, health, "CrashLoopBackOff")
	}},
	{Name: "a probe that cannot be made, and must", Options: withPolicies(noDefault(), podHealth("policy", func(p *v1alpha1.DefensePolicy) {
		c := &p.Spec.Checks[0]
		c.PodHealth, c.Probe = nil, &v1alpha1.ProbeCheck{TCP: &v1alpha1.TCPProbe{Port: 1}, Successes: 3, Failures: 1}
		c.OnError, c.Deadline = v1alpha1.SilenceFails, &metav1.Duration{Duration: 2 * time.Minute}
	})), Run: func(w *world.World) {
		create(w, web(1))
		w.Until("the check runs", func() bool { c := checkOf(w, health); return c != nil && c.Phase == v1alpha1.CheckRunning })
		until(w, v1alpha1.ChangeWorkloadSuspend)
		if c := checkOf(w, health); c == nil || c.Phase != v1alpha1.CheckError ||
			!strings.Contains(c.Message, "none of its containers declares port 1") {
			w.Failf("the check is %+v", c)
		}
	}},
	{Name: "a policy in observe mode", Options: withPolicies(
		podHealth("policy", func(p *v1alpha1.DefensePolicy) { p.Spec.Mode = v1alpha1.ModeObserve }),
		noDefault(),
	), Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		outOfMemory(w, w.Pods()[0])
		w.Until("the check reports it", func() bool { c := checkOf(w, health); return c != nil && c.Phase == v1alpha1.CheckFailed })
		w.For(time.Minute)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if c := checkOf(w, staysUp); c != nil {
			w.Failf("a disabled policy checks: %+v", c)
		}
	}},
}

// restartWhileHeld lets a container of all four new pods restart while the rollout is held, and of old pods at the same time. The new pods
// have nodes of their own, or one.
func restartWhileHeld(same, oneNode bool) func(*world.World) {
	return func(w *world.World) {
		create(w, web(8))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(3 * time.Hour)
		before := w.Pods()
		release(w, "second")
		var fresh []*corev1.Pod
		w.Until("the first new pods are checked", func() bool {
			fresh = slices.DeleteFunc(w.Pods(), func(pod *corev1.Pod) bool {
				return slices.ContainsFunc(before, func(old *corev1.Pod) bool { return old.UID == pod.UID })
			})
			c := w.Change("web")
			return c != nil && len(fresh) == 4 && len(w.Batches(c)) == len(fresh)
		})
		w.For(4 * time.Minute)
		for i, pod := range fresh {
			node := "node"
			if !oneNode {
				node += strconv.Itoa(i)
			}
			must(w, w.PatchObject(pod, `{"spec":{"nodeName":"`+node+`"}}`))
		}
		restart := slices.Clone(fresh)
		if same {
			for _, pod := range w.Pods() {
				if pod.Labels["test"] != "second" {
					restart = append([]*corev1.Pod{pod}, restart...)
				}
			}
			if len(restart) == len(fresh) {
				w.Failf("no old pod is left")
			}
		}
		for _, pod := range restart {
			crashed(w, pod, 1)
		}
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(6 * time.Minute)
		if blamed := eventsOf(w, v1alpha1.EventMoreRestarts) > 0; blamed == (same || oneNode) {
			w.Failf("an event blames the release: %t", blamed)
		}
	}
}

// ruleStories are stories of checks by rules.
var ruleStories = []world.Story{
	{Name: "a rule that is true", Options: withPolicies(
		byRule("pod.spec.containers.all(c, has(c.image)) && oldTemplate == null && newTemplate.spec.containers[0].image != '' && "+
			"workload.metadata.name == 'web' && release.workload == 'web' && release.attempt == 1"), noDefault(),
	), Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if c := checkOf(w, rule); c == nil || c.Phase != v1alpha1.CheckPassed {
			w.Failf("the check is %+v", c)
		}
	}},
	{Name: "a rule about what was before", Options: withPolicies(
		byRule("oldTemplate == null || oldTemplate != newTemplate && release.previousVersion != '' && "+
			"oldTemplate.spec.containers[0].name == newTemplate.spec.containers[0].name"), noDefault(),
	), Run: func(w *world.World) {
		second(w, 2)
		if c := checkOf(w, rule); c == nil || c.Phase != v1alpha1.CheckPassed {
			w.Failf("the check is %+v", c)
		}
	}},
	{Name: "a rule that is false",
		Options: withPolicies(byRule("has(pod.metadata.annotations) && 'team' in pod.metadata.annotations", delayed), noDefault()),
		Run: func(w *world.World) {
			create(w, web(1))
			suspendedBy(w, rule, v1alpha1.ReasonRuleFailed)
		}},
	{Name: "a rule that is false after it succeeded", Options: withPolicies(byRule("pod.metadata.name == ''", inBackground), noDefault()),
		Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			suspendedBy(w, rule, v1alpha1.ReasonRuleFailed)
		}},
	{Name: "a rule that is false of the batch",
		Options: withPolicies(byRule("size(pods) > 1 || pods.exists(p, p.metadata.name == '')", delayed, func(p *v1alpha1.DefensePolicy) {
			p.Spec.Checks[0].Cel.ForEach = v1alpha1.CelPerBatch
		}), noDefault()), Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuspend)
			for _, b := range w.Batches(w.Change("web")) {
				if c := b.Status.Checks; len(c) > 0 && c[len(c)-1].Phase == v1alpha1.CheckFailed && b.Status.PodResults[0].Verdict != "fail" {
					w.Failf("a batch failed, and its pods are %+v", b.Status.PodResults)
				}
			}
			if c := checkOf(w, rule); c == nil || len(c.FailedPods) > 0 {
				w.Failf("the check is %+v", c)
			}
		}},
	{Name: "a false rule of a check in observe mode", Options: withPolicies(
		byRule("false", func(p *v1alpha1.DefensePolicy) { p.Spec.Checks[0].Mode = v1alpha1.ModeObserve }), noDefault(),
	), Run: func(w *world.World) {
		create(w, web(2))
		w.Until("the check reports it", func() bool { c := checkOf(w, rule); return c != nil && c.Phase == v1alpha1.CheckFailed })
		w.For(time.Minute)
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "a rule that cannot be evaluated",
		Options: withPolicies(byRule("pod.spec.no.such == 1", onError(v1alpha1.SilencePasses)), noDefault()), Run: func(w *world.World) {
			create(w, web(1))
			began := time.Now()
			until(w, v1alpha1.ChangeWorkloadSuccess)
			if took := time.Since(began); took < time.Minute {
				w.Failf("it was given up after %s", took)
			}
			if c := checkOf(w, rule); c == nil || c.Phase != v1alpha1.CheckError || c.OnSilence != v1alpha1.SilencePasses ||
				!strings.Contains(c.Message, "no such key: no") {
				w.Failf("the check is %+v", c)
			}
		}},
	{Name: "a rule that cannot be evaluated, which fails",
		Options: withPolicies(byRule("pod.spec.no.such == 1", onError(v1alpha1.SilenceFails)), noDefault()), Run: func(w *world.World) {
			create(w, web(1))
			until(w, v1alpha1.ChangeWorkloadSuspend)
		}},
	{Name: "a release past admission, which a policy denies", Options: withPolicies(atAdmission(
		"oldObject == null || object.metadata.name == request.name && request.operation == 'UPDATE' && "+
			"namespaceObject.metadata.name == request.namespace && object.spec.template.metadata.?labels.test.orValue('') != 'second'"), noDefault(),
	), Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		whileDown(w, "second")
		until(w, v1alpha1.ChangeWorkloadSuspend)
		w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
		c := record.FindCheck(w.Change("web").Status.Checks, rule)
		if c == nil || c.Phase != v1alpha1.CheckFailed || c.Stage != v1alpha1.StageReleasePre ||
			!strings.Contains(c.Message, "it breaks a rule") {
			w.Failf("the check is %+v", c)
		}
	}},
	{Name: "a release past admission, by an unknown user", Options: withPolicies(atAdmission(
		"object.spec.template.metadata.?labels.test.orValue('') != 'second' || request.userInfo.username != 'kim'"), noDefault(),
	), Run: func(w *world.World) {
		create(w, web(2))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		whileDown(w, "second")
		w.Until("the check is over", func() bool {
			of := w.Change("web")
			if of == nil {
				return false
			}
			c := record.FindCheck(of.Status.Checks, rule)
			return c != nil && c.Phase == v1alpha1.CheckError && strings.Contains(c.Message, "its user is not known")
		})
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "a rule that cannot be evaluated in the background, which fails", Options: withPolicies(
		byRule("pod.spec.no.such == 1", inBackground, onError(v1alpha1.SilenceFails)), noDefault(),
	), Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		until(w, v1alpha1.ChangeWorkloadSuspend)
	}},
}

// first lets the check begin before another check of pod health.
func first(p *v1alpha1.DefensePolicy) {
	p.Spec.Checks[0].Stage = v1alpha1.StageBatchPre
	p.Spec.Checks = append(p.Spec.Checks, podHealth("policy").Spec.Checks...)
}

// atStage lets the check begin at a stage of the release. It is delayed until the rollout is over, because an earlier failure would halt
// the rollout at one pod or another.
func atStage(stage v1alpha1.PolicyStage) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Spec.Checks[0].Stage, p.Spec.Checks[0].Delay = stage, &metav1.Duration{Duration: 10 * time.Second}
	}
}

// ofRelease returns the check of the whole release with a name.
func ofRelease(w *world.World, name string) *v1alpha1.CheckStatus {
	return record.FindCheck(w.Change("web").Status.Checks, name)
}

// notSecond is a rule that the second version breaks.
const notSecond = "newTemplate.metadata.?labels.?test.orValue('') != 'second'"

// failsWhole releases a version that fails a check of the whole release.
func failsWhole(w *world.World) {
	create(w, web(1))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	if c := ofRelease(w, rule); c == nil || c.Phase != v1alpha1.CheckPassed {
		w.Failf("the check of the first version is %+v", c)
	}
	release(w, "second")
	until(w, v1alpha1.ChangeWorkloadSuspend)
	w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
	if c := ofRelease(w, rule); c == nil || c.Phase != v1alpha1.CheckFailed || c.Reason != v1alpha1.ReasonRuleFailed ||
		c.Message != "it breaks a rule" {
		w.Failf("the check is %+v", c)
	}
}

// batchPreStories are stories of checks that run before the others of a batch.
var batchPreStories = []world.Story{
	{Name: "a rule before other checks is true", Options: withPolicies(byRule("pod.metadata.name != ''", first)), Run: func(w *world.World) {
		create(w, web(2))
		began := time.Now()
		until(w, v1alpha1.ChangeWorkloadSuccess)
		rule, health := checkOf(w, rule), checkOf(w, health)
		if took := time.Since(began); took < 30*time.Second || rule.Phase != v1alpha1.CheckPassed || health.Phase != v1alpha1.CheckPassed ||
			health.StartTime.Before(rule.CompletionTime) {
			w.Failf("it took %s: %+v, %+v", took, rule, health)
		}
		if c := checkOf(w, staysUp); c == nil || c.Phase != v1alpha1.CheckWatching || c.StartTime == nil {
			w.Failf("the check in the background is %+v", c)
		}
	}},
	{Name: "a rule before other checks is false",
		Options: withPolicies(byRule("pod.metadata.name == ''", first, onError(v1alpha1.SilenceFails)), noDefault()), Run: func(w *world.World) {
			create(w, web(1))
			suspendedBy(w, rule, v1alpha1.ReasonRuleFailed)
			if c := checkOf(w, health); c == nil || c.Phase != v1alpha1.CheckCanceled || c.StartTime != nil {
				w.Failf("the check that had not begun is %+v", c)
			}
		}},
}

// releaseStories are stories of checks of the whole release.
var releaseStories = []world.Story{
	{Name: "a rule at the beginning is false",
		Options: withPolicies(byRule(notSecond, atStage(v1alpha1.StageReleasePre)), noDefault()), Run: failsWhole},
	{Name: "a rule at the end is false", Options: withPolicies(byRule(notSecond, atStage(v1alpha1.StageReleasePost)), noDefault()),
		Run: func(w *world.World) {
			failsWhole(w)
			if n := w.Change("web").Status.PassCount; n != 1 {
				w.Failf("%d pods had passed", n)
			}
		}},
	{Name: "a rule at the beginning is false, with a server", Options: world.Options{
		Server: true, Policies: []v1alpha1.DefensePolicy{byRule(notSecond, atStage(v1alpha1.StageReleasePre)), noDefault()},
	}, Run: failsWhole},
	{Name: "a rule at the end is false after it succeeded, and heal", Options: world.Options{
		Settings: on(settings.NameSelfHealing, ""),
		Policies: []v1alpha1.DefensePolicy{byRule(notSecond, atStage(v1alpha1.StageReleasePost), inBackground), noDefault()},
	}, Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		w.For(2 * time.Minute)
		release(w, "second")
		w.Until("it is rolled back", func() bool { return quarantined(w) == 1 })
		until(w, v1alpha1.ChangeWorkloadSuccess)
	}},
	{Name: "a rule at the beginning cannot be evaluated", Options: withPolicies(
		byRule("workload.spec.no.such == 1", atStage(v1alpha1.StageReleasePre), onError(v1alpha1.SilenceFails)), noDefault(),
	), Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuspend)
		if n := len(w.Batches(w.Change("web"))); n != 0 && ofRelease(w, rule).Phase != v1alpha1.CheckError {
			w.Failf("%d batches, and the check is %+v", n, ofRelease(w, rule))
		}
	}},
	{Name: "a Service at the end that cannot be called, and must",
		Options: withPolicies(noDefault(), podHealth("policy", func(p *v1alpha1.DefensePolicy) {
			c := &p.Spec.Checks[0]
			c.Stage, c.PodHealth = v1alpha1.StageReleasePost, nil
			c.Probe = &v1alpha1.ProbeCheck{
				Target: v1alpha1.ProbeService, Service: "web", TCP: &v1alpha1.TCPProbe{Port: 1}, Successes: 3, Failures: 1,
			}
			c.OnError, c.Deadline = v1alpha1.SilenceFails, &metav1.Duration{Duration: 2 * time.Minute}
		})), Run: func(w *world.World) {
			create(w, web(2))
			until(w, v1alpha1.ChangeWorkloadSuspend)
			if c := ofRelease(w, health); c == nil || c.Phase != v1alpha1.CheckError || !strings.Contains(c.Message, "there is no such Service") {
				w.Failf("the check is %+v", c)
			}
		}},
	{Name: "a rule at the beginning is false, and is corrected",
		Options: withPolicies(byRule(notSecond, atStage(v1alpha1.StageReleasePre)), noDefault()), Run: func(w *world.World) {
			failsWhole(w)
			checks := w.Change("web").DeepCopy().Status.Checks
			record.FindCheck(checks, rule).Phase = v1alpha1.CheckPassed
			must(w, w.PatchStatus(w.Change("web"), map[string]any{"checks": checks}))
			until(w, v1alpha1.ChangeWorkloadSuccess)
			w.Until("the block is lifted", func() bool { return !labelled(w, v1alpha1.SuspendLabel) })
		}},
}

// TestNoWritesOfRules: a rule in the background that stays true causes no write.
func TestNoWritesOfRules(t *testing.T) {
	play := func(p v1alpha1.DefensePolicy) world.Ending {
		return world.Reference(t, world.Story{Name: "healthy", Options: withPolicies(p, noDefault()), Run: func(w *world.World) {
			second(w, 3)
			w.For(20 * time.Minute)
			if p.Spec.Mode != v1alpha1.ModeDisabled && checkOf(w, rule).Phase != v1alpha1.CheckWatching {
				w.Failf("the check is %+v", checkOf(w, rule))
			}
		}})
	}
	off := func(p *v1alpha1.DefensePolicy) { p.Spec.Mode = v1alpha1.ModeDisabled }
	with, without := play(byRule("has(pod.spec)", inBackground)), play(byRule("has(pod.spec)", inBackground, off))
	if !slices.Equal(with.Writes, without.Writes) {
		t.Errorf("with the rule it writes\n%s\nwithout\n%s", strings.Join(with.Writes, "\n"), strings.Join(without.Writes, "\n"))
	}
}

// TestNoWritesOfChecks: the default policy causes no further write for a healthy release.
func TestNoWritesOfChecks(t *testing.T) {
	play := func(policies ...v1alpha1.DefensePolicy) world.Ending {
		return world.Reference(t, world.Story{Name: "healthy", Options: withPolicies(policies...), Run: func(w *world.World) {
			second(w, 3)
			w.For(20 * time.Minute)
		}})
	}
	with, without := play(), play(noDefault())
	if !slices.Equal(with.Writes, without.Writes) {
		t.Errorf("with the default policy it writes\n%s\nwithout\n%s", strings.Join(with.Writes, "\n"), strings.Join(without.Writes, "\n"))
	}
}

// TestReportedOnce: restarts that old pods do not have are one event, though four batches and two checks see them.
func TestReportedOnce(t *testing.T) {
	world.Reference(t, world.Story{
		Name: "once", Options: world.Options{
			Settings: on(settings.NameHolding, "first"), Policies: []v1alpha1.DefensePolicy{podHealth("policy", inBackground, forMinutes)},
		},
		Run: func(w *world.World) {
			restartWhileHeld(false, false)(w)
			if n := eventsOf(w, v1alpha1.EventMoreRestarts); n != 1 {
				w.Failf("%d events, want 1", n)
			}
		},
	})
}
