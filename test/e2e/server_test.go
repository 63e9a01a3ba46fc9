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
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
)

const (
	serverToken    = "a-token-of-the-e2e-suite"
	admissionScene = "e2e.admission"
	callbackPath   = altershield.CallbackPath
)

// inServerWorld gives an Ordered container a world of its own in which two replicas of the manager are connected to a simulator of
// AlterShield Server. Settings, outages and faults are the container's own, too.
func inServerWorld() (w *world, server func() *simulator.Simulator, managers func() []*controlplane.Manager) {
	var sim *simulator.Simulator
	var started []*controlplane.Manager
	w = inWorldWithoutManager()
	BeforeAll(func(ctx SpecContext) {
		sim = w.simulate(simulator.Options{AdmissionScene: admissionScene})
		args := append(serverArgs(sim.URL()), "--leader-elect=true")
		var urls []string
		for i := range 2 {
			m := w.install(ctx, controlplane.ManagerOptions{Name: fmt.Sprintf("defended-%d", i), Args: args})
			Expect(m.Start(ctx)).To(Succeed())
			DeferCleanup(m.Stop)
			started = append(started, m)
			urls = append(urls, m.CallbackAddress()+callbackPath)
		}
		sim.SetCallbackURLs(urls...)
	}, NodeTimeout(patience))
	AfterEach(func() {
		if sim == nil {
			return
		}
		sim.ClearScripts()
		sim.ClearFaults()
		Expect(sim.SetOutage(simulator.NoOutage)).To(Succeed())
		sim.ClearJournal()
	})
	return w, func() *simulator.Simulator { return sim }, func() []*controlplane.Manager { return started }
}

// simulate starts a simulator of AlterShield Server, until the end of the container or spec. Its journal is reported if a spec fails.
func (w *world) simulate(o simulator.Options) *simulator.Simulator {
	GinkgoHelper()
	o.Token, o.OnEntry = serverToken, w.acknowledged
	sim := simulator.New(o)
	Expect(sim.Start("127.0.0.1:0")).To(Succeed())
	DeferCleanup(sim.Shutdown)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.journal = func() string { return sim.Journal().String() }
	return sim
}

func serverArgs(url string) []string {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "token")
	Expect(os.WriteFile(file, []byte(serverToken+"\n"), 0o600)).To(Succeed())
	return []string{"--altershield-url=" + url, "--altershield-token-file=" + file, "--altershield-admission-scene=" + admissionScene}
}

// journalOf returns the journal of the order of a release.
func journalOf(sim *simulator.Simulator, change *v1alpha1.ChangeWorkload) simulator.Journal {
	return sim.Journal().Of(change.Status.OrderID)
}

func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// orderEnded waits until the order of the current release was ended.
func (w *world) orderEnded(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = w.currentChange(ctx, g, ns, name)
		g.Expect(change.Status.OrderStage).To(Equal(v1alpha1.OrderEnded))
	}).WithContext(ctx).Should(Succeed())
	return change
}

// batchStart is the place of a batch in its order, as the start of the batch reports it.
type batchStart struct {
	Number, Total int
	Last          string
	Pods          int
}

// expectWholeOrder checks that a release was reported exactly: one order, its start, each batch once, the end of the order entry, and the
// end of the order.
func expectWholeOrder(sim *simulator.Simulator, change *v1alpha1.ChangeWorkload, want []batchStart) {
	GinkgoHelper()
	journal := journalOf(sim, change)
	Expect(journal.Requests(altershield.ActionSubmitOrder)).To(HaveLen(1), journal.String())
	Expect(journal.OrderStarts(change.Status.OrderID)).To(HaveLen(1), journal.String())
	var starts []batchStart
	for _, e := range journal.BatchStarts(change.Status.OrderID) {
		var r altershield.StartBatchRequest
		Expect(e.Decode(&r)).To(Succeed())
		starts = append(starts, batchStart{r.BatchNo, r.TotalBatchNum, r.IsLastBatchTag, len(r.EffectiveTargetLocations)})
	}
	slices.SortFunc(starts, func(a, b batchStart) int { return a.Number - b.Number })
	Expect(starts).To(Equal(want), journal.String())
	finished := map[string]int{}
	for _, e := range journal.Finishes(change.Status.OrderID) {
		finished[e.Node]++
		var r altershield.FinishNodeRequest
		Expect(e.Decode(&r)).To(Succeed())
		Expect(r.Success).To(BeTrue())
		Expect(r.ChangeResultJSON).To(ContainSubstring(`"durationSeconds":`))
	}
	Expect(finished).To(HaveLen(len(want)+1), journal.String())
	Expect(finished).To(HaveEach(1), journal.String())
	ends := journal.Ends(change.Status.OrderID)
	Expect(ends).To(HaveLen(1), journal.String())
	var end altershield.EndOrderRequest
	Expect(ends[0].Decode(&end)).To(Succeed())
	Expect(end.FinishState).To(Equal(altershield.FinishSuccess))
	Expect(journal.Filter(func(e simulator.Entry) bool { return e.Kind == simulator.KindRequest && !e.Accepted() })).To(BeEmpty())
}

var oneByOne = []batchStart{{0, 5, "not_last", 1}, {1, 5, "not_last", 1}, {2, 5, "not_last", 1}, {3, 5, "not_last", 1}, {4, 5, "last", 1}}

