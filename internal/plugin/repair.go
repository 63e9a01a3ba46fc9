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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// repairFlags are the flags of repair.
type repairFlags struct {
	file   string
	images []string
	next   bool
}

func repairCommand(c *connection) *cobra.Command {
	f, change := repairFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "repair " + usageOfTarget + " (--image CONTAINER=IMAGE | -f FILE | --next)",
		Short: "Release a repair past a block or a quarantine, once",
		Long: strings.TrimSpace(`
Release a repair of a workload whose releases are blocked, or a version of it that is
in quarantine. The repair passes once; other releases stay blocked until it succeeded,
which lifts the block. Events tell who did it.

Nothing is left behind: label and repair are one request, which is tried as a dry run
first. Where the template would not change, or would pass without an override, nothing is
released. Only a label that was there before the block, and so does not count, is removed
before that: with it the repair cannot be tried.`),
		Example: `  # Another image, as kubectl set image does
  kubectl altershield repair deployment/sleep --image sleep=busybox:1.37

  # A manifest, as kubectl apply does
  kubectl altershield repair deployment/sleep -f sleep.yaml

  # Whatever is released next, by whomever: the sync of Argo CD or Flux, helm upgrade
  kubectl altershield repair deployment/sleep --next`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			return change.repair(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "filename", "f", "", "apply the workload in this manifest, which - reads from standard input")
	flags.StringArrayVar(&f.images, "image", nil, "CONTAINER=IMAGE: release with this image; may be given several times")
	flags.BoolVar(&f.next, "next", false, "release nothing; the next release passes")
	cmd.MarkFlagsMutuallyExclusive("filename", "image", "next")
	cmd.MarkFlagsOneRequired("filename", "image", "next")
	change.addTo(flags)
	return cmd
}

func (c *changer) repair(ctx context.Context, f repairFlags, args []string) error {
	api, t, err := c.reach(ctx, args)
	if err != nil {
		return err
	}
	s, err := c.observeTarget(ctx, api, t)
	if err != nil {
		return err
	}
	if err := c.mayRepair(s); err != nil {
		return err
	}
	return c.repairObserved(ctx, api, s, f)
}

// repairObserved repairs a workload that releases are kept back of.
func (c *changer) repairObserved(ctx context.Context, api client.Client, s *situation, f repairFlags) (err error) {
	printf(c.Out, "%s: %s\n", s.target, describeHeld(s))
	var repair *repairing
	switch {
	case f.file != "":
		repair, err = c.applying(ctx, api, s, f.file)
	case f.next:
		return c.letNextPass(ctx, api, s)
	default:
		repair, err = settingImages(ctx, api, s, f.images)
	}
	if err != nil {
		return err
	}
	return c.release(ctx, api, s, repair)
}

// mayRepair says why there is nothing to repair.
func (c *connection) mayRepair(s *situation) error {
	if err := c.mustBeDefended(s); err != nil {
		return err
	}
	if !defense.DeniedBy(s.w.Labels, s.w.Annotations, s.now).Any() {
		return remedy(fmt.Errorf("%s is not blocked, and no version of it is in quarantine: releases pass", s.target),
			"release as always, with kubectl apply or kubectl set image; a label that was set now would be of no use later")
	}
	return nil
}

