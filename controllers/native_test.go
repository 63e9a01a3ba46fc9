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

// native is a StatefulSet or a DaemonSet named web, in stories that are the same of both.
type native struct {
	name string
	make func() client.Object
	// pods are how many it has.
	pods int
	// halt is the update strategy while it is halted, run that of before.
	halt, run string
}

func natives() []native {
	return []native{
		{"statefulset", func() client.Object { return makeSet(3) }, 3,
			`{"type":"RollingUpdate","rollingUpdate":{"partition":2147483647}}`, `{"type":"RollingUpdate","rollingUpdate":{"partition":0}}`},
		{"daemonset", func() client.Object { return makeDaemon() }, 3,
			`{"type":"OnDelete","rollingUpdate":{"maxUnavailable":1,"maxSurge":0}}`, `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":1,"maxSurge":0}}`},
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

// nativeStories tell of StatefulSets and DaemonSets what is told of Deployments.
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
			deploymentIsLetGo(w, notDefended)
		}},
		{Name: "a Deployment: adopted while halted", Options: world.Options{Verbose: *verbose}, Run: func(w *world.World) {
			failInFlight(w, slow(3))
			deploymentIsLetGo(w, adopted(w))
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

// TestNativeKindsSweep has the manager die after each of its writes.
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
				reference := world.Reference(t, s)
				for _, f := range world.Sweep(t, s, &reference, third(world.Faults(&reference, false, world.DiesAfter))...) {
					t.Errorf("%s, %s:\n%s\n%s", f.Fault, f.At, f.What, f.Log)
				}
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

// change is the release it is at; nil when that is not recorded.
func (n native) change(w *world.World) *v1alpha1.ChangeWorkload {
	o := n.stored(w)
	return w.ChangesOf(o)[o.GetLabels()[v1alpha1.VersionLabel]]
}

// is waits for the release it is at to be in a state, and a while longer.
func (n native) is(w *world.World, state v1alpha1.ChangeWorkloadStatusType) {
	w.Until(fmt.Sprintf("the release of the %s is %s", n.name, state), func() bool {
		c := n.change(w)
		return c != nil && c.Status.Status == state &&
			fmt.Sprint(c.Status.ObservedRelease) == n.stored(w).GetAnnotations()[v1alpha1.ReleaseAnnotation]
	})
	w.For(10 * time.Second)
}

// progress waits for what the release says of its rollout.
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
		w.Failf("%d releases of what was there before, with %d pods", c, len(before))
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
	if want := fmt.Sprintf(`"v%s.kb.io" denied the request: %s web is suspended`, n.name, n.name); err == nil ||
		!strings.Contains(err.Error(), want) {
		w.Failf("a blocked %s was released: %v", n.name, err)
	}
	n.override(w, "repair")
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	w.Until("the block is lifted", func() bool { return !n.labelled(w, v1alpha1.SuspendLabel) })
	if n.labelled(w, v1alpha1.IgnoredSuspendLabel) {
		w.Failf("the override is not used up")
	}
	if d := w.Deployment("web"); len(w.Changes("web")) != 0 || d.Labels[v1alpha1.SuspendLabel] != "" {
		w.Failf("the deployment of its name was concerned: %+v", d.ObjectMeta)
	}
	if left := remembered(w, n.stored(w)); left != 2 { // the baseline, and the repair; what failed left it
		w.Failf("%d versions are remembered", left)
	}
}

// remembered is how many versions of a workload are in its history.
func remembered(w *world.World, o client.Object) (n int) {
	for _, r := range world.List[*appsv1.ControllerRevision](w, "ControllerRevision") {
		if r.Labels[v1alpha1.HistoryOfLabel] == string(o.GetUID()) {
			n++
		}
	}
	return n
}

// slow is a workload whose pods are available after a minute. It is so from the beginning:
// raised later, minReadySeconds has a DaemonSet replace its young pods at once.
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

// sharedOutage kills a pod of each version for its memory in the middle of a rollout: the
// old pod excuses the new one, whatever owns the two. The operator sees the old pod first: it
// judges by what it has seen.
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
	w.Until("a batch of the second is done", func() bool { c := change(); return c != nil && c.Spec.Release == 2 && batchDone(w, c) })
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
	w.Until("the check says that it is not the release", func() bool {
		return slices.ContainsFunc(w.Batches(change()), func(b *v1alpha1.ChangePod) bool {
			return slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool { return c.Reason == v1alpha1.ReasonSameOnOldPods })
		})
	})
	if c := change(); c.Status.Status == v1alpha1.ChangeWorkloadSuspend {
		w.Failf("the release failed: %+v", c.Status.DefenseCheckFailPods)
	}
}

