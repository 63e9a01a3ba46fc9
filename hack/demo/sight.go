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

package main

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// sight is what is to be seen of a Deployment at one time. It says what is wrong with
// what should be.
type sight struct {
	deployment appsv1.Deployment
	// change is the current release, without a name when there is none yet; batches are
	// those of it.
	change  v1alpha1.ChangeWorkload
	batches []v1alpha1.ChangePod
	// changes are all releases that are listed.
	changes []v1alpha1.ChangeWorkload
}

// progress is how far the current release is, in a few words.
func (s *sight) progress() string {
	_, pods := rollout(&s.deployment)
	return fmt.Sprintf("%s, %s, %d Ready", name(s.change.Status.Status), pods, s.deployment.Status.ReadyReplicas)
}

// succeeded says why the current release has not succeeded, with all of its pods
// Ready, and nothing blocked.
func (s *sight) succeeded() error {
	inFlight, progress := rollout(&s.deployment)
	_, blocked := s.deployment.Labels[v1alpha1.SuspendLabel]
	switch {
	case s.change.Status.Status != v1alpha1.ChangeWorkloadSuccess:
		return fmt.Errorf("the release is in state %s", name(s.change.Status.Status))
	case inFlight || s.deployment.Status.ReadyReplicas != *s.deployment.Spec.Replicas:
		return fmt.Errorf("the rollout goes on: %s", progress)
	case blocked:
		return fmt.Errorf("the Deployment is blocked")
	case len(s.batches) == 0:
		return fmt.Errorf("no pod was put into a batch")
	}
	return nil
}

// waits says why the rollout of the current release does not wait for its verdicts.
func (s *sight) waits() error { return waits(&s.deployment, &s.change) }

// passed says that a check of some batch of a release that succeeded is in another
// phase than this one.
func (s *sight) passed(check string, phase v1alpha1.CheckPhase) error {
	if err := s.succeeded(); err != nil {
		return err
	}
	for i := range s.batches {
		b := &s.batches[i]
		if c := checkOf(b, check); c == nil || c.Phase != phase {
			return fmt.Errorf("batch %s: check %s is not %s: %+v", b.Name, check, phase, c)
		}
	}
	return nil
}

// failed says that the current release did not fail by this check, or that what is
// told of it does not name the check, a pod of its, and what it says.
func (s *sight) failed(check string, says ...string) error {
	_, blocked := s.deployment.Labels[v1alpha1.SuspendLabel]
	pods := s.change.Status.DefenseCheckFailPods
	switch {
	case s.change.Status.Status != v1alpha1.ChangeWorkloadSuspend:
		return fmt.Errorf("the release is in state %s, and not suspended", name(s.change.Status.Status))
	case !blocked:
		return fmt.Errorf("the Deployment is not blocked")
	case len(pods) == 0:
		return fmt.Errorf("no pod is named that failed")
	}
	for _, p := range pods {
		for _, text := range append([]string{check + ": pod " + p.Pod + ": "}, says...) {
			if !strings.Contains(p.Message, text) {
				return fmt.Errorf("pod %s failed without %q: %s", p.Pod, text, p.Message)
			}
		}
		if !slices.ContainsFunc(s.batches, func(b v1alpha1.ChangePod) bool {
			c := checkOf(&b, check)
			return c != nil && c.Phase == v1alpha1.CheckFailed && slices.Contains(c.FailedPods, p.Pod)
		}) {
			return fmt.Errorf("check %s failed no batch for pod %s", check, p.Pod)
		}
	}
	return nil
}

// restored says why a Deployment is not back at a good version from a bad release.
func (s *sight) restored(bad, good string) error {
	i := slices.IndexFunc(s.changes, func(c v1alpha1.ChangeWorkload) bool { return c.Name == bad })
	switch version := s.deployment.Labels[v1alpha1.VersionLabel]; {
	case i < 0:
		return fmt.Errorf("release %s is not listed", bad)
	case s.changes[i].Status.Status != v1alpha1.ChangeWorkloadRollback:
		return fmt.Errorf("release %s is in state %s, and not rolled back", bad, name(s.changes[i].Status.Status))
	case version != good:
		return fmt.Errorf("the Deployment is at version %s, and not %s", version, good)
	}
	return nil
}

func checkOf(b *v1alpha1.ChangePod, check string) *v1alpha1.CheckStatus {
	for i := range b.Status.Checks {
		if b.Status.Checks[i].Name == check {
			return &b.Status.Checks[i]
		}
	}
	return nil
}
