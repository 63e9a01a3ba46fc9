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

package judge

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/aclements/go-moremath/stats"
)

const (
	// restartsAlpha is the share of healthy releases whose new pods may be reported to restart more often.
	restartsAlpha = 0.01
	// sameShare of old pods that restart at the same time have a cause in common with the new ones.
	sameShare = 0.1
	// sameTime is the time before and after the check of a new pod that counts as the same time.
	sameTime = time.Minute
	// nodeShare of the new pods that restart may be on one node: with more of them, the node is the cause.
	nodeShare = 0.8
)

// PodRestarts are the restarts of a pod.
type PodRestarts struct {
	// Node of the pod; pods without a node count as on one node.
	Node string
	// From is the start of the check of a new pod, and Until is its end, or now. Of an old pod, From is its creation.
	From, Until time.Time
	// Restarted reports whether a container was restarted: of a new pod since From and until Until, of an old pod ever. Old pods are known
	// by their last restart only, so that any restart may have been soon after the start.
	Restarted bool
	// Last is the last restart of an old pod.
	Last time.Time
}

// Restarts compares the new pods of one release with its old pods, again and again. A rolling update removes old pods that fail before
// others, so it remembers the largest shares of old pods.
type Restarts struct {
	// ever is the share of old pods that were restarted since their creation, and same the share that was together with new pods.
	ever, same float64
}

// Compare returns a sentence if new pods are restarted more often while they are checked than old pods in all their life, and not by a
// cause in common; empty if not.
func (r *Restarts) Compare(fresh, old []PodRestarts) string {
	if len(fresh) == 0 {
		return ""
	}
	began := slices.MinFunc(fresh, func(a, b PodRestarts) int { return a.From.Compare(b.From) }).From
	old = slices.DeleteFunc(slices.Clone(old), func(p PodRestarts) bool { return !p.From.Before(began) })
	if len(old) == 0 {
		return ""
	}
	count := func(of func(PodRestarts) bool) (n int) {
		for _, p := range old {
			if p.Restarted && of(p) {
				n++
			}
		}
		return n
	}
	failed, worst, nodes := 0, 0, map[string]int{}
	for _, p := range fresh {
		if p.Restarted {
			nodes[p.Node]++
			failed, worst = failed+1, max(worst, nodes[p.Node])
			r.same = max(r.same, float64(count(func(o PodRestarts) bool {
				return !o.Last.Before(p.From.Add(-sameTime)) && !o.Last.After(p.Until.Add(sameTime))
			}))/float64(len(old)))
		}
	}
	ever := count(func(PodRestarts) bool { return true })
	r.ever = max(r.ever, float64(ever)/float64(len(old)))
	if float64(worst) > nodeShare*float64(failed) || r.same >= sameShare || r.chance(failed, len(fresh), len(old)) > restartsAlpha {
		return ""
	}
	return fmt.Sprintf("%d of %s restarted while they were checked, and %d of %s ever", failed, counted(len(fresh), "new pod"), ever,
		counted(len(old), "old pod"))
}

// chance returns how probable it is that as many new pods are restarted if they are restarted as often as old ones: Fisher's exact test.
func (r *Restarts) chance(failed, fresh, old int) float64 {
	all := stats.HypergeometicDist{N: fresh + old, K: failed + int(math.Ceil(r.ever*float64(old)-1e-9)), Draws: fresh}
	return 1 - all.CDF(float64(failed-1))
}
