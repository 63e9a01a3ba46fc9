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

// Command demo tells the operator's story on a real control plane of its own:
// an ordinary Deployment is released, verified pod by pod, blocked after a
// failed verdict, and repaired. Each step is the command a user would type, and
// what it really printed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

func main() {
	once := flag.Bool("once", false, "end after the story instead of leaving the cluster up")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *once)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, once bool) (err error) {
	root, err := controlplane.Root(".")
	if err != nil {
		return err
	}
	binDir, err := controlplane.Build(ctx, root, os.Stdout)
	if err != nil {
		return err
	}
	cluster, err := controlplane.Start(ctx, controlplane.Options{
		BinDir: binDir, Dir: filepath.Join(root, ".demo"), Out: os.Stdout, Audit: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	manager, err := cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root, Args: []string{"--leader-elect=true"}})
	if err != nil {
		return err
	}
	if err := manager.Start(ctx); err != nil {
		return err
	}
	fmt.Printf("manager ready, its log is %s\n", manager.LogPath())

	s, err := newStory(cluster, root)
	if err != nil {
		return err
	}
	if err := s.tell(ctx); err != nil {
		return fmt.Errorf("%w\nthe manager's log is %s", err, manager.LogPath())
	}
	if once {
		return nil
	}
	fmt.Printf("\nThe cluster stays up for you to try things. In another terminal:\n\n    export KUBECONFIG=%s\n    export PATH=%s:$PATH\n\nCtrl-C ends it.\n",
		cluster.Kubeconfig(), binDir)
	<-ctx.Done()
	fmt.Println()
	return nil
}
