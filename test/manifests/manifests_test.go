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

package manifests

import (
	"bytes"
	"errors"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/traas-stack/altershield-operator/internal/options"
)

// TestHardening checks that the manager is hardened in every installation.
func TestHardening(t *testing.T) {
	for _, dir := range []string{"default", "certmanager", "samples/server"} {
		t.Run(dir, func(t *testing.T) {
			d := managerOf(t, render(t, dir))
			pod := d.Spec.Template.Spec
			c := pod.Containers[0]
			var volumes []string
			for _, v := range pod.Volumes {
				if v.Secret == nil {
					t.Errorf("volume %s is no Secret", v.Name)
				}
				volumes = append(volumes, v.Name)
			}
			for _, m := range c.VolumeMounts {
				if !m.ReadOnly || m.SubPath != "" || !slices.Contains(volumes, m.Name) {
					t.Errorf("mount %s: without a volume, not read-only, or a subPath, which is never updated", m.MountPath)
				}
			}
			sleep, grace := int64(0), *pod.TerminationGracePeriodSeconds
			if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Sleep != nil {
				sleep = c.Lifecycle.PreStop.Sleep.Seconds
			}
			limit, err := resource.ParseQuantity(strings.TrimSuffix(envOf(c, "GOMEMLIMIT"), "B"))
			if err != nil {
				t.Errorf("GOMEMLIMIT: %v", err)
			}
			spread := map[string]bool{}
			for _, s := range pod.TopologySpreadConstraints {
				spread[s.TopologyKey] = s.WhenUnsatisfiable == corev1.ScheduleAnyway && selects(s.LabelSelector, d.Spec.Template.Labels) == nil
			}
			noCapabilities := corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
			anti := pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			for what, ok := range map[string]bool{
				"two replicas":                    *d.Spec.Replicas == 2,
				"no replica is missing":           *d.Spec.Strategy.RollingUpdate.MaxUnavailable == intstr.FromInt32(0),
				"service account":                 pod.ServiceAccountName == managerName,
				"no priority class":               pod.PriorityClassName == "",
				"leaves an unreachable node":      leaves(pod.Tolerations, corev1.TaintNodeUnreachable),
				"leaves a node that is not ready": leaves(pod.Tolerations, corev1.TaintNodeNotReady),
				"no service links":                pod.EnableServiceLinks != nil && !*pod.EnableServiceLinks,
				"no host":                         !pod.HostNetwork && !pod.HostPID && !pod.HostIPC,
				"not root":                        *pod.SecurityContext.RunAsNonRoot && *c.SecurityContext.RunAsNonRoot,
				"the cluster may choose the user": pod.SecurityContext.RunAsUser == nil && pod.SecurityContext.FSGroup == nil,
				"seccomp":                         pod.SecurityContext.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault,
				"read-only root":                  *c.SecurityContext.ReadOnlyRootFilesystem,
				"no privilege":                    !*c.SecurityContext.AllowPrivilegeEscalation,
				"no capability":                   cmp.Equal(c.SecurityContext.Capabilities, &noCapabilities),
				"requests":                        !c.Resources.Requests.Cpu().IsZero() && !c.Resources.Requests.Memory().IsZero(),
				"memory limit, no CPU limit":      !c.Resources.Limits.Memory().IsZero() && c.Resources.Limits.Cpu().IsZero(),
				"the runtime knows the limit":     limit.Cmp(*c.Resources.Limits.Memory()) < 0 && limit.Cmp(*c.Resources.Requests.Memory()) > 0,
				"liveness":                        probes(c.LivenessProbe, "/healthz"),
				"startup":                         probes(c.StartupProbe, "/healthz"),
				"readiness":                       probes(c.ReadinessProbe, "/readyz"),
				"endpoints go before the server":  sleep >= 10,
				"time to end":                     grace >= sleep+30,
				"spread over zones":               spread[corev1.LabelTopologyZone],
				"spread over nodes":               spread[corev1.LabelHostname],
				"replicas on different nodes":     len(anti) == 1 && selects(anti[0].PodAffinityTerm.LabelSelector, d.Spec.Template.Labels) == nil,
				"selects its pods":                selects(d.Spec.Selector, d.Spec.Template.Labels) == nil,
			} {
				if !ok {
					t.Errorf("missing: %s", what)
				}
			}
		})
	}
}

