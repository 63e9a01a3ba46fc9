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
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/server"
)

const serverVersion = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

var serverNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func newTestServer(t *testing.T, o simulator.Options) (*Server, *simulator.Simulator) {
	t.Helper()
	o.Token = "a-token-of-the-tests"
	sim := simulator.New(o)
	if err := sim.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Shutdown)
	c, err := altershield.New(
		altershield.Options{URL: sim.URL(), Platform: altershield.DefaultPlatform, Tokens: altershield.StaticTokens{o.Token}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &Server{
		Client: c, Cluster: "cluster-uid", Tenant: altershield.DefaultTenant, Scene: altershield.DefaultScene, Phase: altershield.PhaseProd,
		TargetType: altershield.DefaultTargetType,
	}, sim
}

func testRelease() (*v1alpha1.ChangeWorkload, *v1alpha1.ChangePod) {
	change := &v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web--x--" + serverVersion},
		Spec: v1alpha1.ChangeWorkloadSpec{
			AppName: "shop", ServiceName: "web", Reversion: serverVersion, CreateTimeUnix: serverNow.Unix() - 60,
		},
		Status: v1alpha1.ChangeWorkloadStatus{
			Status: v1alpha1.ChangeWorkloadSuccess, Attempt: 1, PassCount: 3, FailCount: 1, CheckingCount: 2,
			OrderStatus: v1alpha1.OrderStatus{
				OrderID:  server.OrderID("cluster-uid", "web-uid", serverVersion, 1, 1, "change-uid"),
				OrderEnd: v1alpha1.FinishSuccess, OrderSubmitTimeUnix: serverNow.Unix() - 60,
			},
		},
	}
	batch := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: change.Name + "--x--3"},
		Spec: v1alpha1.ChangePodSpec{TotalBatches: 5, Last: true, CreateTimeUnix: serverNow.Unix() - 5,
			PodInfos: []v1alpha1.PodInfo{{Pod: "web-1", IP: "10.0.0.1"}, {Pod: "web-2"}}},
	}
	return change, batch
}

