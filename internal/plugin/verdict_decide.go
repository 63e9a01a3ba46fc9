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
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// correction is the verdict of a user on a release.
type correction struct {
	// Pass or fail.
	Pass bool
	// Pods and Batches that it names. Order: the checks of the order. Checks: the checks of policies on the release as a whole.
	// All: everything that fails.
	Pods    []string
	Batches []int
	Order   bool
	Checks  bool
	All     bool
	// Message of the verdict.
	Message string
}

// everything reports whether the correction is about all that fails: it names nothing.
func (c *correction) everything() bool {
	return c.All || len(c.Pods)+len(c.Batches) == 0 && !c.Order && !c.Checks
}

// corrected is what a correction changes.
type corrected struct {
	// Batches and Release that change, after the change.
	Batches []*v1alpha1.ChangePod
	Release *v1alpha1.ChangeWorkload
	// Lines say what is changed, one for each change.
	Lines []string
	// Left lists what still fails.
	Left []string
}

// correct returns what a correction changes in a release and its batches.
func (c *correction) correct(change *v1alpha1.ChangeWorkload, batches []v1alpha1.ChangePod, now time.Time) (*corrected, error) {
	if !record.IsVerified(change.Status.Status) || change.Status.ObservedRelease != change.Spec.Release {
		return nil, fmt.Errorf("release %d is not verified: it is %s, and a verdict changes nothing",
			change.Spec.Release, stateOf(change.Status.Status))
	}
	done := &corrected{}
	if err := c.correctPods(done, change, batches); err != nil {
		return nil, err
	}
	if c.Pass {
		c.correctRelease(done, change, now)
	}
	done.Left = leftFailing(done, change, batches)
	return done, nil
}

// correctPods changes results of batches.
func (c *correction) correctPods(done *corrected, change *v1alpha1.ChangeWorkload, batches []v1alpha1.ChangePod) error {
	counting := record.CountingBatches(change, batches)
	slices.SortFunc(counting, func(a, b *v1alpha1.ChangePod) int { return int(record.BatchNumber(a) - record.BatchNumber(b)) })
	if err := c.areThere(change, counting); err != nil {
		return err
	}
	for _, b := range counting {
		named := slices.Contains(c.Batches, int(record.BatchNumber(b)))
		var pods []v1alpha1.PodInfo
		for _, info := range b.Spec.PodInfos {
			fails := slices.ContainsFunc(failingOf(b), func(r v1alpha1.PodResult) bool { return r.Pod == info.Pod })
			if (named || slices.Contains(c.Pods, info.Pod) || c.Pass && c.everything()) && fails == c.Pass {
				pods = append(pods, info)
			}
		}
		if len(pods) == 0 {
			continue
		}
		if b.Status.Status != v1alpha1.ChangePodExecuteDone {
			return fmt.Errorf("batch %d is not done: its results can be written once it is; it is %s", record.BatchNumber(b), b.Status.Status)
		}
		done.Batches = append(done.Batches, c.withResults(b, pods))
		for _, info := range pods {
			done.Lines = append(done.Lines, fmt.Sprintf("batch %d: pod %s: %s", record.BatchNumber(b), info.Pod, c.verdict()))
		}
	}
	return nil
}

// areThere returns an error for a named pod or batch that the release does not have.
func (c *correction) areThere(change *v1alpha1.ChangeWorkload, counting []*v1alpha1.ChangePod) error {
	var numbers []string
	pods := map[string]bool{}
	for _, b := range counting {
		numbers = append(numbers, fmt.Sprint(record.BatchNumber(b)))
		for _, info := range b.Spec.PodInfos {
			pods[info.Pod] = true
		}
	}
	for _, n := range c.Batches {
		if !slices.Contains(numbers, fmt.Sprint(n)) {
			return remedy(fmt.Errorf("release %d has no batch %d", change.Spec.Release, n), "it has "+strings.Join(numbers, ", "))
		}
	}
	for _, pod := range c.Pods {
		switch {
		case pods[pod]:
		case slices.ContainsFunc(change.Status.DefensePreparingPods, func(r v1alpha1.PodResult) bool { return r.Pod == pod }):
			return remedy(fmt.Errorf("pod %s is in no batch yet, so it has no verdict", pod),
				"repeat the command when it is in a batch: see kubectl altershield status")
		default:
			return remedy(fmt.Errorf("pod %s is in no batch of release %d", pod, change.Spec.Release), "see its pods: kubectl altershield status")
		}
	}
	return nil
}

// verdict returns the word to write.
func (c *correction) verdict() string {
	if c.Pass {
		return record.VerdictPass
	}
	return record.VerdictFail
}

// failingOf returns the results of a batch that fail pods.
func failingOf(b *v1alpha1.ChangePod) (failing []v1alpha1.PodResult) {
	if !record.BatchFails(b) {
		return nil
	}
	for _, r := range b.Status.PodResults {
		if record.VerdictFails(r.Verdict) {
			failing = append(failing, r)
		}
	}
	return failing
}

