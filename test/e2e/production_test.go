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
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/hack/kubelet"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/observer"
)

const (
	managerDeployment = "deployment/altershieldoperator-controller-manager"
	managerPods       = "control-plane=controller-manager"
	operatorImage     = "ghcr.io/traas-stack/altershield-operator"
)

// installation is the operator as users install it, on a control plane of its own:
// from the rendered manifests alone, two replicas elected, run as their Deployment
// declares, called through their Services.
func installation(apiServerFlags ...string) func() *kubelet.Kubelet {
	var pods *kubelet.Kubelet
	BeforeAll(func(ctx SpecContext) {
		binDir, err := controlplane.Build(ctx, root, GinkgoWriter)
		Expect(err).NotTo(HaveOccurred())
		c, err := controlplane.Start(ctx, controlplane.Options{
			BinDir: binDir, Out: GinkgoWriter, AuditPolicy: observer.AuditPolicy(managerUser), PodsIn: controlplane.ManagerNamespace,
			APIServerFlags: apiServerFlags,
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
		watcher = observe(c, time.Time{})
		DeferCleanup(watcher.Stop)
		installed(ctx)
	}, NodeTimeout(5*time.Minute))
	return func() *kubelet.Kubelet { return pods }
}

var _ = Describe("the installed operator", Ordered, func() {
	// As some clusters do; the rules on finalizers are for these.
	pods := installation("--enable-admission-plugins=OwnerReferencesPermissionEnforcement")

	It("goes through the walkthrough", func(ctx SpecContext) {
		walkthrough(ctx, newNamespace(ctx, true))
	}, SpecTimeout(3*time.Minute))

	// Before this version there is none: what it comes from are kinds that lack the
	// fields added since, and pods of another image.
	It("is upgraded and taken back with releases in flight", func(ctx SpecContext) {
		older := func() {
			kubectl(ctx, "apply", "-f", filepath.Join(root, "test", "e2e", "testdata", "older-kinds.yaml"))
			kubectl(ctx, "-n", controlplane.ManagerNamespace, "set", "image", managerDeployment, "manager="+operatorImage+":v0.0.9")
			installed(ctx)
		}
		older()
		onlyNewPods(ctx)
		fields := func() string {
			return kubectl(ctx, "get", "crd", "changeworkloads.app.ops.cloud.alipay.com", "-o", "jsonpath={.spec.versions[*].schema.openAPIV3Schema.properties.status.properties}")
		}
		Expect(fields()).NotTo(ContainSubstring(`"startTime"`))
		before := failedOpen()
		l := startLoad(newNamespace(ctx, true), withoutServer)
		l.goesOn(ctx)
		kubectl(ctx, "apply", "-f", filepath.Join(root, "quick-start.yaml"))
		installed(ctx)
		Expect(fields()).To(ContainSubstring(`"startTime"`))
		l.goesOn(ctx)
		older()
		l.goesOn(ctx)
		kubectl(ctx, "apply", "-f", filepath.Join(root, "quick-start.yaml"))
		installed(ctx)
		l.goesOn(ctx)
		l.end()
		AddReportEntry("figures", fmt.Sprintf("%d releases, %d repairs, %d refusals of blocked releases", l.released, l.repaired, l.denied))
		Expect(l.wrong).To(BeEmpty())
		Expect(failedOpen()-before).To(BeZero(), "admissions without the webhook")
		onlyNewPods(ctx)
	}, SpecTimeout(6*time.Minute))

	It("uses every right its roles give, and needs no other", func(ctx SpecContext) {
		By("starting where the API server streams no lists")
		kubectl(ctx, "-n", controlplane.ManagerNamespace, "set", "env", managerDeployment, "KUBE_FEATURE_WatchListClient=false")
		installed(ctx)
		onlyNewPods(ctx)

		By("losing certificates and webhooks")
		kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", "secret", "altershieldoperator-webhook-server-cert", "--type=merge", "-p", `{"data":{"tls.crt":"eA=="}}`)
		configurations := []string{"mutatingwebhookconfiguration/altershieldoperator-mutating-webhook-configuration", "validatingwebhookconfiguration/altershieldoperator-validating-webhook-configuration"}
		kubectl(ctx, append([]string{"delete"}, configurations...)...)
		Eventually(func() error {
			_, err := tryKubectl(ctx, append([]string{"get"}, configurations...)...)
			return err
		}).WithContext(ctx).WithTimeout(90 * time.Second).WithPolling(time.Second).Should(Succeed())

		By("being asked for metrics by somebody who may not have them")
		token := strings.TrimSpace(kubectl(ctx, "-n", "default", "create", "token", "default"))
		Expect(scrape(ctx, pods(), token)).To(Equal(http.StatusForbidden))

		By("releasing a version, another, and the first again")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 2)
		for _, value := range []string{"a", "b", "a"} {
			Expect(patchTemplate(ctx, ns, "web", value)).To(Succeed())
			eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		}

		By("keeping one version only")
		setConfig(ctx, "history", true, "1")
		Expect(patchTemplate(ctx, ns, "web", "c")).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Eventually(func() string { return kubectl(ctx, "-n", ns, "get", "controllerrevisions", "-o", "name") }).WithContext(ctx).Should(HaveLines(1))

		By("changing the size of batches meanwhile")
		createDeployment(ctx, ns, "late", 3, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 3 })
		Eventually(func(g Gomega) { currentChange(ctx, g, ns, "late") }).WithContext(ctx).Should(Succeed())
		setConfig(ctx, "branch", true, "2")
		eventuallyState(ctx, ns, "late", v1alpha1.ChangeWorkloadSuccess)

		By("rolling back")
		createDeployment(ctx, ns, "broken", 3, afterAWhile)
		good := verified(ctx, ns, "broken")
		Expect(setImage(ctx, ns, "broken", "busybo")).To(Succeed())
		rolledBackTo(ctx, ns, "broken", good.Spec.Reversion)
		verified(ctx, ns, "broken")

		By("losing a record without its batches, and a Deployment without its records")
		lost := currentChange(ctx, Default, ns, "web")
		kubectl(ctx, "-n", ns, "delete", "changeworkload", lost.Name, "--cascade=orphan")
		Eventually(func(g Gomega) {
			again := currentChange(ctx, g, ns, "web")
			g.Expect(again.UID).NotTo(Equal(lost.UID))
			g.Expect(again.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).Should(Succeed())
		kubectl(ctx, "-n", ns, "delete", "deployment", "late", "--cascade=orphan")
		createDeployment(ctx, ns, "late", 3)
		Eventually(func(g Gomega) {
			change := currentChange(ctx, g, ns, "late")
			g.Expect(change.OwnerReferences).To(HaveLen(1))
			g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).Should(Succeed())

		By("comparing the audit log with the roles")
		var everywhere rbacv1.ClusterRole
		var own rbacv1.Role
		Expect(api.Get(ctx, types.NamespacedName{Name: "altershieldoperator-manager-role"}, &everywhere)).To(Succeed())
		Expect(api.Get(ctx, types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: "altershieldoperator-manager-role"}, &own)).To(Succeed())
		roles := []observer.BoundRole{observer.BindClusterRole(&everywhere), observer.BindRole(&own)}
		Eventually(func(g Gomega) { // the log is written a little later
			used := observer.NewUsed(managerUser)
			g.Expect(used.ReadFile(cluster.AuditLog())).To(Succeed())
			unused, missing := observer.Compare(roles, used)
			g.Expect(missing).To(BeEmpty(), "rights the manager lacks")
			g.Expect(unused).To(BeEmpty(), "rights nothing uses")
		}).WithContext(ctx).WithTimeout(15 * time.Second).WithPolling(time.Second).Should(Succeed())
		kubectl(ctx, "-n", controlplane.ManagerNamespace, "set", "env", managerDeployment, "KUBE_FEATURE_WatchListClient-")
		installed(ctx)
	}, SpecTimeout(8*time.Minute))

	It("has told of no error so far", expectCleanLogs)

	It("is removed and installed again with releases in flight", func(ctx SpecContext) {
		leaveUnfinished("nobody is there to end what was in flight")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "free", 2)
		createDeployment(ctx, ns, "stopped", 2)
		eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
		block(ctx, ns, "stopped")
		Expect(patchTemplate(ctx, ns, "free", "in-flight")).To(Succeed())

		Expect(watcher.Settle(ctx)).To(Succeed())
		Expect(watcher.Violations()).To(BeEmpty())
		watcher.Stop() // with the kinds goes what it watches
		began := time.Now()
		kubectl(ctx, "delete", "-f", filepath.Join(root, "quick-start.yaml"), "--timeout=120s")
		for _, kind := range []string{"namespaces", "crds", "clusterroles", "clusterrolebindings", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"} {
			left := kubectl(ctx, "get", kind, "-o", "name")
			Expect(left).NotTo(Or(ContainSubstring("altershieldoperator"), ContainSubstring("alipay.com")))
		}
		AddReportEntry("removed after", time.Since(began).Round(time.Second).String())
		By("leaving Deployments as they are, and free")
		rolledOut(ctx, ns, "free")
		Expect(patchTemplate(ctx, ns, "free", "undefended")).To(Succeed())
		Expect(patchTemplate(ctx, ns, "stopped", "undefended")).To(Succeed())
		rolledOut(ctx, ns, "free")
		rolledOut(ctx, ns, "stopped")

		// Those that ended had lost their rights and kinds first.
		removed := time.Now()
		kubectl(ctx, "apply", "-f", filepath.Join(root, "quick-start.yaml"))
		watcher = observe(cluster, removed)
		DeferCleanup(watcher.Stop)
		installed(ctx)
		By("counting a block that is still there")
		Eventually(func() bool {
			return denied("stopped")(tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/stopped"))
		}).WithContext(ctx).Should(BeTrue())
		kubectl(ctx, "-n", ns, "label", "deployment", "stopped", v1alpha1.IgnoredSuspendLabel+"=true")
		Expect(patchTemplate(ctx, ns, "stopped", "repaired")).To(Succeed())
		eventuallyState(ctx, ns, "stopped", v1alpha1.ChangeWorkloadSuccess)
		Expect(patchTemplate(ctx, ns, "free", "defended")).To(Succeed())
		eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
	}, SpecTimeout(5*time.Minute))
})

// expectCleanLogs checks that no manager has told of an error so far.
func expectCleanLogs() {
	GinkgoHelper()
	for _, path := range managerLogs() {
		Expect(errorsIn(logLines(path))).To(BeEmpty(), "errors in the log of a manager")
	}
}

// installed waits until the operator is rolled out.
func installed(ctx context.Context) {
	GinkgoHelper()
	kubectl(ctx, "-n", controlplane.ManagerNamespace, "rollout", "status", managerDeployment, "--timeout=120s")
}

var _ = Describe("the installed operator, connected to a server and under load,", Ordered, func() {
	pods := installation()
	var sim *simulator.Simulator

	BeforeAll(func(ctx SpecContext) {
		sim = simulator.New(simulator.Options{
			Token: serverToken, OnEntry: acknowledged, CallbackTransport: pods().Transport(),
			CallbackURLs: []string{"http://altershieldoperator-callback-service." + controlplane.ManagerNamespace + ".svc" + callbackPath},
		})
		Expect(sim.Start("127.0.0.1:0")).To(Succeed())
		DeferCleanup(sim.Shutdown)
		serve(ctx, pods(), sim)
		kubectl(ctx, "-n", controlplane.ManagerNamespace, "create", "secret", "generic", "altershield-token", "--from-literal=token="+serverToken)
		kubectl(ctx, "apply", "-k", filepath.Join(root, "config", "samples", "server"))
		installed(ctx)
		onlyNewPods(ctx) // one of the others led until its end
		sim.Script(simulator.Script{Delay: 200 * time.Millisecond, CallbackDelay: 100 * time.Millisecond})
		sim.Script(simulator.Script{
			Match:   simulator.Match{Location: regexp.MustCompile(`^bad-`), CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
			Verdict: altershield.VerdictFail, Delay: 200 * time.Millisecond,
		})
	}, NodeTimeout(3*time.Minute))

	// figures tells what came of a load, and what it did not notice.
	figures := func(l *load, before int) (unanswered int) {
		GinkgoHelper()
		callbacks := sim.Journal().Callbacks()
		for _, e := range callbacks {
			if e.Answer == nil || !e.Answer.Success {
				unanswered++
				GinkgoWriter.Println("callback:", e)
			}
		}
		AddReportEntry("figures", fmt.Sprintf("%d releases, %d repairs, %d failing releases suspended (%d not), %d blocked releases denied, %d refused without an answer, slowest admission %s; "+
			"%d callbacks, %d of them met nobody; %d admissions passed without their webhook",
			l.released, l.repaired, l.failed, len(l.unheard), l.denied, l.unanswered, l.slowest.Round(time.Millisecond), len(callbacks), unanswered, failedOpen()-before))
		Expect(l.wrong).To(BeEmpty())
		Expect(min(l.released, l.repaired, l.denied, l.failed)).To(BeNumerically(">", 0))
		return unanswered
	}

	It("refuses and loses nothing in rolling restarts", func(ctx SpecContext) {
		sim.ClearJournal()
		before := failedOpen()
		l := startLoad(newNamespace(ctx, true))
		for range 2 {
			kubectl(ctx, "-n", controlplane.ManagerNamespace, "rollout", "restart", managerDeployment)
			installed(ctx)
			onlyNewPods(ctx)
		}
		l.end()
		Expect(figures(l, before)).To(BeZero(), "callbacks that met nobody")
		Expect(l.unheard).To(BeEmpty())
		Expect(failedOpen()-before).To(BeZero(), "admissions without the webhook")
	}, SpecTimeout(8*time.Minute))

	DescribeTable("refuses and loses nothing while certificates are renewed", func(ctx SpecContext, replicas int, validity string, certificates, authorities int) {
		sim.ClearJournal()
		patch := func(replicas int, args string) {
			kubectl(ctx, "-n", controlplane.ManagerNamespace, "patch", managerDeployment, "--type=json", "-p",
				fmt.Sprintf(`[{"op":"replace","path":"/spec/replicas","value":%d},%s]`, replicas, args))
			installed(ctx)
			onlyPods(ctx, replicas)
		}
		patch(replicas, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--webhook-cert-validity=%s"}`, validity))
		// The certificate that is there would do for months.
		kubectl(ctx, "-n", controlplane.ManagerNamespace, "delete", "secret", "altershieldoperator-webhook-server-cert")
		seen, issuers := map[string]bool{}, map[string]bool{}
		look := func(g Gomega) {
			var secret corev1.Secret
			key := types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: "altershieldoperator-webhook-server-cert"}
			g.Expect(api.Get(ctx, key, &secret)).To(Succeed())
			block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
			g.Expect(block).NotTo(BeNil())
			leaf, err := x509.ParseCertificate(block.Bytes)
			g.Expect(err).NotTo(HaveOccurred())
			seen[leaf.SerialNumber.String()], issuers[leaf.Issuer.CommonName] = true, true
		}
		Eventually(look).WithContext(ctx).Should(Succeed())
		before := failedOpen()
		l := startLoad(newNamespace(ctx, true))
		l.goesOn(ctx)
		if replicas == 1 {
			kubectl(ctx, "-n", controlplane.ManagerNamespace, "rollout", "restart", managerDeployment)
			installed(ctx)
		}
		Eventually(func(g Gomega) {
			look(g)
			g.Expect(len(seen)).To(BeNumerically(">=", certificates))
			g.Expect(len(issuers)).To(BeNumerically(">=", authorities))
		}).WithContext(ctx).WithTimeout(5 * time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
		l.goesOn(ctx)
		l.end()
		AddReportEntry("certificates", fmt.Sprintf("%d, by %d authorities", len(seen), len(issuers)))
		Expect(figures(l, before)).To(BeZero(), "callbacks that met nobody")
		Expect(l.unheard).To(BeEmpty())
		Expect(failedOpen()-before).To(BeZero(), "admissions without the webhook")
		args := kubectl(ctx, "-n", controlplane.ManagerNamespace, "get", managerDeployment, "-o", "jsonpath={.spec.template.spec.containers[0].args}")
		patch(2, fmt.Sprintf(`{"op":"remove","path":"/spec/template/spec/containers/0/args/%d"}`, strings.Count(args, `,`)))
	},
		Entry("that live for a minute, by a single replica that is restarted", 1, "1m", 3, 1, SpecTimeout(8*time.Minute)),
		Entry("that live for seconds, by two replicas, authorities too", 2, "15s", 8, 2, SpecTimeout(8*time.Minute)),
	)

	It("refuses and loses nothing while replicas are killed", func(ctx SpecContext) {
		sim.ClearJournal()
		before := failedOpen()
		// A failing verdict that meets nobody is waited for until then.
		shortTimeouts(ctx, 20*time.Second, 20*time.Second)
		l := startLoad(newNamespace(ctx, true), crashing)
		l.goesOn(ctx)
		var toNextDecision []time.Duration
		for n := range 4 {
			leader, killLeader := leaderPod(ctx), n%2 == 0
			for _, name := range managerPodNames(ctx) {
				if (name == leader) == killLeader {
					Expect(pods().Kill(name)).To(Succeed())
					break
				}
			}
			took := l.goesOn(ctx)
			if killLeader {
				toNextDecision = append(toNextDecision, took.Round(100*time.Millisecond))
			}
			allReady(ctx, n+1)
		}
		l.end()
		AddReportEntry("from the kill of a leader to the next end of a release", toNextDecision)
		unanswered := figures(l, before)
		// A failing verdict comes once. Who takes it has it; when nobody was there,
		// the batch ends as what it is: not verified.
		Expect(len(l.unheard)).To(BeNumerically("<=", unanswered))
	}, SpecTimeout(8*time.Minute))

	It("goes on while its leader hangs, and when that comes back", func(ctx SpecContext) {
		sim.ClearJournal()
		before := failedOpen()
		// A failing verdict that meets nobody is waited for until then.
		shortTimeouts(ctx, 20*time.Second, 20*time.Second)
		l := startLoad(newNamespace(ctx, true), crashing)
		l.goesOn(ctx)
		leader, restarts := leaderPod(ctx), managerRestarts(ctx)
		Expect(pods().Freeze(leader)).To(Succeed())
		took := l.goesOn(ctx)
		Expect(pods().Thaw(leader)).To(Succeed())
		allReady(ctx, restarts+1) // it ends when it finds that it leads no more
		l.goesOn(ctx)
		l.end()
		AddReportEntry("from the hang of the leader to the next end of a release", took.Round(100*time.Millisecond).String())
		unanswered := figures(l, before)
		Expect(len(l.unheard)).To(BeNumerically("<=", unanswered))
	}, SpecTimeout(5*time.Minute))

	It("has told of no error but that it leads no more", func() {
		for _, path := range managerLogs() {
			errors := slices.DeleteFunc(errorsIn(logLines(path)), func(line string) bool {
				return strings.Contains(line, `"logger":"leaderelection"`)
			})
			Expect(errors).To(BeEmpty())
		}
	})

	It("goes with its namespace, webhooks and all", func(ctx SpecContext) {
		leaveUnfinished("nobody is there to end what was in flight")
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "stopped", 2)
		eventuallyState(ctx, ns, "stopped", v1alpha1.ChangeWorkloadSuccess)
		Expect(patchDeployment(ctx, ns, "stopped", `{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":"1700000000"}}}`)).To(Succeed())
		Expect(patchTemplate(ctx, ns, "stopped", "denied")).NotTo(Succeed())
		Expect(watcher.Settle(ctx)).To(Succeed())
		Expect(watcher.Violations()).To(BeEmpty())
		watcher.Stop() // with the namespace go the rights of who still runs in it
		kubectl(ctx, "delete", "namespace", controlplane.ManagerNamespace, "--timeout=150s")
		Eventually(func() string {
			return kubectl(ctx, "get", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "name")
		}).WithContext(ctx).ShouldNot(ContainSubstring("altershield"))
		Expect(patchTemplate(ctx, ns, "stopped", "free")).To(Succeed())
		watcher = observe(cluster, time.Now())
		DeferCleanup(watcher.Stop)
	}, SpecTimeout(4*time.Minute))
})

// serve lets the pods reach a simulator at the address the sample names.
func serve(ctx context.Context, pods *kubelet.Kubelet, sim *simulator.Simulator) {
	GinkgoHelper()
	at, err := url.Parse(sim.URL())
	Expect(err).NotTo(HaveOccurred())
	const address, port = "192.0.2.10", 8080
	pods.Host(netip.AddrPortFrom(netip.MustParseAddr(address), port), at.Host)
	meta := metav1.ObjectMeta{Name: "altershield", Namespace: "altershield"}
	Expect(api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: meta.Namespace}})).To(Succeed())
	Expect(api.Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: port}}}})).To(Succeed())
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
	Expect(api.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](port)}},
	})).To(Succeed())
}

