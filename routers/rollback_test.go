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
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func signedPut(content string, at time.Time) *http.Request {
	r := httptest.NewRequest(http.MethodPut, RollbackPath, strings.NewReader(content))
	sign(r, content, tokenA, at)
	return r
}

func TestRollback(t *testing.T) {
	const web = `{"namespace":"prod","deploymentName":"web"}`
	for name, tc := range map[string]struct {
		content  string
		err      error
		want     string // that is asked for
		wantCode int
		wantBody string
	}{
		"the newest success": {
			web, nil, "Deployment.apps prod/web ", 202, `{"code":202,"message":"deployment prod/web is rolled back to version v1"}`,
		},
		"a version": {
			`{"namespace":"prod","deploymentName":"web","version":"v0"}`, nil, "Deployment.apps prod/web v0", 202,
			`{"code":202,"message":"deployment prod/web is rolled back to version v1"}`,
		},
		"unknown": {
			web, cluster.ErrNoWorkload, "Deployment.apps prod/web ", 404, `{"code":404,"message":"no deployment prod/web is defended"}`,
		},
		"refused": {web, &cluster.RefusedError{Why: "because"}, "Deployment.apps prod/web ", 409, `{"code":409,"message":"because"}`},
		"repeated": {
			web, cluster.ErrRepeated, "Deployment.apps prod/web ", 409,
			`{"code":409,"message":"a request of this time or a later one was accepted already"}`,
		},
		"too many": {
			web, &cluster.TooManyError{Namespace: "prod", After: 1500 * time.Millisecond}, "Deployment.apps prod/web ", 429,
			`{"code":429,"message":"60 rollbacks were requested in namespace prod within a minute: try again in 2s"}`,
		},
		"away": {
			web, errors.New("no route to host"), "Deployment.apps prod/web ", 503,
			`{"code":503,"message":"the cluster can't be reached now, try again"}`,
		},
		"no JSON": {
			`web`, nil, "", 400,
			`{"code":400,"message":"the body is not {\"namespace\",\"deploymentName\",\"version\"}: ` +
				`invalid character 'w' looking for beginning of value"}`,
		},
		"a field of another": {
			`{"namespace":"prod","deploymentName":"web","nodeId":"1"}`, nil, "", 400,
			`{"code":400,"message":"the body is not {\"namespace\",\"deploymentName\",\"version\"}: json: unknown field \"nodeId\""}`,
		},
		"two":          {web + web, nil, "", 400, `{"code":400,"message":"there is more than one JSON object in the body"}`},
		"no namespace": {`{"deploymentName":"web"}`, nil, "", 400, "namespace is not the name of a namespace"},
		"no name":      {`{"namespace":"prod","deploymentName":"../x"}`, nil, "", 400, "deploymentName is not the name of a deployment"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			f := newFixture(t, func(f *fixture) {
				f.request = func(key workload.Key, version string, at time.Time) (string, error) {
					asked = key.String() + " " + version
					if !at.Equal(testNow) {
						t.Errorf("of %s, want %s: the time that is signed", at, testNow)
					}
					return "v1", tc.err
				}
			})
			h := f.handler(t)
			w := serve(h, signedPut(tc.content, testNow))
			if diff := cmp.Diff(tc.want, asked); diff != "" {
				t.Errorf("asked for -want +got:\n%s", diff)
			}
			if w.Code != tc.wantCode || !strings.Contains(w.Body.String(), tc.wantBody) {
				t.Errorf("answer %d %s, want %d %s", w.Code, w.Body, tc.wantCode, tc.wantBody)
			}
			// A request that was not handled may come again.
			asked = ""
			again := serve(h, signedPut(tc.content, testNow))
			if wanted := tc.wantCode == http.StatusServiceUnavailable || tc.wantCode == http.StatusTooManyRequests; (asked != "") != wanted ||
				(again.Code == http.StatusUnauthorized) == wanted {
				t.Errorf("repeated: asked for %q, answer %d", asked, again.Code)
			}
		})
	}
}

// TestRollbackOfAWorkload: the request names the kind, which must be defended.
func TestRollbackOfAWorkload(t *testing.T) {
	const set = `{"namespace":"prod","apiVersion":"apps/v1","kind":"StatefulSet","name":"db"}`
	for name, tc := range map[string]struct {
		content  string
		err      error
		want     string // that is asked for
		wantCode int
		wantBody string
	}{
		"the newest success": {
			set, nil, "StatefulSet.apps prod/db ", 202, `{"code":202,"message":"statefulset prod/db is rolled back to version v1"}`,
		},
		"a version": {`{"namespace":"prod","apiVersion":"apps/v1","kind":"DaemonSet","name":"log","version":"v0"}`, nil,
			"DaemonSet.apps prod/log v0", 202, `{"code":202,"message":"daemonset prod/log is rolled back to version v1"}`},
		"unknown": {
			set, cluster.ErrNoWorkload, "StatefulSet.apps prod/db ", 404, `{"code":404,"message":"no statefulset prod/db is defended"}`,
		},
		"another kind": {
			`{"namespace":"prod","apiVersion":"batch/v1","kind":"Job","name":"x"}`, nil, "", 400,
			"workloads of this kind are not defended; those are apps/v1 Deployment, apps/v1 StatefulSet",
		},
		"a declared kind": {
			`{"namespace":"prod","apiVersion":"example.com/v1","kind":"StatefulSet","name":"db"}`, nil, "StatefulSet.example.com prod/db ", 202,
			`{"code":202,"message":"statefulset prod/db is rolled back to version v1"}`,
		},
		"of the group of another": {
			`{"namespace":"prod","apiVersion":"apps.kruise.io/v1beta1","kind":"StatefulSet","name":"x"}`, nil, "", 400,
			"workloads of this kind are not defended",
		},
		"no name": {
			`{"namespace":"prod","apiVersion":"apps/v1","kind":"StatefulSet"}`, nil, "", 400, "name is not the name of a workload",
		},
		"the body of the other": {`{"namespace":"prod","deploymentName":"web"}`, nil, "", 400, "unknown field"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			f := newFixture(t, func(f *fixture) {
				f.opts.View.Kinds = workload.Defended()
				f.opts.View.Kinds.Declare(declaredSet(t))
				f.request = func(key workload.Key, version string, _ time.Time) (string, error) {
					asked = key.String() + " " + version
					return "v1", tc.err
				}
			})
			r := httptest.NewRequest(http.MethodPut, RollbackWorkloadPath, strings.NewReader(tc.content))
			sign(r, tc.content, tokenA, testNow)
			w := serve(f.handler(t), r)
			if asked != tc.want || w.Code != tc.wantCode || !strings.Contains(w.Body.String(), tc.wantBody) {
				t.Errorf("asked for %q, answer %d %s, want %q, %d %s", asked, w.Code, w.Body, tc.want, tc.wantCode, tc.wantBody)
			}
		})
	}
	// A body that is signed for one path is refused at the other.
	f := newFixture(t, func(f *fixture) { f.opts.View.Kinds = workload.Defended() })
	r := httptest.NewRequest(http.MethodPut, RollbackPath, strings.NewReader(set))
	sign(r, set, tokenA, testNow)
	if w := serve(f.handler(t), r); w.Code != http.StatusBadRequest {
		t.Errorf("a request about a workload is taken at the path of Deployments: %d %s", w.Code, w.Body)
	}
}
