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
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/rollback"
)

// story is a bad day of one workload, in a namespace of its own. All stories run side by side: most of their time is waiting.
type story struct {
	name, ns string
	play     func(*stage)
	// of, release and want are a line of outcomes.md: the workload, the released version, and the outcome within a usual time. Stories
	// of Deployments have none: rows are about Deployments.
	of, release, want string
	within            time.Duration
	// took is the time until the outcome.
	took time.Duration
	err  error
	done chan struct{}
}

// How long some parts of a story take.
const (
	// evicted is the time after which a stuck pod is evicted, and recreated the time in which three pods are, one by one: beside
	// the crash loops of the rows a kubelet takes half a minute for each.
	evicted, recreated = rollback.EvictAfter, 90 * time.Second
	// crashLoop is the time after which a pod that crashes is rolled back where the setting rollback allows 20 s.
	crashLoop = time.Minute
)

func stories() []*story {
	all := []*story{
		{name: "rolls back a release that crashes late, and takes a fix without an override", play: crashesAndIsFixed},
		{name: "suspends a release whose pods crash where nothing is rolled back", play: crashesWithoutRollback},
		{name: "adds nothing to a StatefulSet's update strategy that the API server refuses", play: refusedStrategy},
		{name: "evicts the stuck pod of a StatefulSet when a fix is released", play: stuckStatefulSet,
			of: "StatefulSet, OrderedReady, rollback disabled", release: "a fix, while a pod crashes at start",
			want: "the stuck pod is evicted, Success", within: twice(evicted + recreated)},
		{name: "evicts the stuck pod of a StatefulSet that was rolled back", play: stuckRolledBack,
			of: "StatefulSet, OrderedReady, rollback 20s", release: "crashes at start",
			want: "rolled back for a crash loop, the stuck pod is evicted, Success", within: twice(crashLoop + evicted + recreated)},
		{name: "keeps a StatefulSet halted when its manifest is applied again", play: haltAgainstApply,
			of: "StatefulSet, halted", release: "the same again, scaled", want: "still halted; with the override label complete",
			within: twice(recreated)},
		{name: "rolls back a StatefulSet whose image cannot be pulled", play: unpulledImage("StatefulSet"),
			of: "StatefulSet, rollback 20s", release: "names an image that cannot be pulled",
			want: "rolled back for its image, Success", within: twice(20*time.Second + evicted + recreated)},
		{name: "rolls back a DaemonSet whose image cannot be pulled", play: unpulledImage("DaemonSet"),
			of: "DaemonSet, rollback 20s", release: "names an image that cannot be pulled",
			want: "rolled back for its image, Success", within: twice(20*time.Second + recreated)},
		{name: "holds a StatefulSet until the pods of each step are verified", play: heldStatefulSet,
			of: "StatefulSet, holding every", release: "runs", want: "each step waits until the pods of the last one are verified, Success",
			within: twice(recreated + 2*lasting)},
	}
	for _, s := range all {
		s.done = make(chan struct{})
	}
	return all
}

// begin plays the story. It goes on when the node of the suite that calls it is over.
func (s *story) begin(ctx context.Context) {
	s.ns = newNamespace(ctx, "story")
	go func() {
		defer close(s.done)
		defer func() {
			if failure := recover(); failure != nil {
				s.err = fmt.Errorf("namespace %s: %v", s.ns, failure)
			}
		}()
		g := NewGomega(func(message string, _ ...int) { panic(message) })
		s.play(&stage{Gomega: g, ctx: context.WithoutCancel(ctx), ns: s.ns, story: s})
	}()
}

// stage is where a story plays: one namespace with the workload "app" in it.
type stage struct {
	Gomega
	ctx  context.Context
	ns   string
	kind string
	// story is nil where a soak plays a part of one.
	story *story
}

// came records how long the outcome took.
func (s *stage) came(released time.Time) {
	if s.story != nil {
		s.story.took = time.Since(released)
	}
}

// try runs kubectl in the namespace.
func (s *stage) try(input string, args ...string) (string, error) {
	command := cluster.Kubectl(s.ctx, append([]string{"-n", s.ns}, args...)...)
	command.Stdin = strings.NewReader(input)
	return output(command)
}

