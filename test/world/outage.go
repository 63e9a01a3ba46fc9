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

package world

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Running reports whether a process runs.
func (w *World) Running() bool { return len(w.alive()) > 0 }

// Stop ends all processes. None is started in their place until Start.
func (w *World) Stop() {
	w.down = true
	for _, p := range w.alive() {
		p.die()
	}
	w.step()
}

// Crash ends a process at once. Another process replaces it after a while, unless the operator is
// stopped.
func (w *World) Crash(number int) {
	if p := w.processes[number%len(w.processes)]; !p.dead {
		w.note("process %d crashes", p.number)
		p.die()
	}
	w.step()
}

// SetWebhooks sets whether the API server reaches the webhooks. If it does not, the block denies,
// and every other request passes.
func (w *World) SetWebhooks(reachable bool) {
	w.note("cluster: the webhooks can be reached: %t", reachable)
	w.unreached = !reachable
}

// Start starts processes in place of those that ended.
func (w *World) Start() { w.down = false }

// Unseen does something that admission misses, as if the API server did not know yet that the
// namespace is enrolled.
func (w *World) Unseen(do func()) {
	w.Alive()
	admit := w.api.admit
	w.api.admit = func(_ context.Context, _, after client.Object, _ string) (client.Object, error) {
		return stripped(after), nil
	}
	defer func() { w.api.admit = admit }()
	do()
}

// SkipAdmission makes admission miss all requests from now on, as if the webhooks were unreachable
// and failed open.
func (w *World) SkipAdmission() {
	w.api.admit = func(_ context.Context, _, after client.Object, _ string) (client.Object, error) {
		return stripped(after), nil
	}
}
