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
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
)

const (
	// lastAppliedAnnotation is where kubectl apply keeps what was applied.
	lastAppliedAnnotation = "kubectl.kubernetes.io/last-applied-configuration"
	// clientSideManager and serverSideManager are the field managers of kubectl apply,
	// so that a repair is what its next apply goes on from.
	clientSideManager = "kubectl-client-side-apply"
	serverSideManager = "kubectl"
)

// applying makes a repair by a manifest, as kubectl apply of it would: on the client's
// side, or on the server's where the workload is applied there.
func (c *changer) applying(ctx context.Context, api client.Client, s *situation, file string) (*repairing, error) {
	manifest, err := c.manifestOf(s, file)
	if err != nil {
		return nil, err
	}
	if managers := serverSideManagers(s.stored); len(managers) > 0 {
		if !slices.Contains(managers, serverSideManager) {
			return nil, remedy(fmt.Errorf("%s is applied by %s, whose fields a manifest would take away", s.target, strings.Join(managers, ", ")),
				"repair it there: let its next release pass with "+c.command(s.target, "repair", "--next"))
		}
		// What it changes only the API server can tell.
		return &repairing{make: func(dryRun []string) (*unstructured.Unstructured, error) {
			return c.applyOnServer(ctx, api, s, manifest, dryRun)
		}}, nil
	}
	return &repairing{
		changes: func() (bool, error) { return changesTemplate(api, s, manifest) },
		make: func(dryRun []string) (*unstructured.Unstructured, error) {
			return c.applyOnClient(ctx, api, s, manifest, dryRun)
		},
	}, nil
}

// serverSideManagers are those that apply a workload on the server's side, but for the
// operator itself.
func serverSideManagers(stored *unstructured.Unstructured) (managers []string) {
	for _, entry := range stored.GetManagedFields() {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == "" && entry.Manager != v1alpha1.FieldManager {
			managers = append(managers, entry.Manager)
		}
	}
	slices.Sort(managers)
	return slices.Compact(managers)
}

// manifestOf reads the workload out of a file, which may have other objects, too.
func (c *changer) manifestOf(s *situation, file string) (*unstructured.Unstructured, error) {
	infos, err := resource.NewBuilder(c.flags).Unstructured().NamespaceParam(s.key.Namespace).DefaultNamespace().
		FilenameParam(false, &resource.FilenameOptions{Filenames: []string{file}}).Flatten().Local().Do().Infos()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	var found *unstructured.Unstructured
	var others []string
	for _, info := range infos {
		o, ok := info.Object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		gvk := s.kind.GroupVersionKind()
		mine := o.GroupVersionKind().GroupKind() == gvk.GroupKind() && o.GetName() == s.key.Name && (o.GetNamespace() == "" || o.GetNamespace() == s.key.Namespace)
		switch {
		case mine && found != nil:
			return nil, remedy(fmt.Errorf("%s has %s twice", file, s.target), "leave one of them")
		case mine:
			found = o
		default:
			others = append(others, strings.ToLower(o.GetKind())+"/"+o.GetName())
		}
	}
	if found == nil {
		return nil, remedy(fmt.Errorf("%s has no %s of the namespace %s", file, s.target, s.key.Namespace), "it has "+strings.Join(others, ", "))
	}
	if found.GroupVersionKind() != s.kind.GroupVersionKind() {
		return nil, remedy(fmt.Errorf("%s is of %s", s.target, found.GetAPIVersion()), "write it as "+s.stored.GetAPIVersion())
	}
	if len(others) > 0 {
		printf(c.Out, "not applied, as only the workload is: %s; what the repair needs of these, apply first: %s\n", strings.Join(others, ", "), command("apply", "-f", file))
	}
	found.SetNamespace(s.key.Namespace)
	return found, nil
}

// withOverride is a copy that has the label.
func withOverride(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[v1alpha1.IgnoredSuspendLabel] = v1alpha1.IgnoredSuspendValue
	o.SetLabels(labels)
	return o
}

// applyOnServer applies a manifest as kubectl apply --server-side does.
func (c *changer) applyOnServer(ctx context.Context, api client.Client, s *situation, manifest *unstructured.Unstructured, dryRun []string) (*unstructured.Unstructured, error) {
	applied := withOverride(manifest)
	applied.SetUID(s.w.UID)
	data, err := json.Marshal(applied.Object)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", s.target, err)
	}
	options := &client.PatchOptions{DryRun: dryRun, FieldManager: serverSideManager}
	if err := api.Patch(ctx, applied, client.RawPatch(types.ApplyPatchType, data), options); err != nil {
		if cluster.Outdated(err) {
			return nil, remedy(fmt.Errorf("apply %s: %w", s.target, err), "resolve the conflict, or let the next release pass with "+c.command(s.target, "repair", "--next")+" and apply it with kubectl")
		}
		return nil, fmt.Errorf("apply %s: %w", s.target, err)
	}
	return applied, nil
}

