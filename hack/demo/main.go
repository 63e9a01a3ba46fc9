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

// Command demo tells the operator's story on a real control plane of its own: first
// without a server, of releases that policies fail, then with a simulator of
// AlterShield Server, of an ordinary Deployment that is released, verified pod by pod,
// blocked after a failed verdict, and repaired. Each step is the command a user would
// type, and what it really printed.
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
	"github.com/traas-stack/altershield-operator/internal/altershield"
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
	dir := filepath.Join(root, ".demo")
	cluster, err := controlplane.Start(ctx, controlplane.Options{BinDir: binDir, Dir: dir, Out: os.Stdout, Audit: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	if err := playAlone(ctx, cluster, root, dir); err != nil {
		return err
	}
	server, err := startServer(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	fmt.Printf("\nsimulator of AlterShield Server ready: %s\n", server.URL())
	manager, err := cluster.InstallManager(ctx, controlplane.ManagerOptions{
		Root: root, Args: append([]string{"--leader-elect=true"}, server.managerArgs()...),
	})
	if err != nil {
		return err
	}
	server.SetCallbackURLs(manager.CallbackAddress() + altershield.CallbackPath)
	if err := manager.Start(ctx); err != nil {
		return err
	}
	// It ends before the server does, which it would miss.
	defer func() { err = errors.Join(err, manager.Stop()) }()
	fmt.Printf("manager ready, connected to it; its log is %s\n", manager.LogPath())

	s, err := newStory(cluster, server, root)
	if err != nil {
		return err
	}
	if err := s.play(ctx); err != nil {
		return fmt.Errorf("%w\nthe manager's log is %s\nthe server's journal is %s", err, manager.LogPath(), server.logPath)
	}
	if once {
		return nil
	}
	fmt.Printf(`
The cluster stays up for you to try things. In another terminal:

    export KUBECONFIG=%s
    export PATH=%s:$PATH

What AlterShield Server hears and says, as it happens:

    tail -f %s

The server fails pods whose names begin with %q, such as those of

    kubectl create deployment %sone --image=busybox --replicas=3

Ctrl-C ends it.
`, cluster.Kubeconfig(), binDir, server.logPath, unlucky, unlucky)
	<-ctx.Done()
	fmt.Println()
	return nil
}

// playAlone plays the chapter without a server, with a manager of its own.
func playAlone(ctx context.Context, cluster *controlplane.ControlPlane, root, dir string) (err error) {
	manager, err := cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root, Args: []string{"--leader-elect=true"}})
	if err != nil {
		return err
	}
	if err := manager.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, manager.Stop()) }()
	fmt.Printf("manager ready, without a server; its log is %s\n", manager.LogPath())
	s, err := newStory(cluster, nil, root)
	if err != nil {
		return err
	}
	app := startApp(ctx, dir)
	defer func() { err = errors.Join(err, app.stop()) }()
	if err := (&alone{story: s, app: app}).play(ctx); err != nil {
		return fmt.Errorf("%w\nthe manager's log is %s", err, manager.LogPath())
	}
	return nil
}
