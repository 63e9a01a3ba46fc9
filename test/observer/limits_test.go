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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// idle returns steps at which nothing happens.
func idle(steps int) []step {
	return slices.Repeat([]step{{does: func(*world, time.Time) {}}}, steps)
}

// begun returns the world and the beginning of a story about limits.
func begun(story []step) (*world, []step) {
	w := newWorld()
	w.limits.own = "operator"
	return w, append([]step{user(makeNamespace(true)), user(makeDeployment(left)), user(makeReplicaSet("d"))}, story...)
}

func checkStory(t *testing.T, w *world, story []step, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, play(w, story)); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
}

func TestHasty(t *testing.T) {
	// pod is a pod of the current release; it finished if it was ever Ready.
	pod := func(name, node string, ready time.Time) step {
		p := makePod(name, ready)
		if p.Spec.NodeName = node; ready.IsZero() {
			p.Status.Conditions = nil
		} else {
			metav1.SetMetaDataLabel(&p.ObjectMeta, v1alpha1.OperateFinishedLabel, "1")
		}
		return user(p)
	}
	unmarked := pod("p1", "n1", epoch)
	unmarked.object.SetLabels(nil)
	withSidecar := makePod("p1", epoch)
	withSidecar.Spec.NodeName = "n1"
	metav1.SetMetaDataLabel(&withSidecar.ObjectMeta, v1alpha1.OperateFinishedLabel, "1")
	withSidecar.Status.InitContainerStatuses = []corev1.ContainerStatus{
		{RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
	}
	sidecar := user(withSidecar)
	long, hangs := epoch.Add(-time.Hour), time.Time{}
	because := func(cause string) step {
		reasons := `{"v2":{"cause":"` + cause + `","release":7,"to":"v1"}}`
		return operator(makeDeployment(back, annotation(v1alpha1.QuarantineReasonAnnotation, reasons)))
	}
	more := makeReplicaSet("d")
	more.Spec.Replicas = new(int32(5))
	less := user(wrappers.MakeOpsConfigInfo("operator", "rollback", v1alpha1.TypeRollback).UID("s").On("slow=5m,after=30s").Obj())
	never := because(v1alpha1.ReasonNeverStarted)
	failed := operator(makeDeployment(back, annotation(v1alpha1.QuarantineReasonAnnotation,
		`{"v2":{"cause":"VerificationFailed","container":"main","release":7,"to":"v1"}}`)))
	for name, tc := range map[string]struct {
		story []step
		want  []string
	}{
		"no pod came up": {story: []step{pod("p1", "n1", hangs), pod("p2", "n2", hangs), never}},
		"one came up just now": {
			story: []step{pod("p1", "n1", epoch), pod("p2", "n2", hangs), pod("p3", "n3", hangs), never}, want: []string{"S9 at 6"},
		},
		"its sidecar crashes":      {story: []step{sidecar, pod("p2", "n2", hangs), never}},
		"one came up a moment ago": {story: []step{pod("p1", "n1", at(5)), pod("p2", "n2", hangs), never}},
		"one came up long ago":     {story: []step{pod("p1", "n1", long), pod("p2", "n2", hangs), pod("p3", "n1", hangs), never}},
		"one has not finished":     {story: []step{unmarked, pod("p2", "n2", hangs), never}},
		"a user requested it":      {story: []step{pod("p1", "n1", epoch), because(v1alpha1.ReasonRollbackRequested)}},
		"its verification failed":  {story: []step{pod("p1", "n1", epoch), because(v1alpha1.ReasonVerificationFailed)}},
		"it failed, too": {
			story: []step{pod("p1", "n1", epoch), pod("p2", "n2", hangs), failed}, want: []string{"S9 at 5", "S9 at 5"},
		},
		"less is waited for": {story: []step{less, pod("p1", "n1", epoch), pod("p2", "n2", hangs), pod("p3", "n3", hangs), never}},
		"one node": {
			story: []step{pod("p1", "n1", long), pod("p2", "n2", hangs), pod("p3", "n2", hangs), never}, want: []string{"S9 at 6"},
		},
		"two nodes":                 {story: []step{pod("p1", "n1", long), pod("p2", "n2", hangs), pod("p3", "n3", hangs), never}},
		"the only node":             {story: []step{pod("p1", "n1", long), pod("p2", "n1", hangs), never}},
		"no node":                   {story: []step{pod("p1", "n1", long), pod("p2", "", hangs), never}},
		"one node, more to be made": {story: []step{user(more), pod("p1", "n1", long), pod("p2", "n2", hangs), never}},
	} {
		t.Run(name, func(t *testing.T) {
			w, story := begun(tc.story)
			checkStory(t, w, story, tc.want)
		})
	}
}

// TestHastyOfSets checks a StatefulSet of three pods, and a DaemonSet on three nodes.
func TestHastyOfSets(t *testing.T) {
	set, setBack := setAt(0, left, replicas(3)), setAt(0, back, replicas(3))
	daemon := func(like *appsv1.StatefulSet) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: like.ObjectMeta, Spec: appsv1.DaemonSetSpec{Template: like.Spec.Template}}
		d.Status.DesiredNumberScheduled = 3
		return d
	}
	daemonRevision := func(name string, of *appsv1.StatefulSet) step {
		r := revisionNamed(name, of)
		r.OwnerReferences = ofKind("DaemonSet")
		metav1.SetMetaDataLabel(&r.ObjectMeta, appsv1.ControllerRevisionHashLabelKey, name)
		return user(r)
	}
	for kind, all := range map[string]struct {
		begins []step
		back   step
	}{
		"StatefulSet": {[]step{user(set), user(revisionNamed("first", setBack)), user(revisionNamed("second", set))}, operator(setBack)},
		"DaemonSet":   {[]step{user(daemon(set)), daemonRevision("first", setBack), daemonRevision("second", set)}, operator(daemon(setBack))},
	} {
		pod := func(index int, revision, node string, ready time.Time) step {
			p := numberedPod(fmt.Sprint("web-", index), "", revision, 0)
			p.Spec.NodeName, p.OwnerReferences = node, ofKind(kind)
			if p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(ready); ready.IsZero() {
				p.Status.Conditions = nil
			} else {
				metav1.SetMetaDataLabel(&p.ObjectMeta, v1alpha1.OperateFinishedLabel, "1")
			}
			return user(p)
		}
		long, hangs := epoch.Add(-time.Hour), time.Time{}
		old := pod(0, "first", "n3", long)
		for name, tc := range map[string]struct {
			story []step
			want  []string
		}{
			"no pod came up": {story: []step{old, pod(1, "second", "n1", hangs), pod(2, "second", "n2", hangs)}},
			"one came up just now": {
				story: []step{old, pod(1, "second", "n1", epoch), pod(2, "second", "n2", hangs)}, want: []string{"S9 at 7", "S9 at 7"},
			},
			"one node":               {story: []step{old, pod(1, "second", "n1", hangs), pod(2, "second", "n2", long)}, want: []string{"S9 at 7"}},
			"the only node":          {story: []step{old, pod(1, "second", "n2", hangs), pod(2, "second", "n2", long)}},
			"one pod is not made":    {story: []step{user(makeNamespace(true)), pod(1, "second", "n1", hangs), pod(2, "second", "n2", long)}},
			"two nodes":              {story: []step{pod(0, "second", "n3", hangs), pod(1, "second", "n1", hangs), pod(2, "second", "n2", long)}},
			"one of another version": {story: []step{old, pod(1, "second", "n1", hangs), pod(2, "first", "n2", long)}},
		} {
			t.Run(kind+": "+name, func(t *testing.T) {
				story := slices.Concat([]step{user(makeNamespace(true))}, all.begins, tc.story, []step{all.back})
				checkStory(t, newWorld(), story, tc.want)
			})
		}
	}
}

