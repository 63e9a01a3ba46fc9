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

package webhooks

import (
	"context"
	"time"

	decide "github.com/traas-stack/altershield-operator/internal/admission"
)

// pastTimeout is the time for reading the past, which waits while the cache starts.
const pastTimeout = 500 * time.Millisecond

// loadPast adds the past to a request whose answer depends on the past. Without it the
// request does not count as an undo.
func (o *Options) loadPast(ctx context.Context, r *decide.Request, stored *object) {
	if r.NeedsPast() || r.Hold != nil {
		o.readPast(ctx, r, stored)
	}
}

// readPast adds the past to a request.
func (o *Options) readPast(ctx context.Context, r *decide.Request, stored *object) {
	if o.Past == nil || stored == nil || r.Past != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pastTimeout)
	defer cancel()
	past, err := o.Past(ctx, r.Namespace, stored.uid)
	if err != nil {
		o.Log.Error(err, "an undo cannot be recognized, because the releases of a workload are not known",
			"kind", r.Kind, "namespace", r.Namespace, "name", r.Name)
		return
	}
	r.Past = &past
}

// loadHold adds the hold to a request that begins a rollout. If the settings are not known,
// the controller holds the rollout later.
func (o *Options) loadHold(ctx context.Context, r *decide.Request) {
	if o.Hold == nil || !r.NeedsHold() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	inForce, err := o.Hold(ctx, r.Namespace, r.New.Labels, r.New.Annotations)
	if err != nil {
		o.Log.Error(err, "a rollout is not held by admission, because its settings are not known",
			"kind", r.Kind, "namespace", r.Namespace, "name", r.Name)
		return
	}
	if !inForce.Observe && r.New.ObservingOwner() == "" && inForce.Hold.Holds() && (!r.New.ByEviction || inForce.HoldDaemonSets) {
		r.Hold = &decide.WantedHold{Until: inForce.Hold, AtMost: inForce.HoldAtMost, Batch: inForce.BatchSize, Times: o.HoldSteps}
	}
}
