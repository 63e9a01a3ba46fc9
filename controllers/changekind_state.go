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

package controllers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/declared"
	"github.com/traas-stack/altershield-operator/internal/hub"
	"github.com/traas-stack/altershield-operator/internal/wording"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// kindState is the state of a ChangeKind.
type kindState struct {
	// NotServed is why the API server does not serve the kind, and Problem why the declaration cannot be used; empty otherwise.
	NotServed, Problem string
	// Gone: the API server has no version of the kind. Native: the operator defends the kind without the declaration.
	Gone, Native bool
	// Missing are permissions that the operator lacks. Lacks: it has lacked some for a moment.
	Missing []string
	Lacks   bool
	// Filling: the cache of the kind is not filled. Fresh: it was put into use just now, and decisions by the earlier declaration
	// may still be carried out.
	Filling, Fresh bool
	// Strays: objects without the label of their enrolment leave the defense.
	Strays bool
	// Objects is the number of defended objects. Halted of them are halted or held by fields that the declaration does not name, Stale
	// have a version by an earlier declaration of the content, and the operator stops or blocks Stopped of all objects.
	Objects                int32
	Halted, Stale, Stopped int
	// WriteError is why the webhooks cannot be written.
	WriteError error

	leaving bool
	kind    hub.Declared
}

// waits reports whether objects have to change first.
func (s *kindState) waits() bool {
	if s.leaving {
		return !s.Native &&
			(s.Filling || s.Fresh || s.Stopped > 0 || len(s.Missing) > 0 || s.Problem != "" || s.NotServed != "" && !s.Gone)
	}
	return s.Halted > 0 || s.Stale > 0 || s.Strays
}

// count counts the objects in the cache of a kind.
func (s *kindState) count(k *declared.Kind, objects []unstructured.Unstructured, enrolled func(namespace string) bool) {
	for i := range objects {
		o := &objects[i]
		if o.GetDeletionTimestamp() != nil {
			continue
		}
		annotations := o.GetAnnotations()
		if h := workload.ParseHold(annotations[v1alpha1.HeldAnnotation]); h != nil && (k.Spec.Hold != v1alpha1.HoldByPartition ||
			h.Field != "" && h.Field != string(k.Spec.Rollout.Partition)) {
			s.Halted++
		}
		if halted := annotations[v1alpha1.HaltedFromAnnotation]; halted != "" && haltsElsewhere(k, halted) {
			s.Halted++
		}
		if workload.MarksOf(o.GetLabels(), annotations).Any() {
			s.Stopped++
		}
		if !enrolled(o.GetNamespace()) || workload.OptedOut(o.GetLabels()) {
			continue
		}
		s.Objects++
		if version := o.GetLabels()[v1alpha1.VersionLabel]; version != "" && version != k.VersionOf(o.Object) {
			s.Stale++
		}
	}
}

// haltsElsewhere reports whether an object is halted by a field that the declaration does not name, which it could not resume.
func haltsElsewhere(k *declared.Kind, from string) bool {
	var fields []struct{ Path v1alpha1.ChangeKindPath }
	if err := json.Unmarshal([]byte(from), &fields); err != nil {
		return false // a user wrote it
	}
	for _, f := range fields {
		if !slices.ContainsFunc(k.Spec.Rollout.Halt, func(h v1alpha1.ChangeKindHalt) bool { return h.Path == f.Path }) {
			return true
		}
	}
	return false
}

