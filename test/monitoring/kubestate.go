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

package monitoring

import (
	"context"
	"strconv"
)

// KubeStateMetrics is a kube-state-metrics that runs until Close.
type KubeStateMetrics struct{ *Server }

// StartKubeStateMetrics starts kube-state-metrics against the cluster of a kubeconfig, and returns when it serves.
func StartKubeStateMetrics(ctx context.Context, programs, kubeconfig string) (*KubeStateMetrics, error) {
	s, err := newServer("kube-state-metrics", programs, "", Access{})
	if err != nil {
		return nil, err
	}
	s.ready = "/metrics"
	s.args = func() ([]string, error) {
		return []string{
			"--kubeconfig=" + kubeconfig,
			"--resources=pods,deployments,replicasets,statefulsets,daemonsets",
			"--host=" + s.host,
			"--port=" + strconv.Itoa(s.ports[0]),
			"--telemetry-host=" + s.host,
			"--telemetry-port=" + strconv.Itoa(s.ports[1]),
		}, nil
	}
	if err := s.begin(ctx, 2); err != nil {
		return nil, err
	}
	return &KubeStateMetrics{s}, nil
}

// Job returns the job that scrapes it. The labels namespace and pod are those of the objects.
func (k *KubeStateMetrics) Job() Job {
	return Job{Name: "kube-state-metrics", Address: k.Address(), HonorLabels: true}
}
