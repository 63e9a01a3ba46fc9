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

package policy

import (
	"cmp"
	"slices"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/freeze"
)

// Freeze is a window of a freeze that counts for a workload.
type Freeze struct {
	// Name is namespace/policy/freeze.
	Name   string
	Action v1alpha1.FreezeAction
	// Observed: the policy only observes.
	Observed   bool
	Start, End time.Time
}

// freezesOf returns the windows in the status of a policy, which are those of its accepted freezes.
func freezesOf(p *v1alpha1.DefensePolicy, spec *v1alpha1.DefensePolicySpec) (all []Freeze) {
	for _, w := range p.Status.FreezeWindows {
		all = append(all, Freeze{Name: p.Namespace + "/" + p.Name + "/" + w.Name, Action: w.Action,
			Observed: spec.Mode == v1alpha1.ModeObserve, Start: w.Start.Time, End: w.End.Time})
	}
	return all
}

// FrozenAt returns the strictest freeze of sorted policies at a time, for a workload with one of these
// sets of labels; nil for none. Its end is the end of all freezes as strict as it that follow one another.
// A user waits, so only accepted specs count.
func FrozenAt(policies []v1alpha1.DefensePolicy, operator string, now time.Time, workloads ...Workload) (strictest *Freeze) {
	var all []Freeze
	for _, w := range workloads {
		all = append(all, choose(policies, operator, w, true).Freezes...)
	}
	for i := range all {
		f := &all[i]
		if !f.Start.After(now) && f.End.After(now) && (strictest == nil || f.rank() > strictest.rank()) {
			strictest = f
		}
	}
	if strictest == nil {
		return nil
	}
	found := *strictest
	slices.SortFunc(all, func(a, b Freeze) int { return cmp.Or(a.Start.Compare(b.Start), a.End.Compare(b.End)) })
	for i := range all {
		if f := &all[i]; f.rank() == found.rank() && !f.Start.After(found.End) && f.End.After(found.End) {
			found.End = f.End
		}
	}
	return &found
}

// rank orders freezes by their effect.
func (f *Freeze) rank() int {
	switch {
	case f.Action != v1alpha1.FreezeDenies:
		return 0
	case f.Observed:
		return 1
	default:
		return 2
	}
}

// Denies reports whether the freeze denies releases, unless the workload is in observe mode.
func (f *Freeze) Denies() bool { return f.rank() == 2 }

// RenewWindows computes the windows of the freezes in force, if the policy changed from generation was, or
// a window ended. It returns the time until the next window ends; 0 for never.
func RenewWindows(s *v1alpha1.DefensePolicyStatus, was int64, now time.Time) time.Duration {
	ends := freeze.Ends(s.FreezeWindows)
	if was != s.InForceGeneration || !ends.IsZero() && !ends.After(now) {
		s.FreezeWindows = nil
		if s.InForce != nil {
			s.FreezeWindows = freeze.Windows(s.InForce.Freezes, now)
		}
		ends = freeze.Ends(s.FreezeWindows)
	}
	if ends.IsZero() {
		return 0
	}
	return ends.Sub(now)
}
