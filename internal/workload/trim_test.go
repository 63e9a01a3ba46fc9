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
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestTrimPod: a pod in the cache reads the same as the whole pod, in every state.
func TestTrimPod(t *testing.T) {
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	at := func(ago time.Duration) metav1.Time { return metav1.NewTime(now.Add(-ago)) }
	crash := corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 1, Reason: "Error", StartedAt: at(50 * time.Second), FinishedAt: at(40 * time.Second),
		},
	}
	states := map[string]corev1.ContainerStatus{
		"runs": {State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(30 * time.Second)}}, Ready: true},
		"restarted": {
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(30 * time.Second)}}, Ready: true, RestartCount: 3,
			LastTerminationState: crash,
		},
		"crashed": {
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, RestartCount: 3,
			LastTerminationState: crash,
		},
		"pulls": {State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
	}
	probes := map[string]*corev1.Probe{"probed": {}, "unprobed": nil}
	rules := []corev1.ContainerRestartRule{{
		Action:    corev1.ContainerRestartRuleActionRestart,
		ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpNotIn, Values: []int32{2}},
	}}
	for state, status := range states {
		status.Name = "main"
		for probed, probe := range probes {
			for _, ready := range []time.Duration{0, 29 * time.Second, 10 * time.Second} { // 0 is not Ready
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: "sleep-1", Namespace: "default", UID: "1", CreationTimestamp: at(time.Minute)},
					Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "main", ReadinessProbe: probe}}},
					Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{status},
						Conditions: []corev1.PodCondition{
							{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: at(59 * time.Second)},
							{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: at(45 * time.Second)},
							{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", LastTransitionTime: at(20 * time.Second)},
						}},
				}
				started := at(58 * time.Second)
				pod.Status.StartTime = &started
				if ready > 0 {
					pod.Status.Conditions[2] = corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(ready)}
				}
				if ready == 10*time.Second {
					pod.Spec.Containers[0].RestartPolicyRules = rules
				}
				if ready == 0 {
					pod.Spec.InitContainers = []corev1.Container{
						{Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), ReadinessProbe: &corev1.Probe{}},
					}
					pod.Status.InitContainerStatuses = []corev1.ContainerStatus{
						{
							Name: "proxy", Started: ptr.To(true),
							State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(50 * time.Second)}},
						},
					}
				}
				t.Run(fmt.Sprint(state, " ", probed, " ", ready), func(t *testing.T) {
					trimmed, err := Defended().TrimPod(pod.DeepCopy())
					if err != nil {
						t.Fatal(err)
					}
					cached, ok := trimmed.(*corev1.Pod)
					if !ok {
						t.Fatalf("trimmed to a %T", trimmed)
					}
					full, kept := ReadPod(pod), ReadPod(cached)
					for _, minReady := range []time.Duration{0, 15 * time.Second} {
						finish := Finish{MinReady: minReady, Settle: 32 * time.Second}
						finished, wait := full.Finished(finish, now)
						if f, w := kept.Finished(finish, now); f != finished || (w-wait).Abs() > time.Second {
							t.Errorf("in the cache finished %t in %s, want %t in %s", f, w, finished, wait)
						}
					}
					// It is omitted if it is about ReadySince, or not needed.
					full.StartedAt, kept.StartedAt = time.Time{}, time.Time{}
					full.Labels, kept.Labels = nil, nil // there are none, and a map does not become nil
					if diff := cmp.Diff(full, kept, cmp.AllowUnexported(Stuck{})); diff != "" {
						t.Errorf("in the cache -want +got:\n%s", diff)
					}
				})
			}
		}
	}
}

// TestTrimNamespace: the annotations of a namespace that its orders contain stay.
func TestTrimNamespace(t *testing.T) {
	ns := &metav1.PartialObjectMetadata{}
	ns.Annotations = map[string]string{v1alpha1.TenantAnnotation: "team-a", v1alpha1.PhaseAnnotation: "pre_phase", "someone/else": "x"}
	trimmed, err := TrimNamespace(ns)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{v1alpha1.TenantAnnotation: "team-a", v1alpha1.PhaseAnnotation: "pre_phase"}
	if got, ok := trimmed.(*metav1.PartialObjectMetadata); !ok || !maps.Equal(got.Annotations, want) {
		t.Errorf("got %+v", trimmed)
	}
}

