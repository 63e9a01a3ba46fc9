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

package workload

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// native is a StatefulSet or a DaemonSet with its revisions and pods, to be changed by tests.
type native struct {
	kind      Kind
	set       *appsv1.StatefulSet
	daemon    *appsv1.DaemonSet
	revisions []*appsv1.ControllerRevision
	pods      []*corev1.Pod
	template  *corev1.PodTemplateSpec
	meta      *metav1.ObjectMeta
	// raw changes the JSON from the API server.
	raw func(map[string]any)
}

var deployedAt = metav1.NewTime(time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC))

func templateWith(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
	}
}

// makeSet returns a StatefulSet of five pods: two of revision db-new, three of db-old.
func makeSet() *native {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: "db", UID: "u", ResourceVersion: "1", Generation: 2, CreationTimestamp: deployedAt,
		},
		Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](5), Template: templateWith("new"), UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
			Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](0)},
		}},
		Status: appsv1.StatefulSetStatus{ObservedGeneration: 2, Replicas: 5, ReadyReplicas: 5, AvailableReplicas: 5, CurrentReplicas: 3,
			UpdatedReplicas: 2,
			CurrentRevision: "db-old", UpdateRevision: "db-new"},
	}
	n := &native{kind: StatefulSet{}, set: s, template: &s.Spec.Template, meta: &s.ObjectMeta}
	n.revision("db-old", "old", 1, "")
	n.revision("db-new", "new", 2, "")
	for i, of := range []string{"db-old", "db-old", "db-old", "db-new", "db-new"} {
		n.pod(fmt.Sprintf("db-%d", i), of)
	}
	return n
}

// makeDaemon returns a DaemonSet of five nodes: two of revision new, three of old.
func makeDaemon() *native {
	d := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "db", UID: "u", ResourceVersion: "1", Generation: 2, CreationTimestamp: deployedAt,
			Annotations: map[string]string{appsv1.DeprecatedTemplateGeneration: "2"}},
		Spec: appsv1.DaemonSetSpec{Template: templateWith("new"), UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: ptr.To(intstr.FromInt32(1)), MaxSurge: ptr.To(intstr.FromInt32(0))},
		}},
		Status: appsv1.DaemonSetStatus{
			ObservedGeneration: 2, DesiredNumberScheduled: 5, CurrentNumberScheduled: 5, UpdatedNumberScheduled: 2, NumberReady: 5,
			NumberAvailable: 5,
		},
	}
	n := &native{kind: DaemonSet{}, daemon: d, template: &d.Spec.Template, meta: &d.ObjectMeta}
	n.revision("db-old", "old", 1, "old")
	n.revision("db-new", "new", 2, "new")
	for i, of := range []string{"old", "old", "old", "new", "new"} {
		n.pod(fmt.Sprintf("db-%d", i), of)
	}
	return n
}

func (n *native) with(change func(*native)) *native {
	change(n)
	return n
}

func (n *native) owner() metav1.OwnerReference {
	return *metav1.NewControllerRef(n.meta, n.kind.GroupVersionKind())
}

// revision adds a revision of a template with this image, as the controllers create it.
func (n *native) revision(name, image string, number int64, hash string) *appsv1.ControllerRevision {
	template := templateWith(image)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		panic(err)
	}
	content["$patch"] = "replace"
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": content}})
	if err != nil {
		panic(err)
	}
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "prod", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(
				deployedAt.Add(time.Duration(number) * time.Hour)),
			Labels: map[string]string{"app": "db"}, Annotations: map[string]string{
				appsv1.DeprecatedTemplateGeneration: fmt.Sprint(number), "x": "y",
			},
			OwnerReferences: []metav1.OwnerReference{n.owner()},
		},
		Revision: number, Data: runtime.RawExtension{Raw: data},
	}
	if hash != "" {
		r.Labels[appsv1.ControllerRevisionHashLabelKey] = hash
	}
	n.revisions = append(n.revisions, r)
	return r
}

func (n *native) pod(name, mark string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: name, UID: types.UID(name), CreationTimestamp: deployedAt,
			OwnerReferences: []metav1.OwnerReference{n.owner()},
			Labels:          map[string]string{"app": "db", appsv1.ControllerRevisionHashLabelKey: mark}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x", ReadinessProbe: &corev1.Probe{}}}},
		Status: corev1.PodStatus{
			Phase:      corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: deployedAt}},
		},
	}
	n.pods = append(n.pods, p)
	return p
}

func (n *native) unready(name string) {
	for _, p := range n.pods {
		if p.Name == name {
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		}
	}
}

// stored returns the workload as the API server sends it.
func (n *native) stored(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	var typed client.Object = n.set
	if n.daemon != nil {
		typed = n.daemon
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		t.Fatal(err)
	}
	if n.raw != nil {
		n.raw(content)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(n.kind.GroupVersionKind())
	return u
}

// reader returns a reader of all these objects, trimmed as in the cache or as the API server sends
// them.
func (n *native) reader(t *testing.T, trimmed bool) client.Reader {
	t.Helper()
	kinds := NewRegistry(Deployment{}, StatefulSet{}, DaemonSet{})
	keep := func(o client.Object, trim cache.TransformFunc) client.Object {
		if !trimmed {
			return o
		}
		kept, err := trim(o.DeepCopyObject())
		if err != nil {
			t.Fatal(err)
		}
		object, ok := kept.(client.Object)
		if !ok {
			t.Fatalf("trimmed to a %T", kept)
		}
		return object
	}
	trims := n.kind.Transforms()
	objects := []client.Object{}
	for _, trim := range trims {
		objects = append(objects, keep(n.stored(t), trim))
	}
	for _, r := range n.revisions {
		objects = append(objects, keep(r, TrimRevision))
	}
	for _, p := range n.pods {
		pod := keep(p, kinds.TrimPod)
		pod.SetFinalizers(p.Finalizers) // else the fake refuses a terminating pod
		objects = append(objects, pod)
	}
	// The workloads have no type here: a type would lose the data of trimmed workloads.
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(appsv1.SchemeGroupVersion, &appsv1.ControllerRevision{}, &appsv1.ControllerRevisionList{})
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, IndexByOwner, OwnerUID).WithIndex(&appsv1.ControllerRevision{}, IndexByRevised, RevisedBy).Build()
}

