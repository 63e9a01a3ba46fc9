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

package controlplane

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/hack/binaries"
)

// patience bounds waits that take a second or two on an idle machine.
const patience = 2 * time.Minute

func TestControlPlane(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	root, err := Root(".")
	if err != nil {
		t.Fatal(err)
	}
	binDir, err := Build(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c, err := Start(t.Context(), Options{BinDir: binDir, Dir: dir, Out: os.Stderr, Audit: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{c: c, client: client}

	t.Run("pods", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T){
			"init containers": h.testInitContainers,
			"broken image":    h.testBrokenImage,
			"crash loop":      h.testCrashLoop,
			"late crash":      h.testLateCrash,
			"late ready":      h.testLateReady,
			"pod IP":          h.testPodIP,
			"never ready":     h.testNeverReady,
			"stuck":           h.testStuck,
			"restarts":        h.testRestartLoops,
			"liveness":        h.testLiveness,
			"unready":         h.testUnready,
			"readiness gate":  h.testReadinessGate,
			"image in place":  h.testImageInPlace,
			"deletion":        h.testDeletion,
			"service account": h.testServiceAccount,
			"apply":           h.testApplyFiles,
			"directory lock":  h.testSecondStart,
			"rests":           h.testRests,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t)
			})
		}
	})
	t.Run("stop", h.testStop)
}

type harness struct {
	c      *ControlPlane
	client kubernetes.Interface
}

