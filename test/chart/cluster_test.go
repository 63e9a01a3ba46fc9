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

package chart

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	release = "altershield"
	quick   = 30 * time.Second
	slow    = 2 * time.Minute
)

// cluster is a real API server with real controllers. Its pods are simulated: programs beside the cluster run the errands of Jobs.
type cluster struct {
	*controlplane.ControlPlane
	root, dir, helm string
	errands         *errands
	// ran has the Helm commands that succeeded, as users type them.
	ran []string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	root := repository(t)
	if out, err := exec.CommandContext(ctx, "make", "-s", "-C", root, "build").CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
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
	all := &cluster{ControlPlane: c, root: root, dir: t.TempDir(), helm: tool(t, "helm")}
	all.errands = playErrands(t, all)
	return all
}

// errands simulates the pods of the chart's Jobs: it runs the command of a pod under the pod's service account, and sets the phase and
// the exit code of the pod.
type errands struct {
	c       *cluster
	client  client.Client
	mu      sync.Mutex
	outputs []string
	// down is set while no pod starts.
	down bool
}

func (e *errands) setDown(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = down
}

func (e *errands) isDown() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.down
}

func playErrands(t *testing.T, c *cluster) *errands {
	t.Helper()
	log.SetLogger(logr.Discard())
	api, err := client.New(c.RESTConfig(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := &errands{c: c, client: api}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			e.play(ctx, t)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return e
}

func (e *errands) play(ctx context.Context, t *testing.T) {
	if e.isDown() {
		return
	}
	var pods corev1.PodList
	if err := e.client.List(ctx, &pods, client.HasLabels{"batch.kubernetes.io/job-name"}); err != nil {
		return // like a kubelet without a connection
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if pod.Spec.NodeName == "" || ended || pod.DeletionTimestamp != nil {
			continue
		}
		container := pod.Spec.Containers[0]
		kubeconfig := filepath.Join(e.c.dir, pod.Name+".kubeconfig")
		if err := e.c.KubeconfigFor(ctx, pod.Namespace, pod.Spec.ServiceAccountName, kubeconfig); err != nil {
			continue
		}
		args := append(slices.Clone(container.Args), "--kubeconfig="+kubeconfig)
		cmd := exec.CommandContext(ctx, filepath.Join(e.c.root, "bin", "manager"), args...)
		cmd.Env = append(os.Environ(), "POD_NAMESPACE="+pod.Namespace)
		out, err := cmd.CombinedOutput()
		t.Logf("%s %v: %v\n%s", pod.Name, container.Args, err, out)
		e.mu.Lock()
		e.outputs = append(e.outputs, string(out))
		e.mu.Unlock()
		phase, code := corev1.PodSucceeded, 0
		if err != nil {
			phase, code = corev1.PodFailed, max(1, cmd.ProcessState.ExitCode())
		}
		patch := fmt.Sprintf(`{"status":{"phase":%q,"containerStatuses":[{"name":%q,"image":%q,"imageID":"","ready":false,"restartCount":0,`+
			`"state":{"terminated":{"exitCode":%d}}}]}}`, phase, container.Name, container.Image, code)
		if err := e.client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil && ctx.Err() == nil {
			t.Logf("end %s: %v", pod.Name, err)
		}
	}
}

// last returns the output of the last errand.
func (e *errands) last() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.outputs) == 0 {
		return ""
	}
	return e.outputs[len(e.outputs)-1]
}