func (n *native) get(t *testing.T, trimmed bool) *Workload {
	t.Helper()
	w, err := n.kind.Get(t.Context(), n.reader(t, trimmed), types.NamespacedName{Namespace: "prod", Name: "db"})
	if err != nil || w == nil {
		t.Fatalf("%v, %v", w, err)
	}
	return w
}

func versionWith(t *testing.T, image string) string {
	t.Helper()
	template := templateWith(image)
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		t.Fatal(err)
	}
	return Version(content)
}

func names(pods []Pod) string {
	var all []string
	for i := range pods {
		all = append(all, pods[i].Name)
	}
	return strings.Join(all, " ")
}

func describeOld(olds []OldRevision) string {
	var all []string
	for _, old := range olds {
		lost := ""
		if old.Lost > 0 {
			lost = fmt.Sprintf(" (%d lost)", old.Lost)
		}
		all = append(all, fmt.Sprintf("%s %d/%d%s", old.Name, old.Ready, old.Replicas, lost))
	}
	return strings.Join(all, ", ")
}

// TestNativeRollouts covers the rollout that is read of a StatefulSet and a DaemonSet, in the cache
// and as the API server sends them.
func TestNativeRollouts(t *testing.T) {
	for name, test := range map[string]struct {
		of *native
		// revision is the current revision, pods are its pods, and old are the other revisions with pods.
		revision, pods, old        string
		complete, stale, partition bool
		stopping                   Stopping
		progress                   string
	}{
		"set, rolling out": {
			of: makeSet(), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3", progress: "2 of 5 pods run this version, 5 are available",
		},
		"set, an old pod is not ready": {
			of: makeSet().with(func(n *native) { n.unready("db-1") }), revision: "db-new", pods: "db-3 db-4", old: "db-old 2/3",
			progress: "2 of 5 pods run this version, 5 are available",
		},
		"set, new generation": {of: makeSet().with(func(n *native) { n.set.Generation, n.template.Spec.Containers[0].Image = 3, "newer" }),
			stale: true, old: "db-new 2/2, db-old 3/3"},
		"set, new generation with the same template": {of: makeSet().with(func(n *native) { n.set.Generation = 3 }),
			revision: "db-new", pods: "db-3 db-4", stale: true, old: "db-old 3/3"},
		"set, the revision is not cached yet": {
			of: makeSet().with(func(n *native) { n.revisions = n.revisions[:1] }), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			progress: "2 of 5 pods run this version, 5 are available",
		},
		"set, complete": {
			of: makeSet().with(allNewSet), revision: "db-new", pods: "db-0 db-1 db-2 db-3 db-4", complete: true,
			progress: "5 of 5 pods run this version, 5 are available",
		},
		"set, complete before currentRevision changes": {
			of: makeSet().with(func(n *native) { allNewSet(n); n.set.Status.CurrentRevision = "db-old" }), revision: "db-new",
			pods: "db-0 db-1 db-2 db-3 db-4", complete: true, progress: "5 of 5 pods run this version, 5 are available",
		},
		"set, ready and not available": {of: makeSet().with(func(n *native) { allNewSet(n); n.set.Status.AvailableReplicas = 4 }),
			revision: "db-new", pods: "db-0 db-1 db-2 db-3 db-4", progress: "5 of 5 pods run this version, 4 are available"},
		"set, one pod too many": {of: makeSet().with(func(n *native) { allNewSet(n); n.set.Spec.Replicas = ptr.To[int32](4) }),
			revision: "db-new", pods: "db-0 db-1 db-2 db-3 db-4", progress: "5 of 4 pods run this version, 5 are available"},
		"set, a user's partition, not reached": {
			of: makeSet().with(func(n *native) { partition(n, 2) }), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{Partition: 2}, progress: "2 of 5 pods run this version, 5 are available",
		},
		"set, a user's partition, reached": {
			of: makeSet().with(func(n *native) { partition(n, 3) }), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{Partition: 3}, partition: true, progress: "2 of 5 pods run this version, 5 are available",
		},
		"set, a user's partition, reached and not available": {
			of: makeSet().with(func(n *native) { partition(n, 3); n.set.Status.AvailableReplicas = 4 }), revision: "db-new", pods: "db-3 db-4",
			old: "db-old 3/3", stopping: Stopping{Partition: 3}, progress: "2 of 5 pods run this version, 4 are available",
		},
		"set, a user's partition above all pods": {
			of: makeSet().with(func(n *native) { partition(n, 7) }), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{Partition: 7}, partition: true, progress: "2 of 5 pods run this version, 5 are available",
		},
		"set, a user's partition under which nothing was released": {
			of: makeSet().with(func(n *native) { allNewSet(n); partition(n, 3) }), revision: "db-new", pods: "db-0 db-1 db-2 db-3 db-4",
			stopping: Stopping{Partition: 3}, complete: true, progress: "5 of 5 pods run this version, 5 are available",
		},
		"set, halted": {
			of: makeSet().with(func(n *native) { partition(n, math.MaxInt32) }), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{Paused: true}, progress: "2 of 5 pods run this version, 5 are available",
		},
		"set, OnDelete": {of: makeSet().with(onDeleteSet), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{OnDelete: true}, progress: "2 of 5 pods run this version, 5 are available"},
		"set, OnDelete, all deleted": {
			of: makeSet().with(allNewSet).with(onDeleteSet), revision: "db-new", pods: "db-0 db-1 db-2 db-3 db-4", complete: true,
			stopping: Stopping{OnDelete: true}, progress: "5 of 5 pods run this version, 5 are available",
		},
		"set, with a version label in the template": {of: makeSet().with(func(n *native) { n.template.Labels[v1alpha1.VersionLabel] = "x" }),
			revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3", progress: "2 of 5 pods run this version, 5 are available"},
		"set, a terminating pod and a failed pod": {of: makeSet().with(func(n *native) {
			n.pods[0].DeletionTimestamp, n.pods[0].Finalizers = ptr.To(deployedAt), []string{"x/y"}
			n.pods[1].Status.Phase = corev1.PodFailed
		}), revision: "db-new", pods: "db-3 db-4", old: "db-old 1/1", progress: "2 of 5 pods run this version, 5 are available"},
		"set, pods of a deleted revision": {
			of: makeSet().with(func(n *native) { n.revisions = n.revisions[1:] }), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			progress: "2 of 5 pods run this version, 5 are available",
		},

		"daemon, rolling out": {
			of: makeDaemon(), revision: "new", pods: "db-3 db-4", old: "db-old 3/3",
			progress: "2 of 5 nodes run this version, on 5 a pod is available",
		},
		"daemon, complete": {of: makeDaemon().with(allNewDaemon), revision: "new", pods: "db-0 db-1 db-2 db-3 db-4", complete: true,
			progress: "5 of 5 nodes run this version, on 5 a pod is available"},
		"daemon, an unreachable node": {
			of: makeDaemon().with(func(n *native) { allNewDaemon(n); n.daemon.Status.NumberAvailable = 4 }), revision: "new",
			pods: "db-0 db-1 db-2 db-3 db-4", progress: "5 of 5 nodes run this version, on 4 a pod is available",
		},
		"daemon, an unreachable node with an old pod": {of: makeDaemon().with(func(n *native) {
			n.daemon.Status.NumberAvailable = 3
			for i, reason := range []string{"", "ContainersNotReady"} {
				n.pods[i].Status.Conditions = []corev1.PodCondition{
					{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: reason}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
				}
			}
			n.pods[1].Status.Conditions[1].Status = corev1.ConditionFalse
		}), revision: "new", pods: "db-3 db-4", old: "db-old 1/3 (1 lost)", progress: "2 of 5 nodes run this version, on 3 a pod is available"},
		"daemon, new generation": {
			of: makeDaemon().with(func(n *native) { n.daemon.Generation, n.template.Spec.Containers[0].Image = 3, "newer" }), stale: true,
			old: "db-new 2/2, db-old 3/3",
		},
		"daemon, new generation with the same template": {of: makeDaemon().with(func(n *native) { n.daemon.Generation = 3 }),
			revision: "new", pods: "db-3 db-4", stale: true, old: "db-old 3/3"},
		"daemon, its revision is not cached yet": {
			of: makeDaemon().with(func(n *native) { n.revisions = n.revisions[:1] }), stale: true, old: "db-old 3/3, new 2/2",
		},
		"daemon, no revision is cached yet": {of: makeDaemon().with(func(n *native) { n.revisions = nil }), stale: true, old: "new 2/2, old 3/3"},
		"daemon, back at an earlier revision": {of: makeDaemon().with(func(n *native) {
			n.template.Spec.Containers[0].Image, n.revisions[0].Revision, n.meta.Annotations[appsv1.DeprecatedTemplateGeneration] = "old", 3, "3"
			n.daemon.Status.UpdatedNumberScheduled = 3
		}), revision: "old", pods: "db-0 db-1 db-2", old: "db-new 2/2", progress: "3 of 5 nodes run this version, on 5 a pod is available"},
		"daemon, its controller does not know a field of the template": {of: makeDaemon().with(func(n *native) {
			n.raw = func(content map[string]any) {
				must(t, unstructured.SetNestedField(content, "x", "spec", "template", "spec", "newField"))
			}
		}), revision: "new", pods: "db-3 db-4", old: "db-old 3/3", progress: "2 of 5 nodes run this version, on 5 a pod is available"},
		"daemon, OnDelete": {of: makeDaemon().with(onDeleteDaemon), revision: "new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{Paused: true, OnDelete: true}, progress: "2 of 5 nodes run this version, on 5 a pod is available"},
		"daemon, halted": {
			of: makeDaemon().with(onDeleteDaemon).with(func(n *native) { n.meta.Annotations[v1alpha1.HaltedAnnotation] = "v" }), revision: "new",
			pods: "db-3 db-4", old: "db-old 3/3", stopping: Stopping{Paused: true},
			progress: "2 of 5 nodes run this version, on 5 a pod is available",
		},
		// A type that a later Kubernetes may have, and this build does not know.
		"set, Recreate": {of: makeSet().with(recreate), revision: "db-new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{Unknown: true}, progress: "2 of 5 pods run this version, 5 are available"},
		"daemon, Recreate": {of: makeDaemon().with(recreate), revision: "new", pods: "db-3 db-4", old: "db-old 3/3",
			stopping: Stopping{Unknown: true}, progress: "2 of 5 nodes run this version, on 5 a pod is available"},
		"daemon, no node": {
			of: makeDaemon().with(func(n *native) { n.daemon.Status, n.pods = appsv1.DaemonSetStatus{ObservedGeneration: 2}, nil }), revision: "new",
			complete: true, progress: "0 of 0 nodes run this version, on 0 a pod is available",
		},
		"daemon, with the operator's history": {of: makeDaemon().with(func(n *native) {
			ours := n.revision("db--x--daemonset-v", "ours", 99, "")
			ours.OwnerReferences[0].Controller, ours.Labels = nil, map[string]string{v1alpha1.HistoryOfLabel: "u", v1alpha1.VersionLabel: "v"}
		}), revision: "new", pods: "db-3 db-4", old: "db-old 3/3", progress: "2 of 5 nodes run this version, on 5 a pod is available"},
	} {
		for _, trimmed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, trimmed %t", name, trimmed), func(t *testing.T) {
				w := test.of.get(t, trimmed)
				pods, err := test.of.kind.Pods(t.Context(), test.of.reader(t, trimmed), w)
				if err != nil {
					t.Fatal(err)
				}
				r := w.Rollout
				if w.Revision != test.revision || names(pods) != test.pods || describeOld(w.OldRevisions) != test.old {
					t.Errorf("revision %q with the pods %q, others %q", w.Revision, names(pods), describeOld(w.OldRevisions))
				}
				if r.Complete != test.complete || r.Stale != test.stale || r.Partitioned != test.partition || r.Progress != test.progress ||
					w.Stopping != test.stopping {
					t.Errorf("%+v %+v", r, w.Stopping)
				}
				stopping, err := test.of.kind.Stopping(test.of.stored(t))
				if err != nil || stopping != test.stopping {
					t.Errorf("stored: stopping %+v, %v", stopping, err)
				}
				if w.GVK != test.of.kind.GroupVersionKind() || !w.Unstamped || w.ProgressDeadline != 10*time.Minute || w.ResourceVersion == "" {
					t.Errorf("%+v", w)
				}
			})
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func allNewSet(n *native) {
	s := &n.set.Status
	s.CurrentReplicas, s.UpdatedReplicas, s.CurrentRevision = 5, 5, "db-new"
	for _, p := range n.pods {
		p.Labels[appsv1.ControllerRevisionHashLabelKey] = "db-new"
	}
}

// bare removes all of the strategy except its type: the API server does not set defaults there.
func bare(n *native) { n.set.Spec.UpdateStrategy.RollingUpdate = nil }

func partition(n *native, p int32) { n.set.Spec.UpdateStrategy.RollingUpdate.Partition = &p }

func onDeleteSet(n *native) {
	n.set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
}

// recreate sets a strategy that the operator does not know.
func recreate(n *native) {
	if n.set != nil {
		n.set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: "Recreate"}
	}
	if n.daemon != nil {
		n.daemon.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: "Recreate"}
	}
}

func allNewDaemon(n *native) {
	n.daemon.Status.UpdatedNumberScheduled = 5
	for _, p := range n.pods {
		p.Labels[appsv1.ControllerRevisionHashLabelKey] = "new"
	}
}

func onDeleteDaemon(n *native) {
	n.daemon.Spec.UpdateStrategy.Type = appsv1.OnDeleteDaemonSetStrategyType
}

// TestNativeWorkloads covers the other fields that are read of StatefulSets and DaemonSets.
func TestNativeWorkloads(t *testing.T) {
	for name, test := range map[string]struct {
		of                          *native
		replicas, inFlight, mayLack int32
		rolling                     bool
		minReady                    time.Duration
	}{
		"set":                  {makeSet(), 5, 1, 1, true, 0},
		"set, no replicas":     {makeSet().with(func(n *native) { n.set.Spec.Replicas = ptr.To[int32](0) }), 0, 1, 1, true, 0},
		"set, minReadySeconds": {makeSet().with(func(n *native) { n.set.Spec.MinReadySeconds = 7 }), 5, 1, 1, true, 7 * time.Second},
		"set, OnDelete":        {makeSet().with(onDeleteSet), 5, 1, 1, false, 0},
		"set, Recreate":        {makeSet().with(recreate), 5, 1, 1, false, 0},
		"daemon, Recreate":     {makeDaemon().with(recreate), 5, 1, 1, false, 0},
		"set, several at a time": {makeSet().with(func(n *native) {
			n.set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromString("40%"))
		}), 5, 2, 2, true, 0},
		"daemon":                  {makeDaemon(), 5, 1, 1, true, 0},
		"daemon, minReadySeconds": {makeDaemon().with(func(n *native) { n.daemon.Spec.MinReadySeconds = 7 }), 5, 1, 1, true, 7 * time.Second},
		"daemon, several at a time": {makeDaemon().with(func(n *native) {
			n.daemon.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromString("30%"))
		}),
			5, 2, 2, true, 0},
		"daemon, surge": {makeDaemon().with(func(n *native) {
			n.daemon.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{
				MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromInt32(2)),
			}
		}), 5, 2, 0, true, 0},
		"daemon, OnDelete": {
			makeDaemon().with(func(n *native) { onDeleteDaemon(n); n.daemon.Spec.UpdateStrategy.RollingUpdate = nil }), 5, 1, 1, false, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.of.get(t, true)
			if w.Replicas != test.replicas || w.InFlight != test.inFlight || w.MayLack != test.mayLack || w.Rolling != test.rolling ||
				w.MinReady != test.minReady || !w.ByPods {
				t.Errorf("%+v", w)
			}
			if w.Version != versionWith(t, "new") || len(w.Images) != 1 || w.Images[0] != "new" {
				t.Errorf("version %s of images %v", w.Version, w.Images)
			}
			if made := deployedAt.Add(2 * time.Hour); !w.RevisionCreated.Equal(made) {
				t.Errorf("its revision was created at %s, want %s", w.RevisionCreated, made)
			}
		})
	}
}

