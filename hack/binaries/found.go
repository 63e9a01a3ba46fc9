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
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// found is an installed program.
type found struct{ path, version string }

// lookAround finds installed programs: in the directory KUBEBUILDER_ASSETS, and
// kubectl in PATH.
func (p *plan) lookAround(ctx context.Context) {
	p.found = map[string]found{}
	for _, b := range p.programs {
		var candidates []string
		if len(b.version) == 0 {
			continue
		}
		if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
			candidates = append(candidates, filepath.Join(assets, b.name))
		}
		if path, err := exec.LookPath(b.name); err == nil && b.name == "kubectl" {
			candidates = append(candidates, path)
		}
		for _, path := range candidates {
			if version := p.usable(ctx, b, path); version != "" {
				p.found[b.name] = found{path: path, version: version}
				break
			}
		}
	}
}

// usable returns the version of a program if it can replace the pinned one: a release
// of the same minor version. Wrappers and distributions of vendors, whose versions have
// a suffix, are not usable.
func (p *plan) usable(ctx context.Context, b binary, path string) string {
	resolved, err := filepath.EvalSymlinks(path)
	// Our own older build does not count.
	if err != nil || filepath.Dir(resolved) == p.dir || !isProgram(path) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, b.version...).Output()
	if err != nil {
		return ""
	}
	version := versionPattern.FindString(string(out))
	if got := minor(version); got == "" || got != minor(p.versions[b.module]) {
		return ""
	}
	return version
}

var (
	versionPattern = regexp.MustCompile(`\bv?[0-9]+\.[0-9]+\.[0-9]+[^\s",]*`)
	releasePattern = regexp.MustCompile(`^v?([0-9]+\.[0-9]+)\.[0-9]+$`)
)

// minor returns the first two numbers of the version of a release; empty for other
// versions.
func minor(version string) string {
	if m := releasePattern.FindStringSubmatch(version); m != nil {
		return m[1]
	}
	return ""
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o100 != 0
}

// copyProgram copies a program instead of linking it: the file may be replaced by
// another version later.
func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
