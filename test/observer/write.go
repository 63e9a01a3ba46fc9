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
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// business are the writes the operator has any reason to make about workloads, and
// about settings of their namespaces.
func business(r *Request) bool {
	what := r.Resource
	if r.Subresource != "" {
		what += "/" + r.Subresource
	}
	switch what {
	case "deployments", "statefulsets", "daemonsets", "pods":
		return r.Verb == "patch"
	case "pods/eviction":
		return r.Verb == "create"
	case "changeworkloads":
		return slices.Contains([]string{"create", "patch", "delete"}, r.Verb)
	case "changeworkloads/status", "changepods/status":
		return r.Verb == "update" || r.Verb == "patch"
	case "opsconfiginfoes/status", "defensepolicies/status":
		return r.Verb == "update"
	case "changepods":
		return r.Verb == "create" || r.Verb == "delete"
	case "controllerrevisions":
		return slices.Contains([]string{"create", "patch", "delete"}, r.Verb)
	case eventsResource:
		return r.Verb == "create" || r.Verb == "patch"
	default:
		return false
	}
}

// checkRequest judges a request of the operator in the state the cluster was in
// when it was carried out. own is the operator's own namespace.
func (w *world) checkRequest(r *Request, own string) []Violation {
	var findings []finding
	if r.writes() && r.Code < 300 {
		findings = append(w.countWrite(r), checkPrintable(r)...)
	}
	switch {
	case r.Code == 403 && !passing(r.Message):
		findings = append(findings, found(RightsSuffice, "%s", r.Message))
	case !r.writes(), r.Code >= 300, r.Namespace == own:
	case r.Namespace == "":
		if r.Group != "authentication.k8s.io" && r.Group != "authorization.k8s.io" && !ownConfiguration(r) {
			findings = append(findings, found(OnlyManaged, "a write of what is in no namespace"))
		}
	default:
		ns := w.namespaces[r.Namespace]
		if ns == nil || !ns.ever {
			findings = append(findings, found(OnlyManaged, "a write in a namespace that was never enrolled"))
		}
		if !business(r) {
			findings = append(findings, found(OwnFields, "a write that is not the operator's business"))
		}
		if f := w.checkPod(r); f != nil {
			findings = append(findings, *f)
		}
		if r.Resource == "pods" && r.Subresource == "eviction" {
			findings = append(findings, w.checkEvicted(w.pods[w.uids[kindPod+"/"+r.Namespace+"/"+r.Name]], r.Received)...)
		}
		if f := w.checkLeft(r); f != nil {
			findings = append(findings, *f)
		}
	}
	var violations []Violation
	for _, f := range findings {
		violations = append(violations, Violation{
			Invariant: f.invariant, Namespace: r.Namespace, Object: fmt.Sprintf("%s %s/%s", r.Resource, r.Namespace, r.Name),
			Versions: fmt.Sprintf("resource version %d", r.rv), Message: r.String() + ": " + f.message,
		})
	}
	return violations
}

// checkPod is S6 of pods: the operator marks them as finished, and evicts those that it
// has read, and no others of their names.
func (w *world) checkPod(r *Request) *finding {
	f := (*finding)(nil)
	switch {
	case r.Resource != "pods":
	case r.Subresource == "eviction":
		if !evictsAsRead(r.body) {
			f = new(finding)
			*f = found(OwnFields, "an eviction of whatever has that name by now: %s", r.body)
		}
	case !marksFinished(r.body, w.stamped(r)):
		f = new(finding)
		*f = found(OwnFields, "a write of a pod that does more than mark it as finished: %s", r.body)
	}
	return f
}

// evictsAsRead says that an eviction is of one pod as it was read, and gives it the time
// that it has to end.
func evictsAsRead(body []byte) bool {
	var sent struct {
		DeleteOptions metav1.DeleteOptions `json:"deleteOptions"`
	}
	if json.Unmarshal(body, &sent) != nil {
		return false
	}
	o := sent.DeleteOptions
	return o.Preconditions != nil && o.Preconditions.UID != nil && o.Preconditions.ResourceVersion != nil && o.GracePeriodSeconds == nil
}

