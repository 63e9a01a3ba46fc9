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
	"encoding/json"
	"fmt"
	"io"

	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// billType is CycloneDX in JSON.
	billType = "application/vnd.cyclonedx+json"
	// An artifact without a configuration has this one.
	emptyType = types.MediaType("application/vnd.oci.empty.v1+json")
	emptyJSON = "{}"
)

// artifact is a manifest with one document, which is no image.
type artifact struct {
	// kind is left out where the type of the configuration says it.
	kind string
	// configType and config are its configuration.
	configType types.MediaType
	config     []byte
	// documentType and document are its only layer.
	documentType types.MediaType
	document     []byte
	// subject is the image that the document is about, if any. Registries list
	// the artifact as a referrer of it.
	subject     *oci.Descriptor
	annotations map[string]string
}

// referrer is the bill of materials as what refers to the image.
func (p *builtPlatform) referrer(labels map[string]string) (oci.Image, error) {
	d, err := partial.Descriptor(p.image)
	if err != nil {
		return nil, err
	}
	const created = "org.opencontainers.image.created"
	return (&artifact{
		kind: billType, configType: emptyType, config: []byte(emptyJSON), documentType: billType, document: p.bill,
		subject:     &oci.Descriptor{MediaType: d.MediaType, Size: d.Size, Digest: d.Digest},
		annotations: map[string]string{created: labels[created]},
	}).image()
}

// image is the artifact as libraries for images take it.
func (a *artifact) image() (oci.Image, error) { return partial.CompressedToImage(a) }

// MediaType is that of the manifest.
func (a *artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawConfigFile is the configuration.
func (a *artifact) RawConfigFile() ([]byte, error) { return a.config, nil }

// RawManifest is the manifest in JSON.
func (a *artifact) RawManifest() ([]byte, error) {
	config, err := describe(a.configType, a.config)
	if err != nil {
		return nil, err
	}
	layer, err := describe(a.documentType, a.document)
	if err != nil {
		return nil, err
	}
	return json.Marshal(oci.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: a.kind, Config: config, Layers: []oci.Descriptor{layer},
		Subject: a.subject, Annotations: a.annotations,
	})
}

// LayerByDigest is the document, or the configuration.
func (a *artifact) LayerByDigest(digest oci.Hash) (partial.CompressedLayer, error) {
	for kind, data := range map[types.MediaType][]byte{a.documentType: a.document, a.configType: a.config} {
		d, err := describe(kind, data)
		if err != nil {
			return nil, err
		}
		if d.Digest == digest {
			return &document{descriptor: d, data: data}, nil
		}
	}
	return nil, fmt.Errorf("there is no %s in it", digest)
}

func describe(kind types.MediaType, data []byte) (oci.Descriptor, error) {
	digest, size, err := oci.SHA256(bytes.NewReader(data))
	return oci.Descriptor{MediaType: kind, Size: size, Digest: digest}, err
}

// document is a layer that is one file, as it is.
type document struct {
	descriptor oci.Descriptor
	data       []byte
}

// Digest is that of the file.
func (d *document) Digest() (oci.Hash, error) { return d.descriptor.Digest, nil }

// Size is in bytes.
func (d *document) Size() (int64, error) { return d.descriptor.Size, nil }

// MediaType is that of the file.
func (d *document) MediaType() (types.MediaType, error) { return d.descriptor.MediaType, nil }

// Compressed is the file as it is.
func (d *document) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(d.data)), nil
}
