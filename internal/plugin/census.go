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
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// census is all that was read of many workloads.
type census struct {
	snapshots []*snapshot
	settings  []v1alpha1.OpsConfigInfo
	policies  []v1alpha1.DefensePolicy
	missing   []string
}

// census reads the workloads of a namespace, or of all, with one request for each kind and page, and for each namespace with pods
// that are not Ready.
func (c *connection) census(ctx context.Context, live client.Client, operator, namespace string) (*census, error) {
	v, r, in := &census{}, newReader(live), client.InNamespace(namespace)
	registry, err := c.kinds(ctx, live)
	if err != nil {
		return nil, err
	}
	kinds := registry.Kinds()
	for _, kind := range kinds {
		err := v.loadKind(ctx, r, kind, operator, namespace, c.Now())
		if apierrors.IsForbidden(err) && len(v.missing) < len(kinds)-1 {
			v.missing = append(v.missing, fmt.Sprintf("%s are not known: %s", kind.Resource(), reasonOf(err)))
		} else if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Resource(), err)
		}
	}
	var changes v1alpha1.ChangeWorkloadList
	if err := r.List(ctx, &changes, in); err != nil {
		return nil, fmt.Errorf("list changeworkloads: %w", err)
	}
	v.assign(changes.Items)
	for _, step := range []struct {
		what string
		load func(context.Context, *reader, string, []string) error
	}{
		{"which namespaces are enrolled is", v.loadNamespaces}, {"which settings are in force is", v.loadSettings},
		{"which policies are accepted is", v.loadPolicies}, {"which pods are in CrashLoopBackOff is", v.loadPods},
	} {
		scopes := []string{""}
		if namespace != "" {
			scopes = slices.Compact([]string{operator, namespace})
		}
		switch err := step.load(ctx, r, operator, scopes); {
		case apierrors.IsForbidden(err):
			v.missing = append(v.missing, fmt.Sprintf("%s not known: %s", step.what, reasonOf(err)))
		case err != nil:
			return nil, err
		}
	}
	return v, nil
}

// loadKind reads the workloads of a kind.
func (v *census) loadKind(ctx context.Context, r *reader, kind workload.Kind, operator, namespace string, now time.Time) error {
	gvk := kind.GroupVersionKind()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := r.List(ctx, list, inNamespace(kind, namespace)...); err != nil {
		return err
	}
	for i := range list.Items {
		o := &list.Items[i]
		o.SetGroupVersionKind(gvk)
		s := &snapshot{target: target{kind: kind, key: client.ObjectKeyFromObject(o)}, operator: operator, now: now}
		if err := s.take(o); err != nil {
			return err
		}
		v.snapshots = append(v.snapshots, s)
	}
	return nil
}

// assign gives each workload its records.
func (v *census) assign(changes []v1alpha1.ChangeWorkload) {
	of := map[types.UID][]v1alpha1.ChangeWorkload{}
	for i := range changes {
		if ref := metav1.GetControllerOf(&changes[i]); ref != nil {
			of[ref.UID] = append(of[ref.UID], changes[i])
		}
	}
	for _, s := range v.snapshots {
		s.changes = of[s.workload.UID]
		newestFirst(s.changes)
	}
}

func (v *census) loadNamespaces(ctx context.Context, r *reader, _ string, scopes []string) error {
	known := map[string]*metav1.PartialObjectMetadata{}
	if namespace := scopes[len(scopes)-1]; namespace != "" {
		ns := cluster.NamespaceObject()
		switch err := r.Get(ctx, types.NamespacedName{Name: namespace}, ns); {
		case apierrors.IsNotFound(err):
			return noNamespace(namespace)
		case err != nil:
			return fmt.Errorf("get namespace %s: %w", namespace, err)
		}
		known[namespace] = ns
	} else {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
		if err := r.List(ctx, list, client.HasLabels{v1alpha1.EnrolledLabel}); err != nil {
			return fmt.Errorf("list namespaces: %w", err)
		}
		for i := range list.Items {
			known[list.Items[i].Name] = &list.Items[i]
		}
	}
	for _, s := range v.snapshots {
		name := s.workload.Namespace
		s.namespace = cmp.Or(known[name], &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return nil
}

func (v *census) loadSettings(ctx context.Context, r *reader, operator string, scopes []string) error {
	of := map[string][]v1alpha1.OpsConfigInfo{}
	for _, ns := range scopes {
		var list v1alpha1.OpsConfigInfoList
		if err := r.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return fmt.Errorf("list opsconfiginfoes: %w", err)
		}
		v.settings = append(v.settings, list.Items...)
	}
	for _, o := range v.settings {
		of[o.Namespace] = append(of[o.Namespace], o)
	}
	if len(of[operator]) == 0 {
		v.missing = append(v.missing, noSettings(operator))
		return nil
	}
	for _, s := range v.snapshots {
		inForce := settings.For(of[operator], of[s.workload.Namespace], s.workload.Annotations)
		inForce.ObserveOwned(s.workload.ObservingOwner())
		s.settings = &inForce
	}
	return nil
}

func (v *census) loadPolicies(ctx context.Context, r *reader, _ string, scopes []string) error {
	for _, ns := range scopes {
		var list v1alpha1.DefensePolicyList
		if err := r.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return fmt.Errorf("list defensepolicies: %w", err)
		}
		v.policies = append(v.policies, list.Items...)
	}
	return nil
}

// loadPods reads the pods in CrashLoopBackOff, in namespaces whose workloads have pods that are not Ready.
func (v *census) loadPods(ctx context.Context, r *reader, _ string, _ []string) error {
	type key struct {
		namespace string
		kind      schema.GroupKind
		name      string
	}
	unready := map[key]*snapshot{}
	namespaces := map[string]bool{}
	for _, s := range v.snapshots {
		if s.hasUnready() {
			unready[key{s.workload.Namespace, s.workload.GVK.GroupKind(), s.workload.Name}] = s
			namespaces[s.workload.Namespace] = true
		}
	}
	for namespace := range namespaces {
		var list corev1.PodList
		if err := r.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for i := range list.Items {
			kind, name := workloadOf(&list.Items[i])
			if pod := workload.ReadPod(&list.Items[i]); pod.CrashLoop != nil && unready[key{namespace, kind, name}] != nil {
				s := unready[key{namespace, kind, name}]
				s.pods = append(s.pods, pod)
			}
		}
	}
	return nil
}

// hasUnready reports whether a workload has pods that are not Ready, or fewer pods than it should have.
func (s *snapshot) hasUnready() bool {
	all := s.counts.Desired
	for _, field := range []string{"replicas", "currentNumberScheduled"} {
		n, _, _ := unstructured.NestedInt64(s.stored.Object, "status", field)
		all = max(all, n)
	}
	return s.counts.Ready < all
}

// workloadOf returns kind and name of the workload of a pod. The name of a ReplicaSet is the name of its Deployment and the hash in
// the labels of its pods.
func workloadOf(pod *corev1.Pod) (kind schema.GroupKind, name string) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return schema.GroupKind{}, ""
	}
	if deployment, ok := strings.CutSuffix(ref.Name, "-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]); ok && ref.Kind == "ReplicaSet" {
		return (workload.Deployment{}).GroupVersionKind().GroupKind(), deployment
	}
	return schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind(), ref.Name
}
