//go:build linux

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

package nodes

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestOperatorArchive: the image of make image gets other names, and keeps all layers.
func TestOperatorArchive(t *testing.T) {
	root := t.TempDir()
	made := map[string]string{
		"blobs/sha256/1": "config", "blobs/sha256/2": "first layer", "blobs/sha256/3": "second layer",
		"index.json": "{}", "oci-layout": "{}",
		"manifest.json": `[{"Config":"blobs/sha256/1","RepoTags":["registry/operator:v0"],"Layers":["blobs/sha256/2","blobs/sha256/3"]}]`,
	}
	write(t, filepath.Join(root, "bin", "nodes", "image", "operator-linux-"+runtime.GOARCH+".tar"), archiveOf(t, made))
	image, err := Operator(root, "registry/operator:v1", "registry/operator:v2")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "image.tar")
	if err := writeArchive(path, image); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, data := range filesOf(t, archive) {
		got[name] = string(data)
	}
	delete(made, "index.json")
	delete(made, "oci-layout")
	made["manifest.json"] = `[{"Config":"blobs/sha256/1","RepoTags":["registry/operator:v1","registry/operator:v2"],` +
		`"Layers":["blobs/sha256/2","blobs/sha256/3"]}]`
	if diff := cmp.Diff(made, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReleased(t *testing.T) {
	root := t.TempDir()
	if image, name, err := Released(root); err == nil {
		t.Errorf("an image that was not built is %+v, %s", image, name)
	}
	dir := filepath.Join(root, "bin", "nodes", "image")
	write(t, filepath.Join(dir, "operator-v1.tar"), "an archive")
	write(t, filepath.Join(dir, "operator-v1-linux-amd64.tar"), "another one")
	write(t, filepath.Join(dir, "operator-v1.digests.txt"), "sha256:1  registry/operator:v1\nsha256:2  linux/amd64\n")
	image, name, err := Released(root)
	if err != nil {
		t.Fatal(err)
	}
	if name != "registry/operator:v1@sha256:1" {
		t.Errorf("its name is %s", name)
	}
	path := filepath.Join(root, "copy.tar")
	if err := writeArchive(path, image); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "an archive" {
		t.Errorf("the nodes are given %q, %v", data, err)
	}
}

func TestOperatorRefuses(t *testing.T) {
	root := t.TempDir()
	if image, err := Operator(root, "x"); err == nil || !strings.Contains(err.Error(), "make test-node") {
		t.Errorf("an image that was not built is %+v, %v", image, err)
	}
	for name, manifest := range map[string]string{"no manifest": "", "no image": "[]", "two images": "[{},{}]"} {
		t.Run(name, func(t *testing.T) {
			archive := filepath.Join(t.TempDir(), "image.tar")
			write(t, archive, archiveOf(t, map[string]string{"manifest.json": manifest}))
			if err := writeArchive(filepath.Join(t.TempDir(), "copy.tar"), Image{Names: []string{"x"}, Archive: archive}); err == nil {
				t.Error("it is copied")
			}
		})
	}
}

func TestArchive(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "binary"), "the binary")
	path := filepath.Join(root, "image.tar")
	files := map[string]string{"bin/x": filepath.Join(root, "binary")}
	if err := writeArchive(path, Image{Names: []string{"local/x:1"}, Files: files, Command: []string{"/bin/x"}}); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	written := filesOf(t, archive)
	var manifest []saved
	var config struct{ Config struct{ Cmd []string } }
	for name, into := range map[string]any{"manifest.json": &manifest, "config.json": &config} {
		if err := json.Unmarshal(written[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff([]string{"local/x:1"}, manifest[0].RepoTags); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if !cmp.Equal(config.Config.Cmd, []string{"/bin/x"}) {
		t.Errorf("it runs %v", config.Config.Cmd)
	}
	if got := string(filesOf(t, written[manifest[0].Layers[0]])["bin/x"]); got != "the binary" {
		t.Errorf("its binary is %q", got)
	}
}

func archiveOf(t *testing.T, files map[string]string) string {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, data := range files {
		if err := addFile(w, name, 0o644, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.String()
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func filesOf(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}
