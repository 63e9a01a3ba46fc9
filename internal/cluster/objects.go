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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// OwnLabels returns the labels of an object of ours for a version of a workload.
func OwnLabels(w *workload.Workload, version string) map[string]string {
	name := record.WorkloadNameLabelValue(w.Name)
	labels := map[string]string{
		v1alpha1.VersionLabel:      version,
		v1alpha1.WorkloadKindLabel: w.GVK.Kind,
		v1alpha1.WorkloadNameLabel: name,
	}
	if w.GVK.GroupKind() == deployments {
		labels[v1alpha1.DeploymentNameLabel] = name
	}
	return labels
}

// deployments is the kind whose name has a label of its own.
var deployments = workload.Deployment{}.GroupVersionKind().GroupKind()

// Reference returns the reference from an object of ours to a workload.
func Reference(w *workload.Workload) *v1alpha1.WorkloadReference {
	apiVersion, kind := w.GVK.ToAPIVersionAndKind()
	return &v1alpha1.WorkloadReference{APIVersion: apiVersion, Kind: kind, Name: w.Name, UID: string(w.UID)}
}

// OwnerReference returns a reference that makes the garbage collector remove an object
// with its owner.
func OwnerReference(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &yes, BlockOwnerDeletion: &yes}
}

// IsCurrent returns a conflict unless the API server has a release as it was read.
func (v View) IsCurrent(ctx context.Context, change *v1alpha1.ChangeWorkload) error {
	var live v1alpha1.ChangeWorkload
	if err := v.Live.Get(ctx, client.ObjectKeyFromObject(change), &live); err != nil {
		return fmt.Errorf("get changeworkload %s: %w", change.Name, err)
	}
	if live.ResourceVersion != change.ResourceVersion {
		of := v1alpha1.GroupVersion.WithResource("changeworkloads").GroupResource()
		return apierrors.NewConflict(of, change.Name, errors.New("it was read in an older version"))
	}
	return nil
}

// RemoveOrphan removes an object of ours with the name of a new one, if its owner was
// deleted without its dependents. An object that has an owner stays: garbage collection
// removes it, or it was created just now and is not in the cache yet.
func (c *Cluster) RemoveOrphan(ctx context.Context, inTheWay client.Object) error {
	orphan := &metav1.PartialObjectMetadata{}
	gvk, err := c.Client.GroupVersionKindFor(inTheWay)
	if err != nil {
		return err
	}
	orphan.SetGroupVersionKind(gvk)
	if err := c.Live.Get(ctx, client.ObjectKeyFromObject(inTheWay), orphan); err != nil || metav1.GetControllerOf(orphan) != nil {
		return client.IgnoreNotFound(err)
	}
	inTheWay.SetUID(orphan.UID)
	log.FromContext(ctx).Info("removing an object that a deleted owner left behind", "kind", gvk.Kind, "name", orphan.Name)
	return client.IgnoreNotFound(c.Client.Delete(ctx, inTheWay, client.Preconditions{UID: &orphan.UID}))
}
