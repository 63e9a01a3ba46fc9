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
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// situation is what the cluster has of a workload that a command is to change.
type situation struct {
	target
	stored *unstructured.Unstructured
	// w has what the decisions of the operator read of it, but for what is known of
	// its pods and revisions.
	w *defense.Workload
	// namespace is nil where the user may not read it.
	namespace *corev1.Namespace
	now       time.Time
}

// observeTarget reads a workload and its namespace.
func (c *connection) observeTarget(ctx context.Context, r client.Reader, t target) (*situation, error) {
	stored, err := t.read(ctx, r)
	if err != nil {
		return nil, err
	}
	s := &situation{target: t, now: c.Now()}
	if err := s.take(stored); err != nil {
		return nil, err
	}
	s.namespace, err = readNamespace(ctx, r, t.key.Namespace)
	return s, err
}

// readNamespace reads a namespace; nil where the user may not.
func readNamespace(ctx context.Context, r client.Reader, name string) (*corev1.Namespace, error) {
	ns := &corev1.Namespace{}
	switch err := r.Get(ctx, types.NamespacedName{Name: name}, ns); {
	case apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return ns, nil
}

// take observes the workload as it was read.
func (s *situation) take(stored *unstructured.Unstructured) error {
	w, err := observeStored(s.kind, stored)
	if err != nil {
		return err
	}
	s.stored, s.w = stored, w
	return nil
}

// observeStored is what the decisions of the operator read of a workload itself.
func observeStored(kind workload.Kind, stored *unstructured.Unstructured) (*defense.Workload, error) {
	template, err := workload.Template(kind, stored)
	if err != nil {
		return nil, err
	}
	w := &defense.Workload{
		GVK: kind.GroupVersionKind(), Namespace: stored.GetNamespace(), Name: stored.GetName(), UID: stored.GetUID(),
		ResourceVersion: stored.GetResourceVersion(), Labels: stored.GetLabels(), Annotations: stored.GetAnnotations(),
		Deleting: stored.GetDeletionTimestamp() != nil, Owner: defense.OwnerOf(stored),
		Version: workload.Version(template), Images: workload.Images(template),
	}
	w.Stopping, err = kind.Stopping(stored)
	w.Words = kind.Words(w)
	return w, err
}

// notDefended says why a workload is not defended; empty where it is, as far as
// the user may know.
func (s *situation) notDefended() (why string) {
	ns := s.namespace
	switch {
	case defense.OptedOut(s.w.Labels):
		return fmt.Sprintf("%s opted out of the defense (label %s=%s)", s.target, v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)
	case ns == nil:
		return ""
	case slices.Contains(defense.SystemNamespaces(), ns.Name):
		return fmt.Sprintf("the namespace %s is one of the cluster itself, which is never enrolled", ns.Name)
	case !defense.NamespaceEnrolled(ns.Name, ns.Labels):
		return fmt.Sprintf("the namespace %s is not enrolled", ns.Name)
	case ns.DeletionTimestamp != nil:
		return fmt.Sprintf("the namespace %s is being deleted", ns.Name)
	default:
		return ""
	}
}

// mustBeDefended is the error for a workload that is not.
func (c *connection) mustBeDefended(s *situation) error {
	why := s.notDefended()
	if why == "" {
		return nil
	}
	do := "enrol it: " + c.commandIn("", "enroll", s.key.Namespace)
	if defense.OptedOut(s.w.Labels) {
		do = "let it opt in again: " + c.command(s.target, "enroll")
	}
	return remedy(fmt.Errorf("nothing can be done about releases here: %s", why), do)
}

// reachDefended reads the workload that arguments name, which must be defended.
func (c *changer) reachDefended(ctx context.Context, args []string) (client.WithWatch, *situation, error) {
	api, t, err := c.reach(ctx, args)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.observeTarget(ctx, api, t)
	if err != nil {
		return nil, nil, err
	}
	return api, s, c.mustBeDefended(s)
}

// recordsOf selects the records of a workload, those of earlier builds included.
func recordsOf(t target) []client.ListOption {
	name := defense.WorkloadNameLabelValue(t.key.Name)
	gvk := t.kind.GroupVersionKind()
	labels := client.MatchingLabels{v1alpha1.WorkloadKindLabel: gvk.Kind, v1alpha1.WorkloadNameLabel: name}
	if gvk.GroupKind() == (workload.Deployment{}).GroupVersionKind().GroupKind() {
		labels = client.MatchingLabels{v1alpha1.DeploymentNameLabel: name}
	}
	return []client.ListOption{client.InNamespace(t.key.Namespace), labels}
}

// releasesOf lists the releases of this very workload.
func releasesOf(ctx context.Context, r client.Reader, t target, uid types.UID) ([]v1alpha1.ChangeWorkload, error) {
	var list v1alpha1.ChangeWorkloadList
	if err := r.List(ctx, &list, recordsOf(t)...); err != nil {
		return nil, fmt.Errorf("list changeworkloads of %s: %w", t, err)
	}
	return slices.DeleteFunc(list.Items, func(change v1alpha1.ChangeWorkload) bool { return !isOwnedBy(&change, uid) }), nil
}

// batchesOf lists the batches of a release.
func batchesOf(ctx context.Context, r client.Reader, t target, change *v1alpha1.ChangeWorkload) ([]v1alpha1.ChangePod, error) {
	var list v1alpha1.ChangePodList
	if err := r.List(ctx, &list, recordsOf(t)...); err != nil {
		return nil, fmt.Errorf("list changepods of %s: %w", t, err)
	}
	return slices.DeleteFunc(list.Items, func(batch v1alpha1.ChangePod) bool { return !isOwnedBy(&batch, change.UID) }), nil
}

func isOwnedBy(o metav1.Object, uid types.UID) bool {
	owner := metav1.GetControllerOf(o)
	return owner != nil && owner.UID == uid
}

// readHistory lists the versions of a workload that are remembered, the newest first.
func readHistory(ctx context.Context, r client.Reader, t target, uid types.UID) ([]remembered, error) {
	var list appsv1.ControllerRevisionList
	if err := r.List(ctx, &list, recordsOf(t)...); err != nil {
		return nil, fmt.Errorf("list controllerrevisions of %s: %w", t, err)
	}
	return rememberedBy(slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool { return workload.Remembers(&r) != uid })), nil
}

