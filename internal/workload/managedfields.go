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

package workload

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// EnrolledSince returns when the enrolment label of a namespace was set: the time of the oldest
// entry of its managed fields that owns the label; zero if no entry does. The time of an entry is
// the last write of any of its fields, so the result is never before the enrolment, and no earlier
// change is taken for a release.
func EnrolledSince(fields []metav1.ManagedFieldsEntry) time.Time {
	var since time.Time
	for i := range fields {
		if t := fields[i].Time; t != nil && ownsEnrolment(&fields[i]) && (since.IsZero() || t.Time.Before(since)) {
			since = t.Time
		}
	}
	return since
}

// ownsEnrolment reports whether an entry of managed fields owns EnrolledLabel.
func ownsEnrolment(entry *metav1.ManagedFieldsEntry) bool {
	return ownsLabel(entry, v1alpha1.EnrolledLabel)
}

// LabelOwner returns the field manager that last wrote a label; empty if it is not known.
func LabelOwner(fields []metav1.ManagedFieldsEntry, label string) string {
	var last *metav1.ManagedFieldsEntry
	for i := range fields {
		if f := &fields[i]; ownsLabel(f, label) && (last == nil || last.Time.Before(f.Time)) {
			last = f
		}
	}
	if last == nil {
		return ""
	}
	return last.Manager
}

func ownsLabel(entry *metav1.ManagedFieldsEntry, label string) bool {
	return owns(entry, "f:labels", label)
}

// RequestedAt returns the latest time at which an annotation may have been written, by the managed
// fields of its object; zero if it is not known.
func RequestedAt(fields []metav1.ManagedFieldsEntry, annotation string) (at time.Time) {
	for i := range fields {
		if f := &fields[i]; f.Time != nil && owns(f, "f:annotations", annotation) {
			at = times.Latest(at, f.Time.Time)
		}
	}
	return at
}

func owns(entry *metav1.ManagedFieldsEntry, of, key string) bool {
	if entry.FieldsV1 == nil {
		return false
	}
	var owned struct {
		Metadata map[string]map[string]json.RawMessage `json:"f:metadata"`
	}
	if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned); err != nil {
		return false // no evidence
	}
	_, ok := owned.Metadata[of]["f:"+key]
	return ok
}
