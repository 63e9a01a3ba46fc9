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
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// Brake is the memory of the rollbacks that nobody asked for, of all workloads of
// the cluster, the oldest first.
type Brake struct{ taken []BrakeEntry }

// BrakeEntry is the last rollback of one workload that the brake let through.
type BrakeEntry struct {
	// Time is when, in Unix seconds.
	Time int64 `json:"time"`
	// UID is the workload's, and Release the number of the release that is left.
	UID     types.UID `json:"uid"`
	Release int64     `json:"release"`
	// Namespace of the workload. Entries of older builds have none.
	Namespace string `json:"namespace,omitempty"`
}

const (
	// brakeBackOff is how much longer than usual a release gets that the brake
	// held back: the longest time a kubelet waits before it tries again.
	brakeBackOff = maxBackOff
	// maxBrakeEntries bounds what is remembered. A setting above it counts as this number.
	maxBrakeEntries = 500
)

// ParseBrake reads what BrakeAnnotation holds. What cannot be read is nothing.
func ParseBrake(value string) Brake {
	var b Brake
	if json.Unmarshal([]byte(value), &b.taken) != nil {
		return Brake{}
	}
	slices.SortStableFunc(b.taken, func(x, y BrakeEntry) int { return int(x.Time - y.Time) })
	return b
}

// String is what BrakeAnnotation holds.
func (b Brake) String() string {
	data, err := json.Marshal(b.taken)
	if err != nil {
		return "[]"
	}
	return string(data)
}

// Take makes room for a rollback of a workload. ok is false where there is none, else
// changed says whether it was not counted yet. The last rollback of a workload replaces
// its earlier ones: each needs a new release of its user, and all of them count as one.
func (b Brake) Take(s settings.Settings, now time.Time, w *Workload) (after Brake, changed, ok bool) {
	entry := BrakeEntry{Time: now.Unix(), UID: w.UID, Release: w.Release(), Namespace: w.Namespace}
	if slices.ContainsFunc(b.taken, func(e BrakeEntry) bool { return e.UID == entry.UID && e.Release == entry.Release }) {
		return b, false, true
	}
	if _, full := b.full(s, now, w); full != "" {
		return b, false, false
	}
	// An entry that is over still says since when there is room, which matters to a
	// release that waited for it.
	over := now.Add(-s.BrakeWindow - s.RollbackAfter - brakeBackOff).Unix()
	taken := slices.DeleteFunc(slices.Clone(b.taken), func(e BrakeEntry) bool { return e.UID == entry.UID || e.Time < over })
	taken = append(taken, entry)
	return Brake{taken: taken[max(0, len(taken)-maxBrakeEntries):]}, true, true
}

// full says why there is no room for a rollback of a workload; empty where there is room.
// from is since when, or from when on, there is room. All workloads of one namespace get half of
// it, rounded up, so that one namespace does not use up what the others need.
func (b Brake) full(s settings.Settings, now time.Time, w *Workload) (from time.Time, why string) {
	used := func(e BrakeEntry) bool { return e.UID == w.UID && time.Unix(e.Time, 0).Add(s.BrakeWindow).After(now) }
	if !s.Brake || slices.ContainsFunc(b.taken, used) {
		return time.Time{}, ""
	}
	limit := min(s.BrakeCount, maxBrakeEntries)
	share := (limit + 1) / 2
	inNamespace := slices.DeleteFunc(slices.Clone(b.taken), func(e BrakeEntry) bool { return e.Namespace != w.Namespace })
	of, ofNamespace := roomFrom(b.taken, limit, s.BrakeWindow), roomFrom(inNamespace, share, s.BrakeWindow)
	switch {
	case of.After(now):
		why = fmt.Sprintf("%d rollbacks that nobody asked for were made in the last %s, and more are not allowed", limit, s.BrakeWindow)
	case ofNamespace.After(now):
		why = fmt.Sprintf("%d workloads of the namespace were rolled back by the operator in the last %s, and one namespace takes at most half of %d",
			share, s.BrakeWindow, limit)
	}
	return latest(of, ofNamespace), why
}

// roomFrom is the time from which fewer than limit entries are within the window: once the
// last but so many is old enough. Zero where there are fewer anyway.
func roomFrom(taken []BrakeEntry, limit int, window time.Duration) time.Time {
	if len(taken) < limit {
		return time.Time{}
	}
	return time.Unix(taken[len(taken)-limit].Time, 0).Add(window)
}

// braked says why a rollback that nobody asked for has to wait, if it has, and
// for how long. A release that the brake held back once gets some time of its own
// when there is room again: what ended the outage may be over.
func braked(
	status *v1alpha1.ChangeWorkloadStatus, w *Workload, b Brake, s settings.Settings, now time.Time,
) (why string, left time.Duration) {
	from, full := b.full(s, now, w)
	if full != "" {
		return fmt.Sprintf("%s; there is room from %s on", full, from.UTC().Format(time.RFC3339)), from.Sub(now)
	}
	held := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionRolledBack)
	if held == nil || held.Reason != v1alpha1.ReasonBrake {
		return "", 0
	}
	until := latest(from, held.LastTransitionTime.Time).Add(s.RollbackAfter + brakeBackOff)
	if left = until.Sub(now); left > 0 {
		return "too many releases failed at once; there is room for a rollback again, and the release has until " +
			until.UTC().Format(time.RFC3339) + " to come up", left
	}
	return "", 0
}
