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
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/observer"
)

// older is the commit to upgrade from, and to go back to. Before the first release it is an old commit, whose kinds lack many fields. After
// a release it is the commit of the release.
const older = "d05c0766042fa09917cd381aac2c423d9a401396"

// olderTree extracts the older commit from the history of the repository, and builds its manager as make build does, but with the libraries
// of this commit: those of the older one would have to be fetched and compiled, which takes minutes of two cores.
func olderTree(ctx context.Context) string {
	GinkgoHelper()
	if _, err := os.Stat(filepath.Join(root, ".git")); errors.Is(err, os.ErrNotExist) {
		Skip("this is no clone: the commit to upgrade from is in the history of the repository only")
	}
	var problem bytes.Buffer
	if exec.CommandContext(ctx, "git", "-C", root, "cat-file", "-e", older+"^{commit}").Run() != nil {
		shallow, err := exec.CommandContext(ctx, "git", "-C", root, "rev-parse", "--is-shallow-repository").Output()
		if err == nil && string(bytes.TrimSpace(shallow)) == "true" {
			Skip("the clone is shallow, without the commit to upgrade from: git fetch --unshallow")
		}
	}
	archive := exec.CommandContext(ctx, "git", "-C", root, "archive", older)
	archive.Stderr = &problem
	files, err := archive.Output()
	Expect(err).NotTo(HaveOccurred(), "git archive %s: %s; the test needs the whole history: git fetch --unshallow", older, &problem)
	dir := GinkgoT().TempDir()
	Expect(unpack(files, dir)).To(Succeed())
	build := exec.CommandContext(ctx, "go", "build", "-modfile="+filepath.Join(root, "go.mod"), "-trimpath", "-buildvcs=false",
		"-o", filepath.Join("bin", "manager"), ".")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "build the manager of %s\n%s", older, out)
	return dir
}

// unpack writes the directories and files of a tar archive of git.
func unpack(archive []byte, dir string) error {
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o750)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			return err
		}
	}
}

// service is one address in front of several replicas, like the Service of the webhooks. Each connection goes to a ready replica, in turns.
type service struct {
	listener net.Listener
	mu       sync.Mutex
	ready    []string
	next     int
}

func newService(ctx context.Context) *service {
	GinkgoHelper()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	s := &service{listener: listener}
	DeferCleanup(listener.Close)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.forward(conn)
		}
	}()
	return s
}

func (s *service) forward(conn net.Conn) {
	defer conn.Close()
	s.mu.Lock()
	if len(s.ready) == 0 {
		s.mu.Unlock()
		return
	}
	s.next++
	address := s.ready[s.next%len(s.ready)]
	s.mu.Unlock()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	over := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{conn, to}, {to, conn}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // the end of either is the end of both
			over <- struct{}{}
		}()
	}
	<-over
}

func (s *service) set(ready []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = ready
}

// rollout is the operator as its Deployment rolls it out: replicas of successive versions behind one Service. One replica leads.
type rollout struct {
	*world
	service *service
	running []*controlplane.Manager
}

// apply installs the manifests of a version, as kubectl apply does before its first replica starts, and prepares its two replicas.
func (r *rollout) apply(ctx context.Context, tree, name string) (replicas []*controlplane.Manager) {
	GinkgoHelper()
	for i := range 2 {
		m, err := r.cluster.InstallManager(ctx, controlplane.ManagerOptions{
			Root: tree, Name: fmt.Sprintf("%s-%d", name, i+1), Args: []string{"--leader-elect=true"},
		})
		Expect(err).NotTo(HaveOccurred())
		replicas = append(replicas, m)
	}
	// The webhook configurations trust the certificates of all replicas.
	var authorities []byte
	for _, m := range append(slices.Clone(r.running), replicas...) {
		authorities = append(authorities, m.WebhookCA()...)
	}
	manifests, err := controlplane.WebhookManifests(
		filepath.Join(tree, "config", "webhook", "manifests.yaml"), r.service.listener.Addr().String(), authorities)
	Expect(err).NotTo(HaveOccurred())
	path := filepath.Join(GinkgoT().TempDir(), "webhooks.yaml")
	Expect(os.WriteFile(path, manifests, 0o600)).To(Succeed())
	Expect(r.cluster.ApplyFiles(ctx, path)).To(Succeed())
	r.replaced++
	return replicas
}

