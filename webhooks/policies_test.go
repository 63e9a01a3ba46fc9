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
package webhooks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	policies "github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const operatorsNamespace = "altershieldoperator-system"

// policyOf returns an accepted policy with one check at admission by these rules.
func policyOf(namespace, name string, expressions ...string) v1alpha1.DefensePolicy {
	p := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}}
	c := v1alpha1.PolicyCheck{Name: "check", Stage: v1alpha1.StageAdmission, Cel: &v1alpha1.CelCheck{}}
	for _, r := range expressions {
		c.Cel.Rules = append(c.Cel.Rules, v1alpha1.CelRule{Expression: r, Message: "it is " + name})
	}
	p.Spec.Checks = []v1alpha1.PolicyCheck{c}
	return accepted(p)
}

// accepted returns a policy whose spec is in force.
func accepted(p v1alpha1.DefensePolicy) v1alpha1.DefensePolicy {
	p.Status.InForce, p.Status.InForceGeneration = p.Spec.DeepCopy(), p.Generation
	return p
}

// withPolicies returns options with these policies, in the namespace of the test.
func withPolicies(list ...v1alpha1.DefensePolicy) Options {
	watch := rules.NewWatch(clock.RealClock{}, func(rules.Policy, time.Time) {})
	return Options{Self: self, Log: logr.Discard(), Settings: observing, Policies: policiesOf(list...), Rules: watch}
}

func policiesOf(list ...v1alpha1.DefensePolicy) func(context.Context, string) (Policies, error) {
	ns := cluster.NamespaceObject()
	ns.Name, ns.Labels = "default", map[string]string{"tier": "critical"}
	return func(_ context.Context, namespace string) (Policies, error) {
		if namespace != "default" {
			return Policies{}, errors.New("asked for the wrong namespace")
		}
		of := slices.DeleteFunc(slices.Clone(list), func(p v1alpha1.DefensePolicy) bool {
			return p.Namespace != namespace && p.Namespace != operatorsNamespace
		})
		policies.Sort(of, operatorsNamespace)
		return Policies{Policies: of, Operator: operatorsNamespace, Namespace: cluster.Namespace{Meta: ns, Enrolled: true}}, nil
	}
}

