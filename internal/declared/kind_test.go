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
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const cloneSets = "clonesets.apps.kruise.io"

// cloneSetSpec is the declaration of CloneSets in the design.
const cloneSetSpec = `
version: v1beta1
content: [{path: spec.template, podTemplate: true, ignore: [metadata.annotations.injected]}]
replicas: spec.replicas
pods: {current: "pod.metadata.labels['controller-revision-hash'].endsWith(object.status.updateRevision.split('-').last())"}
rollout:
  complete: object.status.updatedAvailableReplicas == object.spec.replicas
  halt: [{path: spec.updateStrategy.rollingUpdate.paused, value: true}]
  partition: spec.updateStrategy.rollingUpdate.partition
hold: Partition
`

func kindOf(t *testing.T, name, spec string) *v1alpha1.ChangeKind {
	t.Helper()
	c := &v1alpha1.ChangeKind{}
	c.Name, c.Generation = name, 3
	c.Spec.Rollout.MinReadySeconds = "spec.minReadySeconds" // by the API server
	if err := yaml.UnmarshalStrict([]byte(spec), &c.Spec); err != nil {
		t.Fatal(err)
	}
	return c
}

// schemaOf returns a schema of the kind.
func schemaOf(t *testing.T) *apiextensionsv1.JSONSchemaProps {
	t.Helper()
	s := &apiextensionsv1.JSONSchemaProps{}
	if err := yaml.UnmarshalStrict([]byte(`
type: object
properties:
  metadata: {type: object}
  spec:
    type: object
    properties:
      hosts: {type: array}
      http: {type: array, items: {type: object, properties: {route: {type: array}}}}
      mode: {type: string}
      labels: {type: object, additionalProperties: {type: string}}
      values: {type: object, additionalProperties: true}
      raw: {type: object, x-kubernetes-preserve-unknown-fields: true}
      port: {x-kubernetes-preserve-unknown-fields: true}
      template: {type: object, properties: {a: {type: string}}}
      templates: {}
      a: {type: object, properties: {b: {type: string}}}
      replicas: {type: integer}
      paused: {type: boolean}
      canary: {type: object, properties: {weight: {type: integer}}}
`), s); err != nil {
		t.Fatal(err)
	}
	return s
}

var scaled = Served{Kind: "CloneSet", Namespaced: true, Selector: ".status.labelSelector"}

func accept(t *testing.T, name, spec string) *Kind {
	t.Helper()
	k, problem := Accept(kindOf(t, name, spec), scaled)
	if problem != "" {
		t.Fatal(problem)
	}
	return k
}

// object reads an object as the API server sends it.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	text = strings.ReplaceAll(text, "\t", "  ")
	json, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, json)
}

func TestAccept(t *testing.T) {
	k := accept(t, cloneSets, cloneSetSpec)
	if k.Resource != "clonesets" || k.GroupVersionKind.String() != "apps.kruise.io/v1beta1, Kind=CloneSet" {
		t.Error(k.Resource, k.GroupVersionKind)
	}
	if k.Spec.Rollout.Settle.Duration != 0 || k.Spec.Replicas != "spec.replicas" {
		t.Errorf("%+v", k.Spec)
	}
	k = accept(t, "configmaps", "version: v1")
	if k.Group != "" || k.Spec.Rollout.Settle.Duration != time.Minute || k.content[0].path.String() != "spec" {
		t.Errorf("%+v", k.Spec)
	}
}

