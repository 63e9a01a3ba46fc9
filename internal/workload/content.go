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
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Content identifies the declaration and the object from which a version of a declared kind was computed.
type Content struct {
	// Hash is a hash of the declaration of the content.
	Hash string
	// Generation is metadata.generation of the object; 0 if it has none.
	Generation int64
}

// String returns the value of [v1alpha1.ContentAnnotation].
func (c Content) String() string { return fmt.Sprintf("%s %d", c.Hash, c.Generation) }

// TooLargeError is the error of content that the history does not keep: a retry does not help.
type TooLargeError struct{ Size, Limit int }

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the content has %d bytes, and at most %d are kept: no rollback can restore it; "+
		"declare less content, or add fields to ignore", e.Size, e.Limit)
}

// contentHashOf returns the hash of the declaration by which data of a ControllerRevision was written, as package declared writes
// it; empty for another kind.
func contentHashOf(data []byte) string {
	var of struct {
		ContentHash string `json:"contentHash"`
	}
	_ = json.Unmarshal(data, &of) // the history of no declared kind
	return of.ContentHash
}

// Restorable returns the versions of a history that are of this declaration of the content: a rollback restores no others. All
// versions of a kind that is not declared, of which c is nil, are restorable.
func (c *Content) Restorable(history []Revision) []Revision {
	if c == nil {
		return history
	}
	return slices.DeleteFunc(slices.Clone(history), func(r Revision) bool { return r.ContentHash != c.Hash })
}

// recordedContent reads [v1alpha1.ContentAnnotation].
func recordedContent(annotations map[string]string) (c Content, ok bool) {
	hash, generation, _ := strings.Cut(annotations[v1alpha1.ContentAnnotation], " ")
	n, err := strconv.ParseInt(generation, 10, 64)
	return Content{Hash: hash, Generation: n}, err == nil && hash != ""
}

// Unwritten reports whether no one wrote the content of a workload of a declared kind since it had the recorded version. An
// object without a generation may have been written, unless the declaration changed.
func (w *Workload) Unwritten() bool {
	was, ok := recordedContent(w.Annotations)
	return w.Content != nil && ok &&
		(was.Hash != w.Content.Hash || w.Content.Generation > 0 && w.Content.Generation <= was.Generation)
}

// UnrecordedContent returns the new value of [v1alpha1.ContentAnnotation] if the workload has the recorded version, and the
// annotation is outdated: scaling changes the generation, too. Empty otherwise.
func (w *Workload) UnrecordedContent() string {
	if w.Content == nil || w.RecordedVersion() != w.Version || w.Annotations[v1alpha1.ContentAnnotation] == w.Content.String() {
		return ""
	}
	if was, ok := recordedContent(w.Annotations); ok && w.Content.Generation == 0 && was.Hash == w.Content.Hash {
		return "" // admission does not know yet that the kind has no generation
	}
	return w.Content.String()
}
