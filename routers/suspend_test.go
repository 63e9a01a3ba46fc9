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

package routers

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	version1 = "11111111111111111111111111111111"
	version2 = "22222222222222222222222222222222"
	version3 = "33333333333333333333333333333333"
)

func makeNamespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

type deploymentWrapper struct{ appsv1.Deployment }

// makeDeployment makes one that is suspended.
func makeDeployment(name, namespace string) *deploymentWrapper {
	return &deploymentWrapper{appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: namespace, UID: types.UID(namespace + "/" + name),
		Labels:      map[string]string{v1alpha1.SuspendLabel: "1700000000", v1alpha1.VersionLabel: version2},
		Annotations: map[string]string{},
	}}}
}

func (d *deploymentWrapper) Label(key, value string) *deploymentWrapper {
	d.Labels[key] = value
	return d
}

func (d *deploymentWrapper) WithoutLabel(key string) *deploymentWrapper {
	delete(d.Labels, key)
	return d
}

func (d *deploymentWrapper) BlockedBy(release string) *deploymentWrapper {
	d.Annotations[v1alpha1.SuspendedByAnnotation] = release
	return d
}

func (d *deploymentWrapper) Obj() client.Object { return &d.Deployment }

type changeWrapper struct{ v1alpha1.ChangeWorkload }

func makeChange(deployment, namespace, version string, release int64, status v1alpha1.ChangeWorkloadStatusType) *changeWrapper {
	controller := true
	return &changeWrapper{v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{
			Name: deployment + "--x--" + version, Namespace: namespace, CreationTimestamp: metav1.NewTime(testNow),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "Deployment", Name: deployment, UID: types.UID(namespace + "/" + deployment), Controller: &controller,
			}},
		},
		Spec:   v1alpha1.ChangeWorkloadSpec{Reversion: version, Release: release},
		Status: v1alpha1.ChangeWorkloadStatus{Status: status},
	}}
}

func (c *changeWrapper) Failed(pods ...string) *changeWrapper {
	for _, pod := range pods {
		c.Status.DefenseCheckFailPods = append(c.Status.DefenseCheckFailPods, v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: pod}, Verdict: "unpass"})
	}
	return c
}

func (c *changeWrapper) Later(d time.Duration) *changeWrapper {
	c.CreationTimestamp = metav1.NewTime(c.CreationTimestamp.Add(d))
	return c
}

func (c *changeWrapper) OwnedBy(uid types.UID) *changeWrapper {
	c.OwnerReferences[0].UID = uid
	return c
}

func (c *changeWrapper) Obj() client.Object { return &c.ChangeWorkload }

func newReader(funcs interceptor.Funcs, objects ...client.Object) client.Reader {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByOwner, workload.OwnerUID).
		WithIndex(&appsv1.ControllerRevision{}, workload.IndexByOwner, workload.OwnerUID).
		WithInterceptorFuncs(funcs).Build()
}

