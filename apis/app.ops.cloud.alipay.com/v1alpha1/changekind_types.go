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

package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChangeKindEnrolment selects the objects of a kind that are defended.
// +kubebuilder:validation:Enum=Namespace;Label
type ChangeKindEnrolment string

const (
	// EnrolledByNamespace means all objects of enrolled namespaces.
	EnrolledByNamespace ChangeKindEnrolment = "Namespace"
	// EnrolledByLabel means objects of enrolled namespaces with the label
	// altershield.defense.antgroup.com/defense=enabled.
	EnrolledByLabel ChangeKindEnrolment = "Label"
)

// ChangeKindVersionLabel is the place of the version label.
// +kubebuilder:validation:Enum=Object;Template
type ChangeKindVersionLabel string

const (
	// VersionLabelOnObject means the metadata of the object.
	VersionLabelOnObject ChangeKindVersionLabel = "Object"
	// VersionLabelOnTemplate means the metadata of the object, and of its pod template.
	VersionLabelOnTemplate ChangeKindVersionLabel = "Template"
)

// ChangeKindFind is the way from an object to its pods.
// +kubebuilder:validation:Enum=Owner;Selector
type ChangeKindFind string

const (
	// FindByOwner means pods that the object owns, directly or through other objects.
	FindByOwner ChangeKindFind = "Owner"
	// FindBySelector means pods by their labels.
	FindBySelector ChangeKindFind = "Selector"
)

// GiveBackFinalizer is on a ChangeKind while the operator may have blocked, halted or held objects. Its deletion waits
// until the operator took that back.
const GiveBackFinalizer = "app.ops.cloud.alipay.com/give-back"

// ChangeKindHold is the field by which a rollout waits for its verdicts.
// +kubebuilder:validation:Enum=Never;Partition
type ChangeKindHold string

const (
	// HoldNever means that a rollout does not wait.
	HoldNever ChangeKindHold = "Never"
	// HoldByPartition means that a rollout is held by its partition.
	HoldByPartition ChangeKindHold = "Partition"
)

// ChangeKindRollback selects the rollbacks of a kind.
// +kubebuilder:validation:Enum=Never;OnRequest;Automatic
type ChangeKindRollback string

const (
	// RollbackNever means that the content of an object is never restored.
	RollbackNever ChangeKindRollback = "Never"
	// RollbackOnRequest means that a user requests each rollback.
	RollbackOnRequest ChangeKindRollback = "OnRequest"
	// RollbackAutomatic means rollbacks without a request, as of a Deployment.
	RollbackAutomatic ChangeKindRollback = "Automatic"
)

// ChangeKindAdmission is the part that admission has in the defense of a kind.
// +kubebuilder:validation:Enum=Enforce;Observe
type ChangeKindAdmission string

const (
	// AdmissionEnforces means that requests which change an object pass webhooks.
	AdmissionEnforces ChangeKindAdmission = "Enforce"
	// AdmissionObserves means that there are no webhooks. The operator finds changes
	// after they are stored, and blocks none.
	AdmissionObserves ChangeKindAdmission = "Observe"
)

// ChangeKindPath is a path of at most 8 fields in an object, separated by dots. No
// field is in a list.
// +kubebuilder:validation:MaxLength=256
// +kubebuilder:validation:Pattern=`^[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,7}$`
type ChangeKindPath string

// ChangeKindExpression is a CEL expression.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=4096
type ChangeKindExpression string

// ChangeKindContent is a part of an object whose change is a release.
//
// +kubebuilder:validation:XValidation:rule="!(self.path.split('.')[0] in ['apiVersion', 'kind', 'metadata', 'status'])",message="content is a part of the desired state: name a field outside of metadata and status, as in spec",fieldPath=".path"
type ChangeKindContent struct {
	// Path of the part, as in spec.template.
	Path ChangeKindPath `json:"path"`
	// Whether the part is a pod template. Its version is the version that the same
	// template has in a Deployment, and its images are reported.
	// +optional
	PodTemplate bool `json:"podTemplate,omitempty"`
	// Paths below path that are no content: a change of them is no release, and a
	// rollback does not restore them. Objects around these fields are content, even
	// if they have no other field.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=set
	Ignore []ChangeKindPath `json:"ignore,omitempty"`
}

// ChangeKindOwner is a kind of object between an object and its pods.
type ChangeKindOwner struct {
	// Group and version, as in apps/v1.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// Kind, as in ReplicaSet.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
}

