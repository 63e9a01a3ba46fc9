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

package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// The pods of a workload that are down, of whatever version.

// evictedWithin is how long the operator may take to evict a pod that is stuck: what it
// waits for, and as long again for the StatefulSet to make another one.
const evictedWithin = 4 * defense.EvictAfter

// downPod is a pod that is in CrashLoopBackOff, or one of an earlier version that is not
// Ready and keeps the rollout of a StatefulSet back.
type downPod struct {
	defense.Pod
	// old: it is of an earlier version.
	old bool
}

// seeOldPods finds those among the pods of the earlier versions, too.
func (s *sight) seeOldPods(ctx context.Context, view cluster.View) error {
	s.down = slices.Concat(s.down, crashing(s.pods, false))
	for i := range s.workload.OldRevisions {
		at := *s.workload
		at.Revision = s.workload.OldRevisions[i].Revision
		pods, err := view.Pods(ctx, &at)
		if err != nil {
			return err
		}
		s.down = slices.Concat(s.down, crashing(pods, true))
		for j := range pods {
			if p := &pods[j]; p.CrashLoop == nil && !p.Terminating && !p.Ended && !p.Ready && s.waitsFor(p) {
				s.down = append(s.down, downPod{*p, true})
			}
		}
	}
	return nil
}

func crashing(pods []defense.Pod, old bool) (down []downPod) {
	for i := range pods {
		if p := &pods[i]; p.CrashLoop != nil && !p.Terminating && !p.Ended {
			down = append(down, downPod{*p, old})
		}
	}
	return down
}

// waitsFor reports whether the controller of the workload waits for a pod of an earlier
// version, and makes another one of the current version when it is deleted.
func (s *sight) waitsFor(p *defense.Pod) bool {
	w := s.workload
	return s.isStatefulSet() && !w.Paused && !w.OnDelete &&
		p.Index >= w.Partition && p.Index >= w.Pace.Partition && p.Index < w.Replicas
}

func (s *sight) isStatefulSet() bool {
	return s.workload.GVK.GroupKind() == (workload.StatefulSet{}).GroupVersionKind().GroupKind()
}

// stuckFor is for how long a pod has not been Ready.
func (p *downPod) stuckFor(now time.Time) time.Duration {
	since := p.UnreadySince
	if since.Before(p.Created) {
		since = p.Created
	}
	return now.Sub(since)
}

// downPods tells of the pods that are down, and of the command that gets the workload on.
// What the operator does about them by itself it does within a while.
func (f *finder) downPods() {
	down := slices.DeleteFunc(slices.Clone(f.down), func(p downPod) bool {
		return p.CrashLoop == nil && p.stuckFor(f.now) < defense.EvictAfter
	})
	if len(down) == 0 {
		return
	}
	told := func(code string) bool {
		return slices.ContainsFunc(f.all, func(o Finding) bool { return o.Code == code })
	}
	orStuck := ""
	if f.isStatefulSet() {
		orStuck = ", or not Ready and of an earlier version that the StatefulSet waits for"
	}
	found := Finding{
		Code: "PodsDown", Needs: NeedsAttention, What: "pods down",
		Says: capital(countOf(len(down), "pod is", "pods are")) + " in CrashLoopBackOff" + orStuck + ".",
	}
	waits := true
	for i := range down {
		p := &down[i]
		if i < maxPodsNamed {
			found.Details = append(found.Details, p.describe())
			found.Do = append(found.Do, f.adviseDown(p)...)
		}
		// It evicts a pod, and the StatefulSet makes another one.
		waits = waits && p.old && f.repairs() && f.waitsFor(&p.Pod) && p.stuckFor(f.now) < evictedWithin
	}
	if waits || told(v1alpha1.ConditionPodsUnavailable+v1alpha1.ReasonPodsFailing) && f.willRollBack() {
		found.Needs = NeedsTime
	}
	f.add(found)
}

// repairs reports whether the operator evicts pods that are stuck, as far as is known.
func (f *finder) repairs() bool {
	return f.settings != nil && f.settings.Eviction && !f.settings.Observe && !f.isTrue(v1alpha1.ConditionEvictionBlocked)
}

func (f *finder) isTrue(condition string) bool {
	said := f.condition(condition)
	return said != nil && said.Status == metav1.ConditionTrue
}

func (p *downPod) describe() string {
	what := "not Ready"
	if c := p.CrashLoop; c != nil {
		what = "container " + c.Container + " is in CrashLoopBackOff"
		if c.Message != "" {
			what += " (" + c.Message + ")"
		}
	} else if p.Stuck != nil {
		what = p.Stuck.String()
	}
	if p.old {
		return fmt.Sprintf("pod %s of an earlier version: %s", p.Name, what)
	}
	return fmt.Sprintf("pod %s: %s", p.Name, what)
}

// adviseDown is what to type about a pod that is down.
func (f *finder) adviseDown(p *downPod) (do []Advice) {
	if p.old && f.waitsFor(&p.Pod) {
		do = append(do, f.deleteOf(p.Name))
	}
	if c := p.CrashLoop; c != nil {
		do = append(do, Advice{
			f.kubectl("logs", p.Name, "-c", c.Container, "--previous"),
			"shows what the container wrote before it ended",
		})
	}
	return do
}

func (f *finder) deleteOf(pod string) Advice {
	return Advice{
		f.kubectl("delete", "pod", pod),
		"has the pod made anew of the current version, and its volumes stay; right when the application bears that it goes",
	}
}

// seePods finds the pods in CrashLoopBackOff of the workloads whose pods are not all Ready.
func (v *census) seePods(ctx context.Context, _ *eyes, r *reader, _ string) error {
	of := map[string][]*sight{}
	for _, s := range v.sights {
		if s.unready {
			of[s.workload.Namespace] = append(of[s.workload.Namespace], s)
		}
	}
	for namespace, sights := range of {
		var list corev1.PodList
		if err := r.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			kind, name := workloadOf(pod)
			at := slices.IndexFunc(sights, func(s *sight) bool { return s.workload.GVK.Kind == kind && s.workload.Name == name })
			if at >= 0 {
				sights[at].down = slices.Concat(sights[at].down, crashing([]defense.Pod{defense.ReadPod(pod)}, false))
			}
		}
	}
	return nil
}

// workloadOf is the kind and the name of the workload of a pod. The name of a ReplicaSet is
// that of its Deployment and the hash that its pods are labelled with.
func workloadOf(pod *corev1.Pod) (kind, name string) {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return "", ""
	}
	if deployment, ok := strings.CutSuffix(ref.Name, "-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]); ok && ref.Kind == "ReplicaSet" {
		return (workload.Deployment{}).GroupVersionKind().Kind, deployment
	}
	return ref.Kind, ref.Name
}

// hasUnready reports whether a workload has pods that are not Ready, or fewer than it is to
// have.
func hasUnready(stored *unstructured.Unstructured, counts PodCounts) bool {
	all := counts.Desired
	for _, field := range []string{"replicas", "currentNumberScheduled"} {
		n, _, _ := unstructured.NestedInt64(stored.Object, "status", field)
		all = max(all, n)
	}
	return counts.Ready < all
}
