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

package world

import (
	"reflect"
	"slices"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// queue is the queue of a controller. Several handlers of a controller may add the same request for
// one change, and a worker may begin between them or after them: one reconcile or two, by chance.
// So the queue adds requests after all handlers ran.
type queue[R comparable] struct {
	workqueue.TypedRateLimitingInterface[R]
	process *Process
	asked   []R
}

// Add implements workqueue.TypedInterface.
func (q *queue[R]) Add(r R) {
	p := q.process
	p.queuesMu.Lock()
	defer p.queuesMu.Unlock()
	if !p.showing {
		q.TypedRateLimitingInterface.Add(r)
		return
	}
	if len(q.asked) == 0 {
		p.asked = append(p.asked, q.hand)
	}
	if !slices.Contains(q.asked, r) {
		q.asked = append(q.asked, r)
	}
}

// hand adds the collected requests.
func (q *queue[R]) hand() {
	for _, r := range q.asked {
		q.TypedRateLimitingInterface.Add(r)
	}
	q.asked = nil
}

// show passes the next change, or the existing objects, to the handlers of an informer.
func (p *Process) show(i *informer) {
	p.queuesMu.Lock()
	p.showing = true
	p.queuesMu.Unlock()
	i.see()
	p.queuesMu.Lock()
	defer p.queuesMu.Unlock()
	p.showing = false
	for _, hand := range p.asked {
		hand()
	}
	p.asked = nil
}

// useQueue gives a controller a queue of this world, without metrics: those have a ticker, and
// minutes pass in no time here.
func (p *Process) useQueue(r manager.Runnable) {
	v := reflect.ValueOf(r)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return
	}
	field := v.Elem().FieldByName("NewQueue")
	for _, newQueue := range []reflect.Value{reflect.ValueOf(newQueue[reconcile.Request](p)), reflect.ValueOf(newQueue[workload.Key](p))} {
		if field.IsValid() && newQueue.Type().AssignableTo(field.Type()) {
			field.Set(newQueue)
		}
	}
}

func newQueue[R comparable](p *Process) func(string, workqueue.TypedRateLimiter[R]) workqueue.TypedRateLimitingInterface[R] {
	return func(_ string, limiter workqueue.TypedRateLimiter[R]) workqueue.TypedRateLimitingInterface[R] {
		return &queue[R]{TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueue(limiter), process: p}
	}
}
