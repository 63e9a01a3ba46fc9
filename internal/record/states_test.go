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

package record

import (
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// TestEndedAfter: each attempt ends once, whatever a user corrects and whatever fails later.
func TestEndedAfter(t *testing.T) {
	status := func(attempt int32, s v1alpha1.ChangeWorkloadStatusType, at, failed int64) *v1alpha1.ChangeWorkloadStatus {
		return &v1alpha1.ChangeWorkloadStatus{Attempt: attempt, Status: s, StartTimeUnix: 1000, UpdateTimeUnix: at,
			ReleaseEvidence: v1alpha1.ReleaseEvidence{FailedTimeUnix: failed}}
	}
	const (
		running = v1alpha1.ChangeWorkloadRunning
		waiting = v1alpha1.ChangeWorkloadTimeOutPreThreshold
		success = v1alpha1.ChangeWorkloadSuccess
		suspend = v1alpha1.ChangeWorkloadSuspend
	)
	for name, test := range map[string]struct {
		before, after *v1alpha1.ChangeWorkloadStatus
		took          time.Duration
		ended         bool
	}{
		"success":            {status(1, running, 1000, 0), status(1, success, 1090, 0), 90 * time.Second, true},
		"failure":            {status(1, waiting, 1000, 0), status(1, suspend, 1005, 0), 5 * time.Second, true},
		"refused at once":    {status(1, v1alpha1.ChangeWorkloadInit, 1000, 0), status(1, v1alpha1.ChangeWorkloadFailed, 1000, 0), 0, true},
		"a clock went back":  {status(1, running, 1000, 0), status(1, v1alpha1.ChangeWorkloadCanceled, 990, 0), 0, true},
		"still running":      {status(1, running, 1000, 0), status(1, waiting, 1060, 0), 0, false},
		"unchanged":          {status(1, success, 1090, 0), status(1, success, 1090, 0), 0, false},
		"fails later":        {status(1, success, 1090, 0), status(1, suspend, 1300, 0), 0, false},
		"rolled back":        {status(1, suspend, 1090, 0), status(1, v1alpha1.ChangeWorkloadRollback, 1300, 0), 0, false},
		"corrected":          {status(1, suspend, 1090, 0), status(1, running, 1200, 1090), 0, false},
		"after a correction": {status(1, running, 1200, 1090), status(1, success, 1300, 1090), 0, false},
		"next attempt":       {status(1, success, 1090, 1050), status(2, suspend, 1010, 0), 10 * time.Second, true},
		"never started":      {status(0, running, 0, 0), &v1alpha1.ChangeWorkloadStatus{Status: success, UpdateTimeUnix: 1090}, 0, false},
	} {
		if took, ended := EndedAfter(test.before, test.after); took != test.took || ended != test.ended {
			t.Errorf("%s: %v, %v; want %v, %v", name, took, ended, test.took, test.ended)
		}
	}
}
