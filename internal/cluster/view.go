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

// Package cluster holds, once, what several parts of the operator read and write
// of the cluster: which namespaces are enrolled, the settings in force, the
// releases and the history of a workload, guarded patches, and what a failed write
// leads to.
//
// A [View] reads, a [Cluster] writes, too. What is decided from that is in package
// defense and those below it; who does what when is for reconcilers and background tasks.
package cluster

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// View reads the cluster. What it returns of the caches is shared with them and
// must not be written to, unless it says otherwise. Each thing that is read has a file.
type View struct {
	// Cached reads from the caches of the manager, and Live from the API server.
	Cached, Live client.Reader
	// Kinds of workloads that are defended.
	Kinds *workload.Registry
	// Operator is the namespace of the operator.
	Operator string
}
