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
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Blocked says since when releases of a workload are blocked, and why.
type Blocked struct {
	Since *metav1.Time `json:"since,omitempty"`
	// ByUser: a user set the block. Otherwise Version and Release name the release that failed.
	ByUser  bool   `json:"byUser,omitempty"`
	Version string `json:"version,omitempty"`
	Release int64  `json:"release,omitempty"`
	// Because is what failed.
	Because string `json:"because,omitempty"`
}

// blocked returns the block of a workload; nil for none.
func (s *snapshot) blocked() *Blocked {
	since, blocked := s.workload.Labels[v1alpha1.SuspendLabel]
	if !blocked {
		return nil
	}
	seconds, _ := strconv.ParseInt(since, 10, 64) // without a time where a user set another value
	b := &Blocked{Since: unixTime(seconds)}
	version, release, _ := record.ParseBlockedBy(s.workload.Annotations)
	b.Version, b.Release, b.ByUser = version, workload.ParseRelease(release), version == ""
	if !b.ByUser {
		b.Because = s.whatFailed(b)
	}
	return b
}

// whatFailed returns why the release of a block failed.
func (s *snapshot) whatFailed(b *Blocked) (why string) {
	for i := range s.changes {
		c := &s.changes[i]
		for j := range c.Status.Conditions {
			cond := &c.Status.Conditions[j]
			failed := cond.Type == v1alpha1.ConditionVerified && cond.Status == metav1.ConditionFalse
			if failed && c.Spec.Reversion == b.Version {
				return cmp.Or(record.Detail(cond), cond.Message)
			}
		}
		for _, p := range c.Status.PreviousReleases {
			if p.Release == b.Release {
				why = cmp.Or(why, p.Message)
			}
		}
	}
	return why
}

// halted reports whether the operator halted the rollout.
func (s *snapshot) halted() bool {
	return s.workload.Paused && s.workload.Annotations[v1alpha1.HaltedAnnotation] != ""
}

// goodVersion returns the version that a rollback goes to; nil for none.
func (s *snapshot) goodVersion() *remembered {
	version := rollback.NewestSuccess(revisions(s.history), s.workload.RecordedVersion(), s.workload.Annotations, s.now)
	i := slices.IndexFunc(s.history, func(r remembered) bool { return r.Version == version })
	if i < 0 {
		return nil
	}
	return &s.history[i]
}

// releaserOf returns the user of a release, as far as it is known.
func (s *snapshot) releaserOf(number int64, version string) string {
	for i := range s.changes {
		c := &s.changes[i]
		if c.Spec.Reversion == version && c.Spec.Release == number && c.Status.ReleasedBy != "" {
			return c.Status.ReleasedBy
		}
		for _, p := range c.Status.PreviousReleases {
			if p.Release == number && p.ReleasedBy != "" {
				return p.ReleasedBy
			}
		}
	}
	if number > 0 && number == s.workload.Release() {
		return s.workload.ReleasedBy()
	}
	return ""
}

// Quarantined is a version whose release is denied.
type Quarantined struct {
	Version string `json:"version"`
	// Time is the beginning of the quarantine, and Until its end by time; absent for never.
	Time  *metav1.Time `json:"time,omitempty"`
	Until *metav1.Time `json:"until,omitempty"`
	// Cause is NeverStarted, VerificationFailed or Requested; Because says more.
	Cause   string `json:"cause,omitempty"`
	Because string `json:"because,omitempty"`
	// Release is the number of the failed release, To the restored version, and By the user who undid the release; empty for the
	// operator.
	Release int64  `json:"release,omitempty"`
	To      string `json:"to,omitempty"`
	By      string `json:"by,omitempty"`
}

// quarantined returns the versions in quarantine, the newest last.
func (s *snapshot) quarantined() (all []Quarantined) {
	q := rollback.ParseQuarantine(s.workload.Annotations, s.now)
	for _, version := range defense.DeniedBy(s.workload.Labels, s.workload.Annotations, s.now).Quarantine {
		of := Quarantined{Version: version}
		if r, ok := q.Reason(version); ok {
			of.Time, of.Until, of.Cause, of.Because = parsedTime(r.Time), parsedTime(r.Until), r.Cause, r.String()
			of.Release, of.To, of.By = r.Release, r.To, r.By
		}
		all = append(all, of)
	}
	return all
}

func describeQuarantine(q *Quarantined, now time.Time) string {
	text := cmp.Or(q.Because, "why is not known")
	if q.Until != nil {
		return text + "; in quarantine for " + age(q.Until.Sub(now)) + " more"
	}
	return text + "; in quarantine until a user ends it"
}
