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
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
)

// checkAgain is the time between two checks with --wait.
const checkAgain = 2 * time.Second

// checkOptions are the flags of check.
type checkOptions struct {
	*connection
	operatorNamespace  string
	wait               time.Duration
	strict, onlyFrozen bool
	output
}

func checkCommand(c *connection) *cobra.Command {
	o := &checkOptions{connection: c}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "See whether the operator's installation is healthy",
		Long: strings.TrimSpace(`
See whether the operator's installation is healthy: kinds, manager, webhooks and their
certificates, your rights, settings, policies, AlterShield Server, enrolled namespaces.

Each check that does not pass prints what is wrong and what to do. The command has your
own rights, and skips what your user may not read.

The command writes nothing. It creates a Deployment in an enrolled namespace in a dry
run, which is not stored, to see whether the webhooks answer the API server.

Exit codes: 0 if no check failed, with or without warnings; 1 if a check failed, or the
command could not run; 2 if your user may read too little to know. With --strict,
warnings count as failures.

With --frozen, see only whether a freeze denies releases of workloads in the namespace:
exit code 3 if it does, 0 if not, 1 if that is not known.`),
		Example: strings.Trim(`
  # After an installation: wait until no check fails, for at most two minutes
  kubectl altershield check --wait=2m

  # In a pipeline: warnings count as failures
  kubectl altershield check --strict -o short

  # In a hook before a release: exit code 3 in a freeze
  kubectl altershield check --frozen -n shop

  # The failed checks, for a program
  kubectl altershield check -o json | jq '.groups[].checks[] | select(.status == "failed")'`, "\n"),
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	cmd.Flags().StringVar(&o.operatorNamespace, "operator-namespace", "",
		"`namespace` of the operator (default: the namespace of its webhooks' service)")
	cmd.Flags().DurationVar(&o.wait, "wait", 0, "how long to wait until no check fails; 0 checks once")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "let warnings count as failures")
	cmd.Flags().BoolVar(&o.onlyFrozen, "frozen", false, "only see whether workloads of the namespace are frozen")
	o.output = newOutput(cmd, formatShort, " Or short: only checks that did not pass.")
	return cmd
}

func (o *checkOptions) run(cmd *cobra.Command, _ []string) error {
	if o.onlyFrozen {
		return o.frozen(cmd.Context())
	}
	printer, err := o.printer()
	if err != nil {
		return err
	}
	if o.wait < 0 {
		return remedy(fmt.Errorf("--wait=%s is not a time to wait", o.wait), "use a duration, as in --wait=2m, or 0 to check once")
	}
	config, err := o.config()
	if err != nil {
		return err
	}
	namespace, err := o.namespace()
	if err != nil {
		return err
	}
	report, err := o.observe(cmd.Context(), installation.Options{
		Config: config, Scheme: Scheme(), Namespace: o.operatorNamespace, UserNamespace: namespace, Plugin: o.Version,
	})
	if err != nil {
		return err
	}
	if printer == nil {
		o.report(o.Out, styleOf(o.Out, os.Getenv), report)
	} else if err := printObject(o.Out, printer, report); err != nil {
		return err
	}
	if report.Unknown {
		return &ExitError{Code: 2}
	}
	if !o.passed(report) {
		return &ExitError{Code: 1}
	}
	return nil
}

// observe checks until no check fails, or the time to wait is over.
func (o *checkOptions) observe(ctx context.Context, from installation.Options) (*installation.Report, error) {
	over := time.NewTimer(o.wait)
	defer over.Stop()
	last := ""
	for {
		facts, err := installation.Observe(ctx, from)
		if err != nil {
			return nil, err
		}
		report := installation.Judge(facts)
		if o.passed(&report) || report.Unknown || o.wait == 0 {
			return &report, nil
		}
		if waiting := waitingFor(&report, o.strict); waiting != last {
			last = waiting
			printf(o.ErrOut, "waiting for: %s\n", waiting)
		}
		again := time.NewTimer(checkAgain)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		case <-over.C:
			again.Stop()
			return &report, nil
		case <-again.C:
		}
	}
}

func (o *checkOptions) passed(r *installation.Report) bool {
	return r.Healthy && (!o.strict || r.Summary.Warnings == 0)
}

func waitingFor(r *installation.Report, strict bool) string {
	var names []string
	for _, c := range r.NotPassed() {
		if c.Status == installation.Failed || strict {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, "; ")
}

// signs begin the lines of checks: in Unicode, in ASCII, and their colours.
var signs = map[installation.Status]mark{
	installation.OK:      {"√", "[ok]", "32"},
	installation.Warning: {"‼", "[!!]", "33"},
	installation.Failed:  {"×", "[xx]", "31"},
	installation.Skipped: {"-", "[--]", "90"},
}

// report prints a report for people: with -o short without what passed.
func (o *checkOptions) report(w io.Writer, st style, r *installation.Report) {
	for _, g := range r.Groups {
		began := false
		for _, c := range g.Checks {
			if o.is(formatShort) && (c.Status == installation.OK || c.Status == installation.Skipped) {
				continue
			}
			if !began {
				began = true
				printf(w, "%s\n%s\n", g.Name, strings.Repeat("-", len(g.Name)))
			}
			st.check(w, c)
		}
		if began {
			printf(w, "\n")
		}
	}
	status, word := installation.OK, "healthy"
	switch {
	case r.Unknown:
		status, word = installation.Warning, "unknown: your user may read neither the manager nor its webhooks, "+
			"and an administrator of the cluster may"
	case !r.Healthy:
		status, word = installation.Failed, "not healthy"
	case r.Summary.Warnings > 0 && o.strict:
		status, word = installation.Failed, "not healthy, since warnings count"
	case r.Summary.Warnings > 0:
		status, word = installation.Warning, "healthy, with warnings"
	}
	printf(w, "%s\n", signs[status].of(st, fmt.Sprintf("the installation is %s: %d ok, %d warnings, %d failed, %d skipped",
		word, r.Summary.OK, r.Summary.Warnings, r.Summary.Failed, r.Summary.Skipped)))
}

func (st style) check(w io.Writer, c installation.Check) {
	text := func(s string) string {
		return strings.Map(func(r rune) rune {
			if st.ascii && r > '~' {
				return '?'
			}
			return r
		}, strings.TrimSpace(s))
	}
	line := signs[c.Status].of(st, text(c.Name))
	switch {
	case c.Message == "":
		printf(w, "%s\n", line)
		return
	case c.Status == installation.OK:
		printf(w, "%s: %s\n", line, text(c.Message))
		return
	case c.Status == installation.Skipped:
		printf(w, "%s\n    skipped: %s\n", line, text(c.Message))
		return
	}
	printf(w, "%s\n    %s\n", line, text(c.Message))
	if c.Remedy != "" {
		printf(w, "    do: %s\n", text(c.Remedy))
	}
	if c.Docs != "" {
		printf(w, "    see %s\n", c.Docs)
	}
}
