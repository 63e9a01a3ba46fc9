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

// Package workload reads workloads and their pods. The interface Kind has the differences between
// the kinds of workloads: how to read one, which pods have its current template, the progress of
// its rollout, and how to change it. The package decides nothing.
//
//	workload.go pod.go           the state of a workload and of a pod
//	stuck.go cause.go            why a pod is not Ready
//	pace.go words.go released.go fields that a hold changes, words about a halt, the number of a release and its user
//	kind.go registry.go          the interface of a kind, and the kinds that are defended
//	deployment.go statefulset.go daemonset.go
//	                             one kind each
//	revision.go history.go places.go images.go
//	                             revisions, the history of successes, pods with a place each, images
//	version.go version_table.go  versions of pod templates, by a frozen table of keys
//	handback.go lastapplied.go path.go
//	                             fields that the operator gives back to the manager that applies the workload
//	trim.go trim_pod.go indexes.go key.go object.go
//	                             trimming of objects for the cache, and its indexes
//	managedfields.go             who set a label, and when a label or an annotation was set
package workload
