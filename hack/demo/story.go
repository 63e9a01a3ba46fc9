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

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// patience bounds the wait for any one condition.
const patience = 2 * time.Minute

// story is the walkthrough, and what the server has to do with it, told on a
// cluster.
type story struct {
	cluster *controlplane.ControlPlane
	server  *server
	client  client.Client
	root    string // of the repository, where commands run

	// failed and repaired are the releases that the server's verdict is told of.
	failed, repaired v1alpha1.ChangeWorkload
}

func newStory(cluster *controlplane.ControlPlane, server *server, root string) (*story, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	c, err := client.New(cluster.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &story{cluster: cluster, server: server, client: c, root: root}, nil
}

func (s *story) play(ctx context.Context) error {
	player := &walkthrough.Player{
		Client: s.client, Namespace: "default", Kubectl: s.kubectl, Progress: progress,
		Begin: func(step walkthrough.Step) { fmt.Printf("\n== %s\n", step.Title) },
		Note:  func(text string) { fmt.Printf("   (%s)\n", text) },
	}
	if err := player.Play(ctx, walkthrough.Release); err != nil {
		return err
	}
	if err := s.verified(ctx); err != nil {
		return err
	}
	if err := player.Play(ctx, walkthrough.Fail, walkthrough.Blocked, walkthrough.Repair, walkthrough.GoOn,
		walkthrough.Sooner(walkthrough.NeverStarts)); err != nil {
		return err
	}
	if err := s.rolledBack(ctx); err != nil {
		return err
	}
	if err := s.steps(ctx, []step{
		{"A failing verdict from AlterShield Server: the release is suspended in flight", s.verdict},
		{"A failing verdict from AlterShield Server: a block, and a repair", s.block},
		{"A failing verdict from AlterShield Server: what the server heard and said", s.serverLog},
		{"The same with self-healing: the release is rolled back", s.healed},
		{"A StatefulSet: its second pod fails while it is held at its partition, and it is brought back", s.statefulSet},
	}); err != nil {
		return err
	}
	fmt.Println("\nEvery step held.")
	return nil
}

// step is a turn of the story that is not of the walkthrough.
type step struct {
	title string
	do    func(context.Context) error
}

func (*story) steps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		fmt.Printf("\n== %s\n", step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("step %q: %w", step.title, err)
		}
	}
	return nil
}

// verified fails unless the batches there are were verified by the server.
func (s *story) verified(ctx context.Context) error {
	var list v1alpha1.ChangePodList
	if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil {
		return err
	}
	for i := range list.Items {
		if b := &list.Items[i]; b.Status.Message != v1alpha1.ChangePodMessagePostFinish {
			return fmt.Errorf("batch %s was not verified by the server: %s", b.Name, b.Status.Message)
		}
	}
	return nil
}

// suspended waits until a release is suspended and its Deployment blocked, and
// returns the Deployment as it is then.
func (s *story) suspended(ctx context.Context, release string) (*appsv1.Deployment, error) {
	var deployment *appsv1.Deployment
	err := s.waitFor(ctx, "the release to be suspended and the Deployment blocked", func(ctx context.Context) (string, bool, error) {
		state, err := s.state(ctx, release)
		if err != nil {
			return "", false, err
		}
		if deployment, err = s.deployment(ctx); err != nil {
			return "", false, err
		}
		_, blocked := deployment.Labels[v1alpha1.SuspendLabel]
		return name(state), state == v1alpha1.ChangeWorkloadSuspend && blocked, nil
	})
	return deployment, err
}

// showFailure shows which pod of a release failed, the block, and the event.
func (s *story) showFailure(ctx context.Context, release, pod, message string) error {
	for _, args := range [][]string{
		{"get", "changeworkload", release, "-o", `jsonpath={range .status.defenseCheckFailPods[*]}{.pod}: {.verdict}: {.message}{"\n"}{end}`},
		{"get", "deployment", "sleep", "-L", v1alpha1.SuspendLabel},
		{"get", "events", "--field-selector", "involvedObject.kind=Deployment,reason=ReleaseSuspended"},
	} {
		out, err := s.kubectl(ctx, args...)
		if err != nil {
			return err
		}
		if args[1] != "deployment" && (!strings.Contains(out, pod) || !strings.Contains(out, message)) {
			return fmt.Errorf("kubectl %s does not name the failed pod %s and %q", strings.Join(args[:2], " "), pod, message)
		}
	}
	return nil
}

// isDenied runs a release that must be denied because of the block.
func (s *story) isDenied(ctx context.Context, args ...string) error {
	out, err := s.kubectl(ctx, args...)
	if err == nil {
		return errors.New("the release was not denied")
	}
	if !strings.Contains(out, walkthrough.Denial) {
		return fmt.Errorf("denied, but not with the message %q", walkthrough.Denial)
	}
	return nil
}

func (s *story) state(ctx context.Context, release string) (v1alpha1.ChangeWorkloadStatusType, error) {
	var c v1alpha1.ChangeWorkload
	err := s.client.Get(ctx, types.NamespacedName{Namespace: "default", Name: release}, &c)
	return c.Status.Status, client.IgnoreNotFound(err)
}

// name is what a state is called; that of a new release is empty.
func name(state v1alpha1.ChangeWorkloadStatusType) string { return cmp.Or(string(state), "Init") }

// run shows a command and what it prints.
func (s *story) run(ctx context.Context, args ...string) error {
	_, err := s.kubectl(ctx, args...)
	return err
}

func (s *story) kubectl(ctx context.Context, args ...string) (string, error) {
	shown := slices.Clone(args)
	for i, arg := range shown {
		if strings.HasPrefix(arg, "{") {
			shown[i] = fold(arg)
		}
	}
	fmt.Printf("\n%s\n", show(shown))
	var out bytes.Buffer
	cmd := s.cluster.KubectlCmd(ctx, args...)
	cmd.Dir = s.root
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	fmt.Print(out.String())
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w", args[0], err)
	}
	return out.String(), err
}

// waitFor waits for a condition on the cluster, with a line that shows how far
// it is.
func (s *story) waitFor(ctx context.Context, what string, condition func(context.Context) (progress string, done bool, err error)) error {
	began := time.Now()
	p := walkthrough.Progress{What: what}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		now, done, err := condition(ctx)
		if now != "" {
			p.Now = now
		}
		p.Elapsed = time.Since(began)
		progress(p)
		return done, err
	})
	p.Over = true
	progress(p)
	if err != nil {
		return fmt.Errorf("waited for %s, at last %q: %w", what, p.Now, err)
	}
	return nil
}
