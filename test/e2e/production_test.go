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
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/hack/kubelet"
	"github.com/traas-stack/altershield-operator/test/observer"
)

const (
	managerDeployment = "deployment/altershieldoperator-controller-manager"
	managerPods       = "control-plane=controller-manager"
	operatorImage     = "ghcr.io/traas-stack/altershield-operator"
)

// The operator as users install it: from the rendered manifests alone, two replicas
// elected, run as their Deployment declares, called through their Services.
var _ = Describe("the installed operator", Ordered, func() {
	var pods *kubelet.Kubelet

	BeforeAll(func(ctx SpecContext) {
		binDir, err := controlplane.Build(ctx, root, GinkgoWriter)
		Expect(err).NotTo(HaveOccurred())
		c, err := controlplane.Start(ctx, controlplane.Options{
			BinDir: binDir, Out: GinkgoWriter, AuditPolicy: observer.AuditPolicy(managerUser), PodsIn: controlplane.ManagerNamespace,
			// As some clusters do; the rules on finalizers are for these.
			APIServerFlags: []string{"--enable-admission-plugins=OwnerReferencesPermissionEnforcement"},
		})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() error { return c.Stop() })
		image, err := kubelet.OperatorImage(root, operatorImage)
		Expect(err).NotTo(HaveOccurred())
		pods, err = kubelet.Start(ctx, kubelet.Options{ControlPlane: c, PodsIn: controlplane.ManagerNamespace, Image: image, MaxRestartPeriod: time.Second})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(pods.Stop)
		before := struct {
			cluster *controlplane.ControlPlane
			api     client.Client
			watcher *observer.Observer
			logs    func() []string
		}{cluster, api, watcher, managerLogs}
		cluster, api = c, clientOf(c)
		managerLogs = func() []string {
			paths, err := filepath.Glob(filepath.Join(filepath.Dir(pods.LogPath("x")), "pod-*.log"))
			Expect(err).NotTo(HaveOccurred())
			return paths
		}
		DeferCleanup(func() { cluster, api, watcher, managerLogs = before.cluster, before.api, before.watcher, before.logs })

		kubectl(ctx, "apply", "-f", filepath.Join(root, "quick-start.yaml"))
		watcher = observe(c)
		DeferCleanup(watcher.Stop)
		installed(ctx)
	}, NodeTimeout(5*time.Minute))

	It("goes through the walkthrough", func(ctx SpecContext) {
		walkthrough(ctx, newNamespace(ctx, true))
	}, SpecTimeout(3*time.Minute))
})

// installed waits until the operator is rolled out.
func installed(ctx context.Context) {
	GinkgoHelper()
	kubectl(ctx, "-n", controlplane.ManagerNamespace, "rollout", "status", managerDeployment, "--timeout=120s")
}