// TestNativeRevisions covers the other revisions, their templates and images.
func TestNativeRevisions(t *testing.T) {
	for mark, of := range map[string]*native{"db-": makeSet(), "": makeDaemon()} {
		t.Run(of.kind.Resource(), func(t *testing.T) {
			of.revision("db-older", "older", 0, "older").CreationTimestamp = deployedAt
			of.revision("db-left", "left", 0,
				"left").CreationTimestamp = metav1.NewTime(deployedAt.Add(-time.Hour)) // of an earlier workload with its name
			of.revision("db-odd", "odd", 0, "odd").Data.Raw = []byte("{}")
			others := of.revision("db-others", "others", 7, "others")
			others.OwnerReferences[0].UID = "v"
			cached, live := of.reader(t, true), of.reader(t, false)
			w := of.get(t, true)
			revisions, err := of.kind.Revisions(t.Context(), cached, w)
			if err != nil {
				t.Fatal(err)
			}
			want := []OldRevision{
				{
					Name: "db-old", UID: "uid-db-old", Version: versionWith(t, "old"), Revision: mark + "old", Number: 1,
					Created: deployedAt.Add(time.Hour),
				},
				{Name: "db-older", UID: "uid-db-older", Version: versionWith(t, "older"), Revision: mark + "older", Created: deployedAt.Time},
			}
			if diff := cmp.Diff(want, revisions); diff != "" {
				t.Error("-want +got:\n", diff)
			}
			current, previous, err := of.kind.Images(t.Context(), cached, w)
			if err != nil || fmt.Sprint(current, previous) != "[new] [old]" {
				t.Errorf("images %v, before that %v, %v", current, previous, err)
			}
			template, version, err := of.kind.RevisionTemplate(t.Context(), live, "prod", &revisions[0])
			if err != nil || version != versionWith(t, "old") || template["$patch"] != nil {
				t.Errorf("template %v of version %s, %v", template, version, err)
			}
			for _, gone := range []OldRevision{{Name: "db-old", UID: "another"}, {Name: "db-none", UID: "x"}} {
				if template, _, err := of.kind.RevisionTemplate(t.Context(), live, "prod", &gone); template != nil || err != nil {
					t.Errorf("a revision that is gone has the template %v, %v", template, err)
				}
			}
			if gone, err := of.kind.Revisions(t.Context(), cached, &Workload{Namespace: "prod", Name: "db", UID: "another"}); err != nil ||
				gone != nil {
				t.Errorf("another workload with its name has %v, %v", gone, err)
			}
		})
	}
}

