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

package checks

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// enoughOld is the number of old pods with enough data that Auto needs to compare with at the same time.
const enoughOld = 2

// Baseline returns the old pods that a release keeps for comparisons with the time before it. It returns nil if no check needs them, or if
// the release has them. Until the first batch it tries again: the cache may not have had the previous version.
func Baseline(
	ctx context.Context, v cluster.View, w *workload.Workload, change *v1alpha1.ChangeWorkload, batches []v1alpha1.ChangePod, now time.Time,
) (*v1alpha1.ReleaseBaseline, error) {
	s, end := &change.Status, now
	if s.Attempt > 0 && s.ObservedRelease == change.Spec.Release {
		ofAttempt := func(b v1alpha1.ChangePod) bool { return b.Spec.Attempt == s.Attempt }
		if s.Baseline != nil || !record.IsOpen(s.Status) || slices.ContainsFunc(batches, ofAttempt) {
			return nil, nil
		}
		end = time.Unix(s.StartTimeUnix, 0)
	}
	policies, of, err := v.PoliciesFor(ctx, w)
	if err != nil {
		return nil, err
	}
	selected := policy.Select(policies, v.Operator, of).At(v1alpha1.StageBatchPost, v1alpha1.StageReleasePost)
	needs := func(c policy.Check) bool { return c.Compare != nil && c.Compare.Baseline != v1alpha1.BaselineOldPods }
	if !slices.ContainsFunc(selected, needs) {
		return nil, nil
	}
	if undo, err := isUndo(ctx, v, &Subject{Workload: w, Release: change}); err != nil || undo {
		return nil, err
	}
	version, err := v.OldVersion(ctx, w)
	if err != nil || version == "" {
		return nil, err
	}
	old, err := v.OldPods(ctx, w)
	if err != nil {
		return nil, err
	}
	asked := time.Time{}
	if defense.Slipped(w, change) {
		asked = w.RevisionCreated // the operator was down
	}
	kept := baselineOf(version, old, end, asked, now)
	if len(kept.Pods) >= enoughOld {
		return kept, nil
	}
	releases, err := v.Releases(ctx, w.Namespace, w.UID)
	if err != nil {
		return nil, err
	}
	if kept = orEarlier(kept, releases); len(kept.Pods) == 0 {
		return nil, nil
	}
	return kept, nil
}

// baselineOf returns the old pods that were Ready before the end, also those that terminate by now. A release that was asked for earlier
// ends their time then, unless a pod became Ready later.
func baselineOf(version string, old []workload.Pod, end, asked, now time.Time) *v1alpha1.ReleaseBaseline {
	ready, newest := map[string]time.Time{}, time.Time{}
	var names []string
	for i := range old {
		if pod := &old[i]; pod.Ready && !pod.Ended {
			since := pod.Bounded(pod.ReadySince, now)
			ready[pod.Name], newest = since, latest(newest, since)
		}
	}
	if asked.After(newest) && asked.Before(end) {
		end = asked
	}
	for name, since := range ready {
		if since.Before(end) {
			names = append(names, name)
		}
	}
	kept := &v1alpha1.ReleaseBaseline{Version: version, EndTimeUnix: end.Unix(), Pods: []v1alpha1.BaselinePod{}}
	slices.Sort(names)
	for _, name := range promql.Sample(names, maxCompared) {
		kept.Pods = append(kept.Pods, v1alpha1.BaselinePod{Pod: name, ReadyTimeUnix: ready[name].Unix()})
	}
	return kept
}

// orEarlier returns the pods of the same version that the newest earlier release kept, if they are more: that release replaced them, and
// failed or was replaced itself.
func orEarlier(kept *v1alpha1.ReleaseBaseline, releases []v1alpha1.ChangeWorkload) *v1alpha1.ReleaseBaseline {
	found, newest := kept, int64(-1)
	for i := range releases {
		r := &releases[i]
		if b := r.Status.Baseline; b != nil && b.Version == kept.Version && len(b.Pods) > len(kept.Pods) && r.Status.ObservedRelease > newest {
			found, newest = b.DeepCopy(), r.Status.ObservedRelease
		}
	}
	return found
}

