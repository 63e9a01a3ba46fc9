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

package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/verify"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// looker is a verifier that reads each batch several times and then returns its result. It keeps its state in the batch's status.
type looker struct {
	looks   int
	says    v1alpha1.CheckPhase
	pods    []string
	lasting bool
	forgot  []types.NamespacedName
	written int
}

func (*looker) Name() string { return "looker" }

func (l *looker) Forget(key types.NamespacedName) { l.forgot = append(l.forgot, key) }

func (l *looker) Next(_ context.Context, s checks.Subject) (checks.Step, error) {
	known := record.FindCheck(s.Batch.Status.Checks, "looker")
	if known != nil && record.CheckIsOver(known) {
		return checks.Step{}, nil
	}
	next := v1alpha1.CheckStatus{Name: "looker", Phase: v1alpha1.CheckRunning}
	if known != nil {
		next.Message = known.Message
	}
	if next.Message += "look "; len(next.Message) > l.looks*len("look ") {
		next.Phase, next.Message, next.FailedPods = l.says, "its result", l.pods
	}
	return checks.Step{Lasting: l.lasting, Written: func() { l.written++ }, Write: func(s checks.Subject) checks.Decision {
		status := s.Batch.Status.DeepCopy()
		record.SetCheck(&status.Checks, next, time.Unix(1, 0))
		return checks.Decision{Batch: status}
	}}, nil
}

