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
	"bytes"
	"context"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const (
	root        = "../.."
	testVersion = "v0.1.2-rc.3"
	testCommit  = "0123456789abcdef0123456789abcdef01234567"
	testImage   = "registry.example/team/operator:" + testVersion
	testTime    = 1700000000
)

const operatorModule = "github.com/traas-stack/altershield-operator"

// program is the path of this program. dist is the directory of its output, which is built once for all tests, and binaries the directory
// of the programs in the image.
var program, dist, binaries string

// makeImage builds the image of a tree with the program.
func makeImage(tree, out string, env ...string) error {
	// The umask must not matter.
	cmd := exec.CommandContext(context.Background(), "sh", "-c", `umask "${UMASK:-022}"; exec "$0" "$@"`, program, "image",
		"-root", tree, "-version", testVersion, "-commit", testCommit, "-image", testImage, "-out", out, "-binaries", out+"-binaries")
	cmd.Env = append(append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", testTime)), env...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, output)
	}
	return nil
}

func TestMain(m *testing.M) {
	temp, err := os.MkdirTemp("", "release-test-")
	if err != nil {
		panic(err)
	}
	program, dist = filepath.Join(temp, "release"), filepath.Join(temp, "dist")
	binaries = dist + "-binaries"
	code := m.Run()
	if err := os.RemoveAll(temp); err != nil {
		panic(err)
	}
	os.Exit(code)
}

var compile = sync.OnceValue(func() error {
	pin, err := pinnedGo(goMod)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(context.Background(), "go", "build", "-buildvcs=false", "-trimpath", "-o", program, ".")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN="+pin, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
})

var build = sync.OnceValue(func() error {
	if err := compile(); err != nil {
		return err
	}
	return makeImage(root, dist)
})

// made builds dist, if it is missing, and returns the path of a file in it.
func made(t *testing.T, suffix string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the manager for two platforms")
	}
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dist, imageFiles+testVersion+suffix)
}

// unpacked is the image of the archive of all platforms, unpacked once for all tests.
var unpacked = sync.OnceValues(func() (oci.ImageIndex, error) {
	dir := filepath.Join(filepath.Dir(dist), "layout")
	if err := os.Mkdir(dir, 0o750); err != nil {
		return nil, err
	}
	return openArchive(context.Background(), filepath.Join(dist, imageFiles+testVersion+".tar"), dir)
})

