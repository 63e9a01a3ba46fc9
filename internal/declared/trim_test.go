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
package declared

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestWritten: a trimmed object keeps the time of its last write, without those of subresources.
func TestWritten(t *testing.T) {
	at := func(minute int) *metav1.Time {
		when := metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC))
		return &when
	}
	d := thingsBy(t, thingSpec)
	u := &unstructured.Unstructured{Object: object(t, thing)}
	u.SetManagedFields([]metav1.ManagedFieldsEntry{
		{Manager: "a", Operation: "Apply", Time: at(1)}, {Manager: "b", Operation: "Update", Time: at(2)},
		{Manager: "c", Operation: "Update", Time: at(3), Subresource: "status"}, {Manager: "d", Operation: "Update"},
	})
	cached, err := d.k.Trim(u)
	if err != nil {
		t.Fatal(err)
	}
	if kept := keptOf(cached.(*unstructured.Unstructured).Object)[keptWritten]; kept != at(2).Unix() {
		t.Errorf("it was written at %v", kept)
	}
}
