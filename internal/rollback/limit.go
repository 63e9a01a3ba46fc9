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
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// limitEntry is the last rollback of a workload that the rollback limit allowed.
type limitEntry struct {
	// Time is when, in Unix seconds.
	Time int64 `json:"time"`
	// UID is the UID of the workload, and Release the number of the release that was rolled back.
	UID     types.UID `json:"uid"`
	Release int64     `json:"release"`
	// Namespace is the namespace of the workload; empty in entries of older builds.
	Namespace string `json:"namespace,omitempty"`
}

const (
	// limitBackOff is the extra time of a release that the rollback limit delayed: the longest time
	// that a kubelet waits before it retries.
	limitBackOff = workload.MaxBackOff
	// maxLimitEntries bounds the entries. A larger setting counts as this number.
	maxLimitEntries = 500
)

// ParseLimit reads the value of LimitAnnotation; an invalid value is an empty Limit.
func ParseLimit(value string) Limit {
	var b Limit
	if json.Unmarshal([]byte(value), &b.taken) != nil {
		return Limit{}
	}
	slices.SortStableFunc(b.taken, func(x, y limitEntry) int { return int(x.Time - y.Time) })
	return b
}

// String returns the value of LimitAnnotation.
func (b Limit) String() string {
	data, err := json.Marshal(b.taken)
	if err != nil {
		return "[]"
	}
	return string(data)
}

// Take counts a rollback of a workload. ok is false if the limit does not allow it; otherwise
// changed reports whether it was not counted yet. The last rollback of a workload replaces its
// earlier ones: each needs a new release by a user, and together they count as one.
func (b Limit) Take(s settings.Settings, now time.Time, w *workload.Workload) (after Limit, changed, ok bool) {
	entry := limitEntry{Time: now.Unix(), UID: w.UID, Release: w.Release(), Namespace: w.Namespace}
	if slices.ContainsFunc(b.taken, func(e limitEntry) bool { return e.UID == entry.UID && e.Release == entry.Release }) {
		return b, false, true
	}
	if _, full := b.full(s, now, w); full != "" {
		return b, false, false
	}
	// An expired entry still tells since when there is room, which matters to a release that waited
	// for it.
	over := now.Add(-s.LimitWindow - s.RollbackAfter - limitBackOff).Unix()
	taken := slices.DeleteFunc(slices.Clone(b.taken), func(e limitEntry) bool { return e.UID == entry.UID || e.Time < over })
	taken = append(taken, entry)
	return Limit{taken: taken[max(0, len(taken)-maxLimitEntries):]}, true, true
}

// full returns why the limit does not allow a rollback of a workload; empty if it does. from is the
// time from which there is room. All workloads of a namespace get half of the limit, rounded up, so
// that one namespace does not use up the limit of the others.
func (b Limit) full(s settings.Settings, now time.Time, w *workload.Workload) (from time.Time, why string) {
	used := func(e limitEntry) bool { return e.UID == w.UID && time.Unix(e.Time, 0).Add(s.LimitWindow).After(now) }
	if !s.Limit || slices.ContainsFunc(b.taken, used) {
		return time.Time{}, ""
	}
	limit := min(s.LimitCount, maxLimitEntries)
	share := (limit + 1) / 2
	inNamespace := slices.DeleteFunc(slices.Clone(b.taken), func(e limitEntry) bool { return e.Namespace != w.Namespace })
	of, ofNamespace := roomFrom(b.taken, limit, s.LimitWindow), roomFrom(inNamespace, share, s.LimitWindow)
	switch {
	case of.After(now):
		why = fmt.Sprintf("%d rollbacks without a request were made in the last %s, and more are not allowed", limit, s.LimitWindow)
	case ofNamespace.After(now):
		why = fmt.Sprintf(
			"%d workloads of the namespace were rolled back by the operator in the last %s, and one namespace takes at most half of %d",
			share, s.LimitWindow, limit)
	}
	return times.Latest(of, ofNamespace), why
}

// roomFrom returns the time from which fewer than limit entries are within the window; zero if
// there are fewer anyway.
func roomFrom(taken []limitEntry, limit int, window time.Duration) time.Time {
	if len(taken) < limit {
		return time.Time{}
	}
	return time.Unix(taken[len(taken)-limit].Time, 0).Add(window)
}

// Limited returns why, and for how long, a rollback that no user requested has to wait; empty if it
// need not wait. A release that the rollback limit delayed gets some extra time when there is room
// again: the outage may have ended.
func Limited(
	status *v1alpha1.ChangeWorkloadStatus, w *workload.Workload, b Limit, s settings.Settings, now time.Time,
) (why string, left time.Duration) {
	from, full := b.full(s, now, w)
	if full != "" {
		return fmt.Sprintf("%s; there is room from %s on", full, from.UTC().Format(time.RFC3339)), from.Sub(now)
	}
	held := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionRolledBack)
	if held == nil || held.Reason != v1alpha1.ReasonRollbackLimit {
		return "", 0
	}
	until := times.Latest(from, held.LastTransitionTime.Time).Add(s.RollbackAfter + limitBackOff)
	if left = until.Sub(now); left > 0 {
		return "too many releases failed at once; there is room for a rollback again, and the release has until " +
			until.UTC().Format(time.RFC3339) + " to come up", left
	}
	return "", 0
}

// Limit has the rollbacks that no user requested, of all workloads of the cluster, the oldest
// first.
type Limit struct{ taken []limitEntry }
