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

package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/pages"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Policies lists the policies of a namespace and of the operator's namespace, in their order.
func (v View) Policies(ctx context.Context, namespace string) ([]v1alpha1.DefensePolicy, error) {
	return v.policies(namespace, func(in client.InNamespace) ([]v1alpha1.DefensePolicy, error) {
		var list v1alpha1.DefensePolicyList
		err := v.Cached.List(ctx, &list, in, client.UnsafeDisableDeepCopy)
		return list.Items, err
	})
}

// LivePolicies lists the same policies from the API server: a cache that is behind must
// not end a check.
func (v View) LivePolicies(ctx context.Context, namespace string) ([]v1alpha1.DefensePolicy, error) {
	return v.policies(namespace, func(in client.InNamespace) (policies []v1alpha1.DefensePolicy, err error) {
		return policies, pages.Each(ctx, func(ctx context.Context, limit int64, from string) (string, error) {
			var page v1alpha1.DefensePolicyList
			if err := v.Live.List(ctx, &page, in, client.Limit(limit), client.Continue(from)); err != nil {
				return "", err
			}
			for i := range page.Items {
				if _, err := workload.TrimPolicy(&page.Items[i]); err != nil {
					return "", err
				}
			}
			policies = append(policies, page.Items...)
			return page.Continue, nil
		})
	})
}

func (v View) policies(
	namespace string, list func(client.InNamespace) ([]v1alpha1.DefensePolicy, error),
) (policies []v1alpha1.DefensePolicy, err error) {
	for _, ns := range slices.Compact([]string{v.Operator, namespace}) {
		of, err := list(client.InNamespace(ns))
		if err != nil {
			return nil, fmt.Errorf("list defensepolicies of %s: %w", ns, err)
		}
		policies = append(policies, of...)
	}
	policy.Sort(policies, v.Operator)
	return policies, nil
}

// setAsideTimeout bounds the writing of the condition SetAside.
const setAsideTimeout = 30 * time.Second

// setAside writes a condition on a policy: this process evaluates none of its rules until a time.
// The condition is for users: nothing depends on it.
func (c *Cluster) setAside(l logr.Logger, of rules.Policy, until time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), setAsideTimeout)
	defer cancel()
	l.Info("rules of a policy are not evaluated for a while, because several evaluations did not end",
		"defensepolicy", of.Namespace+"/"+of.Name, "generation", of.Generation, "until", until)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var p v1alpha1.DefensePolicy
		if err := c.Client.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: of.Name}, &p); err != nil {
			return client.IgnoreNotFound(err)
		}
		if !policy.SetAside(&p, of, c.Clock.Now(), until) {
			return nil
		}
		return client.IgnoreNotFound(c.Client.Status().Update(ctx, &p))
	})
	if err != nil {
		l.Error(err, "cannot write that a policy is set aside", "defensepolicy", of.Namespace+"/"+of.Name)
	}
}

// PoliciesOf lists the policies that select a workload, as namespace/name@generation.
func (v View) PoliciesOf(ctx context.Context, w *workload.Workload) ([]string, error) {
	policies, of, err := v.PoliciesFor(ctx, w)
	if err != nil {
		return nil, err
	}
	return policy.Select(policies, v.Operator, of).Policies, nil
}

// PoliciesFor lists the policies that may select a workload, and the labels they select by.
func (v View) PoliciesFor(ctx context.Context, w *workload.Workload) (policies []v1alpha1.DefensePolicy, of policy.Workload, err error) {
	of = policy.Workload{Namespace: w.Namespace, Labels: w.Labels}
	if policies, err = v.Policies(ctx, w.Namespace); err != nil {
		return nil, of, err
	}
	// The labels are read even without a policy: the API server may have one that the cache lacks.
	ns, err := v.Namespace(ctx, w.Namespace)
	if err != nil || ns.Meta == nil {
		return nil, of, err
	}
	of.NamespaceLabels = ns.Meta.Labels
	return policies, of, nil
}

// Batches lists all ChangePods of a release, of all attempts.
func (v View) Batches(ctx context.Context, change *v1alpha1.ChangeWorkload) ([]v1alpha1.ChangePod, error) {
	var batches v1alpha1.ChangePodList
	if err := v.Cached.List(ctx, &batches, client.InNamespace(change.Namespace),
		client.MatchingFields{workload.IndexByOwner: string(change.UID)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list changepods of %s: %w", change.Name, err)
	}
	return batches.Items, nil
}

// oldRevision reads the newest version that succeeded before the current one; nil when it
// is gone. Of a declared kind, only the history has it.
func (v View) oldRevision(ctx context.Context, kind workload.Kind, w *workload.Workload) (*workload.OldRevision, error) {
	revisions, err := kind.Revisions(ctx, v.Cached, w)
	if err != nil {
		return nil, err
	}
	history, err := v.History(ctx, w.Namespace, w.UID)
	if err != nil {
		return nil, err
	}
	if w.Rollbacks != "" {
		r := rollback.NewestRevision(w.Content.Restorable(history), w.Version, rollback.Quarantine{})
		if r == nil {
			return nil, nil
		}
		return &workload.OldRevision{Name: r.Name, UID: r.UID, Version: r.Version}, nil
	}
	for i := range revisions {
		r := &revisions[i]
		if r.Version != w.Version && slices.ContainsFunc(history, func(h workload.Revision) bool { return h.Version == r.Version }) {
			return r, nil
		}
	}
	return nil, nil
}

// OldVersion reads the newest version that succeeded before the current one; empty when it is gone.
func (v View) OldVersion(ctx context.Context, w *workload.Workload) (string, error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return "", err
	}
	r, err := v.oldRevision(ctx, kind, w)
	if err != nil || r == nil {
		return "", err
	}
	return r.Version, nil
}

// OldPods reads the pods of the newest version that succeeded before the current one.
func (v View) OldPods(ctx context.Context, w *workload.Workload) ([]workload.Pod, error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return nil, err
	}
	r, err := v.oldRevision(ctx, kind, w)
	if err != nil || r == nil || r.Revision == "" { // the version of older pods of a declared kind is not known
		return nil, err
	}
	at := *w
	at.Revision = r.Revision
	pods, err := kind.Pods(ctx, v.Cached, &at)
	if err != nil {
		return nil, fmt.Errorf("before its release: %w", err)
	}
	return pods, nil
}

// OldTemplate reads the pod template of the newest version that succeeded before the current
// one, and the version; nil when it is gone.
func (v View) OldTemplate(ctx context.Context, w *workload.Workload) (template map[string]any, version string, err error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return nil, "", err
	}
	r, err := v.oldRevision(ctx, kind, w)
	if err != nil || r == nil {
		return nil, "", err
	}
	return kind.RevisionTemplate(ctx, v.Live, w.Namespace, r)
}

// StoredPod reads a pod from the API server, without its managed fields; nil when it is
// gone, terminating or ended, or another pod has its name.
func (v View) StoredPod(ctx context.Context, namespace, name string, uid types.UID) (map[string]any, error) {
	pod := &unstructured.Unstructured{}
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if err := v.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, pod); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	if pod.GetUID() != uid || pod.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	switch phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase"); corev1.PodPhase(phase) {
	case corev1.PodSucceeded, corev1.PodFailed:
		return nil, nil
	default:
		pod.SetManagedFields(nil)
		return pod.Object, nil
	}
}
