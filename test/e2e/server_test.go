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
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// inServerWorld gives a container, which is Ordered, a world of its own in which
// the manager is connected to a simulator of AlterShield Server; replicas beyond the
// first take part in leader election. Settings, outages and faults are the
// container's own, too.
func inServerWorld(replicas int) (w *world, server func() *simulator.Simulator, managers func() []*controlplane.Manager) {
	var sim *simulator.Simulator
	var started []*controlplane.Manager
	w = inWorldWithoutManager()
	BeforeAll(func(ctx SpecContext) {
		sim = w.simulate(simulator.Options{AdmissionScene: admissionScene})
		args := append(serverArgs(sim.URL()), "--leader-elect="+strconv.FormatBool(replicas > 1))
		var urls []string
		for i := range replicas {
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

// simulate starts a simulator of AlterShield Server, until the end of the container
// or spec. Its journal is reported where a spec fails.
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

// shortTimeouts makes verdicts be waited for that long.
func (w *world) shortTimeouts(ctx context.Context, pre, post time.Duration) {
	GinkgoHelper()
	w.setConfig(ctx, "timeouts", true, fmt.Sprintf("wait=60s,pre=%s,post=%s", pre, post))
}

// journalOf is the journal of the one order of a namespace's only release.
func journalOf(sim *simulator.Simulator, change *v1alpha1.ChangeWorkload) simulator.Journal {
	return sim.Journal().Of(change.Status.OrderID)
}

func conditionOf(conditions []metav1.Condition, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func messagesOf(batches []v1alpha1.ChangePod) []string {
	var messages []string
	for i := range batches {
		messages = append(messages, batches[i].Status.Message)
	}
	return messages
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

// batchStart is what a batch's start says of its place.
type batchStart struct {
	Number, Total int
	Last          string
	Pods          int
}

// expectWholeOrder checks that a release was reported exactly: one order, its
// start, each batch once, the end of the order's node, the end of the order.
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

var (
	oneByOne = []batchStart{{0, 5, "not_last", 1}, {1, 5, "not_last", 1}, {2, 5, "not_last", 1}, {3, 5, "not_last", 1}, {4, 5, "last", 1}}
	twoByTwo = []batchStart{{0, 3, "not_last", 2}, {1, 3, "not_last", 2}, {2, 3, "last", 1}}
)

var _ = Describe("with AlterShield Server", Ordered, SpecPriority(longest), func() {
	w, sim, _ := inServerWorld(1)

	DescribeTable("a release is reported exactly", func(ctx SpecContext, size int, want []batchStart) {
		w.setConfig(ctx, "branch", size > 1, strconv.Itoa(size))
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(5))
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		change := w.orderEnded(ctx, ns, "web")
		expectWholeOrder(sim(), change, want)
		Expect(messagesOf(w.batchesOf(ctx, Default, change))).To(HaveEach("PostFinish"))

		var order altershield.SubmitOrderRequest
		Expect(journalOf(sim(), change).Requests(altershield.ActionSubmitOrder)[0].Decode(&order)).To(Succeed())
		var params map[string]any
		Expect(json.Unmarshal([]byte(order.ChangeParamJSON), &params)).To(Succeed())
		Expect(order.Creator).To(Equal(w.getDeployment(ctx, Default, ns, "web").Annotations[v1alpha1.ReleasedByAnnotation]))
		Expect(order.Creator).NotTo(BeElementOf("", "unknown", "altershield-operator"))
		Expect(params).To(And(HaveKeyWithValue("namespace", ns), HaveKeyWithValue("workload", "web"),
			HaveKeyWithValue("version", change.Spec.Reversion), HaveKeyWithValue("images", ConsistOf("busybox")), HaveKey("cluster")))

		By("releasing another image: the old one is named, and the record of the first goes")
		Expect(w.setImage(ctx, ns, "web", "busybox:2")).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		second := w.orderEnded(ctx, ns, "web")
		Expect(second.Status.OrderID).NotTo(Equal(change.Status.OrderID))
		expectWholeOrder(sim(), second, want)
		Expect(journalOf(sim(), second).Requests(altershield.ActionSubmitOrder)[0].Decode(&order)).To(Succeed())
		Expect(order.ChangeParamJSON).To(And(ContainSubstring(`"images":["busybox:2"]`), ContainSubstring(`"oldImages":["busybox"]`)))
		Eventually(func(g Gomega) { g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(1)) }).WithContext(ctx).Should(Succeed())

		By("going back to the first: an order of its own")
		Expect(w.setImage(ctx, ns, "web", "busybox")).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		third := w.orderEnded(ctx, ns, "web")
		Expect(third.Status.OrderID).NotTo(Equal(change.Status.OrderID))
		expectWholeOrder(sim(), third, want)
	},
		Entry("one by one", 1, oneByOne),
		Entry("two by two", 2, twoByTwo),
	)

	It("passing checks whose callbacks are all lost reach the same end by polling", func(ctx SpecContext) {
		w.shortTimeouts(ctx, 4*time.Second, 4*time.Second)
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Drop: true})
		w.create(ctx, sleeper(ns, "web").Replicas(5))
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		change := w.orderEnded(ctx, ns, "web")
		expectWholeOrder(sim(), change, oneByOne)
		Expect(messagesOf(w.batchesOf(ctx, Default, change))).To(HaveEach("PostFinish"))
		Expect(journalOf(sim(), change).Polls(change.Status.OrderID)).NotTo(BeEmpty())
	})

	DescribeTable("failing checks whose callbacks are all lost end as silence says", func(ctx SpecContext, silence bool, want v1alpha1.ChangeWorkloadStatusType) {
		w.shortTimeouts(ctx, 2*time.Second, 2*time.Second)
		w.setConfig(ctx, "silence", silence, "")
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Verdict: altershield.VerdictFail, Drop: true})
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		change := w.eventuallyState(ctx, ns, "web", want)
		Eventually(func(g Gomega) {
			batches := w.batchesOf(ctx, g, change)
			g.Expect(messagesOf(batches)).To(And(HaveLen(2), HaveEach("PostTimeout")))
			for i := range batches {
				g.Expect(conditionOf(batches[i].Status.Conditions, v1alpha1.ConditionChecked).Reason).To(Equal(v1alpha1.ReasonPolledNotPassed))
			}
			g.Expect(w.eventsOf(ctx, g, ns, "web")).To(ContainElement("PostTimeout"))
			_, blocked := w.getDeployment(ctx, g, ns, "web").Labels[v1alpha1.SuspendLabel]
			g.Expect(blocked).To(Equal(silence))
		}).WithContext(ctx).Should(Succeed())
	},
		Entry("passed, visibly", false, v1alpha1.ChangeWorkloadSuccess),
		Entry("failed", true, v1alpha1.ChangeWorkloadSuspend),
	)

	It("a failing verdict in the middle of a rollout blocks, names pod and message, and a repair is let through", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3))
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Times: 1,
			Verdict: altershield.VerdictFail, Rules: []altershield.Rule{{Name: "error rate", Msg: "5xx above 1 %", Verdict: altershield.VerdictFail}}})
		Expect(w.patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(change.Status.DefenseCheckFailPods).To(HaveLen(1))
		Expect(change.Status.DefenseCheckFailPods[0].Message).To(ContainSubstring("error rate: 5xx above 1 %"))
		Expect(change.Status.DefenseCheckFailPods[0].Pod).NotTo(BeEmpty())
		Expect(w.patchTemplate(ctx, ns, "web", "worse")).To(MatchError(ContainSubstring("deployment web is suspended")))

		Expect(w.patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"good"}}}}}`)).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Eventually(func(g Gomega) {
			g.Expect(w.changesIn(ctx, g, ns)).To(HaveLen(1))
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		ends := journalOf(sim(), change).Ends(change.Status.OrderID)
		Expect(ends).To(HaveLen(1))
		var end altershield.EndOrderRequest
		Expect(ends[0].Decode(&end)).To(Succeed())
		Expect(end.FinishState).To(Equal(altershield.FinishCancel))
	})

	DescribeTable("a failing verdict on the order itself suspends, until it is corrected", func(ctx SpecContext, stage altershield.Stage, field string) {
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckOrder, Stage: stage}, Verdict: altershield.VerdictInconclusive, Msg: "freeze"})
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionVerified)).To(And(
			HaveField("Reason", v1alpha1.ReasonOrderCheckFailed), HaveField("Message", ContainSubstring("freeze"))))
		Eventually(func(g Gomega) {
			g.Expect(w.getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(w.currentChange(ctx, g, ns, "web").Status.PassCount).To(Equal(int32(2)))
		}).WithContext(ctx).Should(Succeed())
		w.kubectl(ctx, "-n", ns, "patch", "cwl", change.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"`+field+`":{"verdict":"pass"}}}`)
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(w.getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
	},
		Entry("PRE", altershield.StagePre, "orderPreVerdict"),
		Entry("POST", altershield.StagePost, "orderPostVerdict"),
	)

	It("callbacks that are faster than the answer to their submission count", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Early: true})
		sim().Fault(simulator.Fault{Delay: time.Second, Action: altershield.ActionStartBatch})
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePre}, Early: true, Verdict: altershield.VerdictFail, Times: 1})
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Eventually(func(g Gomega) {
			change = w.currentChange(ctx, g, ns, "web")
			g.Expect(change.Status.FailCount).To(Equal(int32(1)))
			g.Expect(change.Status.PassCount).To(Equal(int32(1)))
			g.Expect(change.Status.UnclaimedVerdicts).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		Expect(journalOf(sim(), change).Polls(change.Status.OrderID)).To(BeEmpty())
	})

})

