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

package certificates

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/traas-stack/altershield-operator/internal/workload"
	hooks "github.com/traas-stack/altershield-operator/webhooks"
)

var target = Target{Namespace: "ours", Service: "hooks", Port: 443}

func bothConfigurations(t *testing.T) (mutating, validating Configuration) {
	t.Helper()
	all, err := NewConfigurations(hooks.Configurations(workload.NewRegistry(workload.Deployment{})), "m", "v", target)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		switch c.Object().GetKind() {
		case "MutatingWebhookConfiguration":
			mutating = c
		case "ValidatingWebhookConfiguration":
			validating = c
		}
	}
	return mutating, validating
}

func TestNewConfigurations(t *testing.T) {
	mutating, validating := bothConfigurations(t)
	for _, c := range []Configuration{mutating, validating} {
		object := c.Create([]byte("bundle"))
		if name := object.GetName(); name != "m" && name != "v" {
			t.Errorf("named %s", name)
		}
		for _, hook := range webhooks(object) {
			config, _ := hook["clientConfig"].(map[string]any)
			service, _ := config["service"].(map[string]any)
			if service["namespace"] != "ours" || service["name"] != "hooks" || service["port"] != int64(443) || service["path"] == nil {
				t.Errorf("%v is called at %v", hook["name"], service)
			}
			if config["caBundle"] != base64.StdEncoding.EncodeToString([]byte("bundle")) {
				t.Errorf("%v carries %v", hook["name"], config["caBundle"])
			}
			selector, err := selectorOf(hook)
			if err != nil {
				t.Fatal(err)
			}
			var excluded []string
			for _, e := range selector.MatchExpressions {
				if e.Key == "kubernetes.io/metadata.name" && e.Operator == "NotIn" {
					excluded = append(excluded, e.Values...)
				}
			}
			for _, want := range []string{"kube-system", "kube-public", "kube-node-lease", "ours"} {
				if !strings.Contains(strings.Join(excluded, " "), want) {
					t.Errorf("%v is called for %s", hook["name"], want)
				}
			}
			if selector.MatchLabels["admission-webhook-altershield"] != "enabled" {
				t.Errorf("%v selects %v", hook["name"], selector.MatchLabels)
			}
		}
	}

	noService := &admissionregistrationv1.MutatingWebhookConfiguration{Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "a"}}}
	if _, err := NewConfigurations([]runtime.Object{noService}, "m", "v", target); err == nil {
		t.Error("a webhook without a service is accepted")
	}
}

// restored returns a restored configuration, and whether the restoration changed it.
func restored(t *testing.T, of Configuration, live *unstructured.Unstructured, bundle []byte) (*unstructured.Unstructured, bool) {
	t.Helper()
	before := live.DeepCopy()
	got, err := of.Restore(live, bundle)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before.Object, live.Object); diff != "" {
		t.Errorf("the argument was altered:\n%s", diff)
	}
	return got, !equality.Semantic.DeepEqual(live.Object, got.Object)
}

