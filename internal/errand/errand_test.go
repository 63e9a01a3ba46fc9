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

package errand

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const ours = "ours"

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

func managerDeployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ours, Name: "manager", UID: "uid-of-manager", Annotations: map[string]string{"meta.helm.sh/release-name": "altershield"},
		},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "manager"}}},
	}
}

// managerPod returns a pod with the label app; the manager's pods have the value manager.
func managerPod(name, app string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: ours, Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{"app": app},
	}}
}

// appliedDeployment returns a manager's Deployment that was applied with kubectl.
func appliedDeployment() *appsv1.Deployment {
	d := managerDeployment(2)
	d.Annotations = nil
	return d
}

func setting(enable, locked bool, remark string) *v1alpha1.OpsConfigInfo {
	return &v1alpha1.OpsConfigInfo{
		ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: "observe", Generation: 3},
		Spec:       v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: enable, Locked: locked, Remark: remark},
	}
}

// marked3 returns a Deployment that the operator blocked, paused and held.
func marked3(name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, Labels: map[string]string{v1alpha1.SuspendLabel: "1"},
		Annotations: map[string]string{v1alpha1.SuspendedByAnnotation: "v 1 uid", v1alpha1.HaltedAnnotation: "v", v1alpha1.HeldAnnotation: hold},
	}}
}

// haltedSet returns a StatefulSet that the operator halted; its partition was 3.
func haltedSet(name string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, Annotations: map[string]string{v1alpha1.HaltedAnnotation: "v", v1alpha1.HaltedFromAnnotation: "3"},
	}}
}

// operator plays the running operator: it acts each time the setting observe is read.
type operator func(ctx context.Context, c client.Client, object *v1alpha1.OpsConfigInfo)

// takesBack acknowledges the setting, and takes back one mark of each Deployment at each read.
func takesBack(ctx context.Context, c client.Client, object *v1alpha1.OpsConfigInfo) {
	object.Status.ObservedGeneration = object.Generation
	if err := c.Status().Update(ctx, object); err != nil {
		panic(err)
	}
	var all appsv1.DeploymentList
	if err := c.List(ctx, &all, client.InNamespace("shop")); err != nil {
		panic(err)
	}
	for i := range all.Items {
		d := &all.Items[i]
		switch {
		case d.Annotations[v1alpha1.HeldAnnotation] != "":
			delete(d.Annotations, v1alpha1.HeldAnnotation)
		case d.Annotations[v1alpha1.HaltedAnnotation] != "":
			delete(d.Annotations, v1alpha1.HaltedAnnotation)
		default:
			delete(d.Labels, v1alpha1.SuspendLabel)
		}
		if err := c.Update(ctx, d); err != nil {
			panic(err)
		}
	}
}

func stuck(context.Context, client.Client, *v1alpha1.OpsConfigInfo) {}

func forcedDeployment() client.Object {
	d := managerDeployment(2)
	d.SetAnnotations(map[string]string{"meta.helm.sh/release-name": "altershield", ForceAnnotation: "true"})
	return d
}

func heldOnly(name string) client.Object {
	d := marked3(name)
	delete(d.Labels, v1alpha1.SuspendLabel)
	delete(d.Annotations, v1alpha1.HaltedAnnotation)
	return d
}

