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
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	// pollInterval is the time between two polls.
	pollInterval = 25 * time.Millisecond
	// digestInterval is how often history is judged without a call of Settle.
	digestInterval = time.Second
	// auditDelay is the time after which the audit log has all requests that were answered with a
	// version.
	auditDelay = 250 * time.Millisecond
	// maxAtOnce bounds the versions of one run that have two possible writers, beside one of every
	// shareAtOnce versions.
	maxAtOnce, shareAtOnce = 20, 50
	// auditWait is how long judging a version waits for the audit log; after that its writer is
	// unknown.
	auditWait = 10 * time.Second
	// stopWait is how long Stop waits until everything is judged.
	stopWait = time.Minute
)

// Options configure an Observer.
type Options struct {
	// Config has the rights of an administrator.
	Config *rest.Config
	// AuditLog is written by the policy that AuditPolicy returns.
	AuditLog string
	// Since, if set, is when judging begins: earlier requests in the log belong to another
	// observer.
	Since time.Time
	// Operator is the user of the operator, OperatorNamespace its namespace.
	Operator, OperatorNamespace string
}

// Observer judges a cluster's history as it happens. Its methods may be called
// concurrently.
type Observer struct {
	opts   Options
	client client.WithWatch
	end    context.CancelFunc
	done   chan struct{}
	stop   sync.Once

	mu      sync.Mutex
	streams []*stream
	queue   history
	world   *world
	audit   *auditLog
	// judged is the resource version up to which history was judged.
	judged uint64
	// listed is the resource version up to which versions may be missing: a list has only the
	// newest version of each object.
	listed     uint64
	violations []Violation
	writes     []Request
	notes      []string
	// unattributed counts the versions whose writer is unknown. atOnce counts those of them that
	// answered two writers at the same time, one of which changed nothing. versions counts all.
	versions, unattributed, atOnce int
}

// Start starts an Observer. The CRDs of the operator must exist.
func Start(o Options) (*Observer, error) {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	c, err := client.NewWithWatch(o.Config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	known := newWorld()
	known.limits.own = o.OperatorNamespace
	obs := &Observer{
		opts: o, client: c, end: end, done: make(chan struct{}),
		world: known, audit: newAuditLog(o.AuditLog, o.Operator, o.Since), streams: newStreams(),
	}
	go func() {
		defer close(obs.done)
		obs.run(ctx)
	}()
	return obs, nil
}

// Stop judges everything that happened before the call, and ends the observation. History that it
// cannot judge is a gap.
func (o *Observer) Stop() {
	o.stop.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopWait)
		defer cancel()
		err := o.Settle(ctx)
		o.end()
		<-o.done
		if err == nil {
			return
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.notes = append(o.notes, fmt.Sprintf("%s: %d versions and %d requests were not judged at the end, and others may be missing: %v",
			time.Now().UTC().Format(time.RFC3339), len(o.queue), len(o.audit.requests), err))
	})
}

// run follows the cluster, and starts again after each hole in the history.
func (o *Observer) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := o.follow(ctx); errors.Is(err, errLost) {
			o.restart(err)
		}
	}
}

// follow runs all streams until one of them fails.
func (o *Observer) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o.mu.Lock()
	streams := o.streams
	o.mu.Unlock()
	ended := make(chan error, len(streams))
	for _, s := range streams {
		go func() { ended <- s.follow(ctx, o.client, func(at uint64, events ...event) { o.take(s, at, events) }) }()
	}
	ticker := time.NewTicker(digestInterval)
	defer ticker.Stop()
	var first error
	for running := len(streams); running > 0; {
		select {
		case err := <-ended:
			running--
			if first == nil {
				first = err
			}
			cancel()
		case <-ticker.C:
			o.mu.Lock()
			o.judge(o.complete(), time.Now().Add(-digestInterval))
			o.mu.Unlock()
		}
	}
	return first
}

// restart forgets a history that has a hole, and notes the hole.
func (o *Observer) restart(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notes = append(o.notes, fmt.Sprintf("%s: history after resource version %d was lost: %v",
		time.Now().UTC().Format(time.RFC3339), o.judged, err))
	o.streams, o.queue = newStreams(), nil
	o.world.forget()
}

// take adds what a stream saw to the history.
func (o *Observer) take(s *stream, at uint64, events []event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		if e.listed {
			o.listed = max(o.listed, at)
		}
		o.date(&e)
		heap.Push(&o.queue, e)
		if e.deleted {
			delete(s.versions, e.uid)
		} else {
			s.versions[e.uid] = e.rv
		}
	}
	s.at = max(s.at, at)
}

