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

var at = time.Date(2026, 11, 22, 10, 20, 30, 0, time.UTC)

// named returns the name of a program as its content.
func named(_, _, name string) ([]byte, error) { return []byte(name), nil }

// pluginFiles writes the archives of v1.2.3 into a new directory, and reads its files.
func pluginFiles(t *testing.T, build func(goos, goarch, name string) ([]byte, error)) (dir string, files map[string][]byte) {
	t.Helper()
	s := &source{root: root, version: "v1.2.3", commit: "abc", out: t.TempDir(), time: at}
	if err := s.writePlugin(build); err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	for _, e := range must(os.ReadDir(s.out))(t) {
		files[e.Name()] = must(os.ReadFile(filepath.Join(s.out, e.Name())))(t)
	}
	return s.out, files
}

func TestArchives(t *testing.T) {
	_, files := pluginFiles(t, named)
	licence := string(must(os.ReadFile(filepath.Join(root, "LICENSE")))(t))
	for _, p := range pluginPlatforms {
		name := fmt.Sprintf("kubectl-altershield_v1.2.3_%s_%s", p[0], p[1])
		read, program, extension := readTar, "kubectl-altershield", ".tar.gz"
		if p[0] == "windows" {
			read, program, extension = readZip, "kubectl-altershield.exe", ".zip"
		}
		got := read(t, files[name+extension])
		if len(got) != 3 || string(got[0].data) != licence || string(got[1].data) != name ||
			!strings.HasPrefix(string(got[2].data), "#!/bin/sh") {
			t.Errorf("%s has other files", name)
		}
		var names []string
		for _, f := range got {
			names = append(names, fmt.Sprintf("%s %o", f.path, f.mode))
		}
		want := []string{"LICENSE 644", program + " 755", "kubectl_complete-altershield 755"}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if len(files) != len(pluginPlatforms)+1 {
		t.Errorf("%d files are made, want an archive for each platform and the manifest", len(files))
	}
}

// readTar reads an archive, and checks that all files have the same time and no user.
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
		files = append(files, file{path: h.Name, mode: h.Mode, data: content})
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
		files = append(files, file{path: f.Name, mode: int64(f.Mode().Perm()), data: content})
	}
	return files
}

func TestSameArchives(t *testing.T) {
	_, first := pluginFiles(t, named)
	_, second := pluginFiles(t, named)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
}

// TestKrew: krew accepts the manifest, and installs the archive of this machine.
func TestKrew(t *testing.T) {
	if testing.Short() {
		t.Skip("builds krew and the plugin")
	}
	host := &source{root: root, version: "v1.2.3", commit: "abc", binaries: t.TempDir()}
	if err := host.findGo(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir, _ := pluginFiles(t, func(goos, goarch, name string) ([]byte, error) {
		if goos != runtime.GOOS || goarch != runtime.GOARCH {
			return named(goos, goarch, name)
		}
		return host.build(t.Context(), "./cmd/"+plugin, goos, goarch, name)
	})
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
	archive := filepath.Join(dir, "kubectl-altershield_v1.2.3_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz")
	krew("krew", "install", "--manifest="+manifest, "--archive="+archive)
	installed := filepath.Join(dir, "krew", "bin", "kubectl-altershield")
	out, err := exec.CommandContext(t.Context(), installed, "version", "--client").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "client: v1.2.3 (commit abc, ") {
		t.Errorf("%v\n%s", err, out)
	}
}
