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
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/world"
)

// native is a StatefulSet or a DaemonSet named web. Both have the same stories.
type native struct {
	name string
	make func() client.Object
	// pods is the number of its pods.
	pods int
	// halt is the update strategy of a halted workload, run its own update strategy.
	halt, run string
}

func natives() []native {
	return []native{
		{"statefulset", func() client.Object { return makeSet(3) }, 3,
			`{"type":"RollingUpdate","rollingUpdate":{"partition":2147483647}}`, `{"type":"RollingUpdate","rollingUpdate":{"partition":0}}`},
		{"daemonset", func() client.Object { return makeDaemon() }, 3,
			`{"type":"OnDelete","rollingUpdate":{"maxUnavailable":1,"maxSurge":0}}`,
			`{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":1,"maxSurge":0}}`},
	}
}

func template() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways,
			Containers:    []corev1.Container{{Name: "main", Image: "good", ReadinessProbe: &corev1.Probe{}}},
		},
	}
}

func makeSet(replicas int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "web"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template(),
		},
	}
}

func makeDaemon() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "web"},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template()},
	}
}

func nativeOptions() world.Options {
	return world.Options{Verbose: *verbose, Kinds: workload.NewRegistry(workload.Deployment{}, workload.StatefulSet{}, workload.DaemonSet{})}
}

// nativeStories are the stories of StatefulSets and DaemonSets.
func nativeStories() (all []world.Story) {
	for _, n := range natives() {
		unenrolled := nativeOptions()
		unenrolled.Unenrolled = true
		for _, s := range []world.Story{
			{Name: "enrol, release, fail, block, repair", Options: unenrolled, Run: n.repair},
			{Name: "halt, correct, roll back", Options: nativeOptions(), Run: n.haltAndRollBack},
			{Name: "never starts", Options: nativeOptions(), Run: n.neverStarts},
			{Name: "goes down after its success", Options: nativeOptions(), Run: n.goesDown},
			{Name: "a quota", Options: nativeOptions(), Run: n.quota},
			{Name: "deleted by its user", Options: nativeOptions(), Run: n.onDelete},
			{Name: "leaves while it is halted", Options: nativeOptions(), Run: n.leaves},
			{Name: "applied again while it is halted, and resumed", Options: nativeOptions(), Run: n.userResumes},
			{Name: "resumed past admission", Options: nativeOptions(), Run: n.userResumesUnseen},
			{Name: "owned by another object", Options: nativeOptions(), Run: n.owned},
			{Name: "enforced removed while halted", Options: nativeOptions(), Run: n.ownedWhileHalted(false)},
			{Name: "adopted while halted", Options: nativeOptions(), Run: n.ownedWhileHalted(true)},
			{Name: "cloned while halted", Options: nativeOptions(), Run: n.clonedWhileHalted},
			{Name: "slips past admission", Options: nativeOptions(), Run: n.slips},
			{Name: "slips past a version that does not know it, and is observed", Options: nativeOptions(), Run: n.slipsObserved},
			{Name: "a baseline slips past admission", Options: unenrolled, Run: n.baselineSlips},
			{Name: "an outage that old pods share", Options: nativeOptions(), Run: func(w *world.World) {
				sharedOutage(w, n.slow(), n.podsOf)
			}},
		} {
			s.Name = n.name + ": " + s.Name
			all = append(all, s)
		}
	}
	return append(all, []world.Story{
		{Name: "a user's partition", Options: nativeOptions(), Run: partitioned},
		{Name: "halted at a user's partition", Options: nativeOptions(), Run: haltedAtPartition},
		{Name: "leaves at a user's partition", Options: nativeOptions(), Run: leavesAtPartition},
		{Name: "OnDelete after it left", Options: nativeOptions(), Run: onDeleteAfterLeaving},
		{Name: "a Deployment: enforced removed while halted", Options: world.Options{Verbose: *verbose}, Run: func(w *world.World) {
			d := slow(3)
			defended(prometheus(w), d)
			failInFlight(w, d)
			deploymentResumed(w, notDefended)
		}},
		{Name: "a Deployment: adopted while halted", Options: world.Options{Verbose: *verbose}, Run: func(w *world.World) {
			failInFlight(w, slow(3))
			deploymentResumed(w, adopted(w))
		}},
		{Name: "a Deployment: enforced removed while held", Options: held("every", 90*time.Second), Run: func(w *world.World) {
			d := web(8)
			defended(prometheus(w), d)
			create(w, d)
			until(w, v1alpha1.ChangeWorkloadSuccess)
			release(w, "second")
			waveJudged(w)
			isHeld(w, 6)
			w.Unseen(func() { patch(w, notDefended) })
			givenBack(w, 0, 600)
			endedBy(w, v1alpha1.ReasonReleaseEnded)
			patch(w, `{"spec":{"minReadySeconds":7}}`)
			givenBack(w, 7, 600)
		}},
		{Name: "a Deployment: an outage that old pods share", Options: nativeOptions(), Run: func(w *world.World) {
			sharedOutage(w, slow(3), (*world.World).Pods)
		}},
		{Name: "three of one name", Options: nativeOptions(), Run: threeOfOneName},
	}...)
}

