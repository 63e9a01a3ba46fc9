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

package world

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	jsonpatch "github.com/evanphx/json-patch/v5"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload/workloadtest"
)

func (a *api) update(ctx context.Context, _ client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
	var options client.UpdateOptions
	options.ApplyOptions(opts)
	next, err := typed(o)
	if err != nil {
		return err
	}
	if err := a.put(ctx, next, options.FieldManager, request{"update", "", whole(next)}); err != nil {
		return err
	}
	return into(a.objects[keyOf(next)], o)
}

// put stores a new version of an existing object.
func (a *api) put(ctx context.Context, next client.Object, fieldManager string, r request) error {
	before, err := a.stored(next)
	if err != nil {
		return err
	}
	if err := preconditions(before, next); err != nil {
		return err
	}
	next.SetUID(before.GetUID())
	next.SetCreationTimestamp(before.GetCreationTimestamp())
	next.SetGeneration(before.GetGeneration())
	keepStatus(before, next)
	if isWorkload(next) {
		if next, err = a.admit(ctx, before, next, fieldManager); err != nil {
			return err
		}
	}
	if err := invalid(next); err != nil {
		return err
	}
	numberTemplate(before, next)
	if specChanged(before, next) {
		next.SetGeneration(before.GetGeneration() + 1)
	}
	if same(before, next) {
		a.judgeRequest(ctx, before, r)
		return nil
	}
	if isWorkload(next) {
		next.SetManagedFields(requestedIn(before, next))
	}
	a.write(next)
	a.record(ctx, next, false, r)
	return nil
}

