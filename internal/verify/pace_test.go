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
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// paced plays batches that are created at once, and a server that makes checks in turn, so many in a second.
type paced struct {
	batches   int
	perSecond float64
	// each check takes at least this long.
	least time.Duration
	// unpaced starts all batches at once.
	unpaced bool
	// polled: the verdicts are polled for, so the status has none.
	polled bool
	// before happened before the batches were created.
	before func(p *pace, set *settings.Settings, began time.Time)
}

// outcome has the batches without a verdict, the most open entries at once, and the time until the last batch ended.
type outcome struct {
	unverified, open int
	took             time.Duration
}

func (w paced) run() (o outcome) {
	p, set := newPace(), &settings.Settings{PreTimeout: 2 * time.Minute, PostTimeout: 2 * time.Minute}
	began := time.Unix(1_700_000_000, 0)
	if w.before != nil {
		w.before(p, set, began)
	}
	status, ask := make([]v1alpha1.ChangePodStatus, w.batches), make([]time.Time, w.batches)
	ready := make([]time.Time, w.batches) // when the server ends the current check
	free, left := began, w.batches
	submit := func(i int, now time.Time) {
		if w.perSecond == 0 {
			ready[i] = now.Add(time.Hour)
			return
		}
		free = free.Add(max(now.Sub(free), 0)).Add(time.Duration(float64(time.Second) / w.perSecond))
		ready[i] = free.Add(w.least)
	}
	for now := began; left > 0 && now.Sub(began) < 24*time.Hour; now = now.Add(time.Second) {
		open := 0
		for i := range status {
			s, key := &status[i], types.NamespacedName{Name: fmt.Sprint(i)}
			done := func(message string) {
				s.Status, s.Message = v1alpha1.ChangePodExecuteDone, message
				if message != v1alpha1.ChangePodMessagePostFinish {
					o.unverified++
				} else if !w.polled {
					s.PostVerdict = &v1alpha1.CheckVerdict{Verdict: "pass"}
				}
				left--
				o.took = now.Sub(began)
			}
			switch s.Status {
			case v1alpha1.ChangePodInit:
				if now.Before(ask[i]) {
					continue
				}
				if wait := p.wait(key, set, now); wait > 0 && !w.unpaced {
					ask[i] = now.Add(wait)
					continue
				}
				s.Status, s.PreSubmitTimeUnix = v1alpha1.ChangePodPreSubmitted, now.Unix()
				submit(i, now)
			case v1alpha1.ChangePodPreSubmitted:
				if late := now.Sub(time.Unix(s.PreSubmitTimeUnix, 0)) > set.PreTimeout; late {
					done(string(v1alpha1.ChangePodPreTimeout))
				} else if !now.Before(ready[i]) {
					s.Status, s.PostSubmitTimeUnix = v1alpha1.ChangePodPostSubmitted, now.Unix()
					submit(i, now)
				}
			case v1alpha1.ChangePodPostSubmitted:
				if late := now.Sub(time.Unix(s.PostSubmitTimeUnix, 0)) > set.PostTimeout; late {
					done(string(v1alpha1.ChangePodPostTimeout))
				} else if !now.Before(ready[i]) {
					done(v1alpha1.ChangePodMessagePostFinish)
				}
			default:
				continue
			}
			p.see(key, s, set, now)
			if s.Status != v1alpha1.ChangePodExecuteDone {
				open++
			}
		}
		o.open = max(o.open, open)
	}
	return o
}

// optedOut leaves an open batch and a waiting one that never end: their workload opted out an hour before.
func optedOut(p *pace, set *settings.Settings, began time.Time) {
	earlier := began.Add(-time.Hour)
	p.limit = 1
	p.wait(types.NamespacedName{Name: "open"}, set, earlier)
	p.wait(types.NamespacedName{Name: "waits"}, set, earlier)
	p.limit = firstOpen
}

// TestPace: a server that has more to check than it can gets only as many checks as it ends in time; others are
// not slowed down much.
func TestPace(t *testing.T) {
	for name, test := range map[string]struct {
		world      paced
		unverified int
		within     time.Duration
	}{
		"few batches":                        {paced{batches: 50, perSecond: 100}, 0, 5 * time.Second},
		"a fast server":                      {paced{batches: 900, perSecond: 1000}, 0, time.Minute},
		"a server that makes 10 a second":    {paced{batches: 1800, perSecond: 10}, 0, 7 * time.Minute},
		"a server that makes 3 a second":     {paced{batches: 600, perSecond: 3}, 0, 8 * time.Minute},
		"checks that take a minute":          {paced{batches: 900, perSecond: 1000, least: time.Minute}, 0, 10 * time.Minute},
		"checks that take nearly as allowed": {paced{batches: 300, perSecond: 1000, least: 110 * time.Second}, 0, 20 * time.Minute},
		"a server that is polled":            {paced{batches: 1800, perSecond: 3, polled: true}, 0, 25 * time.Minute},
		"after an hour without a release, and a batch that opted out while it waited": {
			paced{batches: 1800, perSecond: 10, before: optedOut}, 0, 7 * time.Minute},
		"a server that never answers": {paced{batches: 900}, 900, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.world.run()
			if got.unverified != test.unverified || got.took > test.within {
				t.Errorf("%d batches without a verdict, %s; want %d, within %s", got.unverified, got.took, test.unverified, test.within)
			}
		})
	}
	if all := (paced{batches: 1800, perSecond: 10, unpaced: true}).run(); all.unverified < 1000 {
		t.Errorf("all at once: %d of 1,800 batches without a verdict; the tests of the bound mean nothing", all.unverified)
	}
}
