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

package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// IsOpen reports whether a release in this state has not ended.
func IsOpen(s v1alpha1.ChangeWorkloadStatusType) bool {
	switch s {
	case v1alpha1.ChangeWorkloadInit, v1alpha1.ChangeWorkloadRunning, v1alpha1.ChangeWorkloadTimeOutPreThreshold:
		return true
	default:
		return false
	}
}

// EndedAfter returns the duration of a release, and reports whether it ended for the first time between two states. A
// release whose failing verdict was corrected ended when it failed.
func EndedAfter(before, after *v1alpha1.ChangeWorkloadStatus) (time.Duration, bool) {
	again := before.Attempt == after.Attempt && (!IsOpen(before.Status) || before.FailedTimeUnix > 0)
	if IsOpen(after.Status) || again || after.StartTimeUnix == 0 {
		return 0, false
	}
	return time.Duration(max(after.UpdateTimeUnix-after.StartTimeUnix, 0)) * time.Second, true
}

// IsVerified reports whether pods of a release in this state are verified: until it ends, and also after Success and
// while it is suspended, because pods come later, too.
func IsVerified(s v1alpha1.ChangeWorkloadStatusType) bool {
	return IsOpen(s) || s == v1alpha1.ChangeWorkloadSuccess || s == v1alpha1.ChangeWorkloadSuspend
}

// AnyOpen reports whether a release that began has not ended.
func AnyOpen(changes []v1alpha1.ChangeWorkload) bool {
	for i := range changes {
		if changes[i].Status.Attempt > 0 && IsOpen(changes[i].Status.Status) {
			return true
		}
	}
	return false
}

// SucceededAt returns when an attempt first succeeded; zero if it did not. A record of an older build has this time
// only while its state is Success.
func SucceededAt(s *v1alpha1.ChangeWorkloadStatus) time.Time {
	switch {
	case s.SuccessTimeUnix > 0:
		return time.Unix(s.SuccessTimeUnix, 0)
	case s.Status == v1alpha1.ChangeWorkloadSuccess:
		return time.Unix(s.UpdateTimeUnix, 0)
	default:
		return time.Time{}
	}
}

// BatchNumber returns the number of a batch, from 1, from its name; 0 for a foreign name.
func BatchNumber(b *v1alpha1.ChangePod) int32 {
	i := strings.LastIndex(b.Name, nameSeparator)
	if i < 0 {
		return 0
	}
	n, err := strconv.ParseInt(b.Name[i+len(nameSeparator):], 10, 32)
	if err != nil || n < 1 {
		return 0
	}
	return int32(n)
}

// BatchResults splits the pods of a batch that is done by their verdicts. Only results for pods of the batch count, by
// UID if the result has one; a pod without a result passes.
func BatchResults(batch *v1alpha1.ChangePod) (passed, failed []v1alpha1.PodResult) {
	for _, info := range batch.Spec.PodInfos {
		result := v1alpha1.PodResult{PodInfo: info}
		for i := range batch.Status.PodResults {
			r := &batch.Status.PodResults[i]
			if r.Pod != info.Pod || r.UID != "" && r.UID != info.UID {
				continue
			}
			// Another entry of the same pod never hides a failing entry.
			if !VerdictFails(result.Verdict) {
				result.Verdict, result.Message = r.Verdict, r.Message
			}
		}
		if VerdictFails(result.Verdict) {
			failed = append(failed, result)
		} else {
			passed = append(passed, result)
		}
	}
	return passed, failed
}

// IsOfAttempt reports whether a batch is of the current attempt of its release.
func IsOfAttempt(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod) bool {
	return change != nil && change.DeletionTimestamp == nil &&
		batch.Spec.Attempt == change.Status.Attempt && batch.Spec.Release == change.Status.ObservedRelease
}

// OrderIsOpen reports whether, according to the status of the release, the server knows its order and was not notified
// of its end.
func OrderIsOpen(s *v1alpha1.ChangeWorkloadStatus) bool {
	switch s.OrderStage {
	case v1alpha1.OrderPreWait, v1alpha1.OrderPreSubmitted, v1alpha1.OrderPostWait, v1alpha1.OrderPostSubmitted, v1alpha1.OrderPostFinish:
		return true
	default:
		return false
	}
}

