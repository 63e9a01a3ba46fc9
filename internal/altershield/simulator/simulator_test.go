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

package simulator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	as "github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

const (
	token          = "0123456789abcdef"
	admissionScene = "scene.of.admission"
)

// receiver takes callbacks as the operator does.
type receiver struct {
	server *httptest.Server
	mu     sync.Mutex
	got    []as.Callback
	bodies []string
	errs   []error
	types  []string
	before func()
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if !as.Verify(req.Header.Get(as.HeaderSign), req.Header.Get(as.HeaderTimestamp), body, token) {
		err = errors.Join(err, errors.New("wrong signature"))
	}
	c, parseErr := as.ParseCallback(req.Header.Get("Content-Type"), body)
	if r.before != nil {
		r.before()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.types = append(r.types, req.Header.Get("Content-Type"))
	r.bodies = append(r.bodies, string(body))
	if err = errors.Join(err, parseErr); err != nil {
		r.errs = append(r.errs, err)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	r.got = append(r.got, *c)
	// The server ignores the answer: this asks to repeat, in vain.
	fmt.Fprint(w, `{"success":false,"retry":true,"msg":"again"}`)
}

func (r *receiver) callbacks() []as.Callback {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

type env struct {
	*testing.T
	sim    *simulator.Simulator
	client *as.Client
	recv   *receiver
	ctx    context.Context
}

func newEnv(t *testing.T, change func(*simulator.Options)) *env {
	t.Helper()
	recv := &receiver{}
	recv.server = httptest.NewServer(recv)
	t.Cleanup(recv.server.Close)
	o := simulator.Options{Token: token, AdmissionScene: admissionScene, CallbackURLs: []string{recv.server.URL}}
	if change != nil {
		change(&o)
	}
	sim := simulator.New(o)
	if err := sim.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Shutdown)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	e := &env{T: t, sim: sim, recv: recv, ctx: ctx}
	e.client = e.newClient(token)
	return e
}

func (e *env) newClient(token string) *as.Client {
	e.Helper()
	c, err := as.New(as.Options{URL: e.sim.URL(), Platform: as.DefaultPlatform, Tokens: as.StaticTokens{token}})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(c.Close)
	return c
}

func base(order string) as.Base {
	return as.Base{TenantCode: as.DefaultTenant, ChangeSceneKey: as.DefaultScene, BizExecOrderID: order, Platform: as.DefaultPlatform}
}

func orderOf(workload string) as.Order {
	return as.Order{
		ChangeTitle: "release " + workload, Creator: "alice", ChangeScenarioCode: as.ScenarioDefault,
		ChangePhases:    []string{as.PhaseProd},
		ChangeContents:  []as.ChangeContent{{ContentType: as.ContentType{TypeName: as.DefaultTargetType}, InstanceName: workload}},
		ChangeParamJSON: `{"namespace":"default","workload":"` + workload + `"}`,
	}
}

func batchOf(order string, locations ...string) as.StartBatchRequest {
	return as.StartBatchRequest{
		Base: base(order), Start: as.Start{Executor: "alice"}, TotalBatchNum: 1, TotalBatchNumInChangePhase: 1,
		IsLastBatchTag: as.TagLast, IsLastBatchInChangePhaseTag: as.TagLast, ChangePhase: as.PhaseProd,
		EffectiveTargetType: as.DefaultTargetType, EffectiveTargetLocations: locations,
	}
}

func (e *env) submit(order string) {
	e.Helper()
	if _, err := e.client.SubmitOrder(e.ctx, as.SubmitOrderRequest{Base: base(order), Order: orderOf("sleep")}); err != nil {
		e.Fatal(err)
	}
}

func (e *env) startOrder(order string) *as.NodeResult {
	e.Helper()
	r, err := e.client.StartOrder(e.ctx, as.StartOrderRequest{Base: base(order), Start: as.Start{Executor: "alice"}})
	if err != nil {
		e.Fatal(err)
	}
	return r
}

func (e *env) startBatch(order string, locations ...string) *as.NodeResult {
	e.Helper()
	r, err := e.client.StartBatch(e.ctx, batchOf(order, locations...))
	if err != nil {
		e.Fatal(err)
	}
	return r
}

func (e *env) finish(order, node string) error {
	_, err := e.client.FinishNode(e.ctx, as.FinishNodeRequest{Base: base(order), NodeID: node, Success: true})
	return err
}

func (e *env) poll(order, node string, stage as.Stage) (*as.PollResult, error) {
	return e.client.RetrieveCheck(e.ctx, as.RetrieveCheckRequest{Base: base(order), NodeID: node, DefenseStage: stage})
}

func (e *env) expectPoll(order, node string, stage as.Stage, finished, passed bool) {
	e.Helper()
	got, err := e.poll(order, node, stage)
	if err != nil || got.Finished != finished || got.Passed() != passed {
		e.Errorf("poll of %s: %+v, %v, want finished: %t, passed: %t", stage, got, err, finished, passed)
	}
}

// waitCallback waits for the answered, dropped or failed callbacks of a node.
func (e *env) waitCallback(node string, stage as.Stage, n int) simulator.Journal {
	e.Helper()
	match := func(j simulator.Journal) simulator.Journal {
		return j.Callbacks().Filter(func(c simulator.Entry) bool {
			return c.Node == node && c.Callback.Request.Stage == stage && c.Outcome != simulator.OutcomePending
		})
	}
	if err := e.sim.WaitFor(e.ctx, func(j simulator.Journal) bool { return len(match(j)) >= n }); err != nil {
		e.Fatal(err)
	}
	return match(e.sim.Journal())
}

func (e *env) refused(err error, want as.ResultCode) {
	e.Helper()
	var got *as.Error
	if !errors.As(err, &got) || got.Code != want {
		e.Errorf("error %v, want result code %s", err, want)
	}
}

// TestReleaseOfTwoBatches: a release without failures, and its journal.
func TestReleaseOfTwoBatches(t *testing.T) {
	e := newEnv(t, nil)
	e.submit("o1")
	order := e.startOrder("o1")
	e.waitCallback(order.NodeID, as.StagePre, 1)
	for _, pod := range []string{"pod-1", "pod-2"} {
		batch := e.startBatch("o1", pod)
		if batch.SkipCheck || batch.URL != "" {
			t.Errorf("start answered %+v", batch)
		}
		e.waitCallback(batch.NodeID, as.StagePre, 1)
		if err := e.finish("o1", batch.NodeID); err != nil {
			t.Fatal(err)
		}
		e.waitCallback(batch.NodeID, as.StagePost, 1)
		e.expectPoll("o1", batch.NodeID, as.StagePost, true, true)
	}
	if err := e.finish("o1", order.NodeID); err != nil {
		t.Fatal(err)
	}
	e.waitCallback(order.NodeID, as.StagePost, 1)
	if err := e.client.EndOrder(e.ctx, as.EndOrderRequest{Base: base("o1"), FinishState: as.FinishSuccess}); err != nil {
		t.Fatal(err)
	}

	j := e.sim.Journal()
	got := map[string]int{
		"orders": len(j.Orders()), "order starts": len(j.OrderStarts("o1")), "batch starts": len(j.BatchStarts("o1")),
		"finishes": len(j.Finishes("o1")), "ends": len(j.Ends("o1")), "callbacks": len(j.Of("o1").Callbacks()), "polls": len(j.Polls("o1")),
	}
	want := map[string]int{"orders": 1, "order starts": 1, "batch starts": 2, "finishes": 3, "ends": 1, "callbacks": 6, "polls": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("journal (-want +got):\n%s\n%s", diff, j)
	}
	start, ok := j.BatchStarts("o1")[1].Request.(*as.StartBatchRequest)
	if !ok || !slices.Equal(start.EffectiveTargetLocations, []string{"pod-2"}) || !j.BatchStarts("o1")[1].Signed {
		t.Errorf("second batch is recorded as %+v", start)
	}
	var types []as.CheckType
	for _, c := range e.recv.callbacks() {
		types = append(types, c.CheckType)
	}
	wantTypes := []as.CheckType{as.CheckOrder, as.CheckBatch, as.CheckBatch, as.CheckBatch, as.CheckBatch, as.CheckOrder}
	if diff := cmp.Diff(wantTypes, types); diff != "" {
		t.Errorf("callbacks (-want +got):\n%s", diff)
	}
	if len(e.recv.errs) > 0 {
		t.Errorf("the receiver refused: %v", e.recv.errs)
	}
}

// TestTrap1CallbackAtMostOnce: the server repeats neither a lost callback nor a callback whose
// answer asks for it. A poll gives the verdict.
func TestTrap1CallbackAtMostOnce(t *testing.T) {
	e := newEnv(t, nil)
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePost}, Drop: true})
	e.submit("o1")
	batch := e.startBatch("o1", "pod-1")
	pre := e.waitCallback(batch.NodeID, as.StagePre, 1)
	if pre[0].Answer == nil || !pre[0].Answer.Retry || pre[0].Outcome != "200" {
		t.Errorf("PRE callback: %s, answer %+v", pre[0], pre[0].Answer)
	}
	if err := e.finish("o1", batch.NodeID); err != nil {
		t.Fatal(err)
	}
	if post := e.waitCallback(batch.NodeID, as.StagePost, 1); post[0].Outcome != simulator.OutcomeDropped {
		t.Errorf("POST callback: %s", post[0])
	}
	e.expectPoll("o1", batch.NodeID, as.StagePost, true, true)
	e.sim.Shutdown() // no callback follows
	if got := len(e.recv.callbacks()); got != 1 {
		t.Errorf("%d callbacks arrived, want 1", got)
	}
}

