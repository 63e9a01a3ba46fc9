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
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	// stock is the namespace of the chapter of a StatefulSet, of hack/demo/stock.yaml.
	stock = "stock"
	// podColumns show of which template the pods of a StatefulSet are.
	podColumns = `custom-columns=POD:.metadata.name,IMAGE:.spec.containers[0].image,PHASE:.status.phase`
	// partitionColumns show what keeps its pods from being replaced.
	partitionColumns = `custom-columns=NAME:.metadata.name,REPLICAS:.spec.replicas,UPDATED:.status.updatedReplicas,` +
		`PARTITION:.spec.updateStrategy.rollingUpdate.partition`
	// haltPartition is the partition of a StatefulSet that the operator halted.
	haltPartition = 1<<31 - 1
	// watchFor is how long the policy default watches pods in this chapter.
	watchFor = "10s"
)

// set is the StatefulSet, its current release, and its pods: the image of each.
type set struct {
	appsv1.StatefulSet
	change  v1alpha1.ChangeWorkload
	changes []v1alpha1.ChangeWorkload
	pods    map[string]corev1.Pod
}

func (s *set) partition() int32 {
	if r := s.Spec.UpdateStrategy.RollingUpdate; r != nil {
		return ptr.Deref(r.Partition, 0)
	}
	return 0
}

