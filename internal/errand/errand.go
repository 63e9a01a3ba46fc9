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

// Package errand has commands of the manager's program that run once and end: "leave"
// before the operator is uninstalled, and "settings" after it was installed. The hooks of
// the Helm chart run them.
package errand

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/options"
)

const (
	maxTimeout = 10 * time.Minute
	// pollInterval is the time between two tries of an errand that waits.
	pollInterval = time.Second
)

// Environment is the cluster and the output of an errand.
type Environment struct {
	// Config finds the cluster. It is called after the flags are parsed.
	Config func() (*rest.Config, error)
	Scheme *runtime.Scheme
	// UserAgent of the requests.
	UserAgent string
	// Out takes messages, one a line, and the help.
	Out io.Writer
}

// errands has the errands by their names.
var errands = map[string]func(ctx context.Context, args []string, env Environment) error{
	"leave":    runLeave,
	"settings": runSettings,
}

// Asked reports whether the arguments name an errand.
func Asked(args []string) bool { return len(args) > 0 && errands[args[0]] != nil }

// Run runs the errand that the first argument names.
func Run(ctx context.Context, args []string, env Environment) error {
	err := errands[args[0]](ctx, args[1:], env)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return err
}

// common has the flags of every errand.
type common struct {
	flags     *flag.FlagSet
	namespace string
	timeout   time.Duration
}

func newCommon(name string, timeout time.Duration) *common {
	c := &common{flags: flag.NewFlagSet(name, flag.ContinueOnError)}
	c.flags.SetOutput(io.Discard) // the caller prints the error
	ctrl.RegisterFlags(c.flags)
	c.flags.StringVar(&c.namespace, "namespace", options.NamespaceDefault(), "`namespace` of the operator (default $POD_NAMESPACE)")
	c.flags.DurationVar(&c.timeout, "timeout", timeout, "`duration` after which this ends, finished or not; 1s to "+maxTimeout.String())
	return c
}

// parse parses the flags, and returns a client without a cache.
func (c *common) parse(args []string, env Environment) (client.Client, error) {
	if err := c.flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			c.flags.SetOutput(env.Out)
			_, _ = fmt.Fprintf(env.Out, "Flags of manager %s:\n", c.flags.Name())
			c.flags.PrintDefaults()
		}
		return nil, err
	}
	if c.flags.NArg() > 0 {
		return nil, fmt.Errorf("%s: unexpected argument %q: it takes flags only, see --help", c.flags.Name(), c.flags.Arg(0))
	}
	if c.timeout < time.Second || c.timeout > maxTimeout {
		return nil, fmt.Errorf("%s: --timeout %s is out of bounds: give a duration from 1s to %s", c.flags.Name(), c.timeout, maxTimeout)
	}
	config, err := env.Config()
	if err != nil {
		return nil, fmt.Errorf("find the cluster (--kubeconfig, $KUBECONFIG or in-cluster): %w", err)
	}
	config.UserAgent = env.UserAgent
	return client.New(config, client.Options{Scheme: env.Scheme})
}

// Default returns the environment of the program itself.
func Default(scheme *runtime.Scheme, userAgent string) Environment {
	return Environment{Config: ctrl.GetConfig, Scheme: scheme, UserAgent: userAgent, Out: os.Stdout}
}
