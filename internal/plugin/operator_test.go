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
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// servedFrom returns the configuration of webhooks that are served in a namespace.
func servedFrom(namespace string) client.Object {
	return &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "altershieldoperator-validating-webhook-configuration"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "v", ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: namespace, Name: "webhooks"}},
		}},
	}
}

// managerIn returns the Deployment of the operator.
func managerIn(namespace string) client.Object {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "manager", Labels: managerLabels}}
}

// settingsIn returns the settings that the operator creates.
func settingsIn(namespace string, change func(*v1alpha1.OpsConfigInfo)) (all []client.Object) {
	objects := settings.DefaultObjects(namespace)
	for i := range objects {
		if objects[i].Name == settings.NameBlocking {
			objects[i].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionInstalled, Status: metav1.ConditionTrue}}
		}
		if change != nil {
			change(&objects[i])
		}
		all = append(all, &objects[i])
	}
	return all
}

// clusterOf returns a cluster with these objects. The user may read the named kinds; all kinds if none is named.
func clusterOf(objects []client.Object, may ...string) client.WithWatch {
	allowed := func(c client.WithWatch, o client.Object, l client.ObjectList) error {
		kind := ""
		if o != nil {
			gvk, err := c.GroupVersionKindFor(o)
			if err != nil {
				return err
			}
			kind = gvk.Kind
		} else {
			gvk, err := c.GroupVersionKindFor(l)
			if err != nil {
				return err
			}
			kind = strings.TrimSuffix(gvk.Kind, "List")
		}
		for _, m := range may {
			if m == kind {
				return nil
			}
		}
		if len(may) == 0 {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: kind}, "", errors.New("not yours"))
	}
	return fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := allowed(c, o, nil); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if err := allowed(c, nil, l); err != nil {
				return err
			}
			return c.List(ctx, l, opts...)
		},
	}).Build()
}

func TestWhereTheOperatorIs(t *testing.T) {
	const standard = "altershieldoperator-system"
	elsewhere := append(settingsIn("ops", nil), servedFrom("ops"), managerIn("ops"))
	for _, tt := range []struct {
		name  string
		api   client.WithWatch
		given string
		// want is the namespace whose settings are read, wantEnrol the namespace that is not enrolled, and wantWrite the namespace
		// of the written setting, or a part of the error.
		want, wantEnrol, wantWrite string
	}{
		{"where it is by default", clusterOf(append(settingsIn(standard, nil), servedFrom(standard))), "", standard, standard, standard},
		{"where its webhooks are served", clusterOf(elsewhere), "", "ops", "ops", "ops"},
		{"where its Deployment is", clusterOf([]client.Object{managerIn("ops")}), "", "ops", "ops", "ops"},
		{"as the user says", clusterOf(elsewhere), "ops", "ops", "ops", "ops"},
		{"the user is wrong", clusterOf(elsewhere), "shop", "shop", "ops", "the operator is in the namespace ops, not in shop"},
		{"it cannot be found", clusterOf(elsewhere, "OpsConfigInfo"), "", standard, standard, "it is not known where the operator is"},
		{"it cannot be found, and the user says where", clusterOf(elsewhere, "OpsConfigInfo"), "ops", "ops", "ops", "ops"},
		{
			"it cannot be found, and the user is wrong", clusterOf(elsewhere, "OpsConfigInfo"), "shop", "shop", "shop",
			"no setting in shop says that it was installed there",
		},
		{"nothing may be read", clusterOf(elsewhere, "Pod"), "", standard, standard, "not yours"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := operatorIn(t.Context(), tt.api, tt.given); got != tt.want {
				t.Errorf("in %s, want %s", got, tt.want)
			}
			if got := enrolNamespace(t.Context(), tt.api, tt.given); got != tt.wantEnrol {
				t.Errorf("%s is not enrolled, want %s", got, tt.wantEnrol)
			}
			got, err := mustBeOperator(t.Context(), tt.api, tt.given)
			if err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, tt.wantWrite) {
				t.Errorf("written in %s, want %s", got, tt.wantWrite)
			}
		})
	}
}

