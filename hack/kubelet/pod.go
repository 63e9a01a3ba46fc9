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

package kubelet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	// syncPeriod is how often volumes are read again.
	syncPeriod = 5 * time.Second
	// retryPeriod is how long a container waits that could not be started.
	retryPeriod = time.Second
	// firstRestart is the back-off of a kubelet after the second crash; it doubles,
	// until a container ran for as long as forgiven.
	firstRestart = 10 * time.Second
	forgiven     = 10 * time.Minute
)

// pod is a pod that runs. Its goroutine is run; what others ask for is guarded by
// the kubelet's mu.
type pod struct {
	k       *Kubelet
	uid     types.UID
	name    string
	dir     string
	ip      netip.Addr
	updates chan *corev1.Pod
	life    context.Context
	end     context.CancelFunc

	// pid of the container's process, socket of its sandbox; guarded by mu.
	pid    int
	socket string

	// For run only.
	tokens   map[string]serviceAccountToken
	spec     *corev1.Pod
	state    containerState
	reported *corev1.PodStatus
}

// containerState is what a pod's status tells of its container.
type containerState struct {
	current  corev1.ContainerState
	last     corev1.ContainerState
	restarts int32
	// started and ready are the answers of the probes.
	started, ready bool
}

// status of a pod with a container in some state.
func (s *containerState) status(spec *corev1.Pod, ip netip.Addr, now time.Time) *corev1.PodStatus {
	c := &spec.Spec.Containers[0]
	status := spec.Status.DeepCopy()
	status.Phase = corev1.PodRunning
	if s.current.Waiting != nil && s.restarts == 0 && s.last.Terminated == nil {
		status.Phase = corev1.PodPending
	}
	if s.current.Terminated != nil {
		status.Phase = corev1.PodFailed
		if s.current.Terminated.ExitCode == 0 {
			status.Phase = corev1.PodSucceeded
		}
	}
	if status.StartTime == nil {
		status.StartTime = &metav1.Time{Time: now}
	}
	status.PodIP = ip.String()
	status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: c.Name, Image: c.Image, State: s.current, LastTerminationState: s.last, RestartCount: s.restarts,
		Ready: s.ready, Started: ptr.To(s.started), ContainerID: "process://" + string(spec.UID),
	}}
	condition := func(kind corev1.PodConditionType, is bool, reason string) {
		want := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.Time{Time: now}}
		if is {
			want.Status, want.Reason = corev1.ConditionTrue, ""
		}
		for i := range status.Conditions {
			have := &status.Conditions[i]
			if have.Type != kind {
				continue
			}
			if have.Status == want.Status {
				want.LastTransitionTime = have.LastTransitionTime
			}
			want.ObservedGeneration = have.ObservedGeneration
			*have = want
			return
		}
		status.Conditions = append(status.Conditions, want)
	}
	condition(corev1.PodReadyToStartContainers, true, "")
	condition(corev1.PodInitialized, true, "")
	condition(corev1.ContainersReady, s.ready, "ContainersNotReady")
	condition(corev1.PodReady, s.ready, "ContainersNotReady")
	return status
}

// run runs a pod until it is gone.
func (p *pod) run(spec *corev1.Pod) {
	defer func() {
		p.end()
		p.k.mu.Lock()
		delete(p.k.pods, p.uid)
		p.k.mu.Unlock()
		_ = os.RemoveAll(p.dir)
	}()
	p.spec = spec
	var ended bool
	for wait, backoff := time.Duration(0), time.Duration(0); !ended; {
		if ended = p.pause(wait); ended {
			break
		}
		began := time.Now()
		process, err := p.start()
		if err != nil {
			p.state.current = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: err.Error()}}
			p.report()
			wait = retryPeriod
			continue
		}
		p.state.current = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Time{Time: began}}}
		ended = p.watch(process)
		p.terminated(process, began)
		if ended {
			break
		}
		if time.Since(began) > forgiven {
			backoff = 0
		}
		p.state.restarts++
		wait, backoff = backoff, min(max(firstRestart, 2*backoff), p.k.maxRestart)
		p.state.current = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", wait, spec.Spec.Containers[0].Name, p.name),
		}}
		p.report()
	}
	if p.life.Err() != nil {
		return
	}
	// What it came to, and then nothing.
	p.state.current, p.state.ready = p.state.last, false
	if p.state.current.Terminated == nil {
		p.state.current.Terminated = &corev1.ContainerStateTerminated{Reason: "ContainerStatusUnknown", ExitCode: 137}
	}
	p.report()
	for p.life.Err() == nil {
		err := p.k.client.CoreV1().Pods(p.spec.Namespace).Delete(p.life, p.name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &p.uid},
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		p.sleep(retryPeriod)
	}
}

func (p *pod) sleep(d time.Duration) {
	select {
	case <-p.life.Done():
	case <-time.After(d):
	}
}

