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

package notify

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	versionA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	versionB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

var testNow = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// all asks for everything.
var all = []v1alpha1.NotifyReason{
	v1alpha1.NotifyFailed, v1alpha1.NotifyWouldFail, v1alpha1.NotifyRolledBack, v1alpha1.NotifyBlocked, v1alpha1.NotifyFreezeBroken,
}

func notification(name string, on ...v1alpha1.NotifyReason) policy.Notification {
	return policy.Notification{Namespace: "shop", Name: name, PolicyNotify: v1alpha1.PolicyNotify{
		EndpointRef: v1alpha1.EndpointReference{Name: "am"}, Events: on,
	}}
}

// release is a record that reached a state some minutes ago.
func release(version string, state v1alpha1.ChangeWorkloadStatusType, minutes int, conditions ...metav1.Condition) v1alpha1.ChangeWorkload {
	c := v1alpha1.ChangeWorkload{}
	c.UID, c.Spec.Reversion = types.UID(version[:1]), version
	c.Status.Status, c.Status.UpdateTimeUnix = state, ago(minutes).Unix()
	for i := range conditions {
		v1alpha1.SetCondition("ChangeWorkload", &c.Status.Conditions, conditions[i])
	}
	return c
}

func ago(minutes int) time.Time { return testNow.Add(-time.Duration(minutes) * time.Minute) }

func is(kind string, status metav1.ConditionStatus, reason, message string, minutes int) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(ago(minutes))}
}

func check(mode v1alpha1.PolicyMode, phase v1alpha1.CheckPhase, minutes int) v1alpha1.CheckStatus {
	at := metav1.NewTime(ago(minutes))
	return v1alpha1.CheckStatus{Name: "shop/p/errors", Mode: mode, Phase: phase, Message: "5 % errors", CompletionTime: &at}
}

func web() *workload.Workload {
	w := &workload.Workload{}
	w.Namespace, w.Name, w.GVK.Kind = "shop", "web", "Deployment"
	w.Labels, w.Annotations = map[string]string{v1alpha1.VersionLabel: versionB}, map[string]string{}
	return w
}

