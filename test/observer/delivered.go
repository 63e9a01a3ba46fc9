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

package observer

import (
	"fmt"
	"strings"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Delivered is a verdict whose callback the operator acknowledged.
type Delivered struct {
	// Order is the operator's ID of the order, Node the server's ID of the order entry.
	Order, Node string
	Stage       v1alpha1.CheckStage
	// OfOrder: the verdict is on the order itself.
	OfOrder bool
	Verdict string
	// Said is the answer of the operator.
	Said string
}

// checkDelivered checks S8: an acknowledged verdict, or one at least as grave, is or was in etcd,
// unless it was of no use.
func (w *world) checkDelivered(d Delivered) []Violation {
	verdict := strings.ToLower(d.Verdict)
	keys := []check{{d.Order, d.Node, d.Stage}}
	if d.OfOrder {
		keys = append(keys, check{d.Order, "", d.Stage})
	}
	for _, key := range keys {
		if stored, ok := w.delivered[key]; ok && (!fails(verdict) || fails(stored)) {
			return nil
		}
	}
	if !fails(verdict) && d.Stage == v1alpha1.StagePre && d.Said == "ignored" {
		return nil // too late to mean anything
	}
	r := w.releaseOf(d.Order)
	if r == nil {
		return nil // gone, or at another attempt
	}
	if dep := w.deployments[r.owner]; dep == nil || dep.DeletionTimestamp != nil {
		return nil
	} else if why, _ := w.leftSince(dep); why != "" {
		return nil
	}
	return []Violation{{
		Invariant: NoVerdictLost,
		Namespace: r.Namespace,
		Object:    fmt.Sprintf("%s %s/%s", kindRelease, r.Namespace, r.Name),
		Versions:  "resource version " + r.ResourceVersion,
		Message: fmt.Sprintf("the %s verdict %q on node %s of order %s was acknowledged as %q and is nowhere",
			d.Stage, d.Verdict, d.Node, d.Order, d.Said),
	}}
}

func (w *world) releaseOf(order string) *release {
	for _, r := range w.releases {
		if order != "" && r.Status.OrderID == order {
			return r
		}
	}
	return nil
}
