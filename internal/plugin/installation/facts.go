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
	"errors"
	"path"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Facts are what was read of a cluster. Each part of an installation reads and judges its own in its file.
type Facts struct {
	// Plugin is the version of the plugin.
	Plugin string
	// Namespace of the operator.
	Namespace string
	// Now is the time by the API server's clock.
	Now time.Time

	// ChangeKinds declare kinds.
	ChangeKinds Read[[]v1alpha1.ChangeKind]
	// CRDs in the order of kindNames.
	CRDs []Read[*apiextensionsv1.CustomResourceDefinition]

	// Deployments of the operator, and the pods of the manager.
	Deployments Read[[]appsv1.Deployment]
	Pods        Read[[]corev1.Pod]
	Lease       Read[*coordinationv1.Lease]
	// LeaseRenewed reports whether the lease is young, or was renewed while it was read.
	LeaseRenewed bool

	// Mutating and Validating are the webhooks of the two configurations.
	Mutating, Validating Read[webhooks]
	// Certificate is the Secret with the certificate of the webhooks.
	Certificate Read[*corev1.Secret]
	// Answer is the result of the dry run.
	Answer Read[DryRun]

	// Mine is what the user may do.
	Mine     Read[[]Access]
	Settings Read[[]v1alpha1.OpsConfigInfo]
	Policies Read[[]v1alpha1.DefensePolicy]

	// Namespaces that have the label of enrolment. OnlyOwn reports whether the user may read only their own namespace.
	Namespaces Read[[]metav1.PartialObjectMetadata]
	OnlyOwn    bool
	// Workloads of all namespaces.
	Workloads Read[[]metav1.PartialObjectMetadata]
}

// webhooks are webhooks of a configuration: of mutating ones, what they share with validating ones.
type webhooks []admissionv1.ValidatingWebhook

// DryRun is the result of the dry run that creates a Deployment.
type DryRun struct {
	// Namespace of the Deployment; empty if there is no namespace to try.
	Namespace string
	// Stamped reports whether the webhooks labelled the template with its version.
	Stamped bool
	// Denied is the error of admission; empty if the Deployment was admitted.
	Denied string
}

// Access is a right that users of the plugin need.
type Access struct {
	// For is what the right is good for.
	For string
	authorizationv1.ResourceAttributes
	// Allowed reports whether the user has the right.
	Allowed bool
}

// Read is the result of reading something.
type Read[T any] struct {
	Value T
	Err   error
	// Of names the request, as in: get lease altershield-operator in altershieldoperator-system.
	Of string
}

// missing reports whether the object does not exist.
func (r Read[T]) missing() bool { return apierrors.IsNotFound(r.Err) }

const (
	// DefaultNamespace is the namespace of the operator unless something else is configured.
	DefaultNamespace = "altershieldoperator-system"
	// operatorName is the value of app.kubernetes.io/name on the operator's objects, and the name of its lease.
	operatorName  = "altershield-operator"
	defaultPrefix = "altershieldoperator-"
)

// answered reports whether the API server answered the first read, if only that the user may not read.
func (f *Facts) answered() bool {
	var status apierrors.APIStatus
	err := f.Deployments.Err
	return err == nil || errors.As(err, &status) && !apierrors.IsUnauthorized(err)
}

// webhooks returns the webhooks that were read.
func (f *Facts) webhooks() webhooks {
	return slices.Concat(f.Mutating.Value, f.Validating.Value)
}

// deployment returns the Deployment of the manager; nil if unknown.
func (f *Facts) deployment() *appsv1.Deployment {
	found := f.Deployments.Value
	if len(found) == 0 {
		return nil
	}
	i := slices.IndexFunc(found, func(d appsv1.Deployment) bool { return d.Labels["app.kubernetes.io/component"] == "manager" })
	return &found[max(i, 0)]
}

// manager returns the manager's container in the Deployment; nil if unknown.
func (f *Facts) manager() *corev1.Container {
	d := f.deployment()
	if d == nil {
		return nil
	}
	containers := d.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "manager" })
	return &containers[max(i, 0)]
}

// flag returns the value of a flag of the manager.
func (f *Facts) flag(name, byDefault string) string {
	c, value := f.manager(), byDefault
	if c == nil {
		return value
	}
	args := slices.Concat(c.Command, c.Args)
	for i, arg := range args {
		key, given, found := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case !strings.HasPrefix(arg, "-") || key != name:
		case found:
			value = given
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			value = args[i+1]
		default:
			value = "true"
		}
	}
	return value
}

// configurations returns the names of the webhook configurations.
func (f *Facts) configurations() (mutating, validating string) {
	mutating, validating, _ = strings.Cut(f.flag("webhook-configurations",
		defaultPrefix+"mutating-webhook-configuration,"+defaultPrefix+"validating-webhook-configuration"), ",")
	return mutating, validating
}

// certificateSecret returns the name of the Secret with the certificate of the webhooks, empty if unknown, and whether the
// manager writes it.
func (f *Facts) certificateSecret() (name string, own bool) {
	dir := f.flag("webhook-cert-path", "")
	if dir == "" {
		return f.flag("webhook-cert-secret", defaultPrefix+"webhook-server-cert"), true
	}
	for _, mount := range f.manager().VolumeMounts {
		for _, volume := range f.deployment().Spec.Template.Spec.Volumes {
			if path.Clean(mount.MountPath) == path.Clean(dir) && volume.Name == mount.Name && volume.Secret != nil {
				return volume.Secret.SecretName, false
			}
		}
	}
	return "", false
}

// operatorVersion returns the tag of the Deployment's image; empty without a tag.
func (f *Facts) operatorVersion() string {
	c := f.manager()
	if c == nil {
		return ""
	}
	image, _, _ := strings.Cut(c.Image, "@")
	_, tag, _ := strings.Cut(path.Base(image), ":")
	return tag
}

// release parses the version of a release; nil for other versions, as those of git describe.
func release(text string) *utilversion.Version {
	v, err := utilversion.ParseSemantic(strings.TrimPrefix(text, "v"))
	if err != nil || strings.Contains(text, "-g") || strings.HasSuffix(text, "-dirty") {
		return nil
	}
	return v
}
