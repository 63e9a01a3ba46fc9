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

// Package chart compares the objects of the Helm chart with config/, and installs, upgrades and uninstalls the chart on a real API
// server.
package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

const (
	namespace   = "altershieldoperator-system"
	managerName = "altershieldoperator-controller-manager"
	chartDir    = "charts/altershield-operator"
)

func repository(t *testing.T) string {
	t.Helper()
	root, err := controlplane.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// tool returns the path of a program that the Makefile builds into bin/.
func tool(t *testing.T, name string) string {
	t.Helper()
	root := repository(t)
	path := filepath.Join(root, "bin", name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if testing.Short() {
		t.Skipf("needs %s: make bin/%s", name, name)
	}
	if out, err := exec.CommandContext(t.Context(), "make", "-s", "-C", root, "bin/"+name).CombinedOutput(); err != nil {
		t.Fatalf("make bin/%s: %v\n%s", name, err, out)
	}
	return path
}

// try runs a program in the repository, with a Helm home of its own.
func try(t *testing.T, program string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.Dir = repository(t)
	cmd.Env = append(os.Environ(),
		"HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+filepath.Join(home, "none"))
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	return out.String(), problems.String(), err
}

func mustRun(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, problems, err := try(t, program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, out, problems)
	}
	return out
}

// template renders the chart with arguments of Helm.
func template(t *testing.T, args ...string) []unstructured.Unstructured {
	t.Helper()
	return objects(t, mustRun(t, tool(t, "helm"), templateArgs(args)...))
}

func templateArgs(args []string) []string {
	return append([]string{"template", "altershield", chartDir, "--namespace", namespace}, args...)
}

// kustomize renders a directory of config/.
func kustomize(t *testing.T, dir string) string {
	t.Helper()
	return mustRun(t, tool(t, "kustomize"), "build", filepath.Join("config", filepath.FromSlash(dir)))
}

func objects(t *testing.T, manifests string) []unstructured.Unstructured {
	t.Helper()
	var all []unstructured.Unstructured
	for document := range strings.SplitSeq("\n"+manifests, "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

const (
	chartLabel     = "helm.sh/chart"
	managedByLabel = "app.kubernetes.io/managed-by"
	hookAnnotation = "helm.sh/hook"
	// keepAnnotation keeps the kinds after an uninstall. Objects of config/ do not have it.
	keepAnnotation = "helm.sh/resource-policy"
)

// byName returns objects by kind, namespace and name, without the differences that the chart may have: its two labels, objects of hooks,
// and the Namespace, which Helm creates itself.
func byName(t *testing.T, all []unstructured.Unstructured) map[string]map[string]any {
	t.Helper()
	found := map[string]map[string]any{}
	for _, o := range all {
		if o.GetKind() == "Namespace" || o.GetAnnotations()[hookAnnotation] != "" {
			continue
		}
		annotations := o.GetAnnotations()
		delete(annotations, keepAnnotation)
		if len(annotations) == 0 {
			annotations = nil
		}
		o.SetAnnotations(annotations)
		labels := o.GetLabels()
		delete(labels, chartLabel)
		delete(labels, managedByLabel)
		o.SetLabels(labels)
		key := fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
		if found[key] != nil {
			t.Errorf("two objects are %s", key)
		}
		found[key] = o.Object
	}
	return found
}

// asInConfig has the values with which the chart renders a directory of config/, alone or beside config/default.
var asInConfig = map[string]struct {
	beside bool
	values []string
}{
	"default":     {},
	"certmanager": {values: []string{"webhook.certManager.enabled=true"}},
	"prometheus": {beside: true, values: []string{
		"metrics.serviceMonitor.enabled=true", "metrics.rules.enabled=true", "metrics.dashboard.enabled=true", "metrics.reader.enabled=true",
	}},
	"network-policy":        {beside: true, values: []string{"networkPolicy.enabled=true"}},
	"network-policy/egress": {beside: true, values: []string{"networkPolicy.enabled=true,networkPolicy.egress.enabled=true"}},
	"admission-policy":      {beside: true, values: []string{"rbac.enrolledOnly=true"}},
	"samples/server":        {values: []string{"server.url=http://altershield.altershield.svc:8080", "server.tokenSecret=altershield-token"}},
	"without-aggregation":   {values: []string{"rbac.aggregateKinds=false"}},
	"samples/restore":       {beside: true, values: []string{"rbac.restoreWebhooks=true"}},
}

// TestAsInConfig checks that the chart renders the same objects as kustomize.
func TestAsInConfig(t *testing.T) {
	// These are parts of other directories, or no part of an installation. Any other directory needs values in asInConfig.
	left := []string{"config/dev", "config/samples", "config/crd", "config/manager", "config/rbac", "config/webhook"}
	kustomizations, err := filepath.Glob(filepath.Join(repository(t), "config", "*", "kustomization.yaml"))
	nested, err2 := filepath.Glob(filepath.Join(repository(t), "config", "*", "*", "kustomization.yaml"))
	if err != nil || err2 != nil || len(kustomizations) == 0 || len(nested) == 0 {
		t.Fatal(err, err2, len(kustomizations), len(nested))
	}
	for _, path := range append(kustomizations, nested...) {
		dir, _ := filepath.Rel(repository(t), filepath.Dir(path))
		dir = filepath.ToSlash(dir)
		if _, ok := asInConfig[strings.TrimPrefix(dir, "config/")]; !ok && !slices.Contains(left, dir) {
			t.Errorf("%s: asInConfig has no values for it", dir)
		}
	}
	kustomized := func(dir string) string {
		if dir == "network-policy/egress" { // beside the other policies
			return kustomize(t, dir) + "\n---\n" + kustomize(t, "network-policy")
		}
		return kustomize(t, dir)
	}
	for dir, with := range asInConfig {
		for _, in := range []string{namespace, "1234"} {
			t.Run(dir+" in "+in, func(t *testing.T) {
				args := []string{"--namespace", in}
				for _, v := range with.values {
					args = append(args, "--set", v)
				}
				rendered := template(t, args...)
				for _, o := range rendered {
					if labels := o.GetLabels(); labels[managedByLabel] != "Helm" || !strings.HasPrefix(labels[chartLabel], "altershield-operator-") {
						t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), labels)
					}
				}
				manifests := kustomized(dir)
				if with.beside {
					manifests += "\n---\n" + kustomize(t, "default")
				}
				manifests = regexp.MustCompile(`(?m): `+namespace+`$`).ReplaceAllString(manifests, `: "`+in+`"`)
				manifests = strings.ReplaceAll(manifests, namespace, in)
				want, got := byName(t, objects(t, manifests)), byName(t, rendered)
				if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
					t.Errorf("objects (-kustomize +helm):\n%s", diff)
				}
				for name, object := range want {
					if diff := cmp.Diff(object, got[name]); diff != "" {
						t.Errorf("%s (-kustomize +helm):\n%s", name, diff)
					}
				}
			})
		}
	}
}

// managerWith returns the Deployment of the chart with arguments of Helm.
func managerWith(t *testing.T, args ...string) *appsv1.Deployment {
	t.Helper()
	for _, o := range template(t, args...) {
		if o.GetKind() == "Deployment" {
			var d appsv1.Deployment
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &d, true); err != nil {
				t.Fatal(err)
			}
			return &d
		}
	}
	t.Fatal("no Deployment")
	return nil
}

