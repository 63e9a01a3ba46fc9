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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// overrideFlags are the flags of override.
type overrideFlags struct {
	images []string
	next   bool
}

func overrideCommand(c *connection) *cobra.Command {
	f, change := overrideFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:     "override " + usageOfTarget + " (--image CONTAINER=IMAGE | --next)",
		Aliases: []string{"repair"},
		Short:   "Let one release pass a block or a quarantine",
		Long: strings.TrimSpace(`
Let one release of a workload pass a block or a quarantine. Other releases stay blocked until
this one succeeds, which lifts the block. Events report who did it.

--image releases with these images. Label and image are one request, which is tried as a dry
run first, so that no label is left behind. --next sets the label and releases nothing: the
next release passes, for example a sync of Argo CD or Flux, helm upgrade or kubectl apply.

A label that was there before the block does not count. It is removed first.`),
		Example: `  # Another image, as kubectl set image does
  kubectl altershield override deployment/sleep --image sleep=busybox:1.37

  # The next release of Argo CD, Flux, Helm or kubectl apply
  kubectl altershield override deployment/sleep --next`,
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
			return change.override(cmd.Context(), api, s, f)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.images, "image", nil, "CONTAINER=IMAGE: release with this image; may be given several times")
	flags.BoolVar(&f.next, "next", false, "release nothing; the next release passes")
	cmd.MarkFlagsMutuallyExclusive("image", "next")
	cmd.MarkFlagsOneRequired("image", "next")
	change.addTo(flags)
	return cmd
}

// override lets one release of a defended workload pass.
func (c *changer) override(ctx context.Context, api client.Client, s *snapshot, f overrideFlags) error {
	if err := mayOverride(s); err != nil {
		return err
	}
	printf(c.Out, "%s: %s\n", s.target, describeDenied(s))
	if f.next {
		return c.letNextPass(ctx, api, s)
	}
	return c.releaseImages(ctx, api, s, f.images)
}

// mayOverride reports why there is nothing to override.
func mayOverride(s *snapshot) error {
	if defense.DeniedBy(s.workload.Labels, s.workload.Annotations, s.now).Any() {
		return nil
	}
	return remedy(fmt.Errorf("%s is not blocked, and no version of it is in quarantine: releases pass", s.target),
		"release with kubectl apply or kubectl set image; a label that is set now does not count for a later block")
}

