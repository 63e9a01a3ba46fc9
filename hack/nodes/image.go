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
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Image is made from files.
type Image struct {
	// Names it can be asked for by, whole ones.
	Names []string
	// Files are what is in it: paths in the image to paths here.
	Files map[string]string
	// Links are symbolic ones, to their targets.
	Links map[string]string
	// User, as in a Dockerfile.
	User string
	// Entrypoint and Command, as in a Dockerfile.
	Entrypoint, Command []string
}

// Busybox is an image with the busybox of this machine; nodes use it for
// sandboxes of pods, too.
func Busybox(ctx context.Context) (Image, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return Image{}, err
	}
	applets, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return Image{}, fmt.Errorf("busybox --list: %w", err)
	}
	image := Image{
		Names:   []string{"docker.io/library/busybox:latest", "altershield.local/pause:1"},
		Files:   map[string]string{"bin/busybox": path},
		Links:   map[string]string{},
		Command: []string{"/bin/sleep", "infinity"},
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			image.Links["bin/"+applet] = "/bin/busybox"
		}
	}
	return image, nil
}

// Operator is the operator's image as the Dockerfile of the repository at root
// makes it, with the binary that is built already.
func Operator(root string, names ...string) (Image, error) {
	dockerfile, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		return Image{}, err
	}
	image := Image{Names: names}
	for line := range strings.Lines(string(dockerfile)) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch fields := strings.Fields(rest); instruction {
		case "FROM":
			image = Image{Names: names, Files: map[string]string{}}
		case "COPY":
			if len(fields) == 3 && strings.HasPrefix(fields[0], "--from=") {
				image.Files[strings.TrimPrefix(fields[2], "/")] = filepath.Join(root, "bin", "manager")
			}
		case "USER":
			image.User = rest
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(rest), &image.Entrypoint); err != nil {
				return image, fmt.Errorf("the Dockerfile: ENTRYPOINT: %w", err)
			}
		}
	}
	if len(image.Files) != 1 || len(image.Entrypoint) == 0 {
		return image, fmt.Errorf("the Dockerfile: want a last stage with one COPY and an ENTRYPOINT, have %v and %v", image.Files, image.Entrypoint)
	}
	return image, nil
}

// writeArchive writes an image as `docker save` does.
func writeArchive(path string, image Image) error {
	layer, err := layerOf(image)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": image.User, "Entrypoint": image.Entrypoint, "Cmd": image.Command, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": image.Names, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, file := range []struct {
		name string
		data []byte
	}{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
		if err := addFile(w, file.name, 0o644, file.data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, archive.Bytes(), 0o600)
}

// layerOf is the only layer of an image.
func layerOf(image Image) ([]byte, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
		return nil, err
	}
	for name, path := range image.Files {
		data, err := os.ReadFile(path)
		if err == nil {
			err = addFile(w, name, 0o755, data)
		}
		if err != nil {
			return nil, err
		}
	}
	for name, target := range image.Links {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), w.Close()
}

func addFile(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(data))
	return err
}