// tryHelm runs Helm in the namespace of the operator, and returns its output.
func (c *cluster) tryHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.helm, append(args, "--namespace", namespace)...)
	cmd.Dir = c.root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "HELM_CACHE_HOME="+c.dir, "HELM_CONFIG_HOME="+c.dir, "HELM_DATA_HOME="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) mustHelm(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.tryHelm(t, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	typed := "helm"
	for _, a := range args {
		if strings.HasSuffix(a, ".tgz") {
			a = "altershield-operator-<version>.tgz"
		}
		typed += " " + a
	}
	c.ran = append(c.ran, typed+" --namespace "+namespace)
	return out
}

var continued = regexp.MustCompile(`\\\n\s*`)

// documented checks that each Helm command of the documents was run, with all its words.
func (c *cluster) documented(t *testing.T) {
	for _, file := range []string{
		"docs/getting-started/install.md", "docs/tasks/upgrade.md", "docs/tasks/uninstall.md", chartDir + "/README.md",
	} {
		text, err := os.ReadFile(filepath.Join(c.root, file))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for line := range strings.Lines(continued.ReplaceAllString(string(text), "")) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, "helm ") {
				continue
			}
			found++
			if !slices.ContainsFunc(c.ran, func(ran string) bool {
				words := strings.Fields(ran)
				return !slices.ContainsFunc(strings.Fields(line), func(word string) bool { return !slices.Contains(words, word) })
			}) {
				t.Errorf("%s: no command that ran has all words of: %s", file, line)
			}
		}
		if found == 0 {
			t.Errorf("%s has no Helm commands", file)
		}
	}
}

func (c *cluster) try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
	defer cancel()
	cmd := c.KubectlCmd(ctx, args...)
	cmd.Dir = c.root
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.try(t, args...)
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

// everything returns all objects of the cluster except events, which expire.
func (c *cluster) everything(t *testing.T) []string {
	t.Helper()
	var kinds []string
	for line := range strings.Lines(c.kubectl(t, "api-resources", "--verbs=list", "--cached=false", "-o", "name")) {
		if kind := strings.TrimSpace(line); kind != "" && !strings.HasPrefix(kind, "events") {
			kinds = append(kinds, kind)
		}
	}
	var all []string
	out, err := c.try(t, "get", strings.Join(kinds, ","), "--all-namespaces", "--no-headers", "--ignore-not-found",
		"-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name")
	if err != nil {
		return []string{out} // a kind is being deleted
	}
	for line := range strings.Lines(out) {
		all = append(all, strings.Join(strings.Fields(line), " "))
	}
	return all
}

// nothingLeft waits until every object that did not exist before is gone. The garbage collector takes some seconds.
func (c *cluster) nothingLeft(t *testing.T, before []string) {
	t.Helper()
	var left []string
	deadline := time.Now().Add(time.Minute)
	for {
		left = slices.DeleteFunc(c.everything(t), func(o string) bool { return slices.Contains(before, o) })
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind:\n%s", strings.Join(left, "\n"))
		}
	}
}

