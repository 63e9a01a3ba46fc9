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

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// advisor writes commands about one workload as they are to be typed.
type advisor struct {
	// target is the workload, as in deployment/sleep, namespace where it is.
	target, namespace string
	// flags follow each command: the namespace where it is not the one that commands
	// have by themselves, and the cluster where it was named by flags.
	flags string
	// clusterFlags are those without the namespace.
	clusterFlags string
}

// plugin is a command of this program.
func (a advisor) plugin(words ...string) string {
	return a.kubectl(append([]string{"altershield"}, words...)...)
}

// kubectl is a command of kubectl.
func (a advisor) kubectl(words ...string) string { return command(words...) + a.flags }

// command is a command of kubectl, each word as a shell needs it.
func command(words ...string) string {
	text := "kubectl"
	for _, word := range words {
		text += " " + defense.ShellWord(word)
	}
	return text
}

// goesOn is one of the commands by which a rollout goes on.
func (a advisor) goesOn(command string) string { return "kubectl " + command + a.flags }

func (a advisor) override(s *sight) Advice {
	return Advice{
		a.plugin("override", a.target, "--image", container(s)+"=IMAGE"),
		"releases a fix past the block, which its success lifts; right when a fixed image is there (or --next, where Git or Helm releases it)",
	}
}

// releaseAnother is right where nothing denies a release.
func (a advisor) releaseAnother(s *sight) Advice {
	return Advice{
		a.kubectl("set", "image", a.target, container(s)+"=IMAGE"),
		"releases another version; right when a fix is there",
	}
}

// container is the one that images are most often of.
func container(s *sight) string {
	if len(s.containers) == 0 {
		return "CONTAINER"
	}
	return s.containers[0]
}

func (a advisor) rollback(to *remembered) Advice {
	what := "version " + short(to.Version)
	if len(to.images) > 0 {
		what += " (" + strings.Join(to.images, ", ") + ")"
	}
	what += ", the newest that succeeded"
	if to.unnumbered {
		what = "the newest version that succeeded"
	}
	return Advice{
		a.plugin("rollback", a.target),
		"sets the workload back to " + what + ", and puts this one into quarantine; right when users suffer and no fix is at hand",
	}
}

func (a advisor) unquarantine(q *Quarantined) Advice {
	return Advice{
		a.kubectl("annotate", a.target, v1alpha1.UnquarantineAnnotation+"="+q.Version),
		"lets that version be released again; right when another cause made it fail, and is over",
	}
}

// maxPodsNamed is how many pods a command names.
const maxPodsNamed = 3

// correct is how verdicts are corrected that fail the current release.
func (a advisor) correct(s *sight) []Advice {
	c := s.current()
	if c == nil {
		return nil
	}
	verified := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionVerified)
	if verified == nil || verified.Status != metav1.ConditionFalse {
		return nil
	}
	does := "says that the verdict was wrong, so that the release goes on; right when you have looked, and nothing is wrong"
	if s.blocked() != nil {
		does = "says that the verdict was wrong, so that the release goes on, and the block is lifted; right when you have looked, and nothing is wrong"
	}
	switch verified.Reason {
	case v1alpha1.ReasonOrderCheckFailed:
		return []Advice{{a.plugin("verdict", "pass", a.target, "--order"), does}}
	case v1alpha1.ReasonCheckFailed:
		return []Advice{{a.plugin("verdict", "pass", a.target, "--checks"), does}}
	case v1alpha1.ReasonPodFailed:
		var pods []string
		for _, p := range c.Status.DefenseCheckFailPods {
			pods = append(pods, "--pod", p.Pod)
		}
		unnamed := func(p v1alpha1.PodResult) bool { return len(validation.IsDNS1123Subdomain(p.Pod)) > 0 }
		if len(pods) > 2*maxPodsNamed || slices.ContainsFunc(c.Status.DefenseCheckFailPods, unnamed) {
			pods = nil // all of them
		}
		do := []Advice{{a.plugin(append([]string{"verdict", "pass", a.target}, pods...)...), does}}
		for _, p := range failingPolicies(s.batches[c.UID]) {
			do = append(do, Advice{
				command("edit", "defensepolicy/"+p.Name, "-n", p.Namespace) + a.clusterFlags,
				"opens the policy that failed the pods, and fails those of the next batch as well, where it finds the same; right when the policy is wrong",
			})
		}
		return do
	default:
		return nil
	}
}

