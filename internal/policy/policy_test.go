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

package policy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rules"
)

const operator = "operator"

// TestTypes: each type of check has a name, a section in the docs, and a sample.
func TestTypes(t *testing.T) {
	docs, err := os.ReadFile("../../docs/reference/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("../../config/samples/policies/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var samples strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		samples.Write(text)
	}
	found := 0
	for _, field := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.PolicyCheck]()) {
		if field.Type.Kind() != reflect.Pointer || !strings.HasSuffix(field.Type.Elem().Name(), "Check") {
			continue
		}
		found++
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		check := v1alpha1.PolicyCheck{Name: "a"}
		reflect.ValueOf(&check).Elem().FieldByIndex(field.Index).Set(reflect.New(field.Type.Elem()))
		p := made("ns", "p", 0, func(p *v1alpha1.DefensePolicy) { p.Spec.Checks[0] = check })
		if checks := checksOf(&p, &p.Spec, 1); len(checks) != 1 || checks[0].Type != name {
			t.Errorf("%s: checksOf gives %+v", name, checks)
		}
		if !strings.Contains(string(docs), "\n## "+name+"\n") {
			t.Errorf("docs/reference/checks.md has no section %s", name)
		}
		if !strings.Contains(samples.String(), "  "+name+":") {
			t.Errorf("config/samples/policies has no check of the type %s", name)
		}
	}
	if found < 4 {
		t.Errorf("only %d types of checks are found", found)
	}
}

// TestJob: the duration of a Job is not known, so its check lasts until its deadline. Pods after Success get none.
func TestJob(t *testing.T) {
	p := made("ns", "p", 0, func(p *v1alpha1.DefensePolicy) {
		c := &p.Spec.Checks[0]
		c.PodHealth, c.Job, c.Delay = nil, &v1alpha1.JobCheck{CronJob: "smoke"}, &metav1.Duration{Duration: time.Minute}
	})
	if c := checksOf(&p, &p.Spec, 1)[0]; c.Due() != 15*time.Minute || c.AfterSuccess() || c.Background {
		t.Errorf("due after %s: %+v", c.Due(), c)
	}
}

// TestAlerts: a check of type alerts has its own defaults, and a deadline after its duration.
func TestAlerts(t *testing.T) {
	for name, test := range map[string]struct {
		change     func(*v1alpha1.PolicyCheck)
		problem    string
		background bool
		due, until time.Duration
		count      int32
	}{
		"defaults": {func(*v1alpha1.PolicyCheck) {}, "", true, 15*time.Minute + Lag, 20*time.Minute + Lag, 31},
		"waited for": {func(c *v1alpha1.PolicyCheck) {
			c.Wait, c.Delay, c.Alerts.Duration = ptr.To(true), &metav1.Duration{Duration: time.Minute}, &metav1.Duration{Duration: 2 * time.Minute}
		}, "", false, 3*time.Minute + Lag, 15 * time.Minute, 5},
		"an interval that does not divide the duration": {func(c *v1alpha1.PolicyCheck) {
			c.Alerts.Interval, c.Alerts.Duration = &metav1.Duration{Duration: 45 * time.Second}, &metav1.Duration{Duration: time.Minute}
		}, "", true, 90*time.Second + Lag, 15 * time.Minute, 3},
		"a matcher": {func(c *v1alpha1.PolicyCheck) { c.Alerts.Matchers = []string{`severity=~"page|ticket"`} }, "", true,
			15*time.Minute + Lag, 20*time.Minute + Lag, 31},
		"no matcher": {func(c *v1alpha1.PolicyCheck) { c.Alerts.Matchers = []string{`a="b"`, "severity"} },
			`spec.checks[0].alerts.matchers[1]: ALERTS{severity} does not parse`, true, 0, 0, 0},
		"a state": {func(c *v1alpha1.PolicyCheck) { c.Alerts.Matchers = []string{`alertstate="pending"`} },
			"spec.checks[0].alerts.matchers[0]: leave alertstate out", true, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := made("ns", "p", 0, func(p *v1alpha1.DefensePolicy) {
				c := &p.Spec.Checks[0]
				c.PodHealth, c.Alerts = nil, &v1alpha1.AlertsCheck{EndpointRef: v1alpha1.EndpointReference{Name: "prom"}}
				test.change(c)
			})
			if got := Accepted(&p, "operator"); !strings.Contains(got, test.problem) || (got == "") != (test.problem == "") {
				t.Fatalf("problem %q, want %q", got, test.problem)
			}
			if test.problem != "" {
				return
			}
			c := checksOf(&p, &p.Spec, 1)[0]
			if c.Background != test.background || c.Due() != test.due || c.Deadline != test.until || c.AfterSuccess() {
				t.Errorf("background %t, due after %s, until %s", c.Background, c.Due(), c.Deadline)
			}
			if of := c.Prometheus; of.Count != test.count || of.Failures != 1 || of.EndpointRef.Name != "prom" || c.Range(time.Minute) != 0 {
				t.Errorf("%+v", of)
			}
		})
	}
}

