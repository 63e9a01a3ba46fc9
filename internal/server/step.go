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

// Plan is what to do about an order or a batch, whose status is S.
type Plan[S any] struct {
	// Status is set when it is to be written, before anything else is done.
	Status *S
	// Call to the server, if any, and whether it is the last try.
	Call Call
	Last bool
	// Ended: the server has the end of the entry; to be remembered as [Calls.Ended].
	Ended bool
	// Events say what was done; they are emitted after the status is written.
	Events []record.Event
	// RequeueAfter says when to look again, if nothing happens before.
	RequeueAfter time.Duration
}

// drive plans the next call about an entry, or how long to wait, and returns what becomes of the entry now.
func drive[S any](n *entry, now time.Time, calls Calls, plan *Plan[S]) (t turn) {
	t, plan.Call, plan.RequeueAfter = n.next(now, calls)
	plan.Last = n.isLast(plan.Call, now)
	return t
}
