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
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// makeDeployment returns a Deployment at version v1 of release 1.
func makeDeployment(change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	return wrappers.MakeDeployment("ns", "web").UID("d").ResourceVersion("10").Replicas(2).Image("busybox:1").
		Recorded("v1", 1).Annotation("team", "x").With(change...).Obj()
}

func label(key, value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Labels[key] = value }
}

func annotation(key, value string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Annotations[key] = value }
}

func image(name string) func(*appsv1.Deployment) {
	return func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = name }
}

func owned(d *appsv1.Deployment) {
	d.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Owner", Name: "o", UID: "o", Controller: ptr.To(true)}}
}

func paused(d *appsv1.Deployment) { d.Spec.Paused = true }

var suspended = label(v1alpha1.SuspendLabel, "1700000000")

func names(findings []finding) []Invariant {
	var names []Invariant
	for _, f := range findings {
		names = append(names, f.invariant)
	}
	return names
}

// left puts a Deployment at release 7 of v2; back rolls it back from v2 to v1.
func left(d *appsv1.Deployment) {
	label(v1alpha1.VersionLabel, "v2")(d)
	annotation(v1alpha1.ReleaseAnnotation, "7")(d)
}

func back(d *appsv1.Deployment) {
	image("busybox:0")(d)
	label(v1alpha1.VersionLabel, "v1")(d)
	annotation(v1alpha1.ReleaseAnnotation, "8")(d)
	annotation(v1alpha1.QuarantinedAnnotation, "v0,v2")(d)
	annotation(v1alpha1.QuarantineReasonAnnotation, `{"v2":{"cause":"NeverStarted","release":7,"to":"v1"}}`)(d)
	annotation(v1alpha1.ChangeCauseAnnotation, "rolled back")(d)
}

// byUs marks a block as the operator's, byJane an undo of release 7.
func byUs(d *appsv1.Deployment) { annotation(v1alpha1.SuspendedByAnnotation, "v2 7")(d) }

func byJane(d *appsv1.Deployment) {
	annotation(v1alpha1.QuarantineReasonAnnotation, `{"v2":{"cause":"VerificationFailed","release":7,"to":"v1","by":"jane"}}`)(d)
}

