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
package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// managerUser is who the manager is to the API server.
const managerUser = "system:serviceaccount:" + controlplane.ManagerNamespace + ":altershieldoperator-controller-manager"

var (
	root    string
	cluster *controlplane.ControlPlane
	manager *controlplane.Manager
	api     client.Client
	// watcher judges all that happens in the course of the suite.
	watcher *observer.Observer
	// managerLogs are the logs that may tell why a spec failed.
	managerLogs = func() []string { return []string{manager.LogPath()} }
	// logs of managers that must hold no errors.
	logs = map[string]bool{}
	// spec is what the invariants need to know of the current spec; a verdict that
	// is acknowledged after its end counts for the next one.
	spec struct {
		sync.Mutex
		// namespaces it made.
		namespaces []string
		// unfinished says why it leaves releases that do not end.
		unfinished string
		// delivered are the verdicts that were acknowledged.
		delivered []observer.Delivered
	}
)

func TestE2E(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a control plane")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "e2e")
}

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(time.Minute)
	EnforceDefaultTimeoutsWhenUsingContexts()
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	SetDefaultConsistentlyDuration(2 * time.Second)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)

	var err error
	root, err = controlplane.Root(".")
	Expect(err).NotTo(HaveOccurred())
	build := exec.CommandContext(ctx, "make", "-s", "-C", root, "build")
	build.Stdout, build.Stderr = GinkgoWriter, GinkgoWriter
	Expect(build.Run()).To(Succeed(), "make build")
	binDir, err := controlplane.Build(ctx, root, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())

	cluster, err = controlplane.Start(ctx, controlplane.Options{BinDir: binDir, Out: GinkgoWriter, AuditPolicy: observer.AuditPolicy(managerUser)})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() error { return cluster.Stop() })
	api = clientOf(cluster)

	manager, err = cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root})
	Expect(err).NotTo(HaveOccurred())
	watcher = observe(cluster, time.Time{})
	DeferCleanup(watcher.Stop)
	Expect(manager.Start(ctx)).To(Succeed())
}, NodeTimeout(20*time.Minute))