func TestRollbackLimit(t *testing.T) {
	// rolledBack takes two steps for each workload.
	rolledBack := func(namespace string, workloads ...string) (story []step) {
		for _, name := range workloads {
			of := func(d *appsv1.Deployment) { d.Namespace, d.Name, d.UID = namespace, name, types.UID(name) }
			story = append(story, user(makeDeployment(left, of)), operator(makeDeployment(back, of)))
		}
		return story
	}
	setting := func(namespace string, o *wrappers.OpsConfigInfoWrapper) step {
		setting := o.Obj()
		setting.Namespace = namespace
		return user(setting)
	}
	limit := func() *wrappers.OpsConfigInfoWrapper {
		return wrappers.MakeOpsConfigInfo("operator", "limit", v1alpha1.TypeLimit).UID("s")
	}
	for name, tc := range map[string]struct {
		story []step
		want  []string
	}{
		"half of one namespace": {story: rolledBack("ns", "a", "b", "c")},
		"more of one namespace": {story: rolledBack("ns", "a", "b", "c", "e"), want: []string{"S9 at 10"}},
		"all of two namespaces": {story: slices.Concat(rolledBack("ns", "a", "b", "c"), rolledBack("other", "e", "f"))},
		"more of two namespaces": {
			story: slices.Concat(rolledBack("ns", "a", "b", "c"), rolledBack("other", "e", "f", "g")), want: []string{"S9 at 14"},
		},
		"one workload":        {story: rolledBack("ns", "a", "a", "a", "a", "a", "a")},
		"one after the other": {story: slices.Concat(rolledBack("ns", "a", "b", "c"), idle(60), rolledBack("ns", "e", "f", "g"))},
		"more are allowed":    {story: append([]step{setting("operator", limit().On("8/10m"))}, rolledBack("ns", "a", "b", "c", "e")...)},
		"fewer are in force": {
			story: append([]step{setting("operator", limit().On("8/10m").InForce(true, "1/10m"))}, rolledBack("ns", "a", "b")...),
			want:  []string{"S9 at 7"},
		},
		"off": {story: append([]step{setting("operator", limit().Off("1/10m"))}, rolledBack("ns", "a", "b", "c", "e")...)},
		"of another namespace": {
			story: append([]step{setting("ns", limit().On("8/10m"))}, rolledBack("ns", "a", "b", "c", "e")...), want: []string{"S9 at 11"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, story := begun(tc.story)
			checkStory(t, w, story, tc.want)
		})
	}
}

