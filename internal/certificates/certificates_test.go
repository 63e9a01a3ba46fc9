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
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/internal/options"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
	hooks "github.com/traas-stack/altershield-operator/webhooks"
)

const unitValidity = 90 * 24 * time.Hour

// sharing is a cluster that replicas share.
type sharing struct {
	t      *testing.T
	client client.WithWatch
	clock  *testclock.FakeClock
}

func newCluster(t *testing.T, namespace *wrappers.NamespaceWrapper) *sharing {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &sharing{t: t, clock: testclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	objects := []client.Object{namespace.UID("u").Obj()}
	for _, configuration := range c.replica(nil, true).wanted {
		objects = append(objects, configuration.Create(nil))
	}
	c.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	return c
}

// replica returns a new replica with a client.
func (c *sharing) replica(through client.Client, leads bool) *Certificates {
	c.t.Helper()
	r, err := New(Options{
		Configurations: hooks.Configurations(workload.Defended()),
		Certificates: options.Certificates{
			Namespace: ours, Secret: secretName, Service: service, Mutating: mutating, Validating: validating, Validity: unitValidity,
		},
		AuthorityValidity: 4 * unitValidity, Clock: c.clock, Log: logr.Discard(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	r.client = through
	elected := make(chan struct{})
	if leads {
		close(elected)
	}
	r.elected = elected
	return r
}

func (c *sharing) configuration(kind string) *unstructured.Unstructured {
	c.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind})
	name := mutating
	if kind == "ValidatingWebhookConfiguration" {
		name = validating
	}
	if err := c.client.Get(context.Background(), types.NamespacedName{Name: name}, u); err != nil {
		c.t.Fatal(err)
	}
	return u
}

func (c *sharing) bundles() [][]byte {
	return append(Bundles(c.configuration("MutatingWebhookConfiguration")), Bundles(c.configuration("ValidatingWebhookConfiguration"))...)
}

func (c *sharing) secret() *corev1.Secret {
	c.t.Helper()
	secret := &corev1.Secret{}
	if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: ours, Name: secretName}, secret); err != nil {
		c.t.Fatal(err)
	}
	return secret
}

// covered checks that every webhook carries the authority of each replica.
func (c *sharing) covered(replicas ...*Certificates) {
	c.t.Helper()
	for _, r := range replicas {
		for _, bundle := range c.bundles() {
			if !strings.Contains(string(bundle), string(pki.EncodeCertificate(r.made.serving.Load().Root))) {
				c.t.Fatalf("a webhook does not carry %s", r.made.serving.Load().Root.Subject.CommonName)
			}
		}
	}
}

var errCrash = errors.New("crashed")

// crashing returns a client that fails from its nth write on, before or after that write is done.
func crashing(through client.WithWatch, n int, after bool) (client.Client, func() bool) {
	writes, crashed := 0, false
	around := func(write func() error) error {
		if crashed {
			return errCrash
		}
		writes++
		if crashed = writes == n; !crashed {
			return write()
		}
		if after {
			if err := write(); err != nil {
				return err
			}
		}
		return errCrash
	}
	return interceptor.NewClient(through, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return around(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return around(func() error { return c.Update(ctx, o, opts...) })
		},
	}), func() bool { return crashed }
}

// TestCrashBetweenWrites plays the start and the first succession with a crash at every write. Another replica
// continues to serve its certificate.
func TestCrashBetweenWrites(t *testing.T) {
	ctx := context.Background()
	for _, after := range []bool{false, true} {
		for n := 1; ; n++ {
			c := newCluster(t, wrappers.MakeNamespace(ours))
			through, crashed := crashing(c.client, n, after)
			r, other := c.replica(through, true), (*Certificates)(nil)
			round := func() {
				r.round(ctx)
				if crashed() {
					r = c.replica(c.client, true)
					r.round(ctx)
				}
				if other != nil && c.clock.Now().Before(other.made.serving.Load().NotAfter()) {
					c.covered(other)
				}
			}
			round()
			round()
			other = c.replica(c.client, false)
			other.round(ctx)
			first := r.made.serving.Load().Root
			c.covered(r, other)

			// The authority is valid for four validities of a certificate. Its successor is made when three are left.
			for range 7 {
				c.clock.Step(unitValidity / 4)
				round()
				c.clock.Step(r.made.policy.Settle())
				round()
			}
			if r.made.serving.Load().Root.Equal(first) {
				t.Fatalf("crash at write %d (after it: %t): no succession", n, after)
			}
			other.round(ctx)
			c.covered(r, other)
			if !crashed() {
				if n < 8 {
					t.Errorf("only %d writes", n-1)
				}
				break
			}
			if n > 60 {
				t.Fatal("too many writes")
			}
		}
	}
}

