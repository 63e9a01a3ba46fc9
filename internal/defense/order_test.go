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

package defense

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/server"
)

// fakeServer is AlterShield Server for decisions: it answers calls, and stores its verdicts like the callback address.
type fakeServer struct {
	journal []string
	nodes   []string
	// answer overrides the answer to a call, for example "Start order" or "Finish 2".
	answer func(call string) *server.Answer
	// verdict returns the verdict of a check, for example "PRE order" or "POST 2"; pass by default, empty for none.
	verdict func(check string) string
	// early delivers a verdict before the answer to its call is recorded.
	early bool
	// polls answers polls as passed, also of checks without a delivered pass.
	polls bool
	// timedOut reports whether a check ran into the server's own timeout: a pass is delivered, and polls answer that it
	// has not passed.
	timedOut func(check string) bool
	passed   map[string]bool
	// ended: the callback address delivers nothing.
	lost []string
}

// defended is a world with a server.
type defended struct {
	*world
	server     *fakeServer
	orderCalls server.Calls
	batchCalls map[string]server.Calls
	// crash loses the record of the n-th call, from 1.
	crash, calls int
	// emitted are the events so far.
	emitted []record.Event
}

func (d *defended) emit(events []record.Event) { d.emitted = append(d.emitted, events...) }

// Events returns the messages of the events of a reason.
func (d *defended) Events(reason string) (messages []string) {
	for _, e := range d.emitted {
		if e.Reason == reason {
			messages = append(messages, e.Message)
		}
	}
	return messages
}

func newDefended(replicas int32) *defended {
	w := newWorld(replicas)
	w.in.Cluster = "11111111-2222-3333-4444-555555555555"
	return &defended{world: w, server: &fakeServer{}, batchCalls: map[string]server.Calls{}}
}

func (d *defended) orderInput() server.OrderInput {
	return server.OrderInput{Now: d.in.Now, Settings: d.in.Settings, Change: d.in.Change, Defended: true, Calls: d.orderCalls}
}

func (d *defended) batchInput(i int) server.BatchInput {
	b := &d.in.Batches[i]
	return server.BatchInput{Now: d.in.Now, Settings: d.in.Settings, Batch: b, Change: d.in.Change, Server: true, Calls: d.batchCalls[b.Name]}
}

// call answers a call about an order entry ("order", or the number of a batch).
func (d *defended) call(call server.Call, about, node string) server.Answer {
	name := strings.TrimSpace(string(call) + " " + about)
	entry := name
	if call == server.CallFinish && d.fails(about) {
		entry += " without success"
	}
	d.server.journal = append(d.server.journal, entry)
	a := server.Answer{Kind: server.AnswerDone}
	if d.server.answer != nil {
		if other := d.server.answer(name); other != nil {
			a = *other
		}
	}
	switch call {
	case server.CallStart:
		if a.Kind == server.AnswerDone {
			a.NodeID = fmt.Sprintf("node-%d", len(d.server.nodes))
			d.server.nodes = append(d.server.nodes, about)
		}
		if a.Kind == server.AnswerDone && !a.SkipCheck {
			d.deliver(a.NodeID, v1alpha1.StagePre, about)
		}
	case server.CallFinish:
		if a.Kind == server.AnswerDone {
			d.deliver(node, v1alpha1.StagePost, about)
		}
	case server.CallPollPre, server.CallPollPost:
		check := string(v1alpha1.StagePre) + " " + about
		if call == server.CallPollPost {
			check = string(v1alpha1.StagePost) + " " + about
		}
		if a.Kind == server.AnswerDone && !d.server.polls && !d.server.passed[check] {
			a.Kind = server.AnswerNotPassed
		}
	case server.CallNone, server.CallSubmit, server.CallEnd:
	}
	return a
}

// fails reports whether an entry ends without success.
func (d *defended) fails(about string) bool {
	for i := range d.in.Batches {
		if b := &d.in.Batches[i]; fmt.Sprint(record.BatchNumber(b)) == about {
			return !server.EndsWithSuccess(b)
		}
	}
	return d.in.Change.Status.OrderEnd != ""
}

// deliver stores a verdict now, or after the answer is recorded.
func (d *defended) deliver(node string, stage v1alpha1.CheckStage, about string) {
	verdict := record.VerdictPass
	if d.server.verdict != nil {
		verdict = d.server.verdict(string(stage) + " " + about)
	}
	if verdict == "" {
		return
	}
	if check := string(stage) + " " + about; !record.VerdictFails(verdict) && (d.server.timedOut == nil || !d.server.timedOut(check)) {
		if d.server.passed == nil {
			d.server.passed = map[string]bool{}
		}
		d.server.passed[check] = true
	}
	d.server.lost = append(d.server.lost, strings.Join([]string{node, string(stage), verdict, about}, " "))
	if d.server.early {
		d.flush()
	}
}

// flush stores the delivered verdicts, twice.
func (d *defended) flush() {
	for _, line := range append(slices.Clone(d.server.lost), d.server.lost...) {
		part := strings.Fields(line)
		v := server.Delivered{OrderID: d.in.Change.Status.OrderID, OfOrder: part[3] == "order", NodeID: part[0],
			Stage: v1alpha1.CheckStage(part[1]), Verdict: part[2], Message: "the server says " + part[2]}
		placed := server.PlacementElsewhere
		for i := range d.in.Batches {
			if placed != server.PlacementElsewhere {
				break
			}
			in := d.batchInput(i)
			in.Calls = server.Calls{}
			var status *v1alpha1.ChangePodStatus
			if placed, status = server.ApplyToBatch(in, v); status != nil {
				in.Batch.Status = *status
			}
		}
		if placed == server.PlacementElsewhere {
			in := d.orderInput()
			in.Calls = server.Calls{}
			if _, status := server.ApplyToRelease(in, v); status != nil {
				in.Change.Status = *status
			}
		}
	}
	d.server.lost = nil
}

// died reports whether the process dies before the answer to this call is recorded.
func (d *defended) died() bool {
	d.calls++
	if d.crash == 0 || d.calls != d.crash {
		return false
	}
	d.orderCalls, d.batchCalls = server.Calls{Started: d.in.Now}, map[string]server.Calls{}
	return true
}

// turn lets every reconciler decide once; it returns whether anything happened, else when the next act is due.
func (d *defended) turn() (busy bool, due time.Duration) {
	sooner := func(wait time.Duration) {
		if wait > 0 && (due == 0 || wait < due) {
			due = wait
		}
	}
	plan := d.Step()
	d.emit(plan.Events)
	sooner(plan.RequeueAfter)
	busy = plan.Status != nil || len(plan.Batches) > 0 || plan.Action != LeaveWorkload
	order := server.DecideOrder(d.orderInput())
	d.emit(order.Events)
	sooner(order.RequeueAfter)
	switch {
	case order.Status != nil:
		d.in.Change.Status, busy = *order.Status, true
	case order.Call != server.CallNone:
		busy = true
		a := d.call(order.Call, "order", d.in.Change.Status.OrderNodeID)
		if d.died() {
			break
		}
		d.orderCalls = d.orderCalls.After(order.Call, a, d.in.Now, 0.5)
		answered := server.AnswerOrder(d.orderInput(), order.Call, a)
		d.emit(answered.Events)
		if answered.Status != nil {
			d.in.Change.Status = *answered.Status
		}
	}
	for i := range d.in.Batches {
		b := &d.in.Batches[i]
		plan := server.DecideBatch(d.batchInput(i))
		d.emit(plan.Events)
		sooner(plan.RequeueAfter)
		if plan.Status != nil {
			b.Status, busy = *plan.Status, true
		}
		if plan.Call == server.CallNone {
			continue
		}
		busy = true
		a := d.call(plan.Call, fmt.Sprint(record.BatchNumber(b)), b.Status.ChangePodID)
		if d.died() {
			continue
		}
		d.batchCalls[b.Name] = d.batchCalls[b.Name].After(plan.Call, a, d.in.Now, 0.5)
		answered := server.AnswerBatch(d.batchInput(i), plan.Call, a)
		d.emit(answered.Events)
		if answered.Status != nil {
			b.Status = *answered.Status
		}
		calls := d.batchCalls[b.Name]
		calls.Ended = calls.Ended || answered.Ended
		d.batchCalls[b.Name] = calls
	}
	busy = busy || len(d.server.lost) > 0
	d.flush()
	return busy, due
}

