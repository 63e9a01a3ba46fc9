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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/altershield"
	"github.com/traas-stack/altershield-operator/internal/altershield/simulator"
	"github.com/traas-stack/altershield-operator/test/observer"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// world is a control plane with the operator and an observer.
type world struct {
	kubectlPath, kubeconfig, kubectlCache string
	api                                   client.Client
	// watcher judges all changes.
	watcher judge
	// logs returns the paths of managers' logs, for the report of a failed spec.
	logs func() []string

	// The next fields are set only in the process that started the control plane.
	cluster  *controlplane.ControlPlane
	observer *observer.Observer
	// manager is the stand-alone manager, or nil.
	manager *controlplane.Manager
	// own reports whether no other process uses this world.
	own bool
	// kills is the number of times that a manager was killed or stopped in the middle of its work. The audit log may lack the version that the
	// last request of such a manager wrote.
	kills int
	// replaced is the number of times that the operator's kinds were replaced. The API server ends the watches of a kind that it replaces, and
	// has no earlier versions for them.
	replaced int
	// exempt has the invariants that need not hold at present, with the reasons.
	exempt map[observer.Invariant]string
	// clean has the paths of logs that must hold no errors at the end.
	clean []string
	// explained has the paths of logs of other programs, for the report of a failed spec.
	explained []string

	// mu guards the data of the current spec for the invariants. A verdict that is acknowledged after its end counts for the next spec.
	mu sync.Mutex
	// namespaces are the namespaces of the spec.
	namespaces []string
	// unfinished is the reason why the spec leaves releases that do not end.
	unfinished string
	// delivered are the verdicts that were acknowledged.
	delivered []observer.Delivered
	// journal returns the journal of the world's AlterShield Server, or is nil.
	journal func() string
}

// inSharedWorld returns the world of specs that keep to namespaces of their own. It is for the first line of a container.
func inSharedWorld() *world {
	shared.judgeSpecs()
	return shared
}

// inOwnWorld gives an Ordered container a control plane of its own with a stand-alone manager, with further flags. There, settings may
// change and managers stop.
func inOwnWorld(flags ...string) *world {
	w := inWorldWithoutManager(flags...)
	BeforeAll(func(ctx SpecContext) {
		Expect(w.manager.Start(ctx)).To(Succeed())
	}, NodeTimeout(patience))
	return w
}

// inWorldWithoutManager gives a container a world of its own, with a manager that is not started yet and has further flags.
func inWorldWithoutManager(flags ...string) *world {
	w := &world{own: true}
	BeforeAll(func(ctx SpecContext) {
		w.start(ctx)
		w.manager = w.install(ctx, controlplane.ManagerOptions{Args: flags})
		w.observe(time.Time{})
		DeferCleanup(func() {
			for _, path := range w.clean {
				expectNoErrors(path)
			}
		})
		DeferCleanup(func() error {
			w.observer.OperatorStops()
			return w.manager.Stop()
		})
	}, NodeTimeout(10*time.Minute))
	w.judgeSpecs()
	return w
}

// start starts the control plane, until the end of the container or suite.
func (w *world) start(ctx context.Context) {
	GinkgoHelper()
	binDir, err := controlplane.Build(ctx, root, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	c, err := controlplane.Start(ctx, controlplane.Options{BinDir: binDir, Out: GinkgoWriter, AuditPolicy: observer.AuditPolicy(managerUser)})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() error { return c.Stop() })
	w.use(c)
}

// use sets the control plane of the world.
func (w *world) use(c *controlplane.ControlPlane) {
	GinkgoHelper()
	w.cluster = c
	w.kubectlPath, w.kubeconfig, w.kubectlCache = c.Kubectl(), c.Kubeconfig(), filepath.Join(c.Dir(), "kubectl-cache")
	w.api = clientOf(c.Kubeconfig())
	w.logs = func() []string { return w.clean }
}

// install prepares a manager whose log must hold no errors.
func (w *world) install(ctx context.Context, o controlplane.ManagerOptions) *controlplane.Manager {
	GinkgoHelper()
	o.Root = root
	m, err := w.cluster.InstallManager(ctx, o)
	Expect(err).NotTo(HaveOccurred())
	if !w.own { // all specs together roll back more than any cluster would
		limit := wrappers.MakeOpsConfigInfo(controlplane.ManagerNamespace, "limit", v1alpha1.TypeLimit).Off("5/10m").Obj()
		Expect(client.IgnoreAlreadyExists(w.api.Create(ctx, limit))).To(Succeed())
	}
	w.kills++ // it is stopped at the end of a spec or of its world, which may cut a write off
	if !slices.Contains(w.clean, m.LogPath()) {
		w.clean = append(w.clean, m.LogPath())
	}
	return m
}