func newPod(name string, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceDefault, Labels: map[string]string{}, Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "nginx:1"}}},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func (h *harness) create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if _, err := h.client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (h *harness) get(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := h.client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// until waits until check accepts a pod, and returns the pod.
func (h *harness) until(t *testing.T, name string, check func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(t, patience, func() error {
		pod = h.get(t, name)
		return check(pod)
	})
	return pod
}

func (h *harness) patch(t *testing.T, name, patch string, subresources ...string) {
	t.Helper()
	_, err := h.client.CoreV1().Pods(metav1.NamespaceDefault).Patch(
		t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	if err != nil {
		t.Fatal(err)
	}
}

// conditions returns the status of each condition of a pod, with the reason.
func conditions(pod *corev1.Pod) map[string]string {
	all := map[string]string{}
	for _, condition := range pod.Status.Conditions {
		all[string(condition.Type)] = strings.TrimSpace(string(condition.Status) + " " + condition.Reason)
	}
	return all
}

// is returns a check that a pod runs with the given Ready condition: its status and
// reason.
func is(ready string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if got := conditions(pod)["Ready"]; pod.Status.Phase != corev1.PodRunning || got != ready {
			return fmt.Errorf("phase %s, Ready %q, want Running, %q", pod.Status.Phase, got, ready)
		}
		return nil
	}
}

func (h *harness) testInitContainers(t *testing.T) {
	h.create(t, newPod("init", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{
			{Name: "setup", Image: "setup"},
			{Name: "sidecar", Image: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
		}
	}))
	pod := h.until(t, "init", is("True"))
	setup, sidecar := pod.Status.InitContainerStatuses[0], pod.Status.InitContainerStatuses[1]
	if setup.State.Terminated == nil || setup.State.Terminated.Reason != "Completed" || !setup.Ready {
		t.Errorf("init container: %+v", setup)
	}
	if sidecar.State.Running == nil || !sidecar.Ready || !*sidecar.Started {
		t.Errorf("sidecar: %+v", sidecar)
	}
	app := pod.Status.ContainerStatuses[0]
	if app.State.Running == nil || !app.Ready || !*app.Started || app.Image != "nginx:1" {
		t.Errorf("container: %+v", app)
	}
	want := map[string]string{
		"PodScheduled": "True", "PodReadyToStartContainers": "True", "Initialized": "True", "ContainersReady": "True", "Ready": "True",
	}
	if diff := cmp.Diff(want, conditions(pod)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if pod.Status.HostIP == "" || len(pod.Status.PodIPs) != 1 || pod.Status.PodIP != pod.Status.PodIPs[0].IP {
		t.Errorf("host %s, pod %s, pod IPs %v", pod.Status.HostIP, pod.Status.PodIP, pod.Status.PodIPs)
	}
}

func (h *harness) testBrokenImage(t *testing.T) {
	waiting := func(statuses []corev1.ContainerStatus, i int) string {
		if len(statuses) <= i || statuses[i].State.Waiting == nil {
			return ""
		}
		return statuses[i].State.Waiting.Reason
	}
	// The watch begins before the pod, to see both stages of the failure.
	only := metav1.SingleObject(metav1.ObjectMeta{Name: "broken"})
	watch, err := h.client.CoreV1().Pods(metav1.NamespaceDefault).Watch(t.Context(), only)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	h.create(t, newPod("broken", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Image = "busybo:1"
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "good", Image: "busybox"})
	}))
	h.create(t, newPod("broken-init", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "setup", Image: "docker.io/library/busybo"}}
	}))
	pod := h.until(t, "broken", func(pod *corev1.Pod) error {
		if reason := waiting(pod.Status.ContainerStatuses, 0); reason != "ImagePullBackOff" {
			return fmt.Errorf("waiting for %q", reason)
		}
		return nil
	})
	var reasons []string
	for len(reasons) == 0 || reasons[len(reasons)-1] != "ImagePullBackOff" {
		event, ok := <-watch.ResultChan()
		if !ok {
			t.Fatal("watch ended early")
		}
		seen, ok := event.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("watch event %v", event)
		}
		if reason := waiting(seen.Status.ContainerStatuses, 0); reason != "" && (len(reasons) == 0 || reasons[len(reasons)-1] != reason) {
			reasons = append(reasons, reason)
		}
	}
	if diff := cmp.Diff([]string{"ErrImagePull", "ImagePullBackOff"}, reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	message := pod.Status.ContainerStatuses[0].State.Waiting.Message
	if !strings.HasPrefix(message, `Back-off pulling image "busybo:1"`) {
		t.Errorf("message %q", message)
	}
	got := conditions(pod)
	if pod.Status.Phase != corev1.PodPending ||
		got["Ready"] != "False ContainersNotReady" || got["ContainersReady"] != "False ContainersNotReady" {
		t.Errorf("phase %s, conditions %v", pod.Status.Phase, got)
	}
	if good := pod.Status.ContainerStatuses[1]; good.State.Running == nil {
		t.Errorf("the container with a good image: %+v", good)
	}
	pod = h.until(t, "broken-init", func(pod *corev1.Pod) error {
		if reason := waiting(pod.Status.InitContainerStatuses, 0); reason != "ImagePullBackOff" {
			return fmt.Errorf("waiting for %q", reason)
		}
		return nil
	})
	if reason := waiting(pod.Status.ContainerStatuses, 0); reason != "PodInitializing" {
		t.Errorf("the container after the init container waits for %q", reason)
	}

	h.patch(t, "broken", `{"spec":{"containers":[{"name":"app","image":"busybox:1"}]}}`)
	h.until(t, "broken", is("True"))
}

func (h *harness) testCrashLoop(t *testing.T) {
	h.create(t, newPod("crash", func(pod *corev1.Pod) { pod.Labels[BehaviorLabel] = BehaviorCrashLoop }))
	pod := h.until(t, "crash", func(pod *corev1.Pod) error {
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].RestartCount < 2 {
			return errors.New("not restarted twice")
		}
		return is("False ContainersNotReady")(pod)
	})
	status := pod.Status.ContainerStatuses[0]
	if status.State.Waiting == nil || status.State.Waiting.Reason != "CrashLoopBackOff" || status.Ready {
		t.Errorf("state: %+v", status)
	}
	if last := status.LastTerminationState.Terminated; last == nil || last.ExitCode != 1 || last.Reason != "Error" {
		t.Errorf("last state: %+v", last)
	}
	h.patch(t, "crash", `{"metadata":{"labels":{"`+BehaviorLabel+`":null}}}`)
	h.until(t, "crash", is("True"))
}

