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
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	version1 = "11111111111111111111111111111111"
	version2 = "22222222222222222222222222222222"
	version3 = "33333333333333333333333333333333"
)

// blocked makes a blocked Deployment.
func blocked(namespace, name string) *wrappers.DeploymentWrapper {
	return wrappers.MakeDeployment(namespace, name).UID(types.UID(namespace + "/" + name)).Version(version2).Suspended()
}

// releaseOfWeb makes a release of prod's web.
func releaseOfWeb(version string, release int64, state v1alpha1.ChangeWorkloadStatusType) *wrappers.ChangeWorkloadWrapper {
	return wrappers.MakeChangeWorkload("prod", "web--x--"+version).Of(blocked("prod", "web").Obj()).
		Version(version).Release(release).State(state).Created(testNow)
}

func TestSuspended(t *testing.T) {
	prod, test := wrappers.MakeNamespace("prod").Enrolled().Obj(), wrappers.MakeNamespace("test").Enrolled().Obj()
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
		"not suspended": {objects: []client.Object{prod, blocked("prod", "web").WithoutLabel(v1alpha1.SuspendLabel).Obj()}, want: none},
		"namespace not enrolled": {objects: []client.Object{wrappers.MakeNamespace("prod").Label(v1alpha1.EnrolledLabel, "disabled").Obj(),
			blocked("prod", "web").Obj()}, want: none},
		"namespace gone": {objects: []client.Object{blocked("prod", "web").Obj()}, want: none},
		"namespace going": {objects: []client.Object{wrappers.MakeNamespace("prod").Enrolled().Deleted(testNow).Finalizers("kubernetes").Obj(),
			blocked("prod", "web").Obj()}, want: none},
		"the operator's own namespace": {
			objects: []client.Object{wrappers.MakeNamespace("operator").Enrolled().Obj(), blocked("operator", "web").Obj()}, want: none,
		},
		"opted out": {
			objects: []client.Object{prod, blocked("prod", "web").Label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled).Obj()}, want: none,
		},
		"in one namespace": {namespace: "prod", objects: []client.Object{prod, test,
			blocked("prod", "web").Obj(), blocked("test", "web").Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]`)},
		"in another namespace": {namespace: "test", objects: []client.Object{prod, test, blocked("prod", "web").Obj()}, want: none},
		"whole": {objects: []client.Object{prod, blocked("prod", "web").SuspendedBy(version2 + " 2").Obj(),
			releaseOfWeb(version1, 1, v1alpha1.ChangeWorkloadSuccess).Failed("old").Obj(),
			releaseOfWeb(version2, 2, v1alpha1.ChangeWorkloadSuspend).Failed("web-b", "web-a").Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":true,"successVersion":"` + version1 +
				`","suspendedAt":1700000000,"failedPods":["web-b","web-a"]`)},
		"blocked without a cause": {objects: []client.Object{prod, blocked("prod", "web").Obj(),
			releaseOfWeb(version2, 2, v1alpha1.ChangeWorkloadSuspend).Failed("web-a").Obj()},
			want: one(`"nowVersion":"` + version2 +
				`","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":["web-a"]`)},
		"blocked by the version before": {objects: []client.Object{prod, blocked("prod", "web").SuspendedBy(version1 + " 1").Obj(),
			releaseOfWeb(version1, 1, v1alpha1.ChangeWorkloadSuspend).Failed("web-a").Obj(),
			releaseOfWeb(version2, 2, v1alpha1.ChangeWorkloadRunning).Obj()},
			want: one(`"nowVersion":"` + version2 +
				`","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":["web-a"]`)},
		"newest success, not the present version": {objects: []client.Object{prod, blocked("prod", "web").Obj(),
			releaseOfWeb(version1, 7, v1alpha1.ChangeWorkloadSuccess).Obj(),
			releaseOfWeb(version2, 9, v1alpha1.ChangeWorkloadSuccess).Obj(),
			releaseOfWeb(version3, 5, v1alpha1.ChangeWorkloadSuccess).Created(testNow.Add(time.Hour)).Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":true,"successVersion":"` + version1 +
				`","suspendedAt":1700000000,"failedPods":[]`)},
		"of one release, the one made later": {objects: []client.Object{prod, blocked("prod", "web").Obj(),
			releaseOfWeb(version1, 7, v1alpha1.ChangeWorkloadSuccess).Obj(),
			releaseOfWeb(version3, 7, v1alpha1.ChangeWorkloadSuccess).Created(testNow.Add(time.Second)).Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":true,"successVersion":"` + version3 +
				`","suspendedAt":1700000000,"failedPods":[]`)},
		"of a deleted workload of the same name": {objects: []client.Object{prod, blocked("prod", "web").Obj(),
			releaseOfWeb(version1, 1, v1alpha1.ChangeWorkloadSuccess).OwnedBy(blocked("prod", "web").UID("before").Obj()).Obj()},
			want: one(`"nowVersion":"` + version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]`)},
		"label of a user, and a baseline": {objects: []client.Object{prod,
			blocked("prod", "web").Label(v1alpha1.SuspendLabel, "yes").WithoutLabel(v1alpha1.VersionLabel).Obj()},
			want: one(`"nowVersion":"","hasSuccessVersion":false,"successVersion":"","suspendedAt":0,"failedPods":[]`)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, func(f *fixture) { f.opts.View = viewOf(newClient(t, interceptor.Funcs{}, tc.objects...)) })
			query, content := "", `{}`
			if tc.namespace != "" {
				query, content = "?namespace="+tc.namespace, `{"namespace":"`+tc.namespace+`"}`
			}
			expect(t, serve(f.handler(t), signedGet(query, content, tokenA, testNow)), http.StatusOK, tc.want)
		})
	}
}

func TestSuspendedAreSorted(t *testing.T) {
	reader := newClient(t, interceptor.Funcs{}, wrappers.MakeNamespace("b").Enrolled().Obj(), wrappers.MakeNamespace("a").Enrolled().Obj(),
		blocked("b", "x").Obj(), blocked("a", "z").Obj(), blocked("a", "y").Obj())
	f := newFixture(t, func(f *fixture) { f.opts.View = viewOf(reader) })
	answer := serve(f.handler(t), signedGet("", `{}`, tokenA, testNow))
	var found suspendAnswer
	if err := json.Unmarshal(answer.Body.Bytes(), &found); err != nil {
		t.Fatal(err)
	}
	var got string
	for _, d := range found.Deployments {
		got += d.Namespace + "/" + d.DeploymentName + " "
	}
	if want := "a/y a/z b/x "; got != want {
		t.Errorf("listed %q, want %q", got, want)
	}
}

// TestSuspendedWorkloads: workloads of all kinds are listed, or of one kind.
func TestSuspendedWorkloads(t *testing.T) {
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: "web", UID: "s",
		Labels: map[string]string{v1alpha1.SuspendLabel: "1700000000", v1alpha1.VersionLabel: version1}}}
	course := &unstructured.Unstructured{}
	course.SetGroupVersionKind(declaredSet(t).GroupVersionKind())
	course.SetNamespace("prod")
	course.SetName("web")
	course.SetUID("course")
	course.SetLabels(set.Labels)
	reader := newClient(t, interceptor.Funcs{}, wrappers.MakeNamespace("prod").Enrolled().Obj(), blocked("prod", "web").Obj(), set, course)
	const (
		ofDeployment = `{"apiVersion":"apps/v1","kind":"Deployment","name":"web","deploymentName":"web","namespace":"prod","nowVersion":"` +
			version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]}`
		ofSet = `{"apiVersion":"apps/v1","kind":"StatefulSet","name":"web","deploymentName":"web","namespace":"prod","nowVersion":"` + version1 +
			`","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]}`
	)
	ofDeclared := strings.Replace(ofSet, "apps/v1", "example.com/v1", 1)
	for name, test := range map[string]struct {
		query, content string
		code           int
		want           string
	}{
		"all": {"", `{}`, 200, `{"code":200,"message":"suspended workloads: 3",` +
			`"workloads":[` + ofDeployment + `,` + ofSet + `,` + ofDeclared + `]}`},
		"of a kind": {
			"?kind=statefulset", `{"kind":"statefulset"}`, 200,
			`{"code":200,"message":"suspended workloads: 2","workloads":[` + ofSet + `,` + ofDeclared + `]}`,
		},
		"of none": {
			"?namespace=prod&kind=DaemonSet", `{"kind":"DaemonSet","namespace":"prod"}`, 200,
			`{"code":200,"message":"suspended workloads: 0","workloads":[]}`,
		},
		"another kind": {
			"?kind=Job", `{"kind":"Job"}`, 400,
			`{"code":400,"message":"the parameter kind is \"Job\": workloads of this kind are not defended; ` +
				`those are apps/v1 Deployment, apps/v1 StatefulSet, apps/v1 DaemonSet, example.com/v1 StatefulSet"}`,
		},
		"another parameter": {"?name=web", `{"name":"web"}`, 400,
			`{"code":400,"message":"unknown or repeated parameter \"name\"; known: namespace, kind"}`},
		"no namespace's name": {"?namespace=a/b", `{"namespace":"a/b"}`, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			view := viewOf(reader)
			view.Kinds = workload.Defended()
			view.Kinds.Declare(declaredSet(t))
			f := newFixture(t, func(f *fixture) { f.opts.View = view })
			r := httptest.NewRequest(http.MethodGet, SuspendWorkloadPath+test.query, nil)
			sign(r, test.content, tokenA, testNow)
			answer := serve(f.handler(t), r)
			if answer.Code != test.code || test.want != "" && answer.Body.String() != test.want {
				t.Errorf("answer %d %s, want %d %s", answer.Code, answer.Body, test.code, test.want)
			}
		})
	}
}

func TestSuspendedWithoutAnswer(t *testing.T) {
	failing := errors.New("the cache is not synced")
	prod := wrappers.MakeNamespace("prod").Enrolled().Obj()
	const away = `{"code":503,"message":"the cluster can't be read now, try again"}`
	tests := map[string]struct {
		query, content string
		funcs          interceptor.Funcs
		wantCode       int
		wantBody       string
	}{
		"no namespace's name": {query: "?namespace=..%2Fx", content: `{"namespace":"../x"}`, wantCode: 400,
			wantBody: `{"code":400,"message":"the parameter namespace is not the name of a namespace: a lowercase RFC 1123 label must consist ` +
				`of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character ` +
				`(e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"}`},
		"twice": {query: "?namespace=A&namespace=prod", content: `{"namespace":"A"}`, wantCode: 400,
			wantBody: `{"code":400,"message":"unknown or repeated parameter \"namespace\"; known: namespace"}`},
		"what is meant for a rollback": {query: "?deploymentName=web&namespace=prod", content: `{"deploymentName":"web","namespace":"prod"}`,
			wantCode: 400, wantBody: `{"code":400,"message":"unknown or repeated parameter \"deploymentName\"; known: namespace"}`},
		"empty means all": {query: "?namespace=", content: `{"namespace":""}`, wantCode: 200,
			wantBody: `{"code":200,"message":"suspended deployments: 1","deployments":[{"deploymentName":"web","namespace":"prod","nowVersion":"` +
				version2 + `","hasSuccessVersion":false,"successVersion":"","suspendedAt":1700000000,"failedPods":[]}]}`},
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
				f.opts.View = viewOf(newClient(t, tc.funcs, prod, blocked("prod", "web").Obj()))
			})
			expect(t, serve(f.handler(t), signedGet(tc.query, tc.content, tokenA, testNow)), tc.wantCode, tc.wantBody)
		})
	}
}

// declaredSet returns a declared kind with the name of a native one.
func declaredSet(t *testing.T) workload.Kind {
	t.Helper()
	served := declared.Served{Kind: "StatefulSet", Namespaced: true}
	kind, problem := declared.Accept(workloadtest.CourseKind(v1alpha1.RollbackOnRequest), served)
	if problem != "" {
		t.Fatal(problem)
	}
	return declared.NewWorkloads(kind)
}
