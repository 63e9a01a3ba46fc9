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

package world

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/controllers"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/observer"
)

var (
	scheme = newScheme()
	mapper = testrestmapper.TestOnlyStaticRESTMapper(scheme)
)

// newScheme returns the scheme of the operator, with the invented kinds.
func newScheme() *runtime.Scheme {
	s := controllers.NewScheme()
	workloadtest.AddToScheme(s)
	return s
}

// key names an object.
type key struct{ kind, namespace, name string }

func keyOf(o client.Object) key { return key{kindOf(o), o.GetNamespace(), o.GetName()} }

func kindOf(o runtime.Object) string { return gvkOf(o).Kind }

// change is one version of an object, or its end.
type change struct {
	seq int
	at  time.Time
	key key
	// object is the new version, or the last version if it was deleted.
	object  client.Object
	deleted bool
}

// writer is the author of a request.
type writer struct {
	user     string
	operator bool
}

type writerKey struct{}

func as(ctx context.Context, w writer) context.Context {
	return context.WithValue(ctx, writerKey{}, w)
}

func writerOf(ctx context.Context) writer {
	w, _ := ctx.Value(writerKey{}).(writer)
	return w
}

// api is the API server: the fake client reads, and api writes.
type api struct {
	client client.WithWatch
	// store is the store of the fake client. It is written directly: the fake client converts each
	// status to JSON and back, which takes most of its time.
	store clienttesting.ObjectTracker
	// version is the newest resource version.
	version int
	// objects has the newest version of each object, history all versions in order.
	objects map[key]client.Object
	history history
	// kinds has the objects by kind, owned by the UID of their controller.
	kinds map[string]map[key]client.Object
	owned map[types.UID]map[key]client.Object
	uids  int
	// creates and deletes count by kind.
	creates, deletes map[string]int
	judge            *observer.Judge
	violations       []observer.Violation
	// admit is the admission of workloads; before is nil on create.
	admit func(ctx context.Context, before, after client.Object, fieldManager string) (client.Object, error)
}

// typed returns a copy of an object as its Go type.
func typed(o client.Object) (client.Object, error) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		made, err := scheme.New(u.GroupVersionKind())
		if err != nil {
			return nil, err
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, made); err != nil {
			return nil, err
		}
		return asObject(made), nil
	}
	return asObject(o.DeepCopyObject()), nil
}

func asObject(o runtime.Object) client.Object {
	object, ok := o.(client.Object)
	if !ok {
		panic(fmt.Sprintf("%T is no object", o))
	}
	return object
}

// write stores an object with a resource version of its own.
func (a *api) write(o client.Object) {
	a.version++
	o.SetResourceVersion(strconv.Itoa(a.version))
	if _, is := a.objects[keyOf(o)]; is {
		must(a.store.Update(storedAs(o), o, o.GetNamespace()))
	} else {
		must(a.store.Create(storedAs(o), o, o.GetNamespace()))
	}
}

// storedAs returns the resource by which the fake client stores an object.
func storedAs(o client.Object) schema.GroupVersionResource {
	return resourceOf(o).WithVersion(gvkOf(o).Version)
}

// into copies a stored object into the object of a request.
func into(stored, o client.Object) error {
	switch to := o.(type) {
	case *unstructured.Unstructured:
		gvk := to.GroupVersionKind()
		to.Object = map[string]any{}
		if err := json.Unmarshal(textOf(stored), &to.Object); err != nil {
			return err
		}
		to.SetGroupVersionKind(gvk)
	case *metav1.PartialObjectMetadata:
		return json.Unmarshal(textOf(stored), to)
	default:
		setObject(o, stored)
	}
	return nil
}

// stored returns the newest version of an object, or an error if there is none.
func (a *api) stored(o client.Object) (client.Object, error) {
	if s, ok := a.objects[keyOf(o)]; ok {
		return s, nil
	}
	return nil, apierrors.NewNotFound(resourceOf(o), o.GetName())
}

func resourceOf(o runtime.Object) schema.GroupResource {
	gvr, _ := meta.UnsafeGuessKindToResource(gvkOf(o))
	return gvr.GroupResource()
}

func gvkOf(o runtime.Object) schema.GroupVersionKind {
	gvk, err := apiutil.GVKForObject(o, scheme)
	if err != nil {
		panic(err) // the scheme has all kinds the operator reads and writes
	}
	return gvk
}

// setObject writes a copy of an object into another one of its Go type.
func setObject(to, from client.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
}

