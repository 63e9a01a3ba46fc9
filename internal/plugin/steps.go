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
	allPods := Advice{f.goesOn(words.GoOn), "replaces all pods, one after another; use when the updated pods run well"}
	switch next {
	case v1alpha1.StepWatch:
		return []Advice{f.watch()}
	case v1alpha1.StepFix:
		return f.waysOut()
	case v1alpha1.StepPods:
		return f.podSteps()
	case v1alpha1.StepSlow:
		return append(f.podSteps(), Advice{
			f.kubectl("annotate", "--overwrite", f.target.String(), v1alpha1.SettingAnnotationPrefix+"rollback=after=5m,slow=30m"),
			"gives pods of this workload more time to come up; use when they are slow, and not broken",
		})
	case v1alpha1.StepCluster:
		return append([]Advice{f.describe(), f.showPods()}, f.rollback()...)
	case v1alpha1.StepExpression:
		return []Advice{{
			command("kubectl", "get", "changekinds", "-o", "yaml") + f.clusterFlags,
			"shows how kinds are declared; the message says what is wrong with the expression",
		}}
	case v1alpha1.StepResume:
		return []Advice{{f.goesOn(words.GoOn), "resumes the rollout; use when the user who " + words.Halted() + " it is done"}}
	case v1alpha1.StepPartition:
		return []Advice{allPods}
	case v1alpha1.StepDeletePods:
		one := Advice{f.kubectl("delete", "pod", "POD"), "replaces one pod, which is then verified; status -o wide shows which pods are updated"}
		return []Advice{one, allPods}
	case v1alpha1.StepHalted:
		if do := f.resumeHalted(); do != nil {
			return do
		}
		return []Advice{f.watch()} // a user resumed it since
	case v1alpha1.StepServer:
		return []Advice{f.check()}
	case v1alpha1.StepLimit:
		elsewhere := Advice{
			command("altershield", "status", "-A") + f.clusterFlags,
			"shows what else fails: a registry or a node that is down is not the fault of a version",
		}
		return append([]Advice{elsewhere}, f.podSteps()...)
	case v1alpha1.StepEvents, v1alpha1.StepDenied:
		return []Advice{f.describe()}
	case v1alpha1.StepSettings:
		return []Advice{{
			f.kubectl("get", f.target.String(), "-o", "jsonpath={.metadata.annotations}"),
			"shows the annotations of the workload, which hold its own settings; the message says what to write",
		}}
	case v1alpha1.StepDeletePod:
		return append(f.deleteStuck(), f.showPods())
	case v1alpha1.StepRecreated:
		return append(f.recreated(), f.showPods())
	case v1alpha1.StepHold:
		return []Advice{f.watch(), f.endHold()}
	case v1alpha1.StepEnforce:
		return []Advice{f.enforce()}
	default:
		return nil
	}
}

// waysOut returns the next steps after a release failed its verification.
func (f *finder) waysOut() []Advice {
	first := f.releaseAnother()
	if f.blocked() != nil {
		first = f.override()
	}
	return slices.Concat([]Advice{first}, f.rollback(), f.correct())
}

// podSteps returns the next steps for pods that do not come up.
func (f *finder) podSteps() []Advice {
	return append([]Advice{f.showPods(), f.releaseAnother()}, f.rollback()...)
}

func (f *finder) override() Advice {
	if _, templated := f.kind.TemplatePath(); !templated {
		return Advice{f.plugin("override", f.target.String(), "--next"), "lets the next release pass the block, which its success lifts"}
	}
	return Advice{
		f.plugin("override", f.target.String(), "--image", f.container+"=IMAGE"),
		"releases a fix past the block, which its success lifts; use when a fixed image is available (--next if Git or Helm releases it)",
	}
}

// releaseAnother is the next step if nothing denies a release.
func (f *finder) releaseAnother() Advice {
	if _, templated := f.kind.TemplatePath(); !templated {
		return Advice{f.kubectl("edit", f.target.String()), "releases another version; use when a fix is available"}
	}
	return Advice{f.kubectl("set", "image", f.target.String(), f.container+"=IMAGE"), "releases another version; use when a fix is available"}
}