// TestTrap2FinishAlwaysSaysSkipCheck: the answer to a finish says skipCheck although the check
// runs and its callback comes. Only in the answer to a start skipCheck has a meaning.
func TestTrap2FinishAlwaysSaysSkipCheck(t *testing.T) {
	e := newEnv(t, nil)
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePre, CheckType: as.CheckBatch}, SkipCheck: true})
	e.submit("o1")
	batch := e.startBatch("o1", "pod-1")
	if !batch.SkipCheck {
		t.Error("the start does not say skipCheck")
	}
	answer, err := e.client.FinishNode(e.ctx, as.FinishNodeRequest{Base: base("o1"), NodeID: batch.NodeID, Success: true})
	if err != nil || !answer.SkipCheck {
		t.Fatalf("finish answered %+v, %v", answer, err)
	}
	e.waitCallback(batch.NodeID, as.StagePost, 1)
	if got := e.sim.Journal().Callbacks(); len(got) != 1 {
		t.Errorf("callbacks:\n%s", got)
	}
}

// TestTrap3FinishRefusedWhileChecksRun: a finish is refused while checks run. After the POST
// check it is accepted and starts nothing.
func TestTrap3FinishRefusedWhileChecksRun(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	e := newEnv(t, func(o *simulator.Options) { o.Clock = clock })
	e.sim.Script(simulator.Script{Delay: time.Minute})
	e.submit("o1")
	batch := e.startBatch("o1", "pod-1")
	if err := e.finish("o1", batch.NodeID); as.CodeOf(err) != as.CodeNotSupported {
		t.Errorf("finish while PRE runs: %v", err)
	}
	e.step(clock, time.Minute)
	e.waitCallback(batch.NodeID, as.StagePre, 1)
	if err := e.finish("o1", batch.NodeID); err != nil {
		t.Fatal(err)
	}
	if err := e.finish("o1", batch.NodeID); as.CodeOf(err) != as.CodeNotSupported {
		t.Errorf("repeated finish while POST runs: %v", err)
	}
	e.step(clock, time.Minute)
	e.waitCallback(batch.NodeID, as.StagePost, 1)
	if err := e.finish("o1", batch.NodeID); err != nil {
		t.Errorf("finish after POST: %v", err)
	}
	e.sim.Shutdown()
	if got := e.sim.Journal().Callbacks(); len(got) != 2 {
		t.Errorf("callbacks:\n%s", got)
	}
}

