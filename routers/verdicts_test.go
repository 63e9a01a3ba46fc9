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

package routers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const verdictVersion = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

var verdictOrder = server.OrderID("cluster", "web-uid", verdictVersion, 1, 1, "change-uid")

// verdictWorld is a release of one batch, both known to the server.
type verdictWorld struct {
	namespace *wrappers.NamespaceWrapper
	workload  *wrappers.DeploymentWrapper
	release   *wrappers.ChangeWorkloadWrapper
	batch     *wrappers.ChangePodWrapper
}

// storing returns a Verdicts that waits for a shorter time than the real one.
func storing(view cluster.View, c client.Client) *Verdicts {
	v := NewVerdicts(view, c, clocktesting.NewFakePassiveClock(testNow))
	v.wait = 20 * time.Millisecond
	return v
}

// verdictObjects are the objects of the world after a change to it, if any.
func verdictObjects(change func(*verdictWorld)) []client.Object {
	w := &verdictWorld{namespace: wrappers.MakeNamespace("ns").Enrolled(), workload: wrappers.MakeDeployment("ns", "web").UID("web-uid")}
	w.release = wrappers.MakeChangeWorkload("ns", "change").UID("change-uid").Of(w.workload.Obj()).Version(verdictVersion).
		Release(1).Attempt(1).State(v1alpha1.ChangeWorkloadRunning).Order(verdictOrder, "order-node", v1alpha1.OrderPreSubmitted)
	w.batch = wrappers.MakeChangePod("ns", "batch").UID("batch-uid").Of(w.release.Obj()).Attempt(1, 1).
		State(v1alpha1.ChangePodPreSubmitted).Node("batch-node", verdictOrder)
	if change != nil {
		change(w)
	}
	return []client.Object{w.namespace.Obj(), w.workload.Obj(), w.release.Obj(), w.batch.Obj()}
}

func verdictCallback(entry string, stage altershield.Stage, verdict altershield.VerdictValue) *altershield.Callback {
	return &altershield.Callback{CheckType: altershield.CheckBatch, Request: altershield.CallbackRequest{
		NodeID: entry, BizExecOrderID: verdictOrder, Stage: stage,
		Verdict: altershield.Verdict{Verdict: verdict, Rules: []altershield.Rule{{Name: "error rate", Msg: "too high", Verdict: verdict}}},
	}}
}

// ofOrder is a failing callback on an entry of a batch, with the id of this order.
func ofOrder(id, entry string) *altershield.Callback {
	callback := verdictCallback(entry, altershield.StagePost, altershield.VerdictFail)
	callback.Request.BizExecOrderID = id
	return callback
}

// TestLatePreFailureIsRecorded: a POST verdict that fails although its rules passed
// is stored as the failure of the PRE check that it is.
func TestLatePreFailureIsRecorded(t *testing.T) {
	for verdict, want := range map[altershield.VerdictValue]string{
		"FAIL": "error rate: too high",
		"PASS": "the PRE check failed after it had been let pass: the server gave no reason",
	} {
		callback := verdictCallback("batch-node", altershield.StagePost, altershield.VerdictFail)
		callback.Request.Verdict.Rules[0].Verdict = verdict
		c := newClient(t, interceptor.Funcs{}, verdictObjects(nil)...)
		v := storing(viewOf(c), c)
		if got, err := v.Record(t.Context(), callback); got != OutcomeRecorded || err != nil {
			t.Fatalf("outcome %q, error %v", got, err)
		}
		var batch v1alpha1.ChangePod
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "batch"}, &batch); err != nil {
			t.Fatal(err)
		}
		if got := batch.Status.PostVerdict; got == nil || got.Message != want || got.LatePre != (verdict == "PASS") {
			t.Errorf("with a rule that says %s: %+v, want message %q", verdict, got, want)
		}
	}
}

