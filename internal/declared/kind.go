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
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Kind is an accepted ChangeKind. Concurrent use is allowed.
type Kind struct {
	schema.GroupVersionKind
	// Name is the name of the ChangeKind, and Resource the plural.
	Name, Resource string
	Generation     int64
	// Spec has the path of the selector of the scale subresource, and its content is sorted by path.
	Spec v1alpha1.ChangeKindSpec

	// content is sorted by path.
	content                                []part
	replicas, minReady, partition, selects workload.Path
	halts                                  []halt
	current, complete                      *rules.Value[bool]
	stuck                                  *rules.Value[string]
	labels                                 map[string]*rules.Value[string]
}

// part is a part of an object whose change is a release.
type part struct {
	path        workload.Path
	podTemplate bool
	ignore      []workload.Path
}

// halt is a field that stops a rollout, and the value that stops it.
type halt struct {
	path  workload.Path
	value any
}

// Served is a kind as the API server serves it.
type Served struct {
	Kind       string
	Namespaced bool
	// Selector is the path of the scale subresource, as in .status.labelSelector; empty without it.
	Selector string
	// Schema is the schema of the version; nil if the kind has no CustomResourceDefinition.
	Schema *apiextensionsv1.JSONSchemaProps
}

// maxHaltValue bounds the text of a value that halts, in bytes.
const maxHaltValue = 256

// Accept compiles a ChangeKind. The problem is empty, or names the invalid field and the remedy.
func Accept(c *v1alpha1.ChangeKind, served Served) (k *Kind, problem string) {
	plural, group, _ := strings.Cut(c.Name, ".")
	if !served.Namespaced {
		return nil, "metadata.name: objects of this kind are in no namespace; declare a kind whose objects are in enrolled namespaces"
	}
	k = &Kind{
		Name: c.Name, Resource: plural, Generation: c.Generation, Spec: withDefaults(&c.Spec, served),
		GroupVersionKind: schema.GroupVersionKind{Group: group, Version: c.Spec.Version, Kind: served.Kind},
	}
	for i := range k.Spec.Content {
		of := part{path: pathOf(k.Spec.Content[i].Path), podTemplate: k.Spec.Content[i].PodTemplate}
		for _, ignored := range k.Spec.Content[i].Ignore {
			of.ignore = append(of.ignore, of.path.Join(pathOf(ignored)...))
		}
		for _, path := range append(of.ignore, of.path) {
			if problem = missingIn(served.Schema, path); problem != "" {
				return nil, "spec.content: " + problem
			}
		}
		k.content = append(k.content, of)
	}
	for _, accept := range []func() string{k.acceptFields, k.acceptPods, k.acceptRollout} {
		if problem = accept(); problem != "" {
			return nil, problem
		}
	}
	return k, ""
}

// withDefaults adds the defaults that the API server cannot know, and sorts the content.
func withDefaults(given *v1alpha1.ChangeKindSpec, served Served) v1alpha1.ChangeKindSpec {
	s := *given.DeepCopy()
	if len(s.Content) == 0 {
		s.Content = []v1alpha1.ChangeKindContent{{Path: "spec"}}
	}
	slices.SortFunc(s.Content, func(a, b v1alpha1.ChangeKindContent) int { return cmp.Compare(a.Path, b.Path) })
	for i := range s.Content {
		slices.Sort(s.Content[i].Ignore)
	}
	if s.Rollout.Settle == nil {
		s.Rollout.Settle = &metav1.Duration{}
		if s.Pods == nil {
			s.Rollout.Settle.Duration = time.Minute
		}
	}
	if p := s.Pods; p != nil && p.Find == v1alpha1.FindBySelector && len(p.Labels) == 0 {
		p.Selector = cmp.Or(p.Selector, v1alpha1.ChangeKindPath(strings.TrimPrefix(served.Selector, ".")))
	}
	return s
}

// missingIn returns why objects of a schema have no such field; empty if they may have it.
func missingIn(s *apiextensionsv1.JSONSchemaProps, path workload.Path) string {
	for i, name := range path {
		switch {
		case s == nil:
			return ""
		case s.Type != "object" && s.Type != "":
			return fmt.Sprintf("%s has the type %s in this kind, so it has no field %s; shorten the path", path[:i], s.Type, name)
		}
		next, known := s.Properties[name]
		switch {
		case known:
			s = &next
		case s.AdditionalProperties != nil:
			s = s.AdditionalProperties.Schema
		case ptr.Deref(s.XPreserveUnknownFields, false) || s.XEmbeddedResource || s.Type == "":
			return ""
		default:
			return fmt.Sprintf("this kind has no field %s; correct the path", path[:i+1])
		}
	}
	return ""
}

func pathOf(path v1alpha1.ChangeKindPath) workload.Path {
	if path == "" {
		return nil
	}
	return strings.Split(string(path), ".")
}

