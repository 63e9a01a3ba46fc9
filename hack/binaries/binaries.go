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
// installed ones, and builds the programs of its monitoring and the controllers of
// other kinds. It imports little, so that the first command of a newcomer compiles
// fast and can announce the build.
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

// modulePath is the path of the repository's root module.
const modulePath = "github.com/traas-stack/altershield-operator"

const (
	stampFile = ".stamp"
	lockFile  = ".lock"
)

// Root returns the root directory of the repository that contains dir.
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

// Build brings the binaries of the control plane into Dir(root), and returns that
// directory. They have the versions pinned in hack/controlplane/pins, or, with
// VersionVariable, in its directory of that release, or are
// installed ones of the same minor version. It does nothing if a stamp has the same
// pins, flags and toolchain. The first build on a machine takes minutes; out gets
// its progress. Concurrent calls, also of other processes, wait for each other. An
// interrupted build leaves only whole binaries and no stamp.
func Build(ctx context.Context, root string, out io.Writer) (string, error) {
	s, err := controlPlane(root)
	if err != nil {
		return "", err
	}
	return build(ctx, s, out)
}

// BuildMonitoring builds Prometheus, Alertmanager and kube-state-metrics, at the
// versions pinned in hack/monitoring, into bin/monitoring, as Build does.
func BuildMonitoring(ctx context.Context, root string, out io.Writer) (string, error) {
	return build(ctx, monitoring(root), out)
}

// BuildKinds builds the controllers of OpenKruise and LeaderWorkerSet, at the versions
// pinned in hack/kinds, into bin/kinds, as Build does.
func BuildKinds(ctx context.Context, root string, out io.Writer) (string, error) {
	return build(ctx, kinds(root), out)
}

func build(ctx context.Context, s *set, out io.Writer) (string, error) {
	if out == nil {
		out = io.Discard
	}
	p, err := newPlan(ctx, s)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(p.dir, 0o750); err != nil {
		return "", err
	}
	lock, err := waitForLock(ctx, p.dir, func() { fmt.Fprintf(out, "waiting for another build of the %s\n", s.name) })
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
	fmt.Fprintf(out, "the %s is in %s, after %s\n", s.name, p.dir, elapsed(began))
	return p.dir, nil
}

// Begin prints the work of Build and its duration, and starts to download the sources
// in the background; it does nothing if everything is built.
func Begin(ctx context.Context, root string, out io.Writer) error {
	s, err := controlPlane(root)
	if err != nil {
		return err
	}
	p, err := newPlan(ctx, s)
	if err != nil || p.isBuilt() {
		return err
	}
	p.lookAround(ctx)
	fmt.Fprintln(out, p.announcement())
	// The commands outlive this process. Build repeats them and reports their errors.
	for dir, packages := range p.packages() {
		list := goCommand(context.WithoutCancel(ctx), dir, p.list(packages)...)
		if err := list.Start(); err != nil {
			return err
		}
	}
	return nil
}

// plan is the work of a build.
type plan struct {
	*set
	// versions are the versions of the pinned modules, flags the flags of the linker.
	versions     map[string]string
	flags, stamp string
	// warm is whether the sources were downloaded before.
	warm bool
	// found are the installed programs, by name.
	found map[string]found
}

func newPlan(ctx context.Context, s *set) (*plan, error) {
	p := &plan{set: s, versions: map[string]string{}}
	var inputs [][]byte
	for _, module := range s.modules() {
		dir := s.pins[module]
		for _, file := range []string{"go.mod", "go.sum"} {
			content, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				return nil, err
			}
			inputs = append(inputs, content)
		}
		required, err := goCommand(ctx, dir, "mod", "edit", "-json").Output()
		if err != nil {
			return nil, fmt.Errorf("go mod edit in %s: %w", dir, err)
		}
		if p.versions[module], err = pinned(required, module); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
	}
	environment, err := goCommand(ctx, s.pins[s.lead], "env", "GOVERSION", "GOOS", "GOARCH", "GOMODCACHE").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(environment)), "\n")
	toolchain, cache := strings.Join(lines[:len(lines)-1], " "), lines[len(lines)-1]
	_, err = os.Stat(filepath.Join(cache, filepath.FromSlash(s.lead)+"@"+p.versions[s.lead]))
	p.warm = err == nil
	p.flags = s.linkerFlags(p.versions)
	inputs = append(inputs, []byte(p.flags), []byte(toolchain))
	if s.tags != "" {
		inputs = append(inputs, []byte(s.tags))
	}
	p.stamp = stamp(s.programs, inputs...)
	return p, nil
}

// goCommand returns a command of the go tool in a module of pins.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	return cmd
}

// missing returns the binaries to build.
func (p *plan) missing() []binary {
	var all []binary
	for _, b := range p.programs {
		if _, ok := p.found[b.name]; !ok {
			all = append(all, b)
		}
	}
	return all
}