// date makes times follow the order of versions: a version was written before each later version
// was seen, even if its own watch is behind.
func (o *Observer) date(e *event) {
	for i := range o.queue {
		if later := &o.queue[i]; later.rv > e.rv && later.seen.Before(e.seen) {
			e.seen = later.seen
		}
	}
}

// complete returns the resource version up to which all streams have seen everything.
func (o *Observer) complete() uint64 {
	upTo := o.streams[0].at
	for _, s := range o.streams {
		upTo = min(upTo, s.at)
	}
	return upTo
}

// judge judges history up to a resource version, of the events that were seen until a time. It
// returns false if it has to wait for the audit log.
func (o *Observer) judge(upTo uint64, seen time.Time) bool {
	if err := o.audit.read(); err != nil {
		o.notes = append(o.notes, fmt.Sprintf("read the audit log: %v", err))
	}
	for len(o.queue) > 0 && o.queue[0].rv <= upTo && !o.queue[0].seen.After(seen) {
		e := o.queue[0]
		e.listed = e.listed || e.rv <= o.listed
		by := Unknown
		if o.world.needsWriter(e) {
			answers := o.audit.answers[e.rv]
			age := time.Since(e.seen)
			if age < auditDelay || len(answers) == 0 && age < auditWait {
				return false
			}
			by = writerOf(answers)
			o.versions++
			if by == Unknown {
				o.noteUnknown(e, len(answers) > 0)
			}
		}
		heap.Pop(&o.queue)
		o.judgeRequests(e.rv - 1)
		o.violations = append(o.violations, o.world.apply(e, by)...)
		o.judged = max(o.judged, e.rv)
	}
	o.judged = max(o.judged, upTo)
	if len(o.queue) > 0 {
		o.judged = min(o.judged, o.queue[0].rv-1)
	}
	o.judgeRequests(o.judged)
	o.audit.forget(o.judged)
	return len(o.queue) == 0 || o.queue[0].rv > upTo
}

// noteUnknown counts a version whose writer is unknown. atOnce: it answered two writers at the same
// time.
func (o *Observer) noteUnknown(e event, atOnce bool) {
	o.unattributed++
	if atOnce {
		o.atOnce++
		return
	}
	o.notes = append(o.notes, fmt.Sprintf("no request is known that wrote resource version %d of %s %s/%s", e.rv, e.kind, e.namespace, e.name))
}

// judgeRequests judges the operator's requests up to a resource version.
func (o *Observer) judgeRequests(upTo uint64) {
	for _, d := range o.audit.denials {
		e := event{kind: "denial of", rv: d.rv, seen: time.Now(), namespace: d.namespace, name: d.name}
		o.violations = append(o.violations, violationsOf(e, d.rv, checkText(d.message))...)
	}
	o.audit.denials = nil
	o.audit.requests = slices.DeleteFunc(o.audit.requests, func(r Request) bool {
		if r.rv > upTo {
			return false
		}
		o.violations = append(o.violations, o.world.checkRequest(&r, o.opts.OperatorNamespace)...)
		r.body = nil
		if r.writes() {
			o.writes = append(o.writes, r)
		}
		return true
	})
}

// Settle waits until everything that had happened when it was called is judged.
func (o *Observer) Settle(ctx context.Context) error {
	for {
		if lost, err := o.settle(ctx); err != nil || !lost {
			return err
		}
	}
}

// settle judges like Settle, and reports whether history was lost meanwhile.
func (o *Observer) settle(ctx context.Context) (lost bool, err error) {
	called := time.Now()
	o.mu.Lock()
	streams := o.streams
	o.mu.Unlock()
	restarted := func() bool { return o.streams[0] != streams[0] }
	upTo := uint64(0)
	for _, s := range streams {
		list := s.newMetadataList()
		if err := o.client.List(ctx, list); err != nil {
			return false, fmt.Errorf("list %ss: %w", s.kind, err)
		}
		at := revisionOf(list.ResourceVersion)
		if upTo == 0 || at < upTo {
			upTo = at
		}
		there := map[types.UID]uint64{}
		for i := range list.Items {
			there[list.Items[i].UID] = revisionOf(list.Items[i].ResourceVersion)
		}
		if err := o.until(ctx, "the watch of "+s.kind+"s", func() bool { return restarted() || s.hasSeen(there, at) }); err != nil {
			return false, err
		}
	}
	err = o.until(ctx, "the audit log", func() bool {
		lost = restarted()
		// Also for requests that made no version of a watched object.
		return lost || o.judge(upTo, time.Now()) && time.Since(called) > auditDelay
	})
	return lost, err
}