func testPolicy(t *testing.T, k kindOfTest) {
	stored, changed := released(""), strings.Replace(released(""), `"test":"123"`, `"test":"1234"`, 1)
	no := policyOf("default", "no", "false")
	observes, disabled, later := no, no, no
	observes.Spec.Mode, observes.Name = v1alpha1.ModeObserve, "observes"
	observes = accepted(observes)
	disabled.Spec.Mode = v1alpha1.ModeDisabled
	later.Generation, later.Spec = 2, policyOf("", "", "true").Spec // not accepted yet
	fresh := no
	fresh.Status = v1alpha1.DefensePolicyStatus{}
	advised := no
	advised.Spec.Suggestion = "see the handbook"
	advised = accepted(advised)
	selecting := func(name string, labels map[string]string) v1alpha1.DefensePolicy {
		p := policyOf(operatorsNamespace, name, "false")
		p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: labels}
		return accepted(p)
	}
	onlyCritical := policyOf("default", "labelled", "false")
	onlyCritical.Spec.WorkloadSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "critical"}}
	onlyCritical = accepted(onlyCritical)
	byTheBatch := no
	byTheBatch.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "check", Cel: &v1alpha1.CelCheck{Rules: []v1alpha1.CelRule{{Expression: "false"}}}}}
	byTheBatch = accepted(byTheBatch)
	annotated := strings.Replace(stored, `"annotations":{`, `"annotations":{"a":"b",`, 1)
	managed := func(object string) string {
		return strings.Replace(object, `"name":"sleep"`, `"name":"sleep","managedFields":[]`, 1)
	}
	const refused = "deployment sleep is refused by the check default/no/check: it is no"
	for name, test := range map[string]struct {
		policies      []v1alpha1.DefensePolicy
		before, after string
		edit          func(*admission.Request)
		denied        string
		warnings      []string // parts of each
	}{
		"no policies": {before: stored, after: changed},
		"a release":   {policies: []v1alpha1.DefensePolicy{no}, before: stored, after: changed, denied: refused},
		"a release, with a suggestion": {
			policies: []v1alpha1.DefensePolicy{advised}, before: stored, after: changed, denied: refused + "; see the handbook",
		},
		"a creation": {policies: []v1alpha1.DefensePolicy{no}, after: stored, denied: refused},
		"a dry run": {
			policies: []v1alpha1.DefensePolicy{no}, before: stored, after: changed,
			edit: func(r *admission.Request) { r.DryRun = ptr.To(true) }, denied: refused,
		},
		"another replica count": {
			policies: []v1alpha1.DefensePolicy{no}, before: stored, after: strings.Replace(stored, `"replicas":5`, `"replicas":6`, 1),
		},
		"another annotation": {policies: []v1alpha1.DefensePolicy{no}, before: stored, after: annotated},
		"the operator's own": {policies: []v1alpha1.DefensePolicy{no}, before: stored, after: changed, edit: asOwn},
		"the operator's user, not the operator": {
			policies: []v1alpha1.DefensePolicy{no}, before: stored, after: changed,
			edit: func(r *admission.Request) { r.UserInfo.Username = self }, denied: refused,
		},
		"being deleted": {
			policies: []v1alpha1.DefensePolicy{no}, before: stored,
			after: strings.Replace(changed, `"name":"sleep"`, `"name":"sleep","deletionTimestamp":"2026-01-01T00:00:00Z"`, 1),
		},
		"opted out": {
			policies: []v1alpha1.DefensePolicy{no}, before: stored,
			after: strings.Replace(changed, `"labels":{`, `"labels":{`+labelled(v1alpha1.DefenseLabel, "disabled"), 1),
		},
		"in observe mode": {
			policies: []v1alpha1.DefensePolicy{no}, before: stored,
			after:    annotatedWith(changed, v1alpha1.SettingAnnotationPrefix+settings.NameObserve, "enabled"),
			warnings: []string{"allowed in observe mode"},
		},
		"a policy in observe mode": {
			policies: []v1alpha1.DefensePolicy{observes}, before: stored, after: changed,
			warnings: []string{"default/observes/check: it is no"},
		},
		"a disabled policy": {policies: []v1alpha1.DefensePolicy{disabled}, before: stored, after: changed},
		"a policy whose last change is not accepted yet": {
			policies: []v1alpha1.DefensePolicy{later}, before: stored, after: changed, denied: refused,
		},
		"a policy that was never accepted": {policies: []v1alpha1.DefensePolicy{fresh}, before: stored, after: changed},
		"a check at another stage":         {policies: []v1alpha1.DefensePolicy{byTheBatch}, before: stored, after: changed},
		"of another namespace": {
			policies: []v1alpha1.DefensePolicy{policyOf("other", "no", "false")}, before: stored, after: changed,
		},
		"of the operator": {
			policies: []v1alpha1.DefensePolicy{selecting("ops", map[string]string{"tier": "critical"})}, before: stored, after: changed,
			denied: "deployment sleep is refused by the check " + operatorsNamespace + "/ops/check: it is ops",
		},
		"of the operator, for other namespaces": {
			policies: []v1alpha1.DefensePolicy{selecting("ops", map[string]string{"tier": "other"})}, before: stored, after: changed,
		},
		"for other workloads": {policies: []v1alpha1.DefensePolicy{onlyCritical}, before: stored, after: changed},
		"a policy of the namespace passes, a policy of the operator does not": {
			policies: []v1alpha1.DefensePolicy{policyOf("default", "yes", "true"), selecting("ops", nil)}, before: stored, after: changed,
			denied: "/ops/check: it is ops",
		},
		"two": {
			policies: []v1alpha1.DefensePolicy{no, selecting("ops", nil)}, before: stored, after: changed,
			denied: "is refused by 2 checks: " + operatorsNamespace + "/ops/check: it is ops | default/no/check: it is no",
		},
		"a rule that cannot be evaluated": {
			policies: []v1alpha1.DefensePolicy{policyOf("default", "wrong", "object.spec.nothing == 1")}, before: stored, after: changed,
			warnings: []string{"without the check default/wrong/check, which could not be made: rules[0]: no such key: nothing"},
		},
		"a rule that does not compile": {
			policies: []v1alpha1.DefensePolicy{policyOf("default", "wrong", "pod.spec.nothing == 1")}, before: stored, after: changed,
			warnings: []string{"could not be made: rules[0].expression: it does not compile"},
		},
		"variables of an update": {
			policies: []v1alpha1.DefensePolicy{policyOf("default", "known",
				"object.metadata.name == 'sleep' && object.kind == oldObject.kind && type(object.spec.replicas) == int",
				"request.operation == 'UPDATE' && request.kind.kind == object.kind && request.userInfo.username == 'jane' && "+
					"request.namespace == 'default' && request.name == 'sleep' && request.dryRun == false",
				"request.resource.resource.startsWith(object.kind.lowerAscii()) && request.options.fieldManager == 'kubectl' && "+
					"!has(request.object) && !has(request.uid)",
				"namespaceObject.metadata.name == 'default' && namespaceObject.metadata.labels.tier == 'critical' && "+
					"!has(namespaceObject.metadata.annotations)")},
			before: stored, after: changed,
		},
		"variables of a creation": {
			policies: []v1alpha1.DefensePolicy{policyOf("default", "known", "oldObject == null && request.operation == 'CREATE'")},
			after:    stored,
		},
		"variables without managed fields": {
			policies: []v1alpha1.DefensePolicy{policyOf("default", "known",
				"!has(object.metadata.managedFields) && !has(oldObject.metadata.managedFields)")},
			before: managed(stored), after: managed(changed),
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := withPolicies(test.policies...)
			req := makeRequest(test.before, test.after)
			if test.edit != nil {
				test.edit(&req)
			}
			got := review(t, newPolicy(o, k, newEvaluator(&o)), k.of(req))
			if got.Allowed != (test.denied == "") || !got.Allowed && !strings.Contains(got.Result.Message, k.words.Replace(test.denied)) {
				t.Errorf("allowed: %t, %+v, want %q", got.Allowed, got.Result, test.denied)
			}
			if len(got.Warnings) != len(test.warnings) {
				t.Errorf("warnings %q", got.Warnings)
			}
			for i, want := range test.warnings {
				if i < len(got.Warnings) && !strings.Contains(got.Warnings[i], want) {
					t.Errorf("warning %q, want %q", got.Warnings[i], want)
				}
			}
		})
	}
}

