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

package certificates

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	declaredMutating   = "altershieldoperator-declared-mutating"
	declaredValidating = "altershieldoperator-declared-validating"
)

// declare returns an accepted kind.
func declare(t testing.TB, name, kind string, generation int64, spec string) *declared.Kind {
	t.Helper()
	c := &v1alpha1.ChangeKind{}
	c.Name, c.Generation = name, generation
	if err := yaml.UnmarshalStrict([]byte(spec), &c.Spec); err != nil {
		t.Fatal(err)
	}
	k, problem := declared.Accept(c, declared.Served{Kind: kind, Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	return k
}

// widgets is the small kind of the tests in a generation.
func widgets(t testing.TB, generation int64) *declared.Kind {
	return declare(t, "widgets.example.com", "Widget", generation, "version: v1\nenrolment: Label\ncontent: [{path: spec.part}]")
}

// installDeclared creates the configurations of declared kinds as the manifests do.
func (c *sharing) installDeclared() {
	c.t.Helper()
	for _, configuration := range c.replica(nil, true).declared {
		if err := c.client.Create(context.Background(), configuration.Create(nil)); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *sharing) declared(kind, name string) *unstructured.Unstructured {
	c.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind})
	if err := c.client.Get(context.Background(), types.NamespacedName{Name: name}, u); err != nil {
		c.t.Fatal(err)
	}
	return u
}

// paths returns the paths of the webhooks of declared kinds, as path or URL, and checks that each has an authority.
func (c *sharing) paths() (paths []string) {
	c.t.Helper()
	for _, u := range []*unstructured.Unstructured{
		c.declared("MutatingWebhookConfiguration", declaredMutating), c.declared("ValidatingWebhookConfiguration", declaredValidating),
	} {
		for _, hook := range webhooks(u) {
			path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
			url, _, _ := unstructured.NestedString(hook, "clientConfig", "url")
			if paths = append(paths, path+url); bundleOf(hook) == nil {
				c.t.Errorf("%s has no authority", path+url)
			}
		}
	}
	return paths
}

// of returns the paths of the webhooks of a kind.
func of(kinds ...*declared.Kind) (paths []string) {
	for _, does := range []string{"mutate", "quarantine", "validate", "policy"} {
		for _, k := range kinds {
			paths = append(paths, k.PathOf(does))
		}
	}
	return paths
}

func TestDeclaredConfigurations(t *testing.T) {
	target := Target{Namespace: ours, Service: service, Port: 443}
	kinds := []*declared.Kind{
		widgets(t, 1), declare(t, "gadgets.example.com", "Gadget", 1, "version: v1\nadmission: Observe"),
		declare(t, "doodads.example.com", "Doodad", 1, "version: v1"),
	}
	all, err := NewConfigurations(Declared(kinds), declaredMutating, declaredValidating, target)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2, 6} {
		hooks := webhooks(all[i].template)
		if len(hooks) != want {
			t.Fatalf("%d webhooks, want %d", len(hooks), want)
		}
		for _, hook := range hooks {
			rule, _ := hook["rules"].([]any)[0].(map[string]any)
			name, _ := hook["name"].(string)
			selector, _, _ := unstructured.NestedSlice(hook, "objectSelector", "matchExpressions")
			if labelled := len(selector) == 1; rule["scope"] != "Namespaced" || labelled != strings.Contains(name, "widget") {
				t.Errorf("%s: scope %v, object selector %v", name, rule["scope"], hook["objectSelector"])
			}
			namespaces, err := selectorOf(hook)
			if err != nil || len(namespaces.MatchExpressions) != 1 || namespaces.MatchLabels[v1alpha1.EnrolledLabel] == "" {
				t.Errorf("%s: namespaces %v, %v", name, namespaces, err)
			}
		}
		if name, _ := hooks[0]["name"].(string); !strings.Contains(name, "doodad") {
			t.Errorf("the first webhook is %s: the order depends on the order of the kinds", name)
		}
	}
}

// TestWriteDeclared: the leader writes the webhooks of declared kinds, and restores them; other replicas only keep their
// authority.
func TestWriteDeclared(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t, wrappers.MakeNamespace(ours))
	c.installDeclared()
	leader, other := c.replica(c.client, true), c.replica(c.client, false)
	w := widgets(t, 1)
	if err := leader.Write(ctx, []*declared.Kind{w}); err != nil {
		t.Fatal(err)
	}
	if got := c.paths(); !slices.Equal(got, of(w)) {
		t.Fatalf("%q, want %q", got, of(w))
	}
	wanted := content(c.declared("ValidatingWebhookConfiguration", declaredValidating))
	if owners := c.declared("ValidatingWebhookConfiguration", declaredValidating).GetOwnerReferences(); len(owners) != 1 {
		t.Errorf("owners %v: the configuration would outlive the namespace", owners)
	}

	u := c.declared("ValidatingWebhookConfiguration", declaredValidating)
	for _, hook := range webhooks(u) {
		hook["objectSelector"] = map[string]any{"matchLabels": map[string]any{"a": "b"}}
		hook["failurePolicy"] = "Ignore"
		unstructured.RemoveNestedField(hook, "clientConfig", "caBundle")
	}
	if err := c.client.Update(ctx, u); err != nil {
		t.Fatal(err)
	}
	other.round(ctx)
	hooks := webhooks(c.declared("ValidatingWebhookConfiguration", declaredValidating))
	if hooks[0]["failurePolicy"] != "Ignore" || bundleOf(hooks[0]) == nil {
		t.Errorf("another replica: %v", hooks[0])
	}
	leader.round(ctx)
	if got := content(c.declared("ValidatingWebhookConfiguration", declaredValidating)); cmp.Diff(wanted, got) != "" {
		t.Errorf("the leader did not restore: %s", cmp.Diff(wanted, got))
	}
	writes := c.declared("ValidatingWebhookConfiguration", declaredValidating).GetResourceVersion()
	leader.round(ctx)
	other.round(ctx)
	if c.declared("ValidatingWebhookConfiguration", declaredValidating).GetResourceVersion() != writes {
		t.Error("a write at rest")
	}

	if err := leader.Write(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if got := c.paths(); len(got) > 0 {
		t.Errorf("%q stay after the last kind is gone", got)
	}
	leader.round(ctx)
	if got := len(c.bundles()); got == 0 {
		t.Error("the other webhooks are gone")
	}
}

