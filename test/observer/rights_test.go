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
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const robot = "system:serviceaccount:ns:robot"

// audited is a line of an audit log.
type audited struct {
	stage, user, impersonated string
	// decision is "allow" where it is empty, and none where it is "-".
	decision  string
	verb, uri string
	// object is group, resource, subresource, namespace and name, separated by
	// spaces, "-" being none; empty for no resource.
	object string
	code   int
	sent   string
}

func (a audited) String() string {
	event := map[string]any{
		"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "RequestResponse", "stage": "ResponseComplete",
		"verb": a.verb, "requestURI": a.uri, "user": map[string]any{"username": robot, "groups": []string{"system:authenticated"}},
		"responseStatus": map[string]any{"code": max(a.code, 200)},
	}
	if a.stage != "" {
		event["stage"] = a.stage
	}
	if a.user != "" {
		event["user"] = map[string]any{"username": a.user}
	}
	if a.impersonated != "" {
		event["impersonatedUser"] = map[string]any{"username": a.impersonated}
	}
	switch a.decision {
	case "":
		event["annotations"] = map[string]string{"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""}
	case "-":
	default:
		event["annotations"] = map[string]string{"authorization.k8s.io/decision": a.decision}
	}
	if a.object != "" {
		ref := map[string]string{"apiVersion": "v1"}
		for i, value := range strings.Fields(a.object) {
			if value != "-" {
				ref[[]string{"apiGroup", "resource", "subresource", "namespace", "name"}[i]] = value
			}
		}
		event["objectRef"] = ref
	}
	if a.sent != "" {
		event["requestObject"] = json.RawMessage(a.sent)
	}
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	return string(line) + "\n"
}

func rightsOf(rights ...Right) map[Right]bool {
	set := map[Right]bool{}
	for _, r := range rights {
		set[r] = true
	}
	return set
}

func TestUsed(t *testing.T) {
	pod := Right{Verb: "get", Resource: "pods", Namespace: "shop", Name: "web"}
	getPod := audited{verb: "get", uri: "/api/v1/namespaces/shop/pods/web", object: "- pods - shop web"}
	as := func(change func(*audited)) []audited {
		a := getPod
		change(&a)
		return []audited{a}
	}
	// The owners of what is created, of which only some keep theirs.
	owned := func(owners ...string) string {
		return `{"kind":"X","metadata":{"name":"x","ownerReferences":[` + strings.Join(owners, ",") + `]},"spec":{"metadata":1}}`
	}
	const (
		blocked     = `{"apiVersion":"apps/v1","kind":"Deployment","name":"web","uid":"1","controller":true,"blockOwnerDeletion":true}`
		alsoBlocked = `{"apiVersion":"app.ops.cloud.alipay.com/v1alpha1","kind":"ChangeWorkload","name":"web-1","uid":"2","blockOwnerDeletion":true}`
		free        = `{"apiVersion":"v1","kind":"Namespace","name":"shop","uid":"3"}`
		notBlocked  = `{"apiVersion":"v1","kind":"Namespace","name":"shop","uid":"3","blockOwnerDeletion":false}`
	)
	createRevision := audited{
		verb: "create", uri: "/apis/apps/v1/namespaces/shop/controllerrevisions?fieldManager=m", object: "apps controllerrevisions - shop web-1", code: 201,
	}
	mayCreateRevision := Right{Verb: "create", Group: "apps", Resource: "controllerrevisions", Namespace: "shop"}
	sending := func(sent string, change ...func(*audited)) []audited {
		a := createRevision
		a.sent = sent
		for _, c := range change {
			c(&a)
		}
		return []audited{a}
	}

	tests := map[string]struct {
		lines              []audited
		allowed, forbidden []Right
	}{
		"nothing": {},
		"a get":   {lines: []audited{getPod}, allowed: []Right{pod}},
		"twice":   {lines: []audited{getPod, getPod}, allowed: []Right{pod}},
		"not found, not valid, in conflict": {
			lines: []audited{
				{verb: "get", uri: "/api/v1/namespaces/shop/pods/web", object: "- pods - shop web", code: 404},
				{verb: "patch", uri: "/apis/apps/v1/namespaces/shop/deployments/web", object: "apps deployments - shop web", code: 422},
				{verb: "update", uri: "/apis/g/v1/namespaces/shop/things/a/status", object: "g things status shop a", code: 409},
			},
			allowed: []Right{
				pod,
				{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: "shop", Name: "web"},
				{Verb: "update", Group: "g", Resource: "things", Subresource: "status", Namespace: "shop", Name: "a"},
			},
		},
		"somebody else":                     {lines: as(func(a *audited) { a.user = "jane" })},
		"whose name it is":                  {lines: as(func(a *audited) { a.user = robot + "s" })},
		"by a user who plays somebody else": {lines: as(func(a *audited) { a.impersonated = "jane" })},
		"by somebody else who plays the user": {
			lines: as(func(a *audited) { a.user, a.impersonated = "jane", robot }), allowed: []Right{pod},
		},
		"forbidden": {
			lines:     as(func(a *audited) { a.decision, a.code = "forbid", 403 }),
			forbidden: []Right{pod},
		},
		"forbidden, then allowed": {
			lines:   append(as(func(a *audited) { a.decision, a.code = "forbid", 403 }), getPod),
			allowed: []Right{pod}, forbidden: []Right{pod},
		},
		"refused by admission": {
			lines:   []audited{{verb: "patch", uri: "/apis/apps/v1/namespaces/shop/deployments/web", object: "apps deployments - shop web", code: 403}},
			allowed: []Right{{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: "shop", Name: "web"}},
		},
		"received, and nothing decided yet": {lines: as(func(a *audited) { a.stage, a.decision = "RequestReceived", "-" })},
		"not authenticated":                 {lines: as(func(a *audited) { a.decision, a.code = "-", 401 })},
		"all stages of a watch": {
			lines: []audited{
				{stage: "RequestReceived", decision: "-", verb: "watch", uri: "/api/v1/pods?watch=true", object: "- pods"},
				{stage: "ResponseStarted", verb: "watch", uri: "/api/v1/pods?watch=true", object: "- pods"},
				{stage: "ResponseComplete", verb: "watch", uri: "/api/v1/pods?watch=true", object: "- pods"},
			},
			allowed: []Right{{Verb: "watch", Resource: "pods"}},
		},
		"a watch that goes on": {
			lines:   []audited{{stage: "ResponseStarted", verb: "watch", uri: "/api/v1/pods?watch=true", object: "- pods"}},
			allowed: []Right{{Verb: "watch", Resource: "pods"}},
		},
		"a panic": {lines: as(func(a *audited) { a.stage, a.code = "Panic", 500 }), allowed: []Right{pod}},
		"list and watch of one name": {
			lines: []audited{
				{verb: "list", uri: "/api/v1/namespaces/ns/secrets?fieldSelector=metadata.name%3Dcert&limit=500", object: "- secrets - ns cert"},
				{verb: "watch", uri: "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations?fieldSelector=metadata.name%3Dhooks&watch=true", object: "admissionregistration.k8s.io mutatingwebhookconfigurations - - hooks"},
			},
			allowed: []Right{
				{Verb: "list", Resource: "secrets", Namespace: "ns", Name: "cert"},
				{Verb: "watch", Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations", Name: "hooks"},
			},
		},
		"a namespace, which is in itself": {
			lines:   []audited{{verb: "get", uri: "/api/v1/namespaces/shop", object: "- namespaces - shop shop"}},
			allowed: []Right{{Verb: "get", Resource: "namespaces", Namespace: "shop", Name: "shop"}},
		},
		"delete and deletecollection": {
			lines: []audited{
				{verb: "delete", uri: "/apis/g/v1/namespaces/shop/things/a", object: "g things - shop a"},
				{verb: "deletecollection", uri: "/apis/g/v1/namespaces/shop/things?labelSelector=a", object: "g things - shop"},
			},
			allowed: []Right{
				{Verb: "delete", Group: "g", Resource: "things", Namespace: "shop", Name: "a"},
				{Verb: "deletecollection", Group: "g", Resource: "things", Namespace: "shop"},
			},
		},
		"creates have no name but in a subresource": {
			lines: []audited{
				{verb: "create", uri: "/api/v1/namespaces/ns/secrets", object: "- secrets - ns cert", code: 201},
				{verb: "create", uri: "/api/v1/namespaces/ns/serviceaccounts/robot/token", object: "- serviceaccounts token ns robot", code: 201},
				{verb: "create", uri: "/api/v1/namespaces/ns/pods/pods/eviction", object: "- pods eviction ns pods", code: 201},
				{verb: "create", uri: "/apis/authentication.k8s.io/v1/tokenreviews", object: "authentication.k8s.io tokenreviews", code: 201},
			},
			allowed: []Right{
				{Verb: "create", Resource: "secrets", Namespace: "ns"},
				{Verb: "create", Resource: "serviceaccounts", Subresource: "token", Namespace: "ns", Name: "robot"},
				{Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "ns", Name: "pods"},
				{Verb: "create", Group: "authentication.k8s.io", Resource: "tokenreviews"},
			},
		},
		"URLs that are no resource": {
			lines: []audited{
				{verb: "get", uri: "/apis?timeout=32s"},
				{verb: "get", uri: "/metrics", decision: "forbid", code: 403},
			},
			allowed:   []Right{{Verb: "get", Path: "/apis"}},
			forbidden: []Right{{Verb: "get", Path: "/metrics"}},
		},
		"an owner that is kept": {
			lines:   sending(owned(blocked)),
			allowed: []Right{mayCreateRevision, {Verb: "update", Group: "apps", Resource: "deployments", Subresource: "finalizers", Namespace: "shop", Name: "web"}},
		},
		"several owners": {
			lines: sending(owned(free, alsoBlocked, notBlocked, blocked)),
			allowed: []Right{
				mayCreateRevision,
				{Verb: "update", Group: "apps", Resource: "deployments", Subresource: "finalizers", Namespace: "shop", Name: "web"},
				{Verb: "update", Group: "app.ops.cloud.alipay.com", Resource: "changeworkloads", Subresource: "finalizers", Namespace: "shop", Name: "web-1"},
			},
		},
		"owners that are not kept":                  {lines: sending(owned(free, notBlocked)), allowed: []Right{mayCreateRevision}},
		"no owners":                                 {lines: sending(`{"metadata":{"name":"x"}}`), allowed: []Right{mayCreateRevision}},
		"what was sent is not recorded":             {lines: sending(""), allowed: []Right{mayCreateRevision}},
		"an owner of what somebody else made":       {lines: sending(owned(blocked), func(a *audited) { a.user = "jane" })},
		"an owner of what was forbidden to be made": {lines: sending(owned(blocked), func(a *audited) { a.decision, a.code = "forbid", 403 }), forbidden: []Right{mayCreateRevision}},
		"an owner of what admission refused": {
			lines:   sending(owned(blocked), func(a *audited) { a.code = 403 }),
			allowed: []Right{mayCreateRevision, {Verb: "update", Group: "apps", Resource: "deployments", Subresource: "finalizers", Namespace: "shop", Name: "web"}},
		},
		"an owner that was there before": {
			lines: []audited{{
				verb: "update", uri: "/apis/g/v1/namespaces/shop/things/a", object: "g things - shop a", sent: owned(blocked),
			}},
			allowed: []Right{{Verb: "update", Group: "g", Resource: "things", Namespace: "shop", Name: "a"}},
		},
		"an owner of what is in no namespace": {
			lines: []audited{{
				verb: "create", uri: "/apis/g/v1/hooks", object: "g hooks - - a", sent: owned(`{"apiVersion":"v1","kind":"Namespace","name":"ns","blockOwnerDeletion":true}`),
			}},
			allowed: []Right{
				{Verb: "create", Group: "g", Resource: "hooks"},
				{Verb: "update", Resource: "namespaces", Subresource: "finalizers", Name: "ns"},
			},
		},
		"a patch, which is no object": {
			lines:   []audited{{verb: "patch", uri: "/apis/apps/v1/namespaces/shop/deployments/web", object: "apps deployments - shop web", sent: `[{"op":"test"}]`}},
			allowed: []Right{{Verb: "patch", Group: "apps", Resource: "deployments", Namespace: "shop", Name: "web"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			for _, line := range tc.lines {
				log.WriteString(line.String())
			}
			u := NewUsed(robot)
			if err := u.Read(strings.NewReader(log.String())); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(rightsOf(tc.allowed...), u.Allowed); diff != "" {
				t.Errorf("allowed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(rightsOf(tc.forbidden...), u.Forbidden); diff != "" {
				t.Errorf("forbidden (-want +got):\n%s", diff)
			}
		})
	}
}

// Logs are added up, however long their lines are and wherever they end.
func TestUsedReadsLogs(t *testing.T) {
	get := func(name string) string {
		return audited{verb: "get", uri: "/api/v1/namespaces/shop/pods/" + name, object: "- pods - shop " + name}.String()
	}
	right := func(name string) Right {
		return Right{Verb: "get", Resource: "pods", Namespace: "shop", Name: name}
	}
	long := audited{
		verb: "create", uri: "/apis/g/v1/namespaces/shop/things", object: "g things - shop a",
		sent: `{"data":"` + strings.Repeat("x", 16<<20) + `","metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment","name":"web","blockOwnerDeletion":true}]}}`,
	}.String()
	next := get("next")
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("no JSON, of somebody else\n"+get("first")+long+next[:len(next)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	u := NewUsed(robot)
	if err := u.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	want := []Right{
		right("first"), {Verb: "create", Group: "g", Resource: "things", Namespace: "shop"},
		{Verb: "update", Group: "apps", Resource: "deployments", Subresource: "finalizers", Namespace: "shop", Name: "web"},
	}
	if diff := cmp.Diff(rightsOf(want...), u.Allowed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// Another one, whose last line is whole but for its end.
	if err := u.Read(strings.NewReader(get("second") + strings.TrimSuffix(next, "\n"))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rightsOf(append(want, right("second"))...), u.Allowed); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	for name, log := range map[string]string{
		"no JSON":              get("third") + `{"user":{"username":"` + robot + `"` + "\n",
		"no object was sent":   get("third") + audited{verb: "create", uri: "/apis/g/v1/hooks", object: "g hooks", sent: `[]`}.String(),
		"owners that are none": get("third") + audited{verb: "create", uri: "/apis/g/v1/hooks", object: "g hooks", sent: `{"metadata":{"ownerReferences":1}}`}.String(),
	} {
		if err := NewUsed(robot).Read(strings.NewReader(log)); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := u.ReadFile(path + ".none"); err == nil {
		t.Error("a log that is not there was read")
	}
}

func TestRightString(t *testing.T) {
	for want, r := range map[string]Right{
		"get pods shop/web": {Verb: "get", Resource: "pods", Namespace: "shop", Name: "web"},
		"list pods":         {Verb: "list", Resource: "pods"},
		"list pods shop/":   {Verb: "list", Resource: "pods", Namespace: "shop"},
		"update deployments.apps/finalizers shop/web": {Verb: "update", Group: "apps", Resource: "deployments", Subresource: "finalizers", Namespace: "shop", Name: "web"},
		"update hooks.g a":                            {Verb: "update", Group: "g", Resource: "hooks", Name: "a"},
		"get /healthz":                                {Verb: "get", Path: "/healthz"},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
