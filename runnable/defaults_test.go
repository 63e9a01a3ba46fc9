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

package runnable

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestDefaults creates missing objects, the policy first: in enforce mode on a new installation, and
// in observe mode if releases were recorded before.
func TestDefaults(t *testing.T) {
	own := policy.Default(ours)
	own.Spec.Mode = v1alpha1.ModeDisabled
	for name, test := range map[string]struct {
		there []client.Object
		// fails is how many writes fail, until a release is recorded.
		fails int
		want  v1alpha1.PolicyMode
	}{
		"a new installation": {want: v1alpha1.ModeEnforce},
		"an upgrade": {
			there: []client.Object{wrappers.MakeChangeWorkload("default", "web--x--1").Obj()},
			want:  v1alpha1.ModeObserve,
		},
		"a policy of the user":                 {there: []client.Object{own}, want: v1alpha1.ModeDisabled},
		"a release before the policy succeeds": {fails: 1, want: v1alpha1.ModeEnforce},
		"settings without the policy": {
			there: []client.Object{wrappers.MakeOpsConfigInfo(ours, settings.NameBlocking, v1alpha1.TypeBlocking).Off("").Obj()},
			want:  v1alpha1.ModeEnforce,
		},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			fails := test.fails
			api := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(test.there...).Build(), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if fails > 0 {
						fails--
						return errors.Join(errors.New("no"), c.Create(ctx, wrappers.MakeChangeWorkload("default", "web--x--1").Obj()))
					}
					return c.Create(ctx, o, opts...)
				},
			})
			d := &Defaults{Client: api, Namespace: ours, Log: logr.Discard()}
			for range test.fails {
				if err := d.create(t.Context()); err == nil {
					t.Fatal("it did not fail")
				}
			}
			for range 2 {
				if err := d.create(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var p v1alpha1.DefensePolicy
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(own), &p); err != nil {
				t.Fatal(err)
			}
			if p.Spec.Mode != test.want {
				t.Errorf("the policy has the mode %s, want %s", p.Spec.Mode, test.want)
			}
			var all v1alpha1.OpsConfigInfoList
			if err := api.List(t.Context(), &all); err != nil || len(all.Items) != len(settings.DefaultObjects(ours)) {
				t.Errorf("%d settings, %v", len(all.Items), err)
			}
		})
	}
}