func TestSuspended(t *testing.T) {
	enrolled := map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}
	prod, test := makeNamespace("prod", enrolled), makeNamespace("test", enrolled)
	one := func(fields string) string {
		return `{"code":200,"message":"suspended deployments: 1","deployments":[{"deploymentName":"web","namespace":"prod",` + fields + `}]}`
	}
	const none = `{"code":200,"message":"suspended deployments: 0","deployments":[]}`

	tests := map[string]struct {
		namespace string
		objects   []client.Object
		want      string
	}{
		"nothing":       {objects: []client.Object{prod}, want: none},
		"not suspended": {objects: []client.Object{prod, makeDeployment("web", "prod").WithoutLabel(v1alpha1.SuspendLabel).Obj()}, want: none},
		"namespace not enrolled": {objects: []client.Object{makeNamespace("prod", map[string]string{v1alpha1.EnrolledLabel: "disabled"}),
			makeDeployment("web", "prod").Obj()}, want: none},
		"namespace gone": {objects: []client.Object{makeDeployment("web", "prod").Obj()}, want: none},
		"namespace going": {objects: []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "prod", Labels: enrolled, DeletionTimestamp: &metav1.Time{Time: testNow}, Finalizers: []string{"kubernetes"},
		}}, makeDeployment("web", "prod").Obj()}, want: none},
		"opted out": {objects: []client.Object{prod, makeDeployment("web", "prod").Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).Obj()}, want: none},
		"in one namespace": {namespace: "prod", objects: []client.Object{prod, test,
			makeDeployment("web", "prod").Obj(), makeDeployment("web", "test").Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]`)},
		"in another namespace": {namespace: "test", objects: []client.Object{prod, test, makeDeployment("web", "prod").Obj()}, want: none},
		"whole": {objects: []client.Object{prod, makeDeployment("web", "prod").BlockedBy(version2 + " 2").Obj(),
			makeChange("web", "prod", version1, 1, v1alpha1.ChangeWorkloadSuccess).Failed("old").Obj(),
			makeChange("web", "prod", version2, 2, v1alpha1.ChangeWorkloadSuspend).Failed("web-b", "web-a").Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":true,"successVersion":"` + version1 + `","suspendedAt":1700000000,"failedPods":["web-b","web-a"]`)},
		"blocked by nobody knows what": {objects: []client.Object{prod, makeDeployment("web", "prod").Obj(),
			makeChange("web", "prod", version2, 2, v1alpha1.ChangeWorkloadSuspend).Failed("web-a").Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":["web-a"]`)},
		"blocked by the version before": {objects: []client.Object{prod, makeDeployment("web", "prod").BlockedBy(version1 + " 1").Obj(),
			makeChange("web", "prod", version1, 1, v1alpha1.ChangeWorkloadSuspend).Failed("web-a").Obj(),
			makeChange("web", "prod", version2, 2, v1alpha1.ChangeWorkloadRunning).Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":["web-a"]`)},
		"newest success, not the present version": {objects: []client.Object{prod, makeDeployment("web", "prod").Obj(),
			makeChange("web", "prod", version1, 7, v1alpha1.ChangeWorkloadSuccess).Obj(),
			makeChange("web", "prod", version2, 9, v1alpha1.ChangeWorkloadSuccess).Obj(),
			makeChange("web", "prod", version3, 5, v1alpha1.ChangeWorkloadSuccess).Later(time.Hour).Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":true,"successVersion":"` + version1 + `","suspendedAt":1700000000,"failedPods":[]`)},
		"of one release, the one made later": {objects: []client.Object{prod, makeDeployment("web", "prod").Obj(),
			makeChange("web", "prod", version1, 7, v1alpha1.ChangeWorkloadSuccess).Obj(),
			makeChange("web", "prod", version3, 7, v1alpha1.ChangeWorkloadSuccess).Later(time.Second).Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":true,"successVersion":"` + version3 + `","suspendedAt":1700000000,"failedPods":[]`)},
		"of a deleted workload of the same name": {objects: []client.Object{prod, makeDeployment("web", "prod").Obj(),
			makeChange("web", "prod", version1, 1, v1alpha1.ChangeWorkloadSuccess).OwnedBy("before").Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]`)},
		"label somebody wrote, and a baseline": {objects: []client.Object{prod,
			makeDeployment("web", "prod").Label(v1alpha1.SuspendLabel, "yes").WithoutLabel(v1alpha1.VersionLabel).Obj()},
			want: one(`"nowVersion":"","hasSuccessVersion":false,"successVersion":"","suspendedAt":0,"failedPods":[]`)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) { f.opts.Reader = newReader(interceptor.Funcs{}, tc.objects...) })
			query, content := "", `{}`
			if tc.namespace != "" {
				query, content = "?namespace="+tc.namespace, `{"namespace":"`+tc.namespace+`"}`
			}
			expect(t, serve(f.handler(t), signedGet(query, content, tokenA, testNow)), http.StatusOK, tc.want)
		})
	}
}

func TestSuspendedAreSorted(t *testing.T) {
	enrolled := map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}
	reader := newReader(interceptor.Funcs{}, makeNamespace("b", enrolled), makeNamespace("a", enrolled),
		makeDeployment("x", "b").Obj(), makeDeployment("z", "a").Obj(), makeDeployment("y", "a").Obj())
	found, err := observeSuspended(t.Context(), reader, workload.Deployment{}, "")
	if err != nil {
		t.Fatal(err)
	}
	var got string
	for _, d := range found {
		got += d.Namespace + "/" + d.DeploymentName + " "
	}
	if want := "a/y a/z b/x "; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
}

func TestSuspendedWithoutAnswer(t *testing.T) {
	failing := errors.New("the cache is not synced")
	enrolled := makeNamespace("prod", map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue})
	const away = `{"code":503,"message":"the cluster can't be read now, try again"}`
	tests := map[string]struct {
		query, content string
		funcs          interceptor.Funcs
		wantCode       int
		wantBody       string
	}{
		"no namespace's name": {query: "?namespace=..%2Fx", content: `{"namespace":"../x"}`, wantCode: 400,
			wantBody: `{"code":400,"message":"the parameter namespace is not the name of a namespace: a lowercase RFC 1123 label must consist of lower case ` +
				`alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation ` +
				`is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"}`},
		"twice": {query: "?namespace=A&namespace=prod", content: `{"namespace":"A"}`, wantCode: 400,
			wantBody: `{"code":400,"message":"the one parameter is namespace, once; not \"namespace\""}`},
		"what is meant for a rollback": {query: "?deploymentName=web&namespace=prod", content: `{"deploymentName":"web","namespace":"prod"}`, wantCode: 400,
			wantBody: `{"code":400,"message":"the one parameter is namespace, once; not \"deploymentName\""}`},
		"empty means all": {query: "?namespace=", content: `{"namespace":""}`, wantCode: 200,
			wantBody: `{"code":200,"message":"suspended deployments: 1","deployments":[{"deploymentName":"web","namespace":"prod","nowVersion":"` + version2 +
				`","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]}]}`},
		"workloads can't be listed": {content: `{}`, wantCode: 503, wantBody: away, funcs: interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return failing },
		}},
		"namespaces can't be read": {content: `{}`, wantCode: 503, wantBody: away, funcs: interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return failing
			},
		}},
		"changeworkloads can't be listed": {content: `{}`, wantCode: 503, wantBody: away, funcs: interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, ok := list.(*v1alpha1.ChangeWorkloadList); ok {
					return failing
				}
				return c.List(ctx, list, opts...)
			},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) {
				f.opts.Reader = newReader(tc.funcs, enrolled, makeDeployment("web", "prod").Obj())
			})
			expect(t, serve(f.handler(t), signedGet(tc.query, tc.content, tokenA, testNow)), tc.wantCode, tc.wantBody)
		})
	}
}
