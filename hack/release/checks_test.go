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
	"archive/zip"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/google/go-containerregistry/pkg/v1"
)

func TestCheckVersion(t *testing.T) {
	for version, good := range map[string]bool{
		"v0.1.0": true, "v1.20.3": true, "v1.0.0-rc.1": true, "v1.0.0-alpha-2.x": true,
		"": false, "1.0.0": false, "v1.0": false, "v1.0.0.0": false, "v01.0.0": false, "v1.0.0-01": false, "v1.0.0-": false,
		"v1.0.0+build": false, "bc7c78b-dirty": false, "latest": false, "v1.0.0\n": false,
	} {
		if err := checkVersion(version); (err == nil) != good {
			t.Errorf("%q: %v", version, err)
		}
	}
}

const changelog = `# Changelog

## [Unreleased]

Much.

## [0.2.0] - 2026-12-01

### Added

- Something.

## [0.1.0] - 2026-11-01

The first.

[Unreleased]: https://example.com/unreleased
[0.2.0]: https://example.com/0.2.0
`

func TestCheckTree(t *testing.T) {
	good := func(change func(*tree)) tree {
		t := tree{head: "aaa", manifests: "v0.2.0", changelog: changelog}
		change(&t)
		return t
	}
	for name, c := range map[string]struct {
		version string
		tree    tree
		want    []string
	}{
		"ready, and not tagged yet": {"v0.2.0", good(func(*tree) {}), nil},
		"ready and tagged":          {"v0.2.0", good(func(t *tree) { t.tagged = "aaa" }), nil},
		"to try out":                {"v0.3.0-rc.1", good(func(t *tree) { t.manifests = "v0.3.0-rc.1" }), nil},
		"changes":                   {"v0.2.0", good(func(t *tree) { t.changes = "?? new.go" }), []string{"commit or remove", "new.go", "TRIAL=1"}},
		"another tag":               {"v0.2.0", good(func(t *tree) { t.tagged = "bbb" }), []string{"v0.2.0 is of commit bbb, and this is aaa"}},
		"other manifests":           {"v0.2.0", good(func(t *tree) { t.manifests = "v0.1.0" }), []string{"set newTag", "to v0.2.0"}},
		"no section":                {"v0.3.0", good(func(t *tree) { t.manifests = "v0.3.0" }), []string{"CHANGELOG.md has no section"}},
		"all at once": {"v0.3.0", good(func(t *tree) { t.changes, t.tagged = " M x", "b" }),
			[]string{"commit or remove", "check the tag out", "set newTag", "no section"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkTree(c.version, c.tree)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("it says %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it says %v, want %q", err, want)
				}
			}
		})
	}
}

// TestCheckRepository checks a real repository.
func TestCheckRepository(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{
			"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	check := func(args ...string) error {
		return run(t.Context(), append([]string{"check", "-root", dir, "-version", "v0.2.0", "-manifests", "v0.2.0"}, args...), io.Discard)
	}
	git("init", "-q")
	writeFile(t, filepath.Join(dir, "CHANGELOG.md"), []byte(changelog))
	git("add", ".")
	git("commit", "-qm", "one")
	git("tag", "-am", "the tag", "v0.2.0")
	if err := check(); err != nil {
		t.Errorf("at its tag: %v", err)
	}
	writeFile(t, filepath.Join(dir, "new"), nil)
	if err := check(); err == nil || !strings.Contains(err.Error(), "?? new") {
		t.Errorf("with a new file: %v", err)
	}
	git("add", ".")
	git("commit", "-qm", "two")
	if err := check(); err == nil || !strings.Contains(err.Error(), "check the tag out") {
		t.Errorf("behind its tag: %v", err)
	}
	if err := check("-trial"); err != nil {
		t.Errorf("to try it out: %v", err)
	}
}

