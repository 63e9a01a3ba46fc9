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
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// Status is what is told of one workload: the output of status NAME -o json.
type Status struct {
	// Kind, Namespace and Name of the workload.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Needs says whether somebody has to do something: Attention, Time (it goes on by
	// itself) or Nothing. Summary says what is the matter, in words.
	Needs   Needs  `json:"needs"`
	Summary string `json:"summary"`
	// Defense says how far the workload is defended, DefenseMessage why not in full.
	Defense        Defense `json:"defense"`
	DefenseMessage string  `json:"defenseMessage,omitempty"`
	// Version is that of its pod template, with the Images of that.
	Version string   `json:"version"`
	Images  []string `json:"images,omitempty"`
	// Release is the number of the release it is at, 0 where there was none under
	// defense. ReleasedBy is who released it, ReleasedAt when.
	Release    int64        `json:"release"`
	ReleasedBy string       `json:"releasedBy,omitempty"`
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
	// Pods counts its pods.
	Pods PodCounts `json:"pods"`
	// Blocked is set while its releases are blocked.
	Blocked *Blocked `json:"blocked,omitempty"`
	// Paused is set while its rollout is paused.
	Paused *Paused `json:"paused,omitempty"`
	// Held is set while its rollout waits for verdicts.
	Held *Held `json:"held,omitempty"`
	// Quarantined are the versions that are denied, the newest last.
	Quarantined []Quarantined `json:"quarantined,omitempty"`
	// Releases are those that have a record, the newest first.
	Releases []Release `json:"releases"`
	// Missing says what is not told, because the user must not read it.
	Missing []string `json:"missing,omitempty"`
}

// Defense says how far a workload is defended.
type Defense string

// Values of Defense.
const (
	// DefenseFull: its releases are verified, and what fails is blocked or rolled back.
	DefenseFull Defense = "Defended"
	// DefenseObserved: its releases are verified and reported, and nothing is done.
	DefenseObserved Defense = "Observed"
	// DefenseOptedOut: its label takes it out of the defense.
	DefenseOptedOut Defense = "OptedOut"
	// DefenseNotEnrolled: its namespace is not defended.
	DefenseNotEnrolled Defense = "NotEnrolled"
	// DefenseUnknown: the user must not read what says so.
	DefenseUnknown Defense = "Unknown"
)

// PodCounts counts the pods of a workload.
type PodCounts struct {
	Desired   int64 `json:"desired"`
	Updated   int64 `json:"updated"`
	Ready     int64 `json:"ready"`
	Available int64 `json:"available"`
}

// Blocked says since when releases of a workload are denied, and why.
type Blocked struct {
	Since *metav1.Time `json:"since,omitempty"`
	// ByUser: somebody set the block by hand. Otherwise Version and Release say which
	// release it is because of.
	ByUser  bool   `json:"byUser,omitempty"`
	Version string `json:"version,omitempty"`
	Release int64  `json:"release,omitempty"`
	// Because is what failed.
	Because string `json:"because,omitempty"`
	// StaleOverride: the label that passes a block was there before it, and does not
	// count.
	StaleOverride bool `json:"staleOverride,omitempty"`
}

// Paused says who paused a rollout.
type Paused struct {
	// ByOperator: because Version failed. Otherwise a user did.
	ByOperator bool   `json:"byOperator,omitempty"`
	Version    string `json:"version,omitempty"`
	// HaltedBy is what halts a workload of a kind that knows no pause, as in
	// "partition 2147483647".
	HaltedBy string `json:"haltedBy,omitempty"`
}

// words for it.
func (p *Paused) words() *defense.Words { return &defense.Words{HaltedBy: p.HaltedBy} }

// Held says what a rollout waits for.
type Held struct {
	Release int64 `json:"release"`
	// Until is FirstBatch or EveryBatch.
	Until v1alpha1.HoldUntil `json:"until"`
	// Message says how many verdicts are waited for, since when, and how long at most.
	Message string `json:"message,omitempty"`
}

// Quarantined is a version that is denied.
type Quarantined struct {
	Version string `json:"version"`
	// Time is when it was left, Until when its quarantine ends by itself; absent for
	// never.
	Time  *metav1.Time `json:"time,omitempty"`
	Until *metav1.Time `json:"until,omitempty"`
	// Cause is NeverStarted, VerificationFailed or Requested; Because says more.
	Cause   string `json:"cause,omitempty"`
	Because string `json:"because,omitempty"`
	// Release is the number of the release that was left, To the version that was
	// restored, By the user who went back where it was not the operator.
	Release int64  `json:"release,omitempty"`
	To      string `json:"to,omitempty"`
	By      string `json:"by,omitempty"`
}

