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
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/admission"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	pageSettings = "reference/settings.md"
	pageDefault  = "concepts/verification.md#the-default-policy"
)

// rights lists what the user may not do, which is no fault of the installation.
func (f *Facts) rights(c Check) Check {
	var lacks []string
	namespace := ""
	for _, access := range f.Mine.Value {
		namespace = access.Namespace
		if !access.Allowed {
			resource := strings.TrimSuffix(access.Resource+"/"+access.Subresource, "/")
			lacks = append(lacks, fmt.Sprintf("%s (%s %s)", access.For, access.Verb, resource))
		}
	}
	if len(lacks) == 0 {
		return c.ok("all that the plugin uses, in the namespace %s", namespace)
	}
	return c.ok("in the namespace %s you may not %s", namespace, strings.Join(lacks, ", "))
}

// accepted judges the condition Accepted of objects. An object of another namespace, and a setting of an unknown name, harm
// the installation less.
func accepted[T any](f *Facts, c Check, objects []T, resource, page string, read func(*T) (metav1.Object, []metav1.Condition)) Check {
	var failed, others, waiting []string
	for i := range objects {
		o, conditions := read(&objects[i])
		name := o.GetNamespace() + "/" + o.GetName()
		accepted := meta.FindStatusCondition(conditions, v1alpha1.ConditionAccepted)
		switch own := o.GetNamespace() == f.Namespace; {
		case accepted == nil && !own:
			// The operator ignores objects of namespaces that are not enrolled.
		case accepted == nil || accepted.ObservedGeneration < o.GetGeneration():
			waiting = append(waiting, name)
		case accepted.Status != metav1.ConditionFalse:
		case own && accepted.Reason != v1alpha1.ReasonUnknownName:
			failed = append(failed, name+": "+accepted.Message)
		default:
			others = append(others, name+": "+accepted.Message)
		}
	}
	remedy := "correct it: kubectl -n NAMESPACE edit " + resource + " NAME"
	switch {
	case len(failed) > 0:
		return c.fail(some(append(failed, others...)), remedy, page)
	case len(others) > 0:
		return c.warn(some(others), remedy, page)
	case len(waiting) > 0:
		return c.warn("the operator has not read "+some(waiting)+" yet", "wait some seconds, then read the log of the leader", pageLeader)
	}
	return c.ok("%d", len(objects))
}

func (f *Facts) settingsAccepted(c Check) Check {
	return accepted(f, c, f.Settings.Value, "opsconfiginfo", pageSettings,
		func(o *v1alpha1.OpsConfigInfo) (metav1.Object, []metav1.Condition) { return o, o.Status.Conditions })
}

func (f *Facts) policiesAccepted(c Check) Check {
	return accepted(f, c, f.Policies.Value, "defensepolicy", "tasks/write-policies.md",
		func(p *v1alpha1.DefensePolicy) (metav1.Object, []metav1.Condition) { return p, p.Status.Conditions })
}

// lowered lists the operator's settings that lower the defense everywhere.
func (f *Facts) lowered(c Check) Check {
	own := slices.DeleteFunc(slices.Clone(f.Settings.Value), func(o v1alpha1.OpsConfigInfo) bool { return o.Namespace != f.Namespace })
	for i := range own {
		if _, leaving := settings.BeforeLeaving(own[i].Spec); leaving && own[i].Name == settings.NameObserve && f.deployment() != nil {
			return c.fail("an uninstall did not finish, and left everything in observe mode",
				"uninstall the operator, or end observe mode: kubectl altershield enroll --cluster --mode=enforce", "tasks/uninstall.md")
		}
	}
	inForce := settings.FromObjects(own)
	var lowers []string
	for _, s := range []struct {
		lowers bool
		what   string
	}{
		{inForce.Observe, "observe is on: releases are recorded and verified, and the operator does not act on them"},
		{!inForce.Blocking, "blocking is off: releases that fail do not block their workloads"},
		{!inForce.Rollback, "rollback is off: releases whose pods are stuck are not rolled back"},
		{!inForce.Halting, "halting is off: a rollout that fails continues to all pods"},
		{!inForce.Quarantine, "quarantine is off: versions that never started are denied without an end"},
	} {
		if s.lowers {
			lowers = append(lowers, s.what)
		}
	}
	if len(lowers) > 0 {
		return c.warn(strings.Join(lowers, "; "), "unless that is on purpose: kubectl -n "+f.Namespace+" edit opsconfiginfo NAME", pageSettings)
	}
	return c.ok("")
}

