//go:build linux

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

// Package node tells the operator's stories on real nodes: containerd, runc,
// kubelet and kube-proxy, and the operator as its manifests declare it. It tells
// what a played kubelet cannot: what containers do that crash, hang, or run out
// of memory, and what becomes of a cluster when nodes die. `make test-node` runs
// it.
package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/hack/nodes"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/test/observer"
)

const (
	operatorNamespace = controlplane.ManagerNamespace
	operatorUser      = "system:serviceaccount:" + operatorNamespace + ":altershieldoperator-controller-manager"
	operator          = "deployment/altershieldoperator-controller-manager"
	// olderImage is another name of the operator's image.
	olderImage    = operatorImage + ":v0.0.9"
	operatorImage = "ghcr.io/traas-stack/altershield-operator"
)

var (
	root    string
	cluster *nodes.Cluster
	api     client.Client
	// releasedImage is the image as the manifests of a release name it.
	releasedImage string
	// watcher is the current observer.
	watcher *observer.Observer
	// gaps has the number of gaps of an observer that were already checked.
	gaps struct {
		of    *observer.Observer
		known int
	}
	// delivered has the verdicts that were acknowledged to the server since the last check of the invariants.
	delivered struct {
		sync.Mutex
		verdicts []observer.Delivered
	}
)

func TestNode(t *testing.T) {
	if os.Getenv("ALTERSHIELD_NODES") == "" {
		t.Skip("needs real nodes, and root for them: make test-node")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "node")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(2 * time.Minute)
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	EnforceDefaultTimeoutsWhenUsingContexts()

	var err error
	root, err = controlplane.Root(".")
	Expect(err).NotTo(HaveOccurred())
	busybox, err := nodes.Busybox(ctx)
	Expect(err).NotTo(HaveOccurred())
	image, err := nodes.Operator(root, append(imagesOf(filepath.Join(root, "quick-start.yaml")), olderImage)...)
	Expect(err).NotTo(HaveOccurred())
	released, byDigest, err := nodes.Released(root)
	Expect(err).NotTo(HaveOccurred())
	releasedImage = byDigest
	began := time.Now()
	cluster, err = nodes.Start(ctx, nodes.Options{
		Root: root, Dir: filepath.Join(root, "bin", "nodes", "state"), AuditPolicy: observer.AuditPolicy(operatorUser),
		Images: []nodes.Image{busybox, image, released},
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() error { return cluster.Stop() })
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	api, err = client.New(cluster.RESTConfig(), client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	kubectl(ctx, "apply", "-f", filepath.Join(root, "quick-start.yaml"))
	installed(ctx)
	// So many bad releases at once would exceed the rollback limit.
	Eventually(func() error {
		_, err := tryKubectl(ctx, "-n", operatorNamespace, "patch", "opsconfiginfo", "limit", "--type=merge", "-p", `{"spec":{"enable":false}}`)
		return err
	}).WithContext(ctx).Should(Succeed())
	fmt.Fprintf(GinkgoWriter, "the operator is installed after %s\n", time.Since(began).Round(time.Second))
}, NodeTimeout(8*time.Minute))

// imagesOf returns the images that a manifest names.
func imagesOf(path string) []string {
	GinkgoHelper()
	manifest, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	var images []string
	for line := range strings.Lines(string(manifest)) {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "image: "+operatorImage); found {
			images = append(images, operatorImage+name)
		}
	}
	Expect(images).NotTo(BeEmpty())
	return images
}

// installed waits until the operator is rolled out.
func installed(ctx context.Context) {
	GinkgoHelper()
	kubectl(ctx, "-n", operatorNamespace, "rollout", "status", operator, "--timeout=180s")
}

func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl(ctx, args...)
	Expect(err).NotTo(HaveOccurred())
	return out
}

func tryKubectl(ctx context.Context, args ...string) (string, error) {
	return output(cluster.Kubectl(ctx, args...))
}

func output(command *exec.Cmd) (string, error) {
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(command.Args, " "), err, out)
	}
	return string(out), nil
}

// changesIn returns the releases recorded in a namespace, by name.
func changesIn(ctx context.Context, g Gomega, ns string) map[string]*v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var list v1alpha1.ChangeWorkloadList
	g.Expect(api.List(ctx, &list, client.InNamespace(ns))).To(Succeed())
	changes := map[string]*v1alpha1.ChangeWorkload{}
	for i := range list.Items {
		changes[list.Items[i].Name] = &list.Items[i]
	}
	return changes
}

