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
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// The checks of policies of a release as a whole, beside the checks of its order. They
// begin with a write of its release, and what they come to is put into the status by
// [NoteReleaseCheck]; what that means for the release is decided here.

// beginChecks writes down the checks that begin at a stage of the release, unless
// some did before: which there are does not change.
func (d *release) beginChecks(stage v1alpha1.PolicyStage) {
	if len(d.checksAt(stage)) > 0 {
		return
	}
	for i := range d.Begin {
		if d.Begin[i].Status.Stage == stage {
			SetCheck(&d.status.Checks, d.Begin[i].begun(d.Now), d.Now)
		}
	}
}

// checksAt are the checks of policies that began at a stage of the release.
func (d *release) checksAt(stage v1alpha1.PolicyStage) (at []*v1alpha1.CheckStatus) {
	for i := range d.status.Checks {
		if c := &d.status.Checks[i]; c.Stage == stage {
			at = append(at, c)
		}
	}
	return at
}

// waitsFor is the first check of a stage that the release waits for; nil for none.
func (d *release) waitsFor(stage v1alpha1.PolicyStage) *v1alpha1.CheckStatus {
	for _, c := range d.checksAt(stage) {
		if !c.Background && !CheckIsOver(c) {
			return c
		}
	}
	return nil
}

// preOver says that batches may be made: the order's PRE check is over, and the checks
// of policies with which the release began are.
func (d *release) preOver() bool {
	return d.orderPreOver() && d.waitsFor(v1alpha1.StageReleasePre) == nil
}

// postOver says that nothing that was asked once all pods had passed stands in the
// way of success.
func (d *release) postOver() bool {
	return d.orderPostOver() && d.waitsFor(v1alpha1.StageReleasePost) == nil
}

// FailsRelease says that a check in the status of a release fails it as a whole.
func FailsRelease(c *v1alpha1.CheckStatus) bool {
	return failedReleaseCheck(&v1alpha1.ChangeWorkloadStatus{Checks: []v1alpha1.CheckStatus{*c}}) != nil
}

// cancelWaiting gives up the checks that a release waits for, where another one has
// failed it: as with a batch, the first failure decides.
func (d *release) cancelWaiting() {
	if failedReleaseCheck(d.status) != nil {
		d.giveUp("another check failed first", func(c *v1alpha1.CheckStatus) bool { return !c.Background })
	}
}

// MayBeginChecks says that checks of policies may begin with the next write of a
// release.
func MayBeginChecks(change *v1alpha1.ChangeWorkload) bool {
	s := &change.Status
	return s.Attempt == 0 || s.ObservedRelease < change.Spec.Release ||
		IsVerified(s.Status) && s.Status != v1alpha1.ChangeWorkloadSuccess &&
			!slices.ContainsFunc(s.Checks, func(c v1alpha1.CheckStatus) bool { return c.Stage == v1alpha1.StageReleasePost })
}

// ReleaseChecksGoOn says that checks of policies of a release as a whole may still come
// to something.
func ReleaseChecksGoOn(change *v1alpha1.ChangeWorkload, now time.Time) bool {
	return IsCurrentAttempt(change) &&
		slices.ContainsFunc(change.Status.Checks, func(c v1alpha1.CheckStatus) bool { return CheckGoesOn(&c, now) })
}

// IsCurrentAttempt says that a release is at the attempt that is to be verified.
func IsCurrentAttempt(change *v1alpha1.ChangeWorkload) bool {
	return change.DeletionTimestamp == nil && change.Status.Attempt > 0 && change.Status.ObservedRelease == change.Spec.Release &&
		IsVerified(change.Status.Status)
}

// ReleaseCheckInput is what a decision about a check of a release as a whole is made
// from.
type ReleaseCheckInput struct {
	Now      time.Time
	Settings settings.Settings
	// Change is the release.
	Change *v1alpha1.ChangeWorkload
}

// ReleaseCheckPlan is what to do about it.
type ReleaseCheckPlan struct {
	// Status is set when it is to be written.
	Status *v1alpha1.ChangeWorkloadStatus
	// Events say what was done; they are emitted after the status is written.
	Events []Event
}

// NoteReleaseCheck puts what a check of a policy came to into the status of a release,
// and whether one without a verdict fails it: a setting that is changed later fails no
// release after the fact.
func NoteReleaseCheck(in ReleaseCheckInput, c v1alpha1.CheckStatus) (plan ReleaseCheckPlan) {
	known := FindCheck(in.Change.Status.Checks, c.Name)
	if known == nil || !CheckGoesOn(known, in.Now) && CheckIsOver(known) || !IsCurrentAttempt(in.Change) {
		return plan
	}
	if hasNoVerdict(&c) && c.OnSilence != v1alpha1.SilencePasses && c.OnSilence != v1alpha1.SilenceFails {
		c.OnSilence = v1alpha1.SilencePasses
		if in.Settings.SilenceFails {
			c.OnSilence = v1alpha1.SilenceFails
		}
	}
	status := in.Change.Status.DeepCopy()
	SetCheck(&status.Checks, c, in.Now)
	now := FindCheck(status.Checks, c.Name)
	if equality.Semantic.DeepEqual(known, now) {
		return plan
	}
	plan.Status = status
	if reason := eventOf(known, now); reason != "" {
		plan.Events = append(plan.Events, Event{Type: corev1.EventTypeWarning, Reason: reason,
			Message: fmt.Sprintf("version %s: check %s", in.Change.Spec.Reversion, describeCheck(now))})
	}
	return plan
}
