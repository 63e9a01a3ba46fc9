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

// Package installation checks the operator's installation in a cluster. [Observe] reads the facts with the user's
// rights. [Judge] decides from the facts alone. The files:
//
//   - report.go: the report, its checks, and [Judge], which lists them all
//   - facts.go: the facts, and names and versions that follow from the manager's Deployment
//   - observe.go: reading the facts, with the dry run and the user's access reviews
//   - operator.go: groups kubernetes, kinds, operator and server
//   - webhooks.go: group webhooks
//   - defense.go: groups rights, settings, policies and namespaces
package installation

import (
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is the result of a check.
type Status string

const (
	// OK means that nothing has to be done.
	OK Status = "ok"
	// Warning means that the defense works, and that a person should look at this.
	Warning Status = "warning"
	// Failed means that something does not work, or soon will not.
	Failed Status = "failed"
	// Skipped means that the result is unknown: the user may not read what the check needs, or there is nothing to check.
	Skipped Status = "skipped"
)

// Report is what kubectl altershield check -o json prints. Fields stay, and no id of a check changes its meaning.
type Report struct {
	// Healthy reports whether no check failed and enough was read to know.
	Healthy bool `json:"healthy"`
	// Unknown reports whether no check failed and the user may read too little to know more.
	Unknown bool `json:"unknown,omitempty"`
	// Namespace of the operator.
	Namespace string `json:"operatorNamespace"`
	// PluginVersion is the version of the plugin that checked.
	PluginVersion string `json:"pluginVersion"`
	// OperatorVersion is the tag of the operator's image; empty if unknown.
	OperatorVersion string `json:"operatorVersion,omitempty"`
	// CheckedAt is the time of the check by the API server's clock; nil if the API server did not answer.
	CheckedAt *metav1.Time `json:"checkedAt,omitempty"`
	// Summary counts the checks by their status.
	Summary Summary `json:"summary"`
	// Groups of checks.
	Groups []Group `json:"groups"`
}

// Summary counts checks by their status.
type Summary struct {
	OK       int `json:"ok"`
	Warnings int `json:"warnings"`
	Failed   int `json:"failed"`
	Skipped  int `json:"skipped"`
}

// Group holds the checks of one part of the installation.
type Group struct {
	// Name of the group: kubernetes, kinds, operator, webhooks, rights, settings, policies, server, namespaces.
	Name string `json:"name"`
	// Checks in the order in which they are printed.
	Checks []Check `json:"checks"`
}

// Check is one check with its result.
type Check struct {
	// ID names the check: its group and its subject, as in webhooks.answer.
	ID string `json:"id"`
	// Name states what the check expects.
	Name string `json:"name"`
	// Status is the result: ok, warning, failed or skipped.
	Status Status `json:"status"`
	// Message is what was found.
	Message string `json:"message,omitempty"`
	// Remedy is what to do; empty unless Status is warning or failed.
	Remedy string `json:"remedy,omitempty"`
	// Docs is the address of the page about the problem.
	Docs string `json:"docs,omitempty"`
}

const (
	// docs is the address of the pages.
	docs = "https://github.com/traas-stack/altershield-operator/blob/main/docs/"

	pageCheck   = "reference/plugin.md#check"
	pageInstall = "getting-started/install.md"
	pageUpgrade = "tasks/upgrade.md"

	// applyAgain is the remedy of several checks.
	applyAgain = "apply the manifests of the operator again: kubectl apply -f quick-start.yaml, or helm upgrade"
)

func (c Check) ok(format string, args ...any) Check {
	c.Status, c.Message = OK, fmt.Sprintf(format, args...)
	return c
}

func (c Check) skip(format string, args ...any) Check {
	c.Status, c.Message = Skipped, fmt.Sprintf(format, args...)
	return c
}

// warn takes what was found, what to do, and the page with its anchor.
func (c Check) warn(message, remedy, page string) Check {
	c.Status, c.Message, c.Remedy, c.Docs = Warning, message, remedy, docs+page
	return c
}

// fail is warn for a failure.
func (c Check) fail(message, remedy, page string) Check {
	c = c.warn(message, remedy, page)
	c.Status = Failed
	return c
}

// on decides a check from what was read. A read that failed decides it without decide.
func on[T any](r Read[T], id, name string, decide func(Check) Check) Check {
	c := Check{ID: id, Name: name}
	switch {
	case r.Err == nil || r.missing():
		return decide(c)
	case apierrors.IsForbidden(r.Err):
		return c.skip("your user may not %s", r.Of)
	default:
		return c.fail(r.Of+": "+r.Err.Error(), "retry; if it fails again, check the API server: kubectl get --raw /readyz?verbose", pageCheck)
	}
}

// onList is on for objects of the operator's kinds, which may not exist.
func onList[T any](r Read[[]T], id, name string, decide func(Check) Check) Check {
	return on(r, id, name, func(c Check) Check {
		if r.missing() {
			return c.skip("the kind does not exist")
		}
		return decide(c)
	})
}

// Judge decides how healthy the installation is. A check is left out if there is nothing to check.
func Judge(f *Facts) Report {
	r := Report{Namespace: f.Namespace, PluginVersion: f.Plugin, OperatorVersion: f.operatorVersion()}
	r.add("kubernetes", f.reachable(Check{ID: "kubernetes.reachable", Name: "the API server answers"}))
	if !f.answered() {
		return r.judged()
	}
	at := metav1.NewTime(f.Now)
	r.CheckedAt = &at
	r.add("kinds", f.kinds()...)
	if len(f.ChangeKinds.Value) > 0 || f.ChangeKinds.Err != nil && !f.ChangeKinds.missing() {
		r.add("kinds", on(f.ChangeKinds, "kinds.declared", "the declared kinds are defended", f.declared))
	}
	r.add("operator", on(f.Deployments, "operator.deployment", "the manager's Deployment is available", f.available))
	if f.deployment() != nil {
		r.add("operator",
			on(f.Pods, "operator.replicas", "every replica is ready", f.replicas),
			on(f.Pods, "operator.restarts", "no replica restarted in the last hour", f.restarts),
			on(f.Deployments, "operator.version", "operator and plugin have the same version", f.versions),
			on(f.Lease, "operator.leader", "a replica leads", f.leader))
	}
	mutating, validating := f.configurations()
	r.add("webhooks",
		on(f.Mutating, "webhooks.mutating", "the mutating webhook configuration exists",
			configured(f.Mutating, mutating, "releases are recorded only after they were stored, and no rollout is held from its beginning")),
		on(f.Validating, "webhooks.validating", "the validating webhook configuration exists",
			configured(f.Validating, validating, "no release of a blocked workload is denied")))
	if len(f.Validating.Value) > 0 {
		r.add("webhooks", on(f.Validating, "webhooks.block", "blocks hold while the operator is down", f.failsClosed))
	}
	if len(f.webhooks()) > 0 {
		r.add("webhooks", f.authority(Check{ID: "webhooks.authority", Name: "the webhooks carry a CA bundle that is valid"}),
			on(f.Certificate, "webhooks.certificate", "the certificate of the webhooks is valid", f.certificate))
	}
	r.add("webhooks", on(f.Answer, "webhooks.answer", "a Deployment created in a dry run passes the webhooks", f.answers))
	r.add("rights", on(f.Mine, "rights.yours", "your own rights", f.rights))
	r.add("settings",
		onList(f.Settings, "settings.accepted", "every setting is in force", f.settingsAccepted),
		onList(f.Settings, "settings.defense", "no setting lowers the defense of the whole cluster", f.lowered))
	r.add("policies",
		onList(f.Policies, "policies.default", "the default policy exists and enforces", f.defaultPolicy),
		onList(f.Policies, "policies.accepted", "every policy is accepted", f.policiesAccepted))
	r.add("server", on(f.Pods, "server.healthy", "AlterShield Server answers every replica", f.server))
	r.add("namespaces",
		on(f.Namespaces, "namespaces.enrolled", "namespaces are enrolled", f.enrolledNamespaces),
		on(f.Namespaces, "namespaces.excluded", "every label of enrolment has an effect", f.withoutEffect),
		on(f.Workloads, "namespaces.workloads", "workloads that need attention are counted", f.attention))
	return r.judged()
}

func (r Report) judged() Report {
	r.Unknown = r.Summary.Failed == 0 && !r.seen()
	r.Healthy = r.Summary.Failed == 0 && !r.Unknown
	return r
}

// seen reports whether the user could read the manager, its webhooks, or their answer: without them there is no defense.
func (r Report) seen() bool {
	essential := []string{"operator.deployment", "webhooks.mutating", "webhooks.validating", "webhooks.answer"}
	return slices.ContainsFunc(r.checks(), func(c Check) bool { return c.Status != Skipped && slices.Contains(essential, c.ID) })
}

// add adds checks to a group: to the last one if that has the name.
func (r *Report) add(group string, checks ...Check) {
	if n := len(r.Groups); n == 0 || r.Groups[n-1].Name != group {
		r.Groups = append(r.Groups, Group{Name: group})
	}
	last := &r.Groups[len(r.Groups)-1]
	last.Checks = append(last.Checks, checks...)
	for _, c := range checks {
		*map[Status]*int{OK: &r.Summary.OK, Warning: &r.Summary.Warnings, Failed: &r.Summary.Failed, Skipped: &r.Summary.Skipped}[c.Status]++
	}
}

func (r Report) checks() (all []Check) {
	for _, g := range r.Groups {
		all = append(all, g.Checks...)
	}
	return all
}

// NotPassed returns the checks that failed or warn.
func (r *Report) NotPassed() []Check {
	return slices.DeleteFunc(r.checks(), func(c Check) bool { return c.Status == OK || c.Status == Skipped })
}

// some joins the first items of a list.
func some(items []string) string {
	const most = 5
	if len(items) > most {
		items = append(slices.Clone(items[:most]), fmt.Sprintf("and %d more", len(items)-most))
	}
	return strings.Join(items, ", ")
}