// step advances the clock once a check waits for it.
func (e *env) step(clock *clocktesting.FakeClock, d time.Duration) {
	e.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !clock.HasWaiters() {
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			e.Fatal("nothing waits for the clock")
		}
	}
	clock.Step(d)
}

func (e *env) until(what string, done func() bool) {
	e.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-e.ctx.Done():
			e.Fatal("never: " + what)
		}
	}
}

// TestTrap3AmbiguousFinish: the server receives a finish, and the answer is lost. The refusal
// of the repeated finish means that the first one was received.
func TestTrap3AmbiguousFinish(t *testing.T) {
	e := newEnv(t, nil)
	e.submit("o1")
	batch := e.startBatch("o1", "pod-1")
	e.waitCallback(batch.NodeID, as.StagePre, 1)
	e.sim.Script(simulator.Script{Never: true})
	e.sim.Fault(simulator.Fault{Action: as.ActionFinishNode, Outage: simulator.LostReply, Times: 1})
	if err := e.finish("o1", batch.NodeID); !as.IsAmbiguous(err) || as.ClassOf(err) != as.ClassRetry {
		t.Fatalf("finish with lost reply: %v", err)
	}
	if err := e.finish("o1", batch.NodeID); as.CodeOf(err) != as.CodeNotSupported {
		t.Errorf("repeated finish: %v", err)
	}
}

// TestTrap4Orders: a node needs a known order, a repeated order is a duplicate, and a step that
// is not configured is answered 101, too.
func TestTrap4Orders(t *testing.T) {
	e := newEnv(t, func(o *simulator.Options) { o.Unconfigured = []as.Action{as.ActionStartOrder} })
	_, err := e.client.StartBatch(e.ctx, batchOf("o1", "pod-1"))
	if as.CodeOf(err) != as.CodeIllegalArgument {
		t.Errorf("batch of an unknown order: %v", err)
	}
	e.submit("o1")
	_, err = e.client.SubmitOrder(e.ctx, as.SubmitOrderRequest{Base: base("o1"), Order: orderOf("sleep")})
	if as.CodeOf(err) != as.CodeDuplicate {
		t.Errorf("second submission: %v", err)
	}
	_, err = e.client.StartOrder(e.ctx, as.StartOrderRequest{Base: base("o1"), Start: as.Start{Executor: "a"}})
	if as.CodeOf(err) != as.CodeIllegalArgument {
		t.Errorf("step that is not configured: %v", err)
	}
	other := as.SubmitOrderRequest{Base: base("o2"), Order: orderOf("sleep")}
	other.ChangeSceneKey = "unknown"
	if _, err = e.client.SubmitOrder(e.ctx, other); as.CodeOf(err) != as.CodeIllegalArgument {
		t.Errorf("unknown scene: %v", err)
	}
	e.sim.Forget()
	if _, err = e.client.StartBatch(e.ctx, batchOf("o1", "pod-1")); as.CodeOf(err) != as.CodeIllegalArgument {
		t.Errorf("batch of a forgotten order: %v", err)
	}
	e.submit("o1")
	if got := e.sim.Journal().Orders(); !slices.Equal(got, []string{"o1"}) {
		t.Errorf("orders %v", got)
	}
}

// TestTrap5EarlyCallback: a callback arrives ahead of the answer to the submission.
func TestTrap5EarlyCallback(t *testing.T) {
	e := newEnv(t, nil)
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePre}, Verdict: as.VerdictFail, Early: true})
	e.submit("o1")
	batch := e.startBatch("o1", "pod-1")
	got := e.recv.callbacks() // no waiting
	if len(got) != 1 || got[0].Request.NodeID != batch.NodeID || got[0].Request.Verdict.Passes() {
		t.Errorf("callbacks when the submission was answered: %+v", got)
	}
}

