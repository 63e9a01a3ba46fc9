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
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/observer"
)

const (
	// patience is how long a story waits for an expected result.
	patience = time.Hour
	// quiet is longer than every wait of the operator: it polls for minutes, and a version has to run well for five.
	quiet = 6 * time.Minute
	// heldFor is how long watches get no events after a fault that holds them.
	heldFor = 3 * time.Second
	// restartAfter is how long a process that died stays down.
	restartAfter = 2 * time.Second
	// maxSteps is more than any story takes for one wait.
	maxSteps = 50_000
	// maxStepsAtOnce is several times the steps of the busiest second; lastSteps of them are
	// reported if there are more.
	maxStepsAtOnce = 5_000
	lastSteps      = 30

	fieldOwner = client.FieldOwner(v1alpha1.FieldManager)
)

// setPolicy creates or updates a policy, as the operator accepted it.
func (w *World) setPolicy(ctx context.Context, p *v1alpha1.DefensePolicy) {
	known := &v1alpha1.DefensePolicy{}
	if err := w.api.client.Get(ctx, client.ObjectKeyFromObject(p), known); err == nil {
		known.Spec = p.Spec
		must(w.api.client.Update(ctx, known))
	} else {
		known = p.DeepCopy()
		must(w.api.client.Create(ctx, known))
	}
	judgement := policy.Judge(known, OperatorNamespace, "")
	known.Status = v1alpha1.DefensePolicyStatus{InForce: &known.Spec, InForceGeneration: known.Generation,
		CheckCount: int32(len(known.Spec.Checks)), ObservedGeneration: known.Generation}
	v1alpha1.SetCondition("DefensePolicy", &known.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: judgement.Reason, Message: judgement.Message,
		ObservedGeneration: known.Generation, LastTransitionTime: metav1.Now(),
	})
	must(w.api.client.Status().Update(ctx, known))
}

// accept accepts a setting as the operator would, so that a story need not begin with it.
func (w *World) accept(ctx context.Context, o *v1alpha1.OpsConfigInfo) {
	a := settings.Assess(o)
	o.Status.InForce, o.Status.ObservedGeneration = a.InForce, o.Generation
	o.Status.Conditions = nil
	v1alpha1.SetCondition("OpsConfigInfo", &o.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: a.Reason, Message: a.Message,
		ObservedGeneration: o.Generation, LastTransitionTime: metav1.Now(),
	})
	must(w.api.client.Status().Update(ctx, o))
}

// Log returns the notes about all that happened.
func (w *World) Log() string { return strings.Join(w.notes, "\n") }

// Writes returns the writes of the operator since the story began.
func (w *World) Writes() []string { return w.writes }

// Written counts the writes of the operator by verb and kind, since the story began.
func (w *World) Written() map[string]int { return maps.Clone(w.written) }

// Calls returns the calls of the operator to AlterShield Server since the story began.
func (w *World) Calls() []string { return w.calls }

// Server returns AlterShield Server; nil if there is none.
func (w *World) Server() *simulator.Simulator { return w.server.Simulator }

// Events returns the events of the operator.
func (w *World) Events() []Event { return w.events }

// Violations returns the violated invariants.
func (w *World) Violations() []observer.Violation { return w.api.violations }

// Create creates an object, as a user.
func (w *World) Create(o client.Object) error { return w.api.client.Create(w.user(), o) }

// Delete deletes an object, as a user.
func (w *World) Delete(o client.Object) error {
	return w.api.client.Delete(w.user(), asObject(o.DeepCopyObject()))
}

