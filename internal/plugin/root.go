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
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// Run runs the command of these arguments and returns its exit code. It prints errors to the error stream.
func Run(ctx context.Context, o Options, args []string) int {
	cmd := NewCommand(o) //nolint:contextcheck // each command gets it from ExecuteContext
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	exit := &ExitError{}
	if errors.As(err, &exit) {
		if exit.Err != nil {
			printError(o.ErrOut, "error: ", Explained(exit.Err))
		}
		return exit.Code
	}
	printError(o.ErrOut, "error: ", Explained(err))
	return 1
}

// NewCommand returns the root command.
func NewCommand(o Options) *cobra.Command {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &connection{Options: o, flags: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:   "kubectl-altershield",
		Short: "See and handle releases that the AlterShield Operator defends",
		Long: strings.TrimSpace(`
See and handle releases that the AlterShield Operator defends. Without a command it lists the
workloads of the namespace that need attention (status).

The commands have your own rights in the cluster, and store nothing of their own there. Commands
that change something announce each change, and take --dry-run.`),
		Args:         cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: displayName(os.Args[0])},
	}
	root.SetIn(o.In)
	root.SetOut(o.Out)
	root.SetErr(o.ErrOut)
	c.flags.AddFlags(root.PersistentFlags())
	root.AddGroup(&cobra.Group{ID: groupRead, Title: "See:"}, &cobra.Group{ID: groupAct, Title: "Handle:"},
		&cobra.Group{ID: groupOther, Title: "Other:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
		}
		root.AddCommand(commands...)
	}
	status := statusCommand(c)
	root.RunE = status.RunE
	add(groupRead, status, historyCommand(c), checkCommand(c), waitCommand(c), simulateCommand(c))
	add(groupAct, overrideCommand(c), rollbackCommand(c), verdictCommand(c), resumeCommand(c), enrollCommand(c))
	add(groupOther, versionCommand(c))
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	return root
}

// Groups of commands in the help.
const (
	groupRead  = "read"
	groupAct   = "act"
	groupOther = "other"
)

// displayName returns the name by which the program was called: as a plugin of kubectl, or directly.
func displayName(arg string) string {
	name := strings.TrimSuffix(filepath.Base(arg), ".exe")
	if plugin, ok := strings.CutPrefix(name, "kubectl-"); ok {
		return "kubectl " + plugin
	}
	return name
}
