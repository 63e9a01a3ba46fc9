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
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// smokeTest is a suspended CronJob.
func smokeTest() *batchv1.CronJob {
	c := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "smoke"}}
	c.Labels = map[string]string{v1alpha1.CheckTemplateMark: "true"}
	c.Spec.Suspend = ptr.To(true)
	c.Spec.JobTemplate.Spec.Template.Labels = map[string]string{"app": "smoke"}
	c.Spec.JobTemplate.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main"}}
	return c
}

// newTested returns a batch of ten pods with a check of type job, and its CronJob unless it is nil.
func newTested(t *testing.T, cron *batchv1.CronJob, with ...func(*v1alpha1.PolicyCheck)) *ruled {
	t.Helper()
	r := newRuled(t, "true", append([]func(*v1alpha1.PolicyCheck){func(c *v1alpha1.PolicyCheck) {
		c.Cel, c.Job = nil, &v1alpha1.JobCheck{CronJob: "smoke"}
	}}, with...)...)
	r.s.Release.UID = "release"
	r.s.Batch.Spec.PodInfos = nil
	for i := range 10 {
		name := fmt.Sprintf("new-%d", i)
		r.s.Batch.Spec.PodInfos = append(r.s.Batch.Spec.PodInfos, v1alpha1.PodInfo{Pod: name, UID: name})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
		pod.Status.PodIP = fmt.Sprintf("10.0.0.%d", i)
		r.create(pod)
	}
	var web appsv1.Deployment
	if err := r.api.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "web"}, &web); err != nil {
		t.Fatal(err)
	}
	web.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	r.update(&web)
	if cron != nil {
		r.create(cron)
	}
	r.check().Type = v1alpha1.CheckTypeJob
	r.restarted()
	return r
}

func (r *ruled) update(o client.Object) {
	r.Helper()
	if err := r.api.Update(r.Context(), o); err != nil {
		r.Fatal(err)
	}
}

// settle makes steps until nothing is to be written.
func (r *ruled) settle() Step {
	r.Helper()
	for range 10 {
		if step := r.next(); step.Write == nil {
			return step
		}
	}
	r.Fatalf("it writes again and again: %+v", r.check())
	return Step{}
}

func (r *ruled) is(phase v1alpha1.CheckPhase, reason, message string) {
	r.Helper()
	if c := r.check(); c.Phase != phase || c.Reason != reason || !strings.Contains(c.Message, message) {
		r.Fatalf("the check is %s %s %q, want %s %s %q", c.Phase, c.Reason, c.Message, phase, reason, message)
	}
}

// job returns the Job of the check; nil if it does not exist.
func (r *ruled) job() *batchv1.Job {
	r.Helper()
	var job batchv1.Job
	if err := r.api.Get(r.Context(), client.ObjectKey{Namespace: "ns", Name: r.check().JobName}, &job); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		r.Fatal(err)
	}
	return &job
}

func (r *ruled) endJob(kind batchv1.JobConditionType, reason string) {
	r.Helper()
	r.end(r.job(), kind, reason)
}

func (r *ruled) end(job *batchv1.Job, kind batchv1.JobConditionType, reason string) {
	r.Helper()
	ended(kind, reason, "")(job)
	if err := r.api.Status().Update(r.Context(), job); err != nil {
		r.Fatal(err)
	}
}

// TestJob: the name is written before the Job is created, another process finds the Job, and its end is the result.
func TestJob(t *testing.T) {
	for end, want := range map[batchv1.JobConditionType]v1alpha1.CheckPhase{
		batchv1.JobComplete: v1alpha1.CheckPassed, batchv1.JobFailed: v1alpha1.CheckFailed,
	} {
		r := newTested(t, smokeTest())
		if step := r.next(); step.Write == nil || r.check().JobName == "" || r.job() != nil {
			t.Fatalf("%+v, job %v", r.check(), r.job())
		}
		r.restarted()
		if step := r.next(); step.Write != nil || step.After != jobEvery {
			t.Fatalf("%+v", step)
		}
		job := r.job()
		got := job.Spec.Template.Spec.Containers[0].Env[5].Value
		if !strings.HasPrefix(got, "10.0.0.0,10.0.0.1,") || strings.Count(got, ",") != 9 {
			t.Errorf("pods %q", got)
		}
		r.restarted()
		r.settle()
		r.is(v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning, "Job "+job.Name+" is not finished")
		if got := r.job(); got.UID != job.UID || r.writes != 1 {
			t.Errorf("another Job, or %d writes", r.writes)
		}
		r.endJob(end, "Because")
		r.settle()
		if c := r.check(); c.Phase != want || c.JobName != job.Name || len(c.FailedPods) != 0 || !strings.Contains(c.Message, job.Name) {
			t.Errorf("%+v", c)
		}
	}
}