// namesBefore returns the names of the pods that a release kept.
func namesBefore(change *v1alpha1.ChangeWorkload) (names []string) {
	if b := change.Status.Baseline; b != nil {
		for _, pod := range b.Pods {
			names = append(names, pod.Pod)
		}
	}
	return names
}

// chosenOld returns the old pods of a check: those that are Ready, or the pods before the release if the check wants them, or if none is.
func chosenOld(of *v1alpha1.CompareCheck, old []workload.Pod, change *v1alpha1.ChangeWorkload) []string {
	ready := readyNames(old)
	if of.Baseline == v1alpha1.BaselinePreRelease || of.Baseline == v1alpha1.BaselineAuto && len(ready) == 0 {
		return namesBefore(change)
	}
	return ready
}

// before is the time of old pods before a release.
type before struct {
	names []string
	// ready has since when each pod was Ready.
	ready map[string]time.Time
	// end is the end of the last slice.
	end time.Time
	// words for the time.
	words string
}

// beforeOf returns the time before a release that a check compares with; nil for none.
func beforeOf(of *v1alpha1.CompareCheck, change *v1alpha1.ChangeWorkload) *before {
	kept, b := change.Status.Baseline, &before{ready: map[string]time.Time{}, words: "the release"}
	switch none := kept == nil || len(kept.Pods) == 0; {
	case of.Baseline == v1alpha1.BaselineOldPods, of.Baseline == v1alpha1.BaselineAuto && none:
		return nil
	case none:
		return b
	}
	end := time.Unix(kept.EndTimeUnix, 0)
	for _, pod := range kept.Pods {
		b.names, b.ready[pod.Pod] = append(b.names, pod.Pod), time.Unix(pod.ReadyTimeUnix, 0)
	}
	b.end = end.Add(-time.Duration(end.UnixNano() % int64(of.Slice.Duration)))
	if began := time.Unix(change.Status.StartTimeUnix, 0); began.Sub(end) > time.Minute {
		b.words = end.UTC().Format("2006-01-02 15:04 UTC") // of an earlier release, or the operator was down
	}
	return b
}

// isValid reports whether a pod was Ready and warm in all the time that a value covers.
func (c *comparison) isValid(pod string, at time.Time, covers time.Duration) bool {
	ready, some := c.before.ready[pod]
	return some && !at.Before(ready.Add(c.of.WarmUp.Duration+covers))
}

// againstBefore compares values of new pods with those of old pods before the release, for as long as their window is, or since the first
// old pod was Ready. Both times differ in their load, so that the least change is twice as large.
func (c *comparison) againstBefore(v judge.Values, m *measured) judge.Comparison {
	slice := c.of.Slice.Duration
	all := c.times(c.before.end.Add(-c.of.Window.Duration/slice*slice), c.before.end)
	all = slices.DeleteFunc(all, func(at model.Time) bool {
		return !slices.ContainsFunc(c.before.names, func(pod string) bool { return c.isValid(pod, at.Time(), c.samples) })
	})
	values, past := c.byPod(m.before), c.byPod(m.pastBefore)
	for pod, of := range values {
		for at := range of {
			if !c.isValid(pod, at.Time(), c.samples) {
				delete(of, at)
			}
		}
	}
	for pod, of := range past {
		for at := range of {
			if !c.isValid(pod, at.Time(), c.samples+c.of.Window.Duration) {
				delete(of, at)
			}
		}
	}
	v.MinChange, v.MinTimes = 2*v.MinChange, 2*v.MinTimes
	v.Old, v.Past = seriesOf(values, c.before.names, all), pastOf(past, c.before.names, v.MinChange)
	found := v.Compare()
	found.When = fmt.Sprintf("in the %s before %s", judge.Lasting(len(all), slice), c.before.words)
	return found
}

// seriesOf returns the values of pods at some times; NaN where there is none.
func seriesOf(of map[string]samplesByTime, pods []string, at []model.Time) (all []judge.Series) {
	for _, pod := range pods {
		values := make(judge.Series, len(at))
		for i := range at {
			values[i] = math.NaN()
			if value, some := of[pod][at[i]]; some {
				values[i] = value
			}
		}
		all = append(all, values)
	}
	return all
}