func (h *harness) testLateCrash(t *testing.T) {
	h.create(t, newPod("late-crash", func(pod *corev1.Pod) {
		pod.Labels[BehaviorLabel] = BehaviorCrashLoop
		pod.Annotations[CrashAfterAnnotation] = "4s"
	}))
	h.until(t, "late-crash", is("True"))
	// Other writes to the pod do not delay it.
	h.patch(t, "late-crash", `{"metadata":{"annotations":{"some":"thing"}}}`)
	pod := h.until(t, "late-crash", is("False ContainersNotReady"))
	status := pod.Status.ContainerStatuses[0]
	end := status.LastTerminationState.Terminated
	if status.State.Waiting == nil || status.State.Waiting.Reason != "CrashLoopBackOff" || status.RestartCount < 1 || end == nil {
		t.Fatalf("container: %+v", status)
	}
	if ran := end.FinishedAt.Sub(pod.Status.StartTime.Time); status.RestartCount == 1 && ran < 4*time.Second {
		t.Errorf("crashed %s after its start, want 4s at least", ran)
	}
	h.until(t, "late-crash", func(pod *corev1.Pod) error {
		if n := pod.Status.ContainerStatuses[0].RestartCount; n < 2 {
			return fmt.Errorf("restarted %d times, want 2 at least", n)
		}
		return nil
	})
}

func (h *harness) testPodIP(t *testing.T) {
	h.create(t, newPod("given-ip", func(pod *corev1.Pod) { pod.Annotations[PodIPAnnotation] = "192.0.2.7" }))
	if pod := h.until(t, "given-ip", is("True")); pod.Status.PodIP != "192.0.2.7" || len(pod.Status.PodIPs) != 1 {
		t.Errorf("IP %q, of %v", pod.Status.PodIP, pod.Status.PodIPs)
	}
}

func (h *harness) testLateReady(t *testing.T) {
	h.create(t, newPod("late", func(pod *corev1.Pod) {
		pod.Labels[BehaviorLabel] = BehaviorLateReady
		pod.Annotations[ReadyAfterAnnotation] = "3s"
	}))
	h.until(t, "late", is("False ContainersNotReady"))
	// Other writes to the pod do not delay it.
	h.patch(t, "late", `{"metadata":{"annotations":{"some":"thing"}}}`)
	pod := h.until(t, "late", is("True"))
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodReady {
			continue
		}
		if late := condition.LastTransitionTime.Sub(pod.Status.StartTime.Time); late < 3*time.Second {
			t.Errorf("ready after %s, want 3s at least", late)
		}
	}
}

func (h *harness) testNeverReady(t *testing.T) {
	h.create(t, newPod("never", func(pod *corev1.Pod) { pod.Labels[BehaviorLabel] = BehaviorNeverReady }))
	pod := h.until(t, "never", is("False ContainersNotReady"))
	if status := pod.Status.ContainerStatuses[0]; status.State.Running == nil || status.Ready || !*status.Started {
		t.Errorf("container: %+v", status)
	}
	h.calm(t, "never")
}

// calm removes the behavior label of a pod, which makes it ready.
func (h *harness) calm(t *testing.T, name string) {
	t.Helper()
	h.patch(t, name, `{"metadata":{"labels":{"`+BehaviorLabel+`":null}}}`)
	h.until(t, name, is("True"))
}

// withOthers adds a container, an init container and two sidecars to a pod.
func withOthers(pod *corev1.Pod) {
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "sidecar", Image: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
		{Name: "setup", Image: "setup"},
		{Name: "late-sidecar", Image: "sidecar", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
	}
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "other", Image: "other"})
}

