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

package workload

import (
	"cmp"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Pace is what a hold changes of a workload: of one ByPartition that, and of another the
// two times.
type Pace struct {
	// MinReadySeconds a pod has to be Ready to be available.
	MinReadySeconds int32
	// ProgressDeadlineSeconds the rollout may stand still; the largest value means for
	// ever.
	ProgressDeadlineSeconds int32
	// Partition is how many pods, the first ones, stay at the version before.
	ByPartition bool
	Partition   int32
}

// MinReady is MinReadySeconds as a duration.
func (p Pace) MinReady() time.Duration { return time.Duration(p.MinReadySeconds) * time.Second }

// Deadline is ProgressDeadlineSeconds as a duration.
func (p Pace) Deadline() time.Duration {
	return time.Duration(p.ProgressDeadlineSeconds) * time.Second
}

// Paced is p with another MinReadySeconds, for at most so long: the deadline of the
// rollout is later than both. It has to be, and a hold is no lack of progress.
func (p Pace) Paced(minReady, atMost time.Duration) Pace {
	minReady = max(minReady.Truncate(time.Second), p.MinReady())
	q := Pace{MinReadySeconds: int32(min(minReady/time.Second, math.MaxInt32-1)), ProgressDeadlineSeconds: math.MaxInt32} //nolint:gosec // bounded
	if p.ProgressDeadlineSeconds < math.MaxInt32 {
		wait := int64(max(minReady, atMost)/time.Second) + int64(p.ProgressDeadlineSeconds)
		q.ProgressDeadlineSeconds = int32(min(wait, math.MaxInt32)) //nolint:gosec // bounded
	}
	return q
}

// Hold is what HeldAnnotation says.
type Hold struct {
	// Release is the number of the release that is held.
	Release int64
	// Until is what it waits for.
	Until v1alpha1.HoldUntil
	// Pace is the user's own, to be given back.
	Pace
	// Set is what the operator wants it to be now, and Was what it wanted before.
	Set Pace
	Was *Pace
	// OpenedAt is when pods were let become available last, those that were Ready since
	// OpenedTo or before; Unix time (seconds), 0 when none were.
	OpenedAt, OpenedTo int64
	// Replicas is for how many pods the partition was set last; 0 of another kind, and where
	// an older build set it.
	Replicas int32
	// Over: it ends, and admission takes this away with what it changed. What is left of
	// it was written while admission did not see it.
	Over bool
}

// holdText is how HeldAnnotation says it.
type holdText struct {
	Release int64              `json:"release"`
	Until   v1alpha1.HoldUntil `json:"until"`
	paceText
	Set      paceText  `json:"set"`
	Was      *paceText `json:"was,omitempty"`
	OpenedAt int64     `json:"openedAt,omitempty"`
	OpenedTo int64     `json:"openedTo,omitempty"`
	Replicas int32     `json:"replicas,omitempty"`
	Over     bool      `json:"over,omitempty"`
}

// paceText has what a workload is held by, and nothing else.
type paceText struct {
	MinReadySeconds         *int32 `json:"minReadySeconds,omitempty"`
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	Partition               *int32 `json:"partition,omitempty"`
}

func (p Pace) text() paceText {
	if p.ByPartition {
		return paceText{Partition: &p.Partition}
	}
	return paceText{MinReadySeconds: &p.MinReadySeconds, ProgressDeadlineSeconds: &p.ProgressDeadlineSeconds}
}

func (t *paceText) pace() Pace {
	if t.Partition != nil {
		return Pace{ByPartition: true, Partition: *t.Partition}
	}
	return Pace{MinReadySeconds: ptr.Deref(t.MinReadySeconds, 0), ProgressDeadlineSeconds: ptr.Deref(t.ProgressDeadlineSeconds, 0)}
}

// Ending is the hold as the write says that ends it.
func (h *Hold) Ending() *Hold {
	over := *h
	over.Over = true
	return &over
}

// ParseHold reads the value of HeldAnnotation; nil when it says nothing that can be
// used.
func ParseHold(value string) *Hold {
	var t holdText
	if value == "" || json.Unmarshal([]byte(value), &t) != nil || t.Release < 1 {
		return nil
	}
	h := &Hold{
		Release: t.Release, Until: t.Until, Pace: t.pace(), Set: t.Set.pace(),
		OpenedAt: t.OpenedAt, OpenedTo: t.OpenedTo, Replicas: t.Replicas, Over: t.Over,
	}
	if t.Was != nil {
		h.Was = ptr.To(t.Was.pace())
	}
	for _, p := range []Pace{h.Pace, h.Set, ptr.Deref(h.Was, h.Set)} {
		if !p.Valid() || p.ByPartition != h.ByPartition {
			return nil
		}
	}
	return h
}

// HoldOf is the hold that annotations tell of, of a workload with such a pace; nil when
// there is none.
func (p Pace) HoldOf(annotations map[string]string) *Hold {
	h := ParseHold(annotations[v1alpha1.HeldAnnotation])
	if h == nil || h.ByPartition != p.ByPartition {
		return nil
	}
	return h
}

// Valid says that the API server takes it.
func (p Pace) Valid() bool {
	if p.ByPartition {
		return p.Partition >= 0
	}
	return p.MinReadySeconds >= 0 && p.ProgressDeadlineSeconds > p.MinReadySeconds
}

// String is the value of HeldAnnotation.
func (h *Hold) String() string {
	t := holdText{
		Release: h.Release, Until: h.Until, paceText: h.text(), Set: h.Set.text(),
		OpenedAt: h.OpenedAt, OpenedTo: h.OpenedTo, Replicas: h.Replicas, Over: h.Over,
	}
	if h.Was != nil {
		t.Was = ptr.To(h.Was.text())
	}
	data, err := json.Marshal(t)
	if err != nil {
		return "" // numbers and strings only
	}
	return string(data)
}

// Own says that a value was written by the operator, or is the user's own: of each
// field apart.
func (h *Hold) Own(is Pace) bool {
	of := func(field func(Pace) int32) bool {
		v := field(is)
		return v == field(h.Set) || v == field(h.Pace) || h.Was != nil && v == field(*h.Was)
	}
	return of(minReadyOf) && of(deadlineOf) && of(partitionOf)
}

func minReadyOf(p Pace) int32 { return p.MinReadySeconds }

func deadlineOf(p Pace) int32 { return p.ProgressDeadlineSeconds }

func partitionOf(p Pace) int32 { return p.Partition }

// Kept is what is left of a pace that somebody changed when the hold ends: the user's
// own, but for what is neither that nor the operator's.
func (h *Hold) Kept(is Pace) Pace {
	given := h.Pace
	for _, f := range []struct {
		of  func(Pace) int32
		set *int32
	}{{minReadyOf, &given.MinReadySeconds}, {deadlineOf, &given.ProgressDeadlineSeconds}, {partitionOf, &given.Partition}} {
		if v := f.of(is); v != f.of(h.Set) && (h.Was == nil || v != f.of(*h.Was)) {
			*f.set = v
		}
	}
	return given
}

// Fitting is a pace that the API server takes: the deadline is later than minReadySeconds.
// Somebody may have set the one of them past a hold that had raised the other.
func (h *Hold) Fitting(p Pace) Pace {
	if !p.ByPartition && !p.Valid() {
		p.ProgressDeadlineSeconds = int32(min(int64(p.MinReadySeconds)+int64(h.ProgressDeadlineSeconds), math.MaxInt32)) //nolint:gosec // bounded
	}
	return p
}

// HeldPod is a pod of a rollout that is held.
type HeldPod struct {
	Created time.Time
	// ReadySince is zero while it is not Ready.
	ReadySince time.Time
	// Verified: all checks that it waits for have passed it. Flapped: it was not Ready
	// once since then.
	Verified, Flapped bool
	// Index is its place among the pods of a workload that numbers them, from 0.
	Index int32
}

// IsReady says that the pod is Ready.
func (p *HeldPod) IsReady() bool { return !p.ReadySince.IsZero() }

// Pacing is what admission looks at of a workload whose rollout can be held.
type Pacing struct {
	Pace
	// Rolling says that old pods run until new ones do.
	Rolling bool
	// Replicas is the number of pods the workload asks for.
	Replicas int32
	// Bare is as in Stopping.
	Bare bool
}

// Users is a pace as the user wants it, by what the annotations of the workload say of a
// hold.
func (p Pace) Users(annotations map[string]string) Pace {
	if h := p.HoldOf(annotations); h != nil {
		return h.Kept(p)
	}
	return p
}

// HoldEnd is the value of HoldEndedAnnotation: why the hold of which release ended.
type HoldEnd struct {
	Release int64
	// Reason is one of ConditionHeld, User who ended it, where somebody did.
	Reason, User string
}

// String is the value of HoldEndedAnnotation.
func (e HoldEnd) String() string {
	return strings.TrimSpace(strconv.FormatInt(e.Release, 10) + " " + e.Reason + " " + e.User)
}

// ParseHoldEnd reads the value of HoldEndedAnnotation.
func ParseHoldEnd(value string) (HoldEnd, bool) {
	parts := append(strings.SplitN(value, " ", 3), "")
	if len(parts) < 3 {
		return HoldEnd{}, false
	}
	e := HoldEnd{Release: ParseRelease(parts[0]), Reason: parts[1], User: parts[2]}
	switch e.Reason { // of earlier builds
	case "Failed":
		e.Reason = v1alpha1.ReasonVerificationFailed
	case "Ended":
		e.Reason = v1alpha1.ReasonReleaseEnded
	}
	return e, e.Release > 0 && e.Describe() != ""
}

// Describe says why a hold ended; empty where that is not known.
func (e HoldEnd) Describe() string {
	switch e.Reason {
	case v1alpha1.ReasonHoldVerified:
		return "the pods are verified"
	case v1alpha1.ReasonHoldRanOut:
		return "pods had no verdict in time, and silence does not fail"
	case v1alpha1.ReasonVerificationFailed:
		return "the release failed"
	case v1alpha1.ReasonHoldEdited:
		return cmp.Or(e.User, UnknownUser) + " set a field that the hold had changed"
	case v1alpha1.ReasonHoldStuck:
		return "a pod of an earlier version is not Ready"
	case v1alpha1.ReasonReleaseEnded:
		return "nothing of the release is left to wait for"
	default:
		return ""
	}
}

// HaltedPartition is the user's own partition of a workload that the operator halted by
// it; 0, which the API server sets, where HaltedFromAnnotation says none.
func HaltedPartition(annotations map[string]string) int32 {
	users, err := strconv.ParseInt(annotations[v1alpha1.HaltedFromAnnotation], 10, 32)
	if err != nil || users < 0 {
		return 0
	}
	return int32(users)
}

// NoPartition stands for the partition of a workload whose strategy has none.
const NoPartition int32 = -1

// Keeping is p with at least so many pods at the version before, and at least as many as the user wants.
func (p Pace) Keeping(pods int32) Pace {
	p.Partition = max(p.Partition, pods)
	return p
}