// Run advances the time until nothing is due, or the limit is reached.
func (d *defended) Run(t *testing.T, limit time.Duration) *defended {
	t.Helper()
	end := d.in.Now.Add(limit)
	for range 10_000 {
		busy, due := d.turn()
		if busy {
			continue
		}
		if due == 0 || d.in.Now.Add(due).After(end) {
			if limit > 0 && due > 0 {
				d.in.Now = end
			}
			return d
		}
		d.Later(due)
	}
	t.Fatalf("never at rest: %v", d.server.journal[:min(40, len(d.server.journal))])
	return nil
}

func count(journal []string, entry string) (n int) {
	for _, e := range journal {
		if e == entry {
			n++
		}
	}
	return n
}

func unprocessableAnswer() *server.Answer {
	return &server.Answer{Kind: server.AnswerUnprocessable, Message: "Data too long for column 'creator'"}
}

func retryAnswer() *server.Answer {
	return &server.Answer{Kind: server.AnswerRetry, Message: "connection refused"}
}

// TestUnprocessableOrder: a later process also knows that the server can never process an order.
func TestUnprocessableOrder(t *testing.T) {
	for name, test := range map[string]struct {
		status       v1alpha1.ChangeWorkloadStatusType
		age          time.Duration
		silenceFails bool
		wantCall     server.Call
		wantVerdict  bool
	}{
		"while there is time":                     {v1alpha1.ChangeWorkloadInit, time.Second, false, server.CallSubmit, false},
		"while there is time, silence fails":      {v1alpha1.ChangeWorkloadInit, time.Second, true, server.CallSubmit, false},
		"the time is over, silence fails":         {v1alpha1.ChangeWorkloadInit, time.Hour, true, server.CallNone, true},
		"without checks":                          {v1alpha1.ChangeWorkloadRunning, time.Hour, false, server.CallNone, false},
		"without checks, within the time it took": {v1alpha1.ChangeWorkloadRunning, time.Second, false, server.CallNone, false},
		"done, with pods that came later":         {v1alpha1.ChangeWorkloadSuccess, time.Hour, false, server.CallNone, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(2)
			change := d.in.Change
			change.Status.Status, change.Status.CheckingCount = test.status, 1
			change.Status.OrderID, change.Status.OrderStage = "order", v1alpha1.OrderSubmitting
			change.Status.EntryTimeUnix = testNow.Add(-test.age).Unix()
			change.Status.ObservedRelease = change.Spec.Release
			in := server.OrderInput{Now: testNow, Settings: d.in.Settings, Change: change, Defended: true, Calls: server.Calls{Started: testNow}}
			in.Settings.SilenceFails = test.silenceFails
			if said := server.AnswerOrder(in, server.CallSubmit, *unprocessableAnswer()); said.Status == nil {
				t.Fatal("nothing was noted")
			} else {
				change.Status = *said.Status
			}
			plan := server.DecideOrder(in)
			if verdict := plan.Status != nil && plan.Status.OrderPreVerdict != nil; plan.Call != test.wantCall || verdict != test.wantVerdict {
				t.Errorf("call %q, verdict %t; want %q, %t", plan.Call, verdict, test.wantCall, test.wantVerdict)
			}
			if test.wantVerdict && !strings.Contains(plan.Status.OrderPreVerdict.Message, "Data too long for column 'creator'") {
				t.Errorf("the verdict %q does not say the cause", plan.Status.OrderPreVerdict.Message)
			}
		})
	}
}

