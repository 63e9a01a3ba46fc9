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
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Overview is what needs attention: the output of status -o json.
type Overview struct {
	// Namespace that it is of; empty for all.
	Namespace string `json:"namespace,omitempty"`
	// NotEnrolled: that namespace is not defended.
	NotEnrolled bool `json:"notEnrolled,omitempty"`
	// Items are what needs attention, or waits, the most pressing first. With --all they
	// are all workloads.
	Items []Item `json:"items"`
	// Counts of the workloads.
	Counts Counts `json:"counts"`
	// Missing says what is not told, because the user must not read it.
	Missing []string `json:"missing,omitempty"`
}

// Item is one line of an overview: a workload, a policy, or a setting.
type Item struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Needs says who has to do something: Attention, Time or Nothing.
	Needs Needs `json:"needs"`
	// What is the matter, since when, and why.
	What  string       `json:"what"`
	Since *metav1.Time `json:"since,omitempty"`
	Why   string       `json:"why,omitempty"`
	// Release is the number of the release a workload is at, State its state, ReleasedBy
	// who released it.
	Release    int64  `json:"release,omitempty"`
	State      string `json:"state,omitempty"`
	ReleasedBy string `json:"releasedBy,omitempty"`
	// Pods counts the pods of a workload; with --all only.
	Pods *PodCounts `json:"pods,omitempty"`
}

// Counts count workloads, each once.
type Counts struct {
	Workloads int `json:"workloads"`
	// NeedAttention and Wait are those of Items.
	NeedAttention int `json:"needAttention"`
	Wait          int `json:"wait"`
	// UnderWay are being released, Fine succeeded, Baselines have had no release under
	// defense.
	UnderWay  int `json:"underWay"`
	Fine      int `json:"fine"`
	Baselines int `json:"baselines"`
	// NotDefended are in namespaces that are not defended, or are opted out.
	NotDefended int `json:"notDefended"`
	// Observed of all these are in observe mode, and of Quarantined versions are in
	// quarantine.
	Observed    int `json:"observed"`
	Quarantined int `json:"quarantined"`
	// Crashing have pods in CrashLoopBackOff.
	Crashing int `json:"crashing,omitempty"`
}

// census is what was observed of many workloads.
type census struct {
	sights   []*sight
	settings []v1alpha1.OpsConfigInfo
	policies []v1alpha1.DefensePolicy
	missing  []string
}