func TestNativeKinds(t *testing.T) {
	for _, s := range nativeStories() {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			world.Reference(t, s)
		})
	}
}

// TestNativeKindsSweep lets the manager die after its writes.
func TestNativeKindsSweep(t *testing.T) {
	for _, n := range natives() {
		unenrolled := nativeOptions()
		unenrolled.Unenrolled = true
		for _, s := range []world.Story{
			{Name: "repair", Options: unenrolled, Run: n.repair},
			{Name: "halt", Options: nativeOptions(), Run: n.haltAndRollBack},
			{Name: "owned", Options: nativeOptions(), Run: n.ownedWhileHalted(true)},
		} {
			t.Run(n.name+" "+s.Name, func(t *testing.T) {
				t.Parallel()
				sweep(t, s, deaths)
			})
		}
	}
}

func (n native) stored(w *world.World) client.Object { return world.Stored(w, n.make()) }

func (n native) labelled(w *world.World, label string) bool {
	_, ok := n.stored(w).GetLabels()[label]
	return ok
}

func (n native) patch(w *world.World, patch string) { must(w, w.PatchObject(n.make(), patch)) }

// override releases a template past the block.
func (n native) override(w *world.World, value string) {
	n.patch(w, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`,
		v1alpha1.IgnoredSuspendLabel, value))
}

// change returns the current release, or nil if it is not recorded.
func (n native) change(w *world.World) *v1alpha1.ChangeWorkload {
	o := n.stored(w)
	return w.ChangesOf(o)[o.GetLabels()[v1alpha1.VersionLabel]]
}

// is waits until the current release is in a state, and a while longer.
func (n native) is(w *world.World, state v1alpha1.ChangeWorkloadStatusType) {
	w.Until(fmt.Sprintf("the release of the %s is %s", n.name, state), func() bool {
		c := n.change(w)
		return c != nil && c.Status.Status == state &&
			fmt.Sprint(c.Status.ObservedRelease) == n.stored(w).GetAnnotations()[v1alpha1.ReleaseAnnotation]
	})
	w.For(10 * time.Second)
}

// progress waits until the condition Progressing has a reason.
func (n native) progress(w *world.World, reason string) {
	w.Until(fmt.Sprintf("the rollout of the %s is %s", n.name, reason), func() bool {
		c := n.change(w)
		return c != nil && slices.ContainsFunc(c.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == v1alpha1.ConditionProgressing && c.Reason == reason
		})
	})
}

func (n native) podsOf(w *world.World) (pods []*corev1.Pod) {
	o := n.stored(w)
	for _, pod := range w.Pods() {
		if metav1.IsControlledBy(pod, o) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// strategy waits for an update strategy.
func (n native) strategy(w *world.World, want string) {
	w.Until(fmt.Sprintf("the %s has the update strategy %s", n.name, want), func() bool { return strategyOf(n.stored(w)) == want })
}

func strategyOf(o client.Object) string {
	switch o := o.(type) {
	case *appsv1.StatefulSet:
		return textOf(o.Spec.UpdateStrategy)
	case *appsv1.DaemonSet:
		return textOf(o.Spec.UpdateStrategy)
	default:
		return ""
	}
}

func templateOfNative(o client.Object) corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.StatefulSet:
		return o.Spec.Template
	case *appsv1.DaemonSet:
		return o.Spec.Template
	default:
		return corev1.PodTemplateSpec{}
	}
}

func (n native) repair(w *world.World) {
	create(w, web(2))
	must(w, w.Create(n.make()))
	w.For(30 * time.Second)
	before := n.podsOf(w)
	w.Enrol(true)
	w.Rest()
	if c := len(w.ChangesOf(n.stored(w))); c != 0 || len(before) != n.pods {
		w.Failf("%d releases of the baseline, with %d pods", c, len(before))
	}
	for i, pod := range n.podsOf(w) {
		if pod.UID != before[i].UID {
			w.Failf("the pod %s was restarted", pod.Name)
		}
	}

	n.patch(w, templatePatch("second"))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	c := n.change(w)
	if ref := c.Spec.WorkloadRef; ref == nil || strings.ToLower(ref.Kind) != n.name || c.Status.PassCount != int32(n.pods) ||
		c.Name != "web--x--"+n.name+"-"+c.Spec.Reversion {
		w.Failf("released as %s: %+v, %d pods passed", c.Name, c.Spec, c.Status.PassCount)
	}
	if _, stamped := templateOfNative(n.stored(w)).Labels[v1alpha1.VersionLabel]; stamped {
		w.Failf("the template is labelled")
	}
	for _, pod := range n.podsOf(w) {
		if pod.Labels[v1alpha1.OperateFinishedLabel] == "" || pod.Labels[v1alpha1.VersionLabel] != c.Spec.Reversion {
			w.Failf("the pod %s is labelled %v", pod.Name, pod.Labels)
		}
	}

	judge(w, n.change(w), "unpass")
	w.Until("it is blocked", func() bool { return n.labelled(w, v1alpha1.SuspendLabel) })
	w.For(10 * time.Second)
	err := w.PatchObject(n.make(), templatePatch("refused"))
	want := fmt.Sprintf(`"v%s.kb.io" denied the request: %s web is suspended`, n.name, n.name)
	if err == nil || !strings.Contains(err.Error(), want) {
		w.Failf("a blocked %s was released: %v", n.name, err)
	}
	n.override(w, "repair")
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	w.Until("the block is lifted", func() bool { return !n.labelled(w, v1alpha1.SuspendLabel) })
	if n.labelled(w, v1alpha1.IgnoredSuspendLabel) {
		w.Failf("the override is not removed")
	}
	if d := w.Deployment("web"); len(w.Changes("web")) != 0 || d.Labels[v1alpha1.SuspendLabel] != "" {
		w.Failf("the deployment of the same name was changed: %+v", d.ObjectMeta)
	}
	if left := remembered(w, n.stored(w)); left != 2 { // the baseline and the override release; the failed version left it
		w.Failf("%d versions are remembered", left)
	}
}

// remembered returns the number of versions in the history of a workload.
func remembered(w *world.World, o client.Object) (n int) {
	for _, r := range world.List[*appsv1.ControllerRevision](w, "ControllerRevision") {
		if r.Labels[v1alpha1.HistoryOfLabel] == string(o.GetUID()) {
			n++
		}
	}
	return n
}

// slow returns a workload whose pods are available after a minute. Its minReadySeconds is set from the beginning: if it were raised
// later, a DaemonSet would replace its young pods at once.
func (n native) slow() client.Object {
	o := n.make()
	switch o := o.(type) {
	case *appsv1.StatefulSet:
		o.Spec.MinReadySeconds = 60
	case *appsv1.DaemonSet:
		o.Spec.MinReadySeconds = 60
	}
	return o
}

// sharedOutage lets pods of both versions run out of memory in the middle of a rollout: the failure of the old pod excuses the new pod.
// The old pod fails first, because the operator judges by the failures that it has read.
func sharedOutage(w *world.World, o client.Object, podsOf func(*world.World) []*corev1.Pod) {
	change := func() *v1alpha1.ChangeWorkload {
		o := world.Stored(w, o)
		return w.ChangesOf(o)[o.GetLabels()[v1alpha1.VersionLabel]]
	}
	must(w, w.Create(o))
	w.Until("the first release succeeds", func() bool {
		c := change()
		return c != nil && c.Status.Status == v1alpha1.ChangeWorkloadSuccess
	})
	before := podsOf(w)
	must(w, w.PatchObject(o, templatePatch("second")))
	w.Until("a batch of the second release is done", func() bool { c := change(); return c != nil && c.Spec.Release == 2 && batchDone(w, c) })
	batched := w.Batches(change())[0].Spec.PodInfos[0].Pod
	isOld := func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(before, func(p *corev1.Pod) bool { return p.UID == pod.UID })
	}
	pods := podsOf(w)
	if !slices.ContainsFunc(pods, isOld) {
		w.Failf("no old pod is left")
	}
	for _, pod := range pods {
		if isOld(pod) {
			outOfMemory(w, pod)
		}
	}
	w.For(time.Second)
	for _, pod := range pods {
		if pod.Name == batched {
			outOfMemory(w, pod)
		}
	}
	w.Until("the check blames the outage", func() bool {
		return slices.ContainsFunc(w.Batches(change()), func(b *v1alpha1.ChangePod) bool {
			return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Reason == v1alpha1.ReasonSameOnOldPods })
		})
	})
	if c := change(); c.Status.Status == v1alpha1.ChangeWorkloadSuspend {
		w.Failf("the release failed: %+v", c.Status.DefenseCheckFailPods)
	}
}

// failUnderWay fails a release while its rollout is under way.
func (n native) failUnderWay(w *world.World) (first string) {
	must(w, w.Create(n.slow()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	first = n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	n.patch(w, templatePatch("second"))
	w.Until("a batch is done", func() bool { return batchDone(w, n.change(w)) })
	judge(w, n.change(w), "unpass")
	w.Until("it is blocked", func() bool { return n.labelled(w, v1alpha1.SuspendLabel) })
	n.strategy(w, n.halt)
	return first
}

func (n native) haltAndRollBack(w *world.World) {
	first := n.failUnderWay(w)
	n.progress(w, v1alpha1.ReasonRolloutHalted)
	w.For(10 * time.Minute)
	news := 0
	for _, pod := range n.podsOf(w) {
		if pod.Labels["test"] == "second" {
			news++
		}
	}
	if news != 1 && news != 2 { // the next pod may have been deleted in the same moment
		w.Failf("%d pods have the halted version", news)
	}
	judge(w, n.change(w), "pass")
	w.Until("the block is lifted", func() bool { return !n.labelled(w, v1alpha1.SuspendLabel) })
	n.strategy(w, n.run)
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	if a := n.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] != "" {
		w.Failf("it is halted by %s", a[v1alpha1.HaltedAnnotation])
	}

	must(w, w.PatchObject(n.make(), `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`))
	w.Until("it is rolled back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	for _, pod := range n.podsOf(w) {
		if pod.Labels["test"] != "" {
			w.Failf("the pod %s has the rolled-back version", pod.Name)
		}
	}
	err := w.PatchObject(n.make(), templatePatch("second"))
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`"q%s.kb.io" denied the request: %s web: version`, n.name, n.name)) {
		w.Failf("a rolled-back version was released: %v", err)
	}
}

// neverStarts: a release whose image cannot be pulled is rolled back. The stuck pod that blocks a StatefulSet is evicted.
func (n native) neverStarts(w *world.World) { n.neverStartsAs(w, n.make()) }

func (n native) neverStartsAs(w *world.World, o client.Object) {
	must(w, w.Create(o))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	first := n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	n.patch(w, imagePatch(world.BadImage))
	w.Until("it is rolled back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	for _, pod := range n.podsOf(w) {
		if pod.Spec.Containers[0].Image != "good" {
			w.Failf("the pod %s runs %s", pod.Name, pod.Spec.Containers[0].Image)
		}
	}
}

// quota: a quota denies pods of the next version. The release reports it soon and is rolled back after ten minutes.
func (n native) quota(w *world.World) {
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	first := n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	w.SetQuota(true, n.pods-1)
	n.patch(w, templatePatch("second"))
	began := time.Now()
	n.progress(w, v1alpha1.ReasonRolloutStuck)
	if took := time.Since(began); took > time.Minute {
		w.Failf("it was reported after %s", took)
	}
	said := meta.FindStatusCondition(n.change(w).Status.Conditions, v1alpha1.ConditionProgressing).Message
	if !strings.Contains(said, "1 of 3 pods cannot be created: create Pod failed error: pods are forbidden: exceeded quota") {
		w.Failf("the message of Progressing is %q", said)
	}
	w.Until("it is rolled back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	if took := time.Since(began); took < 10*time.Minute-time.Second || took > 12*time.Minute {
		w.Failf("it was rolled back after %s", took)
	}
	w.SetQuota(false, 0)
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
}

// onDelete: a user replaces the pods by deleting them. The new pods are verified, and the release waits for the others.
func (n native) onDelete(w *world.World) {
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.patch(w, `{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`)
	n.patch(w, templatePatch("second"))
	n.progress(w, v1alpha1.ReasonOnDelete)
	w.For(10 * time.Minute)
	for i := range n.pods {
		if state := n.change(w).Status.Status; state != v1alpha1.ChangeWorkloadRunning {
			w.Failf("with %d pods replaced the release is %s", i, state)
		}
		old := slices.DeleteFunc(n.podsOf(w), func(p *corev1.Pod) bool { return p.Labels["test"] == "second" })
		must(w, w.Delete(old[0]))
		w.Until("the pod is verified", func() bool { return n.change(w).Status.PassCount == int32(i+1) })
	}
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
}

// leaves opts out while halted: the update strategy is restored.
func (n native) leaves(w *world.World) {
	n.failUnderWay(w)
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
	n.strategy(w, n.run)
	w.Until("every pod is replaced", func() bool {
		return len(n.podsOf(w)) == n.pods && !slices.ContainsFunc(n.podsOf(w), func(p *corev1.Pod) bool { return p.Labels["test"] != "second" })
	})
	if a := n.stored(w).GetAnnotations(); n.labelled(w, v1alpha1.SuspendLabel) || a[v1alpha1.HaltedAnnotation] != "" ||
		a[v1alpha1.HaltedFromAnnotation] != "" {
		w.Failf("it still has %v %v", n.stored(w).GetLabels(), a)
	}
}

// userResumes: a manifest that is applied again does not end the halt. An override does.
func (n native) userResumes(w *world.World) {
	n.failUnderWay(w)
	for _, at := range []time.Duration{0, time.Minute, time.Hour} {
		w.For(at)
		n.patch(w, `{"spec":{"updateStrategy":`+n.run+`}}`)
		if a := n.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] == "" || strategyOf(n.stored(w)) != n.halt {
			w.Failf("after its manifest is applied it has %v, and the update strategy %s", a, strategyOf(n.stored(w)))
		}
	}
	w.Rest()
	if news := n.newPods(w); news == n.pods {
		w.Failf("%d pods have the failed version", news)
	}
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"updateStrategy":`+n.run+`}}`)
	n.goesOn(w)
	if n.labelled(w, v1alpha1.IgnoredSuspendLabel) {
		w.Failf("the override is not removed")
	}
	w.Until("the override is reported", func() bool {
		return slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == "BlockOverridden" })
	})
}

