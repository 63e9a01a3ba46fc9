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
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/xlab/treeprint"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// maxChildren is how many pods, and how many batches, of a release are printed without -o wide.
const maxChildren = 6

// tree prints one workload as a table whose first column is a tree.
type tree struct {
	style
	now   time.Time
	roots []treeprint.Tree
}

// status prints one workload: its releases with their revisions, batches, checks and pods, then its findings with next steps.
func (st style) status(w io.Writer, s *Status, now time.Time) {
	m := markOf(s.Needs)
	if m == markPlain && len(s.Releases) > 0 && stateOf(s.Releases[0].Status.Status) == s.Summary {
		m = markOfState(s.Summary)
	}
	printf(w, "%s\n\n", m.of(st, st.bold(argument(&s.TypeMeta)+"/"+s.Metadata.Name)+" in "+s.Metadata.Namespace+": "+s.Summary))
	if s.Defense != DefenseFull {
		printf(w, "Defense:  %s\n", s.DefenseMessage)
	}
	if !s.WithoutPods {
		printf(w, "Pods:     %d desired, %d updated, %d ready\n", s.Pods.Desired, s.Pods.Updated, s.Pods.Ready)
	}
	version := st.version(s.Version)
	if s.Release > 0 {
		version += ", release " + fmt.Sprint(s.Release) + " by " + st.who(s.ReleasedBy)
	}
	printf(w, "Version:  %s\n", version)
	if len(s.Images) > 0 {
		printf(w, "Images:   %s\n", strings.Join(s.Images, ", "))
	}
	t := &tree{style: st, now: now}
	current := currentRevision(s)
	for i := range s.Releases {
		c := &s.Releases[i]
		at := t.release(s, c, i == 0 || current != nil && current.Version == c.Spec.Reversion)
		if current != nil && current.Version == c.Spec.Reversion {
			t.pods(at, current)
			current = nil
		}
	}
	for i := range s.Revisions {
		if r := &s.Revisions[i]; !r.Current || r == current {
			t.pods(nil, r)
		}
	}
	if len(t.roots) > 0 {
		printf(w, "\n")
		t.print(w)
	}
	st.findings(w, s.Findings, now)
	for _, missing := range s.Missing {
		printf(w, "\n")
		st.paragraph(w, "", markPlain.of(st, missing))
	}
}

// currentRevision returns the revision that the workload is at; nil if unknown.
func currentRevision(s *Status) *Revision {
	if i := slices.IndexFunc(s.Revisions, func(r Revision) bool { return r.Current }); i >= 0 {
		return &s.Revisions[i]
	}
	return nil
}

// print prints the tree as a table.
func (t *tree) print(w io.Writer) {
	ascii := strings.NewReplacer("├", "|", "└", "`", "│", "|", "─", "-")
	rows := [][]string{{"NAME", t.noMark() + "STATE", "AGE", "INFO"}}
	for _, root := range t.roots {
		for _, line := range strings.Split(strings.TrimSpace(root.String()), "\n") {
			cells := strings.Split(strings.ReplaceAll(line, "\u00a0", " "), "\x00")
			if t.ascii {
				cells[0] = ascii.Replace(cells[0])
			}
			rows = append(rows, cells)
		}
	}
	t.table(w, rows)
}

// add adds a line below another one, or at the top. Cells are clean, so that they contain no separator.
func (t *tree) add(to treeprint.Tree, name string, m mark, state, age, info string) treeprint.Tree {
	cells := []string{name, m.of(t.style, state), age, info}
	for i := range cells {
		cells[i] = strings.ReplaceAll(clean(cells[i]), "\x1b", own)
	}
	line := strings.Join(cells, "\x00")
	if to == nil {
		t.roots = append(t.roots, treeprint.NewWithRoot(line))
		return t.roots[len(t.roots)-1]
	}
	return to.AddBranch(line)
}

