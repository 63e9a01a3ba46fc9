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
	"path/filepath"
	"runtime/debug"
	"strings"
)

// Types of in-toto and SLSA: https://slsa.dev/spec/v1.0/provenance.
const (
	statementType = "https://in-toto.io/Statement/v1"
	predicateType = "https://slsa.dev/provenance/v1"
	// docs/releases.md says what both mean.
	buildType   = repository + "/blob/main/docs/releases.md#provenance"
	handBuilder = repository + "/blob/main/docs/releases.md#by-hand"
)

type statement struct {
	Type          string          `json:"_type"`
	Subject       []resource      `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

type resource struct {
	Name        string            `json:"name,omitempty"`
	URI         string            `json:"uri,omitempty"`
	Digest      map[string]string `json:"digest,omitempty"`
	Annotations map[string]any    `json:"annotations,omitempty"`
}

type provenance struct {
	BuildDefinition struct {
		BuildType            string         `json:"buildType"`
		ExternalParameters   map[string]any `json:"externalParameters"`
		InternalParameters   map[string]any `json:"internalParameters"`
		ResolvedDependencies []resource     `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
		Metadata map[string]string `json:"metadata,omitempty"`
	} `json:"runDetails"`
}

// provenance says what the image was made from, by whom and how. Nobody has
// signed it.
func (s *source) provenance(ctx context.Context, b *built) ([]byte, error) {
	var p provenance
	definition := &p.BuildDefinition
	definition.BuildType = buildType
	var platforms []string
	for _, platform := range b.platforms {
		platforms = append(platforms, platform.platform.String())
	}
	definition.ExternalParameters = map[string]any{
		"target": "image", "version": s.version, "commit": s.commit, "image": wholeName(b.tag), "platforms": platforms,
	}
	definition.InternalParameters = map[string]any{"SOURCE_DATE_EPOCH": s.time.Unix()}
	var err error
	if definition.ResolvedDependencies, err = s.materials(ctx); err != nil {
		return nil, err
	}
	p.RunDetails.Builder.ID, p.RunDetails.Metadata = builder()
	predicate, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	subjects := []resource{{Name: wholeName(b.tag), Digest: map[string]string{"sha256": b.digest.Hex}}}
	for _, platform := range b.platforms {
		subjects = append(subjects, resource{
			Name: wholeName(b.tag), Digest: map[string]string{"sha256": platform.digest.Hex},
			Annotations: map[string]any{"platform": platform.platform.String()},
		})
	}
	return encode(statement{Type: statementType, Subject: subjects, PredicateType: predicateType, Predicate: predicate})
}

// builder is who runs this: GitHub's workflow, or somebody.
func builder() (id string, metadata map[string]string) {
	server, workflow := os.Getenv("GITHUB_SERVER_URL"), os.Getenv("GITHUB_WORKFLOW_REF")
	if os.Getenv("GITHUB_ACTIONS") != "true" || server == "" || workflow == "" {
		return handBuilder, nil
	}
	return server + "/" + workflow, map[string]string{
		"invocationId": fmt.Sprintf("%s/%s/actions/runs/%s/attempts/%s",
			server, os.Getenv("GITHUB_REPOSITORY"), os.Getenv("GITHUB_RUN_ID"), os.Getenv("GITHUB_RUN_ATTEMPT")),
	}
}

// materials are what the image is made from.
func (s *source) materials(ctx context.Context) ([]resource, error) {
	tree := resource{Name: "source", URI: "git+" + repository + ".git@" + s.version, Annotations: map[string]any{"modified": s.modified}}
	if head, err := git(ctx, s.root, "rev-parse", "--verify", "HEAD"); err == nil {
		tree.Digest = map[string]string{"gitCommit": head}
	}
	all := []resource{tree, {Name: "go", URI: "https://go.dev/dl/#" + s.goVersion, Annotations: map[string]any{"version": s.goVersion}}}
	for _, file := range []string{"go.sum", "hack/release/go.sum"} {
		data, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
		if err != nil {
			return nil, err
		}
		all = append(all, resource{Name: file, Digest: map[string]string{"sha256": sum(data)}})
	}
	around, err := makeBase(s.goRoot)
	if err != nil {
		return nil, err
	}
	all = append(all, resource{
		Name: around.zones.origin, Digest: map[string]string{"sha256": around.zones.sha256}, Annotations: map[string]any{"version": around.zones.version},
	})
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, errors.New("this program does not say what it is built from")
	}
	for _, dependency := range info.Deps {
		if dependency.Path == certificatesModule {
			all = append(all, resource{
				Name: certificatesModule, URI: purlOf(dependency.Path, dependency.Version), Annotations: map[string]any{"h1": dependency.Sum},
			})
		}
	}
	return all, nil
}

func encode(v any) ([]byte, error) {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(v)
	return []byte(out.String()), err
}
