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

// Package plugin is `kubectl altershield`: it reads what the operator keeps in the
// cluster and tells it to a person, and it asks for what a person may ask for. It has
// the rights of its user and nothing of its own in the cluster.
//
// Each command is a file: its flags, what it reads, what it prints. What follows from
// what was read is decided by pure functions.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Options are what the program is made with.
type Options struct {
	genericiooptions.IOStreams

	// Version and Commit of the program.
	Version, Commit string
	// Now is the time, as this machine has it; nil for the real one. How long something
	// has been is told by it, nothing is decided by it.
	Now func() time.Time
	// Wrap, where given, is put around the configuration of the cluster: tests count
	// requests with it.
	Wrap func(*rest.Config)
}

// ExitError ends the program with a code of its own; what it says was told already
// where Err is nil.
type ExitError struct {
	Code int
	Err  error
}

// Error says what is wrong.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap is what is wrong.
func (e *ExitError) Unwrap() error { return e.Err }

// Run runs the command of these arguments and returns its exit code. Errors are told
// on the error stream.
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

// NewCommand is the root of the commands.
func NewCommand(o Options) *cobra.Command {
	if o.Now == nil {
		o.Now = time.Now
	}
	c := &connection{Options: o, flags: genericclioptions.NewConfigFlags(true)}
	root := &cobra.Command{
		Use:   "kubectl-altershield",
		Short: "See and handle releases that the AlterShield Operator defends",
		Long: strings.TrimSpace(`
See and handle releases that the AlterShield Operator defends.

The commands have your own rights in the cluster, and keep nothing there. Those that
change something say what they do, and take --dry-run.`),
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
	add(groupRead, readCommands(c)...)
	add(groupAct, actCommands(c)...)
	add(groupOther, otherCommands(c)...)
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

// displayName is how the program was called: as a plugin of kubectl, or by itself.
func displayName(arg string) string {
	name := strings.TrimSuffix(filepath.Base(arg), ".exe")
	if plugin, ok := strings.CutPrefix(name, "kubectl-"); ok {
		return "kubectl " + plugin
	}
	return name
}

// connection is the cluster that the user's kubeconfig and flags name. It is made
// when a command first needs it.
type connection struct {
	Options
	flags *genericclioptions.ConfigFlags
}

// config is how the cluster is reached.
func (c *connection) config() (*rest.Config, error) {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, remedy(fmt.Errorf("read the kubeconfig: %w", err), "name one with --kubeconfig or $KUBECONFIG, and a context of it with --context")
	}
	config.UserAgent = "kubectl-altershield/" + c.Version
	// As kubectl: what admission warns of is told, and the API server limits by itself.
	config.WarningHandler = warnings{rest.NewWarningWriter(c.ErrOut, rest.WarningWriterOptions{Deduplicate: true})}
	config.QPS, config.Burst = -1, 0
	if c.Wrap != nil {
		c.Wrap(config)
	}
	return config, nil
}

// client reads from the API server, without a cache, and can watch.
func (c *connection) client() (client.WithWatch, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	made, err := client.NewWithWatch(config, client.Options{Scheme: Scheme()})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return made, nil
}

// namespace is the one that --namespace or the context of the kubeconfig name.
func (c *connection) namespace() (string, error) {
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", remedy(fmt.Errorf("read the kubeconfig: %w", err), "name one with --kubeconfig or $KUBECONFIG")
	}
	return namespace, nil
}