// TestVerdictsOfCopies: a status with ids of another release gets no verdict, and keeps no
// verdict from the record that owns the ids.
func TestVerdictsOfCopies(t *testing.T) {
	copies := func(w *verdictWorld) (objects []client.Object) {
		// First and last in every list: in namespaces of their own, under the same names.
		for _, ns := range []string{"evil", "vile"} {
			web := wrappers.MakeDeployment(ns, "web").UID(types.UID(ns + "-web-uid")).Obj()
			release := wrappers.MakeChangeWorkload(ns, "change").UID(types.UID(ns+"-change-uid")).Of(web).Version(verdictVersion).
				Release(1).Attempt(1).State(v1alpha1.ChangeWorkloadRunning).Order(verdictOrder, "order-node", v1alpha1.OrderPreSubmitted).Obj()
			objects = append(objects,
				wrappers.MakeNamespace(ns).Enrolled().Obj(), web, release,
				wrappers.MakeChangePod(ns, "batch").UID(types.UID(ns+"-batch-uid")).Of(release).Attempt(1, 1).State(v1alpha1.ChangePodPreSubmitted).
					Node("batch-node", verdictOrder).Obj(),
				// A copy that claims to belong to the original release.
				wrappers.MakeChangePod(ns, "another").UID(types.UID(ns+"-other-uid")).Of(w.release.Obj()).Attempt(1, 1).
					State(v1alpha1.ChangePodPreSubmitted).Node("batch-node", verdictOrder).Obj(),
			)
		}
		return objects
	}
	twice := func(w *verdictWorld) []client.Object {
		return []client.Object{wrappers.MakeChangePod("ns", "twice").UID("twice-uid").Of(w.release.Obj()).Attempt(1, 1).
			State(v1alpha1.ChangePodPreSubmitted).Node("batch-node", verdictOrder).Obj()}
	}
	onOrder := verdictCallback("order-node", altershield.StagePost, "fail")
	onOrder.CheckType = altershield.CheckOrder
	otherOrder := server.OrderID("cluster", "api-uid", verdictVersion, 1, 1, "other-uid")
	other := func(*verdictWorld) []client.Object {
		api := wrappers.MakeDeployment("ns", "api").UID("api-uid").Obj()
		return []client.Object{api, wrappers.MakeChangeWorkload("ns", "other").UID("other-uid").Of(api).Version(verdictVersion).
			Release(1).Attempt(1).State(v1alpha1.ChangeWorkloadRunning).Order(otherOrder, "other-node", v1alpha1.OrderPreSubmitted).Obj()}
	}
	for name, test := range map[string]struct {
		with     func(*verdictWorld) []client.Object
		callback *altershield.Callback
		want     Outcome
		stored   []string
	}{
		"of the batch": {
			copies, verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeRecorded, []string{"ns/batch"},
		},
		"of the order": {copies, onOrder, OutcomeRecorded, []string{"ns/change"}},
		"on a node not yet known": {
			copies, verdictCallback("new-node", altershield.StagePost, "fail"), OutcomeRecorded, []string{"ns/change"},
		},
		"of another order of the operator": {other, ofOrder(otherOrder, "batch-node"), OutcomeRecorded, []string{"ns/other"}},
		"two batches of the same release":  {twice, verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeUnknown, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var more []client.Object
			objects := verdictObjects(func(w *verdictWorld) { more = test.with(w) })
			c := newClient(t, interceptor.Funcs{}, append(objects, more...)...)
			v := storing(viewOf(c), c)
			if got, err := v.Record(t.Context(), test.callback); got != test.want || (err != nil) != (test.want == OutcomeUnknown) {
				t.Errorf("outcome %q, error %v; want %q", got, err, test.want)
			}
			var stored []string
			var batches v1alpha1.ChangePodList
			var changes v1alpha1.ChangeWorkloadList
			if err := errors.Join(c.List(t.Context(), &batches), c.List(t.Context(), &changes)); err != nil {
				t.Fatal(err)
			}
			for i := range batches.Items {
				if b := &batches.Items[i]; b.Status.PostVerdict != nil {
					stored = append(stored, b.Namespace+"/"+b.Name)
				}
			}
			for i := range changes.Items {
				if c := &changes.Items[i]; c.Status.OrderPostVerdict != nil || len(c.Status.UnclaimedVerdicts) > 0 {
					stored = append(stored, c.Namespace+"/"+c.Name)
				}
			}
			if diff := cmp.Diff(test.stored, stored); diff != "" {
				t.Errorf("stored in -want +got:\n%s", diff)
			}
		})
	}
}

