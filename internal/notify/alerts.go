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

// Package notify sends alerts about releases to Alertmanager, as policies ask for.
//
//   - alerts.go: which alerts there are, by the objects alone
//   - memory.go: which of them are due
//   - notifier.go: the task of the leader that reads objects and sends alerts
//
// No reconcile waits for it. A new leader begins with an empty memory: it sends the alerts of the last
// 15 minutes again, which Alertmanager recognizes by their labels. An alert that ended between two
// leaders ends in Alertmanager after four minutes.
package notify

import (
	"cmp"
	"maps"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// momentLasts is how long an alert fires about something that has no end of its own.
	momentLasts = 15 * time.Minute
	// maxText bounds the description of an alert, in bytes.
	maxText = 1024
)

// Alert is an alert with the names of the API v2 of Alertmanager.
type Alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt"`
	EndsAt      time.Time         `json:"endsAt"`
	// Endpoint is the name of the DefenseEndpoint.
	Endpoint string `json:"-"`
	// Active means that the alert fires as long as its cause lasts.
	Active bool `json:"-"`
}

// Input is a defended workload.
type Input struct {
	Workload *workload.Workload
	Notify   []policy.Notification
	// Releases are the records of the workload, and Current the record of its current release; nil for none.
	Releases []v1alpha1.ChangeWorkload
	Current  *v1alpha1.ChangeWorkload
	// Checks are checks of batches, by the UID of the release. Only those that failed in observe mode count.
	Checks map[types.UID][]v1alpha1.CheckStatus
	Now    time.Time
}

// cause is the cause of an alert.
type cause struct {
	at     time.Time
	active bool
	// entry of the catalog, with the detail of its message.
	entry           v1alpha1.Entry
	detail, version string
}

// causes has the newest cause of each reason.
type causes map[v1alpha1.NotifyReason]cause

func (c causes) add(now time.Time, reason v1alpha1.NotifyReason, is cause) {
	if before, ok := c[reason]; (is.active || now.Sub(is.at) < momentLasts) && (!ok || before.at.Before(is.at)) {
		c[reason] = is
	}
}

// Alerts returns the alerts about a workload.
func Alerts(in Input) (alerts []Alert) {
	if len(in.Notify) == 0 {
		return nil
	}
	found, w := causesOf(in), in.Workload
	for _, n := range in.Notify {
		for _, reason := range n.Events {
			c, ok := found[reason]
			if !ok {
				continue
			}
			severity := "warning"
			if reason == v1alpha1.NotifyWouldFail || reason == v1alpha1.NotifyFreezeBroken {
				severity = "info"
			}
			if c.at.After(in.Now) {
				c.at = in.Now // by the clock of another replica; Alertmanager refuses an end before the start
			}
			name := workload.ArgumentOf(w.GVK.GroupKind()) + "/" + w.Name
			next := strings.NewReplacer("`", "", "NAME", name+" -n "+w.Namespace).Replace(string(c.entry.Next))
			annotations := map[string]string{
				"summary":     w.GVK.Kind + " " + w.Namespace + "/" + w.Name + ": " + c.entry.Message(""),
				"description": wording.Shortened(wording.Printable(cmp.Or(c.detail, c.entry.Message(""))), maxText),
				"next_step":   next, "version": c.version,
			}
			maps.DeleteFunc(annotations, func(_, text string) bool { return text == "" })
			alerts = append(alerts, Alert{
				Endpoint: n.EndpointRef.Name, Active: c.active, StartsAt: c.at,
				Labels: map[string]string{
					"alertname": "AlterShield" + string(reason), "namespace": w.Namespace, "kind": workload.LabelOf(w.GVK.GroupKind()), "workload": w.Name,
					"policy": n.Namespace + "/" + n.Name, "severity": severity,
				},
				Annotations: annotations,
			})
		}
	}
	return alerts
}

