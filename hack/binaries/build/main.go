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

// Command build brings the binaries of the local control plane into bin/k8s of
// the current repository, with -monitoring those of its monitoring into
// bin/monitoring, or with -kinds the controllers of other kinds into bin/kinds,
// unless they exist.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/traas-stack/altershield-operator/hack/binaries"
)

func main() {
	begin := flag.Bool("begin", false, "only print the work to do, and download sources in the background")
	monitoring := flag.Bool("monitoring", false, "build Prometheus, Alertmanager and kube-state-metrics")
	kinds := flag.Bool("kinds", false, "build the controllers of OpenKruise and LeaderWorkerSet")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *begin, *monitoring, *kinds)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, begin, monitoring, kinds bool) error {
	root, err := binaries.Root(".")
	if err != nil {
		return err
	}
	if begin {
		return binaries.Begin(ctx, root, os.Stderr)
	}
	build := binaries.Build
	switch {
	case monitoring:
		build = binaries.BuildMonitoring
	case kinds:
		build = binaries.BuildKinds
	}
	_, err = build(ctx, root, os.Stderr)
	return err
}