func TestVerdictsRecord(t *testing.T) {
	// Order and Batch are the states, if a verdict changed them.
	type stored struct{ OrderPre, OrderPost, Order, Pre, Post, Batch, Unclaimed string }
	text := func(v *v1alpha1.CheckVerdict) string {
		if v == nil {
			return ""
		}
		return v.Verdict + " " + v.Message
	}
	checked := func(verdict, message string) func(*verdictWorld) {
		return func(w *verdictWorld) {
			w.batch.Obj().Status.PostVerdict = &v1alpha1.CheckVerdict{NodeID: "batch-node", Verdict: verdict, Delivered: verdict, Message: message}
		}
	}
	for name, test := range map[string]struct {
		change   func(*verdictWorld)
		callback *altershield.Callback
		want     Outcome
		stored   stored
	}{
		"on a batch": {
			nil, verdictCallback("batch-node", altershield.StagePost, "FAIL"), OutcomeRecorded,
			stored{Post: "fail error rate: too high", Batch: "ExecuteDone PostFinish"},
		},
		"PRE of a batch": {
			nil, verdictCallback("batch-node", altershield.StagePre, "pass"), OutcomeRecorded, stored{Pre: "pass ", Batch: "PostSubmitted "},
		},
		"PRE of a batch that fails": {
			nil, verdictCallback("batch-node", altershield.StagePre, "fail"), OutcomeRecorded,
			stored{Pre: "fail error rate: too high", Batch: "ExecuteDone PostFinish"},
		},
		"on the order": {
			nil, verdictCallback("order-node", altershield.StagePre, "inconc"), OutcomeRecorded,
			stored{OrderPre: "inconc error rate: too high", Order: "PostWait"},
		},
		"POST of the order": {
			nil, verdictCallback("order-node", altershield.StagePost, "none"), OutcomeRecorded, stored{OrderPost: "none "},
		},
		"on a node not yet known": {
			nil, verdictCallback("new-node", altershield.StagePre, "fail"), OutcomeRecorded, stored{Unclaimed: "new-node PRE fail"},
		},
		"PRE after the end was submitted": {
			func(w *verdictWorld) { w.batch.State(v1alpha1.ChangePodPostSubmitted) },
			verdictCallback("batch-node", altershield.StagePre, "pass"), OutcomeIgnored, stored{}},
		"the same again": {
			checked("fail", "first"),
			verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeDuplicate, stored{Post: "fail first"}},
		"one that passes after one that failed": {
			checked("fail", "first"),
			verdictCallback("batch-node", altershield.StagePost, "pass"), OutcomeDuplicate, stored{Post: "fail first"}},
		"one that fails after one that passed": {
			checked("pass", ""),
			verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeRecorded, stored{Post: "fail error rate: too high"}},
		"on a batch, with the id of an order that is none": {nil, ofOrder("another", "batch-node"), OutcomeUnknown, stored{}},
		"on an order that is none": {
			func(w *verdictWorld) { w.release.Order("another", "order-node", v1alpha1.OrderPreSubmitted) },
			verdictCallback("order-node", altershield.StagePost, "fail"), OutcomeUnknown, stored{}},
		"in a namespace that left": {
			func(w *verdictWorld) { w.namespace.WithoutLabel(v1alpha1.EnrolledLabel) },
			verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeIgnored, stored{}},
		"on a workload that opted out": {
			func(w *verdictWorld) { w.workload.Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled) },
			verdictCallback("order-node", altershield.StagePost, "fail"), OutcomeIgnored, stored{}},
		"on a workload that was re-created": {
			func(w *verdictWorld) { w.workload.UID("another") },
			verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeIgnored, stored{}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, interceptor.Funcs{}, verdictObjects(test.change)...)
			v := storing(viewOf(c), c)
			got, err := v.Record(t.Context(), test.callback)
			if err != nil || got != test.want {
				t.Fatalf("outcome %q, error %v; want %q", got, err, test.want)
			}
			if diff := cmp.Diff(test.stored, func() stored {
				var change v1alpha1.ChangeWorkload
				var batch v1alpha1.ChangePod
				if err := errors.Join(c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "change"}, &change),
					c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "batch"}, &batch)); err != nil {
					t.Fatal(err)
				}
				s := stored{OrderPre: text(change.Status.OrderPreVerdict), OrderPost: text(change.Status.OrderPostVerdict),
					Pre: text(batch.Status.PreVerdict), Post: text(batch.Status.PostVerdict)}
				if s.Batch = fmt.Sprintf("%s %s", batch.Status.Status, batch.Status.Message); s.Batch == "PreSubmitted " || test.change != nil {
					s.Batch = ""
				}
				if s.Order = string(change.Status.OrderStage); s.Order == string(v1alpha1.OrderPreSubmitted) || test.change != nil {
					s.Order = ""
				}
				for _, u := range change.Status.UnclaimedVerdicts {
					s.Unclaimed += fmt.Sprintf("%s %s %s", u.NodeID, u.Stage, u.Verdict)
				}
				return s
			}()); diff != "" {
				t.Errorf("stored -want +got:\n%s", diff)
			}
		})
	}
}

