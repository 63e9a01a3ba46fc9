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

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// InForceIn returns the settings in force in a namespace, without those of a workload.
func (v View) InForceIn(ctx context.Context, namespace string) (settings.InForce, error) {
	return v.InForceRequested(ctx, namespace, nil)
}

// InForceRequested returns the settings in force for the annotations of a request to a
// webhook, without the effects of the workload's owner and of policies: a decision about a
// workload takes [View.InForceOf].
func (v View) InForceRequested(ctx context.Context, namespace string, annotations map[string]string) (settings.InForce, error) {
	operator, err := v.Settings(ctx, v.Operator)
	if err != nil {
		return settings.InForce{}, err
	}
	own, err := v.Settings(ctx, namespace)
	if err != nil {
		return settings.InForce{}, err
	}
	return settings.For(operator, own, annotations), nil
}

// InForceOf returns the settings in force for a workload and its release, with the effects
// of the workload's owner and of the policies that existed when the release began (on the
// server and on holds). Without a release all policies count. Every decision about a
// workload takes its settings from here.
func (v View) InForceOf(ctx context.Context, w *workload.Workload, change *v1alpha1.ChangeWorkload) (settings.InForce, error) {
	inForce, err := v.InForceRequested(ctx, w.Namespace, w.Annotations)
	if err != nil {
		return inForce, err
	}
	inForce.ObserveOwned(w.ObservingOwner())
	policies, of, err := v.PoliciesFor(ctx, w)
	adds := func(p v1alpha1.DefensePolicy) bool { return policy.NamesServer(&p) || policy.MayHold(&p) }
	if err != nil || !slices.ContainsFunc(policies, adds) {
		return inForce, err
	}
	if change != nil && change.Status.Attempt > 0 && change.Status.ObservedRelease == change.Spec.Release {
		of.Began = time.Unix(change.Status.StartTimeUnix, 0)
	}
	selected := policy.Select(policies, v.Operator, of)
	inForce.ServerSilenceBy = selected.ServerSilenceBy
	inForce.AlsoHold(selected.Hold, selected.HoldAtMost)
	return inForce, nil
}

// InForceAtAdmission returns the settings in force for a request to release a workload with
// these labels and annotations, with the holds of policies. It reads caches only. It fails if
// they lack the labels that policies select by.
func (v View) InForceAtAdmission(ctx context.Context, namespace string, labels, annotations map[string]string) (settings.InForce, error) {
	inForce, err := v.InForceRequested(ctx, namespace, annotations)
	if err != nil {
		return settings.InForce{}, err
	}
	policies, err := v.Policies(ctx, namespace)
	if err != nil {
		return settings.InForce{}, err
	}
	if !slices.ContainsFunc(policies, func(p v1alpha1.DefensePolicy) bool { return policy.MayHold(&p) }) {
		return inForce, nil
	}
	ns, err := v.Namespace(ctx, namespace)
	if err != nil {
		return settings.InForce{}, err
	}
	if ns.Meta == nil {
		return settings.InForce{}, fmt.Errorf("nothing is known of the namespace %s yet", namespace)
	}
	inForce.AlsoHold(policy.HoldAtAdmission(policies, v.Operator,
		policy.Workload{Namespace: namespace, NamespaceLabels: ns.Meta.Labels, Labels: labels}))
	return inForce, nil
}

// Settings lists the settings of a namespace.
func (v View) Settings(ctx context.Context, namespace string) ([]v1alpha1.OpsConfigInfo, error) {
	var list v1alpha1.OpsConfigInfoList
	err := v.Cached.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list opsconfiginfoes of %s: %w", namespace, err)
	}
	return list.Items, nil
}