func (a *api) create(ctx context.Context, _ client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	var options client.CreateOptions
	options.ApplyOptions(opts)
	made, err := typed(o)
	if err != nil {
		return err
	}
	if _, taken := a.objects[keyOf(made)]; taken {
		return apierrors.NewAlreadyExists(resourceOf(o), o.GetName())
	}
	a.uids++
	made.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", a.uids)))
	made.SetGeneration(1)
	made.SetCreationTimestamp(metav1.Now().Rfc3339Copy())
	dropStatus(made)
	if d, ok := made.(*appsv1.Deployment); ok {
		setDefaults(d)
	}
	setNativeDefaults(made)
	if isWorkload(made) {
		if made, err = a.admit(ctx, nil, made, options.FieldManager); err != nil {
			return err
		}
	}
	if err := invalid(made); err != nil {
		return err
	}
	numberTemplate(nil, made)
	a.write(made)
	a.creates[kindOf(made)]++
	a.record(ctx, made, false, request{"create", "", whole(made)})
	return into(made, o)
}

// invalid returns why an API server refuses a workload, for the fields that the operator writes.
func invalid(o client.Object) error {
	var errs field.ErrorList
	spec := field.NewPath("spec")
	switch o := o.(type) {
	case *appsv1.Deployment:
		if *o.Spec.ProgressDeadlineSeconds <= o.Spec.MinReadySeconds {
			errs = append(errs, field.Invalid(spec.Child("progressDeadlineSeconds"), *o.Spec.ProgressDeadlineSeconds,
				"must be greater than minReadySeconds"))
		}
	case *appsv1.StatefulSet:
		if u := &o.Spec.UpdateStrategy; u.Type != appsv1.RollingUpdateStatefulSetStrategyType && u.RollingUpdate != nil {
			errs = append(errs, field.Invalid(spec.Child("updateStrategy", "rollingUpdate"), u.RollingUpdate,
				"only allowed for updateStrategy 'RollingUpdate'"))
		}
	case *appsv1.DaemonSet:
		u := o.Spec.UpdateStrategy.RollingUpdate
		both := u != nil && u.MaxSurge != nil && u.MaxSurge.String() != "0" && u.MaxUnavailable.String() != "0"
		if both && o.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
			errs = append(errs, field.Invalid(spec.Child("updateStrategy", "rollingUpdate", "maxSurge"), u.MaxSurge.String(),
				"may not be set when maxUnavailable is non-zero"))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(gvkOf(o).GroupKind(), o.GetName(), errs)
}

// dropStatus drops the status of a new object, as an API server does.
func dropStatus(o client.Object) {
	switch o := o.(type) {
	case *v1alpha1.ChangeWorkload:
		o.Status = v1alpha1.ChangeWorkloadStatus{}
	case *v1alpha1.ChangePod:
		o.Status = v1alpha1.ChangePodStatus{}
	case *v1alpha1.OpsConfigInfo:
		o.Status = v1alpha1.OpsConfigInfoStatus{}
	case *v1alpha1.DefensePolicy:
		o.Status = v1alpha1.DefensePolicyStatus{}
	case *v1alpha1.DefenseEndpoint:
		o.Status = v1alpha1.DefenseEndpointStatus{}
	case *appsv1.StatefulSet:
		o.Status = appsv1.StatefulSetStatus{}
	case *appsv1.DaemonSet:
		o.Status = appsv1.DaemonSetStatus{}
	case *workloadtest.FleetObject:
		o.Status = workloadtest.FleetStatus{}
	case *workloadtest.CourseObject:
		o.Status = workloadtest.CourseStatus{}
	}
}

func (a *api) delete(ctx context.Context, _ client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
	var options client.DeleteOptions
	options.ApplyOptions(opts)
	return a.remove(ctx, o, options.Preconditions, request{"delete", "", sent(nil)})
}

// remove deletes an object that meets the preconditions.
func (a *api) remove(ctx context.Context, o client.Object, p *metav1.Preconditions, r request) error {
	before, err := a.stored(o)
	if err != nil {
		return err
	}
	if p != nil && p.UID != nil && *p.UID != before.GetUID() {
		return apierrors.NewConflict(resourceOf(o), o.GetName(), errors.New("the UID in the precondition does not match"))
	}
	if p != nil && p.ResourceVersion != nil && *p.ResourceVersion != before.GetResourceVersion() {
		return apierrors.NewConflict(resourceOf(o), o.GetName(), errors.New("the ResourceVersion in the precondition does not match"))
	}
	if before.GetDeletionTimestamp() != nil {
		return nil
	}
	must(a.store.Delete(storedAs(before), before.GetNamespace(), before.GetName()))
	a.deletes[kindOf(before)]++
	a.record(ctx, before, true, r)
	return nil
}

// request is the request that made a version.
type request struct {
	verb, subresource string
	// body returns the body of the request.
	body func() []byte
}

func sent(data []byte) func() []byte { return func() []byte { return data } }

func whole(o client.Object) func() []byte { return func() []byte { return textOf(o) } }

// record adds a version to the history, and judges it.
func (a *api) record(ctx context.Context, o client.Object, deleted bool, r request) {
	o = asObject(o.DeepCopyObject())
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	k := keyOf(o)
	c := change{seq: a.history.end() + 1, at: time.Now(), key: k, object: o, deleted: deleted}
	a.history.add(c)
	a.keep(c)
	by := observer.Other
	if writerOf(ctx).operator {
		by = observer.Operator
	}
	a.violations = append(a.violations, a.judge.Version(uint64(c.seq), c.at, o, deleted, by)...)
	a.judgeRequest(ctx, o, r)
}

// keep makes a version the newest one of its object.
func (a *api) keep(c change) {
	if before, ok := a.objects[c.key]; ok {
		if owner := metav1.GetControllerOfNoCopy(before); owner != nil {
			drop(a.owned, owner.UID, c.key)
		}
	}
	if c.deleted {
		delete(a.objects, c.key)
		drop(a.kinds, c.key.kind, c.key)
		return
	}
	a.objects[c.key] = c.object
	file(a.kinds, c.key.kind, c.key, c.object)
	if owner := metav1.GetControllerOfNoCopy(c.object); owner != nil {
		file(a.owned, owner.UID, c.key, c.object)
	}
}

// file adds an object to an index, drop removes it.
func file[B, K comparable](files map[B]map[K]client.Object, by B, k K, o client.Object) {
	if files[by] == nil {
		files[by] = map[K]client.Object{}
	}
	files[by][k] = o
}

func drop[B, K comparable](files map[B]map[K]client.Object, by B, k K) {
	delete(files[by], k)
	if len(files[by]) == 0 {
		delete(files, by)
	}
}

// judgeRequest judges a request of the operator. The observer does not know invented kinds.
func (a *api) judgeRequest(ctx context.Context, o client.Object, r request) {
	if gvkOf(o).Group == (workloadtest.Fleet{}).GroupVersionKind().Group || !writerOf(ctx).operator {
		return
	}
	a.violations = append(a.violations, a.judge.Request(observer.Request{
		Verb: r.verb, Group: resourceOf(o).Group, Resource: resourceOf(o).Resource, Subresource: r.subresource,
		URI: "/" + resourceOf(o).String() + "/" + o.GetNamespace() + "/" + o.GetName(), Namespace: o.GetNamespace(), Name: o.GetName(),
		Code: http.StatusOK, Received: time.Now(),
	}, r.body())...)
}

func textOf(o client.Object) []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err) // it is an API type
	}
	return data
}

