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

// Package binaries builds the programs of the local control plane, or takes
// those that are on the machine already. It imports little, so that the first
// thing a newcomer runs compiles in no time and can say what comes.
package binaries

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// modulePath names the repository's root module; Root looks for it.
const modulePath = "github.com/traas-stack/altershield-operator"

const (
	stampFile = ".stamp"
	lockFile  = ".lock"
)

// cpuMinutes is what building everything takes one core of an ordinary machine,
// sourcesMB what has to be downloaded for it. Both were measured.
const (
	cpuMinutes = 10
	sourcesMB  = 70
)

// binary is one program of the control plane: the package it is built from, how
// the go command names the result, the module whose version it has, and how it
// tells that version.
type binary struct {
	name, pkg, output, module string
	version                   []string
}

const (
	kubernetes = "k8s.io/kubernetes"
	etcd       = "go.etcd.io/etcd/server/v3"
	kwok       = "sigs.k8s.io/kwok"
)

var binaries = []binary{
	{"etcd", etcd, "server", etcd, []string{"--version"}},
	{"kube-apiserver", kubernetes + "/cmd/kube-apiserver", "kube-apiserver", kubernetes, []string{"--version"}},
	{"kube-controller-manager", kubernetes + "/cmd/kube-controller-manager", "kube-controller-manager", kubernetes, []string{"--version"}},
	{"kube-scheduler", kubernetes + "/cmd/kube-scheduler", "kube-scheduler", kubernetes, []string{"--version"}},
	{"kubectl", kubernetes + "/cmd/kubectl", "kubectl", kubernetes, []string{"version", "--client", "--output=json"}},
	{"kwok", kwok + "/cmd/kwok", "kwok", kwok, []string{"--version"}},
}

// Root returns the root directory of the repository dir lies in.
func Root(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		data, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if bytes.HasPrefix(data, []byte("module "+modulePath+"\n")) {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.mod of %s in %s or above", modulePath, dir)
		}
	}
}

// Dir is where Build puts the binaries of the repository at root. It serves
// envtest as its BinaryAssetsDirectory, too: etcd, kube-apiserver and kubectl
// have the names envtest looks for.
func Dir(root string) string {
	return filepath.Join(root, "bin", "k8s")
}

// Build makes sure that the binaries of the control plane are in Dir(root), and
// returns that directory: at the versions pinned in hack/controlplane/pins, or,
// where found on the machine, at one of the same minor. It does nothing when a
// stamp says that this was done for the same pins with the same flags and
// toolchain. The first build on a machine takes minutes; out hears what is
// going on. Concurrent calls, also of other processes, wait for each other. An
// interrupted build leaves only whole binaries behind and no stamp.
func Build(ctx context.Context, root string, out io.Writer) (string, error) {
	if out == nil {
		out = io.Discard
	}
	p, err := newPlan(ctx, root)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(p.dir, 0o750); err != nil {
		return "", err
	}
	lock, err := waitForLock(ctx, p.dir, func() { fmt.Fprintln(out, "waiting for another build of the control plane") })
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if p.isBuilt() {
		return p.dir, nil
	}
	p.lookAround(ctx)
	fmt.Fprintln(out, p.announcement())
	began := time.Now()
	if err := p.build(ctx, out); err != nil {
		return "", err
	}
	fmt.Fprintf(out, "the control plane is in %s, after %s\n", p.dir, elapsed(began))
	return p.dir, nil
}

// Begin says what Build is going to do and how long that takes, and has its
// sources downloaded in the background meanwhile; nothing, when nothing is left
// to do.
func Begin(ctx context.Context, root string, out io.Writer) error {
	p, err := newPlan(ctx, root)
	if err != nil || p.isBuilt() {
		return err
	}
	p.lookAround(ctx)
	fmt.Fprintln(out, p.announcement())
	// Outlives this process. What goes wrong with it, Build meets, too, and tells.
	list := p.goCommand(context.WithoutCancel(ctx), append([]string{"list", "-deps"}, p.packages()...)...)
	return list.Start()
}

