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

// Verdict is what a check came to.
type Verdict struct {
	Verdict   VerdictValue `json:"verdict"`
	AllFinish bool         `json:"allFinish"`
	// Msg, NodeID and URL are missing in the callbacks of a stock server.
	Msg    string `json:"msg,omitempty"`
	NodeID string `json:"nodeId,omitempty"`
	URL    string `json:"url,omitempty"`
	Rules  []Rule `json:"rules,omitempty"`
}

// Rule is one rule of a check, as far as the operator reads it.
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

// UnmarshalJSON reads a verdict. Only the outcome itself must have the right
// type: everything else explains it, and a verdict is not lost because an
// explanation came in another form.
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

// UnmarshalJSON reads what can be read of a rule.
func (r *Rule) UnmarshalJSON(data []byte) error {
	*r = Rule{}
	fields, err := object(data)
	if err != nil {
		// Not an object: no rule we could show, and no reason to lose the others.
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

// lenient decodes a field when it is there and of the right type.
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

// Passes reports whether the check passed: it did, or no rule triggered. An
// absent outcome does not pass.
func (v Verdict) Passes() bool { return v.Verdict.passes() }

// Explanation is what the user should read, one line of bounded length: the
// server's message and link where it gave them, else the failing rules' names
// and messages, which is all that a stock server puts into a callback.
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

// explainRules lists the failing rules; where none is marked as failing, all
// that say anything and are not marked as passing.
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

// line makes text of the server fit for a condition or a log: one line, no
// control characters, and none that set the direction of writing.
func line(s string) string {
	s = strings.ToValidUTF8(s, "�")
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || unicode.In(r, unicode.Cc, unicode.Bidi_Control) }), " ")
}

// maxLink is the longest link that is shown or kept.
const maxLink = 2048

// Link is what the server calls a URL, where it is one that a user can open; else
// empty. A stock server gives the bare id of an order.
func Link(s string) string {
	s = strings.TrimSpace(s)
	u, err := url.Parse(s)
	if err != nil || len(s) > maxLink || strings.ContainsFunc(s, unicode.IsSpace) || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	return s
}

// PollResult is the answer to a poll.
type PollResult struct {
	Finished bool     `json:"finished"`
	Verdict  *Verdict `json:"verdict"`
}

// Passed reports whether the check has passed. A stock server says finished also
// while the check runs, and pass only once it has passed: a polled pass counts. A polled
// failure is no verdict, for the check runs, timed out on the server, or failed.
func (p PollResult) Passed() bool {
	return p.Finished && p.Verdict != nil && p.Verdict.Passes()
}
