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

package observer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// BoundRole is a Role or ClusterRole that a user has.
type BoundRole struct {
	Name string
	// Namespace it is bound in; empty where it is bound in the whole cluster.
	Namespace string
	Rules     []rbacv1.PolicyRule
}

// BindRole is a Role, which is bound in its own namespace.
func BindRole(r *rbacv1.Role) BoundRole {
	return BoundRole{Name: "Role " + r.Namespace + "/" + r.Name, Namespace: r.Namespace, Rules: r.Rules}
}

// BindClusterRole is a ClusterRole that is bound in the whole cluster.
func BindClusterRole(r *rbacv1.ClusterRole) BoundRole {
	return BoundRole{Name: "ClusterRole " + r.Name, Rules: r.Rules}
}

// everybody has these rights: whoever is authenticated has the ClusterRoles
// system:basic-user, system:discovery and system:public-info-viewer.
var everybody = BoundRole{Name: "everybody", Rules: []rbacv1.PolicyRule{
	{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews"}},
	{Verbs: []string{"create"}, APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"selfsubjectreviews"}},
	{Verbs: []string{"get"}, NonResourceURLs: []string{
		"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/", "/healthz", "/livez", "/readyz",
	}},
}}

// Compare says which single permissions of some roles no request needed, and
// what requests needed that none of them, and no right that everybody has,
// permits. What was refused and is permitted by now is neither.
func Compare(roles []BoundRole, used *Used) (unused, missing []string) {
	for _, role := range roles {
		for _, p := range role.permissions() {
			if !anyRight(used.Allowed, p.permits) {
				unused = append(unused, role.Name+": "+p.String())
			}
		}
	}
	slices.Sort(unused)

	var permitted []permission
	for _, role := range append(slices.Clone(roles), everybody) {
		permitted = append(permitted, role.permissions()...)
	}
	lacking := func(r Right) bool {
		return !slices.ContainsFunc(permitted, func(p permission) bool { return p.permits(r) })
	}
	missing = append(summarize(used.Allowed, lacking, ""), summarize(used.Forbidden, lacking, ", forbidden")...)
	slices.Sort(missing)
	return slices.Compact(unused), missing
}

func anyRight(rights map[Right]bool, is func(Right) bool) bool {
	for r := range rights {
		if is(r) {
			return true
		}
	}
	return false
}

// summarize has one line for each thing that is done, with an object it is done
// to: there may be thousands of those.
func summarize(rights map[Right]bool, wanted func(Right) bool, suffix string) []string {
	which := map[string][]string{}
	for r := range rights {
		if wanted(r) {
			which[r.what()] = append(which[r.what()], r.which())
		}
	}
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(which)) {
		line, first, others := what, slices.Min(which[what]), len(which[what])-1
		if first != "" {
			line += " " + first
		}
		if others > 0 {
			line += fmt.Sprintf(" and %d more", others)
		}
		lines = append(lines, line+suffix)
	}
	return lines
}

// permission is the smallest part of a rule: one verb with one resource, of one
// name where the rule has names, or with one URL. Any of them may be "*".
type permission struct {
	// namespace is empty for all.
	namespace             string
	verb, group, resource string
	named                 bool
	name                  string
	url                   string
}

// permissions takes the rules of a role apart.
func (b BoundRole) permissions() []permission {
	var all []permission
	for _, rule := range b.Rules {
		for _, verb := range rule.Verbs {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					p := permission{namespace: b.Namespace, verb: verb, group: group, resource: resource}
					if len(rule.ResourceNames) == 0 {
						all = append(all, p)
					}
					for _, name := range rule.ResourceNames {
						p.named, p.name = true, name
						all = append(all, p)
					}
				}
			}
			for _, url := range rule.NonResourceURLs {
				all = append(all, permission{namespace: b.Namespace, verb: verb, url: url})
			}
		}
	}
	return all
}

// permits decides as the RBAC authorizer does.
func (p permission) permits(r Right) bool {
	if p.verb != rbacv1.VerbAll && p.verb != r.Verb {
		return false
	}
	if r.Resource == "" {
		// URLs are in no namespace.
		return p.url != "" && p.namespace == "" && (p.url == rbacv1.NonResourceAll || p.url == r.Path ||
			strings.HasSuffix(p.url, "*") && strings.HasPrefix(r.Path, strings.TrimRight(p.url, "*")))
	}
	return p.url == "" &&
		(p.namespace == "" || p.namespace == r.Namespace) &&
		(p.group == rbacv1.APIGroupAll || p.group == r.Group) &&
		p.permitsResource(r) &&
		(!p.named || p.name == r.Name)
}

func (p permission) permitsResource(r Right) bool {
	return p.resource == rbacv1.ResourceAll ||
		p.resource == qualified("", r.Resource, r.Subresource) ||
		r.Subresource != "" && p.resource == "*/"+r.Subresource
}

func (p permission) String() string {
	if p.url != "" {
		return p.verb + " " + p.url
	}
	resource, subresource, _ := strings.Cut(p.resource, "/")
	s := p.verb + " " + qualified(p.group, resource, subresource)
	if p.named {
		s += fmt.Sprintf(" %q", p.name)
	}
	return s
}