// revisions are the history as the operator decides by it.
func revisions(history []remembered) []defense.Revision {
	var plain []defense.Revision
	for i := range history {
		plain = append(plain, history[i].Revision)
	}
	return plain
}

// ownerReader reads, from the API server, by the indexes of owners that the caches of the
// operator have.
type ownerReader struct{ client.Reader }

// List lists what an object owns by listing all, where that is asked for.
func (r ownerReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	index, owner := indexOf(&o)
	if index == "" {
		return r.Reader.List(ctx, list, opts...)
	}
	if err := r.Reader.List(ctx, list, client.InNamespace(o.Namespace)); err != nil {
		return err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return err
	}
	owned := slices.DeleteFunc(items, func(item runtime.Object) bool { return !isOwned(index, item, owner) })
	return meta.SetList(list, owned)
}

// command is what a person types to run a command of this program on a workload, as it
// was told which cluster and namespace.
func (c *connection) command(t target, name string, args ...string) string {
	return c.commandIn(t.key.Namespace, append([]string{name, t.String()}, args...)...)
}

// commandIn is what a person types to run a command in a namespace.
func (c *connection) commandIn(namespace string, args ...string) string {
	return c.kubectl(namespace, append([]string{"altershield"}, args...)...)
}

// kubectl is what a person types to run a command of kubectl itself in a namespace.
func (c *connection) kubectl(namespace string, args ...string) string {
	return c.flagged(namespace, command(args...))
}

// flagged is a command with the flags that choose a namespace, and the cluster.
func (c *connection) flagged(namespace, command string) string {
	if namespace != "" && namespace != c.contextNamespace() {
		command += " -n " + defense.ShellWord(namespace)
	}
	return strings.Join(append([]string{command}, c.clusterFlags()...), " ")
}

// clusterFlags are those that chose the cluster, and who the user is there. A token and
// a password are not told.
func (c *connection) clusterFlags() (flags []string) {
	f := c.flags
	for _, flag := range []struct {
		name  string
		value *string
	}{
		{"--kubeconfig", f.KubeConfig}, {"--context", f.Context}, {"--cluster", f.ClusterName}, {"--server", f.APIServer},
		{"--user", f.AuthInfoName}, {"--as", f.Impersonate}, {"--as-uid", f.ImpersonateUID},
	} {
		if flag.value != nil && *flag.value != "" {
			flags = append(flags, flag.name+"="+defense.ShellWord(*flag.value))
		}
	}
	if f.ImpersonateGroup != nil {
		for _, group := range *f.ImpersonateGroup {
			flags = append(flags, "--as-group="+defense.ShellWord(group))
		}
	}
	return flags
}

// contextNamespace is the namespace that commands without -n are in.
func (c *connection) contextNamespace() string {
	config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return ""
	}
	name := config.CurrentContext
	if c.flags.Context != nil && *c.flags.Context != "" {
		name = *c.flags.Context
	}
	if context, ok := config.Contexts[name]; ok && context.Namespace != "" {
		return context.Namespace
	}
	return metav1.NamespaceDefault
}

// describeVersion names a version with its images.
func describeVersion(version string, images []string) string {
	if len(images) == 0 {
		return "version " + version
	}
	return fmt.Sprintf("version %s (%s)", version, strings.Join(images, ", "))
}

// fullVersion is the version that begins so, of those that are known.
func fullVersion(begin string, known []string) (string, error) {
	var found []string
	for _, version := range slices.Sorted(maps.Keys(setOf(known))) {
		if version == begin {
			return version, nil
		}
		if len(begin) >= shortestVersion && strings.HasPrefix(version, begin) {
			found = append(found, version)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("no version %q", begin)
	default:
		return "", remedy(fmt.Errorf("%q is the beginning of %d versions", begin, len(found)), "give more of it: "+strings.Join(found, ", "))
	}
}

// shortestVersion is how much of a version has to be given at least.
const shortestVersion = 6

func setOf(values []string) map[string]bool {
	set := map[string]bool{}
	for _, v := range values {
		set[v] = true
	}
	return set
}
