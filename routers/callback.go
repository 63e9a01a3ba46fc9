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
	"fmt"
	"math"
	"net/http"
	"runtime/debug"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// Recorder stores verdicts.
type Recorder interface {
	// Record returns when the verdict is stored durably or is not needed, because the server
	// sends a verdict only once. To record a verdict again is harmless. An error means that the
	// verdict could not be stored now. The context is bounded in time, and does not end with
	// the connection of the client.
	Record(ctx context.Context, c *altershield.Callback) (Outcome, error)
}

// Outcome is the result of recording a verdict.
type Outcome string

// Outcomes of recording.
const (
	// OutcomeRecorded: the verdict is stored, and the leader will act on it.
	OutcomeRecorded Outcome = "recorded"
	// OutcomeDuplicate: the verdict was already stored.
	OutcomeDuplicate Outcome = "duplicate"
	// OutcomeIgnored: the verdict is no longer needed, such as a PRE verdict after the
	// finish.
	OutcomeIgnored Outcome = "ignored"
	// OutcomeUnknown: no release has this order yet.
	OutcomeUnknown Outcome = "unknown"
)

// More results of a callback, for Options.OnCallback.
const (
	// ResultRefused: the callback was not authenticated.
	ResultRefused = "refused"
	// ResultMalformed: the request was authenticated and is no callback.
	ResultMalformed = "malformed"
	// ResultFailed: the verdict could not be stored.
	ResultFailed = "failed"
	// ResultLimited: there were too many requests.
	ResultLimited = "limited"
	// ResultOversized: the body was too large.
	ResultOversized = "oversized"
	// ResultIncomplete: the body did not arrive.
	ResultIncomplete = "incomplete"
)

// callback takes verdicts. Its answers are for humans who read the log of the server; the
// server itself does not repeat a callback.
//
// The context to store a verdict comes from lifetime, with the deadline of the request. So a
// verdict that has arrived is stored, even if the server closes the connection meanwhile.
func (s *Server) callback(lifetime context.Context) signedHandler {
	return func(w http.ResponseWriter, r *http.Request, body []byte) (handled bool) {
		c, err := altershield.ParseCallback(r.Header.Get("Content-Type"), body)
		if err != nil {
			s.count(r, ResultMalformed)
			s.opts.Log.Info("refused a malformed callback", "cause", err.Error(), "remote", r.RemoteAddr)
			writeJSON(w, http.StatusBadRequest, altershield.CallbackResponse{Msg: err.Error()})
			return true
		}
		until, _ := r.Context().Deadline()
		ctx, cancel := context.WithDeadline(lifetime, until)
		defer cancel()
		outcome, err := s.opts.Recorder.Record(ctx, c)
		log := s.opts.Log.WithValues("order", c.Request.BizExecOrderID, "orderEntry", c.Request.NodeID,
			"type", c.CheckType, "stage", c.Request.Stage, "verdict", c.Request.Verdict.Verdict)
		if err != nil {
			s.count(r, ResultFailed)
			if s.keepTrying(lifetime, c, log) {
				log.Info("a verdict could not be stored in time; trying again", "cause", err.Error())
			} else {
				log.Error(err, "store a verdict; it is polled for instead")
			}
			writeJSON(w, http.StatusServiceUnavailable, altershield.CallbackResponse{Retry: true, Msg: "the verdict could not be stored"})
			return false
		}
		s.count(r, string(outcome))
		if outcome == OutcomeUnknown {
			log.Info("got a verdict on an order that is not known")
			if s.opts.StandAlone {
				writeJSON(w, http.StatusOK, altershield.CallbackResponse{Msg: "order unknown: the operator runs without AlterShield Server"})
				return true
			}
			writeJSON(w, http.StatusOK, altershield.CallbackResponse{Retry: true, Msg: "order unknown"})
			return false
		}
		log.V(1).Info("got a verdict", "outcome", outcome)
		writeJSON(w, http.StatusOK, altershield.CallbackResponse{Success: true, Msg: string(outcome)})
		return true
	}
}

// keepTrying stores a verdict after the answer to its request, because the server sends each
// verdict only once, and a slow API server recovers. It reports whether there was a place to
// keep the verdict.
func (s *Server) keepTrying(lifetime context.Context, c *altershield.Callback, log logr.Logger) bool {
	select {
	case s.late <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() {
			<-s.late
			if p := recover(); p != nil {
				s.panics.Error(fmt.Errorf("panic: %v", p), "store a verdict late", "stack", string(debug.Stack()))
			}
		}()
		ctx, cancel := context.WithTimeout(lifetime, s.limits.lateRecord)
		defer cancel()
		backoff := wait.Backoff{Duration: s.limits.lateEvery, Factor: 2, Jitter: 0.5, Cap: s.limits.lateMost, Steps: math.MaxInt32}
		// Not ExponentialBackoff, which ends when the wait reaches its cap.
		err := backoff.DelayFunc().Until(ctx, false, true, func(ctx context.Context) (bool, error) {
			once, cancel := context.WithTimeout(ctx, s.limits.record)
			defer cancel()
			outcome, err := s.opts.Recorder.Record(once, c)
			if err != nil {
				return false, nil
			}
			log.Info("stored a verdict late", "outcome", outcome)
			return true, nil
		})
		if err != nil && lifetime.Err() == nil {
			log.Error(err, "store a verdict; it is polled for instead")
		}
	}()
	return true
}
