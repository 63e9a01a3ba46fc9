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

import "strings"

// Path is a path in an object: the names of fields, the outermost first.
type Path []string

// String returns the path as users and CEL write it: spec.template.
func (p Path) String() string { return strings.Join(p, ".") }

// Pointer returns the path as a JSON patch writes it: /spec/template.
func (p Path) Pointer() string {
	var pointer strings.Builder
	for _, name := range p {
		pointer.WriteString("/" + escapePointer.Replace(name))
	}
	return pointer.String()
}

// Join returns the path of a field below this one.
func (p Path) Join(names ...string) Path { return append(p[:len(p):len(p)], names...) }

// escapePointer escapes a name for a JSON pointer.
var escapePointer = strings.NewReplacer("~", "~0", "/", "~1")
