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

package webhooks

import (
	"context"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	decide "github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	policies "github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// validateFreeze denies a release in a freeze, or warns. The workload before the request counts, too:
// other labels, or observe mode by an annotation of the same request, do not evade a freeze.
func (o *Options) validateFreeze(ctx context.Context, known *Policies, r *decide.Request, stored, changed *object) decide.Verdict {
	if !r.MayBeFrozen() {
		return decide.Verdict{Allowed: true}
	}
	of := policies.Workload{Namespace: r.Namespace, NamespaceLabels: known.Namespace.Meta.Labels, Labels: r.New.Labels}
	before := of
	before.Labels = r.Old.Labels
	f := policies.FrozenAt(known.Policies, known.Operator, r.Now, of, before)
	if f == nil {
		return decide.Verdict{Allowed: true}
	}
	o.readPast(ctx, r, stored)
	verdict := decide.ValidateFreeze(*r, decide.Freeze{
		Name: f.Name, Until: f.End, Denies: f.Denies(), Observed: f.Observed && f.Action == v1alpha1.FreezeDenies,
		RestartOnly: restartsOnly(stored, changed),
	})
	if verdict.Allowed {
		return verdict
	}
	by := ""
	if !f.Denies() {
		by = "the mode of the policy"
	} else {
		unchanged := *r
		unchanged.New.Annotations = r.Old.Annotations
		by = observedBy(ctx, o, &unchanged)
	}
	if by == "" {
		return verdict
	}
	if !f.Denies() { // otherwise the release counts it
		metrics.DryRun(workload.LabelOf(changed.kind.GroupVersionKind().GroupKind()), v1alpha1.DryRunDeny)
	}
	return verdict.AsWarning(by)
}

// restartsOnly reports whether a release only restarts the pods. A kind has to have no other content than its pod template.
func restartsOnly(stored, changed *object) bool {
	return len(changed.kind.ContentPaths()) == 1 && changed.template != nil && workload.RestartsOnly(stored.template, changed.template)
}