// hasSeen reports whether a stream has seen all that a list has; if so, the stream is complete up
// to that list.
func (s *stream) hasSeen(there map[types.UID]uint64, at uint64) bool {
	for uid, version := range there {
		if s.versions[uid] < version && s.at < version {
			return false
		}
	}
	for uid, version := range s.versions {
		if _, ok := there[uid]; !ok && version <= at && s.at < at {
			return false
		}
	}
	s.at = max(s.at, at)
	return true
}

// until polls a condition, with the lock, until it holds.
func (o *Observer) until(ctx context.Context, what string, holds func() bool) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		o.mu.Lock()
		ok := holds()
		o.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
}

// Violations returns the violations in some namespaces, or in all if none is named, that no earlier
// call returned.
func (o *Observer) Violations(namespaces ...string) []Violation {
	o.mu.Lock()
	defer o.mu.Unlock()
	var asked []Violation
	o.violations = slices.DeleteFunc(o.violations, func(v Violation) bool {
		if len(namespaces) > 0 && !slices.Contains(namespaces, v.Namespace) {
			return false
		}
		asked = append(asked, v)
		return true
	})
	return asked
}

// CheckDelivered returns a violation for each acknowledged verdict that is not stored. Call it
// after Settle.
func (o *Observer) CheckDelivered(delivered []Delivered) []Violation {
	o.mu.Lock()
	defer o.mu.Unlock()
	var violations []Violation
	for _, d := range delivered {
		violations = append(violations, o.world.checkDelivered(d)...)
	}
	return violations
}

// Unfinished returns what is yet to happen to the workloads of some namespaces. It is empty some
// time after the last change, unless a release never ends. Call it after Settle.
func (o *Observer) Unfinished(namespaces []string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.world.unfinished(namespaces, time.Now())
}

// Writes returns all requests by which the operator wrote, or tried to.
func (o *Observer) Writes() ([]Request, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.audit.read(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Concat(o.writes, o.audit.requests), func(r Request) bool { return !r.writes() }), nil
}

// WritesIn returns the requests by which the operator wrote in a namespace, or tried to.
func (o *Observer) WritesIn(namespace string) ([]Request, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.audit.read(); err != nil {
		return nil, err
	}
	var writes []Request
	for _, requests := range [][]Request{o.writes, o.audit.requests} {
		for i := range requests {
			if requests[i].Namespace == namespace && requests[i].writes() {
				writes = append(writes, requests[i])
			}
		}
	}
	return writes, nil
}

// Summary returns how much was observed, and which parts were not.
func (o *Observer) Summary() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := fmt.Sprintf("%d versions judged, %d of them by unknown writers; %d writes of the operator", o.versions, o.unattributed, len(o.writes))
	for _, n := range o.notes {
		s += "\n" + n
	}
	return s
}

// Gaps returns the parts of the history that were not judged: a part that was lost, a version
// without a known request, too many versions with two possible writers, an unreadable audit log,
// versions and requests left over when the observation ended.
func (o *Observer) Gaps() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	gaps := slices.Clone(o.notes)
	if most := maxAtOnce + o.versions/shareAtOnce; o.atOnce > most {
		gaps = append(gaps, fmt.Sprintf("%d of %d versions have two possible writers, at most %d may", o.atOnce, o.versions, most))
	}
	return gaps
}

// history has the versions that were seen and are not judged, by resource version.
type history []event

func (h history) Len() int           { return len(h) }
func (h history) Less(i, j int) bool { return h[i].rv < h[j].rv }
func (h history) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

func (h *history) Push(e any) {
	if e, ok := e.(event); ok {
		*h = append(*h, e)
	}
}

func (h *history) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = event{}
	*h = (*h)[:len(*h)-1]
	return last
}

// OperatorStarts ends the outage that OperatorStops began.
func (o *Observer) OperatorStarts() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.world.operatorStarts(time.Now())
}

// OperatorStops begins an outage: no replica of the operator works until OperatorStarts. Meanwhile
// held rollouts continue.
func (o *Observer) OperatorStops() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.world.operatorStops(time.Now())
}
