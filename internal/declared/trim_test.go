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
	kept := keptOf(cached.(*unstructured.Unstructured).Object)[keptWritten] //nolint:errcheck // a panic fails the test
	if kept != at(2).Unix() {
		t.Errorf("it was written at %v", kept)
	}
}

// TestTrimAround: a trimmed object can be halted and held although content around the fields is trimmed.
func TestTrimAround(t *testing.T) {
	d := thingsBy(t, `
version: v1
content: [{path: spec, ignore: [strategy.paused, strategy.keep, replicas]}]
replicas: spec.replicas
rollout: {complete: "true", halt: [{path: spec.strategy.paused, value: true}], partition: spec.strategy.keep}
pods: {current: "true"}
hold: Partition
rollback: Automatic
`)
	for text, want := range map[string]bool{"strategy: {}": true, "strategy: {type: Fast}": true, "other: 1": false} {
		u := &unstructured.Unstructured{Object: object(t, "spec:\n\treplicas: 3\n\t"+text)}
		version := d.k.VersionOf(u.Object)
		if _, err := d.k.Trim(u); err != nil {
			t.Fatal(err)
		}
		_, _, err := d.k.Halt(u.Object)
		_, holds := d.k.Partition(u.Object)
		if (err == nil) != want || holds != want || d.k.VersionOf(u.Object) != version {
			t.Errorf("%s: halt: %v, hold: %t, %v", text, err, holds, u.Object)
		}
	}
}
