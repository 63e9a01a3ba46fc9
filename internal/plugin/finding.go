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

// Needs is who has to do something about a finding.
type Needs string

// Values of Needs, the most pressing first.
const (
	// NeedsAttention: it stays so until a person does something.
	NeedsAttention Needs = "Attention"
	// NeedsTime: it goes on by itself.
	NeedsTime Needs = "Time"
	// NeedsNothing: it is good to know.
	NeedsNothing Needs = "Nothing"
	// NeedsNoWord: all is as it should be.
	NeedsNoWord Needs = "Fine"
)

// Finding is one fact about a workload, with next steps.
type Finding struct {
	// Code is one word, for programs. A code may be new in any version.
	Code string `json:"code"`
	// Needs is who has to do something: Attention (a person), Time (nobody, it goes on), Nothing or Fine.
	Needs Needs `json:"needs"`
	// What is the word for it in a list.
	What string `json:"what"`
	// Says is a sentence. Details are what the operator says.
	Says    string   `json:"says"`
	Details []string `json:"details,omitempty"`
	// Since is since when it is so.
	Since *metav1.Time `json:"since,omitempty"`
	// ReleasedBy is the user whose release it is about.
	ReleasedBy string `json:"releasedBy,omitempty"`
	// Do are next steps, the one that is right most often first.
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

// finder collects the findings about one workload. Findings are many: each file has those of one matter.
type finder struct {
	*snapshot
	advisor
	all []Finding
	// told are the conditions of the current release that a finding has told of.
	told []string
}

func (f *finder) add(found Finding) { f.all = append(f.all, found) }

// tell notes conditions that a finding tells of.
func (f *finder) tell(kinds ...string) { f.told = append(f.told, kinds...) }

// maxPodsNamed is how many pods a finding names.
const maxPodsNamed = 3

// markOf is the mark of what a person, or time, has to do.
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