var _ = Describe("with an AlterShield Server that fails", Ordered, SpecPriority(longest), func() {
	w, sim, _ := inServerWorld(1)

	DescribeTable("a server that is down for the whole release holds nothing up", func(ctx SpecContext, outage simulator.Outage) {
		w.shortTimeouts(ctx, 3*time.Second, 3*time.Second)
		Expect(sim().SetOutage(outage)).To(Succeed())
		began := time.Now()
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(3))
		w.create(ctx, sleeper(ns, "api").Replicas(3))
		for _, name := range []string{"web", "api"} {
			change := w.eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuccess)
			Expect(change.Status.OrderStage).To(Equal(v1alpha1.OrderSubmitting))
			accepted := conditionOf(change.Status.Conditions, v1alpha1.ConditionOrderAccepted)
			Expect(accepted.Reason).To(Equal(v1alpha1.ReasonUnreachable), accepted.Message)
			Expect(messagesOf(w.batchesOf(ctx, Default, change))).To(HaveEach("PreFailed"))
			Eventually(func(g Gomega) {
				g.Expect(w.eventsOf(ctx, g, ns, name)).To(ContainElements("ReleaseUndefended", "PreFailed"))
			}).WithContext(ctx).Should(Succeed())
		}
		most := 40 + 2*int(time.Since(began).Seconds())
		Expect(len(sim().Journal())).To(BeNumerically("<", most), "a hot loop:\n%s", sim().Journal())
	},
		Entry("refusing connections", simulator.Refuse),
		Entry("answering 500", simulator.HTTP500),
		Entry("answering HTML", simulator.HTML),
		Entry("resetting connections", simulator.Reset),
		Entry("answering nothing", simulator.Hang),
	)

	It("a server that comes back in the middle gets the order and the batches from then on", func(ctx SpecContext) {
		w.shortTimeouts(ctx, 2*time.Second, 10*time.Second)
		Expect(sim().SetOutage(simulator.Refuse)).To(Succeed())
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web").Replicas(2))
		Eventually(func(g Gomega) {
			g.Expect(messagesOf(w.batchesOf(ctx, g, w.currentChange(ctx, g, ns, "web")))).To(ConsistOf("PreFailed", "PreFailed"))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionOrderAccepted).Reason).To(Equal(v1alpha1.ReasonUnreachable))
		}).WithContext(ctx).Should(Succeed())
		Expect(sim().SetOutage(simulator.NoOutage)).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	})

	It("an order that the server forgot is submitted again", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(ns, "web"))
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		w.orderEnded(ctx, ns, "web")
		sim().Forget()
		w.kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=2")
		Eventually(func(g Gomega) {
			g.Expect(messagesOf(w.batchesOf(ctx, g, change))).To(ConsistOf("PostFinish", "PostFinish"))
		}).WithContext(ctx).Should(Succeed())
		Expect(journalOf(sim(), change).Requests(altershield.ActionSubmitOrder)).To(HaveLen(2))
	})

	It("a refused order fails the release, and the next one starts afresh", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		sim().Fault(simulator.Fault{Action: altershield.ActionSubmitOrder, Code: altershield.CodeIllegalArgument, Msg: "change scene not found", Times: 1})
		w.create(ctx, sleeper(ns, "web"))
		change := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadFailed)
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionOrderAccepted).Message).To(ContainSubstring("change scene not found"))
		Expect(w.patchTemplate(ctx, ns, "web", "next")).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	})

	It("a platform the server does not know keeps the release waiting, and says so", func(ctx SpecContext) {
		w.shortTimeouts(ctx, time.Second, time.Second)
		ns := w.newNamespace(ctx, true)
		w.leaveUnfinished("the order is denied, which only a human can mend")
		sim().Fault(simulator.Fault{Action: altershield.ActionSubmitOrder, Code: altershield.CodePermissionDenied, Msg: altershield.MsgPermissionDenied})
		w.create(ctx, sleeper(ns, "web"))
		w.rolledOut(ctx, ns, "web")
		var change *v1alpha1.ChangeWorkload
		Eventually(func(g Gomega) {
			change = w.currentChange(ctx, g, ns, "web")
			g.Expect(change.Status.OrderStage).To(Equal(v1alpha1.OrderDenied))
			g.Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionOrderAccepted).Reason).To(Equal(v1alpha1.ReasonPermissionDenied))
		}).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(w.currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadInit))
		}).WithContext(ctx).Should(Succeed())
		// The second one is the last try at the deadline; then it is tried once a minute. Releases of other
		// specs that went on unverified may be submitted meanwhile.
		Expect(len(journalOf(sim(), change).Requests(altershield.ActionSubmitOrder))).To(BeNumerically("<=", 2))
	})

})

