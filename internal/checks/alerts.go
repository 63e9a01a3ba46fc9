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
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/wording"
)

// causedByHold are alerts of kubernetes-mixin that fire because a rollout is held or halted. docs/tasks/use-your-alerts.md lists
// them.
var causedByHold = []string{
	"KubeDaemonSetRolloutStuck", "KubeDeploymentReplicasMismatch", "KubeDeploymentRolloutStuck", "KubeStatefulSetUpdateNotRolledOut",
}

// kindLabels are the labels by which alerts of kubernetes-mixin name what they are about.
var kindLabels = []string{"deployment", "statefulset", "daemonset", "job", "job_name", "cronjob"}

// noSamples is the sentence about an endpoint without recent samples.
const noSamples = "the endpoint has no recent sample of ALERTS or up"

// alertScope decides which firing alerts are about a release.
type alertScope struct {
	// podLabel is the label of the endpoint, kind and name are those of the workload.
	podLabel, kind, name string
	// pods are the pods that an alert may fail, with the time of their creation.
	pods map[string]time.Time
	// release is the start of the release.
	release time.Time
	// stopped is the last time at which the rollout was held or halted; zero for never.
	stopped time.Time
}

// alertsFound are the firing alerts about a release.
type alertsFound struct {
	// Recent: the endpoint has recent samples.
	Recent bool
	// Failing began after the release, or their pod; Before did not. Both are written as in the status.
	Failing, Before []string
	// Message is about the first alert that fails. Pods are those of all of them; none if an alert is about the workload.
	Message string
	Pods    []string
	// names are the names of the alerts that fail, quoted for a pattern.
	names []string
}

// firing selects the alerts about the release from the results of the queries of promql.Alerts, which have only alerts of its
// namespace.
func (a *alertScope) firing(samples, earlier []rules.Sample) *alertsFound {
	found := &alertsFound{}
	pods := map[string]bool{}
	for i := range samples {
		of := identity(samples[i].Labels)
		var began time.Time
		if samples[i].Labels[promql.LabelState] == "" { // the value of ALERTS is always 1
			began = time.Unix(int64(samples[i].Value), 0)
		}
		pod, counts := a.about(of)
		found.Recent = found.Recent || len(of) == 0
		if !counts || slices.Contains(causedByHold, of[model.AlertNameLabel]) && !a.stopped.IsZero() && !began.After(a.stopped) {
			continue
		}
		since := ""
		if !began.IsZero() {
			since = " since " + began.UTC().Format(time.RFC3339)
		}
		text := wording.Shortened(describeLabels(of), maxSample-len(since)) + since
		if !began.IsZero() && began.Before(latest(a.release, a.pods[pod])) ||
			slices.ContainsFunc(earlier, func(s rules.Sample) bool { return maps.Equal(identity(s.Labels), of) }) {
			found.Before = append(found.Before, text)
			continue
		}
		found.Message = cmp.Or(found.Message, wording.Printable(fmt.Sprintf("alert %s fires%s", of[model.AlertNameLabel], since)))
		found.Failing, pods[pod] = append(found.Failing, text), true
		if alert := regexp.QuoteMeta(of[model.AlertNameLabel]); !slices.Contains(found.names, alert) {
			found.names = append(found.names, alert)
		}
	}
	if !pods[""] {
		found.Pods = slices.Sorted(maps.Keys(pods))
	}
	return found
}

// about reports whether an alert is about a pod that it may fail, or else about the workload.
func (a *alertScope) about(labels map[string]string) (pod string, counts bool) {
	pod = labels[a.podLabel]
	if _, counts = a.pods[pod]; counts || strings.HasPrefix(pod, a.name+"-") {
		return pod, counts
	}
	own := labels[a.kind]
	if pod != "" || own != "" { // the pod may be that of an exporter
		return "", own == a.name
	}
	of := labels["workload_type"]
	for _, kind := range kindLabels {
		if labels[kind] != "" {
			of = kind
		}
	}
	if of != "" && !strings.EqualFold(of, a.kind) {
		return "", false // of another kind
	}
	return "", cmp.Or(labels["workload"], labels["app"]) == a.name
}

// identity returns the labels that an alert has in all its series.
func identity(of map[string]string) map[string]string {
	labels := maps.Clone(of)
	delete(labels, model.MetricNameLabel)
	delete(labels, promql.LabelState)
	return labels
}

// takeAlerts adds the firing alerts to the progress.
func (q *query) takeAlerts(found *alertsFound) {
	s := &q.plan.Status
	s.Samples, s.ConsecutiveFailures, s.Reason = slices.Concat(found.Failing, found.Before), 0, v1alpha1.ReasonMeasuring
	s.Samples, s.WithData = s.Samples[:min(len(s.Samples), maxSamples)], s.WithData+1
	switch {
	case len(found.Failing) > 0:
		s.ConsecutiveFailures, s.Reason = 1, v1alpha1.ReasonAlertFiring
		report(s, found.Pods, found.Message, q.Check.Suggestion)
		return
	case !found.Recent:
		s.WithData, s.Reason = s.WithData-1, v1alpha1.ReasonNoSeries
	case len(found.Before) > 0:
		s.Reason = v1alpha1.ReasonAlertBefore
	}
	s.Message = fmt.Sprintf("%d of %d evaluations: %s", s.Measured, q.Check.Prometheus.Count, q.last())
}

// stoppedAt returns the last time at which the rollout was held or halted, or waited for a user; zero for never.
func (s *Subject) stoppedAt(now time.Time) (at time.Time) {
	if held := meta.FindStatusCondition(s.Release.Status.Conditions, v1alpha1.ConditionHeld); held != nil {
		if at = held.LastTransitionTime.Time; held.Status == metav1.ConditionTrue {
			at = now
		}
	}
	if s.Workload.Hold != nil || s.Workload.WaitsForUser() {
		at = now
	}
	return at
}
