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
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// minJobPods is the number of pods of the smallest batch that gets a Job.
	minJobPods = 10
	// jobEvery is the time between two reads of a Job, and between two tries to create it in the first seconds. Later tries take
	// as long as the check runs, up to maxJobRetry.
	jobEvery    = 5 * time.Second
	maxJobRetry = time.Minute
	// pendingAfter is the age at which a pod that is Pending is reported.
	pendingAfter = 30 * time.Second
	// minJobTTL is the least time for which a finished Job is kept: the operator may be down.
	minJobTTL = time.Hour
	// maxJobName bounds names of Jobs, whose pods have their index in the host name; jobHashLength has the digits of their hash.
	maxJobName    = 52
	jobHashLength = 10
)

// jobName returns the name of the Job of a check, the same in each process. The check may get another Job only if its policy
// names another CronJob.
func jobName(s *Subject, of *policy.Check) string {
	id := fmt.Sprintf("%s/%s/%d/%s/%s", s.Release.UID, s.uid(), s.Release.Status.Attempt, of.Name, of.Job.CronJob)
	sum := sha256.Sum256([]byte(id))
	prefix := strings.NewReplacer("/", "-", ".", "-").Replace(s.Workload.Name + of.Name[strings.LastIndex(of.Name, "/"):])
	return record.Shorten(prefix, maxJobName-jobHashLength-1) + "-" + hex.EncodeToString(sum[:])[:jobHashLength]
}

// jobInput is the input of a decision about a check of type job.
type jobInput struct {
	Now   time.Time
	Check *policy.Check
	// Status of the check, with the name of its Job.
	Status v1alpha1.CheckStatus
	// Release is the UID of the owner of the Job.
	Release types.UID
	// Job is nil if it could not be read or created; Problem is why, and Reason is JobNotCreated, or JobRunning for another Job.
	Job             *batchv1.Job
	Reason, Problem string
	// Pending is why a pod of the Job is Pending; empty if it is not.
	Pending string
	// Gone is the name of a pod of the batch that has gone; empty for none.
	Gone string
}

// decideJob returns the next status of a check, and the time until the next decision; 0 for never. A Job that is not finished at
// the deadline is no failure.
func decideJob(in jobInput) (s v1alpha1.CheckStatus, after time.Duration) {
	s = *in.Status.DeepCopy()
	over := !in.Now.Before(timeOf(s.Deadline))
	s.Phase, s.Reason = v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning
	wait, problem := jobEvery, in.Problem
	switch end := jobEnd(in.Job); {
	case in.Job == nil:
		if s.Reason = in.Reason; s.Reason == v1alpha1.ReasonJobNotCreated {
			wait = min(max(in.Now.Sub(timeOf(s.StartTime).Add(in.Check.Delay)), jobEvery), maxJobRetry)
		}
	case !isOwned(in.Job, in.Release):
		s.Reason, problem = v1alpha1.ReasonJobNotCreated, "Job "+s.JobName+" exists and does not belong to this release: delete it"
	case end == nil:
		problem = jobNotFinished(&in.Status, in.Pending, over)
	case end.Type == batchv1.JobComplete:
		s.Phase, s.Reason, s.Message = v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "Job "+s.JobName+" completed"
		return s, 0
	case end.Reason == batchv1.JobReasonDeadlineExceeded && in.Job.Annotations[v1alpha1.CheckDeadlineMark] != "":
		over = true // of the check, as it was when the Job was created
		problem = jobNotFinished(&in.Status, in.Pending, over)
	case in.Gone != "":
		s.Phase, s.Reason, s.OnSilence = v1alpha1.CheckInconclusive, v1alpha1.ReasonJobFailed, onSilence(in.Check.OnNoData)
		s.Message = fmt.Sprintf("Job %s failed, and pod %s, which it may have tested, is gone", s.JobName, in.Gone)
		return s, 0
	default:
		s.Phase, s.Reason = v1alpha1.CheckFailed, v1alpha1.ReasonJobFailed
		report(&s, nil, joined(": ", "Job "+s.JobName+" failed", end.Reason, wording.Cut(end.Message)), in.Check.Suggestion)
		return s, 0
	}
	if s.Message = problem; over {
		s.Phase, s.OnSilence, s.Message = v1alpha1.CheckError, onSilence(in.Check.OnError), "until the deadline: "+problem
		return s, 0
	}
	return s, min(wait, timeOf(s.Deadline).Sub(in.Now))
}

