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

package controllers

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// countTimeout bounds the counting for one scrape, which waits while the cache starts.
const countTimeout = 2 * time.Second

// countContext bounds the time of one scrape. It ignores the end of ctx, because tests read the
// metrics of a manager that ended.
func countContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
}

// blockedWorkloads counts the workloads whose releases are blocked. The label of a block has no
// effect on a workload that opted out.
func blockedWorkloads(ctx context.Context, v cluster.View) (map[metrics.Of]int, error) {
	defended := func(o metav1.Object) bool { return !workload.OptedOut(o.GetLabels()) }
	return countWorkloads(ctx, v, defended, client.HasLabels{v1alpha1.SuspendLabel})
}

// heldWorkloads counts the workloads whose fields a hold changed and has not given back.
func heldWorkloads(ctx context.Context, v cluster.View) (map[metrics.Of]int, error) {
	return countWorkloads(ctx, v, func(o metav1.Object) bool { return o.GetAnnotations()[v1alpha1.HeldAnnotation] != "" })
}

// countWorkloads counts, by kind and namespace, the workloads in the cache that opts select and
// counts accepts. Each kind has a number in each enrolled namespace; other namespaces have none.
func countWorkloads(
	ctx context.Context, v cluster.View, counts func(metav1.Object) bool, opts ...client.ListOption,
) (map[metrics.Of]int, error) {
	ctx, cancel := countContext(ctx)
	defer cancel()
	enrolled, err := v.EnrolledNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	kinds := v.Kinds.Kinds()
	counted := make(map[metrics.Of]int, len(kinds)*len(enrolled))
	for _, kind := range kinds {
		of := metrics.Of{Kind: workload.LabelOf(kind.GroupVersionKind().GroupKind())}
		for _, of.Namespace = range enrolled {
			counted[of] = 0
		}
		list := kind.ObjectList()
		if err := v.Cached.List(ctx, list, append(opts, client.UnsafeDisableDeepCopy)...); err != nil {
			return nil, fmt.Errorf("list workloads to count: %w", err)
		}
		err := meta.EachListItem(list, func(item runtime.Object) error {
			o, err := meta.Accessor(item)
			if err != nil {
				return err
			}
			of.Namespace = o.GetNamespace()
			if n, ok := counted[of]; ok && counts(o) {
				counted[of] = n + 1
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("count workloads: %w", err)
		}
	}
	return counted, nil
}

// countChangeKinds counts the ChangeKinds by each of their conditions. A condition of an earlier declaration is Unknown.
func countChangeKinds(ctx context.Context, v cluster.View) (map[metrics.Condition]int, error) {
	ctx, cancel := countContext(ctx)
	defer cancel()
	var list v1alpha1.ChangeKindList
	if err := v.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list changekinds: %w", err)
	}
	counted := map[metrics.Condition]int{}
	for _, name := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionServed, v1alpha1.ConditionAuthorized,
		v1alpha1.ConditionIntercepted, v1alpha1.ConditionReady} {
		for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
			counted[metrics.Condition{Type: name, Status: string(status)}] = 0
		}
		for i := range list.Items {
			status := metav1.ConditionUnknown
			said := meta.FindStatusCondition(list.Items[i].Status.Conditions, name)
			if said != nil && said.ObservedGeneration >= list.Items[i].Generation {
				status = said.Status
			}
			counted[metrics.Condition{Type: name, Status: string(status)}]++
		}
	}
	return counted, nil
}

// checksOfPolicies returns the names of the checks of each policy, of its spec and of its spec in force.
func checksOfPolicies(ctx context.Context, v cluster.View) (map[string][]string, error) {
	ctx, cancel := countContext(ctx)
	defer cancel()
	var list v1alpha1.DefensePolicyList
	if err := v.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list defensepolicies: %w", err)
	}
	checks := map[string][]string{}
	for i := range list.Items {
		p := &list.Items[i]
		names := []string{}
		for _, spec := range []*v1alpha1.DefensePolicySpec{&p.Spec, p.Status.InForce} {
			for i := 0; spec != nil && i < len(spec.Checks); i++ {
				names = append(names, spec.Checks[i].Name)
			}
		}
		checks[p.Namespace+"/"+p.Name] = names
	}
	return checks, nil
}