// plan is what there is to do.
type plan struct {
	pins, dir string
	// versions are those of the pinned modules, flags the linker's.
	versions     map[string]string
	flags, stamp string
	// warm says that the sources were downloaded before.
	warm bool
	// found are the programs that need not be built, by name.
	found map[string]found
}

func newPlan(ctx context.Context, root string) (*plan, error) {
	p := &plan{pins: filepath.Join(root, "hack", "controlplane", "pins"), dir: Dir(root)}
	goMod, err := os.ReadFile(filepath.Join(p.pins, "go.mod"))
	if err != nil {
		return nil, err
	}
	goSum, err := os.ReadFile(filepath.Join(p.pins, "go.sum"))
	if err != nil {
		return nil, err
	}
	required, err := p.goCommand(ctx, "mod", "edit", "-json").Output()
	if err != nil {
		return nil, fmt.Errorf("go mod edit: %w", err)
	}
	if p.versions, err = pinned(required); err != nil {
		return nil, err
	}
	environment, err := p.goCommand(ctx, "env", "GOVERSION", "GOOS", "GOARCH", "GOMODCACHE").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(environment)), "\n")
	toolchain, cache := strings.Join(lines[:len(lines)-1], " "), lines[len(lines)-1]
	_, err = os.Stat(filepath.Join(cache, kubernetes+"@"+p.versions[kubernetes]))
	p.warm = err == nil
	p.flags = linkerFlags(p.versions)
	p.stamp = stamp(goMod, goSum, []byte(p.flags), []byte(toolchain))
	return p, nil
}

// goCommand is a command of the go tool in the module of the pins.
func (p *plan) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = p.pins
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	return cmd
}

// missing are the binaries to build, packages what they are built from.
func (p *plan) missing() []binary {
	var all []binary
	for _, b := range binaries {
		if _, ok := p.found[b.name]; !ok {
			all = append(all, b)
		}
	}
	return all
}

func (p *plan) packages() []string {
	var all []string
	for _, b := range p.missing() {
		all = append(all, b.pkg)
	}
	return all
}

// announcement is one line about what is going to happen.
func (p *plan) announcement() string {
	var parts []string
	if missing := p.missing(); len(missing) > 0 {
		names := make([]string, len(missing))
		for i, b := range missing {
			names[i] = b.name
		}
		cores := runtime.GOMAXPROCS(0)
		part := fmt.Sprintf("building %s (Kubernetes %s) into %s, once: about %d min on %d cores",
			strings.Join(names, ", "), p.versions[kubernetes], p.dir, (cpuMinutes+cores-1)/cores, cores)
		if !p.warm {
			part += fmt.Sprintf(", and a download of %d MB of sources", sourcesMB)
		}
		parts = append(parts, part)
	}
	for _, b := range binaries {
		if f, ok := p.found[b.name]; ok {
			parts = append(parts, fmt.Sprintf("taking %s %s from %s", b.name, f.version, f.path))
		}
	}
	return strings.Join(parts, "; ")
}

