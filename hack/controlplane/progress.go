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

package controlplane

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// heartbeat is how often a long step says that it is still at work.
const heartbeat = 10 * time.Second

// reporter tells a person what is going on: in place on a terminal, in plain
// lines otherwise.
type reporter struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
}

func newReporter(w io.Writer) *reporter {
	if w == nil {
		w = io.Discard
	}
	f, ok := w.(*os.File)
	return &reporter{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

func (r *reporter) line(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.w, format+"\n", args...)
}

// track announces a step and reports on it until the returned function is
// called with the step's outcome.
func (r *reporter) track(title string) (stop func(error)) {
	began := time.Now()
	interval := heartbeat
	if r.terminal {
		interval = time.Second
	}
	r.mu.Lock()
	fmt.Fprint(r.w, title+r.lineEnd())
	r.mu.Unlock()

	done := make(chan struct{})
	var beating sync.WaitGroup
	beating.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				r.mu.Lock()
				fmt.Fprintf(r.w, "%s: %s%s", title, elapsed(began), r.lineEnd())
				r.mu.Unlock()
			}
		}
	})
	return func(err error) {
		close(done)
		beating.Wait()
		if err != nil {
			r.line("%s: failed after %s", title, elapsed(began))
			return
		}
		r.line("%s: done in %s", title, elapsed(began))
	}
}

// lineEnd leaves the cursor where the next report of the same step goes. Texts
// of one step only grow, so nothing of the one before shines through.
func (r *reporter) lineEnd() string {
	if r.terminal {
		return "\r"
	}
	return "\n"
}

func elapsed(since time.Time) string {
	d := time.Since(since)
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// tail returns the last lines of a text.
func tail(text []byte, lines int) string {
	text = bytes.TrimRight(text, "\n")
	all := strings.Split(string(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
