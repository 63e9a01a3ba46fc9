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

package cluster

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Options of a cluster.
type Options struct {
	// Namespace of the operator, whose OpsConfigInfo objects are in force
	// everywhere.
	Namespace string
	// Clock has the time of the API server.
	Clock clock.PassiveClock
	// Kinds of workloads that are defended.
	Kinds *workload.Registry
	// HoldSteps are the times of holds; those that are not set have their defaults.
	HoldSteps hold.Times
	// Hub has the caches of declared kinds; nil without declared kinds.
	Hub *hub.Hub
}

// Cluster reads and writes the cluster. A process has one Cluster, which remembers
// denied writes. Each kind of write has a file, beside the reads it needs.
type Cluster struct {
	View
	// Client writes. It reads from the caches, as View does.
	Client client.Client
	// Recorder records events.
	Recorder events.EventRecorder
	// Clock has the time of the API server, whichever replica this is.
	Clock clock.PassiveClock
	// HoldSteps are the times of holds.
	HoldSteps hold.Times
	// Hub has the caches of declared kinds, for watches; nil without declared kinds.
	Hub *hub.Hub

	// Rules abandons evaluations that do not end.
	Rules *rules.Watch

	denials  *denials
	refusals *refusals
	// requests are the requests for rollbacks that this replica took over HTTP, and carriedOut the
	// requests that it carried out.
	requests, carriedOut requestRate
}

// Event emits an event on a workload; related is the object that caused it, or nil.
func (c *Cluster) Event(w *workload.Workload, related client.Object, e record.Event, action string) {
	e.Message = v1alpha1.EventMessage(e.Reason, wording.Printable(e.Message))
	// Events with the same reason and action on one version of an object are a series, whose later messages are lost.
	action += e.Act
	regarding := &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID, ResourceVersion: w.ResourceVersion},
	}
	regarding.SetGroupVersionKind(w.GVK)
	if related == nil {
		c.Recorder.Eventf(regarding, nil, e.Type, e.Reason, action, "%s", e.Message)
		return
	}
	c.Recorder.Eventf(regarding, related, e.Type, e.Reason, action, "%s", e.Message)
	if e.OfRelease {
		c.Recorder.Eventf(related, regarding, e.Type, e.Reason, action, "%s", e.Message)
	}
}

// denials remembers denied writes. It may be lost at any time: each write is then tried once more.
type denials struct {
	clock clock.PassiveClock
	// known has a *deniedWrite for each denialKey.
	known *cache.LRUExpireCache
}

// refusals remembers for a moment why pods of workloads are not created, so that the reason is
// not read at each step of a rollout.
type refusals struct {
	clock clock.PassiveClock
	// known has a slice of workload.Refusal for the UID of each workload, and since the time since
	// which it lacks pods. Both may be lost at any time: the reason is then reported later.
	known, since *cache.LRUExpireCache
}

// requestRate bounds the requested rollbacks of each namespace.
type requestRate struct {
	mu sync.Mutex
	// taken are the times of the requests in the window, by namespace.
	taken map[string][]time.Time
}