// applyOnClient applies a manifest as kubectl apply does: it removes what the last
// applied one had and this one has not, and leaves what others set.
func (c *changer) applyOnClient(ctx context.Context, api client.Client, s *situation, manifest *unstructured.Unstructured, dryRun []string) (*unstructured.Unstructured, error) {
	modified, err := lastApplied(manifest)
	if err != nil {
		return nil, err
	}
	patchType, patch, err := threeWay(api, s.stored, modified)
	if err != nil {
		return nil, fmt.Errorf("compare %s with what is stored: %w", s.target, err)
	}
	patched := s.stored.DeepCopy()
	if err := api.Patch(ctx, patched, client.RawPatch(patchType, patch), &client.PatchOptions{DryRun: dryRun, FieldManager: clientSideManager}); err != nil {
		if cluster.Outdated(err) {
			return nil, remedy(fmt.Errorf("%s was changed by somebody else at this moment", s.target), "look at it again, and repeat the command")
		}
		return nil, fmt.Errorf("apply %s: %w", s.target, err)
	}
	return patched, nil
}

// changesTemplate says that applying a manifest changes something in the template, be it
// only what the API server makes equal again.
func changesTemplate(api client.Client, s *situation, manifest *unstructured.Unstructured) (bool, error) {
	modified, err := lastApplied(manifest)
	if err != nil {
		return false, err
	}
	_, patch, err := threeWay(api, s.stored, modified)
	if err != nil {
		return false, fmt.Errorf("compare %s with what is stored: %w", s.target, err)
	}
	var content map[string]any
	if err := json.Unmarshal(patch, &content); err != nil {
		return false, fmt.Errorf("read a patch of %s: %w", s.target, err)
	}
	_, changes, err := unstructured.NestedFieldNoCopy(content, s.kind.TemplatePath()...)
	return changes || err != nil, nil
}

// lastApplied is a manifest with the annotation in which kubectl apply keeps it.
func lastApplied(manifest *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	plain := manifest.DeepCopy()
	annotations := plain.GetAnnotations()
	delete(annotations, lastAppliedAnnotation)
	if annotations == nil {
		annotations = map[string]string{}
	}
	// As kubectl has it: also where there are none.
	if err := unstructured.SetNestedStringMap(plain.Object, annotations, "metadata", "annotations"); err != nil {
		return nil, err
	}
	data, err := plain.MarshalJSON() // ends with a line break, as kubectl has it
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	annotations[lastAppliedAnnotation] = string(data)
	plain.SetAnnotations(annotations)
	return plain, nil
}

// threeWay is the patch that leads from what is stored to a manifest, with the label.
func threeWay(api client.Client, stored, modified *unstructured.Unstructured) (types.PatchType, []byte, error) {
	original := []byte(stored.GetAnnotations()[lastAppliedAnnotation])
	live := stored.DeepCopy()
	current, err := live.MarshalJSON()
	if err != nil {
		return "", nil, err
	}
	wanted, err := withOverride(modified).MarshalJSON()
	if err != nil {
		return "", nil, err
	}
	if typed, err := api.Scheme().New(stored.GroupVersionKind()); err == nil {
		schema, err := strategicpatch.NewPatchMetaFromStruct(typed)
		if err != nil {
			return "", nil, err
		}
		patch, err := strategicpatch.CreateThreeWayMergePatch(original, wanted, current, schema, true)
		return types.StrategicMergePatchType, guarded(patch, stored), err
	}
	if len(original) == 0 {
		original = []byte("{}")
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(original, wanted, current)
	return types.MergePatchType, guarded(patch, stored), err
}

// guarded lets a patch apply only to the object that was read, and not to one of its
// name that was created later.
func guarded(patch []byte, stored client.Object) []byte {
	var content map[string]any
	if err := json.Unmarshal(patch, &content); err != nil {
		return patch // the API server says what is wrong
	}
	metadata, _ := content["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["uid"] = string(stored.GetUID())
	content["metadata"] = metadata
	data, err := json.Marshal(content)
	if err != nil {
		return patch
	}
	return data
}