// stateOf returns the state of a container, and its number of restarts.
func stateOf(status corev1.ContainerStatus) string {
	state := "nothing"
	switch {
	case status.State.Running != nil:
		state = "running"
	case status.State.Waiting != nil:
		state = status.State.Waiting.Reason
	case status.State.Terminated != nil:
		state = fmt.Sprintf("%s %d", status.State.Terminated.Reason, status.State.Terminated.ExitCode)
	}
	if *status.Started {
		state += " started"
	}
	if status.Ready {
		state += " ready"
	}
	return fmt.Sprintf("%s %d", state, status.RestartCount)
}

// statesOf returns the state of each container of a pod.
func statesOf(pod *corev1.Pod) map[string]string {
	states := map[string]string{}
	for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		states[status.Name] = stateOf(status)
	}
	return states
}

func (h *harness) testStuck(t *testing.T) {
	sandbox := map[string]string{
		"PodScheduled": "True", "PodReadyToStartContainers": "True", "Initialized": "True",
		"ContainersReady": "False ContainersNotReady", "Ready": "False ContainersNotReady",
	}
	noSandbox := map[string]string{
		"PodScheduled": "True", "PodReadyToStartContainers": "False", "Initialized": "True",
		"ContainersReady": "False ContainersNotReady", "Ready": "False ContainersNotReady",
	}
	uninitialized := map[string]string{
		"PodScheduled": "True", "PodReadyToStartContainers": "False", "Initialized": "False ContainersNotInitialized",
		"ContainersReady": "False ContainersNotReady", "Ready": "False ContainersNotReady",
	}
	initialized := func(app string) map[string]string {
		return map[string]string{
			"sidecar": "running started ready 0", "setup": "Completed 0 ready 0", "late-sidecar": "running started ready 0",
			"app": app, "other": "running started ready 0",
		}
	}
	const noCommand = "failed to generate container spec: no command specified"
	for _, tc := range []struct {
		name, behavior, message string
		change                  func(*corev1.Pod)
		states, conditions      map[string]string
	}{
		{
			name: "config-error", behavior: BehaviorConfigError, message: `configmap "app" not found`,
			states: map[string]string{"app": "CreateContainerConfigError 0"}, conditions: sandbox,
		},
		{
			name: "config-error-others", behavior: BehaviorConfigError, message: `configmap "app" not found`, change: withOthers,
			states: initialized("CreateContainerConfigError 0"), conditions: sandbox,
		},
		{
			name: "create-error", behavior: BehaviorCreateError, message: noCommand,
			states: map[string]string{"app": "CreateContainerError 0"}, conditions: sandbox,
		},
		{
			name: "create-error-others", behavior: BehaviorCreateError, message: noCommand, change: withOthers,
			states: initialized("CreateContainerError 0"), conditions: sandbox,
		},
		{
			name: "volume", behavior: BehaviorVolume,
			states: map[string]string{"app": "ContainerCreating 0"}, conditions: noSandbox,
		},
		{
			name: "volume-others", behavior: BehaviorVolume, change: withOthers,
			states: map[string]string{
				"sidecar": "PodInitializing 0", "setup": "PodInitializing 0", "late-sidecar": "PodInitializing 0",
				"app": "PodInitializing 0", "other": "PodInitializing 0",
			}, conditions: uninitialized,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h.create(t, newPod(tc.name, func(pod *corev1.Pod) {
				pod.Labels[BehaviorLabel] = tc.behavior
				if tc.change != nil {
					tc.change(pod)
				}
			}))
			pod := h.until(t, tc.name, func(pod *corev1.Pod) error {
				if len(pod.Status.ContainerStatuses) == 0 {
					return errors.New("no status")
				}
				return nil
			})
			if pod.Status.Phase != corev1.PodPending || pod.Status.HostIP == "" {
				t.Errorf("phase %s, host IP %q", pod.Status.Phase, pod.Status.HostIP)
			}
			if diff := cmp.Diff(tc.states, statesOf(pod)); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.conditions, conditions(pod)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if message := pod.Status.ContainerStatuses[0].State.Waiting.Message; message != tc.message {
				t.Errorf("message %q, want %q", message, tc.message)
			}
			if pod.Status.PodIP == "" != (tc.behavior == BehaviorVolume) {
				t.Errorf("pod IP %q", pod.Status.PodIP)
			}
			h.calm(t, tc.name)
		})
	}
}

