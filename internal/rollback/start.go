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
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// start is the input of the decision whether a release comes up. Of Changes, it needs only the
// other releases.
type start struct {
	Input
	status *v1alpha1.ChangeWorkloadStatus
}

// StuckPod is a pod that has been stuck for too long, or pods that cannot be created.
type StuckPod struct {
	// Pod is nil for pods that cannot be created.
	Pod *workload.Pod
	// Cause is why it is stuck.
	Cause *workload.Stuck
	// Since is since when it has been stuck, and Due when that became too long.
	Since, Due time.Time
	// OfNode: it is stuck because its node is unreachable, for which there is no limit.
	OfNode bool
}

// Standstill is what keeps a release from coming up, and the consequence.
type Standstill struct {
	// First is the pod with the earliest Due of count pods that have been stuck for too long; nil for
	// none.
	First *StuckPod
	count int
	// Slow is a pod that has been stuck for longer than a failing pod may be, and still has time.
	Slow *StuckPod
	// moves: pods of the version came up recently.
	moves bool
	// Tolerated is why stuck pods are tolerated; empty if they are not. StuckOn is the node of all of
	// them, if that is why.
	Tolerated, StuckOn string
	// old or revision is the target of the rollback.
	old      *workload.OldRevision
	revision *workload.Revision
	// Refusal is why the release is not rolled back although it should be. Limited: because of the
	// rollback limit.
	Refusal string
	Limited bool
	// Nodes are nodes of pods that have been stuck for too long, at most maxNodes.
	Nodes []string
	// Wait is how long until the next decision; 0 if nothing changes by time alone.
	Wait time.Duration
}

// maxNodes is how many nodes are checked before a release is rolled back.
const maxNodes = 20

// OnUnreachableNodes returns a copy of the pods in which stuck pods on unreachable nodes are Lost,
// whatever their last status.
func OnUnreachableNodes(pods []workload.Pod, unreachable map[string]bool) []workload.Pod {
	pods = slices.Clone(pods)
	for i := range pods {
		if p := &pods[i]; unreachable[p.Node] && p.Stuck != nil {
			p.Lost = true
		}
	}
	return pods
}

// JudgeStart decides whether a release with this status comes up, regardless of the verification of
// its pods.
func JudgeStart(in Input, status *v1alpha1.ChangeWorkloadStatus) Standstill {
	s := start{in, status}
	return s.judge()
}

// judge is JudgeStart.
func (s *start) judge() Standstill {
	if !s.Settings.Rollback || !s.mayBeStuck() {
		return Standstill{}
	}
	var all []StuckPod
	out := Standstill{}
	out.Wait, all = s.overdue(&out)
	if len(all) == 0 {
		return out
	}
	out.First = &all[0]
	for i := range all {
		out.count += all[i].pods(s.Workload)
		if node := all[i].node(); node != "" && len(out.Nodes) < maxNodes && !slices.Contains(out.Nodes, node) {
			out.Nodes = append(out.Nodes, node)
		}
	}
	if left := s.progress(); left > 0 {
		out.moves, out.Wait = true, times.Shortest(out.Wait, left)
		return out
	}
	if out.Tolerated, out.StuckOn = s.tolerates(all, out.count); out.Tolerated != "" {
		out.Wait = times.Shortest(out.Wait, LookAgain)
		return out
	}
	s.target(&out)
	return out
}

// mayBeStuck reports whether a release is being rolled out, failed, or succeeded.
func (s *start) mayBeStuck() bool {
	state := s.status.Status
	return record.IsOpen(state) || state == v1alpha1.ChangeWorkloadSuspend || state == v1alpha1.ChangeWorkloadFailed ||
		state == v1alpha1.ChangeWorkloadSuccess
}

// slowLimit returns how long a pod may be slow; 0 for no limit.
func (s *start) slowLimit() time.Duration {
	if s.Workload.ProgressDeadline == 0 {
		return 0
	}
	return max(s.Settings.RollbackAfter, s.Settings.RollbackSlow, s.Workload.ProgressDeadline)
}

