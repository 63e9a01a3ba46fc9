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

package plugin

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
)

// steps returns the commands of a next step of the catalog.
func (f *finder) steps(next v1alpha1.NextStep) []Advice {
	words := &f.workload.Words
	allPods := Advice{f.goesOn(words.GoOn), "has all pods replaced, one after another; right when those that have the version do well"}
	switch next {
	case v1alpha1.StepWatch:
		return []Advice{f.watch()}
	case v1alpha1.StepFix:
		return f.waysOut()
	case v1alpha1.StepPods:
		return f.mend()
	case v1alpha1.StepSlow:
		return append(f.mend(), Advice{
			f.kubectl("annotate", "--overwrite", f.target.String(), v1alpha1.SettingAnnotationPrefix+"rollback=after=5m,slow=30m"),
			"gives pods of this workload more time to come up; right when they are slow, and not broken",
		})
	case v1alpha1.StepCluster:
		return append([]Advice{f.describe(), f.lookAtPods()}, f.rollback()...)
	case v1alpha1.StepResume:
		return []Advice{{f.goesOn(words.GoOn), "lets the rollout go on; right when the user who " + words.Halted() + " it is done"}}
	case v1alpha1.StepPartition:
		return []Advice{allPods}
	case v1alpha1.StepDeletePods:
		return []Advice{{f.kubectl("delete", "pod", "POD"), "replaces one pod, which is verified then; status -o wide shows which have the version"}, allPods}
	case v1alpha1.StepHalted:
		if do := f.resumeHalted(); do != nil {
			return do
		}
		return []Advice{f.watch()} // a user resumed it since
	case v1alpha1.StepServer:
		return []Advice{f.check()}
	case v1alpha1.StepLimit:
		elsewhere := Advice{command("altershield", "status", "-A") + f.clusterFlags, "shows what else fails: a registry or a node that is down is no fault of a version"}
		return append([]Advice{elsewhere}, f.mend()...)
	case v1alpha1.StepEvents, v1alpha1.StepDenied:
		return []Advice{f.describe()}
	case v1alpha1.StepSettings:
		return []Advice{{
			f.kubectl("get", f.target.String(), "-o", "jsonpath={.metadata.annotations}"),
			"shows the annotations of the workload, by which it has settings of its own; the message says what to write",
		}}
	case v1alpha1.StepDeletePod:
		return append(f.deleteStuck(), f.lookAtPods())
	case v1alpha1.StepRecreated:
		return append(f.recreated(), f.lookAtPods())
	case v1alpha1.StepHold:
		return []Advice{f.watch(), f.endHold()}
	case v1alpha1.StepEnforce:
		return []Advice{f.enforce()}
	default:
		return nil
	}
}

// waysOut are those of a release that failed its verification.
func (f *finder) waysOut() []Advice {
	first := f.releaseAnother()
	if f.blocked() != nil {
		first = f.override()
	}
	return slices.Concat([]Advice{first}, f.rollback(), f.correct())
}

// mend is right when pods do not come up.
func (f *finder) mend() []Advice {
	return append([]Advice{f.lookAtPods(), f.releaseAnother()}, f.rollback()...)
}

func (f *finder) override() Advice {
	return Advice{
		f.plugin("override", f.target.String(), "--image", f.container+"=IMAGE"),
		"releases a fix past the block, which its success lifts; right when a fixed image is there (or --next, where Git or Helm releases it)",
	}
}

// releaseAnother is right where nothing denies a release.
func (f *finder) releaseAnother() Advice {
	return Advice{f.kubectl("set", "image", f.target.String(), f.container+"=IMAGE"), "releases another version; right when a fix is there"}
}

// rollback is the undo, where there is one. A request for a rollback in observe mode is refused.
func (f *finder) rollback() []Advice {
	to := f.goodVersion()
	if level, _ := f.defense(); to == nil || level == DefenseObserved {
		return nil
	}
	return []Advice{{
		f.plugin("rollback", f.target.String()),
		"sets the workload back to " + describeVersion(short(to.Version), to.images) +
			", the newest that succeeded, and puts this one into quarantine; right when users suffer and no fix is at hand",
	}}
}

// resumeHalted takes back what the operator halted the rollout by.
func (f *finder) resumeHalted() []Advice {
	if !f.halted() {
		return nil
	}
	does := "lets the rollout of the version that failed go on"
	if f.blocked() != nil {
		does += ", and leaves the block"
	}
	return []Advice{{f.goesOn(f.workload.Words.Resume), does + "; right when you know that the rest of it does no harm"}}
}

