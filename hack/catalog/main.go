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
// the API: between the lines "<!-- catalog KIND -->" and "<!-- end of catalog -->". KIND is a kind, Event or Step.
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
	forSteps  = "Step"
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

// steps are the next steps that several entries share. A table of conditions or events has their names, and the table of
// the kind Step explains the names. Any other step stands in the row of its entry.
var steps = []struct {
	name string
	step v1alpha1.NextStep
}{
	{"allow write", v1alpha1.StepDenied},
	{"ask user", v1alpha1.StepReview},
	{"check operator", v1alpha1.StepOperator},
	{"check server", v1alpha1.StepServer},
	{"correct kind", v1alpha1.StepKind},
	{"correct setting", v1alpha1.StepSettings},
	{"delete pod", v1alpha1.StepDeletePod},
	{"end halt", v1alpha1.StepHalted},
	{"end hold", v1alpha1.StepHold},
	{"enforce", v1alpha1.StepEnforce},
	{"fix", v1alpha1.StepFix},
	{"look at endpoint", v1alpha1.StepEndpoint},
	{"look at events", v1alpha1.StepCluster},
	{"look at pods", v1alpha1.StepPods},
	{"look at policy", v1alpha1.StepPolicy},
	{"look at query", v1alpha1.StepQuery},
	{"watch", v1alpha1.StepWatch},
}

// actors are the short names of actors.
var actors = map[v1alpha1.Actor]string{
	v1alpha1.ActorOwner: "owner", v1alpha1.ActorAdmin: "administrator", v1alpha1.ActorServerAdmin: "server administrator",
}

func table(kind string) string {
	switch kind {
	case forEvents:
		return eventTable()
	case forSteps:
		return stepTable()
	default:
		return conditions(kind)
	}
}

func conditions(kind string) string {
	var out strings.Builder
	condition := ""
	for _, e := range v1alpha1.Catalog() {
		if e.Kind != kind {
			continue
		}
		if out.Len() == 0 {
			out.WriteString("| condition, status, reason | meaning | next step |\n| --- | --- | --- |\n")
		}
		if e.Condition != condition {
			condition = e.Condition
			fmt.Fprintf(&out, "| **`%s`** |\n", e.Condition)
		}
		fmt.Fprintf(&out, "| %s `%s` | %s |%s\n", e.Status, e.Reason, e.Sentence, action(e))
	}
	return out.String()
}

func eventTable() string {
	var out strings.Builder
	out.WriteString("| event | meaning | next step |\n| --- | --- | --- |\n")
	for _, e := range v1alpha1.Catalog() {
		if e.Kind == "" {
			fmt.Fprintf(&out, "| `%s` | %s |%s\n", e.Reason, e.Sentence, action(e))
		}
	}
	return out.String()
}

func stepTable() string {
	var out strings.Builder
	out.WriteString("| next step | in full |\n| --- | --- |\n")
	for _, s := range steps {
		fmt.Fprintf(&out, "| *%s* | %s |\n", s.name, s.step)
	}
	return out.String()
}

// action is the cell of who acts and of the next step. It is empty where there is no next step.
func action(e v1alpha1.Entry) string {
	if e.Next == "" {
		return ""
	}
	who, next := "", string(e.Next)
	if e.Who != "" {
		who = actors[e.Who] + ": "
	}
	for _, s := range steps {
		if s.step == e.Next {
			next = "*" + s.name + "*"
		}
	}
	return " " + who + next + " |"
}
