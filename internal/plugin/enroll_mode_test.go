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

package plugin

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// blockedIn returns a workload that the operator blocked; own is its annotation observe.
func blockedIn(namespace, name, own string) client.Object {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name,
		Labels: map[string]string{v1alpha1.SuspendLabel: "1"}, Annotations: map[string]string{v1alpha1.SuspendedByAnnotation: "v 1 uid"},
	}}
	if own != "" {
		d.Annotations[v1alpha1.SettingAnnotationPrefix+settings.NameObserve] = own
	}
	return d
}

func enrolledNamespace(name string) client.Object {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue},
	}}
}

func observeSetting(namespace string, enable bool) *v1alpha1.OpsConfigInfo {
	o := &v1alpha1.OpsConfigInfo{Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: enable}}
	o.Namespace, o.Name = namespace, settings.NameObserve
	return o
}

func (c *changer) enrollShop(ctx context.Context, api client.WithWatch, f enrollFlags) error {
	return c.enrollNamespace(ctx, api, "shop", f)
}

// TestEnrollModes gives the namespace shop, or the cluster, a mode.
func TestEnrollModes(t *testing.T) {
	operator := func(change func(*v1alpha1.OpsConfigInfoSpec)) []client.Object {
		return append(settingsIn("ops", func(o *v1alpha1.OpsConfigInfo) {
			if o.Name == settings.NameObserve && change != nil {
				change(&o.Spec)
			}
		}), servedFrom("ops"), enrolledNamespace("shop"), enrolledNamespace("ware"),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "free"}},
			blockedIn("shop", "a", ""), blockedIn("ware", "b", ""), blockedIn("ware", "c", settings.Disabled), blockedIn("free", "d", ""))
	}
	locks := func(s *v1alpha1.OpsConfigInfoSpec) { s.Locked = true }
	observes := func(s *v1alpha1.OpsConfigInfoSpec) { s.Enable = true }
	wide, everywhere := enrollFlags{mode: modeObserve, wait: true}, enrollFlags{mode: modeObserve, cluster: true, wait: true}
	with := func(f enrollFlags, change func(*enrollFlags)) enrollFlags {
		change(&f)
		return f
	}
	enforce := with(wide, func(f *enrollFlags) { f.mode = modeEnforce })
	soon := func(f *enrollFlags) { f.timeout = time.Millisecond }
	const takesA = "deployment/a in shop: the operator takes back its block"
	for _, tt := range []struct {
		name    string
		objects []client.Object
		flags   enrollFlags
		dryRun  string
		// is stuck: the operator takes nothing back.
		isStuck bool
		// want is printed, wantNot is not; wantErr is a part of the error.
		want, wantNot []string
		wantErr       string
		// wantOwn and wantOperator are the values of observe in shop and in ops afterwards: true, false, or none.
		wantOwn, wantOperator string
	}{
		{"a namespace", operator(nil), wide, dryRunNone, false,
			[]string{takesA, "observe created", "nothing of the operator is left"}, []string{"deployment/b"}, "", "true", "false"},
		{"a namespace, and the operator takes nothing back", operator(nil), with(wide, soon), dryRunNone, true,
			[]string{"observe created"}, []string{"nothing of the operator is left"},
			"has not taken back in 1ms: deployment/a in shop: its block", "true", "false"},
		{"a namespace, without waiting", operator(nil), with(wide, func(f *enrollFlags) { f.wait = false }), dryRunNone, true,
			[]string{"observe created"}, []string{"nothing of the operator is left"}, "", "true", "false"},
		{"a namespace, dry run", operator(nil), wide, dryRunClient, true,
			[]string{"takes back its block", "(dry run)"}, []string{"nothing of the operator is left"}, "", "none", "false"},
		{"a namespace, where the setting is locked", operator(locks), wide, dryRunNone, false,
			nil, []string{"created"}, "shop cannot be put into observe mode: in enforce mode", "none", "false"},
		{"enforce mode, where the setting is locked and on",
			operator(func(s *v1alpha1.OpsConfigInfoSpec) { s.Enable, s.Locked = true, true }), enforce, dryRunNone, false,
			nil, []string{"created"},
			"shop cannot be put into enforce mode: in observe mode, because of the OpsConfigInfo \"observe\" of the operator",
			"none", "true"},
		{"enforce mode", operator(observes), enforce, dryRunNone, true,
			[]string{"observe created"}, []string{"takes back", "is left"}, "", "false", "true"},
		{"a namespace leaves", operator(nil), with(wide, func(f *enrollFlags) { f.mode = modeOff }), dryRunNone, false,
			[]string{takesA, "label removed", "nothing of the operator is left"}, []string{"deployment/b"}, "", "none", "false"},
		{"the cluster", operator(nil), everywhere, dryRunNone, false,
			[]string{
				takesA, "deployment/b in ware: the operator takes back its block", "set enable: true in ops",
				"nothing of the operator is left",
			},
			[]string{"deployment/c"}, "", "none", "true"},
		{"the cluster, where a namespace has its own value",
			append(operator(nil), observeSetting("shop", false)), everywhere, dryRunNone, false,
			[]string{"deployment/b in ware"}, []string{"deployment/a"}, "", "false", "true"},
		{"the cluster, where it is locked", append(operator(locks), observeSetting("shop", false)), everywhere, dryRunNone, false,
			[]string{"deployment/a in shop", "deployment/b in ware", "deployment/c in ware", "nothing of the operator is left"},
			nil, "", "false", "true"},
		{"the cluster, and the operator takes nothing back", operator(nil), with(everywhere, soon), dryRunNone, true,
			nil, nil, "deployment/a in shop: its block", "none", "true"},
		{"not in the namespace of the operator",
			operator(nil), with(everywhere, func(f *enrollFlags) { f.operator = "shop" }), dryRunNone, false,
			nil, []string{"created"}, "the operator is in the namespace ops, not in shop", "none", "false"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, out := testConnection(t)
			stored := clusterOf(tt.objects)
			// The operator takes back as soon as the setting is written.
			takeBack := func() {
				for _, key := range []types.NamespacedName{
					{Namespace: "shop", Name: "a"}, {Namespace: "ware", Name: "b"}, {Namespace: "ware", Name: "c"}, {Namespace: "free", Name: "d"},
				} {
					d := &appsv1.Deployment{}
					if err := stored.Get(t.Context(), key, d); err != nil {
						t.Error(err)
					}
					if d.Labels = nil; !tt.isStuck {
						if err := stored.Update(t.Context(), d); err != nil {
							t.Error(err)
						}
					}
				}
			}
			api := interceptor.NewClient(stored, interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					defer takeBack()
					return c.Create(ctx, o, opts...)
				},
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					defer takeBack()
					return c.Patch(ctx, o, p, opts...)
				},
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					defer takeBack()
					return c.Delete(ctx, o, opts...)
				},
			})
			change, enroll := &changer{connection: c, dryRun: tt.dryRun}, (*changer).enrollShop
			if tt.flags.cluster {
				enroll = (*changer).enrollCluster
			}
			err := enroll(change, t.Context(), api, tt.flags)
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, out)
				}
			}
			for _, not := range tt.wantNot {
				if strings.Contains(out.String(), not) {
					t.Errorf("it says %q:\n%s", not, out)
				}
			}
			for namespace, want := range map[string]string{"shop": tt.wantOwn, "ops": tt.wantOperator} {
				got, o := "none", &v1alpha1.OpsConfigInfo{}
				if err := stored.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: settings.NameObserve}, o); err == nil {
					got = map[bool]string{true: "true", false: "false"}[o.Spec.Enable]
				}
				if got != want {
					t.Errorf("%s observes: %s, want %s", namespace, got, want)
				}
			}
		})
	}
}

