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
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Revision is a successful version of a workload whose template is remembered.
type Revision struct {
	Name    string
	UID     types.UID
	Version string
	// Release is the number of the release that last succeeded with it.
	Release int64
	// Unproven: it succeeded, and has not run well for long enough since.
	Unproven bool
}

// BaselineRelease is the number of the release, in the history, that a workload
// was at before its first defended one.
const BaselineRelease int64 = 0

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

// leaveHistory takes a version out of the history that failed after it had
// succeeded.
func (d *release) leaveHistory() {
	for _, r := range d.History {
		if r.Version == d.Change.Spec.Reversion {
			d.plan.Forget = append(d.plan.Forget, r)
		}
	}
}

// NewestSuccess is the version a workload with these annotations, and at this
// version, would be rolled back to; empty when there is none.
func NewestSuccess(history []Revision, current string, annotations map[string]string, now time.Time) string {
	if r := newestSuccess(history, current, ParseQuarantine(annotations, now)); r != nil {
		return r.Version
	}
	return ""
}

// newestSuccess is the newest version in a history that is neither current nor
// in quarantine, of equals the last; nil when there is none.
func newestSuccess(history []Revision, current string, q Quarantine) *Revision {
	var newest *Revision
	for i := range history {
		r := &history[i]
		if r.Version != current && !q.Holds(r.Version) && (newest == nil || r.Release >= newest.Release) {
			newest = r
		}
	}
	return newest
}

// provenSuccess is where a rollback goes that nobody asked for: the newest
// version that is proven, of those that are not known to be bad; an unproven one
// only when there is no other.
func provenSuccess(history []Revision, current string, q Quarantine, changes []v1alpha1.ChangeWorkload) *Revision {
	var proven, unproven []Revision
	for _, r := range history {
		switch {
		case knownBad(r.Version, changes):
		case r.Unproven:
			unproven = append(unproven, r)
		default:
			proven = append(proven, r)
		}
	}
	if r := newestSuccess(proven, current, q); r != nil {
		return r
	}
	return newestSuccess(unproven, current, q)
}