func TestLeave(t *testing.T) {
	theirs := marked3("theirs")
	delete(theirs.Annotations, v1alpha1.SuspendedByAnnotation)
	delete(theirs.Annotations, v1alpha1.HaltedAnnotation)
	delete(theirs.Annotations, v1alpha1.HeldAnnotation)
	gone := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "OpsConfigInfo"}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "opsconfiginfoes"}, "observe", errors.New("not yours"))
	for name, tc := range map[string]struct {
		objects  []client.Object
		operator operator
		// fail is the error of reading the setting.
		fail error
		// want are parts of the output; wantNot must not be in it.
		want, wantNot []string
		// within is the longest time that the errand may take.
		within time.Duration
		// wantObserve is the setting after the errand; owned: the Deployment owns the setting.
		wantObserve *v1alpha1.OpsConfigInfoSpec
		owned       bool
		// notOurs: the errand is no uninstall, or refuses, so the Secret gets no owner.
		notOurs bool
		// unforced: without the flag --force; refused: the errand refuses.
		unforced, refused bool
	}{
		"taken back": {
			objects:  []client.Object{managerDeployment(2), setting(false, false, "mine"), marked3("a"), marked3("b"), theirs},
			operator: takesBack,
			want: []string{
				"turned on observe mode", "2 workloads are blocked, paused or held", "no workload is blocked, paused or held by the operator",
			},
			wantNot: []string{"left"}, within: 10 * time.Second,
			wantObserve: &v1alpha1.OpsConfigInfoSpec{
				Type: v1alpha1.TypeObserve, Enable: true, Locked: true, Remark: settings.Leave(v1alpha1.OpsConfigInfoSpec{Remark: "mine"}).Remark,
			},
			owned: true,
		},
		"nothing to do, no setting yet": {
			objects: []client.Object{managerDeployment(2)}, operator: takesBack,
			want: []string{"turned on observe mode", "no workload is"}, wantNot: []string{"left"}, within: 5 * time.Second,
			wantObserve: &v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: true, Locked: true, Remark: settings.LeaveRemark},
			owned:       true,
		},
		"observe mode before": {
			objects: []client.Object{managerDeployment(2), setting(true, false, "mine")}, operator: takesBack, within: 5 * time.Second,
			want:        []string{"turned on observe mode", "kubectl altershield enroll --cluster --mode=enforce"},
			wantObserve: &v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: true, Remark: "mine"},
		},
		"observe mode before, and an errand that died": {
			objects: []client.Object{managerDeployment(2), func() client.Object {
				o := setting(true, false, "mine")
				o.Spec = settings.Leave(o.Spec)
				return o
			}()}, operator: takesBack, within: 5 * time.Second, wantNot: []string{"turned on"},
			wantObserve: &v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: true, Remark: "mine"},
		},
		"a second time": {
			objects: []client.Object{managerDeployment(2), setting(true, true, "mine")}, operator: takesBack, within: 5 * time.Second,
			wantNot:     []string{"turned on"},
			wantObserve: &v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: true, Locked: true, Remark: "mine"},
		},
		"refused while a rollout is halted": {
			objects:  []client.Object{managerDeployment(2), setting(false, false, "mine"), marked3("a"), heldOnly("b")},
			operator: takesBack, unforced: true, refused: true,
			want: []string{
				"the operator releases 2 workloads:", "Deployment shop/a: [blocked paused held]", "Deployment shop/b: [held]",
				"1 of them are halted", "nothing was changed",
				"kubectl -n " + ours + " annotate deployment manager " + ForceAnnotation + "=true",
			},
			wantNot: []string{"turned on", "left"}, within: time.Second,
			wantObserve: &v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Remark: "mine"}, notOurs: true,
		},
		"not refused after an errand that died": {
			objects: []client.Object{managerDeployment(2), func() client.Object {
				o := setting(false, false, "mine")
				o.Spec = settings.Leave(o.Spec)
				return o
			}(), marked3("a")}, operator: takesBack, unforced: true,
			want: []string{"no workload is blocked"}, wantNot: []string{"nothing was changed"}, within: 10 * time.Second,
		},
		"forced by an annotation": {
			objects: []client.Object{forcedDeployment(), setting(false, false, ""), marked3("a")}, operator: takesBack, unforced: true,
			want:    []string{"the operator releases 1 workloads:", "no workload is blocked"},
			wantNot: []string{"nothing was changed"}, within: 10 * time.Second,
		},
		"held alone is no reason to refuse": {
			objects: []client.Object{managerDeployment(2), setting(false, false, ""), heldOnly("b")}, operator: takesBack, unforced: true,
			want: []string{"no workload is blocked"}, wantNot: []string{"nothing was changed"}, within: 10 * time.Second,
		},
		"not refused while the operator does not run": {
			objects: []client.Object{managerDeployment(0), setting(false, false, ""), marked3("a")}, operator: stuck, unforced: true,
			want: []string{"left: 1 workloads"}, wantNot: []string{"nothing was changed"}, within: time.Second,
		},
		"an operator that is stuck": {
			objects: []client.Object{managerDeployment(2), setting(false, false, ""), marked3("a")}, operator: stuck,
			want: []string{
				"left: 1 workloads", "Deployment shop/a: [blocked paused held]", "kubectl rollout resume", "remove the label", "minReadySeconds",
			},
			within: time.Minute, wantNot: []string{"no workload is"},
		},
		"an operator that is stuck, and a StatefulSet": {
			objects: []client.Object{managerDeployment(2), setting(false, false, ""), haltedSet("db")}, operator: stuck,
			want: []string{
				"StatefulSet shop/db: [paused]: kubectl altershield resume statefulset/db -n shop",
			},
			within: time.Minute,
		},
		"an operator that is scaled down": {
			objects: []client.Object{managerDeployment(0), setting(false, false, ""), marked3("a")}, operator: stuck,
			want: []string{"the operator takes nothing back: it does not run", "left: 1 workloads"}, within: time.Second,
		},
		"no operator": {
			objects: []client.Object{setting(false, false, "mine")}, operator: stuck,
			want: []string{"the operator is not there", "no workload is"}, within: time.Second,
			wantObserve: &v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Remark: "mine"},
		},
		"applied from helm template": {
			objects: []client.Object{appliedDeployment(), setting(false, false, "mine"), marked3("a")}, operator: takesBack,
			want: []string{"nothing is done", "uninstall.leave=false"}, wantNot: []string{"left", "turned on"}, within: time.Second,
			wantObserve: &v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Remark: "mine"}, notOurs: true,
		},
		"no kinds": {
			objects: []client.Object{managerDeployment(2), marked3("a")}, operator: stuck, fail: gone,
			want: []string{"its settings are gone", "left: 1 workloads"}, wantNot: []string{"turned on"}, within: time.Second,
		},
		"no right": {
			objects: []client.Object{managerDeployment(2), marked3("a")}, operator: stuck, fail: forbidden,
			want: []string{"cannot be turned on", "not yours", "left: 1 workloads"}, within: time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: "certificate"}}
				blocking := &v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: ours, Name: settings.NameBlocking}}
				inner := fake.NewClientBuilder().WithScheme(scheme()).
					WithObjects(append(tc.objects, secret, blocking,
						managerPod("manager-0", "manager"), managerPod("manager-1", "manager"), managerPod("another", "another"))...).
					WithStatusSubresource(&v1alpha1.OpsConfigInfo{}).Build()
				api := interceptor.NewClient(inner, interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
						o, isSetting := object.(*v1alpha1.OpsConfigInfo)
						if isSetting && tc.fail != nil {
							return tc.fail
						}
						err := c.Get(ctx, key, object, opts...)
						if isSetting && err == nil && o.Spec.Enable && o.Spec.Locked {
							tc.operator(ctx, c, o)
						}
						return err
					},
				})
				var out bytes.Buffer
				l := &leaving{
					Client: api, namespace: ours, deployment: "manager", kinds: workload.Defended(), out: &out, force: !tc.unforced,
					owned: []ownedObject{
						{corev1.SchemeGroupVersion.WithKind("Secret"), "certificate"}, {corev1.SchemeGroupVersion.WithKind("ConfigMap"), "none"},
					},
				}
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				begin := time.Now()
				err := l.run(ctx)
				if refusal := (Refusal{}); errors.As(err, &refusal) != tc.refused || !tc.refused && err != nil {
					t.Errorf("run() = %v, want a refusal: %t", err, tc.refused)
				}
				if took := time.Since(begin); took > tc.within {
					t.Errorf("run() took %s, want at most %s", took, tc.within)
				}
				for _, want := range tc.want {
					if !strings.Contains(out.String(), want) {
						t.Errorf("the output lacks %q:\n%s", want, &out)
					}
				}
				for _, not := range tc.wantNot {
					if strings.Contains(out.String(), not) {
						t.Errorf("the output has %q:\n%s", not, &out)
					}
				}
				if err := inner.Get(t.Context(), client.ObjectKeyFromObject(blocking), blocking); err != nil {
					t.Fatal(err)
				}
				left := meta.IsStatusConditionFalse(blocking.Status.Conditions, v1alpha1.ConditionInstalled)
				if want := !tc.notOurs && tc.fail == nil; left != want {
					t.Errorf("the end of the installation is recorded: %t, want %t", left, want)
				}
				var deployment appsv1.Deployment
				hasManager := inner.Get(t.Context(), types.NamespacedName{Namespace: ours, Name: "manager"}, &deployment) == nil
				if err := inner.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
					t.Fatal(err)
				}
				wantOwners := []metav1.OwnerReference(nil)
				if hasManager && !tc.notOurs {
					wantOwners = []metav1.OwnerReference{
						{APIVersion: "apps/v1", Kind: "Deployment", Name: "manager", UID: "uid-of-manager"},
						{APIVersion: "v1", Kind: "Pod", Name: "manager-0", UID: "uid-of-manager-0"},
						{APIVersion: "v1", Kind: "Pod", Name: "manager-1", UID: "uid-of-manager-1"},
					}
				}
				if diff := cmp.Diff(wantOwners, secret.OwnerReferences); diff != "" {
					t.Errorf("owners of the Secret (-want +got):\n%s", diff)
				}
				if tc.wantObserve == nil {
					return
				}
				var observe v1alpha1.OpsConfigInfo
				if err := inner.Get(t.Context(), types.NamespacedName{Namespace: ours, Name: "observe"}, &observe); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(*tc.wantObserve, observe.Spec); diff != "" {
					t.Errorf("observe (-want +got):\n%s", diff)
				}
				if owned := len(observe.OwnerReferences) == 1; owned != tc.owned {
					t.Errorf("the Deployment owns the setting: %t, want %t", owned, tc.owned)
				}
			})
		})
	}
}

