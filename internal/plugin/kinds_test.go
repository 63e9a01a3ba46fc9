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
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func meant(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

func TestFindTarget(t *testing.T) {
	api := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(
		&appsv1.Deployment{ObjectMeta: meant("sleep")},
		&appsv1.StatefulSet{ObjectMeta: meant("db")},
		&appsv1.Deployment{ObjectMeta: meant("web")}, &appsv1.DaemonSet{ObjectMeta: meant("web")},
	).Build()
	// some is for a user who may not get StatefulSets.
	some := interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if o.GetObjectKind().GroupVersionKind().Kind == "StatefulSet" {
				return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "statefulsets"}, key.Name, nil)
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	const kinds = "\n  defended kinds: deployment, statefulset, daemonset"
	tests := map[string]struct {
		api  client.Reader
		args string
		want string
	}{
		"a Deployment alone":  {args: "sleep", want: "deployment/sleep"},
		"a StatefulSet alone": {args: "db", want: "statefulset/db"},
		"two kinds have the name": {
			args: "web",
			want: "web is the name of 2 workloads of the namespace shop\n  name the kind, too: deployment/web or daemonset/web",
		},
		"no kind has it": {
			args: "none",
			want: "there is no workload none in the namespace shop\n  choose the namespace with -n; see kubectl altershield status --all -A",
		},
		"with its kind":                    {args: "ds/web", want: "daemonset/web"},
		"with its kind, which is not read": {args: "sts none", want: "statefulset/none"},
		"with resource and group":          {args: "statefulsets.apps/db", want: "statefulset/db"},
		"with resource, version and group": {args: "statefulsets.v1.apps/db", want: "statefulset/db"},
		"capital letters":                  {args: "DaemonSet/web", want: "daemonset/web"},
		"of another group": {
			args: "statefulsets.apps.kruise.io/db",
			want: `"statefulsets.apps.kruise.io" is no kind of workload that is defended` + kinds,
		},
		"no name":                    {args: "sts/", want: `"sts/" names no workload` + "\n  give a kind and a name, as in deployment/sleep"},
		"no kind":                    {args: "/db", want: `"" is no kind of workload that is defended` + kinds},
		"found, a kind is forbidden": {api: some, args: "sleep", want: "deployment/sleep"},
		"of a forbidden kind, maybe": {api: some, args: "db", want: `get statefulset/db in shop: statefulsets.apps "db" is forbidden: <nil>`},
	}
	for name, tt := range tests {
		if tt.api == nil {
			tt.api = api
		}
		found, err := findTarget(t.Context(), tt.api, workload.Defended(), "shop", strings.Fields(tt.args)...)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = found.String()
		}
		if got != tt.want {
			t.Errorf("%s:\n%s\nwant:\n%s", name, got, tt.want)
		}
	}
}

// as makes it a workload of another kind.
func (s *snapshot) as(kind workload.Kind, stopping workload.Stopping, annotations map[string]string) {
	w := s.workload
	w.GVK, w.Name, w.Stopping = kind.GroupVersionKind(), "db", stopping
	s.kind, s.key.Name = kind, "db"
	for key, value := range annotations {
		w.Annotations[key] = value
	}
	w.Words = kind.Words(w)
}

