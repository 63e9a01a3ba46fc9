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

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

type workflow struct {
	Permissions map[string]string `json:"permissions"`
	Jobs        map[string]struct {
		Permissions map[string]string `json:"permissions"`
		Steps       []struct {
			Uses string         `json:"uses"`
			Run  string         `json:"run"`
			With map[string]any `json:"with"`
			Env  map[string]any `json:"env"`
		} `json:"steps"`
	} `json:"jobs"`
}

// asRoot runs a program as root, with the Go of the user.
const asRoot = `sudo -E env "PATH=$PATH" "HOME=$HOME" `

// pinnedAction is an action by its commit, with the version as a comment.
var pinnedAction = regexp.MustCompile(`^\s*- uses: ([\w-]+/[\w-]+@[0-9a-f]{40}) # v\d+\.\d+\.\d+$`)

func TestWorkflows(t *testing.T) {
	targets := makeTargets(t)
	files := must(filepath.Glob(filepath.Join(root, ".github", "workflows", "*")))(t)
	if len(files) != 2 {
		t.Errorf("there are the workflows %v", files)
	}
	for _, file := range files {
		data := must(os.ReadFile(file))(t)
		var w workflow
		if err := yaml.Unmarshal(data, &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if w.Permissions == nil || len(w.Permissions) > 0 {
			t.Errorf("%s gives all jobs the permissions %v", file, w.Permissions)
		}
		pinned := map[string]bool{}
		for line := range strings.Lines(string(data)) {
			if match := pinnedAction.FindStringSubmatch(strings.TrimRight(line, "\n")); match != nil {
				pinned[match[1]] = true
			}
		}
		for name, job := range w.Jobs {
			if len(job.Permissions) == 0 {
				t.Errorf("%s: %s has no permissions of its own", file, name)
			}
			for _, step := range job.Steps {
				builds := strings.HasPrefix(step.Uses, "actions/setup-go@") || step.Run == "make release"
				if builds && job.Permissions["id-token"] != "" {
					t.Errorf("%s: %s builds beside the identity that signs", file, name)
				}
				if step.Run == "make release" && !cmp.Equal(job.Permissions, map[string]string{"contents": "read"}) {
					t.Errorf("%s: %s builds the release with the permissions %v", file, name, job.Permissions)
				}
				if strings.HasPrefix(step.Uses, "actions/attest@") &&
					(job.Permissions["id-token"] != "write" || job.Permissions["attestations"] != "write") {
					t.Errorf("%s: %s attests without an identity", file, name)
				}
				if strings.Contains(step.Run, ".ci/run") && (!strings.HasPrefix(step.Run, asRoot) || step.Env["REQUIRE_NODES"] != "1") {
					t.Errorf("%s: %s may run no nodes: run it as root, with REQUIRE_NODES", file, step.Run)
				}
				if step.Uses != "" && !pinned[step.Uses] {
					t.Errorf("%s: %s is not pinned by commit, with its version as a comment", file, step.Uses)
				}
				if strings.HasPrefix(step.Uses, "actions/checkout@") && step.With["persist-credentials"] != false {
					t.Errorf("%s: %s leaves credentials in the tree", file, name)
				}
				checkRun(t, file, step.Run, targets)
			}
		}
	}
}

// checkRun checks that a step also runs outside of GitHub, and contains no text of an event.
func checkRun(t *testing.T, file, run string, targets map[string]bool) {
	t.Helper()
	if strings.Contains(run, "${{") {
		t.Errorf("%s: %q: pass text of an event by env", file, run)
	}
	command, found := strings.CutPrefix(strings.TrimSuffix(run, ` >> "$GITHUB_OUTPUT"`), "make ")
	switch {
	case found:
		for target := range strings.FieldsSeq(command) {
			if !targets[target] {
				t.Errorf("%s: there is no target %s", file, target)
			}
		}
	case run == "" || strings.HasPrefix(run, "docker login "):
	default:
		program := strings.TrimPrefix(run, asRoot)
		if info, err := os.Stat(filepath.Join(root, program)); err != nil || info.Mode()&0o100 == 0 {
			t.Errorf("%s: %q is neither make nor a program of the repository", file, run)
		}
	}
}

func makeTargets(t *testing.T) map[string]bool {
	t.Helper()
	targets := map[string]bool{}
	makefile := string(must(os.ReadFile(filepath.Join(root, "Makefile")))(t))
	for _, match := range regexp.MustCompile(`(?m)^\.PHONY: (\S+)$`).FindAllStringSubmatch(makefile, -1) {
		targets[match[1]] = true
	}
	if len(targets) < 20 {
		t.Fatalf("the Makefile has only %v", targets)
	}
	return targets
}

// TestManifests: the manifests of a release differ from quick-start.yaml only in the
// image, which has a digest.
func TestManifests(t *testing.T) {
	digests := must(os.ReadFile(made(t, ".digests.txt")))(t)
	whole := strings.Fields(string(digests))[0]
	for of, c := range map[string]struct{ arguments, want string }{
		"the project": {"", "ghcr.io/traas-stack/altershield-operator:" + testVersion},
		"a fork":      {"IMG=" + testImage, testImage},
	} {
		t.Run(of, func(t *testing.T) {
			out := t.TempDir()
			writeFile(t, filepath.Join(out, imageFiles+testVersion+".digests.txt"), digests)
			cmd := exec.CommandContext(t.Context(), "make", append([]string{
				"-C", root, "release-manifests", "DIST=" + out, "VERSION=" + testVersion}, strings.Fields(c.arguments)...)...)
			if output, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
			_, want, _ := strings.Cut(string(must(os.ReadFile(filepath.Join(root, "quick-start.yaml")))(t)), "\n")
			want = regexp.MustCompile(`(?m)(image:) ghcr\.io/traas-stack/altershield-operator:\S+$`).ReplaceAllString(want, "$1 "+c.want+"@"+whole)
			_, got, _ := strings.Cut(string(must(os.ReadFile(filepath.Join(out, "quick-start.yaml")))(t)), "\n")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-quick-start.yaml +released):\n%s", diff)
			}
			if !strings.Contains(got, "image: "+c.want+"@"+whole+"\n") {
				t.Error("it does not name the image by its digest")
			}
		})
	}
}
