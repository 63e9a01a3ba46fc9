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

package observer

import (
	"container/heap"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestHasSeen(t *testing.T) {
	tests := map[string]struct {
		versions, list map[types.UID]uint64
		at             uint64
		want           bool
	}{
		"nothing there":          {at: 5, want: true},
		"all seen":               {versions: map[types.UID]uint64{"a": 3}, list: map[types.UID]uint64{"a": 3}, at: 5, want: true},
		"more seen":              {versions: map[types.UID]uint64{"a": 12}, list: map[types.UID]uint64{"a": 3}, at: 12, want: true},
		"an older version seen":  {versions: map[types.UID]uint64{"a": 3}, list: map[types.UID]uint64{"a": 4}, at: 3},
		"not seen":               {list: map[types.UID]uint64{"a": 4}, at: 3},
		"gone by now":            {list: map[types.UID]uint64{"a": 4}, at: 12, want: true},
		"its end not seen":       {versions: map[types.UID]uint64{"a": 3}, at: 5},
		"created after the list": {versions: map[types.UID]uint64{"a": 11}, at: 11, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &stream{versions: tc.versions, at: tc.at}
			if got := s.hasSeen(tc.list, 10); got != tc.want {
				t.Errorf("hasSeen() = %v, want %v", got, tc.want)
			}
			if tc.want && s.at < 10 {
				t.Errorf("complete up to %d, want 10", s.at)
			}
		})
	}
}

// TestJudge: versions are judged in their order whatever the order they are seen
// in, up to what all streams have seen, and once it is known who wrote them.
func TestJudge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := &Observer{world: newWorld(), audit: newAuditLog(path, "operator", time.Time{}), streams: newStreams()}
	var order []uint64
	see := func(rv uint64, object client.Object, age time.Duration) {
		object.SetResourceVersion(string(rune('0' + rv)))
		s := o.streams[0]
		for _, other := range o.streams {
			if other.kind == kindOf(object) {
				s = other
			}
		}
		e := s.eventOf(object, false, false)
		e.seen = e.seen.Add(-age)
		o.take(s, rv, []event{e})
	}
	see(4, makeDeployment(suspended, image("busybox:2")), time.Minute)
	see(2, makeDeployment(), time.Minute)
	see(3, makeDeployment(suspended), time.Second)
	see(1, makeNamespace(true), time.Minute)
	if o.complete() != 0 {
		t.Errorf("complete up to %d before the other streams have seen anything", o.complete())
	}
	for len(o.queue) > 0 {
		order = append(order, o.queue[0].rv)
		heap.Pop(&o.queue)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 4}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}

	see(1, makeNamespace(true), time.Minute)
	see(2, makeDeployment(), 20*time.Second)
	see(3, makeDeployment(suspended), time.Second)
	see(4, makeDeployment(suspended, image("busybox:2")), 0)
	if o.judge(9, time.Now()) {
		t.Error("judged, though nobody knows yet who wrote version 3")
	}
	if o.judged != 2 {
		t.Errorf("judged up to %d, want 2", o.judged)
	}
	o.audit.answers[3] = []answer{{operator: false}}
	o.audit.answers[4] = []answer{{operator: false}}
	if o.judge(9, time.Now()); o.judged != 3 {
		t.Errorf("judged up to %d, want 3: other requests may still be answered with version 4", o.judged)
	}
	o.queue[0].seen = o.queue[0].seen.Add(-auditDelay)
	if !o.judge(9, time.Now()) || o.judged != 9 {
		t.Errorf("judged up to %d, want 9", o.judged)
	}
	if got := o.Violations("elsewhere"); len(got) != 0 {
		t.Errorf("violations %v in a namespace where nothing is", got)
	}
	got := o.Violations(makeDeployment().Namespace)
	if len(got) != 1 || got[0].Invariant != BlockHolds {
		t.Errorf("violations %v, want the one of the block", got)
	}
	if len(o.Violations()) != 0 {
		t.Error("a violation is told twice")
	}
	if o.versions != 2 || o.unattributed != 0 {
		t.Errorf("%d versions, %d of unknown writers", o.versions, o.unattributed)
	}

	see(5, makeDeployment(), 2*auditWait)
	if len(o.Gaps()) != 0 {
		t.Errorf("gaps: %q", o.Gaps())
	}
	if !o.judge(9, time.Now()) || o.unattributed != 1 || len(o.Violations()) != 0 || len(o.Gaps()) != 1 {
		t.Errorf("%d of unknown writers, want one, which is a gap: %q", o.unattributed, o.Gaps())
	}
	begun := time.Now()
	o.audit.answers[6] = []answer{{operator: true, received: begun, completed: begun.Add(2)}, {received: begun.Add(1), completed: begun.Add(3)}}
	see(6, makeDeployment(suspended), 2*auditWait)
	if !o.judge(9, time.Now()) || o.unattributed != 2 || len(o.Violations()) != 0 || len(o.Gaps()) != 1 {
		t.Errorf("%d of unknown writers, want two, of which one is of two that wrote at once: %q", o.unattributed, o.Gaps())
	}
	if o.startAnew(errLost); len(o.Gaps()) != 2 {
		t.Errorf("a history that was lost is no gap: %q", o.Gaps())
	}
}
