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
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Status is what is known of one workload: the output of status NAME -o json.
type Status struct {
	metav1.TypeMeta `json:",inline"`
	// Metadata names the workload.
	Metadata Metadata `json:"metadata"`
	// Needs is Attention (a person has to act), Time (it continues without help) or Nothing. Summary names the findings.
	Needs   Needs  `json:"needs"`
	Summary string `json:"summary"`
	// Defense is how far the workload is defended, and DefenseMessage why not in full.
	Defense        Defense `json:"defense"`
	DefenseMessage string  `json:"defenseMessage,omitempty"`
	// Version and Images of the pod template.
	Version string   `json:"version"`
	Images  []string `json:"images,omitempty"`
	// Release is the number of the current release, 0 for none, and ReleasedBy its user.
	Release    int64     `json:"release"`
	ReleasedBy string    `json:"releasedBy,omitempty"`
	Pods       PodCounts `json:"pods"`
	// WithoutPods: objects of this kind have no pods.
	WithoutPods bool `json:"withoutPods,omitempty"`
	// Blocked is set while releases are blocked.
	Blocked *Blocked `json:"blocked,omitempty"`
	// Quarantined are the versions in quarantine, the newest last.
	Quarantined []Quarantined `json:"quarantined,omitempty"`
	// Findings have next steps. The most pressing is the first.
	Findings []Finding `json:"findings"`
	// Releases are its ChangeWorkloads, the newest first, and Batches the ChangePods of their attempts.
	Releases []v1alpha1.ChangeWorkload `json:"releases"`
	Batches  []*v1alpha1.ChangePod     `json:"batches,omitempty"`
	// Revisions are its ReplicaSets or ControllerRevisions that have pods, the current one first.
	Revisions []Revision `json:"revisions,omitempty"`
	// Missing are sentences about what the user may not read.
	Missing []string `json:"missing,omitempty"`
}

// Revision is a revision of a workload with its pods, the most pressing first. The current revision also has pods that failed and
// are gone.
type Revision struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Current bool   `json:"current,omitempty"`
	Pods    []Pod  `json:"pods"`
}

