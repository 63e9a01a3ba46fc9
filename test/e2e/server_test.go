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

// withServer runs the manager connected to a simulator of AlterShield Server
// for the specs of a container; replicas beyond the first take part in leader
// election. The stand-alone manager is back afterwards.
func withServer(replicas int) (server func() *simulator.Simulator, managers func() []*controlplane.Manager) {
	var sim *simulator.Simulator
	var started []*controlplane.Manager
	BeforeAll(func(ctx SpecContext) {
		Expect(manager.Stop()).To(Succeed())
		sim = simulator.New(simulator.Options{Token: serverToken, AdmissionScene: admissionScene, OnEntry: acknowledged})
		Expect(sim.Start("127.0.0.1:0")).To(Succeed())
		DeferCleanup(sim.Shutdown)
		args := append(serverArgs(sim.URL()), "--leader-elect="+strconv.FormatBool(replicas > 1))
		var urls []string
		for i := range replicas {
			m, err := cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root, Name: fmt.Sprintf("defended-%d-%d", replicas, i), Args: args})
			Expect(err).NotTo(HaveOccurred())
			Expect(m.Start(ctx)).To(Succeed())
			started = append(started, m)
			urls = append(urls, m.CallbackAddress()+callbackPath)
			logs[m.LogPath()] = true
		}
		sim.SetCallbackURLs(urls...)
		DeferCleanup(restoreManager)
		DeferCleanup(func() {
			for _, m := range started {
				Expect(m.Stop()).To(Succeed())
			}
		})
	})
	AfterEach(func() {
		if CurrentSpecReport().Failed() {
			AddReportEntry("server journal", sim.Journal().String())
			for _, m := range started {
				AddReportEntry("log", tailOf(m.LogPath(), 60))
			}
		}
		sim.ClearScripts()
		sim.ClearFaults()
		Expect(sim.SetOutage(simulator.NoOutage)).To(Succeed())
		sim.ClearJournal()
	})
	return func() *simulator.Simulator { return sim }, func() []*controlplane.Manager { return started }
}

func serverArgs(url string) []string {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "token")
	Expect(os.WriteFile(file, []byte(serverToken+"\n"), 0o600)).To(Succeed())
	return []string{"--altershield-url=" + url, "--altershield-token-file=" + file, "--altershield-admission-scene=" + admissionScene}
}

func restoreManager(ctx context.Context) {
	GinkgoHelper()
	var err error
	manager, err = cluster.InstallManager(ctx, controlplane.ManagerOptions{Root: root})
	Expect(err).NotTo(HaveOccurred())
	Expect(manager.Start(ctx)).To(Succeed())
}

