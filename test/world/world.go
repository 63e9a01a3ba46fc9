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
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/observer"
)

const (
	// OperatorNamespace is where the operator runs.
	OperatorNamespace = "altershieldoperator-system"
	// Operator is the user it runs as.
	Operator = "system:serviceaccount:" + OperatorNamespace + ":altershieldoperator-controller-manager"
	// Namespace is where stories happen; it is enrolled unless a story says
	// otherwise.
	Namespace = "shop"
	// User is who does what a story says.
	User = "jane"
)

const (
	// patience is how long a story waits for what must come.
	patience = time.Hour
	// quiet is longer than every wait of the operator, its polls of minutes too.
	quiet = 5 * time.Minute
	// restartAfter is how long a process that died stays down.
	restartAfter = 2 * time.Second
	// maxSteps is more than any story takes while it waits for something.
	maxSteps = 50_000
	// maxStepsAtOnce is several times what happens anywhere within a second, lastSteps how
	// many of them are told where more does.
	maxStepsAtOnce = 5_000
	lastSteps      = 30

	fieldOwner = client.FieldOwner(v1alpha1.FieldManager)
)

// Options of a world.
type Options struct {
	// Server: there is AlterShield Server.
	Server bool
	// ServerOptions are of its simulator.
	ServerOptions simulator.Options
	// Settings replace the defaults: enable and content by name.
	Settings map[string]v1alpha1.OpsConfigValue
	// Policies are there beside the default one, which they may replace.
	Policies []v1alpha1.DefensePolicy
	// Bare: there are no settings and no policies yet.
	Bare bool
	// Unenrolled: the namespace is not enrolled at the start.
	Unenrolled bool
	// Processes are how many managers decide at once, 1 by default. More than one
	// does so only while a lease is lost and nobody knows.
	Processes int
	// Seed chooses what happens next, at every request; zero is a fixed order.
	Seed uint64
	// Clocks are how far the clocks of the machines are ahead of the API server's, on which
	// one process after the other runs; by default some are minutes off.
	Clocks []time.Duration
	// Lag is how far the caches are behind, by kind.
	Lag map[string]time.Duration
	// Fault is what goes wrong.
	Fault Fault
	// Broken makes the wrapper of all writes of a world, which stands for a mistake
	// in the operator: it may carry a write out later, or not at all.
	Broken func() func(write string, carryOut func() error) error
	// Nodes are how many there are. With none, pods start at once; what becomes of
	// them on nodes, Images says, by image.
	Nodes  int
	Images map[string]Image
	// NodeRoom is for how many pods there is room on a node; without limit when 0.
	NodeRoom int
	// Kinds are the kinds of workloads that are defended; by default those that the
	// operator defends.
	Kinds *workload.Registry
	// Forgets: what happened is not kept, only how often, so that a world that goes
	// on for months does not grow. It has no faults: those count what is written.
	Forgets bool
	// Verbose keeps a log of all that happens.
	Verbose bool
}

// Event is what users are told.
type Event struct{ Name, Reason, Message string }

// World is a cluster with an operator.
type World struct {
	api       *api
	kinds     *workload.Registry
	hooks     map[schema.GroupKind]hooks
	cluster   *cluster
	server    *server
	processes []*Process
	// all are the processes there ever were.
	all []*Process
	// down: what died stays dead.
	down bool
	// unreached: the API server does not reach the webhooks.
	unreached bool
	// clocks are how far the machines are ahead.
	clocks  []time.Duration
	random  *rand.Rand
	fault   Fault
	broken  func(write string, carryOut func() error) error
	verbose bool
	forgets bool

	// writes and calls are those of the operator, since the story began; written how
	// often it wrote what, to all objects of a kind.
	writes, calls []string
	written       map[string]int
	// hit is what the fault was at.
	hit string

	// busySteps are the steps of the second that began at busySince, last the
	// newest of them once they are many.
	busySince time.Time
	busySteps int
	last      []string

	mu sync.Mutex
	// waiting are the goroutines that wait to be let on, running is the one that is.
	waiting []*task
	running string
	wake    chan struct{}
	events  []Event
	notes   []string
	// errors are those that the processes logged.
	errors []string
}

