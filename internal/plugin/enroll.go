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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// enrolFlags are the flags of enroll and unenroll.
type enrolFlags struct {
	observe, wait bool
	operator      string
	timeout       time.Duration
}

func enrollCommand(c *connection) *cobra.Command {
	f, change := enrolFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "enroll [NAMESPACE...]",
		Short: "Enrol namespaces",
		Long: strings.TrimSpace(`
Enrol namespaces, or the one of -n: from then on each change of a pod
template in them is a release that is recorded and verified. What runs by then stays as it
is, and restarts nothing: it is a baseline until its template changes.

With --observe the namespace is in observe mode at first: nothing is blocked, paused, rolled
back or denied, and events tell what would have been. That is how to begin. When you trust
it: kubectl altershield observe --namespace-wide --undo. A namespace that is enrolled
already is left as it is. Where the setting observe of the operator is locked and off, a
namespace cannot be observed, and the command refuses.`),
		Example: `  # The way to begin: record and verify, block nothing
  kubectl altershield enroll shop --observe

  kubectl altershield enroll shop warehouse`,
		ValidArgsFunction: c.completeNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			return change.eachNamespace(cmd.Context(), args, func(api client.WithWatch, ns *corev1.Namespace) error {
				return change.enrol(cmd.Context(), api, ns, f)
			})
		},
	}
	cmd.Flags().BoolVar(&f.observe, "observe", false, "enrol the namespace in observe mode")
	addOperatorNamespace(cmd.Flags(), &f.operator)
	change.addTo(cmd.Flags())
	return cmd
}

func unenrollCommand(c *connection) *cobra.Command {
	f, change := enrolFlags{}, &changer{connection: c}
	cmd := &cobra.Command{
		Use:   "unenroll [NAMESPACE...]",
		Short: "Take namespaces out of the defense",
		Long: strings.TrimSpace(`
Take namespaces, or the one of -n, out of the defense. Releases under way become Canceled.
The operator takes back its blocks and pauses, lets go what it holds, and writes nothing
more. Blocks that somebody set by hand stay. Records and settings stay, too.`),
		Example:           `  kubectl altershield unenroll shop`,
		ValidArgsFunction: c.completeNamespaces,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := change.check(); err != nil {
				return err
			}
			return change.eachNamespace(cmd.Context(), args, func(api client.WithWatch, ns *corev1.Namespace) error {
				return change.unenrol(cmd.Context(), api, ns, f)
			})
		},
	}
	cmd.Flags().BoolVar(&f.wait, "wait", true, "wait until the operator took back what it had set")
	cmd.Flags().DurationVar(&f.timeout, "timeout", time.Minute, "how long to wait for the operator; 0 is without end")
	change.addTo(cmd.Flags())
	return cmd
}

// eachNamespace does something with the namespaces that are named, or with the one of
// the context.
func (c *changer) eachNamespace(ctx context.Context, names []string, do func(client.WithWatch, *corev1.Namespace) error) error {
	if len(names) == 0 {
		name, err := c.namespace()
		if err != nil {
			return err
		}
		names = []string{name}
	}
	api, err := c.client()
	if err != nil {
		return err
	}
	for _, name := range names {
		ns := &corev1.Namespace{}
		switch err := api.Get(ctx, types.NamespacedName{Name: name}, ns); {
		case apierrors.IsNotFound(err):
			return noNamespace(name)
		case err != nil:
			return fmt.Errorf("get namespace %s: %w", name, err)
		}
		if err := do(api, ns); err != nil {
			return err
		}
	}
	return nil
}

func noNamespace(name string) error {
	return remedy(fmt.Errorf("there is no namespace %s", name), "see kubectl get namespaces")
}

// mayEnrol says why a namespace is never enrolled.
func mayEnrol(ns *corev1.Namespace, operator string) error {
	switch {
	case slices.Contains(defense.SystemNamespaces(), ns.Name):
		return remedy(fmt.Errorf("%s is a namespace of the cluster itself: the label has no effect there", ns.Name), "enrol the namespaces of your workloads")
	case ns.Name == operator:
		return remedy(fmt.Errorf("%s is the namespace of the operator, whose webhooks must not stand in the way of its own pods", ns.Name), "enrol the namespaces of your workloads")
	case ns.DeletionTimestamp != nil:
		return remedy(fmt.Errorf("the namespace %s is being deleted", ns.Name), "enrol it once it is there again")
	default:
		return nil
	}
}

