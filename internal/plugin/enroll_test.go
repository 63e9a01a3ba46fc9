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
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestEnrolObserved enrols a namespace that is to be in observe mode.
func TestEnrolObserved(t *testing.T) {
	observe := func(namespace string, enable, locked bool) *v1alpha1.OpsConfigInfo {
		o := newObserve(namespace, enable)
		o.Spec.Locked = locked
		return &o
	}
	mistyped := observe("shop", false, false)
	mistyped.Spec.Type = v1alpha1.TypeBlocking
	const operator = installation.DefaultNamespace
	for name, tt := range map[string]struct {
		enrolled  bool
		stored    []client.Object
		forbidden bool
		// keep: no mode is given.
		keep bool
		// wantObserve: the namespace has the setting; wantEnrolled: it has the label.
		wantObserve, wantEnrolled bool
		wantOut, wantErr          string
	}{
		"the first time":                   {wantObserve: true, wantEnrolled: true, wantOut: "with enable: true"},
		"the cluster in enforce mode":      {stored: []client.Object{observe(operator, false, false)}, wantObserve: true, wantEnrolled: true},
		"the cluster in observe mode":      {stored: []client.Object{observe(operator, true, true)}, wantObserve: true, wantEnrolled: true},
		"the cluster locked, enforce mode": {stored: []client.Object{observe(operator, false, true)}, wantErr: "is locked and in force"},
		"a setting of the wrong type":      {stored: []client.Object{observe(operator, false, false), mistyped}, wantErr: "spec.type"},
		"a setting that is off":            {stored: []client.Object{observe("shop", false, false)}, wantObserve: true, wantEnrolled: true},
		"the cluster's mode is not known":  {forbidden: true, wantObserve: true, wantEnrolled: true},
		"enrolled already":                 {enrolled: true, wantObserve: true, wantEnrolled: true, wantOut: "is enrolled already"},
		"enrolled already, and in observe mode": {
			enrolled: true, stored: []client.Object{observe(operator, false, false), observe("shop", true, false)},
			wantObserve: true, wantEnrolled: true,
			wantOut: "namespace/shop: in observe mode, because of the OpsConfigInfo \"observe\" of the namespace",
		},
		"enrolled already, in observe mode, and enrolled again": {
			enrolled: true, keep: true, stored: []client.Object{observe(operator, false, false), observe("shop", true, false)},
			wantObserve: true, wantEnrolled: true, wantOut: "namespace/shop: in observe mode",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := testConnection(t)
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
			if tt.enrolled {
				ns.Labels = map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}
			}
			api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(append(tt.stored, ns)...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if _, is := list.(*v1alpha1.OpsConfigInfoList); is && tt.forbidden {
						return apierrors.NewForbidden(schema.GroupResource{Resource: "opsconfiginfoes"}, "", errors.New("dev may not"))
					}
					return c.List(ctx, list, opts...)
				},
			}).Build()
			f := enrollFlags{mode: modeObserve, operator: operator}
			if tt.keep {
				f.mode = ""
			}
			err := (&changer{connection: c, dryRun: dryRunNone}).enrollNamespace(t.Context(), api, "shop", f)
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%v, want %q", err, tt.wantErr)
			}
			if !strings.Contains(out.String(), tt.wantOut) {
				t.Errorf("it prints\n%s\nwant %q", out, tt.wantOut)
			}
			o := &v1alpha1.OpsConfigInfo{}
			err = api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: settings.NameObserve}, o)
			if client.IgnoreNotFound(err) != nil || (err == nil && o.Spec.Enable) != tt.wantObserve {
				t.Errorf("%v, %+v; want enable: %t", err, o.Spec, tt.wantObserve)
			}
			err = api.Get(t.Context(), client.ObjectKey{Name: "shop"}, ns)
			if err != nil || (ns.Labels[v1alpha1.EnrolledLabel] != "") != tt.wantEnrolled {
				t.Errorf("%v, labels %v; want enrolled: %t", err, ns.Labels, tt.wantEnrolled)
			}
		})
	}
}