// rollback asks for a rollback, if a good version exists. In observe mode the operator refuses the request.
func (f *finder) rollback() []Advice {
	to := f.goodVersion()
	if level, _ := f.defense(); to == nil || level == DefenseObserved {
		return nil
	}
	return []Advice{{
		f.plugin("rollback", f.target.String()),
		"sets the workload back to " + describeVersion(short(to.Version), to.images) +
			", the newest that succeeded, and puts this one into quarantine; use when users suffer and no fix is available",
	}}
}

// resumeHalted ends the operator's halt of the rollout.
func (f *finder) resumeHalted() []Advice {
	if !f.halted() {
		return nil
	}
	does := "resumes the rollout of the version that failed"
	if f.blocked() != nil {
		does += ", and leaves the block"
	}
	return []Advice{{f.goesOn(f.workload.Words.Resume), does + "; use when the rest of the rollout does no harm"}}
}

// correct returns the commands that correct the verdicts on a failed release.
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
			"corrects the verdict: the release continues" + lifted + "; use when the verdict was wrong",
		}}
	}
	switch verified.Reason {
	case v1alpha1.ReasonOrderCheckFailed:
		return pass("--order")
	case v1alpha1.ReasonCheckFailed, v1alpha1.ReasonRolloutStuck:
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
			"opens the policy that failed the pods: it can fail the next batch, too; use when the policy is wrong",
		})
	}
	return do
}

func (f *finder) watch() Advice {
	return Advice{f.plugin("status", f.target.String(), "-w"), "shows each change"}
}

func (f *finder) check() Advice {
	return Advice{command("altershield", "check") + f.clusterFlags, "checks the operator: whether it runs, and its webhooks are called"}
}

func (f *finder) describe() Advice {
	return Advice{f.kubectl("describe", f.target.String()), "shows the events of the operator and of Kubernetes"}
}

func (f *finder) showPods() Advice {
	return Advice{f.plugin("status", f.target.String(), "-o", "wide"), "shows each pod, and what it waits for"}
}

func (f *finder) endHold() Advice {
	return Advice{f.plugin("resume", f.target.String()), "continues the rollout without its verdicts; use when waiting does more harm"}
}

// enroll enrols the namespace.
func (a advisor) enroll(namespace, mode string) Advice {
	if mode == modeObserve {
		return Advice{
			command("altershield", "enroll", namespace, "--mode="+mode) + a.clusterFlags,
			"enrols the namespace in observe mode; use it to see first what would be blocked or rolled back",
		}
	}
	return Advice{
		command("altershield", "enroll", namespace) + a.clusterFlags,
		"enrols the namespace in enforce mode; use when its workloads have readiness probes",
	}
}

// enforce puts a workload in observe mode into enforce mode.
func (f *finder) enforce() Advice {
	does := "defends this workload; use when the events of observe mode were right"
	if owner := f.workload.ObservingOwner(); owner != "" {
		does = "defends it although the " + owner + " owns it; use when the owner does not undo what the operator does"
	}
	return Advice{f.plugin("enroll", f.target.String(), "--mode="+modeEnforce), does}
}

// deleteStuck deletes a pod that the operator may not evict.
func (f *finder) deleteStuck() []Advice {
	if said := f.condition(v1alpha1.ConditionEvictionBlocked); said != nil {
		if pod, ok := rollback.PodToDelete(said.Message); ok {
			return []Advice{f.deleteOf(pod)}
		}
	}
	return nil
}

// recreated has a StatefulSet create a pod from the current version, and then deletes the pod.
func (f *finder) recreated() (do []Advice) {
	switch w := f.workload; {
	case w.Hold != nil:
		do = append(do, f.endHold())
	case w.Bare:
		do = append(do, Advice{f.goesOn(w.Words.GoOn), "gives the update strategy a partition that keeps no pod, " +
			"so that pods are created from the current version; use unless it is missing on purpose"})
	}
	return append(do, f.deleteStuck()...)
}

// adviseDown returns the commands for a pod that is down.
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
		"recreates the pod from the current version, and its volumes stay; use when the application tolerates it",
	}
}

// failingPolicies returns the policies whose checks failed batches. They fail the next batch, too, if they find the same.
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