// scrape asks for the manager's metrics through their Service.
func scrape(ctx context.Context, pods *kubelet.Kubelet, token string) int {
	GinkgoHelper()
	transport := pods.Transport()
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://altershieldoperator-metrics-service."+controlplane.ManagerNamespace+".svc:8443/metrics", nil)
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := (&http.Client{Transport: transport}).Do(request)
	Expect(err).NotTo(HaveOccurred())
	Expect(response.Body.Close()).To(Succeed())
	return response.StatusCode
}

// managerPodList are the pods of the operator that are not on their way out.
func managerPodList(ctx context.Context, g Gomega) []corev1.Pod {
	GinkgoHelper()
	var list corev1.PodList
	g.Expect(api.List(ctx, &list, client.InNamespace(controlplane.ManagerNamespace), client.MatchingLabels{"control-plane": "controller-manager"})).To(Succeed())
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func managerPodNames(ctx context.Context) []string {
	GinkgoHelper()
	var names []string
	for _, p := range managerPodList(ctx, Default) {
		names = append(names, p.Name)
	}
	return names
}

// allReady waits until the pods of the operator are ready after so many restarts.
func allReady(ctx context.Context, restarts int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		n := 0
		names := []string{}
		for _, p := range managerPodList(ctx, g) {
			g.Expect(p.Status.ContainerStatuses).To(HaveLen(1))
			g.Expect(p.Status.ContainerStatuses[0].Ready).To(BeTrue())
			n += int(p.Status.ContainerStatuses[0].RestartCount)
			names = append(names, p.Name)
		}
		g.Expect(names).To(HaveLen(2))
		g.Expect(n).To(BeNumerically(">=", restarts))
	}).WithContext(ctx).Should(Succeed())
}

