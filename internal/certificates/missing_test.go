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

package certificates

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestMissing reports a configuration that the manager may not recreate by log, event, condition and metric, each once
// for a setting and with the remedy, and then reports that the configuration exists again.
func TestMissing(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t, wrappers.MakeNamespace(ours))
	creates, allowed := 0, false
	through := interceptor.NewClient(c.client, interceptor.Funcs{
		Create: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if !strings.HasSuffix(o.GetObjectKind().GroupVersionKind().Kind, "WebhookConfiguration") {
				return to.Create(ctx, o, opts...)
			}
			if creates++; !allowed {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "webhookconfigurations"}, o.GetName(), nil)
			}
			return to.Create(ctx, o, opts...)
		},
	})
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	blocking := wrappers.MakeOpsConfigInfo(ours, settings.NameBlocking, v1alpha1.TypeBlocking).Obj()
	cached := fake.NewClientBuilder().WithScheme(scheme).WithObjects(blocking).WithStatusSubresource(blocking).Build()
	recorder := events.NewFakeRecorder(10)
	var logged []string
	missing := map[string]bool{}
	leader := func() *Certificates {
		r := c.replica(through, true)
		r.o.OnMissing = func(kind string, is bool) { missing[kind] = is }
		r.o.Log = funcr.New(func(_, args string) {
			if strings.Contains(args, "may not recreate it") {
				logged = append(logged, args)
			}
		}, funcr.Options{})
		r.report = &missingReport{client: cached, recorder: recorder, namespace: ours, clock: c.clock}
		return r
	}
	condition := func() string {
		t.Helper()
		var got v1alpha1.OpsConfigInfo
		if err := cached.Get(ctx, client.ObjectKeyFromObject(blocking), &got); err != nil {
			t.Fatal(err)
		}
		said := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionWebhooksConfigured)
		if said == nil {
			return ""
		}
		return string(said.Status) + " " + said.Reason + " " + said.Message
	}
	expect := func(when, wantCondition string, wantEvents, wantLogged int) {
		t.Helper()
		if got := condition(); got != wantCondition {
			t.Errorf("%s: condition %q, want %q", when, got, wantCondition)
		}
		if len(recorder.Events) != wantEvents || len(logged) != wantLogged {
			t.Errorf("%s: %d events, %d lines, want %d, %d", when, len(recorder.Events), len(logged), wantEvents, wantLogged)
		}
	}
	r := leader()
	r.round(ctx)
	expect("both are there", "", 0, 0)
	gone := c.configuration("ValidatingWebhookConfiguration")
	if err := c.client.Delete(ctx, gone); err != nil {
		t.Fatal(err)
	}
	r.round(ctx)
	expect("it may be an uninstall", "", 0, 0)
	if diff := cmp.Diff(map[string]bool{"MutatingWebhookConfiguration": false, "ValidatingWebhookConfiguration": true}, missing); diff != "" {
		t.Errorf("the metric (-want +got):\n%s", diff)
	}
	c.clock.Step(recreateAfter)
	r.round(ctx)
	refused := "False ConfigurationMissing A webhook configuration was deleted, so no block is effective: " +
		"ValidatingWebhookConfiguration " + validating + ": missing; no release is denied or checked at admission: " + remedy
	expect("refused", refused, 1, 1)
	for range 10 {
		c.clock.Step(time.Second)
		r.round(ctx)
	}
	expect("again and again", refused, 1, 1)
	if creates != 1 {
		t.Errorf("tried %d times within a minute", creates)
	}
	fresh := wrappers.MakeOpsConfigInfo(ours, settings.NameBlocking, v1alpha1.TypeBlocking).Obj()
	if err := errors.Join(cached.Delete(ctx, blocking), cached.Create(ctx, fresh)); err != nil {
		t.Fatal(err)
	}
	c.clock.Step(time.Second)
	r.round(ctx)
	expect("the setting was created again", refused, 2, 1)
	c.clock.Step(createAgain)
	r.round(ctx)
	if creates != 2 {
		t.Errorf("tried %d times, want once more after a minute", creates)
	}

	// Another leader neither takes the report back nor repeats it.
	r = leader()
	r.round(ctx)
	c.clock.Step(recreateAfter)
	r.round(ctx)
	expect("another leader", refused, 2, 2)

	allowed = true
	c.clock.Step(createAgain)
	r.round(ctx)
	r.round(ctx)
	expect("with the right to", "True Configured The webhook configurations exist again.", 2, 2)
	if missing["ValidatingWebhookConfiguration"] {
		t.Error("the metric reports it as missing")
	}
	c.configuration("ValidatingWebhookConfiguration")
}