// TestValues checks that each value changes an object.
func TestValues(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("-----BEGIN CERTIFICATE-----\nx\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, kind, object string
		args               []string
		// want is JSON that the object has; wantNot is JSON that it does not have.
		want, wantNot []string
	}{
		{
			name: "tag", kind: "Deployment",
			args: []string{"image.tag=v9"},
			want: []string{`"image":"ghcr.io/traas-stack/altershield-operator:v9"`},
		},
		{
			name: "digest", kind: "Deployment",
			args: []string{"image.repository=r/i,image.tag=v9,image.digest=sha256:" + strings.Repeat("a", 64)},
			want: []string{`"image":"r/i@sha256:` + strings.Repeat("a", 64) + `"`},
		},
		{
			name: "pull", kind: "Deployment",
			args: []string{"image.pullPolicy=Always,imagePullSecrets[0].name=registry"},
			want: []string{`"imagePullPolicy":"Always"`, `"imagePullSecrets":[{"name":"registry"}]`},
		},
		{
			name: "pull of the errand", kind: "Job",
			args: []string{"image.pullPolicy=Always,imagePullSecrets[0].name=registry"},
			want: []string{`"imagePullPolicy":"Always"`, `"imagePullSecrets":[{"name":"registry"}]`},
		},
		{name: "replicas", kind: "Deployment", args: []string{"replicaCount=1"}, want: []string{`"replicas":1`}},
		{name: "prefix", kind: "Deployment", object: "guard-controller-manager", args: []string{"nameOverride=guard"}, want: []string{
			`"--webhook-service=guard-webhook-service"`, `"--webhook-cert-secret=guard-webhook-server-cert"`,
			`"serviceAccountName":"guard-controller-manager"`,
			`"--webhook-configurations=guard-mutating-webhook-configuration,guard-validating-webhook-configuration"`,
		}},
		{
			name: "prefix of the called Service", kind: "ValidatingWebhookConfiguration", object: "guard-validating-webhook-configuration",
			args: []string{"nameOverride=other,fullnameOverride=guard"},
			want: []string{`"name":"guard-webhook-service"`},
		},
		{
			name: "prefix in roles", kind: "Role", object: "guard-manager-role",
			args: []string{"fullnameOverride=guard"},
			want: []string{`["guard-webhook-server-cert"]`, `["altershieldoperator-rollbacks"]`},
		},
		{
			name: "prefix in alerts", kind: "PrometheusRule",
			args:    []string{"fullnameOverride=guard,metrics.rules.enabled=true"},
			want:    []string{`job=\"guard-metrics-service\"`},
			wantNot: []string{"altershieldoperator-metrics"},
		},
		{
			name: "prefix of the errand", kind: "Job", object: "guard-leave",
			args: []string{"fullnameOverride=guard"},
			want: []string{`"--deployment=guard-controller-manager"`, `"--secret=guard-webhook-server-cert"`},
		},
		{
			name: "account", kind: "ServiceAccount", object: "mine",
			args: []string{"serviceAccount.name=mine,serviceAccount.annotations.a=b"},
			want: []string{`"annotations":{"a":"b"}`},
		},
		{
			name: "account in a role binding", kind: "ClusterRoleBinding", object: "altershieldoperator-manager-rolebinding",
			args: []string{"serviceAccount.name=mine"},
			want: []string{`{"kind":"ServiceAccount","name":"mine"`},
		},
		{
			name: "account of the policy", kind: "ValidatingAdmissionPolicy",
			args: []string{"serviceAccount.name=mine,rbac.enrolledOnly=true"},
			want: []string{":mine'"},
		},
		{
			name: "no account", kind: "ServiceAccount", object: "altershieldoperator-controller-manager",
			args: []string{"serviceAccount.create=false,serviceAccount.name=mine"},
		},
		{name: "no user", kind: "Deployment", wantNot: []string{"runAsUser", "fsGroup"}, want: []string{`"runAsNonRoot":true`}},
		{name: "a user", kind: "Deployment", args: []string{"podSecurityContext.runAsUser=7"}, want: []string{`"runAsUser":7`}},
		{name: "a user of the errand", kind: "Job", args: []string{"podSecurityContext.runAsUser=7"}, want: []string{`"runAsUser":7`}},
		{
			name: "container", kind: "Deployment",
			args:    []string{"securityContext.privileged=null,securityContext.procMount=Default"},
			want:    []string{`"procMount":"Default"`},
			wantNot: []string{"privileged"},
		},
		{
			name: "budget", kind: "PodDisruptionBudget",
			args:    []string{"pdb.minAvailable=1"},
			want:    []string{`"minAvailable":1`},
			wantNot: []string{"maxUnavailable"},
		},
		{
			name: "budget in percent", kind: "PodDisruptionBudget",
			args: []string{"pdb.maxUnavailable=50%"},
			want: []string{`"maxUnavailable":"50%"`},
		},
		{name: "no budget", kind: "PodDisruptionBudget", args: []string{"pdb.enabled=false"}},
		{
			name: "scrapes", kind: "ServiceMonitor",
			args: []string{"metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.interval=15s,metrics.serviceMonitor.scrapeTimeout=5s"},
			want: []string{`"interval":"15s"`, `"scrapeTimeout":"5s"`, `"port":"https"`},
		},
		{
			name: "further objects", kind: "ConfigMap", object: "mine",
			args: []string{"extraObjects[0].apiVersion=v1,extraObjects[0].kind=ConfigMap,extraObjects[0].metadata.name=mine"},
			want: []string{`"mine"`},
		},
		{name: "forced", kind: "Job", object: "altershieldoperator-leave", args: []string{"uninstall.force=true"}, want: []string{`"--force"`}},
		{
			name: "a number", kind: "Job", object: "altershieldoperator-settings",
			args: []string{"settings.branch.content=2"},
			want: []string{`"--set={\"branch\":{\"content\":\"2\"}}"`},
		},
		{
			name: "resources", kind: "Deployment",
			args: []string{"resources.limits.memory=1Gi,resources.requests.cpu=1"},
			want: []string{`"memory":"1Gi"`, `"cpu":1`, `"value":"921MiB"`},
		},
		{name: "no limit", kind: "Deployment", args: []string{"resources.limits=null"}, wantNot: []string{"GOMEMLIMIT"}},
		{
			name: "own limit", kind: "Deployment",
			args:    []string{"extraEnv[0].name=GOMEMLIMIT,extraEnv[0].value=1GiB"},
			want:    []string{`"value":"1GiB"`},
			wantNot: []string{"460MiB"},
		},
		{
			name: "environment", kind: "Deployment",
			args: []string{"extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=p"},
			want: []string{`{"name":"HTTPS_PROXY","value":"p"}`, "460MiB"},
		},
		{
			name: "nodes", kind: "Deployment",
			args: []string{"nodeSelector.disk=ssd"},
			want: []string{`"nodeSelector":{"disk":"ssd","kubernetes.io/os":"linux"}`},
		},
		{
			name: "scheduling", kind: "Deployment",
			args:    []string{"affinity=null,tolerations=null,topologySpreadConstraints=null"},
			wantNot: []string{"affinity", "tolerations", "topologySpread"},
		},
		{name: "no priority", kind: "Deployment", wantNot: []string{"priorityClassName"}, want: []string{"manager"}},
		{name: "no quota without a priority", kind: "ResourceQuota"},
		{name: "no quota", kind: "ResourceQuota", args: []string{"priorityClassName=high,priorityClassQuota.enabled=false"}},
		{name: "quota", kind: "ResourceQuota", args: []string{"priorityClassName=high"}, want: []string{`"values":["high"]`, `"pods":"10"`}},
		{name: "pods", kind: "Deployment", args: []string{"podLabels.a=b,podAnnotations.c=d"}, want: []string{`"a":"b"`, `"c":"d"`}},
		{
			name: "labels", kind: "Service", object: "altershieldoperator-webhook-service",
			args: []string{"commonLabels.team=a"},
			want: []string{`"team":"a"`},
		},
		{
			name: "arguments", kind: "Deployment",
			args: []string{"extraArgs[0]=-hold-guard=2m,logLevel=debug"},
			want: []string{`"--zap-log-level=debug","-hold-guard=2m"]`},
		},
		{
			name: "volumes", kind: "Deployment",
			args: []string{"extraVolumes[0].name=v,extraVolumeMounts[0].name=v,extraVolumeMounts[0].mountPath=/v"},
			want: []string{`"volumes":[{"name":"v"}]`, `"volumeMounts":[{"mountPath":"/v","name":"v"}]`},
		},
		{
			name: "server", kind: "Deployment",
			args: []string{
				"server.url=https://s,server.platform=p,server.scene=s2,server.admissionScene=s1",
				"server.tenant=t,server.phase=pre_phase,server.targetType=x",
			},
			want: []string{
				`"--altershield-url=https://s"`, `"--altershield-platform=p"`, `"--altershield-scene=s2"`,
				`"--altershield-admission-scene=s1"`, `"--altershield-tenant=t"`, `"--altershield-phase=pre_phase"`,
				`"--altershield-target-type=x"`,
			},
			wantNot: []string{"altershield-token"},
		},
		{
			name: "token", kind: "Deployment",
			args:    []string{"server.tokenSecret=mine"},
			want:    []string{`"secretName":"mine"`, `"--altershield-token-file=/etc/altershield/token"`},
			wantNot: []string{"--altershield-url"},
		},
		{
			name: "callbacks", kind: "Service", object: "altershieldoperator-callback-service",
			args: []string{
				"callback.service.type=LoadBalancer,callback.service.port=8080,callback.service.annotations.a=b",
				"callback.service.loadBalancerSourceRanges[0]=192.0.2.0/24",
			},
			want: []string{
				`"type":"LoadBalancer"`, `"port":8080`, `"annotations":{"a":"b"}`, `"loadBalancerSourceRanges":["192.0.2.0/24"]`,
				`"appProtocol":"http"`,
			},
		},
		{
			name: "callbacks over TLS", kind: "Service", object: "altershieldoperator-callback-service",
			args: []string{"callback.tls.secretName=c"},
			want: []string{`"appProtocol":"https"`},
		},
		{
			name: "certificate of callbacks", kind: "Deployment",
			args: []string{"callback.tls.secretName=c"},
			want: []string{`"--callback-cert-path=/var/run/altershield/callback"`, `"secretName":"c"`},
		},
		{
			name: "own certificate", kind: "Deployment",
			args: []string{"webhook.certificate.secretName=w", "file:webhook.certificate.caBundle=" + ca},
			want: []string{`"--webhook-cert-path=/var/run/altershield/webhook"`, `"secretName":"w"`},
		},
		{
			name: "own CA", kind: "MutatingWebhookConfiguration",
			args: []string{"webhook.certificate.secretName=w", "file:webhook.certificate.caBundle=" + ca},
			want: []string{`"caBundle":"LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCngK"`},
		},
		{
			name: "labels of the monitor", kind: "ServiceMonitor",
			args: []string{"metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=p"},
			want: []string{`"release":"p"`},
		},
		{
			name: "labels of the rules", kind: "PrometheusRule",
			args: []string{"metrics.rules.enabled=true,metrics.rules.labels.release=p"},
			want: []string{`"release":"p"`},
		},
		{
			name: "reader", kind: "ClusterRoleBinding", object: "altershieldoperator-metrics-reader",
			args: []string{"metrics.reader.enabled=true,metrics.reader.serviceAccount.name=a,metrics.reader.serviceAccount.namespace=b"},
			want: []string{`{"kind":"ServiceAccount","name":"a","namespace":"b"}`},
		},
		{
			name: "callbacks from", kind: "NetworkPolicy", object: "altershieldoperator-allow-callbacks",
			args: []string{"networkPolicy.enabled=true,networkPolicy.callbacksFrom[0].ipBlock.cidr=192.0.2.0/24"},
			want: []string{`"from":[{"ipBlock":{"cidr":"192.0.2.0/24"}}]`},
		},
		{
			name: "metrics from", kind: "NetworkPolicy", object: "altershieldoperator-allow-metrics",
			args: []string{"networkPolicy.enabled=true,networkPolicy.metricsFrom[0].ipBlock.cidr=192.0.2.0/24"},
			want: []string{`"from":[{"ipBlock":{"cidr":"192.0.2.0/24"}}]`},
		},
		{
			name: "aggregation", kind: "ClusterRole", object: "altershieldoperator-viewer-role",
			args:    []string{"rbac.aggregate=false"},
			want:    []string{`"changepods"`},
			wantNot: []string{"aggregate-to"},
		},
		{name: "no kinds", kind: "CustomResourceDefinition", args: []string{"crds.enabled=false"}},
		{
			name: "kinds are kept", kind: "CustomResourceDefinition", object: "changepods.app.ops.cloud.alipay.com",
			want: []string{`"helm.sh/resource-policy":"keep"`},
		},
		{
			name: "kinds are deleted", kind: "CustomResourceDefinition", object: "changepods.app.ops.cloud.alipay.com",
			args:    []string{"crds.keep=false"},
			want:    []string{`"ChangePod"`},
			wantNot: []string{"resource-policy"},
		},
		{
			name: "settings", kind: "Job", object: "altershieldoperator-settings",
			args: []string{"settings.observe.enable=true"},
			want: []string{
				`"args":["settings","--set={\"observe\":{\"enable\":true}}"]`, `"helm.sh/hook":"post-install,post-upgrade,post-rollback"`,
			},
		},
		{name: "no settings", kind: "Job", object: "altershieldoperator-settings"},
		{
			name: "leave", kind: "Job", object: "altershieldoperator-leave",
			args: []string{"uninstall.timeout=30s"},
			want: []string{`"args":["leave","--timeout=30s"]`, `"helm.sh/hook":"pre-delete"`},
		},
		{name: "do not leave", kind: "Job", args: []string{"uninstall.leave=false"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var args []string
			for _, a := range tc.args {
				if file, ok := strings.CutPrefix(a, "file:"); ok {
					args = append(args, "--set-file", file)
					continue
				}
				args = append(args, "--set", a)
			}
			found := ""
			for _, o := range template(t, args...) {
				if o.GetKind() == tc.kind && (tc.object == "" || o.GetName() == tc.object) {
					data, err := json.Marshal(o.Object)
					if err != nil {
						t.Fatal(err)
					}
					found += string(data)
				}
			}
			if gone := len(tc.want)+len(tc.wantNot) == 0; gone != (found == "") {
				t.Fatalf("%s %s: %q", tc.kind, tc.object, found)
			}
			for _, want := range tc.want {
				if !strings.Contains(found, want) {
					t.Errorf("%s has no %s:\n%s", tc.kind, want, found)
				}
			}
			for _, not := range tc.wantNot {
				if strings.Contains(found, not) {
					t.Errorf("%s has %s:\n%s", tc.kind, not, found)
				}
			}
		})
	}
}

