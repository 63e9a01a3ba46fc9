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

package rollback

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// A controller that replaces pods one after the other may wait forever for a pod of an abandoned
// version, which a rollback or a fix replaced: the pod never becomes Ready, and the controller
// replaces only Ready pods. The operator evicts such a pod.

// EvictAfter is how long a pod has to be not Ready since its version was abandoned.
const EvictAfter = 30 * time.Second

// recreatedAfter is how long after its version was abandoned a pod has to be created to count as
// recreated: a controller or a clock may be behind.
const recreatedAfter = time.Minute

// EvictionPlan is the result of DecideEviction.
type EvictionPlan struct {
	// Idle: no pod is stuck, or the operator may not act.
	Idle bool
	// NeedsLive: read workload and pods from the API server and decide again.
	NeedsLive bool
	// Waits is what has to happen before the next pod is evicted.
	Waits string
	// Stuck is a stuck pod. Evict: it is evicted; otherwise Block is why not. Left is why its version
	// was abandoned.
	Stuck *workload.Place
	Evict bool
	Block *EvictionBlock
	Left  Leaving
	// RequeueAfter is when to decide again, if nothing happens before.
	RequeueAfter time.Duration
}

// MayNeedEviction reports whether a later release replaced a version of a workload, so that pods of
// that version may be stuck.
func MayNeedEviction(w *workload.Workload) bool {
	return w.Release() > 1 || w.Annotations[v1alpha1.QuarantineReasonAnnotation] != ""
}

// DecideEviction decides which pod of a workload is evicted so that its controller continues.
//
// The quarantine of the workload, or the records of its releases, tell which versions were
// abandoned: a restarted operator, and another replica, decide the same. One pod is evicted at a
// time, the last one first, and only while all pods of the current version that the controller
// would create before it are available, so the effect of an eviction is known before the next. In
// order, later pods may need the stuck pod.
func DecideEviction(in EvictionInput) EvictionPlan {
	if in.mayEvict() && in.unclear() {
		return EvictionPlan{Waits: "the template to be seen by its controller, and recorded", RequeueAfter: LookAgain}
	}
	in.fates = in.left()
	stuck := in.stuck()
	if len(stuck) == 0 {
		return EvictionPlan{Idle: true}
	}
	plan := EvictionPlan{RequeueAfter: LookAgain}
	if plan.Waits = in.waits(stuck); plan.Waits != "" {
		return plan
	}
	due := func(p *workload.Place) time.Time {
		return times.Latest(in.fates(p.Version).At, stuckSince(p, in.Now)).Add(in.After)
	}
	if wait := in.tooYoung(stuck, due); wait > 0 {
		plan.Waits, plan.RequeueAfter = "a pod to be stuck for longer", min(wait, LookAgain)
		return plan
	}
	if !in.Live {
		return EvictionPlan{NeedsLive: true}
	}
	chosen, why := in.choose(stuck, func(p *workload.Place) bool { return !due(p).After(in.Now) && !in.isBehind(p) })
	plan.Stuck = chosen
	plan.Left = in.fates(chosen.Version)
	switch {
	case why != nil:
		plan.Block = why.block(in.Workload, &plan)
	case !in.Settings.Eviction:
		plan.Block = BlockedEviction(in.Workload, &plan, v1alpha1.ReasonNotEvicted, "the setting eviction is off")
	}
	plan.Evict = plan.Block == nil
	return plan
}

// choose returns the last pod that is due and would be recreated from another version; why is set
// if there is none. In order, no eviction helps before the first pod is replaced.
func (in *EvictionInput) choose(stuck []*workload.Place, toGo func(*workload.Place) bool) (chosen *workload.Place, why *obstacle) {
	first := stuck[len(stuck)-1]
	if why = in.recreates(first, stuck); why != nil && in.Places.Ordered {
		return first, why
	}
	for _, p := range stuck {
		if !toGo(p) {
			continue
		}
		is := in.recreates(p, stuck)
		if is == nil {
			return p, nil
		}
		if chosen == nil {
			chosen, why = p, is
		}
	}
	return chosen, why
}

