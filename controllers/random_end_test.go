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

package controllers_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// calm ends all outages and waits for rest.
func (s *randomStory) calm() {
	s.synced = nil
	s.w.Start()
	s.w.SetWebhooks(true)
	s.w.SetQuota(false, 0)
	if s.nodes {
		s.w.SetRegistry(true)
		for n := range s.options.Nodes {
			s.w.BootNode(n + 1)
			s.w.CutOff(n+1, false)
		}
	}
	if s.options.Server {
		s.w.Server().ClearScripts()
		must(s.w, s.w.Server().SetOutage(simulator.NoOutage))
	}
	s.logf("all outages end")
	s.rest()
}

// observed reports whether the workload is in observe mode.
func (s *randomStory) observed() bool {
	own := s.stored().GetAnnotations()[v1alpha1.SettingAnnotationPrefix+settings.NameObserve]
	return own == "enabled" || s.options.Settings[settings.NameObserve].Enable && own == ""
}

func (s *randomStory) enrolled() bool { return s.w.Enrolled() }

func (s *randomStory) optedOut() bool {
	return s.stored().GetLabels()[v1alpha1.DefenseLabel] == v1alpha1.DefenseDisabled
}

func (s *randomStory) enforcing() bool { return s.enrolled() && !s.optedOut() && !s.observed() }

