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

package observer

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// paced sets both fields of a Deployment's pace.
func paced(minReady, deadline int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) {
		d.Spec.MinReadySeconds, d.Spec.ProgressDeadlineSeconds = minReady, &deadline
	}
}

// heldBy returns the annotation of a hold of release 1, with the user's values 5 and 600 seconds,
// and the values that the hold sets.
func heldBy(minReady, deadline int32) func(*appsv1.Deployment) {
	return annotation(v1alpha1.HeldAnnotation, fmt.Sprintf(
		`{"release":1,"until":"EveryBatch","minReadySeconds":5,"progressDeadlineSeconds":600,`+
			`"set":{"minReadySeconds":%d,"progressDeadlineSeconds":%d}}`, minReady, deadline))
}

// TestGivenBack: a Deployment is held, and by the end of the hold its fields are the user's again.
func TestGivenBack(t *testing.T) {
	own, shut, open := paced(5, 600), paced(600, 2400), paced(20, 2400)
	held, opened := heldBy(600, 2400), heldBy(20, 2400)
	was := annotation(v1alpha1.HeldAnnotation, strings.Replace(annotated(opened), `"set"`,
		`"was":{"minReadySeconds":600,"progressDeadlineSeconds":2400},"set"`, 1))
	lost := annotation(v1alpha1.HeldAnnotation, strings.Replace(annotated(held), `"minReadySeconds":5`, `"minReadySeconds":600`, 1))
	edited := annotation(v1alpha1.HeldAnnotation, strings.Replace(annotated(held), `"minReadySeconds":5`, `"minReadySeconds":7`, 1))
	unreadable := annotation(v1alpha1.HeldAnnotation, "{")
	optedOut, next := label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled), annotation(v1alpha1.ReleaseAnnotation, "2")
	users := func(change ...func(*appsv1.Deployment)) step { return user(makeDeployment(change...)) }
	operators := func(change ...func(*appsv1.Deployment)) step { return operator(makeDeployment(change...)) }
	begins, lifted := users(shut, held), operators(own)
	harmful, twice := []string{"S10 at 4"}, []string{"S10 at 4", "S10 at 4"}
	tests := map[string]struct {
		story []step
		want  []string
	}{
		"given back":                              {story: join(begins, lifted)},
		"given back by admission":                 {story: join(begins, users(own, image("busybox:0")))},
		"opened, and given back":                  {story: join(begins, operators(open, opened), lifted)},
		"admission was away":                      {story: join(begins, operators(shut, opened), lifted)},
		"the hold returns with an old ReplicaSet": {story: join(users(own, held, next), lifted)},
		"the hold returns, and its values stay":   {story: join(users(own, held, next), users(shut, held, next), operators(shut)), want: twice},
		"one field is not given back":             {story: join(begins, begins, operators(paced(5, 2400))), want: harmful},
		"neither field is given back":             {story: join(begins, begins, users(shut)), want: twice},
		"neither are its earlier values":          {story: join(begins, operators(shut, was), operators(paced(600, 600))), want: harmful},
		"the operator sets another value": {
			story: join(begins, operators(paced(30, 2400), opened), operators(paced(30, 600))), want: harmful,
		},
		"the operator loses the user's value": {story: join(begins, operators(shut, lost), operators(paced(600, 600))), want: harmful},
		"the operator invents a user's value": {story: join(begins, operators(shut, edited), operators(paced(7, 600))), want: harmful},
		"a release takes it for the user's": {
			story: join(begins, users(shut, lost, image("busybox:2")), operators(paced(600, 600), image("busybox:2"))), want: harmful,
		},
		"a release brings another value": {
			story: join(begins, users(shut, edited, image("busybox:2")), operators(paced(7, 600), image("busybox:2"))),
		},
		"the first release brings another value": {story: join(users(shut, edited), operators(shut, edited), operators(paced(7, 600)))},
		"a release's value is not restored": {
			story: join(begins, users(shut, edited, image("busybox:2")), operators(own, image("busybox:2"))), want: harmful,
		},
		"a user sets a value":                         {story: join(begins, users(paced(30, 600)))},
		"a user sets one value, the other is left":    {story: join(begins, begins, users(paced(30, 2400))), want: harmful},
		"the operator sets a value":                   {story: join(begins, begins, operators(paced(30, 600))), want: harmful},
		"a user had set it past admission":            {story: join(begins, users(paced(30, 600), held), operators(paced(30, 600)))},
		"the hold is unreadable":                      {story: join(begins, operators(shut, unreadable), operators(shut)), want: twice},
		"a user removes the hold, not enrolled":       {story: join(user(makeNamespace(false)), begins, users(shut))},
		"a user removes the hold, opted out":          {story: join(users(shut, held, optedOut), users(shut, optedOut))},
		"the operator removes the hold, not enrolled": {story: join(user(makeNamespace(false)), begins, operators(shut)), want: twice},
		"not held":        {story: join(users(paced(7, 800)))},
		"no replica runs": {story: join(begins, step{does: stops}, users(shut))},
		"no replica ran":  {story: join(begins, step{does: stops}, users(shut), step{does: starts}, operators(shut, held), lifted)},
		"no replica ran, and the hold is lost": {
			story: join(begins, step{does: stops}, users(shut), step{does: starts}, operators(shut, held), operators(shut)),
			want:  []string{"S10 at 7", "S10 at 7"},
		},
		"the operator changes fields without a hold": {
			story: join(operators(paced(7, 600))), want: []string{"S6 at 2"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, play(newWorld(), join(user(makeNamespace(true)), users(own), tc.story))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// annotated returns the annotation of a hold after a change.
func annotated(change func(*appsv1.Deployment)) string {
	return makeDeployment(change).Annotations[v1alpha1.HeldAnnotation]
}

// rolling returns a Deployment of four pods, with a surge of one and one unavailable.
func rolling(change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	one := intstr.FromInt32(1)
	return makeDeployment(append([]func(*appsv1.Deployment){func(d *appsv1.Deployment) {
		d.Spec.Replicas = new(int32(4))
		d.Spec.Strategy = appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &one},
		}
	}, paced(5, 600)}, change...)...)
}

func replicas(n int32) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Replicas = &n }
}

