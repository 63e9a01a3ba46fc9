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

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// Folding bounds the number of batches of a release, because pods come and go as long as a version runs. A batch
// without existing pods is folded, unless it is among the newest failed batches: a separate write adds its counts to
// the status of the release, and then it is deleted. A batch whose number is in the folded numbers never counts by
// itself, so a crash in between, or a cache that still shows the batch, neither counts it twice nor forgets it.

const (
	// maxFoldedAtOnce bounds the batches that are read from the API server in one turn.
	maxFoldedAtOnce = 20
	// maxRemoving and maxFoldedEntries are the limits of the API.
	maxRemoving      = 100
	maxFoldedEntries = 200
	// maxFailedBatches bounds the failed batches of an attempt that stay without pods.
	maxFailedBatches = 100
	// maxEnded bounds the records of earlier, ended releases of a workload.
	maxEnded = 10
	// foldAgain is when to continue if one turn cannot fold all batches.
	foldAgain = time.Second
)

// UnverifiedPods counts the pods of a batch that passed without a verdict of the server or of a user.
func UnverifiedPods(b *v1alpha1.ChangePod) (count int32) {
	if !record.EndedUnverified(b) {
		return 0
	}
	passed, _ := record.BatchResults(b)
	for i := range passed {
		if v := passed[i].Verdict; v == "" || v == record.VerdictNone {
			count++
		}
	}
	return count
}

// sortFolded reports whether a batch is folded, so it does not count by itself, and deletes it. A batch that has failed
// since then is unfolded: a verdict came before its deletion.
func sortFolded(d *release, b *v1alpha1.ChangePod) (folded bool) {
	number, f := record.BatchNumber(b), d.status.Folded
	if !record.IsFolded(f, d.folded, b) {
		return false
	}
	removing := record.RemovingIndex(f, b)
	_, failed := record.BatchResults(b)
	switch {
	case b.Status.Status != v1alpha1.ChangePodExecuteDone:
		// A foreign batch of that name, created from an old view.
		return true
	case removing < 0 || len(failed) == 0 || f.Removing[removing].Failed:
		d.plan.RemoveBatches = append(d.plan.RemoveBatches, *b)
		return true
	case !d.Sure[b.UID]:
		d.plan.NeedsSure = append(d.plan.NeedsSure, b)
		return true
	}
	unverified := f.Removing[removing].UnverifiedCount
	f.Removing = slices.Delete(f.Removing, removing, removing+1)
	f.PassCount -= int32(len(b.Spec.PodInfos)) //nolint:gosec // a batch has at most 200
	f.UnverifiedCount -= unverified
	d.folded = d.folded.Without(number)
	f.Numbers = d.folded.String()
	return false
}

// foldBatches folds the batches that may go, and requests the batches for which that is uncertain. It returns when to
// decide again.
func foldBatches(d *release) (wait time.Duration) {
	there := map[types.UID]bool{}
	for i := range d.Pods {
		there[d.Pods[i].UID] = true
	}
	failedFrom := failedFrom(d)
	for i := range d.Batches {
		b := &d.Batches[i]
		number := record.BatchNumber(b)
		mine := d.ofAttempt(b)
		if number == 0 || b.Status.Status != v1alpha1.ChangePodExecuteDone ||
			mine && record.IsFolded(d.status.Folded, d.folded, b) || anyThere(b, there) {
			continue
		}
		if !mine && b.Spec.Release >= d.status.ObservedRelease || mine && waitsForVerdict(d.status, b) {
			continue
		}
		if _, failed := record.BatchResults(b); mine && len(failed) > 0 && number >= failedFrom {
			continue
		}
		if left := untilFoldable(d, b); left > 0 {
			wait = times.Shortest(wait, left)
			continue
		}
		switch {
		case !mine && d.folded.Has(number):
			d.plan.RemoveBatches = append(d.plan.RemoveBatches, *b)
		case d.Sure[b.UID] && !d.Live:
			// A release that is over folds nothing, and the cache may not show its end yet.
			d.plan.NeedsLive = true
		case d.Sure[b.UID] && mine:
			foldBatch(d, b)
		case d.Sure[b.UID]:
			if allGone(d.Gone, b) {
				// Of an attempt that is over: it counts for nothing.
				addFolded(d, number)
				d.plan.RemoveBatches = append(d.plan.RemoveBatches, *b)
			}
		case len(d.plan.NeedsSure) < maxFoldedAtOnce:
			d.plan.NeedsSure = append(d.plan.NeedsSure, b)
		default:
			wait = times.Shortest(wait, foldAgain)
		}
	}
	return wait
}

func anyThere(b *v1alpha1.ChangePod, there map[types.UID]bool) bool {
	return slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return p.UID == "" || there[types.UID(p.UID)] })
}

// failedFrom returns the lowest number of the failed batches that stay without pods.
func failedFrom(d *release) int32 {
	var failing []int32
	for i := range d.Batches {
		b := &d.Batches[i]
		if _, failed := record.BatchResults(b); len(failed) > 0 && d.ofAttempt(b) && !record.IsFolded(d.status.Folded, d.folded, b) {
			failing = append(failing, record.BatchNumber(b))
		}
	}
	if len(failing) <= maxFailedBatches {
		return 0
	}
	slices.Sort(failing)
	return failing[len(failing)-maxFailedBatches]
}

// waitsForVerdict reports whether a verdict exists that a batch does not have yet.
func waitsForVerdict(s *v1alpha1.ChangeWorkloadStatus, b *v1alpha1.ChangePod) bool {
	if b.Status.EndDueTimeUnix != 0 {
		return true
	}
	return b.Status.ChangePodID != "" && slices.ContainsFunc(s.UnclaimedVerdicts, func(u v1alpha1.UnclaimedVerdict) bool {
		return u.NodeID == b.Status.ChangePodID
	})
}

