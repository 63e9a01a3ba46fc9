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
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

var at = time.Date(2026, 11, 22, 10, 20, 30, 0, time.UTC)

// named makes programs that are only their names.
func named(_ context.Context, r release, p platform, path string) error {
	return os.WriteFile(path, []byte(r.Version+" "+p.OS+" "+p.Arch), 0o600)
}

// made makes a release into a directory of its own, and reads what is there.
func made(t *testing.T, r release, build builder) (dir string, files map[string][]byte) {
	t.Helper()
	r.Root, r.Out, r.Time, r.Download = root, t.TempDir(), at, "https://example.com/releases"
	if err := r.make(t.Context(), build); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(r.Out)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(r.Out, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return r.Out, files
}

func TestArchives(t *testing.T) {
	_, files := made(t, release{Version: "v1.2.3"}, named)
	licence, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range platforms() {
		name := fmt.Sprintf("kubectl-altershield_v1.2.3_%s_%s", p.OS, p.Arch)
		read, program := readTar, "kubectl-altershield"
		if p.OS == "windows" {
			read, program, name = readZip, "kubectl-altershield.exe", name+".zip"
		} else {
			name += ".tar.gz"
		}
		got := read(t, files[name])
		if len(got) != 3 || string(got[0].Data) != string(licence) || string(got[1].Data) != "v1.2.3 "+p.OS+" "+p.Arch ||
			!strings.HasPrefix(string(got[2].Data), "#!/bin/sh") {
			t.Errorf("%s has other files", name)
		}
		var names []string
		for _, f := range got {
			names = append(names, fmt.Sprint(f.Name, " ", f.Executable))
		}
		want := []string{"LICENSE false", program + " true", "kubectl_complete-altershield true"}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if len(files) != len(platforms())+1 {
		t.Errorf("%d files are made, want an archive for each platform and the manifest", len(files))
	}
}

// readTar reads an archive, whose files all have the one time and nobody's name.
func readTar(t *testing.T, data []byte) (files []file) {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if !compressed.ModTime.IsZero() || compressed.Name != "" {
		t.Errorf("gzip has the time %s and the name %q", compressed.ModTime, compressed.Name)
	}
	r := tar.NewReader(compressed)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(at) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s is of %s and of user %d %q", h.Name, h.ModTime, h.Uid, h.Uname)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{Name: h.Name, Executable: h.Mode == 0o755, Data: content})
	}
}

func readZip(t *testing.T, data []byte) (files []file) {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.File {
		if !f.Modified.Equal(at) {
			t.Errorf("%s is of %s", f.Name, f.Modified)
		}
		opened, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(opened)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file{Name: f.Name, Executable: f.Mode().Perm() == 0o755, Data: content})
	}
	return files
}

func TestSameBytes(t *testing.T) {
	_, first := made(t, release{Version: "v1.2.3"}, named)
	_, second := made(t, release{Version: "v1.2.3"}, named)
	for name := range first {
		if !bytes.Equal(first[name], second[name]) {
			t.Errorf("%s differs", name)
		}
	}
	if len(first) != len(second) {
		t.Errorf("%d and %d files", len(first), len(second))
	}
}

// forHost builds the program for this machine, and stands in for the others.
func forHost(ctx context.Context, r release, p platform, path string) error {
	if p.OS != runtime.GOOS || p.Arch != runtime.GOARCH {
		return named(ctx, r, p, path)
	}
	return build(ctx, r, p, path)
}

// TestKrew lets krew itself judge the manifest, and install the archive of this machine.
func TestKrew(t *testing.T) {
	if testing.Short() {
		t.Skip("builds krew and the plugin")
	}
	dir, _ := made(t, release{Version: "v1.2.3", Commit: "abc"}, forHost)
	manifest := filepath.Join(dir, "altershield.yaml")
	krew := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-C", filepath.Join(root, "hack", "krew")}, args...)...)
		cmd.Env = append(os.Environ(), "KREW_ROOT="+filepath.Join(dir, "krew"), "KREW_NO_UPGRADE_CHECK=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	krew("validate-krew-manifest", "-skip-install", "-manifest", manifest)
	krew("krew", "install", "--manifest="+manifest, "--archive="+filepath.Join(dir, platform{runtime.GOOS, runtime.GOARCH}.archive("v1.2.3")))
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "krew", "bin", "kubectl-altershield"), "version", "--client").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "client: v1.2.3 (commit abc, ") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{"v1.2.3": true, "v0.1.0-rc.1": true, "1.2.3": false, "v1.2": false, "bc7c78b": false, "v1.2.3-4-gbc7c78b-dirty": true, "": false, "v01.2.3": false} {
		if got := isVersion.MatchString(version); got != want {
			t.Errorf("%q: %t, want %t", version, got, want)
		}
	}
}