// TestDeclaredSuccession kills the leader at each write, before and after it, while its registry has the second generation and
// the configurations may still have the first: API servers then call a path that no replica knows, and releases of blocked
// objects are denied. The next leader ends this at its start, by its kinds alone.
func TestDeclaredSuccession(t *testing.T) {
	ctx := context.Background()
	for name, next := range map[string][]*declared.Kind{"edited": {widgets(t, 2)}, "deleted": nil} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []bool{false, true} {
				for n, crashed := 1, true; crashed; n++ {
					c := newCluster(t, wrappers.MakeNamespace(ours))
					c.installDeclared()
					if err := c.replica(c.client, true).Write(ctx, []*declared.Kind{widgets(t, 1)}); err != nil {
						t.Fatal(err)
					}
					through, hasCrashed := crashing(c.client, n, after)
					err := c.replica(through, true).Write(ctx, next)
					if crashed = hasCrashed(); crashed == (err == nil) {
						t.Fatalf("crash at write %d: %t, and the result is %v", n, crashed, err)
					}
					successor := c.replica(c.client, true)
					successor.round(ctx) // before the declarations are read, nothing is lost
					if got := c.paths(); len(got) == 0 && next != nil {
						t.Fatal("webhooks were dropped before the declarations are known")
					}
					if err := successor.Write(ctx, next); err != nil {
						t.Fatal(err)
					}
					if got := c.paths(); !slices.Equal(got, of(next...)) {
						t.Errorf("crash at write %d (after it: %t): %q, want %q", n, after, got, of(next...))
					}
					if n > 10 {
						t.Fatal("too many writes")
					}
				}
			}
		})
	}
}

// TestDeclaredIsNotInstalled: with the manifests or roles of an older version, the other webhooks are maintained, and only
// declared kinds miss their webhooks.
func TestDeclaredIsNotInstalled(t *testing.T) {
	ctx := context.Background()
	forbidden := func(c *sharing) client.Client {
		return interceptor.NewClient(c.client, interceptor.Funcs{
			Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if strings.Contains(key.Name, "-declared-") {
					return apierrors.NewForbidden(schema.GroupResource{}, key.Name, nil)
				}
				return w.Get(ctx, key, o, opts...)
			},
		})
	}
	for name, through := range map[string]func(*sharing) client.Client{
		"missing": func(c *sharing) client.Client { return c.client }, "forbidden": forbidden,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, wrappers.MakeNamespace(ours))
			r := c.replica(through(c), true)
			if err := r.Write(ctx, nil); err != nil {
				t.Errorf("without declared kinds: %v", err)
			}
			err := r.Write(ctx, []*declared.Kind{widgets(t, 1)})
			if err == nil || !strings.Contains(err.Error(), declaredMutating+" is missing") {
				t.Errorf("%v", err)
			}
			r.round(ctx)
			c.covered(r)
			if err := r.made.ready(nil); err != nil {
				t.Error(err)
			}
			if missing := r.lasting(); len(missing) > 0 {
				t.Errorf("%q are reported on the setting blocking", missing)
			}
		})
	}
}

// TestDeclaredFromFiles: if another program owns the bundles, declared kinds get the bundle of the other webhooks, and the URL of
// an operator outside of the cluster.
func TestDeclaredFromFiles(t *testing.T) {
	ctx := context.Background()
	w := widgets(t, 1)
	for name, test := range map[string]struct {
		setUp func(*sharing)
		want  string
		err   string
	}{
		"with their bundle": {setUp: func(c *sharing) { c.injects(nil) }},
		"with no bundle":    {err: "authority"},
		"outside": {want: "https://127.0.0.1:9443", setUp: func(c *sharing) {
			c.injects(nil)
			for _, kind := range kinds {
				c.change(kind, func(list []any) []any {
					for _, item := range list {
						hook, _ := item.(map[string]any)
						path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
						hook["clientConfig"] = map[string]any{"url": "https://127.0.0.1:9443" + path, "caBundle": carried}
					}
					return list
				}, nil)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, wrappers.MakeNamespace(ours))
			c.installDeclared()
			if test.setUp != nil {
				test.setUp(c)
			}
			r, _ := c.fromFiles(true, nil)
			err := r.Write(ctx, []*declared.Kind{w})
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || len(c.paths()) > 0 {
					t.Errorf("%v, webhooks %q", err, c.paths())
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for _, path := range of(w) {
				want = append(want, test.want+path)
			}
			if got := c.paths(); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
			// The other program renews its bundle.
			u := c.declared("MutatingWebhookConfiguration", declaredMutating)
			setBundle(webhooks(u)[0], []byte("renewed"))
			if err := c.client.Update(ctx, u); err != nil {
				t.Fatal(err)
			}
			r.round(ctx)
			if got := Bundles(c.declared("MutatingWebhookConfiguration", declaredMutating)); string(got[0]) != "renewed" {
				t.Errorf("the bundle of another program was replaced by %q", got[0])
			}
		})
	}
}
