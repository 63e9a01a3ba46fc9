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
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/network"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// StoredBy returns a function that reports from a cache whether a workload is stored in an
// enrolled namespace with the UID that the request names. API servers do not authenticate to
// webhooks, so any client can forge a request. But a workload that is not stored may also be
// new, or the cache may be stale. So the server is asked in any case; questions about workloads
// that are not stored have a budget of their own.
func StoredBy(v cluster.View) func(ctx context.Context, kind workload.Kind, namespace, name string, uid types.UID) (bool, error) {
	return func(ctx context.Context, kind workload.Kind, namespace, name string, uid types.UID) (bool, error) {
		ns, err := v.Namespace(ctx, namespace)
		if err != nil || !ns.Enrolled || uid == "" {
			return false, err
		}
		stored := kind.Object()
		err = v.Cached.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, stored)
		return err == nil && stored.GetUID() == uid, client.IgnoreNotFound(err)
	}
}

// errTooManyQuestions means that the budget of questions to the server is spent.
var errTooManyQuestions = errors.New("too many questions")

// budgetSize limits the questions per second, and the questions in flight: about one workload
// or namespace, and about all of them together. A workload or namespace is remembered until its
// budget is full again.
type budgetSize struct {
	rates                 network.RatesOptions
	eachAtOnce, allAtOnce int64
}

// budgetSizes limit the questions about stored workloads, and the questions about other
// workloads, by namespace. Questions take at most half of the calls to the server that may be in
// flight; the other half is for the orders and batches of releases. Further questions wait.
type budgetSizes struct{ stored, others budgetSize }

func defaultBudgets() budgetSizes {
	const keys, keep = 20_000, 5 * time.Minute
	return budgetSizes{
		stored: budgetSize{rates: network.RatesOptions{
			Each: network.Rate{PerSecond: rate.Every(2 * time.Second), Burst: 10}, All: network.Rate{PerSecond: 80, Burst: 160},
			Keys: keys, Keep: keep,
		}, eachAtOnce: 2, allAtOnce: 8},
		others: budgetSize{rates: network.RatesOptions{
			Each: network.Rate{PerSecond: 4, Burst: 40}, All: network.Rate{PerSecond: 20, Burst: 80}, Keys: keys, Keep: keep,
		}, eachAtOnce: 3, allAtOnce: 4},
	}
}

// budget is the unspent part of a budgetSize.
type budget struct {
	rates *network.Rates
	// places are for questions in flight.
	places *network.Places
}

func newBudget(size budgetSize, c clock.PassiveClock) budget {
	return budget{rates: network.NewRates(size.rates, c), places: network.NewPlaces(size.allAtOnce, size.eachAtOnce)}
}

// budgets keep forged requests from using up the calls to the server. Each stored workload has
// a budget of its own, and workloads that are not stored share the budget of their namespace.
// Safe for concurrent use.
type budgets struct{ stored, others budget }

func newBudgets(sizes budgetSizes, c clock.PassiveClock) *budgets {
	return &budgets{stored: newBudget(sizes.stored, c), others: newBudget(sizes.others, c)}
}

// spend takes a question out of its budget, or returns an error that names the spent budget.
// While too many questions are in flight, it waits until the context ends; the rates limit how
// many wait. The caller calls answered when the question has an answer, or it gave up.
func (b *budgets) spend(ctx context.Context, q Question) (answered func(), err error) {
	of, key, about := b.others, q.Namespace, "new workloads of this namespace"
	if q.stored {
		of, key, about = b.stored, string(q.uid), "this workload"
	}
	switch of.rates.Take(key) {
	case network.EachSpent:
		return nil, fmt.Errorf("%w about %s", errTooManyQuestions, about)
	case network.AllSpent:
		return nil, errTooManyQuestions
	case network.Granted:
	}
	answered, err = of.places.Take(ctx, key, 1)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w at once", errTooManyQuestions)
	}
	return answered, err
}
