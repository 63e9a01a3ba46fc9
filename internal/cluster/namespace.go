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
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Namespace is a namespace as it was read.
type Namespace struct {
	// Meta is nil when it is gone.
	Meta *metav1.PartialObjectMetadata
	// Enrolled is false while the namespace is terminating, and for the operator's own: the
	// webhooks must not block the operator's pods.
	Enrolled bool
}

// Ending reports whether a namespace is gone or terminating: nothing can be created in it.
func (n Namespace) Ending() bool { return n.Meta == nil || n.Meta.DeletionTimestamp != nil }

// ForRules returns the namespace as rules know it: the metadata that the cache keeps
// whole; nil when it is gone.
func (n Namespace) ForRules() map[string]any {
	if n.Meta == nil {
		return nil
	}
	labels := map[string]any{}
	for key, value := range n.Meta.Labels {
		labels[key] = value
	}
	return map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{
			"name": n.Meta.Name, "uid": string(n.Meta.UID), "labels": labels,
			"creationTimestamp": n.Meta.CreationTimestamp.UTC().Format(time.RFC3339),
		},
	}
}

// NamespaceObject returns an empty namespace of the type that the cache keeps.
func NamespaceObject() *metav1.PartialObjectMetadata {
	ns := &metav1.PartialObjectMetadata{}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return ns
}

// Namespace reads a namespace; its metadata is nil if there is none.
func (v View) Namespace(ctx context.Context, name string) (Namespace, error) {
	return v.readNamespace(ctx, v.Cached, name)
}

// LiveNamespace reads a namespace from the API server: the cache does not have a new one yet.
func (v View) LiveNamespace(ctx context.Context, name string) (Namespace, error) {
	return v.readNamespace(ctx, v.Live, name)
}

func (v View) readNamespace(ctx context.Context, from client.Reader, name string) (Namespace, error) {
	ns := NamespaceObject()
	if err := from.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return Namespace{}, nil
		}
		return Namespace{}, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return v.namespaceOf(ns), nil
}

// EnrolledNamespaces lists the names of the enrolled namespaces.
func (v View) EnrolledNamespaces(ctx context.Context) ([]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := v.Cached.List(ctx, list, client.HasLabels{v1alpha1.EnrolledLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var names []string
	for i := range list.Items {
		if ns := &list.Items[i]; v.namespaceOf(ns).Enrolled {
			names = append(names, ns.Name)
		}
	}
	return names, nil
}

// DefendedSince reads since when admission should have seen every release of a workload, and
// since when this installation runs; each is zero if unknown.
func (v View) DefendedSince(ctx context.Context, w *workload.Workload) (since, installed time.Time, err error) {
	var blocking v1alpha1.OpsConfigInfo
	key := types.NamespacedName{Namespace: v.Operator, Name: settings.NameBlocking}
	if err := v.Cached.Get(ctx, key, &blocking); apierrors.IsNotFound(err) {
		// A user deleted it, unless the operator has just begun to create its settings.
		var others v1alpha1.OpsConfigInfoList
		err := v.Cached.List(ctx, &others, client.InNamespace(v.Operator))
		return since, defense.InstalledBefore(others.Items), err
	} else if err != nil {
		return since, installed, err
	}
	ns, err := v.Namespace(ctx, w.Namespace)
	if err != nil || ns.Meta == nil {
		return since, installed, err
	}
	enrolled := workload.EnrolledSince(ns.Meta.ManagedFields)
	if c, _, err := v.declaration(ctx, w); err != nil || c != nil {
		return defense.DeclaredSince(enrolled, &blocking, c), defense.InstalledSince(&blocking), err
	}
	return defense.DefendedSince(enrolled, &blocking, w.GVK), defense.InstalledSince(&blocking), nil
}

// LaidBefore reports whether an annotation of a workload, which is a request, was written before
// the defense of the workload began. The managed fields have the time. known is false while the
// start of this installation is unknown.
func (v View) LaidBefore(ctx context.Context, w *workload.Workload, annotation string) (before, known bool, err error) {
	since, installed, err := v.DefendedSince(ctx, w)
	if err != nil || since.IsZero() {
		return false, !installed.IsZero(), err
	}
	stored, err := v.Stored(ctx, w)
	if err != nil || stored == nil {
		return false, err == nil, err
	}
	at := workload.RequestedAt(stored.GetManagedFields(), annotation)
	return !at.IsZero() && at.Before(since), true, nil
}

func (v View) namespaceOf(ns *metav1.PartialObjectMetadata) Namespace {
	n := Namespace{Meta: ns}
	n.Enrolled = !n.Ending() && ns.Name != v.Operator && workload.NamespaceEnrolled(ns.Name, ns.Labels)
	return n
}
