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
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// leaveFlags are the flags of opt-out and observe.
type leaveFlags struct {
	undo, off, wait        bool
	namespaceWide, cluster bool
	operator               string
	timeout                time.Duration
}

func (f *leaveFlags) addWait(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.wait, "wait", true, "wait until the operator took back what it had set")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the operator; 0 is without end")
}

func optOutCommand(c *connection) *cobra.Command {
	f, change := leaveFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "opt-out " + usageOfTarget,
		Short: "Take one workload out of the defense, or let it come back",
		Long: strings.TrimSpace(`
Take a workload out of the defense of its namespace. A release under way becomes Canceled.
The operator takes back its block and its pause, and lets go what it holds. Quarantines are
remembered for when the workload comes back. Who opts a workload out while releases of it
are kept back is told by an event.`),
		Example: `  kubectl altershield opt-out deployment/sleep
  kubectl altershield opt-out deployment/sleep --undo`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: c.completeWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			return change.optOut(cmd.Context(), f, args)
		},
	}
	cmd.Flags().BoolVar(&f.undo, "undo", false, "let the workload come back")
	f.addWait(cmd)
	change.addTo(cmd.Flags())
	return cmd
}

func (c *changer) optOut(ctx context.Context, f leaveFlags, args []string) error {
	api, t, err := c.reach(ctx, args)
	if err != nil {
		return err
	}
	return c.optOutOf(ctx, api, t, f)
}

func (c *changer) optOutOf(ctx context.Context, api client.WithWatch, t target, f leaveFlags) error {
	s, err := c.observeTarget(ctx, api, t)
	if err != nil {
		return err
	}
	does := decideOptOut(t, s.w.Labels, f.undo)
	if does.nothing != "" {
		printf(c.Out, "%s: %s\n", t, does.nothing)
		return nil
	}
	if !f.undo {
		for _, line := range describeTakenBack(t, s.stored) {
			printf(c.Out, "%s\n", line)
		}
	}
	err = c.change(does.what, t.String()+" labeled", func(dryRun []string) error {
		_, err := patchOps(ctx, api, s.stored, append([]workload.Op{sameObject(s.stored)}, does.ops(s.stored)...), dryRun)
		return err
	})
	if err != nil || c.pretends() {
		return err
	}
	if f.undo {
		return c.tellBack(ctx, api, t)
	}
	if f.wait {
		err = c.awaitTakenBack(ctx, api, t.key.Namespace, f.timeout, &t)
	}
	back := c.command(t, "opt-out", "--undo")
	if does.replaces {
		// What --undo does not know any more.
		back = c.kubectl(t.key.Namespace, "label", t.String(), "--overwrite", v1alpha1.DefenseLabel+"="+does.before)
	}
	printf(c.Out, "to let it come back: %s\n", back)
	return err
}

// optOut is what opt-out does to the label of a workload.
type optOut struct {
	// nothing says why nothing is to be done.
	nothing string
	// what is done, and the value that the label is to have; nil removes it.
	what  string
	value *string
	// before is a value that is replaced, where there is one that somebody else set.
	before   string
	replaces bool
}

// decideOptOut takes a workload with these labels out of the defense, or undoes that.
// Only the value of this program is removed: what another one means is somebody else's.
func decideOptOut(t target, labels map[string]string, undo bool) optOut {
	before, there := labels[v1alpha1.DefenseLabel]
	out := defense.OptedOut(labels)
	switch {
	case out && undo:
		return optOut{what: fmt.Sprintf("%s: remove the label %s", t, v1alpha1.DefenseLabel)}
	case out:
		return optOut{nothing: "it is out of the defense already"}
	case undo && there:
		return optOut{nothing: fmt.Sprintf("it has not opted out; the label %s=%s stays", v1alpha1.DefenseLabel, before)}
	case undo:
		return optOut{nothing: "it has not opted out"}
	}
	value := v1alpha1.DefenseDisabled
	does := optOut{what: fmt.Sprintf("%s: set the label %s=%s", t, v1alpha1.DefenseLabel, value), value: &value}
	if there {
		does.before, does.replaces = before, true
		does.what += fmt.Sprintf(", in place of the value %q", before)
	}
	return does
}

// ops do so, as long as the label is as it was read.
func (o *optOut) ops(stored client.Object) []workload.Op {
	ops := labelOps(stored, v1alpha1.DefenseLabel, o.value)
	if o.replaces {
		test := workload.Op{Op: "test", Path: pointer("metadata", "labels", v1alpha1.DefenseLabel), Value: o.before}
		ops = append([]workload.Op{test}, ops...)
	}
	return ops
}

