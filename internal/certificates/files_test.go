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
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/internal/options"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
	hooks "github.com/traas-stack/altershield-operator/webhooks"
)

const (
	injector = "cert-manager.io/inject-ca-from"
	carried  = "aW5qZWN0ZWQ="
)

// writeCertificate writes a certificate and its key to a directory, as a Secret is mounted.
func writeCertificate(t *testing.T, dir string, now time.Time, validity time.Duration) {
	t.Helper()
	ca, err := pki.NewCA("elsewhere", now, 2*validity)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.IssueServer("hooks", []string{"hooks.svc"}, now, validity)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"tls.crt": server.CertPEM, "tls.key": server.KeyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// fromFiles returns a replica that serves a certificate from files, and counts its writes.
func (c *sharing) fromFiles(leads bool, change func(*Options)) (r *Certificates, writes *int) {
	c.t.Helper()
	dir := c.t.TempDir()
	writeCertificate(c.t, dir, c.clock.Now(), unitValidity)
	o := Options{
		Configurations: hooks.Configurations(workload.Defended()),
		Certificates: options.Certificates{
			Dir: dir, CertName: "tls.crt", KeyName: "tls.key", Namespace: ours, Service: service, Mutating: mutating, Validating: validating,
		},
		Clock: c.clock, Log: funcr.New(func(_, line string) { c.t.Log(line) }, funcr.Options{}),
	}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		c.t.Fatal(err)
	}
	writes = new(int)
	r.client = interceptor.NewClient(c.client, interceptor.Funcs{
		Create: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			*writes++
			return w.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, w client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			*writes++
			return w.Update(ctx, o, opts...)
		},
	})
	elected := make(chan struct{})
	if leads {
		close(elected)
	}
	r.elected = elected
	return r, writes
}

// change changes the webhooks of a configuration, and its other fields.
func (c *sharing) change(kind string, hooks func([]any) []any, rest func(*unstructured.Unstructured)) {
	c.t.Helper()
	u := c.configuration(kind)
	list, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
	if hooks != nil {
		if err := unstructured.SetNestedSlice(u.Object, hooks(list), "webhooks"); err != nil {
			c.t.Fatal(err)
		}
	}
	if rest != nil {
		rest(u)
	}
	if err := c.client.Update(context.Background(), u); err != nil {
		c.t.Fatal(err)
	}
}

// each returns a function that sets a field of every webhook.
func each(path []string, value any) func([]any) []any {
	return func(list []any) []any {
		for _, item := range list {
			if hook, ok := item.(map[string]any); ok {
				_ = unstructured.SetNestedField(hook, value, path...)
			}
		}
		return list
	}
}

var kinds = []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}

// injects writes an authority into the configurations, and annotations that may name its injector.
func (c *sharing) injects(annotations map[string]string) {
	for _, kind := range kinds {
		c.change(kind, each([]string{"clientConfig", "caBundle"}, carried), func(u *unstructured.Unstructured) { u.SetAnnotations(annotations) })
	}
}

// content returns a configuration without its resource version and its owners.
func content(u *unstructured.Unstructured) map[string]any {
	u = u.DeepCopy()
	u.SetResourceVersion("")
	u.SetOwnerReferences(nil)
	return u.Object
}

func TestRestoreFromFiles(t *testing.T) {
	ctx := context.Background()
	const kind = "ValidatingWebhookConfiguration"
	annotations := map[string]string{injector: "ours/cert", "team": "kept"}
	for name, test := range map[string]struct {
		own    bool
		hooks  func([]any) []any
		follow bool
		kept   bool
		// wantBundle is the bundle of all webhooks if it is not their present one.
		wantBundle *string
	}{
		"nothing":                     {hooks: func(list []any) []any { return list }},
		"failure policy":              {hooks: each([]string{"failurePolicy"}, "Ignore")},
		"timeout":                     {hooks: each([]string{"timeoutSeconds"}, int64(30)), own: true},
		"a webhook removed":           {hooks: func(list []any) []any { return list[1:] }, own: true},
		"all removed":                 {hooks: func([]any) []any { return nil }, wantBundle: new(string)},
		"all removed, no one injects": {hooks: func([]any) []any { return nil }, own: true, kept: true},
		"a bundle":                    {hooks: each([]string{"clientConfig", "caBundle"}, "b3RoZXI="), kept: true},
		"by a follower":               {hooks: each([]string{"failurePolicy"}, "Ignore"), follow: true, kept: true},
		"calls a URL": {
			hooks: each([]string{"clientConfig"}, map[string]any{"url": "https://127.0.0.1:9443/x", "caBundle": carried}), kept: true,
		},
		"calls a URL, and more altered": {
			hooks: func(list []any) []any { return each([]string{"failurePolicy"}, "Ignore")(byURL(list)) }, kept: true,
		},
		"one calls a URL": {hooks: func(list []any) []any { byURL(list[:1]); return list }, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, wrappers.MakeNamespace(ours))
			if test.own {
				c.injects(map[string]string{"team": "kept"})
			} else {
				c.injects(annotations)
			}
			good := c.configuration(kind)
			c.change(kind, test.hooks, nil)
			altered := c.configuration(kind)
			r, writes := c.fromFiles(!test.follow, nil)
			for range 3 {
				r.round(ctx)
			}
			want := content(good)
			if test.kept {
				want = content(altered)
			}
			if test.wantBundle != nil {
				hooks, _, _ := unstructured.NestedSlice(want, "webhooks")
				for _, item := range hooks {
					hook, _ := item.(map[string]any)
					unstructured.RemoveNestedField(hook, "clientConfig", "caBundle")
				}
				want["webhooks"] = hooks
			}
			got := c.configuration(kind)
			if diff := cmp.Diff(want, content(got)); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
			_, local, _ := unstructured.NestedString(firstHook(altered), "clientConfig", "url")
			owners, wantWrites := 1, 2 // The other configuration is adopted, too.
			switch {
			case local || test.follow:
				owners, wantWrites = 0, 0
			case test.kept && test.own:
				owners, wantWrites = 0, 1
			}
			if *writes != wantWrites {
				t.Errorf("%d writes, want %d", *writes, wantWrites)
			}
			if got := got.GetOwnerReferences(); len(got) != owners {
				t.Errorf("owners are %v", got)
			}
			secrets := &corev1.SecretList{}
			if err := c.client.List(ctx, secrets); err != nil || len(secrets.Items) > 0 {
				t.Errorf("the Secret was written: %d, %v", len(secrets.Items), err)
			}
		})
	}
}