// FailedOrderCheck returns the failing verdict on the order itself; nil for none.
func FailedOrderCheck(s *v1alpha1.ChangeWorkloadStatus) *v1alpha1.CheckVerdict {
	for _, v := range []*v1alpha1.CheckVerdict{s.OrderPreVerdict, s.OrderPostVerdict} {
		if v != nil && VerdictFails(v.Verdict) {
			return v
		}
	}
	return nil
}

// OrderWaits reports whether the order of a release may still need a request.
func OrderWaits(change *v1alpha1.ChangeWorkload) bool {
	switch change.Status.OrderStage {
	case v1alpha1.OrderNone, v1alpha1.OrderRefused, v1alpha1.OrderEnded:
		return false
	default:
		return true
	}
}

// OrderPreIsLate reports whether a verdict on the order's PRE check comes too late: after its end was submitted, the
// server always reports that it passed.
func OrderPreIsLate(stage v1alpha1.OrderStage) bool {
	switch stage {
	case v1alpha1.OrderPostSubmitted, v1alpha1.OrderPostFinish, v1alpha1.OrderEnded:
		return true
	default:
		return false
	}
}

// CountingBatches returns the batches of the current attempt of a release that count by themselves.
func CountingBatches(change *v1alpha1.ChangeWorkload, batches []v1alpha1.ChangePod) (counting []*v1alpha1.ChangePod) {
	f, folded := change.Status.Folded, Numbers(nil)
	if f != nil {
		folded = ParseNumbers(f.Numbers)
	}
	for i := range batches {
		if b := &batches[i]; IsOfAttempt(change, b) && !IsFolded(f, folded, b) {
			counting = append(counting, b)
		}
	}
	return counting
}

// IsCurrentBatch reports whether a batch is of the current attempt of its release, and the release is verified.
func IsCurrentBatch(change *v1alpha1.ChangeWorkload, batch *v1alpha1.ChangePod) bool {
	return IsOfAttempt(change, batch) && IsVerified(change.Status.Status)
}

// Numbers is a set of numbers of batches, as ranges in order.
type Numbers []numberRange

type numberRange struct{ first, last int32 }

// ParseNumbers reads the output of [Numbers.String], without unreadable parts.
func ParseNumbers(s string) (n Numbers) {
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseInt(from, 10, 32)
		last, err2 := strconv.ParseInt(to, 10, 32)
		if err1 == nil && err2 == nil && first > 0 && first <= last {
			n = append(n, numberRange{int32(first), int32(last)})
		}
	}
	slices.SortFunc(n, func(a, b numberRange) int { return cmp.Compare(a.first, b.first) })
	return n
}

// String writes ranges as in "1-57,59".
func (n Numbers) String() string {
	parts := make([]string, len(n))
	for i, r := range n {
		if parts[i] = strconv.Itoa(int(r.first)); r.last > r.first {
			parts[i] = fmt.Sprintf("%d-%d", r.first, r.last)
		}
	}
	return strings.Join(parts, ",")
}

// Has reports whether the set has a number.
func (n Numbers) Has(number int32) bool {
	return slices.ContainsFunc(n, func(r numberRange) bool { return r.first <= number && number <= r.last })
}

// UpTo returns how many numbers of the set are at most last.
func (n Numbers) UpTo(last int32) (count int) {
	for _, r := range n {
		count += int(max(min(r.last, last)-r.first+1, 0))
	}
	return count
}

// With adds numbers, and joins ranges that touch.
func (n Numbers) With(first, last int32) Numbers {
	all := append(slices.Clone(n), numberRange{first, last})
	slices.SortFunc(all, func(a, b numberRange) int { return cmp.Compare(a.first, b.first) })
	joined := all[:1]
	for _, r := range all[1:] {
		if before := &joined[len(joined)-1]; r.first <= before.last+1 {
			before.last = max(before.last, r.last)
		} else {
			joined = append(joined, r)
		}
	}
	return joined
}

