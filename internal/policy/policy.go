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

// Package policy decides which checks of DefensePolicies count for a workload, by pure functions.
package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/freeze"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// Limits for one workload. Policies of the operator's namespace count first, then older policies
// before younger ones.
const (
	// MaxPolicies is the number of policies.
	MaxPolicies = 8
	// MaxChecks is the number of their checks.
	MaxChecks = 32
)

// typeServer is the check type altershield. It starts no check: the server is asked anyway.
const typeServer = "altershield"

// Check is one check of a policy.
type Check struct {
	// Name is namespace/policy/check.
	Name string
	// Generation and UID of the policy.
	Generation int64
	UID        types.UID
	// Type of the check.
	Type string
	// Stage at which it begins.
	Stage v1alpha1.PolicyStage
	// Mode is Enforce or Observe.
	Mode v1alpha1.PolicyMode
	// Background: nothing waits for it.
	Background bool
	// Delay and Deadline count from the start of its stage.
	Delay, Deadline time.Duration
	// OnNoData is the consequence if it is inconclusive, or has no data.
	OnNoData v1alpha1.OnSilence
	// OnError is the consequence if it could not be measured.
	OnError v1alpha1.OnSilence
	// Timeout of one call.
	Timeout time.Duration
	// Suggestion is shown with a failure.
	Suggestion string
	// PodHealth is set for that type, with the defaults of the API.
	PodHealth *v1alpha1.PodHealthCheck
	// Probe is set for that type, with the defaults of the API; its Service is set only if it
	// is the target.
	Probe *v1alpha1.ProbeCheck
	// Cel is set for that type.
	Cel *v1alpha1.CelCheck
	// Prometheus is set for that type, with the defaults of the API. For the types alerts and compare it has the endpoint and the
	// evaluations.
	Prometheus *v1alpha1.PrometheusCheck
	// Service is set for that type. An empty protocol is AlterShield, and an empty invoke Sync.
	Service *v1alpha1.ServiceCheck
	// Job is set for that type.
	Job *v1alpha1.JobCheck
	// Alerts is set for that type.
	Alerts *v1alpha1.AlertsCheck
	// Compare is set for that type, with the defaults of the API.
	Compare *v1alpha1.CompareCheck
}

// Accepted returns why a policy is not accepted; empty if it is. It does not repeat validations of
// the CRD schema.
func Accepted(p *v1alpha1.DefensePolicy, operator string) (problem string) {
	return cmp.Or(selectorsAccepted(p, operator), specAccepted(&p.Spec))
}

// isTooLarge reports whether the cache left out the spec of a policy.
func isTooLarge(p *v1alpha1.DefensePolicy) bool {
	return p.Annotations[v1alpha1.TooLargeMark] != ""
}

// specAccepted returns the first problem of the expressions and freezes of a policy; empty if there is none.
func specAccepted(spec *v1alpha1.DefensePolicySpec) (problem string) {
	for i := range spec.Checks {
		if c := spec.Checks[i].Prometheus; c != nil {
			if problem := queryAccepted(&spec.Checks[i]); problem != "" {
				return fmt.Sprintf("spec.checks[%d].%s", i, problem)
			}
		}
		if c := spec.Checks[i].Service; c != nil && c.FailWhen != "" {
			if problem := rules.ThresholdProblem(c.FailWhen, rules.OfAnswer); problem != "" {
				return fmt.Sprintf("spec.checks[%d].service.failWhen: %s", i, problem)
			}
		}
		if c := spec.Checks[i].Alerts; c != nil {
			if _, _, err := promql.Alerts(c.Matchers, "namespace", "default", "2m"); err != nil {
				return fmt.Sprintf("spec.checks[%d].alerts.%v", i, err)
			}
		}
		if c := spec.Checks[i].Compare; c != nil {
			if problem := cmp.Or(presetsAccepted(c), metricsAccepted(c.Metrics), baselineAccepted(c)); problem != "" {
				return fmt.Sprintf("spec.checks[%d].compare.%s", i, problem)
			}
		}
		if c := spec.Checks[i].Cel; c != nil {
			if problem := rules.Problem(c, rules.ScopeOf(spec.Checks[i].Stage, c)); problem != "" {
				return fmt.Sprintf("spec.checks[%d].cel.%s", i, problem)
			}
		}
	}
	return freeze.Problem(spec.Freezes)
}

