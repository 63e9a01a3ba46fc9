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
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/servertime"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	// readTimeout bounds each read, so that one that is stuck does not hide the others.
	readTimeout = 10 * time.Second
	// atOnce is how many reads are under way at a time.
	atOnce = 8
	// renewal is how long a lease that looks old is looked at: a leader renews it every
	// two seconds.
	renewal = 6 * time.Second
	// pageSize is how many objects an answer has.
	pageSize = 500
)

// Options say what is read.
type Options struct {
	// Config is how the cluster is reached.
	Config *rest.Config
	// Scheme knows the kinds that are read.
	Scheme *runtime.Scheme
	// Namespace of the operator; empty where it has to be found.
	Namespace string
	// UserNamespace is the one that the user works in.
	UserNamespace string
	// Plugin is the version of the plugin.
	Plugin string
	// Now is the time of this machine.
	Now func() time.Time
}

// Observe reads what there is to know of the installation: once, with few requests. What
// cannot be read is told in its place.
func Observe(ctx context.Context, o Options) (*Facts, error) {
	ob, err := newObserver(o)
	if err != nil {
		return nil, err
	}
	f := &Facts{Plugin: o.Plugin, Kinds: workload.Defended()}
	ob.cluster(ctx, f, o)
	if f.Version.Err == nil || apierrors.IsForbidden(f.Version.Err) {
		f.Namespace = ob.findNamespace(ctx, f, o.Namespace)
		ob.objects(ctx, f, o)
		ob.installed(ctx, f)
		ob.awaitRenewal(ctx, f)
	}
	f.LocalNow = o.Now()
	if ob.dated.Load() {
		f.ServerNow = ob.clock.Now()
	}
	return f, ctx.Err()
}

type observer struct {
	client    client.Client
	discovery *discovery.DiscoveryClient
	clock     *servertime.Clock
	// dated says that an answer had a date.
	dated atomic.Bool
}

func newObserver(o Options) (*observer, error) {
	ob := &observer{clock: servertime.New(machineClock(o.Now))}
	config := rest.CopyConfig(o.Config)
	// The dry run may be warned of; nobody has to know.
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil && response.Header.Get("Date") != "" {
				ob.clock.Learn(response.Header.Get("Date"))
				ob.dated.Store(true)
			}
			return response, err
		})
	})
	var err error
	if ob.client, err = client.New(config, client.Options{Scheme: o.Scheme, Mapper: mapper(workload.Defended())}); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	if ob.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return ob, nil
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// machineClock is the clock of this machine.
type machineClock func() time.Time

var _ clock.PassiveClock = machineClock(nil)

// Now implements clock.PassiveClock.
func (c machineClock) Now() time.Time { return c() }

// Since implements clock.PassiveClock.
func (c machineClock) Since(t time.Time) time.Duration { return c().Sub(t) }

// reads are under way together.
type reads struct {
	client client.Client
	group  errgroup.Group
}

func (ob *observer) together() *reads {
	r := &reads{client: ob.client}
	r.group.SetLimit(atOnce)
	return r
}

// wait until all have ended. None ends the others.
func (r *reads) wait() { _ = r.group.Wait() }

// read reads into a place that nobody else writes.
func read[T any](ctx context.Context, r *reads, into *Read[T], of string, do func(ctx context.Context) (T, error)) {
	r.group.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		value, err := do(ctx)
		*into = Read[T]{Value: value, Err: err, Of: of}
		return nil
	})
}

// get reads an object.
func get[T client.Object](ctx context.Context, r *reads, into *Read[T], key types.NamespacedName, object T) {
	of := "get " + key.Name
	if gvk, err := r.client.GroupVersionKindFor(object); err == nil {
		of = "get " + strings.ToLower(gvk.Kind) + " " + key.Name
	}
	if key.Namespace != "" {
		of += " in " + key.Namespace
	}
	read(ctx, r, into, of, func(ctx context.Context) (T, error) { return object, r.client.Get(ctx, key, object) })
}