// conditions returns the conditions of a ChangeKind. used is the kind in the registry; nil if there is none.
func (s *kindState) conditions(used workload.Kind) []metav1.Condition {
	condition := func(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message}
	}
	yes := func(name, reason string) metav1.Condition { return condition(name, metav1.ConditionTrue, reason, "") }
	no := func(name, reason, message string) metav1.Condition {
		return condition(name, metav1.ConditionFalse, reason, message)
	}
	served, accepted := yes(v1alpha1.ConditionServed, v1alpha1.ReasonServed), yes(v1alpha1.ConditionAccepted, v1alpha1.ReasonInForce)
	authorized := yes(v1alpha1.ConditionAuthorized, v1alpha1.ReasonAuthorized)
	intercepted := yes(v1alpha1.ConditionIntercepted, v1alpha1.ReasonConfigured)
	switch {
	case s.NotServed != "":
		if served = no(v1alpha1.ConditionServed, v1alpha1.ReasonNotServed, s.NotServed); s.leaving {
			served.Message += "; serve it, or set spec.version to a served version: the operator takes back its blocks, halts and holds first"
		}
		accepted = condition(v1alpha1.ConditionAccepted, metav1.ConditionUnknown, v1alpha1.ReasonNotServed, "")
	case s.Problem != "":
		accepted = no(v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidPolicy, wording.Brief(s.Problem))
	case s.Halted > 0 && !s.leaving:
		accepted = no(v1alpha1.ConditionAccepted, v1alpha1.ReasonHaltedObjects, fmt.Sprintf("%d objects", s.Halted))
	}
	if len(s.Missing) > 0 {
		authorized = no(v1alpha1.ConditionAuthorized, v1alpha1.ReasonPermissionDenied, strings.Join(s.Missing, ", "))
	}
	d, _ := used.(hub.Declared)
	switch {
	case s.WriteError != nil:
		intercepted = no(v1alpha1.ConditionIntercepted, v1alpha1.ReasonWriteDenied, wording.Brief(s.WriteError.Error()))
	case d == nil || s.leaving:
		intercepted = no(v1alpha1.ConditionIntercepted, v1alpha1.ReasonNotDefended, "")
	case d.Declaration().Spec.Admission == v1alpha1.AdmissionObserves:
		intercepted = no(v1alpha1.ConditionIntercepted, v1alpha1.ReasonObserving, "")
	}
	ready := yes(v1alpha1.ConditionReady, v1alpha1.ReasonDefended)
	for _, c := range []metav1.Condition{served, authorized, accepted} {
		if c.Status == metav1.ConditionFalse && ready.Status == metav1.ConditionTrue {
			ready = no(v1alpha1.ConditionReady, v1alpha1.ReasonNotDefended, "see the condition "+c.Type)
			if d != nil {
				ready.Message += fmt.Sprintf("; generation %d is in force until the operator restarts", d.Declaration().Generation)
			}
		}
	}
	switch {
	case ready.Status == metav1.ConditionFalse:
	case s.leaving:
		ready = no(v1alpha1.ConditionReady, v1alpha1.ReasonLeaving, fmt.Sprintf("%d objects", s.Stopped))
	case s.Filling || d == nil:
		ready = no(v1alpha1.ConditionReady, v1alpha1.ReasonFilling, "")
	case s.WriteError != nil:
		ready = no(v1alpha1.ConditionReady, v1alpha1.ReasonNotDefended, "see the condition "+v1alpha1.ConditionIntercepted)
	case s.Stale > 0:
		ready = no(v1alpha1.ConditionReady, v1alpha1.ReasonRebaselining, fmt.Sprintf("%d objects", s.Stale))
	}
	return []metav1.Condition{accepted, served, authorized, intercepted, ready}
}

// permissionsOf returns the permissions that the operator needs for the objects of a kind.
func permissionsOf(c *v1alpha1.ChangeKind, through []schema.GroupResource) (all []authorizationv1.ResourceAttributes) {
	plural, group, _ := strings.Cut(c.Name, ".")
	for _, verb := range []string{"get", "list", "watch", "patch"} {
		all = append(all, authorizationv1.ResourceAttributes{Group: group, Resource: plural, Verb: verb})
	}
	for _, of := range through {
		for _, verb := range []string{"list", "watch"} {
			all = append(all, authorizationv1.ResourceAttributes{Group: of.Group, Resource: of.Resource, Verb: verb})
		}
	}
	// Records are owned by the object, which only a user who may change its finalizers can make them.
	return append(all, authorizationv1.ResourceAttributes{Group: group, Resource: plural, Subresource: "finalizers", Verb: "update"})
}

func describePermission(a *authorizationv1.ResourceAttributes) string {
	resource := schema.GroupResource{Group: a.Group, Resource: a.Resource}.String()
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return a.Verb + " " + resource
}
