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

package checks

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Provider verifies. It keeps the state of a check in the status of the subject:
// it is idempotent, and another process continues where one died.
type Provider interface {
	// Name of the check in status.checks.
	Name() string
	// Next takes the check of a subject one step further. It returns when there is
	// something to write, or to wait for; it does not sleep. It acts only once the
	// intent is in the status if the act cannot be repeated.
	Next(ctx context.Context, s Subject) (Step, error)
	// Forget drops the memory of this process about a subject that is gone or
	// needs no more steps.
	Forget(key types.NamespacedName)
}

// Subject is a batch of pods, or a release as a whole, that is verified.
type Subject struct {
	// Workload is nil when it is gone.
	Workload *workload.Workload
	// Settings in force for the workload.
	Settings settings.Settings
	// Release is the record of the release.
	Release *v1alpha1.ChangeWorkload
	// Batch is nil for the release as a whole.
	Batch *v1alpha1.ChangePod
	// Defended reports whether the workload exists and is defended. Otherwise nothing is
	// written about it.
	Defended bool
	// Policies of the workload's namespace and of the operator's namespace, in the order in
	// which they count; read only if one of their checks is open, or may begin.
	Policies []v1alpha1.DefensePolicy
	// Selected has the properties of the workload that policies select by; set with Policies.
	Selected policy.Workload
	// Begin lists the checks that begin with the first write of the subject.
	Begin []record.BeginCheck
}

// Key is the name of the object whose status has the check.
func (s *Subject) Key() types.NamespacedName {
	if s.Batch != nil {
		return types.NamespacedName{Namespace: s.Batch.Namespace, Name: s.Batch.Name}
	}
	return types.NamespacedName{Namespace: s.Release.Namespace, Name: s.Release.Name}
}

func (s *Subject) checks() []v1alpha1.CheckStatus {
	if s.Batch != nil {
		return s.Batch.Status.Checks
	}
	return s.Release.Status.Checks
}

// uid returns the UID of the object whose status has the check.
func (s *Subject) uid() types.UID {
	if s.Batch != nil {
		return s.Batch.UID
	}
	return s.Release.UID
}

// isCurrent reports whether the subject belongs to the current attempt of its release, and
// the release is being verified.
func (s *Subject) isCurrent() bool {
	if s.Workload != nil && s.Workload.Release() > s.Release.Spec.Release {
		return false // the workload has a newer release
	}
	if s.Batch != nil {
		return record.IsCurrentBatch(s.Release, s.Batch)
	}
	return record.IsCurrentAttempt(s.Release)
}

// isOpen reports whether the subject may still wait for a check.
func (s *Subject) isOpen() bool {
	if s.Batch != nil {
		return s.Batch.Status.Status != v1alpha1.ChangePodExecuteDone
	}
	return record.IsVerified(s.Release.Status.Status) && s.Release.Status.Status != v1alpha1.ChangeWorkloadSuccess
}

// Step is the result of one step of a check.
type Step struct {
	// Write decides what to write from the latest state of the subject; nil when
	// there is nothing to write.
	Write func(s Subject) Decision
	// Lasting: the act cannot be undone, so it is written even if the subject changed
	// meanwhile. A write that fails is repeated with the next step. Written is called
	// once the write succeeded, or is no longer needed.
	Lasting bool
	Written func()
	// After is the time until the next step if nothing is to be written; 0 for the
	// next change.
	After time.Duration
}

// Decision is a write about a subject.
type Decision struct {
	// Void: the subject was replaced, and nothing is to be written.
	Void bool
	// Batch or Release is the new status of the subject; nil when it stays.
	Batch   *v1alpha1.ChangePodStatus
	Release *v1alpha1.ChangeWorkloadStatus
	// Events to emit after the write.
	Events []record.Event
}

// followed returns the status of a check, adapted to the current policy.
func followed(c *v1alpha1.CheckStatus, of *policy.Check, s *Subject) v1alpha1.CheckStatus {
	f := *c.DeepCopy()
	if f.StartTime != nil {
		f.DueTime, f.Deadline = stamp(f.StartTime.Add(of.Due())), stamp(f.StartTime.Add(of.Deadline))
	}
	if s.isOpen() && f.Background != of.Background {
		f.Background, f.Phase = of.Background, v1alpha1.CheckRunning
		if of.Background {
			f.Phase = v1alpha1.CheckWatching
		}
	}
	return f
}

// namesOf returns the names of pods that still count.
func namesOf(pods []workload.Pod) (names []string) {
	for i := range pods {
		if !isGone(&pods[i]) {
			names = append(names, pods[i].Name)
		}
	}
	return names
}
