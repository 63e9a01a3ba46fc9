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

package controllers_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/test/world"
)

// wants are the fields of a workload that the operator may change for a time.
type wants struct {
	minReady, deadline, partition int32
	paused, onDelete              bool
}

// create creates the workload. It also serves to create it again after its deletion.
func (s *randomStory) create(r *rand.Rand) string {
	o := s.make(r)
	deadline := s.wants.deadline
	s.templates = []string{templateOfImage("first", "good")}
	if err := s.w.Create(o); err != nil {
		s.w.Failf("create: %v", err)
	}
	s.wants.deadline = deadline
	s.noteVersion("good")
	s.logf("create: %d replicas, %+v", replicasOf(s.stored()), s.wants)
	return ""
}

func replicasOf(o client.Object) int32 {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return *o.Spec.Replicas
	case *appsv1.StatefulSet:
		return *o.Spec.Replicas
	default:
		return 3
	}
}

// empty returns the workload with its kind and name only.
func (s *randomStory) empty() client.Object {
	at := metav1.ObjectMeta{Namespace: world.Namespace, Name: "web"}
	switch s.kind {
	case "StatefulSet":
		return &appsv1.StatefulSet{ObjectMeta: at}
	case "DaemonSet":
		return &appsv1.DaemonSet{ObjectMeta: at}
	default:
		return &appsv1.Deployment{ObjectMeta: at}
	}
}

func (s *randomStory) stored() client.Object { return world.Stored(s.w, s.empty()) }

func (s *randomStory) change() *v1alpha1.ChangeWorkload {
	o := s.stored()
	return s.w.ChangesOf(o)[o.GetLabels()[v1alpha1.VersionLabel]]
}

func (s *randomStory) pods() (pods []*corev1.Pod) { return s.w.Pods() }

// noteVersion notes the image of the current version.
func (s *randomStory) noteVersion(image string) {
	s.images[s.stored().GetLabels()[v1alpha1.VersionLabel]] = image
}

// patch patches the workload. A denied patch is no failure of the story.
func (s *randomStory) patch(patch string) error {
	before := templateLabel(s.stored())
	err := s.w.PatchObject(s.empty(), patch)
	if label := templateLabel(s.stored()); label != before {
		s.unknown[label] = !s.enforcing() || !s.w.Running()
	}
	var status *apierrors.StatusError
	if err != nil && !errors.As(err, &status) {
		s.w.Failf("patch %s: %v", patch, err)
	}
	return err
}

// outcome returns the result of a request, in short.
func outcome(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return " -> " + text[:min(len(text), 150)]
}

