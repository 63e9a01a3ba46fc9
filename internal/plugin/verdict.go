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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
)

// verdictFlags are the flags of verdict.
type verdictFlags struct {
	correction
	operator string
	wait     bool
	timeout  time.Duration
}

func verdictCommand(c *connection) *cobra.Command {
	f, change := verdictFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "verdict (pass | fail) " + usageOfTarget,
		Short: "Correct the verdict on a release, or fail pods of it",
		Long: strings.TrimSpace(`
Write the verdict on the current release of a workload by hand. pass corrects what fails:
the named pods, batches or checks, or everything. fail fails the named pods, or all pods of
the named batches.

When nothing fails, the release continues, and the block that it caused is lifted. A
release that fails becomes Suspend, and the workload is blocked. Results of other pods
stay. The event VerdictCorrected names the field manager kubectl-altershield. Only the
audit log of the API server knows the user.`),
		Example: `  # The verdict was wrong: pass all that fails of the current release
  kubectl altershield verdict pass deployment/sleep -m "false alarm: the probe was down"

  # Only this pod
  kubectl altershield verdict pass deployment/sleep --pod sleep-76899dd8f8-4j4lp

  # Fail a release by hand
  kubectl altershield verdict fail deployment/sleep --pod sleep-76899dd8f8-4j4lp -m "find error"`,
		Args:              cobra.RangeArgs(2, 3),
		ValidArgsFunction: byPosition(1, fixed("pass", "fail"), c.completeWorkloads),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			if err := f.take(args[0]); err != nil {
				return err
			}
			return change.verdict(cmd.Context(), f, args[1:])
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.Pods, "pod", nil, "this pod; may be given several times")
	flags.IntSliceVar(&f.Batches, "batch", nil, "all pods of this batch, by its number; may be given several times")
	flags.BoolVar(&f.Order, "order", false, "pass: the checks of the order on AlterShield Server")
	flags.BoolVar(&f.Checks, "checks", false, "pass: the checks of policies of the release as a whole, and the check of its rollout")
	flags.BoolVar(&f.All, "all", false, "pass: everything that fails; the default if nothing is named")
	flags.StringVarP(&f.Message, "message", "m", "", "reason for the verdict")
	flags.BoolVar(&f.wait, "wait", true, "wait until the operator has taken the verdict")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the operator; 0 waits forever")
	addOperatorNamespace(flags, &f.operator)
	completeFlag(cmd, "pod", byPosition(1, c.completePods))
	change.addTo(flags)
	return cmd
}

// take takes the verdict, and returns an error for flags that exclude each other.
func (f *verdictFlags) take(verdict string) error {
	switch {
	case verdict != "pass" && verdict != "fail":
		return remedy(fmt.Errorf("%q is no verdict", verdict), "give pass or fail, and then the workload")
	case verdict == "fail" && (f.Order || f.Checks || f.All):
		return remedy(errors.New("fail is about pods"), "name them with --pod, or their batches with --batch")
	case verdict == "fail" && len(f.Pods)+len(f.Batches) == 0:
		return remedy(errors.New("fail needs the pods that failed"), "name them with --pod, or their batches with --batch")
	case f.All && (len(f.Pods)+len(f.Batches) > 0 || f.Order || f.Checks):
		return remedy(errors.New("--all is everything that fails"), "omit --all, or the other flags")
	}
	f.Pass = verdict == "pass"
	if f.Message == "" {
		f.Message = "by hand, with kubectl altershield verdict " + verdict
	}
	return nil
}

func (c *changer) verdict(ctx context.Context, f verdictFlags, args []string) error {
	api, s, err := c.reachDefended(ctx, args)
	if err != nil {
		return err
	}
	t := s.target
	change, done, err := c.correctedNow(ctx, api, s, f)
	if err != nil {
		return err
	}
	inForce, known, err := c.inForceFor(ctx, api, f.operator, s.workload)
	if err != nil {
		return err
	}
	what := []string{fmt.Sprintf("%s: release %d (version %s):", t, change.Spec.Release, change.Spec.Reversion)}
	for _, line := range done.Lines {
		what = append(what, "  "+line)
	}
	result := func() string {
		return t.String() + " verdict written; " + whatFollows(&f.correction, done, change, !known || inForce.Blocking && !inForce.Observe)
	}
	err = c.changing(what, result, func(dryRun []string) (err error) {
		change, done, err = writeVerdicts(ctx, api, s, f, change, done, dryRun)
		return err
	})
	if err != nil {
		return err
	}
	if f.Pass {
		c.reportPolicies(t, failingPolicies(done.Batches))
	}
	if c.pretends() {
		return nil
	}
	if f.wait {
		if err := c.awaitVerdict(ctx, api, s, f, change, len(done.Left) > 0); err != nil {
			return err
		}
	}
	c.next(c.command(t, "status"))
	return nil
}

