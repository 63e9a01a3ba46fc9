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
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/times"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// start is what is looked at to say whether a release comes up: of Changes, the others at least.
type start struct {
	Input
	status *v1alpha1.ChangeWorkloadStatus
}

// StuckPod is a pod that has been stuck for longer than it may, or pods that are not
// made.
type StuckPod struct {
	// Pod is nil for pods that are not made.
	Pod *workload.Pod
	// Cause is what it is stuck at.
	Cause *workload.Stuck
	// Since is from when on it has, and Due when that was for too long.
	Since, Due time.Time
	// OfNode: it is stuck because its node does not answer, for which there is no limit.
	OfNode bool
}

// Standstill is what keeps a release from coming up, and what follows from it.
type Standstill struct {
	// First has been stuck for the longest beyond what it may, of count pods that have;
	// nil when none has.
	First *StuckPod
	count int
	// Slow is one that has been stuck for longer than a pod that fails may, and may go
	// on for some time.
	Slow *StuckPod
	// moves: pods of the version came up just now.
	moves bool
	// Tolerated says why what is stuck is left alone, if it is; StuckOn is the node
	// that all of it is on then.
	Tolerated, StuckOn string
	// old or revision is where the release is rolled back to.
	old      *workload.OldRevision
	revision *workload.Revision
	// Refusal is why it is not rolled back although it should be; Limited says
	// that this is because of the rollback limit.
	Refusal string
	Limited bool
	// Nodes are those that pods are stuck on beyond what they may, some at least.
	Nodes []string
	// Wait is when to look again; 0 when nothing changes by time alone.
	Wait time.Duration
}

// maxNodes is how many nodes are looked at before a release is rolled back.
const maxNodes = 20

// OnUnreachableNodes are pods with what is known of their nodes: those on one that does not
// answer, and that are not Ready, are lost, whatever they said last.
func OnUnreachableNodes(pods []workload.Pod, unreachable map[string]bool) []workload.Pod {
	pods = slices.Clone(pods)
	for i := range pods {
		if p := &pods[i]; unreachable[p.Node] && p.Stuck != nil {
			p.Lost = true
		}
	}
	return pods
}

// JudgeStart says whether a release of this status comes up. Whether its pods are verified does not matter.
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

// mayBeStuck says that a release is being rolled out, failed, or has succeeded.
func (s *start) mayBeStuck() bool {
	state := s.status.Status
	return record.IsOpen(state) || state == v1alpha1.ChangeWorkloadSuspend || state == v1alpha1.ChangeWorkloadFailed ||
		state == v1alpha1.ChangeWorkloadSuccess
}

// slowLimit is how long a pod may be slow; 0 for ever.
func (s *start) slowLimit() time.Duration {
	if s.Workload.ProgressDeadline == 0 {
		return 0
	}
	return max(s.Settings.RollbackAfter, s.Settings.RollbackSlow, s.Workload.ProgressDeadline)
}