// cluster reads what does not depend on where the operator is.
func (ob *observer) cluster(ctx context.Context, f *Facts, o Options) {
	r := ob.together()
	read(ctx, r, &f.Version, "get /version", ob.discovery.ServerVersionWithContext)
	f.CRDs = map[string]*Read[*apiextensionsv1.CustomResourceDefinition]{}
	for name := range Kinds() {
		f.CRDs[name] = &Read[*apiextensionsv1.CustomResourceDefinition]{}
		get(ctx, r, f.CRDs[name], types.NamespacedName{Name: name}, &apiextensionsv1.CustomResourceDefinition{})
	}
	configurations(ctx, r, f)
	read(ctx, r, &f.Namespaces, "list namespaces", func(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
		list, err := ob.metadata(ctx, "v1", "Namespace", client.HasLabels{v1alpha1.EnrolledLabel})
		if !apierrors.IsForbidden(err) {
			return list, err
		}
		// Many may at least see their own.
		own := metadataOf("v1", "Namespace")
		if ob.client.Get(ctx, types.NamespacedName{Name: o.UserNamespace}, own) != nil {
			return nil, err
		}
		f.OnlyOwn = true
		return []metav1.PartialObjectMetadata{*own}, nil
	})
	r.wait()
}

// configurations reads the webhook configurations.
func configurations(ctx context.Context, r *reads, f *Facts) {
	mutating, validating := f.configurations()
	for kind, into := range map[string]struct {
		read *Read[*unstructured.Unstructured]
		name string
	}{
		"MutatingWebhookConfiguration": {&f.Mutating, mutating}, "ValidatingWebhookConfiguration": {&f.Validating, validating},
	} {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("admissionregistration.k8s.io/v1")
		u.SetKind(kind)
		get(ctx, r, into.read, types.NamespacedName{Name: into.name}, u)
	}
}

// findNamespace says where the operator is: as the user says, where the webhooks are
// called, where a Deployment of it is, or where it is by default.
func (ob *observer) findNamespace(ctx context.Context, f *Facts, given string) string {
	if given != "" {
		return given
	}
	for _, configuration := range []Read[*unstructured.Unstructured]{f.Validating, f.Mutating} {
		if namespace := servedIn(configuration); namespace != "" {
			return namespace
		}
	}
	if namespace := deployedIn(ctx, ob.client); namespace != "" {
		return namespace
	}
	return DefaultNamespace
}

// FindNamespace says where the operator is: where the webhooks are called, or where a
// Deployment of it is; empty where the user may read none of them, or none is there.
func FindNamespace(ctx context.Context, c client.Reader) string {
	mutating, validating := (&Facts{}).configurations()
	for _, configuration := range []struct{ kind, name string }{{"ValidatingWebhookConfiguration", validating}, {"MutatingWebhookConfiguration", mutating}} {
		read := Read[*unstructured.Unstructured]{Value: &unstructured.Unstructured{}}
		read.Value.SetAPIVersion("admissionregistration.k8s.io/v1")
		read.Value.SetKind(configuration.kind)
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		read.Err = c.Get(ctx, types.NamespacedName{Name: configuration.name}, read.Value)
		cancel()
		if namespace := servedIn(read); namespace != "" {
			return namespace
		}
	}
	return deployedIn(ctx, c)
}

// deployedIn is the namespace of a Deployment of the operator.
func deployedIn(ctx context.Context, c client.Reader) string {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DeploymentList"}}
	if err := c.List(ctx, list, client.MatchingLabels{"app.kubernetes.io/name": operatorName}); err != nil || len(list.Items) == 0 {
		return ""
	}
	return list.Items[0].Namespace
}

