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
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// maxQuarantined is the largest number of versions in the quarantine of a workload; newer versions
// displace older ones.
const maxQuarantined = 10

// Quarantine has the versions of a workload that were rolled back, the oldest first. Only an
// override releases them again.
type Quarantine struct {
	Versions []string
	Reasons  map[string]QuarantineReason
	// over are the versions whose quarantine is over; they may be released again.
	over []string
}

// QuarantineReason is when and why a version was rolled back, as in QuarantineReasonAnnotation.
type QuarantineReason struct {
	// Time is when, as RFC 3339.
	Time string `json:"time"`
	// Pod is the first pod that failed or was stuck, if any, and Container its container that did.
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	// Cause is the reason of the condition RolledBack. Reason, also one word, is the cause of the
	// stuck pod, or its verdict.
	Cause   string `json:"cause"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Release is the number of the release that was rolled back, and To the
	// version that was restored.
	Release int64  `json:"release"`
	To      string `json:"to"`
	// Until is when the quarantine ends, as RFC 3339 and by the clock of the API server; empty for
	// never. Times is how often the version was rolled back because it never started.
	Until string `json:"until,omitempty"`
	Times int    `json:"times,omitempty"`
	// Overridden is the user who released the version by an override, which ended its quarantine.
	Overridden string `json:"overridden,omitempty"`
	// By is the user who undid the release; empty for the operator.
	By string `json:"by,omitempty"`
}

// String returns one line for a message.
func (r QuarantineReason) String() string {
	parts := []string{r.Cause}
	if r.Pod != "" {
		parts = append(parts, "pod "+r.Pod)
	}
	if r.Container != "" {
		parts = append(parts, "container "+r.Container)
	}
	return strings.Join(append(parts, wording.NonEmpty(r.Reason, r.Message)...), ": ")
}

// ParseQuarantine reads the quarantine from the annotations of a workload. A version without a
// reason is in quarantine, too. A version whose quarantine is over is not, but its reason is kept.
func ParseQuarantine(annotations map[string]string, now time.Time) Quarantine {
	q := Quarantine{Reasons: map[string]QuarantineReason{}}
	_ = json.Unmarshal([]byte(annotations[v1alpha1.QuarantineReasonAnnotation]), &q.Reasons) // no reason is better than no quarantine
	if q.Reasons == nil {
		q.Reasons = map[string]QuarantineReason{}
	}
	for _, version := range listed(annotations[v1alpha1.QuarantinedAnnotation]) {
		if q.Reasons[version].isOver(now) {
			q.over = append(q.over, version)
		} else {
			q.Versions = append(q.Versions, version)
		}
	}
	return q
}

// listed returns the last versions of a comma separated list, each once. The operator lists at most
// maxQuarantined; a user may write a list of any length.
func listed(list string) []string {
	var versions []string
	seen := map[string]bool{"": true}
	for version := range strings.SplitSeq(list, ",") {
		if version = strings.TrimSpace(version); !seen[version] {
			seen[version] = true
			versions = append(versions, version)
		}
	}
	return versions[max(0, len(versions)-maxQuarantined):]
}

// isOver reports whether a quarantine is over.
func (r QuarantineReason) isOver(now time.Time) bool {
	until, err := time.Parse(time.RFC3339, r.Until)
	return err == nil && !until.After(now)
}

// times returns how often a version was rolled back because it never started.
func (q Quarantine) times(version string) int { return q.Reasons[version].Times }

// Holds reports whether a version is in quarantine.
func (q Quarantine) Holds(version string) bool { return slices.Contains(q.Versions, version) }

// Reason returns why a version is in quarantine, if it is known.
func (q Quarantine) Reason(version string) (QuarantineReason, bool) {
	r, ok := q.Reasons[version]
	return r, ok && q.Holds(version)
}

// With puts a version into quarantine as the newest one.
func (q Quarantine) With(version string, reason QuarantineReason) Quarantine {
	changed := q.Without(version)
	changed.Versions = append(changed.Versions, version)
	reason.Reason, reason.Message = wording.Printable(reason.Reason), wording.Printable(reason.Message)
	changed.Reasons[version] = reason
	if over := len(changed.Versions) - maxQuarantined; over > 0 {
		changed.Versions = changed.Versions[over:]
	}
	return changed
}

// Overridden reports whether an override ended the quarantine of a version.
func (q Quarantine) Overridden(version string) bool { return q.OverriddenBy(version) != "" }

// OverriddenBy returns the user who released a version by an override; empty for none.
func (q Quarantine) OverriddenBy(version string) string { return q.Reasons[version].Overridden }

// Restored reports whether a rollback or an undo made the release of this version with this number.
func (q Quarantine) Restored(version string, release int64) bool {
	for _, r := range q.Reasons {
		if r.To == version && r.Release+1 == release {
			return true
		}
	}
	return false
}

// Override ends the quarantine of a version, and records the user.
func (q Quarantine) Override(version, user string) Quarantine {
	reason := q.Reasons[version]
	changed := q.Without(version)
	reason.Overridden = user
	changed.Reasons[version] = reason
	return changed
}

// Without ends the quarantine of a version.
func (q Quarantine) Without(version string) Quarantine {
	changed := Quarantine{Reasons: map[string]QuarantineReason{}}
	other := func(v string) bool { return v == version }
	changed.Versions = slices.DeleteFunc(slices.Clone(q.Versions), other)
	changed.over = slices.DeleteFunc(slices.Clone(q.over), other)
	for v, r := range q.Reasons {
		if v != version && (changed.Holds(v) || slices.Contains(changed.over, v) || r.Overridden != "") {
			changed.Reasons[v] = r
		}
	}
	return changed
}

// Annotate writes the quarantine into annotations. It keeps the last of the versions that were
// overridden, and of the versions whose quarantine is over.
func (q Quarantine) Annotate(annotations map[string]string) {
	over := q.over[max(0, len(q.over)+len(q.Versions)-maxQuarantined):]
	kept := map[string]QuarantineReason{}
	var overridden []string
	for v, r := range q.Reasons {
		switch {
		case q.Holds(v) || slices.Contains(over, v):
			kept[v] = r
		case r.Overridden != "":
			overridden = append(overridden, v)
		}
	}
	slices.SortFunc(overridden, func(a, b string) int {
		return cmp.Or(cmp.Compare(q.Reasons[b].Release, q.Reasons[a].Release), cmp.Compare(a, b))
	})
	for _, v := range overridden[:min(len(overridden), maxQuarantined)] {
		kept[v] = q.Reasons[v]
	}
	set := func(key, value string, there bool) {
		if there {
			annotations[key] = value
		} else {
			delete(annotations, key)
		}
	}
	reasons, err := json.Marshal(kept)
	listed := slices.Concat(over, q.Versions)
	set(v1alpha1.QuarantinedAnnotation, strings.Join(listed, ","), len(listed) > 0)
	set(v1alpha1.QuarantineReasonAnnotation, string(reasons), len(kept) > 0 && err == nil)
}

// RolledBack returns why a release was rolled back, and whether it was.
func RolledBack(w *workload.Workload, change *v1alpha1.ChangeWorkload) (QuarantineReason, bool) {
	if w == nil {
		return QuarantineReason{}, false
	}
	// A quarantine that is over counts, too.
	r, ok := ParseQuarantine(w.Annotations, time.Time{}).Reason(change.Spec.Reversion)
	switch r.Cause {
	case v1alpha1.ReasonNeverStarted, v1alpha1.ReasonVerificationFailed, v1alpha1.ReasonRollbackRequested:
		return r, ok && r.Release == change.Spec.Release
	default: // not written by the operator
		return r, false
	}
}

// DescribeQuarantine returns when and why a version was rolled back.
func DescribeQuarantine(version string, q Quarantine) string {
	r, ok := q.Reasons[version]
	if !ok {
		return fmt.Sprintf("version %s was rolled back", version)
	}
	if r.Until != "" {
		return fmt.Sprintf("version %s was rolled back at %s and is in quarantine until %s: %s", version, r.Time, r.Until, r)
	}
	return fmt.Sprintf("version %s was rolled back at %s: %s", version, r.Time, r)
}

// Unquarantined is the result of a request by UnquarantineAnnotation.
type Unquarantined struct {
	// Asked is the value of the annotation, shortened.
	Asked string `json:"asked"`
	// Ended are the versions whose quarantine ended; may be empty.
	Ended []string `json:"ended,omitempty"`
	User  string   `json:"user"`
	// ResourceVersion is the resource version of the workload at the decision. Admission uses it to
	// recognize an earlier call for the same request.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// ParseUnquarantined reads the value of UnquarantinedAnnotation.
func ParseUnquarantined(value string) (Unquarantined, bool) {
	var u Unquarantined
	return u, json.Unmarshal([]byte(value), &u) == nil && u.Asked != ""
}

// String returns the value of UnquarantinedAnnotation.
func (u Unquarantined) String() string {
	data, err := json.Marshal(u)
	if err != nil {
		return "" // strings only
	}
	return string(data)
}

// Describe returns the result in one line.
func (u Unquarantined) Describe() string {
	if len(u.Ended) == 0 {
		return fmt.Sprintf("%s asked to end the quarantine of %q, which is not in quarantine", u.User, u.Asked)
	}
	return fmt.Sprintf("%s ended the quarantine of %s", u.User, strings.Join(u.Ended, ", "))
}

// Explain sets what failed in a release.
func (r *QuarantineReason) Explain(failed *v1alpha1.ChangeWorkload) {
	if pods := failed.Status.DefenseCheckFailPods; len(pods) > 0 {
		r.Pod, r.Reason, r.Message = pods[0].Pod, pods[0].Verdict, wording.Brief(pods[0].Message)
	} else {
		r.Message = wording.Brief(record.ConditionMessage(&failed.Status, v1alpha1.ConditionVerified))
	}
}

// Unquarantine ends the quarantine of a version, or of AllVersions, as an override by that user
// would.
func (q Quarantine) Unquarantine(asked, user string) (Quarantine, Unquarantined) {
	asked = strings.TrimSpace(asked)
	done := Unquarantined{Asked: wording.Cut(asked), User: user}
	for _, version := range q.Versions {
		if asked == version || asked == AllVersions {
			done.Ended = append(done.Ended, version)
		}
	}
	for _, version := range done.Ended {
		q = q.Override(version, user)
	}
	return q, done
}

// AllVersions is the value of UnquarantineAnnotation that ends the quarantine of all versions.
const AllVersions = "all"