// jobNotFinished describes a Job that is not finished. Of several causes in turn, as of an image that cannot be pulled, the first
// one stays; at the end it stays even if the pod is gone.
func jobNotFinished(s *v1alpha1.CheckStatus, pending string, over bool) string {
	message := "Job " + s.JobName + " is not finished"
	if strings.HasPrefix(s.Message, message+": ") && (pending != "" || over) {
		return s.Message
	}
	return joined(": ", message, pending)
}

// jobEnd returns the condition by which a Job is finished; nil for none.
func jobEnd(job *batchv1.Job) *batchv1.JobCondition {
	if job != nil {
		for i := range job.Status.Conditions {
			c := &job.Status.Conditions[i]
			if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
				return c
			}
		}
	}
	return nil
}

func isOwned(job *batchv1.Job, by types.UID) bool {
	return slices.ContainsFunc(job.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == by })
}

// pendingPod returns why the first pod that is Pending for some time is; empty for none.
func pendingPod(pods []corev1.Pod, now, deadline time.Time) string {
	for i := range pods {
		p := workload.ReadPod(&pods[i])
		if pods[i].Status.Phase == corev1.PodPending && p.Stuck != nil && (now.Sub(p.Created) >= pendingAfter || !now.Before(deadline)) {
			return joined(": ", fmt.Sprintf("pod %s is Pending", p.Name), p.Stuck.Reason, p.Stuck.Message)
		}
	}
	return ""
}

// gonePod returns the first pod of a batch that is not among those that are left; empty for none.
func gonePod(b *v1alpha1.ChangePod, left []string) string {
	for i := range b.Spec.PodInfos {
		if pod := b.Spec.PodInfos[i].Pod; !slices.Contains(left, pod) {
			return pod
		}
	}
	return ""
}

// newJob returns the Job of a check: a copy of the template, with the release in its environment, that ends with the check.
func newJob(s *Subject, c *v1alpha1.CheckStatus, template *batchv1.JobTemplateSpec, pods []workload.Pod, now time.Time) *batchv1.Job {
	template = template.DeepCopy()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Release.Namespace, Name: c.JobName, Labels: template.Labels, Annotations: template.Annotations,
			// Without blockOwnerDeletion, no right to update the owner's finalizers is needed.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "ChangeWorkload", Name: s.Release.Name, UID: s.Release.UID,
				Controller: ptr.To(false),
			}},
		},
		Spec: template.Spec,
	}
	left := int64((timeOf(c.Deadline).Sub(now) + time.Second - 1) / time.Second)
	if own := job.Spec.ActiveDeadlineSeconds; own == nil || *own > left {
		job.Spec.ActiveDeadlineSeconds = ptr.To(max(left, 1))
		metav1.SetMetaDataAnnotation(&job.ObjectMeta, v1alpha1.CheckDeadlineMark, timeOf(c.Deadline).UTC().Format(time.RFC3339))
	}
	if ttl := job.Spec.TTLSecondsAfterFinished; ttl != nil {
		job.Spec.TTLSecondsAfterFinished = ptr.To(max(*ttl, int32(minJobTTL/time.Second)))
	}
	facts := factsOf(s, pods)
	for _, containers := range [][]corev1.Container{job.Spec.Template.Spec.InitContainers, job.Spec.Template.Spec.Containers} {
		for i := range containers {
			own := containers[i].Env
			known := func(f corev1.EnvVar) bool {
				return slices.ContainsFunc(own, func(e corev1.EnvVar) bool { return e.Name == f.Name })
			}
			// They come first, so that the template can refer to them.
			containers[i].Env = append(slices.DeleteFunc(slices.Clone(facts), known), own...)
		}
	}
	return job
}

// factsOf returns the release as environment variables.
func factsOf(s *Subject, pods []workload.Pod) []corev1.EnvVar {
	batch, ips := "", []string{}
	if s.Batch != nil {
		batch = strconv.Itoa(int(record.BatchNumber(s.Batch)))
	}
	for i := range pods {
		if p := &pods[i]; !isGone(p) && p.IP != "" && len(ips) < maxReviewed {
			ips = append(ips, p.IP)
		}
	}
	return []corev1.EnvVar{
		{Name: "ALTERSHIELD_NAMESPACE", Value: s.Workload.Namespace}, {Name: "ALTERSHIELD_WORKLOAD_KIND", Value: s.Workload.GVK.Kind},
		{Name: "ALTERSHIELD_WORKLOAD", Value: s.Workload.Name}, {Name: "ALTERSHIELD_VERSION", Value: s.Release.Spec.Reversion},
		{Name: "ALTERSHIELD_BATCH", Value: batch}, {Name: "ALTERSHIELD_PODS", Value: strings.Join(ips, ",")},
	}
}
