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

import "strings"

// releaseStories are those of the documents about releases, blocks and rollbacks.
var releaseStories = map[string]told{
	"docs/concepts/release.md": {
		begin: (*story).standAlone,
		end:   (*story).forget,
		steps: []step{
			{command: "kubectl get changeworkloads,changepods", before: (*story).fresh},
		},
	},
	"docs/tasks/handle-a-failed-release.md": {
		begin: func(s *story) {
			s.standAlone()
			s.block()
		},
		end: (*story).forget,
		steps: []step{
			{
				command: "kubectl patch changepod --subresource=status " + first + `--x--1 --type merge -p '{"status":{"podResults":[]}}'`,
				after: func(s *story) {
					s.state(first, "Success")
					s.wait("", "kubectl get deployment sleep -o jsonpath='{.metadata.labels.altershield\\.defense\\.antgroup\\.com/suspend}'")
				},
			},
			{
				command: `kubectl patch cwl NAME --subresource=status --type=merge -p '{"status":{"orderPreVerdict":{"verdict":"pass"}}}'`,
				fill:    func(_ *story, command string) string { return strings.Replace(command, "NAME", first, 1) },
			},
		},
	},
	"docs/concepts/block.md": {
		begin: func(s *story) {
			s.standAlone()
			s.block()
		},
		end: (*story).forget,
		steps: []step{
			{
				command: "kubectl rollout resume deployment/NAME",
				fill:    named,
				before:  func(s *story) { s.do("kubectl rollout pause deployment/sleep") },
			},
		},
	},
	"docs/concepts/rollback.md": {
		begin: (*story).standAlone,
		end:   (*story).forget,
		steps: []step{
			{
				command: "kubectl set image deployment/sleep sleep=busybo",
				before:  (*story).fresh,
				after:   (*story).hang,
			},
			{command: "kubectl set image deployment/sleep sleep=busybo"},
			{
				command: "kubectl annotate deployment sleep altershield.defense.antgroup.com/rollback-to=last-success",
				before: func(s *story) {
					s.fresh()
					s.release("busybox:1.34")
				},
				after: func(s *story) { s.restored() },
			},
			{
				command: "kubectl annotate deployment sleep altershield.defense.antgroup.com/rollback-to=c6c45d23c098bdf181853a85b60b5d74",
				before:  func(s *story) { s.release("busybox:1.33") },
				after:   func(s *story) { s.restored() },
			},
		},
	},
}
