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
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/servertime"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// readTimeout bounds each read, so that a slow read does not hide the others.
	readTimeout = 10 * time.Second
	// atOnce is the number of concurrent reads.
	atOnce = 8
	// youngLease is the age of a lease that counts as renewed. A leader renews it every two seconds.
	youngLease = 10 * time.Second
	// renewal is how long to wait for the renewal of an older lease: its holder may have another clock.
	renewal = 6 * time.Second
	// mostTries is the number of namespaces in which the dry run is tried if the user may not.
	mostTries = 3
)

// Options say what is read.
type Options struct {
	// Config reaches the cluster.
	Config *rest.Config
	// Scheme knows the kinds that are read.
	Scheme *runtime.Scheme
	// Namespace of the operator; empty to find it.
	Namespace string
	// UserNamespace is the namespace that the user works in.
	UserNamespace string
	// Plugin is the version of the plugin.
	Plugin string
}

// reader reads concurrently. wait returns when all reads have ended; no read ends another.
type reader struct {
	client client.Client
	clock  clock.PassiveClock
	group  errgroup.Group
}

func (r *reader) wait() { _ = r.group.Wait() }

// read reads a value, which nothing else writes.
func read[T any](ctx context.Context, r *reader, into *Read[T], of string, do func(ctx context.Context) (T, error)) {
	r.group.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		value, err := do(ctx)
		*into = Read[T]{Value: value, Err: err, Of: of}
		return nil
	})
}

// get reads an object.
func get[T client.Object](ctx context.Context, r *reader, into *Read[T], of string, key types.NamespacedName, o T) {
	of = "get " + of + " " + key.Name
	if key.Namespace != "" {
		of += " in " + key.Namespace
	}
	read(ctx, r, into, of, func(ctx context.Context) (T, error) { return o, r.client.Get(ctx, key, o) })
}

// list reads objects.
func list[T any](
	ctx context.Context, r *reader, into *Read[[]T], of string, l client.ObjectList, items *[]T, options ...client.ListOption,
) {
	read(ctx, r, into, "list "+of, func(ctx context.Context) ([]T, error) {
		err := r.client.List(ctx, l, options...)
		return *items, err
	})
}

// Observe reads the facts. A read that fails becomes part of the facts.
func Observe(ctx context.Context, o Options) (*Facts, error) {
	config := rest.CopyConfig(o.Config)
	// Warnings about the dry run's Deployment concern no person.
	config.WarningHandler = rest.NoWarnings{}
	now := servertime.Follow(config, clock.RealClock{})
	c, err := client.New(config, client.Options{Scheme: o.Scheme, Mapper: mapper(o.Scheme)})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	r, f := &reader{client: c, clock: now}, &Facts{Plugin: o.Plugin, Namespace: o.Namespace}
	r.group.SetLimit(atOnce)
	if f.Namespace == "" {
		f.Namespace = cmp.Or(FindNamespace(ctx, c), DefaultNamespace)
	}
	// The flags of the Deployment name the other objects.
	deployments := &appsv1.DeploymentList{}
	list(ctx, r, &f.Deployments, "deployments in "+f.Namespace, deployments, &deployments.Items,
		client.InNamespace(f.Namespace), client.MatchingLabels{"app.kubernetes.io/name": operatorName})
	r.wait()
	if f.answered() {
		r.objects(ctx, f, o)
	}
	f.Now = now.Now()
	return f, ctx.Err()
}