func getDeployment(ctx context.Context, g Gomega, ns, name string) *appsv1.Deployment {
	GinkgoHelper()
	var d appsv1.Deployment
	g.Expect(api.Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, &d)).To(Succeed())
	return &d
}

// current returns the record of a Deployment's current release.
func current(ctx context.Context, g Gomega, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	d := getDeployment(ctx, g, ns, name)
	change := changesIn(ctx, g, ns)[record.ChangeWorkloadName(name, d.Labels[v1alpha1.VersionLabel])]
	g.Expect(change).NotTo(BeNil())
	g.Expect(change.Status.ObservedRelease).To(Equal(change.Spec.Release))
	return change
}

// eventuallyState waits until the release of a Deployment is in a state.
func eventuallyState(ctx context.Context, ns, name string, state v1alpha1.ChangeWorkloadStatusType) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = current(ctx, g, ns, name)
		g.Expect(change.Status.Status).To(Equal(state))
	}).WithContext(ctx).WithTimeout(5 * time.Minute).Should(Succeed())
	return change
}

// observe judges all changes since some time. The first caller in a container stops the current observer at the end of the container.
func observe(since time.Time) {
	GinkgoHelper()
	var err error
	watcher, err = observer.Start(observer.Options{
		Config: cluster.RESTConfig(), AuditLog: cluster.AuditLog(), Since: since, Operator: operatorUser, OperatorNamespace: operatorNamespace,
	})
	Expect(err).NotTo(HaveOccurred())
}

// Parts of the texts of gaps.
const (
	// lostHistory: the API server ends the watches of a kind that it replaces, and has no earlier versions for them.
	lostHistory = " was lost: "
	// unknownWriter: the audit log may lack the version that a request wrote whose client ended.
	unknownWriter = "no request is known that wrote "
	anyGap        = ""
)

// judgeGaps fails each spec of a container in which something could not be judged. The map has the texts of the allowed gaps by the name of
// a spec.
func judgeGaps(may map[string][]string) {
	JustAfterEach(func() { expectNoGaps(may[CurrentSpecReport().LeafNodeText]...) })
}

// expectNoGaps fails the spec if something could not be judged since the last call, except gaps with some texts.
func expectNoGaps(except ...string) {
	GinkgoHelper()
	if gaps.of != watcher {
		gaps.of, gaps.known = watcher, 0
	}
	all := watcher.Gaps()
	since := all[gaps.known:]
	gaps.known = len(all)
	Expect(slices.DeleteFunc(since, func(gap string) bool {
		return slices.ContainsFunc(except, func(text string) bool { return strings.Contains(gap, text) })
	})).To(BeEmpty(), "what happened here was not judged")
}

// expectFinished waits until the workloads of some namespaces have no pending changes.
func expectFinished(ctx context.Context, namespaces ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(watcher.Settle(ctx)).To(Succeed())
		g.Expect(watcher.Unfinished(namespaces)).To(BeEmpty(), "a release does not end")
	}).WithContext(ctx).WithPolling(time.Second).Should(Succeed())
}

// expectInvariants fails the spec if an invariant was violated.
func expectInvariants(ctx SpecContext) {
	GinkgoHelper()
	delivered.Lock()
	verdicts := delivered.verdicts
	delivered.verdicts = nil
	delivered.Unlock()
	Expect(watcher.Settle(ctx)).To(Succeed())
	Expect(watcher.Violations()).To(BeEmpty(), "violated invariants")
	Expect(watcher.CheckDelivered(verdicts)).To(BeEmpty(), "violated invariants")
}

// acknowledged keeps the verdicts whose callbacks were acknowledged. It is called with each entry of a simulator's journal.
func acknowledged(e simulator.Entry) {
	if e.Callback == nil || e.Answer == nil || !e.Answer.Success || e.Callback.CheckType == altershield.CheckAction {
		return
	}
	r := &e.Callback.Request
	delivered.Lock()
	defer delivered.Unlock()
	delivered.verdicts = append(delivered.verdicts, observer.Delivered{
		Order: e.Order, Node: e.Node, Stage: v1alpha1.CheckStage(r.Stage), OfOrder: e.Callback.CheckType == altershield.CheckOrder,
		Verdict: string(r.Verdict.Verdict), Said: e.Answer.Msg,
	})
}