// TestQuoting checks that values stay strings if they look like another type of YAML.
func TestQuoting(t *testing.T) {
	args := []string{"--namespace", "1e3"}
	for _, value := range []string{
		"logLevel=1", "priorityClassName=1e3", "server.tokenSecret=1e3", "callback.tls.secretName=1e3", "image.tag=1.0", "image.repository=1",
		"metrics.reader.serviceAccount.name=1e3", "metrics.reader.serviceAccount.namespace=1e3", "webhook.certificate.secretName=1e3",
	} {
		args = append(args, "--set-string", value)
	}
	for _, on := range []string{
		"metrics.reader.enabled=true", "metrics.serviceMonitor.enabled=true", "networkPolicy.enabled=true",
		"networkPolicy.egress.enabled=true", "rbac.enrolledOnly=true", "settings.observe.enable=true",
	} {
		args = append(args, "--set", on)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, []byte("-----BEGIN CERTIFICATE-----\nx\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range template(t, append(args, "--set-file", "webhook.certificate.caBundle="+ca)...) {
		typed, err := scheme.Scheme.New(o.GroupVersionKind())
		if err != nil {
			continue // a kind whose Go type is not in the scheme
		}
		data, err := json.Marshal(o.Object)
		if err == nil {
			err = yaml.UnmarshalStrict(data, typed)
		}
		if err != nil {
			t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// TestRightsToLeave checks that the Job before an uninstall may list workloads of all defended kinds.
func TestRightsToLeave(t *testing.T) {
	for _, o := range template(t) {
		if o.GetKind() != "ClusterRole" || o.GetName() != "altershieldoperator-leave" {
			continue
		}
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &role, true); err != nil {
			t.Fatal(err)
		}
		for _, kind := range workload.Defended().Kinds() {
			gvk := kind.GroupVersionKind()
			plural := strings.ToLower(gvk.Kind) + "s"
			if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Contains(r.APIGroups, gvk.Group) && slices.Contains(r.Resources, plural) && slices.Contains(r.Verbs, "list")
			}) {
				t.Errorf("templates/leave.yaml: the Job may not list %s", plural)
			}
		}
		if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "changekinds") && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "patch")
		}) {
			t.Error("templates/leave.yaml: the Job may not list and patch changekinds")
		}
		return
	}
	t.Error("the chart has no ClusterRole altershieldoperator-leave")
}

