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

// Package e2e tells the operator's stories on a real control plane: API server,
// controllers and scheduler are the real ones, kwok plays the kubelets, and the
// manager is the built binary, under its own identity and with its own rights.
//
// Most specs share one control plane and one manager, whatever process they run
// in; each has namespaces of its own. Those that change settings, stop managers or
// need other ones are in ordered containers with a world of their own.
package e2e

import (
	"context"
	"encoding/json"
	"os/exec"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	// managerUser is the user name of the manager.
	managerUser = "system:serviceaccount:" + controlplane.ManagerNamespace + ":altershieldoperator-controller-manager"
	// patience is the time limit of a wait. On a quiet machine a wait takes seconds; nothing fails because a machine is busy.
	patience = 3 * time.Minute
	// longest is the priority of the containers that take longest: they begin first.
	longest = 1
	// soak is the label of long specs: see make test-soak.
	soak = "soak"
)

var (
	// root of the repository.
	root string
	// shared is the world of all specs that need no world of their own.
	shared = &world{}
)

func TestE2E(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "e2e")
}

// meeting is the data of the shared world that its process, the first process, sends to the others.
type meeting struct {
	Kubectl, Kubeconfig, KubectlCache string
	ManagerLog                        string
	// Judge is the address of the observer.
	Judge string
}

var _ = SynchronizedBeforeSuite(func(ctx context.Context) []byte {
	prepare()
	build := exec.CommandContext(ctx, "make", "-s", "-C", root, "build")
	build.Stdout, build.Stderr = GinkgoWriter, GinkgoWriter
	Expect(build.Run()).To(Succeed(), "make build")
	shared.start(ctx)
	shared.manager = shared.install(ctx, controlplane.ManagerOptions{})
	shared.observe(time.Time{})
	Expect(shared.manager.Start(ctx)).To(Succeed())
	data, err := json.Marshal(meeting{
		Kubectl: shared.kubectlPath, Kubeconfig: shared.kubeconfig, KubectlCache: shared.kubectlCache,
		ManagerLog: shared.manager.LogPath(), Judge: serveJudge(shared.observer),
	})
	Expect(err).NotTo(HaveOccurred())
	return data
}, func(data []byte) {
	prepare()
	if shared.cluster != nil { // this process started it
		return
	}
	var m meeting
	Expect(json.Unmarshal(data, &m)).To(Succeed())
	shared.kubectlPath, shared.kubeconfig, shared.kubectlCache = m.Kubectl, m.Kubeconfig, m.KubectlCache
	shared.api = clientOf(m.Kubeconfig)
	shared.watcher = dialJudge(m.Judge)
	shared.logs = func() []string { return []string{m.ManagerLog} }
}, NodeTimeout(20*time.Minute))

// prepare prepares each process.
func prepare() {
	GinkgoHelper()
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(patience)
	EnforceDefaultTimeoutsWhenUsingContexts()
	SetDefaultEventuallyPollingInterval(150 * time.Millisecond)
	SetDefaultConsistentlyDuration(2 * time.Second)
	SetDefaultConsistentlyPollingInterval(200 * time.Millisecond)
	var err error
	root, err = controlplane.Root(".")
	Expect(err).NotTo(HaveOccurred())
}

var _ = SynchronizedAfterSuite(func() {}, func(ctx context.Context) {
	if shared.observer == nil {
		return
	}
	By("checking that nothing is written at rest")
	shared.rests(ctx, 12*time.Second)
	By("checking that no invariant was violated, in no namespace")
	shared.expectInvariants(ctx)
	AddReportEntry("observed", shared.observer.Summary())
	Expect(shared.observer.Gaps()).To(BeEmpty(), "what happened here was not judged")
	By("checking that the log has no errors")
	expectNoErrors(shared.manager.LogPath())
}, NodeTimeout(10*time.Minute))
