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

package installation

import (
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

const ns = DefaultNamespace

func is[T any](value T) Read[T] { return Read[T]{Value: value} }

func notFound[T any]() Read[T] {
	return Read[T]{Err: apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "thing")}
}

// forbidden returns a read that the user may not do.
func forbidden[T any](of string) Read[T] {
	return Read[T]{Err: apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "thing", nil), Of: of}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

// healthy returns the facts of a healthy installation without a server, one day after its certificates were made.
func healthy(t *testing.T) *Facts {
	t.Helper()
	ca, err := pki.NewCA("ca", now.Add(-24*time.Hour), 900*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.IssueServer("webhooks", []string{"webhooks"}, now.Add(-24*time.Hour), 90*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f := &Facts{
		Plugin: "v0.1.0", Namespace: ns, Now: now,
		Deployments: is([]appsv1.Deployment{manager()}),
		Pods:        is([]corev1.Pod{replica("a"), replica("b")}),
		Lease: is(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("manager-a_0b25"), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-2 * time.Second))),
		}}),
		LeaseRenewed: true,
		Mutating:     is(webhooks{webhook("mdeployment.kb.io", admissionv1.Ignore, ca)}),
		Validating: is(webhooks{
			webhook("qdeployment.kb.io", admissionv1.Ignore, ca), webhook("vdeployment.kb.io", admissionv1.Fail, ca),
		}),
		Certificate: is(&corev1.Secret{Data: map[string][]byte{"tls.crt": leaf.CertPEM}}),
		Answer:      is(DryRun{Namespace: "shop", Stamped: true}),
		Mine:        is([]Access{{For: "correct verdicts", Allowed: true}}),
		Policies:    is([]v1alpha1.DefensePolicy{*policy.Default(ns)}),
	}
	f.Policies.Value[0].Status.Conditions = accepts(true, v1alpha1.ReasonInForce, "")
	f.label("shop", v1alpha1.EnrolledValue)
	for _, o := range settings.DefaultObjects(ns) {
		f.Settings.Value = append(f.Settings.Value, *assessed(o))
	}
	for range kindNames() {
		f.CRDs = append(f.CRDs, is(&apiextensionsv1.CustomResourceDefinition{
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1", Served: true}},
			},
			Status: apiextensionsv1.CustomResourceDefinitionStatus{
				Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: "True"}},
			},
		}))
	}
	return f
}

// manager returns the Deployment as quick-start.yaml has it.
func manager() appsv1.Deployment {
	return appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "manager", Labels: map[string]string{"app.kubernetes.io/component": "manager"}},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "manager", Image: "ghcr.io/operator:v0.1.0", Args: []string{"--leader-elect=true"}}},
		}}},
		Status: appsv1.DeploymentStatus{UpdatedReplicas: 2, AvailableReplicas: 2},
	}
}

func replica(name string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: named("manager-" + name),
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "manager"}},
		},
	}
}

func webhook(name string, failing admissionv1.FailurePolicyType, ca *pki.KeyPair) admissionv1.ValidatingWebhook {
	return admissionv1.ValidatingWebhook{
		Name: name, FailurePolicy: &failing,
		ClientConfig: admissionv1.WebhookClientConfig{
			CABundle: ca.CertPEM, Service: &admissionv1.ServiceReference{Namespace: ns, Name: "webhooks"},
		},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue}},
	}
}

func accepts(ok bool, reason, message string) []metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reason, Message: message}
	if !ok {
		c.Status = metav1.ConditionFalse
	}
	return []metav1.Condition{c}
}

// assessed returns a setting with the status that the operator writes.
func assessed(o v1alpha1.OpsConfigInfo) *v1alpha1.OpsConfigInfo {
	a := settings.Assess(&o)
	o.Status.InForce, o.Status.Conditions = a.InForce, accepts(a.Accepted, a.Reason, a.Message)
	return &o
}

func (f *Facts) label(namespace, value string) {
	f.Namespaces.Value = append(f.Namespaces.Value, metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{v1alpha1.EnrolledLabel: value}},
	})
}

func (f *Facts) args(args ...string) {
	c := &f.Deployments.Value[0].Spec.Template.Spec.Containers[0]
	c.Args = append(c.Args, args...)
}

// setting returns one of the operator's settings, to be changed.
func (f *Facts) setting(name string) *v1alpha1.OpsConfigInfo {
	for i := range f.Settings.Value {
		if f.Settings.Value[i].Name == name {
			return &f.Settings.Value[i]
		}
	}
	panic("no setting " + name)
}

func (f *Facts) enable(name string, on bool) {
	o := f.setting(name)
	o.Spec.Enable = on
	*o = *assessed(*o)
}

// connect configures a server, which answers or not.
func (f *Facts) connect(healthy corev1.ConditionStatus) {
	f.args("--altershield-url=http://altershield:8080")
	for i := range f.Pods.Value {
		f.Pods.Value[i].Status.Conditions = append(f.Pods.Value[i].Status.Conditions, corev1.PodCondition{
			Type: v1alpha1.ConditionServerHealthy, Status: healthy, Reason: "Unreachable", Message: "connection refused",
		})
	}
}

// fail makes the second replica unready.
func (f *Facts) fail(state corev1.ContainerState) {
	p := &f.Pods.Value[1]
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: state}}
}

func (f *Facts) restarted(reason string, code int32, ago time.Duration) {
	f.Pods.Value[0].Status.ContainerStatuses[0] = corev1.ContainerStatus{
		RestartCount: 3, LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: reason, ExitCode: code, FinishedAt: metav1.NewTime(now.Add(-ago)),
		}},
	}
}
