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
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// imageFiles begins the names of files of an image in dist/.
const imageFiles = "altershield-operator-image-"

func imageCommand(ctx context.Context, args []string, out io.Writer) error {
	flags, s := sourceFlags("image")
	image := flags.String("image", "", "`name` of the image, with a tag")
	list := flags.String("platforms", "linux/amd64,linux/arm64", "`platforms`, with commas between")
	cleanUp, err := s.parse(ctx, flags, args)
	if err != nil {
		return err
	}
	defer cleanUp()
	tag, err := parseTag(*image)
	if err != nil {
		return err
	}
	platforms, err := parsePlatforms(*list)
	if err != nil {
		return err
	}
	b, err := s.buildImage(ctx, tag, platforms)
	if err != nil {
		return err
	}
	if err := s.writeImage(b); err != nil {
		return err
	}
	_, err = io.WriteString(out, b.digests())
	return err
}

// imageFile returns the name of a file of the image, or of the image of one platform, without an extension.
func (s *source) imageFile(platform *oci.Platform) string {
	if platform == nil {
		return imageFiles + s.version
	}
	return imageFiles + s.version + "-" + strings.ReplaceAll(platform.String(), "/", "-")
}

// digests returns a line for the image, and a line for each platform.
func (b *built) digests() string {
	var lines strings.Builder
	fmt.Fprintf(&lines, "%s  %s\n", b.digest, b.tag)
	for _, p := range b.platforms {
		fmt.Fprintf(&lines, "%s  %s\n", p.digest, p.platform)
	}
	return lines.String()
}

// writeImage writes the archive of all platforms, an archive of each platform for `docker load`, and the digests.
func (s *source) writeImage(b *built) error {
	if err := b.writeLayout(filepath.Join(s.out, s.imageFile(nil)+".tar"), s.time); err != nil {
		return err
	}
	for _, p := range b.platforms {
		if err := tarball.WriteToFile(filepath.Join(s.out, s.imageFile(&p.platform)+".tar"), b.tag, p.image); err != nil {
			return err
		}
	}
	return s.write(s.imageFile(nil)+".digests.txt", []byte(b.digests()))
}

// containerdName is the annotation by which containerd names an image that it imports.
const containerdName = "io.containerd.image.name"

// wholeName returns a name with its registry, as container engines write it.
func wholeName(of name.Reference) string {
	return strings.Replace(of.Name(), "index.docker.io/", "docker.io/", 1)
}

// writeLayout writes an archive of an OCI layout with the image under two names, with its tag and with its digest: for a digest, a kubelet
// looks for an image of that name.
func (b *built) writeLayout(path string, at time.Time) error {
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	l, err := layout.Write(temp, empty.Index)
	if err != nil {
		return err
	}
	for _, names := range []map[string]string{
		{containerdName: wholeName(b.tag), "org.opencontainers.image.ref.name": b.tag.TagStr()},
		{containerdName: wholeName(b.tag.Context().Digest(b.digest.String()))},
	} {
		if err := l.AppendIndex(b.index, layout.WithAnnotations(names)); err != nil {
			return err
		}
	}
	files, err := filesBelow(temp)
	if err != nil {
		return err
	}
	archive, err := archiveOf(files, at)
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644)
}

func filesBelow(dir string) ([]file, error) {
	var files []file
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		f := file{path: path, mode: 0o644}
		if entry.IsDir() {
			f.path, f.mode = f.path+"/", 0o755
		} else if f.data, err = os.ReadFile(filepath.Join(dir, path)); err != nil {
			return err
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

// openArchive unpacks an archive of an OCI layout into a directory, and returns the image.
func openArchive(ctx context.Context, archive, dir string) (oci.ImageIndex, error) {
	if out, err := exec.CommandContext(ctx, "tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("unpack %s: %w: %s", archive, err, out)
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("%s is no archive of make image: %w", archive, err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) == 0 {
		return nil, fmt.Errorf("%s has no image", archive)
	}
	return all.ImageIndex(manifest.Manifests[0].Digest)
}
