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
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

// crasher is a proxy that lets a manager die right after one of its requests
// was carried out: what it asked for is done, the answer never arrives. Windows
// between two steps are too short to hit by chance.
type crasher struct {
	server *httptest.Server
	// counts says what a request is called that may be the last one.
	counts func(r *http.Response, namespace string) (string, bool)
	mu     sync.Mutex
	// namespace whose requests are counted; dieAfter is the one to die after.
	namespace string
	seen      []string
	dieAfter  int
	die       func()
	// before is called with each request before it is carried out; its error
	// keeps it from being.
	before func(r *http.Request) error
}

func (c *crasher) carryOut(transport http.RoundTripper) roundTrip {
	return func(r *http.Request) (*http.Response, error) {
		c.mu.Lock()
		before := c.before
		c.mu.Unlock()
		if before != nil {
			if err := before(r); err != nil {
				return nil, err
			}
		}
		return transport.RoundTrip(r)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (t roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// intercept sets what is called before each request; nil is nothing.
func (c *crasher) intercept(before func(r *http.Request) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = before
}

// newCrasher makes a proxy before the API server; writes are counted.
func newCrasher() *crasher {
	GinkgoHelper()
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM(cluster.CAData())).To(BeTrue())
	c := &crasher{counts: func(r *http.Response, namespace string) (string, bool) {
		method, path := r.Request.Method, r.Request.URL.Path
		return method + " " + path, method != http.MethodGet && r.StatusCode < 300 && strings.Contains(path, "/namespaces/"+namespace+"/")
	}}
	c.server = c.proxy(cluster.Endpoint(), &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true})
	c.server.EnableHTTP2 = true
	c.server.StartTLS()
	return c
}

// newServerCrasher makes a proxy before AlterShield Server; all requests are
// counted.
func newServerCrasher(target string) *crasher {
	GinkgoHelper()
	c := &crasher{counts: func(r *http.Response, _ string) (string, bool) { return r.Request.URL.Path, true }}
	c.server = c.proxy(target, http.DefaultTransport)
	c.server.Start()
	return c
}

func (c *crasher) proxy(target string, transport http.RoundTripper) *httptest.Server {
	GinkgoHelper()
	to, err := url.Parse(target)
	Expect(err).NotTo(HaveOccurred())
	return httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1, // watches
		Transport:     c.carryOut(transport),
		ModifyResponse: func(r *http.Response) error {
			if c.isLast(r) {
				c.die()
				return fmt.Errorf("the manager is dead")
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
}

func (c *crasher) close() {
	c.server.CloseClientConnections()
	c.server.Close()
}

// ca is who signed the proxy's certificate.
func (c *crasher) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
}

// isLast counts a request that was carried out, and says whether it is the one
// to die after.
func (c *crasher) isLast(r *http.Response) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	name, counts := c.counts(r, c.namespace)
	if c.namespace == "" || !counts {
		return false
	}
	c.seen = append(c.seen, name)
	return len(c.seen) == c.dieAfter
}

func (c *crasher) arm(namespace string, dieAfter int, die func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.namespace, c.seen, c.dieAfter, c.die = namespace, nil, dieAfter, die
}

// last is the request the manager died after.
func (c *crasher) last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[c.dieAfter-1]
}

// dieAfterEach tells a story again and again, each time in a namespace of its
// own, with the manager dying after the first request that counts, the second,
// and so on, until the story has no more of them. It returns what it died after.
func (c *crasher) dieAfterEach(ctx context.Context, m *controlplane.Manager, tell func(ctx context.Context, ns string)) (hit []string) {
	GinkgoHelper()
	for n := 1; ; n++ {
		ns := newNamespace(ctx, true)
		dead := make(chan struct{})
		c.arm(ns, n, func() {
			defer GinkgoRecover()
			Expect(m.Kill()).To(Succeed())
			close(dead)
		})
		over, finish := context.WithCancel(ctx)
		revived := make(chan bool)
		go func() {
			defer GinkgoRecover()
			select {
			case <-dead:
				Expect(m.Start(ctx)).To(Succeed())
				revived <- true
			case <-over.Done():
				revived <- false
			}
		}()
		tell(ctx, ns)
		finish()
		died := <-revived
		if !died { // the story has fewer requests than n, late events aside
			c.arm("", 0, nil)
			AddReportEntry("died after", fmt.Sprintf("%d requests:\n%s", len(hit), strings.Join(hit, "\n")))
			return hit
		}
		hit = append(hit, c.last())
		kubectl(ctx, "delete", "namespace", ns, "--wait=false")
	}
}

// behindCrasher runs the manager behind a proxy for the time of a spec.
func behindCrasher(ctx context.Context) (*crasher, *controlplane.Manager) {
	GinkgoHelper()
	Expect(manager.Stop()).To(Succeed())
	c := newCrasher()
	crashing, err := cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root, Name: "crashing", Endpoint: c.server.URL, EndpointCA: c.ca()})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx context.Context) {
		Expect(crashing.Stop()).To(Succeed())
		c.close()
		restoreManager(ctx)
	})
	Expect(crashing.Start(ctx)).To(Succeed())
	return c, crashing
}