var _ = Describe("with AlterShield Server, at the edges", Ordered, SpecPriority(longest), func() {
	w, sim, managers := inServerWorld(1)

	DescribeTable("an order is ended once when its release ends before it does", func(ctx SpecContext, end func(ctx context.Context, ns string)) {
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost, Location: regexp.MustCompile("^web-")}, Never: true, Times: 1})
		w.create(ctx, sleeper(ns, "web"))
		var change *v1alpha1.ChangeWorkload
		Eventually(func(g Gomega) {
			change = w.currentChange(ctx, g, ns, "web")
			batches := w.batchesOf(ctx, g, change)
			g.Expect(batches).To(HaveLen(1))
			g.Expect(batches[0].Status.Status).To(Equal(v1alpha1.ChangePodPostSubmitted))
		}).WithContext(ctx).Should(Succeed())
		end(ctx, ns)
		Eventually(func(g Gomega) {
			ends := journalOf(sim(), change).Ends(change.Status.OrderID)
			g.Expect(ends).To(HaveLen(1))
			g.Expect(string(ends[0].Body)).To(ContainSubstring(`"CANCEL"`))
		}).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(journalOf(sim(), change).Ends(change.Status.OrderID)).To(HaveLen(1))
		}).WithContext(ctx).Should(Succeed())
	},
		Entry("replaced", func(ctx context.Context, ns string) { Expect(w.patchTemplate(ctx, ns, "web", "next")).To(Succeed()) }),
		Entry("deleted", func(ctx context.Context, ns string) { w.kubectl(ctx, "-n", ns, "delete", "deployment", "web") }),
		Entry("opted out", func(ctx context.Context, ns string) {
			w.kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
		}),
		Entry("its namespace un-enrolled", func(ctx context.Context, ns string) {
			w.kubectl(ctx, "label", "namespace", ns, v1alpha1.EnrolledLabel+"-")
		}),
		Entry("its record deleted", func(ctx context.Context, ns string) { w.kubectl(ctx, "-n", ns, "delete", "cwl", "--all") }),
	)

	It("orders are of the tenant and the phase that their namespace names when they are made", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, false)
		annotate := func(annotations ...string) {
			GinkgoHelper()
			w.kubectl(ctx, append([]string{"annotate", "namespace", ns, "--overwrite"}, annotations...)...)
		}
		expectOrder := func(change *v1alpha1.ChangeWorkload, tenant, phase string) {
			GinkgoHelper()
			journal := journalOf(sim(), change)
			var order altershield.SubmitOrderRequest
			Expect(journal.Requests(altershield.ActionSubmitOrder)).To(HaveLen(1), journal.String())
			Expect(journal.Requests(altershield.ActionSubmitOrder)[0].Decode(&order)).To(Succeed())
			Expect(order.ChangePhases).To(Equal([]string{phase}))
			asked := 0
			for _, e := range journal.Filter(func(e simulator.Entry) bool { return e.Kind == simulator.KindRequest }) {
				var base altershield.Base
				Expect(e.Decode(&base)).To(Succeed())
				Expect(base.TenantCode).To(Equal(tenant), e.String())
				asked++
			}
			Expect(asked).To(BeNumerically(">=", 5), "order, batch, their ends: %s", journal)
		}
		annotate(v1alpha1.TenantAnnotation+"=team-a", v1alpha1.PhaseAnnotation+"="+altershield.PhasePre)
		w.enrolNamespace(ctx, ns)
		By("changing both in the middle of a release")
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePre}, Delay: time.Second})
		w.create(ctx, sleeper(ns, "web"))
		Eventually(func(g Gomega) {
			g.Expect(w.currentChange(ctx, g, ns, "web").Status.OrderID).NotTo(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		annotate(v1alpha1.TenantAnnotation+"=team-b", v1alpha1.PhaseAnnotation+"=somewhen")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		expectOrder(w.orderEnded(ctx, ns, "web"), "team-a", altershield.PhasePre)
		By("telling of a phase that there is none of: the flag's applies")
		Eventually(func(g Gomega) {
			refused := conditionOf(w.currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionOverridesAccepted)
			g.Expect(refused.Message).To(And(ContainSubstring(v1alpha1.PhaseAnnotation), ContainSubstring(`"somewhen"`)))
			g.Expect(refused.Status).To(Equal(metav1.ConditionFalse))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		expectOrder(w.orderEnded(ctx, ns, "web"), "team-b", altershield.PhaseProd)
		By("a namespace that names neither")
		other := w.newNamespace(ctx, true)
		w.create(ctx, sleeper(other, "web"))
		w.eventuallyState(ctx, other, "web", v1alpha1.ChangeWorkloadSuccess)
		expectOrder(w.orderEnded(ctx, other, "web"), altershield.DefaultTenant, altershield.PhaseProd)
	})

	Describe("the callback address", func() {
		It("answers liveTest to anybody, and lists suspended deployments to who signs", func(ctx SpecContext) {
			ns := w.newNamespace(ctx, true)
			w.create(ctx, sleeper(ns, "web"))
			w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
			first := w.currentChange(ctx, Default, ns, "web").Spec.Reversion
			sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch}, Verdict: altershield.VerdictFail})
			Expect(w.patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
			bad := w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)

			address := managers()[0].CallbackAddress()
			status, body := request(ctx, http.MethodPost, address+"/openapi/altershield/liveTest", nil, nil)
			Expect(status).To(Equal(http.StatusOK))
			Expect(body).To(MatchJSON(`{"code":0,"message":"Hello world"}`))

			url := address + "/openapi/altershield/suspend/deployment?namespace=" + ns
			status, _ = request(ctx, http.MethodGet, url, nil, nil)
			Expect(status).To(Equal(http.StatusUnauthorized))
			var list struct {
				Code        int
				Deployments []struct {
					DeploymentName, Namespace, NowVersion, SuccessVersion string
					HasSuccessVersion                                     bool
					SuspendedAt                                           int64
					FailedPods                                            []string
				}
			}
			Eventually(func(g Gomega) {
				status, body = request(ctx, http.MethodGet, url, nil, signature(serverToken, []byte(`{"namespace":"`+ns+`"}`), time.Now()))
				g.Expect(status).To(Equal(http.StatusOK))
				g.Expect(json.Unmarshal([]byte(body), &list)).To(Succeed())
				g.Expect(list.Deployments).To(HaveLen(1))
			}).WithContext(ctx).Should(Succeed())
			d := list.Deployments[0]
			Expect(d.DeploymentName).To(Equal("web"))
			Expect(d.NowVersion).To(Equal(bad.Spec.Reversion))
			Expect(d.SuccessVersion).To(Equal(first))
			Expect(d.HasSuccessVersion).To(BeTrue())
			Expect(d.SuspendedAt).To(BeNumerically("~", time.Now().Unix(), patience.Seconds()))
			Expect(d.FailedPods).To(HaveLen(1))
		})

		It("refuses what is not the server's, and stays as it is", func(ctx SpecContext) {
			ns := w.newNamespace(ctx, true)
			sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Never: true})
			w.create(ctx, sleeper(ns, "web"))
			var change *v1alpha1.ChangeWorkload
			var batch v1alpha1.ChangePod
			Eventually(func(g Gomega) {
				change = w.currentChange(ctx, g, ns, "web")
				batches := w.batchesOf(ctx, g, change)
				g.Expect(batches).To(HaveLen(1))
				batch = batches[0]
				g.Expect(batch.Status.Status).To(Equal(v1alpha1.ChangePodPostSubmitted))
			}).WithContext(ctx).Should(Succeed())
			callback := func(verdict string) []byte {
				return fmt.Appendf(nil, `{"changeCheckType":"CHANGE_BATCH","callbackRequest":{"nodeId":%q,"changeSceneKey":%q,"bizExecOrderId":%q,"verdict":{"verdict":%q,"allFinish":true},"defenseStageEnum":"POST"}}`,
					batch.Status.ChangePodID, altershield.DefaultScene, change.Status.OrderID, verdict)
			}
			url := managers()[0].CallbackAddress() + callbackPath
			w.restful(ctx, ns) // what the release has still to tell
			writes := w.managerWrites(ns)
			pid := managers()[0].PID()
			rss := memoryOf(pid)
			now := time.Now()

			By("sending forgeries")
			fail := callback("fail")
			for name, headers := range map[string]http.Header{
				"no signature":  {},
				"another token": signature("another-token-of-16-bytes", fail, now),
				"too old":       signature(serverToken, fail, now.Add(-6*time.Minute)),
				"too new":       signature(serverToken, fail, now.Add(6*time.Minute)),
				"altered":       signature(serverToken, callback("pass"), now),
			} {
				headers.Set("Content-Type", "application/json;UTF-8")
				status, body := request(ctx, http.MethodPost, url, fail, headers)
				Expect(status).To(Equal(http.StatusUnauthorized), name)
				Expect(body).To(MatchJSON(`{"success":false,"retry":false,"msg":"refused"}`), name)
			}

			By("sending bodies of 10 MB, and none at all slowly")
			large := bytes.Repeat([]byte("a"), 10<<20)
			for range 20 {
				// Refused before it is read: the connection may be closed while it is sent.
				if status, _, err := tryRequest(ctx, http.MethodPost, url, large, signature(serverToken, large, now)); err == nil {
					Expect(status).To(Equal(http.StatusRequestEntityTooLarge))
				}
			}
			Expect(memoryOf(pid)-rss).To(BeNumerically("<", 64<<10), "kB more memory")
			Expect(w.managerWrites(ns)).To(Equal(writes))

			By("sending the real thing, and replaying it")
			headers := signature(serverToken, fail, now)
			headers.Set("Content-Type", "application/json;UTF-8")
			status, body := request(ctx, http.MethodPost, url, fail, headers)
			Expect(status).To(Equal(http.StatusOK), body)
			w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
			status, _ = request(ctx, http.MethodPost, url, fail, headers)
			Expect(status).To(Equal(http.StatusUnauthorized))
		})
	})

	Describe("the admission check", func() {
		It("denies a version the server does not let pass, with its words, and asks nothing on a dry run", func(ctx SpecContext) {
			w.setConfig(ctx, "admission", true, "2900ms") // as long as it may be
			ns := w.newNamespace(ctx, true)
			w.create(ctx, sleeper(ns, "web"))
			w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
			w.orderEnded(ctx, ns, "web")
			asked := func() int { return len(sim().Journal().Requests(altershield.ActionSubmitAndStart)) }
			before := asked()
			Expect(before).To(BeNumerically(">", 0))
			w.kubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2", "--dry-run=server")
			w.kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=2")
			Expect(asked()).To(Equal(before))
			Eventually(func(g Gomega) { // what is failed from now on is the next release
				g.Expect(messagesOf(w.batchesOf(ctx, g, w.currentChange(ctx, g, ns, "web")))).To(And(HaveLen(2), HaveEach("PostFinish")))
			}).WithContext(ctx).Should(Succeed())
			sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Verdict: altershield.VerdictFail, Msg: "change freeze until Monday", URL: "http://altershield.example/freeze"})
			out, err := w.tryKubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2")
			Expect(err).To(HaveOccurred())
			Expect(out).To(And(ContainSubstring(`admission webhook "mdeployment.kb.io" denied the request`), ContainSubstring("change freeze until Monday"), ContainSubstring("http://altershield.example/freeze")))
		})

		It("lets pass when the server does not answer, unless silence fails", func(ctx SpecContext) {
			w.setConfig(ctx, "admission", true, "1s")
			ns := w.newNamespace(ctx, true)
			w.shortTimeouts(ctx, time.Second, time.Second)
			w.create(ctx, sleeper(ns, "web"))
			w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
			sim().Fault(simulator.Fault{Action: altershield.ActionSubmitAndStart, Outage: simulator.Hang})
			out := w.kubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2")
			Expect(out).To(ContainSubstring("Warning:"))
			w.setConfig(ctx, "silence", true, "")
			_, err := w.tryKubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:3")
			Expect(err).To(HaveOccurred())
		})
	})
})