// apply applies the manifest of the workload, as a tool that has it in Git does.
func (s *stage) apply(m manifest) {
	s.kind = m.kind
	out, err := s.try(m.String(), "apply", "-f", "-")
	s.Expect(err).NotTo(HaveOccurred(), out)
}

// soon waits until look succeeds: up to three times the usual time, because the machine may be busy.
func (s *stage) soon(what string, within time.Duration, look func(g Gomega)) {
	s.Eventually(look).WithContext(s.ctx).WithTimeout(3*within).WithPolling(time.Second).Should(Succeed(), what)
}

// workload returns the workload as it is now.
func (s *stage) workload(g Gomega) *unstructured.Unstructured {
	w := &unstructured.Unstructured{}
	w.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: s.kind})
	g.Expect(api.Get(s.ctx, types.NamespacedName{Namespace: s.ns, Name: "app"}, w)).To(Succeed())
	return w
}

// release returns the record of the workload's current release.
func (s *stage) release(g Gomega) *v1alpha1.ChangeWorkload {
	version := s.workload(g).GetLabels()[v1alpha1.VersionLabel]
	var found *v1alpha1.ChangeWorkload
	for _, change := range changesIn(s.ctx, g, s.ns) {
		if change.Spec.Reversion == version && change.Status.ObservedRelease == change.Spec.Release {
			found = change
		}
	}
	g.Expect(found).NotTo(BeNil(), "version %q has no record", version)
	return found
}

// becomes waits until the current release is in a state.
func (s *stage) becomes(state v1alpha1.ChangeWorkloadStatusType, within time.Duration) *v1alpha1.ChangeWorkload {
	var change *v1alpha1.ChangeWorkload
	s.soon("state "+string(state), within, func(g Gomega) {
		change = s.release(g)
		g.Expect(change.Status.Status).To(Equal(state), describeRelease(change))
	})
	return change
}

