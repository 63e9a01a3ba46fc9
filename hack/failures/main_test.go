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

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	long := "\x1b[31m• [FAILED] [180.1 seconds]\x1b[0m\n[It] waits\n" + strings.Repeat("a log that says much\n", 10_000) +
		"  \x1b[31m[FAILED] \x1b[0mTimed out after 180.001s.\n  Expected\n      <string>: Running\n  to equal\n      <string>: Success\n"
	events := []event{
		{Action: "start", Package: "e2e"},
		{Action: "run", Package: "e2e", Test: "[It] passes"},
		{Action: "output", Package: "e2e", Test: "[It] passes", Output: "[FAILED] is said of another\n"},
		{Action: "pass", Package: "e2e", Test: "[It] passes"},
		{Action: "run", Package: "e2e", Test: "[It] waits"},
		{Action: "output", Package: "e2e", Test: "[It] waits", Output: long},
		{Action: "fail", Package: "e2e", Test: "[It] waits"},
		{Action: "run", Package: "unit", Test: "TestTable"},
		{Action: "output", Package: "unit", Test: "TestTable", Output: "=== RUN   TestTable\n"},
		{Action: "output", Package: "unit", Test: "TestTable", Output: "    table_test.go:12: got 1, want 2\n"},
		{Action: "output", Package: "unit", Test: "TestTable", Output: "--- FAIL: TestTable (0.00s)\n"},
		{Action: "fail", Package: "unit", Test: "TestTable"},
		{Action: "run", Package: "unit", Test: "TestHangs"},
		{Action: "output", Package: "unit", Test: "TestHangs", Output: "panic: test timed out after 1s\n"},
		{Action: "fail", Package: "e2e"},
	}
	var report strings.Builder
	for _, e := range events {
		line, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		report.Write(append(line, '\n'))
	}
	want := `=== FAIL: e2e [It] waits
      [FAILED] Timed out after 180.001s.
      Expected
          <string>: Running
      to equal
          <string>: Success
=== FAIL: unit TestTable
        table_test.go:12: got 1, want 2
    --- FAIL: TestTable (0.00s)
=== NOT ENDED: unit TestHangs
    panic: test timed out after 1s
`
	var got strings.Builder
	if err := write(&got, strings.NewReader(report.String())); err != nil {
		t.Error(err)
	}
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

func TestBroken(t *testing.T) {
	var got strings.Builder
	err := write(&got, strings.NewReader(`{"Action":"run","Package":"unit","Test":"TestCut"}`+"\n"+`{"Action":"out`))
	if err == nil || !strings.Contains(got.String(), "NOT ENDED: unit TestCut") {
		t.Errorf("a report that breaks off: %v, printed %q", err, got.String())
	}
}
