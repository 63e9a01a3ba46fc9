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

package checks

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

var testNow = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// testRelease returns a release that is being verified, and its last batch, which is done.
func testRelease() (*v1alpha1.ChangeWorkload, *v1alpha1.ChangePod) {
	const version = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	change := &v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web--x--" + version},
		Spec:       v1alpha1.ChangeWorkloadSpec{AppName: "shop", ServiceName: "web", Reversion: version, CreateTimeUnix: testNow.Unix() - 60},
		Status:     v1alpha1.ChangeWorkloadStatus{Status: v1alpha1.ChangeWorkloadRunning, Attempt: 1},
	}
	batch := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: change.Name + "--x--3", UID: "batch"},
		Spec:       v1alpha1.ChangePodSpec{TotalBatches: 5, Last: true, CreateTimeUnix: testNow.Unix() - 5, Attempt: 1},
		Status:     v1alpha1.ChangePodStatus{Status: v1alpha1.ChangePodExecuteDone},
	}
	return change, batch
}

// TestPodHealthOfRelease: a podHealth check that a user wrote into the status of a release is ignored.
func TestPodHealthOfRelease(t *testing.T) {
	r := newRuled(t, "true", func(c *v1alpha1.PolicyCheck) { c.Cel, c.PodHealth = nil, &v1alpha1.PodHealthCheck{} })
	r.s.Release.Status.Checks = r.s.Batch.Status.Checks
	r.s.Release.Status.Checks[0].Type = v1alpha1.CheckTypePodHealth
	r.s.Batch = nil
	if step, err := r.checks.Next(t.Context(), r.s); err != nil || step.Write != nil || step.After != 0 {
		t.Errorf("%+v, error %v", step, err)
	}
}
