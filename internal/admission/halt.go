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

package admission

import (
	"fmt"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

// The halt of a workload, in requests of its users: a manifest that is applied again leaves
// it, and a user resumes by an override, by another release or by a value of the user's own.

// halted reports whether the stored workload is halted by the operator.
func (r *Request) halted() bool {
	return r.Old.Paused && r.Old.Annotations[v1alpha1.HaltedAnnotation] != ""
}

// halts reports whether the request halts the workload.
func (r *Request) halts() bool {
	return r.Old.Annotations[v1alpha1.HaltedAnnotation] == "" && r.New.Annotations[v1alpha1.HaltedAnnotation] != ""
}

// takeBackPause resumes what an earlier version's failure paused when another
// one is released that is not blocked, and takes away what says so as soon as
// the workload is resumed, by whomever: a pause that is set later is not the
// operator's. A pause that the client sets in this request is its own.
func (r *Request) takeBackPause(want *Object) {
	if _, halted := r.Old.Annotations[v1alpha1.HaltedAnnotation]; !halted {
		return
	}
	_, back := r.undo()
	switch {
	case r.Old.Paused && r.Releases() && (back || r.overrides() || !r.Old.suspended()):
		want.Paused = false
	case r.reappliesHalted() && !r.hasOverride():
		want.Paused = true
	}
	if !r.Old.Paused || !want.Paused {
		delete(want.Annotations, v1alpha1.HaltedAnnotation)
		delete(want.Annotations, v1alpha1.HaltedFromAnnotation)
	}
}

// reappliesHalted reports whether the request writes what the workload had before it was
// halted, as a manifest does. A kind that knows a pause has a command to resume, and few
// manifests have the field.
func (r *Request) reappliesHalted() bool {
	if !r.halted() || r.New.Paused || r.New.Unknown || r.Old.Words.HaltedBy == "" || r.New.ObservingOwner() != "" {
		return false
	}
	return r.New.Pacing == nil || r.New.Partition == defense.HaltedPartition(r.Old.Annotations)
}

// overridesHalt reports whether the request resumes the workload by an override.
func (r *Request) overridesHalt() bool { return r.reappliesHalted() && r.hasOverride() }

// haltChanges are the changes of what halts the workload.
func (r *Request) haltChanges(want *Object) []Change {
	if r.New.Paused == want.Paused {
		return nil
	}
	if want.Paused {
		return []Change{{Target: WorkloadPaused}}
	}
	haltedAs := r.Old.Annotations
	if r.Operation == Create {
		haltedAs = r.New.Annotations
	}
	return []Change{{Target: WorkloadPaused, Remove: true, Value: haltedAs[v1alpha1.HaltedFromAnnotation]}}
}

// PutBack is the warning of a request that sets what a halt or a hold changed, and of which
// these changes put that back; empty where they do not.
func (r *Request) PutBack(changes []Change) string {
	if r.Own || r.Operation != Update || r.Releases() {
		return ""
	}
	for _, c := range changes {
		what := ""
		switch {
		case c.Target == WorkloadPaused && !c.Remove:
			failed := r.Old.Annotations[v1alpha1.HaltedAnnotation]
			what = fmt.Sprintf("the rollout stays halted%s, because version %s failed", r.Old.Words.Means(), failed)
		case c.Target == WorkloadPace && c.Pace == r.Old.Pace:
			what = "the rollout stays held, until its pods are verified"
		default:
			continue
		}
		return fmt.Sprintf("%s: the value in this request is one from before; to resume: %s",
			what, defense.Kubectl("altershield resume "+defense.ShellWord(r.Kind+"/"+r.Name), r.Namespace))
	}
	return ""
}
