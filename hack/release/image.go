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
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	repository  = "https://github.com/traas-stack/altershield-operator"
	imageTitle  = "AlterShield Operator"
	description = "Verifies each release of a workload while it rolls out, and stops or rolls back what is bad."
	managerPath = "/manager"
)

// imageUser is the user of the distroless images named nonroot.
var imageUser = fmt.Sprintf("%d:%d", nonroot, nonroot)

// built is the image of all platforms.
type built struct {
	tag       name.Tag
	index     oci.ImageIndex
	digest    oci.Hash
	platforms []builtPlatform
}

// builtPlatform is the image of one platform.
type builtPlatform struct {
	platform oci.Platform
	image    oci.Image
	digest   oci.Hash
}

// labels returns the labels of the image, which are also the annotations of its index.
func (s *source) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       imageTitle,
		"org.opencontainers.image.description": description,
		"org.opencontainers.image.source":      repository,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     s.version,
		"org.opencontainers.image.revision":    s.commit,
		"org.opencontainers.image.created":     s.time.Format(time.RFC3339),
	}
}

// buildImage builds the image of all platforms.
func (s *source) buildImage(ctx context.Context, tag name.Tag, platforms []oci.Platform) (*built, error) {
	around, err := baseFiles(s.goRoot)
	if err != nil {
		return nil, err
	}
	first, err := layerOf(around, s.time)
	if err != nil {
		return nil, err
	}
	b := &built{tag: tag}
	var images []mutate.IndexAddendum
	for _, platform := range platforms {
		manager, err := s.build(ctx, ".", platform.OS, platform.Architecture, s.imageFile(&platform))
		if err != nil {
			return nil, err
		}
		second, err := layerOf([]file{{path: strings.TrimPrefix(managerPath, "/"), mode: 0o755, data: manager}}, s.time)
		if err != nil {
			return nil, err
		}
		image, err := s.assemble(platform, first, second)
		if err != nil {
			return nil, err
		}
		digest, err := image.Digest()
		if err != nil {
			return nil, err
		}
		b.platforms = append(b.platforms, builtPlatform{platform, image, digest})
		images = append(images, mutate.IndexAddendum{Add: noArtifact{image}, Descriptor: oci.Descriptor{Platform: &platform}})
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), images...)
	annotated, ok := mutate.Annotations(index, s.labels()).(oci.ImageIndex)
	if !ok {
		return nil, errors.New("an index with annotations is no index")
	}
	b.index = annotated
	b.digest, err = b.index.Digest()
	return b, err
}

// assemble returns an image of two layers: the files around the manager, and the manager.
func (s *source) assemble(platform oci.Platform, first, second oci.Layer) (oci.Image, error) {
	at := oci.Time{Time: s.time}
	image, err := mutate.ConfigFile(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), &oci.ConfigFile{
			OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant, Created: at,
			RootFS: oci.RootFS{Type: "layers", DiffIDs: []oci.Hash{}},
			Config: oci.Config{
				User: imageUser, Entrypoint: []string{managerPath}, WorkingDir: "/home/nonroot", Labels: s.labels(),
				Env: []string{
					"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SSL_CERT_FILE=/" + certificatesPath,
				},
			},
		})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: first, History: oci.History{Created: at, CreatedBy: "make image: CA certificates, users, time zones"}},
		mutate.Addendum{Layer: second, History: oci.History{Created: at, CreatedBy: "make image: " + managerPath}})
	if err != nil {
		return nil, err
	}
	annotated, ok := mutate.Annotations(image, s.labels()).(oci.Image)
	if !ok {
		return nil, errors.New("an image with annotations is no image")
	}
	return annotated, nil
}

func layerOf(files []file, at time.Time) (oci.Layer, error) {
	archive, err := archiveOf(files, at)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

// noArtifact keeps the field artifactType out of the index.
type noArtifact struct{ oci.Image }

// ArtifactType returns nothing.
func (noArtifact) ArtifactType() (string, error) { return "", nil }

// tagForm matches tags that registries accept.
var tagForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

func parseTag(image string) (name.Tag, error) {
	tag, err := name.NewTag(image, name.WithDefaultTag(""))
	if err != nil {
		return tag, err
	}
	if !tagForm.MatchString(tag.TagStr()) {
		return tag, fmt.Errorf("the image %s has no tag, or one that registries refuse: want REPOSITORY:TAG", image)
	}
	return tag, nil
}

func parsePlatforms(list string) ([]oci.Platform, error) {
	var platforms []oci.Platform
	for part := range strings.SplitSeq(list, ",") {
		platform, err := oci.ParsePlatform(part)
		if err != nil {
			return nil, err
		}
		if platform.OS != "linux" || platform.Architecture == "" {
			return nil, fmt.Errorf("platform %q: want linux/ARCHITECTURE, as in linux/arm64", part)
		}
		if platform.Variant != "" {
			return nil, fmt.Errorf("platform %q: leave the variant %s out: one image is for all of them", part, platform.Variant)
		}
		platforms = append(platforms, *platform)
	}
	return platforms, nil
}
