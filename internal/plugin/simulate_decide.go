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
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Simulation is what a policy would have decided about past releases: the output of simulate -o json.
type Simulation struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata    `json:"metadata"`
	Since           metav1.Time `json:"since"`
	// Releases, the newest first. There are More than these.
	Releases []SimulatedRelease `json:"releases"`
	More     int                `json:"more,omitempty"`
	Summary  SimulationSummary  `json:"summary"`
	// Missing are sentences about what is not simulated.
	Missing []string `json:"missing,omitempty"`
}

// SimulatedRelease is a past release with the result that a policy would have had.
type SimulatedRelease struct {
	// Workload as kind/name.
	Workload string `json:"workload"`
	// Revision is the number of the release in the cluster; 0 if unknown.
	Revision int64  `json:"revision,omitempty"`
	Version  string `json:"version"`
	// Began is null if unknown.
	Began metav1.Time `json:"began"`
	// Outcome in fact; Bad for all but a healthy release.
	Outcome string `json:"outcome"`
	Bad     bool   `json:"bad"`
	// Verdict of the policy, by Check, with its Message.
	Verdict SimulatedVerdict `json:"verdict"`
	Check   string           `json:"check,omitempty"`
	Message string           `json:"message,omitempty"`
	// AfterSeconds is the time from the start of the release to a failure, HeldSeconds the time from the first Ready pod to the verdict on it.
	AfterSeconds int64          `json:"afterSeconds,omitempty"`
	HeldSeconds  int64          `json:"heldSeconds,omitempty"`
	Class        SimulatedClass `json:"class"`
}

// SimulatedVerdict is what a policy would have decided.
type SimulatedVerdict string

// Verdicts.
const (
	SimulatedFailed    SimulatedVerdict = "Failed"
	SimulatedPassed    SimulatedVerdict = "Passed"
	SimulatedNotJudged SimulatedVerdict = "NotJudged"
)

// SimulatedClass compares a verdict with the outcome.
type SimulatedClass string

// Classes.
const (
	// ClassTrue: bad, and failed in time. ClassLate: failed only after it was replaced.
	ClassTrue SimulatedClass = "True"
	ClassLate SimulatedClass = "Late"
	// ClassFalse: healthy, and failed. ClassMissed: bad, and passed. ClassOK: healthy, and passed.
	ClassFalse  SimulatedClass = "False"
	ClassMissed SimulatedClass = "Missed"
	ClassOK     SimulatedClass = "OK"
	ClassNone   SimulatedClass = "NotJudged"
)

// SimulationSummary counts releases by class.
type SimulationSummary struct {
	Releases  int `json:"releases"`
	True      int `json:"true"`
	Late      int `json:"late"`
	False     int `json:"false"`
	Missed    int `json:"missed"`
	OK        int `json:"ok"`
	NotJudged int `json:"notJudged"`
	// HeldSeconds is the time that a hold of the first pods would have cost all releases, and MedianHeldSeconds each.
	HeldSeconds       int64 `json:"heldSeconds"`
	MedianHeldSeconds int64 `json:"medianHeldSeconds"`
}

// replacedSoon is the time within which a bad release is replaced.
const replacedSoon = 30 * time.Minute

// outcomeOf returns how a release ended in fact. next is nil for the current release.
func outcomeOf(r, next *occurrence) (outcome string, bad bool) {
	switch {
	case next != nil && next.again:
		return "rolled back", true
	case r.status == v1alpha1.ChangeWorkloadRollback:
		return "rolled back", true
	case next != nil && !next.began.IsZero() && next.began.Sub(r.began) <= replacedSoon:
		return "replaced in " + age(next.began.Sub(r.began)), true
	case r.status == v1alpha1.ChangeWorkloadSuspend:
		return "failed", true
	case next == nil:
		return "runs", false
	default:
		return "ran", false
	}
}

// classOf compares a verdict with the outcome. decided is the time of the verdict, ended the end of the release; zero if unknown.
func classOf(verdict SimulatedVerdict, bad bool, decided, ended time.Time) SimulatedClass {
	tooLate := !ended.IsZero() && decided.After(ended)
	switch {
	case verdict == SimulatedNotJudged, verdict == SimulatedPassed && tooLate:
		return ClassNone
	case verdict == SimulatedFailed && !bad:
		return ClassFalse
	case verdict == SimulatedFailed && tooLate:
		return ClassLate
	case verdict == SimulatedFailed:
		return ClassTrue
	case bad:
		return ClassMissed
	default:
		return ClassOK
	}
}