// managerRestarts counts the restarts of the operator's pods.
func managerRestarts(ctx context.Context) int {
	GinkgoHelper()
	n := 0
	for _, p := range managerPodList(ctx, Default) {
		for _, c := range p.Status.ContainerStatuses {
			n += int(c.RestartCount)
		}
	}
	return n
}

// onlyNewPods waits until those of an earlier rollout are gone.
func onlyNewPods(ctx context.Context) {
	GinkgoHelper()
	onlyPods(ctx, 2)
}

func onlyPods(ctx context.Context, n int) {
	GinkgoHelper()
	Eventually(func() []string {
		return strings.Fields(kubectl(ctx, "-n", controlplane.ManagerNamespace, "get", "pods", "-l", managerPods, "-o", "name"))
	}).WithContext(ctx).WithPolling(time.Second).Should(HaveLen(n))
}

// leaderPod is the pod that holds the lease.
func leaderPod(ctx context.Context) string {
	GinkgoHelper()
	var lease coordinationv1.Lease
	Expect(api.Get(ctx, types.NamespacedName{Namespace: controlplane.ManagerNamespace, Name: "altershield-operator"}, &lease)).To(Succeed())
	name, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	return name
}

// failedOpen counts the requests that the API server let through because a webhook
// that may be passed over did not answer.
func failedOpen() int {
	GinkgoHelper()
	n := 0
	for line := range strings.Lines(kubectl(context.Background(), "get", "--raw", "/metrics")) {
		if series, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && strings.HasPrefix(series, "apiserver_admission_webhook_fail_open_count{") {
			count, err := strconv.Atoi(value)
			Expect(err).NotTo(HaveOccurred())
			n += count
		}
	}
	return n
}

