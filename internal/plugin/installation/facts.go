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
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Facts are what was read of a cluster.
type Facts struct {
	// Plugin is the version of the plugin.
	Plugin string
	// Kinds of workloads that are defended.
	Kinds *workload.Registry
	// LocalNow is the time of this machine, ServerNow that of the API server; zero when it
	// did not say.
	LocalNow, ServerNow time.Time
	// Namespace of the operator.
	Namespace string

	Version Read[*version.Info]
	// CRDs by their names.
	CRDs map[string]*Read[*apiextensionsv1.CustomResourceDefinition]

	NamespaceObject Read[*metav1.PartialObjectMetadata]
	// Deployments of the operator.
	Deployments Read[[]appsv1.Deployment]
	Pods        Read[[]corev1.Pod]
	Lease       Read[*coordinationv1.Lease]
	// LeaseAt is when the lease was read, by the clock of ServerNow, and LeaseRenewed says
	// that it was seen being renewed after that.
	LeaseAt      time.Time
	LeaseRenewed bool
	Budgets      Read[[]policyv1.PodDisruptionBudget]

	Mutating, Validating Read[*unstructured.Unstructured]
	Service              Read[*corev1.Service]
	Endpoints            Read[[]discoveryv1.EndpointSlice]
	// Certificate is the Secret with the certificate of the webhooks.
	Certificate Read[*corev1.Secret]
	// Answer is that of the webhooks to a dry run.
	Answer Read[DryRun]

	Account            Read[*metav1.PartialObjectMetadata]
	ClusterRole        Read[*rbacv1.ClusterRole]
	Role               Read[*rbacv1.Role]
	ClusterRoleBinding Read[*rbacv1.ClusterRoleBinding]
	RoleBinding        Read[*rbacv1.RoleBinding]
	// UserRoles are those that give users their rights, by their names.
	UserRoles map[string]*Read[*rbacv1.ClusterRole]
	// Mine is what the user may do.
	Mine Read[[]Access]

	Settings Read[[]v1alpha1.OpsConfigInfo]
	Policies Read[[]v1alpha1.DefensePolicy]
	// Token is the Secret with the token of AlterShield Server.
	Token Read[*corev1.Secret]

	// Namespaces that are enrolled, or only labelled so. OnlyOwn says that the user may not
	// list them, so that there is none but his own.
	Namespaces Read[[]metav1.PartialObjectMetadata]
	OnlyOwn    bool
	// Blocked are the workloads with a block.
	Blocked Read[[]metav1.PartialObjectMetadata]
	// Releases of all workloads.
	Releases Read[[]v1alpha1.ChangeWorkload]
}

// DryRun is what became of a Deployment that was created in a dry run.
type DryRun struct {
	// Namespace it was to be in; empty when there was none to try it in.
	Namespace string
	// Stamped says that the webhooks labelled its template with its version.
	Stamped bool
	// Denied is what denied it, if something did.
	Denied string
}

// Access is something that commands of the plugin need.
type Access struct {
	// For names the commands.
	For string
	authorizationv1.ResourceAttributes
	// Allowed says that the user may.
	Allowed bool
}

const (
	// DefaultNamespace is where the operator is unless something says otherwise.
	DefaultNamespace = "altershieldoperator-system"
	// operatorName is the value of app.kubernetes.io/name on what belongs to the operator.
	operatorName   = "altershield-operator"
	managerAccount = "controller-manager"
	defaultPrefix  = "altershieldoperator-"
	leaseName      = "altershield-operator"
)

// deployment of the manager; nil when there is none, or it was not read.
func (f *Facts) deployment() *appsv1.Deployment {
	if f.Deployments.Err != nil || len(f.Deployments.Value) == 0 {
		return nil
	}
	found := f.Deployments.Value
	i := slices.IndexFunc(found, func(d appsv1.Deployment) bool { return d.Labels["app.kubernetes.io/component"] == "manager" })
	return &found[max(i, 0)]
}

// container of the manager; nil when it is not known.
func (f *Facts) container() *corev1.Container {
	d := f.deployment()
	if d == nil || len(d.Spec.Template.Spec.Containers) == 0 {
		return nil
	}
	return containerOf(&d.Spec.Template.Spec)
}

