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

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/plugin/manifest"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// maxSimulated bounds the releases of a simulation.
const maxSimulated = 200

// simulating is a run of simulate.
type simulating struct {
	*reading
	since, file, url, tokenFile string
	timeout                     time.Duration

	namespace string
	labels    map[string]string
	policy    *v1alpha1.DefensePolicy
	history   *pastSeries
	replay    *checks.Replay
	endpoints map[string]*v1alpha1.DefenseEndpoint
}

func simulateCommand(c *connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "simulate (POLICY | -f FILE)",
		Short: "Show the results that a policy would have had for past releases",
		Long: strings.TrimSpace(`
Show the results that a policy would have had for the past releases of the workloads that
it selects, and whether they agree with the outcome. The checks of type prometheus, alerts
and compare are decided as the operator decides, from the history of Prometheus.

Releases come from ReplicaSets, ControllerRevisions and the records of the operator, and
pods from the metrics of kube-state-metrics. The operator need not be installed: give the
policy with -f, and the address of Prometheus. The command changes nothing.

A release is bad if it was rolled back or failed, or replaced within 30 minutes. Results:
  true    bad, and the policy fails it
  late    bad, and the policy fails it only after it was replaced
  false   not bad, and the policy fails it
  missed  bad, and the policy passes it
  ok      not bad, and the policy passes it`),
		Example: strings.Trim(`
  # A policy of the cluster, with a Prometheus that this machine reaches by a port-forward
  kubectl port-forward -n monitoring service/prometheus 9090 &
  kubectl altershield simulate compare -n shop --prometheus http://localhost:9090

  # A policy that is not applied yet
  kubectl altershield simulate -f compare.yaml --since 7d --prometheus http://localhost:9090`, "\n"),
		Args: cobra.MaximumNArgs(1),
	}
	s := &simulating{reading: newReading(c, cmd), endpoints: map[string]*v1alpha1.DefenseEndpoint{}}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return s.run(cmd.Context(), args) }
	flags := cmd.Flags()
	flags.StringVar(&s.since, "since", "30d", "Releases of this `time`, as in 12h or 30d")
	flags.StringVarP(&s.file, "filename", "f", "", "`file` with the policy, or - for the input")
	flags.StringVar(&s.url, "prometheus", "", "`URL` of Prometheus (default: of the endpoint that the check names)")
	flags.StringVar(&s.tokenFile, "prometheus-token-file", "", "`file` with a bearer token for --prometheus")
	flags.DurationVar(&s.timeout, "timeout", 10*time.Minute, "longest time of the simulation")
	return cmd
}

func (s *simulating) run(ctx context.Context, args []string) error {
	period, err := parsePeriod(s.since)
	switch {
	case err != nil:
		return err
	case (len(args) == 0) == (s.file == ""):
		return remedy(errors.New("no policy, or two"), "give the name of a policy, or -f FILE")
	case s.tokenFile != "" && s.url == "":
		return remedy(errors.New("--prometheus-token-file needs --prometheus"), "give the URL of Prometheus, too")
	}
	live, namespace, err := s.begin(ctx)
	if err != nil {
		return err
	}
	s.namespace = namespace
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	report, err := s.on(ctx, live, args, period)
	if err != nil {
		return err
	}
	if s.printer != nil {
		return printObject(s.Out, s.printer, report)
	}
	s.style.simulation(s.Out, report)
	return nil
}

// on simulates the policy on a cluster.
func (s *simulating) on(ctx context.Context, live client.Reader, args []string, period time.Duration) (_ *Simulation, err error) {
	if s.policy, err = s.policyOf(ctx, live, args); err != nil {
		return nil, err
	}
	ns := cluster.NamespaceObject()
	switch err := live.Get(ctx, client.ObjectKey{Name: s.namespace}, ns); {
	case apierrors.IsNotFound(err):
		return nil, noNamespace(s.namespace)
	case err == nil:
		s.labels = ns.Labels // else a policy without a namespaceSelector still selects
	}
	report := &Simulation{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Simulation"},
		Metadata: Metadata{s.policy.Namespace, s.policy.Name}, Since: metav1.NewTime(s.Now().Add(-period)), Releases: []SimulatedRelease{},
	}
	report.Missing = s.notSimulated()
	if len(report.Missing) == len(s.policy.Spec.Checks) {
		return nil, remedy(errors.New("the policy has no check that can be simulated"),
			"give a policy with a check of type prometheus, alerts or compare")
	}
	if err := s.connect(ctx, live); err != nil {
		return nil, err
	}
	return report, s.simulate(ctx, newReader(live), report)
}

