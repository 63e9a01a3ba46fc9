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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// applierName is the field manager of appliers.
const applierName = "git"

// applier applies a whole manifest each second, server-side and with its own field manager, as a GitOps tool does. It forces nothing.
type applier struct {
	world *world
	mu    sync.Mutex
	// manifest is the manifest to apply, and commit its name.
	manifest *appsv1.Deployment
	commit   string
	applied  []applied
}

// applied is one application of a manifest.
type applied struct {
	commit string
	err    error
	// lost lists the fields of the manifest that the response lacks.
	lost         string
	began, ended time.Time
}

// startApplier starts an applier, until the end of the spec.
func (w *world) startApplier() *applier {
	a := &applier{world: w}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ticker := time.NewTicker(time.Second); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				a.apply(ctx)
			}
		}
	}()
	DeferCleanup(func() { stop(); <-stopped })
	return a
}

func (a *applier) apply(ctx context.Context) {
	a.mu.Lock()
	manifest, commit := a.manifest, a.commit
	a.mu.Unlock()
	if manifest == nil {
		return
	}
	began := time.Now()
	data, err := json.Marshal(manifest)
	answer := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: manifest.Namespace, Name: manifest.Name}}
	if err == nil {
		err = a.world.api.Patch(ctx, answer, client.RawPatch(types.ApplyPatchType, data), client.FieldOwner(applierName))
	}
	if ctx.Err() != nil {
		return
	}
	once := applied{commit: commit, err: err, began: began, ended: time.Now()}
	if err == nil {
		once.lost = missing(manifest, answer)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applied = append(a.applied, once)
}

// missing returns the fields of the applied manifest that an object lacks.
func missing(manifest, d *appsv1.Deployment) string {
	var lost []string
	lacks := func(what string, want, got any) {
		if fmt.Sprint(want) != fmt.Sprint(got) {
			lost = append(lost, fmt.Sprintf("%s is %v, not %v", what, got, want))
		}
	}
	for key, value := range manifest.Labels {
		if key == v1alpha1.IgnoredSuspendLabel {
			continue // the release that needs it uses it up
		}
		lacks("label "+key, value, d.Labels[key])
	}
	for key, value := range manifest.Annotations {
		lacks("annotation "+key, value, d.Annotations[key])
	}
	for key, value := range manifest.Spec.Template.Labels {
		lacks("label "+key+" of the template", value, d.Spec.Template.Labels[key])
	}
	lacks("replicas", *manifest.Spec.Replicas, *d.Spec.Replicas)
	for i := range manifest.Spec.Template.Spec.Containers {
		want := &manifest.Spec.Template.Spec.Containers[i]
		j := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == want.Name })
		if j < 0 {
			lost = append(lost, "no container "+want.Name)
			continue
		}
		got := &d.Spec.Template.Spec.Containers[j]
		lacks("image of "+want.Name, want.Image, got.Image)
		for _, v := range want.Env {
			if !slices.Contains(got.Env, v) {
				lost = append(lost, fmt.Sprintf("no %v among %v", v, got.Env))
			}
		}
	}
	return strings.Join(lost, "; ")
}

// keep sets the manifest to apply from now on.
func (a *applier) keep(commit string, d *appsv1.Deployment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d = d.DeepCopy()
	d.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	a.manifest, a.commit = d, commit
}

// of returns the applications of a commit since some time.
func (a *applier) of(commit string, since time.Time) []applied {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(a.applied), func(once applied) bool { return once.commit != commit || once.began.Before(since) })
}

// keepsOn waits until the operator writes nothing in a namespace and a commit was applied several times, and checks each of these
// applications.
func (a *applier) keepsOn(ctx context.Context, ns, commit string, expect func(applied)) {
	GinkgoHelper()
	since := time.Now()
	a.world.restful(ctx, ns)
	Eventually(func() int { return len(a.of(commit, since)) }).WithContext(ctx).Should(BeNumerically(">=", 3))
	for _, once := range a.of(commit, since) {
		expect(once)
	}
}

