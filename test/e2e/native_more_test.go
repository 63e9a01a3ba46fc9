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
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// natives returns a StatefulSet and a DaemonSet in one namespace. Stories play with both side by side, for most of a story is waiting.
func (w *world) natives(ns string) []native {
	return []native{{w, "statefulset", ns}, {w, "daemonset", ns}}
}

// annotate sets an annotation.
func (n native) annotate(ctx context.Context, key, value string) {
	GinkgoHelper()
	Expect(n.patch(ctx, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value))).To(Succeed())
}

func (n native) version(ctx context.Context, g Gomega) string {
	GinkgoHelper()
	return n.get(ctx, g).GetLabels()[v1alpha1.VersionLabel]
}

// current returns the current release.
func (n native) current(ctx context.Context, g Gomega) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	o := n.get(ctx, g)
	change := n.changesIn(ctx, g, n.namespace)["sleep--x--"+n.kind+"-"+o.GetLabels()[v1alpha1.VersionLabel]]
	g.Expect(change).NotTo(BeNil())
	g.Expect(fmt.Sprint(change.Status.ObservedRelease)).To(Equal(o.GetAnnotations()[v1alpha1.ReleaseAnnotation]))
	return change
}

// verified waits until the current release is a correct Success: there are so many pods, all of one template, each in one batch of this
// attempt.
func (n native) verified(ctx context.Context, pods int) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = n.current(ctx, g)
		g.Expect(change.Status.Status).To(Equal(v1alpha1.ChangeWorkloadSuccess))
		g.Expect(change.Status.FailCount + change.Status.CheckingCount + change.Status.PreparingCount).To(BeZero())
		inBatches := map[string]int{}
		for _, b := range n.batchesOf(ctx, g, change) {
			g.Expect(b.Status.Status).To(Equal(v1alpha1.ChangePodExecuteDone), b.Name)
			for _, p := range b.Spec.PodInfos {
				if b.Spec.Attempt == change.Status.Attempt {
					inBatches[p.UID]++
				}
			}
		}
		all := n.pods(ctx, g)
		g.Expect(all).To(HaveLen(pods))
		for i := range all {
			g.Expect(inBatches).To(HaveKeyWithValue(string(all[i].UID), 1), all[i].Name)
		}
	}).WithContext(ctx).Should(Succeed())
	return change
}

// passed waits until so many pods of the current release have passed.
func (n native) passed(ctx context.Context, count int) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = n.current(ctx, g)
		g.Expect(change.Status.PassCount).To(BeEquivalentTo(count))
	}).WithContext(ctx).Should(Succeed())
	return change
}

// progress waits until the current release is in a state, with a reason and a message of the condition Progressing.
func (n native) progress(ctx context.Context, state v1alpha1.ChangeWorkloadStatusType, reason, message string) *v1alpha1.ChangeWorkload {
	GinkgoHelper()
	var change *v1alpha1.ChangeWorkload
	Eventually(func(g Gomega) {
		change = n.current(ctx, g)
		g.Expect(change.Status.Status).To(Equal(state))
		c := conditionOf(change.Status.Conditions, v1alpha1.ConditionProgressing)
		g.Expect(c.Reason).To(Equal(reason), c.Message)
		g.Expect(c.Message).To(ContainSubstring(message))
	}).WithContext(ctx).Should(Succeed())
	return change
}

// events returns the reasons and messages of the operator's events on the workload.
func (n native) events(ctx context.Context, g Gomega) (events []string) {
	GinkgoHelper()
	var list corev1.EventList
	g.Expect(n.api.List(ctx, &list, client.InNamespace(n.namespace))).To(Succeed())
	for i := range list.Items {
		if e := &list.Items[i]; strings.ToLower(e.InvolvedObject.Kind) == n.kind && e.ReportingController == "altershield-operator" {
			events = append(events, e.Reason+": "+e.Message)
		}
	}
	return events
}

// labelled returns the pods with a value of the label test.
func (n native) labelled(ctx context.Context, g Gomega, value string) []corev1.Pod {
	GinkgoHelper()
	return slices.DeleteFunc(n.pods(ctx, g), func(p corev1.Pod) bool { return p.Labels["test"] != value })
}

