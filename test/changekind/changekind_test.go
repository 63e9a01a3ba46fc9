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

// Package changekind tests the life of ChangeKinds with a real API server.
package changekind

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/controllers"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	operator = "altershieldoperator-system"
	shop     = "shop"
	user     = "operator"
	gadgets  = "gadgets.example.com"
	patience = 90 * time.Second
)

var gadget = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}

// world is an API server with an operator.
type world struct {
	*testing.T
	admin client.Client
	kinds *workload.Registry
	// cached reads as the operator does.
	cached client.Reader

	mu          sync.Mutex
	intercepted []string
}

// Write implements controllers.Interceptor.
func (w *world) Write(_ context.Context, kinds []*declared.Kind) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.intercepted = nil
	for _, k := range kinds {
		w.intercepted = append(w.intercepted, fmt.Sprintf("%s/%d", k.Name, k.Generation))
	}
	return nil
}

func (w *world) seen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.intercepted, " ")
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// until waits for a state.
func (w *world) until(what string, is func() (bool, any)) {
	w.Helper()
	end := time.Now().Add(patience)
	for {
		ok, got := is()
		if ok {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("timed out: %s: %v", what, got)
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // between two reads of a real API server
	}
}

func newWorld(t *testing.T) *world {
	root, err := controlplane.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: controlplane.BinDir(root), CRDDirectoryPaths: []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	env.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "RBAC")
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := env.Start(); err != nil {
		t.Fatalf("run make controlplane: %v", err)
	}
	env.Config.QPS = -1
	w := &world{T: t, kinds: workload.Defended()}
	w.admin, err = client.New(env.Config, client.Options{Scheme: controllers.NewScheme()})
	w.must(err)
	w.must(w.admin.Create(t.Context(), wrappers.MakeNamespace(operator).Obj()))
	w.must(w.admin.Create(t.Context(), wrappers.MakeNamespace(shop).Enrolled().Obj()))
	account, err := env.AddUser(envtest.User{Name: user}, nil)
	w.must(err)
	w.installRoles(filepath.Join(root, "config", "rbac", "role.yaml"))
	w.start(account.Config())
	return w
}

var subjects = []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}}

// installRoles binds the operator to its generated roles.
func (w *world) installRoles(path string) {
	data, err := os.ReadFile(path)
	w.must(err)
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		o := &unstructured.Unstructured{}
		w.must(yaml.Unmarshal(document, &o.Object))
		w.must(w.admin.Create(w.Context(), o))
		binding := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": rbacv1.SchemeGroupVersion.String(), "kind": o.GetKind() + "Binding",
			"metadata": map[string]any{"name": o.GetName()},
			"roleRef":  map[string]any{"apiGroup": rbacv1.GroupName, "kind": o.GetKind(), "name": o.GetName()},
			"subjects": []any{map[string]any{"kind": rbacv1.UserKind, "apiGroup": rbacv1.GroupName, "name": user}},
		}}
		binding.SetNamespace(o.GetNamespace())
		w.must(w.admin.Create(w.Context(), binding))
	}
}

// start starts the operator, without webhooks.
func (w *world) start(as *rest.Config) {
	as.QPS = -1
	ctx, cancel := context.WithCancel(w.Context())
	h := hub.New(ctx, w.kinds)
	mgr, err := ctrl.NewManager(as, ctrl.Options{
		Scheme: controllers.NewScheme(), Cache: controllers.CacheOptions(w.kinds, operator), Client: controllers.ClientOptions(),
		NewClient: h.NewClient, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	w.must(err)
	h.Open = hub.Caches(mgr.GetConfig(), cache.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	c := cluster.New(mgr, cluster.Options{Namespace: operator, Clock: clock.RealClock{}, Kinds: w.kinds, Hub: h})
	guard := checks.NewGuard(as.Host)
	w.must(controllers.Setup(ctx, mgr, c, controllers.Options{
		Guard: guard, Clients: endpoint.NewClients(c.Live, c.Clock, endpoint.Guarded(endpoint.Guard(guard))), Interceptor: w,
	}))
	w.cached = c.Cached
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.Error(err)
		}
	})
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		w.Fatal("the caches are not filled")
	}
}

