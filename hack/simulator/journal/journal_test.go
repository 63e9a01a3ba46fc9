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

package journal

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

const params1 = `{"namespace":"default","workload":"web","version":"0123456789abcdef","images":["web:2"],"oldImages":["web:1"]}`

func request(order, node string, body any) simulator.Entry {
	return simulator.Entry{
		Kind: simulator.KindRequest, Order: order, Node: node, Request: body,
		Code: altershield.CodeSuccess, HTTPStatus: http.StatusOK,
	}
}

func refused(e simulator.Entry, code altershield.ResultCode, msg string) simulator.Entry {
	e.Code, e.Msg = code, msg
	return e
}

func callback(
	order, node string, stage altershield.Stage, verdict altershield.Verdict, outcome string, answer *altershield.CallbackResponse,
) simulator.Entry {
	e := simulator.Entry{
		Kind: simulator.KindCallback, Order: order, Node: node, Outcome: outcome, Answer: answer,
		Callback: &altershield.Callback{Request: altershield.CallbackRequest{NodeID: node, Stage: stage, Verdict: verdict}},
	}
	if answer != nil {
		e.HTTPStatus = http.StatusOK
	}
	return e
}

func TestLine(t *testing.T) {
	submit := &altershield.SubmitOrderRequest{Order: altershield.Order{ChangeTitle: "release", ChangeParamJSON: params1}}
	batch := func(number int, pods ...string) *altershield.StartBatchRequest {
		return &altershield.StartBatchRequest{BatchNo: number - 1, TotalBatchNum: 3, EffectiveTargetLocations: pods}
	}
	pass, taken := altershield.Verdict{Verdict: altershield.VerdictPass}, &altershield.CallbackResponse{Success: true}
	fail := altershield.Verdict{Verdict: altershield.VerdictFail, Rules: []altershield.Rule{{Name: "error rate", Msg: "above 1 %"}}}
	slow := request("o1", "n2", batch(2, "b"))
	slow.Outage = simulator.LostReply
	unreadable := request("o1", "", nil)
	unreadable.Action, unreadable.Code, unreadable.HTTPStatus = altershield.ActionStartBatch, "", http.StatusBadRequest

	const web = "default/web 01234567"
	entries := []struct {
		entry         simulator.Entry
		release, text string
	}{
		{request("", "", nil), "-", "request   "},
		{request("o1", "", submit), web, "request   order submitted: web:2 instead of web:1"},
		{
			refused(request("o1", "", submit), altershield.CodeDuplicate, "duplicate"),
			web, "request   order submitted: web:2 instead of web:1 -> refused, 106 duplicate",
		},
		{request("o1", "n0", &altershield.StartOrderRequest{}), web, "request   order started"},
		{callback("o1", "n0", altershield.StagePre, pass, "200", taken), web, "callback  order PRE: pass"},
		{request("o1", "n1", batch(1, "a")), web, "request   batch 1/3 started: a"},
		{slow, web, "request   batch 2/3 started: b -> outage: LostReply"},
		{request("o1", "n3", batch(3, "c", "d", "e", "f", "g")), web, "request   batch 3/3 started: c, d, e and 2 more"},
		{
			refused(request("o1", "n1", &altershield.FinishNodeRequest{Success: true}), altershield.CodeNotSupported, ""),
			web, "request   batch 1/3 finished -> refused, 103",
		},
		{
			request("o1", "n2", &altershield.RetrieveCheckRequest{DefenseStage: altershield.StagePost}),
			web, "request   batch 2/3 POST: asked for the verdict",
		},
		{unreadable, web, "request   submitChangeExecBatchStartNotify -> HTTP 400"},
		{
			callback("o1", "n2", altershield.StagePost, fail, "200", taken),
			web, "callback  batch 2/3 POST: fail (error rate: above 1 %)",
		},
		{
			callback("o1", "n2", altershield.StagePost, fail, "200", &altershield.CallbackResponse{Msg: "unknown node"}),
			web, "callback  batch 2/3 POST: fail (error rate: above 1 %) -> refused, 200 unknown node",
		},
		{
			callback("o1", "n2", altershield.StagePost, pass, "connection refused", nil),
			web, "callback  batch 2/3 POST: pass -> connection refused",
		},
		{
			request("o1", "n0", &altershield.FinishNodeRequest{Msg: "the release was canceled"}),
			web, "request   order finished without success: the release was canceled",
		},
		{
			request("o1", "", &altershield.EndOrderRequest{FinishState: altershield.FinishCancel}),
			web, "request   order ended: CANCEL",
		},
		{callback("o2", "n9", altershield.StagePre, pass, "200", taken), "o2", "callback  node n9 PRE: pass"},
		{
			request("o3", "n5", &altershield.SubmitAndStartRequest{
				Order: altershield.Order{ChangeTitle: "a\x1b[2Jtitle", ChangeParamJSON: "{}"},
			}),
			"a [2Jtitle", "request   admission asked",
		},
	}
	narrator := NewNarrator()
	for _, e := range entries {
		e.entry.Time = time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
		want := Line{Time: "03:04:05.006", Release: e.release, Text: e.text}
		if diff := cmp.Diff(want, narrator.Line(e.entry)); diff != "" {
			t.Errorf("line (-want +got):\n%s", diff)
		}
	}
	if got, want := (Line{"03:04:05.006", "web", "request   x"}).String(), "03:04:05.006  web  request   x"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
}
