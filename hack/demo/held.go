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
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	// holding is the annotation by which the rollouts of a workload wait for their
	// verdicts: with holdFirst for those on the first pods.
	holding   = v1alpha1.SettingAnnotationPrefix + "holding"
	holdFirst = holding + "=first"
	// heldColumns show what releases wait for.
	heldColumns = `custom-columns=STATUS:.status.status,HELD:.status.conditions[?(@.type=="Held")].message`
)

// waits says why the rollout of a release does not wait for its verdicts: some of its
// pods are there and Ready, and the others are of the version before.
func waits(d *appsv1.Deployment, release *v1alpha1.ChangeWorkload) error {
	st := &d.Status
	c := meta.FindStatusCondition(release.Status.Conditions, v1alpha1.ConditionHeld)
	switch _, progress := rollout(d); {
	case c == nil || c.Status != metav1.ConditionTrue:
		return errors.New("the release does not say that its rollout waits")
	case st.ObservedGeneration < d.Generation || st.UpdatedReplicas == 0:
		return fmt.Errorf("the rollout has not begun: %s", progress)
	case st.UpdatedReplicas == st.Replicas || st.UpdatedReplicas >= *d.Spec.Replicas:
		return fmt.Errorf("the rollout did not wait: %s", progress)
	case st.ReadyReplicas < st.Replicas:
		return fmt.Errorf("%d of %d pods are Ready", st.ReadyReplicas, st.Replicas)
	}
	return nil
}

// pods are the UIDs of those of a Deployment that are not going, by their names.
func (s *story) pods(ctx context.Context, d *appsv1.Deployment) (map[string]types.UID, error) {
	var list corev1.PodList
	if err := s.client.List(ctx, &list, client.InNamespace(d.Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels)); err != nil {
		return nil, err
	}
	found := map[string]types.UID{}
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil {
			found[p.Name] = p.UID
		}
	}
	return found, nil
}

// keptPods is how many of these pods are still there.
func keptPods(before, after map[string]types.UID) (kept int) {
	for name, uid := range before {
		if after[name] == uid {
			kept++
		}
	}
	return kept
}

// kept fails unless so many pods of a Deployment are those that it had before.
func (s *story) kept(ctx context.Context, d *appsv1.Deployment, before map[string]types.UID, want int) error {
	after, err := s.pods(ctx, d)
	if err != nil {
		return err
	}
	if got := keptPods(before, after); got != want {
		return fmt.Errorf("%d of the %d pods from before the release are there, and not %d", got, len(before), want)
	}
	fmt.Printf("   %d of the %d pods from before were never replaced\n", want, len(before))
	return nil
}