// withResults returns a batch with new results for some of its pods.
func (c *correction) withResults(b *v1alpha1.ChangePod, pods []v1alpha1.PodInfo) *v1alpha1.ChangePod {
	b = b.DeepCopy()
	of := func(name string) bool {
		return slices.ContainsFunc(pods, func(info v1alpha1.PodInfo) bool { return info.Pod == name })
	}
	// All results of a pod: a failing one would count.
	b.Status.PodResults = slices.DeleteFunc(b.Status.PodResults, func(r v1alpha1.PodResult) bool { return of(r.Pod) })
	for _, info := range pods {
		b.Status.PodResults = append(b.Status.PodResults, v1alpha1.PodResult{PodInfo: info, Verdict: c.verdict(), Message: c.Message})
	}
	b.Status.Message = v1alpha1.ChangePodMessagePostFinish
	return b
}

// correctRelease passes what fails the release as a whole.
func (c *correction) correctRelease(done *corrected, change *v1alpha1.ChangeWorkload, now time.Time) {
	release := change.DeepCopy()
	s := &release.Status
	if c.everything() || c.Order {
		for name, v := range map[string]*v1alpha1.CheckVerdict{"PRE": s.OrderPreVerdict, "POST": s.OrderPostVerdict} {
			if v != nil && record.VerdictFails(v.Verdict) {
				done.Lines = append(done.Lines, fmt.Sprintf("the %s check of the order: %s in place of %s", name, c.verdict(), v.Verdict))
				v.Verdict = c.verdict()
			}
		}
		for i := range s.UnclaimedVerdicts {
			if v := &s.UnclaimedVerdicts[i]; record.VerdictFails(v.Verdict) {
				done.Lines = append(done.Lines, fmt.Sprintf("the %s check of order entry %s, which belongs to no batch: %s in place of %s",
					v.Stage, v.NodeID, c.verdict(), v.Verdict))
				v.Verdict = c.verdict()
			}
		}
	}
	if c.everything() || c.Checks {
		for i := range s.Checks {
			check := &s.Checks[i]
			if !record.FailsRelease(check) {
				continue
			}
			done.Lines = append(done.Lines, fmt.Sprintf("the check %s: %s in place of %s", check.Name, v1alpha1.CheckPassed, check.Phase))
			check.Phase, check.Reason, check.Message = v1alpha1.CheckPassed, v1alpha1.ReasonCorrected, c.Message
			check.CompletionTime = &metav1.Time{Time: now}
		}
	}
	slices.Sort(done.Lines)
	if len(done.Lines) > 0 && !sameVerdicts(&change.Status, s) {
		done.Release = release
	}
}

// sameVerdicts reports whether no check of the release as a whole was corrected.
func sameVerdicts(a, b *v1alpha1.ChangeWorkloadStatus) bool {
	return len(failingWhole(a)) == len(failingWhole(b))
}

// failingWhole lists what fails a release as a whole.
func failingWhole(s *v1alpha1.ChangeWorkloadStatus) (failing []string) {
	for _, named := range []struct {
		name string
		v    *v1alpha1.CheckVerdict
	}{{"PRE", s.OrderPreVerdict}, {"POST", s.OrderPostVerdict}} {
		if named.v != nil && record.VerdictFails(named.v.Verdict) {
			failing = append(failing, fmt.Sprintf("the %s check of the order", named.name))
		}
	}
	for i := range s.UnclaimedVerdicts {
		if v := &s.UnclaimedVerdicts[i]; record.VerdictFails(v.Verdict) {
			failing = append(failing, "the check of order entry "+v.NodeID)
		}
	}
	for i := range s.Checks {
		if record.FailsRelease(&s.Checks[i]) {
			failing = append(failing, "the check "+s.Checks[i].Name)
		}
	}
	return failing
}

// leftFailing lists what still fails after a correction.
func leftFailing(done *corrected, change *v1alpha1.ChangeWorkload, batches []v1alpha1.ChangePod) (left []string) {
	for _, b := range record.CountingBatches(change, batches) {
		if i := slices.IndexFunc(done.Batches, func(other *v1alpha1.ChangePod) bool { return other.Name == b.Name }); i >= 0 {
			b = done.Batches[i]
		}
		for _, r := range failingOf(b) {
			left = append(left, "pod "+r.Pod)
		}
	}
	status := &change.Status
	if done.Release != nil {
		status = &done.Release.Status
	}
	return append(left, failingWhole(status)...)
}

// whatFollows returns a sentence about the effect of a correction.
func whatFollows(c *correction, done *corrected, change *v1alpha1.ChangeWorkload, blocking bool) string {
	switch {
	case !c.Pass && change.Status.Status == v1alpha1.ChangeWorkloadSuspend:
		return fmt.Sprintf("release %d has failed already", change.Spec.Release)
	case !c.Pass && blocking:
		return fmt.Sprintf("release %d becomes Suspend, and releases are blocked", change.Spec.Release)
	case !c.Pass:
		return fmt.Sprintf("release %d becomes Suspend; releases are not blocked, "+
			"as the setting blocking is off or the workload is in observe mode", change.Spec.Release)
	case len(done.Left) > 0:
		return fmt.Sprintf("release %d stays Suspend: %s still fails", change.Spec.Release, strings.Join(done.Left, ", "))
	case change.Status.Status != v1alpha1.ChangeWorkloadSuspend:
		return fmt.Sprintf("release %d goes on", change.Spec.Release)
	}
	block := "; a block of another release, or of a user, stays"
	if c := meta.FindStatusCondition(change.Status.Conditions, v1alpha1.ConditionBlocked); c != nil && c.Status == metav1.ConditionTrue {
		block = ", and its block is lifted"
	}
	return fmt.Sprintf("release %d goes on as Running, or is a Success%s", change.Spec.Release, block)
}
