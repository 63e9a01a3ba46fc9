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
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// compareEvery is the least time between two comparisons of a release. After three times as long, the half minute begins again.
	compareEvery = 5 * time.Second
	// confirmAfter is how long new pods have to be worse than old ones until it is reported: restarts of old pods by the same cause may
	// be in the caches later.
	confirmAfter = 30 * time.Second
	// maxComparisons is the number of releases whose comparison is remembered.
	maxComparisons = 1000
)

// restartComparer compares the restarts of all new pods of a release with the restarts of its old pods, from the caches, and reports once
// that new pods are worse. No pod fails because of it, so its memory may be lost.
type restartComparer struct {
	*cluster.Cluster

	mu sync.Mutex
	// known has a *releaseRestarts for the UID of each ChangeWorkload.
	known *lru.Cache
}

// releaseRestarts is what is known of an attempt of a release.
type releaseRestarts struct {
	attempt  int32
	observed int64
	restarts judge.Restarts
	// at is the time of the last comparison. New pods were worse from since to last, without a break.
	at, since, last time.Time
	reported        bool
}

func newRestartComparer(c *cluster.Cluster) *restartComparer {
	return &restartComparer{Cluster: c, known: lru.New(maxComparisons)}
}

// next compares the pods of a release if a pod of the batch restarted. It returns the time until the next comparison; 0 for the next
// restart.
func (c *restartComparer) next(
	ctx context.Context, s *Subject, of *policy.Check, status *v1alpha1.CheckStatus, pods []workload.Pod,
) time.Duration {
	now := c.Clock.Now()
	if _, restarted := restartsOf(now, status, pods); restarted == "" || !*of.PodHealth.CompareOldPods {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.of(s.Release)
	if known.reported {
		return 0
	}
	if left := compareEvery - now.Sub(known.at); left > 0 && left <= compareEvery {
		return left
	}
	fresh, old, pod, err := c.read(ctx, s, now)
	if err != nil { // it must not delay the check
		log.FromContext(ctx).Error(err, "restarts are not compared with those of old pods")
		return compareEvery
	}
	found := known.restarts.Compare(fresh, old)
	if after := known.confirm(now, found != ""); found == "" || after > 0 {
		return after
	}
	known.reported = true
	c.Event(s.Workload, s.Release, record.Event{
		Type: corev1.EventTypeWarning, Reason: v1alpha1.EventMoreRestarts,
		Message: found + "; see kubectl logs --previous -n " + s.Release.Namespace + " " + pod,
	}, "Verify")
	return 0
}

// of returns what is known of the current attempt of a release.
func (c *restartComparer) of(change *v1alpha1.ChangeWorkload) *releaseRestarts {
	attempt, observed := change.Status.Attempt, change.Status.ObservedRelease
	if v, ok := c.known.Get(change.UID); ok {
		if known, ok := v.(*releaseRestarts); ok && known.attempt == attempt && known.observed == observed {
			return known
		}
	}
	known := &releaseRestarts{attempt: attempt, observed: observed}
	c.known.Add(change.UID, known)
	return known
}

// confirm notes a comparison, and returns the time until it is repeated; 0 if new pods are not worse, or were for long enough.
func (c *releaseRestarts) confirm(now time.Time, worse bool) time.Duration {
	c.at = now
	if !worse {
		c.last = time.Time{}
		return 0
	}
	if gap := now.Sub(c.last); gap < 0 || gap > 3*compareEvery {
		c.since = now
	}
	c.last = now
	return max(0, min(compareEvery, confirmAfter-now.Sub(c.since)))
}

// read reads the restarts of all pods of a release while they are checked, and of its old pods, and the name of a new pod that restarted.
func (c *restartComparer) read(
	ctx context.Context, s *Subject, now time.Time,
) (fresh, old []judge.PodRestarts, restarted string, err error) {
	batches, err := c.Batches(ctx, s.Release)
	if err != nil {
		return nil, nil, "", err
	}
	pods, err := c.Pods(ctx, s.Workload)
	if err != nil {
		return nil, nil, "", err
	}
	there := make(map[types.UID]*workload.Pod, len(pods))
	for i := range pods {
		there[pods[i].UID] = &pods[i]
	}
	for _, b := range record.CountingBatches(s.Release, batches) {
		if longest := longestPodHealth(b.Status.Checks); longest != nil {
			all, pod := restartsOf(now, longest, inBatch(b, there))
			fresh = append(fresh, all...)
			if pod != "" && (restarted == "" || pod < restarted) {
				restarted = pod
			}
		}
	}
	pods, err = c.OldPods(ctx, s.Workload)
	for i := range pods {
		if p := &pods[i]; !p.Excused() {
			old = append(old, judge.PodRestarts{From: p.Created, Restarted: p.Restarts > 0, Last: p.Bounded(p.EndedAt, now)})
		}
	}
	return fresh, old, restarted, err
}

// longestPodHealth returns the check of type podHealth that ends last; nil for none.
func longestPodHealth(checks []v1alpha1.CheckStatus) (longest *v1alpha1.CheckStatus) {
	for i := range checks {
		c := &checks[i]
		if c.Type == v1alpha1.CheckTypePodHealth && c.StartTime != nil && (longest == nil || timeOf(c.DueTime).After(timeOf(longest.DueTime))) {
			longest = c
		}
	}
	return longest
}

// restartsOf returns the restarts of the pods of a batch during a check, and the first pod that restarted.
func restartsOf(now time.Time, c *v1alpha1.CheckStatus, pods []workload.Pod) (all []judge.PodRestarts, restarted string) {
	h := newPodHealth(podHealthInput{Now: now, Check: &policy.Check{}, Status: *c, Pods: pods})
	for i := range pods {
		p := &pods[i]
		if p.Excused() || p.NodeRestarted {
			continue
		}
		of := judge.PodRestarts{Node: p.Node, From: h.begun, Until: earliest(now, h.due), Restarted: h.restarts(p) > 0}
		if of.Restarted && (restarted == "" || p.Name < restarted) {
			restarted = p.Name
		}
		all = append(all, of)
	}
	return all, restarted
}