// hold is an annotation of the operator.
const hold = `{"release":1,"partition":0,"set":{"partition":2}}`

func TestMarks(t *testing.T) {
	for name, tc := range map[string]struct {
		labels, annotations map[string]string
		want                []mark
	}{
		"none": {},
		"the operator's block": {
			map[string]string{v1alpha1.SuspendLabel: "1"}, map[string]string{v1alpha1.SuspendedByAnnotation: "v 1 u"}, []mark{blocked},
		},
		"a user's block":   {map[string]string{v1alpha1.SuspendLabel: "1"}, nil, nil},
		"paused":           {nil, map[string]string{v1alpha1.HaltedAnnotation: "v"}, []mark{paused}},
		"held":             {nil, map[string]string{v1alpha1.HeldAnnotation: hold}, []mark{held}},
		"held by a user":   {nil, map[string]string{v1alpha1.HeldAnnotation: "{}"}, nil},
		"an earlier block": {nil, map[string]string{v1alpha1.SuspendedByAnnotation: "v 1 u"}, nil},
	} {
		got := marks(&metav1.ObjectMeta{Labels: tc.labels, Annotations: tc.annotations})
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want map[string]map[string]any
		err  string
	}{
		"some": {
			text: `{"observe":{"enable":true},"branch":{"enable":true,"content":"5","locked":true}}`,
			want: map[string]map[string]any{
				"branch":  {"type": "isBranch", "enable": true, "content": "5", "locked": true},
				"observe": {"type": "isObserve", "enable": true, "content": ""},
			},
		},
		"the content of the default": {
			text: `{"branch":{"enable":true}}`,
			want: map[string]map[string]any{"branch": {"type": "isBranch", "enable": true, "content": "10"}},
		},
		"none":    {text: `{}`, want: map[string]map[string]any{}},
		"no JSON": {text: `branch`, err: "not settings by name in JSON"},
		"unknown": {text: `{"branches":{"enable":true}}`, err: `no setting is named "branches": use one of admission, blocking`},
		"a content without enable": {
			text: `{"branch":{"content":"5"}}`,
			want: map[string]map[string]any{"branch": {"type": "isBranch", "enable": true, "content": "5"}},
		},
		"neither enable nor content": {text: `{"branch":{"locked":true}}`, err: "branch: enable and content are missing"},
		"an unknown field":           {text: `{"branch":{"enable":true,"contents":"5"}}`, err: `unknown field "contents"`},
		"no number": {
			text: `{"branch":{"enable":true,"content":"five"}}`,
			err:  `branch: spec.content: "five" is not a number of pods`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := parseSettings(tc.text, ours)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %s", err, tc.err)
				}
				return
			}
			got := map[string]map[string]any{}
			for _, o := range objects {
				spec, ok := o.Object["spec"].(map[string]any)
				if !ok || o.GetNamespace() != ours || o.GetKind() != "OpsConfigInfo" {
					t.Fatalf("%v", o)
				}
				got[o.GetName()] = spec
			}
			if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestWaitReadsNothing checks that an errand whose time ends before its first read reports the error, and not that no workload is left.
func TestWaitReadsNothing(t *testing.T) {
	inner := fake.NewClientBuilder().WithScheme(scheme()).WithObjects(marked3("a")).Build()
	l := &leaving{
		Client: interceptor.NewClient(inner, interceptor.Funcs{
			List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
				return ctx.Err()
			},
		}),
		namespace: ours, deployment: "manager", kinds: workload.Defended(), out: io.Discard,
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if left, err := l.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait() = %v, %v, want the error of the read", left, err)
	}
}

