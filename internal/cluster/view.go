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

// Package cluster reads and writes the cluster for several parts of the operator: the
// enrolled namespaces, the settings in force, the releases and the history of a workload,
// guarded patches, and the results of failed writes.
//
// A [View] reads, a [Cluster] also writes. Package defense and the packages below it
// decide; reconcilers and background tasks act.
package cluster

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// View reads the cluster. Objects from the caches are shared with them and must not be
// changed, unless a method says otherwise. Each kind of read has a file.
type View struct {
	// Cached reads from the caches of the manager, and Live from the API server.
	Cached, Live client.Reader
	// Kinds are the defended kinds of workloads.
	Kinds *workload.Registry
	// Operator is the namespace of the operator.
	Operator string
}
