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
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

// rolledBack shows how the order of the one release that was rolled back ended.
func (s *story) rolledBack(ctx context.Context) error {
	var list v1alpha1.ChangeWorkloadList
	if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil {
		return err
	}
	for i := range list.Items {
		if list.Items[i].Status.Status == v1alpha1.ChangeWorkloadRollback {
			return s.orderEnded(ctx, &list.Items[i], altershield.FinishRollback)
		}
	}
	return errors.New("no release was rolled back")
}

// healed is a release that fails its verification while self-healing is on, and its
// rollout waits: most pods are never replaced.
func (s *story) healed(ctx context.Context) error {
	before, err := s.deployment(ctx)
	if err != nil {
		return err
	}
	if err := s.run(ctx, "-n", "altershieldoperator-system", "patch", "opsconfiginfo", "selfhealing", "--type", "merge", "-p", `{"spec":{"enable":true}}`); err != nil {
		return err
	}
	pods, err := s.holdFirst(ctx)
	if err != nil {
		return err
	}
	s.server.failBatch(failingBatch)
	if err := s.run(ctx, "set", "image", "deployment/sleep", "sleep=busybox:1.36"); err != nil {
		return err
	}
	bad, err := s.restored(ctx, before.Labels[v1alpha1.VersionLabel])
	if err != nil {
		return err
	}
	if err := s.kept(ctx, before, pods, oldOfFirstWave); err != nil {
		return err
	}
	if err := s.run(ctx, "get", "changeworkloads"); err != nil {
		return err
	}
	if err := s.run(ctx, "rollout", "history", "deployment/sleep"); err != nil {
		return err
	}
	return s.orderEnded(ctx, bad, altershield.FinishRollback)
}

// restored waits until the Deployment is back at a version, all of it verified,
// and returns the release that was rolled back.
func (s *story) restored(ctx context.Context, good string) (bad *v1alpha1.ChangeWorkload, err error) {
	err = s.waitFor(ctx, "the Deployment to be rolled back, and verified", func(ctx context.Context) (string, bool, error) {
		deployment, err := s.deployment(ctx)
		if err != nil {
			return "", false, err
		}
		var list v1alpha1.ChangeWorkloadList
		if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil {
			return "", false, err
		}
		state := v1alpha1.ChangeWorkloadInit
		bad = nil
		for i := range list.Items {
			c := &list.Items[i]
			switch {
			case c.Status.Status == v1alpha1.ChangeWorkloadRollback && (bad == nil || c.Spec.Release > bad.Spec.Release):
				bad = c
			case c.Spec.Reversion == good:
				state = c.Status.Status
			}
		}
		inFlight, progress := rollout(deployment)
		_, blocked := deployment.Labels[v1alpha1.SuspendLabel]
		return fmt.Sprintf("%s, %s", name(state), progress), bad != nil && state == v1alpha1.ChangeWorkloadSuccess && !inFlight && !blocked &&
			deployment.Labels[v1alpha1.VersionLabel] == good && !deployment.Spec.Paused, nil
	})
	return bad, err
}

// orderEnded waits until the server was told how the order of a release ended.
func (s *story) orderEnded(ctx context.Context, release *v1alpha1.ChangeWorkload, want altershield.FinishState) error {
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	order := release.Status.OrderID
	if err := s.server.WaitFor(waiting, func(j simulator.Journal) bool { return len(j.Ends(order)) > 0 }); err != nil {
		return err
	}
	fmt.Print("\nThe server is told how its order ended:\n\n")
	s.server.print(order, func(e simulator.Entry) bool { return e.Action == altershield.ActionEndOrder })
	return ended(s.server.Journal(), order, want)
}
