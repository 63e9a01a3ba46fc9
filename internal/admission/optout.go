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
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// mutateOptedOut keeps the operator's annotations on a workload for a later opt-in, and records a user who opts out
// while the defense has an effect.
func mutateOptedOut(r *Request, want *Object) {
	restore(want.Annotations, r.Old.Annotations, restoredAnnotations())
	if !workload.OptedOut(r.Old.Labels) {
		noteLeaving(r, want, "")
	}
}

// noteOwner records a user who gives a workload an owner, and so puts it in observe mode, while the defense has an
// effect.
func noteOwner(r *Request, want *Object) {
	if owner := r.New.ObservingOwner(); owner != "" && r.Old.ObservingOwner() == "" && !workload.OptedOut(r.Old.Labels) {
		noteLeaving(r, want, wording.CutAtRune(strings.ReplaceAll(owner, " ", "/"), record.MaxText))
	}
}

func noteLeaving(r *Request, want *Object, owner string) {
	// An annotation of an earlier opt-out is outdated.
	delete(want.Annotations, v1alpha1.OptedOutAnnotation)
	if while := defense.DefenseOf(r.Old.Labels, r.Old.Annotations, r.Now); while != "" {
		want.Annotations[v1alpha1.OptedOutAnnotation] = defense.OptOut{
			Release: workload.ParseRelease(want.Annotations[v1alpha1.ReleaseAnnotation]),
			At:      r.Now, While: while, Owner: owner, User: wording.CutAtRune(r.User, workload.MaxUser),
		}.String()
	}
}