func templateOfImage(label, image string) string {
	return fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{"test":%q}},`+
		`"spec":{"containers":[{"name":"main","image":%q,"readinessProbe":{}}]}}}}`, label, image)
}

// templateLabel returns the label in which templates differ.
func templateLabel(o client.Object) string {
	if d, ok := o.(*appsv1.Deployment); ok {
		return d.Spec.Template.Labels["test"]
	}
	return templateOfNative(o).Labels["test"]
}

// label returns a patch of a label; the value "null" removes it.
func label(name, value string) string { return metadata("labels", name, value) }

func annotation(name, value string) string { return metadata("annotations", name, value) }

func metadata(what, name, value string) string {
	if value != "null" {
		value = strconv.Quote(value)
	}
	return fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, what, name, value)
}

// act is something that happens in a story, chosen with a weight.
type act struct {
	name   string
	weight int
	// may reports whether the story can have the act; nil means always.
	may func(s *randomStory) bool
	// do does the act and returns its details for the log.
	do func(s *randomStory, r *rand.Rand) string
}

func (s *randomStory) choose(r *rand.Rand) act {
	var total int
	all := randomActs()
	for i := range all {
		if all[i].may != nil && !all[i].may(s) {
			all[i].weight = 0
		}
		total += all[i].weight
	}
	n := r.IntN(total)
	for _, a := range all {
		if n -= a.weight; n < 0 {
			return a
		}
	}
	panic("no act")
}

func isDeployment(s *randomStory) bool { return s.kind == "Deployment" }

func isSet(s *randomStory) bool { return s.kind == "StatefulSet" }

func hasNodes(s *randomStory) bool { return s.nodes }

func hasNoNodes(s *randomStory) bool { return !s.nodes }

func hasServer(s *randomStory) bool { return s.options.Server }

// mayBlock reports whether a block denies releases: in observe mode it does not, which the judge does not know.
func mayBlock(s *randomStory) bool { return !s.options.Settings[settings.NameObserve].Enable }

// send returns an act that patches the workload.
func send(patches ...string) func(*randomStory, *rand.Rand) string {
	return func(s *randomStory, r *rand.Rand) string {
		p := pick(r, patches...)
		return " " + p + outcome(s.patch(p))
	}
}

func randomActs() []act { return slices.Concat(releaseActs(), fieldActs(), requestActs(), faultActs()) }

// releaseActs are acts of users who release.
func releaseActs() []act {
	return []act{
		{"release", 24, nil, (*randomStory).release},
		{"override", 6, nil, (*randomStory).override},
		{"release what was before", 6, nil, (*randomStory).releaseEarlier},
		{"set or drop the override", 2, nil, send(label(v1alpha1.IgnoredSuspendLabel, "true"), label(v1alpha1.IgnoredSuspendLabel, "null"))},
		{"apply again", 5, nil, func(s *randomStory, _ *rand.Rand) string { return outcome(s.patch(s.manifest())) }},
		{"apply every minute", 3, nil, (*randomStory).sync},
	}
}

// fieldActs are acts of users who edit the fields that the operator may change for a time.
func fieldActs() []act {
	return []act{
		{"scale", 6, func(s *randomStory) bool { return s.kind != "DaemonSet" }, func(s *randomStory, r *rand.Rand) string {
			n := r.IntN(7)
			return fmt.Sprint(" to ", n, outcome(s.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))))
		}},
		{"edit minReadySeconds", 4, nil, func(s *randomStory, r *rand.Rand) string {
			n := pick[int32](r, 0, 3, 20)
			if s.holdSet(n, "spec", "minReadySeconds") {
				return fmt.Sprint(" not: the hold set it to ", n)
			}
			return fmt.Sprint(" to ", n, s.wish(fmt.Sprintf(`{"spec":{"minReadySeconds":%d}}`, n), func(w *wants) { w.minReady = n }))
		}},
		{"edit progressDeadlineSeconds", 3, isDeployment, func(s *randomStory, r *rand.Rand) string {
			n := pick[int32](r, 600, 60, 200, 2400, 1900) // also the values that holds set
			if s.stored().GetAnnotations()[v1alpha1.HeldAnnotation] != "" && n > 600 {
				return " not: the value may come from the hold"
			}
			return fmt.Sprint(" to ", n, s.wish(fmt.Sprintf(`{"spec":{"progressDeadlineSeconds":%d}}`, n), func(w *wants) { w.deadline = n }))
		}},
		{"pause", 3, isDeployment, func(s *randomStory, _ *rand.Rand) string {
			was := s.halted()
			return s.wish(`{"spec":{"paused":true}}`, func(w *wants) { w.paused = w.paused || !was })
		}},
		{"resume", 4, isDeployment, func(s *randomStory, _ *rand.Rand) string {
			return s.wish(`{"spec":{"paused":false}}`, func(w *wants) { w.paused = false })
		}},
		{"edit the partition", 4, isSet, (*randomStory).repartition},
		{"switch OnDelete", 2, func(s *randomStory) bool { return s.kind != "Deployment" }, (*randomStory).switchOnDelete},
	}
}

// requestActs are acts of users who send requests and settings to the operator.
func requestActs() []act {
	setting := v1alpha1.SettingAnnotationPrefix
	return []act{
		{"opt out or in", 5, nil, send(label(v1alpha1.DefenseLabel, v1alpha1.DefenseDisabled), label(v1alpha1.DefenseLabel, "null"))},
		{"enrol or un-enrol", 3, nil, func(s *randomStory, r *rand.Rand) string {
			enrol := !oneIn(r, 3)
			s.w.Enrol(enrol)
			return fmt.Sprint(" ", enrol)
		}},
		{"set a setting of the workload", 4, nil, send(annotation(setting+"observe", "enabled"), annotation(setting+"observe", "null"),
			annotation(setting+"holding", "every"), annotation(setting+"holding", "disabled"), annotation(setting+"holding", "null"),
			annotation(setting+"selfhealing", "enabled"), annotation(setting+"halting", "disabled"), annotation(setting+"blocking", "disabled"))},
		{"request", 6, nil, (*randomStory).request},
		{"block by hand", 2, mayBlock, send(label(v1alpha1.SuspendLabel, "1"))},
		{"fail a batch by hand", 8, nil, (*randomStory).failBatch},
		{"release, and fail it in flight", 6, nil, func(s *randomStory, r *rand.Rand) string { return s.release(r) + s.failInFlight(r) }},
		{"override, and fail it in flight", 6, nil, func(s *randomStory, r *rand.Rand) string {
			return s.override(r) + s.failInFlight(r)
		}},
		{"correct the failed batches by hand", 6, nil, (*randomStory).correct},
		{"ask for a rollback in the status", 1, nil, (*randomStory).statusRollback},
	}
}

// faultActs are acts of the cluster and the operator that go wrong.
func faultActs() []act {
	return []act{
		{"delete, and create", 1, nil, func(s *randomStory, r *rand.Rand) string {
			if err := s.w.Delete(s.stored()); err != nil {
				s.w.Failf("delete: %v", err)
			}
			s.synced = nil
			s.pass(pick(r, 0, 0, 30*time.Second))
			return s.create(r)
		}},
		{"harm a pod", 6, hasNoNodes, (*randomStory).harm},
		{"delete a pod", 3, nil, func(s *randomStory, r *rand.Rand) string {
			if pods := s.pods(); len(pods) > 0 {
				must(s.w, s.w.Delete(pick(r, pods...)))
			}
			return ""
		}},
		{"a node", 4, hasNodes, (*randomStory).node},
		{"quota", 2, nil, func(s *randomStory, r *rand.Rand) string {
			s.disturbed = true
			bounded := oneIn(r, 2)
			s.w.SetQuota(bounded, 3)
			return fmt.Sprint(" ", bounded)
		}},
		{"the operator", 6, nil, (*randomStory).outage},
		{"the webhooks", 4, nil, func(s *randomStory, r *rand.Rand) string {
			there := oneIn(r, 2)
			s.w.SetWebhooks(there)
			return fmt.Sprint(" can be reached: ", there)
		}},
		{"the server", 12, hasServer, (*randomStory).server},
	}
}

// wish patches a field that the operator may change for a time.
func (s *randomStory) wish(patch string, wish func(*wants)) string {
	err := s.patch(patch)
	if err == nil {
		wish(&s.wants)
	}
	return outcome(err)
}

// holdSet reports whether a hold has already set a field to a value. A user who writes the same value changes nothing, so the operator
// cannot know that the user wants it.
func (s *randomStory) holdSet(value int32, path ...string) bool {
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(s.stored())
	must(s.w, err)
	is, _, err := unstructured.NestedInt64(o, path...)
	must(s.w, err)
	return s.stored().GetAnnotations()[v1alpha1.HeldAnnotation] != "" && is == int64(value)
}

func (s *randomStory) halted() bool {
	return s.stored().GetAnnotations()[v1alpha1.HaltedAnnotation] != ""
}

func (s *randomStory) release(r *rand.Rand) string {
	image := s.image(r)
	t := templateOfImage(fmt.Sprint("release-", len(s.templates)), image)
	s.templates = append(s.templates, t)
	return s.sendTemplate(t, image)
}

func (s *randomStory) sendTemplate(t, image string) string {
	before := s.stored().GetLabels()[v1alpha1.VersionLabel]
	err := s.patch(t)
	if s.stored().GetLabels()[v1alpha1.VersionLabel] != before { // otherwise it got past admission
		s.noteVersion(image)
	}
	return " " + image + outcome(err)
}

func (s *randomStory) override(r *rand.Rand) string {
	image := s.image(r)
	t := templateOfImage(fmt.Sprint("release-", len(s.templates)), image)
	s.templates = append(s.templates, t)
	return s.sendTemplate(fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}},%s`, v1alpha1.IgnoredSuspendLabel, t[1:]), image)
}

