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

// A controller that replaces pods one after the other may wait for ever for one of a
// version that was left, by a rollback or by a fix: it is never ready, and is not replaced
// before it is. Such a pod is evicted.

// EvictAfter is how long a pod has to have been not Ready since the version it is of was
// left.
const EvictAfter = 30 * time.Second

// madeAgainAfter is how long after its version was left a pod has to have been made to
// have been made again of it: a controller, or a clock, may be behind.
const madeAgainAfter = time.Minute

// EvictionPlan is what to do about pods that are stuck.
type EvictionPlan struct {
	// Idle: nothing is stuck, or nothing is to be done about it.
	Idle bool
	// NeedsLive: read workload and pods from the API server and decide again.
	NeedsLive bool
	// Waits is what is waited for before the next pod is evicted.
	Waits string
	// Stuck is the pod to be evicted, and Evict says that it is: else Block tells why not.
	// Left is why its version was left.
	Stuck *workload.Place
	Evict bool
	Block *EvictionBlock
	Left  Leaving
	// RequeueAfter says when to look again, if nothing happens before.
	RequeueAfter time.Duration
}

// MayNeedEviction reports whether a version of a workload was left by a later release, so
// that pods of it may be stuck.
func MayNeedEviction(w *workload.Workload) bool {
	return w.Release() > 1 || w.Annotations[v1alpha1.QuarantineReasonAnnotation] != ""
}

// DecideEviction says which pod of a workload is evicted, so that its controller gets on.
//
// That a version was left the workload itself says, by its quarantine, or the records of
// its releases: a restarted operator, and another replica, decide the same. One pod goes at a time, the last one
// first, and only while every pod of the current version is available that the controller
// would make before: what comes of one eviction is seen before the next. In their order,
// those after it may need the one that is stuck.
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

// choose takes the last pod of those that are to go and would be made of another version;
// why says that there is none. In their order nothing is won before the first one goes.
func (in *EvictionInput) choose(stuck []*workload.Place, toGo func(*workload.Place) bool) (chosen *workload.Place, why *obstacle) {
	first := stuck[len(stuck)-1]
	if why = in.madeAgain(first, stuck); why != nil && in.Places.Ordered {
		return first, why
	}
	for _, p := range stuck {
		if !toGo(p) {
			continue
		}
		is := in.madeAgain(p, stuck)
		if is == nil {
			return p, nil
		}
		if chosen == nil {
			chosen, why = p, is
		}
	}
	return chosen, why
}

// obstacle is why a pod is not evicted. The command, if there is one, removes the cause;
// byHand says that the pod is to be deleted then.
type obstacle struct {
	reason, why, command string
	byHand               bool
}

// madeAgain says why a pod would be made again of a version that was left. Below the
// partition of a hold, its controller makes a pod of the revision before. It does so, too,
// where the update strategy has no partition at all, of as many pods, the first ones, as
// are of that revision. A pod of a version of which nothing is known stays, too.
// Whatever the reason, a pod that was made long after its version
// was left tells that it happens.
func (in *EvictionInput) madeAgain(p *workload.Place, stuck []*workload.Place) *obstacle {
	w, left, again := in.Workload, in.fates(p.Version), in.fates(in.Places.Kept).Fate == FateBad
	switch {
	case left.Fate == FateUnknown:
		return &obstacle{
			reason: v1alpha1.ReasonNotEvicted,
			why:    "neither a record nor the history of successes has its version, so it may be a good one", byHand: true,
		}
	case again && p.Index < w.Pace.Partition:
		return &obstacle{
			why:     "its controller makes it of such a version again while the rollout is held; let that go on, and it is evicted (where a policy holds, see docs/tasks/hold-rollouts.md)",
			command: fmt.Sprintf("annotate --overwrite %s %sholding=disabled", wording.ShellWord(w.Kind()+"/"+w.Name), v1alpha1.SettingAnnotationPrefix),
		}
	case again && w.Bare && p.Index < in.kept(p, stuck):
		return &obstacle{
			why:     "its controller makes it of such a version again, because the update strategy has no partition; give it one, and the pod is evicted",
			command: w.Words.GoOn,
		}
	case p.Created.Before(left.At.Add(madeAgainAfter)):
		return nil
	case w.Bare:
		return &obstacle{why: "its controller made it of that version again; give the update strategy a partition", command: w.Words.GoOn, byHand: true}
	}
	return &obstacle{why: "its controller made it of that version again", byHand: true}
}

// kept is how many pods are of the revision before when one of those that are stuck is
// made again. In their order, all of these have gone by then.
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

// mayEvict reports whether pods of the workload are replaced by its controller, and that the
// operator may do something about it.
func (in *EvictionInput) mayEvict() bool {
	w := in.Workload
	return in.Enrolled && !w.Deleting && !workload.OptedOut(w.Labels) && !in.Settings.Observe && w.ObservingOwner() == "" &&
		!w.Paused && !w.OnDelete
}

// unclear: nothing is known of the pods, because the controller has yet to see the
// template, or that is not recorded yet.
func (in *EvictionInput) unclear() bool {
	w := in.Workload
	return w.Rollout.Stale || w.Revision == "" || w.RecordedVersion() != w.Version
}

// stuck are the pods that are not Ready and of a version that is not known to be good, the
// last one first. Those that a user's partition keeps, or that are too many, their controller does
// not replace. That of a hold keeps none: the rollout that it paces waits for them.
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

