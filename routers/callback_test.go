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
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// slowBody does something before it is read.
type slowBody struct {
	io.Reader
	once   sync.Once
	before func()
}

func (b *slowBody) Read(p []byte) (int, error) {
	b.once.Do(b.before)
	return b.Reader.Read(p)
}

func (b *slowBody) Close() error { return nil }

func TestCallback(t *testing.T) {
	tests := map[string]struct {
		body, contentType string
		outcome           Outcome
		err               error
		wantCode          int
		wantBody          string
		wantResult        string
		wantLog           string
		wantRecorded      bool
	}{
		"recorded": {
			outcome: OutcomeRecorded, wantCode: 200, wantBody: `{"success":true,"retry":false,"msg":"recorded"}`, wantResult: "recorded",
			wantRecorded: true,
		},
		"duplicate": {
			outcome: OutcomeDuplicate, wantCode: 200, wantBody: `{"success":true,"retry":false,"msg":"duplicate"}`, wantResult: "duplicate",
			wantRecorded: true,
		},
		"ignored": {
			outcome: OutcomeIgnored, wantCode: 200, wantBody: `{"success":true,"retry":false,"msg":"ignored"}`, wantResult: "ignored",
			wantRecorded: true,
		},
		"unknown": {outcome: OutcomeUnknown, wantCode: 200, wantBody: `{"success":false,"retry":true,"msg":"order unknown"}`,
			wantResult: "unknown", wantLog: `"order"="order-1" "orderEntry"="node-1"`, wantRecorded: true},
		"not stored": {err: errors.New("etcd is away"), wantCode: 503,
			wantBody:   `{"success":false,"retry":true,"msg":"the verdict could not be stored"}`,
			wantResult: "failed", wantLog: "etcd is away", wantRecorded: true},
		"plain content type": {contentType: "application/json", outcome: OutcomeRecorded, wantCode: 200,
			wantBody: `{"success":true,"retry":false,"msg":"recorded"}`, wantResult: "recorded", wantRecorded: true},
		"other content type": {contentType: "text/plain", wantCode: 400,
			wantBody:   `{"success":false,"retry":false,"msg":"the content type is \"text/plain\", not application/json"}`,
			wantResult: "malformed", wantLog: "text/plain"},
		"action": {body: strings.Replace(passed, "CHANGE_BATCH", "CHANGE_ACTION", 1), outcome: OutcomeIgnored, wantCode: 200,
			wantBody: `{"success":true,"retry":false,"msg":"ignored"}`, wantResult: "ignored", wantRecorded: true},
		"no JSON": {body: `{"secret-content`, wantCode: 400,
			wantBody:   `{"success":false,"retry":false,"msg":"the body is not a callback: invalid JSON at byte 16"}`,
			wantResult: "malformed", wantLog: "invalid JSON"},
		"empty": {body: ` `, wantCode: 400,
			wantBody:   `{"success":false,"retry":false,"msg":"the body is not a callback: invalid JSON at byte 0"}`,
			wantResult: "malformed", wantLog: "invalid JSON"},
		"no order": {body: strings.Replace(passed, "order-1", "", 1), wantCode: 400,
			wantBody:   `{"success":false,"retry":false,"msg":"bizExecOrderId is missing"}`,
			wantResult: "malformed", wantLog: "bizExecOrderId is missing"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) {
				f.record = func(ctx context.Context, _ *altershield.Callback) (Outcome, error) {
					if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Second {
						t.Errorf("the context ends at %v (%v), want within 5 s", deadline, ok)
					}
					return tc.outcome, tc.err
				}
			})
			if tc.body == "" {
				tc.body = passed
			}
			r := signed(tc.body, tokenA, testNow)
			if tc.contentType != "" {
				r.Header.Set("Content-Type", tc.contentType)
			}
			expect(t, serve(f.handler(t), r), tc.wantCode, tc.wantBody)
			if diff := cmp.Diff([]string{tc.wantResult}, f.reported()); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if (f.records() == 1) != tc.wantRecorded {
				t.Errorf("the recorder was called %d times, want %v", f.records(), tc.wantRecorded)
			}
			log := f.log()
			if strings.Contains(log, "\n") || !strings.Contains(log, tc.wantLog) || (tc.wantLog == "") != (log == "") {
				t.Errorf("log %q, want one line with %q", log, tc.wantLog)
			}
			for _, secret := range []string{tokenA, r.Header.Get(altershield.HeaderSign), "secret-content"} {
				if strings.Contains(log, secret) {
					t.Errorf("the log has %q: %s", secret, log)
				}
			}
		})
	}
}

