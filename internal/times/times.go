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

// Package times has what decisions need of times. It reads no clock.
package times

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Format writes a time as the kinds show it to people.
func Format(t time.Time) string { return t.Format(layout) }

// layout is how times for people are written; the Unix time beside each is
// exact.
const layout = "2006-01-02 15:04:05"

// Shortest is the shorter of two times to wait; 0 is not to.
func Shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Latest is the later of two times.
func Latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// FromUnix is a time in seconds; none for 0.
func FromUnix(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// Of is a time as the API keeps it.
func Of(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	kept := metav1.NewTime(t.Truncate(time.Second))
	return &kept
}

// OrZero is a time of the API; the zero time for none.
func OrZero(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// UTC is a time in a message, in full.
func UTC(t time.Time) string { return t.UTC().Format(time.RFC3339) }