// obstacle is why a pod is not evicted. command, if set, removes the obstacle; byHand: the user
// should delete the pod then.
type obstacle struct {
	reason, why, command string
	byHand               bool
}

// recreates returns why a pod would be recreated from an abandoned version; nil if it would not. A
// controller creates the previous revision for pods below the partition of a hold. Without a
// partition in the update strategy, it does so for the first pods, as many as are of that revision.
// A pod of an unknown version stays, too. A pod that was created long after its version was
// abandoned shows that it was recreated.
func (in *EvictionInput) recreates(p *workload.Place, stuck []*workload.Place) *obstacle {
	w, left, again := in.Workload, in.fates(p.Version), in.fates(in.Places.Kept).Fate == FateBad
	switch {
	case left.Fate == FateUnknown:
		return &obstacle{
			reason: v1alpha1.ReasonNotEvicted,
			why:    "neither a record nor the history of successes has its version, so the version may be good", byHand: true,
		}
	case again && p.Index < w.Pace.Partition:
		return &obstacle{
			why: "its controller recreates it from an abandoned version while the rollout is held; " +
				"end the hold, and it is evicted (if a policy holds, see docs/tasks/hold-rollouts.md)",
			command: fmt.Sprintf("annotate --overwrite %s %sholding=disabled", wording.ShellWord(w.Kind()+"/"+w.Name),
				v1alpha1.SettingAnnotationPrefix),
		}
	case again && w.Bare && p.Index < in.kept(p, stuck):
		return &obstacle{
			why: "its controller recreates it from an abandoned version, because the update strategy has no partition; " +
				"set one, and the pod is evicted",
			command: w.Words.GoOn,
		}
	case p.Created.Before(left.At.Add(recreatedAfter)):
		return nil
	case w.Bare:
		return &obstacle{
			why:     "its controller recreated it from that version; set a partition in the update strategy",
			command: w.Words.GoOn, byHand: true,
		}
	}
	return &obstacle{why: "its controller recreated it from that version", byHand: true}
}

// kept returns how many pods are of the previous revision when one of the stuck pods is recreated.
// In order, all stuck pods have been replaced by then.
func (in *EvictionInput) kept(p *workload.Place, stuck []*workload.Place) (n int32) {
	for i := range in.Places.Pods {
		other := &in.Places.Pods[i]
		goes := other == p || in.Places.Ordered && slices.Contains(stuck, other)
		if other.Version == in.Places.Kept && other.Live() && !goes {
			n++
		}
	}
	return n
}

// mayEvict reports whether the controller replaces pods of the workload and the operator may evict
// them.
func (in *EvictionInput) mayEvict() bool {
	w := in.Workload
	return in.Enrolled && !w.Deleting && !workload.OptedOut(w.Labels) && !in.Settings.Observe && w.ObservingOwner() == "" &&
		!w.Paused && !w.OnDelete
}

// unclear reports whether the pods are not known yet: the controller has not observed the template,
// or the release is not recorded.
func (in *EvictionInput) unclear() bool {
	w := in.Workload
	return w.Rollout.Stale || w.Revision == "" || w.RecordedVersion() != w.Version
}

// stuck returns the pods that are not Ready and whose version is not known to be good, the last one
// first. The controller does not replace pods that a user's partition keeps, or surplus pods. The
// partition of a hold keeps no pod here: the rollout that it holds waits for these pods.
func (in *EvictionInput) stuck() (stuck []*workload.Place) {
	if !in.mayEvict() {
		return nil
	}
	for i := range in.Places.Pods {
		p := &in.Places.Pods[i]
		if p.Live() && !p.Ready && !p.Current && p.Index >= in.Workload.Partition && in.has(p) && in.fates(p.Version).Fate != FateGood {
			stuck = append(stuck, p)
		}
	}
	slices.SortFunc(stuck, func(a, b *workload.Place) int { return int(b.Index - a.Index) })
	return stuck
}

