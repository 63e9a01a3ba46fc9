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
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is the time between SIGTERM and SIGKILL.
const stopGrace = 10 * time.Second

// launcher starts processes from one OS thread. The kernel kills them when that
// thread ends (see childAttributes). The thread of an ordinary goroutine might end
// before the control plane.
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
		// It is never unlocked: the thread ends with the goroutine, at close.
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
	// done is closed after the process has ended; err is valid from then on.
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

// stop ends the process and waits for it: with SIGTERM first, unless the grace
// period is 0.
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

// supervisor owns the processes of one control plane.
type supervisor struct {
	dir      string
	launcher *launcher

	mu      sync.Mutex
	stopped bool
	// running are the processes, including crashed ones until the next start.
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
	// The process has no context: stop ends it.
	cmd := exec.Command(path, args...) //nolint:noctx // see above
	cmd.Dir = s.dir
	cmd.Env = componentEnv(s.dir)
	cmd.SysProcAttr = childAttributes()
	return s.launch(name, cmd)
}

// launch starts a command under a name that no running process has, and appends its
// output to its log.
func (s *supervisor) launch(name string, cmd *exec.Cmd) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, errors.New("the control plane was stopped")
	}
	s.running = slices.DeleteFunc(s.running, func(p *process) bool { return p.name == name && p.exited() })
	if slices.ContainsFunc(s.running, func(p *process) bool { return p.name == name }) {
		return nil, fmt.Errorf("%s runs already", name)
	}
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
	s.running = append(s.running, p)
	return p, nil
}

// componentEnv returns the environment of a component: ours without variables that
// name another cluster or a user's configuration.
func componentEnv(dir string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "KUBECONFIG=") || strings.HasPrefix(v, "KUBERNETES_SERVICE_") ||
			strings.HasPrefix(v, "ETCD_") || strings.HasPrefix(v, "KWOK_") || strings.HasPrefix(v, "HOME=")
	})
	return append(env, "HOME="+dir)
}

// get returns the process of a component, or nil.
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

// stop ends a component, if it runs.
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
	return nil
}

// stopAll ends all processes for good: first the processes in no tier, then tier by
// tier, all processes of a tier at once.
func (s *supervisor) stopAll(grace time.Duration, tiers ...[]string) error {
	s.mu.Lock()
	s.stopped = true
	var others []string
	for _, p := range s.running {
		if !slices.Contains(slices.Concat(tiers...), p.name) {
			others = append(others, p.name)
		}
	}
	s.mu.Unlock()

	var errs []error
	for _, tier := range slices.Concat([][]string{others}, tiers) {
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

// logTail returns the end of a component's log.
func (s *supervisor) logTail(name string) string {
	const most = 25
	data, err := os.ReadFile(s.logPath(name))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