// list returns the objects of a kind in a namespace, or in all namespaces if it is empty, by name.
// They must not be changed.
func list[T client.Object](a *api, kind, namespace string) []T {
	return among[T](a.kinds[kind], namespace)
}

// ownedBy returns the objects of a type that an object controls, as list does.
func ownedBy[T client.Object](a *api, owner client.Object) []T {
	return among[T](a.owned[owner.GetUID()], owner.GetNamespace())
}

func among[T client.Object](objects map[key]client.Object, namespace string) []T {
	var found []T
	for k, o := range objects {
		if t, ok := o.(T); ok && (namespace == "" || k.namespace == namespace) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(x, y T) int {
		return cmp.Or(strings.Compare(x.GetNamespace(), y.GetNamespace()), strings.Compare(x.GetName(), y.GetName()))
	})
	return found
}

// must panics at an error of a write that cannot fail.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("the cluster: %v", err))
	}
}

// history has the versions of all objects in order, or the newest of them. Positions count from the
// first version ever.
type history struct {
	changes []change
	// forgotten is the number of earlier versions, base the state after them.
	forgotten int
	base      map[key]client.Object
}

func (h *history) add(c change) { h.changes = append(h.changes, c) }

// end returns the position of the next version.
func (h *history) end() int { return h.forgotten + len(h.changes) }
