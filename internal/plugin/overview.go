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
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// Overview lists workloads that need attention: the output of status -o json.
type Overview struct {
	metav1.TypeMeta `json:",inline"`
	// Items need attention or time, the most pressing first. With --all they are all workloads.
	Items []Item `json:"items"`
	// Counts of the workloads.
	Counts Counts `json:"counts"`
	// NotEnrolled reports whether the namespace is not enrolled.
	NotEnrolled bool `json:"notEnrolled,omitempty"`
	// Missing are sentences about what the user may not read.
	Missing []string `json:"missing,omitempty"`
}

// Item is one line of an overview: a workload, a policy, or a setting.
type Item struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        Metadata `json:"metadata"`
	// Needs is Attention (a person has to act), Time (it continues without help) or Nothing.
	Needs Needs `json:"needs"`
	// The finding in a word, the time at which it began, and its reason.
	What  string       `json:"what"`
	Since *metav1.Time `json:"since,omitempty"`
	Why   string       `json:"why,omitempty"`
	// Release is the number of the release of a workload, State its state, and ReleasedBy its user.
	Release    int64  `json:"release,omitempty"`
	State      string `json:"state,omitempty"`
	ReleasedBy string `json:"releasedBy,omitempty"`
	// Pods counts the pods of a workload; with --all only.
	Pods *PodCounts `json:"pods,omitempty"`
}

// Counts count workloads, each once.
type Counts struct {
	Workloads int `json:"workloads"`
	// NeedAttention and Wait count the workloads in Items.
	NeedAttention int `json:"needAttention"`
	Wait          int `json:"wait"`
	// UnderWay are being released, Fine succeeded, and Baselines have had no recorded release.
	UnderWay  int `json:"underWay"`
	Fine      int `json:"fine"`
	Baselines int `json:"baselines"`
	// NotDefended are in namespaces that are not enrolled, or are opted out.
	NotDefended int `json:"notDefended"`
	// Of all these, Observed are in observe mode, Quarantined have versions in quarantine, and Crashing have pods in CrashLoopBackOff.
	Observed    int `json:"observed"`
	Quarantined int `json:"quarantined"`
	Crashing    int `json:"crashing,omitempty"`
}

// many prints the workloads that need attention, or all.
func (a *reading) many(ctx context.Context, everywhere, all bool) error {
	live, namespace, err := a.begin(ctx)
	if err != nil {
		return err
	}
	if everywhere {
		namespace = ""
	}
	in := []client.ListOption{client.InNamespace(namespace)}
	what := []watched{{&v1alpha1.ChangeWorkloadList{}, in}}
	kinds, err := a.kinds(ctx, live)
	if err != nil {
		return err
	}
	for _, kind := range kinds.Kinds() {
		what = append(what, watched{kind.ObjectList(), inNamespace(kind, namespace)})
	}
	return a.show(ctx, live, what, readAtLeast, func(ctx context.Context) (func(io.Writer, time.Time) error, error) {
		v, err := a.census(ctx, live, a.operator, namespace)
		return func(w io.Writer, now time.Time) error {
			o := overviewOf(v, namespace, all, now)
			if a.printer != nil {
				return printObject(w, a.printer, o)
			}
			a.overview(w, o, namespace, all, now)
			return nil
		}, err
	})
}

// overviewOf returns the workloads that need attention, or all.
func overviewOf(v *census, namespace string, all bool, now time.Time) *Overview {
	o := &Overview{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, Items: []Item{}, Missing: v.missing}
	for _, s := range v.snapshots {
		s.now = now
		level, _ := s.defense()
		o.NotEnrolled = namespace != "" && level == DefenseNotEnrolled
		item := itemOf(s)
		o.Counts.count(s, level, item.Needs)
		if all && !s.workload.WithoutPods {
			item.Pods = &s.counts
		}
		if all || item.Needs == NeedsAttention || item.Needs == NeedsTime {
			o.Items = append(o.Items, item)
		}
	}
	o.Items = append(o.Items, v.notAccepted()...)
	slices.SortStableFunc(o.Items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.Needs.rank(), b.Needs.rank()), cmp.Compare(a.Metadata.Namespace, b.Metadata.Namespace),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	return o
}

// count counts a workload.
func (c *Counts) count(s *snapshot, level Defense, needs Needs) {
	c.Workloads++
	if len(s.quarantined()) > 0 {
		c.Quarantined++
	}
	if level == DefenseObserved {
		c.Observed++
	}
	if len(s.down()) > 0 {
		c.Crashing++
	}
	current := s.current()
	switch {
	case needs == NeedsAttention:
		c.NeedAttention++
	case needs == NeedsTime:
		c.Wait++
	case level == DefenseNotEnrolled || level == DefenseOptedOut:
		c.NotDefended++
	case current == nil:
		c.Baselines++
	case record.IsOpen(current.Status.Status):
		c.UnderWay++
	default:
		c.Fine++
	}
}