// TestJobIsNotCreated has the problems of a check that creates no Job, and what happens when they are solved.
func TestJobIsNotCreated(t *testing.T) {
	forbidden := func(verb, resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: resource}, "smoke", fmt.Errorf(
			`User "system:serviceaccount:operator:manager" cannot %s resource %q in API group "batch" in the namespace "ns"`, verb, resource))
	}
	const command = "kubectl create rolebinding altershield-jobs -n ns --clusterrole=altershieldoperator-job-runner " +
		"--serviceaccount=operator:altershieldoperator-controller-manager"
	with := func(f func(*batchv1.CronJob)) *batchv1.CronJob {
		c := smokeTest()
		f(c)
		return c
	}
	for name, test := range map[string]struct {
		cron         *batchv1.CronJob
		before, then func(r *ruled)
		reason       string
		message      string
	}{
		"no CronJob": {
			message: "CronJob smoke does not exist in namespace ns", then: func(r *ruled) { r.create(smokeTest()) },
		},
		"no label": {
			cron: with(func(c *batchv1.CronJob) { c.Labels = nil }), message: "set its label altershield.defense.antgroup.com/check-template=true",
			then: func(r *ruled) { r.patchCron(func(c *batchv1.CronJob) { c.Labels = smokeTest().Labels }) },
		},
		"not suspended": {
			cron: with(func(c *batchv1.CronJob) { c.Spec.Suspend = nil }), message: "set its spec.suspend to true",
			then: func(r *ruled) { r.patchCron(func(c *batchv1.CronJob) { c.Spec.Suspend = ptr.To(true) }) },
		},
		"pods that the workload selects": {
			cron: with(func(c *batchv1.CronJob) {
				c.Spec.JobTemplate.Spec.Template.Labels = map[string]string{"app": "web", "test": "smoke"}
			}),
			message: "pods of CronJob smoke have the labels that deployment web selects",
			then: func(r *ruled) {
				r.patchCron(func(c *batchv1.CronJob) { c.Spec.JobTemplate.Spec.Template.Labels = nil })
			},
		},
		"no right to get CronJobs": {
			cron: smokeTest(), message: "the operator may not get CronJobs in namespace ns: " + command,
			before: func(r *ruled) { r.gets["smoke"] = forbidden("get", "cronjobs") },
			then:   func(r *ruled) { delete(r.gets, "smoke") },
		},
		"no right to get Jobs": {
			cron: smokeTest(), message: "the operator may not get Jobs in namespace ns: " + command,
			before: func(r *ruled) { r.gets[r.check().JobName] = forbidden("get", "jobs") },
			then:   func(r *ruled) { delete(r.gets, r.check().JobName) },
		},
		"a namespace without quota": {
			cron: smokeTest(), message: "the operator cannot get CronJobs: ",
			before: func(r *ruled) {
				r.gets["smoke"] = apierrors.NewForbidden(schema.GroupResource{Resource: "jobs"}, "smoke", errors.New("exceeded quota"))
			},
			then: func(r *ruled) { delete(r.gets, "smoke") },
		},
		"an API server that does not answer": {
			cron: smokeTest(), message: "the operator cannot get CronJobs: the server is down",
			before: func(r *ruled) { r.gets["smoke"] = errors.New("the server is down") },
			then:   func(r *ruled) { delete(r.gets, "smoke") },
		},
		"a Job of another owner": {
			cron: smokeTest(), message: "exists and does not belong to this release: delete it",
			before: func(r *ruled) {
				r.create(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: r.check().JobName}})
			},
			then: func(r *ruled) {
				if err := r.api.Delete(t.Context(), r.job()); err != nil {
					t.Fatal(err)
				}
			},
		},
		"another Job of the release": {
			cron: smokeTest(), reason: v1alpha1.ReasonJobRunning, message: "Job other is not finished: a workload has one Job at a time",
			before: func(r *ruled) {
				r.s.Release.Status.Checks = []v1alpha1.CheckStatus{{
					Name: "ns/policy/other", Type: v1alpha1.CheckTypeJob, Phase: v1alpha1.CheckRunning, JobName: "other",
				}}
				r.create(jobOf(func(job *batchv1.Job) { job.Namespace, job.Name = "ns", "other" }))
			},
			then: func(r *ruled) { r.s.Release.Status.Checks[0].Phase = v1alpha1.CheckCanceled },
		},
	} {
		t.Run(name, func(t *testing.T) {
			start := func() *ruled {
				var cron *batchv1.CronJob
				if test.cron != nil {
					cron = test.cron.DeepCopy()
				}
				r := newTested(t, cron)
				r.next()
				if test.before != nil {
					test.before(r)
				}
				if step := r.settle(); step.After != jobEvery {
					t.Errorf("again after %s", step.After)
				}
				reason := test.reason
				if reason == "" {
					reason = v1alpha1.ReasonJobNotCreated
				}
				r.is(v1alpha1.CheckRunning, reason, test.message)
				return r
			}
			solved := start()
			test.then(solved)
			solved.settle()
			solved.is(v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning, "is not finished")
			solved.endJob(batchv1.JobComplete, "")
			solved.settle()
			solved.is(v1alpha1.CheckPassed, v1alpha1.ReasonPassed, "completed")

			unsolved := start()
			unsolved.clock.SetTime(testNow.Add(15 * time.Minute))
			unsolved.settle()
			unsolved.is(v1alpha1.CheckError, unsolved.check().Reason, test.message)
			if c := unsolved.check(); c.OnSilence != v1alpha1.SilenceFails || !strings.HasPrefix(c.Message, "until the deadline: ") {
				t.Errorf("%+v", c)
			}
		})
	}
}