// metricsAccepted returns the problem of the metrics of a check of type compare; empty if there is none.
func metricsAccepted(metrics []v1alpha1.CompareMetric) string {
	for i := range metrics {
		m := &metrics[i]
		if m.Query != "" && m.MinChange == nil || m.MinChange != nil && m.MinChange.Sign() <= 0 {
			return fmt.Sprintf("metrics[%d].minChange: give a change greater than 0, in the unit of the query", i)
		}
		for _, of := range []struct{ field, query string }{{"query", m.Query}, {"numerator", m.Numerator}, {"denominator", m.Denominator}} {
			if of.query == "" {
				continue
			}
			if problem := promql.Problem(of.query); problem != "" {
				return fmt.Sprintf("metrics[%d].%s: %s", i, of.field, problem)
			}
		}
	}
	return ""
}

// queryAccepted returns the problem of a check of type prometheus; empty if there is none.
func queryAccepted(c *v1alpha1.PolicyCheck) string {
	if problem := rules.ThresholdProblem(c.Prometheus.FailWhen, rules.OfResult); problem != "" {
		return "prometheus.failWhen: " + problem
	}
	if problem := promql.Problem(c.Prometheus.Query); problem != "" {
		return "prometheus.query: " + problem
	}
	of := Check{Delay: durationOr(c.Delay, 0), Prometheus: prometheusOf(c.Prometheus)}
	if due, deadline := of.Due(), durationOr(c.Deadline, defaultDeadline); due >= deadline {
		return fmt.Sprintf("deadline: %s is too short: with delay, a range of samples, %d evaluations and the time until "+
			"Prometheus has the samples, the check takes %s", deadline, of.Prometheus.Count, due)
	}
	return ""
}

func selectorsAccepted(p *v1alpha1.DefensePolicy, operator string) (problem string) {
	if p.Spec.NamespaceSelector != nil && p.Namespace != operator {
		return "spec.namespaceSelector: only a policy in the operator's namespace " + operator +
			" may select namespaces; leave it out, this policy is of its own namespace"
	}
	for field, selector := range map[string]*metav1.LabelSelector{
		"workloadSelector": p.Spec.WorkloadSelector, "namespaceSelector": p.Spec.NamespaceSelector,
	} {
		if selector == nil {
			continue
		}
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			return fmt.Sprintf("spec.%s: %v", field, err)
		}
	}
	return ""
}

// inForce returns the spec of a policy that counts for a workload; nil if it does not select the
// workload. It is the current spec, or the last accepted spec if the current one is not accepted, or
// if a user waits. Expressions are compiled only if the policy selects the workload, and was not
// judged yet.
func inForce(p *v1alpha1.DefensePolicy, operator string, w Workload, waits bool) (*v1alpha1.DefensePolicySpec, int64) {
	if p.Spec.Mode == v1alpha1.ModeDisabled {
		return nil, 0
	}
	spec, generation := p.Status.InForce, p.Status.InForceGeneration
	concerns := func(spec *v1alpha1.DefensePolicySpec) bool { return spec != nil && selects(p, spec, operator, w) }
	if !waits && !isTooLarge(p) && selectorsAccepted(p, operator) == "" {
		judged := spec != nil && generation == p.Generation
		if judged || !concerns(&p.Spec) && !concerns(spec) || specAccepted(&p.Spec) == "" {
			spec, generation = &p.Spec, p.Generation
		}
	}
	if !concerns(spec) || spec.Mode == v1alpha1.ModeDisabled {
		return nil, 0
	}
	return spec, generation
}