// Release is what is told of one release.
type Release struct {
	// Name of its ChangeWorkload.
	Name    string `json:"name"`
	Number  int64  `json:"number"`
	Attempt int32  `json:"attempt,omitempty"`
	Version string `json:"version"`
	// Current: the workload is at it.
	Current bool `json:"current,omitempty"`
	// State as in docs/states.md, Init where the record has none; Since when.
	State string       `json:"state"`
	Since *metav1.Time `json:"since,omitempty"`
	// Started is when its attempt began.
	Started      *metav1.Time `json:"started,omitempty"`
	Images       []string     `json:"images,omitempty"`
	ReleasedBy   string       `json:"releasedBy,omitempty"`
	OverriddenBy string       `json:"overriddenBy,omitempty"`
	// Passed, Failed, Checking and Waiting count its pods: those with a verdict, those in
	// a batch that is not done, and those that are finished and in no batch yet.
	Passed int32 `json:"passed"`
	// Unverified are those of Passed that have no verdict of AlterShield Server.
	Unverified int32 `json:"unverified,omitempty"`
	Failed     int32 `json:"failed"`
	Checking   int32 `json:"checking"`
	Waiting    int32 `json:"waiting"`
	// OrderStage and OrderURL are those of its order on AlterShield Server.
	OrderStage v1alpha1.OrderStage `json:"orderStage,omitempty"`
	OrderURL   string              `json:"orderUrl,omitempty"`
	// Conditions are those of its record.
	Conditions []Condition `json:"conditions,omitempty"`
	// Checks are those of the release as a whole.
	Checks []Check `json:"checks,omitempty"`
	// Batches are those of its attempt that are there; PassedBefore counts the pods of
	// batches that passed and were removed with their pods.
	Batches      []Batch `json:"batches,omitempty"`
	PassedBefore int32   `json:"passedBefore,omitempty"`
	// PodList are its pods, those that fail first.
	PodList []Pod `json:"podList,omitempty"`
}

// Condition is a condition of a record.
type Condition struct {
	Type    string                 `json:"type"`
	Status  metav1.ConditionStatus `json:"status"`
	Reason  string                 `json:"reason"`
	Message string                 `json:"message,omitempty"`
	Since   *metav1.Time           `json:"since,omitempty"`
}

func (c *Condition) telling() telling {
	return tellingOf(&metav1.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason})
}

func (c *Condition) detail() string {
	return defense.Detail(&metav1.Condition{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message})
}

// Check is a check of a batch or of a release.
type Check struct {
	Name    string              `json:"name"`
	Phase   v1alpha1.CheckPhase `json:"phase"`
	Reason  string              `json:"reason,omitempty"`
	Message string              `json:"message,omitempty"`
	// Observed: the check decides nothing. Background: nothing waits for it.
	Observed   bool         `json:"observed,omitempty"`
	Background bool         `json:"background,omitempty"`
	Deadline   *metav1.Time `json:"deadline,omitempty"`
}

