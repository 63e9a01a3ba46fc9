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
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// releaseVersion is a semantic version with a leading v. Build metadata is left
// out, because tags of images cannot have it.
var releaseVersion = regexp.MustCompile(
	`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?$`)

// tree is what is checked before a release.
type tree struct {
	// changes are the files that differ from the commit, as git says them.
	changes string
	// head is the commit; tagged is that of the tag of the version, empty if
	// there is none.
	head, tagged string
	// manifests is the version of the image in config/manager.
	manifests string
	// changelog is CHANGELOG.md.
	changelog string
}

func checkCommand(ctx context.Context, c *call) error {
	root := c.flags.String("root", ".", "directory of the repository")
	version := c.flags.String("version", "", "version to release")
	manifests := c.flags.String("manifests", "", "version that the manifests of the tree name")
	trial := c.flags.Bool("trial", false, "release any tree, to try it out; only the form of the version is checked")
	if err := c.parse(); err != nil {
		return err
	}
	if err := checkVersion(*version); err != nil || *trial {
		return err
	}
	t, err := readTree(ctx, *root, *version)
	if err != nil {
		return err
	}
	t.manifests = *manifests
	return checkTree(*version, t)
}

func checkVersion(version string) error {
	if !releaseVersion.MatchString(version) {
		return fmt.Errorf("VERSION is %q: want a semantic version with a leading v and without build metadata, as in VERSION=v1.2.3", version)
	}
	return nil
}

func readTree(ctx context.Context, root, version string) (tree, error) {
	var t tree
	var err error
	if t.changes, err = git(ctx, root, "status", "--porcelain"); err != nil {
		return t, err
	}
	if t.head, err = git(ctx, root, "rev-parse", "--verify", "HEAD"); err != nil {
		return t, err
	}
	if t.tagged, err = git(ctx, root, "for-each-ref", "--format=%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end)", "refs/tags/"+version); err != nil {
		return t, err
	}
	data, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	t.changelog = string(data)
	return t, err
}

// checkTree decides whether a version may be released from a tree.
func checkTree(version string, t tree) error {
	const remedy = "; TRIAL=1 releases it anyway, to try it out"
	var problems []error
	if t.changes != "" {
		problems = append(problems, fmt.Errorf("the tree is not that of the commit: commit or remove these files"+remedy+"\n%s", t.changes))
	}
	if t.tagged != "" && t.tagged != t.head {
		problems = append(problems, fmt.Errorf("the tag %s is of commit %s, and this is %s: check the tag out"+remedy, version, t.tagged, t.head))
	}
	if t.manifests != version {
		problems = append(problems, fmt.Errorf(
			"the manifests name the image %s: set newTag in config/manager/kustomization.yaml to %s, run make build-installer and commit"+remedy,
			t.manifests, version))
	}
	if _, err := notesOf(version, t.changelog); err != nil && !strings.Contains(version, "-") {
		problems = append(problems, fmt.Errorf("%w"+remedy, err))
	}
	return errors.Join(problems...)
}

func notesCommand(_ context.Context, c *call) error {
	root := c.flags.String("root", ".", "directory of the repository")
	if err := c.parse("VERSION"); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(*root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	version := c.flags.Arg(0)
	if strings.Contains(version, "-") {
		fmt.Fprintln(c.out, "A version to try out. What it brings is under Unreleased in CHANGELOG.md.")
		return nil
	}
	notes, err := notesOf(version, string(data))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.out, notes)
	return err
}

// notesOf is the section of a version in a changelog.
func notesOf(version, changelog string) (string, error) {
	title := "## [" + strings.TrimPrefix(version, "v") + "]"
	var notes []string
	inside := false
	for line := range strings.Lines(changelog) {
		switch {
		case strings.HasPrefix(line, title):
			inside = true
		case inside && (strings.HasPrefix(line, "## ") || linkDefinition.MatchString(line)):
			return strings.TrimSpace(strings.Join(notes, "")), nil
		case inside:
			notes = append(notes, line)
		}
	}
	if !inside {
		return "", fmt.Errorf("CHANGELOG.md has no section %q: give what is under Unreleased the version and the date", title)
	}
	return strings.TrimSpace(strings.Join(notes, "")), nil
}

var linkDefinition = regexp.MustCompile(`^\[[^\]]+\]: `)

// checksumsFile is not in itself.
const checksumsFile = "checksums.txt"

func checksumsCommand(_ context.Context, c *call) error {
	if err := c.parse("DIRECTORY"); err != nil {
		return err
	}
	return writeChecksums(c.flags.Arg(0))
}

// writeChecksums writes the sums of the files in a directory, in the form of
// sha256sum.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var lines []string
	for _, entry := range entries {
		if entry.Name() == checksumsFile {
			continue
		}
		if !entry.Type().IsRegular() {
			return fmt.Errorf("%s is no file: only files are released", filepath.Join(dir, entry.Name()))
		}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, sum(data)+"  "+entry.Name()+"\n")
	}
	if len(lines) == 0 {
		return fmt.Errorf("there is nothing in %s to release", dir)
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(dir, checksumsFile), []byte(strings.Join(lines, "")), 0o644)
}
