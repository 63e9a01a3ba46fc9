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

package simulator

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// Kind distinguishes requests from callbacks.
type Kind string

// Kinds of entries.
const (
	KindRequest  Kind = "request"
	KindCallback Kind = "callback"
)

// Outcomes of callbacks that are not an HTTP answer.
const (
	// OutcomePending: there is no answer yet.
	OutcomePending = "pending"
	// OutcomeDropped: the script lost the callback.
	OutcomeDropped = "dropped"
	// OutcomeNoAddress: there is no callback address.
	OutcomeNoAddress = "no address"
)

// Entry is one line of the journal.
type Entry struct {
	// Seq counts from 1.
	Seq  int
	Time time.Time
	Kind Kind
	// Order is the platform's id of the order (bizExecOrderId).
	Order string
	// Node is the node of a callback, the node that a request names, or the node that the
	// request created.
	Node string
	// Body is the content that was received or sent.
	Body json.RawMessage

	// Action and the fields below it are of requests.
	Action altershield.Action
	// Request is the body, decoded into the request type of the client's package; nil if the
	// body cannot be decoded.
	Request any
	// Platform is the value of the header. Signed reports whether the signature is right.
	Platform string
	Signed   bool
	// HTTPStatus is 0 if there was no answer.
	HTTPStatus int
	// Code is the result code, also if an outage kept the result from the client.
	Code altershield.ResultCode
	Msg  string
	// Outage that the request met.
	Outage Outage

	// Callback and the fields below it are of callbacks.
	Callback *altershield.Callback
	URL      string
	// Outcome is the HTTP status, an error, or an Outcome constant.
	Outcome string
	// Answer is the answer of the receiver. The server ignores it.
	Answer *altershield.CallbackResponse
}

// Decode decodes the body.
func (e Entry) Decode(into any) error { return json.Unmarshal(e.Body, into) }

// Accepted reports whether the entry is a request that was carried out and answered as a success.
func (e Entry) Accepted() bool {
	return e.Kind == KindRequest && e.Code == altershield.CodeSuccess
}

// String returns one line.
func (e Entry) String() string {
	at := e.Time.UTC().Format("15:04:05.000")
	if e.Kind == KindCallback {
		verdict, stage, check := "", altershield.Stage(""), altershield.CheckType("")
		if e.Callback != nil {
			verdict, stage, check = string(e.Callback.Request.Verdict.Verdict), e.Callback.Request.Stage, e.Callback.CheckType
		}
		return fmt.Sprintf("%s callback %s %s order=%s node=%s verdict=%s -> %s", at, check, stage, e.Order, e.Node, verdict, e.Outcome)
	}
	result := string(e.Code)
	if result == "" {
		result = fmt.Sprintf("HTTP %d", e.HTTPStatus)
	}
	parts := []string{at, "request", string(e.Action), "order=" + e.Order}
	if e.Node != "" {
		parts = append(parts, "node="+e.Node)
	}
	parts = append(parts, "->", result)
	if e.Msg != "" {
		parts = append(parts, fmt.Sprintf("%q", e.Msg))
	}
	if e.Outage != NoOutage {
		parts = append(parts, "("+string(e.Outage)+")")
	}
	return strings.Join(parts, " ")
}

// Journal has the requests and callbacks, in order.
type Journal []Entry

// Filter returns the entries that match.
func (j Journal) Filter(match func(Entry) bool) Journal {
	var out Journal
	for _, e := range j {
		if match(e) {
			out = append(out, e)
		}
	}
	return out
}

// Requests returns the requests of an action, or of all actions if it is empty.
func (j Journal) Requests(action altershield.Action) Journal {
	return j.Filter(func(e Entry) bool { return e.Kind == KindRequest && (action == "" || e.Action == action) })
}

// Callbacks returns the callbacks.
func (j Journal) Callbacks() Journal {
	return j.Filter(func(e Entry) bool { return e.Kind == KindCallback })
}

// Of returns the entries of an order.
func (j Journal) Of(order string) Journal {
	return j.Filter(func(e Entry) bool { return e.Order == order })
}

// Accepted returns the requests that were carried out.
func (j Journal) Accepted() Journal { return j.Filter(Entry.Accepted) }

// Orders returns the ids of the orders that were accepted, in order.
func (j Journal) Orders() []string {
	var ids []string
	for _, e := range j.Accepted() {
		if (e.Action == altershield.ActionSubmitOrder || e.Action == altershield.ActionSubmitAndStart) && !slices.Contains(ids, e.Order) {
			ids = append(ids, e.Order)
		}
	}
	return ids
}

// OrderStarts returns the accepted starts of an order.
func (j Journal) OrderStarts(order string) Journal {
	return j.Of(order).Accepted().Requests(altershield.ActionStartOrder)
}

// BatchStarts returns the accepted starts of an order's batches.
func (j Journal) BatchStarts(order string) Journal {
	return j.Of(order).Accepted().Requests(altershield.ActionStartBatch)
}

// Finishes returns the accepted finishes of an order's nodes: of its batches and of the order.
func (j Journal) Finishes(order string) Journal {
	return j.Of(order).Accepted().Requests(altershield.ActionFinishNode)
}

// Polls returns the polls of an order's checks, refused ones included.
func (j Journal) Polls(order string) Journal {
	return j.Of(order).Requests(altershield.ActionRetrieveCheck)
}

// Ends returns the accepted ends of an order.
func (j Journal) Ends(order string) Journal {
	return j.Of(order).Accepted().Requests(altershield.ActionEndOrder)
}

// String returns one line per entry.
func (j Journal) String() string {
	var b strings.Builder
	for _, e := range j {
		b.WriteString(e.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Journal returns a copy of the journal.
func (s *Simulator) Journal() Journal {
	s.journalMu.Lock()
	defer s.journalMu.Unlock()
	return s.snapshot()
}

func (s *Simulator) snapshot() Journal {
	out := make(Journal, len(s.journal))
	for i, e := range s.journal {
		out[i] = *e
	}
	return out
}

// ClearJournal empties the journal.
func (s *Simulator) ClearJournal() {
	s.journalMu.Lock()
	defer s.journalMu.Unlock()
	s.journal = nil
}

// WaitFor waits until the journal satisfies the condition. It evaluates the condition after
// each change.
func (s *Simulator) WaitFor(ctx context.Context, satisfied func(Journal) bool) error {
	for {
		s.journalMu.Lock()
		journal, changed := s.snapshot(), s.changed
		s.journalMu.Unlock()
		if satisfied(journal) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w; the journal:\n%s", ctx.Err(), journal)
		}
	}
}

// record appends an entry and returns it, to be completed.
func (s *Simulator) record(e Entry) *Entry {
	s.journalMu.Lock()
	defer s.journalMu.Unlock()
	s.seq++
	e.Seq = s.seq
	e.Body = bytes.Clone(e.Body)
	kept := &e
	s.journal = append(s.journal, kept)
	if over := len(s.journal) - s.opts.JournalLimit; over > 0 {
		s.journal = slices.Delete(s.journal, 0, over)
	}
	s.wake()
	return kept
}

// complete changes a recorded entry, and returns a copy.
func (s *Simulator) complete(e *Entry, change func(*Entry)) Entry {
	s.journalMu.Lock()
	defer s.journalMu.Unlock()
	change(e)
	s.wake()
	return *e
}

func (s *Simulator) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// show passes a complete entry to the observer.
func (s *Simulator) show(e Entry) {
	if s.opts.OnEntry != nil {
		s.opts.OnEntry(e)
	}
}