// Workload has the properties of a workload that policies select by.
type Workload struct {
	// Namespace of the workload, and its labels.
	Namespace       string
	NamespaceLabels map[string]string
	// Labels of the workload.
	Labels map[string]string
	// Began is the start of the release: younger policies do not count for it. Zero lets
	// all policies count.
	Began time.Time
}

// Selection has the checks and settings of policies that count for a workload.
type Selection struct {
	Checks []Check
	// ServerSilenceBy is the first check that fails releases without a verdict of the server;
	// empty for none.
	ServerSilenceBy string
	// Hold is the strictest hold of the policies, HoldAtMost the longest time of their holds.
	Hold       v1alpha1.HoldUntil
	HoldAtMost time.Duration
	// Freezes are the windows of the freezes.
	Freezes []Freeze
	// Notify are the endpoints that get alerts.
	Notify []Notification
	// Policies has namespace/name@generation of the policies that count, Over namespace/name
	// of the policies that are too many.
	Policies, Over []string
}

// Notification is an endpoint that gets alerts of a policy.
type Notification struct {
	// Namespace and name of the policy.
	Namespace, Name string
	v1alpha1.PolicyNotify
}

// At returns the checks at the given stages.
func (s Selection) At(stages ...v1alpha1.PolicyStage) (at []Check) {
	for i := range s.Checks {
		if slices.Contains(stages, s.Checks[i].Stage) {
			at = append(at, s.Checks[i])
		}
	}
	return at
}

