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
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// checkHasty checks S9 for a write of the operator to a workload.
func (w *world) checkHasty(e event, before, after *workload) (findings []finding) {
	cause, container := causeOf(before, after)
	if cause == "" || cause == v1alpha1.ReasonRollbackRequested {
		return nil
	}
	if cause == v1alpha1.ReasonNeverStarted || container != "" { // a cause with a container means pods that did not come up
		findings = w.checkStart(e, before)
	}
	w.limits.rollbacks = append(w.limits.rollbacks, rollback{e.seen, e.uid, e.namespace})
	count, window := w.rollbackLimit()
	if count == 0 || e.seen.Sub(w.limits.changed) <= window {
		return findings
	}
	all, inNamespace := map[types.UID]bool{}, map[types.UID]bool{}
	for _, r := range w.limits.rollbacks {
		if e.seen.Sub(r.at) < window-delay {
			all[r.of] = true
			if r.namespace == e.namespace {
				inNamespace[r.of] = true
			}
		}
	}
	if len(all) > count || len(inNamespace) > (count+1)/2 {
		findings = append(findings, found(NoHasty,
			"%d workloads were rolled back within %s, %d of them of this namespace; the setting limit allows %d",
			len(all), window, len(inNamespace), count))
	}
	return findings
}

// causeOf returns why a write of the operator restored a template, and the container that did not
// come up; the cause is empty if the write did not restore a template.
func causeOf(before, after *workload) (cause, container string) {
	var reasons map[string]struct {
		Cause, To, Container string
		Release              int64
	}
	if before.template == after.template || json.Unmarshal([]byte(after.Annotations[v1alpha1.QuarantineReasonAnnotation]), &reasons) != nil {
		return "", ""
	}
	for _, why := range reasons {
		if strconv.FormatInt(why.Release, 10) == before.Annotations[v1alpha1.ReleaseAnnotation] && why.To == after.Labels[v1alpha1.VersionLabel] {
			return why.Cause, why.Container
		}
	}
	return "", ""
}

// rollbackLimit returns how many rollbacks the setting limit allows in which time; zero for no
// limit.
func (w *world) rollbackLimit() (count int, window time.Duration) {
	v := v1alpha1.OpsConfigValue{Enable: true, Content: "5/10m"}
	if o := w.limits.settings[w.limits.own+"/limit"]; o != nil {
		v = inForce(o)
	}
	number, in, _ := strings.Cut(v.Content, "/")
	count, err := strconv.Atoi(number)
	if window, _ = time.ParseDuration(in); err != nil || !v.Enable {
		return 0, 0
	}
	return count, window
}

// checkStart checks S9 for a rollback because pods of a version did not come up: no pod of the
// version has just finished, and the stuck pods are not all on one node while the version runs on
// another. The operator may not have read pods that changed a moment ago.
func (w *world) checkStart(e event, left *workload) (findings []finding) {
	after := w.duration(left, "rollback", "after", 2*time.Minute)
	stuckOn, well := map[string]bool{}, map[string]bool{}
	moving, made, wanted := false, int32(0), wantedPods(e.kind, left)
	for _, p := range w.pods {
		rs := w.replicaSets[p.owner]
		if rs.owner == e.uid && p.live && e.kind != kindDeployment {
			made++ // also of other versions: one is replaced only after the other
		}
		if rs.owner != e.uid || rs.template != left.template || !p.live {
			continue
		}
		if e.kind == kindDeployment {
			made, wanted = made+1, rs.replicas
		}
		age := e.seen.Sub(p.readySince)
		switch {
		case !p.ready || p.restarted:
			stuckOn[p.node] = true
		case age < delay || !p.marked:
			moving = true
		default:
			well[p.node] = true
			if age -= time.Duration(minReadySeconds(left.Deployment)) * time.Second; age > delay && age < after-delay {
				findings = append(findings, found(NoHasty, "rolled back although pod %s came up %s ago", p.name, age))
			}
		}
	}
	for node := range stuckOn {
		delete(well, node)
		if node != "" && len(stuckOn) == 1 && len(well) > 0 && !moving && made >= wanted {
			findings = append(findings, found(NoHasty, "rolled back because of pods of node %s alone", node))
		}
	}
	return findings
}

// wantedPods returns how many pods a StatefulSet or a DaemonSet is to have. For a Deployment, its
// ReplicaSets have the number.
func wantedPods(kind string, d *workload) int32 {
	if kind == kindDaemonSet {
		return d.Status.ReadyReplicas
	}
	return ptr.Deref(d.Spec.Replicas, 1)
}
