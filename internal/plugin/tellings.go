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
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// telling is how a condition of a release is shown: what it asks of people, the word for it in a
// list, a sentence, and commands for the next step.
type telling struct {
	needs Needs
	what  string
	says  string
	do    func(*finder) []Advice
}

// tellCondition returns the message of a condition, with the sentence of the catalog where the message of an earlier build
// does not have it.
func tellCondition(c *metav1.Condition) string {
	says := tellingOf(c).says
	switch defense.Detail(c) {
	case "":
		return says
	case c.Message:
		return says + " (" + c.Message + ")"
	default:
		return c.Message
	}
}

// tellingOf is how a condition is shown, by the catalog. A condition that this build does not know shows its reason.
func tellingOf(c *metav1.Condition) telling {
	e, ok := v1alpha1.Explain("ChangeWorkload", c)
	if !ok {
		return telling{NeedsNothing, c.Reason, fmt.Sprintf("%s is %s: %s.", c.Type, c.Status, c.Reason), nil}
	}
	return telling{needsOf(e.Needs), e.Word, strings.ReplaceAll(e.Sentence, "`", ""), steps[e.Next]}
}

func needsOf(n v1alpha1.Needs) Needs {
	switch n {
	case v1alpha1.NeedsAction:
		return NeedsAttention
	case v1alpha1.NeedsTime:
		return NeedsTime
	case v1alpha1.NeedsNotice:
		return NeedsNothing
	default:
		return NeedsNoWord
	}
}

// What may be done, for more than one condition.
var (
	doWatch = func(f *finder) []Advice { return []Advice{f.watch()} }
	doCheck = func(f *finder) []Advice { return []Advice{f.check()} }
	// doFailed is right when the version fails.
	doFailed = func(f *finder) []Advice { return f.waysOut() }
	// doMend is right when pods do not come up.
	doMend = func(f *finder) []Advice {
		do := []Advice{f.lookAtPods(), f.releaseAnother(f.sight)}
		return append(do, f.rollbackIfAny()...)
	}
	doSlow = func(f *finder) []Advice { return append(doMend(f), f.moreTime()) }
	// doStuck is right when the cluster does not make the pods.
	doStuck = func(f *finder) []Advice {
		do := []Advice{f.describe(), f.lookAtPods()}
		return append(do, f.rollbackIfAny()...)
	}
	doResume    = func(f *finder) []Advice { return []Advice{f.resume(&f.workload.Words)} }
	doGoOn      = func(f *finder) []Advice { return []Advice{f.goOn(&f.workload.Words)} }
	doDeletePod = func(f *finder) []Advice { return []Advice{f.deletePod(), f.goOn(&f.workload.Words)} }
	doBrake     = func(f *finder) []Advice { return append([]Advice{f.elsewhere()}, doMend(f)...) }
	doDescribe  = func(f *finder) []Advice { return []Advice{f.describe()} }
	doOverrides = func(f *finder) []Advice { return []Advice{f.overrides()} }
	// doDeleteStuck is right when a pod is stuck that the operator may not evict.
	doDeleteStuck = func(f *finder) []Advice { return append(f.deleteStuck(), f.lookAtPods()) }
	doHeld        = func(f *finder) []Advice { return []Advice{f.watch(), f.endHold()} }
	// doResumeHalted is right where the operator halted the rollout, and not a user. What
	// was resumed since is about to be told so.
	doResumeHalted = func(f *finder) []Advice {
		if do := f.resumeHalted(); do != nil {
			return do
		}
		return doWatch(f)
	}
	// doMadeAgain is right when it brings nothing to have such a pod go.
	doMadeAgain = func(f *finder) []Advice { return append(f.madeAgain(), f.lookAtPods()) }
)

// steps are the commands of each next step of the catalog.
var steps = map[v1alpha1.NextStep]func(*finder) []Advice{
	v1alpha1.StepWatch: doWatch, v1alpha1.StepFix: doFailed, v1alpha1.StepPods: doMend, v1alpha1.StepSlow: doSlow,
	v1alpha1.StepCluster: doStuck, v1alpha1.StepResume: doResume, v1alpha1.StepPartition: doGoOn, v1alpha1.StepDeletePods: doDeletePod,
	v1alpha1.StepHalted: doResumeHalted, v1alpha1.StepServer: doCheck, v1alpha1.StepLimit: doBrake, v1alpha1.StepEvents: doDescribe,
	v1alpha1.StepDenied: doDescribe, v1alpha1.StepSettings: doOverrides, v1alpha1.StepDeletePod: doDeleteStuck,
	v1alpha1.StepRecreated: doMadeAgain, v1alpha1.StepHold: doHeld,
	v1alpha1.StepEnforce: func(f *finder) []Advice { return f.defendFully(f.sight) },
}
