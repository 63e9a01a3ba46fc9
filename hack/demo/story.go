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
	"encoding/json"
	"errors"
	"fmt"
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
)

const (
	firstRelease = "sleep--x--c6c45d23c098bdf181853a85b60b5d74"
	repair       = "sleep--x--6a8ff823a5011291b0f02a1d83c2222d"
	// patience bounds the wait for any one condition.
	patience = 2 * time.Minute
)

// story is the walkthrough, told on a cluster.
type story struct {
	cluster *controlplane.ControlPlane
	server  *server
	client  client.Client
	root    string // of the repository, where commands run
	denied  string // the template patch that is denied, and later is not

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
	return &story{
		cluster: cluster, server: server, client: c, root: root,
		denied: `{"spec":{"template":{"metadata":{"labels":{"test":"test"}}}}}`,
	}, nil
}

func (s *story) tell(ctx context.Context) error {
	for _, step := range []struct {
		title string
		do    func(context.Context) error
	}{
		{"1. A Deployment is released, and verified pod by pod", s.release},
		{"2. A pod fails its verification", s.fail},
		{"3. The next release is blocked", s.blocked},
		{"4. A repair passes the block", s.repair},
		{"5. Releases go on", s.goOn},
		{"6. A release whose pods do not come up is rolled back", s.neverStarts},
		{"A failing verdict from AlterShield Server: the release is suspended in flight", s.verdict},
		{"A failing verdict from AlterShield Server: a block, and a repair", s.block},
		{"A failing verdict from AlterShield Server: what the server heard and said", s.heard},
		{"The same with self-healing: the release is rolled back", s.healed},
	} {
		fmt.Printf("\n== %s\n", step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("step %q: %w", step.title, err)
		}
	}
	fmt.Println("\nEvery step held.")
	return nil
}

func (s *story) release(ctx context.Context) error {
	if err := s.run(ctx, "label", "namespace", "default", v1alpha1.EnrolledLabel+"="+v1alpha1.EnrolledValue, "--overwrite"); err != nil {
		return err
	}
	if err := s.run(ctx, "apply", "-f", "config/samples/sleep.yaml"); err != nil {
		return err
	}
	if err := s.waitFor(ctx, "the release and its 5 pods to be verified", func(ctx context.Context) (string, bool, error) {
		state, err := s.state(ctx, firstRelease)
		if err != nil {
			return "", false, err
		}
		done, err := s.batchesDone(ctx, firstRelease)
		return fmt.Sprintf("%s, %d of 5 batches done", name(state), done), state == v1alpha1.ChangeWorkloadSuccess && done == 5, err
	}); err != nil {
		return err
	}
	if err := s.run(ctx, "get", "changeworkloads"); err != nil {
		return err
	}
	return s.run(ctx, "get", "changepods")
}

func (s *story) fail(ctx context.Context) error {
	batch := firstRelease + "--x--1"
	var changePod v1alpha1.ChangePod
	if err := s.client.Get(ctx, types.NamespacedName{Namespace: "default", Name: batch}, &changePod); err != nil {
		return err
	}
	status := v1alpha1.ChangePodStatus{Message: v1alpha1.ChangePodMessagePostFinish, PodResults: []v1alpha1.PodResult{{
		PodInfo: changePod.Spec.PodInfos[0], Verdict: "unpass", Message: "find error",
	}}}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	if err := s.run(ctx, "patch", "changepod", "--subresource=status", batch, "--type", "merge", "-p", fold(string(patch))); err != nil {
		return err
	}
	if _, err := s.suspended(ctx, firstRelease); err != nil {
		return err
	}
	if err := s.run(ctx, "get", "changeworkloads"); err != nil {
		return err
	}
	return s.showFailure(ctx, firstRelease, changePod.Spec.PodInfos[0].Pod, "find error")
}

func (s *story) blocked(ctx context.Context) error {
	if err := s.isDenied(ctx, "patch", "deployment", "sleep", "-p", s.denied, "--type", "merge"); err != nil {
		return err
	}
	fmt.Println("   (scaling and everything but a new template still pass)")
	return s.run(ctx, "annotate", "deployment", "sleep", "on-call=jane", "--overwrite")
}

