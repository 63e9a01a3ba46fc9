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

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/traas-stack/altershield-operator/internal/rules"
)

// Manager is the used part of a manager. The interface of controller-runtime would bring its
// servers into the plugin, which has none.
type Manager interface {
	GetClient() client.Client
	GetAPIReader() client.Reader
	GetEventRecorder(name string) recorder.EventRecorder
	GetLogger() logr.Logger
}

// New returns a Cluster that uses the caches and the client of a manager.
func New(mgr Manager, o Options) *Cluster {
	c := newOwnWrites(mgr.GetClient(), mgr.GetAPIReader(), o.Clock)
	made := &Cluster{
		View:     View{Cached: c, Live: mgr.GetAPIReader(), Kinds: o.Kinds, Operator: o.Namespace},
		Client:   c,
		Recorder: mgr.GetEventRecorder("altershield-operator"),
		Clock:    o.Clock, HoldSteps: o.HoldSteps.OrDefault(), Hub: o.Hub,
		denials: newDenials(o.Clock), refusals: newRefusals(o.Clock),
	}
	made.Rules = rules.NewWatch(o.Clock, func(of rules.Policy, until time.Time) {
		// A request may wait for the evaluation that was abandoned last.
		go made.setAside(mgr.GetLogger(), of, until)
	})
	return made
}
