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
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	pidsFile = "pids"
	// stopGrace is what a process gets between SIGTERM and SIGKILL.
	stopGrace = 10 * time.Second
)

// launcher starts processes from one OS thread. The kernel kills them when
// that thread ends (see childAttributes), which must not be before the control
// plane's end; an ordinary goroutine gives no such promise about its thread.
type launcher struct {
	requests chan launchRequest
}

type launchRequest struct {
	cmd    *exec.Cmd
	result chan<- error
}

func newLauncher() *launcher {
	l := &launcher{requests: make(chan launchRequest)}
	go func() {
		// Never unlocked: the thread ends with the goroutine, at close.
		runtime.LockOSThread()
		for r := range l.requests {
			r.result <- r.cmd.Start()
		}
	}()
	return l
}

func (l *launcher) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	l.requests <- launchRequest{cmd: cmd, result: result}
	return <-result
}

func (l *launcher) close() { close(l.requests) }

// process is a running component.
type process struct {
	name string
	cmd  *exec.Cmd
	// done is closed after the process has ended and was waited for; err is
	// valid from then on.
	done chan struct{}
	err  error
}

// exited reports whether the process has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop ends the process and waits for it: politely at first, unless there is no
// grace at all.
func (p *process) stop(grace time.Duration) error {
	if grace <= 0 {
		return p.kill()
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("terminate %s: %w", p.name, err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	return p.kill()
}

// kill ends the process at once, as a crash does, and waits for it.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// Process is a process beside the components, which lives until it ends or the
// control plane is stopped.
type Process struct{ p *process }

// StartProcess starts a command whose output goes to LogPath(name), under a name
// that no running process has. The command names the state directory or something
// in it among its arguments, so that StopPids knows it.
func (c *ControlPlane) StartProcess(name string, cmd *exec.Cmd) (*Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return nil, errors.New("the control plane was stopped")
	}
	if p := c.supervisor.get(name); p != nil && !p.exited() {
		return nil, fmt.Errorf("%s runs already", name)
	}
	if err := c.supervisor.stop(name, stopGrace); err != nil { // one that ended is still recorded
		return nil, err
	}
	p, err := c.supervisor.launch(name, cmd)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(c.managers, name) {
		c.managers = append(c.managers, name)
	}
	return &Process{p}, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.p.done }

// ExitCode is what the process returned, once it has ended.
func (p *Process) ExitCode() int { return p.p.cmd.ProcessState.ExitCode() }

// Signal sends a signal; a process that has ended is no error.
func (p *Process) Signal(signal syscall.Signal) error {
	if err := p.p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.p.name, err)
	}
	return nil
}

// supervisor owns the processes of one control plane.
type supervisor struct {
	dir      string
	launcher *launcher

	mu      sync.Mutex
	running []*process
}

func newSupervisor(dir string) *supervisor {
	return &supervisor{dir: dir, launcher: newLauncher()}
}

func (s *supervisor) logPath(name string) string {
	return filepath.Join(s.dir, "logs", name+".log")
}

// start starts a program as a component.
func (s *supervisor) start(name, path string, args []string) (*process, error) {
	// Lives longer than any context: stop ends it.
	cmd := exec.Command(path, args...) //nolint:noctx // see above
	cmd.Dir = s.dir
	cmd.Env = componentEnv(s.dir)
	cmd.SysProcAttr = childAttributes()
	return s.launch(name, cmd)
}

// launch starts a command as a component. Its output is appended to its log.
func (s *supervisor) launch(name string, cmd *exec.Cmd) (*process, error) {
	log, err := os.OpenFile(s.logPath(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	fmt.Fprintf(log, "# %s: %s %s\n", time.Now().Format(time.RFC3339), cmd.Path, strings.Join(cmd.Args[1:], " "))
	cmd.Stdout = log
	cmd.Stderr = log
	if err := s.launcher.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = append(s.running, p)
	return p, s.writePids()
}

// componentEnv is the environment of a component: ours without what could make
// it talk to another cluster or read somebody's configuration.
func componentEnv(dir string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "KUBECONFIG=") || strings.HasPrefix(v, "KUBERNETES_SERVICE_") ||
			strings.HasPrefix(v, "ETCD_") || strings.HasPrefix(v, "KWOK_") || strings.HasPrefix(v, "HOME=")
	})
	return append(env, "HOME="+dir)
}