func TestCheckDeployment(t *testing.T) {
	type changes = []func(*appsv1.Deployment)
	tests := map[string]struct {
		before, after changes
		by            Writer
		outside       bool
		want          []Invariant
	}{
		"the operator's own keys": {
			after: changes{suspended, label(v1alpha1.DefenseStatusLabel, "processed"), annotation(v1alpha1.HaltedAnnotation, "v1"), paused},
			by:    Operator,
		},
		"the operator drops its keys": {before: changes{suspended, annotation(v1alpha1.SuspendedByAnnotation, "v1 1")}, by: Operator},
		"the operator changes replicas": {
			after: changes{func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }}, by: Operator, want: []Invariant{OwnFields},
		},
		"the operator drops a label":         {before: changes{label("mine", "x")}, by: Operator, want: []Invariant{OwnFields}},
		"the operator changes an annotation": {after: changes{annotation("team", "y")}, by: Operator, want: []Invariant{OwnFields}},
		"the operator writes a cause without a rollback": {
			after: changes{annotation(v1alpha1.ChangeCauseAnnotation, "x")}, by: Operator, want: []Invariant{OwnFields},
		},
		"the operator rolls back": {
			before: changes{suspended, paused, left, annotation(v1alpha1.HaltedAnnotation, "v1")},
			after:  changes{suspended, back}, by: Operator,
		},
		"the operator rolls back without a cause": {
			before: changes{left},
			after:  changes{image("busybox:0")}, by: Operator, want: []Invariant{RollbackCause},
		},
		"the operator rolls back, no quarantine": {
			before: changes{left},
			after:  changes{back, annotation(v1alpha1.QuarantinedAnnotation, "v0")}, by: Operator, want: []Invariant{RollbackCause},
		},
		"the operator rolls another release back": {
			before: changes{left, annotation(v1alpha1.ReleaseAnnotation, "8")},
			after:  changes{back}, by: Operator, want: []Invariant{RollbackCause},
		},
		"the operator rolls back to somewhere else": {
			before: changes{left},
			after:  changes{back, label(v1alpha1.VersionLabel, "v0")}, by: Operator, want: []Invariant{RollbackCause},
		},
		"the operator rolls back into the quarantine": {
			before: changes{left},
			after:  changes{back, annotation(v1alpha1.QuarantinedAnnotation, "v1,v2")}, by: Operator, want: []Invariant{RollbackCause},
		},
		"the operator rolls back and scales": {
			before: changes{left},
			after:  changes{back, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }}, by: Operator, want: []Invariant{OwnFields},
		},
		"the operator adds a finalizer": {
			after: changes{func(d *appsv1.Deployment) { d.Finalizers = []string{"x/y"} }}, by: Operator, want: []Invariant{OwnFields},
		},
		"a user changes anything": {
			after: changes{func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }, image("busybox:2")}, by: Other,
		},

		"the operator resumes what it paused":     {before: changes{paused, annotation(v1alpha1.HaltedAnnotation, "v1")}, by: Operator},
		"the operator resumes what a user paused": {before: changes{paused}, by: Operator, want: []Invariant{OwnPause}},
		"the operator rolls back what a user paused": {
			before: changes{paused, left},
			after:  changes{back}, by: Operator, want: []Invariant{OwnPause},
		},
		"a user resumes": {before: changes{paused}, by: Other},

		"a blocked template changes": {
			before: changes{suspended},
			after:  changes{suspended, image("busybox:2")}, by: Other, want: []Invariant{BlockHolds},
		},
		"a blocked template changes in its labels": {
			before: changes{suspended},
			after:  changes{suspended, func(d *appsv1.Deployment) { d.Spec.Template.Labels = map[string]string{"a": "b"} }}, by: Other,
			want: []Invariant{BlockHolds},
		},
		"a blocked Deployment scales": {
			before: changes{suspended},
			after:  changes{suspended, func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(3)) }}, by: Other,
		},
		"a block is lost": {before: changes{suspended}, by: Other, want: []Invariant{BlockHolds}},
		"a block is altered": {
			before: changes{suspended},
			after:  changes{label(v1alpha1.SuspendLabel, "1")}, by: Other, want: []Invariant{BlockHolds},
		},
		"the operator lifts a block": {before: changes{suspended}, by: Operator},
		"an override that admission recorded": {
			before: changes{suspended},
			after: changes{
				suspended, image("busybox:2"), label(v1alpha1.VersionLabel, "v2"), annotation(v1alpha1.OverrideAnnotation, "v2 10 jane doe"),
			},
			by: Other,
		},
		"an undo that admission recorded": {before: changes{left, suspended, byUs}, after: changes{back, suspended, byUs, byJane}, by: Other},
		"an undo past a user's block": {
			before: changes{left, suspended},
			after:  changes{back, suspended, byJane}, by: Other, want: []Invariant{BlockHolds},
		},
		"an undo into the quarantine": {
			before: changes{left, suspended, byUs},
			after:  changes{back, suspended, byUs, byJane, annotation(v1alpha1.QuarantinedAnnotation, "v1,v2")}, by: Other,
			want: []Invariant{BlockHolds},
		},
		"an undo that lifts the block": {
			before: changes{left, suspended, byUs},
			after:  changes{back, byJane}, by: Other, want: []Invariant{BlockHolds, BlockHolds},
		},
		"an override of an earlier request": {
			before: changes{suspended},
			after:  changes{suspended, image("busybox:2"), label(v1alpha1.VersionLabel, "v2"), annotation(v1alpha1.OverrideAnnotation, "v2 9 jane")},
			by:     Other, want: []Invariant{BlockHolds},
		},
		"an override of another version": {
			before: changes{suspended},
			after: changes{
				suspended, image("busybox:2"), label(v1alpha1.VersionLabel, "v2"), annotation(v1alpha1.OverrideAnnotation, "v3 10 jane"),
			},
			by: Other, want: []Invariant{BlockHolds},
		},
		"an override while admission was down": {
			before: changes{suspended},
			after:  changes{suspended, image("busybox:2"), label(v1alpha1.IgnoredSuspendLabel, "true")}, by: Other,
		},
		"an override by an earlier label": {
			before: changes{suspended, label(v1alpha1.IgnoredSuspendLabel, "true")},
			after:  changes{suspended, image("busybox:2"), label(v1alpha1.IgnoredSuspendLabel, "true")}, by: Other,
		},
		"a stale override": {
			before: changes{suspended, label(v1alpha1.IgnoredSuspendLabel, "true"), annotation(v1alpha1.OverrideStaleAnnotation, "true")},
			after:  changes{suspended, image("busybox:2"), label(v1alpha1.IgnoredSuspendLabel, "true")}, by: Other, want: []Invariant{BlockHolds},
		},
		"an override of another value": {
			before: changes{suspended},
			after:  changes{suspended, image("busybox:2"), label(v1alpha1.IgnoredSuspendLabel, "yes")}, by: Other, want: []Invariant{BlockHolds},
		},
		"opted out": {
			before: changes{suspended},
			after:  changes{suspended, image("busybox:2"), label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled)}, by: Other,
		},
		"not defended":      {before: changes{suspended}, after: changes{suspended, image("busybox:2")}, by: Other, outside: true},
		"an unknown writer": {before: changes{suspended, paused}, after: changes{image("busybox:2")}, by: Unknown},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := names(checkDeployment(makeDeployment(tc.before...), makeDeployment(tc.after...), tc.by, !tc.outside))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRolledOut(t *testing.T) {
	done := appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
	tests := map[string]struct {
		change func(*appsv1.DeploymentStatus)
		want   bool
	}{
		"complete":        {func(*appsv1.DeploymentStatus) {}, true},
		"not seen":        {func(s *appsv1.DeploymentStatus) { s.ObservedGeneration = 2 }, false},
		"not updated":     {func(s *appsv1.DeploymentStatus) { s.UpdatedReplicas = 1 }, false},
		"not available":   {func(s *appsv1.DeploymentStatus) { s.AvailableReplicas = 1 }, false},
		"an old pod left": {func(s *appsv1.DeploymentStatus) { s.Replicas = 3 }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := makeDeployment(func(d *appsv1.Deployment) { d.Generation, d.Status = 3, done })
			tc.change(&d.Status)
			if got := rolledOut(d); got != tc.want {
				t.Errorf("rolledOut() = %v, want %v", got, tc.want)
			}
		})
	}
}