func TestPrintable(t *testing.T) {
	deployment := func(patch string) Request {
		return Request{Verb: "patch", Resource: "deployments", Namespace: "ns", Name: "web", body: []byte(patch)}
	}
	status := func(text string) Request {
		return Request{
			Verb: "update", Resource: "changeworkloads", Subresource: "status", Namespace: "ns", Name: "web--x--v1", body: []byte(text),
		}
	}
	event := Request{Verb: "create", Resource: "events", Namespace: "ns"}
	bell := event
	bell.body = []byte(`{"note":"\u0007"}`)
	for name, tc := range map[string]struct {
		request Request
		want    []string
	}{
		"plain":                   {request: status(`{"status":{"conditions":[{"message":"1 < 2 & \"ü\"\n\tx"}]}}`)},
		"an escape sequence":      {request: status(`{"status":{"conditions":[{"message":"\u001b[31m"}]}}`), want: []string{"S13 at 3"}},
		"C1":                      {request: status("{\"status\":{\"message\":\"\u009b31m\"}}"), want: []string{"S13 at 3"}},
		"a carriage return":       {request: status(`{"status":{"message":"a\rb"}}`), want: []string{"S13 at 3"}},
		"text from right to left": {request: status("{\"status\":{\"message\":\"\u202e\"}}"), want: []string{"S13 at 3"}},
		"an annotation of a user": {request: status(`{"metadata":{"annotations":{"x":"\u001b"}},"status":{}}`)},
		"an event":                {request: bell, want: []string{"S13 at 3"}},
		"JSON in an annotation": {
			request: deployment(`[{"op":"add","path":"/metadata/annotations/x","value":"{\"message\":\"\\u001b\"}"}]`), want: []string{"S13 at 3"},
		},
		"a command":        {request: status(`{"status":{"message":"with kubectl delete pod 'x' -n ns"}}`)},
		"an unquoted word": {request: status(`{"status":{"message":"with kubectl delete pod $x -n ns"}}`), want: []string{"S13 at 3"}},
		"a template":       {request: deployment(`[{"op":"replace","path":"/spec/template","value":{"x":"\u001b"}}]`)},
		"the annotation of kubectl apply": {
			request: deployment(`[{"op":"add","path":"/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration","value":"\u001b"}]`),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, story := begun([]step{sent(tc.request)})
			checkStory(t, w, story, tc.want)
		})
	}
	if got := NewJudge("operator").Text("ns", "web", "\u202e"); len(got) != 1 || got[0].Invariant != Printable {
		t.Errorf("Text() = %v", got)
	}
}

