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
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Interceptor writes the webhooks of declared kinds.
type Interceptor interface {
	Write(ctx context.Context, kinds []*declared.Kind) error
}

// ChangeKindReconciler accepts ChangeKinds, fills the caches of their objects, and declares the kinds in the registry. It
// runs on all replicas, because webhooks read the caches. Only the leader writes webhooks and status.
type ChangeKindReconciler struct {
	*cluster.Cluster
	api         servedKinds
	interceptor Interceptor
	elected     <-chan struct{}
	// judged has the last accepted generation of each ChangeKind. The reconciler has a single worker.
	judged map[string]judgedKind
	// lacks has since when the operator has lacked a permission for a kind in use.
	lacks map[string]time.Time
	// since returns when the ChangeKinds were first read, and settled is closed when the caches of all kinds that were Ready
	// are in use, or take too long.
	since    func() time.Time
	settled  chan struct{}
	settling sync.Mutex
}

// judgedKind is an accepted ChangeKind.
type judgedKind struct {
	uid             types.UID
	leaving, strays bool
	kind            hub.Declared
}

const (
	// judgeAgain is the time until a ChangeKind is judged again: nothing reports changed permissions, and kinds without a
	// CustomResourceDefinition. giveBackAgain is the time until objects are counted again that have to change first.
	judgeAgain, giveBackAgain = time.Minute, 5 * time.Second
	// lacksBriefly is how long a kind stays in use without a permission: its role may be replaced at this moment.
	lacksBriefly = 3 * time.Second
	// fillTimeout is how long readiness waits for caches of declared kinds.
	fillTimeout = 30 * time.Second
)

func newChangeKindReconciler(c *cluster.Cluster, mgr ctrl.Manager, i Interceptor) (*ChangeKindReconciler, error) {
	api, err := newServedKinds(mgr)
	return &ChangeKindReconciler{
		Cluster: c, api: api, interceptor: i, elected: mgr.Elected(), judged: map[string]judgedKind{}, lacks: map[string]time.Time{},
		since: sync.OnceValue(c.Clock.Now), settled: make(chan struct{}),
	}, err
}

// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changekinds,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=app.ops.cloud.alipay.com,resources=changekinds/status,verbs=update
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get;list;watch
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=selfsubjectaccessreviews,verbs=create

// SetupWithManager adds the controller to the manager.
func (r *ChangeKindReconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.AddReadyzCheck("declared-kinds", r.filled); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("changekind").
		For(&v1alpha1.ChangeKind{}, builder.WithPredicates(
			predicate.Or(predicate.Predicate(predicate.GenerationChangedPredicate{}), deleting()))).
		// The CustomResourceDefinition of the kind, which has its name, comes, changes or goes.
		Watches(crdObject(), to(r.sameName)).
		// A cache is filled, or cannot be filled.
		WatchesRawSource(source.TypedChannel(r.Hub.Changed, handler.TypedEnqueueRequestsFromMapFunc(requestOf))).
		// This replica becomes the leader.
		WatchesRawSource(source.Func(r.whenElected)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 1, ReconciliationTimeout: reconcileTimeout, NeedLeaderElection: ptr.To(false),
		}).
		Complete(cluster.Quiet(r))
}

func requestOf(_ context.Context, name string) []reconcile.Request {
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

// sameName maps a CustomResourceDefinition to the ChangeKind of its kind.
func (r *ChangeKindReconciler) sameName(ctx context.Context, crd client.Object) []reconcile.Request {
	return requestOf(ctx, crd.GetName())
}

// deleting lets through objects whose deletion begins.
func deleting() predicate.Predicate {
	return updates(func(before, after client.Object) bool {
		return before.GetDeletionTimestamp() == nil && after.GetDeletionTimestamp() != nil
	})
}

// whenElected enqueues all ChangeKinds when this replica becomes the leader, and a request without a name, which writes the
// webhooks: the leader before may have died before it removed some.
func (r *ChangeKindReconciler) whenElected(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-r.elected:
		}
		for _, request := range cluster.Requests(ctx, r.View, &v1alpha1.ChangeKindList{}, cluster.Any) {
			queue.Add(request)
		}
		queue.Add(reconcile.Request{})
	}()
	return nil
}

func (r *ChangeKindReconciler) leads() bool {
	select {
	case <-r.elected:
		return true
	default:
		return false
	}
}