// crd returns the kind of gadgets, with these versions; a version that begins with - is not served.
func crd(versions ...string) *unstructured.Unstructured {
	var all []any
	for i, v := range versions {
		name, off := strings.CutPrefix(v, "-")
		all = append(all, map[string]any{
			"name": name, "served": !off, "storage": i == 0,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
				"spec": map[string]any{"type": "object", "properties": map[string]any{
					"replicas": map[string]any{"type": "integer"}, "paused": map[string]any{"type": "boolean"}, "image": map[string]any{"type": "string"},
					"template": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				}},
				"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": gadgets},
		"spec": map[string]any{
			"group": gadget.Group, "scope": "Namespaced", "versions": all,
			"names": map[string]any{"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
		},
	}}
}

// declaration returns the ChangeKind of gadgets.
func (w *world) declaration(spec string) *v1alpha1.ChangeKind {
	c := &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: gadgets}}
	w.must(yaml.UnmarshalStrict([]byte(spec), &c.Spec))
	return c
}

const (
	ofTemplate = `{version: v1, content: [{path: spec.template}], replicas: spec.replicas, pods: {current: "true"},
  rollout: {complete: "true", halt: [{path: spec.paused, value: true}]}}`
	ofImage = `{version: v1, content: [{path: spec.image}], replicas: spec.replicas, pods: {current: "true"},
  rollout: {complete: "true", halt: [{path: spec.paused, value: true}]}}`
	withoutHalt = `{version: v1, content: [{path: spec.image}], replicas: spec.replicas, pods: {current: "true"}, rollout: {complete: "true"}}`
	invalid     = `{version: v1, content: [{path: spec.nothing}]}`
)

// edit replaces the spec of the ChangeKind.
func (w *world) edit(spec string) {
	w.Helper()
	want := w.declaration(spec)
	w.until("edit the ChangeKind", func() (bool, any) {
		now := &v1alpha1.ChangeKind{}
		w.must(w.admin.Get(w.Context(), client.ObjectKeyFromObject(want), now))
		now.Spec = want.Spec
		err := w.admin.Update(w.Context(), now)
		return err == nil, err
	})
}

// has waits for conditions of the ChangeKind, as in "Ready=False CacheNotFilled", and returns it.
func (w *world) has(conditions ...string) *v1alpha1.ChangeKind {
	w.Helper()
	c := &v1alpha1.ChangeKind{}
	w.until(strings.Join(conditions, ", "), func() (bool, any) {
		w.must(w.admin.Get(w.Context(), types.NamespacedName{Name: gadgets}, c))
		var got []string
		for _, said := range c.Status.Conditions {
			got = append(got, fmt.Sprintf("%s=%s %s", said.Type, said.Status, said.Reason))
		}
		missing := slices.ContainsFunc(conditions, func(want string) bool { return !slices.Contains(got, want) })
		return !missing && c.Status.ObservedGeneration == c.Generation, fmt.Sprint(got, c.Status)
	})
	return c
}

func message(c *v1alpha1.ChangeKind, condition string) string {
	return meta.FindStatusCondition(c.Status.Conditions, condition).Message
}

// grant gives the operator the permissions for gadgets, as an aggregated ClusterRole would.
func (w *world) grant() { w.grantTo("gadgets") }

func (w *world) grantTo(plural string) {
	w.must(w.admin.Create(w.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: plural}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{gadget.Group}, Resources: []string{plural}, Verbs: []string{"get", "list", "watch", "patch"}},
		{APIGroups: []string{gadget.Group}, Resources: []string{plural + "/finalizers"}, Verbs: []string{"update"}},
	}}))
	w.must(w.admin.Create(w.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: plural}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: plural}}))
}

// create creates a gadget. The API server may serve the kind a moment later.
func (w *world) create(name string, labels, annotations map[string]string, spec map[string]any) {
	w.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(gadget)
	o.SetNamespace(shop)
	o.SetName(name)
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	w.until("create a gadget", func() (bool, any) {
		err := w.admin.Create(w.Context(), o.DeepCopy())
		return err == nil, err
	})
}

// is waits until a gadget is as wanted.
func (w *world) is(what, name string, wanted func(o *unstructured.Unstructured) bool) {
	w.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(gadget)
	w.until(what, func() (bool, any) {
		w.must(w.admin.Get(w.Context(), types.NamespacedName{Namespace: shop, Name: name}, o))
		return wanted(o), o.Object
	})
}