func describeRelease(change *v1alpha1.ChangeWorkload) string {
	said := []string{fmt.Sprintf("%s is %q", change.Name, change.Status.Status)}
	for _, c := range change.Status.Conditions {
		said = append(said, fmt.Sprintf("%s=%s/%s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(said, "\n")
}

// judge writes a verdict on the pods of a batch of the current release, as the walkthrough does.
func (s *stage) judge(change *v1alpha1.ChangeWorkload, batch int, verdict string) {
	name := fmt.Sprintf("%s--x--%d", change.Name, batch)
	var pods v1alpha1.ChangePod
	s.soon("batch "+name, 5*time.Minute, func(g Gomega) {
		g.Expect(api.Get(s.ctx, types.NamespacedName{Namespace: s.ns, Name: name}, &pods)).To(Succeed())
		g.Expect(pods.Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone))
	})
	before := pods.DeepCopy()
	for i := range pods.Status.PodResults {
		pods.Status.PodResults[i].Verdict, pods.Status.PodResults[i].Message = verdict, "find error"
	}
	s.Expect(api.Status().Patch(s.ctx, &pods, client.MergeFrom(before))).To(Succeed())
}

// blocked reports whether the workload has the label that denies releases.
func (s *stage) blocked(g Gomega) bool {
	_, blocked := s.workload(g).GetLabels()[v1alpha1.SuspendLabel]
	return blocked
}

// manifest is a workload as its user has it in a file.
type manifest struct {
	kind     string
	replicas int
	script   string
	// image is busybox where it is not set.
	image string
	// settings are annotations of the operator, labels are labels of the workload.
	settings, labels map[string]string
	// spec is added to the workload's spec.
	spec string
	// ready has the pods probed on port 8080.
	ready bool
	// node is the node of the pods; empty means any.
	node string
}

const (
	serves8080 = "httpd -p 8080; exec sleep infinity"
	// crashesLate runs for a while once, and then crashes at each start.
	crashesLate = "[ -e /state/ran ] && exit 1; touch /state/ran; sleep 100; exit 1"
)

func (m manifest) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: apps/v1\nkind: %s\nmetadata:\n  name: app\n  labels:\n    app: app\n", m.kind)
	for key, value := range m.labels {
		fmt.Fprintf(&b, "    %s: %q\n", key, value)
	}
	b.WriteString("  annotations:\n    team: a\n")
	for name, value := range m.settings {
		fmt.Fprintf(&b, "    %s%s: %q\n", v1alpha1.SettingAnnotationPrefix, name, value)
	}
	fmt.Fprintf(&b, "spec:\n  selector: {matchLabels: {app: app}}\n%s", m.spec)
	if m.kind != "DaemonSet" {
		fmt.Fprintf(&b, "  replicas: %d\n", m.replicas)
	}
	if m.kind == "StatefulSet" {
		b.WriteString("  serviceName: app\n")
	}
	fmt.Fprintf(&b, `  template:
    metadata: {labels: {app: app}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{name: state, emptyDir: {}}]
      containers:
      - {name: app, image: %q, imagePullPolicy: IfNotPresent, command: [/bin/sh, -c, %q],
        volumeMounts: [{name: state, mountPath: /state}]`, cmp.Or(m.image, "busybox"), m.script)
	if m.ready {
		b.WriteString(`, readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}`)
	}
	b.WriteString("}\n")
	if m.node != "" {
		fmt.Fprintf(&b, "      nodeSelector: {%s: %s}\n", corev1.LabelHostname, m.node)
	}
	return b.String()
}

// with returns the manifest with another script.
func (m manifest) with(script string) manifest {
	m.script = script
	return m
}

// A version is Success after some seconds, unless the machine is busy, and crashes a minute later. The default policy suspends it. No pod
// of it runs, so it is rolled back nevertheless, and the fix needs no override.
func crashesAndIsFixed(s *stage) {
	good := manifest{kind: "Deployment", replicas: 3, script: "sleep infinity", spec: "  strategy: {rollingUpdate: {maxSurge: 100%}}\n",
		settings: map[string]string{"rollback": "after=30s,proven=10m"}}
	s.apply(good)
	before := s.becomes(v1alpha1.ChangeWorkloadSuccess, 6*time.Minute).Spec.Reversion
	s.apply(good.with(crashesLate))
	var bad string
	s.soon("the release", time.Minute, func(g Gomega) {
		bad = s.workload(g).GetLabels()[v1alpha1.VersionLabel]
		g.Expect(bad).NotTo(Equal(before))
	})
	s.soon("the rollback", 8*time.Minute, func(g Gomega) {
		w := s.workload(g)
		g.Expect(w.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, before), describeRelease(s.release(g)))
		g.Expect(w.GetAnnotations()[v1alpha1.QuarantinedAnnotation]).To(ContainSubstring(bad))
	})
	s.soon("the block to be lifted", 6*time.Minute, func(g Gomega) { g.Expect(s.blocked(g)).To(BeFalse()) })
	_, err := s.try(good.with(crashesLate).String(), "apply", "-f", "-")
	s.Expect(err).To(MatchError(ContainSubstring("was rolled back at")), "the version that crashes is in quarantine")
	s.apply(good.with("sleep 600"))
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 6*time.Minute)
	s.Expect(s.blocked(s)).To(BeFalse())
}

// Without rollbacks, only the default policy can find crashes: nothing else reads CrashLoopBackOff.
func crashesWithoutRollback(s *stage) {
	good := manifest{kind: "Deployment", replicas: 2, script: "sleep infinity", settings: map[string]string{"rollback": "disabled"}}
	s.apply(good)
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 6*time.Minute)
	s.apply(good.with(crashesLate))
	change := s.becomes(v1alpha1.ChangeWorkloadSuspend, 8*time.Minute)
	s.Expect(change.Status.DefenseCheckFailPods).NotTo(BeEmpty())
	s.Expect(s.blocked(s)).To(BeTrue())
}

// The API server of this version does not know the strategy: its own refusal is all that a user sees.
func refusedStrategy(s *stage) {
	good := manifest{kind: "StatefulSet", replicas: 2, script: serves8080, settings: map[string]string{"holding": "every"},
		spec: "  podManagementPolicy: Parallel\n"}
	s.apply(good)
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 6*time.Minute)
	other := good.with(serves8080 + " # 2")
	other.spec += "  updateStrategy: {type: Recreate}\n"
	out, err := s.try(other.String(), "apply", "-f", "-")
	s.Expect(err).To(HaveOccurred())
	s.Expect(out).To(ContainSubstring("spec.updateStrategy"))
	s.Expect(out).NotTo(MatchRegexp(`"partition":[1-9]`), "a hold is in it")
	s.Expect(s.workload(s).GetAnnotations()).NotTo(HaveKey(v1alpha1.HeldAnnotation))
}