// tellBack says whether a workload that opts in again is defended.
func (c *changer) tellBack(ctx context.Context, api client.Client, t target) error {
	s, err := c.observeTarget(ctx, api, t)
	if err != nil {
		return err
	}
	if why := s.notDefended(); why != "" {
		printf(c.Out, "%s: it is not defended all the same: %s\n", t, why)
		return nil
	}
	printf(c.Out, "%s: what was released meanwhile is recorded and verified now\n", t)
	c.next(c.command(t, "status"))
	return nil
}

func observeCommand(c *connection) *cobra.Command {
	f, change := leaveFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "observe (" + usageOfTarget + " | --namespace-wide | --cluster)",
		Short: "Only observe a workload or a namespace, or defend it in full",
		Long: strings.TrimSpace(`
Only observe a workload, the namespace, or everything: releases are recorded, verified and
reported, and nothing is blocked, paused, held, rolled back or denied. What the operator
had set is taken back. The value of a workload comes before that of its namespace, and that
before the one of the cluster.

--off defends in full, also where what is above is in observe mode. --undo takes the value
of the workload, or of the namespace, away: what is above decides again. A workload that
another object owns is in observe mode, whatever its value is, unless its label defense is
enforced.`),
		Example: `  # One workload
  kubectl altershield observe deployment/sleep

  # Defend one workload of a namespace that is observed
  kubectl altershield observe deployment/sleep --off

  # The namespace of -n, and everything
  kubectl altershield observe --namespace-wide -n shop
  kubectl altershield observe --cluster --off`,
		Args:              cobra.RangeArgs(0, 2),
		ValidArgsFunction: c.completeWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			return change.observe(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.off, "off", false, "defend in full")
	flags.BoolVar(&f.undo, "undo", false, "take the value away")
	flags.BoolVar(&f.namespaceWide, "namespace-wide", false, "all workloads of the namespace")
	flags.BoolVar(&f.cluster, "cluster", false, "all workloads of the cluster: the operator's own setting")
	cmd.MarkFlagsMutuallyExclusive("off", "undo")
	cmd.MarkFlagsMutuallyExclusive("namespace-wide", "cluster")
	addOperatorNamespace(flags, &f.operator)
	f.addWait(cmd)
	change.addTo(flags)
	return cmd
}

func (c *changer) observe(ctx context.Context, f leaveFlags, args []string) error {
	wide := f.namespaceWide || f.cluster
	switch {
	case wide == (len(args) > 0):
		return remedy(errors.New("it is not said what to observe"), "name one workload, or give --namespace-wide or --cluster")
	case f.cluster && f.undo:
		return remedy(errors.New("nothing is above the setting of the cluster"), "give --off")
	case !wide:
		return c.observeWorkload(ctx, f, args)
	}
	api, err := c.client()
	if err != nil {
		return err
	}
	return c.observeWide(ctx, api, f)
}

// observeWide sets, or removes, the setting of a namespace or of the operator.
func (c *changer) observeWide(ctx context.Context, api client.Client, f leaveFlags) (err error) {
	var namespace, of string
	if f.cluster {
		f.operator, err = mustBeOperator(ctx, api, f.operator)
		namespace = f.operator
	} else {
		namespace, err = c.namespace()
		of = namespace
	}
	if err != nil {
		return err
	}
	operator, err := c.operatorSettings(ctx, api, f.operator)
	if err != nil {
		return err
	}
	if !f.cluster && !f.undo {
		if err := c.mustBeUnlocked(operator); err != nil {
			return err
		}
	}
	then, err := outlookOf(ctx, api, operator, of)
	if err != nil {
		return err
	}
	enable := !f.off
	if then.set(of, &enable); f.undo {
		then.set(of, nil)
	}
	takes, err := c.tellWide(ctx, api, then, of)
	if err != nil {
		return err
	}
	if f.undo {
		err = c.removeObserve(ctx, api, namespace)
	} else if left := leavingObserve(operator); f.cluster && f.off && left != nil {
		err = c.stayAfterAll(ctx, api, left)
	} else {
		err = c.setObserve(ctx, api, namespace, enable)
	}
	if err != nil {
		return err
	}
	// What is set at this moment is taken back as well.
	if (takes > 0 || !f.off && !f.undo) && f.wait && !c.pretends() {
		if err := c.awaitWide(ctx, api, then, of, f.timeout); err != nil {
			return err
		}
	}
	if f.undo {
		c.next(c.commandIn(namespace, "status"))
	} else {
		c.next(c.kubectl(namespace, "get", "opsconfiginfo", settings.NameObserve, "-o", "wide"))
	}
	return nil
}