// itemOf returns the line of a workload.
func itemOf(s *snapshot) Item {
	w, findings := s.workload, findingsOf(s, advisor{})
	item := Item{Metadata: Metadata{w.Namespace, w.Name}, Release: w.Release()}
	item.APIVersion, item.Kind = w.GVK.ToAPIVersionAndKind()
	item.Needs, item.What = summaryOf(s, findings)
	if c := s.current(); c != nil {
		item.State, item.Since = stateOf(c.Status.Status), unixTime(cmp.Or(c.Status.UpdateTimeUnix, c.Spec.CreateTimeUnix))
	}
	if item.Release > 0 {
		item.ReleasedBy = w.ReleasedBy()
	}
	if item.Needs == NeedsAttention || item.Needs == NeedsTime {
		f := &findings[0]
		item.Since, item.Why, item.ReleasedBy = f.Since, f.Says, cmp.Or(f.ReleasedBy, item.ReleasedBy)
		if len(f.Details) > 0 {
			item.Why = f.Details[0]
		}
	}
	return item
}

// notAccepted returns policies and settings that are not accepted, and a missing webhook configuration.
func (v *census) notAccepted() (items []Item) {
	add := func(kind string, o client.Object, conditions []metav1.Condition, name, what string) {
		if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionFalse {
			items = append(items, Item{
				TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind}, Metadata: Metadata{o.GetNamespace(), o.GetName()},
				Needs: NeedsAttention, What: what, Since: timeOf(c.LastTransitionTime.Time), Why: strings.Trim(c.Reason+": "+c.Message, ": "),
			})
		}
	}
	for i := range v.policies {
		add("DefensePolicy", &v.policies[i], v.policies[i].Status.Conditions, v1alpha1.ConditionAccepted, "not accepted")
	}
	for i := range v.settings {
		add("OpsConfigInfo", &v.settings[i], v.settings[i].Status.Conditions, v1alpha1.ConditionAccepted, "not accepted")
		add("OpsConfigInfo", &v.settings[i], v.settings[i].Status.Conditions, v1alpha1.ConditionWebhooksConfigured, "webhooks missing")
	}
	return items
}

// overview prints an overview.
func (a *reading) overview(w io.Writer, o *Overview, namespace string, all bool, now time.Time) {
	heads := []string{"NAME", "WHAT", "SINCE", "BY"}
	if namespace == "" {
		heads = append([]string{"NAMESPACE"}, heads...)
	}
	if all {
		heads = append(heads, "READY")
	}
	heads[0] = a.style.noMark() + heads[0]
	rows := [][]string{append(heads, "WHY")}
	for i := range o.Items {
		item := &o.Items[i]
		since, names := "", []string{argument(&item.TypeMeta) + "/" + item.Metadata.Name}
		if namespace == "" {
			names = append([]string{item.Metadata.Namespace}, names...)
		}
		names[0] = markOfItem(item).of(a.style, names[0])
		if item.Since != nil {
			since = age(now.Sub(item.Since.Time))
		}
		row := slices.Concat(names, []string{item.What, since, a.style.who(item.ReleasedBy)})
		if all {
			ready := ""
			if item.Pods != nil {
				ready = fmt.Sprintf("%d/%d", item.Pods.Ready, item.Pods.Desired)
			}
			row = append(row, ready)
		}
		rows = append(rows, append(row, item.Why))
	}
	if len(o.Items) > 0 {
		a.style.table(w, rows)
		printf(w, "\n")
	}
	a.style.paragraph(w, "", a.style.counts(o, namespace))
	where := namespace
	if namespace == "" {
		where = "NAMESPACE"
	}
	if o.Counts.NeedAttention+o.Counts.Wait > 0 {
		printf(w, "Next steps: %s\n", a.commandIn(where, "status", "NAME"))
	}
	if o.NotEnrolled {
		printf(w, "The namespace is not enrolled. To begin: %s\n", a.advisor("").enroll(namespace, modeObserve).Command)
	}
	for _, missing := range o.Missing {
		a.style.paragraph(w, "", markPlain.of(a.style, missing))
	}
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

// counts returns a sentence about how many workloads are in which state.
func (st style) counts(o *Overview, namespace string) string {
	c := &o.Counts
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
	where := "in all namespaces"
	if namespace != "" {
		where = "in " + namespace
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
		return markGood.of(st, "Nothing needs attention. ") + text
	}
	return text
}
