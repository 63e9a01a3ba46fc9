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

// Words are the words of messages about a halted workload, and the commands that resume it. A kind
// with a pause sets only the commands.
type Words struct {
	// HaltedBy is the field that halts the workload, such as "partition 2147483647"; empty for a
	// pause.
	HaltedBy string
	// Resume is the command that takes back the operator's halt and restores the user's value. GoOn is
	// the command that lets all pods be replaced, even if a user stopped the rollout. Both are
	// arguments of kubectl, without the namespace.
	Resume, GoOn string
}

// Halted returns the participle of a stopped rollout: paused or halted.
func (w *Words) Halted() string {
	if w.HaltedBy == "" {
		return "paused"
	}
	return "halted"
}

// Halt returns the noun for a stopped rollout: pause or halt.
func (w *Words) Halt() string {
	if w.HaltedBy == "" {
		return "pause"
	}
	return "halt"
}

// Means returns the field that halts the workload, in parentheses, to follow Halted or Halt; empty
// for a pause.
func (w *Words) Means() string {
	if w.HaltedBy == "" {
		return ""
	}
	return " (" + w.HaltedBy + ")"
}