// Without returns n without a number.
func (n Numbers) Without(number int32) (left Numbers) {
	for _, r := range n {
		if !(Numbers{r}).Has(number) {
			left = append(left, r)
			continue
		}
		if r.first < number {
			left = append(left, numberRange{r.first, number - 1})
		}
		if number < r.last {
			left = append(left, numberRange{number + 1, r.last})
		}
	}
	return left
}

// Bounded joins ranges while there are too many of them, unless a batch exists in between, and then drops the lowest.
// It returns the number from which the ranges are complete.
func (n Numbers) Bounded(exists func(first, last int32) bool, from int32) (Numbers, int32) {
	for i := 0; len(n) > MaxRanges && i+1 < len(n); {
		if exists(n[i].last+1, n[i+1].first-1) {
			i++
			continue
		}
		n = n.With(n[i].first, n[i+1].last)
	}
	if over := len(n) - MaxRanges; over > 0 {
		from, n = max(from, n[over-1].last+1), n[over:]
	}
	return n, from
}

// IsFolded reports whether the counts of a batch are in the status of its release: it is about to be deleted, or was.
func IsFolded(f *v1alpha1.FoldedBatches, folded Numbers, b *v1alpha1.ChangePod) bool {
	return f != nil && (folded.Has(BatchNumber(b)) || RemovingIndex(f, b) >= 0)
}

// RemovingIndex returns the index of a batch in the list Removing; -1 for none.
func RemovingIndex(f *v1alpha1.FoldedBatches, b *v1alpha1.ChangePod) int {
	return slices.IndexFunc(f.Removing, func(r v1alpha1.FoldedBatch) bool { return r.UID == string(b.UID) })
}

// FoldedEntry finds the entry of a folded batch; nil for none.
func FoldedEntry(s *v1alpha1.ChangeWorkloadStatus, id string) *v1alpha1.FoldedEntry {
	if s.Folded == nil || id == "" {
		return nil
	}
	for i := range s.Folded.Nodes {
		if s.Folded.Nodes[i].ID == id {
			return &s.Folded.Nodes[i]
		}
	}
	return nil
}

// ConditionMessage returns the message of a condition; empty for none.
func ConditionMessage(s *v1alpha1.ChangeWorkloadStatus, kind string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return strings.TrimSuffix(cmp.Or(Detail(c), c.Message), ".")
	}
	return ""
}

// ReasonOf returns the reason of a condition; empty for none.
func ReasonOf(s *v1alpha1.ChangeWorkloadStatus, kind string) string {
	if c := meta.FindStatusCondition(s.Conditions, kind); c != nil {
		return c.Reason
	}
	return ""
}

// StepMessage returns the message of a step of the order; empty for none.
func StepMessage(s *v1alpha1.ChangeWorkloadStatus, kind string) string {
	if c := meta.FindStatusCondition(s.OrderSteps, kind); c != nil {
		return c.Message
	}
	return ""
}

// EndedUnverified reports whether the server's part in a batch ended without its verdict.
func EndedUnverified(b *v1alpha1.ChangePod) bool {
	return b.Status.Status == v1alpha1.ChangePodExecuteDone && ServerSilent(&b.Status)
}

// ServerSilent reports whether the server gave no verdict on a batch in time.
func ServerSilent(s *v1alpha1.ChangePodStatus) bool {
	switch v1alpha1.ChangePodStatusType(s.Message) {
	case v1alpha1.ChangePodPreFailed, v1alpha1.ChangePodPreTimeout, v1alpha1.ChangePodPostFailed, v1alpha1.ChangePodPostTimeout:
		return true
	default:
		return false
	}
}

// ParseBlockedBy returns the version, the release and the record that block a workload, from its annotations. A block
// of an older build names no record, and a block of a user names nothing.
func ParseBlockedBy(annotations map[string]string) (version, release, record string) {
	fields := strings.Fields(annotations[v1alpha1.SuspendedByAnnotation])
	fields = append(fields, "", "", "")
	return fields[0], fields[1], fields[2]
}

// MaxRanges bounds the ranges of the numbers of folded batches. The API takes 8192 bytes, and a range has at most 22.
const MaxRanges = 200

