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

// Package errand has what the program of the manager does for an installer, once,
// instead of running as the manager: "leave" before the operator is uninstalled, and
// "settings" after it was installed. The hooks of the Helm chart run them.
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
	// lookEvery is how often to look whether what is waited for has come.
	lookEvery = time.Second
)

// Environment is what an errand needs.
type Environment struct {
	// Config finds the cluster, after the flags were read.
	Config func() (*rest.Config, error)
	Scheme *runtime.Scheme
	// UserAgent of the requests.
	UserAgent string
	// Out gets what is told, in plain lines; and the flags where they are asked for.
	Out io.Writer
}

// errands by their names.
var errands = map[string]func(ctx context.Context, args []string, env Environment) error{
	"leave":    runLeave,
	"settings": runSettings,
}

// Asked says whether the arguments ask for an errand.
func Asked(args []string) bool { return len(args) > 0 && errands[args[0]] != nil }

// Run runs the errand that the arguments begin with.
func Run(ctx context.Context, args []string, env Environment) error {
	err := errands[args[0]](ctx, args[1:], env)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	return err
}

// common are flags that every errand has.
type common struct {
	flags     *flag.FlagSet
	namespace string
	timeout   time.Duration
}

func newCommon(name string, timeout time.Duration) *common {
	c := &common{flags: flag.NewFlagSet(name, flag.ContinueOnError)}
	c.flags.SetOutput(io.Discard) // an error is told once, by the caller
	ctrl.RegisterFlags(c.flags)
	c.flags.StringVar(&c.namespace, "namespace", options.NamespaceDefault(), "`namespace` of the operator (default $POD_NAMESPACE)")
	c.flags.DurationVar(&c.timeout, "timeout", timeout, "`duration` after which this ends, whatever has come of it; 1s to "+maxTimeout.String())
	return c
}

// parse reads the flags, and makes a client that does not cache.
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

// Default is the environment of the program itself.
func Default(scheme *runtime.Scheme, userAgent string) Environment {
	return Environment{Config: ctrl.GetConfig, Scheme: scheme, UserAgent: userAgent, Out: os.Stdout}
}
