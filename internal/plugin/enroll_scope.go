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
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// scope selects workloads of a namespace, or of all namespaces if it is empty.
type scope struct {
	namespace string
	has       func(t target, annotations map[string]string) bool
}

// each calls do for each workload of the scope, with its metadata.
func (c *connection) each(ctx context.Context, api client.Client, s *scope, do func(target, *metav1.PartialObjectMetadata)) error {
	kinds, err := c.kinds(ctx, api)
	if err != nil {
		return err
	}
	for _, kind := range kinds.Kinds() {
		gvk := kind.GroupVersionKind()
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := newReader(api).List(ctx, list, inNamespace(kind, s.namespace)...); err != nil {
			if c.skips(ctx, kind, err) {
				continue
			}
			return fmt.Errorf("list %s: %w", kind.Resource(), err)
		}
		for i := range list.Items {
			m := &list.Items[i]
			if t := (target{kind: kind, key: client.ObjectKeyFromObject(m)}); m.DeletionTimestamp == nil && s.has(t, m.Annotations) {
				do(t, m)
			}
		}
	}
	return nil
}

// takenBack lists what the operator takes back from a workload that is no longer defended, or enters observe mode. halts are the
// words for a halt of its kind.
func takenBack(labels, annotations map[string]string, halts *workload.Words) (what []string) {
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

// staysBlocked reports whether a user set a block, which stays.
func staysBlocked(labels, annotations map[string]string) bool {
	_, blocked := labels[v1alpha1.SuspendLabel]
	return blocked && annotations[v1alpha1.SuspendedByAnnotation] == ""
}

// describeTakenBack prints what the operator takes back, and what stays.
func (c *changer) describeTakenBack(ctx context.Context, api client.Client, of *scope) error {
	return c.each(ctx, api, of, func(t target, m *metav1.PartialObjectMetadata) {
		if what := takenBack(m.Labels, m.Annotations, t.halts()); len(what) > 0 {
			printf(c.Out, "%s in %s: the operator takes back %s\n", t, t.key.Namespace, strings.Join(what, ", "))
		}
		if staysBlocked(m.Labels, m.Annotations) {
			printf(c.Out, "%s in %s: a user set its block, which stays; to remove it: %s\n", t, t.key.Namespace,
				c.kubectl(t.key.Namespace, "label", t.String(), v1alpha1.SuspendLabel+"-"))
		}
	})
}

// awaitTakenBack waits until the operator took back what it had set, if the user wants to wait.
func (c *changer) awaitTakenBack(ctx context.Context, api client.WithWatch, of *scope, f enrollFlags) error {
	if !f.wait || c.pretends() {
		return nil
	}
	watch := &watcher{api: api, timeout: f.timeout, trouble: c.printTrouble}
	kinds, err := c.kinds(ctx, api)
	if err != nil {
		return err
	}
	for _, kind := range kinds.Kinds() {
		watch.what = append(watch.what, watched{kind.ObjectList(), inNamespace(kind, of.namespace)})
	}
	var left []string
	err = watch.until(ctx, func(ctx context.Context) (bool, error) {
		left = nil
		err := c.each(ctx, api, of, func(t target, m *metav1.PartialObjectMetadata) {
			if what := takenBack(m.Labels, m.Annotations, t.halts()); len(what) > 0 {
				left = append(left, fmt.Sprintf("%s in %s: %s", t, t.key.Namespace, strings.Join(what, ", ")))
			}
		})
		if err != nil || len(left) == 0 {
			return err == nil, err
		}
		return false, nil
	})
	switch {
	case errors.Is(err, errTimedOut):
		return remedy(fmt.Errorf("the operator has not taken back in %s: %s", f.timeout, named(left)),
			"see whether it runs: "+c.commandIn("", "check"))
	case err != nil:
		return err
	}
	printf(c.Out, "nothing of the operator is left to take back\n")
	return nil
}

// describeNamespace prints what enrolling a namespace means for its workloads.
func (c *changer) describeNamespace(ctx context.Context, r client.Client, namespace string) error {
	found := inventory{}
	kinds, err := c.kinds(ctx, r)
	if err != nil {
		return err
	}
	for _, kind := range kinds.Kinds() {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind.GroupVersionKind())
		if err := r.List(ctx, list, inNamespace(kind, namespace)...); err != nil {
			if c.skips(ctx, kind, err) {
				continue
			}
			return fmt.Errorf("list %s of %s: %w", kind.Resource(), namespace, err)
		}
		for i := range list.Items {
			list.Items[i].SetGroupVersionKind(kind.GroupVersionKind())
			if err := found.add(kind, &list.Items[i]); err != nil {
				return err
			}
		}
	}
	for _, line := range found.describe(namespace) {
		printf(c.Out, "%s\n", line)
	}
	return nil
}