func TestStaleReplicaDoesNotNarrow(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t, wrappers.MakeNamespace(ours))
	r := c.replica(c.client, true)
	r.round(ctx)
	// The stale replica read the configurations and the Secret before the Secret changed.
	stale := c.replica(c.client, true)
	all, read, err := stale.made.load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	secret := c.secret()
	delete(secret.Data, CAKey)
	if err := c.client.Update(ctx, secret); err != nil {
		t.Fatal(err)
	}
	r.round(ctx)
	newer := c.bundles()[0]
	if got := len(pki.ParseCertificates(newer)); got != 2 {
		t.Fatalf("%d authorities", got)
	}
	old := read.Data[BundleKey]
	for _, configuration := range all {
		if err := stale.made.inject(ctx, configuration, append(old, '\n'), c.clock.Now()); !apierrors.IsConflict(err) {
			t.Errorf("an outdated bundle was written: %v", err)
		}
	}
	if diff := cmp.Diff(newer, c.bundles()[0]); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyTheLeaderRestores(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t, wrappers.MakeNamespace(ours))
	follower, leader := c.replica(c.client, false), c.replica(c.client, true)
	altered := c.configuration("ValidatingWebhookConfiguration")
	hooks, _, _ := unstructured.NestedSlice(altered.Object, "webhooks")
	hook, _ := hooks[0].(map[string]any)
	hook["timeoutSeconds"] = int64(30)
	if err := unstructured.SetNestedSlice(altered.Object, hooks, "webhooks"); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Update(ctx, altered); err != nil {
		t.Fatal(err)
	}
	timeout := func() any {
		hooks, _, _ := unstructured.NestedSlice(c.configuration("ValidatingWebhookConfiguration").Object, "webhooks")
		hook, _ := hooks[0].(map[string]any)
		return hook["timeoutSeconds"]
	}
	follower.round(ctx)
	c.covered(follower)
	if timeout() != int64(30) {
		t.Error("a follower restored the timeout")
	}
	follower.round(ctx)
	if err := follower.made.ready(nil); err != nil {
		t.Error(err)
	}
	leader.round(ctx)
	if timeout() != int64(3) {
		t.Errorf("the timeout is %v", timeout())
	}
}

func TestRecreate(t *testing.T) {
	ctx := context.Background()
	for name, test := range map[string]struct {
		follower bool
		going    bool
		after    time.Duration
		want     bool
	}{
		"at once":                {after: time.Second},
		"after a while":          {after: recreateAfter, want: true},
		"not by a follower":      {after: recreateAfter, follower: true},
		"not while uninstalling": {after: recreateAfter, going: true},
	} {
		t.Run(name, func(t *testing.T) {
			ns := wrappers.MakeNamespace(ours)
			if test.going {
				ns.Deleted(time.Now()).Finalizers("kubernetes")
			}
			c := newCluster(t, ns)
			r := c.replica(c.client, !test.follower)
			r.round(ctx)
			gone := c.configuration("ValidatingWebhookConfiguration")
			if err := c.client.Delete(ctx, gone); err != nil {
				t.Fatal(err)
			}
			r.round(ctx)
			c.clock.Step(test.after)
			r.round(ctx)
			again := gone.DeepCopy()
			err := c.client.Get(ctx, client.ObjectKeyFromObject(gone), again)
			if client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			if got := err == nil; got != test.want {
				t.Fatalf("recreated: %t", got)
			}
			if !test.want {
				return
			}
			c.covered(r)
			if owners := again.GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "Namespace" || owners[0].UID != "u" {
				t.Errorf("owners are %v", owners)
			}
		})
	}
}

func TestReady(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t, wrappers.MakeNamespace(ours))
	var forbidden bool
	through := interceptor.NewClient(c.client, interceptor.Funcs{
		Get: func(ctx context.Context, reader client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if forbidden && o.GetObjectKind().GroupVersionKind().Group == "admissionregistration.k8s.io" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "webhookconfigurations"}, key.Name, nil)
			}
			return reader.Get(ctx, key, o, opts...)
		},
	})
	r := c.replica(through, true)
	var expires []time.Time
	r.o.OnServe = func(notAfter time.Time) { expires = append(expires, notAfter) }
	unready := func(why string) {
		t.Helper()
		if err := r.made.ready(nil); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("ready: %v, want %q", err, why)
		}
	}
	get := r.GetCertificate()
	if _, err := get(nil); err == nil {
		t.Error("handshakes begin too early")
	}
	unready("no certificate")

	forbidden = true
	r.round(ctx)
	unready("do not have")
	if certificate, err := get(nil); err != nil || certificate.Leaf == nil {
		t.Errorf("nothing is served while configurations cannot be read: %v", err)
	}
	forbidden = false
	r.round(ctx) // injects
	unready("do not have")
	if again := r.round(ctx); again != r.lookEvery() {
		t.Errorf("looks again after %s", again)
	}
	if err := r.made.ready(nil); err != nil {
		t.Error(err)
	}
	if len(expires) != 1 || !expires[0].Equal(c.clock.Now().Add(unitValidity)) {
		t.Errorf("OnServe was called with %v", expires)
	}

	// A replica that cannot read the configurations stays ready, and renews its certificate.
	forbidden = true
	r.round(ctx)
	if err := r.made.ready(nil); err != nil {
		t.Error(err)
	}
	c.clock.Step(unitValidity * 3 / 4)
	r.round(ctx)
	if left := r.made.serving.Load().NotAfter().Sub(c.clock.Now()); left != unitValidity {
		t.Errorf("the certificate has %s left", left)
	}
	c.covered(r)
	c.clock.Step(unitValidity)
	unready("expired")
}