func TestOrderOfARelease(t *testing.T) {
	ofTwo := []string{"Submit order", "Start order", "Start 1", "Start 2", "Finish 1", "Finish 2", "Finish order", "End order"}
	verdicts := func(given map[string]string) func(string) string {
		return func(check string) string {
			if v, ok := given[check]; ok {
				return v
			}
			return record.VerdictPass
		}
	}
	type want struct {
		status    v1alpha1.ChangeWorkloadStatusType
		stage     v1alpha1.OrderStage
		end       v1alpha1.FinishState
		suspended bool
		messages  []string // of batches
		failed    int32
		journal   []string          // compared without order, when given
		calls     map[string]int    // how often at most
		reasons   map[string]string // of the release's conditions
	}
	for name, test := range map[string]struct {
		world  func() *defended
		server fakeServer
		limit  time.Duration
		want   want
	}{
		"everything passes": {
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"}, journal: ofTwo,
				reasons: map[string]string{v1alpha1.StepAccepted: v1alpha1.ReasonAccepted, v1alpha1.StepPreChecked: v1alpha1.ReasonPassed,
					v1alpha1.StepPostChecked: v1alpha1.ReasonPassed,
					v1alpha1.StepEnded:       v1alpha1.ReasonAccepted, v1alpha1.ConditionVerified: v1alpha1.ReasonAllPassed}},
		},
		"verdicts come before the answers": {
			server: fakeServer{early: true},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"}, journal: ofTwo},
		},
		"the order exists": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if call == "Submit order" {
					return &server.Answer{Kind: server.AnswerDuplicate}
				}
				return nil
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"}, journal: ofTwo},
		},
		"a pod fails its POST check": {
			server: fakeServer{verdict: verdicts(map[string]string{"POST 2": "fail"})},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderPostWait, suspended: true, failed: 1,
				messages: []string{"PostFinish", "PostFinish"},
				reasons:  map[string]string{v1alpha1.ConditionVerified: v1alpha1.ReasonPodFailed, v1alpha1.ConditionBlocked: v1alpha1.ReasonPodFailed}},
		},
		"a pod fails its PRE check": {
			server: fakeServer{verdict: verdicts(map[string]string{"PRE 1": "inconc"})},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderPostWait, suspended: true, failed: 1,
				messages: []string{"PostFinish", "PostFinish"}, calls: map[string]int{"Finish 1": 0, "Finish 1 without success": 1}},
		},
		"the order fails its PRE check": {
			server: fakeServer{verdict: verdicts(map[string]string{"PRE order": "fail"})},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderPostWait, suspended: true,
				messages: []string{"PostFinish", "PostFinish"},
				reasons: map[string]string{v1alpha1.ConditionVerified: v1alpha1.ReasonOrderCheckFailed,
					v1alpha1.ConditionBlocked: v1alpha1.ReasonOrderCheckFailed,
					v1alpha1.StepPreChecked:   v1alpha1.ReasonCheckFailed}},
		},
		"the order fails its POST check": {
			server: fakeServer{verdict: verdicts(map[string]string{"POST order": "fail"})},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderPostFinish, suspended: true,
				messages: []string{"PostFinish", "PostFinish"},
				reasons:  map[string]string{v1alpha1.ConditionVerified: v1alpha1.ReasonOrderCheckFailed}},
		},
		"the order is refused": {
			server: fakeServer{answer: func(call string) *server.Answer {
				return &server.Answer{Kind: server.AnswerIllegal, Message: "scene not found"}
			}},
			limit: time.Hour,
			want: want{status: v1alpha1.ChangeWorkloadFailed, stage: v1alpha1.OrderRefused, journal: []string{"Submit order"},
				reasons: map[string]string{v1alpha1.StepAccepted: v1alpha1.ReasonRefused, v1alpha1.ConditionVerified: v1alpha1.ReasonRefused}},
		},
		"permission denied: stays, tried each minute": {
			server: fakeServer{answer: func(call string) *server.Answer {
				return &server.Answer{Kind: server.AnswerDenied, Message: "permission denied"}
			}},
			limit: 10*time.Minute + time.Second,
			want: want{status: v1alpha1.ChangeWorkloadInit, stage: v1alpha1.OrderDenied, journal: slices.Repeat([]string{"Submit order"}, 11),
				reasons: map[string]string{v1alpha1.StepAccepted: v1alpha1.ReasonPermissionDenied}},
		},
		"permission denied, then allowed": {
			world: func() *defended {
				d := newDefended(2)
				d.server.answer = func(call string) *server.Answer {
					if d.in.Now.Sub(testNow) < 10*time.Minute {
						return &server.Answer{Kind: server.AnswerDenied}
					}
					return nil
				}
				return d
			},
			limit: time.Hour,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"}},
		},
		"the server is down: without checks, and tried on": {
			server: fakeServer{answer: func(call string) *server.Answer { return retryAnswer() }},
			limit:  10 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderSubmitting, messages: []string{"PreFailed", "PreFailed"},
				calls: map[string]int{"Submit order": 20}, reasons: map[string]string{v1alpha1.StepAccepted: v1alpha1.ReasonUnreachable}},
		},
		"the server is down and silence fails": {
			world:  func() *defended { d := newDefended(2); d.in.Settings.SilenceFails = true; return d },
			server: fakeServer{answer: func(call string) *server.Answer { return retryAnswer() }},
			limit:  5 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderSubmitting, suspended: true,
				messages: []string{"PreFailed", "PreFailed"}, failed: 2,
				calls: map[string]int{"Submit order": 30}},
		},
		"the server can never process the order: without checks, and left alone": {
			server: fakeServer{answer: func(call string) *server.Answer { return unprocessableAnswer() }},
			limit:  time.Hour,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderSubmitting, messages: []string{"PreFailed", "PreFailed"},
				calls: map[string]int{"Submit order": 3}, reasons: map[string]string{v1alpha1.StepAccepted: v1alpha1.ReasonUnprocessable}},
		},
		"the server can never process the order, and silence fails": {
			world:  func() *defended { d := newDefended(2); d.in.Settings.SilenceFails = true; return d },
			server: fakeServer{answer: func(call string) *server.Answer { return unprocessableAnswer() }},
			limit:  time.Hour,
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderSubmitting, suspended: true,
				messages: []string{"PreFailed", "PreFailed"}, failed: 2,
				calls: map[string]int{"Submit order": 3}, reasons: map[string]string{v1alpha1.StepAccepted: v1alpha1.ReasonUnprocessable}},
		},
		"the server can never process a batch": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if call == "Start 1" || call == "Finish 2" {
					return unprocessableAnswer()
				}
				return nil
			}},
			limit: time.Hour,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PreFailed", "PostFailed"},
				calls:    map[string]int{"Start 1": 1, "Finish 2": 1}},
		},
		"batches cannot be started": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if strings.HasPrefix(call, "Start ") && call != "Start order" {
					return retryAnswer()
				}
				return nil
			}},
			limit: 10 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PreFailed", "PreFailed"},
				calls:    map[string]int{"Start 1": 12, "Start 2": 12}},
		},
		"batches are refused": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if call == "Start 1" {
					return &server.Answer{Kind: server.AnswerRefused}
				}
				return nil
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PreFailed", "PostFinish"}, calls: map[string]int{"Start 1": 1}},
		},
		"a step is not configured": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if call == "Start 1" {
					return &server.Answer{Kind: server.AnswerIllegal}
				}
				return nil
			}},
			limit: 10 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PreFailed", "PostFinish"}, calls: map[string]int{"Start 1": 3}},
		},
		"every verdict is lost, polls pass": {
			server: fakeServer{verdict: func(string) string { return "" }, polls: true},
			limit:  10 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"},
				calls:    map[string]int{"PollPre 1": 1, "PollPost 1": 1, "PollPre order": 1, "PollPost order": 1}},
		},
		"every verdict is lost, polls do not pass": {
			server: fakeServer{verdict: func(string) string { return "" }},
			limit:  20 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PreTimeout", "PreTimeout"},
				calls:    map[string]int{"PollPre 1": 6, "Finish 1": 1}, reasons: map[string]string{v1alpha1.StepPreChecked: v1alpha1.ReasonNoVerdict}},
		},
		"a POST verdict is lost": {
			server: fakeServer{verdict: verdicts(map[string]string{"POST 1": ""})},
			limit:  20 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostTimeout", "PostFinish"}},
		},
		"a POST verdict is lost and silence fails": {
			world:  func() *defended { d := newDefended(2); d.in.Settings.SilenceFails = true; return d },
			server: fakeServer{verdict: verdicts(map[string]string{"POST 1": ""})},
			limit:  20 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderPostWait, suspended: true, failed: 1,
				messages: []string{"PostTimeout", "PostFinish"}},
		},
		"the order's POST verdict is lost and silence fails": {
			world:  func() *defended { d := newDefended(2); d.in.Settings.SilenceFails = true; return d },
			server: fakeServer{verdict: verdicts(map[string]string{"POST order": ""})},
			limit:  20 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderPostFinish, suspended: true,
				messages: []string{"PostFinish", "PostFinish"}},
		},
		"nothing to check": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if strings.HasPrefix(call, "Start") {
					return &server.Answer{Kind: server.AnswerDone, SkipCheck: true}
				}
				return nil
			}, verdict: func(string) string { return "" }},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"Skipped", "Skipped"}, journal: ofTwo},
		},
		"nothing to check, and yet a verdict comes": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if call == "Start 1" {
					return &server.Answer{Kind: server.AnswerDone, SkipCheck: true}
				}
				return nil
			}, verdict: verdicts(map[string]string{"POST 1": "fail"})},
			want: want{status: v1alpha1.ChangeWorkloadSuspend, stage: v1alpha1.OrderPostWait, suspended: true, failed: 1,
				messages: []string{"PostFinish", "PostFinish"}},
		},
		"no check is configured": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if strings.HasPrefix(call, "Start") && call != "Start order" || call == "Finish order" {
					return &server.Answer{Kind: server.AnswerNoCheck}
				}
				return nil
			}},
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"Skipped", "Skipped"}},
		},
		"an end that was received is refused when repeated": {
			world: func() *defended {
				d := newDefended(2)
				d.server.answer = func(call string) *server.Answer {
					switch {
					case call != "Finish 1":
						return nil
					case count(d.server.journal, call) == 1:
						d.deliver("node-1", v1alpha1.StagePost, "1")
						return &server.Answer{Kind: server.AnswerRetry, Unconfirmed: true}
					default:
						return &server.Answer{Kind: server.AnswerUnsupported}
					}
				}
				d.server.verdict = verdicts(map[string]string{"POST 1": ""})
				d.server.polls = true
				return d
			},
			limit: 10 * time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"}, calls: map[string]int{"Finish 1": 2}},
		},
		"the server does not take ends for a second": {
			world: func() *defended {
				d := newDefended(2)
				d.server.answer = func(call string) *server.Answer {
					if strings.HasPrefix(call, "Finish") && count(d.server.journal, call) == 1 {
						return &server.Answer{Kind: server.AnswerUnsupported}
					}
					return nil
				}
				return d
			},
			limit: time.Minute,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"}, calls: map[string]int{"Finish 1": 2, "Finish order": 2}},
		},
		"the order cannot be ended": {
			server: fakeServer{answer: func(call string) *server.Answer {
				if call == "End order" {
					return retryAnswer()
				}
				return nil
			}},
			limit: time.Hour,
			want: want{status: v1alpha1.ChangeWorkloadSuccess, stage: v1alpha1.OrderEnded, end: v1alpha1.FinishSuccess,
				messages: []string{"PostFinish", "PostFinish"}, calls: map[string]int{"End order": 15},
				reasons: map[string]string{v1alpha1.StepEnded: v1alpha1.ReasonUnreachable}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(2)
			if test.world != nil {
				d = test.world()
			}
			if test.server.answer != nil || test.server.verdict != nil || test.server.early {
				d.server = &test.server
			}
			d.Pods(2).Complete()
			d.Run(t, test.limit)
			s := &d.in.Change.Status
			if s.Status != test.want.status || s.OrderStage != test.want.stage || s.OrderEnd != test.want.end || s.FailCount != test.want.failed {
				t.Errorf("status %q, order %q, end %q, %d failed; want %q, %q, %q, %d\n%v", s.Status, s.OrderStage, s.OrderEnd, s.FailCount,
					test.want.status, test.want.stage, test.want.end, test.want.failed, d.server.journal)
			}
			if _, suspended := d.stored.Labels[v1alpha1.SuspendLabel]; suspended != test.want.suspended {
				t.Errorf("blocked: %t, want %t", suspended, test.want.suspended)
			}
			var messages []string
			for i := range d.in.Batches {
				messages = append(messages, d.in.Batches[i].Status.Message)
			}
			if diff := cmp.Diff(test.want.messages, messages); diff != "" {
				t.Errorf("batches -want +got:\n%s", diff)
			}
			if test.want.journal != nil {
				if diff := cmp.Diff(slices.Sorted(slices.Values(test.want.journal)), slices.Sorted(slices.Values(d.server.journal))); diff != "" {
					t.Errorf("journal -want +got:\n%s", diff)
				}
			}
			for call, atMost := range test.want.calls {
				if got := count(d.server.journal, call); got > atMost || atMost > 0 && got == 0 {
					t.Errorf("%q was called %d times, want 1 to %d", call, got, atMost)
				}
			}
			for kind, reason := range test.want.reasons {
				if c := meta.FindStatusCondition(slices.Concat(s.Conditions, s.OrderSteps), kind); c == nil || c.Reason != reason {
					t.Errorf("condition %s = %+v, want reason %s", kind, c, reason)
				}
			}
		})
	}
}

