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

package verify

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/promql"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// metricTimeout bounds the call of Prometheus. The server waits 30 s for its answer.
const metricTimeout = 8 * time.Second

// Metrics answers queries of AlterShield Server for metrics of workloads that it checks, from a Prometheus. Any replica does.
type Metrics struct {
	View    cluster.View
	Clock   clock.PassiveClock
	Clients *endpoint.Clients
	// Endpoint is the name of a DefenseEndpoint in the namespace of the operator.
	Endpoint string
}

// Answer returns the answer to a query, with its HTTP status. The query is about a workload with an open order, and reads only
// series of its pods in its namespace.
func (m *Metrics) Answer(ctx context.Context, body []byte) (status int, message string, points []altershield.Point) {
	q, err := altershield.ParseMetricQuery(body, m.Clock.Now())
	if err != nil {
		return http.StatusBadRequest, err.Error(), nil
	}
	e, refused, err := checks.EndpointFor(ctx, m.View, v1alpha1.EndpointPrometheus, m.Endpoint, false, q.Namespace)
	release, pods := "", []string(nil)
	if err == nil {
		release, pods, err = m.about(ctx, q)
	}
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, "the cluster cannot be read now: try again", nil
	case release == "":
		return http.StatusNotFound, fmt.Sprintf("%s/%s is no workload, and no pod of a workload, whose release has an open order: metrics "+
			"are given only while the server checks the release", q.Namespace, q.Name), nil
	case refused != "":
		return http.StatusServiceUnavailable, "--altershield-metrics-endpoint: " + refused, nil
	}
	series := endpoint.SeriesOf(e)
	query, needs, err := promql.ServerMetric(q.Metric.Name, promql.Variables{
		Namespace: q.Namespace, PodLabel: series.PodLabel, NamespaceLabel: series.NamespaceLabel,
		Range: model.Duration(max(4*series.ScrapeInterval, q.Step)).String(),
	}, pods)
	if err != nil {
		return http.StatusBadRequest, err.Error(), nil
	}
	matrix, err := m.Clients.QueryRange(ctx, e, slots.Work{Namespace: q.Namespace, Release: release}, query.Text,
		promv1.Range{Start: q.Start, End: q.End, Step: q.Step}, metricTimeout)
	var values []model.SamplePair
	if err == nil {
		values, err = endpoint.OneSeries(matrix)
	}
	if err != nil {
		_, message := endpoint.Sentence(e, err)
		return http.StatusServiceUnavailable, message, nil
	}
	points = []altershield.Point{}
	for _, v := range values {
		if value := float64(v.Value); !math.IsNaN(value) && !math.IsInf(value, 0) {
			points = append(points, altershield.Point{Timestamp: altershield.Millis(v.Timestamp), Value: value})
		}
	}
	if len(points) == 0 {
		// A stock server ends the whole check if it gets an error for one of its metrics.
		return http.StatusOK, fmt.Sprintf("endpoint %s has no data: %s needs %s", e.Name, q.Metric.Name, needs), points
	}
	return http.StatusOK, "", points
}

// about returns the name of the release with an open order that a query is about, and patterns of the names of the pods; no name
// if there is none.
func (m *Metrics) about(ctx context.Context, q *altershield.MetricQuery) (release string, pods []string, err error) {
	name := types.NamespacedName{Namespace: q.Namespace, Name: q.Name}
	var keys []workload.Key
	if q.Kind == altershield.KindPod {
		var pod corev1.Pod
		err := m.View.Cached.Get(ctx, name, &pod)
		owner, _, lost := m.View.Kinds.OwnerOfPod(ctx, m.View.Cached, &pod)
		if err := cmp.Or(err, lost); err != nil {
			return "", nil, client.IgnoreNotFound(err)
		}
		keys = append(keys, owner.Key)
	}
	for _, kind := range m.View.Kinds.Kinds() { // several kinds may have the name
		if gvk := kind.GroupVersionKind(); strings.EqualFold(gvk.Kind, q.Kind) {
			keys = append(keys, workload.Key{GroupKind: gvk.GroupKind(), NamespacedName: name})
		}
	}
	for _, key := range keys {
		w, err := m.View.Summary(ctx, key)
		if err != nil {
			return "", nil, err
		}
		if w == nil {
			continue
		}
		changes, err := m.View.Releases(ctx, w.Namespace, w.UID)
		i := slices.IndexFunc(changes, func(c v1alpha1.ChangeWorkload) bool { return server.OrderIsOpen(&c) })
		switch {
		case err != nil || i < 0:
			return "", nil, err // the first object of the name: no query is about another kind of the name
		case q.Kind == altershield.KindPod:
			return changes[i].Name, []string{strings.ReplaceAll(q.Name, ".", "[.]")}, nil
		}
		pods, err = m.View.PodNames(ctx, w)
		return changes[i].Name, pods, err
	}
	return "", nil, nil
}