func TestAlerts(t *testing.T) {
	const failed, would, back = v1alpha1.ConditionVerified, v1alpha1.ConditionBlocked, v1alpha1.ConditionRolledBack
	suspended := release(versionB, v1alpha1.ChangeWorkloadSuspend, 90, is(failed, "False", v1alpha1.ReasonPodFailed, "web-1 crashes", 90))
	observed := is(would, "False", v1alpha1.ReasonObserving, "", 90)
	rolledBack := func(minutes int) v1alpha1.ChangeWorkload {
		return release(versionA, v1alpha1.ChangeWorkloadRollback, minutes,
			is(back, "True", v1alpha1.ReasonVerificationFailed, "to version b", minutes))
	}
	with := func(c v1alpha1.ChangeWorkload, change func(*v1alpha1.ChangeWorkloadStatus)) v1alpha1.ChangeWorkload {
		change(&c.Status)
		return c
	}
	running := release(versionB, v1alpha1.ChangeWorkloadRunning, 1)
	for name, test := range map[string]struct {
		releases []v1alpha1.ChangeWorkload
		// current is the index of the current release, before is -1.
		current int
		blocked string
		by      string
		checks  []v1alpha1.CheckStatus
		// want has reason, minutes since the start, and a part of summary and description.
		want []string
	}{
		"nothing":              {current: -1},
		"a running release":    {releases: []v1alpha1.ChangeWorkload{running}},
		"a failed release":     {releases: []v1alpha1.ChangeWorkload{suspended}, want: []string{"Failed 90 active: web-1 crashes"}},
		"a failure, corrected": {releases: []v1alpha1.ChangeWorkload{release(versionB, v1alpha1.ChangeWorkloadSuccess, 1)}},
		"a failure, replaced by another release": {
			releases: []v1alpha1.ChangeWorkload{release(versionA, v1alpha1.ChangeWorkloadSuspend, 90), running}, current: 1,
		},
		"a failure that the server refused": {releases: []v1alpha1.ChangeWorkload{release(versionB, v1alpha1.ChangeWorkloadFailed, 1)}},
		"blocked by the release": {
			releases: []v1alpha1.ChangeWorkload{release(versionB, v1alpha1.ChangeWorkloadSuspend, 90,
				is(failed, "False", v1alpha1.ReasonPodFailed, "", 90), is(would, "True", v1alpha1.ReasonPodFailed, "web-1", 90))},
			blocked: fmt.Sprint(ago(80).Unix()), by: versionB + " 2 b",
			want: []string{"Blocked 80 active: web-1", "Failed 90 active: A pod failed its verification."},
		},
		"blocked by a release without a record": {
			current: -1, blocked: fmt.Sprint(ago(80).Unix()), by: versionA + " 1 gone",
			want: []string{"Blocked 80 active: Releases of the workload are blocked."},
		},
		"blocked by a user, with a time in milliseconds": {
			current: -1, blocked: fmt.Sprint(testNow.UnixMilli()), want: []string{"Blocked 1970 active: Releases of the workload are"},
		},
		"blocked by a user, with any text": {current: -1, blocked: "yes", want: []string{"Blocked 1970 active: Releases of the workload are"}},
		"rolled back, while another version runs": {
			releases: []v1alpha1.ChangeWorkload{rolledBack(3), running}, current: 1, want: []string{"RolledBack 3 moment: to version b"},
		},
		"rolled back long ago": {releases: []v1alpha1.ChangeWorkload{rolledBack(15)}, current: -1},
		"two rollbacks: the last one counts": {
			releases: []v1alpha1.ChangeWorkload{rolledBack(9), rolledBack(3), rolledBack(7)}, current: -1,
			want: []string{"RolledBack 3 moment: to version b"},
		},
		"failed in observe mode": {
			releases: []v1alpha1.ChangeWorkload{release(versionB, v1alpha1.ChangeWorkloadSuspend, 2, observed)},
			want:     []string{"WouldFail 2 moment: This release failed in observe mode."},
		},
		"failed in observe mode long ago": {releases: []v1alpha1.ChangeWorkload{release(versionB, v1alpha1.ChangeWorkloadSuspend, 20, observed)}},
		"would be rolled back": {
			releases: []v1alpha1.ChangeWorkload{
				release(versionB, v1alpha1.ChangeWorkloadRunning, 9, is(back, "False", v1alpha1.ReasonObserving, "x", 4)),
			},
			want: []string{"WouldFail 4 moment: x"},
		},
		"a check of the release in observe mode": {
			releases: []v1alpha1.ChangeWorkload{with(running, func(s *v1alpha1.ChangeWorkloadStatus) {
				s.Checks = []v1alpha1.CheckStatus{check("Observe", "Failed", 5), check("Enforce", "Failed", 1), check("Observe", "Error", 1)}
			})},
			want: []string{"WouldFail 5 moment: shop/p/errors: 5 % errors"},
		},
		"a check of a batch in observe mode": {
			releases: []v1alpha1.ChangeWorkload{running},
			checks:   []v1alpha1.CheckStatus{check("Observe", "Failed", 6), check("Observe", "Failed", 20)},
			want:     []string{"WouldFail 6 moment: shop/p/errors: 5 % errors"},
		},
		"a freeze": {
			releases: []v1alpha1.ChangeWorkload{with(running, func(s *v1alpha1.ChangeWorkloadStatus) {
				s.StartTimeUnix, s.BrokenFreeze = ago(1).Unix(), "shop/p/weekend"
			})},
			want: []string{"FreezeBroken 1 moment: freeze shop/p/weekend"},
		},
		"a freeze that admission missed": {
			releases: []v1alpha1.ChangeWorkload{with(running, func(s *v1alpha1.ChangeWorkloadStatus) {
				s.StartTimeUnix, s.BypassedFreeze = ago(1).Unix(), "shop/p/weekend"
			})},
			want: []string{"FreezeBroken 1 moment: freeze shop/p/weekend"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Workload: web(), Notify: []policy.Notification{notification("p", all...)}, Releases: test.releases, Now: testNow,
				Checks: map[types.UID][]v1alpha1.CheckStatus{"b": test.checks}}
			if test.current >= 0 && len(test.releases) > 0 {
				in.Current = &in.Releases[test.current]
			}
			if test.blocked != "" {
				in.Workload.Labels[v1alpha1.SuspendLabel], in.Workload.Annotations[v1alpha1.SuspendedByAnnotation] = test.blocked, test.by
			}
			var got []string
			for _, a := range Alerts(in) {
				since, kind := fmt.Sprint(int(testNow.Sub(a.StartsAt).Minutes())), "moment"
				if a.StartsAt.Year() == 1970 {
					since = "1970"
				}
				if a.Active {
					kind = "active"
				}
				got = append(got, fmt.Sprintf("%s %s %s: %s", strings.TrimPrefix(a.Labels["alertname"], "AlterShield"), since, kind,
					a.Annotations["description"]))
				if !strings.HasPrefix(a.Annotations["summary"], "Deployment shop/web: ") || strings.Contains(fmt.Sprint(a.Annotations), "`") ||
					a.Endpoint != "am" {
					t.Errorf("alert %+v", a)
				}
			}
			slices.Sort(got)
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("alerts %q, want %q", got, test.want)
			}
		})
	}
}

// TestLabels: the labels identify an alert, so they never have a version or a time.
func TestLabels(t *testing.T) {
	c := release(versionB, v1alpha1.ChangeWorkloadSuspend, 1, is(v1alpha1.ConditionVerified, "False", v1alpha1.ReasonPodFailed, "web-1", 1))
	in := Input{Workload: web(), Releases: []v1alpha1.ChangeWorkload{c}, Current: &c, Now: testNow, Notify: []policy.Notification{
		notification("p", v1alpha1.NotifyFailed), notification("q", v1alpha1.NotifyRolledBack), notification("r", v1alpha1.NotifyFailed),
	}}
	alerts := Alerts(in)
	if len(alerts) != 2 || alerts[1].Labels["policy"] != "shop/r" {
		t.Fatalf("alerts %+v", alerts)
	}
	want := Alert{
		Endpoint: "am", Active: true, StartsAt: ago(1).Local(),
		Labels: map[string]string{
			"alertname": "AlterShieldFailed", "namespace": "shop", "kind": "Deployment", "workload": "web",
			"policy": "shop/p", "severity": "warning",
		},
		Annotations: map[string]string{
			"summary": "Deployment shop/web: A pod failed its verification.", "description": "web-1", "version": versionB,
			"next_step": "Release a fixed version (override a block), undo the release, or correct the verdict.",
		},
	}
	if diff := cmp.Diff(want, alerts[0]); diff != "" {
		t.Errorf("alert (-want +got):\n%s", diff)
	}
	in.Workload.GVK = schema.GroupVersionKind{Group: "apps.kruise.io", Version: "v1", Kind: "Deployment"} // two kinds may have the name
	if got := Alerts(in)[0].Labels["kind"]; got != "Deployment.apps.kruise.io" {
		t.Error(got)
	}
}