// TestLastTry: an answer at the deadline counts, whatever the earlier tries returned, and a call that was never sent is
// no try.
func TestLastTry(t *testing.T) {
	unsent := func() *server.Answer {
		return &server.Answer{Kind: server.AnswerRetry, Unsent: true, After: 30 * time.Second, Message: "the circuit breaker is open"}
	}
	for _, of := range []string{"Submit order", "Start order", "Start 1", "Finish 1", "Finish order"} {
		for name, test := range map[string]struct {
			down   time.Duration
			answer func() *server.Answer
			want   v1alpha1.ChangeWorkloadStatusType
		}{
			"back moments before the deadline":            {119 * time.Second, retryAnswer, v1alpha1.ChangeWorkloadSuccess},
			"not asked until moments before the deadline": {119 * time.Second, unsent, v1alpha1.ChangeWorkloadSuccess},
			"not asked until after the deadline":          {125 * time.Second, unsent, v1alpha1.ChangeWorkloadSuccess},
			"down for good":                               {time.Hour, retryAnswer, v1alpha1.ChangeWorkloadSuspend},
		} {
			t.Run(of+", "+name, func(t *testing.T) {
				d := newDefended(2)
				d.in.Settings.SilenceFails = true
				var first time.Time
				d.server.answer = func(call string) *server.Answer {
					if call != of {
						return nil
					}
					if first.IsZero() {
						first = d.in.Now
					}
					if d.in.Now.Sub(first) < test.down {
						return test.answer()
					}
					return nil
				}
				d.Pods(2).Complete()
				d.Run(t, 10*time.Minute)
				if s := &d.in.Change.Status; s.Status != test.want {
					t.Errorf("status %s, want %s\n%v\n%+v", s.Status, test.want, d.server.journal, s.Conditions)
				}
				if n := count(d.server.journal, of); n > 35 {
					t.Errorf("%d tries", n)
				}
			})
		}
	}
}

// TestLastTryOfAnOrder: a release does not continue without its checks before the last try of the order.
func TestLastTryOfAnOrder(t *testing.T) {
	d := newDefended(2)
	d.server.answer = func(string) *server.Answer {
		if d.in.Now.Sub(testNow) < 119*time.Second {
			return retryAnswer()
		}
		return nil
	}
	d.Pods(2).Complete()
	d.Run(t, 10*time.Minute)
	if got := d.Events("ReleaseUnverified"); len(got) > 0 || d.in.Change.Status.OrderStage != v1alpha1.OrderEnded {
		t.Errorf("events %v, order %s; want a release that was checked", got, d.in.Change.Status.OrderStage)
	}
}

// TestOrderSurvivesEveryCrash loses the process after each of its calls, before the answer is recorded: the release
// ends the same, and no call is made more than twice.
func TestOrderSurvivesEveryCrash(t *testing.T) {
	for _, failing := range []string{"", "POST 2", "POST 2 and silence"} {
		failing, silence := strings.CutSuffix(failing, " and silence")
		for crash := 1; ; crash++ {
			d := newDefended(2)
			d.crash, d.in.Settings.SilenceFails = crash, silence
			d.server.polls = true
			d.server.verdict = func(check string) string {
				if check == failing {
					return "fail"
				}
				return record.VerdictPass
			}
			finished := map[string]bool{}
			d.server.answer = func(call string) *server.Answer {
				// Like the server: it does not support a second end.
				if strings.HasPrefix(call, "Finish") {
					if finished[call] {
						return &server.Answer{Kind: server.AnswerUnsupported}
					}
					finished[call] = true
				}
				return nil
			}
			d.Pods(2).Complete()
			d.Run(t, 20*time.Minute)
			want := v1alpha1.ChangeWorkloadSuccess
			if failing != "" {
				want = v1alpha1.ChangeWorkloadSuspend
			}
			if got := d.in.Change.Status.Status; got != want {
				t.Errorf("crash after call %d: %s, want %s\n%v", crash, got, want, d.server.journal)
			}
			for _, call := range d.server.journal {
				limit := 2
				if strings.HasPrefix(call, "Finish") {
					limit = 6
				}
				if n := count(d.server.journal, call); n > limit {
					t.Errorf("crash after call %d: %q was called %d times", crash, call, n)
				}
			}
			if crash > d.calls {
				break
			}
		}
	}
}

