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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	oci "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/mod/modfile"
)

// source is the tree that a release is made from.
type source struct {
	// root is the directory of the repository.
	root string
	// version and commit are what the manager says of itself.
	version, commit string
	// time is that of the commit. It is the time of everything that is made.
	time time.Time
	// modified says that the tree is not that of the commit.
	modified bool
	toolchain
}

// toolchain is a Go of one version.
type toolchain struct {
	// goVersion as in go1.26.8.
	goVersion string
	// root is its GOROOT.
	goRoot, modCache string
	// env is that of its command, without anything of the user that would
	// change what it builds.
	env []string
}

// pinnedGo is the version of Go that hack/release/go.mod pins.
func pinnedGo(root string) (string, error) {
	path := filepath.Join(root, "hack", "release", "go.mod")
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	file, err := modfile.Parse(path, data, nil)
	if err != nil {
		return "", err
	}
	if file.Toolchain == nil {
		return "", fmt.Errorf("%s has no toolchain: releases are built with one version of Go", path)
	}
	return file.Toolchain.Name, nil
}

// keptGoSettings are those that say where modules come from and where they are
// kept, and change nothing of what is built.
var keptGoSettings = []string{
	"GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE", "GOAUTH", "GOVCS", "GOCACHE", "GOMODCACHE", "GOPATH",
}

// findToolchain has the go command fetch the pinned Go where another one is
// installed. Compression is part of this program, so it must be that Go, too.
func findToolchain(ctx context.Context, root string) (toolchain, error) {
	t := toolchain{}
	var err error
	if t.goVersion, err = pinnedGo(root); err != nil {
		return t, err
	}
	if runtime.Version() != t.goVersion {
		return t, fmt.Errorf("this program was built with %s, and hack/release/go.mod pins %s: run it by make", runtime.Version(), t.goVersion)
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"env", "-json", "GOROOT", "GOVERSION"}, keptGoSettings...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), "GOTOOLCHAIN="+t.goVersion, "GOWORK=off"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return t, fmt.Errorf("find Go %s: %w", t.goVersion, err)
	}
	settings := map[string]string{}
	if err := json.Unmarshal(out, &settings); err != nil {
		return t, err
	}
	if settings["GOVERSION"] != t.goVersion {
		return t, fmt.Errorf("the go command says that it is %s, want %s", settings["GOVERSION"], t.goVersion)
	}
	t.goRoot, t.modCache = settings["GOROOT"], settings["GOMODCACHE"]
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "GO") && !strings.HasPrefix(variable, "CGO_") {
			t.env = append(t.env, variable)
		}
	}
	for _, name := range keptGoSettings {
		if settings[name] != "" {
			t.env = append(t.env, name+"="+settings[name])
		}
	}
	t.env = append(t.env, "GOENV=off", "GOWORK=off", "GOTOOLCHAIN="+t.goVersion, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0")
	return t, nil
}

// buildManager builds the manager as the Dockerfile does.
func (s *source) buildManager(ctx context.Context, platform oci.Platform, path string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath",
		"-ldflags", "-s -w -X main.version="+s.version+" -X main.commit="+s.commit, "-o", path, ".")
	cmd.Dir, cmd.Env = s.root, append(slices.Clone(s.env), "GOOS="+platform.OS, "GOARCH="+platform.Architecture)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the manager for %s: %w\n%s", platform, err, out)
	}
	return nil
}

// epoch is the time of everything that is made: SOURCE_DATE_EPOCH, or else that
// of the commit.
func epoch(ctx context.Context, root string) (time.Time, error) {
	const variable = "SOURCE_DATE_EPOCH"
	value := os.Getenv(variable)
	if value == "" {
		var err error
		if value, err = git(ctx, root, "log", "-1", "--format=%ct"); err != nil {
			return time.Time{}, fmt.Errorf("no time of the commit: set %s, in seconds since 1970: %w", variable, err)
		}
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("%s is %q: want seconds since 1970", variable, value)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// isModified says whether files differ from those of the commit. Where there is
// no git, nobody can tell.
func isModified(ctx context.Context, root string) (bool, error) {
	changes, err := git(ctx, root, "status", "--porcelain")
	return changes != "", err
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
