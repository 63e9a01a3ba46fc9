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

package plugin

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// remembered is a version that the workload can be rolled back to.
type remembered struct {
	workload.Revision
	images []string
	since  time.Time
}

// rememberedBy returns the versions that revisions remember, the newest first.
func rememberedBy(revisions []appsv1.ControllerRevision) []remembered {
	var history []remembered
	for _, revision := range workload.History(revisions) {
		r := remembered{Revision: revision}
		i := slices.IndexFunc(revisions, func(c appsv1.ControllerRevision) bool { return c.UID == revision.UID && c.Name == revision.Name })
		r.since = revisions[i].CreationTimestamp.Time
		if template, _, err := workload.TemplateOf(&revisions[i]); err == nil {
			r.images = workload.Images(template)
		}
		history = append(history, r)
	}
	slices.SortFunc(history, func(a, b remembered) int {
		return cmp.Or(cmp.Compare(b.Release, a.Release), cmp.Compare(a.Name, b.Name))
	})
	return history
}
