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

package judge

import (
	"fmt"
	"strconv"
	"time"
)

// odds is the end of a sentence.
func odds(of float64) string {
	switch {
	case of >= maxOdds:
		return "; odds of less than 1 : " + grouped(maxOdds) + " that chance does that"
	case of >= 10:
		return "; odds 1 : " + grouped(of) + " that chance does that"
	default:
		return ""
	}
}

// grouped writes a whole number with commas.
func grouped(n float64) string {
	digits := strconv.FormatFloat(n, 'f', 0, 64)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

// Lasting writes the duration of some slices.
func Lasting(n int, slice time.Duration) string {
	d := time.Duration(n) * slice
	if d%time.Minute == 0 {
		return counted(int(d/time.Minute), "minute")
	}
	return d.String()
}

// counted writes a number of things.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