// build builds and copies into a temporary directory, and moves the programs
// from there when all are whole.
func (p *plan) build(ctx context.Context, out io.Writer) error {
	temp := filepath.Join(p.dir, ".building")
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	if err := os.Mkdir(temp, 0o750); err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	for name, f := range p.found {
		if err := copyProgram(f.path, filepath.Join(temp, name)); err != nil {
			return err
		}
	}
	missing := p.missing()
	if len(missing) > 0 {
		if err := p.compile(ctx, out, temp); err != nil {
			return err
		}
	}
	for _, b := range missing {
		if err := os.Rename(filepath.Join(temp, b.output), filepath.Join(temp, b.name)); err != nil {
			return err
		}
	}
	// From here on the binaries are a mixture until all of them are moved.
	stampPath := filepath.Join(p.dir, stampFile)
	if err := os.Remove(stampPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, b := range binaries {
		if err := os.Rename(filepath.Join(temp, b.name), filepath.Join(p.dir, b.name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(temp, stampFile), []byte(p.stamp+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(filepath.Join(temp, stampFile), stampPath)
}

// compile builds what is missing with one command: packages are compiled once,
// and while one program is linked, others still compile.
func (p *plan) compile(ctx context.Context, out io.Writer, dir string) error {
	packages := p.packages()
	var sources bytes.Buffer
	list := p.goCommand(ctx, append([]string{"list", "-deps"}, packages...)...)
	list.Stdout = &sources
	if err := runGo(ctx, list, out, func() string { return "downloading sources" }); err != nil {
		return err
	}
	total := bytes.Count(sources.Bytes(), []byte("\n"))

	args := []string{"build", "-v", "-trimpath", "-ldflags", p.flags, "-o", dir + string(filepath.Separator)}
	build := p.goCommand(ctx, append(args, packages...)...)
	// With -v the go command names each package it compiles.
	var compiled counter
	build.Stderr = &compiled
	return runGo(ctx, build, out, func() string {
		return fmt.Sprintf("building: %d of at most %d packages compiled", compiled.lines(), total)
	})
}

// runGo runs a go command and says how it gets on. Compilers and the linker are
// its children: a process group of their own lets cancelling reach all of them.
// It removes its work directory on SIGINT, which is why that comes first.
func runGo(ctx context.Context, cmd *exec.Cmd, out io.Writer, state func() string) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	var messages bytes.Buffer
	if cmd.Stderr == nil {
		cmd.Stderr = io.Discard
	}
	cmd.Stderr = io.MultiWriter(&messages, cmd.Stderr)
	stop := track(out, state)
	err := cmd.Run()
	stop()
	if ctx.Err() != nil {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails when all are gone, as they should be
		}
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", cmd.Args[1], err, tail(messages.Bytes(), 40))
	}
	return nil
}

// pinned returns the versions of the modules our programs are of, from what
// `go mod edit -json` says.
func pinned(goMod []byte) (map[string]string, error) {
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(goMod, &file); err != nil {
		return nil, err
	}
	versions := map[string]string{}
	for _, r := range file.Require {
		versions[r.Path] = r.Version
	}
	for _, module := range []string{kubernetes, etcd, kwok} {
		if minor(versions[module]) == "" {
			return nil, fmt.Errorf("pins/go.mod requires no release of %s but %q", module, versions[module])
		}
	}
	return versions, nil
}

// linkerFlags are the -ldflags of every binary: the versions that `go build`,
// unlike the release builds of the projects, doesn't set by itself.
func linkerFlags(versions map[string]string) string {
	major, minor, _ := strings.Cut(minor(versions[kubernetes]), ".")
	return strings.Join([]string{
		"-s -w",
		"-X k8s.io/component-base/version.gitVersion=" + versions[kubernetes],
		"-X k8s.io/component-base/version.gitMajor=" + major,
		"-X k8s.io/component-base/version.gitMinor=" + minor,
		"-X k8s.io/component-base/version.gitTreeState=clean",
		"-X k8s.io/client-go/pkg/version.gitVersion=" + versions[kubernetes],
		"-X sigs.k8s.io/kwok/pkg/consts.Version=" + versions[kwok],
	}, " ")
}

// stamp identifies a set of binaries by what they are built from.
func stamp(parts ...[]byte) string {
	h := sha256.New()
	for _, part := range parts {
		// The length keeps two different splits of the same bytes apart.
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	for _, b := range binaries {
		fmt.Fprintf(h, "%s=%s;", b.name, b.pkg)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// isBuilt reports whether all binaries are there, and the stamp of this plan.
func (p *plan) isBuilt() bool {
	have, err := os.ReadFile(filepath.Join(p.dir, stampFile))
	if err != nil || strings.TrimSpace(string(have)) != p.stamp {
		return false
	}
	for _, b := range binaries {
		if !isProgram(filepath.Join(p.dir, b.name)) {
			return false
		}
	}
	return true
}