// get returns the process of a component, or nil when there is none.
func (s *supervisor) get(name string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.running {
		if p.name == name {
			return p
		}
	}
	return nil
}

// stop ends a component; one that isn't there is fine.
func (s *supervisor) stop(name string, grace time.Duration) error {
	p := s.get(name)
	if p == nil {
		return nil
	}
	if err := p.stop(grace); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = slices.DeleteFunc(s.running, func(q *process) bool { return q == p })
	return s.writePids()
}

// stopAll ends the components tier by tier, those of one tier at once.
func (s *supervisor) stopAll(grace time.Duration, tiers ...[]string) error {
	var errs []error
	for _, tier := range tiers {
		results := make([]error, len(tier))
		var stopping sync.WaitGroup
		for i, name := range tier {
			stopping.Go(func() { results[i] = s.stop(name, grace) })
		}
		stopping.Wait()
		errs = append(errs, results...)
	}
	s.launcher.close()
	return errors.Join(errs...)
}

// writePids records which processes are ours, for StopPids. mu is held.
func (s *supervisor) writePids() error {
	var b strings.Builder
	for _, p := range s.running {
		fmt.Fprintf(&b, "%d %s\n", p.cmd.Process.Pid, p.cmd.Path)
	}
	return writeFile(filepath.Join(s.dir, pidsFile), []byte(b.String()))
}

// logTail returns the end of a component's log.
func (s *supervisor) logTail(name string) string {
	const most = 64 << 10
	f, err := os.Open(s.logPath(name))
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	return tail(data, 25)
}

// StopPids ends what an interrupted run left of a control plane with its state
// in dir: the processes recorded there which still are what was recorded, the
// same binary with dir on its command line. Start does this for its own Dir.
// Nothing recorded is no error.
func StopPids(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, pidsFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range slices.Backward(strings.Split(strings.TrimSpace(string(data)), "\n")) {
		field, binary, ok := strings.Cut(entry, " ")
		pid, err := strconv.Atoi(field)
		if !ok || err != nil || pid <= 1 {
			continue
		}
		errs = append(errs, stopPid(ctx, pid, binary, dir))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(path)
}

func stopPid(ctx context.Context, pid int, binary, dir string) error {
	for _, step := range []struct {
		signal syscall.Signal
		grace  time.Duration
	}{{syscall.SIGTERM, stopGrace}, {syscall.SIGKILL, stopGrace}} {
		deadline := time.Now().Add(step.grace)
		if !isOurs(pid, binary, dir) {
			return nil
		}
		if err := syscall.Kill(pid, step.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop %s (%d): %w", binary, pid, err)
		}
		// Not a child of this process, so there is nothing to wait for but
		// its disappearance.
		for time.Now().Before(deadline) {
			if !isOurs(pid, binary, dir) {
				return nil
			}
			if err := pause(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("%s (%d) survived SIGKILL", binary, pid)
}

// isOurs reports whether pid runs binary for the control plane in dir. A pid
// may be somebody else's by now; a zombie is nobody's.
func isOurs(pid int, binary, dir string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	if err != nil {
		return false
	}
	// The kernel says so when the file was replaced by a newer build.
	exe = strings.TrimSuffix(exe, " (deleted)")
	if resolved, err := filepath.EvalSymlinks(binary); err == nil {
		binary = resolved
	}
	if exe != binary {
		return false
	}
	cmdline, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	return err == nil && strings.Contains(string(cmdline), dir+"/")
}
