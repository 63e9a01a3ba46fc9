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

package verify

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
)

// pace bounds the order entries of batches that are open at AlterShield Server. A server with more open checks
// than it can make ends all of them too late, and then their pods pass without a verdict; so further batches
// wait for their start. While batches wait, the bound grows by half when the checks of as many entries ended in
// good time; it is halved when one is late. A batch waits no longer than both checks may take after the last verdict:
// then the thresholds of the settings bound the delay.
//
// pace knows what this process saw. A process that becomes the leader sees all batches first, perhaps after it
// started a few.
type pace struct {
	mu sync.Mutex
	// open has the time until which an open entry counts, by its batch.
	open map[types.NamespacedName]time.Time
	// waiting has the batches that wait for their start.
	waiting map[types.NamespacedName]waiting
	limit   float64
	// halved is the time when the limit was halved, and progress the time of the last verdict.
	halved, progress time.Time
	// took is the mean time of the last entries.
	took time.Duration
}

// waiting has since when a batch waits, and when it asked last.
type waiting struct{ since, asked time.Time }

const (
	// firstOpen is the first bound of open entries, and fewestOpen the least.
	firstOpen, fewestOpen = 200, 20
	// mostWait is the longest time until a waiting batch asks again.
	mostWait = 15 * time.Second
	// asksWithin is the time within which a waiting batch asks again; one that does not has left.
	asksWithin = time.Minute
)

// lock returns the function that unlocks, and reports the numbers of batches.
func (p *pace) lock() (unlock func()) {
	p.mu.Lock()
	return func() {
		metrics.ServerBatches(len(p.open), len(p.waiting))
		p.mu.Unlock()
	}
}

func newPace() *pace {
	return &pace{open: map[types.NamespacedName]time.Time{}, waiting: map[types.NamespacedName]waiting{}, limit: firstOpen}
}

// see notes the state of a batch.
func (p *pace) see(key types.NamespacedName, s *v1alpha1.ChangePodStatus, set *settings.Settings, now time.Time) {
	defer p.lock()()
	switch s.Status {
	case v1alpha1.ChangePodPreSubmitted, v1alpha1.ChangePodPostWait, v1alpha1.ChangePodPostSubmitted:
		if _, ok := p.open[key]; !ok {
			p.start(key, set, now)
		}
	case v1alpha1.ChangePodExecuteDone:
		if _, ok := p.open[key]; ok {
			p.ended(s, set, now)
		}
		delete(p.open, key)
		delete(p.waiting, key)
	default:
	}
}

// wait returns how long a batch waits until it asks again whether its entry may be started; 0 if it is started now.
func (p *pace) wait(key types.NamespacedName, set *settings.Settings, now time.Time) time.Duration {
	defer p.lock()()
	if _, ok := p.open[key]; ok { // the server lost its entry
		return 0
	}
	since := now
	if w, ok := p.waiting[key]; ok {
		since = w.since
	}
	if float64(len(p.open)) >= p.limit {
		p.prune(now)
	}
	quiet := now.Sub(since) > allowed(set) && now.Sub(p.progress) > allowed(set)
	if float64(len(p.open)) < p.limit || quiet {
		p.start(key, set, now)
		return 0
	}
	p.waiting[key] = waiting{since, now}
	// In this time a quarter of the waiting batches get their turn.
	turns := time.Duration(float64(p.took) * float64(len(p.waiting)) / p.limit / 4)
	return min(max(turns, time.Second), mostWait)
}

// prune drops batches that the controller no longer sees, such as those of a workload that opted out.
func (p *pace) prune(now time.Time) {
	maps.DeleteFunc(p.open, func(_ types.NamespacedName, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(p.waiting, func(_ types.NamespacedName, w waiting) bool { return now.Sub(w.asked) > asksWithin })
}

// forget drops a batch that no longer exists, or whose entry was not started.
func (p *pace) forget(key types.NamespacedName) {
	defer p.lock()()
	delete(p.open, key)
	delete(p.waiting, key)
}

func (p *pace) start(key types.NamespacedName, set *settings.Settings, now time.Time) {
	delete(p.waiting, key)
	p.open[key] = now.Add(2 * allowed(set))
}

// ended adapts the bound to the time of an entry.
func (p *pace) ended(s *v1alpha1.ChangePodStatus, set *settings.Settings, now time.Time) {
	began, post := times.FromUnix(s.PreSubmitTimeUnix), times.FromUnix(s.PostSubmitTimeUnix)
	if began.IsZero() {
		return
	}
	if post.IsZero() {
		post = now
	}
	late := s.Message == string(v1alpha1.ChangePodPreTimeout) || s.Message == string(v1alpha1.ChangePodPostTimeout) ||
		post.Sub(began) > set.PreTimeout*3/4 || now.Sub(post) > set.PostTimeout*3/4
	if s.Message == v1alpha1.ChangePodMessagePostFinish { // by a callback, or by a poll
		p.progress = now
		p.took += (now.Sub(began) - p.took) / 8
	}
	switch {
	case late && now.Sub(p.halved) > allowed(set)/2:
		p.limit, p.halved = max(p.limit/2, fewestOpen), now
	case !late && len(p.waiting) > 0:
		p.limit += 0.5
	}
}

// allowed is the time that both checks of an entry may take.
func allowed(set *settings.Settings) time.Duration { return set.PreTimeout + set.PostTimeout }
