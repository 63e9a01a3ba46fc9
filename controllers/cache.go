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

package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/pages"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// NewScheme returns a scheme with the kinds that the operator reads and writes.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// CacheOptions returns which objects, and which of their fields, are cached. operator is the
// namespace of the operator.
func CacheOptions(kinds *workload.Registry, operator string) cache.Options {
	byObject := map[client.Object]cache.ByObject{
		&corev1.Pod{}:                {Transform: kinds.TrimPod},
		cluster.NamespaceObject():    {Transform: workload.TrimNamespace},
		&appsv1.ControllerRevision{}: {Label: revisionsRead(kinds), Transform: workload.TrimRevision},
		&v1alpha1.DefensePolicy{}:    {Transform: workload.TrimPolicy},
		&v1alpha1.DefenseEndpoint{}:  {Namespaces: map[string]cache.Config{operator: {}}, Transform: workload.TrimOwn},
		crdObject():                  {Transform: trimCRD},
		&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{operator: {
			FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, cluster.LimitName),
		}}},
	}
	for _, kind := range kinds.Fixed() {
		for object, transform := range kind.Transforms() {
			byObject[object] = cache.ByObject{Transform: transform}
		}
	}
	for _, own := range []client.Object{&v1alpha1.ChangeWorkload{}, &v1alpha1.ChangePod{}, &v1alpha1.OpsConfigInfo{}} {
		byObject[own] = cache.ByObject{Transform: workload.TrimOwn}
	}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject:         byObject,
		NewInformer:      pages.NewInformers(),
	}
}

// revisionsRead selects the ControllerRevisions that are read: all, if a kind stores the
// templates of its workloads in them, otherwise only those with the operator's label. Users can
// set the label, too, so workload.Remembers reports which are the operator's.
func revisionsRead(kinds *workload.Registry) labels.Selector {
	for _, kind := range kinds.Fixed() {
		if slices.ContainsFunc(kind.Secondary(), isRevision) {
			return labels.Everything()
		}
	}
	has, err := labels.NewRequirement(v1alpha1.VersionLabel, selection.Exists, nil)
	utilruntime.Must(err)
	return labels.NewSelector().Add(*has)
}

func isRevision(s workload.Secondary) bool {
	_, is := s.Object.(*appsv1.ControllerRevision)
	return is
}

// ClientOptions make every write carry the operator's field manager.
func ClientOptions() client.Options {
	return client.Options{FieldOwner: v1alpha1.FieldManager, Cache: &client.CacheOptions{Unstructured: true}}
}

// fillCaches adds the indexes, and starts all caches on every replica: readiness waits for
// them, and a new leader finds them filled.
func fillCaches(ctx context.Context, mgr ctrl.Manager, kinds *workload.Registry) error {
	indexer := mgr.GetFieldIndexer()
	owned := []client.Object{&corev1.Pod{}, &v1alpha1.ChangeWorkload{}, &v1alpha1.ChangePod{}}
	cached := []client.Object{
		cluster.NamespaceObject(), &v1alpha1.OpsConfigInfo{}, &v1alpha1.DefensePolicy{}, &v1alpha1.DefenseEndpoint{}, &corev1.ConfigMap{},
	}
	for _, kind := range kinds.Fixed() {
		cached = append(cached, kind.Object())
		for _, s := range kind.Secondary() {
			if !isRevision(s) { // revisions have their own indexes
				owned = append(owned, s.Object)
			}
		}
	}
	for _, object := range owned {
		if err := indexer.IndexField(ctx, object, workload.IndexByOwner, workload.OwnerUID); err != nil {
			return fmt.Errorf("index %T by owner: %w", object, err)
		}
	}
	if err := indexer.IndexField(ctx, &appsv1.ControllerRevision{}, workload.IndexByOwner, workload.HistoryOf); err != nil {
		return fmt.Errorf("index the history by workload: %w", err)
	}
	if err := indexer.IndexField(ctx, &appsv1.ControllerRevision{}, workload.IndexByRevised, workload.RevisedBy); err != nil {
		return fmt.Errorf("index revisions by workload: %w", err)
	}
	if err := indexer.IndexField(ctx, &v1alpha1.ChangeWorkload{}, workload.IndexByOrder, workload.OrderOf); err != nil {
		return fmt.Errorf("index changeworkloads by order: %w", err)
	}
	for _, object := range []client.Object{&v1alpha1.ChangePod{}, &v1alpha1.ChangeWorkload{}} {
		if err := indexer.IndexField(ctx, object, workload.IndexByNode, workload.NodeOf); err != nil {
			return fmt.Errorf("index %T by node: %w", object, err)
		}
	}
	if err := indexer.IndexField(ctx, &v1alpha1.ChangePod{}, workload.IndexByPod, podGroupsOf); err != nil {
		return fmt.Errorf("index changepods by pod: %w", err)
	}
	for _, object := range cached {
		if _, err := mgr.GetCache().GetInformer(ctx, object, cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("cache %T: %w", object, err)
		}
	}
	return nil
}

// CachesSynced returns a check that passes when all caches are synced. It does not depend on
// leadership: every replica fills its caches.
func CachesSynced(mgr ctrl.Manager) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced yet")
		}
		return nil
	}
}

// podGroupsOf returns the keys of a ChangePod in workload.IndexByPod; none if its checks ended.
func podGroupsOf(o client.Object) []string {
	batch, ok := o.(*v1alpha1.ChangePod)
	if !ok || !slices.ContainsFunc(batch.Status.Checks, func(c v1alpha1.CheckStatus) bool { return record.CheckMayGoOn(&c) }) {
		return nil
	}
	groups := make([]string, len(batch.Spec.PodInfos))
	for i := range batch.Spec.PodInfos {
		groups[i] = workload.PodGroup(types.UID(batch.Spec.PodInfos[i].UID))
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}
