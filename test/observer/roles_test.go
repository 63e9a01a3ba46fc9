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
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rule is of verbs, groups ("-" is the core group) and resources, each separated
// by commas.
func rule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{
		Verbs: strings.Split(verbs, ","), APIGroups: strings.Split(strings.ReplaceAll(groups, "-", ""), ","),
		Resources: strings.Split(resources, ","), ResourceNames: names,
	}
}

func clusterRole(rules ...rbacv1.PolicyRule) BoundRole {
	return BindClusterRole(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "manager"}, Rules: rules})
}

func role(rules ...rbacv1.PolicyRule) BoundRole {
	return BindRole(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "manager", Namespace: "ns"}, Rules: rules})
}

func TestCompare(t *testing.T) {
	pod := func(verb, namespace, name string) Right {
		return Right{Verb: verb, Resource: "pods", Namespace: namespace, Name: name}
	}
	tests := map[string]struct {
		roles              []BoundRole
		allowed, forbidden []Right
		unused, missing    []string
	}{
		"nothing": {},
		"nothing used": {
			roles: []BoundRole{clusterRole(rule("get,list", "-,apps", "a,b/status")), role(rule("update", "g", "c", "x", "y"))},
			unused: []string{
				"ClusterRole manager: get a", "ClusterRole manager: get a.apps", "ClusterRole manager: get b.apps/status", "ClusterRole manager: get b/status",
				"ClusterRole manager: list a", "ClusterRole manager: list a.apps", "ClusterRole manager: list b.apps/status", "ClusterRole manager: list b/status",
				`Role ns/manager: update c.g "x"`, `Role ns/manager: update c.g "y"`,
			},
		},
		"all used": {
			roles:   []BoundRole{clusterRole(rule("get,watch", "-", "pods")), role(rule("get", "-", "secrets", "cert"))},
			allowed: []Right{pod("get", "shop", "web"), pod("watch", "", ""), {Verb: "get", Resource: "secrets", Namespace: "ns", Name: "cert"}},
		},
		"another verb": {
			roles: []BoundRole{clusterRole(rule("get,list", "-", "pods"))}, allowed: []Right{pod("get", "shop", "web"), pod("watch", "", "")},
			unused: []string{"ClusterRole manager: list pods"}, missing: []string{"watch pods"},
		},
		"another group": {
			roles:   []BoundRole{clusterRole(rule("create", "events.k8s.io", "events"))},
			allowed: []Right{{Verb: "create", Resource: "events", Namespace: "shop"}},
			unused:  []string{"ClusterRole manager: create events.events.k8s.io"}, missing: []string{"create events shop/"},
		},
		"a subresource is not the resource": {
			roles: []BoundRole{clusterRole(rule("update", "g", "things,others/status"))},
			allowed: []Right{
				{Verb: "update", Group: "g", Resource: "things", Subresource: "status", Namespace: "shop", Name: "a"},
				{Verb: "update", Group: "g", Resource: "others", Namespace: "shop", Name: "b"},
			},
			unused:  []string{"ClusterRole manager: update others.g/status", "ClusterRole manager: update things.g"},
			missing: []string{"update others.g shop/b", "update things.g/status shop/a"},
		},
		"finalizers": {
			roles: []BoundRole{clusterRole(rule("update", "apps", "deployments/finalizers"), rule("update", "g", "things/finalizers"))},
			allowed: []Right{
				{Verb: "update", Group: "apps", Resource: "deployments", Subresource: "finalizers", Namespace: "shop", Name: "web"},
				{Verb: "update", Resource: "namespaces", Subresource: "finalizers", Name: "ns"},
			},
			unused: []string{"ClusterRole manager: update things.g/finalizers"}, missing: []string{"update namespaces/finalizers ns"},
		},
		"names": {
			roles: []BoundRole{clusterRole(rule("get,list,watch", "g", "hooks", "ours", "theirs"))},
			allowed: []Right{
				{Verb: "get", Group: "g", Resource: "hooks", Name: "ours"}, {Verb: "list", Group: "g", Resource: "hooks", Name: "ours"},
				{Verb: "list", Group: "g", Resource: "hooks", Name: "theirs"}, {Verb: "watch", Group: "g", Resource: "hooks"},
				{Verb: "get", Group: "g", Resource: "hooks", Name: "another"},
			},
			unused: []string{
				`ClusterRole manager: get hooks.g "theirs"`, `ClusterRole manager: watch hooks.g "ours"`, `ClusterRole manager: watch hooks.g "theirs"`,
			},
			missing: []string{"get hooks.g another", "watch hooks.g"},
		},
		"creates cannot be restricted to a name": {
			roles: []BoundRole{role(rule("create", "-", "secrets", "cert"))}, allowed: []Right{{Verb: "create", Resource: "secrets", Namespace: "ns"}},
			unused: []string{`Role ns/manager: create secrets "cert"`}, missing: []string{"create secrets ns/"},
		},
		"a Role is of its namespace": {
			roles: []BoundRole{role(rule("get,list", "-", "pods"))}, allowed: []Right{pod("get", "shop", "web"), pod("list", "", ""), pod("list", "ns", "")},
			unused: []string{"Role ns/manager: get pods"}, missing: []string{"get pods shop/web", "list pods"},
		},
		"a ClusterRole that is bound in a namespace": {
			roles:   []BoundRole{{Name: "viewer", Namespace: "ns", Rules: []rbacv1.PolicyRule{rule("get", "-", "pods")}}},
			allowed: []Right{pod("get", "shop", "web")},
			unused:  []string{"viewer: get pods"}, missing: []string{"get pods shop/web"},
		},
		"a namespace is in itself": {
			roles:   []BoundRole{role(rule("get", "-", "namespaces"))},
			allowed: []Right{{Verb: "get", Resource: "namespaces", Namespace: "ns", Name: "ns"}},
		},
		"two rules for the same": {
			roles: []BoundRole{clusterRole(rule("get", "-", "pods"), rule("get", "-", "pods", "web"))}, allowed: []Right{pod("get", "shop", "web")},
		},
		"forbidden is not used, and missing": {
			roles: []BoundRole{clusterRole(rule("get", "-", "nodes"))}, forbidden: []Right{{Verb: "get", Resource: "nodes", Name: "a"}, pod("get", "shop", "web")},
			unused: []string{"ClusterRole manager: get nodes"}, missing: []string{"get pods shop/web, forbidden"},
		},
		"many objects": {
			allowed: []Right{pod("get", "shop", "c"), pod("get", "shop", "a"), pod("get", "shop", "b"), pod("list", "", "")},
			missing: []string{"get pods shop/a and 2 more", "list pods"},
		},
		"what everybody may do": {
			allowed: []Right{
				{Verb: "create", Group: "authentication.k8s.io", Resource: "selfsubjectreviews"},
				{Verb: "create", Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"},
				{Verb: "create", Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"},
				{Verb: "get", Path: "/api"}, {Verb: "get", Path: "/apis"}, {Verb: "get", Path: "/apis/apps/v1"}, {Verb: "get", Path: "/openapi/v3"},
				{Verb: "get", Path: "/version"}, {Verb: "get", Path: "/healthz"}, {Verb: "get", Path: "/readyz"}, {Verb: "get", Path: "/livez"},
			},
		},
		"what not everybody may do": {
			allowed: []Right{
				{Verb: "create", Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}, {Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
				{Verb: "get", Path: "/metrics"}, {Verb: "post", Path: "/api"}, {Verb: "get", Path: "/readyz/etcd"}, {Verb: "get", Path: "/apisx"},
			},
			missing: []string{
				"create subjectaccessreviews.authorization.k8s.io", "create tokenreviews.authentication.k8s.io",
				"get /apisx", "get /metrics", "get /readyz/etcd", "post /api",
			},
		},
		"URLs": {
			roles: []BoundRole{
				clusterRole(rbacv1.PolicyRule{Verbs: []string{"get", "post"}, NonResourceURLs: []string{"/metrics", "/logs/*"}}),
				role(rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/flags"}}),
			},
			allowed: []Right{{Verb: "get", Path: "/metrics"}, {Verb: "post", Path: "/logs/a"}, {Verb: "get", Path: "/flags"}},
			unused:  []string{"ClusterRole manager: get /logs/*", "ClusterRole manager: post /metrics", "Role ns/manager: get /flags"},
			missing: []string{"get /flags"},
		},
		"everything": {
			roles: []BoundRole{clusterRole(rule("*", "*", "*"), rule("*", "g", "*/status"), rbacv1.PolicyRule{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}})},
			allowed: []Right{
				pod("get", "shop", "web"), {Verb: "update", Group: "g", Resource: "things", Subresource: "status", Namespace: "shop", Name: "a"}, {Verb: "get", Path: "/metrics"},
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			unused, missing := Compare(tc.roles, &Used{Allowed: rightsOf(tc.allowed...), Forbidden: rightsOf(tc.forbidden...)})
			if diff := cmp.Diff(tc.unused, unused); diff != "" {
				t.Errorf("unused (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.missing, missing); diff != "" {
				t.Errorf("missing (-want +got):\n%s", diff)
			}
		})
	}
}

// A request reaches the comparison as the API server authorized it.
func TestCompareWithALog(t *testing.T) {
	u := NewUsed(robot)
	for _, line := range []audited{
		{verb: "create", uri: "/api/v1/namespaces/ns/secrets", object: "- secrets - ns cert", code: 201},
		{verb: "watch", stage: "ResponseStarted", uri: "/api/v1/namespaces/ns/secrets?fieldSelector=metadata.name%3Dcert&watch=true", object: "- secrets - ns cert"},
		{verb: "create", uri: "/apis/g/v1/namespaces/shop/things", object: "g things - shop a", code: 201,
			sent: `{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","blockOwnerDeletion":true}]}}`},
		{verb: "get", uri: "/api?timeout=32s"},
	} {
		if err := u.Read(strings.NewReader(line.String())); err != nil {
			t.Fatal(err)
		}
	}
	unused, missing := Compare([]BoundRole{
		clusterRole(rule("create", "g", "things"), rule("update", "apps", "deployments/finalizers")),
		role(rule("create", "-", "secrets"), rule("list,watch", "-", "secrets", "cert")),
	}, u)
	if diff := cmp.Diff([]string{`Role ns/manager: list secrets "cert"`}, unused); diff != "" {
		t.Errorf("unused (-want +got):\n%s", diff)
	}
	if len(missing) > 0 {
		t.Errorf("missing %q", missing)
	}
}
