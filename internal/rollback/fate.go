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

// Fate is the outcome of a version of a workload.
type Fate int

const (
	// FateUnknown is a version without a record and without a history.
	FateUnknown Fate = iota
	// FateGood is a version that is current, or that succeeded.
	FateGood
	// FateBad is a version that failed, was rolled back, or never succeeded.
	FateBad
)

// Leaving is why, and when, a workload abandoned a version.
type Leaving struct {
	Fate Fate
	// At is when; zero if it is not known. Cause is one word for a message.
	At    time.Time
	Cause string
}

// Causes of a Leaving that are not from a quarantine.
const (
	causeFailed         = "Failed"
	causeRolledBack     = "RolledBack"
	causeNeverSucceeded = "NeverSucceeded"
	causeUnknown        = "Unknown"
)

// left returns why the workload abandoned each version: by a rollback, an undo, or a later release.
// The quarantine comes before the records, which may be deleted.
func (in *EvictionInput) left() func(version string) Leaving {
	q := ParseQuarantine(in.Workload.Annotations, time.Time{}) // with quarantines that are over
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

// leftByQuarantine returns why a version is in quarantine because of a release before the current
// one. A version that was released again later is judged by its record.
func (in *EvictionInput) leftByQuarantine(q Quarantine, version string) (Leaving, bool) {
	r, held := q.Reason(version)
	switch r.Cause {
	case v1alpha1.ReasonNeverStarted, v1alpha1.ReasonVerificationFailed, v1alpha1.ReasonRollbackRequested:
	default: // not written by the operator
		return Leaving{}, false
	}
	at, err := time.Parse(time.RFC3339, r.Time)
	if !held || err != nil || r.Release >= in.Workload.Release() || in.Past.releasedAfter(version, r.Release) {
		return Leaving{}, false
	}
	return Leaving{Fate: FateBad, At: at, Cause: r.Cause}, true
}

// releasedAfter reports whether a version was released again after the release with this number.
func (p *Past) releasedAfter(version string, number int64) bool {
	return slices.ContainsFunc(p.History, func(r workload.Revision) bool { return r.Version == version && r.Release > number }) ||
		slices.ContainsFunc(p.Changes, func(c v1alpha1.ChangeWorkload) bool { return c.Spec.Reversion == version && c.Spec.Release > number })
}

// leftByRecord returns the fate of a version by the record of its last release, and the history of
// successes. The version was abandoned when the current release began. A cache that has the record
// of the current release has an earlier Success, too.
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

// EvictionInput is the input of DecideEviction.
type EvictionInput struct {
	Now time.Time
	// After is how long a pod has to be stuck.
	After    time.Duration
	Settings settings.Settings
	Workload *workload.Workload
	// Enrolled: the namespace is enrolled.
	Enrolled bool
	Places   workload.Places
	// Past comes from a cache and may be behind.
	Past Past
	// Live: workload and pods were read from the API server, not from caches.
	Live bool

	// fates returns why a version was abandoned.
	fates func(version string) Leaving
}
