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

// Command keyorder wrote internal/workload/version_table.go: what the JSON of
// a pod template looks like to encoding/json, read off k8s.io/api by
// reflection.
//
// It was run once and is kept to show where the table comes from. It is not
// part of `make generate`: the table decides the versions of all existing
// workloads, so it stays as it is when k8s.io/api moves on.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const header = `
// Code generated once by hack/keyorder from k8s.io/api v0.37.2. DO NOT EDIT.
//
// This table is FROZEN. It is no part of "make generate": regenerating it
// would change the versions of existing workloads, and each would look
// released again. Fields that newer API servers know and this table does not
// are emitted after the known ones, sorted by key, so they still count.

package workload

`

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: keyorder <boilerplate> <output>")
	}
	boilerplate, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	g := &generator{names: map[reflect.Type]string{}}
	g.object(reflect.TypeFor[corev1.PodTemplateSpec]())

	out := bytes.NewBuffer(boilerplate)
	out.WriteString(header)
	for _, object := range g.objects {
		out.WriteString(object)
	}
	source, err := format.Source(out.Bytes())
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[2], source, 0o644); err != nil {
		log.Fatal(err)
	}
}

type generator struct {
	names   map[reflect.Type]string
	objects []string
}

// object writes the table of a struct after those of the structs it refers to
// and returns the name of its variable.
func (g *generator) object(t reflect.Type) string {
	if name, ok := g.names[t]; ok {
		return name
	}
	name := "keysOf" + t.Name()
	for other, taken := range g.names {
		if taken == name {
			log.Fatalf("%v and %v have the same name", t, other)
		}
	}
	g.names[t] = name

	var b strings.Builder
	fmt.Fprintf(&b, "var %s = &object{fields: []field{\n", name)
	g.fields(&b, t)
	b.WriteString("}}\n\n")
	g.objects = append(g.objects, b.String())
	return name
}

func (g *generator) fields(b *strings.Builder, t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case key == "-" || !f.IsExported():
		case key == "" && f.Anonymous:
			g.fields(b, f.Type)
		case key == "":
			log.Fatalf("%v.%s has no key", t, f.Name)
		default:
			omitempty := false
			for option := range strings.SplitSeq(options, ",") {
				omitempty = omitempty || option == "omitempty"
			}
			g.field(b, t, key, f.Type, omitempty)
		}
	}
}

// field writes one entry. Zero is what encoding/json printed for the zero
// value before omitzero existed, empty where it printed nothing; omitzero
// itself is passed over on purpose.
func (g *generator) field(b *strings.Builder, owner reflect.Type, key string, t reflect.Type, omitempty bool) {
	kind, zero, of := "", "", ""
	switch t {
	case reflect.TypeFor[metav1.Time]():
		kind, zero = "value", "null"
	case reflect.TypeFor[resource.Quantity]():
		kind, zero = "value", `"0"`
	case reflect.TypeFor[intstr.IntOrString]():
		kind, zero = "value", "0"
	default:
		switch t.Kind() {
		case reflect.String:
			kind, zero = "text", `""`
		case reflect.Bool:
			kind, zero = "boolean", "false"
		case reflect.Int32, reflect.Int64:
			kind, zero = "integer", "0"
		case reflect.Struct:
			kind, zero, of = "embedded", "{}", g.object(t)
			omitempty = false
		case reflect.Pointer:
			kind, zero = "value", "null"
			if e := t.Elem(); e.Kind() == reflect.Struct && !opaque(e) {
				of = g.object(e)
				kind = "pointer"
			} else if e.Kind() == reflect.Slice || e.Kind() == reflect.Map || e.Kind() == reflect.Pointer {
				log.Fatalf("%v.%s: pointer to %v", owner, key, e)
			}
		case reflect.Slice:
			kind, zero = "collection", "null"
			switch e := t.Elem(); {
			case e.Kind() == reflect.Struct && !opaque(e):
				kind, of = "list", g.object(e)
			case e.Kind() != reflect.String && e.Kind() != reflect.Int32 && e.Kind() != reflect.Int64:
				log.Fatalf("%v.%s: slice of %v", owner, key, e)
			}
		case reflect.Map:
			kind, zero = "collection", "null"
			if e := t.Elem(); e.Kind() != reflect.String && !opaque(e) {
				log.Fatalf("%v.%s: map of %v", owner, key, e)
			}
		default:
			log.Fatalf("%v.%s: %v", owner, key, t)
		}
	}
	// A struct is never empty to encoding/json, so omitempty did nothing for
	// Time, Quantity and IntOrString either.
	if omitempty && t.Kind() != reflect.Struct {
		zero = ""
	}
	fmt.Fprintf(b, "{key: %q, kind: %s", key, kind)
	if zero != "" && kind != "embedded" {
		fmt.Fprintf(b, ", zero: %q", zero)
	}
	if of != "" {
		fmt.Fprintf(b, ", of: %s", of)
	}
	b.WriteString("},\n")
}

// opaque says that a struct type prints itself as something else than an
// object with keys of its own.
func opaque(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](),
		reflect.TypeFor[metav1.FieldsV1]():
		return true
	}
	return false
}
