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

package monitoring

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestCluster reads the pods of a control plane by kube-state-metrics, and has a target for each of them.
func TestCluster(t *testing.T) {
	t.Parallel()
	dir := programs(t)
	root, err := controlplane.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	binDir, err := controlplane.Build(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := controlplane.Start(t.Context(), controlplane.Options{BinDir: binDir, Nodes: 1, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := kubernetes.NewForConfig(cluster.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	targets := newTargets(t, TargetsOptions{})
	followed, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	if err := targets.Follow(followed, client, metav1.NamespaceDefault, serves); err != nil {
		t.Fatal(err)
	}
	ksm, err := StartKubeStateMetrics(t.Context(), dir, cluster.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	ends(t, ksm.Server)
	p := startPrometheus(t, PrometheusOptions{Targets: targets, Jobs: []Job{ksm.Job()}})

	web := wrappers.MakeDeployment(metav1.NamespaceDefault, "web").Replicas(2).Obj()
	if _, err := client.AppsV1().Deployments(metav1.NamespaceDefault).Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, p, `sum(kube_pod_status_ready{namespace="default",condition="true"})`, 2)
	becomes(t, p, `kube_deployment_status_replicas_available{namespace="default",deployment="web"}`, 2)
	becomes(t, p, `count(up{job="pods",namespace="default"} == 1)`, 2)
	// Both name the pods of the cluster.
	becomes(t, p, `count(up{job="pods"} and on(namespace,pod) kube_pod_info{namespace="default"})`, 2)
	becomes(t, p, `count(http_server_request_duration_seconds_count{http_response_status_code="500"} > 0)`, 2)

	scale := []byte(`{"spec":{"replicas":1}}`)
	if _, err := client.AppsV1().Deployments(metav1.NamespaceDefault).
		Patch(t.Context(), "web", "application/merge-patch+json", scale, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, p, `count(up{job="pods",namespace="default"})`, 1)
	becomes(t, p, `sum(kube_pod_status_ready{namespace="default",condition="true"})`, 1)
	scraped(t, p)
}

// serves makes pods with an image answer a tenth of 100 requests per second with 500.
func serves(pod *corev1.Pod) (Traffic, TargetOptions, bool) {
	images := func(c corev1.Container) bool { return c.Image != "" }
	return Traffic{Rate: 100, Errors: 0.1, Latency: time.Millisecond}, TargetOptions{}, slices.ContainsFunc(pod.Spec.Containers, images)
}

// TestFollow changes a pod: what it serves, a restart, its end.
func TestFollow(t *testing.T) {
	t.Parallel()
	now := time.Now()
	targets := newTargets(t, TargetsOptions{Now: func() time.Time { return now }})
	traffic, has := Traffic{Rate: 10}, true
	f := &follower{targets: targets, seen: map[cache.ObjectName]state{}, serves: func(*corev1.Pod) (Traffic, TargetOptions, bool) {
		return traffic, TargetOptions{}, has
	}}
	pod := wrappers.MakePod("shop", "web-1").Obj()
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "app"}}}
	step := func(what string, want string) {
		t.Helper()
		if err := f.changed(pod.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		got := "none"
		if target := targets.Get("shop", "web-1"); target != nil {
			all, failed := target.Count()
			got = fmt.Sprintf("%d/%d", failed, all)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	step("pending", "none")
	pod.Status.Phase = corev1.PodRunning
	step("running", "0/0")
	now = now.Add(time.Second)
	step("a second later", "0/10")
	traffic.Errors = 0.5
	step("begins to fail", "0/10")
	now = now.Add(2 * time.Second)
	step("fails", "10/30")
	pod.Status.ContainerStatuses[0].RestartCount++
	step("restarted", "0/0")
	now = now.Add(time.Second)
	step("fails again", "5/10")
	pod.UID = "another"
	step("replaced by one of the same name", "0/0")
	has = false
	step("without metrics", "none")
	has = true
	step("again", "0/0")
	if err := f.deleted(cache.DeletedFinalStateUnknown{Key: "shop/web-1", Obj: pod}); err != nil {
		t.Fatal(err)
	}
	if targets.Get("shop", "web-1") != nil {
		t.Error("a deleted pod has a target")
	}
}
