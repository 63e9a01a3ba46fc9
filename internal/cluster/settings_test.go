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

package cluster

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func TestInForce(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	branch := func(namespace, content string) *v1alpha1.OpsConfigInfo {
		return &v1alpha1.OpsConfigInfo{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: settings.NameBranch},
			Spec:       v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeBranch, Enable: true, Content: content},
		}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(branch("operator", "7"), branch("own", "3")).Build()
	own := map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameBranch: "5"}
	for name, test := range map[string]struct {
		operator, namespace string
		annotations         map[string]string
		want                int32
	}{
		"the operator's":  {"operator", "other", nil, 7},
		"the namespace's": {"operator", "own", nil, 3},
		"the workload's":  {"operator", "own", own, 5},
		"the default":     {"elsewhere", "other", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := View{Cached: c, Operator: test.operator}.InForceRequested(t.Context(), test.namespace, test.annotations)
			if err != nil || got.BatchSize != test.want {
				t.Errorf("batches of %d, %v, want %d", got.BatchSize, err, test.want)
			}
		})
	}
	if _, err := (View{Cached: fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build()}).InForceIn(t.Context(), "own"); err == nil {
		t.Error("no error if the settings cannot be read")
	}
}

// TestHold: the setting and the policies are combined, for a current release and for a request
// to release.
func TestHold(t *testing.T) {
	setting := func(content string) client.Object {
		return wrappers.MakeOpsConfigInfo("operator", settings.NameHolding, v1alpha1.TypeHolding).On(content).Obj()
	}
	policy := func(name string, until v1alpha1.HoldUntil, atMost time.Duration, with ...func(*v1alpha1.DefensePolicy)) client.Object {
		p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{
			Namespace: "operator", Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(testNow),
		}}
		p.Spec.Hold = &v1alpha1.PolicyHold{Until: until, MaxDuration: &metav1.Duration{Duration: atMost}}
		for _, f := range with {
			f(p)
		}
		p.Status.InForce, p.Status.InForceGeneration = p.Spec.DeepCopy(), 1
		return p
	}
	observes := func(p *v1alpha1.DefensePolicy) { p.Spec.Mode = v1alpha1.ModeObserve }
	selects := func(app, env string) func(*v1alpha1.DefensePolicy) {
		return func(p *v1alpha1.DefensePolicy) {
			p.Spec.WorkloadSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
			p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": env}}
		}
	}
	younger := func(p *v1alpha1.DefensePolicy) { p.CreationTimestamp = metav1.NewTime(testNow.Add(time.Second)) }
	const none, first, every = v1alpha1.HoldNone, v1alpha1.HoldFirstBatch, v1alpha1.HoldEveryBatch
	const minute, hour = time.Minute, time.Hour
	type objects = []client.Object
	off := map[string]string{"holding": "disabled"}
	for name, test := range map[string]struct {
		objects     objects
		annotations map[string]string
		until       v1alpha1.HoldUntil
		atMost      time.Duration
		// atAdmission is set if admission differs, because the release began earlier.
		atAdmission v1alpha1.HoldUntil
	}{
		"nothing":     {until: none, atMost: 30 * minute},
		"the setting": {objects: objects{setting("first,atMost=5m")}, until: first, atMost: 5 * minute},
		"a policy":    {objects: objects{policy("p", every, minute)}, until: every, atMost: minute},
		"a policy that selects it": {
			objects: objects{policy("p", first, hour, selects("web", "prod"))}, until: first, atMost: hour,
		},
		"a policy for other workloads": {
			objects: objects{policy("p", first, hour, selects("api", "prod"))}, until: none, atMost: 30 * minute,
		},
		"a policy for other namespaces": {
			objects: objects{policy("p", first, hour, selects("web", "test"))}, until: none, atMost: 30 * minute,
		},
		"a policy in observe mode": {
			objects: objects{setting("first,atMost=5m"), policy("p", every, hour, observes)}, until: first, atMost: 5 * minute,
		},
		"a stricter policy": {
			objects: objects{setting("first,atMost=5m"), policy("p", every, minute)}, until: every, atMost: 5 * minute,
		},
		"a laxer policy": {
			objects: objects{setting("every,atMost=5m"), policy("p", first, hour)}, until: every, atMost: hour,
		},
		"a policy that does not hold": {
			objects: objects{setting("first,atMost=5m"), policy("p", none, hour)}, until: first, atMost: 5 * minute,
		},
		"several policies": {
			objects: objects{policy("p", first, hour), policy("q", every, minute)}, until: every, atMost: hour,
		},
		"setting off at the workload": {
			objects: objects{setting("every,atMost=5m")}, annotations: off, until: none, atMost: 5 * minute,
		},
		"setting off at the workload, with a policy": {
			objects: objects{policy("p", first, hour)}, annotations: off, until: first, atMost: hour,
		},
		"a newer policy": {
			objects: objects{policy("p", every, minute, younger)}, until: none, atMost: 30 * minute, atAdmission: every,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := viewOf(t, append(test.objects, wrappers.MakeNamespace("prod").Enrolled().Label("env", "prod").Obj())...)
			w := webWorkload()
			w.Labels = map[string]string{"app": "web"}
			w.Annotations = map[string]string{}
			for name, value := range test.annotations {
				w.Annotations[v1alpha1.SettingAnnotationPrefix+name] = value
			}
			change := wrappers.MakeChangeWorkload("prod", "web").Of(web().Obj()).Obj()
			change.Status.Attempt, change.Status.ObservedRelease, change.Status.StartTimeUnix = 1, change.Spec.Release, testNow.Unix()
			got, err := v.InForceOf(t.Context(), w, change)
			if err != nil || got.Hold != test.until || got.HoldAtMost != test.atMost {
				t.Errorf("%q for %s, %v, want %q for %s", got.Hold, got.HoldAtMost, err, test.until, test.atMost)
			}
			want := test.until
			if test.atAdmission != "" {
				want = test.atAdmission
			}
			got, err = v.InForceAtAdmission(t.Context(), "prod", w.Labels, w.Annotations)
			if err != nil || got.Hold != want || want == test.until && got.HoldAtMost != test.atMost {
				t.Errorf("%q for %s at admission, %v, want %q", got.Hold, got.HoldAtMost, err, want)
			}
		})
	}
	t.Run("the namespace is not in the cache", func(t *testing.T) {
		got, err := viewOf(t, policy("p", every, hour)).InForceAtAdmission(t.Context(), "prod", nil, nil)
		if err == nil || got.Hold.Holds() {
			t.Errorf("%q, %v", got.Hold, err)
		}
	})
}
