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

package wrappers

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// NamespaceWrapper builds a Namespace.
type NamespaceWrapper struct {
	builder[corev1.Namespace, *NamespaceWrapper]
}

// MakeNamespace begins a Namespace, not enrolled.
func MakeNamespace(name string) *NamespaceWrapper {
	o := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w := &NamespaceWrapper{}
	w.builder = builder[corev1.Namespace, *NamespaceWrapper]{o, &o.ObjectMeta, w}
	return w
}

// Enrolled enrols the namespace.
func (w *NamespaceWrapper) Enrolled() *NamespaceWrapper {
	return w.Label(v1alpha1.EnrolledLabel, v1alpha1.EnrolledValue)
}

// DeploymentWrapper builds a Deployment.
type DeploymentWrapper struct {
	builder[appsv1.Deployment, *DeploymentWrapper]
}

// MakeDeployment begins a Deployment of one pod. Its label app is its name.
func MakeDeployment(namespace, name string) *DeploymentWrapper {
	o := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       appsv1.DeploymentSpec{Template: podTemplate(name)},
	}
	w := &DeploymentWrapper{}
	w.builder = builder[appsv1.Deployment, *DeploymentWrapper]{o, &o.ObjectMeta, w}
	return w.Replicas(1).App(name)
}

// App sets the label app of the Deployment, of its pods and of its selector: a name may be too long for a label.
func (w *DeploymentWrapper) App(value string) *DeploymentWrapper {
	w.object.Spec.Selector = &metav1.LabelSelector{MatchLabels: appLabel(value)}
	return w.Label("app", value).TemplateLabel("app", value)
}

// Replicas sets the number of pods.
func (w *DeploymentWrapper) Replicas(n int32) *DeploymentWrapper {
	w.object.Spec.Replicas = &n
	return w
}

// Image sets the image of the container.
func (w *DeploymentWrapper) Image(image string) *DeploymentWrapper {
	return w.Container(func(c *corev1.Container) { c.Image = image })
}

// Container changes the container.
func (w *DeploymentWrapper) Container(changes ...func(*corev1.Container)) *DeploymentWrapper {
	for _, change := range changes {
		change(&w.object.Spec.Template.Spec.Containers[0])
	}
	return w
}

// TemplateLabel sets a label of the pod template.
func (w *DeploymentWrapper) TemplateLabel(key, value string) *DeploymentWrapper {
	t := &w.object.Spec.Template
	t.Labels = set(t.Labels, key, value)
	return w
}

// TemplateAnnotation sets an annotation of the pod template.
func (w *DeploymentWrapper) TemplateAnnotation(key, value string) *DeploymentWrapper {
	t := &w.object.Spec.Template
	t.Annotations = set(t.Annotations, key, value)
	return w
}

// OneByOne lets rollouts replace one pod after the other. Each new pod is ready before an old pod is deleted.
func (w *DeploymentWrapper) OneByOne() *DeploymentWrapper {
	w.object.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(0))},
	}
	return w
}

// MinReadySeconds sets the time for which a pod is ready before it is available.
func (w *DeploymentWrapper) MinReadySeconds(n int32) *DeploymentWrapper {
	w.object.Spec.MinReadySeconds = n
	return w
}

// Paused pauses rollouts.
func (w *DeploymentWrapper) Paused() *DeploymentWrapper {
	w.object.Spec.Paused = true
	return w
}

// Setting overrides a setting for this workload.
func (w *DeploymentWrapper) Setting(name, value string) *DeploymentWrapper {
	return w.Annotation(v1alpha1.SettingAnnotationPrefix+name, value)
}

// Recorded sets the version and the number of a release, as admission does.
func (w *DeploymentWrapper) Recorded(version string, release int64) *DeploymentWrapper {
	return w.Version(version).Annotation(v1alpha1.ReleaseAnnotation, strconv.FormatInt(release, 10))
}

// Processed marks that the current version has a ChangeWorkload.
func (w *DeploymentWrapper) Processed() *DeploymentWrapper {
	return w.Label(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed)
}

// Suspended blocks the Deployment, without a release.
func (w *DeploymentWrapper) Suspended() *DeploymentWrapper {
	return w.Label(v1alpha1.SuspendLabel, "1700000000")
}

// SuspendedBy blocks the Deployment because a release of it failed.
func (w *DeploymentWrapper) SuspendedBy(release string) *DeploymentWrapper {
	return w.Suspended().Annotation(v1alpha1.SuspendedByAnnotation, release)
}

// Quarantined lists versions that were rolled back.
func (w *DeploymentWrapper) Quarantined(versions ...string) *DeploymentWrapper {
	return w.Annotation(v1alpha1.QuarantinedAnnotation, strings.Join(versions, ","))
}

// RolledOut sets the status of a complete rollout with all pods available.
func (w *DeploymentWrapper) RolledOut() *DeploymentWrapper {
	n := *w.object.Spec.Replicas
	w.object.Status.ObservedGeneration = w.object.Generation
	w.object.Status.Replicas, w.object.Status.UpdatedReplicas = n, n
	w.object.Status.ReadyReplicas, w.object.Status.AvailableReplicas = n, n
	return w
}

// ReplicaSetWrapper builds a ReplicaSet.
type ReplicaSetWrapper struct {
	builder[appsv1.ReplicaSet, *ReplicaSetWrapper]
}

// MakeReplicaSet begins a ReplicaSet of one pod, without an owner. Its label app is its name.
func MakeReplicaSet(namespace, name string) *ReplicaSetWrapper {
	o := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: appLabel(name)},
		Spec:       appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: appLabel(name)}, Template: podTemplate(name)},
	}
	w := &ReplicaSetWrapper{}
	w.builder = builder[appsv1.ReplicaSet, *ReplicaSetWrapper]{o, &o.ObjectMeta, w}
	return w.Replicas(1)
}

