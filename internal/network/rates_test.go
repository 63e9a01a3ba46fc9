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
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestRates: each key has grants of its own, and keeps them when all together have none left. Keys
// are forgotten in time.
func TestRates(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r := NewRates(RatesOptions{Each: Rate{PerSecond: 1, Burst: 2}, All: Rate{PerSecond: 1, Burst: 4}, Keys: 3, Keep: time.Minute}, c)
	take := func(key string, want Grant) {
		t.Helper()
		if got := r.Take(key); got != want {
			t.Errorf("%s: %d, want %d", key, got, want)
		}
	}
	take("a", Granted)
	take("a", Granted)
	take("a", EachSpent)
	take("b", Granted)
	take("c", Granted)
	take("b", AllSpent)
	c.SetTime(c.Now().Add(time.Second))
	take("b", Granted) // it lost none when all had none left
	take("a", AllSpent)
	c.SetTime(c.Now().Add(59 * time.Second))
	r.Remember("a")
	c.SetTime(c.Now().Add(2 * time.Second))
	if !r.Remembers("a") || r.Remembers("b") || r.Remembers("never") {
		t.Errorf("remembers a: %t, b: %t", r.Remembers("a"), r.Remembers("b"))
	}
	for _, key := range []string{"d", "e", "f"} { // they displace a
		take(key, Granted)
	}
	if r.Remembers("a") {
		t.Error("remembers too many")
	}
	alone := NewRates(RatesOptions{Each: Rate{PerSecond: 1, Burst: 1}, Keys: 1, Keep: time.Minute}, c)
	if first, second := alone.Take("a"), alone.Take("a"); first != Granted || second != EachSpent {
		t.Errorf("without a limit for all: %d, %d", first, second)
	}
}
