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

package network

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadBody(t *testing.T) {
	const largest = 256 << 10
	for _, size := range []int{0, 1, 4<<10 - 1, 4 << 10, 4<<10 + 1, 100_000, largest} {
		for _, length := range []int{0, 1, size, largest} {
			want := strings.Repeat("0123456789abcdef", size/16+1)[:size]
			for name, from := range map[string]io.Reader{
				"at once":       strings.NewReader(want),
				"by halves":     iotest.HalfReader(strings.NewReader(want)),
				"end with data": iotest.DataErrReader(strings.NewReader(want)),
			} {
				got, err := readBody(nil, from, length)
				if err != nil || string(got) != want {
					t.Errorf("%s, %d bytes as %d: %d bytes, %v", name, size, length, len(got), err)
				}
				if length == size && cap(got) > size+1 {
					t.Errorf("%s, %d bytes take %d", name, size, cap(got))
				}
			}
		}
	}
	slow := iotest.TimeoutReader(strings.NewReader(strings.Repeat("x", 10_000)))
	if got, err := readBody(nil, slow, 10_000); got != nil || !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("%d bytes, %v, want the error", len(got), err)
	}
}
