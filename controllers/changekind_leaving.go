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

package controllers

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// finalize changes the finalizers of a ChangeKind.
func (r *ChangeKindReconciler) finalize(ctx context.Context, c *v1alpha1.ChangeKind, change func(client.Object, string) bool) error {
	patched := c.DeepCopy()
	if !change(patched, v1alpha1.GiveBackFinalizer) {
		return nil
	}
	if err := r.Client.Patch(ctx, patched, client.MergeFromWithOptions(c, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("patch the finalizers of changekind %s: %w", c.Name, err)
	}
	c.Finalizers, c.ResourceVersion = patched.Finalizers, patched.ResourceVersion
	return nil
}

// isLeft reports whether `manager leave`, which ends the installation and then removes the finalizers, ran while a kind was in use.
// The cache may be older than the removal. The next start of the operator is of a new installation.
func (r *ChangeKindReconciler) isLeft(ctx context.Context, name string) (bool, error) {
	if r.Hub.Used(name) == nil {
		return false, nil
	}
	var own v1alpha1.OpsConfigInfoList
	if err := r.Live.List(ctx, &own, client.InNamespace(r.Operator)); err != nil {
		return false, fmt.Errorf("list opsconfiginfos: %w", err)
	}
	return slices.ContainsFunc(own.Items, func(o v1alpha1.OpsConfigInfo) bool {
		return o.Name == settings.NameBlocking && meta.IsStatusConditionFalse(o.Status.Conditions, v1alpha1.ConditionInstalled)
	}), nil
}

// needsNothing reports whether the permissions of a kind that leaves are gone, and its objects have no block, halt or hold.
// `kubectl delete -f` deletes the role a moment after the ChangeKind. Without the right to patch, no decision adds one meanwhile.
func (r *ChangeKindReconciler) needsNothing(ctx context.Context, c *v1alpha1.ChangeKind, s *kindState) (bool, error) {
	used, ok := r.Hub.Used(c.Name).(hub.Declared)
	if !ok || !s.leaving || !slices.Contains(s.Missing, "patch "+c.Name) {
		return false, nil
	}
	s.kind = used
	if err := r.count(ctx, c, s); err != nil || s.Stopped > 0 {
		return false, err
	}
	s.Missing = nil
	return true, nil
}

// hasStrays reports whether objects without the label of their enrolment may have blocks, halts or holds of the operator, which an
// earlier declaration enrolled by namespace.
func (r *ChangeKindReconciler) hasStrays(ctx context.Context, kind *declared.Kind, s *kindState) bool {
	if kind.Spec.Enrolment != v1alpha1.EnrolledByLabel {
		return false
	}
	used := r.Hub.Used(kind.Name)
	if plain, ok := used.(*declared.Workloads); ok {
		// Decisions by the earlier declaration may still be carried out.
		return plain.Declaration().Spec.Enrolment != v1alpha1.EnrolledByLabel
	}
	if l, ok := used.(leavingKind); s.Lacks || len(s.Missing) > 0 || s.leaving && ok {
		return l.strays
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := r.Live.List(ctx, list, client.HasLabels{v1alpha1.VersionLabel}); err != nil {
		// The cache, which then has all objects, cannot be filled either: the status says so.
		log.FromContext(ctx).Info("cannot list the objects without the label of their enrolment", "changekind", kind.Name, "cause", err.Error())
		return true
	}
	return slices.ContainsFunc(list.Items, func(o metav1.PartialObjectMetadata) bool {
		return o.DeletionTimestamp == nil && !hub.EnrolledByLabel(o.Labels) && workload.MarksOf(o.Labels, o.Annotations).Any()
	})
}

// release lets the API server delete a ChangeKind.
func (r *ChangeKindReconciler) release(ctx context.Context, c *v1alpha1.ChangeKind) error {
	delete(r.judged, c.Name)
	return cluster.IgnoreGone(r.finalize(ctx, c, controllerutil.RemoveFinalizer))
}

// leavingKind is a kind whose objects leave the defense: all if its ChangeKind is being deleted, otherwise those without the label
// by which the kind is enrolled. They are as if they had opted out: releases are canceled, and the operator takes back blocks,
// halts and holds.
type leavingKind struct {
	*declared.Workloads
	// strays: the cache has objects without the label, too.
	all, strays bool
}

// CachesAll reports whether the cache has objects without the label of their enrolment.
func (k leavingKind) CachesAll() bool { return k.strays }

// Get implements workload.Kind.
func (k leavingKind) Get(ctx context.Context, reader client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	return k.optOut(k.Workloads.Get(ctx, reader, key))
}

// Summary implements workload.Kind.
func (k leavingKind) Summary(ctx context.Context, reader client.Reader, key types.NamespacedName) (*workload.Workload, error) {
	return k.optOut(k.Workloads.Summary(ctx, reader, key))
}

func (k leavingKind) optOut(w *workload.Workload, err error) (*workload.Workload, error) {
	if err != nil || w == nil || !k.all && hub.EnrolledByLabel(w.Labels) {
		return w, err
	}
	return w.WithOptOut(), nil
}