// TestAcceptRefuses: the problem names the field and the remedy.
func TestAcceptRefuses(t *testing.T) {
	const pods = "content: [{path: spec.template}]\npods: {current: 'true'}\n"
	for name, test := range map[string]struct{ spec, want string }{
		"a halt in the content": {
			"rollout: {halt: [{path: spec.paused, value: true}]}",
			"spec.rollout.halt[0].path: a write of spec.paused would be a release, as it is part of the content spec; add the field to ignore",
		},
		"a halt around the content": {
			"content: [{path: spec.template}]\nrollout: {halt: [{path: spec, value: a}]}", "spec.rollout.halt[0].path: a write of spec would",
		},
		"an ignored halt":            {"content: [{path: spec, ignore: [paused]}]\nrollout: {halt: [{path: spec.paused, value: true}]}", ""},
		"a partition in the content": {"rollout: {partition: spec.partition}", "spec.rollout.partition: a write of spec.partition would"},
		"a halt that is the partition": {
			"content: [{path: spec.template}]\nrollout: {partition: spec.a, halt: [{path: spec.a, value: 9}]}",
			"spec.rollout.partition: spec.a and spec.a of spec.rollout.halt[0].path are the same field",
		},
		"a halt within a halt": {
			"content: [{path: spec.template}]\nrollout: {halt: [{path: spec.a, value: 9}, {path: spec.a.b, value: 9}]}",
			"spec.rollout.halt[1].path: spec.a.b and spec.a of spec.rollout.halt[0].path are",
		},
		"a halt with an object": {
			"content: [{path: spec.template}]\nrollout: {halt: [{path: spec.a, value: {b: c}}]}", "spec.rollout.halt[0].value: it must be a string",
		},
		"a halt with null": {
			"content: [{path: spec.template}]\nrollout: {halt: [{path: spec.a, value: null}]}", "spec.rollout.halt[0].value: it must be a string",
		},
		"a halt with a long text": {
			"content: [{path: spec.template}]\nrollout: {halt: [{path: spec.a, value: " + strings.Repeat("a", 300) + "}]}",
			"spec.rollout.halt[0].value: it must be a string of at most 256 bytes",
		},
		"replicas in the content": {"replicas: spec.replicas\npods: {current: 'true'}", "spec.replicas: scaling would be a release"},
		"a content through a list": {
			"content: [{path: spec.hosts}, {path: spec.http.route}]",
			"spec.content: spec.http has the type array in this kind, so it has no field route",
		},
		"an ignored field of a list": {"content: [{path: spec, ignore: [http.weight]}]", "spec.content: spec.http has the type array"},
		"a content of a text":        {"content: [{path: spec.mode.a}]", "spec.content: spec.mode has the type string"},
		"a content that is mistyped": {"content: [{path: spec.hots}]", "spec.content: this kind has no field spec.hots"},
		"contents of any name": {
			"content: [{path: spec.labels.a}, {path: spec.values.a.b}, {path: spec.raw.a.b}, {path: spec.hosts}, {path: spec.port.a}]", "",
		},
		"replicas of an ignored field": {"replicas: spec.replicas\ncontent: [{path: spec, ignore: [replicas]}]\npods: {current: 'true'}", ""},
		"replicas that are unknown":    {pods + "rollout: {complete: 'true'}", ""},
		"an expression that reads ignored fields": {
			"content: [{path: spec, ignore: [replicas, canary.weight]}]\n" +
				"rollout: {complete: 'object.status.ready == object.spec.replicas && has(object.spec.canary.weight)'}", "",
		},
		"an expression that reads a field of the cache": {
			"content: [{path: spec}]\nrollout: {minReadySeconds: spec.minReadySeconds, complete: 'object.spec.minReadySeconds == 0'}", "",
		},
		"an expression that reads around ignored fields": {
			"content: [{path: spec, ignore: [canary.weight]}]\nrollout: {complete: 'has(object.spec.canary)'}",
			"spec.rollout.complete: it reads object.spec.canary, which has content",
		},
		"an expression that tests around content": {
			"content: [{path: spec.template}]\nrollout: {complete: 'has(object.spec)'}", "",
		},
		"an expression that tests content": {
			"content: [{path: spec.template}]\nrollout: {complete: 'has(object.spec.template)'}",
			"spec.rollout.complete: it reads object.spec.template,",
		},
		"a selector of an unknown path": {
			"replicas: spec.replicas\n" +
				"content: [{path: spec.template}]\npods: {find: Selector, current: 'true'}", "spec.pods.selector: the kind has no scale subresource",
		},
		"an expression that reads content": {
			"replicas: spec.replicas\ncontent: [{path: spec.template}]\npods: {current: object.spec.template.a == pod.a}",
			"spec.pods.current: it reads object.spec.template.a, which has content",
		},
		"a label that is none": {
			"replicas: spec.replicas\ncontent: [{path: spec.template}]\n" +
				"pods: {find: Selector, current: 'true', labels: {'a b': object.metadata.name}}",
			"spec.pods.labels[a b]: it is no key of a label",
		},
		"a label of any type": {
			"replicas: spec.replicas\ncontent: [{path: spec.template}]\npods: {find: Selector, current: 'true', labels: {a: object.metadata.name}}",
			"spec.pods.labels[a]: it must be of the type string",
		},
		"a completion that does not compile": {"rollout: {complete: object.a ==}", "spec.rollout.complete: it does not compile"},
		"a stuck rollout of a number":        {"rollout: {stuck: '1'}", "spec.rollout.stuck: it must be of the type string"},
	} {
		t.Run(name, func(t *testing.T) {
			_, problem := Accept(kindOf(t, cloneSets, "version: v1\n"+test.spec), Served{Kind: "CloneSet", Namespaced: true, Schema: schemaOf(t)})
			if test.want == "" && problem != "" || !strings.HasPrefix(problem, test.want) {
				t.Errorf("%q, want %q", problem, test.want)
			}
		})
	}
	// kstatus reads the type of a Service, which the cache lacks.
	for spec, refused := range map[string]bool{
		"{}": true, "content: [{path: spec.ports}]": false, "rollout: {complete: 'true'}": false,
		"content: [{path: spec, ignore: [type, clusterIP]}]": false, "content: [{path: spec, ignore: [type]}]": true,
	} {
		c := kindOf(t, "services", spec)
		_, problem := Accept(c, Served{Kind: "Service", Namespaced: true})
		if strings.HasPrefix(problem, "spec.rollout.complete: ") != refused || problem != "" && !refused {
			t.Errorf("%s: %q", spec, problem)
		}
	}
	_, problem := Accept(kindOf(t, "services.serving.knative.dev", "version: v1"), Served{Kind: "Service", Namespaced: true})
	if problem != "" {
		t.Error(problem)
	}
	_, problem = Accept(kindOf(t, "clusterissuers.cert-manager.io", "version: v1"), Served{})
	if !strings.HasPrefix(problem, "metadata.name: ") {
		t.Error(problem)
	}
}

