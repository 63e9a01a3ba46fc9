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

func TestVerdict(t *testing.T) {
	tests := map[string]struct {
		json            string
		wantErr         bool
		wantPasses      bool
		wantExplanation string
	}{
		"none":         {json: `{"verdict":"none"}`, wantPasses: true},
		"pass":         {json: `{"verdict":"pass","checkPass":true}`, wantPasses: true},
		"upper case":   {json: `{"verdict":"PASS"}`, wantPasses: true},
		"inconclusive": {json: `{"verdict":"inconc"}`, wantExplanation: "the server gave no reason"},
		"absent":       {json: `{"checkPass":true}`, wantExplanation: "the server gave no reason"},
		"null fields":  {json: `{"verdict":"fail","msg":null,"url":null,"rules":null}`, wantExplanation: "the server gave no reason"},
		"message and link first": {
			json:            `{"verdict":"fail","msg":"error rate\n 5%","url":"http://x/1","rules":[{"name":"r","msg":"m","verdict":"FAIL"}]}`,
			wantExplanation: "error rate 5%; http://x/1",
		},
		// Trap: a stock server's callback says why only in its rules.
		"only rules": {
			json: `{"verdict":"fail","allFinish":true,"rules":[
				{"name":"ok","msg":"fine","verdict":"PASS"},
				{"name":"error-rate","msg":"5% > 1%","verdict":"FAIL"},
				{"name":"muted","msg":"x","verdict":"FAIL","ignored":true},
				{"name":"latency","verdict":"fail"}]}`,
			wantExplanation: "error-rate: 5% > 1%; latency",
		},
		"link and rules": {
			json:            `{"verdict":"fail","url":"http://x/1","rules":[{"name":"r","msg":"m","verdict":"FAIL"}]}`,
			wantExplanation: "http://x/1; r: m",
		},
		"every rule passed": {
			json:            `{"verdict":"fail","rules":[{"name":"r","msg":"fine","verdict":"PASS"}]}`,
			wantExplanation: "the server gave no reason",
		},
		"no rule marked": {json: `{"verdict":"fail","rules":[{"name":"r","msg":"m"}]}`, wantExplanation: "r: m"},
		"rules in another form": {
			json:            `{"verdict":"fail","rules":"r","allFinish":"yes","msg":{"a":1}}`,
			wantExplanation: "the server gave no reason",
		},
		"one odd rule":          {json: `{"verdict":"fail","rules":[7,{"name":1,"msg":"m","verdict":"FAIL"}]}`, wantExplanation: "m"},
		"verdict of other type": {json: `{"verdict":1}`, wantErr: true},
		"many rules are counted": {
			json: `{"verdict":"fail","rules":[{"name":"1"},{"name":"2"},{"name":"3"},{"name":"4"},{"name":"5"},{"name":"6"},` +
				`{"name":"7"}]}`,
			wantExplanation: "1; 2; 3; 4; 5; and 2 more",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var v Verdict
			err := json.Unmarshal([]byte(tc.json), &v)
			if tc.wantErr {
				if err == nil {
					t.Fatal("no error")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if v.Passes() != tc.wantPasses {
				t.Errorf("Passes() = %v, want %v", v.Passes(), tc.wantPasses)
			}
			if diff := cmp.Diff(tc.wantExplanation, v.Explanation()); diff != "" {
				t.Errorf("explanation (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLink: what the server calls a URL is shown only where it is a link.
func TestLink(t *testing.T) {
	for given, want := range map[string]string{
		"https://altershield.example/order/1":  "https://altershield.example/order/1",
		" http://altershield.example ":         "http://altershield.example",
		"20261121012471000000000018XX06R25Q11": "",
		"":                                     "",
		"/order/1":                             "",
		"http:///order":                        "",
		"javascript:alert(1)":                  "",
		"ftp://altershield.example/order":      "",
		"http://altershield.example/a b":       "",
		"http://altershield.example/" + strings.Repeat("x", 2048): "",
	} {
		if got := Link(given); got != want {
			t.Errorf("Link(%.40q) = %q, want %q", given, got, want)
		}
		if got := (Verdict{Verdict: VerdictFail, Msg: "no", URL: given}).Explanation(); strings.Contains(got, ";") != (want != "") {
			t.Errorf("explanation %q, with the link %q", got, want)
		}
	}
}

func TestExplanationIsBounded(t *testing.T) {
	v := Verdict{Verdict: VerdictFail, Msg: strings.Repeat("é\x00", 5000)}
	if got := v.Explanation(); len(got) > maxExplanation || strings.ContainsRune(got, 0) {
		t.Errorf("explanation of %d bytes", len(got))
	}
}

func TestPolledPass(t *testing.T) {
	tests := map[string]struct {
		json string
		want bool
	}{
		"running":                                {`{"finished":false,"verdict":{"verdict":"fail"}}`, false},
		"passed":                                 {`{"finished":true,"verdict":{"verdict":"pass"}}`, true},
		"no rule":                                {`{"finished":true,"verdict":{"verdict":"none"}}`, true},
		"a polled failure is no verdict":         {`{"finished":true,"verdict":{"verdict":"fail","allFinish":true}}`, false},
		"inconclusive":                           {`{"finished":true,"verdict":{"verdict":"inconc"}}`, false},
		"finished without verdict":               {`{"finished":true,"verdict":null}`, false},
		"a pass that is not finished counts not": {`{"verdict":{"verdict":"pass"}}`, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var p PollResult
			if err := json.Unmarshal([]byte(tc.json), &p); err != nil {
				t.Fatal(err)
			}
			if got := p.Passed(); got != tc.want {
				t.Errorf("Passed() = %v, want %v", got, tc.want)
			}
		})
	}
}
