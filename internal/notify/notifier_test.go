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

package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/monitoring"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// stage is a cluster with a Deployment that failed, a policy that notifies, and an endpoint.
type stage struct {
	*testing.T
	client.Client
	clock    *clocktesting.FakePassiveClock
	notifier *Notifier
	listErr  error
	// got are the alerts that were sent, as endpoint, name, workload and seconds until the end.
	got     []string
	sendErr error
}

func newStage(t *testing.T) *stage {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s := &stage{T: t, clock: clocktesting.NewFakePassiveClock(time.Now().Truncate(time.Second))}
	web := wrappers.MakeDeployment("shop", "web").UID("web-uid").Label("team", "a").Recorded(versionB, 2).Obj()
	release := wrappers.MakeChangeWorkload("shop", "web--b").UID("b").Of(web).Version(versionB).Release(2).Attempt(1).
		State(v1alpha1.ChangeWorkloadSuspend).Obj()
	release.Status.UpdateTimeUnix = s.clock.Now().Unix()
	p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "page", Generation: 1}}
	p.Spec.Notify = []v1alpha1.PolicyNotify{{EndpointRef: v1alpha1.EndpointReference{Name: "am"}, Events: all}}
	e := &v1alpha1.DefenseEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "operator", Name: "am", UID: "am", Generation: 1}}
	e.Spec.Type, e.Spec.URL = v1alpha1.EndpointAlertmanager, "http://am.test"
	e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReachable, Status: metav1.ConditionTrue}}
	s.Client = fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(wrappers.MakeNamespace("shop").Enrolled().Obj(), wrappers.MakeNamespace("operator").Obj(), web, release, p, e).
		WithStatusSubresource(p).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByOwner, workload.OwnerUID).
		WithIndex(&appsv1.ReplicaSet{}, workload.IndexByOwner, workload.OwnerUID).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, is := list.(*v1alpha1.DefenseEndpointList); is && s.listErr != nil {
					return s.listErr
				}
				return c.List(ctx, list, opts...)
			},
		}).Build()
	s.leader(func(_ context.Context, e *v1alpha1.DefenseEndpoint, body []byte) error {
		var alerts []Alert
		if err := json.Unmarshal(body, &alerts); err != nil {
			return err
		}
		for _, a := range alerts {
			s.got = append(s.got, fmt.Sprintf("%s %s %s %.0f", e.Name, strings.TrimPrefix(a.Labels["alertname"], "AlterShield"),
				a.Labels["workload"], a.EndsAt.Sub(s.clock.Now()).Seconds()))
		}
		return s.sendErr
	})
	return s
}

// leader begins a new leader.
func (s *stage) leader(send func(context.Context, *v1alpha1.DefenseEndpoint, []byte) error) {
	s.notifier = &Notifier{Send: send, sent: map[string]memory{}, Cluster: &cluster.Cluster{
		View:   cluster.View{Cached: s.Client, Live: s.Client, Kinds: workload.NewRegistry(workload.Deployment{}), Operator: "operator"},
		Client: s.Client, Clock: s.clock,
	}}
}

// sends reads once, and wants these alerts.
func (s *stage) sends(what string, want ...string) {
	s.Helper()
	s.got = nil
	s.notifier.Notify(s.Context())
	slices.Sort(s.got)
	if !slices.Equal(s.got, want) {
		s.Errorf("%s: %q, want %q", what, s.got, want)
	}
}

func change[T client.Object](s *stage, namespace, name string, o T, how func(T)) {
	s.Helper()
	if err := s.Get(s.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
		s.Fatal(err)
	}
	how(o)
	if err := s.Update(s.Context(), o); err != nil {
		s.Fatal(err)
	}
}

func (s *stage) release(how func(*v1alpha1.ChangeWorkloadStatus)) {
	change(s, "shop", "web--b", &v1alpha1.ChangeWorkload{}, func(c *v1alpha1.ChangeWorkload) { how(&c.Status) })
}

func (s *stage) policy(how func(*v1alpha1.DefensePolicy)) {
	change(s, "shop", "page", &v1alpha1.DefensePolicy{}, how)
}

func (s *stage) endpoint(how func(*v1alpha1.DefenseEndpoint)) {
	change(s, "operator", "am", &v1alpha1.DefenseEndpoint{}, how)
}

