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

package bench

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

var fleetTree = flag.String("tree", "", "the tree whose bin/manager and manifests BenchmarkFleet measures; empty for this tree")

const (
	fleetNamespaces = 20
	fleetNodes      = 50
	// revisionsEach is the number of ControllerRevisions of a workload.
	revisionsEach = 3
)

// fleet is the number of StatefulSets, of 1 to 3 pods, and of DaemonSets in each namespace.
type fleet struct{ sets, daemons int }

// fleets are fleets by their numbers of pods.
var fleets = []struct {
	pods int
	fleet
}{
	{1_000, fleet{sets: 25}},
	{10_000, fleet{sets: 50, daemons: 8}},
	{50_000, fleet{sets: 250, daemons: 40}},
}

// BenchmarkFleet measures a manager at rest beside StatefulSets and DaemonSets with 1,000, 10,000 and 50,000 pods: first in
// namespaces that are not enrolled, then in the same namespaces, enrolled. No controllers run; the benchmark writes their objects.
func BenchmarkFleet(b *testing.B) {
	for _, f := range fleets {
		b.Run(fmt.Sprintf("pods=%d", f.pods), func(b *testing.B) {
			ctrl.SetLogger(logr.Discard())
			root, err := controlplane.Root(".")
			must(b, err)
			binDir, err := controlplane.Build(b.Context(), root, os.Stderr)
			must(b, err)
			if *fleetTree != "" {
				root = *fleetTree
			}
			c, err := controlplane.Start(b.Context(), controlplane.Options{BinDir: binDir, Nodes: -1, Audit: true})
			must(b, err)
			b.Cleanup(func() { must(b, c.Stop()) })
			must(b, c.RestartControllers(b.Context(), func() { f.measure(b, c, root) }))
		})
	}
}

func (f fleet) measure(b *testing.B, c *controlplane.ControlPlane, root string) {
	b.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	api, err := client.NewWithWatch(c.RESTConfig(), client.Options{Scheme: scheme})
	must(b, err)
	t := &bed{cluster: c, api: api}
	t.manager, err = c.InstallManager(b.Context(), controlplane.ManagerOptions{Root: root})
	must(b, err)
	var made sync.WaitGroup
	for i := range fleetNamespaces {
		made.Go(func() { f.create(b, api, fmt.Sprintf("fleet-%02d", i)) })
	}
	made.Wait()
	if b.Failed() {
		return
	}
	for _, mode := range []string{"not enrolled", "enrolled"} {
		if mode == "enrolled" {
			for i := range fleetNamespaces {
				ns := wrappers.MakeNamespace(fmt.Sprintf("fleet-%02d", i)).Obj()
				must(b, api.Patch(b.Context(), ns, client.RawPatch("application/merge-patch+json",
					[]byte(`{"metadata":{"labels":{"`+v1alpha1.EnrolledLabel+`":"`+v1alpha1.EnrolledValue+`"}}}`))))
			}
		}
		b.Run(mode, func(b *testing.B) {
			for b.Loop() {
				began := time.Now()
				must(b, t.manager.Start(b.Context()))
				b.ReportMetric(time.Since(began).Seconds(), "s-ready")
				t.rest(b)
				rss, cpu := t.process(b)
				b.ReportMetric(rss, "MB-rss")
				b.ReportMetric(t.peak(b), "MB-peak")
				b.ReportMetric(cpu, "cpu-s")
				b.ReportMetric(t.writesAtRest(b), "writes/min")
				must(b, t.manager.Stop())
			}
		})
	}
}

// writesAtRest counts the writes of the manager in a minute.
func (t *bed) writesAtRest(b *testing.B) float64 {
	b.Helper()
	before := sum(t.writes(b))
	select {
	case <-b.Context().Done():
	case <-time.After(time.Minute):
	}
	return float64(sum(t.writes(b)) - before)
}

// rest waits until the manager was idle for long enough to give memory back: the runtime collects every two minutes.
func (t *bed) rest(b *testing.B) {
	b.Helper()
	const idle, collected = 0.2, 150 * time.Second
	since, last := time.Now(), 0.0
	must(b, wait.PollUntilContextTimeout(b.Context(), 5*time.Second, patience, false, func(context.Context) (bool, error) {
		_, cpu, err := processOf(t.manager.PID())
		if cpu-last > idle {
			since = time.Now()
		}
		last = cpu
		return time.Since(since) > collected, err
	}))
}

// peak returns the highest resident memory of the manager, in MB.
func (t *bed) peak(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.manager.PID()))
	must(b, err)
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kB, err := strconv.ParseFloat(strings.Fields(text)[0], 64)
			must(b, err)
			return kB / 1024
		}
	}
	b.Fatal("/proc has no VmHWM")
	return 0
}