// userResumesUnseen: a user resumes past admission. The halt is over, and an event reports it.
func (n native) userResumesUnseen(w *world.World) {
	n.failUnderWay(w)
	w.Unseen(func() { n.patch(w, `{"spec":{"updateStrategy":`+n.run+`}}`) })
	n.goesOn(w)
	if !slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == "RolloutResumed" }) {
		w.Failf("no event reports it")
	}
}

// goesOn waits until the workload has replaced its pods, and fails if it is halted again.
func (n native) goesOn(w *world.World) {
	w.Until("every pod is replaced", func() bool { return len(n.podsOf(w)) == n.pods && n.newPods(w) == n.pods })
	w.For(10 * time.Minute)
	if a := n.stored(w).GetAnnotations(); !n.labelled(w, v1alpha1.SuspendLabel) || a[v1alpha1.HaltedAnnotation] != "" ||
		strategyOf(n.stored(w)) != n.run {
		w.Failf("it has %v %v, and the update strategy %s", n.stored(w).GetLabels(), a, strategyOf(n.stored(w)))
	}
}

// slips releases past admission: the operator records the release and does not change the template.
func (n native) slips(w *world.World) {
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	w.Unseen(func() { n.patch(w, templatePatch("second")) })
	w.Until("it is recorded", func() bool { return n.stored(w).GetAnnotations()[v1alpha1.ReleaseAnnotation] == "2" })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	if c := n.change(w); c.Status.PassCount != int32(n.pods) {
		w.Failf("%d pods passed", c.Status.PassCount)
	}
}