// TestGoMemLimit checks that GOMEMLIMIT is nine tenths of the memory limit, in any unit.
func TestGoMemLimit(t *testing.T) {
	for limit, want := range map[string]string{
		"512Mi": "460MiB", "1Gi": "921MiB", "2G": "1716MiB", "1.5Gi": "1382MiB", "524288Ki": "460MiB", "1073741824": "921MiB", "600M": "514MiB",
	} {
		d := managerWith(t, "--set", "resources.limits.memory="+limit)
		got := ""
		for _, e := range d.Spec.Template.Spec.Containers[0].Env {
			if e.Name == "GOMEMLIMIT" {
				got = e.Value
			}
		}
		if got != want {
			t.Errorf("%s: GOMEMLIMIT %q, want %q", limit, got, want)
		}
	}
}

// TestBadValues checks that the chart refuses values that it cannot use, and names them.
func TestBadValues(t *testing.T) {
	for set, want := range map[string]string{
		"replicas=3":                          "additional properties 'replicas' not allowed",
		"replicaCount=two":                    "at '/replicaCount': got string, want integer",
		"replicaCount=-1":                     "/replicaCount",
		"image.tag=a b":                       "/image/tag",
		"image.digest=sha256:abc":             "/image/digest",
		"image.pullPolicy=Sometimes":          "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
		"image.name=x":                        "additional properties 'name' not allowed",
		"resources.limit.memory=1Gi":          "additional properties 'limit' not allowed",
		"resources.limits.memory=lots":        `resources.limits.memory: "lots" is not a quantity`,
		"resources.limits.memory=1Mi":         `resources.limits.memory: "1Mi" is too little`,
		"priorityClassName=A_b":               "/priorityClassName",
		"podLabels.control-plane=x":           "podLabels: the label control-plane is the chart's",
		"extraArgs[0]=leave":                  "/extraArgs/0",
		"logLevel=loud":                       "/logLevel",
		"server.url=altershield:8080":         "/server/url",
		"server.phase=test":                   "/server/phase",
		"server.admissionScene=s":             "server.url is missing",
		"server.token=secret":                 "additional properties 'token' not allowed",
		"callback.service.type=ExternalName":  "/callback/service/type",
		"callback.service.port=0":             "/callback/service/port",
		"webhook.certificate.secretName=x":    "webhook.certificate.caBundle is missing",
		"webhook.certificate.caBundle=x":      "/webhook/certificate/caBundle",
		"settings.observ.enable=true":         "additional properties 'observ' not allowed",
		"settings.observe.locked=true":        "/settings/observe",
		"uninstall.timeout=1h":                "/uninstall/timeout",
		"crds.keep=yes":                       "at '/crds/keep': got string, want boolean",
		"networkPolicy.callbacksFrom=here":    "/networkPolicy/callbacksFrom",
		"metrics.reader.serviceAccount.name=": "/metrics/reader/serviceAccount/name",
		"commonLabels.helm\\.sh/chart=x":      "commonLabels: the label helm.sh/chart is the chart's",
		"rbac.restoreWebhooks=1":              "/rbac/restoreWebhooks",
		"webhook.certManager.enabled=true,webhook.certificate.secretName=x": "give one of the two",
	} {
		out, problems, err := try(t, tool(t, "helm"), templateArgs([]string{"--set", set})...)
		if err == nil || !strings.Contains(problems, want) {
			t.Errorf("%s: %v\n%s%s\nwant: %s", set, err, out[:min(len(out), 200)], problems, want)
		}
	}
	_, problems, err := try(t, tool(t, "helm"), templateArgs([]string{"--namespace", "kube-system"})...)
	if err == nil || !strings.Contains(problems, "the namespace kube-system is the cluster's") {
		t.Errorf("in kube-system: %v\n%s", err, problems)
	}
}