// load is a constant stream of releases, blocks, repairs and verdicts, and what
// came of them.
type load struct {
	ns   string
	stop context.CancelFunc
	work sync.WaitGroup

	mu sync.Mutex
	// released and repaired are releases that were admitted and succeeded,
	// denied those that a block refused, failed those that a verdict suspended.
	released, repaired, denied, failed int
	// wrong is everything that should not have happened.
	wrong []string
	// crashing says that webhooks may fail to answer: a blocked release is refused
	// then, too, but with another message, which unanswered counts.
	crashing   bool
	unanswered int
	// slowest is the longest that a release took to be admitted.
	slowest time.Duration
	// unheard are failing releases that no verdict suspended.
	unheard []string
}

func (l *load) note(count *int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.wrong = append(l.wrong, time.Now().UTC().Format("15:04:05.000 ")+err.Error())
		return
	}
	*count++
}

// goesOn waits until releases that begin from now on end, and says how long that took.
func (l *load) goesOn(ctx context.Context) time.Duration {
	GinkgoHelper()
	ended := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.released
	}
	began, before := time.Now(), ended()
	Eventually(ended).WithContext(ctx).Should(BeNumerically(">", before))
	first := time.Since(began)
	Eventually(ended).WithContext(ctx).Should(BeNumerically(">", before+3)) // there are three that release
	return first
}