func TestOrderIsCanceled(t *testing.T) {
	for name, test := range map[string]struct {
		verdict string
		then    func(*defended)
		want    v1alpha1.ChangeWorkloadStatusType
		ended   bool
	}{
		"replaced while it runs":       {"", func(d *defended) { d.Release(2, versionB) }, v1alpha1.ChangeWorkloadCanceled, true},
		"replaced while suspended":     {"fail", func(d *defended) { d.Release(2, versionB) }, v1alpha1.ChangeWorkloadSuspend, true},
		"deleted while it runs":        {"", func(d *defended) { d.in.Workload.Deleting = true }, v1alpha1.ChangeWorkloadCanceled, true},
		"opted out while it runs":      {"", func(d *defended) { d.in.Enrolled = false }, v1alpha1.ChangeWorkloadCanceled, true},
		"opted out while suspended":    {"fail", func(d *defended) { d.in.Enrolled = false }, v1alpha1.ChangeWorkloadSuspend, false},
		"replaced after it had passed": {record.VerdictPass, func(d *defended) { d.Release(2, versionB) }, v1alpha1.ChangeWorkloadSuccess, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(1)
			d.server.verdict = func(check string) string {
				if check == "POST 1" {
					return test.verdict
				}
				return record.VerdictPass
			}
			d.Pods(1).Complete()
			d.Run(t, 0)
			test.then(d)
			d.Run(t, time.Minute)
			s := &d.in.Change.Status
			if s.Status != test.want || (s.OrderStage == v1alpha1.OrderEnded) != test.ended {
				t.Errorf("status %s, order %s; want %s, ended %t", s.Status, s.OrderStage, test.want, test.ended)
			}
			if n := count(d.server.journal, "End order"); n > 1 || test.ended && n == 0 {
				t.Errorf("the order was ended %d times", n)
			}
		})
	}
}

func TestVerdictsThatComeLate(t *testing.T) {
	d := newDefended(2)
	d.server.verdict = func(check string) string {
		if check == "POST 1" {
			return ""
		}
		return record.VerdictPass
	}
	d.Pods(2).Complete()
	d.Run(t, 20*time.Minute)
	if d.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuccess {
		t.Fatalf("status %s, want Success after the timeout", d.in.Change.Status.Status)
	}
	late := server.Delivered{OrderID: d.in.Change.Status.OrderID, NodeID: d.in.Batches[0].Status.ChangePodID, Stage: v1alpha1.StagePost,
		Verdict: "fail", Message: "too slow"}
	if got := server.PlaceOnBatch(&d.in.Batches[0].Status, late, d.in.Now); got != server.PlacementStored {
		t.Fatalf("a late failing verdict is %s", got)
	}
	d.Run(t, 0)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuspend || s.FailCount != 1 {
		t.Errorf("status %s with %d failed, want Suspend with 1", s.Status, s.FailCount)
	}
	// A correction by hand stays, whatever is delivered again.
	for i := range d.in.Batches[0].Status.PodResults {
		d.in.Batches[0].Status.PodResults[i].Verdict = record.VerdictPass
	}
	server.PlaceOnBatch(&d.in.Batches[0].Status, late, d.in.Now)
	d.Run(t, 0)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess {
		t.Errorf("status %s after the correction, want Success", s.Status)
	}
	// A verdict on a former attempt is only recorded.
	d.in.Change.Spec.Release = 2
	d.Release(2, versionA)
	d.Run(t, 0)
	d.in.Batches[1].Status.PostVerdict = nil
	server.PlaceOnBatch(&d.in.Batches[1].Status,
		server.Delivered{OrderID: d.in.Batches[1].Status.OrderID, NodeID: d.in.Batches[1].Status.ChangePodID, Stage: v1alpha1.StagePost,
			Verdict: "fail"}, d.in.Now)
	d.Run(t, 20*time.Minute)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess || s.Attempt != 2 {
		t.Errorf("status %s of attempt %d, want Success of 2", s.Status, s.Attempt)
	}
}

// TestLatePreFailure: a failure of the PRE check that is delivered as a POST verdict fails its batch or order, and is
// reported as a PRE failure.
func TestLatePreFailure(t *testing.T) {
	for about, want := range map[string]string{
		"1":     "pod sleep-0: fail: the PRE check failed after it had been let pass: error rate",
		"order": "of the order: the PRE check failed after it had been let pass: error rate",
	} {
		t.Run(about, func(t *testing.T) {
			d := newDefended(1)
			d.server.verdict = byCheck(map[string]string{"POST " + about: ""})
			d.Pods(1).Complete()
			d.Run(t, 0)
			v := server.Delivered{OrderID: d.in.Change.Status.OrderID, Stage: v1alpha1.StagePost, Verdict: record.VerdictFail, Message: "error rate",
				LatePre: true}
			condition := v1alpha1.StepPostChecked
			conditions := &d.in.Change.Status.OrderSteps
			if about == "order" {
				v.NodeID, v.OfOrder = d.in.Change.Status.OrderNodeID, true
				server.PlaceOnRelease(&d.in.Change.Status, v, d.in.Now)
			} else {
				v.NodeID, condition = d.in.Batches[0].Status.ChangePodID, v1alpha1.ConditionChecked
				server.PlaceOnBatch(&d.in.Batches[0].Status, v, d.in.Now)
				conditions = &d.in.Batches[0].Status.Conditions
			}
			d.Run(t, 0)
			if c := meta.FindStatusCondition(*conditions, condition); c == nil || c.Reason != v1alpha1.ReasonCheckFailed ||
				!strings.HasSuffix(c.Message, "the PRE check failed after it had been let pass: error rate") {
				t.Errorf("condition %+v", c)
			}
			if c := meta.FindStatusCondition(d.in.Change.Status.Conditions, v1alpha1.ConditionVerified); c == nil || record.Detail(c) != want {
				t.Errorf("condition %+v, want %q", c, want)
			}
			if got := d.Events("ReleaseSuspended"); len(got) != 1 || !strings.Contains(got[0], want) {
				t.Errorf("events %q, want one that says %q", got, want)
			}
		})
	}
}

func TestOrderVerdictIsCorrected(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = func(check string) string {
		if check == "PRE order" {
			return "fail"
		}
		return record.VerdictPass
	}
	d.Pods(1).Complete()
	d.Run(t, 0)
	if d.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuspend {
		t.Fatalf("status %s, want Suspend", d.in.Change.Status.Status)
	}
	d.in.Change.Status.OrderPreVerdict.Verdict = record.VerdictPass
	d.Run(t, 0)
	if _, blocked := d.stored.Labels[v1alpha1.SuspendLabel]; blocked || d.in.Change.Status.Status != v1alpha1.ChangeWorkloadSuccess {
		t.Errorf("status %s, blocked %t, want Success and no block", d.in.Change.Status.Status, blocked)
	}
}

