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

package declared

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// thing is an object of the tests: three pods, of which a partition keeps one.
const thing = `
apiVersion: example.com/v1
kind: Thing
metadata: {name: web, namespace: ns, uid: thing, generation: 4, resourceVersion: "7", labels: {app: web}}
spec:
	replicas: 3
	minReadySeconds: 5
	template: {spec: {containers: [{name: main, image: "busybox:1"}]}}
	strategy: {paused: false}
status: {observedGeneration: 4, hash: new, ready: 3}
`

const thingSpec = `
version: v1
content: [{path: spec.template, podTemplate: true}]
replicas: spec.replicas
pods: {current: "pod.metadata.labels['hash'] == object.status.hash"}
rollout: {complete: object.status.ready == object.spec.replicas, 
  halt: [{path: spec.strategy.paused, value: true}], partition: spec.strategy.keep}
hold: Partition
rollback: Automatic
`

func thingsBy(t *testing.T, spec string) *Workloads {
	t.Helper()
	k, problem := Accept(kindOf(t, "things.example.com", spec), Served{Kind: "Thing", Namespaced: true})
	if problem != "" {
		t.Fatal(problem)
	}
	return NewWorkloads(k)
}

// podIn returns a pod of the thing; its name is a label, too, and old pods have the version v1.
func podIn(name, hash, owner string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web", "hash": hash}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
	if hash == "old" {
		pod.Labels[v1alpha1.VersionLabel] = "v1"
	}
	if owner != "" {
		is := true
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "example.com/v1", Kind: "Thing", Name: "web", UID: types.UID(owner), Controller: &is,
		}}
	}
	return pod
}

func readerOf(t *testing.T, text string, others ...client.Object) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(appsv1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	b := fake.NewClientBuilder().WithScheme(scheme).WithObjects(others...)
	if text != "" {
		b = b.WithObjects(&unstructured.Unstructured{Object: object(t, text)})
	}
	for _, o := range []client.Object{&corev1.Pod{}, &v1alpha1.ChangeWorkload{}, &appsv1.ReplicaSet{}} {
		b = b.WithIndex(o, workload.IndexByOwner, workload.OwnerUID)
	}
	return b.WithIndex(&appsv1.ControllerRevision{}, workload.IndexByRevised, workload.RevisedBy).Build()
}

var web = types.NamespacedName{Namespace: "ns", Name: "web"}

