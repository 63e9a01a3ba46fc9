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

// Package controllers holds the reconcilers, one file per kind. Each observes,
// lets internal/defense decide, and applies what was decided.
package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// conflictRetry is when to look again after a write that found the object
	// changed: the cache has the change by then.
	conflictRetry = 100 * time.Millisecond
	// existsRetry is when to try again after a create that found the name
	// taken: by the object of a deleted owner, until garbage collection has
	// removed it, or by our own that the cache has yet to show.
	existsRetry = time.Second
	// reconcileTimeout bounds one reconcile, waiting for the cache included.
	reconcileTimeout = time.Minute
	// workers per controller: writes to the API server dominate.
	workers = 8
	// serverWorkers of the controllers that call AlterShield Server: waiting
	// for it dominates.
	serverWorkers = 32
)

// Options of the controllers.
type Options struct {
	// Namespace of the operator, where OpsConfigInfo objects are read.
	Namespace string
	// Clock tells the time, and ServerClock that of the API server.
	Clock, ServerClock clock.PassiveClock
	// Kind of workload that is defended.
	Kind workload.Kind
	// Server is AlterShield Server; nil when there is none.
	Server *Server
}

// NewScheme knows the kinds the operator reads and writes.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// CacheOptions say what is cached and how little of it.
func CacheOptions(o Options) cache.Options {
	byObject := map[client.Object]cache.ByObject{
		&corev1.Pod{}:                {Transform: workload.TrimPod},
		namespaceMetadata():          {Transform: workload.TrimNamespace},
		&appsv1.ControllerRevision{}: {Label: ownedByUs(), Transform: workload.TrimRevision},
		&v1alpha1.OpsConfigInfo{}:    {Namespaces: map[string]cache.Config{o.Namespace: {}}},
	}
	for object, transform := range o.Kind.Transforms() {
		byObject[object] = cache.ByObject{Transform: transform}
	}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         byObject,
	}
}

// ownedByUs selects the ControllerRevisions of the operator among those of
// StatefulSets and DaemonSets.
func ownedByUs() labels.Selector {
	has, err := labels.NewRequirement(v1alpha1.VersionLabel, selection.Exists, nil)
	utilruntime.Must(err)
	return labels.NewSelector().Add(*has)
}

// ClientOptions make every write carry the operator's field manager, and reads
// of ChangeWorkloads and ChangePods wait until the cache has the operator's own
// writes.
func ClientOptions() client.Options {
	consistent := true
	return client.Options{
		FieldOwner: v1alpha1.FieldManager,
		Cache:      &client.CacheOptions{Unstructured: true, EnableReadYourWritesConsistency: &consistent},
	}
}

// Setup adds all controllers to the manager.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
	for _, object := range []client.Object{&corev1.Pod{}, o.Kind.Revision(), &appsv1.ControllerRevision{}, &v1alpha1.ChangeWorkload{}, &v1alpha1.ChangePod{}} {
		if err := mgr.GetFieldIndexer().IndexField(ctx, object, workload.IndexByOwner, workload.OwnerUID); err != nil {
			return fmt.Errorf("index %T by owner: %w", object, err)
		}
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.ChangeWorkload{}, workload.IndexByOrder, workload.OrderOf); err != nil {
		return fmt.Errorf("index changeworkloads by order: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.ChangePod{}, workload.IndexByNode, workload.NodeOf); err != nil {
		return fmt.Errorf("index changepods by node: %w", err)
	}
	// All caches from the start, on every replica: readiness waits for them,
	// and a new leader finds them warm.
	for _, object := range []client.Object{o.Kind.Object(), namespaceMetadata(), &v1alpha1.OpsConfigInfo{}} {
		if _, err := mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("cache %T: %w", object, err)
		}
	}
	if err := metrics.BlockedWorkloads(func() float64 { return blockedWorkloads(ctx, mgr.GetClient(), o.Kind) }); err != nil {
		return fmt.Errorf("register the metric of blocked workloads: %w", err)
	}
	b := newBase(mgr, o)
	setups := map[string]func(ctrl.Manager) error{
		"workload":       (&WorkloadReconciler{base: b}).SetupWithManager,
		"pod":            (&PodReconciler{base: b}).SetupWithManager,
		"changeworkload": (&ChangeWorkloadReconciler{base: b}).SetupWithManager,
		"changepod":      (&ChangePodReconciler{base: b, server: o.Server, calls: newCallMemory(o.Clock)}).SetupWithManager,
		"opsconfiginfo":  (&OpsConfigInfoReconciler{base: b}).SetupWithManager,
	}
	if o.Server != nil {
		ended := newEndedOrders()
		setups["order"] = (&OrderReconciler{base: b, server: o.Server, calls: newCallMemory(o.Clock), ended: ended}).SetupWithManager
		setups["order-end"] = (&OrderEndReconciler{base: b, server: o.Server, calls: newCallMemory(o.Clock), ended: ended}).SetupWithManager
	}
	for name, setup := range setups {
		if err := setup(mgr); err != nil {
			return fmt.Errorf("set up the %s controller: %w", name, err)
		}
	}
	return nil
}

