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
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Observed is the story of a namespace in observe mode: a user types the same commands, and releases fail in the same ways. Everything is
// recorded and reported; nothing is denied, blocked or rolled back.
func Observed() []Step {
	events := func(reason string) Act {
		return kubectl("get events --field-selector involvedObject.kind=Deployment,reason=" + reason)
	}
	return []Step{
		Release,
		{"2. A pod fails its verification", []Act{
			Verdict,
			see("the release to be suspended, and the Deployment not blocked", (*scene).onlySuspended),
			list.prints("Suspend"),
			see("the event of the suspension", (*scene).reported),
			events("ReleaseSuspended").prints(FailedPod, "find error"),
			see("the event of the block that would have been", hasEvent("DryRun")),
			events("DryRun").prints("Observe mode only reports"),
		}},
		{"3. The next release is not blocked", []Act{
			another.prints("patched"),
			see("the release to succeed", (*scene).goesOn),
		}},
		{"4. An override release has no block to pass", []Act{
			kubectl("apply -f config/samples/sleep-repair.yaml").prints("configured"),
			see("the override release to succeed and the older version to go", (*scene).released),
			list.prints(RepairRelease, "Success"),
		}},
		GoOn,
		{"6. A release whose pods do not come up is left as it is", []Act{
			kubectl("apply -f config/samples/sleep-broken-image.yaml").prints("configured"),
			see("4 old pods to run and 3 new ones not to", (*scene).stuck),
			see("the release to be reported, and nothing else", (*scene).leftStuck),
			see("the event of the rollback that would have been", hasEvent("DryRun")),
			events("DryRun").prints("busybo", "Observe mode only reports"),
			kubectl("apply -f config/samples/sleep-broken-image.yaml").prints("unchanged"),
		}},
		{"7. The good version is released again, and the bad version once more", []Act{
			kubectl("apply -f config/samples/sleep.yaml").prints("configured"),
			see("the release and its 5 pods to be verified", (*scene).verified),
			kubectl("apply -f config/samples/sleep-broken-image.yaml").prints("configured"),
			see("4 old pods to run and 3 new ones not to", (*scene).stuck),
			kubectl("apply -f config/samples/sleep.yaml").prints("configured"),
			see("the release and its 5 pods to be verified", (*scene).verified),
		}},
	}
}

// untouched reports whether the operator has not blocked, halted or rolled back the workload.
func (s *scene) untouched(ctx context.Context) (bool, error) {
	w, err := s.workload(ctx)
	if err != nil {
		return false, err
	}
	for _, key := range []string{v1alpha1.HaltedAnnotation, v1alpha1.QuarantinedAnnotation, v1alpha1.SuspendedByAnnotation} {
		if _, there := w.GetAnnotations()[key]; there {
			return false, nil
		}
	}
	_, blocked := w.GetLabels()[v1alpha1.SuspendLabel]
	return !blocked && !w.stopped, nil
}

func (s *scene) onlySuspended(ctx context.Context) (string, bool, error) {
	releases, err := s.releases(ctx)
	if err != nil {
		return "", false, err
	}
	first := releases[s.first()]
	untouched, err := s.untouched(ctx)
	return stateOf(first), stateOf(first) == "Suspend" && len(first.Status.DefenseCheckFailPods) == 1 &&
		first.Status.DefenseCheckFailPods[0].Pod == s.pod && untouched, err
}

func (s *scene) released(ctx context.Context) (string, bool, error) {
	releases, err := s.releases(ctx)
	if err != nil {
		return "", false, err
	}
	untouched, err := s.untouched(ctx)
	state := stateOf(releases[s.repair()])
	return fmt.Sprintf("%s, %d listed", state, len(releases)), state == "Success" && len(releases) == 1 && untouched, err
}

// leftStuck reports whether the bad version still runs, and its release has the rollback that would have been made.
func (s *scene) leftStuck(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	untouched, err := s.untouched(ctx)
	if err != nil {
		return "", false, err
	}
	bad, said := releases[s.of.prefix()+s.bad], ""
	if bad != nil {
		for _, c := range bad.Status.Conditions {
			if c.Type == v1alpha1.ConditionRolledBack && c.Reason == v1alpha1.ReasonObserving {
				said = c.Message
			}
		}
	}
	return fmt.Sprintf("%s %s", stateOf(bad), said), strings.Contains(said, "would have been rolled back: to version "+s.good) &&
		w.GetLabels()[v1alpha1.VersionLabel] == s.bad && untouched, nil
}

// hasEvent expects an event of the workload with a reason.
func hasEvent(reason string) look {
	return func(s *scene, ctx context.Context) (string, bool, error) {
		var events corev1.EventList
		if err := s.client.List(ctx, &events, client.InNamespace(s.namespace)); err != nil {
			return "", false, err
		}
		for i := range events.Items {
			if e := &events.Items[i]; e.Reason == reason && e.InvolvedObject.Kind == s.of.kind {
				return e.Message, true, nil
			}
		}
		return fmt.Sprintf("%d events", len(events.Items)), false, nil
	}
}