// untilFoldable returns for how long a verdict may still come on a batch that ended without one.
func untilFoldable(d *release, b *v1alpha1.ChangePod) time.Duration {
	if !record.EndedUnverified(b) {
		return 0
	}
	return time.Unix(b.Status.UpdateTimeUnix, 0).Add(d.Settings.PostTimeout).Sub(d.Now)
}

// foldBatch adds the counts of a batch to the status, unless one of its pods still exists at the API server.
func foldBatch(d *release, b *v1alpha1.ChangePod) {
	if !allGone(d.Gone, b) {
		return
	}
	if f := d.status.Folded; f != nil && len(f.Removing) >= maxRemoving {
		return // something prevents their deletion
	}
	number := record.BatchNumber(b)
	f := addFolded(d, number)
	passed, failed := record.BatchResults(b)
	f.PassCount += int32(len(passed)) //nolint:gosec // a batch has at most 200
	f.FailCount += int32(len(failed)) //nolint:gosec // the same
	unverified := UnverifiedPods(b)
	f.UnverifiedCount += unverified
	folded := v1alpha1.FoldedBatch{Number: number, UID: string(b.UID), UnverifiedCount: unverified, Failed: len(failed) > 0}
	f.Removing = append(f.Removing, folded)
	if id := b.Status.ChangePodID; id != "" {
		f.Nodes = append(f.Nodes, v1alpha1.FoldedEntry{ID: id})
		f.Nodes = slices.Delete(f.Nodes, 0, max(len(f.Nodes)-maxFoldedEntries, 0))
	}
	d.plan.RemoveBatches = append(d.plan.RemoveBatches, *b)
	isOf := func(r v1alpha1.PodResult) bool {
		return slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return p.UID == r.UID })
	}
	d.passed, d.failed = slices.DeleteFunc(d.passed, isOf), slices.DeleteFunc(d.failed, isOf)
}

// correctFolded counts the folded failures as corrected when no failed batch exists.
func correctFolded(d *release) {
	if f := d.status.Folded; f != nil && f.FailCount > 0 && len(d.failed) == 0 {
		d.plan.NeedsBatches = d.plan.NeedsBatches || !d.LiveBatches
		f.PassCount, f.FailCount = f.PassCount+f.FailCount, 0
	}
}

// allGone reports whether no pod of a batch exists at the API server.
func allGone(gone map[types.UID]bool, b *v1alpha1.ChangePod) bool {
	return !slices.ContainsFunc(b.Spec.PodInfos, func(p v1alpha1.PodInfo) bool { return !gone[types.UID(p.UID)] })
}

// addFolded adds the number of a batch that will be deleted.
func addFolded(d *release, number int32) *v1alpha1.FoldedBatches {
	if d.status.Folded == nil {
		d.status.Folded = &v1alpha1.FoldedBatches{}
	}
	f := d.status.Folded
	d.folded, f.NumbersFrom = d.folded.With(number, number).Bounded(func(first, last int32) bool {
		return slices.ContainsFunc(d.Batches, func(b v1alpha1.ChangePod) bool {
			return first <= record.BatchNumber(&b) && record.BatchNumber(&b) <= last
		})
	}, f.NumbersFrom)
	f.Numbers = d.folded.String()
	return f
}

// pruneFolded forgets the deleted batches, if the status is written anyway.
func pruneFolded(d *release) {
	f := d.status.Folded
	if f == nil || len(f.Removing) == 0 || equality.Semantic.DeepEqual(d.status, &d.Change.Status) {
		return
	}
	known := func(batches []v1alpha1.FoldedBatch, uid string) bool {
		return slices.ContainsFunc(batches, func(r v1alpha1.FoldedBatch) bool { return r.UID == uid })
	}
	f.Removing = slices.DeleteFunc(f.Removing, func(r v1alpha1.FoldedBatch) bool {
		before := d.Change.Status.Folded
		return before != nil && known(before.Removing, r.UID) &&
			!slices.ContainsFunc(d.Batches, func(b v1alpha1.ChangePod) bool { return string(b.UID) == r.UID })
	})
	if len(f.Removing) == 0 {
		f.Removing = nil
	}
}

// boundRecords removes the oldest records of ended releases, even if this release does not succeed, for example without
// pods. Their orders are ended first, for at most one deadline.
func boundRecords(d *release) {
	var over []*v1alpha1.ChangeWorkload
	for i := range d.Others {
		if o := &d.Others[i]; o.Spec.Release < d.Change.Spec.Release && !record.IsOpen(o.Status.Status) {
			over = append(over, o)
		}
	}
	slices.SortFunc(over, func(a, b *v1alpha1.ChangeWorkload) int {
		return cmp.Or(cmp.Compare(b.Spec.Release, a.Spec.Release), cmp.Compare(a.Name, b.Name))
	})
	for _, o := range over[min(len(over), maxEnded):] {
		due := time.Unix(o.Status.OrderEndDueTimeUnix, 0).Add(d.Settings.PostTimeout)
		removed := slices.ContainsFunc(d.plan.Remove, func(r v1alpha1.ChangeWorkload) bool { return r.UID == o.UID })
		if !removed && (!record.OrderIsOpen(&o.Status) || o.Status.OrderEnd != "" && !d.Now.Before(due)) {
			d.plan.Remove = append(d.plan.Remove, *o)
		}
	}
}
