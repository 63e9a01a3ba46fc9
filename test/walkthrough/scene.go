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

package walkthrough

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// look reports whether the cluster is in a state, and how far it is. An error ends the story.
type look func(s *scene, ctx context.Context) (progress string, seen bool, err error)

// scene is the namespace of a story, and the names that the story has found so far. Its looks are methods, in the files of the stories.
type scene struct {
	client    client.Reader
	namespace string
	of        Workload

	pod       string // the pod that fails
	release   string // the newest release
	newPod    string // a pod of the first batch of that release
	good, bad string // the version before the last release, and the version of that release
}

// words returns the values of the placeholders in commands.
func (s *scene) words(ctx context.Context) (*strings.Replacer, error) {
	if s.pod == "" {
		batch := &v1alpha1.ChangePod{}
		if err := client.IgnoreNotFound(s.get(ctx, s.first()+"--x--1", batch)); err != nil {
			return nil, err
		}
		if len(batch.Spec.PodInfos) > 0 {
			s.pod = batch.Spec.PodInfos[0].Pod
		}
	}
	return strings.NewReplacer(Namespace, s.namespace, FailedPod, cmp.Or(s.pod, FailedPod), badVersion, cmp.Or(s.bad, badVersion),
		currentRelease, cmp.Or(s.release, currentRelease), currentPod, cmp.Or(s.newPod, currentPod)), nil
}

// first and repair return the names of the releases of the samples.
func (s *scene) first() string {
	if s.of.first == "" {
		return FirstRelease
	}
	return s.of.prefix() + s.of.first
}

func (s *scene) repair() string {
	if s.of.repair == "" {
		return RepairRelease
	}
	return s.of.prefix() + s.of.repair
}

func (s *scene) get(ctx context.Context, name string, object client.Object) error {
	return s.client.Get(ctx, types.NamespacedName{Namespace: s.namespace, Name: name}, object)
}

// releases returns all releases of the namespace, by name.
func (s *scene) releases(ctx context.Context) (map[string]*v1alpha1.ChangeWorkload, error) {
	var list v1alpha1.ChangeWorkloadList
	err := s.client.List(ctx, &list, client.InNamespace(s.namespace))
	releases := map[string]*v1alpha1.ChangeWorkload{}
	for i := range list.Items {
		releases[list.Items[i].Name] = &list.Items[i]
	}
	return releases, err
}

// see returns the workload and the releases.
func (s *scene) see(ctx context.Context) (*sleep, map[string]*v1alpha1.ChangeWorkload, error) {
	releases, err := s.releases(ctx)
	if err != nil {
		return nil, nil, err
	}
	w, err := s.workload(ctx)
	return w, releases, err
}

// version returns the version of the workload, or nothing if there is no workload.
func (s *scene) version(ctx context.Context) (string, error) {
	w, err := s.workload(ctx)
	return w.GetLabels()[v1alpha1.VersionLabel], client.IgnoreNotFound(err)
}

// current returns the name of the release of the workload's version.
func (s *scene) current(w *sleep) string { return s.of.prefix() + w.GetLabels()[v1alpha1.VersionLabel] }

// stateOf returns the state of a release. The empty state of a new release is Init.
func stateOf(c *v1alpha1.ChangeWorkload) string {
	if c == nil {
		return "not there"
	}
	return cmp.Or(string(c.Status.Status), "Init")
}

func (s *scene) verified(ctx context.Context) (string, bool, error) {
	releases, err := s.releases(ctx)
	if err != nil {
		return "", false, err
	}
	var batches v1alpha1.ChangePodList
	if err := s.client.List(ctx, &batches, client.InNamespace(s.namespace)); err != nil {
		return "", false, err
	}
	var done []string
	for i := range batches.Items {
		b := &batches.Items[i]
		if b.Spec.ChangeWorkloadID == s.first() && b.Status.Status == v1alpha1.ChangePodExecuteDone && len(b.Spec.PodInfos) == 1 {
			done = append(done, strings.TrimPrefix(b.Name, s.first()+"--x--"))
		}
	}
	slices.Sort(done)
	first := releases[s.first()]
	return fmt.Sprintf("%s, %d of %d batches done", stateOf(first), len(done), s.of.pods),
		stateOf(first) == "Success" && slices.Equal(done, []string{"1", "2", "3", "4", "5"}[:s.of.pods]), nil
}