func TestCheckEnroll(t *testing.T) {
	for name, tt := range map[string]struct {
		flags   enrollFlags
		args    []string
		wantErr string
	}{
		"a namespace":               {enrollFlags{}, nil, ""},
		"two namespaces":            {enrollFlags{mode: modeObserve}, []string{"shop", "ware"}, ""},
		"a workload":                {enrollFlags{mode: modeOff}, []string{"deployment/sleep"}, ""},
		"two workloads":             {enrollFlags{}, []string{"deployment/a", "deployment/b"}, "only one workload"},
		"a wrong mode":              {enrollFlags{mode: "on"}, nil, "--mode=on is not known"},
		"the cluster":               {enrollFlags{mode: modeEnforce, cluster: true}, nil, ""},
		"the cluster, without mode": {enrollFlags{cluster: true}, nil, "--cluster needs"},
		"the cluster, off":          {enrollFlags{mode: modeOff, cluster: true}, nil, "uninstall the operator"},
		"the cluster, and a name":   {enrollFlags{mode: modeObserve, cluster: true}, []string{"shop"}, "--cluster excludes names"},
	} {
		if err := checkEnroll(tt.flags, tt.args); (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: %v, want %q", name, err, tt.wantErr)
		}
	}
}

func TestDecideMode(t *testing.T) {
	const label, annotation = v1alpha1.DefenseLabel, v1alpha1.SettingAnnotationPrefix + settings.NameObserve
	sleep := target{kind: workload.Deployment{}, key: types.NamespacedName{Namespace: "shop", Name: "sleep"}}
	is := func(key, value string) map[string]string { return map[string]string{key: value} }
	for name, tt := range map[string]struct {
		labels, annotations map[string]string
		owned               bool
		mode                string
		// wantLabel and wantAnnotation are the values afterwards, and wantSays a part of the output.
		wantLabel, wantAnnotation, wantSays string
	}{
		"off":                             {nil, nil, false, modeOff, "disabled", "", "set the label " + label + "=disabled"},
		"off already":                     {is(label, "disabled"), nil, false, modeOff, "disabled", "", ""},
		"off, in place of another value":  {is(label, "other"), nil, false, modeOff, "disabled", "", `=disabled, in place of "other"`},
		"off, in place of an empty value": {is(label, ""), nil, false, modeOff, "disabled", "", `=disabled, in place of ""`},
		"observe": {
			nil, is("a", "b"), false, modeObserve, "", "enabled", "set the annotation " + annotation + "=enabled",
		},
		"observe, from off":     {is(label, "disabled"), nil, false, modeObserve, "", "enabled", "remove the label " + label},
		"enforce":               {nil, nil, false, modeEnforce, "", "disabled", "set the annotation " + annotation + "=disabled"},
		"enforce, from observe": {nil, is(annotation, "enabled"), false, modeEnforce, "", "disabled", `in place of "enabled"`},
		"enforce, owned":        {nil, nil, true, modeEnforce, "enforced", "disabled", "set the label " + label + "=enforced"},
		"enforce, owned and off": {
			is(label, "disabled"), nil, true, modeEnforce, "enforced", "disabled", `=enforced, in place of "disabled"`,
		},
		"as its namespace": {
			is(label, "disabled"), is(annotation, "enabled"), false, "", "", "", "remove the annotation " + annotation,
		},
		"as its namespace already": {nil, is("a", "b"), false, "", "", "", ""},
		"as its namespace, owned":  {is(label, "enforced"), nil, true, "", "", "", "remove the label " + label},
		"another value stays":      {is(label, "other"), nil, false, "", "other", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			stored := storedDeployment(t, func(d *appsv1.Deployment) {
				d.Labels, d.Annotations = tt.labels, tt.annotations
				if tt.owned {
					controls := true
					d.OwnerReferences = []metav1.OwnerReference{{APIVersion: "x/v1", Kind: "Owner", Name: "o", UID: "o", Controller: &controls}}
				}
			})
			api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(stored).Build()
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); err != nil {
				t.Fatal(err)
			}
			m := decideMode(sleep, stored, tt.mode)
			if says := strings.Join(m.what, "\n"); !strings.Contains(says, tt.wantSays) || (says == "") != (tt.wantSays == "") {
				t.Errorf("%q, want %q", says, tt.wantSays)
			}
			if len(m.ops) > 0 {
				patch, err := json.Marshal(m.ops)
				if err != nil {
					t.Fatal(err)
				}
				if err := api.Patch(t.Context(), stored, client.RawPatch(types.JSONPatchType, patch)); err != nil {
					t.Fatal(err)
				}
			}
			label, annotation := stored.GetLabels()[label], stored.GetAnnotations()[annotation]
			if label != tt.wantLabel || annotation != tt.wantAnnotation {
				t.Errorf("label %q, annotation %q; want %q, %q", label, annotation, tt.wantLabel, tt.wantAnnotation)
			}
			then := []map[string]string{m.then.GetLabels(), m.then.GetAnnotations()}
			if diff := cmp.Diff([]map[string]string{stored.GetLabels(), stored.GetAnnotations()}, then, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("the decision (-stored +decided):\n%s", diff)
			}
		})
	}
}