func TestBatchesWaitForTheOrder(t *testing.T) {
	d := newDefended(3)
	d.server.verdict = func(string) string { return "" }
	d.Pods(3).Complete()
	d.Run(t, 90*time.Second)
	if s := &d.in.Change.Status; len(d.in.Batches) != 0 || s.PreparingCount != 3 || s.Status != v1alpha1.ChangeWorkloadRunning {
		t.Fatalf("%d batches, %d preparing, status %s while the PRE check of the order runs", len(d.in.Batches), s.PreparingCount, s.Status)
	}
	d.Later(time.Minute)
	d.Run(t, 0)
	if len(d.in.Batches) != 3 {
		t.Errorf("%d batches after the deadline, want 3", len(d.in.Batches))
	}
}

func TestNumbersOfBatches(t *testing.T) {
	for name, test := range map[string]struct {
		size int32
		want []string
	}{
		"one by one": {1, []string{"5 false", "5 false", "5 false", "5 false", "5 true"}},
		"of two":     {2, []string{"3 false", "3 false", "3 true"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(5)
			d.BatchSize(test.size).Pods(5).Complete()
			d.Run(t, 0)
			var got []string
			for i := range d.in.Batches {
				got = append(got, fmt.Sprintf("%d %t", d.in.Batches[i].Spec.TotalBatches, d.in.Batches[i].Spec.Last))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("total and last of each batch -want +got:\n%s", diff)
			}
		})
	}
}

func TestOrderID(t *testing.T) {
	uid := types.UID("0f8fad5b-d9cb-469f-a165-70867728950e")
	seen := map[string]bool{}
	for _, id := range []string{
		server.OrderID(uid, uid, versionA, 1, 1, uid),
		server.OrderID("1f8fad5b-d9cb-469f-a165-70867728950e", uid, versionA, 1, 1, uid),
		server.OrderID(uid, "1f8fad5b-d9cb-469f-a165-70867728950e", versionA, 1, 1, uid),
		server.OrderID(uid, uid, versionB, 1, 1, uid),
		server.OrderID(uid, uid, versionA, 2, 1, uid),
		server.OrderID(uid, uid, versionA, 1, 2, uid),
		server.OrderID(uid, uid, versionA, 1, 1, "another record"),
		server.OrderID(uid, uid, versionA, 1<<62, 1<<30, uid),
		server.OrderID(uid, uid, versionA, 1<<62+1, 1<<30, uid),
	} {
		if seen[id] || len(id) > 128 {
			t.Errorf("id %q of %d bytes, seen before: %t", id, len(id), seen[id])
		}
		seen[id] = true
		if got := server.VersionOfOrder(id); got != versionA && got != versionB {
			t.Errorf("version of %q is %q", id, got)
		}
	}
	for _, other := range []string{"", "a-b-c-d", "adm-x", "0-1-aaaa-2-3"} {
		if got := server.VersionOfOrder(other); got != "" {
			t.Errorf("version of %q is %q", other, got)
		}
	}
}

// TestOrphanedVerdictStays: a failing verdict on an entry without a batch fails the release, also after later batches.
func TestOrphanedVerdictStays(t *testing.T) {
	for name, test := range map[string]struct {
		arrives, later func(w *world)
		want           v1alpha1.ChangeWorkloadStatusType
	}{
		"a batch is made later": {
			later: func(w *world) { w.Pods(1).Step() },
			want:  v1alpha1.ChangeWorkloadSuspend,
		},
		"a batch was about to start": {
			arrives: func(w *world) { w.Pods(1).Step() },
			later:   func(w *world) { w.Step() },
			want:    v1alpha1.ChangeWorkloadRunning,
		},
		"it is corrected": {
			later: func(w *world) { w.in.Change.Status.UnclaimedVerdicts[0].Verdict = record.VerdictPass; w.Step() },
			want:  v1alpha1.ChangeWorkloadRunning,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(4).BatchSize(1).Pods(1).Settle(t)
			w.in.Change.Status.OrderNodeID, w.in.Change.Status.OrderStage = "order-node", v1alpha1.OrderPostWait
			if test.arrives != nil {
				test.arrives(w)
			}
			w.in.Change.Status.UnclaimedVerdicts = []v1alpha1.UnclaimedVerdict{{
				Stage: v1alpha1.StagePre, CheckVerdict: v1alpha1.CheckVerdict{NodeID: "lost", Verdict: record.VerdictFail},
			}}
			w.Step()
			test.later(w)
			if got := w.in.Change.Status.Status; got != test.want {
				t.Errorf("the release is %s, want %s", got, test.want)
			}
		})
	}
}

func TestUnclaimedVerdictsAreBounded(t *testing.T) {
	var s v1alpha1.ChangeWorkloadStatus
	place := func(n int, verdict string) server.Placement {
		return server.PlaceOnRelease(&s, server.Delivered{NodeID: fmt.Sprint("n", n), Stage: v1alpha1.StagePre, Verdict: verdict}, testNow)
	}
	for n := range 50 {
		if got := place(n, record.VerdictPass); got != server.PlacementStored {
			t.Fatalf("verdict %d is %s", n, got)
		}
	}
	for n := range 50 {
		if got := place(1000+n, "fail"); got != server.PlacementStored {
			t.Fatalf("a failing verdict finds no room: %s", got)
		}
	}
	if got := place(5000, "fail"); got != server.PlacementFull || len(s.UnclaimedVerdicts) != 50 {
		t.Errorf("%s with %d stored, want Full with %d", got, len(s.UnclaimedVerdicts), 50)
	}
	if got := place(1000, "fail"); got != server.PlacementKnown {
		t.Errorf("the same verdict again is %s", got)
	}
}

// byCheck returns verdicts by check, pass by default.
func byCheck(given map[string]string) func(string) string {
	return func(check string) string {
		if v, ok := given[check]; ok {
			return v
		}
		return record.VerdictPass
	}
}

// TestVerdictOnUnknownEntry: the process dies after the server created an entry and delivered a verdict on it. The
// start is repeated, and the acknowledged verdict still counts.
func TestVerdictOnUnknownEntry(t *testing.T) {
	for _, check := range []string{"order", "1"} {
		t.Run(check, func(t *testing.T) {
			d := newDefended(1)
			d.server.early = true
			first := true
			d.server.verdict = func(c string) string {
				if c == "PRE "+check && first {
					first = false
					d.crash = d.calls + 1
					return "fail"
				}
				return record.VerdictPass
			}
			d.Pods(1).Complete()
			d.Run(t, 20*time.Minute)
			if got := count(d.server.journal, "Start "+check); got != 2 {
				t.Fatalf("%d starts, want 2: %v", got, d.server.journal)
			}
			if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuspend {
				t.Errorf("status %s, want Suspend: an acknowledged verdict is lost", s.Status)
			}
		})
	}
}