// shutAt and openAt return a held Deployment whose pods become available after 600, or minReady,
// seconds.
func shutAt(change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	return rolling(append([]func(*appsv1.Deployment){paced(600, 2400), heldBy(600, 2400)}, change...)...)
}

func openAt(minReady int32) *appsv1.Deployment {
	return rolling(paced(minReady, 2400), heldBy(minReady, 2400))
}

// set returns a version of the ReplicaSet of the held version, earlier of the ReplicaSet before it.
func set(size, available, minReady int32) *appsv1.ReplicaSet {
	rs := makeReplicaSet("d")
	rs.Spec.Replicas, rs.Spec.MinReadySeconds = &size, minReady
	rs.Status.Replicas, rs.Status.AvailableReplicas = size, available
	return rs
}

func earlier(size int32) *appsv1.ReplicaSet {
	rs := makeReplicaSet("d", image("busybox:0"))
	rs.Name, rs.UID, rs.Spec.Replicas = "web-0", "rs0", &size
	rs.Status.Replicas, rs.Status.AvailableReplicas = size, size
	return rs
}

// podAt returns a pod of the held version, made and Ready at a step, oldPod a pod of the version
// before it.
func podAt(name string, step int) *corev1.Pod {
	p := makePod(name, at(step))
	p.CreationTimestamp = metav1.NewTime(at(step))
	return p
}

func oldPod(name string) *corev1.Pod {
	return wrappers.MakePod("ns", name).UID(types.UID(name)).Of(earlier(4)).Ready(epoch).Obj()
}

func unready(p *corev1.Pod) *corev1.Pod {
	p.Status.Conditions = nil
	return p
}

func going(p *corev1.Pod) *corev1.Pod {
	p.DeletionTimestamp = &metav1.Time{Time: epoch}
	return p
}

// verified returns a batch of pods that passed.
func verified(n int, pods ...string) *v1alpha1.ChangePod {
	return makeBatch(numbered(n), done("none"), func(b *v1alpha1.ChangePod) {
		b.Spec.PodInfos = nil
		for _, p := range pods {
			b.Spec.PodInfos = append(b.Spec.PodInfos, v1alpha1.PodInfo{Pod: p, Namespace: "ns", UID: p})
		}
	})
}

// watched adds a check in the background that is due at a step.
func watched(b *v1alpha1.ChangePod, mode v1alpha1.PolicyMode, phase v1alpha1.CheckPhase, due int) *v1alpha1.ChangePod {
	b.Status.Checks = []v1alpha1.CheckStatus{{
		Name: "ns/p/c", Type: "metric", Mode: mode, Background: true, Phase: phase, DueTime: &metav1.Time{Time: at(due)},
	}}
	return b
}

func stops(w *world, now time.Time)  { w.operatorStops(now) }
func starts(w *world, now time.Time) { w.operatorStarts(now) }

// beginning is a held release: of four pods two are new, three old. The story goes on at step 16.
var beginning = begins(600, 2400)

// begins returns the beginning of a hold with another pace.
func begins(minReady, deadline int32) []step {
	return []step{
		user(makeNamespace(true)),
		user(rolling(image("busybox:0"), label(v1alpha1.VersionLabel, "v0"), annotation(v1alpha1.ReleaseAnnotation, "0"))), user(earlier(4)),
		user(oldPod("o1")), user(oldPod("o2")), user(oldPod("o3")), user(oldPod("o4")),
		user(rolling(paced(minReady, deadline), heldBy(minReady, deadline))), user(set(1, 0, minReady)), user(earlier(3)), gone(oldPod("o4")),
		user(set(2, 0, minReady)),
		user(podAt("p1", 12)), user(podAt("p2", 12)), operator(makeRelease(running)), user(set(2, 0, minReady)),
	}
}