func (r *ruled) patchCron(f func(*batchv1.CronJob)) {
	r.Helper()
	var c batchv1.CronJob
	if err := r.api.Get(r.Context(), client.ObjectKey{Namespace: "ns", Name: "smoke"}, &c); err != nil {
		r.Fatal(err)
	}
	f(&c)
	r.update(&c)
}

// TestOneJobAtATime: a check waits for the Job that this process created for another batch, although no cache has its check.
func TestOneJobAtATime(t *testing.T) {
	r := newTested(t, smokeTest())
	r.settle()
	first, batch := r.job(), r.s.Batch
	second := batch.DeepCopy()
	second.Name, second.UID = "web--x--4", "second"
	second.Status.Checks[0].JobName = ""
	r.s.Batch = second
	r.settle()
	r.is(v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning, "Job "+first.Name+" is not finished")
	if r.job() != nil {
		t.Fatal("two Jobs at a time")
	}
	r.end(first, batchv1.JobFailed, "")
	r.settle()
	if r.job() == nil || r.check().JobName == first.Name {
		t.Fatalf("%+v", r.check())
	}

	// Another process knows the Job by the status of its check. The next attempt does not wait for it.
	third := r.job()
	stored := second.DeepCopy()
	stored.OwnerReferences = []metav1.OwnerReference{{UID: "release", Controller: ptr.To(true)}}
	r.create(stored)
	r.restarted()
	r.s.Batch = batch.DeepCopy()
	r.s.Batch.Name, r.s.Batch.UID = "web--x--5", "third"
	r.settle()
	r.is(v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning, "Job "+third.Name+" is not finished: a workload")
	r.s.Release.Status.Attempt, r.s.Batch.Spec.Attempt = 2, 2
	r.settle()
	if r.job() == nil {
		t.Fatalf("%+v", r.check())
	}
}