func (c *changer) enrol(ctx context.Context, api client.WithWatch, ns *corev1.Namespace, f enrolFlags) error {
	operator := enrolNamespace(ctx, api, f.operator)
	if err := mayEnrol(ns, operator); err != nil {
		return err
	}
	if _, err := api.RESTMapper().RESTMapping(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "ChangeWorkload"}); meta.IsNoMatchError(err) {
		return remedy(errors.New("the operator is not installed in this cluster: the label would do nothing"), "install it first, or choose another cluster with --context")
	}
	found, err := survey(ctx, api, ns.Name)
	if err != nil {
		return err
	}
	for _, line := range found.describe(ns.Name) {
		printf(c.Out, "%s\n", line)
	}
	if defense.NamespaceEnrolled(ns.Name, ns.Labels) {
		printf(c.Out, "namespace/%s is enrolled already\n", ns.Name)
		objects, known, err := c.settingsOf(ctx, api, operator, ns.Name)
		if err != nil {
			return err
		}
		inForce := settings.For(objects[0], objects[1], nil)
		switch {
		case known && inForce.Observe:
			printf(c.Out, "it is in observe mode, because of %s: nothing is blocked, paused, rolled back or denied\n", inForce.ObservedBy)
			printf(c.Out, "to defend it in full: %s\n", c.commandIn(ns.Name, "observe", "--namespace-wide", "--off"))
		case f.observe:
			// Who repeats the command must not end the defense by it.
			printf(c.Out, "whether it is in observe mode is left as it is; to put it into observe mode: %s\n", c.commandIn(ns.Name, "observe", "--namespace-wide"))
		}
		return nil
	}
	if f.observe {
		if err := c.mayObserve(ctx, api, ns.Name, operator); err != nil {
			return err
		}
		// First: no release may be blocked in between.
		if err := c.setObserve(ctx, api, ns.Name, true); err != nil {
			return err
		}
	}
	what := fmt.Sprintf("namespace/%s: set the label %s=%s", ns.Name, v1alpha1.EnrolledLabel, v1alpha1.EnrolledValue)
	value := v1alpha1.EnrolledValue
	err = c.change(what, "namespace/"+ns.Name+" labeled", func(dryRun []string) error { return labelNamespace(ctx, api, ns, &value, dryRun) })
	if err != nil {
		return err
	}
	c.next(c.commandIn(ns.Name, "status"))
	return nil
}

// mayObserve says why a namespace would be defended in full, though its own setting says
// that it is to be observed.
func (c *changer) mayObserve(ctx context.Context, r client.Reader, namespace, operator string) error {
	objects, known, err := c.settingsOf(ctx, r, operator, namespace)
	if err != nil || !known {
		return err
	}
	own := slices.IndexFunc(objects[1], func(o v1alpha1.OpsConfigInfo) bool { return o.Name == settings.NameObserve })
	if own < 0 {
		own, objects[1] = len(objects[1]), append(objects[1], newObserve(namespace, true))
	}
	objects[1][own].Spec.Enable = true
	if settings.For(objects[0], objects[1], nil).Observe {
		return nil
	}
	do := fmt.Sprintf("mend opsconfiginfo/%s in %s, or enrol the namespace without --observe", settings.NameObserve, namespace)
	why := settings.AssessOwn(&objects[1][own], objects[0])
	if why.Reason == v1alpha1.ReasonLocked {
		do = "let namespaces decide: " + c.kubectl(operator, "patch", "opsconfiginfo", settings.NameObserve, "--type=merge", "-p", `{"spec":{"locked":false}}`) +
			"; or enrol the namespace without --observe"
	}
	return remedy(fmt.Errorf("namespace/%s would be defended in full at once: %s", namespace, why.Message), do)
}

// settingsOf are those of the operator and of a namespace; known is false where the user may
// not read them.
func (c *changer) settingsOf(ctx context.Context, r client.Reader, operator, namespace string) (objects [2][]v1alpha1.OpsConfigInfo, known bool, err error) {
	for i, of := range []string{operator, namespace} {
		var list v1alpha1.OpsConfigInfoList
		switch err := r.List(ctx, &list, client.InNamespace(of)); {
		case apierrors.IsForbidden(err):
			printf(c.ErrOut, "warning: you have no right to list the opsconfiginfoes of %s: whether the namespace %s is in observe mode is not known\n", of, namespace)
			return objects, false, nil
		case err != nil:
			return objects, false, fmt.Errorf("list opsconfiginfoes of %s: %w", of, err)
		}
		objects[i] = list.Items
	}
	return objects, true, nil
}

// newObserve is the setting observe of a namespace.
func newObserve(namespace string, enable bool) v1alpha1.OpsConfigInfo {
	o := v1alpha1.OpsConfigInfo{Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve, Enable: enable}}
	o.Namespace, o.Name = namespace, settings.NameObserve
	return o
}

// labelNamespace sets the label that enrols a namespace, or removes it.
func labelNamespace(ctx context.Context, api client.Client, ns *corev1.Namespace, value *string, dryRun []string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": ns.UID, "labels": map[string]any{v1alpha1.EnrolledLabel: value}}})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	if err := api.Patch(ctx, ns.DeepCopy(), client.RawPatch(types.MergePatchType, patch), patchOptions(dryRun)); err != nil {
		return fmt.Errorf("label namespace %s: %w", ns.Name, err)
	}
	return nil
}