func TestGet(t *testing.T) {
	now := []client.Object{podIn("a", "new", "thing", true), podIn("b", "new", "thing", true), podIn("c", "new", "thing", true)}
	old := podIn("o", "old", "thing", true)
	version := thingsBy(t, thingSpec).k.VersionOf(object(t, thing))
	for name, test := range map[string]struct {
		spec, object func(string) string
		pods         []client.Object
		want         func(*workload.Workload)
	}{
		"complete": {pods: now, want: func(w *workload.Workload) {
			w.Rollout.Complete = true
		}},
		"stale": {object: replacing("observedGeneration: 4", "observedGeneration: 3"), pods: now, want: func(w *workload.Workload) {
			w.Revision, w.Rollout.Stale, w.RevisionReplicas = "", true, 0
		}},
		"stale, as text": {object: replacing("observedGeneration: 4", `observedGeneration: "3"`), pods: now, want: func(w *workload.Workload) {
			w.Revision, w.Rollout.Stale, w.RevisionReplicas = "", true, 0
		}},
		"rolling": {object: replacing("ready: 3", "ready: 2"), pods: append(now[:2:2], old), want: func(w *workload.Workload) {
			w.RevisionReplicas = 2
			w.OldRevisions = []workload.OldRevision{{Name: "earlier", Revision: "earlier", Replicas: 1, Ready: 1}}
		}},
		"at the user's partition": {
			object: func(s string) string {
				return strings.NewReplacer("ready: 3", "ready: 2", "paused: false", "paused: false, keep: 1").Replace(s)
			},
			pods: append(now[:2:2], old), want: func(w *workload.Workload) {
				w.RevisionReplicas, w.Partition, w.Pace.Partition, w.Bare, w.Rollout.Partitioned = 2, 1, 1, false, true
				w.OldRevisions = []workload.OldRevision{{Name: "earlier", Revision: "earlier", Replicas: 1, Ready: 1}}
			},
		},
		"a pod is missing": {object: replacing("ready: 3", "ready: 2"), pods: now[:2], want: func(w *workload.Workload) {
			w.RevisionReplicas, w.Lacking = 2, &workload.Lacking{Count: 1}
		}},
		"no number": {spec: replacing("replicas: spec.replicas\n", "", "hold: Partition", ""), pods: now, want: func(w *workload.Workload) {
			w.Rollout.Complete, w.Rolling, w.Pace, w.Bare = true, false, workload.Pace{}, false
		}},
		"an expression fails": {spec: replacing("== object.status.hash", "== object.status.none"), pods: now, want: func(w *workload.Workload) {
			w.Rollout.Complete, w.RevisionReplicas, w.Problem = true, 0, "spec.pods.current: no such key: none"
		}},
		"the progress fails": {spec: replacing("object.status.ready ==", "object.status.none =="), pods: now, want: func(w *workload.Workload) {
			w.RevisionReplicas, w.Problem = 0, "spec.rollout.complete: no such key: none"
		}},
		"not changed since it was created": {object: replacing("generation: 4", "generation: 1"), pods: now, want: func(w *workload.Workload) {
			w.Rollout.Complete, w.Content.Generation = true, 1
		}},
	} {
		t.Run(name, func(t *testing.T) {
			spec, text := thingSpec, thing
			if test.spec != nil {
				spec = test.spec(spec)
			}
			if test.object != nil {
				text = test.object(text)
			}
			d := thingsBy(t, spec)
			got, err := d.Get(t.Context(), readerOf(t, text, test.pods...), web)
			if err != nil {
				t.Fatal(err)
			}
			want := &workload.Workload{
				GVK: d.GroupVersionKind(), Namespace: "ns", Name: "web", UID: "thing", ResourceVersion: "7", Labels: map[string]string{"app": "web"},
				Images: []string{"busybox:1"}, Version: version, Unstamped: true, Replicas: 3, MinReady: 5 * time.Second, ByPods: true, InFlight: 1,
				Revision: version, RevisionReplicas: 3, Rollbacks: v1alpha1.RollbackAutomatic, Rolling: true,
				Pace: workload.Pace{ByPartition: true, Field: "spec.strategy.keep"}, Stopping: workload.Stopping{Bare: true},
				Content: &workload.Content{Hash: d.k.ContentHash(), Generation: 4},
				Words:   workload.Words{HaltedBy: "spec.strategy.paused true", Resume: "altershield resume thing/web", GoOn: "edit thing/web"},
			}
			test.want(want)
			got.Object = nil
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestStaleWithoutPods: without pods, an expression that reads observedGeneration decides itself.
func TestStaleWithoutPods(t *testing.T) {
	text := strings.Replace(thing, "observedGeneration: 4", "observedGeneration: 3", 1)
	const of = "version: v1\ncontent: [{path: spec.template}]\nrollout: {complete: "
	for spec, complete := range map[string]bool{
		of + "object.status.ready == 3}":                                         false,
		of + "object.status.ready == 3 && object.status.observedGeneration > 0}": true,
		"version: v1\ncontent: [{path: spec.template}]":                          false,
	} {
		w, err := thingsBy(t, spec).Get(t.Context(), readerOf(t, text), web)
		if err != nil || w.Rollout.Complete != complete || w.Rollout.Stale == complete {
			t.Errorf("%s: %+v, %v", spec, w.Rollout, err)
		}
	}
}

// TestStuckWhileStale: without pods, the reason of an earlier generation fails no change, unless the expression reads the generation.
func TestStuckWhileStale(t *testing.T) {
	text := strings.Replace(thing, "observedGeneration: 4", `observedGeneration: "3"`, 1)
	const of = "version: v1\ncontent: [{path: spec.template}]\nrollout:\n" +
		"  complete: int(object.status.observedGeneration) >= object.metadata.generation\n  stuck: "
	for stuck, want := range map[string]bool{
		"\"object.status.ready == 3 ? 'broken' : ''\"":                                           false,
		"\"object.status.ready == 3 && object.status.observedGeneration != '' ? 'broken' : ''\"": true,
	} {
		w, err := thingsBy(t, of+stuck).Get(t.Context(), readerOf(t, text), web)
		if err != nil || w.Problem != "" || w.Rollout.Stuck != want || (w.Rollout.Message != "") != want || w.Rollout.Complete {
			t.Errorf("%s: %+v, %s, %v", stuck, w.Rollout, w.Problem, err)
		}
	}
}

func replacing(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }

// TestGetGone: an object that is gone is no error.
func TestGetGone(t *testing.T) {
	if w, err := thingsBy(t, thingSpec).Get(t.Context(), readerOf(t, ""), web); w != nil || err != nil {
		t.Error(w, err)
	}
}

// TestSince: the time of a release is the time of its record, or of the object.
func TestSince(t *testing.T) {
	d := thingsBy(t, strings.Replace(thingSpec, "complete: object", "complete: since > timestamp('2026-01-01T00:00:00Z') && object", 1))
	text := strings.Replace(thing, "generation: 4", `creationTimestamp: "2025-01-01T00:00:00Z", generation: 4`, 1)
	release := &v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "r", OwnerReferences: podIn("", "", "thing", true).OwnerReferences,
	}}
	release.Spec.Reversion = d.k.VersionOf(object(t, text))
	release.Status.StartTimeUnix = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC).Unix()
	for want, of := range map[bool][]client.Object{false: nil, true: {release}} {
		w, err := d.Summary(t.Context(), readerOf(t, text, of...), web)
		if err != nil || w.Rollout.Complete != want || w.Problem != "" {
			t.Errorf("want complete %v: %+v, %v", want, w, err)
		}
	}
}

// TestPods finds the pods of a thing, and the thing of each pod.
func TestPods(t *testing.T) {
	is := true
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web-1", UID: "rs", OwnerReferences: podIn("", "", "thing", true).OwnerReferences,
	}}
	below := func(name, hash string) *corev1.Pod {
		pod := podIn(name, hash, "", true)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-1", UID: "rs", Controller: &is}}
		return pod
	}
	stranger := podIn("x", "new", "", true)
	stranger.Labels["app"] = "other"
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web-new", Labels: map[string]string{"h": "new"}, OwnerReferences: rs.OwnerReferences,
	}}
	owned := []client.Object{podIn("a", "new", "thing", true), podIn("o", "old", "thing", true)}
	through := []client.Object{below("a", "new"), below("o", "old")}
	free := []client.Object{podIn("a", "new", "", true), podIn("o", "old", "", true)}
	older := revision.DeepCopy()
	older.Name, older.Labels, revision.Revision = "web-old", map[string]string{"h": "old"}, 2
	for name, test := range map[string]struct {
		pods  string
		there []client.Object
	}{
		"owned":               {"{", append(owned[:2:2], podIn("y", "new", "else", true))},
		"through ReplicaSets": {"{through: [{apiVersion: apps/v1, kind: ReplicaSet}], ", append([]client.Object{rs}, through...)},
		"by a selector":       {"{find: Selector, selector: spec.selector, ", free},
		"by labels":           {"{find: Selector, labels: {app: string(object.metadata.name)}, ", free},
		"by the revision":     {"{revision: ", append([]client.Object{revision, older}, owned...)},
	} {
		t.Run(name, func(t *testing.T) {
			spec := strings.Replace(thingSpec, "{current", test.pods+"current", 1)
			if strings.HasPrefix(test.pods, "{revision") {
				spec = strings.Replace(thingSpec, "object.status.hash", "revision.labels.h", 1)
			}
			d := thingsBy(t, spec)
			text := strings.Replace(thing, "replicas: 3", "replicas: 3\n\tselector: {matchLabels: {app: web}}", 1)
			r := readerOf(t, text, append(test.there, stranger)...)
			w, err := d.Get(t.Context(), r, web)
			if err != nil || w.Problem != "" {
				t.Fatalf("%+v %v", w, err)
			}
			pods, err := d.Pods(t.Context(), r, w)
			if err != nil || len(pods) != 1 || pods[0].Name != "a" || pods[0].Index != 2 || len(w.OldRevisions) != 1 {
				t.Errorf("%+v, %+v, %v", pods, w.OldRevisions, err)
			}
			w.Revision = w.OldRevisions[0].Revision
			if pods, err := d.Pods(t.Context(), r, w); err != nil || len(pods) != 1 || pods[0].Name != "o" {
				t.Errorf("the pods of older content: %+v, %v", pods, err)
			}
			for _, o := range test.there {
				pod, isPod := o.(*corev1.Pod)
				if !isPod {
					continue
				}
				owner, ok, err := d.OwnerOfPod(t.Context(), r, pod)
				if want := pod.Name != "y"; err != nil || ok && owner.UID == "thing" != want {
					t.Errorf("%s: %v %v %v", pod.Name, owner, ok, err)
				}
			}
			if owner, ok, err := d.OwnerOfPod(t.Context(), r, stranger); ok || err != nil {
				t.Error(owner, err)
			}
		})
	}
}

