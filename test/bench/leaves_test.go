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

package bench

import (
	"runtime"
	"testing"

	"github.com/traas-stack/altershield-operator/test/world"
)

// TestReplacementsLeaveNothing replaces a pod repeatedly, and checks that no objects and no memory remain. With a server
// memory is not checked, because the simulator keeps its requests.
func TestReplacementsLeaveNothing(t *testing.T) {
	const warm, more = 210, 200
	for name, server := range map[string]bool{"without a server": false, "with one": true} {
		t.Run(name, func(t *testing.T) {
			world.Reference(t, world.Story{Name: name, Options: world.Options{Server: server, Forgets: true}, Run: func(w *world.World) {
				enrol(w, 1)
				replace(w, 1, warm)
				objects, largest := left(w)
				before := inMemory()
				replace(w, 1, more)
				grown := inMemory() - before
				if n, size := left(w); n != objects || size > largest+largest/20 {
					t.Errorf("%d objects of up to %d bytes are left of %d replacements, %d of up to %d of %d", n, size, warm+more, objects, largest, warm)
				}
				if !server && grown >= more {
					t.Errorf("%d more heap objects after %d replacements", grown, more)
				}
			}})
		})
	}
}

// inMemory returns the number of heap objects.
func inMemory() int {
	for range 2 { // objects with a finalizer need two
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapObjects)
}