// TestUnquoted: each word of a command is plain or quoted.
func TestUnquoted(t *testing.T) {
	for text, fine := range map[string]bool{
		"no command at all; $(x)":  true,
		"kubectl get pods -n shop": true,
		"To go back: kubectl annotate deployment web x/y=z --overwrite -n shop.":    true,
		"kubectl label deployment web x- -n shop && kubectl label web x=y -n shop;": true,
		"with kubectl patch web -p '{\"spec\":{}}' -n shop; or wait":                true,
		`kubectl patch web -p 'it'\''s' -n shop (or wait)`:                          true,
		"Look at the node: kubectl describe node. It's gone":                        true,
		"(kubectl get pods -n shop)":                                                true,
		"kubectl patch web -p {\"spec\":{}} -n shop":                                false,
		"kubectl delete pod $(x) -n shop":                                           false,
		"kubectl delete pod `x` -n shop":                                            false,
		"kubectl delete pod web;reboot -n shop":                                     false,
		"kubectl delete pod web; reboot -n shop":                                    false,
		"kubectl delete pod web -n shop;reboot":                                     false,
		"kubectl delete pod web -n shop and kubectl delete pod a&b":                 false,
		"kubectl delete pod 'web -n shop":                                           false,
		"kubectl patch web -p '{\"spec\": …":                                        true,
		"kubectl delete pod web*":                                                   false,
		"kubectl delete pod web > x":                                                false,
	} {
		if why := unquoted(text); (why == "") != fine {
			t.Errorf("unquoted(%s) = %q, want fine: %v", text, why, fine)
		}
	}
	if got := NewJudge("operator").Text("ns", "web", "kubectl delete pod $x"); len(got) != 1 || got[0].Invariant != Printable {
		t.Errorf("Text() = %v", got)
	}
}