// pause waits before a start; true says that the pod is to end instead.
func (p *pod) pause(d time.Duration) bool {
	if p.life.Err() != nil {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	for p.spec.DeletionTimestamp == nil {
		select {
		case <-p.life.Done():
			return true
		case p.spec = <-p.updates:
		case <-timer.C:
			return false
		}
	}
	return true
}

// terminated takes note of the end of a container.
func (p *pod) terminated(process *controlplane.Process, began time.Time) {
	code := process.ExitCode()
	end := &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: "Error",
		StartedAt: metav1.Time{Time: began}, FinishedAt: metav1.Time{Time: time.Now()}, ContainerID: "process://" + string(p.uid),
	}
	if code == 0 {
		end.Reason = "Completed"
	}
	p.state.last = corev1.ContainerState{Terminated: end}
	p.state.started, p.state.ready = false, false
	p.k.mu.Lock()
	p.pid, p.socket = 0, ""
	p.k.mu.Unlock()
}

// start starts the container as the pod's spec says.
func (p *pod) start() (*controlplane.Process, error) {
	ctx, spec := p.life, p.spec
	if err := unsupported(spec); err != nil {
		return nil, err
	}
	c := &spec.Spec.Containers[0]
	if !p.k.image.is(c.Image) {
		return nil, fmt.Errorf("ErrImagePull: %s is not here, only %s", c.Image, p.k.image.Name)
	}
	services, err := p.k.allServices()
	if err != nil {
		return nil, err
	}
	env, err := environment(spec, c, p.ip, services, p.references(ctx))
	if err != nil {
		return nil, err
	}
	uid, gid, err := userOf(spec, c, &p.k.image)
	if err != nil {
		return nil, err
	}
	if err := p.syncVolumes(ctx, spec); err != nil {
		return nil, err
	}
	sandbox := sandboxSpec{
		Dir: p.dir, Hostname: p.name, IP: p.ip, Network: p.k.network.Addr().Next(), NetworkBits: p.k.network.Bits(),
		Services: serviceAddresses(services), Proxy: p.k.proxy, Mounts: p.mounts(spec, c, services), ReadOnly: readOnlyRoot(c),
		UID: int(uid), GID: int(gid), Args: command(c, &p.k.image, env), Env: env, WorkingDir: "/",
	}
	if c.WorkingDir != "" {
		sandbox.WorkingDir = c.WorkingDir
	}
	return p.launch(&sandbox)
}

// references look values up that an environment is made of.
func (p *pod) references(ctx context.Context) references {
	return references{
		secret: func(name, key string) (string, bool, error) {
			s, err := p.k.client.CoreV1().Secrets(p.k.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", false, missing(err, ptr.To(true))
			}
			value, ok := s.Data[key]
			return string(value), ok, nil
		},
		configMap: func(name, key string) (string, bool, error) {
			m, err := p.k.client.CoreV1().ConfigMaps(p.k.namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", false, missing(err, ptr.To(true))
			}
			value, ok := m.Data[key]
			return value, ok, nil
		},
	}
}

// launch starts a sandbox and returns when its process runs.
func (p *pod) launch(s *sandboxSpec) (*controlplane.Process, error) {
	cmd, attributes, err := sandboxCmd()
	if err != nil {
		return nil, err
	}
	told, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Args = append(cmd.Args, p.dir+"/")
	cmd.Dir, cmd.Env = p.k.c.Dir(), []string{}
	cmd.Stdin = strings.NewReader(string(told))
	cmd.ExtraFiles = []*os.File{in}
	cmd.SysProcAttr = attributes
	process, err := p.k.c.StartProcess(processName(p.name), cmd)
	_ = in.Close()
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(p.life, func() { _ = process.Signal(syscall.SIGKILL) })()
	line, err := bufio.NewReader(out).ReadString('\n')
	pid := 0
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		<-process.Done() // it says why in its log
		return nil, fmt.Errorf("the sandbox ended: see %s", p.k.LogPath(p.name))
	}
	p.k.mu.Lock()
	p.pid, p.socket = pid, s.socket()
	p.k.mu.Unlock()
	return process, nil
}

// dial connects to a port of the pod.
func (p *pod) dial(ctx context.Context, port int) (net.Conn, error) {
	p.k.mu.Lock()
	socket := p.socket
	p.k.mu.Unlock()
	if socket == "" {
		return nil, fmt.Errorf("dial %s:%d: %w", p.ip, port, syscall.ECONNREFUSED)
	}
	return dialSocket(ctx, socket, strconv.Itoa(port), dialTimeout)
}

