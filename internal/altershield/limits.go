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

package altershield

import (
	"encoding/json"
	"unicode/utf8"
)

// The server's limits in UTF-8 bytes. Callers keep them, and the simulator refuses a request over a limit.
const (
	MaxChangeSceneKey = 256
	MaxBizExecOrderID = 128
	MaxPlatform       = 32
	MaxChangeTitle    = 256
	MaxExecutor       = 128

	// MaxMsg bounds the message of an end. The server validates 16,384 bytes, but its
	// database column holds 4,048 characters. With a longer message the server accepts the
	// end, cannot start the POST check, and passes the check at its timeout.
	MaxMsg = 4048

	// MaxJSON bounds each JSON value that the server keeps in one column: parameters,
	// results, targets, extensions. A longer value ends as an unexpected exception each time.
	MaxJSON = 65535

	// MaxUser bounds the creator and the executor of an order. The server validates 128
	// bytes, but its database column holds 56, and a longer value ends as an unexpected
	// exception.
	MaxUser = 56
)

// CutUser cuts the name of a creator or executor to [MaxUser] bytes, never within a
// character.
func CutUser(name string) string { return Cut(name, MaxUser) }

// Cut returns the longest prefix of s of at most limit bytes that ends with a
// whole character.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	end := max(limit, 0)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Fit returns the longest prefix of a list that takes at most limit bytes as JSON.
func Fit[T any](list []T, limit int) []T {
	size := len("[]")
	for i := range list {
		data, err := json.Marshal(list[i])
		if size += len(data) + len(","); err != nil || size > limit {
			return list[:i]
		}
	}
	return list
}
