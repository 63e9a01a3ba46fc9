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
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	kindSetting = "opsconfiginfo"
	// kindPolicy is watched in process only: the versions that upgrades start from lack it.
	kindPolicy = "defensepolicy"
	// silenceSetting is the setting by which pods without a verdict fail.
	silenceSetting = "silence"

	// maxOwnBytes bounds the operator's annotations of a workload, maxRequest what it sends
	// in one request, templates aside. Both are in bytes.
	maxOwnBytes, maxRequest = 16 << 10, 256 << 10
	// maxRecords bounds the releases of a workload: ten that ended, the current one, and one
	// that a rollback restores from.
	maxRecords = 12
	// maxHistory is how many versions the setting history keeps by default, maxFailedBatches
	// how many failed batches of a release stay without their pods, and maxBatches how many
	// others of a workload, beside one for each pod and release.
	maxHistory, maxFailedBatches, maxBatches = 10, 100, 20
	// maxWrites and maxWritesOfPod bound the operator's writes about a workload, and for each
	// of its pods, until another writer changes the workload.
	maxWrites, maxWritesOfPod = 32, 12
	// maxSilence is how much later than its deadline, plus an eighth of its time, a check may end
	// without a verdict.
	maxSilence = time.Minute
	// maxLeaving is how long an object may stay after it was deleted.
	maxLeaving = 2 * time.Minute
)

const (
	kindStatefulSet = "statefulset"
	kindDaemonSet   = "daemonset"
	kindRevision    = "controllerrevision"

	// noPartition is the partition of a strategy that has none.
	noPartition int32 = -1

	// restAnnotation has the rest of the spec, with the user's values of the fields by which the
	// operator halts.
	restAnnotation = "observer/rest"
	// partitionAnnotation has the partition of a StatefulSet, and the user's partition while it is
	// halted.
	partitionAnnotation = "observer/partition"
	// evictsAnnotation is on a DaemonSet that is held: the operator evicts its pods.
	evictsAnnotation = "observer/evicts"
)

// workloadKinds returns the kinds of workloads by their resources in requests.
func workloadKinds() map[string]string {
	return map[string]string{"deployments": kindDeployment, "statefulsets": kindStatefulSet, "daemonsets": kindDaemonSet}
}

// eventsResource may be written in any namespace: an event reports an earlier act.
const eventsResource = "events"

// isKept reports whether an object was deleted and the operator may delay its removal.
func isKept(o client.Object) bool {
	switch o.(type) {
	case *v1alpha1.ChangeWorkload, *v1alpha1.ChangePod, *v1alpha1.OpsConfigInfo, *v1alpha1.DefensePolicy, *v1alpha1.DefenseEndpoint:
		return o.GetDeletionTimestamp() != nil
	default:
		own := func(finalizer string) bool { return strings.Contains(finalizer, "altershield") }
		return o.GetDeletionTimestamp() != nil && slices.ContainsFunc(o.GetFinalizers(), own)
	}
}

const (
	kindNamespace  = "namespace"
	kindDeployment = "deployment"
	kindReplicaSet = "replicaset"
	kindPod        = "pod"
	kindRelease    = "changeworkload"
	kindBatch      = "changepod"
)