// journey watches a pod until one of its containers is in the last of the
// states, and checks that it was in each of them, in order, and in no other.
func (h *harness) journey(t *testing.T, pod *corev1.Pod, container string, want []string, each func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	watch, err := h.client.CoreV1().Pods(pod.Namespace).Watch(t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: pod.Name}))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	h.create(t, pod)
	var got []string
	last := want[len(want)-1]
	timeout := time.After(2 * patience)
	for {
		select {
		case event := <-watch.ResultChan():
			seen, ok := event.Object.(*corev1.Pod)
			if !ok {
				t.Fatalf("watch event %v", event)
			}
			state, ok := statesOf(seen)[container]
			if !ok || len(got) > 0 && got[len(got)-1] == state {
				continue
			}
			got = append(got, state)
			each(seen)
			if state == last {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("states (-want +got):\n%s", diff)
				}
				return seen
			}
		case <-timeout:
			t.Fatalf("saw only %q", got)
		}
	}
}

// inBackOff checks the last termination and the message of a container in back-off.
func inBackOff(t *testing.T, pod *corev1.Pod, status corev1.ContainerStatus, wait, reason string, code int32) {
	t.Helper()
	want := fmt.Sprintf("back-off %s restarting failed container=%s pod=%s_%s(%s)", wait, status.Name, pod.Name, pod.Namespace, pod.UID)
	if status.State.Waiting.Message != want {
		t.Errorf("message %q, want %q", status.State.Waiting.Message, want)
	}
	if end := status.LastTerminationState.Terminated; end == nil || end.Reason != reason || end.ExitCode != code {
		t.Errorf("last state: %+v", end)
	}
}

func (h *harness) testRestartLoops(t *testing.T) {
	sidecarOnly := map[string]string{
		"sidecar": "running started ready 0", "late-sidecar": "PodInitializing 0",
		"app": "PodInitializing 0", "other": "PodInitializing 0",
	}
	initialized := map[string]string{
		"sidecar": "running started ready 0", "setup": "Completed 0 ready 0",
		"late-sidecar": "running started ready 0", "other": "running started ready 0",
	}
	for _, tc := range []struct {
		behavior, reason string
		code             int32
		phase            corev1.PodPhase
		failing          string
		trying           string
		others           map[string]string
		initialized      string
	}{
		{
			behavior: BehaviorInitCrash, reason: "Error", code: 1, phase: corev1.PodPending, failing: "setup", trying: "Error 1",
			others: sidecarOnly, initialized: "False ContainersNotInitialized",
		},
		{
			behavior: BehaviorRunError, reason: "StartError", code: 128, phase: corev1.PodRunning, failing: "app",
			trying: "RunContainerError", others: initialized, initialized: "True",
		},
		{
			behavior: BehaviorStartupProbe, reason: "Error", code: 137, phase: corev1.PodRunning, failing: "app",
			trying: "running", others: initialized, initialized: "True",
		},
	} {
		t.Run(tc.behavior, func(t *testing.T) {
			t.Parallel()
			pod := newPod(tc.behavior, func(pod *corev1.Pod) {
				pod.Labels[BehaviorLabel] = tc.behavior
				withOthers(pod)
			})
			states := []string{
				tc.trying + " 0", tc.trying + " 1", "CrashLoopBackOff 1", tc.trying + " 2", "CrashLoopBackOff 2",
				tc.trying + " 3", "CrashLoopBackOff 3",
			}
			pod = h.journey(t, pod, tc.failing, states, func(pod *corev1.Pod) {
				got := conditions(pod)
				if pod.Status.Phase != tc.phase || got["Initialized"] != tc.initialized ||
					got["ContainersReady"] != "False ContainersNotReady" || got["Ready"] != "False ContainersNotReady" {
					t.Errorf("phase %s, conditions %v", pod.Status.Phase, got)
				}
				others := statesOf(pod)
				delete(others, tc.failing)
				if diff := cmp.Diff(tc.others, others); diff != "" {
					t.Errorf("the other containers (-want +got):\n%s", diff)
				}
			})
			for _, status := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
				if status.Name == tc.failing {
					inBackOff(t, pod, status, "40s", tc.reason, tc.code)
				}
			}
			h.calm(t, tc.behavior)
		})
	}
}