// TestNativeOwners covers the owners of pods and revisions.
func TestNativeOwners(t *testing.T) {
	kinds := NewRegistry(Deployment{}, StatefulSet{}, DaemonSet{})
	for _, of := range []*native{makeSet(), makeDaemon()} {
		r := of.reader(t, true)
		owner, ok, err := kinds.OwnerOfPod(t.Context(), r, of.pods[0])
		if err != nil || !ok || owner.Key.Kind != of.kind.GroupVersionKind().Kind || owner.UID != "u" || owner.Key.Name != "db" {
			t.Errorf("%s: the pod is of %+v, %t, %v", of.kind.Resource(), owner, ok, err)
		}
		for _, other := range kinds.Kinds() {
			for _, s := range other.Secondary() {
				if !isControllerRevision(s.Object) {
					continue
				}
				if _, ok := s.OwnerOf(of.revisions[0]); ok != (other == of.kind) {
					t.Errorf("the revision of a %s is one of a %s: %t", of.kind.Resource(), other.Resource(), ok)
				}
			}
		}
		pod := of.pods[0].DeepCopy()
		pod.OwnerReferences[0].APIVersion = "apps.kruise.io/v1beta1"
		if _, ok, _ := kinds.OwnerOfPod(t.Context(), r, pod); ok {
			t.Error("the pod of a kind of another group has an owner")
		}
	}
}