// census observes the workloads of a namespace, or of all, with as many requests as
// there are kinds and pages, and namespaces with pods that are not Ready. Past: with what
// they can be rolled back to.
func (e *eyes) census(ctx context.Context, r *reader, namespace string, past bool) (*census, error) {
	v := &census{}
	in := client.InNamespace(namespace)
	if err := v.seeWorkloads(ctx, e, r, in); err != nil {
		return nil, err
	}
	var changes v1alpha1.ChangeWorkloadList
	if err := r.List(ctx, &changes, in); err != nil {
		return nil, fmt.Errorf("list changeworkloads: %w", err)
	}
	v.assign(changes.Items)
	for _, step := range []struct {
		what string
		see  func(context.Context, *eyes, *reader, string) error
	}{
		{"which namespaces are enrolled is", v.seeNamespaces},
		{"which settings are in force is", v.seeSettings},
		{"which policies are accepted is", v.seePolicies},
		{"which pods are in CrashLoopBackOff is", v.seePods},
	} {
		if err := v.optional(step.what, step.see(ctx, e, r, namespace)); err != nil {
			return nil, err
		}
	}
	if past {
		if err := v.optional("what can be gone back to is", v.seePast(ctx, r, in)); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// seeWorkloads observes the workloads of all kinds that the user may read.
func (v *census) seeWorkloads(ctx context.Context, e *eyes, r *reader, in client.ListOption) error {
	kinds := e.kinds.Kinds()
	for _, kind := range kinds {
		sights, err := sightsOf(ctx, r, kind, in)
		if err := v.optional(kind.Resource()+" are", err); err != nil {
			return fmt.Errorf("list %s: %w", kind.Resource(), err)
		}
		if apierrors.IsForbidden(err) && len(v.missing) == len(kinds) {
			return fmt.Errorf("list %s: %w", kind.Resource(), err) // none of them
		}
		v.sights = append(v.sights, sights...)
	}
	return nil
}

func (v *census) optional(what string, err error) error {
	if apierrors.IsForbidden(err) {
		v.missing = append(v.missing, fmt.Sprintf("%s not told: %s", what, reasonOf(err)))
		return nil
	}
	return err
}

func sightsOf(ctx context.Context, r *reader, kind workload.Kind, in client.ListOption) (sights []*sight, err error) {
	gvk := kind.GroupVersionKind()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err = r.List(ctx, list, in)
	for i := range list.Items {
		o := &list.Items[i]
		s := &sight{workload: observedByMetadata(kind, o), counts: countsOf(o), containers: containersOf(kind, o), written: writtenAt(o)}
		s.unready = hasUnready(o, s.counts)
		s.workload.Stopping, _ = kind.Stopping(o) // not told where it cannot be read
		s.workload.Words = kind.Words(s.workload)
		sights = append(sights, s)
	}
	return sights, err
}

// assign gives each workload its records.
func (v *census) assign(changes []v1alpha1.ChangeWorkload) {
	of := map[types.UID][]v1alpha1.ChangeWorkload{}
	for i := range changes {
		if ref := metav1.GetControllerOf(&changes[i]); ref != nil {
			of[ref.UID] = append(of[ref.UID], changes[i])
		}
	}
	for _, s := range v.sights {
		s.changes = of[s.workload.UID]
		newestFirst(s.changes)
	}
}

func (v *census) seeNamespaces(ctx context.Context, e *eyes, r *reader, namespace string) error {
	view := cluster.View{Cached: r, Live: r, Kinds: e.kinds, Operator: e.operator}
	var enrolled []string
	if namespace != "" {
		ns, err := view.Namespace(ctx, namespace)
		if err != nil {
			return err
		}
		if ns.Meta == nil {
			return noNamespace(namespace)
		}
		if ns.Enrolled {
			enrolled = []string{namespace}
		}
	} else {
		var err error
		if enrolled, err = view.EnrolledNamespaces(ctx); err != nil {
			return err
		}
	}
	for _, s := range v.sights {
		s.enrolledKnown = true
		s.enrolled = slices.Contains(enrolled, s.workload.Namespace)
	}
	return nil
}

func (v *census) seeSettings(ctx context.Context, e *eyes, r *reader, namespace string) error {
	for _, ns := range e.asWell(namespace) {
		var list v1alpha1.OpsConfigInfoList
		if err := r.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return fmt.Errorf("list opsconfiginfoes: %w", err)
		}
		v.settings = append(v.settings, list.Items...)
	}
	of := map[string][]v1alpha1.OpsConfigInfo{}
	for _, o := range v.settings {
		of[o.Namespace] = append(of[o.Namespace], o)
	}
	if len(of[e.operator]) == 0 {
		v.missing = append(v.missing, noSettings(e.operator))
		return nil
	}
	for _, s := range v.sights {
		inForce := settings.For(of[e.operator], of[s.workload.Namespace], s.workload.Annotations)
		inForce.ObserveOwned(s.workload.ObservingOwner())
		s.settings = &inForce
	}
	return nil
}

func noSettings(operator string) string {
	return "the settings in force are not told: there are none in the namespace " + operator + ", name the operator's with --operator-namespace"
}

// asWell is a namespace, and that of the operator, where it is not in it.
func (e *eyes) asWell(namespace string) []string {
	if namespace == "" {
		return []string{""}
	}
	return slices.Compact([]string{e.operator, namespace})
}

func (v *census) seePolicies(ctx context.Context, e *eyes, r *reader, namespace string) error {
	for _, ns := range e.asWell(namespace) {
		var list v1alpha1.DefensePolicyList
		if err := r.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return fmt.Errorf("list defensepolicies: %w", err)
		}
		v.policies = append(v.policies, list.Items...)
	}
	return nil
}