// servedIn is the namespace of the service of webhooks.
func servedIn(configuration Read[*unstructured.Unstructured]) string {
	if !configuration.readable() {
		return ""
	}
	for _, hook := range hooks(configuration.Value) {
		if namespace, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "namespace"); len(validation.IsDNS1123Label(namespace)) == 0 {
			return namespace
		}
	}
	return ""
}

// objects reads what has the same names in every installation.
func (ob *observer) objects(ctx context.Context, f *Facts, o Options) {
	r, in := ob.together(), client.InNamespace(f.Namespace)
	get(ctx, r, &f.NamespaceObject, types.NamespacedName{Name: f.Namespace}, metadataOf("v1", "Namespace"))
	read(ctx, r, &f.Deployments, "list deployments in "+f.Namespace, func(ctx context.Context) ([]appsv1.Deployment, error) {
		var list appsv1.DeploymentList
		err := ob.client.List(ctx, &list, in, client.MatchingLabels{"app.kubernetes.io/name": operatorName})
		return list.Items, err
	})
	read(ctx, r, &f.Budgets, "list poddisruptionbudgets in "+f.Namespace, func(ctx context.Context) ([]policyv1.PodDisruptionBudget, error) {
		var list policyv1.PodDisruptionBudgetList
		err := ob.client.List(ctx, &list, in)
		return list.Items, err
	})
	read(ctx, r, &f.Settings, "list opsconfiginfoes", func(ctx context.Context) ([]v1alpha1.OpsConfigInfo, error) {
		var list v1alpha1.OpsConfigInfoList
		err := ob.listOr(ctx, &list, in)
		return list.Items, err
	})
	read(ctx, r, &f.Policies, "list defensepolicies", func(ctx context.Context) ([]v1alpha1.DefensePolicy, error) {
		var list v1alpha1.DefensePolicyList
		err := ob.listOr(ctx, &list, in)
		return list.Items, err
	})
	read(ctx, r, &f.Blocked, "list workloads of all namespaces", func(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
		var all []metav1.PartialObjectMetadata
		for _, kind := range f.Kinds.Kinds() {
			gvk := kind.GroupVersionKind()
			list, err := ob.metadata(ctx, gvk.GroupVersion().String(), gvk.Kind, client.HasLabels{v1alpha1.SuspendLabel})
			if err != nil {
				return nil, err
			}
			all = append(all, list...)
		}
		return all, nil
	})
	read(ctx, r, &f.Releases, "list changeworkloads of all namespaces", ob.releases)
	read(ctx, r, &f.Answer, "create deployments in an enrolled namespace", func(ctx context.Context) (DryRun, error) {
		return ob.dryRun(ctx, f.seenNamespaces(), o.UserNamespace)
	})
	access(ctx, r, f, o.UserNamespace)
	r.wait()
}

// listOr lists in all namespaces or, where the user may not, in some.
func (ob *observer) listOr(ctx context.Context, list client.ObjectList, some ...client.ListOption) error {
	err := ob.client.List(ctx, list)
	if apierrors.IsForbidden(err) {
		return ob.client.List(ctx, list, some...)
	}
	return err
}

func (ob *observer) releases(ctx context.Context) ([]v1alpha1.ChangeWorkload, error) {
	var all []v1alpha1.ChangeWorkload
	for next := ""; ; {
		var page v1alpha1.ChangeWorkloadList
		if err := ob.client.List(ctx, &page, client.Limit(pageSize), client.Continue(next)); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
}

func metadataOf(apiVersion, kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
}

func (ob *observer) metadata(ctx context.Context, apiVersion, kind string, options ...client.ListOption) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind + "List"}}
	err := ob.client.List(ctx, list, options...)
	return list.Items, err
}

