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
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/monitoring"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
)

// startMetrics starts a Prometheus that measures the pods of the namespace pay, and an Alertmanager, and writes the endpoints that
// describe them. There are no metrics where this machine has no address that the operator calls.
func startMetrics(ctx context.Context, d *demo) (_ *walkthrough.Metrics, stop func() error, err error) {
	var closed []func() error
	stop = func() (err error) {
		for _, end := range slices.Backward(closed) {
			err = errors.Join(err, end())
		}
		return err
	}
	addresses, _ := controlplane.PodAddresses(ctx)
	if len(addresses) == 0 {
		return nil, stop, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	programs, err := monitoring.Programs(ctx, d.root, os.Stdout)
	if err != nil {
		return nil, nil, err
	}
	targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
	if err != nil {
		return nil, nil, err
	}
	closed = append(closed, targets.Close)
	core, err := kubernetes.NewForConfig(d.cluster.RESTConfig())
	if err != nil {
		return nil, nil, err
	}
	follow, cancel := context.WithCancel(ctx)
	closed = append(closed, func() error { cancel(); return nil })
	err = targets.Follow(follow, core, walkthrough.Pay, func(p *corev1.Pod) (monitoring.Traffic, monitoring.TargetOptions, bool) {
		traffic := monitoring.Traffic{Rate: 50, Latency: 10 * time.Millisecond}
		if p.Labels[walkthrough.FailsLabel] != "" {
			traffic.Errors = 0.1
		}
		return traffic, monitoring.TargetOptions{}, true
	})
	if err != nil {
		return nil, nil, err
	}
	host := addresses[0].String()
	alertmanager, err := monitoring.StartAlertmanager(ctx, monitoring.AlertmanagerOptions{Programs: programs, Host: host})
	if err != nil {
		return nil, nil, err
	}
	closed = append(closed, alertmanager.Close)
	states, err := monitoring.StartKubeStateMetrics(ctx, programs, d.cluster.Kubeconfig())
	if err != nil {
		return nil, nil, err
	}
	closed = append(closed, states.Close)
	prometheus, err := monitoring.StartPrometheus(ctx, monitoring.PrometheusOptions{
		Programs: programs, Host: host, Targets: targets, Alertmanagers: []*monitoring.Alertmanager{alertmanager},
		Jobs: []monitoring.Job{states.Job()},
	})
	if err != nil {
		return nil, nil, err
	}
	closed = append(closed, prometheus.Close)
	fmt.Printf("\nPrometheus ready: %s\nAlertmanager ready: %s\n", prometheus.URL(), alertmanager.URL())
	m := &walkthrough.Metrics{
		Prometheus: prometheus.URL(),
		Alert: func(ctx context.Context) error {
			fmt.Printf("\nalert: %s\nexpr: %s\n", errorRule.Alert, errorRule.Expr)
			return prometheus.SetRules(ctx, errorRule)
		},
		Show: func(ctx context.Context, alert string) error { return showAlert(ctx, alertmanager, alert) },
	}
	m.Endpoints, err = writeEndpoints(d.root, d.dir, prometheus.URL(), alertmanager.URL())
	return m, stop, err
}

// errorRule fires for pods that answer more than 5 % of their requests with 500.
var errorRule = monitoring.Rule{
	Alert: walkthrough.ErrorAlert,
	Expr: `sum by (namespace, pod) (rate(http_server_request_duration_seconds_count{http_response_status_code=~"5.."}[20s]))` +
		` / sum by (namespace, pod) (rate(http_server_request_duration_seconds_count[20s])) > 0.05`,
	For: 5 * time.Second, Labels: map[string]string{"severity": "page"},
}

// showAlert waits until an Alertmanager has an alert about the namespace pay, and prints it.
func showAlert(ctx context.Context, a *monitoring.Alertmanager, name string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		var alerts []monitoring.Alert
		alerts, last = a.Alerts(ctx)
		for _, alert := range alerts {
			if alert.Labels["alertname"] != name || alert.Labels["namespace"] != walkthrough.Pay {
				continue
			}
			fmt.Println("\nAlertmanager has the alert")
			for _, texts := range []map[string]string{alert.Labels, alert.Annotations} {
				for _, key := range slices.Sorted(maps.Keys(texts)) {
					fmt.Printf("    %s: %s\n", key, texts[key])
				}
			}
			return true, nil
		}
		return false, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("no alert %s in Alertmanager: %w", name, err), last)
	}
	return nil
}

// writeEndpoints writes the endpoints, and returns the path of the manifest below root.
func writeEndpoints(root, dir, prometheus, alertmanager string) (string, error) {
	path := filepath.Join(dir, "endpoints.yaml")
	text := fmt.Sprintf(`apiVersion: app.ops.cloud.alipay.com/v1alpha1
kind: DefenseEndpoint
metadata:
  name: prometheus
  namespace: %[1]s
spec:
  type: Prometheus
  url: %[2]s
  prometheus:
    scrapeInterval: 5s
---
apiVersion: app.ops.cloud.alipay.com/v1alpha1
kind: DefenseEndpoint
metadata:
  name: alertmanager
  namespace: %[1]s
spec:
  type: Alertmanager
  url: %[3]s
`, controlplane.ManagerNamespace, prometheus, alertmanager)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", err
	}
	return filepath.Rel(root, path)
}