func TestRecorderGetsTheCallback(t *testing.T) {
	f := newFixture(t)
	expect(t, serve(f.handler(t), signed(passed, tokenA, testNow)), http.StatusOK, `{"success":true,"retry":false,"msg":"recorded"}`)
	want := []altershield.Callback{{CheckType: altershield.CheckBatch, Request: altershield.CallbackRequest{
		NodeID: "node-1", ChangeSceneKey: "scene", BizExecOrderID: "order-1", Stage: altershield.StagePost,
		Verdict: altershield.Verdict{Verdict: altershield.VerdictPass, AllFinish: true},
	}}}
	if diff := cmp.Diff(want, f.recorded); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

// TestRecordingOutlivesTheClient: the server closes the connection, and its verdict is still
// stored.
func TestRecordingOutlivesTheClient(t *testing.T) {
	recording, gone, stored := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f := newFixture(t, func(f *fixture) {
		f.record = func(ctx context.Context, _ *altershield.Callback) (Outcome, error) {
			close(recording)
			<-gone
			stored <- ctx.Err()
			return OutcomeRecorded, nil
		}
	})
	var requestCtx context.Context
	h := f.handler(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requestCtx = r.Context()
		h.ServeHTTP(w, r)
	}))
	defer server.Close()
	ctx, hangUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	r := toAddress(t, signed(passed, tokenA, testNow), server.URL).WithContext(ctx)
	go func() {
		_, err := server.Client().Do(r)
		done <- err
	}()
	receive(t, recording, "the recorder to be called")
	hangUp()
	if err := receive(t, done, "the client to hang up"); !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v, want that it hung up", err)
	}
	receive(t, requestCtx.Done(), "the server to see that the client is gone")
	close(gone)
	if err := receive(t, stored, "the verdict to be stored"); err != nil {
		t.Errorf("storing was cut short: %v", err)
	}
}

func TestRecordingIsBounded(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		f.limits.record = 200 * time.Millisecond
		f.record = func(ctx context.Context, _ *altershield.Callback) (Outcome, error) {
			<-ctx.Done()
			return "", fmt.Errorf("store: %w", ctx.Err())
		}
	})
	expect(t, serve(f.handler(t), signed(passed, tokenA, testNow)), http.StatusServiceUnavailable,
		`{"success":false,"retry":true,"msg":"the verdict could not be stored"}`)
}

func TestRecordingEndsWithTheServer(t *testing.T) {
	lifetime, end := context.WithCancel(t.Context())
	f := newFixture(t, func(f *fixture) {
		f.record = func(ctx context.Context, _ *altershield.Callback) (Outcome, error) {
			end()
			<-ctx.Done()
			return "", context.Cause(ctx)
		}
	})
	expect(t, serve(f.server.Handler(lifetime), signed(passed, tokenA, testNow)), http.StatusServiceUnavailable,
		`{"success":false,"retry":true,"msg":"the verdict could not be stored"}`)
	if log := f.log(); !strings.Contains(log, context.Canceled.Error()) {
		t.Errorf("log %q, want that it was cut short", log)
	}
}

func TestLiveTest(t *testing.T) {
	f := newFixture(t, func(f *fixture) { f.opts.Tokens = nil })
	expect(t, serve(f.handler(t), httptest.NewRequest(http.MethodPost, LiveTestPath, nil)), http.StatusOK,
		`{"code":0,"message":"Hello world"}`)
}

// TestStoredLate: a verdict that could not be stored while its request lasted is stored later,
// because the server does not send it again. After a time the replica gives up.
func TestStoredLate(t *testing.T) {
	var tries atomic.Int32
	stored := make(chan struct{})
	f := newFixture(t, func(f *fixture) {
		f.limits.lateEvery, f.limits.lateMost, f.limits.late = time.Millisecond, 2*time.Millisecond, 1
		f.record = func(context.Context, *altershield.Callback) (Outcome, error) {
			// Longer than it takes until the wait has reached its maximum.
			if n := tries.Add(1); n < 8 {
				return "", errors.New("the API server is slow")
			} else if n == 8 {
				close(stored)
			}
			return OutcomeRecorded, nil
		}
	})
	h := f.handler(t)
	expect(t, serve(h, signed(passed, tokenA, testNow)), http.StatusServiceUnavailable,
		`{"success":false,"retry":true,"msg":"the verdict could not be stored"}`)
	receive(t, stored, "the verdict to be stored")
	logged := func(context.Context) (bool, error) { return strings.Contains(f.log(), "stored a verdict late"), nil }
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, patience, true, logged); err != nil {
		t.Error("the log has no line about it:", err)
	}
}

// TestNoPlaceToStoreLate: a verdict without a place is given up at once.
func TestNoPlaceToStoreLate(t *testing.T) {
	f := newFixture(t, func(f *fixture) {
		f.limits.late = 0
		f.record = func(context.Context, *altershield.Callback) (Outcome, error) {
			return "", errors.New("the API server is slow")
		}
	})
	expect(t, serve(f.handler(t), signed(passed, tokenA, testNow)), http.StatusServiceUnavailable,
		`{"success":false,"retry":true,"msg":"the verdict could not be stored"}`)
	if log := f.log(); !strings.Contains(log, "it is polled for instead") {
		t.Errorf("log %q", log)
	}
}
