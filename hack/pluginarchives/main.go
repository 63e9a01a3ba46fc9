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

// Command pluginarchives builds the kubectl plugin for all platforms, and packs it: an
// archive for each, and the manifest by which krew installs them. The same sources give
// the same bytes, wherever and whenever that is done.
package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"
)

const (
	program = "kubectl-altershield"
	// completer is what kubectl calls to complete commands of the plugin.
	completer = "kubectl_complete-altershield"
)

// platform is what a program is built for.
type platform struct{ OS, Arch string }

func platforms() []platform {
	return []platform{{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}}
}

// binary is the name of the program there.
func (p platform) binary() string {
	if p.OS == "windows" {
		return program + ".exe"
	}
	return program
}

// archive is the name of the archive for it.
func (p platform) archive(version string) string {
	kind := ".tar.gz"
	if p.OS == "windows" {
		kind = ".zip"
	}
	return fmt.Sprintf("%s_%s_%s_%s%s", program, version, p.OS, p.Arch, kind)
}

// release is what archives are made of.
type release struct {
	// Root of the repository.
	Root string
	// Version, as v1.2.3, and Commit.
	Version, Commit string
	// Time is that of all files in the archives.
	Time time.Time
	// Download is where the archives of a release are, without its version.
	Download string
	// Out is the directory they are written to.
	Out string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pluginarchives:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	r := release{}
	flags := flag.NewFlagSet("pluginarchives", flag.ContinueOnError)
	flags.StringVar(&r.Root, "root", ".", "root of the repository")
	flags.StringVar(&r.Version, "version", "", "version, as v1.2.3")
	flags.StringVar(&r.Commit, "commit", "unknown", "commit")
	flags.StringVar(&r.Download, "download", "https://github.com/traas-stack/altershield-operator/releases/download", "where the archives of a release are, without its version")
	flags.StringVar(&r.Out, "out", "dist", "directory to write to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !isVersion.MatchString(r.Version) {
		return fmt.Errorf("VERSION=%s is no version: give one as v1.2.3 or v1.2.3-rc.1; krew takes no other", r.Version)
	}
	var err error
	if r.Time, err = sourceTime(ctx, r.Root); err != nil {
		return err
	}
	return r.make(ctx, build)
}

// isVersion is a semantic version.
var isVersion = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// sourceTime is that of the commit, or what SOURCE_DATE_EPOCH says.
func sourceTime(ctx context.Context, root string) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.CommandContext(ctx, "git", "-C", root, "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("read the time of the commit (without git, set SOURCE_DATE_EPOCH): %w", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the time of the sources: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// build builds the program for a platform into a file.
func build(ctx context.Context, r release, p platform, file string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", fmt.Sprintf("-s -w -X main.version=%s -X main.commit=%s", r.Version, r.Commit), "-o", file, "./cmd/"+program)
	cmd.Dir = r.Root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Arch, "GOFLAGS=-mod=readonly", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build for %s/%s: %w\n%s", p.OS, p.Arch, err, out)
	}
	return nil
}

// builder makes the program for a platform.
type builder func(ctx context.Context, r release, p platform, file string) error

// archived is an archive in the manifest.
type archived struct {
	platform
	Binary, URI, Sha256 string
}

// make writes archives and manifest.
func (r release) make(ctx context.Context, build builder) error {
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", program)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	var made []archived
	for _, p := range platforms() {
		binary := filepath.Join(temp, p.OS+"-"+p.Arch)
		if err := build(ctx, r, p, binary); err != nil {
			return err
		}
		files, err := r.files(p, binary)
		if err != nil {
			return err
		}
		data, err := pack(p, files, r.Time)
		if err != nil {
			return err
		}
		name := p.archive(r.Version)
		if err := os.WriteFile(filepath.Join(r.Out, name), data, 0o644); err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		made = append(made, archived{platform: p, Binary: p.binary(), URI: r.Download + "/" + r.Version + "/" + name, Sha256: hex.EncodeToString(sum[:])})
	}
	return r.manifest(made)
}

//go:embed krew.yaml.tmpl
var manifestTemplate string

// manifest writes that of krew.
func (r release) manifest(made []archived) error {
	parsed, err := template.New("krew.yaml.tmpl").Option("missingkey=error").Parse(manifestTemplate)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, map[string]any{"Version": r.Version, "Archives": made}); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.Out, "altershield.yaml"), out.Bytes(), 0o644)
}

// file is one of an archive.
type file struct {
	Name       string
	Executable bool
	Data       []byte
}

func (f file) mode() os.FileMode {
	if f.Executable {
		return 0o755
	}
	return 0o644
}

// files are those of the archive for a platform, by their names.
func (r release) files(p platform, binary string) ([]file, error) {
	from := []struct {
		path string
		file
	}{
		{filepath.Join(r.Root, "LICENSE"), file{Name: "LICENSE"}},
		{binary, file{Name: p.binary(), Executable: true}},
		{filepath.Join(r.Root, "cmd", program, completer), file{Name: completer, Executable: true}},
	}
	files := make([]file, len(from))
	for i := range from {
		data, err := os.ReadFile(from[i].path)
		if err != nil {
			return nil, err
		}
		files[i] = from[i].file
		files[i].Data = data
	}
	return files, nil
}

// pack makes an archive.
func pack(p platform, files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	var err error
	if strings.HasSuffix(p.archive(""), ".zip") {
		err = writeZip(&out, files, at)
	} else {
		err = writeTar(&out, files, at)
	}
	return out.Bytes(), err
}

func writeTar(out io.Writer, files []file, at time.Time) error {
	// Its header has neither a time nor a name.
	compressed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{
			Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: f.Name, Mode: int64(f.mode()), Size: int64(len(f.Data)), ModTime: at,
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(f.Data); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), compressed.Close())
}

func writeZip(out io.Writer, files []file, at time.Time) error {
	w := zip.NewWriter(out)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.Name, Method: zip.Deflate, Modified: at}
		header.SetMode(f.mode())
		entry, err := w.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := entry.Write(f.Data); err != nil {
			return err
		}
	}
	return w.Close()
}
