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

// BrakeEntry is one rollback that the brake let through.
type BrakeEntry struct {
	// Time is when, in Unix seconds.
	Time int64 `json:"time"`
	// UID is the workload's, and Release the number of the release that is left:
	// who asks again for the same, after a crash, takes no more room.
	UID     types.UID `json:"uid"`
	Release int64     `json:"release"`
}

const (
	// brakeBackOff is how much longer than usual a release gets that the brake
	// held back: the longest time a kubelet waits before it tries again.
	brakeBackOff = maxBackOff
	// maxBrakeEntries bounds what is remembered: as many rollbacks as the setting
	// may allow.
	maxBrakeEntries = 1000
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

// Take makes room for a rollback. ok is false where there is none, else changed
// says whether it was not counted yet.
func (b Brake) Take(s settings.Settings, now time.Time, uid types.UID, release int64) (after Brake, changed, ok bool) {
	if slices.ContainsFunc(b.taken, func(e BrakeEntry) bool { return e.UID == uid && e.Release == release }) {
		return b, false, true
	}
	if _, room := b.room(s, now); !room {
		return b, false, false
	}
	taken := append(slices.Clone(b.taken), BrakeEntry{Time: now.Unix(), UID: uid, Release: release})
	return Brake{taken: taken[max(0, len(taken)-maxBrakeEntries):]}, true, true
}

// room says whether there is room for another rollback, and since when there is
// or from when on there will be.
func (b Brake) room(s settings.Settings, now time.Time) (from time.Time, ok bool) {
	if !s.Brake || len(b.taken) < s.BrakeCount {
		return time.Time{}, true
	}
	// Room is there once the last but so many is old enough.
	from = time.Unix(b.taken[len(b.taken)-s.BrakeCount].Time, 0).Add(s.BrakeWindow)
	return from, !from.After(now)
}

// braked says why a rollback that nobody asked for has to wait, if it has, and
// for how long. A release that the brake held back once gets some time of its own
// when there is room again: what ended the outage may be over.
func braked(status *v1alpha1.ChangeWorkloadStatus, b Brake, s settings.Settings, now time.Time) (why string, left time.Duration) {
	from, room := b.room(s, now)
	if !room {
		return fmt.Sprintf("%d rollbacks that nobody asked for were made in the last %s, and more are not allowed; there is room from %s on",
			s.BrakeCount, s.BrakeWindow, from.UTC().Format(time.RFC3339)), from.Sub(now)
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