// Sort sorts policies in the order in which they count: policies of the operator's namespace first,
// older policies before younger ones.
func Sort(policies []v1alpha1.DefensePolicy, operator string) {
	slices.SortFunc(policies, func(a, b v1alpha1.DefensePolicy) int {
		if of := a.Namespace == operator; of != (b.Namespace == operator) {
			if of {
				return -1
			}
			return 1
		}
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// AtAdmission returns the checks at the stage Admission that count for a workload. A user waits,
// so only accepted specs count: a policy that was not judged yet counts with its previous spec.
func AtAdmission(policies []v1alpha1.DefensePolicy, operator string, w Workload) []Check {
	return choose(policies, operator, w, true).At(v1alpha1.StageAdmission)
}

// HoldAtAdmission returns whether the rollout of a release is held, and for how long at most. Only
// accepted specs count, as in AtAdmission.
func HoldAtAdmission(policies []v1alpha1.DefensePolicy, operator string, w Workload) (until v1alpha1.HoldUntil, atMost time.Duration) {
	s := choose(policies, operator, w, true)
	return s.Hold, s.HoldAtMost
}

// Select returns the checks of sorted policies that count for a workload. Policies do not override
// one another.
func Select(policies []v1alpha1.DefensePolicy, operator string, w Workload) Selection {
	return choose(policies, operator, w, false)
}

func choose(policies []v1alpha1.DefensePolicy, operator string, w Workload, waits bool) (s Selection) {
	count := 0
	for i := range policies {
		p := &policies[i]
		if !w.Began.IsZero() && p.CreationTimestamp.After(w.Began) {
			continue
		}
		spec, generation := inForce(p, operator, w, waits)
		if spec == nil {
			continue
		}
		if count >= MaxPolicies || len(s.Checks)+len(spec.Checks) > MaxChecks {
			s.Over = append(s.Over, p.Namespace+"/"+p.Name)
			continue
		}
		count++
		s.Policies = append(s.Policies, fmt.Sprintf("%s/%s@%d", p.Namespace, p.Name, generation))
		until, atMost := holdOf(spec)
		s.Hold, s.HoldAtMost = settings.Strictest(s.Hold, s.HoldAtMost, until, atMost)
		s.Freezes = append(s.Freezes, freezesOf(p, spec)...)
		for _, n := range spec.Notify {
			s.Notify = append(s.Notify, Notification{p.Namespace, p.Name, n})
		}
		for _, c := range checksOf(p, spec, generation) {
			if c.Type != typeServer {
				s.Checks = append(s.Checks, c)
			} else if s.ServerSilenceBy == "" && c.failsSilence() {
				s.ServerSilenceBy = c.Name
			}
		}
	}
	return s
}

// holdOf returns the hold of a spec in force. A policy that does not enforce does not hold.
func holdOf(spec *v1alpha1.DefensePolicySpec) (until v1alpha1.HoldUntil, atMost time.Duration) {
	if spec.Hold == nil || cmp.Or(spec.Mode, v1alpha1.ModeEnforce) != v1alpha1.ModeEnforce {
		return v1alpha1.HoldNone, 0
	}
	return spec.Hold.Until, durationOr(spec.Hold.MaxDuration, settings.DefaultHold)
}

// Find finds a check of a workload by its name, even if its policy is one too many, or is younger
// than the release; nil if it no longer exists.
func Find(policies []v1alpha1.DefensePolicy, operator string, w Workload, name string) *Check {
	for i := range policies {
		p := &policies[i]
		if !strings.HasPrefix(name, p.Namespace+"/"+p.Name+"/") {
			continue
		}
		spec, generation := inForce(p, operator, w, false)
		if spec == nil {
			continue
		}
		checks := checksOf(p, spec, generation)
		if at := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name }); at >= 0 {
			return &checks[at]
		}
	}
	return nil
}

func selects(p *v1alpha1.DefensePolicy, spec *v1alpha1.DefensePolicySpec, operator string, w Workload) bool {
	if p.Namespace != operator && p.Namespace != w.Namespace {
		return false
	}
	return matches(spec.WorkloadSelector, w.Labels) && (p.Namespace != operator || matches(spec.NamespaceSelector, w.NamespaceLabels))
}

// matches reports whether an accepted selector selects an object with these labels; nil selects
// everything. It does not parse the selector: there may be a thousand of them.
func matches(selector *metav1.LabelSelector, of map[string]string) bool {
	if selector == nil {
		return true
	}
	for key, value := range selector.MatchLabels {
		if got, ok := of[key]; !ok || got != value {
			return false
		}
	}
	return !slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return !meets(&r, of) })
}

func meets(r *metav1.LabelSelectorRequirement, of map[string]string) bool {
	value, ok := of[r.Key]
	switch r.Operator {
	case metav1.LabelSelectorOpIn:
		return ok && slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpNotIn:
		return !ok || !slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpExists:
		return ok
	case metav1.LabelSelectorOpDoesNotExist:
		return !ok
	default:
		return false
	}
}

// Defaults of the API, for objects without the defaults of the API server.
const (
	defaultDeadline = 15 * time.Minute
	defaultDuration = 2 * time.Minute
	defaultTimeout  = 10 * time.Second
	defaultInterval = 10 * time.Second
	// defaultQueryInterval is the time between two evaluations of a query.
	defaultQueryInterval = 30 * time.Second
	// usualScrape is the scrape interval that is assumed while the endpoint is not read.
	usualScrape = 30 * time.Second
)

const (
	// MaxAtAdmission is the longest timeout of a check at the stage Admission, and its default,
	// because a user waits for it.
	MaxAtAdmission = 2 * time.Second
	// slippedDeadline is the deadline of such a check if admission did not see the release. It is
	// short, since the release passes without a result.
	slippedDeadline = time.Minute
	// defaultWatch is how long alerts are watched, and minLeft the least time from there to the deadline.
	defaultWatch = 15 * time.Minute
	minLeft      = 5 * time.Minute
)

