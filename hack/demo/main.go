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

// Command demo plays the stories of test/walkthrough on a real control plane of its own: first without a server, where policies verify
// the releases, then with a simulator of AlterShield Server. Each step is a command that a user would type, with its real output.
//
//   - main.go: control plane, manager, and how a story is shown
//   - app.go: answers requests in place of the simulated pods
//   - metrics.go: a Prometheus that measures such pods, and an Alertmanager
//   - server.go: the simulator of AlterShield Server, and its journal
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

func main() {
	once := flag.Bool("once", false, "end after the last step instead of leaving the cluster up")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *once)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo is a control plane on which stories are played.
type demo struct {
	cluster *controlplane.ControlPlane
	client  client.Client
	// root is the root of the repository, dir the directory of the demo's files.
	root, dir string
	// definition is the CustomResourceDefinition of Istio's VirtualServices.
	definition []byte
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
	d := &demo{root: root, dir: filepath.Join(root, ".demo")}
	// It may be downloaded.
	d.definition, err = controlplane.Definition(ctx, root, "istio.io/api", "kubernetes/customresourcedefinitions.gen.yaml", walkthrough.Routes)
	if err != nil {
		return err
	}
	d.cluster, err = controlplane.Start(ctx, controlplane.Options{BinDir: binDir, Dir: d.dir, Out: os.Stdout, Audit: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.cluster.Stop()) }()
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	if d.client, err = client.New(d.cluster.RESTConfig(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	metrics, stopMetrics, err := startMetrics(ctx, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopMetrics()) }()
	if err := d.withoutServer(ctx, metrics); err != nil {
		return err
	}
	server, err := startServer(d.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	fmt.Printf("\nsimulator of AlterShield Server ready: %s\n", server.URL())
	manager, err := d.startManager(ctx, server.managerArgs()...)
	if err != nil {
		return err
	}
	// It ends before the server does, which it would miss.
	defer func() { err = errors.Join(err, manager.Stop()) }()
	server.SetCallbackURLs(manager.CallbackAddress() + altershield.CallbackPath)
	if err := d.play(ctx, walkthrough.Verified(server), walkthrough.Partition(server), walkthrough.Waves(server)); err != nil {
		return fmt.Errorf("%w\nthe manager's log is %s\nthe server's journal is %s", err, manager.LogPath(), server.logPath)
	}
	fmt.Println("\nEvery step held.")
	if once {
		return nil
	}
	fmt.Printf(`
The cluster stays up for you to try things. In another terminal:

    export KUBECONFIG=%s
    export PATH=%s:$PATH

What AlterShield Server receives and answers, as it happens:

    tail -f %s

The server fails pods whose names begin with %q, such as those of

    kubectl create deployment %sone --image=busybox --replicas=3

Ctrl-C ends it.
`, d.cluster.Kubeconfig(), binDir, server.logPath, unlucky, unlucky)
	<-ctx.Done()
	fmt.Println()
	return nil
}

// withoutServer plays the stories without a server, with a manager of their own.
func (d *demo) withoutServer(ctx context.Context, metrics *walkthrough.Metrics) (err error) {
	manager, err := d.startManager(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, manager.Stop()) }()
	app, stop, err := startApp(ctx, d.root, d.dir)
	if err != nil {
		return err
	}
	defer stop()
	definition, err := d.writeDefinition()
	if err != nil {
		return err
	}
	if err := d.play(ctx, walkthrough.Policies(app), walkthrough.Measured(metrics), walkthrough.Declared(definition)); err != nil {
		return fmt.Errorf("%w\nthe manager's log is %s", err, manager.LogPath())
	}
	return nil
}

// writeDefinition writes the definition, and returns its path below root.
func (d *demo) writeDefinition() (string, error) {
	path := filepath.Join(d.dir, "virtualservices.yaml")
	if err := os.WriteFile(path, d.definition, 0o600); err != nil {
		return "", err
	}
	return filepath.Rel(d.root, path)
}

// startManager starts a manager with further flags.
func (d *demo) startManager(ctx context.Context, args ...string) (*controlplane.Manager, error) {
	args = append([]string{"--leader-elect=true"}, args...)
	manager, err := d.cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: d.root, Args: args})
	if err != nil {
		return nil, err
	}
	if err := manager.Start(ctx); err != nil {
		return nil, err
	}
	fmt.Printf("manager ready; its log is %s\n", manager.LogPath())
	return manager, nil
}

func (d *demo) play(ctx context.Context, stories ...walkthrough.Story) error {
	for _, story := range stories {
		player := &walkthrough.Player{
			Client: d.client, Of: story.Of, Namespace: story.Namespace, Progress: progress,
			Kubectl: func(ctx context.Context, args ...string) (string, error) {
				switch namespace := []string{"-n", story.Namespace}; {
				case args[0] == "-n" || story.Namespace == "default":
				case args[0] == "altershield": // kubectl passes on no flag before the name of a plugin
					args = append(args, namespace...)
				default:
					args = append(namespace, args...)
				}
				return d.kubectl(ctx, args)
			},
			Begin: func(step walkthrough.Step) { fmt.Printf("\n== %s\n", step.Title) },
			Note:  func(text string) { fmt.Printf("\n# %s\n", strings.ReplaceAll(text, "\n", "\n# ")) },
		}
		if err := player.Play(ctx, story.Steps...); err != nil {
			return err
		}
	}
	return nil
}

// kubectl shows a command and its output, and returns the output.
func (d *demo) kubectl(ctx context.Context, args []string) (string, error) {
	fmt.Printf("\n$ %s\n", walkthrough.Typed(args))
	var out bytes.Buffer
	cmd := d.cluster.KubectlCmd(ctx, args...)
	cmd.Dir, cmd.Env = d.root, append(cmd.Env, "PATH="+filepath.Join(d.root, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdout = io.MultiWriter(os.Stdout, &out)
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	return out.String(), err
}

var isTerminal = binaries.IsTerminal(os.Stdout)

// progress shows what is waited for: in one line of a terminal, which does not wrap it, and when it is over.
func progress(p walkthrough.Progress) {
	text := fmt.Sprintf("%s: %s (%.1fs)", p.What, p.Now, p.Elapsed.Seconds())
	if isTerminal {
		fmt.Print("\r\x1b[K")
	}
	switch {
	case p.Over:
		fmt.Println("   waited for " + text)
	case isTerminal:
		fmt.Print("\x1b[?7l   waiting for " + text + "\x1b[?7h")
	}
}
