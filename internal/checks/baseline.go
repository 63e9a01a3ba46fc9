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
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// enoughOld is the number of old pods with enough data that Auto needs to compare with at the same time.
const enoughOld = 2

// Baseline returns the old pods that a release keeps for comparisons with the time before it. It returns nil if no check needs them, or if
// the release has them. Until the first batch it tries again: the cache may not have had the previous version.
func Baseline(
	ctx context.Context, v cluster.View, w *workload.Workload, change *v1alpha1.ChangeWorkload, batches []v1alpha1.ChangePod, now time.Time,
) (*v1alpha1.ReleaseBaseline, error) {
	if w.WithoutPods {
		return nil, nil
	}
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
	var needed time.Duration // by the check with the longest window
	for _, c := range policy.Select(policies, v.Operator, of).At(v1alpha1.StageBatchPost) {
		if c.Compare != nil && c.Compare.Baseline != v1alpha1.BaselineOldPods {
			needed = max(needed, c.Compare.WarmUp.Duration+c.Compare.Window.Duration)
		}
	}
	if needed == 0 {
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
	past, err := v.Past(ctx, w.Namespace, w.UID)
	if err != nil {
		return nil, err
	}
	kept := orEarlier(baselineOf(version, old, end, now), needed, past)
	if len(kept.Pods) == 0 {
		return nil, nil
	}
	return kept, nil
}

// baselineOf returns the old pods that were Ready before the end. A pod that terminates counts while it is Ready.
func baselineOf(version string, old []workload.Pod, end, now time.Time) *v1alpha1.ReleaseBaseline {
	ready := map[string]time.Time{}
	var names []string
	for i := range old {
		pod := &old[i]
		if since := pod.Bounded(pod.ReadySince, now); pod.Ready && !pod.Ended && since.Before(end) {
			ready[pod.Name], names = since, append(names, pod.Name)
		}
	}
	kept := &v1alpha1.ReleaseBaseline{Version: version, EndTimeUnix: end.Unix(), Pods: []v1alpha1.BaselinePod{}}
	slices.Sort(names)
	for _, name := range promql.Sample(names, maxCompared) {
		kept.Pods = append(kept.Pods, v1alpha1.BaselinePod{Pod: name, ReadyTimeUnix: ready[name].Unix()})
	}
	return kept
}

// orEarlier returns the pods of the same version that the newest earlier release kept, if no pod was Ready for as long as needed: that
// release replaced them, and failed or was replaced itself. A release that was rolled back, or is older than the last success of the
// version, does not count: other pods of the version have run since.
func orEarlier(kept *v1alpha1.ReleaseBaseline, needed time.Duration, past rollback.Past) *v1alpha1.ReleaseBaseline {
	newest := int64(math.MaxInt64)
	for _, h := range past.History {
		if h.Version == kept.Version {
			newest = h.Release
		}
	}
	since := kept.EndTimeUnix - int64(needed.Seconds())
	if slices.ContainsFunc(kept.Pods, func(pod v1alpha1.BaselinePod) bool { return pod.ReadyTimeUnix <= since }) {
		return kept
	}
	for i := range past.Changes {
		s := &past.Changes[i].Status
		if b := s.Baseline; b != nil && b.Version == kept.Version && s.Status != v1alpha1.ChangeWorkloadRollback && s.ObservedRelease > newest {
			kept, newest = b.DeepCopy(), s.ObservedRelease
		}
	}
	return kept
}

// hasLive reports whether a check has old pods to compare with at the same time.
func hasLive(of *v1alpha1.CompareCheck, live []string) bool {
	return of.Baseline != v1alpha1.BaselinePreRelease && len(live) > 0
}

// hasKept reports whether a check has pods before the release to compare with. An undo keeps none.
func hasKept(of *v1alpha1.CompareCheck, change *v1alpha1.ChangeWorkload) bool {
	return of.Baseline != v1alpha1.BaselineOldPods && change.Status.Baseline != nil && len(change.Status.Baseline.Pods) > 0
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
	if !hasKept(of, change) {
		return nil
	}
	kept, b := change.Status.Baseline, &before{ready: map[string]time.Time{}, words: "the release"}
	end := time.Unix(kept.EndTimeUnix, 0)
	for _, pod := range kept.Pods {
		b.names, b.ready[pod.Pod] = append(b.names, pod.Pod), time.Unix(pod.ReadyTimeUnix, 0)
	}
	b.end = end.Add(-time.Duration(end.UnixNano() % int64(of.Slice.Duration)))
	if began := time.Unix(change.Status.StartTimeUnix, 0); began.Sub(end) > time.Minute {
		b.words = end.UTC().Format("2006-01-02 15:04 UTC") // before an earlier release
	}
	return b
}

// isValid reports whether a pod was Ready and warm in all the time that a value covers.
func (c *comparison) isValid(pod string, at time.Time, covers time.Duration) bool {
	ready, some := c.before.ready[pod]
	return some && !at.Before(ready.Add(c.of.WarmUp.Duration+covers))
}

// againstBefore compares values of new pods with those of old pods before the release, for as long as their window is, or since the first
// old pod was Ready. The load differs between both times, so the least change has to be exceeded twice.
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
	v.Wide = true
	v.Old, v.Past = seriesOf(values, c.before.names, all), pastOf(past, c.before.names, v.MinChange)
	found := v.Compare()
	if found.When = fmt.Sprintf("in the %s before %s", judge.Lasting(len(all), slice), c.before.words); len(all) == 0 {
		found.When = "that were Ready for long enough before " + c.before.words
	}
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