// CachesSynced says whether the manager sees the cluster. It does not depend on
// leadership: every replica keeps its caches warm.
func CachesSynced(mgr ctrl.Manager) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced yet")
		}
		return nil
	}
}

// base is what all reconcilers have.
type base struct {
	client   client.Client
	live     client.Reader
	recorder events.EventRecorder
	clock    clock.PassiveClock
	// serverClock is for what is compared with times that the API server set.
	serverClock clock.PassiveClock
	kind        workload.Kind
	namespace   string
	// cluster identifies the cluster to AlterShield Server; empty without one.
	cluster types.UID
}

func newBase(mgr ctrl.Manager, o Options) base {
	b := base{
		client:      mgr.GetClient(),
		live:        mgr.GetAPIReader(),
		recorder:    mgr.GetEventRecorder("altershield-operator"),
		clock:       o.Clock,
		serverClock: cmp.Or(o.ServerClock, o.Clock),
		kind:        o.Kind,
		namespace:   o.Namespace,
	}
	if o.Server != nil {
		b.cluster = o.Server.Cluster
	}
	return b
}

// blockedWorkloads counts the workloads that are blocked, in the cache.
func blockedWorkloads(ctx context.Context, r client.Reader, kind workload.Kind) float64 {
	list := kind.ObjectList()
	if err := r.List(ctx, list, client.HasLabels{v1alpha1.SuspendLabel}, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return math.NaN()
	}
	return float64(meta.LenList(list))
}

func namespaceMetadata() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// observeNamespace reads a namespace; nil when it is gone.
func (b *base) observeNamespace(ctx context.Context, name string) (*metav1.PartialObjectMetadata, error) {
	ns := namespaceMetadata()
	if err := b.client.Get(ctx, types.NamespacedName{Name: name}, ns, client.DisableReadYourWritesConsistency); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return ns, nil
}

// enrolled says that a namespace is under defense, which the operator's own never
// is: its webhooks must not stand in the way of its own pods.
func (b *base) enrolled(ns *metav1.PartialObjectMetadata) bool {
	return !ending(ns) && ns.Name != b.namespace && defense.NamespaceEnrolled(ns.Name, ns.Labels)
}

// ending says that a namespace is gone or going: everything in it goes too, and
// nothing new can be made there.
func ending(ns *metav1.PartialObjectMetadata) bool {
	return ns == nil || ns.DeletionTimestamp != nil
}

// observeSettings computes the settings in force.
func (b *base) observeSettings(ctx context.Context) (settings.Settings, error) {
	var list v1alpha1.OpsConfigInfoList
	if err := b.client.List(ctx, &list, client.InNamespace(b.namespace), client.DisableReadYourWritesConsistency); err != nil {
		return settings.Settings{}, fmt.Errorf("list opsconfiginfoes: %w", err)
	}
	return settings.FromObjects(list.Items), nil
}

// ownerOfPod finds the workload of a pod, for an event of the pod.
func (b *base) ownerOfPod(ctx context.Context, pod client.Object) (owner workload.Owner, ok bool) {
	owner, ok, err := b.kind.OwnerOfPod(ctx, b.client, pod)
	if err != nil {
		log.FromContext(ctx).Error(err, "find the workload of a pod", "pod", client.ObjectKeyFromObject(pod))
		return owner, false
	}
	return owner, ok
}

// changesOf lists the ChangeWorkloads owned by a workload. They must not be
// written to.
func (b *base) changesOf(ctx context.Context, namespace string, uid types.UID, opts ...client.ListOption) ([]v1alpha1.ChangeWorkload, error) {
	var list v1alpha1.ChangeWorkloadList
	opts = append(opts, client.InNamespace(namespace), client.MatchingFields{workload.IndexByOwner: string(uid)}, client.UnsafeDisableDeepCopy)
	if err := b.client.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list changeworkloads of %s: %w", uid, err)
	}
	return list.Items, nil
}