// run says which pods run an image, and are Ready.
func (s *set) run(image string) (pods []string) {
	for i := range *s.Spec.Replicas {
		p, ok := s.pods[fmt.Sprintf("%s-%d", s.Name, i)]
		ready := false
		for _, c := range p.Status.Conditions {
			ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if ok && ready && p.DeletionTimestamp == nil && p.Spec.Containers[0].Image == image {
			pods = append(pods, p.Name)
		}
	}
	return pods
}

func (s *set) progress() string {
	return fmt.Sprintf("%s, %d of %d pods updated, partition %d",
		name(s.change.Status.Status), s.Status.UpdatedReplicas, *s.Spec.Replicas, s.partition())
}

// succeeded says that the current release has, and that all pods run its image.
func (s *set) succeeded(image string) bool {
	_, blocked := s.Labels[v1alpha1.SuspendLabel]
	return s.change.Status.Status == v1alpha1.ChangeWorkloadSuccess && !blocked && s.partition() == 0 &&
		len(s.run(image)) == int(*s.Spec.Replicas)
}

// held says that the rollout waits for the verdict on this pod, the only one that runs
// the new image.
func (s *set) held(pod, image string) bool {
	c := meta.FindStatusCondition(s.change.Status.Conditions, v1alpha1.ConditionHeld)
	pods := s.run(image)
	return c != nil && c.Status == metav1.ConditionTrue && s.partition() == *s.Spec.Replicas-1 && len(pods) == 1 && pods[0] == pod
}

// halted says that the current release failed by one pod, and that its rollout is halted.
func (s *set) halted(pod string) bool {
	_, blocked := s.Labels[v1alpha1.SuspendLabel]
	failed := s.change.Status.DefenseCheckFailPods
	return s.change.Status.Status == v1alpha1.ChangeWorkloadSuspend && blocked && s.partition() == haltPartition &&
		len(failed) == 1 && failed[0].Pod == pod
}

// restored says that the set is back at an image, from a release that failed.
func (s *set) restored(bad, image string) bool {
	for i := range s.changes {
		if c := &s.changes[i]; c.Name == bad && c.Status.Status == v1alpha1.ChangeWorkloadRollback {
			return s.change.Name != bad && s.succeeded(image)
		}
	}
	return false
}

// statefulSet is a release of a StatefulSet that waits at its partition for the verdict on
// each pod. The server fails the second one, so the third is never replaced; a request
// brings the set back.
func (s *story) statefulSet(ctx context.Context) error {
	if err := s.run(ctx, "apply", "-f", "hack/demo/stock.yaml"); err != nil {
		return err
	}
	before, err := s.waitForSet(ctx, "the StatefulSet to be released and verified", func(now *set) bool { return now.succeeded("db:1") })
	if err != nil {
		return err
	}
	fmt.Print(`
Each pod shall be verified before the next one is replaced. A rollout that waits does so for all checks, also for
that of the policy default, which watches pods for 5 minutes. Here ` + watchFor + ` are enough. Nothing is rolled back without
a request:
`)
	for _, args := range [][]string{
		{"-n", controlplane.ManagerNamespace, "patch", "defensepolicy", "default", "--type", "json", "-p",
			`[{"op":"replace","path":"/spec/checks/0/podHealth/duration","value":"` + watchFor + `"}]`},
		{"-n", stock, "annotate", "statefulset", "db", holding + "=every", selfHealing + "=disabled"},
	} {
		if err := s.run(ctx, args...); err != nil {
			return err
		}
	}
	s.server.failBatch(failingBatch)
	if err := s.run(ctx, "-n", stock, "set", "image", "statefulset/db", "db=db:2"); err != nil {
		return err
	}
	if err := s.secondFails(ctx); err != nil {
		return err
	}
	return s.bringBack(ctx, before)
}

// secondFails shows that the rollout waits for its first pod, goes on, and is halted
// when the second one fails.
func (s *story) secondFails(ctx context.Context) error {
	if _, err := s.waitForSet(ctx, "the first pod to be Ready, and the rollout to wait", func(now *set) bool { return now.held("db-2", "db:2") }); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-n", stock, "get", "statefulset", "db", "-o", partitionColumns},
		// On a busy machine the verdict may be there by now.
		{"-n", stock, "get", "changeworkloads", "-o", heldColumns},
	} {
		if err := s.run(ctx, args...); err != nil {
			return err
		}
	}
	if _, err := s.waitForSet(ctx, "the server to fail the second pod, and the rollout to be halted", func(now *set) bool { return now.halted("db-1") }); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"-n", stock, "get", "changeworkloads,changepods"},
		{"-n", stock, "get", "pods", "-o", podColumns},
		{"-n", stock, "get", "statefulset", "db", "-o", partitionColumns},
		{"-n", stock, "get", "statefulset", "db", "-L", v1alpha1.SuspendLabel},
	} {
		if err := s.run(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// bringBack asks for a rollback, and shows that the pod that was not replaced never was.
func (s *story) bringBack(ctx context.Context, before *set) error {
	bad, err := s.seeSet(ctx)
	if err != nil {
		return err
	}
	fmt.Print("\nThe pod db-0 still runs the version before. The others are brought back to it:\n")
	if err := s.run(ctx, "-n", stock, "annotate", "statefulset", "db", v1alpha1.RollbackToAnnotation+"=last-success"); err != nil {
		return err
	}
	after, err := s.waitForSet(ctx, "the StatefulSet to be back, and verified", func(now *set) bool { return now.restored(bad.change.Name, "db:1") })
	if err != nil {
		return err
	}
	if first := before.pods["db-0"]; after.pods["db-0"].UID != first.UID {
		return fmt.Errorf("pod %s was replaced", first.Name)
	}
	fmt.Println("   pod db-0 was never replaced")
	if err := s.run(ctx, "-n", stock, "get", "changeworkloads"); err != nil {
		return err
	}
	return s.run(ctx, "-n", stock, "get", "pods", "-o", podColumns)
}

func (s *story) waitForSet(ctx context.Context, what string, is func(*set) bool) (now *set, err error) {
	err = s.waitFor(ctx, what, func(ctx context.Context) (string, bool, error) {
		if now, err = s.seeSet(ctx); err != nil {
			return "", false, err
		}
		return now.progress(), is(now), nil
	})
	return now, err
}

// seeSet looks at the StatefulSet, its releases, and its pods.
func (s *story) seeSet(ctx context.Context) (*set, error) {
	now := &set{pods: map[string]corev1.Pod{}}
	if err := s.client.Get(ctx, types.NamespacedName{Namespace: stock, Name: "db"}, &now.StatefulSet); err != nil {
		return nil, err
	}
	var changes v1alpha1.ChangeWorkloadList
	if err := s.client.List(ctx, &changes, client.InNamespace(stock)); err != nil {
		return nil, err
	}
	now.changes = changes.Items
	for i := range now.changes {
		if now.changes[i].Spec.Reversion == now.Labels[v1alpha1.VersionLabel] {
			now.change = now.changes[i]
		}
	}
	var pods corev1.PodList
	if err := s.client.List(ctx, &pods, client.InNamespace(stock), client.MatchingLabels(now.Spec.Selector.MatchLabels)); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		now.pods[pods.Items[i].Name] = pods.Items[i]
	}
	return now, nil
}
