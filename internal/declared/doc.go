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

// Package declared reads and changes objects of kinds that a ChangeKind declares. Objects are unstructured. A release
// is a change of their content. Functions of a [Kind] are pure; [Workloads] reads the cluster.
//
//	kind.go       accepts a ChangeKind
//	content.go    the version of the content, its history, and its return
//	fields.go     fields that the operator reads and writes, as JSON patches
//	progress.go   expressions: the progress of a rollout, and the pods of an object
//	trim.go       trimming of objects for the cache
//	admission.go  the webhooks of a kind
//	workload.go   objects as workloads
//	pods.go       the pods of an object
package declared
