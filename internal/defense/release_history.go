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

package defense

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// decideHistory says what of a workload's history changes when this release has
// succeeded and at least one of its pods passed: it becomes the newest one, and
// the oldest go.
func (d *release) decideHistory() {
	keep := d.Settings.History
	others := slices.DeleteFunc(slices.Clone(d.History), func(r Revision) bool { return r.Version == d.Change.Spec.Reversion })
	if keep > 0 {
		keep--
		d.plan.Remember = !meta.IsStatusConditionFalse(d.status.Conditions, v1alpha1.ConditionProven) && !slices.ContainsFunc(d.History, func(r Revision) bool {
			return r.Version == d.Change.Spec.Reversion && r.Release >= d.Change.Spec.Release
		})
	} else {
		others = slices.Clone(d.History)
	}
	slices.SortFunc(others, func(a, b Revision) int {
		return cmp.Or(cmp.Compare(b.Release, a.Release), cmp.Compare(a.Name, b.Name))
	})
	if len(others) > keep {
		d.plan.Forget = append(d.plan.Forget, others[keep:]...)
	}
}

// leaveHistory takes a version out of the history that failed after it had
// succeeded.
func (d *release) leaveHistory() {
	for _, r := range d.History {
		if r.Version == d.Change.Spec.Reversion {
			d.plan.Forget = append(d.plan.Forget, r)
		}
	}
}

// recordProof lets the history say what the condition Proven says.
func (d *release) recordProof() {
	if !meta.IsStatusConditionTrue(d.status.Conditions, v1alpha1.ConditionProven) {
		return
	}
	for i := range d.History {
		if r := &d.History[i]; r.Version == d.Change.Spec.Reversion && r.Unproven {
			d.plan.Prove = r
		}
	}
}

// rememberLeft remembers the version of a release that succeeded and was replaced
// before that was done: the process died in between, or the next release came in
// the same moment. A newer version in the history says that it was not, or that it
// was forgotten since.
func (d *release) rememberLeft() {
	newer := func(r Revision) bool {
		return r.Version == d.Change.Spec.Reversion || r.Release > d.Change.Spec.Release
	}
	succeeded := func(c v1alpha1.ChangeWorkload) bool {
		return c.Spec.Release > d.Change.Spec.Release && c.Status.Status == v1alpha1.ChangeWorkloadSuccess
	}
	if d.status.Status != v1alpha1.ChangeWorkloadSuccess || d.status.PassCount == 0 || d.Settings.History == 0 ||
		meta.IsStatusConditionFalse(d.status.Conditions, v1alpha1.ConditionProven) ||
		slices.ContainsFunc(d.History, newer) || slices.ContainsFunc(d.Others, succeeded) {
		return
	}
	d.plan.Remember = true
}
