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

	"k8s.io/apimachinery/pkg/types"
)

// Revision is a successful version of a workload whose template is remembered.
type Revision struct {
	Name    string
	UID     types.UID
	Version string
	// Release is the number of the release that last succeeded with it.
	Release int64
}

// decideHistory says what of a workload's history changes when this release has
// succeeded and at least one of its pods passed: it becomes the newest one, and
// the oldest go.
func (d *release) decideHistory() {
	keep := d.Settings.History
	others := slices.DeleteFunc(slices.Clone(d.History), func(r Revision) bool { return r.Version == d.Change.Spec.Reversion })
	if keep > 0 {
		keep--
		d.plan.Remember = !slices.ContainsFunc(d.History, func(r Revision) bool {
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

// NewestSuccess is the version a workload with these annotations, and at this
// version, would be rolled back to; empty when there is none.
func NewestSuccess(history []Revision, current string, annotations map[string]string) string {
	if r := newestSuccess(history, current, ParseQuarantine(annotations)); r != nil {
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