// TestRevisions: the other revisions are sorted, the newest first, and the cache has whether they
// were released while the workload was defended.
func TestRevisions(t *testing.T) {
	template := func(image string, labels map[string]any) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": image}}},
		}
	}
	const deployed = "2026-03-04T05:06:07Z"
	owner := []any{map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "web-uid", "controller": true}}
	deployment := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"namespace": "default", "name": "web", "uid": "web-uid", "creationTimestamp": deployed},
		"spec":     map[string]any{"template": template("third", map[string]any{"app": "web", v1alpha1.VersionLabel: "v3"})},
	}}
	objects := []client.Object{}
	add := func(o *unstructured.Unstructured, trim cache.TransformFunc) {
		trimmed, err := trim(o)
		object, ok := trimmed.(client.Object)
		if err != nil || !ok {
			t.Fatalf("trimmed to a %T: %v", trimmed, err)
		}
		objects = append(objects, object)
	}
	add(deployment, trimDeployment)
	for _, rs := range []struct {
		name, image, number, created string
		stamped                      bool
	}{
		{"web-0", "another's", "9", "2026-03-04T05:06:06Z", false},
		{"web-1", "first", "1", deployed, false},
		{"web-2", "second", "2", deployed, true},
		{"web-3", "third", "3", deployed, true},
		{"web-4", "not numbered", "", deployed, true},
	} {
		labels := map[string]any{"app": "web", appsv1.DefaultDeploymentUniqueLabelKey: rs.name}
		if rs.stamped {
			labels[v1alpha1.VersionLabel] = "v" + rs.number
		}
		annotations := map[string]any{}
		if rs.number != "" {
			annotations[revisionAnnotation] = rs.number
		}
		add(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "ReplicaSet",
			"metadata": map[string]any{"namespace": "default", "name": rs.name, "uid": rs.name, "creationTimestamp": rs.created,
				"annotations": annotations, "ownerReferences": owner},
			"spec": map[string]any{"template": template(rs.image, labels)},
		}}, trimReplicaSet)
	}
	// Without the typed objects, which lack the data that the cache keeps of a template.
	scheme := runtime.NewScheme()
	for _, kind := range []schema.GroupVersionKind{replicaSetKind, Deployment{}.GroupVersionKind()} {
		scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
	}
	r := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(newUnstructured(replicaSetKind), IndexByOwner, OwnerUID).Build()
	got, err := Deployment{}.Revisions(t.Context(), r, &Workload{Namespace: "default", Name: "web", UID: "web-uid"})
	if err != nil {
		t.Fatal(err)
	}
	made, err := time.Parse(time.RFC3339, deployed)
	if err != nil {
		t.Fatal(err)
	}
	want := []OldRevision{
		{Name: "web-2", UID: "web-2", Revision: "web-2", Version: Version(template("second", map[string]any{"app": "web"})),
			Number: 2, Created: made, Stamped: true},
		{Name: "web-1", UID: "web-1", Revision: "web-1", Version: Version(template("first", map[string]any{"app": "web"})),
			Number: 1, Created: made},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("revisions -want +got:\n%s", diff)
	}
}