// TestOrderOfAReleaseThatLeaves: the records of a release that is no longer defended are not written. So one reconcile has to end
// both the order entry and the order.
func TestOrderOfAReleaseThatLeaves(t *testing.T) {
	for name, leaves := range map[string]func(web *appsv1.Deployment, ns *corev1.Namespace){
		"opted out": func(web *appsv1.Deployment, _ *corev1.Namespace) {
			web.Labels[v1alpha1.DefenseLabel] = v1alpha1.DefenseDisabled
		},
		"un-enrolled": func(_ *appsv1.Deployment, ns *corev1.Namespace) { delete(ns.Labels, v1alpha1.EnrolledLabel) },
	} {
		t.Run(name, func(t *testing.T) {
			sim := simulator.New(simulator.Options{Token: "a-token-of-the-tests", CallbackURLs: []string{"http://127.0.0.1:1"}})
			if err := sim.Start("127.0.0.1:0"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(sim.Shutdown)
			calls, err := altershield.New(altershield.Options{
				URL: sim.URL(), Platform: altershield.DefaultPlatform, Tokens: altershield.StaticTokens{"a-token-of-the-tests"},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(calls.Close)
			const version = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
			asked := &verify.Server{
				Client: calls, Cluster: "cluster-uid", Tenant: altershield.DefaultTenant, Scene: altershield.DefaultScene, Phase: altershield.PhaseProd,
				TargetType: altershield.DefaultTargetType,
			}
			ns := wrappers.MakeNamespace("ns").Enrolled().Obj()
			web := wrappers.MakeDeployment("ns", "web").UID("web-uid").Label("app", "web")
			order := server.OrderID(asked.Cluster, "web-uid", version, 1, 1, "release-uid")
			release := wrappers.MakeChangeWorkload("ns", "web--x--1").UID("release-uid").Of(web.Obj()).Version(version).Release(1).Attempt(1).
				State(v1alpha1.ChangeWorkloadRunning).Order(order, "", v1alpha1.OrderSubmitting)
			api := fake.NewClientBuilder().WithScheme(NewScheme()).
				WithObjects(ns, web.Obj(), release.Obj()).WithStatusSubresource(release.Obj()).
				WithIndex(&appsv1.ReplicaSet{}, workload.IndexByOwner, workload.OwnerUID).
				WithIndex(&v1alpha1.ChangePod{}, workload.IndexByNode, workload.NodeOf).
				WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByNode, workload.NodeOf).Build()
			c := &cluster.Cluster{
				View:   cluster.View{Cached: api, Live: api, Kinds: workload.NewRegistry(workload.Deployment{}), Operator: "operator"},
				Client: api, Clock: clocktesting.NewFakePassiveClock(time.Now()),
			}
			r := newOrderReconciler(c, verify.NewAlterShield(c, asked, nil))
			key := client.ObjectKeyFromObject(release.Obj())
			reconcile := func() {
				t.Helper()
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
			}
			reconcile()
			var got v1alpha1.ChangeWorkload
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(api.Get(t.Context(), key, &got))
			if got.Status.OrderStage != v1alpha1.OrderPreSubmitted {
				t.Fatalf("order %s: %+v\n%s", got.Status.OrderStage, got.Status.Conditions, sim.Journal())
			}
			// The server ends the PRE check, but its callback is lost.
			must(sim.WaitFor(t.Context(), func(j simulator.Journal) bool { return len(j.Callbacks()) > 0 }))
			left := web.Obj()
			must(api.Get(t.Context(), client.ObjectKeyFromObject(left), left))
			leaves(left, ns)
			must(api.Update(t.Context(), left))
			must(api.Update(t.Context(), ns))
			got.Status.Status, got.Status.OrderEnd = v1alpha1.ChangeWorkloadCanceled, v1alpha1.FinishCancel
			got.Status.OrderEndDueTimeUnix = c.Clock.Now().Unix()
			must(api.Status().Update(t.Context(), &got))
			reconcile()
			if ends := sim.Journal().Ends(order); len(sim.Journal().Requests(altershield.ActionFinishNode)) != 1 || len(ends) != 1 {
				t.Errorf("want one end of the order entry, and then one end of the order:\n%s", sim.Journal())
			}
		})
	}
}

// TestTwoVerifiers: AlterShield Server, which is not configured here, and another verifier check the same batches.
func TestTwoVerifiers(t *testing.T) {
	for name, test := range map[string]struct {
		looker    looker
		conflicts int
		defended  bool
		want      map[string]string
	}{
		"passes":        {looker{looks: 2, says: v1alpha1.CheckPassed}, 0, true, map[string]string{"a": "pass", "b": "pass"}},
		"fails at once": {looker{says: v1alpha1.CheckFailed}, 0, true, map[string]string{"a": "fail", "b": "fail"}},
		"fails one pod later": {
			looker{looks: 3, says: v1alpha1.CheckFailed, pods: []string{"b"}}, 0, true, map[string]string{"a": "none", "b": "fail"},
		},
		"cannot be repeated": {
			looker{looks: 1, says: v1alpha1.CheckFailed, lasting: true}, 2, true, map[string]string{"a": "fail", "b": "fail"},
		},
		"is not defended": {looker{says: v1alpha1.CheckFailed}, 0, false, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := wrappers.MakeNamespace("ns").Enrolled()
			if !test.defended {
				ns.WithoutLabel(v1alpha1.EnrolledLabel)
			}
			web := wrappers.MakeDeployment("ns", "web").UID("web-uid")
			release := wrappers.MakeChangeWorkload("ns", "web--x--1").UID("release-uid").Of(web.Obj()).Release(1).Attempt(1).
				State(v1alpha1.ChangeWorkloadRunning)
			batch := wrappers.MakeChangePod("ns", "web--x--1--x--1").UID("batch-uid").Of(release.Obj()).Attempt(1, 1).Pods("a", "b")
			asked := batch.Obj()
			asked.Status.Checks = []v1alpha1.CheckStatus{{Name: "looker", Phase: v1alpha1.CheckPending}}
			conflicts := test.conflicts
			api := fake.NewClientBuilder().WithScheme(NewScheme()).
				WithObjects(ns.Obj(), web.Obj(), release.Obj(), asked).WithStatusSubresource(release.Obj(), batch.Obj()).
				WithIndex(&appsv1.ReplicaSet{}, workload.IndexByOwner, workload.OwnerUID).
				WithInterceptorFuncs(interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
					opts ...client.SubResourceUpdateOption) error {
					if conflicts > 0 {
						conflicts--
						return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("changepods").GroupResource(), o.GetName(), nil)
					}
					return c.SubResource(sub).Update(ctx, o, opts...)
				}}).Build()
			clock := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
			c := &cluster.Cluster{
				View:   cluster.View{Cached: api, Live: api, Kinds: workload.NewRegistry(workload.Deployment{}), Operator: "operator"},
				Client: api, Clock: clock,
			}
			second := &test.looker
			r := newChangePodReconciler(c, 1, verify.NewAlterShield(c, nil, nil), second)
			key := client.ObjectKeyFromObject(batch.Obj())
			for range 3 {
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
					t.Fatal(err)
				}
			}
			var got v1alpha1.ChangePod
			if err := api.Get(t.Context(), key, &got); err != nil {
				t.Fatal(err)
			}
			verdicts := map[string]string{}
			for _, p := range got.Status.PodResults {
				verdicts[p.Pod] = p.Verdict
			}
			if diff := cmp.Diff(test.want, verdicts); diff != "" {
				t.Errorf("verdicts -want +got:\n%s\n%+v", diff, got.Status)
			}
			done := got.Status.Status == v1alpha1.ChangePodExecuteDone
			if done != test.defended || done != (len(second.forgot) > 0) {
				t.Errorf("done: %t, forgotten: %v; want %t", done, second.forgot, test.defended)
			}
			if test.looker.lasting != (second.written > 0) {
				t.Errorf("Written was called %d times", second.written)
			}
		})
	}
}

