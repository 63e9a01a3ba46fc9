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
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// many shows what needs attention, or all workloads.
func (a *asked) many(ctx context.Context, everywhere, all bool) error {
	live, e, err := a.begin(ctx)
	if err != nil {
		return err
	}
	namespace, err := a.scope(everywhere)
	if err != nil {
		return err
	}
	show := func(ctx context.Context, r *reader, w io.Writer, now time.Time) error {
		v, err := e.census(ctx, r, namespace, false)
		if err != nil {
			return err
		}
		o := overviewOf(v, namespace, all, now)
		if structured(a.output) {
			return printStructured(w, a.output, o)
		}
		(&overviewPrinter{style: a.style, now: now, wide: a.output == formatWide, all: all, explain: a.explainCommand(namespace), enroll: advisor{namespace: namespace, clusterFlags: a.clusterFlags()}.observeFirst().Command}).print(w, o)
		return nil
	}
	if a.watch {
		return a.follow(ctx, live, show)
	}
	return show(ctx, newReader(live, live.Scheme()), a.c.Out, a.c.Now())
}

// scope is the namespace that is asked about; empty for all.
func (a *asked) scope(everywhere bool) (string, error) {
	if everywhere {
		return "", nil
	}
	return a.c.namespace()
}

// explainAll explains all workloads that need attention.
func (a *asked) explainAll(ctx context.Context, everywhere bool) error {
	live, e, err := a.begin(ctx)
	if err != nil {
		return err
	}
	namespace, err := a.scope(everywhere)
	if err != nil {
		return err
	}
	v, err := e.census(ctx, newReader(live, live.Scheme()), namespace, true)
	if err != nil {
		return err
	}
	now := a.c.Now()
	p := &explainPrinter{style: a.style, now: now, wide: a.output == formatWide}
	all := Explanations{Items: []*Explanation{}, NotAccepted: v.notAccepted(), Missing: v.missing}
	for _, s := range v.sights {
		kind, ok := e.kinds.Of(s.workload.GVK.GroupKind())
		if !ok {
			continue
		}
		t := target{kind: kind, key: types.NamespacedName{Namespace: s.workload.Namespace, Name: s.workload.Name}}
		explained := a.explanation(s, t, now)
		if len(explained.Findings) == 0 || explained.Findings[0].Needs != NeedsAttention && explained.Findings[0].Needs != NeedsTime {
			continue
		}
		all.Items = append(all.Items, explained)
		if !structured(a.output) {
			_, summary := summaryOf(s, explained.Findings)
			p.print(a.c.Out, explained, summary)
			printf(a.c.Out, "\n")
		}
	}
	if structured(a.output) {
		return printStructured(a.c.Out, a.output, all)
	}
	a.printNotAccepted(p, all.NotAccepted)
	down := slices.ContainsFunc(v.sights, func(s *sight) bool { return len(s.down) > 0 })
	if len(all.Items)+len(all.NotAccepted)+len(all.Missing) == 0 && !down {
		printf(a.c.Out, "%s\n", markGood.of(a.style, "Nothing needs attention."))
	}
	for _, missing := range all.Missing {
		printf(a.c.Out, "%s\n", markPlain.of(a.style, missing))
	}
	return nil
}

// printNotAccepted explains policies and settings that are not in force as they are.
func (a *asked) printNotAccepted(p *explainPrinter, items []Item) {
	for i := range items {
		item := &items[i]
		name := strings.ToLower(item.Kind) + "/" + item.Name
		f := Finding{
			Needs: item.Needs, Says: name + " in " + item.Namespace + " is not accepted: it is not in force as it is written.", Details: []string{item.Why}, Since: item.Since,
			Do: []Advice{{command("edit", name) + a.clusterFlags() + a.namespaceFlag(item.Namespace), "opens it; the message names the field, and what to write"}},
		}
		// These cannot be edited so that they count.
		switch reason, _, _ := strings.Cut(item.Why, ": "); reason {
		case v1alpha1.ReasonUnknownName, v1alpha1.ReasonOfCluster, v1alpha1.ReasonLocked:
			f.Do = []Advice{{command("delete", name) + a.clusterFlags() + a.namespaceFlag(item.Namespace), "removes it, as it has no effect; a name cannot be changed, so create it again as the message says, if it is needed"}}
		}
		if item.What != "not accepted" {
			f.Says, f.Do = name+" in "+item.Namespace+": "+item.What+".", []Advice{advisor{clusterFlags: a.clusterFlags()}.check()}
		}
		p.finding(a.c.Out, &f, true)
	}
}

