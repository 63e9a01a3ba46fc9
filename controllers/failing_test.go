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
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// listed counts the lists of pods.
type listed struct {
	client.Reader
	pods int
}

func (l *listed) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*corev1.PodList); ok {
		l.pods++
	}
	return l.Reader.List(ctx, list, opts...)
}

// failing is a release whose pods fail, with one pod in each batch.
type failing struct {
	*release
	world *cached
	reads *listed
	clock *clocktesting.FakeClock
	r     *ChangePodReconciler
}

func newFailing(t *testing.T, pods int) *failing {
	f := &failing{release: released("web", pods, 1)}
	f.world = newCached(t, append(f.objects, around(f.began)...)...)
	c, clock := f.world.cluster(t, f.began.Add(time.Minute))
	f.reads = &listed{Reader: c.Cached}
	c.Cached, f.clock, f.r = f.reads, clock, newHealthReconciler(c)
	return f
}

// wakes returns the requests that events of the pods lead to.
func (f *failing) wakes(t *testing.T, pods []*corev1.Pod) (requests []ctrl.Request) {
	for _, pod := range pods {
		of := f.r.batchesOfPod(t.Context(), pod)
		if len(of) != 1 {
			t.Fatalf("pod %s wakes %v", pod.Name, of)
		}
		requests = append(requests, of...)
	}
	return requests
}

// phases counts the checks by phase and reason.
func (f *failing) phases(t *testing.T) map[string]int {
	var batches v1alpha1.ChangePodList
	if err := f.world.List(t.Context(), &batches); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for i := range batches.Items {
		c := &batches.Items[i].Status.Checks[0]
		count[string(c.Phase)+" "+c.Reason]++
	}
	return count
}

// TestFailingAtOnce: if pods of many batches fail at once, the pods of the release are listed for all batches together.
func TestFailingAtOnce(t *testing.T) {
	const pods = 200
	f := newFailing(t, pods)
	f.world.change(t, crashes(f.pods, f.clock.Now())...)
	settle(t, f.r, f.clock, f.wakes(t, f.pods))
	if got := f.phases(t); got["Failed CrashLoopBackOff"] != pods {
		t.Errorf("the checks are %v", got)
	}
	if f.reads.pods > 5 {
		t.Errorf("pods were listed %d times", f.reads.pods)
	}
	if f.world.writes != pods {
		t.Errorf("%d writes for %d batches", f.world.writes, pods)
	}
}

// TestFailingOneByOne: if pods fail one after the other within a moment, the check of the last counts all failures before it: 10 of
// 100 are tolerated, 11 are not. The first failure is written at once, and decided again when restarts are compared.
func TestFailingOneByOne(t *testing.T) {
	for failed, want := range map[int]map[string]int{
		10: {"Watching ": 90, "Watching Tolerated": 10},
		11: {"Watching ": 89, "Failed CrashLoopBackOff": 11},
	} {
		t.Run(fmt.Sprint(failed), func(t *testing.T) {
			f := newFailing(t, 100)
			var requests []ctrl.Request
			for _, pod := range f.pods[:failed] {
				f.world.change(t, crashes([]*corev1.Pod{pod}, f.clock.Now())...)
				for _, request := range f.wakes(t, []*corev1.Pod{pod}) {
					if _, err := f.r.Reconcile(t.Context(), request); err != nil {
						t.Fatal(err)
					}
					requests = append(requests, request)
				}
			}
			if got := f.phases(t)["Watching Tolerated"]; got != 1 {
				t.Errorf("%d batches were written at once, want the first", got)
			}
			settle(t, f.r, f.clock, requests)
			if got := f.phases(t); !maps.Equal(got, want) {
				t.Errorf("with %d failed pods the checks are %v", failed, got)
			}
		})
	}
}

// TestPodsOfNoBatch: an event of a pod wakes its batch, and only while a check of the batch runs.
func TestPodsOfNoBatch(t *testing.T) {
	f := newFailing(t, 300)
	for _, pod := range f.pods {
		want := types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("web--x--1-%d", indexOf(f.pods, pod))}
		if got := f.wakes(t, []*corev1.Pod{pod})[0].NamespacedName; got != want {
			t.Errorf("pod %s wakes %s, want %s", pod.Name, got, want)
		}
	}
	another := f.pods[0].DeepCopy()
	another.UID = "00" + another.UID[2:]
	if got := f.r.batchesOfPod(t.Context(), another); len(got) > 0 {
		t.Errorf("another pod with the name wakes %v", got)
	}
	f.clock.Step(time.Hour)
	if got := f.r.batchesOfPod(t.Context(), f.pods[0]); len(got) > 0 {
		t.Errorf("after the checks of its batch a pod wakes %v", got)
	}
}

func indexOf(pods []*corev1.Pod, pod *corev1.Pod) int {
	for i := range pods {
		if pods[i] == pod {
			return i
		}
	}
	return -1
}

// TestThousandPolicies: the status of each of 1000 policies is written once, however many workloads it selects, and in whatever order
// the cache lists them. The number of policies in force for one workload is bounded.
func TestThousandPolicies(t *testing.T) {
	began := released("web", 1, 1).began
	var objects []client.Object
	for i := range 50 {
		objects = append(objects, released(fmt.Sprintf("web%02d", i), 1, 1).objects...)
	}
	for _, namespace := range []string{"ns", operatorNamespace} {
		t.Run(namespace, func(t *testing.T) {
			policies := thousand(began, nil)
			for _, p := range policies {
				p.SetNamespace(namespace)
			}
			world := newCached(t, append(slices.Clone(objects), around(began, policies...)...)...)
			c, _ := world.cluster(t, began)
			r := &DefensePolicyReconciler{Cluster: c}
			judge := func() {
				if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: namespace}}); err != nil {
					t.Fatal(err)
				}
			}
			judged := len(policies)
			if namespace == operatorNamespace {
				judged++ // the default policy
			}
			for range 5 {
				judge()
			}
			if world.writes != judged {
				t.Errorf("%d writes for %d policies", world.writes, judged)
			}
			// Another workload, first by name, changes nothing while the workload that the status names exists.
			for _, o := range released("a", 1, 1).objects {
				world.change(t, o)
			}
			judge()
			if world.writes != judged {
				t.Errorf("%d writes for %d policies, after a new workload", world.writes, judged)
			}
			var list v1alpha1.DefensePolicyList
			if err := world.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
				t.Fatal(err)
			}
			reasons := map[string]int{}
			for i := range list.Items {
				reasons[list.Items[i].Status.Conditions[0].Reason]++
			}
			inForce := policy.MaxPolicies
			if namespace == "ns" {
				inForce-- // one is the default policy
			}
			if reasons[v1alpha1.ReasonInForce] != inForce || reasons[v1alpha1.ReasonTooMany] != judged-inForce {
				t.Errorf("the reasons are %v", reasons)
			}
		})
	}
}