func TestLimits(t *testing.T) {
	since := epoch.Unix()
	submitted := func(b *v1alpha1.ChangePod) {
		b.Status.Status, b.Status.PreSubmitTimeUnix, b.Status.PreTimeoutThreshold = v1alpha1.ChangePodPreSubmitted, since, 20
	}
	waiting := func(b *v1alpha1.ChangePod) {
		b.Status.Status, b.Status.PreSubmitTimeUnix = v1alpha1.ChangePodPreWait, since
	}
	checked := func(phase v1alpha1.CheckPhase) func(*v1alpha1.ChangeWorkload) {
		return func(c *v1alpha1.ChangeWorkload) {
			c.Status.Checks = []v1alpha1.CheckStatus{{
				Name: "x", Type: "probe", Phase: phase, StartTime: &metav1.Time{Time: epoch}, Deadline: &metav1.Time{Time: at(2)},
			}}
		}
	}
	answered := func(b *v1alpha1.ChangePod) {
		submitted(b)
		b.Status.Checks = []v1alpha1.CheckStatus{{Name: "altershield", Phase: v1alpha1.CheckPassed, CompletionTime: &metav1.Time{Time: at(1)}}}
	}
	goes := func(o client.Object) client.Object {
		o.SetDeletionTimestamp(&metav1.Time{Time: epoch})
		return o
	}
	policy := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "p"}}
	stays := makeDeployment(left, func(d *appsv1.Deployment) { d.Finalizers = []string{"altershield.example/x"} })
	mark := sent(Request{Verb: "patch", Resource: "pods", Namespace: "ns", Name: "p1", body: []byte(finishedPatch)})
	many := slices.Repeat([]step{mark}, maxWrites+maxWritesOfPod)
	pod := user(makePod("p1", epoch))
	marked := makePod("p1", epoch)
	marked.Labels = map[string]string{v1alpha1.OperateFinishedLabel: "1"}
	stops, starts := step{does: (*world).operatorStops}, step{does: (*world).operatorStarts}
	noted := func(by func(client.Object) step, bytes int) []step {
		return []step{by(makeDeployment(left, annotation(v1alpha1.QuarantineReasonAnnotation, strings.Repeat("x", bytes))))}
	}
	sends := func(resource string) []step {
		return []step{sent(Request{Verb: "create", Resource: resource, Namespace: "ns", body: make([]byte, maxRequest+1)})}
	}
	begins := []step{operator(makeRelease(running))}
	// quiet is a batch whose POST check ended without a verdict.
	quiet := func(result string, by ...string) func(*v1alpha1.ChangePod) {
		message := "no POST verdict came within 20s: the pods fail, as " + append(by, "the setting silence")[0] + " says"
		return func(b *v1alpha1.ChangePod) {
			done(result)(b)
			b.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.ConditionChecked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoVerdict, Message: message,
			}}
		}
	}
	silently := func(result string, before ...[]step) []step {
		return join(begins, slices.Concat(before...), operator(makeBatch(submitted)), operator(makeBatch(quiet(result))))
	}
	silence := func(namespace string) *wrappers.OpsConfigInfoWrapper {
		return wrappers.MakeOpsConfigInfo(namespace, "silence", v1alpha1.TypeSilence).UID(types.UID(namespace))
	}
	failing := []step{user(silence("operator").On("").Obj())}
	again := silence("operator").On("").Obj()
	again.Generation = 2
	changed := []step{user(again)}
	passing := []step{user(silence("ns").Off("").Obj())}
	own := []step{user(makeDeployment(left, annotation(v1alpha1.SettingAnnotationPrefix+"silence", "disabled")))}
	for name, tc := range map[string]struct {
		story []step
		want  []string
	}{
		"S11: annotations":          {story: noted(operator, maxOwnBytes-1)},
		"S11: too many annotations": {story: noted(operator, maxOwnBytes+1), want: []string{"S11 at 3"}},
		"S11: a user's":             {story: noted(user, maxOwnBytes+1)},
		"S11: a large batch":        {story: sends("changepods"), want: []string{"S11 at 3"}},
		"S11: a large template":     {story: sends("controllerrevisions")},
		"L2: a check ends in time": {
			story: slices.Concat(begins, []step{operator(makeBatch(submitted))}, idle(3), []step{operator(makeBatch(done()))}),
		},
		"L2: a check ends late": {
			story: slices.Concat(begins, []step{operator(makeBatch(submitted))}, idle(5), []step{operator(makeBatch(done()))}),
			want:  []string{"L2 at 10"},
		},
		"L2: a policy's check goes on": {
			story: slices.Concat(begins, []step{operator(makeBatch(answered))}, idle(5), []step{operator(makeBatch(done()))}),
		},
		"L2: a user ends it": {story: slices.Concat(begins, []step{operator(makeBatch(submitted))}, idle(5), []step{user(makeBatch(done()))})},
		"L2: by the default": {story: slices.Concat(begins, []step{operator(makeBatch(waiting))}, idle(12), []step{operator(makeBatch(done()))})},
		"L2: later than by the default": {
			story: slices.Concat(begins, []step{operator(makeBatch(waiting))}, idle(17), []step{operator(makeBatch(done()))}),
			want:  []string{"L2 at 22"},
		},
		"L2: no replica ran": {
			story: slices.Concat(begins, []step{operator(makeBatch(submitted)), stops}, idle(9), []step{starts, operator(makeBatch(done()))}),
		},
		"L2: opted in again": {
			story: slices.Concat(
				begins, []step{operator(makeBatch(submitted)), user(makeDeployment(label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)))}, idle(9),
				[]step{user(makeDeployment(left)), operator(makeBatch(done()))},
			),
		},
		"L2: a check of a release": {
			story: slices.Concat(
				[]step{operator(makeRelease(running, checked(v1alpha1.CheckRunning)))}, idle(9),
				[]step{operator(makeRelease(running, checked(v1alpha1.CheckError)))},
			),
			want: []string{"L2 at 13"},
		},
		"L2: in the background": {
			story: slices.Concat(
				[]step{operator(makeRelease(running, checked(v1alpha1.CheckWatching)))}, idle(9),
				[]step{operator(makeRelease(running, checked(v1alpha1.CheckError)))},
			),
		},
		"L2: silence passes":               {story: silently("none")},
		"L2: it passes, and the pod fails": {story: silently("inconclusive"), want: []string{"L2 at 5"}},
		"L2: silence fails":                {story: silently("inconclusive", failing)},
		"L2: it fails, and the pod passes": {story: silently("none", failing), want: []string{"L2 at 6"}},
		"L2: the setting changed just now": {
			story: join(begins, operator(makeBatch(submitted)), failing, changed, operator(makeBatch(quiet("none")))),
		},
		"L2: it fails in other namespaces": {story: silently("none", failing, passing)},
		"L2: a workload has its own":       {story: silently("none", failing, own)},
		"L2: a policy says that it fails":  {story: join(begins, operator(makeBatch(quiet("inconclusive", "the check x"))))},
		"L2: the end is read again": {
			story: join(begins, operator(makeBatch(quiet("none"))), failing, operator(makeBatch(quiet("none")))),
		},
		"L3: as many writes as pods need": {story: slices.Concat([]step{pod}, many)},
		"L3: one more": {
			story: slices.Concat([]step{pod}, many, []step{mark}), want: []string{fmt.Sprint("L3 at ", len(many)+4)},
		},
		"L3: the pod changes": {story: slices.Concat([]step{pod}, many, []step{user(makePod("p1", at(1))), mark})},
		"L3: the pod is only marked": {
			story: slices.Concat([]step{pod}, many, []step{{object: marked}, mark}), want: []string{fmt.Sprint("L3 at ", len(many)+5)},
		},
		"L3: the operator changes the rest": {
			story: slices.Concat(begins, []step{pod}, many, []step{operator(makeRelease(success, updated(0))), mark}),
			want:  []string{fmt.Sprint("L3 at ", len(many)+6)},
		},
		"L3: a user corrects a batch": {
			story: slices.Concat(begins, []step{pod, operator(makeBatch(done()))}, many, []step{user(makeBatch(done("pass"))), mark}),
		},
		"L3: a user changes a setting": {
			story: slices.Concat(
				[]step{pod}, many, []step{user(wrappers.MakeOpsConfigInfo("ns", "branch", v1alpha1.TypeBranch).UID("s").Obj()), mark},
			),
		},
		"L4: a release goes": {
			story: slices.Concat(begins, []step{user(goes(makeRelease(running)))}, idle(10), []step{gone(makeRelease(running))}),
		},
		"L4: a release stays for long": {
			story: slices.Concat(begins, []step{user(goes(makeRelease(running)))}, idle(13), []step{gone(makeRelease(running))}),
			want:  []string{"L4 at 18"},
		},
		"L4: a policy stays for long": {story: join(user(goes(policy.DeepCopy())), idle(13), gone(policy)), want: []string{"L4 at 17"}},
		"L4: a workload goes": {
			story: slices.Concat([]step{user(goes(makeDeployment(left)))}, idle(13), []step{gone(makeDeployment(left))}),
		},
		"L4: a workload is kept": {
			story: slices.Concat([]step{user(stays), user(goes(stays.DeepCopy()))}, idle(13), []step{gone(stays)}), want: []string{"L4 at 18"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, story := begun(tc.story)
			checkStory(t, w, story, tc.want)
		})
	}
}