// TestQueries: a check of type prometheus is judged with its threshold, its query and its times.
func TestQueries(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.PolicyCheck)
		want   string
	}{
		"correct":  {func(*v1alpha1.PolicyCheck) {}, ""},
		"a scalar": {func(c *v1alpha1.PolicyCheck) { c.Prometheus.Query = "scalar(up)" }, ""},
		"samples": {
			func(c *v1alpha1.PolicyCheck) {
				c.Prometheus.FailWhen = "samples.exists(s, s.labels.pod == 'a' && s.value > 1.0)"
			}, "",
		},
		"no PromQL": {
			func(c *v1alpha1.PolicyCheck) { c.Prometheus.Query = "sum(up" }, "spec.checks[0].prometheus.query: it does not parse",
		},
		"a template": {func(c *v1alpha1.PolicyCheck) { c.Prometheus.Query = "up{a='$tenant'}" }, "the variable $tenant is not known"},
		"a range":    {func(c *v1alpha1.PolicyCheck) { c.Prometheus.Query = "up[5m]" }, "must be an instant vector or a scalar"},
		"no CEL": {
			func(c *v1alpha1.PolicyCheck) { c.Prometheus.FailWhen = "value >" }, "spec.checks[0].prometheus.failWhen: it does not compile",
		},
		"not true or false": {func(c *v1alpha1.PolicyCheck) { c.Prometheus.FailWhen = "value" }, "prometheus.failWhen: it must be true or false"},
		"the pod":           {func(c *v1alpha1.PolicyCheck) { c.Prometheus.FailWhen = "pod.spec == 1" }, "undeclared reference to 'pod'"},
		"too short": {
			func(c *v1alpha1.PolicyCheck) { c.Deadline = &metav1.Duration{Duration: 4 * time.Minute} },
			"spec.checks[0].deadline: 4m0s is too short: with delay, a range of samples, 4 evaluations and the time until " +
				"Prometheus has the samples, the check takes 4m0s",
		},
		"too many": {func(c *v1alpha1.PolicyCheck) { c.Prometheus.Count = 60 }, "the check takes 32m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			p := made("ns", "p", 0, func(p *v1alpha1.DefensePolicy) {
				c := &p.Spec.Checks[0]
				c.PodHealth, c.Prometheus = nil, &v1alpha1.PrometheusCheck{Query: "up{pod=~'$pods'}", FailWhen: "value > 0.05", Count: 4, Failures: 2}
				test.change(c)
			})
			if got := Accepted(&p, "operator"); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
				t.Errorf("problem %q, want %q", got, test.want)
			}
		})
	}
}

// TestServices: the failWhen of a check of type service compiles over the answer. A service is not asked about pods that come
// after Success.
func TestServices(t *testing.T) {
	for failWhen, want := range map[string]string{
		"": "", "status != 200 || !body.ok": "", "value > 1.0": "spec.checks[0].service.failWhen: it does not compile",
		"body.errors": "spec.checks[0].service.failWhen: it must be true or false",
	} {
		p := made("ns", "p", 0, func(p *v1alpha1.DefensePolicy) {
			c := &p.Spec.Checks[0]
			c.PodHealth, c.Service = nil, &v1alpha1.ServiceCheck{EndpointRef: v1alpha1.EndpointReference{Name: "gate"}, FailWhen: failWhen}
			c.Delay = &metav1.Duration{Duration: time.Minute}
		})
		if got := Accepted(&p, "operator"); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: problem %q, want %q", failWhen, got, want)
		}
		if want == "" {
			c := Find([]v1alpha1.DefensePolicy{p}, "operator", Workload{Namespace: "ns"}, "ns/p/a")
			if c == nil || c.Type != v1alpha1.CheckTypeService || c.Due() != 70*time.Second || c.AfterSuccess() {
				t.Errorf("check %+v", c)
			}
		}
	}
}

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// made returns a policy of one check, created some time after now.
func made(namespace, name string, after time.Duration, with ...func(*v1alpha1.DefensePolicy)) v1alpha1.DefensePolicy {
	p := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(after)),
	}}
	p.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "a", PodHealth: &v1alpha1.PodHealthCheck{}}}
	for _, f := range with {
		f(&p)
	}
	return p
}

