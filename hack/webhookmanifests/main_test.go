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
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// TestManifestIsGenerated holds the manifest and the code together.
func TestManifestIsGenerated(t *testing.T) {
	want, err := os.ReadFile(filepath.Join("..", "..", "config", "webhook", "manifests.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := manifests(workload.Defended())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run make manifests (-file +code):\n%s", diff)
	}
}

// TestKindHasManifests: a kind that is registered is in the manifests, and sees no more
// namespaces than others.
func TestKindHasManifests(t *testing.T) {
	text, err := manifests(workload.NewRegistry(workload.Deployment{}, workloadtest.Fleet{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"- deployments\n", "- fleets\n", "- kube-system\n", "- altershieldoperator-system\n"} {
		hooks := 8
		if strings.HasSuffix(want, "s\n") {
			hooks = 4 // of one kind
		}
		if got := strings.Count(string(text), want); got != hooks {
			t.Errorf("%d times %q, want %d:\n%s", got, want, hooks, text)
		}
	}
}
