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

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Limits of what is shown without -o wide.
const (
	maxPods    = 6
	maxBatches = 6
)

// statusPrinter prints what is told of a workload.
type statusPrinter struct {
	style
	now  time.Time
	wide bool
}

func (p *statusPrinter) print(w io.Writer, s *Status) {
	title := p.bold(strings.ToLower(s.Kind)+"/"+s.Name) + " in " + s.Namespace
	m := markOf(s.Needs)
	if len(s.Releases) > 0 && m == markPlain && s.Releases[0].Current {
		m = markOfState(s.Releases[0].State)
	}
	printf(w, "%s\n", m.of(p.style, title+": "+s.Summary))
	for _, line := range p.facts(s) {
		printf(w, "  %-11s %s\n", line[0], line[1])
	}
	nodes := make([]node, 0, len(s.Releases))
	for i := range s.Releases {
		nodes = append(nodes, p.release(&s.Releases[i], i == 0))
	}
	p.tree(w, nodes, "")
	for _, missing := range s.Missing {
		printf(w, "%s\n", markPlain.of(p.style, missing))
	}
}

// facts are what there is to say of the workload itself.
func (p *statusPrinter) facts(s *Status) (lines [][2]string) {
	add := func(name, text string) { lines = append(lines, [2]string{name, text}) }
	if s.Defense != DefenseFull {
		add("defense", s.DefenseMessage)
	}
	add("pods", fmt.Sprintf("%d desired, %d updated, %d ready", s.Pods.Desired, s.Pods.Updated, s.Pods.Ready))
	what := p.version(s.Version)
	if len(s.Images) > 0 {
		what = strings.Join(s.Images, ", ") + " (version " + what + ")"
	}
	add("runs", what)
	if s.Release > 0 {
		text := fmt.Sprintf("%d, by %s", s.Release, p.who(s.ReleasedBy))
		if s.ReleasedAt != nil {
			text += ", " + p.ago(s.ReleasedAt.Time)
		}
		add("release", text)
	}
	if b := s.Blocked; b != nil {
		add("blocked", p.blocked(b))
	}
	if s.Paused != nil && s.Paused.ByOperator {
		add("halted", "the operator "+s.Paused.words().Halted()+" the rollout"+s.Paused.words().Means()+", because version "+p.version(s.Paused.Version)+" failed")
	} else if s.Paused != nil {
		add("paused", "somebody "+s.Paused.words().Halted()+" the rollout"+s.Paused.words().Means())
	}
	if h := s.Held; h != nil {
		text := h.Message
		if text == "" {
			text = "the rollout waits for its verdicts"
		}
		add("held", text)
	}
	for i := range s.Quarantined {
		add("quarantine", p.quarantined(&s.Quarantined[i]))
	}
	return lines
}

func (p *statusPrinter) version(v string) string {
	if p.wide {
		return v
	}
	return short(v)
}

// maxText is how much of a message is shown in a tree.
const maxText = 160

// cut shortens a message.
func (p *statusPrinter) cut(text string) string {
	if p.wide || utf8.RuneCountInString(text) <= maxText {
		return text
	}
	return string([]rune(text)[:maxText]) + p.dots()
}

// who names a user.
func (st style) who(user string) string {
	if st.operator != "" && strings.HasPrefix(user, "system:serviceaccount:"+st.operator+":") {
		return "the operator"
	}
	return user
}

func (p *statusPrinter) ago(t time.Time) string { return age(p.now.Sub(t)) + " ago" }

func (p *statusPrinter) blocked(b *Blocked) string {
	text := "by hand"
	if !b.ByUser {
		text = fmt.Sprintf("because release %d failed", b.Release)
		if b.Release == 0 {
			text = "because version " + p.version(b.Version) + " failed"
		}
	}
	if b.Since != nil {
		text = "for " + age(p.now.Sub(b.Since.Time)) + ", " + text
	}
	if b.Because != "" {
		text += ": " + p.cut(b.Because)
	}
	return text
}

func (p *statusPrinter) quarantined(q *Quarantined) string {
	text := p.version(q.Version)
	if q.Until != nil {
		text += " for " + age(q.Until.Sub(p.now))
	}
	if q.Because != "" {
		text += ": " + p.cut(q.Because)
	}
	return text
}

// markOfState is the mark of a state of a release.
func markOfState(state string) mark {
	switch v1alpha1.ChangeWorkloadStatusType(state) {
	case v1alpha1.ChangeWorkloadSuccess:
		return markGood
	case v1alpha1.ChangeWorkloadSuspend, v1alpha1.ChangeWorkloadFailed, v1alpha1.ChangeWorkloadRollback:
		return markBad
	case v1alpha1.ChangeWorkloadCanceled:
		return markPlain
	default:
		return markWaits
	}
}

