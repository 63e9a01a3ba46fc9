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
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The pods of a release and their batches.

// sortPods sorts the pods by their state. It returns how long until time alone finishes the next pod.
func (d *release) sortPods() (wait time.Duration) {
	d.batched = map[types.UID]bool{}
	if d.status.Folded != nil {
		d.folded = record.ParseNumbers(d.status.Folded.Numbers)
	}
	batches := slices.Clone(d.Batches)
	slices.SortFunc(batches, func(a, b v1alpha1.ChangePod) int { return cmp.Compare(record.BatchNumber(&a), record.BatchNumber(&b)) })
	for i := range batches {
		b := &batches[i]
		made := min(b.Spec.CreateTimeUnix, d.Now.Unix())
		if d.ofAttempt(b) && record.BatchNumber(b) > d.status.Batches && made > d.status.EntryTimeUnix {
			// The status does not count this batch yet.
			d.status.EntryTime, d.status.EntryTimeUnix = times.Format(time.Unix(made, 0)), made
		}
		d.status.Batches = max(d.status.Batches, record.BatchNumber(b))
		if !d.ofAttempt(b) || sortFolded(d, b) {
			continue
		}
		for _, info := range b.Spec.PodInfos {
			d.batched[types.UID(info.UID)] = true
		}
		if b.Status.Status != v1alpha1.ChangePodExecuteDone {
			d.checking = append(d.checking, resultsOf(b.Spec.PodInfos)...)
			continue
		}
		passed, failed := record.BatchResults(b)
		d.passed = append(d.passed, passed...)
		d.failed = append(d.failed, failed...)
	}

	// A failure survives the deletion of its batch: only a corrected verdict or another release ends it.
	for i := range d.status.DefenseCheckFailPods {
		r := d.status.DefenseCheckFailPods[i]
		if uid := types.UID(r.UID); uid != "" && !d.batched[uid] {
			d.batched[uid] = true
			d.failed = append(d.failed, r)
		}
	}

	finishedBefore := map[string]bool{}
	for i := range d.status.DefensePreparingPods {
		finishedBefore[d.status.DefensePreparingPods[i].UID] = true
	}
	for i := range d.Pods {
		p := &d.Pods[i]
		if d.batched[p.UID] {
			continue
		}
		finished, left := p.Finished(workload.FinishOf(d.Workload, d.Settings), d.Now)
		if finished || finishedBefore[string(p.UID)] {
			d.preparing = append(d.preparing, *p)
		} else if left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	slices.SortFunc(d.preparing, func(a, b workload.Pod) int {
		return cmp.Or(a.ReadySince.Compare(b.ReadySince), cmp.Compare(a.Name, b.Name))
	})
	return wait
}

// makeBatches creates as many full batches as the pods allow, and a batch of the rest when no more pods are awaited.
func (d *release) makeBatches() (made bool) {
	size := int(max(d.Settings.BatchSize, 1))
	for len(d.preparing) >= size {
		d.makeBatch(size)
		made = true
	}
	noMore := d.Workload.Rollout.Complete && d.everyPod(d.isFinished) || waveIsFinished(d) || d.overdue() && !d.timesOut(made)
	if len(d.preparing) > 0 && noMore {
		d.makeBatch(len(d.preparing))
		made = true
	}
	if made {
		d.status.EntryTime, d.status.EntryTimeUnix = times.Format(d.Now), d.Now.Unix()
		d.plan.NeedsBatches = !d.LiveBatches && d.missesBatches()
	}
	return made
}

// missesBatches reports whether a batch that the status counts is unseen: the cache of batches is behind the cache of
// releases, or a user deleted the batch.
func (d *release) missesBatches() bool {
	seen, from, to := map[int32]bool{}, int32(1), d.Change.Status.Batches
	if f := d.status.Folded; f != nil {
		from = max(from, f.NumbersFrom)
	}
	for i := range d.Batches {
		if n := record.BatchNumber(&d.Batches[i]); from <= n && n <= to && !d.folded.Has(n) {
			seen[n] = true
		}
	}
	return len(seen)+d.folded.UpTo(to) < int(to-from)+1
}

func (d *release) makeBatch(size int) {
	d.status.Batches++
	b := Batch{Number: d.status.Batches, Attempt: d.status.Attempt, Release: d.status.ObservedRelease}
	for i := range d.preparing[:size] {
		p := &d.preparing[i]
		b.Pods = append(b.Pods, p.Info(d.Change.Spec.AppName))
		d.batched[p.UID] = true
	}
	d.checking = append(d.checking, resultsOf(b.Pods)...)
	d.preparing = d.preparing[size:]
	perBatch := max(d.Settings.BatchSize, 1)
	b.Total = max(b.Number, (d.Workload.Replicas+perBatch-1)/perBatch)
	b.Last = d.everyPod(d.isBatched)
	d.plan.Batches = append(d.plan.Batches, b)
}

func (d *release) isBatched(uid types.UID) bool { return d.batched[uid] }

// isFinished reports whether a pod is in a batch, or ready for a batch.
func (d *release) isFinished(uid types.UID) bool {
	return d.batched[uid] || slices.ContainsFunc(d.preparing, func(p workload.Pod) bool { return p.UID == uid })
}

// everyPod reports whether every wanted pod of the workload is known and satisfies there. A complete rollout alone does
// not suffice, and old pods do not count.
func (d *release) everyPod(there func(uid types.UID) bool) bool {
	return d.everyPodFrom(0, d.Workload.Replicas, there)
}

// everyPodFrom is everyPod for the pods with at least this index.
func (d *release) everyPodFrom(index, wanted int32, there func(uid types.UID) bool) bool {
	if d.Workload.WithoutPods {
		return true
	}
	live := int32(0)
	for i := range d.Pods {
		p := &d.Pods[i]
		if !p.Live() || p.Index < index {
			continue
		}
		if !there(p.UID) {
			return false
		}
		live++
	}
	return live >= wanted
}

// waveIsFinished reports whether every created pod of a held rollout is finished: no more pods come before these are
// verified, so a full batch is not awaited.
func waveIsFinished(d *release) bool {
	if !d.holding() {
		return false
	}
	from, made := int32(0), d.Workload.RevisionReplicas
	if h := d.Workload.Hold; h.ByPartition {
		from = min(h.Set.Partition, d.Workload.Replicas)
		made = d.Workload.Replicas - from
	} else if h.ByEviction {
		made = d.Workload.Replicas
		for i := range d.Workload.OldRevisions {
			made -= d.Workload.OldRevisions[i].Replicas
		}
	}
	return d.everyPodFrom(from, made, d.isFinished)
}

// deadline returns the end of the wait for a full batch. The wait begins after a check of the release that delayed
// batches, and after a partition that delayed pods.
func (d *release) deadline() time.Time {
	since := time.Unix(d.status.EntryTimeUnix, 0)
	if h := d.Workload.Hold; h != nil && h.InSteps() {
		since = times.Latest(since, time.Unix(h.OpenedAt, 0)) // until then, no pods came
	}
	for _, c := range record.ChecksAt(d.status, v1alpha1.StageReleasePre) {
		if !c.Background && c.CompletionTime != nil && c.CompletionTime.After(since) {
			since = c.CompletionTime.Time
		}
	}
	return since.Add(d.Settings.Wait)
}

func (d *release) overdue() bool { return !d.Now.Before(d.deadline()) }

// allPassed reports whether the rollout is complete and all its pods are known, finished and passed; without pods,
// whether it has been complete for long enough.
func (d *release) allPassed() bool {
	if d.Workload.WithoutPods {
		return settled(d)
	}
	if !d.Workload.Rollout.Complete || len(d.checking) > 0 || len(d.preparing) > 0 {
		return false
	}
	passed := map[types.UID]bool{}
	for i := range d.passed {
		passed[types.UID(d.passed[i].UID)] = true
	}
	return d.everyPod(func(uid types.UID) bool { return passed[uid] })
}

// waitsForRestarted reports whether a pod does not run now, or has just restarted, and for how long to wait. The pod
// may have passed before it began to crash: a crashing pod is Ready for a moment at each start, and its kubelet reports
// the crash late. Such a pod does not count for Success.
func (d *release) waitsForRestarted() (waits bool, left time.Duration) {
	for i := range d.Pods {
		p := &d.Pods[i]
		if !p.Live() || p.Steady(d.Now) {
			continue
		}
		waits = true
		if p.Ready {
			left = max(left, p.Bounded(p.RestartedAt, d.Now).Add(workload.RestartSettle).Sub(d.Now))
		}
	}
	return waits, left
}

// waitsInVain reports whether the wait threshold is over without a full batch, and more pods are to come. A rollout
// that cannot move does not count: it has its own condition. If one replica has found this, another replica whose clock
// is a little behind does not revert it.
func (d *release) waitsInVain(made bool) bool {
	overdue := d.overdue() ||
		d.status.Status == v1alpha1.ChangeWorkloadTimeOutPreThreshold && !d.Now.Before(d.deadline().Add(-workload.ClockTolerance))
	if made || !preOver(d.status, d.Cluster) || d.Workload.WaitsForUser() || d.Workload.Rollout.Stuck || d.Workload.Hold != nil || !overdue {
		return false
	}
	return len(d.preparing) > 0 || !d.everyPod(d.isBatched)
}

// timesOut reports whether the state has to change to TimeOutPreThreshold first; the waiting pods are verified in the
// next turn.
func (d *release) timesOut(made bool) bool {
	return d.status.Status == v1alpha1.ChangeWorkloadRunning && d.waitsInVain(made)
}

func bounded(results []v1alpha1.PodResult) (listed []v1alpha1.PodResult, count int32) {
	for i := range results[:min(len(results), maxListed)] {
		r := results[i]
		r.Verdict, r.Message = wording.Cut(r.Verdict), wording.Cut(r.Message)
		listed = append(listed, r)
	}
	return listed, int32(len(results)) //nolint:gosec // a workload has far fewer pods
}

func resultsOf(infos []v1alpha1.PodInfo) []v1alpha1.PodResult {
	results := make([]v1alpha1.PodResult, len(infos))
	for i := range infos {
		results[i].PodInfo = infos[i]
	}
	return results
}

// passCount returns the number of pods of the attempt that passed, with folded batches.
func (d *release) passCount() int { return len(d.passed) + int(d.foldedCount()) }

func (d *release) foldedCount() int32 {
	if d.status.Folded == nil {
		return 0
	}
	return d.status.Folded.PassCount
}

// unverifiedCount returns the number of pods of the attempt that passed without a verdict, with folded batches.
func (d *release) unverifiedCount() (count int32) {
	if d.status.Folded != nil {
		count = d.status.Folded.UnverifiedCount
	}
	for i := range d.Batches {
		if b := &d.Batches[i]; d.ofAttempt(b) && !record.IsFolded(d.status.Folded, d.folded, b) {
			count += UnverifiedPods(b)
		}
	}
	return count
}

// failCount returns the number of pods of the attempt that failed, with folded batches.
func (d *release) failCount() int32 {
	count := int32(len(d.failed)) //nolint:gosec // a workload has far fewer pods
	if d.status.Folded != nil {
		count += d.status.Folded.FailCount
	}
	return count
}

// failure returns the reason for which the release failed its verification, and describes the first failure; both are
// empty if it did not fail.
func (d *release) failure() (reason, message string) {
	if len(d.failed) > 0 {
		return v1alpha1.ReasonPodFailed, record.Describe(&d.failed[0])
	}
	if message = describeOrder(d.status, d.Batches); message != "" {
		return v1alpha1.ReasonOrderCheckFailed, message
	}
	switch c := record.FailedReleaseCheck(d.status); {
	case c == nil:
		return "", ""
	case c.Name == RolloutCheck:
		return v1alpha1.ReasonRolloutStuck, wording.Cut(c.Message)
	default:
		return v1alpha1.ReasonCheckFailed, "the check " + wording.Cut(record.DescribeCheck(c))
	}
}

func (d *release) hasFailed() bool { reason, _ := d.failure(); return reason != "" }
