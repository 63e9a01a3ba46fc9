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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

func TestEnrolledSince(t *testing.T) {
	at := func(d time.Duration) *metav1.Time { m := metav1.NewTime(testNow.Add(d)); return &m }
	owns := func(raw string, when *metav1.Time) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Time: when, FieldsV1: metav1.NewFieldsV1(raw)}
	}
	enrolment := `{"f:metadata":{"f:labels":{".":{},"f:admission-webhook-altershield":{}}}}`
	other := `{"f:metadata":{"f:labels":{"f:team":{}}}}`
	for name, test := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   time.Time
	}{
		"none":             {nil, time.Time{}},
		"other labels":     {[]metav1.ManagedFieldsEntry{owns(other, at(0))}, time.Time{}},
		"the label":        {[]metav1.ManagedFieldsEntry{owns(other, at(time.Hour)), owns(enrolment, at(0))}, testNow},
		"two own it":       {[]metav1.ManagedFieldsEntry{owns(enrolment, at(time.Minute)), owns(enrolment, at(0))}, testNow},
		"unreadable":       {[]metav1.ManagedFieldsEntry{owns(`{"f:metadata":7}`, at(0))}, time.Time{}},
		"without a time":   {[]metav1.ManagedFieldsEntry{owns(enrolment, nil)}, time.Time{}},
		"without anything": {[]metav1.ManagedFieldsEntry{{}}, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := EnrolledSince(test.fields); !got.Equal(test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// TestRequestedAt: the time of a request is from the entry that owns its annotation.
func TestRequestedAt(t *testing.T) {
	entry := func(raw string, d time.Duration) metav1.ManagedFieldsEntry {
		at := metav1.NewTime(testNow.Add(d))
		return metav1.ManagedFieldsEntry{Time: &at, FieldsV1: metav1.NewFieldsV1(raw)}
	}
	fields := []metav1.ManagedFieldsEntry{
		entry(`{"f:spec":{"f:replicas":{}}}`, time.Hour),
		entry(`{"f:metadata":{"f:annotations":{"f:`+v1alpha1.RollbackToAnnotation+`":{}}}}`, time.Minute),
	}
	if got := RequestedAt(fields, v1alpha1.RollbackToAnnotation); !got.Equal(testNow.Add(time.Minute)) {
		t.Errorf("got %s", got)
	}
	if got := RequestedAt(fields, v1alpha1.UnquarantineAnnotation); !got.IsZero() {
		t.Errorf("of another annotation: %s", got)
	}
}