// release is a release with all that is below it. Of earlier ones only what failed.
func (p *statusPrinter) release(r *Release, newest bool) node {
	parts := []string{p.bold(fmt.Sprintf("release %d", r.Number)), r.State}
	if r.Since != nil {
		parts[1] += " " + p.ago(r.Since.Time)
	}
	if r.Attempt > 1 {
		parts = append(parts, fmt.Sprintf("attempt %d", r.Attempt))
	}
	parts = append(parts, "version "+p.version(r.Version))
	if len(r.Images) > 0 {
		parts = append(parts, strings.Join(r.Images, ", "))
	}
	if r.ReleasedBy != "" {
		parts = append(parts, "by "+p.who(r.ReleasedBy))
	}
	if r.OverriddenBy != "" {
		parts = append(parts, "past a block or a quarantine, by "+r.OverriddenBy)
	}
	n := node{text: markOfState(r.State).of(p.style, strings.Join(parts, ", "))}
	full := r.Current || newest || p.wide
	n.sub = append(n.sub, p.conditions(r, full)...)
	if !full {
		return n
	}
	if r.OrderURL != "" {
		n.sub = append(n.sub, node{text: markPlain.of(p.style, "on the server: "+r.OrderURL)})
	}
	n.sub = append(n.sub, p.checks(r.Checks, true)...)
	n.sub = append(n.sub, p.batches(r)...)
	n.sub = append(n.sub, p.pods(r)...)
	return n
}

// conditions that say more than the state does; all of them where it is wide.
func (p *statusPrinter) conditions(r *Release, full bool) (nodes []node) {
	for i := range r.Conditions {
		c := &r.Conditions[i]
		t := c.telling()
		said := full && (t.needs != NeedsNoWord || p.wide) || t.needs == NeedsAttention && c.Type != v1alpha1.ConditionBlocked ||
			c.Type == v1alpha1.ConditionRolledBack && c.Status == "True"
		// Something else says it already.
		twice := !p.wide && (c.Type == v1alpha1.ConditionBlocked && c.Status == "True" || c.Type == v1alpha1.ConditionHeld && c.Status == "True" ||
			t.needs == NeedsNothing && c.detail() == "")
		if !said || twice {
			continue
		}
		m := markOf(t.needs)
		if c.Type == v1alpha1.ConditionHeld && c.Status == "True" || c.Reason == v1alpha1.ReasonRolloutHalted || c.Reason == v1alpha1.ReasonRolloutPaused {
			m = markPaused
		}
		text := c.Type + " " + c.Reason
		if said := cmp.Or(c.detail(), c.Message); said != "" {
			text += ": " + p.cut(said)
		}
		nodes = append(nodes, node{text: m.of(p.style, text)})
	}
	return nodes
}

