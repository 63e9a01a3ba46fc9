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
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// History is what is known of the releases of a workload: the output of history -o json.
type History struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata names the workload.
	Metadata Metadata `json:"metadata"`
	// Releases, the newest first.
	Releases []PastRelease `json:"releases"`
	// Versions that it can be rolled back to, the newest first.
	Versions []PastVersion `json:"versions"`
	// Missing are sentences about what the user may not read.
	Missing []string `json:"missing,omitempty"`
}

// PastRelease is a release as the operator keeps it.
type PastRelease struct {
	v1alpha1.PreviousRelease `json:",inline"`
	// Current: the workload is at it.
	Current bool `json:"current,omitempty"`
	// Because says why it failed, was rolled back, passed a block, or was corrected.
	Because string `json:"because,omitempty"`
}

// PastVersion is a version that succeeded, or a baseline.
type PastVersion struct {
	Version string   `json:"version"`
	Images  []string `json:"images,omitempty"`
	// Release is the number of the last release that succeeded with it; 0 for the baseline.
	Release    int64        `json:"release"`
	Remembered *metav1.Time `json:"remembered,omitempty"`
	// Proven: it has run well for long enough.
	Proven bool `json:"proven"`
	// Current: the workload runs it. Quarantined: its release is denied. Next: a rollback without a version restores it.
	Current     bool `json:"current,omitempty"`
	Quarantined bool `json:"quarantined,omitempty"`
	Next        bool `json:"next,omitempty"`
}

func historyCommand(c *connection) *cobra.Command {
	var since string
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "history [" + usageOfTarget + "]",
		Short: "Show the releases of a workload, or how well releases of namespaces went",
		Long: strings.TrimSpace(`
Show the releases of a workload, the newest first: user, time, images, result and reason.
The operator keeps the current release and the last ten before it. Below them are the
versions that the workload can be rolled back to.

Without a name, count the releases of the namespace or, with -A, of each namespace since a
time: releases, failures, rollbacks, and the mean time from a failure to the next success.
Three of the four DORA metrics follow. The fourth, the lead time of a change, is not known
in a cluster. WOULD counts releases that enforce mode would have stopped. -o wide lists
failed releases, with the acts that observe mode prevented.`),
		Example: "  kubectl altershield history deployment/sleep\n  kubectl altershield history sleep -n shop -o json\n" +
			"  kubectl altershield history --since 30d -A -o wide",
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: c.completeWorkloads,
	}
	a := newReading(c, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return a.delivery(cmd.Context(), since, everywhere)
		case everywhere || cmd.Flags().Changed("since"):
			return remedy(errors.New("--since and -A are about namespaces"), "omit them, or omit the name of the workload")
		}
		return a.one(cmd.Context(), args, a.printHistory)
	}
	cmd.Flags().StringVar(&since, "since", "30d", "Without a name: count releases of this `time`, as in 12h or 30d")
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "Without a name: of all namespaces")
	return cmd
}

func (a *reading) printHistory(w io.Writer, s *snapshot) error {
	h := historyOf(s)
	if a.printer != nil {
		return printObject(w, a.printer, h)
	}
	a.style.history(w, h, a.command(s.target, "rollback"), s.now)
	return nil
}

// historyOf returns what is known of the releases of a workload.
func historyOf(s *snapshot) *History {
	w, current := s.workload, s.current()
	h := &History{Metadata: Metadata{w.Namespace, w.Name}, Releases: []PastRelease{}, Versions: []PastVersion{}, Missing: s.missing}
	h.APIVersion, h.Kind = w.GVK.ToAPIVersionAndKind()
	for _, p := range releasesIn(s.changes) {
		past := PastRelease{PreviousRelease: p, Because: because(&p)}
		past.Current = current != nil && p.Version == current.Spec.Reversion && p.Release == current.Spec.Release
		if past.Current {
			past.Images, past.ReleasedBy = w.Images, cmp.Or(past.ReleasedBy, w.ReleasedBy())
		}
		for i := range s.history {
			if past.Images == nil && s.history[i].Version == p.Version {
				past.Images = s.history[i].images
			}
		}
		h.Releases = append(h.Releases, past)
	}
	q, next := rollback.ParseQuarantine(w.Annotations, s.now), s.goodVersion()
	for i := range s.history {
		r := &s.history[i]
		h.Versions = append(h.Versions, PastVersion{
			Version: r.Version, Images: r.images, Release: r.Release, Remembered: timeOf(r.since), Proven: !r.Unproven,
			Current: r.Version == w.RecordedVersion(), Quarantined: q.Holds(r.Version), Next: r == next,
		})
	}
	return h
}