// TestInPlace: a pod that is Ready since before the release counts once the rollout is complete: until then, it may be about to get the
// content in place. A pod that never becomes Ready counts, too.
func TestInPlace(t *testing.T) {
	d := thingsBy(t, strings.Replace(thingSpec, "{current", "{inPlace: true, current", 1))
	text := strings.Replace(thing, "generation: 4", `creationTimestamp: "2026-01-01T00:00:00Z", generation: 4`, 1)
	ready := func(name string, at time.Time) *corev1.Pod {
		pod := podIn(name, "new", "thing", true)
		pod.CreationTimestamp = metav1.NewTime(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
		pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at)
		return pod
	}
	crashes := ready("c", time.Date(2025, 1, 1, 0, 0, 1, 0, time.UTC))
	crashes.Status.Conditions[0].Status = corev1.ConditionFalse
	r := readerOf(t, text,
		ready("a", time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)), ready("b", time.Date(2025, 1, 1, 0, 0, 1, 0, time.UTC)), crashes)
	w, err := d.Summary(t.Context(), r, web)
	if err != nil {
		t.Fatal(err)
	}
	for _, complete := range []bool{false, true} {
		w.Rollout.Complete = complete
		pods, err := d.Pods(t.Context(), r, w)
		if err != nil || len(pods) != 3 {
			t.Fatalf("%+v, %v", pods, err)
		}
		for i := range pods {
			pod, now := &pods[i], time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
			want := pod.Name == "a" || pod.Name == "b" && complete
			if finished, _ := pod.Finished(workload.Finish{}, now); finished != want || pod.Name == "b" && !pod.Steady(now) {
				t.Errorf("complete %t: pod %s is finished: %t", complete, pod.Name, finished)
			}
		}
	}
}

