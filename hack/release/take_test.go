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
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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

// startRegistry starts one in this process, and is its address.
func startRegistry(t *testing.T, options ...registry.Option) string {
	t.Helper()
	server := httptest.NewServer(registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestRegistryTakesImage(t *testing.T) {
	byPlatform, index := images(t)
	want := must(index.Digest())(t)
	for of, referrers := range map[string]bool{"a registry that knows referrers": true, "one that does not": false} {
		t.Run(of, func(t *testing.T) {
			repository := startRegistry(t, registry.WithReferrersSupport(referrers)) + "/mirror/operator"
			var out bytes.Buffer
			if err := run(t.Context(), []string{"push", made(t, ".tar"), repository + ":v9"}, &out); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(out.String()); got != repository+":v9@"+want.String() {
				t.Errorf("it says %s", got)
			}
			byDigest := must(name.NewDigest(repository + "@" + want.String()))(t)
			pulled := must(remote.Index(byDigest))(t)
			if err := validate.Index(pulled); err != nil {
				t.Error(err)
			}
			if got := must(must(remote.Index(must(name.NewTag(repository + ":v9"))(t)))(t).Digest())(t); got != want {
				t.Errorf("the tag is of %s, want %s", got, want)
			}
			for platform, image := range byPlatform {
				digest := must(image.Digest())(t)
				found := must(must(remote.Referrers(byDigest.Context().Digest(digest.String())))(t).IndexManifest())(t)
				if len(found.Manifests) != 1 {
					t.Fatalf("%s: it is referred to by %+v", platform, found.Manifests)
				}
				referrer := must(remote.Image(byDigest.Context().Digest(found.Manifests[0].Digest.String())))(t)
				if got := must(referrer.Manifest())(t).ArtifactType; got != billType {
					t.Errorf("%s: it is referred to by a %s", platform, got)
				}
				layer := must(referrer.Layers())(t)[0]
				got := must(io.ReadAll(must(layer.Compressed())(t)))(t)
				if !bytes.Equal(got, must(os.ReadFile(made(t, "-"+strings.ReplaceAll(platform, "/", "-")+".cdx.json")))(t)) {
					t.Errorf("%s: its bill of materials has changed", platform)
				}
			}
		})
	}
}

// What was released by a version is not replaced; a tag to try things out may move.
func TestTagsOfReleasesStay(t *testing.T) {
	base := startRegistry(t) + "/operator"
	image := must(random.Image(64, 1))(t)
	for _, tag := range []string{"v1.2.3", "dev"} {
		if err := remote.Write(must(name.NewTag(base+":"+tag))(t), image); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t.Context(), []string{"push", made(t, ".tar"), base + ":v1.2.3"}, io.Discard); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("the tag of a release: %v", err)
	}
	if err := run(t.Context(), []string{"push", made(t, ".tar"), base + ":dev"}, io.Discard); err != nil {
		t.Errorf("another tag: %v", err)
	}
}

func TestPushRefuses(t *testing.T) {
	for arguments, want := range map[[2]string]string{
		{made(t, "-linux-amd64.tar"), "localhost/operator:v1"}: "no image of several platforms",
		{made(t, ".tar"), "localhost/operator"}:                "has no tag",
		{made(t, ".provenance.json"), "localhost/operator:v1"}: "provenance.json",
		{made(t, ".nothing"), "localhost/operator:v1"}:         "no such file",
	} {
		err := run(t.Context(), []string{"push", arguments[0], arguments[1]}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("push %v: %v, want %q", arguments, err, want)
		}
	}
}

func TestRegistryTakesChart(t *testing.T) {
	base := startRegistry(t) + "/charts"
	chart := chartOf(t, "apiVersion: v2\nname: operator\nversion: 1.2.3+7\n")
	pushed := must(pushChart(t.Context(), chart, "oci://"+base))(t)
	file, digest := filepath.Join(t.TempDir(), "chart.tgz"), bytes.Buffer{}
	writeFile(t, file, chart)
	if err := run(t.Context(), []string{"chart-digest", file}, &digest); err != nil || !strings.HasSuffix(pushed, "@"+strings.TrimSpace(digest.String())) {
		t.Errorf("pushed as %s, and its digest is %s: %v", pushed, &digest, err)
	}
	if want := "oci://" + base + "/operator:1.2.3_7@sha256:"; !strings.HasPrefix(pushed, want) {
		t.Errorf("pushed as %s, want %s", pushed, want)
	}
	image := must(remote.Image(must(name.NewTag(base + "/operator:1.2.3_7"))(t)))(t)
	manifest := must(image.Manifest())(t)
	if manifest.Config.MediaType != "application/vnd.cncf.helm.config.v1+json" || len(manifest.Layers) != 1 ||
		manifest.Layers[0].MediaType != "application/vnd.cncf.helm.chart.content.v1.tar+gzip" {
		t.Fatalf("its manifest is %+v", manifest)
	}
	var config map[string]string
	if err := json.Unmarshal(must(image.RawConfigFile())(t), &config); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"apiVersion": "v2", "name": "operator", "version": "1.2.3+7"}, config); diff != "" {
		t.Errorf("its configuration (-want +got):\n%s", diff)
	}
	layer := must(image.LayerByDigest(manifest.Layers[0].Digest))(t)
	if !bytes.Equal(must(io.ReadAll(must(layer.Compressed())(t)))(t), chart) {
		t.Error("it is not the chart any more")
	}
	if again := must(pushChart(t.Context(), chart, "oci://"+base))(t); again != pushed {
		t.Errorf("the same chart is pushed as %s, and was as %s", again, pushed)
	}
	other := chartOf(t, "apiVersion: v2\nname: operator\nversion: 1.2.3+7\ndescription: another one\n")
	if _, err := pushChart(t.Context(), other, "oci://"+base); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("another chart of the same version: %v", err)
	}
}

