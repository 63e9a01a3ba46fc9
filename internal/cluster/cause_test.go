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
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// lackingSet is a StatefulSet that may lack pods.
type lackingSet struct {
	workload.StatefulSet
	lacking *workload.Lacking
}

func (l *lackingSet) Get(context.Context, client.Reader, types.NamespacedName) (*workload.Workload, error) {
	return &workload.Workload{GVK: l.GroupVersionKind(), Namespace: "prod", Name: "db", UID: "db", Lacking: l.lacking}, nil
}

// TestWorkloadWhosePodsAreRefused: the reason is read from events, at most every ten seconds.
// A workload is read even if its events cannot be read.
func TestWorkloadWhosePodsAreRefused(t *testing.T) {
	read, broken := 0, errors.New("etcd of the events is down")
	kind := &lackingSet{lacking: &workload.Lacking{Count: 1, Since: testNow}}
	listEvents := func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
		events, ok := list.(*corev1.EventList)
		if !ok {
			return nil
		}
		read++
		events.Items = []corev1.Event{{
			Message: "exceeded quota", FirstTimestamp: metav1.NewTime(testNow), LastTimestamp: metav1.NewTime(testNow.Add(time.Minute)),
		}}
		return broken
	}
	c := clusterOf(t, interceptor.Funcs{List: listEvents})
	c.Kinds = workload.NewRegistry(kind)
	clock := clocktesting.NewFakeClock(testNow)
	c.refusals = newRefusals(clock)
	key := workload.Key{
		GroupKind: kind.GroupVersionKind().GroupKind(), NamespacedName: types.NamespacedName{Namespace: "prod", Name: "db"},
	}
	load := func(after time.Duration) *workload.Workload {
		t.Helper()
		clock.Step(after)
		w, err := c.Workload(t.Context(), key)
		if err != nil || w == nil {
			t.Fatalf("%+v, %v", w, err)
		}
		return w
	}
	expect := func(w *workload.Workload, reads int, since time.Duration) {
		t.Helper()
		if read != reads || (w.NotMade != nil) != (since >= 0) || w.NotMade != nil && !w.NotMade.Since.Equal(testNow.Add(since)) {
			t.Errorf("read %d times, %+v; want %d, since %s", read, w.NotMade, reads, since)
		}
	}
	expect(load(0), 0, -1) // it may be created in a moment
	expect(load(10*time.Second), 1, -1)
	broken = nil
	expect(load(5*time.Second), 1, -1)
	expect(load(6*time.Second), 2, 0)

	// No pod is lacking, and later one is, only for a moment so far.
	lacking := kind.lacking
	kind.lacking = nil
	expect(load(time.Minute), 2, -1)
	kind.lacking = lacking
	expect(load(time.Minute), 3, 141*time.Second)
}
