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

package checks

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// healthEvery is how often all pods of a release are looked at for a check, at most.
	healthEvery = time.Second
	// askedFor is for how long is remembered since when a batch fails as it does.
	askedFor = time.Minute
)

// releaseHealths makes the checks of type podHealth, from the caches. For a batch with pods
// that fail it looks at how all pods of the release are. Where pods fail in many batches at
// once it looks for all of them together: each waits until all pods were looked at after it was seen to fail as it does now. So the
// last of the batches that fail sees all others, as if each had looked by itself.
type releaseHealths struct {
	view  cluster.View
	clock clock.PassiveClock

	mu sync.Mutex
	// moment numbers what happens, in its order.
	moment int64
	forgot time.Time
	known  map[healthKey]*releaseHealth
	asked  map[askedKey]asked
}

type healthKey struct {
	release    types.UID
	attempt    int32
	observed   int64
	check      string
	generation int64
}

type askedKey struct {
	batch types.UID
	check string
}

// asked is since when a batch fails as it does.
type asked struct {
	moment int64
	since  time.Time
	// failing are its pods that fail, and how.
	failing string
}

// releaseHealth is how all pods of a release were.
type releaseHealth struct {
	moment         int64
	at             time.Time
	total, failing int
	batches        map[types.UID]batchHealth
	old            []workload.Pod
}

type batchHealth struct{ total, failing int }

func newReleaseHealths(c *cluster.Cluster) *releaseHealths {
	return &releaseHealths{view: c.View, clock: c.Clock, known: map[healthKey]*releaseHealth{}, asked: map[askedKey]asked{}}
}

// next makes one step of a check: when a pod of the batch changes, and when the time of the
// check is over.
func (r *releaseHealths) next(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, after time.Duration, err error) {
	pods, err := observed(ctx, r.view, s.Batch)
	if err != nil {
		return next, 0, err
	}
	in := podHealthInput{Now: r.clock.Now(), Check: of, Status: followed(c, of, s), Pods: pods}
	plan := decidePodHealth(in)
	if plan.Failing != "" {
		if in.Around, after, err = r.health(ctx, s, of, pods, plan.Failing); in.Around == nil {
			return *c, after, err
		}
		plan = decidePodHealth(in)
	}
	return plan.Status, plan.After, nil
}

// health says how the pods around a batch are, which has these pods, of which some fail.
// It returns nil, and when to ask again, where that is to be seen only later.
func (r *releaseHealths) health(
	ctx context.Context, s *Subject, check *policy.Check, pods []workload.Pod, failing string,
) (*healthAround, time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	asks := askedKey{s.Batch.UID, check.Name}
	waits, ok := r.asked[asks]
	if !ok || waits.failing != failing {
		r.moment++
		waits = asked{r.moment, now, failing}
		r.asked[asks] = waits
	}
	key := healthKey{s.Release.UID, s.Release.Status.Attempt, s.Release.Status.ObservedRelease, check.Name, check.Generation}
	known, left := r.known[key], time.Duration(0)
	if known != nil {
		left = healthEvery - now.Sub(known.at)
	}
	switch fresh := left > 0 && left <= healthEvery; {
	case fresh && known.moment < waits.moment:
		return nil, left, nil
	case !fresh:
		r.moment++
		moment, err := r.moment, error(nil)
		if known, err = r.look(ctx, s, check); err != nil {
			return nil, 0, err
		}
		known.moment, known.at = moment, now
		r.known[key] = known
	}
	return known.around(s.Batch.UID, pods), 0, nil
}

// forget drops what is of no use any more, now and then. A batch that comes after that
// only waits anew.
func (r *releaseHealths) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if now.Sub(r.forgot).Abs() < askedFor {
		return
	}
	r.forgot = now
	maps.DeleteFunc(r.known, func(_ healthKey, h *releaseHealth) bool { return now.Sub(h.at).Abs() > healthEvery })
	maps.DeleteFunc(r.asked, func(_ askedKey, a asked) bool { return now.Sub(a.since).Abs() > askedFor })
}

// around is how the pods around a batch are, of which these are.
func (h *releaseHealth) around(batch types.UID, pods []workload.Pod) *healthAround {
	mine := h.batches[batch]
	around := &healthAround{total: h.total - mine.total, failing: h.failing - mine.failing, old: h.old}
	for i := range pods {
		if !pods[i].Terminating && !pods[i].Ended {
			around.total++
		}
	}
	return around
}

// look looks at all pods of a release.
func (r *releaseHealths) look(ctx context.Context, s *Subject, check *policy.Check) (*releaseHealth, error) {
	batches, err := r.view.Batches(ctx, s.Release)
	if err != nil {
		return nil, err
	}
	pods, err := r.view.Pods(ctx, s.Workload)
	if err != nil {
		return nil, err
	}
	there := make(map[types.UID]*workload.Pod, len(pods))
	for i := range pods {
		if !pods[i].Terminating && !pods[i].Ended {
			there[pods[i].UID] = &pods[i]
		}
	}
	now := r.clock.Now()
	h := &releaseHealth{batches: make(map[types.UID]batchHealth, len(batches))}
	for _, b := range record.CountingBatches(s.Release, batches) {
		found := inBatch(b, there)
		of := batchHealth{total: len(found)}
		if c := record.FindCheck(b.Status.Checks, check.Name); c != nil {
			of.failing = countFailing(podHealthInput{Now: now, Check: check, Status: *c, Pods: found})
		}
		h.batches[b.UID] = of
		h.total, h.failing = h.total+of.total, h.failing+of.failing
	}
	h.old, err = r.view.OldPods(ctx, s.Workload)
	return h, err
}

func inBatch(batch *v1alpha1.ChangePod, there map[types.UID]*workload.Pod) []workload.Pod {
	found := make([]workload.Pod, 0, len(batch.Spec.PodInfos))
	for i := range batch.Spec.PodInfos {
		if pod, ok := there[types.UID(batch.Spec.PodInfos[i].UID)]; ok {
			found = append(found, *pod)
		}
	}
	return found
}
