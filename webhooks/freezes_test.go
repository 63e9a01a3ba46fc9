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
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestFreeze: a freeze denies by the windows in the status of accepted policies, whatever else the request changes.
func TestFreeze(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	stored, changed := released(""), strings.Replace(released(""), `"test":"123"`, `"test":"1234"`, 1)
	restarted := strings.Replace(stored, `"template":{"metadata":{`,
		`"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"2026-11-28T12:00:00Z"},`, 1)
	if restarted == stored {
		t.Fatal("the template has no metadata")
	}
	frozen := func(edit func(*v1alpha1.DefensePolicy)) v1alpha1.DefensePolicy {
		p := v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "calendar", Generation: 1}}
		p.Spec.Freezes = []v1alpha1.PolicyFreeze{{Name: "weekend", Schedule: "0 16 * * 5", Duration: &metav1.Duration{Duration: 64 * time.Hour}}}
		p.Status.FreezeWindows = []v1alpha1.FreezeWindow{{Name: "weekend", Action: v1alpha1.FreezeDenies,
			Start: metav1.NewTime(now.Add(-time.Hour)), End: metav1.NewTime(now.Add(time.Hour))}}
		if edit != nil {
			edit(&p)
		}
		return accepted(p)
	}
	labelledOnly := frozen(func(p *v1alpha1.DefensePolicy) {
		p.Spec.WorkloadSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "web"}}
	})
	web, other := released(labelled("tier", "web")), released(labelled("tier", "other"))
	relabelled := strings.Replace(other, `"test":"123"`, `"test":"1234"`, 1)
	const denied = "deployment sleep is frozen until 2026-11-28T13:00:00Z by default/calendar/weekend: "
	for name, test := range map[string]struct {
		policy          v1alpha1.DefensePolicy
		before, after   string
		edit            func(*admission.Request)
		observed        bool
		denied, warning string
	}{
		"a release":             {policy: frozen(nil), before: stored, after: changed, denied: denied},
		"a new workload":        {policy: frozen(nil), after: stored},
		"the operator's own":    {policy: frozen(nil), before: stored, after: changed, edit: asOwn},
		"another replica count": {policy: frozen(nil), before: stored, after: strings.Replace(stored, `"replicas":5`, `"replicas":6`, 1)},
		"a restart":             {policy: frozen(nil), before: stored, after: restarted, warning: "restarts its pods"},
		"with a reason": {policy: frozen(nil), before: stored, after: annotatedWith(changed,
			v1alpha1.BreakFreezeAnnotation, "incident 7")},
		"opted out in the request": {policy: frozen(nil), before: stored, denied: denied,
			after: strings.Replace(changed, `"labels":{`, `"labels":{`+labelled(v1alpha1.DefenseLabel, "disabled"), 1)},
		"in observe mode by the request": {policy: frozen(nil), before: stored, denied: denied,
			after: annotatedWith(changed, v1alpha1.SettingAnnotationPrefix+settings.NameObserve, "enabled")},
		"in observe mode before": {policy: frozen(nil),
			before: annotatedWith(stored, v1alpha1.SettingAnnotationPrefix+settings.NameObserve, "enabled"),
			after:  annotatedWith(changed, v1alpha1.SettingAnnotationPrefix+settings.NameObserve, "enabled"), warning: "allowed in observe mode"},
		"relabelled in the request": {policy: labelledOnly, before: web, after: relabelled, denied: denied},
		"not selected":              {policy: labelledOnly, before: other, after: relabelled},
		"a policy in observe mode": {policy: frozen(func(p *v1alpha1.DefensePolicy) { p.Spec.Mode = v1alpha1.ModeObserve }),
			before: stored, after: changed, warning: "allowed in observe mode, by the mode of the policy; enforce mode denies it: " + denied},
		"a warning": {policy: frozen(func(p *v1alpha1.DefensePolicy) { p.Status.FreezeWindows[0].Action = v1alpha1.FreezeWarns }),
			before: stored, after: changed, warning: "is released nevertheless"},
		"the window is over": {policy: frozen(func(p *v1alpha1.DefensePolicy) { p.Status.FreezeWindows[0].End = metav1.NewTime(now) }),
			before: stored, after: changed},
	} {
		t.Run(name, func(t *testing.T) {
			o := withPolicies(test.policy)
			o.Clock = clocktesting.NewFakeClock(now)
			req := makeRequest(test.before, test.after)
			if test.edit != nil {
				test.edit(&req)
			}
			got := review(t, newPolicy(o, deployments, newEvaluator(&o)), req)
			message := ""
			if got.Result != nil {
				message = got.Result.Message
			}
			if got.Allowed != (test.denied == "") || !strings.Contains(message, test.denied) {
				t.Errorf("allowed %t: %s", got.Allowed, message)
			}
			if warnings := strings.Join(got.Warnings, "|"); !strings.Contains(warnings, test.warning) || (warnings == "") != (test.warning == "") {
				t.Errorf("warnings %q, want %q", warnings, test.warning)
			}
		})
	}

	// The history is read only in a freeze.
	for _, inFreeze := range []bool{true, false} {
		reads := 0
		o := withPolicies(frozen(func(p *v1alpha1.DefensePolicy) {
			if !inFreeze {
				p.Status.FreezeWindows = nil
			}
		}))
		o.Clock = clocktesting.NewFakeClock(now)
		after, err := parse([]byte(changed), deployments)
		if err != nil {
			t.Fatal(err)
		}
		o.Past = func(context.Context, string, types.UID) (rollback.Past, error) {
			reads++
			return rollback.Past{History: []workload.Revision{{Version: after.Version, Release: 1}}}, nil
		}
		if got := review(t, newPolicy(o, deployments, newEvaluator(&o)), makeRequest(stored, changed)); !got.Allowed || reads > 0 != inFreeze {
			t.Errorf("in a freeze %t: allowed %t, read the history %d times", inFreeze, got.Allowed, reads)
		}
	}
}
