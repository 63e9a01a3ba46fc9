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
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// asked is what a command that reads is asked for.
type asked struct {
	c        *connection
	operator string
	output   string
	watch    bool
	style    style
}

func (a *asked) addFlags(flags *pflag.FlagSet) {
	addOperatorNamespace(flags, &a.operator)
	flags.StringVarP(&a.output, "output", "o", "", "json, yaml, or wide for more")
}

// begin connects.
func (a *asked) begin(ctx context.Context) (client.WithWatch, *eyes, error) {
	if err := checkFormat(a.output); err != nil {
		return nil, nil, err
	}
	a.style = styleOf(a.c.Out, environment)
	live, err := a.c.client()
	if err != nil {
		return nil, nil, err
	}
	a.operator = operatorIn(ctx, live, a.operator)
	a.style.operator = a.operator
	return live, &eyes{kinds: workload.Defended(), operator: a.operator, now: a.c.Now}, nil
}

// advisor writes commands about a workload as the user types them.
func (a *asked) advisor(t target) advisor {
	flags := a.clusterFlags()
	return advisor{
		target: t.String(), namespace: t.key.Namespace,
		clusterFlags: flags, flags: flags + a.namespaceFlag(t.key.Namespace),
	}
}

// clusterFlags name the cluster where the user did, to be appended to a command.
func (a *asked) clusterFlags() string {
	return strings.Join(append([]string{""}, a.c.clusterFlags()...), " ")
}

// namespaceFlag names a namespace where commands are not about it by themselves.
func (a *asked) namespaceFlag(namespace string) string {
	if namespace == a.c.contextNamespace() {
		return ""
	}
	return " -n " + defense.ShellWord(namespace)
}

const statusLong = `
Show one workload with its releases, their batches, checks and pods.

Without a name: what needs attention in the namespace, or, with -A, anywhere: what is
blocked, held, failing, rolled back, waiting for AlterShield Server, or denied, and
policies and settings that are not accepted. --all lists all workloads.

The exit code is 0, also where something needs attention; see wait for a pipeline.`

const statusExamples = `
  # What needs attention, in this namespace, and everywhere
  kubectl altershield status
  kubectl altershield status -A

  # One workload, and how it goes on
  kubectl altershield status deployment/sleep
  kubectl altershield status sleep -n shop -w

  # For programs
  kubectl altershield status deployment/sleep -o json`

func newStatusCommand(c *connection) *cobra.Command {
	a := &asked{c: c}
	var everywhere, all bool
	cmd := &cobra.Command{
		Use:     "status [" + usageOfTarget + "]",
		Short:   "Show a workload with its releases, or what needs attention",
		Long:    strings.TrimSpace(statusLong),
		Example: strings.Trim(statusExamples, "\n"),
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return a.one(cmd.Context(), args, a.printStatus)
			}
			return a.many(cmd.Context(), everywhere, all)
		},
	}
	a.addFlags(cmd.Flags())
	cmd.Flags().BoolVarP(&a.watch, "watch", "w", false, "Show it anew each time it changes, until interrupted")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "Of all namespaces")
	cmd.Flags().BoolVar(&all, "all", false, "List all workloads, also those that need nobody")
	return cmd
}

// one shows something about one workload, by tell.
func (a *asked) one(ctx context.Context, args []string, tell func(io.Writer, *sight, target, time.Time) error) error {
	live, e, err := a.begin(ctx)
	if err != nil {
		return err
	}
	namespace, err := a.c.namespace()
	if err != nil {
		return err
	}
	t, err := findTarget(ctx, live, e.kinds, namespace, args...)
	if err != nil {
		return err
	}
	show := func(ctx context.Context, r *reader, w io.Writer, now time.Time) error {
		s, err := e.look(ctx, r, t)
		if err != nil {
			return err
		}
		return tell(w, s, t, now)
	}
	if a.watch {
		return a.follow(ctx, live, show)
	}
	return show(ctx, newReader(live, live.Scheme()), a.c.Out, a.c.Now())
}

func (a *asked) printStatus(w io.Writer, s *sight, _ target, now time.Time) error {
	st := statusOf(s, now)
	if structured(a.output) {
		return printStructured(w, a.output, st)
	}
	(&statusPrinter{style: a.style, now: now, wide: a.output == formatWide}).print(w, st)
	return nil
}
