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

package controllers

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

// kindWorld is a controller of the ChangeKind of gadgets, with an API server in process.
type kindWorld struct {
	*testing.T
	*ChangeKindReconciler
	clock *clocktesting.FakePassiveClock
	// lacks: the operator has no permission. failsList: the API server fails to list metadata.
	lacks, failsList bool
	// fills: new caches are filled. caches has the context of each.
	fills  bool
	caches []context.Context //nolint:containedctx // to see which caches ended
}

// filledCache is a cache that reads the API server.
type filledCache struct {
	cache.Cache
	client.Reader
	w *kindWorld
}

func (c filledCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.Reader.Get(ctx, key, o, opts...)
}

func (c filledCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.Reader.List(ctx, list, opts...)
}

func (c filledCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (c filledCache) IndexField(ctx context.Context, _ client.Object, _ string, _ client.IndexerFunc) error {
	c.w.caches = append(c.w.caches, ctx)
	return nil
}

func (c filledCache) WaitForCacheSync(context.Context) bool { return c.w.fills }

func newKindWorld(t *testing.T, fixed ...workload.Kind) *kindWorld {
	known := &apiextensionsv1.CustomResourceDefinition{}
	known.Name, known.Spec.Names.Kind, known.Spec.Scope = gadgetKind, "Gadget", apiextensionsv1.NamespaceScoped
	known.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true}}
	known.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
	}
	w := &kindWorld{T: t, clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0)), fills: true}
	inner := fake.NewClientBuilder().WithScheme(NewScheme()).WithStatusSubresource(&v1alpha1.ChangeKind{}).Build()
	api := interceptor.NewClient(inner, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind() == crdKind {
				o.SetName(key.Name)
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			_, ok := list.(*metav1.PartialObjectMetadataList)
			if ok = ok && list.GetObjectKind().GroupVersionKind().Group == "example.com"; ok && w.lacks {
				return apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "gadgets"}, "", nil)
			} else if ok && w.failsList {
				return apierrors.NewInternalError(errors.New("the API server cannot list"))
			}
			return c.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if review, ok := o.(*authorizationv1.SelfSubjectAccessReview); ok {
				review.Status.Allowed = !w.lacks
				return nil
			}
			return c.Create(ctx, o, opts...)
		},
	})
	kinds, elected := workload.NewRegistry(fixed...), make(chan struct{})
	close(elected)
	h := hub.New(t.Context(), kinds)
	h.Open = func(workload.Kind, func(error)) (cache.Cache, error) { return filledCache{Reader: api, w: w}, nil }
	c := &cluster.Cluster{
		View: cluster.View{Cached: api, Live: api, Operator: "ops", Kinds: kinds}, Client: api, Clock: w.clock, Hub: h,
		Recorder: events.NewFakeRecorder(100),
	}
	w.ChangeKindReconciler = &ChangeKindReconciler{
		Cluster: c, elected: elected, judged: map[string]judgedKind{}, lacks: map[string]time.Time{},
		since: sync.OnceValue(c.Clock.Now), settled: elected,
	}
	w.api = servedKinds{live: api, crds: map[string]*apiextensionsv1.CustomResourceDefinition{gadgetKind: known}}
	return w
}

func (w *kindWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

const gadgetKind = "gadgets.example.com"

// declares writes the spec of the ChangeKind, as of a generation, and lets the controller look once.
func (w *kindWorld) declares(spec string, generation int64) ctrl.Result {
	w.Helper()
	c := &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: gadgetKind}}
	err := w.Client.Get(w.Context(), client.ObjectKeyFromObject(c), c)
	c.Spec = v1alpha1.ChangeKindSpec{}
	w.must(yaml.Unmarshal([]byte(spec), &c.Spec))
	if c.Generation = generation; err != nil {
		w.must(w.Client.Create(w.Context(), c))
	} else {
		w.must(w.Client.Update(w.Context(), c))
	}
	return w.look()
}

// look lets the controller look once.
func (w *kindWorld) look() ctrl.Result {
	w.Helper()
	result, err := w.Reconcile(w.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: gadgetKind}})
	w.must(err)
	return result
}

// used returns the generation in use; 0 for none.
func (w *kindWorld) used() int64 {
	if d, ok := w.Hub.Used(gadgetKind).(hub.Declared); ok {
		return d.Declaration().Generation
	}
	return 0
}