func TestSilenceHidesNoVerdict(t *testing.T) {
	d := newDefended(1)
	d.in.Settings.SilenceFails = true
	d.server.verdict = byCheck(map[string]string{"PRE order": ""})
	d.Pods(1).Complete()
	d.Run(t, 5*time.Minute)
	s := &d.in.Change.Status
	if s.Status != v1alpha1.ChangeWorkloadSuspend || s.OrderPreVerdict == nil || s.OrderPreVerdict.Delivered != "" {
		t.Fatalf("status %s, verdict %+v; want Suspend by silence", s.Status, s.OrderPreVerdict)
	}
	deliver := func(verdict string) server.Placement {
		return server.PlaceOnRelease(s, server.Delivered{OrderID: s.OrderID, NodeID: s.OrderNodeID, Stage: v1alpha1.StagePre, Verdict: verdict,
			Message: "freeze"}, d.in.Now)
	}
	if got := deliver(record.VerdictPass); got != server.PlacementKnown {
		t.Errorf("a verdict that passes after silence failed is %s", got)
	}
	if got := deliver("fail"); got != server.PlacementStored || s.OrderPreVerdict.Message != "freeze" {
		t.Errorf("the server's own failing verdict is %s: %+v", got, s.OrderPreVerdict)
	}
	s.OrderPreVerdict.Verdict = record.VerdictPass
	if got := deliver("fail"); got != server.PlacementKnown {
		t.Errorf("a repeated verdict that a user corrected is %s", got)
	}
	d.Run(t, time.Hour)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess {
		t.Errorf("status %s after the correction, want Success", s.Status)
	}
}

// TestPassIsConfirmed: where silence fails, a delivered pass counts only after a poll confirms it, because the server
// also delivers a pass for a check that ran into its own timeout. Where silence passes, no poll is made.
func TestPassIsConfirmed(t *testing.T) {
	const timedOut = "because it ran into the server's own timeout: polled for 2m0s, the server said that it has not passed; the setting " +
		"silence counts this as a failure"
	const unasked = "could not be asked within 2m0s whether it passed or ran into the server's own timeout; the setting silence " +
		"counts this as a failure"
	for name, test := range map[string]struct {
		quiet    bool   // silence passes
		timedOut string // the check that did
		later    bool   // that check passes after a minute
		down     string // the check whose polls are not answered
		fails    string // the check that fails
		want     v1alpha1.ChangeWorkloadStatusType
		says     string
		polls    map[string]int // at least; 0 for none at all
		within   time.Duration
	}{
		"all passed": {want: v1alpha1.ChangeWorkloadSuccess, within: 0,
			polls: map[string]int{"PollPre order": 1, "PollPre 1": 1, "PollPost 1": 1, "PollPost order": 1}},
		"silence passes": {quiet: true, timedOut: "POST 1", want: v1alpha1.ChangeWorkloadSuccess,
			polls: map[string]int{"PollPre order": 0, "PollPre 1": 0, "PollPost 1": 0, "PollPost order": 0}},
		"a PRE check of a batch timed out": {timedOut: "PRE 1", want: v1alpha1.ChangeWorkloadSuspend,
			says: "the PRE check pass without a verdict, " + timedOut, within: 10 * time.Minute},
		"a POST check of a batch timed out": {timedOut: "POST 1", want: v1alpha1.ChangeWorkloadSuspend,
			says: "the POST check pass without a verdict, " + timedOut, within: 10 * time.Minute},
		"the PRE check of the order timed out": {timedOut: "PRE order", want: v1alpha1.ChangeWorkloadSuspend,
			says: "the PRE check pass without a verdict, " + timedOut, within: 10 * time.Minute},
		"the POST check of the order timed out": {timedOut: "POST order", want: v1alpha1.ChangeWorkloadSuspend,
			says: "the POST check pass without a verdict, " + timedOut, within: 10 * time.Minute},
		"it timed out, and then passed": {timedOut: "POST 1", later: true, want: v1alpha1.ChangeWorkloadSuccess, within: 90 * time.Second,
			polls: map[string]int{"PollPost 1": 4}},
		"a batch cannot be asked for": {down: "PollPost 1", want: v1alpha1.ChangeWorkloadSuspend, says: unasked, within: 10 * time.Minute,
			polls: map[string]int{"PollPost 1": 8}},
		"the order cannot be asked for": {down: "PollPre order", want: v1alpha1.ChangeWorkloadSuspend, says: unasked,
			within: 10 * time.Minute},
		"a failure needs no confirmation": {fails: "POST 1", want: v1alpha1.ChangeWorkloadSuspend, says: "the server says fail",
			polls: map[string]int{"PollPost 1": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(1)
			d.in.Settings.SilenceFails = !test.quiet
			begun := d.in.Now
			d.server.verdict = byCheck(map[string]string{test.fails: record.VerdictFail})
			d.server.timedOut = func(check string) bool { return check == test.timedOut }
			d.server.answer = func(call string) *server.Answer {
				switch {
				case call == test.down:
					return retryAnswer()
				case test.later && call == "PollPost 1":
					d.server.polls = d.in.Now.Sub(begun) >= time.Minute
				}
				return nil
			}
			d.Pods(1).Complete()
			d.Run(t, test.within)
			s := &d.in.Change.Status
			said := ""
			if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionVerified); c != nil {
				said = c.Message
			}
			if s.Status != test.want || !strings.Contains(said, test.says) && !strings.Contains(fmt.Sprint(d.emitted), test.says) {
				t.Errorf("%s: %q, want %s: %q\n%v", s.Status, said, test.want, test.says, d.server.journal)
			}
			for call, atLeast := range test.polls {
				if n := count(d.server.journal, call); n < atLeast || atLeast == 0 && n > 0 {
					t.Errorf("%q was called %d times, want %d", call, n, atLeast)
				}
			}
		})
	}
}

// TestUnconfirmedPassIsCorrected: an unconfirmed pass counts as a failure; a user corrects it, or the check fails after
// all.
func TestUnconfirmedPassIsCorrected(t *testing.T) {
	for verdict, want := range map[string]v1alpha1.ChangeWorkloadStatusType{record.VerdictPass: v1alpha1.ChangeWorkloadSuccess,
		record.VerdictFail: v1alpha1.ChangeWorkloadSuspend} {
		d := newDefended(1)
		d.in.Settings.SilenceFails = true
		d.server.timedOut = func(check string) bool { return check == "POST order" }
		d.Pods(1).Complete()
		d.Run(t, 10*time.Minute)
		s := &d.in.Change.Status
		if s.Status != v1alpha1.ChangeWorkloadSuspend || s.OrderPostVerdict == nil || s.OrderPostVerdict.Delivered != "" {
			t.Fatalf("status %s, verdict %+v; want Suspend by silence", s.Status, s.OrderPostVerdict)
		}
		if verdict == record.VerdictPass {
			s.OrderPostVerdict.Verdict = record.VerdictPass
		} else if got := server.PlaceOnRelease(s,
			server.Delivered{OrderID: s.OrderID, NodeID: s.OrderNodeID, OfOrder: true, Stage: v1alpha1.StagePost, Verdict: verdict},
			d.in.Now); got != server.PlacementStored {
			t.Errorf("the server's own failure is %s", got)
		}
		d.Run(t, time.Hour)
		if got := d.in.Change.Status.Status; got != want {
			t.Errorf("%s after %s, want %s", got, verdict, want)
		}
	}
}