func (w *world) declared() bool {
	_, ok := w.kinds.Of(gadget.GroupKind())
	return ok
}

// TestLife: a ChangeKind that comes before its kind, without permissions, with many objects; edits; a version that is no longer
// served, a CustomResourceDefinition that goes and comes back, and the deletion of the ChangeKind, which resumes objects and
// frees all that the kind needed.
func TestLife(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	if testing.Verbose() {
		ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	} else {
		ctrl.SetLogger(logr.Discard())
	}
	w := newWorld(t)
	w.must(w.admin.Create(t.Context(), w.declaration(ofTemplate)))
	c := w.has("Served=False NotServed", "Accepted=Unknown NotServed", "Ready=False NotDefended")
	if got := message(c, "Served"); !strings.Contains(got, "neither a CustomResourceDefinition gadgets.example.com nor an API") {
		t.Error(got)
	}
	before := goroutines() // all controllers run
	w.must(w.admin.Create(t.Context(), crd("v1", "v2")))
	c = w.has("Served=True Served", "Accepted=True InForce", "Authorized=False PermissionDenied", "Ready=False NotDefended")
	for _, permission := range []string{"get", "list", "watch", "patch"} {
		if got := message(c, "Authorized"); !strings.Contains(got, permission+" gadgets.example.com,") ||
			!strings.Contains(got, "update gadgets.example.com/finalizers.") {
			t.Error(got)
		}
	}
	const many = 1000
	for i := range many {
		w.create(fmt.Sprint("many-", i), nil, nil, map[string]any{"template": map[string]any{"a": "b"}})
	}
	w.grant()
	c = w.has("Authorized=True Authorized", "Intercepted=True Configured", "Ready=True Defended")
	if c.Status.Objects != many || len(c.Finalizers) != 1 || c.Status.ContentHash == "" || w.seen() != gadgets+"/1" {
		t.Errorf("%d objects, finalizers %s, hash %q, webhooks %q", c.Status.Objects, c.Finalizers, c.Status.ContentHash, w.seen())
	}
	w.edits(c.Status.ContentHash)
	w.labelled()
	w.unserved()
	w.uninstalled()
	w.deleted()
	w.deletedWithRole()
	w.until("all goroutines of the kind ended", func() (bool, any) {
		more := goroutines()
		for by, n := range before {
			if more[by] -= n; more[by] <= 0 {
				delete(more, by)
			}
		}
		return len(more) == 0, more
	})
}

// goroutines returns the number of goroutines of caches and of the hub, by their creator.
func goroutines() map[string]int {
	text := make([]byte, 64<<20)
	by := map[string]int{}
	for stack := range strings.SplitSeq(string(text[:runtime.Stack(text, true)]), "\n\n") {
		if _, creator, ok := strings.Cut(stack, "created by "); ok &&
			(strings.Contains(stack, "client-go/tools/cache") || strings.Contains(stack, "/pkg/cache") || strings.Contains(stack, "internal/hub")) {
			creator, _, _ = strings.Cut(creator, " in goroutine")
			by[creator]++
		}
	}
	return by
}