func selecting(key, value string) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Spec.WorkloadSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
}

func ofNamespaces(key, value string) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
}

func mode(m v1alpha1.PolicyMode) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) { p.Spec.Mode = m }
}

// invalid sets a selector that is not valid; an earlier spec was accepted.
func invalid(before *v1alpha1.DefensePolicySpec) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Spec.WorkloadSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}
		p.Status.InForce, p.Status.InForceGeneration, p.Generation = before, 1, 2
	}
}

// byRule sets one check by a rule.
func byRule(rule string) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "rule", Cel: &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: rule}}}}}
	}
}

// holding sets a hold; without a time, the default counts.
func holding(until v1alpha1.HoldUntil, atMost time.Duration) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Spec.Hold = &v1alpha1.PolicyHold{Until: until}
		if atMost > 0 {
			p.Spec.Hold.MaxDuration = &metav1.Duration{Duration: atMost}
		}
	}
}

// withoutChecks removes all checks; a hold stays.
func withoutChecks(p *v1alpha1.DefensePolicy) { p.Spec.Checks = nil }

// wasJudged marks the current spec as accepted.
func wasJudged(p *v1alpha1.DefensePolicy) {
	p.Status.InForce, p.Status.InForceGeneration = p.Spec.DeepCopy(), p.Generation
}

// before marks a spec as accepted in generation 1; the current spec is generation 2.
func before(spec *v1alpha1.DefensePolicySpec) func(*v1alpha1.DefensePolicy) {
	return func(p *v1alpha1.DefensePolicy) {
		p.Status.InForce, p.Status.InForceGeneration, p.Generation = spec, 1, 2
	}
}

// tooLarge removes the spec, as the cache does for a policy that is too large.
func tooLarge(p *v1alpha1.DefensePolicy) {
	p.Annotations, p.Spec = map[string]string{v1alpha1.TooLargeMark: "true"}, v1alpha1.DefensePolicySpec{}
}

func many(n int, namespace string) (policies []v1alpha1.DefensePolicy) {
	for i := range n {
		policies = append(policies, made(namespace, fmt.Sprintf("p%d", i), time.Duration(i)*time.Second-time.Hour))
	}
	return policies
}

