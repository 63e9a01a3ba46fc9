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

package defense

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// DeniedWorkload is a workload whose releases are denied, by its identity.
type DeniedWorkload struct {
	Workload Workload
	By       Denied
}

// DeletionInput is what is known of a workload that may have been deleted, or created
// again.
type DeletionInput struct {
	// Denied is the workload of this name whose releases were denied when it was seen
	// last; nil when there was none.
	Denied *DeniedWorkload
	// Deleted is the one that was deleted before; nil when none is known.
	Deleted *DeniedWorkload
	// Now is the workload of this name; nil when there is none.
	Now *Workload
	// NamespaceEnding: its namespace is gone, or going.
	NamespaceEnding bool
}

// DeletionPlan is what to remember, and to tell.
type DeletionPlan struct {
	// ForgetDenied: the workload whose releases were denied is not there any more.
	ForgetDenied bool
	// Deleted, told of the workload whose releases were denied, says that somebody deleted it: it is
	// to be remembered. Nil when nobody did.
	Deleted *Event
	// ForgetDeleted: what was deleted before is over; the name is taken again.
	ForgetDeleted bool
	// CreatedAgain is told of the workload that is there now; nil when it is no other
	// one than before.
	CreatedAgain *Event
}

// DecideDeletion says whether a workload was deleted while its releases were denied,
// and whether one of its name was created after that: neither the block nor the
// quarantine survives it. What goes with its namespace is not told.
func DecideDeletion(in DeletionInput) (plan DeletionPlan) {
	deleted := in.Deleted
	if was := in.Denied; was != nil {
		if in.Now != nil && in.Now.UID == was.Workload.UID {
			return plan
		}
		plan.ForgetDenied = true
		if in.NamespaceEnding {
			return plan
		}
		plan.Deleted = &Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventDeletedWhileBlocked,
			Message: fmt.Sprintf("the %s was deleted while %s", was.Workload.Kind(), was.By)}
		deleted = was
	}
	if deleted == nil || in.Now == nil {
		return plan
	}
	plan.ForgetDeleted = true
	if in.Now.UID != deleted.Workload.UID {
		plan.CreatedAgain = &Event{Type: corev1.EventTypeWarning, Reason: v1alpha1.EventDeletedWhileBlocked,
			Message: fmt.Sprintf("%s created the %s again, which was deleted while %s: neither block nor quarantine survives that",
				in.Now.ReleasedBy(), in.Now.Kind(), deleted.By)}
	}
	return plan
}
