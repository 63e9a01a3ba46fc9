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

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/certificates"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/webhooks"
)

var now = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

const ns = DefaultNamespace

func is[T any](value T) Read[T] { return Read[T]{Value: value} }

func notThere[T any]() Read[T] {
	return Read[T]{Err: apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "thing")}
}

// forbidden is a read that the user may not do.
func forbidden[T any](of string) Read[T] {
	return Read[T]{Err: apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "thing", nil), Of: of}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

// healthy are the facts of an installation without a server, one day after it was made.
func healthy(t *testing.T) *Facts {
	t.Helper()
	f := &Facts{
		Plugin: "v0.1.0", Kinds: workload.Defended(), LocalNow: now, ServerNow: now, Namespace: ns,
		Version:         is(&version.Info{GitVersion: "v1.36.3"}),
		NamespaceObject: is(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: ns}}),
		Deployments:     is([]appsv1.Deployment{manager()}),
		Pods:            is([]corev1.Pod{replica("a"), replica("b")}),
		Lease: is(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("manager-a_0b25"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-2 * time.Second))),
		}}),
		LeaseAt: now,
		Budgets: is([]policyv1.PodDisruptionBudget{{
			ObjectMeta: named("budget"),
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"control-plane": "controller-manager"}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 2, ExpectedPods: 2},
		}}),
		Service:   is(&corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}),
		Endpoints: is([]discoveryv1.EndpointSlice{{Endpoints: []discoveryv1.Endpoint{{Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}}}}),
		Answer:    is(DryRun{Namespace: "shop", Stamped: true}),
		Account:   is(&metav1.PartialObjectMetadata{}),
		Mine:      is([]Access{{For: "verdict", Allowed: true}}),
		Token:     notThere[*corev1.Secret](),
		Policies:  is([]v1alpha1.DefensePolicy{*accepted(policy.Default(ns))}),
		Namespaces: is([]metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{
			Name: "shop", Labels: map[string]string{v1alpha1.EnrolledLabel: v1alpha1.EnrolledValue},
		}}}),
	}
	for _, o := range settings.DefaultObjects(ns) {
		f.Settings.Value = append(f.Settings.Value, *setting(o))
	}
	f.addKinds()
	f.addRoles()
	f.addWebhooks(t)
	return f
}

// manager is the Deployment as quick-start.yaml has it.
func manager() appsv1.Deployment {
	return appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "manager", Labels: map[string]string{"app.kubernetes.io/component": "manager"}},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"control-plane": "controller-manager"}},
			Spec: corev1.PodSpec{
				ServiceAccountName: "altershieldoperator-controller-manager",
				Containers:         []corev1.Container{{Name: "manager", Image: "ghcr.io/traas-stack/altershield-operator:v0.1.0", Args: []string{"--leader-elect=true"}}},
			},
		}},
		Status: appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
	}
}

func replica(name string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: named("manager-" + name),
		Spec:       manager().Spec.Template.Spec,
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "manager"}},
		},
	}
}

func said(ok bool, reason, message string) []metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reason, Message: message}
	if !ok {
		c.Status = metav1.ConditionFalse
	}
	return []metav1.Condition{c}
}

func accepted(p *v1alpha1.DefensePolicy) *v1alpha1.DefensePolicy {
	p.Status.Conditions = said(true, v1alpha1.ReasonInForce, "")
	return p
}

// setting is an object as the operator judges it.
func setting(o v1alpha1.OpsConfigInfo) *v1alpha1.OpsConfigInfo {
	a := settings.Assess(&o)
	o.Status.InForce, o.Status.Conditions = a.InForce, said(a.Accepted, a.Reason, a.Message)
	return &o
}

func (f *Facts) addKinds() {
	f.CRDs = map[string]*Read[*apiextensionsv1.CustomResourceDefinition]{}
	for name, kind := range Kinds() {
		kind.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue}, {Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
		}
		read := is(kind)
		f.CRDs[name] = &read
	}
}

// kind is the one of changepods, to be changed.
func (f *Facts) kind() *apiextensionsv1.CustomResourceDefinition {
	return f.CRDs["changepods.app.ops.cloud.alipay.com"].Value
}

func (f *Facts) addRoles() {
	wanted := WantedRoles()
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "altershieldoperator-controller-manager"}}
	name := "altershieldoperator-manager-role"
	cluster := wanted.Cluster[managerRole]
	cluster.Name, wanted.Manager.Name = name, name
	f.ClusterRole, f.Role = is(cluster), is(wanted.Manager)
	f.ClusterRoleBinding = is(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "binding"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: name}, Subjects: subject})
	f.RoleBinding = is(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "binding"}, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: name}, Subjects: subject})
	f.UserRoles = map[string]*Read[*rbacv1.ClusterRole]{}
	for _, user := range userRoles() {
		role := is(wanted.Cluster[user])
		role.Value.Name = defaultPrefix + user
		f.UserRoles[user] = &role
	}
}

// addWebhooks makes the configurations and the certificate, as the manager did yesterday.
func (f *Facts) addWebhooks(t *testing.T) {
	t.Helper()
	ca, err := pki.NewCA("ca", now.Add(-24*time.Hour), 900*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	f.certify(t, ca, 90*24*time.Hour)
	mutating, validating := f.configurations()
	wanted, err := certificates.NewConfigurations(webhooks.Configurations(f.Kinds), mutating, validating,
		certificates.Target{Namespace: ns, Service: f.service(), Port: 443})
	if err != nil {
		t.Fatal(err)
	}
	f.Mutating, f.Validating = is(wanted[0].Create(ca.CertPEM)), is(wanted[1].Create(ca.CertPEM))
}

// certify makes the certificate of the webhooks, yesterday.
func (f *Facts) certify(t *testing.T, ca *pki.KeyPair, validity time.Duration) {
	t.Helper()
	leaf, err := ca.IssueServer("webhooks", certificates.ServiceHosts(ns, f.service()), now.Add(-24*time.Hour), validity)
	if err != nil {
		t.Fatal(err)
	}
	f.Certificate = is(&corev1.Secret{Data: map[string][]byte{"tls.crt": leaf.CertPEM}})
}

// hook is a webhook of a configuration, to be changed.
func hook(t *testing.T, read Read[*unstructured.Unstructured], index int, change func(map[string]any)) {
	t.Helper()
	list, _, err := unstructured.NestedSlice(read.Value.Object, "webhooks")
	if err != nil {
		t.Fatal(err)
	}
	one, ok := list[index].(map[string]any)
	if !ok {
		t.Fatal("no webhook")
	}
	change(one)
	read.Value.Object["webhooks"] = list
}