// TestTrap6ContentType: the callback's media type is not well formed.
func TestTrap6ContentType(t *testing.T) {
	e := newEnv(t, nil)
	e.submit("o1")
	e.waitCallback(e.startBatch("o1", "pod-1").NodeID, as.StagePre, 1)
	if !slices.Equal(e.recv.types, []string{"application/json;UTF-8"}) || len(e.recv.errs) > 0 {
		t.Errorf("content types %q, errors %v", e.recv.types, e.recv.errs)
	}
}

// TestTrap8BatchStartedTwice: the second start makes a second node and is no error.
func TestTrap8BatchStartedTwice(t *testing.T) {
	e := newEnv(t, nil)
	e.submit("o1")
	if a, b := e.startBatch("o1", "pod-1"), e.startBatch("o1", "pod-1"); a.NodeID == b.NodeID {
		t.Errorf("one node: %s", a.NodeID)
	}
}

// TestTrap9PreCallbackAfterFinishPasses: a PRE callback after the finish says pass, whatever the result.
func TestTrap9PreCallbackAfterFinishPasses(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	e := newEnv(t, func(o *simulator.Options) { o.Clock = clock })
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePost}, Never: true})
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePre}, Verdict: as.VerdictFail, CallbackDelay: time.Minute})
	e.submit("o1")
	early, late := e.startBatch("o1", "pod-1"), e.startBatch("o1", "pod-2")
	// After the PRE check ended the finish is accepted, although the callback was not sent yet.
	for err := e.finish("o1", late.NodeID); err != nil; err = e.finish("o1", late.NodeID) {
		if as.CodeOf(err) != as.CodeNotSupported {
			t.Fatal(err)
		}
	}
	e.expectPoll("o1", late.NodeID, as.StagePre, true, false)
	for len(e.sim.Journal().Callbacks()) < 2 {
		e.step(clock, time.Minute)
	}
	if got := e.waitCallback(early.NodeID, as.StagePre, 1)[0].Callback.Request.Verdict; got.Passes() {
		t.Errorf("before the finish: %+v", got)
	}
	if got := e.waitCallback(late.NodeID, as.StagePre, 1)[0].Callback.Request.Verdict; !got.Passes() {
		t.Errorf("after the finish: %+v", got)
	}
}

// TestTrap11Synchronous: the call works only on a G1 scene, with an order id of its own.
func TestTrap11Synchronous(t *testing.T) {
	e := newEnv(t, nil)
	e.sim.Script(simulator.Script{Match: simulator.Match{Workload: "default/bad"}, Verdict: as.VerdictFail, Msg: "no", URL: "http://x"})
	call := func(scene, id, workload string) (*as.SubmitAndStartResult, error) {
		r := as.SubmitAndStartRequest{Base: base(id), Order: orderOf(workload), Executor: "alice"}
		r.ChangeSceneKey = scene
		return e.client.SubmitAndStart(e.ctx, r)
	}
	_, err := call(as.DefaultScene, "a0", "sleep")
	e.refused(err, as.CodeNotSupported)
	if r, err := call(admissionScene, "a1", "sleep"); err != nil || !r.Verdict.Passes() || r.OrderID == "" || r.NodeID == "" {
		t.Errorf("good: %+v, %v", r, err)
	}
	_, err = call(admissionScene, "a1", "sleep")
	e.refused(err, as.CodeDuplicate)
	r, err := call(admissionScene, "a2", "bad")
	if err != nil || r.Verdict.Passes() || r.Verdict.Explanation() != "no; http://x" {
		t.Errorf("bad: %+v, %v", r, err)
	}
	if got := e.sim.Journal().Callbacks(); len(got) != 0 {
		t.Errorf("callbacks:\n%s", got)
	}
}

// TestTrap12EndOfOrderStoresNothing: all calls still work after the end of the order.
func TestTrap12EndOfOrderStoresNothing(t *testing.T) {
	e := newEnv(t, nil)
	e.submit("o1")
	for range 2 {
		if err := e.client.EndOrder(e.ctx, as.EndOrderRequest{Base: base("o1"), FinishState: as.FinishCancel}); err != nil {
			t.Fatal(err)
		}
	}
	e.waitCallback(e.startBatch("o1", "pod-1").NodeID, as.StagePre, 1)
}

// TestPolling: a poll says finished and failed while the check runs, and passed after it passed.
func TestPolling(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	e := newEnv(t, func(o *simulator.Options) { o.Clock = clock })
	e.sim.Script(simulator.Script{Delay: time.Minute})
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePre}, Verdict: as.VerdictFail, Delay: time.Minute, Times: 1})
	e.submit("o1")
	node := e.startBatch("o1", "pod-1").NodeID

	raw, err := e.poll("o1", node, as.StagePre)
	if err != nil || !raw.Finished || raw.Verdict.Verdict != as.VerdictFail || raw.Passed() {
		t.Errorf("poll of a running check: %+v, %v", raw, err)
	}
	e.step(clock, time.Minute)
	if failed := e.waitCallback(node, as.StagePre, 1); failed[0].Callback.Request.Verdict.Passes() {
		t.Errorf("first PRE callback: %s", failed[0])
	}
	e.expectPoll("o1", node, as.StagePre, true, false)
	node = e.startBatch("o1", "pod-2").NodeID
	e.step(clock, time.Minute)
	if passed := e.waitCallback(node, as.StagePre, 1); !passed[0].Callback.Request.Verdict.Passes() {
		t.Errorf("second PRE callback: %s", passed[0])
	}
	e.expectPoll("o1", node, as.StagePre, true, true)
	e.expectPoll("o1", node, as.StagePost, true, false)
	if err := e.finish("o1", node); err != nil {
		t.Fatal(err)
	}
	_, err = e.poll("o1", "unknown", as.StagePre)
	if as.CodeOf(err) != as.CodeNotSupported {
		t.Errorf("poll of an unknown node: %v", err)
	}
}

