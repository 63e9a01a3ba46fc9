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
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MetricsPath is the path at which the metric plug-in of the server asks for metrics.
const MetricsPath = "/openapi/metric/query"

const (
	// maxMetricsAge bounds the range of a query, and maxMetricPoints its points: longer ranges have longer intervals.
	maxMetricsAge   = 7 * 24 * time.Hour
	maxMetricPoints = 1500
	// KindPod is the kind of a query about one pod.
	KindPod = "Pod"
)

// MetricQuery asks for one metric of a workload or of a pod.
type MetricQuery struct {
	MetricSubject
	Start, End time.Time
	Step       time.Duration
}

// MetricSubject is a workload or a pod, with a metric.
type MetricSubject struct {
	// Kind of the workload in any case, or KindPod.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Metric    struct {
		Name     string `json:"name"`
		Selector string `json:"selector"`
	} `json:"metric"`
}

// Point is a value of a metric.
type Point struct {
	Timestamp Millis  `json:"timestamp"`
	Value     float64 `json:"value"`
}

// ParseMetricQuery reads the body of a query for metrics up to now, as the plug-in sends it: unsigned, with times in
// milliseconds. It ignores unknown fields. The error is one line.
func ParseMetricQuery(body []byte, now time.Time) (*MetricQuery, error) {
	var r struct {
		Workload *MetricSubject `json:"workloadExternalQuery"`
		Pod      *MetricSubject `json:"podMetricQuery"`
		Start    int64          `json:"start"`
		End      int64          `json:"end"`
		Duration int64          `json:"duration"`
	}
	if err := json.Unmarshal(bytes.TrimSpace(body), &r); err != nil {
		return nil, fmt.Errorf("the body is no query for metrics: %w", describeJSON(err))
	}
	if (r.Workload == nil) == (r.Pod == nil) {
		return nil, errors.New("give one of workloadExternalQuery and podMetricQuery")
	}
	q := &MetricQuery{Start: time.UnixMilli(r.Start), End: time.UnixMilli(r.End)}
	if q.End.After(now) {
		q.End = now
	}
	over, step := q.End.Sub(q.Start), time.Duration(min(max(r.Duration, 0), 1e9))*time.Millisecond
	q.Step = max(step, over/maxMetricPoints)
	if q.MetricSubject = *cmp.Or(r.Workload, r.Pod); r.Pod != nil {
		q.Kind = KindPod
	}
	switch {
	case len(validation.IsDNS1123Label(q.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(q.Name)) > 0:
		return nil, fmt.Errorf("namespace %q or name %q is not the name of an object", Cut(line(q.Namespace), 64), Cut(line(q.Name), 64))
	case q.Metric.Selector != "":
		return nil, errors.New("metric.selector is not supported: leave it out, the operator selects the pods")
	case over < 0 || over > maxMetricsAge:
		return nil, fmt.Errorf("start and end are no range of at most %s up to now: give Unix milliseconds", maxMetricsAge)
	case step < time.Second || step > time.Hour:
		return nil, errors.New("duration is not 1000 to 3600000: give the interval of the points in milliseconds")
	}
	return q, nil
}
