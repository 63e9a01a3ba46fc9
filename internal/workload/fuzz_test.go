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
	"bytes"
	"encoding/json"
	"maps"
	"math/rand"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// FuzzVersion: a template in any JSON has one version, for every reader, with its keys in any order
// and any version label. All other labels count.
func FuzzVersion(f *testing.F) {
	for _, seed := range []string{
		walkthrough, `{}`, `{"metadata":null}`, `{"metadata":{"labels":null},"spec":null}`, `{"metadata":{"labels":[1]},"spec":[]}`,
		`{"metadata":{"labels":{"` + v1alpha1.VersionLabel + `":"x","app":"web"},"creationTimestamp":"2001-02-03T04:05:06Z"}}`,
		`{"spec":{"containers":[null,1,{"name":"a","ports":[{"containerPort":0}]}],"nodeSelector":{"a":1e3}}}`,
		`{"spec":{"terminationGracePeriodSeconds":9007199254740993,"priority":-0,"unknown":[1.0,1e400,{"b":{},"a":""}]}}`,
		`{"spec":{"hostname":"\ud800\u2028<>&"}}`, "{\"spec\":\"\xff\"}", `{"a":1,"a":2}`, `{} {}`, `[]`, `null`, ``,
	} {
		f.Add([]byte(seed), int64(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, seed int64) {
		version, err := versionOfRaw(data)
		if err != nil {
			return
		}
		template, err := decodeTemplate(data)
		if err != nil {
			t.Fatal(err)
		}
		var shuffled bytes.Buffer
		shuffle(&shuffled, rand.New(rand.NewSource(seed)), template)
		if got, err := versionOfRaw(shuffled.Bytes()); err != nil || got != version {
			t.Fatalf("version %s, of the same template in another order %s, %v\n%s\n%s", version, got, err, data, &shuffled)
		}
		var cached map[string]any
		if utiljson.Unmarshal(data, &cached) == nil && cached != nil {
			if got := Version(cached); got != version {
				t.Fatalf("version %s as it was sent, %s as caches hold it\n%s", version, got, data)
			}
		}
		for label, counts := range map[string]bool{v1alpha1.VersionLabel: false, "fuzz.example.com/x": true} {
			labelled, ok := withLabel(template, label)
			if ok && (Version(labelled) != version) != counts {
				t.Fatalf("label %s counts: %t\n%s", label, !counts, data)
			}
		}
	})
}

// withLabel returns a copy of a template with one more label; false if it has the label, or labels
// that are not an object.
func withLabel(template map[string]any, label string) (map[string]any, bool) {
	metadata, ok := template["metadata"].(map[string]any)
	if !ok && template["metadata"] != nil {
		return nil, false
	}
	labels, ok := metadata["labels"].(map[string]any)
	if !ok && metadata["labels"] != nil {
		return nil, false
	}
	if _, has := labels[label]; has && label != v1alpha1.VersionLabel {
		return nil, false
	}
	clone := func(m map[string]any) map[string]any {
		if m == nil {
			return map[string]any{}
		}
		return maps.Clone(m)
	}
	template, metadata, labels = clone(template), clone(metadata), clone(labels)
	labels[label] = json.Number("17").String()
	metadata["labels"], template["metadata"] = labels, metadata
	return template, true
}

// versionOfRaw returns the version of a pod template as the API server sent it.
func versionOfRaw(templateJSON []byte) (string, error) {
	template, err := decodeTemplate(templateJSON)
	return Version(template), err
}
