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

package network

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestPlaces: one key leaves places to others, a waiting user gets released places, and unused
// keys are forgotten.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(30, 20)
		var held []func()
		take := func(key string) bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			release, err := p.Take(ctx, key, 10)
			if err == nil {
				held = append(held, release)
			}
			return err == nil
		}
		if first, second := take("a"), take("a"); !first || !second || take("a") || !take("b") || take("b") {
			t.Error("one key takes all places, or all keys take too many")
		}
		time.AfterFunc(time.Second/2, held[0])
		if !take("b") {
			t.Error("a waiting user does not get released places")
		}
		for _, release := range held[1:] {
			release()
		}
		if p.InUse() {
			t.Errorf("it remembers %v", p.keys)
		}
	})
}
