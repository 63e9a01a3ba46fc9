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

// maxAdmitted is how many templates of a workload are remembered that were stored
// otherwise than admission saw them; newer ones displace older ones.
const maxAdmitted = 10

// Admitted are templates of a workload that were stored otherwise than admission saw
// them, the newest last. The API server drops fields whose feature is off, and
// webhooks that come later change templates, too.
type Admitted []AdmittedTemplate

// AdmittedTemplate is one of them.
type AdmittedTemplate struct {
	// Seen is the version that admission saw, Stored the one that it led to.
	Seen, Stored string
}

// ParseAdmitted reads the value of AdmittedAnnotation. What cannot be read is not
// there.
func ParseAdmitted(value string) Admitted {
	var a Admitted
	for pair := range strings.SplitSeq(value, ",") {
		if seen, stored, ok := strings.Cut(pair, "="); ok && seen != "" && stored != "" && seen != stored {
			a = append(a, AdmittedTemplate{Seen: seen, Stored: stored})
		}
	}
	return a[max(0, len(a)-maxAdmitted):]
}

// String is the value of AdmittedAnnotation.
func (a Admitted) String() string {
	pairs := make([]string, len(a))
	for i, t := range a {
		pairs[i] = t.Seen + "=" + t.Stored
	}
	return strings.Join(pairs, ",")
}

// LeadsTo is what a template led to; itself where nothing is known of it.
func (a Admitted) LeadsTo(seen string) string {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i].Seen == seen {
			return a[i].Stored
		}
	}
	return seen
}

// With adds that a template led to another one, as the newest; what led to that
// template leads to the other one now.
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

// Slipped reports whether admission did not see a release that it would have asked policies
// about: whoever recorded it says that its user is not known, and no rollback of the
// operator's made it.
func Slipped(w *workload.Workload, change *v1alpha1.ChangeWorkload) bool {
	return w != nil && w.Release() == change.Spec.Release && w.ReleasedBy() == workload.UnknownUser &&
		!rollback.ParseQuarantine(w.Annotations, time.Time{}).Restored(w.Version, w.Release())
}