// TestQuarrel lets another program undo each write of the bundle.
func TestQuarrel(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t, wrappers.MakeNamespace(ours))
	writes := 0
	through := interceptor.NewClient(c.client, interceptor.Funcs{
		Update: func(ctx context.Context, writer client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if _, ok := o.(*unstructured.Unstructured); ok {
				writes++
				return nil // The other program undid it.
			}
			return writer.Update(ctx, o, opts...)
		},
	})
	r := c.replica(through, true)
	for range 600 { // a minute
		r.round(ctx)
		c.clock.Step(100 * time.Millisecond)
	}
	if writes > 2*(writesAtOnce+13) { // of two configurations
		t.Errorf("%d writes in a minute", writes)
	}
	// Certificates are renewed nevertheless.
	c.clock.Step(unitValidity * 2 / 3)
	r.round(ctx)
	if left := r.made.serving.Load().NotAfter().Sub(c.clock.Now()); left < unitValidity/2 {
		t.Errorf("the certificate has %s left", left)
	}
}

// TestAdopt makes the namespace an owner of configurations from manifests, by one write of the leader.
func TestAdopt(t *testing.T) {
	ctx := context.Background()
	former := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: ours, UID: "former"}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "theirs", UID: "o"}
	namespace := metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: ours, UID: "u"}
	for name, test := range map[string]struct {
		follower, guarded, noNamespace, unreadable bool
		has, want                                  []metav1.OwnerReference
	}{
		"none":           {want: []metav1.OwnerReference{namespace}},
		"others":         {has: []metav1.OwnerReference{former, other}, want: []metav1.OwnerReference{namespace, other}},
		"by a follower":  {follower: true},
		"owners guarded": {guarded: true},
		"no namespace":   {noNamespace: true},
		"unreadable":     {unreadable: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, wrappers.MakeNamespace(ours))
			live := c.configuration("ValidatingWebhookConfiguration")
			live.SetOwnerReferences(test.has)
			if err := c.client.Update(ctx, live); err != nil {
				t.Fatal(err)
			}
			if test.noNamespace {
				if err := c.client.Delete(ctx, wrappers.MakeNamespace(ours).Obj()); err != nil {
					t.Fatal(err)
				}
			}
			writes, refused := 0, 0
			through := interceptor.NewClient(c.client, interceptor.Funcs{
				Get: func(ctx context.Context, reader client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if test.unreadable && o.GetObjectKind().GroupVersionKind().Kind == "Namespace" {
						return errCrash
					}
					return reader.Get(ctx, key, o, opts...)
				},
				Update: func(ctx context.Context, writer client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					if test.guarded && len(o.GetOwnerReferences()) > 0 {
						refused++
						return apierrors.NewForbidden(schema.GroupResource{}, o.GetName(),
							errors.New("cannot set an ownerRef on a resource you can't delete"))
					}
					writes++
					return writer.Update(ctx, o, opts...)
				},
			})
			r := c.replica(through, !test.follower)
			for range 5 {
				r.round(ctx)
			}
			c.covered(r)
			if writes != 2 {
				t.Errorf("%d writes of two configurations", writes)
			}
			if got := c.configuration("ValidatingWebhookConfiguration").GetOwnerReferences(); !cmp.Equal(test.want, got) {
				t.Errorf("owners are %v", got)
			}
			if !test.guarded {
				return
			}
			if refused != 1 {
				t.Errorf("refused %d times", refused)
			}
			// Once the manager has the right, it adopts.
			test.guarded = false
			c.clock.Step(adoptAgain)
			r.round(ctx)
			if got := c.configuration("MutatingWebhookConfiguration").GetOwnerReferences(); !cmp.Equal([]metav1.OwnerReference{namespace}, got) {
				t.Errorf("owners are %v", got)
			}
		})
	}
}