func (s *randomStory) releaseEarlier(r *rand.Rand) string {
	n := r.IntN(len(s.templates))
	if err := s.patch(s.templates[n]); err != nil {
		return fmt.Sprint(" ", n, outcome(err))
	}
	return fmt.Sprint(" ", n)
}

// manifest returns all that the user wants, as a tool applies it.
func (s *randomStory) manifest() string {
	rest := fmt.Sprintf(`"minReadySeconds":%d`, s.wants.minReady)
	switch s.kind {
	case "Deployment":
		rest += fmt.Sprintf(`,"progressDeadlineSeconds":%d`, s.wants.deadline)
	case "StatefulSet":
		rest += `,"updateStrategy":` + s.strategy()
	case "DaemonSet":
		rest += `,"updateStrategy":` + s.strategy()
	}
	return fmt.Sprintf(`{"spec":{%s}}`, rest)
}

func (s *randomStory) strategy() string {
	switch {
	case s.wants.onDelete && s.kind == "StatefulSet":
		return `{"type":"OnDelete","rollingUpdate":null}`
	case s.wants.onDelete:
		return `{"type":"OnDelete"}`
	case s.kind == "StatefulSet":
		return fmt.Sprintf(`{"type":"RollingUpdate","rollingUpdate":{"partition":%d}}`, s.wants.partition)
	default:
		return `{"type":"RollingUpdate"}`
	}
}

