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

package slots

import (
	"context"
	"fmt"
	"testing"
)

// TestSlots: as many as may be are at work at a time.
func TestSlots(t *testing.T) {
	const all, own = 8, 2
	s := New(all, own)
	var held []func()
	for i := range all / own {
		for range own {
			release, err := s.Acquire(t.Context(), fmt.Sprint("ns", i))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, release)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ns := range []string{"ns0", "other"} {
		if _, err := s.Acquire(gone, ns); err == nil {
			t.Errorf("one more of %s", ns)
		}
	}
	held[0]()
	if _, err := s.Acquire(gone, "ns1"); err == nil {
		t.Error("one more of ns1")
	}
	release, err := s.Acquire(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	for _, release := range append(held[1:], release) {
		release()
	}
	if s.InUse() {
		t.Errorf("it remembers %v", s.of)
	}
}
