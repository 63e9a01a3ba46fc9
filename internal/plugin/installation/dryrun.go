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
	"context"
	"errors"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// mostTries is in how many namespaces the dry run is tried, where the user may not.
const mostTries = 3

// dryRun creates a Deployment without storing it, and says what admission made of it:
// whether the API server reaches the webhooks is known to nobody else. It is tried in the
// user's own namespace first.
func (ob *observer) dryRun(ctx context.Context, enrolled []string, own string) (DryRun, error) {
	if i := slices.Index(enrolled, own); i >= 0 {
		enrolled = slices.Concat([]string{own}, enrolled[:i], enrolled[i+1:])
	}
	var forbidden error
	for _, namespace := range enrolled[:min(mostTries, len(enrolled))] {
		d := probe(namespace)
		err := ob.client.Create(ctx, d, client.DryRunAll)
		switch denied := apierrors.APIStatus(nil); {
		case err == nil:
			return DryRun{Namespace: namespace, Stamped: d.Spec.Template.Labels[v1alpha1.VersionLabel] != ""}, nil
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "cannot create resource"):
			forbidden = err
		case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err), !errors.As(err, &denied):
			return DryRun{Namespace: namespace}, err
		default:
			return DryRun{Namespace: namespace, Denied: err.Error()}, nil
		}
	}
	return DryRun{}, forbidden
}

// probe is a Deployment without pods, as restricted as policies of a cluster may want.
func probe(namespace string) *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/name": "altershield-check"}
	none := resourceList()
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "altershield-check-", Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name: "check", Image: "registry.k8s.io/pause:3.10", Resources: corev1.ResourceRequirements{Requests: none, Limits: none},
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
					}},
				},
			},
		},
	}
}

func resourceList() corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")}
}

// access asks what the user may do of what the commands of the plugin need.
func access(ctx context.Context, r *reads, f *Facts, namespace string) {
	read(ctx, r, &f.Mine, "ask for your own rights", func(ctx context.Context) ([]Access, error) {
		wanted := needed(f, namespace)
		for i := range wanted {
			review := &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &wanted[i].ResourceAttributes},
			}
			if err := r.client.Create(ctx, review); err != nil {
				return nil, err
			}
			wanted[i].Allowed = review.Status.Allowed
		}
		return wanted, nil
	})
}

// needed is what the commands of the plugin need, in a namespace.
func needed(f *Facts, namespace string) []Access {
	in := func(commands, verb, group, resource, subresource string) Access {
		return Access{For: commands, ResourceAttributes: authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
		}}
	}
	const see = "status, history, explain, wait"
	group := v1alpha1.GroupVersion.Group
	all := []Access{
		in(see, "list", group, "changeworkloads", ""), in(see, "list", group, "changepods", ""), in(see, "list", "", "pods", ""),
		in("verdict", "patch", group, "changepods", "status"),
	}
	for _, kind := range f.Kinds.Kinds() {
		of := kind.GroupVersionKind().Group
		all = append(all, in(see, "get", of, kind.Resource(), ""),
			in("repair, rollback, unquarantine, opt-out, observe", "patch", of, kind.Resource(), ""))
	}
	enrol := in("enroll, unenroll", "patch", "", "namespaces", "")
	enrol.Name = namespace
	return append(all, enrol)
}

// mapper knows the kinds that are read, so that nobody has to ask for them.
func mapper(kinds *workload.Registry) meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for _, kind := range []struct {
		of             schema.GroupVersion
		kind, resource string
		scope          meta.RESTScope
	}{
		{corev1.SchemeGroupVersion, "Namespace", "namespaces", meta.RESTScopeRoot},
		{corev1.SchemeGroupVersion, "Pod", "pods", meta.RESTScopeNamespace},
		{corev1.SchemeGroupVersion, "Secret", "secrets", meta.RESTScopeNamespace},
		{corev1.SchemeGroupVersion, "Service", "services", meta.RESTScopeNamespace},
		{corev1.SchemeGroupVersion, "ServiceAccount", "serviceaccounts", meta.RESTScopeNamespace},
		{appsv1.SchemeGroupVersion, "Deployment", "deployments", meta.RESTScopeNamespace},
		{authorizationv1.SchemeGroupVersion, "SelfSubjectAccessReview", "selfsubjectaccessreviews", meta.RESTScopeRoot},
		{coordinationv1.SchemeGroupVersion, "Lease", "leases", meta.RESTScopeNamespace},
		{discoveryv1.SchemeGroupVersion, "EndpointSlice", "endpointslices", meta.RESTScopeNamespace},
		{policyv1.SchemeGroupVersion, "PodDisruptionBudget", "poddisruptionbudgets", meta.RESTScopeNamespace},
		{rbacv1.SchemeGroupVersion, "ClusterRole", "clusterroles", meta.RESTScopeRoot},
		{rbacv1.SchemeGroupVersion, "ClusterRoleBinding", "clusterrolebindings", meta.RESTScopeRoot},
		{rbacv1.SchemeGroupVersion, "Role", "roles", meta.RESTScopeNamespace},
		{rbacv1.SchemeGroupVersion, "RoleBinding", "rolebindings", meta.RESTScopeNamespace},
		{apiextensionsv1.SchemeGroupVersion, "CustomResourceDefinition", "customresourcedefinitions", meta.RESTScopeRoot},
		{admissionregistrationv1.SchemeGroupVersion, "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", meta.RESTScopeRoot},
		{admissionregistrationv1.SchemeGroupVersion, "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", meta.RESTScopeRoot},
		{v1alpha1.GroupVersion, "OpsConfigInfo", "opsconfiginfoes", meta.RESTScopeNamespace},
		{v1alpha1.GroupVersion, "DefensePolicy", "defensepolicies", meta.RESTScopeNamespace},
		{v1alpha1.GroupVersion, "ChangeWorkload", "changeworkloads", meta.RESTScopeNamespace},
	} {
		m.AddSpecific(kind.of.WithKind(kind.kind), kind.of.WithResource(kind.resource), kind.of.WithResource(strings.ToLower(kind.kind)), kind.scope)
	}
	for _, kind := range kinds.Kinds() {
		gvk := kind.GroupVersionKind()
		m.AddSpecific(gvk, gvk.GroupVersion().WithResource(kind.Resource()), gvk.GroupVersion().WithResource(strings.ToLower(gvk.Kind)), meta.RESTScopeNamespace)
	}
	return m
}