// inventory is what there is in a namespace, as far as enrolling it is about it.
type inventory struct {
	// Baselines, Released and OptedOut are how many workloads have no release yet, had
	// one before, and are out of the defense by themselves.
	Baselines, Released, OptedOut int
	// Unprobed have a container without a readiness probe, and Hasty no
	// minReadySeconds.
	Unprobed, Hasty []string
}

// survey lists the workloads of a namespace, of all kinds.
func survey(ctx context.Context, r client.Reader, namespace string) (inventory, error) {
	found := inventory{}
	err := eachWorkload(ctx, r, namespace, found.add)
	return found, err
}

// eachWorkload does something with the workloads of a namespace, of all kinds.
func eachWorkload(ctx context.Context, r client.Reader, namespace string, do func(workload.Kind, *unstructured.Unstructured) error) error {
	for _, kind := range workload.Defended().Kinds() {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersionKind())
		if err := r.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list %s of %s: %w", kind.Resource(), namespace, err)
		}
		for i := range list.Items {
			list.Items[i].SetGroupVersionKind(kind.GroupVersionKind())
			if err := do(kind, &list.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *inventory) add(kind workload.Kind, stored *unstructured.Unstructured) error {
	t := target{kind: kind, key: client.ObjectKeyFromObject(stored)}
	switch {
	case defense.OptedOut(stored.GetLabels()):
		v.OptedOut++
		return nil
	case stored.GetLabels()[v1alpha1.VersionLabel] == "":
		v.Baselines++
	default:
		v.Released++
	}
	template, err := workload.Template(kind, stored)
	if err != nil {
		return err
	}
	containers, _, _ := unstructured.NestedSlice(template, "spec", "containers")
	for _, container := range containers {
		if fields, ok := container.(map[string]any); ok && fields["readinessProbe"] == nil {
			v.Unprobed = append(v.Unprobed, t.String())
			break
		}
	}
	if seconds, _, _ := unstructured.NestedInt64(stored.Object, "spec", "minReadySeconds"); seconds == 0 {
		v.Hasty = append(v.Hasty, t.String())
	}
	return nil
}

// maxNamed is how many workloads a warning names.
const maxNamed = 20

// describe says what enrolling the namespace means, and what protects too little.
func (v *inventory) describe(namespace string) []string {
	lines := []string{fmt.Sprintf("namespace/%s: %s without a defended release: baselines, until their template changes", namespace, count(v.Baselines, "workload"))}
	if v.Released > 0 {
		lines = append(lines, fmt.Sprintf("  %s released while defended before", count(v.Released, "workload")))
	}
	if v.OptedOut > 0 {
		lines = append(lines, fmt.Sprintf("  %s opted out (label %s=%s), and stay out", count(v.OptedOut, "workload"), v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled))
	}
	if len(v.Unprobed) > 0 {
		lines = append(lines, "  warning: without a readiness probe Kubernetes removes the old pods before the new ones work; give one to each container of: "+named(v.Unprobed))
	}
	if len(v.Hasty) > 0 {
		lines = append(lines, "  warning: without minReadySeconds a pod counts as available at once; set it to the time in which the program usually crashes, for: "+named(v.Hasty))
	}
	return lines
}

// named are the first of many names.
func named(names []string) string {
	slices.Sort(names)
	if more := len(names) - maxNamed; more > 0 {
		return strings.Join(names[:maxNamed], ", ") + fmt.Sprintf(", and %d more", more)
	}
	return strings.Join(names, ", ")
}

// takenBack is what the operator takes back of a workload that leaves the defense, or is
// in observe mode from then on. halts is how people speak of a halt of its kind.
func takenBack(labels, annotations map[string]string, halts *defense.Words) (what []string) {
	if _, blocked := labels[v1alpha1.SuspendLabel]; blocked && annotations[v1alpha1.SuspendedByAnnotation] != "" {
		what = append(what, "its block")
	}
	if annotations[v1alpha1.HaltedAnnotation] != "" {
		what = append(what, "its "+halts.Halt()+halts.Means())
	}
	if annotations[v1alpha1.HeldAnnotation] != "" {
		what = append(what, "its hold")
	}
	return what
}

// staysBlocked says that somebody set a block by hand, which stays.
func staysBlocked(labels, annotations map[string]string) bool {
	_, blocked := labels[v1alpha1.SuspendLabel]
	return blocked && annotations[v1alpha1.SuspendedByAnnotation] == ""
}

// describeTakenBack says of a workload what the operator takes back, and what stays.
func describeTakenBack(t target, stored *unstructured.Unstructured) (lines []string) {
	if what := takenBack(stored.GetLabels(), stored.GetAnnotations(), t.halts()); len(what) > 0 {
		lines = append(lines, fmt.Sprintf("%s: the operator takes back %s", t, strings.Join(what, ", ")))
	}
	if staysBlocked(stored.GetLabels(), stored.GetAnnotations()) {
		lines = append(lines, fmt.Sprintf("%s: the block that somebody set by hand stays: %s -n %s", t, command("label", t.String(), v1alpha1.SuspendLabel+"-"), defense.ShellWord(t.key.Namespace)))
	}
	return lines
}

func (c *changer) unenrol(ctx context.Context, api client.WithWatch, ns *corev1.Namespace, f enrolFlags) error {
	if _, there := ns.Labels[v1alpha1.EnrolledLabel]; !there {
		printf(c.Out, "namespace/%s is not defended\n", ns.Name)
		return nil
	}
	if err := c.tellLeaving(ctx, api, ns.Name); err != nil {
		return err
	}
	what := fmt.Sprintf("namespace/%s: remove the label %s", ns.Name, v1alpha1.EnrolledLabel)
	err := c.change(what, "namespace/"+ns.Name+" label removed", func(dryRun []string) error { return labelNamespace(ctx, api, ns, nil, dryRun) })
	if err != nil || c.pretends() || !f.wait {
		return err
	}
	return c.awaitTakenBack(ctx, api, ns.Name, f.timeout, nil)
}

// tellLeaving says what ends when a namespace leaves the defense.
func (c *changer) tellLeaving(ctx context.Context, api client.Client, namespace string) error {
	var changes v1alpha1.ChangeWorkloadList
	if err := api.List(ctx, &changes, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list changeworkloads of %s: %w", namespace, err)
	}
	for i := range changes.Items {
		if change := &changes.Items[i]; defense.IsOpen(change.Status.Status) {
			printf(c.Out, "changeworkload/%s: becomes Canceled\n", change.Name)
		}
	}
	return eachWorkload(ctx, api, namespace, func(kind workload.Kind, stored *unstructured.Unstructured) error {
		for _, line := range describeTakenBack(target{kind: kind, key: client.ObjectKeyFromObject(stored)}, stored) {
			printf(c.Out, "%s\n", line)
		}
		return nil
	})
}

// awaitTakenBack waits until the operator took back what it had set in a namespace, or
// of one workload there.
func (c *changer) awaitTakenBack(ctx context.Context, api client.WithWatch, namespace string, timeout time.Duration, only *target) error {
	watch := &watcher{api: api, timeout: timeout, trouble: c.tellTrouble}
	for _, kind := range workload.Defended().Kinds() {
		watch.what = append(watch.what, watched{kind.ObjectList(), []client.ListOption{client.InNamespace(namespace)}})
	}
	var left []string
	err := watch.until(ctx, func(ctx context.Context) (bool, error) {
		left = nil
		err := eachWorkload(ctx, api, namespace, func(kind workload.Kind, stored *unstructured.Unstructured) error {
			t := target{kind: kind, key: client.ObjectKeyFromObject(stored)}
			what := takenBack(stored.GetLabels(), stored.GetAnnotations(), t.halts())
			if len(what) > 0 && (only == nil || only.String() == t.String()) {
				left = append(left, t.String()+": "+strings.Join(what, ", "))
			}
			return nil
		})
		return len(left) == 0, err
	})
	switch {
	case errors.Is(err, errTimedOut):
		return remedy(fmt.Errorf("the operator has not taken back in %s: %s", timeout, strings.Join(left, "; ")), "see whether it runs: "+c.commandIn("", "check"))
	case err != nil:
		return err
	}
	printf(c.Out, "nothing of the operator is left to take back\n")
	return nil
}

// setObserve makes the setting observe of a namespace what it is to be. Where it is so already, nothing is written.
func (c *changer) setObserve(ctx context.Context, api client.Client, namespace string, enable bool) error {
	stored := &v1alpha1.OpsConfigInfo{}
	key := types.NamespacedName{Namespace: namespace, Name: settings.NameObserve}
	name := "opsconfiginfo/" + settings.NameObserve
	switch err := api.Get(ctx, key, stored); {
	case apierrors.IsNotFound(err):
		made := newObserve(namespace, enable)
		return c.change(fmt.Sprintf("%s: make it in %s, with enable: %t", name, namespace, enable), name+" created", func(dryRun []string) error {
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
	return c.change(fmt.Sprintf("%s: set enable: %t in %s", name, enable, namespace), name+" patched", func(dryRun []string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"enable":%t}}`, stored.UID, enable)
		if err := api.Patch(ctx, stored, client.RawPatch(types.MergePatchType, patch), patchOptions(dryRun)); err != nil {
			return fmt.Errorf("patch %s in %s: %w", name, namespace, err)
		}
		return nil
	})
}
