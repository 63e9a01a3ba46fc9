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
// What Make returns is complete: an API server takes it as it is, and it has
// nothing that one would add, a UID above all. Methods change it and return the
// builder, With does what no method is for, and Obj ends the chain. Of ties an
// object to its owner, as the controller that makes such objects does.
//
// The package knows the API types and nothing else of the operator, so that the
// tests inside of any package can use it. It has no opinion about test
// frameworks.
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

// builder is what the builders of all kinds have in common: T is the object, B
// the builder of its kind.
type builder[T any, B any] struct {
	object *T
	meta   *metav1.ObjectMeta
	self   B
}

// Obj returns the object. It is the builder's own: the builder changes it on.
func (b *builder[T, B]) Obj() *T { return b.object }

// With makes changes to the object that no method is for, in order.
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

// UID sets the UID, which an API server would.
func (b *builder[T, B]) UID(uid types.UID) B {
	b.meta.UID = uid
	return b.self
}

// ResourceVersion sets the resource version, which an API server would.
func (b *builder[T, B]) ResourceVersion(version string) B {
	b.meta.ResourceVersion = version
	return b.self
}

// Generation sets the generation, which an API server would.
func (b *builder[T, B]) Generation(n int64) B {
	b.meta.Generation = n
	return b.self
}

// GenerateName lets the API server make a name of a prefix.
func (b *builder[T, B]) GenerateName(prefix string) B {
	b.meta.Name, b.meta.GenerateName = "", prefix
	return b.self
}

// Created says when the object was created, which an API server would.
func (b *builder[T, B]) Created(at time.Time) B {
	b.meta.CreationTimestamp = metav1.NewTime(at)
	return b.self
}

// Finalizers adds finalizers.
func (b *builder[T, B]) Finalizers(names ...string) B {
	b.meta.Finalizers = append(b.meta.Finalizers, names...)
	return b.self
}

// Deleted says when the object's deletion began. A fake client wants a
// finalizer, too.
func (b *builder[T, B]) Deleted(at time.Time) B {
	b.meta.DeletionTimestamp = new(metav1.NewTime(at))
	return b.self
}

// OwnedBy makes an object the controller of this one, and the only owner.
func (b *builder[T, B]) OwnedBy(owner client.Object) B {
	b.meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk(owner))}
	return b.self
}

// Orphaned removes all owners.
func (b *builder[T, B]) Orphaned() B {
	b.meta.OwnerReferences = nil
	return b.self
}

// gvk is the kind of an object that may be an owner. Objects in memory do not
// say their own.
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
		panic(fmt.Sprintf("a %T owns nothing in any test so far: add it here", owner))
	}
}

// set returns the map with a value in it, a new one if there is none.
func set(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// podTemplate is one container that waits for ever, with a label app.
func podTemplate(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: appLabel(app)}, Spec: podSpec()}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox", Command: []string{"/bin/sleep", "infinity"}}}}
}

func appLabel(app string) map[string]string { return map[string]string{"app": app} }

// instance is a template with the labels that tell its instances from others.
func instance(t *corev1.PodTemplateSpec, labels map[string]string) corev1.PodTemplateSpec {
	c := t.DeepCopy()
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	maps.Copy(c.Labels, labels)
	return *c
}
