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
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// alertOf returns a series of ALERTS_FOR_STATE of an alert with a pod, a deployment or other labels.
func alertOf(began time.Time, pairs ...string) rules.Sample {
	s := rules.Sample{Value: float64(began.Unix()), Labels: map[string]string{
		"__name__": "ALERTS_FOR_STATE", "alertname": "Errors", "namespace": "ns", "severity": "page",
	}}
	for i := 0; i < len(pairs); i += 2 {
		s.Labels[pairs[i]] = pairs[i+1]
	}
	return s
}

// unknown returns an alert without a series of ALERTS_FOR_STATE.
func unknown(pairs ...string) rules.Sample {
	s := alertOf(time.Time{}, append(pairs, "__name__", "ALERTS", "alertstate", "firing")...)
	s.Value = 1
	return s
}

// up is the series of an endpoint with recent samples.
var up = rules.Sample{Value: 1}

// TestFiringAlerts: which alerts fail a release, and which say nothing about it.
func TestFiringAlerts(t *testing.T) {
	release := testNow
	after, before := release.Add(time.Minute), release.Add(-time.Minute)
	earlier := alertOf(before, "pod", "web-1", "__name__", "ALERTS", "alertstate", "pending")
	for name, test := range map[string]struct {
		alert   rules.Sample
		scope   func(*alertScope)
		earlier []rules.Sample
		// want is failing, before, or empty if the alert does not count; pod is its pod.
		want, pod string
	}{
		"a new pod":                  {alert: alertOf(after, "pod", "web-1"), want: "failing", pod: "web-1"},
		"a new pod of a deployment":  {alert: alertOf(after, "pod", "web-1", "deployment", "other"), want: "failing", pod: "web-1"},
		"an old pod":                 {alert: alertOf(after, "pod", "web-0")},
		"an old pod of the workload": {alert: alertOf(after, "pod", "web-0", "deployment", "web", "workload", "web", "app", "web")},
		"a pod that is gone":         {alert: alertOf(after, "pod", "web-9", "app", "web")},
		"another label for pods": {
			alert: alertOf(after, "k8s_pod", "web-1"),
			scope: func(s *alertScope) { s.podLabel = "k8s_pod" }, want: "failing", pod: "web-1",
		},
		"an exporter's pod":                 {alert: alertOf(after, "pod", "metrics-1", "deployment", "web"), want: "failing"},
		"an exporter's pod, no deployment":  {alert: alertOf(after, "pod", "metrics-1", "app", "web")},
		"a StatefulSet of the same app":     {alert: alertOf(after, "statefulset", "web", "app", "web")},
		"a workload of another type":        {alert: alertOf(after, "workload", "web", "workload_type", "statefulset")},
		"a workload of the deployment type": {alert: alertOf(after, "workload", "web", "workload_type", "deployment"), want: "failing"},
		"the deployment":                    {alert: alertOf(after, "deployment", "web"), want: "failing"},
		"another deployment":                {alert: alertOf(after, "deployment", "api", "workload", "web", "app", "web")},
		"a label of another kind":           {alert: alertOf(after, "statefulset", "web")},
		"the kind of the workload": {
			alert: alertOf(after, "statefulset", "web"), scope: func(s *alertScope) { s.kind = "statefulset" }, want: "failing",
		},
		"the workload":                {alert: alertOf(after, "workload", "web"), want: "failing"},
		"another workload":            {alert: alertOf(after, "workload", "api", "app", "web")},
		"the app":                     {alert: alertOf(after, "app", "web"), want: "failing"},
		"another app":                 {alert: alertOf(after, "app", "shop")},
		"the namespace alone":         {alert: alertOf(after)},
		"at the start of the release": {alert: alertOf(release, "pod", "web-1"), want: "failing", pod: "web-1"},
		"before the release":          {alert: alertOf(before, "deployment", "web"), want: "before"},
		"a day before":                {alert: alertOf(release.Add(-24*time.Hour), "app", "web"), want: "before"},
		"before its pod": {
			alert: alertOf(after, "pod", "web-2"), want: "before", pod: "web-2", // a StatefulSet's next pod has its name
		},
		"again after the hour before": {
			alert: alertOf(after, "pod", "web-1"), earlier: []rules.Sample{earlier}, want: "before", pod: "web-1",
		},
		"another pod in the hour before": {
			alert: alertOf(after, "pod", "web-1"), earlier: []rules.Sample{alertOf(before, "pod", "web-0")},
			want: "failing", pod: "web-1",
		},
		"no known start": {alert: unknown("pod", "web-1"), want: "failing", pod: "web-1"},
		"no known start, in the hour before": {
			alert: unknown("pod", "web-1"), earlier: []rules.Sample{earlier}, want: "before", pod: "web-1",
		},
		"caused by a hold": {
			alert: alertOf(after, "deployment", "web", "alertname", "KubeDeploymentReplicasMismatch"), scope: heldUntil(after),
		},
		"caused by a hold, no known start": {
			alert: unknown("deployment", "web", "alertname", "KubeDeploymentRolloutStuck"), scope: heldUntil(after),
		},
		"after the hold": {
			alert: alertOf(after, "deployment", "web", "alertname", "KubeDeploymentReplicasMismatch"),
			scope: heldUntil(release), want: "failing",
		},
		"without a hold": {
			alert: alertOf(after, "deployment", "web", "alertname", "KubeDeploymentReplicasMismatch"), want: "failing",
		},
		"another alert under a hold": {alert: alertOf(after, "deployment", "web"), scope: heldUntil(after), want: "failing"},
	} {
		t.Run(name, func(t *testing.T) {
			scope := &alertScope{podLabel: "pod", kind: "deployment", name: "web", release: release, pods: map[string]time.Time{
				"web-1": release, "web-2": after.Add(time.Second),
			}}
			if test.scope != nil {
				test.scope(scope)
			}
			labels := maps.Clone(test.alert.Labels)
			found := scope.firing([]rules.Sample{up, test.alert}, test.earlier)
			got, pods := "", []string(nil)
			switch {
			case len(found.Failing) == 1:
				got = "failing"
			case len(found.Before) == 1:
				got = "before"
			}
			if test.pod != "" && got == "failing" {
				pods = []string{test.pod}
			}
			if got != test.want || !slices.Equal(found.Pods, pods) || !found.Recent || len(found.Failing)+len(found.Before) > 1 {
				t.Errorf("%+v, want %q of pod %q", found, test.want, test.pod)
			}
			if !maps.Equal(labels, test.alert.Labels) {
				t.Error("the samples were changed")
			}
		})
	}
	if (&alertScope{}).firing(nil, nil).Recent {
		t.Error("an endpoint without samples has recent ones")
	}
}