// release adds a release and, if it is expanded, its checks and batches.
func (t *tree) release(of *Status, c *v1alpha1.ChangeWorkload, expanded bool) treeprint.Tree {
	s := &c.Status
	parts := []string{t.version(c.Spec.Reversion)}
	if s.ReleasedBy != "" {
		parts = append(parts, "by "+t.who(s.ReleasedBy))
	}
	if s.Attempt > 1 {
		parts = append(parts, fmt.Sprintf("attempt %d", s.Attempt))
	}
	if s.OverriddenBy != "" {
		parts = append(parts, "override by "+s.OverriddenBy)
	}
	state, since := stateOf(s.Status), unixTime(cmp.Or(s.UpdateTimeUnix, c.Spec.CreateTimeUnix))
	info := strings.Join(append(parts, s.Images...), ", ")
	at := t.add(nil, fmt.Sprintf("release %d", c.Spec.Release), markOfState(state), state, t.since(since), info)
	if t.wide {
		for i := range s.Conditions {
			c := &s.Conditions[i]
			t.add(at, c.Type, markPlain, string(c.Status), t.since(&c.LastTransitionTime), c.Reason+": "+c.Message)
		}
	}
	if !expanded && !t.wide {
		return at
	}
	if s.OrderURL != "" {
		t.add(at, "order", markPlain, string(s.OrderStage), "", s.OrderURL)
	}
	t.checks(at, s.Checks)
	t.batches(at, of, c)
	return at
}

// since returns an age; empty if the time is unknown.
func (t *tree) since(at *metav1.Time) string {
	if at == nil {
		return ""
	}
	return age(t.now.Sub(at.Time))
}

// checks adds the checks that have not passed.
func (t *tree) checks(to treeprint.Tree, checks []v1alpha1.CheckStatus) {
	for i := range checks {
		c := &checks[i]
		phase := cmp.Or(c.Phase, v1alpha1.CheckPending)
		m := markOfPhase(phase)
		if m == markGood && !t.wide {
			continue
		}
		info := strings.Trim(c.Reason+": "+c.Message, ": ")
		if m == markBad && !t.wide { // the findings below say why
			info = c.Reason
		}
		if c.Mode == v1alpha1.ModeObserve {
			info += " (in observe mode)"
		}
		if m == markWaits && c.Deadline != nil {
			info = strings.Trim("at most "+age(c.Deadline.Sub(t.now))+" more, "+info, ", ")
		}
		at := t.add(to, c.Name, m, string(phase), "", info)
		if t.wide && c.CallID != "" {
			t.add(at, "call", markPlain, "", "", c.CallID)
		}
		if t.wide && c.Query != "" {
			t.add(at, "query", markPlain, c.Value, "", strings.Join(strings.Fields(c.Query), " "))
			for _, series := range c.Samples {
				t.add(at, "series", markPlain, "", "", series)
			}
		}
	}
}

func markOfPhase(phase v1alpha1.CheckPhase) mark {
	switch phase {
	case v1alpha1.CheckFailed:
		return markBad
	case v1alpha1.CheckPassed, v1alpha1.CheckSkipped:
		return markGood
	case v1alpha1.CheckPending, v1alpha1.CheckRunning, v1alpha1.CheckWatching:
		return markWaits
	default: // without a verdict
		return markPlain
	}
}

// hasPassed reports whether a batch and all its checks passed.
func hasPassed(b *v1alpha1.ChangePod) bool {
	if b.Status.Status != v1alpha1.ChangePodExecuteDone || record.BatchFails(b) {
		return false
	}
	return !slices.ContainsFunc(b.Status.Checks, func(c v1alpha1.CheckStatus) bool {
		m := markOfPhase(c.Phase)
		return m == markBad || m == markPlain
	})
}

// batches adds the batches that have not passed, and counts the others.
func (t *tree) batches(to treeprint.Tree, of *Status, c *v1alpha1.ChangeWorkload) {
	passed, pods, shown, left := 0, 0, 0, 0
	if c.Status.Folded != nil {
		pods = int(c.Status.Folded.PassCount)
	}
	watching := map[string]int{}
	for _, b := range of.Batches {
		switch {
		case !isOwnedBy(b, c.UID):
		case hasPassed(b) && !t.wide:
			passed++
			pods += len(b.Spec.PodInfos)
			for _, c := range b.Status.Checks {
				if c.Phase == v1alpha1.CheckWatching && c.Deadline != nil && c.Deadline.After(t.now) {
					watching[c.Name]++
				}
			}
		case shown >= maxChildren && !t.wide:
			left++
		default:
			shown++
			t.batch(to, b)
		}
	}
	if left > 0 {
		t.add(to, countOf(left, "more batch", "more batches"), markPlain, "", "", "-o wide prints them")
	}
	if pods > 0 {
		at := t.add(to, countOf(passed, "batch", "batches"), markGood, "passed", "", countOf(pods, "pod", "pods"))
		for _, name := range slices.Sorted(maps.Keys(watching)) {
			t.add(at, name, markWaits, string(v1alpha1.CheckWatching), "", countOf(watching[name], "batch", "batches"))
		}
	}
}