func checksOf(p *v1alpha1.DefensePolicy, spec *v1alpha1.DefensePolicySpec, generation int64) []Check {
	checks := make([]Check, 0, len(spec.Checks))
	for i := range spec.Checks {
		c := &spec.Checks[i]
		check := Check{
			Name: p.Namespace + "/" + p.Name + "/" + c.Name, Generation: generation, UID: p.UID, Mode: v1alpha1.ModeEnforce,
			Stage: cmp.Or(c.Stage, v1alpha1.StageBatchPost),
			Delay: durationOr(c.Delay, 0), Deadline: durationOr(c.Deadline, defaultDeadline),
			OnNoData: spec.OnNoData, Suggestion: spec.Suggestion, PodHealth: podHealthOf(c.PodHealth), Probe: probeOf(c.Probe), Cel: c.Cel,
			Prometheus: prometheusOf(c.Prometheus), Service: c.Service, Job: c.Job,
			OnError: cmp.Or(c.OnError, spec.OnError, v1alpha1.SilenceDefault), Timeout: durationOr(c.Timeout, defaultTimeout),
		}
		if check.Stage == v1alpha1.StageAdmission {
			check.Timeout = min(durationOr(c.Timeout, MaxAtAdmission), MaxAtAdmission)
			check.OnError, check.Delay, check.Deadline = v1alpha1.SilencePasses, 0, slippedDeadline
		}
		if c.Mode == v1alpha1.ModeObserve || spec.Mode == v1alpha1.ModeObserve {
			check.Mode = v1alpha1.ModeObserve
		}
		// A check that changes nothing delays nothing.
		check.Background = !ptr.Deref(c.Wait, c.Alerts == nil) || check.Mode == v1alpha1.ModeObserve
		switch {
		case c.PodHealth != nil:
			check.Type = v1alpha1.CheckTypePodHealth
		case c.Cel != nil:
			check.Type = v1alpha1.CheckTypeCel
		case c.Probe != nil:
			check.Type = v1alpha1.CheckTypeProbe
		case c.Prometheus != nil:
			check.Type = v1alpha1.CheckTypePrometheus
		case c.Service != nil:
			check.Type = v1alpha1.CheckTypeService
		case c.Job != nil:
			check.Type = v1alpha1.CheckTypeJob
		case c.Alerts != nil:
			check.Type, check.Alerts, check.Prometheus = v1alpha1.CheckTypeAlerts, c.Alerts, asQuery(c.Alerts)
			// The default of the API would end it before its duration.
			check.Deadline = max(check.Deadline, check.Due()+minLeft)
		case c.Compare != nil:
			check.Type, check.Compare = v1alpha1.CheckTypeCompare, compareOf(c.Compare)
			check.Prometheus = asEvaluations(check.Compare)
		case c.Altershield != nil:
			check.Type = typeServer
		default:
			continue // a type of a later version of the operator
		}
		checks = append(checks, check)
	}
	return checks
}

// podHealthOf returns a check of type podHealth with the defaults of the API.
func podHealthOf(c *v1alpha1.PodHealthCheck) *v1alpha1.PodHealthCheck {
	if c == nil {
		return nil
	}
	with := *c
	with.Duration = &metav1.Duration{Duration: durationOr(c.Duration, defaultDuration)}
	with.ReadyAtEnd, with.FailOnOOM = ptr.To(ptr.Deref(c.ReadyAtEnd, true)), ptr.To(ptr.Deref(c.FailOnOOM, true))
	with.CompareOldPods = ptr.To(ptr.Deref(c.CompareOldPods, true))
	with.MaxFailedPods = ptr.To(ptr.Deref(c.MaxFailedPods, intstr.FromInt32(0)))
	return &with
}

// probeOf returns a check of type probe with the defaults of the API.
func probeOf(c *v1alpha1.ProbeCheck) *v1alpha1.ProbeCheck {
	if c == nil {
		return nil
	}
	with := *c
	with.Interval = &metav1.Duration{Duration: durationOr(c.Interval, defaultInterval)}
	with.Successes, with.Failures = max(c.Successes, 1), max(c.Failures, 1)
	if c.Target != v1alpha1.ProbeService {
		with.Service = ""
	}
	return &with
}