// seePast reads by metadata alone: the templates would be most of it. So the numbers of
// releases are not known, and the youngest comes last.
func (v *census) seePast(ctx context.Context, r *reader, in client.ListOption) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ControllerRevisionList"))
	if err := r.List(ctx, list, in, client.HasLabels{v1alpha1.VersionLabel}); err != nil {
		return fmt.Errorf("list controllerrevisions: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b metav1.PartialObjectMetadata) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	of := map[types.UID][]remembered{}
	for i := range list.Items {
		o := &list.Items[i]
		uid := workload.Remembers(o)
		of[uid] = append(of[uid], remembered{Revision: defense.Revision{Name: o.Name, UID: o.UID, Version: o.Labels[v1alpha1.VersionLabel]}, unnumbered: true})
	}
	for _, s := range v.sights {
		s.history = of[s.workload.UID]
	}
	return nil
}

// overviewOf tells what needs attention, or, of all workloads, all.
func overviewOf(v *census, namespace string, all bool, now time.Time) *Overview {
	o := &Overview{Namespace: namespace, Items: []Item{}, Missing: v.missing}
	for _, s := range v.sights {
		o.NotEnrolled = namespace != "" && s.enrolledKnown && !s.enrolled
		item := itemOf(s, now)
		o.Counts.count(s, item.Needs, now)
		if all || item.Needs == NeedsAttention || item.Needs == NeedsTime {
			if all {
				counts := s.counts
				item.Pods = &counts
			}
			o.Items = append(o.Items, item)
		}
	}
	o.Items = append(o.Items, v.notAccepted()...)
	slices.SortStableFunc(o.Items, func(a, b Item) int {
		return cmp.Or(cmp.Compare(a.Needs.rank(), b.Needs.rank()), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return o
}

// count counts a workload.
func (c *Counts) count(s *sight, needs Needs, now time.Time) {
	c.Workloads++
	if len(defense.DeniedBy(s.workload.Labels, s.workload.Annotations, now).Quarantine) > 0 {
		c.Quarantined++
	}
	if level, _ := s.defense(); level == DefenseObserved {
		c.Observed++
	}
	if len(s.down) > 0 {
		c.Crashing++
	}
	current := s.current()
	switch {
	case needs == NeedsAttention:
		c.NeedAttention++
	case needs == NeedsTime:
		c.Wait++
	case !s.defended():
		c.NotDefended++
	case current == nil:
		c.Baselines++
	case defense.IsOpen(current.Status.Status):
		c.UnderWay++
	default:
		c.Fine++
	}
}

// itemOf is the line of a workload.
func itemOf(s *sight, now time.Time) Item {
	w := s.workload
	findings := Findings(s, advisor{}, now)
	item := Item{Kind: w.GVK.Kind, Namespace: w.Namespace, Name: w.Name, Release: w.Release()}
	item.Needs, item.What = summaryOf(s, findings)
	if c := s.current(); c != nil {
		item.State, item.Since = stateOf(c.Status.Status), unixTime(cmp.Or(c.Status.UpdateTimeUnix, c.Spec.CreateTimeUnix))
	}
	if item.Release > 0 {
		item.ReleasedBy = w.ReleasedBy()
	}
	if item.Needs == NeedsAttention || item.Needs == NeedsTime {
		f := &findings[0]
		item.Since, item.Why = f.Since, f.Says
		if len(f.Details) > 0 {
			item.Why = f.Details[0]
		}
		item.ReleasedBy = cmp.Or(f.ReleasedBy, item.ReleasedBy)
	}
	return item
}

// notAccepted are policies and settings that are not, and a webhook configuration that is
// missing.
func (v *census) notAccepted() (items []Item) {
	add := func(kind string, o client.Object, conditions []metav1.Condition, name, what string) {
		if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionFalse {
			items = append(items, Item{
				Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Needs: NeedsAttention,
				What: what, Since: timeOf(c.LastTransitionTime.Time), Why: strings.Trim(c.Reason+": "+c.Message, ": "),
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
