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
	"strconv"
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

// epoch is the start of a story; its steps are ten seconds apart.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(step int) time.Time { return epoch.Add(time.Duration(step) * 10 * time.Second) }

// step is the write of an object, its end, or a request of the operator without a version.
type step struct {
	object  client.Object
	by      Writer
	gone    bool
	listed  bool
	request *Request
	// does happens outside of the API server.
	does func(w *world, now time.Time)
}

func operator(o client.Object) step { return step{object: o, by: Operator} }
func user(o client.Object) step     { return step{object: o, by: Other} }
func gone(o client.Object) step     { return step{object: o, gone: true} }
func sent(r Request) step           { return step{request: &r} }

func kindOf(o client.Object) string {
	if kind := kindOfObject(o); kind != "" {
		return kind
	}
	panic(fmt.Sprintf("%T", o))
}

// play applies a story, each step a resource version from 1 on, and returns the violated invariants
// with their steps.
func play(w *world, story []step) (found []string) {
	for i, s := range story {
		rv := uint64(i) + 1
		var violations []Violation
		switch {
		case s.does != nil:
			s.does(w, at(i))
		case s.request != nil:
			s.request.Received, s.request.Code = at(i), max(s.request.Code, 200)
			violations = w.checkRequest(s.request, "operator")
		default:
			o, ok := s.object.DeepCopyObject().(client.Object)
			if !ok {
				panic("a copy is of another type")
			}
			o.SetResourceVersion(strconv.FormatUint(rv, 10))
			violations = w.apply(newEvent(kindOf(o), rv, at(i), o, s.gone, s.listed), s.by)
		}
		for _, v := range violations {
			found = append(found, fmt.Sprintf("%s at %d", v.Invariant, i))
		}
	}
	return found
}

func makeNamespace(enrolled bool) *corev1.Namespace {
	ns := wrappers.MakeNamespace("ns").UID("ns")
	if enrolled {
		ns.Enrolled()
	}
	return ns.Obj()
}

// makeReplicaSet returns a ReplicaSet of the Deployment of a UID, at the template of web.
func makeReplicaSet(owner types.UID, change ...func(*appsv1.Deployment)) *appsv1.ReplicaSet {
	d := makeDeployment(change...)
	d.UID = owner
	return wrappers.MakeReplicaSet("ns", "web-1").UID("rs").Of(d).Obj()
}

func makePod(name string, ready time.Time) *corev1.Pod {
	return wrappers.MakePod("ns", name).UID(types.UID(name)).Of(makeReplicaSet("d")).Ready(ready).Obj()
}

func numbered(n int) func(*v1alpha1.ChangePod) {
	return func(b *v1alpha1.ChangePod) {
		b.Name = fmt.Sprintf("web--x--v1--x--%d", n)
		b.UID = types.UID(fmt.Sprintf("b%d", n))
	}
}

func ofAttempt(n int32, release int64) func(*v1alpha1.ChangePod) {
	return func(b *v1alpha1.ChangePod) { b.Spec.Attempt, b.Spec.Release = n, release }
}

const (
	running = v1alpha1.ChangeWorkloadRunning
	success = v1alpha1.ChangeWorkloadSuccess
	suspend = v1alpha1.ChangeWorkloadSuspend
)

// updated sets when a status was written, as a step.
func updated(step int) func(*v1alpha1.ChangeWorkload) {
	return func(c *v1alpha1.ChangeWorkload) { c.Status.UpdateTimeUnix = at(step).Unix() }
}

func unclaimed(verdict string, ofOrder bool) func(*v1alpha1.ChangeWorkload) {
	return func(c *v1alpha1.ChangeWorkload) {
		c.Status.UnclaimedVerdicts = []v1alpha1.UnclaimedVerdict{{
			CheckVerdict: v1alpha1.CheckVerdict{NodeID: "node", Verdict: verdict, Delivered: verdict}, Stage: v1alpha1.StagePost, OfOrder: ofOrder,
		}}
	}
}

