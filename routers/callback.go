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
	"net/http"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// Recorder stores verdicts.
type Recorder interface {
	// Record returns once the verdict is stored durably, or needs not be: the
	// server sends it only once. Recording one again is harmless. An error means
	// that it could not be stored now. The context is bounded in time and does
	// not end with the client's connection.
	Record(ctx context.Context, c *altershield.Callback) (Outcome, error)
}

// Outcome is what became of a verdict.
type Outcome string

// Outcomes of recording.
const (
	// OutcomeRecorded: it is stored, and will be acted on.
	OutcomeRecorded Outcome = "recorded"
	// OutcomeDuplicate: it was there already.
	OutcomeDuplicate Outcome = "duplicate"
	// OutcomeIgnored: it is of no use any more, a PRE verdict after the finish
	// for one.
	OutcomeIgnored Outcome = "ignored"
	// OutcomeUnknown: no release has this order, or none yet.
	OutcomeUnknown Outcome = "unknown"
)

// More results of a callback, for Options.OnCallback.
const (
	// ResultRefused: it was not authenticated.
	ResultRefused = "refused"
	// ResultMalformed: it was authenticated and is not a callback.
	ResultMalformed = "malformed"
	// ResultFailed: it could not be stored.
	ResultFailed = "failed"
	// ResultLimited: there were too many requests.
	ResultLimited = "limited"
	// ResultOversized: its body was too large.
	ResultOversized = "oversized"
	// ResultIncomplete: its body did not arrive.
	ResultIncomplete = "incomplete"
)

// callback takes verdicts. What it answers is for humans who read the server's
// log: the server itself does not repeat a callback.
//
// The context a verdict is stored with is made from lifetime, not from the
// request: a verdict that has arrived is worth keeping, also when the server has
// hung up meanwhile.
func (s *Server) callback(lifetime context.Context) signedHandler {
	return func(w http.ResponseWriter, r *http.Request, body []byte) (handled bool) {
		c, err := altershield.ParseCallback(r.Header.Get("Content-Type"), body)
		if err != nil {
			s.count(r, ResultMalformed)
			s.opts.Log.Info("refused a malformed callback", "cause", err.Error(), "remote", r.RemoteAddr)
			writeJSON(w, http.StatusBadRequest, altershield.CallbackResponse{Msg: err.Error()})
			return true
		}
		ctx, cancel := context.WithDeadline(lifetime, arrived(r).Add(s.limits.record))
		defer cancel()
		outcome, err := s.opts.Recorder.Record(ctx, c)
		log := s.opts.Log.WithValues("order", c.Request.BizExecOrderID, "node", c.Request.NodeID,
			"type", c.CheckType, "stage", c.Request.Stage, "verdict", c.Request.Verdict.Verdict)
		if err == nil && !outcome.known() {
			err = fmt.Errorf("the outcome is %q", outcome)
		}
		if err != nil {
			s.count(r, ResultFailed)
			log.Error(err, "store a verdict; it is polled for instead")
			writeJSON(w, http.StatusServiceUnavailable, altershield.CallbackResponse{Retry: true, Msg: "the verdict could not be stored"})
			return false
		}
		s.count(r, string(outcome))
		if outcome == OutcomeUnknown {
			log.Info("got a verdict on an order that is not known")
			writeJSON(w, http.StatusOK, altershield.CallbackResponse{Retry: true, Msg: "order unknown"})
			return false
		}
		log.V(1).Info("got a verdict", "outcome", outcome)
		writeJSON(w, http.StatusOK, altershield.CallbackResponse{Success: true, Msg: string(outcome)})
		return true
	}
}

func (o Outcome) known() bool {
	switch o {
	case OutcomeRecorded, OutcomeDuplicate, OutcomeIgnored, OutcomeUnknown:
		return true
	default:
		return false
	}
}
