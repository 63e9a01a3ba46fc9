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

package plugin

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Needs says who has to act on a finding.
type Needs string

// Values of Needs, the most pressing first.
const (
	// NeedsAttention: a person has to act.
	NeedsAttention Needs = "Attention"
	// NeedsTime: it continues without help.
	NeedsTime Needs = "Time"
	// NeedsNothing: no action is needed.
	NeedsNothing Needs = "Nothing"
	// NeedsNoWord: all is well.
	NeedsNoWord Needs = "Fine"
)

// Finding is one fact about a workload, with next steps.
type Finding struct {
	// Code is one word, for programs. A code may be new in any version.
	Code string `json:"code"`
	// Needs is Attention (a person has to act), Time (it continues without help), Nothing or Fine.
	Needs Needs `json:"needs"`
	// The word for it in a list.
	What string `json:"what"`
	// Says is a sentence, and Details are messages of the operator.
	Says    string   `json:"says"`
	Details []string `json:"details,omitempty"`
	// Since is the time at which it began.
	Since *metav1.Time `json:"since,omitempty"`
	// ReleasedBy is the user of the release.
	ReleasedBy string `json:"releasedBy,omitempty"`
	// Do are the next steps, the most likely one first.
	Do []Advice `json:"do,omitempty"`
}

// Advice is a command to type.
type Advice struct {
	Command string `json:"command"`
	// Does says what the command does, and when it is right.
	Does string `json:"does"`
}

func (n Needs) rank() int {
	return slices.Index([]Needs{NeedsAttention, NeedsTime, NeedsNothing, NeedsNoWord}, n)
}

// pressing reports whether a person or time is needed.
func (f *Finding) pressing() bool { return f.Needs == NeedsAttention || f.Needs == NeedsTime }

// finder collects the findings about one workload. Each file has the findings of one subject.
type finder struct {
	*snapshot
	advisor
	all []Finding
	// covered are conditions of the current release that another finding reports.
	covered []string
}

func (f *finder) add(found Finding) { f.all = append(f.all, found) }

// cover notes conditions that another finding reports.
func (f *finder) cover(kinds ...string) { f.covered = append(f.covered, kinds...) }

// maxPodsNamed is how many pods a finding names.
const maxPodsNamed = 3

// markOf returns the mark of a finding.
func markOf(n Needs) mark {
	switch n {
	case NeedsAttention:
		return markBad
	case NeedsTime:
		return markWaits
	case NeedsNothing:
		return markPlain
	default:
		return markGood
	}
}
