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

package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
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
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	mutatingConfiguration   = "altershieldoperator-mutating-webhook-configuration"
	validatingConfiguration = "altershieldoperator-validating-webhook-configuration"
)

var configurations = []string{
	"mutatingwebhookconfiguration/" + mutatingConfiguration, "validatingwebhookconfiguration/" + validatingConfiguration,
}

// The specs in which managers end while they write.
const (
	upgraded        = "is upgraded and taken back with releases in flight"
	rollingRestarts = "refuses and loses nothing in rolling restarts"
	singleReplica   = "that live for a minute, by a single replica that is restarted"
	replicasKilled  = "refuses and loses nothing while replicas are killed"
	leaderPaused    = "goes on while its leader is paused, and when the leader comes back"
)

// Each run of .ci/run takes the next third of the soak.
const first, second, third = "turn1", "turn2", "turn3"

// soak has the specs that take minutes: upgrade, removal, and a load during restarts of replicas, renewals of certificates, and kills.
func soak() {
	BeforeAll(func(ctx SpecContext) {
		ready(ctx)
		observe(time.Now())
		DeferCleanup(func() { watcher.Stop() })
	}, NodeTimeout(5*time.Minute))

	JustAfterEach(expectInvariants, NodeTimeout(2*time.Minute))
	judgeGaps(map[string][]string{
		upgraded:        {lostHistory, unknownWriter},
		rollingRestarts: {unknownWriter},
		singleReplica:   {unknownWriter},
		replicasKilled:  {unknownWriter},
		leaderPaused:    {unknownWriter},
	})

	// There is no earlier release. The upgrade begins with kinds that lack the fields added since, and with pods of another image.
	It(upgraded, Label(first), func(ctx SpecContext) {
		older := func() {
			kubectl(ctx, "apply", "-f", filepath.Join(root, "test", "node", "testdata", "older-kinds.yaml"))
			kubectl(ctx, "-n", operatorNamespace, "set", "image", operator, "manager="+operatorImage+":v0.0.9")
			installed(ctx)
		}
		older()
		onlyPods(ctx, 2)
		fields := func() string {
			return kubectl(ctx, "get", "crd", "changeworkloads.app.ops.cloud.alipay.com",
				"-o", "jsonpath={.spec.versions[*].schema.openAPIV3Schema.properties.status.properties}")
		}
		Expect(fields()).NotTo(ContainSubstring(`"startTime"`))
		before := failedOpen()
		l := startLoad(newNamespace(ctx, "soak"), withoutServer)
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
		onlyPods(ctx, 2)
	}, SpecTimeout(6*time.Minute))

	It("uses every right its roles give", Label(first), func(ctx SpecContext) {
		By("starting where the API server streams no lists")
		kubectl(ctx, "-n", operatorNamespace, "set", "env", operator, "KUBE_FEATURE_WatchListClient=false")
		installed(ctx)
		onlyPods(ctx, 2)

		By("losing certificates and webhooks, with the right to create webhooks again")
		restore := filepath.Join(root, "config", "samples", "restore")
		kubectl(ctx, "apply", "-k", restore)
		kubectl(ctx, "-n", operatorNamespace, "patch", "secret", "altershieldoperator-webhook-server-cert", "--type=merge",
			"-p", `{"data":{"tls.crt":"eA=="}}`)
		kubectl(ctx, append([]string{"delete"}, configurations...)...)
		Eventually(func() error {
			_, err := tryKubectl(ctx, append([]string{"get"}, configurations...)...)
			return err
		}).WithContext(ctx).WithTimeout(90 * time.Second).WithPolling(time.Second).Should(Succeed())

		By("refusing metrics to a client without the right")
		token := strings.TrimSpace(kubectl(ctx, "-n", "default", "create", "token", "default"))
		Expect(scrape(ctx, token)).To(Equal(http.StatusForbidden))

		By("releasing a version, another, and the first again")
		ns := newNamespace(ctx, "soak")
		create(ctx, plain(ns, "web", 2))
		for _, value := range []string{"a", "b", "a"} {
			Expect(patchTemplate(ctx, ns, "web", value)).To(Succeed())
			eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		}

		By("keeping one version only")
		setConfig(ctx, "history", true, "1")
		Expect(patchTemplate(ctx, ns, "web", "c")).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Eventually(func() int {
			return strings.Count(kubectl(ctx, "-n", ns, "get", "controllerrevisions", "-o", "name"), "\n")
		}).WithContext(ctx).Should(Equal(1))

		By("changing the size of batches in the middle of a release")
		create(ctx, plain(ns, "late", 3).MinReadySeconds(3))
		Eventually(func(g Gomega) { current(ctx, g, ns, "late") }).WithContext(ctx).Should(Succeed())
		setConfig(ctx, "branch", true, "2")
		eventuallyState(ctx, ns, "late", v1alpha1.ChangeWorkloadSuccess)

		By("rolling back")
		create(ctx, plain(ns, "broken", 3).Annotation(v1alpha1.SettingAnnotationPrefix+"rollback", "3s"))
		good := eventuallyState(ctx, ns, "broken", v1alpha1.ChangeWorkloadSuccess)
		kubectl(ctx, "-n", ns, "set", "image", "deployment/broken", "*=busybo")
		Eventually(func(g Gomega) {
			change := current(ctx, g, ns, "broken")
			g.Expect(change.Spec.Reversion).To(Equal(good.Spec.Reversion))
			g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).Should(Succeed())

		By("evicting the pod that keeps a StatefulSet from a fix")
		stuckStatefulSet(&stage{Gomega: Default, ctx: ctx, ns: newNamespace(ctx, "soak")})

		By("losing a record without its batches, and a Deployment without its records")
		lost := current(ctx, Default, ns, "web")
		kubectl(ctx, "-n", ns, "delete", "changeworkload", lost.Name, "--cascade=orphan")
		Eventually(func(g Gomega) {
			again := current(ctx, g, ns, "web")
			g.Expect(again.UID).NotTo(Equal(lost.UID))
			g.Expect(again.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).Should(Succeed())
		kubectl(ctx, "-n", ns, "delete", "deployment", "late", "--cascade=orphan")
		create(ctx, plain(ns, "late", 3))
		Eventually(func(g Gomega) {
			change := current(ctx, g, ns, "late")
			g.Expect(change.OwnerReferences).To(HaveLen(1))
			g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		}).WithContext(ctx).Should(Succeed())

		By("calling an endpoint that does not exist")
		endpoint := filepath.Join(root, "config", "samples", "endpoints", "prometheus.yaml")
		kubectl(ctx, "apply", "-f", endpoint)
		Eventually(func() string {
			return kubectl(ctx, "get", "-f", endpoint, "-o", "jsonpath={.status.conditions[*].type}")
		}).WithContext(ctx).Should(ContainSubstring(v1alpha1.ConditionReachable))
		kubectl(ctx, "delete", "-f", endpoint)

		By("comparing the audit log with the roles")
		var everywhere, restorer rbacv1.ClusterRole
		var own rbacv1.Role
		Expect(api.Get(ctx, types.NamespacedName{Name: "altershieldoperator-webhook-restorer-role"}, &restorer)).To(Succeed())
		Expect(api.Get(ctx, types.NamespacedName{Name: "altershieldoperator-manager-role"}, &everywhere)).To(Succeed())
		Expect(api.Get(ctx, types.NamespacedName{Namespace: operatorNamespace, Name: "altershieldoperator-manager-role"}, &own)).To(Succeed())
		Eventually(func(g Gomega) { // the log is written a little later
			unused := unusedRights(g, slices.Concat(everywhere.Rules, restorer.Rules, own.Rules))
			// With a probe of a Service, or with a server, only: this installation has none.
			g.Expect(unused).To(Or(BeEmpty(), HaveEach(BeElementOf("get  services", "patch  pods/status"))), "rights nothing uses")
		}).WithContext(ctx).WithTimeout(15 * time.Second).WithPolling(time.Second).Should(Succeed())
		kubectl(ctx, "delete", "-k", restore)
		kubectl(ctx, "-n", operatorNamespace, "set", "env", operator, "KUBE_FEATURE_WatchListClient-")
		installed(ctx)
	}, SpecTimeout(15*time.Minute))

	It("has logged no error so far", Label(first), expectCleanLogs)

	It("is removed and installed again with releases in flight", Label(second), func(ctx SpecContext) {
		ns := newNamespace(ctx, "soak")
		create(ctx, plain(ns, "free", 2))
		create(ctx, plain(ns, "stopped", 2))
		eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
		eventuallyState(ctx, ns, "stopped", v1alpha1.ChangeWorkloadSuccess)
		kubectl(ctx, "-n", ns, "label", "deployment", "stopped", v1alpha1.SuspendLabel+"=1700000000")
		Expect(patchTemplate(ctx, ns, "free", "in-flight")).To(Succeed())

		expectInvariants(ctx)
		expectNoGaps()
		watcher.Stop() // the kinds that it watches are removed
		began := time.Now()
		kubectl(ctx, "delete", "-f", filepath.Join(root, "quick-start.yaml"), "--timeout=120s")
		for _, kind := range []string{
			"namespaces", "crds", "clusterroles", "clusterrolebindings", "mutatingwebhookconfigurations", "validatingwebhookconfigurations",
		} {
			left := kubectl(ctx, "get", kind, "-o", "name")
			Expect(left).NotTo(Or(ContainSubstring("altershieldoperator"), ContainSubstring("alipay.com")))
		}
		AddReportEntry("removed after", time.Since(began).Round(time.Second).String())
		By("leaving Deployments as they are, and free")
		rolledOut(ctx, ns, "free")
		Expect(patchTemplate(ctx, ns, "free", "not-defended")).To(Succeed())
		Expect(patchTemplate(ctx, ns, "stopped", "not-defended")).To(Succeed())
		rolledOut(ctx, ns, "free")
		rolledOut(ctx, ns, "stopped")

		// The managers had lost their rights and kinds before they ended.
		removed := time.Now()
		kubectl(ctx, "apply", "-f", filepath.Join(root, "quick-start.yaml"))
		observe(removed)
		installed(ctx)
		By("enforcing a block that is still there")
		Eventually(func() bool {
			out, _ := tryKubectl(ctx, "-n", ns, "rollout", "restart", "deployment/stopped") // it must be denied
			return strings.Contains(out, "deployment stopped is suspended")
		}).WithContext(ctx).Should(BeTrue())
		kubectl(ctx, "-n", ns, "label", "deployment", "stopped", v1alpha1.IgnoredSuspendLabel+"=true")
		Expect(patchTemplate(ctx, ns, "stopped", "repaired")).To(Succeed())
		eventuallyState(ctx, ns, "stopped", v1alpha1.ChangeWorkloadSuccess)
		Expect(patchTemplate(ctx, ns, "free", "defended")).To(Succeed())
		eventuallyState(ctx, ns, "free", v1alpha1.ChangeWorkloadSuccess)
	}, SpecTimeout(5*time.Minute))

	Context("connected to a server and under load,", underLoad)
}

// serverToken is the token that operator and server share.
const serverToken = "0123456789abcdef0123456789abcdef"

// underLoad has the specs that a constant stream of releases and verdicts must not notice.
func underLoad() {
	var sim *simulator.Simulator

	BeforeAll(func(ctx SpecContext) {
		sim = simulator.New(simulator.Options{
			Token: serverToken, OnEntry: acknowledged, CallbackTransport: serviceTransport(ctx),
			CallbackURLs: []string{"http://altershieldoperator-callback-service." + operatorNamespace + ".svc/openapi/altershield/callback"},
		})
		// The sample has this address. There is no DNS, so the operator gets the address as a host alias.
		const address, host, port = "172.30.0.1", "altershield.altershield.svc", "8080"
		Expect(cluster.InNetwork(func() error { return sim.Start(net.JoinHostPort(address, port)) })).To(Succeed())
		DeferCleanup(sim.Shutdown)
		kubectl(ctx, "-n", operatorNamespace, "create", "secret", "generic", "altershield-token", "--from-literal=token="+serverToken)
		kubectl(ctx, "-n", operatorNamespace, "patch", operator, "-p",
			fmt.Sprintf(`{"spec":{"template":{"spec":{"hostAliases":[{"ip":%q,"hostnames":[%q]}]}}}}`, address, host))
		kubectl(ctx, "apply", "-k", filepath.Join(root, "config", "samples", "server"))
		installed(ctx)
		onlyPods(ctx, 2) // one of the others led until its end
		sim.Script(simulator.Script{Delay: 200 * time.Millisecond, CallbackDelay: 100 * time.Millisecond})
		sim.Script(simulator.Script{
			Match:   simulator.Match{Location: regexp.MustCompile(`^bad-`), CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
			Verdict: altershield.VerdictFail, Delay: 200 * time.Millisecond,
		})
	}, NodeTimeout(5*time.Minute))

	// figures reports a load, checks it, and returns the number of callbacks without an answer.
	figures := func(l *load, before int) (unanswered int) {
		GinkgoHelper()
		callbacks := sim.Journal().Callbacks()
		for _, e := range callbacks {
			if e.Answer == nil || !e.Answer.Success {
				unanswered++
				GinkgoWriter.Println("callback:", e)
			}
		}
		AddReportEntry("figures", fmt.Sprintf("%d releases, %d repairs, %d failing releases suspended (%d not), "+
			"%d blocked releases denied, %d refused without an answer, slowest admission %s; "+
			"%d callbacks, %d of them without an answer; %d admissions passed without their webhook",
			l.released, l.repaired, l.failed, len(l.undelivered), l.denied, l.unanswered, l.slowest.Round(time.Millisecond),
			len(callbacks), unanswered, failedOpen()-before))
		Expect(l.wrong).To(BeEmpty())
		Expect(min(l.released, l.repaired, l.denied, l.failed)).To(BeNumerically(">", 0))
		return unanswered
	}

	// The configuration of a kubelet may limit the back-off to a second. Then pods are hardly ever seen in CrashLoopBackOff.
	It("rolls back what crashes where containers are restarted after a second", Label(second), func(ctx SpecContext) {
		const node = "node-3"
		config := filepath.Join(cluster.Dir, node, "kubelet.yaml")
		usual, err := os.ReadFile(config)
		Expect(err).NotTo(HaveOccurred())
		restart := func(ctx context.Context, text string) {
			GinkgoHelper()
			Expect(os.WriteFile(config, []byte(text), 0o600)).To(Succeed())
			Expect(output(cluster.On(ctx, node, "pkill", "-x", "kubelet"))).Error().NotTo(HaveOccurred())
		}
		restart(ctx, string(usual)+"crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n")
		DeferCleanup(func(ctx SpecContext) {
			restart(ctx, string(usual))
			ready(ctx)
		}, NodeTimeout(3*time.Minute))
		good := manifest{kind: "Deployment", replicas: 3, script: serves8080, ready: true, node: node,
			settings: map[string]string{"rollback": "20s"}}
		var plays sync.WaitGroup
		for name, script := range map[string]string{"at-start": "exit 1", "served": "httpd -p 8080; sleep 2; exit 1"} {
			s := &stage{Gomega: Default, ctx: ctx, ns: newNamespace(ctx, "quick-"+name)}
			plays.Go(func() {
				defer GinkgoRecover()
				s.apply(good)
				before := s.becomes(v1alpha1.ChangeWorkloadSuccess, 4*time.Minute)
				released := time.Now()
				s.apply(good.with(script))
				var restarts int32
				s.soon("restarts without the usual back-off", 2*time.Minute, func(g Gomega) {
					var pods corev1.PodList
					g.Expect(api.List(ctx, &pods, client.InNamespace(s.ns))).To(Succeed())
					for _, p := range pods.Items {
						for _, c := range p.Status.ContainerStatuses {
							restarts = max(restarts, c.RestartCount)
						}
					}
					g.Expect(restarts).To(BeNumerically(">=", 3))
				})
				took := time.Since(released).Round(time.Second)
				s.restored(released, before, "a crash loop")
				AddReportEntry(name, fmt.Sprintf("%d restarts after %s, restored after %s", restarts, took, time.Since(released).Round(time.Second)))
			})
		}
		plays.Wait()
	}, SpecTimeout(10*time.Minute))

	It(rollingRestarts, Label(second), func(ctx SpecContext) {
		sim.ClearJournal()
		before := failedOpen()
		l := startLoad(newNamespace(ctx, "soak"))
		for range 2 {
			kubectl(ctx, "-n", operatorNamespace, "rollout", "restart", operator)
			installed(ctx)
			onlyPods(ctx, 2)
		}
		l.end()
		Expect(figures(l, before)).To(BeZero(), "callbacks without an answer")
		Expect(l.undelivered).To(BeEmpty())
		Expect(failedOpen()-before).To(BeZero(), "admissions without the webhook")
	}, SpecTimeout(8*time.Minute))

	DescribeTable("refuses and loses nothing while certificates are renewed", Label(third), func(
		ctx SpecContext, replicas int, validity string, certificates, authorities int,
	) {
		sim.ClearJournal()
		patch := func(replicas int, args string) {
			kubectl(ctx, "-n", operatorNamespace, "patch", operator, "--type=json", "-p",
				fmt.Sprintf(`[{"op":"replace","path":"/spec/replicas","value":%d},%s]`, replicas, args))
			installed(ctx)
			onlyPods(ctx, replicas)
		}
		patch(replicas,
			fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--webhook-cert-validity=%s"}`, validity))
		// The existing certificate would do for months.
		kubectl(ctx, "-n", operatorNamespace, "delete", "secret", "altershieldoperator-webhook-server-cert")
		seen, issuers := map[string]bool{}, map[string]bool{}
		look := func(g Gomega) {
			var secret corev1.Secret
			key := types.NamespacedName{Namespace: operatorNamespace, Name: "altershieldoperator-webhook-server-cert"}
			g.Expect(api.Get(ctx, key, &secret)).To(Succeed())
			block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
			g.Expect(block).NotTo(BeNil())
			leaf, err := x509.ParseCertificate(block.Bytes)
			g.Expect(err).NotTo(HaveOccurred())
			seen[leaf.SerialNumber.String()], issuers[leaf.Issuer.CommonName] = true, true
		}
		Eventually(look).WithContext(ctx).Should(Succeed())
		before := failedOpen()
		l := startLoad(newNamespace(ctx, "soak"))
		l.goesOn(ctx)
		if replicas == 1 {
			kubectl(ctx, "-n", operatorNamespace, "rollout", "restart", operator)
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
		Expect(figures(l, before)).To(BeZero(), "callbacks without an answer")
		Expect(l.undelivered).To(BeEmpty())
		Expect(failedOpen()-before).To(BeZero(), "admissions without the webhook")
		args := kubectl(ctx, "-n", operatorNamespace, "get", operator, "-o", "jsonpath={.spec.template.spec.containers[0].args}")
		patch(2, fmt.Sprintf(`{"op":"remove","path":"/spec/template/spec/containers/0/args/%d"}`, strings.Count(args, `,`)))
	},
		Entry(singleReplica, 1, "1m", 3, 1, SpecTimeout(8*time.Minute)),
		Entry("that live for seconds, by two replicas, authorities too", 2, "15s", 8, 2, SpecTimeout(8*time.Minute)),
	)

	It(replicasKilled, Label(second), func(ctx SpecContext) {
		sim.ClearJournal()
		before := failedOpen()
		// This long the operator waits for a failing verdict that no replica received.
		setConfig(ctx, "timeouts", true, "wait=60s,pre=20s,post=20s")
		l := startLoad(newNamespace(ctx, "soak"), crashing)
		l.goesOn(ctx)
		var toNextDecision []time.Duration
		for n := range 4 {
			leading, killLeader := leader(ctx), n%2 == 0
			for _, name := range podNames(ctx) {
				if (name == leading) == killLeader {
					task(ctx, name, "kill", "-s", "SIGKILL")
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
		// The server sends a failing verdict once. If no replica receives it, the batch ends unverified.
		Expect(len(l.undelivered)).To(BeNumerically("<=", unanswered))
	}, SpecTimeout(8*time.Minute))

	It(leaderPaused, Label(third), func(ctx SpecContext) {
		sim.ClearJournal()
		before := failedOpen()
		// This long the operator waits for a failing verdict that no replica received.
		setConfig(ctx, "timeouts", true, "wait=60s,pre=20s,post=20s")
		l := startLoad(newNamespace(ctx, "soak"), crashing)
		l.goesOn(ctx)
		leading, restarts := leader(ctx), restartsOfOperator(ctx)
		task(ctx, leading, "pause")
		took := l.goesOn(ctx)
		task(ctx, leading, "resume")
		allReady(ctx, restarts+1) // it ends when it finds that it lost its lease
		l.goesOn(ctx)
		l.end()
		AddReportEntry("from the pause of the leader to the next end of a release", took.Round(100*time.Millisecond).String())
		unanswered := figures(l, before)
		Expect(len(l.undelivered)).To(BeNumerically("<=", unanswered))
	}, SpecTimeout(5*time.Minute))

	// Requests reach a killed or paused replica until its kubelet reports it. They fail, requests of a manager as well, and are retried.
	It("has logged no error except lost leases and webhooks without an answer", Label(second, third), func() {
		for _, path := range cluster.Logs(operatorNamespace) {
			errors := slices.DeleteFunc(errorsIn(logLines(path)), func(line string) bool {
				return strings.Contains(line, `"logger":"leaderelection"`) ||
					strings.Contains(line, `"msg":"Reconciler error"`) &&
						strings.Contains(line, `failed calling webhook \"vdeployment.kb.io\": failed to call webhook: `)
			})
			Expect(errors).To(BeEmpty())
		}
	})

	It("goes with its namespace, webhooks and all", Label(third), func(ctx SpecContext) {
		ns := newNamespace(ctx, "soak")
		create(ctx, plain(ns, "stopped", 2))
		eventuallyState(ctx, ns, "stopped", v1alpha1.ChangeWorkloadSuccess)
		Expect(patchDeployment(ctx, ns, "stopped", `{"metadata":{"labels":{"`+v1alpha1.SuspendLabel+`":"1700000000"}}}`)).To(Succeed())
		Expect(patchTemplate(ctx, ns, "stopped", "denied")).NotTo(Succeed())

		By("logging that applied webhook configurations have no owner, since this API server guards owners")
		said := func() (logs []string) {
			for _, path := range cluster.Logs(operatorNamespace) {
				if strings.Contains(path, "_"+leader(ctx)+"_") {
					logs = append(logs, logLines(path)...)
				}
			}
			return logs
		}
		Eventually(said).WithContext(ctx).Should(
			ContainElement(ContainSubstring("the namespace cannot be made an owner of the webhook configurations")))

		By("getting the right that it asks for")
		kubectl(ctx, "create", "clusterrole", "soak-owner", "--verb=delete",
			"--resource=mutatingwebhookconfigurations,validatingwebhookconfigurations",
			"--resource-name="+mutatingConfiguration, "--resource-name="+validatingConfiguration)
		kubectl(ctx, "create", "clusterrolebinding", "soak-owner", "--clusterrole=soak-owner", "--user="+operatorUser)
		kubectl(ctx, "-n", operatorNamespace, "rollout", "restart", operator) // it tries again each hour, or when it leads again
		installed(ctx)
		for _, configuration := range configurations {
			Eventually(func() string {
				return kubectl(ctx, "get", configuration, "-o", "jsonpath={.metadata.ownerReferences[*].kind}/{.metadata.ownerReferences[*].name}")
			}).WithContext(ctx).Should(Equal("Namespace/"+operatorNamespace), configuration)
		}

		By("being deleted")
		expectInvariants(ctx)
		expectNoGaps()
		watcher.Stop() // without the namespace, managers that still run have no rights
		kubectl(ctx, "delete", "namespace", operatorNamespace, "--timeout=150s")
		Eventually(func() string {
			return kubectl(ctx, "get", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "name")
		}).WithContext(ctx).ShouldNot(ContainSubstring("altershield"))
		Expect(patchTemplate(ctx, ns, "stopped", "free")).To(Succeed())
		kubectl(ctx, "delete", "clusterrole/soak-owner", "clusterrolebinding/soak-owner")
		observe(time.Now())

		By("being installed again, for the chart to adopt")
		kubectl(ctx, "apply", "-f", filepath.Join(root, "quick-start.yaml"))
		installed(ctx)
	}, SpecTimeout(6*time.Minute))
}

// expectCleanLogs checks that no manager has logged an error so far.
func expectCleanLogs() {
	GinkgoHelper()
	for _, path := range cluster.Logs(operatorNamespace) {
		Expect(errorsIn(logLines(path))).To(BeEmpty(), "errors in the log of a manager")
	}
}

// allReady waits until the pods of the operator are ready after so many restarts.
func allReady(ctx context.Context, restarts int) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		n := 0
		names := []string{}
		for _, p := range operatorPods(ctx, g) {
			g.Expect(p.Status.ContainerStatuses).To(HaveLen(1))
			g.Expect(p.Status.ContainerStatuses[0].Ready).To(BeTrue())
			n += int(p.Status.ContainerStatuses[0].RestartCount)
			names = append(names, p.Name)
		}
		g.Expect(names).To(HaveLen(2))
		g.Expect(n).To(BeNumerically(">=", restarts))
	}).WithContext(ctx).Should(Succeed())
}

// restartsOfOperator counts the restarts of the operator's pods.
func restartsOfOperator(ctx context.Context) int {
	GinkgoHelper()
	n := 0
	for _, p := range operatorPods(ctx, Default) {
		for _, c := range p.Status.ContainerStatuses {
			n += int(c.RestartCount)
		}
	}
	return n
}

// onlyPods waits until the operator has only n pods: the pods of an earlier rollout are gone.
func onlyPods(ctx context.Context, n int) {
	GinkgoHelper()
	Eventually(func() []string {
		return strings.Fields(kubectl(ctx, "-n", operatorNamespace, "get", "pods", "-l", "control-plane=controller-manager", "-o", "name"))
	}).WithContext(ctx).WithPolling(time.Second).Should(HaveLen(n))
}

// failedOpen counts the requests that the API server let through because a webhook with failurePolicy Ignore did not answer.
func failedOpen() int {
	GinkgoHelper()
	n := 0
	for line := range strings.Lines(kubectl(context.Background(), "get", "--raw", "/metrics")) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if ok && strings.HasPrefix(series, "apiserver_admission_webhook_fail_open_count{") {
			count, err := strconv.Atoi(value)
			Expect(err).NotTo(HaveOccurred())
			n += count
		}
	}
	return n
}

// load is a constant stream of releases, blocks, override releases and verdicts, and its results.
type load struct {
	ns   string
	stop context.CancelFunc
	work sync.WaitGroup

	mu sync.Mutex
	// released and repaired count releases that succeeded, denied counts releases that a block denied, failed counts releases that a verdict
	// suspended.
	released, repaired, denied, failed int
	// wrong lists everything that should not have happened.
	wrong []string
	// crashing reports whether webhooks may fail to answer. A blocked release is refused then, too, but with another message. unanswered
	// counts these refusals.
	crashing   bool
	unanswered int
	// slowest is the longest time of an admission.
	slowest time.Duration
	// undelivered are failing releases that no verdict suspended.
	undelivered []string
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

// goesOn waits until releases that begin from now on end, and returns how long the first of them took.
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

// startLoad starts a load in an enrolled namespace. The server fails releases whose name begins with "bad"; withoutServer leaves them out.
// With crashing, webhooks may fail to answer.
func startLoad(ns string, options ...string) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{ns: ns, stop: stop, crashing: slices.Contains(options, crashing)}
	loop := func(turn func(ctx context.Context, n int)) {
		l.work.Go(func() {
			defer GinkgoRecover()
			for n := 1; ctx.Err() == nil; n++ {
				turn(context.WithoutCancel(ctx), n) // a turn that has begun is finished
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
			l.undelivered = append(l.undelivered, name)
			l.mu.Unlock()
			return
		}
		l.note(&l.failed, err)
	})
	return l
}

// end ends the load when everything that has begun has ended.
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
		err = api.Create(ctx, plain(l.ns, name, 2).TemplateLabel("test", value).Obj())
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
		err = api.Get(ctx, types.NamespacedName{Namespace: l.ns, Name: record.ChangeWorkloadName(name, version)}, &change)
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

// repair blocks a Deployment, has a release refused, and releases an override.
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
		l.note(&l.denied, fmt.Errorf("a blocked release of %s was refused for another reason than the block: %w", name, err))
	}
	value := strconv.Itoa(n)
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`,
		v1alpha1.IgnoredSuspendLabel, value)
	err := patchDeployment(ctx, l.ns, name, patch)
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

func create(ctx context.Context, d *wrappers.DeploymentWrapper) {
	GinkgoHelper()
	Expect(api.Create(ctx, d.Obj())).To(Succeed())
}

func patchDeployment(ctx context.Context, ns, name, patch string) error {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	return api.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// patchTemplate releases a Deployment by a label of its pods.
func patchTemplate(ctx context.Context, ns, name, value string) error {
	return patchDeployment(ctx, ns, name, fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"test":%q}}}}}`, value))
}

// rolledOut waits until the rollout of a Deployment is complete.
func rolledOut(ctx context.Context, ns, name string) {
	GinkgoHelper()
	kubectl(ctx, "-n", ns, "rollout", "status", "deployment/"+name, "--timeout=180s")
}

// setConfig changes a setting until the end of the spec.
func setConfig(ctx context.Context, name string, enable bool, content string) {
	GinkgoHelper()
	spec := func(enable bool, content string) string {
		return fmt.Sprintf(`{"spec":{"enable":%t,"content":%q}}`, enable, content)
	}
	var before v1alpha1.OpsConfigInfo
	Expect(api.Get(ctx, types.NamespacedName{Namespace: operatorNamespace, Name: name}, &before)).To(Succeed())
	patch := func(ctx context.Context, patch string) {
		kubectl(ctx, "-n", operatorNamespace, "patch", "opsconfiginfo", name, "--type=merge", "-p", patch)
		Eventually(func(g Gomega) {
			var o v1alpha1.OpsConfigInfo
			g.Expect(api.Get(ctx, types.NamespacedName{Namespace: operatorNamespace, Name: name}, &o)).To(Succeed())
			accepted := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionAccepted)
			g.Expect(accepted).NotTo(BeNil())
			g.Expect(accepted.ObservedGeneration).To(Equal(o.Generation))
			g.Expect(accepted.Status).To(Equal(metav1.ConditionTrue))
		}).WithContext(ctx).Should(Succeed())
	}
	patch(ctx, spec(enable, content))
	DeferCleanup(func(ctx SpecContext) { patch(ctx, spec(before.Spec.Enable, before.Spec.Content)) }, NodeTimeout(2*time.Minute))
}

// task runs a ctr task command for the process of a pod of the operator.
func task(ctx context.Context, name string, args ...string) {
	GinkgoHelper()
	p := pod(ctx, operatorNamespace, name)
	id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
	args = slices.Concat([]string{"ctr", "-n", "k8s.io", "task", args[0]}, args[1:], []string{id})
	// On a busy machine the kernel may fail to freeze the processes.
	Eventually(func() error {
		_, err := output(cluster.On(ctx, p.Spec.NodeName, args...))
		return err
	}).WithContext(ctx).Should(Succeed())
}

// serviceTransport reaches Services by their names, from the first node.
func serviceTransport(ctx context.Context) *http.Transport {
	GinkgoHelper()
	var list corev1.ServiceList
	Expect(api.List(ctx, &list, client.InNamespace(operatorNamespace))).To(Succeed())
	addresses := map[string]string{}
	for _, s := range list.Items {
		addresses[s.Name+"."+s.Namespace+".svc"] = s.Spec.ClusterIP
	}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return cluster.Dial(ctx, network, net.JoinHostPort(addresses[host], port))
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
}

// scrape asks for the operator's metrics through their Service, and returns the status of the response.
func scrape(ctx context.Context, token string) int {
	GinkgoHelper()
	url := "https://altershieldoperator-metrics-service." + operatorNamespace + ".svc:8443/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	Expect(err).NotTo(HaveOccurred())
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := (&http.Client{Transport: serviceTransport(ctx)}).Do(request)
	Expect(err).NotTo(HaveOccurred())
	Expect(response.Body.Close()).To(Succeed())
	return response.StatusCode
}

func podNames(ctx context.Context) []string {
	GinkgoHelper()
	var names []string
	for _, p := range operatorPods(ctx, Default) {
		names = append(names, p.Name)
	}
	return names
}

// errorsIn returns the errors of the operator among the lines of a manager's log.
func errorsIn(lines []string) []string {
	stopped := slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, `"msg":"Stopping and waiting for `) })
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return !strings.Contains(line, `"level":"error"`) ||
			strings.Contains(line, "error received after stop sequence was engaged") ||
			// another replica was faster
			strings.Contains(line, "Failed to update lease") && strings.Contains(line, "the object has been modified") ||
			strings.Contains(line, "Error initially creating lease lock") && strings.Contains(line, "already exists") ||
			// the API server of a busy machine took longer than a callback may
			strings.Contains(line, "store a verdict; it is polled for instead") && strings.Contains(line, "context deadline exceeded") ||
			// the replica was paused during the call
			strings.Contains(line, "maintain the webhooks' certificates; trying again") && strings.Contains(line, "context deadline exceeded") ||
			stopped && strings.Contains(line, `context canceled"`)
	})
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
