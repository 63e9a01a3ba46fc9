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

package altershield

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pluginQuery is a body as the plug-in of a stock server sends it.
const pluginQuery = `{"duration":30000,"workloadExternalQuery":{"kind":"Deployment","metric":{"name":"cpu_util"},"name":"sleep",` +
	`"namespace":"default"},"start":1699998200123,"end":1700000000123,"type":"workloadExternal"}`

func TestParseMetricQuery(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_123)
	of := func(kind, name string) MetricSubject {
		s := MetricSubject{Kind: kind, Namespace: "default", Name: name}
		s.Metric.Name = "cpu_util"
		return s
	}
	replaced := func(old, with string) string { return strings.Replace(pluginQuery, old, with, 1) }
	for name, test := range map[string]struct {
		body string
		want *MetricQuery
		err  string
	}{
		"the plug-in's": {pluginQuery, &MetricQuery{of("Deployment", "sleep"), now.Add(-30 * time.Minute), now, 30 * time.Second}, ""},
		"of a pod": {replaced(`"workloadExternalQuery":{"kind":"Deployment"`, `"podMetricQuery":{"kind":null`),
			&MetricQuery{of(KindPod, "sleep"), now.Add(-30 * time.Minute), now, 30 * time.Second}, ""},
		"more fields, and a null selector": {replaced(`"cpu_util"`, `"cpu_util","selector":null,"more":[1]`),
			&MetricQuery{of("Deployment", "sleep"), now.Add(-30 * time.Minute), now, 30 * time.Second}, ""},
		"an end in the future": {replaced("1700000000123", "1700009999999"),
			&MetricQuery{of("Deployment", "sleep"), now.Add(-30 * time.Minute), now, 30 * time.Second}, ""},
		"too many points": {replaced("1699998200123", "1699913600123"), // a day
			&MetricQuery{of("Deployment", "sleep"), now.Add(-24 * time.Hour), now, 57600 * time.Millisecond}, ""},
		"no JSON":          {"{", nil, "the body is no query for metrics: invalid JSON"},
		"a form":           {"type=workloadExternal", nil, "the body is no query for metrics"},
		"two objects":      {pluginQuery + "{}", nil, "invalid JSON"},
		"a wrong type":     {replaced("1699998200123", `"yesterday"`), nil, "start has the wrong type"},
		"nothing":          {"{}", nil, "give one of workloadExternalQuery and podMetricQuery"},
		"both":             {replaced("{", `{"podMetricQuery":{},`), nil, "give one of"},
		"what Java sends":  {replaced(`"default"`, `""`), nil, `namespace "" or name "sleep" is not the name`},
		"a hostile name":   {replaced(`"sleep"`, `"x\"} or up{a=\""`), nil, "is not the name of an object"},
		"many namespaces":  {replaced(`"default"`, `"default|bank"`), nil, "is not the name of an object"},
		"a selector":       {replaced(`"cpu_util"`, `"cpu_util","selector":"a=b"`), nil, "metric.selector is not supported"},
		"before its start": {replaced("1700000000123", "1699998200122"), nil, "start and end are no range"},
		"no start":         {replaced(`"start":1699998200123,`, ""), nil, "start and end are no range of at most 168h0m0s up to now"},
		"in seconds":       {replaced("1699998200123", "1699998200"), nil, "give Unix milliseconds"},
		"the largest time": {replaced("1699998200123", "9223372036854775807"), nil, "start and end"},
		"no duration":      {replaced(`"duration":30000`, `"more":1`), nil, "duration is not 1000 to 3600000"},
		"a long duration":  {replaced("30000", "9223372036854775807"), nil, "duration is not"},
		"a negative one":   {replaced("30000", "-30000"), nil, "duration is not"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseMetricQuery([]byte(test.body), now)
			if (err == nil) != (test.err == "") || err != nil && (!strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "\n")) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
