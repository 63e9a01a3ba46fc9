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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

func TestMetadataPatch(t *testing.T) {
	loaded := func() *workload.Workload {
		return &workload.Workload{
			UID: "u", ResourceVersion: "7",
			Labels:      map[string]string{v1alpha1.VersionLabel: "v", v1alpha1.SuspendLabel: "1"},
			Annotations: map[string]string{v1alpha1.ReleaseAnnotation: "2"},
		}
	}
	stored := func(labels, annotations string) string {
		return fmt.Sprintf(`{"metadata":{"uid":"u","resourceVersion":"7","labels":%s,"annotations":%s},"spec":{"replicas":3}}`,
			labels, annotations)
	}
	const (
		version = `"admission-webhook-altershield.antgroup.com/version":"v"`
		suspend = `"altershield.defense.antgroup.com/suspend":"1"`
		release = `"altershield.defense.antgroup.com/release":"2"`
	)
	lift := func() *Patch {
		p := PatchRelease(loaded())
		p.DropLabel(v1alpha1.SuspendLabel)
		p.DropAnnotation("not/there")
		return p
	}
	record := func() *Patch {
		p := PatchRevision(&workload.Workload{UID: "u", ResourceVersion: "7"})
		p.SetLabel(v1alpha1.VersionLabel, "v")
		p.SetAnnotation(v1alpha1.ReleaseAnnotation, "2")
		return p
	}
	for name, test := range map[string]struct {
		patch  *Patch
		stored string
		want   string // empty: refused
	}{
		"as read": {lift(), stored(`{`+version+`,`+suspend+`}`, `{`+release+`}`), stored(`{`+version+`}`, `{`+release+`}`)},
		"a user's edits are kept, and do not matter": {
			lift(), stored(`{`+version+`,`+suspend+`,"a":"b"}`, `{`+release+`,"c":"d"}`),
			stored(`{`+version+`,"a":"b"}`, `{`+release+`,"c":"d"}`),
		},
		"another release": {lift(), stored(`{`+version+`,`+suspend+`}`, `{"altershield.defense.antgroup.com/release":"3"}`), ""},
		"another version": {
			lift(), stored(`{"admission-webhook-altershield.antgroup.com/version":"w",`+suspend+`}`, `{`+release+`}`), "",
		},
		"another block": {lift(), stored(`{`+version+`,"altershield.defense.antgroup.com/suspend":"5"}`, `{`+release+`}`), ""},
		"block removed": {lift(), stored(`{`+version+`}`, `{`+release+`}`), ""},
		"no labels at all": {
			record(), `{"metadata":{"uid":"u","resourceVersion":"7"}}`,
			`{"metadata":{"uid":"u","resourceVersion":"7","labels":{` + version + `},"annotations":{` + release + `}}}`,
		},
		"labels set since":         {record(), `{"metadata":{"uid":"u","resourceVersion":"8","labels":{"a":"b"}}}`, ""},
		"another of the same name": {record(), `{"metadata":{"uid":"v","resourceVersion":"7"}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := json.Marshal(test.patch.ops)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := patch.Apply([]byte(test.stored))
			if refused := err != nil; refused != (test.want == "") {
				t.Fatalf("apply: %v, want refused %t", err, test.want == "")
			}
			if test.want == "" {
				return
			}
			var gotObject, wantObject any
			if err := errors.Join(json.Unmarshal(got, &gotObject), json.Unmarshal([]byte(test.want), &wantObject)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(wantObject, gotObject); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestManagedFieldsPatch(t *testing.T) {
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "apps/v1",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		}
	}
	applier, other, own := entry("git", `{"f:a":{}}`), entry("kubectl-set", `{"f:b":{}}`), entry(v1alpha1.FieldManager, `{"f:c":{}}`)
	given, rest := entry("git", `{"f:a":{},"f:c":{}}`), entry(v1alpha1.FieldManager, `{"f:d":{}}`)
	status, later := entry("kube-controller-manager", `{"f:status":{}}`), entry("kube-controller-manager", "{}")
	type entries = []metav1.ManagedFieldsEntry
	for name, test := range map[string]struct {
		read, changed, stored entries
		want                  entries // none: refused
	}{
		"an entry with fewer fields": {
			entries{applier, other, own}, entries{given, other, rest},
			entries{applier, other, own}, entries{given, other, rest},
		},
		"an entry without fields": {
			entries{applier, own, other}, entries{given, other},
			entries{applier, own, other}, entries{given, other},
		},
		"two entries without fields": {entries{own, applier, own}, entries{given}, entries{own, applier, own}, entries{given}},
		"a status was written since": {entries{applier, own}, entries{given}, entries{applier, own, status}, entries{given, status}},
		"the status was written again": {
			entries{applier, own, status}, entries{given, status},
			entries{applier, own, later}, entries{given, later},
		},
		"applied since": {entries{applier, own}, entries{given}, entries{entry("git", `{"f:a":{},"f:e":{}}`), own}, nil},
		"the fields were taken since": {
			entries{applier, own}, entries{given}, entries{applier, entry(v1alpha1.FieldManager, `{}`)}, nil,
		},
		"another manager applied it first": {entries{applier, own}, entries{given}, entries{other, applier, own}, nil},
		"given back already by another":    {entries{applier, own}, entries{given}, entries{given}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := json.Marshal(PatchFields(&workload.Workload{UID: "u"}, test.read, test.changed).ops)
			if err != nil {
				t.Fatal(err)
			}
			patch, err := jsonpatch.DecodePatch(body)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := json.Marshal(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "u", ManagedFields: test.stored}})
			if err != nil {
				t.Fatal(err)
			}
			patched, err := patch.Apply(stored)
			if (err != nil) != (test.want == nil) {
				t.Fatalf("apply: %v, want refused %t", err, test.want == nil)
			}
			if test.want == nil {
				return
			}
			var got metav1.PartialObjectMetadata
			if err := json.Unmarshal(patched, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got.ManagedFields); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestPaceSetPastAdmission: if admission does not set the pace of a hold, the operator does, but
// it never changes a pace that a user set past admission.
func TestPaceSetPastAdmission(t *testing.T) {
	pace := func(minReady, deadline int32) workload.Pace {
		return workload.Pace{MinReadySeconds: minReady, ProgressDeadlineSeconds: deadline}
	}
	was := pace(300, 2400)
	held := &workload.Hold{Release: 2, Until: v1alpha1.HoldEveryBatch, Pace: pace(0, 600), Set: was}
	opened := *held
	opened.Set, opened.Was = pace(30, 2400), &was
	for name, test := range map[string]struct {
		is, want int32
		says     *workload.Hold
	}{
		"as the operator set it":        {300, 30, &opened},
		"set already":                   {30, 30, &opened},
		"a user's, past admission":      {7, 7, &opened},
		"as it was before the hold":     {0, 30, &opened},
		"the end of a hold":             {300, 0, held.Ending()},
		"the end, and a user's is kept": {7, 7, held.Ending()},
	} {
		t.Run(name, func(t *testing.T) {
			d := web().Annotation(v1alpha1.HeldAnnotation, held.String()).Obj()
			d.Spec.ProgressDeadlineSeconds = &was.ProgressDeadlineSeconds
			d.Spec.MinReadySeconds = test.is
			c := clusterOf(t, interceptor.Funcs{}, d)
			kind := workload.Deployment{}
			w, err := kind.Get(t.Context(), c.Live, client.ObjectKeyFromObject(d))
			if err != nil {
				t.Fatal(err)
			}
			w.Pace = was // the cache is behind
			p := PatchRelease(w)
			p.Hold(kind, test.says)
			if err := c.PatchWorkload(t.Context(), p, ActRecord); err != nil {
				t.Fatal(err)
			}
			var after appsv1.Deployment
			if err := c.Live.Get(t.Context(), client.ObjectKeyFromObject(d), &after); err != nil {
				t.Fatal(err)
			}
			if after.Spec.MinReadySeconds != test.want {
				t.Errorf("minReadySeconds are %d, want %d", after.Spec.MinReadySeconds, test.want)
			}
		})
	}
}

// TestHoldByEviction: a wave is opened only while the strategy is the hold's, also past admission.
func TestHoldByEviction(t *testing.T) {
	stays := workload.Pace{ByEviction: true, OnDelete: true, MaxUnavailable: "1"}
	h := &workload.Hold{Release: 2, Until: v1alpha1.HoldEveryBatch, Pace: workload.Pace{ByEviction: true, MaxUnavailable: "1"}, Set: stays}
	for name, test := range map[string]struct {
		is    workload.Pace
		set   *workload.Hold
		tests bool
	}{
		"a wave":          {stays, h, true},
		"the hold is set": {h.Pace, h, false},
		"the hold ends":   {stays, h.Ending(), false},
		"another number":  {workload.Pace{ByEviction: true, OnDelete: true, MaxUnavailable: "2"}, h, false},
	} {
		p := PatchRelease(&workload.Workload{Pace: test.is})
		p.Hold(workload.DaemonSet{}, test.set)
		of := func(o workload.Op) bool {
			return o.Op == "test" && o.Path == "/spec/updateStrategy/type" && o.Value == "OnDelete"
		}
		if slices.ContainsFunc(p.ops, of) != test.tests {
			t.Errorf("%s: %+v", name, p.ops)
		}
	}
}

// TestGiveBackUnseen: one write restores the fields that a hold changed, if the workload left the
// defense. If a user changed the workload since it was read, the write fails.
func TestGiveBackUnseen(t *testing.T) {
	held := &workload.Hold{Release: 2, Until: v1alpha1.HoldEveryBatch, Pace: workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: 600},
		Set: workload.Pace{MinReadySeconds: 300, ProgressDeadlineSeconds: 2400}}
	for name, test := range map[string]struct {
		read, is, want int32
		outdated       bool
	}{
		"as the operator set it": {read: 300, is: 300, want: 5},
		"a user's is kept":       {read: 7, is: 7, want: 7},
		"a user's, not yet read": {read: 300, is: 7, want: 7, outdated: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := web().Annotation(v1alpha1.HeldAnnotation, held.String()).MinReadySeconds(test.is).Obj()
			d.Spec.ProgressDeadlineSeconds = &held.Set.ProgressDeadlineSeconds
			writes := 0
			c := clusterOf(t, interceptor.Funcs{
				Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
					writes++
					return c.Patch(ctx, o, p, opts...)
				},
			}, d)
			kind := workload.Deployment{}
			w, err := kind.Get(t.Context(), c.Live, client.ObjectKeyFromObject(d))
			if err != nil {
				t.Fatal(err)
			}
			w.Pace.MinReadySeconds = test.read
			p := PatchRelease(w)
			p.GiveBackUnseen(kind)
			if err := c.PatchWorkload(t.Context(), p, ActRecord); (err != nil) != test.outdated {
				t.Fatal(err)
			}
			var after appsv1.Deployment
			if err := c.Live.Get(t.Context(), client.ObjectKeyFromObject(d), &after); err != nil {
				t.Fatal(err)
			}
			_, still := after.Annotations[v1alpha1.HeldAnnotation]
			if after.Spec.MinReadySeconds != test.want || still != test.outdated || writes != 1 {
				t.Errorf("minReadySeconds are %d, want %d; held: %t; %d writes", after.Spec.MinReadySeconds, test.want, still, writes)
			}
		})
	}
}
