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
	"cmp"
	"math"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
)

// queried plays a check with 4 evaluations, 30 seconds apart, of which 2 bad ones fail. Its range is 2 minutes, so
// the evaluations are due 2:30, 3:00, 3:30 and 4:00 minutes after its start.
type queried struct {
	in    queryInput
	plan  queryPlan
	began time.Time
}

func newQueried() *queried {
	q := &queried{began: testNow}
	q.in = queryInput{Range: 2 * time.Minute, Check: &policy.Check{
		OnNoData: v1alpha1.SilenceFails, OnError: v1alpha1.SilenceFails, Deadline: 15 * time.Minute, Suggestion: "ask the team",
		Prometheus: &v1alpha1.PrometheusCheck{
			FailWhen: "value > 0.05", Interval: &metav1.Duration{Duration: 30 * time.Second}, Count: 4, Failures: 2, Empty: v1alpha1.EmptyNoData,
		},
	}}
	q.in.Status = v1alpha1.CheckStatus{Phase: v1alpha1.CheckRunning, StartTime: stamp(q.began), Deadline: stamp(q.began.Add(15 * time.Minute))}
	return q
}

// at decides some time after the start.
func (q *queried) at(after time.Duration, answer *queryAnswer) queryPlan {
	q.in.Now, q.in.Answer = q.began.Add(after), answer
	if answer != nil {
		answer.Ended = q.in.Now
	}
	q.plan = decideQuery(q.in)
	q.in.Status, q.in.Errors, q.in.NotBefore = q.plan.Status, q.plan.Errors, q.plan.NotBefore
	return q.plan
}

// Answers of the endpoint.
var (
	good   = queryAnswer{Query: "q", Samples: []rules.Sample{{Value: 0.01}}}
	bad    = queryAnswer{Query: "q", Samples: []rules.Sample{{Value: 0.5}}, Crosses: true}
	empty  = queryAnswer{Query: "q"}
	nan    = queryAnswer{Query: "q", Samples: []rules.Sample{{Value: math.NaN()}, {Value: math.Inf(-1)}}}
	down   = queryAnswer{Query: "q", Reason: v1alpha1.ReasonUnavailable, Message: "endpoint prom: it refuses connections"}
	series = queryAnswer{Query: "q", Samples: []rules.Sample{
		{Labels: map[string]string{"pod": "web-1"}, Value: 1}, {Labels: map[string]string{"pod": "web-2", "a": "b"}, Value: 2},
	}, Crosses: true}
)

func TestPlannedTimes(t *testing.T) {
	q := newQueried()
	const first = 150 * time.Second
	if plan := q.at(0, nil); plan.After != first || !plan.Ask.IsZero() || !plan.Status.DueTime.Equal(stamp(q.began.Add(4*time.Minute))) {
		t.Errorf("at first: %+v", plan)
	}
	// However late it is, the evaluation is made as of its planned time.
	for _, late := range []time.Duration{0, time.Second, 10 * time.Minute, 5 * time.Hour} {
		if plan := q.at(first+late, nil); !plan.Ask.Equal(q.began.Add(2 * time.Minute)) {
			t.Errorf("%s late it asks as of %s", late, plan.Ask)
		}
	}
	g := good
	if plan := q.at(first+time.Second, &g); plan.After != 29*time.Second || plan.Status.Measured != 1 {
		t.Errorf("after the first answer: %+v", plan)
	}
	if plan := q.at(5*time.Hour, nil); !plan.Ask.Equal(q.began.Add(150 * time.Second)) {
		t.Errorf("the second evaluation is as of %s", plan.Ask)
	}
}

