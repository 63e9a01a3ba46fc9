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

package observer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWriterOf(t *testing.T) {
	a := func(operator bool, from, to int) answer {
		return answer{operator, epoch.Add(time.Duration(from) * time.Millisecond), epoch.Add(time.Duration(to) * time.Millisecond)}
	}
	tests := map[string]struct {
		answers []answer
		want    Writer
	}{
		"no answer":                  {nil, Unknown},
		"the operator":               {[]answer{a(true, 0, 5)}, Operator},
		"another writer":             {[]answer{a(false, 0, 5)}, Other},
		"the operator, then a no-op": {[]answer{a(false, 6, 9), a(true, 0, 5)}, Operator},
		"another writer, then the operator's no-op": {[]answer{a(false, 0, 5), a(true, 6, 9)}, Other},
		"both at once":               {[]answer{a(false, 0, 5), a(true, 4, 9)}, Unknown},
		"the operator twice at once": {[]answer{a(true, 0, 5), a(true, 4, 9)}, Operator},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := writerOf(tc.answers); got != tc.want {
				t.Errorf("writerOf() = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAuditLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	line := func(stage, user, verb string, code int, rv string) string {
		return fmt.Sprintf(`{"stage":%q,"verb":%q,"requestURI":"/x","user":{"username":%q},`+
			`"objectRef":{"resource":"deployments","namespace":"ns","name":"web","apiGroup":"apps"},`+
			`"responseStatus":{"code":%d},"requestObject":{"a":1},"responseObject":{"metadata":{"resourceVersion":%q}},`+
			`"requestReceivedTimestamp":"2026-01-01T00:00:00.000001Z","stageTimestamp":"2026-01-01T00:00:01.000000Z"}`+"\n",
			stage, verb, user, code, rv)
	}
	write := func(s string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	l := newAuditLog(path, "operator", time.Time{})
	expect := func(requests int, writers map[uint64]Writer) {
		t.Helper()
		if err := l.read(); err != nil {
			t.Fatal(err)
		}
		got := map[uint64]Writer{}
		for rv, answers := range l.answers {
			got[rv] = writerOf(answers)
		}
		if diff := cmp.Diff(writers, got); diff != "" || len(l.requests) != requests {
			t.Errorf("%d requests, want %d; writers (-want +got):\n%s", len(l.requests), requests, diff)
		}
	}
	write(line("ResponseComplete", "operator", "patch", 200, "5") + line("ResponseComplete", "jane", "patch", 200, "6") +
		line("RequestReceived", "jane", "patch", 200, "7") + line("ResponseComplete", "jane", "get", 200, "8") +
		line("ResponseComplete", "operator", "patch", 409, "9"))
	expect(2, map[uint64]Writer{5: Operator, 6: Other})
	if r := l.requests[0]; r.Verb != "patch" || r.Group != "apps" || r.Resource != "deployments" || r.Namespace != "ns" || r.Name != "web" ||
		r.rv != 5 || string(r.body) != `{"a":1}` || r.Received.IsZero() {
		t.Errorf("request %+v", r)
	}
	later := newAuditLog(path, "operator", time.Now().Add(time.Hour))
	if later.read() != nil || len(later.requests) != 0 || len(later.answers) != 0 {
		t.Errorf("requests from before its time: %v", later.requests)
	}
	next := line("ResponseComplete", "operator", "get", 403, "")
	write(next[:20]) // while it is being written
	expect(2, map[uint64]Writer{5: Operator, 6: Other})
	write(next[20:])
	expect(3, map[uint64]Writer{5: Operator, 6: Other})
	if r := l.requests[2]; r.rv != 6 {
		t.Errorf("a request that made no version is placed at %d, want the newest version before it", r.rv)
	}
	l.forget(5)
	expect(3, map[uint64]Writer{6: Other})
	write("no JSON\n")
	if err := l.read(); err == nil {
		t.Error("a line that is no JSON went unnoticed")
	}
	expect(3, map[uint64]Writer{6: Other})
}

func TestPathsOf(t *testing.T) {
	for name, test := range map[string]struct {
		body string
		want []string
	}{
		"nothing": {"", nil},
		"a JSON patch": {
			`[{"op":"test","path":"/metadata/uid","value":"1"},{"op":"add","path":"/metadata/labels/a~1b","value":"c"},` +
				`{"op":"remove","path":"/spec/paused"}]`,
			[]string{"/metadata/labels/a~1b", "/spec/paused"},
		},
		"a JSON patch that moves": {`[{"op":"move","from":"/spec/a","path":"/spec/b"}]`, []string{"/spec/a", "/spec/b"}},
		"a merge patch": {
			`{"metadata":{"uid":"1","resourceVersion":"2","labels":{"x/y":"1","z~":null}},` +
				`"spec":{"replicas":3,"selector":{},"list":[{"a":1}]}}`,
			[]string{"/metadata/labels/x~1y", "/metadata/labels/z~0", "/spec/list", "/spec/replicas", "/spec/selector"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, pathsOf([]byte(test.body))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDenials: the message of a webhook that denies a request of any user is judged.
func TestDenials(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	line := func(message string) string {
		return fmt.Sprintf(`{"stage":"ResponseComplete","verb":"patch","user":{"username":"jane"},`+
			`"objectRef":{"resource":"deployments","namespace":"ns","name":"web"},"responseStatus":{"code":403,"message":%q},`+
			`"requestReceivedTimestamp":"2026-01-01T00:00:00.000001Z","stageTimestamp":"2026-01-01T00:00:01.000000Z"}`+"\n", message)
	}
	denies := `admission webhook "block.altershield.example" denied the request: blocked; to go back: kubectl label deployment `
	log := line(denies+"web x=y -n ns") + line(denies+"$(x) x=y -n ns") + line("kubectl get $x")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &Observer{world: newWorld(), audit: newAuditLog(path, "operator", time.Time{}), streams: newStreams()}
	o.judge(1, time.Now())
	o.judge(2, time.Now())
	if got := o.Violations("ns"); len(got) != 1 || got[0].Invariant != Printable || got[0].Object != "denial of ns/web" {
		t.Errorf("violations %v, want the violation of the second denial", got)
	}
}
