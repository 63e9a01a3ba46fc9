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
	"encoding/pem"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// file is a file or a directory of an archive.
type file struct {
	// path has no leading slash; the path of a directory ends with a slash.
	path string
	mode int64
	// owner is the number of the user and of the group.
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

const (
	certificatesPath = "etc/ssl/certs/ca-certificates.crt"
	zonesPath        = "usr/share/zoneinfo/"
)

// baseFiles returns the files of a distroless static image: users, certificates from the pinned module, and time zones from a GOROOT.
func baseFiles(goRoot string) ([]file, error) {
	files := []file{
		{path: "etc/", mode: 0o755},
		{path: "etc/group", mode: 0o644, data: []byte(group)},
		{path: "etc/nsswitch.conf", mode: 0o644, data: []byte(nsswitch)},
		{path: "etc/passwd", mode: 0o644, data: []byte(passwd)},
		{path: "etc/ssl/", mode: 0o755},
		{path: "etc/ssl/certs/", mode: 0o755},
		{path: certificatesPath, mode: 0o644, data: certificates()},
		{path: "home/", mode: 0o755},
		{path: "home/nonroot/", mode: 0o700, owner: nonroot},
		{path: "root/", mode: 0o700},
		{path: "tmp/", mode: 0o1777},
		{path: "usr/", mode: 0o755},
		{path: "usr/share/", mode: 0o755},
		{path: zonesPath, mode: 0o755},
	}
	zones, err := zip.OpenReader(filepath.Join(goRoot, "lib", "time", "zoneinfo.zip"))
	if err != nil {
		return nil, fmt.Errorf("the time zones of Go: %w: take a Go as go.dev distributes it", err)
	}
	defer zones.Close()
	dirs := map[string]bool{}
	for _, zone := range zones.File {
		data, err := fs.ReadFile(zones, zone.Name)
		if err != nil {
			return nil, err
		}
		files = append(files, file{path: zonesPath + zone.Name, mode: 0o644, data: data})
		for dir := path.Dir(zone.Name); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
			files = append(files, file{path: zonesPath + dir + "/", mode: 0o755})
		}
	}
	return files, nil
}

// certificates returns the roots that Mozilla trusts without a condition: a file cannot express conditions.
func certificates() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // writes to memory
		}
	}
	return out.Bytes()
}

// archiveOf returns a tar of files. Its bytes depend on the arguments only: the files are sorted and have one time.
func archiveOf(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.path, b.path) }) {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Uid: f.owner, Gid: f.owner, Size: int64(len(f.data)),
			ModTime: at, Format: tar.FormatUSTAR,
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