// slipsObserved: a release while the operator is down is only recorded, because the workload is in observe mode when the operator comes
// back.
func (n native) slipsObserved(w *world.World) {
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	w.Stop()
	n.patch(w, imagePatch(world.BadImage))
	n.patch(w, `{"metadata":{"annotations":{"altershield.defense.antgroup.com/observe":"enabled"}}}`)
	w.Start()
	w.Until("a dry run is reported", func() bool {
		return slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == v1alpha1.EventDryRun })
	})
	w.For(10 * time.Minute)
	if a := n.stored(w).GetAnnotations(); a[v1alpha1.ReleaseAnnotation] != "2" || n.labelled(w, v1alpha1.SuspendLabel) ||
		a[v1alpha1.HaltedAnnotation] != "" || a[v1alpha1.QuarantinedAnnotation] != "" {
		w.Failf("it is not only recorded: %v %v", n.stored(w).GetLabels(), a)
	}
}

// baselineSlips: the first release of a baseline gets past admission.
func (n native) baselineSlips(w *world.World) {
	must(w, w.Create(n.make()))
	w.Until("its pods run", func() bool { return len(n.podsOf(w)) == n.pods })
	w.For(time.Minute)
	w.Enrol(true)
	w.For(time.Minute)
	w.Unseen(func() { n.patch(w, templatePatch("second")) })
	w.Until("it is recorded", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] != "" })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
}

