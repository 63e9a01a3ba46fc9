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

package defense

import "time"

// Refusal is what the controller of a workload says of a pod that it cannot make, at first
// and at last.
type Refusal struct {
	First, Last time.Time
	Message     string
}

// lackingSettle is how long pods are not there before somebody is asked why: a pod that is
// replaced is not there for a moment.
const lackingSettle = 10 * time.Second

// AskAfter is how long until it is worth while to ask why they are not there; 0 when it
// is.
func (l *Lacking) AskAfter(now time.Time) time.Duration {
	return max(l.Since.Add(lackingSettle).Sub(now), 0)
}

// longestBackOff is for how long the controllers of Kubernetes do not try again at most.
const longestBackOff = 17 * time.Minute

// RefusedBy is what these refusals say of pods that are not there. One that is older
// than the newest pod is over: a pod was made since. So is one that was not said again
// for so long that it would have been. nil when none counts.
func (l *Lacking) RefusedBy(refusals []Refusal, now time.Time) *NotMade {
	var last *Refusal
	var since time.Time
	for i := range refusals {
		r := &refusals[i]
		if r.Last.Before(l.Since) || now.Sub(r.Last) > longestBackOff {
			continue
		}
		if since.IsZero() || r.First.Before(since) {
			since = r.First
		}
		if last == nil || r.Last.After(last.Last) {
			last = r
		}
	}
	if last == nil {
		return nil
	}
	return &NotMade{Count: l.Count, Since: latest(latest(since, l.Since), l.Seen), Message: last.Message}
}

// untilAsked is how long until it is asked again why pods of a workload are not there; 0
// when none is lacking.
func untilAsked(w *Workload, now time.Time) time.Duration {
	if w.Lacking == nil {
		return 0
	}
	if after := w.Lacking.AskAfter(now); after > 0 {
		return after
	}
	return lookAgain
}