func (t *tree) batch(to treeprint.Tree, b *v1alpha1.ChangePod) {
	state, m, info := cmp.Or(string(b.Status.Status), "Init"), markWaits, countOf(len(b.Spec.PodInfos), "pod", "pods")
	submitted := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionSubmitted)
	_, failed := record.BatchResults(b)
	switch {
	case state == string(v1alpha1.ChangePodExecuteDone) && len(failed) > 0:
		state, m, info = "failed", markBad, fmt.Sprintf("%d of %s failed (%s)", len(failed), info, b.Status.Message)
	case state == string(v1alpha1.ChangePodExecuteDone):
		state, m = "passed", markGood
	case submitted != nil && submitted.Status == metav1.ConditionFalse:
		info += ", not submitted: " + submitted.Reason + ": " + submitted.Message
	}
	t.checks(t.add(to, fmt.Sprintf("batch %d", record.BatchNumber(b)), m, state, "", info), b.Status.Checks)
}

// pods adds a revision with its most pressing pods.
func (t *tree) pods(to treeprint.Tree, r *Revision) {
	ready, version := 0, ""
	if !r.Current {
		version = "earlier version " + t.version(r.Version)
	}
	for i := range r.Pods {
		if r.Pods[i].Ready {
			ready++
		}
	}
	of := t.add(to, cmp.Or(r.Name, "pods"), markPlain, fmt.Sprintf("%d/%d ready", ready, len(r.Pods)), "", version)
	for i := range r.Pods {
		if i >= maxChildren && !t.wide {
			t.add(of, fmt.Sprintf("%d more", len(r.Pods)-i), markPlain, "", "", "-o wide prints them")
			return
		}
		t.pod(of, &r.Pods[i])
	}
}

func (t *tree) pod(to treeprint.Tree, p *Pod) {
	states := map[Verification]string{
		VerifiedFailed: "failed", VerifiedUnready: "not finished", VerifiedChecking: "being verified", VerifiedWaiting: "waits for a batch",
		VerifiedNot: "not verified", VerifiedPassed: "passed", "": "earlier",
	}
	m := map[Verification]mark{VerifiedFailed: markBad, VerifiedPassed: markGood, VerifiedNot: markPlain, "": markPlain}[p.Verified]
	if m == (mark{}) {
		m = markWaits
	}
	var info []string
	switch {
	case p.Gone:
		info = append(info, "gone")
	case p.Reason != "" && !t.wide: // the findings below say why
		info = append(info, p.Reason)
	case p.NotReady != "":
		info = append(info, p.NotReady)
	case !p.Ready:
		info = append(info, "not Ready")
	}
	if p.Fails || p.Verified == VerifiedPassed && !p.Ready && !p.Gone {
		m = markBad
	}
	if p.FinishedAt != nil {
		info = append(info, "finished in "+age(p.FinishedAt.Sub(t.now)))
	}
	if p.Restarts > 0 {
		info = append(info, countOf(int(p.Restarts), "restart", "restarts"))
	}
	if p.Batch > 0 {
		info = append(info, fmt.Sprintf("batch %d", p.Batch))
	}
	if t.wide {
		info = append(info, strings.Trim(p.Verdict+": "+p.Message, ": "), p.Node)
	}
	info = slices.DeleteFunc(info, func(part string) bool { return part == "" })
	t.add(to, p.Name, m, states[p.Verified], t.since(p.Created), strings.Join(info, ", "))
}

// findings prints the findings with next steps. Findings that need no word are printed with -o wide.
func (st style) findings(w io.Writer, all []Finding, now time.Time) {
	pressing := slices.ContainsFunc(all, func(f Finding) bool { return f.pressing() })
	for i := range all {
		f := &all[i]
		if f.Needs == NeedsNoWord && !st.wide {
			continue
		}
		printf(w, "\n")
		st.paragraph(w, "", markOf(f.Needs).of(st, f.Says))
		for _, d := range f.Details {
			st.paragraph(w, "  ", d)
		}
		facts := ""
		if f.Since != nil {
			facts = fmt.Sprintf("Since %s (%s ago). ", f.Since.UTC().Format("2006-01-02 15:04:05Z07:00"), age(now.Sub(f.Since.Time)))
		}
		if f.ReleasedBy != "" {
			facts += "Released by " + st.who(f.ReleasedBy) + "."
		}
		if facts != "" {
			st.paragraph(w, "  ", facts)
		}
		if len(f.Do) == 0 || pressing && !f.pressing() && !st.wide {
			continue
		}
		printf(w, "  Next steps:\n")
		for _, d := range f.Do {
			printf(w, "    %s\n", st.bold(d.Command))
			st.paragraph(w, "      ", capital(d.Does)+".")
		}
	}
}