// Batch is a batch of pods.
type Batch struct {
	// Name of its ChangePod.
	Name    string `json:"name"`
	Number  int32  `json:"number"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
	// Done: it has its result. Passed and Failed count its pods by that.
	Done   bool    `json:"done"`
	Pods   int     `json:"pods"`
	Passed int     `json:"passed"`
	Failed int     `json:"failed"`
	Checks []Check `json:"checks,omitempty"`
	// NotSubmitted says why AlterShield Server has not taken it.
	NotSubmitted string `json:"notSubmitted,omitempty"`
	URL          string `json:"url,omitempty"`
}

// Pod is a pod of a release.
type Pod struct {
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Gone: the pod is not there any more. Ready: it is, and ReadySince when.
	Gone       bool         `json:"gone,omitempty"`
	Ready      bool         `json:"ready"`
	ReadySince *metav1.Time `json:"readySince,omitempty"`
	// NotReady says why it is not Ready; Fails that waiting does not help.
	NotReady string `json:"notReady,omitempty"`
	Fails    bool   `json:"fails,omitempty"`
	// FinishedAt is when it will have been Ready for long enough to be verified.
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// Verified is how far its verification is, Verdict and Message what it says.
	Verified Verification `json:"verified"`
	Verdict  string       `json:"verdict,omitempty"`
	Message  string       `json:"message,omitempty"`
	// Batch is the number of its batch; 0 for none.
	Batch int32 `json:"batch,omitempty"`
}

// Verification is how far the verification of a pod is.
type Verification string

// Values of Verification.
const (
	VerifiedFailed   Verification = "Failed"
	VerifiedUnready  Verification = "NotFinished"
	VerifiedChecking Verification = "Checking"
	VerifiedWaiting  Verification = "Waiting"
	VerifiedPassed   Verification = "Passed"
	// VerifiedNot: the release is not verified.
	VerifiedNot Verification = "NotVerified"
)

// stateOf names a state of a release as people know it.
func stateOf(s v1alpha1.ChangeWorkloadStatusType) string { return cmp.Or(string(s), "Init") }

// unixTime is a time of the API; nil for none.
func unixTime(seconds int64) *metav1.Time {
	if seconds <= 0 {
		return nil
	}
	t := metav1.NewTime(time.Unix(seconds, 0).UTC())
	return &t
}

func timeOf(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	m := metav1.NewTime(t.UTC())
	return &m
}

// parsedTime is a time as annotations have it; nil for none.
func parsedTime(text string) *metav1.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil
	}
	return timeOf(t)
}

// statusOf tells of a workload.
func statusOf(s *sight, now time.Time) *Status {
	w := s.workload
	st := &Status{
		Kind: w.GVK.Kind, Namespace: w.Namespace, Name: w.Name,
		Version: w.Version, Images: w.Images, Release: w.Release(), Pods: s.counts, Missing: s.missing,
		Blocked: s.blocked(), Paused: s.paused(), Held: s.held(), Quarantined: s.quarantined(now), Releases: []Release{},
	}
	st.Defense, st.DefenseMessage = s.defense()
	st.Needs, st.Summary = summaryOf(s, Findings(s, advisor{}, now))
	if st.Release > 0 {
		st.ReleasedBy = w.ReleasedBy()
	}
	current := s.current()
	for i := range s.changes {
		c := &s.changes[i]
		st.Releases = append(st.Releases, s.release(c, c == current, now))
	}
	if current != nil {
		st.ReleasedAt = unixTime(cmp.Or(current.Status.StartTimeUnix, current.Spec.CreateTimeUnix))
	}
	return st
}

// summaryOf says what is the matter with a workload, in words.
func summaryOf(s *sight, findings []Finding) (Needs, string) {
	var words []string
	for i := range findings { // the most pressing first
		if f := &findings[i]; f.Needs != NeedsNothing && f.Needs != NeedsNoWord && !slices.Contains(words, f.What) {
			words = append(words, f.What)
		}
	}
	if len(words) > 0 {
		return findings[0].Needs, strings.Join(words, ", ")
	}
	c := s.current()
	switch {
	case c != nil && s.defended():
		return NeedsNothing, stateOf(c.Status.Status)
	case len(findings) > 0:
		return NeedsNothing, findings[0].What
	default:
		return NeedsNothing, "nothing to say"
	}
}

// defense says how far the workload is defended, and why not in full.
func (s *sight) defense() (Defense, string) {
	switch {
	case s.enrolledKnown && !s.enrolled:
		return DefenseNotEnrolled, "the namespace " + s.workload.Namespace + " is not enrolled"
	case s.optedOut():
		message := "its label " + v1alpha1.DefenseLabel + "=" + v1alpha1.DefenseDisabled + " takes it out of the defense"
		if o, ok := defense.ParseOptOut(s.workload.Annotations[v1alpha1.OptedOutAnnotation]); ok {
			message += "; " + o.Describe() + " at " + o.At.UTC().Format(time.RFC3339)
		}
		return DefenseOptedOut, message
	case s.observedByOwner():
		return DefenseObserved, "observed, because the " + s.workload.ObservingOwner() + " owns it"
	case s.settings != nil && s.settings.Observe:
		return DefenseObserved, "observed, as " + s.settings.ObservedBy + " says"
	case s.saysObserving() && s.settings == nil:
		return DefenseObserved, "observed, as its release says"
	case !s.enrolledKnown:
		return DefenseUnknown, "whether its namespace is enrolled is not known"
	default:
		return DefenseFull, ""
	}
}

// saysObserving says that the record of the current release does.
func (s *sight) saysObserving() bool {
	c := s.current()
	if c == nil {
		return false
	}
	said := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionDefended)
	return said != nil && said.Status == metav1.ConditionFalse && said.Reason == v1alpha1.ReasonObserving
}

func (s *sight) blocked() *Blocked {
	since, blocked := s.workload.Labels[v1alpha1.SuspendLabel]
	if !blocked {
		return nil
	}
	seconds, _ := strconv.ParseInt(since, 10, 64) // without a time where a user set something else
	b := &Blocked{Since: unixTime(seconds)}
	_, b.StaleOverride = s.workload.Annotations[v1alpha1.OverrideStaleAnnotation]
	version, release, _ := defense.ParseBlockedBy(s.workload.Annotations)
	if version == "" {
		b.ByUser = true
		return b
	}
	b.Version, b.Release = version, defense.ParseRelease(release)
	b.Because = s.whatFailed(b)
	return b
}

// whatFailed says why the release failed that a block is because of.
func (s *sight) whatFailed(b *Blocked) string {
	for i := range s.changes {
		c := &s.changes[i]
		if c.Spec.Reversion != b.Version {
			continue
		}
		if verified := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionVerified); verified != nil && verified.Status == metav1.ConditionFalse {
			return cmp.Or(defense.Detail(verified), verified.Message)
		}
	}
	for i := range s.changes {
		for _, p := range s.changes[i].Status.PreviousReleases {
			if p.Release == b.Release && p.Message != "" {
				return p.Message
			}
		}
	}
	return ""
}

func (s *sight) paused() *Paused {
	halted := s.workload.Annotations[v1alpha1.HaltedAnnotation]
	switch {
	case !s.workload.Paused:
		return nil
	case halted != "":
		return &Paused{ByOperator: true, Version: halted, HaltedBy: s.workload.Words.HaltedBy}
	default:
		return &Paused{HaltedBy: s.workload.Words.HaltedBy}
	}
}

func (s *sight) held() *Held {
	hold := s.workload.Hold
	if hold == nil || hold.Over {
		return nil
	}
	h := &Held{Release: hold.Release, Until: hold.Until}
	if c := s.current(); c != nil {
		if said := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionHeld); said != nil && said.Status == metav1.ConditionTrue {
			h.Message = defense.Detail(said)
		}
	}
	return h
}

func (s *sight) quarantined(now time.Time) (all []Quarantined) {
	q := defense.ParseQuarantine(s.workload.Annotations, now)
	for _, version := range defense.DeniedBy(s.workload.Labels, s.workload.Annotations, now).Quarantine {
		of := Quarantined{Version: version}
		if r, ok := q.Reason(version); ok {
			of.Time, of.Until, of.Cause, of.Because = parsedTime(r.Time), parsedTime(r.Until), r.Cause, r.String()
			of.Release, of.To, of.By = r.Release, r.To, r.By
		}
		all = append(all, of)
	}
	return all
}

// release tells of one release.
func (s *sight) release(c *v1alpha1.ChangeWorkload, current bool, now time.Time) Release {
	st := &c.Status
	r := Release{
		Name: c.Name, Number: c.Spec.Release, Attempt: st.Attempt, Version: c.Spec.Reversion, Current: current,
		State: stateOf(st.Status), Since: unixTime(cmp.Or(st.UpdateTimeUnix, c.Spec.CreateTimeUnix)), Started: unixTime(cmp.Or(st.StartTimeUnix, c.Spec.CreateTimeUnix)),
		Images: st.Images, ReleasedBy: st.ReleasedBy, OverriddenBy: st.OverriddenBy,
		Passed: st.PassCount, Unverified: st.UnverifiedCount, Failed: st.FailCount, Checking: st.CheckingCount, Waiting: st.PreparingCount,
		OrderStage: st.OrderStage, OrderURL: st.OrderURL, Checks: checksOf(st.Checks),
	}
	for i := range st.Conditions {
		cond := &st.Conditions[i]
		r.Conditions = append(r.Conditions, Condition{cond.Type, cond.Status, cond.Reason, cond.Message, timeOf(cond.LastTransitionTime.Time)})
	}
	if st.Folded != nil {
		r.PassedBefore = st.Folded.PassCount
	}
	for _, b := range s.batches[c.UID] {
		r.Batches = append(r.Batches, batchOf(b))
	}
	r.PodList = s.podsOf(c, current, now)
	return r
}

func checksOf(checks []v1alpha1.CheckStatus) (told []Check) {
	for i := range checks {
		c := &checks[i]
		of := Check{
			Name: c.Name, Phase: cmp.Or(c.Phase, v1alpha1.CheckPending), Reason: c.Reason, Message: c.Message,
			Observed: c.Mode == v1alpha1.ModeObserve, Background: c.Background,
		}
		if c.Deadline != nil {
			of.Deadline = timeOf(c.Deadline.Time)
		}
		told = append(told, of)
	}
	return told
}

func batchOf(b *v1alpha1.ChangePod) Batch {
	passed, failed := defense.BatchResults(b)
	of := Batch{
		Name: b.Name, Number: defense.BatchNumber(b), State: cmp.Or(string(b.Status.Status), "Init"), Message: b.Status.Message,
		Pods: len(b.Spec.PodInfos), Done: b.Status.Status == v1alpha1.ChangePodExecuteDone, Checks: checksOf(b.Status.Checks), URL: b.Status.URL,
	}
	if of.Done {
		of.Passed, of.Failed = len(passed), len(failed)
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionSubmitted); c != nil && c.Status == metav1.ConditionFalse && !of.Done {
		of.NotSubmitted = c.Reason + ": " + c.Message
	}
	return of
}

// podsOf are the pods of a release: those with a result that counts and, where the
// workload is at it, those that are there. Those that somebody has to look at come
// first.
func (s *sight) podsOf(c *v1alpha1.ChangeWorkload, current bool, now time.Time) []Pod {
	results := s.results(c)
	var pods []Pod
	if current {
		for i := range s.pods {
			pod := podOf(&s.pods[i], c, results)
			if s.settings != nil && pod.Verified == VerifiedUnready {
				if _, left := s.pods[i].Finished(defense.FinishOf(s.workload, s.settings.Settings), now); left > 0 {
					pod.FinishedAt = timeOf(now.Add(left))
				}
			}
			pods = append(pods, pod)
		}
	}
	for _, r := range c.Status.DefenseCheckFailPods {
		there := slices.ContainsFunc(pods, func(p Pod) bool { return p.Name == r.Pod })
		if !there {
			pods = append(pods, Pod{Name: r.Pod, Gone: current, Verified: VerifiedFailed, Verdict: r.Verdict, Message: r.Message, Batch: results[r.UID].Batch})
		}
	}
	rank := []Verification{VerifiedFailed, VerifiedUnready, VerifiedChecking, VerifiedWaiting, VerifiedNot, VerifiedPassed}
	slices.SortStableFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(slices.Index(rank, a.Verified), slices.Index(rank, b.Verified)), -compareBool(a.Fails, b.Fails), compareBool(a.Ready, b.Ready), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

// results are those of the pods of a release, by UID.
func (s *sight) results(c *v1alpha1.ChangeWorkload) map[string]Pod {
	results := map[string]Pod{}
	for _, b := range s.batches[c.UID] {
		number := defense.BatchNumber(b)
		if b.Status.Status != v1alpha1.ChangePodExecuteDone {
			for _, info := range b.Spec.PodInfos {
				results[info.UID] = Pod{Verified: VerifiedChecking, Batch: number}
			}
			continue
		}
		passed, failed := defense.BatchResults(b)
		for _, r := range passed {
			results[r.UID] = Pod{Verified: VerifiedPassed, Verdict: r.Verdict, Message: r.Message, Batch: number}
		}
		for _, r := range failed {
			results[r.UID] = Pod{Verified: VerifiedFailed, Verdict: r.Verdict, Message: r.Message, Batch: number}
		}
	}
	note := func(pods []v1alpha1.PodResult, verified Verification) {
		for _, r := range pods {
			if known, ok := results[r.UID]; !ok || verified == VerifiedFailed && known.Verified != VerifiedFailed && s.batches == nil {
				results[r.UID] = Pod{Verified: verified, Verdict: r.Verdict, Message: r.Message}
			}
		}
	}
	note(c.Status.DefenseCheckFailPods, VerifiedFailed)
	note(c.Status.DefenseCheckPassPods, VerifiedPassed)
	note(c.Status.DefenseCheckingPods, VerifiedChecking)
	note(c.Status.DefensePreparingPods, VerifiedWaiting)
	return results
}

func podOf(p *defense.Pod, c *v1alpha1.ChangeWorkload, results map[string]Pod) Pod {
	of, known := results[string(p.UID)]
	if !known {
		of.Verified = VerifiedUnready
		if !defense.IsVerified(c.Status.Status) {
			of.Verified = VerifiedNot
		}
	}
	of.Name, of.Node, of.Ready, of.ReadySince = p.Name, p.Node, p.Ready, timeOf(p.ReadySince)
	switch {
	case p.Ended:
		of.NotReady = "it has ended, and is replaced"
	case p.Terminating:
		of.NotReady = "it is being removed"
	case p.Stuck != nil && !p.Ready:
		of.NotReady, of.Fails = p.Stuck.String(), p.Stuck.Fails()
	}
	return of
}

// short is as much of a version as is needed to know it again.
func short(version string) string { return version[:min(len(version), 12)] }

// releaseName names a release in a sentence.
func releaseName(number int64, version string) string {
	if number == 0 {
		return "version " + short(version)
	}
	return fmt.Sprintf("release %d (version %s)", number, short(version))
}
