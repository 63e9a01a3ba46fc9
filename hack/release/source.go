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
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// source is the tree of a release. Each artifact has a file.
type source struct {
	// root is the directory of the repository, out the directory to write to.
	root, out string
	// version and commit are printed by the programs.
	version, commit string
	// binaries is the directory of the built programs.
	binaries string
	// time is the time of the commit, and of all artifacts.
	time time.Time
	// goRoot is the GOROOT of the pinned Go, env the environment of its command, without settings that change the result.
	goRoot string
	env    []string
}

// parse reads the flags of a build, and prepares it.
func (s *source) parse(ctx context.Context, flags *flag.FlagSet, args []string) (cleanUp func(), err error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 || s.version == "" || s.commit == "" {
		return nil, fmt.Errorf("%s needs -version and -commit, and no arguments", flags.Name())
	}
	if err := s.findGo(ctx); err != nil {
		return nil, err
	}
	if s.time, err = epoch(ctx, s.root); err != nil {
		return nil, err
	}
	cleanUp = func() {}
	if s.binaries == "" {
		if s.binaries, err = os.MkdirTemp("", "release-"); err != nil {
			return nil, err
		}
		cleanUp = func() { _ = os.RemoveAll(s.binaries) }
	}
	return cleanUp, errors.Join(os.MkdirAll(s.out, 0o755), os.MkdirAll(s.binaries, 0o755))
}

//go:embed go.mod
var goMod string

var toolchainLine = regexp.MustCompile(`(?m)^toolchain (\S+)$`)

// pinnedGo returns the version of Go that a go.mod pins, as in go1.26.8.
func pinnedGo(goMod string) (string, error) {
	pin := toolchainLine.FindStringSubmatch(goMod)
	if pin == nil {
		return "", errors.New("hack/release/go.mod has no toolchain: releases are built with one version of Go")
	}
	return pin[1], nil
}

// keptGoSettings are the settings of sources and caches of modules. They do not change the result.
var keptGoSettings = []string{
	"GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE", "GOAUTH", "GOVCS", "GOCACHE", "GOMODCACHE", "GOPATH",
}

// findGo finds the pinned Go, which the go command downloads if another version is installed. This program must be built with the pinned
// Go, too, because it compresses archives.
func (s *source) findGo(ctx context.Context) error {
	pin, err := pinnedGo(goMod)
	if err != nil {
		return err
	}
	if runtime.Version() != pin {
		return fmt.Errorf("this program was built with %s, and hack/release/go.mod pins %s: run it by make", runtime.Version(), pin)
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"env", "-json", "GOROOT", "GOVERSION"}, keptGoSettings...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = s.root, append(os.Environ(), "GOTOOLCHAIN="+pin, "GOWORK=off"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("find Go %s: %w", pin, err)
	}
	settings := map[string]string{}
	if err := json.Unmarshal(out, &settings); err != nil {
		return err
	}
	if settings["GOVERSION"] != pin {
		return fmt.Errorf("the go command is %s, want %s", settings["GOVERSION"], pin)
	}
	s.goRoot = settings["GOROOT"]
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "GO") && !strings.HasPrefix(variable, "CGO_") {
			s.env = append(s.env, variable)
		}
	}
	for _, name := range keptGoSettings {
		if settings[name] != "" {
			s.env = append(s.env, name+"="+settings[name])
		}
	}
	s.env = append(s.env, "GOENV=off", "GOWORK=off", "GOTOOLCHAIN="+pin, "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0")
	return nil
}

// build builds a program as the Dockerfile builds the manager, keeps it under a name, and returns it.
func (s *source) build(ctx context.Context, pkg, goos, goarch, name string) ([]byte, error) {
	path, err := filepath.Abs(filepath.Join(s.binaries, name))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-buildvcs=false", "-trimpath",
		"-ldflags", "-s -w -X main.version="+s.version+" -X main.commit="+s.commit, "-o", path, pkg)
	cmd.Dir, cmd.Env = s.root, append(slices.Clone(s.env), "GOOS="+goos, "GOARCH="+goarch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s for %s/%s: %w\n%s", pkg, goos, goarch, err, out)
	}
	return os.ReadFile(path)
}

// write writes a file into the directory of the release.
func (s *source) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(s.out, name), data, 0o644)
}

// epoch returns SOURCE_DATE_EPOCH or, without it, the time of the commit.
func epoch(ctx context.Context, root string) (time.Time, error) {
	const variable = "SOURCE_DATE_EPOCH"
	value := os.Getenv(variable)
	if value == "" {
		out, err := exec.CommandContext(ctx, "git", "-C", root, "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("no time of the commit: set %s, in seconds since 1970: git log: %w", variable, err)
		}
		value = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(value, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("%s is %q: want seconds since 1970", variable, value)
	}
	return time.Unix(seconds, 0).UTC(), nil
}