// leaves reports whether a pod with these tolerations leaves a node with a taint after 10 to 30 seconds.
func leaves(tolerations []corev1.Toleration, taint string) bool {
	i := slices.IndexFunc(tolerations, func(t corev1.Toleration) bool {
		return t.Key == taint && t.Operator == corev1.TolerationOpExists && t.Effect == corev1.TaintEffectNoExecute
	})
	if i < 0 || tolerations[i].TolerationSeconds == nil {
		return false
	}
	seconds := *tolerations[i].TolerationSeconds
	return seconds >= 10 && seconds <= 30
}

func probes(p *corev1.Probe, path string) bool {
	return p != nil && p.HTTPGet != nil && p.HTTPGet.Path == path && p.HTTPGet.Port == intstr.FromString("health")
}

func envOf(c corev1.Container, name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// TestFlags checks that the manager has the flags of its Deployment, and that they match its ports.
func TestFlags(t *testing.T) {
	want := map[string]map[string]string{
		"default": {
			"leader-elect": "true", "metrics-bind-address": ":8443", "health-probe-bind-address": ":8081",
			"callback-bind-address": ":8080", "webhook-port": "9443",
		},
		"certmanager":    {"webhook-cert-path": "/var/run/altershield/webhook"},
		"samples/server": {"altershield-url": "http://altershield.altershield.svc:8080", "altershield-token-file": "/etc/altershield/token"},
	}
	for name, value := range want["default"] {
		want["certmanager"][name], want["samples/server"][name] = value, value
	}
	for dir, wantFlags := range want {
		t.Run(dir, func(t *testing.T) {
			d := managerOf(t, render(t, dir))
			if diff := cmp.Diff(wantFlags, flagsOf(d)); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
			// Parse refuses unknown flags before it refuses the files, which do not exist here.
			_, err := options.Parse(d.Spec.Template.Spec.Containers[0].Args)
			if errors.Is(err, flag.ErrHelp) || err != nil && strings.Contains(err.Error(), "flag provided") {
				t.Errorf("the manager does not accept its flags: %v", err)
			}
			for port, flagName := range map[string]string{
				"webhooks": "webhook-port", "callbacks": "callback-bind-address",
				"metrics": "metrics-bind-address", "health": "health-probe-bind-address",
			} {
				if got, want := containerPort(d, port), strings.TrimPrefix(wantFlags[flagName], ":"); strconv.Itoa(int(got)) != want {
					t.Errorf("port %s is %d, but --%s is %s", port, got, flagName, want)
				}
			}
			fields := map[string]string{}
			for _, e := range d.Spec.Template.Spec.Containers[0].Env {
				if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
					fields[e.Name] = e.ValueFrom.FieldRef.FieldPath
				}
			}
			for name, want := range map[string]string{"POD_NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"} {
				if fields[name] != want {
					t.Errorf("%s is %q of the pod, want %q", name, fields[name], want)
				}
			}
		})
	}
}

// TestNames checks that every object is in the namespace and has the prefix, so that it conflicts with no object of others.
func TestNames(t *testing.T) {
	clusterScoped := map[string]bool{
		"Namespace": true, "CustomResourceDefinition": true, "ClusterRole": true, "ClusterRoleBinding": true,
		"MutatingWebhookConfiguration": true, "ValidatingWebhookConfiguration": true,
		"ValidatingAdmissionPolicy": true, "ValidatingAdmissionPolicyBinding": true,
	}
	for _, dir := range []string{"default", "certmanager", "prometheus", "network-policy", "admission-policy", "samples/server"} {
		t.Run(dir, func(t *testing.T) {
			seen := map[string]bool{}
			for _, o := range objects(t, render(t, dir)) {
				id := o.GetKind() + " " + o.GetName()
				if seen[id] {
					t.Errorf("%s is there twice", id)
				}
				seen[id] = true
				switch {
				case o.GetKind() == "CustomResourceDefinition":
					if !strings.HasSuffix(o.GetName(), ".app.ops.cloud.alipay.com") {
						t.Errorf("%s is not in our group", id)
					}
				case o.GetKind() == "Namespace":
					if o.GetName() != namespace {
						t.Errorf("%s is not ours", id)
					}
				case !strings.HasPrefix(o.GetName(), prefix) || strings.HasPrefix(o.GetName(), prefix+prefix):
					t.Errorf("%s does not have the prefix once", id)
				}
				wantNamespace := namespace
				if clusterScoped[o.GetKind()] {
					wantNamespace = ""
				}
				if o.GetNamespace() != wantNamespace {
					t.Errorf("%s is in namespace %q, want %q", id, o.GetNamespace(), wantNamespace)
				}
				if o.GetLabels()["app.kubernetes.io/name"] != "altershield-operator" {
					t.Errorf("%s has no label app.kubernetes.io/name=altershield-operator", id)
				}
			}
		})
	}
}

