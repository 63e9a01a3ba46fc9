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

package docs

// referenceStories has the plans of the documents about states, the API and the plugin.
var referenceStories = map[string]plan{
	"docs/reference/plugin.md": {
		begin: func(s *story) {
			s.standAlone()
			s.policy(system, "default", "Enforce")
			s.do("kubectl label namespace default --overwrite admission-webhook-altershield=enabled")
			s.fresh()
			s.release("busybox:1.35")
			name := current(s)
			s.failPod(name + "--x--1")
			s.state(name, "Suspend")
		},
		end: (*story).forget,
		steps: []step{{
			command: "kubectl krew install " +
				"--manifest-url=https://github.com/traas-stack/altershield-operator/releases/latest/download/altershield.yaml",
			skip: "krew installs a published release; hack/release tests the manifest",
		}},
	},
	"docs/reference/states.md": anyManager,
	"docs/reference/api.md":    anyManager,
}