// clientOf is a client for a control plane that knows the operator's kinds.
func clientOf(c *controlplane.ControlPlane) client.Client {
	GinkgoHelper()
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	made, err := client.New(c.RESTConfig(), client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	return made
}

// observe judges all that happens on a control plane that has the operator's kinds,
// since some time.
func observe(c *controlplane.ControlPlane, since time.Time) *observer.Observer {
	GinkgoHelper()
	o, err := observer.Start(observer.Options{
		Config: c.RESTConfig(), AuditLog: c.AuditLog(), Since: since, Operator: managerUser, OperatorNamespace: controlplane.ManagerNamespace,
	})
	Expect(err).NotTo(HaveOccurred())
	return o
}

var _ = BeforeEach(func() {
	spec.Lock()
	defer spec.Unlock()
	spec.namespaces, spec.unfinished = nil, ""
})

// What must hold whatever a spec does.
var _ = JustAfterEach(func(ctx context.Context) {
	if CurrentSpecReport().Failed() {
		for _, path := range managerLogs() {
			AddReportEntry(path, tailOf(path, 80))
		}
	}
	spec.Lock()
	delivered, namespaces, unfinished := spec.delivered, spec.namespaces, spec.unfinished
	spec.delivered = nil
	spec.Unlock()
	// What was acknowledged by then is stored by now.
	expectInvariants(ctx)
	Expect(watcher.CheckDelivered(delivered)).To(BeEmpty(), "violated invariants")
	if CurrentSpecReport().Failed() || unfinished != "" {
		return
	}
	Eventually(func(g Gomega) {
		g.Expect(watcher.Settle(ctx)).To(Succeed())
		g.Expect(watcher.Unfinished(namespaces)).To(BeEmpty(), "a release does not end, see leaveUnfinished")
	}).WithContext(ctx).Should(Succeed())
	expectInvariants(ctx)
}, NodeTimeout(3*time.Minute))

// expectInvariants fails the spec in which an invariant was violated.
func expectInvariants(ctx context.Context) {
	GinkgoHelper()
	Expect(watcher.Settle(ctx)).To(Succeed())
	Expect(watcher.Violations()).To(BeEmpty(), "violated invariants")
}

// leaveUnfinished says that a spec ends while releases of its own cannot.
func leaveUnfinished(why string) {
	spec.Lock()
	defer spec.Unlock()
	spec.unfinished = why
	AddReportEntry("leaves releases unfinished", why)
}

// acknowledged keeps the verdicts whose callbacks were acknowledged, for the end
// of the spec. It is told of each entry of a simulator's journal.
func acknowledged(e simulator.Entry) {
	if e.Callback == nil || e.Answer == nil || !e.Answer.Success || e.Callback.CheckType == altershield.CheckAction {
		return
	}
	r := &e.Callback.Request
	spec.Lock()
	defer spec.Unlock()
	spec.delivered = append(spec.delivered, observer.Delivered{
		Order: e.Order, Node: e.Node, Stage: v1alpha1.CheckStage(r.Stage), OfOrder: e.Callback.CheckType == altershield.CheckOrder,
		Verdict: string(r.Verdict.Verdict), Said: e.Answer.Msg,
	})
}

var _ = AfterSuite(func(ctx context.Context) {
	if cluster == nil || manager == nil || watcher == nil {
		return
	}
	By("checking that nothing is written at rest")
	resting(ctx, func(r observer.Request) bool { return r.Resource != "leases" })
	By("checking that no invariant was violated")
	expectInvariants(ctx)
	AddReportEntry("observed", watcher.Summary())
	By("checking that no error in the log is none")
	logs[manager.LogPath()] = true
	for path := range logs {
		Expect(errorsIn(logLines(path))).To(BeEmpty(), "errors in a manager's log")
	}
}, NodeTimeout(5*time.Minute))

// errorsIn returns the errors among the lines of a manager's log. What a manager
// says of its own end is none: a leader that is none any more, and requests that
// were under way when it was told to stop.
func errorsIn(lines []string) []string {
	stopped := slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, `"msg":"Stopping and waiting for `) })
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return !strings.Contains(line, `"level":"error"`) ||
			strings.Contains(line, "error received after stop sequence was engaged") ||
			stopped && strings.Contains(line, `context canceled"`)
	})
}

// resting waits until the manager writes nothing any more, and checks that it
// stays so. What counts says which requests are writes.
func resting(ctx context.Context, counts func(observer.Request) bool) {
	GinkgoHelper()
	writes := func() []observer.Request {
		all, err := watcher.Writes()
		Expect(err).NotTo(HaveOccurred())
		return slices.DeleteFunc(all, func(r observer.Request) bool { return !counts(r) })
	}
	// Events are sent a little later, and the last spec may have started the manager
	// just now.
	before, since := len(writes()), time.Now()
	Eventually(func() time.Duration {
		if n := len(writes()); n != before {
			before, since = n, time.Now()
		}
		return time.Since(since)
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeNumerically(">=", 5*time.Second))
	Consistently(func() []observer.Request { return writes()[before:] }).WithContext(ctx).WithTimeout(8 * time.Second).Should(BeEmpty())
}

// managerWrites counts the manager's writes in a namespace.
func managerWrites(namespace string) int {
	GinkgoHelper()
	writes, err := watcher.Writes()
	Expect(err).NotTo(HaveOccurred())
	n := 0
	for i := range writes {
		if writes[i].Namespace == namespace {
			n++
		}
	}
	return n
}

func logLines(path string) []string {
	GinkgoHelper()
	f, err := os.Open(path)
	Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	Expect(s.Err()).NotTo(HaveOccurred())
	return lines
}

func tailOf(path string, n int) string {
	lines := logLines(path)
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// newNamespace makes a namespace of its own for a spec.
func newNamespace(ctx context.Context, enrol bool) string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}
	Expect(api.Create(ctx, ns)).To(Succeed())
	spec.Lock()
	spec.namespaces = append(spec.namespaces, ns.Name)
	spec.Unlock()
	if enrol {
		enrolNamespace(ctx, ns.Name)
	}
	return ns.Name
}

func enrolNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	kubectl(ctx, "label", "namespace", name, v1alpha1.EnrolledLabel+"="+v1alpha1.EnrolledValue)
}