// testLiveness checks a pod that is killed repeatedly, and a running pod that gets
// the label.
func (h *harness) testLiveness(t *testing.T) {
	pod := newPod("liveness", func(pod *corev1.Pod) { pod.Labels[BehaviorLabel] = BehaviorLiveness })
	states := []string{
		"running started ready 0", "running started ready 1", "CrashLoopBackOff 1", "running started ready 2",
		"CrashLoopBackOff 2", "running started ready 3", "CrashLoopBackOff 3",
	}
	pod = h.journey(t, pod, "app", states, func(pod *corev1.Pod) {
		ready := "False ContainersNotReady"
		if pod.Status.ContainerStatuses[0].Ready {
			ready = "True"
		}
		if got := conditions(pod); pod.Status.Phase != corev1.PodRunning || got["Ready"] != ready || got["ContainersReady"] != ready {
			t.Errorf("phase %s, conditions %v, want ready %q", pod.Status.Phase, got, ready)
		}
	})
	inBackOff(t, pod, pod.Status.ContainerStatuses[0], "40s", "Error", 137)
	h.calm(t, "liveness")

	h.create(t, newPod("killed", nil))
	h.until(t, "killed", is("True"))
	h.patch(t, "killed", `{"metadata":{"labels":{"`+BehaviorLabel+`":"`+BehaviorLiveness+`"}}}`)
	h.until(t, "killed", is("False ContainersNotReady"))
	h.calm(t, "killed")
	if got := stateOf(h.get(t, "killed").Status.ContainerStatuses[0]); got != "running started ready 1" {
		t.Errorf("a container that was killed once: %s", got)
	}
}

func (h *harness) testUnready(t *testing.T) {
	h.create(t, newPod("fickle", nil))
	started := h.until(t, "fickle", is("True")).Status.ContainerStatuses[0].State
	for range 2 {
		h.patch(t, "fickle", `{"metadata":{"annotations":{"`+UnreadyAnnotation+`":"true"}}}`)
		pod := h.until(t, "fickle", is("False ContainersNotReady"))
		if pod.Status.ContainerStatuses[0].Ready {
			t.Error("the pod is not ready, its container is")
		}
		h.patch(t, "fickle", `{"metadata":{"annotations":{"`+UnreadyAnnotation+`":null}}}`)
		pod = h.until(t, "fickle", is("True"))
		if diff := cmp.Diff(started, pod.Status.ContainerStatuses[0].State); diff != "" {
			t.Errorf("the container restarted (-before +after):\n%s", diff)
		}
	}
}