// TestSelect has the checks that count for the workload shop/web with the label app: web.
func TestSelect(t *testing.T) {
	podsBefore := v1alpha1.DefensePolicySpec{Checks: []v1alpha1.PolicyCheck{{Name: "before", PodHealth: &v1alpha1.PodHealthCheck{}}}}
	for name, test := range map[string]struct {
		policies []v1alpha1.DefensePolicy
		began    time.Time
		checks   []string
		over     int
	}{
		"none":                 {},
		"of the namespace":     {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0)}, checks: []string{"shop/p/a"}},
		"of another namespace": {policies: []v1alpha1.DefensePolicy{made("other", "p", 0)}},
		"of the operator's first": {
			policies: []v1alpha1.DefensePolicy{made("shop", "p", 0), made(operator, "z", time.Hour)},
			checks:   []string{"operator/z/a", "shop/p/a"},
		},
		"older ones first": {
			policies: []v1alpha1.DefensePolicy{made("shop", "a", time.Hour), made("shop", "b", 0)},
			checks:   []string{"shop/b/a", "shop/a/a"},
		},
		"that selects it":      {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, selecting("app", "web"))}, checks: []string{"shop/p/a"}},
		"that selects another": {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, selecting("app", "api"))}},
		"that selects its namespace": {
			policies: []v1alpha1.DefensePolicy{made(operator, "p", 0, ofNamespaces("team", "shop"))},
			checks:   []string{"operator/p/a"},
		},
		"that selects other ones":      {policies: []v1alpha1.DefensePolicy{made(operator, "p", 0, ofNamespaces("team", "bank"))}},
		"disabled":                     {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, mode(v1alpha1.ModeDisabled))}},
		"made after the release began": {policies: []v1alpha1.DefensePolicy{made("shop", "p", time.Second)}, began: now},
		"made in the same second":      {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0)}, began: now, checks: []string{"shop/p/a"}},
		"not accepted, and never was":  {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, invalid(nil))}},
		"no longer accepted": {
			policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, invalid(&podsBefore))}, checks: []string{"shop/p/before"},
		},
		"disabled, and no longer accepted": {
			policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, invalid(&podsBefore), mode(v1alpha1.ModeDisabled))},
		},
		"too large": {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, tooLarge)}},
		"too large, and accepted before": {
			policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, tooLarge, before(&podsBefore))}, checks: []string{"shop/p/before"},
		},
		"a rule": {
			policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, byRule("has(pod.spec)"))},
			checks:   []string{"shop/p/rule"},
		},
		"a rule that does not compile": {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, byRule("has("))}},
		"a rule that no longer compiles": {
			policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, byRule("has("), before(&podsBefore))}, checks: []string{"shop/p/before"},
		},
		"a rule that does not compile, and another selector before": {
			policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, byRule("has("), before(&v1alpha1.DefensePolicySpec{
				WorkloadSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}, Checks: podsBefore.Checks,
			}))},
		},
		"of a namespace that selects namespaces": {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, ofNamespaces("team", "bank"))}},
		"of the same name, which overrides nothing": {
			policies: []v1alpha1.DefensePolicy{made(operator, "default", 0), made("shop", "default", 0, mode(v1alpha1.ModeDisabled))},
			checks:   []string{"operator/default/a"}},
		"a thousand of the namespace, and one of the operator's": {policies: append(many(1000, "shop"), made(operator, "p", 0)),
			checks: []string{"operator/p/a", "shop/p0/a", "shop/p1/a", "shop/p2/a", "shop/p3/a", "shop/p4/a", "shop/p5/a", "shop/p6/a"}, over: 993},
		"too many checks": {policies: []v1alpha1.DefensePolicy{made("shop", "p", 0, func(p *v1alpha1.DefensePolicy) {
			p.Spec.Checks = slices.Repeat(p.Spec.Checks, MaxChecks+1)
		}), made("shop", "q", time.Second)}, checks: []string{"shop/q/a"}, over: 1},
	} {
		t.Run(name, func(t *testing.T) {
			Sort(test.policies, operator)
			web := Workload{
				Namespace: "shop", NamespaceLabels: map[string]string{"team": "shop"}, Labels: map[string]string{"app": "web"}, Began: test.began,
			}
			s := Select(test.policies, operator, web)
			var checks []string
			for i := range s.Checks {
				checks = append(checks, s.Checks[i].Name)
			}
			if !slices.Equal(checks, test.checks) || len(s.Over) != test.over || len(s.Policies) != len(checks) {
				t.Errorf("checks %v of %v, %d over", checks, s.Policies, len(s.Over))
			}
			for _, name := range checks {
				if c := Find(test.policies, operator, web, name); c == nil || c.Name != name {
					t.Errorf("%s is not found: %v", name, c)
				}
			}
		})
	}
}

// TestModes: a check that does not enforce runs in the background, and is never stricter than its
// policy.
func TestModes(t *testing.T) {
	for _, test := range []struct {
		policy, check v1alpha1.PolicyMode
		wait          *bool
		mode          v1alpha1.PolicyMode
		background    bool
	}{
		{"", "", nil, v1alpha1.ModeEnforce, false},
		{v1alpha1.ModeEnforce, v1alpha1.ModeEnforce, ptr.To(true), v1alpha1.ModeEnforce, false},
		{v1alpha1.ModeEnforce, v1alpha1.ModeEnforce, ptr.To(false), v1alpha1.ModeEnforce, true},
		{v1alpha1.ModeEnforce, v1alpha1.ModeObserve, ptr.To(true), v1alpha1.ModeObserve, true},
		{v1alpha1.ModeObserve, v1alpha1.ModeEnforce, ptr.To(true), v1alpha1.ModeObserve, true},
	} {
		p := made("shop", "p", 0, func(p *v1alpha1.DefensePolicy) {
			p.Spec.Mode, p.Spec.Checks[0].Mode, p.Spec.Checks[0].Wait = test.policy, test.check, test.wait
		})
		c := Find([]v1alpha1.DefensePolicy{p}, operator, Workload{Namespace: "shop"}, "shop/p/a")
		if c.Mode != test.mode || c.Background != test.background {
			t.Errorf("%+v: %s, background %t", test, c.Mode, c.Background)
		}
	}
}

