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

package wrappers

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// ChangeWorkloadWrapper builds a ChangeWorkload: a release.
type ChangeWorkloadWrapper struct {
	builder[v1alpha1.ChangeWorkload, *ChangeWorkloadWrapper]
}

// MakeChangeWorkload begins release 1 of a version of zeros, with batches of one pod, in state Init, without an owner.
func MakeChangeWorkload(namespace, name string) *ChangeWorkloadWrapper {
	o := &v1alpha1.ChangeWorkload{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.ChangeWorkloadSpec{ChangeWorkloadID: name, CountThreshold: 1, WaitTimeThreshold: 60, Release: 1},
	}
	w := &ChangeWorkloadWrapper{}
	w.builder = builder[v1alpha1.ChangeWorkload, *ChangeWorkloadWrapper]{o, &o.ObjectMeta, w}
	return w.Version(strings.Repeat("0", 32))
}

// Of makes it a release of a Deployment.
func (w *ChangeWorkloadWrapper) Of(d *appsv1.Deployment) *ChangeWorkloadWrapper {
	w.object.Spec.AppName, w.object.Spec.ServiceName = d.Name, d.Name
	apiVersion, kind := gvk(d).ToAPIVersionAndKind()
	w.object.Spec.WorkloadRef = &v1alpha1.WorkloadReference{APIVersion: apiVersion, Kind: kind, Name: d.Name, UID: string(d.UID)}
	return w.OwnedBy(d).Label(v1alpha1.DeploymentNameLabel, d.Name)
}

// Version sets the released version, and its label.
func (w *ChangeWorkloadWrapper) Version(version string) *ChangeWorkloadWrapper {
	w.object.Spec.Reversion = version
	return w.Label(v1alpha1.VersionLabel, version)
}

// Release sets the number of the requested release.
func (w *ChangeWorkloadWrapper) Release(n int64) *ChangeWorkloadWrapper {
	w.object.Spec.Release = n
	return w
}

// State sets the state.
func (w *ChangeWorkloadWrapper) State(state v1alpha1.ChangeWorkloadStatusType) *ChangeWorkloadWrapper {
	w.object.Status.Status = state
	return w
}

// Attempt sets the number of the current attempt, and makes it an attempt of the requested release.
func (w *ChangeWorkloadWrapper) Attempt(n int32) *ChangeWorkloadWrapper {
	w.object.Status.Attempt, w.object.Status.ObservedRelease = n, w.object.Spec.Release
	return w
}

// Order sets the order of the attempt: its ID, its order entry on the server, and its stage.
func (w *ChangeWorkloadWrapper) Order(id, node string, stage v1alpha1.OrderStage) *ChangeWorkloadWrapper {
	w.object.Status.OrderID, w.object.Status.OrderNodeID, w.object.Status.OrderStage = id, node, stage
	return w
}

// Failed adds pods that failed.
func (w *ChangeWorkloadWrapper) Failed(pods ...string) *ChangeWorkloadWrapper {
	s := &w.object.Status
	for _, pod := range pods {
		s.DefenseCheckFailPods = append(s.DefenseCheckFailPods, PodResult(pod, "unpass"))
	}
	s.FailCount += int32(len(pods))
	return w
}

// Condition sets a condition.
func (w *ChangeWorkloadWrapper) Condition(kind string, status metav1.ConditionStatus, reason string) *ChangeWorkloadWrapper {
	w.object.Status.Conditions = withCondition(w.object.Status.Conditions, kind, status, reason)
	return w
}

// ChangePodWrapper builds a ChangePod: a batch.
type ChangePodWrapper struct {
	builder[v1alpha1.ChangePod, *ChangePodWrapper]
}

// MakeChangePod begins a new batch of attempt 1 of release 1, without an owner. An API server refuses it until it has pods.
func MakeChangePod(namespace, name string) *ChangePodWrapper {
	o := &v1alpha1.ChangePod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.ChangePodSpec{Attempt: 1, Release: 1},
	}
	w := &ChangePodWrapper{}
	w.builder = builder[v1alpha1.ChangePod, *ChangePodWrapper]{o, &o.ObjectMeta, w}
	return w
}

