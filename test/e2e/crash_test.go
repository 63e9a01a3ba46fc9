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

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// crasher is a proxy that lets a manager die right after one of its requests was carried out: the write is stored, and the response never
// arrives. The time between two steps is too short to hit by chance.
type crasher struct {
	server *httptest.Server
	// counts returns the name of a request, and reports whether the request counts.
	counts func(r *http.Response, namespace string) (string, bool)
	mu     sync.Mutex
	// namespace is the namespace whose requests count; dieAfter is the number of the request to die after.
	namespace string
	seen      []string
	dieAfter  int
	die       func()
	// before is called before each request is carried out. A request for which it returns an error is not carried out.
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

// intercept sets the function that is called before each request, or nil.
func (c *crasher) intercept(before func(r *http.Request) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = before
}

// newCrasher makes a proxy in front of the API server. Successful writes count.
func (w *world) newCrasher() *crasher {
	GinkgoHelper()
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM(w.cluster.CAData())).To(BeTrue())
	c := &crasher{counts: func(r *http.Response, namespace string) (string, bool) {
		method, path := r.Request.Method, r.Request.URL.Path
		return method + " " + path, method != http.MethodGet && r.StatusCode < 300 && strings.Contains(path, "/namespaces/"+namespace+"/")
	}}
	c.server = c.proxy(w.cluster.Endpoint(), &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	})
	c.server.EnableHTTP2 = true
	c.server.StartTLS()
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

// ca returns the certificate of the proxy, which it signed itself.
func (c *crasher) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
}

// isLast counts a request that was carried out, and reports whether the manager dies after it.
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

// last returns the request that the manager died after, if there were that many requests.
func (c *crasher) last() (name string, died bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dieAfter == 0 || len(c.seen) < c.dieAfter {
		return "", false
	}
	return c.seen[c.dieAfter-1], true
}

func (c *crasher) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

// dieThrice plays a story four times, each time in a namespace of its own: without a crash, and with the manager dying after the first
// request, after one in the middle, and after the last. Tests of controllers in process crash after each request; this test checks that a
// killed process does the same. It returns the number of requests of the story.
func (c *crasher) dieThrice(ctx context.Context, w *world, m *controlplane.Manager, play func(ctx context.Context, ns string)) int {
	GinkgoHelper()
	ns := w.newNamespace(ctx, true)
	c.arm(ns, 0, nil)
	play(ctx, ns)
	requests := c.count()
	var hit []string
	for _, n := range []int{1, (requests + 1) / 2, requests} {
		// Played again, a story may have fewer requests: two requests may be merged into one.
		for died := false; !died; n-- {
			Expect(n).To(BeNumerically(">", 0))
			var name string
			if name, died = c.dieOnce(ctx, w, m, n, play); died {
				hit = append(hit, fmt.Sprintf("%d of %d: %s", n, requests, name))
			}
		}
	}
	AddReportEntry("died after", strings.Join(hit, "\n"))
	return requests
}

// dieOnce plays a story with the manager dying after a request, if the story has that many requests.
func (c *crasher) dieOnce(
	ctx context.Context, w *world, m *controlplane.Manager, after int, play func(ctx context.Context, ns string),
) (name string, died bool) {
	GinkgoHelper()
	ns := w.newNamespace(ctx, true)
	dead := make(chan struct{})
	c.arm(ns, after, func() {
		defer GinkgoRecover()
		Expect(m.Kill()).To(Succeed())
		close(dead)
	})
	over, finish := context.WithCancel(ctx)
	revived := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(revived)
		select {
		case <-dead:
			Expect(m.Start(ctx)).To(Succeed())
		case <-over.Done():
		}
	}()
	play(ctx, ns)
	name, died = c.last()
	if died {
		w.kills++
		<-revived
	}
	finish()
	<-revived
	c.arm("", 0, nil)
	return name, died
}

// behindCrasher runs the world's manager behind a proxy until the end of a spec.
func (w *world) behindCrasher(ctx context.Context) (*crasher, *controlplane.Manager) {
	GinkgoHelper()
	c := w.newCrasher()
	DeferCleanup(c.close)
	m := w.install(ctx, controlplane.ManagerOptions{Name: "crashing", Endpoint: c.server.URL, EndpointCA: c.ca()})
	DeferCleanup(m.Stop)
	Expect(m.Start(ctx)).To(Succeed())
	return c, m
}

var _ = Describe("behind a proxy", Ordered, SpecPriority(longest), func() {
	w := inWorldWithoutManager()

	// Release, failure, block, override, lift and clean-up.
	It("a crash after any of the manager's writes leads to the same end state", func(ctx SpecContext) {
		c, m := w.behindCrasher(ctx)
		Expect(c.dieThrice(ctx, w, m, w.story)).To(BeNumerically(">", 20))
	})

	It("a user's fix that comes right before a rollback wins", func(ctx SpecContext) {
		proxy, _ := w.behindCrasher(ctx)
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2).With(slowly, afterAWhile))
		w.verified(ctx, ns, "web")
		var once sync.Once
		fixed := make(chan struct{})
		proxy.intercept(func(r *http.Request) error {
			if isRollback(r, ns) {
				once.Do(func() {
					defer GinkgoRecover()
					defer close(fixed)
					w.withoutHurry(ctx, ns, "web")
					Expect(w.setImage(ctx, ns, "web", "busybox:fix")).To(Succeed())
				})
			}
			return nil
		})
		Expect(w.setImage(ctx, ns, "web", "busybo")).To(Succeed())
		Eventually(fixed).WithContext(ctx).Should(BeClosed())
		w.verified(ctx, ns, "web")
		d := w.getDeployment(ctx, Default, ns, "web")
		Expect(d.Spec.Template.Spec.Containers[0].Image).To(Equal("busybox:fix"))
		Expect(d.Annotations).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
	})
})

// story is the walkthrough in short: two pods are released, failed, blocked and overridden.
func (w *world) story(ctx context.Context, ns string) {
	GinkgoHelper()
	w.create(ctx, sleeper(ns, "web").Replicas(2))
	Eventually(func(g Gomega) {
		g.Expect(w.currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
	}).WithContext(ctx).Should(Succeed())
	w.setVerdict(ctx, w.currentChange(ctx, Default, ns, "web"), "unpass")
	Eventually(func(g Gomega) {
		g.Expect(w.currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuspend))
		g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
	}).WithContext(ctx).Should(Succeed())
	Expect(w.patchDeployment(ctx, ns, "web", repair("repair"))).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(1))
		change := w.currentChange(ctx, g, ns, "web")
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(change.Status.Attempt).To(Equal(int32(1)))
		g.Expect(change.Status.PassCount).To(Equal(int32(2)))
		g.Expect(w.batchesOf(ctx, g, change)).To(HaveLen(2))
		d := w.getDeployment(ctx, g, ns, "web")
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.IgnoredSuspendLabel))
		g.Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.DefenseStatusLabel, v1alpha1.DefenseStatusProcessed))
		g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "2"))
		g.Expect(d.Annotations).To(HaveKey(v1alpha1.OverrideReportedAnnotation))
	}).WithContext(ctx).Should(Succeed())
}