// TestStay: an uninstall that did not end leaves a setting that is locked, and is deleted with the Deployment.
func TestStay(t *testing.T) {
	for name, before := range map[string]v1alpha1.OpsConfigInfoSpec{
		"off": {}, "on": {Enable: true, Remark: "mine"}, "locked": {Locked: true},
	} {
		t.Run(name, func(t *testing.T) {
			before.Type = v1alpha1.TypeObserve
			api := clusterOf(append(settingsIn("ops", func(o *v1alpha1.OpsConfigInfo) {
				if o.Name == settings.NameObserve {
					o.Spec = settings.Leave(before)
					o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "manager", UID: "m"}}
				}
			}), servedFrom("ops")))
			c, out := testConnection(t)
			flags := enrollFlags{cluster: true, mode: modeEnforce, wait: true}
			if err := (&changer{connection: c, dryRun: dryRunNone}).enrollCluster(t.Context(), api, flags); err != nil {
				t.Fatal(err)
			}
			o := &v1alpha1.OpsConfigInfo{}
			if err := api.Get(t.Context(), types.NamespacedName{Namespace: "ops", Name: settings.NameObserve}, o); err != nil {
				t.Fatal(err)
			}
			want := before
			want.Enable = false
			if o.Spec != want || len(o.OwnerReferences) > 0 {
				t.Errorf("%+v, owned by %v\n%s", o.Spec, o.OwnerReferences, out)
			}
		})
	}
}
