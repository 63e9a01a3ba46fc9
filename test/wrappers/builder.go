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

// Package wrappers builds the objects of tests:
//
//	d := wrappers.MakeDeployment("shop", "web").Replicas(3).Obj()
//
// Make functions return complete objects: an API server accepts them, and they have no field that an API server would set, such
// as a UID. Methods change an object and return the builder. With makes other changes, Of sets the owner as its controller
// does, and Obj ends the chain.
//
// The package imports only the API types of the operator, so that the tests of any package can use it.
package wrappers

import (
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// builder is embedded in the builders of all kinds: T is the object, B the builder of its kind.
type builder[T any, B any] struct {
	object *T
	meta   *metav1.ObjectMeta
	self   B
}

// Obj returns the object itself, not a copy.
func (b *builder[T, B]) Obj() *T { return b.object }

// With makes other changes to the object, in order.
func (b *builder[T, B]) With(changes ...func(*T)) B {
	for _, change := range changes {
		change(b.object)
	}
	return b.self
}

// Label sets a label.
func (b *builder[T, B]) Label(key, value string) B {
	b.meta.Labels = set(b.meta.Labels, key, value)
	return b.self
}

// WithoutLabel removes a label.
func (b *builder[T, B]) WithoutLabel(key string) B {
	delete(b.meta.Labels, key)
	return b.self
}

// Annotation sets an annotation.
func (b *builder[T, B]) Annotation(key, value string) B {
	b.meta.Annotations = set(b.meta.Annotations, key, value)
	return b.self
}

// Version sets the label that holds the version of the pod template.
func (b *builder[T, B]) Version(version string) B { return b.Label(v1alpha1.VersionLabel, version) }

// UID sets the UID.
func (b *builder[T, B]) UID(uid types.UID) B {
	b.meta.UID = uid
	return b.self
}

// ResourceVersion sets the resource version.
func (b *builder[T, B]) ResourceVersion(version string) B {
	b.meta.ResourceVersion = version
	return b.self
}

// Generation sets the generation.
func (b *builder[T, B]) Generation(n int64) B {
	b.meta.Generation = n
	return b.self
}

// GenerateName lets the API server make a name of a prefix.
func (b *builder[T, B]) GenerateName(prefix string) B {
	b.meta.Name, b.meta.GenerateName = "", prefix
	return b.self
}

// Created sets the creation timestamp.
func (b *builder[T, B]) Created(at time.Time) B {
	b.meta.CreationTimestamp = metav1.NewTime(at)
	return b.self
}

// Finalizers adds finalizers.
func (b *builder[T, B]) Finalizers(names ...string) B {
	b.meta.Finalizers = append(b.meta.Finalizers, names...)
	return b.self
}

// Deleted sets the deletion timestamp. A fake client also needs a finalizer.
func (b *builder[T, B]) Deleted(at time.Time) B {
	b.meta.DeletionTimestamp = new(metav1.NewTime(at))
	return b.self
}

// OwnedBy makes another object the controller and the only owner.
func (b *builder[T, B]) OwnedBy(owner client.Object) B {
	b.meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk(owner))}
	return b.self
}

// Orphaned removes all owners.
func (b *builder[T, B]) Orphaned() B {
	b.meta.OwnerReferences = nil
	return b.self
}

// gvk returns the kind of an object that may be an owner. Objects in memory do not have it.
func gvk(owner client.Object) schema.GroupVersionKind {
	switch owner.(type) {
	case *appsv1.Deployment:
		return appsv1.SchemeGroupVersion.WithKind("Deployment")
	case *appsv1.ReplicaSet:
		return appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
	case *corev1.Namespace:
		return corev1.SchemeGroupVersion.WithKind("Namespace")
	case *v1alpha1.ChangeWorkload:
		return v1alpha1.GroupVersion.WithKind("ChangeWorkload")
	default:
		panic(fmt.Sprintf("gvk does not know %T: add it here", owner))
	}
}

// set sets a value in a map, or in a new map if it is nil.
func set(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// podTemplate returns a template of one container that sleeps, with the label app.
func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: appLabel(app)}, Spec: podSpec()}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox", Command: []string{"/bin/sleep", "infinity"}}}}
}

func appLabel(app string) map[string]string { return map[string]string{"app": app} }

// instance returns a copy of a template with further labels.
func instance(t *corev1.PodTemplateSpec, labels map[string]string) corev1.PodTemplateSpec {
	c := t.DeepCopy()
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	maps.Copy(c.Labels, labels)
	return *c
}
