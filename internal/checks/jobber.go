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
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// jobber runs the checks of type job. It reads Jobs and CronJobs from the API server: a team lets it in its own namespace only, so they
// cannot be watched. The rights are in config/rbac/job_runner_role.yaml, which is not bound.
type jobber struct {
	view   cluster.View
	client client.Client
	clock  clock.PassiveClock

	// mu is held while a Job is created, so that two checks of a workload do not create Jobs at a time. No check waits for it.
	mu sync.Mutex
	// last has the name of the last Job that this process created for each attempt of a release: caches may not have its check yet.
	last *lru.LRUExpireCache
}

// oneJob ends the message of a check whose Job waits, and is not created yet.
const oneJob = "a workload has one Job at a time"

// maxLastJobs is the number of remembered Jobs.
const maxLastJobs = 1000

func newJobber(c *cluster.Cluster) *jobber {
	return &jobber{view: c.View, client: c.Client, clock: c.Clock, last: lru.NewLRUExpireCacheWithClock(maxLastJobs, c.Clock)}
}

// next makes one step of a check. The name of the Job is in the status before the Job is created. The check is never Watching, which
// would count as passed.
func (j *jobber) next(
	ctx context.Context, s *Subject, of *policy.Check, c *v1alpha1.CheckStatus,
) (next v1alpha1.CheckStatus, after time.Duration, err error) {
	in := jobInput{Now: j.clock.Now(), Check: of, Status: followed(c, of, s), Release: s.Release.UID}
	next = in.Status
	if s.Batch != nil && len(s.Batch.Spec.PodInfos) < minJobPods {
		next.Phase, next.Reason = v1alpha1.CheckSkipped, v1alpha1.ReasonSmallBatch
		next.Message = fmt.Sprintf("the batch has %d pods, and a Job is created for batches of at least %d pods", len(s.Batch.Spec.PodInfos),
			minJobPods)
		return next, 0, nil
	}
	if name := jobName(s, of); next.JobName != name || next.Phase == v1alpha1.CheckWatching {
		next.JobName, next.Phase, next.Reason = name, v1alpha1.CheckRunning, v1alpha1.ReasonJobRunning
		next.Message = "Job " + name + " is not finished"
		return next, 0, nil
	}
	if begins := timeOf(c.StartTime).Add(of.Delay); in.Now.Before(begins) {
		return next, begins.Sub(in.Now), nil
	}
	if in.Job, in.Problem, err = j.get(ctx, s, next.JobName); err != nil {
		return next, 0, err // it may have failed
	}
	switch {
	case in.Problem != "":
		in.Reason = v1alpha1.ReasonJobNotCreated
	case in.Job != nil:
		pods := corev1.PodList{}
		if err = j.view.Cached.List(ctx, &pods, cluster.OwnedBy(in.Job.Namespace, in.Job.UID)...); err != nil {
			return next, 0, fmt.Errorf("list pods of job %s: %w", in.Job.Name, err)
		}
		in.Pending = pendingPod(pods.Items, in.Now, timeOf(in.Status.Deadline))
		if end := jobEnd(in.Job); end != nil && end.Type == batchv1.JobFailed && s.Batch != nil {
			of, err := podsOf(ctx, j.view, s)
			if err != nil {
				return next, 0, err
			}
			in.Gone = gonePod(s.Batch, namesOf(of))
		}
	default:
		var pods []workload.Pod
		if pods, err = podsOf(ctx, j.view, s); err != nil {
			return next, 0, err
		}
		if s.Batch != nil && len(namesOf(pods)) == 0 {
			return withoutPods(next), 0, nil
		}
		if !j.mu.TryLock() {
			return next, time.Second, nil
		}
		defer j.mu.Unlock()
		if in.Job, in.Reason, in.Problem, err = j.create(ctx, s, &in, pods); err != nil {
			return next, 0, err
		}
	}
	next, after = decideJob(in)
	return next, after, nil
}

// get reads a Job; nil if it does not exist. The problem is why it must not be read.
func (j *jobber) get(ctx context.Context, s *Subject, name string) (job *batchv1.Job, problem string, err error) {
	job = &batchv1.Job{}
	err = j.view.Live.Get(ctx, types.NamespacedName{Namespace: s.Release.Namespace, Name: name}, job)
	switch {
	case apierrors.IsNotFound(err):
		return nil, "", nil
	case apierrors.IsForbidden(err):
		return nil, j.explain(s, err, "get Jobs"), nil
	case err != nil:
		return nil, "", fmt.Errorf("get job %s: %w", name, err)
	}
	return job, "", nil
}

// explain returns the problem of a request that failed, with the remedy for a missing right. Quotas and admission forbid, too.
func (j *jobber) explain(s *Subject, err error, verb string) string {
	problem := fmt.Sprintf("the operator cannot %s: %s", verb, wording.Cut(err.Error()))
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), " cannot ") {
		return problem
	}
	return fmt.Sprintf("the operator may not %s in namespace %s: kubectl create rolebinding altershield-jobs -n %s "+
		"--clusterrole=altershieldoperator-job-runner --serviceaccount=%s:altershieldoperator-controller-manager",
		verb, s.Release.Namespace, s.Release.Namespace, j.view.Operator)
}

