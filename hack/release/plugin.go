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
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"
)

const (
	plugin = "kubectl-altershield"
	// completer is the program that kubectl calls to complete commands of the plugin.
	completer = "kubectl_complete-altershield"
	// downloads is the address of the files of a release, without its version.
	downloads = repository + "/releases/download"
)

// pluginPlatforms are the platforms of the plugin, as pairs of GOOS and GOARCH.
var pluginPlatforms = [][2]string{{"darwin", "amd64"}, {"darwin", "arm64"}, {"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}}

//go:embed krew.yaml.tmpl
var krewTemplate string

func pluginCommand(ctx context.Context, args []string) error {
	flags, s := sourceFlags("plugin")
	cleanUp, err := s.parse(ctx, flags, args)
	if err != nil {
		return err
	}
	defer cleanUp()
	return s.writePlugin(func(goos, goarch, name string) ([]byte, error) {
		return s.build(ctx, "./cmd/"+plugin, goos, goarch, name)
	})
}

// krewPlatform is the entry of a platform in the manifest for krew.
type krewPlatform struct{ OS, Arch, Binary, URI, Sha256 string }

// writePlugin writes an archive for each platform, and the manifest for krew.
func (s *source) writePlugin(build func(goos, goarch, name string) ([]byte, error)) error {
	if !releaseVersion.MatchString(s.version) {
		return fmt.Errorf("VERSION=%s is not a version that krew accepts: give one as in v1.2.3 or v1.2.3-rc.1", s.version)
	}
	licence, err := os.ReadFile(filepath.Join(s.root, "LICENSE"))
	if err != nil {
		return err
	}
	completion, err := os.ReadFile(filepath.Join(s.root, "cmd", plugin, completer))
	if err != nil {
		return err
	}
	var platforms []krewPlatform
	for _, p := range pluginPlatforms {
		name := fmt.Sprintf("%s_%s_%s_%s", plugin, s.version, p[0], p[1])
		data, err := build(p[0], p[1], name)
		if err != nil {
			return err
		}
		binary, pack, extension := plugin, gzipped, ".tar.gz"
		if p[0] == "windows" {
			binary, pack, extension = plugin+".exe", zipped, ".zip"
		}
		archive, err := pack([]file{
			{path: "LICENSE", mode: 0o644, data: licence}, {path: binary, mode: 0o755, data: data}, {path: completer, mode: 0o755, data: completion},
		}, s.time)
		if err != nil {
			return err
		}
		if err := s.write(name+extension, archive); err != nil {
			return err
		}
		platforms = append(platforms, krewPlatform{
			OS: p[0], Arch: p[1], Binary: binary,
			URI: downloads + "/" + s.version + "/" + name + extension, Sha256: fmt.Sprintf("%x", sha256.Sum256(archive)),
		})
	}
	var manifest bytes.Buffer
	parsed, err := template.New("krew.yaml.tmpl").Option("missingkey=error").Parse(krewTemplate)
	if err != nil {
		return err
	}
	if err := parsed.Execute(&manifest, map[string]any{"Version": s.version, "Archives": platforms}); err != nil {
		return err
	}
	return s.write("altershield.yaml", manifest.Bytes())
}

func gzipped(files []file, at time.Time) ([]byte, error) {
	archive, err := archiveOf(files, at)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = w.Write(archive)
	err = errors.Join(err, w.Close())
	return out.Bytes(), err
}

func zipped(files []file, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.path, Method: zip.Deflate, Modified: at}
		header.SetMode(os.FileMode(f.mode))
		entry, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := entry.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}
