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

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Pace has the fields of a workload that a hold changes: Partition if ByPartition, OnDelete if
// ByEviction, otherwise the two times.
type Pace struct {
	// MinReadySeconds is how long a pod has to be Ready to be available.
	MinReadySeconds int32
	// ProgressDeadlineSeconds is how long the rollout may make no progress; the largest value means no
	// limit.
	ProgressDeadlineSeconds int32
	// Partition is how many pods, the first ones, stay at the previous version. Field is the path of the field of a declared
	// kind; empty for other kinds.
	ByPartition bool
	Partition   int32
	Field       string
	// OnDelete: pods are replaced only when they are deleted, and the operator evicts them. MaxUnavailable
	// is the user's number of pods that are replaced at once; empty if the strategy has no place for it.
	ByEviction, OnDelete bool
	MaxUnavailable       string
	// MaxSurge is the user's number of pods that are created beside old ones; empty for none.
	MaxSurge string
	// Halted: OnDelete is the operator's halt.
	Halted bool
}

// MinReady returns MinReadySeconds as a duration.
func (p Pace) MinReady() time.Duration { return time.Duration(p.MinReadySeconds) * time.Second }

// Deadline returns ProgressDeadlineSeconds as a duration.
func (p Pace) Deadline() time.Duration {
	return time.Duration(p.ProgressDeadlineSeconds) * time.Second
}

// Paced returns p with another MinReadySeconds, for a hold that lasts at most atMost. The progress
// deadline is extended beyond both times: the API server requires that, and a hold is no lack of
// progress.
func (p Pace) Paced(minReady, atMost time.Duration) Pace {
	minReady = max(minReady.Truncate(time.Second), p.MinReady())
	q := Pace{
		MinReadySeconds:         int32(min(minReady/time.Second, math.MaxInt32-1)), //nolint:gosec // bounded
		ProgressDeadlineSeconds: math.MaxInt32,
	}
	if p.ProgressDeadlineSeconds < math.MaxInt32 {
		wait := int64(max(minReady, atMost)/time.Second) + int64(p.ProgressDeadlineSeconds)
		q.ProgressDeadlineSeconds = int32(min(wait, math.MaxInt32)) //nolint:gosec // bounded
	}
	return q
}

// Hold is the content of HeldAnnotation.
type Hold struct {
	// Release is the number of the held release.
	Release int64
	// Until is what the hold waits for: the first batch, or every batch.
	Until v1alpha1.HoldUntil
	// Pace has the user's values, which the end of the hold restores.
	Pace
	// Set has the values that the operator wants now, and Was its previous values.
	Set Pace
	Was *Pace
	// OpenedAt is when a wave was last opened, so that its pods become available, and OpenedTo is when
	// the youngest of them became Ready. Both are Unix times in seconds; 0 if no wave was opened.
	OpenedAt, OpenedTo int64
	// Replicas is the number of pods for which the partition was last set; 0 for a Deployment, or if
	// an older build set the partition. For a DaemonSet it is how many old pods the open wave leaves.
	Replicas int32
	// Over: the hold ends. Admission removes this annotation together with the fields that the hold
	// changed; an annotation with Over was written while admission did not see it.
	Over bool
}

// holdText is the JSON of HeldAnnotation.
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
	Field    string    `json:"field,omitempty"`
}