// summaryOfSimulation counts releases.
func summaryOfSimulation(releases []SimulatedRelease) SimulationSummary {
	s := SimulationSummary{Releases: len(releases)}
	var held []int64
	for i := range releases {
		r := &releases[i]
		*map[SimulatedClass]*int{
			ClassTrue: &s.True, ClassLate: &s.Late, ClassFalse: &s.False, ClassMissed: &s.Missed, ClassOK: &s.OK, ClassNone: &s.NotJudged,
		}[r.Class]++
		if r.HeldSeconds > 0 {
			held = append(held, r.HeldSeconds)
			s.HeldSeconds += r.HeldSeconds
		}
	}
	if len(held) > 0 {
		slices.Sort(held)
		s.MedianHeldSeconds = held[(len(held)-1)/2]
	}
	return s
}

// simulation prints what a policy would have decided.
func (st style) simulation(w io.Writer, s *Simulation) {
	rows := [][]string{{st.noMark() + "RELEASE", "BEGAN (UTC)", "IN FACT", "POLICY", "AFTER", "RESULT"}}
	var reasons [][2]string
	for i := range s.Releases {
		r := &s.Releases[i]
		m := map[SimulatedClass]mark{ClassFalse: markBad, ClassMissed: markBad, ClassLate: markWaits, ClassNone: markPlain}[r.Class]
		if m.symbol == "" {
			m = markGood
		}
		name, began, after := r.Workload, "unknown", ""
		if !r.Began.IsZero() {
			began = r.Began.UTC().Format("01-02 15:04")
		}
		if r.Revision > 0 {
			name += fmt.Sprintf(" %d", r.Revision)
		}
		verdict, class := strings.ToLower(string(r.Verdict)), strings.ToLower(string(r.Class))
		switch r.Verdict {
		case SimulatedFailed:
			after = age(time.Duration(r.AfterSeconds) * time.Second)
		case SimulatedNotJudged:
			verdict, class = "not judged", ""
		case SimulatedPassed:
		}
		if r.Message != "" && (r.Verdict != SimulatedPassed || st.wide || r.Class == ClassMissed) {
			reasons = append(reasons, [2]string{m.of(st, name), strings.TrimPrefix(r.Check+": ", ": ") + r.Message})
		}
		rows = append(rows, []string{m.of(st, name), began, r.Outcome, verdict, after, class})
	}
	if len(s.Releases) == 0 {
		printf(w, "There is no release that the policy selects since %s.\n", s.Since.UTC().Format(time.RFC3339))
	} else {
		st.table(w, rows)
	}
	for i, reason := range reasons {
		if i == 0 {
			printf(w, "\n")
		}
		st.paragraph(w, "", reason[0]+": "+reason[1])
	}
	of := s.Summary
	if of.Releases > 0 {
		printf(w, "\n")
		st.paragraph(w, "", fmt.Sprintf("%s: %d true, %d late, %d false, %d missed, %d ok, %d not judged.",
			count(of.Releases, "release"), of.True, of.Late, of.False, of.Missed, of.OK, of.NotJudged))
	}
	if of.HeldSeconds > 0 {
		st.paragraph(w, "", fmt.Sprintf("A hold of the first pods would have cost %s in all, %s a release (median).",
			age(time.Duration(of.HeldSeconds)*time.Second), age(time.Duration(of.MedianHeldSeconds)*time.Second)))
	}
	if s.More > 0 {
		st.paragraph(w, "", fmt.Sprintf("%d older releases are not simulated: at most %d are.", s.More, maxSimulated))
	}
	for _, missing := range s.Missing {
		st.paragraph(w, "", markPlain.of(st, missing))
	}
}

// newestOccurrence sorts releases, the newest first.
func newestOccurrence(a, b past) int {
	return cmp.Or(b.from().Compare(a.from()), strings.Compare(a.workload.Name, b.workload.Name))
}
