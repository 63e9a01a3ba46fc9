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

package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/hack/processes"
)

// product is a product whose controllers run beside the control plane, with the rights of its manifests and with its webhooks.
type product struct {
	// module of hack/kinds/go.mod, and program in bin/kinds.
	module, program string
	// namespace and account of its ServiceAccount.
	namespace, account string
	// command returns the environment and the arguments of the program. It keeps files in a directory, and serves webhooks and its
	// readiness at two ports.
	command func(dir string, webhooks, health int) (env, args []string)
}

var kruise = product{
	module: "github.com/openkruise/kruise", program: "kruise-manager", namespace: "kruise-system", account: "kruise-manager",
	command: func(dir string, webhooks, health int) (env, args []string) {
		env = []string{
			"POD_NAMESPACE=kruise-system", "WEBHOOK_HOST=127.0.0.1", "WEBHOOK_PORT=" + strconv.Itoa(webhooks),
			"WEBHOOK_CERT_DIR=" + filepath.Join(dir, "certs"),
		}
		return env, []string{
			"--enable-leader-election=false", "--metrics-addr=0", "--enable-pprof=false", "--health-probe-addr=" + processes.Loopback(health),
			"--feature-gates=KruiseDaemon=false", // the nodes have no containers
		}
	},
}

var lws = product{
	module: "sigs.k8s.io/lws", program: "lws-manager", namespace: "lws-system", account: "lws-controller-manager",
	command: func(dir string, webhooks, health int) (env, args []string) {
		GinkgoHelper()
		config := filepath.Join(dir, "config.yaml")
		Expect(os.WriteFile(config, fmt.Appendf(nil, `
apiVersion: config.lws.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
webhook: {host: 127.0.0.1, port: %d, certDir: %s}
metrics: {bindAddress: "0"}
health: {healthProbeBindAddress: %q}
`, webhooks, dir, processes.Loopback(health)), 0o600)).To(Succeed())
		return nil, []string{"--config=" + config}
	},
}

// run installs a product as its manifests do, without its pods, and runs its controllers until the end of the container.
func (w *world) run(ctx context.Context, p product) {
	GinkgoHelper()
	programs, err := binaries.BuildKinds(ctx, root, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	dir := GinkgoT().TempDir()
	ca, err := controlplane.WriteServingCerts(dir, "127.0.0.1")
	Expect(err).NotTo(HaveOccurred())
	ports, err := processes.FreePorts(2)
	Expect(err).NotTo(HaveOccurred())
	manifests := filepath.Join(dir, "manifests.yaml")
	Expect(os.WriteFile(manifests, w.manifestsOf(ctx, p, processes.Loopback(ports[0]), ca), 0o600)).To(Succeed())
	w.kubectl(ctx, "apply", "--server-side", "-f", manifests)
	w.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=2m", "crd", "--all")

	kubeconfig := filepath.Join(dir, "kubeconfig")
	Expect(w.cluster.KubeconfigFor(ctx, p.namespace, p.account, kubeconfig)).To(Succeed())
	env, args := p.command(dir, ports[0], ports[1])
	command := slices.Concat(env, []string{filepath.Join(programs, p.program), "--kubeconfig=" + kubeconfig}, args)
	supervisor := processes.New(dir)
	process, err := supervisor.Start(p.program, "/usr/bin/env", command)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() error { return supervisor.StopAll(10*time.Second, []string{p.program}) })
	w.explained = append(w.explained, supervisor.LogPath(p.program))
	Eventually(func(g Gomega) {
		Expect(process.Exited()).To(BeFalse(), supervisor.LogTail(p.program))
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+processes.Loopback(ports[1])+"/readyz", http.NoBody)
		g.Expect(err).NotTo(HaveOccurred())
		answer, err := http.DefaultClient.Do(request)
		g.Expect(err).NotTo(HaveOccurred(), supervisor.LogTail(p.program))
		g.Expect(answer.Body.Close()).To(Succeed())
		g.Expect(answer.StatusCode).To(Equal(http.StatusOK))
	}).WithContext(ctx).Should(Succeed())
}

// manifestsOf returns the manifests of a product, with webhooks at an address of this machine. Its pods and their configuration are left
// out.
func (w *world) manifestsOf(ctx context.Context, p product, address string, ca []byte) []byte {
	GinkgoHelper()
	dir, err := controlplane.Module(ctx, root, p.module)
	Expect(err).NotTo(HaveOccurred())
	all, err := w.kubectlCmd(ctx, "kustomize", filepath.Join(dir, "config", "default")).Output()
	Expect(err).NotTo(HaveOccurred())
	var kept []string
	for text := range strings.SplitSeq(string(all), "\n---\n") {
		o := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal([]byte(text), &o.Object)).To(Succeed())
		switch o.GetKind() {
		case "Deployment", "DaemonSet", "Service", "ConfigMap", "Secret":
			continue
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
			Expect(err).NotTo(HaveOccurred())
			for _, item := range hooks {
				hook, ok := item.(map[string]any)
				Expect(ok).To(BeTrue())
				path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
				Expect(err).NotTo(HaveOccurred())
				hook["clientConfig"] = map[string]any{
					"url": "https://" + address + path, "caBundle": base64.StdEncoding.EncodeToString(ca),
				}
			}
			Expect(unstructured.SetNestedSlice(o.Object, hooks, "webhooks")).To(Succeed())
		}
		out, err := yaml.Marshal(o.Object)
		Expect(err).NotTo(HaveOccurred())
		kept = append(kept, string(out))
	}
	return []byte(strings.Join(kept, "---\n"))
}
