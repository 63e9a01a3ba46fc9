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

package observer

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// unfinished checks L1, and S7 for later pods: it returns what is yet to happen to the defended
// workloads of some namespaces whose rollouts are complete.
func (w *world) unfinished(namespaces []string, now time.Time) []string {
	var open []string
	for _, d := range w.deployments {
		version := d.Labels[v1alpha1.VersionLabel]
		if slices.Contains(namespaces, d.Namespace) && w.heldInVain(d) {
			open = append(open, fmt.Sprintf("L1: deployment %s/%s: still held: %s", d.Namespace, d.Name, d.Annotations[v1alpha1.HeldAnnotation]))
		}
		if !slices.Contains(namespaces, d.Namespace) || d.DeletionTimestamp != nil || version == "" || !rolledOut(d.Deployment) {
			continue
		}
		if why, _ := w.leftSince(d); why != "" {
			continue
		}
		var current *release
		for _, r := range w.releases {
			if r.owner == d.UID && r.Spec.Reversion == version {
				current = r
			}
		}
		name := fmt.Sprintf("L1: deployment %s/%s", d.Namespace, d.Name)
		switch {
		case current == nil:
			open = append(open, fmt.Sprintf("%s: no release of version %s", name, version))
		case !terminal(current.Status.Status):
			open = append(open, fmt.Sprintf("%s: release %s is %q, attempt %d", name, current.Name, current.Status.Status, current.Status.Attempt))
		case current.Status.Status == v1alpha1.ChangeWorkloadSuccess || current.Status.Status == v1alpha1.ChangeWorkloadSuspend:
			if left := w.leftOut(current, now); len(left) > 0 {
				open = append(open, fmt.Sprintf("%s: pods of release %s are in no batch: %s", name, current.Name, strings.Join(left, ", ")))
			}
		}
	}
	slices.Sort(open)
	return append(open, w.unbounded(namespaces, now)...)
}

// heldInVain reports whether a workload is held without a reason: it is no longer defended, or its
// rollout or its release is over.
func (w *world) heldInVain(d *workload) bool {
	if d.Annotations[v1alpha1.HeldAnnotation] == "" || d.DeletionTimestamp != nil {
		return false
	}
	why, _ := w.leftSince(d)
	over := func(r *release) bool {
		return r.owner == d.UID && r.Spec.Reversion == d.Labels[v1alpha1.VersionLabel] && terminal(r.Status.Status) &&
			strconv.FormatInt(r.Status.ObservedRelease, 10) == d.Annotations[v1alpha1.ReleaseAnnotation]
	}
	return why != "" || rolledOut(d.Deployment) || slices.ContainsFunc(slices.Collect(maps.Values(w.releases)), over)
}
