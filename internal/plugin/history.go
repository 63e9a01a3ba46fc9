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
	"unicode/utf8"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// History is what is known of the releases of a workload: the output of history -o json.
type History struct {
	// Kind, Namespace and Name of the workload.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Releases are the newest first.
	Releases []PastRelease `json:"releases"`
	// Versions are those that it can be rolled back to, the newest first.
	Versions []PastVersion `json:"versions"`
	// Missing says what is not told, because the user must not read it.
	Missing []string `json:"missing,omitempty"`
}

// PastRelease is a release.
type PastRelease struct {
	Number  int64    `json:"number"`
	Version string   `json:"version"`
	Images  []string `json:"images,omitempty"`
	// Current: the workload is at it.
	Current bool `json:"current,omitempty"`
	// State it is in, or was in last; Started and Changed say since when.
	State   string       `json:"state"`
	Started *metav1.Time `json:"started,omitempty"`
	Changed *metav1.Time `json:"changed,omitempty"`
	// ReleasedBy is who released it; OverriddenBy who passed a block or a quarantine with
	// it.
	ReleasedBy   string `json:"releasedBy,omitempty"`
	OverriddenBy string `json:"overriddenBy,omitempty"`
	// FailedPod is the first pod that failed, Message why it failed or was rolled back.
	FailedPod string `json:"failedPod,omitempty"`
	Message   string `json:"message,omitempty"`
	// OptedOutBy is who took the workload out of the defense at this release while its
	// releases were denied.
	OptedOutBy string `json:"optedOutBy,omitempty"`
	// CorrectedBy are the field managers that corrected failing verdicts of it.
	CorrectedBy []string `json:"correctedBy,omitempty"`
}

// PastVersion is a version that succeeded, or that was there before the first release
// defended.
type PastVersion struct {
	Version string   `json:"version"`
	Images  []string `json:"images,omitempty"`
	// Release is the number of the last release that succeeded with it; 0 for the
	// baseline.
	Release int64 `json:"release"`
	// Remembered is since when.
	Remembered *metav1.Time `json:"remembered,omitempty"`
	// Proven: it has run well for long enough since.
	Proven bool `json:"proven"`
	// Current: the workload runs it. Quarantined: it is denied. Next: a rollback that
	// names no version goes to it.
	Current     bool `json:"current,omitempty"`
	Quarantined bool `json:"quarantined,omitempty"`
	Next        bool `json:"next,omitempty"`
}

const historyLong = `
Show the releases of a workload, the newest first: who released what and when, how it
ended, and why. The operator keeps the last ten before the present one. Below them are the
versions that the workload can be rolled back to.`

func newHistoryCommand(c *connection) *cobra.Command {
	a := &asked{c: c}
	cmd := &cobra.Command{
		Use:     "history " + usageOfTarget,
		Short:   "Show the releases of a workload, and what it can be rolled back to",
		Long:    strings.TrimSpace(historyLong),
		Example: "  kubectl altershield history deployment/sleep\n  kubectl altershield history sleep -n shop -o json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.one(cmd.Context(), args, a.printHistory)
		},
	}
	a.addFlags(cmd.Flags())
	return cmd
}

func (a *asked) printHistory(w io.Writer, s *sight, t target, now time.Time) error {
	h := historyOf(s, now)
	if structured(a.output) {
		return printStructured(w, a.output, h)
	}
	(&historyPrinter{style: a.style, now: now, wide: a.output == formatWide, rollback: a.advisor(t).plugin("rollback", t.String())}).print(w, h)
	return nil
}

// historyOf tells of the releases of a workload.
func historyOf(s *sight, now time.Time) *History {
	w := s.workload
	h := &History{Kind: w.GVK.Kind, Namespace: w.Namespace, Name: w.Name, Releases: []PastRelease{}, Versions: []PastVersion{}, Missing: s.missing}
	known := map[int64]v1alpha1.PreviousRelease{}
	// What a newer record says of earlier releases is newer, and what a record says of
	// itself is the newest.
	for i := len(s.changes) - 1; i >= 0; i-- {
		for _, p := range s.changes[i].Status.PreviousReleases {
			known[p.Release] = p
		}
	}
	for i := range s.changes {
		p := defense.PreviousOf(&s.changes[i])
		p.Release = cmp.Or(p.Release, s.changes[i].Spec.Release)
		p.StartTimeUnix = cmp.Or(p.StartTimeUnix, s.changes[i].Spec.CreateTimeUnix)
		known[p.Release] = p
	}
	current := s.current()
	for _, p := range known {
		past := pastRelease(&p)
		past.Current = current != nil && p.Version == current.Spec.Reversion && p.Release == current.Spec.Release
		if past.Current {
			past.Images = w.Images
			past.ReleasedBy = cmp.Or(past.ReleasedBy, w.ReleasedBy())
		}
		if past.Images == nil {
			past.Images = s.imagesOf(p.Version)
		}
		h.Releases = append(h.Releases, past)
	}
	slices.SortFunc(h.Releases, func(a, b PastRelease) int { return cmp.Compare(b.Number, a.Number) })
	h.Versions = append(h.Versions, s.versions(now)...)
	return h
}

