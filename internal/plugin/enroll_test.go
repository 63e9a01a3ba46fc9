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
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	for name, tt := range map[string]struct {
		enrolled  bool
		stored    []client.Object
		forbidden bool
		// wantObserve: the namespace has the setting; wantEnrolled: and the label.
		wantObserve, wantEnrolled bool
		wantOut, wantErr          string
	}{
		"the first time":                      {wantObserve: true, wantEnrolled: true, wantOut: "with enable: true"},
		"the operator observes nothing":       {stored: []client.Object{observe(installation.DefaultNamespace, false, false)}, wantObserve: true, wantEnrolled: true},
		"the operator observes all, locked":   {stored: []client.Object{observe(installation.DefaultNamespace, true, true)}, wantObserve: true, wantEnrolled: true},
		"the operator's is locked and off":    {stored: []client.Object{observe(installation.DefaultNamespace, false, true)}, wantErr: "is locked and in force"},
		"there is one of the wrong type":      {stored: []client.Object{mistyped}, wantErr: "spec.type"},
		"there is one that is off":            {stored: []client.Object{observe("shop", false, false)}, wantObserve: true, wantEnrolled: true},
		"it is not known what the operator's": {forbidden: true, wantObserve: true, wantEnrolled: true},
		"enrolled already":                    {enrolled: true, wantEnrolled: true, wantOut: "to put it into observe mode: kubectl altershield observe --namespace-wide"},
		"enrolled already, and in observe mode": {
			enrolled: true, stored: []client.Object{observe("shop", true, false)}, wantObserve: true, wantEnrolled: true,
			wantOut: "it is in observe mode, because of the OpsConfigInfo \"observe\" of the namespace: nothing is blocked, paused, rolled back or denied\n" +
				"to defend it in full: kubectl altershield observe --namespace-wide --off\n",
		},
		"enrolled already, and trusted": {
			enrolled: true, stored: []client.Object{observe("shop", false, false)}, wantEnrolled: true, wantOut: "is left as it is",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, out := testConnection(t)
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
			if tt.enrolled {
				ns.Labels = map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}
			}
			mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
			mapper.Add(v1alpha1.GroupVersion.WithKind("ChangeWorkload"), meta.RESTScopeNamespace)
			for _, kind := range workload.Defended().Kinds() {
				mapper.Add(kind.GroupVersionKind(), meta.RESTScopeNamespace)
			}
			api := fake.NewClientBuilder().WithScheme(Scheme()).WithRESTMapper(mapper).WithObjects(append(tt.stored, ns)...).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					if _, is := list.(*v1alpha1.OpsConfigInfoList); is && tt.forbidden {
						return apierrors.NewForbidden(schema.GroupResource{Resource: "opsconfiginfoes"}, "", errors.New("dev may not"))
					}
					return c.List(ctx, list, opts...)
				},
			}).Build()
			err := (&changer{connection: c, dryRun: dryRunNone}).enrol(t.Context(), api, ns.DeepCopy(), enrolFlags{observe: true, operator: installation.DefaultNamespace})
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
			if err := api.Get(t.Context(), client.ObjectKey{Name: "shop"}, ns); err != nil || (ns.Labels[v1alpha1.EnrolledLabel] != "") != tt.wantEnrolled {
				t.Errorf("%v, labels %v; want enrolled: %t", err, ns.Labels, tt.wantEnrolled)
			}
		})
	}
}