// revisions returns the revisions that the controller of the workload made, oldest first.
func (n native) revisions(ctx context.Context, g Gomega) []appsv1.ControllerRevision {
	GinkgoHelper()
	var list appsv1.ControllerRevisionList
	g.Expect(n.api.List(ctx, &list, client.InNamespace(n.namespace))).To(Succeed())
	uid := n.get(ctx, g).GetUID()
	all := slices.DeleteFunc(list.Items, func(r appsv1.ControllerRevision) bool {
		ref := metav1.GetControllerOf(&r)
		return ref == nil || ref.UID != uid
	})
	slices.SortFunc(all, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	return all
}

// history returns the revisions of the operator's history of the workload.
func (n native) history(ctx context.Context, g Gomega) []appsv1.ControllerRevision {
	GinkgoHelper()
	var list appsv1.ControllerRevisionList
	labels := client.MatchingLabels{v1alpha1.HistoryOfLabel: string(n.get(ctx, g).GetUID())}
	g.Expect(n.api.List(ctx, &list, client.InNamespace(n.namespace), labels)).To(Succeed())
	return list.Items
}

func uidsOf(pods []corev1.Pod) (uids []types.UID) {
	for i := range pods {
		uids = append(uids, pods[i].UID)
	}
	return uids
}

// age replaces a revision by a revision that its controller does not find again, as if an older control plane had written a part of the
// template in another way.
func (n native) age(ctx context.Context, r *appsv1.ControllerRevision, part, was string) {
	GinkgoHelper()
	Expect(string(r.Data.Raw)).To(ContainSubstring(part))
	older := r.DeepCopy()
	older.ResourceVersion, older.UID, older.ManagedFields = "", "", nil
	older.Data.Raw = bytes.Replace(r.Data.Raw, []byte(part), []byte(was), 1)
	Expect(n.api.Delete(ctx, r)).To(Succeed())
	Expect(n.api.Create(ctx, older)).To(Succeed())
}

// waitsAtGate adds a readiness gate to the pods. The porter of the namespace lets them through one after the other.
func waitsAtGate(spec map[string]any) {
	pod := spec["template"].(map[string]any)["spec"].(map[string]any) //nolint:errcheck,forcetypeassert // as manifest makes it
	pod["readinessGates"] = []any{map[string]any{"conditionType": gate}}
}

func parallel(spec map[string]any) { spec["podManagementPolicy"] = "Parallel" }

var _ = Describe("the revisions of other kinds than Deployments", func() {
	w := inSharedWorld()

	It("are kept by the operator beside their controllers, and restored when theirs are gone or differ in bytes", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		both := w.natives(ns)
		first := map[string]string{}
		for _, n := range both {
			o := n.manifest(func(spec map[string]any) {
				spec["revisionHistoryLimit"] = int64(1)
				if n.kind == "statefulset" {
					parallel(spec)
				}
			})
			o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + "rollback": "10m"})
			Expect(w.api.Create(ctx, o)).To(Succeed())
		}
		for _, n := range both {
			first[n.kind] = n.verified(ctx, 3).Spec.Reversion
		}
		for _, value := range []string{"a", "b", "c"} {
			for _, n := range both {
				Expect(n.release(ctx, value)).To(Succeed())
			}
			for _, n := range both {
				n.verified(ctx, 3)
			}
		}
		By("keeping them while their controllers delete their own")
		kept := func(n native) func(Gomega) {
			return func(g Gomega) {
				g.Expect(n.revisions(ctx, g)).To(HaveLen(2), "revisionHistoryLimit is 1")
				history := n.history(ctx, g)
				g.Expect(history).To(HaveLen(4))
				for i := range history {
					refs := history[i].OwnerReferences
					g.Expect(refs).To(HaveLen(1))
					g.Expect(refs[0].Controller).To(BeNil())
					g.Expect(refs[0].UID).To(Equal(n.get(ctx, g).GetUID()))
				}
			}
		}
		for _, n := range both {
			Eventually(kept(n)).WithContext(ctx).Should(Succeed())
		}
		By("restoring a version whose revision is gone")
		for _, n := range both {
			n.annotate(ctx, v1alpha1.RollbackToAnnotation, first[n.kind])
		}
		for _, n := range both {
			Eventually(func() string { return n.version(ctx, Default) }).WithContext(ctx).Should(Equal(first[n.kind]))
			n.verified(ctx, 3)
			Expect(n.labelled(ctx, Default, "123")).To(HaveLen(3))
			Eventually(kept(n)).WithContext(ctx).Should(Succeed())
		}

		By("restoring, in the middle of a rollout, a version whose revision differs in bytes")
		before, bad := map[string][]types.UID{}, map[string]string{}
		for _, n := range both {
			before[n.kind] = uidsOf(n.pods(ctx, Default))
			w.kubectl(ctx, "-n", ns, "set", "image", n.kind+"/sleep", "sleep=busybo")
			bad[n.kind] = n.version(ctx, Default)
		}
		for _, n := range both {
			n.progress(ctx, v1alpha1.ChangeWorkloadRunning, v1alpha1.ReasonRollingOut, "1 of 3 ")
			revisions := n.revisions(ctx, Default)
			r := &revisions[len(revisions)-2]
			if n.kind == "statefulset" {
				// Kubernetes before 1.34 writes the field, later releases do not.
				with, without := `"metadata":{"creationTimestamp":null,"labels"`, `"metadata":{"labels"`
				if strings.Contains(string(r.Data.Raw), with) {
					n.age(ctx, r, with, without)
				} else {
					n.age(ctx, r, without, with)
				}
			} else {
				n.age(ctx, r, `,"terminationMessagePolicy":"File"`, "") // which the API server sets
			}
			n.annotate(ctx, v1alpha1.SettingAnnotationPrefix+"rollback", "5s")
		}
		for _, n := range both {
			Eventually(func() string { return n.version(ctx, Default) }).WithContext(ctx).Should(Equal(first[n.kind]))
			n.verified(ctx, 3)
			for _, pod := range n.pods(ctx, Default) {
				Expect(before[n.kind]).NotTo(ContainElement(pod.UID), "its controller replaced all of them")
			}
			var reasons map[string]struct{ To string }
			Expect(json.Unmarshal([]byte(n.get(ctx, Default).GetAnnotations()[v1alpha1.QuarantineReasonAnnotation]), &reasons)).To(Succeed())
			Expect(reasons).To(HaveKeyWithValue(bad[n.kind], HaveField("To", first[n.kind])))
		}
		Eventually(func(g Gomega) {
			// One of the two pods may be replaced before the operator counts them.
			g.Expect(both[0].events(ctx, g)).To(ContainElement(MatchRegexp(
				"^" + v1alpha1.EventRevisionNotFound + ": .*: [12] pods of this template are replaced, too")))
		}).WithContext(ctx).Should(Succeed())
		w.restful(ctx, ns)
		for _, n := range both {
			Expect(n.version(ctx, Default)).To(Equal(first[n.kind]))
		}
	})
})