func (h *harness) testReadinessGate(t *testing.T) {
	const gate = "example.com/released"
	h.create(t, newPod("gated", func(pod *corev1.Pod) {
		pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	}))
	pod := h.until(t, "gated", is("False ReadinessGatesNotReady"))
	if got, ok := conditions(pod)[gate]; ok {
		t.Errorf("kwok wrote the gate's condition: %s", got)
	}
	if got := conditions(pod)["ContainersReady"]; got != "True" {
		t.Errorf("ContainersReady is %s", got)
	}
	for _, step := range []struct{ gate, want string }{
		{"False", "False ReadinessGatesNotReady"},
		{"True", "True"},
		{"False", "False ReadinessGatesNotReady"},
		{"Unknown", "False ReadinessGatesNotReady"},
		{"True", "True"},
	} {
		condition := `{"type":"` + gate + `","status":"` + step.gate + `","reason":"Owner","message":"mine"}`
		h.patch(t, "gated", `{"status":{"conditions":[`+condition+`]}}`, "status")
		h.until(t, "gated", is(step.want))
	}
	// Another change rewrites the pod's status; the condition of the gate stays.
	h.patch(t, "gated", `{"metadata":{"annotations":{"`+UnreadyAnnotation+`":"true"}}}`)
	pod = h.until(t, "gated", is("False ContainersNotReady"))
	if got := conditions(pod)[gate]; got != "True Owner" {
		t.Errorf("the gate's condition is %q", got)
	}
	h.patch(t, "gated", `{"status":{"conditions":[{"type":"`+gate+`","$patch":"delete"}]},`+
		`"metadata":{"annotations":{"`+UnreadyAnnotation+`":null}}}`, "status")
	h.patch(t, "gated", `{"metadata":{"annotations":{"`+UnreadyAnnotation+`":null}}}`)
	h.until(t, "gated", is("False ReadinessGatesNotReady"))
}

// testImageInPlace changes the image of a running pod: its container restarts, as with a kubelet.
func (h *harness) testImageInPlace(t *testing.T) {
	h.create(t, newPod("in-place", nil))
	h.until(t, "in-place", is("True"))
	h.patch(t, "in-place", `{"spec":{"containers":[{"name":"app","image":"nginx:2"}]}}`)
	pod := h.until(t, "in-place", func(pod *corev1.Pod) error {
		if got := pod.Status.ContainerStatuses[0].Image; got != "nginx:2" {
			return fmt.Errorf("it runs %s", got)
		}
		return nil
	})
	s := pod.Status.ContainerStatuses[0]
	if s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.State.Running == nil || !s.Ready {
		t.Errorf("not restarted: %+v", s)
	}
}

func (h *harness) testDeletion(t *testing.T) {
	pods := h.client.CoreV1().Pods(metav1.NamespaceDefault)
	gone := func(name string) func() error {
		return func() error {
			_, err := pods.Get(t.Context(), name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("pod %s is still there: %w", name, err)
		}
	}
	h.create(t, newPod("plain", nil))
	h.create(t, newPod("held", func(pod *corev1.Pod) { pod.Finalizers = []string{"example.com/hold"} }))
	h.create(t, newPod("slow", func(pod *corev1.Pod) { pod.Annotations[TerminateAfterAnnotation] = "3s" }))
	for _, name := range []string{"plain", "held", "slow"} {
		h.until(t, name, is("True"))
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	eventually(t, patience, gone("plain"))

	h.until(t, "held", func(pod *corev1.Pod) error {
		if pod.Status.Phase != corev1.PodSucceeded || *pod.DeletionGracePeriodSeconds != 0 {
			return fmt.Errorf("phase %s, grace period %d s", pod.Status.Phase, *pod.DeletionGracePeriodSeconds)
		}
		return nil
	})
	h.patch(t, "held", `{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.com/hold"]}}`)
	eventually(t, patience, gone("held"))

	eventually(t, patience, gone("slow"))
	// Deletion timestamps are whole seconds.
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("the slow pod took only %s", took)
	}
}

func (h *harness) testServiceAccount(t *testing.T) {
	accounts := h.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	robot := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}
	if _, err := accounts.Create(t.Context(), robot, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := h.c.KubeconfigFor(t.Context(), metav1.NamespaceDefault, "robot", path); err != nil {
		t.Fatal(err)
	}
	h.wantForbidden(t, path, "system:serviceaccount:default:robot")
	if err := h.c.KubeconfigFor(t.Context(), metav1.NamespaceDefault, "absent", path); !apierrors.IsNotFound(err) {
		t.Errorf("kubeconfig of a ServiceAccount that does not exist: %v", err)
	}
}

// wantForbidden checks the user of a kubeconfig, and that RBAC denies access to
// secrets.
func (h *harness) wantForbidden(t *testing.T, kubeconfig, user string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Secrets(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), user) {
		t.Errorf("listing secrets as %s: %v", user, err)
	}
}

