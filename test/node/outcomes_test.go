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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/test/walkthrough"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

// horizon is how long a release is watched that nothing ends: what is decided
// after two minutes is done by then, and a kubelet has made some restarts.
const horizon = 225 * time.Second

var update = flag.Bool("update", false, "write outcomes.md")

// TestOutcomesFile checks that outcomes.md shows the rows.
func TestOutcomesFile(t *testing.T) {
	var table strings.Builder
	table.WriteString("# What becomes of releases on real nodes\n\nMade from `rows_test.go` by `go test ./test/node -run TestOutcomesFile -update`; " +
		"`make test-node` checks it. A version that runs is\nreleased over by one of these. Pods serve that are ready and were not restarted lately. " +
		"Rows with a **wanted** outcome are not as they should be.\n\n| the new version | today | wanted |\n| --- | --- | --- |\n")
	pending := 0
	for _, r := range rows() {
		wanted := ""
		if r.pending() {
			wanted = "**" + r.wanted() + "**"
			pending++
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", r.name(), r.today, wanted)
	}
	fmt.Fprintf(&table, "\n%d rows, %d of them pending.\n", len(rows()), pending)
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
	ns, outcome, detail string
	// reason is why it was rolled back, if it was.
	reason string
	// states of the release, one after the other.
	states []string
	took   time.Duration
	err    error
	done   chan struct{}
}

var _ = Describe("the operator on real nodes", Ordered, ContinueOnFailure, func() {
	Context("while releases are watched, each", releases)
	Context("while nodes and replicas of it come and go", life)
	Context("in the long run", Label("soak"), soak)
	Context("at its end", Label("chart"), chart)
})

// releases tells what becomes of each row. All are watched at once, and nearly
// all of it is waiting; the walkthrough goes on meanwhile.
func releases() {
	watched := make([]*observed, 0, len(rows()))
	for _, r := range rows() {
		watched = append(watched, &observed{row: r, done: make(chan struct{})})
	}
	stories, kinds := stories(), kindStories()

	BeforeAll(func(ctx SpecContext) {
		var started sync.WaitGroup
		for _, o := range watched {
			o.ns = newNamespace(ctx, "row")
			started.Go(func() { o.err = o.start(ctx) })
		}
		started.Wait()
		for _, s := range kinds {
			s.begin(ctx)
		}
		for _, s := range stories {
			s.begin(ctx)
		}
		for _, o := range watched {
			go func() {
				defer close(o.done)
				if o.err == nil {
					o.err = o.watch(context.WithoutCancel(ctx))
				}
			}()
		}
	}, NodeTimeout(10*time.Minute))

	It("goes through the walkthrough", func(ctx SpecContext) {
		player := walkthrough.Player{
			Client: api, Namespace: metav1.NamespaceDefault,
			Begin: func(step walkthrough.Step) { By(step.Title) },
			Kubectl: func(ctx context.Context, args ...string) (string, error) {
				command := cluster.Kubectl(ctx, args...)
				command.Dir = root
				return output(command)
			},
		}
		Expect(player.Play(ctx, walkthrough.Steps()...)).To(Succeed())
	}, SpecTimeout(10*time.Minute))

	for _, s := range kinds {
		It(s.name, func(ctx SpecContext) {
			Eventually(s.done).WithContext(ctx).WithTimeout(10 * time.Minute).Should(BeClosed())
			Expect(s.err).NotTo(HaveOccurred())
		}, SpecTimeout(10*time.Minute))
	}
	for _, s := range stories {
		It(s.name, func(ctx SpecContext) {
			Eventually(s.done).WithContext(ctx).WithTimeout(15 * time.Minute).Should(BeClosed())
			Expect(s.err).NotTo(HaveOccurred())
		}, SpecTimeout(15*time.Minute))
	}

	for _, o := range watched {
		It("that "+o.name(), func(ctx SpecContext) {
			Eventually(o.done).WithContext(ctx).WithTimeout(10 * time.Minute).Should(BeClosed())
			Expect(o.err).NotTo(HaveOccurred())
			AddReportEntry("outcome", o.outcome+" ("+o.detail+")")
			if oneOf(o.today, o.outcome) {
				return
			}
			if oneOf(o.wanted(), o.outcome) {
				Fail("a pending row came true: make its today " + o.outcome + " in rows_test.go")
			}
			Fail(fmt.Sprintf("outcome %q (%s), want %q as today", o.outcome, o.detail, o.today))
		}, SpecTimeout(12*time.Minute))
	}

	AfterAll(func(ctx SpecContext) {
		var table strings.Builder
		for _, o := range watched {
			fmt.Fprintf(&table, "%-75s %-40s", o.name(), o.outcome)
			if o.pending() {
				fmt.Fprintf(&table, " PENDING: %s", o.wanted())
			}
			fmt.Fprintf(&table, "  [%s] %s\n", o.took.Round(time.Second), o.detail)
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
	var err error
	if o.first {
		err = api.Create(ctx, released)
	} else {
		err = api.Patch(ctx, released, client.Merge) // with all of the spec
	}
	if err != nil {
		return err
	}
	version := released.Labels[v1alpha1.VersionLabel]
	for began := time.Now(); ; pause(ctx, time.Second) {
		o.took = time.Since(began)
		var change v1alpha1.ChangeWorkload
		if err := api.Get(ctx, types.NamespacedName{Namespace: o.ns, Name: defense.ChangeWorkloadName("app", version)}, &change); client.IgnoreNotFound(err) != nil {
			return err
		}
		if state := string(change.Status.Status); change.Name != "" && (len(o.states) == 0 || o.states[len(o.states)-1] != state) {
			o.states = append(o.states, state)
		}
		var d appsv1.Deployment
		if err := api.Get(ctx, client.ObjectKeyFromObject(released), &d); err != nil {
			return err
		}
		var pods corev1.PodList
		if err := api.List(ctx, &pods, client.InNamespace(o.ns)); err != nil {
			return err
		}
		isBack := d.Labels[v1alpha1.VersionLabel] != version
		over := o.took > horizon && (!isBack || o.took > horizon+time.Minute)
		if o.judge(version, &change, &d, pods.Items) && (isBack || o.outcome == fine && o.wanted() == fine) || over {
			return o.listen(ctx, &change)
		}
	}
}

// listen adds to the outcome whether the operator told the cause, in a condition
// of the release, an event, or the reason of a quarantine.
func (o *observed) listen(ctx context.Context, change *v1alpha1.ChangeWorkload) error {
	if o.tells == "" {
		return nil
	}
	said := []string{o.reason}
	for _, c := range change.Status.Conditions {
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
		o.outcome += told
	} else {
		o.outcome += ", not told"
	}
	return nil
}

// judge says what has become of a version, and whether all is well.
func (o *observed) judge(version string, change *v1alpha1.ChangeWorkload, d *appsv1.Deployment, pods []corev1.Pod) (well bool) {
	serve := map[bool]int32{}
	for i := range pods {
		if serves(&pods[i]) {
			serve[pods[i].Labels[v1alpha1.VersionLabel] == version]++
		}
	}
	o.detail = strings.Join(o.states, " > ")
	succeeded := change.Status.Status == v1alpha1.ChangeWorkloadSuccess
	for _, c := range change.Status.Conditions {
		if c.Type == v1alpha1.ConditionRolledBack || c.Type == v1alpha1.ConditionProgressing && c.Status != metav1.ConditionTrue {
			o.detail += fmt.Sprintf("; %s=%s/%s: %.160s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
	isBack := d.Labels[v1alpha1.VersionLabel] != version
	all := serve[!isBack] == o.replicas && d.Status.AvailableReplicas == o.replicas
	switch {
	case isBack:
		reasons := map[string]defense.QuarantineReason{}
		_ = json.Unmarshal([]byte(d.Annotations[v1alpha1.QuarantineReasonAnnotation]), &reasons) // without one the reason is empty
		o.outcome, o.reason = rolledBack+cause(reasons[version].Reason), reasons[version].String()
		if !all {
			o.outcome += ", not restored"
		}
		return all
	case change.Name != "" && !defense.IsOpen(change.Status.Status):
		o.outcome = string(change.Status.Status)
	default:
		o.outcome = "open"
	}
	switch {
	case all:
		o.outcome += ", all serve"
	case serve[false] > 0:
		o.outcome += ", old ones serve"
	case serve[true] > 0:
		o.outcome += ", some serve"
	default:
		o.outcome += ", none serve"
	}
	return all && succeeded
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
