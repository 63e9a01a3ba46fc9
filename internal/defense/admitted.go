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
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// maxAdmitted bounds the templates in Admitted; newer templates displace older ones.
const maxAdmitted = 10

// Admitted are templates of a workload whose stored form differs from the form that admission saw, the newest last. The
// API server drops fields of disabled features, and later webhooks change templates, too.
type Admitted []AdmittedTemplate

// AdmittedTemplate is one template of Admitted.
type AdmittedTemplate struct {
	// Seen is the version that admission saw, Stored the version that it led to.
	Seen, Stored string
}

// ParseAdmitted reads the value of AdmittedAnnotation, without its unreadable parts.
func ParseAdmitted(value string) Admitted {
	var a Admitted
	for pair := range strings.SplitSeq(value, ",") {
		if seen, stored, ok := strings.Cut(pair, "="); ok && seen != "" && stored != "" && seen != stored {
			a = append(a, AdmittedTemplate{Seen: seen, Stored: stored})
		}
	}
	return a[max(0, len(a)-maxAdmitted):]
}

// String returns the value of AdmittedAnnotation.
func (a Admitted) String() string {
	pairs := make([]string, len(a))
	for i, t := range a {
		pairs[i] = t.Seen + "=" + t.Stored
	}
	return strings.Join(pairs, ",")
}

// LeadsTo returns the version that a template led to; the version itself where unknown.
func (a Admitted) LeadsTo(seen string) string {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i].Seen == seen {
			return a[i].Stored
		}
	}
	return seen
}

// With adds, as the newest, that a template led to another one; templates that led to the former now lead to the
// latter.
func (a Admitted) With(seen, stored string) Admitted {
	changed := a.without(func(t AdmittedTemplate) bool { return t.Seen == seen })
	for i := range changed {
		if changed[i].Stored == seen {
			changed[i].Stored = stored
		}
	}
	changed = changed.without(func(t AdmittedTemplate) bool { return t.Seen == t.Stored })
	changed = append(changed, AdmittedTemplate{Seen: seen, Stored: stored})
	return changed[max(0, len(changed)-maxAdmitted):]
}

func (a Admitted) without(which func(AdmittedTemplate) bool) Admitted {
	return slices.DeleteFunc(slices.Clone(a), which)
}

// Slipped reports whether admission missed a release about which it would have asked policies: its recorded user is
// unknown, and the operator's rollback did not make it.
func Slipped(w *workload.Workload, change *v1alpha1.ChangeWorkload) bool {
	return w != nil && w.Release() == change.Spec.Release && w.ReleasedBy() == workload.UnknownUser &&
		!rollback.ParseQuarantine(w.Annotations, time.Time{}).Restored(w.Version, w.Release())
}