func (f *Facts) defaultPolicy(c Check) Check {
	i := slices.IndexFunc(f.Policies.Value, func(p v1alpha1.DefensePolicy) bool {
		return p.Namespace == f.Namespace && p.Name == policy.DefaultName
	})
	kubectl := "kubectl -n " + f.Namespace + " "
	if i < 0 {
		return c.warn(fmt.Sprintf("the DefensePolicy %s does not exist in %s: releases whose pods crash after they were ready pass",
			policy.DefaultName, f.Namespace), "restart the manager, which creates it: "+kubectl+"rollout restart deployment", pageDefault)
	}
	if mode := f.Policies.Value[i].Spec.Mode; mode != v1alpha1.ModeEnforce && mode != "" {
		return c.warn(fmt.Sprintf("its mode is %s: its findings fail no release", mode), "read its events, then "+kubectl+
			"patch defensepolicy "+policy.DefaultName+` --type=merge -p '{"spec":{"mode":"Enforce"}}'`, pageDefault)
	}
	return c.ok("")
}

// enrolled reports whether a namespace is enrolled.
func (f *Facts) enrolled(ns *metav1.PartialObjectMetadata) bool {
	return ns.DeletionTimestamp == nil && ns.Name != f.Namespace && workload.NamespaceEnrolled(ns.Name, ns.Labels)
}

// seen reports whether the webhooks select a namespace. An administrator may exclude namespaces by the namespace selectors.
func (f *Facts) seen(ns *metav1.PartialObjectMetadata) bool {
	for _, h := range f.webhooks() {
		selector, err := metav1.LabelSelectorAsSelector(h.NamespaceSelector)
		if err == nil && h.NamespaceSelector != nil && !selector.Matches(labels.Set(ns.Labels)) {
			return false
		}
	}
	return true
}

// namesOf returns the sorted names of the namespaces that match.
func (f *Facts) namesOf(match func(*metav1.PartialObjectMetadata) bool) (names []string) {
	for i := range f.Namespaces.Value {
		if ns := &f.Namespaces.Value[i]; match(ns) {
			names = append(names, ns.Name)
		}
	}
	slices.Sort(names)
	return names
}

// seenNamespaces returns the enrolled namespaces that the webhooks select.
func (f *Facts) seenNamespaces() []string {
	return f.namesOf(func(ns *metav1.PartialObjectMetadata) bool { return f.enrolled(ns) && f.seen(ns) })
}

func (f *Facts) enrolledNamespaces(c Check) Check {
	names := some(f.namesOf(f.enrolled))
	switch {
	case f.OnlyOwn:
		return c.ok("%s; your user may not list the others", cmp.Or(names, "yours is not"))
	case names == "":
		return c.ok("none yet: kubectl altershield enroll NAMESPACE")
	}
	return c.ok("%s", names)
}

// withoutEffect lists namespaces whose labels have no effect.
func (f *Facts) withoutEffect(c Check) Check {
	var found []string
	for i := range f.Namespaces.Value {
		ns := &f.Namespaces.Value[i]
		mistyped := admission.MistypedEnrolment(ns.Labels)
		switch enrolled := f.enrolled(ns); {
		case ns.DeletionTimestamp != nil || enrolled && f.seen(ns):
		case enrolled:
			found = append(found, ns.Name+" (the webhooks' namespace selectors exclude it)")
		case ns.Labels[v1alpha1.EnrolledLabel] == v1alpha1.EnrolledValue:
			found = append(found, ns.Name+" (never defended)")
		case mistyped != "":
			found = append(found, ns.Name+" ("+mistyped+")")
		}
	}
	if len(found) > 0 {
		return c.warn("the label has no effect on "+some(found),
			"remove the label: kubectl label namespace NAMESPACE "+v1alpha1.EnrolledLabel+
				"-; if it is mistyped, kubectl altershield enroll NAMESPACE",
			"tasks/enroll.md")
	}
	return c.ok("")
}

// attention counts workloads that need attention, which is no fault of the installation.
func (f *Facts) attention(c Check) Check {
	blocked, held := 0, 0
	for i := range f.Workloads.Value {
		if _, is := f.Workloads.Value[i].Labels[v1alpha1.SuspendLabel]; is {
			blocked++
		}
		if _, is := f.Workloads.Value[i].Annotations[v1alpha1.HeldAnnotation]; is {
			held++
		}
	}
	if blocked+held == 0 {
		return c.ok("none")
	}
	return c.ok("%d blocked, %d held: kubectl altershield status -A", blocked, held)
}
