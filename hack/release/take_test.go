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
	"compress/gzip"
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// startRegistry starts a registry in this process, and returns its address.
func startRegistry(t *testing.T, options ...registry.Option) string {
	t.Helper()
	server := httptest.NewServer(registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestRegistryTakesImage(t *testing.T) {
	byPlatform, index := images(t)
	want := must(index.Digest())(t)
	repository := startRegistry(t) + "/mirror/operator"
	var out bytes.Buffer
	if err := run(t.Context(), []string{"push", made(t, ".tar"), repository + ":v9"}, &out); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != repository+":v9@"+want.String() {
		t.Errorf("it prints %s", got)
	}
	pulled := must(remote.Index(must(name.NewDigest(repository + "@" + want.String()))(t)))(t)
	if err := validate.Index(pulled); err != nil {
		t.Error(err)
	}
	if got := len(must(pulled.IndexManifest())(t).Manifests); got != len(byPlatform) {
		t.Errorf("it has %d images, want %d", got, len(byPlatform))
	}
	if got := must(must(remote.Index(must(name.NewTag(repository + ":v9"))(t)))(t).Digest())(t); got != want {
		t.Errorf("the tag is of %s, want %s", got, want)
	}
}

// TestTagsOfReleasesStay: the image of a released version is not replaced; other tags may move.
func TestTagsOfReleasesStay(t *testing.T) {
	base := startRegistry(t) + "/operator"
	image := must(random.Image(64, 1))(t)
	for _, tag := range []string{"v1.2.3", "dev"} {
		if err := remote.Write(must(name.NewTag(base+":"+tag))(t), image); err != nil {
			t.Fatal(err)
		}
	}
	err := run(t.Context(), []string{"push", made(t, ".tar"), base + ":v1.2.3"}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "released versions are not replaced") {
		t.Errorf("the tag of a release: %v", err)
	}
	if err := run(t.Context(), []string{"push", made(t, ".tar"), base + ":dev"}, io.Discard); err != nil {
		t.Errorf("another tag: %v", err)
	}
}

func TestPushRefuses(t *testing.T) {
	for arguments, want := range map[[2]string]string{
		{made(t, "-linux-amd64.tar"), "localhost/operator:v1"}: "is no archive of make image",
		{made(t, ".tar"), "localhost/operator"}:                "has no tag",
		{made(t, ".digests.txt"), "localhost/operator:v1"}:     "digests.txt",
		{made(t, ".nothing"), "localhost/operator:v1"}:         "No such file",
	} {
		err := run(t.Context(), []string{"push", arguments[0], arguments[1]}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("push %v: %v, want %q", arguments, err, want)
		}
	}
}

// TestRegistryTakesChart pushes charts with Helm. Pushing the same chart again is allowed; another chart of its version is refused.
func TestRegistryTakesChart(t *testing.T) {
	if testing.Short() {
		t.Skip("builds helm")
	}
	repository := "oci://" + startRegistry(t) + "/charts"
	push := func(description string) (digest string, err error) {
		out := t.TempDir()
		chart := tarGz(t, map[string][]byte{"altershield-operator/Chart.yaml": []byte(
			"apiVersion: v2\nname: altershield-operator\nversion: 1.2.3\ndescription: " + description + "\n")})
		writeFile(t, filepath.Join(out, "altershield-operator-1.2.3.tgz"), chart)
		output, err := exec.CommandContext(t.Context(), "make", "-s", "-C", root, "chart-push", "VERSION=v1.2.3", "DIST="+out,
			"CHART_DIGEST="+filepath.Join(out, "digest"), "CHART_REPOSITORY="+repository, "CHART_FLAGS=--plain-http").CombinedOutput()
		return strings.TrimSpace(string(output)), err
	}
	digest, err := push("one")
	if err != nil || !regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(digest) {
		t.Fatalf("%v: %s", err, digest)
	}
	reference := strings.TrimPrefix(repository, "oci://") + "/altershield-operator:1.2.3"
	if got := must(must(remote.Image(must(name.NewTag(reference))(t)))(t).Digest())(t); got.String() != digest {
		t.Errorf("the registry has %s, and the digest is %s", got, digest)
	}
	if again, err := push("one"); err != nil || again != digest {
		t.Errorf("the same chart again: %v: %s, want %s", err, again, digest)
	}
	if out, err := push("another one"); err == nil || !strings.Contains(out, "released versions are not replaced") {
		t.Errorf("another chart of the same version: %v: %s", err, out)
	}
}

func tarGz(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	w := tar.NewWriter(zw)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestContainerdTakes imports the archives into a containerd of its own.
func TestContainerdTakes(t *testing.T) {
	archives := []string{made(t, ".tar"), made(t, "-linux-amd64.tar")}
	for _, program := range []string{"containerd", "ctr"} {
		if _, err := exec.LookPath(program); err != nil || os.Getuid() != 0 {
			t.Skip("it needs root, containerd and ctr: hack/nodes/requirements.sh installs them")
		}
	}
	ctr := startContainerd(t)
	_, index := images(t)
	whole, repository := must(index.Digest())(t).String(), strings.TrimSuffix(testImage, ":"+testVersion)
	want := [][]string{{testImage + " " + whole, repository + "@" + whole + " " + whole}, {testImage}}
	for i, archive := range archives {
		ctr("images", "import", "--snapshotter", "native", archive)
		var got []string
		for line := range strings.Lines(ctr("images", "list")) {
			fields := strings.Fields(line)
			switch {
			case fields[0] == "REF":
			case i == 0:
				got = append(got, fields[0]+" "+fields[2])
			default: // docker load has no digests
				got = append(got, fields[0])
			}
		}
		if diff := cmp.Diff(want[i], got); diff != "" {
			t.Errorf("images of %s (-want +got):\n%s", filepath.Base(archive), diff)
		}
		ctr(append([]string{"images", "remove"}, strings.Fields(ctr("images", "list", "-q"))...)...)
	}
}

// startContainerd starts a containerd for this test, and returns a function that calls ctr.
func startContainerd(t *testing.T) func(...string) string {
	t.Helper()
	// The path of a socket must be short.
	dir := must(os.MkdirTemp("", "ctr"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "config.toml")
	writeFile(t, config, []byte(`version = 2
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.internal.v1.opt",
]
root = "`+dir+`/root"
state = "`+dir+`/state"
[grpc]
address = "`+dir+`/grpc"
[ttrpc]
address = "`+dir+`/ttrpc"
`))
	var logs bytes.Buffer
	// It ends with the test, before its directory is removed.
	containerd := exec.Command("containerd", "--config", config)
	containerd.Stdout, containerd.Stderr = &logs, &logs
	if err := containerd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = containerd.Process.Signal(os.Interrupt)
		_ = containerd.Wait()
		if t.Failed() {
			t.Logf("containerd:\n%s", &logs)
		}
	})
	call := func(ctx context.Context, args ...string) ([]byte, error) {
		return exec.CommandContext(ctx, "ctr", append([]string{"--address", dir + "/grpc", "--namespace", "k8s.io"}, args...)...).CombinedOutput()
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		if _, err := call(ctx, "version"); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("containerd does not answer")
		}
	}
	return func(args ...string) string {
		t.Helper()
		out, err := call(t.Context(), args...)
		if err != nil {
			t.Fatalf("ctr %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
}
