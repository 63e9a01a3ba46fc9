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

package walkthrough

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// looked has the objects that a look reads: a Deployment of two pods at the version new, its release, and its pods.
type looked struct {
	deployment appsv1.Deployment
	release    v1alpha1.ChangeWorkload
	pods       []corev1.Pod
	others     []client.Object
}

var recorded = time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)

func succeeding(change func(*looked)) *looked {
	l := &looked{
		deployment: appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: shop, Name: "web", Labels: map[string]string{v1alpha1.VersionLabel: "new"}, Annotations: map[string]string{},
			},
			Spec:   appsv1.DeploymentSpec{Replicas: ptr.To[int32](2)},
			Status: appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2, AvailableReplicas: 2},
		},
		release: v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{
			Namespace: shop, Name: "web--x--new", CreationTimestamp: metav1.NewTime(recorded),
		}},
	}
	l.release.Status.Status = v1alpha1.ChangeWorkloadSuccess
	if change != nil {
		change(l)
	}
	return l
}

// failing is the release while it is suspended for its first pod, and its rollout halted.
func failing(change func(*looked)) *looked {
	l := succeeding(func(l *looked) {
		l.release.Status.Status = v1alpha1.ChangeWorkloadSuspend
		l.release.Status.DefenseCheckFailPods = []v1alpha1.PodResult{
			{PodInfo: v1alpha1.PodInfo{Pod: "web-2"}, Verdict: "fail", Message: "stays-up: it crashes"},
		}
		l.deployment.Labels[v1alpha1.SuspendLabel] = "1700000000"
		l.deployment.Annotations[v1alpha1.HaltedAnnotation] = "web--x--new"
		l.deployment.Spec.Paused = true
		l.deployment.Status = appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 1, ReadyReplicas: 2, AvailableReplicas: 2}
		for name, version := range map[string]string{"one": "old", "two": "old", "three": "new"} {
			l.pods = append(l.pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: shop, Name: name, Labels: map[string]string{"app": "web", v1alpha1.VersionLabel: version},
				CreationTimestamp: metav1.NewTime(recorded.Add(-time.Minute)),
			}})
		}
		l.others = append(l.others, &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "event"}, Reason: v1alpha1.EventReleaseSuspended,
			InvolvedObject: corev1.ObjectReference{Kind: "Deployment", Name: "web"}, Message: "version new failed",
		})
	})
	if change != nil {
		change(l)
	}
	return l
}

// heldRelease is the release while its rollout waits for the verdict on its first pod.
func heldRelease(change func(*looked)) *looked {
	l := succeeding(func(l *looked) {
		l.release.Status.Status = v1alpha1.ChangeWorkloadRunning
		l.release.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionHeld, Status: metav1.ConditionTrue}}
		l.deployment.Status = appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 1, ReadyReplicas: 3, AvailableReplicas: 2}
	})
	if change != nil {
		change(l)
	}
	return l
}

