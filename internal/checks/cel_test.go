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

package checks

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// ruled is a batch of two pods, web-1 and web-2, with a rule of a policy.
type ruled struct {
	*testing.T
	clock  *clocktesting.FakePassiveClock
	began  time.Time
	api    client.Client
	checks *Checks
	s      Subject
	events []record.Event
	writes int
	// gets has the errors of reads by name; read lists the names that were read.
	gets    map[string]error
	reading sync.Mutex // pods are read concurrently
	read    []string
}

func newRuled(t *testing.T, rule string, with ...func(*v1alpha1.PolicyCheck)) *ruled {
	t.Helper()
	r := &ruled{T: t, began: testNow, clock: clocktesting.NewFakePassiveClock(testNow), gets: map[string]error{}}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	replicaSets := &unstructured.Unstructured{}
	replicaSets.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
	get := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
		if _, ok := into.(*unstructured.Unstructured); ok {
			r.reading.Lock()
			r.read = append(r.read, key.Name)
			r.reading.Unlock()
		}
		if err := r.gets[key.Name]; err != nil {
			return err
		}
		return c.Get(ctx, key, into, o...)
	}
	r.api = fake.NewClientBuilder().WithScheme(scheme).WithIndex(replicaSets, workload.IndexByOwner, workload.OwnerUID).
		WithIndex(&appsv1.ControllerRevision{}, workload.IndexByOwner, workload.HistoryOf).
		WithIndex(&corev1.Pod{}, workload.IndexByOwner, workload.OwnerUID).
		WithIndex(&v1alpha1.ChangePod{}, workload.IndexByOwner, workload.OwnerUID).
		WithInterceptorFuncs(interceptor.Funcs{Get: get}).Build()
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid"}}
	web.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "web:2"}}
	r.create(web)
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	if err := r.api.Get(t.Context(), client.ObjectKeyFromObject(web), stored); err != nil {
		t.Fatal(err)
	}
	template, err := workload.Template(workload.Deployment{}, stored)
	if err != nil {
		t.Fatal(err)
	}
	r.s.Workload = &workload.Workload{
		GVK: appsv1.SchemeGroupVersion.WithKind("Deployment"), Namespace: "ns", Name: "web", UID: "web-uid", Version: workload.Version(template),
	}
	r.s.Release, r.s.Batch = testRelease()
	for _, name := range []string{"web-1", "web-2"} {
		r.s.Batch.Spec.PodInfos = append(r.s.Batch.Spec.PodInfos, v1alpha1.PodInfo{Pod: name, UID: name})
		password := corev1.EnvVar{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "password"},
		}}
		r.create(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, UID: types.UID(name), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "web:2", Env: []corev1.EnvVar{password}}}},
		})
	}
	of := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "policy", Generation: 1}}
	of.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "rule", OnError: v1alpha1.SilenceFails, Cel: &v1alpha1.CelCheck{
		Rules: []v1alpha1.CelRule{{Expression: rule, Message: "it breaks a rule"}},
	}}}
	stamp := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: r.began.Add(after)} }
	check := v1alpha1.CheckStatus{
		Name: "ns/policy/rule", Type: v1alpha1.CheckTypeCel, Mode: v1alpha1.ModeEnforce, Generation: 1, Phase: v1alpha1.CheckRunning,
		StartTime: stamp(0), DueTime: stamp(0), Deadline: stamp(15 * time.Minute),
	}
	for _, f := range with {
		f(&of.Spec.Checks[0])
	}
	if !ptr.Deref(of.Spec.Checks[0].Wait, true) {
		check.Phase, check.Background = v1alpha1.CheckWatching, true
	}
	r.s.Policies, r.s.Selected = []v1alpha1.DefensePolicy{of}, policy.Workload{Namespace: "ns"}
	r.s.Batch.Status.Checks = []v1alpha1.CheckStatus{check}
	r.restart()
	return r
}

// ofAll evaluates a rule once for the batch.
func ofAll(c *v1alpha1.PolicyCheck) { c.Cel.ForEach = v1alpha1.CelPerBatch }

// inBackground runs a check in the background.
func inBackground(c *v1alpha1.PolicyCheck) { c.Wait = ptr.To(false) }

func (r *ruled) create(o client.Object) {
	r.Helper()
	if err := r.api.Create(r.Context(), o); err != nil {
		r.Fatal(err)
	}
}

// restart starts another process.
func (r *ruled) restart() {
	r.checks = New(&cluster.Cluster{
		Rules: rules.NewWatch(r.clock, func(rules.Policy, time.Time) {}), Clock: r.clock, Client: r.api,
		View: cluster.View{Cached: r.api, Live: r.api, Operator: "operator", Kinds: workload.Defended()},
	}, anywhere, nil)
}

func (r *ruled) check() *v1alpha1.CheckStatus { return &r.s.Batch.Status.Checks[0] }