func (s *stage) pass(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

func (s *stage) succeed(status *v1alpha1.ChangeWorkloadStatus) {
	status.Status, status.UpdateTimeUnix = v1alpha1.ChangeWorkloadSuccess, s.clock.Now().Unix()
}

const (
	fails = "am Failed web 240"
	over  = "am Failed web 0"
)

func TestNotifier(t *testing.T) {
	for name, test := range map[string]func(s *stage){
		"the release recovers": func(s *stage) { s.release(s.succeed) },
		"it is deleted": func(s *stage) {
			if err := s.Delete(s.Context(), wrappers.MakeDeployment("shop", "web").Obj()); err != nil {
				s.Fatal(err)
			}
		},
		"the workload opts out": func(s *stage) {
			change(s, "shop", "web", wrappers.MakeDeployment("shop", "web").Obj(), func(d *appsv1.Deployment) {
				d.SetLabels(map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseDisabled})
			})
		},
		"its namespace is no longer enrolled": func(s *stage) {
			change(s, "", "shop", wrappers.MakeNamespace("shop").Obj(), func(ns *corev1.Namespace) { ns.SetLabels(nil) })
		},
		"another version is released": func(s *stage) {
			change(s, "shop", "web", wrappers.MakeDeployment("shop", "web").Obj(), func(d *appsv1.Deployment) {
				d.SetLabels(map[string]string{v1alpha1.VersionLabel: versionA})
			})
		},
		"the policy selects others": func(s *stage) {
			s.policy(func(p *v1alpha1.DefensePolicy) {
				p.Spec.WorkloadSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}
			})
		},
		"the policy is disabled": func(s *stage) { s.policy(func(p *v1alpha1.DefensePolicy) { p.Spec.Mode = v1alpha1.ModeDisabled }) },
		"the policy asks for something else": func(s *stage) {
			s.policy(func(p *v1alpha1.DefensePolicy) {
				p.Spec.Notify[0].Events = []v1alpha1.NotifyReason{v1alpha1.NotifyBlocked}
			})
		},
		"the policy asks for nothing": func(s *stage) { s.policy(func(p *v1alpha1.DefensePolicy) { p.Spec.Notify = nil }) },
		"the policy may not use the endpoint": func(s *stage) {
			s.endpoint(func(e *v1alpha1.DefenseEndpoint) {
				e.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesSame}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.sends("at first", fails)
			test(s)
			s.sends("then", over)
			s.sends("later")
		})
	}
}

// TestNeverInTheWay: what goes wrong loses no alert, and ends none.
func TestNeverInTheWay(t *testing.T) {
	s := newStage(t)
	s.sendErr = errors.New("down")
	s.sends("Alertmanager is down", fails)
	s.sendErr = nil
	s.sends("it is up", fails)
	s.listErr = errors.New("no cache")
	s.sends("nothing can be read")
	s.listErr = nil
	s.sends("it can be read again")
	s.pass(time.Minute)
	s.sends("a minute later", fails)
	s.leader(s.notifier.Send)
	s.sends("a new leader", fails)
	s.leader(s.notifier.Send)
	s.release(s.succeed)
	s.sends("a failure that ended between two leaders")
}

// TestObserved: a check that failed in observe mode is found in a batch, and in a release whose last decision is older.
func TestObserved(t *testing.T) {
	s := newStage(t)
	s.release(s.succeed)
	s.sends("at first")
	failed := v1alpha1.CheckStatus{Name: "shop/p/errors", Mode: v1alpha1.ModeObserve, Phase: v1alpha1.CheckFailed,
		CompletionTime: &metav1.Time{Time: s.clock.Now()}}
	var release v1alpha1.ChangeWorkload
	if err := s.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web--b"}, &release); err != nil {
		t.Fatal(err)
	}
	batch := wrappers.MakeChangePod("shop", "web--b--1").Of(&release).Obj()
	batch.Status.Checks = []v1alpha1.CheckStatus{failed}
	if err := s.Create(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	s.sends("a check of a batch", "am WouldFail web 900")
	s.pass(momentLasts)
	s.sends("later")
	failed.CompletionTime = &metav1.Time{Time: s.clock.Now()}
	s.release(func(status *v1alpha1.ChangeWorkloadStatus) { status.Checks = []v1alpha1.CheckStatus{failed} })
	s.sends("a check of the release", "am WouldFail web 900")
}

