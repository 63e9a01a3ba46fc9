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
	"errors"
	"maps"
	"strconv"
)

// UnknownUser stands for a user that admission does not know.
const UnknownUser = "unknown"

// MaxUser is the longest user name in an annotation, in bytes.
const MaxUser = 256

// MaxRelease is the largest number of a release: every JSON reader can represent it, and no
// workload reaches it by releases.
const MaxRelease int64 = 1<<53 - 1

// ParseRelease reads the value of ReleaseAnnotation: 0 if it is not a positive number, at most
// MaxRelease.
func ParseRelease(value string) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if errors.Is(err, strconv.ErrRange) && n > 0 {
		return MaxRelease
	}
	if err != nil || n < 0 {
		return 0
	}
	return min(n, MaxRelease)
}

// NextRelease returns the number of the next release; it stays at MaxRelease.
func NextRelease(n int64) int64 { return min(n, MaxRelease-1) + 1 }

// restartedAt is the annotation of a template that kubectl rollout restart sets.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// RestartsOnly reports whether two templates differ, and only in what kubectl rollout restart sets. It
// does not change them.
func RestartsOnly(before, after map[string]any) bool {
	was, is := Version(before), Version(after)
	return was != is && Version(withoutRestart(before)) == Version(withoutRestart(after))
}

func withoutRestart(template map[string]any) map[string]any {
	metadata, _ := template["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	if _, ok := annotations[restartedAt]; !ok {
		return template
	}
	template, metadata, annotations = maps.Clone(template), maps.Clone(metadata), maps.Clone(annotations)
	delete(annotations, restartedAt)
	metadata["annotations"] = annotations
	if len(annotations) == 0 {
		delete(metadata, "annotations")
	}
	template["metadata"] = metadata
	return template
}