// has reports whether the workload should have a pod at this place.
func (in *EvictionInput) has(p *workload.Place) bool {
	return p.Index >= 0 && p.Index < in.Workload.Replicas
}

// waits returns what delays an eviction: the controller is at work, or the time of the abandonment
// is not recorded yet.
func (in *EvictionInput) waits(stuck []*workload.Place) string {
	for _, p := range stuck {
		if l := in.fates(p.Version); l.Fate == FateBad && l.At.IsZero() {
			return "the release to be recorded"
		}
	}
	for i := range in.Places.Pods {
		switch p := &in.Places.Pods[i]; {
		case p.Terminating:
			return fmt.Sprintf("the pod %s to be gone", p.Name)
		case p.Ended:
			return fmt.Sprintf("the pod %s to be replaced", p.Name)
		case !in.Places.Ordered && p.Current && in.has(p) && !in.available(p):
			return fmt.Sprintf("the pod %s to be available", p.Name)
		}
	}
	return in.waitsForFirst(stuck)
}

// isBehind reports whether the controller creates a pod only after a pod of the current version
// that is not available. The first stuck pod, for which the controller waits, is never behind.
func (in *EvictionInput) isBehind(stuck *workload.Place) bool {
	return in.Places.Ordered && slices.ContainsFunc(in.Places.Pods, func(p workload.Place) bool {
		return p.Current && in.has(&p) && p.Index < stuck.Index && !in.available(&p)
	})
}

// waitsForFirst returns the first pod that is not available, for which the controller waits; it
// creates a missing pod. If the controller creates all pods at once, only a missing pod counts.
func (in *EvictionInput) waitsForFirst(stuck []*workload.Place) string {
	at := map[int32]*workload.Place{}
	for i := range in.Places.Pods {
		at[in.Places.Pods[i].Index] = &in.Places.Pods[i]
	}
	for index := range in.Workload.Replicas {
		p := at[index]
		switch {
		case p == nil:
			return "the pod " + in.Workload.Name + " number " + strconv.Itoa(int(index)+1) + " to be created"
		case !in.Places.Ordered || in.available(p):
		case slices.Contains(stuck, p):
			return ""
		default:
			return fmt.Sprintf("the pod %s to be available", p.Name)
		}
	}
	return ""
}

// available reports whether a pod has been Ready for the minReadySeconds of the workload.
func (in *EvictionInput) available(p *workload.Place) bool {
	return p.Ready && p.Live() && !p.Bounded(p.ReadySince, in.Now).Add(in.Workload.MinReady).After(in.Now)
}

// tooYoung returns how long until a pod may be evicted: in order the first stuck pod, for which the
// controller waits, otherwise any pod.
func (in *EvictionInput) tooYoung(stuck []*workload.Place, due func(*workload.Place) time.Time) time.Duration {
	if in.Places.Ordered {
		return due(stuck[len(stuck)-1]).Sub(in.Now)
	}
	first := due(stuck[0])
	for _, p := range stuck[1:] {
		if at := due(p); at.Before(first) {
			first = at
		}
	}
	return first.Sub(in.Now)
}

// stuckSince returns since when a pod has not been Ready.
func stuckSince(p *workload.Place, now time.Time) time.Time {
	if p.UnreadySince.IsZero() {
		return p.Created
	}
	return p.Bounded(p.UnreadySince, now)
}

// describeStuck describes a stuck pod.
func describeStuck(w *workload.Workload, plan *EvictionPlan) string {
	return fmt.Sprintf("pod %s of version %s, which was abandoned (%s), is not ready, and the %s does not replace it",
		plan.Stuck.Name, cmp.Or(plan.Stuck.Version, "unknown"), plan.Left.Cause, w.Kind())
}