func heldUntil(at time.Time) func(*alertScope) { return func(s *alertScope) { s.stopped = at } }

// TestStoppedAt: how long a hold or a halt explains alerts.
func TestStoppedAt(t *testing.T) {
	ended := testNow.Add(-time.Minute)
	held := []metav1.Condition{{Type: v1alpha1.ConditionHeld, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(ended)}}
	for name, test := range map[string]struct {
		workload   workload.Workload
		conditions []metav1.Condition
		want       time.Time
	}{
		"neither":     {},
		"held":        {workload: workload.Workload{Hold: &workload.Hold{}}, want: testNow},
		"halted":      {workload: workload.Workload{Stopping: workload.Stopping{Paused: true}}, want: testNow},
		"a partition": {workload: workload.Workload{Rollout: workload.Rollout{Partitioned: true}}, want: testNow},
		"held before": {conditions: held, want: ended},
		"just given back, and not noted yet": {
			conditions: []metav1.Condition{{Type: v1alpha1.ConditionHeld, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(ended)}},
			want:       testNow,
		},
		"halted again": {workload: workload.Workload{Stopping: workload.Stopping{Paused: true}}, conditions: held, want: testNow},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Subject{Workload: &test.workload, Release: &v1alpha1.ChangeWorkload{}}
			s.Release.Status.Conditions = test.conditions
			if got := s.stoppedAt(testNow); !got.Equal(test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestAlertVerdicts plays answers at their planned times.
func TestAlertVerdicts(t *testing.T) {
	firing := func(pods ...string) alertsFound {
		scope := &alertScope{podLabel: "pod", name: "web", pods: map[string]time.Time{"web-1": testNow, "web-2": testNow}, release: testNow}
		samples := []rules.Sample{up}
		for i, pod := range pods {
			samples = append(samples, alertOf(testNow, "pod", pod, "app", "web", "severity", fmt.Sprint(i)))
		}
		return *scope.firing(samples, nil)
	}
	none, empty, before := alertsFound{Recent: true}, alertsFound{}, alertsFound{Recent: true, Before: firing("web-1").Failing}
	for name, test := range map[string]struct {
		answers []alertsFound
		watch   bool
		phase   v1alpha1.CheckPhase
		reason  string
		message string
		pods    []string
	}{
		"none": {
			answers: []alertsFound{none, none, none}, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
			message: "3 of 3 evaluations had data; the last one: no alert fires that counts",
		},
		"none, in the background": {answers: []alertsFound{none, none, none}, watch: true, phase: v1alpha1.CheckWatching},
		"a pod": {
			answers: []alertsFound{none, firing("web-1")}, phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonAlertFiring,
			message: "alert Errors fires since 2026-", pods: []string{"web-1"},
		},
		"a pod, in the background": {
			answers: []alertsFound{firing("web-1")}, watch: true,
			phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonAlertFiring, pods: []string{"web-1"},
		},
		"pods": {
			answers: []alertsFound{firing("web-2", "web-1", "web-2")}, phase: v1alpha1.CheckFailed, reason: v1alpha1.ReasonAlertFiring,
			message: "(and 1 more pods of the batch); ask the team", pods: []string{"web-1", "web-2"},
		},
		"the workload": {
			answers: []alertsFound{firing("web-1", "")},
			phase:   v1alpha1.CheckFailed, reason: v1alpha1.ReasonAlertFiring, message: "alert Errors fires",
		},
		"no data": {
			answers: []alertsFound{empty, empty, empty}, phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNoSeries,
			message: "no recent sample of ALERTS or up, so it cannot tell whether alerts fire at the end; 0 of 3 evaluations had data",
		},
		"no data, in the background": {
			answers: []alertsFound{empty, empty, empty}, watch: true, phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNoSeries,
		},
		"data that end":   {answers: []alertsFound{none, none, empty}, phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNoSeries},
		"data that begin": {answers: []alertsFound{empty, empty, none}, phase: v1alpha1.CheckPassed, message: "1 of 3 evaluations had data"},
		"an alarm whose fix is released": {
			answers: []alertsFound{before, before, none}, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"an alarm that stays": {
			answers: []alertsFound{none, before, before}, phase: v1alpha1.CheckInconclusive, reason: v1alpha1.ReasonAlertBefore,
			message: `, severity="0"} since 2026-`,
		},
		"another alarm": {answers: []alertsFound{before, firing("web-1")}, phase: v1alpha1.CheckFailed, pods: []string{"web-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueried()
			q.in.Check.Alerts, q.in.Range = &v1alpha1.AlertsCheck{}, 0
			q.in.Check.Prometheus.Count, q.in.Check.Prometheus.Failures = 3, 1
			if test.watch {
				q.in.Status.Phase = v1alpha1.CheckWatching
			}
			for i, found := range test.answers {
				due := policy.Lag + time.Duration(i)*30*time.Second
				if plan := q.at(due, nil); !plan.Ask.Equal(q.began.Add(due - policy.Lag)) {
					t.Fatalf("evaluation %d: %+v", i, plan)
				}
				q.at(due, &queryAnswer{Query: "q", Alerts: &found})
			}
			for range 2 { // the second time, the write was lost
				s := q.plan.Status
				if s.Phase != test.phase || test.reason != "" && s.Reason != test.reason || !strings.Contains(s.Message, test.message) ||
					!slices.Equal(s.FailedPods, test.pods) || int(s.FailedCount) != len(test.pods) || q.plan.After != 0 {
					t.Errorf("%s %s: %s, pods %v, next after %s", s.Phase, s.Reason, s.Message, s.FailedPods, q.plan.After)
				}
				if s.Phase == v1alpha1.CheckInconclusive && s.OnSilence != v1alpha1.SilenceFails {
					t.Errorf("without a verdict %q", s.OnSilence)
				}
				if s.Phase == v1alpha1.CheckNoData || s.Phase == v1alpha1.CheckPassed || s.Phase == v1alpha1.CheckInconclusive {
					break // its reason is kept, and the sentence is made of it
				}
				q.at(2*time.Minute, nil)
			}
		})
	}
}

// vector returns samples as the API of Prometheus does.
func vector(samples ...rules.Sample) (string, int) {
	result := []map[string]any{}
	for _, s := range samples {
		result = append(result, map[string]any{"metric": s.Labels, "value": []any{1, fmt.Sprint(int64(s.Value))}})
	}
	text, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	return string(text), 200
}

// alerts answers with firing alerts, and with those of the hour before.
func alerts(earlier []rules.Sample, firing ...rules.Sample) func(string) (string, int) {
	return func(query string) (string, int) {
		if strings.HasPrefix(query, "last_over_time(ALERTS{") {
			return vector(earlier...)
		}
		return vector(firing...)
	}
}

// newAlerting returns a batch of two pods with a check of type alerts, two minutes after the start of its release.
func newAlerting(t *testing.T, server *prometheus, with ...func(*v1alpha1.PolicyCheck)) *ruled {
	t.Helper()
	wait := true
	r := newQuerying(t, server, append([]func(*v1alpha1.PolicyCheck){func(c *v1alpha1.PolicyCheck) {
		c.Wait = &wait
		c.Prometheus, c.Alerts = nil, &v1alpha1.AlertsCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: "prom"}, Matchers: []string{`severity="page"`},
			Interval: &metav1.Duration{Duration: time.Minute}, Duration: &metav1.Duration{Duration: 3 * time.Minute},
		}
	}}, with...)...)
	r.check().Type = v1alpha1.CheckTypeAlerts
	r.s.Release.Status.StartTimeUnix = r.began.Add(-2 * time.Minute).Unix()
	return r
}

func TestAlertsPass(t *testing.T) {
	server := newPrometheus(t, alerts(nil, up))
	r := newAlerting(t, server)
	r.run(10 * time.Minute)
	r.ends(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "4 of 4 evaluations had data")
	asked := server.queries()
	if len(asked) != 4 || asked[0] != r.check().Query || strings.Count(asked[0], `{alertstate="firing",namespace="ns",severity="page"}`) != 2 {
		t.Errorf("asked %q, status %q", asked, r.check().Query)
	}
	for i, at := range server.times {
		if want := fmt.Sprint(r.began.Add(time.Duration(i) * time.Minute).Unix()); at != want {
			t.Errorf("evaluation %d as of %s, want %s", i, at, want)
		}
	}
}

func TestAlertFails(t *testing.T) {
	server := newPrometheus(t, alerts(nil, up))
	r := newAlerting(t, server)
	r.run(95 * time.Second)
	server.set(alerts(nil, up, alertOf(r.began.Add(90*time.Second), "pod", "web-2")))
	r.run(10 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonAlertFiring, "alert Errors fires since ")
	c := r.check()
	if !slices.Equal(c.FailedPods, []string{"web-2"}) || c.FailedCount != 1 || len(c.Samples) != 1 ||
		!strings.HasPrefix(c.Samples[0], `{alertname="Errors", namespace="ns", pod="web-2", severity="page"} since `) {
		t.Errorf("%+v", c)
	}
	// The hour before is that before the release.
	release := fmt.Sprint(r.s.Release.Status.StartTimeUnix)
	if n := len(server.queries()); n != 4 || server.times[3] != release || !strings.HasSuffix(server.queries()[3], "[1h])") {
		t.Errorf("asked %q as of %q, the release is of %s", server.queries(), server.times, release)
	}
}

// TestAlertWriteFails: pods and message are not lost with the write.
func TestAlertWriteFails(t *testing.T) {
	server := newPrometheus(t, alerts(nil, up))
	r := newAlerting(t, server)
	server.set(alerts(nil, up, alertOf(r.began, "pod", "web-1")))
	stale := r.check().DeepCopy()
	r.run(2 * time.Minute)
	*r.check() = *stale
	r.s.Batch.Status.Status = v1alpha1.ChangePodPostSubmitted
	r.run(3 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonAlertFiring, "alert Errors fires since ")
	if !slices.Equal(r.check().FailedPods, []string{"web-1"}) {
		t.Errorf("%+v", r.check())
	}
}

// TestAlertBadDays: what Prometheus may do, with its phase and sentence.
func TestAlertBadDays(t *testing.T) {
	for name, test := range map[string]struct {
		answer          func(string) (string, int)
		with            func(*ruled)
		phase           v1alpha1.CheckPhase
		reason, message string
	}{
		"empty": {answer: nothing, phase: v1alpha1.CheckNoData, reason: v1alpha1.ReasonNoSeries, message: "cannot tell whether alerts fire"},
		"down": {
			answer: broken,
			phase:  v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable, message: "until the deadline: endpoint prom: it",
		},
		"down for the hour before": {answer: func(query string) (string, int) {
			if strings.HasPrefix(query, "last_over_time") {
				return broken(query)
			}
			return vector(up, unknown("deployment", "web"))
		}, phase: v1alpha1.CheckError, reason: v1alpha1.ReasonUnavailable},
		"an alarm before": {
			answer: alerts([]rules.Sample{unknown("deployment", "web")}, up, unknown("deployment", "web")), phase: v1alpha1.CheckInconclusive,
			reason: v1alpha1.ReasonAlertBefore, message: "was pending or firing before the release",
		},
		"halted": {
			answer: alerts(nil, up, unknown("deployment", "web", "alertname", "KubeDeploymentReplicasMismatch")),
			with:   func(r *ruled) { r.s.Workload.Paused = true }, phase: v1alpha1.CheckPassed, reason: v1alpha1.ReasonPassed,
		},
		"a matcher that was accepted by another version": {
			answer: alerts(nil, up), with: func(r *ruled) {
				p := &r.s.Policies[0]
				p.Spec.Checks[0].Alerts.Matchers = []string{`a="b"} or up{`}
				p.Status.InForce, p.Status.InForceGeneration = p.Spec.DeepCopy(), 1
			}, phase: v1alpha1.CheckError, reason: v1alpha1.ReasonQueryFailed, message: "matchers[0]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newAlerting(t, newPrometheus(t, test.answer))
			if test.with != nil {
				test.with(r)
			}
			r.run(20 * time.Minute)
			r.ends(test.phase, test.reason, test.message)
		})
	}
}

// TestAlertsOfOthers: a policy reads no alerts of another namespace, whatever its matchers are; a policy of the operator reads only
// those of the workload's namespace, too.
func TestAlertsOfOthers(t *testing.T) {
	for _, matchers := range [][]string{
		nil, {`namespace="bank"`}, {`namespace=~".+"`}, {`namespace!="ns"`}, {`"namespace"="bank"`}, {"namespace=~`bank`", `namespace="ns"`},
		{`a="\"} or up{b=\""`},
	} {
		for _, of := range []string{"ns", "operator"} {
			server := newPrometheus(t, alerts(nil, up, alertOf(testNow, "pod", "web-1")))
			r := newAlerting(t, server, func(c *v1alpha1.PolicyCheck) { c.Alerts.Matchers = matchers })
			r.s.Policies[0].Namespace, r.check().Name = of, of+"/policy/rule"
			r.run(5 * time.Minute)
			r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonAlertFiring, "")
			for _, asked := range server.queries() {
				selectors := strings.Count(asked, "ALERTS{") + strings.Count(asked, "ALERTS_FOR_STATE{")
				if selectors == 0 || strings.Count(asked, `namespace="ns"`) < selectors {
					t.Errorf("asked %s", asked)
				}
			}
		}
	}
	t.Run("an endpoint of others", func(t *testing.T) {
		server := newPrometheus(t, alerts(nil, up))
		r := newAlerting(t, server)
		changeEndpoint(r, func(e *v1alpha1.DefenseEndpoint) {
			e.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}
		})
		r.run(20 * time.Minute)
		r.ends(v1alpha1.CheckError, v1alpha1.ReasonNoEndpoint, "ask an administrator")
		if len(server.queries()) != 0 {
			t.Error("it was asked")
		}
	})
}