// inUse declares gadgets, and waits until the kind is in use.
func (w *kindWorld) inUse() {
	w.Helper()
	w.declares(gadgetSpec, 1)
	<-w.Hub.Changed // the cache is filled
	if w.look(); w.used() != 1 {
		w.Fatal("the kind is not in use")
	}
}

// byLabel is gadgetSpec of a kind that is enrolled by label.
var byLabel = strings.Replace(gadgetSpec, "v1,", "v1, enrolment: Label,", 1)

// condition returns the status of a condition of the ChangeKind; empty if it has none.
func (w *kindWorld) condition(name string) metav1.ConditionStatus {
	w.Helper()
	c := &v1alpha1.ChangeKind{}
	w.must(w.Client.Get(w.Context(), client.ObjectKey{Name: gadgetKind}, c))
	if is := meta.FindStatusCondition(c.Status.Conditions, name); is != nil {
		return is.Status
	}
	return ""
}

// delete deletes the ChangeKind.
func (w *kindWorld) delete() {
	w.Helper()
	w.must(w.Client.Delete(w.Context(), &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: gadgetKind}}))
}

// isGone reports whether the ChangeKind is gone.
func (w *kindWorld) isGone() bool {
	return apierrors.IsNotFound(w.Client.Get(w.Context(), client.ObjectKey{Name: gadgetKind}, &v1alpha1.ChangeKind{}))
}

// TestCannotListStrays: the status of a kind that is enrolled by label says what is missing.
func TestCannotListStrays(t *testing.T) {
	w := newKindWorld(t)
	w.lacks = true
	w.declares(byLabel, 1)
	if got := w.condition(v1alpha1.ConditionAuthorized); got != metav1.ConditionFalse {
		t.Errorf("without a role, Authorized is %q", got)
	}
	w.lacks, w.failsList, w.fills = false, true, false
	w.look()
	if got := w.condition(v1alpha1.ConditionReady); got != metav1.ConditionFalse {
		t.Errorf("without a list, Ready is %q", got)
	}
	w.failsList, w.fills = false, true
	w.look()
	<-w.Hub.Changed
	if w.look(); w.used() != 1 {
		t.Error("the kind is not in use")
	}
}

// TestLabelledRoleGoes: a kind that is enrolled by label leaves, though `kubectl delete -f` deletes its role a moment later.
func TestLabelledRoleGoes(t *testing.T) {
	w := newKindWorld(t)
	w.declares(byLabel, 1)
	<-w.Hub.Changed
	w.look()
	w.delete()
	w.look()
	<-w.Hub.Changed
	w.lacks = true
	w.look()
	w.clock.SetTime(w.clock.Now().Add(giveBackAgain))
	if w.look(); !w.isGone() {
		t.Error("the ChangeKind stays")
	}
}

// TestLacksForAMoment: a role that is replaced takes no kind out of use.
func TestLacksForAMoment(t *testing.T) {
	w := newKindWorld(t)
	w.inUse()
	w.lacks = true
	if again := w.look().RequeueAfter; w.used() != 1 || again > giveBackAgain {
		t.Errorf("generation %d is in use, again in %s", w.used(), again)
	}
	w.look() // for another reason, at the same moment
	w.lacks = false
	if w.look(); w.used() != 1 {
		t.Error("the kind is not in use")
	}
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.lacks = true
	w.look()
	w.clock.SetTime(w.clock.Now().Add(giveBackAgain))
	if w.look(); w.used() != 0 {
		t.Error("the kind is in use without permissions")
	}
}

// TestInvalidSuccessor: a cache that is being filled for a generation ends with a later generation that is invalid.
func TestInvalidSuccessor(t *testing.T) {
	w := newKindWorld(t)
	w.inUse()
	w.fills = false
	w.declares(strings.Replace(gadgetSpec, "spec.template", "spec.image", 1), 2)
	if len(w.caches) != 2 || w.caches[1].Err() != nil {
		t.Fatalf("%d caches", len(w.caches))
	}
	w.declares(strings.Replace(gadgetSpec, "spec.paused", "spec.template.a", 1), 3)
	if w.caches[0].Err() != nil || w.caches[1].Err() == nil || w.used() != 1 {
		t.Errorf("the cache in use ended: %v, the other: %v", w.caches[0].Err(), w.caches[1].Err())
	}
}

