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
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/licensecheck"
	"github.com/google/uuid"
	"golang.org/x/mod/module"
)

// certificatesModule is where the CA certificates come from.
const certificatesModule = "golang.org/x/crypto/x509roots/fallback"

func sbomCommand(ctx context.Context, c *call) error {
	root := c.flags.String("root", ".", "directory of the repository")
	version := c.flags.String("version", "", "version of the program")
	out := c.flags.String("o", "", "file to write, standard output if empty")
	if err := c.parse("BINARY"); err != nil {
		return err
	}
	if *version == "" {
		return errors.New("-version is missing")
	}
	s := &source{root: *root, version: *version}
	var err error
	if s.toolchain, err = findToolchain(ctx, s.root); err != nil {
		return err
	}
	if s.time, err = epoch(ctx, s.root); err != nil {
		return err
	}
	file := c.flags.Arg(0)
	data, err := readBinary(file)
	if err != nil {
		return err
	}
	bom, err := s.binaryBill(path.Base(filepath.ToSlash(file)), data)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	encoded, err := encodeBill(bom)
	if err != nil {
		return err
	}
	if *out == "" {
		_, err = c.out.Write(encoded)
		return err
	}
	return os.WriteFile(*out, encoded, 0o644)
}

// readBinary reads a Go binary, or the one that is in a .tar.gz or a .zip.
func readBinary(file string) ([]byte, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var files map[string][]byte
	switch {
	case strings.HasSuffix(file, ".tar.gz"):
		files, err = readTarGz(data)
	case strings.HasSuffix(file, ".zip"):
		files, err = readZip(data)
	default:
		return data, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var binaries [][]byte
	for _, content := range files {
		if _, err := buildinfo.Read(bytes.NewReader(content)); err == nil {
			binaries = append(binaries, content)
		}
	}
	if len(binaries) != 1 {
		return nil, fmt.Errorf("%s has %d Go binaries, want one", file, len(binaries))
	}
	return binaries[0], nil
}

func readTarGz(data []byte) (map[string][]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return readTar(zr)
}

func readTar(archive io.Reader) (map[string][]byte, error) {
	files := map[string][]byte{}
	for r := tar.NewReader(archive); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			return nil, err
		}
	}
}

func readZip(data []byte) (map[string][]byte, error) {
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, f := range archive.File {
		if files[f.Name], err = readZipped(f); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// binaryBill is the bill of materials of a binary: the main module, the modules
// that it is linked from, and Go's own library.
func (s *source) binaryBill(name string, binary []byte) (*cyclonedx.BOM, error) {
	main, parts, err := s.partsOf(binary)
	if err != nil {
		return nil, err
	}
	main.Properties = &[]cyclonedx.Property{{Name: "file", Value: name}}
	return s.bill(*main, parts, []cyclonedx.Dependency{dependsOn(main.BOMRef, parts)}), nil
}

// imageRef names the image of one platform.
type imageRef struct {
	tag      name.Tag
	platform oci.Platform
	digest   oci.Hash
}

// imageBill is the bill of materials of the image of a platform: the manager and
// its parts, and what is put beside it.
func (s *source) imageBill(binary []byte, around *base, ref imageRef) (*cyclonedx.BOM, error) {
	manager, parts, err := s.partsOf(binary)
	if err != nil {
		return nil, err
	}
	manager.Properties = &[]cyclonedx.Property{{Name: "file", Value: managerPath}}
	roots, err := s.certificatesPart(around.certificates)
	if err != nil {
		return nil, err
	}
	zones := cyclonedx.Component{
		BOMRef: "tzdata@" + around.zones.version, Type: cyclonedx.ComponentTypeData, Name: around.zones.name, Version: around.zones.version,
		Description: "time zones of IANA in /" + strings.TrimSuffix(zonesPath, "/") + ", from " + around.zones.origin + " of " + s.goVersion,
		Hashes:      sha256Hash(around.zones.sha256), Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{Name: "public domain"}}},
	}
	image := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeContainer, Name: ref.tag.Context().Name(), Version: s.version, Description: ref.platform.String(),
		PackageURL: fmt.Sprintf("pkg:oci/%s@%s?arch=%s&repository_url=%s&tag=%s", path.Base(ref.tag.RepositoryStr()),
			url.QueryEscape(ref.digest.String()), ref.platform.Architecture, ref.tag.Context().Name(), ref.tag.TagStr()),
		Hashes: sha256Hash(ref.digest.Hex), Licenses: licences("Apache-2.0"),
	}
	image.BOMRef = image.PackageURL
	beside := []cyclonedx.Component{*manager, *roots, zones}
	return s.bill(image, append(beside, parts...), []cyclonedx.Dependency{
		dependsOn(image.BOMRef, beside), dependsOn(manager.BOMRef, parts),
	}), nil
}

// certificatesPart names the CA certificates by the module they come from.
func (s *source) certificatesPart(m material) (*cyclonedx.Component, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, errors.New("this program does not say what it is built from")
	}
	for _, dependency := range info.Deps {
		if dependency.Path == certificatesModule {
			part, err := s.modulePart(dependency)
			if err != nil {
				return nil, err
			}
			part.Type, part.Name, part.Hashes = cyclonedx.ComponentTypeData, m.name, sha256Hash(m.sha256)
			part.Description = "/" + certificatesPath + ", from the module " + certificatesModule
			return part, nil
		}
	}
	return nil, fmt.Errorf("this program is not built from %s", certificatesModule)
}