// checks are those that say something: not those that passed, unless all are asked for.
func (p *statusPrinter) checks(checks []Check, all bool) (nodes []node) {
	for i := range checks {
		c := &checks[i]
		m := markOfPhase(c.Phase)
		if m == markGood && !all && !p.wide {
			continue
		}
		text := "check " + c.Name + ": " + string(c.Phase)
		if c.Reason != "" && c.Reason != string(c.Phase) {
			text += " " + c.Reason
		}
		if c.Message != "" {
			text += ": " + p.cut(c.Message)
		}
		if c.Observed {
			text += " (in observe mode)"
		}
		if m == markWaits && c.Deadline != nil {
			text += ", at most " + age(c.Deadline.Sub(p.now)) + " more"
		}
		nodes = append(nodes, node{text: m.of(p.style, text)})
	}
	return nodes
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

// passed says that a batch, and all its checks, are through.
func (b *Batch) passed() bool {
	return b.Done && b.Failed == 0 && !slices.ContainsFunc(b.Checks, func(c Check) bool { return markOfPhase(c.Phase) == markBad || markOfPhase(c.Phase) == markPlain })
}

// batches are those that have not passed, and how many have.
func (p *statusPrinter) batches(r *Release) (nodes []node) {
	var passed, pods, left int
	for i := range r.Batches {
		b := &r.Batches[i]
		switch {
		case b.passed() && !p.wide:
			passed++
			pods += b.Pods
		case len(nodes) >= maxBatches && !p.wide:
			left++
		default:
			nodes = append(nodes, p.batch(b))
		}
	}
	if left > 0 {
		nodes = append(nodes, node{text: markPlain.of(p.style, fmt.Sprintf("%s and %d more batches (-o wide shows them)", p.dots(), left))})
	}
	if passed > 0 {
		text := fmt.Sprintf("%s passed, with %s", countOf(passed, "batch", "batches"), countOf(pods, "pod", "pods"))
		nodes = append(nodes, node{text: markGood.of(p.style, text), sub: p.goingOn(r)})
	}
	if r.PassedBefore > 0 {
		nodes = append(nodes, node{text: markGood.of(p.style, fmt.Sprintf("%s passed that are gone, with their batches", countOf(int(r.PassedBefore), "pod", "pods")))})
	}
	return nodes
}

// goingOn are the checks of batches that passed and that still look.
func (p *statusPrinter) goingOn(r *Release) (nodes []node) {
	counts := map[string]int{}
	var names []string
	for i := range r.Batches {
		for _, c := range r.Batches[i].Checks {
			watches := c.Phase == v1alpha1.CheckWatching && c.Deadline != nil && c.Deadline.After(p.now)
			if !r.Batches[i].passed() || !watches {
				continue
			}
			if counts[c.Name]++; counts[c.Name] == 1 {
				names = append(names, c.Name)
			}
		}
	}
	for _, name := range names {
		nodes = append(nodes, node{text: markWaits.of(p.style, fmt.Sprintf("check %s still looks at %s", name, countOf(counts[name], "batch", "batches")))})
	}
	return nodes
}

func (p *statusPrinter) batch(b *Batch) node {
	text, m := fmt.Sprintf("batch %d: %s of %s", b.Number, b.State, countOf(b.Pods, "pod", "pods")), markWaits
	switch {
	case b.Failed > 0:
		text, m = fmt.Sprintf("batch %d: %d of %s failed (%s)", b.Number, b.Failed, countOf(b.Pods, "pod", "pods"), b.Message), markBad
	case b.Done:
		text, m = fmt.Sprintf("batch %d: %s passed (%s)", b.Number, countOf(b.Pods, "pod", "pods"), b.Message), markGood
	case b.NotSubmitted != "":
		text += ", not submitted: " + b.NotSubmitted
	}
	return node{text: m.of(p.style, text), sub: p.checks(b.Checks, false)}
}

// pods are those that somebody has to look at first, and not many of those that passed.
func (p *statusPrinter) pods(r *Release) (nodes []node) {
	rest := map[Verification]int{}
	for i := range r.PodList {
		pod := &r.PodList[i]
		if len(nodes) >= maxPods && !p.wide {
			rest[pod.Verified]++
			continue
		}
		nodes = append(nodes, node{text: p.pod(pod)})
	}
	var parts []string
	total := 0
	for _, v := range []Verification{VerifiedFailed, VerifiedUnready, VerifiedChecking, VerifiedWaiting, VerifiedNot, VerifiedPassed} {
		if rest[v] == 0 {
			continue
		}
		total += rest[v]
		parts = append(parts, fmt.Sprintf("%d %s", rest[v], wordOf(v)))
	}
	if len(parts) == 1 {
		parts[0] = "all " + strings.TrimLeft(parts[0], "0123456789 ")
	}
	if total > 0 {
		m := markPlain
		if total == rest[VerifiedPassed] {
			m = markGood
		}
		nodes = append(nodes, node{text: m.of(p.style, fmt.Sprintf("%s and %d more pods, %s", p.dots(), total, strings.Join(parts, ", ")))})
	}
	return nodes
}

func wordOf(v Verification) string {
	switch v {
	case VerifiedFailed:
		return "failed"
	case VerifiedUnready:
		return "not finished"
	case VerifiedChecking:
		return "being verified"
	case VerifiedWaiting:
		return "waiting for a batch"
	case VerifiedPassed:
		return "passed"
	default:
		return "not verified"
	}
}

func (p *statusPrinter) pod(pod *Pod) string {
	m := map[Verification]mark{VerifiedFailed: markBad, VerifiedPassed: markGood, VerifiedNot: markPlain}[pod.Verified]
	if m == markGood && pod.Verified != VerifiedPassed {
		m = markWaits
	}
	text := "pod " + pod.Name + ": "
	switch {
	case pod.Gone:
		text += "gone"
	case pod.Ready && pod.ReadySince != nil:
		text += "Ready for " + age(p.now.Sub(pod.ReadySince.Time))
	case pod.Ready:
		text += "Ready"
	case pod.NotReady != "":
		text += "not Ready: " + p.cut(pod.NotReady)
		if pod.Fails {
			m = markBad
		}
	case pod.Verified != VerifiedFailed || pod.Node != "":
		text += "not Ready"
	default:
		text = strings.TrimSuffix(text, ": ")
	}
	text += ", " + wordOf(pod.Verified)
	if pod.FinishedAt != nil {
		text += " (is in " + age(pod.FinishedAt.Sub(p.now)) + ")"
	}
	if said := strings.Trim(pod.Verdict+": "+pod.Message, ": "); said != "" && (pod.Verified != VerifiedPassed || p.wide) {
		text += ": " + p.cut(said)
	}
	if p.wide && pod.Batch > 0 {
		text += fmt.Sprintf(", batch %d", pod.Batch)
	}
	if p.wide && pod.Node != "" {
		text += ", on " + pod.Node
	}
	return m.of(p.style, text)
}