// TestTryAlerts: a policy is tried without a verdict about the alerts that fire.
func TestTryAlerts(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(string) (string, int)
		status metav1.ConditionStatus
		reason string
	}{
		"none fires": {alerts(nil, up), metav1.ConditionTrue, v1alpha1.ReasonSeriesFound},
		"one fires":  {alerts(nil, up, unknown("deployment", "web")), metav1.ConditionTrue, v1alpha1.ReasonSeriesFound},
		"empty":      {nothing, metav1.ConditionFalse, v1alpha1.ReasonNoSeries},
		"down":       {broken, metav1.ConditionUnknown, v1alpha1.ReasonUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			r := newAlerting(t, newPrometheus(t, test.answer))
			got, err := r.checks.Try(t.Context(), &r.s.Policies[0], r.s.Workload, r.s.Selected)
			if err != nil || got.Status != test.status || got.Reason != test.reason {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// TestAlertsOfAKind: the label of a workload is its kind in lower case.
func TestAlertsOfAKind(t *testing.T) {
	server := newPrometheus(t, alerts(nil, up, alertOf(testNow, "statefulset", "web")))
	r := newAlerting(t, server)
	r.s.Workload.GVK = appsv1.SchemeGroupVersion.WithKind("StatefulSet")
	r.run(10 * time.Minute)
	r.ends(v1alpha1.CheckFailed, v1alpha1.ReasonAlertFiring, "alert Errors fires since ")
}
