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
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// jobOf returns a Job of the release in this state.
func jobOf(with ...func(*batchv1.Job)) *batchv1.Job {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "web-smoke-1", OwnerReferences: []metav1.OwnerReference{{UID: "release"}}}}
	for _, f := range with {
		f(job)
	}
	return job
}

func ended(kind batchv1.JobConditionType, reason, message string) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		})
	}
}

func byCheck(job *batchv1.Job) {
	job.Annotations = map[string]string{v1alpha1.CheckDeadlineMark: "2026-11-20T08:15:00Z"}
}

func TestDecideJob(t *testing.T) {
	const notFinished = "Job web-smoke-1 is not finished"
	for name, test := range map[string]struct {
		at              time.Duration
		job             *batchv1.Job
		pending, before string
		reason, problem string

		phase                   v1alpha1.CheckPhase
		wantReason, wantMessage string
		after                   time.Duration
	}{
		"running": {
			at: time.Minute, job: jobOf(), phase: v1alpha1.CheckRunning, wantReason: v1alpha1.ReasonJobRunning, wantMessage: notFinished,
			after: 5 * time.Second,
		},
		"shortly before the deadline": {
			at: 15*time.Minute - time.Second, job: jobOf(), phase: v1alpha1.CheckRunning, wantReason: v1alpha1.ReasonJobRunning,
			wantMessage: notFinished, after: time.Second,
		},
		"complete": {
			job: jobOf(ended(batchv1.JobSuccessCriteriaMet, "", ""), ended(batchv1.JobComplete, "", "")), before: "what it waited for",
			phase: v1alpha1.CheckPassed, wantReason: v1alpha1.ReasonPassed, wantMessage: "Job web-smoke-1 completed",
		},
		"complete, and read after the deadline": {
			at: time.Hour, job: jobOf(ended(batchv1.JobComplete, "", "")),
			phase: v1alpha1.CheckPassed, wantReason: v1alpha1.ReasonPassed, wantMessage: "Job web-smoke-1 completed",
		},
		"failing, not failed yet": {
			job: jobOf(ended(batchv1.JobFailureTarget, "BackoffLimitExceeded", "")), phase: v1alpha1.CheckRunning,
			wantReason: v1alpha1.ReasonJobRunning, wantMessage: notFinished, after: 5 * time.Second,
		},
		"failed": {
			job:   jobOf(ended(batchv1.JobFailed, "BackoffLimitExceeded", "Job has reached the specified backoff limit")),
			phase: v1alpha1.CheckFailed, wantReason: v1alpha1.ReasonJobFailed,
			wantMessage: "Job web-smoke-1 failed: BackoffLimitExceeded: Job has reached the specified backoff limit; call the team",
		},
		"too slow by its own deadline": {
			job: jobOf(ended(batchv1.JobFailed, "DeadlineExceeded", "Job was active longer than specified deadline")), phase: v1alpha1.CheckFailed,
			wantReason: v1alpha1.ReasonJobFailed, wantMessage: "DeadlineExceeded: Job was active longer",
		},
		"ended by the deadline of the check, which is later now": {
			at: time.Minute, job: jobOf(byCheck, ended(batchv1.JobFailed, "DeadlineExceeded", "")), before: notFinished + ": pod a is Pending",
			phase: v1alpha1.CheckError, wantReason: v1alpha1.ReasonJobRunning,
			wantMessage: "until the deadline: Job web-smoke-1 is not finished: pod a is Pending",
		},
		"not finished at the deadline": {
			at: 15 * time.Minute, job: jobOf(byCheck), phase: v1alpha1.CheckError, wantReason: v1alpha1.ReasonJobRunning,
			wantMessage: "until the deadline: " + notFinished,
		},
		"pending": {
			at: time.Minute, job: jobOf(), pending: "pod a is Pending: Unschedulable", before: notFinished, phase: v1alpha1.CheckRunning,
			wantReason: v1alpha1.ReasonJobRunning, wantMessage: notFinished + ": pod a is Pending: Unschedulable", after: 5 * time.Second,
		},
		"pending for another reason": {
			at: time.Minute, job: jobOf(), pending: "pod a is Pending: ErrImagePull", before: notFinished + ": pod a is Pending: ImagePullBackOff",
			phase: v1alpha1.CheckRunning, wantReason: v1alpha1.ReasonJobRunning, after: 5 * time.Second,
			wantMessage: notFinished + ": pod a is Pending: ImagePullBackOff",
		},
		"no longer pending": {
			at: time.Minute, job: jobOf(), before: notFinished + ": pod a is Pending: ImagePullBackOff", phase: v1alpha1.CheckRunning,
			wantReason: v1alpha1.ReasonJobRunning, wantMessage: notFinished, after: 5 * time.Second,
		},
		"pending at the deadline": {
			at: 15 * time.Minute, job: jobOf(), pending: "pod a is Pending: Unschedulable", phase: v1alpha1.CheckError,
			wantReason: v1alpha1.ReasonJobRunning, wantMessage: "until the deadline: " + notFinished + ": pod a is Pending: Unschedulable",
		},
		"of another owner": {
			at: time.Minute, job: jobOf(func(job *batchv1.Job) { job.OwnerReferences = nil }, ended(batchv1.JobComplete, "", "")),
			phase: v1alpha1.CheckRunning, wantReason: v1alpha1.ReasonJobNotCreated, after: 5 * time.Second,
			wantMessage: "Job web-smoke-1 exists and does not belong to this release: delete it",
		},
		"of another owner, at the deadline": {
			at: 15 * time.Minute, job: jobOf(func(job *batchv1.Job) { job.OwnerReferences[0].UID = "earlier" }), phase: v1alpha1.CheckError,
			wantReason: v1alpha1.ReasonJobNotCreated, wantMessage: "until the deadline: Job web-smoke-1 exists",
		},
		"not created": {
			at: 20 * time.Second, reason: v1alpha1.ReasonJobNotCreated, problem: "no CronJob", phase: v1alpha1.CheckRunning,
			wantReason: v1alpha1.ReasonJobNotCreated, wantMessage: "no CronJob", after: 20 * time.Second,
		},
		"not created for long": {
			at: 10 * time.Minute, reason: v1alpha1.ReasonJobNotCreated, problem: "no CronJob", phase: v1alpha1.CheckRunning,
			wantReason: v1alpha1.ReasonJobNotCreated, wantMessage: "no CronJob", after: time.Minute,
		},
		"waits for another Job for long": {
			at: 10 * time.Minute, reason: v1alpha1.ReasonJobRunning, problem: "another one runs", phase: v1alpha1.CheckRunning,
			wantReason: v1alpha1.ReasonJobRunning, wantMessage: "another one runs", after: 5 * time.Second,
		},
		"not created until the deadline": {
			at: 16 * time.Minute, reason: v1alpha1.ReasonJobNotCreated, problem: "no CronJob", phase: v1alpha1.CheckError,
			wantReason: v1alpha1.ReasonJobNotCreated, wantMessage: "until the deadline: no CronJob",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := jobInput{
				Now: testNow.Add(test.at), Release: "release", Job: test.job, Pending: test.pending, Reason: test.reason, Problem: test.problem,
				Check: &policy.Check{OnError: v1alpha1.SilenceFails, Suggestion: "call the team"},
				Status: v1alpha1.CheckStatus{
					Phase: v1alpha1.CheckRunning, JobName: "web-smoke-1", Message: test.before,
					StartTime: stamp(testNow), Deadline: stamp(testNow.Add(15 * time.Minute)),
				},
			}
			got, after := decideJob(in)
			if got.Phase != test.phase || got.Reason != test.wantReason || !strings.Contains(got.Message, test.wantMessage) || after != test.after {
				t.Errorf("%s %s %q after %s", got.Phase, got.Reason, got.Message, after)
			}
			if want := test.phase == v1alpha1.CheckError; (got.OnSilence == v1alpha1.SilenceFails) != want {
				t.Errorf("onSilence %q of %s", got.OnSilence, got.Phase)
			}
			if again, _ := decideJob(jobInput{
				Now: in.Now, Release: in.Release, Job: in.Job, Pending: in.Pending, Reason: in.Reason, Problem: in.Problem, Check: in.Check,
				Status: got,
			}); got.Phase == v1alpha1.CheckRunning && again.Message != got.Message {
				t.Errorf("the second time %q", again.Message)
			}
		})
	}
}

