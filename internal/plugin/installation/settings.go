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

package installation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

const (
	pageSettings = "user-guide.md#settings"
	pagePolicies = "policies.md"
)

func settingsChecks(f *Facts) []Check {
	return []Check{settingsThere(f), settingsAccepted(f), lowered(f), namespacesSettings(f), lockedSettings(f)}
}

// settingsOf are the settings of the operator's namespace, or of the others.
func (f *Facts) settingsOf(operator bool) []v1alpha1.OpsConfigInfo {
	return slices.DeleteFunc(slices.Clone(f.Settings.Value), func(o v1alpha1.OpsConfigInfo) bool {
		return (o.Namespace == f.Namespace) != operator
	})
}

func settingsThere(f *Facts) Check {
	c := newCheck("settings.there", "every setting has its object")
	if c, unread := f.Settings.unlisted(c); unread {
		return c
	}
	own := f.settingsOf(true)
	var lacks []string
	for _, wanted := range settings.DefaultObjects(f.Namespace) {
		if !settings.Has(own, wanted.Name) {
			lacks = append(lacks, wanted.Name)
		}
	}
	if len(lacks) > 0 {
		return c.warn("there is no OpsConfigInfo "+strings.Join(lacks, ", ")+" in "+f.Namespace+": the default is in force",
			"create it, or restart the manager, which makes what is missing: kubectl -n "+f.Namespace+" rollout restart deployment", pageSettings)
	}
	return c.ok("")
}

// settingsAccepted names the settings that are not in force as they are written. Those
// of namespaces are their users' business: they do not make the installation unhealthy.
func settingsAccepted(f *Facts) Check {
	c := newCheck("settings.accepted", "every setting is in force")
	if c, unread := f.Settings.unlisted(c); unread {
		return c
	}
	told := acceptance{operator: f.Namespace}
	for i := range f.Settings.Value {
		told.add(&f.Settings.Value[i].ObjectMeta, f.Settings.Value[i].Status.Conditions)
	}
	return told.result(c, "opsconfiginfo", pageSettings)
}

// acceptance tells which objects are not in force as they are written.
type acceptance struct {
	operator string
	// failed are those of the operator's namespace, others those of other namespaces, and
	// those that are never in force; waiting were not looked at yet.
	failed, others, waiting []string
}

func (a *acceptance) add(o *metav1.ObjectMeta, conditions []metav1.Condition) {
	name := o.Namespace + "/" + o.Name
	said := meta.FindStatusCondition(conditions, v1alpha1.ConditionAccepted)
	switch {
	case said == nil && o.Namespace != a.operator:
		// Those of namespaces that are not defended are not looked at.
	case said == nil || said.ObservedGeneration < o.Generation:
		a.waiting = append(a.waiting, name)
	case said.Status != metav1.ConditionFalse:
	case o.Namespace == a.operator && said.Reason != v1alpha1.ReasonUnknownName:
		a.failed = append(a.failed, name+": "+said.Message)
	default:
		a.others = append(a.others, name+": "+said.Message)
	}
}

func (a *acceptance) result(c Check, resource, page string) Check {
	remedy := "correct it: kubectl -n NAMESPACE edit " + resource + " NAME"
	switch {
	case len(a.failed) > 0:
		return c.fail(some(append(a.failed, a.others...)), remedy, page)
	case len(a.others) > 0:
		return c.warn(some(a.others), remedy, page)
	case len(a.waiting) > 0:
		return c.warn("the operator has not looked at "+some(a.waiting)+" yet",
			"wait some seconds; if it stays, no replica leads, or its log says why", pageLeader)
	}
	return c.ok("")
}