// TestVerdicts plays answers at their due times.
func TestVerdicts(t *testing.T) {
	for name, test := range map[string]struct {
		answers []queryAnswer
		empty   v1alpha1.EmptyResult
		watch   bool
		phase   v1alpha1.CheckPhase
		reason  string
		message string
	}{
		"all good": {
			answers: []queryAnswer{good, good, good, good}, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
			message: "4 of 4 evaluations had data; the last one: value 0.01, failWhen is false",
		},
		"two bad ones in a row": {
			answers: []queryAnswer{good, bad, bad}, phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonThreshold,
			message: "value 0.5; value > 0.05 is true 2 times in a row; ask the team",
		},
		"bad ones apart": {answers: []queryAnswer{bad, good, bad, good}, phase: v1alpha1.CheckPassed},
		"a bad one at the end is decided by one more": {
			answers: []queryAnswer{good, good, good, bad, good}, phase: v1alpha1.CheckPassed,
		},
		"or fails": {answers: []queryAnswer{good, good, good, bad, bad}, phase: v1alpha1.CheckFailed},
		"no data between bad ones": {
			answers: []queryAnswer{bad, empty, bad}, phase: v1alpha1.CheckFailed,
		},
		"never data": {
			answers: []queryAnswer{empty, empty, empty, empty}, phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNoSeries,
			message: "the result has no series at the end; 0 of 4 evaluations had data",
		},
		"data that ends": {answers: []queryAnswer{good, good, good, empty}, phase: v1alpha1.CheckNoData},
		"data that begins": {
			answers: []queryAnswer{empty, empty, empty, good}, phase: v1alpha1.CheckPassed, message: "1 of 4 evaluations had data",
		},
		"no numbers": {
			answers: []queryAnswer{nan, nan, nan, nan}, empty: v1alpha1.EmptyZero, phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNotFinite,
			message: "no value of the result is a finite number",
		},
		"no series count as zero": {answers: []queryAnswer{empty, empty, empty, empty}, empty: v1alpha1.EmptyZero, phase: v1alpha1.CheckPassed,
			message: "4 of 4 evaluations had data; the last one: value 0"},
		"no series pass": {answers: []queryAnswer{bad, empty, bad, empty}, empty: v1alpha1.EmptyPass, phase: v1alpha1.CheckPassed},
		"several series": {
			answers: []queryAnswer{series, series}, phase: v1alpha1.CheckFailed,
			message: `first series {a="b", pod="web-2"} 2; value > 0.05 is true`,
		},
		"good in the background is not written": {
			answers: []queryAnswer{good, good, good, good}, watch: true, phase: v1alpha1.CheckWatching,
		},
		"bad in the background": {answers: []queryAnswer{bad, bad}, watch: true, phase: v1alpha1.CheckFailed},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueried()
			q.in.Check.Prometheus.Empty = cmp.Or(test.empty, v1alpha1.EmptyNoData)
			if test.watch {
				q.in.Status.Phase = v1alpha1.CheckWatching
			}
			for i, answer := range test.answers {
				due := 150*time.Second + time.Duration(i)*30*time.Second
				if plan := q.at(due, nil); plan.Ask.IsZero() {
					t.Fatalf("evaluation %d is not asked: %+v", i, plan)
				}
				q.at(due, &answer)
			}
			s := q.plan.Status
			reason := cmp.Or(test.reason, s.Reason)
			if s.Phase != test.phase || s.Reason != reason || !strings.Contains(s.Message, test.message) || q.plan.After != 0 {
				t.Errorf("%s %s: %s, next after %s", s.Phase, s.Reason, s.Message, q.plan.After)
			}
			if s.Phase == v1alpha1.CheckNoData && s.OnSilence != v1alpha1.SilenceFails {
				t.Errorf("without data %q", s.OnSilence)
			}
		})
	}
}