func isAccepted(once applied) {
	GinkgoHelper()
	Expect(once.err).NotTo(HaveOccurred(), once.commit)
	Expect(once.lost).To(BeEmpty(), once.commit)
}

func isDenied(why string) func(applied) {
	return func(once applied) {
		GinkgoHelper()
		Expect(once.err).To(MatchError(And(ContainSubstring("denied the request"), ContainSubstring(why))), once.commit)
	}
}

var _ = Describe("beside an applier that applies its whole manifest each second", func() {
	w := inSharedWorld()

	It("there is no tug of war, whatever becomes of its releases", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		a, p := w.startApplier(), w.startPorter(ns)
		// commit returns a function that applies the manifest of a commit. Each commit drops the variable of the commit before.
		commit := func(name string, change ...func(*appsv1.Deployment)) func() {
			d := inFlight(ns, "web").Replicas(3).With(afterAWhile).TemplateLabel("test", name)
			d.Container(func(c *corev1.Container) {
				c.Env = []corev1.EnvVar{{Name: "COMMIT", Value: name}, {Name: "ONLY_" + name, Value: "1"}}
			})
			d.Annotation("example.com/commit", name)
			return func() { a.keep(name, d.With(change...).Obj()) }
		}
		current := func() *appsv1.Deployment { return w.getDeployment(ctx, Default, ns, "web") }

		By("releasing")
		commit("first")()
		w.verifiedCommit(ctx, ns, "first")
		By("adding a variable by another tool, which is a release")
		w.kubectl(ctx, "-n", ns, "set", "env", "deployment/web", "-c", "sleep", "KEEP=1")
		w.verified(ctx, ns, "web")
		a.keepsOn(ctx, ns, "first", isAccepted)

		By("failing in the middle of a rollout, which is halted")
		p.let(1)
		commit("second")()
		Eventually(func() string { return current().Spec.Template.Labels["test"] }).WithContext(ctx).Should(Equal("second"))
		failed := w.failFirst(ctx, ns, "web")
		w.eventuallyState(ctx, ns, "web", v1alpha1.ChangeWorkloadSuspend)
		halted := func() {
			GinkgoHelper()
			Expect(current().Labels).To(And(HaveKey(v1alpha1.SuspendLabel), HaveKeyWithValue(v1alpha1.VersionLabel, failed.Spec.Reversion)))
			Expect(current().Annotations).To(HaveKeyWithValue(v1alpha1.HaltedAnnotation, failed.Spec.Reversion))
			Expect(current().Spec.Paused).To(BeTrue())
		}
		a.keepsOn(ctx, ns, "second", isAccepted)
		halted()
		By("applying another commit: it is denied each time")
		commit("third")()
		a.keepsOn(ctx, ns, "third", isDenied("deployment web is suspended"))
		halted()

		By("releasing an override, by a manifest that keeps the override label")
		p.letAll()
		commit("repair", func(d *appsv1.Deployment) {
			metav1.SetMetaDataLabel(&d.ObjectMeta, v1alpha1.IgnoredSuspendLabel, v1alpha1.IgnoredSuspendValue)
		})()
		good := w.verifiedCommit(ctx, ns, "repair")
		Eventually(func() map[string]string { return current().Labels }).WithContext(ctx).ShouldNot(HaveKey(v1alpha1.SuspendLabel))
		a.keepsOn(ctx, ns, "repair", isAccepted)
		Expect(current().Labels).To(HaveKey(v1alpha1.IgnoredSuspendLabel), "it was used up, and applied again")

		By("applying a version that never starts: it is rolled back, and denied from then on")
		commit("broken", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "busybo" })()
		Eventually(func() string { return current().Spec.Template.Spec.Containers[0].Image }).WithContext(ctx).Should(Equal("busybo"))
		bad := current().Labels[v1alpha1.VersionLabel]
		w.rolledBackTo(ctx, ns, "web", good.Spec.Reversion)
		Eventually(func() []time.Time { return w.fieldsGivenBack(ns) }).WithContext(ctx).Should(HaveLen(1))
		a.keepsOn(ctx, ns, "broken", isDenied("version "+bad+" was rolled back at "))
		Expect(current().Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad))

		By("applying the fix")
		commit("fixed", override("rollback", "10m"))()
		fixed := w.verifiedCommit(ctx, ns, "fixed")
		a.keepsOn(ctx, ns, "fixed", isAccepted)
		Expect(current().Annotations).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad), "nothing else")
		Expect(current().Spec.Template.Spec.Containers).To(HaveLen(1))
		Expect(current().Spec.Template.Spec.Containers[0].Env).To(ConsistOf(
			corev1.EnvVar{Name: "COMMIT", Value: "fixed"}, corev1.EnvVar{Name: "ONLY_fixed", Value: "1"}, corev1.EnvVar{Name: "KEEP", Value: "1"}))
		Eventually(func(g Gomega) {
			g.Expect(w.changesIn(ctx, g, ns)).To(And(HaveLen(1), HaveKey(fixed.Name)))
		}).WithContext(ctx).Should(Succeed())
		a.expectNoTugOfWar(ns)
	})
})

