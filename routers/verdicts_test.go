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

package routers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const verdictVersion = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

var verdictOrder = defense.OrderID("cluster", "web-uid", verdictVersion, 1, 1, "change-uid")

// verdictWorld is a release of one batch, both known to the server.
func verdictWorld(edits ...func(*corev1.Namespace, *appsv1.Deployment, *v1alpha1.ChangeWorkload, *v1alpha1.ChangePod)) []client.Object {
	controller := true
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}}}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "web-uid"},
		Spec:       appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}},
	}
	change := &v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "change", UID: "change-uid", Labels: map[string]string{v1alpha1.VersionLabel: verdictVersion},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web-uid", Controller: &controller}}},
		Status: v1alpha1.ChangeWorkloadStatus{Status: v1alpha1.ChangeWorkloadRunning, OrderID: verdictOrder, OrderNodeID: "order-node", OrderStage: v1alpha1.OrderPreSubmitted},
	}
	batch := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "batch", UID: "batch-uid",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ChangeWorkload", Name: "change", UID: "change-uid", Controller: &controller}}},
		Status: v1alpha1.ChangePodStatus{Status: v1alpha1.ChangePodPreSubmitted, ChangePodID: "batch-node", OrderID: verdictOrder},
	}
	for _, edit := range edits {
		edit(ns, d, change, batch)
	}
	return []client.Object{ns, d, change, batch}
}

func verdictClient(t *testing.T, objects []client.Object, funcs interceptor.Funcs) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ChangeWorkload{}, &v1alpha1.ChangePod{}).
		WithIndex(&v1alpha1.ChangeWorkload{}, workload.IndexByOrder, workload.OrderOf).
		WithIndex(&v1alpha1.ChangePod{}, workload.IndexByNode, workload.NodeOf).
		WithIndex(&appsv1.ReplicaSet{}, workload.IndexByOwner, workload.OwnerUID).
		WithInterceptorFuncs(funcs).Build()
}

func verdictCallback(node string, stage altershield.Stage, verdict altershield.VerdictValue) *altershield.Callback {
	return &altershield.Callback{CheckType: altershield.CheckBatch, Request: altershield.CallbackRequest{
		NodeID: node, BizExecOrderID: verdictOrder, Stage: stage,
		Verdict: altershield.Verdict{Verdict: verdict, Rules: []altershield.Rule{{Name: "error rate", Msg: "too high", Verdict: verdict}}},
	}}
}

func TestVerdictsRecord(t *testing.T) {
	type stored struct{ OrderPre, OrderPost, Pre, Post, Unclaimed string }
	text := func(v *v1alpha1.CheckVerdict) string {
		if v == nil {
			return ""
		}
		return v.Verdict + " " + v.Message
	}
	for name, test := range map[string]struct {
		edit     func(*corev1.Namespace, *appsv1.Deployment, *v1alpha1.ChangeWorkload, *v1alpha1.ChangePod)
		callback *altershield.Callback
		want     Outcome
		stored   stored
	}{
		"on a batch":              {nil, verdictCallback("batch-node", altershield.StagePost, "FAIL"), OutcomeRecorded, stored{Post: "fail error rate: too high"}},
		"PRE of a batch":          {nil, verdictCallback("batch-node", altershield.StagePre, "pass"), OutcomeRecorded, stored{Pre: "pass "}},
		"on the order":            {nil, verdictCallback("order-node", altershield.StagePre, "inconc"), OutcomeRecorded, stored{OrderPre: "inconc error rate: too high"}},
		"POST of the order":       {nil, verdictCallback("order-node", altershield.StagePost, "none"), OutcomeRecorded, stored{OrderPost: "none "}},
		"on a node not yet known": {nil, verdictCallback("new-node", altershield.StagePre, "fail"), OutcomeRecorded, stored{Unclaimed: "new-node PRE fail"}},
		"PRE after the end was submitted": {
			func(_ *corev1.Namespace, _ *appsv1.Deployment, _ *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
				b.Status.Status = v1alpha1.ChangePodPostSubmitted
			}, verdictCallback("batch-node", altershield.StagePre, "pass"), OutcomeIgnored, stored{}},
		"the same again": {
			func(_ *corev1.Namespace, _ *appsv1.Deployment, _ *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
				b.Status.PostVerdict = &v1alpha1.CheckVerdict{NodeID: "batch-node", Verdict: "fail", Delivered: "fail", Message: "first"}
			}, verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeDuplicate, stored{Post: "fail first"}},
		"one that passes after one that failed": {
			func(_ *corev1.Namespace, _ *appsv1.Deployment, _ *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
				b.Status.PostVerdict = &v1alpha1.CheckVerdict{NodeID: "batch-node", Verdict: "fail", Delivered: "fail", Message: "first"}
			}, verdictCallback("batch-node", altershield.StagePost, "pass"), OutcomeDuplicate, stored{Post: "fail first"}},
		"one that fails after one that passed": {
			func(_ *corev1.Namespace, _ *appsv1.Deployment, _ *v1alpha1.ChangeWorkload, b *v1alpha1.ChangePod) {
				b.Status.PostVerdict = &v1alpha1.CheckVerdict{NodeID: "batch-node", Verdict: "pass", Delivered: "pass"}
			}, verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeRecorded, stored{Post: "fail error rate: too high"}},
		"on an order that is none": {
			func(_ *corev1.Namespace, _ *appsv1.Deployment, c *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) {
				c.Status.OrderID = "another"
			}, verdictCallback("order-node", altershield.StagePost, "fail"), OutcomeUnknown, stored{}},
		"in a namespace that left": {
			func(n *corev1.Namespace, _ *appsv1.Deployment, _ *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) {
				n.Labels = nil
			},
			verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeIgnored, stored{}},
		"on a workload that opted out": {
			func(_ *corev1.Namespace, d *appsv1.Deployment, _ *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) {
				d.Labels = map[string]string{v1alpha1.DefenseLabel: v1alpha1.DefenseDisabled}
			}, verdictCallback("order-node", altershield.StagePost, "fail"), OutcomeIgnored, stored{}},
		"on a workload that was re-created": {
			func(_ *corev1.Namespace, d *appsv1.Deployment, _ *v1alpha1.ChangeWorkload, _ *v1alpha1.ChangePod) {
				d.UID = "another"
			},
			verdictCallback("batch-node", altershield.StagePost, "fail"), OutcomeIgnored, stored{}},
	} {
		t.Run(name, func(t *testing.T) {
			edit := test.edit
			if edit == nil {
				edit = func(*corev1.Namespace, *appsv1.Deployment, *v1alpha1.ChangeWorkload, *v1alpha1.ChangePod) {}
			}
			c := verdictClient(t, verdictWorld(edit), interceptor.Funcs{})
			v := &Verdicts{Client: c, Live: c, Kind: workload.Deployment{}, Clock: clocktesting.NewFakePassiveClock(testNow), wait: 20 * time.Millisecond}
			got, err := v.Record(t.Context(), test.callback)
			if err != nil || got != test.want {
				t.Fatalf("outcome %q, error %v; want %q", got, err, test.want)
			}
			if diff := cmp.Diff(test.stored, func() stored {
				var change v1alpha1.ChangeWorkload
				var batch v1alpha1.ChangePod
				if err := errors.Join(c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "change"}, &change),
					c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "batch"}, &batch)); err != nil {
					t.Fatal(err)
				}
				s := stored{OrderPre: text(change.Status.OrderPreVerdict), OrderPost: text(change.Status.OrderPostVerdict),
					Pre: text(batch.Status.PreVerdict), Post: text(batch.Status.PostVerdict)}
				for _, u := range change.Status.UnclaimedVerdicts {
					s.Unclaimed += fmt.Sprintf("%s %s %s", u.NodeID, u.Stage, u.Verdict)
				}
				return s
			}()); diff != "" {
				t.Errorf("stored -want +got:\n%s", diff)
			}
		})
	}
}