var _ = Describe("with AlterShield Server and two replicas", Ordered, SpecPriority(longest), func() {
	w, sim, managers := inServerWorld(2)

	It("callbacks sent twice, at once, to both replicas change nothing", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Copies: 4})
		w.create(ctx, sleeper(ns, "web").Replicas(5))
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		change := w.orderEnded(ctx, ns, "web")
		expectWholeOrder(sim(), change, oneByOne)
		Eventually(func(g Gomega) {
			for _, e := range journalOf(sim(), change).Callbacks() {
				// A copy of what is under way, or done, is refused as a replay by the
				// replica that has seen it. One that the API server is too slow to store in
				// the time that the server waits is polled for. Nothing else is refused.
				g.Expect(e.Outcome).To(Or(Equal("200"), Equal("401"), Equal("503")), e.String())
			}
		}).WithContext(ctx).Should(Succeed())
	})

	It("a verdict that arrives while the leader is away is kept", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Verdict: altershield.VerdictFail, Delay: 3 * time.Second})
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

// signature are the headers of a request the server signed.
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

// memoryOf is the resident memory of a process in kB.
func memoryOf(pid int) int {
	GinkgoHelper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			Expect(err).NotTo(HaveOccurred())
			return kb
		}
	}
	Fail("no VmRSS")
	return 0
}
