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
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// keeps lets the release of a check keep pods that were Ready for a time until it began, some time before the check.
func (r *ruled) keeps(mode v1alpha1.CompareBaseline, earlier, ready time.Duration, names ...string) {
	r.s.Policies[0].Spec.Checks[0].Compare.Baseline = mode
	end := r.began.Add(-earlier)
	b := &v1alpha1.ReleaseBaseline{Version: "v1", EndTimeUnix: end.Unix()}
	for _, name := range names {
		b.Pods = append(b.Pods, v1alpha1.BaselinePod{Pod: name, ReadyTimeUnix: end.Add(-ready).Unix()})
	}
	r.s.Release.Status.Baseline, r.s.Release.Status.StartTimeUnix = b, end.Unix()
}

// lose deletes the old pods.
func (r *ruled) lose() {
	r.Helper()
	for _, name := range r.check().OldPods {
		if err := r.api.Delete(r.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}); err != nil {
			r.Fatal(err)
		}
	}
}

func oldNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("old-", i))
	}
	return names
}

// TestBaselines compares with old pods at the same time or before the release. Old pods end at some time after the start of the check.
func TestBaselines(t *testing.T) {
	const auto, pre = v1alpha1.BaselineAuto, v1alpha1.BaselinePreRelease
	usual := exported{requests: 600, errors: 1, latency: 0.2}
	slow, slower := usual, usual
	slow.latency, slower.latency = 0.3, 0.7
	gone := func(at time.Duration) exported {
		e := usual
		e.until = at
		return e
	}
	values, shares := []v1alpha1.CompareMetric{slowness()}, []v1alpha1.CompareMetric{errorShare()}
	both := slices.Concat(shares, values)
	const against = " against 0.197 in 5 old ones in the 5 minutes before the release: "
	for _, tc := range []struct {
		name       string
		mode       v1alpha1.CompareBaseline
		fresh, old exported
		metrics    []v1alpha1.CompareMetric
		// batch is the number of the batch, and earlier the phase of the check of the batch before.
		batch   int32
		earlier v1alpha1.CheckPhase
		phase   v1alpha1.CheckPhase
		reason  string
		message string
		within  time.Duration
	}{
		{"healthy", pre, usual, gone(-time.Second), values, 1, "", v1alpha1.CheckPassed, v1alpha1.ReasonPassed,
			"latency: 0.202 in 2 new pods" + against + "+2 %", 9 * time.Minute},
		{"more than three times as slow", pre, slower, gone(-time.Second), values, 1, "", v1alpha1.CheckFailed, v1alpha1.ReasonWorse,
			"latency: 0.706 in 2 new pods" + against + "+258 %", 9 * time.Minute},
		{"half as slow again, which old pods at the same time show", "", slow, usual, values, 1, "", v1alpha1.CheckFailed,
			v1alpha1.ReasonWorse, "latency: 0.303 in 2 new pods against 0.202 in 5 old ones: +50 %", 11 * time.Minute},
		{"half as slow again, which may be the load", pre, slow, gone(-time.Second), values, 1, "", v1alpha1.CheckPassed, v1alpha1.ReasonPassed,
			"+53 %", 9 * time.Minute},
		{"old pods that live do not count", pre, slower, exported{latency: 0.7, formerly: 0.2, changed: 0}, values, 1, "", v1alpha1.CheckFailed,
			v1alpha1.ReasonWorse, against + "+258 %", 9 * time.Minute},
		{"the series of the kept pods are gone", pre, usual, gone(-24 * time.Hour), values, 1, "", v1alpha1.CheckNoData, v1alpha1.ReasonFewData,
			"2 new pods and 0 old ones in the 5 minutes before the release have enough data", 13 * time.Minute},

		{"old pods live", auto, usual, usual, both, 1, "", v1alpha1.CheckPassed, v1alpha1.ReasonPassed,
			"latency: 0.202 in 2 new pods against 0.202 in 5 old ones: +0 %", 9 * time.Minute},
		{"old pods were gone", auto, usual, gone(-time.Second), values, 1, "", v1alpha1.CheckPassed, v1alpha1.ReasonPassed,
			against, 9 * time.Minute},
		{"old pods were gone, and new ones are slower", auto, slower, gone(-time.Second), values, 1, "", v1alpha1.CheckFailed,
			v1alpha1.ReasonWorse, against, 9 * time.Minute},
		{"old pods leave", auto, slower, gone(3 * time.Minute), values, 1, "", v1alpha1.CheckFailed, v1alpha1.ReasonWorse,
			against, 9 * time.Minute},
		{"no share was compared", auto, usual, gone(-time.Second), both, 1, "", v1alpha1.CheckInconclusive, v1alpha1.ReasonNoOldPods,
			"errors: not compared", 9 * time.Minute},
		{"no share was compared, nor before", auto, usual, gone(-time.Second), shares, 2, v1alpha1.CheckInconclusive,
			v1alpha1.CheckInconclusive, v1alpha1.ReasonNoOldPods, "errors: not compared", 9 * time.Minute},
		{"no share was compared now", auto, usual, gone(-time.Second), both, 2, v1alpha1.CheckPassed,
			v1alpha1.CheckSkipped, v1alpha1.ReasonNoOldPods, "; an earlier batch was compared", 9 * time.Minute},
		{"a value is worse after shares were compared", auto, slower, gone(-time.Second), both, 2, v1alpha1.CheckPassed,
			v1alpha1.CheckFailed, v1alpha1.ReasonWorse, against, 9 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newComparing(t, newRanges(t, fleet(tc.fresh, 5, tc.old)), 5, tc.metrics...)
			r.keeps(tc.mode, 0, time.Hour, oldNames(5)...)
			if tc.old.until != 0 {
				r.lose()
			}
			if tc.batch > 1 {
				first := r.s.Batch.DeepCopy()
				first.Status.Checks[0].Phase = tc.earlier
				first.UID = "first"
				first.OwnerReferences = []metav1.OwnerReference{cluster.OwnerReference("v1", "ChangeWorkload", r.s.Release.Name, r.s.Release.UID)}
				r.create(first)
				r.s.Batch.Name = record.BatchName(r.s.Workload, r.s.Release.Spec.Reversion, tc.batch)
			}
			for at := 90 * time.Second; at < 20*time.Minute; at += 4 * time.Minute { // another process decides the same
				r.run(at)
				r.restarted()
			}
			r.run(20 * time.Minute)
			r.ends(tc.phase, tc.reason, tc.message)
			if took := r.clock.Now().Sub(r.began); took > tc.within {
				t.Errorf("it took %s", took)
			}
		})
	}
}