// TestProbe has the times of a probe, and the consequence if it could not be made.
func TestProbe(t *testing.T) {
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	for name, test := range map[string]struct {
		check   v1alpha1.PolicyCheck
		policy  v1alpha1.OnSilence
		due     time.Duration
		timeout time.Duration
		onError v1alpha1.OnSilence
	}{
		"with defaults": {
			check: v1alpha1.PolicyCheck{Probe: &v1alpha1.ProbeCheck{Successes: 3}},
			due:   40 * time.Second, timeout: 10 * time.Second, onError: v1alpha1.SilenceDefault,
		},
		"with its own": {
			check: v1alpha1.PolicyCheck{
				Delay: duration(time.Minute), Timeout: duration(5 * time.Second), OnError: v1alpha1.SilencePasses,
				Probe: &v1alpha1.ProbeCheck{Successes: 2, Interval: duration(20 * time.Second)},
			},
			policy: v1alpha1.SilenceFails, due: 105 * time.Second, timeout: 5 * time.Second, onError: v1alpha1.SilencePasses,
		},
		"with onError of the policy": {
			check:  v1alpha1.PolicyCheck{Probe: &v1alpha1.ProbeCheck{}},
			policy: v1alpha1.SilenceFails, due: 20 * time.Second, timeout: 10 * time.Second, onError: v1alpha1.SilenceFails,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := made("shop", "p", 0, func(p *v1alpha1.DefensePolicy) {
				test.check.Name = "a"
				p.Spec.OnError, p.Spec.Checks = test.policy, []v1alpha1.PolicyCheck{test.check}
			})
			c := Find([]v1alpha1.DefensePolicy{p}, operator, Workload{Namespace: "shop"}, "shop/p/a")
			if c == nil || c.Type != v1alpha1.CheckTypeProbe || c.Due() != test.due || c.Timeout != test.timeout || c.OnError != test.onError {
				t.Errorf("got %+v", c)
			}
		})
	}
}

// TestMatches: a selector selects the same objects as its parsed form.
func TestMatches(t *testing.T) {
	var selectors []*metav1.LabelSelector
	for _, op := range []metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
	} {
		r := metav1.LabelSelectorRequirement{Key: "app", Operator: op}
		if op == metav1.LabelSelectorOpIn || op == metav1.LabelSelectorOpNotIn {
			r.Values = []string{"web", ""}
		}
		for _, labels := range []map[string]string{nil, {"team": "shop"}, {"team": ""}} {
			selectors = append(selectors, &metav1.LabelSelector{MatchLabels: labels, MatchExpressions: []metav1.LabelSelectorRequirement{r}},
				&metav1.LabelSelector{MatchLabels: labels})
		}
	}
	for _, s := range selectors {
		parsed, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, app := range []string{"web", "api", "", "-"} {
			for _, team := range []string{"shop", "bank", "", "-"} {
				of := map[string]string{"app": app, "team": team}
				maps.DeleteFunc(of, func(_, v string) bool { return v == "-" })
				if got, want := matches(s, of), parsed.Matches(labels.Set(of)); got != want {
					t.Errorf("%+v selects %v: %t, want %t", s, of, got, want)
				}
			}
		}
	}
}

