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
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	defended "github.com/traas-stack/altershield-operator/internal/defense"
)

const pageEnrol = "user-guide.md#enrol-a-namespace-or-leave"

// lookThere is how to see which workloads are meant.
const lookThere = "kubectl altershield status -A"

func namespacesChecks(f *Facts) []Check {
	return []Check{enrolled(f), excluded(f), attention(f)}
}

// enrolled says that the webhooks see the namespace.
func (f *Facts) enrolled(ns *metav1.PartialObjectMetadata) bool {
	return ns.DeletionTimestamp == nil && ns.Name != f.Namespace && defended.NamespaceEnrolled(ns.Name, ns.Labels)
}

// enrolledNamespaces are their names.
func (f *Facts) enrolledNamespaces() []string {
	var names []string
	for i := range f.Namespaces.Value {
		if ns := &f.Namespaces.Value[i]; f.enrolled(ns) {
			names = append(names, ns.Name)
		}
	}
	slices.Sort(names)
	return names
}

// seenNamespaces are those of them that the mutating webhooks see: further ones may be
// left out by their namespace selectors, and that stays.
func (f *Facts) seenNamespaces() []string {
	var names []string
	for i := range f.Namespaces.Value {
		if ns := &f.Namespaces.Value[i]; f.enrolled(ns) && f.seen(ns) {
			names = append(names, ns.Name)
		}
	}
	slices.Sort(names)
	return names
}

func (f *Facts) seen(ns *metav1.PartialObjectMetadata) bool {
	for _, read := range []Read[*unstructured.Unstructured]{f.Mutating, f.Validating} {
		if !read.readable() {
			continue
		}
		for _, hook := range hooks(read.Value) {
			content, _, _ := unstructured.NestedMap(hook, "namespaceSelector")
			selects := &metav1.LabelSelector{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, selects); err != nil {
				continue // told as a deviation
			}
			selector, err := metav1.LabelSelectorAsSelector(selects)
			if err == nil && !selector.Matches(labels.Set(ns.Labels)) {
				return false
			}
		}
	}
	return true
}

func enrolled(f *Facts) Check {
	c := newCheck("namespaces.enrolled", "namespaces are enrolled")
	if c, unread := f.Namespaces.unread(c); unread {
		return c
	}
	names := f.enrolledNamespaces()
	if f.OnlyOwn {
		if len(names) == 0 {
			return c.ok("yours is not; your user may not list the others")
		}
		return c.ok("yours, %s; your user may not list the others", names[0])
	}
	if len(names) == 0 {
		return c.ok("none yet: kubectl altershield enroll NAMESPACE")
	}
	return c.ok("%s: %s", count(len(names), "namespace"), some(names))
}

// excluded names namespaces that are labelled without effect.
func excluded(f *Facts) Check {
	c := newCheck("namespaces.excluded", "no namespace is labelled that is never defended")
	if c, unread := f.Namespaces.unread(c); unread {
		return c
	}
	var without, values, unseen []string
	for i := range f.Namespaces.Value {
		ns := &f.Namespaces.Value[i]
		mistyped := defended.MistypedEnrolment(ns.Labels)
		switch value := ns.Labels[v1alpha1.EnrolledLabel]; {
		case f.enrolled(ns) && !f.seen(ns):
			unseen = append(unseen, ns.Name)
		case ns.DeletionTimestamp != nil || f.enrolled(ns):
		case value == v1alpha1.EnrolledValue:
			without = append(without, ns.Name)
		case mistyped != "":
			values = append(values, ns.Name+" ("+mistyped+")")
		}
	}
	switch {
	case len(without) > 0:
		return c.warn("webhooks and controllers leave these out, whatever their labels: "+some(without),
			"take the label off: kubectl label namespace NAME "+v1alpha1.EnrolledLabel+"-", "operations.md#faq")
	case len(unseen) > 0:
		mutating, validating := f.configurations()
		return c.warn("webhooks leave these out by their namespace selectors, so nothing is denied there: "+some(unseen),
			"take the label off, or take them out of namespaceSelector in "+mutating+" and "+validating, pageCertificates)
	case len(values) > 0:
		return c.warn("labels that have no effect: "+some(values),
			"kubectl altershield enroll NAMESPACE, or take the label off", pageEnrol)
	}
	return c.ok("")
}

// attention counts the workloads that need attention. They are no fault of the
// installation.
func attention(f *Facts) Check {
	c := newCheck("namespaces.workloads", "workloads that need attention are known")
	if c, unread := f.Blocked.unread(c); unread {
		return c
	}
	if c, unread := f.Releases.unlisted(c); unread {
		return c
	}
	within := f.enrolledNamespaces()
	here := func(namespace string) bool { return f.Namespaces.Err != nil || slices.Contains(within, namespace) }
	blocked := 0
	for i := range f.Blocked.Value {
		if here(f.Blocked.Value[i].Namespace) {
			blocked++
		}
	}
	held, denied := 0, 0
	for i := range f.Releases.Value {
		r := &f.Releases.Value[i]
		if !here(r.Namespace) || r.Status.Status == v1alpha1.ChangeWorkloadCanceled || r.Status.Status == v1alpha1.ChangeWorkloadRollback {
			continue
		}
		if meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionHeld) {
			held++
		}
		if r.Status.DeniedWrite != nil {
			denied++
		}
	}
	var told []string
	for _, n := range []struct {
		of   int
		what string
	}{{blocked, "blocked"}, {held, "held"}} {
		if n.of > 0 {
			told = append(told, count(n.of, "workload")+" "+n.what)
		}
	}
	if denied > 0 {
		told = append(told, count(denied, "release")+" with writes that something denies")
	}
	if len(told) == 0 {
		return c.ok("none")
	}
	return c.ok("%s: %s", strings.Join(told, ", "), lookThere)
}