// verifiedCommit waits until a commit is released and verified.
func (w *world) verifiedCommit(ctx context.Context, ns, commit string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(w.getDeployment(ctx, g, ns, "web").Spec.Template.Labels).To(HaveKeyWithValue("test", commit))
	}).WithContext(ctx).Should(Succeed())
	return w.verified(ctx, ns, "web")
}

// fieldsGivenBack returns the times at which, after a rollback, the operator gave the fields of the template back to their appliers.
func (w *world) fieldsGivenBack(ns string) (at []time.Time) {
	GinkgoHelper()
	for _, r := range w.writesIn(ns, "deployments") {
		// The operator retries if another write comes in between.
		given := slices.ContainsFunc(r.Paths, func(path string) bool { return strings.HasPrefix(path, "/metadata/managedFields") })
		if given && r.Code < 300 {
			at = append(at, r.Completed)
		}
	}
	return at
}

// expectNoTugOfWar checks a story with one rollback: the operator wrote no more than its steps need, and no applied manifest lost a field
// or met a conflict. Conflicts are allowed only between the rollback and the next write, which gives the fields back.
func (a *applier) expectNoTugOfWar(ns string) {
	GinkgoHelper()
	var rolledBack []time.Time
	var written []string
	for _, r := range a.world.writesIn(ns, "deployments") {
		if r.Code >= 300 {
			continue // another write came in between
		}
		written = append(written, fmt.Sprintf("%s %v", r.Received.UTC().Format("15:04:05.000"), r.Paths))
		if slices.Contains(r.Paths, "/spec/template") {
			rolledBack = append(rolledBack, r.Received)
		}
	}
	givenBack := a.world.fieldsGivenBack(ns)
	Expect(rolledBack).To(HaveLen(1))
	Expect(givenBack).To(HaveLen(1))
	a.mu.Lock()
	defer a.mu.Unlock()
	outcomes := map[string]int{}
	for _, once := range a.applied {
		Expect(once.lost).To(BeEmpty(), once.commit)
		outcome := once.commit + " accepted"
		switch {
		case apierrors.IsConflict(once.err):
			outcome = once.commit + " in conflict"
			Expect(once.began).To(BeTemporally("<", givenBack[0]), once.err.Error())
			Expect(once.ended).To(BeTemporally(">", rolledBack[0]), once.err.Error())
		case once.err != nil:
			outcome = once.commit + " denied"
			Expect(once.commit).To(BeElementOf("third", "broken"), once.err.Error())
			isDenied("")(once)
		}
		outcomes[outcome]++
	}
	AddReportEntry("applied", fmt.Sprint(outcomes))
	AddReportEntry("written", strings.Join(written, "\n"))
	// The operator records seven releases. It writes the block, its end, the rollback and the fields that it gives back. It may report an
	// override in up to three more writes.
	Expect(len(written)).To(BeNumerically("<=", 7+4+3), "%v", written)
}
