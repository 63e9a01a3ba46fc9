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
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func resumeCommand(c *connection) *cobra.Command {
	change := &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "resume " + usageOfTarget,
		Short: "Resume a rollout that the operator halted, or end its hold",
		Long: strings.TrimSpace(`
Resume the rollout of a workload that the operator halted because its version failed, or
end the hold of a rollout that waits for its verdicts. The field that the operator changed gets
its value back, and the rollout continues at the pace of the workload. A block stays.

The operator does not halt that release again. Events name the user who resumed it.`),
		Example:           `  kubectl altershield resume statefulset/db`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			api, s, err := change.reachDefended(cmd.Context(), args)
			if err != nil {
				return err
			}
			return change.resume(cmd.Context(), api, s)
		},
	}
	change.addTo(cmd.Flags())
	return cmd
}

// resuming is how one workload is resumed.
type resuming struct {
	what string
	// by is the annotation that admission removes.
	by string
	// overrides: the field alone would count as a manifest that is applied again.
	overrides bool
	ops       []workload.Op
}

// toResume returns how a workload is resumed, or why there is nothing to resume.
func (c *connection) toResume(s *snapshot) (*resuming, error) {
	if s.workload.Paused && s.workload.Annotations[v1alpha1.HaltedAnnotation] != "" {
		words, ops := &s.workload.Words, s.kind.Resume(s.workload)
		if len(ops) == 0 && s.workload.Stays != "" {
			return nil, remedy(errors.New(s.workload.Stays), c.kubectl(s.key.Namespace, "edit", s.target.String()))
		}
		return &resuming{
			what: fmt.Sprintf("%s: end its %s%s, because of version %s",
				s.target, words.Halt(), words.Means(), s.workload.Annotations[v1alpha1.HaltedAnnotation]),
			by: v1alpha1.HaltedAnnotation, overrides: words.HaltedBy != "", ops: ops,
		}, nil
	}
	is, err := s.kind.Pace(s.stored)
	if err != nil {
		return nil, err
	}
	if is != nil {
		if held := is.HoldOf(s.workload.Annotations); held != nil && is.Pace != held.Pace {
			ops := s.kind.SetPace(*is, held.Pace)
			return &resuming{what: fmt.Sprintf("%s: end its hold", s.target), by: v1alpha1.HeldAnnotation, overrides: true, ops: ops}, nil
		}
	}
	do := "see what it waits for: " + c.command(s.target, "status")
	if s.workload.Paused {
		do = "a user did; to resume it: kubectl " + s.workload.Words.GoOn + c.flagsFor(s.key.Namespace)
	}
	return nil, remedy(fmt.Errorf("the operator has neither halted nor held %s", s.target), do)
}

// resume undoes the operator's change, with an override that admission uses up.
func (c *changer) resume(ctx context.Context, api client.Client, s *snapshot) error {
	r, err := c.toResume(s)
	if err != nil {
		return err
	}
	if r.overrides && s.workload.Labels[v1alpha1.IgnoredSuspendLabel] != "" {
		// Only a label that is set in the request counts for sure.
		if c.pretends() {
			printf(c.Out, "%s: its label %s would be removed, and set again to resume it\n", s.target, v1alpha1.IgnoredSuspendLabel)
			return nil
		}
		if err := c.removeOverride(ctx, api, s, "which is set again in the next step"); err != nil {
			return err
		}
	}
	var after *unstructured.Unstructured
	err = c.change(r.what, s.target.String()+" resumed", func(dryRun []string) (err error) {
		said := workload.Op{Op: "test", Path: pointer("metadata", "annotations", r.by), Value: s.workload.Annotations[r.by]}
		ops := slices.Concat([]workload.Op{sameObject(s.stored), said}, sameRelease(s), r.ops)
		if r.overrides {
			value := v1alpha1.IgnoredSuspendValue
			ops = append(ops, labelOps(s.stored, v1alpha1.IgnoredSuspendLabel, &value)...)
		}
		after, err = patchOps(ctx, api, s.stored, ops, dryRun)
		return err
	})
	if err != nil || after == nil {
		return err
	}
	if err := c.notResumed(ctx, api, s, r, after); err != nil {
		return err
	}
	c.next(c.command(s.target, "status"))
	return nil
}

// notResumed returns the error of a request that admission missed, and removes the override of the request.
func (c *changer) notResumed(ctx context.Context, api client.Client, s *snapshot, r *resuming, after *unstructured.Unstructured) error {
	if after.GetAnnotations()[r.by] == "" {
		return nil
	}
	if r.overrides && !c.pretends() {
		if err := s.take(after); err != nil {
			return err
		}
		if err := c.removeOverride(ctx, api, s, "which admission did not use up"); err != nil {
			return err
		}
	}
	return remedy(errors.New("admission did not answer: a halt ends when the operator runs again, and a hold does not end by this"),
		"see "+c.commandIn("", "check"))
}
