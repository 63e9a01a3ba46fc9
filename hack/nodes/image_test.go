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
	"testing"

	"github.com/google/go-cmp/cmp"
)

const dockerfile = `FROM golang AS builder
COPY . .
FROM gcr.io/distroless/static:nonroot
COPY --from=builder /manager /manager
USER 65532:65532
ENTRYPOINT ["/manager"]
`

func TestOperatorArchive(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "Dockerfile"), dockerfile)
	write(t, filepath.Join(root, "bin", "manager"), "the binary")
	image, err := Operator(root, "registry/operator:v1")
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
	files := filesOf(t, archive)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
		}
	}
	for name, into := range map[string]any{"manifest.json": &manifest, "config.json": &config} {
		if err := json.Unmarshal(files[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff([]string{"registry/operator:v1"}, manifest[0].RepoTags); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if config.Config.User != "65532:65532" || !cmp.Equal(config.Config.Entrypoint, []string{"/manager"}) {
		t.Errorf("it runs as %+v", config.Config)
	}
	if got := string(filesOf(t, files[manifest[0].Layers[0]])["manager"]); got != "the binary" {
		t.Errorf("its manager is %q", got)
	}
}

func TestOperatorRefuses(t *testing.T) {
	for name, dockerfile := range map[string]string{
		"no entrypoint":    "FROM scratch\nCOPY --from=builder /manager /manager\n",
		"no binary":        "FROM scratch\nENTRYPOINT [\"/manager\"]\n",
		"shell entrypoint": "FROM scratch\nCOPY --from=builder /manager /manager\nENTRYPOINT /manager\n",
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, filepath.Join(root, "Dockerfile"), dockerfile)
			if image, err := Operator(root, "x"); err == nil {
				t.Errorf("it is taken for %+v", image)
			}
		})
	}
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
