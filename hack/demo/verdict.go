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
	"fmt"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

// failingBatch is the batch that the server's verdict fails, one of the first pods.
const failingBatch = 2

// verdict is a release whose second batch fails by the server's callback while
// its rollout waits for that.
func (s *story) verdict(ctx context.Context) error {
	fmt.Print(`
So far the server passed every pod, and the failure was written by hand. The next release has a pod
that breaks a rule of the server, "error rate".

When the verdict comes, all pods would be replaced. So this rollout waits until its first pods are verified:
`)
	before, err := s.holdFirst(ctx)
	if err != nil {
		return err
	}
	fmt.Print(`
A pod without a readiness probe has to run 10 seconds before it counts. The release brings a probe along:
`)
	s.server.failBatch(failingBatch)
	if err := s.run(ctx, "patch", "deployment", "sleep", "-p", `{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybox:2",`+
		`"readinessProbe":{"exec":{"command":["true"]}}}]}}}}`); err != nil {
		return err
	}
	var verdict simulator.Entry
	if err := s.waitFor(ctx, "the server's verdict", func(ctx context.Context) (string, bool, error) {
		deployment, err := s.deployment(ctx)
		if err != nil {
			return "", false, err
		}
		failures := failuresIn(s.server.Journal())
		if len(failures) > 0 {
			verdict = failures[0]
		}
		_, progress := rollout(deployment)
		return progress, len(failures) > 0, nil
	}); err != nil {
		return err
	}
	fmt.Printf("\nThe server called back, and the operator answered %s:\n\n", verdict.Outcome)
	s.server.print(verdict.Order, func(e simulator.Entry) bool { return e.Seq == verdict.Seq })
	fmt.Println()
	if verdict.HTTPStatus != http.StatusOK || verdict.Answer == nil || !verdict.Answer.Success {
		return fmt.Errorf("the operator did not take the callback: %s", verdict)
	}
	if err := s.adopt(ctx, verdict.Order, &s.failed); err != nil {
		return err
	}
	deployment, err := s.suspended(ctx, s.failed.Name)
	if err != nil {
		return err
	}
	inFlight, progress := rollout(deployment)
	if !inFlight {
		return fmt.Errorf("the rollout was over before the release was suspended: %s", progress)
	}
	fmt.Printf("   while the rollout is in flight: %s\n", progress)
	if err := s.kept(ctx, deployment, before, oldOfFirstWave); err != nil {
		return err
	}
	if err := s.run(ctx, "get", "changeworkloads"); err != nil {
		return err
	}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(&s.failed), &s.failed); err != nil {
		return err
	}
	pods := s.failed.Status.DefenseCheckFailPods
	if len(pods) != 1 {
		return fmt.Errorf("%d pods failed, not one: %v", len(pods), pods)
	}
	return s.showFailure(ctx, s.failed.Name, pods[0].Pod, "error rate: 5xx above 1 % on "+pods[0].Pod)
}

// oldOfFirstWave are the pods that are left of 5 while the first ones are replaced, by the
// default strategy.
const oldOfFirstWave = 4

// holdFirst lets the rollouts of the sample wait for the verdicts on their first pods, and
// returns the pods that it has.
func (s *story) holdFirst(ctx context.Context) (map[string]types.UID, error) {
	if err := s.run(ctx, "annotate", "deployment", "sleep", holdFirst); err != nil {
		return nil, err
	}
	deployment, err := s.deployment(ctx)
	if err != nil {
		return nil, err
	}
	return s.pods(ctx, deployment)
}

// block is what the failure leads to: the next release is denied, and passes as
// a repair.
func (s *story) block(ctx context.Context) error {
	next := []string{"set", "image", "deployment/sleep", "sleep=busybox:1.35"}
	if err := s.isDenied(ctx, next...); err != nil {
		return err
	}
	fmt.Print(`
Marked as a repair, the same release passes. It need not wait until the policy default has watched its first
pods for 5 minutes:
`)
	if err := s.run(ctx, "annotate", "deployment", "sleep", holding+"-"); err != nil {
		return err
	}
	if err := s.run(ctx, "label", "deployment", "sleep", v1alpha1.IgnoredSuspendLabel+"=true"); err != nil {
		return err
	}
	if err := s.run(ctx, next...); err != nil {
		return err
	}
	if err := s.waitFor(ctx, "the repair to succeed and the block to go", func(ctx context.Context) (string, bool, error) {
		deployment, err := s.deployment(ctx)
		if err != nil {
			return "", false, err
		}
		_, blocked := deployment.Labels[v1alpha1.SuspendLabel]
		_, ignored := deployment.Labels[v1alpha1.IgnoredSuspendLabel]
		var list v1alpha1.ChangeWorkloadList
		if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil || len(list.Items) == 0 {
			return "none listed", false, err
		}
		for i := range list.Items {
			if list.Items[i].Name != s.failed.Name {
				s.repaired = list.Items[i]
			}
		}
		_, progress := rollout(deployment)
		return fmt.Sprintf("%s, %s", name(s.repaired.Status.Status), progress), len(list.Items) == 1 &&
			s.repaired.Status.Status == v1alpha1.ChangeWorkloadSuccess && !blocked && !ignored, nil
	}); err != nil {
		return err
	}
	if err := s.run(ctx, "get", "changeworkloads"); err != nil {
		return err
	}
	return s.run(ctx, "get", "deployment", "sleep", "-L", v1alpha1.SuspendLabel)
}