// TestTimeoutOnTheServer: the callback says pass, and a poll says not passed.
func TestTimeoutOnTheServer(t *testing.T) {
	e := newEnv(t, func(o *simulator.Options) { o.CheckTimeout = time.Millisecond })
	e.sim.Script(simulator.Script{Verdict: as.VerdictFail, Never: true})
	e.submit("o1")
	node := e.startBatch("o1", "pod-1").NodeID
	if c := e.waitCallback(node, as.StagePre, 1); !c[0].Callback.Request.Verdict.Passes() {
		t.Errorf("callback: %s", c[0])
	}
	e.expectPoll("o1", node, as.StagePre, true, false)
}

// TestResultAfterTheTimeout: after a timeout, polls give the late result of the check. There
// is no second callback.
func TestResultAfterTheTimeout(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	e := newEnv(t, func(o *simulator.Options) { o.CheckTimeout, o.Clock = time.Minute, clock })
	e.sim.Script(simulator.Script{Delay: 2 * time.Minute})
	e.submit("o1")
	node := e.startBatch("o1", "pod-1").NodeID
	e.step(clock, time.Minute)
	e.waitCallback(node, as.StagePre, 1)
	e.expectPoll("o1", node, as.StagePre, true, false)
	e.step(clock, time.Minute)
	for passed := false; !passed; {
		got, err := e.poll("o1", node, as.StagePre)
		if err != nil {
			t.Fatal(err)
		}
		passed = got.Passed()
	}
	if n := len(e.sim.Journal().Callbacks()); n != 1 {
		t.Errorf("%d callbacks, want 1", n)
	}
}

// TestLatePreFailure: a PRE check that timed out fails while the POST check runs. Then the POST
// check fails, with rules that passed.
func TestLatePreFailure(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	e := newEnv(t, func(o *simulator.Options) { o.CheckTimeout, o.Clock = time.Minute, clock })
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePost}, Delay: 40 * time.Second})
	e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePre}, Verdict: as.VerdictFail, Delay: 70 * time.Second})
	e.submit("o1")
	node := e.startBatch("o1", "pod-1").NodeID
	e.step(clock, time.Minute)
	if c := e.waitCallback(node, as.StagePre, 1)[0].Callback.Request.Verdict; !c.Passes() || len(c.Rules) != 0 {
		t.Errorf("the PRE check that timed out: %+v", c)
	}
	if err := e.finish("o1", node); err != nil {
		t.Fatal(err)
	}
	// The late end of the PRE check, and the end of the POST check.
	e.until("both checks wait", func() bool { return clock.Waiters() == 2 })
	e.step(clock, 10*time.Second)
	e.until("the PRE check failed", func() bool { return e.sim.PreFailedLate(node) })
	e.step(clock, 30*time.Second)
	c := e.waitCallback(node, as.StagePost, 1)[0].Callback.Request
	if c.Verdict.Passes() || len(c.Verdict.Rules) != 1 || c.Verdict.Rules[0].Verdict != "PASS" || c.Verdict.Rules[0].Stage != as.StagePost {
		t.Errorf("the POST check: %+v", c.Verdict)
	}
}

// TestLongMessage: the finish is accepted, and its check does not run.
func TestLongMessage(t *testing.T) {
	for length, want := range map[int]bool{4048: false, 4049: true} {
		e := newEnv(t, func(o *simulator.Options) { o.CheckTimeout = time.Millisecond })
		e.sim.Script(simulator.Script{Match: simulator.Match{Stage: as.StagePost}, Verdict: as.VerdictFail})
		e.submit("o1")
		node := e.startBatch("o1", "pod-1").NodeID
		e.waitCallback(node, as.StagePre, 1)
		body := `{"tenantCode":"default","changeSceneKey":"` + as.DefaultScene + `","bizExecOrderId":"o1","platform":"kubernetes",` +
			`"nodeId":"` + node + `","msg":"` + strings.Repeat("é", length) + `"}`
		if got := e.raw(as.ActionFinishNode, body, body); !strings.Contains(got, `"000"`) {
			t.Fatalf("%d characters: %s", length, got)
		}
		if c := e.waitCallback(node, as.StagePost, 1)[0].Callback.Request.Verdict; c.Passes() != want {
			t.Errorf("%d characters: the check that fails passes: %t, want %t", length, c.Passes(), want)
		}
	}
}

// TestPollsOfAServerThatTells: polls say whether a check runs, as in the protocol and unlike a stock server.
func TestPollsOfAServerThatTells(t *testing.T) {
	e := newEnv(t, func(o *simulator.Options) { o.PollsTellRunning = true })
	e.sim.Script(simulator.Script{Never: true})
	e.submit("o1")
	e.expectPoll("o1", e.startBatch("o1", "pod-1").NodeID, as.StagePre, false, false)
}

