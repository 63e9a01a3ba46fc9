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
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// succeeded reports whether the current release succeeded with all pods, is the only release, and nothing is blocked.
func (s *scene) succeeded(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	state, pods := stateOf(releases[s.current(w)]), int32(s.of.pods)
	labels := w.GetLabels()
	complete := w.settled && !w.stopped && w.updated == pods && w.all == pods && w.available == pods
	return state + s.available(w), complete && state == "Success" && len(releases) == 1 &&
		labels[v1alpha1.SuspendLabel] == "" && labels[v1alpha1.IgnoredSuspendLabel] == "", nil
}

// available returns how many pods are available, as a further part of a progress. An object without pods has none.
func (s *scene) available(w *sleep) string {
	if s.of.pods == 0 {
		return ""
	}
	return fmt.Sprintf(", %d of %d pods available", w.available, s.of.pods)
}

// held reports whether some pods are of the current release, and its rollout waits for verdicts on them.
func (s *scene) held(ctx context.Context) (string, bool, error) {
	w, releases, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	release := releases[s.current(w)]
	held := release != nil && meta.IsStatusConditionTrue(release.Status.Conditions, v1alpha1.ConditionHeld)
	return fmt.Sprintf("%d of %d pods updated, held: %t", w.updated, s.of.pods, held),
		held && w.settled && w.updated > 0 && int(w.updated) < s.of.pods, nil
}

// stopped reports whether the rollout is halted before all pods are replaced.
func (s *scene) stopped(ctx context.Context) (string, bool, error) {
	w, _, err := s.see(ctx)
	if err != nil {
		return "", false, err
	}
	return fmt.Sprintf("%d of %d pods updated", w.updated, s.of.pods),
		w.GetAnnotations()[v1alpha1.HaltedAnnotation] != "" && w.stopped && w.settled && int(w.updated) < s.of.pods, nil
}

// failed expects that the current release is suspended, that the message of each failed pod has these texts, and that the workload is
// blocked.
func failed(texts ...string) look {
	return func(s *scene, ctx context.Context) (string, bool, error) {
		w, releases, err := s.see(ctx)
		if err != nil {
			return "", false, err
		}
		release := releases[s.current(w)]
		if stateOf(release) != "Suspend" || w.GetLabels()[v1alpha1.SuspendLabel] == "" || len(release.Status.DefenseCheckFailPods) == 0 {
			return fmt.Sprintf("%s, %d of %d pods updated", stateOf(release), w.updated, s.of.pods), false, nil
		}
		for _, pod := range release.Status.DefenseCheckFailPods {
			for _, text := range texts {
				if !strings.Contains(pod.Message, text) {
					return "", false, fmt.Errorf("pod %s failed without %q: %s", pod.Pod, text, pod.Message)
				}
			}
		}
		return "Suspend", true, nil
	}
}

// kept expects that so many pods have another version than the failing release, and are older than its record.
func kept(want int) look {
	return func(s *scene, ctx context.Context) (string, bool, error) {
		releases, err := s.releases(ctx)
		if err != nil {
			return "", false, err
		}
		bad := releases[s.of.prefix()+s.bad]
		var pods corev1.PodList
		err = s.client.List(ctx, &pods, client.InNamespace(s.namespace), client.MatchingLabels{"app": s.of.name})
		if err != nil || bad == nil {
			return "", false, err
		}
		n := 0
		for i := range pods.Items {
			p := &pods.Items[i]
			version := p.Labels[v1alpha1.VersionLabel]
			if p.DeletionTimestamp == nil && version != "" && version != s.bad && p.CreationTimestamp.Before(&bad.CreationTimestamp) {
				n++
			}
		}
		return fmt.Sprintf("%d of %d pods were never replaced", n, s.of.pods), n == want, nil
	}
}

// reports expects an event of the workload for each of these reasons that names the version released last.
func reports(reasons ...string) look {
	return func(s *scene, ctx context.Context) (string, bool, error) {
		var events corev1.EventList
		if err := s.client.List(ctx, &events, client.InNamespace(s.namespace)); err != nil {
			return "", false, err
		}
		missing := slices.DeleteFunc(slices.Clone(reasons), func(reason string) bool {
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.Reason == reason && e.InvolvedObject.Name == s.of.name && strings.Contains(e.Message, s.bad)
			})
		})
		return fmt.Sprintf("%d events", len(events.Items)), len(missing) == 0, nil
	}
}