// IsWorse reports whether a verdict replaces the stored one; otherwise the first verdict stays. A failure replaces a
// verdict that the server delivered as a pass, or did not deliver, so no earlier verdict hides a failure. If the server
// repeats a failure that a user corrected, the correction stays.
func IsWorse(stored *v1alpha1.CheckVerdict, v v1alpha1.CheckVerdict) bool {
	return stored == nil || VerdictFails(v.Verdict) && !VerdictFails(stored.Delivered)
}

// FailureOf describes which check failed, and why.
func FailureOf(stage v1alpha1.CheckStage, v *v1alpha1.CheckVerdict) string {
	if v.LatePre {
		return wording.Cut(v.Message)
	}
	return fmt.Sprintf("the %s check failed: %s", stage, wording.Cut(v.Message))
}

// LatePreFailure begins the message of a verdict with LatePre.
const LatePreFailure = "the PRE check failed after it had been let pass"

// Override is one use of IgnoredSuspendLabel.
type Override struct {
	Version         string
	ResourceVersion string
	User            string
}

// String returns the value of OverrideAnnotation.
func (o Override) String() string {
	return strings.Join([]string{o.Version, o.ResourceVersion, o.User}, " ")
}

// ParseOverride reads the value of OverrideAnnotation.
func ParseOverride(value string) (Override, bool) {
	parts := strings.SplitN(value, " ", 3)
	if len(parts) != 3 {
		return Override{}, false
	}
	return Override{Version: parts[0], ResourceVersion: parts[1], User: parts[2]}, true
}

// FreezeBreak is one use of BreakFreezeAnnotation.
type FreezeBreak struct {
	Release         int64  `json:"release"`
	ResourceVersion string `json:"resourceVersion"`
	User            string `json:"user"`
	Reason          string `json:"reason"`
}

// String returns the value of FreezeBrokenAnnotation.
func (b FreezeBreak) String() string {
	text, _ := json.Marshal(b) //nolint:errchkjson // strings can be encoded
	return string(text)
}

// ParseFreezeBreak reads the value of FreezeBrokenAnnotation; empty if it is malformed.
func ParseFreezeBreak(value string) (b FreezeBreak) {
	if json.Unmarshal([]byte(value), &b) != nil {
		return FreezeBreak{}
	}
	b.Reason = wording.CutAtRune(b.Reason, MaxText)
	return b
}

// BatchFails reports whether a pod of a batch that is done failed.
func BatchFails(batch *v1alpha1.ChangePod) bool {
	return batch.Status.Status == v1alpha1.ChangePodExecuteDone &&
		slices.ContainsFunc(batch.Status.PodResults, func(r v1alpha1.PodResult) bool { return VerdictFails(r.Verdict) })
}

// MaxText is the limit of the API for texts about a release.
const MaxText = 512

// NoReason replaces a missing reason of the server.
const NoReason = "the server gave no reason"

// Describe describes a verdict on a pod in one line.
func Describe(r *v1alpha1.PodResult) string {
	s := fmt.Sprintf("pod %s: %s", r.Pod, r.Verdict)
	if r.Message != "" {
		s += ": " + wording.Cut(r.Message)
	}
	return s
}

// VerdictFails reports whether a verdict fails its pod: "pass", "none" (no rule was triggered) and the empty string do
// not, everything else does.
func VerdictFails(verdict string) bool {
	switch verdict {
	case VerdictPass, VerdictNone, "":
		return false
	default:
		return true
	}
}

// Verdicts in the words of the server.
const (
	// VerdictPass means rules were triggered and passed.
	VerdictPass = "pass"
	// VerdictNone means no rule was triggered, or the server was not asked.
	VerdictNone = "none"
	// VerdictFail means a check failed.
	VerdictFail = "fail"
	// VerdictInconclusive does not pass: the server could not decide, or not in time.
	VerdictInconclusive = "inconc"
)

// RankOfStuck ranks the reasons why a release with stuck pods is not rolled back; 0 is no such reason. A reason only
// replaces a reason of a lower rank, so the reasons do not alternate while a crashing pod is Ready for moments.
func RankOfStuck(reason string) int {
	return slices.Index([]string{
		v1alpha1.ReasonStillWaiting, v1alpha1.ReasonTolerated, v1alpha1.ReasonRollbackRefused, v1alpha1.ReasonRollbackLimit,
	}, reason) + 1
}