// ChangeKindPods describes the pods of an object.
//
// +kubebuilder:validation:XValidation:rule="self.find == 'Selector' || !has(self.selector) && !has(self.labels)",message="selector and labels select pods by their labels: set find to Selector, or leave both out",fieldPath=".find"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || !has(self.labels)",message="labels take the place of selector: give one of the two",fieldPath=".labels"
// +kubebuilder:validation:XValidation:rule="self.find == 'Owner' || !has(self.through)",message="through has objects between an owner and its pods: set find to Owner, or leave it out",fieldPath=".through"
type ChangeKindPods struct {
	// Owner or Selector.
	// +optional
	// +kubebuilder:default=Owner
	Find ChangeKindFind `json:"find,omitempty"`
	// Kinds of objects between the object and its pods, the object's own first.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=atomic
	Through []ChangeKindOwner `json:"through,omitempty"`
	// Path of the pods' selector: a LabelSelector, or its text. If both selector and
	// labels are absent, the scale subresource of the kind names the path.
	// +optional
	Selector ChangeKindPath `json:"selector,omitempty"`
	// Labels of the pods, with a CEL expression for each value: a string. The
	// expression reads the variable object.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	Labels map[string]ChangeKindExpression `json:"labels,omitempty"`
	// CEL expression that is true if a pod has the current content. It reads the
	// variables object, pod, and revision: the metadata of the newest
	// ControllerRevision that the object owns, or null.
	Current ChangeKindExpression `json:"current"`
	// Whether pods get new content without being recreated. A pod then counts if it
	// became Ready after the release began, or once the rollout is complete: a pod
	// that had the content already is not touched.
	// +optional
	InPlace bool `json:"inPlace,omitempty"`
}

// ChangeKindHalt is a field that stops a rollout, and the value that stops it.
//
// +kubebuilder:validation:XValidation:rule="!(self.path.split('.')[0] in ['apiVersion', 'kind', 'metadata', 'status'])",message="the operator writes the field: name a field outside of metadata and status, as in spec.paused",fieldPath=".path"
type ChangeKindHalt struct {
	// Path of the field.
	Path ChangeKindPath `json:"path"`
	// Value that stops the rollout: a string, a number, true or false.
	Value apiextensionsv1.JSON `json:"value"`
}

// ChangeKindRollout describes the rollout of a change.
//
// +kubebuilder:validation:XValidation:rule="!has(self.deadline) || duration(self.deadline) >= duration('1m') && duration(self.deadline) <= duration('24h')",message="deadline is a duration from 1m to 24h, as in 10m",fieldPath=".deadline"
// +kubebuilder:validation:XValidation:rule="!has(self.settle) || duration(self.settle) >= duration('0s') && duration(self.settle) <= duration('1h')",message="settle is a duration from 0s to 1h, as in 60s",fieldPath=".settle"
// +kubebuilder:validation:XValidation:rule="!has(self.partition) || !(self.partition.split('.')[0] in ['apiVersion', 'kind', 'metadata', 'status'])",message="the operator writes the field: name a field outside of metadata and status, as in spec.updateStrategy.partition",fieldPath=".partition"
type ChangeKindRollout struct {
	// CEL expression that is true if the rollout is complete. It reads the variables
	// object and since, the time of the change. Without it, the rollout is complete
	// if the object is Current by the rules of kstatus. While
	// status.observedGeneration is of an earlier generation, the rollout is not
	// complete, unless the object has no pods and the expression reads
	// observedGeneration.
	// +optional
	Complete ChangeKindExpression `json:"complete,omitempty"`
	// CEL expression for the reason of a rollout that does not advance: a string,
	// empty for none. It reads the variables of complete. Without it, the rollout does
	// not advance if the object is Failed by the rules of kstatus. While
	// status.observedGeneration is of an earlier generation, it is not read, unless
	// the object has no pods and both expressions read observedGeneration.
	// +optional
	Stuck ChangeKindExpression `json:"stuck,omitempty"`
	// Path of the number of seconds that a pod has to be Ready to be available.
	// +optional
	// +kubebuilder:default=spec.minReadySeconds
	MinReadySeconds ChangeKindPath `json:"minReadySeconds,omitempty"`
	// Time in which a rollout has to be complete, 1m to 24h.
	// +optional
	// +kubebuilder:default="10m"
	Deadline *metav1.Duration `json:"deadline,omitempty"`
	// Time for which the rollout has to stay complete, 0s to 1h; 0s if the object has
	// pods, 60s otherwise.
	// +optional
	Settle *metav1.Duration `json:"settle,omitempty"`
	// Path of the number of pods that keep the previous content, counted as in
	// replicas. An object that lacks an object around the field is not held.
	// +optional
	Partition ChangeKindPath `json:"partition,omitempty"`
	// Fields that stop the rollout. The operator restores their previous values. An
	// object that lacks an object around one of them is not halted.
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=path
	Halt []ChangeKindHalt `json:"halt,omitempty"`
}