// A look succeeds only in the state that it waits for.
func TestLooks(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	crash, suspended := failed("stays-up", "crashes"), reports(v1alpha1.EventReleaseSuspended)
	unblocked := func(l *looked) { delete(l.deployment.Labels, v1alpha1.SuspendLabel) }
	label := func(key string) func(*looked) { return func(l *looked) { l.deployment.Labels[key] = "true" } }
	for name, tt := range map[string]struct {
		looked *looked
		look   look
		seen   bool
		err    string
	}{
		"succeeded":              {succeeding(nil), (*scene).succeeded, true, ""},
		"suspended":              {failing(nil), (*scene).succeeded, false, ""},
		"not begun":              {succeeding(func(l *looked) { l.release.Name = "web--x--old" }), (*scene).succeeded, false, ""},
		"a pod crashes":          {succeeding(func(l *looked) { l.deployment.Status.AvailableReplicas = 1 }), (*scene).succeeded, false, ""},
		"an old pod remains":     {succeeding(func(l *looked) { l.deployment.Status.Replicas = 3 }), (*scene).succeeded, false, ""},
		"not observed yet":       {succeeding(func(l *looked) { l.deployment.Generation = 2 }), (*scene).succeeded, false, ""},
		"blocked":                {succeeding(label(v1alpha1.SuspendLabel)), (*scene).succeeded, false, ""},
		"override not consumed":  {succeeding(label(v1alpha1.IgnoredSuspendLabel)), (*scene).succeeded, false, ""},
		"paused":                 {succeeding(func(l *looked) { l.deployment.Spec.Paused = true }), (*scene).succeeded, false, ""},
		"another release listed": {succeeding(func(l *looked) { l.others = append(l.others, otherRelease()) }), (*scene).succeeded, false, ""},

		"held":                   {heldRelease(nil), (*scene).held, true, ""},
		"no condition":           {heldRelease(func(l *looked) { l.release.Status.Conditions = nil }), (*scene).held, false, ""},
		"released from the hold": {heldRelease(func(l *looked) { l.release.Status.Conditions[0].Status = "False" }), (*scene).held, false, ""},
		"held without a pod":     {heldRelease(func(l *looked) { l.deployment.Status.UpdatedReplicas = 0 }), (*scene).held, false, ""},
		"held, and all updated":  {heldRelease(func(l *looked) { l.deployment.Status.UpdatedReplicas = 2 }), (*scene).held, false, ""},

		"failed":                     {failing(nil), crash, true, ""},
		"did not fail":               {succeeding(nil), crash, false, ""},
		"failed, and is not blocked": {failing(unblocked), crash, false, ""},
		"no pod is named":            {failing(func(l *looked) { l.release.Status.DefenseCheckFailPods = nil }), crash, false, ""},
		"failed for another reason":  {failing(nil), failed("not Ready"), false, "pod web-2 failed without"},

		"suspended and blocked":    {failing(nil), (*scene).blocked, true, ""},
		"not suspended yet":        {succeeding(label(v1alpha1.SuspendLabel)), (*scene).blocked, false, ""},
		"suspended, no block yet":  {failing(unblocked), (*scene).blocked, false, ""},
		"stopped":                  {failing(nil), (*scene).stopped, true, ""},
		"paused by a user":         {failing(func(l *looked) { clear(l.deployment.Annotations) }), (*scene).stopped, false, ""},
		"stopped too late":         {failing(func(l *looked) { l.deployment.Status.UpdatedReplicas = 2 }), (*scene).stopped, false, ""},
		"both old pods are there":  {failing(nil), kept(2), true, ""},
		"an old pod was replaced":  {failing(func(l *looked) { replaced(l, "one") }), kept(2), false, ""},
		"one old pod is there":     {failing(func(l *looked) { replaced(l, "one") }), kept(1), true, ""},
		"reported":                 {failing(nil), suspended, true, ""},
		"another version reported": {failing(func(l *looked) { l.others = nil }), suspended, false, ""},
		"one of two reported":      {failing(nil), reports(v1alpha1.EventReleaseSuspended, v1alpha1.EventCheckFailed), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append([]client.Object{&tt.looked.deployment, &tt.looked.release}, tt.looked.others...)
			for i := range tt.looked.pods {
				objects = append(objects, &tt.looked.pods[i])
			}
			s := &scene{
				client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), namespace: shop, bad: "new",
				of: Workload{kind: "Deployment", name: "web", pods: 2},
			}
			progress, seen, err := tt.look(s, t.Context())
			if seen != tt.seen || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %t, %v", progress, seen, err)
			}
		})
	}
}

func otherRelease() client.Object {
	return &v1alpha1.ChangeWorkload{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "web--x--old"}}
}

// replaced makes a pod younger than the record of the release.
func replaced(l *looked, name string) {
	for i := range l.pods {
		if l.pods[i].Name == name {
			l.pods[i].CreationTimestamp = metav1.NewTime(recorded.Add(time.Second))
		}
	}
}

// A player remembers the version that a release replaced. A version that the operator restores is no release.
func TestVersions(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	l := succeeding(nil)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&l.deployment).Build()
	p := &Player{Client: c, Namespace: shop, Of: web, Kubectl: func(ctx context.Context, args ...string) (string, error) {
		if args[0] == "set" || args[0] == "annotate" {
			d := l.deployment.DeepCopy()
			if err := c.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
				return "", err
			}
			d.Labels[v1alpha1.VersionLabel] = args[1]
			return "", c.Update(ctx, d)
		}
		return strings.Join(args, " "), nil
	}}
	step := Step{"versions", []Act{
		kubectl("set newer"), kubectl("get BAD").prints("get newer"), kubectl("set newest"), kubectl("annotate older"),
	}}
	if err := p.Play(t.Context(), step); err != nil {
		t.Fatal(err)
	}
	if p.scene.good != "newer" || p.scene.bad != "newest" {
		t.Errorf("from %q to %q", p.scene.good, p.scene.bad)
	}
}

// A kind is served as soon as the API server knows it, with or without the object.
func TestServed(t *testing.T) {
	refused := errors.New("refused")
	for name, test := range map[string]struct {
		get  error
		seen bool
		err  error
	}{
		"unknown":        {get: &meta.NoKindMatchError{}},
		"without object": {get: apierrors.NewNotFound(schema.GroupResource{}, "pay"), seen: true},
		"with object":    {seen: true},
		"refused":        {get: refused, seen: true, err: refused},
	} {
		s := &scene{namespace: mesh, of: route, client: interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return test.get
			},
		})}
		if _, seen, err := s.served(t.Context()); seen != test.seen || !errors.Is(err, test.err) {
			t.Errorf("%s: %t, %v", name, seen, err)
		}
	}
}