// explainCommand explains what an overview lists.
func (a *asked) explainCommand(namespace string) string {
	if namespace == "" {
		return "kubectl altershield explain -A" + a.clusterFlags()
	}
	return "kubectl altershield explain" + a.clusterFlags() + a.namespaceFlag(namespace)
}

// overviewPrinter prints an overview.
type overviewPrinter struct {
	style
	now       time.Time
	wide, all bool
	// explain is the command that says more.
	explain string
	// enroll is the command that enrols the namespace.
	enroll string
}

// maxWhy is how much of a reason is shown.
const maxWhy = 100

func (p *overviewPrinter) print(w io.Writer, o *Overview) {
	if len(o.Items) > 0 {
		header := []string{"NAME", "WHAT", "SINCE", "BY", "WHY"}
		if p.all {
			header = []string{"NAME", "WHAT", "SINCE", "BY", "RELEASE", "STATE", "READY", "UPDATED", "WHY"}
		}
		rows, marks := [][]string{header}, []mark{markPlain}
		if o.Namespace == "" {
			rows[0] = append([]string{"NAMESPACE"}, rows[0]...)
		}
		for i := range o.Items {
			row := p.row(&o.Items[i])
			if o.Namespace == "" {
				row = append([]string{o.Items[i].Namespace}, row...)
			}
			rows, marks = append(rows, row), append(marks, markOfItem(&o.Items[i]))
		}
		p.table(w, rows, marks)
		printf(w, "\n")
	}
	printf(w, "%s\n", p.counts(o))
	if o.Counts.NeedAttention+o.Counts.Wait > 0 {
		printf(w, "What to do: %s\n", p.explain)
	}
	if o.NotEnrolled {
		printf(w, "The namespace is not enrolled. To begin: %s\n", p.enroll)
	}
	for _, missing := range o.Missing {
		printf(w, "%s\n", markPlain.of(p.style, missing))
	}
}

func (p *overviewPrinter) row(i *Item) []string {
	since := ""
	if i.Since != nil {
		since = age(p.now.Sub(i.Since.Time))
	}
	why := i.Why
	if utf8.RuneCountInString(why) > maxWhy && !p.wide {
		why = string([]rune(why)[:maxWhy]) + p.dots()
	}
	row := []string{strings.ToLower(i.Kind) + "/" + i.Name, i.What, since, p.who(i.ReleasedBy)}
	if p.all {
		release, ready, updated := "", "", ""
		if i.Release > 0 {
			release = fmt.Sprint(i.Release)
		}
		if i.Pods != nil {
			ready, updated = fmt.Sprintf("%d/%d", i.Pods.Ready, i.Pods.Desired), fmt.Sprint(i.Pods.Updated)
		}
		row = append(row, release, i.State, ready, updated)
	}
	return append(row, why)
}

func markOfItem(i *Item) mark {
	switch {
	case i.Needs == NeedsTime && strings.Contains(i.What, "held"):
		return markPaused
	case i.Needs == NeedsNothing && i.What == i.State:
		return markOfState(i.State)
	default:
		return markOf(i.Needs)
	}
}

// counts says how many workloads there are, and how they are.
func (p *overviewPrinter) counts(o *Overview) string {
	c := &o.Counts
	where := "in " + o.Namespace
	if o.Namespace == "" {
		where = "in all namespaces"
	}
	var parts []string
	for _, part := range []struct {
		n         int
		one, many string
	}{
		{c.NeedAttention, "needs attention", "need attention"}, {c.Wait, "waits", "wait"}, {c.UnderWay, "is under way", "are under way"},
		{c.Fine, "is fine", "are fine"}, {c.Baselines, "has no release yet", "have no release yet"},
		{c.NotDefended, "is not defended", "are not defended"},
	} {
		if part.n > 0 {
			parts = append(parts, countOf(part.n, part.one, part.many))
		}
	}
	text := countOf(c.Workloads, "workload", "workloads") + " " + where
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if c.Observed > 0 {
		text += "; " + countOf(c.Observed, "is", "are") + " in observe mode"
	}
	if c.Quarantined > 0 {
		text += "; " + countOf(c.Quarantined, "has", "have") + " versions in quarantine"
	}
	text += "."
	if c.NeedAttention+c.Wait+c.Crashing == 0 && c.Workloads > 0 && len(o.Items)+len(o.Missing) == 0 {
		return markGood.of(p.style, "Nothing needs attention. ") + text
	}
	return text
}
