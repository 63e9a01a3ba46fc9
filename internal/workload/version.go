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

package workload

import (
	"bytes"
	"crypto/md5" //nolint:gosec // the contract fixes it
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Version returns the version of a pod template (the unstructured content of spec.template): the
// lower-case hex md5 of its canonical JSON without the version label. It does not change the
// template.
func Version(template map[string]any) string {
	return digest(Canonical(template))
}

// Canonical returns the canonical JSON of a pod template without the version label.
func Canonical(template map[string]any) []byte { return canonical(template, v1alpha1.VersionLabel) }

// CanonicalJSON returns the JSON of unstructured content, with sorted keys.
func CanonicalJSON(content any) []byte {
	var p printer
	p.any(content)
	return p.out
}

// VersionOf returns the version of canonical JSON.
func VersionOf(canonical []byte) string { return digest(canonical) }

// decodeTemplate reads a pod template as the API server sent it.
func decodeTemplate(templateJSON []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(templateJSON))
	// Integers above 2^53 must keep all digits.
	decoder.UseNumber()
	var template map[string]any
	if err := decoder.Decode(&template); err != nil {
		return nil, fmt.Errorf("pod template: %w", err)
	}
	if template == nil {
		return nil, errors.New("pod template: null")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("pod template: data after the JSON object")
	}
	return template, nil
}

// versionOfReplicaSet returns the version of the Deployment template from which the template of a
// ReplicaSet was made. The version does not include the label pod-template-hash, which the
// deployment controller adds.
func versionOfReplicaSet(template map[string]any) string {
	return digest(canonical(template, v1alpha1.VersionLabel, appsv1.DefaultDeploymentUniqueLabelKey))
}

// canonicalHash identifies a pod template with its version label, but without pod-template-hash: it
// is the same for a Deployment and for the ReplicaSet that the deployment controller uses for its
// current template.
func canonicalHash(template map[string]any) string {
	return digest(canonical(template, appsv1.DefaultDeploymentUniqueLabelKey))
}

func digest(preimage []byte) string {
	// It need not be hard to forge.
	sum := md5.Sum(preimage) //nolint:gosec // the contract fixes it
	return hex.EncodeToString(sum[:])
}

// kind is how encoding/json treats a field of the API.
type kind int

const (
	// value is a pointer to a scalar, or a type that prints itself: Time,
	// Quantity, IntOrString. Only null is empty.
	value kind = iota
	// text is a string.
	text
	// boolean is a bool.
	boolean
	// integer is an int32 or int64.
	integer
	// collection is a slice of scalars or a map.
	collection
	// list is a slice of structs.
	list
	// pointer is a pointer to a struct: {} differs from nothing.
	pointer
	// embedded is a struct by value: it is printed even if it is empty.
	embedded
)

// field is one key of an API struct.
type field struct {
	key  string
	kind kind
	// zero is the text of an empty field; "" omits the field.
	zero string
	// of is the struct in a list, a pointer or an embedded field.
	of *object
}

// object is an API struct; fields are in the order encoding/json prints them.
type object struct {
	fields []field
}

func (o *object) has(key string) bool {
	return slices.ContainsFunc(o.fields, func(f field) bool { return f.key == key })
}

// canonical prints a pod template as encoding/json printed the typed struct of k8s.io/api v0.37.2:
// keys in the order of the struct, then unknown keys sorted. Empty fields are omitted, or printed
// if the struct always prints them, so it makes no difference whether an API server omits them. The
// given labels of the template are omitted.
func canonical(template map[string]any, withoutLabels ...string) []byte {
	p := printer{out: make([]byte, 0, 4096)}
	p.object(keysOfPodTemplateSpec, withLabelsRemoved(template, withoutLabels))
	return p.out
}

