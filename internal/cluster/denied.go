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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// firstDenialRetry and maxDenialRetry bound the wait before a denied write is
	// tried again: as long as it has been denied.
	firstDenialRetry = time.Second
	maxDenialRetry   = 5 * time.Minute
	// maxDenials is the number of remembered denials, and denialMemory how long one
	// is remembered without another try.
	maxDenials   = 4096
	denialMemory = 3 * maxDenialRetry
)

// denial returns the message of a policy of the cluster that denied a request; ok is
// false for every other error. The policy chooses the code of its answer, so a denial
// may look like an object that is gone, a conflict or a patch that does not apply.
// Only the message differs: it begins with words of the API server, in its packages
// apiserver/pkg/admission/plugin/webhook/errors and .../plugin/policy/validating.
func denial(err error) (message string, ok bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "", false
	}
	s := status.Status()
	if strings.HasPrefix(s.Message, `admission webhook "`) && strings.Contains(s.Message, `" denied the request`) {
		return s.Message, true
	}
	if s.Details == nil {
		return "", false
	}
	for _, c := range s.Details.Causes {
		if strings.HasPrefix(c.Message, "ValidatingAdmissionPolicy '") && strings.Contains(c.Message, "' denied request: ") {
			return s.Message, true
		}
	}
	return "", false
}

// Refusal returns why the API server refused a write, if only a user can change that:
// a policy denied it, a right is missing, a quota is used up, or the object would be
// invalid.
func Refusal(err error) (message string, ok bool) {
	if message, ok := denial(err); ok {
		return message, true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return "", false
	}
	s := status.Status()
	switch {
	case s.Code == http.StatusForbidden, s.Code == http.StatusRequestEntityTooLarge,
		s.Code == http.StatusUnprocessableEntity && s.Details != nil && len(s.Details.Causes) > 0:
		return s.Message, true
	default:
		return "", false
	}
}

// IgnoreGone is client.IgnoreNotFound, but returns a denial with that code.
func IgnoreGone(err error) error {
	if _, denied := denial(err); denied {
		return err
	}
	return client.IgnoreNotFound(err)
}

// Act is a write for a release, as a condition and an event name it when it is denied.
type Act struct {
	// write is its name in status.deniedWrite.
	write string
	// what is its description, as in "could not ...".
	what string
}

// The writes for a release.
var (
	ActBlock    = Act{defense.WriteBlock, "block the workload"}
	ActLift     = Act{defense.WriteLift, "lift the block of the workload"}
	ActResume   = Act{defense.WriteResume, "resume the workload"}
	ActPace     = Act{defense.WritePace, "change the pace of the rollout, which waits for its verdicts"}
	ActBatch    = Act{defense.WriteBatch, "create a batch"}
	ActRollBack = Act{defense.WriteRollback, "roll the workload back"}
	ActRecord   = Act{defense.WriteRecord, "record the release"}
	ActLabel    = Act{defense.WriteRecord, "label the pods of the release"}
	ActHandBack = Act{defense.WriteRecord, "give the fields of the template back to the field manager that applies the workload"}
	ActRequest  = Act{defense.WriteRequest, "accept the request for a rollback"}
)

// DeniedError is a write that was refused for a reason that only a user can
// change. It is retried automatically.
type DeniedError struct {
	act   Act
	cause error
	// message is the message of the policy.
	message string
	// first is whether the previous try was not denied. Only then an event is
	// emitted.
	first bool
	// again is the time until the next try.
	again time.Duration
}

// Error implements error.
func (e *DeniedError) Error() string { return fmt.Sprintf("%s: %v", e.act.what, e.cause) }

// Unwrap returns the answer of the API server.
func (e *DeniedError) Unwrap() error { return e.cause }

// Describe says what could not be done, and why.
func (e *DeniedError) Describe() string { return defense.DescribeDenial(e.act.what, e.message) }

// Log logs a denial once, with its subject; first is false if it was logged before.
func (e *DeniedError) Log(ctx context.Context, about ...any) (first bool) {
	if e.first {
		log.FromContext(ctx).Info("a write is denied, trying again", append(about, "write", e.act.what, "cause", e.cause.Error())...)
	}
	return e.first
}

