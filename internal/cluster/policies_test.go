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
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rules"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestPoliciesForNone: the labels that policies select by are read even if the cache shows no
// policy. A policy that the cache lacks is read from the API server, and needs them.
func TestPoliciesForNone(t *testing.T) {
	v := viewOf(t, wrappers.MakeNamespace("prod").Enrolled().Label("env", "prod").Obj())
	v.Operator = "operator"
	w := &workload.Workload{Namespace: "prod", Labels: map[string]string{"app": "web"}}
	policies, of, err := v.PoliciesFor(t.Context(), w)
	if err != nil || len(policies) > 0 {
		t.Fatalf("%v, %v", policies, err)
	}
	if of.Namespace != "prod" || of.Labels["app"] != "web" ||
		of.NamespaceLabels["env"] != "prod" || of.NamespaceLabels[v1alpha1.EnrolledLabel] == "" {
		t.Errorf("policies select by %+v", of)
	}
}

// TestSetAside: the condition is written for the generation that is in force, despite a conflict,
// and on no other policy of the same name.
func TestSetAside(t *testing.T) {
	for name, test := range map[string]struct {
		uid        types.UID
		generation int64
		want       bool
	}{
		"in force":           {"p", 2, true},
		"another generation": {"p", 1, false},
		"recreated":          {"before", 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: "p", Generation: 3}}
			p.Status.InForceGeneration = 2
			conflicts := 0
			update := func(ctx context.Context, c client.Client, of string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				if conflicts++; conflicts == 1 {
					return apierrors.NewConflict(schema.GroupResource{Resource: "defensepolicies"}, o.GetName(), nil)
				}
				return c.SubResource(of).Update(ctx, o, opts...)
			}
			c := clusterOf(t, interceptor.Funcs{SubResourceUpdate: update}, p)
			until := c.Clock.Now().Add(rules.AsideFor)
			c.setAside(logr.Discard(), rules.Policy{Namespace: "shop", Name: "p", UID: test.uid, Generation: test.generation}, until)
			if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
				t.Fatal(err)
			}
			is := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionSetAside)
			said := is != nil && is.Status == metav1.ConditionTrue && strings.Contains(is.Message, until.UTC().Format(time.RFC3339))
			if (is != nil) != test.want || said != test.want {
				t.Errorf("condition %+v", is)
			}
		})
	}
}