// owned: a workload that another object owns is in observe mode, unless its label is enforced.
func (n native) owned(w *world.World) {
	o := n.make()
	o.SetOwnerReferences(prometheus(w))
	must(w, w.Create(o))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.patch(w, imagePatch(world.BadImage))
	w.Until("a dry run is reported", func() bool {
		return slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == v1alpha1.EventDryRun })
	})
	n.patch(w, templatePatch("second"))
	n.patch(w, imagePatch("good"))
	if s, ok := o.(*appsv1.StatefulSet); ok { // as its owner would do
		must(w, w.Delete(n.podsOf(w)[*s.Spec.Replicas-1]))
	}
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	judge(w, n.change(w), "unpass")
	n.is(w, v1alpha1.ChangeWorkloadSuspend)
	w.For(10 * time.Minute)
	if a := n.stored(w).GetAnnotations(); n.labelled(w, v1alpha1.SuspendLabel) || a[v1alpha1.HaltedAnnotation] != "" ||
		a[v1alpha1.QuarantinedAnnotation] != "" {
		w.Failf("it is not in observe mode: %v %v", n.stored(w).GetLabels(), a)
	}
	n.patch(w, `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`)
	w.Until("the request is refused", func() bool {
		return slices.ContainsFunc(w.Events(), func(e world.Event) bool {
			return strings.Contains(e.Message, "because the prometheus k8s owns it")
		})
	})

	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"`+v1alpha1.DefenseEnforced+`"}}}`)
	n.patch(w, templatePatch("third"))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	judge(w, n.change(w), "unpass")
	w.Until("it is blocked", func() bool { return n.labelled(w, v1alpha1.SuspendLabel) })
}

// prometheus creates an owner of workloads.
func prometheus(w *world.World) []metav1.OwnerReference {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "k8s"}}
	must(w, w.Create(owner))
	return []metav1.OwnerReference{
		{APIVersion: "monitoring.coreos.com/v1", Kind: "Prometheus", Name: "k8s", UID: world.Stored(w, owner).UID, Controller: ptr.To(true)},
	}
}

// defended gives a workload an owner and the label that defends it nevertheless.
func defended(by []metav1.OwnerReference, o client.Object) {
	o.SetOwnerReferences(by)
	o.SetLabels(map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseEnforced})
}

// notDefended removes the label that defends a workload in spite of its owner.
const notDefended = `{"metadata":{"labels":{"` + v1alpha1.DefenseLabel + `":null}}}`

// adopted returns a patch that gives a workload an owner.
func adopted(w *world.World) string {
	owners, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": prometheus(w)}})
	must(w, err)
	return string(owners)
}

// ownedWhileHalted: the halt ends when the workload enters observe mode, because it gets an owner or loses the label that defends it
// in spite of its owner. The block stays.
func (n native) ownedWhileHalted(late bool) func(*world.World) {
	return func(w *world.World) {
		n, become := n, notDefended
		if late {
			n.failUnderWay(w)
			become = adopted(w)
		} else {
			by, unowned := prometheus(w), n.make
			n.make = func() client.Object {
				o := unowned()
				defended(by, o)
				return o
			}
			n.failUnderWay(w)
		}
		n.patch(w, become)
		n.strategy(w, n.run)
		w.Until("every pod is replaced", func() bool {
			return len(n.podsOf(w)) == n.pods && !slices.ContainsFunc(n.podsOf(w), func(p *corev1.Pod) bool { return p.Labels["test"] != "second" })
		})
		w.For(10 * time.Minute)
		if a := n.stored(w).GetAnnotations(); !n.labelled(w, v1alpha1.SuspendLabel) || a[v1alpha1.SuspendedByAnnotation] == "" ||
			a[v1alpha1.HaltedAnnotation] != "" || a[v1alpha1.HaltedFromAnnotation] != "" ||
			strategyOf(n.stored(w)) != n.run {
			w.Failf("it has %v %v, and the update strategy %s", n.stored(w).GetLabels(), a, strategyOf(n.stored(w)))
		}
		w.Stop()
		n.patch(w, templatePatch("third")) // in observe mode the block denies nothing
		w.Start()
		n.is(w, v1alpha1.ChangeWorkloadSuccess)
	}
}

// clonedWhileHalted: a workload created from the manifest of a halted workload is not halted.
func (n native) clonedWhileHalted(w *world.World) {
	n.failUnderWay(w)
	read := n.stored(w)
	clone := n.make()
	clone.SetName("clone")
	clone.SetLabels(read.GetLabels())
	clone.SetAnnotations(read.GetAnnotations())
	switch from := read.(type) {
	case *appsv1.StatefulSet:
		clone.(*appsv1.StatefulSet).Spec = from.Spec //nolint:errcheck // the same kind
	case *appsv1.DaemonSet:
		clone.(*appsv1.DaemonSet).Spec = from.Spec //nolint:errcheck // the same kind
	}
	must(w, w.Create(clone))
	stored := world.Stored(w, clone)
	if a := stored.GetAnnotations(); strategyOf(stored) != n.run || a[v1alpha1.HaltedAnnotation] != "" ||
		a[v1alpha1.HaltedFromAnnotation] != "" {
		w.Failf("the clone has %v, and the update strategy %s", a, strategyOf(stored))
	}
}

// deploymentResumed: a patch puts a halted Deployment into observe mode, which ends the halt.
func deploymentResumed(w *world.World, become string) {
	w.Until("it is halted", func() bool { return w.Deployment("web").Spec.Paused })
	patch(w, become)
	w.Until("it is resumed", func() bool { return !w.Deployment("web").Spec.Paused })
	w.Until("every pod is replaced", func() bool { current, old := podsOf(w); return len(current) == 3 && len(old) == 0 })
	if d := w.Deployment("web"); d.Annotations[v1alpha1.HaltedAnnotation] != "" || d.Annotations[v1alpha1.SuspendedByAnnotation] == "" ||
		!labelled(w, v1alpha1.SuspendLabel) {
		w.Failf("it has %v %v", d.Labels, d.Annotations)
	}
	w.Stop()
	patch(w, templatePatch("third")) // in observe mode the block denies nothing
	w.Start()
	until(w, v1alpha1.ChangeWorkloadSuccess)
}

// partitioned: the pods above a user's partition are verified.
func partitioned(w *world.World) {
	n := natives()[0]
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}},"template":{"metadata":{"labels":{"test":"second"}}}}}`)
	n.progress(w, v1alpha1.ReasonPartitioned)
	w.For(10 * time.Minute)
	if c := n.change(w); c.Status.Status != v1alpha1.ChangeWorkloadRunning || c.Status.PassCount != 1 {
		w.Failf("the release is %s, and %d pods passed", c.Status.Status, c.Status.PassCount)
	}
	n.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
}