// TestPolicyLetsUndosPass: an undo passes without checks.
func TestPolicyLetsUndosPass(t *testing.T) {
	blocked := strings.Replace(released(labelled(v1alpha1.SuspendLabel, "1700000000")), `"annotations":{`,
		`"uid":"u","annotations":{"`+v1alpha1.SuspendedByAnnotation+`":"`+sleepVersion+` 1",`, 1)
	o := withPolicies(policyOf("default", "no", "false"))
	known := rollback.Past{
		Changes: []v1alpha1.ChangeWorkload{{
			Spec:   v1alpha1.ChangeWorkloadSpec{Reversion: sleepVersion, Release: 1},
			Status: v1alpha1.ChangeWorkloadStatus{Status: v1alpha1.ChangeWorkloadSuspend, ObservedRelease: 1},
		}},
		History: []workload.Revision{{Name: "r", Version: repairVersion}},
	}
	for name, back := range map[string]bool{"an undo": true, "an unknown version": false} {
		t.Run(name, func(t *testing.T) {
			o.Past = func(context.Context, string, types.UID) (rollback.Past, error) {
				if back {
					return known, nil
				}
				return rollback.Past{Changes: known.Changes}, nil
			}
			req := makeRequest(blocked, strings.ReplaceAll(blocked, `"test":"123"`, `"test":"1234"`))
			req.Object.Raw = applyPatch(t, string(req.Object.Raw), review(t, mutatingOf(o, deployments), req).Patch)
			if got := review(t, newPolicy(o, deployments, newEvaluator(&o)), req); got.Allowed != back {
				t.Errorf("allowed: %t, %+v", got.Allowed, got.Result)
			}
		})
	}
}