// TestFailingVerdict: only rules have the cause, and null fields are left out. Scripts match by
// pod and stage, and the script that was added last counts.
func TestFailingVerdict(t *testing.T) {
	e := newEnv(t, nil)
	e.sim.Script(simulator.Script{
		Match: simulator.Match{
			Location: regexp.MustCompile(`pod-2$`), Stage: as.StagePost, Workload: "sleep", Order: "o1", CheckType: as.CheckBatch,
		},
		Verdict: as.VerdictFail, Rules: []as.Rule{{Name: "error-rate", Msg: "5% > 1%", Verdict: "FAIL"}},
	})
	e.submit("o1")
	var explanations []string
	for _, pod := range []string{"pod-1", "pod-2"} {
		batch := e.startBatch("o1", pod)
		e.waitCallback(batch.NodeID, as.StagePre, 1)
		if err := e.finish("o1", batch.NodeID); err != nil {
			t.Fatal(err)
		}
		verdict := e.waitCallback(batch.NodeID, as.StagePost, 1)[0].Callback.Request.Verdict
		explanations = append(explanations, fmt.Sprint(verdict.Passes(), " ", verdict.Explanation()))
	}
	if diff := cmp.Diff([]string{"true ", "false error-rate: 5% > 1%"}, explanations); diff != "" {
		t.Errorf("POST verdicts (-want +got):\n%s", diff)
	}
	failing := e.recv.bodies[len(e.recv.bodies)-1]
	for _, absent := range []string{`"msg":""`, "null", `"verdict":{"url`, `"rollback"`} {
		if strings.Contains(failing, absent) {
			t.Errorf("%s is in %s", absent, failing)
		}
	}
}

// TestCopies: copies are sent at once, to the replicas in turn.
func TestCopies(t *testing.T) {
	e := newEnv(t, nil)
	second := httptest.NewServer(e.recv)
	t.Cleanup(second.Close)
	e.sim.SetCallbackURLs(e.recv.server.URL, second.URL)
	// Each callback waits for the others, so all are under way together.
	var together sync.WaitGroup
	together.Add(4)
	e.recv.before = func() { together.Done(); together.Wait() }
	e.sim.Script(simulator.Script{Copies: 4})
	e.submit("o1")
	sent := e.waitCallback(e.startBatch("o1", "pod-1").NodeID, as.StagePre, 4)
	got := map[string]int{}
	for _, c := range sent {
		got[c.URL+" "+c.Outcome]++
	}
	if diff := cmp.Diff(map[string]int{e.recv.server.URL + " 200": 2, second.URL + " 200": 2}, got); diff != "" {
		t.Errorf("callbacks (-want +got):\n%s", diff)
	}
}

func TestSignatureAndPlatform(t *testing.T) {
	order := as.SubmitOrderRequest{Base: base("o1"), Order: orderOf("sleep")}
	t.Run("enforced", func(t *testing.T) {
		e := newEnv(t, nil)
		_, err := e.newClient("another-token-00").SubmitOrder(e.ctx, order)
		e.refused(err, as.CodePermissionDenied)
		if as.ClassOf(err) != as.ClassHuman {
			t.Errorf("class %s", as.ClassOf(err))
		}
		err = e.newClient("another-token-00").Heartbeat(e.ctx)
		e.refused(err, as.CodePermissionDenied)
		if err := e.client.Heartbeat(e.ctx); err != nil {
			t.Error(err)
		}
	})
	t.Run("a stock server accepts anything", func(t *testing.T) {
		e := newEnv(t, func(o *simulator.Options) { o.SkipSignature = true })
		if _, err := e.newClient("another-token-00").SubmitOrder(e.ctx, order); err != nil {
			t.Error(err)
		}
		if e.sim.Journal()[0].Signed {
			t.Error("recorded as signed")
		}
	})
	t.Run("unknown platform", func(t *testing.T) {
		e := newEnv(t, func(o *simulator.Options) { o.Platform = "other" })
		_, err := e.client.SubmitOrder(e.ctx, order)
		e.refused(err, as.CodePermissionDenied)
	})
}