func (a advisor) watch() Advice {
	return Advice{a.plugin("status", a.target, "-w"), "shows how it goes on"}
}

func (a advisor) wait() Advice {
	return Advice{a.plugin("wait", a.target), "waits for the end of the release, and its exit code tells it"}
}

func (a advisor) check() Advice {
	return Advice{command("altershield", "check") + a.clusterFlags, "looks at the operator itself: whether it runs, and its webhooks are called"}
}

func (a advisor) enroll() Advice {
	return Advice{command("altershield", "enroll", a.namespace) + a.clusterFlags, "enrols the namespace in enforce mode; right when its workloads have readiness probes"}
}

func (a advisor) observeFirst() Advice {
	return Advice{
		command("altershield", "enroll", a.namespace, "--mode="+modeObserve) + a.clusterFlags,
		"enrols the namespace in observe mode; right to see first what would be blocked or rolled back",
	}
}

func (a advisor) optIn() Advice {
	return Advice{a.plugin("enroll", a.target), "puts it back into the defense"}
}

// defendFully is how a workload in observe mode is defended.
func (a advisor) defendFully(s *sight) []Advice {
	does := "defends this workload; right when the events of observe mode were right"
	if owner := s.workload.ObservingOwner(); owner != "" {
		does = "defends it although the " + owner + " owns it; right when the owner does not undo what the operator does"
	}
	return []Advice{{a.plugin("enroll", a.target, "--mode="+modeEnforce), does}}
}

// resume is right where a user halted the rollout.
func (a advisor) resume(words *defense.Words) Advice {
	return Advice{a.goesOn(words.GoOn), "lets the rollout go on; right when who " + words.Halted() + " it is done"}
}

// goOn is right where a user keeps pods from being replaced.
func (a advisor) goOn(words *defense.Words) Advice {
	return Advice{a.goesOn(words.GoOn), "has all pods replaced, one after another; right when those that have the version do well"}
}

// deletePod is right where pods are replaced only when somebody deletes them.
func (a advisor) deletePod() Advice {
	return Advice{a.kubectl("delete", "pod", "POD"), "replaces one pod, which is verified then; status -o wide shows which have the version"}
}

func (a advisor) describe() Advice {
	return Advice{a.kubectl("describe", a.target), "shows its events: what the operator did, and what Kubernetes says"}
}

func (a advisor) lookAtPods() Advice {
	return Advice{a.plugin("status", a.target, "-o", "wide"), "shows each pod, and what it waits for"}
}

// deleteStuck is what the operator says about a pod that it may not evict.
func (f *finder) deleteStuck() []Advice {
	said := f.condition(v1alpha1.ConditionEvictionBlocked)
	if said == nil {
		return nil
	}
	pod, ok := defense.PodToDelete(said.Message)
	if !ok {
		return nil
	}
	return []Advice{f.deleteOf(pod)}
}

// madeAgain is what keeps a pod from being made of another version, and to delete it once
// that is gone.
func (f *finder) madeAgain() (do []Advice) {
	w := f.workload
	switch {
	case w.Hold != nil:
		do = append(do, f.endHold())
	case w.Bare:
		do = append(do, Advice{f.goesOn(w.Words.GoOn), "gives the update strategy a partition that keeps no pod, so that pods are made of the current version; right when nobody left it out on purpose"})
	}
	return append(do, f.deleteStuck()...)
}

// moreTime is right where pods are only slow.
func (a advisor) moreTime() Advice {
	return Advice{
		a.kubectl("annotate", "--overwrite", a.target, v1alpha1.SettingAnnotationPrefix+"rollback=after=5m,slow=30m"),
		"gives pods of this workload more time to come up; right when they are slow, and not broken",
	}
}

func (a advisor) endHold() Advice {
	return Advice{a.plugin("resume", a.target), "lets the rollout go on without its verdicts; right when waiting does more harm"}
}

// elsewhere is right where the cause may be none of the version.
func (a advisor) elsewhere() Advice {
	return Advice{command("altershield", "status", "-A") + a.clusterFlags, "shows what else fails: a registry or a node that is down is no fault of a version"}
}

// settings are those in force.
func (a advisor) overrides() Advice {
	return Advice{
		a.kubectl("get", a.target, "-o", "jsonpath={.metadata.annotations}"),
		"shows the annotations of the workload, by which it has settings of its own; the message says what to write",
	}
}
