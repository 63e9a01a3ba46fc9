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

package servertime

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestClock(t *testing.T) {
	server := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	for name, test := range map[string]struct {
		ahead time.Duration // of this machine
		date  string
		want  time.Duration // how far the clock is ahead of the server
	}{
		"the same":      {0, server.Format(http.TimeFormat), 0},
		"a little":      {time.Second, server.Format(http.TimeFormat), time.Second},
		"minutes ahead": {5 * time.Minute, server.Format(http.TimeFormat), 0},
		"behind":        {-5 * time.Minute, server.Format(http.TimeFormat), 0},
		"no date":       {5 * time.Minute, "", 5 * time.Minute},
		"nonsense":      {5 * time.Minute, "yesterday", 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Date"] = nil
				if test.date != "" {
					w.Header().Set("Date", test.date)
				}
			}))
			defer api.Close()
			config := &rest.Config{Host: api.URL}
			clock := Follow(config, clocktesting.NewFakePassiveClock(server.Add(test.ahead)))
			client, err := rest.HTTPClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, api.URL, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Fatal(err)
			}
			// The header has whole seconds.
			if got := clock.Since(server); (got - test.want).Abs() > time.Second/2 {
				t.Errorf("%s after the server's time, want %s", got, test.want)
			}
		})
	}
}

// TestClockDoesNotJump: answers come late, and at any moment of a second; the clock
// changes only if the clock of the machine was set.
func TestClockDoesNotJump(t *testing.T) {
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	own := clocktesting.NewFakePassiveClock(start.Add(2500 * time.Millisecond))
	clock := New(own)
	answer := func(after time.Duration) time.Duration {
		own.SetTime(start.Add(2500*time.Millisecond + after))
		clock.Learn(start.Add(after).Format(http.TimeFormat))
		return clock.Since(start.Add(after))
	}
	first := answer(0)
	for after := time.Duration(0); after < 10*time.Second; after += 130 * time.Millisecond {
		if got := answer(after); got != first {
			t.Fatalf("%s after the first answer the clock is %s ahead of the server, want %s", after, got, first)
		}
	}
	own.SetTime(start.Add(time.Hour))
	clock.Learn(start.Add(10 * time.Second).Format(http.TimeFormat))
	if got := clock.Since(start.Add(10 * time.Second)); got.Abs() > time.Second {
		t.Errorf("after this machine's clock was set, the clock is %s ahead of the server", got)
	}
}
