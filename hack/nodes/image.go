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
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Image is an image of files or from an archive.
type Image struct {
	// Names are the full names of the image. Without any, an archive keeps its own.
	Names []string
	// Archive is the path of an archive, as `docker save` writes it or, without names,
	// of an OCI layout; the fields below are then ignored.
	Archive string
	// Files are the files of the image: paths in the image to paths on this machine.
	Files map[string]string
	// Links are symbolic links and their targets.
	Links map[string]string
	// Command is the command, as in a Dockerfile.
	Command []string
}

// Busybox returns an image with the busybox of this machine; nodes also use it for
// the sandboxes of pods.
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

// Operator returns the operator's image that `make image` built for this machine.
func Operator(root string, names ...string) (Image, error) {
	pattern := filepath.Join(root, "bin", "nodes", "image", "*-linux-"+runtime.GOARCH+".tar")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return Image{}, err
	}
	if len(found) != 1 {
		return Image{}, fmt.Errorf("there are %d images %s, want one: run make test-node, which builds it", len(found), pattern)
	}
	return Image{Names: names, Archive: found[0]}, nil
}

// Released returns the archive of the operator's image, as a release has it, and the
// name of the image in its manifests, with a digest.
func Released(root string) (image Image, name string, err error) {
	pattern := filepath.Join(root, "bin", "nodes", "image", "*.digests.txt")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return Image{}, "", err
	}
	if len(found) != 1 {
		return Image{}, "", fmt.Errorf("there are %d files %s, want one: run make test-node, which makes it", len(found), pattern)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		return Image{}, "", err
	}
	words := strings.Fields(string(data))
	if len(words) < 2 {
		return Image{}, "", fmt.Errorf("%s names no image", found[0])
	}
	return Image{Archive: strings.TrimSuffix(found[0], ".digests.txt") + ".tar"}, words[1] + "@" + words[0], nil
}

// writeArchive writes an image as `docker save` does.
func writeArchive(path string, image Image) error {
	if image.Archive != "" {
		return copyArchive(path, image)
	}
	layer, err := layerOf(image)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Cmd": image.Command, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]saved{{Config: "config.json", RepoTags: image.Names, Layers: []string{"layer.tar"}}})
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

// saved is an image in the manifest of an archive.
type saved struct {
	Config           string
	RepoTags, Layers []string
}

// copyArchive gives the image of an archive other names. The files of an OCI layout
// are left out, because containerd would take the name in them.
func copyArchive(path string, image Image) error {
	if len(image.Names) == 0 {
		data, err := os.ReadFile(image.Archive)
		if err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o600)
	}
	from, err := os.Open(image.Archive)
	if err != nil {
		return err
	}
	defer from.Close()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for r := tar.NewReader(from); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		switch {
		case header.Typeflag == tar.TypeDir || header.Name == "index.json" || header.Name == "oci-layout":
			continue
		case header.Name == "manifest.json":
			if data, err = rename(data, image.Names); err != nil {
				return fmt.Errorf("%s: %w", image.Archive, err)
			}
		}
		if err := addFile(w, header.Name, 0o644, data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, archive.Bytes(), 0o600)
}

// rename gives the only image of a manifest other names.
func rename(manifest []byte, names []string) ([]byte, error) {
	var images []saved
	if err := json.Unmarshal(manifest, &images); err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("it has %d images, want one", len(images))
	}
	images[0].RepoTags = names
	return json.Marshal(images)
}

// layerOf returns the only layer of an image.
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
	err := w.Close()
	return layer.Bytes(), err
}

func addFile(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(data))
	return err
}
