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
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

type brokenTokens struct{}

func (brokenTokens) Tokens() ([]string, error) { return nil, errors.New("the file is empty") }

func TestSignatureVector(t *testing.T) {
	f := newFixture(t, func(f *fixture) { f.opts.Tokens = altershield.StaticTokens{"tok"} })
	send := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, altershield.CallbackPath, strings.NewReader(body))
		r.Header.Set("Content-Type", callbackContentType)
		r.Header.Set("X-AlterShield-Platform", "kubernetes")
		r.Header.Set("X-AlterShield-Timestamp", "1700000000123")
		r.Header.Set("X-AlterShield-Sign", "OCSKWAFLHE3AJKMCN5G9FCCOH0_FCMXVW7FIHTT7CFG=")
		return serve(f.handler(t), r)
	}
	expect(t, send(`{"a":1} `), http.StatusUnauthorized, refusedBody)
	// Authenticated, but no callback.
	expect(t, send(`{"a":1}`), http.StatusBadRequest, `{"success":false,"retry":false,"msg":"changeCheckType is \"\""}`)
}

// TestNoTokenIsSaid: without a token no request can be verified, and the answer says that the
// token is missing.
func TestNoTokenIsSaid(t *testing.T) {
	const missing = "this address serves signed requests only, and the operator has no token to verify them: set --altershield-token-file"
	body := `{"code":401,"message":"` + missing + `"}`
	for name, test := range map[string]struct {
		request *http.Request
		want    string
	}{
		"callback":     {signed(passed, tokenA, testNow), `{"success":false,"retry":false,"msg":"` + missing + `"}`},
		"suspend list": {signedGet("", "{}", tokenA, testNow), body},
		"rollback":     {signedPut(`{"namespace":"shop","deploymentName":"web"}`, testNow), body},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) { f.opts.Tokens, f.opts.StandAlone = nil, true })
			expect(t, serve(f.handler(t), test.request), http.StatusUnauthorized, test.want)
			if said := f.log(); !strings.Contains(said, "no token is configured") {
				t.Errorf("log %q", said)
			}
			if f.records() != 0 {
				t.Error("it was recorded")
			}
		})
	}
}

// TestStandAlone: signed requests need only a token, with a server or without.
func TestStandAlone(t *testing.T) {
	newest := func(f *fixture) {
		f.opts.StandAlone, f.opts.View = true, viewOf(newClient(t, interceptor.Funcs{}))
		f.request = func(workload.Key, string, time.Time) (string, error) { return "v1", nil }
	}
	rollback := signedPut(`{"namespace":"shop","deploymentName":"web"}`, testNow)
	expect(t, serve(newFixture(t, newest).handler(t), rollback), http.StatusAccepted,
		`{"code":202,"message":"deployment shop/web is rolled back to version v1"}`)
	list := signedGet("", "{}", tokenA, testNow)
	expect(t, serve(newFixture(t, newest).handler(t), list), http.StatusOK,
		`{"code":200,"message":"suspended deployments: 0","deployments":[]}`)
	expect(t, serve(newFixture(t, newest).handler(t), signed(passed, tokenB, testNow)), http.StatusUnauthorized, refusedBody)
	// An order of a server that is no longer configured may be known yet.
	expect(t, serve(newFixture(t, newest).handler(t), signed(passed, tokenA, testNow)), http.StatusOK,
		`{"success":true,"retry":false,"msg":"recorded"}`)
	unknown := newFixture(t, newest, func(f *fixture) {
		f.record = func(context.Context, *altershield.Callback) (Outcome, error) { return OutcomeUnknown, nil }
	})
	expect(t, serve(unknown.handler(t), signed(passed, tokenA, testNow)), http.StatusOK,
		`{"success":false,"retry":false,"msg":"order unknown: the operator runs without AlterShield Server"}`)
}

