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

// Package kubelet runs pods of the local control plane as processes, each as its
// spec declares: identity, command, flags, environment, mounted files, user, root
// file system, probes, grace period. kwok only plays pods; this is for those whose
// doings matter, the operator's own.
//
// A pod gets a sandbox: a network of its own with its address on it, a host name,
// and a root file system that holds what the image and the volumes put there and
// nothing else. It reaches Services, and the API server reaches its webhooks, by
// the cluster IP, through a proxy that knows the ready endpoints as kube-proxy
// does. Linux and its user namespaces are needed, privileges are not.
//
// What a spec asks for and cannot be given is an error that says so. What has no
// effect here: limits on CPU and memory; capabilities, seccomp, and privilege
// escalation, as the process has no privileges at all; modes and groups of mounted
// files, which are always the process's own and readable by it alone; the image's
// tag, as there is one build. A pod reaches the Services that were there when its
// container started.
package kubelet