// objects reads the other objects of the installation, and then tries the webhooks.
func (r *reader) objects(ctx context.Context, f *Facts, o Options) {
	here := " in " + f.Namespace
	in := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: f.Namespace, Name: name}
	}
	declared := &v1alpha1.ChangeKindList{}
	list(ctx, r, &f.ChangeKinds, "changekinds", declared, &declared.Items)
	r.wait() // your rights are about these kinds, too
	kinds := kindNames()
	f.CRDs = make([]Read[*apiextensionsv1.CustomResourceDefinition], len(kinds))
	for i, name := range kinds {
		get(ctx, r, &f.CRDs[i], "customresourcedefinition", types.NamespacedName{Name: name}, &apiextensionsv1.CustomResourceDefinition{})
	}
	mutating, validating := f.configurations()
	read(ctx, r, &f.Mutating, "get mutatingwebhookconfiguration "+mutating, func(ctx context.Context) (webhooks, error) {
		return mutatingWebhooks(ctx, r.client, mutating)
	})
	read(ctx, r, &f.Validating, "get validatingwebhookconfiguration "+validating, func(ctx context.Context) (webhooks, error) {
		return validatingWebhooks(ctx, r.client, validating)
	})
	if d := f.deployment(); d != nil {
		pods := &corev1.PodList{}
		list(ctx, r, &f.Pods, "pods"+here, pods, &pods.Items, client.InNamespace(f.Namespace), client.MatchingLabels(d.Spec.Selector.MatchLabels))
	}
	read(ctx, r, &f.Lease, "get lease "+operatorName+here, func(ctx context.Context) (*coordinationv1.Lease, error) {
		lease := &coordinationv1.Lease{}
		err := r.client.Get(ctx, in(operatorName), lease)
		f.LeaseRenewed = err == nil && r.renewed(ctx, lease)
		return lease, err
	})
	if name, _ := f.certificateSecret(); name != "" {
		get(ctx, r, &f.Certificate, "secret", in(name), &corev1.Secret{})
	}
	settings, policies := &v1alpha1.OpsConfigInfoList{}, &v1alpha1.DefensePolicyList{}
	list(ctx, r, &f.Settings, "opsconfiginfoes", settings, &settings.Items)
	list(ctx, r, &f.Policies, "defensepolicies", policies, &policies.Items)
	r.namespaces(ctx, f, o.UserNamespace)
	read(ctx, r, &f.Mine, "ask for your own rights", func(ctx context.Context) ([]Access, error) {
		return access(ctx, r.client, f.ChangeKinds.Value, o.UserNamespace)
	})
	r.wait()

	read(ctx, r, &f.Answer, "create deployments in an enrolled namespace", func(ctx context.Context) (DryRun, error) {
		return dryRun(ctx, r.client, f.seenNamespaces(), o.UserNamespace)
	})
	r.wait()
}

// namespaces reads the namespaces with a label of enrolment, or the user's own, and all workloads.
func (r *reader) namespaces(ctx context.Context, f *Facts, own string) {
	read(ctx, r, &f.Namespaces, "list namespaces", func(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
		found, err := metadata(ctx, r.client, "v1", "Namespace", client.HasLabels{v1alpha1.EnrolledLabel})
		if !apierrors.IsForbidden(err) {
			return found, err
		}
		one := metadataOf("v1", "Namespace")
		if r.client.Get(ctx, types.NamespacedName{Name: own}, one) != nil {
			return nil, err
		}
		f.OnlyOwn = true
		return []metav1.PartialObjectMetadata{*one}, nil
	})
	read(ctx, r, &f.Workloads, "list workloads of all namespaces", func(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
		var all []metav1.PartialObjectMetadata
		for _, kind := range workload.Defended().Kinds() {
			gvk := kind.GroupVersionKind()
			found, err := metadata(ctx, r.client, gvk.GroupVersion().String(), gvk.Kind)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	})
}

func metadataOf(apiVersion, kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
}

func metadata(
	ctx context.Context, c client.Reader, apiVersion, kind string, options ...client.ListOption,
) ([]metav1.PartialObjectMetadata, error) {
	found := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind + "List"}}
	err := c.List(ctx, found, options...)
	return found.Items, err
}

func validatingWebhooks(ctx context.Context, c client.Reader, name string) (webhooks, error) {
	var o admissionv1.ValidatingWebhookConfiguration
	err := c.Get(ctx, types.NamespacedName{Name: name}, &o)
	return o.Webhooks, err
}

// mutatingWebhooks returns what mutating webhooks share with validating ones, as far as it is checked.
func mutatingWebhooks(ctx context.Context, c client.Reader, name string) (webhooks, error) {
	var o admissionv1.MutatingWebhookConfiguration
	err := c.Get(ctx, types.NamespacedName{Name: name}, &o)
	var found webhooks
	for i := range o.Webhooks {
		h := &o.Webhooks[i]
		found = append(found, admissionv1.ValidatingWebhook{Name: h.Name, ClientConfig: h.ClientConfig, NamespaceSelector: h.NamespaceSelector})
	}
	return found, err
}

// FindNamespace returns the namespace of the operator: the namespace of its webhooks' service, or of a Deployment of it;
// empty if the user may not read them, or none exists.
func FindNamespace(ctx context.Context, c client.Reader) string {
	mutating, validating := (&Facts{}).configurations()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, _ := validatingWebhooks(ctx, c, validating)
	if found.namespace() == "" {
		found, _ = mutatingWebhooks(ctx, c, mutating)
	}
	if namespace := found.namespace(); namespace != "" {
		return namespace
	}
	deployments, err := metadata(ctx, c, "apps/v1", "Deployment", client.MatchingLabels{"app.kubernetes.io/name": operatorName})
	if err != nil || len(deployments) == 0 {
		return ""
	}
	return deployments[0].Namespace
}

