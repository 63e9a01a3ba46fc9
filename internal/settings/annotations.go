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

package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// maxAnnotation is the length of an annotation that is read, in bytes.
const maxAnnotation = 100

// Values of an annotation that only turns a setting on or off.
const (
	Enabled  = "enabled"
	Disabled = "disabled"
)

// annotated returns the names of settings that a workload may override by an annotation.
func annotated() []string {
	return slices.DeleteFunc(names(), func(name string) bool { return !known[name].annotation })
}

// Annotations returns the keys of the annotations by which a workload overrides settings.
func Annotations() []string {
	keys := annotated()
	for i := range keys {
		keys[i] = annotation(keys[i])
	}
	return keys
}

func annotation(name string) string { return v1alpha1.SettingAnnotationPrefix + name }

// annotate applies the annotations of a workload. An annotation that cannot be used changes nothing.
func (l *layers) annotate(operator []v1alpha1.OpsConfigInfo, annotations map[string]string) {
	for _, name := range annotated() {
		value, ok := annotations[annotation(name)]
		if !ok {
			continue
		}
		before := l.in.Settings
		err := errors.New("the OpsConfigInfo of the operator is locked")
		if !locked(operator, name) {
			err = l.set(name, brief(value))
		}
		switch {
		case err != nil:
			l.in.Problems = append(l.in.Problems, fmt.Sprintf("annotation %s: %v; the OpsConfigInfo %q applies", annotation(name), err, name))
		case before.Blocking && !l.in.Blocking, !before.Observe && l.in.Observe, before.Hold.Holds() && !l.in.Hold.Holds():
			l.in.Lowered = append(l.in.Lowered, name)
		}
		if err == nil {
			l.names(name, brief(value))
		}
		if err == nil && name == NameObserve {
			l.in.ObservedBy = "the annotation " + annotation(name)
		}
	}
}

// set applies the value of an annotation. A setting that is only enabled gets the content of the nearest object, or of the
// default if that content cannot be used.
func (l *layers) set(name, value string) error {
	k := known[name]
	switch value {
	case Disabled, "false":
		return k.apply(&l.in.Settings, v1alpha1.OpsConfigValue{})
	case Enabled, "true":
		if k.apply(&l.in.Settings, v1alpha1.OpsConfigValue{Enable: true, Content: l.contents[name]}) == nil {
			return nil
		}
		return k.apply(&l.in.Settings, v1alpha1.OpsConfigValue{Enable: true, Content: k.initial.Content})
	}
	if !k.content {
		return fmt.Errorf("%q is neither %q nor %q", value, Enabled, Disabled)
	}
	return k.apply(&l.in.Settings, v1alpha1.OpsConfigValue{Enable: true, Content: value})
}

// brief returns the part of a value that is read. Values may have any length, and messages about them must be short.
func brief(value string) string {
	return strings.TrimSpace(strings.ToValidUTF8(value[:min(len(value), maxAnnotation)], ""))
}

// AnnotationsDiffer reports whether two sets of annotations set settings differently.
func AnnotationsDiffer(a, b map[string]string) bool { return DescribeAltered(a, b) != "" }

// DescribeAltered returns the settings that differ between the annotations of a workload before and after a change, each with
// its values, on one line; empty if none differs.
func DescribeAltered(before, after map[string]string) string {
	var altered []string
	for _, name := range annotated() {
		was, is := describeValue(before, name), describeValue(after, name)
		if was != is {
			altered = append(altered, fmt.Sprintf("%s from %s to %s", name, was, is))
		}
	}
	return strings.Join(altered, ", ")
}

// describeValue returns the value of the annotation of a setting, on one line.
func describeValue(annotations map[string]string, name string) string {
	value, ok := annotations[annotation(name)]
	if !ok {
		return "none"
	}
	return fmt.Sprintf("%q", brief(value))
}