// haltedAtPartition: both a corrected verdict and an override release restore the user's partition.
func haltedAtPartition(w *world.World) {
	n := natives()[0]
	set := makeSet(4)
	set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](1)}}
	must(w, w.Create(set))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.patch(w, templatePatch("second"))
	at := func(partition int32) {
		w.Until(fmt.Sprintf("the partition is %d", partition), func() bool {
			return *world.Stored(w, set).Spec.UpdateStrategy.RollingUpdate.Partition == partition
		})
	}
	w.Until("a batch is done", func() bool { return batchDone(w, n.change(w)) })
	judge(w, n.change(w), "unpass")
	at(math.MaxInt32)
	if from := n.stored(w).GetAnnotations()[v1alpha1.HaltedFromAnnotation]; from != "1" {
		w.Failf("the partition kept for later is %q", from)
	}
	judge(w, n.change(w), "pass")
	at(1)
	w.For(time.Minute)
	n.patch(w, templatePatch("third"))
	w.Until("a batch is done", func() bool { return batchDone(w, n.change(w)) })
	judge(w, n.change(w), "unpass")
	at(math.MaxInt32)
	n.override(w, "repair")
	at(1)
	if a := n.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] != "" || a[v1alpha1.HaltedFromAnnotation] != "" {
		w.Failf("it is still marked as halted: %v", a)
	}
	n.progress(w, v1alpha1.ReasonPartitioned)
}