// TestVerdictsRecordConflicts: the object changes while a verdict is stored.
func TestVerdictsRecordConflicts(t *testing.T) {
	conflicts := 3
	var owners []string
	c := verdictClient(t, verdictWorld(), interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			if conflicts > 0 {
				conflicts--
				return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("changepods").GroupResource(), obj.GetName(), errors.New("changed"))
			}
			o := (&client.SubResourceUpdateOptions{}).ApplyOptions(opts)
			owners = append(owners, o.AsUpdateOptions().FieldManager)
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	})
	v := &Verdicts{Client: c, Live: c, Kind: workload.Deployment{}, Clock: clocktesting.NewFakePassiveClock(testNow), wait: 20 * time.Millisecond}
	if got, err := v.Record(t.Context(), verdictCallback("batch-node", altershield.StagePost, "fail")); err != nil || got != OutcomeRecorded {
		t.Fatalf("outcome %q, error %v", got, err)
	}
	if diff := cmp.Diff([]string{v1alpha1.CallbackFieldManager}, owners); diff != "" {
		t.Errorf("field managers -want +got:\n%s", diff)
	}
}

// TestVerdictsRecordFails: what could not be stored is not acknowledged.
func TestVerdictsRecordFails(t *testing.T) {
	for name, err := range map[string]error{
		"down":            errors.New("connection refused"),
		"always a change": apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("changepods").GroupResource(), "batch", errors.New("changed")),
	} {
		t.Run(name, func(t *testing.T) {
			c := verdictClient(t, verdictWorld(), interceptor.Funcs{
				SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
					return err
				},
			})
			v := &Verdicts{Client: c, Live: c, Kind: workload.Deployment{}, Clock: clocktesting.NewFakePassiveClock(testNow), wait: 20 * time.Millisecond}
			if got, err := v.Record(t.Context(), verdictCallback("batch-node", altershield.StagePost, "fail")); err == nil {
				t.Errorf("outcome %q without an error", got)
			}
		})
	}
}

// TestVerdictsRecordAtOnce: the same verdict at several replicas at once is
// stored once, whichever is first.
func TestVerdictsRecordAtOnce(t *testing.T) {
	c := verdictClient(t, verdictWorld(), interceptor.Funcs{})
	outcomes := make([]Outcome, 8)
	var wg sync.WaitGroup
	for i := range outcomes {
		wg.Go(func() {
			v := &Verdicts{Client: c, Live: c, Kind: workload.Deployment{}, Clock: clocktesting.NewFakePassiveClock(testNow), wait: 20 * time.Millisecond}
			var err error
			if outcomes[i], err = v.Record(t.Context(), verdictCallback("batch-node", altershield.StagePost, "fail")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	recorded := 0
	for _, o := range outcomes {
		if o == OutcomeRecorded {
			recorded++
		}
	}
	if recorded != 1 {
		t.Errorf("recorded %d times: %v", recorded, outcomes)
	}
}