// create creates the Job of a check, unless another Job of the release runs. The problem is why it could not.
func (j *jobber) create(
	ctx context.Context, s *Subject, in *jobInput, pods []workload.Pod,
) (job *batchv1.Job, reason, problem string, err error) {
	cron, problem := j.template(ctx, s, in.Check.Job.CronJob)
	if problem != "" {
		return nil, v1alpha1.ReasonJobNotCreated, problem, nil
	}
	if reason, problem, err = j.waits(ctx, s, in.Status.JobName); problem != "" || err != nil {
		return nil, reason, problem, err
	}
	deadline := timeOf(in.Status.Deadline)
	if !in.Now.Before(deadline) {
		return nil, v1alpha1.ReasonJobNotCreated, "Job " + in.Status.JobName + " was not created in time", nil
	}
	job = newJob(s, &in.Status, &cron.Spec.JobTemplate, pods, in.Now)
	j.last.Add(attemptOf(s), job.Name, deadline.Sub(in.Now))
	switch err = j.client.Create(ctx, job); {
	case apierrors.IsAlreadyExists(err):
		job, problem, err = j.get(ctx, s, job.Name)
		return job, v1alpha1.ReasonJobNotCreated, problem, err
	case err != nil:
		return nil, v1alpha1.ReasonJobNotCreated, j.explain(s, err, "create Jobs"), nil
	}
	return job, "", "", nil
}

func attemptOf(s *Subject) string {
	return fmt.Sprintf("%s/%d", s.Release.UID, s.Release.Status.Attempt)
}

// template reads the CronJob of a check. The problem is why its Jobs must not run.
func (j *jobber) template(ctx context.Context, s *Subject, name string) (cron *batchv1.CronJob, problem string) {
	cron = &batchv1.CronJob{}
	err := j.view.Live.Get(ctx, types.NamespacedName{Namespace: s.Release.Namespace, Name: name}, cron)
	var matches bool
	if err == nil {
		matches, err = j.selects(ctx, s.Workload, cron.Spec.JobTemplate.Spec.Template.Labels)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("CronJob %s does not exist in namespace %s: create it with suspend: true, or correct job.cronJob", name,
			s.Release.Namespace)
	case err != nil:
		return nil, j.explain(s, err, "get CronJobs")
	case cron.Labels[v1alpha1.CheckTemplateMark] != "true":
		return nil, fmt.Sprintf("CronJob %s does not allow checks to run it: set its label %s=true", name, v1alpha1.CheckTemplateMark)
	case !ptr.Deref(cron.Spec.Suspend, false):
		return nil, fmt.Sprintf("CronJob %s is not suspended, and would run by its schedule, too: set its spec.suspend to true", name)
	case matches:
		return nil, fmt.Sprintf("pods of CronJob %s have the labels that %s selects, and Services would send them traffic: "+
			"change the labels in its pod template", name, s.Workload.Kind()+" "+s.Workload.Name)
	}
	return cron, ""
}

// selects reports whether the selector of a workload selects pods with these labels.
func (j *jobber) selects(ctx context.Context, w *workload.Workload, podLabels map[string]string) (bool, error) {
	stored, err := j.view.Stored(ctx, w)
	if err != nil || stored == nil {
		return false, err
	}
	var of struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(stored.Object, &of); err != nil {
		return false, err
	}
	by, err := metav1.LabelSelectorAsSelector(of.Spec.Selector)
	return err == nil && by.Matches(labels.Set(podLabels)), err
}

// waits returns the problem of a Job that waits for the Job of another check of the release. Jobs of other releases do not count:
// their activeDeadlineSeconds ends them.
func (j *jobber) waits(ctx context.Context, s *Subject, own string) (reason, problem string, err error) {
	batches, err := j.view.Batches(ctx, s.Release)
	if err != nil {
		return "", "", err
	}
	checks := slices.Clone(s.Release.Status.Checks)
	for i := range batches {
		if record.IsCurrentBatch(s.Release, &batches[i]) {
			checks = append(checks, batches[i].Status.Checks...)
		}
	}
	last, _ := j.last.Get(attemptOf(s))
	name, _ := last.(string)
	names := []string{name}
	for i := range checks {
		if record.CheckMayGoOn(&checks[i]) && !strings.HasSuffix(checks[i].Message, oneJob) {
			names = append(names, checks[i].JobName)
		}
	}
	for _, name := range names {
		if name == "" || name == own {
			continue
		}
		job, problem, err := j.get(ctx, s, name)
		switch {
		case problem != "" || err != nil:
			return v1alpha1.ReasonJobNotCreated, problem, err
		case job != nil && jobEnd(job) == nil && isOwned(job, s.Release.UID):
			return v1alpha1.ReasonJobRunning, "Job " + name + " is not finished: " + oneJob, nil
		}
	}
	return "", "", nil
}