// TestJudge: the message about a policy names the field and the remedy.
func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		policy  v1alpha1.DefensePolicy
		overFor string
		want    Judgement
	}{
		"accepted": {
			policy: made("shop", "p", 0),
			want:   Judgement{Valid: true, Accepted: true, Reason: v1alpha1.ReasonInForce, Message: "from now on"},
		},
		"disabled": {
			policy: made("shop", "p", 0, mode(v1alpha1.ModeDisabled)),
			want:   Judgement{Valid: true, Accepted: true, Reason: v1alpha1.ReasonInForce, Message: "disabled"},
		},
		"too many": {
			policy: made("shop", "p", 0), overFor: "shop/web",
			want: Judgement{Valid: true, Reason: v1alpha1.ReasonTooMany, Message: "shop/web"},
		},
		"a rule that does not compile": {policy: made("shop", "p", 0, func(p *v1alpha1.DefensePolicy) {
			p.Spec.Checks = append(p.Spec.Checks,
				v1alpha1.PolicyCheck{Name: "rule", Cel: &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: "has("}}}})
		}), want: Judgement{
			Reason: v1alpha1.ReasonInvalidPolicy, Message: "spec.checks[1].cel.rules[0].expression: it does not compile: line 1, column 5: ",
		}},
		"a rule that is not bool, and an earlier spec": {policy: made("shop", "p", 0, byRule("1"), before(&v1alpha1.DefensePolicySpec{})),
			want: Judgement{Reason: v1alpha1.ReasonInvalidPolicy, Message: "generation 1 stays in force"}},
		"a function of an earlier version": {
			policy: made("shop", "p", 0, byRule("['a'].join('') == 'a'"), func(p *v1alpha1.DefensePolicy) {
				p.Generation, p.Status.InForceGeneration, p.Status.InForce = 4, 4, p.Spec.DeepCopy()
			}),
			want: Judgement{Reason: v1alpha1.ReasonInvalidPolicy, Message: "spec.checks[0].cel.rules[0].expression: " +
				"the function join with 1 arguments is not available; docs/reference/checks.md lists the functions; " +
				"until it is corrected, this check ends as Error"},
		},
		"selects namespaces": {policy: made("shop", "p", 0, ofNamespaces("a", "b")),
			want: Judgement{Reason: v1alpha1.ReasonInvalidPolicy, Message: "spec.namespaceSelector"}},
		"an invalid selector": {
			policy: made("shop", "p", 0, invalid(nil)),
			want:   Judgement{Reason: v1alpha1.ReasonInvalidPolicy, Message: "spec.workloadSelector"},
		},
		"an invalid selector, and an earlier spec": {policy: made("shop", "p", 0, invalid(&v1alpha1.DefensePolicySpec{})),
			want: Judgement{Reason: v1alpha1.ReasonInvalidPolicy, Message: "generation 1 stays in force"}},
		"too large": {policy: made("shop", "p", 0, tooLarge), want: Judgement{Reason: v1alpha1.ReasonTooLarge, Message: "split it"}},
		"too large, and accepted before": {policy: made("shop", "p", 0, tooLarge, before(&v1alpha1.DefensePolicySpec{})),
			want: Judgement{Reason: v1alpha1.ReasonTooLarge, Message: "generation 1 stays in force"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Judge(&test.policy, operator, test.overFor)
			if got.Valid != test.want.Valid || got.Accepted != test.want.Accepted || got.Reason != test.want.Reason ||
				!strings.Contains(got.Message, test.want.Message) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestOnlySelectedIsCompiled: of a thousand policies, only the rules of policies that select the
// workload are compiled.
func TestOnlySelectedIsCompiled(t *testing.T) {
	var policies []v1alpha1.DefensePolicy
	for i := range 1000 {
		policies = append(policies, made("shop", fmt.Sprintf("p%d", i), time.Duration(i)*time.Second,
			byRule(fmt.Sprintf("pod.metadata.name != 'only selected %d'", i)), selecting("app", fmt.Sprint("w", i%500))))
	}
	of := Workload{Namespace: "shop", Labels: map[string]string{"app": "w7"}}
	compiled := rules.Compiled()
	for range 10 {
		if s := Select(policies, operator, of); !slices.Equal(s.Policies, []string{"shop/p7@1", "shop/p507@1"}) {
			t.Fatalf("selected %v", s.Policies)
		}
		if c := Find(policies, operator, Workload{Namespace: "shop", Labels: map[string]string{"app": "w8"}}, "shop/p8/rule"); c == nil {
			t.Fatal("a check is not found")
		}
	}
	if n := rules.Compiled() - compiled; n != 3 {
		t.Errorf("%d were compiled", n)
	}
	// Rules of judged policies are not compiled at all.
	for i := range policies {
		policies[i].Spec.WorkloadSelector = nil
		policies[i].Status.InForce, policies[i].Status.InForceGeneration = &policies[i].Spec, policies[i].Generation
	}
	compiled = rules.Compiled()
	if s := Select(policies, operator, of); len(s.Policies) != MaxPolicies || len(s.Over) != len(policies)-MaxPolicies {
		t.Errorf("selected %v", s.Policies)
	}
	if n := rules.Compiled() - compiled; n != 0 {
		t.Errorf("%d were compiled that had been judged", n)
	}
}

// TestServerSilence: a policy may only make the consequence of a missing verdict stricter.
func TestServerSilence(t *testing.T) {
	server := func(mode v1alpha1.PolicyMode, onError, ofCheck v1alpha1.OnSilence) v1alpha1.DefensePolicySpec {
		return v1alpha1.DefensePolicySpec{Mode: mode, OnError: onError, Checks: []v1alpha1.PolicyCheck{
			{Name: "server", OnError: ofCheck, Altershield: &v1alpha1.AltershieldCheck{}},
			{Name: "pods", PodHealth: &v1alpha1.PodHealthCheck{}},
		}}
	}
	for name, tt := range map[string]struct {
		spec v1alpha1.DefensePolicySpec
		by   string
	}{
		"named":                 {spec: server(v1alpha1.ModeEnforce, v1alpha1.SilenceDefault, "")},
		"fails":                 {spec: server(v1alpha1.ModeEnforce, v1alpha1.SilenceDefault, v1alpha1.SilenceFails), by: "shop/p/server"},
		"onError of the policy": {spec: server(v1alpha1.ModeEnforce, v1alpha1.SilenceFails, ""), by: "shop/p/server"},
		"onError of the check":  {spec: server(v1alpha1.ModeEnforce, v1alpha1.SilenceFails, v1alpha1.SilencePasses)},
		"in observe mode":       {spec: server(v1alpha1.ModeObserve, v1alpha1.SilenceFails, "")},
	} {
		t.Run(name, func(t *testing.T) {
			p := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}, Spec: tt.spec}
			s := Select([]v1alpha1.DefensePolicy{p}, "operator", Workload{Namespace: "shop"})
			if s.ServerSilenceBy != tt.by || len(s.Checks) != 1 || s.Checks[0].Name != "shop/p/pods" || !NamesServer(&p) {
				t.Errorf("by %q, checks %+v", s.ServerSilenceBy, s.Checks)
			}
		})
	}
}