// observe judges all changes on the control plane since some time. The control plane has the operator's kinds.
func (w *world) observe(since time.Time) {
	GinkgoHelper()
	o, err := observer.Start(observer.Options{
		Config: w.cluster.RESTConfig(), AuditLog: w.cluster.AuditLog(), Since: since,
		Operator: managerUser, OperatorNamespace: controlplane.ManagerNamespace,
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		o.Stop()
		if w.own {
			AddReportEntry("observed", o.Summary())
		}
		Expect(w.withoutExempt(o.Violations())).To(BeEmpty(), "violated invariants after the last spec")
		all := o.Gaps()
		gaps := slices.DeleteFunc(slices.Clone(all), func(gap string) bool { return w.replaced > 0 && strings.Contains(gap, " was lost: ") })
		Expect(len(all)-len(gaps)).To(BeNumerically("<=", w.replaced*ownKinds),
			"histories that were lost, and watches of kinds that were replaced")
		seen := len(gaps)
		gaps = slices.DeleteFunc(gaps, func(gap string) bool { return w.kills > 0 && strings.HasPrefix(gap, "no request is known that wrote ") })
		Expect(gaps).To(BeEmpty(), "what happened here was not judged")
		Expect(seen).To(BeNumerically("<=", w.kills), "writers that are not known, and ends of managers")
	})
	w.observer, w.watcher = o, ownJudge{o}
}

// ownKinds is the number of the operator's own kinds that an observer watches.
const ownKinds = 3

// clientOf returns a client for a control plane that knows the operator's kinds.
func clientOf(kubeconfig string) client.Client {
	GinkgoHelper()
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	config.QPS, config.Timeout = -1, time.Minute
	made, err := client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	return made
}

// judgeSpecs checks the invariants in each spec of a container.
func (w *world) judgeSpecs() {
	BeforeEach(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.namespaces, w.unfinished = nil, ""
	})
	JustAfterEach(w.judgeSpec, NodeTimeout(2*patience))
	AfterEach(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			w.explain(ctx)
		}
	}, NodeTimeout(patience))
}

func (w *world) judgeSpec(ctx context.Context) {
	if w.watcher == nil { // the world did not start
		Expect(CurrentSpecReport().State).NotTo(Equal(types.SpecStatePassed), "nothing observes this world")
		return
	}
	w.mu.Lock()
	delivered, created, unfinished := w.delivered, w.namespaces, w.unfinished
	w.delivered = nil
	w.mu.Unlock()
	namespaces := created
	if w.own {
		namespaces = nil // all of them
	} else if len(namespaces) == 0 {
		return
	}
	// Verdicts acknowledged before this call are stored by now.
	w.expectInvariants(ctx, namespaces...)
	Expect(w.watcher.CheckDelivered(delivered)).To(BeEmpty(), "violated invariants")
	if CurrentSpecReport().Failed() || unfinished != "" {
		return
	}
	Eventually(func(g Gomega) {
		g.Expect(w.watcher.Settle(ctx)).To(Succeed())
		g.Expect(w.watcher.Unfinished(created)).To(BeEmpty(), "a release does not end, see leaveUnfinished")
	}).WithContext(ctx).Should(Succeed())
	w.expectInvariants(ctx, namespaces...)
}

// expectInvariants fails the spec if an invariant was violated, in some namespaces or, without names, anywhere.
func (w *world) expectInvariants(ctx context.Context, namespaces ...string) {
	GinkgoHelper()
	Expect(w.watcher.Settle(ctx)).To(Succeed())
	violations, err := w.watcher.Violations(namespaces...)
	Expect(err).NotTo(HaveOccurred())
	Expect(w.withoutExempt(violations)).To(BeEmpty(), "violated invariants")
}

// withoutExempt drops the violations of invariants that need not hold at present. Where the operator's kinds and roles were replaced, the
// watches of a manager begin again while its right to them moves from a role to another, which the API server may see in the wrong order.
// It tries again. A right that stays away is an error in its log.
func (w *world) withoutExempt(violations []observer.Violation) []observer.Violation {
	return slices.DeleteFunc(violations, func(v observer.Violation) bool {
		moved := w.replaced > 0 && v.Invariant == observer.RightsSuffice &&
			(strings.HasPrefix(v.Message, "watch ") || strings.HasPrefix(v.Message, "list "))
		return moved || w.exempt[v.Invariant] != ""
	})
}

// leaveUnfinished marks a spec that ends while its releases cannot end.
func (w *world) leaveUnfinished(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unfinished = why
	AddReportEntry("leaves releases unfinished", why)
}

// acknowledged keeps the verdicts whose callbacks were acknowledged, for the end of the spec. It is called with each entry of a simulator's
// journal.
func (w *world) acknowledged(e simulator.Entry) {
	if e.Callback == nil || e.Answer == nil || !e.Answer.Success || e.Callback.CheckType == altershield.CheckAction {
		return
	}
	r := &e.Callback.Request
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delivered = append(w.delivered, observer.Delivered{
		Order: e.Order, Node: e.Node, Stage: v1alpha1.CheckStage(r.Stage), OfOrder: e.Callback.CheckType == altershield.CheckOrder,
		Verdict: string(r.Verdict.Verdict), Said: e.Answer.Msg,
	})
}