// policyOf reads the policy, in the namespace or else in the operator's.
func (s *simulating) policyOf(ctx context.Context, live client.Reader, args []string) (p *v1alpha1.DefensePolicy, err error) {
	if s.file != "" {
		if p, err = s.readFile(ctx); err != nil {
			return nil, err
		}
	} else {
		p = &v1alpha1.DefensePolicy{}
		err := live.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: args[0]}, p)
		if apierrors.IsNotFound(err) {
			err = live.Get(ctx, client.ObjectKey{Namespace: s.operator, Name: args[0]}, p)
		}
		if apierrors.IsNotFound(err) {
			return nil, remedy(fmt.Errorf("there is no DefensePolicy %s in %s or %s", args[0], s.namespace, s.operator),
				"choose the namespace with -n, or give a file with -f")
		} else if err != nil {
			return nil, fmt.Errorf("get defensepolicy %s: %w", args[0], err)
		}
	}
	if problem := policy.Accepted(p, s.operator); problem != "" {
		return nil, remedy(fmt.Errorf("the policy is not accepted: %s", problem), "correct the policy")
	}
	if p.Spec.Mode == v1alpha1.ModeDisabled {
		p.Spec.Mode = v1alpha1.ModeObserve
	}
	p.Status = v1alpha1.DefensePolicyStatus{}
	return p, nil
}

// readFile reads the policy of a file as the API server would store it in the namespace.
func (s *simulating) readFile(ctx context.Context) (_ *v1alpha1.DefensePolicy, err error) {
	var data []byte
	if s.file == "-" {
		data, err = io.ReadAll(s.In)
	} else {
		data, err = os.ReadFile(s.file)
	}
	if err == nil {
		data, err = yaml.YAMLToJSONStrict(data)
	}
	o := &unstructured.Unstructured{}
	if err == nil {
		err = o.UnmarshalJSON(data)
	}
	if err == nil && o.GroupVersionKind() != v1alpha1.GroupVersion.WithKind("DefensePolicy") {
		err = fmt.Errorf("it has the kind %q of %q", o.GetKind(), o.GetAPIVersion())
	}
	if err != nil {
		return nil, remedy(fmt.Errorf("-f %s: %w", s.file, err), "give a file with one DefensePolicy")
	}
	if o.GetNamespace() != s.operator {
		o.SetNamespace(s.namespace)
	}
	p, err := manifest.Policy(ctx, o)
	if err != nil {
		return nil, remedy(fmt.Errorf("-f %s: %w", s.file, err),
			"correct the name or value of the fields; kubectl explain defensepolicy.spec describes them")
	}
	return p, nil
}

// notSimulated returns sentences about the checks that are not simulated.
func (s *simulating) notSimulated() (missing []string) {
	for i := range s.policy.Spec.Checks {
		c := &s.policy.Spec.Checks[i]
		stage := cmp.Or(c.Stage, v1alpha1.StageBatchPost)
		switch {
		case policy.PrometheusOf(c) == "":
			missing = append(missing, "Check "+c.Name+" is not simulated: its type has no history.")
		case stage != v1alpha1.StageBatchPost && stage != v1alpha1.StageReleasePost:
			missing = append(missing, "Check "+c.Name+" is not simulated: its stage is "+string(stage)+".")
		}
	}
	return missing
}

// checksOf returns the checks that are simulated for a workload with labels.
func (s *simulating) checksOf(labels map[string]string) []policy.Check {
	selected := policy.Select([]v1alpha1.DefensePolicy{*s.policy}, s.operator, s.selected(labels))
	return slices.DeleteFunc(selected.At(v1alpha1.StageBatchPost, v1alpha1.StageReleasePost),
		func(c policy.Check) bool { return c.Prometheus == nil })
}

func (s *simulating) selected(labels map[string]string) policy.Workload {
	return policy.Workload{Namespace: s.namespace, NamespaceLabels: s.labels, Labels: labels}
}

// simulate decides about the releases, the newest first.
func (s *simulating) simulate(ctx context.Context, r *reader, report *Simulation) error {
	workloads, err := pastReleases(ctx, r, s.namespace, func(labels map[string]string) bool { return len(s.checksOf(labels)) > 0 })
	if err != nil {
		return err
	}
	if len(workloads) == 0 {
		report.Missing = append(report.Missing, "The policy selects no workload of the namespace "+s.namespace+".")
	}
	var releases []past
	for _, of := range workloads {
		for i := range of {
			if i > 0 && of[i].began.IsZero() && of[i-1].began.After(of[i].after) {
				of[i].after = of[i-1].began
			}
			if of[i].began.IsZero() && of[i].after.After(report.Since.Time) {
				of[i].began, of[i].problem = s.history.firstPod(ctx, &of[i], s.Now())
				if i > 0 {
					of[i-1].next = &of[i].occurrence
				}
			}
			if of[i].from().After(report.Since.Time) {
				releases = append(releases, of[i])
			}
		}
	}
	slices.SortStableFunc(releases, newestOccurrence)
	if more := len(releases) - maxSimulated; more > 0 {
		report.More, releases = more, releases[:maxSimulated]
	}
	for i := range releases {
		release := s.judge(ctx, &releases[i])
		if err := ctx.Err(); errors.Is(err, context.Canceled) {
			return err
		} else if err != nil {
			report.Missing = append(report.Missing, fmt.Sprintf("The simulation did not end within %s: %s left. Give a longer --timeout, "+
				"or a shorter --since.", s.timeout, count(len(releases)-i, "release")))
			break
		}
		report.Releases = append(report.Releases, release)
	}
	report.Summary = summaryOfSimulation(report.Releases)
	return nil
}

