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
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/internal/workload"
)

// pages answers lists of pods by pages, and notes the requests.
type pages struct {
	client.Reader
	pods []corev1.Pod
	// expireAt is the page, counted from 1, at which the list has expired; 0 for none.
	expireAt int
	requests []string
}

func (p *pages) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(opts)
	selector := ""
	if o.LabelSelector != nil {
		selector = o.LabelSelector.String()
	}
	p.requests = append(p.requests, fmt.Sprintf("%d from %q where %q", o.Limit, o.Continue, selector))
	if len(p.requests) == p.expireAt {
		return apierrors.NewResourceExpired("too old")
	}
	from := 0
	if o.Continue != "" {
		if _, err := fmt.Sscanf(o.Continue, "at %d", &from); err != nil {
			return err
		}
	}
	to := len(p.pods)
	if o.Limit > 0 {
		to = min(to, from+int(o.Limit))
	}
	list, ok := into.(*corev1.PodList)
	if !ok {
		return fmt.Errorf("%T", into)
	}
	list.Items = append([]corev1.Pod{}, p.pods[from:to]...)
	list.Continue = ""
	if to < len(p.pods) {
		list.Continue = fmt.Sprintf("at %d", to)
	}
	return nil
}

func TestReaderLists(t *testing.T) {
	controller := true
	var pods []corev1.Pod
	for i := range 1100 {
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", i), OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: types.UID(fmt.Sprint("rs-", i%2)), Controller: &controller},
		}}})
	}
	tests := map[string]struct {
		expireAt int
		want     []string
	}{
		"by pages": {want: []string{
			`500 from "" where "app=sleep"`, `500 from "at 500" where "app=sleep"`, `500 from "at 1000" where "app=sleep"`,
		}},
		"it expired on the way": {
			expireAt: 3,
			want: []string{
				`500 from "" where "app=sleep"`, `500 from "at 500" where "app=sleep"`, `500 from "at 1000" where "app=sleep"`,
				`0 from "" where "app=sleep"`,
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := &pages{pods: pods, expireAt: tt.expireAt}
			r := newReader(p)
			r.narrow = func(_ string, gk schema.GroupKind) labels.Selector {
				if gk.Kind != "Pod" {
					t.Errorf("asked for %s", gk)
				}
				return labels.SelectorFromSet(labels.Set{"app": "sleep"})
			}
			for _, owner := range []string{"rs-0", "rs-1", "rs-0"} { // the second read of rs-0 needs no request
				var got corev1.PodList
				if err := r.List(t.Context(), &got, client.InNamespace("shop"), client.MatchingFields{workload.IndexByOwner: owner}); err != nil {
					t.Fatal(err)
				}
				if len(got.Items) != 550 || string(got.Items[7].OwnerReferences[0].UID) != owner {
					t.Errorf("there are %d pods of %s", len(got.Items), owner)
				}
			}
			if diff := cmp.Diff(tt.want, p.requests); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}