func isControllerRevision(o client.Object) bool {
	_, is := o.(*appsv1.ControllerRevision)
	return is
}

// TestTrimNative: trimmed StatefulSets, DaemonSets and revisions are small.
func TestTrimNative(t *testing.T) {
	for _, of := range []*native{makeSet(), makeDaemon()} {
		of.template.Spec.Containers[0].Args = []string{strings.Repeat("x", 10_000)}
		stored := of.stored(t)
		for _, trim := range of.kind.Transforms() {
			trimmed, err := trim(stored)
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(trimmed)
			if err != nil || len(text) > 2000 {
				t.Errorf("a %s takes %d bytes: %s, %v", of.kind.Resource(), len(text), text, err)
			}
		}
		r := of.revision("db-big", "big", 9, "big")
		r.Data.Raw = []byte(strings.Replace(string(r.Data.Raw), `"image":"big"`, `"image":"big","args":["`+strings.Repeat("x", 10_000)+`"]`, 1))
		want := contentOf(r)
		trimmed, err := TrimRevision(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(trimmed)
		if err != nil || len(text) > 1000 {
			t.Errorf("a revision takes %d bytes: %s, %v", len(text), text, err)
		}
		if diff := cmp.Diff(want, contentOf(r)); diff != "" || want.Version == "" {
			t.Error("the cache differs:", diff)
		}
		again, err := TrimRevision(r)
		if diff := cmp.Diff(want, contentOf(again.(*appsv1.ControllerRevision))); err != nil || diff != "" { //nolint:errcheck // it is one
			t.Error("trimmed again, the cache differs:", diff, err)
		}
	}
	foreign := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps.kruise.io/v1alpha1", Kind: "CloneSet", Name: "c", UID: "c", Controller: ptr.To(true)},
	}}, Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{}}}`)}}
	if _, err := TrimRevision(foreign); err != nil || foreign.Data.Raw != nil {
		t.Errorf("a revision of another kind keeps %s, %v", foreign.Data.Raw, err)
	}
	foreign.OwnerReferences[0].Controller, foreign.Data.Raw = nil, []byte(`{"contentHash":"abc","content":{"spec":{}}}`)
	foreign.Labels = map[string]string{v1alpha1.HistoryOfLabel: "c", v1alpha1.VersionLabel: "v"}
	for range 2 {
		if _, err := TrimRevision(foreign); err != nil || string(foreign.Data.Raw) != `{"contentHash":"abc"}` {
			t.Errorf("the history of a declared kind keeps %s, %v", foreign.Data.Raw, err)
		}
	}
	history := History([]appsv1.ControllerRevision{*foreign})
	if len(history) != 1 || history[0].ContentHash != "abc" || len((&Content{Hash: "abc"}).Restorable(history)) != 1 ||
		len((&Content{Hash: "else"}).Restorable(history)) != 0 || len((*Content)(nil).Restorable(history)) != 1 {
		t.Errorf("remembers %+v", history)
	}
}

// TestNativeControl covers how workloads are halted and resumed, and that the patches apply only to
// the state that was read.
func TestNativeControl(t *testing.T) {
	halted := func(from string) func(*native) {
		return func(n *native) {
			n.meta.Annotations = map[string]string{v1alpha1.HaltedAnnotation: "v"}
			if from != "" {
				n.meta.Annotations[v1alpha1.HaltedFromAnnotation] = from
			}
			if n.daemon != nil {
				onDeleteDaemon(n)
			} else {
				partition(n, math.MaxInt32)
			}
		}
	}
	halt := func(n *native, w *Workload) []Op { return n.kind.Halt(w) }
	resume := func(n *native, w *Workload) []Op { return n.kind.Resume(w) }
	for name, test := range map[string]struct {
		of *native
		do func(*native, *Workload) []Op
		// stored is the present state; nil for the state that was read.
		stored *native
		// want is the update strategy after the patch; empty if the patch does not apply.
		want, from string
	}{
		"set, halted": {of: makeSet(), do: halt, want: `{"rollingUpdate":{"partition":2147483647},"type":"RollingUpdate"}`},
		"set, halted at a user's partition": {
			of: makeSet().with(func(n *native) { partition(n, 3) }), do: halt,
			want: `{"rollingUpdate":{"partition":2147483647},"type":"RollingUpdate"}`, from: "3",
		},
		"set, halted, bare": {
			of: makeSet().with(bare), do: halt, want: `{"type":"RollingUpdate","rollingUpdate":{"partition":2147483647}}`,
		},
		"set, bare, a user set a partition": {
			of: makeSet().with(bare), do: halt, stored: makeSet().with(func(n *native) { partition(n, 3) }),
		},
		"set, a user resumed it by a bare strategy": {of: makeSet().with(bare), do: resume, want: `{"type":"RollingUpdate"}`},
		"set, bare in the cache, and halted":        {of: makeSet().with(bare), do: resume, stored: makeSet().with(halted(""))},
		"set, a user set the partition":             {of: makeSet(), do: halt, stored: makeSet().with(func(n *native) { partition(n, 3) })},
		"set, a user asked for OnDelete":            {of: makeSet(), do: halt, stored: makeSet().with(onDeleteSet)},
		"set, resumed": {
			of: makeSet().with(halted("")), do: resume, want: `{"rollingUpdate":{"partition":0},"type":"RollingUpdate"}`,
		},
		"set, resumed to a user's partition": {
			of: makeSet().with(halted("3")), do: resume, want: `{"rollingUpdate":{"partition":3},"type":"RollingUpdate"}`, from: "",
		},
		"set, resumed, the annotation cannot be read": {
			of: makeSet().with(halted("-7")), do: resume, want: `{"rollingUpdate":{"partition":0},"type":"RollingUpdate"}`,
		},
		"set, a user resumed it": {of: makeSet().with(halted("3")), do: resume, stored: makeSet().with(func(n *native) { partition(n, 1) })},
		"set, a user resumed it before": {
			of: makeSet().with(func(n *native) { partition(n, 1) }), do: resume, want: `{"rollingUpdate":{"partition":1},"type":"RollingUpdate"}`,
			from: "1",
		},
		"set, resumed in the cache, and halted": {
			of: makeSet().with(func(n *native) { partition(n, 1) }), do: resume, stored: makeSet().with(halted("1")), from: "1",
		},
		"set, a user asked for OnDelete before":    {of: makeSet().with(onDeleteSet), do: resume, want: `{"type":"OnDelete"}`},
		"set, a user asked for Recreate before":    {of: makeSet().with(recreate), do: resume, want: `{"type":"Recreate"}`},
		"daemon, a user asked for Recreate before": {of: makeDaemon().with(recreate), do: resume, want: `{"type":"Recreate"}`},
		"daemon, halted": {
			of: makeDaemon(), do: halt, want: `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"OnDelete"}`,
		},
		"daemon, a user asked for OnDelete": {of: makeDaemon(), do: halt, stored: makeDaemon().with(onDeleteDaemon)},
		"daemon, resumed": {
			of: makeDaemon().with(halted("")), do: resume, want: `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}`,
		},
		"daemon, a user resumed it": {of: makeDaemon().with(halted("")), do: resume, stored: makeDaemon()},
		"daemon, a user resumed it before": {
			of: makeDaemon(), do: resume, want: `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}`,
		},
		"daemon, resumed in the cache, and halted": {of: makeDaemon(), do: resume, stored: makeDaemon().with(halted(""))},
	} {
		t.Run(name, func(t *testing.T) {
			w := test.of.get(t, true)
			if from := test.of.kind.HaltedFrom(w); from != test.from {
				t.Errorf("halted from %q, want %q", from, test.from)
			}
			stored := test.stored
			if stored == nil {
				stored = test.of
			}
			operations, err := json.Marshal(test.do(test.of, w))
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(operations)
			if err != nil {
				t.Fatal(err)
			}
			document, err := stored.stored(t).MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			patched, err := patch.Apply(document)
			if err != nil {
				if test.want != "" {
					t.Errorf("%s does not apply: %v", operations, err)
				}
				return
			}
			var after struct {
				Spec struct{ UpdateStrategy json.RawMessage }
			}
			must(t, json.Unmarshal(patched, &after))
			if string(after.Spec.UpdateStrategy) != test.want {
				t.Errorf("%s leads to %s, want %s", operations, after.Spec.UpdateStrategy, test.want)
			}
		})
	}
}

// TestNativeRestore: only the template is restored.
func TestNativeRestore(t *testing.T) {
	for _, of := range []*native{makeSet(), makeDaemon()} {
		template := map[string]any{"spec": map[string]any{"containers": []any{}}}
		data, err := DataOf(template)
		must(t, err)
		got, err := of.kind.Restore(nil, data)
		must(t, err)
		if diff := cmp.Diff([]Op{{Op: "replace", Path: "/spec/template", Value: template}}, got); diff != "" {
			t.Error(diff)
		}
	}
}

// TestDaemonPace: a DaemonSet that rolls without a surge can be held, also while it is halted.
func TestDaemonPace(t *testing.T) {
	strategy := func(text string) *native {
		return makeDaemon().with(func(n *native) {
			n.daemon.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{}
			must(t, json.Unmarshal([]byte(text), &n.daemon.Spec.UpdateStrategy))
		})
	}
	const rolls, stays = `{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"10%","maxSurge":0}}`,
		`{"type":"OnDelete","rollingUpdate":{"maxUnavailable":"10%","maxSurge":0}}`
	annotated := func(n *native, key, value string) *native {
		return n.with(func(n *native) { metav1.SetMetaDataAnnotation(&n.daemon.ObjectMeta, key, value) })
	}
	held := (&Hold{
		Release: 2, Until: v1alpha1.HoldEveryBatch, Pace: Pace{ByEviction: true, MaxUnavailable: "10%"},
		Set: Pace{ByEviction: true, OnDelete: true, MaxUnavailable: "10%"},
	}).String()
	for name, test := range map[string]struct {
		of       *native
		want     Pace
		rolling  bool
		stopping Stopping
	}{
		"rolling": {strategy(rolls), Pace{ByEviction: true, MaxUnavailable: "10%"}, true, Stopping{}},
		"a surge": {strategy(`{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":0,"maxSurge":1}}`),
			Pace{ByEviction: true, MaxUnavailable: "0", MaxSurge: "1"}, false, Stopping{}},
		"a surge of none": {strategy(`{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":2,"maxSurge":"0%"}}`),
			Pace{ByEviction: true, MaxUnavailable: "2"}, true, Stopping{}},
		"OnDelete": {strategy(stays),
			Pace{ByEviction: true, OnDelete: true, MaxUnavailable: "10%"}, false, Stopping{Paused: true, OnDelete: true}},
		"held": {annotated(strategy(stays), v1alpha1.HeldAnnotation, held), Pace{ByEviction: true, OnDelete: true, MaxUnavailable: "10%"}, true,
			Stopping{}},
		"held, and OnDelete of the user": {annotated(strategy(`{"type":"OnDelete"}`), v1alpha1.HeldAnnotation, held),
			Pace{ByEviction: true, OnDelete: true}, false, Stopping{Paused: true, OnDelete: true}},
		"halted": {annotated(strategy(stays), v1alpha1.HaltedAnnotation, "v1"),
			Pace{ByEviction: true, OnDelete: true, MaxUnavailable: "10%", Halted: true}, true, Stopping{Paused: true}},
	} {
		pacing, err := test.of.kind.Pace(test.of.stored(t))
		if err != nil || pacing.Pace != test.want || pacing.Rolling != test.rolling {
			t.Errorf("%s: %+v, %v", name, pacing, err)
		}
		if stopping, err := test.of.kind.Stopping(test.of.stored(t)); err != nil || stopping != test.stopping {
			t.Errorf("%s: %+v, %v", name, stopping, err)
		}
	}
	unknown := strategy(`{"type":"Later"}`)
	if pacing, err := unknown.kind.Pace(unknown.stored(t)); pacing != nil || err != nil {
		t.Errorf("a strategy that is not known can be held: %+v, %v", pacing, err)
	}
}

