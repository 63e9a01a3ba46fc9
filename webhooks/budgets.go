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

package webhooks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Known is what is known of the workload that a request is about. API servers do not
// authenticate to webhooks, so a request may be made up by anybody.
type Known int

const (
	// Unknown may be new, or made up.
	Unknown Known = iota
	// Stored is in an enrolled namespace, and has the UID that the request names.
	Stored
)

// KnownBy reads what is known from a cache. That may be behind the API server, whose
// selector matched the namespace: one that is not there, or not enrolled, is no
// reason not to ask. A made-up request gains nothing by it but the budget of the unknown.
func KnownBy(v cluster.View) func(ctx context.Context, kind workload.Kind, namespace, name string, uid types.UID) (Known, error) {
	return func(ctx context.Context, kind workload.Kind, namespace, name string, uid types.UID) (Known, error) {
		ns, err := v.Namespace(ctx, namespace)
		switch {
		case err != nil:
			return Unknown, err
		case !ns.Enrolled, uid == "":
			return Unknown, nil
		}
		stored := kind.Object()
		err = v.Cached.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, stored)
		switch {
		case apierrors.IsNotFound(err):
			return Unknown, nil
		case err != nil:
			return Unknown, fmt.Errorf("get %s/%s: %w", namespace, name, err)
		case stored.GetUID() != uid:
			return Unknown, nil
		}
		return Stored, nil
	}
}

// errTooManyQuestions says that the server is not asked, because it was asked so often.
var errTooManyQuestions = errors.New("too many questions")

// budget is how many questions per second are asked, how many at once after a pause, and
// how many may be without an answer.
type budget struct {
	rate     rate.Limit
	burst    int
	inFlight int64
}

// budgetSizes bound the questions about one workload that is stored, about all such
// together, about the others of one namespace, and about all others together. Those in
// flight together are half of the calls to the server that may be under way; the other
// half is for the orders and batches of releases. More of them wait for their turn.
type budgetSizes struct{ workload, workloads, namespace, others budget }

func defaultBudgets() budgetSizes {
	return budgetSizes{
		workload:  budget{rate: rate.Every(2 * time.Second), burst: 10, inFlight: 2},
		workloads: budget{rate: 80, burst: 160, inFlight: 8},
		namespace: budget{rate: 4, burst: 40, inFlight: 3},
		others:    budget{rate: 20, burst: 80, inFlight: 4},
	}
}

const (
	// maxBudgets is for how many workloads and namespaces budgets are kept at once, each
	// for budgetFor since it was used last: by then it is whole again.
	maxBudgets = 20_000
	budgetFor  = 5 * time.Minute
)

// purse is what is left of a budget.
type purse struct {
	limiter *rate.Limiter
	// places are for questions without an answer.
	places *semaphore.Weighted
}

func newPurse(size budget) *purse {
	return &purse{limiter: rate.NewLimiter(size.rate, size.burst), places: semaphore.NewWeighted(size.inFlight)}
}

// place waits for a place, as long as the context allows.
func (p *purse) place(ctx context.Context) bool {
	return p.places.TryAcquire(1) || p.places.Acquire(ctx, 1) == nil
}

// budgets keep requests that somebody makes up from using up the calls to the server. A
// workload has a budget of its own, and what nobody knows has another one than the
// releases of workloads that are there. Safe for concurrent use.
type budgets struct {
	sizes budgetSizes
	clock clock.PassiveClock

	mu                sync.Mutex
	each              *cache.LRUExpireCache // string -> *purse
	workloads, others *purse
}

func newBudgets(sizes budgetSizes, c clock.PassiveClock) *budgets {
	return &budgets{
		sizes: sizes, clock: c, each: cache.NewLRUExpireCacheWithClock(maxBudgets, c),
		workloads: newPurse(sizes.workloads), others: newPurse(sizes.others),
	}
}

// spend takes a question out of its budgets, or says which of them is used up. While too
// many are without an answer it waits for its turn, as long as the context allows. So
// those that wait are bounded by the rates. Answered is to be called when there is an
// answer, or none is waited for any more.
func (b *budgets) spend(ctx context.Context, q Question) (answered func(), err error) {
	own, all, about, err := b.take(q)
	if err != nil {
		return nil, err
	}
	if !own.place(ctx) {
		return nil, fmt.Errorf("%w at once about %s", errTooManyQuestions, about)
	}
	if !all.place(ctx) {
		own.places.Release(1)
		return nil, fmt.Errorf("%w at once", errTooManyQuestions)
	}
	return func() {
		all.places.Release(1)
		own.places.Release(1)
	}, nil
}

// take takes a question out of the rates of its budgets.
func (b *budgets) take(q Question) (own, all *purse, about string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	all, size, about, key := b.others, b.sizes.namespace, "new workloads of this namespace", "namespace\x00"+q.Namespace
	if q.standing == Stored {
		all, size, about, key = b.workloads, b.sizes.workload, "this workload", "workload\x00"+string(q.uid)
	}
	own = newPurse(size)
	if known, ok := b.each.Get(key); ok {
		own = known.(*purse) //nolint:errcheck // the cache holds nothing else
	}
	// The time to keep it begins anew.
	b.each.Add(key, own, budgetFor)
	switch {
	case own.limiter.TokensAt(now) < 1:
		return nil, nil, "", fmt.Errorf("%w about %s", errTooManyQuestions, about)
	case all.limiter.TokensAt(now) < 1:
		return nil, nil, "", fmt.Errorf("%w", errTooManyQuestions)
	}
	own.limiter.AllowN(now, 1)
	all.limiter.AllowN(now, 1)
	return own, all, about, nil
}
