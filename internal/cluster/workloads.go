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
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Workload reads a workload; nil when it does not exist, or its kind is not defended.
func (v View) Workload(ctx context.Context, key workload.Key) (*workload.Workload, error) {
	kind, ok := v.Kinds.Of(key.GroupKind)
	if !ok {
		return nil, nil
	}
	return v.orUnlabelled(ctx, kind, key.NamespacedName, kind.Get)
}

// Summary reads a workload, without its OldRevisions if they need a list of all its pods:
// callers that read it for each pod or batch would list them again and again.
func (v View) Summary(ctx context.Context, key workload.Key) (*workload.Workload, error) {
	kind, ok := v.Kinds.Of(key.GroupKind)
	if !ok {
		return nil, nil
	}
	return v.orUnlabelled(ctx, kind, key.NamespacedName, kind.Summary)
}

// errNotDefended means that the kind of a workload left the defense after the workload was read.
var errNotDefended = errors.New("workloads of this kind are not defended")

// KindOf finds the kind of a workload that was read.
func (v View) KindOf(w *workload.Workload) (workload.Kind, error) {
	kind, ok := v.Kinds.Of(w.GVK.GroupKind())
	if !ok {
		return nil, fmt.Errorf("%s %s/%s: %w", w.Kind(), w.Namespace, w.Name, errNotDefended)
	}
	return kind, nil
}

// Pods reads the pods of the current template of a workload.
func (v View) Pods(ctx context.Context, w *workload.Workload) ([]workload.Pod, error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return nil, err
	}
	return kind.Pods(ctx, v.Cached, w)
}

// PodNames returns patterns of the names of all pods that a workload has or had, except of revisions that are gone.
func (v View) PodNames(ctx context.Context, w *workload.Workload) ([]string, error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return nil, err
	}
	return kind.PodNames(ctx, v.Cached, w)
}

// Images lists the container images of the current template of a workload, and of
// the previous template.
func (v View) Images(ctx context.Context, w *workload.Workload) (current, previous []string, err error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return nil, nil, err
	}
	current, previous, err = kind.Images(ctx, v.Cached, w)
	if err != nil || w.Rollbacks == "" {
		return current, previous, err
	}
	template, _, err := v.OldTemplate(ctx, w)
	return current, workload.Images(template), err
}

// Stored reads a workload from the API server; nil when it is gone, or another workload
// has its name.
func (v View) Stored(ctx context.Context, w *workload.Workload) (*unstructured.Unstructured, error) {
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(w.GVK)
	key := types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
	if err := v.Live.Get(ctx, key, stored); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get %s %s: %w", w.Kind(), key, err)
	}
	if stored.GetUID() != w.UID {
		return nil, nil
	}
	return stored, nil
}

// IsThere reports whether the API server has the owner of an object.
func (v View) IsThere(ctx context.Context, owner workload.Owner) (bool, error) {
	live, err := v.liveOwner(ctx, owner)
	return live != nil, err
}

// liveOwner reads the metadata of the owner of an object from the API server; nil when it is gone, or its kind is
// not defended.
func (v View) liveOwner(ctx context.Context, owner workload.Owner) (*metav1.PartialObjectMetadata, error) {
	kind, ok := v.Kinds.Of(owner.Key.GroupKind)
	if !ok {
		return nil, nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(kind.GroupVersionKind())
	if err := v.Live.Get(ctx, owner.Key.NamespacedName, live); err != nil || live.UID != owner.UID {
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get %s: %w", owner.Key, err)
		}
		return nil, nil
	}
	return live, nil
}

// Content reads the content of a workload from the API server, as the history keeps it, and its
// version; nil when the workload is gone.
func (v View) Content(ctx context.Context, w *workload.Workload) (data []byte, version string, err error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return nil, "", err
	}
	stored, err := v.Stored(ctx, w)
	if err != nil || stored == nil {
		return nil, "", err
	}
	if version, err = kind.VersionOf(stored); err != nil {
		return nil, "", err
	}
	data, err = kind.Content(stored)
	return data, version, err
}

// Whole returns a workload with its object as the API server has it, which the cache has only in
// part. It fails if the workload has changed since it was read.
func (v View) Whole(ctx context.Context, w *workload.Workload) (*workload.Workload, error) {
	stored, err := v.Stored(ctx, w)
	if err != nil {
		return nil, err
	}
	if stored == nil || stored.GetResourceVersion() != w.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: w.Kind()}, w.Name, errors.New("it changed"))
	}
	whole := *w
	whole.Object = stored.Object
	return &whole, nil
}

// Reread reads the labels, the annotations, the pause and the pace of a workload from the
// API server: the cache may be behind the operator's own last write. It fails if the
// workload is gone.
func (v View) Reread(ctx context.Context, w *workload.Workload) (*workload.Workload, error) {
	kind, err := v.KindOf(w)
	if err != nil {
		return nil, err
	}
	stored, err := v.Stored(ctx, w)
	if err != nil {
		return nil, err
	}
	if stored == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: w.Kind()}, w.Name)
	}
	workload.TrimMeta(stored)
	now := *w
	now.Object = stored.Object // Halt and Resume of declared kinds read it
	now.Labels, now.Annotations, now.ResourceVersion = stored.GetLabels(), stored.GetAnnotations(), stored.GetResourceVersion()
	now.Deleting = stored.GetDeletionTimestamp() != nil
	if now.Stopping, err = kind.Stopping(stored); err != nil {
		return nil, err
	}
	now.Words = kind.Words(&now)
	pacing, err := kind.Pace(stored)
	if err == nil && pacing != nil {
		now.SetPace(pacing.Pace)
	}
	return &now, err
}
