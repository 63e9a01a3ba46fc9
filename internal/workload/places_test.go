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

package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func TestPlaces(t *testing.T) {
	describe := func(places *Places) string {
		var all []string
		for i := range places.Pods {
			p := &places.Pods[i]
			one := fmt.Sprintf("%s at %d of %s", p.Name, p.Index, map[string]string{
				versionWith(t, "new"): "new", versionWith(t, "old"): "old", "": "nothing known",
			}[p.Version])
			if p.Current {
				one += ", current"
			}
			if p.ResourceVersion == "" {
				one += ", without a resource version"
			}
			all = append(all, one)
		}
		slices.Sort(all)
		kept := ""
		if places.Kept == versionWith(t, "old") {
			kept = ", keeping old"
		}
		return fmt.Sprintf("ordered %t%s: %s", places.Ordered, kept, strings.Join(all, "; "))
	}
	// set returns a StatefulSet of three pods; the last is of another revision.
	set := func() *native {
		n := makeSet()
		n.pods, n.revisions = nil, nil
		n.set.Spec.Template = templateWith("new")
		n.set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
		n.set.Status.UpdateRevision, n.set.Status.CurrentRevision = "db-new", "db-gone"
		n.revision("db-old", "old", 1, "")
		n.revision("db-new", "new", 2, "")
		n.pod("db-0", "db-new")
		n.pod("db-1", "db-new")
		n.pod("db-2", "db-old")
		return n
	}
	const three = "db-0 at 0 of new, current; db-1 at 1 of new, current; db-2 at 2 of old"
	for name, test := range map[string]struct {
		change func(*native)
		want   string
	}{
		"one after the other": {func(*native) {}, "ordered true: " + three},
		"one after the other, explicitly": {
			func(n *native) { n.set.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement }, "ordered true: " + three,
		},
		"all at once":        {func(n *native) { n.set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }, "ordered false: " + three},
		"a previous version": {func(n *native) { n.set.Status.CurrentRevision = "db-old" }, "ordered true, keeping old: " + three},
		"ordinals that begin later": {func(n *native) { n.set.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1} },
			"ordered true: db-0 at -1 of new, current; db-1 at 0 of new, current; db-2 at 1 of old"},
		"a pod of another name": {
			func(n *native) { n.pods[2].Name = "web-2" }, "ordered true: db-0 at 0 of new, current; db-1 at 1 of new, current; web-2 at -1 of old",
		},
		"a revision that is gone": {func(n *native) { n.revisions = n.revisions[1:] },
			"ordered true: db-0 at 0 of new, current; db-1 at 1 of new, current; db-2 at 2 of nothing known"},
		"a pod that it does not control": {
			func(n *native) { n.pods[2].OwnerReferences[0].UID = "another" }, "ordered true: db-0 at 0 of new, current; db-1 at 1 of new, current",
		},
		"a pod without an owner": {
			func(n *native) { n.pods[2].OwnerReferences = nil }, "ordered true: db-0 at 0 of new, current; db-1 at 1 of new, current",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := set()
			test.change(n)
			key := types.NamespacedName{Namespace: "prod", Name: "db"}
			cached, live := n.reader(t, true), n.reader(t, false)
			w, places, err := StatefulSet{}.Places(t.Context(), cached, nil, key)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(places); got != test.want || w.Revision != "db-new" {
				t.Errorf("from the cache: at %s, %s\nwant %s", w.Revision, got, test.want)
			}
			w, places, err = StatefulSet{}.Places(t.Context(), cached, live, key)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(places); got != test.want || w.Revision != "db-new" {
				t.Errorf("from the API server: at %s, %s\nwant %s", w.Revision, got, test.want)
			}
			if w, places, err = (StatefulSet{}).Places(t.Context(), cached, live, types.NamespacedName{Namespace: "prod", Name: "gone"}); w != nil ||
				places != nil || err != nil {
				t.Errorf("of one that is gone: %v, %v, %v", w, places, err)
			}
		})
	}
}

// TestNodePodsLive: before a wave, the status is read with the pods, as the cache may be behind.
func TestNodePodsLive(t *testing.T) {
	cached := makeDaemon()
	w := cached.get(t, true)
	live := cached.with(func(n *native) {
		d := n.daemon
		d.Generation = 3 // its strategy was changed just now
		d.Spec.Selector = &metav1.LabelSelector{}
		d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(2))
		d.Status.DesiredNumberScheduled, d.Status.CurrentNumberScheduled, d.Status.NumberMisscheduled = 4, 3, 1
	})
	places, err := DaemonSet{}.NodePods(t.Context(), cached.reader(t, true), live.reader(t, false), w)
	if err != nil || len(places) != 5 {
		t.Fatalf("%d pods, %v", len(places), err)
	}
	if w.Replicas != 4 || w.Scheduled != 3 || w.Misscheduled != 1 || w.MayLack != 2 || !w.Rollout.Stale || w.Revision == "" {
		t.Errorf("it is %+v", w)
	}
}
