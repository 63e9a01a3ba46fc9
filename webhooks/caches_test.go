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

package webhooks

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// TestPast undoes a release of sleepVersion, which failed and blocks the workload, to
// repairVersion, which succeeded before.
func TestPast(t *testing.T) {
	blocked := strings.Replace(released(labelled(v1alpha1.SuspendLabel, "1700000000")), `"annotations":{`,
		`"uid":"u","annotations":{"`+v1alpha1.SuspendedByAnnotation+`":"`+sleepVersion+` 1",`, 1)
	back := strings.ReplaceAll(blocked, `"test":"123"`, `"test":"1234"`)
	good := rollback.Past{
		Changes: []v1alpha1.ChangeWorkload{{
			Spec:   v1alpha1.ChangeWorkloadSpec{Reversion: sleepVersion, Release: 1},
			Status: v1alpha1.ChangeWorkloadStatus{Status: v1alpha1.ChangeWorkloadSuspend, ObservedRelease: 1},
		}},
		History: []workload.Revision{{Name: "r", Version: repairVersion}},
	}
	for name, test := range map[string]struct {
		past         func(context.Context, string, types.UID) (rollback.Past, error)
		after        string
		back, logged bool
		asked        bool
		ways         bool // the denial lists undos
	}{
		"known": {
			past:  func(context.Context, string, types.UID) (rollback.Past, error) { return good, nil },
			after: back, back: true, asked: true,
		},
		"a cache that is not filled": {past: func(ctx context.Context, _ string, _ types.UID) (rollback.Past, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				return rollback.Past{}, nil
			}
			return rollback.Past{}, context.DeadlineExceeded
		}, after: back, asked: true, logged: true},
		"a cache that lacks the record": {
			past: func(context.Context, string, types.UID) (rollback.Past, error) {
				return rollback.Past{History: good.History}, nil
			},
			after: back, asked: true, ways: true,
		},
		"no cache": {after: back},
		"no release": {
			past:  func(context.Context, string, types.UID) (rollback.Past, error) { return good, errors.New("asked") },
			after: strings.Replace(blocked, `"replicas":5`, `"replicas":6`, 1),
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked, logged := false, false
			o := Options{Self: self, Log: funcr.New(func(string, string) { logged = true }, funcr.Options{})}
			if test.past != nil {
				o.Past = func(ctx context.Context, namespace string, uid types.UID) (rollback.Past, error) {
					if asked = true; namespace != "default" || uid != "u" {
						t.Errorf("asked about %s in %s", uid, namespace)
					}
					return test.past(ctx, namespace, uid)
				}
			}
			mutated := makeRequest(blocked, test.after)
			response := review(t, mutatingOf(o, deployments), mutated)
			if !response.Allowed {
				t.Fatalf("mutation denied: %+v", response)
			}
			quarantined := strings.Contains(string(response.Patch), `quarantined`) && strings.Contains(string(response.Patch), sleepVersion)
			if quarantined != test.back || asked != test.asked || logged != test.logged {
				t.Errorf("quarantined %t, asked %t, logged %t: %s", quarantined, asked, logged, response.Patch)
			}
			if response.Patch != nil {
				mutated.Object.Raw = applyPatch(t, string(mutated.Object.Raw), response.Patch)
			}
			verdict := review(t, newValidating(o, deployments), mutated)
			want := test.back || !test.asked && test.past != nil
			if verdict.Allowed != want || strings.Contains(verdict.Result.Message, ". To undo the release: ") != test.ways {
				t.Errorf("validation: %t, want %t, %q", verdict.Allowed, want, verdict.Result.Message)
			}
		})
	}
}