// reportPolicies prints the policies that outlast a corrected verdict.
func (c *changer) reportPolicies(t target, policies []types.NamespacedName) {
	for _, p := range policies {
		printf(c.Out, "the policy %s in %s fails the next batch, too, if it finds the same; if the policy is wrong, correct it: %s\n",
			p.Name, p.Namespace, c.kubectl(p.Namespace, "edit", "defensepolicy/"+p.Name))
	}
	if len(policies) > 0 {
		printf(c.Out, "or put this workload into observe mode: %s\n", c.command(t, "enroll", "--mode="+modeObserve))
	}
}

// correctedNow returns the current release, and what a correction changes in it now.
func (c *changer) correctedNow(
	ctx context.Context, api client.Client, s *snapshot, f verdictFlags,
) (*v1alpha1.ChangeWorkload, *corrected, error) {
	changes, err := releasesOf(ctx, api, s.target, s.workload.UID)
	if err != nil {
		return nil, nil, err
	}
	change := cluster.CurrentRelease(s.workload, changes)
	if change == nil {
		return nil, nil, remedy(fmt.Errorf("%s has no release that is verified", s.target), "see "+c.command(s.target, "status"))
	}
	batches, err := batchesOf(ctx, api, s.target, change)
	if err != nil {
		return nil, nil, err
	}
	done, err := f.correct(change, batches, s.now)
	if err != nil {
		return nil, nil, err
	}
	if len(done.Lines) == 0 {
		nothing := "nothing that is named fails"
		if !f.Pass {
			nothing = "all that is named has failed already"
		} else if f.everything() {
			nothing = fmt.Sprintf("nothing of release %d fails; it is %s", change.Spec.Release, stateOf(change.Status.Status))
		}
		return nil, nil, remedy(errors.New(nothing), "see "+c.command(s.target, "status"))
	}
	return change, done, nil
}

// writeVerdicts writes the announced changes. After a conflict it decides again, and writes no change that was not announced. It
// returns the release and the changes of the last decision.
func writeVerdicts(
	ctx context.Context, api client.Client, s *snapshot, f verdictFlags, change *v1alpha1.ChangeWorkload, done *corrected, dryRun []string,
) (*v1alpha1.ChangeWorkload, *corrected, error) {
	announced, first := done.Lines, true
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() (err error) {
		if !first {
			if change, done, err = correctedAgain(ctx, api, s, f, change, announced); err != nil {
				return err
			}
		}
		first = false
		return writeCorrected(ctx, api, done, dryRun)
	})
	return change, done, err
}

// correctedAgain returns the release as it is now, and the announced changes that are still to write.
func correctedAgain(
	ctx context.Context, api client.Client, s *snapshot, f verdictFlags, change *v1alpha1.ChangeWorkload, announced []string,
) (*v1alpha1.ChangeWorkload, *corrected, error) {
	batches, err := batchesOf(ctx, api, s.target, change)
	if err != nil {
		return nil, nil, err
	}
	now := &v1alpha1.ChangeWorkload{}
	if err := api.Get(ctx, client.ObjectKeyFromObject(change), now); err != nil {
		return nil, nil, err
	}
	if now.UID != change.UID || now.Spec.Release != change.Spec.Release {
		return nil, nil, fmt.Errorf("version %s was released again at this moment", change.Spec.Reversion)
	}
	done, err := f.correct(now, batches, s.now)
	if err != nil {
		return nil, nil, err
	}
	others := slices.DeleteFunc(slices.Clone(done.Lines), func(line string) bool { return slices.Contains(announced, line) })
	if len(others) > 0 {
		what := "something else failed meanwhile, and stays so"
		if !f.Pass {
			what = "the release changed meanwhile"
		}
		return nil, nil, remedy(fmt.Errorf("%s: %s", what, strings.Join(others, "; ")),
			"check the release, and repeat the command; the results that are written already stay")
	}
	if len(done.Lines) == 0 {
		now = change // all is corrected already: the operator's reaction counts from the earlier state
	}
	return now, done, nil
}