func causesOf(in Input) causes {
	found := causes{}
	for i := range in.Releases {
		addRelease(found, in, &in.Releases[i])
	}
	if in.Workload.Blocked() {
		since, err := strconv.ParseInt(in.Workload.Labels[v1alpha1.SuspendLabel], 10, 64)
		if err != nil || since < 0 || since > in.Now.Unix() {
			since = 0 // a user may write any text
		}
		is := cause{at: time.Unix(since, 0), active: true, entry: v1alpha1.Entry{
			Sentence: "Releases of the workload are blocked.", Next: v1alpha1.StepFix,
		}, version: in.Workload.RecordedVersion()}
		_, _, by := record.ParseBlockedBy(in.Workload.Annotations)
		for i := range in.Releases {
			if c := &in.Releases[i]; string(c.UID) == by {
				is.explain(c, v1alpha1.ConditionBlocked, metav1.ConditionTrue)
			}
		}
		found.add(in.Now, v1alpha1.NotifyBlocked, is)
	}
	return found
}

// explain takes the explanation of a condition of a release, and reports whether the condition has a status.
func (is *cause) explain(c *v1alpha1.ChangeWorkload, kind string, status metav1.ConditionStatus) bool {
	condition := meta.FindStatusCondition(c.Status.Conditions, kind)
	if condition == nil || condition.Status != status {
		return false
	}
	is.entry, _ = v1alpha1.Explain("ChangeWorkload", condition)
	is.detail, is.version = record.Detail(condition), c.Spec.Reversion
	return true
}

func addRelease(found causes, in Input, c *v1alpha1.ChangeWorkload) {
	s := &c.Status
	event := func(reason, detail string, at time.Time) cause {
		entry, _ := v1alpha1.ExplainEvent(reason)
		return cause{at: at, entry: entry, detail: detail, version: c.Spec.Reversion}
	}
	is := event(v1alpha1.EventReleaseSuspended, "", time.Unix(s.UpdateTimeUnix, 0))
	observed := record.ReasonOf(s, v1alpha1.ConditionBlocked) == v1alpha1.ReasonObserving
	switch {
	case s.Status == v1alpha1.ChangeWorkloadRollback && is.explain(c, v1alpha1.ConditionRolledBack, metav1.ConditionTrue):
		found.add(in.Now, v1alpha1.NotifyRolledBack, is)
	case s.Status != v1alpha1.ChangeWorkloadSuspend || in.Current == nil || in.Current.UID != c.UID:
	case observed && is.explain(c, v1alpha1.ConditionBlocked, metav1.ConditionFalse):
		found.add(in.Now, v1alpha1.NotifyWouldFail, is)
	default:
		is.active = true
		is.explain(c, v1alpha1.ConditionVerified, metav1.ConditionFalse)
		found.add(in.Now, v1alpha1.NotifyFailed, is)
	}
	if back := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRolledBack); back != nil && back.Reason == v1alpha1.ReasonObserving {
		is := cause{at: back.LastTransitionTime.Time}
		is.explain(c, v1alpha1.ConditionRolledBack, back.Status)
		found.add(in.Now, v1alpha1.NotifyWouldFail, is)
	}
	if by := cmp.Or(s.BrokenFreeze, s.BypassedFreeze); by != "" {
		found.add(in.Now, v1alpha1.NotifyFreezeBroken, event(v1alpha1.EventFreezeBroken, "freeze "+by, time.Unix(s.StartTimeUnix, 0)))
	}
	for _, checks := range [][]v1alpha1.CheckStatus{s.Checks, in.Checks[c.UID]} {
		for i := range checks {
			if failedObserving(&checks[i]) {
				found.add(in.Now, v1alpha1.NotifyWouldFail,
					event(v1alpha1.EventDryRun, record.DescribeCheck(&checks[i]), checks[i].CompletionTime.Time))
			}
		}
	}
}

// failedObserving reports whether a check failed in observe mode.
func failedObserving(c *v1alpha1.CheckStatus) bool {
	return c.Mode == v1alpha1.ModeObserve && c.Phase == v1alpha1.CheckFailed && c.CompletionTime != nil
}
