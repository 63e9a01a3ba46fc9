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
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// pushCommand pushes the image of an archive under a tag. It never moves the tag of a released version to another image.
func pushCommand(ctx context.Context, archive, name string, out io.Writer) error {
	tag, err := parseTag(name)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	image, err := openArchive(ctx, archive, temp)
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("altershield-operator-release"),
	}
	if releaseVersion.MatchString(tag.TagStr()) {
		there, err := remote.Head(tag, options...)
		var refused *transport.Error
		switch {
		case errors.As(err, &refused) && refused.StatusCode == http.StatusNotFound:
		case err != nil:
			return err
		case there.Digest != digest:
			return fmt.Errorf("%s exists with the digest %s, and this image is %s: released versions are not replaced; release another version",
				wholeName(tag), there.Digest, digest)
		}
	}
	if err := remote.WriteIndex(tag, image, options...); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s@%s\n", wholeName(tag), digest)
	return nil
}