// withLabelsRemoved copies the maps that it changes: templates come from caches.
func withLabelsRemoved(template map[string]any, remove []string) map[string]any {
	metadata, _ := template["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)
	if !slices.ContainsFunc(remove, func(key string) bool { _, ok := labels[key]; return ok }) {
		return template
	}
	labels, metadata, template = maps.Clone(labels), maps.Clone(metadata), maps.Clone(template)
	for _, key := range remove {
		delete(labels, key)
	}
	metadata["labels"] = labels
	template["metadata"] = metadata
	return template
}

type printer struct {
	out []byte
}

// object prints an API struct.
func (p *printer) object(o *object, content map[string]any) {
	p.out = append(p.out, '{')
	start, known := len(p.out), 0
	for i := range o.fields {
		f := &o.fields[i]
		v, ok := content[f.key]
		if ok {
			known++
		}
		if f.kind == embedded && v == nil {
			v = map[string]any{}
		}
		empty := f.isEmpty(v)
		if empty && f.zero == "" {
			continue
		}
		p.key(f.key, start)
		if empty {
			p.out = append(p.out, f.zero...)
		} else {
			p.field(f, v)
		}
	}
	if known < len(content) {
		for _, key := range slices.Sorted(maps.Keys(content)) {
			if !o.has(key) {
				p.key(key, start)
				p.any(content[key])
			}
		}
	}
	p.out = append(p.out, '}')
}

// isEmpty reports whether the typed field would have its zero value. A value of an unexpected type
// is never empty: it is printed unchanged.
func (f *field) isEmpty(v any) bool {
	if f.of == nil && f.key == "creationTimestamp" {
		// A template is not created as an object; older API servers print null.
		return true
	}
	switch v := v.(type) {
	case nil:
		return true
	case string:
		return v == "" && f.kind == text
	case bool:
		return !v && f.kind == boolean
	case int64:
		return v == 0 && f.kind == integer
	case json.Number:
		return v == "0" && f.kind == integer
	case []any:
		return len(v) == 0 && (f.kind == collection || f.kind == list)
	case map[string]any:
		return len(v) == 0 && f.kind == collection
	}
	return false
}

func (p *printer) field(f *field, v any) {
	content, isObject := v.(map[string]any)
	items, isList := v.([]any)
	switch {
	case isObject && (f.kind == pointer || f.kind == embedded):
		p.object(f.of, content)
	case isList && f.kind == list:
		p.list(f.of, items)
	default:
		p.any(v)
	}
}

func (p *printer) list(of *object, items []any) {
	p.out = append(p.out, '[')
	for i, item := range items {
		if i > 0 {
			p.out = append(p.out, ',')
		}
		if content, ok := item.(map[string]any); ok {
			p.object(of, content)
		} else {
			p.any(item)
		}
	}
	p.out = append(p.out, ']')
}

// any prints a value without a struct, the keys of maps sorted.
func (p *printer) any(v any) {
	switch v := v.(type) {
	case nil:
		p.out = append(p.out, "null"...)
	case string:
		p.string(v)
	case bool:
		p.out = strconv.AppendBool(p.out, v)
	case int64:
		p.out = strconv.AppendInt(p.out, v, 10)
	case json.Number:
		p.number(v)
	case []any:
		p.out = append(p.out, '[')
		for i, item := range v {
			if i > 0 {
				p.out = append(p.out, ',')
			}
			p.any(item)
		}
		p.out = append(p.out, ']')
	case map[string]any:
		p.out = append(p.out, '{')
		start := len(p.out)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			p.key(key, start)
			p.any(v[key])
		}
		p.out = append(p.out, '}')
	default:
		p.marshal(v)
	}
}

// number prints a literal as if decoded to unstructured content, which has only int64 and float64:
// both ways give the same result.
func (p *printer) number(n json.Number) {
	if i, err := n.Int64(); err == nil {
		p.out = strconv.AppendInt(p.out, i, 10)
	} else if f, err := n.Float64(); err == nil {
		p.marshal(f)
	} else {
		p.out = append(p.out, n...)
	}
}

// key prints a key, after a comma unless it is the first since start, where its object began.
func (p *printer) key(key string, start int) {
	if len(p.out) > start {
		p.out = append(p.out, ',')
	}
	p.string(key)
	p.out = append(p.out, ':')
}

func (p *printer) string(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			p.marshal(s)
			return
		}
	}
	p.out = append(p.out, '"')
	p.out = append(p.out, s...)
	p.out = append(p.out, '"')
}

// marshal leaves a value to encoding/json.
func (p *printer) marshal(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		// Not reachable with JSON content. Such a value has no JSON, so any constant works.
		b = []byte("null")
	}
	p.out = append(p.out, b...)
}
