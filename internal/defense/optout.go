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

package defense

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// What is known of workloads that are opted out, or deleted, while their releases are
// blocked: allowed, and told.

// OptOut is the last time that a user opted a workload out while its releases were
// blocked, or versions of it were in quarantine.
type OptOut struct {
	// Release is the number of the release that the workload was at.
	Release int64
	At      time.Time
	While   v1alpha1.OptOutWhile
	User    string
}

// String is the value of OptedOutAnnotation.
func (o OptOut) String() string {
	return strings.Join([]string{strconv.FormatInt(o.Release, 10), strconv.FormatInt(o.At.Unix(), 10), string(o.While), o.User}, " ")
}

// ParseOptOut reads the value of OptedOutAnnotation.
func ParseOptOut(value string) (OptOut, bool) {
	parts := strings.SplitN(value, " ", 4)
	if len(parts) != 4 {
		return OptOut{}, false
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	o := OptOut{Release: ParseRelease(parts[0]), At: time.Unix(seconds, 0), While: v1alpha1.OptOutWhile(parts[2]), User: parts[3]}
	return o, err == nil && (o.While == v1alpha1.WhileBlocked || o.While == v1alpha1.WhileQuarantined)
}

// Held is what keeps releases of a workload back.
type Held struct {
	Blocked    bool
	Quarantine []string
}

// HeldBy says what keeps releases of a workload with these labels and annotations
// back.
func HeldBy(labels, annotations map[string]string, now time.Time) Held {
	_, blocked := labels[v1alpha1.SuspendLabel]
	return Held{Blocked: blocked, Quarantine: ParseQuarantine(annotations, now).versions}
}

// Any says that something does.
func (h Held) Any() bool { return h.Blocked || len(h.Quarantine) > 0 }

// while is h in one word.
func (h Held) while() v1alpha1.OptOutWhile {
	if h.Blocked {
		return v1alpha1.WhileBlocked
	}
	return v1alpha1.WhileQuarantined
}

// String is h as it follows the word "while".
func (h Held) String() string {
	var parts []string
	if h.Blocked {
		parts = append(parts, "its releases were blocked")
	}
	if len(h.Quarantine) > 0 {
		parts = append(parts, "versions of it were in quarantine ("+strings.Join(h.Quarantine, ", ")+")")
	}
	return strings.Join(parts, " and ")
}

// mutateOptedOut keeps what the operator wrote on a workload, so that opting in again
// finds it, and records who opts out while releases are kept back.
func (r *AdmissionRequest) mutateOptedOut(want *AdmissionObject) {
	restore(want.Annotations, r.Old.Annotations, restoredAnnotations())
	if OptedOut(r.Old.Labels) {
		return
	}
	// Not what is known of an earlier time.
	delete(want.Annotations, v1alpha1.OptedOutAnnotation)
	if held := HeldBy(r.Old.Labels, r.Old.Annotations, r.Now); held.Any() {
		want.Annotations[v1alpha1.OptedOutAnnotation] = OptOut{
			Release: ParseRelease(r.Old.Annotations[v1alpha1.ReleaseAnnotation]),
			At:      r.Now, While: held.while(), User: cutAtRune(r.User, maxUser),
		}.String()
	}
}

// noteOptOut keeps, and tells once, that a user opted the workload out while releases
// of it were kept back.
func (d *release) noteOptOut() {
	if d.Workload == nil {
		return
	}
	o, ok := ParseOptOut(d.Workload.Annotations[v1alpha1.OptedOutAnnotation])
	if !ok || o.Release != d.Change.Spec.Release {
		return
	}
	noted := v1alpha1.OptOut{User: cutAtRune(o.User, maxText), While: o.While, TimeUnix: o.At.Unix()}
	if d.status.OptedOut != nil && *d.status.OptedOut == noted {
		return
	}
	d.status.OptedOut = &noted
	d.event(corev1.EventTypeWarning, v1alpha1.EventOptedOut, DescribeOptOut(o.User, o.While))
}

// DescribeOptOut tells who opted a workload out while releases of it were kept back.
func DescribeOptOut(who string, while v1alpha1.OptOutWhile) string {
	what := "versions of it were in quarantine"
	if while == v1alpha1.WhileBlocked {
		what = "its releases were blocked"
	}
	return fmt.Sprintf("%s opted the workload out of the defense while %s", who, what)
}
