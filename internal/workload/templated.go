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

import "k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

// templated has the methods that all kinds of apps/v1 share: their content is the pod template at
// spec.template.
type templated struct{}

// ContentPaths implements Kind.
func (templated) ContentPaths() []Path { return []Path{templatePath} }

// TemplatePath implements Kind.
func (templated) TemplatePath() (Path, bool) { return templatePath, true }

// VersionOf implements Kind.
func (templated) VersionOf(stored *unstructured.Unstructured) (string, error) {
	template, err := templateAt(stored, templatePath)
	if err != nil {
		return "", err
	}
	return Version(template), nil
}

// Content implements Kind.
func (templated) Content(stored *unstructured.Unstructured) ([]byte, error) {
	template, err := templateAt(stored, templatePath)
	if err != nil {
		return nil, err
	}
	return DataOf(template)
}

// ReadContent implements Kind.
func (templated) ReadContent(data []byte) (template map[string]any, version string, err error) {
	return ReadTemplate(data)
}

// Restore implements Control.
func (templated) Restore(_ *Workload, data []byte) ([]Op, error) {
	template, _, err := ReadTemplate(data)
	return []Op{{Op: "replace", Path: templatePath.Pointer(), Value: template}}, err
}