// has says that the workload is to have a pod at a place.
func (in *EvictionInput) has(p *workload.Place) bool {
	return p.Index >= 0 && p.Index < in.Workload.Replicas
}

// waits is what keeps a pod from being evicted for now: the controller is at work, or when
// the version was left is not recorded yet.
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

// isBehind says that a pod is made only after one of the current version that is not
// available. The first that is stuck, which the controller waits for, never is.
func (in *EvictionInput) isBehind(stuck *workload.Place) bool {
	return in.Places.Ordered && slices.ContainsFunc(in.Places.Pods, func(p workload.Place) bool {
		return p.Current && in.has(&p) && p.Index < stuck.Index && !in.available(&p)
	})
}

// waitsForFirst: the controller waits for the first pod that is not available. One that is
// not there it makes; where it makes all of them at once, whichever that is.
func (in *EvictionInput) waitsForFirst(stuck []*workload.Place) string {
	at := map[int32]*workload.Place{}
	for i := range in.Places.Pods {
		at[in.Places.Pods[i].Index] = &in.Places.Pods[i]
	}
	for index := range in.Workload.Replicas {
		p := at[index]
		switch {
		case p == nil:
			return "the pod " + in.Workload.Name + " number " + strconv.Itoa(int(index)+1) + " to be made"
		case !in.Places.Ordered || in.available(p):
		case slices.Contains(stuck, p):
			return ""
		default:
			return fmt.Sprintf("the pod %s to be available", p.Name)
		}
	}
	return ""
}

// available says that a pod has been Ready for as long as the workload wants.
func (in *EvictionInput) available(p *workload.Place) bool {
	return p.Ready && p.Live() && !p.Bounded(p.ReadySince, in.Now).Add(in.Workload.MinReady).After(in.Now)
}

// tooYoung is how long until a pod may be evicted: the first that is stuck, where the
// controller waits for that one, else any.
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

// stuckSince is since when a pod has not been Ready.
func stuckSince(p *workload.Place, now time.Time) time.Time {
	if p.UnreadySince.IsZero() {
		return p.Created
	}
	return p.Bounded(p.UnreadySince, now)
}

// describeStuck says of a pod what is stuck.
func describeStuck(w *workload.Workload, plan *EvictionPlan) string {
	return fmt.Sprintf("pod %s is not ready and of version %s, which was left (%s), and the %s does not replace it",
		plan.Stuck.Name, cmp.Or(plan.Stuck.Version, "unknown"), plan.Left.Cause, w.Kind())
}

// Evicted is the event of a pod that was evicted.
func Evicted(w *workload.Workload, plan *EvictionPlan) record.Event {
	return record.Event{Type: corev1.EventTypeNormal, Reason: v1alpha1.EventPodEvicted,
		Message: fmt.Sprintf("version %s: %s: it was evicted", w.Version, describeStuck(w, plan))}
}

// EvictionBlock is why a pod that is stuck stays, as the condition EvictionBlocked has it.
type EvictionBlock struct{ Reason, Message string }

// BlockedEviction is that of a plan: reason and why are what is in the way.
func BlockedEviction(w *workload.Workload, plan *EvictionPlan, reason, why string) *EvictionBlock {
	return &EvictionBlock{Reason: reason, Message: fmt.Sprintf("%s: %s%s", describeStuck(w, plan), wording.Brief(why), deleteByHand(plan.Stuck))}
}

func deleteByHand(p *workload.Place) string {
	return ". If the application bears it, delete the pod yourself: " + wording.Kubectl(deletePod+wording.ShellWord(p.Name), p.Namespace)
}

// block tells of an obstacle.
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

// PodToDelete is the pod that the message of the condition EvictionBlocked names at its end.
// What refused the eviction is quoted before that, and may say anything.
func PodToDelete(message string) (pod string, ok bool) {
	at := strings.LastIndex(message, deletePod)
	if at < 0 {
		return "", false
	}
	pod, _, _ = strings.Cut(message[at+len(deletePod):], " ")
	return pod, len(validation.IsDNS1123Subdomain(pod)) == 0
}

// NoteEviction writes what is in the way of an eviction, or that nothing is any more, into the
// status of the release that a workload is at. changed says that the status is to be
// written, and the event, if there is one, that it is new.
func NoteEviction(status *v1alpha1.ChangeWorkloadStatus, w *workload.Workload, generation int64, now time.Time, block *EvictionBlock) (changed bool, event *record.Event) {
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
		event = &record.Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventEvictionBlocked, Message: fmt.Sprintf("version %s: %s", w.Version, block.Message)}
	}
	c.Set(v1alpha1.ConditionEvictionBlocked, metav1.ConditionTrue, block.Reason, "%s", block.Message)
	return true, event
}

const (
	// firstEvictionRetry and maxEvictionRetry are between how long and how long an eviction
	// that was refused waits for the next try.
	firstEvictionRetry = 10 * time.Second
	maxEvictionRetry   = 5 * time.Minute
)

// RetryEviction is when an eviction that was refused is tried again: after as long as it has
// been refused.
func RetryEviction(status *v1alpha1.ChangeWorkloadStatus, now time.Time) time.Duration {
	refused := time.Duration(0)
	if said := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionEvictionBlocked); said != nil && said.Status == metav1.ConditionTrue {
		refused = now.Sub(said.LastTransitionTime.Time)
	}
	return min(max(refused, firstEvictionRetry), maxEvictionRetry)
}
