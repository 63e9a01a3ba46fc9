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

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestProgressOf(t *testing.T) {
	since := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	const cron = "content: [{path: spec.jobTemplate}]\nrollout: {complete: 'has(object.status.lastSuccessfulTime) && " +
		"timestamp(object.status.lastSuccessfulTime) > since', stuck: \"object.status.?phase.orValue('') == 'Failed' ? 'failed' : ''\"}"
	for name, test := range map[string]struct {
		spec, status string
		want         Progress
		err          string
	}{
		"without any status": {want: Progress{Complete: true}},
		"of an old generation": {
			status: "observedGeneration: 1", want: Progress{Message: "Thing generation is 2, but latest observed generation is 1"},
		},
		"ready": {status: "observedGeneration: 2, conditions: [{type: Ready, status: 'True'}]", want: Progress{Complete: true}},
		"not ready": {
			status: "observedGeneration: 2, conditions: [{type: Ready, status: 'False', reason: Waits, message: waits for a backend}]",
			want:   Progress{Message: "waits for a backend"},
		},
		"stalled": {
			status: "conditions: [{type: Stalled, status: 'True', reason: Broken, message: no such host}]",
			want:   Progress{Message: "no such host", Stuck: "no such host"},
		},
		"reconciling": {
			status: "conditions: [{type: Reconciling, status: 'True', reason: R, message: writes routes}]", want: Progress{Message: "writes routes"},
		},
		"a generation that is a text": {
			status: "observedGeneration: '2'", err: "spec.rollout.complete is absent, and the status cannot be read by the rules of kstatus",
		},
		"a generation that is a text, and an expression": {
			spec: "rollout: {complete: object.status.observedGeneration == string(object.metadata.generation)}", status: "observedGeneration: '2'",
			want: Progress{Complete: true},
		},
		"an expression, and a failure by kstatus": {
			spec: "rollout: {complete: 'false'}", status: "conditions: [{type: Stalled, status: 'True', message: no such host}]",
			want: Progress{Stuck: "no such host"},
		},
		"a field that is missing": {spec: "rollout: {complete: object.status.a == 1}", err: "spec.rollout.complete: no such key: a"},
		"a reason that is missing": {
			spec: "rollout: {stuck: string(object.status.reason)}", err: "spec.rollout.stuck: no such key: reason",
		},
		"before the change": {spec: cron, status: "lastSuccessfulTime: '2026-11-27T11:00:00Z'"},
		"after the change":  {spec: cron, status: "lastSuccessfulTime: '2026-11-27T13:00:00Z'", want: Progress{Complete: true}},
		"stuck":             {spec: cron, status: "phase: Failed", want: Progress{Stuck: "failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			k := accept(t, "things.example.com", "version: v1\n"+test.spec)
			u := &unstructured.Unstructured{Object: object(t,
				"apiVersion: example.com/v1\nkind: Thing\nmetadata: {generation: 2}\nspec: {a: b}\nstatus: {"+test.status+"}")}
			for _, trimmed := range []bool{false, true} {
				if trimmed {
					if _, err := k.Trim(u); err != nil {
						t.Fatal(err)
					}
				}
				got, err := k.ProgressOf(u.Object, since)
				if got != test.want || (err != nil) != (test.err != "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
					t.Errorf("trimmed %t: %+v, %v; want %+v, %s", trimmed, got, err, test.want, test.err)
				}
			}
		})
	}
}

func TestIsCurrent(t *testing.T) {
	k := accept(t, cloneSets, cloneSetSpec)
	for pod, want := range map[string]bool{
		"metadata: {labels: {controller-revision-hash: 6d5c}}":       true,
		"metadata: {labels: {controller-revision-hash: sleep-6d5c}}": true,
		"metadata: {labels: {controller-revision-hash: 7c}}":         false,
	} {
		if got, err := k.IsCurrent(object(t, sleep), object(t, pod), nil); got != want || err != nil {
			t.Errorf("%s: %t, %v", pod, got, err)
		}
	}
	if _, err := k.IsCurrent(object(t, sleep), object(t, "metadata: {labels: {a: b}}"), nil); err == nil ||
		!strings.HasPrefix(err.Error(), "spec.pods.current: no such key") {
		t.Error(err)
	}
}

func TestSelector(t *testing.T) {
	const selecting = "version: v1\ncontent: [{path: spec.template}]\npods: {find: Selector, current: 'true'"
	labels := selecting + ", labels: {app: string(object.metadata.name), serving: \"'x'\"}}"
	for name, test := range map[string]struct{ spec, object, want, err string }{
		"a text":    {selecting + "}", "status: {labelSelector: 'app=web,tier in (a)'}", "app=web,tier in (a)", ""},
		"an object": {selecting + ", selector: spec.selector}", "spec: {selector: {matchLabels: {app: web}}}", "app=web", ""},
		"labels":    {labels, "metadata: {name: web}", "app=web,serving=x", ""},
		"nothing":   {selecting + "}", "{}", "", "spec.pods.selector: status.labelSelector: it is no selector"},
		"an empty text": {
			selecting + "}", "status: {labelSelector: ''}", "", "spec.pods.selector: status.labelSelector: it selects all pods",
		},
		"an empty object": {
			selecting + ", selector: spec.selector}", "spec: {selector: {}}", "", "spec.pods.selector: spec.selector: it selects all pods",
		},
		"a text that is none":     {selecting + "}", "status: {labelSelector: 'a b'}", "", "spec.pods.selector: status.labelSelector: "},
		"a label that is missing": {labels, "metadata: {}", "", "spec.pods.labels[app]: no such key: name"},
		"a label that is none":    {labels, "metadata: {name: 'a b'}", "", "spec.pods.labels: "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := accept(t, cloneSets, test.spec).Selector(object(t, test.object))
			if test.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.err) {
					t.Errorf("%v, want %s", err, test.err)
				}
				return
			}
			if err != nil || got.String() != test.want {
				t.Errorf("%v, %v; want %s", got, err, test.want)
			}
		})
	}
}