// Patch makes a merge patch of a Deployment, as a user.
func (w *World) Patch(name, patch string) error {
	w.note("user: patch %s: %s", name, patch)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	return w.api.client.Patch(w.user(), d, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// PatchObject makes a merge patch of the object with the kind, namespace and name of o, as a user.
func (w *World) PatchObject(o client.Object, patch string) error {
	w.note("user: patch the %s %s: %s", kindOf(o), o.GetName(), patch)
	return w.api.client.Patch(w.user(), asObject(o.DeepCopyObject()), client.RawPatch(types.MergePatchType, []byte(patch)))
}

// PatchFleet makes a merge patch of a Fleet, as a user.
func (w *World) PatchFleet(name, patch string) error {
	w.note("user: patch the fleet %s: %s", name, patch)
	f := &workloadtest.FleetObject{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}}
	return w.api.client.Patch(w.user(), f, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// PatchStatus makes a merge patch of the status of an object, as a user.
func (w *World) PatchStatus(o client.Object, status any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	return w.api.client.Status().Patch(w.user(), asObject(o.DeepCopyObject()), client.RawPatch(types.MergePatchType, patch))
}

// SetPod sets the status of a pod for good, in a world without nodes.
func (w *World) SetPod(pod *corev1.Pod, status *corev1.PodStatus) {
	w.note("cluster: the status of pod %s is set", pod.Name)
	if w.cluster.chosen == nil {
		w.cluster.chosen = map[types.UID]corev1.PodStatus{}
	}
	w.cluster.chosen[pod.UID] = *status
	w.cluster.at(time.Now())
}

// Uninstall deletes the operator's settings, like an uninstall that removes their CRD.
func (w *World) Uninstall() {
	for _, o := range list[*v1alpha1.OpsConfigInfo](w.api, "OpsConfigInfo", OperatorNamespace) {
		must(w.api.client.Delete(as(context.Background(), writer{user: "admin"}), asObject(o.DeepCopyObject())))
	}
}

// Enrol enrols the namespace, or ends its enrolment.
func (w *World) Enrol(enrol bool) {
	ns := w.api.objects[key{"Namespace", "", Namespace}].DeepCopyObject().(*corev1.Namespace) //nolint:errcheck // the kind says so
	delete(ns.Labels, v1alpha1.EnrolledLabel)
	if enrol {
		metav1.SetMetaDataLabel(&ns.ObjectMeta, v1alpha1.EnrolledLabel, v1alpha1.EnrolledValue)
		now := metav1.Now()
		ns.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &now, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"f:labels":{"f:%s":{}}}}`, v1alpha1.EnrolledLabel)),
		}}
	}
	must(w.api.client.Update(as(context.Background(), writer{user: "admin"}), ns))
}

// Enrolled reports whether the namespace is enrolled.
func (w *World) Enrolled() bool {
	return w.api.objects[key{"Namespace", "", Namespace}].GetLabels()[v1alpha1.EnrolledLabel] == v1alpha1.EnrolledValue
}

// Deployment returns a stored Deployment; nil if there is none.
func (w *World) Deployment(name string) *appsv1.Deployment {
	d, _ := w.api.objects[key{"Deployment", Namespace, name}].(*appsv1.Deployment)
	return d
}

// Stored returns the stored object with the kind, namespace and name of o; the zero value if there
// is none.
func Stored[T client.Object](w *World, o T) T {
	stored, _ := w.api.objects[keyOf(o)].(T)
	return stored
}

// Fleet returns a stored Fleet; nil if there is none.
func (w *World) Fleet(name string) *workloadtest.FleetObject {
	f, _ := w.api.objects[key{"Fleet", Namespace, name}].(*workloadtest.FleetObject)
	return f
}

// Changes returns the releases of a Deployment, by version.
func (w *World) Changes(name string) map[string]*v1alpha1.ChangeWorkload {
	if d := w.Deployment(name); d != nil {
		return w.ChangesOf(d)
	}
	return nil
}

// ChangesOf returns the releases of a workload, by version.
func (w *World) ChangesOf(o client.Object) map[string]*v1alpha1.ChangeWorkload {
	found := map[string]*v1alpha1.ChangeWorkload{}
	for _, c := range list[*v1alpha1.ChangeWorkload](w.api, "ChangeWorkload", Namespace) {
		if metav1.IsControlledBy(c, o) {
			found[c.Spec.Reversion] = c
		}
	}
	return found
}

// Change returns the current release of a Deployment; nil if it is not recorded.
func (w *World) Change(name string) *v1alpha1.ChangeWorkload {
	d := w.Deployment(name)
	if d == nil {
		return nil
	}
	return w.Changes(name)[d.Labels[v1alpha1.VersionLabel]]
}

// Batches returns the batches of a release.
func (w *World) Batches(c *v1alpha1.ChangeWorkload) (batches []*v1alpha1.ChangePod) {
	for _, b := range list[*v1alpha1.ChangePod](w.api, "ChangePod", Namespace) {
		if metav1.IsControlledBy(b, c) {
			batches = append(batches, b)
		}
	}
	return batches
}

// Policies returns the policies in the operator's namespace.
func (w *World) Policies() []*v1alpha1.DefensePolicy {
	return list[*v1alpha1.DefensePolicy](w.api, "DefensePolicy", OperatorNamespace)
}

// Endpoints returns the endpoints in the operator's namespace.
func (w *World) Endpoints() []*v1alpha1.DefenseEndpoint {
	return list[*v1alpha1.DefenseEndpoint](w.api, "DefenseEndpoint", OperatorNamespace)
}

// Pods returns the pods of the namespace.
func (w *World) Pods() []*corev1.Pod { return list[*corev1.Pod](w.api, "Pod", Namespace) }

// List returns the objects of a kind in the namespace.
func List[T client.Object](w *World, kind string) []T { return list[T](w.api, kind, Namespace) }

func textReader(s string) io.Reader { return strings.NewReader(s) }

func newAPI() *api {
	a := &api{
		objects: map[key]client.Object{}, kinds: map[string]map[key]client.Object{}, owned: map[types.UID]map[key]client.Object{},
		creates: map[string]int{}, deletes: map[string]int{}, judge: observer.NewJudge(OperatorNamespace),
	}
	// Managed fields are left out: nothing here reads them, and they take most of the time.
	a.store = clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	store := fake.NewClientBuilder().
		WithScheme(scheme).
		WithRESTMapper(mapper).
		WithObjectTracker(a.store).
		// An API server selects events by these fields.
		WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string {
			return []string{string(o.(*corev1.Event).InvolvedObject.UID)} //nolint:errcheck // the kind says so
		}).
		WithIndex(&corev1.Event{}, "type", func(o client.Object) []string {
			return []string{o.(*corev1.Event).Type} //nolint:errcheck // the kind says so
		}).
		WithIndex(&corev1.Event{}, "reason", func(o client.Object) []string {
			return []string{o.(*corev1.Event).Reason} //nolint:errcheck // the kind says so
		}).
		Build()
	a.client = interceptor.NewClient(store, interceptor.Funcs{
		Create: a.create, Update: a.update, Patch: a.patch, Delete: a.delete,
		SubResourceCreate: a.evict, SubResourceUpdate: a.updateStatus, SubResourcePatch: a.patchStatus,
	})
	return a
}

func newCluster(a *api, o Options) *cluster {
	c := &cluster{api: a, progress: map[types.UID]time.Time{}}
	if o.Nodes > 0 {
		c.kubelets = newKubelets(o)
	}
	return c
}

// step acts on changes; it returns false if there is nothing to do.
func (c *cluster) step() bool {
	now := time.Now()
	if c.seen == c.api.history.end() && (c.next.IsZero() || now.Before(c.next)) {
		return false
	}
	before := c.api.history.end()
	c.seen, c.next = before, time.Time{}
	c.collect()
	c.runPods(list[*corev1.Pod](c.api, "Pod", ""))
	for _, d := range list[*appsv1.Deployment](c.api, "Deployment", "") {
		c.roll(d)
	}
	for _, rs := range list[*appsv1.ReplicaSet](c.api, "ReplicaSet", "") {
		c.replicate(rs)
	}
	for _, d := range list[*appsv1.Deployment](c.api, "Deployment", "") {
		c.writeStatus(d)
	}
	for _, s := range list[*appsv1.StatefulSet](c.api, "StatefulSet", "") {
		c.runSet(s)
	}
	for _, d := range list[*appsv1.DaemonSet](c.api, "DaemonSet", "") {
		c.runDaemon(d)
	}
	for _, f := range list[*workloadtest.FleetObject](c.api, "Fleet", "") {
		c.sail(f)
	}
	for _, course := range list[*workloadtest.CourseObject](c.api, "Course", "") {
		if next := course.DeepCopyObject().(*workloadtest.CourseObject); next.Sail() != next.Status { //nolint:errcheck // it is a copy
			next.Status = next.Sail()
			must(c.api.client.Status().Update(c.ctx(), next))
		}
	}
	return c.api.history.end() != before
}

func (c *cluster) runPods(pods []*corev1.Pod) {
	if c.kubelets != nil {
		c.kubelets.forget(pods)
	}
	for _, pod := range pods {
		if c.kubelets != nil {
			c.kubelets.run(c, pod)
		} else {
			c.runPod(pod)
		}
	}
}

func (w *World) user() context.Context {
	if !w.down {
		w.Alive()
	}
	return as(context.Background(), writer{user: User})
}

// Set changes a setting.
func (w *World) Set(name string, enable bool, content string) {
	o, ok := w.api.objects[key{"OpsConfigInfo", OperatorNamespace, name}]
	if !ok {
		w.Failf("the setting %s does not exist", name)
	}
	next := o.DeepCopyObject().(*v1alpha1.OpsConfigInfo) //nolint:errcheck // the kind says so
	next.Spec.Enable, next.Spec.Content = enable, content
	must(w.api.client.Update(w.user(), next))
}

// Alive waits for a running process, so that admission handles the requests of users.
func (w *World) Alive() *Process {
	w.Until("a process runs", func() bool { return len(w.alive()) > 0 })
	return w.alive()[0]
}