// TestRefusals: the answer to each wrong authentication is the same. The log has the cause and
// no secrets.
func TestRefusals(t *testing.T) {
	set := func(key, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(key, value) }
	}
	stamp := func(value string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set(altershield.HeaderTimestamp, value)
			r.Header.Set(altershield.HeaderSign, altershield.Sign(value, []byte(passed), tokenA))
		}
	}
	at := func(d time.Duration) func(*http.Request) { return stamp(altershield.Timestamp(testNow.Add(d))) }
	again := func(key string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add(key, r.Header.Get(key)) }
	}
	without := func(key string) func(*http.Request) { return func(r *http.Request) { r.Header.Del(key) } }

	tests := map[string]struct {
		options  func(*Options)
		request  func(*http.Request)
		body     string
		wantLog  string
		accepted bool
	}{
		"authentic":      {accepted: true},
		"oldest":         {request: at(-5 * time.Minute), accepted: true},
		"newest":         {request: at(5 * time.Minute), accepted: true},
		"too old":        {request: at(-5*time.Minute - time.Millisecond), wantLog: "5m0.001s behind our clock"},
		"too new":        {request: at(5*time.Minute + time.Millisecond), wantLog: "5m0.001s ahead of our clock"},
		"no sign":        {request: without(altershield.HeaderSign), wantLog: "Sign is missing"},
		"no timestamp":   {request: without(altershield.HeaderTimestamp), wantLog: "Timestamp is missing"},
		"no platform":    {request: without(altershield.HeaderPlatform), wantLog: "Platform is missing"},
		"empty sign":     {request: set(altershield.HeaderSign, ""), wantLog: "Sign is missing"},
		"two signs":      {request: again(altershield.HeaderSign), wantLog: "Sign is there 2 times"},
		"two timestamps": {request: again(altershield.HeaderTimestamp), wantLog: "Timestamp is there 2 times"},
		"two platforms":  {request: again(altershield.HeaderPlatform), wantLog: "Platform is there 2 times"},
		"wrong sign": {
			request: set(altershield.HeaderSign, altershield.Sign(altershield.Timestamp(testNow), []byte(passed), tokenB)),
			wantLog: "signature is wrong",
		},
		"lower case sign": {
			request: set(altershield.HeaderSign, strings.ToLower(altershield.Sign(altershield.Timestamp(testNow), []byte(passed), tokenA))),
			wantLog: "signature is wrong",
		},
		"timestamp not the signed": {
			request: set(altershield.HeaderTimestamp, altershield.Timestamp(testNow.Add(time.Second))), wantLog: "signature is wrong",
		},
		"timestamp with plus":      {request: stamp("+" + altershield.Timestamp(testNow)), wantLog: "not Unix milliseconds"},
		"timestamp below zero":     {request: stamp("-1"), wantLog: "not Unix milliseconds"},
		"timestamp with space":     {request: stamp(" " + altershield.Timestamp(testNow)), wantLog: "not Unix milliseconds"},
		"timestamp with underline": {request: stamp("1_700_000_000_123"), wantLog: "not Unix milliseconds"},
		"timestamp in other digits": {request: stamp("１７００００００００１２３"),
			wantLog: "not Unix milliseconds"},
		"timestamp in seconds":   {request: stamp(fmt.Sprint(testNow.Unix())), wantLog: "behind our clock"},
		"timestamp that is huge": {request: stamp(strings.Repeat("9", 1000)), wantLog: "not Unix milliseconds"},
		"altered body":           {body: strings.Replace(passed, "pass", "fail", 1), wantLog: "signature is wrong"},
		"body with a newline":    {body: passed + "\n", wantLog: "signature is wrong"},
		"no token yet":           {options: func(o *Options) { o.Tokens = brokenTokens{} }, wantLog: "the file is empty"},
		"empty token": {options: func(o *Options) { o.Tokens = altershield.StaticTokens{""} },
			request: set(altershield.HeaderSign, altershield.Sign(altershield.Timestamp(testNow), []byte(passed), "")),
			wantLog: "signature is wrong"},
	}
	var headers []string
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) {
				if tc.options != nil {
					tc.options(&f.opts)
				}
			})
			r := signed(passed, tokenA, testNow)
			if tc.body != "" {
				altered := signed(tc.body, tokenA, testNow)
				altered.Header = r.Header
				r = altered
			}
			if tc.request != nil {
				tc.request(r)
			}
			w := serve(f.handler(t), r)
			if tc.accepted {
				expect(t, w, http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
				return
			}
			expect(t, w, http.StatusUnauthorized, refusedBody)
			headers = append(headers, fmt.Sprint(slices.Sorted(maps.Keys(w.Header())), w.Header().Get("Content-Length")))
			if f.records() != 0 {
				t.Error("the verdict was recorded")
			}
			if diff := cmp.Diff([]string{ResultRefused}, f.reported()); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			log := f.log()
			if strings.Count(log, "\n") != 0 || !strings.Contains(log, tc.wantLog) || !strings.Contains(log, r.RemoteAddr) {
				t.Errorf("log %q, want one line with %q and the remote address", log, tc.wantLog)
			}
			for _, secret := range []string{tokenA, tokenB, r.Header.Get(altershield.HeaderSign), "order-1"} {
				if secret != "" && strings.Contains(log, secret) {
					t.Errorf("the log has %q: %s", secret, log)
				}
			}
		})
	}
	if slices.Sort(headers); len(slices.Compact(headers)) != 1 {
		t.Errorf("the headers tell causes apart: %q", slices.Compact(headers))
	}
}