// watch looks after a container while it runs. True says that the pod was to end.
func (p *pod) watch(process *controlplane.Process) (ended bool) {
	ctx, cancel := context.WithCancel(p.life)
	defer cancel()
	c := &p.spec.Spec.Containers[0]
	answers := make(chan answer)
	p.probe(ctx, c, answers)
	p.state.started = c.StartupProbe == nil
	p.state.ready = c.StartupProbe == nil && c.ReadinessProbe == nil
	resync := time.NewTicker(syncPeriod)
	defer resync.Stop()
	stopping := false
	stop := func(sleep, grace time.Duration) {
		stopping = true
		p.k.work.Go(func() { p.terminate(process, sleep, grace) })
	}
	for {
		if p.spec.DeletionTimestamp != nil && !ended {
			ended = true
			grace := time.Duration(ptr.Deref(p.spec.DeletionGracePeriodSeconds, 30)) * time.Second
			stop(min(preStop(c), grace), grace)
		}
		p.report()
		select {
		case <-process.Done():
			return ended
		case <-p.life.Done():
			_ = process.Signal(syscall.SIGKILL)
			<-process.Done()
			return true
		case p.spec = <-p.updates:
		case a := <-answers:
			switch a.kind {
			case startupProbe:
				p.state.started = p.state.started || a.ok
				p.state.ready = p.state.started && c.ReadinessProbe == nil
			case readinessProbe:
				p.state.ready = a.ok
			case livenessProbe:
			}
			if a.kind != readinessProbe && !a.ok && !stopping {
				stop(preStop(c), time.Duration(ptr.Deref(p.spec.Spec.TerminationGracePeriodSeconds, 30))*time.Second)
			}
		case <-resync.C:
			// As a kubelet does, what cannot be read now is tried again.
			_ = p.syncVolumes(ctx, p.spec)
		}
	}
}

// preStop is how long a container that is to end is left alone.
func preStop(c *corev1.Container) time.Duration {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil {
		return 0
	}
	return time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
}

// terminate ends a container: a sleep, SIGTERM, and SIGKILL when the grace period
// is over.
func (p *pod) terminate(process *controlplane.Process, sleep, grace time.Duration) {
	rest := max(grace-sleep, 2*time.Second)
	for _, step := range []struct {
		wait   time.Duration
		signal syscall.Signal
	}{{sleep, syscall.SIGTERM}, {rest, syscall.SIGKILL}} {
		select {
		case <-process.Done():
			return
		case <-p.life.Done():
			return // watch kills it
		case <-time.After(step.wait):
		}
		_ = process.Signal(step.signal)
	}
}

// report writes the pod's status, if it is another one.
func (p *pod) report() {
	status := p.state.status(p.spec, p.ip, time.Now())
	if p.reported != nil && equality.Semantic.DeepEqual(p.reported.ContainerStatuses, status.ContainerStatuses) && p.reported.Phase == status.Phase {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.uid}, "status": status})
	if err != nil {
		return
	}
	for attempt := 0; attempt < 5 && p.life.Err() == nil; attempt++ {
		_, err := p.k.client.CoreV1().Pods(p.spec.Namespace).Patch(p.life, p.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err == nil || apierrors.IsNotFound(err) {
			p.reported = status
			return
		}
		p.sleep(retryPeriod)
	}
}

type probeKind int

const (
	startupProbe probeKind = iota
	livenessProbe
	readinessProbe
)

// answer is what a probe came to, once its threshold was reached.
type answer struct {
	kind probeKind
	ok   bool
}

// probe asks a container's probes for as long as ctx lives: that of the start
// until it succeeds, and then the others.
func (p *pod) probe(ctx context.Context, c *corev1.Container, answers chan<- answer) {
	p.k.work.Go(func() {
		if c.StartupProbe != nil && !p.ask(ctx, c, startupProbe, c.StartupProbe, answers) {
			return
		}
		if c.LivenessProbe != nil {
			p.k.work.Go(func() { p.ask(ctx, c, livenessProbe, c.LivenessProbe, answers) })
		}
		if c.ReadinessProbe != nil {
			p.ask(ctx, c, readinessProbe, c.ReadinessProbe, answers)
		}
	})
}

// ask repeats a probe and tells each turn. That of the start ends with its first
// answer, and returns it.
func (p *pod) ask(ctx context.Context, c *corev1.Container, kind probeKind, probe *corev1.Probe, answers chan<- answer) bool {
	seconds := func(n, unset int32) time.Duration {
		if n == 0 {
			n = unset
		}
		return time.Duration(n) * time.Second
	}
	client := &http.Client{Timeout: seconds(probe.TimeoutSeconds, 1), Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			number, err := strconv.Atoi(port)
			if err != nil {
				return nil, err
			}
			return p.dial(ctx, number)
		},
	}}
	known, last := false, false
	successes, failures := int32(0), int32(0)
	wait := seconds(probe.InitialDelaySeconds, 0)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
		wait = seconds(probe.PeriodSeconds, 10)
		ok := p.get(ctx, client, c, probe.HTTPGet) == nil
		if ok {
			successes, failures = successes+1, 0
		} else {
			successes, failures = 0, failures+1
		}
		if ok && successes < max(probe.SuccessThreshold, 1) || !ok && failures < max(probe.FailureThreshold, 1) || known && ok == last {
			continue
		}
		known, last = true, ok
		select {
		case <-ctx.Done():
			return false
		case answers <- answer{kind, ok}:
		}
		if kind == startupProbe {
			return ok
		}
	}
}

func (p *pod) get(ctx context.Context, client *http.Client, c *corev1.Container, action *corev1.HTTPGetAction) error {
	port, err := portOf(c, action.Port)
	if err != nil {
		return err
	}
	scheme := strings.ToLower(string(action.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(p.ip.String(), strconv.Itoa(port))+action.Path, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return errors.New(resp.Status)
	}
	return nil
}
