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

package world

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// Story is a sequence of acts of users, and their expected results.
type Story struct {
	Name    string
	Options Options
	// Run acts, and waits for the expected results. It fails by Failf, and must not read what a
	// fault may change: how often or when something was written.
	Run func(w *World)
	// Moving: users act while pods come and go, so the number of pods verified before is a matter
	// of time. Then only the ending is compared, not the number of created and removed objects.
	Moving bool
	// Pending has known defects, by the text of the fault and its write. A pending fault without a
	// problem fails the test, too.
	Pending map[string]string
}

// Ending is how a story ended.
type Ending struct {
	// Writes and Calls are the operator's.
	Writes, Calls []string
	// State is the final state, without differences between runs.
	State string
	// Counts are the numbers of created and removed objects.
	Counts string
	// Hit is the write or call of the fault; empty if the story has no such write.
	Hit string
	// Problem is why the story was ended; empty if it was not.
	Problem string
	// Violations are the violated invariants, Errors the errors that the operator logged.
	Violations, Errors []string
	// Undelivered: a failing verdict was sent while no replica could accept it. The server sends it
	// once, so the story may end as without it.
	Undelivered bool
	// Log is set with Options.Verbose.
	Log string
}

// without lets mutants show that only one invariant notices them.
var without = flag.String("observer.without", "", "the invariant that is not judged")

// Play runs a story once.
func Play(t *testing.T, s Story, o Options) (e Ending) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		w := New(o)
		defer func() { e.Log = w.Log() }()
		defer w.Close()
		e.Problem = w.run(s)
		e.Writes, e.Calls, e.Hit = w.writes, w.calls, w.hit
		e.State, e.Counts, e.Undelivered = w.state(), w.counts(), w.Undelivered()
		e.Errors = w.errors
		if w.server != nil && e.Problem == "" {
			w.api.violations = append(w.api.violations, w.api.judge.Delivered(w.server.acknowledged())...)
		}
		for _, v := range w.api.violations {
			if string(v.Invariant) != *without {
				e.Violations = append(e.Violations, v.String())
			}
		}
		if e.Problem == "" {
			open := w.api.judge.Unfinished([]string{Namespace}, time.Now())
			e.Violations = append(e.Violations, slices.DeleteFunc(open, func(o string) bool { return strings.HasPrefix(o, *without+": ") })...)
		}
	})
	return e
}

// Bench runs a story in a benchmark, which has no bubble itself, and fails the benchmark if the
// story fails. Time in the bubble is not real: a [Watch] measures it.
func Bench(b *testing.B, s Story) {
	b.Helper()
	done, problem := false, ""
	var violations []observer.Violation
	run := func(t *testing.T) {
		if done {
			return // tests are repeated as benchmarks are
		}
		done = true
		synctest.Test(t, func(*testing.T) {
			w := New(s.Options)
			defer w.Close()
			problem = w.run(s)
			violations = w.api.violations
		})
	}
	all := func(string, string) (bool, error) { return true, nil }
	if !testing.RunTests(all, []testing.InternalTest{{Name: b.Name(), F: run}}) || problem != "" || len(violations) > 0 {
		b.Fatalf("%s: %s %v", s.Name, problem, violations)
	}
}

// run runs a story to its end, and waits until nothing happens.
func (w *World) run(s Story) (problem string) {
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(failure)
			if !ok {
				panic(p)
			}
			problem = f.why
		}
	}()
	s.Run(w)
	w.Rest()
	return ""
}