// TestLabelledLater: when the kind gets enrolled by label, objects without it leave the defense before the cache lacks them.
func TestLabelledLater(t *testing.T) {
	w := newKindWorld(t)
	w.inUse()
	key := types.NamespacedName{Namespace: "shop", Name: "a"}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"a": "b"}}}}
	o.SetGroupVersionKind(gadget{}.GroupVersionKind())
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	o.SetLabels(map[string]string{v1alpha1.VersionLabel: "1"})
	o.SetAnnotations(map[string]string{v1alpha1.HaltedAnnotation: "1"})
	w.must(w.Client.Create(t.Context(), o))
	w.declares(byLabel, 2)
	<-w.Hub.Changed
	for range 2 {
		if again := w.look().RequeueAfter; again > giveBackAgain {
			t.Errorf("again in %s", again)
		}
		leaves, ok := w.Hub.Used(gadgetKind).(leavingKind)
		if !ok || !leaves.CachesAll() || w.used() != 2 {
			t.Fatalf("%T of generation %d is in use", w.Hub.Used(gadgetKind), w.used())
		}
		for labels, out := range map[string]bool{"": true, v1alpha1.DefenseEnabled: false} {
			o.SetLabels(map[string]string{v1alpha1.VersionLabel: "1", v1alpha1.DefenseLabel: labels})
			read := fake.NewClientBuilder().WithScheme(NewScheme()).WithObjects(o.DeepCopy()).Build()
			if got, err := leaves.Get(t.Context(), read, key); err != nil || got == nil || workload.OptedOut(got.Labels) != out {
				t.Errorf("%q: %+v, %v", labels, got, err)
			}
		}
	}
	o.SetAnnotations(nil)
	w.must(w.Client.Update(t.Context(), o))
	w.look()
	<-w.Hub.Changed
	w.look()
	if _, plain := w.Hub.Used(gadgetKind).(*declared.Workloads); !plain || w.used() != 2 {
		t.Errorf("%T of generation %d is in use", w.Hub.Used(gadgetKind), w.used())
	}
}

// gadget is the kind of gadgets as a later version of the operator defends it without a declaration.
type gadget struct{ workloadtest.Fleet }

func (gadget) GroupVersionKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}
}

func (gadget) Resource() string { return "gadgets" }

// TestNativeKindLeaves: the ChangeKind of a kind that needs none can be deleted.
func TestNativeKindLeaves(t *testing.T) {
	w := newKindWorld(t, gadget{})
	c := &v1alpha1.ChangeKind{ObjectMeta: metav1.ObjectMeta{Name: gadgetKind, Finalizers: []string{v1alpha1.GiveBackFinalizer}}}
	w.must(w.Client.Create(t.Context(), c))
	w.declares(gadgetSpec, 1)
	w.must(w.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c))
	if accepted := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionAccepted); accepted == nil ||
		!strings.Contains(accepted.Message, "remove the ChangeKind") {
		t.Errorf("%+v", accepted)
	}
	w.must(w.Client.Delete(t.Context(), c))
	w.look()
	if err := w.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c); !apierrors.IsNotFound(err) {
		t.Errorf("%v: %v", err, c.Finalizers)
	}
}

// noted is an interceptor that notes the kinds whose webhooks were written last.
type noted struct{ last []string }

func (n *noted) Write(_ context.Context, kinds []*declared.Kind) error {
	n.last = nil
	for _, k := range kinds {
		n.last = append(n.last, k.Name)
	}
	return nil
}

// TestWebhooksGo: no webhook of a kind stays that leaves while its permissions are gone.
func TestWebhooksGo(t *testing.T) {
	w, webhooks := newKindWorld(t), &noted{}
	w.interceptor = webhooks
	w.inUse()
	c := &v1alpha1.ChangeKind{}
	w.must(w.Client.Get(t.Context(), client.ObjectKey{Name: gadgetKind}, c))
	w.must(w.Client.Delete(t.Context(), c))
	w.lacks, w.fills = true, false // no new cache can be filled
	for range 3 {
		w.look()
		w.clock.SetTime(w.clock.Now().Add(5 * time.Second))
	}
	if err := w.Client.Get(t.Context(), client.ObjectKey{Name: gadgetKind}, c); !apierrors.IsNotFound(err) {
		t.Errorf("the ChangeKind is not gone: %v", err)
	}
	if len(webhooks.last) > 0 {
		t.Errorf("webhooks stay: %v", webhooks.last)
	}
}