// TestTellsHowEachKindGoesOn: halts and next steps are in words of the kind.
func TestTellsHowEachKindGoesOn(t *testing.T) {
	const (
		partition = `kubectl patch statefulset/db --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}' -n shop`
		rolling   = `kubectl patch %s/db --type=merge -p '{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}' -n shop`
		resume    = "kubectl altershield resume %s/db -n shop"
		deletePod = "kubectl delete pod POD -n shop"
	)
	set, daemon := workload.StatefulSet{}, workload.DaemonSet{}
	halted := map[string]string{v1alpha1.HaltedAnnotation: versionTwo}
	haltedFrom := map[string]string{v1alpha1.HaltedAnnotation: versionTwo, v1alpha1.HaltedFromAnnotation: "3"}
	const (
		stays     = ", so that no more pods are replaced by this version."
		failed    = "pod sleep-a: fail: find error"
		setHalted = "The operator halted the rollout (partition 2147483647)" + stays
		dsHalted  = "The operator halted the rollout (updateStrategy OnDelete)" + stays
	)
	type want struct {
		What    string
		Details []string
		Last    []string
	}
	tests := map[string]struct {
		with func(*snapshot)
		want want
	}{
		"the operator halted a StatefulSet": {
			func(s *snapshot) { blockedBySecond(s); s.as(set, workload.Stopping{Paused: true}, halted) },
			want{"blocked, halted", []string{failed, setHalted}, []string{fmt.Sprintf(resume, "statefulset")}},
		},
		"the operator halted a StatefulSet that had a partition": {
			func(s *snapshot) { blockedBySecond(s); s.as(set, workload.Stopping{Paused: true}, haltedFrom) },
			want{"blocked, halted", []string{failed, setHalted}, []string{fmt.Sprintf(resume, "statefulset")}},
		},
		"the operator halted a DaemonSet": {
			func(s *snapshot) { blockedBySecond(s); s.as(daemon, workload.Stopping{Paused: true}, halted) },
			want{"blocked, halted", []string{failed, dsHalted}, []string{fmt.Sprintf(resume, "daemonset")}},
		},
		"a user halted a StatefulSet": {
			func(s *snapshot) {
				s.as(set, workload.Stopping{Paused: true}, nil)
				s.say(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused, "because of that")
			},
			want{"paused", []string{"because of that"}, []string{fmt.Sprintf(partition, 0)}},
		},
		"a user's partition": {
			func(s *snapshot) {
				s.as(set, workload.Stopping{Partition: 3}, nil)
				s.say(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonPartitioned, "because of that")
			},
			want{"partitioned", []string{"because of that"}, []string{fmt.Sprintf(partition, 0)}},
		},
		"a user's OnDelete": {
			func(s *snapshot) {
				s.as(set, workload.Stopping{OnDelete: true}, nil)
				s.say(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonOnDelete, "because of that")
			},
			want{"replaced on delete", []string{"because of that"}, []string{deletePod, fmt.Sprintf(rolling, "statefulset")}},
		},
		"a user's OnDelete of a DaemonSet": {
			func(s *snapshot) {
				s.as(daemon, workload.Stopping{Paused: true, OnDelete: true}, nil)
				s.say(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonOnDelete, "because of that")
			},
			want{"replaced on delete", []string{"because of that"}, []string{deletePod, fmt.Sprintf(rolling, "daemonset")}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSnapshot(tt.with)
			f := findingsOf(s, testAdvisor)[0]
			got := want{What: f.What, Details: f.Details}
			for _, do := range f.Do[max(len(f.Do)-len(tt.want.Last), 0):] {
				got.Last = append(got.Last, do.Command)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTellsHowAHaltEnds: to resume the operator's halt keeps the partition of a user, with or without a block. To resume a user's
// halt updates all pods.
func TestTellsHowAHaltEnds(t *testing.T) {
	const (
		partition = `kubectl patch statefulset/db --type=merge -p '{"spec":{"updateStrategy":{"rollingUpdate":{"partition":%d}}}}' -n shop`
		resume    = "kubectl altershield resume statefulset/db -n shop"
		failedOn  = "resumes the rollout of the version that failed"
		harmless  = "; use when the rest of the rollout does no harm"
	)
	haltedFrom := map[string]string{v1alpha1.HaltedAnnotation: versionTwo, v1alpha1.HaltedFromAnnotation: "3"}
	halted := func(s *snapshot) {
		failing(s)
		s.as(workload.StatefulSet{}, workload.Stopping{Paused: true}, haltedFrom)
		s.say(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutHalted, "because of that")
	}
	tests := map[string]struct {
		with func(*snapshot)
		want []Advice
	}{
		"halted, block lifted, halted-from 3": {
			func(s *snapshot) {
				halted(s)
				s.say(v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonLifted, "a user lifted it")
			},
			[]Advice{{resume, failedOn + harmless}},
		},
		"halted, blocked by a user, halted-from 3": {
			func(s *snapshot) { halted(s); s.workload.Labels[v1alpha1.SuspendLabel] = "yes" },
			[]Advice{{resume, failedOn + ", and leaves the block" + harmless}},
		},
		"halted, and resumed since": {
			func(s *snapshot) {
				halted(s)
				s.as(workload.StatefulSet{}, workload.Stopping{Partition: 3}, nil)
			},
			[]Advice{{"kubectl altershield status statefulset/db -w -n shop", "shows each change"}},
		},
		"halted by a user": {
			func(s *snapshot) {
				s.as(workload.StatefulSet{}, workload.Stopping{Paused: true}, nil)
				s.say(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonRolloutPaused, "because of that")
			},
			[]Advice{{fmt.Sprintf(partition, 0), "resumes the rollout; use when the user who halted it is done"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			findings := findingsOf(newSnapshot(tt.with), testAdvisor)
			i := slices.IndexFunc(findings, func(f Finding) bool { return strings.HasPrefix(f.Code, v1alpha1.ConditionProgressing) })
			if i < 0 {
				t.Fatalf("no finding reports the halt: %+v", findings)
			}
			if diff := cmp.Diff(tt.want, findings[i].Do); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCountsOf(t *testing.T) {
	tests := map[string]struct {
		kind    string
		content map[string]any
		want    PodCounts
	}{
		"StatefulSet": {"StatefulSet", map[string]any{
			"spec":   map[string]any{"replicas": int64(5)},
			"status": map[string]any{"replicas": int64(5), "updatedReplicas": int64(2), "readyReplicas": int64(4), "availableReplicas": int64(3)},
		}, PodCounts{Desired: 5, Updated: 2, Ready: 4, Available: 3}},
		"DaemonSet": {"DaemonSet", map[string]any{
			"spec": map[string]any{},
			"status": map[string]any{
				"desiredNumberScheduled": int64(7), "currentNumberScheduled": int64(7), "updatedNumberScheduled": int64(2),
				"numberReady": int64(6), "numberAvailable": int64(5),
			},
		}, PodCounts{Desired: 7, Updated: 2, Ready: 6, Available: 5}},
		"scaled to nothing": {"StatefulSet", map[string]any{
			"spec": map[string]any{"replicas": int64(0)}, "status": map[string]any{"replicas": int64(0)},
		}, PodCounts{}},
	}
	for name, tt := range tests {
		if got := countsOf(&unstructured.Unstructured{Object: tt.content}); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// native returns a StatefulSet or a DaemonSet, two revisions, and a pod of each revision.
func native(kind workload.Kind, name, uid string) []client.Object {
	yes := true
	gvk := kind.GroupVersionKind()
	owner := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: gvk.Kind, Name: name, UID: types.UID(uid), Controller: &yes}}
	template := func(image string) map[string]any {
		return map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": name}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "main", "image": image}}},
		}
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"replicas": int64(2), "selector": map[string]any{"matchLabels": map[string]any{"app": name}},
			"template": template("busybox:2"), "updateStrategy": map[string]any{"type": "RollingUpdate"},
		},
		"status": map[string]any{
			"replicas": int64(2), "updatedReplicas": int64(1), "updateRevision": name + "-2",
			"desiredNumberScheduled": int64(2), "currentNumberScheduled": int64(2), "updatedNumberScheduled": int64(1),
		},
	}}
	o.SetGroupVersionKind(gvk)
	o.SetNamespace("shop")
	o.SetName(name)
	o.SetUID(types.UID(uid))
	objects := []client.Object{o}
	for i, image := range []string{"busybox:1", "busybox:2"} {
		hash := fmt.Sprintf("%s-%d", name, i+1)
		r := &appsv1.ControllerRevision{ObjectMeta: meant(hash), Revision: int64(i + 1)}
		r.OwnerReferences, r.Labels = owner, map[string]string{"app": name, appsv1.ControllerRevisionHashLabelKey: hash}
		r.Data.Raw = fmt.Appendf(nil, `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":%q}},`+
			`"spec":{"containers":[{"name":"main","image":%q}]}}}}`, name, image)
		pod := &corev1.Pod{ObjectMeta: meant(fmt.Sprintf("%s-pod-%d", name, i+1))}
		pod.UID = types.UID("uid-" + pod.Name)
		pod.OwnerReferences, pod.Labels = owner, map[string]string{"app": name, appsv1.ControllerRevisionHashLabelKey: hash}
		objects = append(objects, r, pod)
	}

	return objects
}

// TestLooksAtNativeKinds: the plugin reads the revisions of the workload's own controller alone.
func TestLooksAtNativeKinds(t *testing.T) {
	for _, kind := range []workload.Kind{workload.StatefulSet{}, workload.DaemonSet{}} {
		t.Run(kind.Resource(), func(t *testing.T) {
			objects := native(kind, "db", "uid-db")
			other := native(kind, "other", "uid-other")
			for _, o := range other {
				if r, ok := o.(*appsv1.ControllerRevision); ok {
					r.Revision += 10 // newer than the revisions of db
				}
			}
			objects = append(append(objects, other...), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
			live := fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(objects...).Build()
			target := target{kind: kind, key: types.NamespacedName{Namespace: "shop", Name: "db"}}
			c := &connection{Options: Options{Now: time.Now}}
			s, err := c.load(t.Context(), live, operatorNamespace, target)
			if err != nil {
				t.Fatal(err)
			}
			got := []any{s.workload.Revision, len(s.pods), len(s.workload.OldRevisions), len(s.history), s.counts.Desired, s.container}
			if diff := cmp.Diff([]any{"db-2", 1, 1, 0, int64(2), "main"}, got); diff != "" {
				t.Errorf("read (-want +got):\n%s", diff)
			}
			// wait reads the workload so.
			w, err := kind.Get(t.Context(), newReader(live), target.key)
			if err != nil || w == nil {
				t.Fatalf("%v, %v", w, err)
			}
			if w.Revision != "db-2" || len(w.OldRevisions) != 1 {
				t.Errorf("wait sees revision %q and %d earlier ones", w.Revision, len(w.OldRevisions))
			}
		})
	}
}