func TestRestore(t *testing.T) {
	mutating, validating := bothConfigurations(t)
	bundle := []byte("bundle")
	set := func(value any, path ...string) func(map[string]any) {
		return func(hook map[string]any) {
			if err := unstructured.SetNestedField(hook, value, path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(path ...string) func(map[string]any) {
		return func(hook map[string]any) { unstructured.RemoveNestedField(hook, path...) }
	}
	expressions := func(change func([]any) []any) func(map[string]any) {
		return func(hook map[string]any) {
			list, _, _ := unstructured.NestedSlice(hook, "namespaceSelector", "matchExpressions")
			set(change(list), "namespaceSelector", "matchExpressions")(hook)
		}
	}
	expression := func(key, operator string, values ...any) map[string]any {
		e := map[string]any{"key": key, "operator": operator}
		if len(values) > 0 {
			e["values"] = values
		}
		return e
	}
	add := func(e map[string]any) func(map[string]any) {
		return expressions(func(list []any) []any { return append(list, e) })
	}
	for name, test := range map[string]struct {
		of    Configuration
		alter func(hook map[string]any)
		// kept means that the alteration stays. wantSelector are the expressions of the selector if only a part of
		// the alteration is undone.
		kept         bool
		wantSelector []any
	}{
		"as it should be":        {of: mutating, alter: func(map[string]any) {}, kept: true},
		"failure policy":         {of: validating, alter: set("Fail", "failurePolicy")},
		"timeout":                {of: mutating, alter: set(int64(30), "timeoutSeconds")},
		"rules":                  {of: mutating, alter: set([]any{}, "rules")},
		"conditions removed":     {of: validating, alter: remove("matchConditions")},
		"conditions added":       {of: mutating, alter: set([]any{map[string]any{"name": "x", "expression": "false"}}, "matchConditions")},
		"object selector":        {of: validating, alter: set(map[string]any{"a": "b"}, "objectSelector", "matchLabels")},
		"reinvocation":           {of: mutating, alter: set("Never", "reinvocationPolicy")},
		"bundle":                 {of: mutating, alter: set("eA==", "clientConfig", "caBundle")},
		"no bundle":              {of: mutating, alter: remove("clientConfig", "caBundle")},
		"elsewhere":              {of: mutating, alter: set(map[string]any{"url": "https://elsewhere"}, "clientConfig")},
		"another service":        {of: mutating, alter: set("other", "clientConfig", "service", "name")},
		"name":                   {of: mutating, alter: set("other.kb.io", "name")},
		"no selector":            {of: mutating, alter: remove("namespaceSelector")},
		"selector of another":    {of: mutating, alter: set("nowhere", "namespaceSelector", "matchLabels", "admission-webhook-altershield")},
		"selector narrowed":      {of: mutating, alter: add(expression("env", "In", "test"))},
		"selector unreadable":    {of: mutating, alter: set("all", "namespaceSelector")},
		"enrolment undone":       {of: mutating, alter: add(expression("admission-webhook-altershield", "NotIn", "enabled"))},
		"a field we do not know": {of: mutating, alter: set("x", "newField"), kept: true},
		"one more exclusion":     {of: mutating, alter: add(expression("control-plane", "DoesNotExist")), kept: true},
		"one more namespace excluded": {of: mutating, kept: true, alter: expressions(func(list []any) []any {
			return []any{expression("kubernetes.io/metadata.name", "NotIn", "legacy", "ours", "kube-node-lease", "kube-public", "kube-system")}
		})},
		"another namespace excluded": {
			of: mutating, alter: expressions(func([]any) []any {
				return []any{expression("kubernetes.io/metadata.name", "NotIn", "legacy"), expression("env", "In", "test")}
			}),
			wantSelector: []any{expression("kubernetes.io/metadata.name", "NotIn",
				"kube-system", "kube-public", "kube-node-lease", "ours", "legacy")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			good := test.of.Create(bundle)
			good.SetResourceVersion("7")
			good.SetLabels(map[string]string{"kept": "yes"})
			live := good.DeepCopy()
			test.alter(webhooks(live)[0])
			want := good
			if test.kept {
				want = live.DeepCopy()
			}
			if test.wantSelector != nil {
				set(test.wantSelector, "namespaceSelector", "matchExpressions")(webhooks(want)[0])
			}
			got, changed := restored(t, test.of, live, bundle)
			if changed == test.kept {
				t.Errorf("changed: %t", changed)
			}
			if diff := cmp.Diff(want.Object, got.Object); diff != "" {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
			if _, again := restored(t, test.of, got, bundle); again {
				t.Error("a restored configuration is restored again")
			}
		})
	}

	t.Run("webhooks removed and added", func(t *testing.T) {
		live := validating.Create(bundle)
		live.Object["webhooks"] = []any{map[string]any{"name": "stranger"}}
		got, _ := restored(t, validating, live, bundle)
		if diff := cmp.Diff(validating.Create(bundle).Object, got.Object); diff != "" {
			t.Errorf("restored (-want +got):\n%s", diff)
		}
	})
}

func TestInject(t *testing.T) {
	mutating, validating := bothConfigurations(t)
	bundle := []byte("bundle")
	live := validating.Create([]byte("old"))
	hook := webhooks(live)[0]
	hook["failurePolicy"] = "Ignore"
	byURL := map[string]any{"name": "by-url", "clientConfig": map[string]any{"url": "https://elsewhere"}}
	list, _ := live.Object["webhooks"].([]any)
	live.Object["webhooks"] = append(list, byURL)
	before := live.DeepCopy()

	got := Inject(live, bundle)
	if diff := cmp.Diff(before.Object, live.Object); diff != "" {
		t.Errorf("the argument was altered:\n%s", diff)
	}
	if hook := webhooks(got)[0]; hook["failurePolicy"] != "Ignore" {
		t.Error("more than the bundle was touched")
	}
	bundles := Bundles(got)
	last := len(bundles) - 1
	if slices.ContainsFunc(bundles[:last], func(b []byte) bool { return string(b) != "bundle" }) || len(bundles[last]) > 0 {
		t.Errorf("bundles are %q", bundles)
	}
	for _, right := range []*unstructured.Unstructured{got, mutating.Create(bundle)} {
		if diff := cmp.Diff(right.Object, Inject(right, bundle).Object); diff != "" {
			t.Errorf("a correct configuration is changed:\n%s", diff)
		}
	}
	broken := mutating.Create(bundle)
	webhooks(broken)[0]["clientConfig"] = map[string]any{"caBundle": "???"}
	if got := Bundles(broken); len(got) != 1 || len(got[0]) != 0 {
		t.Errorf("bundles are %q", got)
	}
}

func TestRestoreAround(t *testing.T) {
	_, validating := bothConfigurations(t)
	const first, second, third = "Zmlyc3Q=", "c2Vjb25k", "dGhpcmQ="
	bundles := func(u *unstructured.Unstructured) []any {
		var all []any
		for _, hook := range webhooks(u) {
			all = append(all, bundleOf(hook))
		}
		return all
	}
	config := func(u *unstructured.Unstructured, i int) map[string]any {
		c, ok := webhooks(u)[i]["clientConfig"].(map[string]any)
		if !ok {
			t.Fatal("no clientConfig")
		}
		return c
	}
	for name, test := range map[string]struct {
		alter func(u *unstructured.Unstructured)
		kept  bool
		want  []any
	}{
		"as it should be": {alter: func(*unstructured.Unstructured) {}, kept: true, want: []any{first, second, third}},
		"one without a bundle": {
			alter: func(u *unstructured.Unstructured) { delete(config(u, 1), "caBundle") }, kept: true, want: []any{first, nil, third},
		},
		"failure policy": {
			alter: func(u *unstructured.Unstructured) { webhooks(u)[1]["failurePolicy"] = "Ignore" }, want: []any{first, second, third},
		},
		"another service": {
			alter: func(u *unstructured.Unstructured) { config(u, 1)["service"] = map[string]any{"name": "x"} }, want: []any{first, second, third},
		},
		"two removed": {
			alter: func(u *unstructured.Unstructured) { u.Object["webhooks"] = []any{webhooks(u)[1]} }, want: []any{second, second, second},
		},
		"all removed": {alter: func(u *unstructured.Unstructured) { delete(u.Object, "webhooks") }, want: []any{nil, nil, nil}},
		"two removed, no other": {alter: func(u *unstructured.Unstructured) {
			delete(config(u, 0), "caBundle")
			u.Object["webhooks"] = []any{webhooks(u)[0]}
		}, want: []any{nil, nil, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			live := validating.Create(nil)
			config(live, 0)["caBundle"], config(live, 1)["caBundle"], config(live, 2)["caBundle"] = first, second, third
			live.SetAnnotations(map[string]string{"cert-manager.io/inject-ca-from": "ours/cert"})
			good := live.DeepCopy()
			test.alter(live)
			got, changed := restored(t, validating, live, nil)
			if changed == test.kept {
				t.Fatalf("changed: %t", changed)
			}
			if diff := cmp.Diff(test.want, bundles(got)); diff != "" {
				t.Errorf("bundles (-want +got):\n%s", diff)
			}
			for _, u := range []*unstructured.Unstructured{got, good} {
				for i := range webhooks(u) {
					delete(config(u, i), "caBundle")
				}
			}
			if diff := cmp.Diff(good.Object, got.Object); diff != "" {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
		})
	}
}

func TestByURL(t *testing.T) {
	mutating, validating := bothConfigurations(t)
	live := validating.Create(nil)
	if ByURL(live) || ByURL(mutating.Create([]byte("x"))) || ByURL(validating.Object()) {
		t.Error("services are called by a URL")
	}
	if Empty(live) || !Empty(validating.Object()) {
		t.Error("Empty is wrong")
	}
	webhooks(live)[1]["clientConfig"] = map[string]any{"url": "https://elsewhere"}
	if !ByURL(live) {
		t.Error("a URL is overlooked")
	}
}

func TestInjectors(t *testing.T) {
	u := &unstructured.Unstructured{}
	if got := Injectors(u); len(got) > 0 {
		t.Errorf("got %v", got)
	}
	u.SetAnnotations(map[string]string{"cert-manager.io/inject-ca-from": "ours/cert", "team": "x"})
	if diff := cmp.Diff(map[string]string{"cert-manager.io/inject-ca-from": "ours/cert"}, Injectors(u)); diff != "" {
		t.Error(diff)
	}
}
