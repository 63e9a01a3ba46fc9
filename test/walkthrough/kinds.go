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

package walkthrough

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/record"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Workload is the workload of a story. The zero value stands for the Deployment of the samples.
type Workload struct {
	kind, name string
	// apiVersion of an object of a declared kind, which has no pods. Empty for workloads of Kubernetes.
	apiVersion string
	// pods is the number of its pods. In a release that does not come up, kept pods of the old version run and stuck pods of the new version
	// do not.
	pods, kept, stuck int
	// first and repair are the versions of the samples.
	first, repair string
}

// The kinds of workloads.
var (
	deployment = Workload{kind: "Deployment", name: "sleep", pods: 5, kept: 4, stuck: 3}
	// StatefulSet has podManagementPolicy Parallel. With OrderedReady it would wait for a pod that never comes up.
	StatefulSet = Workload{kind: "StatefulSet", name: "sleep", pods: 5, kept: 4, stuck: 1,
		first: "31a3d465514deda4fdbadf818e43aa39", repair: "656d19e7c438728f6121f5160547680a"}
	// DaemonSet has a pod on each of three nodes.
	DaemonSet = Workload{kind: "DaemonSet", name: "sleep", pods: 3, kept: 2, stuck: 1,
		first: "31a3d465514deda4fdbadf818e43aa39", repair: "656d19e7c438728f6121f5160547680a"}
)

// Kind returns the kind in lower case, as a user types it.
func (w Workload) Kind() string { return strings.ToLower(w.kind) }

// Adapt returns steps of the story of a Deployment, rewritten for this workload. Its manifests are in the directory of WriteSamples.
func (w Workload) Adapt(samples string, steps ...Step) []Step {
	replaced := strings.NewReplacer(
		FirstRelease+"--x--5", fmt.Sprintf("%s%s--x--%d", w.prefix(), w.first, w.pods),
		FirstRelease, w.prefix()+w.first, RepairRelease, w.prefix()+w.repair,
		"config/samples", samples,
		"vdeployment", "v"+w.Kind(), "deployment", w.Kind(), "Deployment", w.kind,
		"5 pods", fmt.Sprint(w.pods, " pods"), "4 old pods", fmt.Sprint(w.kept, " old pods"), "3 new ones", fmt.Sprint(w.stuck, " new ones"),
	)
	var adapted []Step
	for _, step := range steps {
		acts := make([]Act, 0, len(step.Acts))
		for _, act := range step.Acts {
			act.Kubectl, act.Prints, act.Note = each(replaced, act.Kubectl), each(replaced, act.Prints), replaced.Replace(act.Note)
			if act.Sight != nil {
				act.Sight = &Sight{Name: replaced.Replace(act.Sight.Name), look: act.Sight.look}
			}
			acts = append(acts, act)
		}
		adapted = append(adapted, Step{replaced.Replace(step.Title), acts})
	}
	return adapted
}

func each(replaced *strings.Replacer, words []string) []string {
	words = slices.Clone(words)
	for i := range words {
		words[i] = replaced.Replace(words[i])
	}
	return words
}