// TestInForceFor reads the settings in the namespace of the operator. Without settings there, they are not known.
func TestInForceFor(t *testing.T) {
	observed := func(o *v1alpha1.OpsConfigInfo) { o.Spec.Enable = o.Spec.Enable || o.Name == settings.NameObserve }
	elsewhere := append(settingsIn("ops", observed), servedFrom("ops"))
	for _, tt := range []struct {
		name                   string
		api                    client.WithWatch
		given                  string
		wantObserve, wantKnown bool
		wantSays               string
	}{
		{"found", clusterOf(elsewhere), "", true, true, ""},
		{"said", clusterOf(elsewhere, "OpsConfigInfo"), "ops", true, true, ""},
		{
			"not found", clusterOf(elsewhere, "OpsConfigInfo"), "", false, false,
			"the namespace altershieldoperator-system has none; name the operator's namespace with --operator-namespace",
		},
		{"forbidden", clusterOf(elsewhere, "ValidatingWebhookConfiguration"), "", false, false, "the settings in force are not known: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := testConnection(t)
			says := &strings.Builder{}
			c.ErrOut = says
			got, known, err := c.inForceFor(t.Context(), tt.api, tt.given, situationOf(t, nil).workload)
			if err != nil || got.Observe != tt.wantObserve || known != tt.wantKnown {
				t.Errorf("observe %t, known %t: %v", got.Observe, known, err)
			}
			if !strings.Contains(says.String(), tt.wantSays) || (tt.wantSays == "") != (says.Len() == 0) {
				t.Errorf("it says %q, want %q", says, tt.wantSays)
			}
		})
	}
}

// ofPrometheus gives a workload an owner.
func ofPrometheus(o metav1.Object) {
	yes := true
	o.SetOwnerReferences([]metav1.OwnerReference{
		{APIVersion: "monitoring.coreos.com/v1", Kind: "Prometheus", Name: "k8s", UID: "p", Controller: &yes},
	})
}

// TestKnowsOwners: for each command, a workload that another object owns is in observe mode, unless its label says otherwise.
func TestKnowsOwners(t *testing.T) {
	const operator = "altershieldoperator-system"
	for _, tt := range []struct {
		name   string
		change func(metav1.Object)
		want   bool
		wantBy string
	}{
		{"no owner", func(metav1.Object) {}, false, ""},
		{"owned", ofPrometheus, true, "its owner, the prometheus k8s"},
		{"owned, in enforce mode", func(o metav1.Object) {
			ofPrometheus(o)
			o.SetLabels(map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseEnforced})
		}, false, ""},
		{"owned, and its annotation turns observing off", func(o metav1.Object) {
			ofPrometheus(o)
			o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + settings.NameObserve: settings.Disabled})
		}, true, "its owner, the prometheus k8s"},
		{"owned by no controller", func(o metav1.Object) {
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c"}})
		}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects := native(workload.StatefulSet{}, "db", "uid-db")
			tt.change(objects[0])
			api := clusterOf(append(append(settingsIn(operator, nil), objects...),
				enrolledNamespace("shop")))
			is := func(who string, in *settings.InForce) {
				t.Helper()
				if in == nil || in.Observe != tt.want || !strings.HasPrefix(in.ObservedBy, tt.wantBy) {
					t.Errorf("%s: %+v, want observe %t because of %q", who, in, tt.want, tt.wantBy)
				}
			}
			c, out := testConnection(t)
			c.Now = func() time.Time { return testNow }
			sts := target{kind: workload.StatefulSet{}, key: client.ObjectKeyFromObject(objects[0])}
			s, err := c.load(t.Context(), api, operator, sts)
			if err != nil {
				t.Fatal(err)
			}
			is("one workload", s.settings)
			all, err := c.census(t.Context(), api, operator, "shop")
			if err != nil || len(all.snapshots) != 1 {
				t.Fatalf("%d workloads, %v", len(all.snapshots), err)
			}
			is("all workloads", all.snapshots[0].settings)
			changed, err := c.read(t.Context(), api, sts)
			if err != nil {
				t.Fatal(err)
			}
			in, known, err := c.inForceFor(t.Context(), api, "", changed.workload)
			if err != nil || !known {
				t.Fatalf("known %t, %v", known, err)
			}
			is("a command that writes", &in)

			// Enforce mode lasts for any owner.
			change := &changer{connection: c, dryRun: dryRunNone}
			err = change.enrollWorkload(t.Context(), api, sts, enrollFlags{mode: modeEnforce})
			if err != nil || !strings.Contains(out.String(), "statefulset/db: in enforce mode") {
				t.Errorf("enroll --mode=enforce: %v\n%s", err, out)
			}
			owned, says := changed.workload.Owner != "", strings.Contains(out.String(), "prometheus k8s owns it")
			if owned != says && changed.workload.Labels[v1alpha1.DefenseLabel] == "" {
				t.Errorf("it does not say who owns it:\n%s", out)
			}
			if changed, err = c.read(t.Context(), api, sts); err != nil {
				t.Fatal(err)
			}
			if in, known, err := c.inForceFor(t.Context(), api, "", changed.workload); err != nil || !known || in.Observe {
				t.Errorf("in observe mode %t, known %t, %v", in.Observe, known, err)
			}
		})
	}
}