// filled is a check of readiness. It fails until the caches of all kinds that were Ready at the last status are in use. A
// cache that cannot be filled delays readiness for fillTimeout: it must not keep the replica from serving other kinds.
func (r *ChangeKindReconciler) filled(req *http.Request) error {
	ctx, cancel := context.WithTimeout(req.Context(), time.Second)
	defer cancel()
	_, err := r.isSettled(ctx)
	return err
}

// isSettled reports whether the caches of all kinds that were Ready are in use, or took too long. The error names the others.
func (r *ChangeKindReconciler) isSettled(ctx context.Context) (bool, error) {
	r.settling.Lock()
	defer r.settling.Unlock()
	select {
	case <-r.settled:
		return true, nil
	default:
	}
	var list v1alpha1.ChangeKindList
	if err := r.Cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list changekinds: %w", err)
	}
	if since := r.since(); r.Clock.Since(since) < fillTimeout {
		for i := range list.Items {
			c := &list.Items[i]
			if meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionReady) && r.Hub.Used(c.Name) == nil {
				return false, fmt.Errorf("the cache of %s is not filled yet", c.Name)
			}
		}
	}
	close(r.settled)
	return true, nil
}

// Reconcile judges one ChangeKind, and carries out the result.
func (r *ChangeKindReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var c v1alpha1.ChangeKind
	if err := r.Client.Get(ctx, req.NamespacedName, &c); apierrors.IsNotFound(err) {
		return r.forget(ctx, req.Name)
	} else if err != nil {
		return ctrl.Result{}, err
	}
	s, err := r.judge(ctx, &c)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.declare(ctx, &c, &s); err != nil {
		return cluster.Settle(ctx, ctrl.Result{}, err)
	}
	again := ctrl.Result{RequeueAfter: judgeAgain}
	if s.waits() || s.Lacks || len(s.Missing) > 0 {
		again.RequeueAfter = giveBackAgain
	}
	if !r.leads() {
		return again, nil
	}
	if settled, err := r.isSettled(ctx); !settled {
		again.RequeueAfter = time.Second
		log.FromContext(ctx).V(1).Info("the webhooks of declared kinds wait", "for", err)
		return again, nil // the conditions do not say yet that webhooks exist
	}
	leaves, without := c.DeletionTimestamp != nil && !s.waits(), ""
	if leaves {
		without = c.Name // its kind may still be in use, for the permissions went
	}
	s.WriteError = r.intercept(ctx, without)
	if leaves && s.WriteError == nil {
		r.Hub.Remove(c.Name)
		return cluster.Settle(ctx, again, r.release(ctx, &c))
	}
	if err := r.report(ctx, &c, &s); err != nil {
		return cluster.Settle(ctx, again, err)
	}
	if s.WriteError != nil {
		return ctrl.Result{}, s.WriteError
	}
	return again, nil
}

