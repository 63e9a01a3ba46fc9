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

package bench

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/test/world"
)

// BenchmarkDefaultPolicy releases 50 Deployments of 10 pods at once, by turns with and without the default policy, on one control
// plane. Each turn logs its figures; the metrics are means. Other load on the machine changes the times, not the writes.
func BenchmarkDefaultPolicy(b *testing.B) {
	const turns, pods = 2, deployments * podsEach
	t := newBed(b, false)
	for b.Loop() {
		took, wrote := map[v1alpha1.PolicyMode]float64{}, map[v1alpha1.PolicyMode]float64{}
		for turn := range turns {
			modes := []v1alpha1.PolicyMode{v1alpha1.ModeEnforce, v1alpha1.ModeDisabled}
			if turn%2 == 1 {
				modes[0], modes[1] = modes[1], modes[0]
			}
			for _, mode := range modes {
				t.defaultPolicy(b, mode)
				ns := t.namespace(b, true)
				began := time.Now()
				t.release(b.Context(), b, ns, true, deployments, podsEach)
				seconds := time.Since(began).Seconds()
				accepted, refused, what := count(t.rested(b, ns))
				if checked := t.checked(b, ns); checked != (mode == v1alpha1.ModeEnforce) {
					b.Fatalf("%s: pods are checked: %t", mode, checked)
				}
				b.Logf("%s: %.1f s, %d writes, %d refused: %s", mode, seconds, accepted, refused, what)
				took[mode] += seconds / turns
				wrote[mode] += float64(accepted) / pods / turns
			}
		}
		b.ReportMetric(took[v1alpha1.ModeEnforce], "s-with")
		b.ReportMetric(took[v1alpha1.ModeDisabled], "s-without")
		b.ReportMetric(wrote[v1alpha1.ModeEnforce], "writes/pod-with")
		b.ReportMetric(wrote[v1alpha1.ModeDisabled], "writes/pod-without")
	}
}

// count counts accepted and refused writes. The number of refused writes depends on races.
func count(writes map[string]int) (accepted, refused int, what string) {
	for _, kind := range slices.Sorted(maps.Keys(writes)) {
		n := writes[kind]
		what += fmt.Sprintf("%d %s; ", n, kind)
		if code := kind[strings.LastIndexByte(kind, ' ')+1:]; code >= "400" && code <= "599" {
			refused += n
		} else {
			accepted += n
		}
	}
	return accepted, refused, what
}

// defaultPolicy sets the mode of the default policy, and waits until it is in force.
func (t *bed) defaultPolicy(b *testing.B, mode v1alpha1.PolicyMode) {
	b.Helper()
	p := &v1alpha1.DefensePolicy{}
	p.Namespace, p.Name = controlplane.ManagerNamespace, policy.DefaultName
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"mode":%q}}`, mode))
	must(b, wait.PollUntilContextTimeout(b.Context(), 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		// The manager may not have created the policy yet.
		if err := t.api.Patch(ctx, p, patch); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionAccepted)
		return c != nil && c.ObservedGeneration == p.Generation, nil
	}))
}

// rested waits until the manager has written nothing in a namespace for some seconds, and counts its writes there. It may still
// write in other namespaces: a release is proven minutes later.
func (t *bed) rested(b *testing.B, namespace string) (writes map[string]int) {
	b.Helper()
	const restsFor = 5 * time.Second
	since := time.Now()
	must(b, wait.PollUntilContextTimeout(b.Context(), time.Second, patience, true, func(context.Context) (bool, error) {
		if now := t.writesIn(b, namespace); !maps.Equal(now, writes) {
			writes, since = now, time.Now()
		}
		return time.Since(since) > restsFor, nil
	}))
	return writes
}

// checked reports whether batches in a namespace have checks of policies.
func (t *bed) checked(b *testing.B, namespace string) bool {
	b.Helper()
	var batches v1alpha1.ChangePodList
	must(b, t.api.List(b.Context(), &batches, client.InNamespace(namespace)))
	for i := range batches.Items {
		if len(batches.Items[i].Status.Checks) > 0 {
			return true
		}
	}
	return false
}

// TestRestsWithDefaultPolicy releases 500 workloads with the default policy, and checks that the operator then writes nothing for
// an hour, in which the checks end.
func TestRestsWithDefaultPolicy(t *testing.T) {
	const workloads = 500
	world.Reference(t, world.Story{Name: "500 workloads at rest", Options: world.Options{Forgets: true}, Run: func(w *world.World) {
		enrol(w, workloads)
		watched := 0
		for _, batch := range world.List[*v1alpha1.ChangePod](w, "ChangePod") {
			for i := range batch.Status.Checks {
				if batch.Status.Checks[i].Phase == v1alpha1.CheckWatching {
					watched++
				}
			}
		}
		if watched < workloads {
			t.Errorf("%d checks watch %d workloads", watched, workloads)
		}
		before := w.Written()
		w.For(time.Hour)
		if after := w.Written(); !maps.Equal(before, after) {
			t.Errorf("at rest it writes: %v, before %v", after, before)
		}
	}})
}