// containerOf is the manager's among those of a pod.
func containerOf(spec *corev1.PodSpec) *corev1.Container {
	i := slices.IndexFunc(spec.Containers, func(c corev1.Container) bool { return c.Name == "manager" })
	return &spec.Containers[max(i, 0)]
}

// flag is the value of a flag of the manager, or what it is without.
func (f *Facts) flag(name, otherwise string) string {
	c := f.container()
	if c == nil {
		return otherwise
	}
	args := slices.Concat(c.Command, c.Args)
	value := otherwise
	for i, arg := range args {
		key, given, found := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
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

// prefix of the names of the installation, which its service account has.
func (f *Facts) prefix() string {
	d := f.deployment()
	if d == nil {
		return defaultPrefix
	}
	prefix, found := strings.CutSuffix(d.Spec.Template.Spec.ServiceAccountName, managerAccount)
	if !found {
		return defaultPrefix
	}
	return prefix
}

// configurations are the names of the webhook configurations.
func (f *Facts) configurations() (mutating, validating string) {
	mutating, validating, _ = strings.Cut(f.flag("webhook-configurations",
		defaultPrefix+"mutating-webhook-configuration,"+defaultPrefix+"validating-webhook-configuration"), ",")
	return mutating, validating
}

func (f *Facts) service() string {
	return f.flag("webhook-service", defaultPrefix+"webhook-service")
}

// certificateSecret is the Secret with the certificate of the webhooks, and whether the
// manager makes it itself; the name is empty where it is not known.
func (f *Facts) certificateSecret() (name string, own bool) {
	dir := f.flag("webhook-cert-path", "")
	if dir == "" {
		return f.flag("webhook-cert-secret", defaultPrefix+"webhook-server-cert"), true
	}
	return f.mountedSecret(dir), false
}

// tokenSecret is the Secret with the token; empty where it is not known.
func (f *Facts) tokenSecret() string {
	file := f.flag("altershield-token-file", "")
	dir, _, found := cutLast(file, "/")
	if !found {
		return ""
	}
	return f.mountedSecret(dir)
}

// mountedSecret is the Secret that is mounted at a directory.
func (f *Facts) mountedSecret(dir string) string {
	d, c := f.deployment(), f.container()
	if d == nil || c == nil {
		return ""
	}
	for _, mount := range c.VolumeMounts {
		if strings.TrimSuffix(mount.MountPath, "/") != strings.TrimSuffix(dir, "/") {
			continue
		}
		for _, volume := range d.Spec.Template.Spec.Volumes {
			if volume.Name == mount.Name && volume.Secret != nil {
				return volume.Secret.SecretName
			}
		}
	}
	return ""
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}

// operatorVersion is the tag of the image of the Deployment.
func (f *Facts) operatorVersion() string {
	c := f.container()
	if c == nil {
		return ""
	}
	return tagOf(c.Image)
}

// tagOf is the tag of an image; empty where it has none.
func tagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name := image[strings.LastIndex(image, "/")+1:]
	_, tag, _ := strings.Cut(name, ":")
	return tag
}

// compared are the versions of the operator and of the plugin; ok is false where one of
// them is not that of a release.
func (f *Facts) compared() (operator, plugin *utilversion.Version, ok bool) {
	operator, err := utilversion.ParseSemantic(strings.TrimPrefix(f.operatorVersion(), "v"))
	if err != nil || madeBetween(f.operatorVersion()) {
		return nil, nil, false
	}
	plugin, err = utilversion.ParseSemantic(strings.TrimPrefix(f.Plugin, "v"))
	if err != nil || madeBetween(f.Plugin) {
		return nil, nil, false
	}
	return operator, plugin, true
}

// sameBuild says that operator and plugin are of one release, as far as is known.
func (f *Facts) sameBuild() bool {
	operator, plugin, ok := f.compared()
	return !ok || operator.EqualTo(plugin)
}

// madeBetween says that a version is one of git describe, between two releases.
func madeBetween(v string) bool { return strings.Contains(v, "-g") || strings.HasSuffix(v, "-dirty") }
