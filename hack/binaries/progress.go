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

package binaries

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// IsTerminal reports whether w is a terminal, where lines can be rewritten.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// track prints the progress of a long step until stop is called: in place on a
// terminal, otherwise a line at intervals.
func track(w io.Writer, state func() string) (stop func()) {
	interval, begin, end := 30*time.Second, "", "\n"
	if IsTerminal(w) {
		interval, begin, end = time.Second, "\r\x1b[K", ""
	}
	began := time.Now()
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(w, begin)
				return
			case <-ticker.C:
				fmt.Fprintf(w, "%s%s, %s%s", begin, state(), elapsed(began), end)
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func elapsed(since time.Time) time.Duration { return time.Since(since).Round(time.Second) }

// counter counts the lines written to it.
type counter struct{ n atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n.Add(int64(bytes.Count(p, []byte("\n"))))
	return len(p), nil
}

func (c *counter) lines() int64 { return c.n.Load() }

// tail returns the last lines of a text.
func tail(text []byte, lines int) string {
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