// overdue returns the pods that have been stuck for too long in this attempt of the release, the
// longest first; wait is how long until the next pod is.
func (s *start) overdue(out *Standstill) (wait time.Duration, all []StuckPod) {
	add := func(h StuckPod, limit time.Duration, slow bool) {
		left := time.Duration(math.MaxInt64)
		if limit > 0 {
			h.Due = h.Since.Add(limit)
			left = h.Due.Sub(s.Now)
		}
		if !s.counts(h.Since, slow) {
			return
		}
		if left > 0 {
			if limit > 0 {
				wait = times.Shortest(wait, left)
			}
			toReport := h.Since.Add(s.Settings.RollbackAfter).Sub(s.Now)
			switch {
			case !slow:
			case toReport > 0:
				wait = times.Shortest(wait, toReport)
			case out.Slow == nil || h.Since.Before(out.Slow.Since):
				out.Slow = &h
			}
			return
		}
		all = append(all, h)
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if !p.Stuck.IsStuck(s.Now) {
			continue
		}
		limit, slow := s.Settings.RollbackAfter, p.Stuck.IsSlow(s.Now, s.Settings.RollbackAfter)
		if slow {
			limit = s.slowLimit()
		}
		ofNode := s.isOfNode(p)
		if ofNode {
			limit, slow = 0, true
		}
		since := p.Stuck.Since(s.Now, limit, s.failingSince())
		if first := p.Stuck.FirstCrash(s.Now); p.Stuck.Restarts >= workload.Crashes && p.Stuck.LastRun < s.Settings.RollbackProven &&
			first.Before(since) {
			since = first
		}
		add(StuckPod{Pod: p, Cause: p.Stuck, OfNode: ofNode, Since: s.inAttempt(since)}, limit, slow)
	}
	if n := s.Workload.NotMade; n != nil && n.Count > 0 {
		add(StuckPod{Cause: n.Stuck(), Since: s.inAttempt(n.Since)}, s.slowLimit(), true)
	}
	slices.SortStableFunc(all, func(a, b StuckPod) int { return a.Due.Compare(b.Due) })
	return wait, all
}

// isOfNode reports whether a pod is stuck because its node is unreachable: the pod was healthy
// there, the node controller reports it, or the kubelet has never seen the pod of a workload with a
// pod for each node. It is reported, and has no deadline.
func (s *start) isOfNode(p *workload.Pod) bool {
	return p.Lost || s.Workload.PerNode && p.Stuck.NotSeen()
}

// inAttempt returns the later of since and the start of the attempt: an older pod gets its time,
// too.
func (s *start) inAttempt(since time.Time) time.Time {
	return times.Latest(since, time.Unix(s.status.StartTimeUnix, 0))
}

// counts reports whether a pod that has been stuck since then counts. After the Success of the
// release, even if it was suspended later, only a failing pod counts, and only if it began to fail
// soon.
func (s *start) counts(since time.Time, slow bool) bool {
	succeeded, proven := record.SucceededAt(s.status), s.Settings.RollbackProven
	return succeeded.IsZero() || !slow && proven > 0 && !since.After(succeeded.Add(proven))
}

// failingSince returns since when the release has reported failing pods; zero if it does not.
func (s *start) failingSince() time.Time {
	if c := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionPodsUnavailable); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// pods returns how many pods are stuck.
func (h *StuckPod) pods(w *workload.Workload) int {
	if h.Pod == nil {
		return int(w.NotMade.Count)
	}
	return 1
}

// node returns the node of the pod; empty for none.
func (h *StuckPod) node() string {
	if h.Pod == nil {
		return ""
	}
	return h.Pod.Node
}

// UID returns the UID of the pod; empty for pods that cannot be created.
func (h *StuckPod) UID() types.UID {
	if h.Pod == nil {
		return ""
	}
	return h.Pod.UID
}

