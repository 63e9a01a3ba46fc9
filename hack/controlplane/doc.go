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

// Package controlplane drives a real Kubernetes control plane on this machine:
// etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and kwok in
// place of kubelets. The demo, the end-to-end tests and the benchmarks run on
// it. Only nodes are simulated: Deployments roll, garbage is collected, admission
// and RBAC decide as in any cluster. Package binaries builds the programs.
//
// The kwok stages in stages/ decide what pods do. They have the labels and
// annotations that make a pod crash, get stuck in another way, become ready late
// or lose its readiness.
//
// # Why not kwokctl
//
// kwokctl has a runtime that starts the same programs. At v0.8.0 it was as fast:
// ready after 3.2 s and 2.2 s of CPU time, where this package takes 3.5 s and
// 2.5 s until the nodes are ready, too. It would replace some 600 lines here, and
// be a seventh program to build. It does not suit tests that run concurrently:
//
//   - Two clusters created at once had the same ports. The second one waited 3
//     minutes for an etcd that had ended at once, and then reported a wrong
//     certificate.
//   - A kwok that ended at its start went unnoticed: the cluster was "ready".
//   - The programs outlive the process that started them, even if it is killed.
//     Here the kernel ends them with it, on Linux.
//   - All clients are the administrator, with one certificate, and etcd listens on
//     all addresses without authentication. Here each program has its own
//     identity, and all listen on the loopback interface.
package controlplane
