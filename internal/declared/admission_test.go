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

package declared

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestWebhooks(t *testing.T) {
	mutating, validating := accept(t, cloneSets, cloneSetSpec).Webhooks()
	var got []string
	for _, m := range mutating {
		got = append(got, m.Name+" "+*m.ClientConfig.Service.Path+" "+string(*m.FailurePolicy)+" "+string(*m.Rules[0].Scope))
	}
	for _, v := range validating {
		got = append(got, v.Name+" "+*v.ClientConfig.Service.Path+" "+string(*v.FailurePolicy)+" "+string(*v.Rules[0].Scope))
		if v.ObjectSelector != nil || *v.MatchPolicy != "Equivalent" || v.NamespaceSelector.MatchLabels[v1alpha1.EnrolledLabel] == "" {
			t.Errorf("%+v", v)
		}
	}
	if want := []string{
		"mcloneset.apps.kruise.io.kb.io /declared/clonesets.apps.kruise.io/3/mutate Ignore Namespaced",
		"qcloneset.apps.kruise.io.kb.io /declared/clonesets.apps.kruise.io/3/quarantine Ignore Namespaced",
		"vcloneset.apps.kruise.io.kb.io /declared/clonesets.apps.kruise.io/3/validate Fail Namespaced",
		"pcloneset.apps.kruise.io.kb.io /declared/clonesets.apps.kruise.io/3/policy Ignore Namespaced",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	c := kindOf(t, "configmaps", "version: v1\nenrolment: Label\ncontent: [{path: data}]")
	core, problem := Accept(c, Served{Kind: "ConfigMap", Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	mutating, validating = core.Webhooks()
	for _, v := range validating {
		if e := v.ObjectSelector.MatchExpressions; len(e) != 1 || !slices.Equal(e[0].Values, []string{"enabled", "enforced"}) {
			t.Errorf("%+v", e)
		}
	}
	if mutating[0].Name != "mconfigmap.core.kb.io" || mutating[0].ObjectSelector == nil {
		t.Errorf("%+v", mutating)
	}
	mutating, validating = accept(t, cloneSets, cloneSetSpec+"admission: Observe").Webhooks()
	if len(mutating)+len(validating) > 0 {
		t.Error("a kind that admission observes has webhooks")
	}
}

// TestMatchConditions evaluates the match conditions as an API server does: an error of the block would deny a request
// without a call. Fields may have the names of reserved words.
func TestMatchConditions(t *testing.T) {
	compiler := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	k := accept(t, cloneSets, "version: v1\ncontent: [{path: spec.template}, {path: spec.in.package}, {path: data}, {path: spec.a.b.c}]")
	_, validating := k.Webhooks()
	// calls returns the webhooks that are called for an update.
	calls := func(before, after string) (does []string) {
		t.Helper()
		objects := [2]*unstructured.Unstructured{}
		for i, text := range []string{before, after} {
			objects[i] = &unstructured.Unstructured{Object: object(t, "apiVersion: apps.kruise.io/v1\nkind: CloneSet\n"+text)}
		}
		attributes, err := admission.NewVersionedAttributes(admission.NewAttributesRecord(
			objects[1], objects[0], k.GroupVersionKind, "default", "a", k.GroupVersionKind.GroupVersion().WithResource(k.Resource), "",
			admission.Update, nil, false, &user.DefaultInfo{Name: "jane"},
		), k.GroupVersionKind, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range validating {
			v := &validating[i]
			matcher := webhook.NewValidatingWebhookAccessor(v.Name, "validating", v).GetCompiledMatcher(compiler)
			result := matcher.Match(t.Context(), attributes, nil, nil)
			if result.Error != nil {
				t.Fatalf("%s: %v", v.Name, result.Error)
			}
			if result.Matches {
				does = append(does, v.Name[:1])
			}
		}
		return does
	}
	const (
		plain       = "metadata: {name: a, resourceVersion: '1'}\n"
		blocked     = "metadata: {name: a, resourceVersion: '1', labels: {" + v1alpha1.SuspendLabel + ": '1'}}\n"
		quarantined = "metadata: {name: a, resourceVersion: '1', annotations: {" + v1alpha1.QuarantinedAnnotation + ": a}}\n"
	)
	for name, test := range map[string]struct{ meta, before, after, want string }{
		"nothing":                   {blocked, "{}", "{}", ""},
		"another field":             {blocked, "spec: {replicas: 1}", "spec: {replicas: 2}", ""},
		"the template":              {plain, "spec: {template: {a: b}}", "spec: {template: {a: c}}", "p"},
		"the template, blocked":     {blocked, "spec: {template: {a: b}}", "spec: {template: {a: c}}", "vp"},
		"the template, quarantined": {quarantined, "spec: {template: {a: b}}", "spec: {template: {a: c}}", "qp"},
		"a reserved word":           {blocked, "spec: {in: {package: 1}}", "spec: {in: {package: 2}}", "vp"},
		"a part that appears":       {blocked, "spec: {}", "spec: {template: {a: c}}", "vp"},
		"a part that disappears":    {blocked, "data: {a: b}", "spec: {}", "vp"},
		"an object that is a list":  {blocked, "data: [a]", "data: [b]", "vp"},
		"a field of a list":         {blocked, "spec: {a: [{b: c}]}", "spec: {a: [{b: d}]}", ""},
		"a field of a text":         {blocked, "spec: {a: {b: text}}", "spec: {a: {b: other}}", ""},
		"a field of a number":       {blocked, "spec: {a: {b: 1}}", "spec: {a: {b: {c: 1}}}", "vp"},
		"a field of null":           {blocked, "spec: null", "spec: {a: null}", ""},
		"a field of a list of old":  {quarantined, "spec: {a: [b]}", "spec: {a: {b: {c: 1}}}", "qp"},
		"a list around all":         {blocked, "spec: [a]", "spec: [b]", ""},
		"a deep field":              {blocked, "spec: {a: {b: {c: 1}}}", "spec: {a: {b: {c: 2}}}", "vp"},
		"a deep field that stays":   {blocked, "spec: {a: {b: {c: 1, d: 1}}}", "spec: {a: {b: {c: 1, d: 2}}}", ""},
		"the template of no object": {blocked, "spec: {template: a}", "spec: {template: a}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, does := range calls(test.meta+fieldsIn(test.before), test.meta+fieldsIn(test.after)) {
				got += does
			}
			if got != test.want {
				t.Errorf("the webhooks %q are called, want %q", got, test.want)
			}
		})
	}
}

// fieldsIn returns the fields of an object; nothing for an empty one.
func fieldsIn(fields string) string {
	if fields == "{}" {
		return ""
	}
	return fields
}

// TestNames: two kinds of one name and one template have records of their own.
func TestNames(t *testing.T) {
	const version = "c6c45d23c098bdf181853a85b60b5d74"
	k := accept(t, cloneSets, cloneSetSpec)
	seen := map[string]bool{}
	for _, w := range []*workload.Workload{
		{GVK: k.GroupVersionKind, Name: "sleep"},
		{GVK: accept(t, "clonesets.example.com", cloneSetSpec).GroupVersionKind, Name: "sleep"},
		{GVK: workload.StatefulSet{}.GroupVersionKind(), Name: "sleep"},
		{GVK: workload.Deployment{}.GroupVersionKind(), Name: "sleep"},
	} {
		name := record.ReleaseName(w, version)
		if seen[name] {
			t.Errorf("%s is the name of two records", name)
		}
		seen[name] = true
	}
	if want := "sleep--x--cloneset-"; !seen[want+"e9b9a-"+version] {
		t.Error(seen)
	}
}
