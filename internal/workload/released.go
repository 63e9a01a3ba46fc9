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
	"strconv"
)

// UnknownUser stands for a user that admission did not see.
const UnknownUser = "unknown"

// MaxUser bounds a user name in an annotation, in bytes.
const MaxUser = 256

// MaxRelease bounds the number of a release: every reader of JSON knows it exactly,
// and no workload comes near it by being released.
const MaxRelease int64 = 1<<53 - 1

// ParseRelease reads the value of ReleaseAnnotation: 0 when it is no positive
// number, and MaxRelease when it is a larger one.
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

// NextRelease is the number of the release after this one; it stays at MaxRelease.
func NextRelease(n int64) int64 { return min(n, MaxRelease-1) + 1 }