func TestWorld(t *testing.T) {
	blocked := func(by string) *appsv1.Deployment {
		return makeDeployment(suspended, annotation(v1alpha1.SuspendedByAnnotation, by))
	}
	optOut := label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)
	stuck := user(unready(makePod("p1", epoch)))
	orderFails := func(c *v1alpha1.ChangeWorkload) { c.Status.OrderPreVerdict = verdict("fail") }
	// start is an enrolled namespace with a Deployment, a ready pod and a release; the story goes
	// on at step 5.
	start := []step{
		user(makeNamespace(true)), user(makeDeployment()), user(makeReplicaSet("d")), user(makePod("p1", epoch)),
		operator(makeRelease(running)),
	}
	marks := sent(Request{Verb: "patch", Resource: "pods", Namespace: "ns", Name: "p1", body: []byte(finishedPatch)})
	evicts := func(options string) step {
		return sent(Request{
			Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "ns", Name: "p1",
			body: []byte(`{"deleteOptions":{` + options + `}}`),
		})
	}
	tests := map[string]struct {
		story []step
		alone bool
		want  []string
	}{
		"a release that passes": {
			story: []step{operator(makeBatch()), operator(makeBatch(done("none"))), operator(makeRelease(success, updated(7)))},
		},

		"S2: a pod fails, suspended, blocked": {
			story: []step{operator(makeBatch()), user(makeBatch(done("fail"))), operator(blocked("v1 1")), operator(makeRelease(suspend))},
		},
		"S2: suspended for nothing": {
			story: []step{operator(makeBatch(done("none"))), operator(makeRelease(suspend))}, want: []string{"S2 at 6"},
		},
		"S2: blocked for nothing": {story: []step{operator(makeBatch(done("none"))), operator(blocked("v1 1"))}, want: []string{"S2 at 6"}},
		"S2: a user blocks":       {story: []step{user(makeDeployment(suspended))}},
		"S2: blocked because of a version it is not at": {
			story: []step{user(makeBatch(done("fail"))), operator(blocked("v0 1"))}, want: []string{"S2 at 6"},
		},
		"S2: blocked because of a release it is not at": {
			story: []step{user(makeBatch(done("fail"))), operator(blocked("v1 2"))}, want: []string{"S2 at 6"},
		},
		"S2: blocked because of a workload of the same name": {
			story: []step{
				user(makeBatch(done("fail"))),
				operator(makeRelease(suspend, func(c *v1alpha1.ChangeWorkload) { c.OwnerReferences[0].UID = "earlier" })), operator(blocked("v1 1")),
			},
			want: []string{"S2 at 7"},
		},
		"S2: a batch of an earlier attempt fails": {
			story: []step{
				operator(makeRelease(success)), operator(makeBatch(done("none"))), operator(makeRelease(running, attempt(2, 2))),
				user(makeBatch(done("fail"))), operator(makeRelease(suspend, attempt(2, 2))),
			},
			want: []string{"S2 at 9"},
		},
		"S2: blocked because a batch of an earlier attempt fails": {
			story: []step{
				operator(makeBatch(done("none"))), operator(makeRelease(running, attempt(2, 2))), user(makeBatch(done("fail"))),
				operator(makeDeployment(annotation(v1alpha1.ReleaseAnnotation, "2"))),
				operator(makeDeployment(annotation(v1alpha1.ReleaseAnnotation, "2"), suspended, annotation(v1alpha1.SuspendedByAnnotation, "v1 2"))),
			},
			want: []string{"S2 at 9"},
		},
		"S2: a failure just corrected": {
			story: []step{user(makeBatch(done("fail"))), user(makeBatch(done("pass"))), operator(makeRelease(suspend))},
		},
		"S2: suspended again for what was corrected": {
			story: []step{
				user(makeBatch(done("fail"))), operator(makeRelease(suspend)), user(makeBatch(done("pass"))), operator(makeRelease(running)),
				operator(makeRelease(suspend)),
			},
			want: []string{"S2 at 9"},
		},
		"S2: suspended again for something else": {
			story: []step{
				user(makeBatch(done("fail"))), operator(makeRelease(suspend)), user(makeBatch(done("pass"))), operator(makeRelease(running)),
				user(makeBatch(done("fail"))), operator(makeRelease(suspend)),
			},
		},
		"S2: the order fails": {
			story: []step{operator(makeRelease(running, orderFails)), operator(makeRelease(suspend, orderFails)), operator(blocked("v1 1"))},
		},
		"S2: an unclaimed verdict fails": {
			story: []step{operator(makeRelease(running, unclaimed("fail", false))), operator(makeRelease(suspend, unclaimed("fail", false)))},
		},
		"S2: a failure is applied twice": {
			story: []step{
				operator(makeBatch()), operator(makeBatch(post(verdict("fail")))), operator(makeBatch(post(verdict("fail")), done("fail"))),
				user(makeBatch(post(verdict("fail")), done("pass"))), operator(makeBatch(post(verdict("fail")), done("fail"))),
			},
			want: []string{"S2 at 9"},
		},
		"S2: a failure of a batch a user had failed": {
			story: []step{
				operator(makeBatch(done("pass"))), user(makeBatch(done("unpass"))), operator(makeBatch(done("unpass"), post(verdict("fail")))),
				operator(makeBatch(done("fail"), post(verdict("fail")))),
			},
		},
		"S2: a batch number is used again": {
			story: []step{
				operator(makeBatch()), operator(makeRelease(running, func(c *v1alpha1.ChangeWorkload) { c.Status.Batches = 1 })), gone(makeBatch()),
				operator(makeBatch(func(b *v1alpha1.ChangePod) { b.UID = "again" })),
			},
			want: []string{"S2 at 8"},
		},
		"S2: a batch of another workload's pods": {
			story: []step{user(makeReplicaSet("other")), operator(makeBatch())}, want: []string{"S2 at 6"},
		},
		"S2: a batch of another version's pods": {
			story: []step{user(makeReplicaSet("d", image("busybox:0"))), operator(makeBatch())}, want: []string{"S2 at 6"},
		},

		"S3: a block is passed": {
			story: []step{user(makeBatch(done("fail"))), operator(blocked("v1 1")), user(makeDeployment(suspended, image("busybox:2")))},
			want:  []string{"S3 at 7"},
		},
		"S3: owned by another object": {
			story: []step{user(makeBatch(done("fail"))), operator(blocked("v1 1")), user(makeDeployment(suspended, owned, image("busybox:2")))},
		},
		"S3: owned, and defended": {
			story: []step{
				user(makeBatch(done("fail"))), operator(blocked("v1 1")),
				user(makeDeployment(suspended, owned, label(v1alpha1.DefenseLabel, v1alpha1.DefenseEnforced), image("busybox:2"))),
			},
			want: []string{"S3 at 7"},
		},
		"S3: just un-enrolled": {
			story: []step{
				user(makeBatch(done("fail"))), operator(blocked("v1 1")), user(makeNamespace(false)),
				user(makeDeployment(suspended, image("busybox:2"))),
			},
		},

		"S7: a pod in two batches":      {story: []step{operator(makeBatch()), operator(makeBatch(numbered(2)))}, want: []string{"S7 at 6"}},
		"S7: a pod in two attempts":     {story: []step{operator(makeBatch()), operator(makeBatch(numbered(2), ofAttempt(2, 2)))}},
		"S7: a pod whose batch is gone": {story: []step{operator(makeBatch()), gone(makeBatch()), operator(makeBatch(numbered(2)))}},
		"S7: a pod left out": {
			story: []step{user(makePod("p2", epoch)), operator(makeBatch(done("none"))), operator(makeRelease(success, updated(7)))},
			want:  []string{"S7 at 7"},
		},
		"S7: in a batch of an earlier attempt": {
			story: []step{
				operator(makeBatch(done("none"))), user(makeDeployment(annotation(v1alpha1.ReleaseAnnotation, "2"))),
				operator(makeRelease(running, attempt(2, 2))), operator(makeRelease(success, attempt(2, 2), updated(8))),
			},
			want: []string{"S7 at 8"},
		},
		"S7: a pod that has just come": {
			story: []step{user(makePod("p2", at(7))), operator(makeBatch(done("none"))), operator(makeRelease(success, updated(7)))},
		},
		"S7: a pod that goes": {story: []step{
			user(func() *corev1.Pod {
				p := makePod("p2", epoch)
				p.DeletionTimestamp = &metav1.Time{Time: epoch}
				return p
			}()), operator(makeBatch(done("none"))), operator(makeRelease(success, updated(7))),
		}},
		"S7: a pod of an older template": {story: []step{
			user(makeReplicaSet("d", image("busybox:0"))), operator(makeRelease(success, updated(6))),
		}},

		"S8: an unclaimed failure is dropped": {
			story: []step{operator(makeRelease(running, unclaimed("fail", false))), operator(makeRelease(running))}, want: []string{"S8 at 6"},
		},
		"S8: an unclaimed pass is dropped": {
			story: []step{operator(makeRelease(running, unclaimed("pass", false))), operator(makeRelease(running))},
		},
		"S8: a batch claims it": {
			story: []step{
				operator(makeRelease(running, unclaimed("fail", false))), operator(makeBatch(post(verdict("fail")))), operator(makeRelease(running)),
			},
		},
		"S8: a batch claims half of it": {
			story: []step{
				operator(makeRelease(running, unclaimed("fail", false))), operator(makeBatch(post(verdict("pass")))), operator(makeRelease(running)),
			},
			want: []string{"S8 at 7"},
		},
		"S8: the order claims it": {story: []step{operator(makeRelease(running, unclaimed("fail", true))),
			operator(makeRelease(running, func(c *v1alpha1.ChangeWorkload) { c.Status.OrderPostVerdict = verdict("fail") }))}},

		"L1: suspend ends uncorrected": {
			story: []step{user(makeBatch(done("fail"))), operator(makeRelease(suspend)), operator(makeRelease(running))}, want: []string{"L1 at 7"},
		},
		"L1: suspend ends corrected": {
			story: []step{
				user(makeBatch(done("fail"))), operator(makeRelease(suspend)), user(makeBatch(done("pass"))),
				operator(makeRelease(success, updated(0))),
			},
		},
		"L1: suspend ends, corrected and failed again": {story: []step{
			user(makeBatch(done("fail"))), operator(makeRelease(suspend)), user(makeBatch(done("pass"))), user(makeBatch(done("fail"))),
			operator(makeRelease(running)),
		}},
		"L1: suspend ends because the failed batch was deleted": {story: []step{
			user(makeBatch(done("fail"))), operator(makeRelease(suspend, func(c *v1alpha1.ChangeWorkload) {
				c.Status.DefenseCheckFailPods = []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: "p1", UID: "p1"}, Verdict: "fail"}}
			})), gone(makeBatch()), operator(makeRelease(running, func(c *v1alpha1.ChangeWorkload) {
				c.Status.DefenseCheckFailPods = []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: "p1", UID: "p1"}, Verdict: "fail"}}
			})),
		}, want: []string{"L1 at 8"}},

		"an unknown history is not judged": {alone: true, story: []step{
			{object: makeNamespace(true), listed: true}, {object: makeDeployment(), listed: true}, {object: makeRelease(running), listed: true},
			operator(makeRelease(suspend)), operator(blocked("v1 1")),
		}},

		"S4: not enrolled": {alone: true, story: []step{user(makeNamespace(false)), marks}, want: []string{"S4 at 1"}},
		"S4: cluster-scoped": {
			alone: true,
			story: []step{sent(Request{Verb: "patch", Resource: "namespaces", Name: ""})}, want: []string{"S4 at 0"},
		},
		"S4: objects of a ChangeKind": {
			alone: true,
			story: []step{
				user(makeNamespace(true)),
				sent(Request{
					Verb: "update", Group: v1alpha1.GroupVersion.Group, Resource: "changekinds", Subresource: "status", Name: "gadgets.example.com",
				}),
				sent(Request{Verb: "patch", Group: "example.com", Resource: "gadgets", Namespace: "ns"}),
				sent(Request{Verb: "patch", Group: "example.com", Resource: "widgets", Namespace: "ns"}),
				sent(Request{
					Verb: "patch", Group: v1alpha1.GroupVersion.Group, Resource: "changekinds", Name: "gadgets.example.com", Paths: []string{"/spec/hold"},
				}),
			},
			want: []string{"S6 at 3", "S4 at 4"},
		},
		"S4: in its own namespace": {alone: true, story: []step{sent(Request{Verb: "update", Resource: "leases", Namespace: "operator"})}},
		"S4: a review of its own user": {
			alone: true,
			story: []step{sent(Request{Verb: "create", Group: "authentication.k8s.io", Resource: "selfsubjectreviews"})},
		},
		"S4: an attempt that failed": {
			alone: true,
			story: []step{sent(Request{Verb: "patch", Resource: "pods", Namespace: "ns", Code: 409})},
		},
		"S4: a pod of a workload that opted out": {story: []step{user(makeDeployment(optOut)), marks}, want: []string{"S4 at 6"}},
		"S4: a pod of a workload that opted in":  {story: []step{user(makeDeployment(optOut)), user(makeDeployment()), marks}},
		"S4: the last writes, once": {
			story: []step{user(makeDeployment(optOut)), sent(takeBack), sent(cancel), sent(takeBack), sent(cancel)},
			want:  []string{"S4 at 8", "S4 at 9"},
		},
		"S4: another write of a release": {
			story: []step{
				user(makeDeployment(optOut)),
				sent(
					Request{
						Verb: "update", Resource: "changeworkloads", Subresource: "status", Namespace: "ns", Name: "web--x--v1",
						body: []byte(`{"status":{"status":"Running"}}`),
					},
				),
			},
			want: []string{"S4 at 6"},
		},
		"S4: a batch": {
			story: []step{
				operator(makeBatch()), user(makeDeployment(optOut)),
				sent(Request{Verb: "update", Resource: "changepods", Subresource: "status", Namespace: "ns", Name: "web--x--v1--x--1"}),
			},
			want: []string{"S4 at 7"},
		},
		"S4: a revision": {
			story: []step{
				user(makeDeployment(optOut)),
				sent(
					Request{
						Verb: "create", Resource: "controllerrevisions", Namespace: "ns", Name: "web--x--v1",
						body: []byte(`{"metadata":{"ownerReferences":[{"uid":"d","controller":true}]}}`),
					},
				),
			},
			want: []string{"S4 at 6"},
		},
		"S4: an event": {
			story: []step{user(makeDeployment(optOut)), sent(Request{Verb: "create", Resource: "events", Namespace: "ns", Name: "web.1"})},
		},
		"S4: un-enrolled": {
			story: []step{
				user(makeNamespace(false)), sent(takeBack),
				sent(
					Request{
						Verb: "patch", Resource: "deployments", Namespace: "ns", Name: "web",
						body: []byte(`[{"op":"add","path":"/metadata/labels/x","value":"y"}]`),
					},
				),
			},
			want: []string{"S4 at 7"},
		},
		"S6: a pod, more than its label": {
			story: []step{
				sent(Request{Verb: "patch", Resource: "pods", Namespace: "ns", Name: "p1", body: []byte(`{"metadata":{"labels":{"x":"y"}}}`)}),
			},
			want: []string{"S6 at 5"},
		},
		"S6: a pod deleted": {
			story: []step{sent(Request{Verb: "delete", Resource: "pods", Namespace: "ns", Name: "p1", body: []byte(finishedPatch)})},
			want:  []string{"S6 at 5"},
		},
		"S6: a pod evicted, as it was read": {story: []step{stuck, evicts(`"preconditions":{"uid":"p1","resourceVersion":"5"}`)}},
		"S6: a pod evicted, at any version": {story: []step{stuck, evicts(`"preconditions":{"uid":"p1"}`)}, want: []string{"S6 at 6"}},
		"S6: a pod evicted by force": {
			story: []step{stuck, evicts(`"gracePeriodSeconds":0,"preconditions":{"uid":"p1","resourceVersion":"5"}`)}, want: []string{"S6 at 6"},
		},
		"S10: a pod that serves is evicted": {
			story: []step{evicts(`"preconditions":{"uid":"p1","resourceVersion":"5"}`)}, want: []string{"S10 at 5"},
		},
		"S10: the operator removes a pod that serves": {
			story: []step{{object: makePod("p1", epoch), gone: true, by: Operator}}, want: []string{"S10 at 5"},
		},
		"S10: the operator removes a stuck pod": {story: []step{stuck, {object: makePod("p1", epoch), gone: true, by: Operator}}},
		"the status of a setting": {
			story: []step{sent(Request{Verb: "update", Resource: "opsconfiginfoes", Subresource: "status", Namespace: "ns", Name: "observe"})},
		},
		"S6: a setting": {
			story: []step{sent(Request{Verb: "update", Resource: "opsconfiginfoes", Namespace: "ns", Name: "observe"})}, want: []string{"S6 at 5"},
		},
		"S6: the status of a workload": {
			story: []step{sent(Request{Verb: "update", Resource: "deployments", Subresource: "status", Namespace: "ns", Name: "web"})},
			want:  []string{"S6 at 5"},
		},
		"forbidden": {
			alone: true,
			story: []step{sent(Request{Verb: "get", Resource: "secrets", Namespace: "ns", Code: 403, Message: "no"})}, want: []string{"rights at 0"},
		},
		"an owner that may not be added": {alone: true, story: []step{sent(Request{
			Verb: "update", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations",
			Name: "altershieldoperator-mutating-webhook-configuration", Code: 403,
			Message: `mutatingwebhookconfigurations.admissionregistration.k8s.io ` +
				`"altershieldoperator-mutating-webhook-configuration" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>`,
		})}},
		"an owner that may not be added to another": {alone: true, story: []step{sent(Request{
			Verb: "patch", Resource: "deployments", Namespace: "ns", Code: 403,
			Message: "cannot set an ownerRef on a resource you can't delete: , <nil>",
		})}, want: []string{"rights at 0"}},
		"forbidden at the end of a namespace": {
			alone: true,
			story: []step{
				sent(Request{Verb: "create", Resource: "events", Namespace: "ns", Code: 403, Message: "x because it is being terminated"}),
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			story := tc.story
			if !tc.alone {
				story = append(append([]step{}, start...), tc.story...)
			}
			if diff := cmp.Diff(tc.want, play(newWorld(), story)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

const finishedPatch = `{"metadata":{"uid":"p1","labels":{"` + v1alpha1.OperateFinishedLabel + `":"1700000000"}}}`

var (
	takeBack = Request{
		Verb: "patch", Resource: "deployments", Namespace: "ns", Name: "web",
		body: []byte(`[{"op":"test","path":"/metadata/uid","value":"d"},` +
			`{"op":"remove","path":"/metadata/labels/altershield.defense.antgroup.com~1suspend"},` +
			`{"op":"remove","path":"/spec/paused"}]`),
	}
	cancel = Request{
		Verb: "update", Resource: "changeworkloads", Subresource: "status", Namespace: "ns", Name: "web--x--v1",
		body: []byte(`{"status":{"status":"Canceled"}}`),
	}
)

// TestByEither: a version with two possible writers violates an invariant only if either writer
// would.
func TestByEither(t *testing.T) {
	either := func(o client.Object) step { return step{object: o, by: Unknown} }
	blocked := user(makeDeployment(left, suspended))
	for name, tc := range map[string]struct {
		story []step
		want  []string
	}{
		"a user may":           {story: []step{either(makeDeployment(left, image("busybox:2")))}},
		"the operator may":     {story: []step{blocked, either(makeDeployment(left))}},
		"the operator may, S1": {story: []step{blocked, either(makeDeployment(back, suspended))}},
		"neither may":          {story: []step{blocked, either(makeDeployment(left, suspended, image("busybox:2")))}, want: []string{"S1 at 3"}},
		"neither may, of two":  {story: []step{blocked, either(makeDeployment(left, replicas(3)))}, want: []string{"S6 at 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			if diff := cmp.Diff(tc.want, play(w, append([]step{user(makeNamespace(true)), user(makeDeployment(left))}, tc.story...))); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
			if len(w.limits.rollbacks) != 0 {
				t.Error("a rollback counts although another may have made it")
			}
		})
	}
}

func TestMarksFinished(t *testing.T) {
	for body, want := range map[string]bool{
		finishedPatch: true,
		`{"metadata":{"labels":{"` + v1alpha1.OperateFinishedLabel + `":"1","x":"y"}}}`:                 false,
		`{"metadata":{"labels":{"` + v1alpha1.OperateFinishedLabel + `":null}}}`:                        false,
		`{"metadata":{"labels":{"` + v1alpha1.OperateFinishedLabel + `":"1"},"finalizers":[]}}`:         false,
		`{"metadata":{"labels":{"` + v1alpha1.OperateFinishedLabel + `":"1"}},"spec":{"nodeName":"x"}}`: false,
		`[]`: false,
	} {
		for _, stamped := range []bool{true, false} {
			if got := marksFinished([]byte(body), stamped); got != want {
				t.Errorf("marksFinished(%s, %v) = %v, want %v", body, stamped, got, want)
			}
		}
	}
	versioned := `{"metadata":{"labels":{"` + v1alpha1.OperateFinishedLabel + `":"1","` + v1alpha1.VersionLabel + `":"v"}}}`
	if marksFinished([]byte(versioned), true) || !marksFinished([]byte(versioned), false) {
		t.Error("the version of a pod is written where its template does not have it, and only there")
	}
}

func TestTakesBack(t *testing.T) {
	for body, want := range map[string]bool{
		string(takeBack.body):                                                                          true,
		`[{"op":"test","path":"/metadata/uid","value":"d"}]`:                                           false,
		`[{"op":"remove","path":"/metadata/labels/team"}]`:                                             false,
		`[{"op":"add","path":"/spec/paused","value":true}]`:                                            false,
		`[{"op":"remove","path":"/spec/paused"},{"op":"add","path":"/metadata/labels/x","value":"y"}]`: false,
		`[{"op":"remove","path":"/metadata/annotations/altershield.defense.antgroup.com~1halted"}]`:    true,
		`{"spec":{"paused":null}}`:                                                                     false,
	} {
		if got := takesBack([]byte(body)); got != want {
			t.Errorf("takesBack(%s) = %v, want %v", body, got, want)
		}
	}
}

func TestCheckDelivered(t *testing.T) {
	start := []step{user(makeNamespace(true)), user(makeDeployment()), operator(makeRelease(running))}
	fail := Delivered{Order: "order", Node: "node", Stage: v1alpha1.StagePost, Verdict: "FAIL", Said: "recorded"}
	with := func(change func(*Delivered)) Delivered { d := fail; change(&d); return d }
	tests := map[string]struct {
		story     []step
		delivered Delivered
		lost      bool
	}{
		"nowhere":                     {delivered: fail, lost: true},
		"on the batch":                {story: []step{operator(makeBatch(post(verdict("fail"))))}, delivered: fail},
		"on the batch, corrected":     {story: []step{operator(makeBatch(post(corrected("fail"))))}, delivered: fail},
		"on the batch, which is gone": {story: []step{operator(makeBatch(post(verdict("fail")))), gone(makeBatch())}, delivered: fail},
		"only a pass on the batch":    {story: []step{operator(makeBatch(post(verdict("pass"))))}, delivered: fail, lost: true},
		"only at the other stage": {
			story:     []step{operator(makeBatch(func(b *v1alpha1.ChangePod) { b.Status.PreVerdict = verdict("fail") }))},
			delivered: fail, lost: true,
		},
		"only at another node": {
			story:     []step{operator(makeBatch(post(&v1alpha1.CheckVerdict{NodeID: "other", Delivered: "fail"})))},
			delivered: fail, lost: true,
		},
		"unclaimed": {story: []step{operator(makeRelease(running, unclaimed("fail", false)))}, delivered: fail},
		"of the order, another node": {
			story:     []step{operator(makeRelease(running, func(c *v1alpha1.ChangeWorkload) { c.Status.OrderPostVerdict = verdict("fail") }))},
			delivered: with(func(d *Delivered) { d.Node, d.OfOrder = "other", true }),
		},
		"a pass, a failure is there": {
			story:     []step{operator(makeBatch(post(verdict("fail"))))},
			delivered: with(func(d *Delivered) { d.Verdict = "pass" }),
		},
		"a pass nowhere": {delivered: with(func(d *Delivered) { d.Verdict = "pass" }), lost: true},
		"a pass too late": {
			delivered: with(func(d *Delivered) { d.Verdict, d.Stage, d.Said = "pass", v1alpha1.StagePre, "ignored" }),
		},
		"a failure is never too late": {delivered: with(func(d *Delivered) { d.Stage, d.Said = v1alpha1.StagePre, "ignored" }), lost: true},
		"its release is gone":         {story: []step{gone(makeRelease(running))}, delivered: fail},
		"its release is at another order": {
			story:     []step{operator(makeRelease(running, attempt(2, 2), func(c *v1alpha1.ChangeWorkload) { c.Status.OrderID = "next" }))},
			delivered: fail,
		},
		"its workload is gone": {story: []step{gone(makeDeployment())}, delivered: fail},
		"its workload was opted out": {
			story:     []step{user(makeDeployment(label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)))},
			delivered: fail,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			play(w, append(append([]step{}, start...), tc.story...))
			if got := w.checkDelivered(tc.delivered); (len(got) > 0) != tc.lost {
				t.Errorf("checkDelivered() = %v, want a violation: %v", got, tc.lost)
			}
		})
	}
}

func TestUnfinished(t *testing.T) {
	complete := func(d *appsv1.Deployment) {
		d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
	}
	start := []step{user(makeNamespace(true)), user(makeReplicaSet("d")), user(makePod("p1", epoch))}
	batched := operator(makeBatch(done("none")))
	tests := map[string]struct {
		story []step
		where string
		want  int
	}{
		"no release": {story: []step{user(makeDeployment(complete))}, want: 1},
		"Init":       {story: []step{user(makeDeployment(complete)), operator(makeRelease("")), batched}, want: 1},
		"Running":    {story: []step{user(makeDeployment(complete)), operator(makeRelease(running)), batched}, want: 1},
		"waiting in vain": {
			story: []step{user(makeDeployment(complete)), operator(makeRelease(v1alpha1.ChangeWorkloadTimeOutPreThreshold)), batched}, want: 1,
		},
		"Success":                {story: []step{user(makeDeployment(complete)), operator(makeRelease(success)), batched}},
		"Success, a pod to come": {story: []step{user(makeDeployment(complete)), operator(makeRelease(success))}, want: 1},
		"Suspend":                {story: []step{user(makeDeployment(complete)), operator(makeRelease(suspend)), batched}},
		"Failed":                 {story: []step{user(makeDeployment(complete)), operator(makeRelease(v1alpha1.ChangeWorkloadFailed))}},
		"Canceled":               {story: []step{user(makeDeployment(complete)), operator(makeRelease(v1alpha1.ChangeWorkloadCanceled))}},
		"a rollout under way":    {story: []step{user(makeDeployment()), operator(makeRelease(running))}},
		"a baseline": {
			story: []step{user(makeDeployment(complete, func(d *appsv1.Deployment) { delete(d.Labels, v1alpha1.VersionLabel) }))},
		},
		"opted out":   {story: []step{user(makeDeployment(complete, label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)))}},
		"un-enrolled": {story: []step{user(makeDeployment(complete)), user(makeNamespace(false))}},
		"elsewhere":   {story: []step{user(makeDeployment(complete))}, where: "other"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			play(w, append(append([]step{}, start...), tc.story...))
			if tc.where == "" {
				tc.where = "ns"
			}
			if got := w.unfinished([]string{tc.where}, at(100)); len(got) != tc.want {
				t.Errorf("unfinished() = %q, want %d", got, tc.want)
			}
		})
	}
}