// imagesOf are those of a version in the history; nil where they are not known.
func (s *sight) imagesOf(version string) []string {
	for _, r := range s.history {
		if r.Version == version {
			return r.images
		}
	}
	return nil
}

func pastRelease(p *v1alpha1.PreviousRelease) PastRelease {
	past := PastRelease{
		Number: p.Release, Version: p.Version, Images: p.Images, State: stateOf(p.Status),
		Started: unixTime(p.StartTimeUnix), Changed: unixTime(p.UpdateTimeUnix),
		ReleasedBy: p.ReleasedBy, OverriddenBy: p.OverriddenBy, Message: p.Message,
	}
	if p.FailedPod != nil {
		past.FailedPod = p.FailedPod.Pod
		past.Message = cmp.Or(past.Message, strings.Trim(p.FailedPod.Verdict+": "+p.FailedPod.Message, ": "))
	}
	if p.OptedOut != nil {
		past.OptedOutBy = p.OptedOut.User
	}
	for _, c := range p.Corrections {
		if by := cmp.Or(c.FieldManager, defense.UnknownUser); !slices.Contains(past.CorrectedBy, by) {
			past.CorrectedBy = append(past.CorrectedBy, by)
		}
	}
	return past
}

// versions are those that the workload can be rolled back to.
func (s *sight) versions(now time.Time) []PastVersion {
	q := defense.ParseQuarantine(s.workload.Annotations, now)
	next := (&finder{sight: s, now: now}).goodVersion()
	var versions []PastVersion
	for i := range s.history {
		r := &s.history[i]
		versions = append(versions, PastVersion{
			Version: r.Version, Images: r.images, Release: r.Release, Remembered: timeOf(r.since), Proven: !r.Unproven,
			Current: r.Version == s.workload.RecordedVersion(), Quarantined: q.Holds(r.Version), Next: next != nil && next.Version == r.Version,
		})
	}
	return versions
}

// historyPrinter prints a history.
type historyPrinter struct {
	style
	now      time.Time
	wide     bool
	rollback string
}

func (p *historyPrinter) print(w io.Writer, h *History) {
	printf(w, "%s in %s\n\n", p.bold(strings.ToLower(h.Kind)+"/"+h.Name), h.Namespace)
	if len(h.Releases) == 0 {
		printf(w, "There is no recorded release.\n")
	} else {
		p.releases(w, h)
	}
	printf(w, "\n")
	if len(h.Versions) == 0 {
		printf(w, "There is no version that it can be rolled back to.\n")
	} else {
		p.versions(w, h)
	}
	for _, missing := range h.Missing {
		printf(w, "%s\n", markPlain.of(p.style, missing))
	}
}

func (p *historyPrinter) releases(w io.Writer, h *History) {
	rows := [][]string{{"RELEASE", "STATE", "STARTED", "BY", "IMAGES", "VERSION", "WHY"}}
	marks := []mark{markPlain}
	for i := range h.Releases {
		r := &h.Releases[i]
		number := fmt.Sprint(r.Number)
		if r.Current {
			number += " (now)"
		}
		started := ""
		if r.Started != nil {
			started = age(p.now.Sub(r.Started.Time)) + " ago"
		}
		rows = append(rows, []string{number, r.State, started, p.who(r.ReleasedBy), strings.Join(r.Images, ","), r.Version, p.why(r)})
		marks = append(marks, markOfState(r.State))
	}
	p.table(w, rows, marks)
}

func (p *historyPrinter) why(r *PastRelease) string {
	var parts []string
	if r.Message != "" {
		message := r.Message
		if utf8.RuneCountInString(message) > maxWhy && !p.wide {
			message = string([]rune(message)[:maxWhy]) + p.dots()
		}
		parts = append(parts, message)
	}
	if r.OverriddenBy != "" {
		parts = append(parts, p.who(r.OverriddenBy)+" passed a block or a quarantine with it")
	}
	if r.OptedOutBy != "" {
		parts = append(parts, r.OptedOutBy+" opted the workload out")
	}
	if len(r.CorrectedBy) > 0 {
		parts = append(parts, "verdicts corrected by field manager "+strings.Join(r.CorrectedBy, ", "))
	}
	return strings.Join(parts, "; ")
}

func (p *historyPrinter) versions(w io.Writer, h *History) {
	printf(w, "It can be rolled back to:\n")
	rows := [][]string{{"VERSION", "RELEASE", "IMAGES", "REMEMBERED", "STATE"}}
	marks := []mark{markPlain}
	for i := range h.Versions {
		v := &h.Versions[i]
		m, state := markGood, "proven"
		if !v.Proven {
			state = "not proven yet"
		}
		release := fmt.Sprint(v.Release)
		if v.Release == defense.BaselineRelease {
			release, state = "before the first", state+", baseline"
		}
		if v.Quarantined {
			m, state = markBad, state+", in quarantine"
		}
		if v.Current {
			m, state = markPlain, state+", runs now"
		}
		if v.Next {
			state += ", goes there: " + p.rollback
		}
		remembered := ""
		if v.Remembered != nil {
			remembered = age(p.now.Sub(v.Remembered.Time)) + " ago"
		}
		rows = append(rows, []string{v.Version, release, strings.Join(v.Images, ","), remembered, state})
		marks = append(marks, m)
	}
	p.table(w, rows, marks)
}