// TestPolicyFails: after an error the request passes with a warning, and the error is logged.
func TestPolicyFails(t *testing.T) {
	changed := strings.Replace(released(""), `"test":"123"`, `"test":"1234"`, 1)
	for name, read := range map[string]func(context.Context, string) (Policies, error){
		"a cache that is not filled": func(context.Context, string) (Policies, error) { return Policies{}, errors.New("no cache") },
		"a panic":                    func(context.Context, string) (Policies, error) { panic("no cache") },
	} {
		t.Run(name, func(t *testing.T) {
			logged := ""
			o := Options{Self: self, Policies: read, Log: funcr.New(func(_, line string) { logged += line }, funcr.Options{})}
			got := review(t, newPolicy(o, deployments, newEvaluator(&o)), makeRequest(released(""), changed))
			if !got.Allowed || len(got.Warnings) != 1 || !strings.Contains(logged, "no cache") {
				t.Errorf("allowed: %t, warnings %q, log %q", got.Allowed, got.Warnings, logged)
			}
		})
	}
}

// TestPoliciesBy: a namespace that was created just now is read from the API server.
func TestPoliciesBy(t *testing.T) {
	scheme := apiruntime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	p, with := policyOf("operator", "no", "false"), wrappers.MakeNamespace("shop").Enrolled().Obj()
	client := func(objects ...client.Object) client.Client {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, p.DeepCopy())...).Build()
	}
	for name, v := range map[string]cluster.View{
		"in the cache":           {Operator: "operator", Cached: client(with), Live: client()},
		"only in the API server": {Operator: "operator", Cached: client(), Live: client(with)},
	} {
		got, err := PoliciesBy(v)(t.Context(), "shop")
		if err != nil || len(got.Policies) != 1 || !got.Namespace.Enrolled {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
}

// counted returns the number of results with a phase of a policy's checks.
func counted(t *testing.T, policy string, phase v1alpha1.CheckPhase) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "altershield_checks_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			has := func(name, value string) bool {
				return slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == name && l.GetValue() == value })
			}
			if has("policy", policy) && has("phase", string(phase)) {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// expensive returns a policy whose rules cost nearly as much as a rule may.
func expensive(namespace, name string, count int) v1alpha1.DefensePolicy {
	rule := "object.many.all(a, object.many.all(b, object.many.all(c, a + b + c >= 0)))"
	p := policyOf(namespace, name, slices.Repeat([]string{rule}, count)...)
	if problem := policies.Accepted(&p, operatorsNamespace); problem != "" { // also compiles
		panic(problem)
	}
	return p
}

// manyRequest returns a release with an object for the rules of expensive.
func manyRequest() admission.Request {
	many := `"many":[` + strings.TrimSuffix(strings.Repeat("1,", 60), ",") + `],"spec"`
	changed := strings.Replace(released(""), `"test":"123"`, `"test":"1234"`, 1)
	return makeRequest(strings.Replace(released(""), `"spec"`, many, 1), strings.Replace(changed, `"spec"`, many, 1))
}

// TestPolicyAttack: expensive policies of a namespace end as errors, and policies of the
// operator still deny in time.
func TestPolicyAttack(t *testing.T) {
	list := []v1alpha1.DefensePolicy{policyOf(operatorsNamespace, "ops", "object.metadata.name != 'sleep'")}
	for i := range policies.MaxPolicies - 1 {
		list = append(list, expensive("default", fmt.Sprint("attack-", i), 16))
	}
	o := withPolicies(list...)
	e := newEvaluator(&o)
	before := counted(t, "default/attack-0", v1alpha1.CheckError)
	var requests sync.WaitGroup
	for range 8 {
		requests.Go(func() {
			began := time.Now()
			got := review(t, newPolicy(o, deployments, e), manyRequest())
			if took := time.Since(began); took > 5*policies.MaxAtAdmission {
				t.Errorf("the request took %s", took)
			}
			if got.Allowed || !strings.Contains(got.Result.Message, operatorsNamespace+"/ops/check: it is ops") {
				t.Errorf("the operator's policy did not count: %+v", got)
			}
			if !strings.Contains(strings.Join(got.Warnings, "\n"), "default/attack-") {
				t.Errorf("warnings %q", got.Warnings)
			}
		})
	}
	requests.Wait()
	if got := counted(t, "default/attack-0", v1alpha1.CheckError) - before; got != 8 {
		t.Errorf("%v checks counted as errors", got)
	}
	for e.operators.InUse() || e.tenants.InUse() { // until interrupted evaluations end
		runtime.Gosched()
	}
}

// TestPolicyOfOthersUnderAttack: checks of a namespace are made while other namespaces use all
// their slots.
func TestPolicyOfOthersUnderAttack(t *testing.T) {
	o := withPolicies(policyOf("default", "no", "false"))
	e := newEvaluator(&o)
	var give []func()
	for i := range maxTenants - 1 {
		release, err := e.tenants.Acquire(t.Context(), slots.Work{Namespace: fmt.Sprint("attacker-", i)})
		if err != nil {
			t.Fatal(err)
		}
		give = append(give, release)
	}
	changed := strings.Replace(released(""), `"test":"123"`, `"test":"1234"`, 1)
	if got := review(t, newPolicy(o, deployments, e), makeRequest(released(""), changed)); got.Allowed {
		t.Error("the check was not made although a slot is free")
	}
	release, err := e.tenants.Acquire(t.Context(), slots.Work{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	got := review(t, newPolicy(o, deployments, e), makeRequest(released(""), changed))
	warned := strings.Join(got.Warnings, "; ")
	if !got.Allowed || len(got.Warnings) != 1 ||
		!strings.Contains(warned, "too many checks are made at once") && !strings.Contains(warned, "it took longer than 2s") {
		t.Errorf("allowed: %t, warnings %q", got.Allowed, got.Warnings)
	}
	for _, release := range append(give, release) {
		release()
	}
}

// TestPolicySetAside: a policy of a namespace whose evaluations do not end is set aside for a
// while, with a warning; a policy of the operator is not.
func TestPolicySetAside(t *testing.T) {
	for name, test := range map[string]struct{ namespace, warning string }{
		"of a namespace":  {"default", "the policy is set aside until"},
		"of the operator": {operatorsNamespace, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := policyOf(test.namespace, "no", "false")
			o := withPolicies(p)
			for range 3 {
				o.Rules.Abandoned(rules.Policy{
					Namespace: p.Namespace, Name: p.Name, Generation: 1, Operators: test.namespace == operatorsNamespace,
				})
			}
			e := newEvaluator(&o)
			changed := strings.Replace(released(""), `"test":"123"`, `"test":"1234"`, 1)
			got := review(t, newPolicy(o, deployments, e), makeRequest(released(""), changed))
			if got.Allowed != (test.warning != "") || !strings.Contains(strings.Join(got.Warnings, "\n"), test.warning) {
				t.Errorf("allowed: %t, warnings %q", got.Allowed, got.Warnings)
			}
			if e.operators.InUse() || e.tenants.InUse() {
				t.Error("a slot was not released")
			}
		})
	}
}

// TestPolicyTimeout: a check ends at its timeout.
func TestPolicyTimeout(t *testing.T) {
	p := expensive("default", "slow", 16)
	p.Spec.Checks[0].Timeout = &metav1.Duration{Duration: time.Millisecond}
	o := withPolicies(accepted(p))
	got := review(t, newPolicy(o, deployments, newEvaluator(&o)), manyRequest())
	const want = "without the check default/slow/check, which could not be made: it took longer than 1ms"
	if !got.Allowed || len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0], want) {
		t.Errorf("allowed: %t, warnings %q", got.Allowed, got.Warnings)
	}
}
