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

package workload

// Words are how people speak of what halts the rollout of a workload, and by which
// commands they let it go on. Those of a kind that knows a pause are zero, but for the
// commands.
type Words struct {
	// HaltedBy is what a halted workload has, as in "partition 2147483647"; empty for a
	// pause.
	HaltedBy string
	// Resume takes back what the operator halts the workload by, and leaves what a user
	// wanted before that. GoOn has all pods replaced, whoever kept them from it. Both are
	// commands of kubectl, without that word and without the namespace.
	Resume, GoOn string
}

// Halted is the word for a rollout that was stopped.
func (w *Words) Halted() string {
	if w.HaltedBy == "" {
		return "paused"
	}
	return "halted"
}

// Halt is the word for what stopped it.
func (w *Words) Halt() string {
	if w.HaltedBy == "" {
		return "pause"
	}
	return "halt"
}

// Means is what follows these words: by what the rollout is stopped, where the word does
// not say that.
func (w *Words) Means() string {
	if w.HaltedBy == "" {
		return ""
	}
	return " (" + w.HaltedBy + ")"
}