func (s *randomStory) sync(r *rand.Rand) string {
	newest := s.templates[len(s.templates)-1]
	n := r.IntN(4)
	s.synced = []func() string{nil, func() string { return newest }, s.manifest, s.manifest}[n]
	return fmt.Sprint(" ", []string{"nothing", newest, "the fields", "the fields"}[n])
}

func (s *randomStory) repartition(r *rand.Rand) string {
	before, n := s.wants, pick[int32](r, 0, 0, 1, 2)
	if s.holdSet(n, "spec", "updateStrategy", "rollingUpdate", "partition") {
		return fmt.Sprint(" not: the hold set it to ", n)
	}
	s.wants.partition, s.wants.onDelete = n, false
	err := s.patch(fmt.Sprintf(`{"spec":{"updateStrategy":%s}}`, s.strategy()))
	if err != nil {
		s.wants = before
	}
	return fmt.Sprint(" to ", n, outcome(err))
}

func (s *randomStory) switchOnDelete(r *rand.Rand) string {
	before, halted := s.wants, s.halted()
	s.wants.onDelete = oneIn(r, 2)
	if s.wants.onDelete {
		s.wants.partition = 0
	}
	err := s.patch(fmt.Sprintf(`{"spec":{"updateStrategy":%s}}`, s.strategy()))
	if err != nil || s.kind == "DaemonSet" && halted && s.wants.onDelete {
		s.wants = before // the operator changed it
	}
	return fmt.Sprint(" ", s.wants.onDelete, outcome(err))
}

func (s *randomStory) request(r *rand.Rand) string {
	var version string
	for v := range s.w.ChangesOf(s.stored()) {
		version = max(version, v)
	}
	return send(annotation(v1alpha1.RollbackToAnnotation, "last-success"), annotation(v1alpha1.RollbackToAnnotation, "last-success"),
		annotation(v1alpha1.RollbackToAnnotation, version), annotation(v1alpha1.UnquarantineAnnotation, "all"))(s, r)
}

// judgeBatch writes the results of a batch, as a user may.
func (s *randomStory) judgeBatch(b *v1alpha1.ChangePod, verdict string) {
	var results []v1alpha1.PodResult
	for _, p := range b.Spec.PodInfos {
		results = append(results, v1alpha1.PodResult{PodInfo: v1alpha1.PodInfo{Pod: p.Pod}, Verdict: verdict, Message: "by hand"})
	}
	must(s.w, s.w.PatchStatus(b, map[string]any{"message": v1alpha1.ChangePodMessagePostFinish, "podResults": results}))
}

func (s *randomStory) failBatch(r *rand.Rand) string {
	c := s.change()
	if c == nil {
		return " of none"
	}
	for _, b := range s.w.Batches(c) {
		if b.Status.Status == v1alpha1.ChangePodExecuteDone && !oneIn(r, 3) {
			s.images[c.Spec.Reversion] = "bad by hand"
			s.judgeBatch(b, "unpass")
			return " " + b.Name
		}
	}
	return " of none that is done"
}

// failInFlight fails the first batch of the release if it is done within a minute.
func (s *randomStory) failInFlight(r *rand.Rand) string {
	for range 120 {
		if batchDone(s.w, s.change()) {
			break
		}
		s.pass(500 * time.Millisecond)
	}
	said := ", fail" + s.failBatch(r)
	if oneIn(r, 3) {
		s.pass(pick(r, time.Second, 30*time.Second))
		said += ", correct" + s.correct(r)
	}
	return said
}

func (s *randomStory) correct(*rand.Rand) string {
	said := ""
	c := s.change()
	if c == nil {
		return " of none"
	}
	for _, b := range s.w.Batches(c) {
		for _, result := range b.Status.PodResults {
			if result.Verdict != "" && result.Verdict != "pass" && result.Verdict != "none" {
				s.judgeBatch(b, "pass")
				said += " " + b.Name
				break
			}
		}
	}
	return said
}

func (s *randomStory) statusRollback(*rand.Rand) string {
	c := s.change()
	if c == nil {
		return " of none"
	}
	must(s.w, s.w.PatchStatus(c, map[string]any{"status": v1alpha1.ChangeWorkloadRollback}))
	return ""
}