// TestBaselineWatches: a check in the background that did not compare a share has not passed, and that is written.
func TestBaselineWatches(t *testing.T) {
	usual := exported{requests: 600, latency: 0.2}
	r := newComparing(t, newRanges(t, fleet(usual, 5, exported{latency: 0.2, until: -time.Second})), 5, errorShare(), slowness())
	r.keeps(v1alpha1.BaselineAuto, 0, time.Hour, oldNames(5)...)
	r.lose()
	r.s.Policies[0].Spec.Checks[0].Wait = new(bool)
	r.check().Background, r.check().Phase = true, v1alpha1.CheckWatching
	r.run(20 * time.Minute)
	r.ends(v1alpha1.CheckInconclusive, v1alpha1.ReasonNoOldPods, "errors: not compared")
}

// TestBaselineNone: without old pods that were kept, or live, nothing is compared, and nothing passes.
func TestBaselineNone(t *testing.T) {
	for mode, message := range map[v1alpha1.CompareBaseline]string{
		v1alpha1.BaselineOldPods: "hold the rollout (spec.hold)", v1alpha1.BaselinePreRelease: "none was known when the release began",
		v1alpha1.BaselineAuto: "none was known when the release began",
	} {
		of := &v1alpha1.CompareCheck{Baseline: mode}
		if hasLive(of, nil) || hasKept(of, &v1alpha1.ChangeWorkload{}) {
			t.Errorf("%s: old pods", mode)
		}
		r := newComparing(t, newRanges(t, nil), 0, slowness())
		r.keeps(mode, 0, time.Hour)
		check := policy.Find(r.s.Policies, "operator", r.s.Selected, r.check().Name)
		c := notCompared(*r.check(), check, 1, "", false)
		if c.Phase != v1alpha1.CheckInconclusive || c.Reason != v1alpha1.ReasonNoOldPods || !strings.Contains(c.Message, message) {
			t.Errorf("%s: %s %s %s", mode, c.Phase, c.Reason, c.Message)
		}
		if got, want := isCompared(check, 2, false), mode == v1alpha1.BaselineOldPods; got != want {
			t.Errorf("%s: an earlier batch was compared: %t", mode, got)
		}
	}
}