// prometheusOf returns a check of type prometheus with the defaults of the API.
func prometheusOf(c *v1alpha1.PrometheusCheck) *v1alpha1.PrometheusCheck {
	if c == nil {
		return nil
	}
	with := *c
	with.Interval = &metav1.Duration{Duration: durationOr(c.Interval, defaultQueryInterval)}
	with.Count, with.Failures = max(c.Count, 1), max(c.Failures, 1)
	with.Empty = cmp.Or(c.Empty, v1alpha1.EmptyNoData)
	return &with
}

// asQuery returns a check of type alerts, with the defaults of the API, as the evaluations of a query.
func asQuery(c *v1alpha1.AlertsCheck) *v1alpha1.PrometheusCheck {
	interval := max(durationOr(c.Interval, defaultQueryInterval), time.Second)
	count := (durationOr(c.Duration, defaultWatch)+interval-1)/interval + 1 // the last one is not before the end
	return &v1alpha1.PrometheusCheck{
		EndpointRef: c.EndpointRef, Interval: &metav1.Duration{Duration: interval}, Failures: 1,
		Count: int32(count), //nolint:gosec // at most 3601
	}
}

// compareOf returns a check of type compare with the defaults of the API. Its presets are metrics, except Auto.
func compareOf(c *v1alpha1.CompareCheck) *v1alpha1.CompareCheck {
	with := *c
	with.Metrics, with.Presets = withPresets(c)
	with.Window = &metav1.Duration{Duration: max(durationOr(c.Window, 5*time.Minute), time.Minute)}
	with.Slice = &metav1.Duration{Duration: max(durationOr(c.Slice, time.Minute), time.Second)}
	with.WarmUp = &metav1.Duration{Duration: durationOr(c.WarmUp, time.Minute)}
	with.MaxWindow = &metav1.Duration{Duration: durationOr(c.MaxWindow, 10*time.Minute)}
	with.Baseline = cmp.Or(c.Baseline, v1alpha1.BaselineOldPods)
	with.FalsePositivesPerMille, with.Confirm = cmp.Or(c.FalsePositivesPerMille, 10), ptr.To(ptr.Deref(c.Confirm, true))
	return &with
}

// asEvaluations returns a check of type compare as evaluations: one after each slice of the window.
func asEvaluations(c *v1alpha1.CompareCheck) *v1alpha1.PrometheusCheck {
	return &v1alpha1.PrometheusCheck{
		EndpointRef: c.EndpointRef, Interval: c.Slice, Failures: 1,
		Count: max(int32(c.Window.Duration/c.Slice.Duration), 1), //nolint:gosec // at most 60
	}
}

// PrometheusOf returns the name of the endpoint of type Prometheus that a check asks; empty for a check that asks none.
func PrometheusOf(c *v1alpha1.PolicyCheck) string {
	switch {
	case c.Prometheus != nil:
		return c.Prometheus.EndpointRef.Name
	case c.Alerts != nil:
		return c.Alerts.EndpointRef.Name
	case c.Compare != nil:
		return c.Compare.EndpointRef.Name
	default:
		return ""
	}
}

// Lag is how long after its planned time a query is evaluated: by then Prometheus has the samples.
const Lag = 30 * time.Second

// Range returns the time until the first evaluation of a query: the range of its samples; 0 for alerts, which are asked for from the
// start, and at most the warm-up and two slices for a comparison. The endpoint has the scrape interval.
func (c *Check) Range(scrape time.Duration) time.Duration {
	switch {
	case c.Alerts != nil:
		return 0
	case c.Compare != nil:
		return c.Compare.WarmUp.Duration + 2*c.Compare.Slice.Duration
	default:
		return c.Samples(scrape)
	}
}

