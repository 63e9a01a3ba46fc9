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

// Provider verifies. What it knows of a check is in the status of the subject:
// it is idempotent, and another process goes on where one died.
type Provider interface {
	// Name of the check in status.checks.
	Name() string
	// Next takes the check of a subject one step on. It returns when there is
	// something to write, or to wait for; it does not sleep. What cannot be
	// repeated is done only once its intent is in the status.
	Next(ctx context.Context, s Subject) (Step, error)
	// Forget drops what this process remembers of a subject, which is gone or
	// needs nothing any more.
	Forget(key types.NamespacedName)
}

// Subject is what is verified: a batch of pods, or a release as a whole.
type Subject struct {
	// Workload that is released; nil when it is gone.
	Workload *workload.Workload
	// Settings in force for it.
	Settings settings.Settings
	// Release is the record of the release.
	Release *v1alpha1.ChangeWorkload
	// Batch is nil for the release as a whole.
	Batch *v1alpha1.ChangePod
	// Defended says that the workload is there and defended. Nothing is
	// written about one that is not.
	Defended bool
	// Policies of the workload's namespace and of the operator's, in the order in
	// which they count; read only where a check of theirs goes on, or may begin.
	Policies []v1alpha1.DefensePolicy
	// Selected is what policies select by, of the workload; set with Policies.
	Selected policy.Workload
	// Begin are the checks that begin with the first write of the subject.
	Begin []record.BeginCheck
}

// Key is the name of the object whose status has the check.
func (s *Subject) Key() types.NamespacedName {
	if s.Batch != nil {
		return types.NamespacedName{Namespace: s.Batch.Namespace, Name: s.Batch.Name}
	}
	return types.NamespacedName{Namespace: s.Release.Namespace, Name: s.Release.Name}
}

// checks of the subject.
func (s *Subject) checks() []v1alpha1.CheckStatus {
	if s.Batch != nil {
		return s.Batch.Status.Checks
	}
	return s.Release.Status.Checks
}

// uid is that of the object whose status has the check.
func (s *Subject) uid() types.UID {
	if s.Batch != nil {
		return s.Batch.UID
	}
	return s.Release.UID
}

// isCurrent reports whether the subject is of the attempt that its release is at, and that
// the release is verified.
func (s *Subject) isCurrent() bool {
	if s.Workload != nil && s.Workload.Release() > s.Release.Spec.Release {
		return false // what it would look at is of the release that replaced it
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

// Step is what one step of a check came to.
type Step struct {
	// Write decides what is to be written, of the subject as it is by then; nil
	// when there is nothing to write.
	Write func(s Subject) Decision
	// Lasting: what was done cannot be undone, so that a change of the subject
	// meanwhile does not stand in its way. Written is called once it is written,
	// or is not to be any more, and what cannot be written now comes again with
	// the next step.
	Lasting bool
	Written func()
	// After says when to look again, where nothing is to be written; 0 for when
	// something happens.
	After time.Duration
}

// Decision is what is to be written about a subject.
type Decision struct {
	// Void: the subject is another one by now, and nothing is to be written.
	Void bool
	// Batch or Release is the new status of the subject; nil when it stays.
	Batch   *v1alpha1.ChangePodStatus
	Release *v1alpha1.ChangeWorkloadStatus
	// Events to emit once it is written.
	Events []record.Event
}

// followed is a check as its policy wants it by now.
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