// New makes a world, in a bubble of testing/synctest. End it with Close.
func New(o Options) *World {
	w := &World{api: newAPI(), kinds: cmp.Or(o.Kinds, workload.Defended()), hooks: map[schema.GroupKind]hooks{}, wake: make(chan struct{}, 1), verbose: o.Verbose, forgets: o.Forgets, written: map[string]int{}}
	if w.clocks = o.Clocks; len(o.Clocks) == 0 {
		w.clocks = []time.Duration{0, 5 * time.Minute, -5 * time.Minute}
	}
	w.api.admit = w.admission
	w.cluster = newCluster(w.api, o)
	if o.Server {
		w.server = newServer(w, o.ServerOptions)
	}
	ctx := as(context.Background(), writer{user: "admin"})
	for _, name := range []string{OperatorNamespace, Namespace} {
		must(w.api.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	if !o.Unenrolled {
		w.Enrol(true)
	}
	for _, object := range settings.DefaultObjects(OperatorNamespace) {
		if o.Bare {
			break
		}
		if v, ok := o.Settings[object.Name]; ok {
			object.Spec.Enable, object.Spec.Content = v.Enable, v.Content
		}
		must(w.api.client.Create(ctx, &object))
		w.accept(ctx, &object)
	}
	for _, object := range append([]v1alpha1.DefensePolicy{*policy.Default(OperatorNamespace)}, o.Policies...) {
		if !o.Bare {
			w.setPolicy(ctx, &object)
		}
	}
	for n := range max(o.Processes, 1) {
		w.processes = append(w.processes, w.newProcess(n, o.Lag))
	}
	if !o.Bare {
		// The operator looks at what there is before anything else.
		w.For(time.Second)
	}
	if o.Seed != 0 {
		w.random = rand.New(rand.NewPCG(o.Seed, 1))
	}
	w.fault, w.writes, w.calls, w.written = o.Fault, nil, nil, map[string]int{}
	if o.Broken != nil {
		w.broken = o.Broken()
	}
	return w
}

// setPolicy makes a policy, or changes it, as the operator accepted it.
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

// accept says of a setting what the operator would, so that each story need not
// begin with it.
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

// Close ends everything in the world.
func (w *World) Close() {
	w.down = true
	for _, p := range w.all {
		if !p.dead {
			p.die()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, p := range w.all {
			p.running.Wait()
		}
		if w.server != nil {
			w.server.Shutdown()
		}
	}()
	for {
		w.happen()
		select {
		case <-done:
			return
		case <-w.wake:
		case <-time.After(time.Second):
		}
	}
}

// note keeps a line of the log.
func (w *World) note(format string, args ...any) {
	if !w.verbose {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// Log is what happened.
func (w *World) Log() string { return strings.Join(w.notes, "\n") }

// Writes are the operator's, since the story began.
func (w *World) Writes() []string { return w.writes }

// Written is how often the operator wrote what, since the story began.
func (w *World) Written() map[string]int { return maps.Clone(w.written) }

// Calls are the operator's to AlterShield Server, since the story began.
func (w *World) Calls() []string { return w.calls }

// Server is AlterShield Server; nil where there is none.
func (w *World) Server() *simulator.Simulator { return w.server.Simulator }

// Events are what users were told.
func (w *World) Events() []Event { return w.events }

// HeldWrites says what it took to hold the rollouts of a workload.
func (w *World) HeldWrites(name string) observer.HoldFigures {
	return w.api.judge.HeldWrites(Namespace, name)
}

// Violations are the invariants that did not hold.
func (w *World) Violations() []observer.Violation { return w.api.violations }

func (w *World) user() context.Context {
	if !w.down {
		w.Alive()
	}
	return as(context.Background(), writer{user: User})
}

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

// PatchObject makes a merge patch of what has the kind, the namespace and the name of an
// object, as a user.
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

// SetPod lets a pod be in a state, and stay so, in a world without nodes.
func (w *World) SetPod(pod *corev1.Pod, status *corev1.PodStatus) {
	w.note("cluster: pod %s is told how to be", pod.Name)
	if w.cluster.told == nil {
		w.cluster.told = map[types.UID]corev1.PodStatus{}
	}
	w.cluster.told[pod.UID] = *status
	w.cluster.at(time.Now())
}

// Set changes a setting.
func (w *World) Set(name string, enable bool, content string) {
	o, ok := w.api.objects[key{"OpsConfigInfo", OperatorNamespace, name}]
	if !ok {
		w.Failf("there is no setting %s", name)
	}
	next := o.DeepCopyObject().(*v1alpha1.OpsConfigInfo) //nolint:errcheck // the kind says so
	next.Spec.Enable, next.Spec.Content = enable, content
	must(w.api.client.Update(w.user(), next))
}

// Uninstall deletes the operator's settings, as an uninstall does that removes their kind.
func (w *World) Uninstall() {
	for _, o := range list[*v1alpha1.OpsConfigInfo](w.api, "OpsConfigInfo", OperatorNamespace) {
		must(w.api.client.Delete(as(context.Background(), writer{user: "admin"}), asObject(o.DeepCopyObject())))
	}
}

// Enrol enrols the namespace, or ends that.
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

// Deployment is one as it is stored; nil when there is none.
func (w *World) Deployment(name string) *appsv1.Deployment {
	d, _ := w.api.objects[key{"Deployment", Namespace, name}].(*appsv1.Deployment)
	return d
}

// Stored is what has the kind, the namespace and the name of an object, as it is stored;
// the zero value when there is none.
func Stored[T client.Object](w *World, o T) T {
	stored, _ := w.api.objects[keyOf(o)].(T)
	return stored
}

// Fleet is one as it is stored; nil when there is none.
func (w *World) Fleet(name string) *workloadtest.FleetObject {
	f, _ := w.api.objects[key{"Fleet", Namespace, name}].(*workloadtest.FleetObject)
	return f
}

// Changes are the releases of a Deployment, by version.
func (w *World) Changes(name string) map[string]*v1alpha1.ChangeWorkload {
	if d := w.Deployment(name); d != nil {
		return w.ChangesOf(d)
	}
	return nil
}

// ChangesOf are the releases of a workload, by version.
func (w *World) ChangesOf(o client.Object) map[string]*v1alpha1.ChangeWorkload {
	found := map[string]*v1alpha1.ChangeWorkload{}
	for _, c := range list[*v1alpha1.ChangeWorkload](w.api, "ChangeWorkload", Namespace) {
		if metav1.IsControlledBy(c, o) {
			found[c.Spec.Reversion] = c
		}
	}
	return found
}

// Change is the release a workload is at; nil when it is not recorded.
func (w *World) Change(name string) *v1alpha1.ChangeWorkload {
	d := w.Deployment(name)
	if d == nil {
		return nil
	}
	return w.Changes(name)[d.Labels[v1alpha1.VersionLabel]]
}

// Batches are those of a release.
func (w *World) Batches(c *v1alpha1.ChangeWorkload) (batches []*v1alpha1.ChangePod) {
	for _, b := range list[*v1alpha1.ChangePod](w.api, "ChangePod", Namespace) {
		if metav1.IsControlledBy(b, c) {
			batches = append(batches, b)
		}
	}
	return batches
}

// Policies are those of the operator's namespace.
func (w *World) Policies() []*v1alpha1.DefensePolicy {
	return list[*v1alpha1.DefensePolicy](w.api, "DefensePolicy", OperatorNamespace)
}

// Pods are all of the namespace.
func (w *World) Pods() []*corev1.Pod { return list[*corev1.Pod](w.api, "Pod", Namespace) }

// List returns the objects of a kind in the namespace.
func List[T client.Object](w *World, kind string) []T { return list[T](w.api, kind, Namespace) }

func textReader(s string) io.Reader { return strings.NewReader(s) }
