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
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func enrollCommand(c *connection) *cobra.Command {
	f, change := enrollFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "enroll [NAMESPACE... | KIND/NAME | --cluster]",
		Short: "Defend namespaces and workloads, observe them, or leave them alone",
		Long: strings.TrimSpace(`
Enrol namespaces, or the one of -n: from then on each change of a pod template in them is a
release that is recorded and verified. Nothing restarts. Workloads that exist are baselines
until their template changes.

  --mode=observe  records, verifies and reports; nothing is blocked, paused or rolled back
  --mode=enforce  defends in full
  --mode=off      ends the defense; the operator takes its blocks, pauses and holds back

The mode of a workload (KIND/NAME) counts before the mode of its namespace, and the mode of a
namespace before the mode of the cluster (--cluster). Without --mode a namespace keeps its mode,
and a workload takes the mode of its namespace again. Blocks that a user set stay.`),
		Example: `  # The way to begin: record and verify, block nothing
  kubectl altershield enroll shop --mode=observe

  # When you trust it; and to end the defense
  kubectl altershield enroll shop --mode=enforce
  kubectl altershield enroll shop --mode=off

  # One workload: opt out, and take the mode of its namespace again
  kubectl altershield enroll deployment/sleep --mode=off
  kubectl altershield enroll deployment/sleep

  # All enrolled namespaces that have no mode of their own
  kubectl altershield enroll --cluster --mode=observe`,
		ValidArgsFunction: c.completeEnroll,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(change.check(), checkEnroll(f, args)); err != nil {
				return err
			}
			return change.enroll(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.mode, "mode", "", "enforce, observe or off")
	flags.BoolVar(&f.cluster, "cluster", false, "set the mode of the cluster: the operator's own setting")
	flags.BoolVar(&f.wait, "wait", true, "wait until the operator took back what it had set")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the operator; 0 waits forever")
	completeFlag(cmd, "mode", fixed(modeEnforce, modeObserve, modeOff))
	addOperatorNamespace(flags, &f.operator)
	change.addTo(flags)
	return cmd
}

// checkEnroll reports what is wrong with flags and arguments.
func checkEnroll(f enrollFlags, args []string) error {
	switch f.mode {
	case "", modeEnforce, modeObserve, modeOff:
	default:
		return remedy(fmt.Errorf("--mode=%s is not known", f.mode), "give enforce, observe or off")
	}
	for _, arg := range args {
		if isWorkload(arg) && len(args) > 1 {
			return remedy(errors.New("only one workload can be named"), "repeat the command for each workload")
		}
	}
	switch {
	case f.cluster && len(args) > 0:
		return remedy(errors.New("--cluster excludes names"), "name namespaces or a workload, or give --cluster")
	case f.cluster && (f.mode == "" || f.mode == modeOff):
		return remedy(errors.New("--cluster needs --mode=enforce or --mode=observe"), "to end the defense everywhere, uninstall the operator")
	}
	return nil
}

func (c *changer) enroll(ctx context.Context, f enrollFlags, args []string) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	namespace, err := c.namespace()
	switch {
	case err != nil:
		return err
	case f.cluster:
		return c.enrollCluster(ctx, api, f)
	case len(args) == 1 && isWorkload(args[0]):
		t, err := c.find(ctx, api, namespace, args...)
		if err != nil {
			return err
		}
		return c.enrollWorkload(ctx, api, t, f)
	case len(args) == 0:
		args = []string{namespace}
	}
	for _, name := range args {
		if err := c.enrollNamespace(ctx, api, name, f); err != nil {
			return err
		}
	}
	return nil
}

// enrollNamespace gives a namespace a mode.
func (c *changer) enrollNamespace(ctx context.Context, api client.WithWatch, name string, f enrollFlags) error {
	ns := &corev1.Namespace{}
	switch err := api.Get(ctx, types.NamespacedName{Name: name}, ns); {
	case apierrors.IsNotFound(err):
		return noNamespace(name)
	case err != nil:
		return fmt.Errorf("get namespace %s: %w", name, err)
	case f.mode == modeOff:
		return c.leave(ctx, api, ns, f)
	}
	operator := enrolNamespace(ctx, api, f.operator)
	if err := mayEnrol(ns, operator); err != nil {
		return err
	}
	found, known, err := c.readSettings(ctx, api, operator, name)
	if err != nil {
		return err
	}
	then := found.with(name, f.mode)
	if err := c.mayHave(f.mode, then.of(name, nil), then, name); known && err != nil {
		return err
	}
	if workload.NamespaceEnrolled(name, ns.Labels) {
		return c.changeMode(ctx, api, then, name, known, f)
	}
	if err := c.describeNamespace(ctx, api, name); err != nil {
		return err
	}
	if f.mode != "" {
		// The setting precedes the label: no release may be blocked in between.
		if err := c.setObserve(ctx, api, name, f.mode == modeObserve); err != nil {
			return err
		}
	}
	value := v1alpha1.EnrolledValue
	what := fmt.Sprintf("namespace/%s: set the label %s=%s", name, v1alpha1.EnrolledLabel, value)
	err = c.labelNamespace(ctx, api, what, ns, &value)
	if err != nil {
		return err
	}
	c.next(c.commandIn(name, "status"))
	return nil
}