// TestApplySettings: apply waits for a kind that is not served yet.
func TestApplySettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := fake.NewClientBuilder().WithScheme(scheme()).Build()
		tries := 0
		notServed := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "OpsConfigInfo"}}
		api := interceptor.NewClient(inner, interceptor.Funcs{
			Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
				if tries++; tries < 4 {
					return notServed
				}
				return c.Apply(ctx, o, opts...)
			},
		})
		objects, err := parseSettings(`{"observe":{"enable":true}}`, ours)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := apply(ctx, api, &objects[0]); err != nil || tries != 4 {
			t.Fatalf("%d tries: %v", tries, err)
		}
		var observe v1alpha1.OpsConfigInfo
		if err := inner.Get(ctx, types.NamespacedName{Namespace: ours, Name: "observe"}, &observe); err != nil || !observe.Spec.Enable {
			t.Errorf("%v: %+v", err, observe.Spec)
		}
		never := interceptor.NewClient(inner, interceptor.Funcs{
			Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
				return notServed
			},
		})
		begin := time.Now()
		short, cancelShort := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancelShort()
		if err := apply(short, never, &objects[0]); !meta.IsNoMatchError(err) || time.Since(begin) > 11*time.Second {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
	})
}

// TestFlags: a wrong value ends an errand before it connects to the cluster.
func TestFlags(t *testing.T) {
	var out bytes.Buffer
	env := Environment{
		Scheme: scheme(), Out: &out,
		Config: func() (*rest.Config, error) { return nil, errors.New("asked for the cluster") },
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"leave", "--timeout=1h"}, "leave: --timeout 1h0m0s is out of bounds: give a duration from 1s to 10m0s"},
		{[]string{"leave", "now"}, `leave: unexpected argument "now"`},
		{[]string{"settings", "--sets={}"}, "not defined: -sets"},
		{[]string{"leave"}, "find the cluster (--kubeconfig, $KUBECONFIG or in-cluster): asked for the cluster"},
	} {
		if err := Run(t.Context(), tc.args, env); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %s", tc.args, err, tc.want)
		}
	}
	if err := Run(t.Context(), []string{"leave", "--help"}, env); err != nil || !strings.Contains(out.String(), "-timeout") {
		t.Errorf("%v: %s", err, &out)
	}
	for args, want := range map[string]bool{"leave": true, "settings": true, "--leave": false, "": false, "run": false} {
		if got := Asked(strings.Fields(args)); got != want {
			t.Errorf("%q: %t", args, got)
		}
	}
}
