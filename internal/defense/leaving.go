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
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Workloads that are opted out, get an owner, or are deleted while their releases are blocked: allowed, and reported.

// OptOut is the last time that a user opted a workload out, or gave it an owner, while it was blocked, halted or held,
// or versions of it were quarantined.
type OptOut struct {
	// Release is the number of the workload's release at that time.
	Release int64
	At      time.Time
	While   v1alpha1.OptOutWhile
	// Owner is the new owner of the workload, as kind/name; empty if it was opted out.
	Owner string
	User  string
}

// String returns the value of OptedOutAnnotation.
func (o OptOut) String() string {
	while := string(o.While)
	if o.Owner != "" {
		while += ":" + o.Owner
	}
	return strings.Join([]string{strconv.FormatInt(o.Release, 10), strconv.FormatInt(o.At.Unix(), 10), while, o.User}, " ")
}

// ParseOptOut reads the value of OptedOutAnnotation.
func ParseOptOut(value string) (OptOut, bool) {
	parts := strings.SplitN(value, " ", 4)
	if len(parts) != 4 {
		return OptOut{}, false
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	while, owner, _ := strings.Cut(parts[2], ":")
	o := OptOut{
		Release: workload.ParseRelease(parts[0]), At: time.Unix(seconds, 0), While: v1alpha1.OptOutWhile(while),
		Owner: owner, User: parts[3],
	}
	return o, err == nil && describeWhile(o.While) != ""
}

// Denied are the reasons for which releases of a workload are denied.
type Denied struct {
	Blocked bool
	// BlockedSince is the start of the block; zero if it is not known.
	BlockedSince time.Time
	Quarantine   []string
}

// DeniedBy returns why releases of a workload with these labels and annotations are denied.
func DeniedBy(labels, annotations map[string]string, now time.Time) Denied {
	since, blocked := labels[v1alpha1.SuspendLabel]
	d := Denied{Blocked: blocked, Quarantine: rollback.ParseQuarantine(annotations, now).Versions}
	if seconds, err := strconv.ParseInt(since, 10, 64); err == nil && seconds > 0 {
		d.BlockedSince = time.Unix(seconds, 0)
	}
	return d
}

// Any reports whether any release is denied.
func (h Denied) Any() bool { return h.Blocked || len(h.Quarantine) > 0 }

// DefenseOf returns the act of the operator on a workload with these labels and annotations that ends, or has no
// effect, when the workload is opted out or gets an owner; empty for none.
func DefenseOf(labels, annotations map[string]string, now time.Time) v1alpha1.OptOutWhile {
	denied := DeniedBy(labels, annotations, now)
	switch {
	case denied.Blocked:
		return v1alpha1.WhileBlocked
	case annotations[v1alpha1.HaltedAnnotation] != "":
		return v1alpha1.WhileHalted
	case annotations[v1alpha1.HeldAnnotation] != "":
		return v1alpha1.WhileHeld
	case denied.Any():
		return v1alpha1.WhileQuarantined
	default:
		return ""
	}
}

// String describes h, to follow the word "while".
func (h Denied) String() string {
	var parts []string
	if h.Blocked {
		parts = append(parts, describeWhile(v1alpha1.WhileBlocked))
	}
	if len(h.Quarantine) > 0 {
		parts = append(parts, describeWhile(v1alpha1.WhileQuarantined)+" ("+strings.Join(h.Quarantine, ", ")+")")
	}
	return strings.Join(parts, " and ")
}

// noteOptOut records, and reports once, that a user opted the workload out, or gave it an owner, while the defense had
// an effect.
func noteOptOut(d *release) {
	if d.Workload == nil {
		return
	}
	o, ok := ParseOptOut(d.Workload.Annotations[v1alpha1.OptedOutAnnotation])
	if !ok || o.Release != d.Change.Spec.Release {
		o, ok = ownedUnseen(d)
	}
	if !ok {
		return
	}
	noted := v1alpha1.OptOut{User: wording.CutAtRune(o.User, record.MaxText), While: o.While, TimeUnix: o.At.Unix(), Owner: o.Owner}
	if d.status.OptedOut != nil && *d.status.OptedOut == noted {
		return
	}
	d.status.OptedOut = &noted
	d.event(corev1.EventTypeWarning, v1alpha1.EventOptedOut, o.Describe())
}

// ownedUnseen returns the owner that a blocked workload got past admission: the condition Defended, which is about to
// change, shows that it had none before. An owner of a halted or held workload is reported when the halt or the hold is
// undone.
func ownedUnseen(d *release) (o OptOut, ok bool) {
	owner := d.Workload.ObservingOwner()
	if owner == "" || workload.OptedOut(d.Workload.Labels) || !d.Workload.Blocked() || d.Change.Status.Attempt == 0 ||
		d.status.OptedOut != nil || d.Change.Status.ObservedRelease != d.Change.Spec.Release || loweredMessage(&d.Change.Status) != "" {
		return o, false
	}
	return OptOut{At: d.Now, While: v1alpha1.WhileBlocked, Owner: strings.ReplaceAll(owner, " ", "/"), User: workload.UnknownUser}, true
}

// Describe returns which user opted a workload out, or gave it an owner, and the act of the operator at that time.
func (o *OptOut) Describe() string {
	if o.Owner != "" {
		return fmt.Sprintf("%s gave the workload the owner %s while %s; it is in observe mode now", o.User, o.Owner, describeWhile(o.While))
	}
	return fmt.Sprintf("%s opted the workload out of the defense while %s", o.User, describeWhile(o.While))
}

func describeWhile(while v1alpha1.OptOutWhile) string {
	return map[v1alpha1.OptOutWhile]string{
		v1alpha1.WhileBlocked:     "its releases were blocked",
		v1alpha1.WhileHalted:      "its rollout was halted",
		v1alpha1.WhileHeld:        "its rollout was held",
		v1alpha1.WhileQuarantined: "versions of it were in quarantine",
	}[while]
}

// DeniedWorkload is a workload whose releases are denied, by its identity.
type DeniedWorkload struct {
	Workload workload.Workload
	By       Denied
}

// DeletionInput is the input of a decision about a workload that may have been deleted, or created again.
type DeletionInput struct {
	// Denied is the last known workload of this name whose releases were denied; nil for none.
	Denied *DeniedWorkload
	// Deleted is an earlier deleted workload whose releases were denied; nil for none.
	Deleted *DeniedWorkload
	// Now is the workload of this name; nil for none.
	Now *workload.Workload
	// NamespaceEnding reports whether the namespace is deleted, or being deleted.
	NamespaceEnding bool
}

// DeletionPlan is what to remember and to report.
type DeletionPlan struct {
	// ForgetDenied: the workload whose releases were denied does not exist.
	ForgetDenied bool
	// Deleted is the event of its deletion, and the workload is to be remembered; nil for none.
	Deleted *record.Event
	// ForgetDeleted: the name of the deleted workload is in use again.
	ForgetDeleted bool
	// CreatedAgain is the event of the new workload; nil if it is the same as before.
	CreatedAgain *record.Event
}

// DecideDeletion decides whether a workload was deleted while its releases were denied, and whether another workload of
// its name was created later: a deletion removes the block and the quarantine. The deletion of a namespace is not
// reported.
func DecideDeletion(in DeletionInput) (plan DeletionPlan) {
	deleted := in.Deleted
	if was := in.Denied; was != nil {
		if in.Now != nil && in.Now.UID == was.Workload.UID {
			return plan
		}
		plan.ForgetDenied = true
		if in.NamespaceEnding {
			return plan
		}
		plan.Deleted = &record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventDeletedWhileBlocked,
			Message: fmt.Sprintf("the %s was deleted while %s", was.Workload.Kind(), was.By)}
		deleted = was
	}
	if deleted == nil || in.Now == nil {
		return plan
	}
	plan.ForgetDeleted = true
	if in.Now.UID != deleted.Workload.UID {
		plan.CreatedAgain = &record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventDeletedWhileBlocked,
			Message: fmt.Sprintf("%s created the %s again, which was deleted while %s: block and quarantine are lost",
				in.Now.ReleasedBy(), in.Now.Kind(), deleted.By)}
	}
	return plan
}