// TestAtAdmission: only accepted specs count, nothing is compiled, and the timeout of a check is
// bounded.
func TestAtAdmission(t *testing.T) {
	atAdmission := func(name string, timeout time.Duration) v1alpha1.DefensePolicySpec {
		c := v1alpha1.PolicyCheck{Name: name, Stage: v1alpha1.StageAdmission, OnError: v1alpha1.SilencePasses,
			Cel: &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: "object.metadata.name != 'at admission " + name + "'"}}}}
		if timeout > 0 {
			c.Timeout = &metav1.Duration{Duration: timeout}
		}
		return v1alpha1.DefensePolicySpec{
			OnError: v1alpha1.SilenceFails, Checks: []v1alpha1.PolicyCheck{c, {Name: "pods", PodHealth: &v1alpha1.PodHealthCheck{}}},
		}
	}
	before, now := atAdmission("before", 0), atAdmission("now", time.Second)
	for name, test := range map[string]struct {
		spec       v1alpha1.DefensePolicySpec
		inForce    *v1alpha1.DefensePolicySpec
		generation int64
		want       string
		timeout    time.Duration
	}{
		"accepted":       {spec: now, inForce: &now, generation: 2, want: "shop/p/now", timeout: time.Second},
		"not judged yet": {spec: now, inForce: &before, generation: 1, want: "shop/p/before", timeout: MaxAtAdmission},
		"never judged":   {spec: now},
		"disabled since": {spec: v1alpha1.DefensePolicySpec{Mode: v1alpha1.ModeDisabled, Checks: now.Checks}, inForce: &before, generation: 1},
		"of a time without limit": {
			spec: atAdmission("long", time.Minute), inForce: ptr.To(atAdmission("long", time.Minute)), generation: 2,
			want: "shop/p/long", timeout: MaxAtAdmission,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Generation: 2}, Spec: test.spec}
			p.Status.InForce, p.Status.InForceGeneration = test.inForce, test.generation
			compiled := rules.Compiled()
			checks := AtAdmission([]v1alpha1.DefensePolicy{p}, operator, Workload{Namespace: "shop"})
			if n := rules.Compiled() - compiled; n != 0 {
				t.Errorf("%d were compiled", n)
			}
			if test.want == "" {
				if len(checks) != 0 {
					t.Errorf("checks %+v", checks)
				}
				return
			}
			if len(checks) != 1 || checks[0].Name != test.want || checks[0].Timeout != test.timeout || checks[0].Generation != test.generation ||
				checks[0].OnError != v1alpha1.SilencePasses || checks[0].Deadline != slippedDeadline {
				t.Errorf("checks %+v", checks)
			}
			if other := AtAdmission([]v1alpha1.DefensePolicy{p}, operator, Workload{Namespace: "other"}); len(other) != 0 {
				t.Errorf("it counts in another namespace: %+v", other)
			}
		})
	}
}

