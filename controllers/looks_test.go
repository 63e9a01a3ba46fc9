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
	"encoding/json"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// midway is a workload in the middle of its rollout. Half of its pods have the current template, each in a batch that is done.
type midway struct {
	objects []client.Object
	// updated are the pods with the current template, batches their batches.
	updated []*corev1.Pod
	batches []*v1alpha1.ChangePod
	began   time.Time
}

// rolling returns a StatefulSet or a DaemonSet with so many pods in the middle of its rollout.
func rolling(kind string, pods int) *midway {
	m := &midway{began: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	// The wrappers make Deployments only; a template and a record are the same for each kind.
	like := wrappers.MakeDeployment("ns", "web").Replicas(int32(pods)).UID("web").Created(m.began).Obj()
	template := func(image string) map[string]any {
		t := *like.Spec.Template.DeepCopy()
		t.Spec.Containers[0].Image = image
		return asMap(&t)
	}
	hashes := []string{"aaaa", "bbbb"}
	web := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": template("b"), "replicas": int64(pods)}}}
	web.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kind))
	web.SetNamespace("ns")
	web.SetName("web")
	web.SetUID("web")
	web.SetCreationTimestamp(metav1.NewTime(m.began))
	web.SetLabels(map[string]string{v1alpha1.VersionLabel: workload.Version(template("b"))})
	half := int64(pods / 2)
	status := map[string]any{
		"desiredNumberScheduled": int64(pods), "currentNumberScheduled": int64(pods), "updatedNumberScheduled": half,
		"numberAvailable": int64(pods),
	}
	mark := func(hash string) string { return hash }
	if kind == "StatefulSet" {
		mark = func(hash string) string { return "web-" + hash }
		status = map[string]any{
			"replicas": int64(pods), "updatedReplicas": half, "availableReplicas": int64(pods), "updateRevision": mark("bbbb"),
		}
	}
	web.Object["status"] = status
	m.objects = append(m.objects, web)
	ref := *metav1.NewControllerRef(web, web.GroupVersionKind())
	for i, hash := range hashes {
		content := template(string(hash[0]))
		content["$patch"] = "replace"
		data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": content}})
		utilruntime.Must(err)
		m.objects = append(m.objects, wrappers.MakeControllerRevision("ns", "web-"+hash).UID(types.UID(hash)).Created(m.began).
			Label(appsv1.ControllerRevisionHashLabelKey, hash).Revision(int64(i+1)).Data(string(data)).
			With(func(r *appsv1.ControllerRevision) { r.OwnerReferences = []metav1.OwnerReference{ref} }).Obj())
	}
	change := wrappers.MakeChangeWorkload("ns", "web--x--1").UID("web-release").Version(workload.Version(template("b"))).Attempt(1).
		With(func(c *v1alpha1.ChangeWorkload) { c.OwnerReferences = []metav1.OwnerReference{ref} }).State(v1alpha1.ChangeWorkloadRunning).Obj()
	m.objects = append(m.objects, change)
	for i := range pods {
		n := fmt.Sprintf("web-%05d", i)
		of := hashes[i*2/pods]
		pod := wrappers.MakePod("ns", n).UID(uidOf(n)).Created(m.began).Ready(m.began).
			Label(appsv1.ControllerRevisionHashLabelKey, mark(of)).Obj()
		pod.OwnerReferences = []metav1.OwnerReference{ref}
		m.objects = append(m.objects, pod)
		if of == "aaaa" {
			continue
		}
		batch := wrappers.MakeChangePod("ns", fmt.Sprint("web--x--1-", i)).UID(types.UID(n + "-batch")).Of(change).Done().Pods(n).Obj()
		batch.Spec.PodInfos[0].UID = string(pod.UID)
		m.updated, m.batches, m.objects = append(m.updated, pod), append(m.batches, batch), append(m.objects, batch)
	}
	return m
}

func asMap(o any) map[string]any {
	content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(o)
	utilruntime.Must(err)
	return content
}

// counting counts the listed pods.
type counting struct {
	client.Reader
	pods int
}

func (c *counting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := c.Reader.List(ctx, list, opts...)
	if pods, ok := list.(*corev1.PodList); ok {
		c.pods += len(pods.Items)
	}
	return err
}

// view returns a cluster with the workload, and the counter of the pods listed from it.
func (m *midway) view(tb testing.TB) (*cluster.Cluster, *counting, *clocktesting.FakeClock) {
	tb.Helper()
	world := newCached(tb, append(m.objects, around(m.began)...)...)
	c, clock := world.cluster(tb, m.began.Add(time.Minute))
	counts := &counting{Reader: c.Cached}
	c.Cached = counts
	return c, counts, clock
}

// TestLooksListNoPods: no reconcile of a pod or of a batch lists pods. Otherwise a release of twice as many pods would take four times
// as long.
func TestLooksListNoPods(t *testing.T) {
	for _, kind := range []string{"StatefulSet", "DaemonSet"} {
		t.Run(kind, func(t *testing.T) {
			m := rolling(kind, 20)
			c, counts, _ := m.view(t)
			w, err := c.Workload(t.Context(), workload.Key{
				GroupKind: appsv1.SchemeGroupVersion.WithKind(kind).GroupKind(), NamespacedName: types.NamespacedName{Namespace: "ns", Name: "web"},
			})
			if err != nil || len(w.OldRevisions) != 1 || w.OldRevisions[0].Replicas != 10 || counts.pods != 20 {
				t.Fatalf("%d pods are listed to observe %+v (%v), want all, and 10 of the revision before", counts.pods, w, err)
			}
			counts.pods = 0
			pod, err := (&PodReconciler{c}).loadRelease(t.Context(), m.updated[0])
			if err != nil || pod == nil || counts.pods != 0 {
				t.Errorf("%d pods are listed for a pod, %v, of %v", counts.pods, err, pod)
			}
			counts.pods = 0
			s, err := newChangePodReconciler(c, 1, checks.New(c, nil, nil)).load(t.Context(), m.batches[0])
			if err != nil || !s.Defended || counts.pods != 0 {
				t.Errorf("%d pods are listed for a batch, %v, of %+v", counts.pods, err, s)
			}
		})
	}
}

// BenchmarkLooks measures the reconciles of a pod and of a batch in the middle of a rollout.
func BenchmarkLooks(b *testing.B) {
	for _, pods := range []int{100, 1000, 5000} {
		m := rolling("DaemonSet", pods)
		c, _, _ := m.view(b)
		b.Run(fmt.Sprintf("at a pod of %d", pods), func(b *testing.B) {
			r := &PodReconciler{c}
			for i := 0; b.Loop(); i++ {
				if _, err := r.loadRelease(b.Context(), m.updated[i%len(m.updated)]); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("at a batch of %d", pods), func(b *testing.B) {
			r := newChangePodReconciler(c, 1, checks.New(c, nil, nil))
			for i := 0; b.Loop(); i++ {
				if _, err := r.load(b.Context(), m.batches[i%len(m.batches)]); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("at a release of %d", pods), func(b *testing.B) {
			r := newChangeWorkloadReconciler(c, "cluster")
			for b.Loop() {
				var change v1alpha1.ChangeWorkload
				if err := c.Client.Get(b.Context(), types.NamespacedName{Namespace: "ns", Name: "web--x--1"}, &change); err != nil {
					b.Fatal(err)
				}
				ns, err := c.Namespace(b.Context(), "ns")
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := r.load(b.Context(), ns, &change); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
