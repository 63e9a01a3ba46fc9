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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// restsFor is how many times as long as a look at all workloads took nothing is read
// after it.
const restsFor = 5

// outlook is what is in force for many workloads once a setting is changed.
type outlook struct {
	// operator and own are the settings, own by namespace.
	operator []v1alpha1.OpsConfigInfo
	own      map[string][]v1alpha1.OpsConfigInfo
	// enrolled are the enrolled namespaces; nil where that is not known.
	enrolled []string
}

// observes says whether a workload is in observe mode, which the operator takes back for
// what it had set.
func (o *outlook) observes(namespace string, annotations map[string]string) bool {
	if o.enrolled != nil && !slices.Contains(o.enrolled, namespace) {
		return false
	}
	return settings.For(o.operator, o.own[namespace], annotations).Observe
}

// set gives the setting observe a value, in the operator's settings where namespace is
// empty; nil removes it.
func (o *outlook) set(namespace string, enable *bool) {
	objects := o.own[namespace]
	if namespace == "" {
		objects = o.operator
	}
	made := v1alpha1.OpsConfigInfo{Spec: v1alpha1.OpsConfigInfoSpec{Type: v1alpha1.TypeObserve}}
	made.Name = settings.NameObserve
	var others []v1alpha1.OpsConfigInfo
	for i := range objects {
		if objects[i].Name == settings.NameObserve {
			made = *objects[i].DeepCopy()
		} else {
			others = append(others, objects[i])
		}
	}
	if enable != nil {
		made.Spec.Enable = *enable
		others = append(others, made)
	}
	if namespace == "" {
		o.operator = others
		return
	}
	o.own[namespace] = others
}

// lockedObserve is the setting observe of the operator, where it leaves no namespace and
// no workload a value of its own; else nil.
func lockedObserve(operator []v1alpha1.OpsConfigInfo) *v1alpha1.OpsConfigInfo {
	i := slices.IndexFunc(operator, func(o v1alpha1.OpsConfigInfo) bool { return o.Name == settings.NameObserve && o.Spec.Locked })
	if i < 0 {
		return nil
	}
	return &operator[i]
}

// leavingObserve is the setting observe of an operator that was told to leave by an
// uninstall; nil where it was not.
func leavingObserve(operator []v1alpha1.OpsConfigInfo) *v1alpha1.OpsConfigInfo {
	i := slices.IndexFunc(operator, func(o v1alpha1.OpsConfigInfo) bool {
		_, leaving := settings.BeforeLeaving(o.Spec)
		return o.Name == settings.NameObserve && leaving
	})
	if i < 0 {
		return nil
	}
	return &operator[i]
}

// stayAfterAll turns observing off that an uninstall turned on, with the lock, and lets
// the setting no longer go with the Deployment.
func (c *changer) stayAfterAll(ctx context.Context, api client.Client, left *v1alpha1.OpsConfigInfo) error {
	was, _ := settings.BeforeLeaving(left.Spec)
	name := "opsconfiginfo/" + settings.NameObserve
	patch, err := json.Marshal(map[string]any{
		// As it was read: an uninstall may be under way.
		"metadata": map[string]any{"uid": left.UID, "resourceVersion": left.ResourceVersion, "ownerReferences": nil},
		"spec":     map[string]any{"enable": false, "locked": was.Locked, "remark": was.Remark},
	})
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	what := fmt.Sprintf("%s: an uninstall turned it on, and did not end: set enable: false, locked: %t in %s", name, was.Locked, left.Namespace)
	return c.change(what, name+" patched", func(dryRun []string) error {
		if err := api.Patch(ctx, left, client.RawPatch(types.MergePatchType, patch), patchOptions(dryRun)); err != nil {
			return fmt.Errorf("patch %s in %s: %w", name, left.Namespace, err)
		}
		return nil
	})
}

// mustBeUnlocked is the error for a value of a namespace or of a workload that would be of
// no effect.
func (c *connection) mustBeUnlocked(operator []v1alpha1.OpsConfigInfo) error {
	locked := lockedObserve(operator)
	if locked == nil {
		return nil
	}
	return remedy(fmt.Errorf("the setting observe of the operator, in %s, is locked, with enable: %t: a value of a namespace or of a workload has no effect", locked.Namespace, locked.Spec.Enable),
		"change it for all: "+c.commandIn("", "observe", "--cluster")+", or with --off; or unlock it: "+
			c.kubectl(locked.Namespace, "patch", "opsconfiginfo", settings.NameObserve, "--type=merge", "-p", `{"spec":{"locked":false}}`))
}

