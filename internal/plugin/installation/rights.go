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
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/config"
)

const (
	managerRole    = "manager-role"
	managerBinding = "manager-rolebinding"

	pageRoles    = "operations.md#altershieldreconcileerrors"
	pageSecurity = "operations.md#security-model"
)

// Roles are the roles of this build, by kind and name without the prefix of the
// installation.
type Roles struct {
	Cluster map[string]*rbacv1.ClusterRole
	Manager *rbacv1.Role
}

// WantedRoles are those of this build.
func WantedRoles() Roles {
	roles := Roles{Cluster: map[string]*rbacv1.ClusterRole{}}
	eachDocument(config.Roles, "rbac", func(data []byte) error {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &u.Object); err != nil {
			return err
		}
		convert := runtime.DefaultUnstructuredConverter.FromUnstructured
		switch u.GetKind() {
		case "ClusterRole":
			role := &rbacv1.ClusterRole{}
			roles.Cluster[u.GetName()] = role
			return convert(u.Object, role)
		case "Role":
			roles.Manager = &rbacv1.Role{}
			return convert(u.Object, roles.Manager)
		}
		return nil
	})
	return roles
}

// userRoles give users their rights with the roles that every cluster has.
func userRoles() []string { return []string{"viewer-role", "editor-role", "admin-role"} }

func rightsChecks(f *Facts) []Check {
	wanted := WantedRoles()
	return []Check{
		account(f), clusterRights(f, wanted), namespaceRights(f, wanted), usersRights(f, wanted), mine(f),
	}
}

func account(f *Facts) Check {
	c := newCheck("rights.account", "the operator's service account is there")
	if c, unread := f.Account.unread(c); unread {
		return c
	}
	if f.Account.missing() {
		return c.fail(fmt.Sprintf("there is no ServiceAccount %s in %s", f.accountName(), f.Namespace), applyAgain, pageRoles)
	}
	return c.ok("%s", f.accountName())
}

// accountName is as whom the manager runs.
func (f *Facts) accountName() string {
	if d := f.deployment(); d != nil && d.Spec.Template.Spec.ServiceAccountName != "" {
		return d.Spec.Template.Spec.ServiceAccountName
	}
	return f.prefix() + managerAccount
}

func clusterRights(f *Facts, wanted Roles) Check {
	c := newCheck("rights.cluster", "the operator has the rights it needs in the whole cluster")
	if c, unread := f.ClusterRole.unread(c); unread {
		return c
	}
	if c, unread := f.ClusterRoleBinding.unread(c); unread {
		return c
	}
	if f.ClusterRole.missing() {
		return c.fail("there is no ClusterRole "+f.prefix()+managerRole, applyAgain, pageRoles)
	}
	if f.ClusterRoleBinding.missing() {
		return c.fail("there is no ClusterRoleBinding "+f.prefix()+managerBinding, applyAgain, pageRoles)
	}
	binding := f.ClusterRoleBinding.Value
	if problem := f.bound(binding.RoleRef, "ClusterRole", binding.Subjects); problem != "" {
		return c.fail("the ClusterRoleBinding "+binding.Name+" "+problem, applyAgain, pageRoles)
	}
	return f.covers(c, f.ClusterRole.Value.Rules, wanted.Cluster[managerRole].Rules, "ClusterRole "+f.ClusterRole.Value.Name)
}

func namespaceRights(f *Facts, wanted Roles) Check {
	c := newCheck("rights.namespace", "the operator has the rights it needs in its namespace")
	if c, unread := f.Role.unread(c); unread {
		return c
	}
	if c, unread := f.RoleBinding.unread(c); unread {
		return c
	}
	if f.Role.missing() {
		return c.fail(fmt.Sprintf("there is no Role %s in %s", f.prefix()+managerRole, f.Namespace), applyAgain, pageRoles)
	}
	if f.RoleBinding.missing() {
		return c.fail(fmt.Sprintf("there is no RoleBinding %s in %s", f.prefix()+managerBinding, f.Namespace), applyAgain, pageRoles)
	}
	binding := f.RoleBinding.Value
	if problem := f.bound(binding.RoleRef, "Role", binding.Subjects); problem != "" {
		return c.fail("the RoleBinding "+binding.Name+" "+problem, applyAgain, pageRoles)
	}
	granted := slices.Clone(f.Role.Value.Rules)
	if f.ClusterRole.readable() {
		granted = append(granted, f.ClusterRole.Value.Rules...)
	}
	return f.covers(c, granted, wanted.Manager.Rules, "Role "+f.Role.Value.Name)
}

// bound says what is wrong with a binding of the manager's role.
func (f *Facts) bound(ref rbacv1.RoleRef, kind string, subjects []rbacv1.Subject) (problem string) {
	if ref.Kind != kind || ref.Name != f.prefix()+managerRole {
		return fmt.Sprintf("is of the %s %s, not of the %s %s", ref.Kind, ref.Name, kind, f.prefix()+managerRole)
	}
	if !slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
		return s.Kind == rbacv1.ServiceAccountKind && s.Name == f.accountName() && s.Namespace == f.Namespace
	}) {
		return fmt.Sprintf("does not name the ServiceAccount %s of %s", f.accountName(), f.Namespace)
	}
	return ""
}

