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

// Package workload has what a workload and its pods are, and keeps what differs from one kind of workload to the next behind one
// interface, Kind: how to read it, which pods are of its current template, how far its rollout is, and how to change it. It decides
// nothing.
//
//	workload.go pod.go           what was observed of a workload and of a pod
//	stuck.go cause.go            why a pod is not Ready
//	pace.go words.go released.go what a hold changes, what halts a rollout, the number of a release, and its user
//	kind.go registry.go          the interface of a kind, and the kinds that are defended
//	deployment.go statefulset.go daemonset.go
//	                             one kind each
//	revision.go history.go places.go images.go
//	                             revisions, those that succeeded, pods with a place each, images
//	version.go version_table.go  versions of pod templates, by a frozen table of keys
//	handback.go lastapplied.go path.go
//	                             what a patch of the operator leaves to whoever applies the workload
//	trim.go trim_pod.go indexes.go key.go object.go
//	                             what caches keep of objects, and how they are found
//	managedfields.go             who set a label, and when a label or an annotation was set
package workload
