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

import "sigs.k8s.io/controller-runtime/pkg/client"

func (h *history) at(position int) change { return h.changes[position-h.forgotten] }

func (h *history) from(position int) []change { return h.changes[position-h.forgotten:] }

// forget drops the versions before a position, and keeps the state after them.
func (h *history) forget(position int) {
	n := position - h.forgotten
	if h.base == nil {
		h.base = map[key]client.Object{}
	}
	for _, c := range h.changes[:n] {
		if c.deleted {
			delete(h.base, c.key)
		} else {
			h.base[c.key] = c.object
		}
	}
	h.changes = append([]change(nil), h.changes[n:]...)
	h.forgotten = position
}