// judge decides about one release.
func (s *simulating) judge(ctx context.Context, p *past) SimulatedRelease {
	r := SimulatedRelease{
		Workload: p.workload.Kind() + "/" + p.workload.Name, Revision: p.number, Version: p.version, Began: metav1.NewTime(p.began),
		Verdict: SimulatedNotJudged, Class: ClassNone,
	}
	r.Outcome, r.Bad = outcomeOf(&p.occurrence, p.next)
	pods, problem := s.history.pods(ctx, p, s.Now())
	if problem != "" {
		r.Message = problem
		return r
	}
	var failed, passed, held time.Time // zero if none
	for _, c := range s.checksOf(p.workload.Labels) {
		compared := false
		for _, batch := range pods.batches(&c, p.workload.MinReady) {
			if !failed.IsZero() && !batch.began.Before(failed) {
				continue
			}
			of := s.pastOf(p, &c, pods, batch)
			of.Passed = compared
			status, at := s.replay.Decide(ctx, of)
			compared = compared || status.Phase == v1alpha1.CheckPassed
			if batch.n == 1 && at.After(held) {
				held = at
			}
			name := c.Name[strings.LastIndex(c.Name, "/")+1:]
			switch {
			case status.Phase == v1alpha1.CheckFailed || status.OnSilence == v1alpha1.SilenceFails && status.Phase != v1alpha1.CheckError:
				if failed.IsZero() || at.Before(failed) {
					failed, r.Verdict, r.Check, r.Message = at, SimulatedFailed, name, status.Message
				}
			case r.Verdict == SimulatedFailed:
			case status.Phase == v1alpha1.CheckPassed:
				r.Verdict, r.Check, r.Message = SimulatedPassed, name, status.Message
				passed = slices.MaxFunc([]time.Time{passed, at}, time.Time.Compare)
			case r.Verdict == SimulatedNotJudged && r.Message == "":
				r.Check, r.Message = name, status.Message
			}
		}
	}
	decided := passed
	if r.Verdict == SimulatedFailed {
		decided, r.AfterSeconds = failed, int64(failed.Sub(p.began).Seconds())
	}
	r.Class = classOf(r.Verdict, r.Bad, decided, pods.ended)
	switch {
	case r.Verdict == SimulatedPassed && r.Class == ClassNone:
		r.Verdict, r.Message = SimulatedNotJudged, fmt.Sprintf("the release ended after %s, before the check did", age(pods.ended.Sub(p.began)))
	case r.Verdict != SimulatedNotJudged:
		r.HeldSeconds = int64(held.Sub(pods.fresh[0].ReadySince).Seconds())
	}
	return r
}

// pastOf returns the check of a batch.
func (s *simulating) pastOf(p *past, c *policy.Check, pods *pastPods, batch pastBatch) checks.Past {
	w := *p.workload
	w.Version, w.Replicas = p.version, int32(max(len(pods.fresh), len(pods.old))) //nolint:gosec // at most 500
	of := checks.Past{
		Check: c, Endpoint: s.endpoints[c.Prometheus.EndpointRef.Name], Began: batch.began, Batch: batch.pods, Released: pods.fresh,
		Old: pods.oldAt(batch.began), Former: pods.oldAt(p.began), N: batch.n,
		Subject: checks.Subject{Workload: &w, Policies: []v1alpha1.DefensePolicy{*s.policy}, Selected: s.selected(w.Labels)},
	}
	of.Undo = p.again
	if p.previous != nil {
		of.Before = p.previous.version
	}
	release := &v1alpha1.ChangeWorkload{}
	release.Namespace, release.Name, release.Spec.Reversion = w.Namespace, w.Name, w.Version
	release.Status.StartTimeUnix = p.began.Unix()
	of.Subject.Release = release
	if c.Stage == v1alpha1.StageBatchPost {
		of.Subject.Batch = &v1alpha1.ChangePod{}
	}
	return of
}