// TestVerdictsDecideWithPolicies: a delivered pass counts at the callback address as it counts
// for the controllers. If a policy fails checks without a verdict, a poll has to confirm the
// pass, because the server delivers its own timeout as a pass.
func TestVerdictsDecideWithPolicies(t *testing.T) {
	fails := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "server", Generation: 1}}
	fails.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "server", OnError: v1alpha1.SilenceFails, Altershield: &v1alpha1.AltershieldCheck{}}}
	fails.Status.InForce, fails.Status.InForceGeneration = fails.Spec.DeepCopy(), 1
	for name, test := range map[string]struct {
		policies []client.Object
		want     v1alpha1.ChangePodStatusType
		order    v1alpha1.OrderStage
	}{
		"no policy":                             {nil, v1alpha1.ChangePodExecuteDone, v1alpha1.OrderPostWait},
		"a policy that fails without a verdict": {[]client.Object{fails}, v1alpha1.ChangePodPostSubmitted, v1alpha1.OrderPreSubmitted},
	} {
		t.Run(name, func(t *testing.T) {
			objects := verdictObjects(func(w *verdictWorld) {
				w.batch.State(v1alpha1.ChangePodPostSubmitted).Obj().Status.PostSubmitTimeUnix = testNow.Unix()
				w.release.Obj().Status.OrderPreSubmitTimeUnix = testNow.Unix()
			})
			c := newClient(t, interceptor.Funcs{}, append(objects, test.policies...)...)
			v := storing(viewOf(c), c)
			ofOrder := verdictCallback("order-node", altershield.StagePre, altershield.VerdictPass)
			ofOrder.CheckType = altershield.CheckOrder
			ofBatch := verdictCallback("batch-node", altershield.StagePost, altershield.VerdictPass)
			for _, callback := range []*altershield.Callback{ofBatch, ofOrder} {
				if got, err := v.Record(t.Context(), callback); err != nil || got != OutcomeRecorded {
					t.Fatalf("outcome %q, error %v", got, err)
				}
			}
			var change v1alpha1.ChangeWorkload
			var batch v1alpha1.ChangePod
			if err := errors.Join(c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "change"}, &change),
				c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "batch"}, &batch)); err != nil {
				t.Fatal(err)
			}
			if batch.Status.Status != test.want || change.Status.OrderStage != test.order {
				t.Errorf("the batch is %q, the order %q; want %q and %q", batch.Status.Status, change.Status.OrderStage, test.want, test.order)
			}
		})
	}
}

