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

package server

import (
	"time"

	"github.com/traas-stack/altershield-operator/internal/record"
)

// Plan is the plan for an order or a batch with the status S.
type Plan[S any] struct {
	// Status is set if it changes. It is written first.
	Status *S
	// Call to the server, if any, and whether it is the last try.
	Call Call
	Last bool
	// Ended: the server has the end of the entry; remember it as [Calls.Ended].
	Ended bool
	// Events are emitted after the status is written.
	Events []record.Event
	// RequeueAfter is the time until the next decision if nothing happens before.
	RequeueAfter time.Duration
}

// drive plans the next call about an entry, or the wait, and returns the turn of the entry.
func drive[S any](n *entry, now time.Time, calls Calls, plan *Plan[S]) (t turn) {
	t, plan.Call, plan.RequeueAfter = n.next(now, calls)
	plan.Last = n.isLast(plan.Call, now)
	return t
}