// TestBodyIsReadByLines: the server verifies a body of several lines without its newlines, so
// its signature must be made without newlines.
func TestBodyIsReadByLines(t *testing.T) {
	e := newEnv(t, nil)
	tests := map[string]struct {
		body, signed string
		want         string
	}{
		"one line":             {`{"a":1}`, `{"a":1}`, `"101"`},
		"a trailing newline":   {"{\"a\":1}\n", "{\"a\":1}\n", `"102"`},
		"signed as it is read": {"{\"a\":\r\n1}\n", `{"a":1}`, `"101"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := e.raw(as.ActionSubmitOrder, tc.body, tc.signed); !strings.Contains(got, tc.want) {
				t.Errorf("answer %s, want %s", got, tc.want)
			}
		})
	}
}

// raw posts a body as it is.
func (e *env) raw(action as.Action, body, signed string) string {
	e.Helper()
	req, err := http.NewRequestWithContext(e.ctx, http.MethodPost, e.sim.URL()+as.PathExe+string(action), strings.NewReader(body))
	if err != nil {
		e.Fatal(err)
	}
	req.Header.Set(as.HeaderPlatform, as.DefaultPlatform)
	req.Header.Set(as.HeaderTimestamp, "1")
	req.Header.Set(as.HeaderSign, as.Sign("1", []byte(signed), token))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		e.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(data))
}

// TestValidation: the simulator refuses what the server does.
func TestValidation(t *testing.T) {
	e := newEnv(t, nil)
	e.submit("o1")
	common := `"tenantCode":"default","changeSceneKey":"` + as.DefaultScene + `","bizExecOrderId":"o1","platform":"kubernetes"`
	batch := func(more string) string {
		return `{` + common + `,"executor":"a","changePhase":"prod_phase","effectiveTargetType":"t","effectiveTargetLocations":["p"]` + more + `}`
	}
	numbers := `,"batchNo":0,"totalBatchNum":1,"totalBatchNumInChangePhase":1`
	order := func(creator, more string) string {
		return `{` + strings.Replace(common, "o1", "o2", 1) + `,"changeTitle":"t","creator":"` + creator + `",` +
			`"changeScenarioCode":"XX","changePhases":["prod_phase"],"changeContents":[{}],"changeParamJson":"{}"` + more + `}`
	}
	targets := func(length int) string {
		return batch(numbers + `,"effectiveTargetLocations":["` + strings.Repeat("p", length) + `"]`)
	}
	instead := func(old, with string) string { return strings.Replace(order("a", ""), old, with, 1) }
	tests := map[string]struct {
		action as.Action
		body   string
		want   string
	}{
		"batch":                 {as.ActionStartBatch, batch(numbers), `"resultCode":"000"`},
		"batch without numbers": {as.ActionStartBatch, batch(""), `"101","msg":"batchNo must not be null"`},
		"batch number -1": {
			as.ActionStartBatch, batch(strings.Replace(numbers, "0", "-1", 1)), `"101","msg":"batchNo must be greater`,
		},
		"a date that is text":    {as.ActionStartBatch, batch(numbers + `,"startTime":"2024-01-01T00:00:00Z"`), `400 {`},
		"a date with a fraction": {as.ActionStartBatch, batch(numbers + `,"startTime":1.5`), `400 {`},
		"no JSON":                {as.ActionStartBatch, `{"a`, `400 {`},
		"required field blank": {
			as.ActionStartBatch, strings.Replace(batch(numbers), `"executor":"a"`, `"executor":" "`, 1),
			`"101","msg":"executor must not be blank`,
		},
		"over the limit": {
			as.ActionSubmitOrder, instead(`"o2"`, `"`+strings.Repeat("é", 65)+`"`), `"101","msg":"bizExecOrderId is longer`,
		},
		"creator over the column": {as.ActionSubmitOrder, order(strings.Repeat("a", 57), ""), `"901","msg":"Data too long`},
		"creator over the limit":  {as.ActionSubmitOrder, order(strings.Repeat("a", 129), ""), `"101","msg":"creator is longer`},
		"targets over the column": {as.ActionStartBatch, targets(65532), `"901","msg":"Data too long`},
		"targets that fit":        {as.ActionStartBatch, targets(65531), `"000"`},
		"extensions over the column": {
			as.ActionStartBatch, batch(numbers + `,"extInfo":{"k":"` + strings.Repeat("p", 65535) + `"}`), `"901","msg":"Data too long`,
		},
		"parameters over the column": {
			as.ActionSubmitOrder, instead(`"{}"`, `"[`+strings.Repeat(" ", 65534)+`]"`), `"901","msg":"Data too long`,
		},
		"a link and a parent order": {as.ActionSubmitOrder, order("a", `,"changeUrl":"http://ci/7","parentOrderInfo":`+
			`{"orderId":"7","orderTitle":"Spring","orderUrl":""}`), `"000"`},
		"a parent order that is text":   {as.ActionSubmitOrder, order("a", `,"parentOrderInfo":"7"`), `400 {`},
		"a parent order with an object": {as.ActionSubmitOrder, order("a", `,"parentOrderInfo":{"orderId":{}}`), `400 {`},
		"a link over the limit":         {as.ActionSubmitOrder, order("a", `,"changeUrl":"`+strings.Repeat("a", 513)+`"`), `"101"`},
		"parameters not JSON":           {as.ActionSubmitOrder, instead(`"{}"`, `"{"`), `"101","msg":"changeParamJson is not json`},
		"unknown stage is no enum":      {as.ActionRetrieveCheck, `{` + common + `,"nodeId":"n","defenseStage":"LATER"}`, `400 {`},
		"no stage":                      {as.ActionRetrieveCheck, `{` + common + `,"nodeId":"n"}`, `"101"`},
		"unknown end":                   {as.ActionEndOrder, `{` + common + `,"finishState":"DONE"}`, `"101"`},
		"unknown action":                {"other", `{}`, `404 {`},
		"phases are a set of values": {
			as.ActionSubmitOrder, instead(`["prod_phase"]`, `["prod"]`), `"101","msg":"changePhases is unknown`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := e.raw(tc.action, tc.body, tc.body); !strings.Contains(got, tc.want) {
				t.Errorf("answer %s, want %s", got, tc.want)
			}
		})
	}
}