// TestBaselineBadNow: a bad version has replaced all pods of a StatefulSet, and the next one is as bad. Its pods have the names of the
// pods before both, and are no old pods.
func TestBaselineBadNow(t *testing.T) {
	pods, names := map[string]exported{}, []string{"web-0", "web-1", "web-2", "web-3", "web-4"}
	for _, name := range names {
		pods[name] = exported{latency: 0.9, formerly: 0.2, changed: -time.Hour}
	}
	r := newComparing(t, newRanges(t, pods), 0, slowness())
	r.keeps(v1alpha1.BaselineAuto, time.Hour, time.Hour, names...)
	for _, name := range []string{"web-0", "web-3", "web-4"} {
		r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
	}
	begin, err := Begin(t.Context(), r.checks.query.view, &r.s)
	if err != nil || len(begin) != 1 {
		t.Fatal(begin, err)
	}
	r.check().OldPods = begin[0].Status.OldPods
	r.run(20 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonWorse, " in 5 old ones in the 5 minutes before the release: +3")
}

// TestBaselineConfirms: old pods leave before a change is confirmed. Another baseline does not confirm it, nor clear it.
func TestBaselineConfirms(t *testing.T) {
	for _, mode := range []v1alpha1.CompareBaseline{"", v1alpha1.BaselineAuto} {
		for _, until := range []time.Duration{6 * time.Minute, 7 * time.Minute, 450 * time.Second} {
			usual := exported{latency: 0.2, until: until}
			r := newComparing(t, newRanges(t, fleet(exported{latency: 0.3}, 5, usual)), 5, slowness())
			r.keeps(mode, 0, time.Hour, oldNames(5)...)
			r.run(6*time.Minute + 40*time.Second)
			r.lose()
			r.run(20 * time.Minute)
			r.ends(v1alpha1.CheckInconclusive, v1alpha1.ReasonUnsteady, " in 5 old ones: +")
		}
	}
}

// TestBaselineDecrease: a fall has to exceed the least change twice, too, and can.
func TestBaselineDecrease(t *testing.T) {
	for percent, phase := range map[float64]v1alpha1.CheckPhase{0.02: v1alpha1.CheckFailed, 0.08: v1alpha1.CheckPassed} {
		throughput := slowness()
		throughput.Direction, throughput.MinChangePercent = v1alpha1.CompareDecrease, ptr.To[int32](50)
		r := newComparing(t, newRanges(t, fleet(exported{latency: percent}, 5, exported{latency: 0.2})), 5, throughput)
		r.keeps(v1alpha1.BaselinePreRelease, 0, time.Hour, oldNames(5)...)
		r.run(20 * time.Minute)
		r.ends(phase, r.check().Reason, " in 5 old ones in the 5 minutes before the release: -")
	}
}

// TestBaselineAsks: only answers that the decision reads are asked for, so that no other one's error decides.
func TestBaselineAsks(t *testing.T) {
	const past = `quantile_over_time(0.5, (latency_seconds{namespace="ns",pod=~"`
	usual := exported{latency: 0.2}
	for name, tc := range map[string]struct {
		mode    v1alpha1.CompareBaseline
		until   time.Duration
		refused string
		queries int
	}{
		"old pods live": {v1alpha1.BaselineAuto, 0, `pod=~"old-0|old-1|old-2|old-3|old-4"`, 2},
		"PreRelease":    {v1alpha1.BaselinePreRelease, 0, past + `web-`, 3},
		"old pods gone": {v1alpha1.BaselineAuto, -time.Second, past + `old-0|old-1|old-2|old-3|old-4|web-`, 3},
	} {
		usual.until = tc.until
		server := newRanges(t, fleet(exported{latency: 0.2}, 5, usual))
		server.refused = tc.refused
		r := newComparing(t, server, 5, slowness())
		r.keeps(tc.mode, 0, time.Hour, oldNames(5)...)
		r.run(20 * time.Minute)
		r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, " in 5 old ones")
		asked := slices.Compact(slices.Sorted(slices.Values(server.asked)))
		if len(asked) != tc.queries {
			t.Errorf("%s: asked %s", name, strings.Join(asked, "\n"))
		}
	}
}

// TestBaselineDiscovers: with PreRelease Auto finds only values.
func TestBaselineDiscovers(t *testing.T) {
	server := newRanges(t, fleet(exported{latency: 0.2}, 5, exported{latency: 0.2}))
	server.found = `{"metric":{"__name__":"http_server_request_duration_seconds_count"},"value":[0,"1"]}`
	r := newComparing(t, server, 5)
	r.s.Policies[0].Spec.Checks[0].Compare.Presets = []v1alpha1.ComparePreset{v1alpha1.PresetAuto}
	r.keeps(v1alpha1.BaselinePreRelease, 0, time.Hour, oldNames(5)...)
	r.run(20 * time.Minute)
	if len(server.discovered) == 0 || slices.ContainsFunc(server.asked, func(q string) bool { return strings.Contains(q, "5..") }) {
		t.Errorf("discovered %v, asked %s", server.discovered, strings.Join(server.asked, "\n"))
	}
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "otel-latency: ")
}

