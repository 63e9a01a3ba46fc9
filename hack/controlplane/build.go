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

package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// modulePath names the repository's root module; Root looks for it.
const modulePath = "github.com/traas-stack/altershield-operator"

const (
	stampFile = ".stamp"
	lockFile  = ".lock"
)

// binary is one program of the control plane and the package it is built from.
type binary struct {
	name, pkg string
}

var binaries = []binary{
	{"etcd", "go.etcd.io/etcd/server/v3"},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
	{"kwok", "sigs.k8s.io/kwok/cmd/kwok"},
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
		if err == nil && modfile.ModulePath(data) == modulePath {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.mod of %s in %s or above", modulePath, dir)
		}
	}
}

// BinDir is where Build puts the binaries of the repository at root. It serves
// envtest as its BinaryAssetsDirectory, too: etcd, kube-apiserver and kubectl
// have the names envtest looks for.
func BinDir(root string) string {
	return filepath.Join(root, "bin", "k8s")
}

// Build makes sure that the binaries of the control plane, at the versions
// pinned in hack/controlplane/pins, are in BinDir(root), and returns that
// directory. It builds nothing when a stamp says that they were built from the
// same pins with the same flags and toolchain. The first build on a machine
// takes minutes; progress tells how it comes along. Concurrent calls, also of
// other processes, wait for each other. An interrupted build leaves only whole
// binaries behind and no stamp.
func Build(ctx context.Context, root string, progress io.Writer) (string, error) {
	out := newReporter(progress)
	binDir := BinDir(root)
	pins := filepath.Join(root, "hack", "controlplane", "pins")

	if err := os.MkdirAll(binDir, 0o750); err != nil {
		return "", err
	}
	lock, err := lockDir(ctx, binDir, func() { out.line("waiting for another build of the control plane") })
	if err != nil {
		return "", err
	}
	defer lock.Close()

	goMod, err := os.ReadFile(filepath.Join(pins, "go.mod"))
	if err != nil {
		return "", err
	}
	goSum, err := os.ReadFile(filepath.Join(pins, "go.sum"))
	if err != nil {
		return "", err
	}
	flags, err := linkerFlags(goMod)
	if err != nil {
		return "", err
	}
	toolchain, err := goEnv(ctx, pins)
	if err != nil {
		return "", err
	}
	want := stamp(goMod, goSum, flags, toolchain)
	if isBuilt(binDir, want) {
		out.line("control plane binaries are up to date in %s", binDir)
		return binDir, nil
	}

	// From here on the binaries are a mixture until all of them are built.
	stampPath := filepath.Join(binDir, stampFile)
	if err := os.Remove(stampPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	began := time.Now()
	for i, b := range binaries {
		title := fmt.Sprintf("building %s (%d/%d)", b.name, i+1, len(binaries))
		if err := buildOne(ctx, out, title, pins, binDir, b, flags); err != nil {
			return "", fmt.Errorf("build %s: %w", b.name, err)
		}
	}
	if err := writeFile(stampPath, []byte(want+"\n")); err != nil {
		return "", err
	}
	out.line("built the control plane in %s", elapsed(began))
	return binDir, nil
}

// buildOne builds one binary under a temporary name and renames it when whole.
func buildOne(ctx context.Context, out *reporter, title, pins, binDir string, b binary, flags string) error {
	temp := filepath.Join(binDir, "."+b.name+".building")
	defer os.Remove(temp)

	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", flags, "-o", temp, b.pkg)
	cmd.Dir = pins
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	// Compilers and the linker are children of the go command: a group of
	// their own lets cancelling reach all of them. The go command removes its
	// work directory on SIGINT, which is why that comes before SIGKILL.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	var output bytes.Buffer
	cmd.Stdout = &output
	cmd.Stderr = &output

	stop := out.track(title)
	err := cmd.Run()
	stop(err)
	if ctx.Err() != nil {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails when all are gone, as they should be
		}
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, tail(output.Bytes(), 40))
	}
	return os.Rename(temp, filepath.Join(binDir, b.name))
}

// linkerFlags are the -ldflags of every binary: the versions that `go build`,
// unlike the release builds of the projects, doesn't set by itself.
func linkerFlags(goMod []byte) (string, error) {
	file, err := modfile.ParseLax("go.mod", goMod, nil)
	if err != nil {
		return "", err
	}
	versions := map[string]string{}
	for _, r := range file.Require {
		versions[r.Mod.Path] = r.Mod.Version
	}
	kubernetes, kwok := versions["k8s.io/kubernetes"], versions["sigs.k8s.io/kwok"]
	if !semver.IsValid(kubernetes) || !semver.IsValid(kwok) {
		return "", fmt.Errorf("pins/go.mod requires no version of k8s.io/kubernetes (%q) or sigs.k8s.io/kwok (%q)", kubernetes, kwok)
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(semver.MajorMinor(kubernetes), "v"), ".")
	return strings.Join([]string{
		"-s -w",
		"-X k8s.io/component-base/version.gitVersion=" + kubernetes,
		"-X k8s.io/component-base/version.gitMajor=" + major,
		"-X k8s.io/component-base/version.gitMinor=" + minor,
		"-X k8s.io/component-base/version.gitTreeState=clean",
		"-X k8s.io/client-go/pkg/version.gitVersion=" + kubernetes,
		"-X sigs.k8s.io/kwok/pkg/consts.Version=" + kwok,
	}, " "), nil
}

// goEnv returns what of the toolchain decides what the binaries are.
func goEnv(ctx context.Context, dir string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	return strings.Join(strings.Fields(string(out)), " "), nil
}

// stamp identifies a set of binaries by what they are built from.
func stamp(goMod, goSum []byte, flags, toolchain string) string {
	h := sha256.New()
	for _, part := range [][]byte{goMod, goSum, []byte(flags), []byte(toolchain)} {
		// The length keeps two different splits of the same bytes apart.
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	for _, b := range binaries {
		fmt.Fprintf(h, "%s=%s;", b.name, b.pkg)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// isBuilt reports whether binDir has all binaries and the stamp want.
func isBuilt(binDir, want string) bool {
	have, err := os.ReadFile(filepath.Join(binDir, stampFile))
	if err != nil || strings.TrimSpace(string(have)) != want {
		return false
	}
	for _, b := range binaries {
		info, err := os.Stat(filepath.Join(binDir, b.name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o100 == 0 {
			return false
		}
	}
	return true
}

// lockDir takes the lock of a directory, calling waiting once when another
// process holds it. Closing the file releases the lock, and so does the end of
// the process.
func lockDir(ctx context.Context, dir string, waiting func()) (*os.File, error) {
	for told := false; ; told = true {
		f, err := tryLockDir(dir)
		if err == nil || !errors.Is(err, errLocked) {
			return f, err
		}
		if !told {
			waiting()
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

var errLocked = errors.New("locked by another process")

func tryLockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// writeFile writes a file so that it is there either whole or not at all.
func writeFile(path string, data []byte) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// pause waits for d or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