// passing says whether a refusal is not about rights that the operator needs: the
// namespace is going, the API server does not know a kind yet that was made a
// moment ago, or it guards owners (OwnerReferencesPermissionEnforcement), and the
// webhook configurations do without one.
func passing(message string) bool {
	return strings.Contains(message, "because it is being terminated") || strings.Contains(message, "cannot find RESTMapping") ||
		strings.Contains(message, "altershieldoperator-") && strings.Contains(message, "webhook-configuration") &&
			strings.Contains(message, "cannot set an ownerRef on a resource you can't delete")
}

// ownConfiguration says whether a request keeps one of the operator's own webhook
// configurations as it is meant to be.
func ownConfiguration(r *Request) bool {
	return r.Group == "admissionregistration.k8s.io" &&
		(r.Verb == "create" && r.Name == "" || (r.Verb == "create" || r.Verb == "update") && strings.HasPrefix(r.Name, "altershieldoperator-"))
}

// checkLeft is S4 of workloads that left the defense: but for one write that
// takes block and pause back, and one per release that ends it as canceled,
// nothing is written about them any more.
func (w *world) checkLeft(r *Request) *finding {
	if r.Resource == eventsResource {
		return nil
	}
	d, of := w.workloadOf(r)
	if d == nil {
		return nil
	}
	why, since := w.leftSince(d)
	if since.IsZero() {
		return nil
	}
	last := false
	switch {
	case workloadKinds()[r.Resource] != "" && takesBack(r.body):
		d.tookBack++
		last = d.tookBack == 1
	case of != nil && r.Resource == "changeworkloads" && r.Subresource == "status" && cancels(r.body):
		of.left++
		last = of.left == 1
	}
	if last || r.Received.Sub(since) <= propagation {
		return nil
	}
	f := found(OnlyManaged, "deployment %s %s at %s", d.Name, why, since.UTC().Format("15:04:05.000"))
	return &f
}

// stamped says that the pod a request is about has its version from its template.
func (w *world) stamped(r *Request) bool {
	p := w.pods[w.uids[kindPod+"/"+r.Namespace+"/"+r.Name]]
	if p == nil {
		return false
	}
	rs, known := w.replicaSets[p.owner]
	return known && !rs.unstamped
}

// marksFinished says that a patch of a pod does nothing but that. It says of which
// version the pod is, where its template does not.
func marksFinished(body []byte, stamped bool) bool {
	var sent map[string]map[string]any
	if json.Unmarshal(body, &sent) != nil {
		return false
	}
	for key := range sent["metadata"] {
		if key != "uid" && key != "labels" {
			return false
		}
	}
	labels, _ := sent["metadata"]["labels"].(map[string]any)
	_, marks := labels[v1alpha1.OperateFinishedLabel].(string)
	known := 1
	if _, says := labels[v1alpha1.VersionLabel].(string); says && !stamped {
		known++
	}
	return len(sent) == 1 && len(labels) == known && marks
}

// takesBack says that a patch of a workload only removes what makes up its block
// and its pause.
func takesBack(body []byte) bool {
	var operations []struct{ Op, Path string }
	if json.Unmarshal(body, &operations) != nil {
		return false
	}
	removed := 0
	for _, o := range operations {
		switch key := strings.ReplaceAll(o.Path, "~1", "/"); {
		case o.Op == "test":
		case key == "/spec/minReadySeconds", key == "/spec/progressDeadlineSeconds":
			// What a hold changed is given back: as it was, which checkHold checks.
		case o.Op == "replace" && (key == "/spec/updateStrategy/type" || key == "/spec/updateStrategy/rollingUpdate/partition"):
			removed++ // that it becomes what it was checkOwnFields checks
		case o.Op != "remove":
			return false
		case key == "/spec/paused",
			key == "/metadata/labels/"+v1alpha1.SuspendLabel,
			key == "/metadata/annotations/"+v1alpha1.SuspendedByAnnotation,
			key == "/metadata/annotations/"+v1alpha1.OverrideStaleAnnotation,
			key == "/metadata/annotations/"+v1alpha1.HeldAnnotation,
			key == "/metadata/annotations/"+v1alpha1.HaltedFromAnnotation,
			key == "/metadata/annotations/"+v1alpha1.HaltedAnnotation:
			removed++
		default:
			return false
		}
	}
	return removed > 0
}

// cancels says that a status of a release ends it as canceled.
func cancels(body []byte) bool {
	var sent v1alpha1.ChangeWorkload
	return json.Unmarshal(body, &sent) == nil && sent.Status.Status == v1alpha1.ChangeWorkloadCanceled
}
