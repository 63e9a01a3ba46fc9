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
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/internal/altershield"
)

// Match selects checks. Zero fields match everything.
type Match struct {
	// Order is the platform's id of the order (bizExecOrderId).
	Order string
	// Workload is the name of a workload, or namespace/name. It is compared with changeApps of
	// the order, and with the text values of its changeParamJson.
	Workload string
	// Location matches one of the locations of a batch, such as the name of a pod. The checks
	// of an order have no location.
	Location *regexp.Regexp
	// CheckType is [altershield.CheckOrder] or [altershield.CheckBatch].
	CheckType altershield.CheckType
	Stage     altershield.Stage
}

func (m Match) matches(n *node, stage altershield.Stage) bool {
	return (m.Order == "" || m.Order == n.order.bizID) &&
		(m.Workload == "" || n.order.isOf(m.Workload)) &&
		(m.Location == nil || slices.ContainsFunc(n.locations, m.Location.MatchString)) &&
		(m.CheckType == "" || m.CheckType == n.checkType) &&
		(m.Stage == "" || m.Stage == stage)
}

// Script describes the course of checks. Of the scripts that match a check, the one that was
// added last counts. Without a script a check passes at once.
type Script struct {
	Match
	// Verdict is pass by default.
	Verdict altershield.VerdictValue
	// Delay is how long the check runs.
	Delay time.Duration
	// Never lets the check run until the server's own timeout; without a timeout it never
	// ends.
	Never bool
	// CallbackDelay is the time between the end of the check and its callback. The callback
	// is made from the state of the node at the time of sending, as on the server.
	CallbackDelay time.Duration
	// Drop loses the callback.
	Drop bool
	// Copies is how many copies of the callback are sent at once, 1 by default. They go to
	// the callback addresses in turn.
	Copies int
	// Early ends the check at once, and sends its callback ahead of the answer to the
	// submission.
	Early bool
	// SkipCheck answers a start with skipCheck and checks nothing.
	SkipCheck bool
	// Lost answers a start with a node that the server then loses. The node has no check, and
	// polls and finishes of it are answered 103.
	Lost bool
	// Rules are in the verdict. By default a failing verdict has one rule.
	Rules []altershield.Rule
	// Msg, URL and Rollback are in the callback only if they are set. A stock server sends
	// none of them.
	Msg, URL string
	Rollback bool
	// Times is for how many checks the script counts, any number by default.
	Times int
}

func (s Script) verdict() altershield.VerdictValue {
	if s.Verdict == "" {
		return altershield.VerdictPass
	}
	return s.Verdict
}

func (s Script) passes() bool { return altershield.Verdict{Verdict: s.verdict()}.Passes() }

// Fault disturbs the answers to some requests. Of the faults that match a request, the one
// that was added last counts.
type Fault struct {
	// Action is all of them by default.
	Action altershield.Action
	// Order is the platform's id of the order, any by default.
	Order string
	// Times is how many requests are disturbed, any number by default.
	Times int
	// Delay is the time until the answer.
	Delay time.Duration
	// Code is answered instead of the result.
	Code altershield.ResultCode
	Msg  string
	// Done carries the request out, and then answers with Code.
	Done bool
	// Outage answers as in an outage, if Code is empty.
	Outage Outage
}

// Outage is a kind of failure of the server.
type Outage string

const (
	// NoOutage answers requests.
	NoOutage Outage = ""
	// Refuse closes the listener and all connections.
	Refuse Outage = "Refuse"
	// Hang answers nothing until the outage ends or the client goes away.
	Hang Outage = "Hang"
	// HTTP500 answers HTTP 500.
	HTTP500 Outage = "HTTP500"
	// HTML answers HTTP 200 with a page, as a proxy may.
	HTML Outage = "HTML"
	// Truncated carries the request out and sends half of the answer.
	Truncated Outage = "Truncated"
	// Reset resets the connection instead of reading the request.
	Reset Outage = "Reset"
	// LostReply carries the request out and resets the connection.
	LostReply Outage = "LostReply"
	// SuccessFalse answers HTTP 200 with success=false and no result code.
	SuccessFalse Outage = "SuccessFalse"
)

// carriedOut reports whether requests take effect during the outage.
func (o Outage) carriedOut() bool {
	return o == NoOutage || o == Truncated || o == LostReply
}

type scripted struct {
	Script
	used int
}

type faulty struct {
	Fault
	used int
}

// Script adds a script.
func (s *Simulator) Script(script Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts = append(s.scripts, &scripted{Script: script})
}

// ClearScripts removes all scripts: checks pass at once.
func (s *Simulator) ClearScripts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts = nil
}

// Fault adds a fault.
func (s *Simulator) Fault(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &faulty{Fault: fault})
}

// ClearFaults removes all faults.
func (s *Simulator) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// scriptOf takes the script of a check. The caller holds the lock.
func (s *Simulator) scriptOf(n *node, stage altershield.Stage) Script {
	for _, script := range slices.Backward(s.scripts) {
		if (script.Times == 0 || script.used < script.Times) && script.matches(n, stage) {
			script.used++
			return script.Script
		}
	}
	return Script{}
}

// faultOf takes the fault of a request. An outage of the whole server counts first.
func (s *Simulator) faultOf(action altershield.Action, order string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outage != NoOutage {
		return Fault{Outage: s.outage}
	}
	for _, fault := range slices.Backward(s.faults) {
		if (fault.Times == 0 || fault.used < fault.Times) &&
			(fault.Action == "" || fault.Action == action) &&
			(fault.Order == "" || fault.Order == order) {
			fault.used++
			return fault.Fault
		}
	}
	return Fault{}
}

// isOf reports whether the order is about the workload.
func (o *order) isOf(workload string) bool {
	if slices.Contains(o.names, workload) {
		return true
	}
	namespace, name, qualified := strings.Cut(workload, "/")
	return qualified && slices.Contains(o.names, namespace) && slices.Contains(o.names, name)
}