const withoutServer, crashing = "without server", "crashing"

// startLoad starts it in a namespace that is enrolled. Releases whose name begins
// with "bad" are to be failed by their server; withoutServer leaves them out. In a
// load that is crashing, webhooks may fail to answer.
func startLoad(ns string, options ...string) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{ns: ns, stop: stop, crashing: slices.Contains(options, crashing)}
	loop := func(turn func(ctx context.Context, n int)) {
		l.work.Go(func() {
			defer GinkgoRecover()
			for n := 1; ctx.Err() == nil; n++ {
				turn(context.WithoutCancel(ctx), n) // what is begun is seen through
			}
		})
	}
	for i := range 3 {
		name := fmt.Sprintf("shop-%d", i)
		loop(func(ctx context.Context, n int) {
			l.note(&l.released, l.release(ctx, name, n, v1alpha1.ChangeWorkloadSuccess))
		})
	}
	loop(func(ctx context.Context, n int) { l.repair(ctx, "repaired", n) })
	if slices.Contains(options, withoutServer) {
		return l
	}
	loop(func(ctx context.Context, n int) {
		name := fmt.Sprintf("bad-%d", n)
		err := l.release(ctx, name, 1, v1alpha1.ChangeWorkloadSuspend)
		if errors.Is(err, errEndedOtherwise) {
			l.mu.Lock()
			l.unheard = append(l.unheard, name)
			l.mu.Unlock()
			return
		}
		l.note(&l.failed, err)
	})
	return l
}

