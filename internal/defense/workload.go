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
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Workload is what was observed of a workload, whatever its kind.
type Workload struct {
	// Kind is the kind of the workload in lower case, as in messages.
	Kind            string
	Namespace, Name string
	UID             types.UID
	ResourceVersion string
	Labels          map[string]string
	Annotations     map[string]string
	Deleting        bool

	// Version is computed from the pod template as it is now. What the version
	// label says may differ: that is a release that slipped past admission.
	Version string
	// Replicas is the number of pods the workload asks for.
	Replicas int32
	// MinReady is how long a pod has to be Ready to be available.
	MinReady time.Duration
	// Paused says that the workload does not roll out changes.
	Paused bool
	// Rolling says that old pods run until new ones do, and ProgressDeadline how
	// long the rollout may stand still; 0 is for ever.
	Rolling          bool
	ProgressDeadline time.Duration
	// Rollout is how far the rollout of the pod template has come.
	Rollout Rollout
	// RevisionCreated is when the current revision (a Deployment's ReplicaSet)
	// was created; zero while there is none.
	RevisionCreated time.Time
	// RevisionUID identifies it; empty while there is none.
	RevisionUID types.UID
	// OldRevisions are the others that pods are asked of.
	OldRevisions []OldRevision
}

// OldRevision is an earlier pod template of a workload that still has pods.
type OldRevision struct {
	Name    string
	UID     types.UID
	Version string
	// Number is larger for a revision that was in use later.
	Number int64
	// Replicas are asked of it, and Available are.
	Replicas, Available int32
}

// Rollout is how far the rollout of the current pod template has come.
type Rollout struct {
	// Complete: all pods are of the current template and available, no old
	// pod is left, and this was said of the current generation.
	Complete bool
	// Stuck: the rollout exceeded its progress deadline, as Message says.
	Stuck   bool
	Message string
}

// RecordedVersion is the version the workload's label names; empty for a
// baseline, a workload that has not released since it came under defense.
func (w *Workload) RecordedVersion() string { return w.Labels[v1alpha1.VersionLabel] }

// Release is the number of the workload's current release, 0 when there is
// none.
func (w *Workload) Release() int64 {
	return ParseRelease(w.Annotations[v1alpha1.ReleaseAnnotation])
}

// ReleasedBy is the user of the workload's current release, as far as admission
// knows.
func (w *Workload) ReleasedBy() string {
	return cmp.Or(w.Annotations[v1alpha1.ReleasedByAnnotation], UnknownUser)
}

// BlockedBy is the value of SuspendedByAnnotation for a block because of the
// workload's current release.
func (w *Workload) BlockedBy() string {
	return fmt.Sprintf("%s %d", w.RecordedVersion(), w.Release())
}

// haltedBy says that the operator paused the workload because that version
// failed.
func (w *Workload) haltedBy(version string) bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == version && version != ""
}

// pausedByUser says that a pause is not the operator's.
func (w *Workload) pausedByUser() bool {
	return w.Paused && w.Annotations[v1alpha1.HaltedAnnotation] == ""
}

func (w *Workload) blocked() bool {
	_, ok := w.Labels[v1alpha1.SuspendLabel]
	return ok
}

// ParseRelease reads the value of ReleaseAnnotation: 0 when it is no positive
// number.
func ParseRelease(value string) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// AppName is the application a workload belongs to.
func (w *Workload) AppName() string {
	for _, key := range []string{"app.kubernetes.io/name", "app"} {
		if v := w.Labels[key]; v != "" {
			return v
		}
	}
	return w.Name
}

// SystemNamespaces are those of the cluster itself, which are never under defense,
// whoever labels them.
func SystemNamespaces() []string {
	return []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}
}

// NamespaceEnrolled says whether a namespace of this name, with these labels, is
// under defense.
func NamespaceEnrolled(name string, labels map[string]string) bool {
	return labels[v1alpha1.EnrolledLabel] == v1alpha1.EnrolledValue && !slices.Contains(SystemNamespaces(), name)
}

// OptedOut says whether a workload with these labels is out of the defense.
func OptedOut(labels map[string]string) bool {
	return labels[v1alpha1.DefenseLabel] == v1alpha1.DefenseDisabled
}

// Pod is what was observed of a pod.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	HostName, IP    string
	Ready           bool
	ReadySince      time.Time
	Terminating     bool
	// Ended: the pod will never run again (evicted, for one) and its owner
	// replaces it.
	Ended  bool
	Labels map[string]string
	// Hang says why the pod is not ready; nil when it is, or is not to be any
	// more.
	Hang *Hang
}

// live says whether the pod counts among the pods its workload runs.
func (p *Pod) live() bool { return !p.Terminating && !p.Ended }

// ObservePod reads what the decisions need off a pod.
func ObservePod(pod *corev1.Pod) Pod {
	p := Pod{
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		UID:         pod.UID,
		HostName:    pod.Name,
		IP:          pod.Status.PodIP,
		Terminating: pod.DeletionTimestamp != nil,
		Ended:       pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded,
		Labels:      pod.Labels,
		Hang:        ObserveHang(pod),
	}
	if pod.Spec.Hostname != "" {
		p.HostName = pod.Spec.Hostname
	}
	if c := podCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		p.Ready, p.ReadySince = true, c.LastTransitionTime.Time
	}
	return p
}

// Finished says whether the release of a pod is finished: it is Ready, has been
// for minReady, and is not terminating. When only time is missing it also says
// how much.
func (p *Pod) Finished(minReady time.Duration, now time.Time) (finished bool, wait time.Duration) {
	if !p.Ready || !p.live() {
		return false, 0
	}
	if left := minReady - now.Sub(p.ReadySince); minReady > 0 && left > 0 {
		return false, left
	}
	return true, 0
}

// Info names the pod as it is reported.
func (p *Pod) Info(app string) v1alpha1.PodInfo {
	return v1alpha1.PodInfo{
		App:       app,
		HostName:  p.HostName,
		WorkSpace: p.Namespace,
		Pod:       p.Name,
		IP:        p.IP,
		Namespace: p.Namespace,
		UID:       string(p.UID),
	}
}

// VerdictFails says whether a verdict fails its pod: "pass", "none" (no rule
// was triggered) and the empty string do not, everything else does.
func VerdictFails(verdict string) bool {
	switch verdict {
	case VerdictPass, VerdictNone, "":
		return false
	default:
		return true
	}
}

// Verdicts that pass.
const (
	// VerdictPass means rules were triggered and passed.
	VerdictPass = "pass"
	// VerdictNone means no rule was triggered, or nobody was asked.
	VerdictNone = "none"
	// VerdictInconclusive does not pass: the server could not tell, or did not
	// in time.
	VerdictInconclusive = "inconc"
)

// timeLayout is how times for people are written; the Unix time beside each is
// exact.
const timeLayout = "2006-01-02 15:04:05"

// FormatTime writes a time as the kinds show it to people.
func FormatTime(t time.Time) string { return t.Format(timeLayout) }