// correct is how verdicts are corrected that fail the current release.
func (f *finder) correct() []Advice {
	c, verified := f.current(), f.condition(v1alpha1.ConditionVerified)
	if verified == nil || verified.Status != "False" {
		return nil
	}
	lifted := ""
	if f.blocked() != nil {
		lifted = ", and the block is lifted"
	}
	pass := func(flags ...string) []Advice {
		return []Advice{{
			f.plugin(append([]string{"verdict", "pass", f.target.String()}, flags...)...),
			"says that the verdict was wrong, so that the release goes on" + lifted + "; right when you have looked, and nothing is wrong",
		}}
	}
	switch verified.Reason {
	case v1alpha1.ReasonOrderCheckFailed:
		return pass("--order")
	case v1alpha1.ReasonCheckFailed:
		return pass("--checks")
	case v1alpha1.ReasonPodFailed:
	default:
		return nil
	}
	var pods []string
	for _, p := range c.Status.DefenseCheckFailPods {
		pods = append(pods, "--pod", p.Pod)
	}
	unnamed := func(p v1alpha1.PodResult) bool { return len(validation.IsDNS1123Subdomain(p.Pod)) > 0 }
	if len(pods) > 2*maxPodsNamed || slices.ContainsFunc(c.Status.DefenseCheckFailPods, unnamed) {
		pods = nil // all of them
	}
	do := pass(pods...)
	for _, p := range failingPolicies(f.batches[c.UID]) {
		do = append(do, Advice{
			command("edit", "defensepolicy/"+p.Name, "-n", p.Namespace) + f.clusterFlags,
			"opens the policy that failed the pods, and fails those of the next batch as well, where it finds the same; right when the policy is wrong",
		})
	}
	return do
}

func (f *finder) watch() Advice {
	return Advice{f.plugin("status", f.target.String(), "-w"), "shows how it goes on"}
}

func (f *finder) check() Advice {
	return Advice{command("altershield", "check") + f.clusterFlags, "looks at the operator itself: whether it runs, and its webhooks are called"}
}

func (f *finder) describe() Advice {
	return Advice{f.kubectl("describe", f.target.String()), "shows its events: what the operator did, and what Kubernetes says"}
}

func (f *finder) lookAtPods() Advice {
	return Advice{f.plugin("status", f.target.String(), "-o", "wide"), "shows each pod, and what it waits for"}
}

func (f *finder) endHold() Advice {
	return Advice{f.plugin("resume", f.target.String()), "lets the rollout go on without its verdicts; right when waiting does more harm"}
}

// enroll enrols the namespace.
func (a advisor) enroll(namespace, mode string) Advice {
	if mode == modeObserve {
		return Advice{
			command("altershield", "enroll", namespace, "--mode="+mode) + a.clusterFlags,
			"enrols the namespace in observe mode; right to see first what would be blocked or rolled back",
		}
	}
	return Advice{command("altershield", "enroll", namespace) + a.clusterFlags, "enrols the namespace in enforce mode; right when its workloads have readiness probes"}
}

// enforce is how a workload in observe mode is defended.
func (f *finder) enforce() Advice {
	does := "defends this workload; right when the events of observe mode were right"
	if owner := f.workload.ObservingOwner(); owner != "" {
		does = "defends it although the " + owner + " owns it; right when the owner does not undo what the operator does"
	}
	return Advice{f.plugin("enroll", f.target.String(), "--mode="+modeEnforce), does}
}

// deleteStuck is what the operator says about a pod that it may not evict.
func (f *finder) deleteStuck() []Advice {
	if said := f.condition(v1alpha1.ConditionEvictionBlocked); said != nil {
		if pod, ok := rollback.PodToDelete(said.Message); ok {
			return []Advice{f.deleteOf(pod)}
		}
	}
	return nil
}

// recreated stops a pod from being created from another version, and deletes it once that is done.
func (f *finder) recreated() (do []Advice) {
	switch w := f.workload; {
	case w.Hold != nil:
		do = append(do, f.endHold())
	case w.Bare:
		do = append(do, Advice{f.goesOn(w.Words.GoOn), "gives the update strategy a partition that keeps no pod, so that pods are created from the current version; right when nobody left it out on purpose"})
	}
	return append(do, f.deleteStuck()...)
}

// adviseDown is what to type about a pod that is down.
func (f *finder) adviseDown(p downPod) (do []Advice) {
	if p.old && f.waitsFor(p.Pod) {
		do = append(do, f.deleteOf(p.Name))
	}
	if c := p.CrashLoop; c != nil {
		do = append(do, Advice{
			f.kubectl("logs", p.Name, "-c", c.Container, "--previous"), "shows what the container wrote before it ended",
		})
	}
	return do
}

func (f *finder) deleteOf(pod string) Advice {
	return Advice{
		f.kubectl("delete", "pod", pod),
		"has the pod created from the current version, and its volumes stay; right when the application bears that it goes",
	}
}

// failingPolicies returns the policies whose checks failed batches. They fail the next batch as well, where they find the same.
func failingPolicies(batches []*v1alpha1.ChangePod) (policies []types.NamespacedName) {
	for _, b := range batches {
		for i := range b.Status.Checks {
			c := &b.Status.Checks[i]
			names := strings.Split(c.Name, "/")
			if c.Phase != v1alpha1.CheckFailed || c.Mode == v1alpha1.ModeObserve || len(names) != 3 {
				continue
			}
			if p := (types.NamespacedName{Namespace: names[0], Name: names[1]}); !slices.Contains(policies, p) {
				policies = append(policies, p)
			}
		}
	}
	return policies
}