// bill is a bill of materials that depends on its contents only.
func (s *source) bill(subject cyclonedx.Component, parts []cyclonedx.Component, dependencies []cyclonedx.Dependency) *cyclonedx.BOM {
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{
		Timestamp: s.time.Format(time.RFC3339), Component: &subject,
		Supplier: &cyclonedx.OrganizationalEntity{Name: "The AlterShield Authors", URL: &[]string{repository}},
		Tools: &cyclonedx.ToolsChoice{Components: &[]cyclonedx.Component{
			{Type: cyclonedx.ComponentTypeApplication, Name: "github.com/traas-stack/altershield-operator/hack/release", Version: s.version},
		}},
	}
	bom.Components, bom.Dependencies = &parts, &dependencies
	identity := subject.BOMRef
	for _, hash := range *subject.Hashes {
		identity += "#" + hash.Value
	}
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, []byte(identity)).URN()
	return bom
}

func encodeBill(bom *cyclonedx.BOM) ([]byte, error) {
	var out bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).
		EncodeVersion(bom, cyclonedx.SpecVersion1_6)
	return out.Bytes(), err
}

func dependsOn(ref string, parts []cyclonedx.Component) cyclonedx.Dependency {
	refs := make([]string, 0, len(parts))
	for _, part := range parts {
		refs = append(refs, part.BOMRef)
	}
	return cyclonedx.Dependency{Ref: ref, Dependencies: &refs}
}

// partsOf are the main module of a binary and what it is linked from.
func (s *source) partsOf(binary []byte) (main *cyclonedx.Component, parts []cyclonedx.Component, err error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, nil, err
	}
	found, err := licencesIn(s.root)
	if err != nil {
		return nil, nil, err
	}
	purl := purlOf(info.Main.Path, s.version)
	if inside := strings.TrimPrefix(strings.TrimPrefix(info.Path, info.Main.Path), "/"); inside != "" {
		purl += "#" + inside
	}
	main = &cyclonedx.Component{
		BOMRef: purl, Type: cyclonedx.ComponentTypeApplication, Name: info.Path, Version: s.version, PackageURL: purl,
		Hashes: sha256Hash(sum(binary)), Licenses: found,
	}
	library, err := s.libraryPart(info.GoVersion)
	if err != nil {
		return nil, nil, err
	}
	parts = append(parts, *library)
	for _, dependency := range info.Deps {
		part, err := s.modulePart(dependency)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, *part)
	}
	return main, parts, nil
}

// libraryPart is Go's own library.
func (s *source) libraryPart(goVersion string) (*cyclonedx.Component, error) {
	if goVersion != s.goVersion {
		return nil, fmt.Errorf("it was built with %s, and releases are built with %s", goVersion, s.goVersion)
	}
	found, err := licencesIn(s.goRoot)
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(goVersion, "go")
	purl := purlOf("stdlib", version)
	return &cyclonedx.Component{
		BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: "stdlib", Version: goVersion, PackageURL: purl, Licenses: found,
		CPE: "cpe:2.3:a:golang:go:" + version + ":-:*:*:*:*:*:*",
	}, nil
}

// modulePart is a module, with what go.sum says of it.
func (s *source) modulePart(dependency *debug.Module) (*cyclonedx.Component, error) {
	if dependency.Replace != nil {
		dependency = dependency.Replace
	}
	purl := purlOf(dependency.Path, dependency.Version)
	part := &cyclonedx.Component{
		BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: dependency.Path, Version: dependency.Version, PackageURL: purl,
	}
	if encoded, ok := strings.CutPrefix(dependency.Sum, "h1:"); ok {
		digest, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, fmt.Errorf("the sum of %s: %w", dependency.Path, err)
		}
		part.Hashes = sha256Hash(hex.EncodeToString(digest))
	}
	dir, err := s.moduleDir(dependency)
	if err != nil {
		return nil, err
	}
	part.Licenses, err = licencesIn(dir)
	return part, err
}

// moduleDir is where a module is kept that something here was built from.
func (s *source) moduleDir(dependency *debug.Module) (string, error) {
	escapedPath, err := module.EscapePath(dependency.Path)
	if err != nil {
		return "", err
	}
	version, err := module.EscapeVersion(dependency.Version)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.modCache, filepath.FromSlash(escapedPath)+"@"+version)
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("module %s %s is not here, to read its licence: build the program on this machine: %w", dependency.Path, dependency.Version, err)
	}
	return dir, nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([.-].*)?$`)

// sureCoverage is the part of a text, in percent, that must be that of licences
// for the text to count as such.
const sureCoverage = 75

// licencesIn are those that the directory of a module says. Nothing is guessed:
// a text that is not known is left out.
func licencesIn(dir string) (*cyclonedx.Licenses, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, entry := range entries {
		if entry.IsDir() || !licenceFile.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		coverage := licensecheck.Scan(text)
		if coverage.Percent < sureCoverage {
			continue
		}
		for _, match := range coverage.Match {
			ids = append(ids, match.ID)
		}
	}
	slices.Sort(ids)
	return licences(slices.Compact(ids)...), nil
}

func licences(ids ...string) *cyclonedx.Licenses {
	if len(ids) == 0 {
		return nil
	}
	var all cyclonedx.Licenses
	for _, id := range ids {
		all = append(all, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &all
}

// purlOf is the package URL of a Go module.
func purlOf(path, version string) string {
	return "pkg:golang/" + path + "@" + url.QueryEscape(version)
}

func sha256Hash(value string) *[]cyclonedx.Hash {
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: value}}
}