// heard shows the order of the failed release as the server saw it.
func (s *story) serverLog(ctx context.Context) error {
	failed, repaired := s.failed.Status.OrderID, s.repaired.Status.OrderID
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := s.server.WaitFor(waiting, func(j simulator.Journal) bool {
		return len(j.Ends(failed)) > 0 && len(j.Ends(repaired)) > 0
	}); err != nil {
		return err
	}
	fmt.Print("\nThe order of the failed release, which the repair replaced:\n\n")
	s.server.print(failed, func(simulator.Entry) bool { return true })

	j := s.server.Journal()
	batches, err := batchesStarted(j, failed)
	if err != nil {
		return err
	}
	if batches < failingBatch {
		return fmt.Errorf("the server heard of %d batches of the failed release", batches)
	}
	if err := ended(j, failed, altershield.FinishCancel); err != nil {
		return err
	}
	if batches, err = batchesStarted(j, repaired); err != nil {
		return err
	}
	// One finish is that of the order itself.
	if finished := len(j.Finishes(repaired)); batches != 5 || finished != 6 {
		return fmt.Errorf("the server heard of %d batches of the repair, and %d finishes", batches, finished)
	}
	if failures := failuresIn(j.Of(repaired)); len(failures) > 0 {
		return fmt.Errorf("the server failed the repair:\n%s", failures)
	}
	fmt.Printf("\nThe order of the repair, whose %d batches passed, begins and ends with\n\n", batches)
	s.server.print(repaired, func(e simulator.Entry) bool {
		return e.Action == altershield.ActionSubmitOrder || e.Action == altershield.ActionEndOrder
	})
	return ended(j, repaired, altershield.FinishSuccess)
}

// batchesStarted is how many batches of an order were started, each once.
func batchesStarted(j simulator.Journal, order string) (int, error) {
	if submitted, started := len(j.Of(order).Accepted().Requests(altershield.ActionSubmitOrder)), len(j.OrderStarts(order)); submitted != 1 || started != 1 {
		return 0, fmt.Errorf("order %s was submitted %d times and started %d times", order, submitted, started)
	}
	numbers := map[int]bool{}
	for _, e := range j.BatchStarts(order) {
		var start altershield.StartBatchRequest
		if err := e.Decode(&start); err != nil {
			return 0, err
		}
		if numbers[start.BatchNo] || len(start.EffectiveTargetLocations) != 1 {
			return 0, fmt.Errorf("batch %d of order %s was started twice, or with %d pods", start.BatchNo+1, order, len(start.EffectiveTargetLocations))
		}
		numbers[start.BatchNo] = true
	}
	return len(numbers), nil
}

// ended checks how an order ended.
func ended(j simulator.Journal, order string, want altershield.FinishState) error {
	var end altershield.EndOrderRequest
	for _, e := range j.Ends(order) {
		if err := e.Decode(&end); err != nil {
			return err
		}
	}
	if end.FinishState != want {
		return fmt.Errorf("order %s ended as %q, not as %s", order, end.FinishState, want)
	}
	return nil
}

// adopt finds the release of an order.
func (s *story) adopt(ctx context.Context, order string, into *v1alpha1.ChangeWorkload) error {
	var list v1alpha1.ChangeWorkloadList
	if err := s.client.List(ctx, &list, client.InNamespace("default")); err != nil {
		return err
	}
	for i := range list.Items {
		if list.Items[i].Status.OrderID == order {
			*into = list.Items[i]
			return nil
		}
	}
	return fmt.Errorf("no release has the order %s", order)
}

func (s *story) deployment(ctx context.Context) (*appsv1.Deployment, error) {
	var deployment appsv1.Deployment
	err := s.client.Get(ctx, types.NamespacedName{Namespace: "default", Name: "sleep"}, &deployment)
	return &deployment, err
}

// rollout says how far a rollout is.
func rollout(d *appsv1.Deployment) (inFlight bool, progress string) {
	want, st := *d.Spec.Replicas, &d.Status
	inFlight = st.ObservedGeneration < d.Generation || st.UpdatedReplicas < want || st.Replicas > st.UpdatedReplicas || st.AvailableReplicas < want
	return inFlight, fmt.Sprintf("%d of %d pods updated, %d old", st.UpdatedReplicas, want, st.Replicas-st.UpdatedReplicas)
}