// explain reports a spec that failed: the objects and events in its namespaces, and the logs of the managers.
func (w *world) explain(ctx context.Context) {
	w.mu.Lock()
	namespaces, journal := slices.Clone(w.namespaces), w.journal
	w.mu.Unlock()
	if journal != nil {
		AddReportEntry("server journal", endOf(journal()), ReportEntryVisibilityFailureOrVerbose)
	}
	for _, ns := range namespaces {
		for name, args := range map[string][]string{
			"pods":      {"get", "replicasets,pods", "-o", "wide"},
			"events":    {"get", "events", "--sort-by=.lastTimestamp"},
			"workloads": {"get", "deployments", "-o", "yaml"},
			"releases":  {"get", "changeworkloads,changepods", "-o", "yaml"},
		} {
			out, err := w.tryKubectl(ctx, append([]string{"-n", ns}, args...)...)
			if err != nil {
				out += err.Error()
			}
			AddReportEntry(ns+" "+name, endOf(out), ReportEntryVisibilityFailureOrVerbose)
		}
	}
	for _, path := range w.explained {
		if lines, err := readLines(path); err == nil {
			AddReportEntry(path, endOf(strings.Join(lines, "\n")), ReportEntryVisibilityFailureOrVerbose)
		}
	}
	if w.logs == nil {
		return
	}
	began := CurrentSpecReport().StartTime
	for _, path := range w.logs() {
		lines, err := readLines(path)
		if err != nil {
			continue // it was never started
		}
		AddReportEntry(path, endOf(strings.Join(about(lines, began, namespaces, w.own), "\n")), ReportEntryVisibilityFailureOrVerbose)
	}
}

// endOf returns the end of a long text, so that reports stay readable.
func endOf(text string) string {
	const most = 20_000
	if len(text) > most {
		return "[...]" + text[len(text)-most:]
	}
	return text
}

// about returns the lines of a manager's log since some time that concern some namespaces, and its errors.
func about(lines []string, since time.Time, namespaces []string, all bool) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		if at := loggedAt(line); !at.IsZero() && at.Before(since) {
			return true
		}
		concerns := func(ns string) bool { return strings.Contains(line, ns) }
		return !all && !slices.ContainsFunc(namespaces, concerns) && !strings.Contains(line, `"level":"error"`)
	})
}

// kubectlCmd returns a kubectl command that runs as the administrator.
func (w *world) kubectlCmd(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.kubectlPath, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kubeconfig, "KUBECACHEDIR="+w.kubectlCache)
	return cmd
}

// kubectl runs a command that must succeed.
func (w *world) kubectl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	out, err := w.tryKubectl(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), "kubectl %s\n%s", strings.Join(args, " "), out)
	return out
}

func (w *world) tryKubectl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := w.kubectlCmd(ctx, args...).CombinedOutput()
	return string(out), err
}

// withoutManager does something while the manager is down. The manager of the shared world belongs to the first process: there, the spec
// has to be Serial.
func (w *world) withoutManager(ctx context.Context, do func()) {
	GinkgoHelper()
	Expect(w.manager).NotTo(BeNil(), "the manager is another process's: make the spec Serial")
	w.observer.OperatorStops()
	Expect(w.manager.Stop()).To(Succeed())
	defer func() {
		GinkgoHelper()
		Expect(w.manager.Start(ctx)).To(Succeed())
		w.observer.OperatorStarts()
	}()
	do()
}

// managerWrites counts the managers' writes in a namespace.
func (w *world) managerWrites(namespace string) int {
	GinkgoHelper()
	return len(w.writesIn(namespace))
}

// writesIn returns the managers' writes in a namespace, of the named resources only if any are named.
func (w *world) writesIn(namespace string, resource ...string) []observer.Request {
	GinkgoHelper()
	writes, err := w.watcher.WritesIn(namespace)
	Expect(err).NotTo(HaveOccurred())
	return slices.DeleteFunc(writes, func(r observer.Request) bool { return len(resource) > 0 && !slices.Contains(resource, r.Resource) })
}

// rests waits until the operator has written nothing for a while.
func (w *world) rests(ctx context.Context, quiet time.Duration) {
	GinkgoHelper()
	resting(ctx, func() int {
		writes, err := w.observer.Writes()
		Expect(err).NotTo(HaveOccurred())
		return len(slices.DeleteFunc(writes, func(r observer.Request) bool { return r.Resource == "leases" }))
	}, quiet)
}

// resting waits until writes, the number of writes so far, has not grown for a while.
func resting(ctx context.Context, writes func() int, quiet time.Duration) {
	GinkgoHelper()
	before, since := writes(), time.Now()
	Eventually(func() time.Duration {
		if n := writes(); n != before {
			before, since = n, time.Now()
		}
		return time.Since(since)
	}).WithContext(ctx).WithPolling(500 * time.Millisecond).Should(BeNumerically(">=", quiet))
}