// requestedIn returns the managed fields of a workload: the annotations by which users request
// something, with the time of each.
func requestedIn(before, next client.Object) (fields []metav1.ManagedFieldsEntry) {
	for _, key := range []string{v1alpha1.RollbackToAnnotation, v1alpha1.UnquarantineAnnotation} {
		is, ok := next.GetAnnotations()[key]
		if !ok {
			continue
		}
		at := metav1.Now().Rfc3339Copy()
		for _, f := range before.GetManagedFields() {
			if f.Manager == key && before.GetAnnotations()[key] == is {
				at = *f.Time
			}
		}
		fields = append(fields, metav1.ManagedFieldsEntry{
			Manager: key, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &at, FieldsType: "FieldsV1",
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"f:annotations":{"f:%s":{}}}}`, key)),
		})
	}
	return fields
}

func preconditions(before, next client.Object) error {
	if uid := next.GetUID(); uid != "" && uid != before.GetUID() {
		// This is the text of an API server, which begins with a capital letter.
		return apierrors.NewConflict(resourceOf(before), before.GetName(),
			fmt.Errorf("%s failed: UID in precondition: %s, UID in object meta: %s", "Precondition", uid, before.GetUID()))
	}
	if version := next.GetResourceVersion(); version != "" && version != before.GetResourceVersion() {
		return apierrors.NewConflict(resourceOf(before), before.GetName(),
			errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// same reports whether a write changes nothing, and makes no new version.
func same(before, after client.Object) bool {
	b, a := asObject(before.DeepCopyObject()), asObject(after.DeepCopyObject())
	for _, o := range []client.Object{b, a} {
		o.SetResourceVersion("")
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return equality.Semantic.DeepEqual(b, a)
}

func keepStatus(before, after client.Object) {
	switch b := before.(type) {
	case *v1alpha1.ChangeWorkload:
		after.(*v1alpha1.ChangeWorkload).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *v1alpha1.ChangePod:
		after.(*v1alpha1.ChangePod).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *v1alpha1.OpsConfigInfo:
		after.(*v1alpha1.OpsConfigInfo).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *v1alpha1.DefensePolicy:
		after.(*v1alpha1.DefensePolicy).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *v1alpha1.DefenseEndpoint:
		after.(*v1alpha1.DefenseEndpoint).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *appsv1.Deployment:
		after.(*appsv1.Deployment).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *appsv1.StatefulSet:
		after.(*appsv1.StatefulSet).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *appsv1.DaemonSet:
		after.(*appsv1.DaemonSet).Status = *b.Status.DeepCopy() //nolint:errcheck // it has the same kind
	case *workloadtest.FleetObject:
		after.(*workloadtest.FleetObject).Status = b.Status //nolint:errcheck // it has the same kind
	case *workloadtest.CourseObject:
		after.(*workloadtest.CourseObject).Status = b.Status //nolint:errcheck // it has the same kind
	}
}

// keepAllButStatus returns the earlier object with the status of the later one.
func keepAllButStatus(before, after client.Object) client.Object {
	kept := asObject(before.DeepCopyObject())
	keepStatus(after, kept)
	switch a := after.(type) {
	case *appsv1.ReplicaSet:
		kept.(*appsv1.ReplicaSet).Status = a.Status //nolint:errcheck // it has the same kind
	case *corev1.Pod:
		kept.(*corev1.Pod).Status = a.Status //nolint:errcheck // it has the same kind
	case *batchv1.Job:
		kept.(*batchv1.Job).Status = a.Status //nolint:errcheck // it has the same kind
	}
	return kept
}

func specChanged(before, after client.Object) bool {
	spec := func(o client.Object) any {
		switch o := o.(type) {
		case *appsv1.Deployment:
			return o.Spec
		case *appsv1.ReplicaSet:
			return o.Spec
		case *appsv1.StatefulSet:
			return o.Spec
		case *appsv1.DaemonSet:
			return o.Spec
		case *v1alpha1.ChangeWorkload:
			return o.Spec
		case *v1alpha1.ChangePod:
			return o.Spec
		case *v1alpha1.OpsConfigInfo:
			return o.Spec
		case *v1alpha1.DefensePolicy:
			return o.Spec
		case *v1alpha1.DefenseEndpoint:
			return o.Spec
		case *workloadtest.FleetObject:
			return o.Spec
		case *workloadtest.CourseObject:
			return o.Spec
		default:
			return nil
		}
	}
	return !equality.Semantic.DeepEqual(spec(before), spec(after))
}

func (a *api) patch(ctx context.Context, _ client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	var options client.PatchOptions
	options.ApplyOptions(opts)
	next, data, err := a.patched(o, patch)
	if err != nil {
		return err
	}
	if err := a.put(ctx, next, options.FieldManager, request{"patch", "", sent(data)}); err != nil {
		return err
	}
	return into(a.objects[keyOf(next)], o)
}

// patched returns the stored object after a patch.
func (a *api) patched(o client.Object, patch client.Patch) (client.Object, []byte, error) {
	data, err := patch.Data(o)
	if err != nil {
		return nil, nil, err
	}
	before, err := a.stored(o)
	if err != nil {
		return nil, nil, err
	}
	current := textOf(before)
	var text []byte
	switch patch.Type() {
	case types.MergePatchType:
		text, err = jsonpatch.MergePatch(current, data)
	case types.JSONPatchType:
		var operations jsonpatch.Patch
		if operations, err = jsonpatch.DecodePatch(data); err == nil {
			text, err = operations.Apply(current)
		}
		for _, o := range operations {
			if _, ok := o["value"]; !ok && o.Kind() == "test" {
				panic(fmt.Sprintf("the API server of Kubernetes 1.33 panics at this patch: %s", data))
			}
		}
		if err != nil {
			// This is the answer of an API server to a failed test.
			return nil, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", resourceOf(before),
				before.GetName(), err.Error(), 0, false)
		}
	default:
		err = fmt.Errorf("patches of type %s are not supported", patch.Type())
	}
	if err != nil {
		return nil, nil, err
	}
	made, err := scheme.New(gvkOf(before))
	if err != nil {
		return nil, nil, err
	}
	next := asObject(made)
	if err := json.Unmarshal(text, next); err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return next, data, nil
}

func (a *api) updateStatus(ctx context.Context, _ client.Client, _ string, o client.Object, _ ...client.SubResourceUpdateOption) error {
	next, err := typed(o)
	if err != nil {
		return err
	}
	return a.putStatus(ctx, o, next, request{"update", "status", whole(next)})
}

func (a *api) patchStatus(
	ctx context.Context, _ client.Client, _ string, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption,
) error {
	next, data, err := a.patched(o, patch)
	if err != nil {
		return err
	}
	return a.putStatus(ctx, o, next, request{"patch", "status", sent(data)})
}

func (a *api) putStatus(ctx context.Context, o, next client.Object, r request) error {
	before, err := a.stored(next)
	if err != nil {
		return err
	}
	if err := preconditions(before, next); err != nil {
		return err
	}
	next = keepAllButStatus(before, next)
	if same(before, next) {
		a.judgeRequest(ctx, before, r)
		return into(before, o)
	}
	a.write(next)
	a.record(ctx, next, false, r)
	return into(next, o)
}