// end ends the load when all that was begun has come to its end.
func (l *load) end() {
	l.stop()
	l.work.Wait()
}

var errEndedOtherwise = errors.New("ended in another state")

// release releases a Deployment, which is created the first time, and waits for
// the end of the release.
func (l *load) release(ctx context.Context, name string, n int, want v1alpha1.ChangeWorkloadStatusType) error {
	value := strconv.Itoa(n)
	began := time.Now()
	var err error
	if n == 1 {
		err = api.Create(ctx, makeDeployment(l.ns, name, 2, func(d *appsv1.Deployment) { d.Spec.Template.Labels["test"] = value }))
	} else {
		err = patchTemplate(ctx, l.ns, name, value)
	}
	l.mu.Lock()
	l.slowest = max(l.slowest, time.Since(began))
	l.mu.Unlock()
	if err != nil {
		return fmt.Errorf("release %s of %s refused: %w", value, name, err)
	}
	return l.ended(ctx, name, value, want)
}

// ended waits for the end of a Deployment's newest release.
func (l *load) ended(ctx context.Context, name, value string, want v1alpha1.ChangeWorkloadStatusType) error {
	var last string
	for began := time.Now(); time.Since(began) < 2*time.Minute; pause(ctx, 50*time.Millisecond) {
		d := &unstructured.Unstructured{}
		d.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
		var change v1alpha1.ChangeWorkload
		if err := api.Get(ctx, types.NamespacedName{Namespace: l.ns, Name: name}, d); err != nil {
			return err
		}
		template, _, err := unstructured.NestedMap(d.Object, "spec", "template")
		if err != nil {
			return err
		}
		version := workload.Version(template)
		err = api.Get(ctx, types.NamespacedName{Namespace: l.ns, Name: defense.ChangeWorkloadName(name, version)}, &change)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		last = string(change.Status.Status)
		switch {
		case err != nil || d.GetLabels()[v1alpha1.VersionLabel] != version:
		case change.Status.Status == want:
			return nil
		case change.Status.Status == v1alpha1.ChangeWorkloadSuccess || change.Status.Status == v1alpha1.ChangeWorkloadFailed:
			return fmt.Errorf("release %s of %s: %w: %s", value, name, errEndedOtherwise, last)
		}
	}
	return fmt.Errorf("release %s of %s does not end, it is %q", value, name, last)
}