// TestJobName: the name fits, and differs for each Job of a release.
func TestJobName(t *testing.T) {
	change, batch := testRelease()
	change.UID = "release"
	s := &Subject{Workload: &workload.Workload{Name: "web"}, Release: change, Batch: batch}
	of := func(name, cron string) *policy.Check {
		return &policy.Check{Name: "ns/policy/" + name, Job: &v1alpha1.JobCheck{CronJob: cron}}
	}
	first := jobName(s, of("smoke", "tests"))
	if !strings.HasPrefix(first, "web-smoke-") || len(first) != len("web-smoke-")+10 || first != jobName(s, of("smoke", "tests")) {
		t.Errorf("name %s", first)
	}
	change.Status.Attempt++
	names := map[string]bool{first: true, jobName(s, of("smoke", "tests")): true, jobName(s, of("smoke", "more")): true}
	names[jobName(&Subject{Workload: s.Workload, Release: change}, of("smoke", "tests"))] = true
	s.Workload.Name = strings.Repeat("web.", 60)
	names[jobName(s, of(strings.Repeat("a", 63), "tests"))] = true
	for name := range names {
		if len(name) > 52 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			t.Errorf("name %s", name)
		}
	}
	if len(names) != 5 {
		t.Errorf("names %v", names)
	}
}

