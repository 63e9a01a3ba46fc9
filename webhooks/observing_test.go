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
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// observing returns the settings that the annotations of a workload make, in the namespace of
// the test.
func observing(_ context.Context, namespace string, annotations map[string]string) (settings.InForce, error) {
	if namespace != "default" {
		return settings.InForce{}, errors.New("asked for the wrong namespace")
	}
	return settings.For(nil, nil, annotations), nil
}

// annotatedWith adds an annotation to a manifest of released.
func annotatedWith(object, key, value string) string {
	return strings.Replace(object, `"annotations":{`, `"annotations":{"`+key+`":"`+value+`",`, 1)
}

func TestObserving(t *testing.T) {
	const observe = v1alpha1.SettingAnnotationPrefix + settings.NameObserve
	o := Options{Self: self, Log: logr.Discard(), Settings: observing}
	blind := o
	blind.Settings = func(context.Context, string, map[string]string) (settings.InForce, error) {
		return settings.InForce{}, errors.New("no cache")
	}
	unset := Options{Self: self, Log: logr.Discard()}

	suspended := released(labelled(v1alpha1.SuspendLabel, "1"))
	repaired := func(object string) string { return strings.Replace(object, `"test":"123"`, `"test":"1234"`, 1) }
	quarantined := annotatedWith(released(""), v1alpha1.QuarantinedAnnotation, repairVersion)
	const owners = `"metadata":{"ownerReferences":[` +
		`{"apiVersion":"serving.knative.dev/v1","kind":"Revision","name":"a","uid":"u","controller":true}],`
	observed := annotatedWith(suspended, observe, "enabled")
	owned := strings.Replace(suspended, `"metadata":{`, owners, 1)
	for name, test := range map[string]struct {
		handler       admission.Handler
		before, after string
		allowed       bool
		warning       string // part of the warning
	}{
		"blocked, enforce mode": {newValidating(o, deployments), suspended, repaired(suspended), false, ""},
		"blocked, observe mode": {
			newValidating(o, deployments), suspended, repaired(observed), true, "deployment sleep is suspended",
		},
		"blocked, observe mode ends": {newValidating(o, deployments), observed, repaired(suspended), false, ""},
		"blocked, settings unknown":  {newValidating(blind, deployments), suspended, repaired(observed), false, ""},
		"blocked, no settings":       {newValidating(unset, deployments), suspended, repaired(observed), false, ""},
		"quarantined, enforce mode":  {newQuarantine(o, deployments), quarantined, repaired(quarantined), false, ""},
		"quarantined, observe mode": {
			newQuarantine(o, deployments), quarantined, repaired(annotatedWith(quarantined, observe, "enabled")), true, "was rolled back",
		},
		"owned": {newValidating(o, deployments), owned, repaired(owned), true, "by its owner, the revision a"},
		"owned, defended by a label": {
			newValidating(o, deployments), owned,
			repaired(strings.Replace(owned, `"labels":{`, `"labels":{"`+v1alpha1.DefenseLabel+`":"`+v1alpha1.DefenseEnforced+`",`, 1)), false, "",
		},
		"blocked, gets an owner": {newValidating(o, deployments), suspended, repaired(owned), false, ""},
		"quarantined, gets an owner": {
			newQuarantine(o, deployments), quarantined, repaired(strings.Replace(quarantined, `"metadata":{`, owners, 1)), false, "",
		},
		"loses its owner":         {newValidating(o, deployments), owned, repaired(suspended), false, ""},
		"owned, settings unknown": {newValidating(blind, deployments), owned, repaired(owned), true, "by its owner, the revision a"},
		"no release":              {newValidating(o, deployments), suspended, observed, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := review(t, test.handler, makeRequest(test.before, test.after))
			warnings := strings.Join(got.Warnings, "; ")
			if got.Allowed != test.allowed || (warnings == "") != (test.warning == "") || !strings.Contains(warnings, test.warning) {
				t.Errorf("allowed %t, warnings %q, %+v; want %t, %q", got.Allowed, warnings, got.Result, test.allowed, test.warning)
			}
		})
	}
}

// TestObservingTheAdmissionCheck: in observe mode the server is asked, and its answer denies
// nothing.
func TestObservingTheAdmissionCheck(t *testing.T) {
	for name, test := range map[string]struct {
		observe bool
		warns   string
	}{"enforce mode": {false, ""}, "observe mode": {true, "enforce mode denies it: deployment sleep: version"}} {
		t.Run(name, func(t *testing.T) {
			f := &fakeChecker{
				answer:   func(context.Context, Question) (Answer, error) { return Answer{Explanation: "a freeze"}, nil },
				settings: func(s *settings.Settings) error { s.Observe = test.observe; return nil },
			}
			got := review(t, mutatingOf(f.options(), deployments), makeRequest(released(""), released2("")))
			if got.Allowed != test.observe || len(f.asked()) != 1 {
				t.Errorf("allowed %t after %d questions", got.Allowed, len(f.asked()))
			}
			warned := slices.ContainsFunc(got.Warnings, func(w string) bool { return strings.Contains(w, test.warns) })
			if test.observe && (!warned || len(got.Patch) == 0) {
				t.Errorf("warnings %q, patch %s; want a warning with %q, and a record", got.Warnings, got.Patch, test.warns)
			}
		})
	}
}
