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
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oci "github.com/google/go-containerregistry/pkg/v1"
)

// versions has texts, and whether each is a version that may be released.
var versions = map[string]bool{
	"v0.1.0": true, "v1.20.3": true, "v1.0.0-rc.1": true, "v1.0.0-alpha-2.x": true,
	"": false, "1.0.0": false, "v1.0": false, "v1.0.0.0": false, "v01.0.0": false, "v1.0.0-01": false, "v1.0.0-": false,
	"v1.0.0+build": false, "bc7c78b-dirty": false, "latest": false, "v1.0.0\n": false,
}

func TestVersions(t *testing.T) {
	for version, good := range versions {
		if releaseVersion.MatchString(version) != good {
			t.Errorf("%q: %t", version, !good)
		}
		if out, err := script(t, root, "check.sh", version, "v0"); strings.Contains(out, "VERSION is") == good {
			t.Errorf("%q: %v: %s", version, err, out)
		}
	}
}

// script runs a script of this directory in another one.
func script(t *testing.T, dir, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), must(filepath.Abs(name))(t), args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
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

// TestCheck checks a real repository: at its tag, with a new file, and after its tag.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{
			"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	check := func(when, version, manifests string, want ...string) {
		t.Helper()
		out, err := script(t, dir, "check.sh", version, manifests)
		if (err == nil) != (want == nil) {
			t.Errorf("%s: %v: %s", when, err, out)
		}
		for _, text := range want {
			if !strings.Contains(out, text) {
				t.Errorf("%s: it prints %q, want %q", when, out, text)
			}
		}
	}
	git("init", "-q")
	writeFile(t, filepath.Join(dir, "CHANGELOG.md"), []byte(changelog))
	git("add", ".")
	git("commit", "-qm", "one")
	check("not tagged yet", "v0.2.0", "v0.2.0")
	git("tag", "-am", "the tag", "v0.2.0")
	check("at its tag", "v0.2.0", "v0.2.0")
	check("a prerelease", "v0.3.0-rc.1", "v0.3.0-rc.1")
	check("other manifests", "v0.2.0", "v0.1.0", "set newTag", "to v0.2.0", "TRIAL=1")
	check("no section", "v0.3.0", "v0.3.0", "CHANGELOG.md has no section")
	writeFile(t, filepath.Join(dir, "new"), nil)
	check("with a new file", "v0.2.0", "v0.2.0", "commit or remove", "?? new")
	git("add", ".")
	git("commit", "-qm", "two")
	check("after its tag", "v0.2.0", "v0.2.0", "check out the tag")
	writeFile(t, filepath.Join(dir, "other"), nil)
	check("all at once", "v0.2.0", "v0.1.0", "commit or remove", "check out the tag", "set newTag")
	t.Setenv("TRIAL", "1")
	check("to try it out", "v0.3.0", "v0.1.0")
}

func TestNotes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "CHANGELOG.md"), []byte(changelog))
	for version, want := range map[string]string{
		"v0.2.0": "### Added\n\n- Something.", "v0.1.0": "The first.",
		"v0.3.0-rc.1": "A prerelease. CHANGELOG.md lists its changes under Unreleased.",
	} {
		if got, err := script(t, dir, "notes.sh", version); err != nil || strings.TrimSpace(got) != want {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}
	if out, err := script(t, dir, "notes.sh", "v0.3.0"); err == nil || !strings.Contains(out, "no section") {
		t.Errorf("of a missing version: %v: %s", err, out)
	}
}

func TestChecksums(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b.tar": "b", "a.txt": "a", "checksums.txt": "of another release"} {
		writeFile(t, filepath.Join(dir, name), []byte(text))
	}
	checksums := func() ([]byte, error) {
		return exec.CommandContext(t.Context(), "make", "-s", "-C", root, "checksums", "DIST="+dir).CombinedOutput()
	}
	if out, err := checksums(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb  a.txt\n" +
		"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d  b.tar\n"
	if diff := cmp.Diff(want, string(must(os.ReadFile(filepath.Join(dir, "checksums.txt")))(t))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := os.Mkdir(filepath.Join(dir, "c"), 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := checksums(); err == nil {
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
	if pin, err := pinnedGo("module m\n\ngo 1.26.0\n"); err == nil || !strings.Contains(err.Error(), "has no toolchain") {
		t.Errorf("without a toolchain: %q, %v", pin, err)
	}
	if pin := must(pinnedGo("module m\n\ngo 1.26.0\n\ntoolchain go1.2.3\n"))(t); pin != "go1.2.3" {
		t.Errorf("it is %s", pin)
	}
}

func TestPlatforms(t *testing.T) {
	got := must(parsePlatforms("linux/amd64,linux/arm64"))(t)
	if diff := cmp.Diff([]oci.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for list, want := range map[string]string{
		"": "want linux/", "linux": "want linux/", "windows/amd64": "want linux/", "linux/arm64/v8": "leave the variant",
	} {
		if _, err := parsePlatforms(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
}
