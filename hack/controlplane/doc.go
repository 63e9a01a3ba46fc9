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

// Package controlplane builds and drives a real Kubernetes control plane on
// this machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
// and kwok in place of kubelets. The demo, the end-to-end tests and the
// benchmarks run on it. Nothing in it is simulated but the nodes: Deployments
// roll, garbage is collected, admission and RBAC decide as in any cluster.
//
// What pods do is told by kwok stages in stages/; see there for the labels and
// annotations that make a pod crash, hang in any other way, come up late or lose
// its readiness.
package controlplane