// next makes one step, and writes the result.
func (r *ruled) next() Step {
	r.Helper()
	step, err := r.checks.Next(r.Context(), r.s)
	if err != nil {
		r.Fatal(err)
	}
	if step.Write != nil {
		if d := step.Write(r.s); !d.Void {
			r.s.Batch.Status, r.events, r.writes = *d.Batch, append(r.events, d.Events...), r.writes+1
		}
	}
	return step
}

func (r *ruled) pod(name string) *corev1.Pod {
	r.Helper()
	var pod corev1.Pod
	if err := r.api.Get(r.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &pod); err != nil {
		r.Fatal(err)
	}
	return &pod
}

// TestRules has the results of checks by a rule.
func TestRules(t *testing.T) {
	for name, test := range map[string]struct {
		rule   string
		with   []func(*v1alpha1.PolicyCheck)
		before func(r *ruled)
		phase  v1alpha1.CheckPhase
		failed []string
		// message is a part of the message.
		message string
		silence v1alpha1.OnSilence
	}{
		"true": {rule: "pod.spec.containers[0].image == 'web:2' && oldTemplate == null", phase: v1alpha1.CheckPassed, message: "for 2 pods"},
		"false of one": {
			rule:  "pod.metadata.name == 'web-1'",
			phase: v1alpha1.CheckFailed, failed: []string{"web-2"}, message: "pod web-2: it breaks a rule",
		},
		"false of all": {rule: "false", with: []func(*v1alpha1.PolicyCheck){ofAll}, phase: v1alpha1.CheckFailed, message: "it breaks a rule"},
		"the variables of a release": {
			rule: "workload.metadata.name == 'web' && newTemplate.spec.containers[0].image == 'web:2' && " +
				"release.kind == 'Deployment' && release.namespace == 'ns' && release.workload == 'web' && release.attempt == 1 && " +
				"release.lastBatch == true && release.previousVersion == '' && " +
				"release.changeStartTime < timestamp('2100-01-01T00:00:00Z')",
			phase: v1alpha1.CheckPassed,
		},
		"a Secret is named, and not read": {rule: "pod.spec.containers[0].env.all(e, !has(e.value) && e.valueFrom.secretKeyRef.name == 'db')",
			before: func(r *ruled) {
				r.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}, Data: map[string][]byte{"password": []byte("x")}})
			}, phase: v1alpha1.CheckPassed},
		"managed fields are left out": {
			rule:  "!has(pod.metadata.managedFields) && !has(workload.metadata.managedFields)",
			phase: v1alpha1.CheckPassed,
		},
		"a pod is gone": {
			rule: "size(pods) == 1 && pods[0].metadata.name == 'web-2'", with: []func(*v1alpha1.PolicyCheck){ofAll},
			before: func(r *ruled) {
				if err := r.api.Delete(r.Context(), r.pod("web-1")); err != nil {
					r.Fatal(err)
				}
			},
			phase: v1alpha1.CheckPassed, message: "for 1 pods",
		},
		"another pod has its name": {rule: "size(pods) == 1", with: []func(*v1alpha1.PolicyCheck){ofAll}, before: func(r *ruled) {
			r.s.Batch.Spec.PodInfos[0].UID = "before"
		}, phase: v1alpha1.CheckPassed},
		"a pod ended": {rule: "size(pods) == 1", with: []func(*v1alpha1.PolicyCheck){ofAll}, before: func(r *ruled) {
			pod := r.pod("web-1")
			pod.Status.Phase = corev1.PodFailed
			if err := r.api.Status().Update(r.Context(), pod); err != nil {
				r.Fatal(err)
			}
		}, phase: v1alpha1.CheckPassed},
		"no pod is left": {rule: "false", before: func(r *ruled) {
			for i := range r.s.Batch.Spec.PodInfos {
				r.s.Batch.Spec.PodInfos[i].UID = "before"
			}
		}, phase: v1alpha1.CheckSkipped},
		"a read that fails": {rule: "true", before: func(r *ruled) { r.gets["web-2"] = errors.New("no\nway") }, phase: v1alpha1.CheckRunning,
			message: "tried again until the deadline: get pod ns/web-2: no way"},
		"a read that fails to the end": {rule: "true", before: func(r *ruled) {
			r.gets["web-2"] = errors.New("no way")
			r.clock.SetTime(r.began.Add(15 * time.Minute))
		}, phase: v1alpha1.CheckError, message: "no way", silence: v1alpha1.SilenceFails},
		"the deadline was over when the operator came back": {rule: "pod.metadata.name == 'web-1'", before: func(r *ruled) {
			r.clock.SetTime(r.began.Add(time.Hour))
		}, phase: v1alpha1.CheckFailed, failed: []string{"web-2"}},
		"the workload has another template": {
			rule: "false", before: func(r *ruled) { r.s.Workload.Version = "another" },
			phase: v1alpha1.CheckRunning,
		},
		"the workload has another template to the end": {rule: "false", before: func(r *ruled) {
			r.s.Workload.Version = "another"
			r.clock.SetTime(r.began.Add(15 * time.Minute))
		}, phase: v1alpha1.CheckError, message: "another template by now", silence: v1alpha1.SilenceFails},
		"pods that are too large": {rule: "true", before: func(r *ruled) {
			for _, name := range []string{"web-1", "web-2"} {
				pod := r.pod(name)
				pod.Annotations = map[string]string{"large": strings.Repeat("x", 17<<20)}
				if err := r.api.Update(r.Context(), pod); err != nil {
					r.Fatal(err)
				}
			}
		}, phase: v1alpha1.CheckRunning, message: "the pods of the batch are too large: at most 32 MiB"},
		"a removed check": {rule: "false", before: func(r *ruled) { r.s.Policies = nil }, phase: v1alpha1.CheckCanceled},
		"a type that this version does not know": {
			rule: "false", before: func(r *ruled) { r.check().Type = "prometheus" },
			phase: v1alpha1.CheckCanceled,
		},
		"the policy selects another workload": {rule: "false", before: func(r *ruled) {
			r.s.Policies[0].Spec.WorkloadSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "api"}}
		}, phase: v1alpha1.CheckCanceled},
		"its delay became longer": {rule: "true", before: func(r *ruled) {
			r.s.Policies[0].Spec.Checks[0].Deadline = &metav1.Duration{Duration: time.Hour}
			r.s.Policies[0].Spec.Checks[0].Delay = &metav1.Duration{Duration: time.Minute}
		}, phase: v1alpha1.CheckRunning},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRuled(t, test.rule, test.with...)
			if test.before != nil {
				test.before(r)
			}
			r.next()
			c := r.check()
			if c.Phase != test.phase || c.OnSilence != test.silence || !slices.Equal(c.FailedPods, test.failed) ||
				!strings.Contains(c.Message, test.message) {
				t.Errorf("the check is %+v", c)
			}
		})
	}
}

