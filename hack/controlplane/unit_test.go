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
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func TestBrokenImage(t *testing.T) {
	pattern := regexp.MustCompile(brokenImage)
	for image, want := range map[string]bool{
		"busybo":                          true,
		"busybo:1":                        true,
		"docker.io/library/busybo:latest": true,
		"registry:5000/busybo":            true,
		"registry:5000/team/busybo:v1@sha256:0123": true,
		"busybo@sha256:0123":                       true,
		"busybox":                                  false,
		"busybox:1":                                false,
		"notbusybo":                                false,
		"docker.io/library/busybox:busybo":         false,
		"busybo/app":                               false,
		"busybo:5000/app:1":                        false,
		"nginx":                                    false,
	} {
		if got := pattern.MatchString(image); got != want {
			t.Errorf("%s broken: %t, want %t", image, got, want)
		}
	}
}

// stageDoc has the tested fields of a Stage.
type stageDoc struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		ResourceRef struct {
			Kind string `json:"kind"`
		} `json:"resourceRef"`
		Steps []struct {
			Patch *struct {
				Subresource string `json:"subresource"`
				Type        string `json:"type"`
				Template    string `json:"template"`
			} `json:"patch"`
		} `json:"steps"`
	} `json:"spec"`
}

func TestStages(t *testing.T) {
	config, err := kwokConfig()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, part := range bytes.Split(config, []byte("\n---\n")) {
		var doc stageDoc
		if err := yaml.Unmarshal(part, &doc); err != nil {
			t.Fatalf("%v in:\n%s", err, part)
		}
		if doc.Kind == "KwokConfiguration" {
			continue
		}
		name := doc.Metadata.Name
		if doc.Kind != "Stage" || name == "" || seen[name] {
			t.Errorf("kind %q with name %q (seen: %t)", doc.Kind, name, seen[name])
		}
		seen[name] = true
		for _, step := range doc.Spec.Steps {
			if step.Patch == nil || doc.Spec.ResourceRef.Kind != "Pod" {
				continue
			}
			// See the comment on pod-sync.
			if step.Patch.Type != "strategic" || step.Patch.Subresource != "status" ||
				!strings.Contains(step.Patch.Template, "resourceVersion: {{ .metadata.resourceVersion") {
				t.Errorf("stage %s does not patch the status with a resource version, strategically", name)
			}
		}
	}
	if !seen["pod-sync"] || !seen["node-initialize"] {
		t.Errorf("stages missing: %v", seen)
	}
}

func TestStagesKnowTheBrokenImage(t *testing.T) {
	config, err := kwokConfig()
	if err != nil {
		t.Fatal(err)
	}
	literals := regexp.MustCompile("(?:test\\(\"|pattern := `)([^\"`]*)").FindAllStringSubmatch(string(config), -1)
	if len(literals) < 5 {
		t.Errorf("found %d patterns, want one for each stage that starts a pod", len(literals))
	}
	for _, literal := range literals {
		if diff := cmp.Diff(brokenImage, literal[1]); diff != "" {
			t.Errorf("pattern in a stage (-want +got):\n%s", diff)
		}
	}
}

// TestPodAddresses: the operator calls the addresses that stand for pods.
func TestPodAddresses(t *testing.T) {
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	got := called(t.Context(), addresses(
		"127.0.0.1", "::1", "169.254.1.1", "fe80::1", "fe80::1%eth0", "192.0.2.2", "100.100.100.200", "8.8.8.8", "fd00::2", "10.1.2.3",
	))
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(addresses("10.1.2.3", "fd00::2", "8.8.8.8"), got, same); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

// eventually calls check until it returns nil.
func eventually(t *testing.T, timeout time.Duration, check func() error) {
	t.Helper()
	ctx := t.Context()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", timeout, err)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}
