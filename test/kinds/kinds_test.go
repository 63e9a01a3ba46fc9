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

// Package kinds checks the ChangeKinds in config/kinds against the CustomResourceDefinitions of the products, which
// hack/kinds/go.mod pins, and against objects as the controllers of the products write them.
package kinds

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// preset is a file of testdata, for the ChangeKind of the same path in config/kinds.
type preset struct {
	// Source names the code that writes the states.
	Source string `json:"source"`
	// Module of hack/kinds/go.mod that has the CRD; empty for a CRD in testdata, or none.
	Module string `json:"module,omitempty"`
	// CRD is a path in the module, or in testdata.
	CRD string `json:"crd,omitempty"`
	// Replicas is the number of pods of the sample in its first state; absent if it is unknown.
	Replicas *int32 `json:"replicas,omitempty"`
	// MinReady is the number of seconds that pods of the sample have to be ready.
	MinReady int `json:"minReady,omitempty"`
	// Images of the sample that are reported.
	Images []string `json:"images,omitempty"`
	// Releases and Ignored are merge patches that change the version, and do not.
	Releases []map[string]any `json:"releases"`
	Ignored  []map[string]any `json:"ignored,omitempty"`
	// Selects is the selector of the pods, with {uid} for the object's own.
	Selects string `json:"selects,omitempty"`
	Pods    []struct {
		Name    string `json:"name"`
		Current bool   `json:"current,omitempty"`
		// Stale means that the controller has not seen the present generation.
		Stale    bool              `json:"stale,omitempty"`
		Labels   map[string]string `json:"labels"`
		Revision map[string]any    `json:"revision,omitempty"`
	} `json:"pods,omitempty"`
	// States are values of status, the first of a complete rollout.
	States []state `json:"states"`
}

type state struct {
	Name     string         `json:"name"`
	Complete bool           `json:"complete,omitempty"`
	Stuck    string         `json:"stuck,omitempty"`
	Status   map[string]any `json:"status,omitempty"`
}

// since is when the rollouts of the states began.
var since = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func TestPresets(t *testing.T) {
	if testing.Short() {
		t.Skip("needs an API server")
	}
	root, err := controlplane.Root(".")
	must(t, err)
	config := filepath.Join(root, "config", "kinds")
	files, err := filepath.Glob(filepath.Join(config, "*", "*.yaml"))
	must(t, err)
	presets, crds := map[string]*preset{}, map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		name := strings.TrimPrefix(strings.TrimSuffix(file, ".yaml"), config+"/")
		p := &preset{}
		text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
		must(t, err)
		// Not UnmarshalStrict of yaml, for which a field beside << is a duplicate.
		text, err = yaml.YAMLToJSON(text)
		must(t, err)
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		must(t, d.Decode(p))
		presets[name] = p
	}
	dirs := modules(t, root, presets)
	for name, p := range presets {
		if p.CRD != "" {
			crds[name] = definition(t, filepath.Join(dirs[p.Module], p.CRD), read(t, filepath.Join(config, name+".yaml"))[0].GetName())
		}
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: controlplane.BinDir(root),
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases"), filepath.Join(root, "config", "changekind")},
		CRDs:                  slices.Collect(maps.Values(crds)),
	}
	rest, err := env.Start()
	if err != nil {
		t.Fatalf("the binaries are built by make controlplane: %v", err)
	}
	t.Cleanup(func() { must(t, env.Stop()) })
	rest.QPS = -1
	api, err := client.New(rest, client.Options{})
	must(t, err)
	api = client.WithFieldValidation(api, metav1.FieldValidationStrict)

	for _, name := range slices.Sorted(maps.Keys(presets)) {
		t.Run(name, func(t *testing.T) {
			objects := read(t, filepath.Join(config, name+".yaml"))
			if len(objects) != 2 {
				t.Fatalf("%d objects; want a ChangeKind and its ClusterRole", len(objects))
			}
			for _, o := range objects {
				must(t, api.Create(t.Context(), o, client.DryRunAll))
			}
			kind := &v1alpha1.ChangeKind{}
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(objects[0].Object, kind))
			sample := read(t, filepath.Join(config, filepath.Dir(name), "samples", filepath.Base(name)+".yaml"))[0]
			k, problem := declared.Accept(kind, servedBy(crds[name], kind.Spec.Version, sample))
			if problem != "" {
				t.Fatal(problem)
			}
			role := &rbacv1.ClusterRole{}
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(objects[1].Object, role))
			checkRole(t, role, k)
			sample.SetNamespace("default")
			must(t, api.Create(t.Context(), sample))
			s := &story{t: t, api: api, k: k, preset: presets[name], object: sample}
			s.states()
			s.pods()
			s.fields()
			s.changes()
		})
	}
}