// TestJobIsRead: what a Job found is read, however long the API server does not answer, and it is no verdict on pods that have gone.
func TestJobIsRead(t *testing.T) {
	r := newTested(t, smokeTest())
	r.settle()
	r.endJob(batchv1.JobFailed, "BackoffLimitExceeded")
	name := r.check().JobName
	r.gets[name] = apierrors.NewTooManyRequests("later", 1)
	r.clock.SetTime(testNow.Add(time.Hour))
	if _, err := r.checks.Next(t.Context(), r.s); err == nil || r.check().Phase != v1alpha1.CheckRunning {
		t.Fatalf("%v: %+v", err, r.check())
	}
	delete(r.gets, name)
	if err := r.api.Delete(t.Context(), r.pod("new-7")); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.is(v1alpha1.CheckInconclusive, v1alpha1.ReasonJobFailed, "failed, and pod new-7, which it may have tested, is gone")
}

// TestJobAgain: a Job that is deleted is created again, and another CronJob in the policy is another Job, later.
func TestJobAgain(t *testing.T) {
	r := newTested(t, smokeTest())
	r.settle()
	first := r.job()
	if err := r.api.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	r.settle()
	if again := r.job(); again == nil || again.Name != first.Name {
		t.Fatalf("%+v", r.check())
	}
	r.s.Policies[0].Generation = 2
	r.settle()
	if r.check().JobName != first.Name {
		t.Errorf("a change of the policy that changes no CronJob: %+v", r.check())
	}
	other := smokeTest()
	other.Name = "more"
	r.create(other)
	r.s.Policies[0].Spec.Checks[0].Job.CronJob = "more"
	r.settle()
	r.is(v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning, "Job "+first.Name+" is not finished: a workload has one")
	if r.check().JobName == first.Name {
		t.Errorf("%+v", r.check())
	}
}

// TestNoJob: small batches and batches without pods have none, and a check has none before its delay.
func TestNoJob(t *testing.T) {
	small := newTested(t, smokeTest())
	small.s.Batch.Spec.PodInfos = small.s.Batch.Spec.PodInfos[:9]
	small.settle()
	small.is(v1alpha1.CheckSkipped, v1alpha1.ReasonSmallBatch, "the batch has 9 pods, and a Job is created for batches of at least 10 pods")

	gone := newTested(t, smokeTest())
	for _, info := range gone.s.Batch.Spec.PodInfos {
		if err := gone.api.Delete(t.Context(), gone.pod(info.Pod)); err != nil {
			t.Fatal(err)
		}
	}
	gone.settle()
	gone.is(v1alpha1.CheckSkipped, v1alpha1.ReasonNoPods, "no pod of the batch is left")

	later := newTested(t, smokeTest(), inBackground, func(c *v1alpha1.PolicyCheck) { c.Delay = &metav1.Duration{Duration: time.Minute} })
	if step := later.settle(); step.After != time.Minute || later.job() != nil {
		t.Errorf("after %s, job %v", step.After, later.job())
	}
	later.is(v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning, "is not finished") // Watching would count as passed
	later.clock.SetTime(testNow.Add(time.Minute))
	later.settle()
	if later.job() == nil {
		t.Errorf("%+v", later.check())
	}
}

// TestJobOfRelease: a check of a release as a whole has a Job with any number of pods.
func TestJobOfRelease(t *testing.T) {
	r := newTested(t, smokeTest())
	s := r.s
	s.Release.Status.Checks, s.Batch = r.s.Batch.Status.Checks, nil
	s.Release.Status.Checks[0].Stage = v1alpha1.StageReleasePre
	s.Policies[0].Spec.Checks[0].Stage = v1alpha1.StageReleasePre
	for range 3 {
		step, err := r.checks.Next(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		if step.Write != nil {
			s.Release.Status = *step.Write(s).Release
		}
	}
	r.check().JobName = s.Release.Status.Checks[0].JobName
	if job := r.job(); job == nil || s.Release.Status.Checks[0].Phase != v1alpha1.CheckRunning {
		t.Errorf("%+v", s.Release.Status.Checks)
	}
}