// overdue are the pods that have been stuck for longer than they may, in this attempt
// of the release, the longest first; wait is how long until the next one does.
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
		if first := p.Stuck.FirstCrash(s.Now); p.Stuck.Restarts >= workload.Crashes && p.Stuck.LastRun < s.Settings.RollbackProven && first.Before(since) {
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

// isOfNode says that a pod is stuck because its node does not answer: it was well on it, or
// the node controller says so, or it has to be there, and the kubelet has never seen it.
// That is told, and may last.
func (s *start) isOfNode(p *workload.Pod) bool {
	return p.Lost || s.Workload.PerNode && p.Stuck.NotSeen()
}

// inAttempt gives a pod that was there before its time, too.
func (s *start) inAttempt(since time.Time) time.Time {
	return times.Latest(since, time.Unix(s.status.StartTimeUnix, 0))
}

// counts reports whether it matters that a pod is stuck since then: after the Success of its
// release, also once that is suspended, only if the pod fails, and began to soon.
func (s *start) counts(since time.Time, slow bool) bool {
	succeeded, proven := record.SucceededAt(s.status), s.Settings.RollbackProven
	return succeeded.IsZero() || !slow && proven > 0 && !since.After(succeeded.Add(proven))
}

// failingSince is since when the release says that pods of it fail; zero when it
// does not.
func (s *start) failingSince() time.Time {
	if c := meta.FindStatusCondition(s.status.Conditions, v1alpha1.ConditionPodsUnavailable); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// pods is how many pods are stuck.
func (h *StuckPod) pods(w *workload.Workload) int {
	if h.Pod == nil {
		return int(w.NotMade.Count)
	}
	return 1
}

// node is where it is stuck; empty for nowhere.
func (h *StuckPod) node() string {
	if h.Pod == nil {
		return ""
	}
	return h.Pod.Node
}

// UID is the pod's; empty for one that is not made.
func (h *StuckPod) UID() types.UID {
	if h.Pod == nil {
		return ""
	}
	return h.Pod.UID
}

func (s *start) finish() workload.Finish { return workload.FinishOf(s.Workload, s.Settings) }

// progress is for how long the release is left alone, because a pod of it came
// up just now and is well.
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

// tolerates says why what is stuck is left alone, if it is. Until a pod of the
// version has finished, nothing is.
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
	if node == "" || slices.ContainsFunc(all, elsewhere) || !slices.ContainsFunc(wellOn, func(on string) bool { return on != node && on != "" }) {
		return "", ""
	}
	return "only pods on node " + node + " are stuck, and the version runs on other nodes", node
}

// everFinished reports whether a pod of the attempt has finished.
func (s *start) everFinished() bool {
	finished := func(p workload.Pod) bool { ok, _ := p.Finished(s.finish(), s.Now); return ok }
	return !record.SucceededAt(s.status).IsZero() || s.status.PassCount+s.status.FailCount+s.status.CheckingCount+s.status.PreparingCount > 0 ||
		slices.ContainsFunc(s.Pods, finished)
}

// Tolerated is how many pods may be stuck once one has finished: a part of all, and
// fewer than are replaced at a time.
func Tolerated(w *workload.Workload, s settings.Settings) int {
	return max(min(int(w.Replicas)*s.RollbackTolerate/100, int(w.InFlight)-1), 0)
}

// target says where the release is rolled back to, or why it is not.
func (s *start) target(out *Standstill) {
	q := ParseQuarantine(s.Workload.Annotations, s.Now)
	out.Refusal = notByItself(s.Workload, q)
	if keeps := s.Workload.Stateful && !s.Settings.RollbackOwnProven; keeps && out.Refusal == "" && !record.SucceededAt(s.status).IsZero() {
		out.Refusal = "the release succeeded, and may have changed data; the " + s.Workload.Kind() +
			" is rolled back then only if its own setting rollback, or that of its namespace, names proven"
	}
	if out.Refusal == "" {
		out.old, out.Refusal = runningTarget(s.Workload, q, s.Changes)
		if out.old == nil {
			s.nothingReady(out, q)
		}
	}
	if out.Refusal != "" {
		// What it depends on is seen through more than one watch.
		out.Wait = times.Shortest(out.Wait, LookAgain)
		return
	}
	if why, left := Limited(s.status, s.Workload, s.Limit, s.Settings, s.Now); why != "" {
		out.Refusal, out.Limited = why, true
		out.Wait = times.Shortest(out.Wait, left)
	}
}

// nothingReady takes the newest version of the history where no pod of the
// workload is Ready, so that nothing can be lost.
func (s *start) nothingReady(out *Standstill, q Quarantine) {
	ready := int32(0)
	for i := range s.Pods {
		if s.Pods[i].Steady(s.Now) {
			ready++
		}
	}
	for i := range s.Workload.OldRevisions {
		ready += s.Workload.OldRevisions[i].Ready
	}
	if ready > 0 {
		out.Refusal = fmt.Sprintf("%s; pods that are Ready: %d", out.Refusal, ready)
		return
	}
	if out.revision = provenSuccess(s.History, s.Workload.Version, q, s.Changes); out.revision == nil {
		out.Refusal += "; the history has no other successful version"
		return
	}
	out.Refusal = ""
}

// runningTarget is the older version a release is rolled back to when it does
// not come up: the newest one that still runs healthily and is not itself known
// to be bad. Else it says why there is none.
func runningTarget(w *workload.Workload, q Quarantine, changes []v1alpha1.ChangeWorkload) (target *workload.OldRevision, refusal string) {
	refusal = "no pods of an older version run"
	if !w.Rolling {
		return nil, refusal
	}
	olds := slices.Clone(w.OldRevisions)
	slices.SortFunc(olds, func(a, b workload.OldRevision) int { return cmp.Compare(b.Number, a.Number) })
	for i := range olds {
		switch old := &olds[i]; {
		case old.Version == w.Version:
		case old.Version == "":
			refusal = fmt.Sprintf("the version of pods that still run, of revision %s, is not known", old.Name)
		case q.Holds(old.Version) || knownBad(old.Version, changes):
			refusal = fmt.Sprintf("version %s, whose pods still run, failed itself", old.Version)
		case old.Ready < old.Replicas-old.Lost || old.Ready == 0:
			refusal = fmt.Sprintf("version %s, whose pods still run, is not healthy: %d of %d pods are ready", old.Version, old.Ready, old.Replicas)
		default:
			return old, ""
		}
	}
	return nil, refusal
}

// LookAgain is when to look again at what is due and cannot be done.
const LookAgain = 30 * time.Second

// notByItself is why the release a workload is at is never rolled back without a
// request, if it is not. These keep rollbacks from going on for ever.
func notByItself(w *workload.Workload, q Quarantine) string {
	switch {
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

// Target is the version a release that does not come up is rolled back to; empty
// when it is not.
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

// Name is what is stuck.
func (h *StuckPod) Name(w *workload.Workload) string {
	if h.Pod == nil {
		return fmt.Sprintf("%d of %d pods", w.NotMade.Count, w.Replicas)
	}
	return "pod " + h.Pod.Name
}
