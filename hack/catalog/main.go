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

// Command catalog writes the tables of conditions and events into the documents, from the Catalog of
// the API: between the lines "<!-- catalog KIND -->" and "<!-- end of catalog -->". KIND is a kind, or Event.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	begin     = "<!-- catalog "
	end       = "<!-- end of catalog -->"
	forEvents = "Event"
	// forRunbook begins the mark of an alert's runbook.
	forRunbook = "runbook "
)

func main() {
	for _, path := range os.Args[1:] {
		if err := rewrite(path); err != nil {
			fmt.Fprintf(os.Stderr, "catalog: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func rewrite(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := fill(string(data))
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// fill replaces what is between the marks of a document by tables.
func fill(text string) (string, error) {
	var out strings.Builder
	found := false
	for {
		before, rest, is := strings.Cut(text, begin)
		out.WriteString(before)
		if !is {
			break
		}
		kind, rest, is := strings.Cut(rest, " -->")
		_, after, ended := strings.Cut(rest, end)
		rows := table(kind)
		if !is || !ended || rows == "" {
			return "", fmt.Errorf("the mark %q has no end, or the catalog has no such kind", begin+kind)
		}
		out.WriteString(begin + kind + " -->\n\n" + rows + "\n" + end)
		text, found = after, true
	}
	if !found {
		return "", errors.New("no mark of the catalog")
	}
	return out.String(), nil
}

func table(kind string) string {
	switch {
	case kind == forEvents:
		return eventTable()
	case strings.HasPrefix(kind, forRunbook):
		return runbook(strings.Fields(kind)[1:])
	default:
		return conditions(kind)
	}
}

// runbook is the table of an alert: the conditions `Type=Status` and the events that it is about. It is empty where the
// catalog lacks one.
func runbook(names []string) string {
	var out strings.Builder
	out.WriteString("| condition or event | meaning | who acts, next step |\n| --- | --- | --- |\n")
	for _, name := range names {
		found := false
		for _, e := range v1alpha1.Catalog() {
			says := "`" + e.Reason + "`"
			if e.Kind != "" {
				says = fmt.Sprintf("`%s` %s `%s`", e.Condition, e.Status, e.Reason)
			}
			if condition := e.Condition + "=" + string(e.Status); name == e.Reason && e.Kind == "" || name == condition || name == condition+"/"+e.Reason {
				found = true
				fmt.Fprintf(&out, "| %s | %s | %s |\n", says, e.Sentence, action(e))
			}
		}
		if !found {
			return ""
		}
	}
	return out.String()
}

func conditions(kind string) string {
	var out strings.Builder
	condition := ""
	for _, e := range v1alpha1.Catalog() {
		if e.Kind != kind {
			continue
		}
		if out.Len() == 0 {
			out.WriteString("| condition | status, reason | meaning | who acts, next step |\n| --- | --- | --- | --- |\n")
		}
		name := ""
		if e.Condition != condition {
			condition, name = e.Condition, "`"+e.Condition+"`"
		}
		fmt.Fprintf(&out, "| %s | %s `%s` | %s | %s |\n", name, e.Status, e.Reason, e.Sentence, action(e))
	}
	return out.String()
}

func eventTable() string {
	var out strings.Builder
	out.WriteString("| event | meaning | who acts, next step |\n| --- | --- | --- |\n")
	for _, e := range v1alpha1.Catalog() {
		if e.Kind == "" {
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", e.Reason, e.Sentence, action(e))
		}
	}
	return out.String()
}

// action is who acts, and the next step.
func action(e v1alpha1.Entry) string {
	if e.Who == "" {
		return string(e.Next)
	}
	who := string(e.Who)
	return strings.ToUpper(who[:1]) + who[1:] + ": " + string(e.Next)
}