// shortTimeouts makes verdicts be waited for that long.
func shortTimeouts(ctx context.Context, pre, post time.Duration) {
	GinkgoHelper()
	setConfig(ctx, "timeouts", true, fmt.Sprintf("wait=60s,pre=%s,post=%s", pre, post))
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
func orderEnded(ctx context.Context, ns, name string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = currentChange(ctx, g, ns, name)
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

var _ = Describe("with AlterShield Server", Ordered, func() {
	sim, managers := withServer(1)

	DescribeTable("a release is reported exactly", func(ctx SpecContext, size int, want []batchStart) {
		setConfig(ctx, "branch", size > 1, strconv.Itoa(size))
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 5)
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		change := orderEnded(ctx, ns, "web")
		expectWholeOrder(sim(), change, want)
		Expect(messagesOf(batchesOf(ctx, Default, change))).To(HaveEach("PostFinish"))

		var order altershield.SubmitOrderRequest
		Expect(journalOf(sim(), change).Requests(altershield.ActionSubmitOrder)[0].Decode(&order)).To(Succeed())
		var params map[string]any
		Expect(json.Unmarshal([]byte(order.ChangeParamJSON), &params)).To(Succeed())
		Expect(order.Creator).To(Equal(getDeployment(ctx, Default, ns, "web").Annotations[v1alpha1.ReleasedByAnnotation]))
		Expect(order.Creator).NotTo(BeElementOf("", "unknown", "altershield-operator"))
		Expect(params).To(And(HaveKeyWithValue("namespace", ns), HaveKeyWithValue("workload", "web"),
			HaveKeyWithValue("version", change.Spec.Reversion), HaveKeyWithValue("images", ConsistOf("busybox")), HaveKey("cluster")))

		By("releasing another image: the old one is named, and the record of the first goes")
		Expect(patchDeployment(ctx, ns, "web", `{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybox:2"}]}}}}`)).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		second := orderEnded(ctx, ns, "web")
		Expect(second.Status.OrderID).NotTo(Equal(change.Status.OrderID))
		expectWholeOrder(sim(), second, want)
		Expect(journalOf(sim(), second).Requests(altershield.ActionSubmitOrder)[0].Decode(&order)).To(Succeed())
		Expect(order.ChangeParamJSON).To(And(ContainSubstring(`"images":["busybox:2"]`), ContainSubstring(`"oldImages":["busybox"]`)))
		Eventually(func(g Gomega) { g.Expect(changesIn(ctx, g, ns)).To(HaveLen(1)) }).WithContext(ctx).Should(Succeed())

		By("going back to the first: an order of its own")
		Expect(patchDeployment(ctx, ns, "web", `{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybox"}]}}}}`)).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		third := orderEnded(ctx, ns, "web")
		Expect(third.Status.OrderID).NotTo(Equal(change.Status.OrderID))
		expectWholeOrder(sim(), third, want)
	},
		Entry("one by one", 1, oneByOne),
		Entry("two by two", 2, twoByTwo),
	)

	It("passing checks whose callbacks are all lost reach the same end by polling", func(ctx SpecContext) {
		shortTimeouts(ctx, 4*time.Second, 4*time.Second)
		ns := newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Drop: true})
		createDeployment(ctx, ns, "web", 5)
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		change := orderEnded(ctx, ns, "web")
		expectWholeOrder(sim(), change, oneByOne)
		Expect(messagesOf(batchesOf(ctx, Default, change))).To(HaveEach("PostFinish"))
		Expect(journalOf(sim(), change).Polls(change.Status.OrderID)).NotTo(BeEmpty())
	})

	DescribeTable("failing checks whose callbacks are all lost end as silence says", func(ctx SpecContext, silence bool, want v1alpha1.ChangeWorkloadStatusType) {
		shortTimeouts(ctx, 2*time.Second, 2*time.Second)
		setConfig(ctx, "silence", silence, "")
		ns := newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Verdict: altershield.VerdictFail, Drop: true})
		createDeployment(ctx, ns, "web", 2)
		change := eventuallyState(ctx, ns, "web", want)
		Eventually(func(g Gomega) {
			batches := batchesOf(ctx, g, change)
			g.Expect(messagesOf(batches)).To(And(HaveLen(2), HaveEach("PostTimeout")))
			for i := range batches {
				g.Expect(conditionOf(batches[i].Status.Conditions, v1alpha1.ConditionChecked).Reason).To(Equal(v1alpha1.ReasonPolledNotPassed))
			}
			g.Expect(eventsOf(ctx, g, ns, "web")).To(ContainElement("PostTimeout"))
			_, blocked := getDeployment(ctx, g, ns, "web").Labels[v1alpha1.SuspendLabel]
			g.Expect(blocked).To(Equal(silence))
		}).WithContext(ctx).Should(Succeed())
	},
		Entry("passed, visibly", false, v1alpha1.ChangeWorkloadSuccess),
		Entry("failed", true, v1alpha1.ChangeWorkloadSuspend),
	)

	It("a failing verdict in the middle of a rollout blocks, names pod and message, and a repair is let through", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 3)
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Times: 1,
			Verdict: altershield.VerdictFail, Rules: []altershield.Rule{{Name: "error rate", Msg: "5xx above 1 %", Verdict: altershield.VerdictFail}}})
		Expect(patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
		change := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(change.Status.DefenseCheckFailPods).To(HaveLen(1))
		Expect(change.Status.DefenseCheckFailPods[0].Message).To(ContainSubstring("error rate: 5xx above 1 %"))
		Expect(change.Status.DefenseCheckFailPods[0].Pod).NotTo(BeEmpty())
		Expect(patchTemplate(ctx, ns, "web", "worse")).To(MatchError(ContainSubstring("deployment web is suspended")))

		Expect(patchDeployment(ctx, ns, "web", `{"metadata":{"labels":{"`+v1alpha1.IgnoredSuspendLabel+`":"true"}},"spec":{"template":{"metadata":{"labels":{"test":"good"}}}}}`)).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Eventually(func(g Gomega) {
			g.Expect(changesIn(ctx, g, ns)).To(HaveLen(1))
			g.Expect(getDeployment(ctx, g, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
		}).WithContext(ctx).Should(Succeed())
		ends := journalOf(sim(), change).Ends(change.Status.OrderID)
		Expect(ends).To(HaveLen(1))
		var end altershield.EndOrderRequest
		Expect(ends[0].Decode(&end)).To(Succeed())
		Expect(end.FinishState).To(Equal(altershield.FinishCancel))
	})

	DescribeTable("a failing verdict on the order itself suspends, until it is corrected", func(ctx SpecContext, stage altershield.Stage, field string) {
		ns := newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckOrder, Stage: stage}, Verdict: altershield.VerdictInconclusive, Msg: "freeze"})
		createDeployment(ctx, ns, "web", 2)
		change := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionVerified)).To(And(
			HaveField("Reason", v1alpha1.ReasonOrderCheckFailed), HaveField("Message", ContainSubstring("freeze"))))
		Eventually(func(g Gomega) {
			g.Expect(getDeployment(ctx, g, ns, "web").Labels).To(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(currentChange(ctx, g, ns, "web").Status.PassCount).To(Equal(int32(2)))
		}).WithContext(ctx).Should(Succeed())
		kubectl(ctx, "-n", ns, "patch", "cwl", change.Name, "--subresource=status", "--type=merge", "-p", `{"status":{"`+field+`":{"verdict":"pass"}}}`)
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		Expect(getDeployment(ctx, Default, ns, "web").Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
	},
		Entry("PRE", altershield.StagePre, "orderPreVerdict"),
		Entry("POST", altershield.StagePost, "orderPostVerdict"),
	)

	It("callbacks that are faster than the answer to their submission count", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Early: true})
		sim().Fault(simulator.Fault{Delay: time.Second, Action: altershield.ActionStartBatch})
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePre}, Early: true, Verdict: altershield.VerdictFail, Times: 1})
		createDeployment(ctx, ns, "web", 2)
		change := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		Eventually(func(g Gomega) {
			change = currentChange(ctx, g, ns, "web")
			g.Expect(change.Status.FailCount).To(Equal(int32(1)))
			g.Expect(change.Status.PassCount).To(Equal(int32(1)))
			g.Expect(change.Status.UnclaimedVerdicts).To(BeEmpty())
		}).WithContext(ctx).Should(Succeed())
		Expect(journalOf(sim(), change).Polls(change.Status.OrderID)).To(BeEmpty())
	})

	DescribeTable("a server that is down for the whole release holds nothing up", func(ctx SpecContext, outage simulator.Outage) {
		shortTimeouts(ctx, 3*time.Second, 3*time.Second)
		Expect(sim().SetOutage(outage)).To(Succeed())
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 3)
		createDeployment(ctx, ns, "api", 3)
		for _, name := range []string{"web", "api"} {
			change := eventuallyState(ctx, ns, name, v1alpha1.ChangeWorkloadSuccess)
			Expect(change.Status.OrderStage).To(Equal(v1alpha1.OrderSubmitting))
			accepted := conditionOf(change.Status.Conditions, v1alpha1.ConditionOrderAccepted)
			Expect(accepted.Reason).To(Equal(v1alpha1.ReasonUnreachable), accepted.Message)
			Expect(messagesOf(batchesOf(ctx, Default, change))).To(HaveEach("PreFailed"))
			Eventually(func(g Gomega) {
				g.Expect(eventsOf(ctx, g, ns, name)).To(ContainElements("ReleaseUndefended", "PreFailed"))
			}).WithContext(ctx).Should(Succeed())
		}
		Expect(len(sim().Journal())).To(BeNumerically("<", 40), "a hot loop:\n%s", sim().Journal())
	},
		Entry("refusing connections", simulator.Refuse),
		Entry("answering 500", simulator.HTTP500),
		Entry("answering HTML", simulator.HTML),
		Entry("resetting connections", simulator.Reset),
		Entry("answering nothing", simulator.Hang),
	)

	It("a server that comes back in the middle gets the order and the batches from then on", func(ctx SpecContext) {
		shortTimeouts(ctx, 2*time.Second, 10*time.Second)
		Expect(sim().SetOutage(simulator.Refuse)).To(Succeed())
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 2)
		Eventually(func(g Gomega) {
			g.Expect(messagesOf(batchesOf(ctx, g, currentChange(ctx, g, ns, "web")))).To(ConsistOf("PreFailed", "PreFailed"))
		}).WithContext(ctx).Should(Succeed())
		Expect(patchTemplate(ctx, ns, "web", "second")).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(conditionOf(currentChange(ctx, g, ns, "web").Status.Conditions, v1alpha1.ConditionOrderAccepted).Reason).To(Equal(v1alpha1.ReasonUnreachable))
		}).WithContext(ctx).Should(Succeed())
		Expect(sim().SetOutage(simulator.NoOutage)).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	})

	It("an order that the server forgot is submitted again", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		createDeployment(ctx, ns, "web", 1)
		change := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		orderEnded(ctx, ns, "web")
		sim().Forget()
		kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=2")
		Eventually(func(g Gomega) {
			g.Expect(messagesOf(batchesOf(ctx, g, change))).To(ConsistOf("PostFinish", "PostFinish"))
		}).WithContext(ctx).Should(Succeed())
		Expect(journalOf(sim(), change).Requests(altershield.ActionSubmitOrder)).To(HaveLen(2))
	})

	It("a refused order fails the release, and the next one starts afresh", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		sim().Fault(simulator.Fault{Action: altershield.ActionSubmitOrder, Code: altershield.CodeIllegalArgument, Msg: "change scene not found", Times: 1})
		createDeployment(ctx, ns, "web", 1)
		change := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadFailed)
		Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionOrderAccepted).Message).To(ContainSubstring("change scene not found"))
		Expect(patchTemplate(ctx, ns, "web", "next")).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
	})

	It("a platform the server does not know keeps the release waiting, and says so", func(ctx SpecContext) {
		shortTimeouts(ctx, time.Second, time.Second)
		ns := newNamespace(ctx, true)
		leaveUnfinished("the order is denied, which only a human can mend")
		sim().Fault(simulator.Fault{Action: altershield.ActionSubmitOrder, Code: altershield.CodePermissionDenied, Msg: "permission denied"})
		createDeployment(ctx, ns, "web", 1)
		rolledOut(ctx, ns, "web")
		Eventually(func(g Gomega) {
			change := currentChange(ctx, g, ns, "web")
			g.Expect(change.Status.OrderStage).To(Equal(v1alpha1.OrderDenied))
			g.Expect(conditionOf(change.Status.Conditions, v1alpha1.ConditionOrderAccepted).Reason).To(Equal(v1alpha1.ReasonPermissionDenied))
		}).WithContext(ctx).Should(Succeed())
		Consistently(func(g Gomega) {
			g.Expect(currentChange(ctx, g, ns, "web").Status.Status).To(Equal(v1alpha1.ChangeWorkloadInit))
		}).WithContext(ctx).Should(Succeed())
		Expect(sim().Journal().Requests(altershield.ActionSubmitOrder)).To(HaveLen(1))
	})

	DescribeTable("an order is ended once when its release ends before it does", func(ctx SpecContext, end func(ctx context.Context, ns string)) {
		ns := newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost, Location: regexp.MustCompile("^web-")}, Never: true, Times: 1})
		createDeployment(ctx, ns, "web", 1)
		var change *v1alpha1.ChangeWorkload
		Eventually(func(g Gomega) {
			change = currentChange(ctx, g, ns, "web")
			batches := batchesOf(ctx, g, change)
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
		Entry("replaced", func(ctx context.Context, ns string) { Expect(patchTemplate(ctx, ns, "web", "next")).To(Succeed()) }),
		Entry("deleted", func(ctx context.Context, ns string) { kubectl(ctx, "-n", ns, "delete", "deployment", "web") }),
		Entry("opted out", func(ctx context.Context, ns string) {
			kubectl(ctx, "-n", ns, "label", "deployment", "web", v1alpha1.DefenseLabel+"="+v1alpha1.DefenseDisabled)
		}),
		Entry("its namespace un-enrolled", func(ctx context.Context, ns string) {
			kubectl(ctx, "label", "namespace", ns, v1alpha1.EnrolledLabel+"-")
		}),
		Entry("its record deleted", func(ctx context.Context, ns string) { kubectl(ctx, "-n", ns, "delete", "cwl", "--all") }),
	)

	Describe("the callback address", func() {
		It("answers liveTest to anybody, and lists suspended deployments to who signs", func(ctx SpecContext) {
			ns := newNamespace(ctx, true)
			createDeployment(ctx, ns, "web", 1)
			eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
			first := currentChange(ctx, Default, ns, "web").Spec.Reversion
			sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch}, Verdict: altershield.VerdictFail})
			Expect(patchTemplate(ctx, ns, "web", "bad")).To(Succeed())
			bad := eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)

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
			Expect(d.SuspendedAt).To(BeNumerically("~", time.Now().Unix(), 60))
			Expect(d.FailedPods).To(HaveLen(1))
		})

		It("refuses what is not the server's, and stays as it is", func(ctx SpecContext) {
			ns := newNamespace(ctx, true)
			sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Never: true})
			createDeployment(ctx, ns, "web", 1)
			var change *v1alpha1.ChangeWorkload
			var batch v1alpha1.ChangePod
			Eventually(func(g Gomega) {
				change = currentChange(ctx, g, ns, "web")
				batches := batchesOf(ctx, g, change)
				g.Expect(batches).To(HaveLen(1))
				batch = batches[0]
				g.Expect(batch.Status.Status).To(Equal(v1alpha1.ChangePodPostSubmitted))
			}).WithContext(ctx).Should(Succeed())
			callback := func(verdict string) []byte {
				return fmt.Appendf(nil, `{"changeCheckType":"CHANGE_BATCH","callbackRequest":{"nodeId":%q,"changeSceneKey":%q,"bizExecOrderId":%q,"verdict":{"verdict":%q,"allFinish":true},"defenseStageEnum":"POST"}}`,
					batch.Status.ChangePodID, altershield.DefaultScene, change.Status.OrderID, verdict)
			}
			url := managers()[0].CallbackAddress() + callbackPath
			writes := managerWrites(ns)
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
			Expect(managerWrites(ns)).To(Equal(writes))

			By("sending the real thing, and replaying it")
			headers := signature(serverToken, fail, now)
			headers.Set("Content-Type", "application/json;UTF-8")
			status, body := request(ctx, http.MethodPost, url, fail, headers)
			Expect(status).To(Equal(http.StatusOK), body)
			eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
			status, _ = request(ctx, http.MethodPost, url, fail, headers)
			Expect(status).To(Equal(http.StatusUnauthorized))
		})
	})

	Describe("the admission check", func() {
		BeforeEach(func(ctx SpecContext) { setConfig(ctx, "admission", true, "1s") })

		It("denies a version the server does not let pass, with its words, and asks nothing on a dry run", func(ctx SpecContext) {
			ns := newNamespace(ctx, true)
			createDeployment(ctx, ns, "web", 1)
			eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
			asked := func() int { return len(sim().Journal().Requests(altershield.ActionSubmitAndStart)) }
			before := asked()
			Expect(before).To(BeNumerically(">", 0))
			kubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2", "--dry-run=server")
			kubectl(ctx, "-n", ns, "scale", "deployment", "web", "--replicas=2")
			Expect(asked()).To(Equal(before))
			sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Verdict: altershield.VerdictFail, Msg: "change freeze until Monday", URL: "http://altershield.example/freeze"})
			out, err := tryKubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2")
			Expect(err).To(HaveOccurred())
			Expect(out).To(And(ContainSubstring(`admission webhook "mdeployment.kb.io" denied the request`), ContainSubstring("change freeze until Monday"), ContainSubstring("http://altershield.example/freeze")))
		})

		It("lets pass when the server does not answer, unless silence fails", func(ctx SpecContext) {
			ns := newNamespace(ctx, true)
			shortTimeouts(ctx, time.Second, time.Second)
			createDeployment(ctx, ns, "web", 1)
			eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
			sim().Fault(simulator.Fault{Action: altershield.ActionSubmitAndStart, Outage: simulator.Hang})
			out := kubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:2")
			Expect(out).To(ContainSubstring("Warning:"))
			setConfig(ctx, "silence", true, "")
			_, err := tryKubectl(ctx, "-n", ns, "set", "image", "deployment/web", "sleep=busybox:3")
			Expect(err).To(HaveOccurred())
		})
	})
})