func TestTokenRotation(t *testing.T) {
	tokens := altershield.StaticTokens{tokenA}
	f := newFixture(t, func(f *fixture) { f.opts.Tokens = &tokens })
	h := f.handler(t)
	at := testNow
	try := func(token string, want int) {
		t.Helper()
		at = at.Add(time.Millisecond)
		if w := serve(h, signed(passed, token, at)); w.Code != want {
			t.Errorf("token %s with %v configured: %d, want %d", token, tokens, w.Code, want)
		}
	}
	try(tokenA, http.StatusOK)
	try(tokenB, http.StatusUnauthorized)
	tokens = altershield.StaticTokens{tokenB, tokenA}
	try(tokenA, http.StatusOK)
	try(tokenB, http.StatusOK)
	tokens = altershield.StaticTokens{tokenB}
	try(tokenA, http.StatusUnauthorized)
	try(tokenB, http.StatusOK)
}

func TestSignedQuery(t *testing.T) {
	tests := map[string]struct {
		query, content string
		token          string
		at             time.Time
		want           int
	}{
		"none":                 {"", `{}`, tokenA, testNow, http.StatusOK},
		"namespace":            {"?namespace=prod", `{"namespace":"prod"}`, tokenA, testNow, http.StatusOK},
		"natural order":        {"?z=1&namespace=prod", `{"namespace":"prod","z":"1"}`, tokenA, testNow, http.StatusBadRequest},
		"another namespace":    {"?namespace=test", `{"namespace":"prod"}`, tokenA, testNow, http.StatusUnauthorized},
		"parameter not signed": {"?namespace=prod", `{}`, tokenA, testNow, http.StatusUnauthorized},
		"other token":          {"", `{}`, tokenB, testNow, http.StatusUnauthorized},
		"old":                  {"", `{}`, tokenA, testNow.Add(-6 * time.Minute), http.StatusUnauthorized},
		"malformed query":      {"?namespace=prod&x=%zz", `{"namespace":"prod"}`, tokenA, testNow, http.StatusUnauthorized},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			h := f.handler(t)
			// A read may be repeated.
			for range 2 {
				w := serve(h, signedGet(tc.query, tc.content, tc.token, tc.at))
				body := `{"code":200,"message":"suspended deployments: 0","deployments":[]}`
				switch tc.want {
				case http.StatusUnauthorized:
					body = refusedBody
				case http.StatusBadRequest: // signed and invalid
					body = `{"code":400,"message":"unknown or repeated parameter \"z\"; known: namespace"}`
				}
				expect(t, w, tc.want, body)
			}
			if diff := cmp.Diff([]string{}, f.reported()); diff != "" {
				t.Errorf("no callback was counted, want none (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefusalsDoNotFillTheLog(t *testing.T) {
	f := newFixture(t)
	h := f.handler(t)
	for range 100 {
		expect(t, serve(h, signed(passed, tokenB, testNow)), http.StatusUnauthorized, refusedBody)
	}
	if lines := strings.Count(f.log(), "\n") + 1; lines != network.Burst {
		t.Errorf("%d lines at once, want %d", lines, network.Burst)
	}
	f.clock.SetTime(testNow.Add(time.Second))
	for range 2 {
		expect(t, serve(h, signed(passed, tokenB, testNow)), http.StatusUnauthorized, refusedBody)
	}
	if log := f.log(); strings.Count(log, "\n") != 0 || !strings.Contains(log, `"suppressed"=90`) {
		t.Errorf("log a second later: %q, want one line that says 90 were suppressed", log)
	}
}