// TestFaultCodes: scripted answers, with and without effect.
func TestFaultCodes(t *testing.T) {
	e := newEnv(t, nil)
	e.sim.Fault(simulator.Fault{Action: as.ActionSubmitOrder, Code: as.CodeUnexpected, Msg: "NullPointerException", Times: 2})
	order := as.SubmitOrderRequest{Base: base("o1"), Order: orderOf("sleep")}
	for range 2 {
		_, err := e.client.SubmitOrder(e.ctx, order)
		e.refused(err, as.CodeUnexpected)
		if as.ClassOf(err) != as.ClassRetry {
			t.Errorf("class of %v", err)
		}
	}
	e.submit("o1")
	e.sim.Fault(simulator.Fault{Action: as.ActionSubmitOrder, Order: "o2", Code: as.CodeSystem, Done: true, Times: 1})
	order.BizExecOrderID = "o2"
	_, err := e.client.SubmitOrder(e.ctx, order)
	e.refused(err, as.CodeSystem)
	_, err = e.client.SubmitOrder(e.ctx, order)
	e.refused(err, as.CodeDuplicate)
}

// TestOutages: the error of the client in each outage, and the end of the outage.
func TestOutages(t *testing.T) {
	tests := map[simulator.Outage]struct {
		wantAmbiguous bool
		wantNodes     int
		wantText      string
	}{
		simulator.Refuse:       {false, 0, "connection refused"},
		simulator.Hang:         {true, 0, "no answer within"},
		simulator.HTTP500:      {true, 0, "HTTP 500"},
		simulator.HTML:         {true, 0, "no JSON object"},
		simulator.Truncated:    {true, 1, "no JSON object"},
		simulator.Reset:        {true, 0, "reset"},
		simulator.LostReply:    {true, 1, "reset"},
		simulator.SuccessFalse: {true, 0, "HTTP 200"},
	}
	for outage, tc := range tests {
		t.Run(string(outage), func(t *testing.T) {
			e := newEnv(t, nil)
			e.submit("o1")
			client, err := as.New(as.Options{
				URL: e.sim.URL(), Platform: as.DefaultPlatform, Tokens: as.StaticTokens{token},
				Timeouts: as.Timeouts{Call: 200 * time.Millisecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			if err := e.sim.SetOutage(outage); err != nil {
				t.Fatal(err)
			}
			_, err = client.StartBatch(e.ctx, batchOf("o1", "pod-1"))
			if as.ClassOf(err) != as.ClassRetry || as.IsAmbiguous(err) != tc.wantAmbiguous || !strings.Contains(fmt.Sprint(err), tc.wantText) {
				t.Errorf("error %v, ambiguous %v", err, as.IsAmbiguous(err))
			}
			if err := e.sim.SetOutage(simulator.NoOutage); err != nil {
				t.Fatal(err)
			}
			if got := len(e.sim.Journal().BatchStarts("o1")); got != tc.wantNodes {
				t.Errorf("%d nodes, want %d\n%s", got, tc.wantNodes, e.sim.Journal())
			}
			// On a new connection: the client may notice too late that an old one is closed.
			e.client = e.newClient(token)
			e.startBatch("o1", "pod-1")
		})
	}
}

// TestHandlerWithoutPort: the simulator also serves in another server.
func TestHandlerWithoutPort(t *testing.T) {
	sim := simulator.New(simulator.Options{Token: token})
	t.Cleanup(sim.Shutdown)
	server := httptest.NewServer(sim)
	t.Cleanup(server.Close)
	c, err := as.New(as.Options{URL: server.URL, Platform: as.DefaultPlatform, Tokens: as.StaticTokens{token}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Heartbeat(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestSendCallback: for tests of receivers.
func TestSendCallback(t *testing.T) {
	e := newEnv(t, nil)
	callback := as.Callback{CheckType: as.CheckBatch, Request: as.CallbackRequest{
		NodeID: "unknown", BizExecOrderID: "o9", Stage: as.StagePre, Verdict: as.Verdict{Verdict: as.VerdictFail},
	}}
	entry, err := e.sim.SendCallback(e.ctx, e.recv.server.URL, callback)
	if err != nil || entry.Outcome != "200" || len(e.recv.callbacks()) != 1 {
		t.Errorf("%s, %v", entry, err)
	}
}

func TestShutdownEndsChecks(t *testing.T) {
	e := newEnv(t, nil)
	e.sim.Script(simulator.Script{Never: true})
	e.submit("o1")
	for range 10 {
		e.startBatch("o1", "pod-1")
	}
	e.sim.Shutdown()
	if got := e.sim.Journal().Callbacks(); len(got) != 0 {
		t.Errorf("callbacks:\n%s", got)
	}
	if err := e.sim.Start("127.0.0.1:0"); err == nil {
		t.Error("it started again")
	}
}

func TestJournalLimit(t *testing.T) {
	var mu sync.Mutex
	seen := 0
	e := newEnv(t, func(o *simulator.Options) {
		o.JournalLimit = 3
		o.OnEntry = func(simulator.Entry) { mu.Lock(); seen++; mu.Unlock() }
	})
	for i := range 5 {
		e.submit(fmt.Sprint("o", i))
	}
	mu.Lock()
	defer mu.Unlock()
	if got := e.sim.Journal(); len(got) != 3 || got[2].Seq != 5 || seen != 5 {
		t.Errorf("%d shown, journal:\n%s", seen, got)
	}
}