// describeHeld tells what keeps releases of a workload back.
func describeHeld(s *situation) string {
	held := defense.DeniedBy(s.w.Labels, s.w.Annotations, s.now)
	var parts []string
	if held.Blocked {
		by := ""
		if of := strings.Fields(s.w.Annotations[v1alpha1.SuspendedByAnnotation]); len(of) > 1 {
			by = fmt.Sprintf(", because release %s (version %s) failed", of[1], of[0])
		}
		parts = append(parts, "releases are blocked"+by)
	}
	q := defense.ParseQuarantine(s.w.Annotations, s.now)
	for _, version := range held.Quarantine {
		text := "version " + version + " is in quarantine"
		if reason, ok := q.Reason(version); ok {
			text += ": " + reason.String()
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// isStale says that the label that lets a release pass was there before the block, and
// so does not count.
func isStale(o client.Object) bool {
	_, stale := o.GetAnnotations()[v1alpha1.OverrideStaleAnnotation]
	return stale && o.GetLabels()[v1alpha1.IgnoredSuspendLabel] != ""
}

// removeStale takes a label off that was there before the block: only one that is set
// after it counts.
func (c *changer) removeStale(ctx context.Context, api client.Client, s *situation) error {
	if !isStale(s.stored) {
		return nil
	}
	return c.removeOverride(ctx, api, s, "which was there before the block and does not count")
}

// removeOverride takes the label off.
func (c *changer) removeOverride(ctx context.Context, api client.Client, s *situation, why string) error {
	what := fmt.Sprintf("%s: remove the label %s, %s", s.target, v1alpha1.IgnoredSuspendLabel, why)
	return c.change(what, s.target.String()+" label removed", func(dryRun []string) error {
		patched, err := patchOps(ctx, api, s.stored, append([]workload.Op{sameObject(s.stored)}, labelOps(s.stored, v1alpha1.IgnoredSuspendLabel, nil)...), dryRun)
		if err != nil {
			return err
		}
		return s.take(patched)
	})
}

// stillHeld lets a patch apply only while what keeps releases back is as it was read:
// without it nothing would use the label up.
func stillHeld(o client.Object) workload.Op {
	if since, blocked := o.GetLabels()[v1alpha1.SuspendLabel]; blocked {
		return workload.Op{Op: "test", Path: pointer("metadata", "labels", v1alpha1.SuspendLabel), Value: since}
	}
	return workload.Op{Op: "test", Path: pointer("metadata", "annotations", v1alpha1.QuarantinedAnnotation), Value: o.GetAnnotations()[v1alpha1.QuarantinedAnnotation]}
}

// removeUnused takes the label off a workload that was released without using it up, as
// what kept it back went at that moment.
func (c *changer) removeUnused(ctx context.Context, api client.Client, s *situation, released *defense.Workload) error {
	if released.Labels[v1alpha1.IgnoredSuspendLabel] == "" {
		return nil
	}
	printf(c.Out, "%s: it passed without the label %s: nothing kept it back any more\n", s.target, v1alpha1.IgnoredSuspendLabel)
	what := fmt.Sprintf("%s: remove this label, so that no later release passes by it", s.target)
	err := c.change(what, s.target.String()+" label removed", func(dryRun []string) error {
		// Only the one of this release.
		ops := []workload.Op{sameObject(s.stored), {Op: "test", Path: pointer("metadata", "labels", v1alpha1.VersionLabel), Value: released.Version}}
		_, err := patchOps(ctx, api, s.stored, append(ops, labelOps(withLabels(released), v1alpha1.IgnoredSuspendLabel, nil)...), dryRun)
		return err
	})
	if err != nil {
		return remedy(fmt.Errorf("release %d is made, and the label is still there: %w", released.Release(), err),
			"remove it: "+c.kubectl(s.key.Namespace, "label", s.target.String(), v1alpha1.IgnoredSuspendLabel+"-"))
	}
	return nil
}

// withLabels is an object that has the labels of a workload.
func withLabels(w *defense.Workload) client.Object {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: w.Labels}}
}

// letNextPass sets the label, and releases nothing.
func (c *changer) letNextPass(ctx context.Context, api client.Client, s *situation) error {
	if s.w.Labels[v1alpha1.IgnoredSuspendLabel] == v1alpha1.IgnoredSuspendValue && !isStale(s.stored) {
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
		ops := append([]workload.Op{sameObject(s.stored), stillHeld(s.stored)}, labelOps(s.stored, v1alpha1.IgnoredSuspendLabel, &value)...)
		_, err := patchOps(ctx, api, s.stored, ops, dryRun)
		return err
	})
	if err != nil {
		return staleRemoved(stale && !c.pretends(), err)
	}
	if !c.pretends() {
		printf(c.Out, "release now; to take it back: %s\n", c.kubectl(s.key.Namespace, "label", s.target.String(), v1alpha1.IgnoredSuspendLabel+"-"))
	}
	c.next(c.command(s.target, "status"))
	return nil
}

// repairing is a repair that is to be made.
type repairing struct {
	// make asks the API server for it.
	make func(dryRun []string) (*unstructured.Unstructured, error)
	// changes says whether it changes the template, as far as that can be told without
	// the API server; so it does where it is nil.
	changes func() (bool, error)
}

// release makes a repair, after a dry run of it has shown that it is one.
func (c *changer) release(ctx context.Context, api client.Client, s *situation, repair *repairing) error {
	if repair.changes != nil {
		if changes, err := repair.changes(); err != nil {
			return err
		} else if !changes {
			return c.changesNothing(s)
		}
	}
	stale := isStale(s.stored)
	if stale && c.pretends() {
		// Only without the label can the rest be tried.
		printf(c.Out, "%s: its label %s was there before the block and does not count: it would be removed, and set again with the repair\n", s.target, v1alpha1.IgnoredSuspendLabel)
		return nil
	}
	if err := c.removeStale(ctx, api, s); err != nil {
		return err
	}
	return staleRemoved(stale, c.tryAndRelease(ctx, api, s, repair))
}

// staleRemoved says of what was refused after a label was removed that did not count that
// it was removed all the same.
func staleRemoved(stale bool, err error) error {
	if err == nil || !stale {
		return err
	}
	return remedy(err, fmt.Sprintf("the label %s, which did not count, is removed all the same; let Git or a chart not set it again, or it does not count again",
		v1alpha1.IgnoredSuspendLabel))
}