// TestHold: the strictest hold of the policies for shop/web counts, for the longest time of their
// holds. At admission only accepted specs count.
func TestHold(t *testing.T) {
	const none, first, every = v1alpha1.HoldNone, v1alpha1.HoldFirstBatch, v1alpha1.HoldEveryBatch
	type policies = []v1alpha1.DefensePolicy
	held := v1alpha1.DefensePolicySpec{Hold: &v1alpha1.PolicyHold{Until: first}}
	for name, test := range map[string]struct {
		policies policies
		began    time.Time
		until    v1alpha1.HoldUntil
		atMost   time.Duration
		// unjudged: the policies were not judged yet.
		unjudged bool
		// atAdmission is the hold at admission, if it differs.
		atAdmission *v1alpha1.HoldUntil
	}{
		"no policy":          {},
		"without a hold":     {policies: policies{made("shop", "p", 0)}},
		"that does not hold": {policies: policies{made("shop", "p", 0, holding(none, time.Hour))}},
		"one":                {policies: policies{made("shop", "p", 0, holding(first, time.Hour))}, until: first, atMost: time.Hour},
		"without checks": {
			policies: policies{made("shop", "p", 0, holding(first, 0), withoutChecks)},
			until:    first, atMost: 30 * time.Minute,
		},
		"of the operator's": {policies: policies{made(operator, "p", 0, holding(every, 0))}, until: every, atMost: 30 * time.Minute},
		"that enforces": {
			policies: policies{made("shop", "p", 0, holding(every, 0), mode(v1alpha1.ModeEnforce))},
			until:    every, atMost: 30 * time.Minute,
		},
		"that observes":           {policies: policies{made("shop", "p", 0, holding(every, 0), mode(v1alpha1.ModeObserve))}},
		"that is disabled":        {policies: policies{made("shop", "p", 0, holding(every, 0), mode(v1alpha1.ModeDisabled))}},
		"that selects another":    {policies: policies{made("shop", "p", 0, holding(every, 0), selecting("app", "api"))}},
		"that selects other ones": {policies: policies{made(operator, "p", 0, holding(every, 0), ofNamespaces("team", "bank"))}},
		"of another namespace":    {policies: policies{made("other", "p", 0, holding(every, 0))}},
		"the strictest of two": {
			policies: policies{made(operator, "p", 0, holding(every, time.Minute)), made("shop", "p", 0, holding(first, time.Hour))},
			until:    every, atMost: time.Hour,
		},
		"the strictest is the second": {
			policies: policies{made(operator, "p", 0, holding(first, time.Minute)), made("shop", "p", 0, holding(every, time.Hour))},
			until:    every, atMost: time.Hour,
		},
		"the time of one that does not hold": {policies: policies{made(operator, "p", 0, holding(first, time.Minute)),
			made("shop", "p", 0, holding(none, time.Hour)), made("shop", "q", 0, holding(every, time.Hour), mode(v1alpha1.ModeObserve))},
			until: first, atMost: time.Minute},
		"one too many":                 {policies: append(many(MaxPolicies, "shop"), made("shop", "p", 0, holding(every, 0)))},
		"made after the release began": {policies: policies{made("shop", "p", time.Second, holding(every, 0))}, began: now},
		"made in the same second": {
			policies: policies{made("shop", "p", 0, holding(every, 0))}, began: now,
			until: every, atMost: 30 * time.Minute,
		},
		"not accepted, and never was": {policies: policies{made("shop", "p", 0, holding(every, 0), invalid(nil))}, unjudged: true},
		"no longer accepted": {policies: policies{made("shop", "p", 0, holding(every, time.Hour), invalid(&held))}, unjudged: true,
			until: first, atMost: 30 * time.Minute},
		"not judged yet, and laxer before": {policies: policies{made("shop", "p", 0, holding(every, 0), before(&held))}, unjudged: true,
			until: every, atMost: 30 * time.Minute, atAdmission: ptr.To(first)},
		"never judged": {policies: policies{made("shop", "p", 0, holding(every, 0))}, unjudged: true,
			until: every, atMost: 30 * time.Minute, atAdmission: ptr.To(v1alpha1.HoldUntil(""))},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range test.policies {
				if !test.unjudged {
					wasJudged(&test.policies[i])
				}
			}
			Sort(test.policies, operator)
			web := Workload{
				Namespace: "shop", NamespaceLabels: map[string]string{"team": "shop"}, Labels: map[string]string{"app": "web"}, Began: test.began,
			}
			s := Select(test.policies, operator, web)
			if s.Hold != test.until || s.HoldAtMost != test.atMost {
				t.Errorf("%q for %s, want %q for %s", s.Hold, s.HoldAtMost, test.until, test.atMost)
			}
			atAdmission, wantAtMost := ptr.Deref(test.atAdmission, test.until), test.atMost
			if !atAdmission.Holds() {
				wantAtMost = 0
			}
			if until, atMost := HoldAtAdmission(test.policies, operator, web); until != atAdmission || atMost != wantAtMost {
				t.Errorf("%q for %s at admission, want %q for %s", until, atMost, atAdmission, wantAtMost)
			}
			if s.Hold.Holds() && !slices.ContainsFunc(test.policies, func(p v1alpha1.DefensePolicy) bool { return MayHold(&p) }) {
				t.Error("none of the policies may hold")
			}
		})
	}
}