// lowered tells what the operator's settings take away from the defense everywhere.
func lowered(f *Facts) Check {
	c := newCheck("settings.defense", "no setting lowers the defense of the whole cluster")
	if c, unread := f.Settings.unlisted(c); unread {
		return c
	}
	for _, o := range f.settingsOf(true) {
		if _, leaving := settings.BeforeLeaving(o.Spec); leaving && o.Name == settings.NameObserve && f.deployment() != nil {
			return c.fail("the operator was told to leave by an uninstall that did not end: everything is in observe mode",
				"uninstall it, or let it defend again: kubectl altershield observe --cluster --off", "operations.md#uninstall")
		}
	}
	inForce := settings.FromObjects(f.settingsOf(true))
	var lowered []string
	for _, s := range []struct {
		lowers bool
		what   string
	}{
		{inForce.Observe, "observe is on: releases are recorded and verified, and nothing is done about them"},
		{!inForce.Blocking, "blocking is off: releases that fail do not block their workloads"},
		{!inForce.Rollback, "rollback is off: releases whose pods do not come up stay"},
		{!inForce.Halting, "halting is off: a rollout that fails goes on to all pods"},
		{!inForce.Quarantine, "quarantine is off: versions that never started are denied without an end"},
	} {
		if s.lowers {
			lowered = append(lowered, s.what)
		}
	}
	if len(lowered) > 0 {
		return c.warn(strings.Join(lowered, "; "),
			"if that is not on purpose: kubectl -n "+f.Namespace+" edit opsconfiginfo NAME", pageSettings)
	}
	return c.ok("")
}

// namespacesSettings tells which namespaces lower their own defense, as one does that
// begins with observing.
func namespacesSettings(f *Facts) Check {
	c := newCheck("settings.namespaces", "namespaces' own settings are known")
	if c, unread := f.Settings.unlisted(c); unread {
		return c
	}
	operator := f.settingsOf(true)
	above := settings.FromObjects(operator)
	var lower []string
	others := f.settingsOf(false)
	for i := range others {
		o := &others[i]
		// Those of namespaces that are not defended have no status, and count nowhere.
		if settings.Lowers(o.Name, o.Status.InForce, &above) {
			lower = append(lower, fmt.Sprintf("%s (%s, enable=%t)", o.Namespace, o.Name, o.Status.InForce.Enable))
		}
	}
	if len(lower) == 0 {
		return c.ok("none lowers its defense")
	}
	slices.Sort(lower)
	return c.ok("these lower their own defense: %s", some(lower))
}

func lockedSettings(f *Facts) Check {
	c := newCheck("settings.locked", "locked settings are known")
	if c, unread := f.Settings.unlisted(c); unread {
		return c
	}
	var locked []string
	for _, o := range f.settingsOf(true) {
		if o.Spec.Locked {
			locked = append(locked, o.Name)
		}
	}
	if len(locked) == 0 {
		return c.ok("none")
	}
	slices.Sort(locked)
	return c.ok("no namespace or workload has a value of its own for %s", strings.Join(locked, ", "))
}

func policiesChecks(f *Facts) []Check {
	return []Check{defaultPolicy(f), policiesAccepted(f)}
}

func defaultPolicy(f *Facts) Check {
	c := newCheck("policies.default", "the default policy is there and enforces")
	if c, unread := f.Policies.unlisted(c); unread {
		return c
	}
	i := slices.IndexFunc(f.Policies.Value, func(p v1alpha1.DefensePolicy) bool {
		return p.Namespace == f.Namespace && p.Name == policy.DefaultName
	})
	in := "kubectl -n " + f.Namespace + " "
	if i < 0 {
		return c.warn(fmt.Sprintf("there is no DefensePolicy %s in %s: releases whose pods crash after they were ready pass", policy.DefaultName, f.Namespace),
			"restart the manager, which makes it: "+in+"rollout restart deployment", pagePolicies+"#what-is-caught-out-of-the-box")
	}
	if mode := f.Policies.Value[i].Spec.Mode; mode != v1alpha1.ModeEnforce && mode != "" {
		return c.warn(fmt.Sprintf("its mode is %s: what it finds fails no release", mode),
			"once its events look right: "+in+"patch defensepolicy "+policy.DefaultName+` --type=merge -p '{"spec":{"mode":"Enforce"}}'`, pagePolicies+"#what-is-caught-out-of-the-box")
	}
	return c.ok("")
}

func policiesAccepted(f *Facts) Check {
	c := newCheck("policies.accepted", "every policy is accepted")
	if c, unread := f.Policies.unlisted(c); unread {
		return c
	}
	told := acceptance{operator: f.Namespace}
	for i := range f.Policies.Value {
		told.add(&f.Policies.Value[i].ObjectMeta, f.Policies.Value[i].Status.Conditions)
	}
	if c = told.result(c, "defensepolicy", pagePolicies); c.Status == OK {
		return c.ok("%s", count(len(f.Policies.Value), "policy"))
	}
	return c
}
