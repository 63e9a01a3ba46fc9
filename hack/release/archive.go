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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// imageFiles is what names of the files of an image in dist/ begin with.
const imageFiles = "altershield-operator-image-"

func imageCommand(ctx context.Context, c *call) error {
	root := c.flags.String("root", ".", "directory of the repository")
	version := c.flags.String("version", "", "version that the manager says")
	commit := c.flags.String("commit", "", "commit that the manager says")
	image := c.flags.String("image", "", "name of the image, with a tag")
	list := c.flags.String("platforms", "linux/amd64,linux/arm64", "platforms, with commas between")
	out := c.flags.String("out", "dist", "directory to write to")
	if err := c.parse(); err != nil {
		return err
	}
	if *version == "" || *commit == "" {
		return errors.New("-version and -commit are missing")
	}
	tag, err := parseTag(*image)
	if err != nil {
		return err
	}
	platforms, err := parsePlatforms(*list)
	if err != nil {
		return err
	}
	s := &source{root: *root, version: *version, commit: *commit}
	if s.toolchain, err = findToolchain(ctx, s.root); err != nil {
		return err
	}
	if s.time, err = epoch(ctx, s.root); err != nil {
		return err
	}
	// Without git nobody knows: that is not to be taken for the commit's tree.
	if s.modified, err = isModified(ctx, s.root); err != nil {
		s.modified = true
	}
	b, err := s.buildImage(ctx, tag, platforms)
	if err != nil {
		return err
	}
	if err := b.write(ctx, s, *out); err != nil {
		return err
	}
	_, err = io.WriteString(c.out, b.digests())
	return err
}

// digests has a line for the image, and one for each platform.
func (b *built) digests() string {
	var lines strings.Builder
	fmt.Fprintf(&lines, "%s  %s\n", b.digest, b.tag)
	for _, p := range b.platforms {
		fmt.Fprintf(&lines, "%s  %s\n", p.digest, p.platform)
	}
	return lines.String()
}

// write writes the archives, bills of materials, provenance and digests to a
// directory.
func (b *built) write(ctx context.Context, s *source, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	prefix := filepath.Join(dir, imageFiles+s.version)
	if err := writeLayout(prefix+".tar", s.time, func(l layout.Path) error { return b.appendTo(l, s) }); err != nil {
		return err
	}
	for _, p := range b.platforms {
		file := prefix + "-" + strings.ReplaceAll(p.platform.String(), "/", "-")
		if err := writeLayout(file+".tar", s.time, func(l layout.Path) error { return p.appendTo(l, b.tag) }); err != nil {
			return err
		}
		if err := os.WriteFile(file+".cdx.json", p.bill, 0o644); err != nil {
			return err
		}
	}
	statement, err := s.provenance(ctx, b)
	if err != nil {
		return err
	}
	if err := os.WriteFile(prefix+".provenance.json", statement, 0o644); err != nil {
		return err
	}
	return os.WriteFile(prefix+".digests.txt", []byte(b.digests()), 0o644)
}

// names are what containerd and others call an image of an archive.
func names(tag name.Tag) map[string]string {
	return map[string]string{containerdName: wholeName(tag), "org.opencontainers.image.ref.name": tag.TagStr()}
}

// containerdName is the annotation by which containerd names what it imports.
const containerdName = "io.containerd.image.name"

// wholeName is a name with its registry, as container engines write it.
func wholeName(of name.Reference) string {
	return strings.Replace(of.Name(), "index.docker.io/", "docker.io/", 1)
}

// appendTo adds the image of all platforms, and what refers to it.
func (b *built) appendTo(l layout.Path, s *source) error {
	if err := l.AppendIndex(b.index, layout.WithAnnotations(names(b.tag))); err != nil {
		return err
	}
	// A kubelet that is asked for the digest looks for an image of this name.
	byDigest := map[string]string{containerdName: wholeName(b.tag.Context().Digest(b.digest.String()))}
	if err := l.AppendIndex(b.index, layout.WithAnnotations(byDigest)); err != nil {
		return err
	}
	for _, p := range b.platforms {
		referrer, err := p.referrer(s.labels())
		if err != nil {
			return err
		}
		if err := l.AppendImage(referrer); err != nil {
			return err
		}
	}
	return nil
}

// appendTo adds the image, and what `docker load` looks for.
func (p *builtPlatform) appendTo(l layout.Path, tag name.Tag) error {
	manifest, err := p.image.Manifest()
	if err != nil {
		return err
	}
	size, err := p.image.Size()
	if err != nil {
		return err
	}
	if err := l.WriteImage(p.image); err != nil {
		return err
	}
	if err := l.AppendDescriptor(oci.Descriptor{
		MediaType: manifest.MediaType, Digest: p.digest, Size: size, Platform: &p.platform, Annotations: names(tag),
	}); err != nil {
		return err
	}
	saved := struct {
		Config           string
		RepoTags, Layers []string
	}{Config: blob(manifest.Config.Digest), RepoTags: []string{wholeName(tag)}}
	for _, layer := range manifest.Layers {
		saved.Layers = append(saved.Layers, blob(layer.Digest))
	}
	data, err := json.Marshal([]any{saved})
	if err != nil {
		return err
	}
	return l.WriteFile("manifest.json", data, 0o644)
}

func blob(digest oci.Hash) string { return path.Join("blobs", digest.Algorithm, digest.Hex) }

// writeLayout writes an archive of an OCI layout.
func writeLayout(file string, at time.Time, fill func(layout.Path) error) error {
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	l, err := layout.Write(temp, empty.Index)
	if err != nil {
		return err
	}
	if err := fill(l); err != nil {
		return err
	}
	files, err := filesBelow(temp)
	if err != nil {
		return err
	}
	archive, err := archiveOf(files, at)
	if err != nil {
		return err
	}
	return os.WriteFile(file, archive, 0o644)
}

func filesBelow(dir string) ([]file, error) {
	var files []file
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f := file{path: filepath.ToSlash(relative), mode: 0o644}
		if entry.IsDir() {
			f.path, f.mode = f.path+"/", 0o755
		} else if f.data, err = os.ReadFile(path); err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

// openArchive unpacks an archive of an OCI layout; the caller removes it.
func openArchive(archive string) (l layout.Path, remove func() error, err error) {
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(temp) }
	if err := unpack(archive, temp); err != nil {
		return "", nil, errors.Join(fmt.Errorf("%s: %w", archive, err), remove())
	}
	if l, err = layout.FromPath(temp); err != nil {
		return "", nil, errors.Join(fmt.Errorf("%s is no archive of make image: %w", archive, err), remove())
	}
	return l, remove, nil
}

func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag == tar.TypeDir {
			if err := root.MkdirAll(path.Clean(header.Name), 0o755); err != nil {
				return err
			}
			continue
		}
		if err := root.MkdirAll(path.Dir(header.Name), 0o755); err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := root.WriteFile(header.Name, data, 0o644); err != nil {
			return err
		}
	}
}
