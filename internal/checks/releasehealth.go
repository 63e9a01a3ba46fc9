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
	// healthEvery is the least time between two reads of all pods of a release for a check.
	healthEvery = time.Second
	// askedFor is how long the start of a batch's failure is remembered.
	askedFor = time.Minute
)

// releaseHealths runs the checks of type podHealth, from the caches. For a batch with failing pods
// it reads the health of all pods of the release. If pods fail in many batches at once, one read
// serves them all: each batch waits for a read that began after its failure. So the last batch that
// fails knows of all others.
type releaseHealths struct {
	view  cluster.View
	clock clock.PassiveClock

	mu sync.Mutex
	// moment is a counter that orders failures and reads.
	moment int64
	forgot time.Time
	known  map[healthKey]*releaseHealth
	asked  map[askedKey]asked

	restarts *restartComparer
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

// asked is the start of a batch's current failure.
type asked struct {
	moment int64
	since  time.Time
	// failing describes the failing pods, see podHealthPlan.Failing.
	failing string
}

// releaseHealth is the health of all pods of a release at a time.
type releaseHealth struct {
	moment         int64
	at             time.Time
	total, failing int
	batches        map[types.UID]batchHealth
	old            []workload.Pod
}

type batchHealth struct{ total, failing int }

func newReleaseHealths(c *cluster.Cluster) *releaseHealths {
	return &releaseHealths{view: c.View, clock: c.Clock, known: map[healthKey]*releaseHealth{}, asked: map[askedKey]asked{},
		restarts: newRestartComparer(c)}
}

// next makes one step of a check: when a pod of the batch changes, and when the time of the
// check is over.
func (r *releaseHealths) next(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, after time.Duration, err error) {
	pods, err := podsOfBatch(ctx, r.view, s.Batch)
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
	if again := r.restarts.next(ctx, s, of, &in.Status, pods); again > 0 && (plan.After == 0 || again < plan.After) {
		plan.After = again
	}
	return plan.Status, plan.After, nil
}

// health returns the health of the pods outside a batch that has failing pods; or nil, and the
// time until the next try.
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
		if known, err = r.read(ctx, s, check); err != nil {
			return nil, 0, err
		}
		known.moment, known.at = moment, now
		r.known[key] = known
	}
	return known.around(s.Batch.UID, pods), 0, nil
}

// forget drops old entries now and then. A batch whose entry was dropped waits for another read.
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

// around returns the health of the pods outside a batch, and adds the given pods of the batch to the total.
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

// read reads the health of all pods of a release.
func (r *releaseHealths) read(ctx context.Context, s *Subject, check *policy.Check) (*releaseHealth, error) {
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
