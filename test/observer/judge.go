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
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Judge judges a history like an Observer. Its caller knows when each version was made and by whom.
// It is not safe for concurrent use.
type Judge struct {
	world     *world
	namespace string
	// newest is the number of the last version.
	newest uint64
}

// NewJudge returns a Judge of an empty cluster, where the operator runs in a namespace of its own.
func NewJudge(operatorNamespace string) *Judge {
	j := &Judge{world: newWorld(), namespace: operatorNamespace}
	j.world.limits.own = operatorNamespace
	return j
}

// Version judges a version of an object, or its end. Numbers follow the order of the versions.
// Kinds without an invariant are ignored.
func (j *Judge) Version(number uint64, at time.Time, o client.Object, deleted bool, by Writer) []Violation {
	kind := kindOfObject(o)
	if kind == "" {
		return nil
	}
	j.newest = number
	copied, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return nil
	}
	return j.world.apply(newEvent(kind, number, at, copied, deleted, false), by)
}

// Text judges the text of an event about an object, or of the denial of a request.
func (j *Judge) Text(namespace, object, text string) []Violation {
	return violationsOf(event{kind: "text about", rv: j.newest, namespace: namespace, name: object}, j.newest, checkText(text))
}

// Request judges a request of the operator that was carried out, or was forbidden, in the state of
// the cluster before it. body is its body.
func (j *Judge) Request(r Request, body []byte) []Violation {
	r.rv, r.body = j.newest, body
	return j.world.checkRequest(&r, j.namespace)
}

// Delivered returns a violation for each acknowledged verdict that is not stored.
func (j *Judge) Delivered(delivered []Delivered) []Violation {
	var violations []Violation
	for _, d := range delivered {
		violations = append(violations, j.world.checkDelivered(d)...)
	}
	return violations
}

// Unfinished returns what is yet to happen to the workloads of some namespaces.
func (j *Judge) Unfinished(namespaces []string, at time.Time) []string {
	return j.world.unfinished(namespaces, at)
}

// kindOfObject returns the kind of an object; empty for kinds without an invariant.
func kindOfObject(o client.Object) string {
	switch o.(type) {
	case *corev1.Namespace:
		return kindNamespace
	case *appsv1.Deployment:
		return kindDeployment
	case *appsv1.ReplicaSet:
		return kindReplicaSet
	case *appsv1.StatefulSet:
		return kindStatefulSet
	case *appsv1.DaemonSet:
		return kindDaemonSet
	case *appsv1.ControllerRevision:
		return kindRevision
	case *corev1.Pod:
		return kindPod
	case *v1alpha1.ChangeWorkload:
		return kindRelease
	case *v1alpha1.ChangePod:
		return kindBatch
	case *v1alpha1.OpsConfigInfo:
		return kindSetting
	case *v1alpha1.DefensePolicy:
		return kindPolicy
	default:
		return ""
	}
}

// OperatorStarts ends the outage that OperatorStops began.
func (j *Judge) OperatorStarts(at time.Time) { j.world.operatorStarts(at) }

// OperatorStops begins an outage: no replica of the operator works until OperatorStarts. Meanwhile
// held rollouts continue.
func (j *Judge) OperatorStops(at time.Time) { j.world.operatorStops(at) }