// removeObserve takes the setting of a namespace away.
func (c *changer) removeObserve(ctx context.Context, api client.Client, namespace string) error {
	stored := &v1alpha1.OpsConfigInfo{}
	name := "opsconfiginfo/" + settings.NameObserve
	switch err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: settings.NameObserve}, stored); {
	case apierrors.IsNotFound(err):
		printf(c.Out, "%s: the namespace %s has none of its own\n", name, namespace)
		return nil
	case err != nil:
		return fmt.Errorf("get %s in %s: %w", name, namespace, err)
	}
	return c.change(fmt.Sprintf("%s: delete it in %s: the setting of the cluster decides", name, namespace), name+" deleted", func(dryRun []string) error {
		if err := api.Delete(ctx, stored, &client.DeleteOptions{DryRun: dryRun, Preconditions: &metav1.Preconditions{UID: &stored.UID}}); err != nil {
			return fmt.Errorf("delete %s in %s: %w", name, namespace, err)
		}
		return nil
	})
}

// observeWorkload sets the annotation of one workload.
func (c *changer) observeWorkload(ctx context.Context, f leaveFlags, args []string) error {
	api, s, err := c.reachDefended(ctx, args)
	if err != nil {
		return err
	}
	if !f.undo {
		operator, err := c.operatorSettings(ctx, api, f.operator)
		if err != nil {
			return err
		}
		if err := c.mustBeUnlocked(operator); err != nil {
			return err
		}
	}
	return c.observeOne(ctx, api, s, f)
}

// observeOne does so for a workload that is defended.
func (c *changer) observeOne(ctx context.Context, api client.WithWatch, s *situation, f leaveFlags) error {
	t := s.target
	if owner := s.w.ObservingOwner(); f.off && owner != "" {
		return remedy(fmt.Errorf("%s is in observe mode because the %s owns it: a value of its own has no effect", t, owner),
			"defend it all the same: "+c.kubectl(s.key.Namespace, enforce(t.String(), s.w)...)+"; right when the owner does not undo what the operator does")
	}
	key := v1alpha1.SettingAnnotationPrefix + settings.NameObserve
	enabled, disabled := settings.Enabled, settings.Disabled
	value, what := &enabled, fmt.Sprintf("%s: set the annotation %s=%s: it is in observe mode", t, key, enabled)
	switch {
	case f.undo:
		value, what = nil, fmt.Sprintf("%s: remove the annotation %s: its namespace decides", t, key)
	case f.off:
		value, what = &disabled, fmt.Sprintf("%s: set the annotation %s=%s: it is defended in full", t, key, disabled)
	default:
		for _, line := range describeTakenBack(t, s.stored) {
			printf(c.Out, "%s\n", line)
		}
	}
	ops := annotationOps(s.stored, key, value)
	if len(ops) == 0 {
		printf(c.Out, "%s: it has no value of its own\n", t)
		return nil
	}
	err := c.change(what, t.String()+" annotated", func(dryRun []string) error {
		patched, err := patchOps(ctx, api, s.stored, append([]workload.Op{sameObject(s.stored)}, ops...), dryRun)
		if err != nil {
			return err
		}
		return s.take(patched)
	})
	if err != nil || c.pretends() {
		return err
	}
	return c.tellObserved(ctx, api, s, f, value == &enabled)
}

// tellObserved says what is in force for a workload, after the operator took back what
// it had set.
func (c *changer) tellObserved(ctx context.Context, api client.WithWatch, s *situation, f leaveFlags, wanted bool) error {
	inForce, known, err := c.inForceFor(ctx, api, f.operator, s.w)
	switch {
	case err != nil:
		return err
	case !known: // the operator tells by an event
	case wanted && !inForce.Observe:
		return remedy(fmt.Errorf("%s is not observed all the same: %s", s.target, strings.Join(inForce.Problems, "; ")), "see the setting observe of the operator")
	case inForce.Observe:
		printf(c.Out, "%s: it is in observe mode, because of %s\n", s.target, inForce.ObservedBy)
	default:
		printf(c.Out, "%s: it is defended in full; what failed while it was observed is not blocked\n", s.target)
	}
	if wanted && f.wait {
		if err := c.awaitTakenBack(ctx, api, s.key.Namespace, f.timeout, &s.target); err != nil {
			return err
		}
	}
	c.next(c.command(s.target, "status"))
	return nil
}