// TestErrors: a call without an answer is repeated as of the same time, until the deadline.
func TestErrors(t *testing.T) {
	q := newQueried()
	now := 150 * time.Second
	for _, want := range []time.Duration{10, 20, 40, 60, 60} {
		d := down
		plan := q.at(now, &d)
		if plan.After != want*time.Second || plan.Status.Phase != v1alpha1.CheckRunning || plan.Status.Measured != 0 {
			t.Fatalf("after an error: %s, %+v", plan.After, plan.Status)
		}
		now += plan.After
		if plan := q.at(now, nil); !plan.Ask.Equal(q.began.Add(2 * time.Minute)) {
			t.Fatalf("it asks as of %s", plan.Ask)
		}
	}
	g := good
	if plan := q.at(now, &g); plan.Errors != 0 || plan.Ask.IsZero() {
		t.Errorf("after an answer: %+v", plan)
	}
	// The last call is at the deadline.
	d := down
	now = 15*time.Minute - 5*time.Second
	if plan := q.at(now, &d); plan.After != 5*time.Second {
		t.Errorf("next call after %s", plan.After)
	}
	if plan := q.at(15*time.Minute, nil); plan.Ask.IsZero() {
		t.Errorf("no call at the deadline: %+v", plan)
	}
	d = down
	plan := q.at(15*time.Minute, &d)
	if s := plan.Status; s.Phase != v1alpha1.CheckError || s.Reason != v1alpha1.ReasonUnavailable || s.OnSilence != v1alpha1.SilenceFails ||
		s.Message != "until the deadline: endpoint prom: it refuses connections" {
		t.Errorf("%+v", s)
	}
}

// TestErrorsInTheBackground: the check does not stay in the phase that counts as passed.
func TestErrorsInTheBackground(t *testing.T) {
	q := newQueried()
	q.in.Status.Phase = v1alpha1.CheckWatching
	d := down
	if plan := q.at(150*time.Second, &d); plan.Status.Phase != v1alpha1.CheckRunning {
		t.Errorf("phase %s", plan.Status.Phase)
	}
}

// TestDeadline: evaluations that were due before the deadline are made later, too.
func TestDeadline(t *testing.T) {
	q := newQueried()
	for range 4 {
		if plan := q.at(24*time.Hour, nil); plan.Ask.IsZero() {
			t.Fatalf("after an outage: %+v", plan)
		}
		g := good
		q.at(24*time.Hour, &g)
	}
	if q.plan.Status.Phase != v1alpha1.CheckPassed {
		t.Errorf("%+v", q.plan.Status)
	}
	short := newQueried()
	short.in.Range = 20 * time.Minute // the endpoint has another interval
	if plan := short.at(0, nil); plan.Status.Phase != v1alpha1.CheckNoData || !strings.Contains(plan.Status.Message, "set a longer deadline") {
		t.Errorf("%+v", plan.Status)
	}
	open := newQueried()
	open.in.Status.Deadline = stamp(open.began.Add(4 * time.Minute))
	for i, answer := range []queryAnswer{good, good, good, bad} {
		open.at(150*time.Second+time.Duration(i)*30*time.Second, &answer)
	}
	if s := open.plan.Status; s.Phase != v1alpha1.CheckInconclusive || !strings.Contains(s.Message, "1 of them bad in a row") {
		t.Errorf("%+v", s)
	}
}

// TestBoundedStatus: the status stays small, whatever the result.
func TestBoundedStatus(t *testing.T) {
	q := newQueried()
	big := queryAnswer{Query: strings.Repeat("é", 5000), Crosses: true}
	for i := range 500 {
		labels := map[string]string{strings.Repeat("a", 300): "\n" + strings.Repeat("b", 5000)}
		big.Samples = append(big.Samples, rules.Sample{Value: float64(i), Labels: labels})
	}
	s := q.at(150*time.Second, &big).Status
	if len(s.Query) > maxQueryText || len(s.Samples) != maxSamples || !strings.HasSuffix(s.Samples[0], " 499") {
		t.Errorf("%d bytes of the query, samples %q", len(s.Query), s.Samples)
	}
	for _, sample := range s.Samples {
		if len(sample) > maxSample || strings.Contains(sample, "\n") {
			t.Errorf("sample %q", sample)
		}
	}
	if got := describeValue([]rules.Sample{{Value: 1.0 / 3}}); got != "0.333333" {
		t.Errorf("value %s", got)
	}
}
