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
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// The app answers with the status that it is given, at the port that its policy names.
func TestApp(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, ".demo")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	a, stop := listen(t.Context(), netip.MustParseAddr("127.0.0.1"))
	if a == nil {
		t.Fatal("it does not listen")
	}
	defer stop()
	answer := func() int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+a.Address.String()+"/healthz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	got := []int{answer()}
	a.Answer(http.StatusServiceUnavailable)
	got = append(got, answer())
	if !slices.Equal(got, []int{200, 503}) {
		t.Errorf("answers %v", got)
	}
	path, err := writePolicy(root, dir, a.Address.Port())
	if err != nil || path != filepath.Join(".demo", "answers.yaml") {
		t.Fatalf("policy at %q: %v", path, err)
	}
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	var p v1alpha1.DefensePolicy
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		t.Fatal(err)
	}
	if c := p.Spec.Checks[0]; p.Name+"/"+c.Name != "answers/smoke" || uint16(c.Probe.HTTP.Port) != a.Address.Port() {
		t.Errorf("policy:\n%s", data)
	}
	if a, _ := listen(t.Context(), netip.MustParseAddr("203.0.113.7")); a != nil {
		t.Errorf("it listens at an address of another machine: %s", a.Address)
	}
}