var _ = Describe("with AlterShield Server and two replicas", Ordered, func() {
	sim, managers := withServer(2)

	It("callbacks sent twice, at once, to both replicas change nothing", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns}, Copies: 4})
		createDeployment(ctx, ns, "web", 5)
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuccess)
		change := orderEnded(ctx, ns, "web")
		expectWholeOrder(sim(), change, oneByOne)
		for _, e := range journalOf(sim(), change).Callbacks() {
			// A copy of what is under way, or done, is refused as a replay by the
			// replica that has seen it; nothing else is refused.
			Expect(e.Outcome).To(Or(Equal("200"), Equal("401")), e.String())
		}
	})

	It("a verdict that arrives while the leader is away is kept", func(ctx SpecContext) {
		ns := newNamespace(ctx, true)
		sim().Script(simulator.Script{Match: simulator.Match{Workload: ns, CheckType: altershield.CheckBatch, Stage: altershield.StagePost}, Verdict: altershield.VerdictFail, Delay: 3 * time.Second})
		// The other replica gets all callbacks.
		sim().SetCallbackURLs(managers()[1].CallbackAddress() + callbackPath)
		createDeployment(ctx, ns, "web", 1)
		Eventually(func(g Gomega) {
			batches := batchesOf(ctx, g, currentChange(ctx, g, ns, "web"))
			g.Expect(batches).To(HaveLen(1))
			g.Expect(batches[0].Status.Status).To(Equal(v1alpha1.ChangePodPostSubmitted))
		}).WithContext(ctx).Should(Succeed())
		Expect(managers()[0].Kill()).To(Succeed())
		eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
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