func (s *start) finish() workload.Finish { return workload.FinishOf(s.Workload, s.Settings) }

// progress returns how long the release is left alone because one of its pods came up recently and
// is healthy.
func (s *start) progress() (left time.Duration) {
	for i := range s.Pods {
		p := &s.Pods[i]
		if p.Stuck != nil && p.Stuck.Restarts >= workload.Crashes {
			continue
		}
		if finished, _ := p.Finished(s.finish(), s.Now); finished {
			left = max(left, p.FinishedAt(s.finish(), s.Now).Add(s.Settings.RollbackAfter).Sub(s.Now))
		}
	}
	return left
}

// tolerates returns why stuck pods are tolerated; empty if they are not. None are tolerated until a
// pod of the version has finished.
func (s *start) tolerates(all []StuckPod, count int) (why, node string) {
	if !s.everFinished() {
		return "", ""
	}
	var wellOn []string
	for i := range s.Pods {
		if s.Pods[i].Steady(s.Now) {
			wellOn = append(wellOn, s.Pods[i].Node)
		}
	}
	if n := Tolerated(s.Workload, s.Settings); count <= n {
		return fmt.Sprintf("%d of %d pods may be stuck", n, s.Workload.Replicas), ""
	}
	node = all[0].node()
	elsewhere := func(h StuckPod) bool { return h.node() != node }
	if node == "" || slices.ContainsFunc(all, elsewhere) ||
		!slices.ContainsFunc(wellOn, func(on string) bool { return on != node && on != "" }) {
		return "", ""
	}
	return "only pods on node " + node + " are stuck, and the version runs on other nodes", node
}

// everFinished reports whether a pod of the attempt has finished.
func (s *start) everFinished() bool {
	finished := func(p workload.Pod) bool { ok, _ := p.Finished(s.finish(), s.Now); return ok }
	return !record.SucceededAt(s.status).IsZero() ||
		s.status.PassCount+s.status.FailCount+s.status.CheckingCount+s.status.PreparingCount > 0 ||
		slices.ContainsFunc(s.Pods, finished)
}

// Tolerated returns how many pods may be stuck once one has finished: a percentage of all, and
// fewer than are replaced at a time.
func Tolerated(w *workload.Workload, s settings.Settings) int {
	return max(min(int(w.Replicas)*s.RollbackTolerate/100, int(w.InFlight)-1), 0)
}

// target sets the target of the rollback, or why there is none.
func (s *start) target(out *Standstill) {
	q := ParseQuarantine(s.Workload.Annotations, s.Now)
	out.Refusal = notByItself(s.Workload, q)
	if keeps := s.Workload.Stateful && !s.Settings.RollbackOwnProven; keeps && out.Refusal == "" && !record.SucceededAt(s.status).IsZero() {
		out.Refusal = "the release succeeded, and may have changed data; the " + s.Workload.Kind() +
			" is rolled back then only if its own setting rollback, or that of its namespace, names proven"
	}
	if out.Refusal == "" {
		out.old, out.Refusal = runningTarget(s.Workload, q, s.Changes)
		if out.old == nil || s.Workload.Rollbacks != "" { // only the history has contents of declared kinds
			out.old = nil
			s.fromHistory(out, q)
		}
	}
	if out.Refusal != "" {
		// The refusal depends on more than one watch.
		out.Wait = times.Shortest(out.Wait, LookAgain)
		return
	}
	if why, left := Limited(s.status, s.Workload, s.Limit, s.Settings, s.Now); why != "" {
		out.Refusal, out.Limited = why, true
		out.Wait = times.Shortest(out.Wait, left)
	}
}

