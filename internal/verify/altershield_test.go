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

package verify

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestEndGone: the entry of an order whose record is gone is ended with the order, unless this
// process ended it before. The last status may not have that end, because nothing is written once the
// workload is deleted.
func TestEndGone(t *testing.T) {
	for name, before := range map[string]bool{"nothing was ended": false, "the entry was ended": true} {
		t.Run(name, func(t *testing.T) {
			asked, sim := newTestServer(t, simulator.Options{})
			change, _ := testRelease()
			change.UID = "change-uid"
			change.Status.Status, change.Status.OrderEnd = v1alpha1.ChangeWorkloadCanceled, v1alpha1.FinishCancel
			about := released{namespace: "ns", workload: "web", kind: "deployment", by: "jane"}
			if a := asked.submit(t.Context(), change, about); a.Kind != server.AnswerDone {
				t.Fatalf("submitted: %+v", a)
			}
			change.Status.OrderNodeID = asked.startOrder(t.Context(), change, about, serverNow).NodeID
			change.Status.OrderStage = v1alpha1.OrderPostWait
			if err := sim.WaitFor(t.Context(), func(j simulator.Journal) bool { return len(j.Callbacks()) > 0 }); err != nil {
				t.Fatal(err)
			}
			scheme := runtime.NewScheme()
			for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
				if err := add(scheme); err != nil {
					t.Fatal(err)
				}
			}
			api := fake.NewClientBuilder().WithScheme(scheme).
				WithIndex(&v1alpha1.ChangePod{}, workload.IndexByNode, workload.NodeOf).
				WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByNode, workload.NodeOf).Build()
			p := NewAlterShield(&cluster.Cluster{
				View: cluster.View{Cached: api, Live: api}, Client: api, Clock: clocktesting.NewFakePassiveClock(serverNow),
			}, asked, nil)
			if before {
				a, err := p.call(t.Context(), &checks.Subject{Release: change}, server.CallFinish)
				if err != nil || a.Kind != server.AnswerDone {
					t.Fatalf("finished: %+v, %v", a, err)
				}
			}
			for range 2 {
				if wait := p.EndGone(t.Context(), change, "its record was removed"); wait != 0 {
					t.Errorf("waits for %s", wait)
				}
			}
			entries, orders := sim.Journal().Requests(altershield.ActionFinishNode), sim.Journal().Ends(change.Status.OrderID)
			if len(entries) != 1 || len(orders) != 1 {
				t.Errorf("want one end of the entry and one of the order:\n%s", sim.Journal())
			}
		})
	}
}

// TestStartsInTurn: a batch whose start would be one too many waits for its turn, without a call.
func TestStartsInTurn(t *testing.T) {
	asked, sim := newTestServer(t, simulator.Options{})
	change, first := testRelease()
	change.UID = "change-uid"
	about := released{namespace: "ns", workload: "web", kind: "deployment", by: "jane"}
	if a := asked.submit(t.Context(), change, about); a.Kind != server.AnswerDone {
		t.Fatalf("submitted: %+v", a)
	}
	second := first.DeepCopy()
	first.UID, second.UID, second.Name = "first", "second", change.Name+"--x--4"
	p := NewAlterShield(&cluster.Cluster{Clock: clocktesting.NewFakePassiveClock(serverNow)}, asked, nil)
	p.pace.limit = 1
	set := settings.Default()
	start := func(batch *v1alpha1.ChangePod) server.Answer {
		t.Helper()
		a, err := p.call(t.Context(), &checks.Subject{Release: change, Batch: batch, Settings: set}, server.CallStart)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := start(first); a.Kind != server.AnswerDone {
		t.Errorf("the first: %+v", a)
	}
	if a := start(second); a.Kind != server.AnswerThrottled || a.After < time.Second {
		t.Errorf("the second: %+v", a)
	}
	if n := len(sim.Journal().Requests(altershield.ActionStartBatch)); n != 1 {
		t.Errorf("%d starts", n)
	}
	first.Status.Status = v1alpha1.ChangePodExecuteDone
	if _, err := p.Next(t.Context(), checks.Subject{Release: change, Batch: first, Settings: set}); err != nil {
		t.Fatal(err)
	}
	if a := start(second); a.Kind != server.AnswerDone {
		t.Errorf("the second, after the first ended: %+v", a)
	}
}

// TestEndPanics: an end whose call panicked is notified again.
func TestEndPanics(t *testing.T) {
	m := newMemory(clocktesting.NewFakePassiveClock(serverNow), nil)
	func() {
		defer func() { _ = recover() }()
		m.end(server.CallEnd, "order", func() server.Answer { panic("a defect") })
	}()
	a := m.end(server.CallEnd, "order", func() server.Answer { return server.Answer{Kind: server.AnswerDone} })
	if a.Kind != server.AnswerDone {
		t.Errorf("the next try: %+v", a)
	}
}
