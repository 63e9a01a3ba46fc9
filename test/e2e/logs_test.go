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

package e2e

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// harmless lists errors in logs that are no defects of the operator: errors of libraries, and errors because a machine is busy.
var harmless = []struct {
	// texts are parts of the line.
	texts []string
	// whenStopped limits the entry to managers that were stopped.
	whenStopped bool
	why         string
}{
	{[]string{"Failed to update lease", "the object has been modified"}, false,
		"client-go lost a race for the lease: another replica holds it now"},
	{[]string{"Error initially creating lease lock", "already exists"}, false, "the same when there is no lease yet"},
	{[]string{"store a verdict; it is polled for instead", "context deadline exceeded"}, false,
		"the API server of a busy machine took longer than a callback may; the observer checks that the verdict counts"},
	{[]string{"error received after stop sequence was engaged"}, false, "controller-runtime reports that the manager lost its lease"},
	{[]string{`context canceled"`}, true, "requests that were running when the manager was stopped"},
}

// errorsIn returns the errors of the operator among the lines of a manager's log.
func errorsIn(lines []string) []string {
	stopped := slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, `"msg":"Stopping and waiting for `) })
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		if !strings.Contains(line, `"level":"error"`) {
			return true
		}
		for _, h := range harmless {
			said := func(text string) bool { return strings.Contains(line, text) }
			if (stopped || !h.whenStopped) && !slices.ContainsFunc(h.texts, func(text string) bool { return !said(text) }) {
				return true
			}
		}
		return false
	})
}

// expectNoErrors checks that a manager logged no error. A manager that was never started has no log.
func expectNoErrors(path string) {
	GinkgoHelper()
	lines, err := readLines(path)
	if !os.IsNotExist(err) {
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(errorsIn(lines)).To(BeEmpty(), "errors in the log of a manager, %s", path)
}

func readLines(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	return lines, s.Err()
}

// loggedAt returns the time of a line, or zero if the line has none.
func loggedAt(line string) time.Time {
	var said struct{ TS string }
	if json.Unmarshal([]byte(line), &said) != nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, said.TS)
	if err != nil {
		return time.Time{}
	}
	return at
}