// finish releases a version that can succeed, past any block.
func (s *randomStory) finish() {
	s.w.Enrol(true)
	for _, pod := range s.pods() {
		if !isReady(pod) && strings.HasPrefix(pod.Spec.Containers[0].Image, "good") {
			must(s.w, s.w.Delete(pod)) // the story harmed the pod, but its version is good
		}
	}
	s.w.For(10 * time.Second)
	must(s.w, s.patch(label(v1alpha1.DefenseLabel, "null")))
	must(s.w, s.patch(label(v1alpha1.IgnoredSuspendLabel, "null"))) // an older label may be stale
	s.wants.onDelete, s.wants.paused, s.wants.partition = false, false, 0
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"replicas":3,`, v1alpha1.IgnoredSuspendLabel)
	switch s.kind {
	case "Deployment":
		patch += `"paused":false,`
	case "StatefulSet":
		patch += `"updateStrategy":` + s.strategy() + ","
	case "DaemonSet":
		patch = strings.Replace(patch, `"replicas":3,`, `"updateStrategy":`+s.strategy()+",", 1)
	}
	t := templateOfImage("the last one", "good")
	patch += strings.TrimPrefix(t, `{"spec":{`)
	if err := s.patch(patch); err != nil {
		s.w.Failf("a good override release is denied: %v", err)
	}
	s.noteVersion("good")
	s.logf("a good release past the block")
	s.rest()
	s.deleteStuck()
	c, complete := s.change(), s.complete("the last one")
	if c == nil || c.Status.Status != v1alpha1.ChangeWorkloadSuccess || complete != "" {
		state := "not recorded"
		if c != nil {
			state = string(c.Status.Status)
		}
		s.w.Failf("a good release does not succeed: it is %s, %s", state, complete)
	}
}

// deleteStuck deletes pods that block the rollout of a StatefulSet if the operator must not evict them: it knows of no failure of their
// versions, or is in observe mode.
func (s *randomStory) deleteStuck() {
	if s.kind != "StatefulSet" {
		return
	}
	for range 6 {
		i := slices.IndexFunc(s.pods(), func(pod *corev1.Pod) bool {
			return !isReady(pod) && (s.unknown[pod.Labels["test"]] || s.observed())
		})
		if i < 0 {
			return
		}
		s.logf("a user deletes the stuck pod %s", s.pods()[i].Name)
		must(s.w, s.w.Delete(s.pods()[i]))
		s.rest()
	}
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// complete returns why the rollout of a template is not complete, or "".
func (s *randomStory) complete(label string) string {
	pods := s.pods()
	if len(pods) != 3 {
		return fmt.Sprintf("%d pods", len(pods))
	}
	for _, pod := range pods {
		if pod.Labels["test"] != label || !isReady(pod) {
			return fmt.Sprintf("pod %s of %s is ready: %t", pod.Name, pod.Labels["test"], isReady(pod))
		}
	}
	return ""
}

// check fails if the workload still has a trace that must be gone.
func (s *randomStory) check(when string) {
	problems := slices.Concat(s.checkFields(), s.checkHalt(), s.checkBlock(), s.checkQuarantine(), s.checkRecords())
	if len(problems) > 0 {
		s.w.Failf("%s: %s; it is %s", problems[0], when, s.describe())
	}
}

// describe returns the workload in one line.
func (s *randomStory) describe() string {
	o := s.stored()
	said := fmt.Sprintf("enrolled: %t, labels %v, annotations %v", s.enrolled(), o.GetLabels(), o.GetAnnotations())
	for v, c := range s.w.ChangesOf(o) {
		said += fmt.Sprintf("; release %d of %s is %s (%d passed, %d failed)",
			c.Spec.Release, v, c.Status.Status, c.Status.PassCount, c.Status.FailCount)
	}
	return said
}

// checkFields is S5 and S10: all fields have the values that the user wants.
func (s *randomStory) checkFields() (problems []string) {
	o, halted := s.stored(), s.halted()
	not := func(field string, is, want any) {
		if is != want {
			problems = append(problems, fmt.Sprintf("a user's field is lost: %s is %v, want %v", field, is, want))
		}
	}
	if held := o.GetAnnotations()[v1alpha1.HeldAnnotation]; held != "" && !s.wants.paused && !s.isStuck() {
		problems = append(problems, "still held: "+held)
	}
	switch o := o.(type) {
	case *appsv1.Deployment:
		if o.Annotations[v1alpha1.HeldAnnotation] == "" {
			not("minReadySeconds", o.Spec.MinReadySeconds, s.wants.minReady)
			not("progressDeadlineSeconds", *o.Spec.ProgressDeadlineSeconds, s.wants.deadline)
		}
		not("paused", o.Spec.Paused, s.wants.paused || halted)
	case *appsv1.StatefulSet:
		not("minReadySeconds", o.Spec.MinReadySeconds, s.wants.minReady)
		not("OnDelete", o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType, s.wants.onDelete)
		if r := o.Spec.UpdateStrategy.RollingUpdate; r != nil && o.Annotations[v1alpha1.HeldAnnotation] == "" {
			want := s.wants.partition
			if halted {
				want = math.MaxInt32
			}
			not("partition", *r.Partition, want)
		}
	case *appsv1.DaemonSet:
		not("minReadySeconds", o.Spec.MinReadySeconds, s.wants.minReady)
		not("OnDelete", o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType, s.wants.onDelete || halted)
	}
	return problems
}

// isStuck reports whether a pod is not Ready: a hold waits for it.
func (s *randomStory) isStuck() bool {
	return slices.ContainsFunc(s.pods(), func(pod *corev1.Pod) bool { return !isReady(pod) })
}

// checkHalt: a halted workload is defended, and its release failed.
func (s *randomStory) checkHalt() []string {
	o := s.stored()
	version := o.GetAnnotations()[v1alpha1.HaltedAnnotation]
	if version == "" {
		return nil
	}
	c := s.w.ChangesOf(o)[version]
	switch {
	case !s.enforcing():
		return []string{"halted and not defended"}
	case o.GetLabels()[v1alpha1.VersionLabel] != version:
		return []string{"halted because of another version"}
	case c == nil || c.Status.Status != v1alpha1.ChangeWorkloadSuspend:
		return []string{"halted without a failed release"}
	}
	return nil
}

// checkBlock: a workload that the operator blocked is defended, and a release failed since the last success.
func (s *randomStory) checkBlock() []string {
	o := s.stored()
	because := strings.Fields(o.GetAnnotations()[v1alpha1.SuspendedByAnnotation])
	if _, blocked := o.GetLabels()[v1alpha1.SuspendLabel]; !blocked || len(because) < 2 {
		return nil
	}
	current := s.change()
	switch {
	case !s.enforcing():
		return []string{"blocked and not defended"}
	case current != nil && current.Status.Status == v1alpha1.ChangeWorkloadSuccess && current.Status.PassCount > 0:
		return []string{"blocked although its release succeeded"}
	}
	for _, c := range s.w.ChangesOf(o) {
		is := c.Spec.Reversion == because[0] && fmt.Sprint(c.Status.ObservedRelease) == because[1]
		if is && c.Status.Status == v1alpha1.ChangeWorkloadSuccess {
			return []string{"blocked because of a release that succeeded"}
		}
	}
	return nil
}

// checkQuarantine is S9: each version in quarantine had a failure.
func (s *randomStory) checkQuarantine() (problems []string) {
	var reasons map[string]struct{ Cause, Message string }
	if text := s.stored().GetAnnotations()[v1alpha1.QuarantineReasonAnnotation]; text != "" {
		must(s.w, json.Unmarshal([]byte(text), &reasons))
	}
	for version, why := range reasons {
		image, known := s.images[version]
		if why.Cause != v1alpha1.ReasonRollbackRequested && known && strings.HasPrefix(image, "good") && !s.disturbed {
			problems = append(problems, fmt.Sprintf("a good version is in quarantine: %s, %+v", version, why))
		}
	}
	return problems
}

// mostRecords is the number of releases kept for a workload: the current release and ten more.
const mostRecords = 11

// checkRecords is S11, and L1 for records that cannot go on without help.
func (s *randomStory) checkRecords() (problems []string) {
	o := s.stored()
	changes := s.w.ChangesOf(o)
	if len(changes) > mostRecords {
		problems = append(problems, fmt.Sprintf("%d releases are recorded", len(changes)))
	}
	if s.enforcing() && s.blocks() {
		if c := s.change(); c != nil && c.Status.Status == v1alpha1.ChangeWorkloadSuspend &&
			o.GetLabels()[v1alpha1.SuspendLabel] == "" &&
			fmt.Sprint(c.Status.ObservedRelease) == o.GetAnnotations()[v1alpha1.ReleaseAnnotation] {
			problems = append(problems, "not blocked although its release failed")
		}
	}
	return problems
}

// blocks reports whether the setting blocking is on.
func (s *randomStory) blocks() bool {
	v, ok := s.options.Settings[settings.NameBlocking]
	own := s.stored().GetAnnotations()[v1alpha1.SettingAnnotationPrefix+settings.NameBlocking]
	return own != "disabled" && (v.Enable || !ok)
}
