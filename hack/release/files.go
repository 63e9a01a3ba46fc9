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
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// file is one of an image.
type file struct {
	// path without a leading slash; that of a directory ends with one.
	path string
	mode int64
	// owner is user and group.
	owner int
	data  []byte
}

const (
	nonroot = 65532

	passwd = `root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin
`
	group = `root:x:0:
nobody:x:65534:
nonroot:x:65532:
`
	nsswitch = `passwd: files
group: files
hosts: files dns
`
)

// base is what a static binary finds around it, as in a distroless static image.
type base struct {
	files []file
	// certificates and zones name where those come from, for the bill of
	// materials.
	certificates, zones material
}

// material is something that is put into an image as it is.
type material struct {
	name, version, origin, sha256 string
}

const (
	certificatesPath = "etc/ssl/certs/ca-certificates.crt"
	zonesPath        = "usr/share/zoneinfo/"
)

// makeBase takes the time zones from a GOROOT and the certificates from the
// module that is pinned.
func makeBase(goRoot string) (*base, error) {
	b := &base{files: []file{
		{path: "etc/", mode: 0o755},
		{path: "etc/group", mode: 0o644, data: []byte(group)},
		{path: "etc/nsswitch.conf", mode: 0o644, data: []byte(nsswitch)},
		{path: "etc/passwd", mode: 0o644, data: []byte(passwd)},
		{path: "etc/ssl/", mode: 0o755},
		{path: "etc/ssl/certs/", mode: 0o755},
		{path: "home/", mode: 0o755},
		{path: "home/nonroot/", mode: 0o700, owner: nonroot},
		{path: "root/", mode: 0o700},
		{path: "tmp/", mode: 0o1777},
		{path: "usr/", mode: 0o755},
		{path: "usr/share/", mode: 0o755},
	}}
	roots := certificates()
	b.certificates = material{name: "Mozilla CA certificates", sha256: sum(roots)}
	b.files = append(b.files, file{path: certificatesPath, mode: 0o644, data: roots})
	zones, err := b.readZones(goRoot)
	b.files = append(b.files, zones...)
	return b, err
}

// certificates are the roots that Mozilla trusts without a condition. A file
// cannot say on which condition the others are trusted.
func certificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// It writes to memory.
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

var zonesRelease = regexp.MustCompile(`(?m)^DATA=(\w+)$`)

func (b *base) readZones(goRoot string) ([]file, error) {
	dir := filepath.Join(goRoot, "lib", "time")
	data, err := os.ReadFile(filepath.Join(dir, "zoneinfo.zip"))
	if err != nil {
		return nil, fmt.Errorf("the time zones of Go: %w: take a Go as go.dev distributes it", err)
	}
	script, err := os.ReadFile(filepath.Join(dir, "update.bash"))
	if err != nil {
		return nil, fmt.Errorf("the release of the time zones: %w: take a Go as go.dev distributes it", err)
	}
	release := zonesRelease.FindSubmatch(script)
	if release == nil {
		return nil, fmt.Errorf("%s does not name the release of the time zones", filepath.Join(dir, "update.bash"))
	}
	b.zones = material{name: "tzdata", version: string(release[1]), origin: "lib/time/zoneinfo.zip", sha256: sum(data)}
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return nil, err
	}
	files := []file{{path: zonesPath, mode: 0o755}}
	dirs := map[string]bool{}
	for _, zone := range archive.File {
		f := file{path: zonesPath + zone.Name, mode: 0o644}
		if f.data, err = readZipped(zone); err != nil {
			return nil, err
		}
		files = append(files, f)
		for dir := path.Dir(zone.Name); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
			files = append(files, file{path: zonesPath + dir + "/", mode: 0o755})
		}
	}
	return files, nil
}

func readZipped(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// archiveOf is a tar of files that depends on nothing else: they are sorted, and
// have one time.
func archiveOf(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.path, b.path) }) {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.data)), ModTime: at, Format: tar.FormatUSTAR,
		}
		if strings.HasSuffix(f.path, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("%s: %w", f.path, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