// installed reads what the Deployment of the manager says the names of.
func (ob *observer) installed(ctx context.Context, f *Facts) {
	r := ob.together()
	in := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: f.Namespace, Name: name}
	}
	mutating, validating := f.configurations()
	if other := (&Facts{}); f.deployment() != nil {
		if m, v := other.configurations(); m != mutating || v != validating {
			configurations(ctx, r, f)
		}
		selector, err := metav1.LabelSelectorAsSelector(f.deployment().Spec.Selector)
		read(ctx, r, &f.Pods, "list pods in "+f.Namespace, func(ctx context.Context) ([]corev1.Pod, error) {
			if err != nil {
				return nil, err
			}
			var list corev1.PodList
			err := ob.client.List(ctx, &list, client.InNamespace(f.Namespace), client.MatchingLabelsSelector{Selector: selector})
			return list.Items, err
		})
	}
	read(ctx, r, &f.Lease, "get leases "+leaseName+" in "+f.Namespace, func(ctx context.Context) (*coordinationv1.Lease, error) {
		lease := &coordinationv1.Lease{}
		err := ob.client.Get(ctx, in(leaseName), lease)
		f.LeaseAt = ob.clock.Now()
		return lease, err
	})
	roles(ctx, r, f)
	get(ctx, r, &f.Service, in(f.service()), &corev1.Service{})
	read(ctx, r, &f.Endpoints, "list endpointslices in "+f.Namespace, func(ctx context.Context) ([]discoveryv1.EndpointSlice, error) {
		var list discoveryv1.EndpointSliceList
		err := ob.client.List(ctx, &list, client.InNamespace(f.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: f.service()})
		return list.Items, err
	})
	if name, _ := f.certificateSecret(); name != "" {
		get(ctx, r, &f.Certificate, in(name), &corev1.Secret{})
	}
	if name := f.tokenSecret(); name != "" {
		get(ctx, r, &f.Token, in(name), &corev1.Secret{})
	}
	r.wait()
}

// roles reads what gives the operator, and users, their rights.
func roles(ctx context.Context, r *reads, f *Facts) {
	cluster := func(name string) types.NamespacedName { return types.NamespacedName{Name: f.prefix() + name} }
	in := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: f.Namespace, Name: name}
	}
	get(ctx, r, &f.Account, in(f.accountName()), metadataOf("v1", "ServiceAccount"))
	get(ctx, r, &f.ClusterRole, cluster(managerRole), &rbacv1.ClusterRole{})
	get(ctx, r, &f.ClusterRoleBinding, cluster(managerBinding), &rbacv1.ClusterRoleBinding{})
	get(ctx, r, &f.Role, in(f.prefix()+managerRole), &rbacv1.Role{})
	get(ctx, r, &f.RoleBinding, in(f.prefix()+managerBinding), &rbacv1.RoleBinding{})
	f.UserRoles = map[string]*Read[*rbacv1.ClusterRole]{}
	for _, name := range userRoles() {
		f.UserRoles[name] = &Read[*rbacv1.ClusterRole]{}
		get(ctx, r, f.UserRoles[name], cluster(name), &rbacv1.ClusterRole{})
	}
}

// awaitRenewal looks for some seconds whether a lease is renewed that looks old: its
// holder may be gone, or only have another clock.
func (ob *observer) awaitRenewal(ctx context.Context, f *Facts) {
	if !f.Lease.readable() || f.Lease.Value.Spec.RenewTime == nil || f.leaseAge() < mostSkew {
		return
	}
	_ = wait.PollUntilContextTimeout(ctx, time.Second, renewal, false, func(ctx context.Context) (bool, error) {
		now := &coordinationv1.Lease{}
		if err := ob.client.Get(ctx, types.NamespacedName{Namespace: f.Namespace, Name: leaseName}, now); err != nil {
			return false, nil //nolint:nilerr // looked at again
		}
		f.LeaseRenewed = now.Spec.RenewTime != nil && !now.Spec.RenewTime.Equal(f.Lease.Value.Spec.RenewTime)
		if f.LeaseRenewed {
			f.Lease.Value, f.LeaseAt = now, ob.clock.Now()
		}
		return f.LeaseRenewed, nil
	})
}