// tryAndRelease makes a repair where a dry run shows that it is one.
func (c *changer) tryAndRelease(ctx context.Context, api client.Client, s *situation, repair *repairing) error {
	tried, err := repair.make([]string{metav1.DryRunAll})
	if err != nil {
		return err
	}
	would, err := observeStored(s.kind, tried)
	if err != nil {
		return err
	}
	if err := c.isRepair(s, would); err != nil {
		return err
	}
	what := fmt.Sprintf("%s: release %s in place of %s, past the block", s.target,
		describeVersion(would.Version, would.Images), describeVersion(s.w.Version, s.w.Images))
	var released *defense.Workload
	err = c.change(what, s.target.String()+" released", func(dryRun []string) error {
		patched, err := repair.make(dryRun)
		if err != nil {
			return err
		}
		released, err = observeStored(s.kind, patched)
		return err
	})
	if err != nil || c.pretends() {
		return err
	}
	follows := "its quarantine is over"
	if defense.DeniedBy(s.w.Labels, s.w.Annotations, s.now).Blocked {
		follows = "its Success lifts the block"
	}
	printf(c.Out, "%s: release %d (version %s); %s\n", s.target, released.Release(), released.Version, follows)
	if err := c.removeUnused(ctx, api, s, released); err != nil {
		return err
	}
	c.next(c.command(s.target, "wait"))
	return nil
}

// isRepair says why what a dry run made of a request is no repair.
func (c *connection) isRepair(s *situation, would *defense.Workload) error {
	switch {
	case would.Version == s.w.Version:
		return c.changesNothing(s)
	case would.Labels[v1alpha1.IgnoredSuspendLabel] != "" && would.RecordedVersion() == would.Version:
		return remedy(fmt.Errorf("version %s is neither blocked nor in quarantine: it passes without a repair, and the label would stay", would.Version),
			"release it as always, with kubectl apply or kubectl set image")
	case would.RecordedVersion() != would.Version:
		return remedy(errors.New("admission did not answer the dry run, so a repair would be released unseen"), "see "+c.commandIn("", "check"))
	}
	return nil
}

// changesNothing is the error of a repair that leaves the template as it is.
func (c *connection) changesNothing(s *situation) error {
	return remedy(fmt.Errorf("nothing would be released: %s has this template already (version %s)", s.target, s.w.Version),
		"change something, or correct the verdict: "+c.commandIn(s.key.Namespace, "verdict", "pass", s.target.String()))
}

// settingImages makes a repair by images.
func settingImages(ctx context.Context, api client.Client, s *situation, images []string) (*repairing, error) {
	wanted := map[string]string{}
	for _, image := range images {
		container, name, ok := strings.Cut(image, "=")
		if !ok || container == "" || name == "" {
			return nil, remedy(fmt.Errorf("--image %s names no container", image), "give it as CONTAINER=IMAGE")
		}
		wanted[container] = name
	}
	if _, err := imageOps(s, wanted); err != nil {
		return nil, err
	}
	changes := func() (bool, error) { return setsAnother(s, wanted) }
	return &repairing{changes: changes, make: func(dryRun []string) (*unstructured.Unstructured, error) {
		ops, err := imageOps(s, wanted)
		if err != nil {
			return nil, err
		}
		value := v1alpha1.IgnoredSuspendValue
		ops = slices.Concat([]workload.Op{sameObject(s.stored), stillHeld(s.stored)}, labelOps(s.stored, v1alpha1.IgnoredSuspendLabel, &value), ops)
		return patchOps(ctx, api, s.stored, ops, dryRun)
	}}, nil
}

// setsAnother says that a container gets another image than it has.
func setsAnother(s *situation, wanted map[string]string) (bool, error) {
	template, err := workload.Template(s.kind, s.stored)
	if err != nil {
		return false, err
	}
	for _, field := range []string{"initContainers", "containers"} {
		containers, _, err := unstructured.NestedSlice(template, "spec", field)
		if err != nil {
			return false, fmt.Errorf("read the containers of %s: %w", s.target, err)
		}
		for i := range containers {
			container, _ := containers[i].(map[string]any)
			name, _ := container["name"].(string)
			if image, is := wanted[name]; is && image != container["image"] {
				return true, nil
			}
		}
	}
	return false, nil
}

// imageOps set images of containers, of which * is all.
func imageOps(s *situation, wanted map[string]string) (ops []workload.Op, err error) {
	template, err := workload.Template(s.kind, s.stored)
	if err != nil {
		return nil, err
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
			found[name] = true
			at := s.kind.TemplatePath().Join("spec", field, fmt.Sprint(i))
			ops = append(ops, workload.Op{Op: "test", Path: at.Join("name").Pointer(), Value: name},
				workload.Op{Op: "add", Path: at.Join("image").Pointer(), Value: image})
		}
	}
	for name := range wanted {
		if !found[name] {
			return nil, remedy(fmt.Errorf("%s has no container %q", s.target, name), "it has "+strings.Join(names, ", "))
		}
	}
	return ops, nil
}