// failUnderWay fails a release of which pods are still to be replaced.
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
	if news != 1 && news != 2 { // the next one may have been deleted in the same moment
		w.Failf("%d pods are of the version that is halted", news)
	}
	judge(w, n.change(w), "pass")
	w.Until("the block is lifted", func() bool { return !n.labelled(w, v1alpha1.SuspendLabel) })
	n.strategy(w, n.run)
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	if a := n.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] != "" {
		w.Failf("it is halted by %s", a[v1alpha1.HaltedAnnotation])
	}

	must(w, w.PatchObject(n.make(), `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`))
	w.Until("it is back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	for _, pod := range n.podsOf(w) {
		if pod.Labels["test"] != "" {
			w.Failf("the pod %s is of the version that was left", pod.Name)
		}
	}
	err := w.PatchObject(n.make(), templatePatch("second"))
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`"q%s.kb.io" denied the request: %s web: version`, n.name, n.name)) {
		w.Failf("a version was released that was rolled back: %v", err)
	}
}

// neverStarts: a release whose image cannot be pulled is rolled back. The controller of a
// StatefulSet waits for the stuck pod, which is evicted.
func (n native) neverStarts(w *world.World) { n.neverStartsAs(w, n.make()) }

func (n native) neverStartsAs(w *world.World, o client.Object) {
	must(w, w.Create(o))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	first := n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	n.patch(w, imagePatch(world.BadImage))
	w.Until("it is back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	for _, pod := range n.podsOf(w) {
		if pod.Spec.Containers[0].Image != "good" {
			w.Failf("the pod %s runs %s", pod.Name, pod.Spec.Containers[0].Image)
		}
	}
}

// quota: pods of the next version are refused. That is told soon, and once it has lasted
// for too long the release is rolled back.
func (n native) quota(w *world.World) {
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	first := n.stored(w).GetLabels()[v1alpha1.VersionLabel]
	w.SetQuota(true, n.pods-1)
	n.patch(w, templatePatch("second"))
	began := time.Now()
	n.progress(w, v1alpha1.ReasonRolloutStuck)
	if took := time.Since(began); took > time.Minute {
		w.Failf("it was told after %s", took)
	}
	if said := meta.FindStatusCondition(n.change(w).Status.Conditions, v1alpha1.ConditionProgressing).Message; !strings.Contains(said,
		"1 of 3 pods cannot be created: create Pod failed error: pods are forbidden: exceeded quota") {
		w.Failf("it says %q", said)
	}
	w.Until("it is back", func() bool { return n.stored(w).GetLabels()[v1alpha1.VersionLabel] == first })
	if took := time.Since(began); took < 10*time.Minute-time.Second || took > 12*time.Minute {
		w.Failf("it was rolled back after %s", took)
	}
	w.SetQuota(false, 0)
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
}

// onDelete: a user replaces the pods by deleting them. Those are verified, and the
// release waits for the others.
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

// leaves opts out while halted: what was changed is given back.
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

