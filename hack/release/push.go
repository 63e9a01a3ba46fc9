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
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

func remoteOptions(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("altershield-operator-release")}
}

// mayTag refuses a tag that something else has: what was released stays what it is.
func mayTag(ctx context.Context, tag name.Tag, digest oci.Hash) error {
	there, err := remote.Head(tag, remoteOptions(ctx)...)
	var refused *transport.Error
	switch {
	case errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound:
		return nil
	case err != nil:
		return err
	case there.Digest != digest:
		return fmt.Errorf("%s is there already, as %s, and this is %s: a version that was released is not replaced; release another one", wholeName(tag), there.Digest, digest)
	}
	return nil
}

func pushCommand(ctx context.Context, c *call) error {
	if err := c.parse("ARCHIVE", "IMAGE"); err != nil {
		return err
	}
	tag, err := parseTag(c.flags.Arg(1))
	if err != nil {
		return err
	}
	digest, err := push(ctx, c.flags.Arg(0), tag)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.out, "%s@%s\n", wholeName(tag), digest)
	return nil
}

// push pushes the image of an archive by a tag, and what refers to it.
func push(ctx context.Context, archive string, tag name.Tag) (_ oci.Hash, err error) {
	l, remove, err := openArchive(archive)
	if err != nil {
		return oci.Hash{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	index, err := l.ImageIndex()
	if err != nil {
		return oci.Hash{}, err
	}
	all, err := index.IndexManifest()
	if err != nil {
		return oci.Hash{}, err
	}
	var pushed oci.Hash
	for _, d := range all.Manifests {
		switch {
		case d.MediaType == types.OCIImageIndex && d.Digest == pushed:
			// The same by another name.
		case d.MediaType == types.OCIImageIndex:
			image, err := index.ImageIndex(d.Digest)
			if err != nil {
				return oci.Hash{}, err
			}
			if releaseVersion.MatchString(tag.TagStr()) { // a tag to try things out may move
				if err := mayTag(ctx, tag, d.Digest); err != nil {
					return oci.Hash{}, err
				}
			}
			if err := remote.WriteIndex(tag, image, remoteOptions(ctx)...); err != nil {
				return oci.Hash{}, err
			}
			pushed = d.Digest
		case pushed == oci.Hash{}:
			return oci.Hash{}, fmt.Errorf("%s has no image of several platforms: push the archive that has no platform in its name", archive)
		default:
			// What refers to an image has no name. It comes behind the image.
			referrer, err := index.Image(d.Digest)
			if err != nil {
				return oci.Hash{}, err
			}
			if err := remote.Write(tag.Context().Digest(d.Digest.String()), referrer, remoteOptions(ctx)...); err != nil {
				return oci.Hash{}, err
			}
		}
	}
	if (pushed == oci.Hash{}) {
		return oci.Hash{}, fmt.Errorf("%s has no image", archive)
	}
	return pushed, nil
}

// Media types of charts in registries: https://helm.sh/docs/topics/registries.
const (
	chartConfigType  = "application/vnd.cncf.helm.config.v1+json"
	chartContentType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

func pushChartCommand(ctx context.Context, c *call) error {
	if err := c.parse("CHART", "REPOSITORY"); err != nil {
		return err
	}
	data, err := os.ReadFile(c.flags.Arg(0))
	if err != nil {
		return err
	}
	pushed, err := pushChart(ctx, data, c.flags.Arg(1))
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, pushed)
	return nil
}

// chartDigestCommand prints the digest that a packaged chart has once it is pushed.
func chartDigestCommand(_ context.Context, c *call) error {
	if err := c.parse("CHART"); err != nil {
		return err
	}
	data, err := os.ReadFile(c.flags.Arg(0))
	if err != nil {
		return err
	}
	_, chart, err := packedChart(data)
	if err != nil {
		return err
	}
	digest, err := chart.Digest()
	if err != nil {
		return err
	}
	fmt.Fprintln(c.out, digest)
	return nil
}

// packedChart returns a packaged chart as it is pushed, and the end of its name: NAME:VERSION.
func packedChart(data []byte) (nameAndTag string, chart oci.Image, err error) {
	files, err := readTarGz(data)
	if err != nil {
		return "", nil, err
	}
	var text []byte
	for file, content := range files {
		if dir, base := path.Split(file); base == "Chart.yaml" && strings.Count(dir, "/") == 1 {
			text = content
		}
	}
	config, err := yaml.YAMLToJSON(text)
	if err != nil {
		return "", nil, err
	}
	var about struct{ Name, Version string }
	if err := json.Unmarshal(config, &about); err != nil {
		return "", nil, err
	}
	if about.Name == "" || about.Version == "" {
		return "", nil, errors.New("it is no chart: there is no Chart.yaml with a name and a version in it")
	}
	chart, err = (&artifact{configType: chartConfigType, config: config, documentType: chartContentType, document: data}).image()
	// Tags cannot have the plus of build metadata; Helm writes it so.
	return about.Name + ":" + strings.ReplaceAll(about.Version, "+", "_"), chart, err
}

// pushChart pushes a packaged chart as `helm push` does: below the repository,
// by the name of the chart, with its version as the tag.
func pushChart(ctx context.Context, data []byte, repository string) (string, error) {
	base, ok := strings.CutPrefix(repository, "oci://")
	if !ok {
		return "", fmt.Errorf("the repository of charts is %q: want oci://REGISTRY/PATH", repository)
	}
	nameAndTag, chart, err := packedChart(data)
	if err != nil {
		return "", err
	}
	tag, err := parseTag(strings.TrimSuffix(base, "/") + "/" + nameAndTag)
	if err != nil {
		return "", err
	}
	digest, err := chart.Digest()
	if err != nil {
		return "", err
	}
	if err := mayTag(ctx, tag, digest); err != nil {
		return "", err
	}
	if err := remote.Write(tag, chart, remoteOptions(ctx)...); err != nil {
		return "", err
	}
	return fmt.Sprintf("oci://%s@%s", tag, digest), nil
}