// create creates the workloads of a namespace. It may run in any goroutine.
func (f fleet) create(b *testing.B, api client.Client, namespace string) {
	b.Helper()
	write := func(o client.Object) bool {
		if err := api.Create(b.Context(), o); err != nil {
			b.Errorf("create %T %s/%s: %v", o, namespace, o.GetName(), err)
		}
		return !b.Failed()
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	if !write(wrappers.MakeNamespace(namespace).Obj()) || !write(account) {
		return
	}
	for i := range f.sets + f.daemons {
		w := fleetWorkload{api: api, namespace: namespace, name: fmt.Sprintf("workload-%03d", i), pods: 1 + i%3}
		if w.daemon = i >= f.sets; w.daemon {
			w.pods = fleetNodes
		}
		if err := w.make(b.Context()); err != nil {
			b.Errorf("workload %s/%s: %v", namespace, w.name, err)
			return
		}
	}
}

// fleetWorkload creates a workload that is rolled out.
type fleetWorkload struct {
	api             client.Client
	namespace, name string
	daemon          bool
	pods            int
}

func (f *fleetWorkload) make(ctx context.Context) error {
	template := typicalTemplate(f.name)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": f.name}}
	meta := metav1.ObjectMeta{Namespace: f.namespace, Name: f.name, Labels: template.Labels, Annotations: map[string]string{
		corev1.LastAppliedConfigAnnotation: encoded(map[string]any{"spec": map[string]any{"template": template}}),
	}}
	var owner client.Object
	mark := f.name + "-5d9c8b7f64"
	pods := int32(f.pods)
	kind := "StatefulSet"
	if f.daemon {
		kind = "DaemonSet"
		d := &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
		if err := f.api.Create(ctx, d); err != nil {
			return err
		}
		mark = "5d9c8b7f64"
		d.Status = appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, CurrentNumberScheduled: pods, DesiredNumberScheduled: pods,
			NumberReady: pods, UpdatedNumberScheduled: pods, NumberAvailable: pods}
		owner = d
	} else {
		s := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Selector: selector, Template: template, Replicas: &pods, ServiceName: f.name,
		}}
		if err := f.api.Create(ctx, s); err != nil {
			return err
		}
		s.Status = appsv1.StatefulSetStatus{ObservedGeneration: s.Generation, Replicas: pods, ReadyReplicas: pods, CurrentReplicas: pods,
			UpdatedReplicas: pods, AvailableReplicas: pods, CurrentRevision: mark, UpdateRevision: mark}
		owner = s
	}
	if err := f.api.Status().Update(ctx, owner); err != nil {
		return err
	}
	ref := metav1.NewControllerRef(owner, appsv1.SchemeGroupVersion.WithKind(kind))
	for i := range revisionsEach {
		if err := f.api.Create(ctx, f.revision(ref, template, i)); err != nil {
			return err
		}
	}
	for i := range f.pods {
		if err := f.pod(ctx, ref, template, mark, i); err != nil {
			return err
		}
	}
	return nil
}

// revision returns a ControllerRevision of the workload; the last one is current.
func (f *fleetWorkload) revision(ref *metav1.OwnerReference, template corev1.PodTemplateSpec, i int) *appsv1.ControllerRevision {
	hash := "5d9c8b7f64"
	if i < revisionsEach-1 {
		hash = fmt.Sprint("5d9c8b7f6", i+5)
		template = *template.DeepCopy()
		template.Annotations["released"] = hash
	}
	content := map[string]any{}
	utilruntime.Must(json.Unmarshal([]byte(encoded(template)), &content))
	content["$patch"] = "replace"
	labels := map[string]string{"app": f.name, appsv1.ControllerRevisionHashLabelKey: hash}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.namespace, Name: f.name + "-" + hash, Labels: labels, OwnerReferences: []metav1.OwnerReference{*ref},
		},
		Revision: int64(i + 1),
		Data:     runtime.RawExtension{Raw: []byte(encoded(map[string]any{"spec": map[string]any{"template": content}}))},
	}
}

func (f *fleetWorkload) pod(ctx context.Context, ref *metav1.OwnerReference, template corev1.PodTemplateSpec, mark string, i int) error {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.Name, pod.OwnerReferences = f.namespace, fmt.Sprintf("%s-%d", f.name, i), []metav1.OwnerReference{*ref}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = mark
	pod.Labels["app.kubernetes.io/part-of"] = "fleet"
	pod.Spec.NodeName = fmt.Sprintf("node-%d", i%fleetNodes)
	if err := f.api.Create(ctx, pod); err != nil {
		return err
	}
	now := metav1.Now()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: fmt.Sprintf("10.0.%d.%d", i/256, i%256), StartTime: &now,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Ready: true, Started: ptr.To(true), Image: pod.Spec.Containers[0].Image, ImageID: "sha256:" + strings.Repeat("a", 64),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions,
			corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	return f.api.Status().Update(ctx, pod)
}

// typicalTemplate returns a template of a usual size, about 2 KB.
func typicalTemplate(name string) corev1.PodTemplateSpec {
	c := corev1.Container{
		Name: "main", Image: "registry.example.com/team/" + name + ":v1.2.3",
		Command:        []string{"/bin/server", "--config=/etc/server/config.yaml"},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/true"}}}},
	}
	for i := range 20 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SOME_SETTING_%02d", i), Value: "a value of a common length"})
	}
	labels := map[string]string{"app": name, "app.kubernetes.io/name": name, "app.kubernetes.io/version": "v1.2.3", "team": "one"}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"released": "now"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c}},
	}
}

func encoded(o any) string {
	text, err := json.Marshal(o)
	utilruntime.Must(err)
	return string(text)
}
