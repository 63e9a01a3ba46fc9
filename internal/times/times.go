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

// Package times computes with times. It reads no clock.
package times

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Format returns a time as the API shows it to people.
func Format(t time.Time) string { return t.Format(layout) }

// layout is the format of times for people; the field next to each has the exact Unix time.
const layout = "2006-01-02 15:04:05"

// Shortest returns the shorter of two waits; 0 is no wait.
func Shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Latest returns the later of two times.
func Latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// FromUnix returns a Unix time in seconds; the zero time for 0.
func FromUnix(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

// Of returns a time as the API stores it; nil for the zero time.
func Of(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	kept := metav1.NewTime(t.Truncate(time.Second))
	return &kept
}

// OrZero returns a time of the API; the zero time for nil.
func OrZero(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// UTC returns a time for a message, in RFC 3339.
func UTC(t time.Time) string { return t.UTC().Format(time.RFC3339) }