// writeCorrected writes the status of batches and release, each only if it has not changed since it was read.
func writeCorrected(ctx context.Context, api client.Client, done *corrected, dryRun []string) error {
	for _, b := range done.Batches {
		status := map[string]any{"podResults": b.Status.PodResults, "message": b.Status.Message}
		if err := patchStatus(ctx, api, b, status, dryRun); err != nil {
			return err
		}
	}
	if r := done.Release; r != nil {
		status := map[string]any{}
		for key, v := range map[string]*v1alpha1.CheckVerdict{
			"orderPreVerdict": r.Status.OrderPreVerdict, "orderPostVerdict": r.Status.OrderPostVerdict,
		} {
			if v != nil {
				status[key] = v
			}
		}
		if len(r.Status.UnclaimedVerdicts) > 0 {
			status["unclaimedVerdicts"] = r.Status.UnclaimedVerdicts
		}
		if len(r.Status.Checks) > 0 {
			status["checks"] = r.Status.Checks
		}
		return patchStatus(ctx, api, r, status, dryRun)
	}
	return nil
}

// patchStatus writes fields of the status of an object, if the object has not changed since it was read.
func patchStatus(ctx context.Context, api client.Client, o client.Object, status map[string]any, dryRun []string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion()}, "status": status,
	})
	if err != nil {
		return fmt.Errorf("encode the status of %s: %w", o.GetName(), err)
	}
	written, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("unexpected %T", o)
	}
	options := &client.SubResourcePatchOptions{PatchOptions: *patchOptions(dryRun)}
	err = api.Status().Patch(ctx, written, client.RawPatch(types.MergePatchType, patch), options)
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the status of %s: %w", o.GetName(), err)
	}
	return err
}

// awaitVerdict waits until the state of the release follows from its verdicts.
func (c *changer) awaitVerdict(
	ctx context.Context, api client.WithWatch, s *snapshot, f verdictFlags, change *v1alpha1.ChangeWorkload, stillFails bool,
) error {
	now := &v1alpha1.ChangeWorkload{}
	what := []watched{{&v1alpha1.ChangeWorkloadList{}, recordsOf(s.target)}}
	watch := &watcher{api: api, timeout: f.timeout, trouble: c.printTrouble, what: what}
	err := watch.until(ctx, func(ctx context.Context) (bool, error) {
		if err := api.Get(ctx, client.ObjectKeyFromObject(change), now); err != nil {
			if apierrors.IsNotFound(err) {
				return false, fmt.Errorf("release %d is gone: %w", change.Spec.Release, err)
			}
			return false, err
		}
		return verdictTaken(now, &f.correction, change, stillFails), nil
	})
	switch {
	case errors.Is(err, errTimedOut):
		return remedy(fmt.Errorf("the verdict is written, and the operator has not taken it in %s", f.timeout),
			"see whether the operator runs: "+c.commandIn("", "check"))
	case err != nil:
		return err
	}
	printf(c.Out, "%s: release %d is %s\n", s.target, now.Spec.Release, stateOf(now.Status.Status))
	return c.reportBlock(ctx, api, s)
}

// verdictTaken reports whether the state of a release follows from a correction.
func verdictTaken(now *v1alpha1.ChangeWorkload, c *correction, before *v1alpha1.ChangeWorkload, stillFails bool) bool {
	switch {
	case now.UID != before.UID, now.Spec.Release != before.Spec.Release:
		return true // the release is over
	case c.Pass && !stillFails:
		return now.Status.Status != v1alpha1.ChangeWorkloadSuspend
	case before.Status.Status == v1alpha1.ChangeWorkloadSuspend:
		return failureOf(&now.Status) != failureOf(&before.Status)
	default:
		return now.Status.Status == v1alpha1.ChangeWorkloadSuspend
	}
}

// failureOf returns why a release fails, according to the operator.
func failureOf(s *v1alpha1.ChangeWorkloadStatus) string {
	return fmt.Sprintln(s.FailCount, s.OrderFailed, s.CheckFailed, conditionText(s, v1alpha1.ConditionVerified, ""))
}

// reportBlock prints whether releases are blocked now.
func (c *changer) reportBlock(ctx context.Context, api client.Client, s *snapshot) error {
	stored, err := s.read(ctx, api)
	if err != nil {
		return err
	}
	if since, blocked := stored.GetLabels()[v1alpha1.SuspendLabel]; blocked {
		by := stored.GetAnnotations()[v1alpha1.SuspendedByAnnotation]
		if by == "" {
			by = "a user"
		}
		printf(c.Out, "%s: releases are blocked since %s, by %s\n", s.target, unixText(since), by)
		return nil
	}
	printf(c.Out, "%s: releases are not blocked\n", s.target)
	return nil
}