// packages returns the packages of the binaries to build, by the directory of the module that pins them.
func (p *plan) packages() map[string][]string {
	all := map[string][]string{}
	for _, b := range p.missing() {
		all[p.pins[b.module]] = append(all[p.pins[b.module]], b.pkg)
	}
	return all
}

// list returns the arguments of the go command that lists all packages of a build, and so downloads them.
func (p *plan) list(packages []string) []string {
	return append([]string{"list", "-deps", "-tags", p.tags}, packages...)
}

// announcement returns one line about the work of Build.
func (p *plan) announcement() string {
	var parts []string
	if missing := p.missing(); len(missing) > 0 {
		names := make([]string, len(missing))
		for i, b := range missing {
			names[i] = b.name
		}
		cores := runtime.GOMAXPROCS(0)
		part := fmt.Sprintf("building %s (%s %s) into %s, once: about %d min on %d cores",
			strings.Join(names, ", "), p.product, p.versions[p.lead], p.dir, (p.cpuMinutes+cores-1)/cores, cores)
		if !p.warm {
			part += fmt.Sprintf(", and a download of %d MB of sources", p.sourcesMB)
		}
		parts = append(parts, part)
	}
	for _, b := range p.programs {
		if f, ok := p.found[b.name]; ok {
			parts = append(parts, fmt.Sprintf("taking %s %s from %s", b.name, f.version, f.path))
		}
	}
	return strings.Join(parts, "; ")
}

// build builds and copies programs into a temporary directory, and moves them when
// all are whole.
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
	for pins, packages := range p.packages() {
		if err := p.compile(ctx, out, pins, packages, temp); err != nil {
			return err
		}
	}
	for _, b := range p.missing() {
		if err := os.Rename(filepath.Join(temp, b.output), filepath.Join(temp, b.name)); err != nil {
			return err
		}
	}
	// The binaries are a mixture until all of them are moved.
	stampPath := filepath.Join(p.dir, stampFile)
	if err := os.Remove(stampPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, b := range p.programs {
		if err := os.Rename(filepath.Join(temp, b.name), filepath.Join(p.dir, b.name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(temp, stampFile), []byte(p.stamp+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(filepath.Join(temp, stampFile), stampPath)
}

// compile builds the missing programs of one module with one command: packages are
// compiled once, and while one program is linked, others are compiled.
func (p *plan) compile(ctx context.Context, out io.Writer, pins string, packages []string, dir string) error {
	var sources bytes.Buffer
	list := goCommand(ctx, pins, p.list(packages)...)
	list.Stdout = &sources
	if err := runGo(ctx, list, out, func() string { return "downloading sources" }); err != nil {
		return err
	}
	total := bytes.Count(sources.Bytes(), []byte("\n"))

	args := []string{"build", "-v", "-trimpath", "-tags", p.tags, "-ldflags", p.flags, "-o", dir + string(filepath.Separator)}
	build := goCommand(ctx, pins, append(args, packages...)...)
	// With -v the go command prints each package that it compiles.
	var compiled counter
	build.Stderr = &compiled
	return runGo(ctx, build, out, func() string {
		return fmt.Sprintf("building: %d of at most %d packages compiled", compiled.lines(), total)
	})
}

// runGo runs a go command and prints its progress. Compilers and the linker are
// its children: a cancel reaches all of them by their process group. SIGINT comes
// first: the go command then removes its work directory.
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
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if all have ended, as expected
		}
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", cmd.Args[1], err, tail(messages.Bytes(), 40))
	}
	return nil
}

// pinned returns the version of a module, from the output of `go mod edit -json`.
func pinned(goMod []byte, module string) (string, error) {
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(goMod, &file); err != nil {
		return "", err
	}
	version := ""
	for _, r := range file.Require {
		if r.Path == module {
			version = r.Version
		}
	}
	if minor(version) == "" {
		return "", fmt.Errorf("go.mod requires no release of %s but %q", module, version)
	}
	return version, nil
}

// stamp identifies a set of binaries by the inputs of their build.
func stamp(programs []binary, parts ...[]byte) string {
	h := sha256.New()
	for _, part := range parts {
		// The length keeps two different splits of the same bytes apart.
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	for _, b := range programs {
		fmt.Fprintf(h, "%s=%s;", b.name, b.pkg)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// isBuilt reports whether all binaries and the stamp of this plan exist.
func (p *plan) isBuilt() bool {
	have, err := os.ReadFile(filepath.Join(p.dir, stampFile))
	if err != nil || strings.TrimSpace(string(have)) != p.stamp {
		return false
	}
	for _, b := range p.programs {
		if !isProgram(filepath.Join(p.dir, b.name)) {
			return false
		}
	}
	return true
}
