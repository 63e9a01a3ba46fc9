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

	"github.com/google/go-cmp/cmp"
)

func TestImages(t *testing.T) {
	for name, test := range map[string]struct {
		template string
		want     []string
	}{
		"init containers first": {`{"spec":{"containers":[{"image":"b"}],"initContainers":[{"image":"a"}]}}`, []string{"a", "b"}},
		"each once": {
			`{"spec":{"containers":[{"image":"b"},{"image":"a"},{"image":"b"}],"initContainers":[{"image":"a"}]}}`, []string{"a", "b"},
		},
		"no image":      {`{"spec":{"containers":[{"name":"c"},"nonsense",{"image":7}]}}`, nil},
		"no containers": {`{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var template map[string]any
			if err := json.Unmarshal([]byte(test.template), &template); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, Images(template)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
