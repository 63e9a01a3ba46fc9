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
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/term"
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
	client  client.Client
	samples string
	denied  string // the template patch that is denied, and later is not
}

func newStory(cluster *controlplane.ControlPlane, root string) (*story, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	c, err := client.New(cluster.RESTConfig(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return &story{
		cluster: cluster, client: c, samples: filepath.Join(root, "config", "samples"),
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
	if err := s.run(ctx, "apply", "-f", filepath.Join(s.samples, "sleep.yaml")); err != nil {
		return err
	}
	if err := s.waitFor(ctx, "the release and its 5 pods to be verified", func(ctx context.Context) (string, bool, error) {
		state, err := s.state(ctx, firstRelease)
		if err != nil {
			return "", false, err
		}
		done, err := s.batchesDone(ctx, firstRelease)
		return fmt.Sprintf("%s, %d of 5 batches done", state, done), state == v1alpha1.ChangeWorkloadSuccess && done == 5, err
	}); err != nil {
		return err
	}
	return s.run(ctx, "get", "changeworkloads,changepods")
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
	if err := s.run(ctx, "patch", "changepod", "--subresource=status", batch, "--type", "merge", "-p", string(patch)); err != nil {
		return err
	}
	if err := s.waitFor(ctx, "the release to be suspended and the Deployment blocked", func(ctx context.Context) (string, bool, error) {
		state, err := s.state(ctx, firstRelease)
		if err != nil {
			return "", false, err
		}
		var deployment appsv1.Deployment
		err = s.client.Get(ctx, types.NamespacedName{Namespace: "default", Name: "sleep"}, &deployment)
		_, blocked := deployment.Labels[v1alpha1.SuspendLabel]
		return string(state), state == v1alpha1.ChangeWorkloadSuspend && blocked, err
	}); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"get", "changeworkloads"},
		{"get", "changeworkload", firstRelease, "-o", `jsonpath={.status.defenseCheckFailPods}{"\n"}`},
		{"get", "deployment", "sleep", "-L", v1alpha1.SuspendLabel},
		{"get", "events", "--field-selector", "involvedObject.kind=Deployment,reason=ReleaseSuspended"},
	} {
		if err := s.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) blocked(ctx context.Context) error {
	out, err := s.kubectl(ctx, "patch", "deployment", "sleep", "-p", s.denied, "--type", "merge")
	if err == nil {
		return fmt.Errorf("the release was not denied")
	}
	const message = `admission webhook "vdeployment.kb.io" denied the request: deployment sleep is suspended`
	if !strings.Contains(out, message) {
		return fmt.Errorf("denied, but not with the message %q", message)
	}
	fmt.Println("   (scaling and everything but a new template still pass)")
	return s.run(ctx, "annotate", "deployment", "sleep", "on-call=jane", "--overwrite")
}

func (s *story) repair(ctx context.Context) error {
	if err := s.run(ctx, "apply", "-f", filepath.Join(s.samples, "sleep-repair.yaml")); err != nil {
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
		return string(c.Status.Status), c.Name != repair && c.Status.Status == v1alpha1.ChangeWorkloadSuccess, nil
	}); err != nil {
		return err
	}
	return s.run(ctx, "get", "changeworkloads,changepods")
}

// only says that a release is the only one there, and succeeded.
func (s *story) only(name string) func(context.Context) (string, bool, error) {
	return func(ctx context.Context) (string, bool, error) {
		var list v1alpha1.ChangeWorkloadList
		if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil {
			return "", false, err
		}
		state, err := s.state(ctx, name)
		return fmt.Sprintf("%s, %d listed", state, len(list.Items)), state == v1alpha1.ChangeWorkloadSuccess && len(list.Items) == 1, err
	}
}

func (s *story) state(ctx context.Context, name string) (v1alpha1.ChangeWorkloadStatusType, error) {
	var c v1alpha1.ChangeWorkload
	err := s.client.Get(ctx, types.NamespacedName{Namespace: "default", Name: name}, &c)
	return c.Status.Status, client.IgnoreNotFound(err)
}

func (s *story) batchesDone(ctx context.Context, change string) (done int, err error) {
	var list v1alpha1.ChangePodList
	err = s.client.List(ctx, &list, client.InNamespace("default"))
	for i := range list.Items {
		if list.Items[i].Spec.ChangeWorkloadID == change && list.Items[i].Status.Status == v1alpha1.ChangePodExecuteDone {
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
	fmt.Printf("\n$ kubectl %s\n", quote(args))
	var out bytes.Buffer
	cmd := s.cluster.KubectlCmd(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	fmt.Print(out.String())
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w", args[0], err)
	}
	return out.String(), err
}

func quote(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = a
		if strings.ContainsAny(a, " {}\"$*") {
			quoted[i] = "'" + a + "'"
		}
	}
	return strings.Join(quoted, " ")
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
		s.progress("   waiting for %s: %s (%.1fs)", what, last, time.Since(began).Seconds())
		return done, err
	})
	if terminal() {
		fmt.Println()
	} else {
		fmt.Printf("   waited for %s: %s (%.1fs)\n", what, last, time.Since(began).Seconds())
	}
	if err != nil {
		return fmt.Errorf("waited for %s, at last %q: %w", what, last, err)
	}
	return nil
}

// progress rewrites the current line where there is a terminal to see it.
func (s *story) progress(format string, args ...any) {
	if terminal() {
		fmt.Printf("\r\x1b[K"+format, args...)
	}
}

func terminal() bool { return term.IsTerminal(int(os.Stdout.Fd())) }