// forget removes a kind whose ChangeKind is gone.
func (r *ChangeKindReconciler) forget(ctx context.Context, name string) (ctrl.Result, error) {
	if _, known := r.judged[name]; name != "" && !known && r.Hub.Used(name) == nil {
		return ctrl.Result{}, nil // a definition that no ChangeKind declares
	}
	if r.leads() {
		if settled, _ := r.isSettled(ctx); !settled {
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
		// The webhooks go first: without the kind, they would deny.
		if err := r.intercept(ctx, name); err != nil {
			return ctrl.Result{}, err
		}
	}
	delete(r.judged, name)
	r.Hub.Remove(name)
	return ctrl.Result{}, nil
}

// intercept writes the webhooks of all kinds in use, without those of one name, and of kinds that leave.
func (r *ChangeKindReconciler) intercept(ctx context.Context, without string) error {
	if r.interceptor == nil {
		return nil
	}
	var kinds []*declared.Kind
	for _, k := range r.Kinds.Declared() {
		d, ok := k.(hub.Declared)
		if l, _ := k.(leavingKind); ok && !l.all && d.Declaration().Name != without {
			kinds = append(kinds, d.Declaration())
		}
	}
	return r.interceptor.Write(ctx, kinds)
}

// judge reads whether the kind can be defended.
func (r *ChangeKindReconciler) judge(ctx context.Context, c *v1alpha1.ChangeKind) (s kindState, err error) {
	s.leaving = c.DeletionTimestamp != nil
	served, problem, gone, err := r.api.read(ctx, r.Client, c)
	if s.NotServed, s.Gone = problem, gone; err != nil || problem != "" {
		return s, err
	}
	isOwn := func(k workload.Kind) bool {
		return schema.GroupResource{Group: k.GroupVersionKind().Group, Resource: k.Resource()}.String() == c.Name
	}
	if s.Native = slices.ContainsFunc(r.Kinds.Fixed(), isOwn); s.Native {
		s.Problem = "metadata.name: this kind is defended without a declaration; remove the ChangeKind"
		return s, nil
	}
	through, problem, err := r.through(c)
	if s.NotServed = problem; err != nil || problem != "" {
		return s, err
	}
	if s.Missing, err = r.missing(ctx, c, through); err != nil {
		return s, err
	}
	r.review(c.Name, &s)
	before, leaving := r.judged[c.Name], s.leaving
	kind, problem := declared.Accept(c, served)
	if used, ok := r.Hub.Used(c.Name).(hub.Declared); ok && leaving {
		problem, kind = "", used.Declaration() // the generation that is in use leaves: it halted the objects
	}
	if s.Problem = problem; problem != "" {
		return s, nil
	}
	s.Strays = r.hasStrays(ctx, kind, &s)
	now := judgedKind{c.UID, leaving, s.Strays, before.kind}
	if before.kind != nil && before == now && sameDeclaration(before.kind.Declaration(), kind) {
		s.kind = before.kind
		return s, nil
	}
	s.kind = declared.NewWorkloads(kind)
	if leaving || s.Strays {
		s.kind = leavingKind{declared.NewWorkloads(kind), leaving, s.Strays}
	}
	r.judged[c.Name] = judgedKind{c.UID, leaving, s.Strays, s.kind}
	return s, nil
}

// sameDeclaration reports whether two accepted ChangeKinds are of one generation, and of equal kinds.
func sameDeclaration(a, b *declared.Kind) bool {
	return a.Generation == b.Generation && a.GroupVersionKind == b.GroupVersionKind && reflect.DeepEqual(a.Spec, b.Spec)
}

// declare fills the cache of an accepted kind, and puts the kind into the registry. A kind that cannot be read leaves the
// registry. While a generation is not accepted, the generation in use stays.
func (r *ChangeKindReconciler) declare(ctx context.Context, c *v1alpha1.ChangeKind, s *kindState) (err error) {
	if over, err := r.needsNothing(ctx, c, s); err != nil || over {
		return err
	}
	switch {
	case s.NotServed != "" || len(s.Missing) > 0:
		if settled, _ := r.isSettled(ctx); settled && r.leads() && r.Hub.Used(c.Name) != nil {
			if err := r.intercept(ctx, c.Name); err != nil {
				return err
			}
		}
		delete(r.judged, c.Name)
		r.Hub.Remove(c.Name)
		return nil
	case s.Problem != "":
		r.Hub.Abandon(c.Name)
		return nil
	case c.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(c, v1alpha1.GiveBackFinalizer):
		return nil // it is gone in a moment
	}
	filled, err := r.Hub.Fill(c.Name, s.kind)
	if s.Filling = !filled; err != nil || !filled {
		return err
	}
	if err := r.count(ctx, c, s); err != nil || s.Halted > 0 && c.DeletionTimestamp == nil {
		return err
	}
	if r.leads() && c.DeletionTimestamp == nil && !controllerutil.ContainsFinalizer(c, v1alpha1.GiveBackFinalizer) {
		// From now on objects may be halted or held.
		if left, err := r.isLeft(ctx, c.Name); err != nil || left {
			return err
		}
		if err := r.finalize(ctx, c, controllerutil.AddFinalizer); err != nil {
			return err
		}
	}
	s.Fresh = r.Hub.Used(c.Name) != workload.Kind(s.kind)
	return r.Hub.Use(c.Name)
}

// count reads the objects of the newest cache of a kind.
func (r *ChangeKindReconciler) count(ctx context.Context, c *v1alpha1.ChangeKind, s *kindState) error {
	namespaces, err := r.EnrolledNamespaces(ctx)
	if err != nil {
		return err
	}
	list, _ := s.kind.ObjectList().(*unstructured.UnstructuredList)
	if err := r.Hub.Newest(c.Name).List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the objects of changekind %s: %w", c.Name, err)
	}
	enrolled := func(name string) bool { return slices.Contains(namespaces, name) }
	s.count(s.kind.Declaration(), list.Items, enrolled)
	if c.Status.ContentHash == s.kind.Declaration().ContentHash() {
		s.Stale = 0 // a release bypassed admission
	}
	return nil
}

