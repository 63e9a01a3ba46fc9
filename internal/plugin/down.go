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

package plugin

import (
	"fmt"
	"time"

	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// evictedWithin is how long the operator may take to evict a pod that is stuck: its wait, and as long for the new pod.
const evictedWithin = 4 * rollback.EvictAfter

// downPod is a pod in CrashLoopBackOff, or a pod of an earlier version that is not Ready and for which a StatefulSet waits.
type downPod struct {
	*workload.Pod
	old bool
}

// down returns the pods that are down.
func (s *snapshot) down() (down []downPod) {
	add := func(pods []workload.Pod, old bool) {
		for i := range pods {
			p := &pods[i]
			if p.CrashLoop != nil && !p.Terminating && !p.Ended ||
				old && !p.Terminating && !p.Ended && !p.Ready && s.waitsFor(p) && stuckFor(p, s.now) >= rollback.EvictAfter {
				down = append(down, downPod{p, old})
			}
		}
	}
	add(s.pods, false)
	for i := range s.old {
		add(s.old[i].pods, true)
	}
	return down
}

// waitsFor reports whether a StatefulSet waits for a pod of an earlier version, and creates it from the current version when it is deleted.
func (s *snapshot) waitsFor(p *workload.Pod) bool {
	w := s.workload
	return s.isStatefulSet() && !w.Paused && !w.OnDelete && p.Index >= w.Partition && p.Index >= w.Pace.Partition && p.Index < w.Replicas
}

func (s *snapshot) isStatefulSet() bool {
	return s.workload.GVK.GroupKind() == (workload.StatefulSet{}).GroupVersionKind().GroupKind()
}

// stuckFor returns for how long a pod has not been Ready.
func stuckFor(p *workload.Pod, now time.Time) time.Duration {
	since := p.UnreadySince
	if since.Before(p.Created) {
		since = p.Created
	}
	return now.Sub(since)
}

func (p *downPod) describe() string {
	what, version := "not Ready", ""
	if c := p.CrashLoop; c != nil {
		what = "container " + c.Container + " is in CrashLoopBackOff"
		if c.Message != "" {
			what += " (" + c.Message + ")"
		}
	} else if p.Stuck != nil {
		what = p.Stuck.String()
	}
	if p.old {
		version = " of an earlier version"
	}
	return fmt.Sprintf("pod %s%s: %s", p.Name, version, what)
}
