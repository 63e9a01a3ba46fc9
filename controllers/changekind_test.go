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

package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// gadgets returns the declared kind of gadgets.
func gadgets(t *testing.T, spec string) *declared.Kind {
	t.Helper()
	c := &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com", Generation: 3}}
	if err := yaml.Unmarshal([]byte(spec), &c.Spec); err != nil {
		t.Fatal(err)
	}
	k, problem := declared.Accept(c, declared.Served{Kind: "Gadget", Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	return k
}

const gadgetSpec = `{version: v1, content: [{path: spec.template}], rollout: {halt: [{path: spec.paused, value: true}]}}`

func TestKindConditions(t *testing.T) {
	used := declared.NewWorkloads(gadgets(t, gadgetSpec))
	observed := declared.NewWorkloads(gadgets(t, `{version: v1, admission: Observe}`))
	for name, test := range map[string]struct {
		state kindState
		used  workload.Kind
		want  string
	}{
		"fine":          {kindState{}, used, "A=True S=True U=True I=True R=True Defended"},
		"observes":      {kindState{}, observed, "A=True S=True U=True I=False R=True Defended"},
		"not served":    {kindState{NotServed: "gone"}, nil, "A=Unknown S=False U=True I=False R=False NotDefended"},
		"invalid":       {kindState{Problem: "no"}, nil, "A=False S=True U=True I=False R=False NotDefended"},
		"invalid, used": {kindState{Problem: "no"}, used, "A=False S=True U=True I=True R=False NotDefended"},
		"permissions":   {kindState{Missing: []string{"get a"}}, nil, "A=True S=True U=False I=False R=False NotDefended"},
		"filling":       {kindState{Filling: true}, nil, "A=True S=True U=True I=False R=False CacheNotFilled"},
		"filling again": {kindState{Filling: true}, used, "A=True S=True U=True I=True R=False CacheNotFilled"},
		"halted":        {kindState{Halted: 1}, used, "A=False S=True U=True I=True R=False NotDefended"},
		"stale":         {kindState{Stale: 1}, used, "A=True S=True U=True I=True R=False Rebaselining"},
		"not written":   {kindState{WriteError: errors.New("no")}, used, "A=True S=True U=True I=False R=False NotDefended"},
		"leaving":       {kindState{leaving: true, Stopped: 1, Halted: 1}, used, "A=True S=True U=True I=False R=False Leaving"},
	} {
		var got []string
		reason := ""
		for i, c := range test.state.conditions(test.used) {
			got = append(got, string("ASUIR"[i])+"="+string(c.Status))
			reason = c.Reason
			if _, known := v1alpha1.Explain("ChangeKind", &c); !known {
				t.Errorf("%s: the catalog lacks %s=%s %s", name, c.Type, c.Status, c.Reason)
			}
		}
		if all := strings.Join(got, " ") + " " + reason; all != test.want {
			t.Errorf("%s: %s, want %s", name, all, test.want)
		}
	}
}

// TestCountObjects: opted-out objects and those of other namespaces are not defended, but count if the operator halts them.
func TestCountObjects(t *testing.T) {
	k := gadgets(t, gadgetSpec)
	object := func(namespace, meta string) (o unstructured.Unstructured) {
		text := "{metadata: {namespace: " + namespace + ", " + meta + "}, spec: {template: {a: b}}}"
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		return o
	}
	current := k.VersionOf(map[string]any{"spec": map[string]any{"template": map[string]any{"a": "b"}}})
	label := func(version string) string { return fmt.Sprintf("labels: {%s: %q}", v1alpha1.VersionLabel, version) }
	annotation := func(name, value string) string { return fmt.Sprintf("annotations: {%s: '%s'}", name, value) }
	hold := `{"release":2,"until":"EveryBatch","partition":1,"set":{"partition":3}}`
	for name, test := range map[string]struct {
		object unstructured.Unstructured
		want   string // objects, halted elsewhere, stale, stopped
	}{
		"plain":             {object("shop", "name: a"), "1 0 0 0"},
		"elsewhere":         {object("other", label("1")), "0 0 0 0"},
		"opted out":         {object("shop", "labels: {"+v1alpha1.DefenseLabel+": disabled}"), "0 0 0 0"},
		"current":           {object("shop", label(current)), "1 0 0 0"},
		"stale":             {object("shop", label("1")), "1 0 1 0"},
		"halted":            {object("shop", annotation(v1alpha1.HaltedFromAnnotation, `[{"path":"spec.paused"}]`)), "1 0 0 0"},
		"halted elsewhere":  {object("shop", annotation(v1alpha1.HaltedFromAnnotation, `[{"path":"spec.stop"}]`)), "1 1 0 0"},
		"halted by no JSON": {object("other", annotation(v1alpha1.HaltedFromAnnotation, `spec.stop`)), "0 0 0 0"},
		"blocked": {object("other", fmt.Sprintf("labels: {%s: '1'}, ", v1alpha1.SuspendLabel)+annotation(v1alpha1.SuspendedByAnnotation, "x")),
			"0 0 0 1"},
		"no longer blocked": {object("other", annotation(v1alpha1.SuspendedByAnnotation, "x")), "0 0 0 0"},
		"halted by us":      {object("other", annotation(v1alpha1.HaltedAnnotation, "1")), "0 0 0 1"},
		"held before":       {object("other", annotation(v1alpha1.HeldAnnotation, hold)), "0 1 0 1"},
		"held by a user":    {object("other", annotation(v1alpha1.HeldAnnotation, "x")), "0 0 0 0"},
		"being deleted": {object("shop", `deletionTimestamp: "2026-01-01T00:00:00Z", `+annotation(v1alpha1.SuspendedByAnnotation, "x")),
			"0 0 0 0"},
	} {
		s := kindState{}
		s.count(k, []unstructured.Unstructured{test.object}, func(namespace string) bool { return namespace == "shop" })
		if got := fmt.Sprint(s.Objects, s.Halted, s.Stale, s.Stopped); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// TestCountHeld: an object that is held by another field than the partition of the declaration could not be given back. An earlier
// build did not note the field.
func TestCountHeld(t *testing.T) {
	keeps := gadgets(t, `{version: v1, content: [{path: spec.template}], replicas: spec.replicas, pods: {current: "true"}, hold: Partition,
  rollout: {complete: "true", partition: spec.keep}}`)
	for field, halted := range map[string]int{"spec.keep": 0, "": 0, "spec.stay": 1} {
		pace := workload.Pace{ByPartition: true, Field: field}
		o := unstructured.Unstructured{Object: map[string]any{}}
		o.SetAnnotations(map[string]string{v1alpha1.HeldAnnotation: (&workload.Hold{Release: 2, Pace: pace, Set: pace.Keeping(3)}).String()})
		s := kindState{}
		s.count(keeps, []unstructured.Unstructured{o}, func(string) bool { return true })
		if s.Halted != halted || s.Stopped != 1 {
			t.Errorf("%q: %+v", field, s)
		}
	}
}

func TestServedBy(t *testing.T) {
	crd := func(established bool, served ...string) *apiextensionsv1.CustomResourceDefinition {
		c := &apiextensionsv1.CustomResourceDefinition{}
		c.Spec.Names.Kind, c.Spec.Scope = "Gadget", apiextensionsv1.NamespaceScoped
		for _, v := range []string{"v1", "v2"} {
			path := ".status.selector"
			c.Spec.Versions = append(c.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
				Name: v, Served: strings.Contains(strings.Join(served, " "), v),
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Scale: &apiextensionsv1.CustomResourceSubresourceScale{LabelSelectorPath: &path},
				},
			})
		}
		if established {
			c.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			}
		}
		return c
	}
	s, problem := servedBy(crd(true, "v1", "v2"), "v1")
	if problem != "" || s.Kind != "Gadget" || !s.Namespaced || s.Schema == nil || s.Selector != ".status.selector" {
		t.Errorf("%+v, %q", s, problem)
	}
	if _, problem := servedBy(crd(true, "v2"), "v1"); !strings.HasSuffix(problem, "served are v2") {
		t.Error(problem)
	}
	if _, problem := servedBy(crd(false, "v1"), "v1"); !strings.Contains(problem, "not established") {
		t.Error(problem)
	}
}