// TestVerdictsOfTheOperator: the operator's own namespace is never enrolled, whatever its
// labels are.
func TestVerdictsOfTheOperator(t *testing.T) {
	c := newClient(t, interceptor.Funcs{}, verdictObjects(nil)...)
	view := viewOf(c)
	view.Operator = "ns"
	v := storing(view, c)
	got, err := v.Record(t.Context(), verdictCallback("batch-node", altershield.StagePost, "fail"))
	if err != nil || got != OutcomeIgnored {
		t.Errorf("outcome %q, error %v; want %q", got, err, OutcomeIgnored)
	}
}

// TestVerdictsRecordConflicts: the object changes while a verdict is stored.
func TestVerdictsRecordConflicts(t *testing.T) {
	conflicts := 3
	var owners []string
	c := newClient(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object,
			opts ...client.SubResourceUpdateOption) error {
			if conflicts > 0 {
				conflicts--
				return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("changepods").GroupResource(), obj.GetName(), errors.New("changed"))
			}
			o := (&client.SubResourceUpdateOptions{}).ApplyOptions(opts)
			owners = append(owners, o.AsUpdateOptions().FieldManager)
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	}, verdictObjects(nil)...)
	v := storing(viewOf(c), c)
	if got, err := v.Record(t.Context(), verdictCallback("batch-node", altershield.StagePost, "fail")); err != nil || got != OutcomeRecorded {
		t.Fatalf("outcome %q, error %v", got, err)
	}
	if diff := cmp.Diff([]string{v1alpha1.CallbackFieldManager}, owners); diff != "" {
		t.Errorf("field managers -want +got:\n%s", diff)
	}
}

// TestVerdictsRecordReads: a batch whose cached copy shows the submission is written as it is; the API server is
// read only after a conflict, or if the cached copy does not show the submission.
func TestVerdictsRecordReads(t *testing.T) {
	for name, test := range map[string]struct {
		stage         altershield.Stage
		touched       bool
		reads, writes int
	}{
		"the cache is current":                   {altershield.StagePre, false, 0, 1},
		"the cache is behind":                    {altershield.StagePre, true, 1, 2},
		"the cache does not show the submission": {altershield.StagePost, true, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			reads, writes := 0, 0
			live := newClient(t, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					reads++
					return c.Get(ctx, key, o, opts...)
				},
				SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
					opts ...client.SubResourceUpdateOption) error {
					writes++
					return c.SubResource(sub).Update(ctx, o, opts...)
				},
			}, verdictObjects(nil)...)
			view := viewOf(newClient(t, interceptor.Funcs{}, verdictObjects(nil)...))
			view.Live = live
			if test.touched {
				batch := &v1alpha1.ChangePod{}
				err := live.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "batch"}, batch)
				batch.Status.Status = v1alpha1.ChangePodPostSubmitted
				if err := errors.Join(err, live.Status().Update(t.Context(), batch)); err != nil {
					t.Fatal(err)
				}
				reads, writes = 0, 0
			}
			got, err := storing(view, live).Record(t.Context(), verdictCallback("batch-node", test.stage, "fail"))
			if err != nil || got != OutcomeRecorded || reads != test.reads || writes != test.writes {
				t.Errorf("%q, error %v, %d reads, %d writes; want %d and %d", got, err, reads, writes, test.reads, test.writes)
			}
		})
	}
}