func TestContentHash(t *testing.T) {
	hash := func(spec string) string { return accept(t, cloneSets, spec).ContentHash() }
	base := hash("version: v1\ncontent: [{path: spec.a, ignore: [x, y]}, {path: spec.b}]")
	for spec, same := range map[string]bool{
		"version: v1\ncontent: [{path: spec.b}, {path: spec.a, ignore: [y, x]}]":                    true,
		"version: v1\ncontent: [{path: spec.a, ignore: [x, y]}, {path: spec.b}]\nrollback: Never":   true,
		"version: v2\ncontent: [{path: spec.a, ignore: [x, y]}, {path: spec.b}]":                    false,
		"version: v1\ncontent: [{path: spec.a, ignore: [x]}, {path: spec.b}]":                       false,
		"version: v1\ncontent: [{path: spec.a, ignore: [x, y]}]":                                    false,
		"version: v1\ncontent: [{path: spec.a, ignore: [x, y], podTemplate: true}, {path: spec.b}]": false,
		"version: v1\ncontent: [{path: spec.a, ignore: [x, y]}, {path: spec.b}, {path: spec.c}]":    false,
	} {
		if got := hash(spec); (got == base) != same {
			t.Errorf("%s: same hash %t, want %t", spec, got == base, same)
		}
	}
}
