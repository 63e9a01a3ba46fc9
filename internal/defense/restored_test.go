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

package defense

import (
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// newRestored returns the release of a version that a rollback restored, of a workload that is blocked because of the
// version before. Its order waits for the server, so none of its pods is verified.
func newRestored() *world {
	w := newWorld(1).Release(4, versionA).Suspended(versionB + " 3 change-b").Complete()
	w.Pods(1, func(p *workload.Pod) { p.ReadySince = testNow.Add(-time.Minute) })
	w.in.Change.Spec.Release = 4
	w.in.Cluster = "cluster"
	w.restoredFrom(3, nil)
	return w
}

func TestLiftRestored(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world)
		lifted bool
	}{
		"it runs again":                 {func(*world) {}, true},
		"no release is verified":        {func(w *world) { w.in.Cluster = "" }, true},
		"AlterShield Server refused it": {func(w *world) { w.Settle(t); w.in.Change.Status.Status = v1alpha1.ChangeWorkloadFailed }, true},
		"its quarantine is over": {
			func(w *world) {
				w.restoredFrom(3, func(r *rollback.QuarantineReason) { r.Until = "2000-01-01T00:00:00Z" })
			}, true,
		},
		"by an undo of a user":             {func(w *world) { w.restoredFrom(3, func(r *rollback.QuarantineReason) { r.By = "admin" }) }, true},
		"its rollout goes on":              {func(w *world) { w.in.Workload.Rollout.Complete = false }, false},
		"no pod of it has finished":        {func(w *world) { w.in.Pods[0].ReadySince = testNow; w.in.Workload.MinReady = time.Hour }, false},
		"it has no pods":                   {func(w *world) { w.in.Pods = nil }, false},
		"it was released later, by a user": {func(w *world) { w.restoredFrom(2, nil) }, false},
		"the block is a user's":            {func(w *world) { delete(w.in.Workload.Annotations, v1alpha1.SuspendedByAnnotation) }, false},
		"the block is because of itself": {
			func(w *world) { w.in.Workload.Annotations[v1alpha1.SuspendedByAnnotation] = versionA + " 4 change-a" }, false,
		},
		"it fails itself under another block": {func(w *world) {
			w.in.Cluster = ""
			w.Settle(t).Suspended(versionB+" 3 change-b").Verdict("sleep-0", "fail")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRestored()
			if name == "it fails itself under another block" {
				w.in.Workload.Rollout.Complete = false
			}
			test.change(w)
			if name == "AlterShield Server refused it" {
				w.Suspended(versionB + " 3 change-b")
			}
			w.Step()
			w.Step()
			if lifted := !w.stored.Blocked(); lifted != test.lifted {
				t.Errorf("lifted: %t, want %t", lifted, test.lifted)
			}
		})
	}
}

// TestLiftRestoredInTime: the next decision is when a pod has finished.
func TestLiftRestoredInTime(t *testing.T) {
	w := newRestored()
	w.in.Workload.MinReady = time.Minute + 5*time.Second
	w.Step()
	w.Step()
	if again := DecideRelease(w.in).RequeueAfter; again <= 0 || again > 5*time.Second || !w.stored.Blocked() {
		t.Errorf("it looks again after %s; blocked: %t", again, w.stored.Blocked())
	}
}

// restoredFrom sets the workload back from this release.
func (w *world) restoredFrom(release int64, change func(*rollback.QuarantineReason)) {
	why := rollback.QuarantineReason{Cause: v1alpha1.ReasonRollbackRequested, Release: release, To: versionA}
	if change != nil {
		change(&why)
	}
	rollback.ParseQuarantine(nil, testNow).With(versionB, why).Annotate(w.in.Workload.Annotations)
}
