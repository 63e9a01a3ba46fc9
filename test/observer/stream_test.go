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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestFollow: a watch that ends is resumed where it ended; if that is impossible, the history has a
// hole.
func TestFollow(t *testing.T) {
	expired := apierrors.NewResourceExpired("too old")
	version := func(rv string) *appsv1.Deployment {
		return makeDeployment(func(d *appsv1.Deployment) { d.ResourceVersion = rv })
	}
	send := func(events ...watch.Event) watch.Interface {
		w := watch.NewFakeWithChanSize(len(events), false)
		for _, e := range events {
			w.Action(e.Type, e.Object)
		}
		w.Stop()
		return w
	}
	// Each watch in turn. Their resource versions are recorded.
	watches := []func() (watch.Interface, error){
		func() (watch.Interface, error) { return nil, errors.New("connection refused") },
		func() (watch.Interface, error) {
			return send(watch.Event{Type: watch.Modified, Object: version("1001")}, watch.Event{Type: watch.Bookmark, Object: version("1010")}), nil
		},
		func() (watch.Interface, error) {
			return send(watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(errors.New("etcd is away")).ErrStatus}), nil
		},
		func() (watch.Interface, error) {
			return send(watch.Event{Type: watch.Deleted, Object: version("1011")}), nil
		},
		func() (watch.Interface, error) {
			return send(watch.Event{Type: watch.Error, Object: &expired.ErrStatus}), nil
		},
	}
	var from []string
	lists := 0
	store := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(version("999")).Build()
	c := interceptor.NewClient(store, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if lists++; lists == 1 {
				return errors.New("connection refused")
			}
			err := c.List(ctx, list, opts...)
			list.SetResourceVersion("1000")
			return err
		},
		Watch: func(_ context.Context, _ client.WithWatch, _ client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			var o client.ListOptions
			o.ApplyOptions(opts)
			from = append(from, o.Raw.ResourceVersion)
			next := watches[0]
			watches = watches[1:]
			return next()
		},
	})
	type taken struct {
		At, RV          uint64
		Deleted, Listed bool
	}
	var seen []taken
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := newStreams()[1].follow(ctx, c, func(at uint64, events ...event) {
		if len(events) == 0 {
			seen = append(seen, taken{At: at})
		}
		for _, e := range events {
			seen = append(seen, taken{at, e.rv, e.deleted, e.listed})
		}
	})
	if !errors.Is(err, errLost) {
		t.Errorf("follow() = %v, want that history was lost", err)
	}
	want := []taken{{1000, 999, false, true}, {1001, 1001, false, false}, {At: 1010}, {1011, 1011, true, false}}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("seen (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"1000", "1000", "1010", "1010", "1011"}, from); diff != "" {
		t.Errorf("resumed from (-want +got):\n%s", diff)
	}
}

func TestFollowEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build()
	err := newStreams()[1].follow(ctx, c, func(uint64, ...event) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("follow() = %v, want that it was canceled", err)
	}
}

func TestMetadataLists(t *testing.T) {
	for _, s := range newStreams() {
		list := s.newMetadataList()
		if list.Kind == "" || list.APIVersion == "" {
			t.Errorf("%s: the list is of %s %s", s.kind, list.APIVersion, list.Kind)
		}
		if _, ok := any(list).(metav1.ListInterface); !ok || s.newList() == nil {
			t.Errorf("%s: no list", s.kind)
		}
	}
}