// TestNativePace: a StatefulSet with a partition can be held.
func TestNativePace(t *testing.T) {
	at := func(p int32) Pace { return Pace{ByPartition: true, Partition: p} }
	for name, test := range map[string]struct {
		of   *native
		want Pacing
		// users is the user's partition.
		users int32
	}{
		"as it comes":       {makeSet(), Pacing{Pace: at(0), Rolling: true, Replicas: 5}, 0},
		"partitioned":       {makeSet().with(func(n *native) { partition(n, 3) }), Pacing{Pace: at(3), Rolling: true, Replicas: 5}, 3},
		"no number of pods": {makeSet().with(func(n *native) { n.set.Spec.Replicas = nil }), Pacing{Pace: at(0), Rolling: true, Replicas: 1}, 0},
		"no partition": {
			makeSet().with(func(n *native) { n.set.Spec.UpdateStrategy.RollingUpdate = nil }),
			Pacing{Pace: at(0), Rolling: true, Replicas: 5, Bare: true}, 0,
		},
		"deleted by its user": {makeSet().with(func(n *native) {
			n.set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
		}), Pacing{Pace: at(NoPartition), Replicas: 5, Bare: true}, 0},
		"recreated": {makeSet().with(recreate), Pacing{Pace: at(NoPartition), Replicas: 5, Bare: true}, 0},
		"without a type": {makeSet().with(func(n *native) { n.set.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{} }),
			Pacing{Pace: at(0), Rolling: true, Replicas: 5, Bare: true}, 0},
		"held":                  {makeSet().with(heldAt(4, 4)), Pacing{Pace: at(4), Rolling: true, Replicas: 5}, 1},
		"held, and edited":      {makeSet().with(heldAt(4, 2)), Pacing{Pace: at(2), Rolling: true, Replicas: 5}, 2},
		"held, not yet written": {makeSet().with(heldAt(4, 1)), Pacing{Pace: at(1), Rolling: true, Replicas: 5}, 1},
		"held as Deployments are": {makeSet().with(func(n *native) {
			partition(n, 4)
			n.meta.Annotations = map[string]string{
				v1alpha1.HeldAnnotation: `{"release":2,"until":"EveryBatch","minReadySeconds":0,"progressDeadlineSeconds":600,` +
					`"set":{"minReadySeconds":600,"progressDeadlineSeconds":1800}}`,
			}
		}), Pacing{Pace: at(4), Rolling: true, Replicas: 5}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.of.kind.Pace(test.of.stored(t))
			if err != nil || *got != test.want {
				t.Errorf("pacing %+v, %v, want %+v", got, err, test.want)
			}
			stopping, err := test.of.kind.Stopping(test.of.stored(t))
			if err != nil || stopping.Partition != test.users {
				t.Errorf("the user's partition is %d, %v, want %d", stopping.Partition, err, test.users)
			}
		})
	}
	set := makeSet().kind
	if diff := cmp.Diff([]Op{
		{Op: "test", Path: "/spec/updateStrategy/rollingUpdate/partition", Value: int32(4)},
		{Op: "replace", Path: "/spec/updateStrategy/rollingUpdate/partition", Value: int32(3)},
	}, set.SetPace(Pacing{Pace: at(4)}, at(3))); diff != "" {
		t.Error(diff)
	}
	if ops := slices.Concat(set.SetPace(Pacing{Pace: at(4)}, at(4)),
		set.SetPace(Pacing{Pace: at(NoPartition), Bare: true}, at(4))); ops != nil {
		t.Errorf("nothing changes, and the patch is %+v", ops)
	}
}

