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

package plugin

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Explanation is what there is to say about one workload: the output of explain -o json.
type Explanation struct {
	// Kind, Namespace and Name of the workload.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Findings are the most pressing first.
	Findings []Finding `json:"findings"`
	// Missing says what is not told, because the user must not read it.
	Missing []string `json:"missing,omitempty"`
}

// Explanations are those of all workloads that need attention, or wait: the output of
// explain -o json without a name.
type Explanations struct {
	Items []*Explanation `json:"items"`
	// NotAccepted are policies and settings that are not in force as they are.
	NotAccepted []Item `json:"notAccepted,omitempty"`
	// Missing says what is not told, because the user must not read it.
	Missing []string `json:"missing,omitempty"`
}

const explainLong = `
Explain why a workload is as it is, and what may be done: why it is blocked, held, not
rolled back, not verified, or waits, since when, and who released it. Each command is
one that may be typed.

Without a name: all workloads of the namespace that need attention, or, with -A, of all
namespaces.`

const explainExamples = `
  kubectl altershield explain deployment/sleep
  kubectl altershield explain
  kubectl altershield explain -A -o json`

func newExplainCommand(c *connection) *cobra.Command {
	a := &asked{c: c}
	var everywhere bool
	cmd := &cobra.Command{
		Use:     "explain [" + usageOfTarget + "]",
		Short:   "Explain why a workload is as it is, and what may be done",
		Long:    strings.TrimSpace(explainLong),
		Example: strings.Trim(explainExamples, "\n"),
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return a.one(cmd.Context(), args, a.printExplanation)
			}
			return a.explainAll(cmd.Context(), everywhere)
		},
	}
	a.addFlags(cmd.Flags())
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "Of all namespaces")
	return cmd
}

func (a *asked) explanation(s *sight, t target, now time.Time) *Explanation {
	e := &Explanation{
		Kind: s.workload.GVK.Kind, Namespace: s.workload.Namespace, Name: s.workload.Name,
		Findings: Findings(s, a.advisor(t), now), Missing: s.missing,
	}
	if e.Findings == nil {
		e.Findings = []Finding{}
	}
	return e
}

func (a *asked) printExplanation(w io.Writer, s *sight, t target, now time.Time) error {
	e := a.explanation(s, t, now)
	if structured(a.output) {
		return printStructured(w, a.output, e)
	}
	_, summary := summaryOf(s, e.Findings)
	(&explainPrinter{style: a.style, now: now, wide: a.output == formatWide}).print(w, e, summary)
	return nil
}

// explainPrinter prints what there is to say about a workload.
type explainPrinter struct {
	style
	now  time.Time
	wide bool
}

func (p *explainPrinter) print(w io.Writer, e *Explanation, summary string) {
	printf(w, "%s in %s: %s\n", p.bold(strings.ToLower(e.Kind)+"/"+e.Name), e.Namespace, summary)
	pressing := 0
	for i := range e.Findings {
		f := &e.Findings[i]
		if f.Needs == NeedsAttention || f.Needs == NeedsTime {
			pressing++
		}
	}
	for i := range e.Findings {
		f := &e.Findings[i]
		switch {
		case f.Needs == NeedsNoWord && !p.wide && (pressing > 0 || len(e.Findings) > 1 && f.Code != "VerifiedAllPassed"):
		default:
			p.finding(w, f, f.Needs == NeedsAttention || f.Needs == NeedsTime || pressing == 0)
		}
	}
	for _, missing := range e.Missing {
		printf(w, "\n%s\n", markPlain.of(p.style, missing))
	}
}

// finding prints one, with what may be done where it is pressing.
func (p *explainPrinter) finding(w io.Writer, f *Finding, full bool) {
	printf(w, "\n")
	printf(w, "%s\n", markOf(f.Needs).of(p.style, f.Says))
	for _, d := range f.Details {
		printf(w, "  %s\n", d)
	}
	var facts []string
	if f.Since != nil {
		facts = append(facts, fmt.Sprintf("Since %s (%s ago).", f.Since.UTC().Format("2006-01-02 15:04:05Z07:00"), age(p.now.Sub(f.Since.Time))))
	}
	if f.ReleasedBy != "" {
		facts = append(facts, "Released by "+p.who(f.ReleasedBy)+".")
	}
	if len(facts) > 0 {
		printf(w, "  %s\n", strings.Join(facts, " "))
	}
	if len(f.Do) == 0 || !full && !p.wide {
		return
	}
	printf(w, "  What you may do:\n")
	for _, d := range f.Do {
		printf(w, "    %s\n", p.bold(d.Command))
		printf(w, "      %s.\n", capital(d.Does))
	}
}
