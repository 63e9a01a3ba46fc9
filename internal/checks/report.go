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

package checks

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// report writes the pods that fail into the status, with a message about the first of them,
// and more text. Without pods the whole batch fails.
func report(s *v1alpha1.CheckStatus, pods []string, message, more string) {
	if n := len(pods) - 1; n > 0 {
		message += fmt.Sprintf(" (and %d more pods of the batch)", n)
	}
	s.Message = joined("; ", message, more)
	s.FailedCount = int32(len(pods)) //nolint:gosec // a batch has at most 200
	s.FailedPods = pods[:min(len(pods), record.MaxFailedPods)]
}

// onSilence returns the consequence of a check without a verdict; empty for the setting silence.
func onSilence(of v1alpha1.OnSilence) v1alpha1.OnSilence {
	if of == v1alpha1.SilenceDefault {
		return ""
	}
	return of
}

// isGone reports whether a pod no longer counts: it is being deleted, has ended, or is evicted.
func isGone(p *workload.Pod) bool { return p.Terminating || p.Ended || p.Disrupted }

// stamp returns a time as the API stores it, and timeOf the opposite.
func stamp(t time.Time) *metav1.Time { return ptr.To(metav1.NewTime(t.Truncate(time.Second))) }

func timeOf(t *metav1.Time) time.Time { return ptr.Deref(t, metav1.Time{}).Time }

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }

// joined joins the parts of a message that are not empty.
func joined(separator string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), separator)
}
