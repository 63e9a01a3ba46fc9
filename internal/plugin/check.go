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

// checkAgain is between two looks with --wait.
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
certificates, rights, settings, policies, AlterShield Server, enrolled namespaces.

Each check that does not pass says what it means, and what to do. What your user may not
read is skipped, and told so: an administrator of the cluster sees all.

Nothing is written. One check creates a Deployment in a dry run, which is not stored, in
an enrolled namespace: whether the API server reaches the webhooks shows in nothing
else.

Exit codes: 0 when no check failed, warnings or not; 1 when one did, or the command could
not run; 2 when your user may read too little to know. With --strict warnings count as
failures.`),
		Example: strings.Trim(`
  # After an installation: until all is well, for two minutes at most
  kubectl altershield check --wait=2m

  # In a pipeline: warnings count, too
  kubectl altershield check --strict -o short

  # What failed, for a program
  kubectl altershield check -o json | jq '.groups[].checks[] | select(.status == "failed")'`, "\n"),
		Args: cobra.NoArgs,
		RunE: o.run,
	}
	cmd.Flags().StringVar(&o.operatorNamespace, "operator-namespace", "", "`namespace` of the operator (default: where its webhooks are served)")
	cmd.Flags().DurationVar(&o.wait, "wait", 0, "how long to wait until no check fails; 0 looks once")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "let warnings count as failures")
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "one of: short (only what did not pass), json, yaml")
	return cmd
}

func (o *checkOptions) run(cmd *cobra.Command, _ []string) error {
	tell, err := o.printer()
	if err != nil {
		return err
	}
	if o.wait < 0 {
		return remedy(fmt.Errorf("--wait=%s is no time to wait", o.wait), "give a duration, as in --wait=2m, or 0 to look once")
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
		Config: config, Scheme: Scheme(), Namespace: o.operatorNamespace, UserNamespace: namespace, Plugin: o.Version, Now: o.Now,
	})
	if err != nil {
		return err
	}
	if err := tell(o.Out, report); err != nil {
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

// observe looks until all is well, or the time to wait is over.
func (o *checkOptions) observe(ctx context.Context, from installation.Options) (*installation.Report, error) {
	over := time.NewTimer(o.wait)
	defer over.Stop()
	told := ""
	for {
		facts, err := installation.Observe(ctx, from)
		if err != nil {
			return nil, err
		}
		report := installation.Judge(facts)
		if o.passed(&report) || report.Unknown || o.wait == 0 {
			return &report, nil
		}
		if waiting := waitingFor(&report, o.strict); waiting != told {
			told = waiting
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

// printer is how the report is told.
func (o *checkOptions) printer() (func(io.Writer, *installation.Report) error, error) {
	switch o.output {
	case "", "short":
		look := reportLook{short: o.output == "short", strict: o.strict, style: styleOf(o.Out, os.Getenv)}
		return look.print, nil
	case formatJSON, formatYAML:
		return func(w io.Writer, r *installation.Report) error { return printStructured(w, o.output, r) }, nil
	default:
		return nil, remedy(fmt.Errorf("-o %s is no output of this command", o.output), "take one of short, json, yaml")
	}
}
