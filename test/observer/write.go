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

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// business reports whether the operator has any reason to make a write about workloads, or about
// settings and policies of their namespaces.
func business(r *Request) bool {
	what := r.Resource
	if r.Subresource != "" {
		what += "/" + r.Subresource
	}
	switch what {
	case "deployments", "statefulsets", "daemonsets", "pods":
		return r.Verb == "patch"
	case "pods/eviction", "jobs":
		return r.Verb == "create"
	case "changeworkloads":
		return slices.Contains([]string{"create", "patch", "delete"}, r.Verb)
	case "changeworkloads/status", "changepods/status":
		return r.Verb == "update" || r.Verb == "patch"
	case "opsconfiginfoes/status", "defensepolicies/status", "defenseendpoints/status":
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

// checkRequest judges a request of the operator in the state of the cluster when it was carried
// out. own is the operator's namespace.
func (w *world) checkRequest(r *Request, own string) []Violation {
	var findings []finding
	if r.writes() && r.Code < 300 {
		findings = append(w.countWrite(r), checkPrintable(r)...)
	}
	switch {
	case r.Code == 403 && r.Group == batchv1.GroupName: // the right to Jobs is given by users
	case r.Code == 403 && !passing(r.Message):
		findings = append(findings, found(RightsSuffice, "%s", r.Message))
	case !r.writes(), r.Code >= 300, r.Namespace == own:
	case r.Namespace == "":
		if w.declares(r) {
			break
		}
		if r.Group != "authentication.k8s.io" && r.Group != "authorization.k8s.io" && !ownConfiguration(r) {
			findings = append(findings, found(OnlyManaged, "a write of a cluster-scoped object"))
		}
	default:
		ns := w.namespaces[r.Namespace]
		if (ns == nil || !ns.ever) && (r.Resource != eventsResource || len(w.declared) == 0 || r.Namespace != metav1.NamespaceDefault) {
			findings = append(findings, found(OnlyManaged, "a write in a namespace that was never enrolled"))
		}
		if !business(r) && (r.Verb != "patch" || !w.declared[r.Resource+"."+r.Group]) {
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

// declares reports whether a request is a write about a ChangeKind: its status, or its finalizers. From then on the operator may
// patch objects of this kind, and emit events about the ChangeKind, which are in the namespace default.
func (w *world) declares(r *Request) bool {
	if r.Group != v1alpha1.GroupVersion.Group || r.Resource != "changekinds" {
		return false
	}
	w.declared[r.Name] = true
	return r.Verb == "update" && r.Subresource == "status" ||
		r.Verb == "patch" && !slices.ContainsFunc(r.Paths, func(path string) bool { return path != "/metadata/finalizers" })
}

// checkPod checks S6 for pods: the operator marks them as finished, and evicts a pod as it read it,
// not another pod of the same name.
func (w *world) checkPod(r *Request) *finding {
	f := (*finding)(nil)
	switch {
	case r.Resource != "pods":
	case r.Subresource == "eviction":
		if !evictsAsRead(r.body) {
			f = new(finding)
			*f = found(OwnFields, "an eviction without UID and version of the pod, or with a grace period: %s", r.body)
		}
	case !marksFinished(r.body, w.stamped(r)):
		f = new(finding)
		*f = found(OwnFields, "a write of a pod that does more than mark it as finished: %s", r.body)
	}
	return f
}

// evictsAsRead reports whether an eviction is of one pod as it was read, and keeps the grace period
// of the pod.
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

// passing reports whether a refusal is not about missing rights: the namespace is terminating, the
// API server does not know a new kind yet, or it guards owners
// (OwnerReferencesPermissionEnforcement), which the webhook configurations do without.
func passing(message string) bool {
	return strings.Contains(message, "because it is being terminated") || strings.Contains(message, "cannot find RESTMapping") ||
		strings.Contains(message, "altershieldoperator-") && strings.Contains(message, "webhook-configuration") &&
			strings.Contains(message, "cannot set an ownerRef on a resource you can't delete")
}

// ownConfiguration reports whether a request maintains one of the operator's own webhook
// configurations.
func ownConfiguration(r *Request) bool {
	return r.Group == "admissionregistration.k8s.io" &&
		(r.Verb == "create" && r.Name == "" || (r.Verb == "create" || r.Verb == "update") && strings.HasPrefix(r.Name, "altershieldoperator-"))
}

// checkLeft checks S4 for workloads that are no longer defended: the operator writes once to remove
// block and pause, and once per release to end it as canceled.
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

// stamped reports whether the pod of a request has its version label from its template.
func (w *world) stamped(r *Request) bool {
	p := w.pods[w.uids[kindPod+"/"+r.Namespace+"/"+r.Name]]
	if p == nil {
		return false
	}
	rs, known := w.replicaSets[p.owner]
	return known && !rs.unstamped
}

// marksFinished reports whether a patch of a pod only marks it as finished. It may add the version
// label if the template has none.
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

// takesBack reports whether a patch of a workload only removes its block and its pause.
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
			// checkGivenBack checks the values of these fields.
		case o.Op == "replace" && (key == "/spec/updateStrategy/type" || key == "/spec/updateStrategy/rollingUpdate/partition"):
			removed++ // checkOwnFields checks its value
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

// cancels reports whether a status of a release ends it as canceled.
func cancels(body []byte) bool {
	var sent v1alpha1.ChangeWorkload
	return json.Unmarshal(body, &sent) == nil && sent.Status.Status == v1alpha1.ChangeWorkloadCanceled
}
