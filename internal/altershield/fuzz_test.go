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
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// anyAnswer answers every request with the same answer.
type anyAnswer struct {
	status int
	body   []byte
}

func (a anyAnswer) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}

// some reports whether a JSON object has a field whose value satisfies a condition. Like the
// decoder, it ignores the case of the name.
func some(object json.RawMessage, name string, is func(json.RawMessage) bool) bool {
	d := json.NewDecoder(bytes.NewReader(object))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return false
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return false
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			return false
		}
		if text, isText := key.(string); isText && strings.EqualFold(text, name) && is(value) {
			return true
		}
	}
	return false
}

func isTrue(value json.RawMessage) bool { return string(value) == "true" }

func isPass(value json.RawMessage) bool {
	var text string
	return json.Unmarshal(value, &text) == nil && VerdictValue(text).passes()
}

func hasPass(value json.RawMessage) bool { return some(value, "verdict", isPass) }

// FuzzAnswers: only an explicit pass of the application is taken as a pass. No error is long,
// has several lines, or holds the token.
func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{
		`{"success":true,"resultCode":"000","domain":{"finished":true,"verdict":{"verdict":"pass","allFinish":true}}}`,
		`{"success":true,"domain":{"nodeId":"n","skipCheck":true,"verdict":{"verdict":"NONE"}}}`,
		`{"success":false,"resultCode":"110","msg":"the token is fuzzing-token\n","domain":{"finished":true,"verdict":{"verdict":"pass"}}}`,
		`{"domain":{"finished":true,"verdict":{"verdict":"pass"}}}`, `{"success":true,"domain":{"finished":"true","verdict":"pass"}}`,
		`{"success":true,"success":false}`, `{"success":true,"domain":null}`, `{"success":true,"domain":[]}`, `{"success":"true"}`,
		`{"success":true,"domain":{"finished":true,"verdict":{"verdict":["pass"],"rules":{}}}} {}`,
		`{"success":true,"domain":{"finished":true,"verdict":{"verdict":"pass"`,
		`{"success":false,"resultCode":"\n0 fuzzing-token"}`,
		`{"success":false,"resultCode":"777","msg":"` + strings.Repeat(`\"`, maxMessage) + `"}`,
		`<html>pass</html>`, "\xff", "", `null`, `[]`, `"pass"`,
	} {
		for _, status := range []int{200, 302, 400, 404, 429, 500} {
			f.Add(status, []byte(seed))
		}
	}
	const token = "fuzzing-token"
	base := Base{TenantCode: "t", ChangeSceneKey: "s", BizExecOrderID: "o"}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 {
			return // the transport lets none of these through
		}
		client, err := New(Options{URL: "http://server", Platform: "p", Tokens: StaticTokens{token}, Transport: anyAnswer{status, body}})
		if err != nil {
			t.Fatal(err)
		}
		// says: an answer of the application of whose domain something is true.
		says := func(is func(domain json.RawMessage) bool) bool {
			return status < 300 && json.Valid(body) && some(body, "success", isTrue) && some(body, "domain", is)
		}
		check := func(action Action, err error) {
			if err == nil {
				if status >= 300 || !json.Valid(body) || !some(body, "success", isTrue) {
					t.Fatalf("%s: HTTP %d %q is taken for an answer", action, status, body)
				}
				return
			}
			if text := err.Error(); len(text) > 2*maxMessage || strings.ContainsAny(text, "\n\r") || strings.Contains(text, token) {
				t.Fatalf("%s: error %q", action, text)
			}
		}
		poll, err := client.RetrieveCheck(t.Context(), RetrieveCheckRequest{Base: base, NodeID: "n", DefenseStage: StagePost})
		check(ActionRetrieveCheck, err)
		finished := func(d json.RawMessage) bool { return some(d, "finished", isTrue) && some(d, "verdict", hasPass) }
		if err == nil && poll.Passed() && !says(finished) {
			t.Fatalf("%q passes a poll", body)
		}
		node, err := client.StartBatch(t.Context(), StartBatchRequest{
			Base: base, Start: Start{Executor: "jane"}, IsLastBatchTag: TagLast, IsLastBatchInChangePhaseTag: TagLast, ChangePhase: PhaseProd,
			EffectiveTargetType: "type", EffectiveTargetLocations: []string{"pod"},
		})
		check(ActionStartBatch, err)
		if err == nil && node.SkipCheck && !says(func(d json.RawMessage) bool { return some(d, "skipCheck", isTrue) }) {
			t.Fatalf("%q skips a check", body)
		}
		if err == nil && !node.SkipCheck && node.NodeID == "" {
			t.Fatalf("%q starts nothing, and is no error", body)
		}
		admitted, err := client.SubmitAndStart(t.Context(), SubmitAndStartRequest{Base: base, Order: anyOrder, Executor: "jane"})
		check(ActionSubmitAndStart, err)
		if err == nil && admitted.Verdict.Passes() && !says(func(d json.RawMessage) bool { return some(d, "verdict", hasPass) }) {
			t.Fatalf("%q passes admission", body)
		}
		if err == nil && len(admitted.Verdict.Explanation()) > maxExplanation {
			t.Fatalf("the explanation of %q is long", body)
		}
	})
}

var anyOrder = Order{
	ChangeTitle: "t", Creator: "jane", ChangeScenarioCode: ScenarioDefault, ChangePhases: []string{PhaseProd},
	ChangeContents: []ChangeContent{{ContentType: ContentType{TypeName: "type"}, InstanceName: "ns/web"}}, ChangeParamJSON: "{}",
}