// describeDenied returns a sentence about what denies releases of a workload.
func describeDenied(s *snapshot) string {
	denied := defense.DeniedBy(s.workload.Labels, s.workload.Annotations, s.now)
	var parts []string
	if denied.Blocked {
		by := ""
		if of := strings.Fields(s.workload.Annotations[v1alpha1.SuspendedByAnnotation]); len(of) > 1 {
			by = fmt.Sprintf(", because release %s (version %s) failed", of[1], of[0])
		}
		parts = append(parts, "releases are blocked"+by)
	}
	q := rollback.ParseQuarantine(s.workload.Annotations, s.now)
	for _, version := range denied.Quarantine {
		text := "version " + version + " is in quarantine"
		if reason, ok := q.Reason(version); ok {
			text += ": " + reason.String()
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// isStale reports whether the label that lets a release pass is older than the block, and so does not count.
func isStale(o client.Object) bool {
	_, stale := o.GetAnnotations()[v1alpha1.OverrideStaleAnnotation]
	return stale && o.GetLabels()[v1alpha1.IgnoredSuspendLabel] != ""
}

// removeStale removes a label that is older than the block: only a newer label counts.
func (c *changer) removeStale(ctx context.Context, api client.Client, s *snapshot) error {
	if !isStale(s.stored) {
		return nil
	}
	return c.removeOverride(ctx, api, s, "which was there before the block and does not count")
}

// stillDenied lets a patch apply only while the block or the quarantine is unchanged: without them the label would stay.
func stillDenied(o client.Object) workload.Op {
	if since, blocked := o.GetLabels()[v1alpha1.SuspendLabel]; blocked {
		return workload.Op{Op: "test", Path: pointer("metadata", "labels", v1alpha1.SuspendLabel), Value: since}
	}
	key := v1alpha1.QuarantinedAnnotation
	return workload.Op{Op: "test", Path: pointer("metadata", "annotations", key), Value: o.GetAnnotations()[key]}
}

// letNextPass sets the label, and releases nothing.
func (c *changer) letNextPass(ctx context.Context, api client.Client, s *snapshot) error {
	if s.workload.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue && !isStale(s.stored) {
		printf(c.Out, "%s: the next release passes already\n", s.target)
		return nil
	}
	stale := isStale(s.stored)
	if err := c.removeStale(ctx, api, s); err != nil {
		return err
	}
	what := fmt.Sprintf("%s: set the label %s=%s: the next release that is blocked or in quarantine passes, once",
		s.target, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)
	err := c.change(what, s.target.String()+" labeled", func(dryRun []string) error {
		value := v1alpha1.IgnoredSuspendValue
		ops := append([]workload.Op{sameObject(s.stored), stillDenied(s.stored)}, labelOps(s.stored, v1alpha1.IgnoredSuspendLabel, &value)...)
		_, err := patchOps(ctx, api, s.stored, ops, dryRun)
		return err
	})
	if err != nil {
		return staleRemoved(stale && !c.pretends(), err)
	}
	if !c.pretends() {
		back := c.kubectl(s.key.Namespace, "label", s.target.String(), v1alpha1.IgnoredSuspendLabel+"-")
		printf(c.Out, "release now; to take it back: %s\n", back)
	}
	c.next(c.command(s.target, "status"))
	return nil
}

// releaseImages releases with images, if a dry run shows that the release needs the override.
func (c *changer) releaseImages(ctx context.Context, api client.Client, s *snapshot, images []string) error {
	ops, changes, err := imageOps(s, images)
	switch {
	case err != nil:
		return err
	case !changes:
		return c.changesNothing(s)
	}
	stale := isStale(s.stored)
	if stale && c.pretends() {
		printf(c.Out, "%s: its label %s was there before the block and does not count: it would be removed, and set again with the release\n",
			s.target, v1alpha1.IgnoredSuspendLabel)
		return nil
	}
	if err := c.removeStale(ctx, api, s); err != nil {
		return err
	}
	return staleRemoved(stale, c.tryAndRelease(ctx, api, s, ops))
}

// staleRemoved adds to the error of a release that a stale label was removed before it.
func staleRemoved(stale bool, err error) error {
	if err == nil || !stale {
		return err
	}
	const removed = "the label " + v1alpha1.IgnoredSuspendLabel + ", which did not count, was removed; Git or a chart must not set it again"
	return remedy(err, removed)
}

// tryAndRelease makes an override release, if a dry run shows that it is one.
func (c *changer) tryAndRelease(ctx context.Context, api client.Client, s *snapshot, ops []workload.Op) error {
	write := func(dryRun []string) (*workload.Workload, error) {
		value := v1alpha1.IgnoredSuspendValue
		guards := []workload.Op{sameObject(s.stored), stillDenied(s.stored)}
		all := slices.Concat(guards, labelOps(s.stored, v1alpha1.IgnoredSuspendLabel, &value), ops)
		patched, err := patchOps(ctx, api, s.stored, all, dryRun)
		if err != nil {
			return nil, err
		}
		return readStored(s.kind, patched)
	}
	would, err := write([]string{metav1.DryRunAll})
	if err != nil {
		return err
	}
	if err := c.isOverride(s, would); err != nil {
		return err
	}
	what := fmt.Sprintf("%s: release %s in place of %s, as an override release", s.target,
		describeVersion(would.Version, would.Images), describeVersion(s.workload.Version, s.workload.Images))
	var released *workload.Workload
	err = c.change(what, s.target.String()+" released", func(dryRun []string) (err error) {
		released, err = write(dryRun)
		return err
	})
	if err != nil || c.pretends() {
		return err
	}
	follows := "its quarantine is over"
	if defense.DeniedBy(s.workload.Labels, s.workload.Annotations, s.now).Blocked {
		follows = "its Success lifts the block"
	}
	printf(c.Out, "%s: release %d (version %s); %s\n", s.target, released.Release(), released.Version, follows)
	c.next(c.command(s.target, "wait"))
	return nil
}

// isOverride reports why the dry run of a request is no override release.
func (c *connection) isOverride(s *snapshot, would *workload.Workload) error {
	switch {
	case would.Version == s.workload.Version:
		return c.changesNothing(s)
	case would.Labels[v1alpha1.IgnoredSuspendLabel] != "" && would.RecordedVersion() == would.Version:
		return remedy(fmt.Errorf("version %s is neither blocked nor in quarantine: it passes without an override", would.Version),
			"release it with kubectl apply or kubectl set image; the label of an override would stay")
	case would.RecordedVersion() != would.Version:
		return remedy(errors.New("admission did not answer the dry run, so the release would not be recorded"), "see "+c.commandIn("", "check"))
	}
	return nil
}

// changesNothing returns the error of a release that does not change the template.
func (c *connection) changesNothing(s *snapshot) error {
	return remedy(fmt.Errorf("nothing would be released: %s has this template already (version %s)", s.target, s.workload.Version),
		"change something, or correct the verdict: "+c.commandIn(s.key.Namespace, "verdict", "pass", s.target.String()))
}

// imageOps sets images, given as CONTAINER=IMAGE; changes reports whether a container gets another image.
func imageOps(s *snapshot, images []string) (ops []workload.Op, changes bool, err error) {
	wanted := map[string]string{}
	for _, image := range images {
		container, name, ok := strings.Cut(image, "=")
		if !ok || container == "" || name == "" {
			return nil, false, remedy(fmt.Errorf("--image %s names no container", image), "give it as CONTAINER=IMAGE")
		}
		wanted[container] = name
	}
	path, ok := s.kind.TemplatePath()
	if !ok {
		return nil, false, remedy(fmt.Errorf("%s has no pod template, so --image does not apply", s.target), "leave out --image")
	}
	template, err := workload.Template(s.kind, s.stored)
	if err != nil {
		return nil, false, err
	}
	spec, _ := template["spec"].(map[string]any)
	found := map[string]bool{}
	var names []string
	for _, field := range []string{"initContainers", "containers"} {
		containers, _ := spec[field].([]any)
		for i := range containers {
			container, _ := containers[i].(map[string]any)
			name, _ := container["name"].(string)
			names = append(names, name)
			image, ok := wanted[name]
			if !ok {
				continue
			}
			found[name], changes = true, changes || image != container["image"]
			at := path.Join("spec", field, fmt.Sprint(i))
			ops = append(ops, workload.Op{Op: "test", Path: at.Join("name").Pointer(), Value: name},
				workload.Op{Op: "add", Path: at.Join("image").Pointer(), Value: image})
		}
	}
	for name := range wanted {
		if !found[name] {
			return nil, false, remedy(fmt.Errorf("%s has no container %q", s.target, name), "it has "+strings.Join(names, ", "))
		}
	}
	return ops, changes, nil
}