// operatorSettings are those of the operator; none where the user may not read them.
func (c *connection) operatorSettings(ctx context.Context, api client.Client, operator string) ([]v1alpha1.OpsConfigInfo, error) {
	var list v1alpha1.OpsConfigInfoList
	operator = operatorIn(ctx, api, operator)
	switch err := api.List(ctx, &list, client.InNamespace(operator)); {
	case apierrors.IsForbidden(err):
		printf(c.ErrOut, "it is not known whether the setting observe is locked: %s\n", reasonOf(err))
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list opsconfiginfoes of %s: %w", operator, err)
	}
	return list.Items, nil
}

// outlookOf reads what is in force in a namespace, or in all.
func outlookOf(ctx context.Context, api client.Client, operator []v1alpha1.OpsConfigInfo, namespace string) (*outlook, error) {
	o := &outlook{operator: operator, own: map[string][]v1alpha1.OpsConfigInfo{}}
	var list v1alpha1.OpsConfigInfoList
	if err := api.List(ctx, &list, client.InNamespace(namespace)); err != nil && !apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("list opsconfiginfoes: %w", err)
	}
	for i := range list.Items {
		in := list.Items[i].Namespace
		if len(operator) == 0 || in != operator[0].Namespace {
			o.own[in] = append(o.own[in], list.Items[i])
		}
	}
	view, err := cluster.View{Cached: api}, error(nil)
	if namespace == "" {
		o.enrolled, err = view.EnrolledNamespaces(ctx)
	} else {
		var ns cluster.Namespace
		if ns, err = view.Namespace(ctx, namespace); ns.Enrolled {
			o.enrolled = []string{namespace}
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		o.enrolled = nil
	case err != nil:
		return nil, err
	case o.enrolled == nil:
		o.enrolled = []string{}
	}
	return o, nil
}

// marked calls for each workload of a namespace, or of all, that is in observe mode, and
// to which something was done. All of them are read by their metadata.
func (o *outlook) marked(ctx context.Context, api client.Client, namespace string, do func(target, *unstructured.Unstructured)) error {
	for _, kind := range workload.Defended().Kinds() {
		gvk := kind.GroupVersionKind()
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := newReader(api, api.Scheme()).List(ctx, list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list %s: %w", kind.Resource(), err)
		}
		for i := range list.Items {
			m := &list.Items[i]
			if m.DeletionTimestamp != nil || !o.observes(m.Namespace, m.Annotations) {
				continue
			}
			stored := &unstructured.Unstructured{}
			stored.SetGroupVersionKind(gvk)
			stored.SetLabels(m.Labels)
			stored.SetAnnotations(m.Annotations)
			do(target{kind: kind, key: client.ObjectKeyFromObject(m)}, stored)
		}
	}
	return nil
}

// tellWide says what the operator takes back in a namespace, or anywhere, and how many
// workloads that are.
func (c *changer) tellWide(ctx context.Context, api client.Client, o *outlook, namespace string) (workloads int, err error) {
	err = o.marked(ctx, api, namespace, func(t target, stored *unstructured.Unstructured) {
		for _, line := range describeTakenBack(t, stored) {
			if namespace == "" {
				line = t.key.Namespace + ": " + line
			}
			printf(c.Out, "%s\n", line)
		}
		if len(takenBack(stored.GetLabels(), stored.GetAnnotations(), t.halts())) > 0 {
			workloads++
		}
	})
	return workloads, err
}

// awaitWide waits until the operator took back what it had set, in a namespace or
// anywhere. All workloads of a large cluster are not read all the time.
func (c *changer) awaitWide(ctx context.Context, api client.Client, o *outlook, namespace string, timeout time.Duration) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errTimedOut)
		defer cancel()
	}
	failing := false
	for {
		var left []string
		begin := time.Now()
		err := o.marked(ctx, api, namespace, func(t target, stored *unstructured.Unstructured) {
			if what := takenBack(stored.GetLabels(), stored.GetAnnotations(), t.halts()); len(what) > 0 {
				left = append(left, fmt.Sprintf("%s in %s: %s", t, t.key.Namespace, strings.Join(what, ", ")))
			}
		})
		switch {
		case err == nil && len(left) == 0:
			printf(c.Out, "nothing of the operator is left to take back\n")
			return nil
		case err != nil && ctx.Err() == nil && !passes(err):
			return err
		case err != nil && ctx.Err() == nil && !failing:
			c.tellTrouble(err)
		}
		failing = err != nil
		if pause(ctx, max(time.Second, restsFor*time.Since(begin))) {
			continue
		}
		if !errors.Is(context.Cause(ctx), errTimedOut) {
			return ctx.Err()
		}
		return remedy(fmt.Errorf("the operator has not taken back in %s: %s", timeout, named(left)), "see whether it runs: "+c.commandIn("", "check"))
	}
}