// differs are the texts that differ between runs.
var (
	differs = []struct {
		// has is a part of each matching text: searching it is much quicker.
		has string
		is  *regexp.Regexp
		as  string
	}{
		{"-0000-4000-8000-", regexp.MustCompile(`[0-9a-f]{8}-0000-4000-8000-\d{12}`), "UID"},
		{"-", regexp.MustCompile(`(-[0-9a-f]{8})-\d{5}\b`), "$1-POD"},
		{":", regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?`), "TIME"},
		// The name of a Job has a hash of UIDs.
		{"web-health-", regexp.MustCompile(`\bweb-health-[0-9a-f]{10}\b`), "web-health-JOB"},
		{"activeDeadline", regexp.MustCompile(`activeDeadlineSeconds": \d+`), `activeDeadlineSeconds": "NUMBER"`},
		// The ID of an order contains the UID of its release, and ends with the time of its start.
		{"cluster-", regexp.MustCompile(`\bcluster-\w{32}-(\w{32}-\d+-\d+)-\w{8}\b`), "cluster-UID-$1-BEGUN"},
		// It is a matter of time whether the answer to an accepted submission arrived.
		{" when asked", regexp.MustCompile(`(,? as the server said)? when asked`), ""},
		{", and a poll confirmed it", regexp.MustCompile(`, and a poll confirmed it`), ""},
		{"AlterShield Server has", regexp.MustCompile(`AlterShield Server has the order already`), "AlterShield Server accepted the order"},
		{"-", regexp.MustCompile(`\b(node|order)-\d+-\d{6}\b`), "$1-ID"},
		{`": "`, regexp.MustCompile(`(quarantined|override|suspend|operate-finished|rollback-requested)(-reported)?": "\d+"`), `$1$2": "NUMBER"`},
		{"override", regexp.MustCompile(`(override": "[0-9a-f]{32}) \d+ `), "$1 VERSION "},
		{"opted-out", regexp.MustCompile(`(opted-out": "\d+) \d+ `), "$1 SECONDS "},
	}
	dropped = []string{
		"uid", "resourceVersion", "creationTimestamp", "generation", "observedGeneration", "managedFields", "lastTransitionTime",
		"startedAt", "time", "timeUnix", "orderUrl", "folded", "blockAtStart",
	}
)

// state returns the objects that remain in the namespace, by kind and name.
func (w *World) state() string {
	var parts []string
	for k, o := range w.api.objects {
		if k.namespace != Namespace {
			continue
		}
		if c, ok := o.(*v1alpha1.ChangeWorkload); ok {
			o = w.withoutRepeated(c)
		}
		if b, ok := o.(*v1alpha1.ChangePod); ok && w.foldable(b) {
			continue
		}
		if rs, ok := o.(*appsv1.ReplicaSet); ok && *rs.Spec.Replicas == 0 {
			rs = rs.DeepCopy()
			rs.Spec.MinReadySeconds = 0 // the pace of a hold when it was replaced, and no pod has it
			o = rs
		}
		var content any
		must(json.Unmarshal(textOf(o), &content))
		text, err := json.MarshalIndent(scrub(content), "", " ")
		must(err)
		for _, d := range differs {
			if bytes.Contains(text, []byte(d.has)) {
				text = d.is.ReplaceAll(text, []byte(d.as))
			}
		}
		parts = append(parts, k.kind+"\n"+string(text))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// foldable reports whether a batch may be folded: the moment is a matter of time. So is the number
// of pods that an earlier attempt still has.
func (w *World) foldable(b *v1alpha1.ChangePod) bool {
	for _, c := range list[*v1alpha1.ChangeWorkload](w.api, "ChangeWorkload", Namespace) {
		if metav1.IsControlledBy(b, c) && b.Spec.Attempt < c.Status.Attempt {
			return !record.BatchFails(b)
		}
	}
	if b.Status.Status != v1alpha1.ChangePodExecuteDone || record.BatchFails(b) {
		return false
	}
	return !slices.ContainsFunc(b.Spec.PodInfos, func(info v1alpha1.PodInfo) bool {
		return slices.ContainsFunc(w.Pods(), func(p *corev1.Pod) bool { return string(p.UID) == info.UID })
	})
}

// withoutRepeated drops the verdicts on order entries of repeated starts that equal the verdict of
// a batch: if the answer to a start is lost, the server makes another order entry, and checks both.
func (w *World) withoutRepeated(c *v1alpha1.ChangeWorkload) *v1alpha1.ChangeWorkload {
	c = c.DeepCopy()
	batches := w.Batches(c)
	c.Status.UnclaimedVerdicts = slices.DeleteFunc(c.Status.UnclaimedVerdicts, func(u v1alpha1.UnclaimedVerdict) bool {
		known := slices.ContainsFunc(batches, func(b *v1alpha1.ChangePod) bool { return b.Status.ChangePodID == u.NodeID })
		return !known && u.NodeID != c.Status.OrderNodeID && slices.ContainsFunc(batches, func(b *v1alpha1.ChangePod) bool {
			v := b.Status.PreVerdict
			if u.Stage == v1alpha1.StagePost {
				v = b.Status.PostVerdict
			}
			return v != nil && v.Verdict == u.Verdict && v.Message == u.Message
		})
	})
	// A repeated call takes longer, and the release may have reported that.
	c.Status.ServerWaitReported = false
	return c
}

// scrub drops times, and the numbers of versions.
func scrub(content any) any {
	switch c := content.(type) {
	case map[string]any:
		dropChance(c)
		for k, v := range c {
			if strings.HasSuffix(k, "Verdict") && passes(v) {
				delete(c, k)
				continue
			}
			if k == "unclaimedVerdicts" {
				c[k] = slices.DeleteFunc(scrub(v).([]any), passes) //nolint:errcheck // it is a list
				if len(c[k].([]any)) == 0 {                        //nolint:errcheck // it is a list
					delete(c, k)
				}
				continue
			}
			if slices.Contains(dropped, k) || strings.HasSuffix(k, "Time") || strings.HasSuffix(k, "TimeUnix") {
				delete(c, k)
			} else {
				c[k] = scrub(v)
			}
		}
	case []any:
		for i := range c {
			c[i] = scrub(c[i])
		}
		c = slices.DeleteFunc(c, isRepeated)
		content = c
		// Conditions are in the order in which they were first set.
		slices.SortStableFunc(c, func(a, b any) int { return strings.Compare(typeOf(a), typeOf(b)) })
	}
	return content
}

// dropChance drops conditions of a release whose end is a matter of time: whether a passing verdict
// on its order came before the release was replaced, whether a workload was blocked before it was
// rolled back, if a block was denied, whether the pods of a successful release were seen to go
// before the release was replaced, and whether the pods of a failed release were seen to fail
// before a check failed.
func dropChance(status map[string]any) {
	ended := status["status"] == string(v1alpha1.ChangeWorkloadRollback) || status["status"] == string(v1alpha1.ChangeWorkloadCanceled)
	if steps, _ := status["orderSteps"].([]any); ended {
		status["orderSteps"] = slices.DeleteFunc(steps, func(step any) bool {
			m, _ := step.(map[string]any)
			return m["type"] == v1alpha1.StepPreChecked && m["status"] != "False"
		})
		if len(steps) == 0 {
			delete(status, "orderSteps")
		}
	}
	conditions, _ := status["conditions"].([]any)
	status["conditions"] = slices.DeleteFunc(conditions, func(condition any) bool {
		m, _ := condition.(map[string]any)
		switch status["status"] {
		case string(v1alpha1.ChangeWorkloadRollback), string(v1alpha1.ChangeWorkloadCanceled):
			return m["type"] == v1alpha1.ConditionBlocked || m["type"] == v1alpha1.ConditionServer && m["status"] != "False"
		case string(v1alpha1.ChangeWorkloadSuspend):
			return m["type"] == v1alpha1.ConditionProven
		case string(v1alpha1.ChangeWorkloadSuccess):
			return m["type"] == v1alpha1.ConditionVerified && m["status"] != "False"
		default:
			return false
		}
	})
	if len(conditions) == 0 {
		delete(status, "conditions")
	}
}

// passes reports whether a verdict passes: it is a matter of time whether it was delivered or
// polled, or waited for its node to be known.
func passes(verdict any) bool {
	m, _ := verdict.(map[string]any)
	return m["verdict"] == "pass"
}

// isRepeated reports whether a condition is about a call or a write that was repeated and
// succeeded.
func isRepeated(condition any) bool {
	m, _ := condition.(map[string]any)
	message, _ := m["message"].(string)
	repeated := m["type"] == v1alpha1.ConditionSubmitted ||
		m["type"] == v1alpha1.ConditionDefended && strings.HasSuffix(message, defense.WriteAccepted)
	evicted := m["type"] == v1alpha1.ConditionEvictionBlocked && m["reason"] == v1alpha1.ReasonRecovered
	return repeated && m["status"] == "True" || evicted
}

// typeOf returns the type of a condition; empty for other values.
func typeOf(content any) string {
	m, _ := content.(map[string]any)
	t, _ := m["type"].(string)
	return t
}

// counts returns the numbers of objects that the operator created and removed, and of its orders.
func (w *World) counts() string {
	var lines []string
	for verb, counts := range map[string]map[string]int{"made": w.api.creates, "removed": w.api.deletes} {
		for _, kind := range []string{"ChangeWorkload", "ChangePod", "ControllerRevision", "OpsConfigInfo"} {
			lines = append(lines, fmt.Sprintf("%s %s: %d", verb, kind, counts[kind]))
		}
	}
	if w.server != nil {
		for _, action := range []altershield.Action{altershield.ActionSubmitOrder, altershield.ActionEndOrder} {
			orders := map[string]bool{}
			for _, entry := range w.server.Journal().Requests(action).Accepted() {
				orders[entry.Order] = true
			}
			lines = append(lines, fmt.Sprintf("%s: %d orders", action, len(orders)))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var batchTotal = regexp.MustCompile(`(?m)^\s*"totalBatches": \d+,?\n`)

// Problems returns what is wrong with an ending, compared with the reference; empty if nothing is.
func (s *Story) Problems(reference, e *Ending) string {
	var found []string
	switch {
	case e.Problem != "":
		found = append(found, e.Problem)
	case e.Undelivered && !reference.Undelivered:
	default:
		want, got := reference.State, e.State
		if s.Moving { // a batch has the number of batches planned when it was created
			want, got = batchTotal.ReplaceAllString(want, ""), batchTotal.ReplaceAllString(got, "")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			found = append(found, "it ends in another state, -want +got:\n"+diff)
		}
		if diff := cmp.Diff(reference.Counts, e.Counts); diff != "" && !s.Moving {
			found = append(found, "other numbers were made or removed, -want +got:\n"+diff)
		}
	}
	for _, v := range e.Violations {
		if !slices.Contains(reference.Violations, v) {
			found = append(found, v)
		}
	}
	return strings.Join(found, "\n")
}

// Reference runs a story without a fault. The story must succeed.
func Reference(t *testing.T, s Story) Ending {
	t.Helper()
	e := Play(t, s, s.Options)
	if e.Problem != "" || len(e.Violations) > 0 {
		t.Fatalf("without any fault: %s\n%s\n%s", e.Problem, strings.Join(e.Violations, "\n"), e.Log)
	}
	return e
}

// Found is a problem because of a fault.
type Found struct {
	Fault Fault
	// At is the write or call of the fault.
	At string
	// Description of the problem, and the log with Options.Verbose.
	What, Log string
}

// Sweep runs a story again for each of some faults, and returns the problems, compared with the
// reference.
func Sweep(t *testing.T, s Story, reference *Ending, faults ...Fault) (found []Found) {
	t.Helper()
	for _, f := range faults {
		o := s.Options
		o.Fault = f
		e := Play(t, s, o)
		if e.Hit == "" {
			what := "the story no longer has this write: its order differs between runs"
			found = append(found, Found{Fault: f, What: what, Log: e.Log})
			continue
		}
		what := s.Problems(reference, &e)
		if why, pending := s.Pending[fmt.Sprintf("%s %s", f.Kind, e.Hit)]; pending {
			if what != "" {
				continue
			}
			what = "this fault is listed as pending, but does no harm: " + why
		}
		if what != "" {
			found = append(found, Found{Fault: f, At: e.Hit, What: what, Log: e.Log})
		}
	}
	return found
}

// Faults returns all combinations of some kinds and the writes, or calls, of a reference.
func Faults(reference *Ending, ofCalls bool, kinds ...FaultKind) (faults []Fault) {
	n := len(reference.Writes)
	if ofCalls {
		n = len(reference.Calls)
	}
	for at := 1; at <= n; at++ {
		for _, kind := range kinds {
			faults = append(faults, Fault{Kind: kind, At: at, OfCalls: ofCalls})
		}
	}
	return faults
}