func TestPodLabels(t *testing.T) {
	for current, want := range map[string][]string{
		"pod.metadata.labels['a/b'] == ''":                                            {"a/b"},
		`pod.metadata.labels[?"c"].orValue('') == pod.metadata.?labels.d.orValue('')`: {"c", "d"},
		"pod.metadata.name == ''":                                                     nil,
	} {
		d := thingsBy(t, fmt.Sprintf("version: v1\ncontent: [{path: spec.template}]\nreplicas: spec.replicas\npods: {current: %q}", current))
		if diff := cmp.Diff(want, d.PodLabels()); diff != "" {
			t.Errorf("%s: %s", current, diff)
		}
	}
}

// haltedAs is the annotation of a halt of the thing.
const haltedAs = `[{"path":"spec.strategy.paused","value":true,"was":false}]`

func TestStopping(t *testing.T) {
	halted := func(from string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{v1alpha1.HaltedAnnotation: "v2", v1alpha1.HaltedFromAnnotation: from})
		}
	}
	both := strings.Replace(thingSpec, "value: true}]", "value: true}, {path: spec.strategy.mode, value: Stop}]", 1)
	for name, test := range map[string]struct {
		spec     string
		strategy string
		with     func(*unstructured.Unstructured)
		want     workload.Stopping
	}{
		"rolls":             {strategy: "{paused: false, keep: 2}", want: workload.Stopping{Partition: 2}},
		"halted":            {strategy: "{paused: true, keep: 2}", with: halted(haltedAs), want: workload.Stopping{Paused: true, Partition: 2}},
		"paused by a user":  {strategy: "{paused: true}", want: workload.Stopping{Paused: true, Bare: true}},
		"resumed by a user": {strategy: "{paused: false}", with: halted(haltedAs), want: workload.Stopping{Bare: true}},
		"another strategy":  {strategy: "null", want: workload.Stopping{Unknown: true}},
		"a percentage":      {strategy: `{keep: "20%"}`, want: workload.Stopping{}},
		"one of two fields is resumed": {spec: both, strategy: "{paused: false, mode: Stop}",
			with: halted(`[{"path":"spec.strategy.paused","value":true,"was":false},{"path":"spec.strategy.mode","value":"Stop"}]`),
			want: workload.Stopping{Paused: true, Bare: true}},
		"the annotation was changed": {strategy: "{paused: true}", with: halted("[]x"), want: workload.Stopping{Paused: true, Bare: true,
			Stays: "the annotation altershield.defense.antgroup.com/halted-from is not as the operator wrote it; set the fields that halt by hand"}},
		"a field that is not declared": {strategy: "{paused: true, other: 1}",
			with: halted(`[{"path":"spec.strategy.other","value":1}]`), want: workload.Stopping{Paused: true, Bare: true,
				Stays: "spec.strategy.other: spec.rollout.halt of the ChangeKind has no such field, or the annotation " +
					"altershield.defense.antgroup.com/halted-from was changed; set the value by hand"}},
		"too large, halted": {strategy: "{paused: true}", with: func(u *unstructured.Unstructured) {
			halted(haltedAs)(u)
			enlarge(u)
		}, want: workload.Stopping{Paused: true, Unknown: true}},
		"too large, not halted": {strategy: "{paused: true}", with: enlarge, want: workload.Stopping{Unknown: true}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := test.spec
			if spec == "" {
				spec = thingSpec
			}
			d := thingsBy(t, spec)
			u := &unstructured.Unstructured{Object: object(t, strings.Replace(thing, "{paused: false}", test.strategy, 1))}
			if test.with != nil {
				test.with(u)
			}
			if name == "too large, halted" || name == "too large, not halted" {
				if _, err := d.k.Trim(u); err != nil {
					t.Fatal(err)
				}
			}
			got, err := d.Stopping(u)
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}

// enlarge makes an object too large for the cache.
func enlarge(u *unstructured.Unstructured) {
	utilruntime.Must(unstructured.SetNestedField(u.Object, strings.Repeat("x", 100<<10), "spec", "large"))
}

// TestNeverHaltedTwice: neither an object that is too large for the cache nor an object with the annotation of a halt is halted:
// the values of the halt would become the values before it.
func TestNeverHaltedTwice(t *testing.T) {
	d := thingsBy(t, thingSpec)
	is := object(t, strings.Replace(thing, "paused: false", "paused: true", 1))
	large := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(is)}
	enlarge(large)
	if _, err := d.k.Trim(large); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{v1alpha1.HaltedFromAnnotation: haltedAs}
	for name, w := range map[string]*workload.Workload{
		"too large": {Object: large.Object, Annotations: said}, "too large, without annotations": {Object: large.Object},
		"halted": {Object: is, Annotations: said},
	} {
		if after, err := apply(t, is, d.Halt(w)); err == nil {
			t.Errorf("%s: halted again: %v", name, after)
		}
		if from := d.HaltedFrom(w); from != w.Annotations[v1alpha1.HaltedFromAnnotation] {
			t.Errorf("%s: the annotation becomes %s", name, from)
		}
	}
	if after, err := apply(t, is, d.Resume(&workload.Workload{Object: large.Object, Annotations: said})); err == nil {
		t.Errorf("resumed by an object that lacks the field: %v", after)
	}
}

