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

package admission

import (
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/hold"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

var (
	testNow    = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	usersPace  = workload.Pace{MinReadySeconds: 5, ProgressDeadlineSeconds: 600}
	raisedPace = workload.Pace{MinReadySeconds: 600, ProgressDeadlineSeconds: 2400}
	testSteps  = hold.Times{}.OrDefault()
)

func partitionAt(p int32) workload.Pace { return workload.Pace{ByPartition: true, Partition: p} }

// heldAt is a hold of a release.
func heldAt(release int64) *workload.Hold {
	return testSteps.Begin(release, usersPace, v1alpha1.HoldEveryBatch, 30*time.Minute, hold.Wave{})
}
