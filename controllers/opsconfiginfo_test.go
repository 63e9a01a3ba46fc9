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

package controllers

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestHoldingLowered: an event reports once that a namespace turns holding off while the operator has it on, and once that it is on
// again. If the operator has it off, there is no event.
func TestHoldingLowered(t *testing.T) {
	const operator, namespace = "operator", "shop"
	holding := func(namespace string) *wrappers.OpsConfigInfoWrapper {
		return wrappers.MakeOpsConfigInfo(namespace, settings.NameHolding, v1alpha1.TypeHolding)
	}
	off, on := v1alpha1.OpsConfigValue{}, v1alpha1.OpsConfigValue{Enable: true, Content: "first"}
	for name, test := range map[string]struct {
		operator *wrappers.OpsConfigInfoWrapper
		steps    []v1alpha1.OpsConfigValue
		want     []string // events
	}{
		"off": {holding(operator).On("every"), []v1alpha1.OpsConfigValue{off}, []string{"DefenseChanged"}},
		"off and on again": {
			holding(operator).On("every"), []v1alpha1.OpsConfigValue{off, on}, []string{"DefenseChanged", "DefenseChanged"},
		},
		"on, and then off":            {holding(operator).On("every"), []v1alpha1.OpsConfigValue{on, off}, []string{"DefenseChanged"}},
		"on":                          {holding(operator).On("every"), []v1alpha1.OpsConfigValue{on}, nil},
		"off, as the operator has it": {holding(operator).Off("first"), []v1alpha1.OpsConfigValue{off}, nil},
		"on and off, and the operator has it off": {holding(operator).Off("first"), []v1alpha1.OpsConfigValue{on, off}, nil},
		"off, but the operator's setting is locked": {holding(operator).On("every").With(func(o *v1alpha1.OpsConfigInfo) {
			o.Spec.Locked = true
		}), []v1alpha1.OpsConfigValue{off}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			own := holding(namespace).Obj()
			c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(own).
				WithObjects(wrappers.MakeNamespace(namespace).Enrolled().Obj(), test.operator.Obj(), own).Build()
			recorder := events.NewFakeRecorder(10)
			r := &OpsConfigInfoReconciler{Cluster: &cluster.Cluster{
				View: cluster.View{Cached: c, Live: c, Operator: operator}, Client: c,
				Recorder: recorder, Clock: clocktesting.NewFakePassiveClock(time.Unix(1_700_000_000, 0)),
			}}
			for _, step := range test.steps {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil {
					t.Fatal(err)
				}
				own.Spec.Enable, own.Spec.Content = step.Enable, step.Content
				if err := c.Update(t.Context(), own); err != nil {
					t.Fatal(err)
				}
				for range 2 { // twice, as it may be called for any reason
					if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(own)}); err != nil {
						t.Fatal(err)
					}
				}
			}
			close(recorder.Events)
			var reasons []string
			for event := range recorder.Events {
				reasons = append(reasons, strings.Fields(event)[1])
			}
			if strings.Join(reasons, " ") != strings.Join(test.want, " ") {
				t.Errorf("events %v, want %v", reasons, test.want)
			}
		})
	}
}