func TestPodSecurity(t *testing.T) {
	labels := all[corev1.Namespace](t, render(t, "default"), "Namespace")[0].Labels
	for _, mode := range []string{"enforce", "audit", "warn"} {
		if labels["pod-security.kubernetes.io/"+mode] != "restricted" {
			t.Errorf("%s is not restricted", mode)
		}
	}
	if _, ok := labels["admission-webhook-altershield"]; ok {
		t.Error("the operator would defend itself")
	}
}

// TestSelectors checks that Services, disruption budget and network policies select the manager's pods.
func TestSelectors(t *testing.T) {
	manifests := render(t, "default")
	d := managerOf(t, manifests)
	pod := d.Spec.Template.Labels
	type route struct {
		Port, ContainerPort int32
	}
	got := map[string]route{}
	for _, s := range all[corev1.Service](t, manifests, "Service") {
		for k, v := range s.Spec.Selector {
			if pod[k] != v {
				t.Errorf("Service %s selects %s=%s, the pods have %q", s.Name, k, v, pod[k])
			}
		}
		if len(s.Spec.Selector) == 0 || len(s.Spec.Ports) != 1 || s.Spec.Type != corev1.ServiceTypeClusterIP {
			t.Fatalf("Service %s: want one port, a selector and no exposure", s.Name)
		}
		got[s.Name] = route{s.Spec.Ports[0].Port, containerPort(d, s.Spec.Ports[0].TargetPort.StrVal)}
	}
	want := map[string]route{
		prefix + "webhook-service": {443, 9443}, prefix + "callback-service": {80, 8080}, prefix + "metrics-service": {8443, 8443},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("services (-want +got):\n%s", diff)
	}
	pdb := all[policyv1.PodDisruptionBudget](t, manifests, "PodDisruptionBudget")[0]
	if diff := cmp.Diff(d.Spec.Selector, pdb.Spec.Selector); diff != "" {
		t.Errorf("disruption budget and Deployment select differently:\n%s", diff)
	}
	if pdb.Spec.MinAvailable != nil || pdb.Spec.MaxUnavailable.IntValue() != 1 {
		t.Error("the disruption budget would block the eviction of a single replica")
	}
	open := map[int32]string{}
	for _, p := range all[networkingv1.NetworkPolicy](t, render(t, "network-policy"), "NetworkPolicy") {
		if err := selects(&p.Spec.PodSelector, pod); err != nil {
			t.Errorf("NetworkPolicy %s: %v", p.Name, err)
		}
		ingress := slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress})
		if !ingress || len(p.Spec.Ingress) != 1 || len(p.Spec.Ingress[0].Ports) != 1 {
			t.Fatalf("NetworkPolicy %s: want one ingress rule with one port", p.Name)
		}
		from := "everywhere"
		if peers := p.Spec.Ingress[0].From; len(peers) == 1 {
			for k, v := range peers[0].NamespaceSelector.MatchLabels {
				from = k + "=" + v
			}
		}
		open[containerPort(d, p.Spec.Ingress[0].Ports[0].Port.StrVal)] = from
	}
	if diff := cmp.Diff(map[int32]string{9443: "everywhere", 8080: "callbacks=enabled", 8443: "metrics=enabled"}, open); diff != "" {
		t.Errorf("open ports (-want +got):\n%s", diff)
	}
}

