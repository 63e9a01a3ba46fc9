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

package binaries

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPinned(t *testing.T) {
	const all = `{"Require":[{"Path":"k8s.io/kubernetes","Version":"v1.36.3"},{"Path":"sigs.k8s.io/kwok","Version":"v0.8.0"},` +
		`{"Path":"go.etcd.io/etcd/server/v3","Version":"v3.6.8"}]}`
	versions := map[string]string{}
	for _, module := range []string{kubernetes, etcd, kwok} {
		version, err := pinned([]byte(all), module)
		if err != nil {
			t.Fatal(err)
		}
		versions[module] = version
	}
	want := "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3" +
		" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" +
		" -X k8s.io/component-base/version.gitTreeState=clean" +
		" -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3 -X sigs.k8s.io/kwok/pkg/consts.Version=v0.8.0"
	if diff := cmp.Diff(want, controlPlaneFlags(versions)); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
	for name, bad := range map[string]string{
		"no Kubernetes":   strings.Replace(all, "k8s.io/kubernetes", "example.com/kubernetes", 1),
		"not JSON":        "module m",
		"not of releases": strings.Replace(all, "v1.36.3", "v1.36.3-alpha.1", 1),
	} {
		if _, err := pinned([]byte(bad), kubernetes); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// planOf returns the plan of the control plane.
func planOf(t *testing.T, root string) *plan {
	t.Helper()
	s, err := controlPlane(root)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestMonitoring reads the pins of the monitoring.
func TestMonitoring(t *testing.T) {
	root, err := Root(".")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(t.Context(), monitoring(root))
	if err != nil {
		t.Fatal(err)
	}
	announced := p.announcement()
	for _, part := range []string{
		"building prometheus, alertmanager, kube-state-metrics (Prometheus v0.", filepath.Join(root, "bin", "monitoring"), " min on ",
	} {
		if !strings.Contains(announced, part) {
			t.Errorf("announced, without %q: %s", part, announced)
		}
	}
	// An installed program of another build would lack what the tests need.
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	for _, b := range monitoringPrograms {
		script(t, filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), b.name), p.versions[b.module])
	}
	if p.lookAround(t.Context()); len(p.found) > 0 {
		t.Errorf("takes %v", p.found)
	}
	untagged := *p.set
	untagged.tags = ""
	if other, err := newPlan(t.Context(), &untagged); err != nil || other.stamp == p.stamp {
		t.Errorf("the stamp does not know the tags: %v", err)
	}
}

// TestKinds checks that the controllers have the versions of the kinds that they control.
func TestKinds(t *testing.T) {
	root, err := Root(".")
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPlan(t.Context(), kinds(root))
	if err != nil {
		t.Fatal(err)
	}
	required, err := goCommand(t.Context(), filepath.Join(root, "hack", "kinds"), "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range kindsPrograms {
		if kind, err := pinned(required, b.module); err != nil || kind != p.versions[b.module] {
			t.Errorf("%s is %s, and its kinds are of %s: %v", b.name, p.versions[b.module], kind, err)
		}
	}
}

// TestVersionVariable reads the pins of each release that can be chosen, and asks for one that has none.
func TestVersionVariable(t *testing.T) {
	root, err := Root(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"", "1.33", "1.35"} {
		t.Setenv(VersionVariable, v)
		p := planOf(t, root)
		if got := minor(p.versions[kubernetes]); v != "" && got != v {
			t.Errorf("%s chooses Kubernetes %s", v, got)
		}
		if filepath.Base(p.dir) == "k8s" != (v == "") {
			t.Errorf("release %q is built into %s", v, p.dir)
		}
	}
	t.Setenv(VersionVariable, "1.12")
	if _, err := controlPlane(root); err == nil || !strings.Contains(err.Error(), "leave it empty, or set it to one of 1.33, 1.35") {
		t.Errorf("1.12: %v", err)
	}
}

func TestStamp(t *testing.T) {
	of := func(mod, sum string) string { return stamp(controlPlanePrograms, []byte(mod), []byte(sum)) }
	base := of("mod", "sum")
	if again := of("mod", "sum"); again != base {
		t.Errorf("the same inputs give %s and %s", base, again)
	}
	if of("mod", "sum2") == base || of("mods", "um") == base || stamp(monitoringPrograms, []byte("mod"), []byte("sum")) == base {
		t.Error("a change keeps the stamp")
	}
}

func TestRoot(t *testing.T) {
	want, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The pins are another module.
	for _, dir := range []string{".", "../controlplane/pins", "../.."} {
		got, err := Root(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("root of %s is %s, want %s", dir, got, want)
		}
	}
	if got, err := Root("/"); err == nil {
		t.Errorf("a directory outside of the repository has root %s", got)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); !errors.Is(err, ErrLocked) {
		t.Fatalf("second lock: %v, want %v", err, ErrLocked)
	}
	waited := false
	second, err := waitForLock(t.Context(), dir, func() {
		waited = true
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !waited {
		t.Error("got a lock that was held")
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// script writes a program that prints text.
func script(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\ncat <<'END'\n"+text+"\nEND\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestUsable(t *testing.T) {
	p := &plan{set: &set{dir: t.TempDir()}, versions: map[string]string{kubernetes: "v1.36.3", etcd: "v3.6.8", kwok: "v0.8.0"}}
	elsewhere := t.TempDir()
	for says, want := range map[string]string{
		"Kubernetes v1.36.3": "v1.36.3",
		"Kubernetes v1.36.0": "v1.36.0",
		"Kubernetes v1.35.9": "",
		"Kubernetes v1.3.6":  "",
		"{\n  \"clientVersion\": {\n    \"gitVersion\": \"v1.36.1\",\n  },\n  \"kustomizeVersion\": \"v5.7.1\"\n}": "v1.36.1",
		`"gitVersion": "v1.36.4-dispatcher"`: "",
		`"gitVersion": "v1.36.4+k3s1"`:       "",
		"no version":                         "",
	} {
		path := filepath.Join(elsewhere, "kubectl")
		script(t, path, says)
		if got := p.usable(t.Context(), controlPlanePrograms[4], path); got != want {
			t.Errorf("a program that says %q: version %q, want %q", says, got, want)
		}
	}
	path := filepath.Join(elsewhere, "etcd")
	script(t, path, "etcd Version: 3.6.11\nGit SHA: 1234567\nGo Version: go1.25.1")
	if got := p.usable(t.Context(), controlPlanePrograms[0], path); got != "3.6.11" {
		t.Errorf("etcd: version %q", got)
	}
	own := filepath.Join(p.dir, "kubectl")
	script(t, own, "Kubernetes v1.36.3")
	if got := p.usable(t.Context(), controlPlanePrograms[4], own); got != "" {
		t.Errorf("its own older build is taken for an installed program: %q", got)
	}
	if got := p.usable(t.Context(), controlPlanePrograms[4], filepath.Join(elsewhere, "absent")); got != "" {
		t.Errorf("a missing program has version %q", got)
	}
}

// TestBuildTakesWhatIsThere takes all binaries from the machine, without a build.
func TestBuildTakesWhatIsThere(t *testing.T) {
	root, assets := t.TempDir(), t.TempDir()
	pins := filepath.Join(root, "hack", "controlplane", "pins")
	if err := os.MkdirAll(pins, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join("..", "controlplane", "pins", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(pins, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(VersionVariable, "")
	p := planOf(t, root)
	if announced := p.announcement(); !strings.Contains(announced, "kube-apiserver") || !strings.Contains(announced, " min on ") {
		t.Errorf("announced: %s", announced)
	}
	for _, b := range controlPlanePrograms {
		script(t, filepath.Join(assets, b.name), "version "+p.versions[b.module])
	}
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	var out strings.Builder
	dir, err := Build(t.Context(), root, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range controlPlanePrograms {
		if took := fmt.Sprintf("taking %s %s from %s", b.name, p.versions[b.module], assets); !strings.Contains(out.String(), took) {
			t.Errorf("does not say %q:\n%s", took, out.String())
		}
		if !isProgram(filepath.Join(dir, b.name)) {
			t.Errorf("no program %s", b.name)
		}
	}
	if strings.Contains(out.String(), "building") {
		t.Errorf("something was built:\n%s", out.String())
	}

	// A complete set stays, even if the environment differs.
	t.Setenv("KUBEBUILDER_ASSETS", "")
	out.Reset()
	if _, err := Build(t.Context(), root, &out); err != nil || out.Len() > 0 {
		t.Errorf("the second time: %v\n%s", err, out.String())
	}
	if err := Begin(t.Context(), root, &out); err != nil || out.Len() > 0 {
		t.Errorf("nothing to begin: %v\n%s", err, out.String())
	}
	if err := os.Remove(filepath.Join(dir, "kwok")); err != nil {
		t.Fatal(err)
	}
	if p.isBuilt() {
		t.Error("complete without kwok")
	}
}

func TestTrack(t *testing.T) {
	var c counter
	fmt.Fprint(&c, "one\ntwo\nthr")
	fmt.Fprint(&c, "ee\n")
	if c.lines() != 3 {
		t.Errorf("%d lines, want 3", c.lines())
	}
	var out strings.Builder
	track(&out, func() string { return "working" })()
	if out.Len() > 0 {
		t.Errorf("said at once: %q", out.String())
	}
	if took := elapsed(time.Now().Add(-90 * time.Second)); took != 90*time.Second {
		t.Errorf("elapsed: %s", took)
	}
	for text, want := range map[string]string{"": "", "a\nb\n": "a\nb", "a\nb\nc\nd\n": "b\nc\nd"} {
		if got := tail([]byte(text), 3); got != want {
			t.Errorf("tail of %q is %q, want %q", text, got, want)
		}
	}
}