func TestUnbounded(t *testing.T) {
	release := func(number int, state v1alpha1.ChangeWorkloadStatusType, change ...func(*v1alpha1.ChangeWorkload)) step {
		name := func(c *v1alpha1.ChangeWorkload) {
			c.Name, c.UID = fmt.Sprint("c", number), types.UID(fmt.Sprint("c", number))
		}
		return operator(makeRelease(state, append(change, name)...))
	}
	version := func(number int) step {
		name := fmt.Sprint("r", number)
		return operator(wrappers.MakeControllerRevision("ns", name).UID(types.UID(name)).Of(makeDeployment()).Obj())
	}
	batch := func(number int, change ...func(*v1alpha1.ChangePod)) step {
		empty := func(b *v1alpha1.ChangePod) { b.Spec.PodInfos = nil }
		return operator(makeBatch(append([]func(*v1alpha1.ChangePod){numbered(number), empty}, change...)...))
	}
	times := func(n int, one func(int) step) (story []step) {
		for number := range n {
			story = append(story, one(number+1))
		}
		return story
	}
	waiting := func(b *v1alpha1.ChangePod) {
		b.Status.Status, b.Status.PreSubmitTimeUnix = v1alpha1.ChangePodPreWait, epoch.Unix()
	}
	success := func(number int) step { return release(number, v1alpha1.ChangeWorkloadSuccess) }
	one := []step{operator(makeRelease(v1alpha1.ChangeWorkloadSuccess)), user(makeReplicaSet("d")), user(makePod("p1", epoch))}
	fails := func(b *v1alpha1.ChangePod) {
		b.Spec.PodInfos = []v1alpha1.PodInfo{{Pod: "p1", UID: "p1"}}
		b.Spec.Attempt, b.Spec.Release = numberOf(b.Name), int64(numberOf(b.Name))
		done("fail")(b)
	}
	keep := func(content string) step {
		return user(wrappers.MakeOpsConfigInfo("operator", "history", v1alpha1.TypeHistory).UID("s").On(content).Obj())
	}
	goes := makePod("p1", epoch)
	goes.DeletionTimestamp, goes.Finalizers = &metav1.Time{Time: epoch}, []string{"altershield.example/x"}
	for name, tc := range map[string]struct {
		story []step
		where string
		want  int
	}{
		"releases":          {story: times(maxRecords, success)},
		"too many releases": {story: times(maxRecords+1, success), want: 1},
		"versions":          {story: slices.Concat(one, times(maxHistory, version))},
		"too many versions": {story: slices.Concat(one, times(maxHistory+1, version)), want: 1},
		"fewer are kept":    {story: slices.Concat(one, []step{keep("2")}, times(3, version)), want: 1},
		"fewer are kept elsewhere": {story: slices.Concat(one, []step{
			user(wrappers.MakeOpsConfigInfo("other", "history", v1alpha1.TypeHistory).UID("s").On("2").Obj()),
		}, times(3, version))},
		"fewer are kept now":                 {story: slices.Concat(one, []step{keep("3"), keep("2")}, times(3, version))},
		"batches":                            {story: slices.Concat(one, times(maxBatches+1, func(n int) step { return batch(n) }))},
		"too many batches":                   {story: slices.Concat(one, times(maxBatches+2, func(n int) step { return batch(n) })), want: 1},
		"too many, which failed":             {story: slices.Concat(one, times(maxBatches+2, func(n int) step { return batch(n, fails) }))},
		"a batch that waits":                 {story: slices.Concat(one, []step{batch(1, waiting)}), want: 1},
		"of a canceled release":              {story: []step{operator(makeRelease(v1alpha1.ChangeWorkloadCanceled)), batch(1, waiting)}},
		"of a workload that is not defended": {story: slices.Concat(one, []step{batch(1, waiting), user(makeNamespace(false))})},
		"a pod that stays":                   {story: []step{user(goes)}, want: 1},
		"elsewhere":                          {story: []step{user(goes)}, where: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.limits.own = "operator"
			play(w, append([]step{user(makeNamespace(true)), user(makeDeployment()), user(&corev1.Pod{})}, tc.story...))
			if tc.where == "" {
				tc.where = "ns"
			}
			if got := w.unbounded([]string{tc.where}, at(1000)); len(got) != tc.want {
				t.Errorf("unbounded() = %q, want %d", got, tc.want)
			}
		})
	}
}