// WindowFrom returns the start of the window of a check of type compare that began at a time: a whole number of slices since 1970, at
// which every Prometheus evaluates a query about a range.
func (c *Check) WindowFrom(began time.Time) time.Time {
	slice := int64(c.Compare.Slice.Duration)
	from := began.Add(c.Delay + c.Compare.WarmUp.Duration).UnixNano()
	return time.Unix(0, (from+slice-1)/slice*slice)
}

// Samples returns $range of the queries of a check.
func (c *Check) Samples(scrape time.Duration) time.Duration {
	return max(4*scrape, c.Prometheus.Interval.Duration)
}

// Rules returns the policy of a check with rules.
func (c *Check) Rules(operator string) rules.Policy {
	of := strings.Split(c.Name, "/")
	return rules.Policy{Namespace: of[0], Name: of[1], UID: c.UID, Generation: c.Generation, Operators: c.IsOf(operator)}
}

// IsOf reports whether the check is of a policy in a namespace.
func (c *Check) IsOf(namespace string) bool { return strings.HasPrefix(c.Name, namespace+"/") }

// failsSilence reports whether the check fails releases without a verdict.
func (c *Check) failsSilence() bool {
	return c.Mode == v1alpha1.ModeEnforce && c.OnError == v1alpha1.SilenceFails
}

// NamesServer reports whether a policy may have a check of type altershield.
func NamesServer(p *v1alpha1.DefensePolicy) bool {
	named := func(c v1alpha1.PolicyCheck) bool { return c.Altershield != nil }
	return slices.ContainsFunc(p.Spec.Checks, named) || p.Status.InForce != nil && slices.ContainsFunc(p.Status.InForce.Checks, named)
}

// MayHold reports whether a policy may hold rollouts.
func MayHold(p *v1alpha1.DefensePolicy) bool {
	holds := func(spec *v1alpha1.DefensePolicySpec) bool { return spec.Hold != nil && spec.Hold.Until.Holds() }
	return holds(&p.Spec) || p.Status.InForce != nil && holds(p.Status.InForce)
}

// Due returns when a check has all its results, after the start of its stage.
func (c *Check) Due() time.Duration {
	switch {
	case c.Probe != nil:
		return c.Delay + c.Probe.Interval.Duration*time.Duration(c.Probe.Successes) + c.Timeout
	case c.PodHealth != nil:
		return c.Delay + c.PodHealth.Duration.Duration
	case c.Prometheus != nil:
		return c.Delay + c.Range(usualScrape) + time.Duration(c.Prometheus.Count-1)*c.Prometheus.Interval.Duration + Lag
	case c.Service != nil:
		return c.Delay + c.Timeout
	case c.Job != nil:
		return c.Deadline // the duration of a Job is not known
	default:
		return c.Delay
	}
}

// AfterSuccess reports whether the check also runs on pods that are created after their release
// succeeded: it checks pods, not the released template, nor what they serve.
func (c *Check) AfterSuccess() bool { return c.PodHealth != nil || c.Probe != nil }

func durationOr(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}

// DefaultName is the name of the policy that the operator creates in its namespace if it is missing.
const DefaultName = "default"

// Default returns the default policy: it fails a release whose pods crash, run out of memory, or
// cease to be Ready for good after they were Ready. It delays no release.
func Default(operator string) *v1alpha1.DefensePolicy {
	most := intstr.FromString("10%")
	return &v1alpha1.DefensePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: operator, Name: DefaultName},
		Spec: v1alpha1.DefensePolicySpec{
			Mode: v1alpha1.ModeEnforce,
			Checks: []v1alpha1.PolicyCheck{{
				Name: "stays-up", Wait: ptr.To(false),
				PodHealth: &v1alpha1.PodHealthCheck{Duration: &metav1.Duration{Duration: 5 * time.Minute}, MaxFailedPods: &most},
			}},
		},
	}
}