type denialKey struct {
	workload types.UID
	release  int64
	act      Act
}

type deniedWrite struct {
	since, tried time.Time
	err          DeniedError
}

func newDenials(c clock.PassiveClock) *denials {
	return &denials{clock: c, known: cache.NewLRUExpireCacheWithClock(maxDenials, c)}
}

// try writes, unless the same was denied just now. A denial is a [DeniedError].
func (d *denials) try(w *workload.Workload, a Act, write func() error) error {
	key := denialKey{w.UID, w.Release(), a}
	now := d.clock.Now()
	before := (*deniedWrite)(nil)
	if value, ok := d.known.Get(key); ok {
		before, _ = value.(*deniedWrite)
	}
	if before != nil {
		if left := before.tried.Add(before.err.again).Sub(now); left > 0 {
			e := before.err
			e.first, e.again = false, left
			return &e
		}
	}
	err := write()
	message, denied := Refusal(err)
	if !denied {
		if err == nil && before != nil {
			d.known.Remove(key)
		}
		return err
	}
	known := &deniedWrite{since: now, tried: now}
	if before != nil {
		known.since = before.since
	}
	known.err = DeniedError{act: a, cause: err, message: wording.Brief(message), first: before == nil,
		again: min(max(now.Sub(known.since), firstDenialRetry), maxDenialRetry)}
	d.known.Add(key, known, denialMemory)
	e := known.err
	return &e
}

// Try writes, unless the same was denied just now. A denial is a [DeniedError].
func (c *Cluster) Try(w *workload.Workload, a Act, write func() error) error {
	return c.denials.try(w, a, write)
}

// ReportDenied emits an event for a denied write, once, and records it in the status
// of its release, if it has one. Any other error is returned unchanged.
func (c *Cluster) ReportDenied(ctx context.Context, w *workload.Workload, change *v1alpha1.ChangeWorkload, err error) error {
	denied := (*DeniedError)(nil)
	switch {
	case !errors.As(err, &denied):
		return err
	case change == nil:
		c.EmitDenied(ctx, w, nil, denied)
		return err
	default:
		c.EmitDenied(ctx, w, change, denied)
		return errors.Join(c.noteDenied(ctx, change, denied), denied)
	}
}

// EmitDenied logs a write that was denied and emits the event WriteDenied, once.
// Related is the object that the write is for, or nil.
func (c *Cluster) EmitDenied(ctx context.Context, w *workload.Workload, related client.Object, d *DeniedError) {
	if d.Log(ctx, "namespace", w.Namespace, "name", w.Name) {
		c.Event(w, related, record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventWriteDenied, Message: d.Describe()}, "Write")
	}
}

// noteDenied records in the status of a release that a write for it is denied.
func (c *Cluster) noteDenied(ctx context.Context, change *v1alpha1.ChangeWorkload, d *DeniedError) error {
	updated := change.DeepCopy()
	if !defense.NoteDenied(&updated.Status, change.Generation, c.Clock.Now(), d.act.write, d.Describe()) {
		return nil
	}
	return c.UpdateStatus(ctx, updated)
}

// NoteAccepted clears status.deniedWrite of a release, if one of these writes was denied.
func (c *Cluster) NoteAccepted(ctx context.Context, change *v1alpha1.ChangeWorkload, acts ...Act) error {
	updated := change.DeepCopy()
	if !defense.NoteAccepted(&updated.Status, change.Generation, c.Clock.Now(), Writes(acts...)...) {
		return nil
	}
	return c.UpdateStatus(ctx, updated)
}

// UpdateStatus writes the status of a release.
func (c *Cluster) UpdateStatus(ctx context.Context, change *v1alpha1.ChangeWorkload) error {
	if err := c.Client.Status().Update(ctx, change); err != nil {
		return fmt.Errorf("update status of changeworkload %s: %w", change.Name, err)
	}
	return nil
}

// Writes returns the names of acts in status.deniedWrite.
func Writes(acts ...Act) []string {
	writes := make([]string, len(acts))
	for i, a := range acts {
		writes[i] = a.write
	}
	return writes
}