// TestPassedEarlier: a check in the background writes that it passed, and another batch counts only that.
func TestPassedEarlier(t *testing.T) {
	usual := exported{requests: 600, latency: 0.2}
	r := newComparing(t, newRanges(t, fleet(usual, 5, usual)), 5, errorShare())
	r.keeps(v1alpha1.BaselineAuto, 0, time.Hour, oldNames(5)...)
	r.s.Policies[0].Spec.Checks[0].Wait = new(bool)
	r.check().Background, r.check().Phase = true, v1alpha1.CheckWatching
	next := r.s.Batch.DeepCopy()
	next.Name = record.BatchName(r.s.Workload, r.s.Release.Spec.Reversion, 2)
	// Nothing was measured until the deadline.
	r.clock.SetTime(r.began.Add(24 * time.Hour))
	if passedEarlier([]v1alpha1.ChangePod{*r.s.Batch}, next, r.check().Name) {
		t.Error("a check that was never evaluated counts")
	}
	r.clock.SetTime(r.began)
	r.run(20 * time.Minute)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "errors: ")
	if !passedEarlier([]v1alpha1.ChangePod{*r.s.Batch}, next, r.check().Name) {
		t.Error("a check that passed does not count")
	}
}

// TestBaselineOfStatefulSet: only the time counts in which the pods of these names were those of the previous version, and warm: a version
// that failed may have had the names before and has them now.
func TestBaselineOfStatefulSet(t *testing.T) {
	for name, tc := range map[string]struct {
		latency float64
		phase   v1alpha1.CheckPhase
	}{"slower": {0.9, v1alpha1.CheckFailed}, "healthy": {0.2, v1alpha1.CheckPassed}} {
		t.Run(name, func(t *testing.T) {
			const ready = 8 * time.Minute
			pods := map[string]exported{}
			names := []string{"web-0", "web-1", "web-2", "web-3", "web-4"}
			for _, name := range names {
				// A bad version until the previous one was released again; the new one since 10 minutes.
				pods[name] = exported{latency: tc.latency, formerly: 0.2, changed: -10 * time.Minute, bad: 2, fixed: -10*time.Minute - ready}
			}
			r := newComparing(t, newRanges(t, pods), 0, slowness())
			c := r.s.Policies[0].Spec.Checks[0].Compare
			c.Window, c.MaxWindow = &metav1.Duration{Duration: 20 * time.Minute}, &metav1.Duration{Duration: 40 * time.Minute}
			r.s.Policies[0].Spec.Checks[0].Deadline = &metav1.Duration{Duration: time.Hour}
			r.keeps(v1alpha1.BaselineAuto, 10*time.Minute, ready, names...)
			r.check().OldPods = []string{"web-1", "web-2"}
			r.run(time.Hour)
			r.ends(tc.phase, r.check().Reason, " in 5 old ones in the 5 minutes before the release: ")
		})
	}
}

// TestBaselineOfLongRelease: the time before a release is the same, however long it takes.
func TestBaselineOfLongRelease(t *testing.T) {
	const earlier = 30 * time.Hour
	pods := fleet(exported{latency: 0.7}, 5, exported{latency: 0.2, until: -earlier})
	r := newComparing(t, newRanges(t, pods), 5, slowness())
	r.keeps(v1alpha1.BaselineAuto, earlier, time.Hour, oldNames(5)...)
	r.lose()
	r.run(20 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "against 0.2 in 5 old ones in the 5 minutes before the release: +253 %")
	// An earlier release, which this one replaced, kept the pods.
	r = newComparing(t, newRanges(t, pods), 5, slowness())
	r.keeps(v1alpha1.BaselineAuto, earlier, time.Hour, oldNames(5)...)
	r.s.Release.Status.StartTimeUnix = r.began.Unix()
	r.lose()
	r.run(20 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonWorse, "5 minutes before "+r.began.Add(-earlier).UTC().Format("2006-01-02 15:04")+" UTC: ")
}