// TestWebhooks checks that webhooks call the Service, and exclude the namespaces that an outage must not affect.
func TestWebhooks(t *testing.T) {
	for _, dir := range []string{"default", "certmanager"} {
		t.Run(dir, func(t *testing.T) {
			manifests := render(t, dir)
			paths := map[string]string{}
			for _, w := range webhooksOf(t, manifests) {
				s := w.client.Service
				if s == nil || s.Namespace != namespace || s.Name != prefix+"webhook-service" || s.Port != nil && *s.Port != 443 {
					t.Fatalf("%s: %+v is not the Service", w.name, s)
				}
				paths[w.config+" "+w.name] = *s.Path
				if w.selector.MatchLabels["admission-webhook-altershield"] != "enabled" {
					t.Errorf("%s selects namespaces that are not enrolled", w.name)
				}
				var excluded []string
				for _, e := range w.selector.MatchExpressions {
					if e.Key == corev1.LabelMetadataName && e.Operator == "NotIn" {
						excluded = append(excluded, e.Values...)
					}
				}
				if diff := cmp.Diff([]string{"kube-system", "kube-public", "kube-node-lease", namespace}, excluded); diff != "" {
					t.Errorf("%s excludes (-want +got):\n%s", w.name, diff)
				}
				if len(w.client.CABundle) > 0 {
					t.Errorf("%s has a CA", w.name)
				}
			}
			// TestCluster checks that the manager serves these paths.
			want := map[string]string{}
			for _, kind := range []string{"deployment", "statefulset", "daemonset"} {
				want[prefix+"mutating-webhook-configuration m"+kind+".kb.io"] = "/mutate-apps-v1-" + kind
				want[prefix+"validating-webhook-configuration v"+kind+".kb.io"] = "/validate-apps-v1-" + kind
				want[prefix+"validating-webhook-configuration q"+kind+".kb.io"] = "/quarantine-apps-v1-" + kind
				want[prefix+"validating-webhook-configuration p"+kind+".kb.io"] = "/policy-apps-v1-" + kind
			}
			if diff := cmp.Diff(want, paths); diff != "" {
				t.Errorf("paths (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCertManager checks that the certificate of cert-manager is mounted, injected, and valid for the Service.
func TestCertManager(t *testing.T) {
	manifests := render(t, "certmanager")
	d := managerOf(t, manifests)
	secret := d.Spec.Template.Spec.Volumes[0].Secret.SecretName
	if secret == prefix+"webhook-server-cert" {
		t.Error("the Secret has the manager's own certificate")
	}
	if flagsOf(d)["webhook-cert-path"] != d.Spec.Template.Spec.Containers[0].VolumeMounts[0].MountPath {
		t.Error("--webhook-cert-path is not where the Secret is mounted")
	}
	issuers, certificates, found := map[string]bool{}, map[string]string{}, false
	for _, o := range objects(t, manifests) {
		spec, _ := o.Object["spec"].(map[string]any)
		switch o.GetKind() {
		case "Issuer":
			issuers[o.GetName()] = true
		case "Certificate":
			certificates[o.GetName()], _, _ = unstructured.NestedString(spec, "issuerRef", "name")
			if spec["secretName"] != secret {
				continue
			}
			found = true
			names, _, _ := unstructured.NestedStringSlice(spec, "dnsNames")
			if !slices.Contains(names, prefix+"webhook-service."+namespace+".svc") {
				t.Error("the certificate is not for the Service")
			}
			for _, kind := range []string{"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} {
				for _, w := range objects(t, manifests) {
					if w.GetKind() == kind && w.GetAnnotations()["cert-manager.io/inject-ca-from"] != namespace+"/"+o.GetName() {
						t.Errorf("the CA is not injected into %s", w.GetName())
					}
				}
			}
		}
	}
	if !found {
		t.Errorf("no certificate is in the Secret %s", secret)
	}
	for certificate, issuer := range certificates {
		if !issuers[issuer] {
			t.Errorf("certificate %s: no issuer %s", certificate, issuer)
		}
	}
}

// TestUserRoles checks that no role has a wildcard, and that roles for users have rights on our kinds only.
func TestUserRoles(t *testing.T) {
	for _, r := range all[rbacv1.ClusterRole](t, render(t, "default"), "ClusterRole") {
		aggregates := slices.ContainsFunc(slices.Collect(maps.Keys(r.Labels)), func(k string) bool {
			return strings.HasPrefix(k, "rbac.authorization.k8s.io/aggregate-to-")
		})
		for _, rule := range r.Rules {
			for _, verb := range rule.Verbs {
				if verb == "*" || slices.Contains(rule.Resources, "*") || slices.Contains(rule.APIGroups, "*") {
					t.Errorf("%s has a wildcard: %v", r.Name, rule)
				}
			}
			if aggregates && !cmp.Equal(rule.APIGroups, []string{"app.ops.cloud.alipay.com"}) {
				t.Errorf("%s gives users rights on %v", r.Name, rule.APIGroups)
			}
		}
	}
}

// TestQuickStart checks that quick-start.yaml is the rendered config/default.
func TestQuickStart(t *testing.T) {
	got, err := os.ReadFile(filepath.Join(repository(t), "quick-start.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, got, _ = bytes.Cut(got, []byte("\n")) // the comment about its origin
	if diff := cmp.Diff(string(render(t, "default")), string(got)); diff != "" {
		t.Errorf("run: make build-installer (-want +got):\n%s", diff)
	}
	image := managerOf(t, got).Spec.Template.Spec.Containers[0].Image
	name, tag, ok := strings.Cut(image, ":")
	if !ok || name != "ghcr.io/traas-stack/altershield-operator" || tag == "latest" {
		t.Errorf("image %s is not the image of a release", image)
	}
}

// TestKustomize checks that kustomize and kubectl render the same objects.
func TestKustomize(t *testing.T) {
	if testing.Short() {
		t.Skip("builds kustomize")
	}
	root := repository(t)
	if out, err := exec.CommandContext(t.Context(), "make", "-s", "-C", root, "bin/kustomize").CombinedOutput(); err != nil {
		t.Fatalf("make bin/kustomize: %v\n%s", err, out)
	}
	for _, dir := range append([]string{"crd", "dev"}, overlays...) {
		path := filepath.Join(root, "config", filepath.FromSlash(dir))
		out, err := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "kustomize"), "build", path).Output()
		if err != nil {
			t.Errorf("kustomize build config/%s: %v", dir, err)
			continue
		}
		if diff := cmp.Diff(objects(t, render(t, dir)), objects(t, out)); diff != "" {
			t.Errorf("config/%s by kubectl (-) and by kustomize (+):\n%s", dir, diff)
		}
	}
}

// TestDeployNeedsKustomizeOnly checks that make builds no control plane to deploy, with or without a kubectl.
func TestDeployNeedsKustomizeOnly(t *testing.T) {
	for _, target := range []string{"install", "deploy", "undeploy", "deployYaml", "uninstall"} {
		for _, kubectl := range []string{"kubectl", "bin/k8s/kubectl", "bin/kubectl"} {
			out, err := exec.CommandContext(t.Context(), "make", "-n", "-C", repository(t), target, "KUBECTL="+kubectl).CombinedOutput()
			if err != nil {
				t.Fatalf("make -n %s: %v\n%s", target, err, out)
			}
			if strings.Contains(string(out), "hack/binaries/build") {
				t.Errorf("make %s with %s builds a control plane:\n%s", target, kubectl, out)
			}
		}
	}
}

// TestCreatesNoWebhookConfigurations checks that only the overlay samples/restore lets the manager create webhook configurations, and that
// the overlay gives no other right. With this right, an account can add a webhook for any request.
func TestCreatesNoWebhookConfigurations(t *testing.T) {
	creates := func(dir string) (names []string) {
		for _, r := range all[rbacv1.ClusterRole](t, render(t, dir), "ClusterRole") {
			for _, rule := range r.Rules {
				registration := slices.Contains(rule.APIGroups, "admissionregistration.k8s.io")
				if registration && (slices.Contains(rule.Verbs, "create") || len(rule.ResourceNames) == 0) {
					names = append(names, r.Name)
				}
			}
		}
		return names
	}
	for dir, want := range map[string][]string{
		"default": nil, "certmanager": nil, "samples/server": nil, "samples/restore": {prefix + "webhook-restorer-role"},
	} {
		if diff := cmp.Diff(want, creates(dir)); diff != "" {
			t.Errorf("%s: roles that create webhook configurations (-want +got):\n%s", dir, diff)
		}
	}
	overlay := render(t, "samples/restore")
	binding := all[rbacv1.ClusterRoleBinding](t, overlay, "ClusterRoleBinding")[0]
	role := all[rbacv1.ClusterRole](t, overlay, "ClusterRole")[0]
	if binding.RoleRef.Name != role.Name || len(role.Rules) != 1 || !slices.Equal(role.Rules[0].Verbs, []string{"create"}) {
		t.Errorf("want one rule to create, bound by the overlay: %+v, %+v", role.Rules, binding.RoleRef)
	}
	want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: managerName, Namespace: namespace}}
	if !slices.Equal(binding.Subjects, want) {
		t.Errorf("bound to %v", binding.Subjects)
	}
}