// covers says whether rules grant what is wanted.
func (f *Facts) covers(c Check, granted, wanted []rbacv1.PolicyRule, whose string) Check {
	lacks, onlyRestoring := f.lacking(granted, wanted)
	switch {
	case len(lacks) == 0:
		return c.ok("")
	case onlyRestoring:
		return c.warn("it may not "+some(lacks)+", so webhook configurations that somebody changes stay so",
			"if that is not on purpose, "+applyAgain, pageSecurity)
	case f.sameBuild():
		return c.fail("it may not "+some(lacks)+": the "+whose+" is not that of this version", applyAgain+f.orOtherVersion(), pageRoles)
	default:
		return c.warn("it may not "+some(lacks)+", which an operator of this plugin's version needs",
			"upgrade the operator with its manifests, or take the plugin of its version", "operations.md#upgrade")
	}
}

// lacking are rights that are wanted and not granted. onlyRestoring says that they are
// those which one may take away where the certificate comes from elsewhere.
func (f *Facts) lacking(granted, wanted []rbacv1.PolicyRule) (lacks []string, onlyRestoring bool) {
	_, own := f.certificateSecret()
	onlyRestoring = !own
	missing := map[string][]string{}
	for _, rule := range wanted {
		for _, right := range each(f.named(rule)) {
			if slices.ContainsFunc(granted, right.in) {
				continue
			}
			what := right.what()
			missing[what] = append(missing[what], right.verb)
			onlyRestoring = onlyRestoring && right.verb == "update" && strings.HasSuffix(right.resource, "webhookconfigurations")
		}
	}
	for _, what := range slices.Sorted(maps.Keys(missing)) {
		lacks = append(lacks, strings.Join(missing[what], "/")+" "+what)
	}
	return lacks, onlyRestoring
}

// named is a rule with the names of this installation.
func (f *Facts) named(rule rbacv1.PolicyRule) rbacv1.PolicyRule {
	mutating, validating := f.configurations()
	names := map[string]string{
		defaultPrefix + "mutating-webhook-configuration":   mutating,
		defaultPrefix + "validating-webhook-configuration": validating,
		defaultPrefix + "webhook-server-cert":              f.flag("webhook-cert-secret", defaultPrefix+"webhook-server-cert"),
	}
	rule = *rule.DeepCopy()
	for i, name := range rule.ResourceNames {
		if given, ok := names[name]; ok {
			rule.ResourceNames[i] = given
		}
	}
	return rule
}

// right is one thing that a rule grants.
type right struct{ group, resource, name, url, verb string }

func (r right) what() string {
	if r.url != "" {
		return r.url
	}
	what := r.resource
	if r.group != "" {
		what += "." + r.group
	}
	if r.name != "" {
		what += " " + r.name
	}
	return what
}

// each right of a rule.
func each(rule rbacv1.PolicyRule) []right {
	var rights []right
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, verb := range rule.Verbs {
		for _, url := range rule.NonResourceURLs {
			rights = append(rights, right{url: url, verb: verb})
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					rights = append(rights, right{group: group, resource: resource, name: name, verb: verb})
				}
			}
		}
	}
	return rights
}

// in says that a rule grants the right.
func (r right) in(rule rbacv1.PolicyRule) bool {
	if !has(rule.Verbs, r.verb) {
		return false
	}
	if r.url != "" {
		return slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool {
			before, wildcard := strings.CutSuffix(url, "*")
			return url == r.url || wildcard && strings.HasPrefix(r.url, before)
		})
	}
	_, sub, _ := strings.Cut(r.resource, "/")
	return has(rule.APIGroups, r.group) &&
		(has(rule.Resources, r.resource) || sub != "" && slices.Contains(rule.Resources, "*/"+sub)) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.name))
}

func has(items []string, item string) bool {
	return slices.Contains(items, "*") || slices.Contains(items, item)
}

// usersRights looks at the roles by which users see and handle releases.
func usersRights(f *Facts, wanted Roles) Check {
	c := newCheck("rights.users", "the roles view, edit and admin contain what users need")
	var problems []string
	for _, name := range userRoles() {
		live := f.UserRoles[name]
		if c, unread := live.unread(c); unread {
			return c
		}
		if live.missing() {
			problems = append(problems, "there is no ClusterRole "+f.prefix()+name)
			continue
		}
		for key, value := range wanted.Cluster[name].Labels {
			if live.Value.Labels[key] != value {
				problems = append(problems, fmt.Sprintf("the ClusterRole %s lacks the label %s=%s", live.Value.Name, key, value))
			}
		}
		if lacks, _ := f.lacking(live.Value.Rules, wanted.Cluster[name].Rules); len(lacks) > 0 {
			problems = append(problems, fmt.Sprintf("the ClusterRole %s lacks: %s", live.Value.Name, some(lacks)))
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return c.warn(strings.Join(problems, "; "), applyAgain, pageSecurity)
	}
	return c.ok("")
}

// mine tells which commands of the plugin are for this user.
func mine(f *Facts) Check {
	c := newCheck("rights.yours", "your rights suffice for the commands of this plugin")
	if c, unread := f.Mine.unread(c); unread {
		return c
	}
	var lacks []string
	for _, access := range f.Mine.Value {
		if !access.Allowed {
			resource := access.Resource
			if access.Subresource != "" {
				resource += "/" + access.Subresource
			}
			lacks = append(lacks, fmt.Sprintf("%s: you may not %s %s", access.For, access.Verb, resource))
		}
	}
	where := ""
	if len(f.Mine.Value) > 0 {
		where = "in the namespace " + f.Mine.Value[0].Namespace
	}
	if len(lacks) == 0 {
		return c.ok("%s", where)
	}
	// It is no fault of the installation.
	return c.ok("not for all, %s: %s", where, strings.Join(lacks, "; "))
}