// Of makes it a batch of a release, of its attempt and under its order.
func (w *ChangePodWrapper) Of(change *v1alpha1.ChangeWorkload) *ChangePodWrapper {
	w.object.Spec.ChangeWorkloadID, w.object.Status.OrderID = change.Name, change.Status.OrderID
	if name, ok := change.Labels[v1alpha1.DeploymentNameLabel]; ok {
		w.Label(v1alpha1.DeploymentNameLabel, name)
	}
	return w.OwnedBy(change).Version(change.Spec.Reversion).Attempt(max(change.Status.Attempt, 1), change.Spec.Release)
}

// Attempt sets the attempt of the batch, and its release.
func (w *ChangePodWrapper) Attempt(n int32, release int64) *ChangePodWrapper {
	w.object.Spec.Attempt, w.object.Spec.Release = n, release
	return w
}

// Pods adds pods. The UID of each is its name.
func (w *ChangePodWrapper) Pods(names ...string) *ChangePodWrapper {
	for _, name := range names {
		w.object.Spec.PodInfos = append(w.object.Spec.PodInfos, v1alpha1.PodInfo{Pod: name, Namespace: w.object.Namespace, UID: name})
	}
	return w
}

// State sets the state.
func (w *ChangePodWrapper) State(state v1alpha1.ChangePodStatusType) *ChangePodWrapper {
	w.object.Status.Status = state
	return w
}

// Node sets the order entry of the batch on the server, and the order.
func (w *ChangePodWrapper) Node(id, order string) *ChangePodWrapper {
	w.object.Status.ChangePodID, w.object.Status.OrderID = id, order
	return w
}

// Done ends the batch with a verdict.
func (w *ChangePodWrapper) Done(results ...v1alpha1.PodResult) *ChangePodWrapper {
	w.object.Status.Message, w.object.Status.PodResults = v1alpha1.ChangePodMessagePostFinish, results
	return w.State(v1alpha1.ChangePodExecuteDone)
}

// PodResult returns a verdict on a pod, as a user writes it.
func PodResult(pod, verdict string) v1alpha1.PodResult {
	return v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: pod}, Verdict: verdict}
}

// OpsConfigInfoWrapper builds an OpsConfigInfo: a setting.
type OpsConfigInfoWrapper struct {
	builder[v1alpha1.OpsConfigInfo, *OpsConfigInfoWrapper]
}

// MakeOpsConfigInfo begins a setting of a type, turned off.
func MakeOpsConfigInfo(namespace, name string, kind v1alpha1.OpsConfigType) *OpsConfigInfoWrapper {
	o := &v1alpha1.OpsConfigInfo{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.OpsConfigInfoSpec{Type: kind},
	}
	w := &OpsConfigInfoWrapper{}
	w.builder = builder[v1alpha1.OpsConfigInfo, *OpsConfigInfoWrapper]{o, &o.ObjectMeta, w}
	return w
}

// On turns the setting on, with a content; some types have none.
func (w *OpsConfigInfoWrapper) On(content string) *OpsConfigInfoWrapper {
	w.object.Spec.Enable, w.object.Spec.Content = true, content
	return w
}

// Off turns the setting off, whatever its content.
func (w *OpsConfigInfoWrapper) Off(content string) *OpsConfigInfoWrapper {
	w.object.Spec.Enable, w.object.Spec.Content = false, content
	return w
}

// InForce sets the last valid value.
func (w *OpsConfigInfoWrapper) InForce(enable bool, content string) *OpsConfigInfoWrapper {
	w.object.Status.InForce = &v1alpha1.OpsConfigValue{Enable: enable, Content: content}
	return w
}

// withCondition sets a condition, without a transition time.
func withCondition(conditions []metav1.Condition, kind string, status metav1.ConditionStatus, reason string) []metav1.Condition {
	for i := range conditions {
		if conditions[i].Type == kind {
			conditions[i].Status, conditions[i].Reason = status, reason
			return conditions
		}
	}
	return append(conditions, metav1.Condition{Type: kind, Status: status, Reason: reason})
}
