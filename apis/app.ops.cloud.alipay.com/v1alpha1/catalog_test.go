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

package v1alpha1

import (
	"strings"
	"testing"
)

// TestMessage adds a detail to the message of each entry, and reads it back.
func TestMessage(t *testing.T) {
	for _, e := range Catalog() {
		for _, detail := range []string{"", "pod web-1: fail", "web-1. And web-2.", ": ", "a; also: b"} {
			message := e.Message(detail)
			if got := e.Detail(message); got != detail {
				t.Errorf("%s %s %s: %q has the detail %q, want %q", e.Kind, e.Condition, e.Reason, message, got, detail)
			}
			if strings.ContainsAny(message, "`") {
				t.Errorf("%s %s %s: %q has marks of Markdown", e.Kind, e.Condition, e.Reason, message)
			}
		}
		if got := e.Detail("of an earlier build"); got != "of an earlier build" {
			t.Errorf("%s %s %s: the message of an earlier build has the detail %q", e.Kind, e.Condition, e.Reason, got)
		}
		if first, _, _ := strings.Cut(e.Sentence, ". "); strings.Contains(first, ":") {
			t.Errorf("%s %s %s: %q has a colon, and a detail follows one", e.Kind, e.Condition, e.Reason, first)
		}
	}
}

func TestEventMessage(t *testing.T) {
	const stuck, look = "Pods are not available: ", ". Look at the pods, then release another version or roll back."
	long := strings.Repeat("ü", maxEventMessage)
	for name, c := range map[string]struct{ reason, detail, want string }{
		"a detail":                {EventRolloutResumed, "version 1", "The halt ended: version 1"},
		"none":                    {EventRolloutResumed, "", "The halt ended."},
		"a person has to act":     {EventPodsUnavailable, "2 of 3 pods", stuck + "2 of 3 pods" + look},
		"the detail has commands": {EventPodsUnavailable, "run kubectl get pods", stuck + "run kubectl get pods"},
		"more sentences": {
			EventForeignID, "x", "A status named an order or an order entry of another record: x. The operator begins that check again.",
		},
		"an unknown reason": {"Unknown", "x", "x"},
		"a command that is cut": {
			EventPodsUnavailable, strings.Repeat("x", maxEventMessage) + "kubectl ",
			stuck + strings.Repeat("x", maxEventMessage-len(stuck)-len("....")-len(look)) + ".." + look,
		},
		"too long": {EventRolloutResumed, long, "The halt ended: " + long[:1004] + "..."},
	} {
		t.Run(name, func(t *testing.T) {
			if got := EventMessage(c.reason, c.detail); got != c.want {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
		})
	}
	for _, e := range Catalog() {
		if e.Kind == "" {
			if got := len(EventMessage(e.Reason, long)); got > maxEventMessage || got < maxEventMessage-10 {
				t.Errorf("%s: a long detail makes %d bytes", e.Reason, got)
			}
		}
	}
}

// TestCounts bounds the number of entries that a person on call has to know, of policies and metrics, too, and each sentence
// to 20 words.
func TestCounts(t *testing.T) {
	conditions, reasons, events := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, e := range Catalog() {
		switch e.Kind {
		case "ChangeWorkload":
			conditions[e.Condition], reasons[e.Reason] = true, true
		case "":
			events[e.Reason] = true
		}
		for _, sentence := range append(strings.Split(e.Sentence, ". "), strings.Split(string(e.Next), ". ")...) {
			if n := len(strings.Fields(sentence)); n > 20 {
				t.Errorf("%s %s %s: %q has %d words", e.Kind, e.Condition, e.Reason, sentence, n)
			}
		}
	}
	for name, c := range map[string]struct{ is, most int }{
		"condition types of ChangeWorkload": {len(conditions), 10},
		"reasons of ChangeWorkload":         {len(reasons), 60},
		"reasons of events":                 {len(events), 41},
	} {
		t.Logf("%s: %d of at most %d", name, c.is, c.most)
		if c.is > c.most {
			t.Errorf("%s: %d, want at most %d", name, c.is, c.most)
		}
	}
}