// Of makes it a ReplicaSet of a Deployment, with its template. The name of the ReplicaSet is the hash.
func (w *ReplicaSetWrapper) Of(d *appsv1.Deployment) *ReplicaSetWrapper {
	hash := map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: w.object.Name}
	w.object.Spec.Template = instance(&d.Spec.Template, hash)
	w.object.Labels = instance(&d.Spec.Template, hash).Labels
	w.object.Spec.Selector = &metav1.LabelSelector{MatchLabels: instance(&corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: d.Spec.Selector.MatchLabels}}, hash).Labels}
	return w.OwnedBy(d)
}

// Replicas sets the number of pods.
func (w *ReplicaSetWrapper) Replicas(n int32) *ReplicaSetWrapper {
	w.object.Spec.Replicas = &n
	return w
}

// ControllerRevisionWrapper builds a ControllerRevision: a remembered version of a workload.
type ControllerRevisionWrapper struct {
	builder[appsv1.ControllerRevision, *ControllerRevisionWrapper]
}

// MakeControllerRevision begins a ControllerRevision without a template.
func MakeControllerRevision(namespace, name string) *ControllerRevisionWrapper {
	o := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	w := &ControllerRevisionWrapper{}
	w.builder = builder[appsv1.ControllerRevision, *ControllerRevisionWrapper]{o, &o.ObjectMeta, w}
	return w
}

// Of sets a Deployment and its template.
func (w *ControllerRevisionWrapper) Of(d *appsv1.Deployment) *ControllerRevisionWrapper {
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": d.Spec.Template}})
	if err != nil {
		panic(err) // a pod template is always JSON
	}
	apiVersion, kind := gvk(d).ToAPIVersionAndKind()
	w.object.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: d.Name, UID: d.UID}}
	return w.Label(v1alpha1.HistoryOfLabel, string(d.UID)).Label(v1alpha1.DeploymentNameLabel, d.Name).Data(string(data))
}

// OfEarlierBuild sets a Deployment as an earlier build of the operator did: without HistoryOfLabel, and as the controller.
func (w *ControllerRevisionWrapper) OfEarlierBuild(d *appsv1.Deployment) *ControllerRevisionWrapper {
	w.Of(d).OwnedBy(d)
	delete(w.object.Labels, v1alpha1.HistoryOfLabel)
	return w
}

// Data sets the JSON of the template.
func (w *ControllerRevisionWrapper) Data(data string) *ControllerRevisionWrapper {
	w.object.Data.Raw = []byte(data)
	return w
}

// Revision sets the number of the release that succeeded.
func (w *ControllerRevisionWrapper) Revision(n int64) *ControllerRevisionWrapper {
	w.object.Revision = n
	return w
}

// PodWrapper builds a Pod.
type PodWrapper struct {
	builder[corev1.Pod, *PodWrapper]
}

// MakePod begins a Pod without an owner and without a status. Its label app is its name.
func MakePod(namespace, name string) *PodWrapper {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: appLabel(name)}, Spec: podSpec()}
	w := &PodWrapper{}
	w.builder = builder[corev1.Pod, *PodWrapper]{o, &o.ObjectMeta, w}
	return w
}

// Of makes it a pod of a ReplicaSet.
func (w *PodWrapper) Of(rs *appsv1.ReplicaSet) *PodWrapper {
	t := instance(&rs.Spec.Template, nil)
	w.object.Labels, w.object.Annotations, w.object.Spec = t.Labels, t.Annotations, t.Spec
	return w.OwnedBy(rs)
}

// Phase sets the phase.
func (w *PodWrapper) Phase(phase corev1.PodPhase) *PodWrapper {
	w.object.Status.Phase = phase
	return w
}

// Ready makes the pod running, and ready since a time.
func (w *PodWrapper) Ready(since time.Time) *PodWrapper {
	return w.Phase(corev1.PodRunning).Condition(corev1.PodCondition{
		Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(since),
	})
}

// Condition sets a condition.
func (w *PodWrapper) Condition(condition corev1.PodCondition) *PodWrapper {
	conditions := &w.object.Status.Conditions
	for i := range *conditions {
		if (*conditions)[i].Type == condition.Type {
			(*conditions)[i] = condition
			return w
		}
	}
	*conditions = append(*conditions, condition)
	return w
}

// Container adds the status of a container.
func (w *PodWrapper) Container(name string, status corev1.ContainerStatus) *PodWrapper {
	status.Name = name
	w.object.Status.ContainerStatuses = append(w.object.Status.ContainerStatuses, status)
	return w
}

// InitContainer adds the status of an init container.
func (w *PodWrapper) InitContainer(name string, status corev1.ContainerStatus) *PodWrapper {
	status.Name = name
	w.object.Status.InitContainerStatuses = append(w.object.Status.InitContainerStatuses, status)
	return w
}

// Sidecar adds a native sidecar and its status.
func (w *PodWrapper) Sidecar(name string, status corev1.ContainerStatus) *PodWrapper {
	always := corev1.ContainerRestartPolicyAlways
	w.object.Spec.InitContainers = append(w.object.Spec.InitContainers, corev1.Container{Name: name, RestartPolicy: &always})
	return w.InitContainer(name, status)
}

// Waiting returns the status of a waiting container.
func Waiting(reason, message string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
}

// Exited returns the status of a terminated container.
func Exited(code int32, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}}
}

// Running returns the status of a running container.
func Running() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

// Restarted returns a status after a number of restarts, the last one after an error.
func Restarted(status corev1.ContainerStatus, restarts int32) corev1.ContainerStatus {
	status.RestartCount, status.LastTerminationState = restarts, Exited(1, "Error").State
	return status
}
