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
	"cmp"
	"slices"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
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

// leadsTo is what a template led to; itself where nothing is known of it.
func (a Admitted) leadsTo(seen string) string {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i].Seen == seen {
			return a[i].Stored
		}
	}
	return seen
}

// with adds that a template led to another one, as the newest; what led to that
// template leads to the other one now.
func (a Admitted) with(seen, stored string) Admitted {
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

// Releases says that a request is a release, as far as mutation can tell: it changes
// what is stored of the template. A template that led to the one that is stored
// leads there again.
//
// Only mutation asks this, before the API server drops anything. Validation sees what
// would be stored, and compares that. So whatever somebody made of the annotation,
// and whatever becomes of a template this time, block and quarantine hold.
func (r *AdmissionRequest) Releases() bool {
	return r.released() && (r.Own || r.leadsTo() != r.Old.Version)
}

// leadsTo is the version that would be stored, as far as mutation can tell.
func (r *AdmissionRequest) leadsTo() string {
	return ParseAdmitted(r.Old.Annotations[v1alpha1.AdmittedAnnotation]).leadsTo(r.New.Version)
}

// noteSeen adds what an earlier call for this request saw, before another webhook
// changed it: applied again, the template is first that one.
func (r *AdmissionRequest) noteSeen(want *AdmissionObject) {
	seen := r.seenBefore()
	if seen == r.New.Version {
		// That call saw this template, too, and maybe noted what one before it saw.
		noted := ParseAdmitted(r.New.Annotations[v1alpha1.AdmittedAnnotation])
		if len(noted) == 0 || noted[len(noted)-1].Stored != seen {
			return
		}
		seen = noted[len(noted)-1].Seen
	}
	if seen != "" {
		want.Annotations[v1alpha1.AdmittedAnnotation] =
			ParseAdmitted(r.Old.Annotations[v1alpha1.AdmittedAnnotation]).with(seen, r.New.Version).String()
	}
}

// seenBefore is the version that an earlier call for this request saw and released;
// empty where there was none. It left the marks of a release, which no client sends.
// One that forges them only spoils what is remembered of its own workload.
func (r *AdmissionRequest) seenBefore() string {
	_, processed := r.New.Labels[v1alpha1.DefenseStatusLabel]
	seen := r.New.Labels[v1alpha1.VersionLabel]
	release := NextRelease(ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]))
	if processed || seen == r.Old.Labels[v1alpha1.VersionLabel] || !r.Unstamped && seen != r.New.TemplateLabels[v1alpha1.VersionLabel] ||
		ParseRelease(r.New.Annotations[v1alpha1.ReleaseAnnotation]) != release || r.New.Annotations[v1alpha1.ReleasedByAnnotation] != r.releaser() {
		return ""
	}
	return seen
}

// releaser names the user of a request.
func (r *AdmissionRequest) releaser() string { return cmp.Or(cutAtRune(r.User, maxUser), UnknownUser) }