// edits: a generation that is invalid, or strands halted objects, leaves the one before in force; a change of the content makes
// the present content of all objects a baseline.
func (w *world) edits(hash string) {
	// The operator records the release that admission did not see.
	w.create("edited", map[string]string{v1alpha1.VersionLabel: "0123456789abcdef0123456789abcdef"},
		map[string]string{v1alpha1.ReleaseAnnotation: "1"}, map[string]any{"template": map[string]any{"a": "c"}, "image": "b:1"})
	var recorded string
	w.is("the release is recorded", "edited", func(o *unstructured.Unstructured) bool {
		recorded = o.GetLabels()[v1alpha1.VersionLabel]
		return recorded != "0123456789abcdef0123456789abcdef"
	})
	w.edit(invalid)
	c := w.has("Accepted=False Invalid", "Ready=False NotDefended")
	if got := message(c, "Ready"); !strings.Contains(got, "generation 1 is in force") || !w.declared() || w.seen() != gadgets+"/1" {
		w.Errorf("%s; webhooks %q", got, w.seen())
	}
	w.edit(ofImage)
	c = w.has("Accepted=True InForce", "Ready=True Defended")
	if c.Status.ContentHash == hash || w.seen() != gadgets+"/3" {
		w.Errorf("the hash is %q, and was %q; webhooks %q", c.Status.ContentHash, hash, w.seen())
	}
	w.is("a baseline", "edited", func(o *unstructured.Unstructured) bool { return o.GetLabels()[v1alpha1.VersionLabel] == "" })
	var changes v1alpha1.ChangeWorkloadList
	w.must(w.admin.List(w.Context(), &changes, client.InNamespace(shop)))
	for i := range changes.Items {
		if got := changes.Items[i].Spec.Reversion; got != recorded {
			w.Errorf("the change of the declaration is a release of version %s", got)
		}
	}
	w.create("halted", nil, map[string]string{
		v1alpha1.HaltedFromAnnotation: `[{"path":"spec.paused","value":true}]`,
	}, map[string]any{"image": "b:1", "paused": true})
	w.edit(withoutHalt)
	c = w.has("Accepted=False HaltedObjects", "Ready=False NotDefended")
	if got := message(c, "Accepted"); !strings.Contains(got, "1 objects") || w.seen() != gadgets+"/3" {
		w.Errorf("%s; webhooks %q", got, w.seen())
	}
	w.annotate("halted", `{"metadata":{"annotations":{"`+v1alpha1.HaltedFromAnnotation+`":null}}}`)
	w.has("Accepted=True InForce", "Ready=True Defended")
	w.edit(ofImage)
	w.has("Ready=True Defended")
}

func (w *world) annotate(name, patch string) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(gadget)
	o.SetNamespace(shop)
	o.SetName(name)
	w.must(w.admin.Patch(w.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// labelled: the kind gets enrolled by label. Objects without the label are resumed, although the cache lacks them later.
func (w *world) labelled() {
	halt := func(name string, labels map[string]string) {
		w.create(name, labels, map[string]string{
			v1alpha1.HaltedAnnotation: "0123456789abcdef0123456789abcdef", v1alpha1.HaltedFromAnnotation: `[{"path":"spec.paused","value":true}]`,
		}, map[string]any{"image": "b:1", "paused": true})
	}
	halt("without", map[string]string{v1alpha1.VersionLabel: "0123456789abcdef0123456789abcdef"})
	w.edit(strings.Replace(ofImage, "v1,", "v1, enrolment: Label,", 1))
	w.is("an object without the label is resumed", "without", func(o *unstructured.Unstructured) bool {
		paused, _, _ := unstructured.NestedBool(o.Object, "spec", "paused")
		return !paused && o.GetAnnotations()[v1alpha1.HaltedAnnotation] == ""
	})
	w.until("the cache lacks objects without the label", func() (bool, any) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gadget.GroupVersion().WithKind("GadgetList"))
		err := w.cached.List(w.Context(), list)
		return err == nil && len(list.Items) == 0, err
	})
	w.has("Ready=True Defended")
	w.edit(ofImage)
	w.has("Ready=True Defended")
}

// serve changes the versions of the kind.
func (w *world) serve(versions ...string) {
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(crd("v1").GroupVersionKind())
	w.must(w.admin.Get(w.Context(), types.NamespacedName{Name: gadgets}, now))
	now.Object["spec"] = crd(versions...).Object["spec"]
	w.must(w.admin.Update(w.Context(), now))
}

// unserved: the version is not served for a while, and then the whole kind is gone for a while.
func (w *world) unserved() {
	w.serve("v2", "-v1")
	c := w.has("Served=False NotServed", "Ready=False NotDefended", "Intercepted=False NotDefended")
	if got := message(c, "Served"); !strings.Contains(got, "version v1 is not served; served are v2") || w.declared() || w.seen() != "" {
		w.Errorf("%s; declared %t, webhooks %q", got, w.declared(), w.seen())
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gadget.GroupVersion().WithKind("GadgetList"))
	if err := w.cached.List(w.Context(), list); err == nil {
		w.Error("a kind without a cache can be read")
	}
	w.serve("v1", "v2")
	w.has("Served=True Served", "Ready=True Defended")
	w.must(w.admin.Delete(w.Context(), crd("v1")))
	w.has("Served=False NotServed", "Ready=False NotDefended")
	w.until("the kind is gone", func() (bool, any) {
		err := w.admin.Create(w.Context(), crd("v1", "v2"))
		return err == nil, err
	})
	c = w.has("Served=True Served", "Ready=True Defended")
	if !w.declared() {
		w.Errorf("the kind is not declared: %v", c.Status)
	}
}