// watcher is a verifier that writes nothing and runs again after a while.
type watcher struct {
	looker
	after time.Duration
}

func (w *watcher) Next(context.Context, checks.Subject) (checks.Step, error) {
	return checks.Step{After: w.after}, nil
}

type broken struct{ looker }

func (*broken) Next(context.Context, checks.Subject) (checks.Step, error) {
	return checks.Step{}, errors.New("a cache is not there")
}

// TestOneVerifierFails: the other verifiers run, and the error is returned.
func TestOneVerifierFails(t *testing.T) {
	w := &watcher{after: time.Minute}
	asked := 0
	c := &checker{providers: []checks.Provider{&broken{}, providerFunc(func(ctx context.Context, s checks.Subject) (checks.Step, error) {
		asked++
		return w.Next(ctx, s)
	})}}
	result, err := c.run(t.Context(), checks.Subject{Batch: wrappers.MakeChangePod("ns", "batch").Obj()})
	if asked != 1 || err == nil || !strings.Contains(err.Error(), "check looker: a cache is not there") || result != (ctrl.Result{}) {
		t.Errorf("asked %d times: %+v, %v", asked, result, err)
	}
}

type providerFunc func(context.Context, checks.Subject) (checks.Step, error)

func (providerFunc) Name() string                { return "func" }
func (providerFunc) Forget(types.NamespacedName) {}
func (f providerFunc) Next(ctx context.Context, s checks.Subject) (checks.Step, error) {
	return f(ctx, s)
}

// TestForget: a verifier forgets a batch that is done only after its last background check.
func TestForget(t *testing.T) {
	w := &watcher{after: time.Minute}
	c := &checker{providers: []checks.Provider{w}}
	done := wrappers.MakeChangePod("ns", "batch").Obj()
	done.Status.Status = v1alpha1.ChangePodExecuteDone
	for _, test := range []struct {
		after  time.Duration
		forgot int
	}{{time.Minute, 0}, {0, 1}} {
		w.after = test.after
		result, err := c.run(t.Context(), checks.Subject{Batch: done})
		if err != nil || result.RequeueAfter != test.after || len(w.forgot) != test.forgot {
			t.Errorf("to run again after %s: %v, %v, forgotten: %v", test.after, result, err, w.forgot)
		}
	}
}
