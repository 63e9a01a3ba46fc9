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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestDownPods: a pod that is down has a finding with commands, also if all else is well.
func TestDownPods(t *testing.T) {
	const (
		remove = "kubectl delete pod web-2 -n shop"
		logs   = "kubectl logs web-2 -c main --previous -n shop"
	)
	pod := func(old, crashes bool, since time.Time) func(*snapshot) {
		p := workload.Pod{Name: "web-2", Index: 2, Created: minutesAgo(60), UnreadySince: since}
		p.Stuck = &workload.Stuck{Reason: "NotReady"}
		if crashes {
			p.CrashLoop = &workload.Ended{Container: "main", Message: "last exit code 1"}
		}
		return func(s *snapshot) {
			if old {
				s.old = []oldRevision{{pods: []workload.Pod{p}}}
			} else {
				s.pods = []workload.Pod{p}
			}
		}
	}
	set := func(s *snapshot) {
		s.workload.GVK, s.workload.Replicas = workload.StatefulSet{}.GroupVersionKind(), 3
	}
	runs := func(s *snapshot) { s.changes[0].Status.Status = v1alpha1.ChangeWorkloadRunning }
	for name, test := range map[string]struct {
		with  []func(*snapshot)
		needs Needs
		says  string
		do    []string
	}{
		"an old pod, and the operator evicts it soon": {
			with: []func(*snapshot){set, runs, pod(true, true, minutesAgo(1))}, needs: NeedsTime, do: []string{remove, logs},
		},
		"an old pod, and nothing moved": {
			with: []func(*snapshot){set, runs, pod(true, true, minutesAgo(8))}, needs: NeedsAttention, do: []string{remove, logs},
			says: "pod web-2 of an earlier version: container main is in CrashLoopBackOff (last exit code 1)",
		},
		"an old pod, after the release succeeded": {
			with: []func(*snapshot){set, pod(true, true, minutesAgo(8))}, needs: NeedsAttention, do: []string{remove, logs},
		},
		"an old pod that is only not ready": {
			with:  []func(*snapshot){set, runs, pod(true, false, minutesAgo(8))},
			needs: NeedsAttention, do: []string{remove}, says: "pod web-2 of an earlier version: NotReady",
		},
		"an old pod that is not ready for a moment": {with: []func(*snapshot){set, runs, pod(true, false, testNow.Add(-29*time.Second))}},
		"an old pod, and the setting is off": {
			with:  []func(*snapshot){set, runs, pod(true, true, minutesAgo(1)), func(s *snapshot) { s.settings.Eviction = false }},
			needs: NeedsAttention, do: []string{remove, logs},
		},
		"an old pod, and the eviction is refused": {
			with: []func(*snapshot){set, runs, pod(true, true, minutesAgo(1)), func(s *snapshot) {
				s.say(v1alpha1.ConditionEvictionBlocked, metav1.ConditionTrue, v1alpha1.ReasonDisruptionBudget, "no")
			}}, needs: NeedsAttention, do: []string{remove, logs},
		},
		"an old pod below a partition": {
			with:  []func(*snapshot){set, runs, pod(true, true, minutesAgo(8)), func(s *snapshot) { s.workload.Pace.Partition = 3 }},
			needs: NeedsAttention, do: []string{logs},
		},
		"an old pod of a Deployment": {with: []func(*snapshot){runs, pod(true, true, minutesAgo(8))}, needs: NeedsAttention, do: []string{logs}},
		"a pod of the version, after its success": {
			with:  []func(*snapshot){pod(false, true, minutesAgo(1))},
			needs: NeedsAttention, do: []string{logs}, says: "pod web-2: container main is in CrashLoopBackOff",
		},
		"a pod of the version, which will be rolled back": {
			with: []func(*snapshot){runs, pod(false, true, minutesAgo(1)), func(s *snapshot) {
				s.say(v1alpha1.ConditionPodsUnavailable, metav1.ConditionTrue, v1alpha1.ReasonPodsFailing, "1 pod fails")
			}}, needs: NeedsTime, do: []string{logs},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSnapshot(func(s *snapshot) {
				for _, with := range test.with {
					with(s)
				}
			})
			needs, do, says := Needs(""), []string(nil), ""
			for _, f := range findingsOf(s, testAdvisor) {
				if f.Code == "PodsDown" || f.Code == "PodsUnavailablePodsFailing" {
					needs, says = f.Needs, strings.Join(f.Details, " ")
					for _, a := range f.Do {
						if a.Command == remove || a.Command == logs {
							do = append(do, a.Command)
						}
					}
				}
			}
			if diff := cmp.Diff(test.do, do); needs != test.needs || !strings.Contains(says, test.says) || diff != "" {
				t.Errorf("needs %q, says %q; to type (-want +got):\n%s", needs, says, diff)
			}
		})
	}
}

// crashes puts a container of a pod into a crash loop.
func crashes(pod *corev1.Pod) {
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", RestartCount: 2, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
	}}
}

// TestSeesDownPods: pods in CrashLoopBackOff are found, of one workload and of many.
func TestSeesDownPods(t *testing.T) {
	objects := native(workload.StatefulSet{}, "db", "uid-db")
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok && pod.Name == "db-pod-1" {
			crashes(pod)
		}
	}
	yes := true
	pod := &corev1.Pod{ObjectMeta: meant("web-7d9f-x")}
	pod.Labels = map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "7d9f"}
	pod.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d9f", UID: "uid-rs", Controller: &yes},
	}
	crashes(pod)
	web := &appsv1.Deployment{ObjectMeta: meant("web"), Status: appsv1.DeploymentStatus{Replicas: 2, ReadyReplicas: 1}}
	web.UID = "uid-web"
	web.Spec.Replicas = new(int32)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	live := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(append(objects, pod, web, ns)...).Build()
	c := &connection{Options: Options{Now: func() time.Time { return testNow }}}
	db := target{kind: workload.StatefulSet{}, key: types.NamespacedName{Namespace: "shop", Name: "db"}}
	s, err := c.load(t.Context(), live, operatorNamespace, db)
	if err != nil || len(s.down()) != 1 || s.down()[0].Name != "db-pod-1" || !s.down()[0].old {
		t.Fatalf("of one: %+v, %v", s, err)
	}
	v, err := c.census(t.Context(), live, operatorNamespace, "shop")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, s := range v.snapshots {
		seen[s.workload.Name] = len(s.down())
	}
	if diff := cmp.Diff(map[string]int{"db": 1, "web": 1}, seen); diff != "" {
		t.Errorf("of many (-want +got):\n%s", diff)
	}
	if says := (style{}).counts(overviewOf(v, "shop", false, testNow), "shop"); strings.Contains(says, "Nothing needs attention") {
		t.Errorf("pods crash, and it says:\n%s", says)
	}
}