// makeDeployment is the sample of the walkthrough under another name.
func makeDeployment(namespace, name string, replicas int32, change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": labelValue(name)}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": labelValue(name)}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": labelValue(name), "test": "123"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "sleep", Image: "busybox", Command: []string{"/bin/sleep", "infinity"},
				}}},
			},
		},
	}
	for _, c := range change {
		c(d)
	}
	return d
}

func labelValue(name string) string { return defense.WorkloadNameLabelValue(name) }

func createDeployment(ctx context.Context, namespace, name string, replicas int32, change ...func(*appsv1.Deployment)) *appsv1.Deployment {
	GinkgoHelper()
	d := makeDeployment(namespace, name, replicas, change...)
	Expect(api.Create(ctx, d)).To(Succeed())
	return d
}

func getDeployment(ctx context.Context, g Gomega, namespace, name string) *appsv1.Deployment {
	GinkgoHelper()
	d := &appsv1.Deployment{}
	g.Expect(api.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, d)).To(Succeed())
	return d
}

// patchTemplate changes a label of the pod template.
func patchTemplate(ctx context.Context, namespace, name, value string) error {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`, value)
	return api.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(patch)))
}

func patchDeployment(ctx context.Context, namespace, name, patch string) error {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	return api.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// changesOf are the releases of a namespace, by name.
func changesIn(ctx context.Context, g Gomega, namespace string) map[string]*v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var list v1alpha1.ChangeWorkloadList
	g.Expect(api.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	changes := map[string]*v1alpha1.ChangeWorkload{}
	for i := range list.Items {
		changes[list.Items[i].Name] = &list.Items[i]
	}
	return changes
}

// batchesOf are the batches of a release.
func batchesOf(ctx context.Context, g Gomega, change *v1alpha1.ChangeWorkload) []v1alpha1.ChangePod {
	GinkgoHelper()
	var list v1alpha1.ChangePodList
	g.Expect(api.List(ctx, &list, client.InNamespace(change.Namespace))).To(Succeed())
	var batches []v1alpha1.ChangePod
	for _, b := range list.Items {
		if b.Spec.ChangeWorkloadID == change.Name {
			batches = append(batches, b)
		}
	}
	return batches
}

// currentChange is the release a Deployment's own record names.
func currentChange(ctx context.Context, g Gomega, namespace, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	version := getDeployment(ctx, g, namespace, name).Labels[v1alpha1.VersionLabel]
	g.Expect(version).NotTo(BeEmpty(), "no version on deployment %s", name)
	change := changesIn(ctx, g, namespace)[defense.ChangeWorkloadName(name, version)]
	g.Expect(change).NotTo(BeNil(), "no changeworkload of %s version %s", name, version)
	return change
}

// eventuallyState waits until the current release of a Deployment is in a state
// and returns it.
func eventuallyState(ctx context.Context, namespace, name string, state v1alpha1.ChangeWorkloadStatusType) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = currentChange(ctx, g, namespace, name)
		g.Expect(change.Status.Status).To(Equal(state))
		g.Expect(getDeployment(ctx, g, namespace, name).Labels).To(HaveKeyWithValue(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed))
	}).WithContext(ctx).Should(Succeed())
	return change
}

// setVerdict writes a verdict on the first pod of the first batch of a release,
// as a user does.
func setVerdict(ctx context.Context, change *v1alpha1.ChangeWorkload, verdict string) v1alpha1.PodInfo {
	GinkgoHelper()
	batches := batchesOf(ctx, Default, change)
	Expect(batches).NotTo(BeEmpty())
	b := &batches[0]
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"message":    "PostFinish",
		"podResults": []v1alpha1.PodResult{{PodInfo: v1alpha1.PodInfo{Pod: b.Spec.PodInfos[0].Pod}, Verdict: verdict, Message: "find error"}},
	}})
	Expect(err).NotTo(HaveOccurred())
	kubectl(ctx, "-n", b.Namespace, "patch", "changepod", "--subresource=status", b.Name, "--type", "merge", "-p", string(patch))
	return b.Spec.PodInfos[0]
}

// block releases a Deployment, fails one of its pods and waits for the block.
func block(ctx context.Context, namespace, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	setVerdict(ctx, eventuallyState(ctx, namespace, name, v1alpha1.ChangeWorkloadSuccess), "unpass")
	change := eventuallyState(ctx, namespace, name, v1alpha1.ChangeWorkloadSuspend)
	Expect(getDeployment(ctx, Default, namespace, name).Labels).To(HaveKey(v1alpha1.SuspendLabel))
	return change
}

// kubectl runs a command that must succeed.
func kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := tryKubectl(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), "kubectl %s\n%s", strings.Join(args, " "), out)
	return out
}

func tryKubectl(ctx context.Context, args ...string) (string, error) {
	out, err := cluster.KubectlCmd(ctx, args...).CombinedOutput()
	return string(out), err
}

// eventsOf are the reasons of the events told of a Deployment.
func eventsOf(ctx context.Context, g Gomega, namespace, name string) []string {
	GinkgoHelper()
	var list corev1.EventList
	g.Expect(api.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	var reasons []string
	for _, e := range list.Items {
		if e.InvolvedObject.Kind == "Deployment" && e.InvolvedObject.Name == name && e.ReportingController == "altershield-operator" {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// podUIDs are the pods of a Deployment that are not on their way out.
func podUIDs(ctx context.Context, g Gomega, namespace, name string) []types.UID {
	GinkgoHelper()
	var list corev1.PodList
	g.Expect(api.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabels{"app": labelValue(name)})).To(Succeed())
	var uids []types.UID
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			uids = append(uids, p.UID)
		}
	}
	return uids
}

// rolledOut waits until a Deployment has finished its rollout.
func rolledOut(ctx context.Context, namespace, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		d := getDeployment(ctx, g, namespace, name)
		g.Expect(d.Status.ObservedGeneration).To(Equal(d.Generation))
		g.Expect([]int32{d.Status.UpdatedReplicas, d.Status.AvailableReplicas, d.Status.Replicas}).To(HaveEach(*d.Spec.Replicas))
	}).WithContext(ctx).Should(Succeed())
}

// withoutManager does something while the manager is down.
func withoutManager(ctx context.Context, do func()) {
	GinkgoHelper()
	Expect(manager.Stop()).To(Succeed())
	defer func() {
		GinkgoHelper()
		Expect(manager.Start(ctx)).To(Succeed())
	}()
	do()
}

// setConfig changes a setting for the time of a spec.
func setConfig(ctx context.Context, name string, enable bool, content string) {
	GinkgoHelper()
	key := types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: name}
	var before v1alpha1.OpsConfigInfo
	Eventually(func() error { return api.Get(ctx, key, &before) }).WithContext(ctx).Should(Succeed())
	write := func(ctx context.Context, spec v1alpha1.OpsConfigInfoSpec) error {
		var o v1alpha1.OpsConfigInfo
		if err := api.Get(ctx, key, &o); err != nil {
			return err
		}
		o.Spec = spec
		return api.Update(ctx, &o)
	}
	changed := *before.Spec.DeepCopy()
	changed.Enable, changed.Content = enable, content
	Eventually(func() error { return write(ctx, changed) }).WithContext(ctx).Should(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Eventually(func() error { return write(ctx, before.Spec) }).WithContext(ctx).Should(Succeed())
		configAccepted(ctx, name)
	})
	configAccepted(ctx, name)
}

func configAccepted(ctx context.Context, name string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var o v1alpha1.OpsConfigInfo
		g.Expect(api.Get(ctx, types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: name}, &o)).To(Succeed())
		g.Expect(o.Status.ObservedGeneration).To(Equal(o.Generation))
	}).WithContext(ctx).Should(Succeed())
}

// HaveLines matches output of n lines.
func HaveLines(n int) OmegaMatcher {
	return WithTransform(func(out string) int { return strings.Count(out, "\n") }, Equal(n))
}

func sample(name string) string { return filepath.Join(root, "config", "samples", name) }

// denied says that kubectl failed because the block denied the request.
func denied(name string) func(string, error) bool {
	return func(out string, err error) bool {
		var exit *exec.ExitError
		return errors.As(err, &exit) && strings.Contains(out,
			fmt.Sprintf(`admission webhook "vdeployment.kb.io" denied the request: deployment %s is suspended`, name))
	}
}