// TestNoteKinds: the time since when a kind is defended is written once, only on the operator's own setting blocking, and stays.
func TestNoteKinds(t *testing.T) {
	const operator, namespace = "operator", "shop"
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	blocking := wrappers.MakeOpsConfigInfo(operator, settings.NameBlocking, v1alpha1.TypeBlocking).On("").Obj()
	own := wrappers.MakeOpsConfigInfo(namespace, settings.NameBlocking, v1alpha1.TypeBlocking).On("").Obj()
	c := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(blocking).
		WithObjects(wrappers.MakeNamespace(namespace).Enrolled().Obj(), blocking, own).Build()
	clock := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	began := clock.Now()
	for _, kinds := range []*workload.Registry{ // of versions that follow one another
		workload.NewRegistry(workload.Deployment{}), workload.NewRegistry(workload.Deployment{}, workload.StatefulSet{}),
		workload.Defended(), workload.Defended(),
	} {
		r := &OpsConfigInfoReconciler{started: began, Cluster: &cluster.Cluster{
			View: cluster.View{Cached: c, Live: c, Kinds: kinds, Operator: operator}, Client: c, Recorder: events.NewFakeRecorder(10), Clock: clock,
		}}
		for _, o := range []client.Object{blocking, own} {
			if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o)}); err != nil {
				t.Fatal(err)
			}
		}
		clock.Step(time.Hour)
	}
	noted := func(o *v1alpha1.OpsConfigInfo) map[string]time.Duration {
		since := map[string]time.Duration{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Fatal(err)
		}
		for _, condition := range o.Status.Conditions {
			since[condition.Type] = condition.LastTransitionTime.Sub(began)
		}
		return since
	}
	want := map[string]time.Duration{v1alpha1.ConditionAccepted: 0, v1alpha1.ConditionInstalled: 0,
		v1alpha1.ConditionDefendsStatefulSet: time.Hour, v1alpha1.ConditionDefendsDaemonSet: 2 * time.Hour}
	if got := noted(blocking); !maps.Equal(got, want) {
		t.Errorf("noted %v, want %v", got, want)
	}
	if got := noted(own); len(got) != 1 {
		t.Errorf("on the setting of a namespace it noted %v", got)
	}
}

// TestNoteInstalled: an installation begins at the first start, and at the first start after an uninstall. It does not begin for a
// process that started before the uninstall, for a setting that was recreated, or after an upgrade from a build that did not note it.
func TestNoteInstalled(t *testing.T) {
	began := metav1.NewTime(time.Unix(1_700_000_000, 0))
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(began.Add(d)) }
	condition := func(kind string, status metav1.ConditionStatus, since time.Duration) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, LastTransitionTime: at(since)}
	}
	installed, accepted := v1alpha1.ConditionInstalled, v1alpha1.ConditionAccepted
	left := func(since time.Duration) []metav1.Condition {
		return []metav1.Condition{condition(installed, metav1.ConditionFalse, since)}
	}
	for name, test := range map[string]struct {
		namespace   string
		said, other []metav1.Condition
		started     time.Duration
		want        time.Duration // after began; negative if it is not noted
	}{
		"first start":                      {"operator", nil, nil, time.Hour, time.Hour},
		"noted already":                    {"operator", []metav1.Condition{condition(installed, metav1.ConditionTrue, 0)}, nil, time.Hour, 0},
		"first start after an uninstall":   {"operator", left(0), nil, time.Minute, time.Minute},
		"started before the uninstall":     {"operator", left(2 * time.Minute), nil, time.Minute, -1},
		"an upgrade":                       {"operator", nil, []metav1.Condition{condition(accepted, metav1.ConditionTrue, 0)}, time.Hour, 0},
		"the setting of another namespace": {"shop", nil, nil, time.Hour, -1},
	} {
		t.Run(name, func(t *testing.T) {
			r := &OpsConfigInfoReconciler{started: at(test.started).Time, Cluster: &cluster.Cluster{
				View: cluster.View{Operator: "operator"}, Clock: clocktesting.NewFakePassiveClock(at(time.Hour).Time),
			}}
			setting := wrappers.MakeOpsConfigInfo(test.namespace, settings.NameBlocking, v1alpha1.TypeBlocking).On("").Obj()
			setting.Status.Conditions = test.said
			other := wrappers.MakeOpsConfigInfo("operator", settings.NameBranch, v1alpha1.TypeBranch).On("").Obj()
			other.Status.Conditions = test.other
			r.noteInstalled(setting, []v1alpha1.OpsConfigInfo{*other})
			got := defense.InstalledSince(setting)
			if test.want < 0 && !got.IsZero() || test.want >= 0 && !got.Equal(at(test.want).Time) {
				t.Errorf("installed since %s", got)
			}
		})
	}
}