func (h *harness) testApplyFiles(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"plain.yaml":                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\n",
		"kustom/kustomization.yaml": "resources: [map.yaml]\nnamePrefix: kustom-\n",
		"kustom/map.yaml":           "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ized}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.c.ApplyFiles(t.Context(), filepath.Join(dir, "plain.yaml"), filepath.Join(dir, "kustom")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"applied", "kustom-ized"} {
		if _, err := h.client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	}
	if err := h.c.ApplyFiles(t.Context(), filepath.Join(dir, "absent.yaml")); err == nil {
		t.Error("applied a file that does not exist")
	}
}

func (h *harness) testSecondStart(t *testing.T) {
	second, err := Start(t.Context(), Options{BinDir: h.c.binDir, Dir: h.c.Dir()})
	if err == nil {
		_ = second.Stop()
		t.Fatal("two control planes in one directory")
	}
	if err := h.c.apiServerReady(t.Context()); err != nil {
		t.Errorf("the first control plane is not ready: %v", err)
	}
}

// testRests checks that kwok does not write to a pod with a correct status, even if the
// pod changes in another field.
func (h *harness) testRests(t *testing.T) {
	h.create(t, newPod("resting", nil))
	h.until(t, "resting", is("True"))
	h.patch(t, "resting", `{"metadata":{"annotations":{"some":"thing"}}}`)
	// kwok handles the events of all pods in order: after it starts a later pod, it has
	// handled the event of the patch.
	h.create(t, newPod("resting-later", nil))
	h.until(t, "resting-later", is("True"))

	writes := 0
	for _, event := range h.audit(t) {
		if event.User.Username == "kwok" && event.ObjectRef.Name == "resting" && event.ObjectRef.Resource == "pods" {
			writes++
		}
	}
	if writes != 1 {
		t.Errorf("kwok wrote %d times to a pod, want once", writes)
	}
}

type auditEvent struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource string `json:"resource"`
		Name     string `json:"name"`
	} `json:"objectRef"`
	RequestObject json.RawMessage `json:"requestObject"`
}

func (h *harness) audit(t *testing.T) []auditEvent {
	t.Helper()
	data, err := os.ReadFile(h.c.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	// The last line may be incomplete.
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	var events []auditEvent
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return events
}

func (h *harness) testStop(t *testing.T) {
	pids := h.c.supervisor.PIDs()
	if len(pids) != 5 {
		t.Errorf("%d processes run, want 5", len(pids))
	}
	began := time.Now()
	if err := h.c.Stop(); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped in %s", time.Since(began).Round(time.Millisecond))
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
	}
	if err := h.c.Stop(); err != nil {
		t.Errorf("the second Stop: %v", err)
	}
}

// TestStartFails checks the error of a component that does not start, and that the
// directory is unlocked afterwards.
func TestStartFails(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd")
	}
	root, err := Root(".")
	if err != nil {
		t.Fatal(err)
	}
	binDir, err := Build(t.Context(), root, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c, err := Start(t.Context(), Options{BinDir: binDir, Dir: dir, APIServerFlags: []string{"--no-such-flag"}})
	if err == nil {
		_ = c.Stop()
		t.Fatal("started with an unknown flag")
	}
	if !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("the error lacks the reason: %v", err)
	}
	lock, err := binaries.Lock(dir)
	if err != nil {
		t.Fatalf("the directory is still taken: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}
