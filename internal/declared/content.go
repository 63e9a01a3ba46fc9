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

package declared

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// MaxHistory is the largest content that is kept, in bytes of JSON.
const MaxHistory = 256 << 10

// ErrTrimmed is the error of a read of content from an object in the cache, which lacks it.
var ErrTrimmed = errors.New("an object in the cache has no content")

// ErrTooLarge is the error of an evaluation of an object in the cache that lacks fields, as it is too large.
var ErrTooLarge = errors.New("the object is too large for the cache of the operator, so some of its fields are not read; " +
	"shorten its status, or its fields that are no content")

// VersionOf returns the version of the content of an object, trimmed or as the API server sent it. A single pod template
// has the version that it has in a Deployment.
func (k *Kind) VersionOf(object map[string]any) string {
	if kept := keptOf(object); kept != nil {
		version, _ := kept[keptVersion].(string)
		return version
	}
	if len(k.content) == 1 {
		return workload.VersionOf(k.content[0].canonical(object))
	}
	var all []byte
	for i := range k.content {
		all = fmt.Appendf(all, "%s=%s\n", k.content[i].path, k.content[i].canonical(object))
	}
	return workload.VersionOf(all)
}

// canonical returns the canonical JSON of the part: null if the object lacks it.
func (p *part) canonical(object map[string]any) []byte {
	value, ok := p.read(object)
	if !ok {
		return []byte("null")
	}
	if template, isObject := value.(map[string]any); isObject && p.podTemplate {
		return workload.Canonical(template)
	}
	return workload.CanonicalJSON(value)
}

// read returns the part without ignored fields. Objects around them are content. The caller must not change it.
func (p *part) read(object map[string]any) (value any, ok bool) {
	if value, ok = get(object, p.path); !ok || len(p.ignore) == 0 {
		return value, ok
	}
	if content, isObject := value.(map[string]any); isObject {
		content = runtime.DeepCopyJSON(content)
		for _, ignored := range p.ignore {
			unstructured.RemoveNestedField(content, ignored[len(p.path):]...)
		}
		return content, true
	}
	return value, true
}

// ImagesOf returns the images of the pod templates of an object, trimmed or as the API server sent it.
func (k *Kind) ImagesOf(object map[string]any) (images []string) {
	if kept := keptOf(object); kept != nil {
		images, _, _ = unstructured.NestedStringSlice(kept, keptImages)
		return images
	}
	for i := range k.content {
		if !k.content[i].podTemplate {
			continue
		}
		value, _ := k.content[i].read(object)
		template, _ := value.(map[string]any)
		for _, image := range workload.Images(template) {
			if !slices.Contains(images, image) {
				images = append(images, image)
			}
		}
	}
	return images
}

// history is the JSON of the content of an object.
type history struct {
	ContentHash string `json:"contentHash"`
	// Content has the parts that exist, by their paths.
	Content map[string]any `json:"content"`
}

// History returns the content of an object as it is kept for a rollback.
func (k *Kind) History(object map[string]any) ([]byte, error) {
	if keptOf(object) != nil {
		return nil, ErrTrimmed
	}
	h := history{ContentHash: k.ContentHash(), Content: map[string]any{}}
	for i := range k.content {
		if value, ok := k.content[i].read(object); ok {
			h.Content[k.content[i].path.String()] = value
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("content: %w", err)
	}
	if len(text) > MaxHistory {
		return nil, &workload.TooLargeError{Size: len(text), Limit: MaxHistory}
	}
	return text, nil
}

// readHistory reads a history of the present declaration of the content.
func (k *Kind) readHistory(kept []byte) (*history, error) {
	var h history
	if err := utiljson.Unmarshal(kept, &h); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	if h.ContentHash != k.ContentHash() {
		return nil, errors.New("the history is of another declaration of the content; release the content again")
	}
	return &h, nil
}

// Restore returns the operations that restore the content of a history in an object, as the API server sent it. They
// apply only to the content that was read. Ignored fields stay.
func (k *Kind) Restore(object map[string]any, kept []byte) ([]workload.Op, error) {
	e, err := k.restore(object, kept)
	if err != nil {
		return nil, err
	}
	return e.ops, nil
}

func (k *Kind) restore(object map[string]any, kept []byte) (*edit, error) {
	if keptOf(object) != nil {
		return nil, ErrTrimmed
	}
	h, err := k.readHistory(kept)
	if err != nil {
		return nil, err
	}
	e := editOf(object)
	for i := range k.content {
		p := &k.content[i]
		value := h.Content[p.path.String()] // nil if the part was missing
		p.addIgnored(value, object)
		if err := e.set(p.path, value); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// addIgnored adds ignored fields, as an object has them, to the content of a history. A field is left out if the history
// has no object around it: the part has another structure then.
func (p *part) addIgnored(value any, object map[string]any) {
	content, _ := value.(map[string]any)
	for _, ignored := range p.ignore {
		last := len(ignored) - 1
		around, _ := get(content, ignored[len(p.path):last])
		fields, isObject := around.(map[string]any)
		if current, found := get(object, ignored); found && isObject && fields != nil {
			fields[ignored[last]] = runtime.DeepCopyJSONValue(current)
		}
	}
}