// Evicted returns the event of an eviction.
func Evicted(w *workload.Workload, plan *EvictionPlan) record.Event {
	return record.Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.EventPodEvicted,
		Message: fmt.Sprintf("version %s: %s: it was evicted", w.Version, describeStuck(w, plan))}
}

// EvictionBlock is why a stuck pod is not evicted, for the condition EvictionBlocked.
type EvictionBlock struct{ Reason, Message string }

// BlockedEviction returns the block of a plan; reason and why are the obstacle.
func BlockedEviction(w *workload.Workload, plan *EvictionPlan, reason, why string) *EvictionBlock {
	return &EvictionBlock{
		Reason: reason, Message: fmt.Sprintf("%s: %s%s", describeStuck(w, plan), wording.Brief(why), deleteByHand(plan.Stuck)),
	}
}

func deleteByHand(p *workload.Place) string {
	return ". If the application tolerates it, delete the pod yourself: " + wording.Kubectl(deletePod+wording.ShellWord(p.Name), p.Namespace)
}

// block returns the block because of an obstacle.
func (o *obstacle) block(w *workload.Workload, plan *EvictionPlan) *EvictionBlock {
	why := fmt.Sprintf("%s: %s", describeStuck(w, plan), o.why)
	if o.command != "" {
		why += ": " + wording.Kubectl(o.command, w.Namespace)
	}
	if o.byHand {
		why += deleteByHand(plan.Stuck)
	}
	return &EvictionBlock{Reason: cmp.Or(o.reason, v1alpha1.ReasonRecreated), Message: why}
}

const deletePod = "delete pod "

// PodToDelete returns the pod that a message of the condition EvictionBlocked names at its end. The
// message may quote a refusal with any text before that.
func PodToDelete(message string) (pod string, ok bool) {
	at := strings.LastIndex(message, deletePod)
	if at < 0 {
		return "", false
	}
	pod, _, _ = strings.Cut(message[at+len(deletePod):], " ")
	return pod, len(validation.IsDNS1123Subdomain(pod)) == 0
}

// NoteEviction writes the block of an eviction, or that it is over, into the status of the current
// release of a workload. changed: the status has to be written. event is set if the block is new.
func NoteEviction(
	status *v1alpha1.ChangeWorkloadStatus, w *workload.Workload, generation int64, now time.Time, block *EvictionBlock,
) (changed bool, event *record.Event) {
	said := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionEvictionBlocked)
	blocked := said != nil && said.Status == metav1.ConditionTrue
	c := record.ConditionsOfRelease(status, generation, now)
	switch {
	case block == nil && !blocked:
		return false, nil
	case block == nil:
		c.Set(v1alpha1.ConditionEvictionBlocked, metav1.ConditionFalse, v1alpha1.ReasonRecovered, "")
		return true, nil
	case blocked && said.Reason == block.Reason && record.Detail(said) == block.Message:
		return false, nil
	}
	if !blocked || said.Reason != block.Reason {
		event = &record.Event{
			Type: corev1.EventTypeWarning, Reason: v1alpha1.EventEvictionBlocked, Message: fmt.Sprintf("version %s: %s", w.Version, block.Message),
		}
	}
	c.Set(v1alpha1.ConditionEvictionBlocked, metav1.ConditionTrue, block.Reason, "%s", block.Message)
	return true, event
}

const (
	// firstEvictionRetry and maxEvictionRetry bound how long a refused eviction waits for the next
	// try.
	firstEvictionRetry = 10 * time.Second
	maxEvictionRetry   = 5 * time.Minute
)

// RetryEviction returns how long a refused eviction waits for the next try: as long as it has been
// refused.
func RetryEviction(status *v1alpha1.ChangeWorkloadStatus, now time.Time) time.Duration {
	refused := time.Duration(0)
	if said := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionEvictionBlocked); said != nil &&
		said.Status == metav1.ConditionTrue {
		refused = now.Sub(said.LastTransitionTime.Time)
	}
	return min(max(refused, firstEvictionRetry), maxEvictionRetry)
}
