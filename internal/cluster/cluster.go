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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/rules"
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
	// HoldSteps are the times of holds; what is not set has its default.
	HoldSteps defense.HoldSteps
}

// Cluster reads and writes the cluster. There is one in a process: it remembers
// what was denied.
type Cluster struct {
	View
	// Client writes. It reads from the caches, as View does.
	Client client.Client
	// Recorder records events.
	Recorder events.EventRecorder
	// Clock has the time of the API server, whichever replica this is.
	Clock clock.PassiveClock
	// HoldSteps are the times of holds.
	HoldSteps defense.HoldSteps

	// Rules abandons evaluations of rules that do not end.
	Rules *rules.Watch

	denials  *denials
	refusals *refusals
	// requests are the requests for rollbacks that this replica took over HTTP, and carriedOut those
	// that it carried out.
	requests, carriedOut requestRate
}

// New reads and writes with the caches and the client of a manager.
func New(mgr ctrl.Manager, o Options) *Cluster {
	c := newOwnWrites(mgr.GetClient(), mgr.GetAPIReader(), o.Clock)
	made := &Cluster{
		View:     View{Cached: c, Live: mgr.GetAPIReader(), Kinds: o.Kinds, Operator: o.Namespace},
		Client:   c,
		Recorder: mgr.GetEventRecorder("altershield-operator"),
		Clock:    o.Clock, HoldSteps: o.HoldSteps.OrDefault(),
		denials: newDenials(o.Clock), refusals: newRefusals(o.Clock),
	}
	made.Rules = rules.NewWatch(o.Clock, func(of rules.Policy, until time.Time) {
		// The evaluation that was abandoned last may be of a request that waits.
		go made.setAside(mgr.GetLogger(), of, until)
	})
	return made
}

// Event emits an event on a workload; related is the object that caused it, or
// nil.
func (c *Cluster) Event(w *defense.Workload, related client.Object, e defense.Event, action string) {
	e.Message = v1alpha1.EventMessage(e.Reason, defense.Printable(e.Message))
	// Events of one reason and one action on one version of an object are a series, whose later messages are lost.
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