// TestBaselineOf has the pods that a release keeps.
func TestBaselineOf(t *testing.T) {
	pod := func(name string, since time.Duration, with ...func(*workload.Pod)) workload.Pod {
		p := workload.Pod{Name: name, Ready: true, ReadySince: testNow.Add(since), Created: testNow.Add(-24 * time.Hour)}
		for _, change := range with {
			change(&p)
		}
		return p
	}
	old := []workload.Pod{
		pod("b", -time.Hour), pod("a", -2*time.Hour), pod("terminates", -time.Hour, func(p *workload.Pod) { p.Terminating = true }),
		pod("ended", -time.Hour, func(p *workload.Pod) { p.Ended = true }), pod("unready", -time.Hour, func(p *workload.Pod) { p.Ready = false }),
	}
	later := append(slices.Clone(old), pod("later", -time.Minute))
	for name, tc := range map[string]struct {
		old  []workload.Pod
		end  time.Duration
		want []string
	}{
		"at the start":                      {later, 0, []string{"a", "b", "later", "terminates"}},
		"later, as the cache was behind":    {later, -2 * time.Minute, []string{"a", "b", "terminates"}},
		"no pod was Ready before the start": {later[5:], -2 * time.Minute, nil},
	} {
		got := baselineOf("v1", tc.old, testNow.Add(tc.end), testNow)
		var names []string
		for _, pod := range got.Pods {
			names = append(names, pod.Pod)
		}
		if !slices.Equal(names, tc.want) {
			t.Errorf("%s: pods %v, want %v", name, names, tc.want)
		}
		if end := time.Unix(got.EndTimeUnix, 0); !end.Equal(testNow.Add(tc.end).Truncate(time.Second)) {
			t.Errorf("%s: it ends at %s", name, end)
		}
	}
	var many []workload.Pod
	for i := range 500 {
		many = append(many, pod(fmt.Sprintf("web-%03d", i), -time.Hour))
	}
	first := baselineOf("v1", many, testNow, testNow)
	slices.Reverse(many)
	if again := baselineOf("v1", many, testNow, testNow); len(first.Pods) != 100 || !slices.Equal(first.Pods, again.Pods) {
		t.Errorf("%d pods: %v, and then %v", len(first.Pods), first.Pods, again.Pods)
	}
	spread := map[string]int{}
	for _, pod := range first.Pods {
		spread[pod.Pod[:5]]++
	}
	for _, prefix := range []string{"web-0", "web-1", "web-2", "web-3", "web-4"} {
		if spread[prefix] < 10 {
			t.Errorf("the sample is not even: %v", spread)
		}
	}
}

// TestOrEarlier: a release that replaces one that failed compares with the version before both, unless the version has run since.
func TestOrEarlier(t *testing.T) {
	with := func(version string, ready ...time.Duration) *v1alpha1.ReleaseBaseline {
		b := &v1alpha1.ReleaseBaseline{Version: version, EndTimeUnix: testNow.Unix()}
		for _, d := range ready {
			b.Pods = append(b.Pods, v1alpha1.BaselinePod{ReadyTimeUnix: testNow.Add(-d).Unix()})
		}
		return b
	}
	record := func(release int64, status v1alpha1.ChangeWorkloadStatusType, b *v1alpha1.ReleaseBaseline) (c v1alpha1.ChangeWorkload) {
		c.Status.ObservedRelease, c.Status.Status, c.Status.Baseline = release, status, b
		return c
	}
	const suspended, reversed = v1alpha1.ChangeWorkloadSuspend, v1alpha1.ChangeWorkloadRollback
	five := with("v1", 1, 2, 3, 4, 5)
	for name, tc := range map[string]struct {
		kept      *v1alpha1.ReleaseBaseline
		succeeded int64
		releases  []v1alpha1.ChangeWorkload
		want      int
	}{
		"the newest of that version": {with("v1"), 1, []v1alpha1.ChangeWorkload{
			record(2, suspended, with("v1", 1)), record(4, suspended, five), record(3, suspended, with("v1", 1)),
			record(5, suspended, with("v2", 1)), record(6, suspended, nil),
		}, 5},
		"one pod lives for long enough": {with("v1", 6*time.Minute), 1, []v1alpha1.ChangeWorkload{record(2, suspended, five)}, 1},
		"one pod was just created":      {with("v1", time.Minute), 1, []v1alpha1.ChangeWorkload{record(2, suspended, five)}, 5},
		"it was rolled back":            {with("v1", time.Minute), 1, []v1alpha1.ChangeWorkload{record(2, reversed, five)}, 1},
		"it succeeded again":            {with("v1", time.Minute), 3, []v1alpha1.ChangeWorkload{record(2, suspended, five)}, 1},
		"of another version":            {with("v3"), 1, []v1alpha1.ChangeWorkload{record(2, suspended, five)}, 0},
	} {
		history := []workload.Revision{{Version: "v1", Release: tc.succeeded}, {Version: "v3", Release: 1}}
		got := orEarlier(tc.kept, 6*time.Minute, rollback.Past{Changes: tc.releases, History: history})
		if len(got.Pods) != tc.want || got.Version != tc.kept.Version {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