// fromHistory sets the newest version of the history as the target if healthy pods of a declared
// kind run older content, or if no pod of the workload is Ready, so that nothing can be lost.
func (s *start) fromHistory(out *Standstill, q Quarantine) {
	ready := int32(0)
	for i := range s.Pods {
		if s.Pods[i].Steady(s.Now) {
			ready++
		}
	}
	for i := range s.Workload.OldRevisions {
		ready += s.Workload.OldRevisions[i].Ready
	}
	if out.Refusal != "" && ready > 0 {
		out.Refusal = fmt.Sprintf("%s; pods that are Ready: %d", out.Refusal, ready)
		return
	}
	if out.revision = provenSuccess(s.Workload.Content.Restorable(s.History), s.Workload.Version, q, s.Changes); out.revision == nil {
		out.Refusal = strings.Join(wording.NonEmpty(out.Refusal, "the history has no other successful version"), "; ")
		return
	}
	out.Refusal = ""
}

// runningTarget returns the older version to which a release that does not come up is rolled back:
// the newest version with healthy pods that is not known to be bad. refusal is why there is none.
func runningTarget(w *workload.Workload, q Quarantine, changes []v1alpha1.ChangeWorkload) (target *workload.OldRevision, refusal string) {
	refusal = "no pods of an older version run"
	known := w.Rollbacks == "" // labels of pods prove no version, and no revision of a declared kind is read
	if !w.Rolling && known {
		return nil, refusal
	}
	olds := slices.Clone(w.OldRevisions)
	slices.SortFunc(olds, func(a, b workload.OldRevision) int { return cmp.Compare(b.Number, a.Number) })
	for i := range olds {
		switch old := &olds[i]; {
		case old.Version == w.Version:
		case old.Version == "" && known:
			refusal = fmt.Sprintf("the version of pods that still run, of revision %s, is not known", old.Name)
		case q.Holds(old.Version) || knownBad(old.Version, changes):
			refusal = fmt.Sprintf("version %s, whose pods still run, failed itself", old.Version)
		case old.Ready < old.Replicas-old.Lost || old.Ready == 0:
			refusal = fmt.Sprintf("version %s, whose pods still run, is not healthy: %d of %d pods are ready", old.Version, old.Ready, old.Replicas)
			if !known {
				refusal = fmt.Sprintf("older pods are not healthy: %d of %d are ready", old.Ready, old.Replicas)
			}
		default:
			return old, ""
		}
	}
	return nil, refusal
}

// LookAgain is how long until the next decision if an action is due and cannot be taken.
const LookAgain = 30 * time.Second

// notByItself returns why the current release of a workload is never rolled back without a request;
// empty if it may be. These rules keep rollbacks from repeating forever.
func notByItself(w *workload.Workload, q Quarantine) string {
	switch {
	case w.Rollbacks != "" && w.Rollbacks != v1alpha1.RollbackAutomatic:
		return "spec.rollback of the ChangeKind is " + string(w.Rollbacks)
	case q.Holds(w.Version):
		return DescribeQuarantine(w.Version, q) + "; it is not rolled back again"
	case q.Overridden(w.Version):
		return DescribeQuarantine(w.Version, q) + ", and released again by an override; it is not rolled back again"
	case q.Restored(w.Version, w.Release()):
		return fmt.Sprintf("version %s was itself restored by a rollback", w.Version)
	case w.OnDelete:
		return "only its user replaces pods of the " + w.Kind() + " (updateStrategy OnDelete)"
	case w.PausedByUser():
		return "the " + w.Kind() + " is " + w.Words.Halted() + " by a user" + w.Words.Means()
	default:
		return ""
	}
}

// Target returns the version to which a release that does not come up is rolled back; empty if it
// is not.
func (s *Standstill) Target() string {
	switch {
	case s.Refusal != "" || s.First == nil:
		return ""
	case s.old != nil:
		return s.old.Version
	case s.revision != nil:
		return s.revision.Version
	default:
		return ""
	}
}

// Name returns the stuck pod, or the number of pods that cannot be created.
func (h *StuckPod) Name(w *workload.Workload) string {
	if h.Pod == nil {
		return fmt.Sprintf("%d of %d pods", w.NotMade.Count, w.Replicas)
	}
	return "pod " + h.Pod.Name
}
