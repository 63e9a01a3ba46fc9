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

package installation

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/config"
)

// Kinds are the operator's kinds as this build has them, by their names.
func Kinds() map[string]*apiextensionsv1.CustomResourceDefinition {
	kinds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	eachDocument(config.CRDs, "crd/bases", func(data []byte) error {
		kind := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(data, kind); err != nil {
			return err
		}
		kinds[kind.Name] = kind
		return nil
	})
	return kinds
}

// eachDocument reads the manifests that this program contains. That one cannot be read
// is a mistake in the program.
func eachDocument(files fs.FS, dir string, do func(data []byte) error) {
	paths, err := fs.Glob(files, dir+"/*.yaml")
	for i := 0; err == nil && i < len(paths); i++ {
		var data []byte
		if data, err = fs.ReadFile(files, paths[i]); err != nil {
			break
		}
		for document := range strings.SplitSeq("\n"+string(data), "\n---\n") {
			if err == nil && strings.TrimSpace(document) != "" {
				err = do([]byte(document))
			}
		}
	}
	if err != nil {
		panic(fmt.Sprintf("manifests of this program, %s: %v", dir, err))
	}
}

func kindsChecks(f *Facts) []Check {
	wanted := Kinds()
	var checks []Check
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		live := f.CRDs[name]
		there := established(name, live)
		checks = append(checks, there)
		if there.Status == OK {
			checks = append(checks, sameSchema(f, wanted[name], live.Value))
		}
	}
	return checks
}

func established(name string, live *Read[*apiextensionsv1.CustomResourceDefinition]) Check {
	plural, _, _ := strings.Cut(name, ".")
	c := newCheck("kinds."+plural, fmt.Sprintf("the kind %s is served", plural))
	if c, unread := live.unread(c); unread {
		return c
	}
	page := "operations.md#install-in-a-minute"
	if live.missing() {
		return c.fail("the CustomResourceDefinition "+name+" is not there", applyAgain, page)
	}
	for _, condition := range live.Value.Status.Conditions {
		if condition.Type == apiextensionsv1.NamesAccepted && condition.Status == apiextensionsv1.ConditionFalse {
			return c.fail("its names are taken by another kind: "+condition.Message,
				"remove the other kind; see kubectl describe crd "+name, page)
		}
	}
	if !slices.ContainsFunc(live.Value.Status.Conditions, func(condition apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue
	}) {
		return c.fail("it is not established", "wait some seconds; if it stays, see kubectl describe crd "+name, page)
	}
	version := versionOf(live.Value)
	switch {
	case version == nil || !version.Served:
		return c.fail("the version "+v1alpha1.GroupVersion.Version+" is not served", applyAgain, page)
	case !version.Storage:
		return c.warn("objects are stored in another version than "+v1alpha1.GroupVersion.Version, applyAgain, "operations.md#upgrade")
	}
	return c.ok("")
}

func versionOf(kind *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionVersion {
	for i := range kind.Spec.Versions {
		if kind.Spec.Versions[i].Name == v1alpha1.GroupVersion.Version {
			return &kind.Spec.Versions[i]
		}
	}
	return nil
}

// sameSchema compares a kind with that of this build.
func sameSchema(f *Facts, wanted, live *apiextensionsv1.CustomResourceDefinition) Check {
	c := newCheck("kinds."+wanted.Spec.Names.Plural+".schema", fmt.Sprintf("the fields of %s are those of this plugin", wanted.Spec.Names.Plural))
	want, have := fields(wanted), fields(live)
	lacks, more := without(want, have), without(have, want)
	page := "operations.md#upgrade"
	switch {
	case len(lacks) > 0 && len(more) == 0:
		return f.olderKind(c, lacks)
	case len(more) > 0 && len(lacks) == 0:
		return c.warn("this plugin does not know "+some(more)+": it is older than the kind",
			"take the plugin of the operator's version: kubectl krew upgrade altershield", page)
	case len(more) > 0:
		return c.warn(fmt.Sprintf("the kind lacks %s, and has %s, which this plugin does not know", some(lacks), some(more)),
			"take kinds, operator and plugin of one version", page)
	case !sameRules(wanted, live):
		return c.warn("the fields are the same, but not what they may contain, or whether they are in the status",
			"take kinds, operator and plugin of one version; "+applyAgain, page)
	}
	return c.ok("")
}

// olderKind is the result for a kind that lacks fields. An operator that writes them
// loses what it writes.
func (f *Facts) olderKind(c Check, lacks []string) Check {
	message := "the kind lacks " + some(lacks)
	if operator, plugin, ok := f.compared(); ok && operator.LessThan(plugin) {
		return c.warn(message+": operator and kinds are older than this plugin",
			"upgrade the operator to "+f.Plugin+", or take the plugin of "+f.operatorVersion(), "operations.md#upgrade")
	}
	return c.warn(message+": it is older than this plugin, and what an operator of the same version writes there is lost",
		"upgrade the kinds: kubectl apply -f quick-start.yaml of the operator's version", "operations.md#upgrade")
}

// fields are the paths of all fields of a kind.
func fields(kind *apiextensionsv1.CustomResourceDefinition) map[string]bool {
	paths := map[string]bool{}
	if v := versionOf(kind); v != nil && v.Schema != nil {
		collect(v.Schema.OpenAPIV3Schema, "", paths)
	}
	return paths
}

func collect(s *apiextensionsv1.JSONSchemaProps, path string, into map[string]bool) {
	if s == nil {
		return
	}
	for name := range s.Properties {
		property, below := s.Properties[name], strings.TrimPrefix(path+"."+name, ".")
		into[below] = true
		collect(&property, below, into)
	}
	if s.Items != nil {
		collect(s.Items.Schema, path, into)
	}
	if s.AdditionalProperties != nil {
		collect(s.AdditionalProperties.Schema, path, into)
	}
}

// without are the paths that are in one and not in the other, but none below another.
func without(these, others map[string]bool) []string {
	var found []string
	for _, path := range slices.Sorted(maps.Keys(these)) {
		parent, _, below := cutLast(path, ".")
		if !others[path] && (!below || others[parent]) {
			found = append(found, path)
		}
	}
	return found
}

// sameRules says that two kinds differ in nothing but what is for people.
func sameRules(a, b *apiextensionsv1.CustomResourceDefinition) bool {
	va, vb := versionOf(a).DeepCopy(), versionOf(b).DeepCopy()
	for _, v := range []*apiextensionsv1.CustomResourceDefinitionVersion{va, vb} {
		if v.Schema != nil {
			undescribed(v.Schema.OpenAPIV3Schema)
		}
	}
	return equality.Semantic.DeepEqual(va.Schema, vb.Schema) && equality.Semantic.DeepEqual(va.Subresources, vb.Subresources)
}

func undescribed(s *apiextensionsv1.JSONSchemaProps) {
	if s == nil {
		return
	}
	s.Description = ""
	for name := range s.Properties {
		property := s.Properties[name]
		undescribed(&property)
		s.Properties[name] = property
	}
	if s.Items != nil {
		undescribed(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		undescribed(s.AdditionalProperties.Schema)
	}
}