// ChangeKindSpec describes a kind.
//
// +kubebuilder:validation:XValidation:rule="self.versionLabel != 'Template' || self.content.filter(c, has(c.podTemplate) && c.podTemplate).size() == 1",message="the version label is on exactly one pod template: set podTemplate of one content, or set versionLabel to Object",fieldPath=".versionLabel"
// +kubebuilder:validation:XValidation:rule="self.hold != 'Partition' || has(self.rollout) && has(self.rollout.partition) && has(self.pods) && has(self.replicas)",message="a partition holds pods at their previous content: set pods, replicas and rollout.partition, or set hold to Never",fieldPath=".hold"
// +kubebuilder:validation:XValidation:rule="!has(self.pods) || has(self.replicas) || has(self.rollout) && has(self.rollout.complete)",message="the number of pods is unknown, so it does not end a release: set replicas, as in spec.replicas, or rollout.complete",fieldPath=".replicas"
type ChangeKindSpec struct {
	// Version of the kind that is read and changed. Another version makes the present
	// content of all objects a baseline.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Version string `json:"version"`
	// Namespace or Label.
	// +optional
	// +kubebuilder:default=Namespace
	Enrolment ChangeKindEnrolment `json:"enrolment,omitempty"`
	// Parts of an object whose change is a release.
	// +optional
	// +kubebuilder:default={{path: spec}}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, (b.path + '.').startsWith(a.path + '.')))",message="a part of an object is content once: remove the path below another path"
	// +listType=map
	// +listMapKey=path
	Content []ChangeKindContent `json:"content,omitempty"`
	// Object or Template.
	// +optional
	// +kubebuilder:default=Object
	VersionLabel ChangeKindVersionLabel `json:"versionLabel,omitempty"`
	// Path of the desired number of pods. If it is absent, or an object lacks the
	// field, the number is unknown, and rollout.complete alone ends a release.
	// +optional
	Replicas ChangeKindPath `json:"replicas,omitempty"`
	// Pods of the objects. Objects of a kind without it have no pods.
	// +optional
	Pods *ChangeKindPods `json:"pods,omitempty"`
	// Rollout of a change.
	// +optional
	// +kubebuilder:default={}
	Rollout ChangeKindRollout `json:"rollout,omitempty"`
	// Never or Partition.
	// +optional
	// +kubebuilder:default=Never
	Hold ChangeKindHold `json:"hold,omitempty"`
	// Never, OnRequest or Automatic. Without a request, a rollback restores the newest
	// proven content of the history.
	// +optional
	// +kubebuilder:default=OnRequest
	Rollback ChangeKindRollback `json:"rollback,omitempty"`
	// Enforce or Observe.
	// +optional
	// +kubebuilder:default=Enforce
	Admission ChangeKindAdmission `json:"admission,omitempty"`
}

// ChangeKindStatus reports whether objects of the kind are defended.
type ChangeKindStatus struct {
	// metadata.generation that this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Hash of the fields of spec by which versions are computed. With another hash,
	// the present content of all objects is a baseline.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ContentHash string `json:"contentHash,omitempty"`
	// Number of defended objects.
	// +optional
	Objects int32 `json:"objects,omitempty"`
	// Accepted reports whether spec is correct, Served whether the API server serves
	// the kind in this version, Authorized whether the operator has the permissions,
	// Intercepted whether admission sees changes, and Ready whether objects are
	// defended.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ChangeKind declares a kind of object whose changes are releases. Its name is the
// resource: {plural}.{group}, or {plural} in the core group.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=changekinds,singular=changekind,scope=Cluster,shortName=ck,categories=altershield
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="metadata.name is {plural}.{group} of the kind, or {plural} in the core group, as in clonesets.apps.kruise.io"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['deployments.apps', 'statefulsets.apps', 'daemonsets.apps'])",message="metadata.name: this kind is defended without a declaration; remove the ChangeKind"
// +kubebuilder:validation:XValidation:rule="self.metadata.name != 'secrets'",message="metadata.name: the history would be a readable copy of Secrets; declare a kind that refers to the Secret"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['jobs.batch', 'jobsets.jobset.x-k8s.io'])",message="metadata.name: the templates of this kind cannot change; declare the kind that creates its objects, as in cronjobs.batch"
// +kubebuilder:validation:XValidation:rule="!(self.metadata.name in ['pods', 'replicasets.apps', 'controllerrevisions.apps', 'events', 'events.events.k8s.io', 'leases.coordination.k8s.io'])",message="metadata.name: controllers write the objects of this kind; declare the kind that users change"
// +kubebuilder:validation:XValidation:rule="!self.metadata.name.endsWith('.app.ops.cloud.alipay.com')",message="metadata.name: the operator does not defend its own objects; declare another kind"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.contains('.') || self.spec.enrolment == 'Label'",message="objects of the core group are enrolled one by one: set spec.enrolment to Label",fieldPath=".spec.enrolment"
// +kubebuilder:printcolumn:name="VERSION",type=string,JSONPath=`.spec.version`,description="Version of the kind"
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether objects are defended"
// +kubebuilder:printcolumn:name="OBJECTS",type=integer,JSONPath=`.status.objects`,description="Defended objects"
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="REASON",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Reason of READY"
type ChangeKind struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Description of the kind.
	Spec ChangeKindSpec `json:"spec"`
	// Whether objects of the kind are defended.
	Status ChangeKindStatus `json:"status,omitempty"`
}

// ChangeKindList is a list of ChangeKinds.
//
// +kubebuilder:object:root=true
type ChangeKindList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ChangeKind `json:"items"`
}
