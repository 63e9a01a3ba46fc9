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

package rollback

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// BaselineRelease is the number, in the history, of the version before the first defended release.
const BaselineRelease int64 = 0

// NewestSuccess returns the version to which a workload with this version and these annotations
// would be rolled back; empty for none.
func NewestSuccess(history []workload.Revision, current string, annotations map[string]string, now time.Time) string {
	if r := NewestRevision(history, current, ParseQuarantine(annotations, now)); r != nil {
		return r.Version
	}
	return ""
}

// NewestRevision returns the newest version in a history that is neither current nor in quarantine,
// of equals the last; nil for none.
func NewestRevision(history []workload.Revision, current string, q Quarantine) *workload.Revision {
	var newest *workload.Revision
	for i := range history {
		r := &history[i]
		if r.Version != current && !q.Holds(r.Version) && (newest == nil || r.Release >= newest.Release) {
			newest = r
		}
	}
	return newest
}

// provenSuccess returns the target of a rollback that no user requested: the newest proven version
// that is not known to be bad, or the newest unproven version if there is no proven version.
func provenSuccess(history []workload.Revision, current string, q Quarantine, changes []v1alpha1.ChangeWorkload) *workload.Revision {
	var proven, unproven []workload.Revision
	for _, r := range history {
		switch {
		case knownBad(r.Version, changes):
		case r.Unproven:
			unproven = append(unproven, r)
		default:
			proven = append(proven, r)
		}
	}
	if r := NewestRevision(proven, current, q); r != nil {
		return r
	}
	return NewestRevision(unproven, current, q)
}

// knownBad reports whether a version failed, was rolled back, or had failing pods soon after its
// success.
func knownBad(version string, changes []v1alpha1.ChangeWorkload) bool {
	return slices.ContainsFunc(changes, func(c v1alpha1.ChangeWorkload) bool {
		return c.Spec.Reversion == version &&
			(c.Status.Status == v1alpha1.ChangeWorkloadSuspend || c.Status.Status == v1alpha1.ChangeWorkloadRollback ||
				meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.ConditionProven))
	})
}

// Past are the known releases of a workload. They come from a cache: a decision ignores releases
// that are not in it.
type Past struct {
	// Changes are the ChangeWorkloads of the workload.
	Changes []v1alpha1.ChangeWorkload
	// History are the successful versions of the workload that are remembered.
	History []workload.Revision
}

// Remembered reports whether a history has a version.
func Remembered(history []workload.Revision, version string) bool {
	return slices.ContainsFunc(history, func(h workload.Revision) bool { return h.Version == version })
}