var _ = Describe("a StatefulSet", func() {
	w := inSharedWorld()

	It("is released in whatever shape it has", func(ctx SpecContext) {
		shapes := map[string]func(spec map[string]any){
			"of one pod": func(spec map[string]any) { spec["replicas"] = int64(1) },
			"of none":    func(spec map[string]any) { spec["replicas"] = int64(0) },
			"parallel":   parallel,
			"numbered from 5": func(spec map[string]any) {
				spec["ordinals"] = map[string]any{"start": int64(5)}
				spec["updateStrategy"] = map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"partition": int64(1)}}
			},
		}
		all, pods := map[string]native{}, map[string]int{"of one pod": 1, "of none": 0, "parallel": 3, "numbered from 5": 3}
		for name, shape := range shapes {
			n := native{w, "statefulset", w.newNamespace(ctx, true)}
			all[name] = n
			Expect(w.api.Create(ctx, n.manifest(shape))).To(Succeed())
		}
		for name, n := range all {
			n.verified(ctx, pods[name])
			Expect(n.release(ctx, "second")).To(Succeed())
		}
		By("keeping the first pod by a partition")
		from5 := all["numbered from 5"]
		c := from5.progress(ctx, v1alpha1.ChangeWorkloadRunning, v1alpha1.ReasonPartitioned, "1 of 3 pods")
		from5.passed(ctx, 2)
		old := from5.labelled(ctx, Default, "123")
		Expect(old).To(HaveLen(1))
		Expect(old[0].Name).To(Equal("sleep-5"))
		Expect(from5.patch(ctx, `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)).To(Succeed())
		Expect(from5.verified(ctx, 3).UID).To(Equal(c.UID))
		for name, n := range all {
			n.verified(ctx, pods[name])
			Expect(n.labelled(ctx, Default, "second")).To(HaveLen(pods[name]))
		}
		By("scaling up a StatefulSet without pods")
		none := all["of none"]
		verified := conditionOf(none.current(ctx, Default).Status.Conditions, v1alpha1.ConditionVerified)
		Expect(verified.Reason).To(Equal(v1alpha1.ReasonNothingVerified))
		w.kubectl(ctx, "-n", none.namespace, "scale", "statefulset", "sleep", "--replicas=2")
		none.verified(ctx, 2)
		none.passed(ctx, 2)
		By("failing a StatefulSet of one pod, and releasing an override")
		one := all["of one pod"]
		w.setVerdict(ctx, one.current(ctx, Default), "unpass")
		one.change(ctx, v1alpha1.ChangeWorkloadSuspend)
		Eventually(func() error { return one.release(ctx, "third") }).WithContext(ctx).Should(
			MatchError(ContainSubstring("statefulset sleep is suspended")))
		Expect(one.patch(ctx, repair("repair"))).To(Succeed())
		one.verified(ctx, 1)
	})

	It("is scaled in the middle of a release, and gets pods of the version before while it is halted", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		n, p := w.natives(ns)[0], w.startPorter(ns)
		scale := func(replicas int) {
			GinkgoHelper()
			w.kubectl(ctx, "-n", ns, "scale", "statefulset", "sleep", fmt.Sprintf("--replicas=%d", replicas))
		}
		ready := func(count int) {
			GinkgoHelper()
			Eventually(func(g Gomega) {
				pods := n.pods(ctx, g)
				g.Expect(pods).To(HaveLen(count))
				for i := range pods {
					g.Expect(conditionIsTrue(&pods[i], corev1.PodReady)).To(BeTrue())
				}
			}).WithContext(ctx).Should(Succeed())
		}
		Expect(w.api.Create(ctx, n.manifest(waitsAtGate))).To(Succeed())
		n.verified(ctx, 3)
		By("scaling up in the middle: added pods have the new version, and are verified")
		p.let(1)
		Expect(n.release(ctx, "second")).To(Succeed())
		n.passed(ctx, 1)
		scale(5)
		scale(4)
		p.letAll()
		c := n.verified(ctx, 4)
		Expect(c.Status.Attempt).To(Equal(int32(1)))
		Expect(n.labelled(ctx, Default, "second")).To(HaveLen(4))
		By("scaling while it is halted")
		p.let(1)
		Expect(n.release(ctx, "third")).To(Succeed())
		c = n.passed(ctx, 1)
		w.setVerdict(ctx, c, "unpass")
		n.strategy(ctx, `{"rollingUpdate":{"partition":2147483647},"type":"RollingUpdate"}`)
		p.letAll()
		ready(4)
		scale(6)
		ready(6)
		// The next pod may have been replaced before the halt came.
		old := len(n.labelled(ctx, Default, "second"))
		Expect(old).To(BeNumerically(">=", 4), "two old pods, and two added pods")
		for _, pod := range n.pods(ctx, Default) {
			if pod.Name == "sleep-4" || pod.Name == "sleep-5" {
				Expect(pod.Labels).To(HaveKeyWithValue("test", "second"), pod.Name)
			}
		}
		scale(2)
		ready(2)
		Expect(n.labelled(ctx, Default, "second")).To(HaveLen(2))
		n.change(ctx, v1alpha1.ChangeWorkloadSuspend)
		Expect(n.release(ctx, "fourth")).To(MatchError(ContainSubstring("is suspended")))
		By("releasing an override")
		Expect(n.patch(ctx, repair("good"))).To(Succeed())
		n.verified(ctx, 2)
		n.strategy(ctx, `{"rollingUpdate":{"partition":0},"type":"RollingUpdate"}`)
		w.restful(ctx, ns)
	})
})

var _ = Describe("undos of other kinds than Deployments", func() {
	w := inSharedWorld()

	It("are kubectl rollout undo and a revert; the bad version is released again when its quarantine is ended", func(ctx SpecContext) {
		set, daemon := w.natives(w.newNamespace(ctx, true))[0], w.natives(w.newNamespace(ctx, true))[1]
		both, porters := []native{set, daemon}, []*porter{w.startPorter(set.namespace), w.startPorter(daemon.namespace)}
		good, bad := map[string]string{}, map[string]string{}
		for _, n := range both {
			Expect(w.api.Create(ctx, n.manifest(waitsAtGate))).To(Succeed())
		}
		for _, n := range both {
			good[n.kind] = n.verified(ctx, 3).Spec.Reversion
			Expect(n.release(ctx, "bad")).To(Succeed())
		}
		for _, n := range both {
			bad[n.kind] = n.verified(ctx, 3).Spec.Reversion
			w.setVerdict(ctx, n.current(ctx, Default), "unpass")
			n.change(ctx, v1alpha1.ChangeWorkloadSuspend)
			Eventually(func(g Gomega) {
				g.Expect(n.get(ctx, g).GetLabels()).To(HaveKey(v1alpha1.SuspendLabel))
			}).WithContext(ctx).Should(Succeed())
			w.kubectl(ctx, "-n", n.namespace, "rollout", "undo", n.kind+"/sleep")
			Expect(n.version(ctx, Default)).To(Equal(good[n.kind]))
		}
		for _, n := range both {
			n.verified(ctx, 3)
			Eventually(func(g Gomega) {
				o := n.get(ctx, g)
				g.Expect(o.GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
				g.Expect(o.GetAnnotations()).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad[n.kind]))
				g.Expect(n.events(ctx, g)).To(ContainElement(HavePrefix(v1alpha1.EventReleaseUndone + ": ")))
			}).WithContext(ctx).Should(Succeed())
			Expect(n.revisions(ctx, Default)).To(HaveLen(2), "kubectl restored a revision of the controller")
			out, err := w.tryKubectl(ctx, "-n", n.namespace, "rollout", "undo", n.kind+"/sleep")
			Expect(err).To(HaveOccurred())
			Expect(out).To(ContainSubstring(n.kind + " sleep: version " + bad[n.kind] + " was rolled back at "))
			By("ending the quarantine")
			n.annotate(ctx, v1alpha1.UnquarantineAnnotation, bad[n.kind])
			Eventually(func(g Gomega) {
				g.Expect(n.get(ctx, g).GetAnnotations()).NotTo(Or(HaveKey(v1alpha1.QuarantinedAnnotation), HaveKey(v1alpha1.UnquarantineAnnotation)))
			}).WithContext(ctx).Should(Succeed())
			Expect(n.release(ctx, "bad")).To(Succeed())
		}
		for _, n := range both {
			Expect(n.verified(ctx, 3).Spec.Reversion).To(Equal(bad[n.kind]))
		}
		By("reverting a rollout that is halted")
		for i, n := range both {
			porters[i].let(1)
			Expect(n.release(ctx, "worse")).To(Succeed())
		}
		for _, n := range both {
			w.setVerdict(ctx, n.passed(ctx, 1), "unpass")
		}
		for i, n := range both {
			Eventually(func(g Gomega) {
				g.Expect(n.get(ctx, g).GetAnnotations()).To(HaveKey(v1alpha1.HaltedAnnotation))
			}).WithContext(ctx).Should(Succeed())
			Expect(len(n.labelled(ctx, Default, "bad"))).To(BeNumerically("<", 3))
			porters[i].letAll()
			Expect(n.release(ctx, "bad")).To(Succeed())
			o := n.get(ctx, Default)
			Expect(o.GetAnnotations()).NotTo(HaveKey(v1alpha1.HaltedAnnotation), "in the same request")
		}
		for _, n := range both {
			Expect(n.verified(ctx, 3).Spec.Reversion).To(Equal(bad[n.kind]))
			Expect(n.labelled(ctx, Default, "bad")).To(HaveLen(3))
		}
	})
})

var _ = Describe("a DaemonSet that surges", func() {
	w := inSharedWorld()

	It("is released, halted, resumed and rolled back", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		n, p := w.natives(ns)[1], w.startPorter(ns)
		const (
			users  = `{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0},"type":"RollingUpdate"}`
			halted = `{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0},"type":"OnDelete"}`
		)
		Expect(w.api.Create(ctx, n.manifest(func(spec map[string]any) {
			waitsAtGate(spec)
			spec["minReadySeconds"] = int64(2)
			spec["updateStrategy"] = map[string]any{
				"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)},
			}
		}))).To(Succeed())
		first := n.verified(ctx, 3)
		p.let(1)
		Expect(n.release(ctx, "second")).To(Succeed())
		c := n.passed(ctx, 1)
		By("failing it, while the next node has two pods")
		Eventually(func(g Gomega) { g.Expect(n.pods(ctx, g)).To(HaveLen(4)) }).WithContext(ctx).Should(Succeed())
		w.setVerdict(ctx, c, "unpass")
		n.strategy(ctx, halted)
		Eventually(func(g Gomega) {
			g.Expect(n.pods(ctx, g)).To(HaveLen(3), "its controller deletes the newer pod")
		}).WithContext(ctx).Should(Succeed())
		Expect(n.labelled(ctx, Default, "second")).To(HaveLen(1))
		p.letAll()
		n.progress(ctx, v1alpha1.ChangeWorkloadSuspend, v1alpha1.ReasonRolloutHalted, "")
		By("correcting the verdict")
		w.setVerdict(ctx, c, "pass")
		n.strategy(ctx, users)
		n.verified(ctx, 3)
		Expect(n.labelled(ctx, Default, "second")).To(HaveLen(3))
		By("rolling back a version that does not come up")
		n.annotate(ctx, v1alpha1.SettingAnnotationPrefix+"rollback", "5s")
		good, old := n.version(ctx, Default), uidsOf(n.pods(ctx, Default))
		w.kubectl(ctx, "-n", ns, "set", "image", n.kind+"/sleep", "sleep=busybo")
		bad := n.version(ctx, Default)
		Expect(bad).NotTo(Equal(good))
		Eventually(func() string { return n.version(ctx, Default) }).WithContext(ctx).Should(Equal(good))
		n.verified(ctx, 3)
		Expect(uidsOf(n.pods(ctx, Default))).To(ConsistOf(old), "no healthy pod was replaced")
		Expect(n.get(ctx, Default).GetAnnotations()).To(HaveKeyWithValue(v1alpha1.QuarantinedAnnotation, bad))
		By("rolling back to the first version on request")
		n.annotate(ctx, v1alpha1.RollbackToAnnotation, first.Spec.Reversion)
		Eventually(func() string { return n.version(ctx, Default) }).WithContext(ctx).Should(Equal(first.Spec.Reversion))
		n.verified(ctx, 3)
		n.strategy(ctx, users)
		Expect(n.labelled(ctx, Default, "123")).To(HaveLen(3))
	})
})

var _ = Describe("kube-controller-manager", Serial, func() {
	w := inSharedWorld()

	It("may be away in the middle of releases of other kinds: nothing is reported that it has not observed", func(ctx SpecContext) {
		ns := w.newNamespace(ctx, true)
		both, p := w.natives(ns), w.startPorter(ns)
		for _, n := range both {
			o := n.manifest(waitsAtGate)
			o.SetAnnotations(map[string]string{v1alpha1.SettingAnnotationPrefix + "rollback": "5s"})
			Expect(w.api.Create(ctx, o)).To(Succeed())
		}
		for _, n := range both {
			n.verified(ctx, 3)
		}
		p.let(2) // one of each, or two of one
		for _, n := range both {
			Expect(n.release(ctx, "second")).To(Succeed())
		}
		Eventually(func(g Gomega) {
			g.Expect(both[0].current(ctx, g).Status.PassCount + both[1].current(ctx, g).Status.PassCount).To(BeNumerically(">=", 2))
		}).WithContext(ctx).Should(Succeed())
		Expect(w.cluster.RestartControllers(ctx, func() {
			p.letAll()
			versions := map[string]string{}
			set, daemon := both[0], both[1]
			By("deleting a pod, which is not recreated")
			Expect(w.api.Delete(ctx, &set.labelled(ctx, Default, "123")[0])).To(Succeed())
			By("releasing another version, which is not rolled out, and changing an annotation, which is no release")
			Expect(daemon.release(ctx, "third")).To(Succeed())
			set.annotate(ctx, "example.com/note", "x")
			for _, n := range both {
				versions[n.kind] = n.version(ctx, Default)
			}
			Consistently(func(g Gomega) {
				for _, n := range both {
					c := n.current(ctx, g)
					g.Expect(c.Status.Status).To(Equal(v1alpha1.ChangeWorkloadRunning), n.kind)
					g.Expect(c.Spec.Reversion).To(Equal(versions[n.kind]))
					g.Expect(c.Status.FailCount).To(BeZero())
					g.Expect(n.get(ctx, g).GetLabels()).NotTo(HaveKey(v1alpha1.SuspendLabel))
				}
				g.Expect(daemon.current(ctx, g).Status.PassCount).To(BeZero(), "no pod is of the third version")
			}).WithContext(ctx).WithTimeout(9 * time.Second).Should(Succeed())
		})).To(Succeed())
		for _, n := range both {
			c := n.verified(ctx, 3)
			Expect(c.Status.Attempt).To(Equal(int32(1)))
			Expect(n.get(ctx, Default).GetAnnotations()).NotTo(HaveKey(v1alpha1.QuarantinedAnnotation))
		}
		Expect(both[0].labelled(ctx, Default, "second")).To(HaveLen(3))
		Expect(both[1].labelled(ctx, Default, "third")).To(HaveLen(3))
		w.restful(ctx, ns)
	})
})