func (r *rollout) start(ctx context.Context, m *controlplane.Manager) {
	GinkgoHelper()
	DeferCleanup(m.Stop)
	Expect(m.Start(ctx)).To(Succeed())
	r.running = append(r.running, m)
	r.route()
}

// stopFirst stops the oldest replica. It leaves the Service first.
func (r *rollout) stopFirst() {
	GinkgoHelper()
	m := r.running[0]
	r.running = r.running[1:]
	r.route()
	r.kills++
	Expect(m.Stop()).To(Succeed())
}

// goBack begins the undo to an older version. Until it ends, the newer version runs under roles of the older one, which give
// fewer rights, and may log errors.
func (r *rollout) goBack(ctx context.Context) {
	GinkgoHelper()
	By("going back")
	r.expectInvariants(ctx)
	r.exempt = map[observer.Invariant]string{observer.RightsSuffice: "the roles of an older version give fewer rights"}
}

func (r *rollout) route() {
	var ready []string
	for _, m := range r.running {
		ready = append(ready, m.WebhookAddress())
	}
	r.service.set(ready)
}

// replace lets another version take over, one replica after the other, and checks each step.
func (r *rollout) replace(ctx context.Context, replicas []*controlplane.Manager, check func(step string)) {
	GinkgoHelper()
	for i, m := range replicas {
		r.start(ctx, m)
		check(fmt.Sprintf("%d of the other version beside %d", i+1, len(r.running)-i-1))
		r.stopFirst()
		check(fmt.Sprintf("%d of the other version beside %d", i+1, len(r.running)-i-1))
	}
}

// onUpgrade has the workloads that live through an upgrade, in a namespace.
type onUpgrade struct {
	*world
	ns       string
	releases int
	// pods are the pods of the workload that has no release.
	pods []types.UID
}

// check returns a function that checks that the workloads and their releases go on while any versions run.
func (u *onUpgrade) check(ctx context.Context) func(step string) {
	return func(step string) {
		GinkgoHelper()
		By(step)
		Expect(u.podUIDs(ctx, Default, u.ns, "steady")).To(ConsistOf(u.pods), "pods without a release")
		u.denied(ctx, "blocked", `{"spec":{"template":{"metadata":{"labels":{"test":"denied"}}}}}`, "is suspended")
		u.denied(ctx, "undone", `{"spec":{"template":{"spec":{"containers":[{"name":"sleep","image":"busybo"}]}}}}`, "was rolled back at ")
		d := u.getDeployment(ctx, Default, u.ns, "halted")
		Expect(d.Spec.Paused).To(BeTrue())
		Expect(d.Annotations).To(HaveKey(v1alpha1.HaltedAnnotation))
		u.releases++
		Expect(u.patchTemplate(ctx, u.ns, "busy", fmt.Sprint("release-", u.releases))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(u.getDeployment(ctx, g, u.ns, "busy").Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, fmt.Sprint(u.releases+1)))
		}).WithContext(ctx).Should(Succeed())
		u.eventuallyState(ctx, u.ns, "busy", v1alpha1.ChangeWorkloadSuccess)
		out := u.kubectl(ctx, "-n", u.ns, "get", "changeworkloads,changepods", "-o", "wide")
		Expect(out).To(And(ContainSubstring("Suspend"), ContainSubstring("Success"), ContainSubstring("ExecuteDone")))
	}
}

// denied checks by a dry run that a release is denied, and why. On a busy machine a webhook may answer too late. Then the API server
// returns another error, and it tries again.
func (u *onUpgrade) denied(ctx context.Context, name, patch, why string) {
	GinkgoHelper()
	Eventually(func() error {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: u.ns, Name: name}}
		return u.api.Patch(ctx, d, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), client.DryRunAll)
	}).WithContext(ctx).Should(MatchError(ContainSubstring(why)), name)
}

