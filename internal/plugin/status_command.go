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
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func statusCommand(c *connection) *cobra.Command {
	var everywhere, all bool
	cmd := &cobra.Command{
		Use:               "status [" + usageOfTarget + "]",
		Aliases:           []string{"explain"},
		Short:             "List workloads that need attention, or show one with its next steps",
		Long:              strings.TrimSpace(statusLong),
		Example:           strings.Trim(statusExamples, "\n"),
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeWorkloads,
	}
	a := newReading(c, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return a.one(cmd.Context(), args, a.printStatus)
		}
		return a.many(cmd.Context(), everywhere, all)
	}
	cmd.Flags().BoolVarP(&a.watch, "watch", "w", false, "Show it again each time it changes, until interrupted")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "Of all namespaces")
	cmd.Flags().BoolVar(&all, "all", false, "List all workloads")
	return cmd
}

const statusLong = `
List workloads that need attention in the namespace or, with -A, in all namespaces: blocked,
held, failing, rolled back, waiting for AlterShield Server, or denied. The list includes
policies and settings that are not accepted. --all lists all workloads.

With a name, show one workload: its releases, revisions, batches, checks and pods, its problems,
and the commands of the next steps.

The exit code is 0 also if something needs attention. For a pipeline, see wait.`

const statusExamples = `
  # Workloads that need attention, in this namespace and in all
  kubectl altershield status
  kubectl altershield status -A

  # One workload, once and at each change
  kubectl altershield status deployment/sleep
  kubectl altershield status sleep -n shop -w

  # For programs
  kubectl altershield status deployment/sleep -o jsonpath='{.summary}'`

func (a *reading) printStatus(w io.Writer, s *snapshot) error {
	st := statusOf(s, a.advisor(s.workload.Namespace))
	if a.printer != nil {
		return printObject(w, a.printer, st)
	}
	a.style.status(w, st, s.now)
	return nil
}