// Pod is a pod of a release.
type Pod struct {
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Gone: the pod no longer exists.
	Gone     bool         `json:"gone,omitempty"`
	Created  *metav1.Time `json:"created,omitempty"`
	Ready    bool         `json:"ready"`
	Restarts int32        `json:"restarts"`
	// NotReady is why it is not Ready, and Reason the same in a word. Fails: waiting does not help.
	NotReady string `json:"notReady,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Fails    bool   `json:"fails,omitempty"`
	// FinishedAt is when it will have been Ready for long enough to be verified.
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// Verified is how far its verification is, with Verdict and Message.
	Verified Verification `json:"verified,omitempty"`
	Verdict  string       `json:"verdict,omitempty"`
	Message  string       `json:"message,omitempty"`
	// Batch is the number of its batch; 0 for none.
	Batch int32 `json:"batch,omitempty"`
}

// Verification is how far the verification of a pod is.
type Verification string

// Values of Verification, the most pressing first.
const (
	VerifiedFailed   Verification = "Failed"
	VerifiedUnready  Verification = "NotFinished"
	VerifiedChecking Verification = "Checking"
	VerifiedWaiting  Verification = "Waiting"
	// VerifiedNot: the release is not verified.
	VerifiedNot    Verification = "NotVerified"
	VerifiedPassed Verification = "Passed"
)

var verifications = []Verification{VerifiedFailed, VerifiedUnready, VerifiedChecking, VerifiedWaiting, VerifiedNot, VerifiedPassed}

// statusOf returns what is known of a workload.
func statusOf(s *snapshot, a advisor) *Status {
	w := s.workload
	st := &Status{
		Metadata: Metadata{w.Namespace, w.Name}, Version: w.Version, Images: w.Images, Release: w.Release(), Pods: s.counts, Missing: s.missing,
		WithoutPods: w.WithoutPods,
		Blocked:     s.blocked(), Quarantined: s.quarantined(), Findings: append([]Finding{}, findingsOf(s, a)...),
		Releases: []v1alpha1.ChangeWorkload{},
	}
	st.APIVersion, st.Kind = w.GVK.ToAPIVersionAndKind()
	st.Defense, st.DefenseMessage = s.defense()
	st.Needs, st.Summary = summaryOf(s, st.Findings)
	if st.Release > 0 {
		st.ReleasedBy = w.ReleasedBy()
	}
	for i := range s.changes {
		c := s.changes[i].DeepCopy()
		c.ManagedFields = nil
		st.Releases = append(st.Releases, *c)
		for _, b := range s.batches[c.UID] {
			b = b.DeepCopy()
			b.ManagedFields = nil
			st.Batches = append(st.Batches, b)
		}
	}
	if pods := s.currentPods(); len(pods) > 0 {
		st.Revisions = append(st.Revisions, Revision{s.revision, w.Version, true, pods})
	}
	for _, old := range s.old {
		r := Revision{Name: old.name, Version: old.version}
		for i := range old.pods {
			r.Pods = append(r.Pods, podOf(&old.pods[i], Pod{}))
		}
		if len(r.Pods) > 0 {
			st.Revisions = append(st.Revisions, r)
		}
	}
	return st
}

// currentPods returns the pods of the current revision with their verification, and pods that failed and are gone.
func (s *snapshot) currentPods() (pods []Pod) {
	c, results := s.current(), map[string]Pod{}
	if c != nil {
		results = s.results(c)
	}
	for i := range s.pods {
		result, known := results[string(s.pods[i].UID)]
		if !known && c != nil && record.IsVerified(c.Status.Status) {
			result.Verified = VerifiedUnready
		} else if !known {
			result.Verified = VerifiedNot
		}
		pod := podOf(&s.pods[i], result)
		if s.settings != nil && pod.Verified == VerifiedUnready {
			if _, left := s.pods[i].Finished(workload.FinishOf(s.workload, s.settings.Settings), s.now); left > 0 {
				pod.FinishedAt = timeOf(s.now.Add(left))
			}
		}
		pods = append(pods, pod)
	}
	if c != nil {
		for _, r := range c.Status.DefenseCheckFailPods {
			if !slices.ContainsFunc(pods, func(p Pod) bool { return p.Name == r.Pod }) {
				batch := results[r.UID].Batch
				pods = append(pods, Pod{Name: r.Pod, Gone: true, Verified: VerifiedFailed, Verdict: r.Verdict, Message: r.Message, Batch: batch})
			}
		}
	}
	slices.SortStableFunc(pods, func(a, b Pod) int {
		rank := func(p *Pod) int { // pods that fail first, Ready pods last
			n := 3 * slices.Index(verifications, p.Verified)
			switch {
			case p.Fails:
				return n
			case p.Ready:
				return n + 2
			default:
				return n + 1
			}
		}
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// results returns the results of the pods of a release, by UID.
func (s *snapshot) results(c *v1alpha1.ChangeWorkload) map[string]Pod {
	results := map[string]Pod{}
	note := func(pods []v1alpha1.PodResult, verified Verification, batch int32) {
		for _, r := range pods {
			if _, known := results[r.UID]; !known {
				results[r.UID] = Pod{Verified: verified, Verdict: r.Verdict, Message: r.Message, Batch: batch}
			}
		}
	}
	for _, b := range s.batches[c.UID] {
		number := record.BatchNumber(b)
		if b.Status.Status != v1alpha1.ChangePodExecuteDone {
			for _, info := range b.Spec.PodInfos {
				results[info.UID] = Pod{Verified: VerifiedChecking, Batch: number}
			}
			continue
		}
		passed, failed := record.BatchResults(b)
		note(failed, VerifiedFailed, number)
		note(passed, VerifiedPassed, number)
	}
	note(c.Status.DefenseCheckFailPods, VerifiedFailed, 0)
	note(c.Status.DefenseCheckPassPods, VerifiedPassed, 0)
	note(c.Status.DefenseCheckingPods, VerifiedChecking, 0)
	note(c.Status.DefensePreparingPods, VerifiedWaiting, 0)
	return results
}

// podOf adds the state of a pod to its result.
func podOf(p *workload.Pod, of Pod) Pod {
	of.Name, of.Node, of.Created, of.Ready, of.Restarts = p.Name, p.Node, timeOf(p.Created), p.Ready, p.Restarts
	switch {
	case p.Ended:
		of.NotReady = "ended, and is replaced"
	case p.Terminating:
		of.NotReady = "terminating"
	case p.Stuck != nil && !p.Ready:
		of.NotReady, of.Reason, of.Fails = p.Stuck.String(), p.Stuck.Reason, p.Stuck.Fails()
	}
	return of
}
