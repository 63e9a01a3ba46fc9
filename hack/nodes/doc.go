//go:build linux

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

// Package nodes runs a real cluster on this machine: three nodes with
// containerd, runc, kubelet and kube-proxy, and a control plane beside the first
// one. A node is a set of Linux namespaces, like the containers of kind. No part
// of it is in the host's network namespace. All processes of a node end with its
// first process, which ends with ours.
//
// It needs root and the packages in requirements.sh.
package nodes
