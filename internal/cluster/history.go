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

package cluster

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// +kubebuilder:rbac:groups=apps,resources=controllerrevisions,verbs=get;list;watch;create;patch;delete

// The history of a workload is a set of ControllerRevisions that it owns: the contents
// of the versions that succeeded. They outlive its ReplicaSets.

// Remember keeps the content of the version that succeeded. If the workload has
// another version by now, the content is read from the earlier revision, while it exists.
func (c *Cluster) Remember(ctx context.Context, change *v1alpha1.ChangeWorkload, w *workload.Workload) error {
	data, version, err := c.Content(ctx, w)
	if err == nil && version != change.Spec.Reversion {
		data, version, err = c.leftContent(ctx, w, change.Spec.Reversion)
	}
	if err != nil || version != change.Spec.Reversion {
		return err
	}
	return c.rememberAs(ctx, w, data, appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: change.Name, Labels: revisionLabels(w, version)},
		Revision:   change.Spec.Release,
	})
}

// leftContent reads the content of an earlier revision of the workload; nil when
// no revision has that version.
func (c *Cluster) leftContent(
	ctx context.Context, w *workload.Workload, want string,
) (data []byte, version string, err error) {
	kind, err := c.KindOf(w)
	if err != nil {
		return nil, "", err
	}
	others, err := kind.Revisions(ctx, c.Cached, w)
	i := slices.IndexFunc(others, func(r workload.OldRevision) bool { return r.Version == want })
	if err != nil || i < 0 {
		return nil, "", err
	}
	return c.RevisionContent(ctx, kind, w, &others[i])
}

// RevisionContent reads the content of an earlier revision of the workload, and its version; nil when
// the revision is gone.
func (v View) RevisionContent(
	ctx context.Context, kind workload.Kind, w *workload.Workload, old *workload.OldRevision,
) (data []byte, version string, err error) {
	template, version, err := kind.RevisionTemplate(ctx, v.Live, w.Namespace, old)
	if err != nil || template == nil {
		return nil, "", err
	}
	data, err = workload.DataOf(template)
	return data, version, err
}

// RememberBaseline keeps the template that the workload had before its first
// defended release, if its revision exists.
func (c *Cluster) RememberBaseline(ctx context.Context, in *defense.WorkloadInput) error {
	w := in.Workload
	kind, err := c.KindOf(w)
	if err != nil {
		return err
	}
	others, err := kind.Revisions(ctx, c.Cached, w)
	old := in.Baseline(others)
	if err != nil || old == nil {
		return err
	}
	data, version, err := c.RevisionContent(ctx, kind, w, old)
	if err != nil || data == nil {
		return err
	}
	return c.rememberAs(ctx, w, data, appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: record.ReleaseName(w, version), Labels: revisionLabels(w, version)},
		Revision:   rollback.BaselineRelease,
	})
}

// rememberAs keeps content in a revision of this name, with this number.
func (c *Cluster) rememberAs(ctx context.Context, w *workload.Workload, data []byte, revision appsv1.ControllerRevision) error {
	revision.Namespace = w.Namespace
	revision.Labels[v1alpha1.HistoryOfLabel] = string(w.UID)
	apiVersion, kind := w.GVK.ToAPIVersionAndKind()
	// No controller: see workload.Remembers.
	revision.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: w.Name, UID: w.UID}}
	revision.Data.Raw = data
	err := c.Client.Create(ctx, &revision)
	if apierrors.IsAlreadyExists(err) {
		return c.renumber(ctx, &revision, w)
	}
	if err != nil {
		return fmt.Errorf("create controllerrevision %s: %w", revision.Name, err)
	}
	log.FromContext(ctx).Info("added a version to the history",
		"version", revision.Labels[v1alpha1.VersionLabel], "release", revision.Revision)
	return nil
}

// revisionLabels returns the labels of a version that has just succeeded.
func revisionLabels(w *workload.Workload, version string) map[string]string {
	labels := OwnLabels(w, version)
	labels[v1alpha1.ProvenLabel] = v1alpha1.Unproven
	return labels
}

// renumber makes a version that succeeds again the newest one. A revision of a
// deleted workload with the same name is removed first.
func (c *Cluster) renumber(ctx context.Context, revision *appsv1.ControllerRevision, w *workload.Workload) error {
	stored := &appsv1.ControllerRevision{}
	if err := c.Live.Get(ctx, client.ObjectKeyFromObject(revision), stored); err != nil {
		return fmt.Errorf("get controllerrevision %s: %w", revision.Name, err)
	}
	if workload.Remembers(stored) != w.UID {
		if err := c.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID}); err != nil {
			return fmt.Errorf("remove controllerrevision %s: %w", revision.Name, err)
		}
		if err := c.Client.Create(ctx, revision); err != nil {
			return fmt.Errorf("create controllerrevision %s: %w", revision.Name, err)
		}
		return nil
	}
	if stored.Revision >= revision.Revision {
		return nil // another replica had a newer view
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q},"revision":%d}`,
		stored.UID, stored.ResourceVersion, revision.Revision)
	if err := c.Client.Patch(ctx, stored, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("renumber controllerrevision %s: %w", revision.Name, err)
	}
	return nil
}

// Prove marks a version that has run well for long enough since it succeeded.
func (c *Cluster) Prove(ctx context.Context, namespace string, r *workload.Revision) error {
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.Name}}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:%q}}}`, r.UID, v1alpha1.ProvenLabel, v1alpha1.Proven)
	if err := c.Client.Patch(ctx, revision, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("mark controllerrevision %s as proven: %w", r.Name, err)
	}
	return nil
}

// Forget removes a version from the history.
func (c *Cluster) Forget(ctx context.Context, namespace string, r *workload.Revision) error {
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: r.Name}}
	if err := c.Client.Delete(ctx, revision, client.Preconditions{UID: &r.UID}); IgnoreGone(err) != nil {
		return fmt.Errorf("remove controllerrevision %s: %w", r.Name, err)
	}
	log.FromContext(ctx).Info("removed a version from the history", "version", r.Version)
	return nil
}

// RememberedContent reads the content of a version out of the history, and its version; nil
// when it is gone.
func (v View) RememberedContent(
	ctx context.Context, kind workload.Kind, w *workload.Workload, revision *workload.Revision,
) (data []byte, version string, err error) {
	var stored appsv1.ControllerRevision
	if err := v.Live.Get(ctx, types.NamespacedName{Namespace: w.Namespace, Name: revision.Name}, &stored); err != nil {
		return nil, "", client.IgnoreNotFound(err)
	}
	if stored.UID != revision.UID || workload.Remembers(&stored) != w.UID {
		return nil, "", nil
	}
	if _, version, err = kind.ReadContent(stored.Data.Raw); err != nil {
		return nil, "", &RefusedError{Why: fmt.Sprintf("the history of version %s: %v", revision.Version, err)}
	}
	return stored.Data.Raw, version, nil
}
