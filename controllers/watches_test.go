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
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// TestAcquired: a revision that is used again only gets a new number, and a DaemonSet that returns to it may cause no later event.
func TestAcquired(t *testing.T) {
	revision := func(owner types.UID, number int64) *appsv1.ControllerRevision {
		r := &appsv1.ControllerRevision{Revision: number}
		if owner != "" {
			r.OwnerReferences = []metav1.OwnerReference{{UID: owner, Controller: ptr.To(true)}}
		}
		return r
	}
	for name, test := range map[string]struct {
		before, after *appsv1.ControllerRevision
		want          bool
	}{
		"unchanged":            {revision("a", 1), revision("a", 1), false},
		"in use again":         {revision("a", 1), revision("a", 3), true},
		"a new owner":          {revision("a", 1), revision("b", 1), true},
		"its first owner":      {revision("", 1), revision("a", 1), true},
		"of the history":       {revision("", 1), revision("", 2), false},
		"left by its workload": {revision("a", 1), revision("", 2), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := acquired().Update(event.UpdateEvent{ObjectOld: test.before, ObjectNew: test.after}); got != test.want {
				t.Errorf("let through: %t", got)
			}
		})
	}
	if acquired().Update(event.UpdateEvent{ObjectOld: &appsv1.ReplicaSet{}, ObjectNew: &appsv1.ReplicaSet{}}) {
		t.Error("a ReplicaSet without an owner is let through")
	}
}

// TestBatchUrgency: the release is decided about at once when a batch failed or the last batch ended; it waits for
// further changes of its batches otherwise.
func TestBatchUrgency(t *testing.T) {
	change := wrappers.MakeChangeWorkload("ns", "change").Obj()
	batch := func(state v1alpha1.ChangePodStatusType, last bool, results ...v1alpha1.PodResult) *v1alpha1.ChangePod {
		b := wrappers.MakeChangePod("ns", "batch").Of(change).Done(results...).State(state).Obj()
		b.Spec.Last = last
		return b
	}
	passed := v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: "a"}, Verdict: "pass"}
	failed := v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: "a"}, Verdict: "fail"}
	for name, test := range map[string]struct {
		batch *v1alpha1.ChangePod
		want  time.Duration
	}{
		"a batch under way":          {batch(v1alpha1.ChangePodPostSubmitted, false), gatherBatches},
		"the last one, under way":    {batch(v1alpha1.ChangePodPostSubmitted, true), gatherBatches},
		"a batch that passed":        {batch(v1alpha1.ChangePodExecuteDone, false, passed), gatherBatches},
		"the last one, which passed": {batch(v1alpha1.ChangePodExecuteDone, true, passed), 0},
		"a batch that failed":        {batch(v1alpha1.ChangePodExecuteDone, false, passed, failed), 0},
	} {
		if got := batchUrgency(test.batch); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}