// uninstalled: after the Job of the uninstall removed the finalizer, the operator adds it only in a new installation.
func (w *world) uninstalled() {
	installed := func(status metav1.ConditionStatus, reason string) {
		w.until("the installation is noted", func() (bool, any) {
			blocking := &v1alpha1.OpsConfigInfo{}
			w.must(w.admin.Get(w.Context(), types.NamespacedName{Namespace: operator, Name: settings.NameBlocking}, blocking))
			blocking.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.ConditionInstalled, Status: status, Reason: reason, LastTransitionTime: metav1.Now(),
			}}
			err := w.admin.Status().Update(w.Context(), blocking)
			return err == nil, err
		})
	}
	w.must(w.admin.Create(w.Context(), &v1alpha1.OpsConfigInfo{
		ObjectMeta: metav1.ObjectMeta{Namespace: operator, Name: settings.NameBlocking},
		Spec:       v1alpha1.OpsConfigInfoSpec{Type: "isBlockingUp", Enable: true},
	}))
	installed(metav1.ConditionFalse, v1alpha1.ReasonLeft)
	c := w.has("Ready=True Defended")
	c.Finalizers = nil
	w.must(w.admin.Update(w.Context(), c))
	w.edit(strings.Replace(ofImage, "rollout: {", "rollout: {deadline: 5m, ", 1))
	if c = w.has("Ready=True Defended"); len(c.Finalizers) > 0 {
		w.Errorf("the finalizer is there again: %v", c.Finalizers)
	}
	installed(metav1.ConditionTrue, v1alpha1.ReasonKnown)
	w.edit(ofImage)
	if c = w.has("Ready=True Defended"); len(c.Finalizers) != 1 {
		w.Error("the finalizer is missing")
	}
}

// goes waits until the ChangeKind is gone.
func (w *world) goes() {
	w.Helper()
	w.until("the ChangeKind is gone", func() (bool, any) {
		c := &v1alpha1.ChangeKind{}
		err := w.admin.Get(w.Context(), types.NamespacedName{Name: gadgets}, c)
		return apierrors.IsNotFound(err), c.Status
	})
}

// deletedWithRole: nothing is to be given back, so a ChangeKind goes although its role went with it.
func (w *world) deletedWithRole() {
	w.must(w.admin.Create(w.Context(), w.declaration(ofImage)))
	w.has("Ready=True Defended")
	w.must(w.admin.Delete(w.Context(), w.declaration(ofImage)))
	w.must(w.admin.Delete(w.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "gadgets"}}))
	w.goes()
}

// deleted: the operator resumes objects before the ChangeKind goes, and waits until their version is served.
func (w *world) deleted() {
	w.create("halted", nil, map[string]string{
		v1alpha1.HaltedAnnotation: "0123456789abcdef0123456789abcdef", v1alpha1.HaltedFromAnnotation: `[{"path":"spec.paused","value":true}]`,
	}, map[string]any{"image": "b:1", "paused": true})
	w.until("the cache shows it", func() (bool, any) {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(gadget)
		err := w.cached.Get(w.Context(), types.NamespacedName{Namespace: shop, Name: "halted"}, o)
		return err == nil, err
	})
	w.serve("v2", "-v1")
	w.has("Served=False NotServed")
	w.must(w.admin.Delete(w.Context(), w.declaration(ofImage)))
	c := w.has("Served=False NotServed")
	if got := message(c, "Served"); !strings.Contains(got, "set spec.version to a served version") || len(c.Finalizers) != 1 {
		w.Errorf("%s; %v", got, c.Finalizers)
	}
	w.serve("v1", "v2")
	w.goes()
	w.is("the halt is taken back", "halted", func(o *unstructured.Unstructured) bool {
		paused, _, _ := unstructured.NestedBool(o.Object, "spec", "paused")
		return !paused && o.GetAnnotations()[v1alpha1.HaltedAnnotation] == ""
	})
	w.until("the kind is not declared", func() (bool, any) { return !w.declared() && w.seen() == "", w.seen() })
}