// TestNothingToCheckIsNoSilence: the server has no checks, or answers that there is nothing to check, and rejects the
// end at first.
func TestNothingToCheckIsNoSilence(t *testing.T) {
	for name, answer := range map[string]func(d *defended) func(string) *server.Answer{
		"no check configured": func(*defended) func(string) *server.Answer {
			return func(call string) *server.Answer {
				if strings.HasPrefix(call, "Start") {
					return &server.Answer{Kind: server.AnswerNoCheck}
				}
				return nil
			}
		},
		"skipped without an entry": func(d *defended) func(string) *server.Answer {
			return func(call string) *server.Answer {
				if call == "Start order" {
					d.server.nodes = nil
					return &server.Answer{Kind: server.AnswerDone, SkipCheck: true}
				}
				return nil
			}
		},
		"skipped, and the end fails once": func(d *defended) func(string) *server.Answer {
			return func(call string) *server.Answer {
				switch {
				case strings.HasPrefix(call, "Start"):
					return &server.Answer{Kind: server.AnswerDone, SkipCheck: true}
				case strings.HasPrefix(call, "Finish") && count(d.server.journal, call) == 1:
					return retryAnswer()
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(2)
			d.in.Settings.SilenceFails = true
			d.server.answer = answer(d)
			d.server.verdict = func(check string) string {
				if strings.HasSuffix(check, "order") || strings.HasPrefix(check, "POST") && !strings.HasPrefix(name, "skipped without") {
					return ""
				}
				return record.VerdictPass
			}
			if strings.HasPrefix(name, "skipped without") {
				d.server.verdict = byCheck(nil)
			}
			d.Pods(2).Complete()
			d.Run(t, 10*time.Minute)
			if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess {
				t.Errorf("status %s, want Success\n%v\n%+v", s.Status, d.server.journal, s.Conditions)
			}
		})
	}
}

// TestPodsAfterAnUnverifiedSuccess: the server is available again, so the order is submitted and ended.
func TestPodsAfterAnUnverifiedSuccess(t *testing.T) {
	d := newDefended(1)
	down := true
	d.server.answer = func(string) *server.Answer {
		if down {
			return retryAnswer()
		}
		return nil
	}
	d.Pods(1).Complete()
	d.Run(t, time.Hour)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuccess || s.OrderStage != v1alpha1.OrderSubmitting {
		t.Fatalf("status %s, order %s; want an unverified Success", s.Status, s.OrderStage)
	}
	calls := len(d.server.journal)
	d.Later(24 * time.Hour).Pods(1)
	d.Run(t, 24*time.Hour)
	if got := d.in.Batches[1].Status.Message; got != "PreFailed" || len(d.server.journal)-calls > 15 {
		t.Errorf("with the server still down the batch is %s after %d calls", got, len(d.server.journal)-calls)
	}
	down = false
	d.stored.Replicas = 3
	d.Pods(1)
	d.Run(t, time.Hour)
	s := &d.in.Change.Status
	if got := d.in.Batches[2].Status.Message; got != "PostFinish" || s.OrderStage != v1alpha1.OrderEnded ||
		s.OrderEnd != v1alpha1.FinishSuccess {
		t.Errorf("batch %s, order %s ended %s; want PostFinish, Ended, SUCCESS\n%v", got, s.OrderStage, s.OrderEnd, d.server.journal)
	}
}

// TestReleasedAgainWhileItsOrderIsOpen: A, B and A again within a moment.
func TestReleasedAgainWhileItsOrderIsOpen(t *testing.T) {
	for name, reachable := range map[string]bool{"the server takes the end": true, "the server is down": false} {
		t.Run(name, func(t *testing.T) {
			d := newDefended(1)
			d.server.verdict = byCheck(map[string]string{"POST 1": ""})
			d.Pods(1).Complete()
			d.Run(t, 0)
			first := d.in.Change.Status.OrderID
			d.server.answer = func(call string) *server.Answer {
				if call == "End order" && !reachable {
					return retryAnswer()
				}
				return nil
			}
			d.in.Change.Spec.Release = 3
			d.Release(3, versionA)
			d.Run(t, 10*time.Minute)
			s := &d.in.Change.Status
			if s.Attempt != 2 || s.Status != v1alpha1.ChangeWorkloadSuccess || s.OrderID == first {
				t.Errorf("attempt %d is %s, order %q after %q", s.Attempt, s.Status, s.OrderID, first)
			}
			if n := count(d.server.journal, "End order"); reachable && n != 2 {
				t.Errorf("%d orders were ended, want both", n)
			}
		})
	}
}

func TestDeniedThenDown(t *testing.T) {
	d := newDefended(1)
	d.server.answer = func(string) *server.Answer {
		switch at := d.in.Now.Sub(testNow); {
		case at < 10*time.Minute:
			return &server.Answer{Kind: server.AnswerDenied}
		case at < 11*time.Minute:
			return retryAnswer()
		}
		return nil
	}
	d.Pods(1).Complete()
	d.Run(t, time.Hour)
	if got := d.in.Batches; len(got) != 1 || got[0].Status.Message != "PostFinish" {
		t.Errorf("batches %+v, want one that was checked: the restart after the registration is no outage", got)
	}
}

// TestEndWhileThePreCheckRuns: the operator's deadline is shorter than the server's check.
func TestEndWhileThePreCheckRuns(t *testing.T) {
	d := newDefended(1)
	d.server.verdict = byCheck(map[string]string{"PRE order": "", "POST order": "fail"})
	d.server.answer = func(call string) *server.Answer {
		if call == "Finish order" && d.in.Now.Sub(testNow) < 150*time.Second {
			return &server.Answer{Kind: server.AnswerUnsupported}
		}
		return nil
	}
	d.Pods(1).Complete()
	d.Run(t, time.Hour)
	if s := &d.in.Change.Status; s.Status != v1alpha1.ChangeWorkloadSuspend {
		t.Errorf("status %s, want Suspend by the POST check that began late\n%v", s.Status, d.server.journal)
	}
	if n := count(d.server.journal, "Finish order"); n > 20 {
		t.Errorf("the end was notified %d times", n)
	}
}

// TestReplacedWhileItsStartIsRefused: the order is ended.
func TestReplacedWhileItsStartIsRefused(t *testing.T) {
	d := newDefended(1)
	d.in.Settings.PreTimeout, d.in.Settings.PostTimeout = 30*time.Second, 30*time.Second
	d.server.answer = func(call string) *server.Answer {
		if call == "Start order" {
			return &server.Answer{Kind: server.AnswerIllegal}
		}
		return nil
	}
	d.Pods(1)
	d.Run(t, 0)
	d.Release(2, versionB)
	d.Run(t, time.Minute)
	if n := count(d.server.journal, "End order"); n != 1 {
		t.Errorf("the order was ended %d times, want once", n)
	}
}

// TestOrderOfNamespace: an attempt keeps the values of the namespace at its begin.
func TestOrderOfNamespace(t *testing.T) {
	d := newDefended(1)
	d.in.Tenant, d.in.Phase = "team-a", "pre_phase"
	d.Step()
	d.in.Tenant, d.in.Phase = "team-b", ""
	d.Step()
	if s := d.in.Change.Status; s.OrderTenant != "team-a" || s.OrderPhase != "pre_phase" {
		t.Errorf("tenant %q, phase %q", s.OrderTenant, s.OrderPhase)
	}
	d.in.Change.Spec.Release++
	d.Release(2, versionA)
	d.Step()
	if s := d.in.Change.Status; s.OrderTenant != "team-b" || s.OrderPhase != "" {
		t.Errorf("the next attempt: tenant %q, phase %q", s.OrderTenant, s.OrderPhase)
	}
	stand := newWorld(1)
	stand.in.Tenant = "team-a"
	stand.Step()
	if s := stand.in.Change.Status; s.OrderTenant != "" {
		t.Errorf("without a server: tenant %q", s.OrderTenant)
	}
}