// TestRulesSeeOnlyTheirOwn: only the workload and the pods of the batch are read.
func TestRulesSeeOnlyTheirOwn(t *testing.T) {
	r := newRuled(t, "size(pods) == 2", ofAll)
	r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other", UID: "other"}})
	r.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "web-1", UID: "web-1"}})
	r.read = nil
	r.next()
	slices.Sort(r.read)
	if got := slices.Compact(r.read); !slices.Equal(got, []string{"web", "web-1", "web-2"}) || r.check().Phase != v1alpha1.CheckPassed {
		t.Errorf("read %v, and the check is %+v", got, r.check())
	}
}

// TestRulesAreTriedAgain: a rule that cannot be evaluated is tried again, with one write.
func TestRulesAreTriedAgain(t *testing.T) {
	r := newRuled(t, "pod.no.such == 1")
	var waits []time.Duration
	for r.check().Phase == v1alpha1.CheckRunning {
		if step := r.next(); step.Write == nil {
			waits = append(waits, step.After)
			r.clock.SetTime(r.clock.Now().Add(step.After))
		}
		if len(waits) > 100 {
			t.Fatalf("it waits %v", waits)
		}
	}
	if !slices.Equal(waits[:4], []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute}) {
		t.Errorf("it waits %v", waits)
	}
	took := r.clock.Now().Sub(r.began)
	if c := r.check(); c.Phase != v1alpha1.CheckError || r.writes != 2 || took != 15*time.Minute {
		t.Errorf("after %s and %d writes the check is %+v", took, r.writes, c)
	}
	if len(r.events) != 1 || r.events[0].Reason != v1alpha1.EventCheckError {
		t.Errorf("events %+v", r.events)
	}
}

// TestRulesWait: nothing is read before the delay is over.
func TestRulesWait(t *testing.T) {
	r := newRuled(t, "false", func(c *v1alpha1.PolicyCheck) { c.Delay = &metav1.Duration{Duration: time.Minute} })
	r.next() // takes the delay from the policy
	r.clock.SetTime(r.began.Add(10 * time.Second))
	r.read = nil
	if step := r.next(); step.Write != nil || step.After != 50*time.Second || len(r.read) != 0 {
		t.Errorf("after %d reads it waits for %s", len(r.read), step.After)
	}
	r.clock.SetTime(r.began.Add(time.Minute))
	if r.next(); r.check().Phase != v1alpha1.CheckFailed {
		t.Errorf("the check is %+v", r.check())
	}
}