// releasesIn returns the releases of a workload that its records know, the newest first. The records are sorted likewise.
func releasesIn(changes []v1alpha1.ChangeWorkload) []v1alpha1.PreviousRelease {
	known := map[int64]v1alpha1.PreviousRelease{}
	// A newer record knows more of earlier releases than an older one, and a record knows most of its own release.
	for i := len(changes) - 1; i >= 0; i-- {
		for _, p := range changes[i].Status.PreviousReleases {
			known[p.Release] = p
		}
	}
	for i := range changes {
		p := defense.PreviousOf(&changes[i])
		p.Release = cmp.Or(p.Release, changes[i].Spec.Release)
		p.StartTimeUnix = cmp.Or(p.StartTimeUnix, changes[i].Spec.CreateTimeUnix)
		known[p.Release] = p
	}
	return slices.SortedFunc(maps.Values(known), func(a, b v1alpha1.PreviousRelease) int { return cmp.Compare(b.Release, a.Release) })
}

// because returns why a release was made, and how it ended.
func because(p *v1alpha1.PreviousRelease) string {
	var parts []string
	if p.Message != "" {
		parts = append(parts, p.Message)
	} else if p.FailedPod != nil {
		parts = append(parts, strings.Trim(p.FailedPod.Verdict+": "+p.FailedPod.Message, ": "))
	}
	if p.OverriddenBy != "" {
		parts = append(parts, p.OverriddenBy+" passed a block or a quarantine with it")
	}
	if p.OptedOut != nil {
		parts = append(parts, p.OptedOut.User+" opted the workload out")
	}
	var corrected []string
	for _, c := range p.Corrections {
		corrected = append(corrected, cmp.Or(c.FieldManager, workload.UnknownUser))
	}
	if len(corrected) > 0 {
		slices.Sort(corrected)
		parts = append(parts, "verdicts corrected by field manager "+strings.Join(slices.Compact(corrected), ", "))
	}
	return strings.Join(parts, "; ")
}

// history prints a history.
func (st style) history(w io.Writer, h *History, rollback string, now time.Time) {
	printf(w, "%s in %s\n\n", st.bold(argument(&h.TypeMeta)+"/"+h.Metadata.Name), h.Metadata.Namespace)
	rows := [][]string{{st.noMark() + "RELEASE", "STATE", "STARTED", "BY", "IMAGES", "VERSION", "WHY"}}
	for i := range h.Releases {
		r := &h.Releases[i]
		number, started := fmt.Sprint(r.Release), ""
		if r.Current {
			number += " (now)"
		}
		if at := unixTime(r.StartTimeUnix); at != nil {
			started = age(now.Sub(at.Time)) + " ago"
		}
		state := stateOf(r.Status)
		rows = append(rows, []string{
			markOfState(state).of(st, number), state, started, st.who(r.ReleasedBy), strings.Join(r.Images, ","),
			st.version(r.Version), r.Because,
		})
	}
	if len(h.Releases) == 0 {
		printf(w, "There is no recorded release.\n")
	} else {
		st.table(w, rows)
	}
	if len(h.Versions) == 0 {
		printf(w, "\nThere is no version that it can be rolled back to.\n")
	} else {
		printf(w, "\nIt can be rolled back to:\n")
		st.versions(w, h.Versions, rollback, now)
	}
	for _, missing := range h.Missing {
		st.paragraph(w, "", markPlain.of(st, missing))
	}
}

func (st style) versions(w io.Writer, versions []PastVersion, target string, now time.Time) {
	rows := [][]string{{st.noMark() + "VERSION", "RELEASE", "IMAGES", "REMEMBERED", "STATE"}}
	next := false
	for i := range versions {
		v := &versions[i]
		m, state, release, remembered := markGood, "proven", fmt.Sprint(v.Release), ""
		if !v.Proven {
			state = "not proven yet"
		}
		if v.Release == rollback.BaselineRelease {
			release, state = "before 1", state+", baseline"
		}
		if v.Quarantined {
			m, state = markBad, state+", in quarantine"
		}
		if v.Current {
			m, state = markPlain, state+", runs now"
		}
		if v.Next {
			next, state = true, "next; "+state
		}
		if v.Remembered != nil {
			remembered = age(now.Sub(v.Remembered.Time)) + " ago"
		}
		rows = append(rows, []string{m.of(st, st.version(v.Version)), release, strings.Join(v.Images, ","), remembered, state})
	}
	st.table(w, rows)
	if next {
		printf(w, "To go to the next one: %s\n", target)
	}
}