func checkRole(t *testing.T, role *rbacv1.ClusterRole, k *declared.Kind) {
	t.Helper()
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{k.Group}, Resources: []string{k.Resource}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{k.Group}, Resources: []string{k.Resource + "/finalizers"}, Verbs: []string{"update"}},
	}
	if !reflect.DeepEqual(role.Rules, want) || role.Labels["altershield.defense.antgroup.com/aggregate-to-manager"] != "true" ||
		role.Name != "altershieldoperator-kind-"+k.Name {
		t.Errorf("%s: %v, %v", role.Name, role.Labels, role.Rules)
	}
}

// story is one object of a kind at the API server.
type story struct {
	*preset
	t      *testing.T
	api    client.Client
	k      *declared.Kind
	object *unstructured.Unstructured
}

// trimmed returns the object as the cache has it.
func (s *story) trimmed() map[string]any {
	s.t.Helper()
	u := s.object.DeepCopy()
	_, err := s.k.Trim(u)
	must(s.t, err)
	if got, want := s.k.VersionOf(u.Object), s.k.VersionOf(s.object.Object); got != want {
		s.t.Errorf("trimmed: version %s, want %s", got, want)
	}
	return u.Object
}

func (s *story) setStatus(status map[string]any) {
	s.t.Helper()
	if len(status) == 0 {
		return
	}
	text, err := json.Marshal(status)
	must(s.t, err)
	var value map[string]any
	must(s.t, utiljson.Unmarshal(text, &value)) // integers as the API server sends them
	s.object.Object["status"] = maps.Clone(value)
	must(s.t, s.api.Status().Update(s.t.Context(), s.object))
	maps.DeleteFunc(value, func(_ string, v any) bool { return v == nil })
	if got, _, _ := unstructured.NestedMap(s.object.Object, "status"); len(got) < len(value) {
		s.t.Errorf("the API server kept %v of the status %v", got, value)
	}
}

func (s *story) states() {
	if generation := s.object.GetGeneration(); generation > 1 {
		s.t.Fatalf("generation %d; the states have 1", generation)
	}
	// The first state again, for what follows.
	for i, state := range append(slices.Clone(s.States), s.States[0]) {
		if i == len(s.States) && len(state.Status) == 0 {
			continue
		}
		s.setStatus(state.Status)
		for _, object := range []map[string]any{s.object.Object, s.trimmed()} {
			got, err := s.k.ProgressOf(object, since)
			if err != nil || got.Complete != state.Complete || got.Stuck != state.Stuck {
				s.t.Errorf("%s: %+v, %v; want complete %t, stuck %q", state.Name, got, err, state.Complete, state.Stuck)
			}
		}
	}
	if !s.States[0].Complete || !slices.ContainsFunc(s.States, func(x state) bool { return !x.Complete }) && s.k.Spec.Rollout.Complete != "" {
		s.t.Error("states: the first is complete, and another is not")
	}
}

func (s *story) pods() {
	if (s.k.Spec.Pods != nil) != (len(s.Pods) > 0) {
		s.t.Error("a kind with pods has a current pod and an old pod")
	}
	for _, pod := range s.Pods {
		labels := map[string]any{}
		for key, value := range pod.Labels {
			labels[key] = value
		}
		metadata := map[string]any{"name": pod.Name, "labels": labels}
		for _, object := range []map[string]any{s.object.DeepCopy().Object, s.trimmed()} {
			if pod.Stale {
				must(s.t, unstructured.SetNestedField(object, int64(2), "metadata", "generation"))
			}
			got, err := s.k.IsCurrent(object, map[string]any{"metadata": metadata}, pod.Revision)
			if got != pod.Current || err != nil {
				s.t.Errorf("pod %s: current %t, %v", pod.Name, got, err)
			}
		}
	}
	if s.Selects != "" {
		selector, err := s.k.Selector(s.trimmed())
		if want := strings.ReplaceAll(s.Selects, "{uid}", string(s.object.GetUID())); err != nil || selector.String() != want {
			s.t.Errorf("selector %v, %v; want %s", selector, err, want)
		}
	}
}