// TestOrderOf: all calls about an order have the tenant and the phase of the annotations of its
// namespace.
func TestOrderOf(t *testing.T) {
	s, sim := newTestServer(t, simulator.Options{})
	for name, test := range map[string]struct {
		tenant, phase         string
		wantTenant, wantPhase string // of the order
		problem               string // a part of it
	}{
		"nothing":    {"", "", altershield.DefaultTenant, altershield.PhaseProd, ""},
		"both":       {" team-a ", altershield.PhasePre, "team-a", altershield.PhasePre, ""},
		"no phase":   {"team-a", "production", "team-a", altershield.PhaseProd, `"production" is not one of`},
		"too long":   {strings.Repeat("a", 129), "", altershield.DefaultTenant, altershield.PhaseProd, "longer than 128"},
		"both wrong": {strings.Repeat("a", 129), "x", altershield.DefaultTenant, altershield.PhaseProd, "--altershield-phase applies"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := &metav1.PartialObjectMetadata{}
			ns.Annotations = map[string]string{v1alpha1.TenantAnnotation: test.tenant, v1alpha1.PhaseAnnotation: test.phase}
			tenant, phase, problems := OrderOf(ns)
			if all := strings.Join(problems, "; "); (all == "") != (test.problem == "") || !strings.Contains(all, test.problem) {
				t.Errorf("problems %q, want %q", all, test.problem)
			}
			change, batch := testRelease()
			change.Status.OrderID += "-" + strings.ReplaceAll(name, " ", "-")
			change.Status.OrderTenant, change.Status.OrderPhase = tenant, phase
			if a := s.submit(t.Context(), change, released{namespace: "ns", workload: "web", by: "jane"}); a.Kind != server.AnswerDone {
				t.Fatalf("submit: %+v", a)
			}
			var order altershield.SubmitOrderRequest
			requests := sim.Journal().Requests(altershield.ActionSubmitOrder)
			if err := requests[len(requests)-1].Decode(&order); err != nil {
				t.Fatal(err)
			}
			started := s.batchRequest(change, batch, serverNow)
			got := []string{order.TenantCode, order.ChangePhases[0], started.TenantCode, started.ChangePhase}
			if diff := cmp.Diff([]string{test.wantTenant, test.wantPhase, test.wantTenant, test.wantPhase}, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestServerReportsARelease(t *testing.T) {
	s, sim := newTestServer(t, simulator.Options{})
	change, batch := testRelease()
	about := released{
		namespace: "ns", workload: "web", apiVersion: "apps/v1", kind: "deployment", by: "jane", images: []string{"i:2"},
		oldImages: []string{"i:1"},
	}
	ctx := t.Context()
	// A stock server returns the id instead of a URL.
	if a := s.submit(ctx, change, about); a.Kind != server.AnswerDone || a.URL != "" {
		t.Fatalf("submitted: %+v", a)
	}
	if again := s.submit(ctx, change, about); again.Kind != server.AnswerDuplicate {
		t.Errorf("submitted again: %+v", again)
	}
	order := s.startOrder(ctx, change, about, serverNow)
	started := s.startBatch(ctx, change, batch, serverNow)
	if order.NodeID == "" || started.NodeID == "" || order.NodeID == started.NodeID {
		t.Fatalf("entries %q and %q", order.NodeID, started.NodeID)
	}
	change.Status.OrderNodeID, batch.Status.ChangePodID = order.NodeID, started.NodeID
	finish := func() server.Answer { return s.finishBatch(ctx, change, batch, serverNow) }
	a := finish()
	for deadline := time.Now().Add(10 * time.Second); a.Kind == server.AnswerUnsupported && time.Now().Before(deadline); a = finish() {
		// The PRE check of the simulator is about to end.
		continue
	}
	if a.Kind != server.AnswerDone {
		t.Fatalf("finish: %+v", a)
	}
	if a := s.endOrder(ctx, change, "why", serverNow); a.Kind != server.AnswerDone {
		t.Fatalf("end: %+v", a)
	}

	var submitted altershield.SubmitOrderRequest
	var batchStart altershield.StartBatchRequest
	var finished altershield.FinishNodeRequest
	var end altershield.EndOrderRequest
	journal := sim.Journal()
	err := errors.Join(
		journal.Requests(altershield.ActionSubmitOrder)[0].Decode(&submitted),
		journal.Requests(altershield.ActionStartBatch)[0].Decode(&batchStart),
		journal.Requests(altershield.ActionFinishNode).Accepted()[0].Decode(&finished),
		journal.Requests(altershield.ActionEndOrder)[0].Decode(&end))
	if err != nil {
		t.Fatal(err)
	}
	for name, diff := range map[string]string{
		"parameters": cmp.Diff(`{"cluster":"cluster-uid","namespace":"ns","apiVersion":"apps/v1","kind":"deployment","workload":"web",`+
			`"version":"`+serverVersion+`","attempt":1,"images":["i:2"],"oldImages":["i:1"]}`, submitted.ChangeParamJSON),
		"title":   cmp.Diff("Release "+serverVersion+" of deployment ns/web", submitted.ChangeTitle),
		"creator": cmp.Diff("jane", submitted.Creator),
		"apps":    cmp.Diff([]string{"shop"}, submitted.ChangeApps),
		"contents": cmp.Diff([]altershield.ChangeContent{{
			ContentType: altershield.ContentType{TypeName: "paas.pod"}, InstanceName: "ns/web",
		}}, submitted.ChangeContents),
		"numbers":   cmp.Diff([]int{2, 5, 5}, []int{batchStart.BatchNo, batchStart.TotalBatchNum, batchStart.TotalBatchNumInChangePhase}),
		"tags":      cmp.Diff([]string{"last", "last"}, []string{batchStart.IsLastBatchTag, batchStart.IsLastBatchInChangePhaseTag}),
		"locations": cmp.Diff([]string{"web-1", "web-2"}, batchStart.EffectiveTargetLocations),
		"results": cmp.Diff(`{"batch":3,"pods":2,"verified":4,"passed":3,"failed":1,"checking":2,"durationSeconds":5}`,
			finished.ChangeResultJSON),
		"success": cmp.Diff(true, finished.Success),
		"end": cmp.Diff([]string{"SUCCESS", `{"verified":4,"passed":3,"failed":1,"checking":2,"durationSeconds":60}`},
			[]string{string(end.FinishState), end.ChangeResultJSON}),
	} {
		if diff != "" {
			t.Errorf("%s -want +got:\n%s", name, diff)
		}
	}
}

// TestEndsWithoutSuccess: the server gets the reason of a release that did not succeed, in a message
// that it can store.
func TestEndsWithoutSuccess(t *testing.T) {
	s, sim := newTestServer(t, simulator.Options{})
	ctx := t.Context()
	change, batch := testRelease()
	about := released{namespace: "ns", workload: "web", by: "jane"}
	s.submit(ctx, change, about)
	order, started := s.startOrder(ctx, change, about, serverNow), s.startBatch(ctx, change, batch, serverNow)
	change.Status.OrderNodeID = order.NodeID
	change.Status.OrderEnd, change.Status.Status = v1alpha1.FinishRollback, v1alpha1.ChangeWorkloadRollback
	why := "rolled back to version bb: " + strings.Repeat("é", 5000)
	meta.SetStatusCondition(&change.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRolledBack, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNeverStarted, Message: why,
	})
	batch.Status.ChangePodID, batch.Status.OrderID, batch.Status.EndDueTimeUnix = started.NodeID, change.Status.OrderID, serverNow.Unix()
	meta.SetStatusCondition(&batch.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionChecked, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCheckFailed,
		Message: "the PRE check failed: freeze",
	})
	for name, finish := range map[string]func() server.Answer{
		"batch": func() server.Answer { return s.finishBatch(ctx, change, batch, serverNow) },
		"order": func() server.Answer {
			return s.finishOrder(ctx, change, server.HowReleaseEnded(&change.Status), serverNow)
		},
	} {
		a := finish()
		for deadline := time.Now().Add(10 * time.Second); a.Kind == server.AnswerUnsupported && time.Now().Before(deadline); a = finish() {
			// The PRE check of the simulator is about to end.
			continue
		}
		if a.Kind != server.AnswerDone {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if a := s.endOrder(ctx, change, server.HowReleaseEnded(&change.Status), serverNow); a.Kind != server.AnswerDone {
		t.Errorf("end: %+v", a)
	}
	ends := map[string]altershield.FinishNodeRequest{}
	for _, r := range sim.Journal().Requests(altershield.ActionFinishNode).Accepted() {
		var finish altershield.FinishNodeRequest
		if err := r.Decode(&finish); err != nil {
			t.Fatal(err)
		}
		ends[finish.NodeID] = finish
	}
	if got := ends[started.NodeID]; got.Success || got.Msg != "the PRE check failed: freeze" {
		t.Errorf("batch: success %t, %q", got.Success, got.Msg)
	}
	cut := server.HowReleaseEnded(&change.Status)[:4047] // the next character has two bytes
	if got := ends[order.NodeID]; got.Success || got.Msg != cut {
		t.Errorf("order: success %t, message of %d bytes", got.Success, len(got.Msg))
	}
	var end altershield.EndOrderRequest
	err := sim.Journal().Requests(altershield.ActionEndOrder)[0].Decode(&end)
	if err != nil || end.FinishState != altershield.FinishRollback || end.Msg != cut {
		t.Errorf("end: %s, message of %d bytes, %v", end.FinishState, len(end.Msg), err)
	}
}

// TestOrigin: the server accepts the link and the parent order of a release, and gets the workload with each batch. A
// repeated submission is a duplicate: annotations that were edited meanwhile have no effect.
func TestOrigin(t *testing.T) {
	s, sim := newTestServer(t, simulator.Options{})
	change, batch := testRelease()
	change.Spec.WorkloadRef = &v1alpha1.WorkloadReference{APIVersion: "apps/v1", Kind: "StatefulSet"}
	origin := altershield.Origin{
		ChangeURL: "https://ci.example.com/7", ParentOrderInfo: &altershield.ParentOrder{OrderID: "CHG-7", OrderTitle: "Spring"},
	}
	about := released{namespace: "ns", workload: "web", by: "jane", origin: origin}
	first := s.submit(t.Context(), change, about)
	about.origin.ChangeURL = "https://ci.example.com/8"
	if again := s.submit(t.Context(), change, about); first.Kind != server.AnswerDone || again.Kind != server.AnswerDuplicate {
		t.Fatalf("submit: %+v, then %+v", first, again)
	}
	if a := s.startBatch(t.Context(), change, batch, serverNow); a.Kind != server.AnswerDone {
		t.Fatalf("start: %+v", a)
	}
	var order altershield.SubmitOrderRequest
	var start altershield.StartBatchRequest
	err := errors.Join(
		sim.Journal().Requests(altershield.ActionSubmitOrder).Accepted()[0].Decode(&order),
		sim.Journal().Requests(altershield.ActionStartBatch)[0].Decode(&start))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(origin, order.Origin); diff != "" {
		t.Errorf("origin -want +got:\n%s", diff)
	}
	got := []any{start.ExtInfo["namespace"], start.ExtInfo["workloadType"], start.ExtInfo["workloadName"]}
	if diff := cmp.Diff([]any{"ns", "StatefulSet", "web"}, got); diff != "" {
		t.Errorf("extInfo -want +got:\n%s", diff)
	}
}

// TestManyPods: the server accepts a batch of thousands of pods, and an order with many images.
// The pods and images that are left out are counted.
func TestManyPods(t *testing.T) {
	for name, test := range map[string]struct {
		pods, length              int
		targets, extInfo, leftOut bool // which parts are cut, and whether the request says so
	}{
		"few":                     {200, 40, false, false, false},
		"long names":              {200, 253, false, true, true},
		"more than a batch holds": {5000, 63, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, sim := newTestServer(t, simulator.Options{})
			change, batch := testRelease()
			about := released{namespace: "ns", workload: "web", by: "jane", images: make([]string, 200)}
			for i := range about.images {
				about.images[i] = strings.Repeat("i", 500)
			}
			batch.Spec.PodInfos = nil
			for i := range test.pods {
				pod := fmt.Sprintf("%0*d", test.length, i)
				batch.Spec.PodInfos = append(batch.Spec.PodInfos, v1alpha1.PodInfo{
					App: "shop", WorkSpace: "ns", Namespace: "ns", Pod: pod, HostName: "node-" + pod[test.length-20:], IP: "10.200.200.200",
					UID: "01234567-0123-0123-0123-0123456789ab",
				})
			}
			if a := s.submit(t.Context(), change, about); a.Kind != server.AnswerDone {
				t.Fatalf("submit: %+v", a)
			}
			if a := s.startBatch(t.Context(), change, batch, serverNow); a.Kind != server.AnswerDone {
				t.Fatalf("start: %+v", a)
			}
			var order altershield.SubmitOrderRequest
			var start altershield.StartBatchRequest
			err := errors.Join(
				sim.Journal().Requests(altershield.ActionSubmitOrder)[0].Decode(&order),
				sim.Journal().Requests(altershield.ActionStartBatch)[0].Decode(&start))
			if err != nil {
				t.Fatal(err)
			}
			var params orderParams
			err = json.Unmarshal([]byte(order.ChangeParamJSON), &params)
			if err != nil || len(params.Images) == 0 || len(params.Images)+params.ImagesLeftOut != 200 {
				t.Errorf("%d images, %d left out, %v", len(params.Images), params.ImagesLeftOut, err)
			}
			pods, _ := start.ExtInfo["pods"].([]any)
			number := func(key string) int { n, _ := start.ExtInfo[key].(float64); return int(n) }
			if cut := len(start.EffectiveTargetLocations) < test.pods; cut != test.targets || len(start.EffectiveTargetLocations) == 0 {
				t.Errorf("%d targets of %d", len(start.EffectiveTargetLocations), test.pods)
			}
			if cut := len(pods) < test.pods; cut != test.extInfo || len(pods) == 0 {
				t.Errorf("%d pods of %d in extInfo", len(pods), test.pods)
			}
			want := []int{0, 0, 0}
			if test.leftOut {
				want = []int{test.pods, test.pods - len(pods), test.pods - len(start.EffectiveTargetLocations)}
			}
			if diff := cmp.Diff(want, []int{number("podCount"), number("podsLeftOut"), number("targetsLeftOut")}); diff != "" {
				t.Errorf("counts -want +got:\n%s", diff)
			}
		})
	}
}

// TestLongNames: the server accepts the requests about a release with very long names.
func TestLongNames(t *testing.T) {
	s, _ := newTestServer(t, simulator.Options{})
	change, batch := testRelease()
	long := strings.Repeat("é", 3000)
	about := released{
		namespace: strings.Repeat("n", 63), workload: strings.Repeat("w", 253), apiVersion: "apps/v1", kind: "deployment", by: long,
		images: []string{long, long, long, long, long}, override: &defense.Overridden{By: long, Passed: []string{defense.OverrodeBlock}},
	}
	change.Spec.AppName, change.Status.OrderTenant = about.workload, strings.Repeat("t", maxTenant)
	if a := s.submit(t.Context(), change, about); a.Kind != server.AnswerDone {
		t.Fatalf("submit: %+v", a)
	}
	order, started := s.startOrder(t.Context(), change, about, serverNow), s.startBatch(t.Context(), change, batch, serverNow)
	if order.Kind != server.AnswerDone || started.Kind != server.AnswerDone {
		t.Errorf("start: %+v, %+v", order, started)
	}
	if a := s.endOrder(t.Context(), change, long, serverNow); a.Kind != server.AnswerDone {
		t.Errorf("end: %+v", a)
	}
}

// TestOverrideIsNoEmergency: an override is in the parameters only. The order is not marked as an
// emergency, for which the server skips its rules.
func TestOverrideIsNoEmergency(t *testing.T) {
	s, sim := newTestServer(t, simulator.Options{})
	sim.Script(simulator.Script{Match: simulator.Match{Stage: altershield.StagePre}, Never: true})
	change, batch := testRelease()
	override := &defense.Overridden{By: "jane", Passed: []string{defense.OverrodeBlock}}
	about := released{namespace: "ns", workload: "web", by: "jane", override: override}
	s.submit(t.Context(), change, about)
	s.startOrder(t.Context(), change, about, serverNow)
	s.startBatch(t.Context(), change, batch, serverNow)
	for _, r := range sim.Journal() {
		if strings.Contains(string(r.Body), "emergency") {
			t.Errorf("%s: %s", r.Action, r.Body)
		}
	}
	var order altershield.SubmitOrderRequest
	if err := sim.Journal().Requests(altershield.ActionSubmitOrder)[0].Decode(&order); err != nil {
		t.Fatal(err)
	}
	if order.ChangeScenarioCode != altershield.ScenarioDefault ||
		!strings.Contains(order.ChangeParamJSON, `"override":{"by":"jane","passed":["block"]}`) {
		t.Errorf("scenario %s, parameters %s", order.ChangeScenarioCode, order.ChangeParamJSON)
	}
}

// TestServerForgotTheOrder: the code 101 may mean that the order is not known, or that the step
// is not configured.
func TestServerForgotTheOrder(t *testing.T) {
	change, batch := testRelease()
	about := released{namespace: "ns", workload: "web", kind: "deployment", by: operatorUser}
	for name, test := range map[string]struct {
		options         simulator.Options
		known           server.Calls
		want            server.AnswerKind
		starts, submits int
	}{
		"forgotten": {simulator.Options{}, server.Calls{}, server.AnswerDone, 2, 1},
		"not configured": {
			simulator.Options{Unconfigured: []altershield.Action{altershield.ActionStartBatch}}, server.Calls{}, server.AnswerIllegal, 2, 1,
		},
		"not configured, again": {
			simulator.Options{Unconfigured: []altershield.Action{altershield.ActionStartBatch}},
			server.Calls{Call: server.CallStart, Last: server.AnswerIllegal}, server.AnswerIllegal, 1, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, sim := newTestServer(t, test.options)
			start := func() server.Answer { return s.startBatch(t.Context(), change, batch, serverNow) }
			a := s.startKnown(t.Context(), change, about, test.known, start)
			journal := sim.Journal()
			starts, submits := len(journal.Requests(altershield.ActionStartBatch)), len(journal.Requests(altershield.ActionSubmitOrder))
			if a.Kind != test.want || starts != test.starts || submits != test.submits {
				t.Errorf("%s after %d starts and %d submissions; want %s, %d, %d", a.Kind, starts, submits, test.want, test.starts, test.submits)
			}
		})
	}
}

func TestServerPolls(t *testing.T) {
	s, sim := newTestServer(t, simulator.Options{})
	sim.Script(simulator.Script{Never: true})
	change, batch := testRelease()
	s.submit(t.Context(), change, released{namespace: "ns", workload: "web", kind: "deployment", by: operatorUser})
	started := s.startBatch(t.Context(), change, batch, serverNow)
	if a := s.poll(t.Context(), change, started.NodeID, altershield.StagePre); a.Kind != server.AnswerNotPassed {
		t.Errorf("a check that runs: %+v", a)
	}
	if a := s.poll(t.Context(), change, "another", altershield.StagePre); a.Kind != server.AnswerUnsupported {
		t.Errorf("an unknown entry: %+v", a)
	}
}

func TestAnswerOf(t *testing.T) {
	refusal := func(code altershield.ResultCode, class altershield.Class) error {
		return &altershield.Error{Action: altershield.ActionStartBatch, Code: code, Class: class, HTTPStatus: 200}
	}
	for name, test := range map[string]struct {
		err  error
		want server.AnswerKind
	}{
		"another just failed": {&altershield.Error{Class: altershield.ClassRetry, Err: altershield.ErrJustFailed}, server.AnswerRetry},
		"none":                {nil, server.AnswerDone},
		"throttled":           {&altershield.Error{Class: altershield.ClassRetry, Err: altershield.ErrThrottled}, server.AnswerThrottled},
		"breaker open":        {&altershield.Error{Class: altershield.ClassRetry, Err: altershield.ErrBreakerOpen}, server.AnswerRetry},
		"transport":           {&altershield.Error{Class: altershield.ClassRetry, Err: errors.New("reset")}, server.AnswerRetry},
		"anything":            {errors.New("something"), server.AnswerRetry},
		"101":                 {refusal("101", altershield.ClassGiveUp), server.AnswerIllegal},
		"102":                 {refusal("102", altershield.ClassHuman), server.AnswerDenied},
		"no token":            {&altershield.Error{Class: altershield.ClassHuman, Err: altershield.ErrNoToken}, server.AnswerDenied},
		"103":                 {refusal("103", altershield.ClassGiveUp), server.AnswerUnsupported},
		"104":                 {refusal("104", altershield.ClassRetry), server.AnswerRetry},
		"105":                 {refusal("105", altershield.ClassGiveUp), server.AnswerRefused},
		"106":                 {refusal("106", altershield.ClassGiveUp), server.AnswerDuplicate},
		"151":                 {refusal("151", altershield.ClassGiveUp), server.AnswerNoCheck},
		"901":                 {refusal("901", altershield.ClassRetry), server.AnswerRetry},
		"901 for ever":        {refusal("901", altershield.ClassGiveUp), server.AnswerUnprocessable},
		"HTTP 400":            {&altershield.Error{Class: altershield.ClassGiveUp, HTTPStatus: 400}, server.AnswerRefused},
		"wrapped":             {fmt.Errorf("call: %w", refusal("106", altershield.ClassGiveUp)), server.AnswerDuplicate},
	} {
		t.Run(name, func(t *testing.T) {
			if got := answerOf(test.err); got.Kind != test.want || got.Unsent != (name == "breaker open") {
				t.Errorf("%v is %s, unsent %t, want %s", test.err, got.Kind, got.Unsent, test.want)
			}
		})
	}
}

func TestCallMemory(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(serverNow)
	m := newMemory(clock, nil)
	key := recordKey{types.NamespacedName{Namespace: "ns", Name: "batch"}, true}
	retry := server.Answer{Kind: server.AnswerRetry}
	for range 20 {
		m.remember(key, "uid", answered{server.CallStart, retry})
	}
	c := m.recall(key, "uid")
	if wait := c.NotBefore.Sub(serverNow); c.Failures != 20 || wait < 15*time.Second || wait > 30*time.Second {
		t.Errorf("%d failures, next try in %s, want 20 and 15 s to 30 s", c.Failures, wait)
	}
	if c := m.recall(key, "another"); c.Failures != 0 || c.Started != serverNow {
		t.Errorf("of another object of that name: %+v", c)
	}
	if c := m.recall(recordKey{key.NamespacedName, false}, "uid"); c.Failures != 0 {
		t.Errorf("of a release of that name: %+v", c)
	}
	m.forget(key)
	if c := m.recall(key, "uid"); c.Failures != 0 {
		t.Errorf("after it was forgotten: %+v", c)
	}
}

// TestEnds: an end that the server took is not sent again. The server refuses the end of an entry whose PRE check
// goes on; that end is sent again. It refuses the end of an order for good.
func TestEnds(t *testing.T) {
	e := newMemory(clocktesting.NewFakePassiveClock(serverNow), nil)
	sent := 0
	send := func(kind server.AnswerKind) func() server.Answer {
		return func() server.Answer { sent++; return server.Answer{Kind: kind} }
	}
	for i, step := range []struct {
		call         server.Call
		answer, want server.AnswerKind
		sent         int
	}{
		{server.CallEnd, server.AnswerRetry, server.AnswerRetry, 1},
		{server.CallEnd, server.AnswerDone, server.AnswerDone, 2},
		{server.CallEnd, server.AnswerDone, server.AnswerDuplicate, 2},
		{server.CallFinish, server.AnswerRetry, server.AnswerRetry, 3},
		{server.CallFinish, server.AnswerUnsupported, server.AnswerUnsupported, 4},
		{server.CallFinish, server.AnswerDone, server.AnswerDone, 5},
		{server.CallFinish, server.AnswerDone, server.AnswerDuplicate, 5},
	} {
		if got := e.end(step.call, "id", send(step.answer)); got.Kind != step.want || sent != step.sent {
			t.Errorf("step %d: %s after %d calls, want %s after %d", i, got.Kind, sent, step.want, step.sent)
		}
	}
	e.end(server.CallEnd, "refused", send(server.AnswerUnsupported))
	if again := e.end(server.CallEnd, "refused", send(server.AnswerDone)); again.Kind != server.AnswerDuplicate || sent != 6 {
		t.Errorf("the end of an order that was refused for good: %s after %d calls", again.Kind, sent)
	}
	var inside server.Answer
	e.end(server.CallEnd, "another", func() server.Answer {
		inside = e.end(server.CallEnd, "another", send(server.AnswerDone))
		return server.Answer{Kind: server.AnswerDone}
	})
	if inside.Kind != server.AnswerThrottled || sent != 6 {
		t.Errorf("while it is sent: %s, want a later retry", inside.Kind)
	}
}
