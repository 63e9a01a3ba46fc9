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

package altershield

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const stockCallback = `{"changeCheckType":"CHANGE_BATCH","callbackRequest":{"nodeId":"n1","changeSceneKey":"s","bizExecOrderId":"o1",` +
	`"verdict":{"verdict":"fail","allFinish":true,"checkPass":false,"rules":[{"name":"r","msg":"m","verdict":"FAIL"}]},` +
	`"defenseStageEnum":"POST"}}`

func TestParseCallback(t *testing.T) {
	replace := func(old, with string) string { return strings.Replace(stockCallback, old, with, 1) }
	want := &Callback{CheckType: CheckBatch, Request: CallbackRequest{
		NodeID: "n1", ChangeSceneKey: "s", BizExecOrderID: "o1", Stage: StagePost,
		Verdict: Verdict{Verdict: VerdictFail, AllFinish: true, Rules: []Rule{{Name: "r", Msg: "m", Verdict: "FAIL"}}},
	}}
	tests := map[string]struct {
		contentType string
		body        string
		want        *Callback
		wantErr     string
	}{
		// Trap: this is not a well-formed media type.
		"the server's content type": {"application/json;UTF-8", stockCallback, want, ""},
		"plain":                     {"application/json", stockCallback, want, ""},
		"with charset":              {"Application/JSON; charset=utf-8", stockCallback, want, ""},
		"null and unknown fields":   {"application/json", replace(`"nodeId"`, `"extra":{"a":[1]},"callbackUrl":null,"nodeId"`), want, ""},
		"other content type":        {"text/plain", stockCallback, nil, `the content type is "text/plain", not application/json`},
		"no content type":           {"", stockCallback, nil, `the content type is "", not application/json`},
		"no JSON":                   {"application/json", `{"secret`, nil, "the body is not a callback: invalid JSON at byte 8"},
		"more after it":             {"application/json", stockCallback + "{}", nil, "the body is not a callback: invalid JSON at byte 252"},
		"empty":                     {"application/json", "", nil, "the body is not a callback: invalid JSON at byte 0"},
		"null":                      {"application/json", "null", nil, `changeCheckType is ""`},
		"wrong type": {
			"application/json", `{"callbackRequest":{"nodeId":7}}`, nil,
			"the body is not a callback: callbackRequest.nodeId has the wrong type",
		},
		"unknown check type": {"application/json", replace("CHANGE_BATCH", "CHANGE_MIND"), nil, `changeCheckType is "CHANGE_MIND"`},
		"unknown stage":      {"application/json", replace("POST", "LATER"), nil, `defenseStageEnum is "LATER"`},
		"no node":            {"application/json", replace(`"n1"`, `" "`), nil, "nodeId is missing"},
		"long node":          {"application/json", replace("n1", strings.Repeat("n", 257)), nil, "nodeId has more than 256 bytes"},
		"no order":           {"application/json", replace(`"o1"`, `null`), nil, "bizExecOrderId is missing"},
		"long order":         {"application/json", replace("o1", strings.Repeat("o", 129)), nil, "bizExecOrderId has more than 128 bytes"},
		"no verdict":         {"application/json", replace(`"verdict":"fail"`, `"verdict":null`), nil, "verdict is missing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParseCallback(tc.contentType, []byte(tc.body))
			gotErr := ""
			if err != nil {
				gotErr = err.Error()
			}
			if diff := cmp.Diff(tc.wantErr, gotErr); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("callback (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCallbackResponse(t *testing.T) {
	data, err := json.Marshal(CallbackResponse{Msg: "stored"})
	if err != nil || string(data) != `{"success":false,"retry":false,"msg":"stored"}` {
		t.Errorf("Marshal() = %s, %v", data, err)
	}
	var r CallbackResponse
	if err := json.Unmarshal([]byte(`{"msg":"x"}`), &r); err != nil || !r.Success {
		t.Errorf("an absent success reads as %v, %v", r.Success, err)
	}
}

// FuzzParseCallback: each callback that is accepted is complete and can be explained on one
// bounded line. No error quotes much of the body.
func FuzzParseCallback(f *testing.F) {
	f.Add("application/json;UTF-8", []byte(stockCallback))
	f.Add("application/json", []byte(`{"changeCheckType":"CHANGE_ORDER","callbackRequest":{"nodeId":"n","bizExecOrderId":"o",`+
		`"defenseStageEnum":"PRE","verdict":{"verdict":"none"}}}`))
	f.Add("application/json", []byte(`{"callbackRequest":{"verdict":[]}}`))
	f.Add("", []byte("\xff"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		c, err := ParseCallback(contentType, body)
		if err != nil {
			if c != nil || len(err.Error()) > 512 || strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("callback %v with error %q", c, err)
			}
			return
		}
		passes := func(r json.RawMessage) bool { return some(r, "verdict", hasPass) }
		if c.Request.Verdict.Passes() && (!json.Valid(body) || !some(body, "callbackRequest", passes)) {
			t.Fatalf("%q passes", body)
		}
		if c.Request.NodeID == "" || c.Request.BizExecOrderID == "" || c.Request.Verdict.Verdict == "" {
			t.Fatalf("incomplete: %+v", c)
		}
		if e := c.Request.Verdict.Explanation(); len(e) > maxExplanation || strings.ContainsAny(e, "\n\r\x00") {
			t.Fatalf("explanation %q", e)
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		reread, err := ParseCallback("application/json", again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if reread.Request.Verdict.Passes() != c.Request.Verdict.Passes() {
			t.Fatal("the verdict changed")
		}
	})
}

func TestLatePre(t *testing.T) {
	for name, test := range map[string]struct {
		stage   Stage
		verdict VerdictValue
		rules   []Rule
		want    bool
	}{
		"every rule passed": {StagePost, VerdictFail, []Rule{{Verdict: "PASS", Stage: StagePost}, {Verdict: "pass"}}, true},
		"the rules of the PRE check": {
			StagePost, VerdictFail, []Rule{{Verdict: "FAIL", Stage: StagePre}, {Verdict: "PASS", Stage: StagePost}}, true,
		},
		"a rule of its own failed": {
			StagePost, VerdictFail, []Rule{{Verdict: "PASS", Stage: StagePre}, {Verdict: "FAIL", Stage: StagePost}}, false,
		},
		"a rule of no known stage":     {StagePost, VerdictFail, []Rule{{Verdict: "FAIL"}}, false},
		"a rule that says nothing":     {StagePost, VerdictFail, []Rule{{Name: "r", Stage: StagePost}}, false},
		"the failure of it is ignored": {StagePost, VerdictFail, []Rule{{Verdict: "FAIL", Stage: StagePost, Ignored: true}}, true},
		"no rules":                     {StagePost, VerdictFail, nil, false},
		"it passed":                    {StagePost, VerdictPass, []Rule{{Verdict: "PASS"}}, false},
		"the PRE check":                {StagePre, VerdictFail, []Rule{{Verdict: "FAIL", Stage: StagePre}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := CallbackRequest{Stage: test.stage, Verdict: Verdict{Verdict: test.verdict, Rules: test.rules}}
			if got := r.LatePre(); got != test.want {
				t.Errorf("%t, want %t", got, test.want)
			}
		})
	}
}
