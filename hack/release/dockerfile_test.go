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
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stage is a stage of a Dockerfile, with its instructions in order.
type stage struct {
	from         string
	instructions [][2]string
}

var option = regexp.MustCompile(`^--\S+ `)

// readDockerfile reads the Dockerfile of the repository, without options of instructions.
func readDockerfile(t *testing.T) []stage {
	t.Helper()
	text := string(must(os.ReadFile(filepath.Join(root, "Dockerfile")))(t))
	text = regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`\s*\\\n\s*`).ReplaceAllString(text, " ")
	var stages []stage
	for line := range strings.Lines(text) {
		instruction, rest, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			continue
		}
		for option.MatchString(rest) && instruction != "COPY" {
			rest = option.ReplaceAllString(rest, "")
		}
		if instruction == "FROM" {
			stages = append(stages, stage{from: strings.Fields(rest)[0]})
			continue
		}
		last := &stages[len(stages)-1]
		last.instructions = append(last.instructions, [2]string{instruction, rest})
	}
	if len(stages) != 2 {
		t.Fatalf("the Dockerfile has %d stages", len(stages))
	}
	return stages
}

// the returns the arguments of the last instruction of a name.
func (s stage) the(instruction string) string {
	for _, i := range slices.Backward(s.instructions) {
		if i[0] == instruction {
			return i[1]
		}
	}
	return ""
}

// arguments replaces the build arguments by those of the tests.
var arguments = strings.NewReplacer(
	"${VERSION}", testVersion, "${COMMIT}", testCommit, "${CREATED}", "2023-11-14T22:13:20Z", "${TARGETOS}", "linux", "${TARGETARCH}", "arm64")

func TestDockerfileAgrees(t *testing.T) {
	stages := readDockerfile(t)
	if got, want := stages[0].from, "golang:"+strings.TrimPrefix(must(pinnedGo(goMod))(t), "go"); got != want {
		t.Errorf("it builds with %s, want %s, as hack/release/go.mod pins", got, want)
	}
	if got := stages[1].from; got != "gcr.io/distroless/static:nonroot" {
		t.Errorf("the image is made from %s", got)
	}
	byPlatform, _ := images(t)
	config := must(byPlatform["linux/arm64"].ConfigFile())(t).Config
	if got := stages[1].the("USER"); got != config.User {
		t.Errorf("USER %s, and the image has %s", got, config.User)
	}
	var entrypoint []string
	if err := json.Unmarshal([]byte(stages[1].the("ENTRYPOINT")), &entrypoint); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config.Entrypoint, entrypoint); diff != "" {
		t.Errorf("ENTRYPOINT (-image +Dockerfile):\n%s", diff)
	}
	if got := stages[1].the("COPY"); got != "--from=builder /manager "+managerPath {
		t.Errorf("COPY %s", got)
	}
	labels := map[string]string{}
	for _, label := range regexp.MustCompile(`([\w.]+)="([^"]*)"`).FindAllStringSubmatch(stages[1].the("LABEL"), -1) {
		labels[label[1]] = arguments.Replace(label[2])
	}
	if diff := cmp.Diff(config.Labels, labels); diff != "" {
		t.Errorf("LABEL (-image +Dockerfile):\n%s", diff)
	}
	makefile := string(must(os.ReadFile(filepath.Join(root, "Makefile")))(t))
	for _, i := range stages[1].instructions {
		if argument, _, _ := strings.Cut(i[1], "="); i[0] == "ARG" && !strings.Contains(makefile, "--build-arg "+argument+"=") {
			t.Errorf("make docker-build does not set %s", argument)
		}
	}
}

// TestDockerfileBuildsTheSame runs the command of the Dockerfile on the files that
// .dockerignore includes.
func TestDockerfileBuildsTheSame(t *testing.T) {
	byPlatform, _ := images(t)
	context := filepath.Join(t.TempDir(), "workspace")
	for _, file := range contextFiles(t) {
		writeFile(t, filepath.Join(context, file), must(os.ReadFile(filepath.Join(root, file)))(t))
	}
	out := filepath.Join(t.TempDir(), "manager")
	command := arguments.Replace(readDockerfile(t)[0].the("RUN"))
	if !strings.HasSuffix(command, " -o /manager .") {
		t.Fatalf("it builds by %s", command)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(command, "-o /manager ", "-o "+out+" ", 1))
	cmd.Dir, cmd.Env = context, append(os.Environ(), "GOTOOLCHAIN="+must(pinnedGo(goMod))(t), "GOFLAGS=", "GOWORK=off")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	want := contentOf(t, must(byPlatform["linux/arm64"].Layers())(t)[1])["manager"].data
	if !bytes.Equal(must(os.ReadFile(out))(t), want) {
		t.Error("the Dockerfile builds another manager than the image has")
	}
}

// contextFiles returns the files of the repository that .dockerignore includes.
func contextFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	excluded := map[string]bool{}
	for line := range strings.Lines(string(must(os.ReadFile(filepath.Join(root, ".dockerignore")))(t))) {
		line = strings.TrimSpace(line)
		switch included, found := strings.CutPrefix(line, "!"); {
		case found:
			files = append(files, included)
		case line != "" && !strings.HasPrefix(line, "#"):
			excluded[line] = true
		}
	}
	if !maps.Equal(excluded, map[string]bool{"*": true, "**/*_test.go": true, "**/testdata/": true}) {
		t.Fatalf(".dockerignore excludes %v: update this test", excluded)
	}
	args := append([]string{"ls-files", "--cached", "--others", "--exclude-standard", "--"}, files...)
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = root
	var included []string
	for file := range strings.Lines(string(must(cmd.Output())(t))) {
		file = strings.TrimSpace(file)
		if strings.HasSuffix(file, "_test.go") || strings.Contains(file, "/testdata/") {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, file)); err == nil {
			included = append(included, file)
		}
	}
	return included
}
