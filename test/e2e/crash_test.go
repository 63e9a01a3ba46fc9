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
)

// crasher is a proxy before the API server that lets a manager die right after
// one of its writes: the write is in etcd, its answer never arrives. Windows
// between two writes are too short to hit by chance.
type crasher struct {
	server *httptest.Server
	mu     sync.Mutex
	// namespace whose writes are counted; dieAfter is the one to die after.
	namespace string
	writes    []string
	dieAfter  int
	die       func()
}

func newCrasher() *crasher {
	GinkgoHelper()
	target, err := url.Parse(cluster.Endpoint())
	Expect(err).NotTo(HaveOccurred())
	roots := x509.NewCertPool()
	Expect(roots.AppendCertsFromPEM(cluster.CAData())).To(BeTrue())
	c := &crasher{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		FlushInterval: -1, // watches
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		ModifyResponse: func(r *http.Response) error {
			if c.isLast(r) {
				c.die()
				return fmt.Errorf("the manager is dead")
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	c.server = httptest.NewUnstartedServer(proxy)
	c.server.EnableHTTP2 = true
	c.server.StartTLS()
	return c
}

// ca is who signed the proxy's certificate.
func (c *crasher) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.server.Certificate().Raw})
}

// isLast counts a write that succeeded, and says whether it is the one to die
// after.
func (c *crasher) isLast(r *http.Response) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	method, path := r.Request.Method, r.Request.URL.Path
	if method == http.MethodGet || r.StatusCode >= 300 || c.namespace == "" || !strings.Contains(path, "/namespaces/"+c.namespace+"/") {
		return false
	}
	c.writes = append(c.writes, method+" "+path)
	return len(c.writes) == c.dieAfter
}

func (c *crasher) arm(namespace string, dieAfter int, die func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.namespace, c.writes, c.dieAfter, c.die = namespace, nil, dieAfter, die
}

// counted are the writes so far.
func (c *crasher) counted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.writes...)
}

var _ = Describe("a crash", func() {
	// One run per write: release, failure, block, repair, lift and clean-up,
	// with the manager dying after the first write, the second, and so on.
	It("after any of the manager's writes leads to the same end state", func(ctx SpecContext) {
		Expect(manager.Stop()).To(Succeed())
		c := newCrasher()
		crashing, err := cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root, Name: "crashing", Endpoint: c.server.URL, EndpointCA: c.ca()})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx context.Context) {
			Expect(crashing.Stop()).To(Succeed())
			c.server.CloseClientConnections()
			c.server.Close()
			var err error
			manager, err = cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root})
			Expect(err).NotTo(HaveOccurred())
			Expect(manager.Start(ctx)).To(Succeed())
		})
		Expect(crashing.Start(ctx)).To(Succeed())

		var hit []string
		for n := 1; ; n++ {
			ns := newNamespace(ctx, true)
			dead := make(chan struct{})
			c.arm(ns, n, func() {
				defer GinkgoRecover()
				Expect(crashing.Kill()).To(Succeed())
				close(dead)
			})
			over, finish := context.WithCancel(ctx)
			revived := make(chan bool)
			go func() {
				defer GinkgoRecover()
				select {
				case <-dead:
					Expect(crashing.Start(ctx)).To(Succeed())
					revived <- true
				case <-over.Done():
					revived <- false
				}
			}()
			story(ctx, ns)
			finish()
			died := <-revived
			if !died { // the story has fewer writes than n, late events aside
				c.arm("", 0, nil)
				break
			}
			hit = append(hit, c.counted()[n-1])
			kubectl(ctx, "delete", "namespace", ns, "--wait=false")
		}
		AddReportEntry("died after", fmt.Sprintf("%d writes:\n%s", len(hit), strings.Join(hit, "\n")))
		Expect(len(hit)).To(BeNumerically(">", 20))
	}, SpecTimeout(15*time.Minute))
})

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