// The replicas share the callbacks, and one of them leads.
var _ = Describe("with AlterShield Server", Ordered, SpecPriority(longest), func() {
	w, sim, managers := inServerWorld()

	It("callbacks sent twice, at once, to both replicas change nothing", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Copies: 4})
		w.create(ctx, sleeper(ns, "web").Replicas(5))
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		change := w.orderEnded(ctx, ns, "web")
		expectWholeOrder(sim(), change, oneByOne)
		Eventually(func(g Gomega) {
			for _, e := range journalOf(sim(), change).Callbacks() {
				// The replica that has received a callback refuses copies as a replay. A verdict that the API server stores too late is polled for.
				// Nothing else is refused.
				g.Expect(e.Outcome).To(Or(Equal("200"), Equal("401"), Equal("503")), e.String())
			}
		}).WithContext(ctx).Should(Succeed())
	})

	It("a rollback is made once for each request, whichever replica gets it", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web"))
		var versions []string
		for _, value := range []string{"", "second", "third"} {
			if value != "" {
				Expect(w.patchTemplate(ctx, ns, "web", value)).To(Succeed())
			}
			versions = append(versions, w.verified(ctx, ns, "web").Spec.Reversion)
		}
		Eventually(func(g Gomega) { g.Expect(w.revisionsOf(ctx, g, ns, "web")).To(HaveLen(3)) }).WithContext(ctx).Should(Succeed())
		put := func(replica int, body string, headers http.Header) (int, string) {
			GinkgoHelper()
			url := managers()[replica].CallbackAddress() + "/openapi/altershield/deployment/rollback"
			return request(ctx, http.MethodPut, url, []byte(body), headers)
		}
		of := func(name, version string) string {
			return fmt.Sprintf(`{"namespace":%q,"deploymentName":%q,"version":%q}`, ns, name, version)
		}
		sign := func(body string) http.Header { return signature(serverToken, []byte(body), time.Now()) }
		for _, test := range []struct {
			body string
			want int
			why  string
		}{
			{of("none", ""), http.StatusNotFound, "no deployment " + ns + "/none is defended"},
			{of("web", versions[2]), http.StatusConflict, "is the current one"},
			{of("web", "nonsense"), http.StatusConflict, "the history has no successful version nonsense"},
		} {
			status, body := put(0, test.body, sign(test.body))
			Expect(status).To(Equal(test.want), body)
			Expect(body).To(ContainSubstring(test.why))
		}
		status, _ := put(0, of("web", ""), nil)
		Expect(status).To(Equal(http.StatusUnauthorized))

		headers := sign(of("web", ""))
		status, body := put(0, of("web", ""), headers)
		Expect(status).To(Equal(http.StatusAccepted), body)
		Expect(body).To(ContainSubstring("is rolled back to version " + versions[1]))
		w.rolledBackTo(ctx, ns, "web", versions[1])
		By("sending the same bytes to the other replica")
		status, body = put(1, of("web", ""), headers)
		Expect(status).To(Equal(http.StatusConflict), body)
		Expect(body).To(ContainSubstring("was accepted already"))
		By("sending another request")
		Eventually(func(g Gomega) {
			status, body = put(1, of("web", versions[0]), sign(of("web", versions[0])))
			g.Expect(status).To(Equal(http.StatusAccepted), body)
		}).WithContext(ctx).Should(Succeed())
		w.rolledBackTo(ctx, ns, "web", versions[0])
		Expect(w.quarantineOf(ctx, Default, ns, "web")).To(And(HaveLen(2), HaveKey(versions[1]), HaveKey(versions[2])))
	})

	It("a verdict that arrives while the leader is away is kept", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{
			Match:   simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost},
			Verdict: altershield.VerdictFail, Delay: 3 * time.Second,
		})
		// The other replica gets all callbacks.
		sim().SetCallbackURLs(managers()[1].CallbackAddress() + callbackPath)
		w.create(ctx, sleeper(ns, "web"))
		Eventually(func(g Gomega) {
			batches := w.batchesOf(ctx, g, w.currentChange(ctx, g, ns, "web"))
			g.Expect(batches).To(HaveLen(1))
			g.Expect(batches[0].Status.Status).To(Equal(v1alpha1.ChangePodPostSubmitted))
		}).WithContext(ctx).Should(Succeed())
		Expect(managers()[0].Kill()).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(managers()[0].Start(ctx)).To(Succeed())
	})
})

// signature returns the headers of a request that the server signed.
func signature(token string, content []byte, at time.Time) http.Header {
	ts := altershield.Timestamp(at)
	h := http.Header{}
	h.Set(altershield.HeaderPlatform, altershield.DefaultPlatform)
	h.Set(altershield.HeaderTimestamp, ts)
	h.Set(altershield.HeaderSign, altershield.Sign(ts, content, token))
	return h
}

func request(ctx context.Context, method, url string, body []byte, headers http.Header) (status int, answer string) {
	GinkgoHelper()
	status, answer, err := tryRequest(ctx, method, url, body, headers)
	Expect(err).NotTo(HaveOccurred())
	return status, answer
}

func tryRequest(ctx context.Context, method, url string, body []byte, headers http.Header) (status int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	for key, values := range headers {
		req.Header[key] = values
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
}