func (s *scene) suspended(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	first := releases[s.first()]
	failed := first != nil && len(first.Status.DefenseCheckFailPods) == 1 && first.Status.DefenseCheckFailPods[0].Pod == s.pod &&
		first.Status.DefenseCheckFailPods[0].Message == "find error"
	return stateOf(first), stateOf(first) == "Suspend" && failed && len(w.GetLabels()[v1alpha1.SuspendLabel]) == len("1700000000"), nil
}

// reported reports whether the event of the suspension exists. The operator writes it after the suspension.
func (s *scene) reported(ctx context.Context) (string, bool, error) {
	var events corev1.EventList
	if err := s.client.List(ctx, &events, client.InNamespace(s.namespace)); err != nil {
		return "", false, err
	}
	said := slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return e.Reason == "ReleaseSuspended" && e.InvolvedObject.Kind == s.of.kind && strings.Contains(e.Message, s.pod)
	})
	return fmt.Sprintf("%d events", len(events.Items)), said, nil
}

func (s *scene) bothListed(ctx context.Context) (string, bool, error) {
	releases, err := s.releases(ctx)
	return fmt.Sprintf("%d listed", len(releases)), releases[s.first()] != nil && releases[s.repair()] != nil, err
}

func (s *scene) repaired(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	_, blocked := w.GetLabels()[v1alpha1.SuspendLabel]
	_, override := w.GetLabels()[v1alpha1.IgnoredSuspendLabel] // it is used up
	state := stateOf(releases[s.repair()])
	return fmt.Sprintf("%s, %d listed", state, len(releases)), state == "Success" && len(releases) == 1 && !blocked && !override, nil
}

func (s *scene) goesOn(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	state := stateOf(releases[s.current(w)])
	return fmt.Sprintf("%s, %d listed", state, len(releases)), len(releases) == 1 && releases[s.repair()] == nil && state == "Success" &&
		w.GetLabels()[v1alpha1.DefenseStatusLabel] == v1alpha1.DefenseStatusProcessed, nil
}

// stuck reports whether the old pods run and the new pods cannot pull their image. It remembers the good version and the bad version.
func (s *scene) stuck(ctx context.Context) (string, bool, error) {
	w, err := s.workload(ctx)
	if err != nil {
		return "", false, err
	}
	var pods corev1.PodList
	if err := s.client.List(ctx, &pods, client.InNamespace(s.namespace), client.MatchingLabels{"app": "sleep"}); err != nil {
		return "", false, err
	}
	s.bad = w.GetLabels()[v1alpha1.VersionLabel]
	running, waiting := map[string]int{}, map[string]int{}
	for i := range pods.Items {
		p := &pods.Items[i]
		switch version := p.Labels[v1alpha1.VersionLabel]; {
		case p.DeletionTimestamp != nil:
		case isReady(p):
			running[version]++
			s.good = version
		case cannotPull(p):
			// Pods of some kinds are labelled when their release is finished.
			waiting[cmp.Or(version, s.bad)]++
		}
	}
	return fmt.Sprintf("%d run, %d cannot pull their image", running[s.good], waiting[s.bad]),
		s.good != s.bad && running[s.good] == s.of.kept && waiting[s.bad] == s.of.stuck, nil
}

func isReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func cannotPull(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Waiting != nil && strings.Contains(c.State.Waiting.Reason, "Pull")
	})
}

func (s *scene) restored(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	again := releases[s.of.prefix()+s.good]
	good, bad := stateOf(again), stateOf(releases[s.of.prefix()+s.bad])
	// Until the operator has recorded the rollback, the good release still has the Success of its earlier release.
	seen := again != nil && strconv.FormatInt(again.Status.ObservedRelease, 10) == w.GetAnnotations()[v1alpha1.ReleaseAnnotation]
	pods := int32(s.of.pods)
	rolledOut := w.settled && w.updated == pods && w.all == pods && w.available == pods
	_, blocked := w.GetLabels()[v1alpha1.SuspendLabel]
	quarantined := slices.Contains(strings.Split(w.GetAnnotations()[v1alpha1.QuarantinedAnnotation], ","), s.bad)
	back := w.GetLabels()[v1alpha1.VersionLabel] == s.good && !blocked && !w.stopped
	return good + s.available(w) + ", the bad release is " + bad,
		good == "Success" && seen && bad == "Rollback" && rolledOut && back && quarantined, nil
}

// interval is the polling interval. It is short, so that no state of a few seconds is missed.
const interval = 50 * time.Millisecond