// TestVerdictsRecordBehind: a replica that was paused gets a verdict before its cache has the namespace or the
// workload of the release. The server sends each verdict once, so it is stored.
func TestVerdictsRecordBehind(t *testing.T) {
	for name, test := range map[string]struct {
		lacks int
		live  func(*verdictWorld)
		want  Outcome
	}{
		"no namespace in the cache": {0, nil, OutcomeRecorded},
		"no workload in the cache":  {1, nil, OutcomeRecorded},
		"a workload that opted out": {1, func(w *verdictWorld) {
			w.workload.Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)
		}, OutcomeIgnored},
		"a namespace that is not enrolled": {0, func(w *verdictWorld) {
			w.namespace.WithoutLabel(v1alpha1.EnrolledLabel)
		}, OutcomeIgnored},
		"another workload of the name": {1, func(w *verdictWorld) { w.workload.UID("other") }, OutcomeIgnored},
	} {
		t.Run(name, func(t *testing.T) {
			api := newClient(t, interceptor.Funcs{}, verdictObjects(test.live)...)
			cached := verdictObjects(nil)
			view := viewOf(newClient(t, interceptor.Funcs{}, slices.Delete(cached, test.lacks, test.lacks+1)...))
			view.Live = api
			got, err := storing(view, api).Record(t.Context(), verdictCallback("batch-node", altershield.StagePre, "fail"))
			if err != nil || got != test.want {
				t.Errorf("outcome %q, error %v; want %q", got, err, test.want)
			}
		})
	}
}

// TestVerdictsRecordFails: a verdict that could not be stored is not acknowledged.
func TestVerdictsRecordFails(t *testing.T) {
	for name, err := range map[string]error{
		"down": errors.New("connection refused"),
		"always a change": apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("changepods").GroupResource(), "batch",
			errors.New("changed")),
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, interceptor.Funcs{
				SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
					return err
				},
			}, verdictObjects(nil)...)
			v := storing(viewOf(c), c)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if got, err := v.Record(ctx, verdictCallback("batch-node", altershield.StagePost, "fail")); err == nil {
				t.Errorf("outcome %q without an error", got)
			}
		})
	}
}

// TestVerdictsRecordAtOnce: the same verdict at several replicas at once is
// stored once, whichever is first.
func TestVerdictsRecordAtOnce(t *testing.T) {
	c := newClient(t, interceptor.Funcs{}, verdictObjects(nil)...)
	outcomes := make([]Outcome, 8)
	var wg sync.WaitGroup
	for i := range outcomes {
		wg.Go(func() {
			v := storing(viewOf(c), c)
			var err error
			if outcomes[i], err = v.Record(t.Context(), verdictCallback("batch-node", altershield.StagePost, "fail")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	recorded := 0
	for _, o := range outcomes {
		if o == OutcomeRecorded {
			recorded++
		}
	}
	if recorded != 1 {
		t.Errorf("recorded %d times: %v", recorded, outcomes)
	}
}

// TestVerdictsBurst: 48 failing verdicts on one release arrive at once at two replicas, for
// order entries that are not known yet, and the API server is slow. All are stored within the
// time that the server waits.
func TestVerdictsBurst(t *testing.T) {
	slow := func() { <-time.After(5 * time.Millisecond) } // as a round trip takes
	c := newClient(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			slow()
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	}, verdictObjects(nil)...)
	live := interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, k client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			slow()
			return c.Get(ctx, k, o, opts...)
		},
	})
	ctx, cancel := context.WithTimeout(t.Context(), defaultLimits().record)
	defer cancel()
	var replicas []*Verdicts
	for range 2 {
		view := viewOf(c)
		view.Live = live
		replicas = append(replicas, storing(view, c))
	}
	var wg sync.WaitGroup
	for i := range 48 {
		wg.Go(func() {
			got, err := replicas[i%2].Record(ctx, verdictCallback(fmt.Sprintf("node-%d", i), altershield.StagePost, "fail"))
			if err != nil || got != OutcomeRecorded {
				t.Errorf("verdict %d: outcome %q, error %v", i, got, err)
			}
		})
	}
	wg.Wait()
	var change v1alpha1.ChangeWorkload
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "change"}, &change); err != nil ||
		len(change.Status.UnclaimedVerdicts) != 48 {
		t.Errorf("%d verdicts are stored, error %v", len(change.Status.UnclaimedVerdicts), err)
	}
	for _, v := range replicas {
		if v.writing.InUse() {
			t.Error("locks are left")
		}
	}
}