func TestHoldShut(t *testing.T) {
	pass := operator(verified(1, "p1", "p2"))
	enforce, watching := v1alpha1.ModeEnforce, v1alpha1.CheckWatching
	// opens lowers minReadySeconds: pods older than 20 seconds become available.
	opens := []step{operator(openAt(20)), user(set(2, 0, 20))}
	stale := func(rs *appsv1.ReplicaSet) *appsv1.ReplicaSet {
		rs.Generation, rs.Status.ObservedGeneration = 2, 1
		return rs
	}
	tests := map[string]struct {
		story []step
		// begins replaces beginning, if set.
		begins []step
		want   []string
	}{
		"verified":     {story: join(pass, opens, user(set(2, 2, 20)))},
		"not verified": {story: join(opens, user(set(2, 2, 20))), want: []string{"S12 at 18"}},
		"reported once": {
			story: join(opens, user(set(2, 2, 20)), user(set(2, 2, 21)), user(set(2, 1, 20))), want: []string{"S12 at 18"},
		},
		"one more each time":           {story: join(opens, user(set(2, 1, 20)), user(set(2, 2, 20))), want: []string{"S12 at 18", "S12 at 19"}},
		"one of two, one is available": {story: join(operator(verified(1, "p1")), opens, user(set(2, 1, 20)))},
		"one of two, both are":         {story: join(operator(verified(1, "p1")), opens, user(set(2, 2, 20))), want: []string{"S12 at 19"}},
		"verified too late":            {story: join(opens, user(set(2, 2, 20)), pass), want: []string{"S12 at 18"}},
		"its batch is not done":        {story: join(operator(makeBatch()), opens, user(set(2, 1, 20))), want: []string{"S12 at 19"}},
		"failed":                       {story: join(operator(makeBatch(done("fail"))), opens, user(set(2, 1, 20))), want: []string{"S12 at 19"}},
		"a failure was delivered": {
			story: join(operator(makeBatch(done("none"), post(verdict("fail")))), opens, user(set(2, 1, 20))), want: []string{"S12 at 19"},
		},
		"it failed later":   {story: join(operator(makeBatch(done("none"))), opens, user(makeBatch(done("fail"))), user(set(2, 1, 20)))},
		"its batch is gone": {story: join(pass, gone(verified(1, "p1", "p2")), opens, user(set(2, 2, 20)))},
		"watched": {
			story: join(operator(watched(verified(1, "p1", "p2"), enforce, watching, 30)), opens, user(set(2, 2, 20))), want: []string{"S12 at 19"},
		},
		"watched to the end": {story: join(operator(watched(verified(1, "p1", "p2"), enforce, watching, 19)), opens, user(set(2, 2, 20)))},
		"watched, to observe only": {
			story: join(operator(watched(verified(1, "p1", "p2"), v1alpha1.ModeObserve, watching, 30)), opens, user(set(2, 2, 20))),
		},
		"the watch waits to begin": {
			story: join(operator(watched(verified(1, "p1", "p2"), enforce, v1alpha1.CheckPending, 0)), opens, user(set(2, 2, 20))),
			want:  []string{"S12 at 19"},
		},
		"the watch failed": {
			story: join(operator(watched(verified(1, "p1", "p2"), enforce, v1alpha1.CheckFailed, 0)), opens, user(set(2, 2, 20))),
			want:  []string{"S12 at 19"},
		},
		"watched to the end, then failed": {
			story: join(
				operator(watched(verified(1, "p1", "p2"), enforce, watching, 17)), opens,
				operator(watched(verified(1, "p1", "p2"), enforce, v1alpha1.CheckFailed, 17)), user(set(2, 2, 20)),
			),
		},
		"a batch of another workload": {
			story: join(
				operator(makeRelease(running, func(c *v1alpha1.ChangeWorkload) { c.OwnerReferences[0].UID = "other" })), pass, opens,
				user(set(2, 2, 20)),
			),
			want: []string{"S12 at 20"},
		},
		"given back": {story: join(operator(rolling()), user(set(2, 2, 5)))},
		"superseded": {story: join(user(shutAt(image("busybox:2"))), user(set(2, 2, 20)))},
		"raised again": {
			story: join(pass, opens, user(set(2, 2, 20)), operator(shutAt()), user(set(2, 0, 600)), operator(openAt(20)), user(set(2, 2, 20))),
		},
		"counted by the earlier minReadySeconds": {
			story: join(pass, opens, user(set(2, 2, 20)), operator(shutAt()), user(stale(set(2, 1, 600))), user(stale(set(2, 2, 600)))),
		},
		"verified ones are too young": {story: join(pass, operator(openAt(590)), user(set(2, 1, 590))), want: []string{"S12 at 18"}},
		"another than the lost pod": {
			story: join(
				operator(verified(1, "p1")), opens, user(set(2, 1, 20)), user(unready(podAt("p1", 12))), user(set(2, 0, 20)), user(set(2, 1, 20)),
			),
			want: []string{"S12 at 22"},
		},
		"counted before it was lost": {story: join(pass, opens, user(unready(podAt("p1", 12))), user(set(2, 2, 20)))},
		"counted before it was gone": {story: join(pass, opens, gone(podAt("p1", 12)), user(set(2, 2, 20)))},
		"gone for long": {
			story: join(pass, opens, gone(podAt("p1", 12)), user(set(2, 1, 20)), user(set(2, 2, 20))), want: []string{"S12 at 21"},
		},
		"it ran out": {
			begins: begins(20, 670),
			story:  join(user(makeNamespace(true)), user(makeNamespace(true)), user(makeNamespace(true)), user(set(2, 2, 20))),
		},
		"it had not run out": {
			begins: begins(20, 670),
			story:  join(user(makeNamespace(true)), user(makeNamespace(true)), user(set(2, 2, 20))), want: []string{"S12 at 18"},
		},
		"not before a minute is over": {
			begins: begins(20, 620),
			story:  join(user(podAt("p3", 16)), user(makeNamespace(true)), user(set(3, 3, 20))), want: []string{"S12 at 18"},
		},
		"older than the hold": {story: join(user(shutAt(
			annotation(v1alpha1.ReleaseAnnotation, "2"),
			annotation(v1alpha1.HeldAnnotation, strings.Replace(annotated(heldBy(600, 2400)), `"release":1`, `"release":2`, 1)),
		)), user(set(2, 2, 20)))},
		"begins without its values": {begins: begins(5, 600), story: join(user(set(2, 2, 5))), want: []string{"S12 at 16"}},
		"by itself": {
			story: join(user(podAt("p1", 16)), user(set(2, 0, 30)), user(makeNamespace(true)), user(makeNamespace(true)), user(set(2, 1, 30))),
			want:  []string{"S12 at 20"},
		},
		"by itself while no replica ran": {
			story: join(step{does: stops}, user(set(2, 0, 70)), user(makeNamespace(true)), user(set(2, 2, 70)), step{does: starts}),
		},
		"by itself right after": {
			story: join(step{does: stops}, user(set(2, 0, 70)), step{does: starts}, user(makeNamespace(true)), user(set(2, 2, 70))),
		},
		"by itself while a replica ran": {
			story: join(step{does: stops}, step{does: starts}, user(set(2, 0, 80)), user(makeNamespace(true)), user(set(2, 2, 80))),
			want:  []string{"S12 at 20"},
		},
		"opened by a user while no replica ran": {story: join(step{does: stops}, opens, user(set(2, 2, 20)), step{does: starts})},
		"opened after an outage": {
			story: join(step{does: stops}, step{does: starts}, opens, user(set(2, 2, 20))), want: []string{"S12 at 20"},
		},

		"in flight: one too many":     {story: join(user(set(3, 0, 600))), want: []string{"S12 at 16"}},
		"in flight: scaled":           {story: join(user(shutAt(replicas(6))), user(set(4, 0, 600)))},
		"in flight: scaled, one more": {story: join(user(shutAt(replicas(6))), user(set(5, 0, 600))), want: []string{"S12 at 17"}},
		"in flight: the next wave":    {story: join(pass, opens, user(set(2, 2, 20)), user(set(4, 2, 20)))},
		"in flight: too large a wave": {story: join(pass, opens, user(set(2, 2, 20)), user(set(5, 2, 20))), want: []string{"S12 at 20"}},
		"in flight: one was lost":     {story: join(pass, opens, user(set(2, 2, 20)), user(unready(podAt("p1", 12))), user(set(4, 1, 20)))},
		"in flight: raised again": {
			story: join(pass, opens, user(set(2, 2, 20)), operator(shutAt()), user(set(2, 0, 600)), user(set(4, 0, 600))),
		},
		"in flight: one was replaced": {
			story: join(pass, opens, user(set(2, 2, 20)), gone(podAt("p1", 12)), user(podAt("p3", 21)), user(set(4, 1, 20))),
		},
		"in flight: the wave is not yet": {story: join(user(set(4, 0, 600))), want: []string{"S12 at 16"}},
		"in flight: given back":          {story: join(operator(rolling()), user(set(4, 0, 5)))},

		"claimed":                                {story: join(pass, operator(claim()))},
		"claimed for nothing":                    {story: join(operator(claim())), want: []string{"S12 at 16"}},
		"claimed for nothing, after it was over": {story: join(operator(rolling()), operator(claim())), want: []string{"S12 at 17"}},
		"claimed for half":                       {story: join(operator(verified(1, "p1")), operator(claim())), want: []string{"S12 at 17"}},
		"claimed by a user":                      {story: join(user(claim()))},
		"a pod came after it was over":           {story: join(pass, operator(rolling()), user(podAt("p3", 10)), operator(claim()))},
		"a pod has just come":                    {story: join(pass, user(podAt("p3", 17)), operator(claim()))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.begins == nil {
				tc.begins = beginning
			}
			got := play(newWorld(), join(tc.begins, tc.story))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// claim returns a release that claims to be verified.
func claim() *v1alpha1.ChangeWorkload {
	return makeRelease(running, func(c *v1alpha1.ChangeWorkload) {
		c.Status.Conditions = []metav1.Condition{{Type: conditionHeld, Status: metav1.ConditionFalse, Reason: reasonVerified}}
	})
}

// join makes one story of steps and stories.
func join(parts ...any) (story []step) {
	for _, p := range parts {
		switch p := p.(type) {
		case step:
			story = append(story, p)
		case []step:
			story = append(story, p...)
		default:
			panic(fmt.Sprintf("%T", p))
		}
	}
	return story
}

func TestHoldHarmless(t *testing.T) {
	passes := join(operator(verified(1, "p1", "p2")), operator(openAt(20)), user(set(2, 2, 20)))
	tests := map[string]struct {
		story []step
		want  []string
	}{
		"the next wave": {story: join(passes, user(earlier(1)), gone(oldPod("o3")), gone(oldPod("o2")))},
		"one too many": {
			story: join(passes, user(earlier(0)), gone(oldPod("o3")), gone(oldPod("o2")), gone(oldPod("o1"))), want: []string{"S10 at 22"},
		},
		"one too many, in its time": {
			story: join(
				passes, user(earlier(0)), user(going(oldPod("o3"))), user(going(oldPod("o2"))), user(going(oldPod("o1"))), gone(oldPod("o1")),
			),
			want: []string{"S10 at 22"},
		},
		"the new ones do not serve": {
			story: join(user(unready(podAt("p1", 12))), user(unready(podAt("p2", 12))), user(set(2, 0, 600)), user(earlier(1)), gone(oldPod("o3"))),
			want:  []string{"S10 at 20"},
		},
		"one has just failed": {story: join(passes, user(earlier(1)), gone(oldPod("o3")), user(unready(podAt("p2", 12))), gone(oldPod("o2")))},
		"it does not serve itself": {
			story: join(user(earlier(0)), gone(oldPod("o3")), user(unready(oldPod("o2"))), gone(oldPod("o2")), gone(podAt("p1", 12))),
		},
		"a user deletes": {story: join(gone(oldPod("o3")), gone(oldPod("o2")), gone(oldPod("o1")))},
		"a user just deleted one": {
			story: join(passes, user(earlier(2)), gone(oldPod("o3")), gone(podAt("p1", 12)), user(earlier(1)), gone(oldPod("o2"))),
			want:  []string{"S10 at 23"},
		},
		"at the same time": {
			story: join(passes, user(earlier(2)), user(earlier(1)), gone(oldPod("o3")), gone(podAt("p1", 12)), gone(oldPod("o2"))),
		},
		"scaled": {
			story: join(
				user(shutAt(replicas(2))), user(earlier(0)), gone(oldPod("o3")), gone(oldPod("o2")), gone(oldPod("o1")), user(set(1, 0, 600)),
				gone(podAt("p2", 12)),
			),
		},
		"not held": {
			story: join(passes, operator(rolling()), user(earlier(0)), gone(oldPod("o3")), gone(oldPod("o2")), gone(oldPod("o1"))),
		},
		"the old set goes": {story: join(passes, gone(earlier(3)), gone(oldPod("o3")), gone(oldPod("o2")), gone(oldPod("o1")))},
		"all goes":         {story: join(passes, gone(shutAt()), user(earlier(0)), gone(oldPod("o3")), gone(oldPod("o2")), gone(oldPod("o1")))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := play(newWorld(), join(beginning, tc.story))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFenced(t *testing.T) {
	rolls := func(surge, unavailable string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			s, u := intstr.Parse(surge), intstr.Parse(unavailable)
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}
		}
	}
	tests := map[string]struct {
		change     func(*appsv1.Deployment)
		room, need int32
	}{
		"quarters of ten":  {func(d *appsv1.Deployment) { replicas(10)(d); rolls("25%", "25%")(d) }, 5, 8},
		"the default":      {func(d *appsv1.Deployment) { replicas(10)(d); d.Spec.Strategy.RollingUpdate = nil }, 5, 8},
		"numbers":          {func(d *appsv1.Deployment) { replicas(10)(d); rolls("3", "2")(d) }, 5, 8},
		"one by one":       {func(d *appsv1.Deployment) { replicas(10)(d); rolls("1", "0")(d) }, 1, 10},
		"nothing allowed":  {func(d *appsv1.Deployment) { replicas(3)(d); rolls("0", "10%")(d) }, 1, 2},
		"more than it has": {func(d *appsv1.Deployment) { replicas(2)(d); rolls("0", "5")(d) }, 2, 0},
		"all at once": {func(d *appsv1.Deployment) {
			replicas(4)(d)
			d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}, 4, 0},
		"nothing to be had": {func(d *appsv1.Deployment) { d.Spec.Replicas = nil; rolls("1", "1")(d) }, 2, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if room, need := fenced(rolling(tc.change)); room != tc.room || need != tc.need {
				t.Errorf("fenced() = %d, %d, want %d, %d", room, need, tc.room, tc.need)
			}
		})
	}
}

func TestAtMostOf(t *testing.T) {
	asks := func(text string) func(*appsv1.Deployment) {
		return annotation(v1alpha1.SettingAnnotationPrefix+holdingSetting, text)
	}
	for name, tc := range map[string]struct {
		set  func(*appsv1.Deployment)
		asks string
		want time.Duration
	}{
		"by the deadline":             {set: heldBy(600, 2400), want: 30 * time.Minute},
		"less than the step":          {set: heldBy(600, 1200), want: time.Minute},
		"less than the step, asked":   {set: heldBy(600, 1200), asks: "first,atMost=5m", want: 5 * time.Minute},
		"a policy wants more":         {set: heldBy(600, 2400), asks: "first,atMost=5m", want: 30 * time.Minute},
		"an unreadable setting":       {set: heldBy(600, 1200), asks: "first,atMost=soon", want: time.Minute},
		"there is no deadline at all": {set: heldBy(600, 600), want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := makeDeployment(tc.set, asks(tc.asks))
			h, _ := holdOf(d)
			if got := atMostOf(d, &h); got != tc.want {
				t.Errorf("atMostOf() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestHeldInVain(t *testing.T) {
	suspended := operator(makeRelease(suspend))
	tests := map[string]struct {
		story []step
		want  int
	}{
		"it goes on":          {},
		"its release is over": {story: []step{suspended}, want: 1},
		"another one goes on": {story: []step{suspended, user(shutAt(annotation(v1alpha1.ReleaseAnnotation, "2")))}},
		"its rollout is over": {story: []step{user(shutAt(func(d *appsv1.Deployment) {
			d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 4, 4, 4
		}))}, want: 2},
		"it is not defended": {story: []step{user(makeNamespace(false))}, want: 1},
		"it was given back":  {story: []step{operator(rolling()), suspended}},
		"it is being deleted": {
			story: []step{user(shutAt(func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: epoch} })), suspended},
		},
		"not defended, and not held": {story: []step{operator(rolling()), user(makeNamespace(false))}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			play(w, join(beginning, tc.story))
			if got := w.unfinished([]string{"ns"}, at(100)); len(got) != tc.want {
				t.Errorf("unfinished() = %q, want %d", got, tc.want)
			}
		})
	}
}

// TestHoldsForgotten: pods from before the first list are not judged; later ones are.
func TestHoldsForgotten(t *testing.T) {
	w := newWorld()
	play(w, beginning)
	w.forget()
	if n := len(w.holds.going) + len(w.holds.sets) + len(w.holds.ended); n != 0 {
		t.Fatalf("%d holds remain", n)
	}
	listed := func(s step) step { s.listed = true; return s }
	again := []step{
		listed(user(makeNamespace(true))), listed(user(shutAt())), listed(user(set(2, 0, 20))),
		listed(user(podAt("p1", 0))), listed(user(podAt("p2", 0))),
	}
	if got := play(w, join(again, user(set(2, 1, 20)), user(set(2, 2, 20)))); got != nil {
		t.Errorf("violations %q", got)
	}
	if got := play(w, join(again, user(podAt("p3", 0)), user(set(3, 3, 20)))); !slices.Equal(got, []string{"S12 at 6"}) {
		t.Errorf("violations %q", got)
	}
}

// setAt returns a StatefulSet of five pods at a partition; its user has none.
func setAt(partition int32, change ...func(*appsv1.Deployment)) *appsv1.StatefulSet {
	d := makeDeployment(append([]func(*appsv1.Deployment){replicas(5)}, change...)...)
	s := &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta}
	s.Spec.Template, s.Spec.Replicas = d.Spec.Template, d.Spec.Replicas
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{
		Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition},
	}
	return s
}

// holdsAt returns the annotation of a hold of release 1, with the partition of the user, and the
// partition that the hold sets.
func holdsAt(users, set int32) func(*appsv1.Deployment) {
	return annotation(v1alpha1.HeldAnnotation, fmt.Sprintf(
		`{"release":1,"until":"EveryBatch","partition":%d,"set":{"partition":%d},"replicas":5}`, users, set))
}

func TestGivenBackOfSet(t *testing.T) {
	type set = *appsv1.StatefulSet
	held := func(is, sets int32, more ...func(*appsv1.Deployment)) set {
		return setAt(is, append(more, holdsAt(0, sets))...)
	}
	halted := annotation(v1alpha1.HaltedAnnotation, "v1 1")
	over := annotation(v1alpha1.HeldAnnotation, strings.Replace(annotated(holdsAt(0, 4)), `"set"`, `"over":true,"set"`, 1))
	unreadable := annotation(v1alpha1.HeldAnnotation, "{")
	onDelete := setAt(0)
	onDelete.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	begins, lifted := user(held(4, 4)), operator(setAt(0))
	tests := map[string]struct {
		story []step
		want  []string
	}{
		"given back":                     {story: join(begins, operator(held(3, 3)), lifted)},
		"begins, and admission was away": {story: join(operator(held(0, 4)), operator(held(4, 4)), lifted)},
		"goes on somewhere else":         {story: join(begins, operator(held(2, 3)), operator(held(2, 2)), lifted)},
		"the user's is lost": {
			story: join(begins, operator(setAt(3, holdsAt(4, 3))), operator(setAt(4))), want: []string{"S10 at 4"},
		},
		"a release takes it for theirs": {
			story: join(begins, user(setAt(4, holdsAt(3, 4), image("busybox:2"))), user(setAt(4, image("busybox:2")))), want: []string{"S10 at 4"},
		},
		"cannot be read":              {story: join(begins, user(setAt(4, unreadable)), operator(setAt(4))), want: []string{"S10 at 4"}},
		"not given back":              {story: join(begins, operator(setAt(4))), want: []string{"S10 at 3"}},
		"not given back by admission": {story: join(begins, user(setAt(4))), want: []string{"S10 at 3"}},
		"a user sets a value":         {story: join(begins, user(setAt(2)))},
		"a user had set it":           {story: join(begins, user(held(2, 4)), operator(setAt(2)))},
		"a user turns to OnDelete":    {story: join(begins, user(onDelete))},
		"halted":                      {story: join(begins, operator(setAt(math.MaxInt32, halted)))},
		"halted, and the user's is lost": {
			story: join(begins, operator(setAt(math.MaxInt32, halted, annotation(v1alpha1.HaltedFromAnnotation, "4")))), want: []string{"S10 at 3"},
		},
		"halted, and admission was away": {
			story: join(begins, operator(setAt(math.MaxInt32, halted, over)), operator(setAt(math.MaxInt32, halted))),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, play(newWorld(), join(user(makeNamespace(true)), user(setAt(0)), tc.story))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// numberedPod returns a pod of a StatefulSet at a revision, made and Ready at a step. Its UID is
// its name and more.
func numberedPod(name, more, revision string, step int) *corev1.Pod {
	p := wrappers.MakePod("ns", name).UID(types.UID(name+more)).Label(appsv1.ControllerRevisionHashLabelKey, revision).Ready(at(step)).Obj()
	p.CreationTimestamp, p.OwnerReferences = metav1.NewTime(at(step)), ofSet
	return p
}

var ofSet = ofKind("StatefulSet")

// ofKind returns the reference to an owner of a kind.
func ofKind(kind string) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(setAt(0), appsv1.SchemeGroupVersion.WithKind(kind))}
}

// revisionNamed returns a revision of a StatefulSet.
func revisionNamed(name string, of *appsv1.StatefulSet) *appsv1.ControllerRevision {
	d := makeDeployment()
	d.Spec.Template = of.Spec.Template
	r := wrappers.MakeControllerRevision("ns", name).UID(types.UID(name)).OfEarlierBuild(d).Obj()
	r.OwnerReferences = ofSet
	return r
}

func TestPartitionShut(t *testing.T) {
	revision := revisionNamed
	first := setAt(0, image("busybox:0"), label(v1alpha1.VersionLabel, "v0"), annotation(v1alpha1.ReleaseAnnotation, "0"))
	held := func(is, sets int32, more ...func(*appsv1.Deployment)) *appsv1.StatefulSet {
		return setAt(is, append(more, holdsAt(0, sets))...)
	}
	away := func(is int32) *appsv1.StatefulSet {
		text := strings.Replace(annotated(holdsAt(0, 3)), `"set"`, `"was":{"partition":4},"set"`, 1)
		return setAt(is, annotation(v1alpha1.HeldAnnotation, text))
	}
	current := func(index, step int) step { return user(numberedPod(fmt.Sprintf("web-%d", index), "", "second", step)) }
	// The story goes on at step 8.
	begins := []step{
		user(makeNamespace(true)), user(first), user(revision("first", first)), user(numberedPod("web-3", "-0", "first", 0)),
		user(held(4, 4)), user(revision("second", held(4, 4))), operator(makeRelease(running)), current(4, 7),
	}
	pass, waits := operator(verified(1, "web-4")), user(makeNamespace(true))
	lowers, next := operator(held(3, 3)), current(3, 9)
	tests := map[string]struct {
		story []step
		want  []string
	}{
		"verified":     {story: join(pass, lowers, next)},
		"not verified": {story: join(lowers, next), want: []string{"S12 at 9"}},
		"reported once": {
			story: join(lowers, next, gone(next.object), user(numberedPod("web-3", "-2", "second", 11))), want: []string{"S12 at 9"},
		},
		"no pod is made":            {story: join(lowers)},
		"one of the version before": {story: join(lowers, user(numberedPod("web-2", "-0", "first", 9)))},
		"one of the same wave":      {story: join(lowers, user(numberedPod("web-4", "-2", "second", 9)))},
		"verified too late":         {story: join(lowers, pass, next), want: []string{"S12 at 10"}},
		"not made":                  {story: join(gone(numberedPod("web-4", "", "second", 7)), lowers, next), want: []string{"S12 at 10"}},
		"gone a moment ago":         {story: join(pass, gone(numberedPod("web-4", "", "second", 7)), lowers, next)},
		"gone for long": {
			story: join(pass, gone(numberedPod("web-4", "", "second", 7)), waits, lowers, next), want: []string{"S12 at 12"},
		},
		"two at once":        {story: join(pass, operator(held(2, 2)), next), want: []string{"S12 at 10"}},
		"lower than it says": {story: join(pass, operator(held(2, 3)), next), want: []string{"S12 at 10"}},
		"below the user's": {
			story: join(pass, user(setAt(4, holdsAt(3, 4))), operator(setAt(2, holdsAt(3, 2))), current(2, 11)), want: []string{"S10 at 11"},
		},
		"of the only version": {
			story: join(
				gone(numberedPod("web-3", "-0", "first", 0)), gone(revision("first", first)), pass, user(setAt(4, holdsAt(3, 4))),
				operator(setAt(2, holdsAt(3, 2))), current(2, 13),
			),
			want: []string{"S12 at 13"},
		},
		"the next wave too soon":   {story: join(pass, lowers, next, operator(held(2, 2)), current(2, 12)), want: []string{"S12 at 12"}},
		"it ran out":               {story: join(waits, waits, waits, waits, waits, waits, lowers, next)},
		"it had not run out":       {story: join(waits, waits, waits, lowers, next), want: []string{"S12 at 12"}},
		"admission was away":       {story: join(operator(away(4)), operator(away(3)), next), want: []string{"S12 at 10"}},
		"by a user past admission": {story: join(user(held(0, 4)), next)},
		"it is over by then":       {story: join(lowers, operator(setAt(0)), next)},
		"scaled up a moment ago":   {story: join(pass, user(held(4, 4, replicas(7))), operator(held(3, 3, replicas(7))), next)},
		"scaled up": {
			story: join(pass, user(held(4, 4, replicas(7))), waits, operator(held(3, 3, replicas(7))), next), want: []string{"S12 at 12"},
		},
		"scaled down":         {story: join(user(held(4, 4, replicas(3))), operator(held(2, 2, replicas(3))), current(2, 10))},
		"claimed":             {story: join(pass, operator(claim()))},
		"claimed for nothing": {story: join(operator(claim())), want: []string{"S12 at 8"}},
		"claimed with the last wave": {
			story: join(pass, operator(held(0, 0)), current(3, 8), waits, operator(claim())), want: []string{"S12 at 10"},
		},
		"claimed, and it ran out":     {story: join(waits, waits, waits, waits, waits, waits, operator(claim()))},
		"the pods are not one by one": {story: join(gone(numberedPod("web-3", "-0", "first", 0)), gone(numberedPod("web-4", "", "second", 7)))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, play(newWorld(), join(begins, tc.story))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestServingOfSet: the last of five pods of a StatefulSet is replaced and verified.
func TestServingOfSet(t *testing.T) {
	first := setAt(0, image("busybox:0"), label(v1alpha1.VersionLabel, "v0"), annotation(v1alpha1.ReleaseAnnotation, "0"))
	held := func(is int32, change ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
		s := setAt(is, holdsAt(0, is))
		for _, c := range change {
			c(s)
		}
		return s
	}
	parallel := func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }
	two := func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(2))
	}
	old := func(index int) *corev1.Pod { return numberedPod(fmt.Sprint("web-", index), "-0", "first", 0) }
	current := numberedPod("web-4", "", "second", 10)
	begins := []step{
		user(makeNamespace(true)), user(first), user(revisionNamed("first", first)), user(old(0)), user(old(1)), user(old(2)), user(old(3)),
		user(held(4)), user(revisionNamed("second", held(4))), operator(makeRelease(running)), user(current), operator(verified(1, "web-4")),
	}
	lowers, takes := operator(held(3)), gone(old(3))
	for name, tc := range map[string]struct {
		story []step
		want  []string
	}{
		"the next one":                {story: join(lowers, takes)},
		"another does not serve":      {story: join(user(unready(old(1))), idle(2), lowers, takes), want: []string{"S10 at 16"}},
		"the new one does not serve":  {story: join(user(unready(current.DeepCopy())), idle(2), lowers, takes), want: []string{"S10 at 16"}},
		"it ceased to just now":       {story: join(lowers, user(unready(old(1))), takes)},
		"it does not serve itself":    {story: join(user(unready(old(3))), user(unready(old(1))), idle(2), lowers, takes)},
		"another is not made":         {story: join(gone(old(1)), idle(2), lowers, takes), want: []string{"S10 at 16"}},
		"another is removed just now": {story: join(lowers, gone(old(1)), takes)},
		"two may be replaced":         {story: join(user(unready(old(1))), user(held(4, two)), idle(1), operator(held(3, two)), takes)},
		"all at once":                 {story: join(user(unready(old(1))), user(held(4, parallel)), idle(1), operator(held(3, parallel)), takes)},
		"below the partition":         {story: join(user(unready(old(1))), idle(2), lowers, gone(old(2)))},
		"scaled up just now":          {story: join(user(held(3, func(s *appsv1.StatefulSet) { s.Spec.Replicas = new(int32(7)) })), takes)},
		"it is held no longer":        {story: join(user(unready(old(1))), idle(2), operator(setAt(0)), takes)},
		"in its time": {
			story: join(user(unready(old(1))), idle(2), lowers, user(going(old(3))), takes), want: []string{"S10 at 16"},
		},
		"of the same version": {story: join(user(unready(old(1))), idle(2), lowers, gone(current))},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, play(newWorld(), join(begins, tc.story))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

// TestIndexOf: the numbers of pods may start from another number than 0.
func TestIndexOf(t *testing.T) {
	s := setAt(0)
	for start, want := range map[int32]int32{0: 7, 5: 2} {
		s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: start}
		if got := indexOf("web-7", likeStatefulSet(s)); got != want {
			t.Errorf("indexOf() = %d, want %d", got, want)
		}
	}
}