// TestHaltRestoreResume: the content returns, and the halt ends, in one patch; even if the content returns to a strategy without
// the field that halts.
func TestHaltRestoreResume(t *testing.T) {
	spec := "version: v1\ncontent: [{path: spec, ignore: [strategy.paused]}]\nrollout: {halt: [{path: spec.strategy.paused, value: true}]}"
	d := thingsBy(t, spec)
	for name, earlier := range map[string]string{
		"with the field": "spec: {a: 1, strategy: {paused: false}}", "another strategy": "spec: {a: 1}",
	} {
		t.Run(name, func(t *testing.T) {
			data, err := d.Content(&unstructured.Unstructured{Object: object(t, earlier)})
			if err != nil {
				t.Fatal(err)
			}
			template, version, err := d.ReadContent(data)
			if want := d.k.VersionOf(object(t, earlier)); err != nil || template != nil || version != want {
				t.Errorf("%v %s, want %s: %v", template, version, want, err)
			}
			w := &workload.Workload{Object: object(t, "spec: {a: 2, strategy: {paused: false}}")}
			from := d.HaltedFrom(w)
			if w.Object, err = apply(t, w.Object, d.Halt(w)); err != nil {
				t.Fatal(err)
			}
			w.Annotations = map[string]string{v1alpha1.HaltedFromAnnotation: from}
			was := w.Object
			ops, err := d.Restore(w, data)
			if err != nil {
				t.Fatal(err)
			}
			after, err := apply(t, was, append(ops, d.Resume(w)...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(object(t, earlier), after); diff != "" {
				t.Error(diff)
			}
		})
	}
	other := thingsBy(t, "version: v1\ncontent: [{path: spec}]")
	data, err := other.Content(&unstructured.Unstructured{Object: object(t, thing)})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.ReadContent(data); err == nil || !strings.Contains(err.Error(), "another declaration") {
		t.Errorf("the history of another declaration is read: %v", err)
	}
}

func TestSetPace(t *testing.T) {
	d := thingsBy(t, thingSpec)
	for strategy, want := range map[string]string{
		"{keep: 1}":    "{keep: 2}",
		"{}":           "{keep: 2}",
		"null":         "null",
		`{keep: "5%"}`: `{keep: "5%"}`,
	} {
		t.Run(strategy, func(t *testing.T) {
			is := object(t, strings.Replace(thing, "{paused: false}", strategy, 1))
			from, err := d.Pace(&unstructured.Unstructured{Object: is})
			if err != nil {
				t.Fatal(err)
			}
			ops := d.SetPace(*from, workload.Pace{ByPartition: true, Partition: 2})
			after, err := apply(t, is, ops)
			if diff := cmp.Diff(object(t, strings.Replace(thing, "{paused: false}", want, 1)), after); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
			if after, err := apply(t, object(t, strings.Replace(thing, "{paused: false}", "{keep: 9}", 1)), ops); len(ops) > 0 && err == nil {
				t.Errorf("the patch applies to another partition: %v", after)
			}
		})
	}
	if is, err := thingsBy(t, strings.Replace(thingSpec, "hold: Partition", "hold: Never", 1)).Pace(nil); is != nil || err != nil {
		t.Error("a kind that is never held has a pace", is, err)
	}
}

// TestTrimKeepsStamp: an object in the cache has the version label of its pod template.
func TestTrimKeepsStamp(t *testing.T) {
	d := thingsBy(t, thingSpec+"versionLabel: Template\n")
	u := &unstructured.Unstructured{Object: object(t, thing)}
	utilruntime.Must(unstructured.SetNestedField(u.Object, "stamp", "spec", "template", "metadata", "labels", v1alpha1.VersionLabel))
	if _, err := d.k.Trim(u); err != nil || d.k.stampOf(u.Object) != "stamp" || !d.Stamps() {
		t.Errorf("%v: %q", err, d.k.stampOf(u.Object))
	}
}