func TestForget(t *testing.T) {
	w := newWorld()
	play(w, []step{
		user(makeNamespace(true)), user(makeDeployment()), operator(makeRelease(running)), operator(makeBatch(post(verdict("fail")))),
	})
	w.forget()
	if len(w.deployments)+len(w.releases)+len(w.batches)+len(w.owned)+len(w.uids) != 0 {
		t.Errorf("objects remain: %+v", w)
	}
	if !w.namespaces["ns"].ever || w.delivered[check{"order", "node", v1alpha1.StagePost}] != "fail" {
		t.Errorf("facts that stay true are gone: %+v", w)
	}
}

func TestNeedsWriter(t *testing.T) {
	w := newWorld()
	play(w, []step{user(makeDeployment()), operator(makeRelease(running))})
	tests := map[string]struct {
		object client.Object
		want   bool
	}{
		"only the status of a Deployment": {makeDeployment(func(d *appsv1.Deployment) { d.Status.Replicas = 1 }), false},
		"its spec":                        {makeDeployment(paused), true},
		"its labels":                      {makeDeployment(suspended), true},
		"its finalizers":                  {makeDeployment(func(d *appsv1.Deployment) { d.Finalizers = []string{"x/y"} }), true},
		"another Deployment":              {makeDeployment(func(d *appsv1.Deployment) { d.UID = "new" }), false},
		"a release":                       {makeRelease(success), true},
		"a new batch":                     {makeBatch(), false},
		"a pod":                           {makePod("p1", epoch), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := w.needsWriter(event{kind: kindOf(tc.object), uid: tc.object.GetUID(), object: factsOf(tc.object)}); got != tc.want {
				t.Errorf("needsWriter() = %v, want %v", got, tc.want)
			}
		})
	}
}
