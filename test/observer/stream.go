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

package observer

import (
	"context"
	"errors"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// errLost means that a watch could not be resumed where it ended.
var errLost = errors.New("the API server does not have the versions from where the watch ended")

// retryAfter is the pause after a list or a watch failed.
const retryAfter = 100 * time.Millisecond

// stream follows all objects of a kind. It is guarded by the lock of its observer.
type stream struct {
	kind    string
	newList func() client.ObjectList
	// newMetadataList makes a list of metadata only.
	newMetadataList func() *metav1.PartialObjectMetadataList
	// at is the resource version up to which it has seen everything.
	at uint64
	// versions has the resource versions of the existing objects.
	versions map[types.UID]uint64
}

func newStreams() []*stream {
	s := func(kind string, list func() client.ObjectList, group, version, listKind string) *stream {
		return &stream{kind: kind, newList: list, versions: map[types.UID]uint64{}, newMetadataList: func() *metav1.PartialObjectMetadataList {
			apiVersion := metav1.GroupVersion{Group: group, Version: version}.String()
			return &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: listKind}}
		}}
	}
	own := v1alpha1.GroupVersion
	return []*stream{
		s(kindNamespace, func() client.ObjectList { return &corev1.NamespaceList{} }, "", "v1", "NamespaceList"),
		s(kindDeployment, func() client.ObjectList { return &appsv1.DeploymentList{} }, "apps", "v1", "DeploymentList"),
		s(kindReplicaSet, func() client.ObjectList { return &appsv1.ReplicaSetList{} }, "apps", "v1", "ReplicaSetList"),
		s(kindStatefulSet, func() client.ObjectList { return &appsv1.StatefulSetList{} }, "apps", "v1", "StatefulSetList"),
		s(kindDaemonSet, func() client.ObjectList { return &appsv1.DaemonSetList{} }, "apps", "v1", "DaemonSetList"),
		s(kindRevision, func() client.ObjectList { return &appsv1.ControllerRevisionList{} }, "apps", "v1", "ControllerRevisionList"),
		s(kindPod, func() client.ObjectList { return &corev1.PodList{} }, "", "v1", "PodList"),
		s(kindRelease, func() client.ObjectList { return &v1alpha1.ChangeWorkloadList{} }, own.Group, own.Version, "ChangeWorkloadList"),
		s(kindBatch, func() client.ObjectList { return &v1alpha1.ChangePodList{} }, own.Group, own.Version, "ChangePodList"),
		s(kindSetting, func() client.ObjectList { return &v1alpha1.OpsConfigInfoList{} }, own.Group, own.Version, "OpsConfigInfoList"),
	}
}

// eventOf returns the event of a version of an object.
func (s *stream) eventOf(o client.Object, deleted, listed bool) event {
	return newEvent(s.kind, revisionOf(o.GetResourceVersion()), time.Now(), o, deleted, listed)
}

// follow lists and watches until ctx ends, or until the history has a hole. It passes events to
// take with the resource version up to which they are complete.
func (s *stream) follow(ctx context.Context, c client.WithWatch, take func(at uint64, events ...event)) error {
	list := s.newList()
	for {
		err := c.List(ctx, list)
		if err == nil {
			break
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
	var events []event
	if err := meta.EachListItem(list, func(o runtime.Object) error {
		if object, ok := o.(client.Object); ok {
			events = append(events, s.eventOf(object, false, true))
		}
		return nil
	}); err != nil {
		return err
	}
	version := list.GetResourceVersion()
	take(revisionOf(version), events...)
	for {
		seen, err := s.watch(ctx, c, version, take)
		if err != nil {
			return err
		}
		if seen == version {
			if err := pause(ctx); err != nil {
				return err
			}
		}
		version = seen
	}
}

// watch watches once from a version on, and returns the version that it reached.
func (s *stream) watch(ctx context.Context, c client.WithWatch, version string, take func(at uint64, events ...event)) (string, error) {
	w, err := c.Watch(ctx, s.newList(), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true}})
	if err != nil {
		if lost(err) {
			err = errLost
		} else {
			err = ctx.Err()
		}
		return version, err
	}
	defer w.Stop()
	defer context.AfterFunc(ctx, w.Stop)()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			if lost(apierrors.FromObject(e.Object)) {
				return version, errLost
			}
			break
		}
		o, ok := e.Object.(client.Object)
		if !ok {
			break
		}
		version = o.GetResourceVersion()
		if e.Type == watch.Bookmark {
			take(revisionOf(version))
		} else {
			take(revisionOf(version), s.eventOf(o, e.Type == watch.Deleted, false))
		}
	}
	return version, ctx.Err()
}

func lost(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

func pause(ctx context.Context) error {
	t := time.NewTimer(retryAfter)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