func TestNotes(t *testing.T) {
	for version, want := range map[string]string{"v0.2.0": "### Added\n\n- Something.", "v0.1.0": "The first."} {
		if got, err := notesOf(version, changelog); err != nil || got != want {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
	if notes, err := notesOf("v0.2.1", changelog); err == nil {
		t.Errorf("of a version that is not there: %q", notes)
	}
}

func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	if err := writeChecksums(dir); err == nil {
		t.Error("nothing is released")
	}
	writeFile(t, filepath.Join(dir, "b.tar"), []byte("b"))
	writeFile(t, filepath.Join(dir, "a.txt"), []byte("a"))
	for range 2 {
		if err := writeChecksums(dir); err != nil {
			t.Fatal(err)
		}
	}
	want := "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a.txt\n" +
		"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  b.tar\n"
	if diff := cmp.Diff(want, string(must(os.ReadFile(filepath.Join(dir, checksumsFile)))(t))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := writeChecksums(dir); err == nil {
		t.Error("a directory is released")
	}
}

func TestEpoch(t *testing.T) {
	for value, want := range map[string]int64{"1700000000": 1700000000, "0": 0, "-1": -1, "yesterday": -1} {
		t.Setenv("SOURCE_DATE_EPOCH", value)
		at, err := epoch(t.Context(), root)
		if (err == nil) != (want >= 0) || err == nil && at.Unix() != want {
			t.Errorf("%q: %s, %v", value, at, err)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "")
	if at, err := epoch(t.Context(), root); err != nil || at.IsZero() {
		t.Errorf("of the commit: %s, %v", at, err)
	}
	t.Setenv("GIT_CEILING_DIRECTORIES", os.TempDir())
	if at, err := epoch(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "set SOURCE_DATE_EPOCH") {
		t.Errorf("without git: %s, %v", at, err)
	}
}

func TestPinnedGo(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "hack", "release", "go.mod"), []byte("module m\n\ngo 1.26.0\n"))
	if pin, err := pinnedGo(dir); err == nil || !strings.Contains(err.Error(), "has no toolchain") {
		t.Errorf("without a toolchain: %q, %v", pin, err)
	}
	writeFile(t, filepath.Join(dir, "hack", "release", "go.mod"), []byte("module m\n\ngo 1.26.0\n\ntoolchain go1.2.3\n"))
	if pin := must(pinnedGo(dir))(t); pin != "go1.2.3" {
		t.Errorf("it is %s", pin)
	}
	// This program was not built with that.
	if _, err := findToolchain(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "run it by make") {
		t.Errorf("with another Go: %v", err)
	}
}

func TestPlatforms(t *testing.T) {
	got := must(parsePlatforms("linux/amd64,linux/arm64"))(t)
	if diff := cmp.Diff([]oci.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for list, want := range map[string]string{"": "want linux/", "linux": "want linux/", "windows/amd64": "want linux/", "linux/arm64/v8": "leave the variant"} {
		if _, err := parsePlatforms(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
}

// TestBillOfBinary takes this very program, as it is and out of archives.
func TestBillOfBinary(t *testing.T) {
	if err := compile(); err != nil {
		t.Fatal(err)
	}
	binary := must(os.ReadFile(program))(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "release"), binary)
	writeFile(t, filepath.Join(dir, "release.tar.gz"), tarGz(t, map[string][]byte{"release": binary, "LICENSE": []byte("text")}))
	writeFile(t, filepath.Join(dir, "release.zip"), zipped(t, map[string][]byte{"release": binary, "LICENSE": []byte("text")}))
	for _, file := range []string{"release", "release.tar.gz", "release.zip"} {
		out := filepath.Join(t.TempDir(), "bill.json")
		cmd := exec.CommandContext(t.Context(), program, "sbom", "-root", root, "-version", "v1.2.3", "-o", out, filepath.Join(dir, file))
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		bom := decodeBill(t, must(os.ReadFile(out))(t))
		about := bom.Metadata.Component
		if about.Version != "v1.2.3" || about.Name != "github.com/traas-stack/altershield-operator/hack/release" || (*about.Hashes)[0].Value != sum(binary) {
			t.Errorf("%s: it is about %+v", file, about)
		}
		checkParts(t, bom, map[string]string{}, binary)
	}
}

func TestBillRefuses(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "empty.tar.gz"), tarGz(t, map[string][]byte{"LICENSE": []byte("text")}))
	writeFile(t, filepath.Join(dir, "text"), []byte("text"))
	if _, err := readBinary(filepath.Join(dir, "empty.tar.gz")); err == nil || !strings.Contains(err.Error(), "0 Go binaries") {
		t.Errorf("without a binary: %v", err)
	}
	if _, err := (&source{root: root}).binaryBill("text", []byte("text")); err == nil {
		t.Error("a text has a bill of materials")
	}
}

func zipped(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for name, data := range files {
		if _, err := must(w.Create(name))(t).Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