// TestRulesInBackground: a rule that is true is not written, and not evaluated again.
func TestRulesInBackground(t *testing.T) {
	r := newRuled(t, "true", inBackground)
	for range 3 {
		r.next()
	}
	if r.writes != 0 || r.check().Phase != v1alpha1.CheckWatching {
		t.Errorf("after %d writes the check is %+v", r.writes, r.check())
	}
	read := len(r.read)
	if r.next(); len(r.read) != read {
		t.Errorf("it was evaluated again")
	}
	// Another process evaluates it again, and another generation of the policy is another rule.
	r.restart()
	if r.next(); len(r.read) == read || r.writes != 0 {
		t.Errorf("another process wrote %d times, and read %d", r.writes, len(r.read)-read)
	}
	r.s.Policies[0].Generation, r.s.Policies[0].Spec.Checks[0].Cel.Rules[0].Expression = 2, "false"
	r.next()
	if c := r.check(); c.Phase != v1alpha1.CheckFailed || c.Generation != 2 {
		t.Errorf("the check is %+v", c)
	}
}

// TestRulesLateInBackground: a rule that could not be evaluated ends as Error even if no
// process runs at its deadline.
func TestRulesLateInBackground(t *testing.T) {
	r := newRuled(t, "pod.no.such == 1", inBackground)
	r.next()
	if c := r.check(); c.Phase != v1alpha1.CheckRunning || !c.Background || c.Reason != v1alpha1.ReasonCannotEvaluate {
		t.Errorf("the check is %+v", c)
	}
	r.clock.SetTime(r.began.Add(time.Hour))
	r.restart()
	r.next()
	if c := r.check(); c.Phase != v1alpha1.CheckError || c.OnSilence != v1alpha1.SilenceFails {
		t.Errorf("the check is %+v", c)
	}
}

// TestRulesTakeTurns: a namespace has one evaluation at a time, so that it does not delay
// other namespaces.
func TestRulesTakeTurns(t *testing.T) {
	r := newRuled(t, "true")
	mine, ok := r.checks.cel.tenants.Try("ns")
	if !ok {
		t.Fatal("there is no slot")
	}
	if step := r.next(); step.After != soon || r.writes != 0 {
		t.Errorf("it does not wait: %+v", step)
	}
	other, ok := r.checks.cel.tenants.Try("bank")
	if !ok {
		t.Error("there is no slot for another namespace")
	}
	if _, ok := r.checks.cel.tenants.Try("third"); ok {
		t.Error("there is a slot for a third namespace")
	}
	other()
	mine()
	if r.next(); r.check().Phase != v1alpha1.CheckPassed {
		t.Errorf("the check is %+v", r.check())
	}
	if r.checks.cel.tenants.InUse() {
		t.Error("its slot is kept")
	}
}

// TestRulesOfTheOperatorTakeTurns: policies of namespaces leave the slots of the operator's
// policies free.
func TestRulesOfTheOperatorTakeTurns(t *testing.T) {
	r := newRuled(t, "true")
	r.s.Policies[0].Namespace, r.s.Batch.Status.Checks[0].Name = "operator", "operator/policy/rule"
	for _, namespace := range []string{"ns", "bank"} {
		if _, ok := r.checks.cel.tenants.Try(namespace); !ok {
			t.Fatal("there is no slot")
		}
	}
	if r.next(); r.check().Phase != v1alpha1.CheckPassed {
		t.Errorf("the check is %+v", r.check())
	}
	if r.checks.cel.operators.InUse() {
		t.Error("its slot is kept")
	}
}

// TestRulesSetAside: rules of a policy that is set aside fail with an error meanwhile. Policies
// of the operator are not set aside.
func TestRulesSetAside(t *testing.T) {
	for _, namespace := range []string{"ns", "operator"} {
		t.Run(namespace, func(t *testing.T) {
			r := newRuled(t, "true")
			r.s.Policies[0].Namespace, r.s.Batch.Status.Checks[0].Name = namespace, namespace+"/policy/rule"
			for range 3 {
				r.checks.cel.watch.Abandoned(rules.Policy{
					Namespace: namespace, Name: "policy", Generation: 1, Operators: namespace == "operator",
				})
			}
			r.next()
			c := r.check()
			aside := strings.Contains(c.Message, "the policy is set aside until")
			if aside != (namespace == "ns") || aside != (c.Phase == v1alpha1.CheckRunning) {
				t.Errorf("the check is %+v", c)
			}
			r.clock.SetTime(r.began.Add(rules.AsideFor))
			if r.next(); r.check().Phase != v1alpha1.CheckPassed {
				t.Errorf("the check is %+v", r.check())
			}
		})
	}
}

// TestRulesWithoutStart: the check runs even if a user removed its start time from the status.
func TestRulesWithoutStart(t *testing.T) {
	r := newRuled(t, "true")
	r.s.Batch.Status.Checks[0].StartTime = nil
	if r.next(); r.check().Phase != v1alpha1.CheckPassed {
		t.Errorf("the check is %+v", r.check())
	}
}