// paceText is the JSON of a Pace.
type paceText struct {
	MinReadySeconds         *int32 `json:"minReadySeconds,omitempty"`
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`
	Partition               *int32 `json:"partition,omitempty"`
	Type                    string `json:"type,omitempty"`
	MaxUnavailable          string `json:"maxUnavailable,omitempty"`
}

func (p Pace) text() paceText {
	switch {
	case p.ByPartition:
		return paceText{Partition: &p.Partition}
	case p.ByEviction:
		return paceText{Type: p.updateType(), MaxUnavailable: p.MaxUnavailable}
	}
	return paceText{MinReadySeconds: &p.MinReadySeconds, ProgressDeadlineSeconds: &p.ProgressDeadlineSeconds}
}

func (t *paceText) pace() Pace {
	switch {
	case t.Partition != nil:
		return Pace{ByPartition: true, Partition: *t.Partition}
	case t.Type != "":
		return Pace{ByEviction: true, OnDelete: t.Type == onDelete, MaxUnavailable: t.MaxUnavailable}
	}
	return Pace{MinReadySeconds: ptr.Deref(t.MinReadySeconds, 0), ProgressDeadlineSeconds: ptr.Deref(t.ProgressDeadlineSeconds, 0)}
}

// Ending returns the hold as the write that ends it sets it.
func (h *Hold) Ending() *Hold {
	over := *h
	over.Over = true
	return &over
}

// ParseHold reads the value of HeldAnnotation; nil if it is not a valid hold.
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
	h.setField(t.Field)
	for _, p := range []Pace{h.Pace, h.Set, ptr.Deref(h.Was, h.Set)} {
		if !p.Valid() || !p.IsLike(h.Pace) {
			return nil
		}
	}
	return h
}

// HoldOf returns the hold in the annotations of a workload with this pace; nil for none.
func (p Pace) HoldOf(annotations map[string]string) *Hold {
	h := ParseHold(annotations[v1alpha1.HeldAnnotation])
	if h != nil && h.Field == "" { // of an earlier build
		h.setField(p.Field)
	}
	if h == nil || !h.IsLike(p) {
		return nil
	}
	return h
}

func (h *Hold) setField(field string) {
	h.Field, h.Set.Field = field, field
	if h.Was != nil {
		h.Was.Field = field
	}
}

// IsLike reports whether two paces have the same fields.
func (p Pace) IsLike(other Pace) bool {
	return p.ByPartition == other.ByPartition && p.ByEviction == other.ByEviction && p.Field == other.Field
}

// InSteps reports whether pods are replaced in steps that the operator decides.
func (p Pace) InSteps() bool { return p.ByPartition || p.ByEviction }

// Valid reports whether the API server accepts the pace.
func (p Pace) Valid() bool {
	switch {
	case p.ByPartition:
		return p.Partition >= 0
	case p.ByEviction:
		none := p.MaxUnavailable == "0" || p.MaxUnavailable == "0%"
		return p.OnDelete || none == (p.MaxSurge != "") // with OnDelete, the numbers have no meaning
	}
	return p.MinReadySeconds >= 0 && p.ProgressDeadlineSeconds > p.MinReadySeconds
}

// String returns the value of HeldAnnotation.
func (h *Hold) String() string {
	t := holdText{
		Release: h.Release, Until: h.Until, paceText: h.text(), Set: h.Set.text(),
		OpenedAt: h.OpenedAt, OpenedTo: h.OpenedTo, Replicas: h.Replicas, Over: h.Over, Field: h.Field,
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

// Own reports whether each value is the user's, or was written by the operator.
func (h *Hold) Own(is Pace) bool {
	if is.ByEviction {
		return is.MaxUnavailable == h.MaxUnavailable && is.MaxSurge == h.MaxSurge
	}
	of := func(field func(Pace) int32) bool {
		v := field(is)
		return v == field(h.Set) || v == field(h.Pace) || h.Was != nil && v == field(*h.Was)
	}
	return of(minReadyOf) && of(deadlineOf) && of(partitionOf)
}

func minReadyOf(p Pace) int32 { return p.MinReadySeconds }

func deadlineOf(p Pace) int32 { return p.ProgressDeadlineSeconds }

func partitionOf(p Pace) int32 { return p.Partition }

// Kept returns the pace to restore at the end of the hold: the user's value of each field, or the
// current value if the operator did not write it.
func (h *Hold) Kept(is Pace) Pace {
	if is.ByEviction {
		// A hold leaves the place for the number; a user who sets OnDelete removes it.
		is.OnDelete = is.OnDelete && (is.Halted || is.MaxUnavailable == "")
		return is
	}
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

// Fitting returns a pace that the API server accepts: the deadline is later than minReadySeconds. A
// user may have changed one of the two fields while the hold had raised the other. With OnDelete, the
// API server accepts every maxUnavailable and maxSurge.
func (h *Hold) Fitting(p Pace) Pace {
	switch {
	case p.Valid(), p.ByPartition:
	case p.ByEviction:
		p.MaxUnavailable, p.MaxSurge = h.MaxUnavailable, h.MaxSurge
	default:
		p.ProgressDeadlineSeconds = int32(min(int64(p.MinReadySeconds)+int64(h.ProgressDeadlineSeconds), math.MaxInt32)) //nolint:gosec // bounded
	}
	return p
}

// HeldPod is a pod of a held rollout.
type HeldPod struct {
	Created time.Time
	// ReadySince is since when the pod is Ready; zero while it is not.
	ReadySince time.Time
	// Verified: the pod passed all checks that the hold waits for. Flapped: it was not Ready once
	// since then.
	Verified, Flapped bool
	// Index is the place of the pod, from 0, in a workload with numbered pods.
	Index int32
	// UnreadySince is since when it is not Ready; zero while it is Ready.
	UnreadySince time.Time
	// Node is its node; Down: the node is not Ready.
	Node string
	Down bool
}

// IsReady reports whether the pod is Ready.
func (p *HeldPod) IsReady() bool { return !p.ReadySince.IsZero() }

// Pacing is what admission reads of a workload whose rollout can be held.
type Pacing struct {
	Pace
	// Rolling: old pods run until new pods run.
	Rolling bool
	// Replicas is the desired number of pods.
	Replicas int32
	// Bare is Stopping.Bare.
	Bare bool
}

// Users returns the pace that the user wants, given the annotations of the workload.
func (p Pace) Users(annotations map[string]string) Pace {
	if h := p.HoldOf(annotations); h != nil {
		return h.Kept(p)
	}
	return p
}

// HoldEnd is the value of HoldEndedAnnotation: why the hold of a release ended.
type HoldEnd struct {
	Release int64
	// Reason is a reason of ConditionHeld, and User the user who ended the hold, if one did.
	Reason, User string
}

// String returns the value of HoldEndedAnnotation.
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

// Describe returns why a hold ended; empty if it is not known.
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
		return "pods that are not Ready stop the rollout"
	case v1alpha1.ReasonReleaseEnded:
		return "nothing of the release is left to wait for"
	default:
		return ""
	}
}

// HaltedPartition returns the user's partition of a workload that the operator halted by its
// partition; 0, the default of the API server, without HaltedFromAnnotation.
func HaltedPartition(annotations map[string]string) int32 {
	users, err := strconv.ParseInt(annotations[v1alpha1.HaltedFromAnnotation], 10, 32)
	if err != nil || users < 0 {
		return 0
	}
	return int32(users)
}

// Resumed returns p as it is after the halt of a workload with these annotations ends.
func (p Pace) Resumed(annotations map[string]string) Pace {
	if p.ByPartition {
		p.Partition = HaltedPartition(annotations)
	}
	p.OnDelete, p.Halted = false, false
	return p
}

// onDelete and rollingUpdate are the types of the update strategy of a DaemonSet.
const onDelete, rollingUpdate = string(appsv1.OnDeleteDaemonSetStrategyType), string(appsv1.RollingUpdateDaemonSetStrategyType)

func (p Pace) updateType() string {
	if p.OnDelete {
		return onDelete
	}
	return rollingUpdate
}

// NoPartition is the partition of a workload whose strategy has none.
const NoPartition int32 = -1

// Keeping returns p with at least this many pods at the previous version, and at least as many as
// the user wants.
func (p Pace) Keeping(pods int32) Pace {
	p.Partition = max(p.Partition, pods)
	return p
}