func byURL(list []any) []any {
	return each([]string{"clientConfig"}, map[string]any{"url": "https://127.0.0.1:9443/x", "caBundle": carried})(list)
}

func firstHook(u *unstructured.Unstructured) map[string]any {
	list, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
	if len(list) == 0 {
		return nil
	}
	hook, _ := list[0].(map[string]any)
	return hook
}

func TestRecreateFromFiles(t *testing.T) {
	ctx := context.Background()
	const kind = "ValidatingWebhookConfiguration"
	for name, test := range map[string]struct {
		annotations map[string]string
		unseen      bool
		otherByURL  bool
		want        bool
	}{
		"injected by cert-manager":     {annotations: map[string]string{injector: "ours/cert", "team": "x"}, want: true},
		"no known injector":            {annotations: map[string]string{"team": "x"}},
		"gone before this one began":   {annotations: map[string]string{injector: "ours/cert"}, unseen: true},
		"the other is being developed": {annotations: map[string]string{injector: "ours/cert"}, otherByURL: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, wrappers.MakeNamespace(ours))
			c.injects(test.annotations)
			r, _ := c.fromFiles(true, nil)
			if !test.unseen {
				r.round(ctx)
			}
			gone := c.configuration(kind)
			if err := c.client.Delete(ctx, gone); err != nil {
				t.Fatal(err)
			}
			if test.otherByURL {
				c.change("MutatingWebhookConfiguration", byURL, nil)
			}
			again := gone.DeepCopy()
			there := func() bool {
				t.Helper()
				err := c.client.Get(ctx, client.ObjectKeyFromObject(gone), again)
				if client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
				return !apierrors.IsNotFound(err)
			}
			r.round(ctx)
			c.clock.Step(recreateAfter - time.Second)
			r.round(ctx)
			if there() {
				t.Fatal("recreated at once")
			}
			c.clock.Step(time.Second)
			r.round(ctx)
			r.round(ctx)
			if got := there(); got != test.want {
				t.Fatalf("recreated: %t", got)
			}
			if !test.want {
				return
			}
			if diff := cmp.Diff(map[string]string{injector: "ours/cert"}, again.GetAnnotations()); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if _, has, _ := unstructured.NestedFieldNoCopy(firstHook(again), "clientConfig", "caBundle"); has {
				t.Error("it carries a bundle")
			}
			want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: ours, UID: "u"}}
			if got := again.GetOwnerReferences(); !cmp.Equal(got, want) {
				t.Errorf("owners are %v", got)
			}
		})
	}
}

// TestExpiryFromFiles reads the files periodically, and ignores a certificate without its key.
func TestExpiryFromFiles(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t, wrappers.MakeNamespace(ours))
	var expires []time.Time
	r, _ := c.fromFiles(false, func(o *Options) { o.OnServe = func(notAfter time.Time) { expires = append(expires, notAfter) } })
	first := c.clock.Now().Add(unitValidity)
	if again := r.round(ctx); again != r.lookEvery() {
		t.Errorf("looks again after %s", again)
	}
	r.round(ctx)
	key := filepath.Join(r.o.Dir, "tls.key")
	good, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	c.clock.Step(unitValidity / 2)
	writeCertificate(t, r.o.Dir, c.clock.Now(), unitValidity)
	newer, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range [][]byte{good, nil, newer} { // A new certificate without its key is ignored.
		if err := os.WriteFile(key, k, 0o600); err != nil {
			t.Fatal(err)
		}
		r.round(ctx)
		if want := []time.Time{first}; string(k) != string(newer) && !cmp.Equal(want, expires) {
			t.Fatalf("OnServe was called with %v", expires)
		}
	}
	if want := []time.Time{first, first.Add(unitValidity / 2)}; !cmp.Equal(want, expires) {
		t.Errorf("OnServe was called with %v, want %v", expires, want)
	}
}

func TestServedFromFiles(t *testing.T) {
	r, err := New(Options{Certificates: options.Certificates{Dir: "somewhere"}})
	if err != nil || r.GetCertificate() != nil {
		t.Error("the webhook server does not read its files by itself")
	}
}