// images returns the images of the archive by platform, and their index.
func images(t *testing.T) (map[string]oci.Image, oci.ImageIndex) {
	t.Helper()
	made(t, ".tar")
	index := must(unpacked())(t)
	byPlatform := map[string]oci.Image{}
	for _, d := range must(index.IndexManifest())(t).Manifests {
		byPlatform[d.Platform.String()] = must(index.Image(d.Digest))(t)
	}
	if len(byPlatform) != 2 || byPlatform["linux/amd64"] == nil || byPlatform["linux/arm64"] == nil {
		t.Fatalf("it is for %v", byPlatform)
	}
	return byPlatform, index
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestSameBytes builds another copy of the tree, elsewhere, in another
// environment. With RELEASE_COLD it also compiles everything again.
func TestSameBytes(t *testing.T) {
	made(t, "")
	elsewhere := filepath.Join(t.TempDir(), "a tree", "of another user")
	copyTree(t, elsewhere)
	other := filepath.Join(t.TempDir(), "out")
	env := []string{
		"UMASK=077", "TZ=Asia/Tokyo", "LC_ALL=tr_TR.UTF-8", "USER=other", "GOFLAGS=-tags=netgo", "GOAMD64=v3", "CGO_ENABLED=1",
		"GOARM64=v9.0", "GODEBUG=", "GOWORK=" + filepath.Join(elsewhere, "go.work"),
	}
	if os.Getenv("RELEASE_COLD") != "" {
		env = append(env, "GOCACHE="+t.TempDir())
	}
	if err := makeImage(elsewhere, other, env...); err != nil {
		t.Fatal(err)
	}
	entries := must(os.ReadDir(dist))(t)
	// The archives of all platforms and of each, and the digests.
	if len(entries) != 4 {
		t.Errorf("it made %v", entries)
	}
	for _, entry := range entries {
		want, got := must(os.ReadFile(filepath.Join(dist, entry.Name())))(t), must(os.ReadFile(filepath.Join(other, entry.Name())))(t)
		if !bytes.Equal(want, got) {
			t.Errorf("%s differs", entry.Name())
		}
	}
}

// copyTree copies the files that git tracks or does not ignore, with other times.
func copyTree(t *testing.T, to string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	for file := range strings.SplitSeq(strings.TrimRight(string(must(cmd.Output())(t)), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		writeFile(t, filepath.Join(to, file), data)
	}
	writeFile(t, filepath.Join(to, "go.work"), []byte("go 1.26.0\n"))
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestConfiguration(t *testing.T) {
	labels := map[string]string{
		"org.opencontainers.image.title":       "AlterShield Operator",
		"org.opencontainers.image.description": "Verifies each release of a workload while it rolls out, and stops or rolls back what is bad.",
		"org.opencontainers.image.source":      "https://github.com/traas-stack/altershield-operator",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     testVersion,
		"org.opencontainers.image.revision":    testCommit,
		"org.opencontainers.image.created":     "2023-11-14T22:13:20Z",
	}
	byPlatform, index := images(t)
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(labels, must(index.IndexManifest())(t).Annotations); diff != "" {
		t.Errorf("annotations of the index (-want +got):\n%s", diff)
	}
	for platform, image := range byPlatform {
		config := must(image.ConfigFile())(t)
		if got := config.Platform().String(); got != platform {
			t.Errorf("the image of %s is for %s", platform, got)
		}
		if !config.Created.Equal(time.Unix(testTime, 0)) {
			t.Errorf("%s: created %s", platform, config.Created)
		}
		if diff := cmp.Diff(oci.Config{
			User: "65532:65532", Entrypoint: []string{"/manager"}, WorkingDir: "/home/nonroot", Labels: labels,
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		}, config.Config); diff != "" {
			t.Errorf("%s (-want +got):\n%s", platform, diff)
		}
		if diff := cmp.Diff(labels, must(image.Manifest())(t).Annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", platform, diff)
		}
	}
}

// content has the files of an image, by path.
type content map[string]struct {
	header *tar.Header
	data   []byte
}

func contentOf(t *testing.T, layer oci.Layer) content {
	t.Helper()
	r := must(layer.Uncompressed())(t)
	defer r.Close()
	files := content{}
	last := ""
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Name <= last {
			t.Errorf("%s comes after %s", header.Name, last)
		}
		last = header.Name
		file := files[header.Name]
		file.header, file.data = header, must(io.ReadAll(archive))(t)
		files[header.Name] = file
	}
}

func TestLayers(t *testing.T) {
	byPlatform, _ := images(t)
	var first oci.Hash
	for platform, image := range byPlatform {
		layers := must(image.Layers())(t)
		if len(layers) != 2 {
			t.Fatalf("%s: %d layers", platform, len(layers))
		}
		digest := must(layers[0].Digest())(t)
		if first != (oci.Hash{}) && digest != first {
			t.Errorf("the platforms do not share their first layer: %s and %s", first, digest)
		}
		first = digest
		files := contentOf(t, layers[1])
		if manager := files["manager"]; len(files) != 1 || manager.header.Mode != 0o755 || manager.header.Uid != 0 {
			t.Errorf("%s: the second layer has %v", platform, files)
		}
		for name, file := range files {
			checkHeader(t, name, file.header)
		}
	}
	layers := must(byPlatform["linux/amd64"].Layers())(t)
	checkBase(t, contentOf(t, layers[0]))
}

func checkHeader(t *testing.T, name string, header *tar.Header) {
	t.Helper()
	if !header.ModTime.Equal(time.Unix(testTime, 0)) || header.Uname != "" || header.Gname != "" {
		t.Errorf("%s: of %s, by %q and %q", name, header.ModTime, header.Uname, header.Gname)
	}
	if header.Mode&0o6000 != 0 || header.Mode&0o002 != 0 && name != "tmp/" {
		t.Errorf("%s: mode %o", name, header.Mode)
	}
}

func checkBase(t *testing.T, files content) {
	t.Helper()
	var others []string
	zones := 0
	for name, file := range files {
		checkHeader(t, name, file.header)
		if strings.HasPrefix(name, zonesPath) {
			zones++
			continue
		}
		others = append(others, fmt.Sprintf("%s %o %d:%d", name, file.header.Mode, file.header.Uid, file.header.Gid))
	}
	slices.Sort(others)
	if diff := cmp.Diff([]string{
		"etc/ 755 0:0", "etc/group 644 0:0", "etc/nsswitch.conf 644 0:0", "etc/passwd 644 0:0", "etc/ssl/ 755 0:0", "etc/ssl/certs/ 755 0:0",
		"etc/ssl/certs/ca-certificates.crt 644 0:0", "home/ 755 0:0", "home/nonroot/ 700 65532:65532", "root/ 700 0:0", "tmp/ 1777 0:0",
		"usr/ 755 0:0", "usr/share/ 755 0:0",
	}, others); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if zones < 400 {
		t.Errorf("%d time zones", zones)
	}
	if _, err := time.LoadLocationFromTZData("Asia/Shanghai", files[zonesPath+"Asia/Shanghai"].data); err != nil {
		t.Error(err)
	}
	if dir := files[zonesPath+"America/Argentina/"]; dir.header == nil || dir.header.Typeflag != tar.TypeDir {
		t.Error("America/Argentina is no directory")
	}
	if !strings.Contains(string(files["etc/passwd"].data), "\nnonroot:x:65532:65532:") {
		t.Errorf("the user is missing:\n%s", files["etc/passwd"].data)
	}
	names := map[string]bool{}
	for rest := files[certificatesPath].data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		certificate := must(x509.ParseCertificate(block.Bytes))(t)
		if !certificate.IsCA {
			t.Errorf("%s is no CA", certificate.Subject)
		}
		names[certificate.Subject.CommonName] = true
	}
	if len(names) < 80 || !names["ISRG Root X1"] {
		t.Errorf("%d CA certificates: %v", len(names), names)
	}
}

func TestManagerRuns(t *testing.T) {
	byPlatform, _ := images(t)
	image := byPlatform["linux/"+runtime.GOARCH]
	if runtime.GOOS != "linux" || image == nil {
		t.Skip("it is for another platform")
	}
	path := filepath.Join(t.TempDir(), "manager")
	writeFile(t, path, contentOf(t, must(image.Layers())(t)[1])["manager"].data)
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	out := must(exec.CommandContext(t.Context(), path, "--version").CombinedOutput())(t)
	if want := fmt.Sprintf("altershield-operator %s (commit %s)\n", testVersion, testCommit); string(out) != want {
		t.Errorf("it says %q, want %q", out, want)
	}
}

// TestBills: a bill of materials names each module of the manager, and is the same when it is written again in another directory.
func TestBills(t *testing.T) {
	made(t, ".tar")
	again := func(settings ...string) map[string][]byte {
		out := t.TempDir()
		cmd := exec.CommandContext(t.Context(), "make", append([]string{
			"-s", "-C", root, "release-sboms", "DIST=" + out, "BINARIES=" + binaries, "VERSION=" + testVersion}, settings...)...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", testTime))
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		files := map[string][]byte{}
		for _, entry := range must(os.ReadDir(out))(t) {
			files[entry.Name()] = must(os.ReadFile(filepath.Join(out, entry.Name())))(t)
		}
		return files
	}
	bills := again()
	if diff := cmp.Diff(bills, again("GOFLAGS=-mod=mod", "TZ=Asia/Tokyo")); diff != "" || len(bills) != 2 {
		t.Errorf("%d bills of materials (-first +again):\n%s", len(bills), diff)
	}
	for name, data := range bills {
		var bom struct {
			SerialNumber, SpecVersion string
			Metadata                  struct {
				Timestamp string
				Tools     []struct {
					Name   string
					Hashes []any
				}
				Component struct{ Name, Version string }
			}
			Components []struct {
				Name, Version, Purl string
				Licenses            []any
			}
		}
		if err := json.Unmarshal(data, &bom); err != nil {
			t.Fatal(err)
		}
		about := bom.Metadata.Component
		if bom.SerialNumber == "" || bom.Metadata.Timestamp != "2023-11-14T22:13:20Z" ||
			about.Version != testVersion || about.Name != operatorModule || bom.Metadata.Tools[0].Hashes != nil {
			t.Errorf("%s: %+v, %s", name, bom.Metadata, bom.SerialNumber)
		}
		info := must(buildinfo.ReadFile(filepath.Join(binaries, strings.TrimSuffix(name, ".cdx.json"))))(t)
		want := map[string]string{"std": info.GoVersion}
		for _, dependency := range info.Deps {
			want[dependency.Path] = dependency.Version
		}
		licensed := 0
		for _, part := range bom.Components {
			if want[part.Name] != part.Version || !strings.HasPrefix(part.Purl, "pkg:golang/"+part.Name+"@") {
				t.Errorf("%s: %s %s, %s, want version %q", name, part.Name, part.Version, part.Purl, want[part.Name])
			}
			delete(want, part.Name)
			if len(part.Licenses) > 0 {
				licensed++
			}
		}
		if len(want) > 0 || licensed < len(bom.Components)*9/10 {
			t.Errorf("%s: without %v; %d of %d parts have a licence", name, want, licensed, len(bom.Components))
		}
	}
}

// TestDockerArchive reads the archive of one platform as `docker load` does.
func TestDockerArchive(t *testing.T) {
	byPlatform, _ := images(t)
	tag := must(name.NewTag(testImage))(t)
	for platform, image := range byPlatform {
		archive := made(t, "-"+strings.ReplaceAll(platform, "/", "-")+".tar")
		loaded := must(tarball.ImageFromPath(archive, &tag))(t)
		if got, want := must(loaded.ConfigName())(t), must(image.ConfigName())(t); got != want {
			t.Errorf("%s: its id is %s, want %s", platform, got, want)
		}
		if err := validate.Image(loaded); err != nil {
			t.Errorf("%s: %v", platform, err)
		}
	}
}