// review keeps a kind in use that lacks a permission for a moment.
func (r *ChangeKindReconciler) review(name string, s *kindState) {
	if len(s.Missing) == 0 || r.Hub.Used(name) == nil {
		delete(r.lacks, name)
		return
	}
	if r.lacks[name].IsZero() {
		r.lacks[name] = r.Clock.Now()
	}
	if s.Lacks = r.Clock.Since(r.lacks[name]) < lacksBriefly; s.Lacks {
		s.Missing = nil
	}
}

// through returns the resources between the objects of a kind and their pods; the problem is empty, or which is not served.
func (r *ChangeKindReconciler) through(c *v1alpha1.ChangeKind) (all []schema.GroupResource, problem string, err error) {
	if c.Spec.Pods == nil {
		return nil, "", nil
	}
	for _, t := range c.Spec.Pods.Through {
		gvk := schema.FromAPIVersionAndKind(t.APIVersion, t.Kind)
		mapping, err := r.Client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		switch {
		case meta.IsNoMatchError(err):
			return nil, fmt.Sprintf("spec.pods.through: %s %s is not served", t.APIVersion, t.Kind), nil
		case err != nil:
			return nil, "", fmt.Errorf("find the resource of %s: %w", gvk, err)
		}
		all = append(all, mapping.Resource.GroupResource())
	}
	return all, "", nil
}

// missing returns the permissions that the operator lacks.
func (r *ChangeKindReconciler) missing(
	ctx context.Context, c *v1alpha1.ChangeKind, through []schema.GroupResource,
) (missing []string, err error) {
	for _, a := range permissionsOf(c, through) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a}}
		if err := r.Client.Create(ctx, review); err != nil {
			return nil, fmt.Errorf("review the permissions for %s: %w", c.Name, err)
		}
		if !review.Status.Allowed {
			missing = append(missing, describePermission(&a))
		}
	}
	return missing, nil
}

// report writes the status of a ChangeKind if it changes, and emits an event when the defense of its objects begins or ends.
func (r *ChangeKindReconciler) report(ctx context.Context, c *v1alpha1.ChangeKind, s *kindState) error {
	updated := c.DeepCopy()
	updated.Status.ObservedGeneration = c.Generation
	for _, condition := range s.conditions(r.Hub.Used(c.Name)) {
		condition.ObservedGeneration, condition.LastTransitionTime = c.Generation, metav1.NewTime(r.Clock.Now())
		v1alpha1.SetCondition("ChangeKind", &updated.Status.Conditions, condition)
	}
	updated.Status.Objects = s.Objects
	if s.kind != nil && !s.Filling && s.Halted == 0 && s.Stale == 0 && c.DeletionTimestamp == nil &&
		r.Hub.Used(c.Name) == workload.Kind(s.kind) {
		updated.Status.ContentHash = s.kind.Declaration().ContentHash()
	}
	if equality.Semantic.DeepEqual(updated.Status, c.Status) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, updated); err != nil {
		return fmt.Errorf("update the status of changekind %s: %w", c.Name, err)
	}
	was, is := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionReady),
		meta.FindStatusCondition(updated.Status.Conditions, v1alpha1.ConditionReady)
	if was == nil || was.Status != is.Status || was.Reason != is.Reason {
		log.FromContext(ctx).Info("the defense of a declared kind changed", "changekind", c.Name, "ready", is.Status, "reason", is.Reason,
			"message", is.Message)
	}
	// While a cache is filled, after a restart or for a new generation, nothing changed.
	if was != nil && was.Status == metav1.ConditionTrue && is.Status != metav1.ConditionTrue && is.Reason != v1alpha1.ReasonFilling {
		r.Recorder.Eventf(updated, nil, corev1.EventTypeWarning, v1alpha1.EventDefenseChanged, "Judge", "%s",
			v1alpha1.EventMessage(v1alpha1.EventDefenseChanged, is.Message))
	}
	return nil
}
