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
// it. Nothing in it is simulated but the nodes: Deployments roll, garbage is
// collected, admission and RBAC decide as in any cluster. Package binaries
// brings in the programs.
//
// What pods do is told by kwok stages in stages/; see there for the labels and
// annotations that make a pod crash, hang in any other way, come up late or lose
// its readiness.
//
// # Why not kwokctl
//
// kwokctl has a runtime that starts the same programs. It was tried, at v0.8.0,
// and is as fast: ready in 3.2 s, for 2.2 s of CPU time, where this package takes
// 3.5 s and 2.5 s until the nodes are ready, too. It would take the place of some 600
// lines here, and be a seventh program to build. What it does not do is what
// tests that run side by side need:
//
//   - Two clusters created at once were given the same ports. The second one
//     waited 3 minutes for an etcd that had ended at once, and then told of a
//     certificate.
//   - A kwok that ended at its start went unnoticed: the cluster was "ready".
//   - The programs outlive the one that wanted them, also when that is killed.
//     Here the kernel ends them with it, on Linux.
//   - Everybody is the administrator, by one certificate, and etcd, without
//     any, listens on all addresses. Here each program has its own identity, and
//     everything is on the loopback interface.
package controlplane