// A pod that crashes keeps an OrderedReady StatefulSet from every later version (kubernetes/kubernetes#67250).
func stuckStatefulSet(s *stage) {
	good := manifest{kind: "StatefulSet", replicas: 3, script: serves8080, ready: true, settings: map[string]string{"rollback": "disabled"}}
	s.apply(good)
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 4*time.Minute)
	s.apply(good.with("sleep 2; exit 1"))
	s.soon("the crash loop", 6*time.Minute, func(g Gomega) {
		p := &corev1.Pod{}
		g.Expect(api.Get(s.ctx, types.NamespacedName{Namespace: s.ns, Name: "app-2"}, p)).To(Succeed())
		g.Expect(p.Status.ContainerStatuses).NotTo(BeEmpty())
		g.Expect(p.Status.ContainerStatuses[0].RestartCount).To(BeNumerically(">=", 2))
	})
	fix := good.with(serves8080 + " # fixed")
	fix.labels = map[string]string{v1alpha1.IgnoredSuspendLabel: v1alpha1.IgnoredSuspendValue}
	released := time.Now()
	s.apply(fix)
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 6*time.Minute)
	s.came(released)
}

// After a rollback, the restored version waits for the pod.
func stuckRolledBack(s *stage) {
	good := manifest{kind: "StatefulSet", replicas: 3, script: serves8080, ready: true, settings: map[string]string{"rollback": "20s"}}
	s.apply(good)
	before := s.becomes(v1alpha1.ChangeWorkloadSuccess, 4*time.Minute)
	released := time.Now()
	s.apply(good.with("sleep 2; exit 1"))
	s.restored(released, before, "a crash loop")
}

// restored waits until a version was restored, for a cause, and serves again. Then it checks that this lasts.
func (s *stage) restored(released time.Time, to *v1alpha1.ChangeWorkload, why string) {
	serves := func(g Gomega) {
		w := s.workload(g)
		g.Expect(w.GetLabels()).To(HaveKeyWithValue(v1alpha1.VersionLabel, to.Spec.Reversion))
		reasons := map[string]rollback.QuarantineReason{}
		g.Expect(json.Unmarshal([]byte(w.GetAnnotations()[v1alpha1.QuarantineReasonAnnotation]), &reasons)).To(Succeed())
		g.Expect(reasons).To(HaveLen(1))
		for _, reason := range reasons {
			g.Expect(cause(reason.Reason)).To(Equal(why))
		}
		change := s.release(g)
		g.Expect(change.Spec.Release).To(BeNumerically(">", to.Spec.Release), "the rollback has no record")
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess), describeRelease(change))
		var pods corev1.PodList
		g.Expect(api.List(s.ctx, &pods, client.InNamespace(s.ns))).To(Succeed())
		g.Expect(pods.Items).To(HaveLen(3))
		for i := range pods.Items {
			p := &pods.Items[i]
			g.Expect(p.Spec.Containers[0].Image).To(Equal("busybox"), p.Name)
			g.Expect(p.Spec.Containers[0].Command).To(Equal(shell(serves8080)), p.Name)
			g.Expect(isReady(p)).To(BeTrue(), p.Name)
		}
	}
	s.soon("the rollback", bound, serves)
	s.came(released)
	s.Consistently(serves).WithContext(s.ctx).WithTimeout(lasting).WithPolling(time.Second).Should(Succeed())
}

