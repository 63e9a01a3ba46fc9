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

// Command up runs a local control plane until it is interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

func main() {
	var o controlplane.Options
	flag.StringVar(&o.Dir, "dir", "", "directory for state, kubeconfigs and logs; a temporary one by default")
	flag.IntVar(&o.Nodes, "nodes", 3, "number of nodes")
	flag.BoolVar(&o.Audit, "audit", false, "record every request in audit.log")
	flag.Parse()
	o.Out = os.Stderr

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o controlplane.Options) (err error) {
	root, err := controlplane.Root(".")
	if err != nil {
		return err
	}
	if o.BinDir, err = controlplane.Build(ctx, root, os.Stderr); err != nil {
		return err
	}
	c, err := controlplane.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()

	fmt.Printf("export KUBECONFIG=%s\nexport PATH=%s:$PATH\n", c.Kubeconfig(), o.BinDir)
	fmt.Fprintln(os.Stderr, "Ctrl-C stops the control plane")
	<-ctx.Done()
	return nil
}