// changeMode gives an enrolled namespace a mode.
func (c *changer) changeMode(ctx context.Context, api client.WithWatch, then *modes, namespace string, known bool, f enrollFlags) error {
	printf(c.Out, "namespace/%s is enrolled already\n", namespace)
	if f.mode != "" {
		if err := c.setMode(ctx, api, then, namespace, namespace, f); err != nil {
			return err
		}
	}
	if in := then.of(namespace, nil); known && !c.pretends() {
		printf(c.Out, "namespace/%s: %s\n", namespace, describeMode(in))
	}
	return nil
}

// enrollCluster sets the mode of the cluster.
func (c *changer) enrollCluster(ctx context.Context, api client.WithWatch, f enrollFlags) error {
	operator, err := mustBeOperator(ctx, api, f.operator)
	if err != nil {
		return err
	}
	found, _, err := c.readSettings(ctx, api, operator, "")
	if err != nil {
		return err
	}
	if left := leavingObserve(found.operator); f.mode == modeEnforce && left != nil {
		return c.stay(ctx, api, left)
	}
	if err := c.setMode(ctx, api, found.with("", f.mode), "", operator, f); err != nil {
		return err
	}
	c.next(c.kubectl(operator, "get", "opsconfiginfo", settings.NameObserve, "-o", "wide"))
	return nil
}

// setMode writes the setting observe into the namespace at, and waits for the workloads of namespace (of all, if it is empty) that
// enter observe mode.
func (c *changer) setMode(ctx context.Context, api client.WithWatch, then *modes, namespace, at string, f enrollFlags) error {
	observed := &scope{namespace: namespace, has: func(t target, annotations map[string]string) bool {
		return then.of(t.key.Namespace, annotations).Observe
	}}
	if f.mode == modeObserve {
		if err := c.describeTakenBack(ctx, api, observed); err != nil {
			return err
		}
	}
	if err := c.setObserve(ctx, api, at, f.mode == modeObserve); err != nil || f.mode != modeObserve {
		return err
	}
	return c.awaitTakenBack(ctx, api, observed, f)
}

// leave ends the defense of a namespace.
func (c *changer) leave(ctx context.Context, api client.WithWatch, ns *corev1.Namespace, f enrollFlags) error {
	if _, there := ns.Labels[v1alpha1.EnrolledLabel]; !there {
		printf(c.Out, "namespace/%s is not enrolled\n", ns.Name)
		return nil
	}
	all := &scope{namespace: ns.Name, has: func(target, map[string]string) bool { return true }}
	if err := c.describeTakenBack(ctx, api, all); err != nil {
		return err
	}
	what := fmt.Sprintf("namespace/%s: remove the label %s; open releases become Canceled", ns.Name, v1alpha1.EnrolledLabel)
	err := c.labelNamespace(ctx, api, what, ns, nil)
	if err != nil {
		return err
	}
	return c.awaitTakenBack(ctx, api, all, f)
}

