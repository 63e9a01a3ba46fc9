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
	operatorNamespace string
	wait              time.Duration
	strict            bool
	output            string
}

func newCheckCommand(c *connection) *cobra.Command {
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
warnings count as failures.`),
		Example: strings.Trim(`
  # After an installation: wait until no check fails, for at most two minutes
  kubectl altershield check --wait=2m

  # In a pipeline: warnings count as failures
  kubectl altershield check --strict -o short

  # The failed checks, for a program
  kubectl altershield check -o json | jq '.groups[].checks[] | select(.status == "failed")'`, "\n"),
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	cmd.Flags().StringVar(&o.operatorNamespace, "operator-namespace", "",
		"`namespace` of the operator (default: the namespace of its webhooks' service)")
	cmd.Flags().DurationVar(&o.wait, "wait", 0, "how long to wait until no check fails; 0 checks once")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "let warnings count as failures")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "one of: short (only checks that did not pass), json, yaml")
	return cmd
}

func (o *checkOptions) run(cmd *cobra.Command, _ []string) error {
	printReport, err := o.printer()
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
	if err := printReport(o.Out, report); err != nil {
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

// printer returns the function that prints the report.
func (o *checkOptions) printer() (func(io.Writer, *installation.Report) error, error) {
	switch o.output {
	case "", "short":
		look := reportLook{short: o.output == "short", strict: o.strict, style: styleOf(o.Out, os.Getenv)}
		return look.print, nil
	case formatJSON, formatYAML:
		return func(w io.Writer, r *installation.Report) error { return printStructured(w, o.output, r) }, nil
	default:
		return nil, remedy(fmt.Errorf("-o %s is not an output of this command", o.output), "use one of short, json, yaml")
	}
}