// TestNewJob: the Job is the template, with the release in its environment, and with the deadline of the check.
func TestNewJob(t *testing.T) {
	change, batch := testRelease()
	change.UID = "release"
	s := &Subject{Workload: &workload.Workload{Namespace: "ns", Name: "web"}, Release: change, Batch: batch}
	s.Workload.GVK.Kind = "Deployment"
	c := &v1alpha1.CheckStatus{JobName: "web-smoke-1", Deadline: stamp(testNow.Add(15 * time.Minute))}
	template := &batchv1.JobTemplateSpec{}
	template.Labels, template.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	template.Spec.BackoffLimit, template.Spec.TTLSecondsAfterFinished = ptr.To[int32](2), ptr.To[int32](0)
	template.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "init"}}
	template.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Env: []corev1.EnvVar{
		{Name: "FIRST", Value: "$(ALTERSHIELD_WORKLOAD)"}, {Name: "ALTERSHIELD_BATCH", Value: "mine"},
	}}}
	untouched := template.DeepCopy()
	pods := []workload.Pod{{IP: "10.0.0.1"}, {IP: ""}, {IP: "fd00::2"}, {IP: "10.0.0.3", Terminating: true}}
	job := newJob(s, c, template, pods, testNow.Add(500*time.Millisecond))
	if !equality.Semantic.DeepEqual(template, untouched) {
		t.Errorf("the template is now %+v", template)
	}
	owner := metav1.OwnerReference{
		APIVersion: "app.ops.cloud.alipay.com/v1alpha1", Kind: "ChangeWorkload", Name: change.Name, UID: "release", Controller: ptr.To(false),
	}
	if !equality.Semantic.DeepEqual(job.OwnerReferences, []metav1.OwnerReference{owner}) || job.Namespace != "ns" ||
		job.Name != "web-smoke-1" || job.Labels["a"] != "b" || job.Annotations["c"] != "d" || *job.Spec.BackoffLimit != 2 ||
		*job.Spec.TTLSecondsAfterFinished != 3600 {
		t.Errorf("%+v", job)
	}
	if got := *job.Spec.ActiveDeadlineSeconds; got != 900 || job.Annotations[v1alpha1.CheckDeadlineMark] == "" {
		t.Errorf("deadline %d, annotations %v", got, job.Annotations)
	}
	facts := []corev1.EnvVar{
		{Name: "ALTERSHIELD_NAMESPACE", Value: "ns"}, {Name: "ALTERSHIELD_WORKLOAD_KIND", Value: "Deployment"},
		{Name: "ALTERSHIELD_WORKLOAD", Value: "web"}, {Name: "ALTERSHIELD_VERSION", Value: change.Spec.Reversion},
		{Name: "ALTERSHIELD_BATCH", Value: "3"}, {Name: "ALTERSHIELD_PODS", Value: "10.0.0.1,fd00::2"},
	}
	if got := job.Spec.Template.Spec.InitContainers[0].Env; !equality.Semantic.DeepEqual(got, facts) {
		t.Errorf("env %v", got)
	}
	main := slices.Concat(facts[:4], facts[5:], template.Spec.Template.Spec.Containers[0].Env)
	if got := job.Spec.Template.Spec.Containers[0].Env; !equality.Semantic.DeepEqual(got, main) {
		t.Errorf("env %v", got)
	}

	template.Spec.ActiveDeadlineSeconds = ptr.To[int64](60)
	s.Batch = nil
	job = newJob(s, c, template, nil, testNow)
	if got := *job.Spec.ActiveDeadlineSeconds; got != 60 || job.Annotations[v1alpha1.CheckDeadlineMark] != "" {
		t.Errorf("deadline %d, annotations %v", got, job.Annotations)
	}
	if got := job.Spec.Template.Spec.InitContainers[0].Env[4:]; got[0].Value != "" || got[1].Value != "" {
		t.Errorf("env %v", got)
	}
}

// TestPendingPod: a pod that has been Pending for long, or at the deadline, has a cause.
func TestPendingPod(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID("a"), CreationTimestamp: metav1.NewTime(testNow)}}
	pod.Status.Phase = corev1.PodPending
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available",
	}}
	runs := *pod.DeepCopy()
	runs.Status.Phase = corev1.PodRunning
	const want = "pod a is Pending: Unschedulable: 0/3 nodes are available"
	for at, wants := range map[time.Duration]string{29 * time.Second: "", 30 * time.Second: want, time.Minute: want} {
		if got := pendingPod([]corev1.Pod{runs, pod}, testNow.Add(at), testNow.Add(time.Minute)); got != wants {
			t.Errorf("after %s %q", at, got)
		}
	}
	if got := pendingPod([]corev1.Pod{pod}, testNow.Add(time.Second), testNow.Add(time.Second)); got != want {
		t.Errorf("at the deadline %q", got)
	}
}
