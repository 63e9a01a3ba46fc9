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
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/rollback"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

const (
	// horizon is how long a release is watched that nothing ends: what is decided
	// after two minutes is done by then, and a kubelet has made some restarts.
	horizon = 225 * time.Second
	// bound is how long any other outcome is waited for: a busy machine may take longer than its row says.
	bound = 12 * time.Minute
	// patience is how much longer than elsewhere the walkthrough waits beside the releases.
	patience = 8 * time.Minute
	// lasting is how long an outcome is watched that came.
	lasting = 10 * time.Second
	// dip ends the outcome of a rollback while not all pods of the earlier version serve.
	dip = ", not restored"
	// atOnce is how many rows are watched at a time: with more, a kubelet tells of crashes late.
	atOnce = 18
)

var update = flag.Bool("update", false, "write outcomes.md")

// TestOutcomesFile checks that outcomes.md shows the rows.
func TestOutcomesFile(t *testing.T) {
	var table strings.Builder
	table.WriteString("# What becomes of releases on real nodes\n\n" +
		"Made from `rows_test.go` and `stories_test.go` by `go test ./test/node -run TestOutcomesFile -update`; `make test-node` checks it.\n" +
		"A version that runs is released over by one of these. Pods serve that are ready and were not restarted lately.\n" +
		"Each outcome is checked. Half of the outcomes, at least, have to come in the time of their line: a busy machine takes longer for " +
		"some.\n\n" +
		"| the new version | what becomes of it | when |\n| --- | --- | --- |\n")
	for _, r := range rows() {
		fmt.Fprintf(&table, "| %s | %s | %s |\n", r.name(), r.want, r.when())
	}
	table.WriteString("\nOf other kinds:\n\n" +
		"| the workload | what is released | what becomes of it | when |\n| --- | --- | --- | --- |\n")
	for _, s := range stories() {
		if s.of != "" {
			fmt.Fprintf(&table, "| %s | %s | %s | within %s |\n", s.of, s.release, s.want, short(s.within))
		}
	}
	if *update {
		if err := os.WriteFile("outcomes.md", []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile("outcomes.md")
	if err != nil || string(have) != table.String() {
		t.Errorf("outcomes.md does not show the rows (%v): write it with -update", err)
	}
}

// observed is what became of a row.
type observed struct {
	row
	ns, version, outcome, detail string
	// change is the release as it was last read.
	change *v1alpha1.ChangeWorkload
	// reason is why it was rolled back, if it was.
	reason string
	// states of the release, one after the other.
	states []string
	took   time.Duration
	// fewest is the smallest number of old pods that served at one time.
	fewest int32
	err    error
	done   chan struct{}
}

var _ = Describe("the operator on real nodes", Ordered, ContinueOnFailure, func() {
	Context("while releases are watched, each", releases)
	Context("while nodes and replicas of it come and go", life)
	Context("in the long run", Label("soak"), soak)
	Context("at its end", Label("chart"), chart)
	Context("from a clone,", Label("chart"), fromClone)
})

// releases tells what becomes of each row. Some are watched at once, and nearly
// all of it is waiting; the walkthrough goes on meanwhile.
func releases() {
	watched := make([]*observed, 0, len(rows()))
	for _, r := range rows() {
		watched = append(watched, &observed{row: r, done: make(chan struct{})})
	}
	stories, kinds := stories(), kindStories()

	BeforeAll(func(ctx SpecContext) {
		observe(time.Now())
		DeferCleanup(func() {
			AddReportEntry("observed", watcher.Summary())
			watcher.Stop()
			Expect(watcher.Gaps()).To(BeEmpty(), "what happened here was not judged")
		})
		for _, o := range watched {
			o.ns = newNamespace(ctx, "row")
		}
		for _, s := range kinds {
			s.begin(ctx)
		}
		for _, s := range stories {
			s.begin(ctx)
		}
		turns := make(chan struct{}, atOnce)
		for _, o := range watched {
			go func() {
				defer close(o.done)
				ctx := context.WithoutCancel(ctx)
				turns <- struct{}{}
				if o.err = o.start(ctx); o.err == nil {
					o.err = o.watch(ctx)
				}
				<-turns
				if o.err == nil {
					o.err = o.last(ctx)
				}
			}()
		}
	}, NodeTimeout(10*time.Minute))

	It("goes through the walkthrough", func(ctx SpecContext) {
		player := walkthrough.Player{
			Client: api, Namespace: metav1.NamespaceDefault, Patience: patience,
			Begin: func(step walkthrough.Step) { By(step.Title) },
			Kubectl: func(ctx context.Context, args ...string) (string, error) {
				command := cluster.Kubectl(ctx, args...)
				command.Dir = root
				return output(command)
			},
		}
		Expect(player.Play(ctx, walkthrough.Steps()...)).To(Succeed())
	}, SpecTimeout(30*time.Minute))

	for _, s := range kinds {
		It(s.name, func(ctx SpecContext) {
			Eventually(s.done).WithContext(ctx).WithTimeout(30 * time.Minute).Should(BeClosed())
			Expect(s.err).NotTo(HaveOccurred())
		}, SpecTimeout(30*time.Minute))
	}
	for _, s := range stories {
		It(s.name, func(ctx SpecContext) {
			Eventually(s.done).WithContext(ctx).WithTimeout(30 * time.Minute).Should(BeClosed())
			Expect(s.err).NotTo(HaveOccurred())
		}, SpecTimeout(30*time.Minute))
	}

	for _, o := range watched {
		It("that "+o.name(), func(ctx SpecContext) {
			Eventually(o.done).WithContext(ctx).WithTimeout(40 * time.Minute).Should(BeClosed())
			Expect(o.err).NotTo(HaveOccurred())
			AddReportEntry("outcome", fmt.Sprintf("%s after %s (%s)", o.outcome, o.took.Round(time.Second), o.detail))
			Expect(o.outcome).To(Equal(o.want), o.detail)
			if !o.stays() {
				return
			}
			for _, state := range o.states {
				Expect(record.IsOpen(v1alpha1.ChangeWorkloadStatusType(state))).To(BeTrue(), o.detail)
			}
			if !o.first {
				Expect(o.fewest).To(BeNumerically(">=", o.minimum()), "old pods that served meanwhile")
			}
		}, SpecTimeout(40*time.Minute))
	}

	It("lets half of the outcomes come in their times, at least", func(ctx SpecContext) {
		late := 0
		var times []string
		count := func(name string, done chan struct{}, took *time.Duration, within time.Duration) {
			GinkgoHelper()
			Eventually(done).WithContext(ctx).WithTimeout(40 * time.Minute).Should(BeClosed())
			times = append(times, fmt.Sprintf("%s: %s of %s", name, took.Round(time.Second), within))
			if *took > within {
				late++
			}
		}
		for _, o := range watched {
			if !o.stays() {
				count(o.name(), o.done, &o.took, o.within)
			}
		}
		for _, s := range stories {
			if s.of != "" {
				count(s.name, s.done, &s.took, s.within)
			}
		}
		Expect(late).To(BeNumerically("<=", len(times)/2), strings.Join(times, "\n"))
	}, SpecTimeout(40*time.Minute))

	It("rolls back as many as the rollback limit allows, of one namespace and of all", limitsRollbacks, SpecTimeout(20*time.Minute))

	It("violates no invariant meanwhile, and ends each release that can end", func(ctx SpecContext) {
		expectInvariants(ctx)
		ended := []string{metav1.NamespaceDefault}
		for _, o := range watched {
			if !o.stays() {
				ended = append(ended, o.ns)
			}
		}
		for _, s := range kinds {
			ended = append(ended, s.ns)
		}
		for _, s := range stories {
			ended = append(ended, s.ns)
		}
		expectFinished(ctx, ended...)
		expectInvariants(ctx)
	}, SpecTimeout(5*time.Minute))

	AfterAll(func(ctx SpecContext) {
		var table strings.Builder
		for _, o := range watched {
			fmt.Fprintf(&table, "%-75s %-40s  [%s] %s\n", o.name(), o.outcome, o.took.Round(time.Second), o.detail)
		}
		for _, s := range stories {
			if s.of != "" {
				fmt.Fprintf(&table, "%-75s %-40s  [%s]\n", s.name, s.want, s.took.Round(time.Second))
			}
		}
		fmt.Print("\n", table.String(), "\n")
		Expect(os.WriteFile(filepath.Join(root, "bin", "nodes", "outcomes.txt"), []byte(table.String()), 0o600)).To(Succeed())
		// What crashes on takes time from what comes next.
		gone := []string{"delete", "namespace", "--wait=false"}
		for _, o := range watched {
			gone = append(gone, o.ns)
		}
		for _, s := range kinds {
			gone = append(gone, s.ns)
		}
		for _, s := range stories {
			gone = append(gone, s.ns)
		}
		kubectl(ctx, gone...)
		kubectl(ctx, "delete", "deployment", "sleep", "--ignore-not-found") // it is not where the walkthrough was left out
	}, NodeTimeout(2*time.Minute))
}

// start brings the good version up.
func (o *observed) start(ctx context.Context) error {
	if o.beside != "" {
		apply := cluster.Kubectl(ctx, "apply", "-f", "-")
		apply.Stdin = strings.NewReader(strings.ReplaceAll(o.beside, "NS", o.ns))
		if _, err := output(apply); err != nil {
			return err
		}
	}
	if o.first {
		return nil
	}
	if err := api.Create(ctx, o.good(o.ns)); err != nil {
		return err
	}
	var last string
	for ctx.Err() == nil {
		var changes v1alpha1.ChangeWorkloadList
		if err := api.List(ctx, &changes, client.InNamespace(o.ns)); err != nil {
			return err
		}
		for _, change := range changes.Items {
			if last = string(change.Status.Status); change.Status.Status == v1alpha1.ChangeWorkloadSuccess {
				return nil
			}
		}
		pause(ctx, time.Second)
	}
	return fmt.Errorf("the good version of %s is no success but %q", o.name(), last)
}

// watch releases the version and watches what becomes of it.
func (o *observed) watch(ctx context.Context) error {
	released := o.good(o.ns)
	o.shape(released)
	var before appsv1.Deployment
	err := api.Get(ctx, client.ObjectKeyFromObject(released), &before)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if o.first {
		err = api.Create(ctx, released)
	} else {
		err = api.Patch(ctx, released, client.Merge) // with all of the spec
	}
	if err != nil {
		return err
	}
	o.fewest = o.replicas
	for began := time.Now(); ; pause(ctx, time.Second) {
		o.took = time.Since(began)
		// A busy API server releases without admission. The controller labels the version later then.
		if o.version = released.Labels[v1alpha1.VersionLabel]; o.version == before.Labels[v1alpha1.VersionLabel] && o.took < time.Minute {
			if err := api.Get(ctx, client.ObjectKeyFromObject(released), released); err != nil {
				return err
			}
			continue
		}
		if err := o.look(ctx); err != nil {
			return err
		}
		if o.took > bound || o.stays() && o.took > horizon || !o.stays() && o.came() {
			return nil
		}
	}
}

// came reports whether the outcome is the wanted one.
func (o *observed) came() bool { return o.outcome == strings.TrimSuffix(o.want, reported) }

// last watches whether the outcome lasts that came, and listens for its cause. A pod of the earlier version that a busy
// node does not probe in time is not Ready for a moment; the outcome has to last after that.
func (o *observed) last(ctx context.Context) error {
	watches := o.came() && !o.stays()
	for came, began := time.Now(), time.Now(); watches && time.Since(began) < lasting; pause(ctx, time.Second) {
		outcome := strings.TrimSuffix(o.outcome, dip)
		if err := o.look(ctx); err != nil {
			return err
		}
		switch {
		case o.came():
		case o.outcome == outcome+dip && time.Since(came) < time.Minute:
			began = time.Now()
		default:
			o.outcome = outcome + ", then " + o.outcome
			return nil
		}
	}
	err := o.listen(ctx)
	if err == nil && o.stays() { // slow ones are rolled back after ten minutes, which would count in the rollback limit
		err = api.Delete(ctx, o.good(o.ns))
	}
	return err
}

// look reads what has become of the version so far.
func (o *observed) look(ctx context.Context) error {
	var change v1alpha1.ChangeWorkload
	key := types.NamespacedName{Namespace: o.ns, Name: record.ChangeWorkloadName("app", o.version)}
	if err := api.Get(ctx, key, &change); client.IgnoreNotFound(err) != nil {
		return err
	}
	if state := string(change.Status.Status); change.Name != "" && (len(o.states) == 0 || o.states[len(o.states)-1] != state) {
		o.states = append(o.states, state)
	}
	var d appsv1.Deployment
	if err := api.Get(ctx, types.NamespacedName{Namespace: o.ns, Name: "app"}, &d); err != nil {
		return err
	}
	var pods corev1.PodList
	if err := api.List(ctx, &pods, client.InNamespace(o.ns)); err != nil {
		return err
	}
	o.change = &change
	o.judge(&d, pods.Items)
	return nil
}

// listen adds to the outcome whether the operator told the cause, in a condition
// of the release, an event, or the reason of a quarantine.
func (o *observed) listen(ctx context.Context) error {
	if o.tells == "" {
		return nil
	}
	said := []string{o.reason}
	for _, c := range o.change.Status.Conditions {
		said = append(said, c.Message)
	}
	var events eventsv1.EventList
	if err := api.List(ctx, &events, client.InNamespace(o.ns)); err != nil {
		return err
	}
	for _, e := range events.Items {
		if strings.Contains(e.ReportingController, "altershield") {
			said = append(said, e.Note)
		}
	}
	if strings.Contains(strings.Join(said, "\n"), o.tells) {
		o.outcome += reported
	} else {
		o.outcome += ", not reported"
	}
	return nil
}

// judge says what has become of the version.
func (o *observed) judge(d *appsv1.Deployment, pods []corev1.Pod) {
	version, change := o.version, o.change
	serve := map[bool]int32{}
	for i := range pods {
		if serves(&pods[i]) {
			serve[pods[i].Labels[v1alpha1.VersionLabel] == version]++
		}
	}
	o.fewest = min(o.fewest, serve[false])
	o.detail = strings.Join(o.states, " > ")
	for _, c := range change.Status.Conditions {
		if c.Type == v1alpha1.ConditionRolledBack || c.Type == v1alpha1.ConditionProgressing && c.Status != metav1.ConditionTrue {
			o.detail += fmt.Sprintf("; %s=%s/%s: %.160s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	isBack := d.Labels[v1alpha1.VersionLabel] != version
	all := serve[!isBack] == o.replicas && serve[isBack] == 0 && d.Status.ObservedGeneration >= d.Generation &&
		d.Status.Replicas == o.replicas && d.Status.UpdatedReplicas == o.replicas && d.Status.AvailableReplicas == o.replicas
	switch {
	case isBack:
		reasons := map[string]rollback.QuarantineReason{}
		_ = json.Unmarshal([]byte(d.Annotations[v1alpha1.QuarantineReasonAnnotation]), &reasons) // without one the reason is empty
		o.outcome, o.reason = rolledBack+cause(reasons[version].Reason), reasons[version].String()
		if !all {
			o.outcome += dip
		}
		return
	case change.Name != "" && !record.IsOpen(change.Status.Status):
		o.outcome = string(change.Status.Status)
	default:
		o.outcome = "open"
	}
	switch {
	case all:
		o.outcome += ", all serve"
	case serve[false] > 0 && serve[false] >= o.minimum():
		o.outcome += ", old ones serve"
	case serve[false] > 0:
		o.outcome += ", too few old ones serve"
	case serve[true] > 0:
		o.outcome += ", some serve"
	default:
		o.outcome += ", none serve"
	}
}

// limitsRollbacks releases more bad versions at once than the default rollback limit allows: first more in one namespace than that may
// take of it, then, in another, more than are left of it.
func limitsRollbacks(ctx SpecContext) {
	kubectl(ctx, "-n", operatorNamespace, "patch", "opsconfiginfo", "limit", "--type=merge", "-p", `{"spec":{"enable":true}}`)
	DeferCleanup(func(ctx SpecContext) {
		kubectl(ctx, "-n", operatorNamespace, "patch", "opsconfiginfo", "limit", "--type=merge", "-p", `{"spec":{"enable":false}}`)
	})
	const allowed, share = 5, 3 // share is half of it, rounded up
	groups := []struct {
		releases, back int
		ns             string
		good           map[string]string
	}{{releases: share + 2, back: share}, {releases: share, back: allowed - share}}
	for i := range groups {
		b := &groups[i]
		b.ns, b.good = newNamespace(ctx, "limit"), map[string]string{}
		for n := range b.releases {
			create(ctx, plain(b.ns, fmt.Sprint("app-", n), 1).Annotation(v1alpha1.SettingAnnotationPrefix+"rollback", "10s"))
		}
	}
	for _, b := range groups {
		for n := range b.releases {
			name := fmt.Sprint("app-", n)
			b.good[name] = eventuallyState(ctx, b.ns, name, v1alpha1.ChangeWorkloadSuccess).Spec.Reversion
		}
	}
	for i, b := range groups {
		kubectl(ctx, "-n", b.ns, "set", "image", "deployment", "--all", "*=busybo")
		allows := func(g Gomega) {
			for _, b := range groups[:i+1] {
				back, waiting := 0, 0
				for name, version := range b.good {
					if getDeployment(ctx, g, b.ns, name).Labels[v1alpha1.VersionLabel] == version {
						back++
						continue
					}
					c := meta.FindStatusCondition(current(ctx, g, b.ns, name).Status.Conditions, v1alpha1.ConditionRolledBack)
					if c != nil && c.Reason == v1alpha1.ReasonRollbackLimit {
						waiting++
					}
				}
				g.Expect([]int{back, waiting}).To(Equal([]int{b.back, b.releases - b.back}), "rolled back and waiting in "+b.ns)
			}
		}
		Eventually(allows).WithContext(ctx).WithTimeout(8 * time.Minute).WithPolling(time.Second).Should(Succeed())
		Consistently(allows).WithContext(ctx).WithTimeout(lasting).WithPolling(time.Second).Should(Succeed())
	}
	kubectl(ctx, "delete", "namespace", "--wait=false", groups[0].ns, groups[1].ns)
}

// cause is one word for what a kubelet says in several, by what it does just then.
func cause(reason string) string {
	switch reason {
	case "CrashLoopBackOff", "Error", "Completed", "OOMKilled", "RunContainerError", "StartError":
		return "a crash loop"
	case "ImagePullBackOff", "ErrImagePull":
		return "its image"
	default:
		return reason
	}
}

// lately is when a container must not have restarted for its pod to serve: a
// crash loop is ready for moments.
const lately = time.Minute

// serves says that a pod is ready and no container of it was restarted lately.
func serves(pod *corev1.Pod) bool {
	for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if s.RestartCount > 0 && (s.State.Running == nil || time.Since(s.State.Running.StartedAt.Time) < lately) {
			return false
		}
	}
	return isReady(pod)
}

// isReady says that a pod is ready and not on its way out.
func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
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

var namespaces atomic.Int64

// newNamespace makes a namespace that is enrolled.
func newNamespace(ctx context.Context, story string) string {
	GinkgoHelper()
	name := fmt.Sprintf("%s-%d", story, namespaces.Add(1))
	Expect(api.Create(ctx, wrappers.MakeNamespace(name).Enrolled().Obj())).To(Succeed())
	return name
}