// TestTrimLarge: trimming changes neither the version of a workload nor the data that ends its
// defense, and the last accepted spec of a policy stays.
func TestTrimLarge(t *testing.T) {
	containers := make([]any, 20)
	for i := range containers {
		containers[i] = map[string]any{"name": fmt.Sprint("c", i), "image": fmt.Sprint(i, strings.Repeat("x", 1000))}
	}
	template := map[string]any{"spec": map[string]any{"containers": containers}}
	labels := map[string]any{v1alpha1.SuspendLabel: "1", v1alpha1.VersionLabel: "v"}
	annotations := map[string]any{
		"example.com/notes": "x", v1alpha1.SuspendedByAnnotation: "v 1", revisionAnnotation: "3", v1alpha1.TooLargeMark: "true",
	}
	made := func() *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web", "labels": labels, "annotations": annotations},
			"spec": map[string]any{"template": template},
		}}
		return u.DeepCopy()
	}
	trimmed := func() *Workload {
		u := made()
		if _, err := trimDeployment(u); err != nil {
			t.Fatal(err)
		}
		w, _, err := readDeployment(u)
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	w := trimmed()
	if w.Version != Version(template) || len(w.Images) != maxImages || len(w.Images[0]) != maxImage {
		t.Errorf("version %s and %d images of %d bytes", w.Version, len(w.Images), len(w.Images[0]))
	}
	want := map[string]string{v1alpha1.SuspendedByAnnotation: "v 1", revisionAnnotation: "3"}
	if diff := cmp.Diff(want, w.Annotations); diff != "" || OptedOut(w.Labels) {
		t.Errorf("annotations -want +got:\n%s\nlabels %v", diff, w.Labels)
	}
	annotations = map[string]any{"example.com/notes": "x"}
	if w := trimmed(); w.Annotations == nil {
		t.Error("a patch would replace the annotations that the cache does not have")
	}
	annotations[v1alpha1.SuspendedByAnnotation] = "v 1"
	for i := range 1000 {
		labels[fmt.Sprint("label-", i)] = "x"
	}
	w = trimmed()
	if w.Version != Version(template) || !OptedOut(w.Labels) || len(w.Labels) != 3 || w.Labels[v1alpha1.SuspendLabel] != "1" ||
		w.Annotations[v1alpha1.SuspendedByAnnotation] != "v 1" || w.Annotations[v1alpha1.TooLargeMark] == "" {
		t.Errorf("a workload that is too large is trimmed to %+v", w)
	}
	p := &v1alpha1.DefensePolicy{Spec: v1alpha1.DefensePolicySpec{Suggestion: strings.Repeat("x", maxPolicy)}}
	p.Status.InForce = &v1alpha1.DefensePolicySpec{Suggestion: "before"}
	if _, err := TrimPolicy(p); err != nil || p.Spec.Suggestion != "" || p.Status.InForce == nil ||
		p.Annotations[v1alpha1.TooLargeMark] == "" {
		t.Errorf("a policy that is too large is trimmed to %+v, %v", p, err)
	}
}

// TestTrimLargeReplicaSet: a ReplicaSet that is too large keeps its revision. Its labels, with the
// annotations copied from its Deployment, may be too large although the Deployment is not.
func TestTrimLargeReplicaSet(t *testing.T) {
	containers := []any{map[string]any{"name": "main", "image": "v1"}}
	rs := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": containers}}},
	}}
	rs.SetLabels(map[string]string{"app": strings.Repeat("x", 8<<10)})
	rs.SetAnnotations(map[string]string{revisionAnnotation: "7", v1alpha1.SuspendedByAnnotation: strings.Repeat("x", 12<<10)})
	trimmed, err := trimReplicaSet(rs)
	if err != nil {
		t.Fatal(err)
	}
	if got := revisionNumber(trimmed.(*unstructured.Unstructured)); got != 7 { //nolint:errcheck // it trims what it gets
		t.Errorf("revision %d", got)
	}
	rs.SetAnnotations(map[string]string{revisionAnnotation: "7", v1alpha1.SuspendedByAnnotation: strings.Repeat("x", 20<<10)})
	if trimmed, err = trimReplicaSet(rs); err != nil {
		t.Fatal(err)
	}
	if got := revisionNumber(trimmed.(*unstructured.Unstructured)); got != 7 { //nolint:errcheck // it trims what it gets
		t.Errorf("revision %d of a ReplicaSet that is too large", got)
	}
}
