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
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/plugin/installation"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestWaitForWhatHasNoVersion waits for a workload without a recorded release, with different rights and times.
func TestWaitForWhatHasNoVersion(t *testing.T) {
	enrolled := time.Unix(1_800_000_000, 0)
	for name, tt := range map[string]struct {
		// created is the age of its revision, counted from the enrolment.
		created time.Duration
		// forbidden is a resource that the user may not read.
		forbidden string
		// patience is the timeout.
		patience time.Duration
		// later is the time between two readings of the clock.
		later   time.Duration
		want    ending
		wantErr string
	}{
		"created before":              {-time.Second, "", time.Minute, 0, endedNothing, ""},
		"created in the same second":  {0, "", time.Minute, slippedGrace, endedNotDefended, ""},
		"created later":               {time.Second, "", time.Minute, slippedGrace, endedNotDefended, ""},
		"created later, a short wait": {time.Second, "", 50 * time.Millisecond, 0, endedNotDefended, ""},
		"the namespace is forbidden": {
			-time.Second, "namespaces", time.Minute, slippedGrace, goesOn, "no right to get the namespace shop",
		},
		"the namespace is forbidden, a short wait": {
			-time.Second, "namespaces", 50 * time.Millisecond, 0, goesOn, "no right to get the namespace shop",
		},
		"the replica sets are forbidden": {
			time.Second, "replicasets", time.Minute, slippedGrace, goesOn, "replicasets.apps is forbidden",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := testConnection(t)
			at := enrolled
			c.Now = func() time.Time { at = at.Add(tt.later); return at }
			stored := storedDeployment(t, nil)
			w := &waiter{
				connection: c, waitFlags: waitFlags{timeout: tt.patience},
				target: target{kind: workload.Deployment{}, key: client.ObjectKeyFromObject(stored)},
				api:    slippedCluster(t, stored, enrolled, enrolled.Add(tt.created), tt.forbidden),
				uid:    stored.GetUID(), since: enrolled, progress: io.Discard, printed: map[string]string{},
			}
			observed, err := readStored(w.kind, stored)
			if err != nil {
				t.Fatal(err)
			}
			w.awaited = defaultAwaited(observed)
			err = w.run(t.Context())
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) ||
				err == nil && w.last.Ending != tt.want {
				t.Errorf("%q, %v (%s); want %q, error %q", w.last.Ending, err, w.last.Message, tt.want, tt.wantErr)
			}
			if known := (*remedied)(nil); err != nil && !errors.As(err, &known) {
				t.Errorf("no remedy in %v", err)
			}
		})
	}
}

// slippedCluster returns a cluster with a workload without a recorded version, in which the user may not read one resource.
func slippedCluster(t *testing.T, stored *unstructured.Unstructured, enrolled, created time.Time, forbidden string) client.WithWatch {
	t.Helper()
	ns := enrolledNamespace("shop")
	ns.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &metav1.Time{Time: enrolled},
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:` + v1alpha1.EnrolledLabel + `":{}}}}`),
	}})
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "sleep-1", CreationTimestamp: metav1.Time{Time: created},
	}}
	isController := true
	rs.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "sleep", UID: stored.GetUID(), Controller: &isController},
	}
	d := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, d); err != nil {
		t.Fatal(err)
	}
	rs.Spec.Template = d.Spec.Template
	builder := fake.NewClientBuilder().WithScheme(Scheme()).WithReturnManagedFields().WithObjects(stored, ns, rs)
	return builder.WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind().Kind == "Namespace" && forbidden == "namespaces" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: forbidden}, key.Name, errors.New("dev may not read it"))
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if strings.HasPrefix(list.GetObjectKind().GroupVersionKind().Kind, "ReplicaSet") && forbidden == "replicasets" {
				return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: forbidden}, "", errors.New("dev may not read it"))
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
}

// TestSlippedSince: if the operator knows a kind only since an upgrade, admission missed nothing before the upgrade.
func TestSlippedSince(t *testing.T) {
	enrolled := time.Unix(1_800_000_000, 0)
	upgraded := metav1.NewTime(enrolled.Add(time.Hour))
	blocking := func(conditions ...metav1.Condition) *v1alpha1.OpsConfigInfo {
		o := &v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: installation.DefaultNamespace, Name: settings.NameBlocking}}
		o.Status.Conditions = append(slices.Clone(conditions), metav1.Condition{
			Type: v1alpha1.ConditionInstalled, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(enrolled.Add(-time.Hour)),
		})
		return o
	}
	known := metav1.Condition{
		Type: v1alpha1.DefendsConditionPrefix + "StatefulSet", Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonKnown,
		LastTransitionTime: upgraded,
	}
	set := appsv1.SchemeGroupVersion.WithKind("StatefulSet")
	for name, tt := range map[string]struct {
		kind     schema.GroupVersionKind
		settings []client.Object
		want     time.Time
	}{
		"a Deployment":               {appsv1.SchemeGroupVersion.WithKind("Deployment"), []client.Object{blocking(known)}, enrolled},
		"known since the upgrade":    {set, []client.Object{blocking(known)}, upgraded.Time},
		"not known yet":              {set, []client.Object{blocking()}, time.Time{}},
		"the setting cannot be read": {set, nil, enrolled},
	} {
		api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(tt.settings...).Build()
		s := &snapshot{defendedSince: enrolled, workload: &workload.Workload{GVK: tt.kind}}
		if got := slippedSince(t.Context(), api, s); !got.Equal(tt.want) {
			t.Errorf("%s: since %s, want %s", name, got, tt.want)
		}
	}
}