func TestPushChartRefuses(t *testing.T) {
	good := chartOf(t, "name: operator\nversion: 1.2.3\n")
	for name, c := range map[string]struct {
		chart            []byte
		repository, want string
	}{
		"no OCI repository": {good, "https://charts.example", "want oci://"},
		"no archive":        {[]byte("x"), "oci://localhost/charts", "EOF"},
		"no version":        {chartOf(t, "name: operator\n"), "oci://localhost/charts", "no Chart.yaml with a name and a version"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := pushChart(t.Context(), c.chart, c.repository); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it says %v, want %q", err, c.want)
			}
		})
	}
}

func chartOf(t *testing.T, about string) []byte {
	t.Helper()
	return tarGz(t, map[string][]byte{"operator/Chart.yaml": []byte(about), "operator/charts/other/Chart.yaml": []byte("name: other\nversion: 9.9.9\n")})
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

// TestContainerdTakes has a containerd of its own import the archives.
func TestContainerdTakes(t *testing.T) {
	archives := []string{made(t, ".tar"), made(t, "-linux-amd64.tar")}
	for _, program := range []string{"containerd", "ctr"} {
		if _, err := exec.LookPath(program); err != nil || os.Getuid() != 0 {
			t.Skip("it takes root, containerd and ctr: hack/nodes/requirements.sh installs them")
		}
	}
	ctr := startContainerd(t)
	byPlatform, index := images(t)
	whole, repository := must(index.Digest())(t).String(), strings.TrimSuffix(testImage, ":"+testVersion)
	want := [][]string{{testImage + " " + whole, repository + "@" + whole + " " + whole}, {testImage + " " + must(byPlatform["linux/amd64"].Digest())(t).String()}}
	for i, archive := range archives {
		ctr("images", "import", "--snapshotter", "native", archive)
		var got []string
		for line := range strings.Lines(ctr("images", "list")) {
			if fields := strings.Fields(line); fields[0] != "REF" {
				got = append(got, fields[0]+" "+fields[2])
			}
		}
		if diff := cmp.Diff(want[i], got); diff != "" {
			t.Errorf("images of %s (-want +got):\n%s", filepath.Base(archive), diff)
		}
		ctr(append([]string{"images", "remove"}, strings.Fields(ctr("images", "list", "-q"))...)...)
	}
}

// startContainerd starts one for this test, and is ctr for it.
func startContainerd(t *testing.T) func(...string) string {
	t.Helper()
	// The path of a socket must be short.
	dir := must(os.MkdirTemp("", "ctr"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "config.toml")
	writeFile(t, config, []byte(`version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.internal.v1.opt"]
root = "`+dir+`/root"
state = "`+dir+`/state"
[grpc]
address = "`+dir+`/grpc"
[ttrpc]
address = "`+dir+`/ttrpc"
`))
	var logs bytes.Buffer
	// It ends when the test does, before its directory is removed.
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