// before creates workloads that are at rest, blocked, halted, and rolled back with a version in quarantine.
func (u *onUpgrade) before(ctx context.Context) {
	GinkgoHelper()
	for _, name := range []string{"steady", "blocked", "busy"} {
		u.create(ctx, sleeper(u.ns, name).Replicas(2))
	}
	u.create(ctx, sleeper(u.ns, "undone").Replicas(2).With(slowly, afterAWhile))
	u.failInFlight(ctx, inFlight(u.ns, "halted").Replicas(4))
	u.block(ctx, u.ns, "blocked")
	good := u.eventuallyState(ctx, u.ns, "undone", v1alpha1.ChangeWorkloadSuccess)
	Expect(u.setImage(ctx, u.ns, "undone", "busybo")).To(Succeed())
	Eventually(func(g Gomega) {
		d := u.getDeployment(ctx, g, u.ns, "undone")
		g.Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, good.Spec.Reversion))
		g.Expect(d.Annotations).To(HaveKey(v1alpha1.QuarantinedAnnotation))
	}).WithContext(ctx).Should(Succeed())
	u.eventuallyState(ctx, u.ns, "undone", v1alpha1.ChangeWorkloadSuccess)
	u.eventuallyState(ctx, u.ns, "steady", v1alpha1.ChangeWorkloadSuccess)
	u.eventuallyState(ctx, u.ns, "busy", v1alpha1.ChangeWorkloadSuccess)
	u.pods = u.podUIDs(ctx, Default, u.ns, "steady")
	Expect(u.pods).To(HaveLen(2))
}

// inTheAir begins two releases that another version has to end: a rollout that waits in the middle, and pods that never come up. The
// returned function ends both.
func (u *onUpgrade) inTheAir(ctx context.Context) (land func()) {
	GinkgoHelper()
	ns := u.newNamespace(ctx, true)
	p := u.startPorter(ns)
	u.create(ctx, inFlight(ns, "moving").Replicas(4))
	u.create(ctx, sleeper(ns, "stuck").Replicas(2).With(slowly, override("rollback", "1h")))
	u.eventuallyState(ctx, ns, "moving", v1alpha1.ChangeWorkloadSuccess)
	good := u.eventuallyState(ctx, ns, "stuck", v1alpha1.ChangeWorkloadSuccess)
	p.let(2)
	Expect(u.patchTemplate(ctx, ns, "moving", "second")).To(Succeed())
	Expect(u.setImage(ctx, ns, "stuck", "busybo")).To(Succeed())
	moving := u.eventuallyBatches(ctx, ns, "moving", 2)[0].Spec.ChangeWorkloadID
	Eventually(func(g Gomega) {
		g.Expect(u.currentChange(ctx, g, ns, "stuck").Spec.Reversion).NotTo(Equal(good.Spec.Reversion))
	}).WithContext(ctx).Should(Succeed())
	return func() {
		GinkgoHelper()
		p.letAll()
		change := u.eventuallyState(ctx, ns, "moving", v1alpha1.ChangeWorkloadSuccess)
		Expect(change.Name).To(Equal(moving))
		Expect(change.Status.PassCount).To(Equal(int32(4)), "each pod was verified once")
		Expect(u.batchesOf(ctx, Default, change)).To(HaveLen(4))
		u.kubectl(ctx, "-n", ns, "annotate", "deployment", "stuck", "--overwrite", v1alpha1.SettingAnnotationPrefix+"rollback=5s")
		Eventually(func(g Gomega) {
			d := u.getDeployment(ctx, g, ns, "stuck")
			g.Expect(d.Labels).To(HaveKeyWithValue(v1alpha1.VersionLabel, good.Spec.Reversion))
			g.Expect(d.Annotations).To(HaveKeyWithValue(v1alpha1.ReleaseAnnotation, "3"))
		}).WithContext(ctx).Should(Succeed())
		u.eventuallyState(ctx, ns, "stuck", v1alpha1.ChangeWorkloadSuccess)
	}
}

