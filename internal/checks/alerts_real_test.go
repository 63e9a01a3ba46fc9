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
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// TestRealAlerts asks a Prometheus about alerts of its rules.
func TestRealAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Prometheus")
	}
	root, err := binaries.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := monitoring.Programs(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := targets.Close(); err != nil {
			t.Error(err)
		}
	})
	pods := map[string]*monitoring.Target{}
	for _, name := range []string{"ns/web-1", "ns/web-2", "ns/web-0", "bank/web-1"} {
		namespace, pod, _ := strings.Cut(name, "/")
		if pods[name], err = targets.Add(namespace, pod, monitoring.TargetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	start := func(o monitoring.PrometheusOptions) *monitoring.Prometheus {
		o.Programs = dir
		p, err := monitoring.StartPrometheus(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	page := map[string]string{"severity": "page"}
	p := start(monitoring.PrometheusOptions{Targets: targets, Rules: []monitoring.Rule{
		{Alert: "Down", Expr: `up{job="pods"} == 0`, Labels: page},
		{Alert: "Ticket", Expr: `up{job="pods"} == 0`, Labels: map[string]string{"severity": "ticket"}},
		{Alert: "Waiting", Expr: `up{job="pods"} == 0`, For: time.Hour, Labels: page},
		{Alert: "DeploymentDown", Expr: `label_replace(sum by (namespace) (up{pod="web-2"}) == 0, "deployment", "web", "", "")`, Labels: page},
	}})
	r := newAlerting(t, &prometheus{Server: &httptest.Server{URL: p.URL()}})
	r.clock.SetTime(time.Now())
	// ask asks as of now, and returns the alerts.
	ask := func() (*alertsFound, error) {
		of := policy.Find(r.s.Policies, "operator", r.s.Selected, r.check().Name)
		e, refused, err := EndpointFor(t.Context(), r.checks.view, v1alpha1.EndpointPrometheus, "prom", false, "ns")
		if err != nil || refused != "" {
			return nil, errors.Join(err, errors.New(refused))
		}
		q, _, err := r.checks.query.resolve(t.Context(), &r.s, of, e, 0, nil)
		if err != nil {
			return nil, err
		}
		answer := r.checks.query.evaluate(t.Context(), of, e, slots.Work{Namespace: "ns", Release: "web"}, q, time.Now())
		if answer.Reason != "" {
			return nil, errors.New(answer.Message)
		}
		return answer.Alerts, nil
	}
	becomes := func(what string, is func(*alertsFound) bool) {
		t.Helper()
		var found *alertsFound
		var last error
		if err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
			found, last = ask()
			return last == nil && is(found), nil
		}); err != nil {
			t.Fatalf("%s: %+v, %v", what, found, last)
		}
	}
	r.s.Release.Status.StartTimeUnix = time.Now().Unix()
	becomes("no alert", func(f *alertsFound) bool { return f.Recent && len(f.Failing)+len(f.Before) == 0 })

	pods["ns/web-1"].Down(true)
	becomes("an alert of a new pod", func(f *alertsFound) bool {
		return slices.Equal(f.Pods, []string{"web-1"}) && len(f.Failing) == 1 && strings.HasPrefix(f.Message, "alert Down fires since ")
	})
	r.s.Release.Status.StartTimeUnix = time.Now().Unix() + 1 // the API has no fractions
	becomes("an alert before the release", func(f *alertsFound) bool { return len(f.Before) == 1 && len(f.Failing) == 0 })
	// An old pod and a pod of another namespace do not count.
	pods["ns/web-0"].Down(true)
	pods["bank/web-1"].Down(true)
	becomes("no alert of others", func(f *alertsFound) bool {
		fires, err := p.Query(t.Context(), `ALERTS{alertname="Down",alertstate="firing"}`, time.Now())
		return err == nil && len(fires) == 3 && len(f.Before) == 1 && len(f.Failing) == 0
	})
	// An alarm that ends, and fires again, was there in the hour before.
	pods["ns/web-1"].Down(false)
	becomes("the end", func(f *alertsFound) bool { return f.Recent && len(f.Failing)+len(f.Before) == 0 })
	pods["ns/web-1"].Down(true)
	becomes("the same alert", func(f *alertsFound) bool { return len(f.Before) == 1 && len(f.Failing) == 0 })
	// An alert about the workload fails all.
	pods["ns/web-2"].Down(true)
	becomes("an alert of the workload", func(f *alertsFound) bool { return len(f.Failing) == 2 && len(f.Pods) == 0 })

	// A Prometheus without any target has no alert, and nothing to tell.
	empty := start(monitoring.PrometheusOptions{})
	changeEndpoint(r, func(e *v1alpha1.DefenseEndpoint) { e.Spec.URL = empty.URL() })
	if found, err := ask(); err != nil || found.Recent || len(found.Failing)+len(found.Before) != 0 {
		t.Errorf("an empty Prometheus: %+v, %v", found, err)
	}
}