// acceptFields reads the fields that the operator reads and writes.
func (k *Kind) acceptFields() string {
	r := &k.Spec.Rollout
	k.minReady, k.partition = pathOf(r.MinReadySeconds), pathOf(r.Partition)
	written := map[string]workload.Path{}
	if k.partition != nil {
		written["spec.rollout.partition"] = k.partition
	}
	for i := range r.Halt {
		place := fmt.Sprintf("spec.rollout.halt[%d]", i)
		h := halt{path: pathOf(r.Halt[i].Path)}
		raw := r.Halt[i].Value.Raw
		if err := utiljson.Unmarshal(raw, &h.value); err != nil || !isScalar(h.value) || len(raw) > maxHaltValue {
			return fmt.Sprintf("%s.value: it must be a string of at most %d bytes, a number, true or false", place, maxHaltValue)
		}
		k.halts = append(k.halts, h)
		written[place+".path"] = h.path
	}
	places := slices.Sorted(maps.Keys(written))
	for i, place := range places {
		if of := k.contentWith(written[place]); of != nil {
			return fmt.Sprintf("%s: a write of %s would be a release, as it is part of the content %s; add the field to ignore of that content",
				place, written[place], of.path)
		}
		for _, other := range places[:i] {
			if overlap(written[place], written[other]) {
				return fmt.Sprintf("%s: %s and %s of %s are the same field, or one within the other; remove one", place, written[place],
					written[other], other)
			}
		}
	}
	return ""
}

func isScalar(value any) bool {
	switch value.(type) {
	case string, int64, float64, bool:
		return true
	default:
		return false
	}
}

// contentWith returns the content that a field changes; nil for none.
func (k *Kind) contentWith(field workload.Path) *part {
	i := slices.IndexFunc(k.content, func(p part) bool {
		return overlap(p.path, field) && !slices.ContainsFunc(p.ignore, func(ignored workload.Path) bool { return within(field, ignored) })
	})
	if i < 0 {
		return nil
	}
	return &k.content[i]
}

// within reports whether a field is another field, or a part of it.
func within(field, of workload.Path) bool {
	return len(field) >= len(of) && slices.Equal(field[:len(of)], of)
}

// overlap reports whether one field is the other, or a part of it.
func overlap(a, b workload.Path) bool { return within(a, b) || within(b, a) }

// acceptPods compiles the description of the pods.
func (k *Kind) acceptPods() (problem string) {
	p := k.Spec.Pods
	if p == nil {
		return ""
	}
	if of := k.contentWith(pathOf(k.Spec.Replicas)); k.Spec.Replicas != "" && of != nil {
		return fmt.Sprintf("spec.replicas: scaling would be a release, as %s is part of the content %s; add the field to ignore of that content",
			k.Spec.Replicas, of.path)
	}
	k.replicas, k.selects = pathOf(k.Spec.Replicas), pathOf(p.Selector)
	if p.Find == v1alpha1.FindBySelector && k.selects == nil && len(p.Labels) == 0 {
		return "spec.pods.selector: the kind has no scale subresource that names the path of a selector; set selector or labels"
	}
	if k.current, problem = rules.CompileValue[bool](string(p.Current), rules.OfPod, k.hides); problem != "" {
		return "spec.pods.current: " + problem
	}
	k.labels = map[string]*rules.Value[string]{}
	for _, key := range slices.Sorted(maps.Keys(p.Labels)) {
		place := fmt.Sprintf("spec.pods.labels[%s]: ", key)
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return place + "it is no key of a label: " + problems[0]
		}
		if k.labels[key], problem = rules.CompileValue[string](string(p.Labels[key]), rules.OfObject, k.hides); problem != "" {
			return place + problem
		}
	}
	return ""
}

// acceptRollout compiles the expressions about a rollout.
func (k *Kind) acceptRollout() (problem string) {
	r := &k.Spec.Rollout
	if k.GroupKind() == (schema.GroupKind{Kind: "Service"}) && r.Complete == "" &&
		(k.hides([]string{"spec", "type"}, false) || k.hides([]string{"spec", "clusterIP"}, false)) {
		return "spec.rollout.complete: without it, spec.type and spec.clusterIP are read, which are content; set it, or ignore both fields"
	}
	if r.Complete != "" {
		if k.complete, problem = rules.CompileValue[bool](string(r.Complete), rules.OfRollout, k.hides); problem != "" {
			return "spec.rollout.complete: " + problem
		}
	}
	if r.Stuck != "" {
		if k.stuck, problem = rules.CompileValue[string](string(r.Stuck), rules.OfRollout, k.hides); problem != "" {
			return "spec.rollout.stuck: " + problem
		}
	}
	return ""
}

// hides reports whether objects in the cache lack a field, or a part of it. tested means that only its presence is read.
func (k *Kind) hides(field []string, tested bool) bool {
	of := k.contentWith(field)
	return of != nil && (within(field, of.path) || !tested) &&
		!slices.ContainsFunc(k.reads(), func(kept workload.Path) bool { return within(field, kept) })
}

// ContentHash returns a hash of the declaration of the content. Versions and histories of another hash are not
// comparable.
func (k *Kind) ContentHash() string {
	text, err := json.Marshal([]any{k.Version, k.Spec.Content})
	if err != nil {
		panic(err) // it has only strings and booleans
	}
	return workload.VersionOf(text)
}
