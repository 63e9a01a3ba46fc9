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

package workload

import (
	"encoding/json"
	"testing"
)

func TestRestartsOnly(t *testing.T) {
	const spec = `"spec":{"containers":[{"name":"main","image":"web:1"}]}`
	for name, test := range map[string]struct {
		before, after string
		want          bool
	}{
		"unchanged":         {`{` + spec + `}`, `{` + spec + `}`, false},
		"the first restart": {`{` + spec + `}`, `{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"1"}},` + spec + `}`, true},
		"another restart": {`{"metadata":{"annotations":{"a":"b","kubectl.kubernetes.io/restartedAt":"1"}},` + spec + `}`,
			`{"metadata":{"annotations":{"a":"b","kubectl.kubernetes.io/restartedAt":"2"}},` + spec + `}`, true},
		"a manifest without it": {`{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"1"}},` + spec + `}`, `{` + spec + `}`, true},
		"another annotation, too": {`{` + spec + `}`,
			`{"metadata":{"annotations":{"a":"b","kubectl.kubernetes.io/restartedAt":"1"}},` + spec + `}`, false},
		"another image, too": {`{` + spec + `}`,
			`{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"1"}},"spec":{"containers":[{"name":"main","image":"web:2"}]}}`, false},
	} {
		before, after := decoded(t, test.before), decoded(t, test.after)
		was := Version(after)
		if got := RestartsOnly(before, after); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
		if Version(after) != was {
			t.Errorf("%s: changed the template", name)
		}
	}
}

func decoded(t *testing.T, text string) (content map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &content); err != nil {
		t.Fatal(err)
	}
	return content
}