var _ = Describe("a crash", func() {
	// One run per write: release, failure, block, repair, lift and clean-up,
	// with the manager dying after the first write, the second, and so on.
	It("after any of the manager's writes leads to the same end state", func(ctx SpecContext) {
		c, crashing := behindCrasher(ctx)
		Expect(len(c.dieAfterEach(ctx, crashing, story))).To(BeNumerically(">", 20))
	}, SpecTimeout(15*time.Minute))

	// The same with AlterShield Server: dying after each write, and after each
	// request to the server that the server has carried out.
	DescribeTable("with AlterShield Server leads to one order per release, and loses no verdict that was acknowledged", func(ctx SpecContext, afterRequests bool) {
		shortTimeouts(ctx, 4*time.Second, 4*time.Second)
		Expect(manager.Stop()).To(Succeed())
		sim := simulator.New(simulator.Options{Token: serverToken, OnEntry: acknowledged})
		Expect(sim.Start("127.0.0.1:0")).To(Succeed())
		writes, requests := newCrasher(), newServerCrasher(sim.URL())
		crashing, err := cluster.InstallManager(ctx, controlplane.ManagerOptions{
			Root: root, Name: "crashing-defended", Endpoint: writes.server.URL, EndpointCA: writes.ca(), Args: serverArgs(requests.server.URL),
		})
		Expect(err).NotTo(HaveOccurred())
		sim.SetCallbackURLs(crashing.CallbackAddress() + callbackPath)
		DeferCleanup(func(ctx context.Context) {
			if CurrentSpecReport().Failed() {
				AddReportEntry("server journal", sim.Journal().String())
				AddReportEntry("log", tailOf(crashing.LogPath(), 100))
			}
			Expect(crashing.Stop()).To(Succeed())
			sim.Shutdown()
			writes.close()
			requests.close()
			restoreManager(ctx)
		})
		Expect(crashing.Start(ctx)).To(Succeed())
		c, least := writes, 25
		if afterRequests {
			c, least = requests, 10
		}
		hit := c.dieAfterEach(ctx, crashing, func(ctx context.Context, ns string) { serverStory(ctx, sim, ns) })
		Expect(len(hit)).To(BeNumerically(">=", least))
	},
		Entry("after any write", SpecTimeout(15*time.Minute), false),
		Entry("after any request to the server", SpecTimeout(15*time.Minute), true),
	)
})

// serverStory is a release that passes and one that the server fails.
func serverStory(ctx context.Context, sim *simulator.Simulator, ns string) {
	GinkgoHelper()
	sim.ClearScripts()
	sim.ClearJournal()
	createDeployment(ctx, ns, "web", 1)
	ended := func(g Gomega, states ...v1alpha1.ChangeWorkloadStatusType) *v1alpha1.ChangeWorkload {
		change := currentChange(ctx, g, ns, "web")
		g.Expect(states).To(ContainElement(change.Status.Status))
		batches := batchesOf(ctx, g, change)
		g.Expect(batches).To(HaveLen(1))
		g.Expect(batches[0].Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone))
		return change
	}
	first := ""
	Eventually(func(g Gomega) {
		change := ended(g, v1alpha1.ChangeWorkloadSuccess)
		first = change.Name
		// Also where its callback met a dead manager: it is polled then.
		g.Expect(messagesOf(batchesOf(ctx, g, change))).To(ConsistOf("PostFinish"))
		g.Expect(change.Status.OrderStage).To(Equal(v1alpha1.OrderEnded))
	}).WithContext(ctx).Should(Succeed())

	sim.Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Verdict: altershield.VerdictFail})
	Expect(patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = ended(g, v1alpha1.ChangeWorkloadSuccess, v1alpha1.ChangeWorkloadSuspend)
		g.Expect(change.Name).NotTo(Equal(first))
		acknowledged := journalOf(sim, change).Callbacks().Filter(func(e simulator.Entry) bool {
			return e.Callback.Request.Verdict.Verdict == altershield.VerdictFail && e.Answer != nil && e.Answer.Success
		})
		// One that was not may have been stored all the same.
		suspended := change.Status.Status == v1alpha1.ChangeWorkloadSuspend
		g.Expect(suspended || len(acknowledged) == 0).To(BeTrue(), "%d failing verdicts were acknowledged", len(acknowledged))
		_, blocked := getDeployment(ctx, g, ns, "web").Labels[v1alpha1.SuspendLabel]
		g.Expect(blocked).To(Equal(suspended))
	}).WithContext(ctx).Should(Succeed())

	orders := sim.Journal().Requests(altershield.ActionSubmitOrder).Accepted()
	Expect(orders).To(HaveLen(2), sim.Journal().String())
	Expect(orders[1].Order).To(Equal(change.Status.OrderID))
}

// story is the walkthrough in short: two pods, released, failed, blocked,
// repaired.
func story(ctx context.Context, ns string) {
	GinkgoHelper()
	createDeployment(ctx, ns, "web", 2)
	Eventually(func(g Gomega) {
		g.Expect(currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
	}).WithContext(ctx).Should(Succeed())
	setVerdict(ctx, currentChange(ctx, Default, ns, "web"), "unpass")
	Eventually(func(g Gomega) {
		g.Expect(currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend))
		g.Expect(getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
	}).WithContext(ctx).Should(Succeed())
	Expect(patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"repair"}}}}}`)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(changesIn(ctx, g, ns)).To(HaveLen(1))
		change := currentChange(ctx, g, ns, "web")
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(change.Status.Attempt).To(Equal(int32(1)))
		g.Expect(change.Status.PassCount).To(Equal(int32(2)))
		g.Expect(batchesOf(ctx, g, change)).To(HaveLen(2))
		d := getDeployment(ctx, g, ns, "web")
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		g.Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed))
		g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "2"))
		g.Expect(d.Annotations).To(HaveKey(v1alpha1.OverrideReportedAnnotation))
	}).WithContext(ctx).Should(Succeed())
}