func (s *story) repair(ctx context.Context) error {
	if err := s.run(ctx, "apply", "-f", "config/samples/sleep-repair.yaml"); err != nil {
		return err
	}
	if err := s.waitFor(ctx, "both versions to be listed", func(ctx context.Context) (string, bool, error) {
		var list v1alpha1.ChangeWorkloadList
		err := s.client.List(ctx, &list, client.InNamespace("default"))
		return fmt.Sprintf("%d listed", len(list.Items)), len(list.Items) == 2, err
	}); err != nil {
		return err
	}
	if err := s.run(ctx, "get", "changeworkloads"); err != nil {
		return err
	}
	if err := s.waitFor(ctx, "the repair to succeed and the older version to go", s.only(repair)); err != nil {
		return err
	}
	return s.run(ctx, "get", "changeworkloads")
}

func (s *story) goOn(ctx context.Context) error {
	if err := s.run(ctx, "patch", "deployment", "sleep", "-p", s.denied, "--type", "merge"); err != nil {
		return err
	}
	if err := s.waitFor(ctx, "it to succeed", func(ctx context.Context) (string, bool, error) {
		var list v1alpha1.ChangeWorkloadList
		if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil || len(list.Items) != 1 {
			return fmt.Sprintf("%d listed", len(list.Items)), false, err
		}
		c := &list.Items[0]
		return name(c.Status.Status), c.Name != repair && c.Status.Status == v1alpha1.ChangeWorkloadSuccess, nil
	}); err != nil {
		return err
	}
	return s.run(ctx, "get", "changeworkloads")
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
	const message = `admission webhook "vdeployment.kb.io" denied the request: deployment sleep is suspended`
	if !strings.Contains(out, message) {
		return fmt.Errorf("denied, but not with the message %q", message)
	}
	return nil
}

// only says that a release is the only one there, and succeeded.
func (s *story) only(release string) func(context.Context) (string, bool, error) {
	return func(ctx context.Context) (string, bool, error) {
		var list v1alpha1.ChangeWorkloadList
		if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil {
			return "", false, err
		}
		state, err := s.state(ctx, release)
		return fmt.Sprintf("%s, %d listed", name(state), len(list.Items)), state == v1alpha1.ChangeWorkloadSuccess && len(list.Items) == 1, err
	}
}

func (s *story) state(ctx context.Context, release string) (v1alpha1.ChangeWorkloadStatusType, error) {
	var c v1alpha1.ChangeWorkload
	err := s.client.Get(ctx, types.NamespacedName{Namespace: "default", Name: release}, &c)
	return c.Status.Status, client.IgnoreNotFound(err)
}

// name is what a state is called; that of a new release is empty.
func name(state v1alpha1.ChangeWorkloadStatusType) string { return cmp.Or(string(state), "Init") }

// batchesDone is how many batches of a release were verified by the server.
func (s *story) batchesDone(ctx context.Context, change string) (done int, err error) {
	var list v1alpha1.ChangePodList
	err = s.client.List(ctx, &list, client.InNamespace("default"))
	for i := range list.Items {
		if list.Items[i].Spec.ChangeWorkloadID == change && list.Items[i].Status.Status == v1alpha1.ChangePodExecuteDone &&
			list.Items[i].Status.Message == v1alpha1.ChangePodMessagePostFinish {
			done++
		}
	}
	return done, err
}

// run shows a command and what it prints.
func (s *story) run(ctx context.Context, args ...string) error {
	_, err := s.kubectl(ctx, args...)
	return err
}

func (s *story) kubectl(ctx context.Context, args ...string) (string, error) {
	fmt.Printf("\n%s\n", show(args))
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
	last := ""
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		progress, done, err := condition(ctx)
		if progress != "" {
			last = progress
		}
		progressLine(fmt.Sprintf("   waiting for %s: %s (%.1fs)", what, last, time.Since(began).Seconds()))
		return done, err
	})
	clearLine()
	fmt.Printf("   waited for %s: %s (%.1fs)\n", what, last, time.Since(began).Seconds())
	if err != nil {
		return fmt.Errorf("waited for %s, at last %q: %w", what, last, err)
	}
	return nil
}