// pause is between two looks at something.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// repair blocks a Deployment, has a release refused, and repairs it.
func (l *load) repair(ctx context.Context, name string, n int) {
	if n == 1 {
		l.note(&l.repaired, l.release(ctx, name, 1, v1alpha1.ChangeWorkloadSuccess))
		return
	}
	if err := patchDeployment(ctx, l.ns, name, `{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":"1700000000"}}}`); err != nil {
		l.note(&l.denied, fmt.Errorf("block of %s refused: %w", name, err))
		return
	}
	switch err := patchTemplate(ctx, l.ns, name, "denied"); {
	case err == nil:
		l.note(&l.denied, fmt.Errorf("a blocked release of %s was let through", name))
		return
	case strings.Contains(err.Error(), `admission webhook "vdeployment.kb.io" denied the request: deployment `+name+" is suspended"):
		l.note(&l.denied, nil)
	case l.crashing && strings.Contains(err.Error(), `failed calling webhook "vdeployment.kb.io"`):
		l.note(&l.unanswered, nil)
	default:
		l.note(&l.denied, fmt.Errorf("a blocked release of %s was refused, but not by the block: %w", name, err))
	}
	value := strconv.Itoa(n)
	err := patchDeployment(ctx, l.ns, name, fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`,
		v1alpha1.IgnoredSuspendLabel, value))
	if err != nil {
		l.note(&l.repaired, fmt.Errorf("repair %s of %s refused: %w", value, name, err))
		return
	}
	if err = l.ended(ctx, name, value, v1alpha1.ChangeWorkloadSuccess); err == nil {
		for began := time.Now(); ; pause(ctx, 50*time.Millisecond) {
			var d appsv1.Deployment
			if err = api.Get(ctx, types.NamespacedName{Namespace: l.ns, Name: name}, &d); err != nil || d.Labels[v1alpha1.SuspendLabel] == "" {
				break
			}
			if time.Since(began) > time.Minute {
				err = fmt.Errorf("the block of %s is not lifted by its repair", name)
				break
			}
		}
	}
	l.note(&l.repaired, err)
}