// heldAt holds a StatefulSet at partition set; its present partition is is, and the user's is 1.
func heldAt(set, is int32) func(*native) {
	return func(n *native) {
		partition(n, is)
		n.meta.Annotations = map[string]string{
			v1alpha1.HeldAnnotation: fmt.Sprintf(`{"release":2,"until":"EveryBatch","partition":1,"set":{"partition":%d}}`, set),
		}
	}
}

// TestNativeLacking covers pods that are missing although it is their turn.
func TestNativeLacking(t *testing.T) {
	gone := func(n *native) {
		n.pods = n.pods[:4]
		if n.daemon != nil {
			n.daemon.Status.CurrentNumberScheduled = 4
			return
		}
		n.set.Status.Replicas, n.set.Status.ReadyReplicas, n.set.Status.AvailableReplicas = 4, 4, 4
	}
	made := deployedAt.Add(2 * time.Hour) // the revision
	later := metav1.NewTime(made.Add(time.Hour))
	for name, test := range map[string]struct {
		of   *native
		want *Lacking
	}{
		"set: none is missing": {makeSet(), nil},
		"set: one is missing":  {makeSet().with(gone), &Lacking{Count: 1, Since: made}},
		"set: one was created recently": {
			makeSet().with(gone).with(func(n *native) { n.pods[0].CreationTimestamp = later }), &Lacking{Count: 1, Since: later.Time},
		},
		"set: it is not its turn": {makeSet().with(gone).with(func(n *native) { n.set.Status.AvailableReplicas = 3 }), nil},
		"set: all at once": {makeSet().with(gone).with(func(n *native) {
			n.set.Status.AvailableReplicas, n.set.Spec.PodManagementPolicy = 3, appsv1.ParallelPodManagement
		}), &Lacking{Count: 1, Since: made}},
		"set: one of the previous version": {makeSet().with(func(n *native) { withoutPod(n, 1); withPartition(n, 3) }), nil},
		"set: one of each version, in order": {makeSet().with(func(n *native) {
			withoutPod(n, 4)
			withoutPod(n, 1)
			withPartition(n, 3)
		}), nil},
		"set: one of each version, all at once": {makeSet().with(func(n *native) {
			withoutPod(n, 4)
			withoutPod(n, 1)
			withPartition(n, 3)
			n.set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
		}), &Lacking{Count: 1, Since: made}},
		"set: halted":             {makeSet().with(gone).with(func(n *native) { withPartition(n, math.MaxInt32) }), nil},
		"set: too many":           {makeSet().with(func(n *native) { n.set.Status.Replicas = 6 }), nil},
		"set: new generation":     {makeSet().with(gone).with(func(n *native) { n.set.Generation++ }), nil},
		"daemon: none is missing": {makeDaemon(), nil},
		"daemon: one is missing":  {makeDaemon().with(gone), &Lacking{Count: 1, Since: made}},
		"daemon: new generation":  {makeDaemon().with(gone).with(func(n *native) { n.daemon.Generation++ }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.of.get(t, true).Lacking
			if (got == nil) != (test.want == nil) || got != nil && (got.Count != test.want.Count || !got.Since.Equal(test.want.Since)) {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

func withoutPod(n *native, index int) {
	n.pods = slices.Delete(n.pods, index, index+1)
	n.set.Status.Replicas--
	n.set.Status.ReadyReplicas--
	n.set.Status.AvailableReplicas--
}

func withPartition(n *native, partition int32) {
	n.set.Spec.UpdateStrategy.RollingUpdate.Partition = &partition
}

// TestRevisionBeforeStatus: a controller creates the revision of a template before it sets the
// status. A release that bypassed admission is found by it.
func TestRevisionBeforeStatus(t *testing.T) {
	behind := func(n *native) {
		if n.daemon != nil {
			n.daemon.Generation++
		} else {
			n.set.Generation++
			n.set.Status.UpdateRevision = "db-old"
		}
	}
	for name, test := range map[string]struct {
		of   *native
		want string
	}{
		"set: the revision exists":            {makeSet().with(behind), "db-new"},
		"set: the revision does not exist":    {makeSet().with(behind).with(func(n *native) { n.revisions = n.revisions[:1] }), ""},
		"set: back, and not numbered yet":     {makeSet().with(behind).with(func(n *native) { n.template.Spec.Containers[0].Image = "old" }), ""},
		"daemon: the revision exists":         {makeDaemon().with(behind), "new"},
		"daemon: the revision does not exist": {makeDaemon().with(behind).with(func(n *native) { n.revisions = n.revisions[:1] }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if w := test.of.get(t, true); w.Revision != test.want || w.RevisionCreated.IsZero() != (test.want == "") || !w.Rollout.Stale {
				t.Errorf("revision %q, created at %s, want %q; %+v", w.Revision, w.RevisionCreated, test.want, w.Rollout)
			}
		})
	}
}

// TestHaltedRolls: in a DaemonSet that the operator halted, old pods run until new pods run. In a
// DaemonSet whose user replaces the pods, they do not.
func TestHaltedRolls(t *testing.T) {
	halted := func(n *native) {
		onDeleteDaemon(n)
		n.meta.Annotations[v1alpha1.HaltedAnnotation] = versionWith(t, "new")
	}
	if w := makeDaemon().with(halted).get(t, true); !w.Rolling || !w.Paused || w.OnDelete {
		t.Errorf("halted: %+v", w)
	}
	if w := makeDaemon().with(onDeleteDaemon).get(t, true); w.Rolling || !w.OnDelete {
		t.Errorf("OnDelete: %+v", w)
	}
}

// TestRevisionByPods: a controller that does not know all fields of a template may return to an
// earlier revision, and change only its number. A pod that it created since is a proof; the number
// of pods in the status, which may be old, is not.
func TestRevisionByPods(t *testing.T) {
	back := func(n *native) {
		n.template.Spec.Containers[0].Image = "new, and more"
		n.daemon.Generation, n.daemon.Status.ObservedGeneration = 4, 4
		n.daemon.Annotations[appsv1.DeprecatedTemplateGeneration] = "4"
	}
	made := func(pod int, generation string) func(*native) {
		return func(n *native) { n.pods[pod].Labels[templateGenerationLabel] = generation }
	}
	for name, test := range map[string]struct {
		of   *native
		want string
	}{
		"a pod of it was created since":                  {makeDaemon().with(back).with(made(4, "4")), "new"},
		"a pod of an earlier revision was created since": {makeDaemon().with(back).with(made(0, "4")), "old"},
		"all were created before":                        {makeDaemon().with(back).with(made(3, "2")).with(made(4, "2")), ""},
		"all were created before, and are of it":         {makeDaemon().with(back).with(allNewDaemon).with(made(4, "2")), ""},
		"the pods have no number":                        {makeDaemon().with(back), ""},
		"of a revision that is not cached": {makeDaemon().with(back).with(made(0, "4")).with(func(n *native) {
			n.pods[0].Labels[appsv1.ControllerRevisionHashLabelKey] = "newer"
		}), ""},
		"the template has no number": {makeDaemon().with(back).with(made(4, "")).with(func(n *native) {
			delete(n.daemon.Annotations, appsv1.DeprecatedTemplateGeneration)
		}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if w := test.of.get(t, true); w.Revision != test.want || w.Rollout.Stale != (test.want == "") {
				t.Errorf("revision %q, want %q; %+v", w.Revision, test.want, w.Rollout)
			}
		})
	}
}
