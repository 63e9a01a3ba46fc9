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

package rollback

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Fate is what became of a version of a workload.
type Fate int

const (
	// FateUnknown means that nothing is known of it.
	FateUnknown Fate = iota
	// FateGood means that it is the one to run, or succeeded, or is in its user's hands.
	FateGood
	// FateBad means that it failed, was rolled back, or never succeeded.
	FateBad
)

// Leaving is why, and when, a workload left a version.
type Leaving struct {
	Fate Fate
	// At is when; zero while that is not known. Cause is one word for a message.
	At    time.Time
	Cause string
}

// Causes of a Leaving that no quarantine tells.
const (
	causeFailed         = "Failed"
	causeRolledBack     = "RolledBack"
	causeNeverSucceeded = "NeverSucceeded"
	causeUnknown        = "Unknown"
)

// left says of each version of the workload why it was left: by a rollback, by a user who
// went back, or by a release over it. The quarantine says so before the records do, which
// may be gone.
func (in *EvictionInput) left() func(version string) Leaving {
	q := ParseQuarantine(in.Workload.Annotations, time.Time{}) // with what is over
	return func(version string) Leaving {
		if version == in.Workload.Version {
			return Leaving{Fate: FateGood}
		}
		if l, ok := in.leftByQuarantine(q, version); ok {
			return l
		}
		return in.leftByRecord(version)
	}
}

// leftByQuarantine is what the quarantine says of a version, before the release that the
// workload is at. One that was released again after it is judged by its record.
func (in *EvictionInput) leftByQuarantine(q Quarantine, version string) (Leaving, bool) {
	r, held := q.Reason(version)
	switch r.Cause {
	case v1alpha1.ReasonNeverStarted, v1alpha1.ReasonVerificationFailed, v1alpha1.ReasonRollbackRequested:
	default: // somebody else's writing
		return Leaving{}, false
	}
	at, err := time.Parse(time.RFC3339, r.Time)
	if !held || err != nil || r.Release >= in.Workload.Release() || in.Past.releasedAfter(version, r.Release) {
		return Leaving{}, false
	}
	return Leaving{Fate: FateBad, At: at, Cause: r.Cause}, true
}

// releasedAfter says that a version was released again after the release of a number.
func (p *Past) releasedAfter(version string, number int64) bool {
	return slices.ContainsFunc(p.History, func(r workload.Revision) bool { return r.Version == version && r.Release > number }) ||
		slices.ContainsFunc(p.Changes, func(c v1alpha1.ChangeWorkload) bool { return c.Spec.Reversion == version && c.Spec.Release > number })
}

// leftByRecord is what the record of its last release says of a version, and the history
// of successes. It was left when the release began that the workload is at. In one cache,
// the record of that release is not seen before a Success that came earlier.
func (in *EvictionInput) leftByRecord(version string) Leaving {
	last, begun := (*v1alpha1.ChangeWorkload)(nil), time.Time{}
	for i := range in.Past.Changes {
		c := &in.Past.Changes[i]
		switch s := &c.Status; {
		case c.Spec.Reversion == in.Workload.Version:
			if c.Spec.Release == in.Workload.Release() && s.ObservedRelease == c.Spec.Release && s.StartTimeUnix > 0 {
				begun = time.Unix(s.StartTimeUnix, 0)
			}
		case c.Spec.Reversion == version && c.Spec.Release < in.Workload.Release():
			last = c
		}
	}
	succeeded := Remembered(in.Past.History, version)
	bad := func(cause string) Leaving { return Leaving{Fate: FateBad, At: begun, Cause: cause} }
	switch {
	case last == nil && succeeded:
		return Leaving{Fate: FateGood}
	case last == nil:
		return Leaving{Fate: FateUnknown, At: begun, Cause: causeUnknown}
	case last.Status.Status == v1alpha1.ChangeWorkloadSuspend:
		return bad(causeFailed)
	case last.Status.Status == v1alpha1.ChangeWorkloadRollback:
		return bad(causeRolledBack)
	case meta.IsStatusConditionFalse(last.Status.Conditions, v1alpha1.ConditionProven):
		return bad(causeFailed) // soon after its Success
	case last.Status.Status == v1alpha1.ChangeWorkloadSuccess || succeeded:
		return Leaving{Fate: FateGood}
	default:
		return bad(causeNeverSucceeded)
	}
}

// EvictionInput is what a decision about pods that are stuck is made from.
type EvictionInput struct {
	Now time.Time
	// After is how long a pod has to have been stuck.
	After    time.Duration
	Settings settings.Settings
	Workload *workload.Workload
	// Enrolled says that the namespace is enrolled.
	Enrolled bool
	Places   workload.Places
	// Past may be behind.
	Past Past
	// Live says that workload and pods were read from the API server, not from caches
	// that may be behind.
	Live bool

	// fates says of each version why it was left.
	fates func(version string) Leaving
}
