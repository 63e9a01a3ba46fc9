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
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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

// TestJudge: versions are judged in their order, however they are seen, up to the version that all
// streams have seen, and once their writers are known.
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
		t.Error("judged, though the writer of version 3 is not known yet")
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
		t.Errorf("violations %v, want the violation of the block", got)
	}
	if len(o.Violations()) != 0 {
		t.Error("a violation is reported twice")
	}
	if o.versions != 2 || o.unattributed != 0 {
		t.Errorf("%d versions, %d of unknown writers", o.versions, o.unattributed)
	}

	see(5, makeDeployment(), 2*auditWait)
	if len(o.Gaps()) != 0 {
		t.Errorf("gaps: %q", o.Gaps())
	}
	if !o.judge(9, time.Now()) || o.unattributed != 1 || len(o.Gaps()) != 1 {
		t.Errorf("%d of unknown writers, want one, which is a gap: %q", o.unattributed, o.Gaps())
	}
	if got := o.Violations(); len(got) != 1 || got[0].Invariant != RollbackCause {
		t.Errorf("violations %v: the template changes in spite of the block, or without a cause", got)
	}
	begun := time.Now()
	o.audit.answers[6] = []answer{
		{operator: true, received: begun, completed: begun.Add(2)}, {received: begun.Add(1), completed: begun.Add(3)},
	}
	see(6, makeDeployment(suspended), 2*auditWait)
	if !o.judge(9, time.Now()) || o.unattributed != 2 || len(o.Violations()) != 0 || len(o.Gaps()) != 1 {
		t.Errorf("%d of unknown writers, want two, one because of two writers at once: %q", o.unattributed, o.Gaps())
	}
	o.atOnce = maxAtOnce
	if len(o.Gaps()) != 1 {
		t.Errorf("%d versions of two writers are a gap: %q", o.atOnce, o.Gaps())
	}
	if o.atOnce++; len(o.Gaps()) != 2 {
		t.Errorf("%d versions of two writers are no gap: %q", o.atOnce, o.Gaps())
	}
	o.atOnce = 0
	if o.restart(errLost); len(o.Gaps()) != 2 {
		t.Errorf("a history that was lost is no gap: %q", o.Gaps())
	}
}

// TestStop: history from before an observer stops is judged, or it is a gap.
func TestStop(t *testing.T) {
	gone := errors.New("the API server is gone")
	tests := map[string]struct {
		list error
		want string
	}{
		"all is judged":  {},
		"it cannot list": {list: gone, want: "1 versions and 2 requests were not judged at the end"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			list := func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return tc.list }
			o := &Observer{
				client: fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{List: list}).Build(),
				world:  newWorld(), audit: newAuditLog(path, "operator", time.Time{}), streams: newStreams(), done: make(chan struct{}),
			}
			ended := 0
			o.end = func() { ended++; close(o.done) }
			if tc.list != nil {
				e := o.streams[0].eventOf(makeNamespace(true), false, false)
				e.rv = 7
				o.take(o.streams[0], e.rv, []event{e})
				o.audit.requests = []Request{{rv: 7}, {rv: 8}}
			}
			o.Stop()
			o.Stop()
			got := o.Gaps()
			if ended != 1 || (len(got) == 1) != (tc.want != "") || len(got) > 1 || len(got) == 1 && !strings.Contains(got[0], tc.want) {
				t.Errorf("ended %d times, with the gaps %q, want %q", ended, got, tc.want)
			}
		})
	}
}

// TestIncompleteView: a watch that is behind the others, or a list that has only the newest version
// of each object, causes no violation.
func TestIncompleteView(t *testing.T) {
	opens := []step{operator(openAt(20)), user(set(2, 0, 20))}
	story := join(beginning, operator(verified(1, "p1", "p2")), opens, gone(podAt("p1", 12)), user(set(2, 2, 20)), user(podAt("p2", 12)))
	batch, counted := 16, len(story)-2
	tests := map[string]struct {
		// late is how much later than its write the count of available pods is seen; by then the
		// next version of a pod was seen, or is not written yet.
		late  time.Duration
		until int
		// listed: the watch of batches began later, with a list.
		listed bool
		want   int
	}{
		"all seen at once":               {until: len(story)},
		"a watch is behind":              {until: len(story), late: time.Minute},
		"it happened late":               {until: len(story) - 1, late: time.Minute, want: 1},
		"a batch was listed, later":      {until: len(story), listed: true},
		"a batch was listed, and behind": {until: len(story), listed: true, late: time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.log")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			o := &Observer{world: newWorld(), audit: newAuditLog(path, "operator", time.Time{}), streams: newStreams()}
			var behind event
			for i, s := range story[:tc.until] {
				e := event{
					kind: kindOf(s.object), rv: uint64(i) + 1, seen: at(i), deleted: s.gone,
					uid: s.object.GetUID(), namespace: s.object.GetNamespace(), name: s.object.GetName(),
				}
				if !s.gone {
					e.object = factsOf(s.object.DeepCopyObject().(client.Object)) //nolint:errcheck // it is a copy
				}
				switch {
				case i > counted:
					e.seen = at(counted)
					o.take(o.streams[0], e.rv, []event{e})
				case i == counted:
					e.seen = e.seen.Add(tc.late)
					behind = e
				case i == batch && tc.listed:
					e.rv, e.listed = uint64(len(story))+1, true
					o.take(o.streams[0], e.rv+1, []event{e})
				default:
					o.take(o.streams[0], e.rv, []event{e})
				}
			}
			o.take(o.streams[0], behind.rv, []event{behind})
			if !o.judge(uint64(len(story))+2, time.Now()) {
				t.Error("not all is judged")
			}
			if got := o.Violations(); len(got) != tc.want {
				t.Errorf("violations %v, want %d", got, tc.want)
			}
		})
	}
}
