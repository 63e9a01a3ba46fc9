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

// Package installation says whether the operator's installation in a cluster is healthy.
// [Observe] reads what there is to know; what follows from it is decided by pure
// functions, one for each group of checks.
package installation

import (
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is how a check ended.
type Status string

const (
	// OK means that nothing has to be done.
	OK Status = "ok"
	// Warning means that the defense works, and that somebody should look at this.
	Warning Status = "warning"
	// Failed means that something does not work, or soon will not.
	Failed Status = "failed"
	// Skipped means that it could not be told: the user has no right to read what is
	// needed, or there is nothing to look at.
	Skipped Status = "skipped"
)

// Report is what kubectl altershield check -o json prints. Fields and ids of checks
// stay; further ones may be added.
type Report struct {
	// Healthy says that no check failed, and that enough was read to say so.
	Healthy bool `json:"healthy"`
	// Unknown says that no check failed, and that the user may read too little to say more.
	Unknown bool `json:"unknown,omitempty"`
	// Namespace of the operator.
	Namespace string `json:"operatorNamespace"`
	// PluginVersion is the version of the plugin that checked.
	PluginVersion string `json:"pluginVersion"`
	// OperatorVersion is the tag of the image that the operator runs; empty where it is
	// not known.
	OperatorVersion string `json:"operatorVersion,omitempty"`
	// CheckedAt is when, by the API server's clock; not there when it did not answer.
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

// Group is what is checked of one part of the installation.
type Group struct {
	// Name of the group: kubernetes, kinds, operator, webhooks, rights, settings, policies,
	// server, namespaces.
	Name string `json:"name"`
	// Checks in the order in which they are told.
	Checks []Check `json:"checks"`
}

// Check is one check with its result.
type Check struct {
	// ID names the check: its group, and what it is about, as in webhooks.answer.
	ID string `json:"id"`
	// Name says what is so when all is well.
	Name string `json:"name"`
	// Status is how it ended: ok, warning, failed or skipped.
	Status Status `json:"status"`
	// Message says what was found.
	Message string `json:"message,omitempty"`
	// Remedy says what to do; empty unless Status is warning or failed.
	Remedy string `json:"remedy,omitempty"`
	// Docs is the address of the page that says more.
	Docs string `json:"docs,omitempty"`
}

// docs is where the pages are.
const docs = "https://github.com/traas-stack/altershield-operator/blob/main/docs/"

// pageCheck is the page about this command.
const pageCheck = "plugin-check.md"

// applyAgain is the remedy of several checks.
const applyAgain = "apply the manifests of the operator again: kubectl apply -f quick-start.yaml, or helm upgrade"

func newCheck(id, name string) Check { return Check{ID: id, Name: name} }

func (c Check) ok(format string, args ...any) Check {
	c.Status, c.Message = OK, fmt.Sprintf(format, args...)
	return c
}

func (c Check) skip(format string, args ...any) Check {
	c.Status, c.Message = Skipped, fmt.Sprintf(format, args...)
	return c
}

// warn and fail take what was found, what to do, and the page, with its anchor, that
// says more.
func (c Check) warn(message, remedy, page string) Check {
	c.Status, c.Message, c.Remedy, c.Docs = Warning, message, remedy, docs+page
	return c
}

func (c Check) fail(message, remedy, page string) Check {
	c = c.warn(message, remedy, page)
	c.Status = Failed
	return c
}

// Read is something that was read, or why it was not.
type Read[T any] struct {
	Value T
	Err   error
	// Of says what was asked for, as in: get leases in altershieldoperator-system.
	Of string
}

// missing says that it does not exist.
func (r Read[T]) missing() bool { return apierrors.IsNotFound(r.Err) }

// unread is the result of a check that lacks what it is about; ok is false where it was
// read, or is known not to be there.
func (r Read[T]) unread(c Check) (_ Check, ok bool) {
	switch {
	case r.Err == nil || r.missing():
		return c, false
	case apierrors.IsForbidden(r.Err):
		return c.skip("your user may not %s", r.Of), true
	default:
		return c.fail(fmt.Sprintf("%s: %v", r.Of, r.Err), "try again; if it stays, look at the API server: kubectl get --raw /readyz?verbose",
			pageCheck), true
	}
}

// unlisted is unread for objects of the operator's own kinds, which may not be there.
func (r Read[T]) unlisted(c Check) (_ Check, ok bool) {
	if r.missing() {
		return c.skip("the kind is not there"), true
	}
	return r.unread(c)
}

// readable says that it was read and is there.
func (r Read[T]) readable() bool { return r.Err == nil }

// Judge says how healthy the installation is.
func Judge(f *Facts) Report {
	r := Report{Namespace: f.Namespace, PluginVersion: f.Plugin, OperatorVersion: f.operatorVersion()}
	if !f.ServerNow.IsZero() {
		at := metav1.NewTime(f.ServerNow)
		r.CheckedAt = &at
	}
	r.add("kubernetes", kubernetesChecks(f))
	// Nothing else can be told while the API server does not answer.
	if f.Version.Err == nil || apierrors.IsForbidden(f.Version.Err) {
		r.add("kinds", kindsChecks(f))
		r.add("operator", operatorChecks(f))
		if f.absent() {
			if f.servedElsewhere() == "" {
				r.add("webhooks", []Check{leftBehind(f)})
			}
			return r.judged()
		}
		r.add("webhooks", webhooksChecks(f))
		r.add("rights", rightsChecks(f))
		r.add("settings", settingsChecks(f))
		r.add("policies", policiesChecks(f))
		r.add("server", serverChecks(f))
		r.add("namespaces", namespacesChecks(f))
	}
	return r.judged()
}

func (r Report) judged() Report {
	r.Unknown = r.Summary.Failed == 0 && !r.seen()
	r.Healthy = r.Summary.Failed == 0 && !r.Unknown
	return r
}

// seen reports whether something was read without which there is no defense: the manager,
// its webhooks, or an answer of theirs.
func (r Report) seen() bool {
	for _, g := range r.Groups {
		for _, c := range g.Checks {
			essential := slices.Contains([]string{"operator.deployment", "webhooks.mutating", "webhooks.validating", "webhooks.answer"}, c.ID)
			if essential && c.Status != Skipped {
				return true
			}
		}
	}
	return false
}

func (r *Report) add(name string, checks []Check) {
	r.Groups = append(r.Groups, Group{Name: name, Checks: checks})
	for _, c := range checks {
		switch c.Status {
		case OK:
			r.Summary.OK++
		case Warning:
			r.Summary.Warnings++
		case Failed:
			r.Summary.Failed++
		case Skipped:
			r.Summary.Skipped++
		}
	}
}

// NotPassed are the checks that failed or warn.
func (r *Report) NotPassed() []Check {
	var found []Check
	for _, g := range r.Groups {
		for _, c := range g.Checks {
			if c.Status == Failed || c.Status == Warning {
				found = append(found, c)
			}
		}
	}
	return found
}

// some tells a few of many.
func some(items []string) string {
	const most = 5
	items = slices.Clone(items)
	if len(items) > most {
		items = append(items[:most:most], fmt.Sprintf("and %d more", len(items)-most))
	}
	return strings.Join(items, ", ")
}

// count is a number of things: 1 pod, 2 pods.
func count(n int, one string) string {
	switch {
	case n == 1:
		return "1 " + one
	case strings.HasSuffix(one, "y"):
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(one, "y"))
	default:
		return fmt.Sprintf("%d %ss", n, one)
	}
}