// changesWhere lists the requests for all ChangeWorkloads that are wanted.
func (b *base) changesWhere(ctx context.Context, wanted func(*v1alpha1.ChangeWorkload) bool, opts ...client.ListOption) []reconcile.Request {
	var list v1alpha1.ChangeWorkloadList
	opts = append(opts, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency)
	if err := b.client.List(ctx, &list, opts...); err != nil {
		log.FromContext(ctx).Error(err, "list changeworkloads")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if wanted(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// event tells of a workload; related is the object that caused it, or nil.
func (b *base) event(w *defense.Workload, related client.Object, e defense.Event, action string) {
	gvk := b.kind.GroupVersionKind()
	regarding := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID, ResourceVersion: w.ResourceVersion},
	}
	if related == nil {
		b.recorder.Eventf(regarding, nil, e.Type, e.Reason, action, "%s", e.Message)
		return
	}
	b.recorder.Eventf(regarding, related, e.Type, e.Reason, action, "%s", e.Message)
	if e.OfRelease {
		b.recorder.Eventf(related, regarding, e.Type, e.Reason, action, "%s", e.Message)
	}
}

// outdated says that a write was refused because what it was decided on has
// changed: no error, the decision is made again.
func outdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || isFailedTest(err)
}

// settle turns the outcome of applying a decision into a result.
func settle(ctx context.Context, result ctrl.Result, err error) (ctrl.Result, error) {
	switch {
	case err == nil:
		return result, nil
	case apierrors.IsAlreadyExists(err):
		log.FromContext(ctx).V(1).Info("an object is still in the way, trying again", "cause", err.Error())
		return ctrl.Result{RequeueAfter: existsRetry}, nil
	case outdated(err):
		log.FromContext(ctx).V(1).Info("decided on an outdated view, deciding again", "cause", err.Error())
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	default:
		return ctrl.Result{}, err
	}
}

// quiet keeps what is no error out of the log: reconciles cut short because the
// manager ends, and writes into a namespace that is being deleted.
func quiet(r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		result, err := r.Reconcile(ctx, req)
		if err != nil && (errors.Is(ctx.Err(), context.Canceled) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)) {
			log.FromContext(ctx).V(1).Info("gave up", "cause", err.Error())
			return reconcile.Result{}, nil
		}
		return result, err
	})
}

// removeOrphan removes an object of ours that is in the way of a new one: left
// behind by an owner that was deleted without its dependents. One that still
// has an owner is left to garbage collection; and it may be the one just made
// that the cache has yet to show.
func (b *base) removeOrphan(ctx context.Context, inTheWay client.Object) error {
	orphan := &metav1.PartialObjectMetadata{}
	gvk, err := b.client.GroupVersionKindFor(inTheWay)
	if err != nil {
		return err
	}
	orphan.SetGroupVersionKind(gvk)
	if err := b.live.Get(ctx, client.ObjectKeyFromObject(inTheWay), orphan); err != nil || metav1.GetControllerOf(orphan) != nil {
		return client.IgnoreNotFound(err)
	}
	inTheWay.SetUID(orphan.UID)
	log.FromContext(ctx).Info("removing an object a deleted owner left behind", "kind", gvk.Kind, "name", orphan.Name)
	return client.IgnoreNotFound(b.client.Delete(ctx, inTheWay, client.Preconditions{UID: &orphan.UID}))
}

// acquired lets through objects that are new or have a new controller.
func acquired() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, after := metav1.GetControllerOf(e.ObjectOld), metav1.GetControllerOf(e.ObjectNew)
			return after != nil && (before == nil || before.UID != after.UID)
		},
		DeleteFunc:  func(event.DeleteEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// requestsFor maps each object of a list to its own key.
func requestsFor(ctx context.Context, list client.ObjectList) []reconcile.Request {
	var requests []reconcile.Request
	if err := meta.EachListItem(list, func(o runtime.Object) error {
		m, err := meta.Accessor(o)
		if err != nil {
			return err
		}
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}})
		return nil
	}); err != nil {
		log.FromContext(ctx).Error(err, "read a list of objects")
	}
	return requests
}
