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

package e2e

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// attack is a check of a tenant that reads what belongs to another.
type attack struct {
	name string
	// query is a query about the metric M of namespace SHOP. Without its limits, its result has something of the other tenant.
	query string
	// failWhen is true for the series of the other tenant.
	failWhen string
	phase    v1alpha1.CheckPhase
	// message is part of the message.
	message string
	// harmless: Prometheus itself shows nothing of the other tenant, or the query has variables.
	harmless bool
}

const (
	bigValue = "values.exists(v, v > 1000000.0)"
	noSeries = "the result has no series"
	// perPolicy is the number of queries of a policy, whose workload has its name. The observer bounds the writes about a workload.
	perPolicy = 10
)

var queryAttacks = []attack{
	{name: "another-namespace", query: `M{namespace="SHOP"}`, phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "all-namespaces", query: `M{namespace=~".+"}`, phase: v1alpha1.CheckPassed, message: "2 series"},
	{name: "the-others", query: `M{namespace!="MALLORY"}`, phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "matcher-twice", query: `M{namespace="SHOP",namespace=~".*"}`, phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "alternative", query: `M{x="y"} or M{namespace="SHOP"}`, phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "subquery", query: `max_over_time(M{namespace="SHOP"}[1m:1s])`, phase: v1alpha1.CheckNoData, message: noSeries},
	{
		name: "other-label", query: `label_replace(M, "namespace", "MALLORY", "namespace", "(.*)")`,
		phase: v1alpha1.CheckPassed, message: "2 series",
	},
	{name: "every-metric", query: `{__name__=~".+"}`, phase: v1alpha1.CheckPassed, message: " series, failWhen is false"},
	{name: "quoted", query: `{"M", "namespace"="SHOP"}`, phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "comment", query: "M{ # namespace=\"MALLORY\"\n namespace=\"SHOP\"}", phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "at-a-time", query: `M{namespace="SHOP"} @ end()`, phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "offset", query: `M{namespace="SHOP"} offset -1s`, phase: v1alpha1.CheckNoData, message: noSeries},
	{name: "scalar", query: `vector(scalar(M{namespace="SHOP"}))`, phase: v1alpha1.CheckNoData, message: "finite number"},
	{
		name: "counted-values", query: `count_values("secret", M)`, failWhen: `samples.exists(s, double(s.labels["secret"]) > 1000000.0)`,
		phase: v1alpha1.CheckPassed, message: "failWhen is false",
	},
	{name: "join", query: `M * on() group_left(secret) topk(1, M)`, phase: v1alpha1.CheckPassed, message: "2 series"},
	{
		name: "label-in-failwhen", query: `{__name__=~".+"}`, failWhen: `samples.exists(s, s.labels["secret"].startsWith("revenue"))`,
		phase: v1alpha1.CheckPassed, message: "failWhen is false",
	},
	{
		name: "error-in-failwhen", query: "topk(1, M)", failWhen: `int(samples[0].labels["secret"]) > 0`,
		phase: v1alpha1.CheckError, message: "failWhen cannot be evaluated",
	},
	{
		name: "error-of-prometheus", query: `M + on() group_left() M`, harmless: true,
		phase: v1alpha1.CheckError, message: "it refuses the query",
	},
	{
		name: "absent", query: `absent(M{namespace="SHOP"})`, failWhen: "value != 1.0", harmless: true,
		phase: v1alpha1.CheckPassed, message: "value 1",
	},
	{
		name: "variable", query: `M{$namespaceLabel=~"$namespace|SHOP"}`, harmless: true,
		phase: v1alpha1.CheckPassed, message: "2 series",
	},
}

// askedOf returns the sentence about an endpoint that the tenant may not use.
const askedOf = "ask an administrator to create it in namespace " + controlplane.ManagerNamespace

// otherAttacks returns checks that use endpoints of others, with their results.
func otherAttacks() (checks []v1alpha1.PolicyCheck, want []attack) {
	add := func(c v1alpha1.PolicyCheck, phase v1alpha1.CheckPhase, message string) {
		checks = append(checks, c)
		want = append(want, attack{name: c.Name, phase: phase, message: message})
	}
	ask := func(name, endpoint, query string) v1alpha1.PolicyCheck {
		return v1alpha1.PolicyCheck{Name: name, Prometheus: &v1alpha1.PrometheusCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: endpoint}, Query: query, FailWhen: "value > 0.0",
			Interval: &metav1.Duration{Duration: 5 * time.Second}, Count: 1, Failures: 1,
		}}
	}
	alerts := func(name, endpoint string) v1alpha1.PolicyCheck {
		return v1alpha1.PolicyCheck{Name: name, Wait: new(true), Alerts: &v1alpha1.AlertsCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: endpoint}, Matchers: []string{`namespace=~".+"`},
			Interval: &metav1.Duration{Duration: 30 * time.Second}, Duration: &metav1.Duration{Duration: time.Minute},
		}}
	}
	service := func(name, endpoint string) v1alpha1.PolicyCheck {
		return v1alpha1.PolicyCheck{Name: name, Service: &v1alpha1.ServiceCheck{
			EndpointRef: v1alpha1.EndpointReference{Name: endpoint}, Protocol: v1alpha1.ServiceJSON, FailWhen: `body.secret == "x"`,
			Parameters: map[string]v1alpha1.ParameterValue{"X-Scope-OrgID": "shop", "Authorization": "Bearer x"},
		}}
	}
	fails := ask("fails", "tenancy", "vector(1)")
	fails.Mode = v1alpha1.ModeObserve
	add(fails, v1alpha1.CheckFailed, "value 1")
	add(ask("endpoint-of-shop", "tenancy-shop", "vector(1)"), v1alpha1.CheckError, askedOf)
	add(ask("own-endpoint", "tenancy-own", "vector(1)"), v1alpha1.CheckError, askedOf)
	add(alerts("alerts-of-all", "tenancy"), v1alpha1.CheckPassed, "no alert fires that counts")
	add(alerts("alerts-of-shop", "tenancy-shop"), v1alpha1.CheckError, askedOf)
	add(service("service-of-shop", "tenancy-shop-gate"), v1alpha1.CheckError, askedOf)
	add(service("service-headers", "tenancy-gate"), v1alpha1.CheckPassed, "HTTP 200, failWhen is false")
	return checks, want
}