// Git has no partition. Applying the manifest again, scaled, leaves the halt; with the label it resumes.
func haltAgainstApply(s *stage) {
	good := manifest{kind: "StatefulSet", replicas: 3, script: serves8080, ready: true,
		spec: "  minReadySeconds: 10\n  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0}}\n"}
	s.apply(good)
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 4*time.Minute)
	next := good.with(serves8080 + " # 2")
	s.apply(next)
	var change *v1alpha1.ChangeWorkload
	s.soon("the record", time.Minute, func(g Gomega) {
		change = s.release(g)
		g.Expect(change.Spec.Release).To(BeEquivalentTo(2))
	})
	s.judge(change, 1, "unpass")
	partition := func(g Gomega) int64 {
		value, _, err := unstructured.NestedInt64(s.workload(g).Object, "spec", "updateStrategy", "rollingUpdate", "partition")
		g.Expect(err).NotTo(HaveOccurred())
		return value
	}
	s.soon("the halt", time.Minute, func(g Gomega) { g.Expect(partition(g)).To(BeNumerically(">=", 3)) })
	s.apply(next)
	next.replicas = 4
	s.apply(next)
	s.Consistently(func(g Gomega) {
		g.Expect(partition(g)).To(BeNumerically(">=", 4), "an apply resumed the halted rollout")
		g.Expect(s.workload(g).GetAnnotations()).To(HaveKey(v1alpha1.HaltedAnnotation))
	}).WithContext(s.ctx).WithTimeout(20 * time.Second).WithPolling(time.Second).Should(Succeed())
	next.labels = map[string]string{v1alpha1.IgnoredSuspendLabel: v1alpha1.IgnoredSuspendValue}
	resumed := time.Now()
	s.apply(next)
	s.soon("the rollout to go on", 4*time.Minute, func(g Gomega) {
		w := s.workload(g)
		g.Expect(partition(g)).To(BeZero())
		g.Expect(w.GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedAnnotation))
		updated, _, _ := unstructured.NestedInt64(w.Object, "status", "updatedReplicas")
		g.Expect(updated).To(BeEquivalentTo(4))
	})
	s.came(resumed)
	c := meta.FindStatusCondition(s.release(s).Status.Conditions, v1alpha1.ConditionVerified)
	s.Expect(c).NotTo(BeNil())
}

// A version whose image is not there never starts, whatever the kind.
func unpulledImage(kind string) func(*stage) {
	return func(s *stage) {
		good := manifest{kind: kind, replicas: 3, script: serves8080, ready: true, settings: map[string]string{"rollback": "20s"}}
		s.apply(good)
		before := s.becomes(v1alpha1.ChangeWorkloadSuccess, 6*time.Minute)
		bad := good
		bad.image = "busybo"
		released := time.Now()
		s.apply(bad)
		s.restored(released, before, "its image")
	}
}

// Each step of a held StatefulSet waits for the checks of the pods of the step before.
func heldStatefulSet(s *stage) {
	good := manifest{kind: "StatefulSet", replicas: 3, script: serves8080, ready: true, settings: map[string]string{"holding": "every"}}
	s.apply(good)
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 6*time.Minute)
	released := time.Now()
	s.apply(good.with(serves8080 + " # 2"))
	partition := func(g Gomega) int64 {
		value, _, err := unstructured.NestedInt64(s.workload(g).Object, "spec", "updateStrategy", "rollingUpdate", "partition")
		g.Expect(err).NotTo(HaveOccurred())
		return value
	}
	s.Expect(s.workload(s).GetAnnotations()).To(HaveKey(v1alpha1.HeldAnnotation))
	for step := int64(2); step >= 0; step-- {
		var batch v1alpha1.ChangePod
		s.soon("the checks of a step", 4*time.Minute, func(g Gomega) {
			g.Expect(partition(g)).To(BeNumerically("<=", step))
			name := fmt.Sprintf("%s--x--%d", s.release(g).Name, 3-step)
			g.Expect(api.Get(s.ctx, types.NamespacedName{Namespace: s.ns, Name: name}, &batch)).To(Succeed())
			g.Expect(batch.Status.Checks).NotTo(BeEmpty())
		})
		if step > 0 {
			s.Consistently(partition).WithContext(s.ctx).WithTimeout(10*time.Second).WithPolling(time.Second).Should(
				Equal(step), "the checks have not passed")
		}
		s.soon("the checks to pass", time.Minute, func(g Gomega) {
			g.Expect(api.Get(s.ctx, client.ObjectKeyFromObject(&batch), &batch)).To(Succeed())
			for i := range batch.Status.Checks {
				batch.Status.Checks[i].Phase = v1alpha1.CheckPassed
			}
			g.Expect(api.Status().Update(s.ctx, &batch)).To(Succeed())
		})
	}
	s.becomes(v1alpha1.ChangeWorkloadSuccess, 4*time.Minute)
	s.came(released)
	s.soon("the hold to be given back", time.Minute, func(g Gomega) {
		g.Expect(partition(g)).To(BeZero())
		g.Expect(s.workload(g).GetAnnotations()).NotTo(HaveKey(v1alpha1.HeldAnnotation))
	})
}