// leavesAtPartition: a user sets a partition above all pods on a halted StatefulSet. The partition stays when the workload opts out.
func leavesAtPartition(w *world.World) {
	n := natives()[0]
	n.failUnderWay(w)
	news := n.newPods(w)
	n.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1000000}}}}`)
	w.For(time.Minute)
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
	w.Until("the block is removed", func() bool { return !n.labelled(w, v1alpha1.SuspendLabel) })
	w.For(10 * time.Minute)
	if got := n.newPods(w); got != news || strategyOf(n.stored(w)) != `{"type":"RollingUpdate","rollingUpdate":{"partition":1000000}}` {
		w.Failf("%d pods are new, want %d, and the update strategy is %s", got, news, strategyOf(n.stored(w)))
	}
}

// onDeleteAfterLeaving: a DaemonSet that opts out gets its strategy back. Afterwards a user may set OnDelete.
func onDeleteAfterLeaving(w *world.World) {
	n := natives()[1]
	n.failUnderWay(w)
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
	n.strategy(w, n.run)
	n.patch(w, `{"spec":{"updateStrategy":{"type":"OnDelete"}}}`)
	w.For(10 * time.Minute)
	if got := n.newPods(w); got == n.pods || strategyOf(n.stored(w)) != n.halt {
		w.Failf("%d pods are new, and the update strategy is %s", got, strategyOf(n.stored(w)))
	}
}

// newPods returns the number of pods with the template of the second release.
func (n native) newPods(w *world.World) (count int) {
	for _, p := range n.podsOf(w) {
		if p.Labels["test"] == "second" {
			count++
		}
	}
	return count
}

// threeOfOneName: a Deployment, a StatefulSet and a DaemonSet with one name and one template are released, fail and are rolled back
// side by side.
func threeOfOneName(w *world.World) {
	create(w, web(2))
	until(w, v1alpha1.ChangeWorkloadSuccess)
	for _, n := range natives() {
		must(w, w.Create(n.make()))
		n.is(w, v1alpha1.ChangeWorkloadSuccess)
	}
	release(w, "second")
	for _, n := range natives() {
		n.patch(w, templatePatch("second"))
	}
	until(w, v1alpha1.ChangeWorkloadSuccess)
	for _, n := range natives() {
		n.is(w, v1alpha1.ChangeWorkloadSuccess)
	}
	set := natives()[0]
	judge(w, set.change(w), "unpass")
	w.Until("it is blocked", func() bool { return set.labelled(w, v1alpha1.SuspendLabel) })
	for _, n := range natives() {
		if n.name != set.name && n.labelled(w, v1alpha1.SuspendLabel) || w.Deployment("web").Labels[v1alpha1.SuspendLabel] != "" {
			w.Failf("another workload of the same name is blocked")
		}
	}
	set.patch(w, `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`)
	w.Until("it is rolled back", func() bool { return templateOfNative(set.stored(w)).Labels["test"] == "" })
	set.is(w, v1alpha1.ChangeWorkloadSuccess)
	if test := w.Deployment("web").Spec.Template.Labels["test"]; test != "second" {
		w.Failf("the deployment of the same name has version %q", test)
	}
}

func textOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // never for an API type
	}
	return string(data)
}