func (s *story) fields() {
	object := s.trimmed()
	if n, ok := s.k.Replicas(object); ok != (s.Replicas != nil) || ok && n != *s.Replicas {
		s.t.Errorf("replicas %d, %t", n, ok)
	}
	if got := s.k.MinReady(object); got != time.Duration(s.MinReady)*time.Second {
		s.t.Errorf("minReadySeconds %s", got)
	}
	if got := s.k.ImagesOf(object); !slices.Equal(got, s.Images) {
		s.t.Errorf("images %v", got)
	}
	if len(s.k.Spec.Rollout.Halt) == 0 {
		return
	}
	spec, version := s.spec(), s.k.VersionOf(s.object.Object)
	ops, from, err := s.k.Halt(s.object.Object)
	must(s.t, err)
	s.patch(ops)
	if !s.k.Halted(s.object.Object) || s.k.VersionOf(s.object.Object) != version {
		s.t.Error("it is not halted, or the halt is a release")
	}
	ops, problem := s.k.Resume(s.object.Object, from)
	s.patch(ops)
	if problem != "" || s.k.Halted(s.object.Object) || !reflect.DeepEqual(s.spec(), spec) {
		s.t.Errorf("resumed: %s; %v, want %v", problem, s.spec(), spec)
	}
}

func (s *story) changes() {
	for _, patch := range s.Ignored {
		version := s.k.VersionOf(s.object.Object)
		s.merge(patch)
		if s.k.VersionOf(s.object.Object) != version {
			s.t.Errorf("%v is a release", patch)
		}
	}
	for _, patch := range s.Releases {
		before := s.k.VersionOf(s.object.Object)
		history, err := s.k.History(s.object.Object)
		must(s.t, err)
		s.merge(patch)
		after := s.k.VersionOf(s.object.Object)
		if after == before {
			s.t.Errorf("%v is no release", patch)
		}
		ops, err := s.k.Restore(s.object.Object, history)
		must(s.t, err)
		s.patch(ops)
		if s.k.VersionOf(s.object.Object) != before {
			s.t.Errorf("the rollback of %v is another version", patch)
		}
	}
}

func (s *story) spec() any { return s.object.DeepCopy().Object["spec"] }

func (s *story) merge(patch map[string]any) {
	s.t.Helper()
	text, err := json.Marshal(patch)
	must(s.t, err)
	generation := s.object.GetResourceVersion()
	must(s.t, s.api.Patch(s.t.Context(), s.object, client.RawPatch(types.MergePatchType, text)))
	if s.object.GetResourceVersion() == generation {
		s.t.Errorf("%s changes nothing", text)
	}
}

func (s *story) patch(ops []workload.Op) {
	s.t.Helper()
	text, err := json.Marshal(ops)
	must(s.t, err)
	must(s.t, s.api.Patch(s.t.Context(), s.object, client.RawPatch(types.JSONPatchType, text)))
}

// servedBy returns the kind as the API server serves it, by its CRD if it has one.
func servedBy(crd *apiextensionsv1.CustomResourceDefinition, version string, sample *unstructured.Unstructured) declared.Served {
	served := declared.Served{Kind: sample.GetKind(), Namespaced: true}
	if crd == nil {
		return served
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Name != version || !v.Served {
			continue
		}
		served.Schema = v.Schema.OpenAPIV3Schema
		if v.Subresources != nil && v.Subresources.Scale != nil && v.Subresources.Scale.LabelSelectorPath != nil {
			served.Selector = *v.Subresources.Scale.LabelSelectorPath
		}
	}
	served.Kind, served.Namespaced = crd.Spec.Names.Kind, crd.Spec.Scope == apiextensionsv1.NamespaceScoped
	return served
}

// modules returns the directories of the modules, which the go command downloads if they are not there.
func modules(t *testing.T, root string, presets map[string]*preset) map[string]string {
	t.Helper()
	dirs := map[string]string{"": "testdata"}
	args := []string{"mod", "download", "-json"}
	for _, p := range presets {
		if p.Module != "" {
			args = append(args, p.Module)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = filepath.Join(root, "hack", "kinds"), t.Output()
	out, err := cmd.Output()
	must(t, err)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var module struct{ Path, Dir string }
		must(t, d.Decode(&module))
		dirs[module.Path] = module.Dir
	}
	return dirs
}

// definition reads the CRD with a name. Conversions are left out: the tests read one version, and run no webhook.
func definition(t *testing.T, file, name string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	for _, o := range read(t, file) {
		if o.GetName() == name {
			crd := &apiextensionsv1.CustomResourceDefinition{}
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, crd))
			crd.Spec.Conversion = nil
			return crd
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return nil
}

func read(t *testing.T, file string) (objects []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	for d := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 1<<20); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(o); err != nil {
			if len(objects) == 0 {
				t.Fatalf("%s: %v", file, err)
			}
			return objects
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", t.Name(), err))
	}
}
