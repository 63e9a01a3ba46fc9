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
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
)

const (
	maxExplanation    = 1024
	maxExplainedRules = 5
)

// VerdictValue is the outcome of a check.
type VerdictValue string

// Outcomes of a check.
const (
	VerdictNone         VerdictValue = "none" // no rule triggered
	VerdictPass         VerdictValue = "pass"
	VerdictInconclusive VerdictValue = "inconc"
	VerdictFail         VerdictValue = "fail"
)

func (v VerdictValue) passes() bool {
	return strings.EqualFold(string(v), string(VerdictNone)) || strings.EqualFold(string(v), string(VerdictPass))
}

// Verdict is the result of a check.
type Verdict struct {
	Verdict   VerdictValue `json:"verdict"`
	AllFinish bool         `json:"allFinish"`
	// Msg, NodeID and URL are missing in the callbacks of a stock server.
	Msg    string `json:"msg,omitempty"`
	NodeID string `json:"nodeId,omitempty"`
	URL    string `json:"url,omitempty"`
	Rules  []Rule `json:"rules,omitempty"`
}

// Rule has the fields of a rule of a check that the operator reads.
type Rule struct {
	ID      string       `json:"ruleExeId,omitempty"`
	Name    string       `json:"name,omitempty"`
	Msg     string       `json:"msg,omitempty"`
	URL     string       `json:"url,omitempty"`
	Verdict VerdictValue `json:"verdict,omitempty"`
	Ignored bool         `json:"ignored,omitempty"`
	// Stage is the check that the rule belongs to.
	Stage Stage `json:"stage,omitempty"`
}

func (r Rule) fails() bool { return r.Verdict != "" && !r.Verdict.passes() && !r.Ignored }

// UnmarshalJSON reads a verdict. Only the outcome must have the right type. The other fields
// explain the outcome, and an explanation of another form is left out.
func (v *Verdict) UnmarshalJSON(data []byte) error {
	fields, err := object(data)
	if err != nil || fields == nil {
		return err
	}
	*v = Verdict{}
	if raw, has := fields["verdict"]; has {
		if err := json.Unmarshal(raw, &v.Verdict); err != nil {
			return errors.New("verdict is not text")
		}
	}
	lenient(fields, "allFinish", &v.AllFinish)
	lenient(fields, "msg", &v.Msg)
	lenient(fields, "nodeId", &v.NodeID)
	lenient(fields, "url", &v.URL)
	lenient(fields, "rules", &v.Rules)
	return nil
}

// UnmarshalJSON reads a rule, and leaves out fields of another type.
func (r *Rule) UnmarshalJSON(data []byte) error {
	*r = Rule{}
	fields, err := object(data)
	if err != nil {
		// Not an object: this rule cannot be shown, and the other rules stay.
		return nil //nolint:nilerr // explained above
	}
	lenient(fields, "ruleExeId", &r.ID)
	lenient(fields, "name", &r.Name)
	lenient(fields, "msg", &r.Msg)
	lenient(fields, "url", &r.URL)
	lenient(fields, "verdict", &r.Verdict)
	lenient(fields, "ignored", &r.Ignored)
	lenient(fields, "stage", &r.Stage)
	return nil
}

// object decodes a JSON object; null is nil.
func object(data []byte) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	return fields, nil
}

// lenient decodes a field that exists and has the right type.
func lenient[T any](fields map[string]json.RawMessage, name string, into *T) {
	raw, has := fields[name]
	if !has {
		return
	}
	var value T
	if json.Unmarshal(raw, &value) == nil {
		*into = value
	}
}

// Passes reports whether the check passed, or no rule triggered. An absent outcome does not
// pass.
func (v Verdict) Passes() bool { return v.Verdict.passes() }

// Explanation returns the text for the user, one line of bounded length: the message and the
// link of the server. Without a message it has the names and messages of the failing rules. A
// stock server sends only rules in a callback.
func (v Verdict) Explanation() string {
	var parts []string
	if msg := line(v.Msg); msg != "" {
		parts = append(parts, msg)
	}
	if link := Link(v.URL); link != "" {
		parts = append(parts, link)
	}
	if line(v.Msg) == "" {
		parts = append(parts, v.explainRules()...)
	}
	if len(parts) == 0 && !v.Passes() {
		return "the server gave no reason"
	}
	return Cut(strings.Join(parts, "; "), maxExplanation)
}

// explainRules lists the failing rules. If no rule is marked as failing, it lists the rules
// with a text that are not marked as passing.
func (v Verdict) explainRules() []string {
	if v.Passes() {
		return nil
	}
	var failing, others []string
	for _, rule := range v.Rules {
		name, msg := line(rule.Name), line(rule.Msg)
		if name == "" {
			name = line(rule.ID)
		}
		text := name
		switch {
		case name == "":
			text = msg
		case msg != "":
			text = name + ": " + msg
		}
		switch {
		case text == "":
		case rule.fails():
			failing = append(failing, text)
		case !rule.Ignored && !rule.Verdict.passes():
			others = append(others, text)
		}
	}
	if len(failing) == 0 {
		failing = others
	}
	if left := len(failing) - maxExplainedRules; left > 0 {
		failing = append(failing[:maxExplainedRules], fmt.Sprintf("and %d more", left))
	}
	return failing
}

// line makes text of the server fit for a condition or a log: one line without control
// characters, and without characters that set the direction of writing.
func line(s string) string {
	s = strings.ToValidUTF8(s, "�")
	replaced := func(r rune) bool { return unicode.IsSpace(r) || unicode.In(r, unicode.Cc, unicode.Bidi_Control) }
	return strings.Join(strings.FieldsFunc(s, replaced), " ")
}

// maxLink bounds a link that is shown or kept, in bytes.
const maxLink = 2048

// Link returns the URL of an answer if a user can open it, else an empty string. A stock
// server gives the bare id of an order as its URL.
func Link(s string) string {
	s = strings.TrimSpace(s)
	u, err := url.Parse(s)
	if err != nil || len(s) > maxLink || strings.ContainsFunc(s, unicode.IsSpace) ||
		u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	return s
}

// PollResult is the answer to a poll.
type PollResult struct {
	Finished bool     `json:"finished"`
	Verdict  *Verdict `json:"verdict"`
}

// Passed reports whether the check has passed. A polled pass counts: a stock server says pass
// only of a check that has passed. A polled failure is no verdict: the check still runs, timed
// out on the server, or failed. Finished is true in all cases.
func (p PollResult) Passed() bool {
	return p.Finished && p.Verdict != nil && p.Verdict.Passes()
}
