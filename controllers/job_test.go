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

package controllers_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/test/world"
)

// withJob is a release whose success waits for a Job.
func withJob() world.Options {
	return withPolicies(noDefault(), podHealth("policy", atStage(v1alpha1.StageReleasePost), func(p *v1alpha1.DefensePolicy) {
		p.Spec.Checks[0].PodHealth, p.Spec.Checks[0].Job = nil, &v1alpha1.JobCheck{CronJob: "smoke"}
	}))
}

// endJob plays a release until its Job ends like this.
func endJob(w *world.World, end batchv1.JobConditionType) {
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: "smoke", Labels: map[string]string{
		v1alpha1.CheckTemplateMark: "true",
	}}}
	cron.Spec.Suspend = ptr.To(true)
	must(w, w.Create(cron))
	create(w, web(2))
	w.Until("the Job ends", func() bool {
		if w.Change("web") == nil {
			return false
		}
		c := ofRelease(w, errorRate)
		return c != nil && c.JobName != "" && nil == w.PatchStatus(
			&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: world.Namespace, Name: c.JobName}},
			batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: end, Status: corev1.ConditionTrue, Reason: "Ended"}}},
		)
	})
}

// jobStories are stories of checks by a Job.
var jobStories = []world.Story{
	{Name: "a Job that completes", Options: withJob(), Run: func(w *world.World) {
		endJob(w, batchv1.JobComplete)
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if c := ofRelease(w, errorRate); c.Phase != v1alpha1.CheckPassed {
			w.Failf("the check is %+v", c)
		}
	}},
	{Name: "a Job that fails", Options: withJob(), Run: func(w *world.World) {
		endJob(w, batchv1.JobFailed)
		until(w, v1alpha1.ChangeWorkloadSuspend)
		w.Until("it is blocked", func() bool { return labelled(w, v1alpha1.SuspendLabel) })
	}},
	{Name: "a Job without a template", Options: withJob(), Run: func(w *world.World) {
		create(w, web(1))
		until(w, v1alpha1.ChangeWorkloadSuccess)
		if c := ofRelease(w, errorRate); c.Phase != v1alpha1.CheckError {
			w.Failf("the check is %+v", c)
		}
	}},
}

func TestJobs(t *testing.T) {
	for _, story := range jobStories {
		t.Run(story.Name, func(t *testing.T) { world.Reference(t, story) })
	}
}