// TestCondition: a policy says whether its endpoints get alerts.
func TestCondition(t *testing.T) {
	s := newStage(t)
	says := func(what, status, reason, message string) {
		t.Helper()
		s.notifier.Notify(t.Context())
		var p v1alpha1.DefensePolicy
		if err := s.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "page"}, &p); err != nil {
			t.Fatal(err)
		}
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionNotifies)
		switch {
		case c == nil && status == "":
		case c == nil || string(c.Status) != status || c.Reason != reason || !strings.Contains(c.Message, message):
			t.Errorf("%s: %+v, want %s %s %s", what, c, status, reason, message)
		default:
			if _, ok := v1alpha1.Explain("DefensePolicy", c); !ok {
				t.Errorf("%s: no entry for %+v", what, c)
			}
		}
	}
	says("at first", "True", v1alpha1.ReasonConfigured, "")
	s.endpoint(func(e *v1alpha1.DefenseEndpoint) { e.Status.Conditions[0].Status = metav1.ConditionFalse })
	says("it is down", "False", v1alpha1.ReasonUnavailable, "spec.notify[0].endpointRef: am")
	s.endpoint(func(e *v1alpha1.DefenseEndpoint) { e.Spec.Type = v1alpha1.EndpointPrometheus })
	says("it is a Prometheus", "False", v1alpha1.ReasonNoEndpoint, "spec.notify[0].endpointRef: am")
	s.policy(func(p *v1alpha1.DefensePolicy) { p.Spec.Notify[0].EndpointRef.Name = "none" })
	says("there is none", "False", v1alpha1.ReasonNoEndpoint, "spec.notify[0].endpointRef: none")
	s.policy(func(p *v1alpha1.DefensePolicy) { p.Spec.Notify = nil })
	says("nothing is asked", "", "", "")
}

// TestAlertmanager plays a failure, its end and a rollback to a real Alertmanager, which dies in between.
func TestAlertmanager(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Alertmanager")
	}
	root, err := binaries.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := monitoring.Programs(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	am, err := monitoring.StartAlertmanager(t.Context(), monitoring.AlertmanagerOptions{Programs: programs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := am.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newStage(t)
	clients := endpoint.NewClients(s.Client, s.clock, (&net.Dialer{}).DialContext)
	s.leader(clients.Send)
	s.endpoint(func(e *v1alpha1.DefenseEndpoint) { e.Spec.URL = am.URL() })
	has := func(what string, want ...string) {
		t.Helper()
		s.notifier.Notify(t.Context())
		alerts, err := am.Alerts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, a := range alerts {
			got = append(got, a.Labels["alertname"]+" "+a.Labels["workload"]+" "+a.Annotations["summary"])
		}
		if slices.Sort(got); !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	reach := func() error {
		var e v1alpha1.DefenseEndpoint
		if err := s.Get(t.Context(), client.ObjectKey{Namespace: "operator", Name: "am"}, &e); err != nil {
			t.Fatal(err)
		}
		return clients.Reach(t.Context(), &e)
	}
	const failed = "AlterShieldFailed web Deployment shop/web: The release failed its verification."
	has("a failure", failed)
	if err := reach(); err != nil {
		t.Errorf("it is not reachable: %v", err)
	}
	s.leader(clients.Send)
	has("a new leader sends it again", failed)
	s.release(s.succeed)
	has("it is corrected")
	if err := am.Kill(); err != nil {
		t.Fatal(err)
	}
	s.release(func(status *v1alpha1.ChangeWorkloadStatus) {
		status.Status, status.DecidedTimeUnix = v1alpha1.ChangeWorkloadRollback, s.clock.Now().Unix()
		status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRolledBack, Status: metav1.ConditionTrue,
			Reason: v1alpha1.ReasonNeverStarted, Message: "to version a", LastTransitionTime: metav1.NewTime(s.clock.Now())}}
	})
	s.notifier.Notify(t.Context())
	if err := reach(); err == nil {
		t.Error("it is reachable although it ended")
	}
	if err := am.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	has("after its restart", "AlterShieldRolledBack web Deployment shop/web: The release was rolled back because its pods did not come up.")
}