// olderChart packages the chart from which the test upgrades: the chart of the newest commit that has another chart, otherwise the
// current chart. It differs where upgrades are hard: a kind lacks a field, and webhooks have another timeout.
func olderChart(t *testing.T, root string) string {
	t.Helper()
	dir := copyChart(t)
	git := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", root}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	now := git("rev-parse", "HEAD:"+chartDir)
	for commit := range strings.FieldsSeq(git("log", "-n", "50", "--format=%H", "--", chartDir)) {
		was := git("rev-parse", commit+":"+chartDir)
		if was == "" || was == now || git("show", commit+":"+chartDir+"/templates/leave.yaml") == "" {
			continue
		}
		archive := filepath.Join(t.TempDir(), "chart.tar")
		git("archive", "--output", archive, commit, chartDir)
		if err := os.RemoveAll(filepath.Join(dir, chartDir)); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-xf", archive).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Logf("the older chart is from commit %s", commit)
		break
	}
	edit := func(file string, change func(string) string) {
		path := filepath.Join(dir, chartDir, "templates", file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := change(string(text))
		if changed == string(text) {
			t.Fatalf("%s is not changed", file)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit("crds.yaml", func(text string) string {
		// Kubernetes 1.33 refuses this rule of charts before the pattern of the field.
		return strings.ReplaceAll(withoutLocked(text), `self.matches(''^(100|[1-9]?[0-9])%$'')`, "true")
	})
	edit("webhooks.yaml", func(text string) string {
		return strings.ReplaceAll(text, "timeoutSeconds: 3\n", "timeoutSeconds: 4\n")
	})
	return pack(t, dir, "v0.0.9")
}

// withoutLocked removes the field locked from the kind OpsConfigInfo.
func withoutLocked(text string) string {
	var lines []string
	inside := ""
	for line := range strings.Lines(text) {
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		if inside != "" && len(indent) > len(inside) {
			continue
		}
		inside = ""
		if strings.TrimSpace(line) == "locked:" {
			inside = indent
			continue
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "")
}

// manager is the operator, which runs beside the control plane under the service account of the chart.
type manager struct {
	cmd    *exec.Cmd
	log    *bytes.Buffer
	health string
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

func (c *cluster) startManager(t *testing.T, args ...string) *manager {
	t.Helper()
	kubeconfig := filepath.Join(c.dir, "manager.kubeconfig")
	if err := c.KubeconfigFor(t.Context(), namespace, managerName, kubeconfig); err != nil {
		t.Fatal(err)
	}
	health := freeAddress(t)
	m := &manager{log: &bytes.Buffer{}, health: health}
	m.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(c.root, "bin", "manager"), append([]string{
		"--kubeconfig=" + kubeconfig, "--namespace=" + namespace, "--leader-elect=true",
		"--health-probe-bind-address=" + health, "--callback-bind-address=0",
	}, args...)...)
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.stop(t) })
	return m
}

func (m *manager) stop(t *testing.T) {
	t.Helper()
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Signal(os.Interrupt)
	if err := m.cmd.Wait(); err != nil {
		t.Logf("the manager ended: %v", err)
	}
	m.cmd = nil
	if t.Failed() {
		text := m.log.String()
		t.Logf("end of the manager's log:\n%s", text[max(0, len(text)-4000):])
	}
}

func (c *cluster) mutating(t *testing.T) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	var config admissionregistrationv1.MutatingWebhookConfiguration
	c.get(t, &config, "mutatingwebhookconfiguration", "altershieldoperator-mutating-webhook-configuration")
	return &config
}

// hasLocked reports whether the kind OpsConfigInfo has the field that the older chart lacks.
func (c *cluster) hasLocked(t *testing.T) bool {
	t.Helper()
	return strings.Contains(c.kubectl(t, "get", "crd", "opsconfiginfoes.app.ops.cloud.alipay.com", "-o", "json"), `"locked":`)
}

// TestCluster installs, upgrades, rolls back and uninstalls the chart as the documents describe.
func TestCluster(t *testing.T) {
	c := startCluster(t)
	c.kubectl(t, "create", "namespace", namespace)
	c.kubectl(t, "label", "namespace", namespace,
		"pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")
	eventually(t, "the namespace has its default objects", quick, func() bool {
		_, err := c.try(t, "-n", namespace, "get", "serviceaccount/default", "configmap/kube-root-ca.crt")
		return err == nil
	})
	before := c.everything(t)
	older, current := olderChart(t, c.root), pack(t, c.root, "v0.1.0")
	steps := []struct {
		name string
		run  func(t *testing.T)
	}{
		{"install, upgrade and rollback", func(t *testing.T) { c.testLife(t, older, current) }},
		{"nothing left", func(t *testing.T) { c.nothingLeft(t, before) }},
		{"adoption of manifests", func(t *testing.T) { c.testAdoption(t, current) }},
		{"nothing left after an adoption", func(t *testing.T) { c.nothingLeft(t, before) }},
		{"kinds are kept", func(t *testing.T) { c.testKeep(t, current) }},
		{"nothing left after kept kinds", func(t *testing.T) { c.nothingLeft(t, before) }},
		{"broken installation", func(t *testing.T) { c.testBroken(t, current) }},
		{"nothing left after a broken installation", func(t *testing.T) { c.nothingLeft(t, before) }},
		{"no pods", func(t *testing.T) { c.testNoPods(t, current) }},
		{"nothing left without pods", func(t *testing.T) { c.nothingLeft(t, before) }},
		{"documented", c.documented},
	}
	for _, step := range steps {
		if !t.Run(step.name, step.run) {
			return // each step needs the previous one
		}
	}
}

// testLife installs, upgrades and rolls back the chart while the operator runs, and uninstalls it while a workload is blocked.
func (c *cluster) testLife(t *testing.T, older, current string) {
	c.kubectl(t, "create", "namespace", "shop")
	out := c.mustHelm(t, "install", release, older, "--create-namespace", "--wait",
		"--set", "settings.branch.enable=true", "--set-string", "settings.branch.content=7")
	for _, want := range []string{"is installed in the namespace " + namespace} {
		if !strings.Contains(out, want) {
			t.Errorf("the notes do not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "Warning") {
		t.Errorf("the API server warns:\n%s", out)
	}
	if c.hasLocked(t) {
		t.Error("the older kind has the newer field")
	}
	c.branchIs(t, "7")
	operator := c.startManager(t, "--webhook-port="+port(t))
	eventually(t, "the CA of the manager is in the webhooks", slow, func() bool {
		return len(c.mutating(t).Webhooks[0].ClientConfig.CABundle) > 0
	})
	eventually(t, "the namespace owns the webhook configurations", quick, func() bool { return len(c.mutating(t).OwnerReferences) == 1 })
	eventually(t, "the default settings exist", quick, func() bool {
		_, err := c.try(t, "-n", namespace, "get", "opsconfiginfo/observe", "opsconfiginfo/halting", "defensepolicies/default")
		return err == nil
	})
	ca := c.mutating(t).Webhooks[0].ClientConfig.CABundle

	t.Run("another release", func(t *testing.T) {
		out, err := c.tryHelm(t, "install", "another", current)
		if err == nil || !strings.Contains(out, "cannot be imported into the current release") {
			t.Errorf("%v\n%s", err, out)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, c.helm, "install", release, current, "--namespace", "shop")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "HELM_CACHE_HOME="+c.dir, "HELM_CONFIG_HOME="+c.dir, "HELM_DATA_HOME="+c.dir)
		printed, err := cmd.CombinedOutput()
		want := "the AlterShield Operator is installed already, in the namespace " + namespace
		if err == nil || !strings.Contains(string(printed), want) {
			t.Errorf("%v\n%s", err, printed)
		}
	})

	// An upgrade keeps a setting that no value of the chart names.
	c.kubectl(t, "-n", namespace, "patch", "opsconfiginfo", "halting", "--type=merge", "-p", `{"spec":{"enable":false}}`)
	upgraded := func(locked bool, content string) {
		t.Helper()
		if c.hasLocked(t) != locked {
			t.Errorf("the kind has the field locked: %t", !locked)
		}
		config := c.mutating(t)
		if !bytes.Equal(config.Webhooks[0].ClientConfig.CABundle, ca) || len(config.OwnerReferences) != 1 {
			t.Errorf("the CA or the owner of the webhooks is lost: %+v", config.ObjectMeta)
		}
		c.branchIs(t, content)
		if got := c.kubectl(t, "-n", namespace, "get", "opsconfiginfo", "halting", "-o", "jsonpath={.spec.enable}"); got != "false" {
			t.Errorf("a setting that no value names was changed: %s", got)
		}
	}
	c.mustHelm(t, "upgrade", release, current, "--reset-then-reuse-values", "--wait", "--force-conflicts",
		"--set", "settings.branch.content=8,crds.keep=false")
	upgraded(true, "8")
	c.mustHelm(t, "rollback", release, "--wait", "--force-conflicts")
	upgraded(false, "7")
	c.mustHelm(t, "upgrade", release, current, "--reset-values", "--wait", "--force-conflicts", "--set", "crds.keep=false")
	upgraded(true, "7")
	operator.stop(t)

	c.testUninstallBlocked(t)
}

func port(t *testing.T) string {
	t.Helper()
	_, p, err := net.SplitHostPort(freeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (c *cluster) branchIs(t *testing.T, content string) {
	t.Helper()
	got := c.kubectl(t, "-n", namespace, "get", "opsconfiginfo", "branch", "-o", "jsonpath={.spec.enable} {.spec.content}")
	if got != "true "+content {
		t.Errorf("the setting branch is %q, want %q", got, content)
	}
}

// serveWebhooks starts a manager, and lets the API server call its webhooks by address: no Service leads to a simulated pod.
func (c *cluster) serveWebhooks(t *testing.T) *manager {
	t.Helper()
	address := freeAddress(t)
	certs := filepath.Join(c.dir, "certs")
	ca, err := controlplane.WriteServingCerts(certs, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"mutating", "validating"} {
		name := kind + "webhookconfiguration/altershieldoperator-" + kind + "-webhook-configuration"
		var config admissionregistrationv1.MutatingWebhookConfiguration
		c.get(t, &config, name)
		var patch []map[string]any
		for i, w := range config.Webhooks {
			patch = append(patch, map[string]any{
				"op": "replace", "path": "/webhooks/" + strconv.Itoa(i) + "/clientConfig",
				"value": map[string]any{"url": "https://" + address + *w.ClientConfig.Service.Path, "caBundle": ca},
			})
		}
		text, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		c.kubectl(t, "patch", name, "--type=json", "-p", string(text))
	}
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	m := c.startManager(t, "--webhook-port="+p, "--webhook-cert-path="+certs)
	eventually(t, "the manager is ready", slow, func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return m
}

// testUninstallBlocked uninstalls while a workload is blocked: the block is removed, and releases pass.
func (c *cluster) testUninstallBlocked(t *testing.T) {
	c.kubectl(t, "-n", namespace, "patch", "opsconfiginfo", "timeouts", "--type=merge",
		"-p", `{"spec":{"content":"wait=60s,pre=120s,post=120s,settle=0"}}`)
	c.serveWebhooks(t)
	c.kubectl(t, "label", "namespace", "shop", v1alpha1.EnrolledLabel+"=enabled")
	// The annotation has no effect during the uninstall, because the setting observe is locked then.
	sleep := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"sleep","namespace":"shop",
"annotations":{"altershield.defense.antgroup.com/observe":"disabled"}},
"spec":{"replicas":2,"selector":{"matchLabels":{"app":"sleep"}},
"template":{"metadata":{"labels":{"app":"sleep"}},"spec":{"containers":[{"name":"sleep","image":"busybox"}]}}}}`
	labels := func() string {
		return c.kubectl(t, "-n", "shop", "get", "deployment", "sleep", "-o", "jsonpath={.metadata.labels}")
	}
	file := filepath.Join(c.dir, "sleep.json")
	if err := os.WriteFile(file, []byte(sleep), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is enrolled", quick, func() bool {
		c.kubectl(t, "apply", "-f", file)
		if strings.Contains(labels(), v1alpha1.VersionLabel) {
			return true
		}
		c.kubectl(t, "-n", "shop", "delete", "deployment", "sleep")
		return false
	})
	var pods v1alpha1.ChangePodList
	eventually(t, "the release is verified", slow, func() bool {
		c.get(t, &pods, "-n", "shop", "changepods")
		states := c.kubectl(t, "-n", "shop", "get", "changeworkloads", "-o", "jsonpath={.items[*].status.status}")
		return strings.TrimSpace(states) == "Success" && len(pods.Items) > 0
	})
	info := pods.Items[0].Spec.PodInfos[0]
	result, err := json.Marshal(map[string]any{"status": map[string]any{"message": "PostFinish", "podResults": []any{map[string]any{
		"app": info.App, "hostName": info.HostName, "workSpace": info.WorkSpace, "pod": info.Pod, "ip": info.IP, "namespace": info.Namespace,
		"verdict": "unpass", "message": "find error",
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "-n", "shop", "patch", "changepod", "--subresource=status", pods.Items[0].Name, "--type=merge", "-p", string(result))
	released := `{"spec":{"template":{"metadata":{"labels":{"v":"2"}}}}}`
	eventually(t, "releases are blocked", slow, func() bool {
		return strings.Contains(labels(), v1alpha1.SuspendLabel)
	})
	out, err := c.try(t, "-n", "shop", "patch", "deployment", "sleep", "-p", released)
	if err == nil || !strings.Contains(out, "deployment sleep is suspended") {
		t.Fatalf("a release of a blocked Deployment: %v\n%s", err, out)
	}

	c.mustHelm(t, "uninstall", release)
	if printed := c.errands.last(); !strings.Contains(printed, "no workload is blocked, paused or held by the operator") {
		t.Errorf("manager leave: %s", printed)
	}
	if left := labels(); strings.Contains(left, v1alpha1.SuspendLabel) {
		t.Errorf("still blocked: %s", left)
	}
	// The webhook configurations are gone, so the release passes.
	c.kubectl(t, "-n", "shop", "patch", "deployment", "sleep", "-p", released)
	c.kubectl(t, "delete", "namespace", "shop")
}

// testAdoption installs the chart over an installation by kubectl apply. The operator does not run here, so the uninstall does not wait
// until it has taken back its blocks.
func (c *cluster) testAdoption(t *testing.T, current string) {
	c.kubectl(t, "apply", "-f", "quick-start.yaml")
	out, err := c.tryHelm(t, "install", release, current)
	if err == nil || !strings.Contains(out, "cannot be imported into the current release") {
		t.Fatalf("without --take-ownership: %v\n%s", err, out)
	}
	uid := c.kubectl(t, "get", "crd", "changepods.app.ops.cloud.alipay.com", "-o", "jsonpath={.metadata.uid}")
	c.kubectl(t, "apply", "-f", "config/samples/opsconfiginfo-branch.yaml")
	c.mustHelm(t, "install", release, current, "--take-ownership", "--force-conflicts", "--wait", "--set", "crds.keep=false")
	if now := c.kubectl(t, "get", "crd", "changepods.app.ops.cloud.alipay.com", "-o", "jsonpath={.metadata.uid}"); now != uid {
		t.Error("the kind was recreated, and its objects are lost")
	}
	c.kubectl(t, "-n", namespace, "get", "opsconfiginfo", "branch")
	c.kubectl(t, "-n", namespace, "scale", "deployment", managerName, "--replicas=0")
	c.mustHelm(t, "uninstall", release)
	if printed := c.errands.last(); !strings.Contains(printed, "the operator takes nothing back: it does not run") {
		t.Errorf("manager leave: %s", printed)
	}
}

// testKeep uninstalls and keeps the kinds: records, settings and policies stay, and the next installation uses them.
func (c *cluster) testKeep(t *testing.T, current string) {
	c.mustHelm(t, "install", release, current, "--set", "uninstall.timeout=5s", "--wait")
	c.kubectl(t, "apply", "-f", "config/samples/opsconfiginfo-branch.yaml")
	// Without the operator, a halted rollout would continue to a version that failed.
	c.kubectl(t, "create", "namespace", "halts")
	c.kubectl(t, "-n", "halts", "create", "deployment", "cart", "--image=busybox", "--replicas=0")
	c.kubectl(t, "-n", "halts", "annotate", "deployment", "cart", v1alpha1.HaltedAnnotation+"=v")
	if out, err := c.tryHelm(t, "uninstall", release); err == nil || !strings.Contains(c.errands.last(), "Deployment halts/cart: [paused]") {
		t.Errorf("the uninstall is not refused: %v\n%s\n%s", err, out, c.errands.last())
	}
	_, annotate, _ := strings.Cut(c.errands.last(), "or uninstall anyway: kubectl ")
	annotate, _, _ = strings.Cut(annotate, "\n")
	c.kubectl(t, strings.Fields(annotate)...)
	c.mustHelm(t, "uninstall", release)
	c.kubectl(t, "delete", "namespace", "halts")
	c.branchIs(t, "5")
	// The next installation does not begin in observe mode. The garbage collector watches a new kind up to 30 s after it appeared.
	eventually(t, "the setting observe is deleted", slow, func() bool {
		_, err := c.try(t, "-n", namespace, "get", "opsconfiginfo", "observe")
		return err != nil
	})
	c.mustHelm(t, "install", release, current, "--set", "uninstall.leave=false,crds.keep=false", "--wait")
	c.branchIs(t, "5")
	c.mustHelm(t, "uninstall", release)
}

// runDocumented runs the first command of docs/tasks/uninstall.md with this beginning.
func (c *cluster) runDocumented(t *testing.T, begin string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.root, "docs/tasks/uninstall.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, begin) {
			c.kubectl(t, strings.Fields(line)[1:]...)
			return
		}
	}
	t.Fatalf("docs/tasks/uninstall.md has no command that begins with %q", begin)
}

// testBroken uninstalls after the kinds and the Deployment were deleted.
func (c *cluster) testBroken(t *testing.T, current string) {
	c.mustHelm(t, "install", release, current, "--wait", "--set", "crds.keep=false")
	// kubectl would wait without a bound.
	c.kubectl(t, "delete", "-f", "config/crd/bases", "--wait=false")
	eventually(t, "the kinds are gone", slow, func() bool {
		return !strings.Contains(c.kubectl(t, "get", "crds", "-o", "name"), v1alpha1.GroupVersion.Group)
	})
	c.kubectl(t, "-n", namespace, "delete", "deployment", managerName)
	c.mustHelm(t, "uninstall", release)
}

// testNoPods uninstalls while the Job cannot run: Helm reports the Job, and the operator stays. After an uninstall without hooks, the
// objects that the manager created are deleted by hand.
func (c *cluster) testNoPods(t *testing.T, current string) {
	c.mustHelm(t, "install", release, current, "--wait", "--set", "crds.keep=false")
	operator := c.startManager(t, "--webhook-port="+port(t))
	eventually(t, "the manager created its Secret and its lease", slow, func() bool {
		_, err := c.try(t, "-n", namespace, "get", "secret/altershieldoperator-webhook-server-cert", "lease/altershield-operator")
		return err == nil
	})
	operator.stop(t)
	c.errands.setDown(true)
	defer c.errands.setDown(false)
	out, err := c.tryHelm(t, "uninstall", release, "--timeout=5s")
	if err == nil || !strings.Contains(out, "altershieldoperator-leave not ready") {
		t.Errorf("the uninstall succeeded, or does not name the Job: %v\n%s", err, out)
	}
	c.kubectl(t, "-n", namespace, "get", "deployment", managerName)
	// If the Job is refused, Helm leaves the other objects of the hook behind.
	c.kubectl(t, "-n", namespace, "create", "quota", "no-jobs", "--hard=count/jobs.batch=0")
	if out, err := c.tryHelm(t, "uninstall", release, "--timeout=5s"); err == nil || !strings.Contains(out, "exceeded quota") {
		t.Errorf("the Job is not refused: %v\n%s", err, out)
	}
	c.kubectl(t, "-n", namespace, "delete", "quota", "no-jobs")
	c.kubectl(t, "get", "clusterrolebinding", "altershieldoperator-leave")
	c.mustHelm(t, "uninstall", release, "--no-hooks")
	c.runDocumented(t, "kubectl -n altershieldoperator-system delete jobs,")
	c.kubectl(t, "-n", namespace, "delete", "--ignore-not-found", "secret/altershieldoperator-webhook-server-cert",
		"lease/altershield-operator", "configmap/altershieldoperator-rollbacks")
}