// namespace returns the namespace of the webhooks' service; empty if they have none.
func (w webhooks) namespace() string {
	for i := range w {
		if s := w[i].ClientConfig.Service; s != nil && len(validation.IsDNS1123Label(s.Namespace)) == 0 {
			return s.Namespace
		}
	}
	return ""
}

// renewed reports whether a lease is young, or is renewed within some seconds.
func (r *reader) renewed(ctx context.Context, lease *coordinationv1.Lease) bool {
	before := lease.Spec.RenewTime
	if before == nil || r.clock.Since(before.Time) < youngLease {
		return before != nil
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, renewal, false, func(ctx context.Context) (bool, error) {
		var now coordinationv1.Lease
		err := r.client.Get(ctx, client.ObjectKeyFromObject(lease), &now)
		return err == nil && !now.Spec.RenewTime.Equal(before), nil
	}) == nil
}

// mapper knows the kinds of a scheme, so that no request has to discover them.
func mapper(scheme *runtime.Scheme) meta.RESTMapper {
	ofCluster := []string{
		"ChangeKind", "Namespace", "SelfSubjectAccessReview", "CustomResourceDefinition",
		"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
	}
	m := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		if slices.Contains(ofCluster, kind.Kind) {
			m.Add(kind, meta.RESTScopeRoot)
		} else {
			m.Add(kind, meta.RESTScopeNamespace)
		}
	}
	// The rules for English plurals do not lead to this one.
	of := v1alpha1.GroupVersion
	m.AddSpecific(of.WithKind("OpsConfigInfo"), of.WithResource("opsconfiginfoes"), of.WithResource("opsconfiginfo"), meta.RESTScopeNamespace)
	return m
}

// dryRun creates a Deployment that is not stored: only its answer shows whether the API server reaches the webhooks. It tries
// the user's own namespace first.
func dryRun(ctx context.Context, c client.Client, enrolled []string, own string) (DryRun, error) {
	if i := slices.Index(enrolled, own); i >= 0 {
		enrolled = slices.Concat([]string{own}, enrolled[:i], enrolled[i+1:])
	}
	var forbidden error
	for _, namespace := range enrolled[:min(mostTries, len(enrolled))] {
		d := emptyDeployment(namespace)
		err := c.Create(ctx, d, client.DryRunAll)
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

// emptyDeployment returns a Deployment without pods, as restricted as policies of a cluster may require.
func emptyDeployment(namespace string) *appsv1.Deployment {
	labels := map[string]string{"app.kubernetes.io/name": "altershield-check"}
	few := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "altershield-check-", Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532),
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name: "check", Image: "registry.k8s.io/pause:3.10", Resources: corev1.ResourceRequirements{Requests: few, Limits: few},
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

// access asks the API server for the user's rights in a namespace.
func access(ctx context.Context, c client.Client, declared []v1alpha1.ChangeKind, namespace string) ([]Access, error) {
	rights := usefulRights(namespace, declared)
	for i := range rights {
		review := &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &rights[i].ResourceAttributes},
		}
		if err := c.Create(ctx, review); err != nil {
			return nil, err
		}
		rights[i].Allowed = review.Status.Allowed
	}
	return rights, nil
}

// usefulRights returns the rights that users of the plugin need in a namespace.
func usefulRights(namespace string, declared []v1alpha1.ChangeKind) (all []Access) {
	add := func(purpose, verb, group, resource, subresource string) {
		all = append(all, Access{For: purpose, ResourceAttributes: authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
		}})
	}
	const see = "see releases"
	group := v1alpha1.GroupVersion.Group
	add(see, "list", group, "changeworkloads", "")
	add(see, "list", group, "changepods", "")
	add(see, "list", "", "pods", "")
	var kinds []schema.GroupResource
	for _, kind := range workload.Defended().Kinds() {
		kinds = append(kinds, schema.GroupResource{Group: kind.GroupVersionKind().Group, Resource: kind.Resource()})
	}
	for i := range declared {
		kinds = append(kinds, schema.ParseGroupResource(declared[i].Name))
	}
	for _, kind := range kinds {
		add(see, "get", kind.Group, kind.Resource, "")
		add("change workloads", "patch", kind.Group, kind.Resource, "")
	}
	add("correct verdicts", "patch", group, "changepods", "status")
	add("enrol the namespace", "patch", "", "namespaces", "")
	all[len(all)-1].Name = namespace
	return all
}