// after lifts the blocks and the pause by override releases.
func (u *onUpgrade) after(ctx context.Context) {
	GinkgoHelper()
	for _, name := range []string{"blocked", "halted"} {
		Expect(u.patchDeployment(ctx, u.ns, name, repair("good"))).To(Succeed())
		u.eventuallyState(ctx, u.ns, name, v1alpha1.ChangeWorkloadSuccess)
		Eventually(func(g Gomega) {
			d := u.getDeployment(ctx, g, u.ns, name)
			g.Expect(d.Labels).NotTo(HaveKey(v1alpha1.SuspendLabel))
			g.Expect(d.Spec.Paused).To(BeFalse())
		}).WithContext(ctx).Should(Succeed())
	}
}

var _ = Describe("an upgrade", Ordered, SpecPriority(longest), Label(soak), func() {
	w := &world{own: true}
	var r *rollout
	var tree string

	BeforeAll(func(ctx SpecContext) {
		tree = olderTree(ctx)
		w.start(ctx)
		r = &rollout{world: w, service: newService(ctx)}
		replicas := r.apply(ctx, tree, "older")
		w.observe(time.Time{})
		for _, m := range replicas {
			r.start(ctx, m)
		}
		w.logs = func() (paths []string) {
			for _, m := range r.running {
				paths = append(paths, m.LogPath())
			}
			return paths
		}
	}, NodeTimeout(10*patience))
	w.judgeSpecs()
	// The managers of a spec stop at its end. The audit log lacks the versions that their last requests write.
	AfterEach(func(ctx SpecContext) {
		if w.observer != nil && !CurrentSpecReport().Failed() {
			w.rests(ctx, 3*time.Second)
		}
	}, NodeTimeout(patience))

	It("from an earlier commit, and back to it, restarts nothing, loses no block, and lets releases go on", func(ctx SpecContext) {
		u := &onUpgrade{world: w, ns: w.newNamespace(ctx, true)}
		u.before(ctx)
		land := u.inTheAir(ctx)
		By("upgrading")
		newer := r.apply(ctx, root, "newer")
		r.replace(ctx, newer, u.check(ctx))
		land()
		for _, m := range newer {
			expectNoErrors(m.LogPath())
		}

		r.goBack(ctx)
		land = u.inTheAir(ctx)
		r.replace(ctx, r.apply(ctx, tree, "older-again"), u.check(ctx))
		land()
		u.after(ctx)
	}, SpecTimeout(5*patience))

	It("from a version that defends only Deployments restarts nothing of other kinds, and invents no release of them", func(ctx SpecContext) {
		// The replicas of another spec ended with it.
		w.observer.OperatorStops()
		for len(r.running) > 0 {
			r.stopFirst()
		}
		// A version that defends all kinds ran here as well. This setting has the time since when: the operator creates it again.
		blocking := &v1alpha1.OpsConfigInfo{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.ManagerNamespace, Name: settings.NameBlocking}}
		Expect(client.IgnoreNotFound(w.api.Delete(ctx, blocking))).To(Succeed())
		for _, m := range r.apply(ctx, tree, "older-beside-kinds") {
			r.start(ctx, m)
		}
		w.observer.OperatorStarts()
		w.exempt = nil
		k := &newKinds{world: w}
		k.before(ctx)
		By("upgrading")
		newer := r.apply(ctx, root, "kinds")
		k.check(ctx)("the manifests applied")
		r.replace(ctx, newer, k.check(ctx))
		k.released(ctx)
		for _, m := range newer {
			expectNoErrors(m.LogPath())
		}

		r.goBack(ctx)
		w.leaveUnfinished("the older version verifies no pods of other kinds")
		Expect(k.set.running(ctx)).To(HaveLen(3))
		k.pods, k.templates = k.seen(ctx, Default)
		r.replace(ctx, r.apply(ctx, tree, "older-kinds"), func(string) {})
		k.left(ctx)
	}, SpecTimeout(5*patience))
})