// userResumes: what a manifest brings back leaves the halt. A user resumes with an override.
func (n native) userResumes(w *world.World) {
	n.failUnderWay(w)
	for _, at := range []time.Duration{0, time.Minute, time.Hour} {
		w.For(at)
		n.patch(w, `{"spec":{"updateStrategy":`+n.run+`}}`)
		if a := n.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] == "" || strategyOf(n.stored(w)) != n.halt {
			w.Failf("applied again, it has %v, and the update strategy %s", a, strategyOf(n.stored(w)))
		}
	}
	w.Rest()
	if news := n.newPods(w); news == n.pods {
		w.Failf("%d pods are of the version that failed", news)
	}
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"updateStrategy":`+n.run+`}}`)
	n.goesOn(w)
	if n.labelled(w, v1alpha1.IgnoredSuspendLabel) {
		w.Failf("the override is not used up")
	}
	w.Until("it is told who resumed", func() bool {
		return slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == "BlockOverridden" })
	})
}

// userResumesUnseen: where admission does not see it, the halt is over, and that is told.
func (n native) userResumesUnseen(w *world.World) {
	n.failUnderWay(w)
	w.Unseen(func() { n.patch(w, `{"spec":{"updateStrategy":`+n.run+`}}`) })
	n.goesOn(w)
	if !slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == "RolloutResumed" }) {
		w.Failf("it is not told")
	}
}

// goesOn waits until a workload that was halted has replaced its pods, and is not halted again.
func (n native) goesOn(w *world.World) {
	w.Until("every pod is replaced", func() bool { return len(n.podsOf(w)) == n.pods && n.newPods(w) == n.pods })
	w.For(10 * time.Minute)
	if a := n.stored(w).GetAnnotations(); !n.labelled(w, v1alpha1.SuspendLabel) || a[v1alpha1.HaltedAnnotation] != "" ||
		strategyOf(n.stored(w)) != n.run {
		w.Failf("it has %v %v, and the update strategy %s", n.stored(w).GetLabels(), a, strategyOf(n.stored(w)))
	}
}

// slips releases past admission: the template is not touched for it.
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

// slipsObserved: what was released while nobody looked is recorded, and nothing is done
// about it where somebody put it into observe mode before the operator came back.
func (n native) slipsObserved(w *world.World) {
	must(w, w.Create(n.make()))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	w.Stop()
	n.patch(w, imagePatch(world.BadImage))
	n.patch(w, `{"metadata":{"annotations":{"altershield.defense.antgroup.com/observe":"enabled"}}}`)
	w.Start()
	w.Until("it is told what would have been done", func() bool {
		return slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == v1alpha1.EventDryRun })
	})
	w.For(10 * time.Minute)
	if a := n.stored(w).GetAnnotations(); a[v1alpha1.ReleaseAnnotation] != "2" || n.labelled(w, v1alpha1.SuspendLabel) ||
		a[v1alpha1.HaltedAnnotation] != "" || a[v1alpha1.QuarantinedAnnotation] != "" {
		w.Failf("it is not only recorded: %v %v", n.stored(w).GetLabels(), a)
	}
}

// baselineSlips: the first release of what was there before the enrolment is not seen by
// admission.
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

// owned: what another object owns is in observe mode, unless a label says otherwise.
func (n native) owned(w *world.World) {
	o := n.make()
	o.SetOwnerReferences(prometheus(w))
	must(w, w.Create(o))
	n.is(w, v1alpha1.ChangeWorkloadSuccess)
	n.patch(w, imagePatch(world.BadImage))
	w.Until("it is told what would have been done", func() bool {
		return slices.ContainsFunc(w.Events(), func(e world.Event) bool { return e.Reason == v1alpha1.EventDryRun })
	})
	n.patch(w, templatePatch("second"))
	n.patch(w, imagePatch("good"))
	if s, ok := o.(*appsv1.StatefulSet); ok { // as its owner would
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

// prometheus is an owner of workloads, which is there.
func prometheus(w *world.World) []metav1.OwnerReference {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "k8s"}}
	must(w, w.Create(owner))
	return []metav1.OwnerReference{
		{APIVersion: "monitoring.coreos.com/v1", Kind: "Prometheus", Name: "k8s", UID: world.Stored(w, owner).UID, Controller: ptr.To(true)},
	}
}

// defended has another object own a workload that is defended all the same.
func defended(by []metav1.OwnerReference, o client.Object) {
	o.SetOwnerReferences(by)
	o.SetLabels(map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseEnforced})
}

// notDefended takes away the label by which a workload is defended although another object
// owns it.
const notDefended = `{"metadata":{"labels":{"` + v1alpha1.DefenseLabel + `":null}}}`

// adopted has another object own a workload.
func adopted(w *world.World) string {
	owners, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": prometheus(w)}})
	must(w, err)
	return string(owners)
}

// ownedWhileHalted: what halts it is taken back when it is in observe mode, because another
// object owns it by now, or it is not defended all the same any more. The block stays.
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
			a[v1alpha1.HaltedAnnotation] != "" ||
			a[v1alpha1.HaltedFromAnnotation] != "" || strategyOf(n.stored(w)) != n.run {
			w.Failf("it has %v %v, and the update strategy %s", n.stored(w).GetLabels(), a, strategyOf(n.stored(w)))
		}
		w.Stop()
		n.patch(w, templatePatch("third")) // the block denies it nothing
		w.Start()
		n.is(w, v1alpha1.ChangeWorkloadSuccess)
	}
}

// clonedWhileHalted: what is created from the manifest of a workload that is halted is not.
func (n native) clonedWhileHalted(w *world.World) {
	n.failUnderWay(w)
	read := n.stored(w)
	clone := n.make()
	clone.SetName("clone")
	clone.SetLabels(read.GetLabels())
	clone.SetAnnotations(read.GetAnnotations())
	switch from := read.(type) {
	case *appsv1.StatefulSet:
		clone.(*appsv1.StatefulSet).Spec = from.Spec //nolint:errcheck // it is of the same kind
	case *appsv1.DaemonSet:
		clone.(*appsv1.DaemonSet).Spec = from.Spec //nolint:errcheck // it is of the same kind
	}
	must(w, w.Create(clone))
	stored := world.Stored(w, clone)
	if a := stored.GetAnnotations(); strategyOf(stored) != n.run || a[v1alpha1.HaltedAnnotation] != "" ||
		a[v1alpha1.HaltedFromAnnotation] != "" {
		w.Failf("the clone has %v, and the update strategy %s", a, strategyOf(stored))
	}
}

// deploymentIsLetGo has a Deployment that is halted be in observe mode by such a patch.
func deploymentIsLetGo(w *world.World, become string) {
	w.Until("it is halted", func() bool { return w.Deployment("web").Spec.Paused })
	patch(w, become)
	w.Until("it is resumed", func() bool { return !w.Deployment("web").Spec.Paused })
	w.Until("every pod is replaced", func() bool { current, old := podsOf(w); return len(current) == 3 && len(old) == 0 })
	if d := w.Deployment("web"); d.Annotations[v1alpha1.HaltedAnnotation] != "" || d.Annotations[v1alpha1.SuspendedByAnnotation] == "" ||
		!labelled(w, v1alpha1.SuspendLabel) {
		w.Failf("it has %v %v", d.Labels, d.Annotations)
	}
	w.Stop()
	patch(w, templatePatch("third")) // the block denies it nothing
	w.Start()
	until(w, v1alpha1.ChangeWorkloadSuccess)
}

// partitioned: a user's partition keeps pods; the others are verified.
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

// haltedAtPartition: the user's partition is given back, by the correction and by a
// release that passes the block.
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
		w.Failf("kept is %q", from)
	}
	judge(w, n.change(w), "pass")
	at(1)
	w.For(time.Minute)
	n.patch(w, templatePatch("third"))
	w.Until("a batch is done", func() bool { return batchDone(w, n.change(w)) })
	judge(w, n.change(w), "unpass")
	at(math.MaxInt32)
	n.patch(w,
		`{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"repair"}}}}}`)
	at(1)
	if a := n.stored(w).GetAnnotations(); a[v1alpha1.HaltedAnnotation] != "" || a[v1alpha1.HaltedFromAnnotation] != "" {
		w.Failf("it still says that it is halted: %v", a)
	}
	n.progress(w, v1alpha1.ReasonPartitioned)
}

// leavesAtPartition: a partition above all pods, which a user sets on a StatefulSet that is
// halted, keeps them also when it leaves the defense.
func leavesAtPartition(w *world.World) {
	n := natives()[0]
	n.failUnderWay(w)
	news := n.newPods(w)
	n.patch(w, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1000000}}}}`)
	w.For(time.Minute)
	n.patch(w, `{"metadata":{"labels":{"`+v1alpha1.DefenseLabel+`":"disabled"}}}`)
	w.Until("its block is taken back", func() bool { return !n.labelled(w, v1alpha1.SuspendLabel) })
	w.For(10 * time.Minute)
	if got := n.newPods(w); got != news || strategyOf(n.stored(w)) != `{"type":"RollingUpdate","rollingUpdate":{"partition":1000000}}` {
		w.Failf("%d pods are new after %d, and the update strategy is %s", got, news, strategyOf(n.stored(w)))
	}
}

// onDeleteAfterLeaving: a DaemonSet gets its type back when it leaves; a user may set
// OnDelete again then.
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

// newPods are how many pods have the template of the second release.
func (n native) newPods(w *world.World) (count int) {
	for _, p := range n.podsOf(w) {
		if p.Labels["test"] == "second" {
			count++
		}
	}
	return count
}

// threeOfOneName: a Deployment, a StatefulSet and a DaemonSet of one name and one
// template, released, failed and rolled back side by side.
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
			w.Failf("another workload of its name is blocked")
		}
	}
	set.patch(w, `{"metadata":{"annotations":{"`+v1alpha1.RollbackToAnnotation+`":"last-success"}}}`)
	w.Until("it is back", func() bool { return templateOfNative(set.stored(w)).Labels["test"] == "" })
	set.is(w, v1alpha1.ChangeWorkloadSuccess)
	if test := w.Deployment("web").Spec.Template.Labels["test"]; test != "second" {
		w.Failf("the deployment of its name is at %q", test)
	}
}

func textOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is an API type
	}
	return string(data)
}
