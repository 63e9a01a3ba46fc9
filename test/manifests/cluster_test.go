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
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// cluster is a real API server with real controllers. The manager's pods are simulated.
type cluster struct {
	*controlplane.ControlPlane
	root string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	root := repository(t)
	binDir, err := controlplane.Build(ctx, root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	c, err := controlplane.Start(ctx, controlplane.Options{BinDir: binDir, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &cluster{c, root}
}

// try runs kubectl; stdin is a manifest or nil.
func (c *cluster) try(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	cmd := c.KubectlCmd(ctx, args...)
	cmd.Dir = c.root
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// kubectl runs a command that must succeed.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t, nil, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c *cluster) get(t *testing.T, into any, args ...string) {
	t.Helper()
	if err := json.Unmarshal([]byte(c.kubectl(t, append(append([]string{"get"}, args...), "-o", "json")...)), into); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, within time.Duration, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for !done() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %s: %s", within, what)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// TestCluster installs, uses, upgrades and removes the operator.
func TestCluster(t *testing.T) {
	c := startCluster(t)
	t.Run("install", c.testInstall)
	t.Run("restricted", c.testRestricted)
	t.Run("add-ons", c.testAddOns)
	t.Run("users", c.testUsers)
	t.Run("account", c.testAccount)
	t.Run("down", c.testDown)
	t.Run("upgrade", c.testUpgrade)
	t.Run("uninstall", c.testUninstall)
	t.Run("development", c.testDevelopment)
	t.Run("manager", c.testManager)
}

// testInstall installs quick-start.yaml; the API server does not warn.
func (c *cluster) testInstall(t *testing.T) {
	out := c.kubectl(t, "apply", "-f", "quick-start.yaml")
	if strings.Contains(out, "Warning") {
		t.Errorf("the API server warns:\n%s", out)
	}
	c.kubectl(t, "-n", namespace, "rollout", "status", "deployment/"+managerName, "--timeout=90s")
	var pods corev1.PodList
	c.get(t, &pods, "-n", namespace, "pods", "-l", "control-plane=controller-manager")
	nodes := map[string]bool{}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
	}
	if len(pods.Items) != 2 || len(nodes) != 2 {
		t.Errorf("%d pods on %d nodes, want 2 on 2", len(pods.Items), len(nodes))
	}
	for _, service := range []string{"webhook-service", "callback-service", "metrics-service"} {
		eventually(t, service+" has two endpoints", 30*time.Second, func() bool {
			out := c.kubectl(t, "-n", namespace, "get", "endpointslices", "-l", "kubernetes.io/service-name="+prefix+service,
				"-o", "jsonpath={.items[*].endpoints[*].conditions.ready}")
			return out == "true true"
		})
	}
	eventually(t, "a pod may be evicted", 30*time.Second, func() bool {
		var pdb policyv1.PodDisruptionBudget
		c.get(t, &pdb, "-n", namespace, "pdb", managerName)
		return pdb.Status.DisruptionsAllowed == 1 && pdb.Status.CurrentHealthy == 2
	})
	// The disruption budget does not block the eviction of a single replica.
	c.kubectl(t, "-n", namespace, "scale", "deployment/"+managerName, "--replicas=1")
	eventually(t, "the only pod may be evicted", 30*time.Second, func() bool {
		var pdb policyv1.PodDisruptionBudget
		c.get(t, &pdb, "-n", namespace, "pdb", managerName)
		return pdb.Status.DisruptionsAllowed == 1 && pdb.Status.ExpectedPods == 1
	})
}

// testRestricted checks that the namespace refuses a pod without a security context.
func (c *cluster) testRestricted(t *testing.T) {
	out, err := c.try(t, nil, "-n", namespace, "run", "shell", "--image=busybox")
	if err == nil || !strings.Contains(out, `violates PodSecurity "restricted`) {
		t.Errorf("a pod without a security context: %v\n%s", err, out)
	}
}

// testAddOns checks that the API server accepts all overlays without a warning, with the schemas of cert-manager and of the Prometheus
// Operator. An unknown field is an error.
func (c *cluster) testAddOns(t *testing.T) {
	if err := c.InstallAddOnKinds(t.Context(), c.root); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "apply", "-k", "config/network-policy")
	for _, dir := range overlays {
		if out := c.kubectl(t, "apply", "-k", "config/"+dir, "--dry-run=server", "--validate=strict"); strings.Contains(out, "Warning") {
			t.Errorf("config/%s: the API server warns:\n%s", dir, out)
		}
	}
	token := "config/samples/altershield-token-secret.yaml"
	if out := c.kubectl(t, "apply", "-f", token, "--dry-run=server"); strings.Contains(out, "Warning") {
		t.Errorf("%s: the API server warns:\n%s", token, out)
	}
	// The API server refuses invalid objects.
	for kind, spoil := range map[string]func(spec map[string]any){
		"Certificate":    func(spec map[string]any) { delete(spec, "secretName") },
		"Issuer":         func(spec map[string]any) { spec["selfsigned"] = map[string]any{} },
		"ServiceMonitor": func(spec map[string]any) { spec["endpoints"] = "https" },
		"PrometheusRule": func(spec map[string]any) { spec["groups"] = []any{map[string]any{"rules": []any{}}} },
	} {
		c.refuses(t, kind, spoil)
	}
}

// refuses spoils the first object of a kind, and checks that the API server refuses it.
func (c *cluster) refuses(t *testing.T, kind string, spoil func(spec map[string]any)) {
	t.Helper()
	for _, o := range append(objects(t, render(t, "certmanager")), objects(t, render(t, "prometheus"))...) {
		if o.GetKind() != kind {
			continue
		}
		spec, ok := o.Object["spec"].(map[string]any)
		if !ok {
			t.Fatalf("the %s has no spec", kind)
		}
		spoil(spec)
		data, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := c.try(t, data, "apply", "--dry-run=server", "--validate=strict", "-f", "-"); err == nil {
			t.Errorf("a spoilt %s is accepted:\n%s\n%s", kind, out, data)
		}
		return
	}
	t.Errorf("no manifest has a %s", kind)
}

// testDevelopment runs make install twice, and make uninstall: the API server does not warn, and no object is left.
func (c *cluster) testDevelopment(t *testing.T) {
	run := func(target string) string {
		cmd := exec.CommandContext(t.Context(), "make", "-s", "-C", c.root, target, "KUBECTL="+c.Kubectl())
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("make %s: %v\n%s", target, err, out)
		}
		return string(out)
	}
	for range 2 {
		if out := run("install"); strings.Contains(out, "Warning") {
			t.Errorf("make install: the API server warns:\n%s", out)
		}
	}
	c.kubectl(t, "get", "crd/changeworkloads.app.ops.cloud.alipay.com", "namespace/"+namespace)
	run("uninstall")
	c.nothingLeft(t)
}

// testUsers checks the rights of users with the roles view, edit and admin.
func (c *cluster) testUsers(t *testing.T) {
	c.kubectl(t, "create", "namespace", "shop")
	for _, role := range []string{"view", "edit", "admin"} {
		c.kubectl(t, "-n", "shop", "create", "rolebinding", role, "--clusterrole="+role, "--user="+role)
	}
	may := func(user, namespace, verb, resource, subresource string) bool {
		out, _ := c.try(t, nil, "auth", "can-i", verb, resource, "--subresource="+subresource, "-n", namespace, "--as="+user)
		return strings.HasPrefix(strings.TrimSpace(out), "yes")
	}
	eventually(t, "the roles are aggregated", 30*time.Second, func() bool { return may("admin", "shop", "delete", "changeworkloads", "") })
	for _, tc := range []struct {
		verb, resource, subresource string
		want                        []string
	}{
		{"get", "changeworkloads", "", []string{"view", "edit", "admin"}},
		{"list", "changepods", "", []string{"view", "edit", "admin"}},
		{"watch", "opsconfiginfoes", "", []string{"view", "edit", "admin"}},
		{"patch", "changepods", "status", []string{"edit", "admin"}},
		{"patch", "changeworkloads", "status", []string{"edit", "admin"}},
		{"delete", "changepods", "", []string{"admin"}},
		{"update", "opsconfiginfoes", "", []string{"admin"}},
		{"create", "changeworkloads", "", nil},
		{"patch", "changeworkloads", "", nil},
		{"update", "opsconfiginfoes", "status", nil},
	} {
		var got []string
		for _, user := range []string{"view", "edit", "admin"} {
			if may(user, "shop", tc.verb, tc.resource, tc.subresource) {
				got = append(got, user)
			}
			if may(user, namespace, tc.verb, tc.resource, tc.subresource) {
				t.Errorf("%s may %s %s %s in another namespace", user, tc.verb, tc.resource, tc.subresource)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%v may %s %s %s, want %v", got, tc.verb, tc.resource, tc.subresource, tc.want)
		}
	}
}

// testAccount checks config/admission-policy: outside enrolled namespaces, the operator writes only its own kinds, events, and workloads
// that it blocks, halts or holds.
func (c *cluster) testAccount(t *testing.T) {
	c.kubectl(t, "apply", "-k", "config/admission-policy")
	defer c.kubectl(t, "delete", "-k", "config/admission-policy")
	account := "--as=system:serviceaccount:" + namespace + ":" + managerName
	for _, ns := range []string{"enrolled", "left"} {
		c.kubectl(t, "create", "namespace", ns)
		for name, metadata := range map[string]string{
			"free":    `{"name":"free"}`,
			"blocked": `{"name":"blocked","labels":{"altershield.defense.antgroup.com/suspend":"1"}}`,
			"halted":  `{"name":"halted","annotations":{"altershield.defense.antgroup.com/halted":"v"}}`,
			"held":    `{"name":"held","annotations":{"altershield.defense.antgroup.com/held":"{}"}}`,
		} {
			manifest := strings.Replace(fmt.Sprintf(sleepDeployment, `{}`), `{"name":"sleep","labels":{}}`, metadata, 1)
			if out, err := c.try(t, []byte(manifest), "-n", ns, "create", "-f", "-"); err != nil {
				t.Fatalf("create %s: %v\n%s", name, err, out)
			}
		}
	}
	c.kubectl(t, "label", "namespace", "enrolled", "admission-webhook-altershield=enabled")
	const refusal = "the AlterShield Operator writes only in enrolled namespaces: left has no label admission-webhook-altershield=enabled"
	annotate := func(ns, name string) (string, error) {
		return c.try(t, nil, account, "-n", ns, "patch", "deployment", name, "--type=merge",
			`-p={"metadata":{"annotations":{"try":"1"}}}`, "--dry-run=server")
	}
	eventually(t, "the policy is in force", 30*time.Second, func() bool {
		out, err := annotate("left", "free")
		return err != nil && strings.Contains(out, refusal)
	})
	for _, at := range []string{"enrolled free", "enrolled blocked", "left blocked", "left halted", "left held"} {
		ns, name, _ := strings.Cut(at, " ")
		if out, err := annotate(ns, name); err != nil {
			t.Errorf("%s: %v\n%s", at, err, out)
		}
	}
	revision := `{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{"name":"r"},"data":{},"revision":1}`
	change := `{"apiVersion":"app.ops.cloud.alipay.com/v1alpha1","kind":"ChangeWorkload","metadata":{"name":"c"},
"spec":{"changeWorkloadId":"c","reversion":"` + strings.Repeat("a", 32) + `",
"countThreshold":1,"waitTimeThreshold":60,"createTime":"2026-01-01 00:00:00","createTimeUnix":1}}`
	event := `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"e"},"eventTime":"2026-01-01T00:00:00.000000Z",
"reportingController":"a/b","reportingInstance":"a","action":"a","reason":"r","type":"Normal",
"regarding":{"kind":"Deployment","namespace":"%s","name":"free"}}`
	for _, tc := range []struct {
		ns, manifest string
		denied       bool
	}{
		{"enrolled", revision, false},
		{"left", revision, true},
		{"left", change, false},
		{"left", fmt.Sprintf(event, "left"), false},
	} {
		out, err := c.try(t, []byte(tc.manifest), account, "-n", tc.ns, "create", "--dry-run=server", "-f", "-")
		if denied := strings.Contains(out, refusal); denied != tc.denied || (err != nil) != tc.denied {
			t.Errorf("create in %s: %v\n%s\n%s", tc.ns, err, out, tc.manifest)
		}
	}
	// The policy does not affect other users.
	c.kubectl(t, "-n", "left", "annotate", "deployment", "free", "try=1")
	c.kubectl(t, "delete", "namespace", "enrolled", "left", "--wait=false")
}

const sleepDeployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"sleep","labels":%s},
"spec":{"replicas":1,"selector":{"matchLabels":{"app":"sleep"}},
"template":{"metadata":{"labels":{"app":"sleep"}},"spec":{"containers":[{"name":"sleep","image":"busybox"}]}}}}`

// testDown checks an outage of the webhooks: releases of blocked Deployments are denied, other releases pass, and excluded namespaces are
// not affected. The API server counts the outage in the metrics of the alerts.
func (c *cluster) testDown(t *testing.T) {
	for _, name := range []string{"shop", "kube-system", "kube-public", namespace} {
		c.kubectl(t, "label", "namespace", name, "admission-webhook-altershield=enabled")
	}
	release := `{"spec":{"template":{"metadata":{"labels":{"v":"2"}}}}}`
	free, blocked := fmt.Sprintf(sleepDeployment, `{}`), fmt.Sprintf(sleepDeployment, `{"altershield.defense.antgroup.com/suspend":"1"}`)
	for _, tc := range []struct {
		name, namespace, manifest string
		wantDenied                bool
	}{
		{"free", "shop", free, false},
		{"blocked", "shop", blocked, true},
		{"blocked, excluded", "kube-system", blocked, false},
		{"blocked, excluded", "kube-public", blocked, false},
		{"blocked, not enrolled", "default", blocked, false},
	} {
		t.Run(tc.name+" in "+tc.namespace, func(t *testing.T) {
			if out, err := c.try(t, []byte(tc.manifest), "-n", tc.namespace, "apply", "-f", "-"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			out, err := c.try(t, nil, "-n", tc.namespace, "patch", "deployment", "sleep", "-p", release)
			denied := err != nil && strings.Contains(out, `failed calling webhook "vdeployment.kb.io"`)
			if denied != tc.wantDenied || err != nil && !denied {
				t.Errorf("denied %t, want %t: %v\n%s", denied, tc.wantDenied, err, out)
			}
			c.kubectl(t, "-n", tc.namespace, "delete", "deployment", "sleep")
		})
	}
	counted := c.kubectl(t, "get", "--raw", "/metrics")
	for metric, labels := range map[string][]string{
		"apiserver_admission_webhook_fail_open_count": {`name="mdeployment.kb.io"`},
		"apiserver_admission_webhook_rejection_count": {`name="vdeployment.kb.io"`, `error_type="calling_webhook_error"`},
	} {
		if !hasSeries(counted, metric, labels...) {
			t.Errorf("the API server counts no %s of %v", metric, labels)
		}
	}
	for _, name := range []string{"shop", "kube-system", "kube-public", namespace} {
		c.kubectl(t, "label", "namespace", name, "admission-webhook-altershield-")
	}
}

// hasSeries reports whether metrics in text form have a series with these labels.
func hasSeries(text, metric string, labels ...string) bool {
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ = strings.Cut(name, "{")
		if name == metric && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			return true
		}
	}
	return false
}

// testUpgrade applies quick-start.yaml again: the injected CA stays, and the Deployment has two replicas again.
func (c *cluster) testUpgrade(t *testing.T) {
	ca := "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K"
	mutating := "mutatingwebhookconfiguration/" + prefix + "mutating-webhook-configuration"
	read := func() []byte {
		var config admissionregistrationv1.MutatingWebhookConfiguration
		c.get(t, &config, mutating)
		return config.Webhooks[0].ClientConfig.CABundle
	}
	c.kubectl(t, "patch", mutating, "--type=json", "-p", `[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"`+ca+`"}]`)
	want := read()
	c.kubectl(t, "apply", "-f", "quick-start.yaml")
	c.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", "quick-start.yaml")
	if got := read(); len(want) == 0 || !bytes.Equal(got, want) {
		t.Errorf("the CA is %q after an upgrade, it was %q", got, want)
	}
	c.kubectl(t, "-n", namespace, "rollout", "status", "deployment/"+managerName, "--timeout=90s")
	if replicas := c.kubectl(t, "-n", namespace, "get", "deployment", managerName, "-o", "jsonpath={.spec.replicas}"); replicas != "2" {
		t.Errorf("%s replicas", replicas)
	}
}

// testUninstall deletes the operator: the deletion ends, and no object of the operator is left.
func (c *cluster) testUninstall(t *testing.T) {
	c.kubectl(t, "apply", "-f", "config/samples/opsconfiginfo-branch.yaml")
	c.kubectl(t, "delete", "-f", "quick-start.yaml", "--timeout=120s")
	c.nothingLeft(t)
}

func (c *cluster) nothingLeft(t *testing.T) {
	t.Helper()
	left := c.kubectl(t, "get", "-o", "name",
		"namespaces,crds,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations")
	for line := range strings.Lines(left) {
		if strings.Contains(line, "altershield") || strings.Contains(line, "alipay") {
			t.Errorf("left: %s", line)
		}
	}
}

// testManager checks that the manager serves the paths of its webhooks, and the metrics of the alerts, to Prometheus only.
func (c *cluster) testManager(t *testing.T) {
	build := exec.CommandContext(t.Context(), "make", "-s", "-C", c.root, "build")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	address := freeAddress(t)
	manager, err := c.InstallManager(t.Context(), controlplane.ManagerOptions{
		Root: c.root, Args: []string{
			"--leader-elect=true", "--metrics-bind-address=" + address,
			"--altershield-url=http://127.0.0.1:1", // where nothing answers
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, w := range webhooksOf(t, []byte(c.webhooks(t))) {
		status, body := request(t, *w.client.URL, "", strings.NewReader("{}"))
		if status != http.StatusOK {
			t.Errorf("%s: %s: %d %s", w.name, *w.client.URL, status, body)
		}
	}

	var binding bytes.Buffer
	for _, o := range objects(t, render(t, "prometheus")) {
		if o.GetKind() == "ClusterRoleBinding" {
			data, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			binding.Write(data)
		}
	}
	if out, err := c.try(t, binding.Bytes(), "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c.kubectl(t, "create", "namespace", "monitoring")
	c.kubectl(t, "label", "namespace", "monitoring", "admission-webhook-altershield=enabled")
	token := func(account string) string {
		c.kubectl(t, "-n", "monitoring", "create", "serviceaccount", account)
		return strings.TrimSpace(c.kubectl(t, "-n", "monitoring", "create", "token", account))
	}
	url := "https://" + address + "/metrics"
	if status, _ := request(t, url, "", nil); status != http.StatusUnauthorized {
		t.Errorf("metrics without a token: %d", status)
	}
	if status, _ := request(t, url, token("stranger"), nil); status != http.StatusForbidden {
		t.Errorf("metrics for an account without a right: %d", status)
	}
	prometheus := token("prometheus-k8s")
	var metrics string
	eventually(t, "the manager leads, counts workloads, and reports the server as down", time.Minute, func() bool {
		status, body := request(t, url, prometheus, nil)
		if status != http.StatusOK {
			t.Fatalf("metrics for Prometheus: %d %s", status, body)
		}
		metrics = body
		return strings.Contains(body, `leader_election_master_status{name="altershield-operator"} 1`) &&
			strings.Contains(body, `altershield_blocked_workloads{kind="StatefulSet",workload_namespace="monitoring"} 0`) &&
			strings.Contains(body, "\naltershield_server_up 0\n")
	})
	for _, a := range alerts(t) {
		for _, name := range metricsIn(a.Expr) {
			if !slices.Contains(foreign, name) && !hasSeries(metrics, name) {
				t.Errorf("%s: the manager has no %s", a.Alert, name)
			}
		}
	}
	for _, series := range [][]string{
		{"altershield_rollbacks_total", `reason="NeverStarted"`},
		{"altershield_hold_ends_total", `reason="RanOut"`},
		{"altershield_callbacks_total", `outcome="refused"`},
		{"altershield_batches_total", `result="PostTimeout"`},
		{"altershield_admission_total", `decision="failed"`, `webhook="validate"`},
		{"altershield_server_requests_total", `class="Human"`},
	} {
		if !hasSeries(metrics, series[0], series[1:]...) {
			t.Errorf("%v is missing before its first increase", series)
		}
	}
}

// webhooks returns the webhook configurations of the cluster, as manifests.
func (c *cluster) webhooks(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "mutatingwebhookconfiguration", prefix+"mutating-webhook-configuration", "-o", "yaml") + "\n---\n" +
		c.kubectl(t, "get", "validatingwebhookconfiguration", prefix+"validating-webhook-configuration", "-o", "yaml")
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// request sends a POST with a body, or a GET without a body.
func request(t *testing.T, url, token string, body io.Reader) (int, string) {
	t.Helper()
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}