// WriteSamples writes the manifests of the walkthrough, which are below root, into a directory, as manifests of this kind. Their pods end
// within a second: no new pod runs beside an old pod.
func (w Workload) WriteSamples(root, dir string) error {
	for _, name := range []string{"sleep.yaml", "sleep-repair.yaml", "sleep-broken-image.yaml"} {
		manifest, err := os.ReadFile(filepath.Join(root, "config", "samples", name))
		if err != nil {
			return err
		}
		replicas := fmt.Sprintf("  replicas: %d\n  serviceName: sleep\n  podManagementPolicy: Parallel\n", w.pods)
		if w.kind == DaemonSet.kind {
			replicas = ""
		}
		text := strings.NewReplacer("kind: Deployment", "kind: "+w.kind, "  replicas: 5\n", replicas,
			"    spec:\n      containers:", "    spec:\n      terminationGracePeriodSeconds: 1\n      containers:").Replace(string(manifest))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// prefix returns the beginning of the names of its releases.
func (w Workload) prefix() string {
	gvk := schema.FromAPIVersionAndKind(cmp.Or(w.apiVersion, "apps/v1"), w.kind)
	return record.ReleaseName(&workload.Workload{GVK: gvk, Name: w.name}, "")
}

// sleep is the workload of a story, of any kind.
type sleep struct {
	metav1.Object
	// settled reports whether its controller has observed its generation.
	settled bool
	// all, updated and available are numbers of pods.
	all, updated, available int32
	// stopped reports whether its rollout is stopped.
	stopped bool
}

func (s *scene) workload(ctx context.Context) (*sleep, error) {
	switch {
	case s.of.apiVersion != "":
		o := &unstructured.Unstructured{}
		o.SetAPIVersion(s.of.apiVersion)
		o.SetKind(s.of.kind)
		return &sleep{Object: o, settled: true}, s.get(ctx, s.of.name, o)
	case s.of.kind == StatefulSet.kind:
		o := &appsv1.StatefulSet{}
		err := s.get(ctx, s.of.name, o)
		is, r := &o.Status, o.Spec.UpdateStrategy.RollingUpdate
		return &sleep{o, is.ObservedGeneration >= o.Generation, is.Replicas, is.UpdatedReplicas, is.AvailableReplicas,
			r != nil && ptr.Deref(r.Partition, 0) > 0}, err
	case s.of.kind == DaemonSet.kind:
		o := &appsv1.DaemonSet{}
		err := s.get(ctx, s.of.name, o)
		is := &o.Status
		return &sleep{o, is.ObservedGeneration >= o.Generation, is.CurrentNumberScheduled, is.UpdatedNumberScheduled, is.NumberAvailable,
			o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType}, err
	default:
		o := &appsv1.Deployment{}
		err := s.get(ctx, s.of.name, o)
		is := &o.Status
		return &sleep{o, is.ObservedGeneration >= o.Generation, is.Replicas, is.UpdatedReplicas, is.AvailableReplicas, o.Spec.Paused}, err
	}
}

// currentRelease and currentPod stand in commands for the newest release, and for the
// pod of its first batch.
const (
	currentRelease = "RELEASE"
	currentPod     = "NEW"
)

// verdict returns the command that writes a verdict on the pod of the first batch of the newest release.
func verdict(of string) Act {
	return kubectl("patch changepod --subresource=status "+currentRelease+"--x--1 --type merge -p",
		`{"status":{"podResults":[{"pod":"`+currentPod+`","verdict":"`+of+`","message":"find error"}],"message":"PostFinish"}}`)
}

// Halted is a release that fails in the middle of its rollout. The rollout is halted until the verdict is corrected.
var Halted = Step{"2. A release fails in the middle of its rollout", []Act{
	kubectl("patch deployment sleep -p", `{"spec":{"minReadySeconds":10}}`, "--type", "merge"),
	another,
	see("the first new pod to be verified", (*scene).begun),
	verdict("unpass"),
	see("the rollout to be halted", (*scene).halted),
	see("the event RolloutHalted", hasEvent("RolloutHalted")),
	verdict("pass"),
	see("the rollout to go on, and the release to succeed", (*scene).goesOn),
}}

// Crashes is a release whose pods crash in a loop. It is rolled back.
var Crashes = Step{"3. A release whose pods crash is rolled back", []Act{
	kubectl("patch deployment sleep -p",
		`{"spec":{"template":{"spec":{"containers":[{"name":"sleep","command":["/bin/sh","-c","sleep 5; exit 1"]}]}}}}`),
	see("a new pod to crash", (*scene).crashing),
	see("the Deployment to be rolled back, and verified", (*scene).restored).within(2 * NeverStarts.Acts[3].Within),
	list.prints("Rollback", "Success"),
	kubectl("get events --field-selector involvedObject.kind=Deployment,reason=RolledBack").prints("sleep"),
}}

// begun reports whether the first batch of the newest release is done. It remembers the release and a pod of the batch.
func (s *scene) begun(ctx context.Context) (string, bool, error) {
	w, err := s.workload(ctx)
	if err != nil {
		return "", false, err
	}
	s.release = s.current(w)
	batch := &v1alpha1.ChangePod{}
	if err := s.get(ctx, s.release+"--x--1", batch); err != nil || len(batch.Spec.PodInfos) == 0 {
		return "no batch", false, client.IgnoreNotFound(err)
	}
	s.newPod = batch.Spec.PodInfos[0].Pod
	return string(batch.Status.Status), batch.Status.Status == v1alpha1.ChangePodExecuteDone, nil
}

// halted reports whether the rollout is halted before all pods are replaced.
func (s *scene) halted(ctx context.Context) (string, bool, error) {
	w, err := s.workload(ctx)
	if err != nil {
		return "", false, err
	}
	halted := w.GetAnnotations()[v1alpha1.HaltedAnnotation] != ""
	return fmt.Sprintf("%d of %d pods are new, halted: %t", w.updated, s.of.pods, halted),
		halted && w.stopped && w.settled && int(w.updated) < s.of.pods && int(w.available) == s.of.pods, nil
}

// crashing reports whether a new pod has restarted. It remembers the good version and the bad version.
func (s *scene) crashing(ctx context.Context) (string, bool, error) {
	w, err := s.workload(ctx)
	if err != nil {
		return "", false, err
	}
	var pods corev1.PodList
	if err := s.client.List(ctx, &pods, client.InNamespace(s.namespace), client.MatchingLabels{"app": "sleep"}); err != nil {
		return "", false, err
	}
	s.bad = w.GetLabels()[v1alpha1.VersionLabel]
	crashed := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		switch version := cmp.Or(p.Labels[v1alpha1.VersionLabel], s.bad); {
		case version != s.bad:
			s.good = version
		case slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 }):
			crashed++
		}
	}
	return fmt.Sprintf("%d crash", crashed), crashed > 0 && s.good != "", nil
}