// TestSchema checks that the schema has exactly the values of values.yaml and the settings of the operator.
func TestSchema(t *testing.T) {
	root := repository(t)
	var schema, values map[string]any
	for file, into := range map[string]*map[string]any{"values.schema.json": &schema, "values.yaml": &values} {
		text, err := os.ReadFile(filepath.Join(root, chartDir, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	var compare func(path string, schema, values map[string]any)
	compare = func(path string, schema, values map[string]any) {
		properties, ok := schema["properties"].(map[string]any)
		if !ok || path == ".settings" || path == ".resources" {
			return
		}
		delete(properties, "global") // added by Helm
		if diff := cmp.Diff(slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(values))); diff != "" {
			t.Errorf("values%s (-schema +values):\n%s", path, diff)
		}
		if schema["additionalProperties"] != false {
			t.Errorf("values%s: unknown names are not refused", path)
		}
		for name, property := range properties {
			p, _ := property.(map[string]any)
			v, _ := values[name].(map[string]any)
			compare(path+"."+name, p, v)
		}
	}
	compare("", schema, values)

	var known []string
	for _, o := range settings.DefaultObjects(namespace) {
		known = append(known, o.Name)
	}
	slices.Sort(known)
	named, _, err := unstructured.NestedMap(schema, "properties", "settings", "properties")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(known, slices.Sorted(maps.Keys(named))); diff != "" {
		t.Errorf("settings (-operator +schema):\n%s", diff)
	}
	readme, err := os.ReadFile(filepath.Join(root, chartDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(readme)) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.TrimSpace(cells[4]) == "" {
			t.Errorf("README.md does not describe %s", cells[1])
		}
	}
}

// TestLint checks that helm lint prints neither errors nor warnings.
func TestLint(t *testing.T) {
	out := mustRun(t, tool(t, "helm"), "lint", "--strict", "--namespace", namespace, chartDir)
	const success = "1 chart(s) linted, 0 chart(s) failed"
	if strings.Contains(out, "[WARNING]") || strings.Contains(out, "[ERROR]") || !strings.Contains(out, success) {
		t.Error(out)
	}
}

// pack packages the chart of a checkout, and returns the path of the archive.
func pack(t *testing.T, root, version string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "chart", "package.sh"), version, dir)
	cmd.Env = append(os.Environ(), "HELM="+tool(t, "helm"), "SOURCE_DATE_EPOCH=1700000000")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("package.sh: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// copyChart copies the chart and the script that packages it, and returns their directory.
func copyChart(t *testing.T) string {
	t.Helper()
	to := t.TempDir()
	for _, dir := range []string{chartDir, "hack/chart"} {
		if err := os.CopyFS(filepath.Join(to, dir), os.DirFS(filepath.Join(repository(t), dir))); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// TestPackage checks that another directory and time lead to the same archive, and that the archive has the given version.
func TestPackage(t *testing.T) {
	first, second := pack(t, repository(t), "v1.2.3-rc.1"), pack(t, copyChart(t), "v1.2.3-rc.1")
	a, err := os.ReadFile(first)
	b, err2 := os.ReadFile(second)
	if err != nil || err2 != nil || filepath.Base(first) != "altershield-operator-1.2.3-rc.1.tgz" {
		t.Fatal(err, err2, first)
	}
	if !bytes.Equal(a, b) {
		t.Error("two archives of the same chart differ")
	}
	shown := mustRun(t, tool(t, "helm"), "show", "chart", first)
	if !strings.Contains(shown, "\nversion: 1.2.3-rc.1\n") || !strings.Contains(shown, "appVersion: v1.2.3-rc.1\n") {
		t.Error(shown)
	}
	rendered := mustRun(t, tool(t, "helm"), "template", "x", first)
	if !strings.Contains(rendered, "image: \"ghcr.io/traas-stack/altershield-operator:v1.2.3-rc.1\"\n") {
		t.Error("the image has another version")
	}
	for _, version := range []string{"1.2.3", "dev", "v1.2", "v01.2.3"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(repository(t), "hack", "chart", "package.sh"), version, t.TempDir())
		cmd.Env = append(os.Environ(), "HELM="+tool(t, "helm"))
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "is not a version: give one as in v1.2.3") {
			t.Errorf("%s: %v\n%s", version, err, out)
		}
	}
}