// enrollWorkload gives a workload a mode.
func (c *changer) enrollWorkload(ctx context.Context, api client.WithWatch, t target, f enrollFlags) error {
	s, err := c.read(ctx, api, t)
	if err != nil {
		return err
	}
	plan := decideMode(t, s.stored, f.mode)
	w, err := readStored(t.kind, plan.then)
	if err != nil {
		return err
	}
	found, known, err := c.readSettings(ctx, api, operatorIn(ctx, api, f.operator), t.key.Namespace)
	if err != nil {
		return err
	}
	in := found.of(t.key.Namespace, w.Annotations)
	in.ObserveOwned(w.ObservingOwner())
	if err := c.mayHave(f.mode, in, found, t.String()); known && err != nil {
		return err
	}
	only := &scope{namespace: t.key.Namespace, has: func(one target, _ map[string]string) bool { return one == t }}
	takes := f.mode == modeOff || known && in.Observe
	if takes {
		if err := c.describeTakenBack(ctx, api, only); err != nil {
			return err
		}
	}
	if len(plan.ops) == 0 {
		printf(c.Out, "%s: nothing to change\n", t)
	} else if err := c.changing(plan.what, func() string { return t.String() + " patched" }, func(dryRun []string) error {
		_, err := patchOps(ctx, api, s.stored, append([]workload.Op{sameObject(s.stored)}, plan.ops...), dryRun)
		return err
	}); err != nil || c.pretends() {
		return err
	}
	s.workload = w
	switch why := s.notDefended(); {
	case why != "":
		printf(c.Out, "%s is not defended: %s\n", t, why)
	case known:
		printf(c.Out, "%s: %s\n", t, describeMode(in))
	}
	if f.mode == modeOff {
		printf(c.Out, "to undo this: %s\n", c.command(t, "enroll"))
	}
	if !takes {
		return nil
	}
	return c.awaitTakenBack(ctx, api, only, f)
}

// labelNamespace sets the label that enrols a namespace, or removes it.
func (c *changer) labelNamespace(ctx context.Context, api client.Client, what string, ns *corev1.Namespace, value *string) error {
	labels := map[string]any{v1alpha1.EnrolledLabel: value}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": ns.UID, "labels": labels}})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	done := "namespace/" + ns.Name + " labeled"
	if value == nil {
		done = "namespace/" + ns.Name + " label removed"
	}
	return c.change(what, done, func(dryRun []string) error {
		if err := api.Patch(ctx, ns.DeepCopy(), client.RawPatch(types.MergePatchType, patch), patchOptions(dryRun)); err != nil {
			return fmt.Errorf("label namespace %s: %w", ns.Name, err)
		}
		return nil
	})
}

// setObserve gives the setting observe of a namespace a value, unless it has the value already.
func (c *changer) setObserve(ctx context.Context, api client.Client, namespace string, enable bool) error {
	stored := &v1alpha1.OpsConfigInfo{}
	name := "opsconfiginfo/" + settings.NameObserve
	switch err := api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: settings.NameObserve}, stored); {
	case apierrors.IsNotFound(err):
		made := newObserve(namespace, enable)
		what := fmt.Sprintf("%s: create it in %s, with enable: %t", name, namespace, enable)
		return c.change(what, name+" created", func(dryRun []string) error {
			if err := api.Create(ctx, &made, &client.CreateOptions{DryRun: dryRun, FieldManager: fieldManager}); err != nil {
				return fmt.Errorf("create %s in %s: %w", name, namespace, err)
			}
			return nil
		})
	case err != nil:
		return fmt.Errorf("get %s in %s: %w", name, namespace, err)
	case stored.Spec.Enable == enable:
		printf(c.Out, "%s in %s has enable: %t already\n", name, namespace, enable)
		return nil
	}
	what := fmt.Sprintf("%s: set enable: %t in %s", name, enable, namespace)
	return c.patchObserve(ctx, api, what, stored, map[string]any{
		"metadata": map[string]any{"uid": stored.UID}, "spec": map[string]any{"enable": enable},
	})
}

// stay turns off observe mode, which an uninstall turned on and locked. The setting is no longer deleted with the Deployment.
func (c *changer) stay(ctx context.Context, api client.Client, left *v1alpha1.OpsConfigInfo) error {
	was, _ := settings.BeforeLeaving(left.Spec)
	what := fmt.Sprintf("opsconfiginfo/%s: an uninstall turned it on, and did not end: set enable: false, locked: %t in %s",
		settings.NameObserve, was.Locked, left.Namespace)
	return c.patchObserve(ctx, api, what, left, map[string]any{
		// The resourceVersion, because an uninstall may be under way.
		"metadata": map[string]any{"uid": left.UID, "resourceVersion": left.ResourceVersion, "ownerReferences": nil},
		"spec":     map[string]any{"enable": false, "locked": was.Locked, "remark": was.Remark},
	})
}

func (c *changer) patchObserve(
	ctx context.Context, api client.Client, what string, o *v1alpha1.OpsConfigInfo, content map[string]any,
) error {
	patch, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	name := "opsconfiginfo/" + o.Name
	return c.change(what, name+" patched", func(dryRun []string) error {
		if err := api.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), patchOptions(dryRun)); err != nil {
			return fmt.Errorf("patch %s in %s: %w", name, o.Namespace, err)
		}
		return nil
	})
}
